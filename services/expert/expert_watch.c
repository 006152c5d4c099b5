/* expert_watch.c - who is told what this node holds: watchers get the full state once, then every
 * change in order, all under the residency's mutex, so that a state and the placement hash beside
 * it belong together. GET /shards is the same for people. */
#include <stdlib.h>
#include <string.h>

#include "expert.h"
#include "sy_log.h"
#include "sy_precision_text.h"

/* ---- what there is to say; mutex held ---- */

static sy_shard_info info_of(const expert *self, uint32_t i)
{
    const residency *r = &self->residency;
    const expert_shard *e = &r->shard[i];

    return (sy_shard_info){.layer = i / r->experts,
                           .expert = i % r->experts,
                           .state = e->life.state,
                           .device = e->life.state == SY_SHARD_ABSENT
                                         ? ""
                                         : self->device[atomic_load(&r->device[i])].name,
                           .reason = e->reason,
                           .content_hash = e->identity.content,
                           .probe_hash = e->identity.probe,
                           .loaded_percent = e->percent};
}

static uint32_t messages_here(const expert *self)
{
    uint32_t n = 0;

    for (uint32_t d = 0; d < self->n_devices; d++) n += atomic_load(&self->device[d].depth);
    return n;
}

/* What the device holds, and could hold as things are: GPUs have their own memory; CPU devices
 * share one limit, so what the others hold is not there for it. */
static void memory_of(const expert *self, uint32_t d, sy_device_load *load)
{
    const residency *r = &self->residency;
    const uint64_t max = self->memory_bytes_max;
    const sy_shard_home *home = self->device[d].home;
    uint64_t others = 0;

    for (uint32_t i = 0; i < self->n_devices; i++) others += i == d ? 0 : r->device_bytes[i];
    load->memory_bytes = home != NULL ? sy_shard_home_bytes(home) : r->device_bytes[d];
    if (home != NULL)
        load->memory_max_bytes = sy_shard_home_bytes_max(home);
    else
        load->memory_max_bytes = max == 0 ? 0 : SY_MAX(max - SY_MIN(max, others), (uint64_t)1);
}

/* Of the host and of GPUs. */
static uint64_t memory_here(const expert *self)
{
    uint64_t bytes = sy_shard_store_bytes(self->store);

    for (uint32_t d = 0; d < self->n_devices; d++)
        if (self->device[d].home != NULL) bytes += sy_shard_home_bytes(self->device[d].home);
    return bytes;
}

/* load: [n_devices]. */
static void loads_of(const expert *self, sy_device_load *load)
{
    for (uint32_t d = 0; d < self->n_devices; d++) {
        load[d] = (sy_device_load){
            .device = self->device[d].name,
            .queue_length = atomic_load(&self->device[d].depth),
            .service_us = atomic_load(&self->device[d].service_us),
        };
        memory_of(self, d, &load[d]);
    }
}

/* What every message says. */
static sy_node_state state_of(const expert *self)
{
    return (sy_node_state){.node = self->node,
                           .model = sy_model_name(self->model),
                           .queue_length = messages_here(self),
                           .memory_bytes = memory_here(self),
                           .placement_hash = self->residency.placement_hash,
                           .structure_hash = self->structure_hash,
                           .checkpoint_hash = self->checkpoint_hash,
                           .arithmetic = self->arithmetic,
                           .build = SY_VERSION};
}

/* ---- watchers; mutex held ---- */

static sy_status send_state(sy_call *call, const sy_node_state *state)
{
    sy_frame frame;
    sy_status st = sy_wire_node_state_encode(&frame, state, NULL);

    return st == SY_OK ? sy_call_send(call, &frame) : st;
}

static void drop_watcher(residency *r, uint32_t i)
{
    sy_call_unref(r->watcher[i]);
    r->watcher[i] = r->watcher[--r->n_watchers];
}

static void send_to_all(expert *self, const sy_node_state *state)
{
    residency *r = &self->residency;

    for (uint32_t i = r->n_watchers; i-- > 0;) {
        if (send_state(r->watcher[i], state) == SY_OK) continue;
        sy_service_refuse(r->watcher[i], SY_ELIMIT,
                          "the watcher does not read"); /* it will come back and ask for all */
        drop_watcher(r, i);
    }
}

