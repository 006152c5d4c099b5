/* test_balance_cluster.c - how a cluster becomes a balancing problem, and a plan fields of the
 * placement: who takes part, what is left alone, how much fits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "balance_problem.h"

#define LAYERS      2
#define EXPERTS     4
#define GRID        (&(const sy_grid){.layers = LAYERS, .experts = EXPERTS})
#define SHARD_BYTES 100

/* A model of 2 layers of 4 experts, a placement, and nodes a, b, c with one device each. */
typedef struct cluster {
    sy_placement_entry entry[16];
    size_t n_entries;
    fact_process process[4];
    cluster_facts facts;
    double rows[LAYERS * EXPERTS];
    field_map *map;
    sy_snapshot *snapshot;
    balance_question question;
    balance_problem problem;
    const char *gone; /* a node that has been away for long enough, "*": all without lease; or NULL
                       */
} cluster;

static int is_gone(void *arg, const char *node)
{
    const cluster *const c = arg;

    return c->gone != NULL && (strcmp(c->gone, node) == 0 || strcmp(c->gone, "*") == 0);
}

static void put(cluster *c, const char *field, const char *value)
{
    c->entry[c->n_entries++] = (sy_placement_entry){field, strlen(field), value, strlen(value)};
}

static fact_process *add_node(cluster *c, const char *name)
{
    fact_process *const p = &c->process[c->facts.n++];

    p->kind = SY_MEMBER_NODE;
    snprintf(p->lease.name, sizeof(p->lease.name), "%s", name);
    snprintf(p->lease.devices, sizeof(p->lease.devices), "cpu:0");
    snprintf(p->lease.state, sizeof(p->lease.state), "serving");
    p->has_shards = 1;
    p->shards.n_devices = 1;
    snprintf(p->shards.device[0].name, sizeof(p->shards.device[0].name), "cpu:0");
    p->shards.shard = calloc(LAYERS * EXPERTS, sizeof(*p->shards.shard));
    assert_non_null(p->shards.shard);
    return p;
}

static void add_shard(fact_process *p, uint32_t layer, uint32_t expert, sy_shard_state state)
{
    p->shards.shard[p->shards.n++] = (fact_shard){
        .layer = layer, .expert = expert, .state = state, .device = "cpu:0", .wanted = 1};
}

static cluster *open_cluster(void)
{
    cluster *c = calloc(1, sizeof(*c));

    assert_non_null(c);
    c->facts.process = c->process;
    for (size_t i = 0; i < LAYERS * EXPERTS; i++) c->rows[i] = 100;
    c->question = (balance_question){.facts = &c->facts,
                                     .rows = c->rows,
                                     .is_gone = is_gone,
                                     .arg = c,
                                     .n_spare = 2,
                                     .replicas_max = 8,
                                     .shard_bytes = SHARD_BYTES};
    return c;
}

static sy_status make(cluster *c, sy_error *err)
{
    const tool_hash hash = {.entry = c->entry, .n = c->n_entries};

    assert_int_equal(field_map_open(&c->map, &hash, err), SY_OK);
    assert_int_equal(field_map_snapshot(&c->snapshot, c->map, FIELD_BEFORE, GRID, err), SY_OK);
    c->question.snapshot = c->snapshot;
    c->question.map = c->map;
    return balance_problem_make(&c->problem, &c->question, err);
}

static void must_make(cluster *c)
{
    sy_error err;

    sy_error_clear(&err);
    if (make(c, &err) != SY_OK) fail_msg("%s", err.message);
}

static void close_cluster(cluster *c)
{
    balance_problem_free(&c->problem);
    sy_snapshot_unref(c->snapshot);
    field_map_close(c->map);
    for (size_t i = 0; i < c->facts.n; i++) free(c->process[i].shards.shard);
    free(c);
}

static int hold_of(const cluster *c, uint32_t layer, uint32_t expert)
{
    return c->problem.hold[layer * EXPERTS + expert];
}

/* ---- who takes part ---- */

