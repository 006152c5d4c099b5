/* sy_service.c - the life of a server process: start-up order, readiness, and an orderly end. */
#include "sy_service.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_log.h"
#include "sy_metrics.h"

enum { READY_INTERVAL_US = 100 * 1000, TELL_INTERVAL_US = 5 * 1000 * 1000 };

struct sy_service {
    sy_service_options options;
    sy_service_config config;
    char name[SY_NODE_BYTES];
    sy_loop *loop;
    sy_server *server;
    _Atomic(sy_control *) control; /* callbacks may run before sy_control_open has returned */
    sy_metric *ready_metric;
    atomic_int draining;
    /* Control thread only. */
    int announced, was_ready;
    int64_t told_us;       /* when the log last said why it waits */
    pthread_mutex_t mutex; /* for what follows */
    sy_member self;        /* as announced */
    pthread_cond_t wake;   /* the main thread sleeps on it, until there is a signal */
    int signal;
    char why[256]; /* why it is not ready, "" when it is: the control thread's last answer, for
                      probes */
};

void sy_service_init(void)
{
    sy_control_block_signals();
}

/* ---- options ---- */

sy_status sy_service_parse(sy_service_options *out, int argc, char **argv, const char *tier,
                           const char *usage, const sy_arg *extra, size_t n_extra, sy_error *err)
{
    static char default_name[SY_NODE_BYTES];
    sy_log_level level;
    snprintf(default_name, sizeof(default_name), "%s-%d", tier, (int)getpid());
    *out = (sy_service_options){.http = "127.0.0.1:0",
                                .redis = "redis://127.0.0.1:6379",
                                .name = default_name,
                                .kernels = "auto",
                                .drain_s = 10,
                                .message_mb = 64,
                                .log_level = "info"};
    const sy_arg common[] = {
        {"model", "DIR",
         "checkpoint: a directory in Hugging Face's layout, or a .gguf file (required)",
         SY_ARG_STRING, &out->model_dir, 0, 0},
        {"model-name", "NAME", "what the model is called; default: the directory's name",
         SY_ARG_STRING, &out->model_name, 0, 0},
        {"name", "NAME", "of this process, in leases and logs; default: TIER-PID", SY_ARG_STRING,
         &out->name, 0, 0},
        {"listen", "ADDRESS",
         "gRPC address, host:port or unix:/path; may be repeated; default 127.0.0.1:0",
         SY_ARG_STRINGS, &out->listen, 0, 0},
        {"advertise", "ADDRESS",
         "the address that peers are told; default: the first --listen as bound", SY_ARG_STRING,
         &out->advertise, 0, 0},
        {"http", "ADDRESS", "metrics and probes, host:port or unix:/path; default 127.0.0.1:0",
         SY_ARG_STRING, &out->http, 0, 0},
        {"redis", "URL",
         "redis://[[user]:password@]host:port[/db] or unix:/path; several with commas between: a "
         "primary and its replicas, of which the one that is primary is used",
         SY_ARG_STRING, &out->redis, 0, 0},
        {"threads", "N", "compute threads; 0: all cores", SY_ARG_INT, &out->threads, 0, 1024},
        {"kernels", "NAME", "auto, ref, avx2 or avx512: the same bits, another speed",
         SY_ARG_STRING, &out->kernels, 0, 0},
        {"drain-s", "S", "how long running calls may take to finish after SIGTERM", SY_ARG_INT,
         &out->drain_s, 0, 3600},
        {"message-mb", "MB", "largest gRPC message", SY_ARG_INT, &out->message_mb, 1, 1024},
        {"log-level", "LEVEL", "debug, info, warn or error", SY_ARG_STRING, &out->log_level, 0, 0},
        {"allow-nan", NULL,
         "load weights that are NaN or infinite as they are, instead of refusing the checkpoint; a "
         "request that meets one fails",
         SY_ARG_FLAG, &out->allow_nan, 0, 0},
        {"log-json", NULL, "one JSON object a line", SY_ARG_FLAG, &out->log_json, 0, 0},
    };
    sy_arg all[SY_COUNT_OF(common) + 32];
    SY_ASSERT(n_extra <= 32);
    memcpy(all, common, sizeof(common));
    if (n_extra > 0) memcpy(all + SY_COUNT_OF(common), extra, n_extra * sizeof(*extra));
    sy_status st =
        sy_args_parse(argc, argv, all, SY_COUNT_OF(common) + n_extra, usage, NULL, 0, NULL, err);
    if (st != SY_OK) return st;
    if (out->model_dir == NULL)
        return sy_error_set(err, SY_EINVAL, "--model DIR is required; see --help");
    if (strlen(out->name) >= SY_NODE_BYTES || strchr(out->name, ' ') != NULL ||
        strchr(out->name, '/') != NULL)
        return sy_error_set(err, SY_EINVAL,
                            "--name %s: at most %d characters, no space and no slash", out->name,
                            SY_NODE_BYTES - 1);
    st = sy_log_level_from_name(&level, out->log_level);
    if (st != SY_OK)
        return sy_error_set(err, SY_EINVAL, "--log-level %s: debug, info, warn or error",
                            out->log_level);
    if (out->listen.n == 0) out->listen = (sy_arg_strings){{"127.0.0.1:0"}, 1};
    sy_log_open(out->name, level, out->log_json);
    return SY_OK;
}

