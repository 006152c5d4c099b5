/* sy_norm.c - the normalizer's rewrites. */
#include "sy_norm.h"
#include "sy_unicode.h"

#include <stdlib.h>
#include <string.h>

/* Steps may each multiply the text's size; nothing honest comes near this. */
#define NORMALIZED_BYTES_MAX (1u << 30)

void sy_norm_free(sy_norm *norm)
{
    for (size_t i = 0; i < norm->n_steps; i++) {
        free(norm->step[i].from);
        free(norm->step[i].to);
    }
    memset(norm, 0, sizeof(*norm));
}

void sy_norm_replace(sy_strbuf *out, const char *s, size_t n, const char *from, size_t from_bytes,
                     const char *to, size_t to_bytes)
{
    size_t i = 0;

    while (i < n && out->len <= NORMALIZED_BYTES_MAX) {
        const char *found = memmem(s + i, n - i, from, from_bytes);
        const size_t end = found == NULL ? n : (size_t)(found - s);
        sy_strbuf_append(out, s + i, end - i);
        if (found == NULL) return;
        sy_strbuf_append(out, to, to_bytes);
        i = end + from_bytes;
    }
}

static sy_status apply_step(const sy_norm_step *step, sy_strbuf *out, const char *s, size_t n)
{
    switch (step->kind) {
    case SY_NORM_NFC: return sy_unicode_nfc(out, s, n);
    case SY_NORM_PREPEND:
        if (n > 0) sy_strbuf_append(out, step->to, step->to_bytes);
        sy_strbuf_append(out, s, n);
        break;
    case SY_NORM_REPLACE:
        sy_norm_replace(out, s, n, step->from, step->from_bytes, step->to, step->to_bytes);
        break;
    }
    return out->failed ? SY_ENOMEM : SY_OK;
}

sy_status sy_norm_apply(const sy_norm *norm, sy_strbuf buf[2], const char *s, size_t n,
                        const char **out, size_t *out_bytes, sy_error *err)
{
    for (size_t i = 0; i < norm->n_steps; i++) {
        sy_strbuf *next = &buf[i % 2];
        sy_strbuf_reset(next);
        const sy_status st = apply_step(&norm->step[i], next, s, n);
        if (st != SY_OK) return st;
        if (next->len > NORMALIZED_BYTES_MAX) {
            return sy_error_set(err, SY_ELIMIT,
                                "the tokenizer's normalizer makes this text too long");
        }
        s = next->data;
        n = next->len;
    }
    *out = s;
    *out_bytes = n;
    return SY_OK;
}
