/* Races: what threads may do at the same time, with counters that no order of events may upset.
 * Each request carries its own record, so that a second answer, or an answer after a forget, is
 * seen. */
#include "rpc_fixture.h"

typedef struct record {
    _Atomic int n_called, forgotten;
} record;

static _Atomic int n_late, n_twice;

static void on_record(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    record *r = arg;

    (void)id;
    assert_true((msg != NULL) == (err->status == SY_OK));
    if (r->forgotten) n_late++;
    if (r->n_called++ > 0) n_twice++;
}

typedef struct hammer {
    sy_peer *peer;
    unsigned seed;
    _Atomic int *stop;
    pthread_t thread;
    int n_sent, n_refused, n_forgot, n_answered;
} hammer;

#define BURST 16

static void hammer_once(hammer *h)
{
    record r[BURST];
    uint64_t id[BURST];
    int accepted[BURST];

    memset(r, 0, sizeof(r));
    for (int i = 0; i < BURST; i++) {
        sy_frame frame;

        id[i] = sy_peer_next_id(h->peer);
        frame = frame_of(id[i], sy_splitmix64(h->seed++) % 2000);
        accepted[i] = sy_peer_send(h->peer, id[i], &frame, on_record, &r[i]) == SY_OK;
    }
    if (sy_splitmix64(h->seed++) % 2 == 0) nap();
    for (int i = 0; i < BURST; i++) {
        const int forgot = sy_peer_forget(h->peer, id[i]);
        const int called = r[i].n_called;

        r[i].forgotten = 1; /* from here a callback would be a bug: the record is on this stack */
        if (!accepted[i]) {
            assert_int_equal(called + forgot, 0); /* failed now: never both */
            h->n_refused++;
        } else {
            assert_int_equal(called + forgot, 1); /* called or forgotten: exactly one */
            h->n_forgot += forgot;
            h->n_answered += called;
        }
        h->n_sent++;
    }
}

static void *hammer_main(void *arg)
{
    hammer *h = arg;

    while (!*h->stop) hammer_once(h);
    return NULL;
}

static void forgetting_never_races_with_an_answer(void **state)
{
    enum { THREADS = 3, RESTARTS = 6 };
    fixture *f = *state;
    hammer h[THREADS];
    _Atomic int stop = 0;
    int n_forgot = 0, n_answered = 0;
    sy_peer *peer;

    memset(h, 0, sizeof(h));
    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream",
                     (sy_peer_config){.window_max = 40, .backoff_max_us = 100000});
    wait_until(sy_peer_up(peer));
    for (unsigned i = 0; i < THREADS; i++) {
        h[i].peer = peer;
        h[i].seed = TEST_SEED + 1000000 * i;
        h[i].stop = &stop;
        assert_int_equal(pthread_create(&h[i].thread, NULL, hammer_main, &h[i]), 0);
    }
    for (int i = 0; i < RESTARTS; i++) { /* losses of the stream, in the middle of all this */
        const int before = f->service->n_messages;

        wait_until(f->service->n_messages > before + 500);
        stop_serving(f, i % 2 == 0 ? 0 : WAIT_US);
        serve(f, (sy_server_config){0});
        wait_until(sy_peer_up(peer));
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(h[i].thread, NULL);
    assert_int_equal(n_late, 0);
    assert_int_equal(n_twice, 0);
    for (int i = 0; i < THREADS; i++) n_forgot += h[i].n_forgot, n_answered += h[i].n_answered;
    assert_true(n_forgot > 0);
    assert_true(n_answered > 0);
    assert_int_equal(sy_peer_outstanding(peer), 0);
    close_peer(f, peer);
}

typedef struct slow_answer {
    sy_peer *peer;
    uint64_t id;
    _Atomic int entered, let_go, left, returned, result;
} slow_answer;

static void answer_slowly(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    slow_answer *slow = arg;

    (void)id;
    (void)msg;
    (void)err;
    slow->entered = 1;
    while (!slow->let_go) nap();
    slow->left = 1;
}

static void *forget_slow(void *arg)
{
    slow_answer *slow = arg;

    slow->result = sy_peer_forget(slow->peer, slow->id);
    if (!slow->left) slow->result = -1; /* came back before the callback had */
    slow->returned = 1;
    return NULL;
}

static void forgetting_waits_for_a_callback_that_runs(void **state)
{
    fixture *f = *state;
    slow_answer slow = {0};
    pthread_t thread;
    sy_frame frame;

    serve(f, (sy_server_config){0});
    slow.peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(slow.peer));
    slow.id = sy_peer_next_id(slow.peer);
    frame = frame_of(slow.id, 10);
    assert_int_equal(sy_peer_send(slow.peer, slow.id, &frame, answer_slowly, &slow), SY_OK);
    wait_until(slow.entered);
    assert_int_equal(pthread_create(&thread, NULL, forget_slow, &slow), 0);
    for (int i = 0; i < 50; i++) nap(); /* time for a wrong forget to come back in */
    assert_false(slow.returned);
    slow.let_go = 1;
    pthread_join(thread, NULL);
    assert_int_equal(slow.result, 0);
    close_peer(f, slow.peer);
}