static void somebodys_experiment_is_left_alone(void **state)
{
    static const char *const canary[] = {"1/2,1/3"};
    cluster *c = open_cluster();

    (void)state;
    add_node(c, "a");
    add_node(c, "b");
    put(c, "*/*", "a/cpu:0");
    put(c, "0/0", "a/cpu:0@90 b/cpu:0@10");
    put(c, "0/1", "a/cpu:0 b/cpu:0@shadow");
    put(c, "0/2", "b/cpu:0!");
    put(c, "0/3", "a/cpu:0 b/cpu:0");
    put(c, "1/0", "b/cpu:0 nonsense");
    c->question.canary = canary;
    c->question.n_canaries = 1;
    must_make(c);
    assert_int_equal(hold_of(c, 0, 0), BALANCE_CANARY);
    assert_int_equal(hold_of(c, 0, 1), BALANCE_CANARY);
    assert_int_equal(hold_of(c, 0, 2), BALANCE_CANARY);
    assert_int_equal(hold_of(c, 0, 3), BALANCE_FREE);
    assert_int_equal(hold_of(c, 1, 0), BALANCE_REFUSED);
    assert_int_equal(hold_of(c, 1, 1), BALANCE_FREE);
    assert_int_equal(hold_of(c, 1, 2), BALANCE_CANARY);
    assert_int_equal(hold_of(c, 1, 3), BALANCE_CANARY);
    assert_int_equal(c->problem.n_held[BALANCE_CANARY], 5);
    /* 90 and 10 percent; a shadow computes as much as who serves. */
    assert_true(c->problem.share[0] > 0.899 && c->problem.share[0] < 0.901);
    assert_true(c->problem.load[1] > 199.9 && c->problem.load[1] < 200.1);
    close_cluster(c);
}

static void nodes_that_cannot_be_relied_on_take_no_part(void **state)
{
    cluster *c = open_cluster();

    (void)state;
    add_node(c, "a");
    snprintf(add_node(c, "b")->lease.state, 24, "draining");
    add_node(c, "c")->has_shards = 0;
    add_shard(add_node(c, "d"), 0, 3, SY_SHARD_FAILED);
    put(c, "*/*", "a/cpu:0");
    put(c, "0/0", "b/cpu:0");
    put(c, "0/1", "c/cpu:0 a/cpu:0");
    put(c, "0/3", "d/cpu:0");
    put(c, "1/1", "e/cpu:0"); /* no lease, but only just now */
    must_make(c);
    assert_int_equal(c->problem.input.n_devices, 1);
    assert_int_equal(hold_of(c, 0, 0), BALANCE_CLOSED);
    assert_int_equal(hold_of(c, 0, 1), BALANCE_CLOSED);
    assert_int_equal(hold_of(c, 0, 2), BALANCE_FREE);
    assert_int_equal(hold_of(c, 0, 3), BALANCE_CLOSED);
    assert_int_equal(hold_of(c, 1, 1), BALANCE_CLOSED);
    /* Half of what 0/1 does is done on a. */
    assert_true(c->problem.load[1] > 49.9 && c->problem.load[1] < 50.1);
    assert_string_equal(c->problem.node[1].why, "it is draining");
    assert_string_equal(c->problem.node[4].why, "it has no lease, but not for long");
    close_cluster(c);
}

static void what_a_gone_node_held_is_lost(void **state)
{
    cluster *c = open_cluster();

    (void)state;
    add_node(c, "a");
    put(c, "*/*", "a/cpu:0");
    put(c, "1/1", "e/cpu:0");
    c->gone = "e";
    must_make(c);
    assert_int_equal(hold_of(c, 1, 1), BALANCE_FREE);
    assert_int_equal(c->problem.holder[c->problem.offset[EXPERTS + 1]], SY_BALANCE_GONE);
    close_cluster(c);
}

static void without_nodes_it_says_why(void **state)
{
    cluster *c = open_cluster();
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    snprintf(add_node(c, "a")->lease.state, 24, "starting");
    put(c, "*/*", "a/cpu:0");
    assert_int_equal(make(c, &err), SY_ENOTFOUND);
    assert_non_null(strstr(err.message, "a: it is starting"));
    close_cluster(c);
}

/* ---- how much fits ---- */

