/* sy_moe_gpus.c - see sy_moe_gpus.h. Shards go round the devices in turn. A layer's groups are cut
 * into batches, each into the next lane of the device that has the expert; a lane that is still
 * under way is waited for first, so that all devices compute while the host fills the next batch.
 * A token's bits do not depend on how groups were cut. */
#include "sy_moe_gpus.h"

#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"

enum {
    LANES = 3, /* of a device: one is filled, one computes, one is read */
    LOAD_BYTES = 1 << 20,
    TIMEOUT_US = 10 * 1000 * 1000, /* of a batch: the device is lost */
    LOOK_US = 100 * 1000
};

typedef struct gpu_lane {
    sy_shard_lane memory;
    uint32_t n_x, n_rows, n_groups;
    sy_shard_group *group; /* [rows_max] */
    uint32_t *from;        /* [rows_max]: where each group's rows begin in the plan */
    int is_under_way;
} gpu_lane;

typedef struct gpu {
    sy_shard_home *home;
    gpu_lane lane[LANES];
    uint32_t next; /* lane */
} gpu;

struct moe_gpus {
    const sy_kernels *kernels;
    size_t hidden;
    gpu gpu[SY_MOE_DEVICES_MAX];
    uint32_t n_gpus;
    uint64_t *place; /* [tokens]: of a batch (the upper half: its number), where it has the token */
    size_t n_places;
    uint32_t n_batches;
    sy_error lost; /* a batch that may still be under way has no end that could be waited for */
};

/* What one call works on. */
typedef struct computing {
    moe_gpus *gpus;
    float *out;
    const float *x;
    const sy_plan *plan;
    sy_error *err;
} computing;

/* ---- life ---- */

static sy_status open_gpu(moe_gpus *self, const sy_shard_home_config *config, sy_error *err)
{
    gpu *g = &self->gpu[self->n_gpus];
    sy_status st;

    SY_TRY(sy_shard_home_open(&g->home, config, err));
    self->n_gpus++;
    SY_TRY(sy_shard_home_self_test(g->home, err));
    for (uint32_t i = 0; i < LANES; i++) {
        gpu_lane *lane = &g->lane[i];
        lane->memory = sy_shard_home_lane(g->home, i);
        lane->group = malloc(lane->memory.rows_max * sizeof(*lane->group));
        lane->from = malloc(lane->memory.rows_max * sizeof(*lane->from));
        if (lane->group == NULL || lane->from == NULL)
            return sy_error_set(err, SY_ENOMEM, "no memory for the batches of %s", config->name);
    }
    const char *one = moe_gpus_arithmetic(self), *other = sy_shard_home_arithmetic(g->home);
    if (strcmp(one, other) != 0) {
        st = sy_error_set(err, SY_EINVAL, "%s computes as %s, and %s as %s: name GPUs of one kind",
                          sy_shard_home_name(self->gpu[0].home), one, config->name, other);
        sy_error_where(err, "MIXED_ARITHMETIC", -1, -1, NULL);
    }
out:
    return st;
}

sy_status moe_gpus_open(moe_gpus **out, const sy_moe_devices *devices, const sy_model *model,
                        sy_dtype weights, const sy_kernels *kernels, sy_error *err)
{
    moe_gpus *self = calloc(1, sizeof(*self));
    sy_status st = SY_OK;

    *out = NULL;
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the experts");
    SY_ASSERT(devices->n > 0 && devices->n <= SY_MOE_DEVICES_MAX);
    self->kernels = kernels;
    self->hidden = sy_model_describe(model)->hidden;
    for (uint32_t i = 0; i < devices->n && st == SY_OK; i++) {
        const sy_shard_home_config config = {.backend = devices->backend,
                                             .number = devices->number[i],
                                             .name = devices->name[i],
                                             .model = model,
                                             .weights = weights,
                                             .lanes = LANES};
        st = open_gpu(self, &config, err);
    }
    if (st != SY_OK) {
        moe_gpus_close(self);
        return st;
    }
    *out = self;
    return SY_OK;
}

void moe_gpus_close(moe_gpus *self)
{
    if (self == NULL) return;
    for (uint32_t i = 0; i < self->n_gpus; i++) {
        sy_shard_home_close(self->gpu[i].home);
        for (uint32_t j = 0; j < LANES; j++) {
            free(self->gpu[i].lane[j].group);
            free(self->gpu[i].lane[j].from);
        }
    }
    free(self->place);
    free(self);
}

const char *moe_gpus_arithmetic(const moe_gpus *self)
{
    return sy_shard_home_arithmetic(self->gpu[0].home);
}

sy_status moe_gpus_load(moe_gpus *self, sy_shard_store *store, size_t i, uint32_t layer,
                        uint32_t expert, sy_error *err)
{
    sy_shard_home *home = self->gpu[i % self->n_gpus].home;
    sy_shard_builder *builder = NULL;
    sy_shard_identity identity;
    int done = 0;
    sy_status st;

    SY_TRY(sy_shard_begin_on(&builder, store, home, layer, expert, NULL, err));
    while (!done) SY_TRY(sy_shard_add_from_checkpoint(builder, LOAD_BYTES, &done, err));
    SY_TRY(sy_shard_verify(builder, &identity, self->kernels, err));
    sy_shard_publish(builder);
    return SY_OK;
out:
    sy_shard_abandon(builder);
    return st;
}

/* ---- batches ---- */

static sy_status lose(moe_gpus *self, const gpu *g, sy_error *err)
{
    sy_error_prefix(err, "%s", sy_shard_home_name(g->home));
    if (self->lost.status == SY_OK) self->lost = *err;
    return err->status;
}

