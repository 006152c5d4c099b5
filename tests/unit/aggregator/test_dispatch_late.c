/* test_dispatch_late.c - a layer call when a peer is late, silent or has just gone: hedging,
 * moving, suspicion and its probes, and the wait for a holder that comes back. */
#include "dispatch_fixture.h"

#include "agg_dispatch.h"

/* Long enough that an honest fake is never late, however busy the machine. */
enum { LATE_US = 300 * 1000 };

static double hedges, hedge_wins, retries, fallbacks, graces; /* when the test began */

static void begin(int hedge)
{
    all_honest();
    config.hedge = hedge;
    config.hedge_share = 0.1;
    config.slow_factor = 1;
    config.slow_min_us = config.slow_max_us = LATE_US;
    hedges = sy_metric_value(lane.metrics.hedges);
    hedge_wins = sy_metric_value(lane.metrics.hedge_wins);
    retries = sy_metric_value(lane.metrics.retries);
    fallbacks = sy_metric_value(lane.metrics.fallbacks);
    graces = sy_metric_value(lane.metrics.graces);
}

static int more(const sy_metric *metric, double before)
{
    return (int)(sy_metric_value(metric) - before);
}

/* ---- hedging ---- */

static void a_silent_node_is_hedged_and_the_call_does_not_wait_for_it(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    run_right(); /* would not return before NEVER_LATE_US if it waited */
    assert_int_equal(more(lane.metrics.hedges, hedges), 1);
    assert_int_equal(more(lane.metrics.hedge_wins, hedge_wins), 1);
    assert_true(agg_is_suspect(peer_of(0)));
    run_right(); /* suspect: others are asked first */
    assert_int_equal(node[0].messages, 1);
    assert_int_equal(more(lane.metrics.hedges, hedges), 1);
}

static void without_hedging_the_silent_node_is_given_up(void **state)
{
    (void)state;
    begin(0);
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    run_right();
    assert_int_equal(more(lane.metrics.hedges, hedges), 0);
    assert_int_equal(more(lane.metrics.retries, retries), 1);
    assert_true(agg_is_suspect(peer_of(0)));
    run_right();
    assert_int_equal(node[0].messages, 1);
}

static void an_answer_after_the_copy_has_won_is_never_added(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = HOLDS;
    run_right();
    assert_int_equal(more(lane.metrics.hedge_wins, hedge_wins), 1);
    release_held(&node[0], 0); /* other numbers: a sum that holds them shows it */
    all_honest();
    run_right(); /* on the same stream, behind the late answer */
    assert_int_equal(node[0].rows, T * K);
}

static void a_late_answer_that_comes_before_the_copys_is_taken_and_absolves(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = HOLDS;
    node[1].manner = node[2].manner = FREES;
    run_right();
    assert_int_equal(more(lane.metrics.hedges, hedges), 1);
    assert_int_equal(more(lane.metrics.hedge_wins, hedge_wins), 0);
    assert_false(agg_is_suspect(peer_of(0)));
}

/* The first node is late; the second brings all rows but those of expert 3, which then come from
 * the first after all, with all others once more. What came from whom shows in the numbers. */
static void *release_after_the_copy(void *arg)
{
    (void)arg;
    WAIT_UNTIL(agg_usual_us(peer_of(1), 1) > 0); /* its answer has been taken */
    release_held(&node[0], 1);
    return NULL;
}

static void each_row_is_taken_once_from_whoever_brings_it_first(void **state)
{
    layer_call c = {0};
    pthread_t thread;

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    set_holders(3, 1, 0, 1);
    node[0].manner = HOLDS;
    node[0].scale = 2.0f;
    node[2].manner = SILENT;
    assert_int_equal(pthread_create(&thread, NULL, release_after_the_copy, NULL), 0);
    assert_int_equal(run_layer(&c), SY_OK);
    pthread_join(thread, NULL);
    for (uint32_t t = 0; t < T; t++) /* expert 3 is token 0's higher and token 3's lower one */
        expect_token(&c, t, t == 3 ? 1.5f : 0.75f, t == 0 ? 0.5f : 0.25f);
    assert_int_equal(more(lane.metrics.hedges, hedges), 2);
}

