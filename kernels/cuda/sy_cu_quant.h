/* sy_cu_quant.h - products with quantised weights, over the forms of sy_cu_forms.h: what experts
 * and the trunk's matrices have in common, so that one arithmetic stands in one place. A tile of
 * rows [begin, end), at most 8 NT or 64 of them, meets one row block of weights a warp, or two.
 * Where the rows of a tile lie is the template argument Rows: row(r), where the inputs of row r
 * begin, for r before end. */
#ifndef SY_CU_QUANT_H
#define SY_CU_QUANT_H

#include "sy_cu_forms.h"
#include "sy_cu_product.h"

/* One group of a row block against the same of a token's inputs, 16 bytes of which are this lane's.
 * Every variant goes through here, so every variant adds in the same order. */
static __device__ __forceinline__ void sy_cu_group_sums(float p[4], const uint4 a[2], uint4 x)
{
    sy_mma_bf16(p, a[0], x.x, x.y);
    sy_mma_bf16(p, a[1], x.z, x.w);
}

static __device__ __forceinline__ void sy_cu_add_scaled(float c[4], const float s[2],
                                                        const float p[4])
{
    c[0] = fmaf(s[0], p[0], c[0]);
    c[1] = fmaf(s[0], p[1], c[1]);
    c[2] = fmaf(s[1], p[2], c[2]);
    c[3] = fmaf(s[1], p[3], c[3]);
}

static __device__ __forceinline__ void sy_cu_group_product(float c[4], const uint4 a[2],
                                                           const float s[2], uint4 x)
{
    float p[4] = {};

    sy_cu_group_sums(p, a, x);
    sy_cu_add_scaled(c, s, p);
}

/* Where a row block of weights lies. */
struct sy_cu_row_block {
    const uint4 *blocks;
    const float *scale[2]; /* FP8 */
};

template <class Form>
static __device__ __forceinline__ void sy_cu_load_form(Form &w, const sy_cu_row_block &r,
                                                       uint32_t j)
{
    const uint32_t at = Form::SCALES_INSIDE ? 0 : j;

    w.load(r.blocks + (size_t)j * Form::UINT4, threadIdx.x % 32, r.scale[0] + at, r.scale[1] + at);
}

/* ---- streaming ---- */

