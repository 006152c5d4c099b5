/* Weights in a checkpoint's own encoding, FP8 and MXFP4: how they are packed and come back, where
 * their bytes lie, and the options that choose them. */
#include "kernel_cases.h"

static const sy_dtype encoded[] = {SY_FP8, SY_MXFP4};

static void panels_are_as_long_as_their_parts(void **state)
{
    (void)state;
    assert_int_equal(sy_panel_bytes(SY_FP8, 128), 128 * 16 + 64);
    assert_int_equal(sy_panel_bytes(SY_FP8, 129), 132 * 16 + 2 * 64); /* two lines of four inputs */
    assert_int_equal(sy_panel_bytes(SY_FP8, 1), 64 + 64);
    assert_int_equal(sy_panel_bytes(SY_MXFP4, 128), 4 * (256 + 16));
    assert_int_equal(sy_panel_bytes(SY_MXFP4, 33), 576); /* 544, to the next 64 */
    assert_int_equal(sy_panels_bytes(SY_MXFP4, 17, 32), 2 * 320);
    assert_int_equal(sy_panels_bytes(SY_FP8, 17, 0), 0);
    assert_int_equal(sy_panels_bytes(SY_FP8, UINT32_MAX, UINT32_MAX), 0);
}

/* The layout that sy_kernels.h says. */
static void bytes_lie_where_the_layout_says(void **state)
{
    enum { N = 16, K = 131 };
    static uint8_t fp8[N][K + 2 * 4], mxfp4[N][5 * 17];
    uint8_t *packed = aligned_alloc(64, sy_panels_bytes(SY_FP8, N, K));
    test_random r = {TEST_SEED};

    (void)state;
    assert_non_null(packed);
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < sizeof(fp8[0]); j++) fp8[i][j] = (uint8_t)random_u32(&r);
        for (size_t j = 0; j < sizeof(mxfp4[0]); j++) mxfp4[i][j] = (uint8_t)random_u32(&r);
    }
    memset(packed, GUARD, sy_panels_bytes(SY_FP8, N, K));
    sy_panels_pack(packed, fp8, SY_FP8, N, K, 0, 1);
    for (size_t c = 0; c < N; c++) {
        for (size_t k = 0; k < K; k++)
            assert_int_equal(packed[k / 2 * 32 + c * 2 + k % 2], fp8[c][k]);
        assert_int_equal(packed[K / 2 * 32 + c * 2 + 1], 0); /* past the last input */
        for (size_t b = 0; b < 2; b++)
            assert_memory_equal(packed + 132 * 16 + b * 64 + c * 4, fp8[c] + K + b * 4, 4);
    }
    sy_panels_pack(packed, mxfp4, SY_MXFP4, N, K, 0, 1);
    for (size_t c = 0; c < N; c++) {
        for (size_t k = 0; k < 160; k++) {
            const int want = mxfp4[c][k / 2] >> (k % 2 * 4) & 15;
            const int byte = packed[k / 8 * 64 + c * 4 + k % 4];
            assert_int_equal(k % 8 < 4 ? byte & 15 : byte >> 4, want);
        }
        for (size_t b = 0; b < 5; b++)
            assert_int_equal(packed[5 * 256 + b * 16 + c], mxfp4[c][80 + b]);
    }
    free(packed);
}

