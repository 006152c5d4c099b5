/* expert_gpu.c - batches on one GPU. The device's thread (gpu_main) cuts what waits for a layer
 * into batches, each into a lane's pinned memory, and submits them; a second thread waits for the
 * lanes in that order, hands the rows to the messages that asked for them and answers those that
 * are complete. So the host fills one lane while the device computes another. A batch starts as
 * soon as a lane is free, and never waits for more to come: what comes while all lanes are under
 * way is batched together.
 *
 * Neither thread outlasts the device: when it fails, or gets no further for a while, everything
 * under way and all that comes later is answered with an error at once, and no lane is used again,
 * because the device may still write to it. */
#include <stdlib.h>
#include <string.h>

#include "compute_job.h"
#include "sy_clock.h"
#include "sy_log.h"

enum {
    ARENA_BYTES_MAX = 1 << 30,
    LOOK_US = 100 * 1000 /* how often a wait looks whether the device has failed otherwise */
};

/* Rows of a batch, one after the other, and where they belong. */
typedef struct lane_part {
    compute_job *job;
    uint32_t begin, n; /* rows of job->y */
} lane_part;

typedef struct gpu_lane {
    sy_shard_lane memory;
    uint32_t n_x, n_rows;
    lane_part *part; /* [rows_max] */
    uint32_t n_parts;
    sy_shard_group *group; /* [rows_max] */
    uint32_t n_groups;
    compute_job *end[TOGETHER_MAX]; /* their last rows on this device are in this batch */
    uint32_t n_ends;
    int64_t handed_us; /* to the finisher */
    int is_submitted;  /* 0: it failed before, and is only here to be answered */
} gpu_lane;

struct expert_gpu {
    expert_device *device;
    gpu_lane lane[EXPERT_LANES];
    pthread_t finisher;
    int started;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    uint32_t first, n_under_way; /* lanes, used in turn */
    int stopping;
    /* The finisher's own. */
    int64_t busy_us;     /* since messages were complete last */
    int64_t progress_us; /* when the device has finished something last */
    sy_arena arena;      /* the device's thread's own, as is the next one */
    uint32_t n_batches;  /* of the jobs in hand */
};

/* ---- lanes ---- */

/* The next one that is free, once there is one. A device that has failed does not keep any. */
static gpu_lane *wait_for_lane(expert_gpu *gpu)
{
    pthread_mutex_lock(&gpu->mutex);
    while (gpu->n_under_way == EXPERT_LANES) pthread_cond_wait(&gpu->changed, &gpu->mutex);
    const uint32_t next = (gpu->first + gpu->n_under_way) % EXPERT_LANES;
    pthread_mutex_unlock(&gpu->mutex);
    return &gpu->lane[next];
}

