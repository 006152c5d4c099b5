/* sy_moe_local.c - the MoE block with every expert in this process: route, plan, compute, combine,
 * through the same libraries that the tiers use. */
#include "sy_moe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "sy_moe_gpus.h"
#include "sy_moe_rows.h"
#include "sy_pages.h"
#include "sy_plan.h"
#include "sy_route.h"
#include "sy_shard.h"

struct sy_moe_local {
    const sy_model_desc *desc;
    const sy_kernels *kernels;
    sy_pool *pool;
    sy_router *router;
    sy_shard_store *store;
    sy_precision precision;
    moe_gpus *gpus; /* NULL: the processor computes */
    sy_plan plan;
    sy_shard_scratch scratch;
    /* Sized for `rows` tokens, grown when a larger batch comes. */
    uint32_t rows;
    uint16_t *expert; /* [rows,K] */
    float *weight;    /* [rows,K] */
    float *route_scratch;
    float *scaled; /* [rows,H] and weights of 1, [rows]; NULL: the gate scales what comes out */
    float *out;    /* [rows*K,H] */
    size_t out_bytes;
    const float **out_row; /* [rows*K] */
    sy_shard_group *group; /* [E] */
};

static void free_rows(sy_moe_local *local)
{
    free(local->expert);
    free(local->weight);
    free(local->route_scratch);
    free(local->scaled);
    sy_pages_free(local->out, local->out_bytes);
    free(local->out_row);
    local->expert = NULL;
    local->weight = local->route_scratch = local->scaled = local->out = NULL;
    local->out_row = NULL;
    local->rows = 0;
}

static sy_status grow_rows(sy_moe_local *local, uint32_t rows)
{
    const size_t slots = (size_t)rows * local->desc->top_k;

    if (rows <= local->rows) return SY_OK;
    free_rows(local);
    local->expert = malloc(slots * sizeof(*local->expert));
    local->weight = malloc(slots * sizeof(*local->weight));
    local->route_scratch = malloc(sy_router_scratch(local->router, rows) * sizeof(float));
    if (local->desc->gate.scales_input)
        local->scaled = malloc(rows * (local->desc->hidden + (size_t)1) * sizeof(float));
    local->out_bytes = slots * local->desc->hidden * sizeof(float);
    local->out = sy_pages_alloc(local->out_bytes);
    local->out_row = malloc(slots * sizeof(*local->out_row));
    if (local->expert == NULL || local->weight == NULL || local->route_scratch == NULL ||
        local->out == NULL || local->out_row == NULL ||
        (local->desc->gate.scales_input && local->scaled == NULL)) {
        free_rows(local);
        return SY_ENOMEM;
    }
    local->rows = rows;
    return SY_OK;
}

/* Shards come into memory on all of the pool's threads: rounding them takes longer than reading. */
typedef struct load_job {
    sy_moe_local *local;
    void (*progress)(void *arg, uint32_t done, uint32_t total);
    void *progress_arg;
    pthread_mutex_t mutex; /* guards what follows, and the callback */
    uint32_t done, total;
    sy_error error; /* the first; no more are loaded then */
} load_job;

static void load_task(void *arg, size_t i, unsigned thread)
{
    load_job *job = arg;
    const uint32_t experts = job->local->desc->n_experts;
    const uint32_t layer = (uint32_t)i / experts, expert = (uint32_t)i % experts;
    sy_error err = {0};

    (void)thread;
    if (!sy_model_has_experts(job->local->desc, layer)) return;
    pthread_mutex_lock(&job->mutex);
    const int stop = job->error.status != SY_OK;
    pthread_mutex_unlock(&job->mutex);
    if (stop) return;
    sy_error_clear(&err);
    const sy_status st =
        job->local->gpus == NULL
            ? sy_shard_load(job->local->store, layer, expert, &err)
            : moe_gpus_load(job->local->gpus, job->local->store, i, layer, expert, &err);
    pthread_mutex_lock(&job->mutex);
    if (st == SY_OK)
        job->done++;
    else if (job->error.status == SY_OK)
        job->error = err;
    if (st == SY_OK && job->progress != NULL)
        job->progress(job->progress_arg, job->done, job->total);
    pthread_mutex_unlock(&job->mutex);
}

