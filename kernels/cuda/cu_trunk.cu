/* cu_trunk.cu - what the trunk does to whole rows: embedding, norms, residual sums. One block a
 * row, its threads side by side along it. */
#include "sy_cu_math.h"
#include "sy_cuda_trunk.h"

enum { THREADS = 256, WARPS = THREADS / 32 };
#define ALL_LANES 0xffffffffu

/* The sum of every thread's v, the same in all: lanes pairwise, then warps in order. */
static __device__ __forceinline__ float block_sum(float v)
{
    SY_SHARED(float, of_warp, [WARPS]);
    float sum = 0.0f;

    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(ALL_LANES, v, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) sum += of_warp[i];
    __syncthreads(); /* or the next sum would overtake */
    return sum;
}

__global__ void __launch_bounds__(THREADS)
    embed_kernel(float *x, const uint16_t *embedding, const uint32_t *token, uint32_t hidden,
                 float factor, const uint32_t *n_rows)
{
    if (blockIdx.x >= *n_rows) return;
    const uint16_t *from = embedding + (size_t)token[blockIdx.x] * hidden;
    float *to = x + (size_t)blockIdx.x * hidden;

    for (uint32_t i = threadIdx.x; i < hidden; i += THREADS)
        to[i] = __uint_as_float((uint32_t)from[i] << 16) * factor;
}

extern "C" int sy_cuda_embed(float *x, const uint16_t *embedding, const uint32_t *token,
                             uint32_t hidden, float factor, const sy_cuda_row_count *rows,
                             void *stream)
{
    if (rows->max == 0) return 0;
    return SY_LAUNCH(embed_kernel, dim3(rows->max), dim3(THREADS), stream, x, embedding, token,
                     hidden, factor, rows->n);
}

static __device__ __forceinline__ float mean_of(const float *x, uint32_t n)
{
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < n; i += THREADS) sum += x[i];
    return block_sum(sum) / (float)n;
}

/* A thread writes the elements that it alone reads, so y may be x. */
__global__ void __launch_bounds__(THREADS)
    norm_kernel(float *y, uint16_t *y16, const float *x, const uint32_t *row, sy_cuda_norm norm,
                const uint32_t *n_rows)
{
    if (blockIdx.x >= *n_rows) return;
    const float *from = x + (size_t)(row == nullptr ? blockIdx.x : row[blockIdx.x]) * norm.n;
    const uint32_t padded = (norm.n + 63) / 64 * 64;
    const float mean = norm.form == SY_CUDA_NORM_LAYER ? mean_of(from, norm.n) : 0.0f;
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < norm.n; i += THREADS) {
        const float v = from[i] - mean;
        sum = fmaf(v, v, sum);
    }
    const float r = 1.0f / sqrtf(block_sum(sum) / (float)norm.n + norm.eps);
    for (uint32_t i = threadIdx.x; i < padded; i += THREADS) {
        float v = 0.0f;
        if (i < norm.n) {
            v = norm.weight[i] * ((from[i] - mean) * r);
            if (norm.bias != nullptr) v += norm.bias[i];
            if (y != nullptr) y[(size_t)blockIdx.x * norm.n + i] = v;
        }
        if (y16 != nullptr) y16[(size_t)blockIdx.x * padded + i] = sy_cu_to_bf16(v);
    }
}

extern "C" int sy_cuda_norm_rows(float *y, uint16_t *y16, const float *x, const uint32_t *row,
                                 const sy_cuda_norm *norm, const sy_cuda_row_count *rows,
                                 void *stream)
{
    if (rows->max == 0) return 0;
    return SY_LAUNCH(norm_kernel, dim3(rows->max), dim3(THREADS), stream, y, y16, x, row, *norm,
                     rows->n);
}

__global__ void __launch_bounds__(THREADS)
    add_kernel(float *x, const float *y, float factor, const float *row_factor, uint32_t hidden,
               const uint32_t *n_rows)
{
    if (blockIdx.x >= *n_rows) return;
    const size_t at = (size_t)blockIdx.x * hidden;
    const float by = row_factor == nullptr ? factor : row_factor[blockIdx.x] * factor;

    for (uint32_t i = threadIdx.x; i < hidden; i += THREADS)
        x[at + i] = fmaf(by, y[at + i], x[at + i]);
}

extern "C" int sy_cuda_add(float *x, const float *y, float factor, const float *row_factor,
                           uint32_t hidden, const sy_cuda_row_count *rows, void *stream)
{
    if (rows->max == 0) return 0;
    return SY_LAUNCH(add_kernel, dim3(rows->max), dim3(THREADS), stream, x, y, factor, row_factor,
                     hidden, rows->n);
}

__global__ void __launch_bounds__(THREADS)
    shared_gate_kernel(float *gate, const float *x, const float *w, uint32_t hidden,
                       const uint32_t *n_rows)
{
    if (blockIdx.x >= *n_rows) return;
    const float *from = x + (size_t)blockIdx.x * hidden;
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x; i < hidden; i += THREADS) sum = fmaf(from[i], w[i], sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0) gate[blockIdx.x] = 1.0f / (1.0f + sy_cu_exp(-sum));
}

extern "C" int sy_cuda_shared_gate(float *gate, const float *x, const float *w, uint32_t hidden,
                                   const sy_cuda_row_count *rows, void *stream)
{
    if (rows->max == 0) return 0;
    return SY_LAUNCH(shared_gate_kernel, dim3(rows->max), dim3(THREADS), stream, gate, x, w, hidden,
                     rows->n);
}