int sy_service_exit_code(const sy_error *err, const char *program)
{
    if (err->status == SY_ECANCELLED || err->status == SY_OK) return 0;
    fprintf(stderr, "%s: error: %s\n", program,
            err->message[0] != '\0' ? err->message : sy_status_name(err->status));
    return err->status == SY_EINVAL ? 2 : 1;
}

void sy_service_refuse(sy_call *call, sy_status st, const char *text)
{
    sy_error err = {0};

    sy_error_clear(&err);
    sy_error_set(&err, st, "%s", text);
    sy_call_finish(call, &err);
}

sy_status sy_service_check_model(const char *served, const char *asked, sy_error *err)
{
    if (asked[0] == '\0' || strcmp(asked, served) == 0) return SY_OK;
    sy_error_set(err, SY_ENOTFOUND, "model: %s is not served here; what is served is %s", asked,
                 served);
    sy_error_where(err, "MODEL_UNKNOWN", -1, -1, NULL);
    return SY_ENOTFOUND;
}

sy_status sy_service_refuse_dense(uint32_t layer, sy_error *err)
{
    sy_error_set(err, SY_EINVAL,
                 "layer: %u has no experts; the model's description says which layers have", layer);
    sy_error_where(err, "LAYER_HAS_NO_EXPERTS", (int32_t)layer, -1, NULL);
    return SY_EINVAL;
}

/* ---- readiness: control thread ---- */

static void set_health(sy_service *service, int serving)
{
    sy_server_set_health(service->server, "", serving);
    for (size_t i = 0; i < service->config.server.n_service_names; i++)
        sy_server_set_health(service->server, service->config.server.service_names[i], serving);
    sy_server_set_health(service->server, service->config.model, serving);
}

/* Under the mutex to the end, so that nothing is announced after "draining". */
static void announce(sy_service *service, const char *state, int is_draining)
{
    sy_status st = SY_OK;

    pthread_mutex_lock(&service->mutex);
    if (is_draining == atomic_load(&service->draining)) {
        snprintf(service->self.state, sizeof(service->self.state), "%s", state);
        st = sy_control_announce(service->control, service->config.kind, &service->self);
    }
    pthread_mutex_unlock(&service->mutex);
    if (st != SY_OK) sy_log(SY_LOG_WARN, "the lease could not be announced");
}

/* The program's own answer, asked on the control thread only; probes get the last one. */
static int ask_ready(sy_service *service, sy_strbuf *why)
{
    const int ready =
        service->config.ready == NULL || service->config.ready(service->config.control.ctx, why);

    pthread_mutex_lock(&service->mutex);
    snprintf(service->why, sizeof(service->why), "%s",
             ready          ? ""
             : why->len > 0 ? why->data
                            : "not ready");
    pthread_mutex_unlock(&service->mutex);
    return ready;
}

static void check_ready(void *arg)
{
    sy_service *service = arg;
    sy_strbuf why;
    const int64_t now_us = sy_clock_us();

    if (atomic_load(&service->draining)) return; /* sy_service_wait has told everybody */
    sy_strbuf_init(&why);
    const int ready = ask_ready(service, &why);
    if (!service->announced) announce(service, ready ? "serving" : "starting", 0);
    service->announced = 1;
    if (ready != service->was_ready) {
        set_health(service, ready);
        sy_metric_set(service->ready_metric, ready);
        if (ready) announce(service, "serving", 0);
        sy_log(SY_LOG_INFO, "%s%s", ready ? "ready" : "not ready: ", why.data);
        service->told_us = now_us;
    } else if (!ready && now_us - service->told_us > TELL_INTERVAL_US) {
        sy_log(SY_LOG_INFO, "waiting: %s", why.data);
        service->told_us = now_us;
    }
    service->was_ready = ready;
    sy_strbuf_free(&why);
}