static void two_silent_nodes_leave_a_third(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = node[1].manner = SILENT;
    run_right();
    assert_int_equal(more(lane.metrics.hedges, hedges), 2);
    assert_int_equal(node[2].rows, T * K);
    assert_true(agg_is_suspect(peer_of(0)) && agg_is_suspect(peer_of(1)));
}

/* Tokens 0 and 3 need expert 3, which only the silent node holds; expert 4 is held elsewhere too.
 */
static void rows_that_nobody_else_holds_wait_for_the_late_node(void **state)
{
    static const int hedge[] = {1, 0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(hedge); i++) {
        layer_call c = {0};
        begin(hedge[i]);
        place("expert-0/cpu:0");
        set_holders(3, 1, 0, 0);
        config.peer_timeout_us = 6 * LATE_US;
        node[0].manner = SILENT;
        assert_int_equal(run_layer(&c), SY_OK);
        for (uint32_t t = 0; t < T; t++) {
            if (t == 0 || t == 3)
                assert_int_equal(c.call.row_error[c.failed[t] - 1].expert, 3);
            else
                expect_token(&c, t, 0.75f, 0.25f);
        }
        assert_int_equal(c.call.n_row_errors, 1);
        assert_non_null(strstr(c.call.row_error[0].message, "no answer in time"));
        assert_int_equal(node[0].messages, 1);
    }
}

static void past_its_share_a_late_message_is_moved_not_doubled(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    lane.hedges_left = 1;
    run_right();
    assert_int_equal(more(lane.metrics.hedges, hedges), 1);
    agg_absolve(peer_of(0));
    lane.hedges_left = 0;
    run_right();
    assert_int_equal(node[0].messages, 2);
    assert_int_equal(more(lane.metrics.hedges, hedges), 1);
    assert_int_equal(more(lane.metrics.retries, retries), 1);
}

static void messages_earn_hedges_up_to_a_limit(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    lane.hedges_left = 0;
    for (int i = 0; i < 10; i++) run_right(); /* a Route and a Compute each */
    assert_true(lane.hedges_left > 1.99 && lane.hedges_left < 2.01);
    lane.hedges_left = 1e6;
    run_right();
    assert_true(lane.hedges_left <= 100);
}

/* ---- suspects ---- */

static void probe_all(void)
{
    agg_view *view = agg_peers_view(peers);

    agg_probe_suspects(view, "fake");
    agg_view_unref(view);
}

static int absolved(agg_node *peer)
{
    probe_all();
    return !agg_is_suspect(peer);
}

static void a_suspect_is_probed_and_absolved_once_it_answers(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    node[0].manner = SILENT;
    agg_suspect(peer_of(0), "was named by the test");
    WAIT_UNTIL((probe_all(), node[0].probes >= 2)); /* the first one was forgotten */
    assert_true(agg_is_suspect(peer_of(0)));
    node[0].manner = HONEST;
    WAIT_UNTIL(absolved(peer_of(0)));
    assert_int_equal(node[0].messages, 0); /* no client's request found out */
    run_right();
    assert_int_equal(node[0].rows, T * K);
}

static void a_suspect_router_is_probed_too(void **state)
{
    (void)state;
    begin(1);
    agg_view *view = agg_peers_view(peers);
    agg_suspect(view->router[1], "was named by the test");
    for (int i = 0; i < 5; i++) run_right();
    assert_int_equal(router[1].messages, 0);
    WAIT_UNTIL(absolved(view->router[1]));
    assert_true(router[1].probes > 0);
    agg_view_unref(view);
}

static void suspects_are_asked_when_nobody_else_is_left(void **state)
{
    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    for (int i = 0; i < NODES; i++) agg_suspect(peer_of(i), "was named by the test");
    run_right();
    assert_int_equal(node[0].rows, T * K);
    assert_false(agg_is_suspect(peer_of(0))); /* any answer absolves */
}

