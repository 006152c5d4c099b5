/* sy_trunk_device_attend.c - attention on a GPU, over keys and values of heads; what is MLA's own
 * is in sy_trunk_device_mla.c. */
#include "sy_trunk_device.h"

enum { SPLIT = 128 }; /* SY_CUDA_SPLIT: shorter sequences gain nothing from being split */

/* ---- projection ---- */

/* The heads of one projection, as the processor's finish_projection has them. */
typedef struct projection {
    sy_backend_ref x;
    uint32_t n_heads;
    sy_backend_ref norm; /* none: it has none */
    int is_query, is_value;
} projection;

static uint32_t norm_of(const sy_model_desc *d, const projection *p, int rotates)
{
    if (p->is_value) return SY_BACKEND_HEADS_AS_THEY_ARE;
    if (d->qk_norm == SY_QK_NORM_WEIGHTLESS)
        return rotates ? SY_BACKEND_ROTATE_THEN_NORM : SY_BACKEND_HEADS_AS_THEY_ARE;
    if (p->norm.buffer == NULL) return SY_BACKEND_HEADS_AS_THEY_ARE;
    switch (d->qk_norm) {
    case SY_QK_NORM_HEAD: return SY_BACKEND_NORM_THEN_ROTATE;
    case SY_QK_NORM_ROTATED: return SY_BACKEND_ROTATE_THEN_NORM;
    default: return SY_BACKEND_HEADS_AS_THEY_ARE;
    }
}

/* Norms, clips, rotates, warms: nothing is enqueued where nothing of it is asked for. */
static void op_finish(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer, const projection *p)
{
    const sy_model_desc *d = &ws->trunk->desc;
    const int rotates = !p->is_value && trunk_layer_rotates(d, layer);
    const int is_warmed = p->is_query && !rotates && d->temperature_scale != 0.0f;
    const uint32_t norm = norm_of(d, p, rotates);
    sy_backend_op *op;

    if (norm == SY_BACKEND_HEADS_AS_THEY_ARE && d->qkv_clip == 0.0f && !rotates && !is_warmed)
        return;
    op = trunk_op(ops, SY_BACKEND_HEADS);
    op->u.heads.x = p->x;
    op->u.heads.places.position = ws->device->batch.places.position;
    op->u.heads.places.angle = ws->device->batch.places.angle;
    op->u.heads.n_heads = p->n_heads;
    op->u.heads.head_dim = d->head_dim;
    op->u.heads.norm = norm;
    if (norm != SY_BACKEND_HEADS_AS_THEY_ARE) {
        op->u.heads.norm_weight = p->norm;
        op->u.heads.norm_dim = d->head_dim;
        op->u.heads.norm_eps = d->rms_eps;
    }
    op->u.heads.clip = d->qkv_clip;
    if (rotates) {
        op->u.heads.angles = ws->device->batch.angles;
        op->u.heads.angle_rows = ops->n_rows;
        op->u.heads.rotary_dim = d->rotary_dim;
        op->u.heads.interleaved = (uint32_t)d->rope.interleaved;
    }
    if (is_warmed) {
        op->u.heads.temperature_floor = d->temperature_floor;
        op->u.heads.temperature_scale = d->temperature_scale;
    }
}

void trunk_op_project(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer)
{
    const sy_backend_ref none = {NULL, 0};
    const struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const device_layer *weights = &ws->trunk->device->layer[layer];
    const projection q = {w->q, d->n_heads, weights->q_norm, 1, 0};
    const projection k = {w->k, d->n_kv_heads, weights->k_norm, 0, 0};
    const projection v = {w->v, d->n_kv_heads, none, 0, 1};

    trunk_op_linear(ops, w->q, w->xn16, &weights->q, 1.0f);
    trunk_op_linear(ops, w->k, w->xn16, &weights->k, 1.0f);
    trunk_op_linear(ops, w->v, w->xn16, &weights->v, 1.0f);
    if (d->qk_norm == SY_QK_NORM_WHOLE && weights->q_norm.buffer != NULL) {
        trunk_op_rms(ops, w->q, none, w->q, weights->q_norm, d->rms_eps, weights->q.n);
        trunk_op_rms(ops, w->k, none, w->k, weights->k_norm, d->rms_eps, weights->k.n);
    }
    op_finish(ops, ws, layer, &q);
    op_finish(ops, ws, layer, &k);
    op_finish(ops, ws, layer, &v);
}

/* ---- attention ---- */

static void op_put(device_ops *ops, const sy_trunk_ws *ws, const sy_backend_kv *kv)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_KV_PUT);

    op->u.kv_put.kv = *kv;
    op->u.kv_put.k = ws->device->k;
    if (!kv->is_latent) op->u.kv_put.v = ws->device->v;
    op->u.kv_put.places = ws->device->batch.places;
}

/* In splits wherever there is memory for them: no bit depends on it. */
static void op_attend(device_ops *ops, const sy_trunk_ws *ws, const sy_backend_kv *kv,
                      uint32_t layer)
{
    const struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const uint8_t flags = d->layer[layer];
    const uint64_t scratch = ops->machine->backend->attend_scratch_bytes(
        ops->n_rows, d->n_heads, kv->value_dim, w->batch.positions_max);
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_ATTEND);

    op->u.attend.kv = *kv;
    op->u.attend.out = w->attended;
    op->u.attend.q = w->query;
    op->u.attend.sinks = ws->trunk->device->layer[layer].sinks;
    if (w->batch.positions_max > SPLIT && scratch > 0 && scratch <= w->scratch_bytes)
        op->u.attend.scratch = w->scratch;
    op->u.attend.places = w->batch.places;
    op->u.attend.n_heads = d->n_heads;
    op->u.attend.window = (flags & SY_LAYER_SLIDING) != 0 ? d->sliding_window : 0;
    op->u.attend.chunk = (flags & SY_LAYER_CHUNKED) != 0 ? d->attention_chunk : 0;
    op->u.attend.positions_max = w->batch.positions_max;
    op->u.attend.rows_together = w->batch.rows_together;
    op->u.attend.scale = d->attention_scale;
}

sy_status trunk_device_attend(sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, const sy_batch *batch,
                              sy_error *err)
{
    const sy_backend_ref none = {NULL, 0};
    const struct trunk_device_ws *w = ws->device;
    const sy_trunk *trunk = ws->trunk;
    const device_layer *weights = &trunk->device->layer[layer];
    const sy_backend_kv of_layer = trunk_device_kv_layer(kv, layer, ws);
    sy_backend_op *op;
    device_ops ops;

    SY_ASSERT(batch->n_rows == w->batch.n_rows);
    if (batch->n_rows == 0) return SY_OK;
    trunk_ops_begin(&ops, ws);
    trunk_op_norm(&ops, trunk, none, w->xn16, w->x, &weights->norm1);
    if (trunk->shape.is_latent)
        trunk_op_project_latent(&ops, ws, layer);
    else
        trunk_op_project(&ops, ws, layer);
    op_put(&ops, ws, &of_layer);
    op_attend(&ops, ws, &of_layer, layer);
    if (trunk->shape.is_latent) trunk_op_raise_values(&ops, ws, layer);
    op = trunk_op(&ops, SY_BACKEND_ROWS);
    op->u.rows.to = w->attn16;
    op->u.rows.from = w->attn;
    op->u.rows.n = weights->o.k;
    trunk_op_linear(&ops, w->y, w->attn16, &weights->o, 1.0f);
    trunk_op_add(&ops, ws, none);
    return trunk_ops_run(&ops, err);
}
