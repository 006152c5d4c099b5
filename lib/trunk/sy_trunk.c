/* sy_trunk.c - the trunk's weights: what is loaded, how it is packed, and the operations around
 * attention. */
#include "sy_trunk_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_pages.h"
#include "sy_rope.h"

/* ---- loading ---- */

typedef struct load {
    sy_trunk *trunk;
    const sy_model *model;
    sy_pool *pool;
} load;

/* Some panels of a matrix are packed by one task, whose pages of the file are let go of at once. */
typedef struct pack_job {
    const sy_tensor *tensor;
    sy_panels w;
    uint8_t *rounded; /* [threads] times the rows of one panel, where w is not as stored; or NULL */
    size_t rounded_bytes; /* of one thread */
    sy_status status;     /* of the guarded runs */
} pack_job;

enum { PACK_CHUNK = 16 }; /* panels a task */

typedef struct pack_piece {
    const pack_job *job;
    size_t begin, end;
    uint8_t *rounded; /* of this thread */
} pack_piece;

static sy_status round_and_pack(const pack_piece *p)
{
    const sy_panels *w = &p->job->w;
    const sy_tensor *t = p->job->tensor;
    const size_t row_bytes = sy_dtype_row_bytes(t->dtype, w->k);
    const size_t panel_bytes = sy_panel_bytes(w->dtype, w->k);

    for (size_t panel = p->begin; panel < p->end; panel++) {
        const size_t row = panel * SY_PANEL, n = SY_MIN((size_t)SY_PANEL, w->n - row);
        const sy_status st =
            sy_quantize_rows(p->rounded, w->dtype, t->data + row * row_bytes, t->dtype, n, w->k);
        if (st != SY_OK) return st;
        sy_panels_pack((uint8_t *)(uintptr_t)w->data + panel * panel_bytes, p->rounded, w->dtype,
                       (uint32_t)n, w->k, 0, 1); /* the panel as a matrix of its own */
    }
    return SY_OK;
}

static sy_status pack_guarded(void *arg)
{
    const pack_piece *p = arg;
    const sy_panels *w = &p->job->w;
    const sy_tensor *t = p->job->tensor;
    const size_t row_bytes = sy_dtype_row_bytes(t->dtype, w->k);
    const size_t first = p->begin * SY_PANEL, last = SY_MIN(p->end * SY_PANEL, (size_t)w->n);
    sy_status st = SY_OK;

    if (!sy_dtype_all_finite(t->data + first * row_bytes, t->dtype, (last - first) * w->k))
        return SY_EDATALOSS;
    if (w->dtype != t->dtype)
        st = round_and_pack(p);
    else
        sy_panels_pack((void *)(uintptr_t)w->data, t->data, t->dtype, w->n, w->k, p->begin, p->end);
    sy_tensor_release_part(t, first * row_bytes, last * row_bytes);
    return st;
}

static void pack_task(void *arg, size_t i, unsigned thread)
{
    pack_job *job = arg;
    const size_t count = sy_panels_count(job->w.n);
    uint8_t *rounded = job->rounded == NULL ? NULL : job->rounded + thread * job->rounded_bytes;
    pack_piece piece = {job, i * PACK_CHUNK, SY_MIN((i + 1) * PACK_CHUNK, count), rounded};
    sy_status st = sy_map_guard(pack_guarded, &piece, NULL);

    if (st != SY_OK) __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
}

static sy_status no_memory(const sy_tensor *tensor, sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory for %s", tensor->name);
}

static sy_status corrupt(const sy_tensor *tensor, sy_error *err)
{
    return sy_error_set(err, SY_EDATALOSS,
                        "%s: the file was cut while open, or a weight is not a finite number",
                        tensor->name);
}

static sy_status packed(const pack_job *job, sy_error *err)
{
    if (job->status == SY_OK) return SY_OK;
    if (job->status != SY_EINVAL) return corrupt(job->tensor, err);
    return sy_error_set(err, SY_EINVAL,
                        "%s: its weights are too large for %s: load them as stored (--weights)",
                        job->tensor->name, sy_dtype_name(job->w.dtype));
}

static void *take(sy_trunk *trunk, size_t bytes)
{
    void *data = bytes == 0 ? NULL : sy_pages_alloc(bytes);

    if (data == NULL) return NULL;
    trunk->owned[trunk->n_owned++] = (trunk_memory){data, bytes};
    trunk->bytes += bytes;
    return data;
}

