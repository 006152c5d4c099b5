/* test_compare.c - what an edit would cost, as plan and the balancer say it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sy_placement.h"

#define LAYERS      2
#define EXPERTS     3
#define SHARD_BYTES ((uint64_t)3 << 32)

/* "FIELD=VALUE" texts, ended by NULL. */
static sy_snapshot *build(const sy_snapshot *previous, const char *const *hash, uint32_t layers)
{
    sy_placement_entry entry[32];
    sy_snapshot *snapshot;
    size_t n = 0;

    for (; hash[n] != NULL; n++) {
        const char *equals = strchr(hash[n], '=');

        entry[n] = (sy_placement_entry){hash[n], (size_t)(equals - hash[n]), equals + 1,
                                        strlen(equals + 1)};
    }
    assert_int_equal(sy_snapshot_build(&snapshot, previous, entry, n,
                                       &(sy_grid){.layers = layers, .experts = EXPERTS}, NULL),
                     SY_OK);
    return snapshot;
}

#define BUILD(previous, ...) build((previous), (const char *const[]){__VA_ARGS__, NULL}, LAYERS)

typedef struct change_log {
    size_t n;
    char line[16][160];
} change_log;

static const char *text_of(char *out, size_t cap, const sy_target_list *list)
{
    snprintf(out, cap, "none");
    if (list != NULL) sy_targets_format(out, cap, list);
    return out;
}

static void write_down(void *arg, uint32_t layer, uint32_t expert, const sy_target_list *before,
                       const sy_target_list *after)
{
    change_log *log = arg;
    char a[64];
    char b[64];

    assert_in_range(log->n, 0, SY_COUNT_OF(log->line) - 1);
    snprintf(log->line[log->n++], sizeof(log->line[0]), "%u/%u: %s -> %s", layer, expert,
             text_of(a, sizeof(a), before), text_of(b, sizeof(b), after));
}

static void assert_cost(const sy_placement_cost *cost, uint32_t n_experts, uint32_t n_loads,
                        uint32_t n_drops)
{
    if (cost->n_experts != n_experts || cost->n_loads != n_loads || cost->n_drops != n_drops) {
        fail_msg("%u experts, %u loads, %u drops; expected %u, %u, %u", cost->n_experts,
                 cost->n_loads, cost->n_drops, n_experts, n_loads, n_drops);
    }
    assert_true(cost->load_bytes == n_loads * SHARD_BYTES);
}

static void assert_change(const sy_snapshot *before, const sy_snapshot *after, uint32_t n_experts,
                          uint32_t n_loads, uint32_t n_drops)
{
    sy_placement_cost cost;

    assert_int_equal(sy_placement_compare(&cost, before, after, SHARD_BYTES, NULL, NULL), SY_OK);
    assert_cost(&cost, n_experts, n_loads, n_drops);
}

static void every_expert_that_differs_is_told_in_order(void **state)
{
    sy_snapshot *before = BUILD(NULL, "*/*=a/cpu:0", "1/2=b/cpu:0 c/cpu:0");
    sy_snapshot *after =
        BUILD(before, "*/*=a/cpu:0", "0/1=b/cpu:0", "1/0=a/cpu:0 b/cpu:0", "1/2=c/cpu:0");
    sy_placement_cost cost;
    change_log log = {0};

    (void)state;
    assert_int_equal(sy_placement_compare(&cost, before, after, SHARD_BYTES, write_down, &log),
                     SY_OK);
    assert_cost(&cost, 3, 2, 2);
    assert_int_equal(log.n, 3);
    assert_string_equal(log.line[0], "0/1: a/cpu:0 -> b/cpu:0");
    assert_string_equal(log.line[1], "1/0: a/cpu:0 -> a/cpu:0 b/cpu:0");
    assert_string_equal(log.line[2], "1/2: b/cpu:0 c/cpu:0 -> c/cpu:0");
    assert_change(after, before, 3, 2, 2); /* the way back */
    assert_change(after, after, 0, 0, 0);
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
}

static void shares_shadows_and_marks_load_nothing_but_differ(void **state)
{
    sy_snapshot *before = BUILD(NULL, "*/*=a/cpu:0 b/cpu:0");
    sy_snapshot *after =
        BUILD(before, "*/*=a/cpu:0 b/cpu:0", "0/0=a/cpu:0@95 b/cpu:0@5", "0/1=b/cpu:0 a/cpu:0",
              "0/2=a/cpu:0 b/cpu:0!", "1/0=a/cpu:0 b/cpu:0@shadow",
              "1/1=a/cpu:0 b/cpu:1"); /* another device is another place */
    sy_snapshot *shadow = BUILD(after, "*/*=a/cpu:0 b/cpu:0 c/cpu:0@shadow");

    (void)state;
    assert_change(before, after, 5, 1, 1);
    assert_change(before, shadow, 6, 6, 0); /* a shadow's shard is loaded, too */
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
    sy_snapshot_unref(shadow);
}

static void snapshots_that_share_nothing_compare_by_content(void **state)
{
    sy_snapshot *one = BUILD(NULL, "*/*=a/cpu:0", "1/1=b/cpu:0");
    sy_snapshot *two = BUILD(NULL, "1/1= b/cpu:0", "0/*=a/cpu:0", "1/0=a/cpu:0", "1/2=a/cpu:0");

    (void)state;
    assert_change(one, two, 0, 0, 0);
    sy_snapshot_unref(one);
    sy_snapshot_unref(two);
}

static void from_nothing_everything_is_loaded(void **state)
{
    sy_snapshot *part = BUILD(NULL, "0/*=a/cpu:0 b/cpu:0", "1/1=a/cpu:0");
    sy_snapshot *empty = build(NULL, (const char *const[]){NULL}, LAYERS);
    sy_placement_cost cost;
    change_log log = {0};

    (void)state;
    assert_change(NULL, part, 4, 7, 0);
    assert_change(empty, part, 4, 7, 0);
    assert_change(part, empty, 4, 0, 7);
    assert_int_equal(sy_placement_compare(&cost, empty, part, 1, write_down, &log), SY_OK);
    assert_string_equal(log.line[3], "1/1: none -> a/cpu:0");
    sy_snapshot_unref(part);
    sy_snapshot_unref(empty);
}

static void placements_of_other_models_are_not_compared(void **state)
{
    sy_snapshot *one = BUILD(NULL, "*/*=a/cpu:0");
    sy_snapshot *other = build(NULL, (const char *const[]){"*/*=a/cpu:0", NULL}, LAYERS + 1);
    sy_placement_cost cost;

    (void)state;
    assert_int_equal(sy_placement_compare(&cost, one, other, 1, NULL, NULL), SY_EINVAL);
    assert_int_equal(cost.n_experts, 0);
    sy_snapshot_unref(one);
    sy_snapshot_unref(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_expert_that_differs_is_told_in_order),
        cmocka_unit_test(shares_shadows_and_marks_load_nothing_but_differ),
        cmocka_unit_test(snapshots_that_share_nothing_compare_by_content),
        cmocka_unit_test(from_nothing_everything_is_loaded),
        cmocka_unit_test(placements_of_other_models_are_not_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
