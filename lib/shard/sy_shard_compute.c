/* sy_shard_compute.c - the arithmetic of experts over grouped rows. Work is cut into (group, column
 * chunk) tasks that any pool thread may take; a chunk is four panels at least, so that a lone row
 * still reads four weight streams at once, and sixteen where that leaves enough tasks: the product
 * copies its rows of x once a chunk. Rows pass in tiles small enough that gate and up of a tile
 * stay in the second-level cache with the chunk's weights.
 *
 * With activations of int8 or bf16 the rows of x in use are rounded first, each once, however many
 * experts it goes to. A chunk is whole blocks, so its part of h is rounded where it is made: h is
 * never in memory as fp32. */
#include "sy_shard.h"

#include <string.h>

#include "sy_pages.h"
#include "sy_shard_internal.h"

enum {
    CHUNK_PANELS_MIN = 4,
    CHUNK_PANELS_MAX = 32,
    CHUNK_COLS_MAX = CHUNK_PANELS_MAX * SY_PANEL,
    TILE_ROWS = 48,
    ROUND_ROWS = 8,
    TASKS_A_THREAD = 4 /* as few would still end at about the same time */
};

_Static_assert(CHUNK_PANELS_MIN *SY_PANEL % SY_QUANT_BLOCK == 0, "a chunk is whole blocks");

typedef struct job {
    const sy_shard_group *groups;
    size_t n_groups;
    const float *x;
    size_t x_stride;
    const uint32_t *x_row;
    uint32_t rows; /* R: all groups end by then */
    float *h;      /* [R,F] */
    float *y;
    uint32_t ffn, hidden;
    size_t chunk_panels, chunks; /* of a task; a group */
    float *tile;                 /* [threads][THREAD_FLOATS] */
    const sy_kernels *kernels;
    /* With rounded activations. */
    sy_activations activations;
    const uint32_t *used; /* [n_used] rows of x */
    uint32_t *used_by;    /* [R]: which of those */
    size_t n_used;
    sy_qrows x_rounded, h_rounded; /* int8: [n_used,H], [R,F] */
    uint16_t *x_pairs, *h_pairs;   /* bf16: the same */
} job;

/* A thread's: gate's and up's output of a tile, and the tile as int8 with scales and sums. */
enum {
    TILE_FLOATS = TILE_ROWS * CHUNK_COLS_MAX,
    ROUNDED_FLOATS = TILE_FLOATS / 4 + 2 * TILE_FLOATS / SY_QUANT_BLOCK,
    THREAD_FLOATS = 2 * TILE_FLOATS + ROUNDED_FLOATS
};
_Static_assert(ROUNDED_FLOATS % 16 == 0, "every thread's begins at a line");

void sy_shard_scratch_free(sy_shard_scratch *scratch)
{
    sy_pages_free(scratch->h, scratch->capacity_floats * sizeof(*scratch->h));
    sy_pages_free(scratch->tile, scratch->tile_floats * sizeof(*scratch->tile));
    sy_pages_free(scratch->rounded, scratch->rounded_bytes);
    sy_pages_free(scratch->index, scratch->n_index * sizeof(*scratch->index));
    *scratch = (sy_shard_scratch){0};
}

/* old, or larger memory in its place, whose content is undefined. NULL: no memory, and old is as it
 * was. */
static void *grown(void *old, size_t *capacity, size_t n, size_t item_bytes)
{
    void *data;

    if (old != NULL && *capacity >= n) return old;
    if (n > SIZE_MAX / item_bytes - 64) return NULL;
    data = sy_pages_alloc(n * item_bytes); /* a page fault costs as much as a row */
    if (data == NULL) return NULL;
    sy_pages_free(old, *capacity * item_bytes);
    *capacity = n;
    return data;
}

/* Columns [begin * SY_PANEL, + cols) as a matrix of their own. */
static sy_panels panels_view(const sy_panels *w, size_t begin, uint32_t cols)
{
    return (sy_panels){(const uint8_t *)w->data + begin * sy_panel_bytes(w->dtype, w->k), w->dtype,
                       cols, w->k};
}

/* What a task has to do. */
typedef struct chunk {
    const sy_shard_group *group;
    size_t begin, end; /* panels */
    size_t col;
    uint32_t cols;
} chunk;

static chunk chunk_of(const job *j, size_t task, uint32_t n)
{
    const size_t begin = task % j->chunks * j->chunk_panels;
    const size_t end = SY_MIN(begin + j->chunk_panels, sy_panels_count(n));
    const size_t col = begin * SY_PANEL;

    return (chunk){&j->groups[task / j->chunks], begin, end, col,
                   (uint32_t)(SY_MIN(end * SY_PANEL, (size_t)n) - col)};
}

