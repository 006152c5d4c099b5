/* gpu_weights.c - a stock of rows in the form that a checkpoint or a node has them. */
#include "gpu_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_measure.h"
#include "sy_kernels.h"

enum { STOCK = 8, STOCK_ROWS = 64 };

const gpu_weight_kind gpu_weight_kinds[GPU_WEIGHT_KINDS] = {
    {SY_CUDA_BF16, SY_BF16, "bf16"}, {SY_CUDA_Q8, SY_Q8, "q8"},          {SY_CUDA_Q4, SY_Q4, "q4"},
    {SY_CUDA_FP8, SY_FP8, "fp8"},    {SY_CUDA_MXFP4, SY_MXFP4, "mxfp4"},
};

/* Rows of the stock meet in any order, so all of them have the same factors. */
static void encode_fp8(uint8_t *row, const uint16_t *plain, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t block = i / SY_FP8_BLOCK;
        const float factor = (float)(5 + block % 3) / (512.0f * sqrtf((float)k));
        row[i] = sy_f32_to_f8_e4m3(sy_bf16_to_f32(plain[i]) / factor);
        memcpy(row + k + block * sizeof(factor), &factor, sizeof(factor));
    }
}

/* Any codes, the root of whose mean square is about 3, under one of two factors. */
static void encode_mxfp4(uint8_t *row, uint32_t k, gpu_random *r)
{
    const uint32_t n_blocks = (k + SY_QUANT_BLOCK - 1) / SY_QUANT_BLOCK;
    const int least = 126 - ilogbf(sqrtf((float)k));

    for (uint32_t i = 0; i < n_blocks * 16; i++) row[i] = (uint8_t)gpu_random_u32(r);
    for (uint32_t i = 0; i < n_blocks; i++)
        row[n_blocks * 16 + i] = (uint8_t)(least - (int)(gpu_random_u32(r) % 2));
}

static void fill_stock(const gpu_stock *s, const uint16_t *plain, size_t n, gpu_random *r)
{
    const gpu_weight_kind *kind = s->kind;

    if (kind->dtype == SY_BF16) {
        memcpy(s->host, plain, n * s->row_bytes);
    } else if (sy_dtype_is_quant(kind->dtype)) {
        if (sy_quantize_rows(s->host, kind->dtype, plain, SY_BF16, n, s->k) != SY_OK)
            gpu_die("random weights cannot be held as %s", kind->name);
    } else {
        for (size_t i = 0; i < n; i++) {
            if (kind->dtype == SY_FP8)
                encode_fp8(s->host + i * s->row_bytes, plain + i * s->k, s->k);
            else
                encode_mxfp4(s->host + i * s->row_bytes, s->k, r);
        }
    }
}

gpu_stock gpu_stock_open(const gpu_weight_kind *kind, uint32_t k, uint64_t seed)
{
    const size_t n = (size_t)STOCK * STOCK_ROWS;
    gpu_stock s = {.kind = kind, .k = k, .row_bytes = sy_cuda_row_bytes(kind->weights, k)};
    uint16_t *plain = gpu_host(n * k * 2);
    gpu_random r = {seed};

    for (size_t i = 0; i < n * k; i++)
        plain[i] =
            sy_f32_to_bf16((float)(int32_t)gpu_random_u32(&r) * 0x1p-31f * 3.0f / sqrtf((float)k));
    if (s.row_bytes != sy_dtype_row_bytes(kind->dtype, k)) gpu_die("rows of %s differ", kind->name);
    s.host = gpu_host(n * s.row_bytes);
    fill_stock(&s, plain, n, &r);
    s.device = gpu_alloc(n * s.row_bytes);
    gpu_put(s.device, s.host, n * s.row_bytes);
    free(plain);
    return s;
}

void gpu_stock_close(gpu_stock *s)
{
    free(s->host);
    gpu_free(s->device);
}

/* Which block of the stock has rows [64 * group, ...) of a part of a matrix. */
static uint32_t block_of(uint32_t matrix, sy_cuda_part part, uint32_t group)
{
    return (matrix * 2654435761u + (uint32_t)part * 40503u + group * 69069u) >> 7 & (STOCK - 1);
}

size_t gpu_stock_row(uint32_t matrix, sy_cuda_part part, uint32_t row)
{
    return (size_t)block_of(matrix, part, row / STOCK_ROWS) * STOCK_ROWS + row % STOCK_ROWS;
}

void gpu_stock_pack(void *packed, const gpu_stock *s, sy_cuda_part part, uint32_t n,
                    uint32_t matrix, void *stream)
{
    for (uint32_t row = 0; row < n; row += STOCK_ROWS)
        gpu_check((cudaError_t)sy_cuda_rows_pack(
                      packed, s->device + gpu_stock_row(matrix, part, row) * s->row_bytes,
                      s->kind->weights, part, n, s->k, row, SY_MIN(n - row, (uint32_t)STOCK_ROWS),
                      stream),
                  "packing rows");
}
