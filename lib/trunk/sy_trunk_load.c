/* sy_trunk_load.c - which weights a trunk holds, by what the model's description says. */
#include "sy_trunk_load.h"

#include <stdlib.h>

#include "sy_pages.h"
#include "sy_rope.h"

sy_status trunk_choose_dtype(sy_dtype *out, const sy_trunk *trunk, const sy_tensor *t,
                             sy_error *err)
{
    const sy_dtype weights = trunk->precision.weights;

    *out = weights == SY_DTYPE_NONE || sy_dtype_is_encoded(weights) ? t->dtype : weights;
    if (sy_dtype_is_encoded(weights) && sy_tensor_encoded(t) == weights) *out = weights;
    if (*out == t->dtype || sy_dtype_is_encoded(*out) ||
        (sy_dtype_is_quant(*out) && !sy_dtype_is_quant(t->dtype)))
        return SY_OK;
    return sy_error_set(err, SY_EINVAL, "%s is stored as %s, not as %s: use --weights as-stored%s",
                        t->name, sy_dtype_name(t->dtype), sy_dtype_name(*out),
                        sy_dtype_is_quant(t->dtype) ? "" : ", q8 or q4");
}

sy_status trunk_choose_head_dtype(sy_dtype *out, const sy_trunk *trunk, const sy_tensor *t,
                                  sy_error *err)
{
    const sy_status st = trunk_choose_dtype(out, trunk, t, err);

    if (st == SY_OK && sy_dtype_is_encoded(*out)) *out = t->dtype; /* turned, a row has no blocks */
    return st;
}

static sy_status load_norm(const trunk_load *l, trunk_norm *out, sy_role weight, sy_role bias,
                           uint32_t layer, sy_error *err)
{
    sy_status st;

    SY_TRY(trunk_load_vector(l, &out->weight, weight, layer, err));
    SY_TRY(trunk_load_vector(l, &out->bias, bias, layer, err));
out:
    return st;
}

/* bias: SY_N_ROLES: there is no such role. */
static sy_status load_matrix(const trunk_load *l, trunk_matrix *out, sy_role weight, sy_role bias,
                             uint32_t layer, sy_error *err)
{
    sy_status st;

    SY_TRY(trunk_load_panels(l, &out->w, weight, layer, err));
    if (bias != SY_N_ROLES) SY_TRY(trunk_load_vector(l, &out->bias, bias, layer, err));
out:
    return st;
}

static sy_status load_attention(const trunk_load *l, trunk_layer *out, uint32_t i, sy_error *err)
{
    const int is_weightless = l->trunk->desc.qk_norm == SY_QK_NORM_WEIGHTLESS &&
                              (l->trunk->desc.layer[i] & SY_LAYER_NO_ROPE) == 0;
    sy_status st;

    SY_TRY(load_matrix(l, &out->q, SY_ROLE_Q, SY_ROLE_Q_BIAS, i, err));
    SY_TRY(load_matrix(l, &out->k, SY_ROLE_K, SY_ROLE_K_BIAS, i, err));
    SY_TRY(load_matrix(l, &out->v, SY_ROLE_V, SY_ROLE_V_BIAS, i, err));
    SY_TRY(trunk_load_vector(l, &out->q_norm, SY_ROLE_Q_NORM, i, err));
    SY_TRY(trunk_load_vector(l, &out->k_norm, SY_ROLE_K_NORM, i, err));
    SY_TRY(trunk_load_vector(l, &out->sinks, SY_ROLE_SINKS, i, err));
    if (is_weightless) out->q_norm = out->k_norm = l->trunk->ones;
out:
    return st;
}

static sy_status load_latent(const trunk_load *l, trunk_layer *out, uint32_t i, sy_error *err)
{
    const int has_low = l->trunk->desc.mla.q_rank > 0;
    const sy_role q = has_low ? SY_ROLE_Q_B : SY_ROLE_Q;
    sy_status st;

    if (has_low) SY_TRY(load_matrix(l, &out->q_a, SY_ROLE_Q_A, SY_N_ROLES, i, err));
    if (has_low) SY_TRY(trunk_load_vector(l, &out->q_a_norm, SY_ROLE_Q_A_NORM, i, err));
    SY_TRY(load_matrix(l, &out->q, q, SY_N_ROLES, i, err));
    SY_TRY(load_matrix(l, &out->k, SY_ROLE_KV_A, SY_N_ROLES, i, err));
    SY_TRY(trunk_load_vector(l, &out->kv_a_norm, SY_ROLE_KV_A_NORM, i, err));
    SY_TRY(trunk_load_heads(l, out, i, err));
out:
    return st;
}

