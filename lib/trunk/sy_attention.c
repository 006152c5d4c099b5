/* sy_attention.c - grouped-query attention over KV pages; of MLA's latents too, which are one kv
 * head. A row's scores are taken over its visible keys in ascending position, the softmax over
 * exactly those (and behind them a sink, where a head has one), the values summed in the same
 * order: how the prompt was cut into chunks, and what else is in the batch, cannot show.
 *
 * A task is one kv head of some rows of one sequence, with query heads that share it. It goes
 * through the keys page by page, and each page meets all of these queries while it is in the
 * first-level cache: the keys are read from memory once for all of them. */
#include "sy_trunk_internal.h"

#include <string.h>

enum {
    QUERIES_MAX = 16,          /* that go through the keys together */
    SCORE_FLOATS_MAX = 1 << 20 /* of a thread, unless one row's need more */
};

/* Query heads that share a kv head. */
static uint32_t group_of(const sy_trunk *trunk)
{
    return trunk->desc.n_heads / trunk->shape.n_heads;
}

/* Rows of one sequence whose queries go through the keys together. */
static uint32_t rows_together(const sy_trunk *trunk)
{
    const uint32_t n_queries =
        SY_MIN((uint32_t)QUERIES_MAX, SCORE_FLOATS_MAX / trunk->desc.context);

    return SY_MAX(n_queries / group_of(trunk), 1u);
}

/* The heads of a group in as few equal parts as QUERIES_MAX allows. */
static uint32_t heads_together(const sy_trunk *trunk)
{
    const uint32_t group = group_of(trunk), parts = (group + QUERIES_MAX - 1) / QUERIES_MAX;

    return (group + parts - 1) / parts;
}

/* Of one query's scores; a multiple of a line, and not of the cache's sets, so that the queries of
 * a task do not meet in one of them. There is room for a sink. */
static size_t score_stride(const sy_model_desc *d)
{
    return ((size_t)d->context + 31) / 32 * 32 + 16;
}

