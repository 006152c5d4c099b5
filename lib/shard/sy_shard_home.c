/* sy_shard_home.c - a GPU's pool as a home: what it takes at the start, who has which slot, its
 * lanes, and the day it is lost. Knows nothing of weights. */
#include "sy_shard_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_backend_load.h"
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

enum { ROWS_MIN = 256, ROWS_MAX = 8192 };
#define LANE_OUTPUT_BYTES_MAX ((uint64_t)32 << 20)

/* ---- loss ---- */

void sy_shard_home_lose(sy_shard_home *home, const char *why)
{
    pthread_mutex_lock(&home->loss);
    if (!atomic_load(&home->is_lost)) {
        snprintf(home->why, sizeof(home->why), "%s", why);
        atomic_store(&home->is_lost, 1);
    }
    pthread_mutex_unlock(&home->loss);
}

int sy_shard_home_lost(const sy_shard_home *home, sy_error *why)
{
    if (!atomic_load(&home->is_lost)) return 0;
    /* Written before is_lost was, and never again. */
    sy_error_set(why, SY_EUNAVAILABLE, "%s is lost: %s", home->name, home->why);
    sy_error_where(why, "DEVICE_LOST", -1, -1, NULL);
    return 1;
}

sy_status sy_shard_home_result(sy_shard_home *home, int result, const char *why, sy_error *err)
{
    if (result == SY_BACKEND_OK) return SY_OK;
    if (result == SY_BACKEND_EDEVLOST) {
        sy_shard_home_lose(home, why);
        (void)sy_shard_home_lost(home, err);
        return SY_EUNAVAILABLE;
    }
    return sy_error_set(err, sy_backend_status(result), "%s: %s", home->name, why);
}

/* ---- what shards it can have ---- */

static int is_readable(sy_dtype dtype)
{
    return dtype == SY_BF16 || sy_dtype_is_quant(dtype) || sy_dtype_is_encoded(dtype);
}

static sy_backend_weights weights_of(sy_dtype dtype)
{
    switch (dtype) {
    case SY_Q8: return SY_BACKEND_Q8;
    case SY_Q4: return SY_BACKEND_Q4;
    case SY_FP8: return SY_BACKEND_FP8;
    case SY_MXFP4: return SY_BACKEND_MXFP4;
    default: return SY_BACKEND_BF16;
    }
}

/* The types of all experts' matrices, as a set of bits, the form of one, and whether all have it.
 */
typedef struct survey {
    unsigned types;
    sy_shard_form form;
    int is_uniform;
} survey;

static survey survey_experts(const sy_model *model, sy_dtype weights)
{
    const sy_model_desc *desc = sy_model_describe(model);
    survey s = {.is_uniform = 1};

    for (uint32_t layer = 0; layer < desc->n_layers; layer++) {
        for (uint32_t expert = 0; expert < desc->n_experts; expert++) {
            sy_shard_form form;
            sy_shard_form_of(&form, model, weights, layer, expert);
            if (form.n == 0) continue;
            if (s.form.n == 0) s.form = form;
            s.is_uniform &= sy_shard_is_form_of(&form, &s.form);
            for (unsigned i = 0; i < SY_SHARD_MATRICES; i++) s.types |= 1u << form.dtype[i];
        }
    }
    return s;
}

static int is_served(const survey *s)
{
    return s->is_uniform && (s->types & (s->types - 1)) == 0 && is_readable(s->form.dtype[0]);
}

/* What can be done about types that the kernels do not read. */
static const char *remedy_for(const survey *s, const sy_model *model)
{
    const survey as_stored = survey_experts(model, SY_DTYPE_NONE);

    if ((s->types & (1u << SY_Q8 | 1u << SY_Q4)) != 0) return "cpu:N"; /* rounded already */
    return is_served(&as_stored) ? "--weights as-stored, q8 or q4, or cpu:N"
                                 : "--weights q8 or q4, or cpu:N";
}