static void slots_are_the_spare_ones_or_what_memory_has_room_for(void **state)
{
    cluster *c = open_cluster();
    fact_process *b;

    (void)state;
    add_node(c, "a");
    b = add_node(c, "b");
    /* Two shards and room for one and a half more. */
    add_shard(b, 0, 1, SY_SHARD_RESIDENT);
    add_shard(b, 1, 1, SY_SHARD_RESIDENT);
    b->shards.device[0].memory_bytes = 200;
    b->shards.device[0].memory_max_bytes = 350;
    put(c, "*/*", "a/cpu:0");
    put(c, "*/1", "b/cpu:0");
    must_make(c);
    assert_int_equal(c->problem.input_device[0].slots, 6); /* 2 layers of 4 + 2, on 2 devices */
    assert_int_equal(c->problem.input_device[1].slots, 3);
    close_cluster(c);
}

/* ---- the minimum of nodes ---- */

static void an_even_placement_on_two_nodes_each_stays_so(void **state)
{
    cluster *c = open_cluster();

    (void)state;
    for (int i = 0; i < 3; i++) add_node(c, i == 0 ? "a" : i == 1 ? "b" : "c");
    put(c, "*/*", "a/cpu:0 b/cpu:0");
    put(c, "0/0", "c/cpu:0 e/cpu:0");         /* e is gone, but wanted */
    put(c, "0/1", "a/cpu:0 b/cpu:0 c/cpu:0"); /* more than the least */
    put(c, "0/2", "a/cpu:0@100");             /* an experiment: no rule for others */
    put(c, "1/3", "");                        /* nowhere */
    c->gone = "e";
    c->question.min_replicas = -1;
    must_make(c);
    assert_int_equal(c->problem.min_replicas, 2);
    assert_true(c->problem.is_min_found);
    assert_int_equal(c->problem.input_device[0].slots, 7); /* 2 layers of 2 * 4 + 2, on 3 devices */
    close_cluster(c);
}

static void two_devices_of_one_node_are_one_node(void **state)
{
    cluster *c = open_cluster();

    (void)state;
    snprintf(add_node(c, "a")->lease.devices, 16, "cpu:0 cpu:1");
    add_node(c, "b");
    put(c, "*/*", "a/cpu:0 b/cpu:0");
    put(c, "0/0", "a/cpu:0 a/cpu:1");
    c->question.min_replicas = -1;
    must_make(c);
    assert_int_equal(c->problem.min_replicas, 1);
    close_cluster(c);
}

static void a_minimum_that_is_given_is_taken(void **state)
{
    cluster *c = open_cluster();

    (void)state;
    add_node(c, "a");
    add_node(c, "b");
    put(c, "*/*", "a/cpu:0");
    c->question.min_replicas = 2;
    must_make(c);
    assert_int_equal(c->problem.min_replicas, 2);
    assert_false(c->problem.is_min_found);
    assert_int_equal(c->problem.input_device[0].slots, 10); /* 2 layers of 2 * 4 + 2, on 2 */
    close_cluster(c);
}

/* Else the next round would take one holder for what was wanted, and nobody would repair it. */
static void who_stays_below_the_minimum_still_names_the_node_that_is_gone(void **state)
{
    cluster *c = open_cluster();
    sy_balance_plan plan;
    const sy_balance_options options = {
        .min_gain = 1e9, .min_replicas = 2, .budget_bytes = SHARD_BYTES};
    size_t n_fields;
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    add_node(c, "a");
    add_node(c, "b");
    put(c, "*/*", "a/cpu:0 b/cpu:0");
    put(c, "0/0", "e/cpu:0 f/cpu:0"); /* the budget is for one holder of two */
    c->gone = "*";
    c->question.min_replicas = -1;
    must_make(c);
    assert_int_equal(sy_balance(&plan, &c->problem.input, &options, &err), SY_OK);
    assert_int_equal(plan.n_short_left, 1);
    assert_int_equal(balance_set_fields(c->map, &n_fields, &c->problem, c->snapshot, &plan, &err),
                     SY_OK);
    assert_int_equal(n_fields, 1);
    assert_string_equal(field_map_get(c->map, "0/0", FIELD_AFTER), "a/cpu:0 e/cpu:0");
    sy_balance_plan_free(&plan);
    close_cluster(c);
}

