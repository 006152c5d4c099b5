/* sy_cu_quant_linear.h - the trunk's matrices whose weights are quantised: the kernels of
 * cu_linear.cu over the products of sy_cu_quant.h, with the bits of an expert's. One .cu file a
 * form includes it, so that they compile side by side. */
#ifndef SY_CU_QUANT_LINEAR_H
#define SY_CU_QUANT_LINEAR_H

#include "sy_cu_linear.h"
#include "sy_cu_quant.h"

template <class Form, class Side>
static __device__ __forceinline__ sy_cu_row_block sy_cu_linear_block(const sy_cu_linear &l,
                                                                     uint32_t block)
{
    const uint32_t n_k_blocks = l.k / SY_CU_FORM_K + (l.k % SY_CU_FORM_K != 0);
    sy_cu_row_block r = {l.weights + (size_t)block * n_k_blocks * Form::UINT4, {}};

    if (!Form::SCALES_INSIDE) {
        const size_t at = (size_t)(block * Side::ROWS / 128) * n_k_blocks;
        r.scale[0] = l.scale[0] + at;
        r.scale[1] = l.scale[1] + at;
    }
    return r;
}

/* Grid: (rows / (8 NT), row blocks / SY_CU_WARPS). */
template <class Form, int NT, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32, sy_cu_stream_shape<Form, NT>::MIN_BLOCKS)
    sy_cu_linear_stream_kernel(Side side, sy_cu_linear l)
{
    const uint32_t begin = blockIdx.x * NT * 8, end = *l.n_rows;
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;

    if (begin >= end || block >= l.n_blocks) return;
    const sy_cu_row_block r = sy_cu_linear_block<Form, Side>(l, block);
    const uint16_t *token[NT];
    float c[NT][4] = {};

    sy_cu_find_tokens<NT>(token, l, begin, end);
    sy_cu_stream_form<Form, NT>(c, r, token, l.k);
    SY_UNROLL
    for (int n = 0; n < NT; n++) sy_cu_store_rows(side, begin + n * 8, end, block, c[n]);
}

/* Grid: (rows / SY_CU_TILED_TOKENS, row blocks / (SY_CU_WARPS * SY_CU_TILED_BLOCKS)). A warp past
 * the last row block keeps step with the others on that one's weights, and stores nothing. */
template <class Form, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32, 2)
    sy_cu_linear_tiled_kernel(Side side, sy_cu_linear l)
{
    SY_SHARED(sy_cu_quant_stage, stages, [SY_CU_TILED_STAGES]);
    const uint32_t first = (blockIdx.y * SY_CU_WARPS + threadIdx.x / 32) * SY_CU_TILED_BLOCKS;
    const uint32_t begin = blockIdx.x * SY_CU_TILED_TOKENS, n_rows = *l.n_rows;
    const uint32_t n_k_blocks = l.k / SY_CU_FORM_K + (l.k % SY_CU_FORM_K != 0);
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4] = {};

    if (begin >= n_rows) return;
    const uint32_t end = min(begin + SY_CU_TILED_TOKENS, n_rows);
    const sy_cu_two_blocks two = {sy_cu_linear_block<Form, Side>(l, min(first, l.n_blocks - 1)),
                                  first + 1 < l.n_blocks ? n_k_blocks * Form::UINT4 : 0};
    sy_cu_tile_form<Form>(c, stages, two, l, begin, end, l.k);
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) {
        if (first + i >= l.n_blocks) continue;
        SY_UNROLL
        for (int n = 0; n < SY_CU_TILED_EIGHTS; n++)
            sy_cu_store_rows(side, begin + n * 8, end, first + i, c[i][n]);
    }
}

template <class Form, int NT, class Side>
static int sy_cu_launch_linear_stream(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                                      void *stream)
{
    const dim3 grid((rows_max + NT * 8 - 1) / (NT * 8),
                    (l.n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS);

    return SY_LAUNCH((sy_cu_linear_stream_kernel<Form, NT, Side>), grid, dim3(SY_CU_WARPS * 32),
                     stream, side, l);
}

template <class Form, class Side>
static int sy_cu_launch_linear_tiled(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                                     void *stream)
{
    const uint32_t per_block = SY_CU_WARPS * SY_CU_TILED_BLOCKS;
    const dim3 grid((rows_max + SY_CU_TILED_TOKENS - 1) / SY_CU_TILED_TOKENS,
                    (l.n_blocks + per_block - 1) / per_block);

    return SY_LAUNCH((sy_cu_linear_tiled_kernel<Form, Side>), grid, dim3(SY_CU_WARPS * 32), stream,
                     side, l);
}

template <class Form, class Side>
int sy_cu_launch_linear(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                        sy_cuda_variant variant, void *stream)
{
    switch (variant) {
    case SY_CUDA_TOKENS_8: return sy_cu_launch_linear_stream<Form, 1>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_16: return sy_cu_launch_linear_stream<Form, 2>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_32: return sy_cu_launch_linear_stream<Form, 4>(side, l, rows_max, stream);
    case SY_CUDA_TOKENS_64: return sy_cu_launch_linear_stream<Form, 8>(side, l, rows_max, stream);
    default: return sy_cu_launch_linear_tiled<Form>(side, l, rows_max, stream);
    }
}

#endif
