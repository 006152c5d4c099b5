/* sy_attention.c - grouped-query attention over KV pages, and the scratch a step needs. A row's
 * scores are taken over its visible keys in ascending position, the softmax over exactly those, the
 * values summed in the same order: how the prompt was cut into chunks, and what else is in the
 * batch, cannot show.
 *
 * A task is one kv head of some rows of one sequence, with the query heads that share it. It goes
 * through the keys page by page, and each page meets all of these queries while it is in the
 * first-level cache: the keys are read from memory once for all of them. */
#include "sy_trunk_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_kv_internal.h"
#include "sy_pages.h"

enum {
    QUERIES_MAX = 16, /* that go through the keys together, or one row's if those are more */
    SCORE_FLOATS_MAX = 1 << 20 /* of a thread, unless one row's need more */
};

/* Rows of one sequence whose queries go through the keys together. */
static uint32_t rows_together(const sy_model_desc *d)
{
    const uint32_t n_queries = SY_MIN((uint32_t)QUERIES_MAX, SCORE_FLOATS_MAX / d->context);

    return SY_MAX(n_queries / (d->n_heads / d->n_kv_heads), 1u);
}

/* Of one query's scores; a multiple of a line, and not of the cache's sets, so that the queries of
 * a task do not meet in one of them. */
static size_t score_stride(const sy_model_desc *d)
{
    return ((size_t)d->context + 31) / 32 * 32 + 16;
}

sy_status sy_trunk_ws_open(sy_trunk_ws **out, const sy_trunk *trunk, uint32_t rows_max,
                           sy_pool *pool, sy_error *err)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    const size_t half = d->rotary_dim / 2;
    const unsigned threads = pool == NULL ? 1 : sy_pool_threads(pool);
    const size_t xn = SY_MAX((size_t)d->hidden, q);
    const size_t scores = (size_t)rows_together(d) * (d->n_heads / d->n_kv_heads) * score_stride(d);
    const size_t floats = rows_max * (xn + 2 * q + 2 * kv + 2 * half) + threads * scores;
    sy_trunk_ws *ws = calloc(1, sizeof(*ws));

    *out = NULL;
    if (ws != NULL) ws->storage_bytes = floats * sizeof(float);
    if (ws != NULL) ws->storage = sy_pages_alloc(ws->storage_bytes);
    if (ws != NULL) ws->block = malloc(sizeof(*ws->block) * ((size_t)rows_max + 1));
    if (ws != NULL) ws->rows_max = rows_max;
    if (ws == NULL || ws->storage == NULL || ws->block == NULL ||
        trunk_ws_rounding(ws, trunk) != SY_OK) {
        sy_trunk_ws_close(ws);
        return sy_error_set(err, SY_ENOMEM, "no memory for a step of %u rows", rows_max);
    }
    ws->pool = pool;
    ws->xn = ws->storage;
    ws->q = ws->xn + rows_max * xn;
    ws->attn = ws->q + rows_max * q;
    ws->k = ws->attn + rows_max * q;
    ws->v = ws->k + rows_max * kv;
    ws->cos = ws->v + rows_max * kv;
    ws->sin = ws->cos + rows_max * half;
    ws->score = ws->sin + rows_max * half;
    ws->score_floats = scores;
    *out = ws;
    return SY_OK;
}

void sy_trunk_ws_close(sy_trunk_ws *ws)
{
    if (ws == NULL) return;
    free(ws->rounded);
    free(ws->block);
    sy_pages_free(ws->storage, ws->storage_bytes);
    free(ws);
}

static void clip(float *x, size_t n, float limit)
{
    for (size_t i = 0; i < n; i++) x[i] = fminf(fmaxf(x[i], -limit), limit);
}