/* ---- fp32 activations ---- */

/* The chunk's columns of what goes into Down, silu(x Gate) * (x Up) or the like, for every row of
 * the group. Gate's output lands in h, up's in a tile. */
static void gate_up_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const chunk c = chunk_of(j, task, j->ffn);
    const sy_shard_group *g = c.group;
    float *up = j->tile + (size_t)thread * THREAD_FLOATS;
    const sy_panels view = panels_view(&g->shard->up, c.begin, c.cols);

    for (uint32_t r = g->begin; r < g->end; r += TILE_ROWS) {
        const size_t rows = SY_MIN((size_t)(g->end - r), (size_t)TILE_ROWS);
        const uint32_t *index = j->x_row == NULL ? NULL : j->x_row + r;
        const float *x = j->x_row == NULL ? j->x + (size_t)r * j->x_stride : j->x;
        float *h = j->h + (size_t)r * j->ffn;

        j->kernels->matmul(h, j->ffn, x, j->x_stride, index, rows, &g->shard->gate, c.begin, c.end);
        /* matmul writes at absolute columns: a view of just these panels puts column `col` first in
         * the tile. */
        j->kernels->matmul(up, c.cols, x, j->x_stride, index, rows, &view, 0, c.end - c.begin);
        sy_shard_add_bias(h + c.col, j->ffn, g->shard->gate_bias, c.col, rows, c.cols, j->kernels);
        sy_shard_add_bias(up, c.cols, g->shard->up_bias, c.col, rows, c.cols, j->kernels);
        for (size_t i = 0; i < rows; i++)
            sy_shard_activate(g->shard, h + i * j->ffn + c.col, up + i * c.cols, c.cols,
                              j->kernels);
    }
}

static void down_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const chunk c = chunk_of(j, task, j->hidden);
    const sy_shard_group *g = c.group;
    const size_t rows = g->end - g->begin;
    float *y = j->y + (size_t)g->begin * j->hidden;

    (void)thread;
    j->kernels->matmul(y, j->hidden, j->h + (size_t)g->begin * j->ffn, j->ffn, NULL, rows,
                       &g->shard->down, c.begin, c.end);
    sy_shard_add_bias(y + c.col, j->hidden, g->shard->down_bias, c.col, rows, c.cols, j->kernels);
}

/* ---- rounded activations ---- */

static void round_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const size_t end = SY_MIN((task + 1) * ROUND_ROWS, j->n_used);

    (void)thread;
    for (size_t i = task * ROUND_ROWS; i < end; i++) {
        const float *x = j->x + (size_t)j->used[i] * j->x_stride;
        if (j->activations == SY_ACT_Q8)
            j->kernels->quantize(&j->x_rounded, i, x, j->x_stride, 1, j->hidden);
        else
            j->kernels->round_bf16(j->x_pairs + i * j->hidden, x, j->hidden);
    }
}

/* From row `row` on. */
static sy_qrows rounded_from(const sy_qrows *q, size_t row)
{
    return (sy_qrows){q->q + row * q->stride, q->scale + row * q->blocks, q->sum + row * q->blocks,
                      q->stride, q->blocks};
}

/* Puts n rows of some blocks where they belong in `to`: from row `row` and block `block` on. */
static void place_blocks(const sy_qrows *to, size_t row, size_t block, const sy_qrows *from,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t at = (row + i) * to->blocks + block;

        memcpy(to->q + (row + i) * to->stride + block * SY_QUANT_BLOCK, from->q + i * from->stride,
               from->stride);
        memcpy(to->scale + at, from->scale + i * from->blocks, from->blocks * sizeof(*to->scale));
        memcpy(to->sum + at, from->sum + i * from->blocks, from->blocks * sizeof(*to->sum));
    }
}

/* y: [rows, w->n] of rows r on, which are those of x that used_by says. */
static void multiply_x(const job *j, float *y, uint32_t r, size_t rows, const sy_panels *w)
{
    const uint32_t *row = j->used_by + r;
    const size_t end = sy_panels_count(w->n);

    if (j->activations == SY_ACT_Q8)
        j->kernels->matmul_q8(y, w->n, &j->x_rounded, row, rows, w, 0, end);
    else
        j->kernels->matmul_bf16(y, w->n, j->x_pairs, j->hidden, row, rows, w, 0, end);
}

