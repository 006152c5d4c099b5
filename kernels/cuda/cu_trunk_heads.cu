/* cu_trunk_heads.cu - what becomes of queries and keys between their projection and attention: one
 * warp a head, which it holds in shared memory. */
#include "sy_cu_math.h"
#include "sy_cuda_trunk.h"

enum { WARPS = 4 };
#define ALL_LANES 0xffffffffu

static __device__ __forceinline__ void norm_head(float *v, const sy_cuda_heads &h, uint32_t lane)
{
    float sum = 0.0f;

    for (uint32_t i = lane; i < h.norm_dim; i += 32) sum = fmaf(v[i], v[i], sum);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    const float r = 1.0f / sqrtf(sum / (float)h.norm_dim + h.norm_eps);
    for (uint32_t i = lane; i < h.norm_dim; i += 32) {
        const float scaled = v[i] * r;
        v[i] = h.norm_weight == nullptr ? scaled : h.norm_weight[i] * scaled;
    }
}

static __device__ __forceinline__ void rotate_head(float *v, const sy_cuda_heads &h,
                                                   const float *angles, uint32_t lane)
{
    const uint32_t half = h.rotary_dim / 2;

    for (uint32_t i = lane; i < half; i += 32) {
        const uint32_t first = h.rotary_at + (h.interleaved ? 2 * i : i);
        const uint32_t second = first + (h.interleaved ? 1 : half);
        const float c = angles[i], s = angles[half + i], a = v[first], b = v[second];
        v[first] = a * c - b * s;
        v[second] = b * c + a * s;
    }
}

/* Grid: (heads / WARPS, rows). */
__global__ void __launch_bounds__(WARPS * 32)
    heads_kernel(float *x, sy_cuda_heads h, const uint32_t *position, const uint32_t *angle,
                 const uint32_t *n_rows)
{
    SY_SHARED(float, of_warp, [WARPS][SY_CUDA_KEY_MAX]);
    const uint32_t lane = threadIdx.x % 32, t = blockIdx.y;
    const uint32_t head = blockIdx.x * WARPS + threadIdx.x / 32;

    if (t >= *n_rows || head >= h.n_heads || position[t] == SY_CUDA_NO_POSITION) return;
    float *to = x + ((size_t)t * h.n_heads + head) * h.head_dim;
    float *v = of_warp[threadIdx.x / 32];
    float factor = 1.0f;

    /* A lane has elements lane, lane + 32, ... but while it rotates pairs. */
    for (uint32_t i = lane; i < h.head_dim; i += 32) v[i] = to[i];
    if (h.norm == SY_CUDA_NORM_THEN_ROTATE) norm_head(v, h, lane);
    if (h.clip > 0.0f)
        for (uint32_t i = lane; i < h.head_dim; i += 32) v[i] = fminf(fmaxf(v[i], -h.clip), h.clip);
    if (h.rotary_dim > 0) {
        __syncwarp();
        rotate_head(v, h, h.angles + (size_t)angle[t] * h.rotary_dim, lane);
        __syncwarp();
    }
    if (h.norm == SY_CUDA_ROTATE_THEN_NORM) norm_head(v, h, lane);
    if (h.temperature_scale != 0.0f) {
        const float steps = floorf(((float)position[t] + 1.0f) / h.temperature_floor);
        factor = 1.0f + h.temperature_scale * log1pf(steps);
    }
    for (uint32_t i = lane; i < h.head_dim; i += 32) to[i] = v[i] * factor;
}

extern "C" int sy_cuda_finish_heads(float *x, const sy_cuda_heads *heads,
                                    const sy_cuda_places *places, const sy_cuda_row_count *rows,
                                    void *stream)
{
    if (heads->head_dim > SY_CUDA_KEY_MAX) return 1;
    if (rows->max == 0) return 0;
    return SY_LAUNCH(heads_kernel, dim3((heads->n_heads + WARPS - 1) / WARPS, rows->max),
                     dim3(WARPS * 32), stream, x, *heads, places->position, places->angle, rows->n);
}
