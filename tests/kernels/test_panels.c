/* Packed weights hold what the source held, whoever packs which panel, and give it back; and
 * implementations are chosen by name. */
#include "kernel_cases.h"

static const sy_dtype dtypes[] = {SY_BF16, SY_F16, SY_F32};

static void expect_element(const sy_panels *w, const uint8_t *source, uint32_t n, uint32_t k)
{
    const size_t item = (size_t)n * w->k + k;
    float want;

    sy_dtype_widen(&want, source + item * sy_dtype_bytes(w->dtype), w->dtype, 1);
    const float got = sy_panels_at(w, n, k);
    if (memcmp(&want, &got, sizeof(want)) != 0)
        fail_msg("%s [%u,%u]: want %a, got %a", sy_dtype_name(w->dtype), n, k, (double)want,
                 (double)got);
}

/* The source lies at an odd address; panels are packed last to first, each by a call of its own. */
static void check_packing(sy_dtype dtype, uint32_t n, uint32_t k)
{
    const size_t source_bytes = (size_t)n * k * sy_dtype_bytes(dtype);
    const size_t bytes = sy_panels_bytes(dtype, n, k);
    uint8_t *memory = malloc(source_bytes + 1);
    edge_buffer packed = edge_open(bytes, (0 - bytes) % 64);
    const sy_panels w = {packed.data, dtype, n, k};
    test_random r = {TEST_SEED};

    assert_non_null(memory);
    uint8_t *source = memory + 1;
    for (size_t i = 0; i < source_bytes; i++) /* bytes that make no NaN of any type */
        source[i] = (uint8_t)(random_u32(&r) & 0x3f);
    for (size_t panel = sy_panels_count(n); panel > 0; panel--)
        sy_panels_pack(packed.data, source, dtype, n, k, panel - 1, panel);
    edge_check(&packed);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++) expect_element(&w, source, i, j);

    /* Columns that pad the last panel are zero. */
    const sy_panels padded = {packed.data, dtype, (uint32_t)sy_panels_count(n) * SY_PANEL, k};
    for (uint32_t i = n; i < padded.n; i++)
        for (uint32_t j = 0; j < k; j++) assert_true(sy_panels_at(&padded, i, j) == 0.0f);
    free(memory);
    edge_close(&packed);
}

/* Rows [begin, end) into a buffer that ends with them, at an odd address when that is possible. */
static void check_unpacking(const sy_panels *w, const uint8_t *source, uint32_t begin, uint32_t end)
{
    const size_t row_bytes = w->k * sy_dtype_bytes(w->dtype);
    edge_buffer rows = edge_open((end - begin) * row_bytes, 0);

    sy_panels_unpack(rows.data, w, begin, end);
    edge_check(&rows);
    if (memcmp(rows.data, source + begin * row_bytes, (end - begin) * row_bytes) != 0)
        fail_msg("%s [%u,%u]: rows %u to %u are not the source's", sy_dtype_name(w->dtype), w->n,
                 w->k, begin, end);
    edge_close(&rows);
}

static void unpacked_rows_are_the_source(void **state)
{
    static const uint32_t sizes[] = {1, 15, 16, 17, 33, 63, 64, 65, 130};
    test_random r = {TEST_SEED};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (size_t i = 0; i < SY_COUNT_OF(sizes) * SY_COUNT_OF(sizes); i++) {
            const uint32_t n = sizes[i / SY_COUNT_OF(sizes)], k = sizes[i % SY_COUNT_OF(sizes)];
            const size_t source_bytes = (size_t)n * k * sy_dtype_bytes(dtypes[d]);
            uint8_t *source = malloc(source_bytes);
            void *packed = aligned_alloc(64, (sy_panels_bytes(dtypes[d], n, k) + 63) / 64 * 64);
            const sy_panels w = {packed, dtypes[d], n, k};

            assert_true(source != NULL && packed != NULL);
            for (size_t b = 0; b < source_bytes; b++) source[b] = (uint8_t)random_u32(&r);
            sy_panels_pack(packed, source, dtypes[d], n, k, 0, sy_panels_count(n));
            check_unpacking(&w, source, 0, n);
            check_unpacking(&w, source, n, n);
            for (int part = 0; part < 8; part++) {
                const uint32_t begin = random_u32(&r) % n;
                check_unpacking(&w, source, begin, begin + 1 + random_u32(&r) % (n - begin));
            }
            free(source);
            free(packed);
        }
}