/* HTTP thread. */
static int on_ready_probe(void *ctx, sy_strbuf *why)
{
    sy_service *service = ctx;

    pthread_mutex_lock(&service->mutex);
    sy_strbuf_puts(why, atomic_load(&service->draining) ? "shutting down" : service->why);
    pthread_mutex_unlock(&service->mutex);
    return why->len == 0;
}

/* ---- the service's own callbacks stand before the program's ---- */

static void on_placement(void *ctx, sy_snapshot *snapshot)
{
    sy_service *service = ctx;
    service->config.control.on_placement(service->config.control.ctx, snapshot);
}

static void on_members(void *ctx, sy_member_kind kind, const sy_member *member, size_t n)
{
    sy_service *service = ctx;
    service->config.control.on_members(service->config.control.ctx, kind, member, n);
}

static void put_hints(sy_strbuf *body, unsigned hints)
{
    static const struct {
        unsigned hint;
        const char *name;
    } known[] = {{SY_HINT_TRACKING, "tracking"},
                 {SY_HINT_NOTIFICATIONS, "notifications"},
                 {SY_HINT_MEMBERS, "members"}};
    const char *separator = "";

    for (size_t i = 0; i < SY_COUNT_OF(known); i++) {
        if ((hints & known[i].hint) == 0) continue;
        sy_strbuf_printf(body, "%s\"%s\"", separator, known[i].name);
        separator = ",";
    }
}

/* What this process has in force, so that "has everyone switched?" is a query. */
static void put_placement(sy_strbuf *body, sy_control *control)
{
    sy_snapshot *snapshot = control == NULL ? NULL : sy_control_snapshot(control);
    sy_placement_news news = {0};
    uint32_t layer, expert;

    if (control != NULL) sy_control_news(control, &news);
    if (snapshot == NULL)
        sy_strbuf_puts(body, "{\"epoch\":0,\"hash\":null,\"refused\":0,\"missing\":0");
    else
        sy_strbuf_printf(
            body, "{\"epoch\":%llu,\"hash\":\"%016llx\",\"refused\":%zu,\"missing\":%zu",
            (unsigned long long)sy_snapshot_epoch(snapshot),
            (unsigned long long)sy_snapshot_hash(snapshot), sy_snapshot_refusals(snapshot),
            sy_snapshot_missing(snapshot, &layer, &expert));
    sy_strbuf_printf(body, ",\"snapshot_us\":%lld,\"taken_us\":%lld,\"hints\":[",
                     (long long)news.build_us, (long long)news.taken_us);
    put_hints(body, news.hints);
    sy_strbuf_puts(body, "]}\n");
    sy_snapshot_unref(snapshot);
}

static int http_get(void *ctx, const char *path, sy_strbuf *body)
{
    sy_service *service = ctx;
    const sy_control_config *own = &service->config.control;

    if (strcmp(path, "/placement") != 0)
        return own->http_get == NULL ? 0 : own->http_get(own->ctx, path, body);
    put_placement(body, atomic_load(&service->control));
    return 1;
}

static void on_signal(void *ctx, int signum)
{
    sy_service *service = ctx;

    pthread_mutex_lock(&service->mutex);
    service->signal = signum;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
}

/* ---- start ---- */

static sy_status open_server(sy_service *service, sy_error *err)
{
    sy_server_config config = service->config.server;

    config.addresses = service->options.listen.item;
    config.n_addresses = service->options.listen.n;
    config.message_bytes_max = (size_t)service->options.message_mb << 20;
    return sy_server_open(&service->server, service->loop, &config, err);
}

/* host:0 becomes host:PORT. */
static void bound_address(char *out, size_t cap, const char *address, int port)
{
    const char *colon = strrchr(address, ':');

    if (port > 0 && colon != NULL && strncmp(address, "unix:", 5) != 0)
        snprintf(out, cap, "%.*s:%d", (int)(colon - address), address, port);
    else
        snprintf(out, cap, "%s", address);
}

static void describe_self(sy_service *service)
{
    sy_member *self = &service->self;

    snprintf(self->name, sizeof(self->name), "%s", service->name);
    if (service->options.advertise != NULL)
        snprintf(self->address, sizeof(self->address), "%s", service->options.advertise);
    else
        bound_address(self->address, sizeof(self->address), service->options.listen.item[0],
                      sy_server_port(service->server, 0));
    snprintf(self->model, sizeof(self->model), "%s", service->config.model);
    snprintf(self->devices, sizeof(self->devices), "%s",
             service->config.devices == NULL ? "" : service->config.devices);
    snprintf(self->version, sizeof(self->version), "%s", SY_VERSION);
    snprintf(self->structure_hash, sizeof(self->structure_hash), "%016llx",
             (unsigned long long)service->config.structure_hash);
    if (service->config.checkpoint_hash != 0)
        snprintf(self->checkpoint_hash, sizeof(self->checkpoint_hash), "%016llx",
                 (unsigned long long)service->config.checkpoint_hash);
    if (service->config.arithmetic != NULL)
        snprintf(self->arithmetic, sizeof(self->arithmetic), "%s", service->config.arithmetic);
    self->pid = getpid();
}

