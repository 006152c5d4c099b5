/* sy_trunk_pack.c - tensors, whatever they are encoded as, into panels, vectors and the embedding's
 * copy, with the pool's threads. Files are read in pieces under a guard, and a piece's pages are
 * let go of at once: no weight is in memory twice. */
#include "sy_trunk_load.h"

#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_pages.h"

enum {
    PACK_CHUNK = 16,      /* panels a task */
    PIECE_BYTES = 1 << 20 /* of the embedding */
};

static sy_status no_memory(const sy_tensor *tensor, sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory for %s", tensor->name);
}

static sy_status corrupt(const sy_tensor *tensor, sy_error *err)
{
    return sy_error_set(err, SY_EDATALOSS,
                        "%s: the file was cut while open, or a weight is not a finite number "
                        "(--allow-nan loads such weights)",
                        tensor->name);
}

static size_t line_up(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

void *trunk_take(sy_trunk *trunk, size_t bytes)
{
    void *data = bytes == 0 ? NULL : sy_pages_alloc(bytes);

    if (data == NULL) return NULL;
    SY_ASSERT(trunk->n_owned < trunk->owned_max);
    trunk->owned[trunk->n_owned++] = (trunk_memory){data, bytes};
    trunk->bytes += bytes;
    return data;
}

/* ---- matrices ---- */

/* A tensor on its way into panels. Each thread has scratch of its own for the rows that it works
 * on: as sy_tensor_read gives them, transposed, rounded. */
typedef struct pack_job {
    const sy_model *model;
    const sy_tensor *tensor;
    sy_dtype read;      /* what its rows are read as: as they read, or as they are encoded */
    size_t row_bytes;   /* of those */
    sy_panels w;        /* the whole matrix; of heads: key_up's first */
    sy_panels value_up; /* of heads: the first */
    size_t key_step, value_step;
    uint8_t *scratch; /* [threads][plain, turned, rounded] */
    size_t plain_bytes, turned_bytes, rounded_bytes;
    sy_status status; /* of the guarded runs */
} pack_job;

typedef struct pack_piece {
    const pack_job *job;
    size_t index; /* of the task */
    uint8_t *plain, *turned, *rounded;
} pack_piece;

/* Panel `panel` of w from its rows: rounded first, where w is not as stored. */
static sy_status pack_panel(const pack_job *job, const sy_panels *w, size_t panel,
                            const uint8_t *rows, uint8_t *rounded)
{
    const size_t n = SY_MIN((size_t)SY_PANEL, w->n - panel * SY_PANEL);
    uint8_t *dst = (uint8_t *)(uintptr_t)w->data + panel * sy_panel_bytes(w->dtype, w->k);

    if (!sy_model_are_sound(job->model, rows, job->read, n, w->k)) return SY_EDATALOSS;
    if (w->dtype != job->read) {
        const sy_status st = sy_quantize_rows(rounded, w->dtype, rows, job->read, n, w->k);
        if (st != SY_OK) return st;
        rows = rounded;
    }
    sy_panels_pack(dst, rows, w->dtype, (uint32_t)n, w->k, 0, 1); /* as a matrix of its own */
    return SY_OK;
}

static sy_status pack_guarded(void *arg)
{
    const pack_piece *p = arg;
    const sy_tensor *t = p->job->tensor;
    const sy_panels *w = &p->job->w;
    const size_t count = sy_panels_count(w->n), begin = p->index * PACK_CHUNK;
    const size_t end = SY_MIN(begin + PACK_CHUNK, count);
    const size_t last = SY_MIN(end * SY_PANEL, (size_t)w->n);

    for (size_t panel = begin; panel < end; panel++) {
        const size_t row = panel * SY_PANEL, n = SY_MIN((size_t)SY_PANEL, w->n - row);
        const uint8_t *rows = p->plain;

        if (p->plain == NULL)
            rows = t->data + row * p->job->row_bytes;
        else
            sy_tensor_read_as(p->plain, t, p->job->read, row, n);
        const sy_status st = pack_panel(p->job, w, panel, rows, p->rounded);
        if (st != SY_OK) return st;
    }
    sy_tensor_release_rows(t, begin * SY_PANEL, last - begin * SY_PANEL);
    return SY_OK;
}

/* dst: [n][m], src: [m][n], elements of `bytes`. */
static void transpose(uint8_t *dst, const uint8_t *src, size_t m, size_t n, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            memcpy(dst + (i * m + j) * bytes, src + (j * n + i) * bytes, bytes);
}

/* Both matrices of one head. */
static sy_status heads_guarded(void *arg)
{
    const pack_piece *p = arg;
    const pack_job *job = p->job;
    const sy_tensor *t = job->tensor;
    const size_t nope = job->w.k, n_rows = nope + job->value_up.n, bytes = sy_dtype_bytes(t->dtype);
    sy_panels key_up = job->w, value_up = job->value_up;
    sy_status st = SY_OK;

    key_up.data = (const uint8_t *)key_up.data + p->index * job->key_step;
    value_up.data = (const uint8_t *)value_up.data + p->index * job->value_step;
    sy_tensor_read(p->plain, t, p->index * n_rows, n_rows);
    transpose(p->turned, p->plain, nope, key_up.n, bytes);
    for (size_t i = 0; st == SY_OK && i < sy_panels_count(key_up.n); i++)
        st = pack_panel(job, &key_up, i, p->turned + i * SY_PANEL * nope * bytes, p->rounded);
    for (size_t i = 0; st == SY_OK && i < sy_panels_count(value_up.n); i++)
        st = pack_panel(job, &value_up, i, p->plain + (nope + i * SY_PANEL) * job->row_bytes,
                        p->rounded);
    if (st == SY_OK) sy_tensor_release_rows(t, p->index * n_rows, n_rows);
    return st;
}

static void run_piece(pack_job *job, size_t i, unsigned thread, sy_status (*guarded)(void *arg))
{
    const size_t of_thread = job->plain_bytes + job->turned_bytes + job->rounded_bytes;
    uint8_t *scratch = job->scratch == NULL ? NULL : job->scratch + thread * of_thread;
    pack_piece piece = {.job = job, .index = i};

    if (job->plain_bytes > 0) piece.plain = scratch;
    if (job->turned_bytes > 0) piece.turned = scratch + job->plain_bytes;
    if (job->rounded_bytes > 0) piece.rounded = scratch + job->plain_bytes + job->turned_bytes;
    const sy_status st = sy_map_guard(guarded, &piece, NULL);
    if (st != SY_OK) __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
}

static void pack_task(void *arg, size_t i, unsigned thread)
{
    run_piece(arg, i, thread, pack_guarded);
}

static void heads_task(void *arg, size_t i, unsigned thread)
{
    run_piece(arg, i, thread, heads_guarded);
}

/* Runs n tasks over a job whose panels and sizes are set. */
static sy_status run_job(const trunk_load *l, pack_job *job, size_t n,
                         void (*task)(void *arg, size_t i, unsigned thread), sy_error *err)
{
    const sy_tensor *t = job->tensor;
    const size_t of_thread = job->plain_bytes + job->turned_bytes + job->rounded_bytes;

    if (of_thread > 0) {
        job->scratch = aligned_alloc(64, sy_pool_threads(l->pool) * of_thread);
        if (job->scratch == NULL) return no_memory(t, err);
    }
    sy_pool_run(l->pool, n, task, job);
    free(job->scratch);
    sy_tensor_release(t);
    if (job->status == SY_OK) return SY_OK;
    if (job->status != SY_EINVAL) return corrupt(t, err);
    return sy_error_set(err, SY_EINVAL,
                        "%s: its weights are too large for %s: load them as stored (--weights)",
                        t->name, sy_dtype_name(job->w.dtype));
}

sy_status trunk_load_panels(const trunk_load *l, sy_panels *out, sy_role role, uint32_t layer,
                            sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->model, role, layer, 0);
    const uint32_t n = (uint32_t)t->shape[0], k = (uint32_t)t->shape[1];
    pack_job job = {.model = l->model, .tensor = t, .status = SY_OK};
    sy_dtype dtype;
    sy_status st;

    SY_TRY(trunk_choose_dtype(&dtype, l->trunk, t, err));
    job.read = sy_dtype_is_encoded(dtype) ? dtype : t->dtype;
    job.row_bytes = sy_dtype_row_bytes(job.read, k);
    job.w = (sy_panels){trunk_take(l->trunk, sy_panels_bytes(dtype, n, k)), dtype, n, k};
    if (job.w.data == NULL) return no_memory(t, err);
    *out = job.w;
    if (!sy_tensor_is_in_place(t)) job.plain_bytes = line_up(SY_PANEL * job.row_bytes);
    if (dtype != job.read) job.rounded_bytes = line_up(SY_PANEL * sy_dtype_row_bytes(dtype, k));
    SY_TRY(run_job(l, &job, (sy_panels_count(n) + PACK_CHUNK - 1) / PACK_CHUNK, pack_task, err));
out:
    return st;
}

