/* Single calls, as a client sees them: replies, statuses, limits, cancels, deadlines, clients that
 * do not read. */
#include "rpc_fixture.h"

static void a_unary_call_gets_its_reply(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 8, 500, 513, 4096, 65536, 1 << 20};
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
        call = start_call(f, "/t.Echo/Unary", frame_of(i + 1, sizes[i]), WAIT_US);
        assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
        assert_non_null(msg);
        assert_true(is_intact(msg, i + 1, sizes[i]));
        sy_msg_free(msg);
        assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
        assert_null(msg);
        sy_client_end(call);
    }
    assert_int_equal(f->service->n_saw_deadline, SY_COUNT_OF(sizes));
    wait_until(f->service->n_ended == (int)SY_COUNT_OF(sizes));
    assert_int_equal(f->service->n_cancelled, 0);
    wait_until(sy_server_calls(f->server) == 0);
}

static void a_frame_of_many_pieces_arrives_in_order(void **state)
{
    fixture *f = *state;
    sy_frame frame, whole = frame_of(9, 100000);
    size_t at = 0;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    sy_frame_init(&frame);
    for (size_t i = 0; i < SY_FRAME_PIECES_MAX; i++) {
        const size_t left = whole.total_bytes - at;
        const size_t n =
            i + 1 == SY_FRAME_PIECES_MAX ? left : SY_MIN(left, i % 2 == 0 ? 13 * i : 3000 + i);

        assert_int_equal(
            sy_frame_add(&frame, whole.piece[0].buf, (const char *)whole.piece[0].data + at, n),
            SY_OK);
        at += n;
    }
    sy_frame_free(&whole);
    call = start_call(f, "/t.Echo/Unary", frame, WAIT_US);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_true(is_intact(msg, 9, 100000));
    sy_msg_free(msg);
    sy_client_end(call);
}

static void a_server_stream_delivers_all_in_order(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Count", frame_of(200, 0), WAIT_US);
    for (uint64_t i = 1; i <= 200; i++) {
        assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
        assert_non_null(msg);
        assert_true(is_intact(msg, i, 100));
        sy_msg_free(msg);
    }
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_null(msg);
    sy_client_end(call);
}

static void a_stream_ends_when_its_client_has_said_all(void **state)
{
    fixture *f = *state;
    sy_error err;
    int n;

    serve(f, (sy_server_config){0});
    assert_int_equal(run_call(f, "/t.Echo/Stream", frame_of(3, 10), &n, &err), SY_OK);
    assert_int_equal(n, 1);
    assert_int_equal(f->service->n_half_closed, 1);
}

static void a_half_closed_stream_still_gets_the_answers_being_worked_on(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Hold", frame_of(3, 10),
                      WAIT_US); /* no on_half_close: ends by itself */
    wait_until(f->service->n_messages == 1);
    release(f->service, 0);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_non_null(msg);
    assert_true(is_intact(msg, 3, 10));
    sy_msg_free(msg);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_null(msg);
    sy_client_end(call);
}

static void a_failure_carries_code_text_and_details(void **state)
{
    fixture *f = *state;
    char got[64] = "";
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Fail", frame_of(1, 0), WAIT_US);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_EPRECONDITION);
    assert_null(msg);
    assert_string_equal(err.message, "layer 3 is not loaded");
    assert_int_equal(sy_client_details(call, got, 3), 0); /* does not fit */
    assert_int_equal(sy_client_details(call, got, sizeof(got)), strlen("NOT_LOADED/3"));
    assert_string_equal(got, "NOT_LOADED/3");
    assert_int_equal(sy_client_next(call, &msg, &err),
                     SY_EPRECONDITION); /* asking again gives the same */
    sy_client_end(call);
    wait_until(f->service->n_ended == 1);
    assert_int_equal(f->service->n_cancelled, 0);
}

