/* sy_cu_tiled.h - products of bf16 weights with many rows: four warps, each with two row blocks,
 * share 64 rows, whose inputs go through shared memory blocks of 64 deep. Weights never do.
 *
 * A tile reads all of a matrix, from L2 at best: with 64 rows a tile an H200's gives no more than
 * about 350 TFLOP/s. So in tiles of 128 rows there are four more warps, which multiply the other
 * half of the rows with the same weights: in step, so L1 has what the first one read. */
#ifndef SY_CU_TILED_H
#define SY_CU_TILED_H

#include "sy_cu_product.h"

enum {
    SY_CU_HALF_ROWS = 64, /* of a warp */
    SY_CU_HALF_EIGHTS = SY_CU_HALF_ROWS / 8,
    SY_CU_HALF_THREADS = SY_CU_WARPS * 32,
    SY_CU_WARP_BLOCKS = 2,         /* row blocks a warp */
    SY_CU_ROW_UINT4 = 64 * 2 / 16, /* of one row's inputs, one k block */
    SY_CU_PITCH_UINT4 = 9,         /* and one apart: a quarter warp then reads all banks */
    SY_CU_TILE_COPIES =
        SY_CU_HALF_ROWS * SY_CU_ROW_UINT4 / SY_CU_HALF_THREADS /* a thread, a stage */
};

/* Of HALVES of 64 rows. MIN_BLOCKS: a multiprocessor; without it ptxas spills for the sake of one
 * more. */
template <int HALVES> struct sy_cu_tile_shape {
    static constexpr int ROWS = HALVES * SY_CU_HALF_ROWS, THREADS = HALVES * SY_CU_HALF_THREADS;
    static constexpr int MIN_BLOCKS = 2 / HALVES;
    static constexpr uint32_t STAGES = HALVES == 1 ? 3 : 2; /* within 48 KB */
    typedef uint4 stage[ROWS][SY_CU_PITCH_UINT4];
};

/* What a warp works on: the first of its row blocks, and the first of its rows within the tile. */
static __device__ __forceinline__ uint32_t sy_cu_warp_block()
{
    return (blockIdx.y * SY_CU_WARPS + threadIdx.x / 32 % SY_CU_WARPS) * SY_CU_WARP_BLOCKS;
}

static __device__ __forceinline__ uint32_t sy_cu_warp_rows()
{
    return threadIdx.x / SY_CU_HALF_THREADS * SY_CU_HALF_ROWS;
}

template <int HALVES> static __device__ __forceinline__ uint32_t sy_cu_row_of_copy(int i)
{
    return i * (sy_cu_tile_shape<HALVES>::ROWS / SY_CU_TILE_COPIES) + threadIdx.x / SY_CU_ROW_UINT4;
}

template <int HALVES>
static __device__ __forceinline__ void sy_cu_start_copies(
    typename sy_cu_tile_shape<HALVES>::stage &stage, const uint4 *const source[SY_CU_TILE_COPIES],
    uint32_t n_rows, uint32_t j)
{
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILE_COPIES; i++) {
        const uint32_t row = sy_cu_row_of_copy<HALVES>(i);
        sy_cp_async(&stage[row][threadIdx.x % SY_CU_ROW_UINT4],
                    source[i] + (size_t)j * SY_CU_ROW_UINT4, row < n_rows);
    }
}

/* rows: the stage, from this warp's on. */
static __device__ __forceinline__ void sy_cu_multiply_rows(
    float c[SY_CU_WARP_BLOCKS][SY_CU_HALF_EIGHTS][4], const uint4 (*rows)[SY_CU_PITCH_UINT4],
    const uint4 w[SY_CU_WARP_BLOCKS][4])
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int n = 0; n < SY_CU_HALF_EIGHTS; n++) {
        const uint4 *x = &rows[n * 8 + lane / 4][lane % 4 * 2];
        const uint4 low = x[0], high = x[1];
        SY_UNROLL
        for (int i = 0; i < SY_CU_WARP_BLOCKS; i++) sy_cu_block_product(c[i][n], w[i], low, high);
    }
}