/* Random bytes: codes and factors of every kind, and nibbles past a row's end. */
static void check_packing(sy_dtype dtype, uint32_t n, uint32_t k, test_random *r)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);
    uint8_t *source = malloc(n * row_bytes + 1), *back = malloc(n * row_bytes);
    float *row = malloc(k * sizeof(float));
    edge_buffer packed = edge_open(sy_panels_bytes(dtype, n, k), 0);
    const sy_panels w = {packed.data, dtype, n, k};
    const sy_panels padded = {packed.data, dtype, (n + 15) / 16 * 16, k};

    assert_true(source != NULL && back != NULL && row != NULL);
    for (size_t b = 0; b < n * row_bytes; b++) source[1 + b] = (uint8_t)random_u32(r);
    for (size_t panel = sy_panels_count(n); panel-- > 0;)
        sy_panels_pack(packed.data, source + 1, dtype, n, k, panel, panel + 1);
    edge_check(&packed);
    sy_panels_unpack(back, &w, 0, n);
    assert_memory_equal(back, source + 1, n * row_bytes);
    sy_panels_unpack(back, &w, n / 2, n);
    assert_memory_equal(back, source + 1 + n / 2 * row_bytes, (n - n / 2) * row_bytes);
    for (uint32_t c = 0; c < n; c++) {
        sy_dtype_widen(row, source + 1 + c * row_bytes, dtype, k);
        for (uint32_t e = 0; e < k; e++) {
            const float got = sy_panels_at(&w, c, e);
            check_bits(row + e, &got, 1, "sy_panels_at");
        }
    }
    for (uint32_t c = n; c < padded.n; c++)
        for (uint32_t e = 0; e < k; e++) assert_true(sy_panels_at(&padded, c, e) == 0.0f);
    free(source);
    free(back);
    free(row);
    edge_close(&packed);
}

static void packed_rows_come_back_bit_for_bit(void **state)
{
    static const uint32_t ns[] = {1, 15, 16, 17, 40};
    static const uint32_t ks[] = {1, 2, 3, 31, 32, 33, 100, 127, 128, 129, 131, 260};
    test_random r = {TEST_SEED};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(encoded); d++)
        for (size_t i = 0; i < SY_COUNT_OF(ns); i++)
            for (size_t j = 0; j < SY_COUNT_OF(ks); j++)
                check_packing(encoded[d], ns[i], ks[j], &r);
}

static void a_product_with_few_encoded_weights_is_small(void **state)
{
    (void)state;
    assert_true(sy_kernels_is_small(1, 512, 256, SY_FP8));    /* 130 KiB */
    assert_false(sy_kernels_is_small(1, 1024, 256, SY_FP8));  /* 260 KiB */
    assert_true(sy_kernels_is_small(1, 1024, 256, SY_MXFP4)); /* 136 KiB */
    assert_false(sy_kernels_is_small(8, 512, 256, SY_FP8));   /* 2^20 products */
}

static void encoded_weights_go_with_f32_activations(void **state)
{
    sy_precision p;
    sy_error err;

    (void)state;
    assert_int_equal(sy_precision_parse(&p, "fp8", "f32", &err), SY_OK);
    assert_true(p.weights == SY_FP8 && p.activations == SY_ACT_F32);
    assert_int_equal(sy_precision_parse(&p, "MXFP4", "f32", &err), SY_OK);
    assert_true(p.weights == SY_MXFP4 && p.activations == SY_ACT_F32);
    assert_int_equal(sy_precision_parse(&p, "fp8", "q8", &err), SY_EINVAL);
    assert_string_equal(err.message, "activations 'q8' do not go with weights 'fp8': leave out "
                                     "--weights, or use --activations f32");
    assert_int_equal(sy_precision_parse(&p, "mxfp4", "bf16", &err), SY_EINVAL);
    assert_string_equal(err.message, "activations 'bf16' do not go with weights 'mxfp4': leave out "
                                     "--weights, or use --activations f32");
    assert_int_equal(sy_precision_parse(&p, "fp9", "f32", &err), SY_EINVAL);
    assert_string_equal(err.message, "weights 'fp9': use as-stored, bf16, fp8, mxfp4, q8 or q4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panels_are_as_long_as_their_parts),
        cmocka_unit_test(bytes_lie_where_the_layout_says),
        cmocka_unit_test(packed_rows_come_back_bit_for_bit),
        cmocka_unit_test(a_product_with_few_encoded_weights_is_small),
        cmocka_unit_test(encoded_weights_go_with_f32_activations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
