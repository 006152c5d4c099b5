/* sy_cu_quant_experts.h - experts whose weights are quantised: the kernels of cu_experts.cu and
 * cu_experts_tiled.cu over the products of sy_cu_quant.h. One .cu file a form includes it, so that
 * they compile side by side. */
#ifndef SY_CU_QUANT_EXPERTS_H
#define SY_CU_QUANT_EXPERTS_H

#include "sy_cu_quant.h"

/* Rows of a batch, as the side has them. */
template <class Side> struct sy_cu_batch_rows {
    const Side &side;
    const sy_cuda_batch &b;

    __device__ __forceinline__ const uint16_t *row(uint32_t r) const
    {
        return side.row(b, r);
    }
};

template <class Form, class Side>
static __device__ __forceinline__ sy_cu_row_block
sy_cu_find_row_block(const Side &side, const sy_cuda_expert &e, uint32_t block, uint32_t n_k_blocks)
{
    sy_cu_row_block r = {side.weights(e) + (size_t)block * n_k_blocks * Form::UINT4, {}};

    if (!Form::SCALES_INSIDE) {
        r.scale[0] = side.scales(e, 0, block, n_k_blocks);
        r.scale[1] = side.scales(e, 1, block, n_k_blocks);
    }
    return r;
}

/* Grid: (tiles_max, row blocks / SY_CU_WARPS), as of stream_kernel in cu_experts.cu. */
template <class Form, int NT, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32, sy_cu_stream_shape<Form, NT>::MIN_BLOCKS)
    sy_cu_stream_kernel(Side side, sy_cuda_batch b)
{
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;

    if (blockIdx.x >= *b.n_tiles || block >= side.n_blocks(b)) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    const uint32_t k = side.k(b);
    const sy_cu_row_block r =
        sy_cu_find_row_block<Form>(side, e, block, k / SY_CU_FORM_K + (k % SY_CU_FORM_K != 0));
    const uint16_t *token[NT];
    float c[NT][4] = {};

    sy_cu_find_tokens<NT>(token, sy_cu_batch_rows<Side>{side, b}, tile.begin, tile.end);
    sy_cu_stream_form<Form, NT>(c, r, token, k);
    SY_UNROLL
    for (int n = 0; n < NT; n++)
        sy_cu_store_sums(side, b, e, tile.begin + n * 8, tile.end, block, c[n]);
}

/* Grid: (tiles_max, row blocks / (SY_CU_WARPS * SY_CU_TILED_BLOCKS), parts of a tile). A warp past
 * the last row block keeps step with the others on that one's weights, and stores nothing. */
template <class Form, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32, 2)
    sy_cu_tiled_kernel(Side side, sy_cuda_batch b)
{
    SY_SHARED(sy_cu_quant_stage, stages, [SY_CU_TILED_STAGES]);
    const uint32_t first = (blockIdx.y * SY_CU_WARPS + threadIdx.x / 32) * SY_CU_TILED_BLOCKS;

    if (blockIdx.x >= *b.n_tiles) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    const uint32_t begin = tile.begin + blockIdx.z * SY_CU_TILED_TOKENS;
    const uint32_t end = min(tile.end, begin + SY_CU_TILED_TOKENS);
    const uint32_t k = side.k(b), n_blocks = side.n_blocks(b);
    const uint32_t n_k_blocks = k / SY_CU_FORM_K + (k % SY_CU_FORM_K != 0);
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4] = {};

    if (begin >= end) return;
    const sy_cu_two_blocks two = {
        sy_cu_find_row_block<Form>(side, e, min(first, n_blocks - 1), n_k_blocks),
        first + 1 < n_blocks ? n_k_blocks * Form::UINT4 : 0};
    sy_cu_tile_form<Form>(c, stages, two, sy_cu_batch_rows<Side>{side, b}, begin, end, k);
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) {
        if (first + i >= n_blocks) continue;
        SY_UNROLL
        for (int n = 0; n < SY_CU_TILED_EIGHTS; n++)
            sy_cu_store_sums(side, b, e, begin + n * 8, end, first + i, c[i][n]);
    }
}

/* ---- launches ---- */

template <class Form, class Side>
int sy_cu_launch_quant(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                       sy_cuda_variant variant, void *stream)
{
    const uint32_t per_block =
        variant >= SY_CUDA_TILED_64 ? SY_CU_WARPS * SY_CU_TILED_BLOCKS : SY_CU_WARPS;
    const dim3 grid(b.tiles_max, (n_blocks + per_block - 1) / per_block,
                    variant == SY_CUDA_TILED_128 ? 2 : 1);
    const dim3 block(SY_CU_WARPS * 32);

    switch (variant) {
    case SY_CUDA_TOKENS_8:
        return SY_LAUNCH((sy_cu_stream_kernel<Form, 1, Side>), grid, block, stream, side, b);
    case SY_CUDA_TOKENS_16:
        return SY_LAUNCH((sy_cu_stream_kernel<Form, 2, Side>), grid, block, stream, side, b);
    case SY_CUDA_TOKENS_32:
        return SY_LAUNCH((sy_cu_stream_kernel<Form, 4, Side>), grid, block, stream, side, b);
    case SY_CUDA_TOKENS_64:
        return SY_LAUNCH((sy_cu_stream_kernel<Form, 8, Side>), grid, block, stream, side, b);
    default: return SY_LAUNCH((sy_cu_tiled_kernel<Form, Side>), grid, block, stream, side, b);
    }
}

#endif
