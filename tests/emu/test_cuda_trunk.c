/* What the trunk does to rows and heads on a GPU: bits where the CPU's steps are followed one by
 * one, closeness to exact arithmetic where sums have an order of their own, and no trace of
 * neighbours. */
#include "kernel_cases.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_trunk.h"

#define ERROR_MAX 2e-6 /* of an element, relative to the largest of its row */

enum { ROWS_SPARE = 3 }; /* that the launch is sized for and the batch has not */

static const uint32_t row_counts[] = {0, 1, 7, 65};
static const uint32_t widths[] = {1, 7, 63, 64, 65, 300, 700};

static uint16_t *bf16_of(const edge_buffer *b)
{
    return (uint16_t *)(void *)b->data;
}

static edge_buffer open_floats(size_t n, uint64_t seed, value_kind kind)
{
    test_random r = {TEST_SEED + seed};
    edge_buffer b = edge_open(n * sizeof(float), 0);

    random_fill(edge_floats(&b), n, &r, kind);
    return b;
}

static edge_buffer open_poisoned(size_t bytes)
{
    edge_buffer b = edge_open(bytes, 0);

    memset(b.data, 0xff, bytes);
    return b;
}

static void check_close(const double *want, const float *got, size_t n, const char *what)
{
    double largest = 0.0;

    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(want[i] - (double)got[i]) <= ERROR_MAX * largest))
            fail_msg("%s: element %zu of %zu: want %.9g, got %.9g", what, i, n, want[i],
                     (double)got[i]);
}

/* ---- rows ---- */

static void an_embedding_is_looked_up_and_scaled(void **state)
{
    enum { VOCAB = 11 };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(widths); i++) {
        const uint32_t hidden = widths[i], n_rows = row_counts[i % SY_COUNT_OF(row_counts)];
        const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
        const float factor = i % 2 == 0 ? 1.0f : 12.7f;
        test_random r = {TEST_SEED + hidden};
        edge_buffer table = edge_open((size_t)VOCAB * hidden * 2, 0);
        edge_buffer x = open_poisoned((size_t)n_rows * hidden * sizeof(float));
        uint32_t token[65];

        for (size_t e = 0; e < (size_t)VOCAB * hidden; e++)
            bf16_of(&table)[e] = sy_f32_to_bf16(random_value(&r, VALUES_MIXED));
        for (uint32_t t = 0; t < 65; t++) token[t] = t * 7 % VOCAB;
        assert_int_equal(
            sy_cuda_embed(edge_floats(&x), bf16_of(&table), token, hidden, factor, &rows, NULL), 0);
        for (size_t e = 0; e < (size_t)n_rows * hidden; e++) {
            const uint16_t v = bf16_of(&table)[token[e / hidden] * hidden + e % hidden];
            const float want = sy_bf16_to_f32(v) * factor;
            check_bits(&want, edge_floats(&x) + e, 1, "an element of the embedding");
        }
        edge_check(&x);
        edge_close(&table);
        edge_close(&x);
    }
}

typedef struct norm_case {
    sy_cuda_norm norm;
    edge_buffer weight, bias;
} norm_case;

static norm_case norm_open(sy_cuda_norm_form form, uint32_t n, int is_biased)
{
    norm_case c = {.weight = open_floats(n, n, VALUES_PLAIN),
                   .bias = open_floats(n, n + 1, VALUES_PLAIN)};

    c.norm = (sy_cuda_norm){form, edge_floats(&c.weight), is_biased ? edge_floats(&c.bias) : NULL,
                            1e-5f, n};
    return c;
}

static void norm_close(norm_case *c)
{
    edge_close(&c->weight);
    edge_close(&c->bias);
}

