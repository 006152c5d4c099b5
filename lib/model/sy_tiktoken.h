/* sy_tiktoken.h - tiktoken.model: a tokenizer as a list of ranks, one line a token, base64 of its
 * bytes, a space and its rank, which is its id. How text is split is not in the file; here it is
 * Kimi-K2's way. Special tokens are those of tokenizer_config.json's added_tokens_decoder. */
#ifndef SY_TIKTOKEN_H
#define SY_TIKTOKEN_H

#include "sy_tokenizer.h"

/* ranks: [n]. config_json may be NULL. vocab: ids must be below it. SY_EINVAL: not base64, a token
 * or a rank twice, ranks that are not 0, 1, 2, ..., a byte without a token, ids past vocab;
 * SY_ELIMIT: a token that is too long, or more merges than any real file has. */
SY_MUST_USE sy_status sy_tiktoken_parse(sy_tokenizer **out, const char *ranks, size_t n,
                                        const char *config_json, size_t config_n, uint32_t vocab,
                                        sy_error *err);

#endif
