/* Experts on a GPU, weights as bf16: close to exact arithmetic for every number of rows and odd
 * dimensions, and the same bits for a row whatever the tile, the variant and the neighbours. */
#include "cuda_experts_cases.h"

static void any_number_of_rows_is_right_in_every_variant(void **state)
{
    static const uint32_t tokens[] = {0, 1, 7, 8, 9, 63, 64, 65, 200};
    experts m = experts_open(SY_CUDA_BF16, 72, 40, 0, SY_CUDA_SWIGLU);

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
        experts m = experts_open(SY_CUDA_BF16, dims[i][0], dims[i][1], 0, SY_CUDA_SWIGLU);
        check_batch(&m, 11);
        experts_close(&m);
    }
}

static void biases_and_the_clamped_form_are_right(void **state)
{
    (void)state;
    for (int mlp = SY_CUDA_SWIGLU; mlp <= SY_CUDA_CLAMPED; mlp++)
        for (int biased = 0; biased <= 1; biased++) {
            experts m = experts_open(SY_CUDA_BF16, 72, 40, biased, (sy_cuda_mlp)mlp);
            check_batch(&m, 19);
            experts_close(&m);
        }
}

static void a_row_has_the_same_bits_alone(void **state)
{
    experts m = experts_open(SY_CUDA_BF16, 72, 40, 1, SY_CUDA_SWIGLU);

    (void)state;
    check_alone(&m, 37);
    experts_close(&m);
}

static void odd_values_stay_in_their_row(void **state)
{
    experts m = experts_open(SY_CUDA_BF16, 72, 40, 0, SY_CUDA_SWIGLU);

    (void)state;
    for (int v = 0; v < N_SY_CUDA_VARIANTS; v++) check_odd_values(&m, (sy_cuda_variant)v);
    experts_close(&m);
}

/* With one output of Up an infinity stays one: were the padding of h NaN, all of y would be. */
static void padding_adds_nothing_to_an_infinity(void **state)
{
    experts m = experts_open(SY_CUDA_BF16, 1, 1, 0, SY_CUDA_SWIGLU);
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
