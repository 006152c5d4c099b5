/* sy_peer.c - owns a channel, its one long-lived stream, the watch beside it, and the requests in
 * flight.
 *
 * CONNECTING: a stream is opened and waits for the server, while gRPC tries to connect with
 * back-off. UP: the server has accepted it. BACKOFF: the stream has ended, everything in flight has
 * been answered, and a timer runs.
 *
 * Locks. `mutex` guards the table of requests and which stream is current. It is never held while a
 * stream's mutex is taken or a callback runs; a stream asks `wanted` with its own mutex held, so
 * the order is stream, then peer. */
#include "sy_rpc_internal.h"

#include <grpc/grpc.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sy_hash.h"
#include "sy_log.h"

#define WINDOW_DEFAULT         1024
#define BACKOFF_MIN_US_DEFAULT 50000
#define BACKOFF_MAX_US_DEFAULT 2000000
#define KEEPALIVE_US_DEFAULT   5000000
#define ATTEMPT_US_MAX         10000000 /* an opening that hangs is thrown away and begun anew */
#define STEADY_US              1000000 /* a stream that lived so long was a good one: back-off restarts */
#define WARN_EVERY_US          10000000

enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_UP, PEER_BACKOFF };

struct sy_peer {
    sy_loop *loop;
    grpc_channel *channel;
    sy_peer_config config; /* its texts are copies */
    _Atomic uint64_t last_id;
    _Atomic size_t n_outstanding; /* pending.count, for readers without the mutex */
    _Atomic int up;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    rpc_pending pending;
    rpc_stream *stream;  /* written by the loop; one reference */
    uint64_t running_id; /* whose callback runs right now; 0: none */
    int n_forgetting;    /* threads that wait for running_id to change */
    int quiet;

    /* Loop only. */
    enum peer_state state;
    rpc_stream *watch;
    size_t n_streams; /* that gRPC has not let go of, the watch included */
    rpc_timer timer, watch_timer;
    int64_t backoff_us, watch_backoff_us, up_since_us;
    uint64_t jitter;
    int closing;
    _Atomic int64_t last_warning_us;
    rpc_post open_post, close_post;
};

static void connect_now(sy_peer *peer);
static void open_watch(sy_peer *peer);

/* ---- answers; loop only ---- */

/* Under the mutex, after every change of the table. */
static void publish_count(sy_peer *peer)
{
    atomic_store_explicit(&peer->n_outstanding, peer->pending.count, memory_order_relaxed);
}

/* Under the mutex, as the entry leaves the table for its callback. */
static void note_running(sy_peer *peer, uint64_t id)
{
    peer->running_id = id;
    publish_count(peer);
}

static void settle(sy_peer *peer, uint64_t id)
{
    if (peer->config.on_settled != NULL) peer->config.on_settled(peer->config.ctx, id);
}

/* The entry is out of the table. Between here and the end, sy_peer_forget waits. */
static void run_callback(sy_peer *peer, const rpc_pending_entry *entry, sy_msg *msg,
                         const sy_error *err)
{
    entry->fn(entry->arg, entry->id, msg, err);
    pthread_mutex_lock(&peer->mutex);
    peer->running_id = 0;
    if (peer->n_forgetting > 0) pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->mutex);
}

static void on_reply(void *ctx, rpc_stream *stream, sy_msg *msg)
{
    sy_peer *peer = ctx;
    rpc_pending_entry entry;
    sy_error err;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);
    const uint64_t id = peer->config.reply_id(iov, n);
    int found;

    if (id == 0) { /* whose answer this was cannot be known: better all fail now than one waits */
        rpc_stream_cancel(stream, SY_EDATALOSS, "the peer sent a reply that cannot be read");
        return;
    }
    settle(peer, id);
    pthread_mutex_lock(&peer->mutex);
    found = rpc_pending_take(&peer->pending, id, &entry);
    if (found) note_running(peer, id);
    pthread_mutex_unlock(&peer->mutex);
    if (!found) return; /* forgotten, or not for us */
    sy_error_clear(&err);
    run_callback(peer, &entry, msg, &err);
}

