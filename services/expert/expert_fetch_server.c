/* expert_fetch_server.c - the giving side of FetchShard: one sender thread that fills calls chunk
 * by chunk, in turn. A call never has more than a few chunks waiting, so memory does not grow with
 * slow peers; each running fetch holds its shard, which therefore outlives its unloading here. A
 * call whose client was told of the shard's slot has nothing to be sent any more: it is only kept,
 * so that the slot gets no other shard, until the client ends it or its time is over. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "expert_fetch.h"
#include "sy_clock.h"
#include "sy_digest.h"
#include "sy_fault.h"
#include "sy_service.h"
#include "sy_shard_remote.h"
#include "sy_shm.h"
#include "sy_wire.h"

#define QUEUED_CHUNKS_MAX 4
#define STALL_DEFAULT_US  ((int64_t)10 * 1000000)
#define HOLD_DEFAULT_US   ((int64_t)60 * 1000000)
#define LOOK_AGAIN_US     2000   /* nobody says when a call's queue shrinks */
#define HELD_LOOK_US      100000 /* but its end is told */
#define REQUEST_BYTES     ((size_t)1 << 16)

typedef struct fetch {
    sy_call *call;         /* a reference, held pending */
    const sy_shard *shard; /* a reference */
    sy_shard_form form;
    uint64_t offset, total_bytes;
    int64_t full_us;       /* since when its queue has been full; 0: it is not */
    sy_shm_ticket taker;   /* who may be offered the slot; bytes 0: nobody, or it has been tried */
    int64_t held_until_us; /* the slot has been offered; 0: it goes as bytes */
} fetch;

_Static_assert(sizeof(((sy_backend_export *)0)->handle) == SY_WIRE_HANDLE_BYTES, "it is sent");
_Static_assert(SY_SHM_KEY_BYTES == SY_WIRE_SHARED_KEY_BYTES, "it is sent");

struct expert_fetch_server {
    expert_fetch_server_config config;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows, up to the sender's own */
    pthread_cond_t wake;
    fetch arrived[EXPERT_FETCHES_MAX];
    uint32_t n_arrived, n_running; /* n_running: with those that have arrived */
    int stopping;
    _Atomic uint64_t given_bytes, n_offers;
    /* The sender's own. */
    fetch active[EXPERT_FETCHES_MAX];
    uint32_t n_active, turn;
    int64_t next_us; /* the limit allows a chunk from then on */
};

/* ---- a fetch from its request to its end ---- */

/* Its slots are laid out as here, and the probe's bits can be compared. */
static int may_offer(const expert_fetch_server *self, const sy_shard *shard,
                     const sy_slot_taker *taker)
{
    const sy_shard_home *home = shard->home;
    const float nan = __builtin_nanf("");

    /* Where weights may be anything, others look at every one of those that they take. */
    if (sy_model_is_sound(self->config.model, &nan, SY_F32, 1)) return 0;
    return self->config.offers_slots && taker->bytes != 0 && home != NULL &&
           taker->slot_bytes == sy_shard_home_slot_bytes(home) &&
           strcmp(taker->arithmetic, sy_shard_home_arithmetic(home)) == 0;
}

static sy_status check_request(fetch *f, expert_fetch_server *self, const sy_fetch_request *request,
                               sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(self->config.model);
    const uint32_t layer = request->layer, expert = request->expert;
    sy_status st = sy_service_check_model(sy_model_name(self->config.model), request->model, err);

    if (st != SY_OK) return st;
    if (layer >= desc->n_layers || expert >= desc->n_experts)
        return sy_error_set(err, SY_ENOTFOUND, "the model has no layer %u expert %u", layer,
                            expert);
    if (!sy_model_has_experts(desc, layer)) return sy_service_refuse_dense(layer, err);
    f->shard = sy_shard_get(self->config.store, layer, expert);
    if (f->shard == NULL || f->shard->identity.probe == 0) {
        st = sy_error_set(err, SY_EPRECONDITION, "layer %u expert %u is not in memory here", layer,
                          expert);
        sy_error_where(err, "SHARD_NOT_RESIDENT", (int32_t)layer, (int32_t)expert, NULL);
        return st;
    }
    sy_shard_form_in_memory(&f->form, f->shard);
    f->total_bytes = sy_shard_form_bytes(&f->form);
    f->offset = request->offset;
    if (request->content_hash != 0 && request->content_hash != f->shard->identity.content) {
        st = sy_error_set(err, SY_EPRECONDITION,
                          "layer %u expert %u has content %016llx here, not %016llx: fetch it from "
                          "the beginning",
                          layer, expert, (unsigned long long)f->shard->identity.content,
                          (unsigned long long)request->content_hash);
        sy_error_where(err, "SHARD_CHANGED", (int32_t)layer, (int32_t)expert, NULL);
        return st;
    }
    if (f->offset >= f->total_bytes)
        return sy_error_set(err, SY_EINVAL, "offset: %llu, but layer %u expert %u has %llu bytes",
                            (unsigned long long)f->offset, layer, expert,
                            (unsigned long long)f->total_bytes);
    if (may_offer(self, f->shard, &request->taker)) {
        f->taker = (sy_shm_ticket){
            .pid = request->taker.pid, .fd = request->taker.fd, .bytes = request->taker.bytes};
        memcpy(f->taker.key, request->taker.key, sizeof(f->taker.key));
    }
    return SY_OK;
}

