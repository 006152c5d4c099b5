/* sy_ref.h - the scalar reference, for its own table and for the tails of vector loops: kernels/
 * only. What each operation computes is said in sy_kernels.h; the helpers here are the parts of it
 * that every implementation shares. */
#ifndef SY_REF_H
#define SY_REF_H

#include <math.h>

#include "sy_exp.h"
#include "sy_kernels.h"

/* A block of activations whose largest is below this counts as zeros: 127 / max would overflow. */
#define SY_ACT_MIN 0x1p-100f

#define SY_CLAMPED_SLOPE 1.702f /* of clamped_swiglu's sigmoid */

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

/* How a block of activations is rounded whose largest magnitude has these bits: as bits, an
 * infinity is above all numbers and a NaN above all. */
typedef struct sy_act_scale {
    float scale;   /* NaN when there is something that is no finite number: so is the output then */
    float inverse; /* what to multiply with; 0: every integer of the block is 0 */
} sy_act_scale;

static inline sy_act_scale sy_act_scale_of(uint32_t max_bits)
{
    float max;

    memcpy(&max, &max_bits, sizeof(max));
    if (!isfinite(max)) return (sy_act_scale){NAN, 0.0f};
    if (max < SY_ACT_MIN) return (sy_act_scale){0.0f, 0.0f};
    return (sy_act_scale){max / 127.0f, 127.0f / max};
}

/* Where a panel stores its column c. */
static inline size_t sy_panel_position(sy_dtype dtype, size_t c)
{
    if (dtype != SY_BF16) return c;
    return c < SY_PANEL / 2 ? 2 * c : 2 * (c - SY_PANEL / 2) + 1;
}

void sy_ref_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                   const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end);
void sy_ref_matmul_quant(float *y, size_t y_stride, const float *x, size_t x_stride,
                         const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                         size_t end);
void sy_ref_matmul_encoded(float *y, size_t y_stride, const float *x, size_t x_stride,
                           const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                           size_t end);
void sy_ref_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                     uint32_t k);
void sy_ref_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row, size_t T,
                      const sy_panels *w, size_t begin, size_t end);
void sy_ref_round_bf16(uint16_t *y, const float *x, size_t n);
void sy_ref_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                        const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                        size_t end);
void sy_ref_swiglu(float *h, const float *g, const float *u, size_t n);
void sy_ref_clamped_swiglu(float *h, const float *g, const float *u, float limit, size_t n);
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