/* No stream is current, so nothing new gets in. */
static void fail_all(sy_peer *peer, const sy_error *err)
{
    rpc_pending_entry entry;
    size_t cursor = 0;

    for (;;) {
        int found;

        pthread_mutex_lock(&peer->mutex);
        found = rpc_pending_take_any(&peer->pending, &cursor, &entry);
        if (found) note_running(peer, entry.id);
        pthread_mutex_unlock(&peer->mutex);
        if (!found) return;
        run_callback(peer, &entry, NULL, err);
    }
}

/* ---- states; loop only ---- */

static void make_current(sy_peer *peer, rpc_stream *stream)
{
    rpc_stream *old;

    pthread_mutex_lock(&peer->mutex);
    old = peer->stream;
    peer->stream = stream;
    pthread_mutex_unlock(&peer->mutex);
    rpc_stream_unref(old);
}

static void on_timer(rpc_timer *timer)
{
    sy_peer *peer = RPC_OF(timer, sy_peer, timer);

    if (peer->state == PEER_CONNECTING) {
        rpc_stream_cancel(peer->stream, SY_EDEADLINE, "no connection so far"); /* ends in on_lost */
    } else {
        connect_now(peer);
    }
}

/* Within 20 % of the delay, so that peers which lost the same server do not return in step. */
static int64_t with_jitter(sy_peer *peer, int64_t delay_us)
{
    const float unit = sy_unit_float(sy_splitmix64(peer->jitter++));

    const int64_t spread_us = delay_us / 5;

    return delay_us - spread_us + (int64_t)((float)(2 * spread_us) * unit);
}

static int64_t next_backoff(sy_peer *peer, int64_t *backoff_us)
{
    const int64_t delay_us = with_jitter(peer, *backoff_us);

    *backoff_us = SY_MIN(*backoff_us * 2, peer->config.backoff_max_us);
    return sy_clock_us() + delay_us;
}

static void back_off(sy_peer *peer)
{
    peer->state = PEER_BACKOFF;
    rpc_timer_start(peer->loop, &peer->timer, next_backoff(peer, &peer->backoff_us), on_timer);
}

static void on_ready(void *ctx, rpc_stream *stream)
{
    sy_peer *peer = ctx;

    if (stream != peer->stream || peer->closing) return;
    rpc_timer_stop(&peer->timer);
    peer->state = PEER_UP;
    peer->up_since_us = sy_clock_us();
    atomic_store(&peer->up, 1);
    sy_log(SY_LOG_INFO, "peer %s at %s: up", peer->config.name, peer->config.address);
    if (peer->config.on_state != NULL) peer->config.on_state(peer->config.ctx, peer, 1);
    if (peer->config.watch_path != NULL) open_watch(peer);
}

static void lost_error(const sy_peer *peer, const sy_error *cause, sy_error *err)
{
    sy_error_clear(err);
    sy_error_set(err, SY_EUNAVAILABLE, "peer %s at %s: %s: %s%s%s", peer->config.name,
                 peer->config.address, peer->state == PEER_UP ? "stream lost" : "no stream",
                 cause->status == SY_OK ? "ended by the peer" : sy_status_name(cause->status),
                 cause->message[0] != '\0' ? ": " : "", cause->message);
    sy_error_where(err, "PEER_UNREACHABLE", -1, -1, peer->config.name);
}

static void on_lost(void *ctx, rpc_stream *stream, const sy_error *cause)
{
    sy_peer *peer = ctx;
    const int was_up = peer->state == PEER_UP;
    sy_error err;

    if (stream != peer->stream) return; /* closing has let go of it */
    rpc_timer_stop(&peer->timer);
    rpc_timer_stop(&peer->watch_timer);
    atomic_store(&peer->up, 0);
    make_current(peer, NULL);
    lost_error(peer, cause, &err);
    if (was_up) {
        sy_log_error(SY_LOG_WARN, &err, "peer down");
    } else if (sy_log_due(&peer->last_warning_us, WARN_EVERY_US)) {
        sy_log_error(SY_LOG_WARN, &err, "peer does not come up");
    }
    fail_all(peer, &err);
    if (peer->watch != NULL) rpc_stream_cancel(peer->watch, SY_ECANCELLED, "closed");
    if (was_up && peer->config.on_state != NULL) peer->config.on_state(peer->config.ctx, peer, 0);
    if (was_up && sy_clock_us() - peer->up_since_us >= STEADY_US) {
        peer->backoff_us = peer->config.backoff_min_us;
    }
    back_off(peer);
}