/* Hands it to the sender, with both references. */
static sy_status accept_fetch(expert_fetch_server *self, fetch *f, sy_call *call, sy_error *err)
{
    sy_status st = SY_OK;

    f->call = sy_call_ref(call);
    sy_call_pending(call, 1);
    pthread_mutex_lock(&self->mutex);
    if (self->n_running == EXPERT_FETCHES_MAX) {
        st = sy_error_set(err, SY_ELIMIT, "%d shards are being fetched from here: try again later",
                          EXPERT_FETCHES_MAX);
        sy_error_where(err, "TOO_MANY_FETCHES", -1, -1, NULL);
    } else {
        self->n_running++;
        self->arrived[self->n_arrived++] = *f;
        pthread_cond_signal(&self->wake);
    }
    pthread_mutex_unlock(&self->mutex);
    return st;
}

/* Lets go of everything; err NULL: it is complete. */
static void end_fetch(expert_fetch_server *self, fetch *f, const sy_error *err)
{
    if (f->call != NULL) {
        sy_call_finish(f->call, err);
        sy_call_pending(f->call, -1);
        sy_call_unref(f->call);
    }
    sy_shard_put(self->config.store, f->shard);
}

void expert_fetch_message(void *ctx, sy_call *call, sy_msg *msg)
{
    expert_fetch_server *self = ctx;
    sy_fetch_request request;
    fetch f = {0};
    sy_arena arena;
    sy_error err;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);
    sy_status st;

    sy_error_clear(&err);
    sy_arena_init(&arena, REQUEST_BYTES);
    st = sy_wire_fetch_request_decode(&request, &arena, iov, n, &err);
    if (st == SY_OK) st = check_request(&f, self, &request, &err);
    if (st == SY_OK) st = accept_fetch(self, &f, call, &err);
    sy_arena_free(&arena);
    if (st == SY_OK) return;
    if (f.call == NULL) sy_call_finish(call, &err);
    end_fetch(self, &f, &err);
}

void expert_fetch_end(void *ctx, sy_call *call, int cancelled)
{
    expert_fetch_server *self = ctx;

    (void)call;
    if (!cancelled) return;
    pthread_mutex_lock(&self->mutex);
    pthread_cond_signal(&self->wake); /* the sender sees which one it was */
    pthread_mutex_unlock(&self->mutex);
}

/* ---- the sender ---- */

/* Without data. */
static sy_shard_chunk chunk_of(const fetch *f)
{
    const sy_shard *shard = f->shard;
    sy_shard_chunk chunk = {.layer = shard->layer,
                            .expert = shard->expert,
                            .content_hash = shard->identity.content,
                            .probe_hash = shard->identity.probe,
                            .total_bytes = f->total_bytes,
                            .offset = f->offset,
                            .n_tensors = f->form.n};

    memcpy(chunk.dtype, f->form.dtype, sizeof(chunk.dtype));
    memcpy(chunk.rows, f->form.rows, sizeof(chunk.rows));
    memcpy(chunk.cols, f->form.cols, sizeof(chunk.cols));
    return chunk;
}

/* A taker that keeps to the limit, as all that run together have to, may need so long. */
static int64_t hold_us_of(const expert_fetch_server *self, const fetch *f)
{
    const uint64_t limit = self->config.bytes_per_s_max;
    const int64_t seconds = limit == 0 ? 0 : (int64_t)(f->total_bytes / limit + 1);

    return self->config.hold_us + seconds * EXPERT_FETCHES_MAX * 1000000;
}

