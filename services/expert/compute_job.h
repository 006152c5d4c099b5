/* compute_job.h - one Compute message from arrival to answer. It visits the devices that its
 * experts live on; the last of them to finish sends the answer. What the threads of CPU devices
 * (expert_compute.c) and of GPUs (expert_gpu.c) share is here as well. */
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
    sy_error why;         /* then; written by the device that came first, read by the last one */
} compute_job;

/* Decodes and checks the message, finds its shards, and says which devices take part (a bit each).
 * 0: nothing is left to compute, and the answer (an error, or faults only) has been sent. */
uint32_t job_prepare(expert *self, compute_job *job);
/* It cannot be computed, or not by this device: the answer will be this error. The first one
 * counts.
 */
void job_fail(compute_job *job, const sy_error *err);
/* One device is done with it; the last one answers and lets the job go. */
void job_device_done(expert *self, compute_job *job);

/* ---- what a device's thread has in hand ---- */

enum { TOGETHER_MAX = 64 };
typedef struct job_hand { /* zeroed: empty */
    compute_job *job[TOGETHER_MAX];
    size_t n;
    sy_loop *loop; /* of the last messages: driven here while there is nothing to do */
} job_hand;
/* Waits for a job when there is none in hand, then takes what else waits; all of them are decoded
 * and have a part on this device. 0: the queue is closed and nothing is left. */
int hand_take(expert_device *device, job_hand *hand);
/* Puts the jobs of the first one's layer in front; returns how many. */
size_t hand_same_layer(job_hand *hand);
void hand_drop(job_hand *hand, size_t n); /* the first n have been computed */
/* n_jobs messages were computed in that time: the average follows, and they wait no more. */
void device_note_service(expert_device *device, int64_t elapsed_us, size_t n_jobs);
void device_slow_down(void); /* what the fault "expert.slow" does */

/* ---- batches (expert_batch.c) ---- */

/* One group of one job. */
typedef struct job_piece {
    compute_job *job;
    uint32_t job_id; /* among those of the batch */
    uint32_t order, group, expert, begin, end;
} job_piece;
/* Every group of these jobs that lives on the device, in ascending expert, in the order of the jobs
 * inside one; the arena's. NULL: no memory. */
job_piece *batch_pieces(size_t *n, const expert_device *device, compute_job *const *job,
                        size_t n_jobs, sy_arena *arena);

/* Computes the groups of these jobs that live on the CPU device; all are of one layer. */
typedef struct batch_scratch {
    sy_shard_scratch shard;
    sy_arena arena;
} batch_scratch;
void batch_compute(expert_device *device, compute_job **job, size_t n_jobs, batch_scratch *scratch);

#endif
