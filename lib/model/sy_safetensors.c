/* sy_safetensors.c - the reader. The header is copied out of the map before it is parsed, so
 * nothing here depends on the file staying as it is; of the data only its place and size are
 * checked. Tensors are kept in file order, with an index by name beside them: a binary search
 * cannot be slowed down by chosen names, as a hash table can. */
#include "sy_safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sy_arena.h"
#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_json_load.h"
#include "sy_st_format.h"

#define LENGTH_BYTES 8u
/* About ten values describe one tensor; the largest published checkpoints have 200,000 tensors in
 * all their shards. */
#define HEADER_VALUES_MAX ((size_t)4000000)

typedef struct st_entry {
    sy_tensor tensor;
    uint64_t begin, end; /* in the data buffer */
} st_entry;

struct sy_safetensors {
    sy_map map;
    sy_arena names;
    st_entry *entries;         /* [n] in file order */
    const sy_tensor **by_name; /* [n] */
    size_t n;
};

typedef struct copy_job {
    void *out;
    const uint8_t *in;
    size_t n;
} copy_job;

static sy_status copy_guarded(void *arg)
{
    const copy_job *job = arg;

    memcpy(job->out, job->in, job->n);
    return SY_OK;
}

static uint64_t load_u64_le(const uint8_t bytes[LENGTH_BYTES])
{
    uint64_t v = 0;

    for (unsigned i = 0; i < LENGTH_BYTES; i++) v |= (uint64_t)bytes[i] << (8 * i);
    return v;
}

/* *text: a copy of the header, the caller frees it. */
static sy_status read_header(char **text, size_t *n, const sy_map *map, sy_error *err)
{
    uint8_t length[LENGTH_BYTES];
    copy_job job = {.out = length, .in = map->data, .n = LENGTH_BYTES};
    uint64_t header_bytes;
    sy_status st;

    *text = NULL;
    *n = 0;
    if (map->len < LENGTH_BYTES) {
        return sy_error_set(err, SY_EINVAL,
                            "%zu bytes are too few for a safetensors file, which begins with a "
                            "length of 8 bytes",
                            map->len);
    }
    st = sy_map_guard(copy_guarded, &job, err);
    if (st != SY_OK) return st;
    header_bytes = load_u64_le(length);
    if (header_bytes > SY_ST_HEADER_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "the header claims %" PRIu64 " bytes, more than the limit of %llu",
                            header_bytes, SY_ST_HEADER_MAX);
    }
    if (header_bytes > map->len - LENGTH_BYTES) {
        return sy_error_set(err, SY_EINVAL,
                            "the header claims %" PRIu64 " bytes, but only %zu follow its length: "
                            "the file is truncated or no safetensors file",
                            header_bytes, map->len - LENGTH_BYTES);
    }
    *text = malloc((size_t)header_bytes + 1);
    if (*text == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for a header of %" PRIu64 " bytes",
                            header_bytes);
    }
    *n = (size_t)header_bytes;
    job = (copy_job){.out = *text, .in = map->data + LENGTH_BYTES, .n = *n};
    return sy_map_guard(copy_guarded, &job, err);
}

static int take_size(uint64_t *out, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return 0;
    *out = (uint64_t)json_integer_value(value);
    return 1;
}

static sy_status parse_shape(sy_tensor *tensor, const json_t *shape, sy_error *err)
{
    const size_t rank = json_array_size(shape);

    if (!json_is_array(shape)) {
        return sy_error_set(err, SY_EINVAL, "shape is %s, not an array, in tensor \"%s\"",
                            sy_json_kind(shape), tensor->name);
    }
    if (rank > SY_TENSOR_RANK_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "shape has %zu dimensions, more than the limit of %d, in tensor \"%s\"",
                            rank, SY_TENSOR_RANK_MAX, tensor->name);
    }
    tensor->rank = (uint32_t)rank;
    for (size_t i = 0; i < rank; i++) {
        if (!take_size(&tensor->shape[i], json_array_get(shape, i))) {
            return sy_error_set(err, SY_EINVAL,
                                "dimension %zu of the shape is no integer >= 0 in tensor \"%s\"", i,
                                tensor->name);
        }
    }
    return SY_OK;
}

