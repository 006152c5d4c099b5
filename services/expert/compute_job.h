/* compute_job.h - one Compute message from arrival to answer. It visits the devices that its
 * experts live on; the last of them to finish sends the answer. */
#ifndef COMPUTE_JOB_H
#define COMPUTE_JOB_H

#include "expert.h"
#include "sy_shm.h"

typedef struct compute_job {
    sy_call *call;       /* a reference */
    sy_msg *msg;         /* owned until it is decoded */
    sy_shm_guest *guest; /* its stream's, a reference; NULL: a unary call */
    int decoded;
    int64_t queued_us, started_us;
    sy_arena arena; /* of everything below */
    sy_compute_request request;
    sy_shm_view *shared;    /* the memory that it shares, a reference; NULL: none */
    const float *x;         /* [T,H] fp32; in shared memory it may change at any time */
    const sy_shard **shard; /* [G] with references; NULL: a fault */
    uint8_t *group_device;  /* [G] */
    float *y;               /* [R,H] */
    sy_buf *out;            /* that holds y, and in the end the answer's rows; NULL: these are in
                               shared memory */
    uint32_t n_faults;
    sy_shard_fault *fault;
    atomic_int remaining; /* devices that still have to compute */
    atomic_uint batched;  /* messages computed together with this one */
    atomic_int failed;    /* a sy_status, or 0 */
} compute_job;

/* Decodes and checks the message, finds its shards, and says which devices take part (a bit each).
 * 0: nothing is left to compute, and the answer (an error, or faults only) has been sent. */
uint32_t job_prepare(expert *self, compute_job *job);
/* One device is done with it; the last one answers and lets the job go. */
void job_device_done(expert *self, compute_job *job);

/* Computes the groups of these jobs that live on the device; all are of one layer. (expert_batch.c)
 */
typedef struct batch_scratch {
    sy_shard_scratch shard;
    sy_arena arena;
} batch_scratch;
void batch_compute(expert_device *device, compute_job **job, size_t n_jobs, batch_scratch *scratch);

#endif
