/* Every implementation of the vector operations gives the bits of the reference, for odd sizes,
 * awkward addresses and values of every kind, and touches nothing else; the reference agrees with
 * arithmetic in double precision. */
#include "kernel_cases.h"

typedef struct operands {
    float *y;       /* [n], the output; also an input where the operation updates in place */
    const float *a; /* [n] */
    const float *b; /* [n] */
    size_t n;
    float scalar;
} operands;

typedef void run_fn(const sy_kernels *k, const operands *o);

static void run_swiglu(const sy_kernels *k, const operands *o)
{
    k->swiglu(o->y, o->a, o->b, o->n);
}

static void run_swiglu_over_g(const sy_kernels *k, const operands *o)
{
    k->swiglu(o->y, o->y, o->b, o->n);
}

static void run_swiglu_over_u(const sy_kernels *k, const operands *o)
{
    k->swiglu(o->y, o->a, o->y, o->n);
}

static void run_clamped(const sy_kernels *k, const operands *o)
{
    k->clamped_swiglu(o->y, o->a, o->b, 7.0f, o->n);
}

static void run_clamped_over_g(const sy_kernels *k, const operands *o)
{
    k->clamped_swiglu(o->y, o->y, o->b, 0.5f, o->n);
}

static void run_clamped_over_u(const sy_kernels *k, const operands *o)
{
    k->clamped_swiglu(o->y, o->a, o->y, 0.5f, o->n);
}

static void run_rmsnorm(const sy_kernels *k, const operands *o)
{
    k->rmsnorm(o->y, o->a, o->b, 1e-5f, o->n);
}

static void run_rmsnorm_in_place(const sy_kernels *k, const operands *o)
{
    k->rmsnorm(o->y, o->y, o->b, 1e-6f, o->n);
}

static void run_softmax(const sy_kernels *k, const operands *o)
{
    if (o->n > 0) k->softmax(o->y, o->n);
}

static void run_dot(const sy_kernels *k, const operands *o)
{
    const float dot = k->dot(o->a, o->b, o->n);

    if (o->n > 0) o->y[0] = dot;
    if (o->n == 0) assert_true(dot == 0.0f);
}

static void run_axpy(const sy_kernels *k, const operands *o)
{
    k->axpy(o->y, o->a, o->scalar, o->n);
}

static void run_add(const sy_kernels *k, const operands *o)
{
    k->add(o->y, o->a, o->n);
}

static void run_rope(const sy_kernels *k, const operands *o)
{
    k->rope(o->y, o->a, o->b, o->n / 2);
}

static void run_argmax(const sy_kernels *k, const operands *o)
{
    if (o->n > 0) o->y[0] = (float)k->argmax(o->a, o->n);
}

static void run_vexp(const sy_kernels *k, const operands *o)
{
    k->vexp(o->y, o->a, o->n);
}

static void run_vexp_in_place(const sy_kernels *k, const operands *o)
{
    k->vexp(o->y, o->y, o->n);
}

static void run_all_finite(const sy_kernels *k, const operands *o)
{
    const int finite = k->all_finite(o->a, o->n) != 0;

    if (o->n > 0) o->y[0] = (float)finite;
    if (o->n == 0) assert_true(finite);
}

static const struct operation {
    const char *name;
    run_fn *run;
} operations[] = {
    {"swiglu", run_swiglu},
    {"swiglu over g", run_swiglu_over_g},
    {"swiglu over u", run_swiglu_over_u},
    {"clamped swiglu", run_clamped},
    {"clamped swiglu over g", run_clamped_over_g},
    {"clamped swiglu over u", run_clamped_over_u},
    {"rmsnorm", run_rmsnorm},
    {"rmsnorm in place", run_rmsnorm_in_place},
    {"softmax", run_softmax},
    {"dot", run_dot},
    {"axpy", run_axpy},
    {"add", run_add},
    {"rope", run_rope},
    {"argmax", run_argmax},
    {"vexp", run_vexp},
    {"vexp in place", run_vexp_in_place},
    {"all_finite", run_all_finite},
};

