/* bench_limits.c - loops that do nothing but reach a limit of the machine. */
#include "bench_limits.h"

#include <immintrin.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define FMA_CHAINS  12 /* more than latency x units, so that the units are never idle */
#define FMA_ROUNDS  2000000
#define STREAMS     4 /* what one thread reads fastest with, give or take */
#define REPETITIONS 3
#define HUGE_BYTES  ((size_t)2 << 20)

double bench_now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The empty assembly uses the results, so that the compiler cannot drop the work. */
__attribute__((target("avx2,fma"), noinline)) static void fma_chains_avx2(void)
{
    __m256 chain[FMA_CHAINS];
    __m256 a = _mm256_set1_ps(0.999f);

    for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm256_set1_ps((float)i);
    for (size_t r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
        for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm256_fmadd_ps(chain[i], a, a);
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < FMA_CHAINS; i++) __asm__ volatile("" : : "x"(chain[i]));
}

__attribute__((target("avx512f"), noinline)) static void fma_chains_avx512(void)
{
    __m512 chain[FMA_CHAINS];
    __m512 a = _mm512_set1_ps(0.999f);

    for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm512_set1_ps((float)i);
    for (size_t r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
        for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm512_fmadd_ps(chain[i], a, a);
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < FMA_CHAINS; i++) __asm__ volatile("" : : "v"(chain[i]));
}

double bench_fma_chains(const char *kernels)
{
    size_t lanes = 0;

    if (strcmp(kernels, "avx512") == 0) {
        fma_chains_avx512();
        lanes = 16;
    } else if (strcmp(kernels, "avx2") == 0) {
        fma_chains_avx2();
        lanes = 8;
    }
    return 2.0 * (double)lanes * FMA_CHAINS * FMA_ROUNDS;
}

/* Four products a lane of 32 bits and instruction, sums without saturation. */
__attribute__((target("avx512f,avx512vnni"), noinline)) static void int8_chains_vnni(void)
{
    __m512i chain[FMA_CHAINS];
    __m512i a = _mm512_set1_epi8(3);

    for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm512_set1_epi32((int)i);
    for (size_t r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
        for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm512_dpbusd_epi32(chain[i], a, a);
        __asm__ volatile("" : "+v"(a));
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < FMA_CHAINS; i++) __asm__ volatile("" : : "v"(chain[i]));
}

/* Two products a lane of 16 bits, and their addition. */
__attribute__((target("avx2"), noinline)) static void int8_chains_avx2(void)
{
    __m256i chain[FMA_CHAINS];
    __m256i a = _mm256_set1_epi8(3);

    for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm256_set1_epi16((short)i);
    for (size_t r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
        for (size_t i = 0; i < FMA_CHAINS; i++) {
            __asm__ volatile("" : "+x"(a)); /* each product is computed, though all are equal */
            chain[i] = _mm256_add_epi16(chain[i], _mm256_maddubs_epi16(a, a));
        }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < FMA_CHAINS; i++) __asm__ volatile("" : : "x"(chain[i]));
}

double bench_int8_chains(const char *kernels)
{
    size_t lanes = 0;

    if (strcmp(kernels, "avx512") == 0 && __builtin_cpu_supports("avx512vnni")) {
        int8_chains_vnni();
        lanes = 64;
    } else if (strcmp(kernels, "ref") != 0) {
        int8_chains_avx2();
        lanes = 32;
    }
    return 2.0 * (double)lanes * FMA_CHAINS * FMA_ROUNDS;
}

/* Two products a lane of 32 bits and instruction. */
__attribute__((target("avx512f,avx512bf16"), noinline)) static void pair_chains(void)
{
    __m512 chain[FMA_CHAINS];
    __m512i a = _mm512_set1_epi16(0x3f7f); /* just below one */

    for (size_t i = 0; i < FMA_CHAINS; i++) chain[i] = _mm512_set1_ps((float)i);
    for (size_t r = 0; r < FMA_ROUNDS; r++) {
#pragma GCC unroll 12
        for (size_t i = 0; i < FMA_CHAINS; i++)
            chain[i] = _mm512_dpbf16_ps(chain[i], (__m512bh)a, (__m512bh)a);
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < FMA_CHAINS; i++) __asm__ volatile("" : : "v"(chain[i]));
}

double bench_bf16_chains(const char *kernels)
{
    if (strcmp(kernels, "avx512") != 0 || !__builtin_cpu_supports("avx512bf16"))
        return bench_fma_chains(kernels);
    pair_chains();
    return 2.0 * 32 * FMA_CHAINS * FMA_ROUNDS;
}

static double best_rate(double (*chains)(const char *kernels), const char *kernels)
{
    double best = 0;

    for (int i = 0; i < REPETITIONS; i++) {
        const double start = bench_now_s();
        const double rate = chains(kernels) / (bench_now_s() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}

double bench_fma_peak_gflops(const char *kernels)
{
    return best_rate(bench_fma_chains, kernels);
}

double bench_int8_peak_gops(const char *kernels)
{
    return best_rate(bench_int8_chains, kernels);
}

double bench_bf16_peak_gflops(const char *kernels)
{
    return best_rate(bench_bf16_chains, kernels);
}

/* n_streams is a constant where this is inlined: the inner loop unrolls. */
__attribute__((target("avx2"), always_inline)) static inline void read_streams(const uint8_t *p,
                                                                               size_t part_bytes,
                                                                               size_t n_streams)
{
    __m256i all = _mm256_setzero_si256();

    for (size_t i = 0; i < part_bytes; i += 64)
        for (size_t s = 0; s < n_streams; s++) {
            const __m256i *line = (const __m256i *)(const void *)(p + s * part_bytes + i);
            all = _mm256_xor_si256(all, _mm256_xor_si256(line[0], line[1]));
        }
    __asm__ volatile("" : : "x"(all));
}

__attribute__((target("avx2"), noinline)) double bench_read(const void *memory, size_t bytes,
                                                            unsigned n_streams)
{
    const size_t part_bytes = bytes / n_streams / 64 * 64;

    switch (n_streams) {
    case 1: read_streams(memory, part_bytes, 1); break;
    case 4: read_streams(memory, part_bytes, 4); break;
    case 8: read_streams(memory, part_bytes, 8); break;
    default: read_streams(memory, part_bytes, n_streams); break;
    }
    return (double)(part_bytes * n_streams);
}

double bench_dram_read_gbps(const void *memory, size_t bytes)
{
    double best = 0;

    for (int i = 0; i < REPETITIONS; i++) {
        const double start = bench_now_s();
        const double gbps = bench_read(memory, bytes, STREAMS) / (bench_now_s() - start) * 1e-9;
        if (gbps > best) best = gbps;
    }
    return best;
}

void *bench_memory(size_t bytes)
{
    uint8_t *map =
        mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED) return NULL;
    uint8_t *aligned = map + (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
    madvise(aligned, bytes, MADV_HUGEPAGE); /* a wish: measured without where it is refused */
    memset(aligned, 0, bytes);
    return aligned;
}