static sy_status load_panels(load *l, sy_panels *out, sy_role role, uint32_t layer, sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->model, role, layer, 0);
    const uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    const sy_dtype weights = l->trunk->precision.weights;
    const sy_dtype dtype = weights == SY_DTYPE_NONE ? t->dtype : weights;
    pack_job job = {.tensor = t, .w = {NULL, dtype, n, k}, .status = SY_OK};
    sy_status st;

    if (dtype != t->dtype && !sy_dtype_is_quant(dtype))
        return sy_error_set(err, SY_EINVAL,
                            "%s is stored as %s, not as %s: use --weights as-stored, q8 or q4",
                            t->name, sy_dtype_name(t->dtype), sy_dtype_name(dtype));
    job.w.data = take(l->trunk, sy_panels_bytes(dtype, n, k));
    if (job.w.data == NULL) return no_memory(t, err);
    if (dtype != t->dtype) {
        job.rounded_bytes = (SY_PANEL * sy_dtype_row_bytes(dtype, k) + 63) & ~(size_t)63;
        job.rounded = malloc(sy_pool_threads(l->pool) * job.rounded_bytes);
        if (job.rounded == NULL) return no_memory(t, err);
    }
    *out = job.w;
    sy_pool_run(l->pool, (sy_panels_count(n) + PACK_CHUNK - 1) / PACK_CHUNK, pack_task, &job);
    sy_tensor_release(t);
    st = packed(&job, err);
    free(job.rounded);
    return st;
}

typedef struct vector_job {
    const sy_tensor *tensor;
    float *dst;
} vector_job;

static sy_status widen_guarded(void *arg)
{
    const vector_job *job = arg;

    if (!sy_dtype_all_finite(job->tensor->data, job->tensor->dtype, job->tensor->n_elements))
        return SY_EDATALOSS;
    sy_dtype_widen(job->dst, job->tensor->data, job->tensor->dtype, job->tensor->n_elements);
    return SY_OK;
}

/* Norm weights are kept as fp32. A role that the model has not gives NULL. */
static sy_status load_vector(load *l, float **out, sy_role role, uint32_t layer, sy_error *err)
{
    vector_job job = {.tensor = sy_model_tensor(l->model, role, layer, 0)};

    *out = NULL;
    if (job.tensor == NULL) return SY_OK;
    job.dst = take(l->trunk, job.tensor->n_elements * sizeof(float));
    if (job.dst == NULL) return no_memory(job.tensor, err);
    *out = job.dst;
    return sy_map_guard(widen_guarded, &job, NULL) == SY_OK ? SY_OK : corrupt(job.tensor, err);
}

static sy_status load_layer(load *l, uint32_t i, sy_error *err)
{
    trunk_layer *layer = &l->trunk->layer[i];
    sy_status st;

    SY_TRY(load_vector(l, &layer->norm1, SY_ROLE_NORM1, i, err));
    SY_TRY(load_vector(l, &layer->norm2, SY_ROLE_NORM2, i, err));
    SY_TRY(load_vector(l, &layer->q_norm, SY_ROLE_Q_NORM, i, err));
    SY_TRY(load_vector(l, &layer->k_norm, SY_ROLE_K_NORM, i, err));
    SY_TRY(load_panels(l, &layer->q, SY_ROLE_Q, i, err));
    SY_TRY(load_panels(l, &layer->k, SY_ROLE_K, i, err));
    SY_TRY(load_panels(l, &layer->v, SY_ROLE_V, i, err));
    SY_TRY(load_panels(l, &layer->o, SY_ROLE_O, i, err));
out:
    return st;
}

/* In pieces whose pages are let go of, so that it is never in memory twice. */
static sy_status copy_guarded(void *arg)
{
    enum { PIECE_BYTES = 1 << 20 };
    const sy_trunk *trunk = arg;
    const sy_tensor *t = trunk->embed;

    for (uint64_t at = 0; at < t->bytes; at += PIECE_BYTES) {
        const uint64_t n = SY_MIN((uint64_t)PIECE_BYTES, t->bytes - at);
        if (!sy_dtype_all_finite(t->data + at, t->dtype, n / sy_dtype_bytes(t->dtype)))
            return SY_EDATALOSS;
        memcpy(trunk->embed_copy + at, t->data + at, n);
        sy_tensor_release_part(t, at, at + n);
    }
    return SY_OK;
}

/* The embedding stays as stored and is looked up row by row; a tied head needs it packed as well.
 */
static sy_status load_ends(load *l, sy_error *err)
{
    sy_trunk *trunk = l->trunk;
    sy_status st;

    trunk->embed = sy_model_tensor(l->model, SY_ROLE_EMBED, 0, 0);
    trunk->embed_copy = take(trunk, trunk->embed->bytes);
    if (trunk->embed_copy == NULL) return no_memory(trunk->embed, err);
    if (sy_map_guard(copy_guarded, trunk, NULL) != SY_OK) return corrupt(trunk->embed, err);
    sy_tensor_release(trunk->embed);
    SY_TRY(load_vector(l, &trunk->final_norm, SY_ROLE_FINAL_NORM, 0, err));
    SY_TRY(
        load_panels(l, &trunk->head, trunk->desc.tied_head ? SY_ROLE_EMBED : SY_ROLE_HEAD, 0, err));
out:
    return st;
}

