/* sy_cuda_ops_run.c - operations that were checked, as the calls of sy_cuda_trunk.h that they name:
 * a place becomes a pointer, and nothing else is decided here but how rows are spread. */
#include <cuda_runtime_api.h>

#include "sy_cuda_internal.h"
#include "sy_cuda_trunk.h"

_Static_assert((int)SY_BACKEND_NORM_RMS == (int)SY_CUDA_NORM_RMS &&
                   (int)SY_BACKEND_NORM_LAYER == (int)SY_CUDA_NORM_LAYER,
               "one numbering of norms");
_Static_assert((int)SY_BACKEND_HEADS_AS_THEY_ARE == (int)SY_CUDA_HEADS_AS_THEY_ARE &&
                   (int)SY_BACKEND_NORM_THEN_ROTATE == (int)SY_CUDA_NORM_THEN_ROTATE &&
                   (int)SY_BACKEND_ROTATE_THEN_NORM == (int)SY_CUDA_ROTATE_THEN_NORM,
               "one numbering of the norms of heads");

/* NULL: there is none. */
static void *at(sy_backend_ref ref)
{
    return ref.buffer == NULL ? NULL : ref.buffer->data + ref.offset;
}

static sy_cuda_row_count rows_of(const sy_backend_op *op)
{
    return (sy_cuda_row_count){at(op->n_rows), op->rows_max};
}

static sy_cuda_places places_of(const sy_backend_places *places)
{
    return (sy_cuda_places){at(places->position), at(places->sequence), at(places->angle)};
}

static sy_cuda_kv kv_of(const sy_backend_kv *kv)
{
    return (sy_cuda_kv){.data = at(kv->data),
                        .type = kv->is_bf16 ? SY_CUDA_KV_BF16 : SY_CUDA_KV_F32,
                        .n_heads = kv->n_heads,
                        .key_dim = kv->key_dim,
                        .value_dim = kv->value_dim,
                        .is_latent = kv->is_latent != 0,
                        .page = at(kv->page),
                        .pages_max = kv->pages_max};
}

/* ---- copies, and whole rows ---- */

static int copy(const sy_backend_op *op, cudaStream_t stream)
{
    const uint64_t n = op->u.copy.n;

    if (n == 0) return cudaSuccess;
    if (op->kind == SY_BACKEND_IN)
        return (int)cudaMemcpyAsync(at(op->u.copy.to), op->u.copy.host, n, cudaMemcpyHostToDevice,
                                    stream);
    if (op->kind == SY_BACKEND_OUT)
        return (int)cudaMemcpyAsync(op->u.copy.host, at(op->u.copy.from), n, cudaMemcpyDeviceToHost,
                                    stream);
    return (int)cudaMemcpyAsync(at(op->u.copy.to), at(op->u.copy.from), n, cudaMemcpyDeviceToDevice,
                                stream);
}

static int run_rows(const sy_backend_op *op, cudaStream_t stream)
{
    return sy_cuda_rows_from_f32(at(op->u.rows.to), at(op->u.rows.from), op->u.rows.n, op->rows_max,
                                 op->u.rows.n, stream);
}

static int embed(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);

    return sy_cuda_embed(at(op->u.embed.x), at(op->u.embed.embedding), at(op->u.embed.token),
                         op->u.embed.hidden, op->u.embed.factor, &rows, stream);
}

static int norm(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_cuda_norm form = {.form = (sy_cuda_norm_form)op->u.norm.form,
                               .weight = at(op->u.norm.weight),
                               .bias = at(op->u.norm.bias),
                               .eps = op->u.norm.eps,
                               .n = op->u.norm.n};

    return sy_cuda_norm_rows(at(op->u.norm.y), at(op->u.norm.y16), at(op->u.norm.x),
                             at(op->u.norm.row), &form, &rows, stream);
}

static int add(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);

    return sy_cuda_add(at(op->u.add.x), at(op->u.add.y), op->u.add.factor, at(op->u.add.row_factor),
                       op->u.add.hidden, &rows, stream);
}

static int shared_gate(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);

    return sy_cuda_shared_gate(at(op->u.shared_gate.gate), at(op->u.shared_gate.x),
                               at(op->u.shared_gate.w), op->u.shared_gate.hidden, &rows, stream);
}

/* ---- products ---- */

static int linear(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_cuda_matrix matrix = {.weights = at(op->u.linear.weights),
                                   .bias = at(op->u.linear.bias),
                                   .n = op->u.linear.matrix.n,
                                   .k = op->u.linear.matrix.k,
                                   .type = (sy_cuda_weights)op->u.linear.matrix.weights};
    const sy_cuda_variant variant = sy_cuda_variant_for(op->rows_max, matrix.type);

    if (op->kind == SY_BACKEND_SWIGLU_UP)
        return sy_cuda_linear_swiglu(at(op->u.linear.y), at(op->u.linear.x), &matrix, variant,
                                     &rows, stream);
    return sy_cuda_linear(at(op->u.linear.y), at(op->u.linear.x), &matrix, op->u.linear.divisor,
                          variant, &rows, stream);
}

