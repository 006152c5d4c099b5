/* sy_synth.h - writes a checkpoint of a given family and dimensions with pseudo-random weights, in
 * Hugging Face's layout: what benchmarks and tests of large shapes run on, and (recipe
 * SY_SYNTH_VECTORS) the published test vectors. */
#ifndef SY_SYNTH_H
#define SY_SYNTH_H

#include "sy_model.h"

typedef enum sy_synth_recipe {
    SY_SYNTH_SCALED, /* element = u * sqrt(3 / fan_in): activations stay near 1 at any size; norms 1
                        + 0.25 u; embeddings u */
    SY_SYNTH_VECTORS /* the deterministic rules of the test vectors: embed u, gate 0.5 u, norms 1 +
                        0.25 u, others 0.25 u */
} sy_synth_recipe;

typedef struct sy_synth_config {
    const char *family; /* "mixtral" */
    uint32_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, n_experts, top_k, expert_ffn,
        context;
    float rms_eps, rope_theta;
    float qkv_clip;      /* 0: none; only for families that clip */
    uint32_t rotary_dim; /* 0: the whole head; only for families that rotate a part */
    /* 0: not written; only for families that have them. */
    float embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling;
    int tied_head;
    int renormalise; /* norm_topk_prob is true, where the family leaves it open; 0: its default */
    sy_dtype dtype;  /* of every tensor */
    sy_synth_recipe recipe;
    uint64_t seed;             /* SCALED only: mixed into each tensor's hash */
    uint64_t shard_bytes_max;  /* 0: one model.safetensors; else shards and an index */
    const char *tokenizer_dir; /* tokenizer.json and tokenizer_config.json are copied from here;
                                  NULL: a byte-level tokenizer of 256 tokens is written (vocab >=
                                  256), ids above it have no text */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
} sy_synth_config;

/* Element i of tensor `name` is made from SplitMix64(FNV-1a(name) + i): u in [-1, 1), exact in
 * fp32. */
SY_MUST_USE sy_status sy_synth_write(const char *dir, const sy_synth_config *config, sy_error *err);

#endif
