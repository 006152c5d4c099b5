/* test_dispatch_weights.c - whose weights a client's rows are computed with: nodes that are
 * refused, targets that are accepted all the same, shadows and the sides of shares that are
 * compared, and experts that are left out. */
#include "dispatch_fixture.h"

/* ---- refused nodes ---- */

static void set_arithmetic(int i, int other)
{
    node[i].other_arithmetic = other;
    send_state(&node[i]);
    WAIT_UNTIL((agg_node_refusal(peer_of(i), 0) != AGG_FINE) == other);
}

static void a_refused_node_is_not_used_and_the_error_says_why(void **state)
{
    layer_call c = {0};

    (void)state;
    all_honest();
    place("expert-1/cpu:0");
    set_arithmetic(1, 1);
    run_right();
    assert_int_equal(node[1].messages, 0);
    set_holders(3, 0, 1, 0);
    assert_int_equal(run_layer(&c), SY_OK);
    assert_int_equal(c.call.n_row_errors, 1);
    const sy_error *why = &c.call.row_error[0];
    assert_string_equal(why->reason, "EXPERT_UNREACHABLE");
    if (strstr(why->message, "tried none") == NULL ||
        strstr(why->message, "expert-1 is refused: it computes with another arithmetic") == NULL)
        fail_msg("%s", why->message);
    assert_int_equal(node[1].messages, 0);
    place("expert-2/cpu:0 expert-7/cpu:0");
    assert_int_equal(run_layer(&c), SY_OK);
    if (strstr(why->message, "expert-2 does not hold it; expert-7 is not there") == NULL)
        fail_msg("%s", why->message);
}

static void a_refused_node_is_used_where_placement_says_so_and_the_rows_are_noted(void **state)
{
    layer_call c = {0};

    (void)state;
    all_honest();
    place("expert-1/cpu:0!");
    assert_int_equal(run_layer(&c), SY_OK);
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.note[t], 0); /* nothing against it yet */
    set_arithmetic(1, 1);
    assert_int_equal(run_layer(&c), SY_OK);
    expect_right(&c);
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.note[t], SY_MOE_OTHER_WEIGHTS);
    assert_int_equal(node[1].rows, 2 * T * K);
}

/* A copy that is found to be wrong while its answer is under way must not reach a client. */
static void *refuse_then_answer(void *arg)
{
    (void)arg;
    WAIT_UNTIL(node[1].messages == 1);
    set_arithmetic(1, 1);
    release_held(&node[1], 0);
    return NULL;
}

static void an_answer_of_a_node_that_was_refused_meanwhile_is_not_taken(void **state)
{
    pthread_t thread;

    (void)state;
    all_honest();
    place("expert-1/cpu:0");
    node[1].manner = HOLDS;
    assert_int_equal(pthread_create(&thread, NULL, refuse_then_answer, NULL), 0);
    run_right();
    pthread_join(thread, NULL);
    assert_int_equal(node[0].rows + node[2].rows, T * K);
}

/* ---- comparing ---- */

typedef struct sums { /* over all targets on one node */
    uint64_t messages, rows, errors, compared, differing;
    float max_diff;
} sums;

static sums sum_targets(const char *name)
{
    agg_view *view = agg_peers_view(peers);
    sums s = {0};

    for (size_t i = 0; i < agg_targets_count(view->targets); i++) {
        const agg_target *t = agg_targets_at(view->targets, i);
        if (strcmp(t->node, name) != 0) continue;
        s.messages += t->messages;
        s.rows += t->rows;
        s.errors += t->errors;
        s.compared += t->compared_rows;
        s.differing += t->differing_rows;
        s.max_diff = SY_MAX(s.max_diff, t->max_diff);
    }
    agg_view_unref(view);
    return s;
}

static void begin_copies(const char *value)
{
    all_honest();
    config.shadow_share = 1;
    place("expert-0/cpu:0"); /* counters of targets that nobody watches are forgotten */
    place(value);
}