static int linear_heads(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_backend_matrix *m = &op->u.linear_heads.matrix;
    const sy_cuda_head_matrices matrices = {.weights = at(op->u.linear_heads.weights),
                                            .type = (sy_cuda_weights)m->weights,
                                            .n_heads = op->u.linear_heads.n_heads,
                                            .n = m->n,
                                            .k = m->k,
                                            .n_tail = op->u.linear_heads.n_tail};

    return sy_cuda_linear_heads(at(op->u.linear_heads.y), at(op->u.linear_heads.x), &matrices,
                                &rows, stream);
}

/* ---- heads, the cache, attention ---- */

static int finish_heads(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_cuda_places places = places_of(&op->u.heads.places);
    const sy_cuda_heads heads = {.n_heads = op->u.heads.n_heads,
                                 .head_dim = op->u.heads.head_dim,
                                 .norm = (sy_cuda_head_norm)op->u.heads.norm,
                                 .norm_dim = op->u.heads.norm_dim,
                                 .norm_weight = at(op->u.heads.norm_weight),
                                 .norm_eps = op->u.heads.norm_eps,
                                 .clip = op->u.heads.clip,
                                 .rotary_at = op->u.heads.rotary_at,
                                 .rotary_dim = op->u.heads.rotary_dim,
                                 .interleaved = op->u.heads.interleaved != 0,
                                 .angles = at(op->u.heads.angles),
                                 .temperature_floor = op->u.heads.temperature_floor,
                                 .temperature_scale = op->u.heads.temperature_scale};

    return sy_cuda_finish_heads(at(op->u.heads.x), &heads, &places, &rows, stream);
}

static int kv_put(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_cuda_places places = places_of(&op->u.kv_put.places);
    const sy_cuda_kv kv = kv_of(&op->u.kv_put.kv);

    return sy_cuda_kv_put(&kv, at(op->u.kv_put.k), at(op->u.kv_put.v), &places, &rows, stream);
}

static int attend(const sy_backend_op *op, cudaStream_t stream)
{
    const sy_cuda_row_count rows = rows_of(op);
    const sy_cuda_places places = places_of(&op->u.attend.places);
    const sy_cuda_kv kv = kv_of(&op->u.attend.kv);
    const sy_cuda_attention attention = {.n_heads = op->u.attend.n_heads,
                                         .scale = op->u.attend.scale,
                                         .window = op->u.attend.window,
                                         .chunk = op->u.attend.chunk,
                                         .sinks = at(op->u.attend.sinks),
                                         .positions_max = op->u.attend.positions_max,
                                         .rows_together = op->u.attend.rows_together,
                                         .partial = at(op->u.attend.scratch)};

    return sy_cuda_attend(at(op->u.attend.out), at(op->u.attend.q), &kv, &places, &attention, &rows,
                          stream);
}

uint64_t sy_cuda_attend_scratch(uint32_t rows_max, uint32_t n_heads, uint32_t value_dim,
                                uint32_t positions_max)
{
    return sy_cuda_attention_partial_bytes(rows_max, n_heads, value_dim, positions_max);
}

/* ---- all of them ---- */

static int run(const sy_backend_op *op, cudaStream_t stream)
{
    switch ((sy_backend_op_kind)op->kind) {
    case SY_BACKEND_IN:
    case SY_BACKEND_OUT:
    case SY_BACKEND_COPY: return copy(op, stream);
    case SY_BACKEND_ROWS: return run_rows(op, stream);
    case SY_BACKEND_EMBED: return embed(op, stream);
    case SY_BACKEND_NORM: return norm(op, stream);
    case SY_BACKEND_ADD: return add(op, stream);
    case SY_BACKEND_SHARED_GATE: return shared_gate(op, stream);
    case SY_BACKEND_LINEAR:
    case SY_BACKEND_SWIGLU_UP: return linear(op, stream);
    case SY_BACKEND_LINEAR_HEADS: return linear_heads(op, stream);
    case SY_BACKEND_HEADS: return finish_heads(op, stream);
    case SY_BACKEND_KV_PUT: return kv_put(op, stream);
    case SY_BACKEND_ATTEND: return attend(op, stream);
    }
    return (int)cudaErrorInvalidValue;
}

int sy_cuda_op_run(const sy_backend_op *op, uint32_t index, cudaStream_t stream, char *why)
{
    const int error = run(op, stream);
    char what[48];

    if (error == cudaSuccess) return SY_BACKEND_OK;
    snprintf(what, sizeof(what), "operation %u (%s)", index, sy_cuda_op_name(op->kind));
    return sy_cuda_failed(why, (cudaError_t)error, what);
}
