/* test_dispatch_shared.c - layer calls whose rows are in memory that is shared with the peers: who
 * has an area, until when, and what becomes of it when a peer cannot, lies, is late, or dies. */
#include "dispatch_fixture.h"

static int set_up_sharing(void **state)
{
    shared_bytes_max = 1 << 20;
    return set_up(state);
}

static uint32_t n_lent(void)
{
    agg_view *view = agg_peers_view(peers);
    uint32_t n = 0;

    for (uint32_t i = 0; i < view->n_nodes; i++) n += agg_share_lent(view->node[i]->share);
    for (uint32_t i = 0; i < view->n_routers; i++) n += agg_share_lent(view->router[i]->share);
    agg_view_unref(view);
    return n;
}

/* Memory that was refused is offered again on the next connection only. */
static void reconnect(fake_node *f, int is_router)
{
    agg_view *view = agg_peers_view(peers);
    const agg_node *known = is_router ? view->router[f - router] : view->node[f - node];
    char name[sizeof(f->name)];

    memcpy(name, f->name, sizeof(name));
    stop_fake(f);
    WAIT_UNTIL(!sy_peer_up(known->peer));
    agg_view_unref(view);
    start_fake(f, name, is_router);
    all_honest();
}

static void rows_are_shared_and_areas_are_free_after_the_call(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0@40 expert-1/cpu:0@30 expert-2/cpu:0@30");
    for (int i = 0; i < 50; i++) {
        run_right();
        assert_int_equal(n_lent(), 0);
    }
    for (int i = 0; i < NODES; i++) assert_int_equal(node[i].shared_messages, node[i].messages);
    assert_int_equal(router[0].shared_messages + router[1].shared_messages, 50);
}

static void a_node_that_cannot_share_gets_its_rows_in_the_message_from_then_on(void **state)
{
    static const int why[] = {CANNOT_SHARE, KNOWS_NO_SHARING};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(why); i++) {
        all_honest();
        place("expert-0/cpu:0");
        node[0].sharing = why[i];
        run_right();
        run_right();
        assert_int_equal(node[0].shared_messages, 1); /* not tried again */
        assert_int_equal(node[0].messages, 2);        /* and nobody else was asked */
        assert_int_equal(node[1].messages + node[2].messages, 0);
        assert_int_equal(n_lent(), 0);
        reconnect(&node[0], 0);
        run_right();
        assert_int_equal(node[0].shared_messages, 1); /* the next connection may */
    }
}

static void a_router_that_cannot_share_gets_the_rows_in_the_message(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    for (int i = 0; i < ROUTERS; i++) router[i].sharing = CANNOT_SHARE;
    for (int i = 0; i < 20; i++) run_right();
    for (int i = 0; i < ROUTERS; i++) assert_true(router[i].shared_messages <= 1);
    assert_int_equal(router[0].messages + router[1].messages,
                     20 + router[0].shared_messages + router[1].shared_messages);
    for (int i = 0; i < ROUTERS; i++) reconnect(&router[i], 1);
}

static void a_node_that_says_shared_though_nothing_was_lent_costs_a_retry(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].sharing = CANNOT_SHARE;
    run_right();
    node[0].manner = SAYS_SHARED;
    run_right();
    assert_int_equal(node[0].shared_messages, 1);
    assert_int_equal(node[1].rows + node[2].rows, T * K);
    reconnect(&node[0], 0);
}

static void nodes_that_err_or_send_garbage_leave_no_area_behind(void **state)
{
    static const manner bad[] = {ERRORS, GARBAGE, FEW_ROWS, WRONG_TYPE, FAULTY};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        all_honest();
        place("expert-0/cpu:0");
        node[0].manner = bad[i];
        run_right();
        assert_int_equal(node[0].messages, 1);
        assert_int_equal(n_lent(), 0);
    }
}

static void an_area_is_free_again_when_the_late_answer_has_come(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = HOLDS;
    config.peer_timeout_us = 1000 * 1000;
    run_right(); /* another one has answered: this one still may */
    assert_int_equal(n_lent(), 1);
    node[0].manner = HONEST;
    forget_suspicions();
    run_right(); /* in another area */
    assert_int_equal(node[0].shared_messages, 2);
    assert_int_equal(n_lent(), 1);
    release_held(&node[0], 0); /* wrong rows, into the area that is nobody else's */
    WAIT_UNTIL(n_lent() == 0);
    run_right();
}

static void a_node_that_dies_takes_its_region_along(void **state)
{
    sy_shm_view *kept;

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = HOLDS;
    config.peer_timeout_us = 1000 * 1000;
    run_right();
    assert_int_equal(n_lent(), 1);
    pthread_mutex_lock(&node[0].mutex);
    void *lent = node[0].held_lent;
    kept = sy_shm_view_ref(node[0].held_view);
    pthread_mutex_unlock(&node[0].mutex);
    stop_fake(&node[0]);
    WAIT_UNTIL(n_lent() == 0);
    start_fake(&node[0], "expert-0", 0);
    all_honest();
    run_right();
    memset(lent, 0x41, T * K * H * sizeof(float)); /* as one that had only been stopped */
    run_right();
    assert_int_equal(node[0].shared_messages, 2);
    sy_shm_view_unref(kept);
}

