/* Weights as blocks of integers: how numbers are rounded to them, how they are packed and come
 * back, how far products with them are off, and the options that choose them. */
#include "kernel_cases.h"

static const sy_dtype quants[] = {SY_Q8, SY_Q4};

static uint16_t scale_of(const uint8_t *block)
{
    uint16_t scale;

    memcpy(&scale, block, sizeof(scale));
    return scale;
}

static void blocks_are_as_long_as_their_parts(void **state)
{
    (void)state;
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, 0), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, 1), 34);
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, 64), 68);
    assert_int_equal(sy_dtype_row_bytes(SY_Q4, 65), 54);
    assert_int_equal(sy_panel_bytes(SY_Q8, 64), 2 * (512 + 32)); /* 1088 = 17 * 64 */
    assert_int_equal(sy_panel_bytes(SY_Q4, 33), 2 * (256 + 32));
    assert_int_equal(sy_panel_bytes(SY_Q4, 32), 320); /* 288, to the next 64 */
    assert_int_equal(sy_panels_bytes(SY_Q4, 17, 32), 640);
    assert_int_equal(sy_panels_bytes(SY_Q8, 17, 0), 0);
    assert_int_equal(sy_panel_bytes(SY_BF16, 3), 96);
}

static void a_q8_block_is_rounded_as_by_hand(void **state)
{
    float w[40] = {127.0f, -63.5f, 0.5f, -0.5f, 0.49f, 2.5f, -2.5f, 1.4999f};
    uint8_t out[68];
    static const int8_t want[] = {127, -64, 1, -1, 0, 3, -3, 1, 0};

    (void)state;
    w[39] = -254.0f; /* the last of the second, short block */
    assert_int_equal(sy_quantize_rows(out, SY_Q8, w, SY_F32, 1, 40), SY_OK);
    assert_int_equal(scale_of(out), sy_f32_to_f16(1.0f));
    for (size_t i = 0; i < SY_COUNT_OF(want); i++)
        assert_int_equal((int8_t)out[2 + i], want[i]); /* halves go away from zero */
    assert_int_equal(scale_of(out + 34), sy_f32_to_f16(2.0f));
    assert_int_equal((int8_t)out[34 + 2 + 7], -127);
    for (size_t i = 8; i < 32; i++) assert_int_equal(out[34 + 2 + i], 0);
}

static void a_q4_block_is_rounded_as_by_hand(void **state)
{
    float w[33] = {-8.0f, 7.0f, 7.6f, 0.49f, 0.5f, -0.5f, -0.51f};
    uint8_t out[36];

    (void)state;
    w[16] = 8.0f; /* as large, but later: the sign is the first one's */
    w[17] = 1.0f;
    w[32] = 16.0f;
    assert_int_equal(sy_quantize_rows(out, SY_Q4, w, SY_F32, 1, 33), SY_OK);
    assert_int_equal(scale_of(out), sy_f32_to_f16(1.0f));
    assert_int_equal(out[2], 0 | 15 << 4); /* element 0 and element 16, cut to 15 */
    assert_int_equal(out[3], 15 | 9 << 4);
    assert_int_equal(out[4] & 15, 15);
    assert_int_equal(out[5] & 15, 8);
    assert_int_equal(out[6] & 15, 9); /* 0.5 + 8.5, cut off */
    assert_int_equal(out[7] & 15, 8);
    assert_int_equal(out[8] & 15, 7);
    assert_int_equal(scale_of(out + 18), sy_f32_to_f16(-2.0f)); /* 16 / -8 */
    assert_int_equal(out[20], 0 | 8 << 4);
    for (size_t i = 1; i < 16; i++) assert_int_equal(out[20 + i], 0x88); /* zeros past the end */
}

static void blocks_of_zeros_and_of_next_to_nothing_are_zero(void **state)
{
    static const float largest[] = {0.0f, -0.0f, 1e-45f, 1e-30f, 1e-7f};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(quants); d++)
        for (size_t i = 0; i < SY_COUNT_OF(largest); i++) {
            float w[32] = {0}, back[32];
            uint8_t out[34];
            w[5] = largest[i];
            w[6] = -largest[i] / 2;
            assert_int_equal(sy_quantize_rows(out, quants[d], w, SY_F32, 1, 32), SY_OK);
            sy_dtype_widen(back, out, quants[d], 32);
            for (size_t k = 0; k < 32; k++)
                assert_true(fabsf(back[k] - w[k]) <= 0x1p-18f); /* 128 halves of f16's least step */
        }
}

