/* sy_cuda_batch.c - lanes: a batch's way from pinned memory through the two kernels and back. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "sy_cuda_pool_internal.h"

enum {
    ALIGNMENT = 256,
    COUNT_BYTES = 16, /* n_tiles, and what keeps the tiles aligned */
    CLEAR_US = 100000
};

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- memory ---- */

/* The head of a batch: one number, tiles, and the rows' places in x. It ends where x begins, so it
 * begins the earlier the more it holds. */
typedef struct head {
    uint64_t bytes;
    uint64_t tiles, x_row; /* offsets from where it begins, COUNT_BYTES and so on */
} head;

static head head_of(uint32_t n_tiles, uint32_t n_rows)
{
    head h = {.tiles = COUNT_BYTES};

    h.x_row = h.tiles + (uint64_t)n_tiles * sizeof(sy_cuda_tile);
    h.bytes = round_up(h.x_row + (uint64_t)n_rows * sizeof(uint32_t), COUNT_BYTES);
    return h;
}

static uint64_t x_row_bytes(const sy_backend_pool *pool)
{
    return (uint64_t)pool->info.x_stride * sizeof(uint16_t);
}

int sy_cuda_lane_open(sy_backend_pool *pool, uint32_t lane, int priority, char *why)
{
    sy_cuda_lane *self = &pool->lane[lane];
    const uint64_t rows = pool->config.rows_max;
    const uint64_t at_x = round_up(head_of((uint32_t)rows, (uint32_t)rows).bytes, ALIGNMENT);
    const uint64_t after_x = at_x + round_up(rows * x_row_bytes(pool), ALIGNMENT);
    const uint64_t h_bytes = round_up(rows * round_up(pool->config.ffn, 64) * 2, ALIGNMENT);
    const uint64_t y_bytes = round_up(rows * pool->config.hidden * sizeof(float), ALIGNMENT);
    const uint64_t host_bytes = after_x + y_bytes + rows * sizeof(uint32_t);
    const uint64_t device_bytes = after_x + h_bytes + y_bytes;
    int result;

    TRY(cudaStreamCreateWithPriority(&self->stream, cudaStreamNonBlocking, priority),
        "cudaStreamCreateWithPriority");
    TRY(cudaEventCreate(&self->begin), "cudaEventCreate");
    TRY(cudaEventCreate(&self->end), "cudaEventCreate");
    result = sy_cuda_pinned_alloc(&self->host, host_bytes, "a lane", why);
    if (result != SY_BACKEND_OK) goto out;
    memset(self->host, 0, host_bytes);
    self->memory.x = (uint16_t *)(void *)(self->host + at_x);
    self->memory.y = (float *)(void *)(self->host + after_x);
    self->memory.x_row = (uint32_t *)(void *)(self->host + after_x + y_bytes);
    result = sy_cuda_device_alloc(&self->device, device_bytes, "a lane", why);
    if (result != SY_BACKEND_OK) goto out;
    self->x = (uint16_t *)(void *)(self->device + at_x);
    self->h = (uint16_t *)(void *)(self->device + after_x);
    self->y = (float *)(void *)(self->device + after_x + h_bytes);
    TRY(cudaMemsetAsync(self->device, 0, device_bytes, self->stream), "cudaMemsetAsync");
out:
    return result;
}

void sy_cuda_lane_close(sy_cuda_lane *lane)
{
    sy_cuda_graphs_close(lane);
    if (lane->end != NULL) sy_cuda_forget(cudaEventDestroy(lane->end));
    if (lane->begin != NULL) sy_cuda_forget(cudaEventDestroy(lane->begin));
    if (lane->stream != NULL) sy_cuda_forget(cudaStreamDestroy(lane->stream));
    sy_cuda_device_free(lane->device);
    sy_cuda_pinned_free(lane->host);
}

void sy_cuda_lane_memory(sy_backend_lane *out, const sy_backend_pool *pool, uint32_t lane)
{
    *out = pool->lane[lane].memory;
}

/* ---- what is computed ---- */

static int check_groups(const sy_backend_pool *pool, uint32_t n_rows, const sy_backend_group *group,
                        uint32_t n_groups, char *why)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < n_groups; i++) {
        if (group[i].slot >= pool->info.n_slots)
            return REFUSE(why, SY_BACKEND_EINVAL, "group %u is of slot %u, and there are %u", i,
                          group[i].slot, pool->info.n_slots);
        if (group[i].begin != at || group[i].end < at)
            return REFUSE(why, SY_BACKEND_EINVAL,
                          "group %u has rows %u to %u, and the last one ended at %u", i,
                          group[i].begin, group[i].end, at);
        at = group[i].end;
    }
    if (at != n_rows)
        return REFUSE(why, SY_BACKEND_EINVAL, "groups end at row %u of %u", at, n_rows);
    return SY_BACKEND_OK;
}

