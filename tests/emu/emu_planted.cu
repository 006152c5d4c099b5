/* emu_planted.cu - see emu_planted.h. Every kernel has one line that stands or falls with BUG. */
#include "emu_planted.h"

#include "sy_cu.h"

enum { N = EMU_PLANTED_THREADS, LANES = 32 };
#define ALL_LANES 0xffffffffu

template <bool BUG> __global__ void neighbour_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;

    s[i] = in[i];
    if (!BUG) __syncthreads();
    out[i] = s[(i + 1) % N];
}

template <bool BUG> __global__ void reuse_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;

    s[i] = in[i];
    __syncthreads();
    const uint32_t first = s[(i + 1) % N];
    if (!BUG) __syncthreads();
    s[i] = 2 * in[i];
    __syncthreads();
    out[i] = first + s[(i + 1) % N];
}

template <bool BUG> __global__ void copy_kernel(uint4 *out, const uint4 *in)
{
    SY_SHARED(uint4, s, [N / 4]);
    const uint32_t i = threadIdx.x;

    sy_cp_async(&s[i], &in[i], true);
    sy_cp_async_commit();
    sy_cp_async_commit();
    sy_cp_async_wait<BUG ? 2 : 1>();
    __syncthreads();
    out[i] = s[(i + 1) % (N / 4)];
    sy_cp_async_wait<0>();
}

template <bool BUG> __global__ void count_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t i = threadIdx.x;

    __syncthreads(); /* orders a block, not two */
    if (BUG) {
        out[i] += in[i];
    } else {
        atomicAdd(&out[i], in[i]);
    }
}

template <bool BUG> __global__ void shared_overrun_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;
    uint32_t *to = s; /* so that no compiler sees where it ends */

    to[BUG ? i + 1 : i] = in[i];
    __syncthreads();
    out[i] = s[i];
}

template <bool BUG> __global__ void global_overrun_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t i = threadIdx.x;

    out[i] = in[BUG ? i + 5 : i + 4];
}

template <bool BUG> __global__ void unwritten_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;

    if (!BUG || i < N / 2) s[i] = in[i];
    __syncthreads();
    out[i] = s[i];
}

template <bool BUG> __global__ void misaligned_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t i = threadIdx.x;
    const uint4 *from = reinterpret_cast<const uint4 *>(in + (BUG ? 1 : 0));

    out[i] = from[i / 4].x;
}

template <bool BUG> __global__ void divergent_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;

    s[i] = in[i];
    if (BUG && i % 2 == 0) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[i] = s[(i + 1) % N];
}

template <bool BUG> __global__ void left_kernel(uint32_t *out, const uint32_t *in)
{
    SY_SHARED(uint32_t, s, [N]);
    const uint32_t i = threadIdx.x;

    s[i] = in[i];
    if (BUG && i >= N / 2) return;
    __syncthreads();
    out[i] = s[(i + 1) % N];
}

template <bool BUG> __global__ void lane_left_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t i = threadIdx.x;

    if (BUG && i % LANES >= LANES / 2) return;
    out[i] = __shfl_xor_sync(ALL_LANES, in[i], 1);
}

template <bool BUG> __global__ void lanes_apart_kernel(uint32_t *out, const uint32_t *in)
{
    const uint32_t i = threadIdx.x;

    if (BUG && i % 2 == 0) {
        out[i] = __shfl_xor_sync(ALL_LANES, in[i], 1);
    } else {
        out[i] = __shfl_xor_sync(ALL_LANES, in[i], 1);
    }
}

template <bool BUG> static int run(emu_bug bug, uint32_t *out, const uint32_t *in)
{
    const dim3 one(1), two(2), threads(N);
    void *stream = nullptr;
    uint4 *out4 = reinterpret_cast<uint4 *>(out);
    const uint4 *in4 = reinterpret_cast<const uint4 *>(in);

    switch (bug) {
    case BUG_BARRIER_MISSING:
        return SY_LAUNCH(neighbour_kernel<BUG>, one, threads, stream, out, in);
    case BUG_BARRIER_MISSING_LATE:
        return SY_LAUNCH(reuse_kernel<BUG>, one, threads, stream, out, in);
    case BUG_WAIT_TOO_EARLY:
        return SY_LAUNCH(copy_kernel<BUG>, one, dim3(N / 4), stream, out4, in4);
    case BUG_COUNT_NOT_ATOMIC: return SY_LAUNCH(count_kernel<BUG>, two, threads, stream, out, in);
    case BUG_SHARED_OVERRUN:
        return SY_LAUNCH(shared_overrun_kernel<BUG>, one, threads, stream, out, in);
    case BUG_GLOBAL_OVERRUN:
        return SY_LAUNCH(global_overrun_kernel<BUG>, one, threads, stream, out, in);
    case BUG_SHARED_UNWRITTEN:
        return SY_LAUNCH(unwritten_kernel<BUG>, one, threads, stream, out, in);
    case BUG_MISALIGNED: return SY_LAUNCH(misaligned_kernel<BUG>, one, threads, stream, out, in);
    case BUG_BARRIER_DIVERGENT:
        return SY_LAUNCH(divergent_kernel<BUG>, one, threads, stream, out, in);
    case BUG_BARRIER_LEFT: return SY_LAUNCH(left_kernel<BUG>, one, threads, stream, out, in);
    case BUG_LANE_LEFT: return SY_LAUNCH(lane_left_kernel<BUG>, one, threads, stream, out, in);
    default: return SY_LAUNCH(lanes_apart_kernel<BUG>, one, threads, stream, out, in);
    }
}

extern "C" void emu_planted_run(emu_bug bug, int planted, uint32_t *out, const uint32_t *in)
{
    if (planted) {
        run<true>(bug, out, in);
    } else {
        run<false>(bug, out, in);
    }
}

extern "C" uint32_t emu_planted_want(emu_bug bug, const uint32_t *in, uint32_t i)
{
    switch (bug) {
    case BUG_BARRIER_MISSING:
    case BUG_BARRIER_DIVERGENT:
    case BUG_BARRIER_LEFT: return in[(i + 1) % N];
    case BUG_BARRIER_MISSING_LATE: return 3 * in[(i + 1) % N];
    case BUG_WAIT_TOO_EARLY: return in[(i + 4) % N];
    case BUG_COUNT_NOT_ATOMIC: return 2 * in[i];
    case BUG_GLOBAL_OVERRUN: return in[i + 4];
    case BUG_MISALIGNED: return in[i / 4 * 4];
    case BUG_LANE_LEFT:
    case BUG_LANES_APART: return in[i ^ 1];
    default: return in[i];
    }
}
