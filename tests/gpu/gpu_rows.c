/* gpu_rows.c - what surrounds the experts: the gate, rows on their way in and out, and packing.
 * Each is checked against the CPU, bit for bit, on all of its results. Runs take one slice of a
 * large memory after the other, so that what is read does not lie in the L2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_measure.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"
#include "sy_route.h"

#define REGION_BYTES_MIN ((size_t)256 << 20) /* and four times the L2 */

typedef struct rows_bench {
    const gpu_shape *shape;
    uint32_t n_tokens;
    sy_cuda_gate gate;
    size_t n_floats; /* of the region */
    float *region;   /* device: random; slices of it are inputs */
    float *out;      /* device: fp32 results */
    uint16_t *out_bf16;
    uint32_t *expert, *row; /* device: [T,K] */
    float *weight;          /* device: [T,K] */
} rows_bench;

/* Where a run's input of n floats begins. */
static size_t slice(const rows_bench *b, uint32_t run, size_t n)
{
    const size_t n_slices = b->n_floats / n;

    return n_slices == 0 ? 0 : run % n_slices * n;
}

static size_t region_floats(const gpu_bench *bench, const gpu_shape *s)
{
    const uint32_t *t = gpu_token_counts(bench);
    size_t most = 0, bytes;

    for (; *t != 0; t++) most = SY_MAX(most, (size_t)*t * s->k * s->hidden);
    most = SY_MAX(most, (size_t)s->ffn * s->hidden);
    bytes = bench->tiny ? 0 : SY_MAX(REGION_BYTES_MIN, 4 * (size_t)bench->l2_bytes);
    return SY_MAX(bytes / sizeof(float), most);
}

static rows_bench rows_open(const gpu_bench *bench, const gpu_shape *s)
{
    const uint32_t *t = gpu_token_counts(bench);
    uint32_t most = 0;
    rows_bench b = {.shape = s, .n_floats = region_floats(bench, s)};

    for (; *t != 0; t++) most = SY_MAX(most, *t);
    b.region = gpu_alloc(b.n_floats * sizeof(float));
    gpu_check((cudaError_t)gpu_fill_f32(b.region, b.n_floats, 3, 4.0f, bench->stream), "filling");
    b.out = gpu_alloc((size_t)most * s->hidden * sizeof(float));
    b.out_bf16 = gpu_alloc((size_t)most * sy_cuda_padded(s->hidden) * 2);
    b.expert = gpu_alloc((size_t)most * s->k * sizeof(uint32_t));
    b.row = gpu_alloc((size_t)most * s->k * sizeof(uint32_t));
    b.weight = gpu_alloc((size_t)most * s->k * sizeof(float));
    b.gate = (sy_cuda_gate){.score = SY_CUDA_SOFTMAX,
                            .n_experts = s->n_experts,
                            .k = s->k,
                            .renormalise = 1,
                            .scale = 1.0f};
    return b;
}

static void rows_close(rows_bench *b)
{
    gpu_free(b->region);
    gpu_free(b->out);
    gpu_free(b->out_bf16);
    gpu_free(b->expert);
    gpu_free(b->row);
    gpu_free(b->weight);
}

static gpu_figure figure_of(const rows_bench *b, const char *what, double bytes)
{
    return (gpu_figure){.what = what,
                        .how = "",
                        .weights = "",
                        .shape = b->shape->name,
                        .n_tokens = b->n_tokens,
                        .bytes = bytes};
}

/* n floats of the region, from `at` on. The caller frees them. */
static float *host_slice(const rows_bench *b, size_t at, size_t n)
{
    float *host = gpu_host(n * sizeof(float));

    gpu_get(host, b->region + at, n * sizeof(float));
    return host;
}

static void finish(gpu_bench *bench, const gpu_figure *f, int is_right, gpu_work work)
{
    if (!is_right) {
        gpu_wrong(bench, f, "not the CPU's bits");
        return;
    }
    gpu_print_checked(f);
    if (!bench->tiny) gpu_print_figure(f, gpu_measure(bench, work));
}

static void run_once(const gpu_bench *bench, gpu_work work)
{
    gpu_check((cudaError_t)work.run(work.arg, 0, bench->stream), "a launch");
}

/* ---- the gate ---- */

