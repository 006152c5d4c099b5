/* expert_fetch.c - the taking side of FetchShard: asks sources one after another until a shard is
 * whole, goes on where a connection was lost, and believes nothing that it has not checked. A
 * blocking call cannot watch its own time, so one thread a node does that for all that run.
 *
 * A source that says where the shard lies in a GPU of this machine keeps it there until it is told
 * that the copy is done, or believes that nobody copies any more; it may die, too. Nothing here
 * finds out whether it kept its word while the copy ran, because the copy's hash does: if the slot
 * got another shard, or its memory was gone, what came is not what was announced. */
#include "expert_fetch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sy_clock.h"
#include "sy_digest.h"
#include "sy_log.h"
#include "sy_shard_remote.h"
#include "sy_shm.h"
#include "sy_wire.h"

#define STALL_DEFAULT_US ((int64_t)5 * 1000000)
#define TOTAL_DEFAULT_US ((int64_t)600 * 1000000)
#define LOOK_US          20000 /* how often waits are looked at: how late a stop may be seen */
#define PAUSE_US         50000 /* before a source is asked again; doubles */
#define LOST_MAX         4     /* connections lost, or busy peers, in one fetch, besides one each */
#define SOURCES_MAX      64
#define MESSAGE_BYTES    ((size_t)SY_WIRE_CHUNK_MAX + 4096)
#define DETAIL_BYTES     2048
#define STEP_DEFAULT     ((size_t)1 << 20)
#define SLOT_LOG_US      ((int64_t)10 * 1000000)

_Static_assert(SY_SHARD_PARTS_MAX == SY_WIRE_TENSORS_MAX, "a form is copied as it is");

typedef enum verdict { IN_TIME, STALLED, STOPPED } verdict;

/* A call that somebody waits for. (That a whole fetch takes too long is the call's own deadline.)
 */
typedef struct watched {
    sy_client_call *call;
    int64_t stalled_us;
    const atomic_int *stop;
    verdict verdict; /* not IN_TIME: it has been cancelled */
    struct watched *next;
} watched;

struct expert_fetcher {
    expert_fetcher_config config;
    sy_shm *shown; /* by which givers see who asks; NULL: no slots */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake;
    watched *first;
    int stopping;
};

/* What a source's answer means for the fetch. */
typedef enum outcome {
    COMPLETE,
    AGAIN,    /* the connection was lost, or the peer is busy: what is here stays */
    WITHOUT,  /* it has not the shard: the others may */
    WRONG,    /* its bytes or messages are wrong: so may be what it sent before */
    BY_BYTES, /* what it offered came to nothing: it is to send the bytes */
    FATAL     /* nothing that another source would change */
} outcome;

typedef struct taking {
    expert_fetcher *fetcher;
    const expert_fetch_job *job;
    sy_arena arena;
    sy_shard_builder *builder; /* NULL before the first chunk */
    sy_shard_chunk first;      /* what that one announced; its data is not kept */
    int64_t late_us;
    size_t source;     /* the one that is asked */
    uint64_t by_bytes; /* those that are not asked for their slot any more */
    int is_slot;    /* it is asked for its slot now, and if there is a builder, that is from it */
    sy_error wrong; /* the last one whose bytes were wrong: worth more than one that was absent */
} taking;

/* ---- the watch ---- */

static verdict judge(const watched *w, int64_t now_us)
{
    if (w->stop != NULL && atomic_load(w->stop) != 0) return STOPPED;
    return now_us >= w->stalled_us ? STALLED : IN_TIME;
}

