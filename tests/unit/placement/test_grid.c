/* test_grid.c - models of which some layers have no experts: the ranges that say which, and what
 * placement makes of such a layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_placement.h"

#define LAYERS  4 /* 0 and 2 have no experts */
#define EXPERTS 3

static sy_grid holes(void)
{
    static const uint8_t flag[LAYERS] = {1, 0, 1, 0};

    return sy_grid_of(LAYERS, EXPERTS, flag, 1);
}

static sy_snapshot *build(const sy_snapshot *previous, const sy_grid *grid, const char *const *hash)
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
    if (sy_snapshot_build(&snapshot, previous, entry, n, grid, &err) != SY_OK)
        fail_msg("no snapshot: %s", err.message);
    return snapshot;
}

#define BUILD(previous, grid, ...) \
    build((previous), (grid), (const char *const[]){__VA_ARGS__, NULL})

/* ---- ranges ---- */

static void layers_with_experts_are_counted_and_shown_as_ranges(void **state)
{
    static const struct {
        uint32_t layers;
        uint32_t dense[4]; /* ended by UINT32_MAX */
        const char *text;
        uint32_t n;
    } models[] = {
        {1, {UINT32_MAX}, "0", 1},
        {61, {UINT32_MAX}, "0-60", 61},
        {61, {0, 1, 2, UINT32_MAX}, "3-60", 58},
        {5, {1, 3, UINT32_MAX}, "0,2,4", 3},
        {6, {3, 5, UINT32_MAX}, "0-2,4", 4},
        {2, {0, 1, UINT32_MAX}, "", 0},
    };
    char text[SY_GRID_TEXT_BYTES];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(models); i++) {
        sy_grid grid = {.layers = models[i].layers, .experts = 8};
        sy_grid again = {.layers = models[i].layers, .experts = 8};

        for (const uint32_t *at = models[i].dense; *at != UINT32_MAX; at++)
            sy_grid_set(&grid, *at, 0);
        assert_int_equal(sy_grid_format(text, sizeof(text), &grid), strlen(models[i].text));
        assert_string_equal(text, models[i].text);
        assert_int_equal(sy_grid_moe_layers(&grid), models[i].n);
        assert_int_equal(sy_grid_shards(&grid), 8 * models[i].n);
        assert_int_equal(sy_grid_parse(&again, text, strlen(text), NULL), SY_OK);
        assert_true(sy_grid_is_same(&grid, &again));
        if (models[i].n < models[i].layers)
            assert_false(
                sy_grid_is_same(&grid, &(sy_grid){.layers = models[i].layers, .experts = 8}));
    }
}

static void the_longest_list_of_layers_fits_its_text(void **state)
{
    sy_grid grid = {.layers = SY_GRID_LAYERS_MAX, .experts = 1};
    char text[SY_GRID_TEXT_BYTES];
    char cut[8];

    (void)state;
    for (uint32_t layer = 0; layer < SY_GRID_LAYERS_MAX; layer += 2) sy_grid_set(&grid, layer, 0);
    assert_true(sy_grid_format(text, sizeof(text), &grid) < sizeof(text));
    assert_int_equal(sy_grid_moe_layers(&grid), SY_GRID_LAYERS_MAX / 2);
    assert_int_equal(sy_grid_format(cut, sizeof(cut), &grid), strlen(text));
    assert_string_equal(cut, "1,3,5,7");
}

static void past_the_last_layer_there_is_nothing(void **state)
{
    const sy_grid grid = {.layers = 3, .experts = 5};

    (void)state;
    assert_true(sy_grid_has(&grid, 2));
    assert_false(sy_grid_has(&grid, 3));
    assert_false(sy_grid_has(&grid, UINT32_MAX));
    assert_true(sy_grid_holds(&grid, 2, 4));
    assert_false(sy_grid_holds(&grid, 2, 5));
    assert_false(sy_grid_holds(&grid, 3, 0));
}

static void a_list_of_layers_that_is_none_is_refused_and_changes_nothing(void **state)
{
    static const char *const bad[] = {
        "x",   "1-",    "-3",   "3-1",   "1,1", "5-6,2",          "1,", ",1", "1,,2", "1 2", "8",
        "2-8", "0-7,8", "1--2", "1-2-3", "+1",  "99999999999999", "1\n"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        sy_grid grid = {.layers = 8, .experts = 2};
        const sy_grid before = grid;
        sy_error err;

        if (sy_grid_parse(&grid, bad[i], strlen(bad[i]), &err) != SY_EINVAL)
            fail_msg("'%s' was taken", bad[i]);
        assert_true(err.message[0] != '\0');
        assert_true(sy_grid_is_same(&grid, &before));
    }
}

