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
    assert_int_equal(sy_dtype_bytes(SY_F32), 4);
    assert_int_equal(sy_dtype_bytes((sy_dtype)77), 0);
    assert_int_equal(sy_dtype_bytes(SY_Q8), 0);
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
