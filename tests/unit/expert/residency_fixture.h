/* residency_fixture.h - expert nodes in one process: each with a store, loaders, a custody thread
 * and a server of its own, and without Redis: the test says what placement and leases are. */
#ifndef RESIDENCY_FIXTURE_H
#define RESIDENCY_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "expert.h"
#include "sy_clock.h"
#include "synth_model.h"

#define WAIT_US ((int64_t)30 * 1000000) /* generous: only a hang reaches it */

#define wait_until(cond)                                                           \
    do {                                                                           \
        const int64_t give_up_us = sy_clock_us() + WAIT_US;                        \
        while (!(cond)) {                                                          \
            if (sy_clock_us() > give_up_us) fail_msg("still not true: %s", #cond); \
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);               \
        }                                                                          \
    } while (0)

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

/* ---- checkpoints ---- */

static inline sy_model *model_make_as(char *dir, uint64_t seed, sy_dtype dtype)
{
    sy_synth_config config = mixtral_vectors();
    sy_model *made;
    sy_error err = {0};

    config.options.dtype = dtype;
    config.options.recipe = SY_SYNTH_SCALED;
    config.options.seed = seed;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &config, &err), &err);
    must(sy_model_open(&made, dir, "small", &err), &err);
    return made;
}

static inline sy_model *model_make(char *dir, uint64_t seed)
{
    return model_make_as(dir, seed, SY_F32);
}

static inline void model_remove(sy_model *made)
{
    char command[160];

    snprintf(command, sizeof(command), "rm -rf %s", sy_model_dir(made));
    sy_model_close(made);
    assert_int_equal(system(command), 0);
}

/* ---- nodes ---- */

typedef struct host {
    expert self;
    sy_loop *loop;
    sy_server *server;
    char address[64];
} host;

typedef struct host_options {
    const char *name;
    sy_model *model;
    uint32_t n_devices; /* 0: one */
    uint32_t first_gpu; /* of n_gpus, which are the devices if there are any */
    uint32_t n_gpus;
    uint64_t memory_bytes_max, load_bytes_per_s;
    int load_from_peers;
    int64_t linger_us, self_test_us;
} host_options;

static inline void host_listen(host *h)
{
    static const char *const any[] = {"127.0.0.1:0"};
    const sy_method method[] = {
        {.path = "/switchyard.v1.Expert/Compute", .ctx = &h->self, .on_message = compute_message},
        {.path = "/switchyard.v1.Expert/ComputeStream",
         .client_streams = 1,
         .server_streams = 1,
         .ctx = &h->self,
         .on_open = compute_stream_open,
         .on_message = compute_message,
         .on_end = compute_stream_end},
        {.path = "/switchyard.v1.Expert/Watch",
         .server_streams = 1,
         .ctx = &h->self,
         .on_message = watch_message,
         .on_end = watch_end},
        {.path = EXPERT_FETCH_PATH,
         .server_streams = 1,
         .ctx = h->self.fetch_server,
         .on_message = expert_fetch_message,
         .on_end = expert_fetch_end},
    };
    const sy_server_config config = {.addresses = any,
                                     .n_addresses = 1,
                                     .methods = method,
                                     .n_methods = SY_COUNT_OF(method),
                                     .send_queue_max = 4096};
    sy_error err = {0};

    must(sy_loop_open(&h->loop, "test"), &err);
    must(sy_server_open(&h->server, h->loop, &config, &err), &err);
    snprintf(h->address, sizeof(h->address), "127.0.0.1:%d", sy_server_port(h->server, 0));
}

static inline void host_devices(expert *self, const host_options *o)
{
    const uint32_t n = o->n_gpus > 0 ? o->n_gpus : SY_MAX(o->n_devices, 1u);
    sy_device device[EXPERT_DEVICES_MAX] = {0};
    sy_error err = {0};

    for (uint32_t d = 0; d < n; d++) {
        device[d].kind = o->n_gpus > 0 ? SY_DEVICE_CUDA : SY_DEVICE_CPU;
        device[d].number = o->first_gpu + d;
        snprintf(device[d].name, sizeof(device[d].name), "%s:%u", o->n_gpus > 0 ? "cuda" : "cpu",
                 o->first_gpu + d);
    }
    must(devices_open(self, device, n, 1, &err), &err);
}

