/* test_balance_rounds.c - what a balancer keeps from one look to the next: counters of rows, and
 * who was away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "balance_load.h"
#include "balance_watch.h"

static void add(balance_sample *sample, const char *name, const char *json, int is_good)
{
    json_t *answer = json_loads(json, 0, NULL);

    assert_non_null(answer);
    assert_int_equal(balance_sample_add(sample, name, answer), is_good);
    json_decref(answer);
}

static balance_sample empty(int64_t at_us)
{
    return (balance_sample){.layers = 1, .experts = 3, .at_us = at_us};
}

static void assert_rows(const double *rows, double a, double b, double c)
{
    if (rows[0] != a || rows[1] != b || rows[2] != c)
        fail_msg("%g %g %g, expected %g %g %g", rows[0], rows[1], rows[2], a, b, c);
}

static void rows_are_counted_between_two_looks(void **state)
{
    balance_sample before = empty(1000), after = empty(2000);
    double rows[3] = {0};

    (void)state;
    add(&before, "x", "{\"layers\":1,\"experts\":3,\"since_us\":5,\"rows\":[10,20,30]}", 1);
    add(&after, "x", "{\"layers\":1,\"experts\":3,\"since_us\":5,\"rows\":[11,25,30]}", 1);
    /* One that began in between. */
    add(&after, "y", "{\"layers\":1,\"experts\":3,\"since_us\":1500,\"rows\":[0,0,7]}", 1);
    assert_true(balance_sample_difference(rows, &before, &after) == 13.0);
    assert_rows(rows, 1, 5, 7);
    memset(rows, 0, sizeof(rows));
    assert_true(balance_sample_difference(rows, NULL, &after) == 73.0);
    assert_rows(rows, 11, 25, 37);
    balance_sample_free(&before);
    balance_sample_free(&after);
}

static void an_aggregator_that_started_anew_counts_from_zero(void **state)
{
    balance_sample before = empty(1000), after = empty(2000);
    double rows[3] = {0};

    (void)state;
    add(&before, "x", "{\"layers\":1,\"experts\":3,\"since_us\":5,\"rows\":[10,20,30]}", 1);
    add(&after, "x", "{\"layers\":1,\"experts\":3,\"since_us\":1200,\"rows\":[12,1,0]}", 1);
    balance_sample_difference(rows, &before, &after);
    assert_rows(rows, 12, 1, 0);
    balance_sample_free(&before);
    balance_sample_free(&after);
}

/* Its hours before the first look would drown everything else. */
static void an_aggregator_that_was_not_heard_at_first_does_not_count(void **state)
{
    balance_sample before = empty(1000), after = empty(2000);
    double rows[3] = {0};

    (void)state;
    add(&after, "x", "{\"layers\":1,\"experts\":3,\"since_us\":5,\"rows\":[1000,1000,1000]}", 1);
    assert_true(balance_sample_difference(rows, &before, &after) == 0.0);
    balance_sample_free(&before);
    balance_sample_free(&after);
}

static void answers_of_another_shape_are_left_out(void **state)
{
    balance_sample sample = empty(1000);

    (void)state;
    add(&sample, "x", "{}", 0);
    add(&sample, "x", "{\"layers\":1,\"experts\":3,\"rows\":[1,2]}", 0);
    add(&sample, "x", "{\"layers\":3,\"experts\":1,\"rows\":[1,2,3]}", 0);
    add(&sample, "x", "{\"layers\":1,\"experts\":3,\"rows\":[-5,\"a\",3]}", 1);
    assert_int_equal(sample.item[0].rows[0], 0);
    assert_int_equal(sample.item[0].rows[1], 0);
    assert_int_equal(sample.item[0].rows[2], 3);
    balance_sample_free(&sample);
}

static void a_node_is_gone_after_a_while_without_lease(void **state)
{
    static const sy_placement_entry entry = {"*/*", 3, "a/cpu:0 b/cpu:0", 15};
    fact_process process = {.kind = SY_MEMBER_NODE, .lease.name = "a"};
    const cluster_facts facts = {.process = &process, .n = 1};
    const cluster_facts none = {.process = &process, .n = 0};
    balance_away away = {.dead_after_us = 100};
    sy_snapshot *snapshot;

    (void)state;
    assert_int_equal(
        sy_snapshot_build(&snapshot, NULL, &entry, 1, &(sy_grid){.layers = 1, .experts = 1}, NULL),
        SY_OK);
    assert_int_equal(balance_away_note(&away, snapshot, &facts, 1000), SY_OK);
    assert_false(balance_away_is_gone(&away, "b"));
    assert_int_equal(balance_away_note(&away, snapshot, &facts, 1099), SY_OK);
    assert_false(balance_away_is_gone(&away, "b"));
    assert_int_equal(balance_away_note(&away, snapshot, &none, 1100), SY_OK);
    assert_true(balance_away_is_gone(&away, "b"));
    assert_false(balance_away_is_gone(&away, "a"));
    /* a comes back for a moment, and its time begins again. */
    assert_int_equal(balance_away_note(&away, snapshot, &facts, 1150), SY_OK);
    assert_int_equal(balance_away_note(&away, snapshot, &none, 1210), SY_OK);
    assert_false(balance_away_is_gone(&away, "a"));
    balance_away_forget(&away);
    assert_int_equal(balance_away_note(&away, snapshot, &none, 1220), SY_OK);
    assert_false(balance_away_is_gone(&away, "b"));
    balance_away_forget(&away);
    sy_snapshot_unref(snapshot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_counted_between_two_looks),
        cmocka_unit_test(an_aggregator_that_started_anew_counts_from_zero),
        cmocka_unit_test(an_aggregator_that_was_not_heard_at_first_does_not_count),
        cmocka_unit_test(answers_of_another_shape_are_left_out),
        cmocka_unit_test(a_node_is_gone_after_a_while_without_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
