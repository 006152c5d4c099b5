/* bench_kernels.c - how fast the matrix product is, as shares of what this machine can do:
 * operations against multiply-adds in registers (of floats, of pairs of bf16, or of bytes, as the
 * activations are), weight bytes read against memory read in four streams. One thread; weights
 * larger than the caches, a different matrix each call, as when experts alternate. Rounding the
 * activations to int8 is part of what is timed. Results are compared with the reference, bit by
 * bit, before anything is timed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_limits.h"
#include "sy_args.h"
#include "sy_kernels.h"

#define K             2048
#define N             1024
#define T_MAX         512
#define ROWS_CHECKED  16 /* x repeats its first rows, so that checking these checks all */
#define WEIGHTS_BYTES ((size_t)256 << 20)
#define SECONDS       0.25 /* a figure, after warming up */
#define SAMPLES_MAX   256

typedef struct variant {
    sy_dtype dtype;
    sy_activations activations;
} variant;

typedef struct bench {
    const sy_kernels *kernels;
    uint8_t *weights; /* WEIGHTS_BYTES: as many copies of one matrix as fit */
    float *x;         /* [T_MAX][K] */
    sy_qrows q;       /* x as int8 */
    uint16_t *pairs;  /* x as bf16 */
    float *y;         /* [T_MAX][N] */
    float *want;      /* [ROWS_CHECKED][N], from the reference */
    int json;
    int n_figures;
} bench;

static sy_panels matrix_at(const bench *b, sy_dtype dtype, size_t i)
{
    const size_t bytes = sy_panels_bytes(dtype, N, K);

    return (sy_panels){b->weights + i % (WEIGHTS_BYTES / bytes) * bytes, dtype, N, K};
}

static void multiply(const bench *b, const sy_kernels *kernels, float *y, size_t T, variant v,
                     size_t matrix)
{
    const sy_panels w = matrix_at(b, v.dtype, matrix);

    if (v.activations == SY_ACT_Q8) {
        kernels->quantize(&b->q, 0, b->x, K, T, K);
        kernels->matmul_q8(y, N, &b->q, NULL, T, &w, 0, sy_panels_count(N));
    } else if (v.activations == SY_ACT_BF16) {
        kernels->round_bf16(b->pairs, b->x, T * K);
        kernels->matmul_bf16(y, N, b->pairs, K, NULL, T, &w, 0, sy_panels_count(N));
    } else {
        kernels->matmul(y, N, b->x, K, NULL, T, &w, 0, sy_panels_count(N));
    }
}

static float small_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* A row of codes that are all numbers, and its factors. */
static void encode_row(uint8_t *to, sy_dtype dtype, const float *row)
{
    const size_t n_blocks = K / SY_FP8_BLOCK, n_groups = K / SY_QUANT_BLOCK;
    const float factor = 1.0f / 448.0f; /* of the largest code */

    if (dtype == SY_FP8) {
        for (size_t k = 0; k < K; k++) to[k] = sy_f32_to_f8_e4m3(row[k] / factor);
        for (size_t b = 0; b < n_blocks; b++)
            memcpy(to + K + b * sizeof(factor), &factor, sizeof(factor));
        return;
    }
    for (size_t i = 0; i < K / 2; i++) to[i] = (uint8_t)(int)(row[i] * 127.0f);
    memset(to + K / 2, 124, n_groups); /* 2^-3 */
}

/* The weights as they are stored. NULL: no memory. */
static uint8_t *make_weights(sy_dtype dtype, uint32_t *random)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, K);
    const size_t item_bytes = sy_dtype_bytes(dtype);
    uint8_t *out = malloc(N * row_bytes);
    float row[K];

    if (out == NULL) return NULL;
    for (size_t n = 0; n < N; n++) {
        uint8_t *to = out + n * row_bytes;
        for (size_t k = 0; k < K; k++) row[k] = small_random(random);
        if (sy_dtype_is_quant(dtype)) {
            const sy_status st = sy_quantize_rows(to, dtype, row, SY_F32, 1, K);
            SY_ASSERT(st == SY_OK); /* the numbers are below one */
            continue;
        }
        if (sy_dtype_is_encoded(dtype)) {
            encode_row(to, dtype, row);
            continue;
        }
        for (size_t k = 0; k < K; k++) {
            const uint16_t half = dtype == SY_BF16 ? sy_f32_to_bf16(row[k]) : sy_f32_to_f16(row[k]);
            const void *from = item_bytes == sizeof(float) ? (const void *)&row[k] : &half;
            memcpy(to + k * item_bytes, from, item_bytes);
        }
    }
    return out;
}