sy_status trunk_load_heads(const trunk_load *l, trunk_layer *out, uint32_t layer, sy_error *err)
{
    const sy_model_desc *d = &l->trunk->desc;
    const sy_mla_desc *mla = &d->mla;
    const sy_tensor *t = sy_model_tensor(l->model, SY_ROLE_KV_B, layer, 0);
    pack_job job = {.model = l->model,
                    .tensor = t,
                    .read = t->dtype,
                    .row_bytes = sy_tensor_row_bytes(t),
                    .status = SY_OK};
    sy_dtype dtype;
    sy_status st;

    SY_TRY(trunk_choose_head_dtype(&dtype, l->trunk, t, err));
    job.key_step = line_up(sy_panels_bytes(dtype, mla->kv_rank, mla->nope_dim));
    job.value_step = line_up(sy_panels_bytes(dtype, mla->value_dim, mla->kv_rank));
    job.w = (sy_panels){trunk_take(l->trunk, d->n_heads * job.key_step), dtype, mla->kv_rank,
                        mla->nope_dim};
    job.value_up = (sy_panels){trunk_take(l->trunk, d->n_heads * job.value_step), dtype,
                               mla->value_dim, mla->kv_rank};
    if (job.w.data == NULL || job.value_up.data == NULL) return no_memory(t, err);
    out->key_up = (trunk_head_matrices){job.w, job.key_step};
    out->value_up = (trunk_head_matrices){job.value_up, job.value_step};
    job.plain_bytes = line_up(((size_t)mla->nope_dim + mla->value_dim) * job.row_bytes);
    job.turned_bytes = line_up(mla->nope_dim * job.row_bytes);
    if (dtype != t->dtype)
        job.rounded_bytes =
            line_up(SY_PANEL * sy_dtype_row_bytes(dtype, SY_MAX(mla->nope_dim, mla->kv_rank)));
    SY_TRY(run_job(l, &job, d->n_heads, heads_task, err));
out:
    return st;
}

