/* bench_machine.c - the limits of this machine: memory read by one and two threads in one, four and
 * eight streams, multiply-adds in registers (of floats,
 * bf16 and bytes), and round trips over bare sockets. Everything else is
 * quoted as a share or a multiple of these. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_echo.h"
#include "bench_limits.h"
#include "bench_stats.h"
#include "sy_args.h"
#include "sy_kernels.h"

#define THREADS_MAX      2
#define MEMORY_BYTES     ((size_t)256 << 20) /* a thread: several times the largest cache */
#define REPETITIONS      7
#define REPETITIONS_FAST 3
#define FMA_PER_READ     10 /* its loop is short: one of many finds all cores free */

/* ---- several threads at the same loop ---- */

typedef struct job {
    double (*run)(const struct job *job); /* returns the work done */
    const char *kernels;
    const void *memory;
    unsigned n_streams;
    pthread_barrier_t *start;
    double begin_s, end_s, work;
} job;

static double run_fma(const job *j)
{
    return bench_fma_chains(j->kernels);
}

static double run_pairs(const job *j)
{
    return bench_bf16_chains(j->kernels);
}

static double run_int8(const job *j)
{
    return bench_int8_chains(j->kernels);
}

static double run_read(const job *j)
{
    return bench_read(j->memory, MEMORY_BYTES, j->n_streams);
}

static void *thread_main(void *arg)
{
    job *j = arg;

    pthread_barrier_wait(j->start);
    j->begin_s = bench_now_s();
    j->work = j->run(j);
    j->end_s = bench_now_s();
    return NULL;
}

/* Work a second of all threads together, from the first start to the last end. 0: no threads. */
static double together(job *jobs, unsigned n_threads)
{
    pthread_t thread[THREADS_MAX];
    pthread_barrier_t start;
    unsigned n;
    double begin_s, end_s, work = 0;

    pthread_barrier_init(&start, NULL, n_threads);
    for (n = 0; n < n_threads; n++) jobs[n].start = &start;
    for (n = 1; n < n_threads; n++)
        if (pthread_create(&thread[n], NULL, thread_main, &jobs[n]) != 0) {
            fprintf(stderr, "bench_machine: no thread\n");
            exit(1);
        }
    thread_main(&jobs[0]);
    for (n = 1; n < n_threads; n++) pthread_join(thread[n], NULL);
    pthread_barrier_destroy(&start);
    begin_s = jobs[0].begin_s;
    end_s = jobs[0].end_s;
    for (n = 0; n < n_threads; n++) {
        begin_s = SY_MIN(begin_s, jobs[n].begin_s);
        end_s = SY_MAX(end_s, jobs[n].end_s);
        work += jobs[n].work;
        jobs[n].start = NULL;
    }
    return work / (end_s - begin_s);
}

typedef struct figure {
    double best, median; /* a limit is the best seen; the median tells how quiet the machine was */
} figure;

static figure measure(job *jobs, unsigned n_threads, int repetitions)
{
    double rate[REPETITIONS * FMA_PER_READ];
    figure f;

    for (int i = 0; i < repetitions; i++) rate[i] = together(jobs, n_threads) * 1e-9;
    f.median = bench_quantile(rate, (size_t)repetitions, 0.5);
    f.best = rate[repetitions - 1];
    return f;
}

/* ---- figures ---- */

static void print_dram(job *jobs, int repetitions)
{
    static const unsigned streams[] = {1, 4, 8};

    printf("  \"dram\": [");
    for (unsigned threads = 1; threads <= THREADS_MAX; threads++)
        for (size_t s = 0; s < SY_COUNT_OF(streams); s++) {
            for (unsigned t = 0; t < threads; t++) {
                jobs[t].run = run_read;
                jobs[t].n_streams = streams[s];
            }
            const figure f = measure(jobs, threads, repetitions);
            printf(
                "%s\n    {\"threads\": %u, \"streams\": %u, \"gbps\": %.2f, \"median_gbps\": %.2f}",
                threads > 1 || s > 0 ? "," : "", threads, streams[s], f.best, f.median);
        }
    printf("\n  ],\n");
}