static int run_gate(void *arg, uint32_t run, void *stream)
{
    const rows_bench *b = arg;
    const size_t n = (size_t)b->n_tokens * b->shape->n_experts;

    return sy_cuda_gate_topk(b->expert, b->weight, b->region + slice(b, run, n), NULL, NULL,
                             b->n_tokens, &b->gate, stream);
}

static int is_gate_right(const rows_bench *b)
{
    const uint32_t E = b->shape->n_experts, k = b->shape->k;
    const sy_gate_desc desc = {.score = SY_GATE_SOFTMAX, .scale = 1.0f};
    const size_t n = (size_t)b->n_tokens * k;
    float *logits = host_slice(b, 0, (size_t)b->n_tokens * E);
    uint32_t *expert = gpu_host(n * sizeof(uint32_t));
    float *weight = gpu_host(n * sizeof(float));
    int is_right = 1;

    gpu_get(expert, b->expert, n * sizeof(uint32_t));
    gpu_get(weight, b->weight, n * sizeof(float));
    for (uint32_t t = 0; t < b->n_tokens; t++) {
        uint16_t want_expert[SY_CUDA_GATE_K_MAX];
        float want_weight[SY_CUDA_GATE_K_MAX];
        sy_route_select(want_expert, want_weight, logits + (size_t)t * E, NULL, E, k, 1, &desc,
                        sy_kernels_at(0));
        for (uint32_t i = 0; i < k; i++) is_right &= expert[(size_t)t * k + i] == want_expert[i];
        is_right &= memcmp(weight + (size_t)t * k, want_weight, k * sizeof(float)) == 0;
    }
    free(logits);
    free(expert);
    free(weight);
    return is_right;
}

static void measure_gate(gpu_bench *bench, rows_bench *b)
{
    const double n_results = (double)b->n_tokens * b->shape->k;
    const gpu_figure f =
        figure_of(b, "gate", 4.0 * (double)b->n_tokens * b->shape->n_experts + 8.0 * n_results);
    const gpu_work work = {run_gate, b};

    run_once(bench, work);
    finish(bench, &f, is_gate_right(b), work);
}

/* ---- combining ---- */

static int run_combine(void *arg, uint32_t run, void *stream)
{
    const rows_bench *b = arg;
    const size_t n = (size_t)b->n_tokens * b->shape->k * b->shape->hidden;

    return sy_cuda_combine(b->out, b->region + slice(b, run, n), b->row, b->weight, b->n_tokens,
                           b->shape->k, b->shape->hidden, stream);
}

/* Rows in an order as after a sort by expert: neighbours of a token lie far apart. */
static void set_rows(rows_bench *b, const gpu_bench *bench)
{
    const uint32_t n = b->n_tokens * b->shape->k;
    uint32_t *row = gpu_host(n * sizeof(uint32_t));

    for (uint32_t i = 0; i < n; i++) row[i] = i % b->shape->k * b->n_tokens + i / b->shape->k;
    gpu_put(b->row, row, n * sizeof(uint32_t));
    free(row);
    gpu_check((cudaError_t)gpu_fill_f32(b->weight, n, 4, 1.0f, bench->stream), "filling weights");
}

static int is_combine_right(const rows_bench *b)
{
    const uint32_t H = b->shape->hidden, k = b->shape->k, T = b->n_tokens;
    float *y = host_slice(b, 0, (size_t)T * k * H);
    float *got = gpu_host((size_t)T * H * sizeof(float));
    float *weight = gpu_host((size_t)T * k * sizeof(float));
    float *want = gpu_host(H * sizeof(float));
    int is_right = 1;

    gpu_get(got, b->out, (size_t)T * H * sizeof(float));
    gpu_get(weight, b->weight, (size_t)T * k * sizeof(float));
    for (uint32_t t = 0; t < T; t++) {
        memset(want, 0, H * sizeof(float));
        for (uint32_t j = 0; j < k; j++)
            sy_kernels_at(0)->axpy(want, y + ((size_t)j * T + t) * H, weight[(size_t)t * k + j], H);
        is_right &= memcmp(want, got + (size_t)t * H, H * sizeof(float)) == 0;
    }
    free(y);
    free(got);
    free(weight);
    free(want);
    return is_right;
}

