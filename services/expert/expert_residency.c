/* expert_residency.c - the table of this node's shards: what placement wants, the state of each
 * life, and who reads it. What moves shards in and out of memory lives in expert_loader.c and
 * expert_custody.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert.h"
#include "sy_clock.h"
#include "sy_log.h"

void residency_lock(expert *self)
{
    pthread_mutex_lock(&self->residency.mutex);
}

void residency_unlock(expert *self)
{
    watch_flush(self);
    pthread_mutex_unlock(&self->residency.mutex);
}

void residency_wait(expert *self, pthread_cond_t *cond, int64_t until_us)
{
    residency *r = &self->residency;
    const struct timespec until = {.tv_sec = until_us / 1000000,
                                   .tv_nsec = until_us % 1000000 * 1000};

    watch_flush(self); /* the lock is let go of here too */
    if (until_us == SY_NEVER_US)
        pthread_cond_wait(cond, &r->mutex);
    else
        pthread_cond_timedwait(cond, &r->mutex, &until);
}

void residency_entered(expert *self, uint32_t shard)
{
    residency *r = &self->residency;
    const sy_shard_state state = r->shard[shard].life.state;

    r->n_in_state[atomic_exchange(&r->state[shard], (uint8_t)state)]--;
    r->n_in_state[state]++;
    watch_changed(self, shard);
}

void residency_reason(expert *self, uint32_t shard, const char *reason)
{
    expert_shard *e = &self->residency.shard[shard];

    if (strncmp(e->reason, reason, sizeof(e->reason) - 1) == 0) return;
    snprintf(e->reason, sizeof(e->reason), "%s", reason);
    watch_changed(self, shard);
}

void residency_leave(expert *self, uint32_t shard)
{
    residency *r = &self->residency;
    expert_shard *e = &r->shard[shard];

    sy_shard_unload(self->store, shard / r->experts, shard % r->experts);
    r->device_bytes[atomic_load(&r->device[shard])] -= e->bytes;
    e->bytes = 0;
    e->percent = 0;
    e->identity = (sy_shard_identity){0};
    e->source[0] = '\0';
    residency_reason(self, shard, "");
    residency_entered(self, shard);
}

void residency_has_room(expert *self)
{
    residency *r = &self->residency;

    for (uint32_t i = 0; i < r->n_shards; i++)
        if (r->shard[i].needs_room) r->shard[i].life.retry_us = r->shard[i].move_retry_us = 0;
    pthread_cond_broadcast(&r->work);
}

/* ---- placement ---- */

/* What a list of targets means for this node. */
typedef struct wish {
    uint8_t named;
    uint8_t device;      /* EXPERT_NO_DEVICE: not named, or on a device that is not here */
    const char *unknown; /* that device; NULL: none */
} wish;

static wish wish_of(const expert *self, const sy_target_list *list)
{
    wish w = {.device = EXPERT_NO_DEVICE};

    for (uint32_t i = 0; i < list->n; i++) {
        if (strcmp(list->target[i].node, self->node) != 0) continue;
        w.named = 1;
        for (uint32_t d = 0; d < self->n_devices; d++) {
            if (strcmp(self->device[d].name, list->target[i].device) != 0) continue;
            w.device = (uint8_t)d;
            w.unknown = NULL;
            return w;
        }
        w.unknown = list->target[i].device;
    }
    return w;
}

/* One wish for each list of the snapshot, by its number; NULL: no memory. */
static wish *wishes_of(const expert *self, const sy_snapshot *snapshot)
{
    const uint32_t n = sy_snapshot_lists(snapshot);
    wish *w = calloc((size_t)n + 1, sizeof(*w));

    if (w == NULL) return NULL;
    w[0].device = EXPERT_NO_DEVICE; /* no targets at all */
    for (uint32_t i = 1; i <= n; i++) w[i] = wish_of(self, sy_snapshot_list(snapshot, i));
    return w;
}

/* Host memory is the same for all CPU devices. To another GPU a loader copies the shard, which
 * stays where it is until the copy can take its place. */
static void move_to_device(expert *self, uint32_t shard, uint8_t device)
{
    residency *r = &self->residency;
    uint8_t before;

    if (self->device[device].home != NULL) {
        r->shard[shard].move_failures = 0;
        r->shard[shard].move_retry_us = 0;
        return;
    }
    before = atomic_exchange(&r->device[shard], device);

    if (before == device) return;
    r->device_bytes[before] -= r->shard[shard].bytes;
    r->device_bytes[device] += r->shard[shard].bytes;
    watch_changed(self, shard);
}

