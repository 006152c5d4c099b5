/* sy_redis.c - the life of a connection:
 *
 *   WAITING -> RESOLVING -> CONNECTING -> LOGGING_IN -> UP
 *      ^____________|____________|_____________|________|   drop(): any failure, with its reason
 *
 * Not hiredis' asynchronous API, for two reasons: it asserts on answers that nobody asked for, and
 * what arrives from the network must not reach an assert; and it has no time-outs. Its parser has
 * neither fault. Answers come in the order of commands, so a ring of callbacks is all the state. */
#include "sy_redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <uv.h>

#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_log.h"
#include "sy_metrics.h"

#define PENDING_MAX      4096
#define READ_BYTES       65536
#define REPLY_BYTES_MAX  (128u << 20)
#define ELEMENTS_MAX     (1 << 22) /* of one array: two million fields of a hash */
#define TICK_MS          250
#define CONNECT_US       2000000  /* to be connected and logged in */
#define SILENCE_US       2000000  /* without a byte although an answer is due */
#define ANSWER_US        30000000 /* for one answer, however busily it drips */
#define PING_US          1000000  /* of a connection that only listens */
#define BACK_OFF_MS      100
#define BACK_OFF_MAX_MS  2000
#define LOG_INTERVAL_US  10000000
#define KEEPALIVE_S      15
#define ADDRESS_TEXT_MAX 160

typedef enum redis_state { WAITING, RESOLVING, CONNECTING, LOGGING_IN, UP, CLOSED } redis_state;

/* One attempt: a socket and a parser. Once dropped, it lives until libuv has closed the socket. */
typedef struct attempt {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_connect_t connect;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* the parser's own, but with a limit on arrays */
    void *(*create_array)(const redisReadTask *, int);
    size_t unparsed_bytes; /* since the last whole answer */
    sy_redis *owner;       /* NULL once dropped */
    char in[READ_BYTES];
} attempt;

typedef struct pending {
    sy_redis_reply_fn *fn;
    void *arg;
    int64_t sent_us;
} pending;

struct sy_redis {
    sy_redis_config config;
    char where[ADDRESS_TEXT_MAX]; /* for the log */
    int is_follower;              /* goes to `peer`, never to a name */
    struct sockaddr_storage peer; /* of the last attempt; of a Unix socket the address says it */
    uv_timer_t timer;             /* WAITING: the next attempt; else the clock of time-outs */
    uv_getaddrinfo_t resolve;
    int is_timer_open, is_resolving; /* what must end before the memory may go */
    redis_state state;
    attempt *attempt;
    int n_login_left; /* answers of the login */
    int is_subscribed;
    uint32_t n_failures; /* in a row */
    int64_t started_us;  /* this attempt's CONNECTING */
    int64_t down_us;     /* when the last connection was lost; 0: never had one, never missed one */
    int64_t heard_us, pinged_us;
    int is_outage_logged;
    _Atomic int64_t logged_us;
    sy_metric *errors;
    size_t first, n_pending;
    pending ring[PENDING_MAX];
};

static void start_attempt(uv_timer_t *timer);
static void check_time(uv_timer_t *timer);

/* ---- commands out ---- */

typedef struct outgoing {
    uv_write_t request;
    attempt *attempt;
    char *text;
} outgoing;

static void drop(sy_redis *self, const char *why);

static void on_written(uv_write_t *request, int status)
{
    outgoing *out = request->data;
    attempt *const to = out->attempt;

    redisFreeCommand(out->text);
    free(out);
    if (status < 0 && to->owner != NULL) drop(to->owner, uv_strerror(status));
}

static sy_status write_command(attempt *to, int argc, const char *const *argv)
{
    outgoing *out = calloc(1, sizeof(*out));
    int len;
    uv_buf_t piece;

    if (out == NULL) return SY_ENOMEM;
    len = redisFormatCommandArgv(&out->text, argc, (const char **)(uintptr_t)argv, NULL);
    if (len < 0) {
        free(out);
        return SY_ENOMEM;
    }
    out->request.data = out;
    out->attempt = to;
    piece = uv_buf_init(out->text, (unsigned)len);
    if (uv_write(&out->request, &to->socket.stream, &piece, 1, on_written) != 0) {
        redisFreeCommand(out->text);
        free(out);
        return SY_EUNAVAILABLE; /* the socket is dead: reading will say so */
    }
    return SY_OK;
}

