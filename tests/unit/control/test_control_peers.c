/* test_control_peers.c - what answers at the Redis address is not a Redis: nobody home, a black
 * hole, a liar. The process lives on, says that Redis is away, and closes without waiting. */
#include "control_fixture.h"

#include <netdb.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "sy_clock.h"

#define CLOSE_MAX_US 20000000 /* a wait for an answer that never comes would be far longer */

/* Accepts everybody, says its line to each, and again for each command it hears. */
typedef struct liar {
    int fd;
    char address[128];
    char path[96];
    const char *line; /* NULL: says nothing, and does not even accept */
    size_t line_bytes;
    int hangs_up; /* after the first line */
    _Atomic int stop;
    _Atomic int n_said;
    pthread_t thread;
} liar;

static void say(int fd, liar *self)
{
    size_t done = 0;

    atomic_fetch_add(&self->n_said, 1);
    while (done < self->line_bytes) {
        const ssize_t n = send(fd, self->line + done, self->line_bytes - done, MSG_NOSIGNAL);

        if (n <= 0) return;
        done += (size_t)n;
    }
}

static void *lie(void *arg)
{
    liar *self = arg;
    struct pollfd fds[64] = {{.fd = self->fd, .events = POLLIN}};
    nfds_t n = 1;
    char heard[4096];

    while (!atomic_load(&self->stop)) {
        if (poll(fds, n, 10) <= 0) continue;
        for (nfds_t i = 1; i < n; i++) {
            ssize_t n_heard;

            if (fds[i].revents == 0) continue;
            n_heard = recv(fds[i].fd, heard, sizeof(heard), 0);
            if (n_heard > 0) { /* each command begins with a star */
                for (ssize_t k = 0; k < n_heard; k++) {
                    if (heard[k] == '*') say(fds[i].fd, self);
                }
            } else {
                close(fds[i].fd);
                fds[i--] = fds[--n];
            }
        }
        if (fds[0].revents != 0 && n < SY_COUNT_OF(fds)) {
            fds[n] = (struct pollfd){.fd = accept(self->fd, NULL, NULL), .events = POLLIN};
            if (fds[n].fd < 0) continue;
            say(fds[n].fd, self);
            if (self->hangs_up) {
                close(fds[n].fd);
            } else {
                n++;
            }
        }
    }
    while (n > 1) close(fds[--n].fd);
    return NULL;
}

static void liar_open(liar *self, const char *line, size_t line_bytes, int hangs_up)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};

    memset(self, 0, sizeof(*self));
    self->line = line;
    self->line_bytes = line_bytes;
    self->hangs_up = hangs_up;
    snprintf(self->path, sizeof(self->path), "/tmp/sy-test-liar-%d.sock", (int)getpid());
    snprintf(self->address, sizeof(self->address), "unix:%s", self->path);
    memcpy(name.sun_path, self->path, sizeof(self->path));
    unlink(self->path);
    self->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(self->fd, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(self->fd, 64), 0);
    if (line != NULL) assert_int_equal(pthread_create(&self->thread, NULL, lie, self), 0);
}

static void liar_close(liar *self)
{
    atomic_store(&self->stop, 1);
    if (self->line != NULL) pthread_join(self->thread, NULL);
    close(self->fd);
    unlink(self->path);
}

static sy_control *open_at(const char *address)
{
    const sy_control_config config = {
        .redis = address,
        .model = "trio",
        .grid.layers = 1,
        .grid.experts = 1,
        .watch_nodes = 1,
        .check_us = 10000,
    };
    const sy_member self = {.name = "expert-0", .address = "unix:/x"};
    sy_control *control = seen_open(&config);

    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    return control;
}

static void assert_closes_soon(sy_control *control)
{
    const int64_t start_us = sy_clock_us();

    sy_control_close(control);
    assert_true(sy_clock_us() - start_us < CLOSE_MAX_US);
}

