/* attention_avx512.c - attention over a run of keys with AVX-512: eight keys at once for the scores
 * (a register holds the 16 partials of one), the outputs in registers for the values. */
#include "cpu/vec_avx512.h"

#define KEYS         8
#define VALUES_WIDTH 128 /* outputs held in eight registers */

/* p[j] += p[j+8] of two keys: the first in the lower half of the register, the second in the upper.
 */
SY_CPU_INLINE __m512 halve_two(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* The sums of eight keys, whose partials come as registers: the same pairs as sy_partials_sum, all
 * keys at once. */
SY_CPU_INLINE __m256 reduce_eight(const __m512 sum[KEYS])
{
    const __m512 keys_01 = halve_two(sum[0], sum[1]);
    const __m512 keys_23 = halve_two(sum[2], sum[3]);
    const __m512 keys_45 = halve_two(sum[4], sum[5]);
    const __m512 keys_67 = halve_two(sum[6], sum[7]);
    /* p[j] += p[j+4]: a 128-bit lane a key, in the order 0 1 2 3 and 4 5 6 7. */
    const __m512 keys_0123 = _mm512_add_ps(_mm512_shuffle_f32x4(keys_01, keys_23, 0x88),
                                           _mm512_shuffle_f32x4(keys_01, keys_23, 0xdd));
    const __m512 keys_4567 = _mm512_add_ps(_mm512_shuffle_f32x4(keys_45, keys_67, 0x88),
                                           _mm512_shuffle_f32x4(keys_45, keys_67, 0xdd));
    /* p[j] += p[j+2]: keys i and i+4 in one lane. */
    const __m512 two = _mm512_add_ps(_mm512_shuffle_ps(keys_0123, keys_4567, 0x44),
                                     _mm512_shuffle_ps(keys_0123, keys_4567, 0xee));
    /* p[0] += p[1]: the even elements hold keys 0 4 1 5 2 6 3 7. */
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i place = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);

    return _mm512_castps512_ps256(_mm512_permutexvar_ps(place, one));
}

/* score[0..7] of eight keys that lie k_stride apart. */
SY_CPU_INLINE void eight_scores(float *score, const float *q, const float *k, size_t k_stride,
                                size_t head_dim, float scale)
{
    __m512 sum[KEYS];

    for (size_t j = 0; j < KEYS; j++) sum[j] = _mm512_setzero_ps();
    for (size_t i = 0; i < head_dim; i += WIDTH) {
        const __mmask16 lanes = lanes_of(head_dim - i);
        const __m512 vq = _mm512_maskz_loadu_ps(lanes, q + i);
#pragma GCC unroll 8
        for (size_t j = 0; j < KEYS; j++) {
            const __m512 vk = _mm512_maskz_loadu_ps(lanes, k + j * k_stride + i);
            sum[j] = _mm512_mask3_fmadd_ps(vq, vk, sum[j], lanes);
        }
    }
    _mm256_storeu_ps(score, _mm256_mul_ps(_mm256_set1_ps(scale), reduce_eight(sum)));
}

void sy_avx512_attn_scores(float *score, const float *q, const float *k, size_t k_stride,
                           size_t n_keys, size_t head_dim, float scale)
{
    size_t j = 0;

    for (; j + KEYS <= n_keys; j += KEYS)
        eight_scores(score + j, q, k + j * k_stride, k_stride, head_dim, scale);
    for (; j < n_keys; j++) score[j] = scale * sy_avx512_dot(q, k + j * k_stride, head_dim);
}

/* n registers of outputs, a constant where this is used; `last` masks the last of them. */
SY_CPU_INLINE void values_of(float *o, const float *p, const float *v, size_t v_stride,
                             size_t n_keys, size_t n, __mmask16 last)
{
    __m512 sum[VALUES_WIDTH / WIDTH];

#pragma GCC unroll 8
    for (size_t d = 0; d < n; d++)
        sum[d] = _mm512_maskz_loadu_ps(d == n - 1 ? last : 0xffff, o + WIDTH * d);
    for (size_t j = 0; j < n_keys; j++) {
        const __m512 vp = _mm512_set1_ps(p[j]);
#pragma GCC unroll 8
        for (size_t d = 0; d < n; d++) {
            const float *from = v + j * v_stride + WIDTH * d;
            const __m512 vv = _mm512_maskz_loadu_ps(d == n - 1 ? last : 0xffff, from);
            sum[d] = _mm512_fmadd_ps(vp, vv, sum[d]);
        }
    }
#pragma GCC unroll 8
    for (size_t d = 0; d < n; d++)
        _mm512_mask_storeu_ps(o + WIDTH * d, d == n - 1 ? last : 0xffff, sum[d]);
}

void sy_avx512_attn_values(float *o, const float *p, const float *v, size_t v_stride, size_t n_keys,
                           size_t head_dim)
{
    size_t d = 0;

    for (; d + VALUES_WIDTH <= head_dim; d += VALUES_WIDTH)
        values_of(o + d, p, v + d, v_stride, n_keys, VALUES_WIDTH / WIDTH, 0xffff);
    for (; d + 4 * WIDTH <= head_dim; d += 4 * WIDTH)
        values_of(o + d, p, v + d, v_stride, n_keys, 4, 0xffff);
    for (; d < head_dim; d += WIDTH)
        values_of(o + d, p, v + d, v_stride, n_keys, 1, lanes_of(head_dim - d));
}
