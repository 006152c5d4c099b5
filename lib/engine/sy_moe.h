/* sy_moe.h - the seam between the model and its experts: one call computes the MoE block of one
 * layer for a batch of rows. Behind it are the experts of this process (sy_moe_local) or the router
 * and expert tiers (services/aggregator). Both give the same bits. */
#ifndef SY_MOE_H
#define SY_MOE_H

#include "cuda/sy_backend.h"
#include "sy_kernels.h"
#include "sy_model.h"
#include "sy_pool.h"

typedef struct sy_moe_times { /* microseconds spent in the states of a layer call */
    int64_t route_us, dispatch_us, compute_us, combine_us;
} sy_moe_times;

#define SY_MOE_ERRORS_MAX 8

/* What a row's output is besides exact; ored into sy_moe_call.note. */
#define SY_MOE_DEGRADED      1 /* an expert was left out, the other weights renormalised */
#define SY_MOE_OTHER_WEIGHTS 2 /* by a target that placement accepts with other weights */

typedef struct sy_moe_call {
    uint32_t layer, n_rows;
    uint32_t experts_per_token; /* 0: the checkpoint's */
    const uint64_t *request;    /* [T]: whose row it is: keeps a request on one side of a canary */
    const float *x;             /* [T,H]: the block's input, after its norm */
    float *y;                   /* [T,H]: the block's output; rows that failed hold nothing */
    int64_t deadline_us;
    sy_pool *pool;              /* idle during the call, to combine large outputs; NULL: none is */
    const uint8_t *may_degrade; /* [T]: 1: leave out what nobody answers for; NULL: none may */
    uint8_t *note;              /* [T]: SY_MOE_*, ored into; NULL: nobody asks */
    uint8_t *failed;            /* [T]: 0, or 1 + the index in row_error of why this row failed */
    uint16_t *expert;           /* [T,k] or NULL: the routing, for those who ask */
    float *weight;              /* [T,k] or NULL */
    uint32_t n_row_errors;
    sy_error row_error[SY_MOE_ERRORS_MAX]; /* further reasons share the last entry */
    sy_error error;                        /* of a call that failed as a whole */
    sy_moe_times times;                    /* added to */
} sy_moe_call;

typedef struct sy_moe {
    void *ctx;
    /* SY_OK: every row that is not marked failed is right. Otherwise all rows failed and
     * call->error says why. Blocks; the caller is an engine thread. */
    sy_status (*layer)(void *ctx, sy_moe_call *call);
    uint64_t (*placement_hash)(void *ctx); /* 0 where there is no placement; may be NULL */
} sy_moe;

/* GPUs of one kind; n 0: none. */
#define SY_MOE_DEVICES_MAX 16
typedef struct sy_moe_devices {
    const sy_backend *backend;
    uint32_t n;
    uint32_t number[SY_MOE_DEVICES_MAX];  /* as the backend counts */
    const char *name[SY_MOE_DEVICES_MAX]; /* "cuda:0"; borrowed until it is open */
} sy_moe_devices;

/* All experts in this process, on the processor, or in turn on devices (NULL: none). Loads every
 * shard (progress per shard, one call at a time, from any thread; may be NULL). One thread at a
 * time. SY_ELIMIT (SHARD_MEMORY), DEVICE_*: a device has not room for its share, or as
 * sy_shard_home.h says. */
typedef struct sy_moe_local sy_moe_local;
SY_MUST_USE sy_status sy_moe_local_open(sy_moe_local **out, const sy_model *model,
                                        const sy_kernels *kernels, sy_precision precision,
                                        sy_pool *pool, const sy_moe_devices *devices,
                                        void (*progress)(void *arg, uint32_t done, uint32_t total),
                                        void *progress_arg, sy_error *err);
void sy_moe_local_close(sy_moe_local *local); /* accepts NULL */
sy_moe sy_moe_local_ops(sy_moe_local *local);
/* "f32-chain/1", ...; on GPUs "bf16-mma/1:sm_90". Lives as long as it. */
const char *sy_moe_local_arithmetic(const sy_moe_local *local);

#endif
