/* sy_strbuf.c - a growing string. It doubles, so that n appended bytes cost O(n). */
#include "sy_strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_text.h"

#define FIRST_BYTES 128

/* What an empty buffer points to. Nothing writes it: a buffer without capacity is never written. */
static char nothing[1];

/* Makes room for n more bytes and the NUL. */
static int reserve(sy_strbuf *buf, size_t n)
{
    size_t capacity_bytes = SY_MAX(buf->capacity_bytes, FIRST_BYTES);
    char *data;

    if (buf->failed) return 0;
    if (n >= PTRDIFF_MAX - buf->len) goto failed;
    if (buf->len + n < buf->capacity_bytes) return 1;
    while (capacity_bytes <= buf->len + n) capacity_bytes *= 2;
    data = realloc(buf->capacity_bytes > 0 ? buf->data : NULL, capacity_bytes);
    if (data == NULL) goto failed;
    data[buf->len] = '\0';
    buf->data = data;
    buf->capacity_bytes = capacity_bytes;
    return 1;
failed:
    buf->failed = 1;
    return 0;
}

void sy_strbuf_init(sy_strbuf *buf)
{
    *buf = (sy_strbuf){.data = nothing};
}

void sy_strbuf_append(sy_strbuf *buf, const void *data, size_t n)
{
    if (n == 0 || !reserve(buf, n)) return;
    memcpy(buf->data + buf->len, data, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
}

void sy_strbuf_puts(sy_strbuf *buf, const char *s)
{
    sy_strbuf_append(buf, s, strlen(s));
}

void sy_strbuf_printf(sy_strbuf *buf, const char *fmt, ...)
{
    va_list ap;
    va_list again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        buf->failed = 1;
    } else if (n > 0 && reserve(buf, (size_t)n)) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, again);
        buf->len += (size_t)n;
    }
    va_end(again);
}

void sy_strbuf_json_string(sy_strbuf *buf, const char *s, size_t n)
{
    char out[SY_JSON_CHAR_BYTES];
    size_t used;

    sy_strbuf_append(buf, "\"", 1);
    for (size_t i = 0; i < n; i += used) {
        const size_t len = sy_json_char(out, &used, s + i, n - i);

        sy_strbuf_append(buf, out, len);
    }
    sy_strbuf_append(buf, "\"", 1);
}

void sy_strbuf_reset(sy_strbuf *buf)
{
    buf->len = 0;
    buf->failed = 0;
    if (buf->capacity_bytes > 0) buf->data[0] = '\0';
}

void sy_strbuf_free(sy_strbuf *buf)
{
    if (buf->capacity_bytes > 0) free(buf->data);
    sy_strbuf_init(buf);
}

char *sy_strbuf_detach(sy_strbuf *buf)
{
    char *data = NULL;

    if (!buf->failed && reserve(buf, 0)) {
        data = buf->data;
        buf->capacity_bytes = 0; /* the memory is the caller's now */
    }
    sy_strbuf_free(buf);
    return data;
}
