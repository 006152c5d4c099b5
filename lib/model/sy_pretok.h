/* sy_pretok.h - the pre-tokenizer: a list of steps, each applied to every piece the one before it
 * left. */
#ifndef SY_PRETOK_H
#define SY_PRETOK_H

#include "sy_regex.h"

#define SY_PRETOK_STEPS_MAX 16

typedef enum sy_pretok_kind {
    SY_PRETOK_PREFIX_SPACE, /* ByteLevel add_prefix_space */
    SY_PRETOK_METASPACE,    /* spaces become `text`, which is also put in front */
    SY_PRETOK_SPLIT
} sy_pretok_kind;

typedef enum sy_split_pattern {
    SY_SPLIT_REGEX,
    SY_SPLIT_TEXT,
    SY_SPLIT_NUMERIC /* one numeric character */
} sy_split_pattern;

/* What becomes of a match, and of the text between matches, which is always a piece. */
typedef enum sy_split_behavior {
    SY_SPLIT_REMOVED,
    SY_SPLIT_ISOLATED,
    SY_SPLIT_MERGED_WITH_PREVIOUS,
    SY_SPLIT_MERGED_WITH_NEXT,
    SY_SPLIT_CONTIGUOUS
} sy_split_behavior;

typedef enum sy_prepend_scheme {
    SY_PREPEND_ALWAYS,
    SY_PREPEND_FIRST, /* only to the piece that begins the text */
    SY_PREPEND_NEVER
} sy_prepend_scheme;

typedef struct sy_pretok_step {
    sy_pretok_kind kind;
    sy_split_pattern pattern;
    sy_split_behavior behavior;
    int invert; /* matches and gaps trade places */
    sy_prepend_scheme scheme;
    sy_regex *regex; /* owned; SY_SPLIT_REGEX */
    char *text;      /* owned, [text_bytes]; SY_SPLIT_TEXT and SY_PRETOK_METASPACE; not empty */
    size_t text_bytes;
} sy_pretok_step;

typedef struct sy_pretok { /* immutable once built */
    sy_pretok_step step[SY_PRETOK_STEPS_MAX];
    size_t n_steps;
    int byte_level; /* afterwards each byte becomes its printable character: left to the receiver */
} sy_pretok;

void sy_pretok_free(sy_pretok *pretok);

/* One caller's working memory and receiver. A zeroed run with regex, piece and arg set is ready. */
typedef struct sy_pretok_run {
    const sy_pretok *pretok;
    sy_regex_scratch *regex;
    sy_strbuf
        buf[SY_PRETOK_STEPS_MAX]; /* rewritten text, by step: a step never runs inside itself */
    sy_status (*piece)(void *arg, const char *s, size_t n, sy_error *err);
    void *arg;
} sy_pretok_run;

void sy_pretok_run_init(sy_pretok_run *run, const sy_pretok *pretok);
void sy_pretok_run_free(sy_pretok_run *run); /* regex stays */
/* Calls run->piece for each piece of s, none of them empty, in order; stops at the first failure.
 * at_start: s begins the whole text. s is valid UTF-8. */
SY_MUST_USE sy_status sy_pretok_apply(sy_pretok_run *run, const char *s, size_t n, int at_start,
                                      sy_error *err);

#endif