static int check_batch(const sy_backend_pool *pool, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                       char *why)
{
    const uint32_t rows_max = pool->config.rows_max;

    if (lane >= pool->info.n_lanes)
        return REFUSE(why, SY_BACKEND_EINVAL, "lane %u of %u", lane, pool->info.n_lanes);
    if (n_x > rows_max || n_rows > rows_max)
        return REFUSE(why, SY_BACKEND_EINVAL, "%u rows of %u tokens, and at most %u are computed",
                      n_rows, n_x, rows_max);
    if (pool->lane[lane].is_busy)
        return REFUSE(why, SY_BACKEND_EINVAL, "lane %u has a batch that nobody has waited for",
                      lane);
    return SY_BACKEND_OK;
}

/* The largest group decides. */
static sy_cuda_variant choose_variant(const sy_backend_group *group, uint32_t n_groups,
                                      uint32_t weights)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < n_groups; i++)
        if (group[i].end - group[i].begin > most) most = group[i].end - group[i].begin;
    return sy_cuda_variant_for(most, (sy_cuda_weights)weights);
}

static uint32_t count_tiles(const sy_backend_group *group, uint32_t n_groups,
                            sy_cuda_variant variant)
{
    const uint32_t tokens = sy_cuda_variant_tokens(variant);
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_groups; i++)
        n += (group[i].end - group[i].begin + tokens - 1) / tokens;
    return n;
}

/* Writes the head. Places in x are copied before they are looked at: what is checked is what the
 * device gets. */
static int write_head(const sy_cuda_lane *lane, const sy_cuda_shape *room, uint32_t n_x,
                      uint32_t n_rows, const sy_backend_group *group, uint32_t n_groups, char *why)
{
    const head h = head_of(room->n_tiles, room->n_rows);
    unsigned char *at = (unsigned char *)lane->memory.x - h.bytes;
    sy_cuda_tile *tiles = (sy_cuda_tile *)(void *)(at + h.tiles);
    uint32_t *x_row = (uint32_t *)(void *)(at + h.x_row);
    uint32_t n_tiles = 0;

    memcpy(x_row, lane->memory.x_row, n_rows * sizeof(*x_row));
    for (uint32_t r = 0; r < n_rows; r++)
        if (x_row[r] >= n_x)
            return REFUSE(why, SY_BACKEND_EINVAL, "row %u is of token %u, and there are %u", r,
                          x_row[r], n_x);
    for (uint32_t i = 0; i < n_groups; i++) {
        const uint32_t begin[] = {group[i].begin, group[i].end};
        const uint32_t n = (uint32_t)sy_cuda_tiles_cut(tiles + n_tiles, begin, 1, room->variant);

        for (uint32_t j = 0; j < n; j++) tiles[n_tiles + j].expert = group[i].slot;
        n_tiles += n;
    }
    memcpy(at, &n_tiles, sizeof(n_tiles));
    return SY_BACKEND_OK;
}

/* ---- how ---- */

