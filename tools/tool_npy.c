/* tool_npy.c - .npy files. The header is a Python dictionary in text; it is parsed here as the
 * little language that NumPy writes (quoted keys, a string, True or False, a tuple of whole
 * numbers), and whatever else it may hold is an error. */
#include "tool_npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"

#define MAGIC            "\x93NUMPY"
#define MAGIC_BYTES      (sizeof(MAGIC) - 1)
#define HEADER_BYTES_MAX ((size_t)65536)
#define FILE_BYTES_MAX   ((size_t)16 << 30)
#define WORD_BYTES       32 /* longer keys and types are cut: none that is known is */
#define ALIGN_BYTES      64
#define HEAD_BYTES       ((size_t)192) /* the longest that is written takes 128 */

/* The dictionary's text, and what has been read of it. */
typedef struct header {
    const char *at, *end;
    int has_descr, has_order, has_shape;
    char descr[WORD_BYTES];
    int fortran_order;
    uint64_t dim[2];
    size_t n_dims;
    sy_error *err;
} header;

static sy_status fail(const header *h, const char *what)
{
    return sy_error_set(h->err, SY_EINVAL, "the header is malformed: %s", what);
}

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(header *h)
{
    while (h->at < h->end && is_space(*h->at)) h->at++;
}

/* Takes c, with space before it; 0 when something else is there. */
static int take(header *h, char c)
{
    skip_space(h);
    if (h->at == h->end || *h->at != c) return 0;
    h->at++;
    return 1;
}

static int take_word(header *h, const char *word)
{
    const size_t n = strlen(word);

    skip_space(h);
    if ((size_t)(h->end - h->at) < n || memcmp(h->at, word, n) != 0) return 0;
    h->at += n;
    return 1;
}

static sy_status take_string(header *h, char out[WORD_BYTES])
{
    const char *close;
    size_t n;
    char quote;

    skip_space(h);
    if (h->at == h->end || (*h->at != '\'' && *h->at != '"')) return fail(h, "a string is missing");
    quote = *h->at++;
    close = memchr(h->at, quote, (size_t)(h->end - h->at));
    if (close == NULL) return fail(h, "a string does not end");
    n = SY_MIN((size_t)(close - h->at), (size_t)WORD_BYTES - 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)h->at[i];

        out[i] = c >= 0x20 && c < 0x7f ? (char)c : '?'; /* it may show in a message */
    }
    out[n] = '\0';
    h->at = close + 1;
    return SY_OK;
}

static sy_status take_number(header *h, uint64_t *out)
{
    uint64_t value = 0;

    skip_space(h);
    if (h->at == h->end || *h->at < '0' || *h->at > '9')
        return fail(h, "a dimension is not a whole number");
    for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++) {
        if (value > (uint64_t)INT64_MAX / 10 - 1) return fail(h, "a dimension is too large");
        value = value * 10 + (uint64_t)(*h->at - '0');
    }
    *out = value;
    return SY_OK;
}

/* "(3, 4)", "(3,)" or "()". */
static sy_status take_shape(header *h)
{
    h->n_dims = 0;
    if (!take(h, '(')) return fail(h, "'shape' is not a tuple");
    while (!take(h, ')')) {
        uint64_t dim = 0;
        const sy_status st = take_number(h, &dim);

        if (st != SY_OK) return st;
        if (h->n_dims < SY_COUNT_OF(h->dim)) h->dim[h->n_dims] = dim;
        h->n_dims++;
        if (!take(h, ',')) {
            if (!take(h, ')')) return fail(h, "'shape' does not end with a parenthesis");
            break;
        }
    }
    return SY_OK;
}

static sy_status take_order(header *h)
{
    h->fortran_order = take_word(h, "True");
    if (!h->fortran_order && !take_word(h, "False"))
        return fail(h, "'fortran_order' is neither True nor False");
    return SY_OK;
}

/* Marks an entry as seen; a second one of the same name is an error, as in no file that NumPy
 * wrote. */
static sy_status once(const header *h, int *seen, const char *key)
{
    if (*seen)
        return sy_error_set(h->err, SY_EINVAL, "the header is malformed: '%s' is there twice", key);
    *seen = 1;
    return SY_OK;
}

