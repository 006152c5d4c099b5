/* test_placement_edits.c - moves, drains, undoing and waiting, on placements in memory. */
#include "tool_maps.h"

#include "drain_plan.h"
#include "placement_move.h"
#include "placement_undo.h"
#include "placement_wait.h"
#include "target_edit.h"

#define LAYERS  2
#define EXPERTS 3
#define GRID    (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})

static size_t move(field_map *map, sy_field field, const char *from, const char *to, int64_t count)
{
    move_what what = {.field = field, .grid = *GRID, .count = count};
    size_t n = 0;

    assert_int_equal(target_parse(&what.from, from, NULL), SY_OK);
    assert_int_equal(target_parse(&what.to, to, NULL), SY_OK);
    assert_int_equal(placement_move(&n, map, &what, NULL), SY_OK);
    return n;
}

/* ---- moves ---- */

static void an_expert_moves_and_its_replica_stays(void **state)
{
    field_map *map = MAP("1/2", "a/cpu:0 b/cpu:0");

    (void)state;
    assert_int_equal(move(map, (sy_field){1, 2}, "a/cpu:0", "c/cpu:0", -1), 1);
    assert_field(map, "1/2", "c/cpu:0 b/cpu:0");
    field_map_close(map);
}

static void where_a_wildcard_spoke_the_expert_gets_a_field_of_its_own(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");

    (void)state;
    assert_int_equal(move(map, (sy_field){1, 2}, "a/cpu:0", "b/cpu:0", -1), 1);
    assert_field(map, "*/*", "a/cpu:0");
    assert_field(map, "1/2", "b/cpu:0");
    field_map_close(map);
}

static void a_wildcard_inside_the_pattern_is_edited_itself(void **state)
{
    field_map *map = MAP("1/*", "a/cpu:0", "1/0", "a/cpu:0 b/cpu:0", "*/*", "a/cpu:0");

    (void)state;
    assert_int_equal(move(map, (sy_field){1, SY_ANY}, "a/cpu:0", "c/cpu:0", -1), 3);
    assert_field(map, "1/*", "c/cpu:0");
    assert_field(map, "1/0", "c/cpu:0 b/cpu:0");
    assert_field(map, "*/*", "a/cpu:0");
    assert_field(map, "1/1", NULL);
    field_map_close(map);
}

static void a_count_moves_so_many_and_no_more(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");

    (void)state;
    assert_int_equal(move(map, (sy_field){SY_ANY, SY_ANY}, "a/cpu:0", "b/cpu:0", 4), 4);
    assert_field(map, "0/0", "b/cpu:0");
    assert_field(map, "1/0", "b/cpu:0");
    assert_field(map, "1/1", NULL);
    assert_field(map, "*/*", "a/cpu:0");
    field_map_close(map);
}

static void a_move_of_nothing_says_so(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");

    (void)state;
    assert_int_equal(move(map, (sy_field){SY_ANY, SY_ANY}, "b/cpu:0", "c/cpu:0", -1), 0);
    assert_int_equal(move(map, (sy_field){SY_ANY, SY_ANY}, "a/cpu:0", "a/cpu:0", -1), 0);
    field_map_close(map);
}

/* ---- drains ---- */

static sy_status drain(drain_result *out, field_map *map, const cluster_facts *facts,
                       uint64_t shard_bytes)
{
    const drain_input input = {
        .node = "a", .facts = facts, .grid = *GRID, .shard_bytes = shard_bytes};

    return drain_fields(out, map, &input, NULL);
}

static void a_drained_node_is_named_nowhere_and_every_expert_has_a_target(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0", "0/0", "a/cpu:0@95 b/cpu:0@5", "0/1",
                         "b/cpu:0 a/cpu:0@shadow", "1/1", "a/cpu:0 a/cpu:1 c/cpu:0@shadow");
    cluster_facts facts = {0};
    drain_result result;
    sy_snapshot *snapshot = NULL;

    (void)state;
    add_node(&facts, "a", NULL);
    add_node(&facts, "b", NULL);
    add_node(&facts, "c", NULL);
    assert_int_equal(drain(&result, map, &facts, 0), SY_OK);
    assert_int_equal(result.n_dropped, 2);
    assert_int_equal(result.n_moved, 2);
    assert_field(map, "0/0", "b/cpu:0@100");
    assert_field(map, "0/1", "b/cpu:0");
    assert_field(map, "1/1", "c/cpu:0"); /* the shadow serves now: it has the shard already */
    assert_int_equal(field_map_snapshot(&snapshot, map, FIELD_AFTER, GRID, NULL), SY_OK);
    assert_true(sy_snapshot_complete(snapshot));
    assert_false(sy_snapshot_names_node(snapshot, "a"));
    assert_non_null(strpbrk(field_map_get(map, "*/*", FIELD_AFTER), "bc"));
    sy_snapshot_unref(snapshot);
    facts_free(&facts);
    field_map_close(map);
}

