/* vec_avx2.h - pieces that the AVX2 files share: exp, and the end of a sum of 16 partials. */
#ifndef SY_VEC_AVX2_H
#define SY_VEC_AVX2_H

#include <immintrin.h>

#include "cpu/sy_cpu.h"
#include "ref/sy_ref.h"

/* Partials 0-7 and 8-15. */
typedef struct partials_avx2 {
    __m256 lo, hi;
} partials_avx2;

/* The steps of sy_exp_scalar, eight at once; out-of-range lanes compute nonsense that the
 * selections replace. */
SY_CPU_INLINE __m256 exp_avx2(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(SY_EXP_MAGIC);
    const __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(SY_EXP_LOG2E), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(SY_EXP_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(SY_EXP_LN2_LO), r);
    __m256 p = _mm256_set1_ps(SY_EXP_C7);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SY_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SY_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SY_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SY_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(SY_EXP_C2));
    const __m256 y =
        _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    const __m256i scaled =
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23));

    const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(SY_EXP_MIN), _CMP_LT_OQ);
    const __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(SY_EXP_MAX), _CMP_GT_OQ);
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 result = _mm256_andnot_ps(low, _mm256_castsi256_ps(scaled));
    result = _mm256_blendv_ps(result, _mm256_set1_ps(INFINITY), high);
    return _mm256_blendv_ps(result, x, nan);
}

SY_CPU_INLINE void partials_store_avx2(float p[SY_PARTIALS], partials_avx2 sum)
{
    _mm256_storeu_ps(p, sum.lo);
    _mm256_storeu_ps(p + 8, sum.hi);
}

#endif
