/* sy_control.c - the loop thread and what other threads may ask of it. They leave a note under the
 * mutex and wake the loop; the loop does the work. Everything that talks to Redis is in sy_redis.c
 * and sy_primary.c (connections), sy_watch.c, sy_lease.c, sy_members.c and sy_hints.c; routers
 * without a lease are in sy_static.c, the HTTP port in sy_http.c. */
#include "sy_control.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "sy_clock.h"
#include "sy_hints.h"
#include "sy_http.h"
#include "sy_keys.h"
#include "sy_lease.h"
#include "sy_log.h"
#include "sy_members.h"
#include "sy_metrics.h"
#include "sy_primary.h"
#include "sy_static.h"
#include "sy_watch.h"

#define CHECK_US         1000000
#define LEASE_US         5000000
#define WITHDRAW_US      1000000
#define EVERY_MAX        8
#define LIST_INTERVAL_MS 20 /* between listings of members that hints cause */

typedef struct every {
    uv_timer_t timer;
    uint64_t interval_ms;
    void (*fn)(void *arg);
    void *arg;
} every;

/* What other threads want; under the mutex. */
typedef struct wishes {
    int stop, check;
    int announce;        /* after the withdrawals */
    uint32_t n_withdraw; /* callers, who wait */
    sy_member_kind kind;
    sy_member self;
    size_t n_every;
} wishes;

struct sy_control {
    sy_control_config config; /* its texts are our copies */
    sy_redis_address address[SY_REDIS_ADDRESSES_MAX];
    size_t n_addresses;

    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t check, renew;
    uv_timer_t relist; /* runs for a while after each listing that a hint caused */
    int are_nodes_hinted, are_routers_hinted;
    uv_signal_t on_term, on_int;
    int is_loop_open;
    every every[EVERY_MAX];
    size_t n_every_started;

    sy_primary *commands;
    sy_hints *hints;
    sy_watch *watch;
    sy_lease *lease;
    sy_members *nodes, *routers;
    sy_static *statics;
    uint64_t epoch_reported;

    sy_http *http;
    pthread_t thread;
    int is_thread_started;
    _Atomic int is_redis_up;
    sy_metric *redis_up;

    pthread_mutex_t mutex;
    pthread_cond_t withdrawn;
    wishes wishes;
    uint32_t n_withdrawing; /* withdrawals not yet done; under the mutex, like the next */
    sy_snapshot *snapshot;
    int64_t build_us, taken_us;
};

/* ---- what the parts report ---- */

static void on_snapshot(void *ctx, sy_snapshot *snapshot, int64_t build_us)
{
    sy_control *self = ctx;
    const uint64_t epoch = sy_snapshot_epoch(snapshot);
    sy_snapshot *before;

    pthread_mutex_lock(&self->mutex);
    before = self->snapshot;
    self->snapshot = sy_snapshot_ref(snapshot);
    self->build_us = build_us;
    if (epoch != self->epoch_reported) self->taken_us = sy_clock_wall_us();
    pthread_mutex_unlock(&self->mutex);
    sy_snapshot_unref(before);
    if (epoch == self->epoch_reported) return;
    self->epoch_reported = epoch;
    if (self->config.on_placement != NULL) self->config.on_placement(self->config.ctx, snapshot);
}

static void tell_members(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    sy_control *self = ctx;

    if (self->config.on_members != NULL) {
        self->config.on_members(self->config.ctx, kind, member, n);
    }
}

static void on_leases(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    sy_control *self = ctx;

    if (kind == SY_MEMBER_ROUTER && self->statics != NULL) {
        sy_static_set_leased(self->statics, member, n);
    } else {
        tell_members(self, kind, member, n);
    }
}

static void on_withdrawn(void *ctx)
{
    sy_control *self = ctx;

    pthread_mutex_lock(&self->mutex);
    self->n_withdrawing--;
    pthread_cond_broadcast(&self->withdrawn);
    pthread_mutex_unlock(&self->mutex);
}

static void set_redis_up(sy_control *self, int is_up)
{
    sy_metric_set(self->redis_up, is_up); /* before anybody is told, as with the placement */
    atomic_store(&self->is_redis_up, is_up);
}

static void list_members(sy_control *self)
{
    if (self->nodes != NULL) sy_members_list(self->nodes);
    if (self->routers != NULL) sy_members_list(self->routers);
}

/* ---- hints ---- */

static void on_placement_hint(void *ctx)
{
    sy_control *self = ctx;

    if (self->watch != NULL) sy_watch_hint(self->watch);
}

static void list_hinted(sy_control *self);

static void on_relist(uv_timer_t *timer)
{
    list_hinted(timer->data);
}

