/* sy_shard_home.h - a GPU as the place where shards of one model lie and are computed: its slots,
 * its lanes, and whether it still computes right. What a shard is, how it is built, verified,
 * exported and counted is sy_shard.h's business and the same as in host memory; a home is where
 * sy_shard_begin_on puts it. Weights lie packed for the device; rows go in and come out row-major,
 * so holders of either kind exchange shards and agree on content hashes. Outputs do not agree: a
 * GPU's arithmetic is its own (sy_shard_home_arithmetic), and nodes that serve one model must have
 * the same.
 *
 * Errors of the device: SY_ENOMEM, SY_EIO, and SY_EUNAVAILABLE with the reason DEVICE_LOST, after
 * which every call says so and sy_shard_home_lost does too. Any thread, unless said otherwise. */
#ifndef SY_SHARD_HOME_H
#define SY_SHARD_HOME_H

#include "cuda/sy_backend.h"
#include "sy_shard.h"

typedef struct sy_shard_home_config {
    const sy_backend *backend;
    uint32_t number;           /* of the device, as the backend counts */
    const char *name;          /* "cuda:0"; copied */
    const sy_model *model;     /* borrowed, outlives the home */
    sy_dtype weights;          /* as sy_precision has it */
    uint64_t memory_bytes_max; /* of all slots; 0: nine tenths of what is free */
    uint32_t lanes;            /* batches under way at once, for sy_shard_home_submit; 1 to 7 */
} sy_shard_home_config;

/* Takes all the device memory that it will ever need. SY_EUNIMPLEMENTED (DEVICE_WEIGHTS): the
 * experts are held in a type that the device's kernels do not read, each is named; SY_ENOMEM
 * (DEVICE_MEMORY): not one shard has room, with figures; SY_EUNAVAILABLE, SY_EIO.
 * Of fp8 a device has one factor for 128 rows by 128 inputs: a shard whose rows [128 i, 128 i +
 * 128) of a matrix have different ones is refused as its bytes come in, SY_EUNIMPLEMENTED
 * (DEVICE_WEIGHTS). */
SY_MUST_USE sy_status sy_shard_home_open(sy_shard_home **out, const sy_shard_home_config *config,
                                         sy_error *err);
/* No shard of it is in any store, no batch under way; accepts NULL. */
void sy_shard_home_close(sy_shard_home *home);

const char *sy_shard_home_name(const sy_shard_home *home);
/* "bf16-mma/1:sm_90": what bits depend on besides weights and input. Lives as long as the home. */
const char *sy_shard_home_arithmetic(const sy_shard_home *home);
uint32_t sy_shard_home_slots(const sy_shard_home *home);
uint64_t sy_shard_home_slot_bytes(const sy_shard_home *home);
uint64_t sy_shard_home_bytes_max(const sy_shard_home *home); /* of all slots */
uint64_t sy_shard_home_bytes(const sy_shard_home *home);     /* of those that are taken */
/* 1: the device is of no more use to this process; why, with the reason for machines. */
int sy_shard_home_lost(const sy_shard_home *home, sy_error *why);

/* ---- is it right? ---- */

/* One expert of the model's shape with weights that every build knows, in a free slot: its outputs
 * for a few rows, in batches of several sizes, against the reference in double precision, and
 * against each other bit by bit. SY_EDATALOSS (DEVICE_SELF_TEST): they differ, and where;
 * SY_ELIMIT: no slot is free. */
SY_MUST_USE sy_status sy_shard_home_self_test(sy_shard_home *home, sy_error *err);
/* Computes the probe of a shard that lies on a home once more: SY_EDATALOSS (DEVICE_PROBE): its
 * output is no longer the one it had when it was verified, so the memory or the device is damaged.
 */
SY_MUST_USE sy_status sy_shard_home_reprobe(const sy_shard *shard, sy_error *err);

/* ---- batches; one thread at a time for a lane ---- */

typedef struct sy_shard_lane { /* pinned memory of the host, as sy_backend_lane says */
    uint16_t *x;               /* [rows_max, x_stride] bf16 */
    size_t x_stride;           /* elements */
    uint32_t *x_row;           /* [rows_max] */
    float *y;                  /* [rows_max, H] */
    uint32_t rows_max;         /* tokens, and rows, each */
} sy_shard_lane;
/* lane < the config's lanes. */
sy_shard_lane sy_shard_home_lane(const sy_shard_home *home, uint32_t lane);
/* Begins y[r] = expert(x[x_row[r]]); the groups' shards lie on this home and are held until the
 * wait says done; groups lie one after the other from row 0 on and end at n_rows. Never waits for
 * the device. SY_EINVAL: out of range. */
SY_MUST_USE sy_status sy_shard_home_submit(sy_shard_home *home, uint32_t lane, uint32_t n_x,
                                           uint32_t n_rows, const sy_shard_group *groups,
                                           size_t n_groups, sy_error *err);
/* For timeout_us at most (0: looks once): *done tells; *device_us: how long the device was busy
 * with it. */
SY_MUST_USE sy_status sy_shard_home_wait(int *done, float *device_us, sy_shard_home *home,
                                         uint32_t lane, uint32_t timeout_us, sy_error *err);

#endif
