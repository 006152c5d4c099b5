/* The trunk's products on a GPU: close to exact arithmetic for odd dimensions and any number of
 * rows, with the bits of the experts' kernels, and the same for a row whatever is beside it. */
#include "kernel_cases.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_trunk.h"

/* Relative L2: sums of fp32; SwiGLU's outputs are rounded to bf16 besides. */
#define SUM_ERROR_MAX   2e-6
#define GATED_ERROR_MAX 5e-3

enum { ROWS_SPARE = 9 }; /* that the launch is sized for and the batch has not */

static const uint32_t row_counts[] = {0, 1, 7, 8, 9, 63, 64, 65};
static const uint32_t dims[][2] = {{1, 1},    {16, 64}, {65, 63},   {63, 65},
                                   {130, 24}, {8, 130}, {200, 192}, {24, 320}}; /* n, k */

static uint16_t *bf16_of(const edge_buffer *b)
{
    return (uint16_t *)(void *)b->data;
}

static edge_buffer open_bf16(size_t n, float scale, test_random *r)
{
    edge_buffer b = edge_open(n * 2, 0);

    for (size_t i = 0; i < n; i++) {
        const uint16_t v = sy_f32_to_bf16(random_unit(r) * scale);
        memcpy(b.data + 2 * i, &v, 2);
    }
    return b;
}

static edge_buffer open_floats(size_t n, test_random *r)
{
    edge_buffer b = edge_open(n * sizeof(float), 0);

    random_fill(edge_floats(&b), n, r, VALUES_PLAIN);
    return b;
}

/* Rows of a batch, each the same whatever the batch: row t of `first` onwards. */
static edge_buffer open_rows(uint32_t n_rows, uint32_t k, uint32_t first)
{
    const uint32_t padded = sy_cuda_padded(k);
    edge_buffer x = edge_open((size_t)n_rows * padded * 2, 0);

    memset(x.data, 0, x.bytes);
    for (uint32_t t = 0; t < n_rows; t++) {
        test_random r = {TEST_SEED + first + t};
        for (uint32_t i = 0; i < k; i++)
            bf16_of(&x)[(size_t)t * padded + i] = sy_f32_to_bf16(random_unit(&r));
    }
    return x;
}

static double exact_product(const uint16_t *w, const uint16_t *x, uint32_t k)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < k; i++)
        sum += (double)sy_bf16_to_f32(w[i]) * (double)sy_bf16_to_f32(x[i]);
    return sum;
}

static void check_error(double error, double norm, double max, const char *what, uint32_t n,
                        uint32_t k)
{
    if (!(sqrt(error) <= max * sqrt(norm)))
        fail_msg("%s, %u outputs of %u inputs: relative error %g, at most %g", what, n, k,
                 sqrt(error / norm), max);
}

/* ---- plain matrices ---- */

typedef struct matrix {
    uint32_t n, k;
    float divisor;
    edge_buffer w, bias, packed;
    sy_cuda_matrix m;
} matrix;

static matrix matrix_open(uint32_t n, uint32_t k, int is_biased, float divisor)
{
    test_random r = {TEST_SEED + n * 1000 + k};
    matrix m = {.n = n, .k = k, .divisor = divisor};

    m.w = open_bf16((size_t)n * k, 0.5f, &r);
    m.bias = open_floats(n, &r);
    m.packed = edge_open(sy_cuda_pack_bytes(n, k), 0);
    sy_cuda_pack(m.packed.data, m.w.data, n, k, 0, sy_cuda_row_blocks(n));
    m.m = (sy_cuda_matrix){m.packed.data, is_biased ? edge_floats(&m.bias) : NULL, n, k,
                           SY_CUDA_BF16};
    return m;
}

static void matrix_close(matrix *m)
{
    edge_close(&m->w);
    edge_close(&m->bias);
    edge_close(&m->packed);
}

