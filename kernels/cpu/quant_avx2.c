/* quant_avx2.c - products with weights of integer blocks, and the rounding of activations to int8,
 * with AVX2.
 *
 * int8 activations: the instruction that multiplies unsigned by signed bytes adds two products in
 * 16 bits and saturates there. A nibble times an activation stays within 15 * 127, and a block adds
 * 16 of them to each 16-bit sum: 30480, which fits. So a Q4 block is multiplied as it lies, and a
 * Q8 quant is two nibbles: two sums, the upper of which counts 16 times. Everything is exact.
 *
 * fp32 activations: a block is widened to floats in the first-level cache, once for all tokens. */
#include <immintrin.h>

#include "cpu/quant_block.h"
#include "ref/sy_ref.h"

#define Q8_TOKENS  4 /* times two sums: 8 of 16 registers; with 6 tokens some are spilled */
#define F32_TOKENS 6 /* times two halves of a panel */

SY_CPU_INLINE __m256i load_x(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof(four));
    return _mm256_set1_epi32(four);
}

/* The 16-bit sums of eight columns and T tokens over one block: of the lower nibbles of Q8, or of
 * all of Q4, in low; of the upper nibbles of Q8 in high. */
SY_CPU_INLINE void sums16(__m256i low[Q8_TOKENS], __m256i high[Q8_TOKENS], const uint8_t *quants,
                          const int8_t *q, sy_dtype dtype, size_t T)
{
    const __m256i mask = _mm256_set1_epi8(15);
    const size_t n_lines = dtype == SY_Q8 ? QUANT_LINES_MAX : QUANT_LINES_MAX / 2;

#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) low[t] = high[t] = _mm256_setzero_si256();
        /* Unrolled further, the compiler adds in another order, for which it lacks the registers.
         */
#pragma GCC unroll 2
    for (size_t i = 0; i < n_lines; i++) {
        const uint8_t *from = quants + i * QUANT_LINE_BYTES;
        const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)from);
        const __m256i lower = _mm256_and_si256(line, mask);
        const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(line, 4), mask);
#pragma GCC unroll 4
        for (size_t t = 0; t < T; t++) {
            const int8_t *at = q + t * SY_QUANT_BLOCK + i * (dtype == SY_Q8 ? 4 : 8);
            const __m256i x = load_x(at);
            low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(lower, x));
            if (dtype == SY_Q8) {
                high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(upper, x));
            } else {
                low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(upper, load_x(at + 4)));
            }
        }
    }
}

/* dtype and T are constants where this is used; first is the tile's first token within the block,
 * y its outputs. */
SY_CPU_INLINE void tile_q8(float *y, const quant_buffer *buffer, size_t first,
                           const uint8_t *quants, __m256 d, sy_dtype dtype, size_t T)
{
    __m256i low[Q8_TOKENS], high[Q8_TOKENS];

    sums16(low, high, quants, buffer->q + first * SY_QUANT_BLOCK, dtype, T);
#pragma GCC unroll 4
    for (size_t t = 0; t < T; t++) {
        __m256i sum = _mm256_madd_epi16(low[t], _mm256_set1_epi16(1));
        if (dtype == SY_Q8)
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(high[t], _mm256_set1_epi16(16)));
        sum = _mm256_add_epi32(sum, _mm256_set1_epi32(buffer->bias[first + t]));
        const __m256 product = _mm256_mul_ps(d, _mm256_set1_ps(buffer->scale[first + t]));
        float *to = y + t * SY_PANEL;
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), product, _mm256_load_ps(to)));
    }
}

SY_CPU_INLINE void body_q8(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                           quant_weights at, sy_dtype dtype, size_t P)
{
    quant_prefetch(at, dtype, P); /* P is one */
    for (size_t half = 0; half < 2; half++) {
        const uint8_t *quants = at.quants + half * QUANT_LINE_BYTES / 2;
        const __m128i *scales = (const __m128i *)(const void *)at.scales + half;
        const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(scales));
        for (size_t t = 0, T; t < n_tokens; t += T) {
            float *y = acc + t * SY_PANEL + half * SY_PANEL / 2;
            const size_t first = b * n_tokens + t;
            T = SY_MIN(n_tokens - t, (size_t)Q8_TOKENS);
            switch (T) {
            case 1: tile_q8(y, buffer, first, quants, d, dtype, 1); break;
            case 2: tile_q8(y, buffer, first, quants, d, dtype, 2); break;
            case 3: tile_q8(y, buffer, first, quants, d, dtype, 3); break;
            default: tile_q8(y, buffer, first, quants, d, dtype, Q8_TOKENS); break;
            }
        }
    }
}

