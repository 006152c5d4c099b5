/* cuda_experts_cases.h - what the tests of experts on a GPU share: experts whose weights are held
 * in any way, batches of rows, the same in double precision, and what holds for all of them. */
#ifndef CUDA_EXPERTS_CASES_H
#define CUDA_EXPERTS_CASES_H

#include "kernel_cases.h"
#include "sy_cuda_pack.h"
#include "sy_cuda_slot.h"

#define ERROR_MAX 5e-3 /* relative L2: h is rounded to bf16, 2^-9 a number at most */

enum { N_EXPERTS = 5, DIM_MAX = 300 };

/* [n,k]: rows as a checkpoint has them, FP8's scales once more, and what they mean. */
typedef struct matrix {
    sy_cuda_weights weights;
    uint32_t n, k;
    edge_buffer rows;
    edge_buffer scales; /* FP8: for 128 rows by 128 inputs, as rows end with them; else empty */
    edge_buffer values; /* doubles */
} matrix;

typedef struct experts {
    uint32_t hidden, ffn;
    sy_cuda_weights weights;
    sy_cuda_mlp mlp;
    float limit;
    matrix gate[N_EXPERTS], up[N_EXPERTS], down[N_EXPERTS];
    edge_buffer gate_bias[N_EXPERTS], up_bias[N_EXPERTS], down_bias[N_EXPERTS];
    edge_buffer packed_up[N_EXPERTS], packed_down[N_EXPERTS];
    edge_buffer table; /* sy_cuda_expert[N_EXPERTS] */
} experts;

static inline uint16_t *bf16_of(const edge_buffer *b)
{
    return (uint16_t *)(void *)b->data;
}

static inline uint32_t *u32_of(const edge_buffer *b)
{
    return (uint32_t *)(void *)b->data;
}

static inline double *values_of(const matrix *m)
{
    return (double *)(void *)m->values.data;
}

/* ---- weights ---- */

/* 2^(b - 127), a NaN for 255. */
static inline double power_of(uint8_t b)
{
    return b == 255 ? (double)NAN : ldexp(1.0, b - 127);
}

/* FP8: where row `row` has its scales; the row's end is written with them. */
static inline const float *put_scales(const matrix *m, uint32_t row)
{
    const size_t n = (m->k + 127) / 128;
    const float *from = edge_floats(&m->scales) + row / 128 * n;

    memcpy(m->rows.data + (row + 1) * sy_cuda_row_bytes(m->weights, m->k) - n * sizeof(float), from,
           n * sizeof(float));
    return from;
}

/* What row `row` means. A scale times a code is exact in double. */
static inline void widen_row(matrix *m, uint32_t row)
{
    const size_t row_bytes = sy_cuda_row_bytes(m->weights, m->k), n_blocks = (m->k + 31) / 32;
    const uint8_t *from = m->rows.data + row * row_bytes;
    const float *scales = m->weights == SY_CUDA_FP8 ? put_scales(m, row) : NULL;
    double *to = values_of(m) + (size_t)row * m->k;
    float wide[DIM_MAX];

    assert_true(m->k <= DIM_MAX);
    if (m->weights < SY_CUDA_FP8) {
        static const sy_dtype type[] = {SY_BF16, SY_Q8, SY_Q4};
        sy_dtype_widen(wide, from, type[m->weights], m->k);
    }
    for (uint32_t i = 0; i < m->k; i++) {
        if (m->weights == SY_CUDA_FP8)
            to[i] = (double)sy_f8_e4m3_to_f32(from[i]) * (double)scales[i / 128];
        else if (m->weights == SY_CUDA_MXFP4)
            to[i] = (double)sy_fp4_to_f32(from[i / 2] >> i % 2 * 4 & 15) *
                    power_of(from[n_blocks * 16 + i / 32]);
        else
            to[i] = (double)wide[i];
    }
}

/* Numbers of about +-0.3 in a row of the kind; a row's filling, past k, is of no number at all. */
static inline void fill_row(matrix *m, uint32_t row, test_random *r)
{
    const size_t row_bytes = sy_cuda_row_bytes(m->weights, m->k), n_blocks = (m->k + 31) / 32;
    uint8_t *to = m->rows.data + row * row_bytes;
    float plain[DIM_MAX];

    for (uint32_t i = 0; i < m->k; i++) plain[i] = random_unit(r) * 0.3f;
    switch (m->weights) {
    case SY_CUDA_Q8:
    case SY_CUDA_Q4:
        assert_int_equal(
            sy_quantize_rows(to, m->weights == SY_CUDA_Q8 ? SY_Q8 : SY_Q4, plain, SY_F32, 1, m->k),
            SY_OK);
        break;
    case SY_CUDA_FP8: /* within 2^-9 and 15, before a scale of about 1/64 */
        for (uint32_t i = 0; i < m->k; i++) to[i] = (uint8_t)(random_u32(r) % 80 | i % 2 << 7);
        break;
    case SY_CUDA_MXFP4:
        for (size_t i = 0; i < n_blocks * 16; i++) to[i] = (uint8_t)random_u32(r);
        for (size_t i = 0; i < n_blocks; i++)
            to[n_blocks * 16 + i] = (uint8_t)(121 + random_u32(r) % 4);
        break;
    default:
        for (uint32_t i = 0; i < m->k; i++) {
            const uint16_t v = sy_f32_to_bf16(plain[i]);
            memcpy(to + 2 * (size_t)i, &v, 2);
        }
    }
}

