/* sy_safetensors_write.c - the writer. Bytes go to a file beside the wanted one, which takes its
 * name only when whole, so that an interrupted run leaves nothing that looks like a checkpoint. */
#include "sy_safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_st_format.h"
#include "sy_strbuf.h"

#define STREAM_BUFFER_BYTES ((size_t)1 << 20)
#define ALIGN_BYTES         8u

typedef struct planned {
    const sy_st_entry *entry;
    const sy_st_dtype *dtype;
    uint64_t begin, end;
} planned;

/* Where fill's bytes go; remaining counts down the tensor's. */
typedef struct sink_state {
    FILE *stream;
    uint64_t remaining_bytes;
    int write_errno; /* of the write that failed; 0: none did */
} sink_state;

static int order_of_writer(const void *a, const void *b)
{
    const planned *x = a;
    const planned *y = b;

    if (x->dtype != y->dtype) return x->dtype > y->dtype ? -1 : 1;
    return strcmp(x->entry->name, y->entry->name);
}

static sy_status entry_bytes(uint64_t *out, const planned *item, sy_error *err)
{
    const sy_st_entry *entry = item->entry;
    uint64_t bytes = item->dtype->bits / 8;

    for (uint32_t i = 0; i < entry->rank; i++) {
        if (__builtin_mul_overflow(bytes, entry->shape[i], &bytes)) {
            return sy_error_set(err, SY_EINVAL, "the size in bytes overflows of tensor \"%s\"",
                                entry->name);
        }
    }
    *out = bytes;
    return SY_OK;
}

static sy_status check_entry(planned *item, const sy_st_entry *entry, sy_error *err)
{
    item->entry = entry;
    item->dtype = entry->dtype_name != NULL ? sy_st_dtype_by_name(entry->dtype_name)
                                            : sy_st_dtype_of(entry->dtype);
    if (entry->name == NULL || entry->name[0] == '\0' || strlen(entry->name) > SY_TENSOR_NAME_MAX ||
        strcmp(entry->name, SY_ST_METADATA_KEY) == 0) {
        return sy_error_set(
            err, SY_EINVAL,
            "a tensor's name must have 1 to %d bytes and not be " SY_ST_METADATA_KEY,
            SY_TENSOR_NAME_MAX);
    }
    if (item->dtype == NULL || entry->rank > SY_TENSOR_RANK_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "no such type, or more than %d dimensions: tensor \"%s\"",
                            SY_TENSOR_RANK_MAX, entry->name);
    }
    return SY_OK;
}

/* Sorts and places the tensors. */
static sy_status plan_file(planned *plan, const sy_st_entry *entries, size_t n, sy_error *err)
{
    uint64_t cursor = 0;
    sy_status st;

    for (size_t i = 0; i < n; i++) {
        st = check_entry(&plan[i], &entries[i], err);
        if (st != SY_OK) return st;
    }
    if (n > 0) qsort(plan, n, sizeof(*plan), order_of_writer);
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = 0;

        if (i > 0 && order_of_writer(&plan[i - 1], &plan[i]) == 0) {
            return sy_error_set(err, SY_EINVAL, "two tensors are called \"%s\"",
                                plan[i].entry->name);
        }
        st = entry_bytes(&bytes, &plan[i], err);
        if (st != SY_OK) return st;
        plan[i].begin = cursor;
        if (__builtin_add_overflow(cursor, bytes, &cursor)) {
            return sy_error_set(err, SY_EINVAL, "the tensors' sizes overflow");
        }
        plan[i].end = cursor;
    }
    return SY_OK;
}

static sy_status render_header(sy_strbuf *out, const planned *plan, size_t n, sy_error *err)
{
    sy_strbuf_puts(out, "{\"" SY_ST_METADATA_KEY "\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const sy_st_entry *entry = plan[i].entry;

        sy_strbuf_puts(out, ",");
        sy_strbuf_json_string(out, entry->name, strlen(entry->name));
        sy_strbuf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", plan[i].dtype->name);
        for (uint32_t d = 0; d < entry->rank; d++) {
            sy_strbuf_printf(out, "%s%" PRIu64, d > 0 ? "," : "", entry->shape[d]);
        }
        sy_strbuf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", plan[i].begin,
                         plan[i].end);
    }
    sy_strbuf_puts(out, "}");
    while (!out->failed && out->len % ALIGN_BYTES != 0) sy_strbuf_puts(out, " ");
    if (out->failed) return sy_error_set(err, SY_ENOMEM, "no memory for the header");
    if (out->len > SY_ST_HEADER_MAX) {
        return sy_error_set(err, SY_ELIMIT, "the header has %zu bytes, more than the limit of %llu",
                            out->len, SY_ST_HEADER_MAX);
    }
    return SY_OK;
}