/* ---- fields ---- */

static void a_field_of_a_layer_without_experts_is_refused_by_name(void **state)
{
    static const char *const bad[] = {"0/0", "2/1", "2/*"};
    static const char *const good[] = {"1/0", "3/*", "*/2", "*/*"};
    const sy_grid grid = holes();
    sy_field field;
    sy_error err;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        char want[80];

        assert_int_equal(sy_field_parse(&field, bad[i], strlen(bad[i]), &grid, &err), SY_EINVAL);
        snprintf(want, sizeof(want), "layer %c has no experts: those that have are 1,3", bad[i][0]);
        assert_string_equal(err.message, want);
    }
    for (size_t i = 0; i < SY_COUNT_OF(good); i++)
        assert_int_equal(sy_field_parse(&field, good[i], strlen(good[i]), &grid, &err), SY_OK);
    assert_int_equal(sy_field_parse(&field, "4/0", 3, &grid, &err), SY_EINVAL);
    assert_string_equal(err.message, "the model has no layer 4: its layers are 0 to 3");
}

static void a_long_list_of_layers_is_cut_in_the_text_of_a_refusal(void **state)
{
    sy_grid grid = {.layers = 200, .experts = 1};
    sy_error err;

    (void)state;
    for (uint32_t layer = 0; layer < 200; layer += 2) sy_grid_set(&grid, layer, 0);
    assert_int_equal(sy_grid_check(&grid, 4, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "layer 4 has no experts: those that have are 1,3,5,"));
    assert_string_equal(err.message + strlen(err.message) - 3, "...");
}

/* ---- snapshots ---- */

static void a_placement_is_complete_without_the_layers_that_have_no_experts(void **state)
{
    const sy_grid grid = holes();
    sy_snapshot *part = BUILD(NULL, &grid, "1/*=a/cpu:0");
    sy_snapshot *full = BUILD(part, &grid, "1/*=a/cpu:0", "3/*=b/cpu:0");
    uint32_t layer, expert;

    (void)state;
    assert_int_equal(sy_snapshot_missing(part, &layer, &expert), EXPERTS);
    assert_int_equal(layer, 3);
    assert_int_equal(expert, 0);
    assert_true(sy_snapshot_complete(full));
    for (uint32_t e = 0; e < EXPERTS; e++) {
        assert_null(sy_snapshot_targets(full, 0, e));
        assert_null(sy_snapshot_targets(full, 2, e));
        assert_int_equal(sy_snapshot_list_of(full, 2, e), 0);
        assert_string_equal(sy_snapshot_targets(full, 3, e)->target[0].node, "b");
    }
    assert_true(sy_grid_is_same(sy_snapshot_grid(full), &grid));
    sy_snapshot_unref(part);
    sy_snapshot_unref(full);
}

static void a_star_speaks_for_layers_with_experts_alone(void **state)
{
    const sy_grid grid = holes();
    sy_snapshot *stars = BUILD(NULL, &grid, "*/*=a/cpu:0", "*/1=b/cpu:0");
    sy_snapshot *named = BUILD(NULL, &grid, "1/0=a/cpu:0", "1/1=b/cpu:0", "1/2=a/cpu:0",
                               "3/0=a/cpu:0", "3/1=b/cpu:0", "3/2=a/cpu:0");

    (void)state;
    assert_true(sy_snapshot_complete(stars));
    assert_null(sy_snapshot_targets(stars, 0, 1));
    assert_null(sy_snapshot_targets(stars, 2, 0));
    /* Equal content, equal hash: what layers without experts would have had is no part of it. */
    assert_true(sy_snapshot_hash(stars) == sy_snapshot_hash(named));
    sy_snapshot_unref(stars);
    sy_snapshot_unref(named);
}

static void an_edit_of_a_layer_without_experts_is_reported_and_others_take_effect(void **state)
{
    const sy_grid grid = holes();
    sy_snapshot *good = BUILD(NULL, &grid, "*/*=a/cpu:0");
    sy_snapshot *edited = BUILD(good, &grid, "*/*=a/cpu:0", "2/1=b/cpu:0", "3/1=c/cpu:0");

    (void)state;
    assert_int_equal(sy_snapshot_refusals(edited), 1);
    assert_string_equal(sy_snapshot_refusal_at(edited, 0)->field, "2/1");
    assert_string_equal(sy_snapshot_refusal_at(edited, 0)->why,
                        "layer 2 has no experts: those that have are 1,3");
    assert_null(sy_snapshot_targets(edited, 2, 1));
    assert_false(sy_snapshot_names_node(edited, "b"));
    assert_true(sy_snapshot_names_node(edited, "c"));
    sy_snapshot_unref(good);
    sy_snapshot_unref(edited);
}

