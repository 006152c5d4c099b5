/* Experts on a GPU: close to exact arithmetic for every number of rows and odd dimensions, and the
 * same bits for a row whatever the tile, the variant and the neighbours. */
#include "kernel_cases.h"
#include "sy_cuda_kernels.h"
#include "sy_cuda_pack.h"

#define ERROR_MAX 5e-3 /* relative L2: h is rounded to bf16, 2^-9 a number at most */

enum { N_EXPERTS = 5 };

/* The model's side of a case: weights as bf16, row-major, and what a GPU would hold. */
typedef struct experts {
    uint32_t hidden, ffn;
    sy_cuda_mlp mlp;
    float limit;
    edge_buffer gate[N_EXPERTS], up[N_EXPERTS], down[N_EXPERTS];
    edge_buffer gate_bias[N_EXPERTS], up_bias[N_EXPERTS], down_bias[N_EXPERTS];
    edge_buffer packed_up[N_EXPERTS], packed_down[N_EXPERTS];
    edge_buffer table; /* sy_cuda_expert[N_EXPERTS] */
} experts;

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

static void open_expert(experts *m, uint32_t e, int biased, test_random *r)
{
    const uint32_t H = m->hidden, F = m->ffn;
    sy_cuda_expert *entry = (sy_cuda_expert *)(void *)m->table.data + e;

    m->gate[e] = open_bf16((size_t)F * H, 0.3f, r);
    m->up[e] = open_bf16((size_t)F * H, 0.3f, r);
    m->down[e] = open_bf16((size_t)H * F, 0.3f, r);
    m->gate_bias[e] = open_floats(F, r);
    m->up_bias[e] = open_floats(F, r);
    m->down_bias[e] = open_floats(H, r);
    m->packed_up[e] = edge_open(sy_cuda_gate_up_bytes(F, H), 0);
    m->packed_down[e] = edge_open(sy_cuda_pack_bytes(H, F), 0);
    sy_cuda_pack_gate_up(m->packed_up[e].data, m->gate[e].data, m->up[e].data, F, H, 0,
                         sy_cuda_gate_up_blocks(F));
    sy_cuda_pack(m->packed_down[e].data, m->down[e].data, H, F, 0, sy_cuda_row_blocks(H));
    *entry = (sy_cuda_expert){.gate_up = m->packed_up[e].data, .down = m->packed_down[e].data};
    if (biased) {
        entry->gate_bias = edge_floats(&m->gate_bias[e]);
        entry->up_bias = edge_floats(&m->up_bias[e]);
        entry->down_bias = edge_floats(&m->down_bias[e]);
    }
}

static experts experts_open(uint32_t hidden, uint32_t ffn, int biased, sy_cuda_mlp mlp)
{
    experts m = {.hidden = hidden, .ffn = ffn, .mlp = mlp, .limit = 0.75f};
    test_random r = {TEST_SEED + hidden * 1000 + ffn};

    m.table = edge_open(N_EXPERTS * sizeof(sy_cuda_expert), 0);
    for (uint32_t e = 0; e < N_EXPERTS; e++) open_expert(&m, e, biased, &r);
    return m;
}

static void experts_close(experts *m)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        edge_buffer *all[] = {&m->gate[e],      &m->up[e],         &m->down[e],
                              &m->gate_bias[e], &m->up_bias[e],    &m->down_bias[e],
                              &m->packed_up[e], &m->packed_down[e]};
        for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
    }
    edge_close(&m->table);
}

/* A batch: T tokens, R rows sorted by expert. */
typedef struct rows {
    uint32_t n_tokens, n_rows;
    uint32_t begin[N_EXPERTS + 1];
    edge_buffer x;     /* [T, padded(H)] bf16 */
    edge_buffer x_row; /* [R] */
} rows;

static uint16_t *bf16_of(const edge_buffer *b)
{
    return (uint16_t *)(void *)b->data;
}

static uint32_t *u32_of(const edge_buffer *b)
{
    return (uint32_t *)(void *)b->data;
}

