/* The matrix product: every implementation gives the bits of a naive loop of fused multiply-adds,
 * for any number of tokens together, any range of panels and any order of rows, and writes nothing
 * but its columns. */
#include "kernel_cases.h"

#define T_MAX   100
#define N_GUARD 3 /* floats between rows of y that nobody may write */
#define X_GUARD 5 /* floats between rows of x that nobody needs */

static const size_t token_counts[] = {0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 17, 33, 100};
static const uint32_t inner_sizes[] = {0, 1, 2, 7, 16, 64, 192, 513, 1025};
static const uint32_t outer_sizes[] = {1, 15, 16, 17, 48, 192, 200};
static const sy_dtype dtypes[] = {SY_BF16, SY_F16, SY_F32};

/* One matrix, packed, and T_MAX rows against it with the results that every call must repeat. */
typedef struct product {
    sy_dtype dtype;
    uint32_t n, k;
    value_kind kind;
    uint8_t *source;
    edge_buffer packed, x;
    sy_panels w;
    size_t x_stride, y_stride;
    uint32_t rows[T_MAX]; /* the row of x that token t has; some more than once */
    float *want;          /* [T_MAX][y_stride] */
} product;

static void store_element(uint8_t *out, sy_dtype dtype, float v)
{
    const uint16_t half = dtype == SY_BF16 ? sy_f32_to_bf16(v) : sy_f32_to_f16(v);

    if (dtype == SY_F32) {
        memcpy(out, &v, sizeof(v));
    } else {
        memcpy(out, &half, sizeof(half));
    }
}

static void naive_product(product *m)
{
    float *weights = malloc(((size_t)m->n * m->k + 1) * sizeof(float));

    assert_non_null(weights);
    sy_dtype_widen(weights, m->source, m->dtype, (size_t)m->n * m->k);
    memset(m->want, GUARD, T_MAX * m->y_stride * sizeof(float));
    for (size_t t = 0; t < T_MAX; t++)
        for (size_t n = 0; n < m->n; n++) {
            const float *row = edge_floats(&m->x) + m->rows[t] * m->x_stride;
            float sum = 0.0f;
            for (size_t k = 0; k < m->k; k++) sum = fmaf(row[k], weights[n * m->k + k], sum);
            m->want[t * m->y_stride + n] = sum;
        }
    free(weights);
}

static void product_open(product *m, sy_dtype dtype, uint32_t n, uint32_t k, value_kind kind)
{
    const size_t item_bytes = sy_dtype_bytes(dtype);
    const size_t bytes = sy_panels_bytes(dtype, n, k);
    test_random r = {TEST_SEED + n * 7919u + k};

    *m = (product){.dtype = dtype,
                   .n = n,
                   .k = k,
                   .kind = kind,
                   .x_stride = k + X_GUARD,
                   .y_stride = n + N_GUARD};
    m->source = malloc((size_t)n * k * item_bytes + 1);
    m->want = malloc(T_MAX * m->y_stride * sizeof(float));
    assert_true(m->source != NULL && m->want != NULL);
    for (size_t i = 0; i < (size_t)n * k; i++)
        store_element(m->source + i * item_bytes, dtype, random_value(&r, kind));
    /* The last row of x, and the last panel but for alignment, end where memory ends. */
    m->x = edge_open(((T_MAX - 1) * m->x_stride + k) * sizeof(float), 0);
    random_fill(edge_floats(&m->x), (T_MAX - 1) * m->x_stride + k, &r, kind);
    m->packed = edge_open(bytes, (0 - bytes) % 64);
    m->w = (sy_panels){m->packed.data, dtype, n, k};
    sy_panels_pack(m->packed.data, m->source, dtype, n, k, 0, sy_panels_count(n));
    edge_check(&m->packed);
    for (uint32_t t = 0; t < T_MAX; t++) m->rows[t] = t;
    naive_product(m);
}

static void product_close(product *m)
{
    free(m->source);
    free(m->want);
    edge_close(&m->packed);
    edge_close(&m->x);
}

/* One call for T tokens from `first` on: what is inside [begin, end) equals `want`, what is outside
 * is untouched. */
static void check_call(const product *m, const sy_kernels *kernels, size_t first, size_t T,
                       const uint32_t *x_row, size_t begin, size_t end)
{
    const size_t row_floats = m->y_stride;
    const size_t total = T == 0 ? 0 : (T - 1) * row_floats + m->n;
    edge_buffer got = edge_open(total * sizeof(float), 4);
    float *want = malloc((total + 1) * sizeof(float));
    const size_t n_begin = SY_MIN(begin * SY_PANEL, m->n), n_end = SY_MIN(end * SY_PANEL, m->n);
    char what[128];

    assert_non_null(want);
    memset(want, GUARD, total * sizeof(float));
    for (size_t t = 0; t < T; t++)
        memcpy(want + t * row_floats + n_begin, m->want + (first + t) * row_floats + n_begin,
               (n_end - n_begin) * sizeof(float));
    const float *x = edge_floats(&m->x) + (x_row == NULL ? first * m->x_stride : 0);
    kernels->matmul(edge_floats(&got), row_floats, x, m->x_stride, x_row, T, &m->w, begin, end);
    snprintf(what, sizeof(what), "%s, %s, T %zu, K %u, N %u, panels [%zu, %zu), values %d",
             kernels->name, sy_dtype_name(m->dtype), T, m->k, m->n, begin, end, (int)m->kind);
    check_bits(want, edge_floats(&got), total, what);
    edge_check(&got);
    free(want);
    edge_close(&got);
}