/* Rows begin 16-byte aligned, as the device has them, and end at the page when they may. */
static inline matrix matrix_open(sy_cuda_weights weights, uint32_t n, uint32_t k)
{
    const size_t bytes = n * sy_cuda_row_bytes(weights, k);
    const size_t n_scales =
        weights == SY_CUDA_FP8 ? (size_t)((n + 127) / 128) * ((k + 127) / 128) : 0;
    matrix m = {.weights = weights, .n = n, .k = k};

    m.rows = edge_open(bytes, (16 - bytes % 16) % 16);
    m.scales = edge_open(n_scales * sizeof(float), 0);
    m.values = edge_open((size_t)n * k * sizeof(double), 0);
    return m;
}

static inline matrix matrix_random(sy_cuda_weights weights, uint32_t n, uint32_t k, test_random *r)
{
    matrix m = matrix_open(weights, n, k);

    for (size_t i = 0; i < m.scales.bytes / sizeof(float); i++)
        edge_floats(&m.scales)[i] = (1.5f + random_unit(r)) / 64.0f;
    for (uint32_t row = 0; row < n; row++) {
        fill_row(&m, row, r);
        widen_row(&m, row);
    }
    return m;
}

static inline void matrix_close(matrix *m)
{
    edge_close(&m->rows);
    edge_close(&m->scales);
    edge_close(&m->values);
}

static inline void pack_matrix(edge_buffer *packed, const matrix *m, sy_cuda_part part)
{
    assert_int_equal(
        sy_cuda_rows_pack(packed->data, m->rows.data, m->weights, part, m->n, m->k, 0, m->n, NULL),
        0);
}

/* FP8 */
static inline const float *scales_in(const edge_buffer *packed, sy_cuda_part part, uint32_t n,
                                     uint32_t k)
{
    const size_t offset = sy_cuda_scale_offset(SY_CUDA_FP8, part, n, k);

    return (const float *)(const void *)(packed->data + offset);
}

/* ---- experts ---- */

static inline edge_buffer open_floats(size_t n, test_random *r)
{
    edge_buffer b = edge_open(n * sizeof(float), 0);

    random_fill(edge_floats(&b), n, r, VALUES_PLAIN);
    return b;
}

static inline sy_cuda_expert *entry_of(const experts *m, uint32_t e)
{
    return (sy_cuda_expert *)(void *)m->table.data + e;
}

static inline void open_expert(experts *m, uint32_t e, int biased, test_random *r)
{
    const uint32_t H = m->hidden, F = m->ffn;

    m->gate[e] = matrix_random(m->weights, F, H, r);
    m->up[e] = matrix_random(m->weights, F, H, r);
    m->down[e] = matrix_random(m->weights, H, F, r);
    m->gate_bias[e] = open_floats(F, r);
    m->up_bias[e] = open_floats(F, r);
    m->down_bias[e] = open_floats(H, r);
    m->packed_up[e] = edge_open(sy_cuda_matrix_bytes(m->weights, SY_CUDA_GATE, F, H), 0);
    m->packed_down[e] = edge_open(sy_cuda_matrix_bytes(m->weights, SY_CUDA_DOWN, H, F), 0);
    pack_matrix(&m->packed_up[e], &m->gate[e], SY_CUDA_GATE);
    pack_matrix(&m->packed_up[e], &m->up[e], SY_CUDA_UP);
    pack_matrix(&m->packed_down[e], &m->down[e], SY_CUDA_DOWN);
    *entry_of(m, e) =
        (sy_cuda_expert){.gate_up = m->packed_up[e].data, .down = m->packed_down[e].data};
    if (m->weights == SY_CUDA_FP8) {
        entry_of(m, e)->gate_scale = scales_in(&m->packed_up[e], SY_CUDA_GATE, F, H);
        entry_of(m, e)->up_scale = scales_in(&m->packed_up[e], SY_CUDA_UP, F, H);
        entry_of(m, e)->down_scale = scales_in(&m->packed_down[e], SY_CUDA_DOWN, H, F);
    }
    if (biased) {
        entry_of(m, e)->gate_bias = edge_floats(&m->gate_bias[e]);
        entry_of(m, e)->up_bias = edge_floats(&m->up_bias[e]);
        entry_of(m, e)->down_bias = edge_floats(&m->down_bias[e]);
    }
}

