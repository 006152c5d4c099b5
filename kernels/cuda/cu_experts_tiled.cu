/* cu_experts_tiled.cu - experts for many rows each: the tiles of sy_cu_tiled.h. */
#include "sy_cu_tiled.h"

template <class Side> struct batch_rows {
    const Side &side;
    const sy_cuda_batch &b;

    __device__ __forceinline__ const uint16_t *row(uint32_t r) const
    {
        return side.row(b, r);
    }
};

/* Grid: (tiles_max, row blocks / (SY_CU_WARPS * SY_CU_WARP_BLOCKS)). Of a warp past the last row
 * block nothing is stored: its outputs are past H. */
template <int HALVES, class Side>
__global__ void __launch_bounds__(sy_cu_tile_shape<HALVES>::THREADS,
                                  sy_cu_tile_shape<HALVES>::MIN_BLOCKS)
    tiled_kernel(Side side, sy_cuda_batch b)
{
    typedef typename sy_cu_tile_shape<HALVES>::stage stage;
    SY_SHARED(stage, stages, [sy_cu_tile_shape<HALVES>::STAGES]);
    float c[SY_CU_WARP_BLOCKS][SY_CU_HALF_EIGHTS][4] = {};

    if (blockIdx.x >= *b.n_tiles) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    sy_cu_tile<HALVES>(c, stages, side.weights(e), side.n_blocks(b), sy_cu_k_blocks(side.k(b)),
                       batch_rows<Side>{side, b}, tile.begin, tile.end);
    SY_UNROLL
    for (int i = 0; i < SY_CU_WARP_BLOCKS; i++) {
        SY_UNROLL
        for (int n = 0; n < SY_CU_HALF_EIGHTS; n++)
            sy_cu_store_sums(side, b, e, tile.begin + sy_cu_warp_rows() + n * 8, tile.end,
                             sy_cu_warp_block() + i, c[i][n]);
    }
}

template <int HALVES, class Side>
static int launch_halves(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks, void *stream)
{
    const uint32_t per_block = SY_CU_WARPS * SY_CU_WARP_BLOCKS;

    return SY_LAUNCH((tiled_kernel<HALVES, Side>),
                     dim3(b.tiles_max, (n_blocks + per_block - 1) / per_block),
                     dim3(sy_cu_tile_shape<HALVES>::THREADS), stream, side, b);
}

template <class Side>
static int launch_tiled(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                        sy_cuda_variant variant, void *stream)
{
    return variant == SY_CUDA_TILED_128 ? launch_halves<2>(side, b, n_blocks, stream)
                                        : launch_halves<1>(side, b, n_blocks, stream);
}

int sy_cu_up_tiled(const sy_cu_up &side, const sy_cuda_batch &batch, sy_cuda_variant variant,
                   void *stream)
{
    return launch_tiled(side, batch, (batch.ffn + 63) / 64 * 8, variant, stream);
}

int sy_cu_down_tiled(const sy_cu_down &side, const sy_cuda_batch &batch, sy_cuda_variant variant,
                     void *stream)
{
    return launch_tiled(side, batch, (batch.hidden + 15) / 16, variant, stream);
}