/* OLMoE norms a whole projection, Qwen3 each head; then OLMoE clamps; then heads rotate. */
static void finish_projection(const sy_trunk *trunk, float *x, const float *norm, uint32_t heads,
                              const float *c, const float *s)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t hd = d->head_dim;

    if (norm != NULL && d->qk_norm == 1)
        trunk->kernels->rmsnorm(x, x, norm, d->rms_eps, heads * hd);
    for (uint32_t h = 0; norm != NULL && d->qk_norm == 2 && h < heads; h++)
        trunk->kernels->rmsnorm(x + h * hd, x + h * hd, norm, d->rms_eps, hd);
    if (d->qkv_clip > 0.0f) clip(x, heads * hd, d->qkv_clip);
    for (uint32_t h = 0; h < heads; h++) trunk->kernels->rope(x + h * hd, c, s, d->rotary_dim / 2);
}

typedef struct step {
    const sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    uint32_t layer;
    float *x;
    const sy_batch *batch;
    uint32_t n_blocks;       /* of rows: ws->block */
    uint32_t heads_together; /* query heads of a task */
} step;

/* Puts a row's rotated keys and its values where its position belongs. */
static void store_kv(const step *s, uint32_t t)
{
    const sy_model_desc *d = &s->trunk->desc;
    const size_t hd = d->head_dim, width = d->n_kv_heads * hd;
    const uint32_t position = s->batch->position[t];
    const uint32_t page = s->batch->seq[t]->page[position / SY_KV_PAGE];
    const size_t at = position % SY_KV_PAGE * hd;

    for (uint32_t h = 0; h < d->n_kv_heads; h++) {
        memcpy(sy_kv_at(s->kv, s->layer, page, 0, h) + at, s->ws->k + t * width + h * hd,
               hd * sizeof(float));
        memcpy(sy_kv_at(s->kv, s->layer, page, 1, h) + at, s->ws->v + t * width + h * hd,
               hd * sizeof(float));
    }
}

/* Row i of the batch: rotate, clamp, store. Rows are independent of each other. */
static void project_task(void *arg, size_t t, unsigned thread)
{
    const step *s = arg;
    const sy_model_desc *d = &s->trunk->desc;
    const trunk_layer *w = &s->trunk->layer[s->layer];
    const size_t hd = d->head_dim, half = d->rotary_dim / 2;
    const float *c = s->ws->cos + t * half, *sn = s->ws->sin + t * half;

    (void)thread;
    finish_projection(s->trunk, s->ws->q + t * d->n_heads * hd, w->q_norm, d->n_heads, c, sn);
    finish_projection(s->trunk, s->ws->k + t * d->n_kv_heads * hd, w->k_norm, d->n_kv_heads, c, sn);
    if (d->qkv_clip > 0.0f)
        clip(s->ws->v + t * d->n_kv_heads * hd, d->n_kv_heads * hd, d->qkv_clip);
    store_kv(s, (uint32_t)t);
}

/* What one task works on: rows [begin, end) of one sequence, query heads [head, head_end), which
 * share a kv head. Their scores lie score_stride apart, row by row. */
typedef struct queries {
    uint32_t begin, end;
    uint32_t head, head_end, kv_head;
    float *score;
    size_t score_stride;
    float scale;
} queries;

static uint32_t first_key(const sy_model_desc *d, uint32_t position)
{
    return d->sliding_window != 0 && position >= d->sliding_window
               ? position - d->sliding_window + 1
               : 0;
}

/* Keys (or values) [from, to) of one page, and what of the next page to ask for meanwhile: a page
 * is too short for the hardware to foresee where the next one lies. */
typedef struct key_run {
    uint32_t from, to;
    const float *at;   /* the first one's */
    const char *ahead; /* moves on with every head */
    size_t ahead_bytes;
} key_run;