static void *watch_main(void *arg)
{
    expert_fetcher *self = arg;

    pthread_setname_np(pthread_self(), "sy-fetch-watch");
    pthread_mutex_lock(&self->mutex);
    while (!self->stopping) {
        const int64_t now_us = sy_clock_us(), until_us = now_us + LOOK_US;
        const struct timespec until = {.tv_sec = until_us / 1000000,
                                       .tv_nsec = until_us % 1000000 * 1000};

        for (watched *w = self->first; w != NULL; w = w->next) {
            if (w->verdict != IN_TIME) continue;
            w->verdict = judge(w, now_us);
            if (w->verdict != IN_TIME) sy_client_cancel(w->call);
        }
        if (self->first == NULL)
            pthread_cond_wait(&self->wake, &self->mutex);
        else
            (void)pthread_cond_timedwait(&self->wake, &self->mutex, &until);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void watch_begin(expert_fetcher *self, watched *w)
{
    pthread_mutex_lock(&self->mutex);
    w->next = self->first;
    self->first = w;
    if (w->next == NULL) pthread_cond_signal(&self->wake);
    pthread_mutex_unlock(&self->mutex);
}

static void watch_end(expert_fetcher *self, const watched *w)
{
    pthread_mutex_lock(&self->mutex);
    for (watched **at = &self->first; *at != NULL; at = &(*at)->next) {
        if (*at != w) continue;
        *at = w->next;
        break;
    }
    pthread_mutex_unlock(&self->mutex);
}

/* The next message, or NULL with SY_OK at the stream's end; in time, or not at all. */
static sy_status next_in_time(taking *t, sy_client_call *call, sy_msg **msg, sy_error *err)
{
    const int64_t stall_us = t->fetcher->config.stall_us;
    watched w = {.call = call, .stalled_us = sy_clock_us() + stall_us, .stop = t->job->stop};
    uint8_t detail[DETAIL_BYTES];
    sy_status st;

    watch_begin(t->fetcher, &w);
    st = sy_client_next(call, msg, err);
    watch_end(t->fetcher, &w);
    if (w.verdict == IN_TIME) {
        if (st != SY_OK)
            sy_wire_error_from_details(err, detail,
                                       sy_client_details(call, detail, sizeof(detail)));
        return st;
    }
    sy_msg_free(*msg);
    *msg = NULL;
    sy_error_clear(err);
    if (w.verdict == STOPPED) return sy_error_set(err, SY_ECANCELLED, "the fetch was stopped");
    return sy_error_set(err, SY_EDEADLINE, "sent nothing for %lld ms",
                        (long long)(stall_us / 1000));
}

/* ---- one chunk ---- */

static uint64_t added(const taking *t)
{
    return t->builder == NULL ? 0 : sy_shard_added(t->builder);
}

static sy_status check_chunk(const taking *t, const sy_shard_chunk *c, sy_error *err)
{
    const sy_shard_chunk *first = t->builder == NULL ? c : &t->first;

    if (c->layer != t->job->layer || c->expert != t->job->expert)
        return sy_error_set(err, SY_EINVAL, "sent layer %u expert %u", c->layer, c->expert);
    if (c->content_hash == 0 || c->probe_hash == 0)
        return sy_error_set(err, SY_EINVAL, "does not say what the shard is known by");
    if (c->content_hash != first->content_hash || c->probe_hash != first->probe_hash)
        return sy_error_set(
            err, SY_EDATALOSS, "the shard changed on the way: content %016llx, before %016llx",
            (unsigned long long)c->content_hash, (unsigned long long)first->content_hash);
    if (c->total_bytes != first->total_bytes || c->n_tensors != first->n_tensors ||
        memcmp(c->dtype, first->dtype, sizeof(c->dtype)) != 0 ||
        memcmp(c->rows, first->rows, sizeof(c->rows)) != 0 ||
        memcmp(c->cols, first->cols, sizeof(c->cols)) != 0)
        return sy_error_set(err, SY_EINVAL, "the shard's form changed on the way");
    if (c->slot.slot_bytes != 0 && !t->is_slot)
        return sy_error_set(err, SY_EINVAL, "offers a slot, which it was not asked for");
    if (c->offset != added(t))
        return sy_error_set(err, SY_EINVAL, "sent the bytes from %llu on, not from %llu",
                            (unsigned long long)c->offset, (unsigned long long)added(t));
    if (c->slot.slot_bytes == 0 && sy_digest(c->data, c->n_bytes) != c->chunk_hash)
        return sy_error_set(err, SY_EDATALOSS, "the bytes from %llu on were damaged on the way",
                            (unsigned long long)c->offset);
    return SY_OK;
}

static outcome begin(taking *t, const sy_shard_chunk *c, sy_error *err)
{
    sy_shard_form form = {.n = c->n_tensors};
    sy_status st;

    memcpy(form.dtype, c->dtype, sizeof(form.dtype));
    memcpy(form.rows, c->rows, sizeof(form.rows));
    memcpy(form.cols, c->cols, sizeof(form.cols));
    st = sy_shard_begin_on(&t->builder, t->fetcher->config.store, t->job->home, c->layer, c->expert,
                           &form, err);
    if (st != SY_OK) return st == SY_EINVAL ? WRONG : FATAL;
    t->first = *c;
    t->first.data = NULL;
    return COMPLETE;
}

static int is_stopped(const taking *t)
{
    return t->job->stop != NULL && atomic_load(t->job->stop) != 0;
}

static outcome too_late(const taking *t, sy_error *err)
{
    const expert_source *source = &t->job->source[t->source];

    sy_error_clear(err);
    sy_error_set(err, SY_EDEADLINE, "layer %u expert %u: %llu bytes are here after %lld s, from %s",
                 t->job->layer, t->job->expert, (unsigned long long)added(t),
                 (long long)(t->fetcher->config.total_us / 1000000), source->node);
    sy_error_where(err, NULL, (int32_t)t->job->layer, (int32_t)t->job->expert, source->node);
    return FATAL;
}

static void tell_progress(const taking *t)
{
    if (t->job->progress != NULL)
        t->job->progress(t->job->progress_arg, added(t), t->first.total_bytes);
}

/* All that lies there, copied by this node's GPU while the giver keeps it. */
static outcome take_slot(taking *t, const sy_chunk_slot *slot, sy_error *err)
{
    sy_shard_offer offer = {.pool = {.slot_bytes = slot->slot_bytes, .n_slots = slot->n_slots},
                            .slot = slot->slot,
                            .home_hash = slot->home_hash,
                            .identity = {t->first.content_hash, t->first.probe_hash}};
    int done = 0;

    memcpy(offer.pool.handle, slot->handle, sizeof(offer.pool.handle));
    while (!done) {
        sy_status st;

        if (is_stopped(t)) {
            sy_error_set(err, SY_ECANCELLED, "the fetch was stopped");
            return FATAL;
        }
        if (sy_clock_us() >= t->late_us) return too_late(t, err);
        st = sy_shard_add_from_offer(t->builder, &offer, t->fetcher->config.slot_step_bytes, &done,
                                     err);
        if (st != SY_OK) return sy_shard_home_lost(t->job->home, NULL) ? FATAL : BY_BYTES;
        tell_progress(t);
    }
    return COMPLETE;
}

/* COMPLETE: the chunk is packed, whether others follow or not. */
static outcome take_chunk(taking *t, const sy_msg *msg, sy_error *err)
{
    sy_shard_chunk c;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);
    sy_status st;

    sy_arena_reset(&t->arena);
    st = sy_wire_shard_chunk_decode(&c, &t->arena, iov, n, err);
    if (st == SY_ENOMEM) return FATAL;
    if (st == SY_OK) st = check_chunk(t, &c, err);
    if (st != SY_OK) return WRONG;
    if (t->builder == NULL) {
        const outcome begun = begin(t, &c, err);
        if (begun != COMPLETE) return begun;
    }
    if (c.slot.slot_bytes != 0) return take_slot(t, &c.slot, err);
    t->is_slot = 0;
    st = sy_shard_add(t->builder, c.data, c.n_bytes, err);
    if (st != SY_OK) return st == SY_EINVAL || st == SY_EDATALOSS ? WRONG : FATAL;
    tell_progress(t);
    return COMPLETE;
}

/* ---- one source ---- */

static outcome outcome_of(sy_status st)
{
    switch (st) {
    case SY_OK: return COMPLETE;
    case SY_ENOTFOUND:
    case SY_EPRECONDITION:
    case SY_EUNIMPLEMENTED: return WITHOUT;
    case SY_EINVAL:
    case SY_EDATALOSS: return WRONG;
    default: return AGAIN;
    }
}

static int is_whole(const taking *t)
{
    return t->builder != NULL && added(t) == t->first.total_bytes;
}

/* Messages until the shard is whole. */
static outcome receive(taking *t, sy_client_call *call, sy_error *err)
{
    while (!is_whole(t)) {
        sy_msg *msg;
        outcome taken;
        const sy_status st = next_in_time(t, call, &msg, err);

        if (st != SY_OK && is_stopped(t)) return FATAL;
        if (st != SY_OK && sy_clock_us() >= t->late_us) return too_late(t, err);
        if (st != SY_OK) return outcome_of(st);
        if (msg == NULL) {
            sy_error_set(err, SY_EUNAVAILABLE, "ended the stream after %llu bytes",
                         (unsigned long long)added(t));
            return AGAIN;
        }
        taken = take_chunk(t, msg, err);
        sy_msg_free(msg);
        if (taken != COMPLETE) return taken;
    }
    return COMPLETE;
}

/* This node as a taker, if the shard goes to a GPU and nothing of it is here yet. */
static int offer_to_take(taking *t, sy_slot_taker *out)
{
    const sy_shard_home *home = t->job->home;
    sy_shm_ticket ticket;

    if (t->fetcher->shown == NULL || home == NULL || t->builder != NULL ||
        (t->by_bytes >> t->source & 1) != 0)
        return 0;
    sy_shm_get_ticket(t->fetcher->shown, &ticket);
    *out = (sy_slot_taker){.pid = ticket.pid,
                           .fd = ticket.fd,
                           .bytes = ticket.bytes,
                           .arithmetic = sy_shard_home_arithmetic(home),
                           .slot_bytes = sy_shard_home_slot_bytes(home)};
    memcpy(out->key, ticket.key, sizeof(out->key));
    return 1;
}

static outcome ask(taking *t, sy_error *err)
{
    sy_fetch_request request = {.model = sy_model_name(t->fetcher->config.model),
                                .layer = t->job->layer,
                                .expert = t->job->expert,
                                .offset = added(t),
                                .content_hash = t->builder == NULL ? 0 : t->first.content_hash};
    sy_client *client = NULL;
    sy_client_call *call = NULL;
    sy_frame frame;
    outcome got;
    sy_status st;

    t->is_slot = offer_to_take(t, &request.taker);
    SY_TRY(sy_client_open(&client, t->job->source[t->source].address, MESSAGE_BYTES, err));
    SY_TRY(sy_wire_fetch_request_encode(&frame, &request, NULL));
    SY_TRY(sy_client_start(&call, client, EXPERT_FETCH_PATH, &frame, t->late_us, 0, err));
out:
    got = st == SY_OK ? receive(t, call, err) : outcome_of(st);
    sy_client_end(call);
    sy_client_close(client);
    return got;
}

/* What lies in memory is exactly what was announced. */
static outcome verify(taking *t, sy_error *err)
{
    sy_shard_identity is;
    const sy_status st = sy_shard_verify(t->builder, &is, t->fetcher->config.kernels, err);

    if (st == SY_EDATALOSS && t->is_slot) return BY_BYTES;
    if (st != SY_OK) return FATAL;
    if (is.content == t->first.content_hash &&
        (is.probe == t->first.probe_hash || t->job->source[t->source].other_arithmetic))
        return COMPLETE;
    sy_error_set(err, SY_EDATALOSS,
                 "announced content %016llx probe %016llx, but sent content %016llx probe %016llx",
                 (unsigned long long)t->first.content_hash, (unsigned long long)t->first.probe_hash,
                 (unsigned long long)is.content, (unsigned long long)is.probe);
    sy_error_where(err, "SHARD_CORRUPT", -1, -1, NULL);
    return WRONG;
}

/* ---- all sources ---- */

/* The next one from `from` on that is not excluded; n: there is none. */
static size_t next_source(uint64_t excluded, size_t from, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const size_t i = (from + k) % n;
        if ((excluded >> i & 1) == 0) return i;
    }
    return n;
}

