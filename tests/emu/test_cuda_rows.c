/* Rows into and out of the experts: rounding gives the bits of sy_dtype.h, padding is zero, and the
 * weighted sum has the bits of the CPU's. */
#include "kernel_cases.h"
#include "sy_cuda_kernels.h"
#include "sy_cuda_pack.h"

static const uint32_t hidden_sizes[] = {1, 7, 63, 64, 65, 127, 200};
static const uint32_t row_counts[] = {0, 1, 7, 8, 9, 65};

static void check_rows(uint32_t n_rows, uint32_t hidden, size_t stride, value_kind kind)
{
    const uint32_t padded = sy_cuda_padded(hidden);
    const size_t n = n_rows == 0 ? 0 : (n_rows - 1) * stride + hidden;
    test_random r = {TEST_SEED + hidden};
    edge_buffer x = edge_open(n * sizeof(float), 0), x16 = edge_open(n * sizeof(uint16_t), 0);
    edge_buffer out = edge_open((size_t)n_rows * padded * 2, 0);
    edge_buffer out16 = edge_open((size_t)n_rows * padded * 2, 0);

    random_fill(edge_floats(&x), n, &r, kind);
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)(void *)x16.data)[i] = sy_f32_to_bf16(edge_floats(&x)[i]);
    assert_int_equal(sy_cuda_rows_from_f32((uint16_t *)(void *)out.data, edge_floats(&x), stride,
                                           n_rows, hidden, NULL),
                     0);
    assert_int_equal(sy_cuda_rows_from_bf16((uint16_t *)(void *)out16.data,
                                            (const uint16_t *)(void *)x16.data, stride, n_rows,
                                            hidden, NULL),
                     0);
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t i = 0; i < padded; i++) {
            const uint16_t want = i < hidden ? sy_f32_to_bf16(edge_floats(&x)[t * stride + i]) : 0;
            const uint16_t got = ((uint16_t *)(void *)out.data)[(size_t)t * padded + i];
            if (got != want)
                fail_msg("row %u, element %u of %u: %04x, want %04x", t, i, hidden, got, want);
        }
    assert_memory_equal(out.data, out16.data, out.bytes);
    edge_check(&out);
    edge_check(&out16);
    edge_close(&x);
    edge_close(&x16);
    edge_close(&out);
    edge_close(&out16);
}

static void rows_are_rounded_and_padded(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(row_counts); i++)
        for (size_t j = 0; j < SY_COUNT_OF(hidden_sizes); j++)
            for (int kind = 0; kind < N_VALUE_KINDS; kind++)
                check_rows(row_counts[i], hidden_sizes[j], hidden_sizes[j] + (size_t)kind,
                           (value_kind)kind);
}

static void check_combine(uint32_t n_tokens, uint32_t k, uint32_t hidden, value_kind kind)
{
    const size_t n_rows = (size_t)n_tokens * k;
    test_random r = {TEST_SEED + hidden};
    edge_buffer y = edge_open(n_rows * hidden * sizeof(float), 0);
    edge_buffer weight = edge_open(n_rows * sizeof(float), 0);
    edge_buffer row = edge_open(n_rows * sizeof(uint32_t), 0);
    edge_buffer out = edge_open((size_t)n_tokens * hidden * sizeof(float), 8);
    uint32_t *rows = (uint32_t *)(void *)row.data;

    random_fill(edge_floats(&y), n_rows * hidden, &r, kind);
    random_fill(edge_floats(&weight), n_rows, &r, VALUES_PLAIN);
    for (size_t i = 0; i < n_rows; i++) rows[i] = (uint32_t)((i * 7 + 3) % n_rows);
    assert_int_equal(sy_cuda_combine(edge_floats(&out), edge_floats(&y), rows, edge_floats(&weight),
                                     n_tokens, k, hidden, NULL),
                     0);
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *want = calloc(hidden, sizeof(float));
        assert_non_null(want);
        for (uint32_t j = 0; j < k; j++) {
            const size_t at = (size_t)t * k + j;
            sy_kernels_at(0)->axpy(want, edge_floats(&y) + (size_t)rows[at] * hidden,
                                   edge_floats(&weight)[at], hidden);
        }
        check_bits(want, edge_floats(&out) + (size_t)t * hidden, hidden, "the sum of a token");
        free(want);
    }
    edge_check(&out);
    edge_close(&y);
    edge_close(&weight);
    edge_close(&row);
    edge_close(&out);
}

static void combining_adds_in_slot_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(row_counts); i++)
        for (size_t j = 0; j < SY_COUNT_OF(hidden_sizes); j++)
            for (uint32_t k = 1; k <= 8; k += 3)
                check_combine(row_counts[i], k, hidden_sizes[j],
                              k == 4 ? VALUES_MIXED : VALUES_PLAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_rounded_and_padded),
        cmocka_unit_test(combining_adds_in_slot_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