size_t trunk_score_floats(const sy_trunk *trunk)
{
    return (size_t)rows_together(trunk) * heads_together(trunk) * score_stride(&trunk->desc);
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

/* The first one that a row sees. */
static uint32_t first_key(const trunk_step *s, uint32_t position)
{
    uint32_t first = 0;

    if (s->window != 0 && position >= s->window) first = position - s->window + 1;
    if (s->chunk != 0) first = SY_MAX(first, position - position % s->chunk);
    return first;
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
static void attend_run(const trunk_step *s, const queries *q, uint32_t t, key_run *run, int value)
{
    const sy_kernels *kernels = s->trunk->kernels;
    const size_t key_dim = s->trunk->shape.key_dim, value_dim = s->trunk->shape.value_dim;
    const size_t n_heads = q->head_end - q->head, n = run->to - run->from;
    const size_t row = (size_t)t * s->trunk->desc.n_heads + q->head;
    const float *query = s->ws->query + row * key_dim;
    float *out = s->ws->attended + row * value_dim;
    float *score = q->score + (t - q->begin) * n_heads * q->score_stride +
                   (run->from - first_key(s, s->batch->position[t]));

    for (size_t h = 0; h < n_heads; h++, score += q->score_stride) {
        for (size_t i = 0; i < run->ahead_bytes; i += SY_CACHE_LINE)
            __builtin_prefetch(run->ahead + i);
        run->ahead += run->ahead_bytes;
        if (value) {
            kernels->attn_values(out + h * value_dim, score, run->at, key_dim, n, value_dim);
        } else {
            kernels->attn_scores(score, query + h * key_dim, run->at, key_dim, n, key_dim,
                                 q->scale);
        }
    }
}

/* Page by page, in ascending position, every row that sees some of it. Each query asks for its
 * share of the next page. */
static void attend_pages(const trunk_step *s, const queries *q, int value)
{
    const uint32_t *position = s->batch->position, *pages = s->batch->seq[q->begin]->page;
    const uint32_t last_page = position[q->end - 1] / SY_KV_PAGE;
    const size_t n_queries = (size_t)(q->end - q->begin) * (q->head_end - q->head);
    const size_t share = s->kv->head_floats * sizeof(float) / n_queries;

    for (uint32_t p = first_key(s, position[q->begin]) / SY_KV_PAGE; p <= last_page; p++) {
        const uint32_t begin = p * SY_KV_PAGE, next = SY_MIN(p + 1, last_page);
        const float *keys = sy_kv_at(s->kv, s->layer, pages[p], value, q->kv_head);
        key_run run = {
            .ahead = (const char *)sy_kv_at(s->kv, s->layer, pages[next], value, q->kv_head),
            .ahead_bytes = next == p ? 0 : share / SY_CACHE_LINE * SY_CACHE_LINE,
        };

        for (uint32_t t = q->begin; t < q->end; t++) {
            run.from = SY_MAX(begin, first_key(s, position[t]));
            run.to = SY_MIN(begin + SY_KV_PAGE, position[t] + 1);
            if (run.from >= run.to) continue;
            run.at = keys + (size_t)(run.from - begin) * s->trunk->shape.key_dim;
            attend_run(s, q, t, &run, value);
        }
    }
}

/* Of the task's scores, row by row and head by head. */
static void soften(const trunk_step *s, const queries *q)
{
    const float *sinks = s->weights->sinks;
    float *score = q->score;

    for (uint32_t t = q->begin; t < q->end; t++) {
        const uint32_t position = s->batch->position[t];
        const size_t n = position + 1 - first_key(s, position);

        for (uint32_t h = q->head; h < q->head_end; h++, score += q->score_stride) {
            if (sinks != NULL) score[n] = sinks[h];
            s->trunk->kernels->softmax(score, n + (sinks != NULL));
        }
    }
}

static void attend_task(void *arg, size_t i, unsigned thread)
{
    const trunk_step *s = arg;
    const sy_model_desc *d = &s->trunk->desc;
    const size_t value_dim = s->trunk->shape.value_dim;
    const uint32_t n_kv_heads = s->trunk->shape.n_heads, group = group_of(s->trunk);
    const uint32_t parts = (group + s->heads_together - 1) / s->heads_together;
    const uint32_t part = (uint32_t)(i % parts), kv_head = (uint32_t)(i / parts % n_kv_heads);
    const uint32_t block = (uint32_t)(i / parts / n_kv_heads);
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

    attend_pages(s, &q, 0);
    soften(s, &q);
    for (uint32_t t = q.begin; t < q.end; t++)
        memset(s->ws->attended + ((size_t)t * d->n_heads + q.head) * value_dim, 0,
               (q.head_end - q.head) * value_dim * sizeof(float));
    attend_pages(s, &q, 1);
}

/* Cuts the batch into blocks of neighbouring rows of one sequence. With fewer tasks than would keep
 * the threads busy, the query heads of a kv head are spread over several. */
static void cut_blocks(trunk_step *s)
{
    const sy_trunk *trunk = s->trunk;
    const sy_batch *batch = s->batch;
    const uint32_t rows_max = rows_together(trunk);
    const size_t n_wanted = 2 * (size_t)sy_pool_threads(s->ws->pool);
    uint32_t *block = s->ws->block;

    s->n_blocks = 0;
    for (uint32_t t = 0; t < batch->n_rows; t++) {
        const uint32_t begin = s->n_blocks > 0 ? block[s->n_blocks - 1] : 0;
        if (t == 0 || batch->seq[t] != batch->seq[t - 1] || t - begin == rows_max)
            block[s->n_blocks++] = t;
    }
    block[s->n_blocks] = batch->n_rows;
    s->heads_together = heads_together(trunk);
    while (s->heads_together > 1 &&
           (size_t)s->n_blocks * (trunk->desc.n_heads / s->heads_together) < n_wanted)
        s->heads_together = (s->heads_together + 1) / 2;
}

static size_t n_attend_tasks(const trunk_step *s)
{
    const uint32_t group = group_of(s->trunk);

    return (size_t)s->n_blocks * s->trunk->shape.n_heads *
           ((group + s->heads_together - 1) / s->heads_together);
}

static void norm_task(void *arg, size_t t, unsigned thread)
{
    const trunk_step *s = arg;
    const size_t hidden = s->trunk->desc.hidden;

    (void)thread;
    trunk_norm_row(s->trunk, s->ws->xn + t * hidden, s->ws->x + t * hidden, &s->weights->norm1);
}

static void add_task(void *arg, size_t t, unsigned thread)
{
    const trunk_step *s = arg;
    const size_t hidden = s->trunk->desc.hidden;

    (void)thread;
    trunk_add(s->trunk, s->ws->x + t * hidden, s->ws->xn + t * hidden, hidden);
}

/* Scores and values of all rows are less work than waking the pool. */
static int attention_is_small(const trunk_step *s)
{
    uint64_t keys = 0;

    for (uint32_t t = 0; t < s->batch->n_rows; t++) {
        const uint32_t position = s->batch->position[t];
        keys += position + 1 - first_key(s, position);
    }
    return keys * s->trunk->desc.n_heads * s->trunk->shape.key_dim < 256 << 10;
}

sy_status trunk_cpu_attend(sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, const sy_batch *batch,
                           sy_error *err)
{
    const sy_trunk *trunk = ws->trunk;
    const trunk_layer *w = &trunk->layer[layer];
    const uint8_t flags = trunk->desc.layer[layer];
    const trunk_product out = {ws->xn, &w->o};
    trunk_step s = {
        .trunk = trunk,
        .weights = w,
        .ws = ws,
        .kv = kv,
        .layer = layer,
        .batch = batch,
        .window = (flags & SY_LAYER_SLIDING) != 0 ? trunk->desc.sliding_window : 0,
        .chunk = (flags & SY_LAYER_CHUNKED) != 0 ? trunk->desc.attention_chunk : 0,
    };

    (void)err;
    /* A few rows are normed in less time than waking the pool takes. */
    sy_pool *rows_pool = (size_t)batch->n_rows * trunk->desc.hidden < 64 << 10 ? NULL : ws->pool;
    sy_pool *pool = attention_is_small(&s) ? NULL : ws->pool;

    cut_blocks(&s);
    sy_pool_run(rows_pool, batch->n_rows, norm_task, &s);
    trunk_project(&s, pool);
    sy_pool_run(pool, n_attend_tasks(&s), attend_task, &s);
    if (trunk->shape.is_latent) trunk_raise_values(&s);
    trunk_matmuls(trunk, ws, &out, 1, ws->attn, batch->n_rows);
    sy_pool_run(rows_pool, batch->n_rows, add_task, &s);
    return SY_OK;
}
