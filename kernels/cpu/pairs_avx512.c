/* pairs_avx512.c - bf16 activations with AVX-512: the instruction for pairs where there is one,
 * otherwise as with AVX2. */
#include "cpu/sy_cpu.h"
#include "sy_pairs.h"

void sy_avx512_round_bf16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = pairs_round(x[i]);
}

void sy_avx512_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                           const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                           size_t end)
{
    if (__builtin_cpu_supports("avx512bf16")) {
        sy_pairs_matmul_bf16(y, y_stride, x, x_stride, x_row, T, w, begin, end);
    } else {
        sy_avx2_matmul_bf16(y, y_stride, x, x_stride, x_row, T, w, begin, end);
    }
}
