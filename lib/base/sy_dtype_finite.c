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

int sy_dtype_all_finite(const void *in, sy_dtype dtype, uint64_t n)
{
    const uint8_t *p = in;
    unsigned bad = 0;

    if (dtype == SY_BF16) return finite16(p, n, 0x7f80);
    if (dtype == SY_F16) return finite16(p, n, 0x7c00);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, sizeof(v));
        bad |= (v & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}
