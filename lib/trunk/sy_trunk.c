/* sy_trunk.c - the trunk's weights: what is loaded, how it is packed, and the operations around
 * attention. */
#include "sy_trunk_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"

/* ---- loading ---- */

typedef struct load {
    sy_trunk *trunk;
    const sy_model *model;
    sy_pool *pool;
} load;

typedef struct pack_job {
    const sy_tensor *tensor;
    void *dst;
    sy_status status; /* of the guarded run */
} pack_job;

enum { PACK_CHUNK = 16 }; /* panels a task */

typedef struct pack_piece {
    const pack_job *job;
    size_t begin, end;
} pack_piece;

static sy_status pack_guarded(void *arg)
{
    const pack_piece *p = arg;
    const sy_tensor *t = p->job->tensor;
    const uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    const size_t row_bytes = k * sy_dtype_bytes(t->dtype);
    const size_t first = p->begin * SY_PANEL, last = SY_MIN(p->end * SY_PANEL, (size_t)n);

    if (!sy_dtype_all_finite(t->data + first * row_bytes, t->dtype, (last - first) * k))
        return SY_EDATALOSS;
    sy_panels_pack(p->job->dst, t->data, t->dtype, n, k, p->begin, p->end);
    return SY_OK;
}

static void pack_task(void *arg, size_t i, unsigned thread)
{
    pack_job *job = arg;
    const size_t count = sy_panels_count((uint32_t)job->tensor->shape[0]);
    pack_piece piece = {job, i * PACK_CHUNK, SY_MIN((i + 1) * PACK_CHUNK, count)};
    sy_status st = sy_map_guard(pack_guarded, &piece, NULL);

    (void)thread;
    if (st != SY_OK) __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
}

static sy_status corrupt(const sy_tensor *tensor, sy_error *err)
{
    return sy_error_set(err, SY_EDATALOSS,
                        "%s: the file was cut while open, or a weight is not a finite number",
                        tensor->name);
}

static void *take(sy_trunk *trunk, size_t bytes)
{
    void *data = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

    if (data == NULL) return NULL;
    trunk->owned[trunk->n_owned++] = data;
    trunk->bytes += bytes;
    return data;
}

static sy_status load_panels(load *l, sy_panels *out, sy_role role, uint32_t layer, sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->model, role, layer, 0);
    const uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    pack_job job = {.tensor = t, .status = SY_OK};

    job.dst = take(l->trunk, sy_panels_bytes(t->dtype, n, k));
    if (job.dst == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %s", t->name);
    *out = (sy_panels){job.dst, t->dtype, n, k};
    sy_pool_run(l->pool, (sy_panels_count(n) + PACK_CHUNK - 1) / PACK_CHUNK, pack_task, &job);
    sy_tensor_release(t);
    return job.status == SY_OK ? SY_OK : corrupt(t, err);
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
    if (job.dst == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %s", job.tensor->name);
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

static sy_status copy_guarded(void *arg)
{
    const sy_trunk *trunk = arg;

    if (!sy_dtype_all_finite(trunk->embed->data, trunk->embed->dtype, trunk->embed->n_elements))
        return SY_EDATALOSS;
    memcpy(trunk->embed_copy, trunk->embed->data, trunk->embed->bytes);
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
    if (trunk->embed_copy == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for the embedding");
    if (sy_map_guard(copy_guarded, trunk, NULL) != SY_OK) return corrupt(trunk->embed, err);
    sy_tensor_release(trunk->embed);
    SY_TRY(load_vector(l, &trunk->final_norm, SY_ROLE_FINAL_NORM, 0, err));
    SY_TRY(
        load_panels(l, &trunk->head, trunk->desc.tied_head ? SY_ROLE_EMBED : SY_ROLE_HEAD, 0, err));
out:
    return st;
}

sy_status sy_trunk_open(sy_trunk **out, const sy_model *model, const sy_kernels *kernels,
                        sy_pool *pool, sy_error *err)
{
    const sy_model_desc *desc = sy_model_describe(model);
    sy_trunk *trunk = calloc(1, sizeof(*trunk));
    load l = {trunk, model, pool};
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (trunk == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the trunk");
    trunk->desc = *desc;
    trunk->kernels = kernels;
    trunk->layer = calloc(desc->n_layers, sizeof(*trunk->layer));
    trunk->owned = calloc((size_t)desc->n_layers * 8 + 4, sizeof(*trunk->owned));
    if (trunk->layer == NULL || trunk->owned == NULL) {
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

void sy_trunk_close(sy_trunk *trunk)
{
    if (trunk == NULL) return;
    for (size_t i = 0; trunk->owned != NULL && i < trunk->n_owned; i++) free(trunk->owned[i]);
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

uint64_t sy_trunk_bytes(const sy_trunk *trunk)
{
    return trunk->bytes;
}

/* ---- matrices with the pool ---- */

enum {
    MATMUL_CHUNK = 8
}; /* panels a task: enough weight streams for a lone row, enough tasks for many threads */

typedef struct matmul_job {
    const sy_kernels *kernels;
    float *y;
    const float *x;
    size_t y_stride, x_stride;
    const uint32_t *x_row;
    size_t rows;
    const sy_panels *w;
} matmul_job;

static void matmul_task(void *arg, size_t i, unsigned thread)
{
    const matmul_job *j = arg;
    const size_t count = sy_panels_count(j->w->n);

    (void)thread;
    j->kernels->matmul(j->y, j->y_stride, j->x, j->x_stride, j->x_row, j->rows, j->w,
                       i * MATMUL_CHUNK, SY_MIN((i + 1) * MATMUL_CHUNK, count));
}

void trunk_matmul(const sy_trunk *trunk, sy_pool *pool, float *y, const float *x,
                  const uint32_t *x_row, size_t rows, const sy_panels *w)
{
    matmul_job job = {trunk->kernels, y, x, w->n, w->k, x_row, rows, w};

    sy_pool_run(sy_kernels_is_small(rows, w->n, w->k, w->dtype) ? NULL : pool,
                (sy_panels_count(w->n) + MATMUL_CHUNK - 1) / MATMUL_CHUNK, matmul_task, &job);
}

/* ---- a step's ends ---- */

/* inv_freq as transformers has it: 1 / theta^(2i/d) in fp32, the angle an fp32 product. */
void sy_trunk_rebatch(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch)
{
    const size_t half = trunk->desc.head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const float inv =
            1.0f / powf(trunk->desc.rope_theta, (float)(2 * i) / (float)trunk->desc.head_dim);
        for (uint32_t t = 0; t < batch->n_rows; t++) {
            const float angle = (float)batch->position[t] * inv;
            ws->cos[t * half + i] = cosf(angle);
            ws->sin[t * half + i] = sinf(angle);
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

void sy_trunk_add(const sy_trunk *trunk, float *x, const float *y, uint32_t n_rows)
{
    trunk->kernels->add(x, y, (size_t)n_rows * trunk->desc.hidden);
}

void sy_trunk_head(const sy_trunk *trunk, sy_trunk_ws *ws, float *logits, const float *x,
                   const uint32_t *row, uint32_t n)
{
    const size_t hidden = trunk->desc.hidden;

    SY_ASSERT(n <= ws->rows_max);
    for (uint32_t i = 0; i < n; i++)
        trunk->kernels->rmsnorm(ws->xn + i * hidden, x + row[i] * hidden, trunk->final_norm,
                                trunk->desc.rms_eps, hidden);
    trunk_matmul(trunk, ws->pool, logits, ws->xn, NULL, n, &trunk->head);
}