/* One shard under the new placement. Mutex held. */
static void follow(expert *self, uint32_t shard, const wish *w, int64_t now_us)
{
    residency *r = &self->residency;
    expert_shard *e = &r->shard[shard];
    const sy_shard_state before = e->life.state;

    e->wanted_device = w->device;
    e->needs_room = 0;
    sy_life_wanted(&e->life, w->named, now_us);
    if (w->device != EXPERT_NO_DEVICE && before != SY_SHARD_ABSENT && before != SY_SHARD_FAILED)
        move_to_device(self, shard, w->device);
    if (w->unknown != NULL && e->life.state == SY_SHARD_ABSENT) {
        char why[sizeof(e->reason)];
        snprintf(why, sizeof(why), "this node has no device %.15s (it has: %.100s)", w->unknown,
                 self->devices);
        residency_reason(self, shard, why);
        sy_life_failed(&e->life, now_us);
    } else if (w->device != EXPERT_NO_DEVICE && device_failed(&self->device[w->device]) &&
               e->life.state == SY_SHARD_ABSENT) {
        residency_reason(self, shard, self->device[w->device].fault.message);
        sy_life_failed(&e->life, now_us);
    } else if (e->life.state == SY_SHARD_ABSENT || e->life.state == SY_SHARD_RESIDENT) {
        residency_reason(self, shard, "");
    }
    if (e->life.state != before) residency_entered(self, shard);
}

/* What is being loaded and is wanted no more need not be finished: it was never served. Nor need a
 * copy that is to be elsewhere by now. Mutex held. */
static void stop_loads(expert *self)
{
    residency *r = &self->residency;

    for (uint32_t i = 0; i < EXPERT_LOADERS_MAX; i++) {
        expert_loader *loader = &r->loader[i];
        const expert_shard *e = &r->shard[loader->shard];
        if (!loader->busy) continue;
        atomic_store(&loader->stop, !e->life.wanted ||
                                        device_failed(&self->device[loader->device]) ||
                                        (loader->is_move && e->wanted_device != loader->device));
    }
}

void residency_placement(expert *self, sy_snapshot *snapshot)
{
    residency *r = &self->residency;
    const int64_t now_us = sy_clock_us();
    wish *w = wishes_of(self, snapshot);
    uint32_t n_wanted = 0;

    if (w == NULL) {
        sy_log(SY_LOG_ERROR, "placement %016llx is not followed: no memory",
               (unsigned long long)sy_snapshot_hash(snapshot));
        return;
    }
    residency_lock(self);
    sy_snapshot_unref(r->snapshot);
    r->snapshot = sy_snapshot_ref(snapshot);
    r->placement_hash = sy_snapshot_hash(snapshot);
    for (uint32_t i = 0; i < r->n_shards; i++) {
        const uint32_t list = sy_snapshot_list_of(snapshot, i / r->experts, i % r->experts);
        follow(self, i, &w[list], now_us);
        n_wanted += w[list].device != EXPERT_NO_DEVICE;
    }
    stop_loads(self);
    pthread_cond_broadcast(&r->work);
    pthread_cond_signal(&r->leaving);
    const uint32_t n_lingering = r->n_in_state[SY_SHARD_LINGERING];
    residency_unlock(self);
    free(w);
    sy_log(SY_LOG_INFO, "placement %016llx: %u shards are wanted here, %u linger",
           (unsigned long long)sy_snapshot_hash(snapshot), n_wanted, n_lingering);
}

/* ---- devices ---- */

/* What is in memory there leaves it, and what was only wanted there fails as if it had been tried.
 * Mutex held. */
static int lose(expert *self, uint32_t shard, uint8_t device, const char *why)
{
    residency *r = &self->residency;
    expert_shard *e = &r->shard[shard];
    const int was_here = atomic_load(&r->device[shard]) == device && residency_has(e);

    if (!was_here && (e->wanted_device != device || e->life.state != SY_SHARD_ABSENT)) return 0;
    sy_life_failed(&e->life, sy_clock_us());
    if (was_here)
        residency_leave(self, shard);
    else
        residency_entered(self, shard);
    if (e->life.state == SY_SHARD_FAILED) residency_reason(self, shard, why);
    return was_here;
}

