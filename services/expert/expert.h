/* expert.h - the expert node's parts and who owns them. Threads: the rpc loop (callbacks, never
 * blocks), one engine thread a device with a compute pool, one loader thread that brings shards
 * into memory, and the control thread. */
#ifndef EXPERT_H
#define EXPERT_H

#include <pthread.h>
#include <stdatomic.h>

#include "sy_kernels.h"
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
    EXPERT_WATCHERS_MAX = 64,
    EXPERT_NO_DEVICE = 255
};

struct expert;
typedef struct expert_device {
    char name[SY_DEVICE_BYTES]; /* "cpu:0" */
    uint8_t index;
    struct expert *expert;
    sy_pool *pool;
    sy_queue *queue; /* of compute_job */
    pthread_t thread;
    int started;
} expert_device;

/* What is in memory, what is wanted, and who is told. */
typedef struct residency {
    uint32_t layers, experts;
    _Atomic uint8_t
        *state; /* [layers*experts] of sy_shard_state; written under mutex, read by anyone */
    _Atomic uint8_t *device; /* [layers*experts]: where it is computed */
    pthread_mutex_t mutex;   /* guards what follows */
    pthread_cond_t work;     /* the loader waits here */
    uint8_t *wanted;         /* [layers*experts]: device, or EXPERT_NO_DEVICE */
    char (*reason)[96];      /* [layers*experts]: why it failed */
    uint64_t placement_hash;
    int have_placement, stopping;
    sy_call *watcher[EXPERT_WATCHERS_MAX];
    uint32_t n_watchers;
    pthread_t loader;
    int started;
} residency;

typedef struct expert {
    sy_model *model;
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_shard_store *store;
    sy_service *service;
    const char *node; /* this node's name, as placement spells it */
    expert_device device[EXPERT_DEVICES_MAX];
    uint32_t n_devices;
    char devices[SY_DEVICES_BYTES]; /* "cpu:0 cpu:1", announced */
    residency residency;
    sy_queue *idle_jobs; /* compute_job kept with their memory */
    sy_metric *rows, *messages, *batches, *seconds, *errors, *resident, *memory;
} expert;

/* ---- residency (expert_residency.c) ---- */
sy_status residency_open(expert *self, sy_error *err);
void residency_close(expert *self);                            /* accepts one that never opened */
void residency_placement(expert *self, sy_snapshot *snapshot); /* control thread */
/* 1: everything wanted is resident. Else why says what is missing. */
int residency_ready(expert *self, sy_strbuf *why);
void residency_watch_message(void *ctx, sy_call *call, sy_msg *msg);
void residency_watch_end(void *ctx, sy_call *call, int cancelled);

/* ---- computing (expert_compute.c, expert_batch.c) ---- */
sy_status compute_open(expert *self, sy_error *err);
void compute_close(expert *self); /* the server is closed; accepts one that never opened */
void compute_message(void *ctx, sy_call *call, sy_msg *msg);
void compute_stream_open(void *ctx, sy_call *call);

#endif