static sy_status open_control(sy_service *service, sy_error *err)
{
    sy_control_config config = service->config.control;
    sy_status st;

    config.redis = service->options.redis;
    config.http = service->options.http;
    config.model = service->config.model;
    config.ctx = service;
    config.on_placement = config.on_placement == NULL ? NULL : on_placement;
    config.on_members = config.on_members == NULL ? NULL : on_members;
    config.http_get = http_get;
    config.ready = on_ready_probe;
    config.on_signal = on_signal;
    sy_control *control = NULL;
    SY_TRY(sy_control_open(&control, &config, err));
    atomic_store(&service->control, control);
    bound_address(service->self.http, sizeof(service->self.http), service->options.http,
                  sy_control_http_port(service->control));
    SY_TRY(sy_control_every(service->control, READY_INTERVAL_US, check_ready, service));
    for (size_t i = 0; i < service->options.listen.n; i++) {
        char address[SY_ADDRESS_BYTES];
        bound_address(address, sizeof(address), service->options.listen.item[i],
                      sy_server_port(service->server, i));
        sy_log(SY_LOG_INFO, "%s of model %s listens on %s, http on %s", service->config.tier,
               service->config.model, address, service->self.http);
    }
out:
    return st;
}

sy_status sy_service_start(sy_service **out, const sy_service_options *options,
                           const sy_service_config *config, sy_error *err)
{
    sy_service *service = calloc(1, sizeof(*service));
    sy_status st;

    *out = NULL;
    if (service == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the service");
    service->options = *options;
    service->config = *config;
    snprintf(service->name, sizeof(service->name), "%s", options->name);
    pthread_mutex_init(&service->mutex, NULL);
    pthread_cond_init(&service->wake, NULL);
    snprintf(service->why, sizeof(service->why), "starting");
    service->ready_metric = sy_metric_gauge("switchyard_ready", "1 when the process serves", NULL);
    *out = service;
    SY_TRY(sy_loop_open(&service->loop, config->tier));
    SY_TRY(open_server(service, err));
    describe_self(service);
    SY_TRY(open_control(service, err));
    return SY_OK;
out:
    *out = NULL;
    sy_service_stop_control(service);
    sy_server_close(service->server, 0);
    service->server = NULL;
    sy_service_close(service);
    return st;
}

/* ---- use and end ---- */

sy_loop *sy_service_loop(sy_service *service)
{
    return service->loop;
}

sy_control *sy_service_control(sy_service *service)
{
    return service->control;
}

sy_server *sy_service_server(sy_service *service)
{
    return service->server;
}

const char *sy_service_name(const sy_service *service)
{
    return service->name;
}

int sy_service_draining(const sy_service *service)
{
    return atomic_load(&service->draining);
}

void sy_service_wait(sy_service *service)
{
    pthread_mutex_lock(&service->mutex);
    while (service->signal == 0) pthread_cond_wait(&service->wake, &service->mutex);
    pthread_mutex_unlock(&service->mutex);
    sy_log(SY_LOG_INFO, "%s: no new work, %zu calls finish within %lld s",
           strsignal(service->signal), sy_server_calls(service->server),
           (long long)service->options.drain_s);
    pthread_mutex_lock(&service->mutex);
    atomic_store(&service->draining, 1);
    pthread_mutex_unlock(&service->mutex);
    announce(service, "draining", 1);
    set_health(service, 0);
    sy_metric_set(service->ready_metric, 0);
    sy_server_close(service->server, service->options.drain_s * 1000000);
    service->server = NULL;
    sy_control_withdraw(service->control);
}

void sy_service_stop_control(sy_service *service)
{
    if (service == NULL) return;
    sy_control_close(service->control);
    service->control = NULL;
}

void sy_service_close(sy_service *service)
{
    if (service == NULL) return;
    sy_service_stop_control(service);
    sy_loop_close(service->loop);
    pthread_cond_destroy(&service->wake);
    pthread_mutex_destroy(&service->mutex);
    free(service);
}
