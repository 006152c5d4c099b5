/* gpu_weights.h - weights to measure with, of every kind: random rows, quantised or encoded, and
 * packed as a node would do it, in blocks of 64 rows out of a small stock, each matrix its own
 * choice of them. So any weight of any matrix is known to the host without 20 GB of it. */
#ifndef GPU_WEIGHTS_H
#define GPU_WEIGHTS_H

#include "sy_cuda_slot.h"
#include "sy_dtype.h"

typedef struct gpu_weight_kind {
    sy_cuda_weights weights;
    sy_dtype dtype;
    const char *name;
} gpu_weight_kind;
enum { GPU_WEIGHT_KINDS = 5 };
extern const gpu_weight_kind gpu_weight_kinds[GPU_WEIGHT_KINDS]; /* bf16 first */

/* Rows of k inputs, whose sums of products with numbers within 1 are about 1. */
typedef struct gpu_stock {
    const gpu_weight_kind *kind;
    uint32_t k;
    size_t row_bytes;
    uint8_t *host, *device;
} gpu_stock;
gpu_stock gpu_stock_open(const gpu_weight_kind *kind, uint32_t k, uint64_t seed);
void gpu_stock_close(gpu_stock *stock);
/* All n rows of a part of matrix number `matrix`. packed: device memory. */
void gpu_stock_pack(void *packed, const gpu_stock *stock, sy_cuda_part part, uint32_t n,
                    uint32_t matrix, void *stream);
/* Which row of the stock is row `row` of that part of that matrix. */
size_t gpu_stock_row(uint32_t matrix, sy_cuda_part part, uint32_t row);

#endif
