/* sy_emu.h - what a .cu file sees of CUDA when a C++ compiler builds it: every thread of a block is
 * a fiber, blocks run one after another on one OS thread: the caller's for a launch on stream NULL,
 * which has run when the launch returns; otherwise the stream's (sy_emu_stream.h), where launches
 * of all threads take turns, with the arguments as they were at the launch. For tests alone.
 *
 * It is unkind where CUDA promises nothing. Fibers, and blocks, run in the order that SY_EMU_ORDER
 * in the environment says: "linear", "reverse", or "random:SEED" (the default, with seed 1), drawn
 * anew at every turn. Shared memory starts as 0xff bytes, which are NaN. An asynchronous copy
 * spoils its target at once and lands only when waited for. It ends the process, with block and
 * thread on stderr, when threads meet at different barriers or warp primitives (by line), when a
 * primitive names a lane that has left, when threads have left before a barrier, when nobody can go
 * on, when something is written past a shared array, and when a thread leaves copies behind.
 *
 * With ThreadSanitizer every CUDA thread of stream NULL is a fiber of its own there, too, and only
 * the start and end of a launch, __syncthreads and __syncwarp order memory: shuffles, mma and
 * atomics do not. So a race, in shared or global memory, is reported with its two lines whatever
 * the values were; one between blocks, when fewer than SETS (sy_emu.cpp) lie from one to the other.
 * On a stream all of a kernel is one thread, the stream's, so that launches, and only they, are
 * held against each other. What an atomic or a fence would order is beyond it: memory is
 * sequentially consistent.
 *
 * Not emulated: dynamic shared memory, clusters, wgmma, TMA, device-side rounding of the tensor
 * core (sums here are exact, rounded once), and time. */
#ifndef SY_EMU_H
#define SY_EMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint3 {
    unsigned x, y, z;
};
struct __attribute__((aligned(16))) uint4 {
    unsigned x, y, z, w;
};

/* ---- the emulator's side: sy_emu.cpp, sy_emu_warp.cpp ---- */

struct sy_emu_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane;
};
const sy_emu_place *sy_emu_here(void); /* of the running thread */
void sy_emu_launch(dim3 grid, dim3 block, void (*body)(void *), void *argument, bool on_stream);
/* Has run(argument), and at last drop(argument), called in the stream's turn: 0 or an error. */
int sy_emu_enqueue_on(void *stream, void (*run)(void *), void (*drop)(void *), void *argument);
/* The array of this block that `key` stands for, 16-byte aligned. */
void *sy_emu_shared(const void *key, size_t n);

enum sy_emu_barrier_kind { SY_EMU_BARRIER, SY_EMU_BARRIER_OR, SY_EMU_BARRIER_COUNT };
int sy_emu_barrier(sy_emu_barrier_kind kind, int predicate, int line);

enum sy_emu_warp_kind {
    SY_EMU_SYNCWARP = 1,
    SY_EMU_SHUFFLE,
    SY_EMU_BALLOT,
    SY_EMU_LDMATRIX,
    SY_EMU_MMA
};
/* What the lanes of a warp put into a primitive: lane l's words in word[l]. */
enum { SY_EMU_LANE_WORDS = 6 };
struct sy_emu_lanes {
    uint32_t word[32][SY_EMU_LANE_WORDS];
};
/* Waits until all lanes of the mask have come with their words; the answer holds until this lane's
 * next primitive. */
const sy_emu_lanes *sy_emu_meet(sy_emu_warp_kind kind, uint32_t mask, const uint32_t *word,
                                size_t n_words, int line);
void sy_emu_mma(float c[4], const uint32_t a_and_b[6], int line);

/* The asynchronous copies of the running thread. */
void sy_emu_copy_start(void *to, const void *from);
void sy_emu_copy_commit(void);
/* The next copy that a wait for all but the latest `keep` groups makes land; 0: there is none. */
int sy_emu_copy_land(int keep, void **to, const void **from);

/* ---- CUDA's spelling ---- */