static sy_status send_command(sy_redis *self, sy_redis_reply_fn *fn, void *arg, int argc,
                              const char *const *argv)
{
    sy_status st;

    if (self->n_pending == PENDING_MAX) return SY_ELIMIT;
    SY_TRY(write_command(self->attempt, argc, argv));
    self->ring[(self->first + self->n_pending) % PENDING_MAX] = (pending){fn, arg, sy_clock_us()};
    self->n_pending++;
out:
    return st;
}

sy_status sy_redis_command(sy_redis *redis, sy_redis_reply_fn *fn, void *arg, int argc,
                           const char *const *argv)
{
    if (redis->state != UP || redis->is_subscribed) return SY_EUNAVAILABLE;
    return send_command(redis, fn, arg, argc, argv);
}

void sy_redis_subscribe(sy_redis *redis, const char *channel)
{
    SY_ASSERT(redis->state == UP && redis->config.on_message != NULL);
    redis->is_subscribed = 1;
    /* A failure needs no word here: the silence that follows drops the connection. */
    (void)!write_command(redis->attempt, 2, (const char *const[]){"SUBSCRIBE", channel});
}

static pending take_pending(sy_redis *self)
{
    const pending oldest = self->ring[self->first];

    self->first = (self->first + 1) % PENDING_MAX;
    self->n_pending--;
    return oldest;
}

/* ---- the end of an attempt ---- */

static void on_attempt_closed(uv_handle_t *handle)
{
    attempt *const old = handle->data;

    redisReaderFree(old->reader);
    free(old);
}

static void discard_attempt(sy_redis *self)
{
    attempt *const old = self->attempt;

    if (old == NULL) return;
    self->attempt = NULL;
    old->owner = NULL;
    uv_close(&old->socket.handle, on_attempt_closed);
}

static void answer_all_with_null(sy_redis *self)
{
    while (self->n_pending > 0) {
        const pending lost = take_pending(self);

        lost.fn(lost.arg, NULL);
    }
}

static uint64_t back_off_ms(const sy_redis *self)
{
    const uint32_t doublings = SY_MIN(self->n_failures, 5u);
    const uint64_t delay_ms = SY_MIN((uint64_t)BACK_OFF_MS << doublings, BACK_OFF_MAX_MS);

    /* Up to a quarter less, so that a hundred processes do not all come back at the same moment. */
    return delay_ms - sy_splitmix64((uint64_t)sy_clock_us()) % (delay_ms / 4);
}

static void log_outage(sy_redis *self, const char *why)
{
    sy_metric_add(self->errors, 1);
    if (!sy_log_due(&self->logged_us, LOG_INTERVAL_US)) return;
    self->is_outage_logged = 1;
    sy_log(SY_LOG_WARN, "Redis at %s (%s) is away for %.1f s: %s; what is in force stays so",
           self->where, self->config.purpose, (double)(sy_clock_us() - self->down_us) / 1e6, why);
}

static void drop(sy_redis *self, const char *why)
{
    const int was_up = self->state == UP;

    self->state = WAITING;
    self->is_subscribed = 0;
    discard_attempt(self);
    if (was_up || self->down_us == 0) self->down_us = sy_clock_us();
    log_outage(self, why);
    uv_timer_start(&self->timer, start_attempt, back_off_ms(self), 0);
    self->n_failures++;
    if (was_up && self->config.on_down != NULL) self->config.on_down(self->config.ctx);
    answer_all_with_null(self);
}

/* ---- logging in ---- */

static void enter_up(sy_redis *self)
{
    self->state = UP;
    self->n_failures = 0;
    if (self->is_outage_logged) {
        sy_log(SY_LOG_INFO, "Redis at %s (%s) is back after %.1f s", self->where,
               self->config.purpose, (double)(sy_clock_us() - self->down_us) / 1e6);
        self->is_outage_logged = 0;
    }
    if (self->config.on_up != NULL) self->config.on_up(self->config.ctx);
}

