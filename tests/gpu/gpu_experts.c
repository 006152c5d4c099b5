/* gpu_experts.c - up and down of an expert layer as large as a real model's, for every way of
 * holding weights, number of tokens and variant. Tokens choose experts at random, other ones each
 * run, so that what is read does not lie in the L2 from before. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_measure.h"
#include "gpu_weights.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"
#include "sy_kernels.h"

enum { ROUTINGS = 8, N_SAMPLES = 48 };

static const char *const variant_names[N_SY_CUDA_VARIANTS] = {
    [SY_CUDA_TOKENS_8] = "tokens_8",   [SY_CUDA_TOKENS_16] = "tokens_16",
    [SY_CUDA_TOKENS_32] = "tokens_32", [SY_CUDA_TOKENS_64] = "tokens_64",
    [SY_CUDA_TILED_64] = "tiled_64",   [SY_CUDA_TILED_128] = "tiled_128",
};

typedef struct layer {
    const gpu_shape *shape;
    const gpu_weight_kind *kind;
    gpu_stock by_hidden, by_ffn; /* of gate and up, of down */
    size_t gate_up_bytes, down_bytes;
    uint8_t *slab;                      /* device: [E] gate_up, then down */
    float *bias_host, *bias;            /* [2F + H + E] */
    sy_cuda_expert *table_host, *table; /* [E] */
} layer;

/* ---- weights ---- */

/* Of a matrix of fp8. */
static const float *scales_in(const uint8_t *packed, sy_cuda_part part, uint32_t n, uint32_t k)
{
    return (const float *)(const void *)(packed + sy_cuda_scale_offset(SY_CUDA_FP8, part, n, k));
}

static void pack_expert(layer *l, uint32_t e, void *stream)
{
    const uint32_t H = l->shape->hidden, F = l->shape->ffn;
    uint8_t *gate_up = l->slab + e * (l->gate_up_bytes + l->down_bytes);
    uint8_t *down = gate_up + l->gate_up_bytes;

    gpu_stock_pack(gate_up, &l->by_hidden, SY_CUDA_GATE, F, e, stream);
    gpu_stock_pack(gate_up, &l->by_hidden, SY_CUDA_UP, F, e, stream);
    gpu_stock_pack(down, &l->by_ffn, SY_CUDA_DOWN, H, e, stream);
    l->table_host[e] = (sy_cuda_expert){.gate_up = gate_up, .down = down};
    if (l->kind->weights == SY_CUDA_FP8) {
        l->table_host[e].gate_scale = scales_in(gate_up, SY_CUDA_GATE, F, H);
        l->table_host[e].up_scale = scales_in(gate_up, SY_CUDA_UP, F, H);
        l->table_host[e].down_scale = scales_in(down, SY_CUDA_DOWN, H, F);
    }
    if (l->bias != NULL) {
        l->table_host[e].gate_bias = l->bias + e;
        l->table_host[e].up_bias = l->bias + F + e;
        l->table_host[e].down_bias = l->bias + 2 * (size_t)F + e;
    }
}

static void open_biases(layer *l, void *stream)
{
    const size_t n = 2 * (size_t)l->shape->ffn + l->shape->hidden + l->shape->n_experts;

    l->bias = gpu_alloc(n * sizeof(float));
    l->bias_host = gpu_host(n * sizeof(float));
    gpu_check((cudaError_t)gpu_fill_f32(l->bias, n, 99, 1.0f, stream), "filling biases");
    gpu_get(l->bias_host, l->bias, n * sizeof(float));
}

static size_t layer_bytes(const gpu_shape *s, const gpu_weight_kind *kind)
{
    return s->n_experts * (sy_cuda_matrix_bytes(kind->weights, SY_CUDA_GATE, s->ffn, s->hidden) +
                           sy_cuda_matrix_bytes(kind->weights, SY_CUDA_DOWN, s->hidden, s->ffn));
}