static void lost_coverage_is_counted_in_experts_that_exist(void **state)
{
    const sy_grid grid = holes();
    sy_snapshot *good = BUILD(NULL, &grid, "1/*=a/cpu:0", "3/*=a/cpu:0");
    sy_snapshot *lost = BUILD(good, &grid, "1/*=a/cpu:0");

    (void)state;
    assert_int_equal(sy_snapshot_refusals(lost), 1);
    assert_non_null(strstr(sy_snapshot_refusal_at(lost, 0)->why,
                           "3 of 6 experts would have no target, the first is 3/0"));
    assert_true(sy_snapshot_complete(lost));
    sy_snapshot_unref(good);
    sy_snapshot_unref(lost);
}

static void a_model_of_other_layers_with_experts_is_another_model(void **state)
{
    const sy_grid grid = holes(), all = {.layers = LAYERS, .experts = EXPERTS};
    sy_grid none = all;
    sy_snapshot *good = BUILD(NULL, &grid, "*/*=a/cpu:0");
    sy_snapshot *other = BUILD(NULL, &all, "*/*=a/cpu:0");
    sy_placement_cost cost;
    sy_snapshot *snapshot;
    sy_error err;

    (void)state;
    for (uint32_t layer = 0; layer < LAYERS; layer++) sy_grid_set(&none, layer, 0);
    assert_int_equal(sy_snapshot_build(&snapshot, good, NULL, 0, &all, &err), SY_EINVAL);
    assert_int_equal(sy_placement_compare(&cost, good, other, 1, NULL, NULL), SY_EINVAL);
    assert_int_equal(sy_snapshot_build(&snapshot, NULL, NULL, 0, &none, &err), SY_EINVAL);
    assert_string_equal(err.message, "no layer of the model has experts to place");
    sy_snapshot_unref(good);
    sy_snapshot_unref(other);
}

static void changes_are_counted_where_there_are_experts(void **state)
{
    const sy_grid grid = holes();
    sy_snapshot *before = BUILD(NULL, &grid, "*/*=a/cpu:0");
    sy_snapshot *after = BUILD(NULL, &grid, "*/*=a/cpu:0", "*/0=b/cpu:0");
    sy_placement_cost cost;

    (void)state;
    assert_int_equal(sy_placement_compare(&cost, before, after, 10, NULL, NULL), SY_OK);
    assert_int_equal(cost.n_experts, 2);
    assert_int_equal(cost.load_bytes, 20);
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
}

/* ---- the default spread ---- */

static sy_status count_device(void *arg, const char *field, const char *value)
{
    uint32_t *n = arg;

    assert_true(field[0] == '1' || field[0] == '3');
    n[value[0] - 'a']++;
    return SY_OK;
}

static void the_spread_is_even_although_every_second_layer_has_no_experts(void **state)
{
    static const char *const devices[] = {"a/cpu:0", "b/cpu:0"};
    const sy_grid grid = holes();
    uint32_t n[2] = {0};

    (void)state;
    assert_int_equal(sy_placement_spread(&grid, devices, 2, count_device, n), SY_OK);
    assert_int_equal(n[0], 3);
    assert_int_equal(n[1], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_with_experts_are_counted_and_shown_as_ranges),
        cmocka_unit_test(the_longest_list_of_layers_fits_its_text),
        cmocka_unit_test(past_the_last_layer_there_is_nothing),
        cmocka_unit_test(a_list_of_layers_that_is_none_is_refused_and_changes_nothing),
        cmocka_unit_test(a_field_of_a_layer_without_experts_is_refused_by_name),
        cmocka_unit_test(a_long_list_of_layers_is_cut_in_the_text_of_a_refusal),
        cmocka_unit_test(a_placement_is_complete_without_the_layers_that_have_no_experts),
        cmocka_unit_test(a_star_speaks_for_layers_with_experts_alone),
        cmocka_unit_test(an_edit_of_a_layer_without_experts_is_reported_and_others_take_effect),
        cmocka_unit_test(lost_coverage_is_counted_in_experts_that_exist),
        cmocka_unit_test(a_model_of_other_layers_with_experts_is_another_model),
        cmocka_unit_test(changes_are_counted_where_there_are_experts),
        cmocka_unit_test(the_spread_is_even_although_every_second_layer_has_no_experts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