void watch_changed(expert *self, uint32_t shard)
{
    residency *r = &self->residency;

    if (r->shard[shard].changed) return;
    r->shard[shard].changed = 1;
    r->changed[r->n_changed++] = shard;
}

static void set_gauges(expert *self)
{
    const residency *r = &self->residency;

    sy_metric_set(self->resident, sy_shard_store_count(self->store));
    sy_metric_set(self->memory, (double)memory_here(self));
    sy_metric_set(self->lingering, r->n_in_state[SY_SHARD_LINGERING]);
    sy_metric_set(self->failed, r->n_in_state[SY_SHARD_FAILED]);
    sy_metric_set(self->loading,
                  r->n_in_state[SY_SHARD_LOADING] + r->n_in_state[SY_SHARD_VERIFYING]);
}

void watch_flush(expert *self)
{
    residency *r = &self->residency;
    sy_node_state state;
    sy_shard_info *info;

    if (r->n_changed == 0 && r->told_hash == r->placement_hash) return;
    set_gauges(self);
    state = state_of(self);
    info = r->n_watchers == 0 ? NULL : calloc(SY_MAX(r->n_changed, 1u), sizeof(*info));
    for (uint32_t i = 0; i < r->n_changed; i++) {
        r->shard[r->changed[i]].changed = 0;
        if (info != NULL) info[i] = info_of(self, r->changed[i]);
    }
    state.n_shards = r->n_changed;
    state.shard = info;
    r->n_changed = 0;
    r->told_hash = r->placement_hash;
    if (info != NULL) send_to_all(self, &state);
    /* Who missed a change must not stay: without memory all of them begin again. */
    while (info == NULL && r->n_watchers > 0) {
        sy_service_refuse(r->watcher[0], SY_ENOMEM, "no memory for the changes");
        drop_watcher(r, 0);
    }
    free(info);
}

/* Everything that is not absent. */
static sy_status send_full(expert *self, sy_call *call)
{
    residency *r = &self->residency;
    sy_shard_info *info = calloc(r->n_shards, sizeof(*info));
    sy_device_load load[EXPERT_DEVICES_MAX];
    sy_node_state state = state_of(self);
    sy_status st;

    if (info == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < r->n_shards; i++)
        if (r->shard[i].life.state != SY_SHARD_ABSENT) info[state.n_shards++] = info_of(self, i);
    loads_of(self, load);
    state.full = 1;
    state.shard = info;
    state.n_devices = self->n_devices;
    state.device = load;
    st = send_state(call, &state);
    free(info);
    return st;
}

void watch_message(void *ctx, sy_call *call, sy_msg *msg)
{
    expert *self = ctx;
    residency *r = &self->residency;
    sy_model_query query;
    sy_arena arena;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    sy_error_clear(&err);
    sy_arena_init(&arena, 1 << 16);
    sy_status st = sy_wire_model_query_decode(&query, &arena, iov, n, &err);
    if (st == SY_OK) st = sy_service_check_model(sy_model_name(self->model), query.model, &err);
    sy_arena_free(&arena);
    residency_lock(self);
    if (st == SY_OK && r->n_watchers == EXPERT_WATCHERS_MAX)
        st = sy_error_set(&err, SY_ELIMIT, "%d watchers are the limit", EXPERT_WATCHERS_MAX);
    if (st == SY_OK && send_full(self, call) != SY_OK)
        st = sy_error_set(&err, SY_ENOMEM, "no memory for the state");
    if (st == SY_OK) r->watcher[r->n_watchers++] = sy_call_ref(call);
    residency_unlock(self);
    if (st != SY_OK) sy_call_finish(call, &err);
}

void watch_end(void *ctx, sy_call *call, int cancelled)
{
    expert *self = ctx;
    residency *r = &self->residency;

    (void)cancelled;
    residency_lock(self);
    for (uint32_t i = r->n_watchers; i-- > 0;)
        if (r->watcher[i] == call) drop_watcher(r, i);
    residency_unlock(self);
}

/* ---- load ---- */