/* Expert 0 has no rows, expert 2 most of them. */
static rows rows_open(const experts *m, uint32_t n_tokens)
{
    static const uint32_t share[N_EXPERTS] = {0, 1, 13, 1, 1};
    const uint32_t padded = sy_cuda_padded(m->hidden);
    test_random r = {TEST_SEED + n_tokens};
    rows b = {.n_tokens = n_tokens, .n_rows = 2 * n_tokens};
    uint32_t at = 0;

    b.x = edge_open((size_t)n_tokens * padded * 2, 0);
    b.x_row = edge_open(b.n_rows * sizeof(uint32_t), 0);
    memset(b.x.data, 0, b.x.bytes);
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t i = 0; i < m->hidden; i++)
            bf16_of(&b.x)[(size_t)t * padded + i] = sy_f32_to_bf16(random_unit(&r));
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        b.begin[e] = at;
        at = SY_MIN(b.n_rows, at + (b.n_rows * share[e] + 15) / 16);
    }
    b.begin[N_EXPERTS] = b.n_rows;
    for (uint32_t i = 0; i < b.n_rows; i++) u32_of(&b.x_row)[i] = (i * 5 + i / n_tokens) % n_tokens;
    return b;
}

static void rows_close(rows *b)
{
    edge_close(&b->x);
    edge_close(&b->x_row);
}

/* y: [R,H], owned by the caller. Everything that is written is poisoned before, and everything that
 * may not be touched lies beside an unreadable page or guard bytes. */
static edge_buffer run(const experts *m, const rows *b, sy_cuda_variant variant)
{
    const size_t tiles_room = b->n_rows / sy_cuda_variant_tokens(variant) + N_EXPERTS;
    edge_buffer h = edge_open((size_t)b->n_rows * sy_cuda_padded(m->ffn) * 2, 0);
    edge_buffer y = edge_open((size_t)b->n_rows * m->hidden * sizeof(float), 0);
    edge_buffer tiles = edge_open(tiles_room * sizeof(sy_cuda_tile), 0);
    edge_buffer n_tiles = edge_open(sizeof(uint32_t), 0);
    const size_t n =
        sy_cuda_tiles_cut((sy_cuda_tile *)(void *)tiles.data, b->begin, N_EXPERTS, variant);

    assert_true(n <= tiles_room);
    u32_of(&n_tiles)[0] = (uint32_t)n;
    memset(h.data, 0xff, h.bytes);
    memset(y.data, 0xff, y.bytes);
    const sy_cuda_batch batch = {.experts = (const sy_cuda_expert *)(void *)m->table.data,
                                 .tiles = (const sy_cuda_tile *)(void *)tiles.data,
                                 .n_tiles = u32_of(&n_tiles),
                                 .tiles_max = n == 0 ? 0 : (uint32_t)n + 1,
                                 .hidden = m->hidden,
                                 .ffn = m->ffn,
                                 .mlp = m->mlp,
                                 .mlp_limit = m->limit};
    assert_int_equal(
        sy_cuda_up(bf16_of(&h), bf16_of(&b->x), u32_of(&b->x_row), &batch, variant, NULL), 0);
    assert_int_equal(sy_cuda_down(edge_floats(&y), bf16_of(&h), &batch, variant, NULL), 0);
    edge_check(&h);
    edge_check(&y);
    edge_close(&h);
    edge_close(&tiles);
    edge_close(&n_tiles);
    return y;
}

/* ---- exact arithmetic ---- */

static double product(const edge_buffer *w, uint32_t row, const double *x, uint32_t k,
                      const float *bias)
{
    double sum = bias == NULL ? 0.0 : (double)bias[row];

    for (uint32_t i = 0; i < k; i++)
        sum += (double)sy_bf16_to_f32(bf16_of(w)[(size_t)row * k + i]) * x[i];
    return sum;
}

static double between(const experts *m, double g, double u)
{
    if (m->mlp == SY_CUDA_SWIGLU) return g / (1.0 + exp(-g)) * u;
    const double limit = (double)m->limit;
    const double a = limit < g ? limit : g, below = limit < u ? limit : u;
    const double b = -limit > below ? -limit : below;
    return (b + 1.0) * (a / (1.0 + exp(-1.702 * a)));
}