/* The first of a burst of hints is followed at once, the others together when a while is over. */
static void list_hinted(sy_control *self)
{
    if (!self->are_nodes_hinted && !self->are_routers_hinted) return;
    if (uv_is_active((const uv_handle_t *)&self->relist)) return;
    uv_timer_start(&self->relist, on_relist, LIST_INTERVAL_MS, 0);
    if (self->are_nodes_hinted) sy_members_list_again(self->nodes);
    if (self->are_routers_hinted) sy_members_list_again(self->routers);
    self->are_nodes_hinted = self->are_routers_hinted = 0;
}

static int is_about(sy_member_kind kind, const char *who, size_t n)
{
    const char *prefix = sy_key_member_prefix(kind) + strlen(SY_KEY_ROOT);
    const size_t len = strlen(prefix);

    return n >= len && memcmp(who, prefix, len) == 0;
}

/* Whoever cannot be placed may be anybody. */
static void on_members_hint(void *ctx, const char *who, size_t n)
{
    sy_control *self = ctx;
    const int is_node = who != NULL && is_about(SY_MEMBER_NODE, who, n);
    const int is_router = who != NULL && is_about(SY_MEMBER_ROUTER, who, n);

    if (who != NULL && is_about(SY_MEMBER_AGGREGATOR, who, n)) return;
    if (self->nodes != NULL && !is_router) self->are_nodes_hinted = 1;
    if (self->routers != NULL && !is_node) self->are_routers_hinted = 1;
    list_hinted(self);
}

/* ---- Redis comes and goes ---- */

static void on_redis_up(void *ctx)
{
    sy_control *self = ctx;

    set_redis_up(self, 1);
    sy_lease_on_up(self->lease);
    if (self->watch != NULL) sy_watch_read(self->watch);
    if (self->nodes != NULL) sy_members_on_up(self->nodes);
    if (self->routers != NULL) sy_members_on_up(self->routers);
    if (self->hints != NULL) sy_hints_on_up(self->hints);
}

static void on_redis_down(void *ctx)
{
    sy_control *self = ctx;

    set_redis_up(self, 0);
    if (self->hints != NULL) sy_hints_on_down(self->hints);
}

static void on_redis_writable(void *ctx)
{
    sy_control *self = ctx;

    sy_lease_on_up(self->lease);
    if (self->watch != NULL) sy_watch_read(self->watch);
}

/* ---- the loop ---- */

static void check(sy_control *self)
{
    if (self->commands != NULL) sy_primary_check(self->commands);
    if (self->watch != NULL) sy_watch_read(self->watch);
    list_members(self);
}

static void on_check(uv_timer_t *timer)
{
    check(timer->data);
}

static void on_renew(uv_timer_t *timer)
{
    sy_control *self = timer->data;

    if (self->lease != NULL) sy_lease_renew(self->lease);
}

static void on_every(uv_timer_t *timer)
{
    const every *due = timer->data;

    due->fn(due->arg);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    sy_control *self = handle->data;

    uv_signal_stop(handle);
    self->config.on_signal(self->config.ctx, signum);
}

static void start_every(sy_control *self, size_t n)
{
    for (; self->n_every_started < n; self->n_every_started++) {
        every *next = &self->every[self->n_every_started];

        uv_timer_init(&self->loop, &next->timer);
        next->timer.data = next;
        uv_timer_start(&next->timer, on_every, next->interval_ms, next->interval_ms);
    }
}

static void close_handle(uv_handle_t *handle)
{
    if (uv_handle_get_type(handle) != UV_UNKNOWN_HANDLE) uv_close(handle, NULL);
}

/* Ends everything on the loop; uv_run returns when the last handle is closed. */
static void stop(sy_control *self)
{
    sy_static_stop(self->statics);
    sy_hints_stop(self->hints);
    sy_watch_stop(self->watch);
    sy_primary_stop(self->commands);
    close_handle((uv_handle_t *)&self->wake);
    close_handle((uv_handle_t *)&self->check);
    close_handle((uv_handle_t *)&self->relist);
    close_handle((uv_handle_t *)&self->renew);
    close_handle((uv_handle_t *)&self->on_term);
    close_handle((uv_handle_t *)&self->on_int);
    for (size_t i = 0; i < self->n_every_started; i++) {
        close_handle((uv_handle_t *)&self->every[i].timer);
    }
}