static void a_node_that_dies_in_a_call_is_replaced_within_it(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        all_honest();
        place("expert-2/cpu:0");
        stop_fake(&node[2]);
        run_right();
        start_fake(&node[2], "expert-2", 0);
        all_honest();
        run_right();
        assert_int_equal(node[2].shared_messages, 1);
        assert_int_equal(n_lent(), 0);
    }
}

/* ---- agg_share by itself ---- */

enum { MESSAGE_BYTES = 4096 };

static void an_area_needs_both_ends_in_any_order(void **state)
{
    agg_share *share = agg_share_open("x", "127.0.0.1:1", 4 * MESSAGE_BYTES, 0);

    (void)state;
    for (int order = 0; order < 2; order++) {
        agg_loan *loan = agg_share_lend(share, 7, 64, MESSAGE_BYTES - 64);
        assert_non_null(loan);
        if (order == 0) agg_share_settled(share, 7);
        if (order == 1) agg_loan_end(loan);
        assert_int_equal(agg_share_lent(share), 1);
        if (order == 0) agg_loan_end(loan);
        agg_share_settled(share, 8); /* somebody else's */
        if (order == 1) assert_int_equal(agg_share_lent(share), 1);
        agg_share_settled(share, 7);
        assert_int_equal(agg_share_lent(share), 0);
        agg_share_settled(share, 7); /* an answer that comes twice */
    }
    agg_share_close(share);
}

static void a_message_for_which_there_is_no_room_goes_as_bytes(void **state)
{
    agg_share *share = agg_share_open("x", "unix:/x", 4 * MESSAGE_BYTES, 1000);
    agg_loan *loan[4];
    sy_shared_rows where[4];

    (void)state;
    assert_null(agg_share_lend(share, 1, 500, 499)); /* not worth it */
    for (uint64_t i = 0; i < 4; i++) {
        loan[i] = agg_share_lend(share, i, MESSAGE_BYTES / 2, MESSAGE_BYTES / 2);
        assert_non_null(loan[i]);
        agg_loan_describe(loan[i], &where[i]);
        assert_true(where[i].output >= where[i].input + MESSAGE_BYTES / 2);
        assert_true(where[i].output + where[i].output_bytes <= where[i].bytes);
    }
    assert_null(agg_share_lend(share, 9, MESSAGE_BYTES / 2, MESSAGE_BYTES / 2));
    agg_share_settled(share, 2);
    agg_loan_end(loan[2]);
    loan[2] = agg_share_lend(share, 9, MESSAGE_BYTES / 2, MESSAGE_BYTES / 2);
    assert_non_null(loan[2]);
    agg_share_lost(share); /* all are given up, but stay readable */
    assert_int_equal(agg_share_lent(share), 0);
    agg_loan *next = agg_share_lend(share, 10, MESSAGE_BYTES, 0);
    sy_shared_rows other;
    agg_loan_describe(next, &other);
    assert_memory_not_equal(other.key, where[0].key, sizeof(other.key));
    for (int i = 0; i < 4; i++) {
        memset(agg_loan_input(loan[i]), i, MESSAGE_BYTES);
        agg_loan_end(loan[i]);
    }
    agg_loan_end(next);
    agg_share_close(share);
}

static void only_peers_of_this_host_share(void **state)
{
    static const char *const far[] = {"10.0.0.1:80", "host:80", "dns:///name:80", "[fe80::1]:80",
                                      "localhost.example:80"};
    static const char *const near[] = {"127.0.0.1:80", "127.1.2.3:80", "[::1]:80", "localhost:80",
                                       "unix:/run/x"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(far); i++) assert_null(agg_share_open("x", far[i], 1, 0));
    for (size_t i = 0; i < SY_COUNT_OF(near); i++) {
        agg_share *share = agg_share_open("x", near[i], 1, 0);
        assert_non_null(share);
        agg_share_close(share);
    }
    assert_null(agg_share_open("x", "unix:/run/x", 0, 0));
    assert_null(agg_share_lend(NULL, 1, 1 << 20, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_shared_and_areas_are_free_after_the_call),
        cmocka_unit_test(a_node_that_cannot_share_gets_its_rows_in_the_message_from_then_on),
        cmocka_unit_test(a_router_that_cannot_share_gets_the_rows_in_the_message),
        cmocka_unit_test(a_node_that_says_shared_though_nothing_was_lent_costs_a_retry),
        cmocka_unit_test(nodes_that_err_or_send_garbage_leave_no_area_behind),
        cmocka_unit_test(an_area_is_free_again_when_the_late_answer_has_come),
        cmocka_unit_test(a_node_that_dies_takes_its_region_along),
        cmocka_unit_test(a_node_that_dies_in_a_call_is_replaced_within_it),
        cmocka_unit_test(an_area_needs_both_ends_in_any_order),
        cmocka_unit_test(a_message_for_which_there_is_no_room_goes_as_bytes),
        cmocka_unit_test(only_peers_of_this_host_share),
    };
    return cmocka_run_group_tests(tests, set_up_sharing, tear_down);
}
