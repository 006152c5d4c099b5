/* expert_loader.c - brings shards into memory: from the checkpoint, from a node that has them, or,
 * to another GPU of this node, from the one they are on.
 * A loader thread decides, locks and tells at ordinary priority; reading, packing and verifying is
 * done for it by an idle thread (expert_idle.h), in small steps, so that requests do not feel a
 * migration. What comes from another node is packed as it arrives, by the loader itself: it may not
 * be kept waiting in the middle of the network's work. How fast both go is --load-mb-s. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "expert.h"
#include "sy_clock.h"
#include "sy_fault.h"
#include "sy_log.h"

enum {
    STEP_BYTES = 512 << 10,
    TELL_US = 100 * 1000,       /* progress is told this often at most */
    PACE_SLICE_US = 100 * 1000, /* how long a paced loader sleeps without looking up */
    QUIET_US = 1000 * 1000,     /* without a message for so long, nobody is slowed by a load */
    STARVED_US = 50 * 1000,     /* a step of the idle thread takes a millisecond of its own time */
    IMPATIENT_STEPS = 4,
    ANSWER_AGE_US = 2 * 1000 * 1000,
    LOG_US = 10 * 1000 * 1000,
    FAILURE_LOG_US = 1000 * 1000,
    MOVE_DOUBLINGS_MAX = 6, /* of the pause after a move that failed: half a minute then */
    SOURCES_MAX = 8
};

#define FROM_CHECKPOINT "checkpoint"

/* A load under way. */
typedef struct load {
    expert_loader *loader;
    expert *expert;
    uint32_t shard, layer, id; /* id: of the expert in its layer */
    expert_device *device;     /* that it goes to */
    int is_move;               /* it is served from another device meanwhile */
    uint64_t added_bytes;
    int64_t told_us;
    char source[SY_NODE_BYTES];
} load;

/* ---- pace and progress ---- */

static int is_quiet(const expert *self, int64_t now_us)
{
    return now_us - atomic_load_explicit(&self->message_us, memory_order_relaxed) > QUIET_US;
}

/* The loaders share one budget: sleeps until there is some left for n more bytes, or the load is to
 * stop. */
static void pace(load *l, uint64_t n)
{
    expert *self = l->expert;
    residency *r = &self->residency;
    int64_t now_us = sy_clock_us();

    if (self->load_bytes_per_s == 0 || is_quiet(self, now_us)) return;
    pthread_mutex_lock(&r->pace_mutex);
    r->paced_us = SY_MAX(r->paced_us, now_us) + (int64_t)(n * 1000000 / self->load_bytes_per_s);
    const int64_t until_us = r->paced_us;
    pthread_mutex_unlock(&r->pace_mutex);
    for (; now_us < until_us && !atomic_load(&l->loader->stop); now_us = sy_clock_us()) {
        const int64_t sleep_us = SY_MIN(until_us - now_us, (int64_t)PACE_SLICE_US);
        nanosleep(&(struct timespec){.tv_nsec = sleep_us * 1000}, NULL);
    }
}

static void enter_verifying(load *l)
{
    residency *r = &l->expert->residency;

    residency_lock(l->expert);
    r->shard[l->shard].percent = 100;
    sy_life_verifying(&r->shard[l->shard].life, sy_clock_us());
    residency_entered(l->expert, l->shard);
    residency_unlock(l->expert);
}

/* After each step: also expert_fetch's callback. */
static void on_progress(void *arg, uint64_t added, uint64_t total)
{
    load *l = arg;
    residency *r = &l->expert->residency;
    const uint64_t n = added - SY_MIN(l->added_bytes, added);
    int64_t now_us;

    l->added_bytes = added;
    pace(l, n);
    if (l->is_move) return; /* nobody needs to know: it is in memory */
    now_us = sy_clock_us();
    if (added == total) {
        enter_verifying(l);
    } else if (now_us - l->told_us >= TELL_US) {
        l->told_us = now_us;
        residency_lock(l->expert);
        r->shard[l->shard].percent = (uint8_t)(added * 100 / total);
        watch_changed(l->expert, l->shard);
        residency_unlock(l->expert);
    }
}