static void pause_for(const taking *t, int64_t pause_us)
{
    const int64_t until_us = SY_MIN(sy_clock_us() + pause_us, t->late_us);
    const struct timespec moment = {.tv_nsec = LOOK_US * 1000 / 4};

    while (!is_stopped(t) && sy_clock_us() < until_us) nanosleep(&moment, NULL);
}

static void throw_away(taking *t)
{
    sy_shard_abandon(t->builder);
    t->builder = NULL;
}

/* That it costs time, and says something about a machine, is all: the shard comes as bytes. */
static void tell_of_slot(const sy_error *err)
{
    static _Atomic int64_t logged_us;

    if (sy_log_due(&logged_us, SLOT_LOG_US))
        sy_log_error(SY_LOG_WARN, err,
                     "a shard is not copied from GPU to GPU by CUDA IPC, but sent as bytes");
}

/* What follows from a source's answer that is not the whole shard. */
static void draw_conclusions(taking *t, outcome got, uint64_t *excluded, sy_error *err)
{
    const expert_source *source = &t->job->source[t->source];
    const uint64_t bit = (uint64_t)1 << t->source;

    sy_error_prefix(err, "%s", source->node);
    sy_error_where(err, NULL, (int32_t)t->job->layer, (int32_t)t->job->expert, source->node);
    if (got == AGAIN && err->status != SY_EDEADLINE)
        err->status = SY_EUNAVAILABLE; /* its lack of anything is not ours */
    if (got == WRONG) t->wrong = *err;
    if (got == WRONG || got == BY_BYTES) throw_away(t);
    if (got == WRONG || got == WITHOUT) *excluded |= bit;
    if (got != BY_BYTES) return;
    t->by_bytes |= bit;
    tell_of_slot(err);
}

