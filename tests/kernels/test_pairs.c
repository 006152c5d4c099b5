/* bf16 activations: every implementation gives the bits of the reference, whose chain is checked
 * against its definition here, denormals, infinities and all. */
#include "kernel_cases.h"
#include "sy_pairs.h"

#define T_MAX   40
#define N_GUARD 3
#define X_GUARD 5

static const size_t token_counts[] = {0, 1, 2, 3, 4, 5, 6, 11, 12, 13, 25, 40};
static const uint32_t inner_sizes[] = {0, 1, 2, 7, 33, 512, 513, 1030};
static const uint32_t outer_sizes[] = {1, 16, 17, 48, 100};

/* Any bf16: also denormal, and, when wild, infinite or no number. */
static uint16_t random_bf16(test_random *r, int wild)
{
    const uint32_t bits = random_u32(r);
    const uint32_t kind = bits >> 16 & 15;

    if (kind == 0) return (uint16_t)(bits & 0x807f);            /* denormal or zero */
    if (kind == 1) return (uint16_t)((bits & 0x80ff) | 0x0f00); /* products of these vanish */
    if (kind == 2 && wild) return (uint16_t)(bits & 0xff80);    /* may be infinite */
    if (kind == 3 && wild) return (uint16_t)((bits & 0x8000) | 0x7fc1);
    return (uint16_t)((bits & 0x80ff) | ((bits >> 8 & 7) + 122) << 7);
}

typedef struct product {
    uint32_t n, k;
    uint16_t *source;
    edge_buffer packed, x;
    sy_panels w;
    size_t x_stride, y_stride;
    uint32_t rows[T_MAX];
    float *want;
} product;

static float by_definition(const uint16_t *x, const uint16_t *w, uint32_t n_k)
{
    float sum = 0.0f;

    for (uint32_t k = 0; k < n_k; k += 2) {
        const float odd_x = k + 1 < n_k ? pairs_widen(x[k + 1]) : 0.0f;
        const float odd_w = k + 1 < n_k ? pairs_widen(w[k + 1]) : 0.0f;
        sum = fmaf(odd_x, odd_w, sum);
        sum = fmaf(pairs_widen(x[k]), pairs_widen(w[k]), sum);
    }
    return sum;
}

static const uint16_t *x_row(const product *m, size_t t)
{
    return (const uint16_t *)(const void *)m->x.data + m->rows[t] * m->x_stride;
}

static void product_open(product *m, uint32_t n, uint32_t k, int wild)
{
    const size_t bytes = sy_panels_bytes(SY_BF16, n, k);
    test_random r = {TEST_SEED + n * 7919u + k};

    *m = (product){.n = n, .k = k, .x_stride = k + X_GUARD, .y_stride = n + N_GUARD};
    m->source = malloc(((size_t)n * k + 1) * sizeof(uint16_t));
    m->want = malloc(T_MAX * m->y_stride * sizeof(float));
    assert_true(m->source != NULL && m->want != NULL);
    for (size_t i = 0; i < (size_t)n * k; i++) m->source[i] = random_bf16(&r, wild);
    m->x = edge_open(((T_MAX - 1) * m->x_stride + k) * sizeof(uint16_t), 0);
    for (size_t i = 0; i < (T_MAX - 1) * m->x_stride + k; i++)
        ((uint16_t *)(void *)m->x.data)[i] = random_bf16(&r, wild);
    m->packed = edge_open(bytes, (0 - bytes) % 64);
    m->w = (sy_panels){m->packed.data, SY_BF16, n, k};
    sy_panels_pack(m->packed.data, m->source, SY_BF16, n, k, 0, sy_panels_count(n));
    for (uint32_t t = 0; t < T_MAX; t++) m->rows[t] = (t * 7 + 3) % T_MAX;
    memset(m->want, GUARD, T_MAX * m->y_stride * sizeof(float));
    const unsigned before = pairs_enter();
    for (size_t t = 0; t < T_MAX; t++)
        for (size_t i = 0; i < n; i++)
            m->want[t * m->y_stride + i] = by_definition(x_row(m, t), m->source + i * k, k);
    pairs_leave(before);
}

static void product_close(product *m)
{
    edge_check(&m->x);
    edge_check(&m->packed);
    edge_close(&m->x);
    edge_close(&m->packed);
    free(m->source);
    free(m->want);
}

