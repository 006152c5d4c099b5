/* Fan-outs: one round of requests to several peers, and one deadline. */
#include "rpc_fixture.h"

static size_t send_one(sy_fanout *fanout, sy_peer *peer, size_t payload_bytes)
{
    const uint64_t id = sy_peer_next_id(peer);
    sy_frame frame = frame_of(id, payload_bytes);

    return sy_fanout_send(fanout, peer, id, &frame);
}

static void a_round_brings_every_reply(void **state)
{
    enum { PEERS = 3, ROUNDS = 200 };
    fixture *f = *state;
    sy_peer *peer[PEERS];
    sy_fanout *fanout;

    serve(f, (sy_server_config){0});
    assert_int_equal(sy_fanout_open(&fanout, PEERS), SY_OK);
    for (int i = 0; i < PEERS; i++) peer[i] = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    for (int i = 0; i < PEERS; i++) wait_until(sy_peer_up(peer[i]));
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < PEERS; i++) assert_int_equal(send_one(fanout, peer[i], 10 * i), i);
        sy_fanout_wait(fanout, sy_clock_us() + WAIT_US);
        assert_int_equal(sy_fanout_count(fanout), PEERS);
        for (size_t i = 0; i < PEERS; i++) {
            const sy_fanout_slot *slot = sy_fanout_at(fanout, i);

            assert_int_equal(slot->status, SY_OK);
            assert_ptr_equal(slot->peer, peer[i]);
            assert_true(is_intact(slot->msg, slot->id, 10 * i));
            assert_true(slot->done_us > 0);
        }
        sy_fanout_reset(fanout);
        assert_int_equal(sy_fanout_count(fanout), 0);
    }
    sy_fanout_free(fanout);
    for (int i = 0; i < PEERS; i++) close_peer(f, peer[i]);
}

static void a_deadline_keeps_what_came_and_gives_up_the_rest(void **state)
{
    fixture *f = *state;
    sy_peer *quick, *slow;
    sy_fanout *fanout;

    serve(f, (sy_server_config){0});
    assert_int_equal(sy_fanout_open(&fanout, 4), SY_OK);
    quick = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    slow = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(quick) && sy_peer_up(slow));
    (void)send_one(fanout, slow, 5);
    (void)send_one(fanout, quick, 6);
    (void)send_one(fanout, slow, 7);
    wait_until(f->service->n_messages == 3);
    wait_until(sy_peer_outstanding(quick) == 0);
    sy_fanout_wait(fanout, sy_clock_us() + 20000);
    assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_EDEADLINE);
    assert_int_equal(sy_fanout_at(fanout, 0)->err.status, SY_EDEADLINE);
    assert_contains(sy_fanout_at(fanout, 0)->err.message, "expert-0");
    assert_null(sy_fanout_at(fanout, 0)->msg);
    assert_int_equal(sy_fanout_at(fanout, 1)->status, SY_OK);
    assert_int_equal(sy_fanout_at(fanout, 2)->status, SY_EDEADLINE);
    assert_int_equal(sy_peer_outstanding(slow), 0); /* forgotten */
    release(f->service, 0);                         /* too late, and harmless */
    sy_fanout_reset(fanout);
    (void)send_one(fanout, quick, 8);
    sy_fanout_wait(fanout, 0); /* the past: whatever is not there already is given up */
    assert_true(sy_fanout_at(fanout, 0)->status == SY_OK ||
                sy_fanout_at(fanout, 0)->status == SY_EDEADLINE);
    sy_fanout_free(fanout);
    close_peer(f, quick);
    close_peer(f, slow);
}

static void refused_and_lost_requests_are_slots_that_say_why(void **state)
{
    fixture *f = *state;
    sy_peer *absent, *lost;
    sy_fanout *fanout;

    assert_int_equal(sy_fanout_open(&fanout, 3), SY_OK);
    absent = open_peer(f, "/t.Echo/Missing", (sy_peer_config){0});
    lost = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = 1});
    serve(f, (sy_server_config){0});
    wait_until(sy_peer_up(lost));
    (void)send_one(fanout, absent, 1);
    (void)send_one(fanout, lost, 2);
    (void)send_one(fanout, lost, 3);
    wait_until(f->service->n_messages == 1);
    stop_serving(f, 0);
    sy_fanout_wait(fanout, SY_NEVER_US);
    assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_EUNAVAILABLE);
    assert_int_equal(sy_fanout_at(fanout, 1)->status, SY_EUNAVAILABLE);
    assert_string_equal(sy_fanout_at(fanout, 1)->err.reason, "PEER_UNREACHABLE");
    assert_string_equal(sy_fanout_at(fanout, 1)->err.node, "expert-0");
    assert_int_equal(sy_fanout_at(fanout, 2)->status, SY_ELIMIT);
    sy_fanout_free(fanout);
    sy_fanout_free(NULL);
    close_peer(f, absent);
    close_peer(f, lost);
}