sy_status sy_trunk_open(sy_trunk **out, const sy_model *model, const sy_kernels *kernels,
                        sy_precision precision, sy_pool *pool, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_trunk *trunk = calloc(1, sizeof(*trunk));
    load l = {trunk, model, pool};
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (trunk == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the trunk");
    trunk->desc = *desc;
    trunk->kernels = kernels;
    trunk->precision = precision;
    trunk->layer = calloc(desc->n_layers, sizeof(*trunk->layer));
    trunk->owned = calloc((size_t)desc->n_layers * 8 + 4, sizeof(*trunk->owned));
    if (trunk->layer == NULL || trunk->owned == NULL) {
        sy_error_set(err, st, "no memory for the trunk");
        goto out;
    }
    trunk->inv_freq = take(trunk, desc->rotary_dim / 2 * sizeof(float));
    if (trunk->inv_freq == NULL) {
        sy_error_set(err, st, "no memory for the trunk");
        goto out;
    }
    sy_rope_frequencies(trunk->inv_freq, desc);
    SY_TRY(load_ends(&l, err));
    for (uint32_t i = 0; i < desc->n_layers; i++) SY_TRY(load_layer(&l, i, err));
    *out = trunk;
    trunk = NULL;
out:
    sy_trunk_close(trunk);
    return st;
}

void sy_trunk_close(sy_trunk *trunk)
{
    if (trunk == NULL) return;
    for (size_t i = 0; trunk->owned != NULL && i < trunk->n_owned; i++)
        sy_pages_free(trunk->owned[i].data, trunk->owned[i].bytes);
    free(trunk->owned);
    free(trunk->layer);
    free(trunk);
}

const sy_model_desc *sy_trunk_describe(const sy_trunk *trunk)
{
    return &trunk->desc;
}

const sy_kernels *sy_trunk_kernels(const sy_trunk *trunk)
{
    return trunk->kernels;
}

sy_precision sy_trunk_precision(const sy_trunk *trunk)
{
    return trunk->precision;
}

uint64_t sy_trunk_bytes(const sy_trunk *trunk)
{
    return trunk->bytes;
}

/* ---- a step's ends ---- */

/* The angle is an fp32 product, as transformers has it. */
void sy_trunk_rebatch(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch)
{
    const size_t half = trunk->desc.rotary_dim / 2;
    const float factor = trunk->desc.rope.attention_factor;

    for (size_t i = 0; i < half; i++) {
        for (uint32_t t = 0; t < batch->n_rows; t++) {
            const float angle = (float)batch->position[t] * trunk->inv_freq[i];
            ws->cos[t * half + i] = cosf(angle) * factor;
            ws->sin[t * half + i] = sinf(angle) * factor;
        }
    }
}

void sy_trunk_begin(const sy_trunk *trunk, sy_trunk_ws *ws, float *x, const sy_batch *batch)
{
    const size_t hidden = trunk->desc.hidden;
    const size_t row_bytes = hidden * sy_dtype_bytes(trunk->embed->dtype);

    SY_ASSERT(batch->n_rows <= ws->rows_max);
    for (uint32_t t = 0; t < batch->n_rows; t++)
        sy_dtype_widen(x + t * hidden, trunk->embed_copy + batch->token[t] * row_bytes,
                       trunk->embed->dtype, hidden);
    if (trunk->desc.embedding_multiplier != 1.0f)
        for (size_t i = 0; i < batch->n_rows * hidden; i++)
            x[i] *= trunk->desc.embedding_multiplier;
    sy_trunk_rebatch(trunk, ws, batch);
}

void sy_trunk_moe_input(const sy_trunk *trunk, uint32_t layer, float *xn, const float *x,
                        uint32_t n_rows)
{
    const size_t hidden = trunk->desc.hidden;

    for (uint32_t t = 0; t < n_rows; t++)
        trunk->kernels->rmsnorm(xn + t * hidden, x + t * hidden, trunk->layer[layer].norm2,
                                trunk->desc.rms_eps, hidden);
}

void trunk_add(const sy_trunk *trunk, float *x, const float *y, size_t n)
{
    if (trunk->desc.residual_multiplier == 1.0f)
        trunk->kernels->add(x, y, n);
    else
        trunk->kernels->axpy(x, y, trunk->desc.residual_multiplier, n);
}

void sy_trunk_add(const sy_trunk *trunk, float *x, const float *y, uint32_t n_rows)
{
    trunk_add(trunk, x, y, (size_t)n_rows * trunk->desc.hidden);
}

void sy_trunk_head(const sy_trunk *trunk, sy_trunk_ws *ws, float *logits, const float *x,
                   const uint32_t *row, uint32_t n)
{
    const size_t hidden = trunk->desc.hidden;

    SY_ASSERT(n <= ws->rows_max);
    for (uint32_t i = 0; i < n; i++)
        trunk->kernels->rmsnorm(ws->xn + i * hidden, x + row[i] * hidden, trunk->final_norm,
                                trunk->desc.rms_eps, hidden);
    trunk_matmuls(trunk, ws, &(trunk_product){logits, &trunk->head}, 1, ws->xn, n);
    if (trunk->desc.logits_scaling == 1.0f) return;
    for (size_t i = 0; i < (size_t)n * trunk->desc.vocab; i++)
        logits[i] /= trunk->desc.logits_scaling;
}
