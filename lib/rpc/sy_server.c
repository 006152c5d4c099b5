/* sy_server.c - owns a gRPC server: its ports, the calls that run on it, its limits, and how it
 * ends. Methods are looked up here and not registered with gRPC: one small set of outstanding
 * requests serves them all (Debian's gRPC searches its outstanding tags one by one), and unknown
 * methods get their answer. */
#include "sy_rpc_internal.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_ARMED        8 /* calls that may arrive in one turn; more wait inside gRPC */
#define INTERNAL_METHODS      (RPC_HEALTH_METHODS + RPC_REFLECTION_METHODS)
#define INTERNAL_CALLS_EXTRA  64 /* past calls_max: a busy server must still answer its probes */
#define CALLS_DEFAULT         1024
#define SEND_QUEUE_DEFAULT    256
#define SEND_STALL_US_DEFAULT ((int64_t)60 * 1000000)
#define LINGER_US             100000 /* for clients to read their last replies */
#define GOODBYE_US            200000 /* for connections to end by themselves */
#define HANDSHAKE_TIMEOUT_MS  10000
#define KEEPALIVE_MS          30000 /* finds clients whose machine is gone */
#define PING_INTERVAL_MIN_MS  10    /* below every client's keepalive, or gRPC hangs up on it */

typedef struct request {
    rpc_tag tag;
    sy_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
} request;

struct sy_server {
    sy_loop *loop;
    grpc_server *grpc;
    sy_method *methods; /* the configured ones, then the internal ones */
    size_t n_methods, n_own_methods;
    size_t calls_max, send_queue_max, message_bytes_max;
    int64_t send_stall_us;
    size_t (*error_details)(const sy_error *err, void *out, size_t cap);
    int *ports;
    size_t n_ports;
    rpc_health *health;
    rpc_reflection *reflection;
    _Atomic size_t n_calls;

    /* Loop only. */
    request requests[REQUESTS_ARMED];
    size_t n_armed;
    sy_call *calls;
    enum { SERVING, DRAINING, LINGERING, GOODBYE } phase;
    rpc_timer stall_timer, close_timer;
    rpc_tag shutdown_tag;
    int shutdown_done;
    int64_t drain_us;
    rpc_post start_post, close_post;

    pthread_mutex_t mutex; /* hands the end of closing to the closer */
    pthread_cond_t changed;
    int quiet;
};

static const sy_method reject_method = {.path = ""};

/* ---- closing; loop only ----
 * Draining: new calls are refused, running ones finish, or are cut when the time is up. Lingering:
 * all are answered; the connections stay a moment, because a client whose write fails drops what it
 * has not read yet, the last replies among it. Goodbye: gRPC closes listeners and connections; one
 * that ignores GOAWAY is cut. */

