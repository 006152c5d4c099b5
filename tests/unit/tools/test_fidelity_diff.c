/* test_fidelity_diff.c - differences of logits whose answers are known on paper. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fidelity_diff.h"

#define CLOSE 1e-7 /* logits are floats */

static void expect_near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within)) fail_msg("%.17g where %.17g was due", got, want);
}

static void equal_logits_differ_by_exactly_nothing(void **state)
{
    float logits[1001];
    fidelity_row row;

    (void)state;
    for (int i = 0; i < 1001; i++) logits[i] = sinf((float)i) * 40;
    fidelity_row_compare(&row, logits, logits, 1001);
    assert_true(row.is_finite && row.same_argmax);
    assert_true(row.relative_max == 0 && row.absolute_mean == 0 && row.kl_nats == 0);
}

static void two_distributions_have_the_divergence_of_the_formula(void **state)
{
    const float want[] = {0, logf(3)}, got[] = {0, 0}; /* 1/4 and 3/4; 1/2 each */
    fidelity_row row;

    (void)state;
    fidelity_row_compare(&row, want, got, 2);
    expect_near(row.kl_nats, 0.25 * log(0.25 / 0.5) + 0.75 * log(0.75 / 0.5), CLOSE);
    expect_near(row.relative_max, 1, CLOSE);
    expect_near(row.absolute_mean, log(3) / 2, CLOSE);
    assert_false(row.same_argmax); /* equal logits: the lower id */
    fidelity_row_compare(&row, got, want, 2);
    expect_near(row.kl_nats, 0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75), CLOSE);
    expect_near(row.relative_max, 1, CLOSE); /* of got, for want is 0 throughout */
}

static void a_constant_on_all_logits_moves_no_probability(void **state)
{
    const float want[] = {-2, 7, 1.5f, 0}, got[] = {2, 11, 5.5f, 4};
    fidelity_row row;

    (void)state;
    fidelity_row_compare(&row, want, got, 4);
    expect_near(row.kl_nats, 0, 1e-14);
    expect_near(row.relative_max, 4.0 / 7, CLOSE);
    expect_near(row.absolute_mean, 4, CLOSE);
    assert_true(row.same_argmax);
}

static void logits_far_apart_overflow_nothing(void **state)
{
    const float want[] = {3e38f, -3e38f}, got[] = {-3e38f, 3e38f};
    fidelity_row row;

    (void)state;
    fidelity_row_compare(&row, want, got, 2);
    assert_true(row.is_finite && isfinite(row.kl_nats));
    expect_near(row.relative_max, 2, CLOSE);
    expect_near(row.kl_nats / 6e38, 1, 1e-6);
}

static void rows_without_numbers_are_counted_and_left_out(void **state)
{
    const float want[] = {1, 2}, bad[][2] = {{NAN, 2}, {1, INFINITY}}, good[] = {1, 4};
    fidelity_row row[3];
    fidelity_diff diff = {0};

    (void)state;
    fidelity_row_compare(&row[0], want, bad[0], 2);
    fidelity_row_compare(&row[1], bad[1], want, 2);
    fidelity_row_compare(&row[2], want, good, 2);
    assert_false(row[0].is_finite || row[1].is_finite);
    fidelity_diff_add(&diff, row, 3);
    assert_int_equal(diff.n_rows, 1);
    assert_int_equal(diff.n_not_finite, 2);
    expect_near(diff.relative_max, 1, CLOSE);
}

static void positions_add_up_to_the_worst_and_the_mean(void **state)
{
    static const fidelity_row row[] = {{0.5, 1, 0.25, 1, 1}, {0.1, 2, 4, 0, 1}, {0.2, 6, 1, 1, 1}};
    fidelity_diff whole = {0}, pieces = {0};

    (void)state;
    fidelity_diff_add(&whole, row, 3);
    expect_near(whole.relative_max, 0.5, 0);
    expect_near(whole.absolute_mean, 3, 1e-15);
    expect_near(whole.kl_mean_nats, 1.75, 1e-15);
    expect_near(whole.kl_max_nats, 4, 0);
    expect_near(fidelity_diff_same_argmax(&whole), 2.0 / 3, 1e-15);
    for (size_t i = 0; i < 3; i++) fidelity_diff_add(&pieces, &row[i], 1);
    assert_memory_equal(&pieces, &whole, sizeof(whole));
    expect_near(fidelity_diff_same_argmax(&(fidelity_diff){0}), 0, 0);
}

static void experts_count_whatever_their_order(void **state)
{
    static const uint16_t want[] = {3, 9, 0, 1}, got[] = {9, 3, 1, 7};
    fidelity_diff diff = {0};

    (void)state;
    expect_near(fidelity_diff_same_experts(&diff), 1, 0); /* a model without any has them all */
    fidelity_diff_add_experts(&diff, want, got, 2, 2);
    assert_int_equal(diff.n_experts, 4);
    expect_near(fidelity_diff_same_experts(&diff), 0.75, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_logits_differ_by_exactly_nothing),
        cmocka_unit_test(two_distributions_have_the_divergence_of_the_formula),
        cmocka_unit_test(a_constant_on_all_logits_moves_no_probability),
        cmocka_unit_test(logits_far_apart_overflow_nothing),
        cmocka_unit_test(rows_without_numbers_are_counted_and_left_out),
        cmocka_unit_test(positions_add_up_to_the_worst_and_the_mean),
        cmocka_unit_test(experts_count_whatever_their_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
