/* test_balance.c - what the balancer does with small placements that can be worked out by hand. */
#include "balance_fixture.h"
#include "sy_base.h"

static void set_loads(fixture *f, const double *load)
{
    memcpy(f->load, load, (size_t)f->layers * f->experts * sizeof(*f->load));
}

static void assert_ratio(double got, double want)
{
    if (got < want - 1e-9 || got > want + 1e-9) fail_msg("max/mean %.6f, expected %.6f", got, want);
}

static void the_hottest_expert_gets_a_replica_on_another_node(void **state)
{
    static const double load[] = {60, 10, 10, 20};
    fixture f = fix_open(1, 4, 4, 2, 2); /* devices 0, 1 on one node, 2, 3 on another */
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 1 2 3");
    f.options.replicas_max = 2;
    plan = fix_plan(&f);
    /* 60 can be halved, and no further: 30 on each node is the least there can be. */
    assert_ratio(plan.before.mean, 60.0 / 25.0);
    assert_ratio(plan.after.mean, 30.0 / 25.0);
    assert_ratio(plan.layer[0].bound / plan.layer[0].mean, 30.0 / 25.0);
    assert_int_equal(plan.offset[1], 2);
    assert_int_equal(plan.holder[0], 0);
    assert_in_range(plan.holder[1], 2, 3);
    assert_int_equal(plan.change[0].why, SY_BALANCE_REPLICATED);
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_IMPROVED);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void one_move_is_enough_where_one_move_is_enough(void **state)
{
    static const double load[] = {10, 10, 10, 10, 10, 10};
    fixture f = fix_open(1, 6, 3, 1, 3);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 0 0 1 1 2");
    plan = fix_plan(&f);
    assert_ratio(plan.before.mean, 1.5);
    assert_ratio(plan.after.mean, 1.0);
    assert_int_equal(plan.n_loads, 1);
    assert_int_equal(plan.n_drops, 1);
    assert_int_equal(plan.load_bytes, FIX_SHARD_BYTES);
    assert_int_equal(plan.n_changes, 1);
    assert_int_equal(plan.change[0].why, SY_BALANCE_MOVED);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void an_even_placement_is_left_alone(void **state)
{
    static const double load[] = {10, 20, 30, 30, 20, 10};
    fixture f = fix_open(1, 6, 3, 1, 3);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 1 2 0 1 2");
    plan = fix_plan(&f);
    assert_int_equal(plan.n_loads, 0);
    assert_int_equal(plan.n_changes, 0);
    assert_string_equal(fix_show(&plan, 0), "0 1 2 0 1 2");
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_EVEN);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void a_layer_without_load_is_left_alone(void **state)
{
    fixture f = fix_open(2, 2, 2, 1, 2);
    sy_balance_plan plan;

    (void)state;
    f.load[0] = f.load[1] = 5; /* of layer 0 */
    fix_place(&f, "0 0 1 1");
    plan = fix_plan(&f);
    assert_int_equal(plan.layer[1].verdict, SY_BALANCE_NO_LOAD);
    assert_string_equal(fix_show(&plan, 1), "1 1");
    assert_ratio(plan.before.mean, 2.0); /* of the one layer that has any */
    assert_ratio(plan.after.mean, 1.0);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void a_gain_below_the_threshold_is_said_and_not_taken(void **state)
{
    static const double load[] = {10, 10, 10, 11, 10, 9};
    fixture f = fix_open(1, 6, 3, 1, 2);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 0 1 1 2 2");
    f.options.min_gain = 0.1;
    plan = fix_plan(&f);
    assert_int_equal(plan.n_changes, 0);
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_TOO_LITTLE);
    assert_ratio(plan.layer[0].better / plan.layer[0].mean, 1.0);
    assert_int_equal(plan.layer[0].need_loads, 2);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void the_layer_that_gains_most_comes_first_in_a_budget(void **state)
{
    static const double load[] = {10, 10, 10, 10, 90, 90, 10, 10};
    fixture f = fix_open(2, 4, 2, 1, 3);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 0 0 1 0 0 1 1");
    f.options.budget_bytes = 2 * FIX_SHARD_BYTES - 1; /* one load, not two */
    plan = fix_plan(&f);
    assert_int_equal(plan.n_loads, 1);
    assert_string_equal(fix_show(&plan, 0), "0 0 0 1");
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_OVER_BUDGET);
    assert_true(plan.layer[1].after < plan.layer[1].before);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void a_lost_expert_is_placed_before_anything_else(void **state)
{
    static const double load[] = {100, 100, 1, 1};
    fixture f = fix_open(1, 4, 2, 1, 3);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 0 1 x");
    f.options.budget_bytes = FIX_SHARD_BYTES;
    f.options.min_gain = 10; /* nothing else is worth it; a lost one is anyway */
    plan = fix_plan(&f);
    assert_string_equal(fix_show(&plan, 0), "0 0 1 1");
    assert_int_equal(plan.n_lost, 1);
    assert_int_equal(plan.n_lost_left, 0);
    assert_int_equal(plan.n_changes, 1);
    assert_int_equal(plan.change[0].why, SY_BALANCE_LOST);
    assert_int_equal(plan.change[0].n_loads, 1);
    assert_int_equal(plan.change[0].n_drops, 0);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void experts_without_any_holder_come_before_lost_replicas(void **state)
{
    static const double load[] = {100, 3, 1, 2};
    fixture f = fix_open(1, 4, 3, 1, 3);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,x x - x");
    f.options.budget_bytes = 2 * FIX_SHARD_BYTES;
    f.options.min_gain = 10;
    plan = fix_plan(&f);
    /* The busier two of the three; the hot expert's replica waits, it is being served. */
    assert_string_equal(fix_show(&plan, 0), "0 1 - 2");
    assert_int_equal(plan.n_lost, 3);
    assert_int_equal(plan.n_lost_left, 1);
    assert_int_equal(plan.n_changes, 4);
    assert_int_equal(plan.change[0].why, SY_BALANCE_LEFT_BUDGET);
    assert_int_equal(plan.change[1].why, SY_BALANCE_LOST);
    assert_int_equal(plan.change[2].why, SY_BALANCE_LEFT_BUDGET);
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_OVER_BUDGET);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void a_replica_makes_room_for_an_expert_that_has_no_holder(void **state)
{
    static const double load[] = {10, 10, 10};
    fixture f = fix_open(1, 3, 3, 1, 1);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,1 2 x");
    plan = fix_plan(&f);
    assert_int_equal(plan.n_lost_left, 0);
    assert_ratio(plan.after.mean, 1.0);
    assert_int_equal(plan.n_loads, 1);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void where_nothing_has_room_it_is_said(void **state)
{
    static const double load[] = {10, 10, 10};
    fixture f = fix_open(1, 3, 2, 1, 1);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 1 x");
    plan = fix_plan(&f);
    assert_int_equal(plan.n_lost_left, 1);
    assert_string_equal(fix_show(&plan, 0), "0 1 -");
    assert_int_equal(plan.change[0].why, SY_BALANCE_LEFT_ROOM);
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_NO_ROOM);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

/* ---- a minimum of nodes ---- */

/* Without a minimum replicas leave the busiest device. */
static void evenness_never_costs_the_second_holder(void **state)
{
    static const double load[] = {100, 20, 60, 30};

    (void)state;
    for (uint32_t min = 1; min <= 2; min++) {
        fixture f = fix_open(1, 4, 2, 1, 4);
        sy_balance_plan plan;

        set_loads(&f, load);
        fix_place(&f, "0,1 0,1 0 0,1");
        f.options.min_replicas = min;
        f.options.budget_bytes = 1; /* only what is free */
        plan = fix_plan(&f);
        assert_string_equal(fix_show(&plan, 0), min == 1 ? "0,1 1 0 1" : "0,1 0,1 0 0,1");
        assert_int_equal(plan.min_nodes, min);
        assert_int_equal(plan.n_short, min - 1);
        assert_int_equal(plan.n_short_left, min - 1);
        sy_balance_plan_free(&plan);
        fix_close(&f);
    }
}

static void who_is_below_the_minimum_comes_after_who_has_none_at_all(void **state)
{
    static const double load[] = {100, 3, 1, 50};
    fixture f = fix_open(1, 4, 3, 1, 4);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,x x - 1,2,x");
    f.options.budget_bytes = 3 * FIX_SHARD_BYTES;
    f.options.min_gain = 10;
    f.options.min_replicas = 2;
    plan = fix_plan(&f);
    /* One each for those without a holder, then the busiest with one; the third holder of who has
     * two comes last of all. */
    assert_int_equal(plan.n_lost, 2);
    assert_int_equal(plan.n_lost_left, 0);
    assert_int_equal(plan.n_short, 1);
    assert_int_equal(plan.n_short_left, 2);
    assert_int_equal(plan.offset[1], 2);
    assert_int_equal(plan.change[0].why, SY_BALANCE_LOST_REPLICA);
    assert_int_equal(plan.change[1].why, SY_BALANCE_LOST);
    assert_int_equal(plan.change[2].why, SY_BALANCE_LOST);
    assert_int_equal(plan.change[3].why, SY_BALANCE_LEFT_BUDGET);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void a_second_holder_is_placed_by_moving_another_expert_on(void **state)
{
    static const double load[] = {10, 10, 10};
    fixture f = fix_open(1, 3, 3, 1, 2);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,1 0,1 2"); /* the one free slot is where expert 2 is already */
    f.options.min_replicas = 2;
    f.options.budget_bytes = FIX_SHARD_BYTES;
    plan = fix_plan(&f);
    assert_string_equal(fix_show(&plan, 0), "0,1 0,1 2"); /* it takes two loads */
    assert_int_equal(plan.n_short_left, 1);
    assert_int_equal(plan.change[0].why, SY_BALANCE_SHORT_ROOM);
    sy_balance_plan_free(&plan);
    f.options.budget_bytes = 2 * FIX_SHARD_BYTES;
    plan = fix_plan(&f);
    assert_int_equal(plan.n_loads, 2);
    assert_int_equal(plan.n_short_left, 0);
    assert_int_equal(plan.change[plan.n_changes - 1].why, SY_BALANCE_MINIMUM);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void two_holders_on_one_node_become_holders_on_two(void **state)
{
    static const double load[] = {10, 10};
    fixture f = fix_open(1, 2, 4, 2, 1);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,1 2");
    f.options.replicas_max = 2;
    f.options.min_replicas = 2;
    plan = fix_plan(&f);
    assert_int_equal(plan.n_short, 2);
    assert_int_equal(plan.n_short_left, 0);
    assert_ratio(plan.after.mean, 1.0);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

/* Replicas beside each other would make it no safer; and whoever asked for the minimum keeps a
 * placement that says what is gone. */
static void with_fewer_nodes_than_the_minimum_what_is_gone_waits_for_a_node(void **state)
{
    static const double load[] = {10, 10};
    fixture f = fix_open(1, 2, 2, 2, 2);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,x 1,x");
    f.options.min_replicas = 2;
    plan = fix_plan(&f);
    assert_int_equal(plan.min_nodes, 1);
    assert_int_equal(plan.n_changes, 0);
    assert_string_equal(fix_show(&plan, 0), "0 1");
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void too_few_slots_for_the_minimum_are_said(void **state)
{
    static const double load[] = {10, 20, 30};
    fixture f = fix_open(1, 3, 2, 1, 2);
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 1 0");
    f.options.min_replicas = 2;
    plan = fix_plan(&f);
    assert_int_equal(plan.n_short, 3);
    assert_int_equal(plan.n_short_left, 2);
    assert_int_equal(plan.change[0].why, SY_BALANCE_SHORT_ROOM);
    assert_string_equal(sy_balance_why_text(plan.change[0].why),
                        "on fewer nodes than the minimum: no device of another node has room");
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

/* ---- what is left alone, and what is refused ---- */

static void pinned_experts_stay_and_their_load_counts(void **state)
{
    static const double load[] = {100, 10, 10, 10};
    static const double share[] = {0.9, 0.1, 0, 0, 0};
    fixture f = fix_open(1, 4, 2, 1, 4);
    sy_balance_input input;
    sy_balance_plan plan;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0,1 0 0 1");
    f.pinned = calloc(4, 1);
    f.pinned[0] = 1;
    input = fix_input(&f);
    input.share = share;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_OK);
    /* 90 + 20 on device 0: everything but the canary leaves it. */
    assert_string_equal(fix_show(&plan, 0), "0,1 1 1 1");
    assert_ratio(plan.before.mean, 110.0 / 65.0);
    assert_ratio(plan.after.mean, 90.0 / 65.0);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void what_makes_no_sense_is_refused(void **state)
{
    static const double load[] = {1, 1};
    fixture f = fix_open(1, 2, 2, 1, 2);
    sy_balance_plan plan;
    sy_balance_input input;

    (void)state;
    set_loads(&f, load);
    fix_place(&f, "0 1,1");
    input = fix_input(&f);
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL); /* twice */
    f.holder[2] = 2;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL); /* past the end */
    f.holder[2] = 0;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_OK);
    sy_balance_plan_free(&plan);
    f.options.min_replicas = f.options.replicas_max + 1;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL);
    f.options.min_replicas = 0;
    f.load[0] = -1;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL);
    f.load[0] = NAN;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL);
    f.load[0] = 1;
    input.n_devices = 0;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL);
    input.n_devices = 2;
    input.grid.layers = 0;
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_EINVAL);
    assert_null(plan.holder);
    fix_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hottest_expert_gets_a_replica_on_another_node),
        cmocka_unit_test(one_move_is_enough_where_one_move_is_enough),
        cmocka_unit_test(an_even_placement_is_left_alone),
        cmocka_unit_test(a_layer_without_load_is_left_alone),
        cmocka_unit_test(a_gain_below_the_threshold_is_said_and_not_taken),
        cmocka_unit_test(the_layer_that_gains_most_comes_first_in_a_budget),
        cmocka_unit_test(a_lost_expert_is_placed_before_anything_else),
        cmocka_unit_test(experts_without_any_holder_come_before_lost_replicas),
        cmocka_unit_test(a_replica_makes_room_for_an_expert_that_has_no_holder),
        cmocka_unit_test(where_nothing_has_room_it_is_said),
        cmocka_unit_test(evenness_never_costs_the_second_holder),
        cmocka_unit_test(who_is_below_the_minimum_comes_after_who_has_none_at_all),
        cmocka_unit_test(a_second_holder_is_placed_by_moving_another_expert_on),
        cmocka_unit_test(two_holders_on_one_node_become_holders_on_two),
        cmocka_unit_test(with_fewer_nodes_than_the_minimum_what_is_gone_waits_for_a_node),
        cmocka_unit_test(too_few_slots_for_the_minimum_are_said),
        cmocka_unit_test(pinned_experts_stay_and_their_load_counts),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
