/* expert.h - the expert node's parts and who owns them. Threads: the rpc loop (callbacks, never
 * blocks), one engine thread a device with a compute pool, loader threads that bring shards into
 * memory and an idle thread for each, one custody thread that asks other nodes before shards leave
 * it, the sender and the watch of expert_fetch.h, the control thread, and the HTTP thread. */
#ifndef EXPERT_H
#define EXPERT_H

#include <pthread.h>
#include <stdatomic.h>

#include "expert_ask.h"
#include "expert_fetch.h"
#include "expert_idle.h"
#include "sy_kernels.h"
#include "sy_lifecycle.h"
#include "sy_metrics.h"
#include "sy_model.h"
#include "sy_pool.h"
#include "sy_queue.h"
#include "sy_service.h"
#include "sy_shard.h"
#include "sy_wire.h"

enum {
    EXPERT_DEVICES_MAX = 16,
    EXPERT_QUEUE_MAX = 1024,     /* messages waiting in one device's queue */
    EXPERT_ASSIGN_MAX = 1 << 19, /* rows of one message */
    EXPERT_WATCHERS_MAX = 256,   /* aggregators, and nodes that ask */
    EXPERT_LOADERS_MAX = 64,
    EXPERT_NO_DEVICE = 255
};

struct expert;
typedef struct expert_device {
    char name[SY_DEVICE_BYTES]; /* "cpu:0" */
    uint8_t index;
    struct expert *expert;
    sy_pool *pool;
    sy_queue *queue;        /* of compute_job */
    atomic_uint depth;      /* messages in the queue or being computed */
    atomic_uint service_us; /* moving average of a message's share of a computation; written by the
                               device's thread */
    pthread_t thread;
    int started;
} expert_device;

/* One shard, under the residency's mutex. */
typedef struct expert_shard {
    sy_life life;
    sy_shard_identity identity; /* zero until it is in memory */
    uint64_t bytes;             /* in memory; 0: not there */
    int64_t told_us;            /* when its progress was told last */
    uint8_t wanted_device;      /* EXPERT_NO_DEVICE: not wanted, or on a device that is not here */
    uint8_t percent;
    uint8_t needs_room;         /* its load failed for want of memory */
    uint8_t changed;            /* watchers are to be told */
    char source[SY_NODE_BYTES]; /* "checkpoint", or the node it came from; "": none */
    char reason[192];           /* why it failed, or why it lingers still */
} expert_shard;

typedef struct expert_loader { /* one loader thread */
    struct expert *expert;
    pthread_t thread;
    int started;
    expert_idle *idle; /* does the heavy part while requests come */
    int impatient;     /* steps to do here, because the idle thread was starved */
    uint32_t shard;    /* the one it works on */
    int busy;          /* both under the residency's mutex */
    atomic_int stop;   /* give up what is being loaded */
} expert_loader;

/* What is in memory, what is wanted, and who is told. */
typedef struct residency {
    sy_grid grid;
    uint32_t experts;  /* of a layer */
    uint32_t n_shards; /* places in the tables, [layers*experts]; those of layers without experts
                          are never wanted */
    /* For requests, without a lock: [n_shards] of sy_shard_state, and where it is computed. Written
     * under the mutex. */
    _Atomic uint8_t *state;
    _Atomic uint8_t *device;
    pthread_mutex_t mutex;  /* guards what follows; see residency_unlock */
    pthread_cond_t work;    /* loaders wait here */
    pthread_cond_t leaving; /* the custody thread waits here */
    expert_shard *shard;
    uint32_t n_in_state[SY_N_SHARD_STATES];
    uint64_t device_bytes[EXPERT_DEVICES_MAX];
    sy_snapshot *snapshot; /* in force here; NULL: none yet */
    uint64_t placement_hash;
    int first_load_done; /* all that was wanted at first is in memory, or has failed once */
    int stopping;
    uint64_t last_question;
    sy_call *watcher[EXPERT_WATCHERS_MAX];
    uint32_t n_watchers;
    uint32_t *changed; /* [n_shards]: the shards with `changed` set */
    uint32_t n_changed;
    uint64_t told_hash; /* the placement hash that watchers have */
    expert_loader loader[EXPERT_LOADERS_MAX];
    pthread_t custody;
    int custody_started;
    pthread_mutex_t pace_mutex; /* guards paced_us */
    int64_t paced_us;           /* when the next bytes may be loaded */
} residency;

