/* sy_shard_compute.c - the arithmetic of experts over grouped rows. Work is cut into (group, column
 * chunk) tasks that any pool thread may take; a chunk is four panels, so that a lone row still
 * reads four weight streams at once. Rows pass in tiles small enough that gate and up of a tile
 * stay in the second-level cache with the chunk's weights. */
#include "sy_shard.h"

#include <stdlib.h>

enum { CHUNK_PANELS = 4, TILE_ROWS = 48 };

typedef struct job {
    const sy_shard_group *groups;
    size_t n_groups;
    const float *x;
    size_t x_stride;
    const uint32_t *x_row;
    float *h; /* [R,F]; row i of group rows, counted from `base` */
    float *y;
    size_t ffn, hidden;
    size_t chunks; /* a group */
    float *tile;   /* [threads][TILE_ROWS * CHUNK_PANELS * SY_PANEL] */
    const sy_kernels *kernels;
} job;

static size_t tile_floats(void)
{
    return (size_t)TILE_ROWS * CHUNK_PANELS * SY_PANEL;
}

void sy_shard_scratch_free(sy_shard_scratch *scratch)
{
    free(scratch->h);
    free(scratch->tile);
    *scratch = (sy_shard_scratch){0};
}

static sy_status grow(float **data, size_t *capacity, size_t floats)
{
    float *bigger;

    if (*capacity >= floats) return SY_OK;
    bigger = aligned_alloc(64, (floats * sizeof(float) + 63) & ~(size_t)63);
    if (bigger == NULL) return SY_ENOMEM;
    free(*data);
    *data = bigger;
    *capacity = floats;
    return SY_OK;
}

/* Columns [begin * SY_PANEL, + cols) as a matrix of their own. */
static sy_panels panels_view(const sy_panels *w, size_t begin, uint32_t cols)
{
    const size_t panel_bytes = (size_t)w->k * SY_PANEL * sy_dtype_bytes(w->dtype);
    return (sy_panels){(const uint8_t *)w->data + begin * panel_bytes, w->dtype, cols, w->k};
}

/* The chunk's columns of h = silu(x Gate) * (x Up), for every row of the group. Gate's output lands
 * in h, up's in a tile. */
static void gate_up_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const sy_shard_group *g = &j->groups[task / j->chunks];
    const size_t begin = task % j->chunks * CHUNK_PANELS;
    const size_t end = SY_MIN(begin + CHUNK_PANELS, sy_panels_count((uint32_t)j->ffn));
    const size_t col = begin * SY_PANEL;
    const size_t cols = SY_MIN(end * SY_PANEL, j->ffn) - col;
    float *up = j->tile + thread * tile_floats();
    const sy_panels view = panels_view(&g->shard->up, begin, (uint32_t)cols);

    for (uint32_t r = g->begin; r < g->end; r += TILE_ROWS) {
        const size_t rows = SY_MIN((size_t)(g->end - r), (size_t)TILE_ROWS);
        const uint32_t *index = j->x_row == NULL ? NULL : j->x_row + r;
        const float *x = j->x_row == NULL ? j->x + (size_t)r * j->x_stride : j->x;
        float *h = j->h + (size_t)r * j->ffn;

        j->kernels->matmul(h, j->ffn, x, j->x_stride, index, rows, &g->shard->gate, begin, end);
        /* matmul writes at absolute columns: a view of just these panels puts column `col` first in
         * the tile. */
        j->kernels->matmul(up, cols, x, j->x_stride, index, rows, &view, 0, end - begin);
        for (size_t i = 0; i < rows; i++)
            j->kernels->swiglu(h + i * j->ffn + col, h + i * j->ffn + col, up + i * cols, cols);
    }
}

static void down_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const sy_shard_group *g = &j->groups[task / j->chunks];
    const size_t begin = task % j->chunks * CHUNK_PANELS;
    const size_t end = SY_MIN(begin + CHUNK_PANELS, sy_panels_count((uint32_t)j->hidden));

    (void)thread;
    j->kernels->matmul(j->y + (size_t)g->begin * j->hidden, j->hidden,
                       j->h + (size_t)g->begin * j->ffn, j->ffn, NULL, g->end - g->begin,
                       &g->shard->down, begin, end);
}

/* All groups together are less work than waking the pool. */
static int is_small(const sy_shard_group *groups, size_t n_groups)
{
    const sy_panels *w = &groups[0].shard->gate;
    uint32_t rows = 0;

    for (size_t i = 0; i < n_groups; i++) rows = SY_MAX(rows, groups[i].end - groups[i].begin);
    return n_groups <= 4 && sy_kernels_is_small(rows * n_groups, w->n, w->k, w->dtype);
}

sy_status sy_shard_compute(float *y, const float *x, size_t x_stride, const uint32_t *x_row,
                           const sy_shard_group *groups, size_t n_groups, sy_shard_scratch *scratch,
                           sy_pool *pool, const sy_kernels *kernels)
{
    const unsigned threads = pool == NULL ? 1 : sy_pool_threads(pool);
    uint32_t rows = 0;
    job j;
    sy_status st = SY_OK;

    if (n_groups == 0) return SY_OK;
    j = (job){.groups = groups,
              .n_groups = n_groups,
              .x = x,
              .x_stride = x_stride,
              .x_row = x_row,
              .y = y,
              .ffn = groups[0].shard->gate.n,
              .hidden = groups[0].shard->down.n,
              .kernels = kernels};
    for (size_t i = 0; i < n_groups; i++) rows = SY_MAX(rows, groups[i].end);
    SY_TRY(grow(&scratch->h, &scratch->capacity_floats, (size_t)rows * j.ffn));
    SY_TRY(grow(&scratch->tile, &scratch->tile_floats, threads * tile_floats()));
    j.h = scratch->h;
    j.tile = scratch->tile;
    if (is_small(groups, n_groups)) pool = NULL;
    j.chunks = (sy_panels_count((uint32_t)j.ffn) + CHUNK_PANELS - 1) / CHUNK_PANELS;
    sy_pool_run(pool, n_groups * j.chunks, gate_up_task, &j);
    j.chunks = (sy_panels_count((uint32_t)j.hidden) + CHUNK_PANELS - 1) / CHUNK_PANELS;
    sy_pool_run(pool, n_groups * j.chunks, down_task, &j);
out:
    return st;
}

void sy_shard_combine(float *y, const sy_plan *plan, const float *const *row, size_t hidden,
                      const uint8_t *skip, const sy_kernels *kernels)
{
    for (uint32_t t = 0; t < plan->n_tokens; t++) {
        float *out = y + (size_t)t * hidden;
        if (skip != NULL && skip[t]) continue;
        for (size_t i = 0; i < hidden; i++) out[i] = 0.0f;
        for (uint32_t k = 0; k < plan->top_k; k++) {
            const uint32_t r = plan->token_row[(size_t)t * plan->top_k + k];
            if (r == UINT32_MAX) break; /* empty slots stand at the end */
            kernels->axpy(out, row[r], plan->row_weight[r], hidden);
        }
    }
}