#define threadIdx (sy_emu_here()->thread)
#define blockIdx  (sy_emu_here()->block)
#define blockDim  (sy_emu_here()->block_dim)
#define gridDim   (sy_emu_here()->grid_dim)

/* A launch, with the arguments as they are now. */
template <class... Parameters> struct sy_emu_call {
    dim3 grid, block;
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;

    static void thread(void *self)
    {
        sy_emu_call *call = static_cast<sy_emu_call *>(self);
        std::apply(call->kernel, call->arguments);
    }
    static void run(void *self)
    {
        sy_emu_call *call = static_cast<sy_emu_call *>(self);
        sy_emu_launch(call->grid, call->block, thread, self, true);
    }
    static void drop(void *self)
    {
        delete static_cast<sy_emu_call *>(self);
    }
};
template <class... Parameters, class... Arguments>
static inline int sy_emu_run(dim3 grid, dim3 block, void *stream, void (*kernel)(Parameters...),
                             Arguments &&...arguments)
{
    typedef sy_emu_call<Parameters...> call;
    const std::tuple<Parameters...> now(static_cast<Parameters>(arguments)...);

    if (stream != nullptr)
        return sy_emu_enqueue_on(stream, call::run, call::drop, new call{grid, block, kernel, now});
    call self{grid, block, kernel, now};
    sy_emu_launch(grid, block, call::thread, &self, false);
    return 0;
}
#define SY_LAUNCH(kernel, grid, block, stream, ...) \
    sy_emu_run((grid), (block), (void *)(stream), (kernel), __VA_ARGS__)
#define SY_SHARED(T, name, dims)      \
    static const char name##_key = 0; \
    typedef T name##_type dims;       \
    name##_type &name = *static_cast<name##_type *>(sy_emu_shared(&name##_key, sizeof(name##_type)))

static inline void __syncthreads(int line = __builtin_LINE())
{
    sy_emu_barrier(SY_EMU_BARRIER, 0, line);
}
static inline int __syncthreads_or(int predicate, int line = __builtin_LINE())
{
    return sy_emu_barrier(SY_EMU_BARRIER_OR, predicate != 0, line) != 0;
}
static inline int __syncthreads_count(int predicate, int line = __builtin_LINE())
{
    return sy_emu_barrier(SY_EMU_BARRIER_COUNT, predicate != 0, line);
}
static inline void __syncwarp(uint32_t mask = 0xffffffffu, int line = __builtin_LINE())
{
    sy_emu_meet(SY_EMU_SYNCWARP, mask, nullptr, 0, line);
}

/* The value of lane `from`; a lane outside the mask has none to give, and its words are stale. */
template <class T> static inline T sy_emu_shuffle(uint32_t mask, T value, unsigned from, int line)
{
    uint32_t word[SY_EMU_LANE_WORDS] = {0};
    T result;

    static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= sizeof(word), "whole words");
    memcpy(word, &value, sizeof(value));
    const sy_emu_lanes *lanes = sy_emu_meet(SY_EMU_SHUFFLE, mask, word, sizeof(T) / 4, line);
    memcpy(&result, lanes->word[from], sizeof(result));
    return result;
}
template <class T>
static inline T __shfl_sync(uint32_t mask, T value, int from, int line = __builtin_LINE())
{
    return sy_emu_shuffle(mask, value, (unsigned)from % 32, line);
}
template <class T>
static inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int line = __builtin_LINE())
{
    return sy_emu_shuffle(mask, value, (sy_emu_here()->lane ^ (unsigned)bits) % 32, line);
}
template <class T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned n, int line = __builtin_LINE())
{
    const unsigned lane = sy_emu_here()->lane;
    return sy_emu_shuffle(mask, value, lane + n < 32 ? lane + n : lane, line);
}
template <class T>
static inline T __shfl_up_sync(uint32_t mask, T value, unsigned n, int line = __builtin_LINE())
{
    const unsigned lane = sy_emu_here()->lane;
    return sy_emu_shuffle(mask, value, lane >= n ? lane - n : lane, line);
}
static inline uint32_t __ballot_sync(uint32_t mask, int predicate, int line = __builtin_LINE())
{
    const uint32_t word = predicate != 0;
    const sy_emu_lanes *lanes = sy_emu_meet(SY_EMU_BALLOT, mask, &word, 1, line);
    uint32_t bits = 0;

    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1) bits |= lanes->word[l][0] << l;
    return bits;
}
static inline int __any_sync(uint32_t mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) != 0;
}
static inline int __all_sync(uint32_t mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) == mask;
}

