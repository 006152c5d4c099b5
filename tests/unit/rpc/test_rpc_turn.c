/* Who drives a loop: its own thread, or threads that wait in fan-outs. Whoever does, all that is
 * due on it happens. */
#include "rpc_fixture.h"

enum { PEERS = 2 };

typedef struct waiter {
    sy_peer **peer;
    int n_rounds;
    _Atomic int n_good; /* replies */
    pthread_t thread;
} waiter;

static void *wait_in_rounds(void *arg)
{
    waiter *w = arg;
    sy_fanout *fanout;

    if (sy_fanout_open(&fanout, PEERS) != SY_OK) return NULL;
    for (int round = 0; round < w->n_rounds; round++) {
        for (int i = 0; i < PEERS; i++) {
            const uint64_t id = sy_peer_next_id(w->peer[i]);
            sy_frame frame = frame_of(id, 40);

            (void)sy_fanout_send(fanout, w->peer[i], id, &frame);
        }
        sy_fanout_wait(fanout, sy_clock_us() + WAIT_US);
        for (size_t i = 0; i < PEERS; i++) {
            const sy_fanout_slot *slot = sy_fanout_at(fanout, i);

            if (slot->status == SY_OK && is_intact(slot->msg, slot->id, 40)) w->n_good++;
        }
        sy_fanout_reset(fanout);
    }
    sy_fanout_free(fanout);
    return NULL;
}

typedef struct counter {
    atomic_int n;
} counter;

static void count_one(void *arg)
{
    ((counter *)arg)->n++;
}

static void many_threads_wait_on_one_loop_and_posts_run_meanwhile(void **state)
{
    enum { THREADS = 4, ROUNDS = 300, POSTS = 200 };
    fixture *f = *state;
    sy_peer *peer[PEERS];
    waiter w[THREADS];
    counter posted = {0};

    serve(f, (sy_server_config){0});
    for (int i = 0; i < PEERS; i++) peer[i] = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    for (int i = 0; i < PEERS; i++) wait_until(sy_peer_up(peer[i]));
    for (int i = 0; i < THREADS; i++) {
        w[i] = (waiter){.peer = peer, .n_rounds = ROUNDS};
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_in_rounds, &w[i]), 0);
    }
    for (int i = 1; i <= POSTS; i++) {
        assert_int_equal(sy_loop_post(f->loop, count_one, &posted), SY_OK);
        wait_until(posted.n == i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].n_good, ROUNDS * PEERS);
    }
    for (int i = 0; i < PEERS; i++) close_peer(f, peer[i]);
}

static void count_answer(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    (void)id;
    (void)err;
    if (msg != NULL) count_one(arg);
}

/* Right after a wait, nobody drives: the loop's thread still comes back for what others sent. */
static void what_nobody_waits_for_is_answered_after_a_wait(void **state)
{
    enum { ROUNDS = 20 };
    fixture *f = *state;
    sy_peer *peer[PEERS];
    counter heard = {0};

    serve(f, (sy_server_config){0});
    for (int i = 0; i < PEERS; i++) peer[i] = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    for (int i = 0; i < PEERS; i++) wait_until(sy_peer_up(peer[i]));
    for (int round = 1; round <= ROUNDS; round++) {
        waiter w = {.peer = peer, .n_rounds = 3};
        const uint64_t id = sy_peer_next_id(peer[0]);
        sy_frame frame = frame_of(id, 10);

        (void)wait_in_rounds(&w);
        assert_int_equal(w.n_good, 3 * PEERS);
        assert_int_equal(sy_peer_send(peer[0], id, &frame, count_answer, &heard), SY_OK);
        wait_until(heard.n == round);
    }
    for (int i = 0; i < PEERS; i++) close_peer(f, peer[i]);
}

/* A caller that never sleeps, but looks whether something has come, sees it come. */
static void looks_without_sleeping_bring_the_answers(void **state)
{
    fixture *f = *state;
    sy_peer *peer = NULL;
    sy_fanout *fanout;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(sy_fanout_open(&fanout, 1), SY_OK);
    for (int round = 0; round < 50; round++) {
        const uint64_t id = sy_peer_next_id(peer);
        sy_frame frame = frame_of(id, 10);

        assert_int_equal(sy_fanout_send(fanout, peer, id, &frame), 0);
        wait_until(sy_fanout_wait_some(fanout, 0) == 1);
        assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_OK);
        sy_fanout_reset(fanout);
    }
    sy_fanout_free(fanout);
    close_peer(f, peer);
}

/* ---- a thread that works off a queue ---- */

typedef struct job {
    sy_call *call;
    sy_msg *msg;
} job;

static void on_work(void *ctx, sy_call *call, sy_msg *msg)
{
    job *made = malloc(sizeof(*made));

    assert_non_null(made);
    *made = (job){sy_call_ref(call), sy_msg_take(msg)};
    assert_int_equal(sy_queue_push(ctx, made), SY_OK);
}

typedef struct worker {
    sy_loop *loop;
    sy_queue *queue;
    int n_done;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    void *item;

    while (sy_loop_pop(w->loop, w->queue, &item) == SY_OK) {
        job *taken = item;

        echo(taken->call, taken->msg);
        sy_msg_free(taken->msg);
        sy_call_unref(taken->call);
        free(taken);
        w->n_done++;
    }
    return NULL;
}

/* The worker, the waiting thread and the loop's own take turns at one loop, which serves and asks.
 */
static void a_worker_that_drives_the_loop_misses_nothing_and_ends_with_its_queue(void **state)
{
    enum { ROUNDS = 300 };
    fixture *f = *state;
    const char *address = "127.0.0.1:0";
    worker w = {.loop = f->loop};
    sy_method method = {
        .path = "/t.Work/Stream", .client_streams = 1, .server_streams = 1, .on_message = on_work};
    const sy_server_config config = {
        .addresses = &address, .n_addresses = 1, .methods = &method, .n_methods = 1};
    char where[32];
    pthread_t thread;
    sy_server *server;
    sy_peer *peer[PEERS];
    sy_error err;

    assert_int_equal(sy_queue_open(&w.queue, 64), SY_OK);
    method.ctx = w.queue;
    assert_int_equal(sy_server_open(&server, f->loop, &config, &err), SY_OK);
    snprintf(where, sizeof(where), "127.0.0.1:%d", sy_server_port(server, 0));
    for (int i = 0; i < PEERS; i++) {
        const sy_peer_config to = {
            .name = "work", .address = where, .stream_path = method.path, .reply_id = id_of_iov};
        assert_int_equal(sy_peer_open(&peer[i], f->loop, &to, &err), SY_OK);
    }
    for (int i = 0; i < PEERS; i++) wait_until(sy_peer_up(peer[i]));
    assert_int_equal(pthread_create(&thread, NULL, work, &w), 0);
    waiter asking = {.peer = peer, .n_rounds = ROUNDS};
    (void)wait_in_rounds(&asking);
    assert_int_equal(asking.n_good, ROUNDS * PEERS);
    for (int i = 0; i < PEERS; i++) sy_peer_close(peer[i]);
    sy_server_close(server, 0);
    sy_queue_close(w.queue);
    pthread_join(thread, NULL);
    assert_int_equal(w.n_done, ROUNDS * PEERS);
    sy_queue_free(w.queue);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(many_threads_wait_on_one_loop_and_posts_run_meanwhile),
        TEST(what_nobody_waits_for_is_answered_after_a_wait),
        TEST(looks_without_sleeping_bring_the_answers),
        TEST(a_worker_that_drives_the_loop_misses_nothing_and_ends_with_its_queue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
