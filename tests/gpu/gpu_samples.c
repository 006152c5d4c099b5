/* gpu_samples.c - calls that have to work, memory, and times of runs: see gpu_measure.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench_stats.h"
#include "gpu_data.h"
#include "gpu_measure.h"
#include "sy_base.h"

enum { SERIES = 32, RUNS_MAX = 64, RUNS_MIN = 4, WARM_RUNS = 2 };
#define ENQUEUE_US 12 /* of the host, for one run and its events: generous */

void gpu_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fflush(stdout);
    fputs("measure_gpu: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void gpu_check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) gpu_die("%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

int gpu_launched(int error)
{
    return error;
}

/* ---- the stream ---- */

static cudaStream_t stream_in_use; /* the program has one */

cudaStream_t gpu_stream_open(void)
{
    GPU_DO(cudaStreamCreateWithFlags(&stream_in_use, cudaStreamNonBlocking));
    return stream_in_use;
}

/* ---- memory ---- */

void *gpu_alloc(size_t bytes)
{
    void *p = NULL;

    if (bytes > 0) GPU_DO(cudaMalloc(&p, bytes));
    return p;
}

void gpu_free(void *p)
{
    if (p != NULL) GPU_DO(cudaFree(p));
}

size_t gpu_free_bytes(void)
{
    size_t n_free, n_total;

    GPU_DO(cudaMemGetInfo(&n_free, &n_total));
    return n_free;
}

/* Copies go by the stream of the kernels, so they see what those have written. */
static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (bytes == 0) return;
    GPU_DO(cudaMemcpyAsync(to, from, bytes, kind, stream_in_use));
    GPU_DO(cudaStreamSynchronize(stream_in_use));
}

void gpu_put(void *device, const void *host, size_t bytes)
{
    copy(device, host, bytes, cudaMemcpyHostToDevice);
}

void gpu_get(void *host, const void *device, size_t bytes)
{
    copy(host, device, bytes, cudaMemcpyDeviceToHost);
}

void *gpu_host(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);

    if (p == NULL) gpu_die("no %zu bytes of memory", bytes);
    return p;
}

/* ---- times ---- */

typedef struct series {
    cudaEvent_t begin[SERIES], end[SERIES];
} series;

static void series_open(series *s)
{
    for (int i = 0; i < SERIES; i++) {
        GPU_DO(cudaEventCreate(&s->begin[i]));
        GPU_DO(cudaEventCreate(&s->end[i]));
    }
}

static void series_close(series *s)
{
    for (int i = 0; i < SERIES; i++) {
        GPU_DO(cudaEventDestroy(s->begin[i]));
        GPU_DO(cudaEventDestroy(s->end[i]));
    }
}

static void enqueue(gpu_work work, uint32_t run, void *stream)
{
    gpu_check((cudaError_t)work.run(work.arg, run, stream), "a launch");
}

/* us: [n]. first: how many runs there were before. */
static void run_series(const gpu_bench *bench, const series *s, gpu_work work, double *us,
                       uint32_t n, uint32_t first)
{
    gpu_check((cudaError_t)gpu_spin(n * ENQUEUE_US, bench->stream), "the wait");
    for (uint32_t i = 0; i < n; i++) {
        GPU_DO(cudaEventRecord(s->begin[i], bench->stream));
        enqueue(work, first + i, bench->stream);
        GPU_DO(cudaEventRecord(s->end[i], bench->stream));
    }
    GPU_DO(cudaStreamSynchronize(bench->stream));
    for (uint32_t i = 0; i < n; i++) {
        float ms;
        GPU_DO(cudaEventElapsedTime(&ms, s->begin[i], s->end[i]));
        us[i] = (double)ms * 1e3;
    }
}

gpu_time gpu_measure(const gpu_bench *bench, gpu_work work)
{
    double us[RUNS_MAX], sum_us = 0.0;
    uint32_t n = 0;
    series s;

    series_open(&s);
    for (uint32_t i = 0; i < WARM_RUNS; i++) enqueue(work, RUNS_MAX + i, bench->stream);
    while (n < RUNS_MAX && (n < RUNS_MIN || sum_us < bench->limit_ms * 1e3)) {
        const double each_us = n == 0 ? bench->limit_ms * 1e3 / RUNS_MIN : sum_us / n;
        const double wanted = SY_MAX(bench->limit_ms * 1e3 / SY_MAX(each_us, 0.1), RUNS_MIN);
        const uint32_t count = SY_MIN((uint32_t)SY_MIN(wanted, SERIES), RUNS_MAX - n);
        run_series(bench, &s, work, us + n, count, n);
        for (uint32_t i = 0; i < count; i++) sum_us += us[n + i];
        n += count;
    }
    series_close(&s);
    gpu_time time = {.n = n};
    time.median_us = bench_quantile(us, n, 0.5);
    time.best_us = us[0];
    return time;
}

double gpu_now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

gpu_time gpu_measure_alone(const gpu_bench *bench, gpu_work work)
{
    double us[RUNS_MAX], enqueue_us[RUNS_MAX], sum_us = 0.0;
    gpu_time time = {0};

    for (uint32_t i = 0; i < WARM_RUNS; i++) enqueue(work, RUNS_MAX + i, bench->stream);
    GPU_DO(cudaStreamSynchronize(bench->stream));
    while (time.n < RUNS_MAX && (time.n < RUNS_MIN || sum_us < bench->limit_ms * 1e3)) {
        const double begin_s = gpu_now_s();
        enqueue(work, time.n, bench->stream);
        enqueue_us[time.n] = (gpu_now_s() - begin_s) * 1e6;
        GPU_DO(cudaStreamSynchronize(bench->stream));
        us[time.n] = (gpu_now_s() - begin_s) * 1e6;
        sum_us += us[time.n++];
    }
    time.median_us = bench_quantile(us, time.n, 0.5);
    time.best_us = us[0];
    time.enqueue_us = bench_quantile(enqueue_us, time.n, 0.5);
    return time;
}

uint32_t gpu_random_u32(gpu_random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 32);
}
