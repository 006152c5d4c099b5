/* sy_shard_store.c - which shards are in memory: a table of [layers][experts], guarded by one mutex
 * that is held for pointer work only. Loading happens outside it, so several threads load at once
 * and readers never wait for a disk. */
#include "sy_shard.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"

typedef struct slot {
    sy_shard *shard;
    uint32_t loading; /* somebody packs it right now */
} slot;

typedef struct held {
    sy_shard shard; /* first: a sy_shard is its held */
    uint32_t refs;  /* under the store's mutex */
} held;

struct sy_shard_store {
    const sy_model *model;
    uint32_t layers, experts;
    uint64_t memory_max, bytes;
    uint32_t count;
    pthread_mutex_t mutex;
    pthread_cond_t loaded;
    slot *table;
};

sy_status sy_shard_store_open(sy_shard_store **out, const sy_model *model,
                              uint64_t memory_bytes_max, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_shard_store *store = calloc(1, sizeof(*store));

    *out = NULL;
    if (store != NULL)
        store->table = calloc((size_t)desc->n_layers * desc->n_experts, sizeof(slot));
    if (store == NULL || store->table == NULL) {
        free(store);
        return sy_error_set(err, SY_ENOMEM, "no memory for the shard table");
    }
    store->model = model;
    store->layers = desc->n_layers;
    store->experts = desc->n_experts;
    store->memory_max = memory_bytes_max;
    pthread_mutex_init(&store->mutex, NULL);
    pthread_cond_init(&store->loaded, NULL);
    *out = store;
    return SY_OK;
}

static void shard_free(sy_shard *shard)
{
    if (shard == NULL) return;
    free((void *)(uintptr_t)shard->gate.data); /* one allocation: gate, up, down */
    free(shard);
}

void sy_shard_store_close(sy_shard_store *store)
{
    if (store == NULL) return;
    for (size_t i = 0; i < (size_t)store->layers * store->experts; i++)
        shard_free(store->table[i].shard);
    pthread_cond_destroy(&store->loaded);
    pthread_mutex_destroy(&store->mutex);
    free(store->table);
    free(store);
}

static slot *slot_of(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    if (layer >= store->layers || expert >= store->experts) return NULL;
    return &store->table[(size_t)layer * store->experts + expert];
}

typedef struct pack_job {
    const sy_tensor *tensor[3];
    uint8_t *dst[3];
} pack_job;

