/* Peers: one long-lived stream, many requests in flight, servers that come, go, stall and lie. */
#include "rpc_fixture.h"

#include <sys/socket.h>
#include <sys/un.h>

static void requests_come_back_to_whoever_sent_them(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 4096};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    assert_string_equal(sy_peer_name(peer), "expert-0");
    assert_string_equal(sy_peer_address(peer), f->address);
    for (int i = 0; i < 100; i++) assert_int_equal(ask(peer, 4096, &a, NULL), SY_OK);
    wait_until(a.n == 100);
    assert_int_equal(a.n_ok, 100);
    assert_int_equal(sy_peer_outstanding(peer), 0);
    close_peer(f, peer);
    stop_serving(f, WAIT_US);
}

static void ten_thousand_replies_out_of_order_find_their_requests(void **state)
{
    enum { N = 10000, AT_ONCE = 500 };
    fixture *f = *state;
    answers a = {.payload_bytes = 40};
    sy_peer *peer;
    uint64_t seed = TEST_SEED;

    serve(f, (sy_server_config){.send_queue_max = AT_ONCE});
    /* 50 streams' worth of back-pressure: the server reads 64 at a time and resumes as they are
     * answered. */
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = AT_ONCE});
    wait_until(sy_peer_up(peer));
    for (int sent = 0; sent < N; sent += AT_ONCE) {
        size_t answered = 0, order[HELD_MAX], n_new;

        for (int i = 0; i < AT_ONCE; i++) assert_int_equal(ask(peer, 40, &a, NULL), SY_OK);
        while (answered < AT_ONCE) {
            wait_until((size_t)f->service->n_messages > (size_t)sent + answered);
            n_new = (size_t)f->service->n_messages - (size_t)sent - answered;
            for (size_t i = 0; i < n_new; i++) order[i] = answered + i;
            for (size_t i = n_new; i-- > 1;) { /* Fisher-Yates */
                const size_t j = sy_splitmix64(seed++) % (i + 1), t = order[i];

                order[i] = order[j];
                order[j] = t;
            }
            for (size_t i = 0; i < n_new; i++) release(f->service, order[i]);
            answered += n_new;
        }
        wait_until(a.n == sent + AT_ONCE);
        pthread_mutex_lock(&f->service->mutex);
        f->service->n_held = 0;
        pthread_mutex_unlock(&f->service->mutex);
    }
    assert_int_equal(a.n_ok, N);
    close_peer(f, peer);
    stop_serving(f, WAIT_US);
}

static void a_message_of_eight_megabytes_arrives_whole(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 8 << 20};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < 3; i++) assert_int_equal(ask(peer, 8 << 20, &a, NULL), SY_OK);
    wait_until(a.n == 3);
    assert_int_equal(a.n_ok, 3);
    close_peer(f, peer);
}

static void an_empty_message_is_a_message(void **state)
{
    fixture *f = *state;
    sy_error err;
    int n;

    serve(f, (sy_server_config){0});
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of_bytes(NULL, 0), &n, &err), SY_OK);
    assert_int_equal(n, 1);
}

static void a_peer_that_is_absent_refuses_at_once_and_works_when_it_appears(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 1};
    sy_peer *peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});

    for (int i = 0; i < 10; i++) assert_int_equal(ask(peer, 1, &a, NULL), SY_EUNAVAILABLE);
    assert_false(sy_peer_up(peer));
    serve(f, (sy_server_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 1, &a, NULL), SY_OK);
    wait_until(a.n == 1);
    assert_int_equal(a.n_ok, 1);
    close_peer(f, peer);
}

typedef struct states {
    _Atomic int n_up, n_down;
} states;

static void on_state(void *ctx, sy_peer *peer, int up)
{
    states *s = ctx;

    assert_int_equal(sy_peer_up(peer), up);
    if (up) {
        s->n_up++;
    } else {
        s->n_down++;
    }
}

