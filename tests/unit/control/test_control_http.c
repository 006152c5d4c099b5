/* test_control_http.c - the HTTP port, timers and signals: what a process has without Redis. */
#include "control_seen.h"

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* ---- a client ---- */

typedef struct answer {
    int status;
    char head[1024];
    char body[65536];
} answer;

static void ask_on(answer *out, int fd, const char *request)
{
    static char text[sizeof(out->body) + sizeof(out->head)];
    const char *body;
    size_t n = 0;
    ssize_t got;

    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    while (n < sizeof(text) - 1 && (got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    close(fd);
    body = strstr(text, "\r\n\r\n");
    if (body == NULL || sscanf(text, "HTTP/1.%*d %d", &out->status) != 1) {
        fail_msg("no HTTP answer to '%s': '%s'", request, text);
    }
    snprintf(out->head, sizeof(out->head), "%.*s", (int)SY_MIN(body - text, 1000), text);
    snprintf(out->body, sizeof(out->body), "%.*s", (int)sizeof(out->body) - 1, body + 4);
}

static int connect_tcp(int port)
{
    const struct sockaddr_in name = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
    assert_int_equal(connect(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    return fd;
}

static answer *ask(sy_control *control, const char *method, const char *path)
{
    static answer out;
    char request[128];

    snprintf(request, sizeof(request), "%s %s HTTP/1.0\r\n\r\n", method, path);
    ask_on(&out, connect_tcp(sy_control_http_port(control)), request);
    return &out;
}

/* ---- a service ---- */

static _Atomic int is_ready;

static int ready(void *ctx, sy_strbuf *why)
{
    (void)ctx;
    if (atomic_load(&is_ready)) return 1;
    sy_strbuf_puts(why, "2 of 6 experts have no holder");
    return 0;
}

static int http_get(void *ctx, const char *path, sy_strbuf *body)
{
    (void)ctx;
    sy_strbuf_puts(body, "{\"half\":"); /* dropped when the answer is 0 */
    if (strcmp(path, "/status") != 0) return 0;
    sy_strbuf_puts(body, "1}");
    return 1;
}

static const sy_control_config service = {
    .http = "127.0.0.1:0",
    .ready = ready,
    .http_get = http_get,
};

static void probes_metrics_and_the_services_own_paths_answer(void **state)
{
    sy_control *control = seen_open(&service);
    const answer *got;

    (void)state;
    assert_in_range(sy_control_http_port(control), 1, 65535);
    got = ask(control, "GET", "/healthz");
    assert_int_equal(got->status, 200);
    assert_string_equal(got->body, "ok\n");

    atomic_store(&is_ready, 0);
    got = ask(control, "GET", "/readyz");
    assert_int_equal(got->status, 503);
    assert_string_equal(got->body, "2 of 6 experts have no holder\n");
    atomic_store(&is_ready, 1);
    got = ask(control, "GET", "/readyz?verbose=1");
    assert_int_equal(got->status, 200);
    assert_string_equal(got->body, "ready\n");

    got = ask(control, "GET", "/status");
    assert_int_equal(got->status, 200);
    assert_string_equal(got->body, "{\"half\":1}");
    assert_non_null(strstr(got->head, "Content-Type: application/json"));

    got = ask(control, "GET", "/nowhere");
    assert_int_equal(got->status, 404);
    assert_null(strstr(got->body, "half"));

    got = ask(control, "GET", "/metrics");
    assert_int_equal(got->status, 200);
    assert_non_null(strstr(got->head, "Content-Type: text/plain; version=0.0.4"));
    sy_control_close(control);
}

static void other_methods_are_refused_and_head_has_no_body(void **state)
{
    static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    sy_control *control = seen_open(&service);
    const answer *got;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(methods); i++) {
        got = ask(control, methods[i], "/healthz");
        assert_int_equal(got->status, 405);
        assert_non_null(strstr(got->head, "Allow: GET, HEAD"));
    }
    got = ask(control, "HEAD", "/healthz");
    assert_int_equal(got->status, 200);
    assert_string_equal(got->body, "");
    sy_control_close(control);
}

static void a_process_with_nothing_to_say_is_ready_and_has_no_other_paths(void **state)
{
    const sy_control_config bare = {.http = "localhost:0"};
    sy_control *control = seen_open(&bare);

    (void)state;
    assert_int_equal(ask(control, "GET", "/readyz")->status, 200);
    assert_int_equal(ask(control, "GET", "/status")->status, 404);
    assert_null(sy_control_snapshot(control));
    assert_false(sy_control_redis_up(control));
    sy_control_close(control);
}

static void the_placement_shows_in_the_metrics(void **state)
{
    test_redis redis = {0};
    char want[160];
    sy_control_config config = service;
    sy_snapshot *snapshot;
    sy_control *control;
    const answer *got;

    (void)state;
    test_redis_open(&redis);
    test_redis_start(&redis);
    test_redis_do(&redis, "HSET switchyard:{t\"x}:placement 0/* a/cpu:0 1/0 b/cpu:0 9/9 c/cpu:0");
    config.redis = redis.address;
    config.model = "t\"x";
    config.grid.layers = 2;
    config.grid.experts = 3;
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 0, "b/cpu:0"));
    snapshot = sy_control_snapshot(control);
    snprintf(want, sizeof(want),
             "\nswitchyard_placement_info{model=\"t\\\"x\",hash=\"%016llx\"} 1\n",
             (unsigned long long)sy_snapshot_hash(snapshot));
    sy_snapshot_unref(snapshot);
    got = ask(control, "GET", "/metrics");
    if (strstr(got->body, want) == NULL) fail_msg("no '%s' in:\n%s", want, got->body);
    assert_non_null(strstr(got->body, "\nswitchyard_redis_up 1\n"));
    assert_non_null(strstr(got->body, "\nswitchyard_placement_epoch 1\n"));
    assert_non_null(strstr(got->body, "\nswitchyard_placement_refused_fields 1\n"));
    assert_non_null(strstr(got->body, "\nswitchyard_placement_missing_experts 2\n"));
    assert_non_null(strstr(got->body, "\nswitchyard_redis_errors_total "));
    test_redis_kill(&redis);
    WAIT_FOR(!sy_control_redis_up(control));
    got = ask(control, "GET", "/metrics");
    assert_non_null(strstr(got->body, "\nswitchyard_redis_up 0\n"));
    assert_non_null(strstr(got->body, want));
    sy_control_close(control);
    test_redis_close(&redis);
}

static void a_unix_socket_is_served_replaced_when_stale_and_removed(void **state)
{
    static answer got;
    char path[64];
    char address[80];
    const sy_control_config config = {.http = address};
    sy_control *second;
    sy_control *control;
    sy_error err;

    (void)state;
    snprintf(path, sizeof(path), "/tmp/sy-test-http-%d.sock", (int)getpid());
    snprintf(address, sizeof(address), "unix:%s", path);
    for (int round = 0; round < 2; round++) {
        control = seen_open(&config);
        assert_int_equal(sy_control_http_port(control), 0);
        ask_on(&got, connect_unix(path), "GET /healthz HTTP/1.0\r\n\r\n");
        assert_int_equal(got.status, 200);
        assert_int_equal(sy_control_open(&second, &config, &err), SY_EEXISTS);
        assert_non_null(strstr(err.message, path));
        sy_control_close(control);
        assert_int_equal(access(path, F_OK), -1);
        if (round == 0) { /* what a process that was killed leaves behind */
            struct sockaddr_un name = {.sun_family = AF_UNIX};
            const int fd = socket(AF_UNIX, SOCK_STREAM, 0);

            snprintf(name.sun_path, sizeof(name.sun_path), "%s", path);
            assert_int_equal(bind(fd, (const struct sockaddr *)&name, sizeof(name)), 0);
            close(fd);
            assert_int_equal(access(path, F_OK), 0);
        }
    }
}

static void a_file_that_is_no_socket_is_left_alone(void **state)
{
    char path[] = "/tmp/sy-test-http-XXXXXX";
    char address[80];
    const sy_control_config config = {.http = address};
    const int fd = mkstemp(path);
    sy_control *control;
    sy_error err;

    (void)state;
    snprintf(address, sizeof(address), "unix:%s", path);
    assert_int_equal(sy_control_open(&control, &config, &err), SY_EEXISTS);
    assert_int_equal(access(path, F_OK), 0);
    close(fd);
    unlink(path);
}

static void a_port_in_use_is_named(void **state)
{
    sy_control *control = seen_open(&service);
    char address[64];
    sy_control_config config = service;
    sy_control *second;
    sy_error err;

    (void)state;
    snprintf(address, sizeof(address), "127.0.0.1:%d", sy_control_http_port(control));
    config.http = address;
    config.redis = "unix:/nowhere/redis.sock"; /* what is open already must be closed again */
    assert_int_equal(sy_control_open(&second, &config, &err), SY_EEXISTS);
    assert_null(second);
    if (strstr(err.message, address) == NULL) fail_msg("no port in '%s'", err.message);
    sy_control_close(control);
}

static void http_addresses_that_do_not_parse_are_refused(void **state)
{
    static const char *const bad[] = {
        "",      "localhost", "127.0.0.1:", "127.0.0.1:65536", "x:y",
        "unix:", "unix:rel",  "[::1",       "::1:80",          "no-such-host.invalid:0"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        const sy_control_config config = {.http = bad[i]};
        sy_control *control;
        sy_error err;

        assert_int_equal(sy_control_open(&control, &config, &err), SY_EINVAL);
        assert_true(strlen(err.message) > 20);
    }
}

/* ---- timers, signals, leases without Redis ---- */

static void tick(void *arg)
{
    seen *s = arg;

    pthread_mutex_lock(&s->mutex);
    s->n_ticks++;
    pthread_mutex_unlock(&s->mutex);
}

static uint32_t n_ticks(seen *s)
{
    uint32_t n;

    pthread_mutex_lock(&s->mutex);
    n = s->n_ticks;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

static void timers_run_and_are_at_most_eight(void **state)
{
    const sy_control_config bare = {0};
    sy_control *control = seen_open(&bare);
    seen s[8];

    (void)state;
    for (int i = 0; i < 8; i++) {
        seen_init(&s[i]);
        assert_int_equal(sy_control_every(control, 1000, tick, &s[i]), SY_OK);
    }
    assert_int_equal(sy_control_every(control, 1000, tick, &s[0]), SY_ELIMIT);
    assert_int_equal(sy_control_every(control, 0, tick, &s[0]), SY_EINVAL);
    for (int i = 0; i < 8; i++) WAIT_FOR(n_ticks(&s[i]) >= 3);
    sy_control_close(control);
    for (int i = 0; i < 8; i++) pthread_mutex_destroy(&s[i].mutex);
}

static void on_signal(void *ctx, int signum)
{
    seen *s = ctx;

    pthread_mutex_lock(&s->mutex);
    s->n_signals[signum]++;
    pthread_mutex_unlock(&s->mutex);
}

static int n_signals(seen *s, int signum)
{
    int n;

    pthread_mutex_lock(&s->mutex);
    n = s->n_signals[signum];
    pthread_mutex_unlock(&s->mutex);
    return n;
}

/* ThreadSanitizer's runtime loses a signal that comes while the thread is in no system call. */
static void skip_where_signals_are_lost(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

static void signals_reach_the_callback(void **state)
{
    seen s;
    const sy_control_config config = {.ctx = &s, .on_signal = on_signal};
    sy_control *control;

    (void)state;
    skip_where_signals_are_lost();
    seen_init(&s);
    control = seen_open(&config);
    kill(getpid(), SIGTERM);
    WAIT_FOR(n_signals(&s, SIGTERM) == 1);
    kill(getpid(), SIGINT);
    WAIT_FOR(n_signals(&s, SIGINT) == 1);
    assert_int_equal(n_signals(&s, SIGTERM), 1);
    sy_control_close(control);
    pthread_mutex_destroy(&s.mutex);
}

static void a_second_signal_ends_the_process(void **state)
{
    seen s;
    const sy_control_config config = {.ctx = &s, .on_signal = on_signal};
    int status;
    pid_t pid;

    (void)state;
    skip_where_signals_are_lost();
    pid = fork();
    if (pid == 0) {
        sy_control *control;

        seen_init(&s);
        sy_control_block_signals(); /* as in a program: the loop's thread alone takes them */
        if (sy_control_open(&control, &config, NULL) != SY_OK) _exit(3);
        if (sy_control_every(control, 10000, tick, &s) != SY_OK) _exit(3);
        kill(getpid(), SIGTERM);
        for (int i = 0; i < 10000 && n_signals(&s, SIGTERM) == 0; i++) usleep(1000);
        kill(getpid(), SIGTERM);
        for (int i = 0; i < 10000; i++) usleep(1000);
        _exit(4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
}

static void without_redis_announcing_is_harmless(void **state)
{
    const sy_member self = {.name = "expert-0", .address = "unix:/x"};
    const sy_control_config bare = {0};
    sy_control *control = seen_open(&bare);

    (void)state;
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    sy_control_check_now(control);
    sy_control_withdraw(control);
    sy_control_close(control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_signal_ends_the_process),
        cmocka_unit_test(probes_metrics_and_the_services_own_paths_answer),
        cmocka_unit_test(other_methods_are_refused_and_head_has_no_body),
        cmocka_unit_test(a_process_with_nothing_to_say_is_ready_and_has_no_other_paths),
        cmocka_unit_test(the_placement_shows_in_the_metrics),
        cmocka_unit_test(a_unix_socket_is_served_replaced_when_stale_and_removed),
        cmocka_unit_test(a_file_that_is_no_socket_is_left_alone),
        cmocka_unit_test(a_port_in_use_is_named),
        cmocka_unit_test(http_addresses_that_do_not_parse_are_refused),
        cmocka_unit_test(timers_run_and_are_at_most_eight),
        cmocka_unit_test(signals_reach_the_callback),
        cmocka_unit_test(without_redis_announcing_is_harmless),
    };

    sy_control_block_signals();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