static void a_shadow_is_compared_bit_by_bit_with_what_the_client_got(void **state)
{
    (void)state;
    begin_copies("expert-0/cpu:0 expert-1/cpu:0@shadow");
    run_right();
    WAIT_UNTIL(sum_targets("expert-1").compared == T * K);
    sums shadow = sum_targets("expert-1"), first = sum_targets("expert-0");
    assert_int_equal(shadow.differing, 0);
    assert_true(shadow.max_diff == 0.0f);
    assert_int_equal(shadow.rows, T * K);
    assert_int_equal(first.rows, T * K);
    assert_int_equal(first.messages, E); /* one message, counted for each of its experts */
    assert_int_equal(first.compared, 0);
    node[1].scale = 1.0f + 1.0f / 8388608.0f; /* the last bit */
    run_right();
    WAIT_UNTIL(sum_targets("expert-1").compared == 2 * T * K);
    shadow = sum_targets("expert-1");
    assert_int_equal(shadow.differing, T * K);
    assert_true(shadow.max_diff > 0.0f && shadow.max_diff < 1e-4f);
    node[1].scale = __builtin_nanf("");
    run_right();
    WAIT_UNTIL(sum_targets("expert-1").compared == 3 * T * K);
    assert_true(sum_targets("expert-1").max_diff > 1e30f);
}

static void a_shadow_that_fails_is_counted_and_hurts_nobody(void **state)
{
    static const manner bad[] = {ERRORS, FEW_ROWS, WRONG_TYPE, FAULTY};

    (void)state;
    begin_copies("expert-0/cpu:0 expert-1/cpu:0@shadow");
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        node[1].manner = bad[i];
        run_right();
        WAIT_UNTIL(sum_targets("expert-1").errors == E * (i + 1));
    }
    assert_int_equal(sum_targets("expert-1").compared, 0);
    assert_int_equal(sum_targets("expert-0").errors, 0);
    config.shadow_share = 0;
    run_right();
    assert_int_equal(node[1].messages, SY_COUNT_OF(bad)); /* a share of nothing */
}

static void a_silent_shadow_holds_up_no_request_and_no_shutdown(void **state)
{
    sy_error err = {0};
    agg_lane other, first;

    (void)state;
    begin_copies("expert-0/cpu:0 expert-1/cpu:0@shadow");
    node[1].manner = SILENT;
    must(agg_lane_open(&other, &config, &err), &err);
    first = lane;
    lane = other;
    for (int i = 0; i < 5; i++) run_right();
    WAIT_UNTIL(node[1].messages == 1); /* one job at a time */
    agg_lane_close(&lane);
    lane = first;
}

static void the_sides_of_shares_are_compared_and_the_smaller_is_on_trial(void **state)
{
    (void)state;
    begin_copies("expert-0/cpu:0@30 expert-1/cpu:0@70");
    run_right();
    assert_true(node[0].rows > 0 && node[1].rows > 0); /* the requests' own choice */
    WAIT_UNTIL(sum_targets("expert-0").compared == T * K);
    assert_int_equal(sum_targets("expert-0").differing, 0);
    node[0].scale = 2.0f;
    layer_call c = {0};
    assert_int_equal(run_layer(&c), SY_OK); /* with some wrong rows: shares are trusted */
    WAIT_UNTIL(sum_targets("expert-0").compared == 2 * T * K);
    assert_int_equal(sum_targets("expert-0").differing, T * K);
    const sums main_side = sum_targets("expert-1"), canary = sum_targets("expert-0");
    assert_int_equal(main_side.compared, 0);
    assert_int_equal(main_side.rows + canary.rows, 2 * T * K); /* copies are no traffic */
}

static void errors_and_answers_of_watched_targets_are_counted(void **state)
{
    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    place("expert-0/cpu:0!");
    node[0].manner = ERRORS;
    run_right();
    assert_int_equal(sum_targets("expert-0").errors, E);
    assert_int_equal(sum_targets("expert-0").rows, 0);
    node[0].manner = HONEST;
    run_right();
    assert_int_equal(sum_targets("expert-0").rows, T * K);
}

