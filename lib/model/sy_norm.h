/* sy_norm.h - the normalizer: a list of rewrites of the text between added tokens. */
#ifndef SY_NORM_H
#define SY_NORM_H

#include "sy_strbuf.h"

#define SY_NORM_STEPS_MAX 16

typedef enum sy_norm_kind { SY_NORM_NFC, SY_NORM_PREPEND, SY_NORM_REPLACE } sy_norm_kind;

typedef struct sy_norm_step {
    sy_norm_kind kind;
    char *from, *to; /* owned; PREPEND has only `to`, NFC neither; `from` is not empty */
    size_t from_bytes, to_bytes;
} sy_norm_step;

typedef struct sy_norm { /* immutable once built */
    sy_norm_step step[SY_NORM_STEPS_MAX];
    size_t n_steps;
} sy_norm;

void sy_norm_free(sy_norm *norm);
/* buf: [2] working memory. *out points into one of them, or is s itself when there are no steps. */
SY_MUST_USE sy_status sy_norm_apply(const sy_norm *norm, sy_strbuf buf[2], const char *s, size_t n,
                                    const char **out, size_t *out_bytes, sy_error *err);
/* Appends s with every `from` replaced by `to`, leftmost first, without overlap. */
void sy_norm_replace(sy_strbuf *out, const char *s, size_t n, const char *from, size_t from_bytes,
                     const char *to, size_t to_bytes);

#endif