static void measure_combine(gpu_bench *bench, rows_bench *b)
{
    const gpu_figure f =
        figure_of(b, "combine", 4.0 * b->n_tokens * (b->shape->k + 1.0) * b->shape->hidden);
    const gpu_work work = {run_combine, b};

    set_rows(b, bench);
    run_once(bench, work);
    finish(bench, &f, is_combine_right(b), work);
}

/* ---- rounding rows ---- */

static int run_rows(void *arg, uint32_t run, void *stream)
{
    const rows_bench *b = arg;
    const size_t n = (size_t)b->n_tokens * b->shape->hidden;

    return sy_cuda_rows_from_f32(b->out_bf16, b->region + slice(b, run, n), b->shape->hidden,
                                 b->n_tokens, b->shape->hidden, stream);
}

static int are_rows_right(const rows_bench *b)
{
    const uint32_t H = b->shape->hidden, padded = sy_cuda_padded(H);
    float *x = host_slice(b, 0, (size_t)b->n_tokens * H);
    uint16_t *got = gpu_host((size_t)b->n_tokens * padded * 2);
    int is_right = 1;

    gpu_get(got, b->out_bf16, (size_t)b->n_tokens * padded * 2);
    for (uint32_t t = 0; t < b->n_tokens; t++)
        for (uint32_t i = 0; i < padded; i++)
            is_right &=
                got[(size_t)t * padded + i] == (i < H ? sy_f32_to_bf16(x[(size_t)t * H + i]) : 0);
    free(x);
    free(got);
    return is_right;
}

static void measure_rounding(gpu_bench *bench, rows_bench *b)
{
    const gpu_figure f = figure_of(b, "rows_from_f32", 6.0 * b->n_tokens * b->shape->hidden);
    const gpu_work work = {run_rows, b};

    run_once(bench, work);
    finish(bench, &f, are_rows_right(b), work);
}

/* ---- packing: one matrix, F by H of bf16 ---- */

typedef struct pack_bench {
    const rows_bench *rows;
    void *packed;
} pack_bench;

static int run_pack(void *arg, uint32_t run, void *stream)
{
    const pack_bench *p = arg;
    const uint32_t n = p->rows->shape->ffn, k = p->rows->shape->hidden;
    /* Two bf16 take a float's place; slices begin at a multiple of 16 bytes. */
    const size_t n_floats = ((size_t)n * k / 2 + 3) / 4 * 4;

    return sy_cuda_rows_pack(p->packed, p->rows->region + slice(p->rows, run, n_floats),
                             SY_CUDA_BF16, SY_CUDA_DOWN, n, k, 0, n, stream);
}

static int is_pack_right(const pack_bench *p)
{
    const uint32_t n = p->rows->shape->ffn, k = p->rows->shape->hidden;
    const size_t bytes = sy_cuda_pack_bytes(n, k);
    uint8_t *w = gpu_host((size_t)n * k * 2);
    uint8_t *want = gpu_host(bytes), *got = gpu_host(bytes);

    gpu_get(w, p->rows->region, (size_t)n * k * 2);
    gpu_get(got, p->packed, bytes);
    sy_cuda_pack(want, w, n, k, 0, sy_cuda_row_blocks(n));
    const int is_right = memcmp(want, got, bytes) == 0;
    free(w);
    free(want);
    free(got);
    return is_right;
}

static void measure_packing(gpu_bench *bench, rows_bench *b)
{
    const uint32_t n = b->shape->ffn, k = b->shape->hidden;
    pack_bench p = {b, gpu_alloc(sy_cuda_matrix_bytes(SY_CUDA_BF16, SY_CUDA_DOWN, n, k))};
    const gpu_work work = {run_pack, &p};

    b->n_tokens = 0;
    gpu_figure f = figure_of(b, "rows_pack", 4.0 * (double)n * k);
    f.weights = "bf16";
    run_once(bench, work);
    finish(bench, &f, is_pack_right(&p), work);
    gpu_free(p.packed);
}

void gpu_measure_rows(gpu_bench *bench, const gpu_shape *shape)
{
    rows_bench b = rows_open(bench, shape);

    for (const uint32_t *t = gpu_token_counts(bench); *t != 0; t++) {
        b.n_tokens = *t;
        measure_gate(bench, &b);
        measure_combine(bench, &b);
        measure_rounding(bench, &b);
    }
    measure_packing(bench, &b);
    rows_close(&b);
}
