/* sy_cu_linear.h - what the kernels of the trunk's matrices share: which product is asked for, and
 * what becomes of the two sums that a lane has of one row: rows g and g + 8 of a row block. */
#ifndef SY_CU_LINEAR_H
#define SY_CU_LINEAR_H

#include "sy_cu_product.h"
#include "sy_cuda_trunk.h"

/* ROWS: of the matrix, or of Gate and as many of Up, that a row block has. */
struct sy_cu_plain {
    enum { ROWS = 16 };
    float *y;
    const float *bias;
    float divisor;
    uint32_t n;

    __device__ __forceinline__ void store_one(size_t row, uint32_t o, float v) const
    {
        if (o < n) y[row * n + o] = sy_cu_with_bias(v, bias, o) / divisor;
    }
    __device__ __forceinline__ void store(size_t row, uint32_t block, uint32_t g, float low,
                                          float high) const
    {
        store_one(row, block * 16 + g, low);
        store_one(row, block * 16 + g + 8, high);
    }
};

/* Gate in the low rows, Up in the high ones; outputs past F are the padding of h. */
struct sy_cu_gated {
    enum { ROWS = 8 };
    uint16_t *h;
    uint32_t n;

    __device__ __forceinline__ void store(size_t row, uint32_t block, uint32_t g, float low,
                                          float high) const
    {
        const uint32_t f = block * 8 + g;

        h[row * (sy_cu_k_blocks(n) * 64) + f] =
            f < n ? sy_cu_to_bf16(sy_cu_swiglu(low, high)) : (uint16_t)0;
    }
};

/* Rows of activations, [*n_rows, padded(k)], times a packed matrix. */
struct sy_cu_linear {
    const uint16_t *x;
    const uint4 *weights;
    const float *scale[2]; /* FP8: of what row blocks have in their halves; else NULL */
    uint32_t n_blocks, k;  /* row blocks; inputs */
    const uint32_t *n_rows;

    __device__ __forceinline__ const uint16_t *row(uint32_t r) const
    {
        return x + (size_t)r * (sy_cu_k_blocks(k) * 64);
    }
};

/* What a lane has of one row block for eight rows from `row` on, those that are before `end`. */
template <class Side>
static __device__ __forceinline__ void sy_cu_store_rows(const Side &side, uint32_t row,
                                                        uint32_t end, uint32_t block,
                                                        const float c[4])
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int q = 0; q < 2; q++) {
        const uint32_t r = row + lane % 4 * 2 + q;
        if (r < end) side.store(r, block, lane / 4, c[q], c[q + 2]);
    }
}

/* bf16 weights in tiles, cu_linear_tiled.cu; for cu_linear.cu alone. rows_max >= 1. */
int sy_cu_linear_tiled(const sy_cu_plain &side, const sy_cu_linear &l, uint32_t rows_max,
                       sy_cuda_variant variant, void *stream);
int sy_cu_linear_tiled(const sy_cu_gated &side, const sy_cu_linear &l, uint32_t rows_max,
                       sy_cuda_variant variant, void *stream);

/* Quantised weights, every variant: cu_linear_q8.cu and those beside it, which have them for
 * sy_cu_plain and sy_cu_gated; for cu_linear.cu alone. rows_max >= 1. */
template <class Form, class Side>
int sy_cu_launch_linear(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                        sy_cuda_variant variant, void *stream);

#endif