/* ---- the two sources ---- */

/* What the idle thread does in one go: a step of bytes, or the verification. */
typedef struct step {
    load *load;
    sy_shard_builder *builder;
    sy_error *err;
    int done; /* all bytes are there */
    sy_status status;
} step;

static void add_step(void *arg)
{
    step *s = arg;

    s->status = sy_shard_add_from_checkpoint(s->builder, STEP_BYTES, &s->done, s->err);
}

static void copy_step(void *arg)
{
    step *s = arg;

    s->status = sy_shard_add_from_copy(s->builder, STEP_BYTES, &s->done, s->err);
}

static void verify_step(void *arg)
{
    step *s = arg;
    sy_shard_identity identity; /* it is in the shard as well */

    s->status = sy_shard_verify(s->builder, &identity, s->load->expert->kernels, s->err);
}

/* While requests come the idle thread does it, unless the cores are so busy that it hardly ever
 * runs: then every few steps are done here, so that a load ends some day on a saturated machine. */
static sy_status run_step(step *s, void (*fn)(void *arg))
{
    expert_loader *loader = s->load->loader;
    const int64_t begin_us = sy_clock_us();

    if (loader->impatient > 0 || is_quiet(loader->expert, begin_us)) {
        loader->impatient -= loader->impatient > 0;
        fn(s);
    } else {
        expert_idle_run(loader->idle, fn, s);
        if (sy_clock_us() - begin_us > STARVED_US) loader->impatient = IMPATIENT_STEPS;
    }
    if (s->status == SY_OK && atomic_load(&loader->stop))
        s->status = sy_error_set(s->err, SY_ECANCELLED, "it is no longer wanted here");
    return s->status;
}

static sy_status add_steps(step *s, void (*add)(void *arg), uint64_t total)
{
    sy_status st;

    while (!s->done) {
        SY_TRY(run_step(s, add));
        on_progress(s->load, s->done ? total : sy_shard_added(s->builder), total);
    }
    st = run_step(s, verify_step);
out:
    return st;
}

static sy_status from_checkpoint(load *l, sy_shard_builder **out, sy_error *err)
{
    expert *self = l->expert;
    sy_shard_builder *builder;
    sy_shard_form form;
    sy_status st;

    *out = NULL;
    sy_shard_form_of(&form, self->model, sy_shard_read_as(self->precision.weights), l->layer,
                     l->id);
    st = sy_shard_begin_on(&builder, self->store, l->device->home, l->layer, l->id, NULL, err);
    if (st != SY_OK) return st;
    SY_TRY(add_steps(&(step){.load = l, .builder = builder, .err = err}, add_step,
                     sy_shard_form_bytes(&form)));
    snprintf(l->source, sizeof(l->source), "%s", FROM_CHECKPOINT);
    *out = builder;
    builder = NULL;
out:
    sy_shard_abandon(builder);
    return st;
}

static sy_status from_copy(load *l, sy_shard_builder **out, sy_error *err)
{
    expert *self = l->expert;
    sy_shard_builder *builder;
    sy_shard_form form;
    sy_status st;

    *out = NULL;
    sy_shard_form_of(&form, self->model, self->precision.weights, l->layer, l->id);
    st = sy_shard_begin_on(&builder, self->store, l->device->home, l->layer, l->id, NULL, err);
    if (st != SY_OK) return st;
    SY_TRY(add_steps(&(step){.load = l, .builder = builder, .err = err}, copy_step,
                     sy_shard_form_bytes(&form)));
    *out = builder;
    builder = NULL;
out:
    sy_shard_abandon(builder);
    return st;
}

