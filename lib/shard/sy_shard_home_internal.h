/* sy_shard_home_internal.h - what the files of a home, and those of shards, know of it: this folder
 * only. A slot belongs to one builder, and then to one shard until nobody holds that any more; who
 * has it to himself may call for it, and readers of a shard take turns (reads). */
#ifndef SY_SHARD_HOME_INTERNAL_H
#define SY_SHARD_HOME_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "sy_shard_home.h"

typedef struct home_lane {
    sy_shard_lane memory;
    sy_backend_group *group; /* [rows_max]: of the batch that is being submitted */
} home_lane;

struct sy_shard_home {
    const sy_backend *backend;
    sy_backend_handle *device;
    sy_backend_pool *pool;
    sy_backend_pool_info info;
    char *name;
    sy_shard_form form; /* of every shard */
    sy_mlp_form mlp;
    float mlp_limit;
    uint32_t n_lanes; /* for batches; lane[n_lanes] is the probe's */
    home_lane lane[SY_BACKEND_LANES_MAX];

    pthread_mutex_t slots; /* guards the stack of free ones */
    uint32_t *free_slot, n_free;
    int is_open; /* all of them were free */

    pthread_mutex_t reads; /* of slots that several threads may hold; guards block */
    uint8_t *block;        /* 16 rows of any part */

    pthread_mutex_t probe; /* guards the probe's lane */

    atomic_int is_lost;
    pthread_mutex_t loss; /* guards why, which is written once */
    char why[SY_BACKEND_WHY_BYTES];
};

/* A call's result: a device that it finds lost is lost from now on. */
sy_status sy_shard_home_result(sy_shard_home *home, int result, const char *why, sy_error *err);
void sy_shard_home_lose(sy_shard_home *home, const char *why);

const sy_shard_form *sy_shard_home_form(const sy_shard_home *home);

/* ---- slots ---- */

/* SY_ELIMIT (SHARD_MEMORY): none is free. */
SY_MUST_USE sy_status sy_shard_home_take(uint32_t *slot, sy_shard_home *home, sy_error *err);
void sy_shard_home_give(sy_shard_home *home, uint32_t slot);
/* Waits for what was written to the slot, whatever becomes of it, so that another may have it. */
void sy_shard_home_settle(sy_shard_home *home, uint32_t slot);

/* ---- weights (sy_shard_home_rows.c): as the backend's calls of these names ---- */

/* SY_EUNIMPLEMENTED (DEVICE_WEIGHTS): rows of fp8 that do not share factors as the device needs it.
 */
SY_MUST_USE sy_status sy_shard_home_write(sy_shard_home *home, uint32_t slot, unsigned part,
                                          uint32_t row, uint32_t n_rows, const void *rows,
                                          sy_error *err);
SY_MUST_USE sy_status sy_shard_home_flush(sy_shard_home *home, uint32_t slot, sy_error *err);
SY_MUST_USE sy_status sy_shard_home_read(void *rows, sy_shard_home *home, uint32_t slot,
                                         unsigned part, uint32_t row, uint32_t n_rows,
                                         sy_error *err);
SY_MUST_USE sy_status sy_shard_home_hash(uint64_t *out, sy_shard_home *home, uint32_t slot,
                                         sy_error *err);
/* to: the caller's alone; from: a shard on another home whose slots are alike. */
SY_MUST_USE sy_status sy_shard_home_copy(sy_shard_home *to, uint32_t to_slot, const sy_shard *from,
                                         uint64_t offset, uint64_t n, sy_error *err);
/* 1: slots can be copied from one to the other as they are. */
int sy_shard_home_is_alike(const sy_shard_home *a, const sy_shard_home *b);
/* The next bytes of a part from byte `at` on, as many as one step gives, 1 to n. */
SY_MUST_USE sy_status sy_shard_home_export(size_t *n_read, void *dst, const sy_shard *shard,
                                           unsigned part, uint64_t at, size_t n, sy_error *err);
/* XXH3 of all rows, read back from the device. */
SY_MUST_USE sy_status sy_shard_home_content(uint64_t *out, const sy_shard *shard, sy_error *err);
void sy_shard_home_flip_bit(const sy_shard *shard);

/* ---- other processes (sy_shard_home_remote.c): as the backend's calls of these names ---- */

SY_MUST_USE sy_status sy_shard_home_import(sy_backend_remote **out, sy_shard_home *home,
                                           const sy_backend_export *from, sy_error *err);
void sy_shard_home_close_remote(sy_shard_home *home, sy_backend_remote *remote); /* accepts NULL */
SY_MUST_USE sy_status sy_shard_home_pull(sy_shard_home *to, uint32_t to_slot,
                                         sy_backend_remote *from, uint32_t from_slot,
                                         uint64_t offset, uint64_t n, sy_error *err);

/* ---- is it right? ---- */

/* One batch on the probe's lane, whose memory is filled in: waits until it is done. The caller has
 * the probe's mutex. */
SY_MUST_USE sy_status sy_shard_home_run(sy_shard_home *home, uint32_t n_x, uint32_t n_rows,
                                        const sy_backend_group *group, uint32_t n_groups,
                                        sy_error *err);
/* The output for the row that every build knows, as a hash. y: [H], the output itself, or NULL. */
SY_MUST_USE sy_status sy_shard_home_output(uint64_t *out, float *y, const sy_shard *shard,
                                           sy_error *err);
/* The same, held against the reference in double precision: SY_EDATALOSS (SHARD_PROBE). */
SY_MUST_USE sy_status sy_shard_home_probe(uint64_t *out, const sy_shard *shard, sy_error *err);

/* A device's arithmetic in double precision, where x and h have bf16's values: one product of k
 * weights of a row as held, and its bias. NaN: it is beyond fp32's range. wide: [k], gets the row.
 */
float sy_shard_reference_dot(const void *row, sy_dtype dtype, const float *x, uint32_t k,
                             float bias, float *wide);
/* What lies between the matrices, rounded to bf16. */
float sy_shard_reference_mlp(const sy_shard_home *home, float g, float u);
/* Element i of the row that every build knows, before it is rounded. */
float sy_shard_probe_input(size_t i);
void sy_shard_canonical_nan(float *x, size_t n);

#endif
