/* sy_trunk_ws.c - the scratch of a step. */
#include "sy_trunk_internal.h"

#include <stdlib.h>

#include "sy_pages.h"

/* Floats a row. */
typedef struct row_widths {
    size_t hidden, half;
    size_t q, k, v, attn, q_low, query, attended; /* of attention */
    size_t mlp;
    size_t shared; /* the larger of what attention takes and what an MLP takes */
} row_widths;

static row_widths widths_of(const sy_trunk *trunk)
{
    const sy_model_desc *d = &trunk->desc;
    const sy_kv_shape *shape = &trunk->shape;
    row_widths w = {.hidden = d->hidden,
                    .half = d->rotary_dim / 2,
                    .q = (size_t)d->n_heads * d->head_dim,
                    .k = (size_t)shape->n_heads * shape->key_dim,
                    .attn = trunk_attn_width(d),
                    .mlp = trunk_mlp_width(d)};

    if (shape->is_latent) {
        w.q_low = d->mla.q_rank;
        w.query = (size_t)d->n_heads * shape->key_dim;
        w.attended = (size_t)d->n_heads * shape->value_dim;
    } else {
        w.v = w.k;
    }
    w.shared = SY_MAX(w.q + w.k + w.v + w.attn + w.q_low + w.query + w.attended, 2 * w.mlp);
    return w;
}

static void lay_out(sy_trunk_ws *ws, const row_widths *w, int is_latent)
{
    const size_t rows = ws->rows_max;
    float *shared;

    ws->x = ws->storage;
    ws->input = ws->x + rows * w->hidden;
    ws->output = ws->input + rows * w->hidden;
    ws->xn = ws->output + rows * w->hidden;
    ws->cos = ws->xn + rows * w->hidden;
    ws->sin = ws->cos + rows * w->half;
    shared = ws->sin + rows * w->half;
    ws->score = shared + rows * w->shared;
    ws->q = shared;
    ws->attn = ws->q + rows * w->q;
    ws->k = ws->attn + rows * w->attn;
    ws->v = ws->k + rows * w->k;
    ws->q_low = ws->v + rows * w->v;
    ws->query = is_latent ? ws->q_low + rows * w->q_low : ws->q;
    ws->attended = is_latent ? ws->query + rows * w->query : ws->attn;
    ws->mlp_gate = shared;
    ws->mlp_up = shared + rows * w->mlp;
}

sy_status trunk_cpu_ws_open(sy_trunk_ws *ws, sy_error *err)
{
    const sy_trunk *trunk = ws->trunk;
    const row_widths w = widths_of(trunk);
    const unsigned threads = ws->pool == NULL ? 1 : sy_pool_threads(ws->pool);
    const size_t scores = trunk_score_floats(trunk);
    const size_t floats = ws->rows_max * (4 * w.hidden + 2 * w.half + w.shared) + threads * scores;

    ws->storage_bytes = floats * sizeof(float);
    ws->storage = sy_pages_alloc(ws->storage_bytes);
    ws->block = malloc(sizeof(*ws->block) * ((size_t)ws->rows_max + 1));
    if (ws->storage == NULL || ws->block == NULL || trunk_ws_rounding(ws, trunk) != SY_OK)
        return sy_error_set(err, SY_ENOMEM, "no memory for a step of %u rows", ws->rows_max);
    ws->score_floats = scores;
    lay_out(ws, &w, trunk->shape.is_latent);
    return SY_OK;
}

void trunk_cpu_ws_close(sy_trunk_ws *ws)
{
    free(ws->rounded);
    free(ws->block);
    if (ws->storage != NULL) sy_pages_free(ws->storage, ws->storage_bytes);
}

sy_status sy_trunk_ws_open(sy_trunk_ws **out, const sy_trunk *trunk, uint32_t rows_max,
                           sy_pool *pool, sy_error *err)
{
    sy_trunk_ws *ws = calloc(1, sizeof(*ws));

    *out = NULL;
    if (ws == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for a step of %u rows", rows_max);
    ws->trunk = trunk;
    ws->rows_max = rows_max;
    ws->pool = pool;
    const sy_status st = trunk->ops->ws_open(ws, err);
    if (st != SY_OK) {
        sy_trunk_ws_close(ws);
        return st;
    }
    *out = ws;
    return SY_OK;
}

void sy_trunk_ws_close(sy_trunk_ws *ws)
{
    if (ws == NULL) return;
    ws->trunk->ops->ws_close(ws);
    free(ws);
}
