/* test_snapshot.c - what is in force after each edit of the placement hash, seen through
 * sy_snapshot_targets. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_placement.h"

#define LAYERS  2
#define EXPERTS 3
#define GRID    (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})

/* A hash as "FIELD=VALUE" texts, ended by NULL. */
static sy_snapshot *build_sized(const sy_snapshot *previous, const char *const *hash,
                                uint32_t layers, uint32_t experts)
{
    sy_placement_entry entry[32];
    sy_snapshot *snapshot;
    sy_error err;
    size_t n = 0;

    for (; hash[n] != NULL; n++) {
        const char *equals = strchr(hash[n], '=');

        entry[n] = (sy_placement_entry){hash[n], (size_t)(equals - hash[n]), equals + 1,
                                        strlen(equals + 1)};
    }
    if (sy_snapshot_build(&snapshot, previous, entry, n,
                          &(sy_grid){.layers = layers, .experts = experts}, &err) != SY_OK) {
        fail_msg("no snapshot: %s", err.message);
    }
    return snapshot;
}

#define BUILD(previous, ...) \
    build_sized((previous), (const char *const[]){__VA_ARGS__, NULL}, LAYERS, EXPERTS)
#define BUILD_EMPTY(previous) build_sized((previous), (const char *const[]){NULL}, LAYERS, EXPERTS)

static void assert_targets(const sy_snapshot *snapshot, uint32_t layer, uint32_t expert,
                           const char *want)
{
    const sy_target_list *list = sy_snapshot_targets(snapshot, layer, expert);
    char got[SY_PLACEMENT_VALUE_MAX] = "none";

    if (list != NULL) sy_targets_format(got, sizeof(got), list);
    if (strcmp(got, want) != 0) {
        fail_msg("%u/%u is at '%s', not at '%s'", layer, expert, got, want);
    }
}

static void assert_refusal(const sy_snapshot *snapshot, size_t i, const char *field,
                           const char *why)
{
    const sy_refusal *refusal;

    if (i >= sy_snapshot_refusals(snapshot)) {
        fail_msg("there are only %zu refusals", sy_snapshot_refusals(snapshot));
    }
    refusal = sy_snapshot_refusal_at(snapshot, i);
    assert_string_equal(refusal->field, field);
    if (strstr(refusal->why, why) == NULL) {
        fail_msg("'%s' does not contain '%s'", refusal->why, why);
    }
}

static void the_most_specific_field_wins_in_any_order(void **state)
{
    sy_snapshot *one =
        BUILD(NULL, "*/*=any/cpu:0", "1/*=layer/cpu:0", "*/2=expert/cpu:0", "1/1=exact/cpu:0");
    sy_snapshot *two =
        BUILD(NULL, "1/1=exact/cpu:0", "*/2=expert/cpu:0", "1/*=layer/cpu:0", "*/*=any/cpu:0");
    sy_snapshot *both[] = {one, two};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_targets(both[i], 0, 0, "any/cpu:0");
        assert_targets(both[i], 0, 1, "any/cpu:0");
        assert_targets(both[i], 0, 2, "expert/cpu:0");
        assert_targets(both[i], 1, 0, "layer/cpu:0");
        assert_targets(both[i], 1, 1, "exact/cpu:0");
        assert_targets(both[i], 1, 2, "layer/cpu:0"); /* LAYER/star goes before star/EXPERT */
        assert_true(sy_snapshot_complete(both[i]));
        assert_int_equal(sy_snapshot_refusals(both[i]), 0);
        sy_snapshot_unref(both[i]);
    }
}

