/* gpu_trunk.h - what the parts of measure_gpu share that have the model without its experts. */
#ifndef GPU_TRUNK_H
#define GPU_TRUNK_H

#include "gpu_measure.h"
#include "sy_cuda_trunk.h"

/* A trunk, of a known model or a tiny one. Latent ones (MLA) have one head in the cache, whose key
 * is kv_rank elements, which are the value too, and then those that rotate. */
typedef struct gpu_trunk_shape {
    const char *name;
    int is_tiny;
    uint32_t hidden, n_layers, vocab;
    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim, rotary_dim; /* of queries as they are projected */
    uint32_t value_dim;            /* of a head, as the last product of attention takes it */
    uint32_t q_rank, kv_rank;      /* latent ones alone; else 0 */
    uint32_t shared_ffn;           /* of shared experts; 0: there are none */
} gpu_trunk_shape;
extern const gpu_trunk_shape gpu_trunk_shapes[];
extern const size_t gpu_n_trunk_shapes;

void gpu_measure_trunk(gpu_bench *bench, const gpu_trunk_shape *shape);
void gpu_measure_products(gpu_bench *bench, const gpu_trunk_shape *shape);
void gpu_measure_attention(gpu_bench *bench, const gpu_trunk_shape *shape);
void gpu_measure_steps(gpu_bench *bench, const gpu_trunk_shape *shape);

/* As lib/trunk has its memory for splits. */
enum { GPU_ROWS_TOGETHER = 64 };
#define GPU_SCRATCH_BYTES_MAX ((size_t)128 << 20)

/* Contexts of every figure; ends with 0. */
const uint32_t *gpu_contexts(const gpu_bench *bench);

/* ---- device memory with numbers in it; the caller ends it with gpu_free ---- */

float *gpu_random_floats(const gpu_bench *bench, size_t n, uint64_t seed, float scale);
uint16_t *gpu_random_bf16(const gpu_bench *bench, size_t n, uint64_t seed, float scale);
/* Rows of activations: [n_rows, padded(k)], zeros behind k. */
uint16_t *gpu_random_rows(const gpu_bench *bench, uint32_t n_rows, uint32_t k, uint64_t seed);
uint32_t *gpu_words(const uint32_t *host, size_t n);

/* ---- the cache of one layer ---- */

typedef struct gpu_cache {
    sy_cuda_kv kv;
    uint32_t n_sequences, context;
    size_t layer_bytes;
    uint32_t *page_host, *page; /* [n_sequences, pages_max] */
} gpu_cache;
size_t gpu_cache_bytes(const gpu_trunk_shape *shape, uint32_t n_sequences, uint32_t context);
/* Of bf16, full of random numbers; layers lie one behind another. */
gpu_cache gpu_cache_open(const gpu_bench *bench, const gpu_trunk_shape *shape, uint32_t n_layers,
                         uint32_t n_sequences, uint32_t context);
void gpu_cache_close(gpu_cache *cache);
/* Of all heads of a sequence's context. */
double gpu_cache_sequence_bytes(const gpu_cache *cache);

#endif
