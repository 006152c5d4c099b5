/* encoded_avx2.c - weights in a checkpoint's own encoding, FP8 or MXFP4, with fp32 activations and
 * AVX2. Two registers hold the 16 columns of a panel.
 *
 * An FP8 code is an f16 whose exponent is eight too small: moved into place, the conversion does
 * denormals as well, and a product with 256 is exact. Only its NaN would be a number. An MXFP4
 * code's magnitude is looked up. One or two tokens take their weights from registers, from two
 * panels at once; for more, and for a block cut short, a block is widened to floats in the
 * first-level cache, once for all tokens. */
#include <immintrin.h>

#include "cpu/quant_block.h"

#define AT_ONCE     2
#define FEW_TOKENS  2
#define TILE_TOKENS 6 /* times two halves of a panel: 12 sums in 16 registers */

/* Columns 0-7 and 8-15: of one input as floats, or of a line's inputs as they are stored. FP8's
 * line is one register. */
typedef struct line_avx2 {
    __m256 lo, hi;
} line_avx2;
typedef struct codes_avx2 {
    __m256i lo, hi;
} codes_avx2;

SY_CPU_INLINE size_t line_inputs(sy_dtype dtype)
{
    return dtype == SY_FP8 ? 2 : 8;
}

SY_CPU_INLINE size_t line_bytes(sy_dtype dtype)
{
    return dtype == SY_FP8 ? ENCODED_PAIR_BYTES : QUANT_LINE_BYTES;
}

/* Asks for another line meanwhile. */
SY_CPU_INLINE codes_avx2 load_codes(const uint8_t *from, ptrdiff_t ahead_bytes, sy_dtype dtype)
{
    const __m256i *line = (const __m256i *)(const void *)from;
    const __m256i lo = _mm256_loadu_si256(line);

    _mm_prefetch(from + ahead_bytes, _MM_HINT_T0);
    return (codes_avx2){lo, dtype == SY_FP8 ? lo : _mm256_loadu_si256(line + 1)};
}

/* Sixteen codes, each in the high byte of a word; what is in the low bytes does not count. */
SY_CPU_INLINE line_avx2 widen_fp8(__m256i words)
{
    /* The sign, which the shift leaves in two places, and seven bits. */
    const __m256i kept = _mm256_set1_epi16((short)0xbf80);
    const __m256i sign = _mm256_set1_epi16((short)0x8000);
    const __m256 factor = _mm256_set1_ps(256.0f);
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(words, 1), kept);

    half = _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_or_si256(half, sign), kept));
    return (line_avx2){
        _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor),
        _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor),
    };
}

/* Input j of eight columns. Only the low three bits of a lane count for the table. */
SY_CPU_INLINE __m256 widen_mxfp4(__m256i codes, int j)
{
    const __m256 magnitude = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000);
    const int shift = j < 4 ? 8 * j : 8 * (j - 4) + 4;
    const __m256 value = _mm256_permutevar8x32_ps(magnitude, _mm256_srli_epi32(codes, shift));
    const __m256i at_top = _mm256_slli_epi32(codes, 28 - shift);

    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_and_si256(at_top, sign)));
}

/* Input j of a line: a constant, as dtype is. */
SY_CPU_INLINE line_avx2 widen(codes_avx2 codes, sy_dtype dtype, int j)
{
    if (dtype == SY_FP8) return widen_fp8(j == 0 ? _mm256_slli_epi16(codes.lo, 8) : codes.lo);
    return (line_avx2){widen_mxfp4(codes.lo, j), widen_mxfp4(codes.hi, j)};
}

/* Of eight columns: as encoded_factor. */
SY_CPU_INLINE __m256 load_factors(const uint8_t *scales, sy_dtype dtype, size_t c)
{
    if (dtype == SY_FP8) return _mm256_loadu_ps((const float *)(const void *)scales + c);
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(scales + c));
    const __m256i b = _mm256_cvtepu8_epi32(bytes);
    const __m256i at_end = _mm256_or_si256(_mm256_cmpeq_epi32(b, _mm256_setzero_si256()),
                                           _mm256_cmpeq_epi32(b, _mm256_set1_epi32(255)));
    const __m256i fraction = _mm256_and_si256(at_end, _mm256_set1_epi32(1 << 22));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(b, 23), fraction));
}

