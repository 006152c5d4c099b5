/* sy_pairs.h - what the products with bf16 activations share: rounding, and the environment that
 * the arithmetic is defined in. kernels/ only.
 *
 * VDPBF16PS treats denormal numbers as zeros, in what it reads and in what it writes, whatever the
 * thread has asked for. The others get there with the two flags of the control register, set for
 * the time of a product. */
#ifndef SY_PAIRS_H
#define SY_PAIRS_H

#include <string.h>
#include <xmmintrin.h>

#include "sy_kernels.h"

#define PAIRS_NO_DENORMALS 0x8040u /* flush to zero, denormals are zeros */

static inline unsigned pairs_enter(void)
{
    const unsigned before = _mm_getcsr();

    _mm_setcsr(before | PAIRS_NO_DENORMALS);
    return before;
}

static inline void pairs_leave(unsigned before)
{
    _mm_setcsr(before);
}

/* To nearest even; a denormal becomes a zero of its sign, a NaN a quiet one. */
static inline uint16_t pairs_round(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    const uint32_t number = magnitude < 0x00800000 ? bits >> 16 & 0x8000 : rounded;
    return (uint16_t)(magnitude > 0x7f800000 ? quiet : number);
}

static inline float pairs_widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

#endif
