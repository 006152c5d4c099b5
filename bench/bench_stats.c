/* bench_stats.c - order statistics. */
#include "bench_stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void bench_samples_add(bench_samples *samples, double seconds)
{
    if (samples->n < BENCH_SAMPLES_MAX) samples->value[samples->n++] = seconds;
}

double bench_quantile(double *values, size_t n, double q)
{
    if (n == 0) return 0;
    qsort(values, n, sizeof(values[0]), by_value);
    const size_t rank = (size_t)ceil(q * (double)n);
    return values[rank == 0 ? 0 : rank - 1];
}