static void outside_the_model_there_are_no_targets(void **state)
{
    sy_snapshot *snapshot = BUILD(NULL, "*/*=a/cpu:0");

    (void)state;
    assert_int_equal(sy_snapshot_layers(snapshot), LAYERS);
    assert_int_equal(sy_snapshot_experts(snapshot), EXPERTS);
    assert_null(sy_snapshot_targets(snapshot, LAYERS, 0));
    assert_null(sy_snapshot_targets(snapshot, 0, EXPERTS));
    assert_null(sy_snapshot_targets(snapshot, UINT32_MAX, UINT32_MAX));
    sy_snapshot_unref(snapshot);
}

static void the_first_snapshot_may_be_incomplete(void **state)
{
    sy_snapshot *empty = BUILD_EMPTY(NULL);
    sy_snapshot *part = BUILD(empty, "0/*=a/cpu:0", "1/1=b/cpu:0");
    sy_snapshot *less = BUILD(part, "0/0=a/cpu:0");
    uint32_t layer = 9;
    uint32_t expert = 9;

    (void)state;
    assert_int_equal(sy_snapshot_epoch(empty), 1);
    assert_false(sy_snapshot_complete(empty));
    assert_int_equal(sy_snapshot_missing(empty, &layer, &expert), LAYERS * EXPERTS);
    assert_int_equal(layer, 0);
    assert_int_equal(expert, 0);
    assert_int_equal(sy_snapshot_missing(part, &layer, &expert), 2);
    assert_int_equal(layer, 1);
    assert_int_equal(expert, 0);
    assert_int_equal(sy_snapshot_epoch(part), 2);
    /* Still being set up: fields may go, but not all of them at once. */
    assert_int_equal(sy_snapshot_missing(less, NULL, NULL), 5);
    assert_int_equal(sy_snapshot_refusals(less), 0);
    sy_snapshot_unref(empty);
    sy_snapshot_unref(part);
    sy_snapshot_unref(less);
}

static void a_refused_field_keeps_its_last_good_value_over_many_edits(void **state)
{
    sy_snapshot *good = BUILD(NULL, "*/*=a/cpu:0", "0/1=b/cpu:0");
    sy_snapshot *bad = BUILD(good, "*/*=a/cpu:0", "0/1=b/gpu:0", "0/7=b/cpu:0", "1/1=c/cpu:0");
    sy_snapshot *worse = BUILD(bad, "*/*=d/cpu:0", "0/1=", "0/2=oops");
    sy_snapshot *mended = BUILD(worse, "*/*=d/cpu:0", "0/1=e/cpu:0");

    (void)state;
    assert_targets(bad, 0, 1, "b/cpu:0");
    assert_targets(bad, 1, 1, "c/cpu:0"); /* the others take effect */
    assert_int_equal(sy_snapshot_refusals(bad), 2);
    assert_refusal(bad, 0, "0/1", "the device 'gpu:0'");
    assert_refusal(bad, 0, "0/1", "its last good value stays in force");
    assert_refusal(bad, 1, "0/7", "no expert 7");
    assert_targets(worse, 0, 1, "b/cpu:0");
    assert_targets(worse, 0, 2, "d/cpu:0"); /* never had a value of its own */
    assert_refusal(worse, 1, "0/2", "'oops'");
    assert_null(strstr(sy_snapshot_refusal_at(worse, 1)->why, "stays in force"));
    assert_targets(mended, 0, 1, "e/cpu:0");
    assert_int_equal(sy_snapshot_refusals(mended), 0);
    sy_snapshot_unref(good);
    sy_snapshot_unref(bad);
    sy_snapshot_unref(worse);
    sy_snapshot_unref(mended);
}

static void a_deleted_field_vanishes_with_its_last_good_value(void **state)
{
    sy_snapshot *good = BUILD(NULL, "*/*=a/cpu:0", "0/1=b/cpu:0");
    sy_snapshot *without = BUILD(good, "*/*=a/cpu:0");
    sy_snapshot *bad = BUILD(without, "*/*=a/cpu:0", "0/1=nonsense");

    (void)state;
    assert_targets(without, 0, 1, "a/cpu:0");
    assert_targets(bad, 0, 1, "a/cpu:0");
    assert_int_equal(sy_snapshot_refusals(bad), 1);
    sy_snapshot_unref(good);
    sy_snapshot_unref(without);
    sy_snapshot_unref(bad);
}

