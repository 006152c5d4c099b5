/* Products with weights of integer blocks: every implementation gives the bits of a naive loop over
 * the stored rows, with fp32 and with int8 activations, for any shape, any number of tokens, any
 * range of panels, any order of rows and the most extreme integers, and writes nothing but its
 * columns. */
#include "kernel_cases.h"

#define T_MAX   100
#define N_GUARD 3 /* floats between rows of y that nobody may write */
#define X_GUARD 5 /* floats between rows of x that nobody needs */

static const size_t token_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 33, 96, 97, 100};
static const uint32_t inner_sizes[] = {0, 1, 7, 31, 32, 33, 64, 95, 160, 1056};
static const uint32_t outer_sizes[] = {1, 15, 16, 17, 32, 33, 64, 81};
static const sy_dtype dtypes[] = {SY_Q8, SY_Q4};

typedef enum weight_kind {
    WEIGHTS_PLAIN,      /* any bits in the integers, scales around 0.01 of both signs */
    WEIGHTS_LOW,        /* every integer the lowest: -128, or nibble 0 */
    WEIGHTS_HIGH,       /* every integer the highest */
    WEIGHTS_ODD_SCALES, /* zeros, denormals and the largest of f16 */
    N_WEIGHT_KINDS
} weight_kind;

/* One matrix and T_MAX rows against it, with the results that every call must repeat. */
typedef struct product {
    sy_dtype dtype;
    uint32_t n, k;
    size_t blocks, row_bytes;
    weight_kind weights;
    value_kind values;
    uint8_t *source; /* [n][row_bytes] */
    edge_buffer packed, x;
    sy_panels w;
    size_t x_stride, y_stride;
    uint32_t rows[T_MAX];      /* the row of x that token t has */
    float *want_f32, *want_q8; /* [T_MAX][y_stride] */
    void *qrows_memory;
    sy_qrows q; /* of all rows of x, by the implementation in hand */
} product;

static uint16_t random_scale(test_random *r, weight_kind kind)
{
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00};

    if (kind == WEIGHTS_ODD_SCALES) return odd[random_u32(r) % SY_COUNT_OF(odd)];
    return sy_f32_to_f16(random_unit(r) * 0.02f);
}

static void fill_weights(product *m, test_random *r)
{
    const size_t block_bytes = m->blocks == 0 ? 1 : m->row_bytes / m->blocks;

    for (size_t i = 0; i < m->n * m->blocks; i++) {
        uint8_t *block = m->source + i * block_bytes;
        const uint16_t scale = random_scale(r, m->weights);
        memcpy(block, &scale, sizeof(scale));
        for (size_t j = sizeof(scale); j < block_bytes; j++) {
            block[j] = (uint8_t)random_u32(r);
            if (m->weights == WEIGHTS_LOW) block[j] = m->dtype == SY_Q8 ? 0x80 : 0;
            if (m->weights == WEIGHTS_HIGH) block[j] = m->dtype == SY_Q8 ? 0x7f : 0xff;
        }
    }
}

