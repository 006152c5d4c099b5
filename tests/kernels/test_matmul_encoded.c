/* Products with weights in a checkpoint's own encoding: every implementation gives the bits of a
 * naive loop over the stored rows, for any shape, any number of tokens, any range of panels, any
 * order of rows, and whatever codes, factors and inputs there are, and writes nothing but its
 * columns. */
#include "kernel_cases.h"

#define T_MAX   100
#define N_GUARD 3 /* floats between rows of y that nobody may write */
#define X_GUARD 5 /* floats between rows of x that nobody needs */

static const size_t token_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 33, 96, 97, 100};
static const uint32_t inner_sizes[] = {0, 1, 2, 7, 31, 33, 64, 127, 128, 129, 256, 389};
static const uint32_t outer_sizes[] = {1, 15, 16, 17, 33, 64, 81};
static const sy_dtype dtypes[] = {SY_FP8, SY_MXFP4};

typedef enum weight_kind {
    WEIGHTS_PLAIN, /* any codes that are numbers, factors around 0.01 */
    WEIGHTS_TINY,  /* codes next to zero of both signs, factors that are denormals or close */
    WEIGHTS_HUGE,  /* the largest codes and factors: sums overflow */
    WEIGHTS_ANY,   /* any bits: codes and factors that are no numbers, too */
    N_WEIGHT_KINDS
} weight_kind;

/* One matrix and T_MAX rows against it, with the results that every call must repeat. */
typedef struct product {
    sy_dtype dtype;
    uint32_t n, k;
    size_t row_bytes;
    weight_kind weights;
    value_kind values;
    uint8_t *source; /* [n][row_bytes] */
    edge_buffer packed, x;
    sy_panels w;
    size_t x_stride, y_stride;
    uint32_t rows[T_MAX]; /* the row of x that token t has */
    float *want;          /* [T_MAX][y_stride] */
} product;

static uint8_t random_code(test_random *r, sy_dtype dtype, weight_kind kind)
{
    const uint8_t any = (uint8_t)random_u32(r);

    if (dtype == SY_MXFP4 && kind == WEIGHTS_TINY) return any & 0x99; /* 0 and 1/2 */
    if (dtype == SY_MXFP4 && kind == WEIGHTS_HUGE) return any | 0x66; /* 4 and 6 */
    if (dtype == SY_MXFP4 || kind == WEIGHTS_ANY) return any;
    if (kind == WEIGHTS_TINY) return any & 0x87;
    if (kind == WEIGHTS_HUGE) return (any | 0x78) & 0xfe;
    return (any & 0x7f) == 0x7f ? 0 : any;
}

static float random_factor(test_random *r, weight_kind kind)
{
    static const float odd[] = {0.0f, -0.0f, 1e-45f, 1e38f, -3e38f, INFINITY, -INFINITY, NAN, 1.0f};

    switch (kind) {
    case WEIGHTS_TINY: return random_unit(r) * 0x1p-130f;
    case WEIGHTS_HUGE: return random_unit(r) * 0x1p+127f;
    case WEIGHTS_ANY: return odd[random_u32(r) % SY_COUNT_OF(odd)];
    default: return random_unit(r) * 0.02f;
    }
}

static uint8_t random_scale(test_random *r, weight_kind kind)
{
    const uint8_t any = (uint8_t)random_u32(r);

    switch (kind) {
    case WEIGHTS_TINY: return any % 3;
    case WEIGHTS_HUGE: return (uint8_t)(252 + any % 3);
    case WEIGHTS_ANY: return any % 4 == 0 ? 255 : any;
    default: return (uint8_t)(118 + any % 8);
    }
}

static void fill_weights(product *m, test_random *r)
{
    const size_t n_blocks = (m->k + 127) / 128, n_groups = (m->k + 31) / 32;

    for (size_t n = 0; n < m->n; n++) {
        uint8_t *row = m->source + n * m->row_bytes;
        const size_t n_codes = m->dtype == SY_FP8 ? m->k : n_groups * 16;
        for (size_t i = 0; i < n_codes; i++) row[i] = random_code(r, m->dtype, m->weights);
        for (size_t b = 0; m->dtype == SY_FP8 && b < n_blocks; b++) {
            const float factor = random_factor(r, m->weights);
            memcpy(row + n_codes + b * 4, &factor, sizeof(factor));
        }
        for (size_t b = 0; m->dtype == SY_MXFP4 && b < n_groups; b++)
            row[n_codes + b] = random_scale(r, m->weights);
    }
}