/* [T,n], poisoned before. */
static edge_buffer run(const matrix *m, const edge_buffer *x, uint32_t n_rows,
                       sy_cuda_variant variant)
{
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer y = edge_open((size_t)n_rows * m->n * sizeof(float), 0);

    memset(y.data, 0xff, y.bytes);
    assert_int_equal(
        sy_cuda_linear(edge_floats(&y), bf16_of(x), &m->m, m->divisor, variant, &rows, NULL), 0);
    edge_check(&y);
    return y;
}

static void check_batch(const matrix *m, uint32_t n_rows)
{
    edge_buffer x = open_rows(n_rows, m->k, 0);
    edge_buffer first = run(m, &x, n_rows, SY_CUDA_TOKENS_8);
    double error = 0.0, norm = 0.0;

    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t o = 0; o < m->n; o++) {
            double want = exact_product(bf16_of(&m->w) + (size_t)o * m->k,
                                        bf16_of(&x) + (size_t)t * sy_cuda_padded(m->k), m->k);
            if (m->m.bias != NULL) want += (double)m->m.bias[o];
            want /= (double)m->divisor;
            const double d = (double)edge_floats(&first)[(size_t)t * m->n + o] - want;
            error += d * d;
            norm += want * want;
        }
    check_error(error, norm, SUM_ERROR_MAX, "linear", m->n, m->k);
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer y = run(m, &x, n_rows, (sy_cuda_variant)v);
        char what[64];
        snprintf(what, sizeof(what), "variant %d, %u rows", v, n_rows);
        check_bits(edge_floats(&first), edge_floats(&y), first.bytes / sizeof(float), what);
        edge_close(&y);
    }
    edge_close(&first);
    edge_close(&x);
}

static void any_number_of_rows_is_right_in_every_variant(void **state)
{
    matrix m = matrix_open(72, 130, 1, 1.0f);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(row_counts); i++) check_batch(&m, row_counts[i]);
    matrix_close(&m);
}

static void any_dimensions_are_right_in_every_variant(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
        matrix m = matrix_open(dims[i][0], dims[i][1], i % 2 == 0, i % 3 == 0 ? 8.0f : 1.0f);
        check_batch(&m, 11);
        matrix_close(&m);
    }
}

static void a_row_has_the_same_bits_alone(void **state)
{
    enum { T = 37 };
    matrix m = matrix_open(40, 100, 1, 16.0f);
    edge_buffer x = open_rows(T, m.k, 0), together = run(&m, &x, T, SY_CUDA_TOKENS_64);

    (void)state;
    for (uint32_t t = 0; t < T; t += 5) {
        edge_buffer one = open_rows(1, m.k, t);
        edge_buffer y = run(&m, &one, 1, (sy_cuda_variant)(t % N_SY_CUDA_VARIANTS));
        check_bits(edge_floats(&together) + (size_t)t * m.n, edge_floats(&y), m.n, "a row alone");
        edge_close(&y);
        edge_close(&one);
    }
    edge_close(&together);
    edge_close(&x);
    matrix_close(&m);
}

/* The arithmetic has one name, so it is one arithmetic. */
static void bits_are_those_of_the_experts(void **state)
{
    enum { T = 21, N = 50, K = 150 };
    matrix m = matrix_open(N, K, 1, 1.0f);
    edge_buffer x = open_rows(T, K, 0), y = run(&m, &x, T, SY_CUDA_TOKENS_16);
    edge_buffer want = edge_open((size_t)T * N * sizeof(float), 0);
    const sy_cuda_expert expert = {.down = m.packed.data, .down_bias = edge_floats(&m.bias)};
    const uint32_t begin[] = {0, T}, n_tiles = 3;
    sy_cuda_tile tiles[3];
    const sy_cuda_batch batch = {.experts = &expert,
                                 .tiles = tiles,
                                 .n_tiles = &n_tiles,
                                 .tiles_max = n_tiles,
                                 .hidden = N,
                                 .ffn = K};

    (void)state;
    assert_int_equal(sy_cuda_tiles_cut(tiles, begin, 1, SY_CUDA_TOKENS_8), n_tiles);
    assert_int_equal(sy_cuda_down(edge_floats(&want), bf16_of(&x), &batch, SY_CUDA_TOKENS_8, NULL),
                     0);
    check_bits(edge_floats(&want), edge_floats(&y), (size_t)T * N, "an expert's Down");
    edge_close(&want);
    edge_close(&y);
    edge_close(&x);
    matrix_close(&m);
}

