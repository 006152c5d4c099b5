/* test_dense_layers.c - what the commands make of layers without experts: how they learn of them,
 * and that moves, drains, checks and the balancer pass them by. */
#include "tool_maps.h"

#include "balance_problem.h"
#include "check_report.h"
#include "drain_plan.h"
#include "placement_move.h"
#include "placement_wait.h"
#include "target_edit.h"
#include "tool_placement.h"

#define LAYERS  4 /* 0 and 2 have no experts */
#define EXPERTS 3

static sy_grid holes(void)
{
    sy_grid grid = {.layers = LAYERS, .experts = EXPERTS};

    sy_grid_set(&grid, 0, 0);
    sy_grid_set(&grid, 2, 0);
    return grid;
}

static void assert_ranges(const sy_grid *grid, const char *want)
{
    char text[SY_GRID_TEXT_BYTES];

    sy_grid_format(text, sizeof(text), grid);
    assert_string_equal(text, want);
}

/* ---- how they learn of them ---- */

static void servers_tell_which_layers_have_experts(void **state)
{
    static const char *const bad[] = {
        "{\"layers\":4,\"experts\":3,\"moe_layers\":\"2-7\"}",
        "{\"layers\":4,\"experts\":3,\"moe_layers\":\"all\"}",
        "{\"layers\":4,\"experts\":3,\"moe_layers\":\"\"}",
        "{\"layers\":0,\"experts\":3,\"moe_layers\":\"0\"}",
        "{\"layers\":2000,\"experts\":3}",
        "{\"layers\":4}",
        "[]",
        "{",
    };
    sy_grid grid;

    (void)state;
    assert_int_equal(
        fact_read_grid(&grid, "{\"layers\":4,\"experts\":3,\"moe_layers\":\"1,3\",\"rows\":[]}"),
        SY_OK);
    assert_ranges(&grid, "1,3");
    /* One that does not speak of it knows of no model with such layers. */
    assert_int_equal(fact_read_grid(&grid, "{\"layers\":4,\"experts\":3}"), SY_OK);
    assert_ranges(&grid, "0-3");
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++)
        if (fact_read_grid(&grid, bad[i]) == SY_OK) fail_msg("%s was taken", bad[i]);
}

static tool_hash hash_of(sy_placement_entry *entry, const char *const *fields)
{
    tool_hash hash = {.entry = entry};

    for (; fields[hash.n] != NULL; hash.n++)
        entry[hash.n] = (sy_placement_entry){fields[hash.n], strlen(fields[hash.n]), "a/cpu:0", 7};
    return hash;
}

#define GUESS(grid, ...)                                  \
    do {                                                  \
        sy_placement_entry entry[8];                      \
        const char *const fields[] = {__VA_ARGS__, NULL}; \
        const tool_hash hash = hash_of(entry, fields);    \
        tool_placement_guess((grid), &hash);              \
    } while (0)

static void without_servers_the_fields_show_which_layers_have_experts(void **state)
{
    sy_grid grid = {0}, stars = {0}, known = {.layers = 5};

    (void)state;
    GUESS(&grid, "1/0", "3/2", "4/*", "nonsense");
    assert_int_equal(grid.experts, 3);
    assert_ranges(&grid, "1,3-4");
    GUESS(&stars, "1/0", "*/2");
    assert_ranges(&stars, "0-1");
    GUESS(&known, "3/1"); /* with the layers known, nothing is guessed of them */
    assert_ranges(&known, "0-4");
    assert_int_equal(known.experts, 2);
}

static void the_text_of_a_model_names_the_layers_only_where_some_have_none(void **state)
{
    const sy_grid grid = holes(), all = {.layers = LAYERS, .experts = EXPERTS};
    char text[TOOL_GRID_BYTES];

    (void)state;
    assert_string_equal(tool_grid_text(text, &all), "4 layers of 3 experts");
    assert_string_equal(tool_grid_text(text, &grid),
                        "4 layers (those with experts: 1,3) of 3 experts");
}

/* ---- edits ---- */

static void a_move_of_all_experts_counts_those_that_exist(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    move_what what = {.field = {SY_ANY, 1}, .grid = holes(), .count = -1};
    size_t n = 0;

    (void)state;
    assert_int_equal(target_parse(&what.from, "a/cpu:0", NULL), SY_OK);
    assert_int_equal(target_parse(&what.to, "b/cpu:0", NULL), SY_OK);
    assert_int_equal(placement_move(&n, map, &what, NULL), SY_OK);
    assert_int_equal(n, 2);
    assert_field(map, "1/1", "b/cpu:0");
    assert_field(map, "3/1", "b/cpu:0");
    assert_field(map, "0/1", NULL);
    assert_field(map, "2/1", NULL);
    field_map_close(map);
}

