/* bench_stats.h - samples of a time, and what is quoted of them. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stddef.h>

#define BENCH_SAMPLES_MAX 65536

typedef struct bench_samples { /* seconds; past the maximum new ones are not kept */
    double value[BENCH_SAMPLES_MAX];
    size_t n;
} bench_samples;

void bench_samples_add(bench_samples *samples, double seconds);
/* The smallest value that q of all (0 < q <= 1) do not exceed; 0 without samples. Reorders. */
double bench_quantile(double *values, size_t n, double q);

#endif