static void check_product(const product *m, const uint32_t *x_row)
{
    const size_t n_panels = sy_panels_count(m->n);

    for (size_t i = 0; i < sy_kernels_count(); i++) {
        /* The reference takes every token alone: one size shows all of it. */
        for (size_t s = i == 0 ? SY_COUNT_OF(token_counts) - 1 : 0; s < SY_COUNT_OF(token_counts);
             s++) {
            const size_t T = token_counts[s];
            const size_t first = x_row == NULL ? T_MAX - T : 0;
            check_call(m, sy_kernels_at(i), first, T, x_row, 0, n_panels);
        }
    }
}

static void every_shape_gives_the_bits_of_a_naive_loop(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (size_t k = 0; k < SY_COUNT_OF(inner_sizes); k++)
            for (size_t n = 0; n < SY_COUNT_OF(outer_sizes); n++) {
                product m;
                product_open(&m, dtypes[d], outer_sizes[n], inner_sizes[k], VALUES_PLAIN);
                check_product(&m, NULL);
                product_close(&m);
            }
}

static void odd_values_give_the_bits_of_a_naive_loop(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (int kind = VALUES_TINY; kind < N_VALUE_KINDS; kind++)
            for (size_t k = 1; k <= 6; k += k < 4 ? 1 : 2) {
                product m;
                product_open(&m, dtypes[d], 49, inner_sizes[k], (value_kind)kind);
                check_product(&m, NULL);
                product_close(&m);
            }
}

static void rows_may_come_in_any_order_and_more_than_once(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 48 + 5, 300, VALUES_PLAIN);
        for (uint32_t t = 0; t < T_MAX; t++) m.rows[t] = t % 4 == 1 ? 99 : (t * 37 + 11) % T_MAX;
        naive_product(&m);
        check_product(&m, m.rows);
        product_close(&m);
    }
}

static void any_range_of_panels_is_computed_alone(void **state)
{
    static const size_t T[] = {1, 2, 13};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 13 * SY_PANEL - 7, 270, VALUES_PLAIN);
        for (size_t i = 0; i < sy_kernels_count(); i++)
            for (size_t t = 0; t < SY_COUNT_OF(T); t++)
                for (size_t begin = 0; begin <= 13; begin++)
                    for (size_t end = begin; end <= 13; end++)
                        check_call(&m, sy_kernels_at(i), 3, T[t], NULL, begin, end);
        product_close(&m);
    }
}

/* K products and sums in a chain: the error is at most K u / (1 - K u) times the sum of |x w|, u =
 * 2^-24. */
static void reference_agrees_with_double(void **state)
{
    enum { N = 33, K = 1000 };
    test_random r = {TEST_SEED};
    static float source[N * K], x[K], y[N];
    uint8_t *packed = aligned_alloc(64, sy_panels_bytes(SY_F32, N, K));
    const sy_panels w = {packed, SY_F32, N, K};
    const double bound = K * 0x1p-24 / (1 - K * 0x1p-24);

    (void)state;
    assert_non_null(packed);
    random_fill(source, SY_COUNT_OF(source), &r, VALUES_PLAIN);
    random_fill(x, K, &r, VALUES_PLAIN);
    sy_panels_pack(packed, source, SY_F32, N, K, 0, sy_panels_count(N));
    sy_kernels_at(0)->matmul(y, N, x, K, NULL, 1, &w, 0, sy_panels_count(N));
    for (size_t n = 0; n < N; n++) {
        double want = 0, magnitude = 0;
        for (size_t k = 0; k < K; k++) {
            want += (double)x[k] * source[n * K + k];
            magnitude += fabs((double)x[k] * source[n * K + k]);
        }
        if (!(fabs(y[n] - want) <= bound * magnitude))
            fail_msg("y[%zu]: want %.9g, got %.9g", n, want, (double)y[n]);
    }
    free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_gives_the_bits_of_a_naive_loop),
        cmocka_unit_test(odd_values_give_the_bits_of_a_naive_loop),
        cmocka_unit_test(rows_may_come_in_any_order_and_more_than_once),
        cmocka_unit_test(any_range_of_panels_is_computed_alone),
        cmocka_unit_test(reference_agrees_with_double),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