/* Two registers a line of 16 columns, an input a line. */
SY_CPU_INLINE void widen_block(float w[SY_QUANT_BLOCK * SY_PANEL], const uint8_t *quants,
                               sy_dtype dtype)
{
    const size_t n_inner = dtype == SY_Q8 ? 4 : 8;
    const __m256i bias = _mm256_set1_epi32(dtype == SY_Q8 ? Q8_BIAS : Q4_BIAS);
    const __m256i mask = _mm256_set1_epi32(dtype == SY_Q8 ? 255 : 15);

    for (size_t i = 0; i < SY_QUANT_BLOCK / n_inner; i++) {
        for (size_t half = 0; half < 2; half++) {
            const uint8_t *from = quants + i * QUANT_LINE_BYTES + half * QUANT_LINE_BYTES / 2;
            const __m256i line = _mm256_loadu_si256((const __m256i *)(const void *)from);
#pragma GCC unroll 8
            for (size_t j = 0; j < n_inner; j++) {
                const int shift = (int)(j < 4 ? 8 * j : 8 * (j - 4) + 4);
                const __m256i q = _mm256_and_si256(_mm256_srli_epi32(line, shift), mask);
                _mm256_store_ps(w + (i * n_inner + j) * SY_PANEL + half * SY_PANEL / 2,
                                _mm256_cvtepi32_ps(_mm256_sub_epi32(q, bias)));
            }
        }
    }
}

/* T is a constant where this is used. */
SY_CPU_INLINE void tile_f32(float *y, const float *x, const float *w, __m256 d_lo, __m256 d_hi,
                            size_t T)
{
    __m256 lo[F32_TOKENS], hi[F32_TOKENS];

#pragma GCC unroll 6
    for (size_t t = 0; t < T; t++) lo[t] = hi[t] = _mm256_setzero_ps();
    for (size_t k = 0; k < SY_QUANT_BLOCK; k++) {
        const __m256 w_lo = _mm256_load_ps(w + k * SY_PANEL);
        const __m256 w_hi = _mm256_load_ps(w + k * SY_PANEL + SY_PANEL / 2);
#pragma GCC unroll 6
        for (size_t t = 0; t < T; t++) {
            const __m256 v = _mm256_set1_ps(x[t * SY_QUANT_BLOCK + k]);
            lo[t] = _mm256_fmadd_ps(v, w_lo, lo[t]);
            hi[t] = _mm256_fmadd_ps(v, w_hi, hi[t]);
        }
    }
#pragma GCC unroll 6
    for (size_t t = 0; t < T; t++) {
        float *to = y + t * SY_PANEL;
        _mm256_store_ps(to, _mm256_fmadd_ps(d_lo, lo[t], _mm256_load_ps(to)));
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(d_hi, hi[t], _mm256_load_ps(to + 8)));
    }
}

SY_CPU_INLINE void body_f32(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                            quant_weights at, sy_dtype dtype, size_t P)
{
    const float *x = buffer->x + b * n_tokens * SY_QUANT_BLOCK;
    const __m128i *scales = (const __m128i *)(const void *)at.scales;
    const __m256 d_lo = _mm256_cvtph_ps(_mm_loadu_si128(scales));
    const __m256 d_hi = _mm256_cvtph_ps(_mm_loadu_si128(scales + 1));
    _Alignas(SY_CACHE_LINE) float w[SY_QUANT_BLOCK * SY_PANEL];

    quant_prefetch(at, dtype, P); /* P is one */
    widen_block(w, at.quants, dtype);
    for (size_t t = 0, T; t < n_tokens; t += T) {
        float *y = acc + t * SY_PANEL;
        const float *from = x + t * SY_QUANT_BLOCK;
        T = SY_MIN(n_tokens - t, (size_t)F32_TOKENS);
        switch (T) {
        case 1: tile_f32(y, from, w, d_lo, d_hi, 1); break;
        case 2: tile_f32(y, from, w, d_lo, d_hi, 2); break;
        case 3: tile_f32(y, from, w, d_lo, d_hi, 3); break;
        case 4: tile_f32(y, from, w, d_lo, d_hi, 4); break;
        case 5: tile_f32(y, from, w, d_lo, d_hi, 5); break;
        default: tile_f32(y, from, w, d_lo, d_hi, F32_TOKENS); break;
        }
    }
}

