/* sy_dtype_finite.c - looks for weights that are not numbers, on the stored bits: an exponent of
 * all ones. */
#include "sy_dtype.h"

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

int sy_dtype_all_finite(const void *in, sy_dtype dtype, uint64_t n)
{
    const uint8_t *p = in;
    unsigned bad = 0;

    if (dtype == SY_BF16) return finite16(p, n, 0x7f80);
    if (dtype == SY_F16) return finite16(p, n, 0x7c00);
    if (sy_dtype_is_quant(dtype)) return scales_finite(p, sy_dtype_row_bytes(dtype, 1), n);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, sizeof(v));
        bad |= (v & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}