static sy_status take_entry(header *h)
{
    char key[WORD_BYTES];
    sy_status st = take_string(h, key);

    if (st != SY_OK) return st;
    if (!take(h, ':')) return fail(h, "a key has no value");
    if (strcmp(key, "descr") == 0) {
        SY_TRY(once(h, &h->has_descr, key));
        skip_space(h);
        if (h->at < h->end && *h->at == '[')
            return sy_error_set(h->err, SY_EINVAL, "a structured array; a plain one is needed");
        st = take_string(h, h->descr);
    } else if (strcmp(key, "fortran_order") == 0) {
        SY_TRY(once(h, &h->has_order, key));
        st = take_order(h);
    } else if (strcmp(key, "shape") == 0) {
        SY_TRY(once(h, &h->has_shape, key));
        st = take_shape(h);
    } else {
        st = sy_error_set(h->err, SY_EINVAL, "the header is malformed: the key '%s' is unknown",
                          key);
    }
out:
    return st;
}

static sy_status take_dictionary(header *h)
{
    if (!take(h, '{')) return fail(h, "it does not begin with a brace");
    while (!take(h, '}')) {
        const sy_status st = take_entry(h);

        if (st != SY_OK) return st;
        if (!take(h, ',')) {
            if (!take(h, '}')) return fail(h, "a comma or a closing brace is missing");
            break;
        }
    }
    skip_space(h);
    if (h->at != h->end) return fail(h, "something follows the closing brace");
    if (!h->has_descr) return fail(h, "'descr' is missing");
    if (!h->has_order) return fail(h, "'fortran_order' is missing");
    if (!h->has_shape) return fail(h, "'shape' is missing");
    return SY_OK;
}

static sy_status element_type(sy_dtype *out, const char *descr, int bf16, sy_error *err)
{
    *out = SY_DTYPE_NONE;
    if (strcmp(descr, "<f4") == 0) *out = SY_F32;
    if (strcmp(descr, "<f2") == 0) *out = SY_F16;
    if (strcmp(descr, "<u2") == 0) {
        if (!bf16)
            return sy_error_set(err, SY_EINVAL,
                                "an array of uint16: if these are the bits of bf16, say --bf16");
        *out = SY_BF16;
    }
    if (*out == SY_DTYPE_NONE)
        return sy_error_set(err, SY_EINVAL,
                            "elements of type '%s', but '<f4' or '<f2' is needed: save "
                            "x.astype('<f4')",
                            descr);
    return SY_OK;
}

/* What the header says against what is wanted and what is there. */
static sy_status check(tool_npy *out, const header *h, size_t data_bytes, int bf16)
{
    const sy_status st = element_type(&out->dtype, h->descr, bf16, h->err);
    uint64_t element_bytes;

    if (st != SY_OK) return st;
    if (h->n_dims != 2)
        return sy_error_set(h->err, SY_EINVAL,
                            "an array of %zu dimensions, but rows and columns are needed: save "
                            "x.reshape(-1, x.shape[-1])",
                            h->n_dims);
    if (h->fortran_order)
        return sy_error_set(h->err, SY_EINVAL,
                            "the array is in Fortran order: save numpy.ascontiguousarray(x)");
    out->rows = h->dim[0];
    out->cols = h->dim[1];
    element_bytes = sy_dtype_bytes(out->dtype);
    /* Division, because the product of two dimensions may not fit. */
    if (out->cols != 0 && out->rows > SIZE_MAX / element_bytes / out->cols)
        return sy_error_set(h->err, SY_EINVAL, "the shape is too large");
    if (out->rows * out->cols * element_bytes != data_bytes)
        return sy_error_set(h->err, SY_EINVAL,
                            "the shape (%" PRIu64 ", %" PRIu64 ") needs %" PRIu64
                            " bytes of data, but %zu follow the header",
                            out->rows, out->cols, out->rows * out->cols * element_bytes,
                            data_bytes);
    return SY_OK;
}