static void an_emptied_hash_is_refused_as_a_whole(void **state)
{
    sy_snapshot *good = BUILD(NULL, "*/*=a/cpu:0", "1/2=b/cpu:0@90 c/cpu:0@10");
    sy_snapshot *emptied = BUILD_EMPTY(good);
    sy_snapshot *again = BUILD_EMPTY(emptied);
    sy_snapshot *part = BUILD(NULL, "0/0=a/cpu:0");
    sy_snapshot *part_emptied = BUILD_EMPTY(part);

    (void)state;
    for (int i = 0; i < 2; i++) {
        const sy_snapshot *snapshot = i == 0 ? emptied : again;

        assert_targets(snapshot, 0, 0, "a/cpu:0");
        assert_targets(snapshot, 1, 2, "b/cpu:0@90 c/cpu:0@10");
        assert_int_equal(sy_snapshot_epoch(snapshot), 1);
        assert_true(sy_snapshot_hash(snapshot) == sy_snapshot_hash(good));
        assert_int_equal(sy_snapshot_refusals(snapshot), 1);
        assert_refusal(snapshot, 0, "", "deleted or empty");
        assert_true(sy_snapshot_names_node(snapshot, "c"));
    }
    assert_targets(part_emptied, 0, 0, "a/cpu:0");
    assert_refusal(part_emptied, 0, "", "deleted or empty");
    sy_snapshot_unref(good);
    sy_snapshot_unref(emptied);
    sy_snapshot_unref(again);
    sy_snapshot_unref(part);
    sy_snapshot_unref(part_emptied);
}

static void losing_the_last_target_of_an_expert_is_refused_as_a_whole(void **state)
{
    sy_snapshot *good = BUILD(NULL, "0/*=a/cpu:0", "1/*=b/cpu:0");
    sy_snapshot *loss = BUILD(good, "0/*=z/cpu:0", "1/0=z/cpu:0", "1/1=z/cpu:0", "1/2=z/gpu:0");
    sy_snapshot *mended = BUILD(loss, "0/*=z/cpu:0", "1/0=z/cpu:0", "1/1=z/cpu:0", "1/2=z/cpu:0");

    (void)state;
    assert_targets(loss, 0, 0, "a/cpu:0");
    assert_targets(loss, 1, 2, "b/cpu:0");
    assert_int_equal(sy_snapshot_epoch(loss), 1);
    assert_int_equal(sy_snapshot_refusals(loss), 2);
    assert_refusal(loss, 0, "", "1 of 6 experts would have no target, the first is 1/2");
    assert_refusal(loss, 1, "1/2", "the device 'gpu:0'");
    assert_targets(mended, 1, 2, "z/cpu:0");
    assert_int_equal(sy_snapshot_epoch(mended), 2);
    sy_snapshot_unref(good);
    sy_snapshot_unref(loss);
    sy_snapshot_unref(mended);
}