/* NaNs are equal to NaNs, whatever they carry: which of two goes on is the instruction's choice. */
static int same(float a, float b)
{
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

static void check(const product *m, const sy_kernels *kernels, size_t T, size_t begin, size_t end)
{
    float *y = malloc((T * m->y_stride + 1) * sizeof(float));
    float guard;

    assert_non_null(y);
    memset(y, GUARD, (T * m->y_stride + 1) * sizeof(float));
    memset(&guard, GUARD, sizeof(guard));
    kernels->matmul_bf16(y, m->y_stride, (const uint16_t *)(const void *)m->x.data, m->x_stride,
                         m->rows, T, &m->w, begin, end);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < m->y_stride; i++) {
            const int is_ours = i >= begin * SY_PANEL && i < end * SY_PANEL && i < m->n;
            const float want = is_ours ? m->want[t * m->y_stride + i] : guard;
            const float got = y[t * m->y_stride + i];
            if (!is_ours ? memcmp(&got, &want, sizeof(got)) != 0 : !same(got, want))
                fail_msg("%s: n %u k %u T %zu panels [%zu, %zu): row %zu column %zu is %a, not %a",
                         kernels->name, m->n, m->k, T, begin, end, t, i, (double)got, (double)want);
        }
    free(y);
}

static void check_sizes(int wild)
{
    for (size_t a = 0; a < SY_COUNT_OF(inner_sizes); a++)
        for (size_t b = 0; b < SY_COUNT_OF(outer_sizes); b++) {
            product m;
            product_open(&m, outer_sizes[b], inner_sizes[a], wild);
            const size_t panels = sy_panels_count(m.n);
            for (size_t i = 0; i < sy_kernels_count(); i++)
                for (size_t t = 0; t < SY_COUNT_OF(token_counts); t++) {
                    check(&m, sy_kernels_at(i), token_counts[t], 0, panels);
                    check(&m, sy_kernels_at(i), token_counts[t], panels / 2, panels);
                }
            product_close(&m);
        }
}

static void test_products_have_the_bits_of_their_definition(void **state)
{
    (void)state;
    check_sizes(0);
}

static void test_infinities_and_nans_go_the_same_way_everywhere(void **state)
{
    (void)state;
    check_sizes(1);
}

static void test_rounding_is_the_same_everywhere(void **state)
{
    enum { N = 1 << 16 };
    uint32_t *bits = malloc(N * sizeof(*bits));
    uint16_t *want = malloc(N * sizeof(*want)), *got = malloc(N * sizeof(*got));
    test_random r = {TEST_SEED};

    (void)state;
    assert_true(bits != NULL && want != NULL && got != NULL);
    for (size_t i = 0; i < N; i++) bits[i] = random_u32(&r);
    for (uint32_t i = 0; i < 64; i++)
        bits[i] = (i % 8) << 29 | (i / 8 == 0 ? 0 : 0x8000u - 4 + i / 8);
    float *x = malloc(N * sizeof(*x));
    assert_non_null(x);
    memcpy(x, bits, N * sizeof(*x));
    for (size_t i = 0; i < N; i++) {
        want[i] =
            fabsf(x[i]) < 0x1p-126f ? (uint16_t)(bits[i] >> 16 & 0x8000) : sy_f32_to_bf16(x[i]);
    }
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        memset(got, 0, N * sizeof(*got));
        sy_kernels_at(i)->round_bf16(got, x, N);
        for (size_t j = 0; j < N; j++)
            if (got[j] != want[j])
                fail_msg("%s: %08x becomes %04x, not %04x", sy_kernels_at(i)->name, bits[j], got[j],
                         want[j]);
    }
    free(bits);
    free(want);
    free(got);
    free(x);
}

static void test_the_thread_keeps_its_denormals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const unsigned before = _mm_getcsr();
        uint16_t w = 0x3f80, x = 0x3f80;
        uint16_t packed[SY_PANEL * 2] __attribute__((aligned(64)));
        float y = 0.0f;
        sy_panels_pack(packed, &w, SY_BF16, 1, 1, 0, 1);
        const sy_panels m = {packed, SY_BF16, 1, 1};
        sy_kernels_at(i)->matmul_bf16(&y, 1, &x, 1, NULL, 1, &m, 0, 1);
        assert_true(y == 1.0f);
        assert_int_equal(_mm_getcsr() & PAIRS_NO_DENORMALS, before & PAIRS_NO_DENORMALS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_have_the_bits_of_their_definition),
        cmocka_unit_test(test_infinities_and_nans_go_the_same_way_everywhere),
        cmocka_unit_test(test_rounding_is_the_same_everywhere),
        cmocka_unit_test(test_the_thread_keeps_its_denormals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