static void lies_are_survived_and_never_taken_for_redis(void **state)
{
    static const struct {
        const char *line;
        size_t n;
    } lies[] = {
#define LIE(text) {text, sizeof(text) - 1}
        LIE("HTTP/1.1 400 Bad Request\r\n\r\n"),
        LIE("-ERR max number of clients reached\r\n"),
        LIE("$5\r\nhello\r\n"),
        LIE("*-1\r\n"),
        LIE("*1000000000\r\n"),
        LIE("*2147483647\r\n*2147483647\r\n"),
        LIE("*99999999999999999999999\r\n"),
        LIE("$99999999999999999999999\r\n"),
        LIE("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"),
        LIE(":1\r\n:1\r\n:1\r\n"),
        LIE("\0\0\0\0\r\n"),
        LIE("$-2\r\n"),
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
        const double before = redis_errors();
        sy_control *control;
        liar peer;

        liar_open(&peer, lies[i].line, lies[i].n, 0);
        control = open_at(peer.address);
        WAIT_FOR(redis_errors() >= before + 2);
        assert_false(sy_control_redis_up(control));
        assert_closes_soon(control);
        liar_close(&peer);
    }
}

/* Answers to questions that were not asked follow the ones that were. hiredis' own client asserts
 * here; and what looks like a good login must not end in a placement. */
static void a_liar_that_passes_the_login_is_survived(void **state)
{
    static const struct {
        const char *line;
        size_t n;
    } lies[] = {
        LIE("+PONG\r\n+PONG\r\n+PONG\r\n"),
        LIE("+PONG\r\n*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$4\r\nhset\r\n"),
        LIE("+PONG\r\n*3\r\n:1\r\n:2\r\n:3\r\n"),
        LIE("+PONG\r\n*3\r\n$9\r\nsubscribe\r\n*0\r\n*0\r\n"),
        LIE("+PONG\r\n*2\r\n$3\r\n3/1\r\n:1\r\n"),
        LIE("+PONG\r\n*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
        LIE("+PONG\r\n*2\r\n$1\r\n0\r\n*2\r\n:1\r\n$19\r\nswitchyard:nodes:ab\r\n"),
        LIE("+PONG\r\n*2\r\n$1\r\n7\r\n*1\r\n$19\r\nswitchyard:nodes:ab\r\n"),
        LIE("+PONG\r\n:7\r\n"),
        LIE("+PONG\r\n-LOADING\r\n"),
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
        const double before = redis_errors();
        sy_snapshot *snapshot;
        sy_control *control;
        liar peer;

        liar_open(&peer, lies[i].line, lies[i].n, 0);
        control = open_at(peer.address);
        /* Some are found out; with some it goes on for ever, to no effect. */
        WAIT_FOR(redis_errors() >= before + 2 || atomic_load(&peer.n_said) >= 50);
        snapshot = sy_control_snapshot(control);
        if (snapshot != NULL) assert_null(sy_snapshot_targets(snapshot, 0, 0));
        sy_snapshot_unref(snapshot);
        assert_closes_soon(control);
        liar_close(&peer);
    }
}

/* The login passes, and what follows stops in the middle of a placement, a number, a length. */
static void half_an_answer_is_no_answer(void **state)
{
    static const struct {
        const char *line;
        size_t n;
    } halves[] = {
        LIE("+PONG\r\n"),
        LIE("+PONG\r\n*2\r\n$3\r\n0/0\r\n$7\r\na/cpu"),
        LIE("+PONG\r\n*2\r\n$3\r\n0/0\r\n"),
        LIE("+PONG\r\n*2\r\n$"),
        LIE("+PONG\r\n*2"),
        LIE("+PO"),
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(halves); i++) {
        const double before = redis_errors();
        sy_control *control;
        liar peer;

        liar_open(&peer, halves[i].line, halves[i].n, 1);
        control = open_at(peer.address);
        WAIT_FOR(redis_errors() >= before + 3);
        assert_null(sy_control_snapshot(control));
        assert_closes_soon(control);
        liar_close(&peer);
    }
}

static void a_black_hole_is_given_up_and_tried_again(void **state)
{
    const double before = redis_errors();
    sy_control *control;
    liar peer;

    (void)state;
    liar_open(&peer, NULL, 0, 0); /* the kernel accepts, nobody reads */
    control = open_at(peer.address);
    WAIT_FOR(redis_errors() >= before + 4); /* both connections, twice */
    assert_false(sy_control_redis_up(control));
    assert_closes_soon(control);
    liar_close(&peer);
}

static void a_stopped_redis_is_noticed_and_does_not_hold_up_the_end(void **state)
{
    test_redis redis = {0};
    sy_control *control;

    (void)state;
    test_redis_open(&redis);
    test_redis_start(&redis);
    test_redis_do(&redis, "HSET switchyard:{trio}:placement */* a/cpu:0");
    control = open_at(redis.address);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    kill(redis.pid, SIGSTOP);
    WAIT_FOR(!sy_control_redis_up(control));
    assert_true(is_at(control, 0, 0, "a/cpu:0"));
    kill(redis.pid, SIGCONT);
    WAIT_FOR(sy_control_redis_up(control));
    test_redis_do(&redis, "HSET switchyard:{trio}:placement */* b/cpu:0");
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    kill(redis.pid, SIGSTOP);
    assert_closes_soon(control); /* even while it still counts as up */
    test_redis_close(&redis);
}

static void nobody_at_a_tcp_port_is_an_outage(void **state)
{
    static const char *const addresses[] = {"127.0.0.1:1", "localhost:1", "[::1]:1",
                                            "redis://no-such-host.invalid:1"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(addresses); i++) {
        const double before = redis_errors();
        sy_control *control = open_at(addresses[i]);

        WAIT_FOR(redis_errors() >= before + 2);
        assert_false(sy_control_redis_up(control));
        assert_closes_soon(control);
    }
}

static int localhost_has(const char *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    char text[64];
    int has = 0;

    assert_int_equal(getaddrinfo("localhost", NULL, &hints, &found), 0);
    for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) {
        getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST);
        has |= strcmp(text, address) == 0;
    }
    freeaddrinfo(found);
    return has;
}

