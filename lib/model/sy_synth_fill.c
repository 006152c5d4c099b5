/* sy_synth_fill.c - every element from its number, so that any of them can be made again: an
 * encoded tensor's factors and codes are written one after the other from the same elements. */
#include "sy_synth_fill.h"

#include <math.h>
#include <stdlib.h>

#include "sy_hash.h"

enum { CHUNK_ELEMENTS = 16384, F8_BLOCK = 128, FP4_BLOCK = 32 };

static float element(const synth_fill *fill, uint64_t i)
{
    const int32_t v = (int32_t)(sy_splitmix64(fill->seed + i) >> 40) - (1 << 23);

    return fill->offset + fill->scale * ((float)v * 0x1p-23f);
}

static sy_status emit_plain(const synth_fill *fill, sy_st_emit emit, void *sink)
{
    float values[CHUNK_ELEMENTS];
    uint16_t halves[CHUNK_ELEMENTS];
    sy_status st = SY_OK;

    for (uint64_t at = 0; at < fill->n && st == SY_OK; at += CHUNK_ELEMENTS) {
        const size_t n = (size_t)SY_MIN(fill->n - at, (uint64_t)CHUNK_ELEMENTS);

        for (size_t i = 0; i < n; i++) values[i] = element(fill, at + i);
        if (fill->dtype == SY_F32) {
            st = emit(sink, values, n * sizeof(values[0]));
            continue;
        }
        for (size_t i = 0; i < n; i++)
            halves[i] =
                fill->dtype == SY_BF16 ? sy_f32_to_bf16(values[i]) : sy_f32_to_f16(values[i]);
        st = emit(sink, halves, n * sizeof(halves[0]));
    }
    return st;
}

/* The least power of two, as its exponent, that brings the magnitude within limit; 0 for zeros. */
static int exponent_for(float magnitude, float limit)
{
    int exponent = 0;

    if (magnitude == 0.0f) return 0;
    frexpf(magnitude / limit, &exponent); /* magnitude / limit is in [2^(e-1), 2^e) */
    return ldexpf(limit, exponent - 1) >= magnitude ? exponent - 1 : exponent;
}

/* Block (i, j) is made smaller by this power of two, so that neighbours have other factors: with
 * elements of one size all over, a reader that takes the wrong one would not show. */
static int dimmed(uint64_t i, uint64_t j)
{
    return -(int)((i + 2 * j) % 4);
}

/* ---- e4m3 in blocks of 128 x 128 ---- */

/* Rows [row, row + n) and the exponents of their blocks. */
static void make_band(const synth_fill *fill, uint64_t row, uint64_t n, float *values,
                      int *exponents)
{
    for (uint64_t i = 0; i < n * fill->columns; i++)
        values[i] = ldexpf(element(fill, row * fill->columns + i),
                           dimmed(row / F8_BLOCK, i % fill->columns / F8_BLOCK));
    for (uint64_t begin = 0; begin < fill->columns; begin += F8_BLOCK) {
        const uint64_t end = SY_MIN(begin + F8_BLOCK, fill->columns);
        float most = 0.0f;

        for (uint64_t r = 0; r < n; r++)
            for (uint64_t c = begin; c < end; c++)
                most = fmaxf(most, fabsf(values[r * fill->columns + c]));
        exponents[begin / F8_BLOCK] = exponent_for(most, 448.0f);
    }
}

static sy_status emit_codes(const synth_fill *fill, uint64_t n, const float *values,
                            const int *exponents, uint8_t *codes, sy_st_emit emit, void *sink)
{
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t c = 0; c < fill->columns; c++)
            codes[c] =
                sy_f32_to_f8_e4m3(ldexpf(values[r * fill->columns + c], -exponents[c / F8_BLOCK]));
        const sy_status st = emit(sink, codes, fill->columns);
        if (st != SY_OK) return st;
    }
    return SY_OK;
}

