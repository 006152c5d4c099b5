/* cu_rows.cu - rows on their way into and out of the experts: rounding and padding, and the
 * weighted sum over a token's experts. One block a row, its threads side by side along it. */
#include "sy_cu_math.h"
#include "sy_cuda_kernels.h"

enum { THREADS = 128 };

static __device__ __forceinline__ uint16_t as_bf16(float v)
{
    return sy_cu_to_bf16(v);
}

static __device__ __forceinline__ uint16_t as_bf16(uint16_t v)
{
    return v;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(uint16_t *out, const T *x, size_t x_stride, uint32_t hidden, uint32_t padded)
{
    const T *from = x + blockIdx.x * x_stride;
    uint16_t *to = out + (size_t)blockIdx.x * padded;

    for (uint32_t i = threadIdx.x; i < padded; i += THREADS)
        to[i] = i < hidden ? as_bf16(from[i]) : (uint16_t)0;
}

template <class T>
static int launch_rows(uint16_t *out, const T *x, size_t x_stride, uint32_t n_rows, uint32_t hidden,
                       void *stream)
{
    if (n_rows == 0) return 0;
    return SY_LAUNCH((rows_kernel<T>), dim3(n_rows), dim3(THREADS), stream, out, x, x_stride,
                     hidden, (hidden + 63) / 64 * 64);
}

extern "C" int sy_cuda_rows_from_f32(uint16_t *out, const float *x, size_t x_stride,
                                     uint32_t n_rows, uint32_t hidden, void *stream)
{
    return launch_rows(out, x, x_stride, n_rows, hidden, stream);
}

extern "C" int sy_cuda_rows_from_bf16(uint16_t *out, const uint16_t *x, size_t x_stride,
                                      uint32_t n_rows, uint32_t hidden, void *stream)
{
    return launch_rows(out, x, x_stride, n_rows, hidden, stream);
}

__global__ void __launch_bounds__(THREADS)
    combine_kernel(float *out, const float *y, const uint32_t *row, const float *weight, uint32_t k,
                   uint32_t hidden)
{
    const size_t first = (size_t)blockIdx.x * k;

    for (uint32_t i = threadIdx.x; i < hidden; i += THREADS) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < k; j++)
            sum = fmaf(weight[first + j], y[(size_t)row[first + j] * hidden + i], sum);
        out[(size_t)blockIdx.x * hidden + i] = sum;
    }
}

extern "C" int sy_cuda_combine(float *out, const float *y, const uint32_t *row, const float *weight,
                               uint32_t n_tokens, uint32_t k, uint32_t hidden, void *stream)
{
    if (n_tokens == 0) return 0;
    return SY_LAUNCH(combine_kernel, dim3(n_tokens), dim3(THREADS), stream, out, y, row, weight, k,
                     hidden);
}
