/* sy_cu_quant.h - experts whose weights are quantised: the kernels of cu_experts.cu and
 * cu_experts_tiled.cu over the forms of sy_cu_forms.h. One .cu file a form includes it, so that
 * they compile side by side. */
#ifndef SY_CU_QUANT_H
#define SY_CU_QUANT_H

#include "sy_cu_forms.h"
#include "sy_cu_product.h"

/* One group of a row block against the same of a token's inputs, 16 bytes of which are this lane's.
 * Every variant goes through here, so every variant adds in the same order. */
static __device__ __forceinline__ void sy_cu_group_product(float c[4], const uint4 a[2],
                                                           const float s[2], uint4 x)
{
    float p[4] = {};

    sy_mma_bf16(p, a[0], x.x, x.y);
    sy_mma_bf16(p, a[1], x.z, x.w);
    c[0] = fmaf(s[0], p[0], c[0]);
    c[1] = fmaf(s[0], p[1], c[1]);
    c[2] = fmaf(s[1], p[2], c[2]);
    c[3] = fmaf(s[1], p[3], c[3]);
}

/* Where a row block of weights lies. */
struct sy_cu_row_block {
    const uint4 *blocks;
    const float *scale[2]; /* FP8 */
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

template <class Form>
static __device__ __forceinline__ void sy_cu_load_form(Form &w, const sy_cu_row_block &r,
                                                       uint32_t j)
{
    const uint32_t at = Form::SCALES_INSIDE ? 0 : j;

    w.load(r.blocks + (size_t)j * Form::UINT4, threadIdx.x % 32, r.scale[0] + at, r.scale[1] + at);
}

/* ---- streaming ---- */

/* A lane's token of each eight of the tile, from where its inputs begin; NULL: past the tile. */
template <int NT, class Side>
static __device__ __forceinline__ void sy_cu_find_tokens(const uint16_t *token[NT],
                                                         const Side &side, const sy_cuda_batch &b,
                                                         sy_cuda_tile tile)
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t r = tile.begin + n * 8 + lane / 4;
        token[n] = r < tile.end ? side.row(b, r) + lane % 4 * 8 : nullptr;
    }
}

/* Block j of weights, of which n_groups are there, against every token. */
template <class Form, int NT>
static __device__ __forceinline__ void sy_cu_multiply_form(float c[NT][4], const Form &w,
                                                           const uint16_t *const token[NT],
                                                           uint32_t j, uint32_t n_groups)
{
    SY_UNROLL
    for (int q = 0; q < SY_CU_GROUPS; q++) {
        uint4 a[2];
        float s[2];

        if (q >= (int)n_groups) continue;
        w.widen(a, q);
        w.scales(s, q);
        SY_UNROLL
        for (int n = 0; n < NT; n++) {
            uint4 x = {0, 0, 0, 0};
            if (token[n] != nullptr)
                x = __ldg(reinterpret_cast<const uint4 *>(token[n] + (size_t)j * SY_CU_FORM_K +
                                                          q * SY_CU_GROUP));
            sy_cu_group_product(c[n], a, s, x);
        }
    }
}

/* AHEAD: blocks of weights that are asked for before this one's are used; where 64 tokens wait for
 * each it is arithmetic that takes the time. MIN_BLOCKS: of threads, on a multiprocessor: about
 * what the registers give, for left to itself ptxas spills some in search of one more. */
template <class Form, int NT> struct sy_cu_stream_shape {
    static constexpr uint32_t AHEAD = NT < 8 ? Form::AHEAD : 1;
    static constexpr int MIN_BLOCKS = NT < 4 ? 5 : NT < 8 ? 4 : 2;
};

template <class Form, int NT>
static __device__ __forceinline__ void sy_cu_stream_form(float c[NT][4], const sy_cu_row_block &r,
                                                         const uint16_t *const token[NT],
                                                         uint32_t k)
{
    const uint32_t n_groups = sy_cu_groups(k);
    const uint32_t n_k_blocks = (n_groups + SY_CU_GROUPS - 1) / SY_CU_GROUPS;
    constexpr uint32_t ahead = sy_cu_stream_shape<Form, NT>::AHEAD;
    Form w[ahead + 1];

    SY_UNROLL
    for (uint32_t j = 0; j < ahead; j++)
        sy_cu_load_form(w[j], r, j < n_k_blocks ? j : n_k_blocks - 1);
    for (uint32_t j = 0; j < n_k_blocks; j++) {
        w[ahead] = w[0];
        if (j + ahead < n_k_blocks) sy_cu_load_form(w[ahead], r, j + ahead);
        sy_cu_multiply_form<Form, NT>(c, w[0], token, j, n_groups - j * SY_CU_GROUPS);
        SY_UNROLL
        for (uint32_t i = 0; i < ahead; i++) w[i] = w[i + 1];
    }
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

    sy_cu_find_tokens<NT>(token, side, b, tile);
    sy_cu_stream_form<Form, NT>(c, r, token, k);
    SY_UNROLL
    for (int n = 0; n < NT; n++)
        sy_cu_store_sums(side, b, e, tile.begin + n * 8, tile.end, block, c[n]);
}

/* ---- tiled ---- */

