/* gpu_products.c - the products of a trunk: of attention's projections, the head, shared experts,
 * and the two matrices a head that MLA has; one of each form with every kind of weights. There are
 * as many copies of a matrix as are larger than the L2, which runs take in turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_trunk.h"
#include "gpu_weights.h"
#include "sy_base.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"
#include "sy_dtype.h"

enum { N_SAMPLES = 32, COPIES_MAX = 64, HEAD_ROWS_MAX = 64, TILE_ROWS = SY_CUDA_BLOCK_ROWS };

static const char *const variant_names[N_SY_CUDA_VARIANTS] = {
    [SY_CUDA_TOKENS_8] = "tokens_8",   [SY_CUDA_TOKENS_16] = "tokens_16",
    [SY_CUDA_TOKENS_32] = "tokens_32", [SY_CUDA_TOKENS_64] = "tokens_64",
    [SY_CUDA_TILED_64] = "tiled_64",   [SY_CUDA_TILED_128] = "tiled_128",
};

typedef enum product_form { PLAIN, SWIGLU, HEADS } product_form;

typedef struct product {
    const char *what;
    product_form form;
    uint32_t n, k;            /* outputs, inputs; of HEADS: of each */
    uint32_t n_heads, n_tail; /* HEADS alone */
    uint32_t rows_max;        /* 0: any number of rows is measured */
    int has_kinds;            /* with every kind of weights, not with bf16 alone */
} product;

typedef struct product_bench {
    const gpu_trunk_shape *shape;
    const gpu_weight_kind *kind;
    product p;
    uint32_t n_rows, n_copies;
    sy_cuda_variant variant;
    size_t matrix_bytes; /* of one copy, of all heads */
    uint8_t *weights;
    void *x;         /* bf16 rows; of HEADS fp32 */
    void *y;         /* fp32; of SWIGLU bf16 rows */
    uint32_t *count; /* device: n_rows */
} product_bench;

/* ---- sizes ---- */

/* Elements of a row of x and of y. */
static size_t x_width(const product *p)
{
    if (p->form == HEADS) return (size_t)p->n_heads * (p->k + p->n_tail);
    return sy_cuda_padded(p->k);
}

static size_t y_width(const product *p)
{
    if (p->form == HEADS) return (size_t)p->n_heads * (p->n + p->n_tail);
    return p->form == SWIGLU ? sy_cuda_padded(p->n) : p->n;
}

static size_t y_bytes(const product_bench *b)
{
    return b->n_rows * y_width(&b->p) * (b->p.form == SWIGLU ? sizeof(uint16_t) : sizeof(float));
}

static sy_cuda_part part_of(const product *p)
{
    return p->form == SWIGLU ? SY_CUDA_GATE : SY_CUDA_DOWN;
}

static size_t matrix_bytes(const product *p, const gpu_weight_kind *kind)
{
    return (p->form == HEADS ? p->n_heads : 1) *
           sy_cuda_matrix_bytes(kind->weights, part_of(p), p->n, p->k);
}

/* Of quantised weights TILED_128 is TILED_64. */
static uint32_t last_variant(const product_bench *b)
{
    if (b->p.form == HEADS) return 0;
    return b->kind->weights == SY_CUDA_BF16 ? SY_CUDA_TILED_128 : SY_CUDA_TILED_64;
}

static gpu_figure figure_of(const product_bench *b)
{
    const product *p = &b->p;
    const double products = (double)b->n_rows * p->n * p->k;
    const double x_bytes =
        (double)b->n_rows * (double)x_width(p) * (p->form == HEADS ? sizeof(float) : 2.0);

    return (gpu_figure){.what = p->what,
                        .how = p->form == HEADS ? "" : variant_names[b->variant],
                        .weights = b->kind->name,
                        .shape = b->shape->name,
                        .n_tokens = b->n_rows,
                        .bytes = (double)b->matrix_bytes + x_bytes + (double)y_bytes(b),
                        .flops = 2.0 * products *
                                 (p->form == HEADS    ? p->n_heads
                                  : p->form == SWIGLU ? 2
                                                      : 1)};
}

/* ---- a run ---- */