static void on_wake(uv_async_t *async)
{
    sy_control *self = async->data;
    wishes wanted;

    pthread_mutex_lock(&self->mutex);
    wanted = self->wishes;
    self->wishes = (wishes){.n_every = wanted.n_every};
    pthread_mutex_unlock(&self->mutex);
    start_every(self, wanted.n_every);
    for (; wanted.n_withdraw > 0; wanted.n_withdraw--) {
        if (self->lease != NULL) {
            sy_lease_withdraw(self->lease);
        } else {
            on_withdrawn(self);
        }
    }
    if (wanted.announce && self->lease != NULL) {
        sy_lease_announce(self->lease, wanted.kind, &wanted.self);
    }
    if (wanted.check) check(self);
    if (wanted.stop) stop(self);
}

static void *run_loop(void *arg)
{
    sy_control *self = arg;
    sigset_t set;

    pthread_setname_np(pthread_self(), "sy-control");
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE); /* libuv writes to sockets without MSG_NOSIGNAL */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (self->config.on_signal != NULL) {
        sigemptyset(&set);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGINT);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    if (self->statics != NULL) sy_static_start(self->statics);
    uv_run(&self->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- HTTP, on its own thread ---- */

static void put_label(sy_strbuf *out, const char *name, const char *value)
{
    sy_strbuf_printf(out, "%s=\"", name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '\n') {
            sy_strbuf_puts(out, "\\n");
        } else {
            if (*c == '"' || *c == '\\') sy_strbuf_puts(out, "\\");
            sy_strbuf_append(out, c, 1);
        }
    }
    sy_strbuf_puts(out, "\"");
}

/* The hash is a label, because a sample cannot hold 64 bits; and it is written here and not kept as
 * a metric, because each edit would leave one more series behind. */
static void on_http_metrics(void *ctx, sy_strbuf *out)
{
    sy_control *self = ctx;
    sy_snapshot *snapshot = sy_control_snapshot(self);

    sy_metrics_render(out);
    if (snapshot == NULL) return;
    sy_strbuf_puts(out, "# HELP switchyard_placement_info The placement in force, by its hash.\n"
                        "# TYPE switchyard_placement_info gauge\n"
                        "switchyard_placement_info{");
    put_label(out, "model", self->config.model);
    sy_strbuf_printf(out, ",hash=\"%016llx\"} 1\n", (unsigned long long)sy_snapshot_hash(snapshot));
    sy_snapshot_unref(snapshot);
}

static int on_http_ready(void *ctx, sy_strbuf *why)
{
    sy_control *self = ctx;

    return self->config.ready == NULL || self->config.ready(self->config.ctx, why);
}

static int on_http_get(void *ctx, const char *path, sy_strbuf *body)
{
    sy_control *self = ctx;

    return self->config.http_get != NULL && self->config.http_get(self->config.ctx, path, body);
}

/* ---- open and close ---- */

void sy_control_block_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static sy_status copy_config(sy_control *self, const sy_control_config *config, sy_error *err)
{
    char key[SY_KEY_BYTES];
    sy_status st = SY_OK;

    self->config = *config;
    self->config.redis = self->config.model = self->config.http = self->config.routers = NULL;
    if (config->check_us <= 0) self->config.check_us = CHECK_US;
    if (config->lease_us <= 0) self->config.lease_us = LEASE_US;
    if (config->redis != NULL) {
        SY_TRY(sy_redis_addresses_parse(self->address, SY_REDIS_ADDRESSES_MAX, &self->n_addresses,
                                        config->redis, err));
    }
    if (config->model == NULL) goto out;
    if (config->model[0] == '\0' || sy_key_placement(key, sizeof(key), config->model) != SY_OK) {
        st = sy_error_set(err, SY_EINVAL, "the model's name is empty or too long");
    } else if (sy_grid_shards(&config->grid) == 0) {
        st = sy_error_set(err, SY_EINVAL, "the model %s has no experts to place", config->model);
    } else {
        self->config.model = strdup(config->model);
        if (self->config.model == NULL) st = SY_ENOMEM;
    }
out:
    return st;
}

static sy_status open_loop(sy_control *self, sy_error *err)
{
    int rc = uv_loop_init(&self->loop);

    if (rc != 0) return sy_error_set(err, SY_EIO, "cannot make a loop: %s", uv_strerror(rc));
    self->is_loop_open = 1;
    uv_timer_init(&self->loop, &self->check);
    uv_timer_init(&self->loop, &self->renew);
    uv_timer_init(&self->loop, &self->relist);
    rc = uv_async_init(&self->loop, &self->wake, on_wake);
    if (rc == 0) rc = uv_signal_init(&self->loop, &self->on_term);
    if (rc == 0) rc = uv_signal_init(&self->loop, &self->on_int);
    self->wake.data = self->check.data = self->renew.data = self->relist.data = self;
    self->on_term.data = self->on_int.data = self;
    if (rc == 0 && self->config.on_signal != NULL) {
        rc = uv_signal_start(&self->on_term, on_signal, SIGTERM);
        if (rc == 0) rc = uv_signal_start(&self->on_int, on_signal, SIGINT);
    }
    if (rc == 0) return SY_OK;
    return sy_error_set(err, SY_EIO, "cannot set up the loop: %s", uv_strerror(rc));
}