static void rows_are_counted_once_a_layer_call(void **state)
{
    _Atomic uint64_t *rows = agg_peers_rows(peers);
    uint64_t before = 0, after = 0;

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    node[0].manner = ERRORS; /* asked twice, counted once */
    for (uint32_t i = 0; i < L * E; i++) before += rows[i];
    const uint64_t of_three = rows[E + 3];
    run_right();
    for (uint32_t i = 0; i < L * E; i++) after += rows[i];
    assert_int_equal(after - before, T * K);
    assert_int_equal(rows[E + 3] - of_three, 2);
}

/* ---- leaving experts out ---- */

static void a_row_that_may_degrade_goes_on_without_the_expert(void **state)
{
    layer_call c = {.may_degrade = {1, 0, 1, 0, 1}};

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    set_holders(3, 0, 0, 0); /* of tokens 0 and 3, as the higher and as the lower expert */
    assert_int_equal(run_layer(&c), SY_OK);
    for (uint32_t t = 0; t < T; t++) assert_int_equal(c.note[t], t == 0 ? SY_MOE_DEGRADED : 0);
    assert_int_equal(c.call.n_row_errors, 1);
    assert_true(c.failed[3] != 0);
    for (uint32_t t = 1; t < T; t++)
        if (t != 3) expect_token(&c, t, 0.75f, 0.25f);
    const float scale = 1.0f / (1.0f - 0.25f); /* S = 1, in f32 */
    assert_int_equal(c.failed[0], 0);
    for (uint32_t k = 0; k < H; k++)
        assert_true(c.y[k] == __builtin_fmaf(0.75f * scale, 1.0f * c.x[k], 0.0f));
    c.may_degrade[3] = 1;
    assert_int_equal(run_layer(&c), SY_OK);
    assert_int_equal(c.call.n_row_errors, 0);
    assert_int_equal(c.note[3], SY_MOE_DEGRADED);
    for (uint32_t k = 0; k < H; k++) /* 0.25 of 1 is left: all of S */
        assert_true(c.y[3 * H + k] == __builtin_fmaf(1.0f, 7.0f * c.x[3 * H + k], 0.0f));
}

static void a_row_that_has_lost_all_its_experts_fails(void **state)
{
    layer_call c = {.may_degrade = {1, 1, 1, 1, 1}};

    (void)state;
    all_honest();
    place("expert-0/cpu:0");
    set_holders(3, 0, 0, 0);
    set_holders(0, 0, 0, 0);
    assert_int_equal(run_layer(&c), SY_OK);
    assert_int_equal(c.call.n_row_errors, 1);
    assert_string_equal(c.call.row_error[c.failed[0] - 1].reason, "EXPERT_UNREACHABLE");
    assert_int_equal(c.note[0], 0);
    for (uint32_t t = 1; t < T; t++) {
        assert_int_equal(c.failed[t], 0);
        assert_int_equal(c.note[t], t == 3 ? SY_MOE_DEGRADED : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_node_is_not_used_and_the_error_says_why),
        cmocka_unit_test(a_refused_node_is_used_where_placement_says_so_and_the_rows_are_noted),
        cmocka_unit_test(an_answer_of_a_node_that_was_refused_meanwhile_is_not_taken),
        cmocka_unit_test(a_shadow_is_compared_bit_by_bit_with_what_the_client_got),
        cmocka_unit_test(a_shadow_that_fails_is_counted_and_hurts_nobody),
        cmocka_unit_test(a_silent_shadow_holds_up_no_request_and_no_shutdown),
        cmocka_unit_test(the_sides_of_shares_are_compared_and_the_smaller_is_on_trial),
        cmocka_unit_test(errors_and_answers_of_watched_targets_are_counted),
        cmocka_unit_test(rows_are_counted_once_a_layer_call),
        cmocka_unit_test(a_row_that_may_degrade_goes_on_without_the_expert),
        cmocka_unit_test(a_row_that_has_lost_all_its_experts_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