static int run(void *arg, uint32_t run, void *stream)
{
    const product_bench *b = arg;
    const uint8_t *weights = b->weights + run % b->n_copies * b->matrix_bytes;
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_matrix w = {
        .weights = weights, .n = b->p.n, .k = b->p.k, .type = b->kind->weights};
    const sy_cuda_head_matrices heads = {.weights = weights,
                                         .type = b->kind->weights,
                                         .n_heads = b->p.n_heads,
                                         .n = b->p.n,
                                         .k = b->p.k,
                                         .n_tail = b->p.n_tail};

    switch (b->p.form) {
    case SWIGLU: return sy_cuda_linear_swiglu(b->y, b->x, &w, b->variant, &rows, stream);
    case HEADS: return sy_cuda_linear_heads(b->y, b->x, &heads, &rows, stream);
    default: return sy_cuda_linear(b->y, b->x, &w, 1.0f, b->variant, &rows, stream);
    }
}

/* One copy; heads one behind another. */
static void pack_copy(const gpu_bench *bench, const product_bench *b, const gpu_stock *stock,
                      uint32_t copy)
{
    const uint32_t n_matrices = b->p.form == HEADS ? b->p.n_heads : 1;
    const size_t bytes = b->matrix_bytes / n_matrices;

    for (uint32_t i = 0; i < n_matrices; i++) {
        const uint32_t matrix = copy * n_matrices + i;
        uint8_t *to = b->weights + matrix * bytes;

        gpu_stock_pack(to, stock, part_of(&b->p), b->p.n, matrix, bench->stream);
        if (b->p.form == SWIGLU)
            gpu_stock_pack(to, stock, SY_CUDA_UP, b->p.n, matrix, bench->stream);
    }
}

static product_bench open_product(const gpu_bench *bench, const gpu_trunk_shape *shape,
                                  const product *p, const gpu_weight_kind *kind)
{
    product_bench b = {
        .shape = shape, .kind = kind, .p = *p, .matrix_bytes = matrix_bytes(p, kind)};
    const uint64_t copies = 4 * bench->l2_bytes / b.matrix_bytes + 1;
    gpu_stock stock = gpu_stock_open(kind, p->k, 21);

    b.n_copies = bench->tiny ? 1 : (uint32_t)SY_MIN(copies, (uint64_t)COPIES_MAX);
    b.weights = gpu_alloc(b.n_copies * b.matrix_bytes);
    for (uint32_t i = 0; i < b.n_copies; i++) pack_copy(bench, &b, &stock, i);
    GPU_DO(cudaStreamSynchronize(bench->stream)); /* before the stock goes */
    gpu_stock_close(&stock);
    return b;
}

static void open_rows(const gpu_bench *bench, product_bench *b, uint32_t n_rows)
{
    b->n_rows = n_rows;
    b->count = gpu_words(&n_rows, 1);
    if (b->p.form == HEADS)
        b->x = gpu_random_floats(bench, n_rows * x_width(&b->p), 22, 1.0f);
    else
        b->x = gpu_random_rows(bench, n_rows, b->p.k, 22);
    b->y = gpu_alloc(y_bytes(b));
}

static void close_rows(product_bench *b)
{
    gpu_free(b->count);
    gpu_free(b->x);
    gpu_free(b->y);
}

/* ---- what it has to be ---- */

/* A sum in double precision, and the sum of its terms' magnitudes, which bounds fp32's error. */
typedef struct exact {
    double value, size;
} exact;

/* Row `row` of a part of the first copy: the block of rows it lies in is unpacked on the device. */
static exact product_of(const gpu_bench *bench, const product_bench *b, sy_cuda_part part,
                        uint32_t head, uint32_t row, const void *x)
{
    const uint32_t n = b->p.n, k = b->p.k, begin = row / TILE_ROWS * TILE_ROWS;
    const uint32_t n_rows = SY_MIN(n - begin, (uint32_t)TILE_ROWS);
    const size_t row_bytes = sy_cuda_row_bytes(b->kind->weights, k);
    const uint8_t *packed =
        b->weights + head * sy_cuda_matrix_bytes(b->kind->weights, part_of(&b->p), n, k);
    uint8_t *device = gpu_alloc(n_rows * row_bytes), *rows = gpu_host(n_rows * row_bytes);
    float *w = gpu_host(k * sizeof(*w));
    exact sum = {0.0, 0.0};

    gpu_check((cudaError_t)sy_cuda_rows_unpack(device, packed, b->kind->weights, part, n, k, begin,
                                               n_rows, bench->stream),
              "unpacking rows");
    gpu_get(rows, device, n_rows * row_bytes);
    sy_dtype_widen(w, rows + (row - begin) * row_bytes, b->kind->dtype, k);
    for (uint32_t i = 0; i < k; i++) {
        const float x_i =
            b->p.form == HEADS ? ((const float *)x)[i] : sy_bf16_to_f32(((const uint16_t *)x)[i]);
        const double term = (double)w[i] * (double)x_i;
        sum.value += term;
        sum.size += fabs(term);
    }
    gpu_free(device);
    free(rows);
    free(w);
    return sum;
}

