/* The trunk's products on a GPU, weights in fewer bits: close to exact arithmetic on what the
 * weights mean, for odd dimensions and any number of rows, with the bits of the experts' kernels,
 * and the same for a row whatever is beside it. */
#include "cuda_experts_cases.h"
#include "sy_cuda_trunk.h"

/* Relative L2: sums of fp32; SwiGLU's outputs are rounded to bf16 besides. */
#define SUM_ERROR_MAX   2e-6
#define GATED_ERROR_MAX 5e-3

enum { ROWS_SPARE = 9 }; /* that the launch is sized for and the batch has not */

static const sy_cuda_weights kinds[] = {SY_CUDA_Q8, SY_CUDA_Q4, SY_CUDA_FP8, SY_CUDA_MXFP4};
static const uint32_t row_counts[] = {0, 1, 7, 8, 9, 17, 63, 64, 65, 130};
static const uint32_t dims[][2] = {{1, 1},    {16, 128}, {65, 33},   {63, 129},
                                   {130, 24}, {8, 130},  {200, 192}, {264, 300}}; /* n, k */

/* Gate, and Up where there is one, as they are packed together. */
typedef struct packed {
    matrix w[2];
    uint32_t n_parts;
    edge_buffer bias, bytes;
    sy_cuda_matrix m;
} packed;

static packed packed_open(sy_cuda_weights weights, uint32_t n, uint32_t k, int is_gated,
                          int is_biased)
{
    test_random r = {TEST_SEED + n * 1000 + k};
    const sy_cuda_part first = is_gated ? SY_CUDA_GATE : SY_CUDA_DOWN;
    packed p = {.n_parts = is_gated ? 2 : 1};

    p.bytes = edge_open(sy_cuda_matrix_bytes(weights, first, n, k), 0);
    for (uint32_t i = 0; i < p.n_parts; i++) {
        p.w[i] = matrix_random(weights, n, k, &r);
        pack_matrix(&p.bytes, &p.w[i], i == 0 ? first : SY_CUDA_UP);
    }
    p.bias = open_floats(n, &r);
    p.m = (sy_cuda_matrix){.weights = p.bytes.data,
                           .bias = is_biased ? edge_floats(&p.bias) : NULL,
                           .n = n,
                           .k = k,
                           .type = weights};
    return p;
}

static void packed_close(packed *p)
{
    for (uint32_t i = 0; i < p->n_parts; i++) matrix_close(&p->w[i]);
    edge_close(&p->bias);
    edge_close(&p->bytes);
}

/* Row t of a batch is row first + t of all there are. */
static edge_buffer inputs_open(uint32_t n_rows, uint32_t k, uint32_t first)
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

static void widen_input(double *wide, const edge_buffer *x, uint32_t t, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++)
        wide[i] = (double)sy_bf16_to_f32(bf16_of(x)[(size_t)t * sy_cuda_padded(k) + i]);
}

static void check_sum(double error, double norm, double max, const char *what,
                      const sy_cuda_matrix *m)
{
    if (!(sqrt(error) <= max * sqrt(norm)))
        fail_msg("%s, weights %d, %u outputs of %u inputs: relative error %g, at most %g", what,
                 (int)m->type, m->n, m->k, sqrt(error / norm), max);
}

/* ---- one matrix ---- */

/* [T,n], poisoned before. */
static edge_buffer linear(const packed *p, const edge_buffer *x, uint32_t n_rows, float divisor,
                          sy_cuda_variant variant)
{
    const sy_cuda_row_count count = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer y = edge_open((size_t)n_rows * p->m.n * sizeof(float), 0);

    memset(y.data, 0xff, y.bytes);
    assert_int_equal(
        sy_cuda_linear(edge_floats(&y), bf16_of(x), &p->m, divisor, variant, &count, NULL), 0);
    edge_check(&y);
    return y;
}

static void check_linear(const packed *p, uint32_t n_rows, float divisor)
{
    edge_buffer x = inputs_open(n_rows, p->m.k, 0);
    edge_buffer first = linear(p, &x, n_rows, divisor, SY_CUDA_TOKENS_8);
    double error = 0.0, norm = 0.0, wide[DIM_MAX];

    for (uint32_t t = 0; t < n_rows; t++) {
        widen_input(wide, &x, t, p->m.k);
        for (uint32_t o = 0; o < p->m.n; o++) {
            const double want = product(&p->w[0], o, wide, p->m.bias) / (double)divisor;
            const double d = (double)edge_floats(&first)[(size_t)t * p->m.n + o] - want;
            error += d * d;
            norm += want * want;
        }
    }
    check_sum(error, norm, SUM_ERROR_MAX, "linear", &p->m);
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer y = linear(p, &x, n_rows, divisor, (sy_cuda_variant)v);
        char what[64];
        snprintf(what, sizeof(what), "weights %d, variant %d, %u rows", (int)p->m.type, v, n_rows);
        check_bits(edge_floats(&first), edge_floats(&y), first.bytes / sizeof(float), what);
        edge_close(&y);
    }
    edge_close(&first);
    edge_close(&x);
}