static void exact_row(double *y, const experts *m, const rows *b, uint32_t r)
{
    const sy_cuda_expert *table = (const sy_cuda_expert *)(void *)m->table.data;
    const uint16_t *x = bf16_of(&b->x) + (size_t)u32_of(&b->x_row)[r] * sy_cuda_padded(m->hidden);
    double wide[256], h[256];
    uint32_t e = 0;

    assert_true(m->hidden <= 256 && m->ffn <= 256);
    while (r >= b->begin[e + 1]) e++;
    for (uint32_t i = 0; i < m->hidden; i++) wide[i] = (double)sy_bf16_to_f32(x[i]);
    for (uint32_t f = 0; f < m->ffn; f++)
        h[f] = between(m, product(&m->gate[e], f, wide, m->hidden, table[e].gate_bias),
                       product(&m->up[e], f, wide, m->hidden, table[e].up_bias));
    for (uint32_t i = 0; i < m->hidden; i++)
        y[i] = product(&m->down[e], i, h, m->ffn, table[e].down_bias);
}

static void check_error(const edge_buffer *y, const experts *m, const rows *b, const char *what)
{
    double error = 0.0, norm = 0.0, want[256];

    for (uint32_t r = 0; r < b->n_rows; r++) {
        exact_row(want, m, b, r);
        for (uint32_t i = 0; i < m->hidden; i++) {
            const double d = (double)edge_floats(y)[(size_t)r * m->hidden + i] - want[i];
            error += d * d;
            norm += want[i] * want[i];
        }
    }
    if (b->n_rows > 0 && !(sqrt(error) <= ERROR_MAX * sqrt(norm)))
        fail_msg("%s, %u tokens, H %u, F %u: relative error %g, at most %g", what, b->n_tokens,
                 m->hidden, m->ffn, sqrt(error / norm), ERROR_MAX);
}

static void check_batch(const experts *m, uint32_t n_tokens)
{
    rows b = rows_open(m, n_tokens);
    edge_buffer first = run(m, &b, SY_CUDA_TOKENS_8);

    check_error(&first, m, &b, "8 tokens a tile");
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer y = run(m, &b, (sy_cuda_variant)v);
        char what[64];
        snprintf(what, sizeof(what), "variant %d, %u tokens", v, n_tokens);
        check_bits(edge_floats(&first), edge_floats(&y), first.bytes / sizeof(float), what);
        edge_close(&y);
    }
    edge_close(&first);
    rows_close(&b);
}

/* ---- tests ---- */

static void any_number_of_rows_is_right_in_every_variant(void **state)
{
    static const uint32_t tokens[] = {0, 1, 7, 8, 9, 63, 64, 65, 200};
    experts m = experts_open(72, 40, 0, SY_CUDA_SWIGLU);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(tokens); i++) check_batch(&m, tokens[i]);
    experts_close(&m);
}

static void any_dimensions_are_right_in_every_variant(void **state)
{
    static const uint32_t dims[][2] = {{1, 1},   {8, 8},    {16, 64},  {64, 64},   {65, 63},
                                       {63, 65}, {130, 24}, {24, 130}, {200, 192}, {256, 128}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
        experts m = experts_open(dims[i][0], dims[i][1], 0, SY_CUDA_SWIGLU);
        check_batch(&m, 11);
        experts_close(&m);
    }
}

static void biases_and_the_clamped_form_are_right(void **state)
{
    (void)state;
    for (int mlp = SY_CUDA_SWIGLU; mlp <= SY_CUDA_CLAMPED; mlp++)
        for (int biased = 0; biased <= 1; biased++) {
            experts m = experts_open(72, 40, biased, (sy_cuda_mlp)mlp);
            check_batch(&m, 19);
            experts_close(&m);
        }
}

