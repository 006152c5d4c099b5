/* sy_cu_math.h - what kernels compute with: the conversions and the exp of the other
 * implementations, step by step, so that their bits are the same. Built without contraction
 * (--fmad=false, -ffp-contract=off): a fused multiply-add stands here as fmaf. */
#ifndef SY_CU_MATH_H
#define SY_CU_MATH_H

#include "sy_cu.h"
#include "sy_exp.h"

/* To nearest even; denormals are kept, a NaN stays a NaN. */
static __device__ __forceinline__ uint16_t sy_cu_to_bf16(float f)
{
    const uint32_t bits = __float_as_uint(f);

    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* sy_exp_scalar. */
static __device__ __forceinline__ float sy_cu_exp(float x)
{
    if (x != x) return x;
    if (x < SY_EXP_MIN) return 0.0f;
    if (x > SY_EXP_MAX) return __uint_as_float(0x7f800000u);

    const float t = fmaf(x, SY_EXP_LOG2E, SY_EXP_MAGIC);
    const float n = t - SY_EXP_MAGIC;
    float r = fmaf(-n, SY_EXP_LN2_HI, x);
    r = fmaf(-n, SY_EXP_LN2_LO, r);
    float p = SY_EXP_C7;
    p = fmaf(p, r, SY_EXP_C6);
    p = fmaf(p, r, SY_EXP_C5);
    p = fmaf(p, r, SY_EXP_C4);
    p = fmaf(p, r, SY_EXP_C3);
    p = fmaf(p, r, SY_EXP_C2);
    const float y = fmaf(p, r * r, r) + 1.0f;
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(t) << 23));
}

static __device__ __forceinline__ float sy_cu_swiglu(float g, float u)
{
    return g / (1.0f + sy_cu_exp(-g)) * u;
}

/* The comparisons stand in the order of the reference, in which a NaN passes. */
static __device__ __forceinline__ float sy_cu_clamped_swiglu(float g, float u, float limit)
{
    const float a = limit < g ? limit : g;
    const float below = limit < u ? limit : u;
    const float b = -limit > below ? -limit : below;

    return (b + 1.0f) * (a / (1.0f + sy_cu_exp(-(1.702f * a))));
}

#endif