static void tell_quiet(sy_server *server)
{
    pthread_mutex_lock(&server->mutex);
    server->quiet = 1;
    pthread_cond_signal(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

static void check_quiet(sy_server *server)
{
    if (server->phase != GOODBYE || server->calls != NULL) return;
    if (!server->shutdown_done || server->n_armed > 0) return;
    rpc_timer_stop(&server->close_timer);
    tell_quiet(server);
}

static void on_shutdown(rpc_tag *tag, int ok)
{
    sy_server *server = RPC_OF(tag, sy_server, shutdown_tag);

    (void)ok;
    server->shutdown_done = 1;
    check_quiet(server);
}

static void on_goodbye_over(rpc_timer *timer)
{
    sy_server *server = RPC_OF(timer, sy_server, close_timer);

    grpc_server_cancel_all_calls(server->grpc); /* and cuts every connection */
}

static void say_goodbye(sy_server *server, int64_t patience_us)
{
    server->phase = GOODBYE;
    server->shutdown_tag.fn = on_shutdown;
    grpc_server_shutdown_and_notify(server->grpc, rpc_loop_queue(server->loop),
                                    &server->shutdown_tag);
    rpc_timer_start(server->loop, &server->close_timer, sy_clock_us() + patience_us,
                    on_goodbye_over);
}

static void on_linger_over(rpc_timer *timer)
{
    say_goodbye(RPC_OF(timer, sy_server, close_timer), GOODBYE_US);
}

static void on_drain_over(rpc_timer *timer)
{
    say_goodbye(RPC_OF(timer, sy_server, close_timer), 0);
}

static void check_drained(sy_server *server)
{
    if (server->phase != DRAINING || atomic_load(&server->n_calls) > 0) return;
    server->phase = LINGERING;
    rpc_timer_start(server->loop, &server->close_timer,
                    SY_MIN(sy_clock_us() + LINGER_US, server->close_timer.due_us), on_linger_over);
}

static void begin_close(void *arg)
{
    sy_server *server = arg;
    sy_call *next;

    server->phase = DRAINING;
    rpc_timer_stop(&server->stall_timer);
    for (sy_call *call = server->calls; call != NULL; call = next) {
        next = call->next;
        rpc_call_drain(call);
    }
    rpc_timer_start(server->loop, &server->close_timer, sy_clock_us() + server->drain_us,
                    on_drain_over);
    check_drained(server);
}

void rpc_server_call_ended(sy_server *server, sy_call *call)
{
    *call->link = call->next;
    if (call->next != NULL) call->next->link = call->link;
    if (call->counted) atomic_fetch_sub(&server->n_calls, 1);
    sy_call_unref(call);
    check_drained(server);
    check_quiet(server);
}

/* ---- arrivals; loop only ---- */

static int64_t to_monotonic_us(gpr_timespec when)
{
    if (gpr_time_cmp(when, gpr_inf_future(when.clock_type)) == 0) return SY_NEVER_US;
    when = gpr_convert_clock_type(when, GPR_CLOCK_MONOTONIC);
    if (when.tv_sec > INT64_MAX / 1000000 - 1) return SY_NEVER_US;
    return (int64_t)when.tv_sec * 1000000 + when.tv_nsec / 1000;
}

static const sy_method *find_method(const sy_server *server, grpc_slice path)
{
    for (size_t i = 0; i < server->n_methods; i++) {
        if (grpc_slice_str_cmp(path, server->methods[i].path) == 0) return &server->methods[i];
    }
    return NULL;
}

/* SY_OK when the call may run. */
static sy_status admit(const sy_server *server, const sy_method *method, grpc_slice path,
                       sy_error *err)
{
    const size_t n_calls = atomic_load(&server->n_calls);

    sy_error_clear(err);
    if (server->phase != SERVING)
        return sy_error_set(err, SY_EUNAVAILABLE, "the server is shutting down");
    if (method == NULL) {
        return sy_error_set(err, SY_EUNIMPLEMENTED, "no method %.*s here",
                            (int)SY_MIN(GRPC_SLICE_LENGTH(path), 200), GRPC_SLICE_START_PTR(path));
    }
    if (n_calls < server->calls_max) return SY_OK;
    if (method >= server->methods + server->n_own_methods &&
        n_calls < server->calls_max + INTERNAL_CALLS_EXTRA) {
        return SY_OK;
    }
    return sy_error_set(err, SY_ELIMIT,
                        "the server already runs %zu calls, its limit; try again later",
                        server->calls_max);
}

static void arrive(sy_server *server, const request *req)
{
    const sy_method *method = find_method(server, req->details.method);
    sy_error err;
    const sy_status refused = admit(server, method, req->details.method, &err);
    sy_call *call = rpc_call_new(&(rpc_call_setup){
        .server = server,
        .loop = server->loop,
        .method = refused == SY_OK ? method : &reject_method,
        .grpc = req->call,
        .deadline_us = to_monotonic_us(req->details.deadline),
        .send_queue_max = server->send_queue_max,
        .error_details = server->error_details,
    });

    if (call == NULL) return;
    call->next = server->calls;
    call->link = &server->calls;
    if (call->next != NULL) call->next->link = &call->next;
    server->calls = call;
    if (refused != SY_OK) {
        rpc_call_reject(call, &err);
        return;
    }
    call->counted = 1;
    atomic_fetch_add(&server->n_calls, 1);
    rpc_call_start(call);
}

static void arm_request(request *req)
{
    sy_server *server = req->server;
    grpc_completion_queue *queue = rpc_loop_queue(server->loop);

    if (server->phase == GOODBYE) return;
    grpc_call_details_init(&req->details);
    grpc_metadata_array_init(&req->metadata);
    server->n_armed++;
    if (grpc_server_request_call(server->grpc, &req->call, &req->details, &req->metadata, queue,
                                 queue, &req->tag) == GRPC_CALL_OK) {
        return;
    }
    server->n_armed--;
    grpc_metadata_array_destroy(&req->metadata);
    grpc_call_details_destroy(&req->details);
}

static void on_request(rpc_tag *tag, int ok)
{
    request *req = RPC_OF(tag, request, tag);
    sy_server *server = req->server;

    server->n_armed--;
    if (ok) arrive(server, req); /* not when the server shuts down */
    grpc_metadata_array_destroy(&req->metadata);
    grpc_call_details_destroy(&req->details);
    arm_request(req);
    check_quiet(server);
}

/* ---- stalls; loop only ---- */

static void on_stall_timer(rpc_timer *timer)
{
    sy_server *server = RPC_OF(timer, sy_server, stall_timer);
    const int64_t now_us = sy_clock_us();

    for (sy_call *call = server->calls; call != NULL; call = call->next) {
        rpc_call_check_stall(call, now_us, server->send_stall_us);
    }
    /* One sweep for all calls, four times a limit: no timer is touched when a message is sent. */
    rpc_timer_start(server->loop, timer, now_us + server->send_stall_us / 4 + 1, on_stall_timer);
}

static void begin_serving(void *arg)
{
    sy_server *server = arg;

    for (size_t i = 0; i < REQUESTS_ARMED; i++) {
        server->requests[i].tag.fn = on_request;
        server->requests[i].server = server;
        arm_request(&server->requests[i]);
    }
    on_stall_timer(&server->stall_timer);
}

/* ---- opening ---- */

static sy_status copy_methods(sy_server *server, const sy_server_config *config)
{
    server->methods = calloc(config->n_methods + INTERNAL_METHODS, sizeof(*server->methods));
    if (server->methods == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < config->n_methods; i++) {
        SY_ASSERT(config->methods[i].path != NULL && config->methods[i].on_message != NULL);
        server->methods[i] = config->methods[i];
        server->methods[i].path = strdup(config->methods[i].path);
        if (server->methods[i].path == NULL) return SY_ENOMEM;
        server->n_own_methods++;
    }
    rpc_health_methods(server->health, server->methods + server->n_own_methods);
    rpc_reflection_methods(server->reflection,
                           server->methods + server->n_own_methods + RPC_HEALTH_METHODS);
    server->n_methods = server->n_own_methods + INTERNAL_METHODS;
    return SY_OK;
}

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER,
                      .key = (char *)(uintptr_t)key, /* copied by gRPC */
                      .value.integer = value};
}