static sy_status load_all(sy_moe_local *local, void (*progress)(void *, uint32_t, uint32_t),
                          void *arg, sy_error *err)
{
    const sy_model_desc *desc = local->desc;
    load_job job = {.local = local, .progress = progress, .progress_arg = arg};

    for (uint32_t layer = 0; layer < desc->n_layers; layer++)
        if (sy_model_has_experts(desc, layer)) job.total += desc->n_experts;
    sy_error_clear(&job.error);
    pthread_mutex_init(&job.mutex, NULL);
    sy_pool_run(local->pool, (size_t)desc->n_layers * desc->n_experts, load_task, &job);
    pthread_mutex_destroy(&job.mutex);
    if (job.error.status != SY_OK && err != NULL) *err = job.error;
    return job.error.status;
}

sy_status sy_moe_local_open(sy_moe_local **out, const sy_model *model, const sy_kernels *kernels,
                            sy_precision precision, sy_pool *pool, const sy_moe_devices *devices,
                            void (*progress)(void *arg, uint32_t done, uint32_t total),
                            void *progress_arg, sy_error *err)
{
    sy_moe_local *local = calloc(1, sizeof(*local));
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (local == NULL) return sy_error_set(err, st, "no memory for the experts");
    local->desc = sy_model_describe(model);
    local->kernels = kernels;
    local->pool = pool;
    local->precision = precision;
    sy_plan_init(&local->plan);
    local->group = malloc(local->desc->n_experts * sizeof(*local->group));
    if (local->group == NULL) {
        sy_error_set(err, st, "no memory for the experts");
        goto out;
    }
    SY_TRY(sy_router_open(&local->router, model, kernels, err));
    SY_TRY(sy_shard_store_open(&local->store, model, precision, 0, err));
    if (devices != NULL && devices->n > 0)
        SY_TRY(moe_gpus_open(&local->gpus, devices, model, precision.weights, kernels, err));
    SY_TRY(load_all(local, progress, progress_arg, err));
    *out = local;
    local = NULL;
out:
    sy_moe_local_close(local);
    return st;
}

void sy_moe_local_close(sy_moe_local *local)
{
    if (local == NULL) return;
    sy_plan_free(&local->plan);
    sy_shard_scratch_free(&local->scratch);
    sy_shard_store_close(local->store);
    moe_gpus_close(local->gpus);
    sy_router_close(local->router);
    free_rows(local);
    free(local->group);
    free(local);
}

/* Routes each unbroken run of good rows; a failed row keeps empty slots, so no expert computes it.
 */
static sy_status route_rows(sy_moe_local *local, sy_moe_call *call, uint32_t k)
{
    const size_t hidden = local->desc->hidden;
    const sy_route_options options = {.experts_per_token = call->experts_per_token};

    for (uint32_t begin = 0, end; begin < call->n_rows; begin = end) {
        sy_status st;
        for (end = begin; end < call->n_rows && !call->failed[end]; end++) {
        }
        if (end > begin) {
            st = sy_route(local->router, call->layer, local->expert + (size_t)begin * k,
                          local->weight + (size_t)begin * k, call->x + begin * hidden, end - begin,
                          &options, local->route_scratch, NULL, &call->error);
            if (st != SY_OK) return st;
        }
        for (; end < call->n_rows && call->failed[end]; end++) {
            for (uint32_t i = 0; i < k; i++) {
                local->expert[(size_t)end * k + i] = SY_PLAN_EMPTY_SLOT;
                local->weight[(size_t)end * k + i] = 0.0f;
            }
        }
    }
    return SY_OK;
}

