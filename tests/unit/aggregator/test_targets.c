/* test_targets.c - which targets are watched, and that their counters live as long as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agg_targets.h"

enum { L = 3, E = 4 };

typedef struct edit {
    const char *field, *value;
} edit;

static sy_snapshot *build(uint32_t layers, uint32_t experts, const edit *edits, size_t n)
{
    sy_placement_entry entry[16];
    sy_snapshot *snapshot;
    sy_error err = {0};

    assert_true(n <= SY_COUNT_OF(entry));
    for (size_t i = 0; i < n; i++)
        entry[i] = (sy_placement_entry){edits[i].field, strlen(edits[i].field), edits[i].value,
                                        strlen(edits[i].value)};
    if (sy_snapshot_build(&snapshot, NULL, entry, n,
                          &(sy_grid){.layers = layers, .experts = experts}, &err) != SY_OK)
        fail_msg("%s", err.message);
    assert_int_equal(sy_snapshot_refusals(snapshot), 0);
    return snapshot;
}

/* The targets after an edit: counters that live on are taken over, the view before is freed. */
static agg_targets *after(agg_targets *before, const edit *edits, size_t n)
{
    sy_snapshot *snapshot = build(L, E, edits, n);
    agg_targets *targets = agg_targets_make(before, snapshot);

    assert_non_null(targets);
    agg_targets_free(before);
    sy_snapshot_unref(snapshot);
    return targets;
}

static void only_targets_of_shares_shadows_and_exclamation_marks_are_watched(void **state)
{
    static const edit edits[] = {{"*/*", "a/cpu:0"},
                                 {"0/1", "a/cpu:0@95 b/cpu:0@5"},
                                 {"1/2", "a/cpu:0 b/cpu:1@shadow"},
                                 {"2/3", "c/cpu:0!"},
                                 {"2/0", "a/cpu:0 b/cpu:0"}};
    agg_targets *targets = after(NULL, edits, SY_COUNT_OF(edits));

    (void)state;
    assert_int_equal(agg_targets_count(targets), 5);
    const agg_target *t = agg_targets_find(targets, 0, 1, 1);
    assert_string_equal(t->node, "b");
    assert_int_equal(t->share, 5);
    t = agg_targets_find(targets, 1, 2, 1);
    assert_string_equal(t->device, "cpu:1");
    assert_int_equal(t->shadow, 1);
    t = agg_targets_find(targets, 2, 3, 0);
    assert_int_equal(t->any_weights, 1);
    assert_int_equal(t->layer, 2);
    assert_int_equal(t->expert, 3);
    assert_null(agg_targets_find(targets, 2, 3, 1));
    assert_null(agg_targets_find(targets, 2, 0, 0));
    assert_null(agg_targets_find(targets, 0, 0, 0));
    assert_null(agg_targets_find(targets, 99, 99, 0));
    assert_null(agg_targets_find(NULL, 0, 1, 0));
    agg_targets_free(targets);
}

static void a_counter_goes_on_when_its_share_changes_and_ends_with_its_target(void **state)
{
    static const edit five[] = {{"*/*", "a/cpu:0"}, {"1/1", "a/cpu:0@95 b/cpu:0@5"}};
    static const edit half[] = {
        {"*/*", "a/cpu:0"}, {"0/0", "a/cpu:0 c/cpu:0@shadow"}, {"1/1", "b/cpu:0@50 a/cpu:0@50"}};
    static const edit device[] = {{"*/*", "a/cpu:0"}, {"1/1", "a/cpu:0@50 b/cpu:1@50"}};
    static const edit none[] = {{"*/*", "a/cpu:0"}};
    agg_targets *targets = after(NULL, five, 2);

    (void)state;
    atomic_fetch_add(&agg_targets_find(targets, 1, 1, 0)->rows, 95);
    atomic_fetch_add(&agg_targets_find(targets, 1, 1, 1)->rows, 5);
    targets = after(targets, half, 3);
    assert_int_equal(agg_targets_find(targets, 1, 1, 0)->rows, 5); /* b is named first now */
    assert_int_equal(agg_targets_find(targets, 1, 1, 0)->share, 50);
    assert_int_equal(agg_targets_find(targets, 1, 1, 1)->rows, 95);
    assert_int_equal(agg_targets_find(targets, 0, 0, 1)->rows, 0);
    targets = after(targets, device, 2);
    assert_int_equal(agg_targets_find(targets, 1, 1, 0)->rows, 95);
    assert_int_equal(agg_targets_find(targets, 1, 1, 1)->rows, 0); /* another device */
    targets = after(targets, none, 1);
    assert_int_equal(agg_targets_count(targets), 0);
    targets = after(targets, five, 2);
    assert_int_equal(agg_targets_find(targets, 1, 1, 0)->rows, 0); /* it came back: from zero */
    agg_targets_free(targets);
}