static void epoch_and_hash_change_with_the_targets_and_with_nothing_else(void **state)
{
    sy_snapshot *first = BUILD(NULL, "*/*=a/cpu:0");
    sy_snapshot *spelled = BUILD(first, "0/*= a/cpu:0", "1/*=a/cpu:0  ");
    sy_snapshot *refused = BUILD(spelled, "0/*=a/cpu:0", "1/*=a/cpu:0", "1/1=?");
    sy_snapshot *moved = BUILD(refused, "0/*=a/cpu:0", "1/*=a/cpu:0", "1/1=b/cpu:0");
    sy_snapshot *back = BUILD(moved, "*/*=a/cpu:0");

    (void)state;
    assert_int_equal(sy_snapshot_epoch(first), 1);
    assert_int_equal(sy_snapshot_epoch(spelled), 1);
    assert_int_equal(sy_snapshot_epoch(refused), 1);
    assert_int_equal(sy_snapshot_refusals(refused), 1);
    assert_int_equal(sy_snapshot_epoch(moved), 2);
    assert_int_equal(sy_snapshot_epoch(back), 3);
    assert_true(sy_snapshot_hash(spelled) == sy_snapshot_hash(first));
    assert_true(sy_snapshot_hash(moved) != sy_snapshot_hash(first));
    assert_true(sy_snapshot_hash(back) == sy_snapshot_hash(first));
    sy_snapshot_unref(first);
    sy_snapshot_unref(spelled);
    sy_snapshot_unref(refused);
    sy_snapshot_unref(moved);
    sy_snapshot_unref(back);
}

/* The recipe of docs/placement.md, so that scripts may compute it. */
static void the_hash_is_the_documented_sum(void **state)
{
    static const struct {
        uint64_t layer, expert;
        const char *targets;
    } line[] = {
        {0, 0, "a/cpu:0"}, {0, 1, "b/cpu:0@5! a/cpu:0@95"}, {0, 2, "a/cpu:0"}, {1, 2, "c/cuda:1"}};
    sy_snapshot *snapshot =
        BUILD(NULL, "0/*=a/cpu:0", "0/1=b/cpu:0@5!  a/cpu:0@95", "1/2=c/cuda:1");
    uint64_t want = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(line); i++) {
        const uint64_t targets = sy_fnv1a(SY_FNV1A_START, line[i].targets, strlen(line[i].targets));

        want += sy_splitmix64(targets ^ sy_splitmix64((line[i].layer << 32) + line[i].expert));
    }
    assert_true(sy_snapshot_hash(snapshot) == want);
    sy_snapshot_unref(snapshot);
}

static void the_hash_covers_places_shares_shadows_and_the_mark(void **state)
{
    static const char *const rest[] = {
        "1/1=a/cpu:0",         "1/1=a/cpu:1",         "1/1=a/cpu:0!",
        "1/1=a/cpu:0@100",     "1/1=b/cpu:0",         "1/1=a/cpu:0 b/cpu:0@shadow",
        "1/1=a/cpu:0 b/cpu:0", "1/1=b/cpu:0 a/cpu:0", "1/0=a/cpu:0",
        "0/1=a/cpu:0",
    };
    uint64_t hash[SY_COUNT_OF(rest)];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(rest); i++) {
        sy_snapshot *snapshot = BUILD(NULL, rest[i]);

        hash[i] = sy_snapshot_hash(snapshot);
        sy_snapshot_unref(snapshot);
        for (size_t j = 0; j < i; j++) {
            if (hash[i] == hash[j]) fail_msg("'%s' has the hash of '%s'", rest[i], rest[j]);
        }
    }
}

static void equal_lists_have_one_number(void **state)
{
    sy_snapshot *snapshot = BUILD(NULL, "0/*=a/cpu:0", "1/0= a/cpu:0", "1/1=b/cpu:0");
    sy_snapshot *next = BUILD(snapshot, "0/*=c/cpu:0", "1/0=b/cpu:0", "1/1=b/cpu:0");
    const uint32_t a = sy_snapshot_list_of(snapshot, 0, 0);
    const uint32_t b = sy_snapshot_list_of(snapshot, 1, 1);

    (void)state;
    assert_int_equal(sy_snapshot_lists(snapshot), 2);
    assert_int_equal(a + b, 1 + 2);
    assert_int_equal(sy_snapshot_list_of(snapshot, 1, 0), a);
    assert_int_equal(sy_snapshot_list_of(snapshot, 1, 2), 0);
    assert_int_equal(sy_snapshot_list_of(snapshot, LAYERS, 0), 0);
    assert_int_equal(sy_snapshot_list_of(snapshot, 0, EXPERTS), 0);
    assert_string_equal(sy_snapshot_list(snapshot, a)->target[0].node, "a");
    assert_ptr_equal(sy_snapshot_list(snapshot, b), sy_snapshot_targets(snapshot, 1, 1));
    /* A list that nobody has any more is gone, and the numbers still begin at 1. */
    assert_int_equal(sy_snapshot_lists(next), 2);
    assert_int_equal(sy_snapshot_list_of(next, 0, 0) + sy_snapshot_list_of(next, 1, 0), 1 + 2);
    sy_snapshot_unref(snapshot);
    assert_targets(next, 1, 1, "b/cpu:0");
    assert_targets(next, 0, 1, "c/cpu:0");
    sy_snapshot_unref(next);
}

