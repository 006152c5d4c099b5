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

typedef struct sy_synth_options { /* zeroed: all defaults */
    sy_dtype dtype; /* of every tensor that config.json does not say is encoded; SY_DTYPE_NONE: its
                       torch_dtype */
    sy_synth_recipe recipe;
    uint64_t seed;             /* SCALED only: mixed into each tensor's hash */
    uint64_t shard_bytes_max;  /* 0: one model.safetensors; else shards and an index */
    const char *tokenizer_dir; /* tokenizer.json and tokenizer_config.json are copied from here;
                                  NULL: a byte-level tokenizer of 256 tokens is written (vocab >=
                                  256), ids above it have no text */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
} sy_synth_options;

/* The checkpoint that a config.json describes; n bytes of text. Element i of tensor `name` is made
 * from SplitMix64(FNV-1a(name) + i): u in [-1, 1), exact in fp32. With quantization_config fp8 or
 * mxfp4, matrices of layers (mxfp4: of experts) are encoded: block (i, j) is multiplied by 2^-((i +
 * 2j) mod 4), its factor is the least power of two that brings it within the format's range, and
 * elements go to the nearest value. tests/golden/families/README.md has the same rules. */
SY_MUST_USE sy_status sy_synth_write_config(const char *dir, const char *config, size_t n,
                                            const sy_synth_options *options, sy_error *err);

/* The plain shapes that benchmarks and tests vary: rendered as a config.json. */
typedef struct sy_synth_config {
    const char *family; /* "mixtral" */
    uint32_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, n_experts, top_k, expert_ffn,
        context;
    float rms_eps, rope_theta;
    float qkv_clip;  /* 0: none; only for families that clip */
    int renormalise; /* norm_topk_prob is true, where the family leaves it open; 0: its default */
    sy_synth_options options; /* dtype: bf16 by default */
} sy_synth_config;
SY_MUST_USE sy_status sy_synth_write(const char *dir, const sy_synth_config *config, sy_error *err);

#endif