/* A row's scores of the run for all heads of the task, or the sums of its values. */
static void attend_run(const step *s, const queries *q, uint32_t t, key_run *run, int value)
{
    const sy_kernels *kernels = s->trunk->kernels;
    const sy_model_desc *d = &s->trunk->desc;
    const size_t hd = d->head_dim, n_heads = q->head_end - q->head, n = run->to - run->from;
    const size_t row = ((size_t)t * d->n_heads + q->head) * hd;
    float *score = q->score + (t - q->begin) * n_heads * q->score_stride +
                   (run->from - first_key(d, s->batch->position[t]));

    for (size_t h = 0; h < n_heads; h++, score += q->score_stride) {
        for (size_t i = 0; i < run->ahead_bytes; i += SY_CACHE_LINE)
            __builtin_prefetch(run->ahead + i);
        run->ahead += run->ahead_bytes;
        if (value) {
            kernels->attn_values(s->ws->attn + row + h * hd, score, run->at, hd, n, hd);
        } else {
            kernels->attn_scores(score, s->ws->q + row + h * hd, run->at, hd, n, hd, q->scale);
        }
    }
}

/* Page by page, in ascending position, every row that sees some of it. Each query asks for its
 * share of the next page. */
static void attend_pages(const step *s, const queries *q, int value)
{
    const sy_model_desc *d = &s->trunk->desc;
    const uint32_t *position = s->batch->position, *pages = s->batch->seq[q->begin]->page;
    const uint32_t last_page = position[q->end - 1] / SY_KV_PAGE;
    const size_t n_queries = (size_t)(q->end - q->begin) * (q->head_end - q->head);
    const size_t share = s->kv->head_floats * sizeof(float) / n_queries;

    for (uint32_t p = first_key(d, position[q->begin]) / SY_KV_PAGE; p <= last_page; p++) {
        const uint32_t begin = p * SY_KV_PAGE, next = SY_MIN(p + 1, last_page);
        const float *keys = sy_kv_at(s->kv, s->layer, pages[p], value, q->kv_head);
        key_run run = {
            .ahead = (const char *)sy_kv_at(s->kv, s->layer, pages[next], value, q->kv_head),
            .ahead_bytes = next == p ? 0 : share / SY_CACHE_LINE * SY_CACHE_LINE,
        };

        for (uint32_t t = q->begin; t < q->end; t++) {
            run.from = SY_MAX(begin, first_key(d, position[t]));
            run.to = SY_MIN(begin + SY_KV_PAGE, position[t] + 1);
            if (run.from >= run.to) continue;
            run.at = keys + (size_t)(run.from - begin) * d->head_dim;
            attend_run(s, q, t, &run, value);
        }
    }
}

static void attend_task(void *arg, size_t i, unsigned thread)
{
    const step *s = arg;
    const sy_model_desc *d = &s->trunk->desc;
    const uint32_t group = d->n_heads / d->n_kv_heads;
    const uint32_t parts = (group + s->heads_together - 1) / s->heads_together;
    const uint32_t part = (uint32_t)(i % parts), kv_head = (uint32_t)(i / parts % d->n_kv_heads);
    const uint32_t block = (uint32_t)(i / parts / d->n_kv_heads);
    const queries q = {
        .begin = s->ws->block[block],
        .end = s->ws->block[block + 1],
        .head = kv_head * group + part * s->heads_together,
        .head_end = kv_head * group + SY_MIN((part + 1) * s->heads_together, group),
        .kv_head = kv_head,
        .score = s->ws->score + thread * s->ws->score_floats,
        .score_stride = score_stride(d),
        .scale = d->attention_scale,
    };
    float *score = q.score;

    attend_pages(s, &q, 0);
    for (uint32_t t = q.begin; t < q.end; t++) {
        const uint32_t position = s->batch->position[t];
        float *out = s->ws->attn + ((size_t)t * d->n_heads + q.head) * d->head_dim;

        memset(out, 0, (q.head_end - q.head) * d->head_dim * sizeof(float));
        for (uint32_t h = q.head; h < q.head_end; h++, score += q.score_stride)
            s->trunk->kernels->softmax(score, position + 1 - first_key(d, position));
    }
    attend_pages(s, &q, 1);
}