static void ids_that_share_a_place_are_kept_apart(void **state)
{
    enum { IDS = 64, WINDOW = 8, STEPS = 4000 };
    fixture *f = *state;
    uint64_t in_flight[IDS] = {0}, seed = TEST_SEED; /* the id of each residue, or 0 */
    answers a = {0};
    sy_peer *peer;
    int n = 0;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = WINDOW});
    wait_until(sy_peer_up(peer));
    for (uint64_t step = 1; step <= STEPS; step++) {
        const size_t i = sy_splitmix64(seed++) % IDS;
        const uint64_t fresh = IDS * step + i; /* alike in the low bits, never used before */

        if (sy_splitmix64(seed++) % 2 == 0) {
            const uint64_t id = in_flight[i] != 0 ? in_flight[i] : fresh;
            const sy_status want = in_flight[i] != 0 ? SY_EEXISTS : n == WINDOW ? SY_ELIMIT : SY_OK;
            sy_frame frame = frame_of(id, 0);

            assert_int_equal(sy_peer_send(peer, id, &frame, on_answer, &a), want);
            if (want == SY_OK) in_flight[i] = id, n++;
        } else {
            assert_int_equal(sy_peer_forget(peer, in_flight[i] != 0 ? in_flight[i] : fresh),
                             in_flight[i] != 0);
            n -= in_flight[i] != 0;
            in_flight[i] = 0;
        }
        assert_int_equal(sy_peer_outstanding(peer), n);
    }
    close_peer(f, peer);
    assert_int_equal(a.n, n);
    assert_int_equal(a.n_cancelled, n);
}

static void requests_given_up_make_room_for_new_ones(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 200000};
    sy_peer *peer;
    uint64_t id;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = 8});
    wait_until(sy_peer_up(peer));
    /* The server reads 65 of them; soon HTTP/2's window is full too, and the rest waits here. */
    for (int i = 0; i < 300; i++) {
        assert_int_equal(ask(peer, 200000, &a, &id), SY_OK);
        assert_int_equal(sy_peer_forget(peer, id), 1);
    }
    close_peer(f, peer);
    assert_int_equal(a.n, 0);
}

static void closing_a_peer_while_threads_send_answers_everything_once(void **state)
{
    enum { ROUNDS = 30, N = 64 };
    fixture *f = *state;

    serve(f, (sy_server_config){0});
    for (int round = 0; round < ROUNDS; round++) {
        sy_peer *peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
        answers a = {.payload_bytes = 700};
        int sent = 0;

        wait_until(sy_peer_up(peer));
        for (int i = 0; i < N; i++) sent += ask(peer, 700, &a, NULL) == SY_OK;
        close_peer(f, peer); /* in the middle of the answers */
        assert_int_equal(a.n, sent);
        assert_int_equal(a.n_ok + a.n_cancelled, sent);
    }
}

static void peers_open_and_close_against_nobody(void **state)
{
    fixture *f = *state;

    for (int i = 0; i < 50; i++) {
        sy_peer *peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});

        if (i % 3 == 0) nap();
        close_peer(f, peer);
    }
}

/* ---- posts ---- */

typedef struct order {
    int next, wrong, n;
    _Atomic int done;
} order;

typedef struct numbered {
    order *o;
    int number;
} numbered;

static void on_post(void *arg)
{
    numbered *item = arg;

    if (item->number != item->o->next++) item->o->wrong++;
    if (item->o->next == item->o->n) item->o->done = 1;
    free(item);
}

static void *post_all(void *arg)
{
    fixture *f = ((void **)arg)[0];
    order *o = ((void **)arg)[1];

    for (int i = 0; i < o->n; i++) {
        numbered *item = malloc(sizeof(*item));

        assert_non_null(item);
        *item = (numbered){o, i};
        assert_int_equal(sy_loop_post(f->loop, on_post, item), SY_OK);
    }
    return NULL;
}

static void posts_run_in_their_callers_order(void **state)
{
    enum { THREADS = 3, N = 3000 };
    fixture *f = *state;
    pthread_t thread[THREADS];
    order o[THREADS];
    void *arg[THREADS][2];

    memset(o, 0, sizeof(o));
    for (int i = 0; i < THREADS; i++) {
        o[i].n = N;
        arg[i][0] = f;
        arg[i][1] = &o[i];
        assert_int_equal(pthread_create(&thread[i], NULL, post_all, arg[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        wait_until(o[i].done);
        assert_int_equal(o[i].wrong, 0);
        assert_int_equal(o[i].next, N);
    }
}

static void count_up(void *arg)
{
    ++*(int *)arg;
}

static void what_was_posted_before_a_close_still_runs(void **state)
{
    sy_loop *loop;
    int n = 0;

    (void)state;
    assert_int_equal(sy_loop_open(&loop, "a name that is much too long"), SY_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(sy_loop_post(loop, count_up, &n), SY_OK);
    sy_loop_close(loop);
    assert_int_equal(n, 1000);
    sy_loop_close(NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(forgetting_never_races_with_an_answer),
        TEST(forgetting_waits_for_a_callback_that_runs),
        TEST(ids_that_share_a_place_are_kept_apart),
        TEST(requests_given_up_make_room_for_new_ones),
        TEST(closing_a_peer_while_threads_send_answers_everything_once),
        TEST(peers_open_and_close_against_nobody),
        TEST(posts_run_in_their_callers_order),
        TEST(what_was_posted_before_a_close_still_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