static void an_unknown_method_is_answered_at_once(void **state)
{
    fixture *f = *state;
    sy_error err;

    serve(f, (sy_server_config){0});
    for (int i = 0; i < 50; i++) {
        assert_int_equal(run_call(f, "/t.Echo/Nothing", frame_of(1, 100), NULL, &err),
                         SY_EUNIMPLEMENTED);
        assert_contains(err.message, "/t.Echo/Nothing");
    }
    assert_int_equal(f->service->n_opened, 0);
}

static void a_message_too_large_is_refused_and_harms_nobody_else(void **state)
{
    fixture *f = *state;
    sy_client_call *other;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){.message_bytes_max = 100000});
    other = start_call(f, "/t.Echo/Hold", frame_of(5, 10), WAIT_US);
    wait_until(f->service->n_messages == 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 200000), NULL, &err), SY_ELIMIT);
        assert_contains(err.message, "100000"); /* the limit is in the text */
    }
    release(f->service, 0);
    assert_int_equal(sy_client_next(other, &msg, &err), SY_OK); /* the same connection */
    assert_non_null(msg);
    sy_msg_free(msg);
    sy_client_end(other);
    assert_int_equal(f->service->n_messages, 1);
}

static void too_many_calls_are_refused_with_the_limit(void **state)
{
    fixture *f = *state;
    sy_client_call *call[3];
    sy_error err;

    serve(f, (sy_server_config){.calls_max = 3});
    for (int i = 0; i < 3; i++) call[i] = start_call(f, "/t.Echo/Hang", frame_of(1, 0), WAIT_US);
    wait_until(f->service->n_messages == 3);
    assert_int_equal(sy_server_calls(f->server), 3);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 0), NULL, &err), SY_ELIMIT);
    assert_contains(err.message, " 3 calls");
    sy_client_end(call[0]);
    wait_until(sy_server_calls(f->server) == 2);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 0), NULL, &err), SY_OK);
    sy_client_end(call[1]);
    sy_client_end(call[2]);
}

static void a_cancelled_call_ends_on_the_server(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Hang", frame_of(1, 0), WAIT_US);
    wait_until(f->service->n_messages == 1);
    sy_client_cancel(call);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_ECANCELLED);
    wait_until(f->service->n_ended == 1);
    assert_int_equal(f->service->n_cancelled, 1);
    sy_client_end(call);
}

static void a_deadline_ends_the_call_on_both_sides(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Hang", frame_of(1, 0), 100000);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_EDEADLINE);
    sy_client_end(call);
    wait_until(f->service->n_ended == f->service->n_opened);
    call = start_call(f, "/t.Echo/Hang", frame_of(1, 0), SY_NEVER_US);
    wait_until(f->service->n_opened - f->service->n_ended == 1);
    wait_until(f->service->n_messages >= 1);
    assert_true(f->service->n_saw_deadline <= 1);
    sy_client_end(call);
}

static void nobody_there_fails_at_once_unless_asked_to_wait(void **state)
{
    fixture *f = *state;
    sy_frame frame = frame_of(1, 0);
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    assert_int_equal(sy_client_start(&call, f->client, "/t.Echo/Unary", &frame,
                                     sy_clock_us() + WAIT_US, 0, &err),
                     SY_OK);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_EUNAVAILABLE);
    sy_client_end(call);
    call = start_call(f, "/t.Echo/Unary", frame_of(1, 0), WAIT_US);
    serve(f, (sy_server_config){0});
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_non_null(msg);
    sy_msg_free(msg);
    sy_client_end(call);
}

static void a_client_that_never_reads_fills_its_own_queue_only_and_is_cut(void **state)
{
    fixture *f = *state;
    sy_client_call *deaf;
    sy_error err;
    sy_status st;
    sy_msg *msg;

    serve(f, (sy_server_config){.send_queue_max = 32, .send_stall_us = 300000});
    deaf = start_call(f, "/t.Echo/Flood", frame_of(1, 0), SY_NEVER_US);
    wait_until(f->service->n_messages == 1);
    assert_int_equal(f->service->n_limit, 1); /* the handler was told, and did not block */
    while (f->service->n_cancelled == 0) {    /* others are served all the while */
        assert_int_equal(run_call(f, "/t.Echo/Count", frame_of(3, 0), NULL, &err), SY_OK);
    }
    while ((st = sy_client_next(deaf, &msg, &err)) == SY_OK && msg != NULL) sy_msg_free(msg);
    assert_int_equal(st, SY_ELIMIT);
    assert_contains(err.message, "read nothing for 300 ms");
    sy_client_end(deaf);
}

