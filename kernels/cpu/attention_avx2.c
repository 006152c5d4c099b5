/* attention_avx2.c - attention over a run of keys with AVX2 and FMA: four keys at once for the
 * scores, the outputs in registers for the values. */
#include "cpu/vec_avx2.h"

#define KEYS         4
#define VALUES_WIDTH 64 /* outputs held in eight registers */

SY_CPU_INLINE partials_avx2 key_step(partials_avx2 sum, __m256 q_lo, __m256 q_hi, const float *k)
{
    return (partials_avx2){_mm256_fmadd_ps(q_lo, _mm256_loadu_ps(k), sum.lo),
                           _mm256_fmadd_ps(q_hi, _mm256_loadu_ps(k + 8), sum.hi)};
}

/* p[j] += p[j+8], then p[j+4], of two keys: the first in the lower half of the register, the second
 * in the upper. */
SY_CPU_INLINE __m256 halve_two(partials_avx2 a, partials_avx2 b)
{
    const __m256 eight_a = _mm256_add_ps(a.lo, a.hi);
    const __m256 eight_b = _mm256_add_ps(b.lo, b.hi);

    return _mm256_add_ps(_mm256_permute2f128_ps(eight_a, eight_b, 0x20),
                         _mm256_permute2f128_ps(eight_a, eight_b, 0x31));
}

/* The sums of four keys, whose partials come as lanes: p[j] += p[j+2], then p[1]. */
SY_CPU_INLINE __m128 reduce_four(const partials_avx2 sum[KEYS])
{
    const __m256 keys_01 = halve_two(sum[0], sum[1]);
    const __m256 keys_23 = halve_two(sum[2], sum[3]);
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(keys_01, keys_23, 0x44),
                                     _mm256_shuffle_ps(keys_01, keys_23, 0xee));
    const __m256 one = _mm256_hadd_ps(two, two); /* keys 0 2 0 2 | 1 3 1 3 */

    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* score[0..3] of four keys that lie k_stride apart; head_dim is a multiple of SY_PARTIALS. */
SY_CPU_INLINE void four_scores(float *score, const float *q, const float *k, size_t k_stride,
                               size_t head_dim, float scale)
{
    partials_avx2 sum[KEYS];

    for (size_t j = 0; j < KEYS; j++)
        sum[j] = (partials_avx2){_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (size_t i = 0; i < head_dim; i += SY_PARTIALS) {
        const __m256 q_lo = _mm256_loadu_ps(q + i);
        const __m256 q_hi = _mm256_loadu_ps(q + i + 8);
#pragma GCC unroll 4
        for (size_t j = 0; j < KEYS; j++)
            sum[j] = key_step(sum[j], q_lo, q_hi, k + j * k_stride + i);
    }
    _mm_storeu_ps(score, _mm_mul_ps(_mm_set1_ps(scale), reduce_four(sum)));
}

void sy_avx2_attn_scores(float *score, const float *q, const float *k, size_t k_stride,
                         size_t n_keys, size_t head_dim, float scale)
{
    size_t j = 0;

    if (head_dim % SY_PARTIALS == 0) {
        for (; j + KEYS <= n_keys; j += KEYS)
            four_scores(score + j, q, k + j * k_stride, k_stride, head_dim, scale);
    }
    for (; j < n_keys; j++) score[j] = scale * sy_avx2_dot(q, k + j * k_stride, head_dim);
}

/* width outputs, a multiple of 8 that is a constant where this is used. */
SY_CPU_INLINE void values_of(float *o, const float *p, const float *v, size_t v_stride,
                             size_t n_keys, size_t width)
{
    __m256 sum[VALUES_WIDTH / 8];

#pragma GCC unroll 8
    for (size_t d = 0; d < width / 8; d++) sum[d] = _mm256_loadu_ps(o + 8 * d);
    for (size_t j = 0; j < n_keys; j++) {
        const __m256 vp = _mm256_set1_ps(p[j]);
#pragma GCC unroll 8
        for (size_t d = 0; d < width / 8; d++)
            sum[d] = _mm256_fmadd_ps(vp, _mm256_loadu_ps(v + j * v_stride + 8 * d), sum[d]);
    }
#pragma GCC unroll 8
    for (size_t d = 0; d < width / 8; d++) _mm256_storeu_ps(o + 8 * d, sum[d]);
}

void sy_avx2_attn_values(float *o, const float *p, const float *v, size_t v_stride, size_t n_keys,
                         size_t head_dim)
{
    size_t d = 0;

    for (; d + VALUES_WIDTH <= head_dim; d += VALUES_WIDTH)
        values_of(o + d, p, v + d, v_stride, n_keys, VALUES_WIDTH);
    for (; d + 16 <= head_dim; d += 16) values_of(o + d, p, v + d, v_stride, n_keys, 16);
    if (d < head_dim) sy_ref_attn_values(o + d, p, v + d, v_stride, n_keys, head_dim - d);
}
