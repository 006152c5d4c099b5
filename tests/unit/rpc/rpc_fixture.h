/* rpc_fixture.h - a service that echoes, holds, floods, hangs and fails, on real sockets, for the
 * tests of this folder. A message is an 8-byte id and then anything. */
#ifndef RPC_FIXTURE_H
#define RPC_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "sy_buf.h"
#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_rpc.h"

#define WAIT_US     ((int64_t)30 * 1000000) /* generous: only a hang reaches it */
#define HELD_MAX    8192
#define TEST_SEED   20240611u
#define FLOOD_BYTES ((size_t)1 << 20) /* a few fill any HTTP/2 window */

/* Waits until the condition holds; fails the test, with its text, when it never does. */
#define wait_until(cond)                                                           \
    do {                                                                           \
        const int64_t give_up_us = sy_clock_us() + WAIT_US;                        \
        while (!(cond)) {                                                          \
            if (sy_clock_us() > give_up_us) fail_msg("still not true: %s", #cond); \
            nap();                                                                 \
        }                                                                          \
    } while (0)

#define assert_contains(text, part)                                                      \
    do {                                                                                 \
        if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, text); \
    } while (0)

static inline void nap(void)
{
    const struct timespec t = {.tv_nsec = 500000};

    nanosleep(&t, NULL);
}

typedef struct held {
    sy_call *call;
    sy_msg *msg;
} held;

typedef struct test_service {
    _Atomic int n_opened, n_ended, n_cancelled, n_messages, n_half_closed;
    _Atomic int n_saw_deadline, n_limit;
    pthread_mutex_t mutex; /* the held messages */
    held held[HELD_MAX];
    size_t n_held;
} test_service;

static inline sy_frame frame_of(uint64_t id, size_t payload_bytes)
{
    sy_buf *buf = sy_buf_alloc(sizeof(id) + payload_bytes);
    sy_frame frame;

    assert_non_null(buf);
    memcpy(buf->data, &id, sizeof(id));
    memset((char *)buf->data + sizeof(id), (int)(id & 0x7f), payload_bytes);
    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, buf, buf->data, buf->len), SY_OK);
    sy_buf_unref(buf);
    return frame;
}

static inline sy_frame frame_of_bytes(const void *data, size_t n)
{
    sy_buf *buf = sy_buf_alloc(n);
    sy_frame frame;

    assert_non_null(buf);
    if (n > 0) memcpy(buf->data, data, n);
    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, buf, buf->data, n), SY_OK);
    sy_buf_unref(buf);
    return frame;
}

static inline sy_buf *gather(const sy_msg *msg)
{
    sy_buf *buf = sy_buf_alloc(sy_msg_len(msg));
    size_t n, at = 0;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    assert_non_null(buf);
    for (size_t i = 0; i < n; i++) {
        memcpy((char *)buf->data + at, iov[i].data, iov[i].len);
        at += iov[i].len;
    }
    assert_int_equal(at, sy_msg_len(msg));
    return buf;
}

static inline uint64_t id_of_iov(const sy_iov *iov, size_t n)
{
    unsigned char bytes[8];
    uint64_t id;
    size_t at = 0;

    for (size_t i = 0; i < n && at < sizeof(bytes); i++) {
        const size_t take = SY_MIN(iov[i].len, sizeof(bytes) - at);

        memcpy(bytes + at, iov[i].data, take);
        at += take;
    }
    if (at < sizeof(bytes)) return 0;
    memcpy(&id, bytes, sizeof(id));
    return id;
}

static inline uint64_t id_of(const sy_msg *msg)
{
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    return id_of_iov(iov, n);
}

/* The id, and every byte after it as frame_of made it. */
static inline int is_intact(const sy_msg *msg, uint64_t id, size_t payload_bytes)
{
    sy_buf *buf = gather(msg);
    int good = buf->len == sizeof(id) + payload_bytes && memcmp(buf->data, &id, sizeof(id)) == 0;

    for (size_t i = sizeof(id); good && i < buf->len; i++) {
        good = ((const char *)buf->data)[i] == (char)(id & 0x7f);
    }
    sy_buf_unref(buf);
    return good;
}

/* ---- methods ---- */

static inline void echo(sy_call *call, const sy_msg *msg)
{
    sy_buf *buf = gather(msg);
    sy_frame frame;

    sy_frame_init(&frame);
    assert_int_equal(sy_frame_add(&frame, buf, buf->data, buf->len), SY_OK);
    sy_buf_unref(buf);
    (void)sy_call_send(call, &frame);
}

static inline void on_open(void *ctx, sy_call *call)
{
    test_service *s = ctx;

    s->n_opened++;
    if (sy_call_deadline_us(call) != SY_NEVER_US) s->n_saw_deadline++;
}

static inline void on_end(void *ctx, sy_call *call, int cancelled)
{
    test_service *s = ctx;

    assert_true(sy_call_ended(call));
    if (cancelled) s->n_cancelled++;
    s->n_ended++;
}