static void what_is_on_its_way_is_waited_for(void **state)
{
    cluster *c = open_cluster();
    fact_process *b;

    (void)state;
    b = add_node(c, "b");
    for (uint32_t e = 0; e < EXPERTS; e++) {
        add_shard(b, 0, e, e == 2 ? SY_SHARD_LOADING : SY_SHARD_RESIDENT);
    }
    for (uint32_t e = 0; e < EXPERTS - 1; e++) add_shard(b, 1, e, SY_SHARD_RESIDENT);
    put(c, "*/*", "b/cpu:0");
    must_make(c);
    assert_int_equal(c->problem.n_waiting, 2); /* and 1/3, which it does not even know of */
    assert_string_equal(c->problem.waits_for, "0/2 is loading on b/cpu:0");
    close_cluster(c);
}

/* ---- the way back ---- */

static void a_plan_becomes_fields(void **state)
{
    cluster *c = open_cluster();
    const tool_field_change *change;
    sy_balance_plan plan;
    const sy_balance_options options = {0};
    size_t n, n_fields;
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    add_node(c, "a");
    add_node(c, "b");
    put(c, "0/*", "a/cpu:0"); /* all load of layer 0 on one node */
    put(c, "1/*", "a/cpu:0 b/cpu:0");
    c->rows[0] = 300; /* and half of it is one expert's: a replica on b makes two of it */
    must_make(c);
    assert_int_equal(sy_balance(&plan, &c->problem.input, &options, &err), SY_OK);
    assert_int_equal(balance_set_fields(c->map, &n_fields, &c->problem, c->snapshot, &plan, &err),
                     SY_OK);
    assert_true(n_fields >= 1 && plan.after.worst < 1.01);
    assert_int_equal(field_map_changes(&change, &n, c->map), SY_OK);
    /* The star that spoke for them is guarded, and stays. */
    assert_int_equal(n, n_fields + 1);
    assert_string_equal(change[0].field, "0/*");
    assert_string_equal(change[0].before, change[0].after);
    for (size_t i = 1; i < n; i++) {
        sy_target_list list;

        assert_null(change[i].before);
        assert_int_equal(strncmp(change[i].field, "0/", 2), 0);
        assert_int_equal(sy_targets_parse(&list, change[i].after, strlen(change[i].after), NULL),
                         SY_OK);
    }
    sy_balance_plan_free(&plan);
    close_cluster(c);
}

static void targets_that_stay_keep_their_order(void **state)
{
    cluster *c = open_cluster();
    sy_balance_plan plan;
    const sy_balance_options options = {.min_gain = 1e9};
    size_t n_fields;
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    add_node(c, "a");
    add_node(c, "b");
    add_node(c, "c");
    put(c, "*/*", "a/cpu:0");
    put(c, "0/0", "c/cpu:0 e/cpu:0 b/cpu:0");
    c->gone = "e";
    c->question.n_spare = 8;
    must_make(c);
    assert_int_equal(sy_balance(&plan, &c->problem.input, &options, &err), SY_OK);
    assert_int_equal(balance_set_fields(c->map, &n_fields, &c->problem, c->snapshot, &plan, &err),
                     SY_OK);
    assert_int_equal(n_fields, 1);
    assert_string_equal(field_map_get(c->map, "0/0", FIELD_AFTER), "c/cpu:0 b/cpu:0 a/cpu:0");
    assert_int_equal(plan.change[0].why, SY_BALANCE_LOST_REPLICA);
    sy_balance_plan_free(&plan);
    close_cluster(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(somebodys_experiment_is_left_alone),
        cmocka_unit_test(nodes_that_cannot_be_relied_on_take_no_part),
        cmocka_unit_test(what_a_gone_node_held_is_lost),
        cmocka_unit_test(without_nodes_it_says_why),
        cmocka_unit_test(slots_are_the_spare_ones_or_what_memory_has_room_for),
        cmocka_unit_test(an_even_placement_on_two_nodes_each_stays_so),
        cmocka_unit_test(two_devices_of_one_node_are_one_node),
        cmocka_unit_test(a_minimum_that_is_given_is_taken),
        cmocka_unit_test(who_stays_below_the_minimum_still_names_the_node_that_is_gone),
        cmocka_unit_test(what_is_on_its_way_is_waited_for),
        cmocka_unit_test(a_plan_becomes_fields),
        cmocka_unit_test(targets_that_stay_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