typedef struct sender {
    sy_call *call;
    pthread_t thread;
    _Atomic int n_sent;
    _Atomic int *stop;
} sender;

static void *keep_sending(void *arg)
{
    sender *s = arg;

    while (!*s->stop) {
        sy_frame frame = frame_of(2, 1000);
        const sy_status st = sy_call_send(s->call, &frame);

        if (st == SY_OK) s->n_sent++;
        if (st == SY_ECANCELLED) break;
    }
    sy_call_unref(s->call);
    return NULL;
}

static void threads_that_send_while_the_client_cancels_are_told(void **state)
{
    enum { ROUNDS = 20, THREADS = 3 };
    fixture *f = *state;

    serve(f, (sy_server_config){0});
    for (int round = 0; round < ROUNDS; round++) {
        _Atomic int stop = 0;
        sender s[THREADS] = {0};
        sy_client_call *call = start_call(f, "/t.Echo/Hold", frame_of(1, 0), WAIT_US);
        sy_error err;
        sy_msg *msg;

        wait_until(f->service->n_messages == round + 1);
        for (int i = 0; i < THREADS; i++) {
            s[i].call = sy_call_ref(f->service->held[round].call);
            s[i].stop = &stop;
            assert_int_equal(pthread_create(&s[i].thread, NULL, keep_sending, &s[i]), 0);
        }
        for (int i = 0; i < 10; i++) {
            assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
            assert_non_null(msg);
            sy_msg_free(msg);
        }
        sy_client_end(call);
        /* Each thread learns of it by SY_ECANCELLED: nobody sets stop. */
        for (int i = 0; i < THREADS; i++) pthread_join(s[i].thread, NULL);
    }
    wait_until(f->service->n_ended == ROUNDS);
}

static void sends_after_the_end_are_refused(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_frame frame;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Hold", frame_of(1, 0), WAIT_US);
    wait_until(f->service->n_messages == 1);
    frame = frame_of(1, 0);
    assert_int_equal(sy_call_send(f->service->held[0].call, &frame), SY_OK);
    sy_call_finish(f->service->held[0].call, NULL);
    frame = frame_of(1, 0);
    assert_int_equal(sy_call_send(f->service->held[0].call, &frame), SY_ECANCELLED);
    assert_int_equal(sy_client_next(call, &msg, &err),
                     SY_OK); /* what was queued before still arrives */
    assert_non_null(msg);
    sy_msg_free(msg);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_OK);
    assert_null(msg);
    sy_client_end(call);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_unary_call_gets_its_reply),
        TEST(a_frame_of_many_pieces_arrives_in_order),
        TEST(a_server_stream_delivers_all_in_order),
        TEST(a_stream_ends_when_its_client_has_said_all),
        TEST(a_half_closed_stream_still_gets_the_answers_being_worked_on),
        TEST(a_failure_carries_code_text_and_details),
        TEST(an_unknown_method_is_answered_at_once),
        TEST(a_message_too_large_is_refused_and_harms_nobody_else),
        TEST(too_many_calls_are_refused_with_the_limit),
        TEST(a_cancelled_call_ends_on_the_server),
        TEST(a_deadline_ends_the_call_on_both_sides),
        TEST(nobody_there_fails_at_once_unless_asked_to_wait),
        TEST(a_client_that_never_reads_fills_its_own_queue_only_and_is_cut),
        TEST(threads_that_send_while_the_client_cancels_are_told),
        TEST(sends_after_the_end_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