/* y = fma(factor, s, y) for each panel of a tile and each token: [P][T]. */
SY_CPU_INLINE void add_sums(float *acc, const line_avx2 *s, quant_weights at, sy_dtype dtype,
                            size_t T, size_t P)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < T * P; i++) {
        const uint8_t *scales = at.scales + i / T * at.panel_bytes;
        float *y = acc + i * SY_PANEL, *y_hi = y + SY_PANEL / 2;
        const __m256 lo = load_factors(scales, dtype, 0);
        const __m256 hi = load_factors(scales, dtype, SY_PANEL / 2);
        _mm256_store_ps(y, _mm256_fmadd_ps(lo, s[i].lo, _mm256_load_ps(y)));
        _mm256_store_ps(y_hi, _mm256_fmadd_ps(hi, s[i].hi, _mm256_load_ps(y_hi)));
    }
}

/* A whole block. dtype, T and P are constants where this is used. x: [T][inputs of a block]; acc:
 * [P][T][16]. */
SY_CPU_INLINE void tile(float *acc, const float *x, quant_weights at, sy_dtype dtype, size_t T,
                        size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype), n_inner = line_inputs(dtype);
    const ptrdiff_t ahead_bytes = quant_ahead_bytes(at);
    line_avx2 s[AT_ONCE * FEW_TOKENS];

#pragma GCC unroll 4
    for (size_t i = 0; i < T * P; i++) s[i].lo = s[i].hi = _mm256_setzero_ps();
    for (size_t i = 0; i < n_inputs / n_inner; i++) {
        codes_avx2 codes[AT_ONCE];
#pragma GCC unroll 2
        for (size_t p = 0; p < P; p++) {
            const uint8_t *from = at.quants + p * at.panel_bytes + i * line_bytes(dtype);
            codes[p] = load_codes(from, ahead_bytes, dtype);
        }
#pragma GCC unroll 8
        for (size_t j = 0; j < n_inner; j++) {
#pragma GCC unroll 2
            for (size_t p = 0; p < P; p++) {
                const line_avx2 w = widen(codes[p], dtype, (int)j);
#pragma GCC unroll 2
                for (size_t t = 0; t < T; t++) {
                    const __m256 v = _mm256_set1_ps(x[t * n_inputs + i * n_inner + j]);
                    s[p * T + t].lo = _mm256_fmadd_ps(v, w.lo, s[p * T + t].lo);
                    s[p * T + t].hi = _mm256_fmadd_ps(v, w.hi, s[p * T + t].hi);
                }
            }
        }
    }
    add_sums(acc, s, at, dtype, T, P);
}

/* A block widened to floats, whose factors are widened, too: all that a tile needs beside its sums
 * would drive these out of the registers, and their chains would go through memory. */
typedef struct wide_block {
    _Alignas(SY_CACHE_LINE) float w[SY_FP8_BLOCK * SY_PANEL]; /* [n_k][16] */
    float factor[SY_PANEL];
    size_t n_k; /* inputs that the block has */
} wide_block;

/* dtype and T are constants where this is used. */
SY_CPU_INLINE void wide_tile(float *y, const float *x, const wide_block *b, sy_dtype dtype,
                             size_t T)
{
    const size_t n_inputs = quant_block_inputs(dtype);
    __m256 lo[TILE_TOKENS], hi[TILE_TOKENS];

#pragma GCC unroll 6
    for (size_t t = 0; t < T; t++) lo[t] = hi[t] = _mm256_setzero_ps();
    for (size_t k = 0; k < b->n_k; k++) {
        const __m256 w_lo = _mm256_load_ps(b->w + k * SY_PANEL);
        const __m256 w_hi = _mm256_load_ps(b->w + k * SY_PANEL + SY_PANEL / 2);
#pragma GCC unroll 6
        for (size_t t = 0; t < T; t++) {
            const __m256 v = _mm256_set1_ps(x[t * n_inputs + k]);
            lo[t] = _mm256_fmadd_ps(v, w_lo, lo[t]);
            hi[t] = _mm256_fmadd_ps(v, w_hi, hi[t]);
        }
    }
    const __m256 f_lo = _mm256_load_ps(b->factor);
    const __m256 f_hi = _mm256_load_ps(b->factor + SY_PANEL / 2);
#pragma GCC unroll 6
    for (size_t t = 0; t < T; t++) {
        float *to = y + t * SY_PANEL, *to_hi = to + SY_PANEL / 2;
        _mm256_store_ps(to, _mm256_fmadd_ps(f_lo, lo[t], _mm256_load_ps(to)));
        _mm256_store_ps(to_hi, _mm256_fmadd_ps(f_hi, hi[t], _mm256_load_ps(to_hi)));
    }
}