/* What experts get, and the weights of what they give. */
typedef struct expert_input {
    const float *x, *weight;
} expert_input;

static expert_input make_input(sy_moe_local *local, const sy_moe_call *call)
{
    const size_t hidden = local->desc->hidden;

    if (!local->desc->gate.scales_input) return (expert_input){call->x, local->weight};
    float *ones = local->scaled + call->n_rows * hidden;
    sy_moe_scale_rows(local->scaled, call->x, local->weight, call->n_rows, hidden);
    for (uint32_t t = 0; t < call->n_rows; t++) ones[t] = 1.0f;
    return (expert_input){local->scaled, ones};
}

static sy_status compute_rows(sy_moe_local *local, sy_moe_call *call, const float *x)
{
    const sy_plan *plan = &local->plan;
    const size_t hidden = local->desc->hidden;
    sy_status st;

    for (uint32_t i = 0; i < plan->n_groups; i++) {
        const uint32_t e = plan->active[i];
        local->group[i] = (sy_shard_group){sy_shard_get(local->store, call->layer, e),
                                           plan->group[e], plan->group[e + 1]};
    }
    if (local->gpus != NULL) {
        st = moe_gpus_compute(local->gpus, local->out, x, plan, local->group, &call->error);
    } else {
        st = sy_shard_compute(local->out, x, hidden, plan->row_token, local->group, plan->n_groups,
                              &local->scratch, local->pool, local->kernels);
        if (st != SY_OK)
            sy_error_set(&call->error, st, "no memory for %u rows", local->plan.n_rows);
    }
    for (uint32_t i = 0; i < plan->n_groups; i++) sy_shard_put(local->store, local->group[i].shard);
    for (uint32_t r = 0; r < plan->n_rows; r++) local->out_row[r] = local->out + r * hidden;
    return st;
}

static sy_status local_layer(void *ctx, sy_moe_call *call)
{
    sy_moe_local *local = ctx;
    const uint32_t k = call->experts_per_token == 0 ? local->desc->top_k : call->experts_per_token;
    int64_t at = sy_clock_us();
    sy_status st;

    if (k > local->desc->top_k)
        return sy_error_set(&call->error, SY_EINVAL, "experts_per_token: %u, but the model has %u",
                            k, local->desc->top_k);
    if (grow_rows(local, call->n_rows) != SY_OK)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for %u rows", call->n_rows);
    sy_moe_mark_bad_rows(call, local->desc->hidden, local->kernels);
    st = route_rows(local, call, k);
    if (st != SY_OK) return st;
    const expert_input input = make_input(local, call);
    sy_moe_lap(&call->times.route_us, &at);
    st = sy_plan_build(&local->plan, local->expert, input.weight, call->n_rows, k,
                       local->desc->n_experts, &call->error);
    if (st != SY_OK) return st;
    sy_moe_lap(&call->times.dispatch_us, &at);
    st = compute_rows(local, call, input.x);
    if (st != SY_OK) return st;
    sy_moe_lap(&call->times.compute_us, &at);
    sy_shard_combine(call->y, &local->plan, local->out_row, local->desc->hidden, call->failed, NULL,
                     local->pool, local->kernels);
    sy_moe_lap(&call->times.combine_us, &at);
    if (call->expert != NULL)
        memcpy(call->expert, local->expert, (size_t)call->n_rows * k * sizeof(*call->expert));
    if (call->weight != NULL)
        memcpy(call->weight, local->weight, (size_t)call->n_rows * k * sizeof(*call->weight));
    return SY_OK;
}

sy_moe sy_moe_local_ops(sy_moe_local *local)
{
    return (sy_moe){.ctx = local, .layer = local_layer};
}

const char *sy_moe_local_arithmetic(const sy_moe_local *local)
{
    return local->gpus != NULL ? moe_gpus_arithmetic(local->gpus)
                               : sy_arithmetic_name(local->precision.activations);
}
