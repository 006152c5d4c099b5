/* sy_sampler.h - logits -> a token. Pure. Random numbers are counter-based, from (seed, position):
 * the same seed gives the same text under any load. Order: repetition penalty, temperature, top-k,
 * top-p, min-p, draw: transformers' order. Ties go to the lower token id everywhere, so top-k keeps
 * exactly k; top-p keeps the fewest best tokens that together reach it, at least one. The token is
 * the same for every kernel implementation. */
#ifndef SY_SAMPLER_H
#define SY_SAMPLER_H

#include "sy_kernels.h"

typedef struct sy_sampler {
    float temperature;        /* 0: greedy (the largest logit after the penalty) */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all; in [0, 1] */
    float min_p;              /* 0: all; in [0, 1] */
    float repetition_penalty; /* 1: none; x > 0 is divided by it, x <= 0 multiplied, once for each
                                 token seen */
    uint64_t seed;
} sy_sampler;

typedef struct sy_top_token {
    uint32_t token;
    float logprob;
} sy_top_token;

/* scratch: sy_sampler_scratch(vocab) bytes, 64-byte aligned. */
size_t sy_sampler_scratch(uint32_t vocab);
/* logits: [vocab], read only. seen: the sequence so far (prompt and output), for the penalty.
 * position: of the token being drawn. SY_EINVAL: a logit is NaN or +infinity, or none is above
 * -infinity; a token in seen is past the vocabulary; an option is out of its range. */
SY_MUST_USE sy_status sy_sample(uint32_t *token, const float *logits, uint32_t vocab,
                                const sy_sampler *sampler, const uint32_t *seen, size_t n_seen,
                                uint64_t position, void *scratch, const sy_kernels *kernels);
/* log softmax of the unmodified logits: *logprob of `token` (-infinity when it is past the
 * vocabulary), and the n best, best first; places past the vocabulary get token UINT32_MAX and
 * -infinity. A NaN among the logits makes every log probability NaN. */
void sy_logprobs(float *logprob, sy_top_token *top, uint32_t n_top, const float *logits,
                 uint32_t vocab, uint32_t token, void *scratch, const sy_kernels *kernels);

#endif
