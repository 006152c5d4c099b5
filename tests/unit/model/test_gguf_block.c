/* test_gguf_block.c - blocks as ggml's authors decode them (tests/golden/gguf/make_blocks.py), and
 * the sizes of rows. */
#include "checkpoint_files.h"
#include "sy_gguf_block.h"

#define GOLDEN    SY_SOURCE_DIR "/tests/golden/gguf/blocks.bin"
#define BYTES_MAX ((size_t)1 << 20)

static uint32_t load_u32(const char *at)
{
    uint32_t v;

    memcpy(&v, at, sizeof(v));
    return v;
}

static void expect_floats(const float *got, const char *want, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        float wanted;

        memcpy(&wanted, want + i * sizeof(wanted), sizeof(wanted));
        if (memcmp(&got[i], &wanted, sizeof(wanted)) != 0)
            fail_msg("%s, element %zu: got %a, wanted %a", name, i, (double)got[i], (double)wanted);
    }
}

static void every_type_decodes_to_the_floats_of_ggml(void **state)
{
    char *golden;
    size_t n_bytes;
    unsigned n_types = 0;
    sy_error err;

    (void)state;
    expect_ok(sy_file_read(&golden, &n_bytes, GOLDEN, BYTES_MAX, &err), &err);
    for (size_t at = 0; at < n_bytes; n_types++) {
        const uint32_t type = load_u32(golden + at), n = load_u32(golden + at + 4);
        const uint32_t raw_bytes = load_u32(golden + at + 8);
        const sy_gguf_block *block = sy_gguf_block_find(type);
        char *moved = malloc(raw_bytes + 1); /* at an odd address */
        float *got = calloc(n, sizeof(float));

        assert_non_null(block);
        assert_true(moved != NULL && got != NULL);
        expect_ok(sy_gguf_decodable(type, &err), &err);
        assert_int_equal(sy_gguf_row_bytes(type, n), raw_bytes);
        memcpy(moved + 1, golden + at + 12, raw_bytes);
        sy_gguf_decode(got, moved + 1, type, n);
        expect_floats(got, golden + at + 12 + raw_bytes, n, block->name);
        at += 12 + raw_bytes + n * sizeof(float);
        free(moved);
        free(got);
    }
    assert_int_equal(n_types, 10);
    free(golden);
}

/* Two blocks one after the other, worked out by hand from the layouts. */
static void q4_0_and_mxfp4_have_the_second_half_in_the_high_nibbles(void **state)
{
    uint8_t q4[36] = {0, 0x3c}, mx[34] = {128}; /* scales 1, and 2 */
    float out[64];

    (void)state;
    q4[2] = 0x1f;                             /* element 0: 15 - 8, element 16: 1 - 8 */
    q4[18] = 0, q4[19] = 0xc0, q4[20] = 0x80; /* scale -2 */
    sy_gguf_decode(out, q4, SY_GGUF_Q4_0, 64);
    assert_true(out[0] == 7.0f && out[16] == -7.0f && out[1] == -8.0f);
    assert_true(out[32] == 16.0f && out[48] == 0.0f);
    mx[1] = 0x9d; /* element 0: code 13 is -3, element 16: code 9 is -0.5; times 2 */
    mx[17] = 127, mx[18] = 0x07;
    sy_gguf_decode(out, mx, SY_GGUF_MXFP4, 64);
    assert_true(out[0] == -6.0f && out[16] == -1.0f && out[1] == 0.0f);
    assert_true(out[32] == 6.0f && out[48] == 0.0f);
}

static void rows_are_whole_blocks(void **state)
{
    (void)state;
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_F32, 7), 28);
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_Q8_0, 64), 68);
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_Q8_0, 65), 0);
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_Q4_K, 128), 0);
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_Q6_K, 512), 420);
    assert_int_equal(sy_gguf_row_bytes(5, 32), 0); /* a number no type has */
    assert_int_equal(sy_gguf_row_bytes(4711, 32), 0);
    assert_int_equal(sy_gguf_row_bytes(SY_GGUF_F32, UINT64_MAX / 2), 0); /* overflow */
    assert_null(sy_gguf_block_find(5));
}

static void a_type_that_is_not_decoded_is_named_with_those_that_are(void **state)
{
    sy_error err;

    (void)state;
    assert_int_equal(sy_gguf_decodable(11, &err), SY_EUNIMPLEMENTED);
    expect_text(err.message, "Q3_K is not supported; F32, F16, BF16, Q8_0, Q4_0");
    assert_int_equal(sy_gguf_decodable(4711, &err), SY_EUNIMPLEMENTED);
    expect_text(err.message, "unknown number");
    assert_int_equal(sy_gguf_decodable(24, NULL), SY_EUNIMPLEMENTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_decodes_to_the_floats_of_ggml),
        cmocka_unit_test(q4_0_and_mxfp4_have_the_second_half_in_the_high_nibbles),
        cmocka_unit_test(rows_are_whole_blocks),
        cmocka_unit_test(a_type_that_is_not_decoded_is_named_with_those_that_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