static void any_number_of_rows_is_right_in_every_variant(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        packed p = packed_open(kinds[w], 72, 130, 0, 1);
        for (size_t i = 0; i < SY_COUNT_OF(row_counts); i++) check_linear(&p, row_counts[i], 1.0f);
        packed_close(&p);
    }
}

static void any_dimensions_are_right_in_every_variant(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++)
        for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
            packed p = packed_open(kinds[w], dims[i][0], dims[i][1], 0, i % 2 == 0);
            check_linear(&p, 11, i % 3 == 0 ? 8.0f : 1.0f);
            packed_close(&p);
        }
}

/* Alone, and in pieces of some, each in another variant. */
static void a_row_has_the_same_bits_alone_and_in_pieces(void **state)
{
    enum { T = 70 };

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        packed p = packed_open(kinds[w], 40, 200, 0, 1);
        edge_buffer x = inputs_open(T, p.m.k, 0);
        edge_buffer together = linear(&p, &x, T, 16.0f, SY_CUDA_TILED_64);

        for (uint32_t t = 0, n; t < T; t += n) {
            n = SY_MIN(t % 4 == 0 ? 1 + t / 4 : 1, T - t);
            edge_buffer some = inputs_open(n, p.m.k, t);
            edge_buffer y = linear(&p, &some, n, 16.0f, (sy_cuda_variant)(t % N_SY_CUDA_VARIANTS));
            check_bits(edge_floats(&together) + (size_t)t * p.m.n, edge_floats(&y),
                       (size_t)n * p.m.n, "rows of a piece");
            edge_close(&y);
            edge_close(&some);
        }
        edge_close(&together);
        edge_close(&x);
        packed_close(&p);
    }
}

static void odd_values_stay_in_their_row_of_a_product(void **state)
{
    enum { T = 67 };

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        packed p = packed_open(kinds[w], 20, 140, 0, 0);
        edge_buffer x = inputs_open(T, p.m.k, 0), clean = linear(&p, &x, T, 1.0f, SY_CUDA_TILED_64);

        for (uint32_t t = 0; t < T; t += 6)
            bf16_of(&x)[(size_t)t * sy_cuda_padded(p.m.k) + t] =
                odd_values[t / 6 % SY_COUNT_OF(odd_values)];
        edge_buffer y = linear(&p, &x, T, 1.0f, (sy_cuda_variant)(w + 1));
        for (uint32_t t = 0; t < T; t++)
            if (t % 6 != 0)
                check_bits(edge_floats(&clean) + (size_t)t * p.m.n,
                           edge_floats(&y) + (size_t)t * p.m.n, p.m.n, "neighbour");
        edge_close(&y);
        edge_close(&clean);
        edge_close(&x);
        packed_close(&p);
    }
}

/* ---- gate and up ---- */

static edge_buffer gated(const packed *p, const edge_buffer *x, uint32_t n_rows,
                         sy_cuda_variant variant)
{
    const sy_cuda_row_count count = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer h = edge_open((size_t)n_rows * sy_cuda_padded(p->m.n) * 2, 0);

    memset(h.data, 0xff, h.bytes);
    assert_int_equal(sy_cuda_linear_swiglu(bf16_of(&h), bf16_of(x), &p->m, variant, &count, NULL),
                     0);
    edge_check(&h);
    return h;
}

static void check_gated(sy_cuda_weights weights, uint32_t ffn, uint32_t k, uint32_t n_rows)
{
    const uint32_t padded = sy_cuda_padded(ffn);
    packed p = packed_open(weights, ffn, k, 1, 0);
    edge_buffer x = inputs_open(n_rows, k, 0), first = gated(&p, &x, n_rows, SY_CUDA_TOKENS_8);
    double error = 0.0, norm = 0.0, wide[DIM_MAX];

    for (uint32_t t = 0; t < n_rows; t++) {
        widen_input(wide, &x, t, k);
        for (uint32_t f = 0; f < padded; f++) {
            const uint16_t got = bf16_of(&first)[(size_t)t * padded + f];
            if (f >= ffn) {
                assert_int_equal(got, 0);
                continue;
            }
            const double g = product(&p.w[0], f, wide, NULL), u = product(&p.w[1], f, wide, NULL);
            const double want = g / (1.0 + exp(-g)) * u, d = (double)sy_bf16_to_f32(got) - want;
            error += d * d;
            norm += want * want;
        }
    }
    check_sum(error, norm, GATED_ERROR_MAX, "swiglu", &p.m);
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer h = gated(&p, &x, n_rows, (sy_cuda_variant)v);
        assert_memory_equal(first.data, h.data, first.bytes);
        edge_close(&h);
    }
    edge_close(&first);
    edge_close(&x);
    packed_close(&p);
}

