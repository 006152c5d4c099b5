/* encoded_avx512.c - weights in a checkpoint's own encoding, FP8 or MXFP4, with fp32 activations
 * and AVX-512. A register holds the 16 columns of a panel.
 *
 * An FP8 code becomes a bf16 number, 32 at once, two inputs of each column side by side: a shift
 * and a mask widen them. Up to 8 tokens take their weights from registers; for more, and for a
 * block cut short, a block is widened to floats in the first-level cache, once for all tokens. */
#include <immintrin.h>

#include "cpu/quant_block.h"

#define AT_ONCE     2
#define FEW_TOKENS  8
#define TILE_TOKENS 12 /* times two panels: 24 chains in registers */

/* e4m3 to bf16. A sign-extended word has its sign where it belongs, and below it the magnitude,
 * whose exponent needs 120 more. What is no normal number, magnitudes below 8 and the NaN's 127, is
 * looked up by its low five bits. */
SY_CPU_INLINE __m512i fp8_to_bf16(__m256i codes)
{
    const __m512i odd = _mm512_set_epi16(
        0x7fc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3c60, 0x3c40,
        0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00, 0);  /* 31 down to 0: NaN, 7/512 .. 1/512, 0 */
    const __m512i first = _mm512_set1_epi16(8 << 4); /* of the normal magnitudes */
    const __m512i n_normal = _mm512_set1_epi16((127 - 8) << 4);
    const __m512i v = _mm512_cvtepi8_epi16(codes);
    const __m512i magnitude =
        _mm512_and_si512(_mm512_slli_epi16(v, 4), _mm512_set1_epi16(127 << 4));
    const __m512i above = _mm512_sub_epi16(magnitude, first);
    const __mmask32 is_odd = _mm512_cmpge_epu16_mask(above, n_normal);
    __m512i bf16 = _mm512_add_epi16(above, _mm512_set1_epi16((120 << 7) + (8 << 4)));

    bf16 = _mm512_mask_permutexvar_epi16(bf16, is_odd, v, odd);
    return _mm512_or_si512(bf16, _mm512_and_si512(v, _mm512_set1_epi16((short)0x8000)));
}

SY_CPU_INLINE size_t line_inputs(sy_dtype dtype)
{
    return dtype == SY_FP8 ? 2 : 8;
}

SY_CPU_INLINE size_t line_bytes(sy_dtype dtype)
{
    return dtype == SY_FP8 ? ENCODED_PAIR_BYTES : QUANT_LINE_BYTES;
}

/* The inputs of one line, as widen wants them; asks for another meanwhile. */
SY_CPU_INLINE __m512i load_line(const uint8_t *from, ptrdiff_t ahead_bytes, sy_dtype dtype)
{
    _mm_prefetch(from + ahead_bytes, _MM_HINT_T0);
    if (dtype == SY_MXFP4) return _mm512_loadu_si512(from);
    return fp8_to_bf16(_mm256_loadu_si256((const __m256i *)(const void *)from));
}

/* Input j of a line: a constant, as dtype is. Only the low four bits of a lane count for the table.
 */
SY_CPU_INLINE __m512 widen(__m512i line, sy_dtype dtype, size_t j)
{
    const __m512 e2m1 = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    const unsigned shift = (unsigned)(j < 4 ? 8 * j : 8 * (j - 4) + 4);

    if (dtype == SY_MXFP4) return _mm512_permutexvar_ps(_mm512_srli_epi32(line, shift), e2m1);
    if (j == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(line, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32((int)0xffff0000)));
}

/* Of 16 columns: as encoded_factor. */
SY_CPU_INLINE __m512 load_factors(const uint8_t *scales, sy_dtype dtype)
{
    if (dtype == SY_FP8) return _mm512_loadu_ps(scales);
    const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)scales));
    const __mmask16 at_end = _mm512_cmpeq_epi32_mask(b, _mm512_setzero_si512()) |
                             _mm512_cmpeq_epi32_mask(b, _mm512_set1_epi32(255));
    const __m512i factor = _mm512_slli_epi32(b, 23);
    return _mm512_castsi512_ps(
        _mm512_mask_or_epi32(factor, at_end, factor, _mm512_set1_epi32(1 << 22)));
}

