/* expert_residency.c - which shards are in memory: follows placement, loads what is newly wanted,
 * keeps what is no longer wanted (lingering) until memory is needed, and tells every watcher. The
 * loader is one thread of low priority; requests never wait for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "expert.h"
#include "sy_log.h"

static uint32_t n_shards(const residency *r)
{
    return r->layers * r->experts;
}

/* ---- telling watchers; mutex held ---- */

static sy_status send_state(expert *self, sy_call *call, const sy_shard_info *info, uint32_t n,
                            int full)
{
    const residency *r = &self->residency;
    const sy_node_state state = {.node = self->node,
                                 .model = sy_model_name(self->model),
                                 .full = full,
                                 .n_shards = n,
                                 .shard = info,
                                 .queue_length = (uint32_t)sy_queue_length(self->device[0].queue),
                                 .memory_bytes = sy_shard_store_bytes(self->store),
                                 .placement_hash = r->placement_hash,
                                 .structure_hash = sy_model_structure_hash(self->model)};
    sy_frame frame;
    sy_status st = sy_wire_node_state_encode(&frame, &state, NULL);

    return st == SY_OK ? sy_call_send(call, &frame) : st;
}

static sy_shard_info info_of(const expert *self, uint32_t i)
{
    const residency *r = &self->residency;
    const uint8_t device = atomic_load(&r->device[i]);

    return (sy_shard_info){.layer = i / r->experts,
                           .expert = i % r->experts,
                           .state = (sy_shard_state)atomic_load(&r->state[i]),
                           .device = device < self->n_devices ? self->device[device].name : "",
                           .reason = r->reason[i]};
}

static void drop_watcher(residency *r, uint32_t i)
{
    sy_call_unref(r->watcher[i]);
    r->watcher[i] = r->watcher[--r->n_watchers];
}

static void tell(expert *self, uint32_t shard)
{
    residency *r = &self->residency;
    const sy_shard_info info = info_of(self, shard);

    for (uint32_t i = r->n_watchers; i-- > 0;) {
        if (send_state(self, r->watcher[i], &info, 1, 0) == SY_OK) continue;
        sy_service_refuse(r->watcher[i], SY_ELIMIT,
                          "the watcher does not read"); /* it will come back and ask for all */
        drop_watcher(r, i);
    }
}

static void set_state(expert *self, uint32_t shard, sy_shard_state state)
{
    atomic_store(&self->residency.state[shard], (uint8_t)state);
    tell(self, shard);
}

/* ---- the loader ---- */

/* What to do next: a shard that is wanted and not here, or -1. Shards that failed are tried again
 * with the next placement. */
static int64_t next_missing(const residency *r)
{
    for (uint32_t i = 0; i < n_shards(r); i++)
        if (r->wanted[i] != EXPERT_NO_DEVICE && atomic_load(&r->state[i]) == SY_SHARD_ABSENT)
            return i;
    return -1;
}

/* Gives up one shard that nobody wants any more; 0: there is none. Mutex held. */
static int evict_lingering(expert *self)
{
    residency *r = &self->residency;

    for (uint32_t i = 0; i < n_shards(r); i++) {
        if (atomic_load(&r->state[i]) != SY_SHARD_LINGERING) continue;
        sy_log(SY_LOG_INFO,
               "layer %u expert %u leaves memory: it is no longer wanted and room is needed",
               i / r->experts, i % r->experts);
        set_state(self, i, SY_SHARD_ABSENT);
        sy_shard_unload(self->store, i / r->experts, i % r->experts);
        return 1;
    }
    return 0;
}

static sy_status load_with_room(expert *self, uint32_t shard, sy_error *err)
{
    residency *r = &self->residency;

    for (;;) {
        sy_status st = sy_shard_load(self->store, shard / r->experts, shard % r->experts, err);
        if (st != SY_ELIMIT) return st;
        pthread_mutex_lock(&r->mutex);
        const int room = evict_lingering(self);
        pthread_mutex_unlock(&r->mutex);
        if (!room) return st;
    }
}