static void tell_fetched(const load *l, const expert_fetched *fetched)
{
    expert *self = l->expert;

    sy_metric_add(self->fetched[fetched->is_slot], 1);
    sy_metric_add(self->fetched_bytes[fetched->is_slot], (double)fetched->bytes);
    sy_log(SY_LOG_DEBUG, "layer %u expert %u came from %s %s", l->layer, l->id, l->source,
           fetched->is_slot ? "from GPU to GPU, by CUDA IPC" : "as bytes");
}

static sy_status from_peers(load *l, sy_shard_builder **out, sy_error *err)
{
    expert *self = l->expert;
    expert_answer *holder[SOURCES_MAX];
    expert_source source[SOURCES_MAX];
    expert_fetched fetched = {0};
    const size_t n = expert_peers_holders(self->peers, holder, SOURCES_MAX, l->layer, l->id,
                                          self->checkpoint_hash, ANSWER_AGE_US);
    const expert_fetch_job job = {.layer = l->layer,
                                  .expert = l->id,
                                  .home = l->device->home,
                                  .source = source,
                                  .n_sources = n,
                                  .stop = &l->loader->stop,
                                  .progress = on_progress,
                                  .progress_arg = l};
    sy_status st;

    *out = NULL;
    if (n == 0)
        return sy_error_set(err, SY_EUNAVAILABLE, "no other node of this checkpoint has it");
    for (size_t i = 0; i < n; i++)
        source[i] = (expert_source){.node = holder[i]->node,
                                    .address = holder[i]->address,
                                    .other_arithmetic =
                                        strcmp(holder[i]->arithmetic, self->arithmetic) != 0};
    l->added_bytes = 0;
    st = expert_fetch(self->fetcher, out, &fetched, &job, err);
    if (st == SY_OK) {
        snprintf(l->source, sizeof(l->source), "%s", holder[fetched.source]->node);
        tell_fetched(l, &fetched);
    }
    for (size_t i = 0; i < n; i++) expert_answer_unref(holder[i]);
    return st;
}

/* Neither a stop, nor a lack of memory, nor a device that is lost gets better with another source.
 */
static int other_source_may_help(const load *l, sy_status st)
{
    devices_look(l->expert);
    return st != SY_OK && st != SY_ECANCELLED && st != SY_ELIMIT && st != SY_ENOMEM &&
           st != SY_EEXISTS && !device_failed(l->device);
}

/* From the preferred source, then from the other one. A checkpoint that is whole but failed
 * otherwise would fail from anywhere. */
static sy_status from_anywhere(load *l, sy_shard_builder **out, sy_error *err)
{
    static _Atomic int64_t logged_us;
    sy_error second = {0};
    sy_status st;

    *out = NULL;
    if (sy_fault_hit("expert.load")) return sy_error_set(err, SY_EIO, "injected fault");
    if (l->expert->load_from_peers) {
        st = from_peers(l, out, err);
        if (!other_source_may_help(l, st)) return st;
        sy_log(SY_LOG_DEBUG, "layer %u expert %u is loaded from the checkpoint: %s", l->layer,
               l->id, err->message);
        return from_checkpoint(l, out, err);
    }
    st = from_checkpoint(l, out, err);
    /* A GPU that does not give the reference's output would not do so with others' bytes either. */
    if (st != SY_EDATALOSS || (l->device->home != NULL && strcmp(err->reason, "SHARD_PROBE") == 0))
        return st;
    if (sy_log_due(&logged_us, LOG_US))
        sy_log_error(SY_LOG_ERROR, err,
                     "this node's checkpoint is damaged; what is needed is asked of other nodes");
    sy_error_clear(&second);
    if (from_peers(l, out, &second) == SY_OK) return SY_OK;
    snprintf(err->message + strlen(err->message), sizeof(err->message) - strlen(err->message),
             "; from other nodes: %.200s", second.message);
    return st;
}

