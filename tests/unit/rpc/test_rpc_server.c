/* Servers: addresses in use, stale sockets, garbage on the wire, and closing in good order. */
#include "rpc_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* c-ares 1.18 loses ten bytes whenever it resolves "localhost". */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcares";
}

static int connect_to(int port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

static void reopen_client(fixture *f, const char *address)
{
    sy_error err;

    sy_client_close(f->client);
    assert_int_equal(sy_client_open(&f->client, address, 0, &err), SY_OK);
}

static void several_addresses_serve_and_free_ports_are_told(void **state)
{
    fixture *f = *state;
    const char *addresses[] = {f->address, "127.0.0.1:0", "[::1]:0"};
    sy_method methods[N_TEST_METHODS];
    char tcp[32];
    sy_error err;

    service_methods(f->service, methods);
    assert_int_equal(sy_server_open(&f->server, f->loop,
                                    &(sy_server_config){.addresses = addresses,
                                                        .n_addresses = 3,
                                                        .methods = methods,
                                                        .n_methods = N_TEST_METHODS},
                                    &err),
                     SY_OK);
    assert_int_equal(sy_server_port(f->server, 0), 0);
    assert_true(sy_server_port(f->server, 1) > 0);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    snprintf(tcp, sizeof(tcp), "127.0.0.1:%d", sy_server_port(f->server, 1));
    reopen_client(f, tcp);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    snprintf(tcp, sizeof(tcp), "[::1]:%d", sy_server_port(f->server, 2));
    reopen_client(f, tcp);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    snprintf(tcp, sizeof(tcp), "localhost:%d", sy_server_port(f->server, 1));
    reopen_client(f, tcp);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
}

static void a_port_in_use_is_refused_by_name(void **state)
{
    fixture *f = *state;
    sy_server *first;
    char address[32];
    sy_error err;

    assert_int_equal(try_serve(f, "127.0.0.1:0", (sy_server_config){0}, &err), SY_OK);
    first = f->server;
    snprintf(address, sizeof(address), "127.0.0.1:%d", sy_server_port(first, 0));
    assert_int_equal(try_serve(f, address, (sy_server_config){0}, &err), SY_EEXISTS);
    assert_contains(err.message, address);
    assert_null(f->server);
    f->server = first;
}

static void a_socket_that_somebody_serves_is_refused_and_left_alone(void **state)
{
    fixture *f = *state;
    sy_server *first;
    sy_error err;

    serve(f, (sy_server_config){0});
    first = f->server;
    assert_int_equal(try_serve(f, f->address, (sy_server_config){0}, &err), SY_EEXISTS);
    assert_contains(err.message, f->address);
    assert_null(f->server);
    f->server = first;
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
}

static void a_stale_socket_is_replaced_and_removed_at_close(void **state)
{
    fixture *f = *state;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sy_error err;

    strcpy(addr.sun_path, f->address + strlen("unix:"));
    assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
    close(fd); /* as a killed process leaves it */
    serve(f, (sy_server_config){0});
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    stop_serving(f, WAIT_US);
    assert_int_equal(access(addr.sun_path, F_OK), -1);
}

static void a_file_in_the_way_is_not_touched(void **state)
{
    fixture *f = *state;
    const char *path = f->address + strlen("unix:");
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    sy_error err;

    close(fd);
    assert_int_equal(try_serve(f, f->address, (sy_server_config){0}, &err), SY_EEXISTS);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
}

static void paths_and_addresses_that_cannot_work_say_so(void **state)
{
    fixture *f = *state;
    char deep[256] = "unix:/tmp/";
    sy_error err;

    memset(deep + strlen(deep), 'x', 200);
    assert_int_equal(try_serve(f, deep, (sy_server_config){0}, &err), SY_EINVAL);
    assert_contains(err.message, "107");
    assert_int_equal(try_serve(f, "unix:/nonexistent-dir/s", (sy_server_config){0}, &err), SY_EIO);
    assert_int_equal(try_serve(f, "203.0.113.7:0", (sy_server_config){0}, &err),
                     SY_EINVAL); /* not ours */
    assert_int_equal(try_serve(f, "no-such-host.invalid:1", (sy_server_config){0}, &err),
                     SY_EINVAL);
    assert_int_equal(try_serve(f, "127.0.0.1", (sy_server_config){0}, &err), SY_EINVAL);
}

static void a_path_with_odd_characters_works(void **state)
{
    fixture *f = *state;
    char address[128];
    sy_error err;

    snprintf(address, sizeof(address), "unix:%s/a b%%41[é]?#", f->dir);
    assert_int_equal(try_serve(f, address, (sy_server_config){0}, &err), SY_OK);
    assert_int_equal(access(address + strlen("unix:"), F_OK), 0);
    reopen_client(f, address);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
}

static void garbage_on_the_port_harms_nobody(void **state)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const char settings[9] = {0, 0, 0, 4}; /* an empty SETTINGS frame */
    fixture *f = *state;
    char bytes[4096], tcp[32];
    int fd[24];
    uint64_t seed = TEST_SEED;
    int64_t before_us;
    sy_error err;

    assert_int_equal(try_serve(f, "127.0.0.1:0", (sy_server_config){0}, &err), SY_OK);
    snprintf(tcp, sizeof(tcp), "127.0.0.1:%d", sy_server_port(f->server, 0));
    reopen_client(f, tcp);
    for (size_t i = 0; i < SY_COUNT_OF(fd); i++) {
        fd[i] = connect_to(sy_server_port(f->server, 0));
        for (size_t b = 0; b < sizeof(bytes); b++) bytes[b] = (char)sy_splitmix64(seed++);
        /* Some say nothing, some talk nonsense, some begin well, and some do not even read GOAWAY.
         */
        if (i % 4 == 1) (void)!write(fd[i], bytes, sizeof(bytes));
        if (i % 4 >= 2) (void)!write(fd[i], preface, strlen(preface));
        if (i % 4 == 2) (void)!write(fd[i], bytes, i * 7);
        if (i % 4 == 3) (void)!write(fd[i], settings, sizeof(settings));
        assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    }
    for (size_t i = 0; i < SY_COUNT_OF(fd); i += 2) close(fd[i]);
    assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
    before_us = sy_clock_us();
    stop_serving(f, 4 * WAIT_US); /* the silent connections do not hold it up */
    assert_true(sy_clock_us() - before_us < WAIT_US / 3);
    for (size_t i = 1; i < SY_COUNT_OF(fd); i += 2) close(fd[i]);
}

