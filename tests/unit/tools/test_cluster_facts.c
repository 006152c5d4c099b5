/* test_cluster_facts.c - what processes say of themselves, and what is made of it: the check of a
 * placement, and what a plan would do. */
#include "tool_maps.h"

#include "check_report.h"
#include "plan_report.h"

#define LAYERS  1
#define EXPERTS 4
#define GRID    (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})

static const char shards_json[] =
    "{\"node\":\"a\",\"hash\":\"0123\",\"devices\":[{\"device\":\"cpu:0\",\"memory_bytes\":70,"
    "\"memory_max_bytes\":100}],\"shards\":["
    "{\"layer\":0,\"expert\":3,\"state\":\"failed\",\"device\":\"cpu:0\",\"reason\":\"bad\\u001b"
    "[2J\"},"
    "{\"layer\":0,\"expert\":0,\"state\":\"resident\",\"device\":\"cpu:0\",\"bytes\":10,"
    "\"wanted\":true,\"percent\":100},"
    "{\"layer\":0,\"expert\":1,\"state\":\"lingering\",\"device\":\"cpu:0\",\"bytes\":10}]}";

static sy_snapshot *snapshot_of(const field_map *map, field_side side)
{
    sy_snapshot *snapshot = NULL;

    assert_int_equal(field_map_snapshot(&snapshot, map, side, GRID, NULL), SY_OK);
    return snapshot;
}

static void shards_are_found_by_layer_and_expert(void **state)
{
    cluster_facts facts = {0};
    const fact_process *a = add_node(&facts, "a", shards_json);

    (void)state;
    assert_int_equal(a->shards.n, 3);
    assert_int_equal(fact_find_shard(a, 0, 1)->state, SY_SHARD_LINGERING);
    assert_string_equal(fact_find_shard(a, 0, 3)->reason, "bad\\x1b[2J");
    assert_null(fact_find_shard(a, 0, 2));
    assert_null(fact_find_shard(a, 1, 0));
    assert_int_equal(a->shards.n_in_state[SY_SHARD_RESIDENT], 1);
    assert_int_equal(a->shards.device[0].memory_max_bytes, 100);
    assert_int_equal(facts_shard_bytes(&facts), 10);
    facts_free(&facts);
}

static void odd_answers_are_refused_or_bounded(void **state)
{
    static const char *const odd[] = {"", "[]", "{}", "{\"shards\":4}", "{\"shards\":{}}"};
    fact_shards shards;
    fact_process p = {0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(odd); i++) {
        assert_int_equal(fact_read_shards(&shards, odd[i]), SY_EDATALOSS);
    }
    assert_int_equal(fact_read_shards(&shards, "{\"shards\":[1,{},{\"layer\":-1,\"expert\":1e9},"
                                               "{\"layer\":99999999999,\"expert\":0}]}"),
                     SY_OK);
    for (size_t i = 0; i < shards.n; i++) assert_int_equal(shards.shard[i].state, SY_SHARD_ABSENT);
    free(shards.shard);
    assert_int_equal(fact_read_placement(&p, "{\"hash\":null,\"refused\":-4}"), SY_OK);
    assert_string_equal(p.hash, "");
    assert_int_equal(p.refused, 0);
    assert_int_equal(fact_read_placement(&p, "nonsense"), SY_EDATALOSS);
}

/* ---- check ---- */

static void assert_found(const check_report *r, const char *kind, const char *subject,
                         const char *says)
{
    for (size_t i = 0; i < r->n; i++) {
        const check_finding *f = &r->finding[i];

        if (strcmp(f->kind, kind) == 0 && strcmp(f->subject, subject) == 0 &&
            strstr(f->why, says) != NULL) {
            return;
        }
    }
    for (size_t i = 0; i < r->n; i++) {
        print_message("%s: %s: %s\n", r->finding[i].kind, r->finding[i].subject, r->finding[i].why);
    }
    fail_msg("no '%s' of '%s' that says '%s'", kind, subject, says);
}

static void all_is_well_where_nothing_is_wrong(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    sy_snapshot *now = snapshot_of(map, FIELD_BEFORE);
    cluster_facts facts = {0};
    fact_process *a = add_node(&facts, "a", "{\"shards\":[]}");
    check_report r;

    (void)state;
    snprintf(a->hash, sizeof(a->hash), "%016llx", (unsigned long long)sy_snapshot_hash(now));
    assert_int_equal(check_report_make(&r, now, &facts, NULL), SY_OK);
    assert_int_equal(r.n, 0);
    assert_int_equal(r.n_switched, 1);
    free(r.finding);
    sy_snapshot_unref(now);
    facts_free(&facts);
    field_map_close(map);
}

static void every_mistake_is_found_with_its_reason(void **state)
{
    field_map *map = MAP("0/0", "a/cpu:0", "0/1", "gone/cpu:0", "0/2", "a/cpu:7", "9/1", "a/cpu:0",
                         "1/1", "nonsense");
    sy_snapshot *now = snapshot_of(map, FIELD_BEFORE);
    cluster_facts facts = {0};
    fact_process *a = add_node(&facts, "a", shards_json);
    fact_process *b = add_node(&facts, "b", NULL);
    check_report r;

    (void)state;
    snprintf(a->lease.checkpoint_hash, 20, "1111");
    snprintf(b->lease.checkpoint_hash, 20, "2222");
    snprintf(a->hash, sizeof(a->hash), "aaaa");
    b->answers = 0;
    snprintf(b->why, sizeof(b->why), "no answer in time");
    assert_int_equal(check_report_make(&r, now, &facts, NULL), SY_OK);
    assert_found(&r, "refused", "9/1", "layer 9");
    assert_found(&r, "refused", "1/1", "nonsense");
    assert_found(&r, "no target", "0/3", "1 experts");
    assert_found(&r, "not served", "0/1", "");
    assert_found(&r, "unknown node", "gone/cpu:0", "1 experts");
    assert_found(&r, "unknown device", "a/cpu:7", "announces cpu:0");
    assert_found(&r, "other weights", "b", "2222");
    assert_found(&r, "no answer", "b", "no answer in time");
    assert_found(&r, "failed", "0/3 on a", "bad");
    assert_int_equal(r.n_in_state[SY_SHARD_LINGERING], 1);
    free(r.finding);
    sy_snapshot_unref(now);
    facts_free(&facts);
    field_map_close(map);
}

