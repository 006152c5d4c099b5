/* sy_gguf.c - the reader. The header's length is known only once it is parsed, so a prefix of the
 * file is copied out of the map and parsed, and a longer one when that was too short: nothing here
 * depends on the file staying as it is. Names and keys are found by binary search, which chosen
 * names cannot slow down. */
#include "sy_gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_gguf_parse.h"

#define PREFIX_BYTES ((size_t)1 << 20) /* enough for small vocabularies */

struct sy_gguf {
    sy_map map;
    uint8_t *bytes; /* of the header; metadata points into it */
    sy_arena arena;
    gguf_header header;
    const gguf_key **by_key;        /* [n_keys] */
    const sy_gguf_tensor **by_name; /* [n_entries] */
};

typedef struct copy_job {
    uint8_t *out;
    const uint8_t *in;
    size_t n;
} copy_job;

static sy_status copy_guarded(void *arg)
{
    const copy_job *job = arg;

    memcpy(job->out, job->in, job->n);
    return SY_OK;
}

/* Lengthens the copy from `have` bytes to n. */
static sy_status extend_copy(sy_gguf *self, size_t have, size_t n, sy_error *err)
{
    uint8_t *bytes = realloc(self->bytes, n + 1);
    copy_job job;

    if (bytes == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu bytes of a header", n);
    }
    self->bytes = bytes;
    job = (copy_job){.out = bytes + have, .in = self->map.data + have, .n = n - have};
    return sy_map_guard(copy_guarded, &job, err);
}

static sy_status read_header(sy_gguf *self, sy_error *err)
{
    size_t have = 0;
    size_t n = SY_MIN(PREFIX_BYTES, self->map.len);
    int ran_out;
    sy_status st;

    for (;;) {
        st = extend_copy(self, have, n, err);
        if (st != SY_OK) return st;
        have = n;
        st = gguf_parse(&self->header, &self->arena, self->bytes, n, self->map.len, &ran_out, err);
        if (!ran_out) return st;
        if (n >= SY_GGUF_HEADER_MAX) {
            return sy_error_set(err, SY_ELIMIT,
                                "the header is above the limit of %" PRIu64 " bytes",
                                SY_GGUF_HEADER_MAX);
        }
        sy_arena_free(&self->arena);
        n = SY_MIN(SY_MIN(4 * n, (size_t)SY_GGUF_HEADER_MAX), self->map.len);
    }
}