/* Cuts the batch into blocks of neighbouring rows of one sequence. With fewer tasks than would keep
 * the threads busy, the query heads of a kv head are spread over several. */
static void cut_blocks(step *s)
{
    const sy_model_desc *d = &s->trunk->desc;
    const sy_batch *batch = s->batch;
    const uint32_t rows_max = rows_together(d);
    const size_t n_wanted = 2 * (size_t)sy_pool_threads(s->ws->pool);
    uint32_t *block = s->ws->block;

    s->n_blocks = 0;
    for (uint32_t t = 0; t < batch->n_rows; t++) {
        const uint32_t begin = s->n_blocks > 0 ? block[s->n_blocks - 1] : 0;
        if (t == 0 || batch->seq[t] != batch->seq[t - 1] || t - begin == rows_max)
            block[s->n_blocks++] = t;
    }
    block[s->n_blocks] = batch->n_rows;
    s->heads_together = d->n_heads / d->n_kv_heads;
    while (s->heads_together > 1 &&
           (size_t)s->n_blocks * (d->n_heads / s->heads_together) < n_wanted)
        s->heads_together = (s->heads_together + 1) / 2;
}

static size_t n_attend_tasks(const step *s)
{
    const sy_model_desc *d = &s->trunk->desc;
    const uint32_t group = d->n_heads / d->n_kv_heads;

    return (size_t)s->n_blocks * d->n_kv_heads *
           ((group + s->heads_together - 1) / s->heads_together);
}

static void norm_task(void *arg, size_t t, unsigned thread)
{
    const step *s = arg;
    const size_t hidden = s->trunk->desc.hidden;

    (void)thread;
    s->trunk->kernels->rmsnorm(s->ws->xn + t * hidden, s->x + t * hidden,
                               s->trunk->layer[s->layer].norm1, s->trunk->desc.rms_eps, hidden);
}

static void add_task(void *arg, size_t t, unsigned thread)
{
    const step *s = arg;
    const size_t hidden = s->trunk->desc.hidden;

    (void)thread;
    trunk_add(s->trunk, s->x + t * hidden, s->ws->xn + t * hidden, hidden);
}

/* Scores and values of all rows are less work than waking the pool. */
static int attention_is_small(const step *s)
{
    const sy_model_desc *d = &s->trunk->desc;
    uint64_t keys = 0;

    for (uint32_t t = 0; t < s->batch->n_rows; t++) keys += s->batch->position[t] + 1;
    return keys * d->n_heads * d->head_dim < 256 << 10;
}

void sy_trunk_attention(const sy_trunk *trunk, sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, float *x,
                        const sy_batch *batch)
{
    const trunk_layer *w = &trunk->layer[layer];
    const trunk_product qkv[] = {{ws->q, &w->q}, {ws->k, &w->k}, {ws->v, &w->v}};
    const trunk_product out = {ws->xn, &w->o};
    step s = {.trunk = trunk, .ws = ws, .kv = kv, .layer = layer, .x = x, .batch = batch};
    /* A few rows are normed in less time than waking the pool takes. */
    sy_pool *rows_pool = (size_t)batch->n_rows * trunk->desc.hidden < 64 << 10 ? NULL : ws->pool;
    sy_pool *pool = attention_is_small(&s) ? NULL : ws->pool;

    cut_blocks(&s);
    sy_pool_run(rows_pool, batch->n_rows, norm_task, &s);
    trunk_matmuls(trunk, ws, qkv, SY_COUNT_OF(qkv), ws->xn, batch->n_rows);
    sy_pool_run(pool, batch->n_rows, project_task, &s);
    sy_pool_run(pool, n_attend_tasks(&s), attend_task, &s);
    trunk_matmuls(trunk, ws, &out, 1, ws->attn, batch->n_rows);
    sy_pool_run(rows_pool, batch->n_rows, add_task, &s);
}