static void a_node_is_named_only_where_it_is_in_force(void **state)
{
    sy_snapshot *snapshot =
        BUILD(NULL, "0/*=a/cpu:0", "1/*=a/cpu:0 b/cpu:0@shadow", "*/1=hidden/cpu:0");

    (void)state;
    assert_true(sy_snapshot_names_node(snapshot, "a"));
    assert_true(sy_snapshot_names_node(snapshot, "b"));
    assert_false(sy_snapshot_names_node(snapshot, "hidden"));
    assert_false(sy_snapshot_names_node(snapshot, ""));
    sy_snapshot_unref(snapshot);
}

static void bytes_of_all_kinds_are_refused_and_shown_in_ascii(void **state)
{
    char field[200];
    char value[3000];
    sy_placement_entry entry[] = {
        {field, sizeof(field), value, sizeof(value)},
        {"0/0", 3, value, sizeof(value)},
        {"", 0, "", 0},
        {"0/1", 3, "a\0b/cpu:0", 9},
    };
    sy_snapshot *snapshot;

    (void)state;
    memset(field, 0xff, sizeof(field));
    memset(value, 'x', sizeof(value));
    assert_int_equal(sy_snapshot_build(&snapshot, NULL, entry, SY_COUNT_OF(entry), GRID, NULL),
                     SY_OK);
    assert_int_equal(sy_snapshot_refusals(snapshot), 4);
    for (size_t i = 0; i < 4; i++) {
        const sy_refusal *refusal = sy_snapshot_refusal_at(snapshot, i);

        for (const char *c = refusal->field; *c != '\0'; c++) assert_in_range(*c, 0x20, 0x7e);
        for (const char *c = refusal->value; *c != '\0'; c++) assert_in_range(*c, 0x20, 0x7e);
        for (const char *c = refusal->why; *c != '\0'; c++) assert_in_range(*c, 0x20, 0x7e);
        assert_true(strlen(refusal->why) > 10);
    }
    assert_refusal(snapshot, 1, "0/0", "the value has 3000 bytes");
    assert_non_null(strstr(sy_snapshot_refusal_at(snapshot, 1)->value, "xxx..."));
    assert_string_equal(sy_snapshot_refusal_at(snapshot, 2)->value, "a\\x00b/cpu:0");
    assert_non_null(strstr(sy_snapshot_refusal_at(snapshot, 3)->field, "\\xff..."));
    sy_snapshot_unref(snapshot);
}

