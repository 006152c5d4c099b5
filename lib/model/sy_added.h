/* sy_added.h - added tokens: texts that become one token wherever they stand, before the model sees
 * the rest. One set holds those that are looked for in the raw text, another those looked for in
 * the normalized text. */
#ifndef SY_ADDED_H
#define SY_ADDED_H

#include "sy_status.h"

typedef struct sy_added_token {
    char *text; /* owned, [n_bytes], not empty */
    size_t n_bytes;
    uint32_t id;
    uint8_t special;
    uint8_t single_word;    /* not beside a word character */
    uint8_t lstrip, rstrip; /* takes the whitespace on that side with it */
} sy_added_token;

typedef struct sy_added_set {
    sy_added_token *token; /* [n], sorted by text once sealed */
    size_t n, capacity;
    size_t first[257]; /* tokens that begin with byte b: [first[b], first[b + 1]) */
} sy_added_set;

typedef struct sy_added_match {
    size_t from, to; /* bytes of the text, whitespace that the token swallows included */
    const sy_added_token *token;
} sy_added_match;

SY_MUST_USE sy_status sy_added_add(sy_added_set *set,
                                   const sy_added_token *token); /* copies text */
/* After the last add, before the first scan. SY_EEXISTS: two tokens have the same text. */
SY_MUST_USE sy_status sy_added_seal(sy_added_set *set);
void sy_added_free(sy_added_set *set);

/* A scan of one text, left to right. */
typedef struct sy_added_scan {
    const sy_added_set *set;
    const char *s; /* [n] valid UTF-8 */
    size_t n;
    int special;      /* 0: special tokens are plain text */
    size_t at, taken; /* where to look next; where the last match ended: both begin at 0 */
} sy_added_scan;
/* The next match, leftmost and then longest. 0: no more. */
int sy_added_next(sy_added_scan *scan, sy_added_match *match);

#endif
