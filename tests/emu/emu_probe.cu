/* emu_probe.cu - see emu_probe.h. */
#include "emu_probe.h"

#include "sy_cu.h"

#define ALL_LANES 0xffffffffu

__global__ void mma_kernel(float *c, const uint32_t *a, const uint32_t *b)
{
    const uint32_t lane = threadIdx.x;
    const uint4 fragment = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
    float sum[4] = {c[lane * 4], c[lane * 4 + 1], c[lane * 4 + 2], c[lane * 4 + 3]};

    sy_mma_bf16(sum, fragment, b[lane * 2], b[lane * 2 + 1]);
    SY_UNROLL
    for (int i = 0; i < 4; i++) c[lane * 4 + i] = sum[i];
}

__global__ void ldmatrix_kernel(uint32_t *out, const uint16_t *in)
{
    SY_SHARED(uint4, rows, [32]);
    const uint32_t lane = threadIdx.x;

    rows[lane] = reinterpret_cast<const uint4 *>(in)[lane];
    __syncwarp();
    const uint4 r = sy_ldmatrix_x4(&rows[lane]);
    out[lane * 4] = r.x;
    out[lane * 4 + 1] = r.y;
    out[lane * 4 + 2] = r.z;
    out[lane * 4 + 3] = r.w;
}

__global__ void shuffle_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t lane = threadIdx.x, v = in[lane];

    out[lane] = __shfl_sync(ALL_LANES, v, 3);
    out[32 + lane] = __shfl_xor_sync(ALL_LANES, v, 5);
    out[64 + lane] = __shfl_up_sync(ALL_LANES, v, 7);
    out[96 + lane] = __shfl_down_sync(ALL_LANES, v, 7);
    out[128 + lane] = __ballot_sync(ALL_LANES, (int)(v & 1));
}

__global__ void reduce_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t v = in[blockIdx.x * blockDim.x + threadIdx.x];
    const int n_odd = __syncthreads_count((int)(v & 1));

    atomicAdd(&out[0], v);
    atomicMax(&out[1], v);
    if (threadIdx.x == 0 && n_odd % 2 == 1) atomicAdd(&out[2], 1u);
}

__global__ void copy_kernel(uint4 *out, const uint4 *in)
{
    SY_SHARED(uint4, stage, [128]);
    const uint32_t i = threadIdx.x, n = blockDim.x;

    sy_cp_async(&stage[i], &in[i], i % 2 == 0);
    sy_cp_async_commit();
    sy_cp_async_wait<0>();
    __syncthreads();
    out[i] = stage[n - 1 - i];
}

__global__ void count_kernel(uint32_t *out, emu_probe_range range)
{
    out[threadIdx.x] = range.first + threadIdx.x * range.step;
}

extern "C" int emu_probe_mma(float *c, const uint32_t *a, const uint32_t *b, void *stream)
{
    return SY_LAUNCH(mma_kernel, dim3(1), dim3(32), stream, c, a, b);
}

extern "C" int emu_probe_ldmatrix(uint32_t *out, const uint16_t *in, void *stream)
{
    return SY_LAUNCH(ldmatrix_kernel, dim3(1), dim3(32), stream, out, in);
}

extern "C" int emu_probe_shuffles(uint32_t *out, const uint32_t *in, void *stream)
{
    return SY_LAUNCH(shuffle_kernel, dim3(1), dim3(32), stream, out, in);
}

extern "C" int emu_probe_reduce(uint32_t *out, const uint32_t *in, uint32_t blocks,
                                uint32_t threads, void *stream)
{
    return SY_LAUNCH(reduce_kernel, dim3(blocks), dim3(threads), stream, out, in);
}

extern "C" int emu_probe_copies(uint32_t *out, const uint32_t *in, uint32_t n, void *stream)
{
    return SY_LAUNCH(copy_kernel, dim3(1), dim3(n), stream, reinterpret_cast<uint4 *>(out),
                     reinterpret_cast<const uint4 *>(in));
}

extern "C" int emu_probe_count(uint32_t *out, uint32_t n, const emu_probe_range *range,
                               void *stream)
{
    return SY_LAUNCH(count_kernel, dim3(1), dim3(n), stream, out, *range);
}