static void check_operation(const struct operation *op, size_t n, value_kind kind, size_t gap_bytes)
{
    edge_buffer a = edge_open(n * sizeof(float), gap_bytes);
    edge_buffer b = edge_open(n * sizeof(float), gap_bytes);
    edge_buffer y = edge_open(n * sizeof(float), gap_bytes);
    float *before = calloc(n + 1, sizeof(float));
    float *want = calloc(n + 1, sizeof(float));
    test_random r = {TEST_SEED + n};
    char what[80];

    assert_true(before != NULL && want != NULL);
    random_fill(edge_floats(&a), n, &r, kind);
    random_fill(edge_floats(&b), n, &r, kind);
    random_fill(before, n, &r, kind);
    operands o = {want, edge_floats(&a), edge_floats(&b), n, random_value(&r, kind)};
    memcpy(want, before, n * sizeof(float));
    op->run(sy_kernels_find("ref"), &o);
    o.y = edge_floats(&y);
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *k = sy_kernels_at(i);
        memcpy(o.y, before, n * sizeof(float));
        op->run(k, &o);
        snprintf(what, sizeof(what), "%s, %s, values %d", op->name, k->name, (int)kind);
        check_bits(want, o.y, n, what);
        edge_check(&y);
    }
    free(before);
    free(want);
    edge_close(&a);
    edge_close(&b);
    edge_close(&y);
}

static void every_implementation_gives_the_bits_of_ref(void **state)
{
    (void)state;
    for (size_t op = 0; op < SY_COUNT_OF(operations); op++)
        for (size_t s = 0; s < SY_COUNT_OF(odd_sizes); s++)
            for (int kind = 0; kind < N_VALUE_KINDS; kind++)
                for (size_t gap = 0; gap <= 12; gap += 12)
                    check_operation(&operations[op], odd_sizes[s], (value_kind)kind, gap);
}

/* Summing |x_i y_i| as it goes gives the bound n u sum|x_i y_i| on the error of any order of
 * summation. */
static void reference_sums_agree_with_double(void **state)
{
    enum { N = 1023 };
    static float a[N], b[N], y[N];
    const sy_kernels *ref = sy_kernels_at(0);
    test_random r = {TEST_SEED};
    double dot = 0, dot_abs = 0, squares = 0;

    (void)state;
    random_fill(a, N, &r, VALUES_PLAIN);
    random_fill(b, N, &r, VALUES_PLAIN);
    for (size_t i = 0; i < N; i++) {
        dot += (double)a[i] * b[i];
        dot_abs += fabs((double)a[i] * b[i]);
        squares += (double)a[i] * a[i];
    }
    const double got = (double)ref->dot(a, b, N);
    if (!(fabs(got - dot) <= N * 0x1p-24 * dot_abs)) fail_msg("dot: want %.9g, got %.9g", dot, got);

    /* Half the relative error of the sum passes through the square root; then four more roundings.
     */
    const double factor = 1.0 / sqrt(squares / N + 1e-5);
    ref->rmsnorm(y, a, b, 1e-5f, N);
    for (size_t i = 0; i < N; i++) {
        const double want = (double)b[i] * (a[i] * factor);
        if (!(fabs(y[i] - want) <= (N / 2.0 + 6) * 0x1p-24 * fabs(want)))
            fail_msg("rmsnorm %zu: want %.9g, got %.9g", i, want, (double)y[i]);
    }
}

static void reference_softmax_and_swiglu_agree_with_double(void **state)
{
    enum { N = 255 };
    static float g[N], u[N], y[N];
    const sy_kernels *ref = sy_kernels_at(0);
    test_random r = {TEST_SEED};
    double sum = 0, max = -INFINITY;

    (void)state;
    for (size_t i = 0; i < N; i++) g[i] = random_unit(&r) * 20.0f;
    random_fill(u, N, &r, VALUES_PLAIN);
    /* exp within 1.02 units in the last place (2^-23 relative), one rounding each for sum,
     * quotient, product. */
    ref->swiglu(y, g, u, N);
    for (size_t i = 0; i < N; i++) {
        const double want = g[i] / (1.0 + exp(-(double)g[i])) * u[i];
        if (!(fabs(y[i] - want) <= 6 * 0x1p-24 * fabs(want)))
            fail_msg("swiglu %zu: want %.9g, got %.9g", i, want, (double)y[i]);
    }
    for (size_t i = 0; i < N; i++) max = fmax(max, g[i]);
    for (size_t i = 0; i < N; i++) sum += exp(g[i] - max);
    memcpy(y, g, sizeof(y));
    ref->softmax(y, N);
    /* x - max rounds: an absolute error of up to 2^-20 for |x - max| < 40 becomes a relative one of
     * exp. */
    for (size_t i = 0; i < N; i++) {
        const double want = exp(g[i] - max) / sum;
        if (!(fabs(y[i] - want) <= 3 * 0x1p-20 * want))
            fail_msg("softmax %zu: want %.9g, got %.9g", i, want, (double)y[i]);
    }
}