static void exact_norm(double *want, const float *x, const sy_cuda_norm *norm)
{
    double mean = 0.0, square = 0.0;

    for (uint32_t i = 0; norm->form == SY_CUDA_NORM_LAYER && i < norm->n; i++)
        mean += (double)x[i] / norm->n;
    for (uint32_t i = 0; i < norm->n; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double r = 1.0 / sqrt(square / norm->n + (double)norm->eps);
    for (uint32_t i = 0; i < norm->n; i++) {
        want[i] = (double)norm->weight[i] * (((double)x[i] - mean) * r);
        if (norm->bias != NULL) want[i] += (double)norm->bias[i];
    }
}

/* Rows of x taken backwards, one further than there are results. */
static void check_norm(sy_cuda_norm_form form, uint32_t n, uint32_t n_rows, int is_biased)
{
    const uint32_t padded = sy_cuda_padded(n);
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
    norm_case c = norm_open(form, n, is_biased);
    edge_buffer x = open_floats((size_t)(n_rows + 1) * n, n_rows, VALUES_PLAIN);
    edge_buffer y = open_poisoned((size_t)n_rows * n * sizeof(float));
    edge_buffer y16 = open_poisoned((size_t)n_rows * padded * 2);
    uint32_t row[65];
    double want[700];

    for (uint32_t t = 0; t < n_rows; t++) row[t] = n_rows - t;
    assert_int_equal(sy_cuda_norm_rows(edge_floats(&y), bf16_of(&y16), edge_floats(&x), row,
                                       &c.norm, &rows, NULL),
                     0);
    for (uint32_t t = 0; t < n_rows; t++) {
        const float *got = edge_floats(&y) + (size_t)t * n;
        exact_norm(want, edge_floats(&x) + (size_t)row[t] * n, &c.norm);
        check_close(want, got, n, form == SY_CUDA_NORM_RMS ? "RMS norm" : "layer norm");
        for (uint32_t i = 0; i < padded; i++)
            assert_int_equal(bf16_of(&y16)[(size_t)t * padded + i],
                             i < n ? sy_f32_to_bf16(got[i]) : 0);
    }
    edge_check(&y);
    edge_check(&y16);
    edge_buffer *all[] = {&x, &y, &y16};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
    norm_close(&c);
}

static void norms_are_right_for_any_width(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(widths); i++) {
        check_norm(SY_CUDA_NORM_RMS, widths[i], row_counts[i % SY_COUNT_OF(row_counts)], 0);
        if (widths[i] > 1)
            check_norm(SY_CUDA_NORM_LAYER, widths[i], row_counts[i % SY_COUNT_OF(row_counts)],
                       (int)i % 2);
    }
}

/* In place, with a row that is no number, and each alone. */
static void norms_of_a_row_ignore_the_others(void **state)
{
    enum { T = 9, N = 130 };

    (void)state;
    for (int form = SY_CUDA_NORM_RMS; form <= SY_CUDA_NORM_LAYER; form++) {
        norm_case c = norm_open((sy_cuda_norm_form)form, N, 0);
        edge_buffer x = open_floats(T * N, 3, VALUES_PLAIN), y = open_poisoned(x.bytes);
        uint32_t n_rows = T;
        const sy_cuda_row_count rows = {&n_rows, T};

        edge_floats(&x)[4 * N + 77] = NAN;
        edge_floats(&x)[6 * N + 5] = INFINITY;
        memcpy(y.data, x.data, x.bytes);
        assert_int_equal(
            sy_cuda_norm_rows(edge_floats(&y), NULL, edge_floats(&y), NULL, &c.norm, &rows, NULL),
            0);
        n_rows = 1;
        for (uint32_t t = 0; t < T; t++) {
            float alone[N];
            assert_int_equal(
                sy_cuda_norm_rows(alone, NULL, edge_floats(&x), &t, &c.norm, &rows, NULL), 0);
            check_bits(alone, edge_floats(&y) + t * N, N, "a row alone");
            assert_int_equal(isnan(edge_floats(&y)[t * N + 1]) != 0,
                             t == 4 || (t == 6 && form == SY_CUDA_NORM_LAYER));
        }
        edge_close(&x);
        edge_close(&y);
        norm_close(&c);
    }
}

static void sums_are_one_multiply_add_each(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(widths); i++) {
        const uint32_t hidden = widths[i], n_rows = row_counts[i % SY_COUNT_OF(row_counts)];
        const size_t n = (size_t)n_rows * hidden;
        const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
        const float factor = i % 2 == 0 ? 1.0f : 0.22f;
        edge_buffer x = open_floats(n, i, VALUES_MIXED), y = open_floats(n, i + 1, VALUES_MIXED);
        edge_buffer by = open_floats(n_rows, i + 2, VALUES_PLAIN), want = edge_open(n * 4, 0);

        for (int has_factors = 0; has_factors <= 1; has_factors++) {
            memcpy(want.data, x.data, x.bytes);
            for (uint32_t t = 0; t < n_rows; t++)
                sy_kernels_at(0)->axpy(edge_floats(&want) + (size_t)t * hidden,
                                       edge_floats(&y) + (size_t)t * hidden,
                                       has_factors ? edge_floats(&by)[t] * factor : factor, hidden);
            assert_int_equal(sy_cuda_add(edge_floats(&x), edge_floats(&y), factor,
                                         has_factors ? edge_floats(&by) : NULL, hidden, &rows,
                                         NULL),
                             0);
            check_bits(edge_floats(&want), edge_floats(&x), n, "the residual sum");
            edge_check(&x);
        }
        edge_buffer *all[] = {&x, &y, &by, &want};
        for (size_t b = 0; b < SY_COUNT_OF(all); b++) edge_close(all[b]);
    }
}

