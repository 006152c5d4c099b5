/* cu_linear_tiled.cu - the trunk's bf16 matrices times many rows: the tiles of sy_cu_tiled.h. */
#include "sy_cu_linear.h"
#include "sy_cu_tiled.h"

/* Grid: (rows / the tile's, row blocks / (SY_CU_WARPS * SY_CU_WARP_BLOCKS)). */
template <int HALVES, class Side>
__global__ void __launch_bounds__(sy_cu_tile_shape<HALVES>::THREADS,
                                  sy_cu_tile_shape<HALVES>::MIN_BLOCKS)
    linear_tiled_kernel(Side side, sy_cu_linear l)
{
    typedef typename sy_cu_tile_shape<HALVES>::stage stage;
    SY_SHARED(stage, stages, [sy_cu_tile_shape<HALVES>::STAGES]);
    const uint32_t begin = blockIdx.x * sy_cu_tile_shape<HALVES>::ROWS, n_rows = *l.n_rows;
    float c[SY_CU_WARP_BLOCKS][SY_CU_HALF_EIGHTS][4] = {};

    if (begin >= n_rows) return;
    const uint32_t end = min(begin + sy_cu_tile_shape<HALVES>::ROWS, n_rows);
    sy_cu_tile<HALVES>(c, stages, l.weights, l.n_blocks, sy_cu_k_blocks(l.k), l, begin, end);
    SY_UNROLL
    for (int i = 0; i < SY_CU_WARP_BLOCKS; i++) {
        if (sy_cu_warp_block() + i >= l.n_blocks) continue;
        SY_UNROLL
        for (int n = 0; n < SY_CU_HALF_EIGHTS; n++)
            sy_cu_store_rows(side, begin + sy_cu_warp_rows() + n * 8, end, sy_cu_warp_block() + i,
                             c[i][n]);
    }
}

template <int HALVES, class Side>
static int launch_halves(const Side &side, const sy_cu_linear &l, uint32_t rows_max, void *stream)
{
    const uint32_t rows = sy_cu_tile_shape<HALVES>::ROWS;
    const uint32_t per_block = SY_CU_WARPS * SY_CU_WARP_BLOCKS;

    return SY_LAUNCH((linear_tiled_kernel<HALVES, Side>),
                     dim3((rows_max + rows - 1) / rows, (l.n_blocks + per_block - 1) / per_block),
                     dim3(sy_cu_tile_shape<HALVES>::THREADS), stream, side, l);
}

template <class Side>
static int launch_tiled(const Side &side, const sy_cu_linear &l, uint32_t rows_max,
                        sy_cuda_variant variant, void *stream)
{
    return variant == SY_CUDA_TILED_128 ? launch_halves<2>(side, l, rows_max, stream)
                                        : launch_halves<1>(side, l, rows_max, stream);
}

int sy_cu_linear_tiled(const sy_cu_plain &side, const sy_cu_linear &l, uint32_t rows_max,
                       sy_cuda_variant variant, void *stream)
{
    return launch_tiled(side, l, rows_max, variant, stream);
}

int sy_cu_linear_tiled(const sy_cu_gated &side, const sy_cu_linear &l, uint32_t rows_max,
                       sy_cuda_variant variant, void *stream)
{
    return launch_tiled(side, l, rows_max, variant, stream);
}
