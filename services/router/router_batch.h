/* router_batch.h - requests that wait for the same gate go through it together: its weights are
 * read once, and rows fill each other's vectors. A row's answer does not depend on its neighbours
 * (sy_kernels.h), so nobody can tell. */
#ifndef ROUTER_BATCH_H
#define ROUTER_BATCH_H

#include "router_work.h"
#include "sy_shm.h"

/* Jobs at a time; and rows of a job and of a product: more rows gain nothing from company. */
enum { BATCH_JOBS_MAX = 16, BATCH_JOB_ROWS_MAX = 16, BATCH_ROWS_MAX = 64 };

typedef struct router_job {
    sy_buf *home;        /* what it lies in */
    sy_call *call;       /* a reference */
    sy_msg *msg;         /* owned */
    sy_shm_guest *guest; /* its stream's, a reference; NULL: a unary call */
    sy_shm_view *shared; /* what the request's rows are in, a reference; NULL: in the message */
    int64_t queued_us, begin_us;
    /* While it is served; what they point to is in the arenas of the thread that does. */
    sy_route_request request;
    sy_route_reply reply;
    sy_error err;
} router_job;

/* Moves those that can share a product with job[0] to the front, in order, and returns how many
 * they are with it: 1 where it has failed already or has rows enough. n >= 1. */
size_t batch_gather(router_job **job, size_t n);
/* Routes what batch_gather has put together: fills reply, which points into scratch, or err. A
 * request that cannot be routed fails alone. */
void batch_route(const router *self, router_job *const *job, size_t n, sy_arena *scratch);

#endif