/* Until the shard is whole and verified, or err says why not. */
static outcome take(taking *t, size_t n, sy_error *err)
{
    uint64_t excluded = 0;
    size_t n_lost = 0;
    outcome got = WITHOUT;

    while (!is_stopped(t)) {
        t->source = next_source(excluded, t->source, n);
        if (t->source == n) return got;
        sy_error_clear(err);
        got = ask(t, err);
        if (got == COMPLETE) got = verify(t, err);
        if (got == COMPLETE) return got;
        if (got == FATAL) return got;
        draw_conclusions(t, got, &excluded, err);
        if (got != AGAIN) continue;
        if (n_lost++ >= n - 1 + LOST_MAX) return got;
        pause_for(t, (int64_t)PAUSE_US << SY_MIN(n_lost - 1, (size_t)LOST_MAX));
        t->source++;
    }
    sy_error_clear(err);
    sy_error_set(err, SY_ECANCELLED, "the fetch was stopped");
    return FATAL;
}

sy_status expert_fetch(expert_fetcher *fetcher, sy_shard_builder **out, expert_fetched *fetched,
                       const expert_fetch_job *job, sy_error *err)
{
    taking t = {
        .fetcher = fetcher, .job = job, .late_us = sy_clock_us() + fetcher->config.total_us};
    sy_error local; /* err may be NULL, and the status is in it */
    outcome got;

    *out = NULL;
    sy_error_clear(&local);
    sy_error_set(&local, SY_ENOTFOUND, "nobody has layer %u expert %u", job->layer, job->expert);
    sy_error_clear(&t.wrong);
    sy_arena_init(&t.arena, 2 * MESSAGE_BYTES);
    got = take(&t, SY_MIN(job->n_sources, (size_t)SOURCES_MAX), &local);
    if (got == COMPLETE) {
        *out = t.builder;
        if (fetched != NULL) *fetched = (expert_fetched){t.source, t.first.total_bytes, t.is_slot};
        sy_error_clear(&local);
    } else {
        sy_shard_abandon(t.builder);
        if (got != FATAL && t.wrong.status != SY_OK) local = t.wrong;
    }
    sy_arena_free(&t.arena);
    if (err != NULL) *err = local;
    return local.status;
}

