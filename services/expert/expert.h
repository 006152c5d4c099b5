/* expert.h - the expert node's parts and who owns them. Threads: the rpc loop (callbacks, never
 * blocks), one engine thread a device, with a compute pool on CPUs and a second thread that waits
 * for the device on GPUs, loader threads that bring shards into memory and an idle thread for each,
 * one custody thread that asks other nodes before shards leave it, one that looks whether GPUs
 * still compute right, the sender and the watch of expert_fetch.h, the control thread, and the HTTP
 * thread. */
#ifndef EXPERT_H
#define EXPERT_H

#include <pthread.h>
#include <stdatomic.h>

#include "expert_ask.h"
#include "expert_fetch.h"
#include "expert_idle.h"
#include "sy_devices.h"
#include "sy_kernels.h"
#include "sy_lifecycle.h"
#include "sy_metrics.h"
#include "sy_model.h"
#include "sy_pool.h"
#include "sy_queue.h"
#include "sy_service.h"
#include "sy_shard.h"
#include "sy_shard_home.h"
#include "sy_wire.h"

enum {
    EXPERT_DEVICES_MAX = 16,
    EXPERT_QUEUE_MAX = 1024,     /* messages waiting in one device's queue */
    EXPERT_ASSIGN_MAX = 1 << 19, /* rows of one message */
    EXPERT_WATCHERS_MAX = 256,   /* aggregators, and nodes that ask */
    EXPERT_LOADERS_MAX = 64,
    EXPERT_NO_DEVICE = 255,
    EXPERT_LANES = 3,      /* of a GPU: one is filled, one computes, one is read */
    EXPERT_EXIT_DEVICE = 3 /* the exit code of a node that has lost a device */
};

struct expert;
typedef struct expert_gpu expert_gpu;

typedef struct expert_device {
    char name[SY_DEVICE_BYTES]; /* "cpu:0" */
    uint8_t index;
    struct expert *expert;
    sy_pool *pool;          /* of a CPU device; else NULL */
    sy_shard_home *home;    /* of a GPU; else NULL */
    expert_gpu *gpu;        /* the same */
    sy_queue *queue;        /* of compute_job */
    atomic_uint depth;      /* messages in the queue or being computed */
    atomic_uint service_us; /* moving average of a message's share of a computation; written by the
                               device's thread */
    pthread_t thread;
    int started;
    /* Of a GPU. Once failed it stays so, and nothing is computed on it any more. */
    atomic_int failed;         /* set after the next two, which never change then */
    sy_error fault;            /* its reason: DEVICE_LOST, DEVICE_PROBE */
    int64_t failed_us;         /* when */
    _Atomic int64_t probed_us; /* since when the device has been computing a probe; 0: it is not */
    uint32_t probed;           /* the shard that was probed last; the checking thread's own */
    sy_metric *batches, *rows, *seconds, *lanes, *lost, *wrong;
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
    uint8_t moving;             /* a loader copies it to wanted_device; it is served meanwhile */
    uint8_t move_failures;      /* in a row */
    int64_t move_retry_us;      /* not before */
    char source[SY_NODE_BYTES]; /* "checkpoint", or the node it came from; "": none */
    char reason[192];           /* why it failed, or why it lingers or has not moved yet */
} expert_shard;

