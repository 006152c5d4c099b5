/* quant_avx512.c - weights of integer blocks with fp32 activations, and the rounding of activations
 * to int8, with AVX-512. A register holds the 16 columns of a panel; quants are widened to floats
 * in registers, once for all tokens of a tile. */
#include <immintrin.h>

#include "cpu/quant_block.h"
#include "ref/sy_ref.h"

#define AT_ONCE     2
#define TILE_TOKENS 12 /* times two panels: 24 chains in registers */

/* Inputs 4 * i + j, j = 0 to 3, of a Q8 line; of a Q4 line j goes to 7. A lane's four bytes are
 * those of its column: shifts bring out one. For nibbles a table of 16 floats does the rest, for
 * which only the low four bits of a lane count. */
SY_CPU_INLINE __m512 widen(__m512i line, sy_dtype dtype, size_t j)
{
    const __m512 nibble = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);

    if (dtype == SY_Q8) {
        const __m512i at_top = _mm512_slli_epi32(line, (unsigned)(24 - 8 * j));
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(at_top, 24));
    }
    const unsigned shift = (unsigned)(j < 4 ? 8 * j : 8 * (j - 4) + 4);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(line, shift), nibble);
}

/* dtype, T and P are constants where this is used. x: [T][SY_QUANT_BLOCK]; acc: [P][n_tokens][16]
 * from the tile's first token on. */
SY_CPU_INLINE void tile(float *acc, const float *x, size_t n_tokens, quant_weights at,
                        sy_dtype dtype, size_t T, size_t P)
{
    const size_t n_inner = dtype == SY_Q8 ? 4 : 8;
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512 s[TILE_TOKENS * AT_ONCE];

#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) s[i] = _mm512_setzero_ps();
    for (size_t i = 0; i < SY_QUANT_BLOCK / n_inner; i++) {
        __m512i line[AT_ONCE];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) {
            line[p] = _mm512_loadu_si512(at.quants + p * at.panel_bytes + i * QUANT_LINE_BYTES);
            if (dtype == SY_Q8) line[p] = _mm512_xor_si512(line[p], sign);
        }
#pragma GCC unroll 8
        for (size_t j = 0; j < n_inner; j++) {
            __m512 w[AT_ONCE];
#pragma GCC unroll 2
            for (size_t p = 0; p < P; p++) w[p] = widen(line[p], dtype, j);
#pragma GCC unroll 12
            for (size_t t = 0; t < T; t++) {
                const __m512 v = _mm512_set1_ps(x[t * SY_QUANT_BLOCK + i * n_inner + j]);
#pragma GCC unroll 2
                for (size_t p = 0; p < P; p++)
                    s[t * P + p] = _mm512_fmadd_ps(v, w[p], s[t * P + p]);
            }
        }
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < P; p++) {
        const uint8_t *scales = at.scales + p * at.panel_bytes;
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)scales));
#pragma GCC unroll 12
        for (size_t t = 0; t < T; t++) {
            float *y = acc + (p * n_tokens + t) * SY_PANEL;
            _mm512_store_ps(y, _mm512_fmadd_ps(d, s[t * P + p], _mm512_load_ps(y)));
        }
    }
}

SY_CPU_INLINE void body(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                        quant_weights at, sy_dtype dtype, size_t P)
{
    const float *x = buffer->x + b * n_tokens * SY_QUANT_BLOCK;

    quant_prefetch(at, dtype, P);
    for (size_t t = 0, T; t < n_tokens; t += T) {
        float *y = acc + t * SY_PANEL;
        const float *from = x + t * SY_QUANT_BLOCK;
        const size_t left = n_tokens - t;
        T = left >= TILE_TOKENS ? TILE_TOKENS : left >= 8 ? 8 : SY_MIN(left, (size_t)4);
        switch (T) {
        case 1: tile(y, from, n_tokens, at, dtype, 1, P); break;
        case 2: tile(y, from, n_tokens, at, dtype, 2, P); break;
        case 3: tile(y, from, n_tokens, at, dtype, 3, P); break;
        case 4: tile(y, from, n_tokens, at, dtype, 4, P); break;
        case 8: tile(y, from, n_tokens, at, dtype, 8, P); break;
        default: tile(y, from, n_tokens, at, dtype, TILE_TOKENS, P); break;
        }
    }
}

static void run_q8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_Q8, AT_ONCE);
}

static void run_q4(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_Q4, AT_ONCE);
}

void sy_avx512_matmul_quant(float *y, size_t y_stride, const float *x, size_t x_stride,
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

    quant_by_parts(&job, QUANT_F32_MAX, quant_fill_f32, w->dtype == SY_Q8 ? run_q8 : run_q4);
}

/* One block; lanes past n count as zeros. */
SY_CPU_INLINE void quantize_block(const sy_qrows *q, size_t row, size_t b, const float *x, size_t n)
{
    const __mmask16 lo_lanes = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    const __mmask16 hi_lanes = n <= 16 ? 0 : (__mmask16)((1ull << (n - 16)) - 1);
    const __m512 lo = _mm512_maskz_loadu_ps(lo_lanes, x);
    const __m512 hi = _mm512_maskz_loadu_ps(hi_lanes, x + (n > 16 ? 16 : 0));
    const __m512 largest = _mm512_castsi512_ps(_mm512_max_epi32(
        _mm512_castps_si512(_mm512_abs_ps(lo)), _mm512_castps_si512(_mm512_abs_ps(hi))));
    const int32_t max_bits = _mm512_reduce_max_epi32(_mm512_castps_si512(largest));
    __m128i *to = (__m128i *)(void *)(q->q + row * q->stride + b * SY_QUANT_BLOCK);
    const sy_act_scale s = sy_act_scale_of((uint32_t)max_bits);
    __m512i lo_q = _mm512_setzero_si512(), hi_q = lo_q;

    if (s.inverse > 0) { /* else a product with an infinity would be no number */
        const __m512 inverse = _mm512_set1_ps(s.inverse);
        lo_q = _mm512_cvtps_epi32(_mm512_mul_ps(lo, inverse));
        hi_q = _mm512_cvtps_epi32(_mm512_mul_ps(hi, inverse));
    }
    _mm_store_si128(to, _mm512_cvtepi32_epi8(lo_q));
    _mm_store_si128(to + 1, _mm512_cvtepi32_epi8(hi_q));
    q->scale[row * q->blocks + b] = s.scale;
    q->sum[row * q->blocks + b] = _mm512_reduce_add_epi32(_mm512_add_epi32(lo_q, hi_q));
}

void sy_avx512_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                        uint32_t k)
{
    for (size_t row = 0; row < n; row++) {
        const float *from = x + row * x_stride;
        for (size_t at = 0; at < k; at += SY_QUANT_BLOCK) {
            quantize_block(q, t + row, at / SY_QUANT_BLOCK, from + at,
                           SY_MIN((size_t)SY_QUANT_BLOCK, k - at));
        }
    }
}