static inline experts experts_open(sy_cuda_weights weights, uint32_t hidden, uint32_t ffn,
                                   int biased, sy_cuda_mlp mlp)
{
    experts m = {.hidden = hidden, .ffn = ffn, .weights = weights, .mlp = mlp, .limit = 0.75f};
    test_random r = {TEST_SEED + hidden * 1000 + ffn};

    m.table = edge_open(N_EXPERTS * sizeof(sy_cuda_expert), 0);
    for (uint32_t e = 0; e < N_EXPERTS; e++) open_expert(&m, e, biased, &r);
    return m;
}

static inline void experts_close(experts *m)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        edge_buffer *all[] = {&m->gate_bias[e], &m->up_bias[e], &m->down_bias[e], &m->packed_up[e],
                              &m->packed_down[e]};
        for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
        matrix_close(&m->gate[e]);
        matrix_close(&m->up[e]);
        matrix_close(&m->down[e]);
    }
    edge_close(&m->table);
}

/* ---- rows ---- */

/* A batch: T tokens, R rows sorted by expert. */
typedef struct rows {
    uint32_t n_tokens, n_rows;
    uint32_t begin[N_EXPERTS + 1];
    edge_buffer x;     /* [T, padded(H)] bf16 */
    edge_buffer x_row; /* [R] */
} rows;

/* Expert 0 has no rows, expert 2 most of them. */
static inline rows rows_open(const experts *m, uint32_t n_tokens)
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

static inline void rows_close(rows *b)
{
    edge_close(&b->x);
    edge_close(&b->x_row);
}

/* y: [R,H], owned by the caller. Everything that is written is poisoned before, and everything that
 * may not be touched lies beside an unreadable page or guard bytes. */
static inline edge_buffer run(const experts *m, const rows *b, sy_cuda_variant variant)
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
    const sy_cuda_batch batch = {.experts = entry_of(m, 0),
                                 .tiles = (const sy_cuda_tile *)(void *)tiles.data,
                                 .n_tiles = u32_of(&n_tiles),
                                 .tiles_max = n == 0 ? 0 : (uint32_t)n + 1,
                                 .hidden = m->hidden,
                                 .ffn = m->ffn,
                                 .mlp = m->mlp,
                                 .mlp_limit = m->limit,
                                 .weights = m->weights};
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

static inline double product(const matrix *w, uint32_t row, const double *x, const float *bias)
{
    double sum = bias == NULL ? 0.0 : (double)bias[row];

    for (uint32_t i = 0; i < w->k; i++) sum += values_of(w)[(size_t)row * w->k + i] * x[i];
    return sum;
}

static inline double between(const experts *m, double g, double u)
{
    if (m->mlp == SY_CUDA_SWIGLU) return g / (1.0 + exp(-g)) * u;
    const double limit = (double)m->limit;
    const double a = limit < g ? limit : g, below = limit < u ? limit : u;
    const double b = -limit > below ? -limit : below;
    return (b + 1.0) * (a / (1.0 + exp(-1.702 * a)));
}

static inline void exact_row(double *y, const experts *m, const rows *b, uint32_t r)
{
    const uint16_t *x = bf16_of(&b->x) + (size_t)u32_of(&b->x_row)[r] * sy_cuda_padded(m->hidden);
    double wide[DIM_MAX], h[DIM_MAX];
    uint32_t e = 0;

    assert_true(m->hidden <= DIM_MAX && m->ffn <= DIM_MAX);
    while (r >= b->begin[e + 1]) e++;
    const sy_cuda_expert *entry = entry_of(m, e);
    for (uint32_t i = 0; i < m->hidden; i++) wide[i] = (double)sy_bf16_to_f32(x[i]);
    for (uint32_t f = 0; f < m->ffn; f++)
        h[f] = between(m, product(&m->gate[e], f, wide, entry->gate_bias),
                       product(&m->up[e], f, wide, entry->up_bias));
    for (uint32_t i = 0; i < m->hidden; i++) y[i] = product(&m->down[e], i, h, entry->down_bias);
}

/* ---- what holds for every kind of weights ---- */

static inline void check_error(const edge_buffer *y, const experts *m, const rows *b)
{
    double error = 0.0, norm = 0.0, want[DIM_MAX];

    for (uint32_t r = 0; r < b->n_rows; r++) {
        exact_row(want, m, b, r);
        for (uint32_t i = 0; i < m->hidden; i++) {
            const double d = (double)edge_floats(y)[(size_t)r * m->hidden + i] - want[i];
            error += d * d;
            norm += want[i] * want[i];
        }
    }
    if (b->n_rows > 0 && !(sqrt(error) <= ERROR_MAX * sqrt(norm)))
        fail_msg("weights %d, %u tokens, H %u, F %u: relative error %g, at most %g",
                 (int)m->weights, b->n_tokens, m->hidden, m->ffn, sqrt(error / norm), ERROR_MAX);
}