/* 1: the taker knows the slot, and the shard stays there for it. 0: it goes as bytes. */
static int offer_slot(expert_fetch_server *self, fetch *f)
{
    const sy_shm_ticket taker = f->taker;
    sy_shard_chunk chunk = chunk_of(f);
    sy_shard_offer offer;
    sy_shm_view *view;
    sy_frame frame;

    f->taker.bytes = 0;
    if (sy_shm_attach(&view, &taker, NULL) != SY_OK) return 0;
    sy_shm_view_unref(view); /* that it could be opened is all that was asked */
    if (sy_shard_offer_of(&offer, f->shard, NULL) != SY_OK) return 0;
    chunk.slot = (sy_chunk_slot){.slot_bytes = offer.pool.slot_bytes,
                                 .n_slots = offer.pool.n_slots,
                                 .slot = offer.slot,
                                 .home_hash = offer.home_hash};
    memcpy(chunk.slot.handle, offer.pool.handle, sizeof(chunk.slot.handle));
    if (sy_fault_hit("expert.offer")) /* as if another shard lay there */
        chunk.slot.home_hash ^= 1;
    if (sy_wire_shard_chunk_encode(&frame, &chunk, NULL) != SY_OK) return 0;
    if (sy_call_send(f->call, &frame) != SY_OK) return 0;
    f->held_until_us = sy_clock_us() + hold_us_of(self, f);
    atomic_fetch_add(&self->n_offers, 1);
    return 1;
}

static sy_status send_chunk(expert_fetch_server *self, fetch *f)
{
    const sy_shard *shard = f->shard;
    const size_t n = (size_t)SY_MIN(f->total_bytes - f->offset, (uint64_t)EXPERT_FETCH_CHUNK_BYTES);
    sy_buf *bulk = sy_buf_alloc(n);
    sy_shard_chunk chunk = chunk_of(f);
    sy_frame frame;
    sy_status st;

    if (bulk == NULL) return SY_ENOMEM;
    if (sy_shard_export(shard, f->offset, bulk->data, n) != n) { /* its device is lost */
        sy_buf_unref(bulk);
        return SY_EUNAVAILABLE;
    }
    chunk.data = bulk->data;
    chunk.n_bytes = n;
    chunk.chunk_hash = sy_digest(bulk->data, n);
    if (sy_fault_hit("expert.fetch")) /* a bit that flips on the way */
        ((uint8_t *)bulk->data)[n / 2] ^= 1;
    st = sy_wire_shard_chunk_encode(&frame, &chunk, bulk);
    sy_buf_unref(bulk);
    if (st == SY_OK) st = sy_call_send(f->call, &frame);
    if (st != SY_OK) return st;
    f->offset += n;
    atomic_fetch_add(&self->given_bytes, n);
    return SY_OK;
}

/* Keeps all fetches together under the limit: a chunk is paid for after it is sent. */
static void pay(expert_fetch_server *self, uint64_t n_bytes, int64_t now_us)
{
    const uint64_t limit = self->config.bytes_per_s_max;

    if (limit == 0) return;
    self->next_us = SY_MAX(self->next_us, now_us) + (int64_t)(n_bytes * 1000000 / limit);
}

typedef enum step { STEP_BLOCKED, STEP_SENT, STEP_ENDED } step;

static const char *why_ended(const fetch *f, sy_status st)
{
    if (st != SY_EDEADLINE) return sy_status_name(st);
    return f->held_until_us != 0 ? "the peer has not copied it out of its slot"
                                 : "the peer does not read";
}

/* One chunk of one fetch, or its end. */
static step serve(expert_fetch_server *self, fetch *f)
{
    const int64_t now_us = sy_clock_us();
    const uint64_t before = f->offset;
    sy_error err;
    sy_status st = SY_OK;

    sy_error_clear(&err);
    if (sy_call_ended(f->call)) {
        st = SY_ECANCELLED;
    } else if (f->held_until_us != 0) {
        if (now_us < f->held_until_us) return STEP_BLOCKED;
        st = SY_EDEADLINE;
    } else if (f->taker.bytes != 0 && offer_slot(self, f)) {
        return STEP_SENT;
    } else if (sy_call_queued(f->call) >= QUEUED_CHUNKS_MAX) {
        if (f->full_us == 0) f->full_us = now_us;
        if (now_us - f->full_us < self->config.stall_us) return STEP_BLOCKED;
        st = SY_EDEADLINE;
    } else {
        f->full_us = 0;
        if (now_us < self->next_us) return STEP_BLOCKED;
        st = send_chunk(self, f);
        pay(self, f->offset - before, now_us);
    }
    if (st == SY_OK && f->offset < f->total_bytes) return STEP_SENT;
    if (st != SY_OK)
        sy_error_set(&err, st, "layer %u expert %u: the fetch ended at %llu of %llu bytes: %s",
                     f->shard->layer, f->shard->expert, (unsigned long long)f->offset,
                     (unsigned long long)f->total_bytes, why_ended(f, st));
    end_fetch(self, f, st == SY_OK ? NULL : &err);
    return STEP_ENDED;
}

