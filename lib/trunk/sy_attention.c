/* sy_attention.c - grouped-query attention over KV pages, and the scratch a step needs. A row's
 * scores are taken over its visible keys in ascending position, the softmax over exactly those, the
 * values summed in the same order: how the prompt was cut into chunks, and what else is in the
 * batch, cannot show. */
#include "sy_trunk_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_kv_internal.h"

sy_status sy_trunk_ws_open(sy_trunk_ws **out, const sy_trunk *trunk, uint32_t rows_max,
                           sy_pool *pool, sy_error *err)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t q = (size_t)d->n_heads * d->head_dim, kv = (size_t)d->n_kv_heads * d->head_dim;
    const size_t half = d->head_dim / 2;
    const unsigned threads = pool == NULL ? 1 : sy_pool_threads(pool);
    const size_t xn = SY_MAX((size_t)d->hidden, q);
    const size_t floats =
        rows_max * (xn + 2 * q + 2 * kv + 2 * half) + (size_t)threads * d->context;
    sy_trunk_ws *ws = calloc(1, sizeof(*ws));

    *out = NULL;
    if (ws != NULL) ws->storage = aligned_alloc(64, (floats * sizeof(float) + 63) & ~(size_t)63);
    if (ws == NULL || ws->storage == NULL) {
        free(ws);
        return sy_error_set(err, SY_ENOMEM, "no memory for a step of %u rows", rows_max);
    }
    ws->rows_max = rows_max;
    ws->pool = pool;
    ws->xn = ws->storage;
    ws->q = ws->xn + rows_max * xn;
    ws->attn = ws->q + rows_max * q;
    ws->k = ws->attn + rows_max * q;
    ws->v = ws->k + rows_max * kv;
    ws->cos = ws->v + rows_max * kv;
    ws->sin = ws->cos + rows_max * half;
    ws->score = ws->sin + rows_max * half;
    *out = ws;
    return SY_OK;
}

void sy_trunk_ws_close(sy_trunk_ws *ws)
{
    if (ws == NULL) return;
    free(ws->storage);
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
    for (uint32_t h = 0; h < heads; h++) trunk->kernels->rope(x + h * hd, c, s, hd / 2);
}

typedef struct step {
    const sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    uint32_t layer;
    const sy_batch *batch;
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
    const size_t hd = d->head_dim, half = hd / 2;
    const float *c = s->ws->cos + t * half, *sn = s->ws->sin + t * half;

    (void)thread;
    finish_projection(s->trunk, s->ws->q + t * d->n_heads * hd, w->q_norm, d->n_heads, c, sn);
    finish_projection(s->trunk, s->ws->k + t * d->n_kv_heads * hd, w->k_norm, d->n_kv_heads, c, sn);
    if (d->qkv_clip > 0.0f)
        clip(s->ws->v + t * d->n_kv_heads * hd, d->n_kv_heads * hd, d->qkv_clip);
    store_kv(s, (uint32_t)t);
}

/* Walks the pages that hold keys [first, last] and gives each run of them to fn's two operations.
 */
static void attend_head(const step *s, uint32_t t, uint32_t head, float *score)
{
    const sy_model_desc *d = &s->trunk->desc;
    const sy_kernels *kernels = s->trunk->kernels;
    const size_t hd = d->head_dim;
    const uint32_t last = s->batch->position[t];
    const uint32_t first =
        d->sliding_window != 0 && last >= d->sliding_window ? last - d->sliding_window + 1 : 0;
    const uint32_t kv_head = head / (d->n_heads / d->n_kv_heads);
    const uint32_t *page = s->batch->seq[t]->page;
    const float *q = s->ws->q + ((size_t)t * d->n_heads + head) * hd;
    float *out = s->ws->attn + ((size_t)t * d->n_heads + head) * hd;
    const float scale = 1.0f / sqrtf((float)hd);

    for (uint32_t j = first; j <= last;) {
        const uint32_t in_page = j % SY_KV_PAGE, n = SY_MIN(SY_KV_PAGE - in_page, last + 1 - j);
        const float *k = sy_kv_at(s->kv, s->layer, page[j / SY_KV_PAGE], 0, kv_head);
        kernels->attn_scores(score + (j - first), q, k + in_page * hd, hd, n, hd, scale);
        j += n;
    }
    kernels->softmax(score, last + 1 - first);
    memset(out, 0, hd * sizeof(float));
    for (uint32_t j = first; j <= last;) {
        const uint32_t in_page = j % SY_KV_PAGE, n = SY_MIN(SY_KV_PAGE - in_page, last + 1 - j);
        const float *v = sy_kv_at(s->kv, s->layer, page[j / SY_KV_PAGE], 1, kv_head);
        kernels->attn_values(out, score + (j - first), v + in_page * hd, hd, n, hd);
        j += n;
    }
}

static void attend_task(void *arg, size_t i, unsigned thread)
{
    const step *s = arg;
    const uint32_t heads = s->trunk->desc.n_heads;

    attend_head(s, (uint32_t)(i / heads), (uint32_t)(i % heads),
                s->ws->score + (size_t)thread * s->trunk->desc.context);
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
    const sy_model_desc *d = &trunk->desc;
    const trunk_layer *w = &trunk->layer[layer];
    const size_t hidden = d->hidden;
    step s = {trunk, ws, kv, layer, batch};

    for (uint32_t t = 0; t < batch->n_rows; t++)
        trunk->kernels->rmsnorm(ws->xn + t * hidden, x + t * hidden, w->norm1, d->rms_eps, hidden);
    trunk_matmul(trunk, ws->pool, ws->q, ws->xn, NULL, batch->n_rows, &w->q);
    trunk_matmul(trunk, ws->pool, ws->k, ws->xn, NULL, batch->n_rows, &w->k);
    trunk_matmul(trunk, ws->pool, ws->v, ws->xn, NULL, batch->n_rows, &w->v);
    sy_pool *pool = attention_is_small(&s) ? NULL : ws->pool;
    sy_pool_run(pool, batch->n_rows, project_task, &s);
    sy_pool_run(pool, (size_t)batch->n_rows * d->n_heads, attend_task, &s);
    trunk_matmul(trunk, ws->pool, ws->xn, ws->attn, NULL, batch->n_rows, &w->o);
    trunk->kernels->add(x, ws->xn, batch->n_rows * hidden);
}
