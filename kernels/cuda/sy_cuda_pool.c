/* sy_cuda_pool.c - a pool's memory from open to close. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sy_cuda_pool_internal.h"

enum {
    DIMENSION_MAX =
        1 << 20, /* a grid's y then has room for all row blocks, and no size overflows */
    ROWS_MAX = 1 << 24,
    PART_ALIGNMENT = 256,
    PAGE_BYTES = 2 << 20 /* of a device's memory, and the least that is opened by others */
};
#define SLAB_MAGIC 0x3162616c73797773u /* "swyslab1" */

_Static_assert((int)SY_CUDA_BF16 == (int)SY_BACKEND_BF16 && (int)SY_CUDA_Q8 == (int)SY_BACKEND_Q8 &&
                   (int)SY_CUDA_Q4 == (int)SY_BACKEND_Q4 &&
                   (int)SY_CUDA_FP8 == (int)SY_BACKEND_FP8 &&
                   (int)SY_CUDA_MXFP4 == (int)SY_BACKEND_MXFP4,
               "one numbering of weights");
_Static_assert((int)SY_CUDA_SWIGLU == (int)SY_BACKEND_SWIGLU &&
                   (int)SY_CUDA_CLAMPED == (int)SY_BACKEND_CLAMPED,
               "one numbering of what lies between the matrices");
_Static_assert(sizeof(sy_cuda_slab_head) <= PART_ALIGNMENT, "the head lies before slot 0");

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

int sy_cuda_pool_enter(sy_backend_pool *pool, char *why)
{
    return sy_cuda_enter(pool->handle, why);
}

int sy_cuda_pool_leave(sy_backend_pool *pool, int result, const char *why)
{
    return sy_cuda_leave(pool->handle, result, why);
}

static double megabytes(uint64_t bytes)
{
    return (double)bytes / 1e6;
}

/* ---- what it will be ---- */

static int check_config(const sy_backend_pool_config *c, char *why)
{
    if (c->hidden < 1 || c->hidden > DIMENSION_MAX || c->ffn < 1 || c->ffn > DIMENSION_MAX)
        return REFUSE(why, SY_BACKEND_EINVAL, "experts of %u by %u: from 1 to %d are computed",
                      c->hidden, c->ffn, DIMENSION_MAX);
    if (c->weights > SY_BACKEND_MXFP4)
        return REFUSE(why, SY_BACKEND_EINVAL, "weights of kind %u are none", c->weights);
    if (c->mlp > SY_BACKEND_CLAMPED || (c->mlp == SY_BACKEND_CLAMPED && !(c->mlp_limit > 0)))
        return REFUSE(why, SY_BACKEND_EINVAL, "an mlp of kind %u with the limit %g is none", c->mlp,
                      (double)c->mlp_limit);
    if (c->rows_max < 1 || c->rows_max > ROWS_MAX)
        return REFUSE(why, SY_BACKEND_EINVAL, "batches of %u rows: from 1 to %d are computed",
                      c->rows_max, ROWS_MAX);
    if (c->lanes < 1 || c->lanes > SY_BACKEND_LANES_MAX)
        return REFUSE(why, SY_BACKEND_EINVAL, "%u lanes: there are 1 to %u", c->lanes,
                      SY_BACKEND_LANES_MAX);
    if (c->slots_max < 1) return REFUSE(why, SY_BACKEND_EINVAL, "a pool without slots");
    return SY_BACKEND_OK;
}

static int lay_out(sy_cuda_layout *out, const sy_backend_pool_config *c, char *why)
{
    const sy_cuda_weights weights = (sy_cuda_weights)c->weights;
    const uint64_t gate_up = sy_cuda_matrix_bytes(weights, SY_CUDA_GATE, c->ffn, c->hidden);
    const uint64_t down = sy_cuda_matrix_bytes(weights, SY_CUDA_DOWN, c->hidden, c->ffn);
    uint64_t alignment = PART_ALIGNMENT, at = gate_up + down;

    if (gate_up == 0 || down == 0)
        return REFUSE(why, SY_BACKEND_EINVAL, "experts of %u by %u have no packed form", c->hidden,
                      c->ffn);
    out->offset[SY_BACKEND_GATE] = out->offset[SY_BACKEND_UP] = 0;
    out->offset[SY_BACKEND_DOWN] = gate_up;
    for (uint32_t part = SY_BACKEND_GATE_BIAS; part <= SY_BACKEND_DOWN_BIAS; part++) {
        const uint64_t n = part == SY_BACKEND_DOWN_BIAS ? c->hidden : c->ffn;

        out->offset[part] = at;
        if (c->has_bias) at += round_up(n * sizeof(float), PART_ALIGNMENT);
    }
    out->bytes = at;
    /* Pages of its own for every slot, where that wastes less than a twentieth. */
    if (round_up(at, PAGE_BYTES) - at < at / 20) alignment = PAGE_BYTES;
    out->stride = round_up(at, alignment);
    out->first = alignment;
    return SY_BACKEND_OK;
}