/* Where the dictionary lies: [*begin, *begin + *len). */
static sy_status find_header(size_t *begin, size_t *len, const uint8_t *bytes, size_t n,
                             sy_error *err)
{
    if (n < MAGIC_BYTES + 4 || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return sy_error_set(err, SY_EINVAL, "not a .npy file");
    if ((bytes[6] != 1 && bytes[6] != 2) || bytes[7] != 0)
        return sy_error_set(err, SY_EINVAL, "version %u.%u of the format, but 1.0 or 2.0 is read",
                            bytes[6], bytes[7]);
    *len = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    *begin = 10;
    if (bytes[6] == 2) {
        if (n < 12) return sy_error_set(err, SY_EINVAL, "the file ends inside its header");
        *len |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
        *begin = 12;
    }
    if (*len > HEADER_BYTES_MAX)
        return sy_error_set(err, SY_EINVAL, "a header of %zu bytes, at most %zu are read", *len,
                            HEADER_BYTES_MAX);
    if (*len > n - *begin) return sy_error_set(err, SY_EINVAL, "the file ends inside its header");
    return SY_OK;
}

sy_status tool_npy_parse(tool_npy *out, const void *bytes, size_t n, int bf16, sy_error *err)
{
    size_t begin = 0, len = 0;
    header h = {.err = err};
    sy_status st;

    *out = (tool_npy){0};
    SY_TRY(find_header(&begin, &len, bytes, n, err));
    h.at = (const char *)bytes + begin;
    h.end = h.at + len;
    SY_TRY(take_dictionary(&h));
    SY_TRY(check(out, &h, n - begin - len, bf16));
    out->data = (const uint8_t *)bytes + begin + len;
out:
    return st;
}

sy_status tool_npy_read(tool_npy *out, const char *path, int bf16, sy_error *err)
{
    char *file = NULL;
    size_t n = 0;
    sy_status st = sy_file_read(&file, &n, path, FILE_BYTES_MAX, err);

    *out = (tool_npy){0};
    if (st != SY_OK) return st;
    st = tool_npy_parse(out, file, n, bf16, err);
    if (st != SY_OK) {
        free(file);
        *out = (tool_npy){0};
        sy_error_prefix(err, "%s", path);
        return st;
    }
    out->file = file;
    return SY_OK;
}

void tool_npy_free(tool_npy *npy)
{
    free(npy->file);
    *npy = (tool_npy){0};
}

/* Magic, version 1.0, length, dictionary, and spaces so that the data begins at a multiple of 64.
 * Returns the bytes written. */
static size_t render_header(char out[HEAD_BYTES], tool_npy_shape shape)
{
    static const char *const descr[] = {[SY_F32] = "<f4", [SY_BF16] = "<u2", [SY_F16] = "<f2"};
    const size_t begin = MAGIC_BYTES + 4;
    const int n =
        snprintf(out + begin, HEAD_BYTES - begin,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ", %" PRIu64 "), }",
                 descr[shape.dtype], shape.rows, shape.cols);
    const size_t end = begin + (size_t)n;
    const size_t total = (end + ALIGN_BYTES) / ALIGN_BYTES * ALIGN_BYTES; /* the newline fits */

    memcpy(out, MAGIC "\x01\x00", MAGIC_BYTES + 2);
    out[8] = (char)((total - begin) & 0xff);
    out[9] = (char)((total - begin) >> 8);
    memset(out + end, ' ', total - end);
    out[total - 1] = '\n';
    return total;
}

sy_status tool_npy_write(const char *path, tool_npy_shape shape, const sy_iov *pieces,
                         size_t n_pieces, sy_error *err)
{
    char head[HEAD_BYTES];
    const uint64_t element_bytes = sy_dtype_bytes(shape.dtype);
    uint64_t given_bytes = 0;
    FILE *file;
    size_t n_head;
    int ok;

    for (size_t i = 0; i < n_pieces; i++) given_bytes += pieces[i].len;
    if (element_bytes == 0 || given_bytes != shape.rows * shape.cols * element_bytes)
        return sy_error_set(err, SY_EINVAL,
                            "%s: %" PRIu64 " bytes for %" PRIu64 " rows of %" PRIu64, path,
                            given_bytes, shape.rows, shape.cols);
    n_head = render_header(head, shape);
    file = fopen(path, "wb");
    if (file == NULL)
        return sy_error_set(err, SY_EIO, "%s: cannot open it for writing: %s", path,
                            strerrordesc_np(errno));
    ok = fwrite(head, 1, n_head, file) == n_head;
    for (size_t i = 0; i < n_pieces && ok; i++)
        ok = fwrite(pieces[i].data, 1, pieces[i].len, file) == pieces[i].len;
    if (fclose(file) != 0 || !ok)
        return sy_error_set(err, SY_EIO, "%s: cannot write it: %s", path, strerrordesc_np(errno));
    return SY_OK;
}