static layer layer_open(const gpu_bench *bench, const gpu_shape *s, const gpu_weight_kind *kind)
{
    layer l = {
        .shape = s,
        .kind = kind,
        .by_hidden = gpu_stock_open(kind, s->hidden, 1),
        .by_ffn = gpu_stock_open(kind, s->ffn, 2),
        .gate_up_bytes = sy_cuda_matrix_bytes(kind->weights, SY_CUDA_GATE, s->ffn, s->hidden),
        .down_bytes = sy_cuda_matrix_bytes(kind->weights, SY_CUDA_DOWN, s->hidden, s->ffn),
        .slab = gpu_alloc(layer_bytes(s, kind)),
        .table_host = gpu_host(s->n_experts * sizeof(sy_cuda_expert)),
        .table = gpu_alloc(s->n_experts * sizeof(sy_cuda_expert)),
    };

    if (s->clamped) open_biases(&l, bench->stream);
    for (uint32_t e = 0; e < s->n_experts; e++) pack_expert(&l, e, bench->stream);
    GPU_DO(cudaStreamSynchronize(bench->stream));
    gpu_put(l.table, l.table_host, s->n_experts * sizeof(sy_cuda_expert));
    return l;
}

static void layer_close(layer *l)
{
    gpu_stock_close(&l->by_hidden);
    gpu_stock_close(&l->by_ffn);
    gpu_free(l->slab);
    gpu_free(l->table);
    gpu_free(l->bias);
    free(l->table_host);
    free(l->bias_host);
}

/* ---- who computes what ---- */

typedef struct routing {
    uint32_t n_active;          /* experts with rows */
    uint32_t *begin;            /* host: [E + 1] */
    uint32_t *rows_host, *rows; /* [R]: the token of each row */
    uint32_t n_tiles[N_SY_CUDA_VARIANTS];
    uint32_t *n_tiles_device; /* [N_SY_CUDA_VARIANTS] */
    sy_cuda_tile *tiles[N_SY_CUDA_VARIANTS];
} routing;

/* K experts for each token, none twice. chosen: [T*K]. */
static void choose(uint32_t *chosen, uint32_t n_tokens, const gpu_shape *s, gpu_random *r)
{
    uint32_t *pack = gpu_host(s->n_experts * sizeof(uint32_t));

    for (uint32_t e = 0; e < s->n_experts; e++) pack[e] = e;
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t i = 0; i < s->k; i++) {
            const uint32_t j = i + gpu_random_u32(r) % (s->n_experts - i);
            const uint32_t e = pack[j];
            pack[j] = pack[i];
            chosen[t * s->k + i] = pack[i] = e;
        }
    free(pack);
}

static void cut_tiles(routing *g, uint32_t n_rows, uint32_t n_experts)
{
    sy_cuda_tile *tiles = gpu_host((n_rows / 8 + n_experts) * sizeof(sy_cuda_tile));

    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) {
        const size_t n = sy_cuda_tiles_cut(tiles, g->begin, n_experts, (sy_cuda_variant)v);
        g->n_tiles[v] = (uint32_t)n;
        g->tiles[v] = gpu_alloc(n * sizeof(sy_cuda_tile));
        gpu_put(g->tiles[v], tiles, n * sizeof(sy_cuda_tile));
    }
    g->n_tiles_device = gpu_alloc(sizeof(g->n_tiles));
    gpu_put(g->n_tiles_device, g->n_tiles, sizeof(g->n_tiles));
    free(tiles);
}

static routing routing_open(const gpu_shape *s, uint32_t n_tokens, gpu_random *r)
{
    const uint32_t n_rows = n_tokens * s->k;
    uint32_t *chosen = gpu_host(n_rows * sizeof(uint32_t));
    routing g = {.begin = gpu_host((s->n_experts + 1) * sizeof(uint32_t)),
                 .rows_host = gpu_host(n_rows * sizeof(uint32_t)),
                 .rows = gpu_alloc(n_rows * sizeof(uint32_t))};
    uint32_t at = 0;

    choose(chosen, n_tokens, s, r);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        g.begin[e] = at;
        for (uint32_t i = 0; i < n_rows; i++)
            if (chosen[i] == e) g.rows_host[at++] = i / s->k;
        g.n_active += at > g.begin[e];
    }
    g.begin[s->n_experts] = at;
    gpu_put(g.rows, g.rows_host, n_rows * sizeof(uint32_t));
    cut_tiles(&g, n_rows, s->n_experts);
    free(chosen);
    return g;
}

