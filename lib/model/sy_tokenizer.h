/* sy_tokenizer.h - tokenizer.json: text -> token ids and back. The pipeline of Hugging Face's
 * `tokenizers`: added tokens, normalizer, pre-tokenizer, BPE, post-processor; decoder. Whatever the
 * file asks for and this does not implement is an error at load, never a silent difference.
 * Immutable once open: any thread may encode and decode at the same time. */
#ifndef SY_TOKENIZER_H
#define SY_TOKENIZER_H

#include "sy_status.h"
#include "sy_strbuf.h"

typedef struct sy_tokenizer sy_tokenizer;

typedef struct sy_ids { /* a growing array of token ids; zeroed is empty */
    uint32_t *id;
    size_t n, capacity;
} sy_ids;
SY_MUST_USE sy_status sy_ids_push(sy_ids *ids, uint32_t id);
void sy_ids_free(sy_ids *ids);

/* DIR holds tokenizer.json (and maybe tokenizer_config.json: add_bos_token, add_eos_token,
 * bos_token, eos_token), or tiktoken.model instead (sy_tiktoken.h). vocab: ids must be below it.
 * SY_ENOTFOUND: neither. SY_EINVAL: malformed, merges with missing tokens, ids past vocab. */
SY_MUST_USE sy_status sy_tokenizer_open(sy_tokenizer **out, const char *dir, uint32_t vocab,
                                        sy_error *err);
SY_MUST_USE sy_status sy_tokenizer_parse(sy_tokenizer **out, const char *json, size_t n,
                                         const char *config_json, size_t config_n, uint32_t vocab,
                                         sy_error *err);
void sy_tokenizer_close(sy_tokenizer *tokenizer); /* accepts NULL */

/* What becomes of text that looks like a special token. */
typedef enum sy_special {
    SY_SPECIAL_NONE,   /* it stays text */
    SY_SPECIAL_ALL,    /* it is one, and the post-processor adds its own around the text */
    SY_SPECIAL_IN_TEXT /* it is one, and nothing is added: for what a chat template has written */
} sy_special;

/* Appends to ids. Text must be UTF-8 (SY_EINVAL names the byte offset). Time is linear in n for the
 * supported patterns. */
SY_MUST_USE sy_status sy_tokenizer_encode(const sy_tokenizer *tokenizer, sy_ids *ids,
                                          const char *text, size_t n, sy_special special,
                                          sy_error *err);
/* The pre-tokenizer alone, for tests: calls piece() with each piece in order, before bytes become
 * printable characters. */
SY_MUST_USE sy_status sy_tokenizer_split(const sy_tokenizer *tokenizer, const char *text, size_t n,
                                         void (*piece)(void *arg, const char *s, size_t len),
                                         void *arg, sy_error *err);
size_t sy_tokenizer_vocab(const sy_tokenizer *tokenizer); /* highest id + 1 */
int sy_tokenizer_is_special(const sy_tokenizer *tokenizer, uint32_t id);
/* The token as the file spells it ("Ġthe"), NULL when the id has no text. */
const char *sy_tokenizer_token(const sy_tokenizer *tokenizer, uint32_t id);

/* Streaming decode: what has become certain is appended to out; an incomplete UTF-8 tail is held
 * back, so that no character is ever split. Invalid bytes become U+FFFD as in Python's
 * decode(errors="replace"). Zeroed is a new stream. */
typedef struct sy_detok {
    uint8_t tail[8];
    uint32_t n_tail;
    int started; /* the decoder's rule for the first token has been applied */
} sy_detok;
/* skip_special: special tokens add nothing. Unknown ids add nothing. */
void sy_tokenizer_decode(const sy_tokenizer *tokenizer, sy_detok *state, uint32_t id,
                         int skip_special, sy_strbuf *out);
void sy_tokenizer_decode_end(const sy_tokenizer *tokenizer, sy_detok *state,
                             sy_strbuf *out); /* flushes the tail */

#endif