/* How many slots there will be, now that everything else has its memory: what was asked for, and
 * what is there for them, the head, the table, and the rest of a page. */
static int count_slots(uint32_t *out, const sy_backend_pool *pool, char *why)
{
    const uint64_t stride = pool->layout.stride, head = pool->layout.first + PAGE_BYTES;
    const uint64_t wanted = pool->config.memory_bytes;
    size_t n_free = 0, n_total = 0;
    uint64_t room, n = 0;
    int result;

    TRY(cudaMemGetInfo(&n_free, &n_total), "cudaMemGetInfo");
    room = wanted != 0 ? n_free : n_free / 10 * 9;
    if (room > head) n = (room - head) / (stride + sizeof(sy_cuda_expert));
    if (wanted != 0 && wanted / stride < n) n = wanted / stride;
    if (n == 0)
        return REFUSE(why, SY_BACKEND_ENOMEM,
                      "not one expert has room: it takes %.1f MB, and of the device's %.1f MB %.1f "
                      "are free and %.1f may be taken",
                      megabytes(stride), megabytes(n_total), megabytes(n_free),
                      megabytes(wanted != 0 ? wanted : room));
    *out = n < pool->config.slots_max ? (uint32_t)n : pool->config.slots_max;
out:
    return result;
}

/* ---- slots ---- */

void sy_cuda_slab_describe(sy_cuda_slab_head *out, const sy_backend_pool *pool)
{
    *out = (sy_cuda_slab_head){.magic = SLAB_MAGIC,
                               .hidden = pool->config.hidden,
                               .ffn = pool->config.ffn,
                               .weights = pool->config.weights,
                               .has_bias = pool->config.has_bias != 0,
                               .n_slots = pool->info.n_slots,
                               .first = pool->layout.first,
                               .stride = pool->layout.stride};
}

/* Of a matrix of FP8, in the slot that begins there. */
static const float *scales_in(const sy_backend_pool *pool, const unsigned char *at,
                              sy_cuda_part part)
{
    const sy_backend_pool_config *c = &pool->config;
    const uint32_t n = part == SY_CUDA_DOWN ? c->hidden : c->ffn;
    const uint32_t k = part == SY_CUDA_DOWN ? c->ffn : c->hidden;

    at += pool->layout.offset[part] + sy_cuda_scale_offset(SY_CUDA_FP8, part, n, k);
    return (const float *)(const void *)at;
}

static sy_cuda_expert expert_in(const sy_backend_pool *pool, uint32_t slot)
{
    const unsigned char *at = sy_cuda_slot_at(pool, slot);
    const uint64_t *offset = pool->layout.offset;
    sy_cuda_expert e = {.gate_up = at + offset[SY_BACKEND_GATE],
                        .down = at + offset[SY_BACKEND_DOWN]};

    if (pool->config.weights == SY_BACKEND_FP8) {
        e.gate_scale = scales_in(pool, at, SY_CUDA_GATE);
        e.up_scale = scales_in(pool, at, SY_CUDA_UP);
        e.down_scale = scales_in(pool, at, SY_CUDA_DOWN);
    }
    if (pool->config.has_bias) {
        e.gate_bias = (const float *)(const void *)(at + offset[SY_BACKEND_GATE_BIAS]);
        e.up_bias = (const float *)(const void *)(at + offset[SY_BACKEND_UP_BIAS]);
        e.down_bias = (const float *)(const void *)(at + offset[SY_BACKEND_DOWN_BIAS]);
    }
    return e;
}