static void check_quiet(sy_peer *peer)
{
    if (!peer->closing || peer->n_streams > 0) return;
    grpc_channel_destroy(peer->channel); /* while the loop's queue is surely alive */
    pthread_mutex_lock(&peer->mutex);
    peer->quiet = 1;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->mutex);
}

static void on_closed(void *ctx, rpc_stream *stream)
{
    sy_peer *peer = ctx;

    (void)stream;
    peer->n_streams--;
    check_quiet(peer);
}

static int is_wanted(void *ctx, uint64_t id)
{
    sy_peer *peer = ctx;
    int wanted;

    pthread_mutex_lock(&peer->mutex);
    wanted = rpc_pending_has(&peer->pending, id);
    pthread_mutex_unlock(&peer->mutex);
    if (!wanted) settle(peer, id); /* it is dropped now */
    return wanted;
}

static void connect_now(sy_peer *peer)
{
    static const rpc_stream_events events = {.on_ready = on_ready,
                                             .on_message = on_reply,
                                             .on_end = on_lost,
                                             .on_closed = on_closed,
                                             .wanted = is_wanted};
    rpc_stream *stream;
    const sy_status st = rpc_stream_open(&stream, &(rpc_stream_setup){
                                                      .loop = peer->loop,
                                                      .channel = peer->channel,
                                                      .path = peer->config.stream_path,
                                                      .send_queue_max = peer->config.window_max,
                                                      .events = &events,
                                                      .ctx = peer,
                                                  });

    if (st != SY_OK) {
        back_off(peer);
        return;
    }
    peer->n_streams++;
    make_current(peer, stream);
    peer->state = PEER_CONNECTING;
    rpc_timer_start(peer->loop, &peer->timer, sy_clock_us() + ATTEMPT_US_MAX, on_timer);
}

/* ---- the watch; loop only ---- */

static void on_watch_timer(rpc_timer *timer)
{
    sy_peer *peer = RPC_OF(timer, sy_peer, watch_timer);

    if (peer->state == PEER_UP) open_watch(peer);
}

static void watch_ready(void *ctx, rpc_stream *stream)
{
    (void)ctx;
    (void)stream;
}

static void watch_message(void *ctx, rpc_stream *stream, sy_msg *msg)
{
    sy_peer *peer = ctx;

    if (stream != peer->watch || peer->state != PEER_UP) return;
    peer->watch_backoff_us = peer->config.backoff_min_us;
    if (peer->config.on_watch != NULL) peer->config.on_watch(peer->config.ctx, peer, msg);
}

static void watch_end(void *ctx, rpc_stream *stream, const sy_error *cause)
{
    sy_peer *peer = ctx;

    if (stream != peer->watch) return;
    peer->watch = NULL;
    rpc_stream_unref(stream);
    if (peer->closing || peer->state != PEER_UP) return; /* opened again with the next stream */
    if (sy_log_due(&peer->last_warning_us, WARN_EVERY_US)) {
        sy_log_error(SY_LOG_WARN, cause, "peer %s: watch ended", peer->config.name);
    }
    rpc_timer_start(peer->loop, &peer->watch_timer, next_backoff(peer, &peer->watch_backoff_us),
                    on_watch_timer);
}

static void open_watch(sy_peer *peer)
{
    static const rpc_stream_events events = {.on_ready = watch_ready,
                                             .on_message = watch_message,
                                             .on_end = watch_end,
                                             .on_closed = on_closed};
    const rpc_stream_setup setup = {.loop = peer->loop,
                                    .channel = peer->channel,
                                    .path = peer->config.watch_path,
                                    .request = peer->config.watch_request,
                                    .request_len = peer->config.watch_request_len,
                                    .request_only = 1,
                                    .events = &events,
                                    .ctx = peer};

    if (peer->watch != NULL) { /* the last stream's, cancelled but not back yet */
        rpc_stream_cancel(peer->watch, SY_ECANCELLED, "closed");
        rpc_stream_unref(peer->watch);
        peer->watch = NULL;
    }
    if (rpc_stream_open(&peer->watch, &setup) == SY_OK) {
        peer->n_streams++;
    } else {
        rpc_timer_start(peer->loop, &peer->watch_timer, next_backoff(peer, &peer->watch_backoff_us),
                        on_watch_timer);
    }
}