/* ---- the end of a load ---- */

/* The device has failed since the load began: nothing can be served from it. Mutex held. */
static int is_too_late(const load *l, sy_error *err)
{
    if (!device_failed(l->device)) return 0;
    *err = l->device->fault;
    return 1;
}

/* What is in memory now, in the table. Mutex held: nobody takes it out again meanwhile. */
static void describe(const load *l)
{
    expert *self = l->expert;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[l->shard];
    const sy_shard *shard = sy_shard_get(self->store, l->layer, l->id);

    /* What tests use to make outputs wrong although all hashes are right. */
    if (sy_fault_hit("expert.flip")) sy_shard_flip_bit(shard);
    e->bytes = shard->bytes;
    e->identity = shard->identity;
    sy_shard_put(self->store, shard);
    r->device_bytes[atomic_load(&r->device[l->shard])] += e->bytes;
    residency_reason(self, l->shard, "");
}

/* 0: the builder is still the caller's. */
static int publish(load *l, sy_shard_builder *builder, sy_error *err)
{
    expert *self = l->expert;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[l->shard];

    residency_lock(self);
    const int is_here = !is_too_late(l, err);
    if (is_here) {
        sy_shard_publish(builder);
        describe(l);
        e->percent = 100;
        memcpy(e->source, l->source, sizeof(e->source));
        sy_life_loaded(&e->life, sy_clock_us());
        residency_entered(self, l->shard);
        if (e->life.state == SY_SHARD_LINGERING) pthread_cond_signal(&r->leaving);
    }
    residency_unlock(self);
    if (is_here)
        sy_metric_add(strcmp(l->source, FROM_CHECKPOINT) == 0 ? self->loads : self->fetches, 1);
    return is_here;
}

/* The copy takes the place of the one that was served until now, unless that one has left. */
static int publish_move(load *l, sy_shard_builder *builder, sy_error *err)
{
    expert *self = l->expert;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[l->shard];
    const uint8_t before = atomic_load(&r->device[l->shard]); /* no one else moves it */
    int is_here = 0;

    residency_lock(self);
    if (!residency_has(e)) {
        sy_error_set(err, SY_ECANCELLED, "it has left memory meanwhile");
    } else if (!is_too_late(l, err)) {
        r->device_bytes[before] -= e->bytes;
        sy_shard_publish(builder);
        atomic_store(&r->device[l->shard], l->device->index);
        describe(l);
        e->move_failures = 0;
        watch_changed(self, l->shard);
        is_here = 1;
    }
    residency_unlock(self);
    if (!is_here) return 0;
    sy_metric_add(self->copies, 1);
    sy_log(SY_LOG_DEBUG, "layer %u expert %u has moved from %s to %s", l->layer, l->id,
           self->device[before].name, l->device->name);
    return 1;
}

/* Given up because it was not wanted: nothing went wrong, and if it is wanted again by now, then it
 * is as any other that is not here. Mutex held. */
static void give_up(expert *self, uint32_t shard)
{
    expert_shard *e = &self->residency.shard[shard];
    const int wanted = e->life.wanted;

    sy_life_wanted(&e->life, 0, sy_clock_us());
    sy_life_failed(&e->life, sy_clock_us());
    sy_life_wanted(&e->life, wanted, sy_clock_us());
    residency_reason(self, shard, "");
}

/* What went wrong, without the shard's name, which stands beside it wherever it is shown. */
static const char *bare_message(const sy_error *err, uint32_t layer, uint32_t id)
{
    char name[48];
    const int n = snprintf(name, sizeof(name), "layer %u expert %u: ", layer, id);

    return strncmp(err->message, name, (size_t)n) == 0 ? err->message + n : err->message;
}

