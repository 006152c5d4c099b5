/* sy_strbuf.h - a growing string of bytes, always NUL-terminated. After a failed allocation it
 * stays valid, `failed` is set, and further appends do nothing. One thread at a time. */
#ifndef SY_STRBUF_H
#define SY_STRBUF_H

#include "sy_status.h"

typedef struct sy_strbuf {
    char *data; /* "" before the first append */
    size_t len;
    size_t capacity_bytes;
    int failed;
} sy_strbuf;

void sy_strbuf_init(sy_strbuf *buf);
void sy_strbuf_append(sy_strbuf *buf, const void *data, size_t n);
void sy_strbuf_puts(sy_strbuf *buf, const char *s);
void sy_strbuf_printf(sy_strbuf *buf, const char *fmt, ...) SY_PRINTF(2, 3);
void sy_strbuf_json_string(sy_strbuf *buf, const char *s,
                           size_t n); /* quoted; invalid UTF-8 becomes U+FFFD */
void sy_strbuf_reset(sy_strbuf *buf); /* empty, memory kept */
void sy_strbuf_free(sy_strbuf *buf);
char *sy_strbuf_detach(
    sy_strbuf *buf); /* the caller frees it; NULL if failed; buf is empty afterwards */

#endif