/* ---- opening and closing ---- */

static void begin(void *arg)
{
    connect_now(arg);
}

static void begin_close(void *arg)
{
    sy_peer *peer = arg;
    rpc_stream *stream = peer->stream, *watch = peer->watch;
    sy_error err;

    peer->closing = 1;
    rpc_timer_stop(&peer->timer);
    rpc_timer_stop(&peer->watch_timer);
    atomic_store(&peer->up, 0);
    if (stream != NULL) rpc_stream_cancel(stream, SY_ECANCELLED, "closed");
    if (watch != NULL) rpc_stream_cancel(watch, SY_ECANCELLED, "closed");
    peer->watch = NULL;
    rpc_stream_unref(watch);
    make_current(peer, NULL);
    sy_error_clear(&err);
    sy_error_set(&err, SY_ECANCELLED, "peer %s is closed", peer->config.name);
    fail_all(peer, &err);
    check_quiet(peer);
}

static int copy_texts(sy_peer *peer, const sy_peer_config *config)
{
    sy_peer_config *mine = &peer->config;
    void *request = NULL;

    mine->name = strdup(config->name != NULL ? config->name : "");
    mine->address = strdup(config->address);
    mine->stream_path = strdup(config->stream_path);
    mine->watch_path = config->watch_path != NULL ? strdup(config->watch_path) : NULL;
    if (config->watch_request_len > 0) {
        request = malloc(config->watch_request_len);
        if (request != NULL) memcpy(request, config->watch_request, config->watch_request_len);
    }
    mine->watch_request = request;
    return mine->name != NULL && mine->address != NULL && mine->stream_path != NULL &&
           (mine->watch_path != NULL || config->watch_path == NULL) &&
           (request != NULL || config->watch_request_len == 0);
}

static void peer_free(sy_peer *peer)
{
    free((char *)(uintptr_t)peer->config.name);
    free((char *)(uintptr_t)peer->config.address);
    free((char *)(uintptr_t)peer->config.stream_path);
    free((char *)(uintptr_t)peer->config.watch_path);
    free((void *)(uintptr_t)peer->config.watch_request);
    rpc_pending_free(&peer->pending);
    pthread_cond_destroy(&peer->changed);
    pthread_mutex_destroy(&peer->mutex);
    free(peer);
}

static void set_defaults(sy_peer_config *config)
{
    if (config->message_bytes_max == 0) config->message_bytes_max = RPC_MESSAGE_BYTES_DEFAULT;
    if (config->window_max == 0) config->window_max = WINDOW_DEFAULT;
    if (config->backoff_min_us <= 0) config->backoff_min_us = BACKOFF_MIN_US_DEFAULT;
    if (config->backoff_max_us <= 0) config->backoff_max_us = BACKOFF_MAX_US_DEFAULT;
    config->backoff_max_us = SY_MAX(config->backoff_max_us, config->backoff_min_us);
    if (config->keepalive_us <= 0) config->keepalive_us = KEEPALIVE_US_DEFAULT;
}

sy_status sy_peer_open(sy_peer **out, sy_loop *loop, const sy_peer_config *config, sy_error *err)
{
    rpc_address address;
    sy_peer *peer;

    *out = NULL;
    sy_error_clear(err);
    SY_ASSERT(config->stream_path != NULL && config->reply_id != NULL);
    if (rpc_address_parse(&address, config->address, err) != SY_OK) return SY_EINVAL;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a peer");
    pthread_mutex_init(&peer->mutex, NULL);
    pthread_cond_init(&peer->changed, NULL);
    peer->loop = loop;
    peer->config = *config;
    set_defaults(&peer->config);
    peer->backoff_us = peer->watch_backoff_us = peer->config.backoff_min_us;
    peer->jitter = sy_fnv1a((uint64_t)sy_clock_us(), config->address, strlen(config->address));
    if (!copy_texts(peer, config) ||
        rpc_pending_open(&peer->pending, peer->config.window_max) != SY_OK) {
        peer_free(peer);
        return sy_error_set(err, SY_ENOMEM, "no memory for a peer");
    }
    peer->channel =
        rpc_channel_open(&address, &(rpc_channel_options){
                                       .message_bytes_max = peer->config.message_bytes_max,
                                       .backoff_min_us = peer->config.backoff_min_us,
                                       .backoff_max_us = peer->config.backoff_max_us,
                                       .keepalive_us = peer->config.keepalive_us,
                                   });
    rpc_loop_post(loop, &peer->open_post, begin, peer);
    *out = peer;
    return SY_OK;
}