static void packed_elements_are_the_source(void **state)
{
    static const uint32_t sizes[] = {1, 2, 7, 15, 16, 17, 31, 33, 48, 65};

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++)
        for (size_t n = 0; n < SY_COUNT_OF(sizes); n++)
            for (size_t k = 0; k < SY_COUNT_OF(sizes); k++)
                check_packing(dtypes[d], sizes[n], sizes[k]);
}

static void a_line_of_bf16_holds_the_columns_in_pairs(void **state)
{
    _Alignas(64) uint16_t packed[16];
    uint16_t source[16];

    (void)state;
    for (uint16_t i = 0; i < 16; i++) source[i] = i;
    sy_panels_pack(packed, source, SY_BF16, 16, 1, 0, 1);
    for (uint16_t i = 0; i < 16; i++) assert_int_equal(packed[i], i / 2 + (i % 2) * 8);
}

static void sizes_that_do_not_fit_are_zero(void **state)
{
    (void)state;
    assert_int_equal(sy_panels_bytes(SY_F32, UINT32_MAX, UINT32_MAX), 0);
    assert_int_equal(sy_panels_bytes(SY_DTYPE_NONE, 16, 16), 0);
    assert_int_equal(sy_panels_bytes(SY_BF16, 17, 3), 2 * 3 * 16 * 2);
    assert_int_equal(sy_panels_count(UINT32_MAX), 1u << 28);
    assert_int_equal(sy_panels_count(0), 0);
}

static void implementations_are_found_by_name(void **state)
{
    const sy_kernels *k;
    sy_error err;

    (void)state;
    unsetenv("SWITCHYARD_KERNELS");
    assert_string_equal(sy_kernels_at(0)->name, "ref");
    assert_null(sy_kernels_find("sse9"));
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *at = sy_kernels_at(i);
        assert_ptr_equal(sy_kernels_find(at->name), at);
        assert_int_equal(sy_kernels_choose(&k, at->name, &err), SY_OK);
        assert_ptr_equal(k, at);
    }
    assert_int_equal(sy_kernels_choose(&k, NULL, &err), SY_OK);
    assert_ptr_equal(k, sy_kernels_at(sy_kernels_count() - 1));
    assert_int_equal(sy_kernels_choose(&k, "auto", &err), SY_OK);
    assert_ptr_equal(k, sy_kernels_best());
    assert_int_equal(sy_kernels_choose(&k, "sse9", &err), SY_EINVAL);
    assert_null(k);
    assert_non_null(strstr(err.message, "sse9"));
    assert_non_null(strstr(err.message, "ref"));
}

static void the_environment_chooses_when_nobody_else_does(void **state)
{
    const sy_kernels *k;
    sy_error err;

    (void)state;
    setenv("SWITCHYARD_KERNELS", "ref", 1);
    assert_string_equal(sy_kernels_best()->name, "ref");
    assert_int_equal(sy_kernels_choose(&k, "auto", &err), SY_OK);
    assert_string_equal(k->name, "ref");
    setenv("SWITCHYARD_KERNELS", "sse9", 1);
    assert_int_equal(sy_kernels_choose(&k, NULL, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "SWITCHYARD_KERNELS"));
    assert_int_equal(sy_kernels_choose(&k, "ref", &err), SY_OK);
    unsetenv("SWITCHYARD_KERNELS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_elements_are_the_source),
        cmocka_unit_test(unpacked_rows_are_the_source),
        cmocka_unit_test(a_line_of_bf16_holds_the_columns_in_pairs),
        cmocka_unit_test(sizes_that_do_not_fit_are_zero),
        cmocka_unit_test(implementations_are_found_by_name),
        cmocka_unit_test(the_environment_chooses_when_nobody_else_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