/* The name is set already. */
static sy_status parse_entry(st_entry *entry, const json_t *value, sy_error *err)
{
    sy_tensor *tensor = &entry->tensor;
    const json_t *dtype = json_object_get(value, "dtype");
    const json_t *offsets = json_object_get(value, "data_offsets");
    const sy_st_dtype *known;

    if (!json_is_object(value)) {
        return sy_error_set(err, SY_EINVAL, "the entry is %s, not an object, of tensor \"%s\"",
                            sy_json_kind(value), tensor->name);
    }
    if (!json_is_string(dtype)) {
        return sy_error_set(err, SY_EINVAL, "dtype is %s, not a string, in tensor \"%s\"",
                            sy_json_kind(dtype), tensor->name);
    }
    known = sy_st_dtype_by_name(json_string_value(dtype));
    if (known == NULL) {
        return sy_error_set(err, SY_EINVAL, "dtype \"%.32s\" is unknown in tensor \"%s\"",
                            json_string_value(dtype), tensor->name);
    }
    tensor->dtype_name = known->name;
    tensor->dtype = known->dtype;
    if (json_array_size(offsets) != 2 || !take_size(&entry->begin, json_array_get(offsets, 0)) ||
        !take_size(&entry->end, json_array_get(offsets, 1))) {
        return sy_error_set(err, SY_EINVAL,
                            "data_offsets is not two integers >= 0 in tensor \"%s\"", tensor->name);
    }
    return parse_shape(tensor, json_object_get(value, "shape"), err);
}

static sy_status check_metadata(json_t *metadata, sy_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata)) {
        return sy_error_set(err, SY_EINVAL, SY_ST_METADATA_KEY " is %s, not an object",
                            sy_json_kind(metadata));
    }
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value)) {
            return sy_error_set(err, SY_EINVAL,
                                SY_ST_METADATA_KEY
                                " holds %s, where only strings may be, under \"%s\"",
                                sy_json_kind(value), key);
        }
    }
    return SY_OK;
}

static sy_status parse_entries(sy_safetensors *self, json_t *root, sy_error *err)
{
    const char *key;
    json_t *value;

    self->entries = calloc(json_object_size(root) + 1, sizeof(*self->entries));
    self->by_name = calloc(json_object_size(root) + 1, sizeof(*self->by_name));
    if (self->entries == NULL || self->by_name == NULL) goto no_memory;
    json_object_foreach(root, key, value)
    {
        st_entry *entry = &self->entries[self->n];
        const size_t len = strlen(key);
        sy_status st;

        if (strcmp(key, SY_ST_METADATA_KEY) == 0) {
            st = check_metadata(value, err);
            if (st != SY_OK) return st;
            continue;
        }
        if (len > SY_TENSOR_NAME_MAX) {
            return sy_error_set(err, SY_EINVAL,
                                "a tensor's name has %zu bytes, more than the limit of %d: "
                                "\"%.64s...\"",
                                len, SY_TENSOR_NAME_MAX, key);
        }
        entry->tensor.name = sy_arena_strndup(&self->names, key, len);
        if (entry->tensor.name == NULL) goto no_memory;
        st = parse_entry(entry, value, err);
        if (st != SY_OK) return st;
        self->n++;
    }
    return SY_OK;
no_memory:
    return sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", json_object_size(root));
}

static int order_in_file(const void *a, const void *b)
{
    const st_entry *x = a;
    const st_entry *y = b;

    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name); /* empty tensors share a place */
}

static int order_by_name(const void *a, const void *b)
{
    const sy_tensor *const *x = a;
    const sy_tensor *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

/* The shape's size in elements and bytes, and whether the entry's range has it. */
static sy_status check_extent(st_entry *entry, sy_error *err)
{
    sy_tensor *tensor = &entry->tensor;
    const uint64_t element_bits = sy_st_dtype_by_name(tensor->dtype_name)->bits;
    uint64_t n = 1;
    uint64_t bits;

    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (__builtin_mul_overflow(n, tensor->shape[i], &n)) {
            return sy_error_set(err, SY_EINVAL, "the shape's product overflows in tensor \"%s\"",
                                tensor->name);
        }
    }
    if (__builtin_mul_overflow(n, element_bits, &bits)) {
        return sy_error_set(err, SY_EINVAL, "the size in bits overflows in tensor \"%s\"",
                            tensor->name);
    }
    if (bits % 8 != 0) {
        return sy_error_set(err, SY_EINVAL,
                            "%" PRIu64 " elements of %s are no whole number of "
                            "bytes in tensor \"%s\"",
                            n, tensor->dtype_name, tensor->name);
    }
    if (bits / 8 != entry->end - entry->begin) {
        return sy_error_set(err, SY_EINVAL,
                            "the shape needs %" PRIu64 " bytes, but data_offsets [%" PRIu64
                            ", %" PRIu64 "] hold %" PRIu64 " in tensor \"%s\"",
                            bits / 8, entry->begin, entry->end, entry->end - entry->begin,
                            tensor->name);
    }
    tensor->n_elements = n;
    tensor->bytes = bits / 8;
    return SY_OK;
}