static int order_by_key(const void *a, const void *b)
{
    const gguf_key *const *x = a;
    const gguf_key *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int order_by_name(const void *a, const void *b)
{
    const sy_gguf_tensor *const *x = a;
    const sy_gguf_tensor *const *y = b;

    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

static sy_status index_names(sy_gguf *self, sy_error *err)
{
    const gguf_header *header = &self->header;

    self->by_key = calloc(header->n_keys + 1, sizeof(*self->by_key));
    self->by_name = calloc(header->n_entries + 1, sizeof(*self->by_name));
    if (self->by_key == NULL || self->by_name == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", header->n_entries);
    }
    for (size_t i = 0; i < header->n_keys; i++) self->by_key[i] = &header->keys[i];
    for (size_t i = 0; i < header->n_entries; i++) self->by_name[i] = &header->entries[i].item;
    qsort(self->by_key, header->n_keys, sizeof(*self->by_key), order_by_key);
    qsort(self->by_name, header->n_entries, sizeof(*self->by_name), order_by_name);
    for (size_t i = 1; i < header->n_keys; i++) {
        if (order_by_key(&self->by_key[i - 1], &self->by_key[i]) == 0) {
            return sy_error_set(err, SY_EINVAL, "the key \"%.160s\" stands there twice",
                                self->by_key[i]->name);
        }
    }
    for (size_t i = 1; i < header->n_entries; i++) {
        if (order_by_name(&self->by_name[i - 1], &self->by_name[i]) == 0) {
            return sy_error_set(err, SY_EINVAL, "the tensor \"%s\" stands there twice",
                                self->by_name[i]->tensor.name);
        }
    }
    return SY_OK;
}

static int order_in_file(const void *a, const void *b)
{
    const gguf_entry *const *x = a;
    const gguf_entry *const *y = b;

    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* entry's bytes lie in data_bytes, and behind what ends at `end`. */
static sy_status check_place(const gguf_entry *entry, uint32_t alignment, uint64_t end,
                             uint64_t data_bytes, sy_error *err)
{
    const sy_tensor *tensor = &entry->item.tensor;

    if (entry->offset % alignment != 0) {
        return sy_error_set(err, SY_EINVAL,
                            "offset %" PRIu64 " is no multiple of the alignment, %" PRIu32
                            ", in tensor \"%s\"",
                            entry->offset, alignment, tensor->name);
    }
    if (entry->offset > data_bytes || tensor->bytes > data_bytes - entry->offset) {
        return sy_error_set(err, SY_EINVAL,
                            "%" PRIu64 " bytes at %" PRIu64 " do not lie in the %" PRIu64
                            " bytes of data: the file is truncated, in tensor \"%s\"",
                            tensor->bytes, entry->offset, data_bytes, tensor->name);
    }
    if (entry->offset < end) {
        return sy_error_set(err, SY_EINVAL,
                            "offset %" PRIu64 " overlaps another tensor, which ends at %" PRIu64
                            ", in tensor \"%s\"",
                            entry->offset, end, tensor->name);
    }
    return SY_OK;
}

/* Gives every tensor its bytes; no byte is two tensors'. */
static sy_status place_tensors(sy_gguf *self, sy_error *err)
{
    const gguf_header *header = &self->header;
    const uint64_t unit = header->alignment;
    const uint64_t data_begin = (header->bytes + unit - 1) / unit * unit;
    const uint64_t data_bytes = self->map.len > data_begin ? self->map.len - data_begin : 0;
    gguf_entry **sorted;
    uint64_t end = 0;
    sy_status st = SY_OK;

    sorted = calloc(header->n_entries + 1, sizeof(gguf_entry *));
    if (sorted == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", header->n_entries);
    }
    for (size_t i = 0; i < header->n_entries; i++) sorted[i] = &header->entries[i];
    qsort(sorted, header->n_entries, sizeof(gguf_entry *), order_in_file);
    for (size_t i = 0; i < header->n_entries; i++) {
        sy_tensor *tensor = &sorted[i]->item.tensor;

        SY_TRY(check_place(sorted[i], header->alignment, end, data_bytes, err));
        tensor->data = self->map.data + data_begin + sorted[i]->offset;
        end = sorted[i]->offset + tensor->bytes;
    }
out:
    free(sorted);
    return st;
}

sy_status sy_gguf_open(sy_gguf **out, const char *path, sy_error *err)
{
    sy_gguf *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "%s: no memory to open it", path);
    sy_arena_init(&self->arena, SIZE_MAX);
    SY_TRY(sy_checkpoint_require_file(path, err));
    SY_TRY(sy_map_open(&self->map, path, err));
    st = read_header(self, err);
    if (st == SY_OK) st = index_names(self, err);
    if (st == SY_OK) st = place_tensors(self, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", path);
        goto out;
    }
    *out = self;
    self = NULL;
out:
    sy_gguf_close(self);
    return st;
}

void sy_gguf_close(sy_gguf *file)
{
    if (file == NULL) return;
    free(file->by_name);
    free(file->by_key);
    free(file->bytes);
    sy_arena_free(&file->arena);
    sy_map_close(&file->map);
    free(file);
}

size_t sy_gguf_count(const sy_gguf *file)
{
    return file->header.n_entries;
}

const sy_gguf_tensor *sy_gguf_at(const sy_gguf *file, size_t i)
{
    return i < file->header.n_entries ? &file->header.entries[i].item : NULL;
}

const sy_gguf_tensor *sy_gguf_find(const sy_gguf *file, const char *name)
{
    const sy_gguf_tensor wanted = {.tensor = {.name = name}};
    const sy_gguf_tensor *key = &wanted;
    const sy_gguf_tensor **found =
        bsearch(&key, file->by_name, file->header.n_entries, sizeof(*file->by_name), order_by_name);

    return found != NULL ? *found : NULL;
}

size_t sy_gguf_key_count(const sy_gguf *file)
{
    return file->header.n_keys;
}

const char *sy_gguf_key_at(const sy_gguf *file, size_t i, const sy_gguf_value **value)
{
    if (i >= file->header.n_keys) return NULL;
    *value = &file->header.keys[i].value;
    return file->header.keys[i].name;
}

const sy_gguf_value *sy_gguf_value_of(const sy_gguf *file, const char *key)
{
    const gguf_key wanted = {.name = key};
    const gguf_key *sought = &wanted;
    const gguf_key **found =
        bsearch(&sought, file->by_key, file->header.n_keys, sizeof(*file->by_key), order_by_key);

    return found != NULL ? &(*found)->value : NULL;
}