static sy_status emit_bytes(void *sink, const void *data, size_t n)
{
    sink_state *state = sink;

    if (n > state->remaining_bytes) return SY_EINVAL;
    state->remaining_bytes -= n;
    if (fwrite(data, 1, n, state->stream) == n) return SY_OK;
    state->write_errno = errno;
    return SY_EIO;
}

static sy_status write_header(FILE *stream, const planned *plan, size_t n, sy_error *err)
{
    uint8_t length[8];
    sy_strbuf header;
    sy_status st;

    sy_strbuf_init(&header);
    st = render_header(&header, plan, n, err);
    if (st == SY_OK) {
        for (unsigned i = 0; i < sizeof(length); i++) {
            length[i] = (uint8_t)((uint64_t)header.len >> (8 * i));
        }
        if (fwrite(length, 1, sizeof(length), stream) != sizeof(length) ||
            fwrite(header.data, 1, header.len, stream) != header.len) {
            st = sy_error_set(err, SY_EIO, "cannot write: %s", strerrordesc_np(errno));
        }
    }
    sy_strbuf_free(&header);
    return st;
}

typedef sy_status (*fill_fn)(void *arg, size_t entry, sy_st_emit emit, void *sink);

static sy_status write_data(FILE *stream, const planned *plan, size_t n, const sy_st_entry *entries,
                            fill_fn fill, void *arg, sy_error *err)
{
    for (size_t i = 0; i < n; i++) {
        sink_state state = {.stream = stream, .remaining_bytes = plan[i].end - plan[i].begin};
        sy_status st;

        st = fill(arg, (size_t)(plan[i].entry - entries), emit_bytes, &state);
        if (state.write_errno != 0) {
            return sy_error_set(err, SY_EIO, "cannot write: %s: tensor \"%s\"",
                                strerrordesc_np(state.write_errno), plan[i].entry->name);
        }
        if (st != SY_OK && st != SY_EINVAL) {
            return sy_error_set(err, st, "its source failed: tensor \"%s\"", plan[i].entry->name);
        }
        if (st != SY_OK || state.remaining_bytes > 0) {
            return sy_error_set(err, SY_EINVAL,
                                "the bytes given are not the %" PRIu64 " that its shape needs: "
                                "tensor \"%s\"",
                                plan[i].end - plan[i].begin, plan[i].entry->name);
        }
    }
    return SY_OK;
}

/* Writes the whole of the file at path; a failure may leave a part of it. */
static sy_status write_file(const char *path, const planned *plan, size_t n,
                            const sy_st_entry *entries, fill_fn fill, void *arg, sy_error *err)
{
    FILE *stream = fopen(path, "wbe");
    sy_status st;

    if (stream == NULL) {
        return sy_error_set(err, SY_EIO, "cannot create it: %s", strerrordesc_np(errno));
    }
    setvbuf(stream, NULL, _IOFBF, STREAM_BUFFER_BYTES);
    st = write_header(stream, plan, n, err);
    if (st == SY_OK) st = write_data(stream, plan, n, entries, fill, arg, err);
    if (fclose(stream) != 0 && st == SY_OK) {
        st = sy_error_set(err, SY_EIO, "cannot write: %s", strerrordesc_np(errno));
    }
    return st;
}

sy_status sy_safetensors_write(const char *path, const sy_st_entry *entries, size_t n,
                               sy_status (*fill)(void *arg, size_t entry, sy_st_emit emit,
                                                 void *sink),
                               void *arg, sy_error *err)
{
    planned *plan = calloc(n + 1, sizeof(*plan));
    char temp[PATH_MAX];
    const int temp_len = snprintf(temp, sizeof(temp), "%s.partial", path);
    sy_status st;

    if (plan == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for %zu tensors", n);
        goto out;
    }
    if (temp_len < 0 || (size_t)temp_len >= sizeof(temp)) {
        st = sy_error_set(err, SY_EINVAL, "the path is longer than %d bytes", PATH_MAX - 9);
        goto out;
    }
    SY_TRY(plan_file(plan, entries, n, err));
    st = write_file(temp, plan, n, entries, fill, arg, err);
    if (st == SY_OK && rename(temp, path) != 0) {
        st = sy_error_set(err, SY_EIO, "cannot rename %s: %s", temp, strerrordesc_np(errno));
    }
    if (st != SY_OK) unlink(temp);
out:
    if (st != SY_OK) sy_error_prefix(err, "%s", path);
    free(plan);
    return st;
}