/* A dense layer's MLP, or the shared experts of any other. */
static sy_status load_mlp(const trunk_load *l, trunk_layer *out, uint32_t i, sy_error *err)
{
    const sy_model_desc *d = &l->trunk->desc;
    const int is_dense = !sy_model_has_experts(d, i);
    const sy_role gate = is_dense ? SY_ROLE_DENSE_GATE : SY_ROLE_SHARED_GATE;
    const sy_role up = is_dense ? SY_ROLE_DENSE_UP : SY_ROLE_SHARED_UP;
    const sy_role down = is_dense ? SY_ROLE_DENSE_DOWN : SY_ROLE_SHARED_DOWN;
    sy_status st;

    if (!is_dense && d->shared_ffn == 0) return SY_OK;
    SY_TRY(load_matrix(l, &out->gate, gate, SY_N_ROLES, i, err));
    SY_TRY(load_matrix(l, &out->up, up, SY_N_ROLES, i, err));
    SY_TRY(load_matrix(l, &out->down, down, SY_N_ROLES, i, err));
    if (!is_dense && d->shared_gate)
        SY_TRY(trunk_load_vector(l, &out->mix, SY_ROLE_SHARED_MIX, i, err));
out:
    return st;
}

static sy_status load_layer(const trunk_load *l, uint32_t i, sy_error *err)
{
    trunk_layer *out = &l->trunk->layer[i];
    sy_status st;

    SY_TRY(load_norm(l, &out->norm1, SY_ROLE_NORM1, SY_ROLE_NORM1_BIAS, i, err));
    SY_TRY(load_norm(l, &out->norm2, SY_ROLE_NORM2, SY_ROLE_NORM2_BIAS, i, err));
    if (l->trunk->shape.is_latent)
        SY_TRY(load_latent(l, out, i, err));
    else
        SY_TRY(load_attention(l, out, i, err));
    SY_TRY(load_matrix(l, &out->o, SY_ROLE_O, SY_ROLE_O_BIAS, i, err));
    SY_TRY(load_mlp(l, out, i, err));
out:
    return st;
}

/* The embedding stays as stored and is looked up row by row; a tied head needs it packed as well.
 */
static sy_status load_ends(const trunk_load *l, sy_error *err)
{
    sy_trunk *trunk = l->trunk;
    const sy_role head = trunk->desc.tied_head ? SY_ROLE_EMBED : SY_ROLE_HEAD;
    sy_status st;

    SY_TRY(trunk_load_embedding(l, err));
    SY_TRY(load_norm(l, &trunk->final_norm, SY_ROLE_FINAL_NORM, SY_ROLE_FINAL_NORM_BIAS, 0, err));
    SY_TRY(load_matrix(l, &trunk->head, head, SY_ROLE_HEAD_BIAS, 0, err));
out:
    return st;
}

void trunk_set_rotation(sy_trunk *trunk, float *inv)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t half = d->rotary_dim / 2;

    for (int is_long = 0; is_long < 2; is_long++) {
        const int has_own = is_long && d->rope.type == SY_ROPE_LONG;

        sy_rope_frequencies(inv + is_long * half, d, is_long);
        trunk->inv_freq[is_long] = inv + is_long * half;
        trunk->rope_factor[is_long] =
            has_own ? d->rope.long_attention_factor : d->rope.attention_factor;
    }
}

/* What no file has: the frequencies, and the ones that a norm without weights multiplies by. */
static sy_status make_constants(sy_trunk *trunk)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t half = d->rotary_dim / 2;
    float *inv = trunk_take(trunk, SY_MAX(2 * half, (size_t)1) * sizeof(float));

    if (inv == NULL) return SY_ENOMEM;
    trunk_set_rotation(trunk, inv);
    if (d->qk_norm != SY_QK_NORM_WEIGHTLESS) return SY_OK;
    trunk->ones = trunk_take(trunk, d->head_dim * sizeof(float));
    if (trunk->ones == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < d->head_dim; i++) trunk->ones[i] = 1.0f;
    return SY_OK;
}

sy_status sy_trunk_open(sy_trunk **out, const sy_model *model, const sy_kernels *kernels,
                        sy_precision precision, sy_pool *pool, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_trunk *trunk = calloc(1, sizeof(*trunk));
    const trunk_load l = {trunk, model, pool};
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (trunk == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the trunk");
    trunk->ops = &trunk_cpu_ops;
    trunk->desc = *desc;
    trunk->shape = sy_kv_shape_of(desc);
    trunk->kernels = kernels;
    trunk->precision = precision;
    trunk->layer = calloc(desc->n_layers, sizeof(*trunk->layer));
    /* No role of a layer makes more than two allocations, and most layers have few roles. */
    trunk->owned_max = ((size_t)desc->n_layers + 1) * SY_N_ROLES;
    trunk->owned = calloc(trunk->owned_max, sizeof(*trunk->owned));
    if (trunk->layer == NULL || trunk->owned == NULL || make_constants(trunk) != SY_OK) {
        sy_error_set(err, st, "no memory for the trunk");
        goto out;
    }
    SY_TRY(load_ends(&l, err));
    for (uint32_t i = 0; i < desc->n_layers; i++) SY_TRY(load_layer(&l, i, err));
    *out = trunk;
    trunk = NULL;
out:
    sy_trunk_close(trunk);
    return st;
}

void trunk_cpu_close(sy_trunk *trunk)
{
    for (size_t i = 0; trunk->owned != NULL && i < trunk->n_owned; i++)
        sy_pages_free(trunk->owned[i].data, trunk->owned[i].bytes);
    free(trunk->owned);
    free(trunk->layer);
}