/* y = fma(factor, s, y) for each token of a tile and each panel. */
SY_CPU_INLINE void add_sums(float *acc, const __m512 *s, size_t n_tokens, quant_weights at,
                            sy_dtype dtype, size_t T, size_t P)
{
#pragma GCC unroll 2
    for (size_t p = 0; p < P; p++) {
        const __m512 factor = load_factors(at.scales + p * at.panel_bytes, dtype);
#pragma GCC unroll 12
        for (size_t t = 0; t < T; t++) {
            float *y = acc + (p * n_tokens + t) * SY_PANEL;
            _mm512_store_ps(y, _mm512_fmadd_ps(factor, s[t * P + p], _mm512_load_ps(y)));
        }
    }
}

/* A whole block. dtype, T and P are constants where this is used. x: [T][inputs of a block]; acc:
 * [P][n_tokens][16] from the tile's first token on. */
SY_CPU_INLINE void tile(float *acc, const float *x, size_t n_tokens, quant_weights at,
                        sy_dtype dtype, size_t T, size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype), n_inner = line_inputs(dtype);
    const ptrdiff_t ahead_bytes = quant_ahead_bytes(at);
    __m512 s[FEW_TOKENS * AT_ONCE];

#pragma GCC unroll 16
    for (size_t i = 0; i < T * P; i++) s[i] = _mm512_setzero_ps();
    for (size_t i = 0; i < n_inputs / n_inner; i++) {
        __m512i line[AT_ONCE];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) {
            const uint8_t *from = at.quants + p * at.panel_bytes + i * line_bytes(dtype);
            line[p] = load_line(from, ahead_bytes, dtype);
        }
#pragma GCC unroll 8
        for (size_t j = 0; j < n_inner; j++) {
            __m512 w[AT_ONCE];
#pragma GCC unroll 2
            for (size_t p = 0; p < P; p++) w[p] = widen(line[p], dtype, j);
#pragma GCC unroll 8
            for (size_t t = 0; t < T; t++) {
                const __m512 v = _mm512_set1_ps(x[t * n_inputs + i * n_inner + j]);
#pragma GCC unroll 2
                for (size_t p = 0; p < P; p++)
                    s[t * P + p] = _mm512_fmadd_ps(v, w[p], s[t * P + p]);
            }
        }
    }
    add_sums(acc, s, n_tokens, at, dtype, T, P);
}

/* The lines of one panel's block, of which the last may have an input too many. */
SY_CPU_INLINE void widen_block(float *w, const uint8_t *quants, size_t n_k, ptrdiff_t ahead_bytes,
                               sy_dtype dtype)
{
    const size_t n_inner = line_inputs(dtype);

    for (size_t k = 0; k < n_k;
         k += n_inner, quants += line_bytes(dtype), w += n_inner * SY_PANEL) {
        const __m512i line = load_line(quants, ahead_bytes, dtype);
#pragma GCC unroll 8
        for (size_t j = 0; j < n_inner; j++)
            _mm512_store_ps(w + j * SY_PANEL, widen(line, dtype, j));
    }
}

/* As tile, of the at.n_k inputs that are there, with weights [P][inputs of a block][16] as floats.
 */
SY_CPU_INLINE void wide_tile(float *acc, const float *x, const float *w, size_t n_tokens,
                             quant_weights at, sy_dtype dtype, size_t T, size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype);
    __m512 s[TILE_TOKENS * AT_ONCE];

#pragma GCC unroll 24
    for (size_t i = 0; i < T * P; i++) s[i] = _mm512_setzero_ps();
    for (size_t k = 0; k < at.n_k; k++) {
        __m512 line[AT_ONCE];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) line[p] = _mm512_load_ps(w + (p * n_inputs + k) * SY_PANEL);