static void routing_close(routing *g)
{
    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) gpu_free(g->tiles[v]);
    gpu_free(g->n_tiles_device);
    gpu_free(g->rows);
    free(g->rows_host);
    free(g->begin);
}

/* ---- a run ---- */

typedef struct batch {
    const layer *layer;
    uint32_t n_tokens, n_rows;
    uint32_t n_routings;
    routing routing[ROUTINGS];
    sy_cuda_variant variant;
    uint16_t *x, *h; /* device: [T, padded(H)], [R, padded(F)] */
    float *y;        /* device: [R,H] */
    size_t x_bytes, h_bytes, y_bytes;
} batch;

static sy_cuda_batch batch_of(const batch *b, const routing *g)
{
    return (sy_cuda_batch){.experts = b->layer->table,
                           .tiles = g->tiles[b->variant],
                           .n_tiles = g->n_tiles_device + b->variant,
                           .tiles_max = g->n_tiles[b->variant],
                           .hidden = b->layer->shape->hidden,
                           .ffn = b->layer->shape->ffn,
                           .weights = b->layer->kind->weights,
                           .mlp = b->layer->shape->clamped ? SY_CUDA_CLAMPED : SY_CUDA_SWIGLU,
                           .mlp_limit = 7.0f};
}

static int run_up(void *arg, uint32_t run, void *stream)
{
    const batch *b = arg;
    const routing *g = &b->routing[run % b->n_routings];
    const sy_cuda_batch call = batch_of(b, g);

    return sy_cuda_up(b->h, b->x, g->rows, &call, b->variant, stream);
}

static int run_down(void *arg, uint32_t run, void *stream)
{
    const batch *b = arg;
    const sy_cuda_batch call = batch_of(b, &b->routing[run % b->n_routings]);

    return sy_cuda_down(b->y, b->h, &call, b->variant, stream);
}

/* x goes the way that rows of a request go. */
static void open_x(batch *b, const gpu_bench *bench)
{
    const uint32_t H = b->layer->shape->hidden;
    float *plain = gpu_alloc((size_t)b->n_tokens * H * sizeof(float));

    gpu_check((cudaError_t)gpu_fill_f32(plain, (uint64_t)b->n_tokens * H, 5, 1.0f, bench->stream),
              "filling x");
    gpu_check((cudaError_t)sy_cuda_rows_from_f32(b->x, plain, H, b->n_tokens, H, bench->stream),
              "rounding x");
    GPU_DO(cudaStreamSynchronize(bench->stream));
    gpu_free(plain);
}

static batch batch_open(const gpu_bench *bench, const layer *l, uint32_t n_tokens)
{
    const gpu_shape *s = l->shape;
    batch b = {.layer = l,
               .n_tokens = n_tokens,
               .n_rows = n_tokens * s->k,
               .n_routings = bench->tiny ? 1 : ROUTINGS};
    gpu_random r = {n_tokens};

    b.x_bytes = (size_t)n_tokens * sy_cuda_padded(s->hidden) * 2;
    b.h_bytes = (size_t)b.n_rows * sy_cuda_padded(s->ffn) * 2;
    b.y_bytes = (size_t)b.n_rows * s->hidden * sizeof(float);
    b.x = gpu_alloc(b.x_bytes);
    b.h = gpu_alloc(b.h_bytes);
    b.y = gpu_alloc(b.y_bytes);
    open_x(&b, bench);
    for (uint32_t i = 0; i < b.n_routings; i++) b.routing[i] = routing_open(s, n_tokens, &r);
    return b;
}

static void batch_close(batch *b)
{
    for (uint32_t i = 0; i < b->n_routings; i++) routing_close(&b->routing[i]);
    gpu_free(b->x);
    gpu_free(b->h);
    gpu_free(b->y);
}

/* ---- what it has to be ---- */

/* A sum in double precision, and the sum of its terms' magnitudes, which bounds fp32's error. */
typedef struct exact {
    double value, size;
} exact;