/* Multiply-adds of floats, of pairs of bf16, and of bytes, two operations each. */
static void print_arithmetic(job *jobs, const sy_kernels *kernels, int repetitions)
{
    static const struct {
        const char *name;
        double (*run)(const job *j);
    } chains[] = {{"fma", run_fma}, {"bf16", run_pairs}, {"int8", run_int8}};

    printf("  \"kernels\": \"%s\",\n", kernels->name);
    for (size_t c = 0; c < SY_COUNT_OF(chains); c++) {
        printf("  \"%s\": [", chains[c].name);
        for (unsigned threads = 1; threads <= THREADS_MAX; threads++) {
            for (unsigned t = 0; t < threads; t++) {
                jobs[t].run = chains[c].run;
                jobs[t].kernels = kernels->name;
            }
            const figure f = measure(jobs, threads, repetitions * FMA_PER_READ);
            printf("%s\n    {\"threads\": %u, \"gflops\": %.1f, \"median_gflops\": %.1f}",
                   threads > 1 ? "," : "", threads, f.best, f.median);
        }
        printf("\n  ],\n");
    }
}

/* Checks the first answer, then times round trips for `seconds`. 0: failed. */
static int ping_pong(bench_samples *out, bench_echo *echo, size_t bytes, double seconds)
{
    static unsigned char sent[BENCH_ECHO_BYTES_MAX], back[BENCH_ECHO_BYTES_MAX];

    for (size_t i = 0; i < bytes; i++) sent[i] = (unsigned char)(i * 131 >> 3);
    if (!bench_echo_exchange(echo, sent, back, bytes) || memcmp(sent, back, bytes) != 0) return 0;
    out->n = 0;
    for (const double end_s = bench_now_s() + seconds; bench_now_s() < end_s;) {
        const double start_s = bench_now_s();
        if (!bench_echo_exchange(echo, sent, back, bytes)) return 0;
        bench_samples_add(out, bench_now_s() - start_s);
    }
    return 1;
}

static int print_sockets(bench_echo *echoes, double seconds)
{
    static const size_t sizes[] = {16, 4096, 32768, 262144};
    static bench_samples samples;

    printf("  \"sockets\": [");
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++)
        for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
            if (!ping_pong(&samples, &echoes[t], sizes[i], seconds)) {
                fprintf(stderr, "bench_machine: %s, %zu bytes: the echo differs or never came\n",
                        bench_transport_names[t], sizes[i]);
                return 0;
            }
            printf("%s\n    {\"transport\": \"%s\", \"bytes\": %zu, \"p50_us\": %.1f, "
                   "\"p99_us\": %.1f, \"samples\": %zu}",
                   t > 0 || i > 0 ? "," : "", bench_transport_names[t], sizes[i],
                   bench_quantile(samples.value, samples.n, 0.5) * 1e6,
                   bench_quantile(samples.value, samples.n, 0.99) * 1e6, samples.n);
        }
    printf("\n  ]\n");
    return 1;
}

int main(int argc, char **argv)
{
    job jobs[THREADS_MAX] = {0};
    bench_echo echoes[BENCH_N_TRANSPORTS];
    int is_quick = 0;
    sy_error err;
    const sy_arg args[] = {
        {.name = "quick", .help = "fewer repetitions", .kind = SY_ARG_FLAG, .out = &is_quick}};
    const sy_status st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "bench_machine [options]: the limits of this machine, as JSON", NULL, 0, NULL, &err);

    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK) {
        fprintf(stderr, "bench_machine: error: %s\n", err.message);
        return 2;
    }
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++) /* they fork: before the memory, and any thread */
        if (!bench_echo_open(&echoes[t], (bench_transport)t)) return 1;
    for (int t = 0; t < THREADS_MAX; t++)
        if ((jobs[t].memory = bench_memory(MEMORY_BYTES)) == NULL) {
            fprintf(stderr, "bench_machine: no memory for %d x %zu MiB\n", THREADS_MAX,
                    MEMORY_BYTES >> 20);
            return 1;
        }
    const int repetitions = is_quick ? REPETITIONS_FAST : REPETITIONS;
    printf("{\n");
    print_arithmetic(jobs, sy_kernels_best(), repetitions);
    print_dram(jobs, repetitions);
    const int is_ok = print_sockets(echoes, is_quick ? 0.1 : 0.5);
    printf("}\n");
    for (int t = 0; t < BENCH_N_TRANSPORTS; t++) bench_echo_close(&echoes[t]);
    return is_ok ? 0 : 1;
}