/* Serves the next one in turn that is not blocked. 0: all are. */
static int serve_one(expert_fetch_server *self)
{
    for (uint32_t k = 0; k < self->n_active; k++) {
        const uint32_t i = (self->turn + k) % self->n_active;
        const step done = serve(self, &self->active[i]);

        if (done == STEP_BLOCKED) continue;
        self->turn = i + 1;
        if (done == STEP_ENDED) {
            self->active[i] = self->active[--self->n_active];
            self->turn = i;
            pthread_mutex_lock(&self->mutex);
            self->n_running--;
            pthread_mutex_unlock(&self->mutex);
        }
        return 1;
    }
    return 0;
}

/* When all are blocked. */
static int64_t look_again_us(const expert_fetch_server *self)
{
    for (uint32_t i = 0; i < self->n_active; i++)
        if (self->active[i].held_until_us == 0) return LOOK_AGAIN_US;
    return HELD_LOOK_US;
}

/* Mutex held. Sleeps as long as there is nothing to do, a moment when all are blocked. */
static void wait_for_work(expert_fetch_server *self, int blocked)
{
    const int64_t now_us = sy_clock_us();
    const int64_t until_us =
        now_us + SY_MAX(SY_MIN(self->next_us - now_us, 20000), look_again_us(self));
    const struct timespec until = {.tv_sec = until_us / 1000000,
                                   .tv_nsec = until_us % 1000000 * 1000};

    while (!self->stopping && self->n_active + self->n_arrived == 0)
        pthread_cond_wait(&self->wake, &self->mutex);
    if (blocked && !self->stopping && self->n_arrived == 0)
        (void)pthread_cond_timedwait(&self->wake, &self->mutex, &until);
}

static void *sender_main(void *arg)
{
    expert_fetch_server *self = arg;
    int blocked = 0;

    pthread_setname_np(pthread_self(), "sy-fetch");
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* of this thread: requests come first */
    for (;;) {
        pthread_mutex_lock(&self->mutex);
        wait_for_work(self, blocked && self->n_active > 0);
        while (self->n_arrived > 0)
            self->active[self->n_active++] = self->arrived[--self->n_arrived];
        const int stopping = self->stopping;
        pthread_mutex_unlock(&self->mutex);
        if (stopping) break;
        blocked = !serve_one(self);
    }
    return NULL;
}

/* ---- life ---- */

sy_status expert_fetch_server_open(expert_fetch_server **out,
                                   const expert_fetch_server_config *config, sy_error *err)
{
    expert_fetch_server *self = calloc(1, sizeof(*self));
    pthread_condattr_t monotonic;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for giving shards away");
    self->config = *config;
    if (self->config.stall_us == 0) self->config.stall_us = STALL_DEFAULT_US;
    if (self->config.hold_us == 0) self->config.hold_us = HOLD_DEFAULT_US;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&self->thread, NULL, sender_main, self) != 0) {
        pthread_cond_destroy(&self->wake);
        pthread_mutex_destroy(&self->mutex);
        free(self);
        return sy_error_set(err, SY_EIO, "no thread for giving shards away");
    }
    *out = self;
    return SY_OK;
}

void expert_fetch_server_close(expert_fetch_server *server)
{
    sy_error err;

    if (server == NULL) return;
    pthread_mutex_lock(&server->mutex);
    server->stopping = 1;
    pthread_cond_signal(&server->wake);
    pthread_mutex_unlock(&server->mutex);
    pthread_join(server->thread, NULL);
    sy_error_clear(&err);
    sy_error_set(&err, SY_EUNAVAILABLE, "the node is shutting down");
    while (server->n_active > 0) end_fetch(server, &server->active[--server->n_active], &err);
    pthread_cond_destroy(&server->wake);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

uint32_t expert_fetch_server_running(expert_fetch_server *server)
{
    pthread_mutex_lock(&server->mutex);
    const uint32_t n = server->n_running;
    pthread_mutex_unlock(&server->mutex);
    return n;
}

uint64_t expert_fetch_server_bytes(const expert_fetch_server *server)
{
    return atomic_load(&server->given_bytes);
}

uint64_t expert_fetch_server_slots(const expert_fetch_server *server)
{
    return atomic_load(&server->n_offers);
}