/* Below the limits and above them. As for swiglu, and exp's argument rounds twice, with the factor
 * 1.702 and with the product: up to 2 * 15.4 * 2^-24 relative after exp. */
static void clamped_swiglu_agrees_with_double(void **state)
{
    enum { N = 1023 };
    static float g[N], u[N], y[N];
    const sy_kernels *ref = sy_kernels_at(0);
    test_random r = {TEST_SEED};

    (void)state;
    for (size_t i = 0; i < N; i++) {
        g[i] = random_unit(&r) * 9.0f;
        u[i] = random_unit(&r) * 9.0f;
    }
    ref->clamped_swiglu(y, g, u, 7.0f, N);
    for (size_t i = 0; i < N; i++) {
        const double a = fmin(g[i], 7.0), b = fmax(fmin(u[i], 7.0), -7.0);
        const double want = (b + 1.0) * (a / (1.0 + exp(-1.702 * a)));
        if (!(fabs(y[i] - want) <= (31 + 7) * 0x1p-24 * fabs(want)))
            fail_msg("clamped swiglu %zu: want %.9g, got %.9g", i, want, (double)y[i]);
    }
}

/* Pairs of a gate and an up, limit 7, as gpt-oss's own code computes them. */
static void clamped_swiglu_gives_the_published_values(void **state)
{
    static const float g[4] = {0.5f, 8.0f, -9.0f, 1.25f}, u[4] = {-1.0f, 9.0f, -8.0f, 0.0f};
    static const double want[4] = {0.0, 55.9996263, 1.2019071e-5, 1.1169343};
    float h[4];

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        sy_kernels_at(i)->clamped_swiglu(h, g, u, 7.0f, 4);
        for (size_t j = 0; j < 4; j++)
            if (!(fabs(h[j] - want[j]) <= 1e-6 * want[j]))
                fail_msg("%s, pair %zu: want %.8g, got %.8g", sy_kernels_at(i)->name, j, want[j],
                         (double)h[j]);
    }
}

/* The clamps must not turn a NaN into the limit; infinities of u, and of g above, are clamped. */
static void clamped_swiglu_keeps_a_nan_and_clamps_infinities(void **state)
{
    float g[19], u[19], h[19];

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        for (size_t at = 0; at < 19; at++) {
            for (size_t j = 0; j < 19; j++) g[j] = u[j] = j % 2 ? INFINITY : -1e30f;
            g[at] = at % 2 ? NAN : 1.0f;
            u[at] = at % 2 ? 1.0f : NAN;
            sy_kernels_at(i)->clamped_swiglu(h, g, u, 7.0f, 19);
            for (size_t j = 0; j < 19; j++) {
                const double want = j % 2 ? 8.0 * 7.0 / (1.0 + exp(-1.702 * 7.0)) : 0.0;
                const int fits = j == at ? isnan(h[j]) : fabs(h[j] - want) <= 1e-4;
                if (!fits)
                    fail_msg("%s: h[%zu] is %g with a NaN at %zu", sy_kernels_at(i)->name, j,
                             (double)h[j], at);
            }
        }
    }
}

/* Products that underflow leave every partial sum at -0; adding a zero for a lane without an
 * element would turn it into +0. */
static void dot_keeps_the_sign_of_underflowing_products(void **state)
{
    float a[40], b[40], score[9];

    (void)state;
    for (size_t i = 0; i < 40; i++) a[i] = -1e-30f, b[i] = 1e-30f;
    for (size_t i = 0; i < sy_kernels_count(); i++)
        for (size_t n = 16; n <= 40; n++) {
            const sy_kernels *k = sy_kernels_at(i);
            const float dot = k->dot(a, b, n);
            if (!(dot == 0.0f && signbit(dot)))
                fail_msg("%s: dot of %zu is %g, want -0", k->name, n, (double)dot);
            k->attn_scores(score, a, b, 0, 9, n, 1.0f);
            for (size_t j = 0; j < 9; j++)
                if (!(score[j] == 0.0f && signbit(score[j])))
                    fail_msg("%s: score of %zu is %g, want -0", k->name, n, (double)score[j]);
        }
}