static void many_refusals_cost_bounded_memory(void **state)
{
    enum { N = 3 * SY_REFUSALS_MAX };
    sy_placement_entry *entry = calloc(N + 1, sizeof(*entry));
    sy_snapshot *good = BUILD(NULL, "*/*=a/cpu:0");
    sy_snapshot *snapshot;
    sy_snapshot *lost;

    (void)state;
    assert_non_null(entry);
    for (size_t i = 0; i < N; i++) entry[i] = (sy_placement_entry){"junk", 4, "junk", 4};
    entry[N] = (sy_placement_entry){"*/*", 3, "b/cpu:0", 7};
    assert_int_equal(sy_snapshot_build(&snapshot, good, entry, N + 1, GRID, NULL), SY_OK);
    assert_int_equal(sy_snapshot_refusals(snapshot), SY_REFUSALS_MAX);
    assert_targets(snapshot, 0, 0, "b/cpu:0");
    assert_int_equal(sy_snapshot_build(&lost, snapshot, entry, N, GRID, NULL), SY_OK);
    assert_int_equal(sy_snapshot_refusals(lost), SY_REFUSALS_MAX);
    assert_refusal(lost, 0, "", "would have no target");
    assert_targets(lost, 0, 0, "b/cpu:0");
    sy_snapshot_unref(good);
    sy_snapshot_unref(snapshot);
    sy_snapshot_unref(lost);
    free(entry);
}

static void a_large_model_with_a_value_for_each_expert(void **state)
{
    enum { L = 60, E = 256, NODES = 8 };
    static char text[L * E][48];
    sy_placement_entry *entry = calloc((size_t)L * E, sizeof(*entry));
    sy_snapshot *snapshot;
    const sy_grid big = {.layers = L, .experts = E};
    sy_snapshot *same;
    sy_snapshot *edited;
    char want[32];

    (void)state;
    assert_non_null(entry);
    for (int i = 0; i < L * E; i++) {
        const int n = snprintf(text[i], sizeof(text[i]), "%d/%d", i / E, i % E);
        const int m = snprintf(text[i] + n + 1, sizeof(text[i]) - (size_t)n - 1, "n%d/cpu:%d",
                               i % NODES, i % 3);

        entry[i] = (sy_placement_entry){text[i], (size_t)n, text[i] + n + 1, (size_t)m};
    }
    assert_int_equal(sy_snapshot_build(&snapshot, NULL, entry, (size_t)L * E, &big, NULL), SY_OK);
    assert_true(sy_snapshot_complete(snapshot));
    for (int i = 0; i < L * E; i++) {
        snprintf(want, sizeof(want), "n%d/cpu:%d", i % NODES, i % 3);
        assert_targets(snapshot, (uint32_t)(i / E), (uint32_t)(i % E), want);
    }
    /* Equal lists are one list, and every spelling is parsed once. */
    assert_int_equal(sy_snapshot_lists(snapshot), 24);
    assert_int_equal(sy_snapshot_parsed(snapshot), 24);
    assert_ptr_equal(sy_snapshot_targets(snapshot, 0, 0), sy_snapshot_targets(snapshot, 0, 24));
    assert_int_equal(sy_snapshot_build(&same, snapshot, entry, (size_t)L * E, &big, NULL), SY_OK);
    assert_int_equal(sy_snapshot_epoch(same), 1);
    assert_int_equal(sy_snapshot_parsed(same), 0);
    entry[L * E / 2].value = "new/cpu:0";
    entry[L * E / 2].value_len = strlen("new/cpu:0");
    assert_int_equal(sy_snapshot_build(&edited, same, entry, (size_t)L * E, &big, NULL), SY_OK);
    assert_int_equal(sy_snapshot_epoch(edited), 2);
    assert_int_equal(sy_snapshot_parsed(edited), 1);
    assert_targets(edited, L / 2, 0, "new/cpu:0");
    sy_snapshot_unref(snapshot);
    sy_snapshot_unref(same);
    sy_snapshot_unref(edited);
    free(entry);
}

static void a_snapshot_lives_as_long_as_its_last_reference(void **state)
{
    sy_snapshot *snapshot = BUILD(NULL, "*/*=a/cpu:0");

    (void)state;
    assert_ptr_equal(sy_snapshot_ref(snapshot), snapshot);
    sy_snapshot_unref(snapshot);
    assert_targets(snapshot, 1, 1, "a/cpu:0");
    sy_snapshot_unref(snapshot);
    sy_snapshot_unref(NULL);
}

