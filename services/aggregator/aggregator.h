/* aggregator.h - the aggregator's parts and who owns them. Threads: the rpc loop (callbacks, never
 * blocks), one admission thread (decodes and tokenizes), one engine thread with a compute pool
 * and a lane thread for the second half of a step, forward threads, and the control thread. */
#ifndef AGGREGATOR_H
#define AGGREGATOR_H

#include <pthread.h>

#include "agg_moe.h"
#include "sy_chat_encode.h"
#include "sy_engine.h"
#include "sy_queue.h"
#include "sy_service.h"

enum { AGG_FORWARD_THREADS = 2, AGG_QUEUE_MAX = 1024, AGG_FORWARD_ROWS_MAX = 16384 };

typedef struct aggregator {
    sy_model *model;
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_precision precision, expert_precision; /* of the trunk; what nodes are held to */
    const char *expert_arithmetic;            /* that nodes announce */
    sy_tokenizer *tokenizer;
    sy_chat *chat;       /* NULL: the checkpoint has no template */
    sy_error chat_error; /* or one that cannot be used: what conversations are answered with */
    sy_pool *pool;
    sy_trunk *trunk;
    int64_t trunk_exit_us, trunk_lost_us; /* agg_trunk.c: how long the process stays up without its
                                             GPU, since when; 0: it has not lost it */
    sy_metric *trunk_faults;              /* NULL: it is on no GPU */
    int trunk_is_exiting, trunk_is_refused; /* refused: no device of that name can be used */
    sy_router *inproc;                      /* --router inproc; else NULL */
    sy_router *fallback;                    /* --router fallback; else NULL */
    uint64_t checkpoint_hash;
    agg_peers *peers;
    agg_moe_config moe_config;
    agg_lane engine_lane, second_lane; /* the second: of the second half of a step, if any */
    sy_engine *engine;
    sy_service *service;

    sy_queue *admission; /* of agg_job: Generate requests as received */
    pthread_t admission_thread;
    int admission_started;
    sy_queue *forward; /* of agg_job */
    agg_lane forward_lane[AGG_FORWARD_THREADS];
    pthread_t forward_thread[AGG_FORWARD_THREADS];
    int n_forward_threads, n_forward_lanes;
    int64_t layer_timeout_us;

    pthread_mutex_t
        ready_mutex; /* guards the two below: the control thread writes, callbacks read */
    int ready;
    char not_ready[256];
} aggregator;

/* A message on its way to a thread that may take its time. */
typedef struct agg_job {
    sy_call *call; /* a reference */
    sy_msg *msg;   /* owned */
} agg_job;
/* 1: the message is queued; 0: the call has been ended with the reason why not. queue: admission or
 * forward. */
int agg_job_push(sy_queue *queue, sy_call *call, sy_msg *msg, const char *what);
void agg_job_free(agg_job *job);

sy_status agg_generate_open(aggregator *agg, sy_error *err);
void agg_generate_close(aggregator *agg); /* the server is closed; joins the thread */
sy_status agg_forward_open(aggregator *agg, sy_error *err);
void agg_forward_close(aggregator *agg);

/* Callbacks of the methods; ctx is the aggregator. */
void agg_generate_message(void *ctx, sy_call *call, sy_msg *msg);
void agg_generate_end(void *ctx, sy_call *call, int cancelled);
void agg_forward_message(void *ctx, sy_call *call, sy_msg *msg);
void agg_forward_stream_open(void *ctx, sy_call *call);
void agg_models_message(void *ctx, sy_call *call, sy_msg *msg);

#endif