/* The lane is the finisher's from now on. */
static void hand_over(expert_gpu *gpu, gpu_lane *lane)
{
    lane->handed_us = sy_clock_us();
    pthread_mutex_lock(&gpu->mutex);
    gpu->n_under_way++;
    sy_metric_set(gpu->device->lanes, gpu->n_under_way);
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

static void give_back(expert_gpu *gpu)
{
    pthread_mutex_lock(&gpu->mutex);
    gpu->first = (gpu->first + 1) % EXPERT_LANES;
    gpu->n_under_way--;
    sy_metric_set(gpu->device->lanes, gpu->n_under_way);
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
}

/* The oldest lane under way; NULL: there is none and the node stops. */
static gpu_lane *wait_for_batch(expert_gpu *gpu)
{
    pthread_mutex_lock(&gpu->mutex);
    while (gpu->n_under_way == 0 && !gpu->stopping) pthread_cond_wait(&gpu->changed, &gpu->mutex);
    gpu_lane *lane = gpu->n_under_way == 0 ? NULL : &gpu->lane[gpu->first];
    pthread_mutex_unlock(&gpu->mutex);
    return lane;
}

/* ---- filling ---- */

/* The jobs of one layer that are cut into batches. */
typedef struct cutting {
    expert_gpu *gpu;
    gpu_lane *lane;    /* the one being filled; NULL: none */
    uint32_t *x_begin; /* [n_jobs]: the first of a job's tokens in x_at */
    uint64_t *x_at;    /* a token's place in the batch of that number (the upper half) */
    uint32_t *last;    /* [n_jobs]: the job's last piece */
} cutting;

static sy_status begin_cutting(cutting *out, expert_gpu *gpu, compute_job *const *job,
                               size_t n_jobs, const job_piece *piece, size_t n_pieces)
{
    uint32_t n_x = 0;

    *out = (cutting){.gpu = gpu,
                     .x_begin = sy_arena_alloc(&gpu->arena, n_jobs * sizeof(*out->x_begin)),
                     .last = sy_arena_alloc(&gpu->arena, n_jobs * sizeof(*out->last))};
    if (out->x_begin == NULL || out->last == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_jobs; i++) {
        out->x_begin[i] = n_x;
        n_x += job[i]->request.hidden.rows;
    }
    out->x_at = sy_arena_calloc(&gpu->arena, (size_t)n_x + 1, sizeof(*out->x_at));
    if (out->x_at == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_pieces; i++) out->last[piece[i].job_id] = (uint32_t)i;
    gpu->n_batches = 0;
    return SY_OK;
}

static gpu_lane *begin_batch(cutting *c)
{
    if (c->lane != NULL) return c->lane;
    c->lane = wait_for_lane(c->gpu);
    c->lane->n_x = c->lane->n_rows = 0;
    c->lane->n_parts = c->lane->n_groups = c->lane->n_ends = 0;
    c->lane->is_submitted = 0;
    c->gpu->n_batches++;
    return c->lane;
}

static void fail_parts(const gpu_lane *lane, const sy_error *err)
{
    for (uint32_t i = 0; i < lane->n_parts; i++) job_fail(lane->part[i].job, err);
}

static void submit(cutting *c)
{
    expert_device *device = c->gpu->device;
    gpu_lane *lane = c->lane;
    sy_error err = {0};

    sy_error_clear(&err);
    c->lane = NULL;
    device_slow_down();
    if (device_failed(device)) {
        fail_parts(lane, &device->fault);
    } else if (sy_shard_home_submit(device->home, (uint32_t)(lane - c->gpu->lane), lane->n_x,
                                    lane->n_rows, lane->group, lane->n_groups, &err) != SY_OK) {
        devices_look(device->expert);
        sy_error_prefix(&err, "%s", device->name);
        fail_parts(lane, device_failed(device) ? &device->fault : &err);
    } else {
        lane->is_submitted = 1;
        sy_metric_add(device->batches, 1);
        sy_metric_add(device->rows, lane->n_rows);
        sy_metric_add(device->expert->batches, 1);
    }
    hand_over(c->gpu, lane);
}

/* Where the batch has a token, which is rounded into it the first time it is met. */
static uint32_t place_of(const cutting *c, const job_piece *p, uint32_t token)
{
    const expert *self = c->gpu->device->expert;
    const size_t hidden = self->desc->hidden;
    uint64_t *at = &c->x_at[c->x_begin[p->job_id] + token];
    gpu_lane *lane = c->lane;

    if (*at >> 32 == c->gpu->n_batches) return (uint32_t)*at;
    *at = (uint64_t)c->gpu->n_batches << 32 | lane->n_x;
    self->kernels->round_bf16(lane->memory.x + lane->n_x * lane->memory.x_stride,
                              p->job->x + token * hidden, hidden);
    return lane->n_x++;
}

/* As many of the piece's rows from `begin` on as have room; returns how many. */
static uint32_t add_rows(cutting *c, const job_piece *p, uint32_t begin)
{
    gpu_lane *lane = begin_batch(c);
    const sy_shard *shard = p->job->shard[p->group];
    const uint32_t n = SY_MIN(p->end - begin, lane->memory.rows_max - lane->n_rows);
    const int goes_on =
        lane->n_groups > 0 && lane->group[lane->n_groups - 1].shard->expert == shard->expert;
    /* Seen before a lane is met again that the device may not have let go of. */
    const int is_open = !device_failed(c->gpu->device);

    /* The weights are read once for all rows of an expert, whoever sent them. */
    if (!goes_on)
        lane->group[lane->n_groups++] = (sy_shard_group){shard, lane->n_rows, lane->n_rows};
    for (uint32_t i = 0; i < n && is_open; i++)
        lane->memory.x_row[lane->n_rows + i] = place_of(c, p, p->job->request.row[begin + i]);
    lane->part[lane->n_parts++] = (lane_part){p->job, begin, n};
    lane->n_rows += n;
    lane->group[lane->n_groups - 1].end = lane->n_rows;
    return n;
}

static void cut(cutting *c, const job_piece *piece, size_t n_pieces)
{
    for (size_t i = 0; i < n_pieces; i++) {
        const job_piece *p = &piece[i];
        for (uint32_t at = p->begin; at < p->end;) {
            at += add_rows(c, p, at);
            if (at == p->end && c->last[p->job_id] == i) c->lane->end[c->lane->n_ends++] = p->job;
            if (c->lane->n_rows == c->lane->memory.rows_max) submit(c);
        }
    }
    if (c->lane != NULL) submit(c);
}

/* ---- the device's thread ---- */

/* Without a batch: the device has failed, or there is no memory. */
static void answer_unbatched(expert_device *device, compute_job **job, size_t n_jobs,
                             const sy_error *err)
{
    atomic_fetch_sub(&device->depth, (unsigned)n_jobs);
    for (size_t i = 0; i < n_jobs; i++) {
        job_fail(job[i], err);
        job_device_done(device->expert, job[i]);
    }
}

static void batch_jobs(expert_gpu *gpu, compute_job **job, size_t n_jobs)
{
    sy_error err = {0};
    size_t n_pieces = 0;
    cutting c;

    if (device_failed(gpu->device)) {
        answer_unbatched(gpu->device, job, n_jobs, &gpu->device->fault);
        return;
    }
    sy_error_clear(&err);
    const job_piece *piece = batch_pieces(&n_pieces, gpu->device, job, n_jobs, &gpu->arena);
    if (piece == NULL || begin_cutting(&c, gpu, job, n_jobs, piece, n_pieces) != SY_OK) {
        sy_error_set(&err, SY_ENOMEM, "no memory for a batch of %zu messages", n_jobs);
        answer_unbatched(gpu->device, job, n_jobs, &err);
    } else {
        for (size_t i = 0; i < n_jobs; i++) atomic_store(&job[i]->batched, (unsigned)n_jobs);
        cut(&c, piece, n_pieces);
    }
    sy_arena_reset(&gpu->arena);
}

void *gpu_main(void *arg)
{
    expert_device *device = arg;
    job_hand hand = {0};

    while (hand_take(device, &hand)) {
        (void)wait_for_lane(device->gpu);
        (void)hand_take(device, &hand); /* what came meanwhile: it does not wait */
        const size_t together = hand_same_layer(&hand);
        batch_jobs(device->gpu, hand.job, together);
        hand_drop(&hand, together);
    }
    return NULL;
}

/* ---- finishing ---- */

/* 1: the lane's rows are there. Else the device has failed by now. */
static int wait_until_done(expert_gpu *gpu, const gpu_lane *lane)
{
    expert_device *device = gpu->device;
    const int64_t timeout_us = device->expert->device_timeout_us;
    const int64_t late_us = sy_clock_us() + timeout_us; /* the batch before it is done */
    sy_error err = {0};
    float device_us = 0;
    int done = 0;

    sy_error_clear(&err);
    while (!done && !device_failed(device)) {
        if (sy_shard_home_wait(&done, &device_us, device->home, (uint32_t)(lane - gpu->lane),
                               LOOK_US, &err) != SY_OK) {
            device_fail(device, &err);
        } else if (!done && sy_clock_us() > late_us) {
            sy_error_set(&err, SY_EUNAVAILABLE, "a batch of %u rows is not done after %g s",
                         lane->n_rows, (double)timeout_us / 1e6);
            device_fail(device, &err);
        }
    }
    if (!done || device_failed(device)) return 0;
    sy_metric_add(device->seconds, (double)device_us / 1e6);
    return 1;
}

static void copy_rows(const expert_gpu *gpu, const gpu_lane *lane)
{
    const size_t hidden = gpu->device->expert->desc->hidden;
    const float *from = lane->memory.y;

    for (uint32_t i = 0; i < lane->n_parts; i++) {
        const lane_part *p = &lane->part[i];
        memcpy(p->job->y + p->begin * hidden, from, p->n * hidden * sizeof(float));
        from += p->n * hidden;
    }
}

/* Rows first, then the lane, which the device's thread may be waiting for, and then the answers. */
static void finish(expert_gpu *gpu, gpu_lane *lane)
{
    expert_device *device = gpu->device;
    compute_job *end[TOGETHER_MAX];
    const uint32_t n_ends = lane->n_ends;
    const int64_t begin_us = SY_MAX(lane->handed_us, gpu->progress_us);

    if (lane->is_submitted) {
        if (wait_until_done(gpu, lane))
            copy_rows(gpu, lane);
        else
            fail_parts(lane, &device->fault);
    }
    gpu->progress_us = sy_clock_us();
    gpu->busy_us += gpu->progress_us - begin_us;
    memcpy(end, lane->end, n_ends * sizeof(*end));
    give_back(gpu);
    if (n_ends == 0) return;
    device_note_service(device, gpu->busy_us, n_ends);
    gpu->busy_us = 0;
    for (uint32_t i = 0; i < n_ends; i++) job_device_done(device->expert, end[i]);
}

static void *finisher_main(void *arg)
{
    expert_gpu *gpu = arg;
    gpu_lane *lane;

    while ((lane = wait_for_batch(gpu)) != NULL) finish(gpu, lane);
    return NULL;
}

/* ---- life ---- */

static sy_status open_lanes(expert_gpu *gpu)
{
    for (uint32_t i = 0; i < EXPERT_LANES; i++) {
        gpu_lane *lane = &gpu->lane[i];
        lane->memory = sy_shard_home_lane(gpu->device->home, i);
        lane->part = calloc(lane->memory.rows_max, sizeof(*lane->part));
        lane->group = calloc(lane->memory.rows_max, sizeof(*lane->group));
        if (lane->part == NULL || lane->group == NULL) return SY_ENOMEM;
    }
    return SY_OK;
}

sy_status gpu_open(expert_device *device, sy_error *err)
{
    expert_gpu *gpu = calloc(1, sizeof(*gpu));

    if (gpu == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %s", device->name);
    gpu->device = device;
    device->gpu = gpu; /* gpu_close ends it, however far this comes */
    pthread_mutex_init(&gpu->mutex, NULL);
    pthread_cond_init(&gpu->changed, NULL);
    sy_arena_init(&gpu->arena, ARENA_BYTES_MAX);
    if (open_lanes(gpu) != SY_OK)
        return sy_error_set(err, SY_ENOMEM, "no memory for the batches of %s", device->name);
    if (pthread_create(&gpu->finisher, NULL, finisher_main, gpu) != 0)
        return sy_error_set(err, SY_EIO, "no thread for %s", device->name);
    gpu->started = 1;
    return SY_OK;
}

void gpu_close(expert_device *device)
{
    expert_gpu *gpu = device->gpu;

    if (gpu == NULL) return;
    pthread_mutex_lock(&gpu->mutex);
    gpu->stopping = 1;
    pthread_cond_broadcast(&gpu->changed);
    pthread_mutex_unlock(&gpu->mutex);
    if (gpu->started) pthread_join(gpu->finisher, NULL);
    for (uint32_t i = 0; i < EXPERT_LANES; i++) {
        free(gpu->lane[i].part);
        free(gpu->lane[i].group);
    }
    sy_arena_free(&gpu->arena);
    pthread_cond_destroy(&gpu->changed);
    pthread_mutex_destroy(&gpu->mutex);
    free(gpu);
    device->gpu = NULL;
}
