/* The one exp: close to the true one over a dense sweep, exact at the ends, the same bits in every
 * implementation. */
#include "kernel_cases.h"

#define MAX_ERROR_ULP 1.02 /* 1.013 over all floats in range; the sweep takes one in 101 */
#define SWEEP_STEP    101

static float from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void expect_exp(float x, float want)
{
    float in[17], got[17];

    for (size_t i = 0; i < 17; i++) in[i] = x;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        sy_kernels_at(i)->vexp(got, in, 17);
        for (size_t j = 0; j < 17; j++)
            if (memcmp(&got[j], &want, sizeof(want)) != 0)
                fail_msg("%s: exp(%a) is %a, want %a", sy_kernels_at(i)->name, (double)x,
                         (double)got[j], (double)want);
    }
}

static void check_error(float x, float y)
{
    const double want = exp((double)x);
    int exponent;

    frexp(want, &exponent);
    const double error_ulp = fabs(y - want) / ldexp(1.0, exponent - 24);
    if (!(error_ulp <= MAX_ERROR_ULP))
        fail_msg("exp(%a) = %a is off by %.3f ulp", (double)x, (double)y, error_ulp);
}

/* Bit patterns from `first` to `last`, by sign, in chunks; every implementation against ref, ref
 * against libm. */
static void sweep(uint32_t first, uint32_t last, uint32_t step)
{
    enum { CHUNK = 1000 };
    static float x[CHUNK], want[CHUNK], got[CHUNK];
    uint32_t bits = first;

    while (bits <= last) {
        size_t n = 0;
        for (; n < CHUNK && bits <= last; n++, bits += step) x[n] = from_bits(bits);
        sy_kernels_at(0)->vexp(want, x, n);
        for (size_t i = 0; i < n; i++) check_error(x[i], want[i]);
        for (size_t i = 1; i < sy_kernels_count(); i++) {
            sy_kernels_at(i)->vexp(got, x, n);
            check_bits(want, got, n, sy_kernels_at(i)->name);
        }
    }
}

static void exp_is_within_an_ulp_and_the_same_everywhere(void **state)
{
    (void)state;
    sweep(0x00000000, 0x42b17217, SWEEP_STEP); /* 0 to 88.7228 */
    sweep(0x80000000, 0xc2aeac4f, SWEEP_STEP); /* -0 to -87.3365 */
    sweep(0x42b17000, 0x42b17217, 1);          /* the ends, float by float */
    sweep(0xc2aea000, 0xc2aeac4f, 1);
}

static void exp_at_the_ends(void **state)
{
    (void)state;
    expect_exp(0.0f, 1.0f);
    expect_exp(-0.0f, 1.0f);
    expect_exp(1e-45f, 1.0f);
    expect_exp(from_bits(0x42b17218), INFINITY);
    expect_exp(89.0f, INFINITY);
    expect_exp(3e38f, INFINITY);
    expect_exp(INFINITY, INFINITY);
    expect_exp(from_bits(0xc2aeac50), 0.0f); /* a denormal result: flushed */
    expect_exp(-87.34f, 0.0f);
    expect_exp(-90.0f, 0.0f);
    expect_exp(-3e38f, 0.0f);
    expect_exp(-INFINITY, 0.0f);
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        float y[20], x[20];
        for (size_t j = 0; j < 20; j++)
            x[j] = j % 2 ? from_bits(0x7fc00000u + (uint32_t)j * 77u) : 1.0f;
        sy_kernels_at(i)->vexp(y, x, 20);
        for (size_t j = 0; j < 20; j++) assert_int_equal(isnan(y[j]) != 0, j % 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_an_ulp_and_the_same_everywhere),
        cmocka_unit_test(exp_at_the_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
