/* sy_shard_store.c - which shards are in memory: a table of [layers][experts], guarded by one mutex
 * that is held for pointer work only. Building and freeing happen outside it, so several threads
 * load at once and readers never wait for a disk, nor for the system to take pages back. */
#include "sy_shard.h"

#include <pthread.h>
#include <stdlib.h>

#include "sy_pages.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

typedef struct slot {
    sy_shard *shard;   /* what readers find; while a copy of it is built, the one before */
    uint32_t building; /* somebody has claimed it */
} slot;

typedef struct held {
    sy_shard shard; /* first: a sy_shard is its held */
    uint32_t refs;  /* under the store's mutex */
} held;

struct sy_shard_store {
    const sy_model *model;
    sy_precision precision;
    uint32_t layers, experts;
    uint64_t memory_max, bytes; /* bytes: of what is in host memory, still held, or claimed */
    uint32_t count;
    pthread_mutex_t mutex;
    pthread_cond_t settled;
    slot *table;
};

sy_status sy_shard_store_open(sy_shard_store **out, const sy_model *model, sy_precision precision,
                              uint64_t memory_bytes_max, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    const sy_status st = sy_shard_check_weights(model, precision.weights, err);
    sy_shard_store *store;

    *out = NULL;
    if (st != SY_OK) return st;
    store = calloc(1, sizeof(*store));
    if (store != NULL)
        store->table = calloc((size_t)desc->n_layers * desc->n_experts, sizeof(slot));
    if (store == NULL || store->table == NULL) {
        free(store);
        return sy_error_set(err, SY_ENOMEM, "no memory for the shard table");
    }
    store->model = model;
    store->precision = precision;
    store->layers = desc->n_layers;
    store->experts = desc->n_experts;
    store->memory_max = memory_bytes_max;
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->settled, NULL);
    *out = store;
    return SY_OK;
}

void sy_shard_store_close(sy_shard_store *store)
{
    if (store == NULL) return;
    for (size_t i = 0; i < (size_t)store->layers * store->experts; i++) {
        SY_ASSERT(!store->table[i].building);
        sy_shard_free(store->table[i].shard);
    }
    pthread_cond_destroy(&store->settled);
    pthread_mutex_destroy(&store->mutex);
    free(store->table);
    free(store);
}

const sy_model *sy_shard_store_model(const sy_shard_store *store)
{
    return store->model;
}

sy_precision sy_shard_store_precision(const sy_shard_store *store)
{
    return store->precision;
}

/* ---- one shard's memory ---- */

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Where each part begins in the allocation, and the one after the last would: its size. 0: there
 * are no parts, or they are too large for this machine. */
static int lay_out(size_t at[SY_SHARD_PARTS_MAX + 1], const sy_shard_form *form)
{
    at[0] = 0;
    for (unsigned i = 0; i < form->n; i++) {
        const size_t bytes = sy_panels_bytes(form->dtype[i], form->rows[i], form->cols[i]);
        if (bytes == 0 || bytes > SIZE_MAX / 8) return 0;
        at[i + 1] = at[i] + align64(bytes);
    }
    return form->n > 0;
}

uint64_t sy_shard_packed_bytes(const sy_shard_form *form)
{
    size_t at[SY_SHARD_PARTS_MAX + 1];

    return lay_out(at, form) ? at[form->n] : 0;
}

sy_shard *sy_shard_make(const sy_shard_form *form, sy_activations activations, uint32_t layer,
                        uint32_t expert)
{
    held *made = calloc(1, sizeof(*made));
    uint8_t *data = NULL;
    size_t at[SY_SHARD_PARTS_MAX + 1] = {0};

    if (made != NULL && form->n >= SY_SHARD_MATRICES && lay_out(at, form))
        data = sy_pages_alloc(at[form->n]);
    if (data == NULL) {
        free(made);
        return NULL;
    }
    made->shard = (sy_shard){
        .layer = layer,
        .expert = expert,
        .activations = activations,
        .gate = {data + at[0], form->dtype[0], form->rows[0], form->cols[0]},
        .up = {data + at[1], form->dtype[1], form->rows[1], form->cols[1]},
        .down = {data + at[2], form->dtype[2], form->rows[2], form->cols[2]},
        .bytes = at[form->n],
    };
    if (form->n > SY_SHARD_MATRICES) {
        made->shard.gate_bias = (const float *)(const void *)(data + at[3]);
        made->shard.up_bias = (const float *)(const void *)(data + at[4]);
        made->shard.down_bias = (const float *)(const void *)(data + at[5]);
    }
    made->refs = 1;
    return &made->shard;
}

sy_shard *sy_shard_make_on(sy_shard_home *home, uint32_t slot_id, const sy_shard_form *form,
                           sy_activations activations, uint32_t layer, uint32_t expert)
{
    held *made = calloc(1, sizeof(*made));

    if (made == NULL) return NULL;
    made->shard = (sy_shard){
        .layer = layer,
        .expert = expert,
        .home = home,
        .slot = slot_id,
        .activations = activations,
        .gate = {NULL, form->dtype[0], form->rows[0], form->cols[0]},
        .up = {NULL, form->dtype[1], form->rows[1], form->cols[1]},
        .down = {NULL, form->dtype[2], form->rows[2], form->cols[2]},
        .bytes = sy_shard_home_slot_bytes(home),
    };
    made->refs = 1;
    return &made->shard;
}

void sy_shard_free(sy_shard *shard)
{
    if (shard == NULL) return;
    if (shard->home != NULL)
        sy_shard_home_give(shard->home, shard->slot);
    else
        sy_pages_free((void *)(uintptr_t)shard->gate.data, shard->bytes); /* all parts in one */
    free((held *)shard);
}

