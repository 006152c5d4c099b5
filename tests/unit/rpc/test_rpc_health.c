/* grpc.health.v1, as probes and watchers see it. */
#include "rpc_fixture.h"

#include "grpc/health/v1/health.pb-c.h"

enum { NO_ANSWER = -1, UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN };

static sy_frame request_for(const char *service)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    uint8_t bytes[2048];

    request.service = (char *)(uintptr_t)service;
    return frame_of_bytes(bytes, grpc__health__v1__health_check_request__pack(&request, bytes));
}

static int next_status(sy_client_call *call, sy_status *st)
{
    Grpc__Health__V1__HealthCheckResponse *reply;
    sy_error err;
    sy_buf *buf;
    sy_msg *msg;
    int status;

    *st = sy_client_next(call, &msg, &err);
    if (msg == NULL) return NO_ANSWER;
    buf = gather(msg);
    reply = grpc__health__v1__health_check_response__unpack(NULL, buf->len, buf->data);
    assert_non_null(reply);
    status = (int)reply->status;
    grpc__health__v1__health_check_response__free_unpacked(reply, NULL);
    sy_buf_unref(buf);
    sy_msg_free(msg);
    return status;
}

static int check(const fixture *f, const char *service, sy_status *st)
{
    sy_client_call *call =
        start_call(f, "/grpc.health.v1.Health/Check", request_for(service), WAIT_US);
    const int status = next_status(call, st);

    sy_client_end(call);
    return status;
}

static void check_tells_what_was_set(void **state)
{
    fixture *f = *state;
    sy_status st;

    serve(f, (sy_server_config){0});
    assert_int_equal(check(f, "", &st), NOT_SERVING); /* at first */
    sy_server_set_health(f->server, "", 1);
    assert_int_equal(check(f, "", &st), SERVING);
    assert_int_equal(check(f, "switchyard.v1.Router", &st), NO_ANSWER);
    assert_int_equal(st, SY_ENOTFOUND);
    sy_server_set_health(f->server, "switchyard.v1.Router", 1);
    assert_int_equal(check(f, "switchyard.v1.Router", &st), SERVING);
    sy_server_set_health(f->server, "", 0);
    assert_int_equal(check(f, "", &st), NOT_SERVING);
    assert_int_equal(check(f, "switchyard.v1.Router", &st), SERVING);
}

static void a_watcher_sees_the_present_and_every_change(void **state)
{
    fixture *f = *state;
    sy_client_call *whole, *later;
    sy_status st;

    serve(f, (sy_server_config){0});
    whole = start_call(f, "/grpc.health.v1.Health/Watch", request_for(""), WAIT_US);
    later = start_call(f, "/grpc.health.v1.Health/Watch", request_for("later"), WAIT_US);
    assert_int_equal(next_status(whole, &st), NOT_SERVING);
    assert_int_equal(next_status(later, &st), SERVICE_UNKNOWN);
    sy_server_set_health(f->server, "", 1);
    assert_int_equal(next_status(whole, &st), SERVING);
    sy_server_set_health(f->server, "", 1); /* no change, no message */
    sy_server_set_health(f->server, "", 0);
    assert_int_equal(next_status(whole, &st), NOT_SERVING);
    sy_server_set_health(f->server, "later", 1);
    assert_int_equal(next_status(later, &st), SERVING);
    sy_client_end(later);
    sy_server_set_health(f->server, "later", 0); /* nobody watches any more */
    stop_serving(f, WAIT_US);                    /* a watcher does not hold it up */
    assert_int_equal(next_status(whole, &st), NO_ANSWER);
    sy_client_end(whole);
}

static void a_watcher_that_leaves_while_health_changes_is_no_trouble(void **state)
{
    fixture *f = *state;
    sy_status st;

    serve(f, (sy_server_config){0});
    for (int i = 0; i < 50; i++) {
        sy_client_call *call =
            start_call(f, "/grpc.health.v1.Health/Watch", request_for(""), WAIT_US);

        if (i % 2 == 0) (void)next_status(call, &st);
        sy_server_set_health(f->server, "", i % 2);
        sy_client_end(call);
        sy_server_set_health(f->server, "", i % 3 == 0);
    }
    wait_until(sy_server_calls(f->server) == 0);
}

static void malformed_requests_are_refused(void **state)
{
    fixture *f = *state;
    char big[3000];
    sy_error err;

    serve(f, (sy_server_config){0});
    memset(big, 0x0a, sizeof(big));
    assert_int_equal(
        run_call(f, "/grpc.health.v1.Health/Check", frame_of_bytes(big, 2), NULL, &err), SY_EINVAL);
    assert_int_equal(
        run_call(f, "/grpc.health.v1.Health/Check", frame_of_bytes(big, sizeof(big)), NULL, &err),
        SY_EINVAL);
    assert_int_equal(
        run_call(f, "/grpc.health.v1.Health/Watch", frame_of_bytes(big, 1), NULL, &err), SY_EINVAL);
}

static void a_full_server_still_answers_probes(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_status st;

    serve(f, (sy_server_config){.calls_max = 1});
    call = start_call(f, "/t.Echo/Hang", frame_of(1, 0), WAIT_US);
    wait_until(f->service->n_messages == 1);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 0), NULL, &err), SY_ELIMIT);
    assert_int_equal(check(f, "", &st), NOT_SERVING);
    sy_client_end(call);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(check_tells_what_was_set),
        TEST(a_watcher_sees_the_present_and_every_change),
        TEST(a_watcher_that_leaves_while_health_changes_is_no_trouble),
        TEST(malformed_requests_are_refused),
        TEST(a_full_server_still_answers_probes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
