/* test_sim_custody.c - thousands of simulated clusters in which no expert is lost, no request is
 * left without a holder and everything ends where placement says; and as many with a planted
 * mistake, which must be found. SY_LONG=N in the environment, or --long (20), tries N times as many
 * seeds. A failure names its seed: --seed N runs that one alone and prints its last events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "effort.h"
#include "sim.h"
#include "sy_base.h"

#define SEEDS (ONLY_ACCESSES ? 400 : 2000)
#define BUG_SEEDS                                                                   \
    2000 /* a planted mistake is found within so many; usually within a few hundred \
          */

static uint32_t times = 1;

/* The same run again, for its last events. */
static void print_trace(uint64_t seed, uint32_t bugs)
{
    sim_report report;
    uint32_t i;

    sim_run(&report, seed, bugs, 1);
    i = report.n_trace > SIM_TRACE_LINES ? report.n_trace - SIM_TRACE_LINES : 0;
    for (; i < report.n_trace; i++) printf("%s\n", report.trace[i % SIM_TRACE_LINES]);
    printf("%10.3f ms  %s\n", (double)report.at_us / 1000,
           report.violation[0] != '\0' ? report.violation : "no violation");
}

static void nobody_is_lost_whatever_the_operator_does(void **state)
{
    sim_report sum = {0};

    (void)state;
    for (uint64_t seed = 1; seed <= (uint64_t)SEEDS * times; seed++) {
        sim_report report;

        sim_run(&report, seed, 0, 0);
        if (report.violation[0] != '\0') {
            print_trace(seed, 0);
            fail_msg("seed %llu: %s", (unsigned long long)seed, report.violation);
        }
        sum.n_edits += report.n_edits;
        sum.n_refusals += report.n_refusals;
        sum.n_failed_loads += report.n_failed_loads;
        sum.n_crashes += report.n_crashes;
        sum.n_unloads += report.n_unloads;
        sum.n_unloads_for_room += report.n_unloads_for_room;
        sum.n_answers_of_no_use += report.n_answers_of_no_use;
        sum.n_second_tries += report.n_second_tries;
        sum.n_waits += report.n_waits;
        sum.n_lingering_served += report.n_lingering_served;
        sum.n_requests += report.n_requests;
        sum.n_excused += report.n_excused;
    }
    printf("%u edits, %u refused readings, %u failed loads, %u crashes, %u unloads (%u for room), "
           "%u answers of no use; %u requests, %u excused, %u answered by lingering shards, "
           "%u second tries, %u waits\n",
           sum.n_edits, sum.n_refusals, sum.n_failed_loads, sum.n_crashes, sum.n_unloads,
           sum.n_unloads_for_room, sum.n_answers_of_no_use, sum.n_requests, sum.n_excused,
           sum.n_lingering_served, sum.n_second_tries, sum.n_waits);
    /* Otherwise the seeds no longer visit what this is about. */
    assert_true(sum.n_refusals > SEEDS);
    assert_true(sum.n_failed_loads > SEEDS);
    assert_true(sum.n_crashes > SEEDS / 10);
    assert_true(sum.n_unloads > 5 * SEEDS);
    assert_true(sum.n_unloads_for_room > SEEDS / 10);
    assert_true(sum.n_answers_of_no_use > SEEDS);
    assert_true(sum.n_lingering_served > SEEDS);
    assert_true(sum.n_second_tries > SEEDS / 10);
    assert_true(sum.n_waits > SEEDS / 10);
    assert_true(sum.n_excused < sum.n_requests / 10);
}

/* Some seed shows a violation that says `says`. */
static void assert_found(uint32_t bugs, const char *says)
{
    sim_report report;

    for (uint64_t seed = 1; seed <= BUG_SEEDS; seed++) {
        sim_run(&report, seed, bugs, 0);
        if (strstr(report.violation, says) != NULL) {
            printf("found with seed %llu\n", (unsigned long long)seed);
            return;
        }
    }
    fail_msg("%d seeds do not show '%s'", BUG_SEEDS, says);
}

static void an_answer_to_an_old_question_would_lose_an_expert(void **state)
{
    (void)state;
    assert_found(SIM_OLD_ANSWERS, "nobody has shard");
}

/* The hash and the state are two locks on one door: under one placement, whoever is wanted is
 * resident, and who is resident is wanted by some placement and asks somebody before he lets go. */
static void an_answer_from_a_node_that_lets_go_itself_would_lose_an_expert(void **state)
{
    (void)state;
    assert_found(SIM_IGNORES_HASH | SIM_TAKES_LINGERING, "nobody has shard");
}

static void unloading_by_the_clock_would_lose_an_expert(void **state)
{
    (void)state;
    assert_found(SIM_BY_THE_CLOCK, "nobody has shard");
}

static void making_room_without_asking_would_lose_an_expert(void **state)
{
    (void)state;
    assert_found(SIM_EVICTS, "nobody has shard");
}

static void aggregators_that_use_wanted_targets_only_would_fail_requests(void **state)
{
    (void)state;
    assert_found(SIM_WANTED_ONLY, "found no holder: its grace is over");
}

/* "n0" becomes "n1 n0@shadow": n0 has the only copy until n1 has loaded. */
static void aggregators_that_never_use_shadows_would_fail_requests(void **state)
{
    (void)state;
    assert_found(SIM_SPURNS_SHADOWS, "found no holder: its grace is over");
}

static void aggregators_that_try_once_would_fail_requests(void **state)
{
    (void)state;
    assert_found(SIM_ONE_TRY, "found no holder: the one it asked has none");
}

static void what_is_never_unloaded_would_be_there_at_the_end(void **state)
{
    (void)state;
    assert_found(SIM_NEVER_ASKS, "at the end shard");
}

static void a_seed_always_gives_the_same_run(void **state)
{
    sim_report one;
    sim_report two;

    (void)state;
    sim_run(&one, 7, 0, 1);
    sim_run(&two, 7, 0, 1);
    assert_memory_equal(&one, &two, sizeof(one));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_lost_whatever_the_operator_does),
        cmocka_unit_test(an_answer_to_an_old_question_would_lose_an_expert),
        cmocka_unit_test(an_answer_from_a_node_that_lets_go_itself_would_lose_an_expert),
        cmocka_unit_test(unloading_by_the_clock_would_lose_an_expert),
        cmocka_unit_test(making_room_without_asking_would_lose_an_expert),
        cmocka_unit_test(aggregators_that_use_wanted_targets_only_would_fail_requests),
        cmocka_unit_test(aggregators_that_never_use_shadows_would_fail_requests),
        cmocka_unit_test(aggregators_that_try_once_would_fail_requests),
        cmocka_unit_test(what_is_never_unloaded_would_be_there_at_the_end),
        cmocka_unit_test(a_seed_always_gives_the_same_run),
    };
    const char *factor = getenv("SY_LONG");

    if (factor != NULL && atoi(factor) > 0) times = (uint32_t)atoi(factor);
    if (argc > 1 && strcmp(argv[1], "--long") == 0) times = 20;
    if (argc > 2 && strcmp(argv[1], "--seed") == 0) {
        print_trace(strtoull(argv[2], NULL, 10), argc > 3 ? (uint32_t)atoi(argv[3]) : 0);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
