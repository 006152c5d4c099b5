/* test_dispatch.c - a layer call against peers that die, stall, lie or send garbage. */
#include "dispatch_fixture.h"

static void rows_come_back_to_the_token_they_belong_to(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0@40 expert-1/cpu:0@30 expert-2/cpu:0@30");
    run_right();
    assert_int_equal(node[0].rows + node[1].rows + node[2].rows, T * K);
}

static void a_node_that_errs_lies_or_sends_garbage_costs_a_retry_and_no_wrong_row(void **state)
{
    static const manner bad[] = {ERRORS, GARBAGE, FEW_ROWS, WRONG_TYPE, FAULTY};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        all_honest();
        place("expert-0/cpu:0");
        node[0].manner = bad[i];
        run_right();
        assert_int_equal(node[0].messages, 1); /* asked once, then never again in this call */
        assert_int_equal(node[1].rows + node[2].rows, T * K);
    }
}

static void a_silent_node_costs_its_time_out_and_is_not_asked_first_again(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    config.peer_timeout_us = 2 * 1000 * 1000;
    run_right();
    run_right(); /* suspect now: others are asked */
    assert_int_equal(node[0].messages, 1);
}

static void an_answer_that_comes_too_late_is_not_added(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = HOLDS;
    config.peer_timeout_us = 2 * 1000 * 1000;
    run_right();
    release_held(&node[0], 0);
    all_honest();
    run_right(); /* the same stream: the late answer came before this one */
}

static void when_nobody_answers_only_the_tokens_concerned_fail_with_layer_expert_and_nodes(
    void **state)
{
    layer_call c = {0};

    (void)state;
    all_honest();
    place("expert-0/cpu:0 expert-1/cpu:0");
    for (int i = 0; i < NODES; i++) node[i].manner = ERRORS;
    assert_int_equal(run_layer(&c), SY_OK);
    for (uint32_t t = 0; t < T; t++) {
        assert_true(c.failed[t] != 0);
        /* Each token is told of an expert of its own. */
        const int32_t e = c.call.row_error[c.failed[t] - 1].expert;
        assert_true(e == (int32_t)(t % E) || e == (int32_t)((t + 3) % E));
    }
    const sy_error *why = &c.call.row_error[0];
    assert_int_equal(why->status, SY_EUNAVAILABLE);
    assert_string_equal(why->reason, "EXPERT_UNREACHABLE");
    assert_int_equal(why->layer, 1);
    assert_true(why->expert >= 0);
    for (int i = 0; i < NODES; i++)
        if (strstr(why->message, node[i].name) == NULL)
            fail_msg("%s is not named in: %s", node[i].name, why->message);
    /* Each node was asked once for each expert, and no more. */
    for (int i = 0; i < NODES; i++) assert_int_equal(node[i].rows, T * K);
}

static void a_row_that_is_not_a_number_fails_alone(void **state)
{
    layer_call c = {0};
    sy_moe moe = agg_lane_ops(&lane);

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    assert_int_equal(run_layer(&c), SY_OK);
    c.x[2 * H + 5] = __builtin_nanf("");
    sy_error_clear(&c.call.error);
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.failed[t] != 0, t == 2);
    assert_string_equal(c.call.row_error[0].reason, "ROW_NOT_FINITE");
}

static void a_router_that_names_an_expert_that_does_not_exist_is_refused(void **state)
{
    layer_call c = {0};

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    for (int i = 0; i < ROUTERS; i++) router[i].manner = GARBAGE;
    assert_int_equal(run_layer(&c), SY_EUNAVAILABLE);
    assert_string_equal(c.call.error.reason, "ROUTER_UNREACHABLE");
    assert_non_null(strstr(c.call.error.message, "expert 8 of 8"));
    assert_int_equal(node[0].messages, 0);
}

static void a_node_that_dies_is_replaced_and_used_again_when_it_is_back(void **state)
{
    (void)state;
    all_honest();
    place("expert-2/cpu:0");
    stop_fake(&node[2]);
    for (int i = 0; i < 3; i++) run_right();
    start_fake(&node[2], "expert-2", 0);
    all_honest(); /* waits until it is known again */
    run_right();
    assert_int_equal(node[2].rows, T * K);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_to_the_token_they_belong_to),
        cmocka_unit_test(a_node_that_errs_lies_or_sends_garbage_costs_a_retry_and_no_wrong_row),
        cmocka_unit_test(a_silent_node_costs_its_time_out_and_is_not_asked_first_again),
        cmocka_unit_test(an_answer_that_comes_too_late_is_not_added),
        cmocka_unit_test(
            when_nobody_answers_only_the_tokens_concerned_fail_with_layer_expert_and_nodes),
        cmocka_unit_test(a_row_that_is_not_a_number_fails_alone),
        cmocka_unit_test(a_router_that_names_an_expert_that_does_not_exist_is_refused),
        cmocka_unit_test(a_node_that_dies_is_replaced_and_used_again_when_it_is_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