static void a_reader_of_the_view_before_counts_into_the_same_counters(void **state)
{
    static const edit edits[] = {{"*/*", "a/cpu:0@50 b/cpu:0@50"}};
    agg_targets *before = after(NULL, edits, 1);
    sy_snapshot *snapshot = build(L, E, edits, 1);
    agg_targets *now = agg_targets_make(before, snapshot);

    (void)state;
    assert_int_equal(agg_targets_count(now), 2 * L * E);
    atomic_fetch_add(&agg_targets_find(before, 2, 2, 1)->errors, 1);
    assert_ptr_equal(agg_targets_find(before, 2, 2, 1), agg_targets_find(now, 2, 2, 1));
    agg_targets_free(before);
    assert_int_equal(agg_targets_find(now, 2, 2, 1)->errors, 1);
    agg_targets_free(now);
    sy_snapshot_unref(snapshot);
}

static void more_targets_than_can_be_counted_are_left_out_whole(void **state)
{
    enum { LAYERS = 30, EXPERTS = 100 };
    static const edit edits[] = {{"*/*", "a/cpu:0@50 b/cpu:0@30 c/cpu:0@20"}};
    sy_snapshot *snapshot = build(LAYERS, EXPERTS, edits, 1);
    agg_targets *targets = agg_targets_make(NULL, snapshot);
    const uint32_t last = AGG_TARGETS_MAX / 3 - 1; /* the last expert that fits */

    (void)state;
    assert_int_equal(agg_targets_count(targets), AGG_TARGETS_MAX / 3 * 3);
    for (uint32_t s = 0; s < LAYERS * EXPERTS; s++)
        for (uint32_t i = 0; i < 3; i++) {
            const agg_target *t = agg_targets_find(targets, s / EXPERTS, s % EXPERTS, i);
            assert_int_equal(t != NULL, s <= last);
            if (t != NULL && (t->layer * EXPERTS + t->expert != s || t->node[0] != "abc"[i]))
                fail_msg("shard %u target %u: found %u/%u %s", s, i, t->layer, t->expert, t->node);
        }
    agg_targets_free(targets);
    sy_snapshot_unref(snapshot);
}

static void without_a_snapshot_nothing_is_watched(void **state)
{
    agg_targets *targets = agg_targets_make(NULL, NULL);

    (void)state;
    assert_non_null(targets);
    assert_int_equal(agg_targets_count(targets), 0);
    assert_null(agg_targets_find(targets, 0, 0, 0));
    agg_targets_free(targets);
    agg_targets_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_targets_of_shares_shadows_and_exclamation_marks_are_watched),
        cmocka_unit_test(a_counter_goes_on_when_its_share_changes_and_ends_with_its_target),
        cmocka_unit_test(a_reader_of_the_view_before_counts_into_the_same_counters),
        cmocka_unit_test(more_targets_than_can_be_counted_are_left_out_whole),
        cmocka_unit_test(without_a_snapshot_nothing_is_watched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
