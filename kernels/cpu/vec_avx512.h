/* vec_avx512.h - pieces that the AVX-512 files share: exp, and the mask of the last, partial step.
 * A register is the 16 partials of a sum. */
#ifndef SY_VEC_AVX512_H
#define SY_VEC_AVX512_H

#include <immintrin.h>

#include "cpu/sy_cpu.h"
#include "ref/sy_ref.h"

#define WIDTH 16

/* The lanes that have an element when `left` of them remain. */
SY_CPU_INLINE __mmask16 lanes_of(size_t left)
{
    return left >= WIDTH ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* The steps of sy_exp_scalar, sixteen at once; out-of-range lanes compute nonsense that the
 * selections replace. */
SY_CPU_INLINE __m512 exp_avx512(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(SY_EXP_MAGIC);
    const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(SY_EXP_LOG2E), magic);
    const __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(SY_EXP_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(SY_EXP_LN2_LO), r);
    __m512 p = _mm512_set1_ps(SY_EXP_C7);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(SY_EXP_C6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(SY_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(SY_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(SY_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(SY_EXP_C2));
    const __m512 y =
        _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
    const __m512i scaled =
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23));

    const __mmask16 not_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(SY_EXP_MIN), _CMP_NLT_UQ);
    const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(SY_EXP_MAX), _CMP_GT_OQ);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512 result = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(not_low, scaled));
    result = _mm512_mask_mov_ps(result, high, _mm512_set1_ps(INFINITY));
    return _mm512_mask_mov_ps(result, nan, x);
}

SY_CPU_INLINE float partials_sum_avx512(__m512 sum)
{
    float p[SY_PARTIALS];

    _mm512_storeu_ps(p, sum);
    return sy_partials_sum(p);
}

#endif