enum {
    SY_CU_TILED_TOKENS = 64,
    SY_CU_TILED_EIGHTS = SY_CU_TILED_TOKENS / 8,
    SY_CU_TILED_BLOCKS = 2, /* row blocks a warp */
    SY_CU_TILED_STAGES = 2,
    SY_CU_TILED_UINT4 = SY_CU_FORM_K * 2 / 16, /* of one token and block */
    SY_CU_TILED_PITCH = 20, /* four more: the eight lanes that read together find all banks */
    SY_CU_TILED_COPIES = SY_CU_TILED_TOKENS * SY_CU_TILED_UINT4 / (SY_CU_WARPS * 32)
};
typedef uint4 sy_cu_quant_stage[SY_CU_TILED_TOKENS][SY_CU_TILED_PITCH];

/* Block j of the tile's tokens on its way. A thread copies part threadIdx % 16 of eight tokens;
 * parts past the padded length of a row are not there, and nobody reads them. */
template <class Side>
static __device__ __forceinline__ void sy_cu_start_stage(sy_cu_quant_stage &stage, const Side &side,
                                                         const sy_cuda_batch &b, sy_cuda_tile tile,
                                                         uint32_t j)
{
    const uint32_t part = threadIdx.x % SY_CU_TILED_UINT4;
    const uint32_t n_parts = sy_cu_k_blocks(side.k(b)) * (64 * 2 / 16);

    if (j * SY_CU_TILED_UINT4 + part < n_parts) {
        SY_UNROLL
        for (int i = 0; i < SY_CU_TILED_COPIES; i++) {
            const uint32_t token =
                i * (SY_CU_TILED_TOKENS / SY_CU_TILED_COPIES) + threadIdx.x / SY_CU_TILED_UINT4;
            const uint32_t r = min(tile.begin + token, tile.end - 1);
            const uint4 *from = reinterpret_cast<const uint4 *>(side.row(b, r));
            sy_cp_async(&stage[token][part], from + (size_t)j * SY_CU_TILED_UINT4 + part,
                        tile.begin + token < tile.end);
        }
    }
    sy_cp_async_commit();
}

template <class Form>
static __device__ __forceinline__ void sy_cu_multiply_stage(
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4], const sy_cu_quant_stage &stage,
    const Form w[SY_CU_TILED_BLOCKS], uint32_t n_groups)
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int q = 0; q < SY_CU_GROUPS; q++) {
        uint4 a[SY_CU_TILED_BLOCKS][2];
        float s[SY_CU_TILED_BLOCKS][2];

        if (q >= (int)n_groups) continue;
        SY_UNROLL
        for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) {
            w[i].widen(a[i], q);
            w[i].scales(s[i], q);
        }
        SY_UNROLL
        for (int n = 0; n < SY_CU_TILED_EIGHTS; n++) {
            const uint4 x = stage[n * 8 + lane / 4][q * 4 + lane % 4];
            SY_UNROLL
            for (int i = 0; i < SY_CU_TILED_BLOCKS; i++)
                sy_cu_group_product(c[i][n], a[i], s[i], x);
        }
    }
}

/* Grid: (tiles_max, row blocks / (SY_CU_WARPS * SY_CU_TILED_BLOCKS)). A warp past the last row
 * block keeps step with the others on that one's weights, and stores nothing. */
template <class Form, class Side>
__global__ void __launch_bounds__(SY_CU_WARPS * 32, 2)
    sy_cu_tiled_kernel(Side side, sy_cuda_batch b)
{
    SY_SHARED(sy_cu_quant_stage, stages, [SY_CU_TILED_STAGES]);
    const uint32_t first = (blockIdx.y * SY_CU_WARPS + threadIdx.x / 32) * SY_CU_TILED_BLOCKS;

    if (blockIdx.x >= *b.n_tiles) return;
    const sy_cuda_tile tile = b.tiles[blockIdx.x];
    const sy_cuda_expert &e = b.experts[tile.expert];
    const uint32_t n_groups = sy_cu_groups(side.k(b)), n_blocks = side.n_blocks(b);
    const uint32_t n_k_blocks = (n_groups + SY_CU_GROUPS - 1) / SY_CU_GROUPS;
    sy_cu_row_block r[SY_CU_TILED_BLOCKS];
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4] = {};

    SY_UNROLL
    for (int i = 0; i < SY_CU_TILED_BLOCKS; i++)
        r[i] = sy_cu_find_row_block<Form>(side, e, min(first + i, n_blocks - 1), n_k_blocks);
    sy_cu_start_stage(stages[0], side, b, tile, 0);
    for (uint32_t j = 0; j < n_k_blocks; j++) {
        Form w[SY_CU_TILED_BLOCKS];

        SY_UNROLL
        for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) sy_cu_load_form(w[i], r[i], j);
        sy_cp_async_wait<0>();
        /* All copies of stage j have landed, and everybody has left the other stage. */
        __syncthreads();
        if (j + 1 < n_k_blocks) sy_cu_start_stage(stages[(j + 1) % 2], side, b, tile, j + 1);
        sy_cu_multiply_stage(c, stages[j % 2], w, n_groups - j * SY_CU_GROUPS);
    }
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) {
        if (first + i >= n_blocks) continue;
        SY_UNROLL
        for (int n = 0; n < SY_CU_TILED_EIGHTS; n++)
            sy_cu_store_sums(side, b, e, tile.begin + n * 8, tile.end, first + i, c[i][n]);
    }
}

/* ---- launches ---- */

template <class Form, class Side>
int sy_cu_launch_quant(const Side &side, const sy_cuda_batch &b, uint32_t n_blocks,
                       sy_cuda_variant variant, void *stream)
{
    const uint32_t per_block =
        variant == SY_CUDA_TILED_64 ? SY_CU_WARPS * SY_CU_TILED_BLOCKS : SY_CU_WARPS;
    const dim3 grid(b.tiles_max, (n_blocks + per_block - 1) / per_block);
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