/* The value of a code as the format is defined, and the factor of its block. */
static float stored(const product *m, size_t n, size_t k, float *factor)
{
    static const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const uint8_t *row = m->source + n * m->row_bytes;

    if (m->dtype == SY_MXFP4) {
        const unsigned code = k % 2 == 0 ? row[k / 2] & 15u : row[k / 2] >> 4u;
        const uint8_t b = row[(m->k + 31u) / 32u * 16u + k / 32];
        *factor = b == 255 ? NAN : ldexpf(1.0f, b - 127);
        return copysignf(e2m1[code & 7], code & 8 ? -1.0f : 1.0f);
    }
    const int exponent = row[k] >> 3 & 15, fraction = row[k] & 7;
    memcpy(factor, row + m->k + k / 128 * 4, sizeof(*factor));
    if ((row[k] & 0x7f) == 0x7f) return NAN;
    const float magnitude =
        exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);
    return copysignf(magnitude, row[k] & 0x80 ? -1.0f : 1.0f);
}

static float naive(const product *m, const float *x, size_t n)
{
    const size_t block = m->dtype == SY_FP8 ? 128 : 32;
    float y = 0.0f;

    for (size_t k = 0; k < m->k;) {
        float s = 0.0f, factor = 0.0f;
        do {
            s = fmaf(x[k], stored(m, n, k, &factor), s);
            k++;
        } while (k < m->k && k % block != 0);
        y = fmaf(factor, s, y);
    }
    return y;
}

static void naive_product(product *m)
{
    memset(m->want, GUARD, T_MAX * m->y_stride * sizeof(float));
    for (size_t t = 0; t < T_MAX; t++)
        for (size_t n = 0; n < m->n; n++)
            m->want[t * m->y_stride + n] =
                naive(m, edge_floats(&m->x) + m->rows[t] * m->x_stride, n);
}

static void product_open(product *m, sy_dtype dtype, uint32_t n, uint32_t k, weight_kind weights,
                         value_kind values)
{
    const size_t bytes = sy_panels_bytes(dtype, n, k);
    test_random r = {TEST_SEED + n * 7919u + k};

    *m = (product){.dtype = dtype,
                   .n = n,
                   .k = k,
                   .row_bytes = sy_dtype_row_bytes(dtype, k),
                   .weights = weights,
                   .values = values,
                   .x_stride = k + X_GUARD,
                   .y_stride = n + N_GUARD};
    m->source = malloc(n * m->row_bytes + 1);
    m->want = malloc(T_MAX * m->y_stride * sizeof(float));
    assert_true(m->source != NULL && m->want != NULL);
    fill_weights(m, &r);
    m->x = edge_open(((T_MAX - 1) * m->x_stride + k) * sizeof(float), 0);
    random_fill(edge_floats(&m->x), (T_MAX - 1) * m->x_stride + k, &r, values);
    assert_int_equal(bytes % 64, 0); /* so that the panels end where memory ends */
    m->packed = edge_open(bytes, 0);
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

/* One call for T tokens from `first` on: what is inside [begin, end) is as wanted, what is outside
 * is untouched. */
static void check_call(const product *m, const sy_kernels *kernels, size_t first, size_t T,
                       const uint32_t *x_row, size_t begin, size_t end)
{
    const size_t total = T == 0 ? 0 : (T - 1) * m->y_stride + m->n;
    const size_t n_begin = SY_MIN(begin * SY_PANEL, m->n), n_end = SY_MIN(end * SY_PANEL, m->n);
    const float *x = edge_floats(&m->x) + (x_row == NULL ? first * m->x_stride : 0);
    edge_buffer got = edge_open(total * sizeof(float), 4);
    float *want = malloc((total + 1) * sizeof(float));
    char what[160];

    assert_non_null(want);
    memset(want, GUARD, total * sizeof(float));
    for (size_t t = 0; t < T; t++)
        memcpy(want + t * m->y_stride + n_begin, m->want + (first + t) * m->y_stride + n_begin,
               (n_end - n_begin) * sizeof(float));
    kernels->matmul(edge_floats(&got), m->y_stride, x, m->x_stride, x_row, T, &m->w, begin, end);
    snprintf(what, sizeof(what),
             "%s, %s, T %zu, K %u, N %u, panels [%zu, %zu), weights %d, values %d", kernels->name,
             sy_dtype_name(m->dtype), T, m->k, m->n, begin, end, (int)m->weights, (int)m->values);
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
            check_call(m, sy_kernels_at(i), x_row == NULL ? T_MAX - T : 0, T, x_row, 0, n_panels);
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
                product_open(&m, dtypes[d], outer_sizes[n], inner_sizes[k], WEIGHTS_PLAIN,
                             VALUES_PLAIN);
                check_product(&m, NULL);
                product_close(&m);
            }
}

