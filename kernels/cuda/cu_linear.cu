/* cu_linear.cu - the trunk's matrices times rows: a warp streams one row block of packed weights
 * past the rows of a tile, as the experts' kernels do, and with their bits. */
#include "sy_cu_product.h"
#include "sy_cuda_trunk.h"

/* What becomes of the two sums that a lane has of one row: rows g and g + 8 of a row block. */
struct sy_cu_plain {
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

/* Grid: (rows / (8 NT), row blocks / SY_CU_WARPS). */
template <int NT, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32)
    linear_kernel(Side side, const uint16_t *x, const uint4 *weights, uint32_t n_blocks,
                  uint32_t n_k_blocks, const uint32_t *n_rows)
{
    const uint32_t lane = threadIdx.x % 32, begin = blockIdx.x * NT * 8, end = *n_rows;
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;
    const uint16_t *token[NT];
    float c[NT][4] = {};

    if (begin >= end || block >= n_blocks) return;
    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t r = begin + n * 8 + lane / 4;
        token[n] = r < end ? x + (size_t)r * n_k_blocks * 64 + lane % 4 * 16 : nullptr;
    }
    sy_cu_stream_weights<NT>(c, weights + (size_t)block * n_k_blocks * SY_CU_BLOCK_UINT4 + lane,
                             token, n_k_blocks);
    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        SY_UNROLL
        for (int q = 0; q < 2; q++) {
            const uint32_t r = begin + n * 8 + lane % 4 * 2 + q;
            if (r < end) side.store(r, block, lane / 4, c[n][q], c[n][q + 2]);
        }
    }
}

template <int NT, class Side>
static int launch_tiles(const Side &side, const uint16_t *x, const sy_cuda_matrix *w,
                        uint32_t n_blocks, const sy_cuda_row_count *rows, void *stream)
{
    const dim3 grid((rows->max + NT * 8 - 1) / (NT * 8),
                    (n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS);

    return SY_LAUNCH((linear_kernel<NT, Side>), grid, dim3(SY_CU_WARPS * 32), stream, side, x,
                     static_cast<const uint4 *>(w->weights), n_blocks, (w->k + 63) / 64, rows->n);
}

template <class Side>
static int launch_linear(const Side &side, const uint16_t *x, const sy_cuda_matrix *w,
                         uint32_t n_blocks, sy_cuda_variant variant, const sy_cuda_row_count *rows,
                         void *stream)
{
    if (rows->max == 0) return 0;
    switch (variant) {
    case SY_CUDA_TOKENS_8: return launch_tiles<1>(side, x, w, n_blocks, rows, stream);
    case SY_CUDA_TOKENS_16: return launch_tiles<2>(side, x, w, n_blocks, rows, stream);
    case SY_CUDA_TOKENS_32: return launch_tiles<4>(side, x, w, n_blocks, rows, stream);
    default: return launch_tiles<8>(side, x, w, n_blocks, rows, stream);
    }
}

extern "C" int sy_cuda_linear(float *y, const uint16_t *x, const sy_cuda_matrix *w, float divisor,
                              sy_cuda_variant variant, const sy_cuda_row_count *rows, void *stream)
{
    const sy_cu_plain side = {y, w->bias, divisor, w->n};

    return launch_linear(side, x, w, (w->n + 15) / 16, variant, rows, stream);
}

extern "C" int sy_cuda_linear_swiglu(uint16_t *h, const uint16_t *x, const sy_cuda_matrix *w,
                                     sy_cuda_variant variant, const sy_cuda_row_count *rows,
                                     void *stream)
{
    const sy_cu_gated side = {h, w->n};

    return launch_linear(side, x, w, (w->n + 63) / 64 * 8, variant, rows, stream);
}