#pragma GCC unroll 12
        for (size_t t = 0; t < T; t++) {
            const __m512 v = _mm512_set1_ps(x[t * n_inputs + k]);
#pragma GCC unroll 2
            for (size_t p = 0; p < P; p++) s[t * P + p] = _mm512_fmadd_ps(v, line[p], s[t * P + p]);
        }
    }
    add_sums(acc, s, n_tokens, at, dtype, T, P);
}

SY_CPU_INLINE void wide_body(float *acc, const float *x, size_t n_tokens, quant_weights at,
                             sy_dtype dtype, size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype);
    _Alignas(SY_CACHE_LINE) float w[AT_ONCE * SY_FP8_BLOCK * SY_PANEL];

    for (size_t p = 0; p < P; p++) {
        widen_block(w + p * n_inputs * SY_PANEL, at.quants + p * at.panel_bytes, at.n_k,
                    quant_ahead_bytes(at), dtype);
    }
    for (size_t t = 0, T; t < n_tokens; t += T) {
        float *y = acc + t * SY_PANEL;
        const float *from = x + t * n_inputs;
        const size_t left = n_tokens - t;
        T = left >= TILE_TOKENS ? TILE_TOKENS : left >= 8 ? 8 : SY_MIN(left, (size_t)4);
        switch (T) {
        case 1: wide_tile(y, from, w, n_tokens, at, dtype, 1, P); break;
        case 2: wide_tile(y, from, w, n_tokens, at, dtype, 2, P); break;
        case 3: wide_tile(y, from, w, n_tokens, at, dtype, 3, P); break;
        case 4: wide_tile(y, from, w, n_tokens, at, dtype, 4, P); break;
        case 8: wide_tile(y, from, w, n_tokens, at, dtype, 8, P); break;
        default: wide_tile(y, from, w, n_tokens, at, dtype, TILE_TOKENS, P); break;
        }
    }
}

SY_CPU_INLINE void body(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                        quant_weights at, sy_dtype dtype, size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype);
    const float *x = buffer->x + b * n_tokens * n_inputs;

    if (at.ahead_scales != NULL)
        for (size_t p = 0; p < P; p++)
            _mm_prefetch(at.ahead_scales + p * at.panel_bytes, _MM_HINT_T0);
    switch (at.n_k == n_inputs ? n_tokens : FEW_TOKENS + 1) {
    case 1: tile(acc, x, n_tokens, at, dtype, 1, P); break;
    case 2: tile(acc, x, n_tokens, at, dtype, 2, P); break;
    case 3: tile(acc, x, n_tokens, at, dtype, 3, P); break;
    case 4: tile(acc, x, n_tokens, at, dtype, 4, P); break;
    case 5: tile(acc, x, n_tokens, at, dtype, 5, P); break;
    case 6: tile(acc, x, n_tokens, at, dtype, 6, P); break;
    case 7: tile(acc, x, n_tokens, at, dtype, 7, P); break;
    case FEW_TOKENS: tile(acc, x, n_tokens, at, dtype, FEW_TOKENS, P); break;
    default: wide_body(acc, x, n_tokens, at, dtype, P); break;
    }
}

static void run_fp8(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_FP8, AT_ONCE);
}

static void run_mxfp4(quant_buffer *buffer, const quant_job *job, quant_part part)
{
    quant_panels(buffer, job, part, body, SY_MXFP4, AT_ONCE);
}

void sy_avx512_matmul_encoded(float *y, size_t y_stride, const float *x, size_t x_stride,
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

    if (w->dtype == SY_FP8) {
        quant_by_parts(&job, QUANT_FP8_MAX, quant_fill_fp8, run_fp8);
    } else {
        quant_by_parts(&job, QUANT_F32_MAX, quant_fill_f32, run_mxfp4);
    }
}