static void gate_and_up_are_right_in_every_variant(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++)
        for (size_t i = 0; i < SY_COUNT_OF(dims); i++)
            check_gated(kinds[w], dims[i][0], dims[i][1],
                        row_counts[(i + w) % SY_COUNT_OF(row_counts)]);
}

/* ---- the experts' bits ---- */

/* The arithmetic has one name, so it is one arithmetic: what an expert makes of the same rows with
 * the same weights. */
static void bits_are_those_of_an_expert(void **state)
{
    enum { T = 21 };

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        experts m = experts_open(kinds[w], 150, 200, 0, SY_CUDA_SWIGLU);
        const uint32_t begin[] = {0, T}, n_tiles = 3, n_rows = T;
        const sy_cuda_row_count count = {&n_rows, T};
        edge_buffer x = inputs_open(T, m.hidden, 0);
        edge_buffer h = edge_open((size_t)T * sy_cuda_padded(m.ffn) * 2, 0);
        edge_buffer want_h = edge_open(h.bytes, 0);
        edge_buffer y = edge_open((size_t)T * m.hidden * sizeof(float), 0);
        edge_buffer want = edge_open(y.bytes, 0);
        const sy_cuda_matrix up = {m.packed_up[0].data, NULL, m.ffn, m.hidden, kinds[w]};
        const sy_cuda_matrix down = {m.packed_down[0].data, NULL, m.hidden, m.ffn, kinds[w]};
        sy_cuda_tile tiles[3];
        const sy_cuda_batch batch = {.experts = entry_of(&m, 0),
                                     .tiles = tiles,
                                     .n_tiles = &n_tiles,
                                     .tiles_max = n_tiles,
                                     .hidden = m.hidden,
                                     .ffn = m.ffn,
                                     .weights = kinds[w]};

        assert_int_equal(sy_cuda_tiles_cut(tiles, begin, 1, SY_CUDA_TOKENS_8), n_tiles);
        assert_int_equal(
            sy_cuda_up(bf16_of(&want_h), bf16_of(&x), NULL, &batch, SY_CUDA_TOKENS_8, NULL), 0);
        assert_int_equal(
            sy_cuda_down(edge_floats(&want), bf16_of(&want_h), &batch, SY_CUDA_TOKENS_8, NULL), 0);
        assert_int_equal(
            sy_cuda_linear_swiglu(bf16_of(&h), bf16_of(&x), &up, SY_CUDA_TILED_64, &count, NULL),
            0);
        assert_memory_equal(h.data, want_h.data, h.bytes);
        assert_int_equal(sy_cuda_linear(edge_floats(&y), bf16_of(&h), &down, 1.0f,
                                        SY_CUDA_TOKENS_16, &count, NULL),
                         0);
        check_bits(edge_floats(&want), edge_floats(&y), (size_t)T * m.hidden, "an expert");
        edge_buffer *all[] = {&x, &h, &want_h, &y, &want};
        for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
        experts_close(&m);
    }
}

/* ---- a matrix a head ---- */

enum { HEADS = 3, TAIL = 4 };

/* The matrices of all heads are the rows of one, each packed by itself. */
typedef struct heads {
    matrix w[HEADS];
    edge_buffer bytes;
    sy_cuda_head_matrices m;
} heads;

static heads heads_open(sy_cuda_weights weights, uint32_t n, uint32_t k)
{
    const size_t bytes = sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, n, k);
    test_random r = {TEST_SEED + n * 1000 + k};
    heads h = {.bytes = edge_open(HEADS * bytes, 0)};

    for (uint32_t i = 0; i < HEADS; i++) {
        edge_buffer one = edge_open(bytes, 0);
        h.w[i] = matrix_random(weights, n, k, &r);
        pack_matrix(&one, &h.w[i], SY_CUDA_DOWN);
        memcpy(h.bytes.data + i * bytes, one.data, bytes);
        edge_close(&one);
    }
    h.m = (sy_cuda_head_matrices){h.bytes.data, weights, HEADS, n, k, TAIL};
    return h;
}

static void heads_close(heads *h)
{
    for (uint32_t i = 0; i < HEADS; i++) matrix_close(&h->w[i]);
    edge_close(&h->bytes);
}