static inline void on_unary(void *ctx, sy_call *call, sy_msg *msg)
{
    ((test_service *)ctx)->n_messages++;
    echo(call, msg);
    sy_call_finish(call, NULL);
}

static inline void on_stream(void *ctx, sy_call *call, sy_msg *msg)
{
    ((test_service *)ctx)->n_messages++;
    echo(call, msg);
}

static inline void on_half_close(void *ctx, sy_call *call)
{
    ((test_service *)ctx)->n_half_closed++;
    sy_call_finish(call, NULL);
}

/* The id says how many. */
static inline void on_count(void *ctx, sy_call *call, sy_msg *msg)
{
    const uint64_t n = id_of(msg);

    ((test_service *)ctx)->n_messages++;
    for (uint64_t i = 1; i <= n; i++) {
        sy_frame frame = frame_of(i, 100);

        if (sy_call_send(call, &frame) != SY_OK) break;
    }
    sy_call_finish(call, NULL);
}

static inline void on_hold(void *ctx, sy_call *call, sy_msg *msg)
{
    test_service *s = ctx;

    sy_call_pending(call, 1);
    pthread_mutex_lock(&s->mutex);
    assert_true(s->n_held < HELD_MAX);
    s->held[s->n_held++] = (held){.call = sy_call_ref(call), .msg = sy_msg_take(msg)};
    pthread_mutex_unlock(&s->mutex);
    s->n_messages++;
}

/* Sends until the queue is full, and then keeps the call open. */
static inline void on_flood(void *ctx, sy_call *call, sy_msg *msg)
{
    test_service *s = ctx;
    sy_status st;

    (void)msg;
    sy_call_pending(call, 1);
    do {
        sy_frame frame = frame_of(1, FLOOD_BYTES);

        st = sy_call_send(call, &frame);
    } while (st == SY_OK);
    if (st == SY_ELIMIT) s->n_limit++;
    s->n_messages++;
}

static inline void on_hang(void *ctx, sy_call *call, sy_msg *msg)
{
    (void)call;
    (void)msg;
    ((test_service *)ctx)->n_messages++;
}

static inline void on_fail(void *ctx, sy_call *call, sy_msg *msg)
{
    sy_error err;

    (void)msg;
    sy_error_clear(&err);
    sy_error_set(&err, SY_EPRECONDITION, "layer 3 is not loaded");
    sy_error_where(&err, "NOT_LOADED", 3, -1, NULL);
    sy_call_finish(call, &err);
    sy_call_finish(call, NULL); /* ignored */
    ((test_service *)ctx)->n_messages++;
}

static inline size_t details(const sy_error *err, void *out, size_t cap)
{
    return (size_t)snprintf(out, cap, "%s/%d", err->reason, (int)err->layer);
}

#define N_TEST_METHODS 8
static inline void service_methods(test_service *s, sy_method *m)
{
    const sy_method base = {.ctx = s, .on_open = on_open, .on_end = on_end};

    for (size_t i = 0; i < N_TEST_METHODS; i++) m[i] = base;
    m[0].path = "/t.Echo/Unary", m[0].on_message = on_unary;
    m[1].path = "/t.Echo/Stream", m[1].on_message = on_stream;
    m[1].client_streams = m[1].server_streams = 1;
    m[1].on_half_close = on_half_close;
    m[2].path = "/t.Echo/Count", m[2].on_message = on_count, m[2].server_streams = 1;
    m[3].path = "/t.Echo/Hold", m[3].on_message = on_hold;
    m[3].client_streams = m[3].server_streams = 1;
    m[4].path = "/t.Echo/Flood", m[4].on_message = on_flood, m[4].server_streams = 1;
    m[5].path = "/t.Echo/Hang", m[5].on_message = on_hang;
    m[6].path = "/t.Echo/Fail", m[6].on_message = on_fail;
    m[7].path = "/t.Echo/Watch", m[7].on_message = on_stream, m[7].server_streams = 1;
}

/* Answers one held message, by its place; the caller has seen that it is there. */
static inline void release(test_service *s, size_t at)
{
    held h;

    pthread_mutex_lock(&s->mutex);
    assert_true(at < s->n_held);
    h = s->held[at];
    s->held[at] = (held){0};
    pthread_mutex_unlock(&s->mutex);
    echo(h.call, h.msg);
    sy_call_pending(h.call, -1);
    sy_msg_free(h.msg);
    sy_call_unref(h.call);
}

static inline void drop_held(test_service *s)
{
    for (size_t i = 0; i < s->n_held; i++) {
        if (s->held[i].call == NULL) continue;
        sy_msg_free(s->held[i].msg);
        sy_call_pending(s->held[i].call, -1);
        sy_call_unref(s->held[i].call);
    }
    s->n_held = 0;
}

/* ---- fixture: one loop, one server on a Unix socket ---- */

typedef struct fixture {
    char dir[64], address[96];
    sy_loop *loop;
    sy_server *server;
    sy_client *client;
    test_service *service;
    sy_peer *peers[16]; /* open ones: a test that fails leaves them */
} fixture;