static void what_is_usual_follows_the_size_of_messages(void **state)
{
    agg_node *peer = peer_of(0);

    (void)state;
    begin(1);
    assert_int_equal(agg_usual_us(peer, 1), 0);
    agg_answered(peer, 1, 1000, 1);
    assert_int_equal(agg_usual_us(peer, 1), 1000);
    assert_int_equal(agg_usual_us(peer, 8), 8000); /* not seen: a multiple of the smaller */
    agg_answered(peer, 9, 2000, 1);
    assert_int_equal(agg_usual_us(peer, 8), 2000);
    for (int i = 0; i < 100; i++) agg_answered(peer, 1, 3000, 1);
    assert_in_range(agg_usual_us(peer, 1), 2900, 3000);
    agg_answered(peer, 1, 1000000000, 0); /* one stall is no habit */
    assert_in_range(agg_usual_us(peer, 1), 2900, 6000);
    agg_answered(peer, UINT32_MAX, INT64_MAX, 1);
    agg_answered(peer, 0, -5, 1);
    assert_true(agg_usual_us(peer, UINT32_MAX) > 0);
}

static void what_is_late_follows_what_is_usual_within_limits(void **state)
{
    agg_node *peer = peer_of(0);

    (void)state;
    begin(1);
    config.slow_factor = 4;
    config.slow_min_us = 30000;
    config.slow_max_us = 150000;
    assert_int_equal(agg_slow_limit_us(&lane, peer, 1), 150000); /* nothing is known */
    agg_answered(peer, 1, 1000, 1);
    assert_int_equal(agg_slow_limit_us(&lane, peer, 1), 30000);
    assert_int_equal(agg_slow_limit_us(&lane, peer, 16), 64000);
    assert_int_equal(agg_slow_limit_us(&lane, peer, 1024), 150000); /* a guess is no measurement */
    agg_answered(peer, 1024, 400000, 1);
    assert_int_equal(agg_slow_limit_us(&lane, peer, 1024), 800000);
    config.slow_max_us = 0;
    assert_int_equal(agg_slow_limit_us(&lane, peer, 1), NEVER_LATE_US);
}

/* ---- routers ---- */

static void a_silent_router_is_hedged_with_another(void **state)
{
    static const int hedge[] = {1, 0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(hedge); i++) {
        begin(hedge[i]);
        place("expert-0/cpu:0");
        router[0].manner = SILENT;
        WAIT_UNTIL((run_right(), router[0].messages > 0)); /* either may be asked first */
        assert_int_equal(more(lane.metrics.hedges, hedges), hedge[i]);
        assert_int_equal(more(lane.metrics.hedge_wins, hedge_wins), hedge[i]);
        for (int k = 0; k < 5; k++) run_right();
        assert_int_equal(router[0].messages, 1); /* a suspect now */
    }
}

static sy_router *open_gates(void)
{
    sy_router *gates;
    sy_error err = {0};

    must(sy_router_open(&gates, model, sy_kernels_best(), &err), &err);
    return gates;
}

static void without_routers_the_gates_of_this_process_answer(void **state)
{
    layer_call c = {0};
    sy_router *gates = open_gates();

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    config.fallback = gates;
    for (int i = 0; i < ROUTERS; i++) router[i].manner = SILENT;
    assert_int_equal(run_layer(&c), SY_OK); /* both are late, then suspect */
    assert_int_equal(run_layer(&c), SY_OK); /* suspects are not waited for */
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.failed[t], 0);
    assert_int_equal(more(lane.metrics.fallbacks, fallbacks), 2);
    assert_int_equal(router[0].messages + router[1].messages, 2);
    sy_router_close(gates);
}

static void stop_routers(void)
{
    agg_view *view = agg_peers_view(peers);

    for (int i = 0; i < ROUTERS; i++) stop_fake(&router[i]);
    for (int i = 0; i < ROUTERS; i++) WAIT_UNTIL(!sy_peer_up(view->router[i]->peer));
    agg_view_unref(view);
}

static void start_routers(void)
{
    start_fake(&router[0], "router-0", 1);
    start_fake(&router[1], "router-1", 1);
}

static void *start_routers_in_the_grace(void *arg)
{
    (void)arg;
    WAIT_UNTIL(more(lane.metrics.graces, graces) > 0);
    start_routers();
    return NULL;
}

