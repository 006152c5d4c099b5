/* cu_linear_heads.cu - products of each head with a matrix of its own, over fp32 activations: what
 * MLA does to queries before attention, and to what heads gathered after it.
 *
 * A float is the sum of three bf16 of 8 bits each, but for what lies below 2^-133; so each block of
 * weights is multiplied with three blocks of inputs. For few rows that is hidden by the time of
 * reading the weights. */
#include "sy_cu_quant.h"
#include "sy_cuda_slot.h"
#include "sy_cuda_trunk.h"

enum { PARTS = 3 };
static const int INVALID_VALUE = 1; /* cudaErrorInvalidValue */

/* Cut off, not rounded: the largest floats must not become infinite. What is infinite, or no
 * number, has no parts but itself. */
static __device__ __forceinline__ void cut_in_parts(uint32_t part[PARTS], float v)
{
    const uint32_t bits = __float_as_uint(v);
    const float high = __uint_as_float(bits & 0xffff0000u);
    const float rest = v - high;
    const float middle = __uint_as_float(__float_as_uint(rest) & 0xffff0000u);

    part[0] = bits >> 16;
    part[1] = __float_as_uint(middle) >> 16;
    part[2] = __float_as_uint(rest - middle) >> 16;
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        part[0] = sy_cu_to_bf16(v);
        part[1] = part[2] = 0;
    }
}

/* Two inputs of a row, those before n, as a register of each part. */
static __device__ __forceinline__ void load_pair(uint32_t pair[PARTS], const float *x, uint32_t i,
                                                 uint32_t n)
{
    uint32_t low[PARTS], high[PARTS];

    cut_in_parts(low, i < n ? x[i] : 0.0f);
    cut_in_parts(high, i + 1 < n ? x[i + 1] : 0.0f);
    SY_UNROLL
    for (int p = 0; p < PARTS; p++) pair[p] = low[p] | high[p] << 16;
}

/* A lane's N inputs of one block, or of one group, in the order of the products that take them. x
 * NULL: zeros. */
template <int N>
static __device__ __forceinline__ void load_inputs(uint32_t in[PARTS][N / 2], const float *x,
                                                   uint32_t first, uint32_t k)
{
    SY_UNROLL
    for (int i = 0; i < N / 2; i++) {
        uint32_t pair[PARTS] = {};
        if (x != nullptr) load_pair(pair, x, first + 2 * i, k);
        SY_UNROLL
        for (int p = 0; p < PARTS; p++) in[p][i] = pair[p];
    }
}

/* The small parts first. */
static __device__ __forceinline__ void add_products(float c[4], const uint4 w[4],
                                                    const uint32_t in[PARTS][8])
{
    SY_UNROLL
    for (int p = PARTS - 1; p >= 0; p--) {
        const uint4 low = {in[p][0], in[p][1], in[p][2], in[p][3]};
        const uint4 high = {in[p][4], in[p][5], in[p][6], in[p][7]};
        sy_cu_block_product(c, w, low, high);
    }
}

/* The same of one group, all parts of which have one scale. */
template <class Form>
static __device__ __forceinline__ void add_group(float c[4], const Form &w, int q,
                                                 const uint32_t in[PARTS][4])
{
    uint4 a[2];
    float s[2], sums[4] = {};

    w.widen(a, q);
    w.scales(s, q);
    SY_UNROLL
    for (int p = PARTS - 1; p >= 0; p--)
        sy_cu_group_sums(sums, a, uint4{in[p][0], in[p][1], in[p][2], in[p][3]});
    sy_cu_add_scaled(c, s, sums);
}

/* What the kernels are given. */
struct head_products {
    float *y;
    const float *x;
    sy_cuda_head_matrices m;
    size_t head_uint4; /* of one head's matrix */
    const uint32_t *n_rows;
};

/* Where a warp works: eight rows from `begin` on, a row block of a head's matrix; in: what this
 * lane's row has for the head, NULL past the end. */
struct head_place {
    uint32_t begin, end, head, block;
    const float *in;
};

static __device__ __forceinline__ head_place find_place(const head_products &h)
{
    const uint32_t begin = blockIdx.x * 8, mine = begin + threadIdx.x % 32 / 4;
    const uint32_t x_width = h.m.k + h.m.n_tail;
    head_place p = {begin, *h.n_rows, blockIdx.z, blockIdx.y * SY_CU_WARPS + threadIdx.x / 32, {}};

    if (mine < p.end) p.in = h.x + ((size_t)mine * h.m.n_heads + p.head) * x_width;
    return p;
}