typedef struct expert_loader { /* one loader thread */
    struct expert *expert;
    pthread_t thread;
    int started;
    expert_idle *idle; /* does the heavy part while requests come */
    int impatient;     /* steps to do here, because the idle thread was starved */
    uint32_t shard;    /* the one it works on */
    uint8_t device;    /* that it goes to */
    uint8_t is_move;   /* it is in memory on another device of this node */
    int busy;          /* these four under the residency's mutex */
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

typedef struct expert_check expert_check;

typedef struct expert {
    sy_model *model;
    const sy_model_desc *desc;
    uint64_t structure_hash, checkpoint_hash;
    const sy_kernels *kernels;
    sy_precision precision; /* of every shard; on GPUs the activations are what they do: bf16 */
    const char *arithmetic; /* announced */
    sy_shard_store *store;
    sy_service *service;
    const char *node; /* this node's name, as placement spells it */
    uint64_t memory_bytes_max;
    uint32_t n_loaders;
    uint64_t load_bytes_per_s;  /* while messages come; 0: no limit */
    _Atomic int64_t message_us; /* when the last one came */
    int shares_memory;          /* with clients and nodes on this host */
    int load_from_peers;        /* first; the checkpoint is the second choice then */
    int64_t linger_us;
    int64_t device_timeout_us; /* a GPU that gets no further for so long is lost */
    int64_t device_exit_us;    /* how long the node stays up then */
    int64_t self_test_us;      /* between probes of a GPU; 0: never */
    int is_exiting;            /* SIGTERM has been sent to this process; control thread */
    expert_device device[EXPERT_DEVICES_MAX];
    uint32_t n_devices;
    char devices[SY_DEVICES_BYTES]; /* "cpu:0 cpu:1", announced */
    residency residency;
    expert_check *check;
    expert_peers *peers;
    expert_fetcher *fetcher;
    expert_fetch_server *fetch_server;
    sy_queue *idle_jobs; /* compute_job kept with their memory */
    sy_metric *rows, *messages, *batches, *seconds, *errors;
    sy_metric *resident, *lingering, *failed, *loading, *memory;
    sy_metric *loads, *fetches, *copies, *load_failures, *left;
    sy_metric *fetched[2], *fetched_bytes[2]; /* as bytes, by CUDA IPC */
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

/* It is in memory, whether it is still wanted or not. */
static inline int residency_has(const expert_shard *e)
{
    return e->life.state == SY_SHARD_RESIDENT || e->life.state == SY_SHARD_LINGERING;
}
/* Of a device that has just failed: its shards are gone, and nothing is loaded to it any more. */
void residency_device_failed(expert *self, uint8_t device, const char *why);
/* Whose memory a shard on this device is counted in: that of the GPU; CPU devices share one. */
uint8_t residency_room_of(const expert *self, uint8_t device);

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

/* ---- devices (expert_devices.c) ----
 * A GPU that is lost, that gets no further, or whose probe has other bits than before, takes the
 * whole node out of service: what was under way on it is answered with an error that says so, its
 * shards fail, so that aggregators go elsewhere, and the node is not ready. After a while
 * (--device-exit-s), in which everybody can see why, the process ends as on SIGTERM, with the exit
 * code EXPERT_EXIT_DEVICE: CUDA cannot bring a device back within a process, so a supervisor starts
 * it again, and the self-test of the start decides. The shards on its other GPUs go with it; a node
 * for each GPU keeps them. */
/* Pools of threads on CPUs; on GPUs memory for shards, and the self-test. The error's reason tells
 * what keeps a device from use. names: [n]. */
sy_status devices_open(expert *self, const sy_device *names, uint32_t n, unsigned threads,
                       sy_error *err);
void devices_close(expert *self); /* accepts devices that never opened; the store is closed */
static inline int device_failed(const expert_device *device)
{
    return atomic_load_explicit(&device->failed, memory_order_acquire);
}
int devices_any_failed(const expert *self);
sy_precision devices_precision(const expert *self); /* as it is shown: with what GPUs do */
/* The first failure counts; any thread without locks. */
void device_fail(expert_device *device, const sy_error *why);
/* One of the devices may be why a call failed: looks whether one is lost. */
void devices_look(expert *self);
/* Adds to why what is wrong with the first that has failed; 0: none has. */
int devices_say_failed(const expert *self, sy_strbuf *why);
void devices_tick(expert *self); /* every 200 ms: looks at all of them, and ends the process */

/* ---- do they compute right? (expert_check.c) ---- */
sy_status check_open(expert *self, sy_error *err); /* nothing to do without GPUs */
void check_close(expert *self);                    /* accepts one that never opened */

/* ---- computing (expert_compute.c, expert_batch.c; expert_gpu.c) ---- */
sy_status compute_open(expert *self, sy_error *err);
void compute_close(expert *self); /* the server is closed; accepts one that never opened */
void compute_message(void *ctx, sy_call *call, sy_msg *msg);
void compute_stream_open(void *ctx, sy_call *call);
void compute_stream_end(void *ctx, sy_call *call, int cancelled);
sy_status gpu_open(expert_device *device, sy_error *err); /* the lanes, and who waits for them */
void gpu_close(expert_device *device); /* gpu_main has ended; accepts one that never opened */
void *gpu_main(void *device);          /* the thread that fills and submits batches */

#endif
