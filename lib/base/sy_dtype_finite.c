/* sy_dtype_finite.c - looks for weights that are not numbers, on the stored bits: an exponent of
 * all ones. Of encoded ones a factor and a code that are numbers may still have a product that is
 * not: only where a factor is that large are the elements computed. */
#include "sy_dtype.h"

#include <math.h>
#include <string.h>

static int finite16(const uint8_t *in, uint64_t n, uint16_t exponent)
{
    unsigned bad = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, in + 2 * i, sizeof(v));
        bad |= (v & exponent) == exponent;
    }
    return !bad;
}

/* A scale is the first thing of its block; the integers behind it are always numbers. */
static int scales_finite(const uint8_t *in, size_t block_bytes, uint64_t n)
{
    const uint64_t n_blocks = n / SY_QUANT_BLOCK + (n % SY_QUANT_BLOCK != 0);

    for (uint64_t i = 0; i < n_blocks; i++)
        if (!finite16(in + i * block_bytes, 1, 0x7c00)) return 0;
    return 1;
}

/* Of one block of FP8: its codes without signs are in the order of their values, NaN at the end,
 * and a factor that is no number has no product that is one. */
static int fp8_block_finite(const uint8_t *code, size_t n, float factor)
{
    uint8_t largest = 0;

    for (size_t i = 0; i < n; i++) largest = SY_MAX(largest, code[i] & 0x7f);
    return isfinite(factor * sy_f8_e4m3_to_f32(largest));
}

static int fp8_finite(const uint8_t *in, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += SY_FP8_BLOCK) {
        float factor;
        memcpy(&factor, in + n + i / SY_FP8_BLOCK * sizeof(factor), sizeof(factor));
        if (!fp8_block_finite(in + i, SY_MIN((size_t)SY_FP8_BLOCK, n - i), factor)) return 0;
    }
    return 1;
}

static int mxfp4_finite(const uint8_t *in, uint64_t n)
{
    /* 6 * 2^(252 - 127) is a number, and 6 * 2^(253 - 127) is none. */
    enum { SAFE_SCALE = 252, NAN_SCALE = 255 };
    const uint64_t n_blocks = n / SY_QUANT_BLOCK + (n % SY_QUANT_BLOCK != 0);
    const size_t block_bytes = SY_QUANT_BLOCK / 2;

    for (uint64_t b = 0; b < n_blocks; b++) {
        const uint8_t scale = in[n_blocks * block_bytes + b];
        const size_t n_here = SY_MIN((size_t)SY_QUANT_BLOCK, n - b * SY_QUANT_BLOCK);
        uint8_t block[SY_QUANT_BLOCK / 2 + 1];
        float wide[SY_QUANT_BLOCK];
        if (scale <= SAFE_SCALE) continue;
        if (scale == NAN_SCALE) return 0;
        memcpy(block, in + b * block_bytes, block_bytes);
        block[block_bytes] = scale;
        sy_dtype_widen(wide, block, SY_MXFP4, n_here);
        if (!sy_dtype_all_finite(wide, SY_F32, n_here)) return 0;
    }
    return 1;
}

int sy_dtype_all_finite(const void *in, sy_dtype dtype, uint64_t n)
{
    const uint8_t *p = in;
    unsigned bad = 0;

    if (dtype == SY_BF16) return finite16(p, n, 0x7f80);
    if (dtype == SY_F16) return finite16(p, n, 0x7c00);
    if (sy_dtype_is_quant(dtype)) return scales_finite(p, sy_dtype_row_bytes(dtype, 1), n);
    if (dtype == SY_FP8) return fp8_finite(p, n);
    if (dtype == SY_MXFP4) return mxfp4_finite(p, n);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, sizeof(v));
        bad |= (v & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}