static void odd_codes_factors_and_inputs_give_the_bits_of_a_naive_loop(void **state)
{
    static const uint32_t ks[] = {3, 37, 135, 256};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (int weights = WEIGHTS_PLAIN; weights < N_WEIGHT_KINDS; weights++)
            for (int values = VALUES_PLAIN; values < N_VALUE_KINDS; values++)
                for (size_t k = 0; k < SY_COUNT_OF(ks); k++) {
                    product m;
                    product_open(&m, dtypes[d], 49, ks[k], (weight_kind)weights,
                                 (value_kind)values);
                    check_product(&m, NULL);
                    product_close(&m);
                }
}

/* Both blocks' sums underflow to a zero below zero, the second one's before inputs whose codes are
 * such zeros: neither these nor what a row has past its end, which is above zero, may touch it. */
static void make_zeros_below_zero(product *m)
{
    const float least_factor = 0x1p-127f;
    const uint8_t one = m->dtype == SY_FP8 ? 0x38 : 0x02;
    const uint8_t quarter = m->dtype == SY_FP8 ? 0x28 : 0x01; /* or a half */
    const size_t block = m->dtype == SY_FP8 ? 128 : 32, n_blocks = (m->k + block - 1) / block;

    for (size_t n = 0; n < m->n; n++) {
        uint8_t *row = m->source + n * m->row_bytes;
        const size_t n_codes = m->dtype == SY_FP8 ? m->k : n_blocks * 16;
        memset(row, m->dtype == SY_FP8 ? 0x80 : 0x88, n_codes);
        memset(row + n_codes, 0, m->row_bytes - n_codes); /* of MXFP4, the least factor */
        for (size_t b = 0; m->dtype == SY_FP8 && b < n_blocks; b++)
            memcpy(row + n_codes + b * 4, &least_factor, sizeof(least_factor));
        if (m->dtype == SY_FP8) {
            row[0] = one;
            row[block] = quarter;
        } else {
            row[0] = (uint8_t)(one | 0x80);
            row[block / 2] = (uint8_t)(quarter | 0x80);
            for (size_t k = m->k + 1; k < n_blocks * block; k += 2) row[k / 2] = 0x11;
        }
    }
    for (size_t t = 0; t < T_MAX; t++) {
        float *x = edge_floats(&m->x) + t * m->x_stride;
        for (size_t k = 0; k < m->k; k++) x[k] = k % block == 0 ? -0x1p-149f : 1.0f;
    }
    sy_panels_pack(m->packed.data, m->source, m->dtype, m->n, m->k, 0, sy_panels_count(m->n));
    naive_product(m);
}

static void zeros_below_zero_stay_what_they_are(void **state)
{
    static const uint32_t ks[2][2] = {{130, 256}, {34, 64}};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (size_t i = 0; i < SY_COUNT_OF(ks[d]); i++) {
            product m;
            product_open(&m, dtypes[d], 33, ks[d][i], WEIGHTS_PLAIN, VALUES_PLAIN);
            make_zeros_below_zero(&m);
            assert_true(m.want[0] == 0.0f && signbit(m.want[0]));
            check_product(&m, NULL);
            product_close(&m);
        }
}