static void the_gate_of_shared_experts_is_a_sigmoid(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(widths); i++) {
        const uint32_t hidden = widths[i], n_rows = row_counts[i % SY_COUNT_OF(row_counts)];
        const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
        edge_buffer x = open_floats((size_t)n_rows * hidden, i, VALUES_PLAIN);
        edge_buffer w = open_floats(hidden, i + 9, VALUES_PLAIN);
        edge_buffer gate = open_poisoned(n_rows * sizeof(float));

        assert_int_equal(sy_cuda_shared_gate(edge_floats(&gate), edge_floats(&x), edge_floats(&w),
                                             hidden, &rows, NULL),
                         0);
        for (uint32_t t = 0; t < n_rows; t++) {
            double dot = 0.0;
            for (uint32_t e = 0; e < hidden; e++)
                dot += (double)edge_floats(&x)[t * hidden + e] * (double)edge_floats(&w)[e];
            const double want = 1.0 / (1.0 + exp(-dot));
            if (!(fabs((double)edge_floats(&gate)[t] - want) <= 5e-6 * want))
                fail_msg("width %u, row %u: %g, want %g", hidden, t, (double)edge_floats(&gate)[t],
                         want);
        }
        edge_check(&gate);
        edge_close(&x);
        edge_close(&w);
        edge_close(&gate);
    }
}

/* ---- heads ---- */

enum { POSITIONS = 40, ROTARY_MAX = 64 };

/* As trunk_angles has them. */
static void fill_angles(float *angles, uint32_t rotary_dim)
{
    const uint32_t half = rotary_dim / 2;

    for (uint32_t p = 0; p < POSITIONS; p++)
        for (uint32_t i = 0; i < half; i++) {
            const float inv = 1.0f / powf(10000.0f, (float)(2 * i) / (float)rotary_dim);
            angles[p * rotary_dim + i] = cosf((float)p * inv) * 1.2f;
            angles[p * rotary_dim + half + i] = sinf((float)p * inv) * 1.2f;
        }
}

static void norm_on_cpu(float *v, const sy_cuda_heads *h)
{
    float ones[SY_CUDA_KEY_MAX];

    for (uint32_t i = 0; i < SY_CUDA_KEY_MAX; i++) ones[i] = 1.0f;
    sy_kernels_at(0)->rmsnorm(v, v, h->norm_weight == NULL ? ones : h->norm_weight, h->norm_eps,
                              h->norm_dim);
}

/* What lib/trunk does to a head, by the CPU's operations. */
static void finish_on_cpu(float *v, const sy_cuda_heads *h, uint32_t position, uint32_t angle)
{
    const uint32_t half = h->rotary_dim / 2;
    float *x = v + h->rotary_at;

    if (h->norm == SY_CUDA_NORM_THEN_ROTATE) norm_on_cpu(v, h);
    for (uint32_t i = 0; h->clip > 0.0f && i < h->head_dim; i++)
        v[i] = fminf(fmaxf(v[i], -h->clip), h->clip);
    if (h->rotary_dim > 0) {
        const float *c = h->angles + (size_t)angle * h->rotary_dim, *s = c + half;
        if (!h->interleaved) sy_kernels_at(0)->rope(x, c, s, half);
        for (uint32_t i = 0; h->interleaved && i < half; i++) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = b * c[i] + a * s[i];
        }
    }
    if (h->norm == SY_CUDA_ROTATE_THEN_NORM) norm_on_cpu(v, h);
    if (h->temperature_scale != 0.0f) {
        const float steps = floorf(((float)position + 1.0f) / h->temperature_floor);
        for (uint32_t i = 0; i < h->head_dim; i++)
            v[i] *= 1.0f + h->temperature_scale * log1pf(steps);
    }
}

/* Rows at positions 0, 3, 6, ..., every fifth without a token; is_exact: bits are the CPU's. */
static void check_heads(const sy_cuda_heads *h, uint32_t n_rows, value_kind kind, int is_exact)
{
    const size_t width = (size_t)h->n_heads * h->head_dim, n = n_rows * width;
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer before = open_floats(n, h->head_dim, kind), x = edge_open(n * sizeof(float), 0);
    uint32_t position[65], angle[65];
    const sy_cuda_places places = {.position = position, .angle = angle};

    for (uint32_t t = 0; t < n_rows; t++) {
        position[t] = t % 5 == 4 ? SY_CUDA_NO_POSITION : t * 3;
        angle[t] = t * 3 % POSITIONS;
    }
    memcpy(x.data, before.data, x.bytes);
    assert_int_equal(sy_cuda_finish_heads(edge_floats(&x), h, &places, &rows, NULL), 0);
    for (uint32_t i = 0; i < n_rows * h->n_heads; i++) {
        const uint32_t t = i / h->n_heads;
        float *want = edge_floats(&before) + (size_t)i * h->head_dim;
        const float *got = edge_floats(&x) + (size_t)i * h->head_dim;
        double wide[SY_CUDA_KEY_MAX];
        if (position[t] != SY_CUDA_NO_POSITION) finish_on_cpu(want, h, position[t], angle[t]);
        for (uint32_t e = 0; e < h->head_dim; e++) wide[e] = (double)want[e];
        if (is_exact)
            check_bits(want, got, h->head_dim, "a head");
        else
            check_close(wide, got, h->head_dim, "a head");
    }
    edge_check(&x);
    edge_close(&before);
    edge_close(&x);
}

