/* sy_trunk_device_load.c - which weights a trunk on a GPU holds, and where: all memory is taken in
 * one piece. So the same walk over a checkpoint is made twice: first it refuses what the device's
 * kernels do not do and adds up sizes, then it fills in what was taken. */
#include "sy_trunk_device.h"
#include "sy_trunk_load.h"

enum {
    ALIGNMENT = 256,
    DIMENSION_MAX = 1 << 20, /* of a matrix */
    KEY_MAX = 576, /* SY_CUDA_KEY_MAX and SY_CUDA_VALUE_MAX, which only the plugin compiles */
    VALUE_MAX = 512
};

typedef struct device_load {
    sy_trunk *trunk;
    device_source source;
    sy_backend_buffer *to; /* NULL: the first walk */
    uint64_t used;
} device_load;

static trunk_machine *machine_of(const device_load *l)
{
    return l->source.machine;
}

static sy_backend_ref take(device_load *l, uint64_t bytes)
{
    const sy_backend_ref ref = {l->to, l->used};

    l->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return ref;
}

/* ---- what the kernels do ---- */

static sy_status refuse_weights(const device_load *l, const sy_tensor *t, const char *held,
                                sy_error *err)
{
    sy_error_set(
        err, SY_EUNIMPLEMENTED,
        "%s is stored as %s, and %s computes the trunk with %s: take a checkpoint in bf16, "
        "or leave the trunk on the processor (--trunk-device cpu:0)",
        t->name, t->dtype_name, machine_of(l)->name, held);
    sy_error_where(err, "DEVICE_WEIGHTS", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

static sy_status check_held(const device_load *l, const sy_tensor *t, sy_dtype dtype, sy_error *err)
{
    if (dtype == SY_BF16 || sy_dtype_is_quant(dtype) || sy_dtype_is_encoded(dtype)) return SY_OK;
    return refuse_weights(l, t, "matrices of bf16, q8, q4, fp8 or mxfp4", err);
}

static sy_status check_embedding(const device_load *l, const sy_tensor *t, sy_error *err)
{
    return t->dtype == SY_BF16 ? SY_OK : refuse_weights(l, t, "an embedding of bf16 alone", err);
}

/* Gate and Up are one matrix. */
static sy_status check_same(const device_load *l, const sy_tensor *gate, sy_dtype dtype,
                            const sy_tensor *up, sy_dtype up_dtype, sy_error *err)
{
    if (dtype == up_dtype) return SY_OK;
    sy_error_set(err, SY_EUNIMPLEMENTED,
                 "%s would be held as %s and %s as %s, and %s holds both as one matrix: leave the "
                 "trunk on the processor (--trunk-device cpu:0)",
                 gate->name, sy_dtype_name(dtype), up->name, sy_dtype_name(up_dtype),
                 machine_of(l)->name);
    sy_error_where(err, "DEVICE_WEIGHTS", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

static sy_status check_dimensions(const device_load *l, const sy_tensor *t, sy_error *err)
{
    if (t->shape[0] <= DIMENSION_MAX && t->shape[1] <= DIMENSION_MAX) return SY_OK;
    sy_error_set(
        err, SY_EUNIMPLEMENTED,
        "%s has %llu rows of %llu: %s has matrices of up to %d by as many: leave the trunk "
        "on the processor",
        t->name, (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
        machine_of(l)->name, (int)DIMENSION_MAX);
    sy_error_where(err, "DEVICE_SHAPE", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

static sy_status check_shape(const device_load *l, sy_error *err)
{
    const sy_kv_shape *shape = &l->trunk->shape;
    const uint32_t head_dim = l->trunk->desc.head_dim;

    if (shape->key_dim <= KEY_MAX && shape->value_dim <= VALUE_MAX && head_dim <= KEY_MAX &&
        l->trunk->desc.mla.value_dim <= VALUE_MAX && shape->n_heads > 0 &&
        l->trunk->desc.n_heads % shape->n_heads == 0)
        return SY_OK;
    sy_error_set(err, SY_EUNIMPLEMENTED,
                 "attention of %u heads of %u elements, with %u keys of %u elements and values of "
                 "%u: %s has room for keys of %d and values of %d: leave the trunk on the "
                 "processor",
                 l->trunk->desc.n_heads, head_dim, shape->n_heads, shape->key_dim, shape->value_dim,
                 machine_of(l)->name, (int)KEY_MAX, (int)VALUE_MAX);
    sy_error_where(err, "DEVICE_SHAPE", -1, -1, NULL);
    return SY_EUNIMPLEMENTED;
}

/* ---- one by one ---- */

sy_backend_matrix trunk_matrix_of(sy_backend_matrix_form form, uint32_t n, uint32_t k,
                                  sy_dtype dtype)
{
    static const sy_backend_weights of[] = {[SY_BF16] = SY_BACKEND_BF16,
                                            [SY_Q8] = SY_BACKEND_Q8,
                                            [SY_Q4] = SY_BACKEND_Q4,
                                            [SY_FP8] = SY_BACKEND_FP8,
                                            [SY_MXFP4] = SY_BACKEND_MXFP4};

    SY_ASSERT(dtype < SY_COUNT_OF(of) && (dtype == SY_BF16 || of[dtype] != SY_BACKEND_BF16));
    return (sy_backend_matrix){form, n, k, of[dtype]};
}

static uint64_t bytes_of(const device_load *l, sy_backend_matrix matrix)
{
    return machine_of(l)->backend->matrix_bytes(&matrix);
}

/* up SY_N_ROLES: there is none. */
static sy_status place_matrix(device_load *l, device_matrix *out, sy_role role, sy_role up,
                              uint32_t layer, sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->source.model, role, layer, 0);
    const sy_tensor *second =
        up == SY_N_ROLES ? NULL : sy_model_tensor(l->source.model, up, layer, 0);
    const sy_backend_matrix_form form = second == NULL ? SY_BACKEND_PLAIN : SY_BACKEND_GATE_UP;
    sy_dtype dtype, up_dtype;
    sy_status st;

    SY_TRY(trunk_choose_dtype(&dtype, l->trunk, t, err));
    SY_TRY(check_held(l, t, dtype, err));
    SY_TRY(check_dimensions(l, t, err));
    if (second != NULL) {
        SY_TRY(trunk_choose_dtype(&up_dtype, l->trunk, second, err));
        SY_TRY(check_same(l, t, dtype, second, up_dtype, err));
    }
    out->n = (uint32_t)t->shape[0];
    out->k = (uint32_t)t->shape[1];
    out->dtype = dtype;
    out->weights = take(l, bytes_of(l, trunk_matrix_of(form, out->n, out->k, dtype)));
    if (l->to != NULL) SY_TRY(trunk_fill_matrix(&l->source, out, t, second, err));
out:
    return st;
}

static sy_status place_heads(device_load *l, device_layer *out, uint32_t layer, sy_error *err)
{
    const sy_model_desc *d = &l->trunk->desc;
    const sy_mla_desc *mla = &d->mla;
    const sy_tensor *t = sy_model_tensor(l->source.model, SY_ROLE_KV_B, layer, 0);
    sy_dtype dtype;
    sy_status st;

    SY_TRY(trunk_choose_head_dtype(&dtype, l->trunk, t, err));
    SY_TRY(check_held(l, t, dtype, err));
    if (sy_dtype_bytes(t->dtype) == 0) return refuse_weights(l, t, "KV_B of plain numbers", err);
    out->heads_dtype = dtype;
    out->key_up = take(l, d->n_heads * bytes_of(l, trunk_matrix_of(SY_BACKEND_PLAIN, mla->kv_rank,
                                                                   mla->nope_dim, dtype)));
    out->value_up =
        take(l, d->n_heads * bytes_of(l, trunk_matrix_of(SY_BACKEND_PLAIN, mla->value_dim,
                                                         mla->kv_rank, dtype)));
    if (l->to != NULL) SY_TRY(trunk_fill_heads(&l->source, out, mla, t, err));
out:
    return st;
}

/* As fp32. A role that the model has not gives none. */
static sy_status place_vector(device_load *l, sy_backend_ref *out, sy_role role, uint32_t layer,
                              sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->source.model, role, layer, 0);

    *out = (sy_backend_ref){NULL, 0};
    if (t == NULL) return SY_OK;
    *out = take(l, t->n_elements * sizeof(float));
    return l->to == NULL ? SY_OK : trunk_fill_vector(&l->source, *out, t, err);
}

/* ---- which weights there are, as in sy_trunk_load.c ---- */

static sy_status place_norm(device_load *l, device_norm *out, sy_role weight, sy_role bias,
                            uint32_t layer, sy_error *err)
{
    sy_status st;

    SY_TRY(place_vector(l, &out->weight, weight, layer, err));
    SY_TRY(place_vector(l, &out->bias, bias, layer, err));
out:
    return st;
}

/* bias: SY_N_ROLES: there is no such role. */
static sy_status place_linear(device_load *l, device_matrix *out, sy_role role, sy_role bias,
                              uint32_t layer, sy_error *err)
{
    sy_status st;

    SY_TRY(place_matrix(l, out, role, SY_N_ROLES, layer, err));
    if (bias != SY_N_ROLES) SY_TRY(place_vector(l, &out->bias, bias, layer, err));
out:
    return st;
}

static sy_status place_attention(device_load *l, device_layer *out, uint32_t i, sy_error *err)
{
    sy_status st;

    SY_TRY(place_linear(l, &out->q, SY_ROLE_Q, SY_ROLE_Q_BIAS, i, err));
    SY_TRY(place_linear(l, &out->k, SY_ROLE_K, SY_ROLE_K_BIAS, i, err));
    SY_TRY(place_linear(l, &out->v, SY_ROLE_V, SY_ROLE_V_BIAS, i, err));
    SY_TRY(place_vector(l, &out->q_norm, SY_ROLE_Q_NORM, i, err));
    SY_TRY(place_vector(l, &out->k_norm, SY_ROLE_K_NORM, i, err));
    SY_TRY(place_vector(l, &out->sinks, SY_ROLE_SINKS, i, err));
out:
    return st;
}

static sy_status place_latent(device_load *l, device_layer *out, uint32_t i, sy_error *err)
{
    const int has_low = l->trunk->desc.mla.q_rank > 0;
    const sy_role q = has_low ? SY_ROLE_Q_B : SY_ROLE_Q;
    sy_status st;

    if (has_low) SY_TRY(place_linear(l, &out->q_a, SY_ROLE_Q_A, SY_N_ROLES, i, err));
    if (has_low) SY_TRY(place_vector(l, &out->q_a_norm, SY_ROLE_Q_A_NORM, i, err));
    SY_TRY(place_linear(l, &out->q, q, SY_N_ROLES, i, err));
    SY_TRY(place_linear(l, &out->k, SY_ROLE_KV_A, SY_N_ROLES, i, err));
    SY_TRY(place_vector(l, &out->kv_a_norm, SY_ROLE_KV_A_NORM, i, err));
    SY_TRY(place_heads(l, out, i, err));
out:
    return st;
}

static sy_status place_mlp(device_load *l, device_layer *out, uint32_t i, sy_error *err)
{
    const sy_model_desc *d = &l->trunk->desc;
    const int is_dense = !sy_model_has_experts(d, i);
    const sy_role gate = is_dense ? SY_ROLE_DENSE_GATE : SY_ROLE_SHARED_GATE;
    const sy_role up = is_dense ? SY_ROLE_DENSE_UP : SY_ROLE_SHARED_UP;
    const sy_role down = is_dense ? SY_ROLE_DENSE_DOWN : SY_ROLE_SHARED_DOWN;
    sy_status st;

    if (!is_dense && d->shared_ffn == 0) return SY_OK;
    SY_TRY(place_matrix(l, &out->gate_up, gate, up, i, err));
    SY_TRY(place_matrix(l, &out->down, down, SY_N_ROLES, i, err));
    if (!is_dense && d->shared_gate) SY_TRY(place_vector(l, &out->mix, SY_ROLE_SHARED_MIX, i, err));
out:
    return st;
}

static sy_status place_layer(device_load *l, uint32_t i, sy_error *err)
{
    device_layer *out = &l->trunk->device->layer[i];
    sy_status st;

    SY_TRY(place_norm(l, &out->norm1, SY_ROLE_NORM1, SY_ROLE_NORM1_BIAS, i, err));
    SY_TRY(place_norm(l, &out->norm2, SY_ROLE_NORM2, SY_ROLE_NORM2_BIAS, i, err));
    if (l->trunk->shape.is_latent)
        SY_TRY(place_latent(l, out, i, err));
    else
        SY_TRY(place_attention(l, out, i, err));
    SY_TRY(place_linear(l, &out->o, SY_ROLE_O, SY_ROLE_O_BIAS, i, err));
    SY_TRY(place_mlp(l, out, i, err));
out:
    return st;
}

/* A tied head is packed as well: rows are looked up in the embedding as it is. */
static sy_status place_ends(device_load *l, sy_error *err)
{
    struct trunk_device *device = l->trunk->device;
    const sy_role head = l->trunk->desc.tied_head ? SY_ROLE_EMBED : SY_ROLE_HEAD;
    const sy_tensor *embed = sy_model_tensor(l->source.model, SY_ROLE_EMBED, 0, 0);
    sy_status st;

    SY_TRY(check_embedding(l, embed, err));
    device->embed = take(l, embed->n_elements * sizeof(uint16_t));
    if (l->to != NULL) SY_TRY(trunk_fill_rows(&l->source, device->embed, embed, err));
    SY_TRY(place_norm(l, &device->final_norm, SY_ROLE_FINAL_NORM, SY_ROLE_FINAL_NORM_BIAS, 0, err));
    SY_TRY(place_linear(l, &device->head, head, SY_ROLE_HEAD_BIAS, 0, err));
out:
    return st;
}

static sy_status walk(device_load *l, sy_error *err)
{
    sy_status st;

    l->used = 0;
    SY_TRY(place_ends(l, err));
    for (uint32_t i = 0; i < l->trunk->desc.n_layers; i++) SY_TRY(place_layer(l, i, err));
out:
    return st;
}

sy_status trunk_device_load(sy_trunk *trunk, const sy_model *model, sy_pool *pool, sy_error *err)
{
    struct trunk_device *device = trunk->device;
    device_load l = {.trunk = trunk, .source = {device->machine, model, pool}};
    sy_status st;

    SY_TRY(check_shape(&l, err));
    SY_TRY(walk(&l, err));
    trunk->bytes = l.used;
    SY_TRY(trunk_device_take(&device->memory, device->machine, l.used, "the trunk's weights", err));
    l.to = device->memory;
    SY_TRY(walk(&l, err));
out:
    return st;
}