template <int HALVES>
static __device__ __forceinline__ void sy_cu_load_blocks(uint4 w[SY_CU_WARP_BLOCKS][4],
                                                         const uint4 *const from[SY_CU_WARP_BLOCKS],
                                                         uint32_t j)
{
    SY_UNROLL
    for (int i = 0; i < SY_CU_WARP_BLOCKS; i++) {
        SY_UNROLL
        for (int s = 0; s < 4; s++) {
            const uint4 *p = from[i] + (size_t)j * SY_CU_BLOCK_UINT4 + s * 32;
            w[i][s] = HALVES == 1 ? sy_load_stream(p) : sy_load_stream_shared(p);
        }
    }
}

/* Rows [begin, end), at most as many as the shape has, times a packed matrix; every thread of the
 * block takes part. Rows: row(r), where the inputs of row r begin, for r before end. A warp past
 * the last of n_blocks keeps step with the others on that one's weights; its sums mean nothing.
 * Weights are asked for one block before they are used, in two places that take turns: nothing that
 * may not have come yet is moved. */
template <int HALVES, class Rows>
static __device__ __forceinline__ void sy_cu_tile(float c[SY_CU_WARP_BLOCKS][SY_CU_HALF_EIGHTS][4],
                                                  typename sy_cu_tile_shape<HALVES>::stage *stages,
                                                  const uint4 *weights, uint32_t n_blocks,
                                                  uint32_t n_k_blocks, const Rows &rows,
                                                  uint32_t begin, uint32_t end)
{
    constexpr uint32_t STAGES = sy_cu_tile_shape<HALVES>::STAGES;
    const uint32_t n_rows = end - begin, mine = sy_cu_warp_rows();
    const uint4 *source[SY_CU_TILE_COPIES], *from[SY_CU_WARP_BLOCKS];
    uint4 w[2][SY_CU_WARP_BLOCKS][4];

    SY_UNROLL
    for (int i = 0; i < SY_CU_WARP_BLOCKS; i++)
        from[i] =
            weights + threadIdx.x % 32 +
            (size_t)min(sy_cu_warp_block() + i, n_blocks - 1) * n_k_blocks * SY_CU_BLOCK_UINT4;
    /* Past the tile the address is that of the last row, of which nothing is read. */
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILE_COPIES; i++)
        source[i] = reinterpret_cast<const uint4 *>(
                        rows.row(min(begin + sy_cu_row_of_copy<HALVES>(i), end - 1))) +
                    threadIdx.x % SY_CU_ROW_UINT4;
    SY_UNROLL
    for (uint32_t j = 0; j < STAGES - 1; j++) {
        if (j < n_k_blocks) sy_cu_start_copies<HALVES>(stages[j], source, n_rows, j);
        sy_cp_async_commit();
    }
    sy_cu_load_blocks<HALVES>(w[0], from, 0);
    for (uint32_t first = 0; first < n_k_blocks; first += 2) {
        SY_UNROLL
        for (uint32_t q = 0; q < 2; q++) {
            const uint32_t j = first + q, ahead = j + STAGES - 1;

            if (j >= n_k_blocks) continue;
            if (j + 1 < n_k_blocks) sy_cu_load_blocks<HALVES>(w[1 - q], from, j + 1);
            sy_cp_async_wait<STAGES - 2>();
            /* All copies of stage j have landed, and everybody has left the stage that is next. */
            __syncthreads();
            if (ahead < n_k_blocks)
                sy_cu_start_copies<HALVES>(stages[ahead % STAGES], source, n_rows, ahead);
            sy_cp_async_commit();
            if (mine < n_rows) sy_cu_multiply_rows(c, stages[j % STAGES] + mine, w[q]);
        }
    }
}

#endif