static void idle_streams_do_not_hold_up_a_close(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 50};
    sy_peer *peer[4];
    sy_client_call *watch;
    sy_error err;
    sy_msg *msg;
    int64_t before_us;

    serve(f, (sy_server_config){0});
    for (int i = 0; i < 4; i++) peer[i] = open_peer(f, "/t.Echo/Stream", (sy_peer_config){0});
    for (int i = 0; i < 4; i++) wait_until(sy_peer_up(peer[i]));
    for (int i = 0; i < 4; i++) assert_int_equal(ask(peer[i], 50, &a, NULL), SY_OK);
    watch = start_call(f, "/t.Echo/Watch", frame_of(1, 0), SY_NEVER_US);
    assert_int_equal(sy_client_next(watch, &msg, &err), SY_OK);
    sy_msg_free(msg);
    wait_until(a.n == 4);
    before_us = sy_clock_us();
    stop_serving(f, 4 * WAIT_US);
    assert_true(sy_clock_us() - before_us < 2 * WAIT_US); /* not the drain time */
    assert_int_equal(f->service->n_cancelled, 0);
    assert_int_equal(sy_client_next(watch, &msg, &err),
                     SY_EUNAVAILABLE); /* cut short, and told so */
    sy_client_end(watch);
    for (int i = 0; i < 4; i++) close_peer(f, peer[i]);
    assert_int_equal(a.n_ok, 4);
}

typedef struct closer {
    fixture *f;
    pthread_t thread;
    _Atomic int done;
} closer;

static void *close_server(void *arg)
{
    closer *c = arg;

    sy_server_close(c->f->server, WAIT_US);
    c->done = 1;
    return NULL;
}

static void work_in_progress_is_finished_before_the_server_goes(void **state)
{
    fixture *f = *state;
    answers a = {.payload_bytes = 50};
    closer c = {.f = f};
    sy_client_call *call;
    sy_peer *peer;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    peer = open_peer(f, "/t.Echo/Hold", (sy_peer_config){0});
    wait_until(sy_peer_up(peer));
    for (int i = 0; i < 3; i++) assert_int_equal(ask(peer, 50, &a, NULL), SY_OK);
    wait_until(f->service->n_messages == 3);
    assert_int_equal(pthread_create(&c.thread, NULL, close_server, &c), 0);
    call = start_call(f, "/t.Echo/Unary", frame_of(1, 0), 50000);
    if (sy_client_next(call, &msg, &err) == SY_OK) sy_msg_free(msg); /* closing had not begun yet */
    sy_client_end(call);
    assert_false(c.done);
    for (size_t i = 0; i < 3; i++) release(f->service, i);
    pthread_join(c.thread, NULL);
    f->server = NULL;
    wait_until(a.n == 3);
    assert_int_equal(a.n_ok, 3);
    assert_int_equal(f->service->n_cancelled, 0);
    close_peer(f, peer);
}

static void a_hanging_call_is_cancelled_when_the_drain_time_is_up(void **state)
{
    fixture *f = *state;
    sy_client_call *call;
    sy_error err;
    sy_msg *msg;

    serve(f, (sy_server_config){0});
    call = start_call(f, "/t.Echo/Hang", frame_of(1, 0), WAIT_US);
    wait_until(f->service->n_messages == 1);
    stop_serving(f, 50000);
    assert_int_equal(f->service->n_cancelled, 1);
    assert_int_equal(sy_client_next(call, &msg, &err), SY_EUNAVAILABLE);
    sy_client_end(call);
}

static void servers_open_and_close_many_times(void **state)
{
    fixture *f = *state;
    sy_error err;

    for (int i = 0; i < 30; i++) {
        serve(f, (sy_server_config){0});
        reopen_client(f, f->address); /* the old one has yet to notice that its server went */
        if (i % 2 == 0) {
            assert_int_equal(run_call(f, "/t.Echo/Unary", frame_of(1, 9), NULL, &err), SY_OK);
        }
        stop_serving(f, i % 3 == 0 ? 0 : WAIT_US);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(several_addresses_serve_and_free_ports_are_told),
        TEST(a_port_in_use_is_refused_by_name),
        TEST(a_socket_that_somebody_serves_is_refused_and_left_alone),
        TEST(a_stale_socket_is_replaced_and_removed_at_close),
        TEST(a_file_in_the_way_is_not_touched),
        TEST(paths_and_addresses_that_cannot_work_say_so),
        TEST(a_path_with_odd_characters_works),
        TEST(garbage_on_the_port_harms_nobody),
        TEST(idle_streams_do_not_hold_up_a_close),
        TEST(work_in_progress_is_finished_before_the_server_goes),
        TEST(a_hanging_call_is_cancelled_when_the_drain_time_is_up),
        TEST(servers_open_and_close_many_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
