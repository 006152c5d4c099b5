/* test_dtype.c - conversions of all 65536 values, and rounding at every boundary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "sy_dtype.h"

static uint32_t bits_of(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

/* The definition of IEEE 754 binary16, in double. */
static double f16_by_definition(uint16_t v)
{
    const int exponent = (v >> 10) & 0x1f;
    const int fraction = v & 0x3ff;
    const double sign = v & 0x8000 ? -1.0 : 1.0;

    if (exponent == 0x1f) return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

static void all_f16_values_widen_as_the_standard_says(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        const float got = sy_f16_to_f32((uint16_t)v);
        const double want = f16_by_definition((uint16_t)v);

        if (isnan(want) ? !isnan(got) : bits_of(got) != bits_of((float)want)) {
            fail_msg("f16 %04x: got %a, want %a", v, (double)got, want);
        }
    }
}

static void all_f16_values_come_back(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        const uint32_t is_nan = (v & 0x7fff) > 0x7c00;
        const uint32_t want = is_nan ? v | 0x200 : v;
        const uint32_t got = sy_f32_to_f16(sy_f16_to_f32((uint16_t)v));

        if (got != want) fail_msg("f16 %04x came back as %04x, want %04x", v, got, want);
    }
}

static void all_bf16_values_come_back(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        const uint32_t is_nan = (v & 0x7fff) > 0x7f80;
        const uint32_t want = is_nan ? v | 0x40 : v;
        const uint32_t got = sy_f32_to_bf16(sy_bf16_to_f32((uint16_t)v));

        if (got != want) fail_msg("bf16 %04x came back as %04x, want %04x", v, got, want);
        assert_int_equal(bits_of(sy_bf16_to_f32((uint16_t)v)), v << 16);
    }
}

/* Between each two neighbours of a format: the middle goes to the even one, the f32 before it down,
 * the one after it up. */
static void check_rounding(uint16_t (*narrow)(float), float (*widen)(uint16_t), uint32_t n_finite)
{
    for (uint32_t v = 0; v + 1 < n_finite; v++) {
        const double low = (double)widen((uint16_t)v);
        const double high = (double)widen((uint16_t)(v + 1));
        const float middle = (float)((low + high) / 2); /* exact: one bit more than the format */
        const uint32_t even = v + (v & 1);

        for (uint32_t sign = 0; sign < 2; sign++) {
            const float s = sign != 0 ? -1.0f : 1.0f;
            const uint32_t bit = sign << 15;

            if (narrow(s * middle) != (bit | even) ||
                narrow(s * nextafterf(middle, 0)) != (bit | v) ||
                narrow(s * nextafterf(middle, INFINITY)) != (bit | (v + 1))) {
                fail_msg("around %a after %04x: got %04x %04x %04x", (double)(s * middle), v,
                         narrow(s * nextafterf(middle, 0)), narrow(s * middle),
                         narrow(s * nextafterf(middle, INFINITY)));
            }
        }
    }
}

static void f16_rounds_to_nearest_even_everywhere(void **state)
{
    (void)state;
    check_rounding(sy_f32_to_f16, sy_f16_to_f32, 0x7c00);
}

static void bf16_rounds_to_nearest_even_everywhere(void **state)
{
    (void)state;
    /* From 0x80 on: below are f32's own subnormals, whose middles are exact as well. */
    check_rounding(sy_f32_to_bf16, sy_bf16_to_f32, 0x7f80);
}

