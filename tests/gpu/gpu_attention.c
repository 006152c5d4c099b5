/* gpu_attention.c - attention over a paged cache of bf16 at the lengths of real contexts: decoding,
 * where each row is the last of a sequence of its own, and the end of a prompt. Runs take other
 * sequences than the one before, so that what is read does not lie in the L2. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_trunk.h"
#include "sy_base.h"
#include "sy_dtype.h"

enum { DECODE_ROWS_MAX = 64, N_SAMPLES = 4 };
#define PARTIAL_BYTES_MAX ((size_t)1 << 30)
/* Relative L2 of a head of a row, as tests/emu/test_cuda_attention.c has it. */
#define ERROR_MAX 4e-3

/* How the work is spread. */
typedef struct spread {
    const char *name;
    uint32_t rows_together;
    int is_split;
} spread;
static const spread spreads[] = {{"split", 1, 1},
                                 {"whole", 1, 0},
                                 {"split, rows together", GPU_ROWS_TOGETHER, 1},
                                 {"whole, rows together", GPU_ROWS_TOGETHER, 0}};

typedef struct attention_bench {
    const gpu_trunk_shape *shape;
    const gpu_cache *cache;
    int is_prefill;
    uint32_t n_rows, n_slices; /* a slice is the rows of a run */
    uint32_t *position_host, *position;
    uint32_t *sequence_host, *sequence; /* [n_slices, n_rows] */
    uint32_t *count;
    float *q, *out, *partial;
    size_t out_bytes, partial_bytes; /* partial_bytes: 0 where it has no room */
    const spread *how;
} attention_bench;

static float scale_of(const attention_bench *b)
{
    return 2.0f / sqrtf((float)b->cache->kv.key_dim);
}

static gpu_figure figure_of(const attention_bench *b)
{
    const sy_cuda_kv *kv = &b->cache->kv;
    const uint32_t n_heads = b->shape->n_heads;
    double n_keys = 0.0;

    for (uint32_t t = 0; t < b->n_rows; t++) n_keys += b->position_host[t] + 1.0;
    return (gpu_figure){.what = b->is_prefill ? "attend, prompt" : "attend, decoding",
                        .how = b->how == NULL ? "" : b->how->name,
                        .weights = "bf16",
                        .shape = b->shape->name,
                        .n_tokens = b->n_rows,
                        .context = b->cache->context,
                        .bytes =
                            gpu_cache_sequence_bytes(b->cache) * (b->is_prefill ? 1.0 : b->n_rows) +
                            4.0 * b->n_rows * n_heads * (kv->key_dim + kv->value_dim),
                        .flops = 2.0 * n_keys * n_heads * (kv->key_dim + kv->value_dim)};
}

static int run(void *arg, uint32_t run, void *stream)
{
    const attention_bench *b = arg;
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_places places = {.position = b->position,
                                   .sequence = b->sequence + run % b->n_slices * b->n_rows};
    const sy_cuda_attention a = {.n_heads = b->shape->n_heads,
                                 .scale = scale_of(b),
                                 .positions_max = b->cache->context,
                                 .rows_together = b->how->rows_together,
                                 .partial = b->how->is_split ? b->partial : NULL};

    return sy_cuda_attend(b->out, b->q, &b->cache->kv, &places, &a, &rows, stream);
}

/* ---- rows ---- */

static attention_bench bench_open(const gpu_bench *bench, const gpu_trunk_shape *shape,
                                  const gpu_cache *cache, uint32_t n_rows, int is_prefill)
{
    const sy_cuda_kv *kv = &cache->kv;
    attention_bench b = {
        .shape = shape, .cache = cache, .is_prefill = is_prefill, .n_rows = n_rows};

    b.n_slices = is_prefill ? cache->n_sequences : SY_MAX(cache->n_sequences / n_rows, 1u);
    b.position_host = gpu_host(n_rows * sizeof(uint32_t));
    b.sequence_host = gpu_host((size_t)b.n_slices * n_rows * sizeof(uint32_t));
    for (uint32_t t = 0; t < n_rows; t++)
        b.position_host[t] = cache->context - (is_prefill ? n_rows - t : 1);
    for (uint32_t i = 0; i < b.n_slices * n_rows; i++)
        b.sequence_host[i] = is_prefill ? i / n_rows : i % cache->n_sequences;
    b.position = gpu_words(b.position_host, n_rows);
    b.sequence = gpu_words(b.sequence_host, (size_t)b.n_slices * n_rows);
    b.count = gpu_words(&n_rows, 1);
    b.q = gpu_random_floats(bench, (size_t)n_rows * shape->n_heads * kv->key_dim, 31, 1.0f);
    b.out_bytes = (size_t)n_rows * shape->n_heads * kv->value_dim * sizeof(float);
    b.out = gpu_alloc(b.out_bytes);
    b.partial_bytes =
        sy_cuda_attention_partial_bytes(n_rows, shape->n_heads, kv->value_dim, cache->context);
    if (b.partial_bytes > PARTIAL_BYTES_MAX) b.partial_bytes = 0;
    b.partial = gpu_alloc(b.partial_bytes);
    return b;
}