void sy_peer_close(sy_peer *peer)
{
    if (peer == NULL) return;
    SY_ASSERT(!rpc_loop_is_current(peer->loop));
    rpc_loop_post(peer->loop, &peer->close_post, begin_close, peer);
    pthread_mutex_lock(&peer->mutex);
    while (!peer->quiet) pthread_cond_wait(&peer->changed, &peer->mutex);
    pthread_mutex_unlock(&peer->mutex);
    peer_free(peer);
}

/* ---- requests; any thread ---- */

int sy_peer_up(const sy_peer *peer)
{
    return atomic_load(&peer->up);
}

sy_loop *rpc_peer_loop(const sy_peer *peer)
{
    return peer->loop;
}

const char *sy_peer_name(const sy_peer *peer)
{
    return peer->config.name;
}

const char *sy_peer_address(const sy_peer *peer)
{
    return peer->config.address;
}

size_t sy_peer_outstanding(const sy_peer *peer)
{
    return atomic_load_explicit(&peer->n_outstanding, memory_order_relaxed);
}

uint64_t sy_peer_next_id(sy_peer *peer)
{
    return atomic_fetch_add_explicit(&peer->last_id, 1, memory_order_relaxed) + 1;
}

static sy_status enter(sy_peer *peer, rpc_pending_entry entry, rpc_stream **stream)
{
    sy_status st = SY_EUNAVAILABLE;

    pthread_mutex_lock(&peer->mutex);
    if (peer->stream != NULL && atomic_load(&peer->up)) {
        st = rpc_pending_put(&peer->pending, entry);
        if (st == SY_OK) {
            *stream = rpc_stream_ref(peer->stream);
            publish_count(peer);
        }
    }
    pthread_mutex_unlock(&peer->mutex);
    return st;
}

static int leave(sy_peer *peer, uint64_t id)
{
    rpc_pending_entry entry;
    int found;

    pthread_mutex_lock(&peer->mutex);
    found = rpc_pending_take(&peer->pending, id, &entry);
    if (found) publish_count(peer);
    pthread_mutex_unlock(&peer->mutex);
    return found;
}

sy_status sy_peer_send(sy_peer *peer, uint64_t id, sy_frame *frame, sy_reply_fn fn, void *arg)
{
    const rpc_pending_entry entry = {.id = id, .fn = fn, .arg = arg};
    rpc_stream *stream;
    sy_status st = enter(peer, entry, &stream);

    if (st != SY_OK) {
        sy_frame_free(frame);
        settle(peer, id);
        return st;
    }
    st = rpc_stream_send(stream, rpc_buffer_from_frame(frame), id);
    rpc_stream_unref(stream);
    if (st == SY_OK) return SY_OK;
    settle(peer, id);
    /* Not sent. If the loss of the stream has answered it already, this was no failure but a
     * callback. */
    if (!leave(peer, id)) return SY_OK;
    return st == SY_ECANCELLED ? SY_EUNAVAILABLE : st;
}

int sy_peer_forget(sy_peer *peer, uint64_t id)
{
    rpc_pending_entry entry;
    int found;

    SY_ASSERT(!rpc_loop_is_current(peer->loop));
    pthread_mutex_lock(&peer->mutex);
    found = rpc_pending_take(&peer->pending, id, &entry);
    if (found) publish_count(peer);
    peer->n_forgetting++;
    while (!found && id != 0 && peer->running_id == id) {
        pthread_cond_wait(&peer->changed, &peer->mutex);
    }
    peer->n_forgetting--;
    pthread_mutex_unlock(&peer->mutex);
    return found;
}