static void a_drain_gives_fields_to_experts_that_exist_alone(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0", "2/0", "a/cpu:0");
    cluster_facts facts = {0};
    const sy_grid grid = holes();
    const drain_input input = {.node = "a", .facts = &facts, .grid = grid};
    sy_snapshot *snapshot = NULL;
    drain_result result;

    (void)state;
    add_node(&facts, "a", NULL);
    add_node(&facts, "b", NULL);
    add_node(&facts, "c", NULL);
    assert_int_equal(drain_fields(&result, map, &input, NULL), SY_OK);
    assert_int_equal(result.n_moved, 1);
    assert_field(map, "0/0", NULL);
    assert_field(map, "2/1", NULL);
    assert_field(map, "2/0", "a/cpu:0"); /* no server takes it, so it wants nothing */
    assert_non_null(field_map_get(map, "3/2", FIELD_AFTER));
    assert_int_equal(field_map_snapshot(&snapshot, map, FIELD_AFTER, &grid, NULL), SY_OK);
    assert_true(sy_snapshot_complete(snapshot));
    assert_false(sy_snapshot_names_node(snapshot, "a"));
    sy_snapshot_unref(snapshot);
    facts_free(&facts);
    field_map_close(map);
}

/* ---- looking ---- */

static sy_snapshot *snapshot_of(const field_map *map)
{
    const sy_grid grid = holes();
    sy_snapshot *snapshot = NULL;

    assert_int_equal(field_map_snapshot(&snapshot, map, FIELD_BEFORE, &grid, NULL), SY_OK);
    return snapshot;
}

static void a_check_misses_no_expert_that_is_none_and_reports_the_edit_of_one(void **state)
{
    field_map *map = MAP("1/*", "a/cpu:0", "3/*", "a/cpu:0", "2/1", "b/cpu:0");
    sy_snapshot *now = snapshot_of(map);
    cluster_facts facts = {0};
    check_report report;

    (void)state;
    snprintf(add_node(&facts, "a", "{\"devices\":[],\"shards\":[]}")->hash, 20, "%016llx",
             (unsigned long long)sy_snapshot_hash(now));
    assert_int_equal(check_report_make(&report, now, &facts, NULL), SY_OK);
    assert_int_equal(report.n, 1);
    assert_string_equal(report.finding[0].kind, "refused");
    assert_string_equal(report.finding[0].subject, "2/1");
    assert_non_null(strstr(report.finding[0].why, "layer 2 has no experts"));
    free(report.finding);
    sy_snapshot_unref(now);
    facts_free(&facts);
    field_map_close(map);
}

/* ---- the balancer ---- */

static int never(void *arg, const char *node)
{
    (void)arg;
    (void)node;
    return 0;
}

static void the_balancer_sees_layers_with_experts_alone(void **state)
{
    static const char *const canary[] = {"*/2"};
    static const double rows[LAYERS * EXPERTS] = {7, 7, 7, 1, 1, 1, 7, 7, 7, 1, 1, 1};
    field_map *map = MAP("*/*", "a/cpu:0");
    sy_snapshot *snapshot = snapshot_of(map);
    cluster_facts facts = {0};
    balance_question question = {.snapshot = snapshot,
                                 .map = map,
                                 .facts = &facts,
                                 .rows = rows,
                                 .is_gone = never,
                                 .canary = canary,
                                 .n_canaries = 1,
                                 .n_spare = 1,
                                 .replicas_max = 2,
                                 .min_replicas = -1};
    const sy_balance_options options = {.replicas_max = 2};
    balance_problem problem;
    sy_balance_plan plan;

    (void)state;
    add_node(&facts, "a", "{\"devices\":[],\"shards\":[]}");
    add_node(&facts, "b", "{\"devices\":[],\"shards\":[]}");
    assert_int_equal(balance_problem_make(&problem, &question, NULL), SY_OK);
    assert_int_equal(problem.input_device[0].slots, 4); /* 2 layers of 3 + 1, on 2 devices */
    assert_int_equal(problem.n_held[BALANCE_CANARY], 2);
    assert_int_equal(problem.n_waiting, 6);
    assert_int_equal(problem.min_replicas, 1);
    assert_int_equal(problem.device[0].n_held, 6);
    assert_int_equal(sy_balance(&plan, &problem.input, &options, NULL), SY_OK);
    assert_int_equal(plan.n_lost, 0);
    for (size_t i = 0; i < plan.n_changes; i++) assert_int_equal(plan.change[i].layer % 2, 1);
    assert_int_equal(plan.layer[2].verdict, SY_BALANCE_NO_EXPERTS);
    sy_balance_plan_free(&plan);
    balance_problem_free(&problem);
    sy_snapshot_unref(snapshot);
    facts_free(&facts);
    field_map_close(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_tell_which_layers_have_experts),
        cmocka_unit_test(without_servers_the_fields_show_which_layers_have_experts),
        cmocka_unit_test(the_text_of_a_model_names_the_layers_only_where_some_have_none),
        cmocka_unit_test(a_move_of_all_experts_counts_those_that_exist),
        cmocka_unit_test(a_drain_gives_fields_to_experts_that_exist_alone),
        cmocka_unit_test(a_check_misses_no_expert_that_is_none_and_reports_the_edit_of_one),
        cmocka_unit_test(the_balancer_sees_layers_with_experts_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