/* Fills x and every copy of the matrix, and computes what the reference makes of them. 0: no
 * memory. */
static int prepare(bench *b, variant v)
{
    const size_t bytes = sy_panels_bytes(v.dtype, N, K);
    uint32_t random = 1;
    uint8_t *source = make_weights(v.dtype, &random);

    if (source == NULL) return 0;
    sy_panels_pack(b->weights, source, v.dtype, N, K, 0, sy_panels_count(N));
    free(source);
    for (size_t i = 1; i < WEIGHTS_BYTES / bytes; i++)
        memcpy(b->weights + i * bytes, b->weights, bytes);
    for (size_t i = 0; i < (size_t)ROWS_CHECKED * K; i++) b->x[i] = small_random(&random);
    for (size_t t = ROWS_CHECKED; t < T_MAX; t++)
        memcpy(b->x + t * K, b->x + t % ROWS_CHECKED * K, K * sizeof(float));
    multiply(b, sy_kernels_at(0), b->want, ROWS_CHECKED, v, 0);
    return 1;
}

static int results_are_right(const bench *b, variant v, size_t T)
{
    multiply(b, b->kernels, b->y, T, v, 0);
    for (size_t t = 0; t < T; t++) {
        const void *got = b->y + t * N, *want = b->want + t % ROWS_CHECKED * N;
        if (memcmp(got, want, N * sizeof(float)) != 0) return 0; /* bits, not values */
    }
    return 1;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median time of a call. A sample is several calls on matrices that are no longer cached. */
static double seconds_per_call(const bench *b, variant v, size_t T)
{
    double sample[SAMPLES_MAX];
    const size_t n_calls = T <= 16 ? 4 : 1;
    const double end = bench_now_s() + SECONDS;
    size_t n = 0, matrix = 1;

    while (n < 3 || (n < SAMPLES_MAX && bench_now_s() < end)) {
        const double start = bench_now_s();
        for (size_t i = 0; i < n_calls; i++) multiply(b, b->kernels, b->y, T, v, matrix++);
        sample[n++] = (bench_now_s() - start) / (double)n_calls;
    }
    qsort(sample, n, sizeof(sample[0]), by_value);
    return sample[n / 2];
}

static int measure(bench *b, variant v, size_t T)
{
    static const char *const activations[] = {"f32", "q8", "bf16"};
    static double (*const peak[])(const char *) = {bench_fma_peak_gflops, bench_int8_peak_gops,
                                                   bench_bf16_peak_gflops};
    const char *dtype = sy_dtype_name(v.dtype), *by = activations[v.activations];
    const char *name = b->kernels->name;

    if (!results_are_right(b, v, T)) {
        fprintf(stderr,
                "bench_kernels: %s, %s by %s, T = %zu: results differ from ref; not timed\n", name,
                dtype, by, T);
        return 0;
    }
    const double peak_gops = peak[v.activations](name);
    const double dram_gbps = bench_dram_read_gbps(b->weights, WEIGHTS_BYTES);
    const double s = seconds_per_call(b, v, T);
    const double gops = 2.0 * (double)T * N * K / s * 1e-9;
    const double gbps = (double)sy_panels_bytes(v.dtype, N, K) / s * 1e-9;
    const double peak_share = peak_gops > 0 ? gops / peak_gops : 0;

    if (b->json) {
        printf("%s\n  {\"kernels\": \"%s\", \"dtype\": \"%s\", \"activations\": \"%s\", "
               "\"T\": %zu, \"K\": %d, \"N\": %d, \"us\": %.1f, \"gops\": %.2f, "
               "\"peak_gops\": %.2f, \"peak_share\": %.3f, \"weights_gbps\": %.2f, "
               "\"dram_gbps\": %.2f, \"dram_share\": %.3f}",
               b->n_figures++ > 0 ? "," : "", name, dtype, by, T, K, N, s * 1e6, gops, peak_gops,
               peak_share, gbps, dram_gbps, gbps / dram_gbps);
    } else {
        printf("%-7s %-5s %-5s %4zu %10.1f %8.1f %8.1f %5.0f %% %8.1f %8.1f %5.0f %%\n", name,
               dtype, by, T, s * 1e6, gops, peak_gops, 100 * peak_share, gbps, dram_gbps,
               100 * gbps / dram_gbps);
    }
    fflush(stdout);
    return 1;
}

/* All figures of the chosen implementation, or of every vector implementation that runs here; of
 * one weight type (SY_DTYPE_NONE: all). */
static int measure_all(bench *b, const sy_kernels *chosen, sy_dtype only)
{
    static const variant variants[] = {
        {SY_BF16, SY_ACT_F32}, {SY_F16, SY_ACT_F32},   {SY_F32, SY_ACT_F32},   {SY_Q8, SY_ACT_F32},
        {SY_Q4, SY_ACT_F32},   {SY_FP8, SY_ACT_F32},   {SY_MXFP4, SY_ACT_F32}, {SY_Q8, SY_ACT_Q8},
        {SY_Q4, SY_ACT_Q8},    {SY_BF16, SY_ACT_BF16},
    };
    static const size_t tokens[] = {1, 2, 4, 8, 16, 64, 512};

    for (size_t d = 0; d < SY_COUNT_OF(variants); d++) {
        if (only != SY_DTYPE_NONE && variants[d].dtype != only) continue;
        if (!prepare(b, variants[d])) return 0;
        for (size_t i = 0; i < sy_kernels_count(); i++) {
            b->kernels = sy_kernels_at(i);
            if (chosen != NULL ? b->kernels != chosen : i == 0) continue;
            for (size_t t = 0; t < SY_COUNT_OF(tokens); t++)
                if (!measure(b, variants[d], tokens[t])) return 0;
        }
    }
    return 1;
}

/* SY_DTYPE_NONE for NULL; 0 when the name is none of a weight type's. */
static int dtype_named(sy_dtype *out, const char *name)
{
    *out = SY_DTYPE_NONE;
    if (name == NULL) return 1;
    for (int d = SY_F32; d <= SY_MXFP4; d++)
        if (strcmp(name, sy_dtype_name((sy_dtype)d)) == 0) *out = (sy_dtype)d;
    return *out != SY_DTYPE_NONE;
}

static int allocate(bench *b)
{
    uint8_t *qrows = bench_memory(sy_qrows_bytes(T_MAX, K));

    b->weights = bench_memory(WEIGHTS_BYTES);
    b->x = bench_memory((size_t)T_MAX * K * sizeof(float));
    b->pairs = bench_memory((size_t)T_MAX * K * sizeof(uint16_t));
    b->y = bench_memory((size_t)T_MAX * N * sizeof(float));
    b->want = bench_memory((size_t)ROWS_CHECKED * N * sizeof(float));
    if (b->weights == NULL || b->x == NULL || b->y == NULL || b->want == NULL || qrows == NULL ||
        b->pairs == NULL) {
        fprintf(stderr, "bench_kernels: no memory for %zu MiB of weights\n", WEIGHTS_BYTES >> 20);
        return 0;
    }
    sy_qrows_at(&b->q, qrows, T_MAX, K);
    return 1;
}

int main(int argc, char **argv)
{
    bench b = {0};
    const char *name = NULL, *dtype_name = NULL;
    sy_dtype dtype;
    const sy_kernels *chosen = NULL;
    sy_error err;
    const sy_arg args[] = {
        {.name = "kernels",
         .value = "NAME",
         .help = "only this implementation; default: all but ref",
         .kind = SY_ARG_STRING,
         .out = &name},
        {.name = "dtype",
         .value = "TYPE",
         .help = "only this type of weights: bf16, f16, f32, q8, q4, fp8 or mxfp4",
         .kind = SY_ARG_STRING,
         .out = &dtype_name},
        {.name = "json",
         .help = "a JSON array instead of a table",
         .kind = SY_ARG_FLAG,
         .out = &b.json},
    };

    const sy_status st = sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                                       "bench_kernels [options]", NULL, 0, NULL, &err);
    if (st == SY_ECANCELLED) return 0;
    if (st != SY_OK || (name != NULL && sy_kernels_choose(&chosen, name, &err) != SY_OK)) {
        fprintf(stderr, "bench_kernels: %s\n", err.message);
        return 2;
    }
    if (!dtype_named(&dtype, dtype_name)) {
        fprintf(
            stderr,
            "bench_kernels: no weights of type '%s'; use bf16, f16, f32, q8, q4, fp8 or mxfp4\n",
            dtype_name);
        return 2;
    }
    if (!allocate(&b)) return 1;
    if (b.json) {
        printf("[");
    } else {
        printf("matmul, K = %d, N = %d, 1 thread; limits measured before each line\n", K, N);
        printf("%-7s %-5s %-5s %4s %10s %8s %8s %7s %8s %8s %7s\n", "kernels", "dtype", "by", "T",
               "us", "GOP/s", "peak", "share", "GB/s", "DRAM", "share");
    }
    const int ok = measure_all(&b, chosen, dtype);
    if (b.json) printf("\n]\n");
    return ok ? 0 : 1;
}