static void weights_that_no_block_can_hold_are_refused(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f, 65520.0f * 128.0f};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(quants); d++)
        for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
            float w[2 * 35] = {1.0f};
            uint8_t out[2 * 68];
            assert_int_equal(sy_quantize_rows(out, quants[d], w, SY_F32, 2, 35), SY_OK);
            w[69] = bad[i];
            assert_int_equal(sy_quantize_rows(out, quants[d], w, SY_F32, 2, 35), SY_EINVAL);
        }
}

/* Whatever the type and alignment that weights come in, each is off by half a step at most: with Q4
 * by a whole one at the end that the largest does not have the sign of. */
static void rounded_weights_are_off_by_half_a_step_at_most(void **state)
{
    enum { N = 3, K = 77 };
    test_random r = {TEST_SEED};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(quants); d++)
        for (int from = SY_F32; from <= SY_F16; from++) {
            uint8_t source[4 * N * K + 1], out[N * 102];
            float w[N * K], back[K];
            const size_t row_bytes = sy_dtype_row_bytes(quants[d], K);
            for (size_t i = 0; i < N * K; i++) {
                w[i] = random_unit(&r) * 3.0f;
                const uint16_t half = from == SY_BF16 ? sy_f32_to_bf16(w[i]) : sy_f32_to_f16(w[i]);
                memcpy(source + 1 + i * sy_dtype_bytes((sy_dtype)from),
                       from == SY_F32 ? (const void *)&w[i] : &half,
                       sy_dtype_bytes((sy_dtype)from));
            }
            sy_dtype_widen(w, source + 1, (sy_dtype)from, N * K);
            assert_int_equal(sy_quantize_rows(out, quants[d], source + 1, (sy_dtype)from, N, K),
                             SY_OK);
            for (size_t n = 0; n < N; n++) {
                sy_dtype_widen(back, out + n * row_bytes, quants[d], K);
                for (size_t k = 0; k < K; k++) {
                    const uint8_t *block = out + n * row_bytes + k / 32 * (row_bytes / 3);
                    const float step = fabsf(sy_f16_to_f32(scale_of(block)));
                    const float most = step * (quants[d] == SY_Q8 ? 0.57f : 1.02f);
                    if (!(fabsf(back[k] - w[n * K + k]) <= most)) {
                        fail_msg("%s, element %zu: %g became %g, a step is %g",
                                 sy_dtype_name(quants[d]), k, (double)w[n * K + k], (double)back[k],
                                 (double)step);
                    }
                }
            }
        }
}

static void packed_blocks_come_back_bit_for_bit(void **state)
{
    static const uint32_t ns[] = {1, 15, 16, 17, 40}, ks[] = {1, 31, 32, 33, 100};
    test_random r = {TEST_SEED};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(quants); d++)
        for (size_t i = 0; i < SY_COUNT_OF(ns); i++)
            for (size_t j = 0; j < SY_COUNT_OF(ks); j++) {
                const uint32_t n = ns[i], k = ks[j];
                const size_t row_bytes = sy_dtype_row_bytes(quants[d], k);
                uint8_t *source = malloc(n * row_bytes + 1);
                uint8_t *back = malloc(n * row_bytes);
                float *row = malloc(k * sizeof(float));
                edge_buffer packed = edge_open(sy_panels_bytes(quants[d], n, k), 0);
                const sy_panels w = {packed.data, quants[d], n, k};
                assert_true(source != NULL && back != NULL && row != NULL);
                for (size_t b = 0; b < n * row_bytes; b++) source[1 + b] = (uint8_t)random_u32(&r);
                for (size_t panel = sy_panels_count(n); panel-- > 0;)
                    sy_panels_pack(packed.data, source + 1, quants[d], n, k, panel, panel + 1);
                edge_check(&packed);
                sy_panels_unpack(back, &w, 0, n);
                assert_memory_equal(back, source + 1, n * row_bytes);
                sy_panels_unpack(back, &w, n / 2, n);
                assert_memory_equal(back, source + 1 + n / 2 * row_bytes, (n - n / 2) * row_bytes);
                for (uint32_t c = 0; c < n; c++) {
                    sy_dtype_widen(row, source + 1 + c * row_bytes, quants[d], k);
                    for (uint32_t e = 0; e < k; e++) {
                        const float got = sy_panels_at(&w, c, e);
                        check_bits(row + e, &got, 1, "sy_panels_at");
                    }
                }
                free(source);
                free(back);
                free(row);
                edge_close(&packed);
            }
}