/* Every byte of the data belongs to exactly one tensor: no hole to hide in, no byte shared.
 * data_bytes: what the file has. */
static sy_status check_layout(sy_safetensors *self, const uint8_t *data, uint64_t data_bytes,
                              sy_error *err)
{
    uint64_t cursor = 0;

    qsort(self->entries, self->n, sizeof(*self->entries), order_in_file);
    for (size_t i = 0; i < self->n; i++) {
        st_entry *entry = &self->entries[i];
        sy_status st;

        if (entry->end < entry->begin || entry->begin != cursor) {
            const char *what = entry->end < entry->begin ? "are reversed"
                               : entry->begin < cursor   ? "overlap another tensor"
                                                         : "leave a hole before them";

            return sy_error_set(err, SY_EINVAL,
                                "data_offsets [%" PRIu64 ", %" PRIu64 "] %s (the data before them "
                                "ends at %" PRIu64 ") in tensor \"%s\"",
                                entry->begin, entry->end, what, cursor, entry->tensor.name);
        }
        st = check_extent(entry, err);
        if (st != SY_OK) return st;
        cursor = entry->end;
    }
    if (cursor != data_bytes) {
        return sy_error_set(err, SY_EINVAL,
                            "the tensors need %" PRIu64 " bytes of data, the file has %" PRIu64
                            ": it is %s",
                            cursor, data_bytes,
                            cursor > data_bytes ? "truncated" : "followed by bytes of no tensor");
    }
    for (size_t i = 0; i < self->n; i++) {
        self->entries[i].tensor.data = data + self->entries[i].begin;
        self->by_name[i] = &self->entries[i].tensor;
    }
    if (self->n > 0) qsort(self->by_name, self->n, sizeof(*self->by_name), order_by_name);
    return SY_OK;
}

static sy_status parse_file(sy_safetensors *self, sy_error *err)
{
    char *text = NULL;
    size_t n = 0;
    json_t *root = NULL;
    sy_status st;

    SY_TRY(read_header(&text, &n, &self->map, err));
    st = sy_json_load(&root, text, n, HEADER_VALUES_MAX, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "header");
        goto out;
    }
    SY_TRY(parse_entries(self, root, err));
    SY_TRY(check_layout(self, self->map.data + LENGTH_BYTES + n, self->map.len - LENGTH_BYTES - n,
                        err));
out:
    json_decref(root);
    free(text);
    return st;
}

sy_status sy_safetensors_open(sy_safetensors **out, const char *path, sy_error *err)
{
    sy_safetensors *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "%s: no memory to open it", path);
    sy_arena_init(&self->names, SIZE_MAX);
    SY_TRY(sy_checkpoint_require_file(path, err));
    SY_TRY(sy_map_open(&self->map, path, err));
    st = parse_file(self, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", path);
        goto out;
    }
    *out = self;
    self = NULL;
out:
    sy_safetensors_close(self);
    return st;
}

void sy_safetensors_close(sy_safetensors *file)
{
    if (file == NULL) return;
    free(file->by_name);
    free(file->entries);
    sy_arena_free(&file->names);
    sy_map_close(&file->map);
    free(file);
}

size_t sy_safetensors_count(const sy_safetensors *file)
{
    return file->n;
}

const sy_tensor *sy_safetensors_at(const sy_safetensors *file, size_t i)
{
    return i < file->n ? &file->entries[i].tensor : NULL;
}

const sy_tensor *sy_safetensors_find(const sy_safetensors *file, const char *name)
{
    const sy_tensor wanted = {.name = name};
    const sy_tensor *key = &wanted;
    const sy_tensor **found =
        file->n == 0 ? NULL
                     : bsearch(&key, file->by_name, file->n, sizeof(*file->by_name), order_by_name);

    return found != NULL ? *found : NULL;
}
