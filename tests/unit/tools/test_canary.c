/* test_canary.c - when a canary goes on, and when it goes back; its state in Redis; what is counted
 * from aggregators' answers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "canary_meter.h"
#include "canary_run.h"

static const canary_limits usual = {.max_errors = 0,
                                    .max_latency_ratio = 2,
                                    .max_diff = 0,
                                    .latency_slack_us = 100,
                                    .min_rows = 100,
                                    .for_us = 10000000,
                                    .patience_us = 60000000};

static void assert_verdict(canary_phase phase, const canary_counts *counts, int64_t elapsed_us,
                           canary_verdict wanted, const char *says)
{
    char why[400];
    const canary_verdict is = canary_judge(why, sizeof(why), phase, &usual, counts, elapsed_us);

    if (is != wanted) fail_msg("verdict %d, not %d: '%s'", (int)is, (int)wanted, why);
    if (strstr(why, says) == NULL) fail_msg("'%s' does not say '%s'", why, says);
}

/* ---- verdicts ---- */

static void it_is_loaded_when_every_aggregator_may_use_it(void **state)
{
    canary_counts c = {.n_aggregators = 2, .n_wanted = 2, .n_resident = 1};

    (void)state;
    assert_verdict(CANARY_LOAD, &c, 1000000, CANARY_GOES_ON, "1 of 2");
    assert_verdict(CANARY_LOAD, &c, 61000000, CANARY_BACK, "1 of 2");
    c.n_resident = 2;
    assert_verdict(CANARY_LOAD, &c, 1000000, CANARY_NEXT, "");
    c.n_silent = 1;
    assert_verdict(CANARY_LOAD, &c, 1000000, CANARY_GOES_ON, "2 of 2");
    snprintf(c.failed, sizeof(c.failed), "no memory there");
    assert_verdict(CANARY_LOAD, &c, 1000000, CANARY_BACK, "no memory there");
}

static void nobody_to_ask_is_not_loaded(void **state)
{
    const canary_counts c = {0};

    (void)state;
    assert_verdict(CANARY_LOAD, &c, 1000000, CANARY_GOES_ON, "0 of 0");
}

static void a_refusal_goes_back_with_its_words(void **state)
{
    canary_counts c = {.n_aggregators = 1, .n_wanted = 1};

    (void)state;
    snprintf(c.refused, sizeof(c.refused), "other weights");
    assert_verdict(CANARY_LOAD, &c, 0, CANARY_BACK, "refused: other weights");
    assert_verdict(CANARY_SHARE, &c, 0, CANARY_BACK, "refused: other weights");
}

static void rows_that_differ_go_back(void **state)
{
    canary_counts c = {.n_aggregators = 1, .compared_rows = 40};

    (void)state;
    assert_verdict(CANARY_SHADOW, &c, 0, CANARY_GOES_ON, "40 of 100");
    c.differing_rows = 1; /* by nothing that a float can show: -0 and 0, say */
    assert_verdict(CANARY_SHADOW, &c, 0, CANARY_BACK, "differ");
    c.max_diff = 0.25;
    assert_verdict(CANARY_SHADOW, &c, 0, CANARY_BACK, "1 of 40 compared rows differ, by 0.25");
    c.differing_rows = 0;
    c.compared_rows = 100;
    assert_verdict(CANARY_SHADOW, &c, 0, CANARY_NEXT, "");
}

static void differences_that_are_allowed_are_none(void **state)
{
    canary_limits limits = usual;
    canary_counts c = {
        .n_aggregators = 1, .compared_rows = 200, .differing_rows = 7, .max_diff = 0.001};
    char why[400];

    (void)state;
    limits.max_diff = 0.01;
    assert_int_equal(canary_judge(why, sizeof(why), CANARY_SHADOW, &limits, &c, 0), CANARY_NEXT);
    c.max_diff = (double)INFINITY;
    assert_int_equal(canary_judge(why, sizeof(why), CANARY_SHADOW, &limits, &c, 0), CANARY_BACK);
}