static sy_status open_members(sy_members **out, sy_control *self, sy_member_kind kind)
{
    const sy_members_config config = {
        .commands = self->commands,
        .kind = kind,
        .lease_us = self->config.lease_us,
        .model = self->config.model,
        .ctx = self,
        .on_members = on_leases,
    };

    return sy_members_open(out, &config);
}

static sy_status open_primary(sy_control *self)
{
    const sy_primary_config config = {
        .loop = &self->loop,
        .address = self->address,
        .n_addresses = self->n_addresses,
        .ctx = self,
        .on_up = on_redis_up,
        .on_down = on_redis_down,
        .on_writable = on_redis_writable,
    };

    self->redis_up =
        sy_metric_gauge("switchyard_redis_up", "1 while this process is connected to Redis.", NULL);
    set_redis_up(self, 0);
    return sy_primary_open(&self->commands, &config);
}

static sy_status open_watch(sy_control *self)
{
    const sy_watch_config config = {
        .loop = &self->loop,
        .commands = self->commands,
        .model = self->config.model,
        .grid = self->config.grid,
        .ctx = self,
        .on_snapshot = on_snapshot,
    };

    return sy_watch_open(&self->watch, &config);
}

static sy_status open_hints(sy_control *self)
{
    const sy_hints_config config = {
        .loop = &self->loop,
        .commands = self->commands,
        .model = self->config.model,
        .db = self->address[0].db,
        .are_members_wanted = self->nodes != NULL || self->routers != NULL,
        .ctx = self,
        .on_placement = on_placement_hint,
        .on_members = on_members_hint,
    };

    if (config.model == NULL && !config.are_members_wanted) return SY_OK;
    return sy_hints_open(&self->hints, &config);
}

static sy_status open_redis(sy_control *self)
{
    const uint64_t check_ms = (uint64_t)SY_MAX(self->config.check_us / 1000, (int64_t)1);
    const uint64_t renew_ms = (uint64_t)SY_MAX(self->config.lease_us / 3000, (int64_t)1);
    sy_status st;

    SY_TRY(open_primary(self));
    SY_TRY(sy_lease_open(&self->lease, self->commands, self->config.lease_us, on_withdrawn, self));
    if (self->config.model != NULL) SY_TRY(open_watch(self));
    if (self->config.watch_nodes) SY_TRY(open_members(&self->nodes, self, SY_MEMBER_NODE));
    if (self->config.watch_routers) SY_TRY(open_members(&self->routers, self, SY_MEMBER_ROUTER));
    SY_TRY(open_hints(self));
    uv_timer_start(&self->check, on_check, check_ms, check_ms);
    uv_timer_start(&self->renew, on_renew, renew_ms, renew_ms);
out:
    return st;
}

static sy_status open_static(sy_control *self, const char *routers, sy_error *err)
{
    const sy_static_config config = {
        .loop = &self->loop,
        .routers = routers,
        .model = self->config.model,
        .ctx = self,
        .on_members = tell_members,
    };

    return sy_static_open(&self->statics, &config, err);
}

static sy_status open_http(sy_control *self, const char *address, sy_error *err)
{
    const sy_http_config config = {
        .address = address,
        .ctx = self,
        .metrics = on_http_metrics,
        .ready = on_http_ready,
        .get = on_http_get,
    };

    return sy_http_open(&self->http, &config, err);
}

static sy_control *alloc_control(void)
{
    sy_control *self = calloc(1, sizeof(*self));
    pthread_condattr_t monotonic;

    if (self == NULL) return NULL;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->withdrawn, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return self;
}

sy_status sy_control_open(sy_control **out, const sy_control_config *config, sy_error *err)
{
    sy_control *self = alloc_control();
    sy_status st;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the control plane");
    sy_error_clear(err);
    SY_TRY(copy_config(self, config, err));
    SY_TRY(open_loop(self, err));
    if (config->routers != NULL) SY_TRY(open_static(self, config->routers, err));
    if (config->redis != NULL) SY_TRY(open_redis(self));
    if (config->http != NULL) SY_TRY(open_http(self, config->http, err));
    if (pthread_create(&self->thread, NULL, run_loop, self) != 0) {
        st = sy_error_set(err, SY_EIO, "cannot start the control thread");
        goto out;
    }
    self->is_thread_started = 1;
    *out = self;
    self = NULL;
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the control plane");
    sy_control_close(self);
    return st;
}