/* The chunk's columns of h for rows r on, rounded. scratch: ROUNDED_FLOATS. */
static void keep_h(const job *j, const chunk *c, uint32_t r, size_t rows, const float *h,
                   float *scratch)
{
    sy_qrows q;

    if (j->activations == SY_ACT_Q8) {
        sy_qrows_at(&q, scratch, rows, c->cols);
        j->kernels->quantize(&q, 0, h, c->cols, rows, c->cols);
        place_blocks(&j->h_rounded, r, c->col / SY_QUANT_BLOCK, &q, rows);
        return;
    }
    for (size_t i = 0; i < rows; i++)
        j->kernels->round_bf16(j->h_pairs + (r + i) * j->ffn + c->col, h + i * c->cols, c->cols);
}

static void rounded_gate_up_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const chunk c = chunk_of(j, task, j->ffn);
    const sy_shard_group *g = c.group;
    float *gate_out = j->tile + (size_t)thread * THREAD_FLOATS, *up_out = gate_out + TILE_FLOATS;
    const sy_panels gate = panels_view(&g->shard->gate, c.begin, c.cols);
    const sy_panels up = panels_view(&g->shard->up, c.begin, c.cols);

    for (uint32_t r = g->begin; r < g->end; r += TILE_ROWS) {
        const size_t rows = SY_MIN((size_t)(g->end - r), (size_t)TILE_ROWS);

        multiply_x(j, gate_out, r, rows, &gate);
        multiply_x(j, up_out, r, rows, &up);
        sy_shard_add_bias(gate_out, c.cols, g->shard->gate_bias, c.col, rows, c.cols, j->kernels);
        sy_shard_add_bias(up_out, c.cols, g->shard->up_bias, c.col, rows, c.cols, j->kernels);
        sy_shard_activate(g->shard, gate_out, up_out, rows * c.cols, j->kernels);
        keep_h(j, &c, r, rows, gate_out, up_out + TILE_FLOATS);
    }
}

static void rounded_down_task(void *arg, size_t task, unsigned thread)
{
    const job *j = arg;
    const chunk c = chunk_of(j, task, j->hidden);
    const sy_shard_group *g = c.group;
    const size_t rows = g->end - g->begin;
    float *y = j->y + (size_t)g->begin * j->hidden;

    (void)thread;
    if (j->activations == SY_ACT_Q8) {
        const sy_qrows h = rounded_from(&j->h_rounded, g->begin);
        j->kernels->matmul_q8(y, j->hidden, &h, NULL, rows, &g->shard->down, c.begin, c.end);
    } else {
        j->kernels->matmul_bf16(y, j->hidden, j->h_pairs + (size_t)g->begin * j->ffn, j->ffn, NULL,
                                rows, &g->shard->down, c.begin, c.end);
    }
    sy_shard_add_bias(y + c.col, j->hidden, g->shard->down_bias, c.col, rows, c.cols, j->kernels);
}

static size_t x_row_of(const job *j, uint32_t r)
{
    return j->x_row == NULL ? r : j->x_row[r];
}

/* Which rows of x the groups use, in the order of first use. */
static sy_status list_used(job *j, sy_shard_scratch *scratch)
{
    size_t n_x = 0;
    uint32_t *index, *used, *place;

    for (size_t g = 0; g < j->n_groups; g++)
        for (uint32_t r = j->groups[g].begin; r < j->groups[g].end; r++)
            n_x = SY_MAX(n_x, x_row_of(j, r) + 1);
    index = grown(scratch->index, &scratch->n_index, 2 * (size_t)j->rows + n_x, sizeof(*index));
    if (index == NULL) return SY_ENOMEM;
    scratch->index = index;
    j->used_by = index;
    j->used = used = index + j->rows;
    place = used + j->rows;
    memset(place, 0xff, n_x * sizeof(*place));
    for (size_t g = 0; g < j->n_groups; g++) {
        for (uint32_t r = j->groups[g].begin; r < j->groups[g].end; r++) {
            const size_t row = x_row_of(j, r);
            if (place[row] == UINT32_MAX) {
                used[j->n_used] = (uint32_t)row;
                place[row] = (uint32_t)j->n_used++;
            }
            j->used_by[r] = place[row];
        }
    }
    return SY_OK;
}

/* Bytes of rows as they are rounded, whole lines; 0 on overflow. */
static size_t rounded_bytes(const job *j, size_t rows, uint32_t width)
{
    size_t bytes;

    if (j->activations == SY_ACT_Q8)
        bytes = sy_qrows_bytes(rows, width);
    else if (__builtin_mul_overflow(rows * sizeof(uint16_t), (size_t)width, &bytes))
        bytes = 0;
    return bytes > SIZE_MAX / 4 ? 0 : (bytes + 63) & ~(size_t)63;
}