static edge_buffer head_inputs(const heads *h, uint32_t n_rows, uint32_t first)
{
    const size_t width = (size_t)HEADS * (h->m.k + TAIL);
    edge_buffer x = edge_open(n_rows * width * sizeof(float), 0);

    for (uint32_t t = 0; t < n_rows; t++) {
        test_random r = {TEST_SEED + first + t};
        random_fill(edge_floats(&x) + t * width, width, &r, VALUES_PLAIN);
    }
    return x;
}

static edge_buffer run_heads(const heads *h, const edge_buffer *x, uint32_t n_rows)
{
    const sy_cuda_row_count count = {&n_rows, n_rows + ROWS_SPARE};
    edge_buffer y = edge_open((size_t)n_rows * HEADS * (h->m.n + TAIL) * sizeof(float), 0);

    memset(y.data, 0xff, y.bytes);
    assert_int_equal(sy_cuda_linear_heads(edge_floats(&y), edge_floats(x), &h->m, &count, NULL), 0);
    edge_check(&y);
    return y;
}

static void check_heads(const heads *h, uint32_t n_rows)
{
    const uint32_t x_width = h->m.k + TAIL, width = h->m.n + TAIL;
    edge_buffer x = head_inputs(h, n_rows, 0), y = run_heads(h, &x, n_rows);
    double error = 0.0, norm = 0.0, wide[DIM_MAX];

    for (uint32_t i = 0; i < n_rows * HEADS; i++) {
        const float *from = edge_floats(&x) + (size_t)i * x_width;
        const float *got = edge_floats(&y) + (size_t)i * width;

        for (uint32_t j = 0; j < h->m.k; j++) wide[j] = (double)from[j];
        for (uint32_t o = 0; o < h->m.n; o++) {
            const double want = product(&h->w[i % HEADS], o, wide, NULL);
            error += ((double)got[o] - want) * ((double)got[o] - want);
            norm += want * want;
        }
        check_bits(from + h->m.k, got + h->m.n, TAIL, "the tail of a head");
    }
    if (!(sqrt(error) <= SUM_ERROR_MAX * sqrt(norm)))
        fail_msg("heads, weights %d, %u of %u: relative error %g, at most %g", (int)h->m.type,
                 h->m.n, h->m.k, sqrt(error / norm), SUM_ERROR_MAX);
    edge_close(&x);
    edge_close(&y);
}

/* With activations that were rounded to bf16, the error would be a thousand times as large. */
static void heads_take_whole_floats(void **state)
{
    (void)state;
    for (size_t w = 0; w < 2; w++)
        for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
            heads h = heads_open(kinds[w], dims[i][0], dims[i][1]);
            check_heads(&h, row_counts[(i + w) % SY_COUNT_OF(row_counts)] % 20);
            heads_close(&h);
        }
}

static void heads_of_a_row_have_the_same_bits_alone(void **state)
{
    enum { T = 19 };

    (void)state;
    for (size_t w = 0; w < 2; w++) {
        heads h = heads_open(kinds[w], 40, 136);
        const size_t width = (size_t)HEADS * (h.m.n + TAIL);
        edge_buffer x = head_inputs(&h, T, 0), together = run_heads(&h, &x, T);

        for (uint32_t t = 0; t < T; t += 3) {
            edge_buffer one = head_inputs(&h, 1, t), y = run_heads(&h, &one, 1);
            check_bits(edge_floats(&together) + t * width, edge_floats(&y), width, "a row alone");
            edge_close(&one);
            edge_close(&y);
        }
        edge_close(&x);
        edge_close(&together);
        heads_close(&h);
    }
}

/* What is turned has no blocks of a checkpoint's. */
static void heads_of_encoded_weights_are_refused(void **state)
{
    const uint32_t n_rows = 1;
    const sy_cuda_row_count count = {&n_rows, 1};
    float x[8] = {0}, y[8];

    (void)state;
    for (size_t w = 2; w < SY_COUNT_OF(kinds); w++) {
        const sy_cuda_head_matrices m = {x, kinds[w], 1, 1, 1, 0};
        assert_int_equal(sy_cuda_linear_heads(y, x, &m, &count, NULL), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_rows_is_right_in_every_variant),
        cmocka_unit_test(any_dimensions_are_right_in_every_variant),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_in_pieces),
        cmocka_unit_test(odd_values_stay_in_their_row_of_a_product),
        cmocka_unit_test(gate_and_up_are_right_in_every_variant),
        cmocka_unit_test(bits_are_those_of_an_expert),
        cmocka_unit_test(heads_take_whole_floats),
        cmocka_unit_test(heads_of_a_row_have_the_same_bits_alone),
        cmocka_unit_test(heads_of_encoded_weights_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