static void odd_values_stay_in_their_row(void **state)
{
    static const uint16_t odd[] = {0x7fc0, 0x7f80, 0xff80, 0x8000, 0x0001};
    enum { T = 25, N = 20, K = 70 };
    matrix m = matrix_open(N, K, 0, 1.0f);
    edge_buffer x = open_rows(T, K, 0), clean = run(&m, &x, T, SY_CUDA_TOKENS_8);

    (void)state;
    for (uint32_t i = 0; i < SY_COUNT_OF(odd); i++)
        bf16_of(&x)[(size_t)(5 * i) * sy_cuda_padded(K) + 7 * i] = odd[i];
    edge_buffer y = run(&m, &x, T, SY_CUDA_TOKENS_32);
    for (uint32_t t = 0; t < T; t++) {
        const float *got = edge_floats(&y) + (size_t)t * N;
        if (t % 5 != 0) check_bits(edge_floats(&clean) + (size_t)t * N, got, N, "neighbour");
        for (uint32_t o = 0; o < N; o++) {
            const double want = exact_product(bf16_of(&m.w) + (size_t)o * K,
                                              bf16_of(&x) + (size_t)t * sy_cuda_padded(K), K);
            if (isnan(want) != isnan(got[o]) || isinf(want) != isinf(got[o]))
                fail_msg("row %u, output %u: %g, want %g", t, o, (double)got[o], want);
        }
    }
    edge_close(&y);
    edge_close(&clean);
    edge_close(&x);
    matrix_close(&m);
}

/* ---- gate and up ---- */

static edge_buffer run_gated(const sy_cuda_matrix *m, const edge_buffer *x, uint32_t n_rows,
                             sy_cuda_variant variant)
{
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer h = edge_open((size_t)n_rows * sy_cuda_padded(m->n) * 2, 0);

    memset(h.data, 0xff, h.bytes);
    assert_int_equal(sy_cuda_linear_swiglu(bf16_of(&h), bf16_of(x), m, variant, &rows, NULL), 0);
    edge_check(&h);
    return h;
}

static void check_gated(uint32_t ffn, uint32_t k, uint32_t n_rows)
{
    const uint32_t padded = sy_cuda_padded(ffn), x_padded = sy_cuda_padded(k);
    test_random r = {TEST_SEED + ffn * 1000 + k};
    edge_buffer gate = open_bf16((size_t)ffn * k, 0.5f, &r);
    edge_buffer up = open_bf16((size_t)ffn * k, 0.5f, &r);
    edge_buffer packed = edge_open(sy_cuda_gate_up_bytes(ffn, k), 0);
    edge_buffer x = open_rows(n_rows, k, 0);
    const sy_cuda_matrix m = {packed.data, NULL, ffn, k, SY_CUDA_BF16};
    double error = 0.0, norm = 0.0;

    sy_cuda_pack_gate_up(packed.data, gate.data, up.data, ffn, k, 0, sy_cuda_gate_up_blocks(ffn));
    edge_buffer first = run_gated(&m, &x, n_rows, SY_CUDA_TOKENS_8);
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t f = 0; f < padded; f++) {
            const uint16_t *row = bf16_of(&x) + (size_t)t * x_padded;
            const uint16_t got = bf16_of(&first)[(size_t)t * padded + f];
            if (f >= ffn) {
                assert_int_equal(got, 0);
                continue;
            }
            const double g = exact_product(bf16_of(&gate) + (size_t)f * k, row, k);
            const double u = exact_product(bf16_of(&up) + (size_t)f * k, row, k);
            const double want = g / (1.0 + exp(-g)) * u, d = (double)sy_bf16_to_f32(got) - want;
            error += d * d;
            norm += want * want;
        }
    check_error(error, norm, GATED_ERROR_MAX, "swiglu", ffn, k);
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer h = run_gated(&m, &x, n_rows, (sy_cuda_variant)v);
        assert_memory_equal(first.data, h.data, first.bytes);
        edge_close(&h);
    }
    edge_buffer *all[] = {&gate, &up, &packed, &x, &first};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

