/* sy_vocab.h - the tokens of a tokenizer: text by id for all of them, id by text for the model's
 * own. Built once, then read by any thread. */
#ifndef SY_VOCAB_H
#define SY_VOCAB_H

#include "sy_status.h"

#define SY_NO_ID UINT32_MAX
#define SY_TOKEN_ID_MAX \
    ((1u << 24) - 1) /* far above any vocabulary; bounds what a file can make us allocate */

typedef struct sy_vocab_token {
    size_t at; /* in text */
    uint32_t n_bytes;
    uint8_t present, special;
    uint8_t is_literal; /* a byte-level decoder takes the text as it is */
} sy_vocab_token;

typedef struct sy_vocab {
    char *text; /* every token, NUL-terminated; may hold NUL itself */
    size_t text_bytes, text_capacity;
    sy_vocab_token *token; /* [n_ids], n_ids = highest id + 1 */
    size_t n_ids, token_capacity;
    uint32_t *slot; /* [n_slots] open addressing by text, a power of two; SY_NO_ID: empty */
    size_t n_slots, n_model;
} sy_vocab;

/* A zeroed vocab is empty. Room for n_model tokens that are to be found by text. */
SY_MUST_USE sy_status sy_vocab_reserve(sy_vocab *vocab, size_t n_model);
/* id <= SY_TOKEN_ID_MAX. model: found by text as well, at most as many as reserved, texts distinct.
 * SY_EEXISTS: the id has a text already. */
SY_MUST_USE sy_status sy_vocab_add(sy_vocab *vocab, uint32_t id, const char *s, size_t n,
                                   int model);
uint32_t sy_vocab_find(const sy_vocab *vocab, const char *s,
                       size_t n); /* a model token, or SY_NO_ID */
const sy_vocab_token *sy_vocab_get(const sy_vocab *vocab, uint32_t id); /* NULL: no such token */
void sy_vocab_free(sy_vocab *vocab);

#endif
