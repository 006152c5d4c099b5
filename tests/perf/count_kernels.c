/* count_kernels.c - matrix products for instructions.py, which counts what each call of run_case
 * executes. Prints a line a case, in order: its name, then its products. Rounding the activations
 * is part of a case. The implementation is always avx2: callgrind knows no wider vectors. That
 * results are right is for tests/kernels to say. */
#include <stdio.h>
#include <stdlib.h>

#include "sy_kernels.h"

/* Emulated multiply-adds are slow: no more than shows a loop's cost beside its ends. */
enum { K = 256, N = 64, T_MAX = 64 };

typedef struct variant {
    const char *name;
    sy_dtype dtype;
    sy_activations activations;
} variant;

typedef struct counter {
    const sy_kernels *kernels;
    void *weights; /* packed */
    float *x;      /* [T_MAX][K] */
    sy_qrows q;    /* x as int8 */
    uint16_t *bf;  /* [T_MAX][K]: x as bf16 */
    float *y;      /* [T_MAX][N] */
} counter;

/* Counted is what lies between the calls of this function and of end_case. */
static __attribute__((noinline)) void run_case(const counter *c, variant v, size_t T)
{
    const sy_panels w = {c->weights, v.dtype, N, K};
    const size_t n_panels = sy_panels_count(N);

    if (v.activations == SY_ACT_Q8) {
        c->kernels->quantize(&c->q, 0, c->x, K, T, K);
        c->kernels->matmul_q8(c->y, N, &c->q, NULL, T, &w, 0, n_panels);
    } else if (v.activations == SY_ACT_BF16) {
        c->kernels->round_bf16(c->bf, c->x, T * K);
        c->kernels->matmul_bf16(c->y, N, c->bf, K, NULL, T, &w, 0, n_panels);
    } else {
        c->kernels->matmul(c->y, N, c->x, K, NULL, T, &w, 0, n_panels);
    }
}

static __attribute__((noinline)) void end_case(variant v, size_t T)
{
    printf("%s, T = %zu: %zu\n", v.name, T, T * N * K);
}

static float small_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static void pack_weights(const counter *c, sy_dtype dtype)
{
    static float full[N * K];
    static uint16_t half[N * K];
    static uint8_t blocks[N * K * 2];
    const void *source = dtype == SY_BF16 ? (const void *)half : blocks;
    uint32_t random = 1;

    for (size_t i = 0; i < (size_t)N * K; i++) {
        full[i] = small_random(&random);
        half[i] = sy_f32_to_bf16(full[i]);
    }
    if (dtype != SY_BF16) {
        const sy_status st = sy_quantize_rows(blocks, dtype, full, SY_F32, N, K);
        SY_ASSERT(st == SY_OK); /* the numbers are below one */
    }
    sy_panels_pack(c->weights, source, dtype, N, K, 0, sy_panels_count(N));
}

static int allocate(counter *c)
{
    void *qrows = aligned_alloc(64, (sy_qrows_bytes(T_MAX, K) + 63) / 64 * 64);
    uint32_t random = 2;

    c->weights = aligned_alloc(64, (sy_panels_bytes(SY_F32, N, K) + 63) / 64 * 64);
    c->x = aligned_alloc(64, sizeof(float) * T_MAX * K);
    c->bf = aligned_alloc(64, sizeof(uint16_t) * T_MAX * K);
    c->y = aligned_alloc(64, sizeof(float) * T_MAX * N);
    if (qrows == NULL || c->weights == NULL || c->x == NULL || c->bf == NULL || c->y == NULL)
        return 0;
    sy_qrows_at(&c->q, qrows, T_MAX, K);
    for (size_t i = 0; i < (size_t)T_MAX * K; i++) c->x[i] = small_random(&random);
    return 1;
}

int main(void)
{
    static const variant variants[] = {
        {"bf16 by f32", SY_BF16, SY_ACT_F32}, {"q8 by f32", SY_Q8, SY_ACT_F32},
        {"q4 by f32", SY_Q4, SY_ACT_F32},     {"q8 by q8", SY_Q8, SY_ACT_Q8},
        {"q4 by q8", SY_Q4, SY_ACT_Q8},       {"bf16 by bf16", SY_BF16, SY_ACT_BF16},
    };
    static const size_t tokens[] = {1, T_MAX};
    counter c = {.kernels = sy_kernels_find("avx2")};

    if (c.kernels == NULL || !allocate(&c)) {
        fprintf(stderr, "count_kernels: %s\n",
                c.kernels == NULL ? "no AVX2 with FMA on this machine" : "no memory");
        return 1;
    }
    for (size_t i = 0; i < SY_COUNT_OF(variants); i++) {
        pack_weights(&c, variants[i].dtype);
        for (size_t t = 0; t < SY_COUNT_OF(tokens); t++) {
            run_case(&c, variants[i], tokens[t]);
            end_case(variants[i], tokens[t]);
        }
    }
    return 0; /* the memory goes with the process */
}