static void gate_and_up_are_right_in_every_variant(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(dims); i++)
        check_gated(dims[i][0], dims[i][1], row_counts[i % SY_COUNT_OF(row_counts)]);
}

/* Zero weights times an infinity are NaN, and the packed matrix has rows of zeros for the padding
 * of h. */
static void padding_of_h_is_zero_beside_an_infinity(void **state)
{
    enum { F = 3, K = 5 };
    test_random r = {TEST_SEED};
    edge_buffer w = open_bf16((size_t)F * K, 0.5f, &r);
    edge_buffer packed = edge_open(sy_cuda_gate_up_bytes(F, K), 0), x = open_rows(1, K, 0);
    const sy_cuda_matrix m = {packed.data, NULL, F, K, SY_CUDA_BF16};

    (void)state;
    sy_cuda_pack_gate_up(packed.data, w.data, w.data, F, K, 0, sy_cuda_gate_up_blocks(F));
    bf16_of(&x)[2] = 0x7f80;
    edge_buffer h = run_gated(&m, &x, 1, SY_CUDA_TOKENS_8);
    for (uint32_t f = F; f < sy_cuda_padded(F); f++) assert_int_equal(bf16_of(&h)[f], 0);
    edge_buffer *all[] = {&w, &packed, &x, &h};
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

/* ---- a matrix a head ---- */

typedef struct heads {
    sy_cuda_head_matrices m;
    edge_buffer w, packed;
} heads;

static heads heads_open(uint32_t n_heads, uint32_t n, uint32_t k, uint32_t n_tail)
{
    const size_t bytes = sy_cuda_pack_bytes(n, k);
    test_random r = {TEST_SEED + n * 1000 + k};
    heads h = {.w = open_bf16((size_t)n_heads * n * k, 0.5f, &r),
               .packed = edge_open(n_heads * bytes, 0)};

    for (uint32_t i = 0; i < n_heads; i++)
        sy_cuda_pack(h.packed.data + i * bytes, h.w.data + (size_t)i * n * k * 2, n, k, 0,
                     sy_cuda_row_blocks(n));
    h.m = (sy_cuda_head_matrices){h.packed.data, SY_CUDA_BF16, n_heads, n, k, n_tail};
    return h;
}

static void heads_close(heads *h)
{
    edge_close(&h->w);
    edge_close(&h->packed);
}

static edge_buffer open_head_rows(const heads *h, uint32_t n_rows, uint32_t first)
{
    const size_t width = (size_t)h->m.n_heads * (h->m.k + h->m.n_tail);
    edge_buffer x = edge_open(n_rows * width * sizeof(float), 0);

    for (uint32_t t = 0; t < n_rows; t++) {
        test_random r = {TEST_SEED + first + t};
        random_fill(edge_floats(&x) + t * width, width, &r, VALUES_PLAIN);
    }
    return x;
}

static edge_buffer run_heads(const heads *h, const edge_buffer *x, uint32_t n_rows)
{
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};
    const size_t width = (size_t)h->m.n_heads * (h->m.n + h->m.n_tail);
    edge_buffer y = edge_open(n_rows * width * sizeof(float), 0);

    memset(y.data, 0xff, y.bytes);
    assert_int_equal(sy_cuda_linear_heads(edge_floats(&y), edge_floats(x), &h->m, &rows, NULL), 0);
    edge_check(&y);
    return y;
}

static double exact_head(const heads *h, const float *x, uint32_t head, uint32_t o)
{
    const uint16_t *w = bf16_of(&h->w) + ((size_t)head * h->m.n + o) * h->m.k;
    double sum = 0.0;

    for (uint32_t i = 0; i < h->m.k; i++) sum += (double)sy_bf16_to_f32(w[i]) * (double)x[i];
    return sum;
}

