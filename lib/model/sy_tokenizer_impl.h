/* sy_tokenizer_impl.h - what a tokenizer is made of. For the files of sy_tokenizer only: one builds
 * it from JSON, one encodes, one decodes. */
#ifndef SY_TOKENIZER_IMPL_H
#define SY_TOKENIZER_IMPL_H

#include "sy_added.h"
#include "sy_bpe.h"
#include "sy_norm.h"
#include "sy_pretok.h"
#include "sy_tokenizer.h"
#include "sy_vocab.h"

#define SY_DECODER_REPLACES_MAX 8

typedef enum sy_decoder_kind {
    SY_DECODER_NONE,       /* tokens joined with spaces */
    SY_DECODER_BYTE_LEVEL, /* printable characters back to bytes */
    SY_DECODER_METASPACE,  /* the replacement back to spaces, dropped in the first token */
    SY_DECODER_SEQUENCE    /* replaces in each token, then bytes, then a strip of the whole text */
} sy_decoder_kind;

typedef struct sy_decoder {
    sy_decoder_kind kind;
    sy_norm_step replace[SY_DECODER_REPLACES_MAX]; /* SEQUENCE; METASPACE: the first one */
    size_t n_replaces;
    int keeps_first;   /* METASPACE with prepend_scheme never */
    int byte_fallback; /* "<0xHH>" stands for a byte */
    char strip[4];     /* one character, dropped at most strip_start times at the beginning */
    unsigned strip_bytes;
    int strip_start;
} sy_decoder;

struct sy_tokenizer {
    sy_vocab vocab; /* model and added tokens */
    sy_bpe bpe;
    sy_norm norm;
    sy_pretok pretok;
    sy_added_set raw, normalized; /* added tokens, by the text they are looked for in */
    sy_decoder decoder;
    sy_ids prefix, suffix; /* the post-processor's tokens around the text */
};

/* Fills a zeroed tokenizer; on failure it holds what was built so far. json: [n]. config_json may
 * be NULL. */
SY_MUST_USE sy_status sy_tokenizer_build(sy_tokenizer *self, const char *json, size_t n,
                                         const char *config_json, size_t config_n, uint32_t vocab,
                                         sy_error *err);
/* The same from a file of ranks; special tokens are the configuration's added_tokens_decoder. */
SY_MUST_USE sy_status sy_tokenizer_build_ranks(sy_tokenizer *self, const char *ranks, size_t n,
                                               const char *config_json, size_t config_n,
                                               uint32_t vocab, sy_error *err);
/* The part of it that sy_tiktoken.c reads: everything but added tokens. */
SY_MUST_USE sy_status sy_tiktoken_read(sy_tokenizer *self, const char *ranks, size_t n,
                                       uint32_t limit, sy_error *err);
void sy_decoder_free(sy_decoder *decoder);

struct json_t;
/* The components, from their JSON; json NULL or null: none. */
SY_MUST_USE sy_status sy_norm_read(sy_norm *norm, struct json_t *json, sy_error *err);
SY_MUST_USE sy_status sy_pretok_read(sy_pretok *pretok, struct json_t *json, sy_error *err);
SY_MUST_USE sy_status sy_decoder_read(sy_decoder *decoder, struct json_t *json, sy_error *err);
/* Prefix and suffix, whose ids must be tokens: the vocabulary and the added tokens are complete by
 * then. */
SY_MUST_USE sy_status sy_post_read(sy_tokenizer *self, struct json_t *json, sy_error *err);

#endif