static sy_status refuse_weights(const survey *s, const sy_shard_home_config *config, sy_error *err)
{
    char types[64] = "";
    size_t at = 0;

    for (unsigned t = 0; t < 8 * sizeof(s->types); t++) {
        if ((s->types >> t & 1) == 0) continue;
        at += (size_t)snprintf(types + at, sizeof(types) - at, "%s%s", at > 0 ? ", " : "",
                               sy_dtype_name((sy_dtype)t));
    }
    sy_error_set(err, SY_EUNIMPLEMENTED,
                 "the experts are held as %s, and the kernels of %s read experts that are all "
                 "bf16, all q8, all q4, all fp8 or all mxfp4: use %s",
                 types, config->name, remedy_for(s, config->model));
    sy_error_where(err, "DEVICE_WEIGHTS", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

static sy_status check_model(sy_shard_form *out, const sy_shard_home_config *config, sy_error *err)
{
    const survey s = survey_experts(config->model, config->weights);

    if (s.form.n == 0) {
        sy_error_set(err, SY_EUNIMPLEMENTED, "the model has no experts for %s", config->name);
        sy_error_where(err, "DEVICE_WEIGHTS", -1, -1, NULL);
        return SY_EUNIMPLEMENTED;
    }
    if (!is_served(&s)) return refuse_weights(&s, config, err);
    *out = s.form;
    return SY_OK;
}

/* ---- open and close ---- */

static uint32_t rows_max_of(uint32_t hidden)
{
    const uint64_t rows = LANE_OUTPUT_BYTES_MAX / ((uint64_t)hidden * sizeof(float));

    return (uint32_t)SY_MIN(SY_MAX(rows, (uint64_t)ROWS_MIN), (uint64_t)ROWS_MAX);
}

static uint32_t shards_of(const sy_model_desc *desc)
{
    uint32_t layers = 0;

    for (uint32_t i = 0; i < desc->n_layers; i++) layers += sy_model_has_experts(desc, i) != 0;
    return layers * desc->n_experts;
}

static sy_status open_pool(sy_shard_home *home, const sy_shard_home_config *config,
                           uint32_t rows_max, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(config->model);
    const sy_shard_form *form = &home->form;
    const sy_backend_pool_config pool = {.hidden = form->cols[0],
                                         .ffn = form->rows[0],
                                         .weights = weights_of(form->dtype[0]),
                                         .has_bias = form->n > SY_SHARD_MATRICES,
                                         .mlp = desc->mlp == SY_MLP_CLAMPED ? SY_BACKEND_CLAMPED
                                                                            : SY_BACKEND_SWIGLU,
                                         .mlp_limit = desc->mlp_limit,
                                         .memory_bytes = config->memory_bytes_max,
                                         .slots_max = shards_of(desc),
                                         .rows_max = rows_max,
                                         .lanes = config->lanes + 1};
    char why[SY_BACKEND_WHY_BYTES] = "";
    sy_status st = sy_shard_home_result(
        home, home->backend->open(&home->device, config->number, why), why, err);

    if (st != SY_OK) return st;
    st = sy_shard_home_result(home, home->backend->pool_open(&home->pool, home->device, &pool, why),
                              why, err);
    if (st == SY_ENOMEM) sy_error_where(err, "DEVICE_MEMORY", -1, -1, NULL);
    return st;
}

/* Groups without rows are left out of a batch, so it has no more of them than rows. */
static int make_lane(sy_shard_home *home, uint32_t i, uint32_t rows_max)
{
    sy_backend_lane memory;

    home->backend->lane(&memory, home->pool, i);
    home->lane[i].memory =
        (sy_shard_lane){memory.x, home->info.x_stride, memory.x_row, memory.y, rows_max};
    home->lane[i].group = malloc(rows_max * sizeof(*home->lane[i].group));
    return home->lane[i].group != NULL;
}

static size_t block_bytes(const sy_shard_form *form)
{
    size_t row_bytes = 1;

    for (unsigned i = 0; i < form->n; i++)
        row_bytes = SY_MAX(row_bytes, sy_dtype_row_bytes(form->dtype[i], form->cols[i]));
    return SY_PANEL * row_bytes;
}

static sy_status make_room(sy_shard_home *home, uint32_t rows_max)
{
    home->backend->pool_describe(&home->info, home->pool);
    home->free_slot = malloc(home->info.n_slots * sizeof(*home->free_slot));
    home->block = malloc(block_bytes(&home->form));
    if (home->free_slot == NULL || home->block == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i <= home->n_lanes; i++)
        if (!make_lane(home, i, rows_max)) return SY_ENOMEM;
    for (uint32_t i = home->info.n_slots; i > 0; i--) /* the first slot on top */
        home->free_slot[home->n_free++] = i - 1;
    home->is_open = 1;
    return SY_OK;
}

sy_status sy_shard_home_open(sy_shard_home **out, const sy_shard_home_config *config, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(config->model);
    sy_shard_home *home;
    sy_status st;

    *out = NULL;
    SY_ASSERT(config->lanes >= 1 && config->lanes < SY_BACKEND_LANES_MAX);
    home = calloc(1, sizeof(*home));
    if (home == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %s", config->name);
    pthread_mutex_init(&home->slots, NULL);
    pthread_mutex_init(&home->reads, NULL);
    pthread_mutex_init(&home->probe, NULL);
    pthread_mutex_init(&home->loss, NULL);
    home->backend = config->backend;
    home->n_lanes = config->lanes;
    home->mlp = desc->mlp;
    home->mlp_limit = desc->mlp_limit;
    home->name = strdup(config->name);
    if (home->name == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory for %s", config->name);
        goto out;
    }
    SY_TRY(check_model(&home->form, config, err));
    SY_TRY(open_pool(home, config, rows_max_of(home->form.cols[0]), err));
    st = make_room(home, rows_max_of(home->form.cols[0]));
    if (st != SY_OK) {
        sy_error_set(err, st, "no memory for the slots and lanes of %s", config->name);
        goto out;
    }
    *out = home;
    home = NULL;
out:
    sy_shard_home_close(home);
    return st;
}

void sy_shard_home_close(sy_shard_home *home)
{
    if (home == NULL) return;
    SY_ASSERT(!home->is_open || home->n_free == home->info.n_slots);
    home->backend->pool_close(home->pool);
    home->backend->close(home->device);
    for (uint32_t i = 0; i <= home->n_lanes; i++) free(home->lane[i].group);
    free(home->free_slot);
    free(home->block);
    free(home->name);
    pthread_mutex_destroy(&home->slots);
    pthread_mutex_destroy(&home->reads);
    pthread_mutex_destroy(&home->probe);
    pthread_mutex_destroy(&home->loss);
    free(home);
}

/* ---- what it is ---- */

const char *sy_shard_home_name(const sy_shard_home *home)
{
    return home->name;
}

const char *sy_shard_home_arithmetic(const sy_shard_home *home)
{
    return home->info.arithmetic;
}

uint32_t sy_shard_home_slots(const sy_shard_home *home)
{
    return home->info.n_slots;
}

uint64_t sy_shard_home_slot_bytes(const sy_shard_home *home)
{
    return home->info.slot_bytes;
}

uint64_t sy_shard_home_bytes_max(const sy_shard_home *home)
{
    return home->info.n_slots * home->info.slot_bytes;
}

const sy_shard_form *sy_shard_home_form(const sy_shard_home *home)
{
    return &home->form;
}

/* ---- slots ---- */

uint64_t sy_shard_home_bytes(const sy_shard_home *home)
{
    sy_shard_home *h = (sy_shard_home *)(uintptr_t)home;

    pthread_mutex_lock(&h->slots);
    const uint32_t n_taken = h->info.n_slots - h->n_free;
    pthread_mutex_unlock(&h->slots);
    return n_taken * h->info.slot_bytes;
}

sy_status sy_shard_home_take(uint32_t *slot, sy_shard_home *home, sy_error *err)
{
    int taken = 0;

    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    pthread_mutex_lock(&home->slots);
    if (home->n_free > 0) {
        *slot = home->free_slot[--home->n_free];
        taken = 1;
    }
    pthread_mutex_unlock(&home->slots);
    if (taken) return SY_OK;
    sy_error_set(err, SY_ELIMIT, "needs %llu bytes of %s, has 0 of %llu: all %u slots are taken",
                 (unsigned long long)home->info.slot_bytes, home->name,
                 (unsigned long long)sy_shard_home_bytes_max(home), home->info.n_slots);
    sy_error_where(err, "SHARD_MEMORY", -1, -1, NULL);
    return SY_ELIMIT;
}

void sy_shard_home_give(sy_shard_home *home, uint32_t slot)
{
    pthread_mutex_lock(&home->slots);
    SY_ASSERT(home->n_free < home->info.n_slots);
    home->free_slot[home->n_free++] = slot;
    pthread_mutex_unlock(&home->slots);
}

/* ---- batches ---- */

sy_shard_lane sy_shard_home_lane(const sy_shard_home *home, uint32_t lane)
{
    SY_ASSERT(lane < home->n_lanes);
    return home->lane[lane].memory;
}

sy_status sy_shard_home_submit(sy_shard_home *home, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                               const sy_shard_group *groups, size_t n_groups, sy_error *err)
{
    home_lane *l = &home->lane[lane];
    char why[SY_BACKEND_WHY_BYTES] = "";
    uint32_t n = 0, end = 0;

    SY_ASSERT(lane < home->n_lanes);
    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    if (n_x > l->memory.rows_max || n_rows > l->memory.rows_max)
        return sy_error_set(err, SY_EINVAL, "%u tokens and %u rows, but a batch of %s has %u", n_x,
                            n_rows, home->name, l->memory.rows_max);
    for (size_t i = 0; i < n_groups; i++) {
        const sy_shard_group *g = &groups[i];
        SY_ASSERT(g->shard->home == home);
        if (g->begin != end || g->end < end || g->end > n_rows)
            return sy_error_set(err, SY_EINVAL, "rows %u to %u of %u do not follow row %u",
                                g->begin, g->end, n_rows, end);
        if (g->end > end) l->group[n++] = (sy_backend_group){g->shard->slot, end, g->end};
        end = g->end;
    }
    if (end != n_rows)
        return sy_error_set(err, SY_EINVAL, "%u of %u rows are in no group", n_rows - end, n_rows);
    return sy_shard_home_result(
        home, home->backend->submit(home->pool, lane, n_x, n_rows, l->group, n, why), why, err);
}

sy_status sy_shard_home_wait(int *done, float *device_us, sy_shard_home *home, uint32_t lane,
                             uint32_t timeout_us, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    SY_ASSERT(lane < home->n_lanes);
    *done = 0;
    *device_us = 0;
    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(
        home, home->backend->wait(done, device_us, home->pool, lane, timeout_us, why), why, err);
}