static void a_wildcards_experts_are_spread_over_those_who_remain(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    cluster_facts facts = {0};
    drain_result result;
    size_t n[2] = {0};

    (void)state;
    add_node(&facts, "a", NULL);
    add_node(&facts, "b", NULL);
    add_node(&facts, "c", NULL);
    assert_int_equal(drain(&result, map, &facts, 0), SY_OK);
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        char field[16];

        snprintf(field, sizeof(field), "%u/%u", i / EXPERTS, i % EXPERTS);
        n[strcmp(field_map_get(map, field, FIELD_AFTER), "c/cpu:0") == 0]++;
    }
    assert_int_equal(n[0], 3);
    assert_int_equal(n[1], 3);
    facts_free(&facts);
    field_map_close(map);
}

static void with_one_other_node_the_wildcard_is_rewritten(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    cluster_facts facts = {0};
    drain_result result;

    (void)state;
    add_node(&facts, "a", NULL);
    add_node(&facts, "b", NULL);
    assert_int_equal(drain(&result, map, &facts, 0), SY_OK);
    assert_field(map, "*/*", "b/cpu:0");
    assert_field(map, "0/0", NULL);
    facts_free(&facts);
    field_map_close(map);
}

static void a_drain_goes_neither_to_stopping_nodes_nor_to_other_weights(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    cluster_facts facts = {0};
    drain_result result;

    (void)state;
    snprintf(add_node(&facts, "a", NULL)->lease.checkpoint_hash, 20, "1111111111111111");
    snprintf(add_node(&facts, "b", NULL)->lease.checkpoint_hash, 20, "2222222222222222");
    snprintf(add_node(&facts, "c", NULL)->lease.state, 24, "draining");
    assert_int_equal(drain(&result, map, &facts, 0), SY_EUNAVAILABLE);
    facts_free(&facts);
    field_map_close(map);
}

static void a_drain_does_not_fill_a_node_past_its_memory(void **state)
{
    static const char full[] = "{\"devices\":[{\"device\":\"cpu:0\",\"memory_bytes\":90,"
                               "\"memory_max_bytes\":100}],\"shards\":[]}";
    field_map *map = MAP("0/0", "a/cpu:0", "0/1", "a/cpu:0");
    cluster_facts facts = {0};
    drain_result result;

    (void)state;
    add_node(&facts, "a", NULL);
    add_node(&facts, "b", full);
    assert_int_equal(drain(&result, map, &facts, 10), SY_ELIMIT);
    facts_free(&facts);
    field_map_close(map);
}

#define SHARD(layer, expert, shard_state, is_wanted)                        \
    "{\"layer\":" #layer ",\"expert\":" #expert ",\"state\":\"" shard_state \
    "\",\"device\":\"cpu:0\",\"wanted\":" is_wanted ",\"percent\":50,\"reason\":\"broken\"}"
#define SHARDS(list) "{\"devices\":[],\"shards\":[" list "]}"

static int is_safe(const char *placement, const char *a, const char *b)
{
    field_map *map = MAP("*/*", placement);
    cluster_facts facts = {0};
    sy_snapshot *now = NULL;
    char why[200];
    int safe;

    add_node(&facts, "a", a);
    add_node(&facts, "b", b);
    assert_int_equal(field_map_snapshot(&now, map, FIELD_BEFORE, GRID, NULL), SY_OK);
    safe = drain_is_safe("a", why, sizeof(why), now, &facts);
    sy_snapshot_unref(now);
    facts_free(&facts);
    field_map_close(map);
    return safe;
}

static void a_node_is_safe_to_stop_when_another_has_what_lingers(void **state)
{
    static const char lingers[] = SHARDS(SHARD(0, 1, "lingering", "false"));

    (void)state;
    assert_true(is_safe("b/cpu:0", lingers, SHARDS(SHARD(0, 1, "resident", "true"))));
    assert_true(is_safe("b/cpu:0", SHARDS(""), SHARDS("")));
    assert_false(is_safe("b/cpu:0", lingers, SHARDS(SHARD(0, 1, "loading", "true"))));
    assert_false(is_safe("b/cpu:0", lingers, SHARDS("")));
    assert_false(is_safe("b/cpu:0", lingers, NULL));
    assert_false(is_safe("a/cpu:0", lingers, SHARDS(SHARD(0, 1, "resident", "true"))));
    assert_false(is_safe("b/cpu:0", SHARDS(SHARD(0, 1, "resident", "true")),
                         SHARDS(SHARD(0, 1, "resident", "true"))));
    assert_false(is_safe("b/cpu:0", NULL, SHARDS(SHARD(0, 1, "resident", "true"))));
}

/* ---- undoing ---- */

static history_entry entry_of(const tool_field_change *change, size_t n)
{
    return (history_entry){.id = "7-0",
                           .author = "who",
                           .reason = "why",
                           .command = "what",
                           .change = change,
                           .n = n,
                           .n_fields = n};
}

