/* fake_nodes.h - expert nodes and routers that only exist as servers: each says on its Watch stream
 * what the test tells it to say. The test's thread plays the control thread. */
#ifndef FAKE_NODES_H
#define FAKE_NODES_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agg_peers.h"
#include "sy_clock.h"
#include "sy_metrics.h"

enum { FAKE_SHARDS_MAX = 512, FAKE_WATCHES_MAX = 16 };

typedef struct fake_node {
    char calls_itself[SY_NODE_BYTES], address[SY_ADDRESS_BYTES];
    sy_server *server;
    pthread_mutex_t mutex; /* guards all below */
    sy_node_state state;   /* what a new watch is told: shards are those of `shard` */
    sy_shard_info shard[FAKE_SHARDS_MAX];
    sy_call *watch[FAKE_WATCHES_MAX];
    size_t n_watches;
    int stopping;
} fake_node;

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static inline void set_text(char *out, size_t cap, const char *text)
{
    assert_true(strlen(text) < cap);
    memcpy(out, text, strlen(text) + 1);
}

static inline void fake_tell_call(sy_call *call, const sy_node_state *state)
{
    sy_frame frame;

    assert_int_equal(sy_wire_node_state_encode(&frame, state, NULL), SY_OK);
    (void)sy_call_send(call, &frame); /* it may have ended */
}

static inline void fake_on_watch(void *ctx, sy_call *call, sy_msg *msg)
{
    fake_node *self = ctx;

    (void)msg;
    pthread_mutex_lock(&self->mutex);
    assert_true(self->n_watches < FAKE_WATCHES_MAX);
    if (!self->stopping) {
        self->watch[self->n_watches++] = sy_call_ref(call);
        fake_tell_call(call, &self->state);
    }
    pthread_mutex_unlock(&self->mutex);
}

static inline void fake_on_message(void *ctx, sy_call *call, sy_msg *msg)
{
    (void)ctx;
    (void)call;
    (void)msg;
}

/* Tells all who watch. */
static inline void fake_tell(fake_node *self, const sy_node_state *state)
{
    pthread_mutex_lock(&self->mutex);
    for (size_t i = 0; i < self->n_watches; i++)
        if (!sy_call_ended(self->watch[i])) fake_tell_call(self->watch[i], state);
    pthread_mutex_unlock(&self->mutex);
}

/* Around whatever changes in a fake that runs. */
static inline void fake_lock(fake_node *self)
{
    pthread_mutex_lock(&self->mutex);
}
static inline void fake_unlock(fake_node *self)
{
    pthread_mutex_unlock(&self->mutex);
}

/* Tells the whole state again. */
static inline void fake_tell_all(fake_node *self)
{
    fake_tell(self, &self->state);
}

/* All shards resident, hashes of the shards 0. */
static inline void fake_hold_all(fake_node *self, const sy_model *model)
{
    const sy_model_desc *desc = sy_model_describe(model);

    assert_true(desc->n_layers * desc->n_experts <= FAKE_SHARDS_MAX);
    self->state = (sy_node_state){.node = self->calls_itself,
                                  .model = sy_model_name(model),
                                  .full = 1,
                                  .n_shards = desc->n_layers * desc->n_experts,
                                  .shard = self->shard,
                                  .arithmetic = SY_ARITHMETIC,
                                  .build = "",
                                  .structure_hash = sy_model_structure_hash(model)};
    for (uint32_t i = 0; i < self->state.n_shards; i++)
        self->shard[i] = (sy_shard_info){i / desc->n_experts, i % desc->n_experts,
                                         SY_SHARD_RESIDENT, "cpu:0", .reason = ""};
}

static inline void fake_start(fake_node *self, sy_loop *loop, const char *name, const char *address)
{
    const char *at = self->address;
    const sy_method methods[] = {{.path = "/switchyard.v1.Router/RouteStream",
                                  .client_streams = 1,
                                  .server_streams = 1,
                                  .on_message = fake_on_message},
                                 {.path = "/switchyard.v1.Expert/ComputeStream",
                                  .client_streams = 1,
                                  .server_streams = 1,
                                  .on_message = fake_on_message},
                                 {.path = "/switchyard.v1.Expert/Watch",
                                  .server_streams = 1,
                                  .ctx = self,
                                  .on_message = fake_on_watch}};
    const sy_server_config c = {
        .addresses = &at, .n_addresses = 1, .methods = methods, .n_methods = SY_COUNT_OF(methods)};
    sy_error err = {0};

    set_text(self->calls_itself, sizeof(self->calls_itself), name);
    set_text(self->address, sizeof(self->address), address);
    pthread_mutex_init(&self->mutex, NULL);
    self->stopping = 0;
    must(sy_server_open(&self->server, loop, &c, &err), &err);
}

static inline void fake_stop(fake_node *self)
{
    if (self->server == NULL) return;
    pthread_mutex_lock(&self->mutex);
    self->stopping = 1;
    for (size_t i = 0; i < self->n_watches; i++) sy_call_unref(self->watch[i]);
    self->n_watches = 0;
    pthread_mutex_unlock(&self->mutex);
    sy_server_close(self->server, 0);
    self->server = NULL;
    pthread_mutex_destroy(&self->mutex);
}

static inline sy_member fake_member(const fake_node *self, const char *name, const char *model)
{
    sy_member member = {0};

    set_text(member.name, sizeof(member.name), name);
    set_text(member.address, sizeof(member.address), self->address);
    set_text(member.model, sizeof(member.model), model);
    return member;
}

/* Sweeps until the condition holds: a condition reads the view it is given. */
#define WAIT_UNTIL(peers, view, condition)                                                 \
    do {                                                                                   \
        const int64_t until_us_ = sy_clock_us() + 120 * 1000000LL;                         \
        for (int holds_ = 0; !holds_;) {                                                   \
            agg_peers_sweep(peers);                                                        \
            agg_view *view = agg_peers_view(peers);                                        \
            holds_ = (condition) ? 1 : 0;                                                  \
            agg_view_unref(view);                                                          \
            if (!holds_ && sy_clock_us() > until_us_)                                      \
                fail_msg("%s:%d: does not come true: %s", __FILE__, __LINE__, #condition); \
            if (!holds_) usleep(1000);                                                     \
        }                                                                                  \
    } while (0)

static inline const agg_node *node_named(const agg_view *view, const char *name)
{
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (strcmp(view->node[i]->name, name) == 0) return view->node[i];
    return NULL;
}

static inline double gauge(const char *name)
{
    return sy_metric_value(sy_metric_gauge(name, "", NULL));
}

/* Counted a moment after it has taken effect. */
static inline void wait_gauge(agg_peers *peers, const char *name, double value)
{
    WAIT_UNTIL(peers, view, view != NULL && gauge(name) == value);
}

static inline void place_all(agg_peers *peers, const sy_model *model, const char *value)
{
    const sy_model_desc *desc = sy_model_describe(model);
    const sy_grid grid = sy_grid_of(desc->n_layers, desc->n_experts, desc->layer, SY_LAYER_DENSE);
    const sy_placement_entry entry = {"*/*", 3, value, strlen(value)};
    sy_snapshot *snapshot;
    sy_error err = {0};

    must(sy_snapshot_build(&snapshot, NULL, &entry, 1, &grid, &err), &err);
    agg_peers_placement(peers, snapshot);
    sy_snapshot_unref(snapshot);
}

#endif
