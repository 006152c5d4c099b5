/* matmul_avx2.c - the matrix product with AVX2 and FMA: two registers hold the 16 columns of a
 * panel.
 *
 * One or two tokens: four or three panels at once. More: tiles of up to 6 tokens x 1 panel, 12 sums
 * in 16 registers. The first tile of a block asks for the weights of the next panel, which arrive
 * while it computes; where the weights are what costs (row by row), the hardware's own prefetch of
 * several streams does better. */
#include <immintrin.h>

#include "cpu/matmul_block.h"

#define BLOCK_TOKENS 6
#define SUMS_MAX     6

typedef struct line_avx2 {
    __m256 lo, hi; /* columns 0-7 and 8-15 */
} line_avx2;

SY_CPU_INLINE line_avx2 load_line(const float *from)
{
    return (line_avx2){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
}

SY_CPU_INLINE line_avx2 widen_line(const uint8_t *from, sy_dtype dtype)
{
    if (dtype == SY_F32) return load_line((const float *)(const void *)from);
    if (dtype == SY_F16) {
        const __m128i *half = (const __m128i *)(const void *)from;
        return (line_avx2){_mm256_cvtph_ps(_mm_loadu_si128(half)),
                           _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
    }
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)from);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    return (line_avx2){_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
                       _mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
}

/* Whole panels. dtype, source, T and P are constants where this is used, so that all loops but the
 * one over k unroll into registers. */
SY_CPU_INLINE void tile(const tile_args *a, sy_dtype dtype, x_source source, size_t T, size_t P)
{
    const size_t line_bytes = SY_PANEL * dtype_bytes(dtype);
    const float *row[ROW_TOKENS_MAX] = {NULL};
    const uint8_t *line = a->line;
    line_avx2 sum[SUMS_MAX];

#pragma GCC unroll 4
    for (size_t t = 0; source == X_ROWS && t < T; t++) row[t] = a->row[t];
#pragma GCC unroll 6
    for (size_t i = 0; i < T * P; i++) {
        const float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        sum[i] = (line_avx2){_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (a->resume) sum[i] = load_line(y);
    }
    for (size_t k = 0; k < a->n_k; k++, line += line_bytes) {
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            const uint8_t *from = line + p * a->panel_bytes;
            const line_avx2 w = widen_line(from, dtype);
            if (source == X_BLOCK) _mm_prefetch(from + a->ahead_bytes, _MM_HINT_T0);
#pragma GCC unroll 6
            for (size_t t = 0; t < T; t++) {
                const float *at = source == X_BLOCK ? a->block + t * BLOCK_STRIDE : row[t];
                const __m256 x = _mm256_set1_ps(at[k]);
                sum[t * P + p].lo = _mm256_fmadd_ps(x, w.lo, sum[t * P + p].lo);
                sum[t * P + p].hi = _mm256_fmadd_ps(x, w.hi, sum[t * P + p].hi);
            }
        }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < T * P; i++) {
        float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        _mm256_storeu_ps(y, sum[i].lo);
        _mm256_storeu_ps(y + 8, sum[i].hi);
    }
}

SY_CPU_INLINE void block_tile(const tile_args *a, sy_dtype dtype, size_t T)
{
    switch (T) {
    case 1: tile(a, dtype, X_BLOCK, 1, 1); break;
    case 2: tile(a, dtype, X_BLOCK, 2, 1); break;
    case 3: tile(a, dtype, X_BLOCK, 3, 1); break;
    case 4: tile(a, dtype, X_BLOCK, 4, 1); break;
    case 5: tile(a, dtype, X_BLOCK, 5, 1); break;
    default: tile(a, dtype, X_BLOCK, BLOCK_TOKENS, 1); break;
    }
}

/* A panel cut short goes through a buffer of whole lines: y past its columns is not ours. */
typedef struct short_panel {
    float *y;
    size_t y_stride;
    float buffer[BLOCK_TOKENS * SY_PANEL];
} short_panel;

static void short_panel_begin(short_panel *s, tile_args *a, size_t T)
{
    s->y = a->y;
    s->y_stride = a->y_stride;
    memset(s->buffer, 0, sizeof(s->buffer));
    for (size_t t = 0; a->resume && t < T; t++)
        memcpy(s->buffer + t * SY_PANEL, s->y + t * s->y_stride, a->n_last * sizeof(float));
    a->y = s->buffer;
    a->y_stride = SY_PANEL;
}

static void short_panel_end(const short_panel *s, const tile_args *a, size_t T)
{
    for (size_t t = 0; t < T; t++)
        memcpy(s->y + t * s->y_stride, s->buffer + t * SY_PANEL, a->n_last * sizeof(float));
}

SY_CPU_INLINE void block(const matmul_job *job, sy_dtype dtype, const float *x, size_t t0,
                         size_t n_tokens, size_t k, size_t n_k)
{
    for (size_t panel = job->begin; panel < job->end; panel++) {
        for (size_t t = 0, T; t < n_tokens; t += T) {
            short_panel s;
            T = tile_tokens(n_tokens - t, BLOCK_TOKENS);
            tile_args a = tile_at(job, dtype, t0 + t, panel, 1, k, n_k);
            a.block = x + t * BLOCK_STRIDE;
            if (t == 0) a.ahead_bytes = lines_ahead(job, dtype, panel, 1, k, n_k);
            if (a.n_last < SY_PANEL) short_panel_begin(&s, &a, T);
            block_tile(&a, dtype, T);
            if (a.n_last < SY_PANEL) short_panel_end(&s, &a, T);
        }
    }
}

static void block_bf16(const matmul_job *job, const float *x, size_t t, size_t n_tokens, size_t k,
                       size_t n_k)
{
    block(job, SY_BF16, x, t, n_tokens, k, n_k);
}

static void block_f16(const matmul_job *job, const float *x, size_t t, size_t n_tokens, size_t k,
                      size_t n_k)
{
    block(job, SY_F16, x, t, n_tokens, k, n_k);
}

static void block_f32(const matmul_job *job, const float *x, size_t t, size_t n_tokens, size_t k,
                      size_t n_k)
{
    block(job, SY_F32, x, t, n_tokens, k, n_k);
}

/* P_max panels at once while that many whole ones are left, then one at a time. */
SY_CPU_INLINE void rows(const matmul_job *job, sy_dtype dtype, size_t T, size_t P_max)
{
    const size_t end_whole = SY_MIN(job->end, job->w->n / SY_PANEL);

    for (size_t panel = job->begin, P; panel < job->end; panel += P) {
        short_panel s;
        P = panel + P_max <= end_whole ? P_max : 1;
        tile_args a = tile_at(job, dtype, 0, panel, P, 0, job->w->k);
        for (size_t t = 0; t < T; t++) a.row[t] = x_row_of(job, t);
        if (P == P_max) {
            tile(&a, dtype, X_ROWS, T, P_max);
            continue;
        }
        if (a.n_last < SY_PANEL) short_panel_begin(&s, &a, T);
        tile(&a, dtype, X_ROWS, T, 1);
        if (a.n_last < SY_PANEL) short_panel_end(&s, &a, T);
    }
}

SY_CPU_INLINE void matmul(const matmul_job *job, sy_dtype dtype, block_fn *run_block)
{
    switch (job->T) {
    case 0: break;
    case 1: rows(job, dtype, 1, 4); break;
    case 2: rows(job, dtype, 2, 3); break;
    default: matmul_by_blocks(job, run_block); break;
    }
}

void sy_avx2_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                    const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end)
{
    const matmul_job job = {y, y_stride, x, x_stride, x_row, T, w, begin, end};

    switch (w->dtype) {
    case SY_BF16: matmul(&job, SY_BF16, block_bf16); break;
    case SY_F16: matmul(&job, SY_F16, block_f16); break;
    case SY_F32: matmul(&job, SY_F32, block_f32); break;
    case SY_Q8:
    case SY_Q4: sy_avx2_matmul_quant(y, y_stride, x, x_stride, x_row, T, w, begin, end); break;
    case SY_FP8:
    case SY_MXFP4: sy_avx2_matmul_encoded(y, y_stride, x, x_stride, x_row, T, w, begin, end); break;
    case SY_DTYPE_NONE: break;
    }
}