static void errors_and_slowness_go_back(void **state)
{
    canary_counts c = {.n_aggregators = 1,
                       .messages = 100,
                       .latency_us = 100 * 600,
                       .old_messages = 100,
                       .old_latency_us = 100 * 251};

    (void)state;
    assert_verdict(CANARY_SHARE, &c, 1000000, CANARY_GOES_ON, "1 s of 10 s");
    c.latency_us = 100 * 603;
    assert_verdict(CANARY_SHARE, &c, 1000000, CANARY_BACK, "603 us");
    c.messages = 99; /* too few to say */
    assert_verdict(CANARY_SHARE, &c, 1000000, CANARY_GOES_ON, "");
    c.errors = 1;
    assert_verdict(CANARY_SHARE, &c, 1000000, CANARY_BACK, "1 errors");
}

static void without_traffic_it_is_not_promoted(void **state)
{
    canary_counts c = {.n_aggregators = 1};

    (void)state;
    assert_verdict(CANARY_SHARE, &c, 9000000, CANARY_GOES_ON, "");
    assert_verdict(CANARY_SHARE, &c, 11000000, CANARY_GOES_ON, "0 of 100");
    assert_verdict(CANARY_SHARE, &c, 71000000, CANARY_BACK, "too little traffic");
    assert_verdict(CANARY_SHADOW, &c, 61000000, CANARY_BACK, "too little traffic");
    c.rows = 100;
    assert_verdict(CANARY_SHARE, &c, 9000000, CANARY_GOES_ON, "");
    assert_verdict(CANARY_SHARE, &c, 10000000, CANARY_NEXT, "");
}

static void while_no_aggregator_answers_nothing_is_decided(void **state)
{
    canary_counts c = {.rows = 1000, .compared_rows = 1000, .n_silent = 1};

    (void)state;
    assert_verdict(CANARY_SHADOW, &c, 0, CANARY_GOES_ON, "no aggregator answers");
    assert_verdict(CANARY_SHARE, &c, 20000000, CANARY_GOES_ON, "no aggregator answers");
    assert_verdict(CANARY_SHARE, &c, 71000000, CANARY_BACK, "no aggregator answers");
}

static void times_are_read_with_their_unit(void **state)
{
    static const struct {
        const char *text;
        int64_t us;
    } good[] = {{"90", 90000000},     {"3s", 3000000},   {"10m", 600000000},
                {"0.5h", 1800000000}, {"500ms", 500000}, {"1d", 86400000000}};
    static const char *const bad[] = {"", "m", "-1s", "3x", "3 s", "inf", "nan", "1e99", "400d"};
    int64_t us;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(good); i++) {
        assert_true(canary_duration(&us, good[i].text));
        assert_int_equal(us, good[i].us);
    }
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        if (canary_duration(&us, bad[i])) fail_msg("'%s' was taken", bad[i]);
    }
}

/* ---- state ---- */

static canary_field fields[] = {{"3/17", "a/cpu:0", "a/cpu:0", "a/cpu:0 b/cpu:0@shadow"},
                                {"3/18", NULL, "a/cpu:0 c/cpu:0", NULL}};

static canary_state a_state(void)
{
    return (canary_state){.name = "3/17,3/18",
                          .to = "b/cpu:0!",
                          .field = fields,
                          .n = 2,
                          .phase = CANARY_SHARE,
                          .limits = usual,
                          .no_shadow = 1,
                          .share = 5,
                          .started_us = 1,
                          .phase_us = 2,
                          .beat_us = 3,
                          .author = "me@here",
                          .wish = "abort"};
}

