/* sy_cu_product.h - what the kernels of experts share: where a block works, and what becomes of its
 * sums. Sums are in the layout of mma.sync's C, rows being outputs and columns tokens: of its row
 * block a lane has rows g and g + 8 (c[0], c[1]; c[2], c[3]) for tokens 2t and 2t + 1 of eight. */
#ifndef SY_CU_PRODUCT_H
#define SY_CU_PRODUCT_H

#include "sy_cu_math.h"
#include "sy_cuda_kernels.h"

enum {
    SY_CU_WARPS = 4,        /* a block of threads, each warp with row blocks of its own */
    SY_CU_BLOCK_UINT4 = 128 /* of a block of packed weights, 4 steps of 32 lanes */
};

static __device__ __forceinline__ uint32_t sy_cu_k_blocks(uint32_t k)
{
    return (k + 63u) / 64u;
}

/* A lane's part of one block of weights, from where this lane's begins. */
static __device__ __forceinline__ void sy_cu_load_block(uint4 w[4], const uint4 *from)
{
    SY_UNROLL
    for (int s = 0; s < 4; s++) w[s] = sy_load_stream(from + s * 32);
}

/* One block of weights against one block of a token's inputs, 32 bytes of which are this lane's.
 * Every variant goes through here, so every variant adds in the same order. */
static __device__ __forceinline__ void sy_cu_block_product(float c[4], const uint4 w[4], uint4 low,
                                                           uint4 high)
{
    sy_mma_bf16(c, w[0], low.x, low.y);
    sy_mma_bf16(c, w[1], low.z, low.w);
    sy_mma_bf16(c, w[2], high.x, high.y);
    sy_mma_bf16(c, w[3], high.z, high.w);
}

/* Block j of weights against the same of every token. */
template <int NT>
static __device__ __forceinline__ void sy_cu_multiply_block(float c[NT][4], const uint4 w[4],
                                                            const uint16_t *const token[NT],
                                                            uint32_t j)
{
    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
        if (token[n] != nullptr) {
            const uint4 *x = reinterpret_cast<const uint4 *>(token[n] + (size_t)j * 64);
            low = __ldg(x);
            high = __ldg(x + 1);
        }
        sy_cu_block_product(c[n], w, low, high);
    }
}

/* Blocks of weights that a warp has or waits for. All but one are on their way while that is used;
 * with few warps, as a token decoded alone has, this number and nothing else decides how much of
 * the memory's bandwidth is used. Where 64 tokens wait for each block it is arithmetic. */
template <int NT> struct sy_cu_ring {
    static constexpr uint32_t BLOCKS = NT < 4 ? 4 : NT < 8 ? 3 : 2;
};

/* All blocks of a row block, from where this lane's part of the first begins. token: a lane's row
 * of each eight, from where its inputs begin; NULL: there is none. Each place of the ring is filled
 * again where it was used up: moving blocks along would wait for those that have not come. */
template <int NT>
static __device__ __forceinline__ void sy_cu_stream_weights(float c[NT][4], const uint4 *from,
                                                            const uint16_t *const token[NT],
                                                            uint32_t n_k_blocks)
{
    constexpr uint32_t ring = sy_cu_ring<NT>::BLOCKS;
    uint4 w[ring][4];

    SY_UNROLL
    for (uint32_t i = 0; i < ring; i++)
        sy_cu_load_block(w[i], from + (size_t)min(i, n_k_blocks - 1) * SY_CU_BLOCK_UINT4);
    for (uint32_t j = 0; j < n_k_blocks; j += ring) {
        SY_UNROLL
        for (uint32_t i = 0; i < ring; i++) {
            if (j + i >= n_k_blocks) continue;
            sy_cu_multiply_block<NT>(c, w[i], token, j + i);
            if (j + i + ring < n_k_blocks)
                sy_cu_load_block(w[i], from + (size_t)(j + i + ring) * SY_CU_BLOCK_UINT4);
        }
    }
}

static __device__ __forceinline__ float sy_cu_with_bias(float v, const float *bias, uint32_t i)
{
    return bias == nullptr ? v : v + bias[i];
}

/* h of one output and one token: gate is row g of the block, up row g + 8. Outputs past F are the
 * padding of h: zeros, whatever the inputs are, or an infinity would reach every output as NaN. */
static __device__ __forceinline__ void sy_cu_store_up(uint16_t *h, const sy_cuda_batch &b,
                                                      const sy_cuda_expert &e, uint32_t row,
                                                      uint32_t f, float gate, float up)
{
    uint16_t v = 0;

    if (f < b.ffn) {
        gate = sy_cu_with_bias(gate, e.gate_bias, f);
        up = sy_cu_with_bias(up, e.up_bias, f);
        v = sy_cu_to_bf16(b.mlp == SY_CUDA_CLAMPED ? sy_cu_clamped_swiglu(gate, up, b.mlp_limit)
                                                   : sy_cu_swiglu(gate, up));
    }
    h[(size_t)row * (sy_cu_k_blocks(b.ffn) * 64) + f] = v;
}