SY_CPU_INLINE void wide_tiles(float *acc, const float *x, const wide_block *b, size_t n_tokens,
                              sy_dtype dtype)
{
    for (size_t t = 0, T; t < n_tokens; t += T) {
        float *y = acc + t * SY_PANEL;
        const float *from = x + t * quant_block_inputs(dtype);
        T = SY_MIN(n_tokens - t, (size_t)TILE_TOKENS);
        switch (T) {
        case 1: wide_tile(y, from, b, dtype, 1); break;
        case 2: wide_tile(y, from, b, dtype, 2); break;
        case 3: wide_tile(y, from, b, dtype, 3); break;
        case 4: wide_tile(y, from, b, dtype, 4); break;
        case 5: wide_tile(y, from, b, dtype, 5); break;
        default: wide_tile(y, from, b, dtype, TILE_TOKENS); break;
        }
    }
}

/* Not inlined, so that no constants of the widening are kept in registers meanwhile. */
static __attribute__((noinline)) void wide_tiles_fp8(float *acc, const float *x,
                                                     const wide_block *b, size_t n_tokens)
{
    wide_tiles(acc, x, b, n_tokens, SY_FP8);
}

static __attribute__((noinline)) void wide_tiles_mxfp4(float *acc, const float *x,
                                                       const wide_block *b, size_t n_tokens)
{
    wide_tiles(acc, x, b, n_tokens, SY_MXFP4);
}

/* One panel; the last line may have an input too many. */
SY_CPU_INLINE void wide_body(float *acc, const float *x, size_t n_tokens, quant_weights at,
                             sy_dtype dtype)
{
    const size_t n_inner = line_inputs(dtype);
    const ptrdiff_t ahead_bytes = quant_ahead_bytes(at);
    wide_block b;

    b.n_k = at.n_k;
    _mm256_store_ps(b.factor, load_factors(at.scales, dtype, 0));
    _mm256_store_ps(b.factor + SY_PANEL / 2, load_factors(at.scales, dtype, SY_PANEL / 2));
    for (size_t k = 0; k < at.n_k; k += n_inner) {
        const uint8_t *from = at.quants + k / n_inner * line_bytes(dtype);
        const codes_avx2 codes = load_codes(from, ahead_bytes, dtype);
#pragma GCC unroll 8
        for (size_t j = 0; j < n_inner; j++) {
            const line_avx2 line = widen(codes, dtype, (int)j);
            _mm256_store_ps(b.w + (k + j) * SY_PANEL, line.lo);
            _mm256_store_ps(b.w + (k + j) * SY_PANEL + SY_PANEL / 2, line.hi);
        }
    }
    if (dtype == SY_FP8) {
        wide_tiles_fp8(acc, x, &b, n_tokens);
    } else {
        wide_tiles_mxfp4(acc, x, &b, n_tokens);
    }
}

SY_CPU_INLINE void body(float *acc, const quant_buffer *buffer, size_t b, size_t n_tokens,
                        quant_weights at, sy_dtype dtype, size_t P)
{
    const size_t n_inputs = quant_block_inputs(dtype);
    const float *x = buffer->x + b * n_tokens * n_inputs;

    for (size_t p = 0; at.ahead_scales != NULL && p < P; p++)
        _mm_prefetch(at.ahead_scales + p * at.panel_bytes, _MM_HINT_T0);
    if (at.n_k == n_inputs && n_tokens == 1) {
        tile(acc, x, at, dtype, 1, P);
    } else if (at.n_k == n_inputs && n_tokens == FEW_TOKENS) {
        tile(acc, x, at, dtype, FEW_TOKENS, P);
    } else {
        for (size_t p = 0; p < P; p++) {
            wide_body(acc + p * n_tokens * SY_PANEL, x, n_tokens, at, dtype);
            at.quants += at.panel_bytes;
            at.scales += at.panel_bytes;
            if (at.ahead != NULL) at.ahead += at.panel_bytes;
        }
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

void sy_avx2_matmul_encoded(float *y, size_t y_stride, const float *x, size_t x_stride,
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