static void on_login_answer(void *arg, const redisReply *reply)
{
    sy_redis *self = arg;

    if (reply == NULL || self->state != LOGGING_IN) return;
    if (reply->type == REDIS_REPLY_ERROR) {
        drop(self, reply->str);
    } else if (reply->type != REDIS_REPLY_STATUS) {
        drop(self, "what answers there is not Redis");
    } else if (--self->n_login_left == 0) {
        enter_up(self);
    }
}

static sy_status send_login(sy_redis *self, int argc, const char *const *argv)
{
    self->n_login_left++;
    return send_command(self, on_login_answer, self, argc, argv);
}

static sy_status log_in(sy_redis *self)
{
    const sy_redis_address *to = self->config.address;
    char db[16];
    sy_status st = SY_OK;

    self->n_login_left = 0;
    if (to->user[0] != '\0') {
        SY_TRY(send_login(self, 3, (const char *const[]){"AUTH", to->user, to->password}));
    } else if (to->password[0] != '\0') {
        SY_TRY(send_login(self, 2, (const char *const[]){"AUTH", to->password}));
    }
    if (to->db != 0) {
        snprintf(db, sizeof(db), "%d", to->db);
        SY_TRY(send_login(self, 2, (const char *const[]){"SELECT", db}));
    }
    /* Says no while a password is missing, or while Redis is still loading its data. */
    SY_TRY(send_login(self, 1, (const char *const[]){"PING"}));
out:
    return st;
}

/* ---- answers in ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *out)
{
    attempt *const from = handle->data;

    (void)suggested_bytes;
    *out = uv_buf_init(from->in, sizeof(from->in));
}

static void *create_limited_array(const redisReadTask *task, int n)
{
    const attempt *from = task->privdata;

    return n > ELEMENTS_MAX ? NULL : from->create_array(task, n);
}

static int is_readonly_error(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "READONLY", 8) == 0;
}

static void deliver(sy_redis *self, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR) sy_metric_add(self->errors, 1);
    if (self->is_subscribed) {
        self->config.on_message(self->config.ctx, reply);
    } else if (self->n_pending > 0) {
        const pending oldest = take_pending(self);

        oldest.fn(oldest.arg, reply);
        if (self->state == UP && self->config.on_readonly != NULL && is_readonly_error(reply)) {
            self->config.on_readonly(self->config.ctx);
        }
    } else {
        drop(self, reply->type == REDIS_REPLY_ERROR ? reply->str
                                                    : "it sent an answer that nobody asked for");
    }
}

/* Callbacks may drop the attempt; then it stays in memory for the rest of this turn. */
static void parse_answers(attempt *from)
{
    void *reply;

    while (from->owner != NULL) {
        if (redisReaderGetReply(from->reader, &reply) != REDIS_OK) {
            drop(from->owner, from->reader->err == REDIS_ERR_OOM ? "its answer is too large"
                                                                 : from->reader->errstr);
            return;
        }
        if (reply == NULL) return;
        from->unparsed_bytes = 0;
        deliver(from->owner, reply);
        freeReplyObject(reply);
    }
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    attempt *const from = stream->data;
    sy_redis *self = from->owner;

    if (self == NULL || n == 0) return;
    if (n < 0) {
        drop(self, n == UV_EOF ? "it closed the connection" : uv_strerror((int)n));
        return;
    }
    self->heard_us = sy_clock_us();
    from->unparsed_bytes += (size_t)n;
    if (from->unparsed_bytes > REPLY_BYTES_MAX) {
        drop(self, "its answer is too large");
    } else if (redisReaderFeed(from->reader, buf->base, (size_t)n) != REDIS_OK) {
        drop(self, from->reader->errstr);
    } else {
        parse_answers(from);
    }
}

/* ---- connecting ---- */

static void on_connected(uv_connect_t *request, int status)
{
    attempt *const to = request->data;
    sy_redis *self = to->owner;

    if (self == NULL) return;
    if (status == 0) status = uv_read_start(&to->socket.stream, on_alloc, on_read);
    if (status < 0) {
        drop(self, uv_strerror(status));
        return;
    }
    self->state = LOGGING_IN;
    self->heard_us = self->pinged_us = sy_clock_us();
    if (log_in(self) != SY_OK) drop(self, "cannot send the login");
}