static void answers_are_taken_one_by_one_while_others_are_open(void **state)
{
    fixture *f = *state;
    sy_peer *quick, *slow;
    sy_fanout *fanout;

    serve(f, (sy_server_config){0});
    assert_int_equal(sy_fanout_open(&fanout, 4), SY_OK);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 0); /* nothing is open */
    quick = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    slow = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(quick) && sy_peer_up(slow));
    (void)send_one(fanout, slow, 5);
    (void)send_one(fanout, quick, 6);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 1);
    assert_false(sy_fanout_is_done(fanout, 0));
    assert_true(sy_fanout_is_done(fanout, 1));
    assert_true(is_intact(sy_fanout_at(fanout, 1)->msg, sy_fanout_at(fanout, 1)->id, 6));
    assert_int_equal(sy_fanout_wait_some(fanout, sy_clock_us() + 1000), 1); /* none so far */
    (void)send_one(fanout, quick, 7); /* a further one, while the first is open */
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 2);
    assert_int_equal(sy_fanout_at(fanout, 2)->status, SY_OK);
    wait_until(f->service->n_messages == 3);
    release(f->service, 0);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 3);
    assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_OK);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 3); /* all are done: no sleep */
    sy_fanout_free(fanout);
    close_peer(f, quick);
    close_peer(f, slow);
}

static void a_slot_that_is_given_up_takes_no_answer(void **state)
{
    fixture *f = *state;
    sy_peer *quick, *slow;
    sy_fanout *fanout;

    serve(f, (sy_server_config){0});
    assert_int_equal(sy_fanout_open(&fanout, 4), SY_OK);
    quick = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    slow = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(quick) && sy_peer_up(slow));
    (void)send_one(fanout, slow, 5);
    (void)send_one(fanout, quick, 6);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 1);
    wait_until(f->service->n_messages == 2);
    sy_fanout_give_up(fanout, 0);
    sy_fanout_give_up(fanout, 0); /* again: nothing */
    sy_fanout_give_up(fanout, 1); /* answered: it stays so */
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 2);
    assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_EDEADLINE);
    assert_int_equal(sy_fanout_at(fanout, 1)->status, SY_OK);
    assert_int_equal(sy_peer_outstanding(slow), 0);
    release(f->service, 0); /* too late */
    (void)send_one(fanout, quick, 7);
    assert_int_equal(sy_fanout_wait_some(fanout, SY_NEVER_US), 3);
    assert_null(sy_fanout_at(fanout, 0)->msg);
    sy_fanout_free(fanout);
    close_peer(f, quick);
    close_peer(f, slow);
}

typedef struct rounds {
    sy_peer *peer;
    pthread_t thread;
    int n_ok, n_late, n_wrong;
    sy_error err; /* of the last one that is neither */
} rounds;

/* Deadlines right where the replies arrive: every order of the two must be survived. */
static void *run_rounds(void *arg)
{
    rounds *r = arg;
    sy_fanout *fanout;
    uint64_t seed = TEST_SEED;

    assert_int_equal(sy_fanout_open(&fanout, 8), SY_OK);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 8; i++) (void)send_one(fanout, r->peer, 100);
        sy_fanout_wait(fanout, sy_clock_us() + (int64_t)(sy_splitmix64(seed++) % 400));
        for (size_t i = 0; i < sy_fanout_count(fanout); i++) {
            const sy_fanout_slot *slot = sy_fanout_at(fanout, i);

            if (slot->status == SY_OK && is_intact(slot->msg, slot->id, 100)) {
                r->n_ok++;
            } else if (slot->status == SY_EDEADLINE && slot->msg == NULL) {
                r->n_late++;
            } else {
                r->n_wrong++;
                r->err = slot->err;
            }
        }
        sy_fanout_reset(fanout);
    }
    sy_fanout_free(fanout);
    return NULL;
}

static void deadlines_race_with_replies_and_neither_is_lost(void **state)
{
    enum { THREADS = 3 };
    fixture *f = *state;
    rounds r[THREADS];
    sy_peer *peer;

    memset(r, 0, sizeof(r));
    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < THREADS; i++) {
        r[i].peer = peer;
        assert_int_equal(pthread_create(&r[i].thread, NULL, run_rounds, &r[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(r[i].thread, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        if (r[i].n_wrong > 0) fail_msg("%d slots, as %s", r[i].n_wrong, r[i].err.message);
        assert_int_equal(r[i].n_ok + r[i].n_late, 300 * 8);
    }
    assert_int_equal(sy_peer_outstanding(peer), 0);
    close_peer(f, peer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_round_brings_every_reply),
        TEST(a_deadline_keeps_what_came_and_gives_up_the_rest),
        TEST(answers_are_taken_one_by_one_while_others_are_open),
        TEST(a_slot_that_is_given_up_takes_no_answer),
        TEST(refused_and_lost_requests_are_slots_that_say_why),
        TEST(deadlines_race_with_replies_and_neither_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
