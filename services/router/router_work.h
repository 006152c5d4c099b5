/* router_work.h - the router's parts, and its work: from a received message to its answer. */
#ifndef ROUTER_WORK_H
#define ROUTER_WORK_H

#include <pthread.h>

#include "sy_metrics.h"
#include "sy_queue.h"
#include "sy_route.h"
#include "sy_service.h"
#include "sy_wire.h"

enum { ROUTER_QUEUE_MAX = 4096, ROUTER_THREADS_MAX = 64, ROUTER_ROWS_MAX = 65536 };

typedef struct router_arenas { /* of one thread */
    sy_arena request;          /* the requests it works on */
    sy_arena scratch;          /* what a product needs, and its answers */
} router_arenas;

typedef struct router {
    sy_model *model;
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    uint64_t checkpoint_hash;
    sy_router *gates;
    sy_service *service;
    sy_queue *queue; /* of router_job */
    pthread_t thread[ROUTER_THREADS_MAX];
    unsigned n_threads;
    router_arenas loop_arenas; /* for requests that the loop's thread answers itself */
    int shares_memory;         /* with clients on this host */
    sy_metric *rows, *seconds, *errors;
} router;

sy_status router_work_open(router *self, unsigned n_threads, sy_error *err);
void router_work_close(router *self); /* the server is closed; accepts one that never opened */

/* Callbacks of the methods; ctx is the router. */
void router_route_message(void *ctx, sy_call *call, sy_msg *msg);
void router_stream_open(void *ctx, sy_call *call);
void router_stream_end(void *ctx, sy_call *call, int cancelled);
void router_describe_message(void *ctx, sy_call *call, sy_msg *msg);

#endif