static void a_state_comes_back_as_it_was(void **state)
{
    const canary_state was = a_state();
    char *text = canary_state_text(&was);
    canary_state is;
    sy_arena arena;

    (void)state;
    assert_non_null(text);
    sy_arena_init(&arena, 1 << 20);
    assert_int_equal(canary_state_parse(&is, &arena, was.name, text, strlen(text)), SY_OK);
    assert_string_equal(is.to, was.to);
    assert_int_equal(is.n, 2);
    assert_string_equal(is.field[0].value, "a/cpu:0 b/cpu:0@shadow");
    assert_null(is.field[1].from);
    assert_string_equal(is.field[1].old, "a/cpu:0 c/cpu:0");
    assert_null(is.field[1].value);
    assert_int_equal(is.phase, CANARY_SHARE);
    assert_int_equal(is.limits.for_us, usual.for_us);
    assert_int_equal(is.limits.latency_slack_us, 100);
    assert_true(is.limits.max_latency_ratio == 2);
    assert_int_equal(is.no_shadow, 1);
    assert_string_equal(is.wish, "abort");
    assert_int_equal(canary_is_watched(&is, 3 + CANARY_DEAD_US - 1), 1);
    assert_int_equal(canary_is_watched(&is, 3 + CANARY_DEAD_US), 0);
    sy_arena_free(&arena);
    free(text);
}

static void a_state_that_is_cut_or_altered_is_refused(void **state)
{
    const canary_state was = a_state();
    char *text = canary_state_text(&was);
    const size_t n = strlen(text);
    canary_state is;
    sy_arena arena;

    (void)state;
    sy_arena_init(&arena, 1 << 24);
    for (size_t len = 0; len < n; len++) {
        assert_int_equal(canary_state_parse(&is, &arena, was.name, text, len), SY_EINVAL);
    }
    assert_int_equal(canary_state_parse(&is, &arena, "x", "{}", 2), SY_EINVAL);
    *strstr(text, "share\",\"started") = 'S'; /* of the phase */
    assert_int_equal(canary_state_parse(&is, &arena, was.name, text, n), SY_EINVAL);
    sy_arena_free(&arena);
    free(text);
}

static void each_phase_has_its_value(void **state)
{
    const canary_state s = a_state();
    char value[SY_PLACEMENT_VALUE_MAX];

    (void)state;
    assert_int_equal(canary_value(value, &s, &fields[1], CANARY_LOAD, NULL), SY_OK);
    assert_string_equal(value, "a/cpu:0 c/cpu:0 b/cpu:0@shadow!");
    assert_int_equal(canary_value(value, &s, &fields[1], CANARY_SHARE, NULL), SY_OK);
    assert_string_equal(value, "a/cpu:0@48 c/cpu:0@47 b/cpu:0@5!");
}

/* ---- counting ---- */

static canary_counts look(canary_meter *meter, const char *aggregator, int rows, int errors,
                          int old_messages, const char *refused)
{
    char json[1024];
    canary_counts counts;

    snprintf(json, sizeof(json),
             "{\"targets\":["
             "{\"field\":\"3/17\",\"target\":\"b/cpu:0\",\"shadow\":true,\"state\":\"resident\","
             "\"refused\":\"%s\",\"messages\":%d,\"rows\":%d,\"errors\":%d,\"latency_us\":%d,"
             "\"compared_rows\":%d,\"differing_rows\":0,\"max_diff\":0.5},"
             "{\"field\":\"3/17\",\"target\":\"a/cpu:0\",\"state\":\"resident\",\"messages\":%d},"
             "{\"field\":\"1/1\",\"target\":\"b/cpu:0\",\"state\":\"resident\",\"rows\":99}]}",
             refused, rows, rows, errors, 10 * rows, rows, old_messages);
    canary_meter_look_begin(meter);
    assert_int_equal(canary_meter_take(meter, aggregator, json), SY_OK);
    canary_meter_look_end(&counts, meter);
    return counts;
}