static void the_ends_of_f16_go_to_zero_and_infinity(void **state)
{
    (void)state;
    assert_int_equal(sy_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(sy_f32_to_f16(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(sy_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(sy_f32_to_f16(65536.0f), 0x7c00);
    assert_int_equal(sy_f32_to_f16(-3e38f), 0xfc00);
    assert_int_equal(sy_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(sy_f32_to_f16(0x1p-25f), 0x0000);
    assert_int_equal(sy_f32_to_f16(nextafterf(0x1p-25f, 1)), 0x0001);
    assert_int_equal(sy_f32_to_f16(-0x1p-26f), 0x8000);
    assert_int_equal(sy_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(sy_f32_to_f16(float_of(1)), 0x0000);
}

static void the_largest_floats_become_infinite_in_bf16(void **state)
{
    (void)state;
    assert_int_equal(sy_f32_to_bf16(float_of(0x7f7fffff)), 0x7f80);
    assert_int_equal(sy_f32_to_bf16(float_of(0xff7fffff)), 0xff80);
    assert_int_equal(sy_f32_to_bf16(float_of(0x7f7f7fff)), 0x7f7f);
}

static void a_nan_stays_a_nan(void **state)
{
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(nans); i++) {
        assert_true(isnan(sy_f16_to_f32(sy_f32_to_f16(float_of(nans[i])))));
        assert_true(isnan(sy_bf16_to_f32(sy_f32_to_bf16(float_of(nans[i])))));
    }
}

static void widening_works_at_any_alignment(void **state)
{
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 31, 33, 255};
    unsigned char in[4 * 256 + 3];
    float out[257];

    (void)state;
    for (size_t i = 0; i < sizeof(in); i++) in[i] = (unsigned char)(i * 37 + 11);
    for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
        for (size_t shift = 0; shift < 4; shift++) {
            for (int dtype = SY_F32; dtype <= SY_F16; dtype++) {
                out[sizes[s]] = 42.0f;
                sy_dtype_widen(out, in + shift, (sy_dtype)dtype, sizes[s]);
                assert_true(out[sizes[s]] == 42.0f);
                for (size_t i = 0; i < sizes[s]; i++) {
                    const unsigned char *at = in + shift + i * sy_dtype_bytes((sy_dtype)dtype);
                    uint16_t half;
                    uint32_t want;

                    memcpy(&half, at, sizeof(half));
                    memcpy(&want, at, sizeof(want));
                    if (dtype == SY_BF16) want = bits_of(sy_bf16_to_f32(half));
                    if (dtype == SY_F16) want = bits_of(sy_f16_to_f32(half));
                    assert_int_equal(bits_of(out[i]), want);
                }
            }
        }
    }
}

static void names_are_read_in_every_spelling(void **state)
{
    (void)state;
    assert_int_equal(sy_dtype_from_name("BF16"), SY_BF16);
    assert_int_equal(sy_dtype_from_name("bfloat16"), SY_BF16);
    assert_int_equal(sy_dtype_from_name("F16"), SY_F16);
    assert_int_equal(sy_dtype_from_name("float16"), SY_F16);
    assert_int_equal(sy_dtype_from_name("f32"), SY_F32);
    assert_int_equal(sy_dtype_from_name("Float32"), SY_F32);
    assert_int_equal(sy_dtype_from_name("none"), SY_DTYPE_NONE);
    assert_int_equal(sy_dtype_from_name(""), SY_DTYPE_NONE);
    assert_int_equal(sy_dtype_from_name("F64"), SY_DTYPE_NONE);
    assert_string_equal(sy_dtype_name(SY_BF16), "bf16");
    assert_string_equal(sy_dtype_name((sy_dtype)77), "none");
    assert_string_equal(sy_dtype_name(SY_Q8), "q8");
    assert_string_equal(sy_dtype_name(SY_Q4), "q4");
    assert_int_equal(sy_dtype_from_name("q8"), SY_DTYPE_NONE); /* no file's tensor is one */
    assert_int_equal(sy_dtype_from_name("Q4"), SY_DTYPE_NONE);
    assert_string_equal(sy_dtype_name(SY_FP8), "fp8");
    assert_string_equal(sy_dtype_name(SY_MXFP4), "mxfp4");
    assert_int_equal(sy_dtype_from_name("fp8"), SY_DTYPE_NONE);
    assert_int_equal(sy_dtype_from_name("MXFP4"), SY_DTYPE_NONE);
    assert_int_equal(sy_dtype_bytes(SY_F32), 4);
    assert_int_equal(sy_dtype_bytes((sy_dtype)77), 0);
    assert_int_equal(sy_dtype_bytes(SY_Q8), 0);
    assert_int_equal(sy_dtype_bytes(SY_FP8), 0);
    assert_int_equal(sy_dtype_bytes(SY_MXFP4), 0);
}

static void rows_of_blocks_end_with_a_whole_block(void **state)
{
    (void)state;
    assert_int_equal(sy_dtype_row_bytes(SY_F32, 3), 12);
    assert_int_equal(sy_dtype_row_bytes(SY_BF16, 3), 6);
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, 32), 34);
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, 33), 68);
    assert_int_equal(sy_dtype_row_bytes(SY_Q4, 31), 18);
    assert_int_equal(sy_dtype_row_bytes(SY_Q4, 0), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_DTYPE_NONE, 5), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_F32, SIZE_MAX / 2), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_Q8, SIZE_MAX), 0);
    assert_true(sy_dtype_is_quant(SY_Q8) && sy_dtype_is_quant(SY_Q4));
    assert_false(sy_dtype_is_quant(SY_F16) || sy_dtype_is_quant(SY_DTYPE_NONE));
}