static inline sy_status try_serve(fixture *f, const char *address, sy_server_config config,
                                  sy_error *err)
{
    sy_method methods[N_TEST_METHODS];

    service_methods(f->service, methods);
    config.addresses = &address;
    config.n_addresses = 1;
    config.methods = methods;
    config.n_methods = N_TEST_METHODS;
    config.error_details = details;
    return sy_server_open(&f->server, f->loop, &config, err);
}

static inline void serve(fixture *f, sy_server_config config)
{
    sy_error err;

    if (try_serve(f, f->address, config, &err) != SY_OK) fail_msg("serve: %s", err.message);
}

static inline void stop_serving(fixture *f, int64_t drain_us)
{
    sy_server_close(f->server, drain_us);
    f->server = NULL;
}

static inline int set_up(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    sy_error err;

    assert_non_null(f);
    snprintf(f->dir, sizeof(f->dir), "/tmp/sy-rpc-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->address, sizeof(f->address), "unix:%s/s", f->dir);
    f->service = calloc(1, sizeof(*f->service));
    assert_non_null(f->service);
    pthread_mutex_init(&f->service->mutex, NULL);
    assert_int_equal(sy_loop_open(&f->loop, "test-loop"), SY_OK);
    assert_int_equal(sy_client_open(&f->client, f->address, 0, &err), SY_OK);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    fixture *f = *state;

    for (size_t i = 0; i < SY_COUNT_OF(f->peers); i++) sy_peer_close(f->peers[i]);
    sy_client_close(f->client);
    sy_server_close(f->server, 0);
    drop_held(f->service);
    sy_loop_close(f->loop);
    if (f->service->n_opened != f->service->n_ended) {
        print_error("%d calls were opened, %d ended\n", f->service->n_opened, f->service->n_ended);
        return 1;
    }
    pthread_mutex_destroy(&f->service->mutex);
    free(f->service);
    if (rmdir(f->dir) != 0) { /* the socket is gone, or this fails */
        print_error("%s is not empty\n", f->dir);
        return 1;
    }
    free(f);
    wait_until(sy_buf_outstanding() == 0);
    return 0;
}

static inline sy_client_call *start_call(const fixture *f, const char *path, sy_frame frame,
                                         int64_t timeout_us)
{
    sy_client_call *call;
    sy_error err;

    assert_int_equal(
        sy_client_start(&call, f->client, path, &frame,
                        timeout_us == SY_NEVER_US ? SY_NEVER_US : sy_clock_us() + timeout_us, 1,
                        &err),
        SY_OK);
    return call;
}

/* One call to its end; returns its status and the number of messages. */
static inline sy_status run_call(const fixture *f, const char *path, sy_frame frame,
                                 int *n_messages, sy_error *err)
{
    sy_client_call *call = start_call(f, path, frame, WAIT_US);
    sy_status st;
    sy_msg *msg;
    int n = 0;

    for (;;) {
        st = sy_client_next(call, &msg, err);
        if (msg == NULL) break;
        n++;
        sy_msg_free(msg);
    }
    if (n_messages != NULL) *n_messages = n;
    sy_client_end(call);
    return st;
}

/* ---- a peer and the answers to its requests ---- */

typedef struct answers {
    _Atomic int n, n_ok, n_unavailable, n_cancelled, n_other, n_wrong;
    size_t payload_bytes;
} answers;

static inline void on_answer(void *arg, uint64_t id, sy_msg *msg, const sy_error *err)
{
    answers *a = arg;

    if (msg != NULL) {
        if (err->status == SY_OK && is_intact(msg, id, a->payload_bytes)) {
            a->n_ok++;
        } else {
            a->n_wrong++;
        }
    } else if (err->status == SY_EUNAVAILABLE) {
        a->n_unavailable++;
    } else if (err->status == SY_ECANCELLED) {
        a->n_cancelled++;
    } else {
        a->n_other++;
    }
    a->n++; /* last: a waiter reads the others after it */
}

static inline sy_peer *open_peer(fixture *f, const char *path, sy_peer_config config)
{
    sy_error err;
    sy_peer *peer;
    size_t at = 0;

    config.name = "expert-0";
    config.address = f->address;
    config.stream_path = path;
    config.reply_id = id_of_iov;
    if (config.backoff_max_us == 0) config.backoff_max_us = 200000;
    if (sy_peer_open(&peer, f->loop, &config, &err) != SY_OK) fail_msg("peer: %s", err.message);
    while (f->peers[at] != NULL) at++;
    f->peers[at] = peer;
    return peer;
}

static inline void close_peer(fixture *f, sy_peer *peer)
{
    size_t at = 0;

    while (f->peers[at] != peer) at++;
    f->peers[at] = NULL;
    sy_peer_close(peer);
}

static inline sy_status ask(sy_peer *peer, size_t payload_bytes, answers *a, uint64_t *id_out)
{
    const uint64_t id = sy_peer_next_id(peer);
    sy_frame frame = frame_of(id, payload_bytes);

    if (id_out != NULL) *id_out = id;
    return sy_peer_send(peer, id, &frame, on_answer, a);
}

#endif
