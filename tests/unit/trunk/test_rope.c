/* test_rope.c - frequencies of the published scalings against constants worked out in float64 from
 * the formulas, and against formulas written again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "sy_rope.h"

typedef struct expected {
    uint32_t i;
    double inv;
} expected;

static void check(const sy_model_desc *desc, const expected *want, size_t n)
{
    float inv[64];

    assert_true(desc->rotary_dim / 2 <= SY_COUNT_OF(inv));
    sy_rope_frequencies(inv, desc, 0);
    for (size_t w = 0; w < n; w++)
        if (!(fabs((double)inv[want[w].i] - want[w].inv) <= 2e-6 * want[w].inv))
            fail_msg("frequency %u: %.9g, expected %.9g", want[w].i, (double)inv[want[w].i],
                     want[w].inv);
}

static sy_model_desc yarn(float theta, float factor, float fast, float slow, int truncate)
{
    return (sy_model_desc){.rotary_dim = 64,
                           .rope_theta = theta,
                           .rope = {.type = SY_ROPE_YARN,
                                    .factor = factor,
                                    .original_context = 4096,
                                    .beta_fast = fast,
                                    .beta_slow = slow,
                                    .truncate = truncate,
                                    .attention_factor = 1.0f}};
}

static void yarn_of_gpt_oss(void **state)
{
    const sy_model_desc d = yarn(150000.0f, 32.0f, 32.0f, 1.0f, 0);
    static const expected want[] = {{0, 1},
                                    {8, 0.0508132748},
                                    {9, 0.0317056962},
                                    {12, 0.00679495949},
                                    {17, 1.29318701e-4},
                                    {18, 3.83088124e-5},
                                    {31, 3.02351143e-7}};

    (void)state;
    check(&d, want, SY_COUNT_OF(want));
}

static void yarn_of_deepseek_v3(void **state)
{
    const sy_model_desc d = yarn(1e4f, 40.0f, 32.0f, 1.0f, 1);
    static const expected want[] = {{0, 1},
                                    {10, 0.0562341325},
                                    {11, 0.0390069266},
                                    {16, 0.0055},
                                    {22, 1.77827941e-4},
                                    {23, 3.33380358e-5},
                                    {31, 3.33380358e-6}};

    (void)state;
    check(&d, want, SY_COUNT_OF(want));
}

/* Kimi-K2's ramp is one step: 19 is kept, 20 divided. */
static void yarn_with_one_beta_is_a_step(void **state)
{
    const sy_model_desc d = yarn(5e4f, 32.0f, 1.0f, 1.0f, 1);
    const expected want[] = {{19, pow(5e4, -38.0 / 64)}, {20, pow(5e4, -40.0 / 64) / 32}};

    (void)state;
    check(&d, want, SY_COUNT_OF(want));
}

static void plain_and_linear_frequencies(void **state)
{
    sy_model_desc d = {.rotary_dim = 128, .rope_theta = 1e6f, .rope = {.factor = 1.0f}};
    const expected plain[] = {{0, 1}, {1, pow(1e6, -2.0 / 128)}, {63, pow(1e6, -126.0 / 128)}};
    const expected linear[] = {{0, 0.25}, {63, pow(1e6, -126.0 / 128) / 4}};

    (void)state;
    check(&d, plain, SY_COUNT_OF(plain));
    d.rope = (sy_rope_desc){.type = SY_ROPE_LINEAR, .factor = 4.0f};
    check(&d, linear, SY_COUNT_OF(linear));
}

/* Llama 3.1's: what turns more than 4 times in 8192 tokens stays, less than once is divided. */
static void llama3_frequencies(void **state)
{
    const double two_pi = 6.283185307179586;
    const sy_model_desc d = {.rotary_dim = 128,
                             .rope_theta = 5e5f,
                             .rope = {.type = SY_ROPE_LLAMA3,
                                      .factor = 8.0f,
                                      .original_context = 8192,
                                      .low_freq = 1.0f,
                                      .high_freq = 4.0f}};
    unsigned n_kept = 0, n_between = 0, n_divided = 0;

    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        const double inv = pow(5e5, -2.0 * i / 128), turns = 8192 * inv / two_pi;
        const double t = (turns - 1) / 3;
        const expected want = {i, turns > 4 ? inv : turns < 1 ? inv / 8 : inv * ((1 - t) / 8 + t)};

        n_kept += turns > 4;
        n_divided += turns < 1;
        n_between += turns >= 1 && turns <= 4;
        check(&d, &want, 1);
    }
    assert_true(n_kept > 0 && n_between > 0 && n_divided > 0);
}

/* Phi-3.5's: short and long sequences have factors of their own. */
static void frequencies_of_two_lists(void **state)
{
    sy_model_desc d = {.rotary_dim = 128,
                       .rope_theta = 1e4f,
                       .rope = {.type = SY_ROPE_LONG, .original_context = 4096}};
    float inv[64];

    (void)state;
    for (uint32_t i = 0; i < 64; i++) {
        d.rope.short_factor[i] = 1.0f + (float)i / 64;
        d.rope.long_factor[i] = 1.0f + (float)i;
    }
    for (int is_long = 0; is_long < 2; is_long++) {
        sy_rope_frequencies(inv, &d, is_long);
        for (uint32_t i = 0; i < 64; i++) {
            const double want = pow(1e4, -2.0 * i / 128) / (1 + i / (is_long ? 1.0 : 64.0));
            if (!(fabs((double)inv[i] - want) <= 2e-6 * want))
                fail_msg("long %d, frequency %u: %.9g, expected %.9g", is_long, i, (double)inv[i],
                         want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yarn_of_gpt_oss),
        cmocka_unit_test(yarn_of_deepseek_v3),
        cmocka_unit_test(yarn_with_one_beta_is_a_step),
        cmocka_unit_test(plain_and_linear_frequencies),
        cmocka_unit_test(llama3_frequencies),
        cmocka_unit_test(frequencies_of_two_lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