static void check_heads(const heads *h, uint32_t n_rows)
{
    const uint32_t x_width = h->m.k + h->m.n_tail, width = h->m.n + h->m.n_tail;
    edge_buffer x = open_head_rows(h, n_rows, 0), y = run_heads(h, &x, n_rows);
    double error = 0.0, norm = 0.0;

    for (uint32_t i = 0; i < n_rows * h->m.n_heads; i++) {
        const float *from = edge_floats(&x) + (size_t)i * x_width;
        const float *got = edge_floats(&y) + (size_t)i * width;
        for (uint32_t o = 0; o < h->m.n; o++) {
            const double want = exact_head(h, from, i % h->m.n_heads, o);
            error += ((double)got[o] - want) * ((double)got[o] - want);
            norm += want * want;
        }
        check_bits(from + h->m.k, got + h->m.n, h->m.n_tail, "the tail of a head");
    }
    check_error(error, norm, SUM_ERROR_MAX, "heads", h->m.n, h->m.k);
    edge_close(&x);
    edge_close(&y);
}

/* With activations that were rounded to bf16, the error would be a thousand times as large. */
static void heads_take_whole_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
        heads h = heads_open(1 + (uint32_t)i % 5, dims[i][0], dims[i][1], i % 2 == 0 ? 0 : 6);
        check_heads(&h, row_counts[i % SY_COUNT_OF(row_counts)]);
        heads_close(&h);
    }
}

static void heads_of_a_row_have_the_same_bits_alone(void **state)
{
    enum { T = 19 };
    heads h = heads_open(3, 40, 72, 4);
    const size_t width = (size_t)h.m.n_heads * (h.m.n + h.m.n_tail);
    edge_buffer x = open_head_rows(&h, T, 0), together = run_heads(&h, &x, T);

    (void)state;
    for (uint32_t t = 0; t < T; t += 3) {
        edge_buffer one = open_head_rows(&h, 1, t), y = run_heads(&h, &one, 1);
        check_bits(edge_floats(&together) + t * width, edge_floats(&y), width, "a row alone");
        edge_close(&one);
        edge_close(&y);
    }
    edge_close(&x);
    edge_close(&together);
    heads_close(&h);
}

/* An infinity must not become a NaN by being cut into parts, and what is finite must not overflow.
 */
static void odd_floats_keep_their_meaning_in_parts(void **state)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN,          3.4e38f,
                                -0.0f,    0x1p-126f, -0x1.8p-132f, 65537.0f};
    enum { T = SY_COUNT_OF(odd) };
    heads h = heads_open(1, 1, 1, 0);
    edge_buffer x = open_head_rows(&h, T, 0);
    const uint16_t one = 0x3f80;

    (void)state;
    sy_cuda_pack(h.packed.data, &one, 1, 1, 0, 1);
    memcpy(x.data, odd, sizeof(odd));
    edge_buffer y = run_heads(&h, &x, T);
    for (uint32_t t = 0; t < T; t++) {
        const float want = odd[t], got = edge_floats(&y)[t];
        if (isnan(want) ? !isnan(got) : want != got)
            fail_msg("1 * %g gives %g", (double)want, (double)got);
    }
    edge_close(&x);
    edge_close(&y);
    heads_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_rows_is_right_in_every_variant),
        cmocka_unit_test(any_dimensions_are_right_in_every_variant),
        cmocka_unit_test(a_row_has_the_same_bits_alone),
        cmocka_unit_test(bits_are_those_of_the_experts),
        cmocka_unit_test(odd_values_stay_in_their_row),
        cmocka_unit_test(gate_and_up_are_right_in_every_variant),
        cmocka_unit_test(padding_of_h_is_zero_beside_an_infinity),
        cmocka_unit_test(heads_take_whole_floats),
        cmocka_unit_test(heads_of_a_row_have_the_same_bits_alone),
        cmocka_unit_test(odd_floats_keep_their_meaning_in_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