/* ---- vectors and the embedding ---- */

typedef struct vector_job {
    const sy_model *model;
    const sy_tensor *tensor;
    uint8_t *plain;
    float *dst;
} vector_job;

static sy_status widen_guarded(void *arg)
{
    const vector_job *job = arg;
    const sy_tensor *t = job->tensor;

    sy_tensor_read(job->plain, t, 0, t->shape[0]);
    if (!sy_model_is_sound(job->model, job->plain, t->dtype, t->n_elements)) return SY_EDATALOSS;
    sy_dtype_widen(job->dst, job->plain, t->dtype, t->n_elements);
    return SY_OK;
}

sy_status trunk_load_vector(const trunk_load *l, float **out, sy_role role, uint32_t layer,
                            sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->model, role, layer, 0);
    vector_job job = {.model = l->model, .tensor = t};
    sy_status st;

    *out = NULL;
    if (t == NULL) return SY_OK;
    job.dst = trunk_take(l->trunk, t->n_elements * sizeof(float));
    job.plain = malloc(t->n_elements * sy_dtype_bytes(t->dtype));
    if (job.dst == NULL || job.plain == NULL) {
        free(job.plain);
        return no_memory(t, err);
    }
    *out = job.dst;
    st = sy_map_guard(widen_guarded, &job, NULL);
    free(job.plain);
    return st == SY_OK ? SY_OK : corrupt(t, err);
}

typedef struct embedding_job {
    uint8_t *dst;
    const sy_model *model;
    const sy_tensor *tensor;
    size_t row_bytes, rows; /* rows: a task's */
    sy_status status;
} embedding_job;

typedef struct embedding_piece {
    const embedding_job *job;
    uint64_t row, n;
} embedding_piece;

static sy_status copy_guarded(void *arg)
{
    const embedding_piece *p = arg;
    const sy_tensor *t = p->job->tensor;
    uint8_t *dst = p->job->dst + p->row * p->job->row_bytes;

    sy_tensor_read(dst, t, p->row, p->n);
    if (!sy_model_is_sound(p->job->model, dst, t->dtype, p->n * t->shape[1])) return SY_EDATALOSS;
    sy_tensor_release_rows(t, p->row, p->n);
    return SY_OK;
}

static void copy_task(void *arg, size_t i, unsigned thread)
{
    embedding_job *job = arg;
    const uint64_t row = i * job->rows;
    embedding_piece piece = {job, row, SY_MIN((uint64_t)job->rows, job->tensor->shape[0] - row)};
    const sy_status st = sy_map_guard(copy_guarded, &piece, NULL);

    (void)thread;
    if (st != SY_OK) __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
}

sy_status trunk_load_embedding(const trunk_load *l, sy_error *err)
{
    const sy_tensor *t = sy_model_tensor(l->model, SY_ROLE_EMBED, 0, 0);
    const size_t row_bytes = sy_tensor_row_bytes(t);
    embedding_job job = {.model = l->model,
                         .tensor = t,
                         .row_bytes = row_bytes,
                         .rows = SY_MAX(PIECE_BYTES / row_bytes, (size_t)1),
                         .status = SY_OK};

    job.dst = trunk_take(l->trunk, t->shape[0] * row_bytes);
    if (job.dst == NULL) return no_memory(t, err);
    l->trunk->embed = job.dst;
    l->trunk->embed_dtype = t->dtype;
    sy_pool_run(l->pool, (t->shape[0] + job.rows - 1) / job.rows, copy_task, &job);
    sy_tensor_release(t);
    return job.status == SY_OK ? SY_OK : corrupt(t, err);
}