static void only_scales_can_be_infinite(void **state)
{
    uint8_t row[68];

    (void)state;
    memset(row, 0xff, sizeof(row));
    for (size_t i = 0; i < 2; i++) memcpy(row + i * 34, &(uint16_t){0x3c00}, 2);
    assert_true(sy_dtype_all_finite(row, SY_Q8, 33));
    memcpy(row + 34, &(uint16_t){0x7c00}, 2);
    assert_false(sy_dtype_all_finite(row, SY_Q8, 33));
    assert_true(sy_dtype_all_finite(row, SY_Q8, 32));
    memcpy(row + 18, &(uint16_t){0xfe00}, 2);
    assert_false(sy_dtype_all_finite(row, SY_Q4, 64));
}

/* Sums of K products of numbers spread evenly over [-1, 1) are around sqrt(K) / 3; what rounding
 * adds is a step / sqrt(12) an element. Six times that is never met by chance. */
static void products_are_off_by_what_rounding_explains(void **state)
{
    enum { N = 16, K = 2048 };
    static const double step[] = {[SY_Q8] = 1.0 / 127, [SY_Q4] = 1.0 / 8};
    test_random r = {TEST_SEED};
    float *w = malloc(N * K * sizeof(float));
    float x[K], y[N];
    void *memory = aligned_alloc(64, sy_qrows_bytes(1, K));
    sy_qrows q;

    (void)state;
    assert_true(w != NULL && memory != NULL);
    random_fill(w, N * K, &r, VALUES_PLAIN);
    random_fill(x, K, &r, VALUES_PLAIN);
    sy_qrows_at(&q, memory, 1, K);
    const sy_kernels *kernels = sy_kernels_best();
    kernels->quantize(&q, 0, x, K, 1, K);
    for (size_t d = 0; d < SY_COUNT_OF(quants); d++) {
        uint8_t *rows = malloc(N * sy_dtype_row_bytes(quants[d], K));
        uint8_t *packed = aligned_alloc(64, sy_panels_bytes(quants[d], N, K));
        const sy_panels panels = {packed, quants[d], N, K};
        assert_true(rows != NULL && packed != NULL);
        assert_int_equal(sy_quantize_rows(rows, quants[d], w, SY_F32, N, K), SY_OK);
        sy_panels_pack(packed, rows, quants[d], N, K, 0, 1);
        for (int by_q8 = 0; by_q8 < 2; by_q8++) {
            const double w_error = step[quants[d]] / sqrt(12);
            const double x_error = by_q8 ? step[SY_Q8] / sqrt(12) : 0;
            const double one = sqrt((w_error * w_error + x_error * x_error) / 3 * K);
            if (by_q8) {
                kernels->matmul_q8(y, N, &q, NULL, 1, &panels, 0, 1);
            } else {
                kernels->matmul(y, N, x, K, NULL, 1, &panels, 0, 1);
            }
            for (size_t n = 0; n < N; n++) {
                double want = 0;
                for (size_t k = 0; k < K; k++) want += (double)x[k] * (double)w[n * K + k];
                if (!(fabs((double)y[n] - want) <= 6 * one)) {
                    fail_msg("%s by %s: %g, want %g, off by more than 6 times %g",
                             sy_dtype_name(quants[d]), by_q8 ? "q8" : "f32", (double)y[n], want,
                             one);
                }
            }
        }
        free(rows);
        free(packed);
    }
    free(w);
    free(memory);
}

