/* sy_trunk_device_mla.c - attention over latents on a GPU, absorbed as sy_project.c explains: the
 * cache holds one vector a token, which is key and value of every head. */
#include "sy_trunk_device.h"

/* Of DeepSeek's norms of latents, whatever the configuration says of others. */
#define LATENT_EPS 1e-6f

/* What rotates: the last elements of each vector, of latents behind a norm of the others. */
static void op_rotate(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer, sy_backend_ref x,
                      uint32_t n_heads, uint32_t head_dim)
{
    const sy_model_desc *d = &ws->trunk->desc;
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_HEADS);

    op->u.heads.x = x;
    op->u.heads.places.position = ws->device->batch.places.position;
    op->u.heads.places.angle = ws->device->batch.places.angle;
    op->u.heads.n_heads = n_heads;
    op->u.heads.head_dim = head_dim;
    op->u.heads.norm = SY_BACKEND_HEADS_AS_THEY_ARE;
    if (!trunk_layer_rotates(d, layer)) return;
    op->u.heads.angles = ws->device->batch.angles;
    op->u.heads.angle_rows = ops->n_rows;
    op->u.heads.rotary_at = head_dim - d->rotary_dim;
    op->u.heads.rotary_dim = d->rotary_dim;
    op->u.heads.interleaved = (uint32_t)d->rope.interleaved;
}

/* The products of all heads with one of their matrices; what lies behind the inputs of a head goes
 * on behind its outputs. */
static void op_heads(device_ops *ops, const sy_trunk_ws *ws, sy_backend_ref y, sy_backend_ref x,
                     sy_backend_ref weights, sy_backend_matrix matrix, uint32_t n_tail)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_LINEAR_HEADS);

    op->u.linear_heads.y = y;
    op->u.linear_heads.x = x;
    op->u.linear_heads.weights = weights;
    op->u.linear_heads.n_heads = ws->trunk->desc.n_heads;
    op->u.linear_heads.matrix = matrix;
    op->u.linear_heads.n_tail = n_tail;
}

void trunk_op_project_latent(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer)
{
    const sy_backend_ref none = {NULL, 0};
    const struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const device_layer *weights = &ws->trunk->device->layer[layer];
    const int has_low = d->mla.q_rank > 0;
    sy_backend_op *latent;

    if (has_low) {
        trunk_op_linear(ops, w->q_low, w->xn16, &weights->q_a, 1.0f);
        trunk_op_rms(ops, none, w->q_low16, w->q_low, weights->q_a_norm, LATENT_EPS, d->mla.q_rank);
    }
    trunk_op_linear(ops, w->q, has_low ? w->q_low16 : w->xn16, &weights->q, 1.0f);
    trunk_op_linear(ops, w->k, w->xn16, &weights->k, 1.0f);
    op_rotate(ops, ws, layer, w->k, 1, d->mla.kv_rank + d->rotary_dim);
    latent = &ops->op[ops->n - 1];
    latent->u.heads.norm = SY_BACKEND_NORM_THEN_ROTATE;
    latent->u.heads.norm_dim = d->mla.kv_rank;
    latent->u.heads.norm_weight = weights->kv_a_norm;
    latent->u.heads.norm_eps = LATENT_EPS;
    if (trunk_layer_rotates(d, layer)) op_rotate(ops, ws, layer, w->q, d->n_heads, d->head_dim);
    op_heads(
        ops, ws, w->query, w->q, weights->key_up,
        trunk_matrix_of(SY_BACKEND_PLAIN, d->mla.kv_rank, d->mla.nope_dim, weights->heads_dtype),
        d->rotary_dim);
}

void trunk_op_raise_values(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer)
{
    const sy_mla_desc *mla = &ws->trunk->desc.mla;
    const device_layer *weights = &ws->trunk->device->layer[layer];

    op_heads(ops, ws, ws->device->attn, ws->device->attended, weights->value_up,
             trunk_matrix_of(SY_BACKEND_PLAIN, mla->value_dim, mla->kv_rank, weights->heads_dtype),
             0);
}
