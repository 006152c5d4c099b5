/* sy_gguf_vocab.h - tokenizer.ggml.*: tokens with types and scores, and what follows from them.
 * Private to lib/model. */
#ifndef SY_GGUF_VOCAB_H
#define SY_GGUF_VOCAB_H

#include "sy_gguf.h"
#include "sy_strbuf.h"

/* The format's numbers. */
typedef enum gguf_token_type {
    GGUF_TOKEN_UNDEFINED = 0,
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6
} gguf_token_type;

typedef struct gguf_vocab {
    const sy_gguf_string *tokens; /* [n], borrowed from the file */
    const sy_gguf_value *types;   /* NULL: all are NORMAL */
    const sy_gguf_value *scores;  /* NULL: there are none */
    size_t n;
} gguf_vocab;

SY_MUST_USE sy_status gguf_vocab_read(gguf_vocab *out, const sy_gguf *metadata, sy_error *err);
gguf_token_type gguf_token_type_of(const gguf_vocab *vocab, size_t id);
/* Neither UNUSED nor empty: padding up to the embedding's rows. */
int gguf_token_is_there(const gguf_vocab *vocab, size_t id);

/* Appends the merges of a vocabulary with scores, as a JSON array of pairs. SY_EINVAL: a score is
 * no number, a piece has more than SY_GGUF_PIECE_BYTES. */
SY_MUST_USE sy_status gguf_merges_of_scores(sy_strbuf *out, const gguf_vocab *vocab, sy_error *err);

#endif