/* Zeroed: a slot of which nothing was written yet computes, and hashes, the same everywhere. */
static int fill_slab(sy_backend_pool *pool, uint64_t slab_bytes, char *why)
{
    const cudaStream_t stream = pool->way[0].stream;
    const uint32_t n = pool->info.n_slots;
    sy_cuda_expert *experts = calloc(n, sizeof(*experts));
    sy_cuda_slab_head head;
    int result;

    if (experts == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for %u slots", n);
    for (uint32_t i = 0; i < n; i++) experts[i] = expert_in(pool, i);
    sy_cuda_slab_describe(&head, pool);
    TRY(cudaMemsetAsync(pool->slab, 0, slab_bytes, stream), "cudaMemsetAsync");
    TRY(cudaMemcpyAsync(pool->slab, &head, sizeof(head), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
    TRY(cudaMemcpyAsync(pool->experts, experts, n * sizeof(*experts), cudaMemcpyHostToDevice,
                        stream),
        "cudaMemcpyAsync");
    result = sy_cuda_settle_stream(stream, why);
out:
    free(experts);
    return result;
}

static int open_slots(sy_backend_pool *pool, char *why)
{
    uint64_t slab_bytes;
    unsigned char *experts = NULL;
    int result = count_slots(&pool->info.n_slots, pool, why);

    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_factors_open(pool, why);
    if (result != SY_BACKEND_OK) return result;
    /* What is smaller than a page shares it with others, and would be opened together with them. */
    slab_bytes =
        round_up(pool->layout.first + pool->info.n_slots * pool->layout.stride, PAGE_BYTES);
    result = sy_cuda_device_alloc(&pool->slab, slab_bytes, "slots", why);
    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_device_alloc(&experts, pool->info.n_slots * sizeof(sy_cuda_expert),
                                  "the table of experts", why);
    if (result != SY_BACKEND_OK) return result;
    pool->experts = (sy_cuda_expert *)(void *)experts;
    return fill_slab(pool, slab_bytes, why);
}

/* ---- open and close ---- */

static int describe(sy_backend_pool *pool, char *why)
{
    const int device = pool->handle->device;
    int major = 0, minor = 0;
    int result;

    TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
    TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
    snprintf(pool->info.arithmetic, sizeof(pool->info.arithmetic), SY_BACKEND_ARITHMETIC_CUDA,
             (unsigned)major, (unsigned)minor);
    pool->info.slot_bytes = pool->layout.stride;
    pool->info.n_lanes = pool->config.lanes;
    pool->info.x_stride = (uint32_t)round_up(pool->config.hidden, 64);
out:
    return result;
}

static int open_all(sy_backend_pool *pool, char *why)
{
    int lowest = 0, highest = 0; /* a higher priority is a lower number */
    int result;

    TRY(cudaSetDevice(pool->handle->device), "cudaSetDevice");
    TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    if ((result = describe(pool, why)) != SY_BACKEND_OK) goto out;
    for (uint32_t i = 0; i < pool->info.n_lanes; i++)
        if ((result = sy_cuda_lane_open(pool, i, highest, why)) != SY_BACKEND_OK) goto out;
    if ((result = sy_cuda_ways_open(pool, lowest, why)) != SY_BACKEND_OK) goto out;
    result = open_slots(pool, why);
out:
    return result;
}

int sy_cuda_pool_open(sy_backend_pool **out, sy_backend_handle *handle,
                      const sy_backend_pool_config *config, char *why)
{
    sy_backend_pool *self;
    int result = check_config(config, why);

    *out = NULL;
    if (result != SY_BACKEND_OK) return result;
    self = calloc(1, sizeof(*self));
    if (self == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for a pool");
    self->handle = handle;
    self->config = *config;
    for (uint32_t i = 0; i < SY_CUDA_WAYS; i++) pthread_mutex_init(&self->way[i].mutex, NULL);
    if ((result = lay_out(&self->layout, config, why)) != SY_BACKEND_OK) goto out;
    if ((result = open_all(self, why)) != SY_BACKEND_OK) goto out;
    *out = self;
    self = NULL;
out:
    sy_cuda_pool_close(self);
    return result;
}

static int is_idle(sy_backend_pool *pool)
{
    for (uint32_t i = 0; i < SY_BACKEND_LANES_MAX + SY_CUDA_WAYS; i++) {
        const cudaStream_t stream = i < SY_BACKEND_LANES_MAX
                                        ? pool->lane[i].stream
                                        : pool->way[i - SY_BACKEND_LANES_MAX].stream;

        if (stream != NULL && !sy_cuda_drain(pool->handle, stream)) return 0;
    }
    return 1;
}

/* Freeing memory waits for the device, and a device that hangs would write into what another has
 * got since: so memory that it may still use stays, and stays known. */
static void abandon(sy_backend_pool *pool)
{
    static _Atomic(sy_backend_pool *) abandoned;

    pool->next_abandoned = atomic_load(&abandoned);
    while (!atomic_compare_exchange_weak(&abandoned, &pool->next_abandoned, pool)) {
    }
}

void sy_cuda_pool_close(sy_backend_pool *pool)
{
    if (pool == NULL) return;
    sy_cuda_forget(cudaSetDevice(pool->handle->device));
    if (!is_idle(pool)) {
        abandon(pool);
        return;
    }
    for (uint32_t i = 0; i < SY_BACKEND_LANES_MAX; i++) sy_cuda_lane_close(&pool->lane[i]);
    sy_cuda_ways_close(pool);
    sy_cuda_device_free(pool->experts);
    sy_cuda_device_free(pool->slab);
    sy_cuda_factors_close(pool->factors);
    for (uint32_t i = 0; i < SY_CUDA_WAYS; i++) pthread_mutex_destroy(&pool->way[i].mutex);
    free(pool);
}

void sy_cuda_pool_describe(sy_backend_pool_info *out, const sy_backend_pool *pool)
{
    *out = pool->info;
}
