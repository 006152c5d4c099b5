/* cu_experts_tiled.cu - experts for many rows each: four warps, each with two row blocks, share 64
 * tokens, whose inputs go through shared memory three blocks of 64 deep. Weights never do: no two
 * warps want the same ones. */
#include "sy_cu_product.h"

enum {
    TOKENS = 64,
    EIGHTS = TOKENS / 8,
    STAGES = 3,
    BLOCKS = 2,              /* row blocks a warp */
    ROW_UINT4 = 64 * 2 / 16, /* of one token, one k block */
    PITCH_UINT4 = 9,         /* and one apart: the lanes of a quarter warp then read all banks */
    THREADS = SY_CU_WARPS * 32,
    MIN_BLOCKS = 2, /* a multiprocessor: without it ptxas spills for the sake of a third */
    COPIES = TOKENS * ROW_UINT4 / THREADS /* a thread, a stage */
};
typedef uint4 sy_cu_stage[TOKENS][PITCH_UINT4];

static __device__ __forceinline__ uint32_t token_of_copy(int i)
{
    return i * (TOKENS / COPIES) + threadIdx.x / ROW_UINT4;
}

/* Where this thread copies from: part threadIdx % 8 of its tokens. Past the tile the address is
 * that of the last token, of which nothing is read. */
template <class Side>
static __device__ __forceinline__ void find_sources(const uint4 *source[COPIES], const Side &side,
                                                    const sy_cuda_batch &b, sy_cuda_tile tile)
{
    SY_UNROLL
    for (int i = 0; i < COPIES; i++) {
        const uint32_t r = min(tile.begin + token_of_copy(i), tile.end - 1);
        source[i] = reinterpret_cast<const uint4 *>(side.row(b, r)) + threadIdx.x % ROW_UINT4;
    }
}

static __device__ __forceinline__ void start_copies(sy_cu_stage &stage,
                                                    const uint4 *const source[COPIES],
                                                    uint32_t n_tokens, uint32_t j)
{
    SY_UNROLL
    for (int i = 0; i < COPIES; i++) {
        const uint32_t token = token_of_copy(i);
        sy_cp_async(&stage[token][threadIdx.x % ROW_UINT4], source[i] + (size_t)j * ROW_UINT4,
                    token < n_tokens);
    }
}

static __device__ __forceinline__ void multiply_stage(float c[BLOCKS][EIGHTS][4],
                                                      const sy_cu_stage &stage,
                                                      const uint4 w[BLOCKS][4])
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int n = 0; n < EIGHTS; n++) {
        const uint4 *x = &stage[n * 8 + lane / 4][lane % 4 * 2];
        const uint4 low = x[0], high = x[1];
        SY_UNROLL
        for (int i = 0; i < BLOCKS; i++) sy_cu_block_product(c[i][n], w[i], low, high);
    }
}

/* Grid: (tiles_max, row blocks / (SY_CU_WARPS * BLOCKS)). A warp past the last row block keeps
 * step with the others, on the weights of the last one; of its outputs, past H, none is stored. */
template <class Side>
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) tiled_kernel(Side side, sy_cuda_batch b)
{
    SY_SHARED(sy_cu_stage, stages, [STAGES]);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t first = (blockIdx.y * SY_CU_WARPS + threadIdx.x / 32) * BLOCKS;

    if (blockIdx.x >= *b.n_tiles) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    const uint32_t n_k_blocks = sy_cu_k_blocks(side.k(b)), n_blocks = side.n_blocks(b);
    const uint32_t n_tokens = tile.end - tile.begin;
    const uint4 *source[COPIES], *from[BLOCKS];
    float c[BLOCKS][EIGHTS][4] = {};

    SY_UNROLL
    for (int i = 0; i < BLOCKS; i++) {
        const uint32_t block = min(first + i, n_blocks - 1);
        from[i] = side.weights(e) + (size_t)block * n_k_blocks * SY_CU_BLOCK_UINT4 + lane;
    }
    find_sources(source, side, b, tile);
    SY_UNROLL
    for (uint32_t j = 0; j < STAGES - 1; j++) {
        if (j < n_k_blocks) start_copies(stages[j], source, n_tokens, j);
        sy_cp_async_commit();
    }
    for (uint32_t j = 0; j < n_k_blocks; j++) {
        const uint32_t ahead = j + STAGES - 1;
        uint4 w[BLOCKS][4];

        SY_UNROLL
        for (int i = 0; i < BLOCKS; i++)
            sy_cu_load_block(w[i], from[i] + (size_t)j * SY_CU_BLOCK_UINT4);
        sy_cp_async_wait<STAGES - 2>();
        /* All copies of stage j have landed, and everybody has left the stage that is next. */
        __syncthreads();
        if (ahead < n_k_blocks) start_copies(stages[ahead % STAGES], source, n_tokens, ahead);
        sy_cp_async_commit();
        multiply_stage(c, stages[j % STAGES], w);
    }
    SY_UNROLL
    for (int i = 0; i < BLOCKS; i++) {
        SY_UNROLL
        for (int n = 0; n < EIGHTS; n++)
            sy_cu_store_sums(side, b, e, tile.begin + n * 8, tile.end, first + i, c[i][n]);
    }
}

template <class Side>
static int launch_tiled(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks, void *stream)
{
    const uint32_t per_block = SY_CU_WARPS * BLOCKS;

    return SY_LAUNCH((tiled_kernel<Side>),
                     dim3(b.tiles_max, (n_blocks + per_block - 1) / per_block), dim3(THREADS),
                     stream, side, b);
}

int sy_cu_up_tiled(const sy_cu_up &side, const sy_cuda_batch &batch, void *stream)
{
    return launch_tiled(side, batch, (batch.ffn + 63) / 64 * 8, stream);
}

int sy_cu_down_tiled(const sy_cu_down &side, const sy_cuda_batch &batch, void *stream)
{
    return launch_tiled(side, batch, (batch.hidden + 15) / 16, stream);
}