/* Runs under sy_map_guard: owns nothing, holds no lock. */
static sy_status pack(void *arg)
{
    pack_job *job = arg;

    for (int i = 0; i < 3; i++) {
        const sy_tensor *t = job->tensor[i];
        if (!sy_dtype_all_finite(t->data, t->dtype, t->n_elements)) return SY_EDATALOSS;
        sy_panels_pack(job->dst[i], t->data, t->dtype, (uint32_t)t->shape[0], (uint32_t)t->shape[1],
                       0, sy_panels_count((uint32_t)t->shape[0]));
    }
    return SY_OK;
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static sy_status shard_pack(sy_shard **out, const sy_model *model, uint32_t layer, uint32_t expert,
                            sy_error *err)
{
    static const sy_role role[3] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP, SY_ROLE_EXPERT_DOWN};
    held *made = calloc(1, sizeof(*made));
    pack_job job;
    size_t at[4] = {0};
    uint8_t *data;
    sy_status st;

    *out = NULL;
    if (made == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a shard");
    for (int i = 0; i < 3; i++) {
        job.tensor[i] = sy_model_tensor(model, role[i], layer, expert);
        at[i + 1] =
            at[i] + align64(sy_panels_bytes(job.tensor[i]->dtype, (uint32_t)job.tensor[i]->shape[0],
                                            (uint32_t)job.tensor[i]->shape[1]));
    }
    data = aligned_alloc(64, at[3]);
    if (data == NULL) {
        free(made);
        return sy_error_set(err, SY_ENOMEM, "no memory for layer %u expert %u: %zu bytes", layer,
                            expert, at[3]);
    }
    for (int i = 0; i < 3; i++) {
        sy_panels *w = i == 0 ? &made->shard.gate : i == 1 ? &made->shard.up : &made->shard.down;
        job.dst[i] = data + at[i];
        *w = (sy_panels){data + at[i], job.tensor[i]->dtype, (uint32_t)job.tensor[i]->shape[0],
                         (uint32_t)job.tensor[i]->shape[1]};
    }
    made->shard.layer = layer;
    made->shard.expert = expert;
    made->shard.bytes = at[3];
    made->refs = 1;
    st = sy_map_guard(pack, &job, err);
    for (int i = 0; i < 3; i++) sy_tensor_release(job.tensor[i]);
    if (st != SY_OK) {
        free(data);
        free(made);
        sy_error_set(err, st, "layer %u expert %u: %s", layer, expert,
                     st == SY_EDATALOSS
                         ? "the file was cut while open, or a weight is not a finite number"
                         : sy_status_name(st));
        sy_error_where(err, "SHARD_CORRUPT", (int32_t)layer, (int32_t)expert, NULL);
        return st;
    }
    *out = &made->shard;
    return SY_OK;
}

/* Takes the right to load: 1 to load, 0 when it is resident already; else the refusal. */
static sy_status claim(sy_shard_store *store, slot *s, uint64_t need, int *mine, sy_error *err)
{
    sy_status st = SY_OK;

    *mine = 0;
    pthread_mutex_lock(&store->mutex);
    while (s->loading) pthread_cond_wait(&store->loaded, &store->mutex);
    if (s->shard == NULL) {
        if (store->memory_max != 0 && store->bytes + need > store->memory_max) {
            st = sy_error_set(err, SY_ELIMIT, "needs %llu bytes, has %llu of %llu",
                              (unsigned long long)need,
                              (unsigned long long)(store->memory_max - store->bytes),
                              (unsigned long long)store->memory_max);
            sy_error_where(err, "SHARD_MEMORY", -1, -1, NULL);
        } else {
            s->loading = 1;
            store->bytes += need;
            *mine = 1;
        }
    }
    pthread_mutex_unlock(&store->mutex);
    return st;
}

sy_status sy_shard_load(sy_shard_store *store, uint32_t layer, uint32_t expert, sy_error *err)
{
    const uint64_t need = sy_model_expert_bytes(store->model);
    slot *s = slot_of(store, layer, expert);
    sy_shard *shard = NULL;
    int mine;
    sy_status st;

    if (s == NULL)
        return sy_error_set(err, SY_ENOTFOUND, "the model has no layer %u expert %u", layer,
                            expert);
    st = claim(store, s, need, &mine, err);
    if (st != SY_OK || !mine) return st;
    st = shard_pack(&shard, store->model, layer, expert, err);
    pthread_mutex_lock(&store->mutex);
    s->loading = 0;
    s->shard = shard;
    if (shard != NULL) {
        store->bytes += shard->bytes - need;
        store->count++;
    } else {
        store->bytes -= need;
    }
    pthread_cond_broadcast(&store->loaded);
    pthread_mutex_unlock(&store->mutex);
    return st;
}

static void put_locked(sy_shard_store *store, sy_shard *shard)
{
    held *h = (held *)shard;
    if (--h->refs == 0) {
        store->bytes -= shard->bytes;
        shard_free(shard);
    }
}

int sy_shard_unload(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    slot *s = slot_of(store, layer, expert);
    int was = 0;

    if (s == NULL) return 0;
    pthread_mutex_lock(&store->mutex);
    if (s->shard != NULL) {
        put_locked(store, s->shard);
        s->shard = NULL;
        store->count--;
        was = 1;
    }
    pthread_mutex_unlock(&store->mutex);
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
    if (shard == NULL) return;
    pthread_mutex_lock(&store->mutex);
    put_locked(store, (sy_shard *)(uintptr_t)shard);
    pthread_mutex_unlock(&store->mutex);
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