static exact product(const layer *l, uint32_t expert, sy_cuda_part part, uint32_t row,
                     const uint16_t *x, float bias)
{
    const gpu_stock *s = part == SY_CUDA_DOWN ? &l->by_ffn : &l->by_hidden;
    const size_t at = (size_t)gpu_stock_row(expert, part, row);
    float *w = gpu_host(s->k * sizeof(float));
    exact sum = {(double)bias, fabs((double)bias)};

    sy_dtype_widen(w, s->host + at * s->row_bytes, l->kind->dtype, s->k);
    for (uint32_t i = 0; i < s->k; i++) {
        const double term = (double)w[i] * (double)sy_bf16_to_f32(x[i]);
        sum.value += term;
        sum.size += fabs(term);
    }
    free(w);
    return sum;
}

static double mlp(const gpu_shape *s, double g, double u)
{
    if (!s->clamped) return g / (1.0 + exp(-g)) * u;
    const double a = fmin(g, 7.0), b = fmax(fmin(u, 7.0), -7.0);
    return (b + 1.0) * (a / (1.0 + exp(-1.702 * a)));
}

/* The relative error of a sum in fp32, whichever way a tensor core adds; weights in blocks are
 * multiplied by a scale after each, and scales and sums round. */
#define SUM_ERROR 0x1p-16

/* One element of h: how far the device's is off, in units of what is allowed. */
static double h_error(const batch *b, const uint16_t *x, uint32_t expert, uint32_t token,
                      uint32_t f, double got)
{
    const layer *l = b->layer;
    const uint32_t F = l->shape->ffn;
    const uint16_t *row = x + (size_t)token * sy_cuda_padded(l->shape->hidden);
    const float *bias = l->bias_host;
    const exact g = product(l, expert, SY_CUDA_GATE, f, row, bias == NULL ? 0 : bias[expert + f]);
    const exact u = product(l, expert, SY_CUDA_UP, f, row, bias == NULL ? 0 : bias[F + expert + f]);
    const double want = mlp(l->shape, g.value, u.value);
    const double allowed = 0x1p-7 * fabs(want) + SUM_ERROR * (g.size * (fabs(u.value) + 2.0) +
                                                              u.size * (fabs(g.value) + 1.0));

    return fabs(got - want) / allowed;
}

static double y_error(const batch *b, const uint16_t *h, uint32_t expert, uint32_t row, uint32_t o,
                      double got)
{
    const layer *l = b->layer;
    const uint32_t F = l->shape->ffn;
    const float bias = l->bias_host == NULL ? 0 : l->bias_host[2 * F + expert + o];
    const exact y = product(l, expert, SY_CUDA_DOWN, o, h + (size_t)row * sy_cuda_padded(F), bias);

    return fabs(got - y.value) / (SUM_ERROR * y.size + 1e-30);
}

typedef struct results {
    uint16_t *x, *h;
    float *y;
} results;

static void check_samples(gpu_bench *bench, const batch *b, const results *got,
                          const gpu_figure *up, const gpu_figure *down)
{
    const uint32_t H = b->layer->shape->hidden, F = b->layer->shape->ffn;
    const routing *g = &b->routing[0];
    gpu_random r = {b->n_tokens + 77};

    for (int i = 0; i < N_SAMPLES; i++) {
        const uint32_t row = gpu_random_u32(&r) % b->n_rows, f = gpu_random_u32(&r) % F;
        const uint32_t o = gpu_random_u32(&r) % H;
        uint32_t e = 0;
        while (row >= g->begin[e + 1]) e++;
        const double h = (double)sy_bf16_to_f32(got->h[(size_t)row * sy_cuda_padded(F) + f]);
        const double y = (double)got->y[(size_t)row * H + o];
        const double h_off = h_error(b, got->x, e, g->rows_host[row], f, h);
        const double y_off = y_error(b, got->h, e, row, o, y);
        if (!(h_off <= 1.0)) {
            gpu_wrong(bench, up, "row %u of expert %u, output %u: %g, %.3g times the error allowed",
                      row, e, f, h, h_off);
            return;
        }
        if (!(y_off <= 1.0)) {
            gpu_wrong(bench, down,
                      "row %u of expert %u, output %u: %g, %.3g times the error allowed", row, e, o,
                      y, y_off);
            return;
        }
    }
}

