/* sy_shard.h - expert weights and their computation, wherever they run: the same code serves the
 * expert nodes and the embedded single process. A shard is one expert of one layer: gate, up and
 * down matrices, packed in column panels in one allocation of its own. No network, no placement. */
#ifndef SY_SHARD_H
#define SY_SHARD_H

#include "sy_kernels.h"
#include "sy_model.h"
#include "sy_plan.h"
#include "sy_pool.h"

typedef struct sy_shard {
    uint32_t layer, expert;
    sy_panels gate, up; /* [F,H] */
    sy_panels down;     /* [H,F] */
    uint64_t bytes;
} sy_shard; /* immutable, reference-counted inside the store */

typedef struct sy_shard_store sy_shard_store;

/* memory_bytes_max: loads that would pass it are refused (0: no limit). The model is borrowed and
 * outlives the store. */
SY_MUST_USE sy_status sy_shard_store_open(sy_shard_store **out, const sy_model *model,
                                          uint64_t memory_bytes_max, sy_error *err);
void sy_shard_store_close(sy_shard_store *store); /* nobody holds a shard any more; accepts NULL */
/* Reads, packs and publishes one shard; already resident: SY_OK at once. Touches only that shard's
 * bytes of the files. Any thread, several at once. SY_ELIMIT ("needs X, has Y"), SY_EDATALOSS (file
 * cut while open, or a weight that is not a number), SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_load(sy_shard_store *store, uint32_t layer, uint32_t expert,
                                    sy_error *err);
/* Takes it out of the table; memory goes when the last holder lets go. 1: it was resident. */
int sy_shard_unload(sy_shard_store *store, uint32_t layer, uint32_t expert);
/* With a reference, or NULL: not resident, or no such layer or expert. Any thread. */
const sy_shard *sy_shard_get(sy_shard_store *store, uint32_t layer, uint32_t expert);
void sy_shard_put(sy_shard_store *store, const sy_shard *shard); /* accepts NULL */
uint64_t sy_shard_store_bytes(const sy_shard_store *store);
uint32_t sy_shard_store_count(const sy_shard_store *store);

/* Rows of one expert inside a message or batch: rows [begin, end) of the index array. */
typedef struct sy_shard_group {
    const sy_shard *shard;
    uint32_t begin, end;
} sy_shard_group;

/* Scratch for sy_shard_compute, grown on demand, owned by one computing thread. Zeroed is empty. */
typedef struct sy_shard_scratch {
    float *h; /* [rows, F] */
    size_t capacity_floats;
    float *tile; /* one tile a pool thread */
    size_t tile_floats;
} sy_shard_scratch;
void sy_shard_scratch_free(sy_shard_scratch *scratch);

/* y[i] = Down(silu(Gate x) * (Up x)) with x = row x_row[i] (x_row NULL: row i), for the rows of
 * every group; rows in no group are not written. Each element is one chain of fused multiply-adds
 * (sy_kernels.h): neither the pool, nor what else is in the batch, changes a bit. x: [.,H] rows
 * x_stride floats apart; y: [R,H] packed. SY_ENOMEM. */
SY_MUST_USE sy_status sy_shard_compute(float *y, const float *x, size_t x_stride,
                                       const uint32_t *x_row, const sy_shard_group *groups,
                                       size_t n_groups, sy_shard_scratch *scratch, sy_pool *pool,
                                       const sy_kernels *kernels);

/* y[t] = sum of weight * row over the token's experts in ascending id, each step one fma from +0:
 * y: [T,H], row: [R] pointers in the plan's row order. Tokens with skip[t] != 0 are left alone
 * (skip may be NULL). */
void sy_shard_combine(float *y, const sy_plan *plan, const float *const *row, size_t hidden,
                      const uint8_t *skip, const sy_kernels *kernels);

#endif