static void encoded_rows_have_their_factors_at_the_end(void **state)
{
    (void)state;
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, 0), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, 1), 1 + 4);
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, 128), 128 + 4);
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, 129), 129 + 8);
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, SIZE_MAX), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_FP8, SIZE_MAX - SIZE_MAX / 64), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_MXFP4, 0), 0);
    assert_int_equal(sy_dtype_row_bytes(SY_MXFP4, 1), 17);
    assert_int_equal(sy_dtype_row_bytes(SY_MXFP4, 96), 51);
    assert_int_equal(sy_dtype_row_bytes(SY_MXFP4, 97), 68);
    assert_true(sy_dtype_is_encoded(SY_FP8) && sy_dtype_is_encoded(SY_MXFP4));
    assert_false(sy_dtype_is_encoded(SY_Q8) || sy_dtype_is_encoded(SY_BF16) ||
                 sy_dtype_is_encoded((sy_dtype)8));
    assert_false(sy_dtype_is_quant(SY_FP8) || sy_dtype_is_quant(SY_MXFP4));
}

/* By the definition of the formats, written down by hand. */
static void blocks_widen_to_scale_times_integer(void **state)
{
    unsigned char q8[68] = {0}, q4[36] = {0};
    const uint16_t half = 0x3800, minus_two = 0xc000; /* 0.5, -2 */
    float out[34];

    (void)state;
    memcpy(q8, &half, sizeof(half));
    memcpy(q8 + 34, &minus_two, sizeof(minus_two));
    q8[2] = 0x80;       /* -128 */
    q8[2 + 31] = 0x7f;  /* 127 */
    q8[34 + 2 + 1] = 3; /* element 33 */
    sy_dtype_widen(out, q8, SY_Q8, 34);
    assert_true(out[0] == -64.0f && out[1] == 0.0f && out[31] == 63.5f && out[33] == -6.0f);
    memcpy(q4, &half, sizeof(half));
    memcpy(q4 + 18, &minus_two, sizeof(minus_two));
    q4[2] = 0xf0;      /* element 0 is -8, element 16 is 7 */
    q4[18 + 3] = 0x09; /* element 33 is 1 */
    out[33] = 42.0f;
    sy_dtype_widen(out, q4, SY_Q4, 33);
    assert_true(out[0] == -4.0f && out[16] == 3.5f && out[33] == 42.0f);
    sy_dtype_widen(out, q4, SY_Q4, 34);
    assert_true(out[33] == -2.0f);
}

enum { FP8_ROW = 130 }; /* elements: a block and two more */

/* The rows lie at an odd address. */
static void set_factor(unsigned char *row, size_t block, float factor)
{
    memcpy(row + FP8_ROW + block * sizeof(factor), &factor, sizeof(factor));
}

static void fp8_widens_to_factor_times_code(void **state)
{
    unsigned char memory[1 + FP8_ROW + 8] = {0}, *row = memory + 1;
    float out[FP8_ROW + 1];

    (void)state;
    set_factor(row, 0, 0.5f);
    set_factor(row, 1, -3.0f);
    row[0] = 0x38;   /* 1 */
    row[1] = 0x7e;   /* 448 */
    row[2] = 0x81;   /* -2^-9 */
    row[3] = 0x7f;   /* NaN */
    row[127] = 0xc4; /* -3 */
    row[128] = 0x40; /* 2 */
    row[129] = 0x80; /* -0 */
    out[FP8_ROW] = 42.0f;
    sy_dtype_widen(out, row, SY_FP8, FP8_ROW);
    assert_true(out[0] == 0.5f && out[1] == 224.0f && out[2] == -0x1p-10f && isnan(out[3]));
    assert_true(out[4] == 0.0f && out[127] == -1.5f && out[128] == -6.0f && out[FP8_ROW] == 42.0f);
    assert_int_equal(bits_of(out[129]), 0); /* -3 * -0 */
    set_factor(row, 0, 0.1f);
    set_factor(row, 1, NAN);
    sy_dtype_widen(out, row, SY_FP8, FP8_ROW);
    assert_true(out[127] == 0.1f * -3.0f && isnan(out[128]) && isnan(out[129]));
}

/* Every code with every scale, against ldexp: denormals, infinities and NaNs among them. */
static void mxfp4_widens_exactly(void **state)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    unsigned char memory[1 + 2 * 17] = {0}, *row = memory + 1; /* 33 elements */
    float out[34];

    (void)state;
    for (unsigned i = 0; i < 16; i++) row[i / 2] |= (unsigned char)(i << (i % 2 * 4));
    row[15] = 0x10; /* element 31: 0.5 */
    row[16] = 0xf2; /* element 32: 1 */
    row[33] = 128;  /* 2^1 */
    for (unsigned b = 0; b < 256; b++) {
        row[32] = (unsigned char)b;
        out[33] = 42.0f;
        sy_dtype_widen(out, row, SY_MXFP4, 33);
        for (unsigned i = 0; i < 16; i++) {
            const double sign = i < 8 ? 1.0 : -1.0;
            const float want = b == 255 ? NAN : (float)(sign * ldexp(e2m1[i & 7], (int)b - 127));
            if (isnan(want) ? !isnan(out[i]) : bits_of(out[i]) != bits_of(want))
                fail_msg("code %u, scale %u: got %a, want %a", i, b, (double)out[i], (double)want);
        }
        assert_true(b == 255 || out[31] == ldexpf(0.5f, (int)b - 127));
        assert_true(out[32] == 2.0f && out[33] == 42.0f);
    }
}