/* Both of them, into memory that held other bits for each variant. */
static void compute(const gpu_bench *bench, batch *b, results *got)
{
    const uint64_t seed = 1000 + (uint64_t)b->variant;

    gpu_check(
        (cudaError_t)gpu_fill_words((uint32_t *)(void *)b->h, b->h_bytes / 4, seed, bench->stream),
        "filling h");
    gpu_check(
        (cudaError_t)gpu_fill_words((uint32_t *)(void *)b->y, b->y_bytes / 4, seed, bench->stream),
        "filling y");
    gpu_check((cudaError_t)run_up(b, 0, bench->stream), "up");
    gpu_check((cudaError_t)run_down(b, 0, bench->stream), "down");
    gpu_get(got->h, b->h, b->h_bytes);
    gpu_get(got->y, b->y, b->y_bytes);
}

static gpu_figure figure_of(const batch *b, const char *what)
{
    const gpu_shape *s = b->layer->shape;
    const int is_up = strcmp(what, "up") == 0;
    const double products = (double)b->n_rows * s->hidden * s->ffn;
    gpu_figure f = {.what = what,
                    .how = variant_names[b->variant],
                    .weights = b->layer->kind->name,
                    .shape = s->name,
                    .n_tokens = b->n_tokens,
                    .flops = is_up ? 4.0 * products : 2.0 * products};

    for (uint32_t i = 0; i < b->n_routings; i++)
        f.bytes += (double)b->routing[i].n_active / b->n_routings *
                   (double)(is_up ? b->layer->gate_up_bytes : b->layer->down_bytes);
    f.bytes += (double)b->h_bytes + (double)(is_up ? b->x_bytes : b->y_bytes);
    return f;
}

/* Samples of the first variant's results against the host, all of the others' against the first. */
static void check_variants(gpu_bench *bench, batch *b)
{
    results first = {gpu_host(b->x_bytes), gpu_host(b->h_bytes), gpu_host(b->y_bytes)};
    results got = {NULL, gpu_host(b->h_bytes), gpu_host(b->y_bytes)};

    gpu_get(first.x, b->x, b->x_bytes);
    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) {
        const int n_wrong = bench->n_wrong;
        b->variant = (sy_cuda_variant)v;
        compute(bench, b, v == 0 ? &first : &got);
        const gpu_figure up = figure_of(b, "up"), down = figure_of(b, "down");
        if (v == 0) {
            check_samples(bench, b, &first, &up, &down);
        } else if (memcmp(first.h, got.h, b->h_bytes) != 0) {
            gpu_wrong(bench, &up, "h is not the same bits as of %s", variant_names[0]);
        } else if (memcmp(first.y, got.y, b->y_bytes) != 0) {
            gpu_wrong(bench, &down, "y is not the same bits as of %s", variant_names[0]);
        }
        if (bench->n_wrong == n_wrong) {
            gpu_print_checked(&up);
            gpu_print_checked(&down);
        }
    }
    free(first.x);
    free(first.h);
    free(first.y);
    free(got.h);
    free(got.y);
}

static void measure_tokens(gpu_bench *bench, const layer *l, uint32_t n_tokens)
{
    batch b = batch_open(bench, l, n_tokens);

    check_variants(bench, &b);
    for (int v = 0; v < N_SY_CUDA_VARIANTS && !bench->tiny; v++) {
        b.variant = (sy_cuda_variant)v;
        const gpu_figure up = figure_of(&b, "up"), down = figure_of(&b, "down");
        gpu_print_figure(&up, gpu_measure(bench, (gpu_work){run_up, &b}));
        gpu_print_figure(&down, gpu_measure(bench, (gpu_work){run_down, &b}));
    }
    batch_close(&b);
}

void gpu_measure_experts(gpu_bench *bench, const gpu_shape *shape)
{
    for (size_t i = 0; i < GPU_WEIGHT_KINDS; i++) {
        const gpu_weight_kind *kind = &gpu_weight_kinds[i];
        const size_t bytes = layer_bytes(shape, kind);
        const gpu_figure all = {
            .what = "experts", .how = "", .weights = kind->name, .shape = shape->name};
        if (bytes > gpu_free_bytes() / 10 * 8) {
            gpu_skip(&all, "%zu bytes of weights have no room", bytes);
            continue;
        }
        if (!gpu_has_time(bench, &all)) continue;
        layer l = layer_open(bench, shape, kind);
        for (const uint32_t *t = gpu_token_counts(bench); *t != 0; t++)
            measure_tokens(bench, &l, *t);
        layer_close(&l);
    }
}
