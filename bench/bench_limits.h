/* bench_limits.h - what the machine could do at best, measured in the same minute as the figure
 * that is compared to it. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stddef.h>
#include <stdint.h>

double bench_now_s(void); /* monotonic seconds */

/* The loops themselves, once, for those who run several at a time. They return the work done:
 * operations, 0 for "ref"; bytes. */
double bench_fma_chains(const char *kernels);
double bench_bf16_chains(const char *kernels); /* pairs of bf16 where an instruction adds them, else
                                                  multiply-adds of floats */
double bench_int8_chains(const char *kernels); /* multiply-adds of bytes, two operations each */
double bench_read(const void *memory, size_t bytes, unsigned n_streams);

/* Multiply-adds in registers only, one thread, with the widest vectors that the named kernels use:
 * GFLOP/s, 0 for "ref". */
double bench_fma_peak_gflops(const char *kernels);

/* Multiply-adds of bytes in registers only, one thread: VNNI's where the named kernels have it,
 * pairs summed in 16 bits otherwise. GOP/s, 0 for "ref". */
double bench_bf16_peak_gflops(const char *kernels);
double bench_int8_peak_gops(const char *kernels);

/* Reads memory in four streams, one thread: GB/s. memory is 64-byte aligned and larger than the
 * caches. */
double bench_dram_read_gbps(const void *memory, size_t bytes);

/* Zeroed memory, in huge pages where the system gives them; NULL if there is none. Lives until the
 * process ends. */
void *bench_memory(size_t bytes);

#endif