static void wake(sy_control *self)
{
    uv_async_send(&self->wake);
}

static void end_loop(sy_control *self)
{
    if (!self->is_loop_open) return;
    if (self->is_thread_started) {
        pthread_mutex_lock(&self->mutex);
        self->wishes.stop = 1;
        pthread_mutex_unlock(&self->mutex);
        wake(self);
        pthread_join(self->thread, NULL);
    } else {
        stop(self);
        uv_run(&self->loop, UV_RUN_DEFAULT);
    }
    SY_ASSERT(uv_loop_close(&self->loop) == 0);
}

void sy_control_close(sy_control *control)
{
    if (control == NULL) return;
    if (control->is_thread_started) sy_control_withdraw(control);
    sy_http_close(control->http);
    end_loop(control);
    sy_hints_free(control->hints);
    sy_watch_free(control->watch);
    sy_lease_free(control->lease);
    sy_members_free(control->nodes);
    sy_members_free(control->routers);
    sy_static_free(control->statics);
    sy_primary_free(control->commands);
    sy_snapshot_unref(control->snapshot);
    pthread_cond_destroy(&control->withdrawn);
    pthread_mutex_destroy(&control->mutex);
    free((void *)(uintptr_t)control->config.model);
    free(control);
}

/* ---- asked from any thread ---- */

int sy_control_http_port(const sy_control *control)
{
    return control->http != NULL ? sy_http_port(control->http) : 0;
}

sy_status sy_control_announce(sy_control *control, sy_member_kind kind, const sy_member *self)
{
    if (!sy_name_is_good(self->name, strnlen(self->name, sizeof(self->name))) ||
        self->address[0] == '\0') {
        return SY_EINVAL;
    }
    pthread_mutex_lock(&control->mutex);
    control->wishes.announce = 1;
    control->wishes.kind = kind;
    control->wishes.self = *self;
    pthread_mutex_unlock(&control->mutex);
    wake(control);
    return SY_OK;
}

void sy_control_withdraw(sy_control *control)
{
    const int64_t until_us = sy_clock_us() + WITHDRAW_US;
    const struct timespec until = {.tv_sec = (time_t)(until_us / 1000000),
                                   .tv_nsec = (long)(until_us % 1000000) * 1000};
    const int may_wait = !pthread_equal(pthread_self(), control->thread);

    pthread_mutex_lock(&control->mutex);
    control->wishes.announce = 0;
    control->wishes.n_withdraw++;
    control->n_withdrawing++;
    wake(control);
    while (may_wait && control->n_withdrawing > 0 && sy_clock_us() < until_us) {
        pthread_cond_timedwait(&control->withdrawn, &control->mutex, &until);
    }
    pthread_mutex_unlock(&control->mutex);
}

int sy_control_redis_up(const sy_control *control)
{
    return atomic_load(&control->is_redis_up);
}

sy_snapshot *sy_control_snapshot(sy_control *control)
{
    sy_snapshot *snapshot;

    pthread_mutex_lock(&control->mutex);
    snapshot = control->snapshot != NULL ? sy_snapshot_ref(control->snapshot) : NULL;
    pthread_mutex_unlock(&control->mutex);
    return snapshot;
}

void sy_control_news(sy_control *control, sy_placement_news *out)
{
    out->hints = sy_hints_active(control->hints);
    pthread_mutex_lock(&control->mutex);
    out->build_us = control->build_us;
    out->taken_us = control->taken_us;
    pthread_mutex_unlock(&control->mutex);
}

void sy_control_check_now(sy_control *control)
{
    pthread_mutex_lock(&control->mutex);
    control->wishes.check = 1;
    pthread_mutex_unlock(&control->mutex);
    wake(control);
}

sy_status sy_control_every(sy_control *control, int64_t interval_us, void (*fn)(void *arg),
                           void *arg)
{
    sy_status st = SY_ELIMIT;
    every *next;

    if (interval_us <= 0) return SY_EINVAL;
    pthread_mutex_lock(&control->mutex);
    if (control->wishes.n_every < EVERY_MAX) {
        next = &control->every[control->wishes.n_every++];
        next->interval_ms = (uint64_t)SY_MAX(interval_us / 1000, (int64_t)1);
        next->fn = fn;
        next->arg = arg;
        st = SY_OK;
    }
    pthread_mutex_unlock(&control->mutex);
    wake(control);
    return st;
}