/* "localhost" mostly has two addresses, and Redis listens on one of them. */
static void a_name_is_resolved_and_each_of_its_addresses_tried(void **state)
{
    static const char *const bind_to[] = {"127.0.0.1", "::1"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bind_to); i++) {
        test_redis redis = {0};
        char port[16];
        char address[64];
        sy_control *control;

        if (!localhost_has(bind_to[i])) {
            print_message("localhost is not %s here: not tried\n", bind_to[i]);
            continue;
        }
        snprintf(port, sizeof(port), "%d", free_port());
        snprintf(address, sizeof(address), "redis://localhost:%s", port);
        test_redis_open(&redis);
        redis.extra[0] = "--port";
        redis.extra[1] = port;
        redis.extra[2] = "--bind";
        redis.extra[3] = bind_to[i];
        test_redis_start(&redis);
        test_redis_do(&redis, "HSET switchyard:{trio}:placement */* a/cpu:0");
        control = open_at(address);
        WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
        sy_control_close(control);
        test_redis_close(&redis);
    }
}

static void addresses_that_do_not_parse_are_refused_at_once(void **state)
{
    const sy_control_config bad_redis = {.redis = "unix:nowhere"};
    const sy_control_config no_experts = {.redis = "unix:/x", .model = "trio"};
    const sy_control_config no_name = {
        .redis = "unix:/x", .model = "", .grid.layers = 1, .grid.experts = 1};
    sy_control *control;
    sy_error err;

    (void)state;
    assert_int_equal(sy_control_open(&control, &bad_redis, &err), SY_EINVAL);
    assert_null(control);
    assert_int_equal(sy_control_open(&control, &no_experts, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "trio"));
    assert_int_equal(sy_control_open(&control, &no_name, &err), SY_EINVAL);
    sy_control_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_survived_and_never_taken_for_redis),
        cmocka_unit_test(a_liar_that_passes_the_login_is_survived),
        cmocka_unit_test(half_an_answer_is_no_answer),
        cmocka_unit_test(a_black_hole_is_given_up_and_tried_again),
        cmocka_unit_test(a_stopped_redis_is_noticed_and_does_not_hold_up_the_end),
        cmocka_unit_test(nobody_at_a_tcp_port_is_an_outage),
        cmocka_unit_test(a_name_is_resolved_and_each_of_its_addresses_tried),
        cmocka_unit_test(addresses_that_do_not_parse_are_refused_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