static void any_number_of_tokens_is_computed_alike(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 3 * SY_PANEL + 2, 200, WEIGHTS_PLAIN, VALUES_PLAIN);
        for (size_t i = 1; i < sy_kernels_count(); i++)
            for (size_t T = 1; T <= 70; T++)
                check_call(&m, sy_kernels_at(i), T % 7, T, NULL, 0, sy_panels_count(m.n));
        product_close(&m);
    }
}

static void rows_may_come_in_any_order_and_more_than_once(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 48 + 5, 300, WEIGHTS_PLAIN, VALUES_PLAIN);
        for (uint32_t t = 0; t < T_MAX; t++) m.rows[t] = t % 4 == 1 ? 99 : (t * 37 + 11) % T_MAX;
        naive_product(&m);
        check_product(&m, m.rows);
        product_close(&m);
    }
}

static void any_range_of_panels_is_computed_alone(void **state)
{
    static const size_t T[] = {1, 2, 13, 40};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 16 * 7 + 3, 160, WEIGHTS_PLAIN, VALUES_PLAIN);
        for (size_t i = 0; i < sy_kernels_count(); i++)
            for (size_t t = 0; t < SY_COUNT_OF(T); t++)
                for (size_t begin = 0; begin <= 8; begin++)
                    for (size_t end = begin; end <= 8; end++)
                        check_call(&m, sy_kernels_at(i), 0, T[t], NULL, begin, end);
        product_close(&m);
    }
}

/* More blocks than the buffers of any implementation hold at once: sums go through y between. */
static void long_rows_are_one_chain(void **state)
{
    static const size_t T[] = {1, 3, 17, 100};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        product_open(&m, dtypes[d], 17, 32 * 800 + 9, WEIGHTS_PLAIN, VALUES_PLAIN);
        for (size_t i = 1; i < sy_kernels_count(); i++)
            for (size_t t = 0; t < SY_COUNT_OF(T); t++)
                check_call(&m, sy_kernels_at(i), 0, T[t], NULL, 0, 2);
        product_close(&m);
    }
}

/* A chain of K products and sums, then one a block: the error is at most (K + blocks) u / (1 - (K +
 * blocks) u) times the sum of |x w|, u = 2^-24. */
static void products_agree_with_double(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        product m;
        float y[33];
        product_open(&m, dtypes[d], 33, 1000, WEIGHTS_PLAIN, VALUES_PLAIN);
        const double rounded = (1000 + 32) * 0x1p-24, bound = rounded / (1 - rounded);
        const float *x = edge_floats(&m.x);
        sy_kernels_best()->matmul(y, 33, x, m.x_stride, NULL, 1, &m.w, 0, 3);
        for (size_t n = 0; n < m.n; n++) {
            double want = 0, magnitude = 0;
            for (size_t k = 0; k < m.k; k++) {
                float factor;
                const double w = (double)stored(&m, n, k, &factor) * factor;
                want += x[k] * w;
                magnitude += fabs(x[k] * w);
            }
            if (!(fabs(y[n] - want) <= bound * magnitude))
                fail_msg("%s, y[%zu]: want %.9g, got %.9g", sy_dtype_name(m.dtype), n, want,
                         (double)y[n]);
        }
        product_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_gives_the_bits_of_a_naive_loop),
        cmocka_unit_test(odd_codes_factors_and_inputs_give_the_bits_of_a_naive_loop),
        cmocka_unit_test(zeros_below_zero_stay_what_they_are),
        cmocka_unit_test(any_number_of_tokens_is_computed_alike),
        cmocka_unit_test(rows_may_come_in_any_order_and_more_than_once),
        cmocka_unit_test(any_range_of_panels_is_computed_alone),
        cmocka_unit_test(long_rows_are_one_chain),
        cmocka_unit_test(products_agree_with_double),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