static void bench_close(attention_bench *b)
{
    gpu_free(b->position);
    gpu_free(b->sequence);
    gpu_free(b->count);
    gpu_free(b->q);
    gpu_free(b->out);
    gpu_free(b->partial);
    free(b->position_host);
    free(b->sequence_host);
}

/* ---- what it has to be ---- */

/* A sequence's page, of all heads, as floats. */
static void fetch_page(float *out, const gpu_cache *cache, uint32_t sequence, uint32_t number,
                       uint16_t *bits, size_t n)
{
    const size_t page = cache->page_host[(size_t)sequence * cache->kv.pages_max + number];

    gpu_get(bits, (const uint16_t *)cache->kv.data + page * n, n * sizeof(uint16_t));
    for (size_t i = 0; i < n; i++) out[i] = sy_bf16_to_f32(bits[i]);
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One head of a row of the first slice, in double precision: [value_dim]. Scores are within a few
 * units, so no maximum needs to be taken from them. q: rounded to bf16, as the kernel takes it. */
static void exact_head(double *want, const attention_bench *b, uint32_t t, uint32_t head,
                       const float *q)
{
    const sy_cuda_kv *kv = &b->cache->kv;
    const uint32_t kv_head = head / (b->shape->n_heads / kv->n_heads);
    const uint32_t value_stride = kv->is_latent ? kv->key_dim : kv->value_dim;
    const size_t n_keys = (size_t)kv->n_heads * SY_CUDA_KV_PAGE * kv->key_dim;
    const size_t n =
        kv->is_latent ? n_keys : n_keys + (size_t)kv->n_heads * SY_CUDA_KV_PAGE * kv->value_dim;
    float *page = gpu_host(n * sizeof(float));
    uint16_t *bits = gpu_host(n * sizeof(uint16_t));
    double sum = 0.0;

    memset(want, 0, kv->value_dim * sizeof(*want));
    for (uint32_t j = 0; j <= b->position_host[t]; j++) {
        const uint32_t at = j % SY_CUDA_KV_PAGE;
        if (at == 0) fetch_page(page, b->cache, b->sequence_host[t], j / SY_CUDA_KV_PAGE, bits, n);
        const float *k = page + ((size_t)kv_head * SY_CUDA_KV_PAGE + at) * kv->key_dim;
        const float *v = page + (kv->is_latent ? 0 : n_keys) +
                         ((size_t)kv_head * SY_CUDA_KV_PAGE + at) * value_stride;
        const double p = exp(dot(q, k, kv->key_dim) * (double)scale_of(b));
        sum += p;
        for (uint32_t d = 0; d < kv->value_dim; d++) want[d] += p * (double)v[d];
    }
    for (uint32_t d = 0; d < kv->value_dim; d++) want[d] /= sum;
    free(page);
    free(bits);
}

static double head_error(const attention_bench *b, uint32_t t, uint32_t head, const float *out)
{
    const sy_cuda_kv *kv = &b->cache->kv;
    const size_t at = (size_t)t * b->shape->n_heads + head;
    float q[SY_CUDA_KEY_MAX];
    double want[SY_CUDA_VALUE_MAX], error = 0.0, norm = 0.0;

    gpu_get(q, b->q + at * kv->key_dim, kv->key_dim * sizeof(float));
    for (uint32_t i = 0; i < kv->key_dim; i++) q[i] = sy_bf16_to_f32(sy_f32_to_bf16(q[i]));
    exact_head(want, b, t, head, q);
    for (uint32_t d = 0; d < kv->value_dim; d++) {
        const double off = (double)out[at * kv->value_dim + d] - want[d];
        error += off * off;
        norm += want[d] * want[d];
    }
    return sqrt(error / norm);
}

static void check_samples(gpu_bench *bench, const attention_bench *b, const float *out)
{
    const gpu_figure f = figure_of(b);
    gpu_random r = {b->n_rows + b->cache->context};

    for (int i = 0; i < N_SAMPLES; i++) {
        const uint32_t t = gpu_random_u32(&r) % b->n_rows;
        const uint32_t head = gpu_random_u32(&r) % b->shape->n_heads;
        const double error = head_error(b, t, head, out);
        if (error <= ERROR_MAX) continue;
        gpu_wrong(bench, &f, "row %u, head %u: relative error %.3g, at most %.3g", t, head, error,
                  ERROR_MAX);
        return;
    }
}

static int is_possible(const attention_bench *b, const spread *how)
{
    return !how->is_split || b->partial != NULL;
}

/* Samples of the first way against the host, the bits of the others against the first. */
static void check_spreads(gpu_bench *bench, attention_bench *b)
{
    float *first = NULL;

    for (size_t i = 0; i < SY_COUNT_OF(spreads); i++) {
        const int n_wrong = bench->n_wrong;
        float *got = gpu_host(b->out_bytes);
        if (is_possible(b, &spreads[i])) {
            b->how = &spreads[i];
            const gpu_figure f = figure_of(b);
            gpu_check((cudaError_t)gpu_fill_words((uint32_t *)(void *)b->out, b->out_bytes / 4, i,
                                                  bench->stream),
                      "filling what comes out");
            gpu_check((cudaError_t)run(b, 0, bench->stream), "attention");
            gpu_get(got, b->out, b->out_bytes);
            if (first == NULL) {
                check_samples(bench, b, got);
                first = got;
                got = NULL;
            } else if (memcmp(first, got, b->out_bytes) != 0) {
                gpu_wrong(bench, &f, "not the bits of the first way");
            }
            if (bench->n_wrong == n_wrong) gpu_print_checked(&f);
        }
        free(got);
    }
    free(first);
}

static void measure_rows(gpu_bench *bench, const gpu_trunk_shape *shape, const gpu_cache *cache,
                         uint32_t n_rows, int is_prefill)
{
    attention_bench b = bench_open(bench, shape, cache, n_rows, is_prefill);
    const gpu_figure all = figure_of(&b);

    if (gpu_has_time(bench, &all)) {
        check_spreads(bench, &b);
        for (size_t i = 0; i < SY_COUNT_OF(spreads) && !bench->tiny && !bench->quick; i++) {
            b.how = &spreads[i];
            if (!is_possible(&b, b.how) || is_prefill != (b.how->rows_together > 1)) continue;
            const gpu_figure f = figure_of(&b);
            gpu_print_figure(&f, gpu_measure(bench, (gpu_work){run, &b}));
        }
    }
    bench_close(&b);
}

void gpu_measure_attention(gpu_bench *bench, const gpu_trunk_shape *shape)
{
    static const uint32_t decode[] = {1, 8, DECODE_ROWS_MAX};
    const uint32_t n_sequences = bench->tiny ? 5 : DECODE_ROWS_MAX;

    for (const uint32_t *c = gpu_contexts(bench); *c != 0; c++) {
        const size_t bytes = gpu_cache_bytes(shape, n_sequences, *c);
        const gpu_figure all = {
            .what = "attend", .how = "", .weights = "bf16", .shape = shape->name, .context = *c};
        if (bytes > gpu_free_bytes() / 2) {
            gpu_skip(&all, "%zu bytes of cache have no room", bytes);
            continue;
        }
        gpu_cache cache = gpu_cache_open(bench, shape, 1, n_sequences, *c);
        for (size_t i = 0; i < SY_COUNT_OF(decode); i++)
            if (!bench->tiny || decode[i] < DECODE_ROWS_MAX)
                measure_rows(bench, shape, &cache, decode[i], 0);
        measure_rows(bench, shape, &cache, bench->tiny ? 19 : 512, 1);
        gpu_cache_close(&cache);
    }
}