/* Element k of stored row n, as the format is defined. */
static int stored_q(const product *m, size_t n, size_t k, float *scale)
{
    const uint8_t *block = m->source + n * m->row_bytes + k / 32 * (m->row_bytes / m->blocks);
    const size_t i = k % 32;
    uint16_t d;

    memcpy(&d, block, sizeof(d));
    *scale = sy_f16_to_f32(d);
    if (m->dtype == SY_Q8) return (int8_t)block[2 + i];
    return (i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8;
}

static float naive_f32(const product *m, const float *x, size_t n)
{
    float y = 0.0f;

    for (size_t k = 0; k < m->k;) {
        float s = 0.0f, d = 0.0f;
        do {
            s = fmaf(x[k], (float)stored_q(m, n, k, &d), s);
            k++;
        } while (k < m->k && k % 32 != 0);
        y = fmaf(d, s, y);
    }
    return y;
}

/* The rounding of activations and the product with them, block after block. */
static float naive_q8(const product *m, const float *x, size_t n)
{
    float y = 0.0f;

    for (size_t first = 0; first < m->k; first += 32) {
        const size_t n_block = SY_MIN((size_t)32, m->k - first);
        int finite = 1, sum = 0;
        float max = 0.0f, d = 0.0f;
        for (size_t i = 0; i < n_block; i++) {
            finite &= isfinite(x[first + i]) != 0;
            max = fmaxf(max, fabsf(x[first + i]));
        }
        const float scale = !finite ? NAN : max < 0x1p-100f ? 0.0f : max / 127.0f;
        for (size_t i = 0; i < n_block; i++) {
            const int w = stored_q(m, n, first + i, &d);
            if (scale > 0) sum += w * (int)nearbyintf(x[first + i] * (127.0f / max));
        }
        const float both = d * scale;
        y = fmaf((float)sum, both, y);
    }
    return y;
}

static void naive_products(product *m)
{
    memset(m->want_f32, GUARD, T_MAX * m->y_stride * sizeof(float));
    memset(m->want_q8, GUARD, T_MAX * m->y_stride * sizeof(float));
    for (size_t t = 0; t < T_MAX; t++)
        for (size_t n = 0; n < m->n; n++) {
            const float *row = edge_floats(&m->x) + m->rows[t] * m->x_stride;
            m->want_f32[t * m->y_stride + n] = naive_f32(m, row, n);
            m->want_q8[t * m->y_stride + n] = naive_q8(m, row, n);
        }
}

static void product_open(product *m, sy_dtype dtype, uint32_t n, uint32_t k, weight_kind weights,
                         value_kind values)
{
    const size_t bytes = sy_panels_bytes(dtype, n, k);
    test_random r = {TEST_SEED + n * 7919u + k};

    *m = (product){.dtype = dtype,
                   .n = n,
                   .k = k,
                   .blocks = (k + 31) / 32,
                   .row_bytes = sy_dtype_row_bytes(dtype, k),
                   .weights = weights,
                   .values = values,
                   .x_stride = k + X_GUARD,
                   .y_stride = n + N_GUARD};
    m->source = malloc(n * m->row_bytes + 1);
    m->want_f32 = malloc(T_MAX * m->y_stride * sizeof(float));
    m->want_q8 = malloc(T_MAX * m->y_stride * sizeof(float));
    m->qrows_memory = aligned_alloc(64, sy_qrows_bytes(T_MAX, k) + 64);
    assert_true(m->source != NULL && m->want_f32 != NULL && m->want_q8 != NULL);
    assert_non_null(m->qrows_memory);
    fill_weights(m, &r);
    m->x = edge_open(((T_MAX - 1) * m->x_stride + k) * sizeof(float), 0);
    random_fill(edge_floats(&m->x), (T_MAX - 1) * m->x_stride + k, &r, values);
    m->packed = edge_open(bytes, 0); /* a multiple of 64: it ends where memory ends */
    m->w = (sy_panels){m->packed.data, dtype, n, k};
    sy_panels_pack(m->packed.data, m->source, dtype, n, k, 0, sy_panels_count(n));
    edge_check(&m->packed);
    sy_qrows_at(&m->q, m->qrows_memory, T_MAX, k);
    for (uint32_t t = 0; t < T_MAX; t++) m->rows[t] = t;
    naive_products(m);
}

static void product_close(product *m)
{
    free(m->source);
    free(m->want_f32);
    free(m->want_q8);
    free(m->qrows_memory);
    edge_close(&m->packed);
    edge_close(&m->x);
}

/* What lies before row `first`, so that tokens may start there without a list of rows. */
static sy_qrows rows_from(const sy_qrows *q, size_t first)
{
    sy_qrows out = *q;

    out.q += first * q->stride;
    out.scale += first * q->blocks;
    out.sum += first * q->blocks;
    return out;
}

/* One call for T tokens from `first` on: what is inside [begin, end) is as wanted, what is outside
 * is untouched. */
static void check_call(const product *m, const sy_kernels *kernels, sy_activations activations,
                       size_t first, size_t T, const uint32_t *x_row, size_t begin, size_t end)
{
    const size_t total = T == 0 ? 0 : (T - 1) * m->y_stride + m->n;
    const size_t n_begin = SY_MIN(begin * SY_PANEL, m->n), n_end = SY_MIN(end * SY_PANEL, m->n);
    const float *all = activations == SY_ACT_Q8 ? m->want_q8 : m->want_f32;
    edge_buffer got = edge_open(total * sizeof(float), 4);
    float *want = malloc((total + 1) * sizeof(float));
    char what[160];

    assert_non_null(want);
    memset(want, GUARD, total * sizeof(float));
    for (size_t t = 0; t < T; t++)
        memcpy(want + t * m->y_stride + n_begin, all + (first + t) * m->y_stride + n_begin,
               (n_end - n_begin) * sizeof(float));
    const size_t offset = x_row == NULL ? first : 0;
    if (activations == SY_ACT_Q8) {
        const sy_qrows q = rows_from(&m->q, offset);
        kernels->matmul_q8(edge_floats(&got), m->y_stride, &q, x_row, T, &m->w, begin, end);
    } else {
        kernels->matmul(edge_floats(&got), m->y_stride, edge_floats(&m->x) + offset * m->x_stride,
                        m->x_stride, x_row, T, &m->w, begin, end);
    }
    snprintf(what, sizeof(what),
             "%s, %s by %s, T %zu, K %u, N %u, panels [%zu, %zu), weights %d, values %d",
             kernels->name, sy_dtype_name(m->dtype), activations == SY_ACT_Q8 ? "q8" : "f32", T,
             m->k, m->n, begin, end, (int)m->weights, (int)m->values);
    check_bits(want, edge_floats(&got), total, what);
    edge_check(&got);
    free(want);
    edge_close(&got);
}

static void check_product(product *m, const uint32_t *x_row)
{
    const size_t n_panels = sy_panels_count(m->n);

    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *kernels = sy_kernels_at(i);
        /* In two calls, as two threads would. */
        memset(m->qrows_memory, GUARD, sy_qrows_bytes(T_MAX, m->k));
        kernels->quantize(&m->q, 0, edge_floats(&m->x), m->x_stride, 37, m->k);
        kernels->quantize(&m->q, 37, edge_floats(&m->x) + 37 * m->x_stride, m->x_stride, T_MAX - 37,
                          m->k);
        /* The reference takes every token alone: one size shows all of it. */
        for (size_t s = i == 0 ? SY_COUNT_OF(token_counts) - 1 : 0; s < SY_COUNT_OF(token_counts);
             s++) {
            const size_t T = token_counts[s];
            const size_t first = x_row == NULL ? T_MAX - T : 0;
            check_call(m, kernels, SY_ACT_F32, first, T, x_row, 0, n_panels);
            check_call(m, kernels, SY_ACT_Q8, first, T, x_row, 0, n_panels);
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

static void extreme_integers_and_scales_saturate_nowhere(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (int weights = WEIGHTS_PLAIN; weights < N_WEIGHT_KINDS; weights++)
            for (int values = VALUES_PLAIN; values < N_VALUE_KINDS; values++) {
                product m;
                product_open(&m, dtypes[d], 49, 135, (weight_kind)weights, (value_kind)values);
                check_product(&m, NULL);
                product_close(&m);
            }
}

/* Every activation rounds to 127 or -127, so that sums inside a block are as large as they get. */
static void the_largest_sums_of_a_block_are_exact(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (int weights = WEIGHTS_LOW; weights <= WEIGHTS_HIGH; weights++) {
            product m;
            product_open(&m, dtypes[d], 33, 96, (weight_kind)weights, VALUES_PLAIN);
            for (size_t t = 0; t < T_MAX; t++)
                for (size_t k = 0; k < m.k; k++)
                    edge_floats(&m.x)[t * m.x_stride + k] = t % 2 == 0 ? 3.0f : -3.0f;
            naive_products(&m);
            check_product(&m, NULL);
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
        naive_products(&m);
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
        product_open(&m, dtypes[d], 16 * 7 + 3, 100, WEIGHTS_PLAIN, VALUES_PLAIN);
        for (size_t i = 0; i < sy_kernels_count(); i++) {
            const sy_kernels *kernels = sy_kernels_at(i);
            kernels->quantize(&m.q, 0, edge_floats(&m.x), m.x_stride, T_MAX, m.k);
            for (size_t begin = 0; begin <= 8; begin++)
                for (size_t end = begin; end <= 8; end++)
                    for (size_t t = 0; t < SY_COUNT_OF(T); t++) {
                        check_call(&m, kernels, SY_ACT_F32, 0, T[t], NULL, begin, end);
                        check_call(&m, kernels, SY_ACT_Q8, 0, T[t], NULL, begin, end);
                    }
        }
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
        for (size_t i = 1; i < sy_kernels_count(); i++) {
            const sy_kernels *kernels = sy_kernels_at(i);
            kernels->quantize(&m.q, 0, edge_floats(&m.x), m.x_stride, T_MAX, m.k);
            for (size_t t = 0; t < SY_COUNT_OF(T); t++) {
                check_call(&m, kernels, SY_ACT_F32, 0, T[t], NULL, 0, 2);
                check_call(&m, kernels, SY_ACT_Q8, 0, T[t], NULL, 0, 2);
            }
        }
        product_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_gives_the_bits_of_a_naive_loop),
        cmocka_unit_test(extreme_integers_and_scales_saturate_nowhere),
        cmocka_unit_test(the_largest_sums_of_a_block_are_exact),
        cmocka_unit_test(rows_may_come_in_any_order_and_more_than_once),
        cmocka_unit_test(any_range_of_panels_is_computed_alone),
        cmocka_unit_test(long_rows_are_one_chain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