static attempt *open_attempt(sy_redis *self)
{
    attempt *to = calloc(1, sizeof(*to));
    int rc;

    if (to == NULL) return NULL;
    to->reader = redisReaderCreate();
    if (to->reader == NULL) {
        free(to);
        return NULL;
    }
    to->create_array = to->reader->fn->createArray;
    to->functions = *to->reader->fn;
    to->functions.createArray = create_limited_array;
    to->reader->fn = &to->functions;
    to->reader->privdata = to;
    rc = self->config.address->is_unix ? uv_pipe_init(self->config.loop, &to->socket.pipe, 0)
                                       : uv_tcp_init(self->config.loop, &to->socket.tcp);
    if (rc != 0) {
        redisReaderFree(to->reader);
        free(to);
        return NULL;
    }
    to->socket.handle.data = to;
    to->connect.data = to;
    to->owner = self;
    return to;
}

static size_t address_bytes(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* address: NULL for the Unix socket. */
static void connect_to(sy_redis *self, const struct sockaddr *address)
{
    int rc = 0;

    self->state = CONNECTING;
    self->attempt = open_attempt(self);
    if (self->attempt == NULL) {
        drop(self, "no memory or no descriptor for a connection");
        return;
    }
    uv_timer_start(&self->timer, check_time, TICK_MS, TICK_MS);
    self->started_us = sy_clock_us();
    if (address != NULL && address != (const struct sockaddr *)&self->peer) {
        memset(&self->peer, 0, sizeof(self->peer));
        memcpy(&self->peer, address, address_bytes(address));
    }
    if (address == NULL) {
        uv_pipe_connect(&self->attempt->connect, &self->attempt->socket.pipe,
                        self->config.address->path, on_connected);
    } else {
        rc = uv_tcp_connect(&self->attempt->connect, &self->attempt->socket.tcp, address,
                            on_connected);
        if (rc == 0) {
            uv_tcp_nodelay(&self->attempt->socket.tcp, 1);
            uv_tcp_keepalive(&self->attempt->socket.tcp, 1, KEEPALIVE_S);
        }
    }
    if (rc != 0) drop(self, uv_strerror(rc));
}

static void finish_close(sy_redis *self)
{
    if (self->state == CLOSED && !self->is_timer_open && !self->is_resolving) free(self);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    sy_redis *self = request->data;
    const struct addrinfo *chosen = found;
    uint32_t n = 0;

    self->is_resolving = 0;
    if (self->state == CLOSED) {
        finish_close(self);
    } else if (status != 0 || found == NULL) {
        drop(self, status != 0 ? uv_strerror(status) : "the name has no address");
    } else {
        for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) n++;
        /* Each attempt takes the next of the name's addresses. */
        for (uint32_t i = self->n_failures % n; i > 0; i--) chosen = chosen->ai_next;
        connect_to(self, chosen->ai_addr);
    }
    uv_freeaddrinfo(found);
}

/* libuv resolves on a thread of its own: a dead name server must not stop the loop. */
static void resolve(sy_redis *self)
{
    const sy_redis_address *to = self->config.address;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    char port[16];
    int rc;

    if (uv_ip4_addr(to->host, to->port, &v4) == 0) {
        connect_to(self, (const struct sockaddr *)&v4);
    } else if (uv_ip6_addr(to->host, to->port, &v6) == 0) {
        connect_to(self, (const struct sockaddr *)&v6);
    } else {
        snprintf(port, sizeof(port), "%d", to->port);
        self->state = RESOLVING;
        self->resolve.data = self;
        rc = uv_getaddrinfo(self->config.loop, &self->resolve, on_resolved, to->host, port, &hints);
        self->is_resolving = rc == 0;
        if (rc != 0) drop(self, uv_strerror(rc));
    }
}

static void start_attempt(uv_timer_t *timer)
{
    sy_redis *self = timer->data;

    if (self->config.address->is_unix) {
        connect_to(self, NULL);
    } else if (self->is_follower) {
        connect_to(self, (const struct sockaddr *)&self->peer);
    } else {
        resolve(self);
    }
}

/* ---- time ---- */

