/* sy_health.c - grpc.health.v1: what is serving, and who watches it. The mutex is taken before a
 * call's, never after. */
#include "sy_rpc_internal.h"

#include <stdlib.h>
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

#define REQUEST_BYTES_MAX 1024 /* a service's name, and nothing else */

typedef struct service {
    struct service *next;
    int serving;
    char name[]; /* "" is the server as a whole */
} service;

typedef struct watcher { /* a Watch call's user pointer */
    struct watcher *next, **link;
    sy_call *call; /* borrowed: ends with on_end */
    char name[];
} watcher;

struct rpc_health {
    pthread_mutex_t mutex;
    service *services;
    watcher *watchers;
};

static service *find(const rpc_health *health, const char *name)
{
    for (service *s = health->services; s != NULL; s = s->next) {
        if (strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}

/* Under the mutex. NULL: no memory. */
static service *find_or_add(rpc_health *health, const char *name)
{
    const size_t name_bytes = strlen(name) + 1;
    service *s = find(health, name);

    if (s != NULL) return s;
    s = malloc(sizeof(*s) + name_bytes);
    if (s == NULL) return NULL;
    memcpy(s->name, name, name_bytes);
    s->serving = 0;
    s->next = health->services;
    health->services = s;
    return s;
}

static Grpc__Health__V1__HealthCheckResponse__ServingStatus status_of(const service *s)
{
    if (s == NULL) return SERVICE_UNKNOWN;
    return s->serving ? SERVING : NOT_SERVING;
}

static sy_status answer(sy_call *call, const service *s)
{
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    sy_frame frame;
    sy_status st;

    reply.status = status_of(s);
    st = rpc_frame_pack(&frame, &reply.base);
    return st == SY_OK ? sy_call_send(call, &frame) : st;
}

static void fail(sy_call *call, sy_status status, const char *text, const char *name)
{
    sy_error err;

    sy_error_clear(&err);
    sy_error_set(&err, status, "%s%s", text, name);
    sy_call_finish(call, &err);
}

/* The caller frees what it gets; NULL: the call has been failed. */
static Grpc__Health__V1__HealthCheckRequest *parse(sy_call *call, sy_msg *msg)
{
    Grpc__Health__V1__HealthCheckRequest *request = NULL;
    uint8_t bytes[REQUEST_BYTES_MAX];
    const size_t n = rpc_msg_copy(msg, bytes, sizeof(bytes));

    if (n <= sizeof(bytes))
        request = grpc__health__v1__health_check_request__unpack(NULL, n, bytes);
    if (request == NULL)
        fail(call, SY_EINVAL, "not a HealthCheckRequest of at most 1024 bytes", "");
    return request;
}

static void on_check(void *ctx, sy_call *call, sy_msg *msg)
{
    rpc_health *health = ctx;
    Grpc__Health__V1__HealthCheckRequest *request = parse(call, msg);
    const service *s;
    sy_status st = SY_ENOTFOUND;

    if (request == NULL) return;
    pthread_mutex_lock(&health->mutex);
    s = find(health, request->service);
    if (s != NULL) st = answer(call, s);
    pthread_mutex_unlock(&health->mutex);
    if (st == SY_OK) {
        sy_call_finish(call, NULL);
    } else {
        fail(call, st, st == SY_ENOTFOUND ? "unknown service " : "cannot answer for ",
             request->service);
    }
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
}

static watcher *watcher_new(sy_call *call, const char *name)
{
    const size_t name_bytes = strlen(name) + 1;
    watcher *w = malloc(sizeof(*w) + name_bytes);

    if (w == NULL) return NULL;
    memcpy(w->name, name, name_bytes);
    w->call = call;
    return w;
}

static void on_watch(void *ctx, sy_call *call, sy_msg *msg)
{
    rpc_health *health = ctx;
    Grpc__Health__V1__HealthCheckRequest *request = parse(call, msg);
    watcher *w;

    if (request == NULL) return;
    w = watcher_new(call, request->service);
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    if (w == NULL) {
        fail(call, SY_ENOMEM, "no memory for a watcher", "");
        return;
    }
    sy_call_set_user(call, w);
    pthread_mutex_lock(&health->mutex);
    w->next = health->watchers;
    w->link = &health->watchers;
    if (w->next != NULL) w->next->link = &w->next;
    health->watchers = w;
    (void)answer(call, find(health, w->name)); /* an ended call is taken from the list by on_end */
    pthread_mutex_unlock(&health->mutex);
}

static void on_watch_end(void *ctx, sy_call *call, int cancelled)
{
    rpc_health *health = ctx;
    watcher *w = sy_call_user(call);

    (void)cancelled;
    if (w == NULL) return; /* its request never came */
    pthread_mutex_lock(&health->mutex);
    *w->link = w->next;
    if (w->next != NULL) w->next->link = w->link;
    pthread_mutex_unlock(&health->mutex);
    free(w);
}

void rpc_health_set(rpc_health *health, const char *name, int serving)
{
    service *s;
    int changed;

    pthread_mutex_lock(&health->mutex);
    changed = status_of(find(health, name)) != (serving ? SERVING : NOT_SERVING);
    s = find_or_add(health, name);
    if (s != NULL && changed) {
        s->serving = serving != 0;
        for (watcher *w = health->watchers; w != NULL; w = w->next) {
            if (strcmp(w->name, name) == 0) (void)answer(w->call, s);
        }
    }
    pthread_mutex_unlock(&health->mutex);
}

void rpc_health_methods(rpc_health *health, sy_method *out)
{
    out[0] =
        (sy_method){.path = "/grpc.health.v1.Health/Check", .ctx = health, .on_message = on_check};
    out[1] = (sy_method){.path = "/grpc.health.v1.Health/Watch",
                         .server_streams = 1,
                         .ctx = health,
                         .on_message = on_watch,
                         .on_end = on_watch_end};
}

sy_status rpc_health_open(rpc_health **out)
{
    rpc_health *health = calloc(1, sizeof(*health));

    *out = NULL;
    if (health == NULL) return SY_ENOMEM;
    pthread_mutex_init(&health->mutex, NULL);
    if (find_or_add(health, "") == NULL) {
        rpc_health_free(health);
        return SY_ENOMEM;
    }
    *out = health;
    return SY_OK;
}

void rpc_health_free(rpc_health *health)
{
    service *next;

    if (health == NULL) return;
    for (service *s = health->services; s != NULL; s = next) {
        next = s->next;
        free(s);
    }
    pthread_mutex_destroy(&health->mutex);
    free(health);
}