/* The first row block's warp carries the tail. */
static __device__ __forceinline__ void store_head(const head_products &h, const head_place &p,
                                                  const float c[4])
{
    const uint32_t lane = threadIdx.x % 32, width = h.m.n + h.m.n_tail;
    const size_t mine = p.begin + lane / 4;

    SY_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t r = p.begin + lane % 4 * 2 + i % 2, o = p.block * 16 + lane / 4 + i / 2 * 8;
        if (r < p.end && o < h.m.n) h.y[((size_t)r * h.m.n_heads + p.head) * width + o] = c[i];
    }
    if (p.block == 0 && p.in != nullptr)
        for (uint32_t i = lane % 4; i < h.m.n_tail; i += 4)
            h.y[(mine * h.m.n_heads + p.head) * width + h.m.n + i] = p.in[h.m.k + i];
}

/* Grid: (rows / 8, row blocks / SY_CU_WARPS, heads). */
__global__ void __launch_bounds__(SY_CU_WARPS * 32) heads_kernel(head_products h)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t n_blocks = (h.m.n + 15) / 16, n_k_blocks = sy_cu_k_blocks(h.m.k);
    const head_place p = find_place(h);
    uint4 w[2][4];
    float c[4] = {};

    if (p.begin >= p.end || p.block >= n_blocks) return;
    const uint4 *from = static_cast<const uint4 *>(h.m.weights) + p.head * h.head_uint4 +
                        (size_t)p.block * n_k_blocks * SY_CU_BLOCK_UINT4 + lane;
    sy_cu_load_block(w[0], from);
    for (uint32_t first = 0; first < n_k_blocks; first += 2) {
        SY_UNROLL
        for (uint32_t i = 0; i < 2; i++) { /* the next block comes while this one is used */
            const uint32_t j = first + i;
            uint32_t parts[PARTS][8];
            if (j >= n_k_blocks) continue;
            if (j + 1 < n_k_blocks)
                sy_cu_load_block(w[1 - i], from + (size_t)(j + 1) * SY_CU_BLOCK_UINT4);
            load_inputs<16>(parts, p.in, j * 64 + lane % 4 * 16, h.m.k);
            add_products(c, w[i], parts);
        }
    }
    store_head(h, p, c);
}

/* Block j of weights in fewer bits, of which n_groups are there. */
template <class Form>
static __device__ __forceinline__ void add_form(float c[4], const Form &w, const float *in,
                                                uint32_t j, uint32_t n_groups, uint32_t k)
{
    SY_UNROLL
    for (int q = 0; q < SY_CU_GROUPS; q++) {
        uint32_t parts[PARTS][4];
        if (q >= (int)n_groups) continue;
        load_inputs<8>(parts, in, j * SY_CU_FORM_K + q * SY_CU_GROUP + threadIdx.x % 4 * 8, k);
        add_group(c, w, q, parts);
    }
}

/* The same of such weights, over as many blocks of SY_CU_FORM_K as there are. */
template <class Form>
__global__ void __launch_bounds__(SY_CU_WARPS * 32) quant_heads_kernel(head_products h)
{
    const uint32_t n_blocks = (h.m.n + 15) / 16, n_groups = sy_cu_groups(h.m.k);
    const uint32_t n_k_blocks = (n_groups + SY_CU_GROUPS - 1) / SY_CU_GROUPS;
    const head_place p = find_place(h);
    float c[4] = {};

    if (p.begin >= p.end || p.block >= n_blocks) return;
    const uint4 *from = static_cast<const uint4 *>(h.m.weights) + p.head * h.head_uint4;
    const sy_cu_row_block r = {from + (size_t)p.block * n_k_blocks * Form::UINT4, {}};
    Form w[2];
    sy_cu_load_form(w[0], r, 0);
    for (uint32_t first = 0; first < n_k_blocks; first += 2) {
        SY_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t j = first + i;
            if (j >= n_k_blocks) continue;
            if (j + 1 < n_k_blocks) sy_cu_load_form(w[1 - i], r, j + 1);
            add_form(c, w[i], p.in, j, n_groups - j * SY_CU_GROUPS, h.m.k);
        }
    }
    store_head(h, p, c);
}

extern "C" int sy_cuda_linear_heads(float *y, const float *x, const sy_cuda_head_matrices *w,
                                    const sy_cuda_row_count *rows, void *stream)
{
    const uint32_t n_blocks = (w->n + 15) / 16;
    const size_t bytes = sy_cuda_matrix_bytes(w->type, SY_CUDA_DOWN, w->n, w->k);
    const dim3 grid((rows->max + 7) / 8, (n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS, w->n_heads);
    const dim3 block(SY_CU_WARPS * 32);
    const head_products h = {y, x, *w, bytes / sizeof(uint4), rows->n};

    if (rows->max == 0) return 0;
    switch (w->type) {
    case SY_CUDA_BF16: return SY_LAUNCH(heads_kernel, grid, block, stream, h);
    case SY_CUDA_Q8: return SY_LAUNCH(quant_heads_kernel<sy_cu_q8>, grid, block, stream, h);
    case SY_CUDA_Q4: return SY_LAUNCH(quant_heads_kernel<sy_cu_q4>, grid, block, stream, h);
    default: return INVALID_VALUE;
    }
}
