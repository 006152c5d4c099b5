/* cu_linear_heads.cu - products of each head with a matrix of its own, over fp32 activations: what
 * MLA does to queries before attention, and to what heads gathered after it.
 *
 * A float is the sum of three bf16 of 8 bits each, but for what lies below 2^-133; so each block of
 * weights is multiplied with three blocks of inputs. For few rows that is hidden by the time of
 * reading the weights. */
#include "sy_cu_product.h"
#include "sy_cuda_trunk.h"

enum { PARTS = 3 };

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

/* A lane's 16 inputs of one block, in the order of sy_cu_block_product. x NULL: zeros. */
static __device__ __forceinline__ void load_inputs(uint32_t in[PARTS][8], const float *x,
                                                   uint32_t first, uint32_t k)
{
    SY_UNROLL
    for (int i = 0; i < 8; i++) {
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

/* Grid: (rows / 8, row blocks / SY_CU_WARPS, heads). The first row block's warp carries the tail.
 */
__global__ void __launch_bounds__(SY_CU_WARPS * 32)
    heads_kernel(float *y, const float *x, sy_cuda_head_matrices m, const uint32_t *n_rows)
{
    const uint32_t lane = threadIdx.x % 32, head = blockIdx.z, end = *n_rows;
    const uint32_t block = blockIdx.y * SY_CU_WARPS + threadIdx.x / 32;
    const uint32_t n_blocks = (m.n + 15) / 16, n_k_blocks = sy_cu_k_blocks(m.k);
    const uint32_t begin = blockIdx.x * 8, width = m.n + m.n_tail, x_width = m.k + m.n_tail;

    if (begin >= end || block >= n_blocks) return;
    const uint32_t mine = begin + lane / 4;
    const float *in = mine < end ? x + ((size_t)mine * m.n_heads + head) * x_width : nullptr;
    const uint4 *from = static_cast<const uint4 *>(m.weights) +
                        ((size_t)head * n_blocks + block) * n_k_blocks * SY_CU_BLOCK_UINT4 + lane;
    float c[4] = {};

    for (uint32_t j = 0; j < n_k_blocks; j++) {
        uint4 w[4];
        uint32_t parts[PARTS][8];
        sy_cu_load_block(w, from + (size_t)j * SY_CU_BLOCK_UINT4);
        load_inputs(parts, in, j * 64 + lane % 4 * 16, m.k);
        add_products(c, w, parts);
    }
    SY_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint32_t r = begin + lane % 4 * 2 + i % 2, o = block * 16 + lane / 4 + i / 2 * 8;
        if (r < end && o < m.n) y[((size_t)r * m.n_heads + head) * width + o] = c[i];
    }
    if (block == 0 && in != nullptr)
        for (uint32_t i = lane % 4; i < m.n_tail; i += 4)
            y[((size_t)mine * m.n_heads + head) * width + m.n + i] = in[m.k + i];
}

extern "C" int sy_cuda_linear_heads(float *y, const float *x, const sy_cuda_head_matrices *w,
                                    const sy_cuda_row_count *rows, void *stream)
{
    const uint32_t n_blocks = (w->n + 15) / 16;

    if (rows->max == 0) return 0;
    return SY_LAUNCH(
        heads_kernel,
        dim3((rows->max + 7) / 8, (n_blocks + SY_CU_WARPS - 1) / SY_CU_WARPS, w->n_heads),
        dim3(SY_CU_WARPS * 32), stream, y, x, *w, rows->n);
}
