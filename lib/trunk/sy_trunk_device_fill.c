/* sy_trunk_device_fill.c - tensors of a checkpoint, whatever they are encoded as, into memory of a
 * GPU that was taken for them. Files are read in pieces by the pool's threads, under a guard, and
 * the device packs what it is given. */
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "sy_trunk_device.h"

#define PIECE_BYTES ((size_t)8 << 20) /* of a tensor on its way */
#define TASK_BYTES  ((size_t)1 << 20) /* what a thread reads of it */
enum { PACKED_ROWS = 16 };

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

/* ---- reading ---- */

/* Rows [row, row + n) of a tensor, in tasks of some; with nope_dim rows are those of heads, each
 * nope_dim + value_dim of them, and the first nope_dim are turned, in their place. */
typedef struct read_job {
    const sy_model *model;
    const sy_tensor *tensor;
    uint8_t *dst;
    uint64_t row, n, step;
    size_t row_bytes;
    uint32_t nope_dim, value_dim;
    uint8_t *turned; /* [threads]: of one head */
    sy_status status;
} read_job;

typedef struct read_piece {
    const read_job *job;
    uint64_t begin, n;
    uint8_t *turned;
} read_piece;

/* [m][n] to [n][m], by way of scratch. */
static void turn(uint8_t *rows, uint8_t *scratch, size_t m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            memcpy(scratch + (i * m + j) * sizeof(uint16_t), rows + (j * n + i) * sizeof(uint16_t),
                   sizeof(uint16_t));
    memcpy(rows, scratch, m * n * sizeof(uint16_t));
}

static sy_status read_guarded(void *arg)
{
    const read_piece *p = arg;
    const read_job *job = p->job;
    const sy_tensor *t = job->tensor;
    uint8_t *dst = job->dst + p->begin * job->row_bytes;
    const size_t head_bytes = ((size_t)job->nope_dim + job->value_dim) * job->row_bytes;

    sy_tensor_read(dst, t, job->row + p->begin, p->n);
    if (!sy_model_is_sound(job->model, dst, t->dtype, p->n * t->shape[1])) return SY_EDATALOSS;
    sy_tensor_release_rows(t, job->row + p->begin, p->n);
    for (size_t at = 0; job->nope_dim > 0 && at < p->n * job->row_bytes; at += head_bytes)
        turn(dst + at, p->turned, job->nope_dim, t->shape[1]);
    return SY_OK;
}

static void read_task(void *arg, size_t i, unsigned thread)
{
    read_job *job = arg;
    const size_t turned_bytes = job->nope_dim * job->row_bytes;
    const uint64_t begin = i * job->step;
    read_piece piece = {.job = job, .begin = begin, .n = SY_MIN(job->step, job->n - begin)};

    if (job->turned != NULL) piece.turned = job->turned + thread * turned_bytes;
    const sy_status st = sy_map_guard(read_guarded, &piece, NULL);
    if (st != SY_OK) __atomic_store_n(&job->status, st, __ATOMIC_RELAXED);
}

static sy_status read_rows(const device_source *s, read_job *job, uint64_t row, uint64_t n,
                           sy_error *err)
{
    job->row = row;
    job->n = n;
    job->status = SY_OK;
    sy_pool_run(s->pool, (n + job->step - 1) / job->step, read_task, job);
    return job->status == SY_OK ? SY_OK : corrupt(job->tensor, err);
}

/* Of `unit` rows together, for pieces of *n_rows. dst: the caller frees. */
static sy_status open_job(read_job *job, uint64_t *n_rows, const device_source *s,
                          const sy_tensor *t, uint64_t unit, sy_error *err)
{
    const size_t row_bytes = sy_tensor_row_bytes(t), unit_bytes = unit * row_bytes;

    *job = (read_job){.model = s->model, .tensor = t, .row_bytes = row_bytes};
    *n_rows = SY_MIN(SY_MAX(PIECE_BYTES / unit_bytes, (size_t)1) * unit, t->shape[0]);
    job->step = SY_MAX(TASK_BYTES / unit_bytes, (size_t)1) * unit;
    job->dst = malloc(*n_rows * row_bytes);
    return job->dst != NULL ? SY_OK : no_memory(t, err);
}

/* ---- matrices ---- */

sy_status trunk_device_write(trunk_machine *machine, sy_backend_ref to,
                             const sy_backend_matrix *matrix, uint32_t row, uint32_t n_rows,
                             const void *rows, const void *up, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    return trunk_device_result(
        machine, machine->backend->matrix_write(to, matrix, row, n_rows, rows, up, why), why, err);
}