static void load_one(expert *self, uint32_t shard)
{
    residency *r = &self->residency;
    sy_error err = {0};

    sy_error_clear(&err);
    const sy_status st = load_with_room(self, shard, &err);
    pthread_mutex_lock(&r->mutex);
    if (st == SY_OK) {
        r->reason[shard][0] = '\0';
        set_state(self, shard,
                  r->wanted[shard] == EXPERT_NO_DEVICE ? SY_SHARD_LINGERING : SY_SHARD_RESIDENT);
    } else {
        snprintf(r->reason[shard], sizeof(r->reason[shard]), "%.95s", err.message);
        set_state(self, shard, SY_SHARD_FAILED);
        sy_log_error(SY_LOG_ERROR, &err, "layer %u expert %u cannot be loaded", shard / r->experts,
                     shard % r->experts);
    }
    sy_metric_set(self->resident, sy_shard_store_count(self->store));
    sy_metric_set(self->memory, (double)sy_shard_store_bytes(self->store));
    pthread_mutex_unlock(&r->mutex);
}

static void *loader_main(void *arg)
{
    expert *self = arg;
    residency *r = &self->residency;

    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid),
                10); /* of this thread only: requests come first */
    for (;;) {
        pthread_mutex_lock(&r->mutex);
        int64_t shard = next_missing(r);
        while (!r->stopping && shard < 0) {
            pthread_cond_wait(&r->work, &r->mutex);
            shard = next_missing(r);
        }
        if (r->stopping) break;
        atomic_store(&r->device[shard], r->wanted[shard]);
        set_state(self, (uint32_t)shard, SY_SHARD_LOADING);
        pthread_mutex_unlock(&r->mutex);
        load_one(self, (uint32_t)shard);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* ---- placement ---- */

static uint8_t wanted_device(const expert *self, const sy_target_list *list, const char **unknown)
{
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        if (strcmp(list->target[i].node, self->node) != 0) continue;
        for (uint32_t d = 0; d < self->n_devices; d++)
            if (strcmp(self->device[d].name, list->target[i].device) == 0) return (uint8_t)d;
        *unknown = list->target[i].device;
    }
    return EXPERT_NO_DEVICE;
}

/* One shard under the new placement: states change, loads are left to the loader. Mutex held. */
static void follow(expert *self, uint32_t i, uint8_t device, const char *unknown)
{
    residency *r = &self->residency;
    const sy_shard_state state = (sy_shard_state)atomic_load(&r->state[i]);

    r->wanted[i] = device;
    if (unknown != NULL) {
        snprintf(r->reason[i], sizeof(r->reason[i]),
                 "this node has no device %.15s (it has: %.40s)", unknown, self->devices);
        if (state == SY_SHARD_ABSENT) set_state(self, i, SY_SHARD_FAILED);
        return;
    }
    if (state == SY_SHARD_FAILED) {
        set_state(self, i,
                  SY_SHARD_ABSENT); /* wanted or not: another try, or nothing to tell any more */
    } else if (state == SY_SHARD_RESIDENT && device == EXPERT_NO_DEVICE) {
        set_state(self, i, SY_SHARD_LINGERING);
    } else if ((state == SY_SHARD_LINGERING || state == SY_SHARD_RESIDENT) &&
               device != EXPERT_NO_DEVICE) {
        const int moved = atomic_exchange(&r->device[i], device) != device;
        if (moved || state == SY_SHARD_LINGERING) set_state(self, i, SY_SHARD_RESIDENT);
    }
}

void residency_placement(expert *self, sy_snapshot *snapshot)
{
    residency *r = &self->residency;
    uint32_t n_wanted = 0;

    pthread_mutex_lock(&r->mutex);
    r->placement_hash = sy_snapshot_hash(snapshot);
    r->have_placement = 1;
    for (uint32_t i = 0; i < n_shards(r); i++) {
        const char *unknown = NULL;
        const uint8_t device = wanted_device(
            self, sy_snapshot_targets(snapshot, i / r->experts, i % r->experts), &unknown);
        follow(self, i, device, device == EXPERT_NO_DEVICE ? unknown : NULL);
        n_wanted += device != EXPERT_NO_DEVICE;
    }
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->mutex);
    sy_log(SY_LOG_INFO, "placement %016llx: %u shards are wanted here",
           (unsigned long long)sy_snapshot_hash(snapshot), n_wanted);
}