int sy_cuda_enqueue(const sy_backend_pool *pool, const sy_cuda_lane *lane,
                    const sy_cuda_shape *shape, cudaStream_t stream, char *why)
{
    const head h = head_of(shape->n_tiles, shape->n_rows);
    const uint64_t in_bytes = h.bytes + shape->n_x * x_row_bytes(pool);
    const uint64_t out_bytes = (uint64_t)shape->n_rows * pool->config.hidden * sizeof(float);
    unsigned char *at = (unsigned char *)lane->x - h.bytes;
    const uint32_t *x_row = (const uint32_t *)(const void *)(at + h.x_row);
    const sy_cuda_batch batch = {.experts = pool->experts,
                                 .tiles = (const sy_cuda_tile *)(const void *)(at + h.tiles),
                                 .n_tiles = (const uint32_t *)(const void *)at,
                                 .tiles_max = shape->n_tiles,
                                 .hidden = pool->config.hidden,
                                 .ffn = pool->config.ffn,
                                 .mlp = (sy_cuda_mlp)pool->config.mlp,
                                 .mlp_limit = pool->config.mlp_limit,
                                 .weights = (sy_cuda_weights)pool->config.weights};
    int result;

    TRY(cudaMemcpyAsync(at, (unsigned char *)lane->memory.x - h.bytes, in_bytes,
                        cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
    TRY((cudaError_t)sy_cuda_up(lane->h, lane->x, x_row, &batch, shape->variant, stream),
        "sy_cuda_up");
    TRY((cudaError_t)sy_cuda_down(lane->y, lane->h, &batch, shape->variant, stream),
        "sy_cuda_down");
    TRY(cudaMemcpyAsync(lane->memory.y, lane->y, out_bytes, cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
out:
    return result;
}

/* What was enqueued of a batch that failed half way still reads the lane's memory. */
static int clear_lane(sy_cuda_lane *lane, uint64_t timeout_us, char *why)
{
    int done = 0;
    int result;

    if (!lane->is_broken) return SY_BACKEND_OK;
    result = sy_cuda_await_stream(&done, lane->stream, timeout_us, why);
    if (result != SY_BACKEND_OK) return result;
    if (!done)
        return REFUSE(why, SY_BACKEND_EFAILED, "the lane still has a part of a batch that failed");
    lane->is_broken = 0;
    return SY_BACKEND_OK;
}

static int start(const sy_backend_pool *pool, sy_cuda_lane *lane, const sy_cuda_shape *shape,
                 int has_graph, char *why)
{
    char other[SY_BACKEND_WHY_BYTES];
    int result;

    lane->is_broken = 1;
    TRY(cudaEventRecord(lane->begin, lane->stream), "cudaEventRecord");
    if (!has_graph || !sy_cuda_replay(pool, lane, shape)) {
        result = sy_cuda_enqueue(pool, lane, shape, lane->stream, why);
        if (result != SY_BACKEND_OK) goto out;
    }
    TRY(cudaEventRecord(lane->end, lane->stream), "cudaEventRecord");
    lane->is_broken = 0;
    lane->is_busy = 1;
out:
    /* Here alone a submit waits: what failed is to be over when the caller hears of it. */
    if (result != SY_BACKEND_OK) (void)clear_lane(lane, CLEAR_US, other);
    return result;
}

int sy_cuda_submit(sy_backend_pool *pool, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                   const sy_backend_group *group, uint32_t n_groups, char *why)
{
    sy_cuda_shape shape = {.n_x = n_x, .n_rows = n_rows};
    sy_cuda_lane *self;
    int has_graph;
    int result = check_batch(pool, lane, n_x, n_rows, why);

    if (result != SY_BACKEND_OK) return result;
    self = &pool->lane[lane];
    if ((result = check_groups(pool, n_rows, group, n_groups, why)) != SY_BACKEND_OK) return result;
    result = sy_cuda_pool_enter(pool, why);
    if (result != SY_BACKEND_OK || n_rows == 0) goto out;
    if ((result = clear_lane(self, 0, why)) != SY_BACKEND_OK) goto out;
    shape.variant = choose_variant(group, n_groups, pool->config.weights);
    shape.n_tiles = count_tiles(group, n_groups, shape.variant);
    has_graph = sy_cuda_has_graph(pool, self, &shape);
    result = write_head(self, &shape, n_x, n_rows, group, n_groups, why);
    if (result != SY_BACKEND_OK) return result;
    result = start(pool, self, &shape, has_graph, why);
out:
    return sy_cuda_pool_leave(pool, result, why);
}

static int finish(int *done, float *device_us, sy_cuda_lane *lane, uint32_t timeout_us, char *why)
{
    float ms = 0;
    int is_done;
    int result = sy_cuda_await_event(&is_done, lane->end, timeout_us, why);

    if (result != SY_BACKEND_OK || !is_done) return result;
    TRY(cudaEventElapsedTime(&ms, lane->begin, lane->end), "cudaEventElapsedTime");
    lane->is_busy = 0;
    *device_us = ms * 1e3f;
    *done = 1;
out:
    return result;
}

int sy_cuda_wait(int *done, float *device_us, sy_backend_pool *pool, uint32_t lane,
                 uint32_t timeout_us, char *why)
{
    int result;

    *done = 0;
    *device_us = 0;
    if (lane >= pool->info.n_lanes)
        return REFUSE(why, SY_BACKEND_EINVAL, "lane %u of %u", lane, pool->info.n_lanes);
    result = sy_cuda_pool_enter(pool, why);
    if (result == SY_BACKEND_OK) {
        if (pool->lane[lane].is_busy)
            result = finish(done, device_us, &pool->lane[lane], timeout_us, why);
        else
            *done = 1;
    }
    return sy_cuda_pool_leave(pool, result, why);
}