/* ---- claims ---- */

int sy_shard_exists(const sy_model *model, uint32_t layer, uint32_t expert)
{
    const sy_model_desc *desc = sy_model_describe(model);

    return layer < desc->n_layers && expert < desc->n_experts && sy_model_has_experts(desc, layer);
}

sy_status sy_shard_missing(uint32_t layer, uint32_t expert, sy_error *err)
{
    return sy_error_set(err, SY_ENOTFOUND, "the model has no layer %u expert %u", layer, expert);
}

static slot *slot_of(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    if (!sy_shard_exists(store->model, layer, expert)) return NULL;
    return &store->table[(size_t)layer * store->experts + expert];
}

static sy_status claim_locked(sy_shard_store *store, slot *s, const sy_shard_home *home,
                              uint64_t bytes, sy_shard_claiming claiming, sy_error *err)
{
    const uint64_t max = store->memory_max;

    while (claiming == SY_SHARD_CLAIM_WAIT && s->building && s->shard == NULL)
        pthread_cond_wait(&store->settled, &store->mutex);
    if (s->shard != NULL && (claiming != SY_SHARD_CLAIM_COPY || s->shard->home == home))
        return sy_error_set(err, SY_EEXISTS, "it is in memory already");
    if (s->building) return sy_error_set(err, SY_EEXISTS, "it is being loaded already");
    if (max != 0 && (store->bytes > max || bytes > max - store->bytes)) {
        sy_error_set(
            err, SY_ELIMIT, "needs %llu bytes, has %llu of %llu", (unsigned long long)bytes,
            (unsigned long long)(max - SY_MIN(store->bytes, max)), (unsigned long long)max);
        sy_error_where(err, "SHARD_MEMORY", -1, -1, NULL);
        return SY_ELIMIT;
    }
    s->building = 1;
    store->bytes += bytes;
    return SY_OK;
}

sy_status sy_shard_claim(sy_shard_store *store, uint32_t layer, uint32_t expert,
                         const sy_shard_home *home, uint64_t bytes, sy_shard_claiming claiming,
                         sy_error *err)
{
    slot *s = slot_of(store, layer, expert);
    sy_status st;

    if (s == NULL) return sy_shard_missing(layer, expert, err);
    pthread_mutex_lock(&store->mutex);
    st = claim_locked(store, s, home, bytes, claiming, err);
    pthread_mutex_unlock(&store->mutex);
    if (st != SY_OK) sy_error_where(err, NULL, (int32_t)layer, (int32_t)expert, NULL);
    return st;
}

/* Returns the shard when this was the last reference: the caller frees it, without the mutex. */
static sy_shard *put_locked(sy_shard *shard)
{
    return --((held *)shard)->refs == 0 ? shard : NULL;
}

/* The bytes count until they are really gone, so that a limit is never passed. */
static void release(sy_shard_store *store, sy_shard *last)
{
    const uint64_t bytes = last == NULL ? 0 : sy_shard_host_bytes(last);

    if (last == NULL) return;
    sy_shard_free(last);
    pthread_mutex_lock(&store->mutex);
    store->bytes -= bytes;
    pthread_mutex_unlock(&store->mutex);
}

void sy_shard_settle(sy_shard_store *store, uint32_t layer, uint32_t expert, uint64_t bytes,
                     sy_shard *shard)
{
    slot *s = slot_of(store, layer, expert);
    sy_shard *last = NULL;

    pthread_mutex_lock(&store->mutex);
    SY_ASSERT(s->building);
    s->building = 0;
    if (shard != NULL) {
        if (s->shard != NULL)
            last = put_locked(s->shard);
        else
            store->count++;
        s->shard = shard;
    } else {
        store->bytes -= bytes;
    }
    pthread_cond_broadcast(&store->settled);
    pthread_mutex_unlock(&store->mutex);
    release(store, last);
}

/* ---- readers ---- */

int sy_shard_unload(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    slot *s = slot_of(store, layer, expert);
    sy_shard *last = NULL;
    int was = 0;

    if (s == NULL) return 0;
    pthread_mutex_lock(&store->mutex);
    if (s->shard != NULL) {
        last = put_locked(s->shard);
        s->shard = NULL;
        store->count--;
        was = 1;
    }
    pthread_mutex_unlock(&store->mutex);
    release(store, last);
    return was;
}

const sy_shard *sy_shard_get(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    slot *s = slot_of(store, layer, expert);
    sy_shard *shard = NULL;

    if (s == NULL) return NULL;
    pthread_mutex_lock(&store->mutex);
    shard = s->shard;
    if (shard != NULL) ((held *)shard)->refs++;
    pthread_mutex_unlock(&store->mutex);
    return shard;
}

void sy_shard_put(sy_shard_store *store, const sy_shard *shard)
{
    sy_shard *last;

    if (shard == NULL) return;
    pthread_mutex_lock(&store->mutex);
    last = put_locked((sy_shard *)(uintptr_t)shard);
    pthread_mutex_unlock(&store->mutex);
    release(store, last);
}

uint64_t sy_shard_store_bytes(const sy_shard_store *store)
{
    sy_shard_store *s = (sy_shard_store *)(uintptr_t)store;
    pthread_mutex_lock(&s->mutex);
    uint64_t bytes = s->bytes;
    pthread_mutex_unlock(&s->mutex);
    return bytes;
}

uint32_t sy_shard_store_count(const sy_shard_store *store)
{
    sy_shard_store *s = (sy_shard_store *)(uintptr_t)store;
    pthread_mutex_lock(&s->mutex);
    uint32_t count = s->count;
    pthread_mutex_unlock(&s->mutex);
    return count;
}
