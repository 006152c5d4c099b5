/* gpu_trunk.c - the shapes of trunks, and the memory that figures of them have in common. */
#include "gpu_trunk.h"

#include <stdlib.h>

#include "gpu_data.h"
#include "sy_base.h"
#include "sy_cuda_pack.h"

/* Checkpoints' own figures; tiny ones are odd where the kernels let them. */
const gpu_trunk_shape gpu_trunk_shapes[] = {
    {.name = "tiny-heads",
     .is_tiny = 1,
     .hidden = 72,
     .n_layers = 2,
     .vocab = 101,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 24,
     .rotary_dim = 16,
     .value_dim = 24},
    {.name = "tiny-latents",
     .is_tiny = 1,
     .hidden = 136,
     .n_layers = 2,
     .vocab = 67,
     .n_heads = 3,
     .n_kv_heads = 1,
     .head_dim = 28,
     .rotary_dim = 8,
     .value_dim = 12,
     .q_rank = 40,
     .kv_rank = 48,
     .shared_ffn = 70},
    {.name = "qwen3-30b-a3b",
     .hidden = 2048,
     .n_layers = 48,
     .vocab = 151936,
     .n_heads = 32,
     .n_kv_heads = 4,
     .head_dim = 128,
     .rotary_dim = 128,
     .value_dim = 128},
    {.name = "deepseek-v3",
     .hidden = 7168,
     .n_layers = 61,
     .vocab = 129280,
     .n_heads = 128,
     .n_kv_heads = 1,
     .head_dim = 192,
     .rotary_dim = 64,
     .value_dim = 128,
     .q_rank = 1536,
     .kv_rank = 512,
     .shared_ffn = 2048},
};
const size_t gpu_n_trunk_shapes = SY_COUNT_OF(gpu_trunk_shapes);

void gpu_measure_trunk(gpu_bench *bench, const gpu_trunk_shape *shape)
{
    gpu_measure_products(bench, shape);
    gpu_measure_attention(bench, shape);
    gpu_measure_steps(bench, shape);
}

const uint32_t *gpu_contexts(const gpu_bench *bench)
{
    static const uint32_t all[] = {4096, 32768, 0};
    static const uint32_t tiny[] = {21, 300, 0};

    return bench->tiny ? tiny : all;
}

/* ---- numbers ---- */

float *gpu_random_floats(const gpu_bench *bench, size_t n, uint64_t seed, float scale)
{
    float *out = gpu_alloc(n * sizeof(float));

    gpu_check((cudaError_t)gpu_fill_f32(out, n, seed, scale, bench->stream), "filling memory");
    return out;
}

uint16_t *gpu_random_bf16(const gpu_bench *bench, size_t n, uint64_t seed, float scale)
{
    uint16_t *out = gpu_alloc(n * sizeof(uint16_t));

    gpu_check((cudaError_t)gpu_fill_bf16(out, n, seed, scale, bench->stream), "filling memory");
    return out;
}

uint16_t *gpu_random_rows(const gpu_bench *bench, uint32_t n_rows, uint32_t k, uint64_t seed)
{
    float *plain = gpu_random_floats(bench, (size_t)n_rows * k, seed, 1.0f);
    uint16_t *rows = gpu_alloc((size_t)n_rows * sy_cuda_padded(k) * sizeof(uint16_t));

    gpu_check((cudaError_t)sy_cuda_rows_from_f32(rows, plain, k, n_rows, k, bench->stream),
              "rounding rows");
    GPU_DO(cudaStreamSynchronize(bench->stream));
    gpu_free(plain);
    return rows;
}

uint32_t *gpu_words(const uint32_t *host, size_t n)
{
    uint32_t *out = gpu_alloc(n * sizeof(uint32_t));

    gpu_put(out, host, n * sizeof(uint32_t));
    return out;
}

/* ---- the cache ---- */

static sy_cuda_kv kv_of(const gpu_trunk_shape *s, uint32_t context)
{
    const int is_latent = s->kv_rank > 0;

    return (sy_cuda_kv){.type = SY_CUDA_KV_BF16,
                        .n_heads = s->n_kv_heads,
                        .key_dim = is_latent ? s->kv_rank + s->rotary_dim : s->head_dim,
                        .value_dim = is_latent ? s->kv_rank : s->value_dim,
                        .is_latent = is_latent,
                        .pages_max = (context + SY_CUDA_KV_PAGE - 1) / SY_CUDA_KV_PAGE};
}

/* Elements of a position. */
static size_t kv_width(const sy_cuda_kv *kv)
{
    return (size_t)kv->n_heads * (kv->key_dim + (kv->is_latent ? 0 : kv->value_dim));
}

size_t gpu_cache_bytes(const gpu_trunk_shape *shape, uint32_t n_sequences, uint32_t context)
{
    const sy_cuda_kv kv = kv_of(shape, context);

    return (size_t)n_sequences * kv.pages_max * SY_CUDA_KV_PAGE * kv_width(&kv) * sizeof(uint16_t);
}

double gpu_cache_sequence_bytes(const gpu_cache *cache)
{
    return (double)cache->context * (double)kv_width(&cache->kv) * sizeof(uint16_t);
}

/* Neighbours lie apart, and each page is somebody's: 7919 is a prime. */
static void spread_pages(gpu_cache *cache, uint32_t n)
{
    const uint64_t step = n % 7919 == 0 ? 1 : 7919;

    for (uint32_t i = 0; i < n; i++) cache->page_host[i] = (uint32_t)(i * step % n);
}

gpu_cache gpu_cache_open(const gpu_bench *bench, const gpu_trunk_shape *shape, uint32_t n_layers,
                         uint32_t n_sequences, uint32_t context)
{
    gpu_cache cache = {.kv = kv_of(shape, context),
                       .n_sequences = n_sequences,
                       .context = context,
                       .layer_bytes = gpu_cache_bytes(shape, n_sequences, context)};
    const uint32_t n = n_sequences * cache.kv.pages_max;

    cache.kv.data = gpu_random_bf16(bench, n_layers * cache.layer_bytes / 2, 11, 1.0f);
    cache.page_host = gpu_host(n * sizeof(uint32_t));
    spread_pages(&cache, n);
    cache.kv.page = cache.page = gpu_words(cache.page_host, n);
    return cache;
}

void gpu_cache_close(gpu_cache *cache)
{
    gpu_free(cache->kv.data);
    gpu_free(cache->page);
    free(cache->page_host);
}