static sy_status emit_f8(const synth_fill *fill, sy_st_emit emit, void *sink)
{
    const uint64_t blocks = (fill->columns + F8_BLOCK - 1) / F8_BLOCK;
    float *values = calloc(F8_BLOCK * fill->columns, sizeof(*values));
    float *factors = calloc(blocks, sizeof(*factors));
    int *exponents = calloc(blocks, sizeof(*exponents));
    uint8_t *codes = malloc(fill->columns);
    sy_status st = SY_OK;

    if (values == NULL || factors == NULL || exponents == NULL || codes == NULL) st = SY_ENOMEM;
    for (uint64_t row = 0; row < fill->rows && st == SY_OK; row += F8_BLOCK) {
        const uint64_t n = SY_MIN(fill->rows - row, (uint64_t)F8_BLOCK);

        make_band(fill, row, n, values, exponents);
        for (uint64_t b = 0; b < blocks; b++) factors[b] = ldexpf(1.0f, exponents[b]);
        st = fill->part == SYNTH_F8 ? emit_codes(fill, n, values, exponents, codes, emit, sink)
                                    : emit(sink, factors, blocks * sizeof(*factors));
    }
    free(codes);
    free(exponents);
    free(factors);
    free(values);
    return st;
}

/* ---- e2m1 in blocks of 32 of a row ---- */

/* The nearest; of two that are as near, the one with an even code. */
static unsigned fp4_code(float v)
{
    const float magnitude = fabsf(v);
    unsigned code = 0;

    for (unsigned i = 0; i < 7; i++) {
        const float middle = 0.5f * (sy_fp4_to_f32(i) + sy_fp4_to_f32(i + 1));
        if (magnitude > middle || (magnitude == middle && i % 2 == 1)) code = i + 1;
    }
    return code | (signbit(v) ? 8u : 0u);
}

static void encode_fp4_row(const synth_fill *fill, uint64_t slab, uint64_t row, uint8_t *codes,
                           uint8_t *scales)
{
    const uint64_t first = slab * fill->columns * fill->rows + row;

    for (uint64_t begin = 0; begin < fill->columns; begin += FP4_BLOCK) {
        float values[FP4_BLOCK], most = 0.0f;

        for (unsigned i = 0; i < FP4_BLOCK; i++) {
            values[i] = ldexpf(element(fill, first + (begin + i) * fill->rows),
                               dimmed(row, begin / FP4_BLOCK));
            most = fmaxf(most, fabsf(values[i]));
        }
        const int exponent = exponent_for(most, 6.0f);
        scales[begin / FP4_BLOCK] = (uint8_t)(127 + exponent);
        for (unsigned i = 0; i < FP4_BLOCK; i += 2)
            codes[(begin + i) / 2] = (uint8_t)(fp4_code(ldexpf(values[i], -exponent)) |
                                               fp4_code(ldexpf(values[i + 1], -exponent)) << 4);
    }
}

static sy_status emit_fp4(const synth_fill *fill, sy_st_emit emit, void *sink)
{
    const size_t n_codes = (size_t)fill->columns / 2, n_scales = (size_t)fill->columns / FP4_BLOCK;
    uint8_t *codes = calloc(1, n_codes + n_scales);
    sy_status st = codes == NULL ? SY_ENOMEM : SY_OK;

    for (uint64_t i = 0; i < fill->slabs * fill->rows && st == SY_OK; i++) {
        encode_fp4_row(fill, i / fill->rows, i % fill->rows, codes, codes + n_codes);
        st = fill->part == SYNTH_FP4 ? emit(sink, codes, n_codes)
                                     : emit(sink, codes + n_codes, n_scales);
    }
    free(codes);
    return st;
}

sy_status synth_fill_emit(const synth_fill *fill, sy_st_emit emit, void *sink)
{
    switch (fill->part) {
    case SYNTH_F8:
    case SYNTH_F8_SCALES: return emit_f8(fill, emit, sink);
    case SYNTH_FP4:
    case SYNTH_FP4_SCALES: return emit_fp4(fill, emit, sink);
    case SYNTH_PLAIN: break;
    }
    return emit_plain(fill, emit, sink);
}