static void steps_are_counted_and_not_what_was_before(void **state)
{
    const canary_state s = a_state();
    canary_meter *meter;
    canary_counts c;

    (void)state;
    assert_int_equal(canary_meter_open(&meter, &s, NULL), SY_OK);
    canary_meter_begin(meter);
    c = look(meter, "agg-0", 5, 0, 1000, "");
    assert_int_equal(c.rows, 5); /* it is new, so all of them are the canary's */
    assert_int_equal(c.old_messages, 0);
    assert_int_equal(c.n_wanted, 2);
    assert_int_equal(c.n_resident, 1);
    c = look(meter, "agg-0", 8, 1, 1010, "");
    assert_int_equal(c.rows, 8);
    assert_int_equal(c.errors, 1);
    assert_int_equal(c.old_messages, 10);
    c = look(meter, "agg-1", 3, 0, 7, ""); /* another process counts for itself */
    assert_int_equal(c.rows, 11);
    c = look(meter, "agg-0", 2, 0, 4, ""); /* it was started again */
    assert_int_equal(c.rows, 13);
    assert_int_equal(c.old_messages, 14);
    assert_int_equal(c.errors, 1);
    assert_true(c.max_diff == 0); /* no row differs, whatever the figure says */
    canary_meter_begin(meter);    /* the next phase */
    c = look(meter, "agg-0", 2, 0, 4, "");
    assert_int_equal(c.rows, 0);
    canary_meter_close(meter);
}

static void a_refusal_counts_only_when_it_stays(void **state)
{
    const canary_state s = a_state();
    canary_meter *meter;

    (void)state;
    assert_int_equal(canary_meter_open(&meter, &s, NULL), SY_OK);
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "weights").refused, "");
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "weights").refused, "");
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "").refused, "");
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "weights").refused, "");
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "weights").refused, "");
    assert_string_equal(look(meter, "agg-0", 0, 0, 0, "weights").refused, "weights");
    canary_meter_close(meter);
}

static void odd_answers_are_refused_or_counted_as_nothing(void **state)
{
    static const char *const odd[] = {"", "[]", "{}", "{\"targets\":4}", "nonsense"};
    const canary_state s = a_state();
    canary_meter *meter;
    canary_counts c;

    (void)state;
    assert_int_equal(canary_meter_open(&meter, &s, NULL), SY_OK);
    canary_meter_look_begin(meter);
    for (size_t i = 0; i < SY_COUNT_OF(odd); i++) {
        assert_int_equal(canary_meter_take(meter, "agg-0", odd[i]), SY_EDATALOSS);
    }
    assert_int_equal(canary_meter_take(meter, "agg-0",
                                       "{\"targets\":[4,null,{},{\"field\":5},{\"field\":\"3/17\","
                                       "\"target\":\"b/cpu:0\",\"rows\":-5,\"errors\":\"x\"}]}"),
                     SY_OK);
    canary_meter_look_end(&c, meter);
    assert_int_equal(c.rows, 0);
    assert_int_equal(c.errors, 0);
    canary_meter_close(meter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_loaded_when_every_aggregator_may_use_it),
        cmocka_unit_test(nobody_to_ask_is_not_loaded),
        cmocka_unit_test(a_refusal_goes_back_with_its_words),
        cmocka_unit_test(rows_that_differ_go_back),
        cmocka_unit_test(differences_that_are_allowed_are_none),
        cmocka_unit_test(errors_and_slowness_go_back),
        cmocka_unit_test(without_traffic_it_is_not_promoted),
        cmocka_unit_test(while_no_aggregator_answers_nothing_is_decided),
        cmocka_unit_test(times_are_read_with_their_unit),
        cmocka_unit_test(a_state_comes_back_as_it_was),
        cmocka_unit_test(a_state_that_is_cut_or_altered_is_refused),
        cmocka_unit_test(each_phase_has_its_value),
        cmocka_unit_test(steps_are_counted_and_not_what_was_before),
        cmocka_unit_test(a_refusal_counts_only_when_it_stays),
        cmocka_unit_test(odd_answers_are_refused_or_counted_as_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
