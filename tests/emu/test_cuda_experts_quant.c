/* Experts on a GPU, weights in fewer bits: every code and every scale means what it should, results
 * are close to exact arithmetic, and the bits of a row depend on nothing but the row. */
#include "cuda_experts_cases.h"

static const sy_cuda_weights kinds[] = {SY_CUDA_Q8, SY_CUDA_Q4, SY_CUDA_FP8, SY_CUDA_MXFP4};

static void any_number_of_rows_is_right_in_every_variant(void **state)
{
    static const uint32_t tokens[] = {0, 1, 7, 8, 9, 64, 65, 130};

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        experts m = experts_open(kinds[w], 72, 40, 0, SY_CUDA_SWIGLU);
        for (size_t i = 0; i < SY_COUNT_OF(tokens); i++) check_batch(&m, tokens[i]);
        experts_close(&m);
    }
}

static void any_dimensions_are_right_in_every_variant(void **state)
{
    static const uint32_t dims[][2] = {{1, 1},   {8, 33},    {33, 8},   {64, 128}, {65, 63},
                                       {97, 24}, {136, 129}, {24, 200}, {257, 130}};

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++)
        for (size_t i = 0; i < SY_COUNT_OF(dims); i++) {
            experts m = experts_open(kinds[w], dims[i][0], dims[i][1], 0, SY_CUDA_SWIGLU);
            check_batch(&m, 5);
            experts_close(&m);
        }
}

static void biases_and_the_clamped_form_are_right(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++)
        for (int mlp = SY_CUDA_SWIGLU; mlp <= SY_CUDA_CLAMPED; mlp++) {
            experts m = experts_open(kinds[w], 72, 40, 1, (sy_cuda_mlp)mlp);
            check_batch(&m, 9);
            experts_close(&m);
        }
}

static void a_row_has_the_same_bits_alone(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        experts m = experts_open(kinds[w], 136, 40, 1, SY_CUDA_SWIGLU);
        check_alone(&m, 19);
        experts_close(&m);
    }
}

static void odd_values_stay_in_their_row(void **state)
{
    static const sy_cuda_variant some[] = {SY_CUDA_TOKENS_8, SY_CUDA_TOKENS_32, SY_CUDA_TILED_64};

    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        experts m = experts_open(kinds[w], 72, 40, 0, SY_CUDA_SWIGLU);
        for (size_t i = 0; i < SY_COUNT_OF(some); i++) check_odd_values(&m, some[i]);
        experts_close(&m);
    }
}

/* ---- every code ---- */

enum { OUTPUTS = 24, INPUTS = 264 };

/* f16: one, subnormals, negative, the largest, infinity, a NaN. */
static uint16_t odd_f16(uint32_t i)
{
    static const uint16_t odd[] = {0x3c00, 0x0001, 0x83ff, 0xb555, 0x7bff, 0x0400, 0x7c00, 0x7e01};

    return odd[i % SY_COUNT_OF(odd)];
}

static float odd_f32(uint32_t i)
{
    static const float odd[] = {1.0f, 0x1p-130f, -3.0f, 0x1.fffffep100f, 0.0f, 0x1.8p-20f};

    return odd[i % SY_COUNT_OF(odd)];
}

/* Row after row of every code there is; scales of no number, and codes of none, in a few rows. */
static void fill_codes(matrix *m, uint32_t row)
{
    const size_t row_bytes = sy_cuda_row_bytes(m->weights, m->k), n_blocks = (m->k + 31) / 32;
    uint8_t *to = m->rows.data + row * row_bytes;

    for (size_t i = 0; i < row_bytes; i++) to[i] = (uint8_t)(i * 37 + row * 11);
    if (m->weights == SY_CUDA_Q8 || m->weights == SY_CUDA_Q4)
        for (size_t b = 0; b < n_blocks; b++) {
            const uint16_t scale = odd_f16(row < 4 ? (uint32_t)b + row : (uint32_t)(b + row) % 6);
            memcpy(to + row_bytes / n_blocks * b, &scale, sizeof(scale));
        }
    if (m->weights == SY_CUDA_MXFP4)
        for (size_t b = 0; b < n_blocks; b++)
            to[n_blocks * 16 + b] =
                (uint8_t)(row < 2 ? 255 - b : b * 29 + row * 9) % (row < 2 ? 256 : 255);
    if (m->weights == SY_CUDA_FP8)
        for (uint32_t i = 0; i < m->k && row >= 2; i++)
            if ((to[i] & 0x7f) == 0x7f) to[i]--;
    widen_row(m, row);
}

