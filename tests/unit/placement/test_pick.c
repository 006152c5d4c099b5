/* test_pick.c - which target a request goes to, and how requests spread. Everything is a function
 * of the request's number, so the counts below are the same in every run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_placement.h"

#define N_REQUESTS 20000

static sy_target_list parse(const char *text)
{
    sy_target_list list;

    assert_int_equal(sy_targets_parse(&list, text, strlen(text), NULL), SY_OK);
    return list;
}

/* How many of N_REQUESTS go to each target. */
static void count_picks(uint32_t *count, const sy_target_list *list, const sy_candidate *candidate,
                        uint32_t layer, uint32_t expert)
{
    memset(count, 0, SY_TARGETS_MAX * sizeof(*count));
    for (uint64_t request = 0; request < N_REQUESTS; request++) {
        const int i = sy_placement_pick(list, candidate, request, layer, expert);

        assert_in_range(i, 0, list->n - 1);
        count[i]++;
    }
}

/* Within four standard deviations of a binomial count: sqrt(20000 * p * (1 - p)) <= 71. */
static void assert_share(uint32_t count, uint32_t percent)
{
    const int want = (int)(N_REQUESTS / 100 * percent);
    const int off = (int)count - want;

    if (off < -283 || off > 283) fail_msg("%u picks, expected about %d", count, want);
}

static void shares_are_kept_for_every_expert(void **state)
{
    const sy_target_list list = parse("a/cpu:0@70 b/cpu:0@25 c/cpu:0@5 d/cpu:0@shadow");
    const sy_candidate all[SY_TARGETS_MAX] = {{1, 0}, {1, 9}, {1, 99}, {1, 0}};
    uint32_t count[SY_TARGETS_MAX];

    (void)state;
    for (uint32_t expert = 0; expert < 4; expert++) {
        count_picks(count, &list, all, expert % 2, expert);
        assert_share(count[0], 70);
        assert_share(count[1], 25);
        assert_share(count[2], 5);
        assert_int_equal(count[3], 0); /* a shadow never computes for a request */
    }
}

static void a_share_falls_to_the_usable_ones_and_the_others_stay(void **state)
{
    const sy_target_list list = parse("a/cpu:0@50 b/cpu:0@30 c/cpu:0@20 d/cpu:0@shadow");
    const sy_candidate all[SY_TARGETS_MAX] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
    const sy_candidate without_a[SY_TARGETS_MAX] = {{0, 0}, {1, 0}, {1, 0}, {1, 0}};
    const sy_candidate none[SY_TARGETS_MAX] = {{0, 0}, {0, 0}, {0, 0}, {1, 0}};
    uint32_t count[SY_TARGETS_MAX];

    (void)state;
    count_picks(count, &list, without_a, 3, 17);
    assert_int_equal(count[0], 0);
    assert_share(count[1], 60);
    assert_share(count[2], 40);
    for (uint64_t request = 0; request < N_REQUESTS; request++) {
        const int before = sy_placement_pick(&list, all, request, 3, 17);
        const int after = sy_placement_pick(&list, without_a, request, 3, 17);

        if (before != 0) assert_int_equal(after, before);
        assert_int_equal(sy_placement_pick(&list, none, request, 3, 17), -1);
    }
}

/* "!" is about weights; who checks them says "usable" or not. */
static void the_mark_for_any_weights_moves_nobody(void **state)
{
    const sy_target_list plain = parse("a/cpu:0@95 b/cpu:0@5 c/cpu:0@shadow");
    const sy_target_list marked = parse("a/cpu:0@95! b/cpu:0@5! c/cpu:0@shadow!");
    const sy_candidate all[SY_TARGETS_MAX] = {{1, 0}, {1, 0}, {1, 0}};

    (void)state;
    for (uint64_t request = 0; request < N_REQUESTS; request++) {
        assert_int_equal(sy_placement_pick(&marked, all, request, 3, 17),
                         sy_placement_pick(&plain, all, request, 3, 17));
    }
}

static void the_same_question_has_the_same_answer(void **state)
{
    const sy_target_list list = parse("a/cpu:0@50 b/cpu:0@50");
    const sy_candidate all[SY_TARGETS_MAX] = {{1, 5}, {1, 0}};
    uint32_t n_differ = 0;

    (void)state;
    for (uint64_t request = 0; request < 1000; request++) {
        const int first = sy_placement_pick(&list, all, request, 1, 2);

        assert_int_equal(sy_placement_pick(&list, all, request, 1, 2), first);
        n_differ += sy_placement_pick(&list, all, request, 2, 1) != first;
    }
    /* Layers and experts are told apart, so one request is not on one side for all of them. */
    assert_in_range(n_differ, 400, 600);
}