/* Atomics order nothing but themselves. */
template <class T> static inline T atomicAdd(T *p, T v)
{
    T old, sum;

    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        sum = old + v;
    } while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
template <class T> static inline T atomicMax(T *p, T v)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);

    while (old < v &&
           !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T v)
{
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
static inline int __popc(uint32_t bits)
{
    return __builtin_popcount(bits);
}
static inline uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* ---- sy_cu_ptx.h's names ---- */

static inline void sy_mma_bf16(float c[4], uint4 a, uint32_t b0, uint32_t b1,
                               int line = __builtin_LINE())
{
    const uint32_t word[6] = {a.x, a.y, a.z, a.w, b0, b1};

    sy_emu_mma(c, word, line);
}

/* Rounds more than once where the result is no bf16; the kernels want only what is one. */
static inline uint32_t sy_emu_fma_bf16(uint32_t a, uint32_t b, uint32_t c)
{
    const float f = (float)((double)__uint_as_float(a << 16) * (double)__uint_as_float(b << 16) +
                            (double)__uint_as_float(c << 16));
    const uint32_t bits = __float_as_uint(f);

    if (f != f) return 0x7fff; /* the NaN that the instruction gives */
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
static inline uint32_t sy_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return sy_emu_fma_bf16(a & 0xffffu, b & 0xffffu, c & 0xffffu) |
           sy_emu_fma_bf16(a >> 16, b >> 16, c >> 16) << 16;
}
static inline float sy_widen_f16(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000) << 16;
    const uint32_t magnitude = __float_as_uint(__uint_as_float((v & 0x7fffu) << 13) * 0x1p112f);

    return __uint_as_float(sign | ((v & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000u : magnitude));
}

/* Rows are read here, by the lane that gets them, so that the sanitizers see it. */
static inline uint4 sy_ldmatrix_x4(const void *row, int line = __builtin_LINE())
{
    const unsigned lane = sy_emu_here()->lane;
    uint32_t word[2], r[4];

    memcpy(word, &row, sizeof(word));
    const sy_emu_lanes *lanes = sy_emu_meet(SY_EMU_LDMATRIX, 0xffffffffu, word, 2, line);
    for (unsigned j = 0; j < 4; j++) {
        const uint4 *from;
        memcpy(&from, lanes->word[8 * j + lane / 4], sizeof(from));
        const uint4 whole = *from;
        const uint32_t part[4] = {whole.x, whole.y, whole.z, whole.w};
        r[j] = part[lane % 4];
    }
    return {r[0], r[1], r[2], r[3]};
}

static inline void sy_cp_async(uint4 *to, const uint4 *from, bool take)
{
    *to = {0xeeeeeeeeu, 0xeeeeeeeeu, 0xeeeeeeeeu, 0xeeeeeeeeu};
    sy_emu_copy_start(to, take ? from : nullptr);
}
static inline void sy_cp_async_commit()
{
    sy_emu_copy_commit();
}
template <int KEEP> static inline void sy_cp_async_wait()
{
    void *to;
    const void *from;

    while (sy_emu_copy_land(KEEP, &to, &from)) {
        uint4 v = {0, 0, 0, 0};
        if (from != nullptr) v = *static_cast<const uint4 *>(from);
        *static_cast<uint4 *>(to) = v;
    }
}
static inline uint4 sy_load_stream(const uint4 *p)
{
    return *p;
}
static inline uint4 sy_load_stream_shared(const uint4 *p)
{
    return *p;
}

#endif