static void a_lost_server_answers_everything_in_flight_once_and_is_found_again(void **state)
{
    enum { ROUNDS = 8, N = 50 };
    fixture *f = *state;
    states s = {0};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.ctx = &s, .on_state = on_state});
    for (int round = 0; round < ROUNDS; round++) {
        answers a = {.payload_bytes = 1000};

        wait_until(sy_peer_up(peer));
        for (int i = 0; i < N; i++) assert_int_equal(ask(peer, 1000, &a, NULL), SY_OK);
        wait_until(f->service->n_messages >= (round + 1) * N); /* all of it is being worked on */
        stop_serving(f, 0);
        wait_until(a.n == N);
        assert_int_equal(a.n_unavailable, N);
        assert_int_equal(sy_peer_outstanding(peer), 0);
        wait_until(!sy_peer_up(peer));
        drop_held(
            f->service); /* workers that answer too late: their sends are refused, nothing more */
        serve(f, (sy_server_config){0});
    }
    wait_until(sy_peer_up(peer));
    wait_until(s.n_up == ROUNDS + 1); /* told just after the flag */
    assert_int_equal(s.n_down, ROUNDS);
    close_peer(f, peer);
}

static void late_answers_to_an_ended_call_are_refused(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 8};
    sy_frame frame;
    sy_peer *peer;
    sy_call *call;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    wait_until(f->service->n_messages == 1);
    stop_serving(f, 0);
    call = f->service->held[0].call;
    assert_true(sy_call_ended(call));
    frame = frame_of(1, 8);
    assert_int_equal(sy_call_send(call, &frame), SY_ECANCELLED);
    assert_int_equal(sy_call_queued(call), 0);
    sy_call_finish(call, NULL);
    close_peer(f, peer);
}

static void closing_a_peer_cancels_what_is_in_flight(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 8};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < 20; i++) assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    close_peer(f, peer);
    assert_int_equal(a.n_cancelled, 20); /* before close returns */
    assert_int_equal(a.n, 20);
}

static void a_full_window_refuses_and_opens_again(void **state)
{
    enum { WINDOW = 4 };
    fixture *f = *state;
    answers a = {.payload_bytes = 8};
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = WINDOW});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < WINDOW; i++) assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    assert_int_equal(sy_peer_outstanding(peer), WINDOW);
    assert_int_equal(ask(peer, 8, &a, NULL), SY_ELIMIT);
    wait_until(f->service->n_messages == WINDOW);
    release(f->service, 2);
    wait_until(a.n == 1);
    assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    assert_int_equal(ask(peer, 8, &a, NULL), SY_ELIMIT);
    close_peer(f, peer);
    assert_int_equal(a.n_ok, 1);
    assert_int_equal(a.n_cancelled, WINDOW);
}

static void forgotten_requests_free_their_place_and_are_never_answered(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 8};
    uint64_t id[3];
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){.window_max = 3});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < 3; i++) assert_int_equal(ask(peer, 8, &a, &id[i]), SY_OK);
    wait_until(f->service->n_messages == 3);
    assert_int_equal(sy_peer_forget(peer, id[1]), 1);
    assert_int_equal(sy_peer_forget(peer, id[1]), 0);
    assert_int_equal(sy_peer_forget(peer, 12345), 0);
    assert_int_equal(sy_peer_outstanding(peer), 2);
    for (size_t i = 0; i < 3; i++) release(f->service, i);
    wait_until(a.n == 2);
    assert_int_equal(sy_peer_forget(peer, id[0]), 0);
    assert_int_equal(ask(peer, 8, &a, NULL),
                     SY_OK); /* the stream still works: a late reply harmed nothing */
    wait_until(f->service->n_messages == 4);
    release(f->service, 3);
    wait_until(a.n == 3);
    assert_int_equal(a.n_ok, 3);
    close_peer(f, peer);
}

typedef struct watched {
    _Atomic int n;
} watched;

static void on_watch(void *ctx, sy_peer *peer, sy_msg *msg)
{
    assert_true(sy_peer_up(peer));
    assert_true(is_intact(msg, 77, 0));
    ((watched *)ctx)->n++;
}

static void the_watch_is_opened_with_every_stream(void **state)
{
    const uint64_t request = 77;
    fixture *f = *state;
    watched w = {0};
    sy_peer *peer = open_peer(f, "/t.Echo/Stream",
                              (sy_peer_config){.ctx = &w,
                                               .watch_path = "/t.Echo/Watch",
                                               .watch_request = &request,
                                               .watch_request_len = sizeof(request),
                                               .on_watch = on_watch});

    for (int round = 1; round <= 3; round++) {
        serve(f, (sy_server_config){0});
        wait_until(w.n == round);
        stop_serving(f, WAIT_US); /* returns: neither stream has anything pending */
        wait_until(!sy_peer_up(peer));
    }
    close_peer(f, peer);
}

