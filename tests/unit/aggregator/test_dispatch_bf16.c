/* test_dispatch_bf16.c - layer calls whose rows travel as bf16: the same bits whichever way they
 * take and whoever computes them, be it a node that answers with floats. */
#include <float.h>

#include "dispatch_fixture.h"

/* What all ways must give. */
static void round_all(float *out, const float *in, size_t n)
{
    uint16_t rounded[T * H];

    assert_true(n <= T * H);
    sy_kernels_best()->round_bf16(rounded, in, n);
    sy_dtype_widen(out, rounded, SY_BF16, n);
}

static void expect_row(const layer_call *c, uint32_t t)
{
    const uint32_t a = t % E, b = (t + 3) % E;
    float x[H], low[H], high[H];

    if (c->failed[t]) fail_msg("%s", c->call.row_error[c->failed[t] - 1].message);
    round_all(x, c->x + t * H, H);
    for (uint32_t k = 0; k < H; k++) {
        low[k] = (float)(SY_MIN(a, b) + 1) * x[k];
        high[k] = (float)(SY_MAX(a, b) + 1) * x[k];
    }
    round_all(low, low, H);
    round_all(high, high, H);
    for (uint32_t k = 0; k < H; k++) {
        const float want = __builtin_fmaf(0.25f, high[k], 0.75f * low[k]);
        if (c->y[t * H + k] != want)
            fail_msg("token %u column %u: %.9g, expected %.9g", t, k, (double)c->y[t * H + k],
                     (double)want);
    }
}

static void run_rounded(void)
{
    layer_call c = {.shift = 0.0371f};

    assert_int_equal(run_layer(&c), SY_OK);
    for (uint32_t t = 0; t < T; t++) expect_row(&c, t);
}

static void begin(void)
{
    all_honest();
    place("expert-0/cpu:0@40 expert-1/cpu:0@30 expert-2/cpu:0@30");
    config.wire_rows = SY_BF16;
}

static int n_shared(void)
{
    int n = 0;

    for (int i = 0; i < NODES; i++) n += node[i].shared_messages;
    return n;
}

/* One that has refused shared memory is offered it again on the next connection only. */
static void reconnect_all(void)
{
    for (int i = 0; i < NODES; i++) {
        char name[sizeof(node[i].name)];
        memcpy(name, node[i].name, sizeof(name));
        stop_fake(&node[i]);
        WAIT_UNTIL(!sy_peer_up(peer_of(i)->peer));
        start_fake(&node[i], name, 0);
    }
}

static int set_up_sharing(void **state)
{
    shared_bytes_max = 1 << 20;
    return set_up(state);
}

/* ---- tests ---- */

static void shared_and_sent_rows_are_rounded_alike(void **state)
{
    (void)state;
    begin();
    run_rounded();
    assert_true(n_shared() > 0);
    for (int i = 0; i < NODES; i++) assert_int_equal(node[i].row_dtype, SY_BF16);
    for (int i = 0; i < NODES; i++) node[i].sharing = CANNOT_SHARE;
    run_rounded(); /* tries, and sends the rows again */
    const int n = n_shared();
    run_rounded();
    assert_int_equal(n_shared(), n);
    assert_true(router[0].row_dtype == SY_BF16 || router[1].row_dtype == SY_BF16);
    reconnect_all();
}

static void without_the_option_rows_are_floats_and_bf16_is_refused(void **state)
{
    (void)state;
    begin();
    config.wire_rows = SY_F32;
    run_right();
    for (int i = 0; i < NODES; i++) assert_int_equal(node[i].row_dtype, SY_F32);
    for (int i = 0; i < NODES - 1; i++) node[i].manner = WRONG_TYPE;
    run_right();
    assert_true(node[NODES - 1].rows >= T * K);
}

static void the_floats_of_an_old_node_are_rounded_here(void **state)
{
    (void)state;
    for (int n_old = 1; n_old <= NODES; n_old++) {
        begin();
        for (int i = 0; i < n_old; i++) node[i].is_old = 1;
        run_rounded();
        assert_int_equal(node[0].messages + node[1].messages + node[2].messages, NODES);
    }
}

/* Memory was lent for half of that. */
static void floats_that_are_said_to_be_in_shared_memory_cost_a_retry(void **state)
{
    (void)state;
    begin();
    place("expert-0/cpu:0");
    node[0].manner = SAYS_SHARED;
    run_rounded();
    assert_int_equal(node[0].messages, 1);
    assert_int_equal(node[1].rows + node[2].rows, T * K);
}