/* Mutex held. */
static void fail(expert *self, uint32_t shard, const sy_error *err)
{
    static _Atomic int64_t logged_us;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[shard];
    const uint32_t layer = shard / r->experts, id = shard % r->experts;
    const uint32_t n_lingering = r->n_in_state[SY_SHARD_LINGERING];
    const char *message = bare_message(err, layer, id);
    char why[sizeof(e->reason)];

    e->needs_room = strcmp(err->reason, "SHARD_MEMORY") == 0;
    if (e->needs_room && n_lingering > 0)
        snprintf(why, sizeof(why), "%.90s; %u shards that linger here leave once others have them",
                 message, n_lingering);
    else
        snprintf(why, sizeof(why), "%.*s", (int)sizeof(why) - 1, message);
    const int news = strcmp(why, e->reason) != 0; /* not with every try */
    residency_reason(self, shard, why);
    sy_life_failed(&e->life, sy_clock_us());
    if (e->needs_room) pthread_cond_signal(&r->leaving);
    sy_metric_add(self->load_failures, 1);
    if (news && sy_log_due(&logged_us, FAILURE_LOG_US))
        sy_log(SY_LOG_ERROR, "layer %u expert %u cannot be loaded: %s (%u shards failed here)",
               layer, id, message, r->n_in_state[SY_SHARD_FAILED] + 1);
}

/* It stays where it is, and is tried again after a while. Mutex held. */
static void fail_move(load *l, sy_status st, const sy_error *err)
{
    expert *self = l->expert;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[l->shard];
    const int64_t wait_us = SY_LIFE_RETRY_MIN_US
                            << SY_MIN(e->move_failures, (uint8_t)MOVE_DOUBLINGS_MAX);
    char why[sizeof(e->reason)];

    if (st == SY_ECANCELLED || !residency_has(e)) return;
    e->move_retry_us = sy_clock_us() + wait_us;
    e->move_failures = (uint8_t)SY_MIN(e->move_failures + 1, MOVE_DOUBLINGS_MAX);
    e->needs_room = strcmp(err->reason, "SHARD_MEMORY") == 0;
    if (e->needs_room) pthread_cond_signal(&r->leaving);
    snprintf(why, sizeof(why), "it stays on %s: %.150s",
             self->device[atomic_load(&r->device[l->shard])].name,
             bare_message(err, l->layer, l->id));
    residency_reason(self, l->shard, why);
    sy_metric_add(self->load_failures, 1);
}

static void end_failed(load *l, sy_status st, const sy_error *err)
{
    expert *self = l->expert;
    expert_shard *e = &self->residency.shard[l->shard];

    devices_look(self);
    residency_lock(self);
    if (l->is_move) {
        fail_move(l, st, err);
    } else {
        e->percent = 0;
        if (!device_failed(l->device) && (st == SY_ECANCELLED || !e->life.wanted))
            give_up(self, l->shard);
        else
            fail(self, l->shard, device_failed(l->device) ? &l->device->fault : err);
        residency_entered(self, l->shard);
    }
    residency_unlock(self);
}

static void load_one(expert_loader *loader, uint32_t shard)
{
    expert *self = loader->expert;
    load l = {.loader = loader,
              .expert = self,
              .shard = shard,
              .layer = shard / self->residency.experts,
              .id = shard % self->residency.experts,
              .device = &self->device[loader->device],
              .is_move = loader->is_move};
    sy_shard_builder *builder;
    sy_error err = {0};

    sy_error_clear(&err);
    sy_status st = l.is_move ? from_copy(&l, &builder, &err) : from_anywhere(&l, &builder, &err);
    if (st == SY_OK) {
        if (l.is_move ? publish_move(&l, builder, &err) : publish(&l, builder, &err)) return;
        sy_shard_abandon(builder); /* without the lock: it may wait for the device */
        st = err.status;
    }
    end_failed(&l, st, &err);
}

/* ---- threads ---- */