static __device__ __forceinline__ void sy_cu_store_down(float *y, const sy_cuda_batch &b,
                                                        const sy_cuda_expert &e, uint32_t row,
                                                        uint32_t o, float v)
{
    if (o < b.hidden) y[(size_t)row * b.hidden + o] = sy_cu_with_bias(v, e.down_bias, o);
}

/* Up and Down differ in what they read and how they store: these two are the template argument.
 * n_blocks: row blocks of the packed matrix; k: its inputs. */
struct sy_cu_up {
    uint16_t *h;
    const uint16_t *x;
    const uint32_t *x_row;

    __device__ __forceinline__ uint32_t n_blocks(const sy_cuda_batch &b) const
    {
        return sy_cu_k_blocks(b.ffn) * 8;
    }
    __device__ __forceinline__ uint32_t k(const sy_cuda_batch &b) const
    {
        return b.hidden;
    }
    __device__ __forceinline__ const uint4 *weights(const sy_cuda_expert &e) const
    {
        return static_cast<const uint4 *>(e.gate_up);
    }
    /* FP8: the numbers of the rows that a row block has in its halves, k_blocks for each. */
    __device__ __forceinline__ const float *scales(const sy_cuda_expert &e, uint32_t half,
                                                   uint32_t block, uint32_t k_blocks) const
    {
        return (half == 0 ? e.gate_scale : e.up_scale) + (size_t)(block * 8 / 128) * k_blocks;
    }
    __device__ __forceinline__ const uint16_t *row(const sy_cuda_batch &b, uint32_t r) const
    {
        const size_t from = x_row == nullptr ? r : x_row[r];
        return x + from * (sy_cu_k_blocks(b.hidden) * 64);
    }
    /* The two outputs that a lane has for one token: rows g and g + 8 of a row block. */
    __device__ __forceinline__ void store(const sy_cuda_batch &b, const sy_cuda_expert &e,
                                          uint32_t r, uint32_t block, uint32_t g, float low,
                                          float high) const
    {
        sy_cu_store_up(h, b, e, r, block * 8 + g, low, high);
    }
};

struct sy_cu_down {
    float *y;
    const uint16_t *h;

    __device__ __forceinline__ uint32_t n_blocks(const sy_cuda_batch &b) const
    {
        return (b.hidden + 15u) / 16u;
    }
    __device__ __forceinline__ uint32_t k(const sy_cuda_batch &b) const
    {
        return b.ffn;
    }
    __device__ __forceinline__ const uint4 *weights(const sy_cuda_expert &e) const
    {
        return static_cast<const uint4 *>(e.down);
    }
    __device__ __forceinline__ const float *scales(const sy_cuda_expert &e, uint32_t,
                                                   uint32_t block, uint32_t k_blocks) const
    {
        return e.down_scale + (size_t)(block * 16 / 128) * k_blocks;
    }
    __device__ __forceinline__ const uint16_t *row(const sy_cuda_batch &b, uint32_t r) const
    {
        return h + (size_t)r * (sy_cu_k_blocks(b.ffn) * 64);
    }
    __device__ __forceinline__ void store(const sy_cuda_batch &b, const sy_cuda_expert &e,
                                          uint32_t r, uint32_t block, uint32_t g, float low,
                                          float high) const
    {
        sy_cu_store_down(y, b, e, r, block * 16 + g, low);
        sy_cu_store_down(y, b, e, r, block * 16 + g + 8, high);
    }
};

/* What a lane has of one row block for eight rows from `row` on, those that are before `end`. */
template <class Side>
static __device__ __forceinline__ void sy_cu_store_sums(const Side &side, const sy_cuda_batch &b,
                                                        const sy_cuda_expert &e, uint32_t row,
                                                        uint32_t end, uint32_t block,
                                                        const float c[4])
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int q = 0; q < 2; q++) {
        const uint32_t r = row + lane % 4 * 2 + q;
        if (r < end) side.store(b, e, r, block, lane / 4, c[q], c[q + 2]);
    }
}

/* The tiled variants, cu_experts_tiled.cu; for cu_experts.cu alone. */
int sy_cu_up_tiled(const sy_cu_up &side, const sy_cuda_batch &batch, sy_cuda_variant variant,
                   void *stream);
int sy_cu_down_tiled(const sy_cu_down &side, const sy_cuda_batch &batch, sy_cuda_variant variant,
                     void *stream);

/* Quantised weights, every variant: cu_experts_q8.cu and those beside it, which have them for
 * sy_cu_up and sy_cu_down; for cu_experts.cu alone. n_blocks: side.n_blocks(b). */
struct sy_cu_q8;
struct sy_cu_q4;
struct sy_cu_fp8;
struct sy_cu_mxfp4;
template <class Form, class Side>
int sy_cu_launch_quant(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                       sy_cuda_variant variant, void *stream);

#endif