static void other_types_and_shapes_cost_a_retry(void **state)
{
    static const manner bad[] = {WRONG_TYPE, FEW_ROWS, GARBAGE, ERRORS, FAULTY};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        begin();
        place("expert-0/cpu:0");
        node[0].manner = bad[i];
        run_rounded();
        assert_int_equal(node[1].rows + node[2].rows, T * K);
    }
}

static void a_copy_gives_the_bits_of_the_message_that_was_late(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        begin();
        place("expert-0/cpu:0");
        node[0].manner = HOLDS;
        node[1].is_old = node[2].is_old = old;
        config.hedge = 1;
        config.hedge_share = 1;
        config.slow_factor = 4;
        config.slow_min_us = 1000;
        config.slow_max_us = 20000;
        run_rounded();
        assert_int_equal(node[1].rows + node[2].rows, T * K);
        release_held(&node[0], 1);
    }
}

static unsigned long long count_targets(int differing)
{
    agg_view *view = agg_peers_view(peers);
    unsigned long long n = 0;

    for (uint32_t e = 0; e < E; e++)
        for (uint32_t i = 0; i < 2; i++) {
            agg_target *t = agg_targets_find(view->targets, 1, e, i);
            if (t != NULL) n += differing ? t->differing_rows : t->compared_rows;
        }
    agg_view_unref(view);
    return n;
}

static void shadows_are_compared_after_rounding(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        begin();
        config.shadow_share = 1;
        place("expert-0/cpu:0"); /* counters start anew */
        place("expert-0/cpu:0 expert-1/cpu:0@shadow");
        node[1].is_old = old;
        run_rounded();
        WAIT_UNTIL(count_targets(0) == T * K);
        assert_int_equal(count_targets(1), 0);
        node[1].scale = 1.0f + 1.0f / 32;
        run_rounded();
        WAIT_UNTIL(count_targets(0) == 2 * T * K);
        assert_true(count_targets(1) > 0);
    }
}

static void a_row_that_is_too_large_for_bf16_fails_alone(void **state)
{
    layer_call c = {.shift = 0.0371f};
    sy_moe moe = agg_lane_ops(&lane);

    (void)state;
    begin();
    assert_int_equal(run_layer(&c), SY_OK);
    c.x[(T - 1) * H + 5] = -FLT_MAX; /* finite, as a float */
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    assert_int_equal(c.call.n_row_errors, 1);
    assert_true(c.failed[T - 1] != 0);
    assert_string_equal(c.call.row_error[0].reason, "ROW_NOT_FINITE");
    assert_non_null(strstr(c.call.row_error[0].message, "row 4 of the hidden states of layer 1"));
    for (uint32_t t = 0; t < T - 1; t++) expect_row(&c, t);
}

/* Gates of this process see what a router would. */
static void gates_here_route_the_rounded_rows(void **state)
{
    uint16_t want_expert[T * K], expert[T * K];
    float want_weight[T * K], weight[T * K], exact_weight[T * K];
    layer_call c = {.shift = 0.0371f};
    sy_moe moe = agg_lane_ops(&lane);
    sy_router *gates;
    sy_error err = {0};

    (void)state;
    must(sy_router_open(&gates, model, sy_kernels_best(), &err), &err);
    begin();
    config.inproc = gates;
    assert_int_equal(run_layer(&c), SY_OK);
    c.call.expert = expert;
    c.call.weight = weight;
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    config.wire_rows = SY_F32;
    c.call.weight = exact_weight;
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    round_all(c.x, c.x, T * H);
    c.call.expert = want_expert;
    c.call.weight = want_weight;
    assert_int_equal(moe.layer(moe.ctx, &c.call), SY_OK);
    assert_memory_equal(expert, want_expert, sizeof(expert));
    assert_memory_equal(weight, want_weight, sizeof(weight));
    assert_memory_not_equal(weight, exact_weight, sizeof(weight));
    config.inproc = NULL;
    sy_router_close(gates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_and_sent_rows_are_rounded_alike),
        cmocka_unit_test(without_the_option_rows_are_floats_and_bf16_is_refused),
        cmocka_unit_test(the_floats_of_an_old_node_are_rounded_here),
        cmocka_unit_test(floats_that_are_said_to_be_in_shared_memory_cost_a_retry),
        cmocka_unit_test(other_types_and_shapes_cost_a_retry),
        cmocka_unit_test(a_copy_gives_the_bits_of_the_message_that_was_late),
        cmocka_unit_test(shadows_are_compared_after_rounding),
        cmocka_unit_test(a_row_that_is_too_large_for_bf16_fails_alone),
        cmocka_unit_test(gates_here_route_the_rounded_rows),
    };
    return cmocka_run_group_tests(tests, set_up_sharing, tear_down);
}