static void swiglu_of_large_gates_is_the_gate_or_nothing(void **state)
{
    static const float large[] = {-1e30f, -200.0f, -89.0f, 89.0f, 200.0f, 1e30f};
    float g[17], u[17], h[17];

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++)
        for (size_t j = 0; j < SY_COUNT_OF(large); j++) {
            for (size_t c = 0; c < 17; c++) g[c] = large[j], u[c] = 1.0f;
            sy_kernels_at(i)->swiglu(h, g, u, 17);
            for (size_t c = 0; c < 17; c++) {
                const double want = large[j] > 0 ? large[j] : 0;
                if (!(fabs(h[c] - want) <= 1e-30))
                    fail_msg("%s: silu(%g) = %g", sy_kernels_at(i)->name, (double)large[j],
                             (double)h[c]);
            }
        }
}

static void one_nan_makes_every_result_of_softmax_nan(void **state)
{
    float x[35];

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++)
        for (size_t n = 1; n <= 35; n++)
            for (size_t at = 0; at < n; at++) {
                for (size_t j = 0; j < n; j++) x[j] = (float)j;
                x[at] = NAN;
                sy_kernels_at(i)->softmax(x, n);
                for (size_t j = 0; j < n; j++) assert_true(isnan(x[j]));
            }
}

static void expect_argmax(const float *x, size_t n, size_t want)
{
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const size_t got = sy_kernels_at(i)->argmax(x, n);
        if (got != want) fail_msg("%s: argmax is %zu, want %zu", sy_kernels_at(i)->name, got, want);
    }
}

static void argmax_takes_the_first_of_equals_and_never_a_nan(void **state)
{
    float x[40];

    (void)state;
    for (size_t n = 1; n <= 40; n++) {
        for (size_t first = 0; first < n; first++) {
            for (size_t j = 0; j < n; j++) x[j] = j < first ? (j % 2 ? NAN : -1.0f) : 2.0f;
            expect_argmax(x, n, first);
            x[n - 1] = NAN;
            expect_argmax(x, n, first == n - 1 ? 0 : first);
        }
        for (size_t j = 0; j < n; j++) x[j] = NAN;
        expect_argmax(x, n, 0);
        x[n - 1] = -INFINITY;
        expect_argmax(x, n, n - 1);
        for (size_t j = 0; j < n; j++) x[j] = j % 2 ? 0.0f : -0.0f;
        expect_argmax(x, n, 0);
    }
}

static void all_finite_sees_one_bad_value_anywhere(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[70];

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++)
        for (size_t n = 1; n <= 70; n++) {
            for (size_t j = 0; j < n; j++) x[j] = j % 2 ? -3.4e38f : 1e-45f;
            assert_int_equal(sy_kernels_at(i)->all_finite(x, n), 1);
            for (size_t at = 0; at < n; at++) {
                const float keep = x[at];
                x[at] = bad[at % SY_COUNT_OF(bad)];
                assert_int_equal(sy_kernels_at(i)->all_finite(x, n), 0);
                x[at] = keep;
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_implementation_gives_the_bits_of_ref),
        cmocka_unit_test(reference_sums_agree_with_double),
        cmocka_unit_test(reference_softmax_and_swiglu_agree_with_double),
        cmocka_unit_test(clamped_swiglu_agrees_with_double),
        cmocka_unit_test(clamped_swiglu_gives_the_published_values),
        cmocka_unit_test(clamped_swiglu_keeps_a_nan_and_clamps_infinities),
        cmocka_unit_test(dot_keeps_the_sign_of_underflowing_products),
        cmocka_unit_test(swiglu_of_large_gates_is_the_gate_or_nothing),
        cmocka_unit_test(one_nan_makes_every_result_of_softmax_nan),
        cmocka_unit_test(argmax_takes_the_first_of_equals_and_never_a_nan),
        cmocka_unit_test(all_finite_sees_one_bad_value_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
