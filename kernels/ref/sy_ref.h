/* sy_ref.h - the scalar reference, for its own table and for the tails of vector loops: kernels/
 * only. What each operation computes is said in sy_kernels.h; the helpers here are the parts of it
 * that every implementation shares. */
#ifndef SY_REF_H
#define SY_REF_H

#include <math.h>

#include "sy_exp.h"
#include "sy_kernels.h"

#define SY_PARTIALS 16 /* element i of a sum goes to partial i % SY_PARTIALS */

/* Adds the partials pairwise. p is used up. */
static inline float sy_partials_sum(float p[SY_PARTIALS])
{
    for (size_t half = SY_PARTIALS / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++) p[j] += p[j + half];
    return p[0];
}

/* r of rmsnorm, from the sum of squares. */
static inline float sy_rms_factor(float sum, float eps, size_t n)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* Where a panel stores its column c. */
static inline size_t sy_panel_position(sy_dtype dtype, size_t c)
{
    if (dtype != SY_BF16) return c;
    return c < SY_PANEL / 2 ? 2 * c : 2 * (c - SY_PANEL / 2) + 1;
}

void sy_ref_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                   const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end);
void sy_ref_swiglu(float *h, const float *g, const float *u, size_t n);
void sy_ref_rmsnorm(float *y, const float *x, const float *w, float eps, size_t n);
void sy_ref_softmax(float *x, size_t n);
float sy_ref_dot(const float *a, const float *b, size_t n);
void sy_ref_axpy(float *y, const float *x, float a, size_t n);
void sy_ref_add(float *y, const float *x, size_t n);
void sy_ref_rope(float *x, const float *c, const float *s, size_t half);
void sy_ref_attn_scores(float *score, const float *q, const float *k, size_t k_stride,
                        size_t n_keys, size_t head_dim, float scale);
void sy_ref_attn_values(float *o, const float *p, const float *v, size_t v_stride, size_t n_keys,
                        size_t head_dim);
size_t sy_ref_argmax(const float *x, size_t n);
void sy_ref_vexp(float *y, const float *x, size_t n);
int sy_ref_all_finite(const float *x, size_t n);

extern const sy_kernels sy_kernels_ref;

#endif