/* Each row of a batch, computed alone. */
static void a_row_has_the_same_bits_alone(void **state)
{
    experts m = experts_open(72, 40, 1, SY_CUDA_SWIGLU);
    rows all = rows_open(&m, 37);
    edge_buffer together = run(&m, &all, SY_CUDA_TILED_64);

    (void)state;
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (uint32_t r = all.begin[e]; r < all.begin[e + 1]; r += 3) {
            edge_buffer one_row = edge_open(sizeof(uint32_t), 0);
            rows alone = {.n_tokens = 1, .n_rows = 1, .x = all.x, .x_row = one_row};
            u32_of(&one_row)[0] = u32_of(&all.x_row)[r];
            for (uint32_t i = e + 1; i <= N_EXPERTS; i++) alone.begin[i] = 1;
            edge_buffer y = run(&m, &alone, (sy_cuda_variant)(r % N_SY_CUDA_VARIANTS));
            check_bits(edge_floats(&together) + (size_t)r * m.hidden, edge_floats(&y), m.hidden,
                       "a row alone");
            edge_close(&y);
            edge_close(&one_row);
        }
    edge_close(&together);
    rows_close(&all);
    experts_close(&m);
}

/* Rows of what is no number, or hardly one, beside others: they come out as arithmetic has it, and
 * the others keep their bits. */
static void odd_values_stay_in_their_row(void **state)
{
    static const uint16_t odd[] = {0x7fc0, 0x7f80, 0xff80, 0x8000, 0x0001, 0x8001, 0x7f7f};
    experts m = experts_open(72, 40, 0, SY_CUDA_SWIGLU);
    rows b = rows_open(&m, 65);

    (void)state;
    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) {
        rows odd_rows = rows_open(&m, 65);
        edge_buffer clean = run(&m, &b, (sy_cuda_variant)v);
        for (uint32_t i = 0; i < SY_COUNT_OF(odd); i++)
            bf16_of(&odd_rows.x)[(size_t)(3 + 9 * i) * sy_cuda_padded(m.hidden) + 7 * i] = odd[i];
        edge_buffer y = run(&m, &odd_rows, (sy_cuda_variant)v);
        for (uint32_t r = 0; r < b.n_rows; r++) {
            const uint32_t t = u32_of(&b.x_row)[r], i = (t - 3) / 9;
            const float *got = edge_floats(&y) + (size_t)r * m.hidden;
            double want[256];
            exact_row(want, &m, &odd_rows, r);
            if (t < 3 || (t - 3) % 9 != 0 || i >= SY_COUNT_OF(odd))
                check_bits(edge_floats(&clean) + (size_t)r * m.hidden, got, m.hidden, "neighbour");
            else if (odd[i] != 0x7f7f) /* which overflows in fp32, but not in the exact sum */
                for (uint32_t j = 0; j < m.hidden; j++)
                    if (isnan(want[j]) != isnan(got[j]) || isinf(want[j]) != isinf(got[j]))
                        fail_msg("row %u with %04x, output %u: %g, want %g", r, odd[i], j,
                                 (double)got[j], want[j]);
        }
        edge_close(&clean);
        edge_close(&y);
        rows_close(&odd_rows);
    }
    rows_close(&b);
    experts_close(&m);
}

/* With one output of Up an infinity stays one: were the padding of h NaN, all of y would be. */
static void padding_adds_nothing_to_an_infinity(void **state)
{
    experts m = experts_open(1, 1, 0, SY_CUDA_SWIGLU);
    rows b = rows_open(&m, 1);
    const uint16_t positive = 0x3f80, infinite = 0x7f80;

    (void)state;
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        sy_cuda_pack_gate_up(m.packed_up[e].data, &positive, &positive, 1, 1, 0,
                             sy_cuda_gate_up_blocks(1));
        sy_cuda_pack(m.packed_down[e].data, &positive, 1, 1, 0, 1);
    }
    bf16_of(&b.x)[0] = infinite;
    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer y = run(&m, &b, (sy_cuda_variant)v);
        for (uint32_t r = 0; r < b.n_rows; r++)
            if (edge_floats(&y)[r] != INFINITY)
                fail_msg("variant %d, row %u: %g, want inf", v, r, (double)edge_floats(&y)[r]);
        edge_close(&y);
    }
    rows_close(&b);
    experts_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_rows_is_right_in_every_variant),
        cmocka_unit_test(any_dimensions_are_right_in_every_variant),
        cmocka_unit_test(biases_and_the_clamped_form_are_right),
        cmocka_unit_test(a_row_has_the_same_bits_alone),
        cmocka_unit_test(odd_values_stay_in_their_row),
        cmocka_unit_test(padding_adds_nothing_to_an_infinity),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