void residency_device_failed(expert *self, uint8_t device, const char *why)
{
    residency *r = &self->residency;
    uint32_t n = 0;

    residency_lock(self);
    for (uint32_t i = 0; i < r->n_shards; i++) n += (uint32_t)lose(self, i, device, why);
    stop_loads(self);
    pthread_cond_broadcast(&r->work);
    residency_unlock(self);
    sy_log(SY_LOG_ERROR, "%u shards are gone with %s", n, self->device[device].name);
}

uint8_t residency_room_of(const expert *self, uint8_t device)
{
    return device < self->n_devices && self->device[device].home != NULL ? device : 0;
}

/* ---- readiness ---- */

/* Wanted, and neither in memory nor tried without success. Mutex held. */
static uint32_t count_untried(const residency *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_shards; i++) {
        const sy_life *life = &r->shard[i].life;
        n += life->wanted && life->failures == 0 &&
             (life->state == SY_SHARD_ABSENT || life->state == SY_SHARD_LOADING ||
              life->state == SY_SHARD_VERIFYING);
    }
    return n;
}

/* Shards in no memory and why the first of them is not. Mutex held. */
static void say_failed(const residency *r, sy_strbuf *why)
{
    uint32_t first = 0;

    while (first < r->n_shards && r->shard[first].life.state != SY_SHARD_FAILED) first++;
    if (first == r->n_shards) return;
    sy_strbuf_printf(why, "%u shards failed; layer %u expert %u: %s",
                     r->n_in_state[SY_SHARD_FAILED], first / r->experts, first % r->experts,
                     r->shard[first].reason);
}

int residency_ready(expert *self, sy_strbuf *why)
{
    residency *r = &self->residency;
    int ready = 0;

    if (devices_say_failed(self, why)) return 0;
    residency_lock(self);
    if (r->snapshot == NULL) {
        sy_strbuf_puts(why, "no placement has been read from Redis yet");
    } else if (!r->first_load_done) {
        const uint32_t untried = count_untried(r);
        r->first_load_done = untried == 0;
        if (untried > 0) sy_strbuf_printf(why, "%u shards are being loaded", untried);
    }
    if (r->first_load_done) {
        /* Later failures are shown, but do not take away what is served: aggregators know each
         * shard's state from their watch. */
        ready = r->n_in_state[SY_SHARD_RESIDENT] + r->n_in_state[SY_SHARD_LINGERING] > 0 ||
                r->n_in_state[SY_SHARD_FAILED] == 0;
        if (!ready) say_failed(r, why);
    }
    residency_unlock(self);
    return ready;
}

/* ---- open, close ---- */

static sy_status open_table(residency *r)
{
    r->state = calloc(r->n_shards, sizeof(*r->state));
    r->device = calloc(r->n_shards, sizeof(*r->device));
    r->shard = calloc(r->n_shards, sizeof(*r->shard));
    r->changed = calloc(r->n_shards, sizeof(*r->changed));
    if (r->state == NULL || r->device == NULL || r->shard == NULL || r->changed == NULL)
        return SY_ENOMEM;
    for (uint32_t i = 0; i < r->n_shards; i++) r->shard[i].wanted_device = EXPERT_NO_DEVICE;
    return SY_OK;
}

sy_status residency_open(expert *self, sy_error *err)
{
    residency *r = &self->residency;
    pthread_condattr_t monotonic;
    sy_status st;

    r->grid =
        sy_grid_of(self->desc->n_layers, self->desc->n_experts, self->desc->layer, SY_LAYER_DENSE);
    r->experts = r->grid.experts;
    r->n_shards = r->grid.layers * r->experts;
    r->n_in_state[SY_SHARD_ABSENT] = (uint32_t)sy_grid_shards(&r->grid);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_mutex_init(&r->pace_mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &monotonic);
    pthread_cond_init(&r->leaving, &monotonic);
    pthread_condattr_destroy(&monotonic);
    st = open_table(r);
    if (st != SY_OK) return sy_error_set(err, st, "no memory for the residency table");
    SY_TRY(loader_open(self, err));
    SY_TRY(custody_open(self, err));
out:
    return st;
}

void residency_close(expert *self)
{
    residency *r = &self->residency;

    if (r->shard == NULL) return;
    residency_lock(self);
    r->stopping = 1;
    for (uint32_t i = 0; i < EXPERT_LOADERS_MAX; i++) atomic_store(&r->loader[i].stop, 1);
    pthread_cond_broadcast(&r->work);
    pthread_cond_signal(&r->leaving);
    residency_unlock(self);
    loader_close(self);
    custody_close(self);
    sy_snapshot_unref(r->snapshot);
    free(r->state);
    free(r->device);
    free(r->shard);
    free(r->changed);
}