/* For ThreadSanitizer: snapshots share lists, and each is let go by another thread. */
static void *read_and_let_go(void *arg)
{
    sy_snapshot *snapshot = arg;

    assert_non_null(sy_snapshot_targets(snapshot, 1, 1));
    assert_true(sy_snapshot_names_node(snapshot, "a"));
    sy_snapshot_unref(snapshot);
    return NULL;
}

static void snapshots_are_read_while_later_ones_are_built(void **state)
{
    enum { N = 8 };
    static const char *const other[2] = {"1/1=b/cpu:0", "1/1=c/cpu:0"};
    pthread_t thread[N];
    sy_snapshot *snapshot = BUILD(NULL, "*/*=a/cpu:0");

    (void)state;
    for (int i = 0; i < N; i++) {
        sy_snapshot *next;

        assert_int_equal(
            pthread_create(&thread[i], NULL, read_and_let_go, sy_snapshot_ref(snapshot)), 0);
        next = BUILD(snapshot, "*/*=a/cpu:0", other[i % 2]);
        sy_snapshot_unref(snapshot);
        snapshot = next;
    }
    for (int i = 0; i < N; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_targets(snapshot, 0, 0, "a/cpu:0");
    assert_targets(snapshot, 1, 1, "c/cpu:0");
    sy_snapshot_unref(snapshot);
}

static void impossible_dimensions_are_refused(void **state)
{
    sy_snapshot *good = BUILD(NULL, "*/*=a/cpu:0");
    sy_snapshot *snapshot;
    sy_error err;

    (void)state;
    assert_int_equal(
        sy_snapshot_build(&snapshot, NULL, NULL, 0, &(sy_grid){.layers = 0, .experts = 3}, &err),
        SY_EINVAL);
    assert_null(snapshot);
    assert_int_equal(
        sy_snapshot_build(&snapshot, NULL, NULL, 0, &(sy_grid){.layers = 3, .experts = 0}, &err),
        SY_EINVAL);
    assert_int_equal(sy_snapshot_build(&snapshot, NULL, NULL, 0,
                                       &(sy_grid){.layers = UINT32_MAX, .experts = UINT32_MAX},
                                       &err),
                     SY_EINVAL);
    assert_int_equal(sy_snapshot_build(&snapshot, good, NULL, 0,
                                       &(sy_grid){.layers = LAYERS + 1, .experts = EXPERTS}, &err),
                     SY_EINVAL);
    assert_non_null(strstr(err.message, "of another model"));
    sy_snapshot_unref(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_specific_field_wins_in_any_order),
        cmocka_unit_test(outside_the_model_there_are_no_targets),
        cmocka_unit_test(the_first_snapshot_may_be_incomplete),
        cmocka_unit_test(a_refused_field_keeps_its_last_good_value_over_many_edits),
        cmocka_unit_test(a_deleted_field_vanishes_with_its_last_good_value),
        cmocka_unit_test(an_emptied_hash_is_refused_as_a_whole),
        cmocka_unit_test(losing_the_last_target_of_an_expert_is_refused_as_a_whole),
        cmocka_unit_test(epoch_and_hash_change_with_the_targets_and_with_nothing_else),
        cmocka_unit_test(the_hash_is_the_documented_sum),
        cmocka_unit_test(the_hash_covers_places_shares_shadows_and_the_mark),
        cmocka_unit_test(equal_lists_have_one_number),
        cmocka_unit_test(a_node_is_named_only_where_it_is_in_force),
        cmocka_unit_test(bytes_of_all_kinds_are_refused_and_shown_in_ascii),
        cmocka_unit_test(many_refusals_cost_bounded_memory),
        cmocka_unit_test(a_large_model_with_a_value_for_each_expert),
        cmocka_unit_test(a_snapshot_lives_as_long_as_its_last_reference),
        cmocka_unit_test(snapshots_are_read_while_later_ones_are_built),
        cmocka_unit_test(impossible_dimensions_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
