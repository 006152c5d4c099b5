/* gpu_data.cu - see gpu_data.h. */
#include "gpu_data.h"

#include "sy_cu_math.h"

enum { THREADS = 256, UNROLL = 8 };
static const uint32_t BLOCKS = 2048;

/* The finaliser of splitmix64. */
static __device__ __forceinline__ uint64_t mixed(uint64_t v)
{
    v += 0x9e3779b97f4a7c15ull;
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
    v = (v ^ v >> 27) * 0x94d049bb133111ebull;
    return v ^ v >> 31;
}

static __device__ __forceinline__ float unit(uint64_t seed, uint64_t i)
{
    return (float)(int32_t)mixed(seed ^ i << 8) * 4.656612873077393e-10f; /* 2^-31 */
}

static __device__ __forceinline__ void store(uint16_t *out, uint64_t seed, uint64_t i, float scale)
{
    out[i] = sy_cu_to_bf16(unit(seed, i) * scale);
}

static __device__ __forceinline__ void store(float *out, uint64_t seed, uint64_t i, float scale)
{
    out[i] = unit(seed, i) * scale;
}

static __device__ __forceinline__ void store(uint32_t *out, uint64_t seed, uint64_t i, float)
{
    out[i] = (uint32_t)mixed(seed ^ i << 8);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    fill_kernel(T *out, uint64_t n, uint64_t seed, float scale)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        store(out, seed, i, scale);
}

template <class T> static int fill(T *out, uint64_t n, uint64_t seed, float scale, void *stream)
{
    const uint64_t blocks = (n + THREADS - 1) / THREADS;
    const uint32_t grid = blocks < BLOCKS ? (uint32_t)blocks : BLOCKS;

    if (n == 0) return 0;
    return SY_LAUNCH((fill_kernel<T>), dim3(grid), dim3(THREADS), stream, out, n, seed, scale);
}

extern "C" int gpu_fill_bf16(uint16_t *out, uint64_t n, uint64_t seed, float scale, void *stream)
{
    return fill(out, n, seed, scale, stream);
}

extern "C" int gpu_fill_f32(float *out, uint64_t n, uint64_t seed, float scale, void *stream)
{
    return fill(out, n, seed, scale, stream);
}

extern "C" int gpu_fill_words(uint32_t *out, uint64_t n, uint64_t seed, void *stream)
{
    return fill(out, n, seed, 0.0f, stream);
}

/* Blocks take UNROLL * THREADS neighbours at a time; what is left over goes one by one. */
__global__ void __launch_bounds__(THREADS)
    read_kernel(uint32_t *sink, const uint4 *data, uint64_t n)
{
    const uint64_t part = (uint64_t)UNROLL * THREADS;
    uint32_t seen = 0;

    for (uint64_t first = blockIdx.x * part; first < n; first += gridDim.x * part) {
        uint4 v[UNROLL];
        SY_UNROLL
        for (int i = 0; i < UNROLL; i++) {
            const uint64_t at = first + (uint64_t)i * THREADS + threadIdx.x;
            v[i] = sy_load_stream(data + (at < n ? at : n - 1));
        }
        SY_UNROLL
        for (int i = 0; i < UNROLL; i++) seen ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (seen == 0x5eed5eedu) *sink = seen;
}

extern "C" int gpu_read(uint32_t *sink, const void *data, uint64_t bytes, void *stream)
{
    if (bytes == 0) return 0;
    return SY_LAUNCH(read_kernel, dim3(BLOCKS), dim3(THREADS), stream, sink,
                     static_cast<const uint4 *>(data), bytes / 16);
}

__global__ void __launch_bounds__(32) spin_kernel(uint32_t us)
{
#ifdef __CUDA_ARCH__
    uint64_t begin, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < (uint64_t)us * 1000u);
#else
    (void)us;
#endif
}

extern "C" int gpu_spin(uint32_t us, void *stream)
{
    return SY_LAUNCH(spin_kernel, dim3(1), dim3(32), stream, us);
}
