/* test_rpc_settled.c - when a peer says that no more is to come of a request: who lent memory to it
 * waits for that. */
#include "rpc_fixture.h"

enum { IDS_MAX = 1024 };

typedef struct settled { /* how often each id was */
    _Atomic int n, of[IDS_MAX];
} settled;

static void on_settled(void *ctx, uint64_t id)
{
    settled *s = ctx;

    if (id < IDS_MAX) s->of[id]++;
    s->n++;
}

static sy_peer *open_settling(fixture *f, const char *path, settled *s, size_t window_max)
{
    return open_peer(
        f, path, (sy_peer_config){.ctx = s, .on_settled = on_settled, .window_max = window_max});
}

static void an_answer_settles_its_request_whoever_waits_for_it(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 100};
    settled s = {0};
    uint64_t waited, forgotten;

    serve(f, (sy_server_config){0});
    sy_peer *peer = open_settling(f, "/t.Echo/Hold", &s, 0);
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 100, &a, &waited), SY_OK);
    assert_int_equal(ask(peer, 100, &a, &forgotten), SY_OK);
    wait_until(f->service->n_messages == 2);
    assert_int_equal(sy_peer_forget(peer, forgotten), 1);
    assert_int_equal(s.n, 0); /* the server may still be at it */
    release(f->service, 0);
    release(f->service, 1);
    wait_until(s.n == 2 && a.n == 1);
    assert_int_equal(s.of[waited], 1);
    assert_int_equal(s.of[forgotten], 1);
    close_peer(f, peer);
}

static void what_is_not_sent_is_settled_at_once(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 1};
    settled s = {0};
    uint64_t id;
    sy_peer *peer = open_settling(f, "/t.Echo/Hold", &s, 1);

    assert_int_equal(ask(peer, 1, &a, &id), SY_EUNAVAILABLE); /* nobody is there */
    assert_int_equal(s.of[id], 1);
    serve(f, (sy_server_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 1, &a, NULL), SY_OK);
    assert_int_equal(ask(peer, 1, &a, &id), SY_ELIMIT); /* one is in flight */
    assert_int_equal(s.of[id], 1);
    assert_int_equal(s.n, 2);
    close_peer(f, peer);
}

/* Requests that were given up while they waited for their turn are dropped: no answer will come. */
static void what_is_dropped_before_it_was_sent_is_settled(void **state)
{
    enum { N = 300, READ_MAX = 100 };
    fixture *f = *state;
    answers a = {.payload_bytes = 200000};
    settled s = {0};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_settling(f, "/t.Echo/Hold", &s, 8);
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < N; i++) {
        uint64_t id;
        assert_int_equal(ask(peer, 200000, &a, &id), SY_OK);
        assert_int_equal(sy_peer_forget(peer, id), 1);
    }
    /* All but what the server has read, what is on its way, and the eight that may still wait. */
    wait_until(s.n >= N - READ_MAX - 8);
    for (size_t id = 0; id < IDS_MAX; id++) assert_true(s.of[id] <= 1);
    close_peer(f, peer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(an_answer_settles_its_request_whoever_waits_for_it),
        TEST(what_is_not_sent_is_settled_at_once),
        TEST(what_is_dropped_before_it_was_sent_is_settled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