static void expect_finite(int want, const unsigned char *row, sy_dtype dtype, size_t n)
{
    const int got = sy_dtype_all_finite(row, dtype, n);

    if (got != want) fail_msg("%s, %zu: finite is %d, want %d", sy_dtype_name(dtype), n, got, want);
}

static void an_fp8_row_is_finite_when_its_elements_are(void **state)
{
    unsigned char memory[1 + FP8_ROW + 8] = {0}, *row = memory + 1;
    const float most = 3.4028234e38f;

    (void)state;
    memset(row, 0xfe, FP8_ROW); /* -448 */
    set_factor(row, 0, 1.0f);
    set_factor(row, 1, most / 448.0f);
    expect_finite(1, row, SY_FP8, FP8_ROW);
    row[5] = 0x7f;
    expect_finite(0, row, SY_FP8, FP8_ROW);
    row[5] = 0;
    row[129] = 0xff;
    expect_finite(0, row, SY_FP8, FP8_ROW);
    row[129] = 0x7e;
    set_factor(row, 1, most / 400.0f);
    expect_finite(0, row, SY_FP8, FP8_ROW);
    row[128] = row[129] = 0xfb; /* -352: the factor is as large, but no product is */
    expect_finite(1, row, SY_FP8, FP8_ROW);
    set_factor(row, 1, INFINITY);
    expect_finite(0, row, SY_FP8, FP8_ROW);
    row[128] = row[129] = 0; /* times infinity: NaN */
    expect_finite(0, row, SY_FP8, FP8_ROW);
    set_factor(row, 1, NAN);
    expect_finite(0, row, SY_FP8, FP8_ROW);
}

static void an_mxfp4_row_is_finite_when_its_elements_are(void **state)
{
    unsigned char memory[1 + 2 * 17] = {0}, *row = memory + 1; /* 33 elements */

    (void)state;
    memset(row, 0x77, 32); /* all 6 */
    row[32] = row[33] = 252;
    expect_finite(1, row, SY_MXFP4, 33);
    row[32] = 253;
    expect_finite(0, row, SY_MXFP4, 33);
    memset(row, 0x53, 16); /* 1.5 and 3 */
    expect_finite(1, row, SY_MXFP4, 33);
    row[33] = 254;
    row[16] = 0x73; /* element 32 is 1.5; the 6 past the end is no element */
    expect_finite(1, row, SY_MXFP4, 33);
    expect_finite(0, row, SY_MXFP4, 34);
    row[16] = 0xc3; /* neither is a -2 */
    expect_finite(1, row, SY_MXFP4, 33);
    row[33] = 255;
    expect_finite(0, row, SY_MXFP4, 33);
    row[33] = 127;
    row[32] = 255;
    memset(row, 0, 16);
    expect_finite(0, row, SY_MXFP4, 33);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_f16_values_widen_as_the_standard_says),
        cmocka_unit_test(all_f16_values_come_back),
        cmocka_unit_test(all_bf16_values_come_back),
        cmocka_unit_test(f16_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(bf16_rounds_to_nearest_even_everywhere),
        cmocka_unit_test(the_ends_of_f16_go_to_zero_and_infinity),
        cmocka_unit_test(the_largest_floats_become_infinite_in_bf16),
        cmocka_unit_test(a_nan_stays_a_nan),
        cmocka_unit_test(widening_works_at_any_alignment),
        cmocka_unit_test(names_are_read_in_every_spelling),
        cmocka_unit_test(rows_of_blocks_end_with_a_whole_block),
        cmocka_unit_test(blocks_widen_to_scale_times_integer),
        cmocka_unit_test(encoded_rows_have_their_factors_at_the_end),
        cmocka_unit_test(fp8_widens_to_factor_times_code),
        cmocka_unit_test(mxfp4_widens_exactly),
        cmocka_unit_test(an_fp8_row_is_finite_when_its_elements_are),
        cmocka_unit_test(an_mxfp4_row_is_finite_when_its_elements_are),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