static void an_entry_is_undone_field_by_field(void **state)
{
    static const tool_field_change change[] = {
        {"0/0", "a/cpu:0", "b/cpu:0"}, {"0/1", NULL, "b/cpu:0"}, {"0/2", "a/cpu:0", NULL}};
    const history_entry entry = entry_of(change, 3);
    field_map *map = MAP("0/0", "b/cpu:0", "0/1", "b/cpu:0", "1/1", "c/cpu:0");

    (void)state;
    assert_int_equal(undo_entry(map, &entry, 0, NULL), SY_OK);
    assert_field(map, "0/0", "a/cpu:0");
    assert_field(map, "0/1", NULL);
    assert_field(map, "0/2", "a/cpu:0");
    assert_field(map, "1/1", "c/cpu:0");
    field_map_close(map);
}

static void what_somebody_changed_since_is_not_undone_but_by_force(void **state)
{
    static const tool_field_change change[] = {{"0/0", "a/cpu:0", "b/cpu:0"}};
    const history_entry entry = entry_of(change, 1);
    field_map *map = MAP("0/0", "c/cpu:0");
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    assert_int_equal(undo_entry(map, &entry, 0, &err), SY_EEXISTS);
    assert_string_equal(err.reason, "PLACEMENT_CHANGED");
    assert_int_equal(undo_entry(map, &entry, 1, &err), SY_OK);
    assert_field(map, "0/0", "a/cpu:0");
    field_map_close(map);
}

static void an_entry_without_its_changes_cannot_be_undone(void **state)
{
    const history_entry entry = entry_of(NULL, 0);
    field_map *map = MAP("0/0", "c/cpu:0");

    (void)state;
    assert_int_equal(undo_entry(map, &entry, 1, NULL), SY_EPRECONDITION);
    field_map_close(map);
}

/* ---- waiting ---- */

static void waiting_ends_when_all_follow_and_what_is_new_is_resident(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    sy_snapshot *before = NULL, *after = NULL;
    wait_list list;
    wait_view view;
    cluster_facts facts = {0};
    fact_process *b;

    (void)state;
    assert_int_equal(field_map_set(map, "0/1", "a/cpu:0 b/cpu:0"), SY_OK);
    assert_int_equal(field_map_snapshot(&before, map, FIELD_BEFORE, GRID, NULL), SY_OK);
    assert_int_equal(field_map_snapshot(&after, map, FIELD_AFTER, GRID, NULL), SY_OK);
    assert_int_equal(wait_list_between(&list, before, after, NULL), SY_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.want[0].expert, 1);
    wait_look(&view, &list, after, &facts); /* the node is not there */
    assert_false(view.is_done);
    assert_non_null(strstr(view.waits_for, "b is not there"));
    b = add_node(&facts, "b", SHARDS(SHARD(0, 1, "failed", "true")));
    wait_look(&view, &list, after, &facts);
    assert_int_equal(view.n_failed, 1);
    assert_non_null(strstr(view.failed, "broken"));
    free(b->shards.shard);
    assert_int_equal(fact_read_shards(&b->shards, SHARDS(SHARD(0, 1, "resident", "true"))), SY_OK);
    wait_look(&view, &list, after, &facts);
    assert_int_equal(view.n_resident, 1);
    assert_false(view.is_done); /* it has no placement in force yet */
    snprintf(b->hash, sizeof(b->hash), "%016llx", (unsigned long long)sy_snapshot_hash(after));
    wait_look(&view, &list, after, &facts);
    assert_true(view.is_done);
    snprintf(b->hash, sizeof(b->hash), "%016llx", (unsigned long long)sy_snapshot_hash(before));
    wait_look(&view, &list, before, &facts); /* somebody took the edit back */
    assert_int_equal(view.n_gone, 1);
    assert_true(view.is_done);
    free(list.want);
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
    facts_free(&facts);
    field_map_close(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_expert_moves_and_its_replica_stays),
        cmocka_unit_test(where_a_wildcard_spoke_the_expert_gets_a_field_of_its_own),
        cmocka_unit_test(a_wildcard_inside_the_pattern_is_edited_itself),
        cmocka_unit_test(a_count_moves_so_many_and_no_more),
        cmocka_unit_test(a_move_of_nothing_says_so),
        cmocka_unit_test(a_drained_node_is_named_nowhere_and_every_expert_has_a_target),
        cmocka_unit_test(a_wildcards_experts_are_spread_over_those_who_remain),
        cmocka_unit_test(with_one_other_node_the_wildcard_is_rewritten),
        cmocka_unit_test(a_drain_goes_neither_to_stopping_nodes_nor_to_other_weights),
        cmocka_unit_test(a_drain_does_not_fill_a_node_past_its_memory),
        cmocka_unit_test(a_node_is_safe_to_stop_when_another_has_what_lingers),
        cmocka_unit_test(an_entry_is_undone_field_by_field),
        cmocka_unit_test(what_somebody_changed_since_is_not_undone_but_by_force),
        cmocka_unit_test(an_entry_without_its_changes_cannot_be_undone),
        cmocka_unit_test(waiting_ends_when_all_follow_and_what_is_new_is_resident),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
