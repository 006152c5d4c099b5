/* cu_linear.cu - the trunk's matrices times rows: a warp streams one row block of packed weights
 * past the rows of a tile, as the experts' kernels do, and with their bits. */
#include "sy_cu_linear.h"
#include "sy_cuda_slot.h"

/* Grid: (rows / (8 NT), row blocks / SY_CU_WARPS). */
template <int NT, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32) linear_kernel(Side side, sy_cu_linear l)
{
    const uint32_t lane = threadIdx.x % 32, begin = blockIdx.x * NT * 8, end = *l.n_rows;
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;
    const uint32_t n_k_blocks = sy_cu_k_blocks(l.k);
    const uint16_t *token[NT];
    float c[NT][4] = {};

    if (begin >= end || block >= l.n_blocks) return;
    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t r = begin + n * 8 + lane / 4;
        token[n] = r < end ? l.row(r) + lane % 4 * 16 : nullptr;
    }
    sy_cu_stream_weights<NT>(c, l.weights + (size_t)block * n_k_blocks * SY_CU_BLOCK_UINT4 + lane,
                             token, n_k_blocks);
    SY_UNROLL
    for (int n = 0; n < NT; n++) sy_cu_store_rows(side, begin + n * 8, end, block, c[n]);
}

template <int NT, class Side>
static int launch_tiles(const Side &side, const sy_cu_linear &l, uint32_t rows_max, void *stream)
{
    const dim3 grid((rows_max + NT * 8 - 1) / (NT * 8),
                    (l.n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS);

    return SY_LAUNCH((linear_kernel<NT, Side>), grid, dim3(SY_CU_WARPS * 32), stream, side, l);
}

template <class Side>
static int launch_bf16(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                       sy_cuda_variant variant, void *stream)
{
    switch (variant) {
    case SY_CUDA_TOKENS_8: return launch_tiles<1>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_16: return launch_tiles<2>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_32: return launch_tiles<4>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_64: return launch_tiles<8>(side, l, rows_max, stream);
    default: return sy_cu_linear_tiled(side, l, rows_max, variant, stream);
    }
}

template <class Side>
static int launch(const Side &side, const sy_cu_linear &l, sy_cuda_weights type, uint32_t rows_max,
                  sy_cuda_variant variant, void *stream)
{
    if (rows_max == 0) return 0;
    switch (type) {
    case SY_CUDA_Q8: return sy_cu_launch_linear<sy_cu_q8>(side, l, rows_max, variant, stream);
    case SY_CUDA_Q4: return sy_cu_launch_linear<sy_cu_q4>(side, l, rows_max, variant, stream);
    case SY_CUDA_FP8: return sy_cu_launch_linear<sy_cu_fp8>(side, l, rows_max, variant, stream);
    case SY_CUDA_MXFP4: return sy_cu_launch_linear<sy_cu_mxfp4>(side, l, rows_max, variant, stream);
    default: return launch_bf16(side, l, rows_max, variant, stream);
    }
}

/* low, high: what row blocks have in their halves. */
static sy_cu_linear product_of(const uint16_t *x, const sy_cuda_matrix *w, uint32_t n_blocks,
                               sy_cuda_part low, sy_cuda_part high, const sy_cuda_row_count *rows)
{
    const uint8_t *data = static_cast<const uint8_t *>(w->weights);
    sy_cu_linear l = {x, static_cast<const uint4 *>(w->weights), {}, n_blocks, w->k, rows->n};

    if (w->type == SY_CUDA_FP8) {
        const sy_cuda_part part[2] = {low, high};
        for (int i = 0; i < 2; i++)
            l.scale[i] = reinterpret_cast<const float *>(
                data + sy_cuda_scale_offset(w->type, part[i], w->n, w->k));
    }
    return l;
}

extern "C" int sy_cuda_linear(float *y, const uint16_t *x, const sy_cuda_matrix *w, float divisor,
                              sy_cuda_variant variant, const sy_cuda_row_count *rows, void *stream)
{
    const sy_cu_plain side = {y, w->bias, divisor, w->n};
    const sy_cu_linear l = product_of(x, w, (w->n + 15) / 16, SY_CUDA_DOWN, SY_CUDA_DOWN, rows);

    return launch(side, l, w->type, rows->max, variant, stream);
}

extern "C" int sy_cuda_linear_swiglu(uint16_t *h, const uint16_t *x, const sy_cuda_matrix *w,
                                     sy_cuda_variant variant, const sy_cuda_row_count *rows,
                                     void *stream)
{
    const sy_cu_gated side = {h, w->n};
    const sy_cu_linear l = product_of(x, w, (w->n + 63) / 64 * 8, SY_CUDA_GATE, SY_CUDA_UP, rows);

    return launch(side, l, w->type, rows->max, variant, stream);
}