int residency_ready(expert *self, sy_strbuf *why)
{
    residency *r = &self->residency;
    uint32_t missing = 0, failed = 0, first = 0;

    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < n_shards(r); i++) {
        const uint8_t state = atomic_load(&r->state[i]);
        if (state == SY_SHARD_FAILED && failed++ == 0) first = i;
        missing += r->wanted[i] != EXPERT_NO_DEVICE && state != SY_SHARD_RESIDENT &&
                   state != SY_SHARD_FAILED;
    }
    if (!r->have_placement)
        sy_strbuf_puts(why, "no placement has been read from Redis yet");
    else if (failed > 0)
        sy_strbuf_printf(why, "%u shards failed; layer %u expert %u: %s", failed,
                         first / r->experts, first % r->experts, r->reason[first]);
    else if (missing > 0)
        sy_strbuf_printf(why, "%u shards are being loaded", missing);
    const int ready = r->have_placement && failed == 0 && missing == 0;
    pthread_mutex_unlock(&r->mutex);
    return ready;
}

/* ---- Watch ---- */

/* Everything that is not absent. Mutex held, so that no change can fall between this and the first
 * delta. */
static sy_status send_full(expert *self, sy_call *call)
{
    residency *r = &self->residency;
    sy_shard_info *info = calloc(n_shards(r), sizeof(*info));
    uint32_t n = 0;

    if (info == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < n_shards(r); i++)
        if (atomic_load(&r->state[i]) != SY_SHARD_ABSENT) info[n++] = info_of(self, i);
    sy_status st = send_state(self, call, info, n, 1);
    free(info);
    return st;
}

void residency_watch_message(void *ctx, sy_call *call, sy_msg *msg)
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
    pthread_mutex_lock(&r->mutex);
    if (st == SY_OK && r->n_watchers == EXPERT_WATCHERS_MAX)
        st = sy_error_set(&err, SY_ELIMIT, "%d watchers are the limit", EXPERT_WATCHERS_MAX);
    if (st == SY_OK && send_full(self, call) != SY_OK)
        st = sy_error_set(&err, SY_ENOMEM, "no memory for the state");
    if (st == SY_OK) r->watcher[r->n_watchers++] = sy_call_ref(call);
    pthread_mutex_unlock(&r->mutex);
    if (st != SY_OK) sy_call_finish(call, &err);
}

void residency_watch_end(void *ctx, sy_call *call, int cancelled)
{
    expert *self = ctx;
    residency *r = &self->residency;

    (void)cancelled;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = r->n_watchers; i-- > 0;)
        if (r->watcher[i] == call) drop_watcher(r, i);
    pthread_mutex_unlock(&r->mutex);
}

/* ---- open, close ---- */

sy_status residency_open(expert *self, sy_error *err)
{
    residency *r = &self->residency;

    r->layers = self->desc->n_layers;
    r->experts = self->desc->n_experts;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->work, NULL);
    r->state = calloc(n_shards(r), sizeof(*r->state));
    r->device = calloc(n_shards(r), sizeof(*r->device));
    r->wanted = malloc(n_shards(r));
    r->reason = calloc(n_shards(r), sizeof(*r->reason));
    if (r->state == NULL || r->device == NULL || r->wanted == NULL || r->reason == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for the residency table");
    memset(r->wanted, EXPERT_NO_DEVICE, n_shards(r));
    if (pthread_create(&r->loader, NULL, loader_main, self) != 0)
        return sy_error_set(err, SY_EIO, "no thread for the loader");
    r->started = 1;
    return SY_OK;
}

void residency_close(expert *self)
{
    residency *r = &self->residency;

    if (r->started) {
        pthread_mutex_lock(&r->mutex);
        r->stopping = 1;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->mutex);
        pthread_join(r->loader, NULL);
    }
    free(r->state);
    free(r->device);
    free(r->wanted);
    free(r->reason);
}