sy_status trunk_fill_matrix(const device_source *s, sy_backend_ref to,
                            const sy_backend_matrix *matrix, const sy_tensor *tensor,
                            const sy_tensor *up, sy_error *err)
{
    read_job job = {0}, up_job = {0};
    uint64_t step = 0;
    sy_status st;

    SY_TRY(open_job(&job, &step, s, tensor, PACKED_ROWS, err));
    if (up != NULL) SY_TRY(open_job(&up_job, &step, s, up, PACKED_ROWS, err));
    for (uint64_t row = 0; row < matrix->n; row += step) {
        const uint32_t n = (uint32_t)SY_MIN(step, matrix->n - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        if (up != NULL) SY_TRY(read_rows(s, &up_job, row, n, err));
        SY_TRY(
            trunk_device_write(s->machine, to, matrix, (uint32_t)row, n, job.dst, up_job.dst, err));
    }
    sy_tensor_release(tensor);
    if (up != NULL) sy_tensor_release(up);
out:
    free(job.dst);
    free(up_job.dst);
    return st;
}

/* Of one head, whose keys have been turned. */
static sy_status write_head(const device_source *s, const device_layer *layer,
                            const sy_mla_desc *mla, uint32_t head, const uint8_t *rows,
                            sy_error *err)
{
    const sy_backend *backend = s->machine->backend;
    const sy_backend_matrix key_up = {SY_BACKEND_PLAIN, mla->kv_rank, mla->nope_dim};
    const sy_backend_matrix value_up = {SY_BACKEND_PLAIN, mla->value_dim, mla->kv_rank};
    const size_t key_bytes = (size_t)mla->nope_dim * mla->kv_rank * sizeof(uint16_t);
    sy_status st;

    SY_TRY(trunk_device_write(s->machine,
                              trunk_ref(layer->key_up, head * backend->matrix_bytes(&key_up)),
                              &key_up, 0, key_up.n, rows, NULL, err));
    SY_TRY(trunk_device_write(s->machine,
                              trunk_ref(layer->value_up, head * backend->matrix_bytes(&value_up)),
                              &value_up, 0, value_up.n, rows + key_bytes, NULL, err));
out:
    return st;
}

sy_status trunk_fill_heads(const device_source *s, const device_layer *layer,
                           const sy_mla_desc *mla, const sy_tensor *t, sy_error *err)
{
    const uint32_t of_head = mla->nope_dim + mla->value_dim;
    const unsigned threads = s->pool == NULL ? 1 : sy_pool_threads(s->pool);
    uint64_t step = 0;
    read_job job = {0};
    sy_status st;

    SY_TRY(open_job(&job, &step, s, t, of_head, err));
    job.nope_dim = mla->nope_dim;
    job.value_dim = mla->value_dim;
    job.turned = malloc(threads * job.nope_dim * job.row_bytes);
    if (job.turned == NULL) {
        st = no_memory(t, err);
        goto out;
    }
    for (uint64_t row = 0; row < t->shape[0]; row += step) {
        const uint64_t n = SY_MIN(step, t->shape[0] - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        for (uint64_t i = 0; i < n; i += of_head)
            SY_TRY(write_head(s, layer, mla, (uint32_t)((row + i) / of_head),
                              job.dst + i * job.row_bytes, err));
    }
    sy_tensor_release(t);
out:
    free(job.turned);
    free(job.dst);
    return st;
}

sy_status trunk_fill_rows(const device_source *s, sy_backend_ref to, const sy_tensor *t,
                          sy_error *err)
{
    uint64_t step = 0;
    read_job job = {0};
    sy_status st;

    SY_TRY(open_job(&job, &step, s, t, 1, err));
    for (uint64_t row = 0; row < t->shape[0]; row += step) {
        const uint64_t n = SY_MIN(step, t->shape[0] - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        SY_TRY(trunk_device_copy_in(s->machine, trunk_ref(to, row * job.row_bytes), job.dst,
                                    n * job.row_bytes, err));
    }
    sy_tensor_release(t);
out:
    free(job.dst);
    return st;
}

/* ---- vectors ---- */

typedef struct vector_job {
    const sy_model *model;
    const sy_tensor *tensor;
    uint8_t *plain;
    float *wide;
} vector_job;

static sy_status widen_guarded(void *arg)
{
    const vector_job *job = arg;
    const sy_tensor *t = job->tensor;

    sy_tensor_read(job->plain, t, 0, t->shape[0]);
    if (!sy_model_is_sound(job->model, job->plain, t->dtype, t->n_elements)) return SY_EDATALOSS;
    sy_dtype_widen(job->wide, job->plain, t->dtype, t->n_elements);
    return SY_OK;
}

sy_status trunk_fill_vector(const device_source *s, sy_backend_ref to, const sy_tensor *t,
                            sy_error *err)
{
    vector_job job = {.model = s->model, .tensor = t};
    sy_status st;

    job.wide = malloc(t->n_elements * sizeof(float));
    job.plain = malloc(t->n_elements * sy_dtype_bytes(t->dtype));
    if (job.wide == NULL || job.plain == NULL)
        st = no_memory(t, err);
    else if (sy_map_guard(widen_guarded, &job, NULL) != SY_OK)
        st = corrupt(t, err);
    else
        st = trunk_device_copy_in(s->machine, to, job.wide, t->n_elements * sizeof(float), err);
    free(job.wide);
    free(job.plain);
    return st;
}