/* ---- life ---- */

/* Without it shards come as bytes, which is no reason not to start. */
static void open_shown(expert_fetcher *self)
{
    sy_error why = {0};

    sy_error_clear(&why);
    if (self->config.takes_slots && sy_shm_create(&self->shown, 1, &why) != SY_OK)
        sy_log_error(SY_LOG_WARN, &why, "no shard is copied from GPU to GPU by CUDA IPC");
}

sy_status expert_fetcher_open(expert_fetcher **out, const expert_fetcher_config *config,
                              sy_error *err)
{
    expert_fetcher *self = calloc(1, sizeof(*self));
    pthread_condattr_t monotonic;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for fetching shards");
    self->config = *config;
    if (self->config.stall_us == 0) self->config.stall_us = STALL_DEFAULT_US;
    if (self->config.total_us == 0) self->config.total_us = TOTAL_DEFAULT_US;
    if (self->config.slot_step_bytes == 0) self->config.slot_step_bytes = STEP_DEFAULT;
    open_shown(self);
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&self->thread, NULL, watch_main, self) != 0) {
        pthread_cond_destroy(&self->wake);
        pthread_mutex_destroy(&self->mutex);
        sy_shm_unref(self->shown);
        free(self);
        return sy_error_set(err, SY_EIO, "no thread for fetching shards");
    }
    *out = self;
    return SY_OK;
}

void expert_fetcher_close(expert_fetcher *fetcher)
{
    if (fetcher == NULL) return;
    pthread_mutex_lock(&fetcher->mutex);
    SY_ASSERT(fetcher->first == NULL);
    fetcher->stopping = 1;
    pthread_cond_signal(&fetcher->wake);
    pthread_mutex_unlock(&fetcher->mutex);
    pthread_join(fetcher->thread, NULL);
    pthread_cond_destroy(&fetcher->wake);
    pthread_mutex_destroy(&fetcher->mutex);
    sy_shm_unref(fetcher->shown);
    free(fetcher);
}