/* Every implementation, the bits of the definition, for every kind of value and length. */
static void activations_are_rounded_as_defined(void **state)
{
    enum { K_MAX = 130 };

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++)
        for (uint32_t k = 1; k <= K_MAX; k++) {
            test_random r = {TEST_SEED + k};
            const size_t bytes = sy_qrows_bytes(3, k);
            edge_buffer x = edge_open(3 * k * sizeof(float), 0);
            uint8_t *memory = aligned_alloc(64, bytes);
            sy_qrows q;
            assert_non_null(memory);
            random_fill(edge_floats(&x), 3 * k, &r, (value_kind)(k % N_VALUE_KINDS));
            sy_qrows_at(&q, memory, 3, k);
            memset(memory, GUARD, bytes);
            sy_kernels_at(i)->quantize(&q, 1, edge_floats(&x) + k, k, 2, k);
            assert_int_equal((uint8_t)q.q[0], GUARD); /* row 0 is another thread's */
            for (size_t at = q.blocks; at < 3 * q.blocks; at++) {
                const size_t row = at / q.blocks, first = at % q.blocks * 32;
                const float *from = edge_floats(&x) + row * k + first;
                float max = 0.0f;
                int finite = 1, sum = 0;
                for (size_t j = 0; j < 32 && first + j < k; j++) {
                    finite &= isfinite(from[j]) != 0;
                    max = fmaxf(max, fabsf(from[j]));
                }
                const int is_zero = !finite || max < 0x1p-100f;
                const float want_scale = !finite ? NAN : is_zero ? 0.0f : max / 127.0f;
                check_bits(&want_scale, q.scale + at, 1, sy_kernels_at(i)->name);
                for (size_t j = 0; j < 32; j++) {
                    const int want =
                        is_zero || first + j >= k ? 0 : (int)nearbyintf(from[j] * (127.0f / max));
                    assert_int_equal(q.q[row * q.stride + first + j], want);
                    sum += want;
                }
                assert_int_equal(q.sum[at], sum);
            }
            edge_close(&x);
            free(memory);
        }
}

static void precisions_are_read_from_options(void **state)
{
    sy_precision p;
    sy_error err;

    (void)state;
    assert_int_equal(sy_precision_parse(&p, "as-stored", "f32", &err), SY_OK);
    assert_int_equal(p.weights, SY_DTYPE_NONE);
    assert_int_equal(p.activations, SY_ACT_F32);
    assert_int_equal(sy_precision_parse(&p, "bf16", "f32", &err), SY_OK);
    assert_int_equal(p.weights, SY_BF16);
    assert_int_equal(sy_precision_parse(&p, "q4", "q8", &err), SY_OK);
    assert_int_equal(p.weights, SY_Q4);
    assert_int_equal(p.activations, SY_ACT_Q8);
    assert_int_equal(sy_precision_parse(&p, "Q8", "F32", &err), SY_OK);
    assert_int_equal(p.weights, SY_Q8);
    assert_int_equal(sy_precision_parse(&p, "q5", "f32", &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "q5"));
    assert_int_equal(sy_precision_parse(&p, "q8", "int8", &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "int8"));
    assert_int_equal(sy_precision_parse(&p, "as-stored", "q8", &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "--weights"));
    assert_int_equal(sy_precision_parse(&p, "bf16", "q8", &err), SY_EINVAL);
    assert_string_equal(sy_arithmetic_name(SY_ACT_F32), SY_ARITHMETIC);
    assert_string_equal(sy_arithmetic_name(SY_ACT_Q8), "q8-block/1");
}

static void sizes_of_rows_that_do_not_fit_are_zero(void **state)
{
    (void)state;
    assert_int_equal(sy_qrows_bytes(0, 100), 0);
    assert_int_equal(sy_qrows_bytes(1, 32), 64);
    assert_int_equal(sy_qrows_bytes(3, 33), 256); /* 3 * 2 * 40, to the next 64 */
    assert_int_equal(sy_qrows_bytes(SIZE_MAX / 2, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_as_long_as_their_parts),
        cmocka_unit_test(a_q8_block_is_rounded_as_by_hand),
        cmocka_unit_test(a_q4_block_is_rounded_as_by_hand),
        cmocka_unit_test(blocks_of_zeros_and_of_next_to_nothing_are_zero),
        cmocka_unit_test(weights_that_no_block_can_hold_are_refused),
        cmocka_unit_test(rounded_weights_are_off_by_half_a_step_at_most),
        cmocka_unit_test(packed_blocks_come_back_bit_for_bit),
        cmocka_unit_test(only_scales_can_be_infinite),
        cmocka_unit_test(products_are_off_by_what_rounding_explains),
        cmocka_unit_test(activations_are_rounded_as_defined),
        cmocka_unit_test(precisions_are_read_from_options),
        cmocka_unit_test(sizes_of_rows_that_do_not_fit_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
