/* matmul_avx512.c - the matrix product with AVX-512: a register holds the 16 columns of a panel.
 *
 * Up to 4 tokens: four panels at once. More: tiles of up to 12 tokens x 2 panels, 24 sums in
 * registers; each weight is widened once for 12 tokens and each x loaded once for 2 panels, which
 * keeps loads and shuffles below the two multiply-adds a cycle. The first tile of a block asks for
 * the weights of the next panels, which arrive while it computes; where the weights are what costs
 * (row by row), the hardware's own prefetch of several streams does better. */
#include <immintrin.h>

#include "cpu/matmul_block.h"

#define ROW_PANELS   4
#define BLOCK_PANELS 2
#define BLOCK_TOKENS 12
#define SUMS_MAX     (BLOCK_TOKENS * BLOCK_PANELS)

SY_CPU_INLINE __m512 widen_line(const uint8_t *line, sy_dtype dtype)
{
    if (dtype == SY_F32) return _mm512_loadu_ps(line);
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)line);
    if (dtype == SY_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Sums of bf16 lines lie in the stored order 0 8 1 9 ...; these two go between it and the order of
 * columns. */
SY_CPU_INLINE __m512 load_sum(const float *y, __mmask16 columns, sy_dtype dtype)
{
    const __m512i column_of =
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const __m512 v = _mm512_maskz_loadu_ps(columns, y);

    return dtype == SY_BF16 ? _mm512_permutexvar_ps(column_of, v) : v;
}

SY_CPU_INLINE void store_sum(float *y, __mmask16 columns, __m512 v, sy_dtype dtype)
{
    const __m512i stored_at =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);

    if (dtype == SY_BF16) v = _mm512_permutexvar_ps(stored_at, v);
    _mm512_mask_storeu_ps(y, columns, v);
}

/* dtype, source, T and P are constants where this is used, so that all loops but the one over k
 * unroll into registers. */
SY_CPU_INLINE void tile(const tile_args *a, sy_dtype dtype, x_source source, size_t T, size_t P)
{
    const size_t line_bytes = SY_PANEL * dtype_bytes(dtype);
    const __mmask16 last_columns = (__mmask16)((1u << a->n_last) - 1);
    const float *row[ROW_TOKENS_MAX] = {NULL};
    const uint8_t *line = a->line;
    __m512 sum[SUMS_MAX];

#pragma GCC unroll 4
    for (size_t t = 0; source == X_ROWS && t < T; t++) row[t] = a->row[t];
#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) {
        const float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        const __mmask16 columns = i % P == P - 1 ? last_columns : 0xffff;
        sum[i] = a->resume ? load_sum(y, columns, dtype) : _mm512_setzero_ps();
    }
    for (size_t k = 0; k < a->n_k; k++, line += line_bytes) {
        __m512 w[ROW_PANELS];
#pragma GCC unroll 4
        for (size_t p = 0; p < P; p++) {
            const uint8_t *from = line + p * a->panel_bytes;
            w[p] = widen_line(from, dtype);
            if (source == X_BLOCK) _mm_prefetch(from + a->ahead_bytes, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (size_t t = 0; t < T; t++) {
            const float *at = source == X_BLOCK ? a->block + t * BLOCK_STRIDE : row[t];
            const __m512 x = _mm512_set1_ps(at[k]);
#pragma GCC unroll 4
            for (size_t p = 0; p < P; p++)
                sum[t * P + p] = _mm512_fmadd_ps(x, w[p], sum[t * P + p]);
        }
    }
#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) {
        float *y = a->y + i / P * a->y_stride + i % P * SY_PANEL;
        store_sum(y, i % P == P - 1 ? last_columns : 0xffff, sum[i], dtype);
    }
}

SY_CPU_INLINE void block_tile(const tile_args *a, sy_dtype dtype, size_t T, size_t P)
{
    switch (T) {
    case 1: tile(a, dtype, X_BLOCK, 1, P); break;
    case 2: tile(a, dtype, X_BLOCK, 2, P); break;
    case 3: tile(a, dtype, X_BLOCK, 3, P); break;
    case 4: tile(a, dtype, X_BLOCK, 4, P); break;
    case 5: tile(a, dtype, X_BLOCK, 5, P); break;
    case 6: tile(a, dtype, X_BLOCK, 6, P); break;
    case 7: tile(a, dtype, X_BLOCK, 7, P); break;
    case 8: tile(a, dtype, X_BLOCK, 8, P); break;
    case 9: tile(a, dtype, X_BLOCK, 9, P); break;
    case 10: tile(a, dtype, X_BLOCK, 10, P); break;
    case 11: tile(a, dtype, X_BLOCK, 11, P); break;
    default: tile(a, dtype, X_BLOCK, BLOCK_TOKENS, P); break;
    }
}

SY_CPU_INLINE void block(const matmul_job *job, sy_dtype dtype, const float *x, size_t t0,
                         size_t n_tokens, size_t k, size_t n_k)
{
    for (size_t panel = job->begin; panel < job->end; panel += BLOCK_PANELS) {
        const size_t n_left = job->end - panel;
        const size_t n_panels = SY_MIN(BLOCK_PANELS, n_left);
        for (size_t t = 0, T; t < n_tokens; t += T) {
            T = tile_tokens(n_tokens - t, BLOCK_TOKENS);
            tile_args a = tile_at(job, dtype, t0 + t, panel, n_panels, k, n_k);
            a.block = x + t * BLOCK_STRIDE;
            if (t == 0) a.ahead_bytes = lines_ahead(job, dtype, panel, n_panels, k, n_k);
            if (n_panels == BLOCK_PANELS) {
                block_tile(&a, dtype, T, BLOCK_PANELS);
            } else {
                block_tile(&a, dtype, T, 1);
            }
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

SY_CPU_INLINE void rows(const matmul_job *job, sy_dtype dtype, size_t T)
{
    for (size_t panel = job->begin, P; panel < job->end; panel += P) {
        P = job->end - panel >= ROW_PANELS ? ROW_PANELS : 1;
        tile_args a = tile_at(job, dtype, 0, panel, P, 0, job->w->k);
        for (size_t t = 0; t < T; t++) a.row[t] = x_row_of(job, t);
        if (P == ROW_PANELS) {
            tile(&a, dtype, X_ROWS, T, ROW_PANELS);
        } else {
            tile(&a, dtype, X_ROWS, T, 1);
        }
    }
}

SY_CPU_INLINE void matmul(const matmul_job *job, sy_dtype dtype, block_fn *run_block)
{
    switch (job->T) {
    case 0: break;
    case 1: rows(job, dtype, 1); break;
    case 2: rows(job, dtype, 2); break;
    case 3: rows(job, dtype, 3); break;
    case 4: rows(job, dtype, ROW_TOKENS_MAX); break;
    default: matmul_by_blocks(job, run_block); break;
    }
}

void sy_avx512_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                      const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end)
{
    const matmul_job job = {y, y_stride, x, x_stride, x_row, T, w, begin, end};

    switch (w->dtype) {
    case SY_BF16: matmul(&job, SY_BF16, block_bf16); break;
    case SY_F16: matmul(&job, SY_F16, block_f16); break;
    case SY_F32: matmul(&job, SY_F32, block_f32); break;
    case SY_Q8:
    case SY_Q4: sy_avx512_matmul_quant(y, y_stride, x, x_stride, x_row, T, w, begin, end); break;
    case SY_FP8:
    case SY_MXFP4:
        sy_avx512_matmul_encoded(y, y_stride, x, x_stride, x_row, T, w, begin, end);
        break;
    case SY_DTYPE_NONE: break;
    }
}