static void run_q8_by_q8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body_q8, SY_Q8, 1);
}

static void run_q4_by_q8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body_q8, SY_Q4, 1);
}

static void run_q8_by_f32(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body_f32, SY_Q8, 1);
}

static void run_q4_by_f32(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body_f32, SY_Q4, 1);
}

void sy_avx2_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row,
                       size_t T, const sy_panels *w, size_t begin, size_t end)
{
    const quant_job job = {.y = y,
                           .y_stride = y_stride,
                           .q = x,
                           .x_row = x_row,
                           .T = T,
                           .w = w,
                           .begin = begin,
                           .end = end};

    quant_by_parts(&job, QUANT_Q8_MAX, quant_fill_q8,
                   w->dtype == SY_Q8 ? run_q8_by_q8 : run_q4_by_q8);
}

void sy_avx2_matmul_quant(float *y, size_t y_stride, const float *x, size_t x_stride,
                          const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                          size_t end)
{
    const quant_job job = {.y = y,
                           .y_stride = y_stride,
                           .x = x,
                           .x_stride = x_stride,
                           .x_row = x_row,
                           .T = T,
                           .w = w,
                           .begin = begin,
                           .end = end};

    quant_by_parts(&job, QUANT_F32_MAX, quant_fill_f32,
                   w->dtype == SY_Q8 ? run_q8_by_f32 : run_q4_by_f32);
}

SY_CPU_INLINE __m256i abs_bits(__m256 v)
{
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
}

SY_CPU_INLINE __m128i fold(__m256i v, __m128i (*op)(__m128i, __m128i))
{
    __m128i r = op(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    r = op(r, _mm_shuffle_epi32(r, 0x4e));
    return op(r, _mm_shuffle_epi32(r, 0xb1));
}

SY_CPU_INLINE __m128i max_i32(__m128i a, __m128i b)
{
    return _mm_max_epi32(a, b);
}

SY_CPU_INLINE __m128i add_i32(__m128i a, __m128i b)
{
    return _mm_add_epi32(a, b);
}

/* One whole block. */
SY_CPU_INLINE void quantize_block(const sy_qrows *q, size_t row, size_t b, const float *x)
{
    __m256 v[4];
    __m256i n[4], largest, to;

#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) v[i] = _mm256_loadu_ps(x + 8 * i);
    largest = _mm256_max_epi32(_mm256_max_epi32(abs_bits(v[0]), abs_bits(v[1])),
                               _mm256_max_epi32(abs_bits(v[2]), abs_bits(v[3])));
    const sy_act_scale s = sy_act_scale_of((uint32_t)_mm_cvtsi128_si32(fold(largest, max_i32)));
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        n[i] = _mm256_setzero_si256();
        if (s.inverse > 0)
            n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(s.inverse)));
    }
    /* Packing goes within halves of a register: the last step puts the eight pieces in order. */
    to = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    to = _mm256_permutevar8x32_epi32(to, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256((__m256i *)(void *)(q->q + row * q->stride + b * SY_QUANT_BLOCK), to);
    q->scale[row * q->blocks + b] = s.scale;
    q->sum[row * q->blocks + b] = _mm_cvtsi128_si32(fold(
        _mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3])), add_i32));
}

void sy_avx2_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                      uint32_t k)
{
    const size_t n_whole = k / SY_QUANT_BLOCK;
    const size_t n_tail = k % SY_QUANT_BLOCK;

    for (size_t row = 0; row < n; row++) {
        const float *from = x + row * x_stride;
        for (size_t b = 0; b < n_whole; b++)
            quantize_block(q, t + row, b, from + b * SY_QUANT_BLOCK);
        if (n_tail > 0) {
            float tail[SY_QUANT_BLOCK] = {0};
            memcpy(tail, from + n_whole * SY_QUANT_BLOCK, n_tail * sizeof(*tail));
            quantize_block(q, t + row, n_whole, tail);
        }
    }
}