/* Close to exact, and the same bits in every variant. */
static inline void check_batch(const experts *m, uint32_t n_tokens)
{
    rows b = rows_open(m, n_tokens);
    edge_buffer first = run(m, &b, SY_CUDA_TOKENS_8);

    check_error(&first, m, &b);
    for (int v = SY_CUDA_TOKENS_16; v < N_SY_CUDA_VARIANTS; v++) {
        edge_buffer y = run(m, &b, (sy_cuda_variant)v);
        char what[64];
        snprintf(what, sizeof(what), "weights %d, variant %d, %u tokens", (int)m->weights, v,
                 n_tokens);
        check_bits(edge_floats(&first), edge_floats(&y), first.bytes / sizeof(float), what);
        edge_close(&y);
    }
    edge_close(&first);
    rows_close(&b);
}

/* Every third row of a batch, computed alone, in any variant. */
static inline void check_alone(const experts *m, uint32_t n_tokens)
{
    rows all = rows_open(m, n_tokens);
    edge_buffer together = run(m, &all, SY_CUDA_TILED_64);

    for (uint32_t e = 0; e < N_EXPERTS; e++)
        for (uint32_t r = all.begin[e]; r < all.begin[e + 1]; r += 3) {
            edge_buffer one_row = edge_open(sizeof(uint32_t), 0);
            rows alone = {.n_tokens = 1, .n_rows = 1, .x = all.x, .x_row = one_row};
            u32_of(&one_row)[0] = u32_of(&all.x_row)[r];
            for (uint32_t i = e + 1; i <= N_EXPERTS; i++) alone.begin[i] = 1;
            edge_buffer y = run(m, &alone, (sy_cuda_variant)(r % N_SY_CUDA_VARIANTS));
            check_bits(edge_floats(&together) + (size_t)r * m->hidden, edge_floats(&y), m->hidden,
                       "a row alone");
            edge_close(&y);
            edge_close(&one_row);
        }
    edge_close(&together);
    rows_close(&all);
}

static const uint16_t odd_values[] = {0x7fc0, 0x7f80, 0xff80, 0x8000, 0x0001, 0x8001, 0x7f7f};

/* Which of odd_values token t of check_odd_values has; -1: none. */
static inline int odd_value_of(uint32_t t)
{
    if (t < 3 || (t - 3) % 9 != 0 || (t - 3) / 9 >= SY_COUNT_OF(odd_values)) return -1;
    return (int)((t - 3) / 9);
}

static inline void check_odd_row(const experts *m, const rows *b, uint32_t r, const float *got,
                                 uint16_t odd)
{
    double want[DIM_MAX];

    if (odd == 0x7f7f) return; /* which overflows in fp32, but not in the exact sum */
    exact_row(want, m, b, r);
    for (uint32_t j = 0; j < m->hidden; j++)
        if (isnan(want[j]) != isnan(got[j]) || isinf(want[j]) != isinf(got[j]))
            fail_msg("weights %d, row %u with %04x, output %u: %g, want %g", (int)m->weights, r,
                     odd, j, (double)got[j], want[j]);
}

/* Rows of what is no number, or hardly one, beside others: they come out as arithmetic has it, and
 * the others keep their bits. */
static inline void check_odd_values(const experts *m, sy_cuda_variant variant)
{
    const uint32_t n_tokens = 65;
    rows b = rows_open(m, n_tokens), odd = rows_open(m, n_tokens);
    edge_buffer clean = run(m, &b, variant);

    for (uint32_t t = 0; t < n_tokens; t++) {
        const int i = odd_value_of(t);
        if (i >= 0)
            bf16_of(&odd.x)[(size_t)t * sy_cuda_padded(m->hidden) + 7 * (size_t)i] = odd_values[i];
    }
    edge_buffer y = run(m, &odd, variant);
    for (uint32_t r = 0; r < b.n_rows; r++) {
        const int i = odd_value_of(u32_of(&b.x_row)[r]);
        const float *got = edge_floats(&y) + (size_t)r * m->hidden;
        if (i < 0)
            check_bits(edge_floats(&clean) + (size_t)r * m->hidden, got, m->hidden, "neighbour");
        else
            check_odd_row(m, &odd, r, got, odd_values[i]);
    }
    edge_close(&clean);
    edge_close(&y);
    rows_close(&b);
    rows_close(&odd);
}

#endif