static void check_listener(sy_redis *self, int64_t now_us)
{
    if (now_us - self->heard_us > PING_US + SILENCE_US) {
        drop(self, "it does not answer");
    } else if (now_us - self->pinged_us >= PING_US) {
        self->pinged_us = now_us;
        (void)!write_command(self->attempt, 1, (const char *const[]){"PING"});
    }
}

static void check_time(uv_timer_t *timer)
{
    sy_redis *self = timer->data;
    const int64_t now_us = sy_clock_us();
    int64_t waited_us;

    if (self->state == CONNECTING || self->state == LOGGING_IN) {
        if (now_us - self->started_us > CONNECT_US) drop(self, "it does not answer");
        return;
    }
    if (self->is_subscribed) {
        check_listener(self, now_us);
        return;
    }
    if (self->n_pending == 0) return;
    waited_us = now_us - self->ring[self->first].sent_us;
    if ((waited_us > SILENCE_US && now_us - self->heard_us > SILENCE_US) || waited_us > ANSWER_US) {
        drop(self, "it does not answer");
    }
}

/* ---- going elsewhere ---- */

/* At once and without an outage in the log: it is we who leave. */
void sy_redis_restart(sy_redis *redis)
{
    const int was_up = redis->state == UP;

    if (redis->state == RESOLVING || redis->state == CLOSED) return;
    redis->state = WAITING;
    redis->is_subscribed = 0;
    redis->n_failures = 0;
    redis->down_us = 0;
    redis->is_outage_logged = 0;
    discard_attempt(redis);
    uv_timer_start(&redis->timer, start_attempt, 0, 0);
    if (was_up && redis->config.on_down != NULL) redis->config.on_down(redis->config.ctx);
    answer_all_with_null(redis);
}

static void set_address(sy_redis *self, const sy_redis_address *to)
{
    self->config.address = to;
    if (to->is_unix) {
        snprintf(self->where, sizeof(self->where), "unix:%s", to->path);
    } else {
        snprintf(self->where, sizeof(self->where), "%s:%d", to->host, to->port);
    }
}

void sy_redis_follow(sy_redis *redis, const sy_redis *leader)
{
    if (redis->config.address == leader->config.address &&
        memcmp(&redis->peer, &leader->peer, sizeof(redis->peer)) == 0) {
        return;
    }
    set_address(redis, leader->config.address);
    redis->peer = leader->peer;
    redis->is_follower = 1;
    sy_redis_restart(redis);
}

/* ---- open and close ---- */

sy_status sy_redis_open(sy_redis **out, const sy_redis_config *config)
{
    sy_redis *self = calloc(1, sizeof(*self));

    *out = NULL;
    if (self == NULL) return SY_ENOMEM;
    self->config = *config;
    if (config->address != NULL) set_address(self, config->address);
    self->errors =
        sy_metric_counter("switchyard_redis_errors_total",
                          "Lost connections to Redis and commands that it refused.", NULL);
    uv_timer_init(config->loop, &self->timer);
    self->timer.data = self;
    self->is_timer_open = 1;
    if (config->address != NULL) uv_timer_start(&self->timer, start_attempt, 0, 0);
    *out = self;
    return SY_OK;
}

static void on_timer_closed(uv_handle_t *handle)
{
    sy_redis *self = handle->data;

    self->is_timer_open = 0;
    finish_close(self);
}

void sy_redis_close(sy_redis *redis)
{
    if (redis == NULL) return;
    redis->state = CLOSED;
    discard_attempt(redis);
    answer_all_with_null(redis);
    if (redis->is_resolving) uv_cancel((uv_req_t *)&redis->resolve);
    uv_close((uv_handle_t *)&redis->timer, on_timer_closed);
}

int sy_redis_is_up(const sy_redis *redis)
{
    return redis->state == UP;
}

int sy_redis_has_failed(const sy_redis *redis)
{
    return redis->n_failures > 0;
}

const char *sy_redis_where(const sy_redis *redis)
{
    return redis->where;
}

int sy_redis_answered(const redisReply *reply, const char *what, _Atomic int64_t *last_us)
{
    if (reply == NULL) return 0;
    if (reply->type != REDIS_REPLY_ERROR) return 1;
    if (sy_log_due(last_us, LOG_INTERVAL_US)) {
        sy_log(SY_LOG_WARN, "Redis refused %s: %s", what, reply->str);
    }
    return 0;
}
