/* cu_experts.cu - experts for few rows each, where the time is that of reading the weights: a warp
 * streams one row block of packed weights past the tokens of a tile, straight into mma.sync. No
 * shared memory and no barriers, so warps drift apart and keep loads in flight. */
#include "sy_cu_product.h"

/* A lane's token of each eight of the tile, from where its inputs begin; NULL: past the tile. */
template <int NT, class Side>
static __device__ __forceinline__ void find_tokens(const uint16_t *token[NT], const Side &side,
                                                   const sy_cuda_batch &b, sy_cuda_tile tile)
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t r = tile.begin + n * 8 + lane / 4;
        token[n] = r < tile.end ? side.row(b, r) + lane % 4 * 16 : nullptr;
    }
}

/* Grid: (tiles_max, row blocks / SY_CU_WARPS). Tiles of one expert are neighbours in x, so that
 * they run together and its weights come from L2 after the first. */
template <int NT, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32) stream_kernel(Side side, sy_cuda_batch b)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;

    if (blockIdx.x >= *b.n_tiles || block >= side.n_blocks(b)) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    const uint32_t n_k_blocks = sy_cu_k_blocks(side.k(b));
    const uint4 *from = side.weights(e) + (size_t)block * n_k_blocks * SY_CU_BLOCK_UINT4 + lane;
    const uint16_t *token[NT];
    float c[NT][4] = {};

    find_tokens<NT>(token, side, b, tile);
    sy_cu_stream_weights<NT>(c, from, token, n_k_blocks);
    SY_UNROLL
    for (int n = 0; n < NT; n++)
        sy_cu_store_sums(side, b, e, tile.begin + n * 8, tile.end, block, c[n]);
}

template <class Side>
static int launch_streaming(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                            sy_cuda_variant variant, void *stream)
{
    const dim3 grid(b.tiles_max, (n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS);
    const dim3 block(SY_CU_WARPS * 32);

    switch (variant) {
    case SY_CUDA_TOKENS_8: return SY_LAUNCH((stream_kernel<1, Side>), grid, block, stream, side, b);
    case SY_CUDA_TOKENS_16:
        return SY_LAUNCH((stream_kernel<2, Side>), grid, block, stream, side, b);
    case SY_CUDA_TOKENS_32:
        return SY_LAUNCH((stream_kernel<4, Side>), grid, block, stream, side, b);
    default: return SY_LAUNCH((stream_kernel<8, Side>), grid, block, stream, side, b);
    }
}

static int launch_tiled(const sy_cu_up &side, const sy_cuda_batch &b, sy_cuda_variant variant,
                        void *stream)
{
    return sy_cu_up_tiled(side, b, variant, stream);
}

static int launch_tiled(const sy_cu_down &side, const sy_cuda_batch &b, sy_cuda_variant variant,
                        void *stream)
{
    return sy_cu_down_tiled(side, b, variant, stream);
}

template <class Side>
static int launch(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                  sy_cuda_variant variant, void *stream)
{
    if (b.tiles_max == 0) return 0;
    switch (b.weights) {
    case SY_CUDA_Q8: return sy_cu_launch_quant<sy_cu_q8>(side, b, n_blocks, variant, stream);
    case SY_CUDA_Q4: return sy_cu_launch_quant<sy_cu_q4>(side, b, n_blocks, variant, stream);
    case SY_CUDA_FP8: return sy_cu_launch_quant<sy_cu_fp8>(side, b, n_blocks, variant, stream);
    case SY_CUDA_MXFP4: return sy_cu_launch_quant<sy_cu_mxfp4>(side, b, n_blocks, variant, stream);
    default:
        if (variant >= SY_CUDA_TILED_64) return launch_tiled(side, b, variant, stream);
        return launch_streaming(side, b, n_blocks, variant, stream);
    }
}

extern "C" int sy_cuda_up(uint16_t *h, const uint16_t *x, const uint32_t *x_row,
                          const sy_cuda_batch *batch, sy_cuda_variant variant, void *stream)
{
    const sy_cu_up side = {h, x, x_row};

    return launch(side, *batch, (batch->ffn + 63) / 64 * 8, variant, stream);
}

extern "C" int sy_cuda_down(float *y, const uint16_t *h, const sy_cuda_batch *batch,
                            sy_cuda_variant variant, void *stream)
{
    const sy_cu_down side = {y, h};

    return launch(side, *batch, (batch->hidden + 15) / 16, variant, stream);
}
