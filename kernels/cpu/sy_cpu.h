/* sy_cpu.h - the vector implementations, one a set of instructions: kernels/ only. Their functions
 * are declared by the table they fill; what each computes is said in sy_kernels.h. */
#ifndef SY_CPU_H
#define SY_CPU_H

#include "sy_kernels.h"

extern const sy_kernels sy_kernels_avx2;        /* AVX2, FMA, F16C */
extern const sy_kernels sy_kernels_avx512;      /* AVX-512 F, BW, VL, DQ; int8 products with AVX2 */
extern const sy_kernels sy_kernels_avx512_vnni; /* the same, and VNNI for int8 products */

#define SY_CPU_DECLARE(isa)                                                                        \
    void sy_##isa##_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,             \
                           const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,      \
                           size_t end);                                                            \
    void sy_##isa##_matmul_quant(float *y, size_t y_stride, const float *x, size_t x_stride,       \
                                 const uint32_t *x_row, size_t T, const sy_panels *w,              \
                                 size_t begin, size_t end);                                        \
    void sy_##isa##_matmul_encoded(float *y, size_t y_stride, const float *x, size_t x_stride,     \
                                   const uint32_t *x_row, size_t T, const sy_panels *w,            \
                                   size_t begin, size_t end);                                      \
    void sy_##isa##_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride,         \
                             size_t n, uint32_t k);                                                \
    void sy_##isa##_round_bf16(uint16_t *y, const float *x, size_t n);                             \
    void sy_##isa##_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,     \
                                const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, \
                                size_t end);                                                       \
    void sy_##isa##_swiglu(float *h, const float *g, const float *u, size_t n);                    \
    void sy_##isa##_clamped_swiglu(float *h, const float *g, const float *u, float limit,          \
                                   size_t n);                                                      \
    void sy_##isa##_rmsnorm(float *y, const float *x, const float *w, float eps, size_t n);        \
    void sy_##isa##_softmax(float *x, size_t n);                                                   \
    float sy_##isa##_dot(const float *a, const float *b, size_t n);                                \
    void sy_##isa##_axpy(float *y, const float *x, float a, size_t n);                             \
    void sy_##isa##_add(float *y, const float *x, size_t n);                                       \
    void sy_##isa##_rope(float *x, const float *c, const float *s, size_t half);                   \
    void sy_##isa##_attn_scores(float *score, const float *q, const float *k, size_t k_stride,     \
                                size_t n_keys, size_t head_dim, float scale);                      \
    void sy_##isa##_attn_values(float *o, const float *p, const float *v, size_t v_stride,         \
                                size_t n_keys, size_t head_dim);                                   \
    size_t sy_##isa##_argmax(const float *x, size_t n);                                            \
    void sy_##isa##_vexp(float *y, const float *x, size_t n);                                      \
    int sy_##isa##_all_finite(const float *x, size_t n)

SY_CPU_DECLARE(avx2);
SY_CPU_DECLARE(avx512);

void sy_avx2_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row,
                       size_t T, const sy_panels *w, size_t begin, size_t end);
/* Needs AVX512_BF16 besides. */
void sy_pairs_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                          const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                          size_t end);
void sy_vnni_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row,
                       size_t T, const sy_panels *w, size_t begin, size_t end);

#define SY_CPU_INLINE static inline __attribute__((always_inline))

#endif