static inline host *host_open(const host_options *o)
{
    host *h = calloc(1, sizeof(*h));
    expert *self;
    sy_error err = {0};

    assert_non_null(h);
    self = &h->self;
    self->node = o->name;
    self->model = o->model;
    self->desc = sy_model_describe(o->model);
    self->structure_hash = sy_model_structure_hash(o->model);
    must(sy_model_checkpoint_hash(&self->checkpoint_hash, o->model, &err), &err);
    self->kernels = sy_kernels_best();
    self->memory_bytes_max = o->memory_bytes_max;
    self->n_loaders = 2;
    self->load_bytes_per_s = o->load_bytes_per_s;
    /* The pace holds while messages come: here they always do. */
    if (o->load_bytes_per_s != 0) atomic_store(&self->message_us, INT64_MAX / 2);
    self->load_from_peers = o->load_from_peers;
    self->linger_us = o->linger_us;
    self->shares_memory = 1;
    self->self_test_us = o->self_test_us;
    self->device_timeout_us = WAIT_US;
    host_devices(self, o);
    must(sy_shard_store_open(&self->store, o->model, (sy_precision){0},
                             o->n_gpus > 0 ? 0 : o->memory_bytes_max, &err),
         &err);
    must(expert_peers_open(&self->peers, o->model, o->name, &err), &err);
    const expert_fetcher_config taking = {
        .model = o->model, .store = self->store, .kernels = self->kernels, .takes_slots = 1};
    const expert_fetch_server_config giving = {
        .model = o->model, .store = self->store, .offers_slots = 1};
    must(expert_fetcher_open(&self->fetcher, &taking, &err), &err);
    must(expert_fetch_server_open(&self->fetch_server, &giving, &err), &err);
    must(compute_open(self, &err), &err);
    must(residency_open(self, &err), &err);
    must(check_open(self, &err), &err);
    host_listen(h);
    return h;
}

static inline void host_close(host *h)
{
    sy_server_close(h->server, 0);
    check_close(&h->self);
    compute_close(&h->self);
    residency_close(&h->self);
    expert_fetch_server_close(h->self.fetch_server);
    expert_fetcher_close(h->self.fetcher);
    sy_loop_close(h->loop);
    expert_peers_close(h->self.peers);
    sy_shard_store_close(h->self.store);
    devices_close(&h->self);
    free(h);
}

/* A host learns where nodes are. */
static inline void learn_address(host *h, const char *node, const char *address)
{
    sy_member member = {0};

    snprintf(member.name, sizeof(member.name), "%s", node);
    snprintf(member.address, sizeof(member.address), "%s", address);
    expert_peers_members(h->self.peers, &member, 1);
}

static inline void learn_of(host *h, const host *other)
{
    learn_address(h, other->self.node, other->address);
}

static inline void learn_of_nobody(host *h)
{
    expert_peers_members(h->self.peers, NULL, 0);
}

/* ---- placement ---- */

/* pairs: field, value, field, value, ..., NULL. */
static inline sy_snapshot *snapshot_of(const host *h, const char *const *pairs)
{
    sy_placement_entry entry[64];
    sy_snapshot *snapshot;
    sy_error err = {0};
    size_t n = 0;

    for (; pairs[2 * n] != NULL; n++)
        entry[n] = (sy_placement_entry){pairs[2 * n], strlen(pairs[2 * n]), pairs[2 * n + 1],
                                        strlen(pairs[2 * n + 1])};
    must(sy_snapshot_build(&snapshot, NULL, entry, n, &h->self.residency.grid, &err), &err);
    assert_int_equal(sy_snapshot_refusals(snapshot), 0);
    return snapshot;
}

static inline void place_pairs(host *h, const char *const *pairs)
{
    sy_snapshot *snapshot = snapshot_of(h, pairs);

    residency_placement(&h->self, snapshot);
    sy_snapshot_unref(snapshot);
}
#define place(h, ...) place_pairs(h, (const char *const[]){__VA_ARGS__, NULL})

/* ---- what a host says of its shards ---- */

static inline expert_shard shard_of(host *h, uint32_t layer, uint32_t id)
{
    residency_lock(&h->self);
    const expert_shard e = h->self.residency.shard[layer * h->self.residency.experts + id];
    residency_unlock(&h->self);
    return e;
}

static inline uint32_t count_in(host *h, sy_shard_state state)
{
    residency_lock(&h->self);
    const uint32_t n = h->self.residency.n_in_state[state];
    residency_unlock(&h->self);
    return n;
}

static inline int is_in_memory(host *h, uint32_t layer, uint32_t id)
{
    const sy_shard *shard = sy_shard_get(h->self.store, layer, id);

    sy_shard_put(h->self.store, shard);
    return shard != NULL;
}

static inline int is_ready(host *h, const char *why)
{
    sy_strbuf text;

    sy_strbuf_init(&text);
    const int ready = residency_ready(&h->self, &text);
    if (!ready && why != NULL && strstr(text.data, why) == NULL)
        fail_msg("not ready: '%s', wanted '%s'", text.data, why);
    sy_strbuf_free(&text);
    return ready;
}

static inline uint64_t bytes_of_a_shard(host *h)
{
    return shard_of(h, 0, 0).bytes;
}

#endif