static void a_process_that_lags_behind_is_found(void **state)
{
    field_map *map = MAP("*/*", "a/cpu:0");
    sy_snapshot *now = snapshot_of(map, FIELD_BEFORE);
    cluster_facts facts = {0};
    check_report r;

    (void)state;
    snprintf(add_node(&facts, "a", "{\"shards\":[]}")->hash, 20, "00000000deadbeef");
    assert_int_equal(check_report_make(&r, now, &facts, NULL), SY_OK);
    assert_int_equal(r.n, 1);
    assert_found(&r, "other placement", "a", "00000000deadbeef");
    free(r.finding);
    sy_snapshot_unref(now);
    facts_free(&facts);
    field_map_close(map);
}

/* ---- plans ---- */

static const plan_device *device(const plan_report *r, const char *node)
{
    for (size_t i = 0; i < r->n_devices; i++) {
        if (strcmp(r->device[i].node, node) == 0) return &r->device[i];
    }
    fail_msg("no device of %s", node);
    return NULL;
}

static int warns(const plan_report *r, const char *says)
{
    for (size_t i = 0; i < r->n_warnings; i++) {
        if (strstr(r->warning[i], says) != NULL) return 1;
    }
    return 0;
}

static void a_plan_counts_experts_loads_and_bytes(void **state)
{
    static const uint64_t rows[EXPERTS] = {0, 30, 10, 0};
    field_map *map = MAP("*/*", "b/cpu:0");
    cluster_facts facts = {0};
    sy_snapshot *before, *after;
    plan_report r;

    (void)state;
    add_node(&facts, "a", shards_json);
    add_node(&facts, "b", "{\"shards\":[]}");
    assert_int_equal(field_map_set(map, "0/0", "a/cpu:0 b/cpu:0"), SY_OK);           /* has it */
    assert_int_equal(field_map_set(map, "0/1", "a/cpu:0@50 b/cpu:0@50"), SY_OK);     /* lingers */
    assert_int_equal(field_map_set(map, "0/2", "a/cpu:0"), SY_OK);                   /* loads */
    assert_int_equal(field_map_set(map, "0/3", "a/cpu:0 gone/cpu:0@shadow"), SY_OK); /* failed */
    before = snapshot_of(map, FIELD_BEFORE);
    after = snapshot_of(map, FIELD_AFTER);
    const plan_input input = {.before = before, .after = after, .facts = &facts, .rows = rows};

    assert_int_equal(plan_report_make(&r, &input, NULL), SY_OK);
    assert_int_equal(r.n_experts, 4);
    assert_int_equal(r.n_loads, 3); /* 0/2 and 0/3 on a, 0/3 on gone */
    assert_int_equal(r.n_drops, 2);
    assert_int_equal(r.shard_bytes, 10);
    assert_int_equal(r.load_bytes, 30);
    assert_int_equal(device(&r, "b")->n_before, 4);
    assert_int_equal(device(&r, "b")->n_after, 2);
    assert_int_equal(device(&r, "a")->n_after, 4);
    assert_true(device(&r, "b")->load_before == 1);
    assert_true(device(&r, "b")->load_after == 15.0 / 40);
    assert_true(device(&r, "gone")->load_after == 0); /* a shadow serves nobody */
    assert_true(warns(&r, "gone has no lease"));
    assert_false(warns(&r, "may have")); /* 70 + 20 of 100 */
    plan_report_free(&r);
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
    facts_free(&facts);
    field_map_close(map);
}

static void a_plan_warns_of_memory_and_of_refusals(void **state)
{
    field_map *map = MAP("*/*", "b/cpu:0");
    cluster_facts facts = {0};
    sy_snapshot *before, *after;
    plan_report r;

    (void)state;
    add_node(&facts, "a", shards_json);
    add_node(&facts, "b", "{\"shards\":[]}");
    assert_int_equal(field_map_set(map, "0/2", "a/cpu:0"), SY_OK);
    assert_int_equal(field_map_set(map, "*/*", NULL), SY_OK);
    before = snapshot_of(map, FIELD_BEFORE);
    after = snapshot_of(map, FIELD_AFTER);
    const plan_input input = {.before = before, .after = after, .facts = &facts, .shard_bytes = 31};

    assert_int_equal(plan_report_make(&r, &input, NULL), SY_OK);
    assert_true(warns(&r, "may have 100 B"));
    assert_true(warns(&r, "as a whole"));
    plan_report_free(&r);
    sy_snapshot_unref(before);
    sy_snapshot_unref(after);
    facts_free(&facts);
    field_map_close(map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_found_by_layer_and_expert),
        cmocka_unit_test(odd_answers_are_refused_or_bounded),
        cmocka_unit_test(all_is_well_where_nothing_is_wrong),
        cmocka_unit_test(every_mistake_is_found_with_its_reason),
        cmocka_unit_test(a_process_that_lags_behind_is_found),
        cmocka_unit_test(a_plan_counts_experts_loads_and_bytes),
        cmocka_unit_test(a_plan_warns_of_memory_and_of_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