/* The relative error of a sum in fp32, whichever way a tensor core adds. */
#define SUM_ERROR 0x1p-16

/* How far one output of a row is off, in units of what is allowed. x, y: the row's. */
static double error_of(const gpu_bench *bench, const product_bench *b, uint32_t at, const void *x,
                       const void *y)
{
    const product *p = &b->p;
    const uint32_t head = p->form == HEADS ? at / p->n : 0, row = at % p->n;
    const float *of_head = (const float *)x + (size_t)head * (p->k + p->n_tail);

    if (p->form == SWIGLU) {
        const exact g = product_of(bench, b, SY_CUDA_GATE, 0, row, x);
        const exact u = product_of(bench, b, SY_CUDA_UP, 0, row, x);
        const double want = g.value / (1.0 + exp(-g.value)) * u.value;
        const double got = (double)sy_bf16_to_f32(((const uint16_t *)y)[row]);
        return fabs(got - want) /
               (0x1p-7 * fabs(want) +
                SUM_ERROR * (g.size * (fabs(u.value) + 2.0) + u.size * (fabs(g.value) + 1.0)));
    }
    const exact want =
        product_of(bench, b, SY_CUDA_DOWN, head, row, p->form == HEADS ? (const void *)of_head : x);
    const double got = (double)((const float *)y)[(size_t)head * (p->n + p->n_tail) + row];
    return fabs(got - want.value) / (SUM_ERROR * want.size + 1e-30);
}

static void check_samples(gpu_bench *bench, const product_bench *b, const uint8_t *y)
{
    const product *p = &b->p;
    const size_t x_bytes = x_width(p) * (p->form == HEADS ? sizeof(float) : sizeof(uint16_t));
    const gpu_figure f = figure_of(b);
    uint8_t *x = gpu_host(x_bytes);
    gpu_random r = {b->n_rows + p->n};

    for (int i = 0; i < N_SAMPLES; i++) {
        const uint32_t row = gpu_random_u32(&r) % b->n_rows;
        const uint32_t at = gpu_random_u32(&r) % (p->n * (p->form == HEADS ? p->n_heads : 1));
        gpu_get(x, (const uint8_t *)b->x + row * x_bytes, x_bytes);
        const double off = error_of(bench, b, at, x, y + row * (y_bytes(b) / b->n_rows));
        if (off <= 1.0) continue;
        gpu_wrong(bench, &f, "row %u, output %u: %.3g times the error allowed", row, at, off);
        break;
    }
    free(x);
}

/* One run of a variant, into memory that held other bits. */
static void compute(const gpu_bench *bench, product_bench *b, uint8_t *y)
{
    gpu_check((cudaError_t)gpu_fill_words(b->y, y_bytes(b) / 4, 100 + (uint64_t)b->variant,
                                          bench->stream),
              "filling y");
    gpu_check((cudaError_t)run(b, 0, bench->stream), "a launch");
    gpu_get(y, b->y, y_bytes(b));
}

/* Samples of the first variant's results against the host, the others' bits against the first. */
static void check_variants(gpu_bench *bench, product_bench *b)
{
    uint8_t *first = gpu_host(y_bytes(b)), *got = gpu_host(y_bytes(b));

    for (uint32_t v = 0; v <= last_variant(b); v++) {
        const int n_wrong = bench->n_wrong;
        b->variant = (sy_cuda_variant)v;
        const gpu_figure f = figure_of(b);
        compute(bench, b, v == 0 ? first : got);
        if (v == 0)
            check_samples(bench, b, first);
        else if (memcmp(first, got, y_bytes(b)) != 0)
            gpu_wrong(bench, &f, "not the bits of %s", variant_names[0]);
        if (bench->n_wrong == n_wrong) gpu_print_checked(&f);
    }
    free(first);
    free(got);
}