typedef struct rotary_case {
    uint32_t n_heads, head_dim, rotary_at, rotary_dim;
} rotary_case;

static void heads_rotate_with_the_bits_of_the_cpu(void **state)
{
    static const rotary_case cases[] = {{1, 2, 0, 2},    {5, 64, 0, 64},    {3, 33, 0, 10},
                                        {4, 80, 48, 32}, {1, 576, 512, 64}, {2, 7, 0, 0}};
    float angles[POSITIONS * ROTARY_MAX];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++)
        for (int interleaved = 0; interleaved <= 1; interleaved++) {
            const rotary_case *c = &cases[i];
            const sy_cuda_heads h = {.n_heads = c->n_heads,
                                     .head_dim = c->head_dim,
                                     .rotary_at = c->rotary_at,
                                     .rotary_dim = c->rotary_dim,
                                     .interleaved = interleaved,
                                     .angles = angles,
                                     .clip = interleaved ? 0.5f : 0.0f};
            fill_angles(angles, c->rotary_dim);
            for (size_t t = 0; t < SY_COUNT_OF(row_counts); t++)
                check_heads(&h, row_counts[t], VALUES_MIXED, 1);
        }
}

static void heads_are_normed_before_or_after(void **state)
{
    float angles[POSITIONS * ROTARY_MAX], weight[SY_CUDA_KEY_MAX];
    test_random r = {TEST_SEED};

    (void)state;
    fill_angles(angles, 16);
    random_fill(weight, SY_CUDA_KEY_MAX, &r, VALUES_PLAIN);
    for (int norm = SY_CUDA_NORM_THEN_ROTATE; norm <= SY_CUDA_ROTATE_THEN_NORM; norm++)
        for (int weighted = 0; weighted <= 1; weighted++) {
            sy_cuda_heads h = {.n_heads = 5,
                               .head_dim = 40,
                               .norm = (sy_cuda_head_norm)norm,
                               .norm_dim = 40,
                               .norm_weight = weighted ? weight : NULL,
                               .norm_eps = 1e-6f,
                               .rotary_dim = 16,
                               .angles = angles};
            check_heads(&h, 7, VALUES_PLAIN, 0);
            h.n_heads = 1; /* a latent, and behind it what rotates */
            h.head_dim = SY_CUDA_KEY_MAX;
            h.norm_dim = h.rotary_at = SY_CUDA_VALUE_MAX;
            check_heads(&h, 7, VALUES_PLAIN, 0);
        }
}

static void queries_grow_with_the_position(void **state)
{
    const sy_cuda_heads h = {
        .n_heads = 3, .head_dim = 20, .temperature_floor = 8.0f, .temperature_scale = 0.1f};

    (void)state;
    check_heads(&h, 65, VALUES_PLAIN, 0);
}

static void a_head_past_the_limit_is_refused(void **state)
{
    const uint32_t n_rows = 1, position = 0;
    const sy_cuda_row_count rows = {&n_rows, 1};
    const sy_cuda_places places = {.position = &position};
    const sy_cuda_heads h = {.n_heads = 1, .head_dim = SY_CUDA_KEY_MAX + 1};

    (void)state;
    assert_int_equal(sy_cuda_finish_heads(NULL, &h, &places, &rows, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_embedding_is_looked_up_and_scaled),
        cmocka_unit_test(norms_are_right_for_any_width),
        cmocka_unit_test(norms_of_a_row_ignore_the_others),
        cmocka_unit_test(sums_are_one_multiply_add_each),
        cmocka_unit_test(the_gate_of_shared_experts_is_a_sigmoid),
        cmocka_unit_test(heads_rotate_with_the_bits_of_the_cpu),
        cmocka_unit_test(heads_are_normed_before_or_after),
        cmocka_unit_test(queries_grow_with_the_position),
        cmocka_unit_test(a_head_past_the_limit_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