static sy_status make_rounded(job *j, sy_shard_scratch *scratch)
{
    const sy_status st = list_used(j, scratch);
    const size_t x_bytes = rounded_bytes(j, j->n_used, j->hidden);
    const size_t h_bytes = rounded_bytes(j, j->rows, j->ffn);
    uint8_t *memory;

    if (st != SY_OK || j->n_used == 0) return st;
    if (x_bytes == 0 || h_bytes == 0) return SY_ENOMEM;
    memory = grown(scratch->rounded, &scratch->rounded_bytes, x_bytes + h_bytes, 1);
    if (memory == NULL) return SY_ENOMEM;
    scratch->rounded = memory;
    if (j->activations == SY_ACT_Q8) {
        sy_qrows_at(&j->x_rounded, memory, j->n_used, j->hidden);
        sy_qrows_at(&j->h_rounded, memory + x_bytes, j->rows, j->ffn);
    } else {
        j->x_pairs = (uint16_t *)(void *)memory;
        j->h_pairs = (uint16_t *)(void *)(memory + x_bytes);
    }
    scratch->h_rounded = j->h_rounded;
    scratch->h_pairs = j->h_pairs;
    return SY_OK;
}

/* ---- all of it ---- */

/* All groups together are less work than waking the pool. */
static int is_small(const sy_shard_group *groups, size_t n_groups)
{
    const sy_panels *w = &groups[0].shard->gate;
    uint32_t rows = 0;

    for (size_t i = 0; i < n_groups; i++) rows = SY_MAX(rows, groups[i].end - groups[i].begin);
    return n_groups <= 4 && sy_kernels_is_small(rows * n_groups, w->n, w->k, w->dtype);
}

/* Of n columns: large ones if they keep the threads busy. */
static void cut_chunks(job *j, uint32_t n, unsigned threads)
{
    const size_t panels = sy_panels_count(n), n_wanted = (size_t)TASKS_A_THREAD * threads;
    const int is_enough = j->n_groups * (panels / CHUNK_PANELS_MAX) >= n_wanted;

    j->chunk_panels = is_enough ? CHUNK_PANELS_MAX : CHUNK_PANELS_MIN;
    j->chunks = (panels + j->chunk_panels - 1) / j->chunk_panels;
}

static sy_status make_scratch(job *j, sy_shard_scratch *scratch, unsigned threads, int rounded)
{
    void *tile =
        grown(scratch->tile, &scratch->tile_floats, (size_t)threads * THREAD_FLOATS, sizeof(float));
    void *h;

    if (tile == NULL) return SY_ENOMEM;
    j->tile = scratch->tile = tile;
    if (rounded) return make_rounded(j, scratch);
    h = grown(scratch->h, &scratch->capacity_floats, (size_t)j->rows * j->ffn, sizeof(float));
    if (h == NULL) return SY_ENOMEM;
    j->h = scratch->h = h;
    return SY_OK;
}

sy_status sy_shard_compute(float *y, const float *x, size_t x_stride, const uint32_t *x_row,
                           const sy_shard_group *groups, size_t n_groups, sy_shard_scratch *scratch,
                           sy_pool *pool, const sy_kernels *kernels)
{
    job j = {.groups = groups,
             .n_groups = n_groups,
             .x = x,
             .x_stride = x_stride,
             .x_row = x_row,
             .y = y,
             .kernels = kernels};
    sy_status st;

    for (size_t i = 0; i < n_groups; i++) {
        SY_ASSERT(groups[i].shard->home == NULL);
        j.rows = SY_MAX(j.rows, groups[i].end);
    }
    if (j.rows == 0) return SY_OK;
    j.activations = groups[0].shard->activations;
    const int rounded = j.activations != SY_ACT_F32;
    j.ffn = groups[0].shard->gate.n;
    j.hidden = groups[0].shard->down.n;
    st = make_scratch(&j, scratch, sy_pool_threads(pool), rounded);
    if (st != SY_OK) return st;
    if (is_small(groups, n_groups)) pool = NULL;
    if (rounded) sy_pool_run(pool, (j.n_used + ROUND_ROWS - 1) / ROUND_ROWS, round_task, &j);
    cut_chunks(&j, j.ffn, sy_pool_threads(pool));
    sy_pool_run(pool, n_groups * j.chunks, rounded ? rounded_gate_up_task : gate_up_task, &j);
    cut_chunks(&j, j.hidden, sy_pool_threads(pool));
    sy_pool_run(pool, n_groups * j.chunks, rounded ? rounded_down_task : down_task, &j);
    return SY_OK;
}