static void without_shares_the_less_busy_of_two_is_chosen(void **state)
{
    const sy_target_list list = parse("a/cpu:0 b/cpu:0 c/cpu:0 d/cpu:0@shadow");
    const sy_candidate busy[SY_TARGETS_MAX] = {{1, 3}, {1, 2}, {1, 1}, {1, 0}};
    const sy_candidate idle[SY_TARGETS_MAX] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
    const sy_candidate one[SY_TARGETS_MAX] = {{0, 0}, {1, 1000}, {0, 0}, {1, 0}};
    const sy_candidate none[SY_TARGETS_MAX] = {{0, 0}, {0, 0}, {0, 0}, {1, 0}};
    uint32_t count[SY_TARGETS_MAX];

    (void)state;
    count_picks(count, &list, busy, 0, 0);
    assert_int_equal(count[0], 0); /* the busiest loses against either */
    assert_int_equal(count[3], 0);
    assert_true(count[2] > count[1] * 3 / 2); /* two thirds and one third */
    count_picks(count, &list, idle, 0, 0);
    for (int i = 0; i < 3; i++) assert_in_range(count[i], 6384, 6950);
    count_picks(count, &list, one, 0, 0);
    assert_int_equal(count[1], N_REQUESTS);
    assert_int_equal(sy_placement_pick(&list, none, 1, 0, 0), -1);
}

static void an_empty_list_has_nobody(void **state)
{
    const sy_target_list list = {0};
    const sy_candidate all[SY_TARGETS_MAX] = {{1, 0}};

    (void)state;
    assert_int_equal(sy_placement_pick(&list, all, 1, 0, 0), -1);
}

/* ---- the placement to begin with ---- */

typedef struct spread_log {
    size_t n;
    size_t fail_at; /* SIZE_MAX: never */
    char field[64][16];
    char value[64][32];
} spread_log;

static sy_status put(void *arg, const char *field, const char *value)
{
    spread_log *log = arg;

    if (log->n == log->fail_at) return SY_EUNAVAILABLE;
    assert_in_range(log->n, 0, 63);
    snprintf(log->field[log->n], sizeof(log->field[0]), "%s", field);
    snprintf(log->value[log->n], sizeof(log->value[0]), "%s", value);
    log->n++;
    return SY_OK;
}

#define SPREAD_GRID (&(const sy_grid){.layers = 3, .experts = 6})

static void experts_are_spread_evenly_over_the_devices(void **state)
{
    static const char *const devices[] = {"a/cpu:0", "a/cpu:1", "b/cpu:0"};
    spread_log log = {.fail_at = SIZE_MAX};

    (void)state;
    assert_int_equal(sy_placement_spread(SPREAD_GRID, devices, 3, put, &log), SY_OK);
    assert_int_equal(log.n, 18);
    for (size_t i = 0; i < log.n; i++) {
        char field[32];

        snprintf(field, sizeof(field), "%zu/%zu", i / 6, i % 6);
        assert_string_equal(log.field[i], field);
        assert_string_equal(log.value[i], devices[(i % 6 + i / 6) % 3]);
    }
}

static void a_spread_stops_at_the_first_failure(void **state)
{
    static const char *const devices[] = {"a/cpu:0"};
    spread_log log = {.fail_at = 4};

    (void)state;
    assert_int_equal(sy_placement_spread(SPREAD_GRID, devices, 1, put, &log), SY_EUNAVAILABLE);
    assert_int_equal(log.n, 4);
}

static void a_spread_over_no_or_odd_devices_is_refused(void **state)
{
    static const char *const odd[][1] = {
        {"a"}, {""}, {"a/cpu:0@100"}, {"a/cpu:0!"}, {"a/cpu:0 b/cpu:0"}};
    spread_log log = {.fail_at = SIZE_MAX};

    (void)state;
    assert_int_equal(sy_placement_spread(SPREAD_GRID, NULL, 0, put, &log), SY_EINVAL);
    for (size_t i = 0; i < SY_COUNT_OF(odd); i++) {
        assert_int_equal(sy_placement_spread(SPREAD_GRID, odd[i], 1, put, &log), SY_EINVAL);
    }
    assert_int_equal(log.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_kept_for_every_expert),
        cmocka_unit_test(a_share_falls_to_the_usable_ones_and_the_others_stay),
        cmocka_unit_test(the_mark_for_any_weights_moves_nobody),
        cmocka_unit_test(the_same_question_has_the_same_answer),
        cmocka_unit_test(without_shares_the_less_busy_of_two_is_chosen),
        cmocka_unit_test(an_empty_list_has_nobody),
        cmocka_unit_test(experts_are_spread_evenly_over_the_devices),
        cmocka_unit_test(a_spread_stops_at_the_first_failure),
        cmocka_unit_test(a_spread_over_no_or_odd_devices_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