/* It is served from another GPU than the one that wants it. */
static int must_move(const expert *self, uint32_t shard)
{
    const residency *r = &self->residency;
    const expert_shard *e = &r->shard[shard];

    return e->life.state == SY_SHARD_RESIDENT && self->device[e->wanted_device].home != NULL &&
           atomic_load(&r->device[shard]) != e->wanted_device;
}

/* The first shard, in order of layers, that may be loaded now, or else moved; -1: none, and
 * *until_us is when one that failed may be tried again. Mutex held. */
static int64_t next_to_load(const expert *self, int64_t *until_us)
{
    const residency *r = &self->residency;
    const int64_t now_us = sy_clock_us();
    int64_t to_move = -1;

    *until_us = SY_NEVER_US;
    for (uint32_t i = 0; i < r->n_shards; i++) {
        const expert_shard *e = &r->shard[i];
        if (e->wanted_device == EXPERT_NO_DEVICE || e->moving ||
            device_failed(&self->device[e->wanted_device]))
            continue;
        if (sy_life_must_load(&e->life, now_us)) return i;
        if (e->life.state == SY_SHARD_FAILED) *until_us = SY_MIN(*until_us, e->life.retry_us);
        if (to_move >= 0 || !must_move(self, i)) continue;
        if (now_us >= e->move_retry_us)
            to_move = i;
        else
            *until_us = SY_MIN(*until_us, e->move_retry_us);
    }
    return to_move;
}

/* Mutex held. */
static void claim(expert_loader *loader, uint32_t shard)
{
    expert *self = loader->expert;
    residency *r = &self->residency;
    expert_shard *e = &r->shard[shard];

    loader->busy = 1;
    loader->shard = shard;
    loader->device = e->wanted_device;
    loader->is_move = e->life.state == SY_SHARD_RESIDENT;
    atomic_store(&loader->stop, 0);
    e->needs_room = 0;
    if (loader->is_move) {
        e->moving = 1;
        return;
    }
    atomic_store(&r->device[shard], e->wanted_device);
    e->percent = 0;
    sy_life_loading(&e->life, sy_clock_us());
    residency_entered(self, shard);
}

/* Mutex held. */
static void let_go(expert_loader *loader)
{
    residency *r = &loader->expert->residency;

    if (!loader->busy) return;
    loader->busy = 0;
    if (!loader->is_move) return;
    r->shard[loader->shard].moving = 0;
    pthread_cond_broadcast(&r->work); /* what was wanted meanwhile was left to this loader */
}

/* Sleeps until there is something to do and claims it; 0: the node stops. */
static int take_work(expert_loader *loader)
{
    expert *self = loader->expert;
    residency *r = &self->residency;
    int64_t shard = -1, until_us;

    residency_lock(self);
    let_go(loader);
    while (!r->stopping && (shard = next_to_load(self, &until_us)) < 0)
        residency_wait(self, &r->work, until_us);
    if (!r->stopping) claim(loader, (uint32_t)shard);
    residency_unlock(self);
    return loader->busy;
}

static void *loader_main(void *arg)
{
    expert_loader *loader = arg;

    while (take_work(loader)) load_one(loader, loader->shard);
    return NULL;
}

sy_status loader_open(expert *self, sy_error *err)
{
    for (uint32_t i = 0; i < self->n_loaders; i++) {
        expert_loader *loader = &self->residency.loader[i];
        const sy_status st = expert_idle_open(&loader->idle, err);
        if (st != SY_OK) return st;
        loader->expert = self;
        if (pthread_create(&loader->thread, NULL, loader_main, loader) != 0)
            return sy_error_set(err, SY_EIO, "no thread for a loader");
        loader->started = 1;
    }
    return SY_OK;
}

void loader_close(expert *self)
{
    for (uint32_t i = 0; i < EXPERT_LOADERS_MAX; i++) {
        expert_loader *loader = &self->residency.loader[i];
        if (loader->started) pthread_join(loader->thread, NULL);
        expert_idle_close(loader->idle);
    }
}