typedef struct expert {
    sy_model *model;
    const sy_model_desc *desc;
    uint64_t structure_hash, checkpoint_hash;
    const sy_kernels *kernels;
    sy_precision precision; /* of every shard */
    sy_shard_store *store;
    sy_service *service;
    const char *node; /* this node's name, as placement spells it */
    uint64_t memory_bytes_max;
    uint32_t n_loaders;
    uint64_t load_bytes_per_s;  /* while messages come; 0: no limit */
    _Atomic int64_t message_us; /* when the last one came */
    int shares_memory;          /* with clients on this host */
    int load_from_peers;        /* first; the checkpoint is the second choice then */
    int64_t linger_us;
    expert_device device[EXPERT_DEVICES_MAX];
    uint32_t n_devices;
    char devices[SY_DEVICES_BYTES]; /* "cpu:0 cpu:1", announced */
    residency residency;
    expert_peers *peers;
    expert_fetcher *fetcher;
    expert_fetch_server *fetch_server;
    sy_queue *idle_jobs; /* compute_job kept with their memory */
    sy_metric *rows, *messages, *batches, *seconds, *errors;
    sy_metric *resident, *lingering, *failed, *loading, *memory;
    sy_metric *loads, *fetches, *load_failures, *left;
} expert;

/* ---- the table (expert_residency.c) ---- */
sy_status residency_open(expert *self, sy_error *err);         /* loaders and custody included */
void residency_close(expert *self);                            /* accepts one that never opened */
void residency_placement(expert *self, sy_snapshot *snapshot); /* control thread */
/* 1: what was wanted at first has been loaded, as far as it can be, and something is served unless
 * nothing is wanted. Else why says what is missing. */
int residency_ready(expert *self, sy_strbuf *why);
void residency_lock(expert *self);
void residency_unlock(expert *self); /* watchers are told of all that changed under the lock */
/* shard's life has entered another state: readers, counts and watchers follow. Mutex held, as for
 * the next three. */
void residency_entered(expert *self, uint32_t shard);
void residency_reason(expert *self, uint32_t shard, const char *reason); /* "": none */
/* Takes a shard out of memory whose life has just become absent. */
void residency_leave(expert *self, uint32_t shard);
/* Loads that failed for want of memory are tried again at once. */
void residency_has_room(expert *self);
/* pthread_cond_timedwait until a monotonic time; SY_NEVER_US: without one. */
void residency_wait(expert *self, pthread_cond_t *cond, int64_t until_us);

/* ---- into memory (expert_loader.c) ---- */
sy_status loader_open(expert *self, sy_error *err);
void loader_close(expert *self); /* stopping is set */

/* ---- out of memory (expert_custody.c) ---- */
sy_status custody_open(expert *self, sy_error *err);
void custody_close(expert *self); /* stopping is set */

/* ---- who is told (expert_watch.c) ---- */
void watch_message(void *ctx, sy_call *call, sy_msg *msg);
void watch_end(void *ctx, sy_call *call, int cancelled);
void watch_changed(expert *self, uint32_t shard); /* mutex held, as for the next one */
void watch_flush(expert *self);
void watch_load(void *ctx); /* every 200 ms: the devices' load, and a sign of life */
int watch_http_get(void *ctx, const char *path, sy_strbuf *body); /* GET /shards */

/* ---- computing (expert_compute.c, expert_batch.c) ---- */
sy_status compute_open(expert *self, sy_error *err);
void compute_close(expert *self); /* the server is closed; accepts one that never opened */
void compute_message(void *ctx, sy_call *call, sy_msg *msg);
void compute_stream_open(void *ctx, sy_call *call);
void compute_stream_end(void *ctx, sy_call *call, int cancelled);

#endif