static grpc_server *create_server(const sy_server *server)
{
    grpc_arg arg[] = {
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), /* a port in use is an error, not a shared port */
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                (int)SY_MIN(server->message_bytes_max, (size_t)INT_MAX)),
        int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
        int_arg(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
    };
    const grpc_channel_args args = {.num_args = SY_COUNT_OF(arg), .args = arg};

    return grpc_server_create(&args, NULL);
}

static sy_status add_ports(sy_server *server, const sy_server_config *config, sy_error *err)
{
    grpc_server_credentials *insecure = grpc_insecure_server_credentials_create();
    sy_status st = SY_OK;
    rpc_address address;

    for (size_t i = 0; i < config->n_addresses && st == SY_OK; i++) {
        const char *text = config->addresses[i];
        int port;

        st = rpc_address_parse(&address, text, err);
        if (st == SY_OK) st = rpc_address_claim(&address, text, err);
        if (st != SY_OK) break;
        port = grpc_server_add_http2_port(server->grpc, address.listen, insecure);
        if (port == 0) st = rpc_address_explain(&address, text, err);
        server->ports[i] = address.is_unix ? 0 : port;
    }
    grpc_server_credentials_release(insecure);
    return st;
}

static void server_free(sy_server *server)
{
    if (server->grpc != NULL) grpc_server_destroy(server->grpc);
    for (size_t i = 0; i < server->n_own_methods; i++)
        free((char *)(uintptr_t)server->methods[i].path);
    free(server->methods);
    rpc_health_free(server->health);
    rpc_reflection_free(server->reflection);
    free(server->ports);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

static sy_server *server_new(sy_loop *loop, const sy_server_config *config)
{
    sy_server *server = calloc(1, sizeof(*server));

    if (server == NULL) return NULL;
    pthread_mutex_init(&server->mutex, NULL);
    pthread_cond_init(&server->changed, NULL);
    server->loop = loop;
    server->calls_max = config->calls_max != 0 ? config->calls_max : CALLS_DEFAULT;
    server->send_queue_max =
        config->send_queue_max != 0 ? config->send_queue_max : SEND_QUEUE_DEFAULT;
    server->message_bytes_max =
        config->message_bytes_max != 0 ? config->message_bytes_max : RPC_MESSAGE_BYTES_DEFAULT;
    server->send_stall_us =
        config->send_stall_us > 0 ? config->send_stall_us : SEND_STALL_US_DEFAULT;
    server->error_details = config->error_details;
    server->ports = calloc(SY_MAX(config->n_addresses, 1), sizeof(*server->ports));
    server->n_ports = config->n_addresses;
    return server;
}

sy_status sy_server_open(sy_server **out, sy_loop *loop, const sy_server_config *config,
                         sy_error *err)
{
    sy_server *server = server_new(loop, config);
    sy_status st = SY_ENOMEM;

    *out = NULL;
    sy_error_clear(err);
    if (server == NULL || server->ports == NULL) goto out;
    SY_TRY(rpc_health_open(&server->health));
    SY_TRY(
        rpc_reflection_open(&server->reflection, config->service_names, config->n_service_names));
    SY_TRY(copy_methods(server, config));
    server->grpc = create_server(server);
    grpc_server_register_completion_queue(server->grpc, rpc_loop_queue(loop), NULL);
    st = add_ports(server, config, err);
    if (st != SY_OK) {
        sy_server_close(server, 0);
        return st;
    }
    grpc_server_start(server->grpc);
    rpc_loop_post(loop, &server->start_post, begin_serving, server);
    *out = server;
    return SY_OK;
out:
    if (server != NULL) server_free(server);
    return sy_error_set(err, st, "no memory for a server");
}

/* ---- the rest ---- */

int sy_server_port(const sy_server *server, size_t address)
{
    SY_ASSERT(address < server->n_ports);
    return server->ports[address];
}

void sy_server_set_health(sy_server *server, const char *service, int serving)
{
    rpc_health_set(server->health, service, serving);
}

size_t sy_server_calls(const sy_server *server)
{
    return atomic_load(&server->n_calls);
}

void sy_server_close(sy_server *server, int64_t drain_us)
{
    if (server == NULL) return;
    SY_ASSERT(!rpc_loop_is_current(server->loop));
    server->drain_us = SY_MIN(SY_MAX(drain_us, 0), INT64_MAX / 4);
    rpc_loop_post(server->loop, &server->close_post, begin_close, server);
    pthread_mutex_lock(&server->mutex);
    while (!server->quiet) pthread_cond_wait(&server->changed, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
    server_free(server);
}