/* Also a sign of life: who hears nothing for several intervals takes this node for silent. */
void watch_load(void *ctx)
{
    expert *self = ctx;
    residency *r = &self->residency;
    sy_device_load load[EXPERT_DEVICES_MAX];

    residency_lock(self);
    if (r->n_watchers > 0) {
        sy_node_state state = state_of(self);
        loads_of(self, load);
        state.n_devices = self->n_devices;
        state.device = load;
        send_to_all(self, &state);
    }
    residency_unlock(self);
}

/* ---- GET /shards; HTTP thread ---- */

static void put_text(sy_strbuf *body, const char *name, const char *text)
{
    sy_strbuf_printf(body, "\"%s\":", name);
    sy_strbuf_json_string(body, text, strlen(text));
}

static void put_devices(const expert *self, sy_strbuf *body)
{
    sy_device_load load[EXPERT_DEVICES_MAX];

    loads_of(self, load);
    for (uint32_t d = 0; d < self->n_devices; d++) {
        const expert_device *device = &self->device[d];
        sy_strbuf_puts(body, d == 0 ? "{" : ",{");
        put_text(body, "device", load[d].device);
        sy_strbuf_printf(body,
                         ",\"memory_bytes\":%llu,\"memory_max_bytes\":%llu,\"queue_length\":%u,"
                         "\"service_us\":%u,",
                         (unsigned long long)load[d].memory_bytes,
                         (unsigned long long)load[d].memory_max_bytes, load[d].queue_length,
                         load[d].service_us);
        put_text(body, "reason", device_failed(device) ? device->fault.reason : "");
        sy_strbuf_puts(body, ",");
        put_text(body, "why", device_failed(device) ? device->fault.message : "");
        sy_strbuf_puts(body, "}");
    }
}

static void put_shard(const expert *self, uint32_t i, sy_strbuf *body)
{
    const sy_shard_info info = info_of(self, i);
    const expert_shard *e = &self->residency.shard[i];

    sy_strbuf_printf(body, "{\"layer\":%u,\"expert\":%u,\"state\":\"%s\",", info.layer, info.expert,
                     sy_shard_state_name(info.state));
    put_text(body, "device", info.device);
    sy_strbuf_printf(body, ",\"wanted\":%s,\"bytes\":%llu,\"percent\":%u,",
                     e->life.wanted ? "true" : "false", (unsigned long long)e->bytes,
                     info.loaded_percent);
    put_text(body, "reason", info.reason);
    sy_strbuf_printf(body, ",\"content\":\"%016llx\",\"probe\":\"%016llx\",",
                     (unsigned long long)info.content_hash, (unsigned long long)info.probe_hash);
    put_text(body, "source", e->source);
    sy_strbuf_puts(body, "}");
}

int watch_http_get(void *ctx, const char *path, sy_strbuf *body)
{
    expert *self = ctx;
    residency *r = &self->residency;
    char moe_layers[SY_GRID_TEXT_BYTES];
    int first = 1;

    if (strcmp(path, "/shards") != 0) return 0;
    sy_grid_format(moe_layers, sizeof(moe_layers), &r->grid);
    residency_lock(self);
    sy_strbuf_puts(body, "{");
    put_text(body, "node", self->node);
    sy_strbuf_puts(body, ",");
    put_text(body, "model", sy_model_name(self->model));
    sy_strbuf_printf(body,
                     ",\"hash\":\"%016llx\",\"checkpoint\":\"%016llx\",\"arithmetic\":\"%s\","
                     "\"weights\":\"%s\",\"activations\":\"%s\",\"layers\":%u,\"experts\":%u,"
                     "\"moe_layers\":\"%s\",\"devices\":[",
                     (unsigned long long)r->placement_hash,
                     (unsigned long long)self->checkpoint_hash, self->arithmetic,
                     sy_weights_name(self->precision.weights),
                     sy_activations_name(devices_precision(self).activations), r->grid.layers,
                     r->experts, moe_layers);
    put_devices(self, body);
    sy_strbuf_puts(body, "],\"shards\":[");
    for (uint32_t i = 0; i < r->n_shards; i++) {
        if (r->shard[i].life.state == SY_SHARD_ABSENT) continue;
        sy_strbuf_puts(body, first ? "\n" : ",\n");
        put_shard(self, i, body);
        first = 0;
    }
    sy_strbuf_puts(body, "]}\n");
    residency_unlock(self);
    return 1;
}