static void a_server_without_the_method_never_counts_as_up(void **state)
{
    fixture *f = *state;
    states s = {0};
    answers a = {0};
    sy_peer *peer;
    sy_error err;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Missing", (sy_peer_config){.ctx = &s, .on_state = on_state});
    for (int i = 0; i < 20; i++) { /* some attempts go by; the server stays fine */
        assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 1), NULL, &err), SY_OK);
        assert_int_equal(ask(peer, 1, &a, NULL), SY_EUNAVAILABLE);
        nap();
    }
    close_peer(f, peer);
    assert_int_equal(s.n_up, 0);
}

static void a_request_past_the_servers_limit_fails_and_the_peer_comes_back(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 100000};
    sy_peer *peer;

    serve(f, (sy_server_config){.message_bytes_max = 10000});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 100000, &a, NULL), SY_OK);
    wait_until(a.n == 1);
    assert_int_equal(a.n_unavailable, 1);
    wait_until(sy_peer_up(peer));
    a.payload_bytes = 100;
    assert_int_equal(ask(peer, 100, &a, NULL), SY_OK);
    wait_until(a.n == 2);
    assert_int_equal(a.n_ok, 1);
    close_peer(f, peer);
}

static void a_reply_that_cannot_be_read_ends_the_stream_not_the_peer(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 8};
    sy_frame frame = frame_of_bytes("abc", 3);
    sy_peer *peer;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    assert_int_equal(sy_peer_send(peer, sy_peer_next_id(peer), &frame, on_answer, &a), SY_OK);
    wait_until(a.n == 1);
    assert_int_equal(a.n_unavailable, 1);
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    wait_until(a.n == 2);
    assert_int_equal(a.n_ok, 1);
    close_peer(f, peer);
}

static void a_server_that_accepts_and_says_nothing_is_given_up(void **state)
{
    fixture *f = *state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    answers a = {.payload_bytes = 8};
    sy_peer *peer;
    int accepted;

    strcpy(addr.sun_path, f->address + strlen("unix:"));
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 8), 0);
    peer = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    accepted = accept(fd, NULL, NULL); /* and stays open, silent */
    assert_true(accepted >= 0);
    assert_int_equal(ask(peer, 8, &a, NULL), SY_EUNAVAILABLE);
    unlink(addr.sun_path);
    serve(f, (sy_server_config){0}); /* at the same address, while the first attempt still hangs */
    wait_until(sy_peer_up(peer));
    assert_int_equal(ask(peer, 8, &a, NULL), SY_OK);
    wait_until(a.n_ok == 1);
    close_peer(f, peer);
    close(accepted);
    close(fd);
}

static void addresses_that_make_no_sense_are_refused(void **state)
{
    static const char *const bad[] = {
        "",      "7000",        "unix:",       ":7000",        "a b:1",
        "[::1:", "[::1]:70000", "1.2.3.4:",    "1.2.3.4:7x",   "host:-1",
        "[x]:1", "http://h:80", "h\ttp:80000", "[fe80::g]:12", "h:00000080"};
    fixture *f = *state;

    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        const sy_peer_config config = {
            .address = bad[i], .stream_path = "/a/b", .reply_id = id_of_iov, .name = "x"};
        sy_peer *peer = (sy_peer *)f;
        sy_error err;

        if (sy_peer_open(&peer, f->loop, &config, &err) != SY_EINVAL)
            fail_msg("accepted \"%s\"", bad[i]);
        assert_null(peer);
        assert_int_equal(err.status, SY_EINVAL);
        assert_true(err.message[0] != '\0');
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(requests_come_back_to_whoever_sent_them),
        TEST(ten_thousand_replies_out_of_order_find_their_requests),
        TEST(a_message_of_eight_megabytes_arrives_whole),
        TEST(an_empty_message_is_a_message),
        TEST(a_peer_that_is_absent_refuses_at_once_and_works_when_it_appears),
        TEST(a_lost_server_answers_everything_in_flight_once_and_is_found_again),
        TEST(late_answers_to_an_ended_call_are_refused),
        TEST(closing_a_peer_cancels_what_is_in_flight),
        TEST(a_full_window_refuses_and_opens_again),
        TEST(forgotten_requests_free_their_place_and_are_never_answered),
        TEST(the_watch_is_opened_with_every_stream),
        TEST(a_server_without_the_method_never_counts_as_up),
        TEST(a_request_past_the_servers_limit_fails_and_the_peer_comes_back),
        TEST(a_reply_that_cannot_be_read_ends_the_stream_not_the_peer),
        TEST(a_server_that_accepts_and_says_nothing_is_given_up),
        TEST(addresses_that_make_no_sense_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