/* The variant that the plugin takes, and its neighbours, which tell whether it should. */
static void time_variants(const gpu_bench *bench, product_bench *b)
{
    const uint32_t chosen =
        SY_MIN((uint32_t)sy_cuda_variant_for(b->n_rows, b->kind->weights), last_variant(b));
    const uint32_t first = chosen == 0 ? 0 : chosen - 1;
    const uint32_t last = SY_MIN(chosen + 1, last_variant(b));

    for (uint32_t v = first; v <= last; v++) {
        b->variant = (sy_cuda_variant)v;
        const gpu_figure f = figure_of(b);
        gpu_print_figure(&f, gpu_measure(bench, (gpu_work){run, b}));
        if (b->p.form == HEADS) return;
    }
}

static void measure_kind(gpu_bench *bench, const gpu_trunk_shape *shape, const product *p,
                         const gpu_weight_kind *kind)
{
    static const uint32_t all[] = {1, 8, 64, 512, 0}, tiny[] = {1, 9, 70, 0};
    const gpu_figure whole = {
        .what = p->what, .how = "", .weights = kind->name, .shape = shape->name};

    if (!gpu_has_time(bench, &whole)) return;
    if (matrix_bytes(p, kind) > gpu_free_bytes() / 4) {
        gpu_skip(&whole, "%zu bytes of weights have no room", matrix_bytes(p, kind));
        return;
    }
    product_bench b = open_product(bench, shape, p, kind);
    for (const uint32_t *t = bench->tiny ? tiny : all; *t != 0; t++) {
        if (p->rows_max > 0 && *t > p->rows_max) continue;
        open_rows(bench, &b, *t);
        check_variants(bench, &b);
        if (!bench->tiny && !bench->quick) time_variants(bench, &b);
        close_rows(&b);
    }
    gpu_free(b.weights);
}

/* Matrices of heads are never of encoded weights. */
static void measure(gpu_bench *bench, const gpu_trunk_shape *shape, const product *p)
{
    for (size_t i = 0; i < GPU_WEIGHT_KINDS; i++) {
        const gpu_weight_kind *kind = &gpu_weight_kinds[i];

        if (i > 0 && !p->has_kinds) continue;
        if (p->form == HEADS && sy_dtype_is_encoded(kind->dtype)) continue;
        measure_kind(bench, shape, p, kind);
    }
}

/* ---- which there are ---- */

static void measure_latent(gpu_bench *bench, const gpu_trunk_shape *s)
{
    const uint32_t nope = s->head_dim - s->rotary_dim;
    const product products[] = {
        {.what = "linear q_a", .n = s->q_rank, .k = s->hidden},
        {.what = "linear q_b", .n = s->n_heads * s->head_dim, .k = s->q_rank, .has_kinds = 1},
        {.what = "linear kv_a", .n = s->kv_rank + s->rotary_dim, .k = s->hidden},
        {.what = "linear_heads key_up",
         .form = HEADS,
         .n = s->kv_rank,
         .k = nope,
         .n_heads = s->n_heads,
         .n_tail = s->rotary_dim,
         .has_kinds = 1},
        {.what = "linear_heads value_up",
         .form = HEADS,
         .n = s->value_dim,
         .k = s->kv_rank,
         .n_heads = s->n_heads},
    };

    for (size_t i = 0; i < SY_COUNT_OF(products); i++) measure(bench, s, &products[i]);
}

void gpu_measure_products(gpu_bench *bench, const gpu_trunk_shape *s)
{
    const product q = {
        .what = "linear q", .n = s->n_heads * s->head_dim, .k = s->hidden, .has_kinds = 1};
    const product k = {.what = "linear k", .n = s->n_kv_heads * s->head_dim, .k = s->hidden};
    const product o = {.what = "linear o", .n = s->hidden, .k = s->n_heads * s->value_dim};
    const product up = {.what = "swiglu shared",
                        .form = SWIGLU,
                        .n = s->shared_ffn,
                        .k = s->hidden,
                        .has_kinds = 1};
    /* Logits are wanted of few rows. */
    const product head = {
        .what = "linear head", .n = s->vocab, .k = s->hidden, .rows_max = HEAD_ROWS_MAX};

    if (s->kv_rank > 0) {
        measure_latent(bench, s);
    } else {
        measure(bench, s, &q);
        measure(bench, s, &k);
    }
    measure(bench, s, &o);
    if (s->shared_ffn > 0) measure(bench, s, &up);
    measure(bench, s, &head);
}