/* Its rows, if it has any under way, go where the plan has them. */
static sy_status finish(const computing *c, gpu *g, uint32_t i)
{
    const size_t hidden = c->gpus->hidden;
    const int64_t late_us = sy_clock_us() + TIMEOUT_US;
    gpu_lane *lane = &g->lane[i];
    float device_us;
    int done = 0;

    if (!lane->is_under_way) return SY_OK;
    while (!done) {
        if (sy_shard_home_wait(&done, &device_us, g->home, i, LOOK_US, c->err) != SY_OK)
            return lose(c->gpus, g, c->err);
        if (done || sy_clock_us() < late_us) continue;
        sy_error_set(c->err, SY_EUNAVAILABLE, "a batch of %u rows is not done after %d s",
                     lane->n_rows, TIMEOUT_US / 1000000);
        sy_error_where(c->err, "DEVICE_LOST", -1, -1, NULL);
        return lose(c->gpus, g, c->err);
    }
    lane->is_under_way = 0;
    for (uint32_t k = 0; k < lane->n_groups; k++) {
        const sy_shard_group *group = &lane->group[k];
        memcpy(c->out + lane->from[k] * hidden, lane->memory.y + group->begin * hidden,
               (group->end - group->begin) * hidden * sizeof(float));
    }
    return SY_OK;
}

static sy_status submit(const computing *c, gpu *g)
{
    gpu_lane *lane = &g->lane[g->next];
    sy_status st;

    if (lane->n_rows == 0) return SY_OK;
    st = sy_shard_home_submit(g->home, g->next, lane->n_x, lane->n_rows, lane->group,
                              lane->n_groups, c->err);
    if (st != SY_OK) return lose(c->gpus, g, c->err);
    lane->is_under_way = 1;
    g->next = (g->next + 1) % LANES;
    g->lane[g->next].n_rows = 0; /* of the batch before, until it is finished */
    return SY_OK;
}

/* An empty batch in the next lane. */
static sy_status begin_batch(const computing *c, gpu *g)
{
    gpu_lane *lane = &g->lane[g->next];
    const sy_status st = finish(c, g, g->next);

    lane->n_x = lane->n_rows = lane->n_groups = 0;
    return st;
}

static uint32_t next_batch(moe_gpus *self)
{
    if (++self->n_batches == 0) { /* the numbers begin again, and 0 is that of no batch */
        memset(self->place, 0, self->n_places * sizeof(*self->place));
        self->n_batches = 1;
    }
    return self->n_batches;
}

/* Where the batch has a token, which is rounded into it the first time it is met. */
static uint32_t place_of(const computing *c, gpu_lane *lane, uint32_t batch, uint32_t token)
{
    const size_t hidden = c->gpus->hidden;
    uint64_t *place = &c->gpus->place[token];

    if (*place >> 32 == batch) return (uint32_t)*place;
    *place = (uint64_t)batch << 32 | lane->n_x;
    c->gpus->kernels->round_bf16(lane->memory.x + lane->n_x * lane->memory.x_stride,
                                 c->x + token * hidden, hidden);
    return lane->n_x++;
}

/* Rows [begin, end) of the plan in as many batches as they need; the last one stays open. */
static sy_status add_group(const computing *c, gpu *g, const sy_shard_group *group, uint32_t *batch)
{
    for (uint32_t at = group->begin; at < group->end;) {
        gpu_lane *lane = &g->lane[g->next];
        if (lane->n_rows == 0 || lane->n_rows == lane->memory.rows_max) {
            sy_status st = submit(c, g);
            if (st == SY_OK) st = begin_batch(c, g);
            if (st != SY_OK) return st;
            lane = &g->lane[g->next];
            *batch = next_batch(c->gpus);
        }
        const uint32_t n = SY_MIN(group->end - at, lane->memory.rows_max - lane->n_rows);
        for (uint32_t i = 0; i < n; i++)
            lane->memory.x_row[lane->n_rows + i] =
                place_of(c, lane, *batch, c->plan->row_token[at + i]);
        lane->from[lane->n_groups] = at;
        lane->group[lane->n_groups++] =
            (sy_shard_group){group->shard, lane->n_rows, lane->n_rows + n};
        lane->n_rows += n;
        at += n;
    }
    return SY_OK;
}

static sy_status compute_on(const computing *c, gpu *g, const sy_shard_group *group)
{
    uint32_t batch = 0;

    for (uint32_t i = 0; i < c->plan->n_groups; i++) {
        if (group[i].shard->home != g->home) continue;
        const sy_status st = add_group(c, g, &group[i], &batch);
        if (st != SY_OK) return st;
    }
    return submit(c, g);
}

static sy_status grow(moe_gpus *self, uint32_t n_tokens, sy_error *err)
{
    if (n_tokens > self->n_places) {
        free(self->place);
        self->place = calloc(n_tokens, sizeof(*self->place));
        self->n_places = self->place == NULL ? 0 : n_tokens;
        if (self->place == NULL)
            return sy_error_set(err, SY_ENOMEM, "no memory for %u tokens", n_tokens);
    }
    return SY_OK;
}

sy_status moe_gpus_compute(moe_gpus *self, float *out, const float *x, const sy_plan *plan,
                           const sy_shard_group *group, sy_error *err)
{
    const computing c = {self, out, x, plan, err};
    sy_status st = self->lost.status;

    if (st != SY_OK) {
        *err = self->lost;
        return st;
    }
    st = grow(self, plan->n_tokens, err);
    for (uint32_t i = 0; i < self->n_gpus && st == SY_OK; i++)
        st = compute_on(&c, &self->gpu[i], group);
    for (uint32_t i = 0; i < self->n_gpus; i++)
        for (uint32_t lane = 0; lane < LANES && st == SY_OK; lane++)
            st = finish(&c, &self->gpu[i], lane);
    return st;
}