static void routers_that_went_a_moment_ago_are_waited_for_once(void **state)
{
    layer_call c = {0};
    pthread_t thread;

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    config.grace_us = 1000;
    stop_routers();
    lane.router_seen_us = sy_clock_us();
    assert_int_equal(run_layer(&c), SY_EUNAVAILABLE);
    assert_string_equal(c.call.error.reason, "ROUTER_UNREACHABLE");
    assert_int_equal(more(lane.metrics.graces, graces), 1);
    assert_int_equal(run_layer(&c), SY_EUNAVAILABLE); /* not again */
    assert_int_equal(more(lane.metrics.graces, graces), 1);
    graces = sy_metric_value(lane.metrics.graces);
    config.grace_us = NEVER_LATE_US; /* cut to a second */
    assert_int_equal(pthread_create(&thread, NULL, start_routers_in_the_grace, NULL), 0);
    lane.router_seen_us = sy_clock_us();
    run_right();
    pthread_join(thread, NULL);
}

/* ---- holders ---- */

static void *hold_in_the_grace(void *arg)
{
    (void)arg;
    WAIT_UNTIL(more(lane.metrics.graces, graces) > 0);
    set_holders(3, 0, 1, 0);
    return NULL;
}

static void a_holder_that_appears_within_the_grace_computes(void **state)
{
    pthread_t thread;

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    config.grace_us = NEVER_LATE_US;
    set_holders(3, 0, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, hold_in_the_grace, NULL), 0);
    lane.seen_us[E + 3] = sy_clock_us(); /* it has answered just now */
    run_right();
    pthread_join(thread, NULL);
    assert_int_equal(node[1].rows, 2);
}

static void an_expert_that_stays_missing_is_waited_for_once(void **state)
{
    layer_call c = {0};

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    config.grace_us = 1000;
    set_holders(3, 0, 0, 0);
    lane.seen_us[E + 3] = sy_clock_us();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_layer(&c), SY_OK);
        assert_int_equal(c.call.n_row_errors, 1);
        assert_string_equal(c.call.row_error[0].reason, "EXPERT_UNREACHABLE");
        assert_int_equal(more(lane.metrics.graces, graces), 1);
    }
    set_holders(3, 0, 0, 1);
    run_right();
}

/* The holder says that the shard has moved; the new holder's word comes a little later. */
static void an_expert_that_has_just_moved_is_found_again(void **state)
{
    pthread_t thread;

    (void)state;
    begin(1);
    place("expert-0/cpu:0");
    config.grace_us = NEVER_LATE_US;
    for (uint32_t e = 0; e < E; e++) set_holders(e, 1, e != 3, 0);
    node[0].manner = FAULTY;
    assert_int_equal(pthread_create(&thread, NULL, hold_in_the_grace, NULL), 0);
    run_right();
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_node_is_hedged_and_the_call_does_not_wait_for_it),
        cmocka_unit_test(without_hedging_the_silent_node_is_given_up),
        cmocka_unit_test(an_answer_after_the_copy_has_won_is_never_added),
        cmocka_unit_test(a_late_answer_that_comes_before_the_copys_is_taken_and_absolves),
        cmocka_unit_test(each_row_is_taken_once_from_whoever_brings_it_first),
        cmocka_unit_test(two_silent_nodes_leave_a_third),
        cmocka_unit_test(rows_that_nobody_else_holds_wait_for_the_late_node),
        cmocka_unit_test(past_its_share_a_late_message_is_moved_not_doubled),
        cmocka_unit_test(messages_earn_hedges_up_to_a_limit),
        cmocka_unit_test(a_suspect_is_probed_and_absolved_once_it_answers),
        cmocka_unit_test(a_suspect_router_is_probed_too),
        cmocka_unit_test(suspects_are_asked_when_nobody_else_is_left),
        cmocka_unit_test(what_is_usual_follows_the_size_of_messages),
        cmocka_unit_test(what_is_late_follows_what_is_usual_within_limits),
        cmocka_unit_test(a_silent_router_is_hedged_with_another),
        cmocka_unit_test(without_routers_the_gates_of_this_process_answer),
        cmocka_unit_test(routers_that_went_a_moment_ago_are_waited_for_once),
        cmocka_unit_test(a_holder_that_appears_within_the_grace_computes),
        cmocka_unit_test(an_expert_that_stays_missing_is_waited_for_once),
        cmocka_unit_test(an_expert_that_has_just_moved_is_found_again),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