/* Down of rows that have one input each: every output is one weight, exactly. */
static void check_codes(sy_cuda_weights weights, sy_cuda_variant variant)
{
    matrix m = matrix_open(weights, OUTPUTS, INPUTS);
    const uint32_t padded = sy_cuda_padded(INPUTS), begin[2] = {0, INPUTS};
    edge_buffer packed = edge_open(sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, OUTPUTS, INPUTS), 0);
    edge_buffer h = edge_open((size_t)INPUTS * padded * 2, 0);
    edge_buffer y = edge_open((size_t)INPUTS * OUTPUTS * sizeof(float), 0);
    sy_cuda_tile tiles[INPUTS / 8 + 1];
    const uint32_t n_tiles = (uint32_t)sy_cuda_tiles_cut(tiles, begin, 1, variant);
    double x[INPUTS] = {0};

    for (size_t i = 0; i < m.scales.bytes / sizeof(float); i++)
        edge_floats(&m.scales)[i] = odd_f32((uint32_t)i);
    for (uint32_t row = 0; row < OUTPUTS; row++) fill_codes(&m, row);
    memset(h.data, 0, h.bytes);
    for (uint32_t i = 0; i < INPUTS; i++) bf16_of(&h)[(size_t)i * padded + i] = 0x3f80;
    pack_matrix(&packed, &m, SY_CUDA_DOWN);
    sy_cuda_expert expert = {.down = packed.data};
    if (weights == SY_CUDA_FP8)
        expert.down_scale = scales_in(&packed, SY_CUDA_DOWN, OUTPUTS, INPUTS);
    const sy_cuda_batch batch = {.experts = &expert,
                                 .tiles = tiles,
                                 .n_tiles = &n_tiles,
                                 .tiles_max = n_tiles,
                                 .hidden = OUTPUTS,
                                 .ffn = INPUTS,
                                 .weights = weights};
    assert_int_equal(sy_cuda_down(edge_floats(&y), bf16_of(&h), &batch, variant, NULL), 0);
    for (uint32_t i = 0; i < INPUTS; i++) {
        x[i] = 1.0;
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            const float want = (float)product(&m, o, x, NULL);
            const float got = edge_floats(&y)[(size_t)i * OUTPUTS + o];
            if (want != got && !(isnan(want) && isnan(got)))
                fail_msg("weights %d, variant %d, W[%u][%u]: %a, want %a", (int)weights,
                         (int)variant, o, i, (double)got, (double)want);
        }
        x[i] = 0.0;
    }
    matrix_close(&m);
    edge_close(&packed);
    edge_close(&h);
    edge_close(&y);
}

static void every_code_and_scale_is_exact(void **state)
{
    (void)state;
    for (size_t w = 0; w < SY_COUNT_OF(kinds); w++) {
        check_codes(kinds[w], SY_CUDA_TOKENS_32);
        check_codes(kinds[w], SY_CUDA_TILED_64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_and_scale_is_exact),
        cmocka_unit_test(any_number_of_rows_is_right_in_every_variant),
        cmocka_unit_test(any_dimensions_are_right_in_every_variant),
        cmocka_unit_test(biases_and_the_clamped_form_are_right),
        cmocka_unit_test(a_row_has_the_same_bits_alone),
        cmocka_unit_test(odd_values_stay_in_their_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