/* A lane's token of each eight of the tile, from where its inputs begin; NULL: past the tile. */
template <int NT, class Rows>
static __device__ __forceinline__ void sy_cu_find_tokens(const uint16_t *token[NT],
                                                         const Rows &rows, uint32_t begin,
                                                         uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32;

    SY_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t r = begin + n * 8 + lane / 4;
        token[n] = r < end ? rows.row(r) + lane % 4 * 8 : nullptr;
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

/* RING: blocks of weights that a warp has or waits for, as of sy_cu_ring. MIN_BLOCKS: of threads,
 * on a multiprocessor: about what the registers give, for left to itself ptxas spills some in
 * search of one more. */
template <class Form, int NT> struct sy_cu_stream_shape {
    static constexpr uint32_t RING = NT < 4 ? Form::RING : NT < 8 ? Form::RING / 2 + 1 : 2;
    static constexpr int MIN_BLOCKS = NT < 4 ? 4 : NT < 8 ? 3 : 2;
};

/* As sy_cu_stream_weights: a place of the ring is filled again where it was used up. */
template <class Form, int NT>
static __device__ __forceinline__ void sy_cu_stream_form(float c[NT][4], const sy_cu_row_block &r,
                                                         const uint16_t *const token[NT],
                                                         uint32_t k)
{
    const uint32_t n_groups = sy_cu_groups(k);
    const uint32_t n_k_blocks = (n_groups + SY_CU_GROUPS - 1) / SY_CU_GROUPS;
    constexpr uint32_t ring = sy_cu_stream_shape<Form, NT>::RING;
    Form w[ring];

    SY_UNROLL
    for (uint32_t i = 0; i < ring; i++) sy_cu_load_form(w[i], r, min(i, n_k_blocks - 1));
    for (uint32_t j = 0; j < n_k_blocks; j += ring) {
        SY_UNROLL
        for (uint32_t i = 0; i < ring; i++) {
            if (j + i >= n_k_blocks) continue;
            sy_cu_multiply_form<Form, NT>(c, w[i], token, j + i, n_groups - (j + i) * SY_CU_GROUPS);
            if (j + i + ring < n_k_blocks) sy_cu_load_form(w[i], r, j + i + ring);
        }
    }
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
template <class Rows>
static __device__ __forceinline__ void sy_cu_start_stage(sy_cu_quant_stage &stage, const Rows &rows,
                                                         uint32_t begin, uint32_t end, uint32_t k,
                                                         uint32_t j)
{
    const uint32_t part = threadIdx.x % SY_CU_TILED_UINT4;
    const uint32_t n_parts = sy_cu_k_blocks(k) * (64 * 2 / 16);

    if (j * SY_CU_TILED_UINT4 + part < n_parts) {
        SY_UNROLL
        for (int i = 0; i < SY_CU_TILED_COPIES; i++) {
            const uint32_t token =
                i * (SY_CU_TILED_TOKENS / SY_CU_TILED_COPIES) + threadIdx.x / SY_CU_TILED_UINT4;
            const uint4 *from =
                reinterpret_cast<const uint4 *>(rows.row(min(begin + token, end - 1)));
            sy_cp_async(&stage[token][part], from + (size_t)j * SY_CU_TILED_UINT4 + part,
                        begin + token < end);
        }
    }
    sy_cp_async_commit();
}

/* The row blocks of a warp of a tile, the first of which has an even number: the other one lies
 * `step` further on, and has the same scales where these are beside (FP8's, of 128 rows). */
struct sy_cu_two_blocks {
    sy_cu_row_block first;
    uint32_t step; /* UINT4s; 0: there is no other, and the first stands for it */

    __device__ __forceinline__ sy_cu_row_block at(int i) const
    {
        return {first.blocks + (i == 0 ? 0 : step), {first.scale[0], first.scale[1]}};
    }
};

template <class Form>
static __device__ __forceinline__ void sy_cu_load_two(Form w[SY_CU_TILED_BLOCKS],
                                                      const sy_cu_two_blocks &two, uint32_t j)
{
    SY_UNROLL
    for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) sy_cu_load_form(w[i], two.at(i), j);
}

/* Group q of block j, where there is one place alone. */
template <class Form>
static __device__ __forceinline__ void sy_cu_load_two_groups(Form w[SY_CU_TILED_BLOCKS],
                                                             const sy_cu_two_blocks &two,
                                                             uint32_t j, int q)
{
    if constexpr (Form::PLACES == 1) {
        const uint32_t at = Form::SCALES_INSIDE ? 0 : j;

        SY_UNROLL
        for (int i = 0; i < SY_CU_TILED_BLOCKS; i++) {
            const sy_cu_row_block r = two.at(i);
            w[i].load_group(r.blocks + (size_t)j * Form::UINT4, threadIdx.x % 32, r.scale[0] + at,
                            r.scale[1] + at, q);
        }
    }
}

/* A block of weights, of which n_groups are there, against all tokens of the stage. next: the block
 * that takes its place, where there is one place alone. */
template <class Form>
static __device__ __forceinline__ void sy_cu_multiply_stage(
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4], const sy_cu_quant_stage &stage,
    Form w[SY_CU_TILED_BLOCKS], uint32_t n_groups, const sy_cu_two_blocks &two, uint32_t next)
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
        sy_cu_load_two_groups(w, two, next, q);
        SY_UNROLL
        for (int n = 0; n < SY_CU_TILED_EIGHTS; n++) {
            const uint4 x = stage[n * 8 + lane / 4][q * 4 + lane % 4];
            SY_UNROLL
            for (int i = 0; i < SY_CU_TILED_BLOCKS; i++)
                sy_cu_group_product(c[i][n], a[i], s[i], x);
        }
    }
}

/* All of a tile by the four warps of a block, each with row blocks of its own; every thread takes
 * part. Weights are asked for before the block in front of them is used. */
template <class Form, class Rows>
static __device__ __forceinline__ void sy_cu_tile_form(
    float c[SY_CU_TILED_BLOCKS][SY_CU_TILED_EIGHTS][4],
    sy_cu_quant_stage stages[SY_CU_TILED_STAGES], const sy_cu_two_blocks &two, const Rows &rows,
    uint32_t begin, uint32_t end, uint32_t k)
{
    constexpr uint32_t places = Form::PLACES;
    const uint32_t n_groups = sy_cu_groups(k);
    const uint32_t n_k_blocks = (n_groups + SY_CU_GROUPS - 1) / SY_CU_GROUPS;
    Form w[places][SY_CU_TILED_BLOCKS];

    sy_cu_start_stage(stages[0], rows, begin, end, k, 0);
    sy_cu_load_two(w[0], two, 0);
    for (uint32_t first = 0; first < n_k_blocks; first += places) {
        SY_UNROLL
        for (uint32_t q = 0; q < places; q++) {
            const uint32_t j = first + q;

            if (j >= n_k_blocks) continue;
            if (places == 2 && j + 1 < n_k_blocks) sy_cu_load_two(w[places - 1 - q], two, j + 1);
            sy_cp_async_wait<0>();
            /* All copies of stage j have landed, and everybody has left the other stage. */
            __syncthreads();
            if (j + 1 < n_k_blocks)
                sy_cu_start_stage(stages[(j + 1) % 2], rows, begin, end, k, j + 1);
            sy_cu_multiply_stage(c, stages[j % 2], w[q], n_groups - j * SY_CU_GROUPS, two,
                                 min(j + 1, n_k_blocks - 1));
        }
    }
}

#endif
