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

/* Rows [row, row + n) of a tensor, in tasks of some: read, and rounded where they are held as
 * something else. With nope_dim they are those of heads, each nope_dim + value_dim of them, and
 * become two matrices, of which the first is turned. */
typedef struct read_job {
    const sy_model *model;
    const sy_tensor *tensor;
    sy_dtype read, held;
    size_t row_bytes;  /* of a row as it is read */
    uint64_t unit;     /* rows that go together */
    size_t unit_bytes; /* what becomes of them in dst */
    uint32_t nope_dim, value_dim;
    uint8_t *dst;
    uint64_t row, n, step;
    uint8_t *scratch; /* [threads]: rows as they are read, then the keys of a head, turned */
    size_t scratch_bytes;
    sy_status status;
} read_job;

typedef struct read_piece {
    const read_job *job;
    uint64_t begin, n;
    uint8_t *scratch;
} read_piece;

/* dst: [n][m], src: [m][n], elements of `bytes`. */
static void turn(uint8_t *dst, const uint8_t *src, size_t m, size_t n, size_t bytes)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            memcpy(dst + (i * m + j) * bytes, src + (j * n + i) * bytes, bytes);
}

/* n rows of k elements, as they are held. */
static sy_status put_rows(uint8_t *dst, const read_job *job, const uint8_t *rows, size_t n,
                          size_t k)
{
    if (job->held != job->read) return sy_quantize_rows(dst, job->held, rows, job->read, n, k);
    memcpy(dst, rows, n * sy_dtype_row_bytes(job->held, k));
    return SY_OK;
}

static sy_status put_head(uint8_t *dst, const read_job *job, const uint8_t *rows, uint8_t *turned)
{
    const size_t rank = job->tensor->shape[1], nope = job->nope_dim;
    const size_t key_bytes = rank * sy_dtype_row_bytes(job->held, nope);
    sy_status st;

    turn(turned, rows, nope, rank, sy_dtype_bytes(job->read));
    SY_TRY(put_rows(dst, job, turned, rank, nope));
    SY_TRY(put_rows(dst + key_bytes, job, rows + nope * job->row_bytes, job->value_dim, rank));
out:
    return st;
}

static sy_status read_guarded(void *arg)
{
    const read_piece *p = arg;
    const read_job *job = p->job;
    const sy_tensor *t = job->tensor;
    uint8_t *dst = job->dst + p->begin / job->unit * job->unit_bytes;
    uint8_t *rows = p->scratch != NULL ? p->scratch : dst;
    sy_status st = SY_OK;

    sy_tensor_read_as(rows, t, job->read, job->row + p->begin, p->n);
    if (!sy_model_are_sound(job->model, rows, job->read, p->n, t->shape[1])) return SY_EDATALOSS;
    sy_tensor_release_rows(t, job->row + p->begin, p->n);
    if (job->nope_dim == 0)
        return rows == dst ? SY_OK : put_rows(dst, job, rows, p->n, t->shape[1]);
    for (uint64_t i = 0; i < p->n && st == SY_OK; i += job->unit)
        st = put_head(dst + i / job->unit * job->unit_bytes, job, rows + i * job->row_bytes,
                      rows + job->step * job->row_bytes);
    return st;
}

static void read_task(void *arg, size_t i, unsigned thread)
{
    read_job *job = arg;
    const uint64_t begin = i * job->step;
    read_piece piece = {.job = job, .begin = begin, .n = SY_MIN(job->step, job->n - begin)};

    if (job->scratch != NULL) piece.scratch = job->scratch + thread * job->scratch_bytes;
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
    if (job->status == SY_OK) return SY_OK;
    if (job->status != SY_EINVAL) return corrupt(job->tensor, err);
    return sy_error_set(err, SY_EINVAL,
                        "%s: its weights are too large for %s: load them as stored (--weights)",
                        job->tensor->name, sy_dtype_name(job->held));
}

/* Sizes and memory of a job whose tensor, types, unit and heads are set, for pieces of *n_rows. */
static sy_status open_job(read_job *job, uint64_t *n_rows, const device_source *s, sy_error *err)
{
    const sy_tensor *t = job->tensor;
    const unsigned threads = s->pool == NULL ? 1 : sy_pool_threads(s->pool);
    size_t together;

    job->model = s->model;
    job->row_bytes = sy_dtype_row_bytes(job->read, t->shape[1]);
    together = job->unit * job->row_bytes;
    *n_rows = SY_MIN(SY_MAX(PIECE_BYTES / together, (size_t)1) * job->unit, t->shape[0]);
    job->step = SY_MAX(TASK_BYTES / together, (size_t)1) * job->unit;
    job->unit_bytes = job->unit * sy_dtype_row_bytes(job->held, t->shape[1]);
    if (job->nope_dim > 0)
        job->unit_bytes = t->shape[1] * sy_dtype_row_bytes(job->held, job->nope_dim) +
                          job->value_dim * sy_dtype_row_bytes(job->held, t->shape[1]);
    if (job->nope_dim > 0 || job->held != job->read) {
        job->scratch_bytes = (job->step + job->nope_dim) * job->row_bytes;
        job->scratch = malloc(threads * job->scratch_bytes);
        if (job->scratch == NULL) return no_memory(t, err);
    }
    job->dst = malloc((*n_rows + job->unit - 1) / job->unit * job->unit_bytes);
    return job->dst != NULL ? SY_OK : no_memory(t, err);
}

static void close_job(read_job *job)
{
    free(job->scratch);
    free(job->dst);
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

static read_job job_of(const sy_tensor *tensor, sy_dtype held, uint64_t unit)
{
    return (read_job){.tensor = tensor,
                      .read = sy_dtype_is_encoded(held) ? held : tensor->dtype,
                      .held = held,
                      .unit = unit};
}

sy_status trunk_fill_matrix(const device_source *s, const device_matrix *to,
                            const sy_tensor *tensor, const sy_tensor *up, sy_error *err)
{
    const sy_backend_matrix matrix = trunk_matrix_of(
        up == NULL ? SY_BACKEND_PLAIN : SY_BACKEND_GATE_UP, to->n, to->k, to->dtype);
    const uint64_t unit = to->dtype == SY_FP8 ? SY_FP8_BLOCK : PACKED_ROWS;
    read_job job = job_of(tensor, to->dtype, unit), up_job = {0};
    uint64_t step = 0;
    sy_status st;

    SY_TRY(open_job(&job, &step, s, err));
    if (up != NULL) {
        up_job = job_of(up, to->dtype, unit);
        SY_TRY(open_job(&up_job, &step, s, err));
    }
    for (uint64_t row = 0; row < matrix.n; row += step) {
        const uint32_t n = (uint32_t)SY_MIN(step, matrix.n - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        if (up != NULL) SY_TRY(read_rows(s, &up_job, row, n, err));
        SY_TRY(trunk_device_write(s->machine, to->weights, &matrix, (uint32_t)row, n, job.dst,
                                  up_job.dst, err));
    }
    sy_tensor_release(tensor);
    if (up != NULL) sy_tensor_release(up);
out:
    close_job(&job);
    close_job(&up_job);
    return st;
}

/* Of one head, whose keys have been turned. */
static sy_status write_head(const device_source *s, const device_layer *layer,
                            const sy_mla_desc *mla, uint32_t head, const uint8_t *rows,
                            sy_error *err)
{
    const sy_backend *backend = s->machine->backend;
    const sy_dtype dtype = layer->heads_dtype;
    const sy_backend_matrix key_up =
        trunk_matrix_of(SY_BACKEND_PLAIN, mla->kv_rank, mla->nope_dim, dtype);
    const sy_backend_matrix value_up =
        trunk_matrix_of(SY_BACKEND_PLAIN, mla->value_dim, mla->kv_rank, dtype);
    const size_t key_bytes = mla->kv_rank * sy_dtype_row_bytes(dtype, mla->nope_dim);
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
    read_job job = job_of(t, layer->heads_dtype, of_head);
    uint64_t step = 0;
    sy_status st;

    job.nope_dim = mla->nope_dim;
    job.value_dim = mla->value_dim;
    SY_TRY(open_job(&job, &step, s, err));
    for (uint64_t row = 0; row < t->shape[0]; row += step) {
        const uint64_t n = SY_MIN(step, t->shape[0] - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        for (uint64_t i = 0; i < n; i += of_head)
            SY_TRY(write_head(s, layer, mla, (uint32_t)((row + i) / of_head),
                              job.dst + i / of_head * job.unit_bytes, err));
    }
    sy_tensor_release(t);
out:
    close_job(&job);
    return st;
}

sy_status trunk_fill_rows(const device_source *s, sy_backend_ref to, const sy_tensor *t,
                          sy_error *err)
{
    read_job job = job_of(t, t->dtype, 1);
    uint64_t step = 0;
    sy_status st;

    SY_TRY(open_job(&job, &step, s, err));
    for (uint64_t row = 0; row < t->shape[0]; row += step) {
        const uint64_t n = SY_MIN(step, t->shape[0] - row);
        SY_TRY(read_rows(s, &job, row, n, err));
        SY_TRY(trunk_device_copy_in(s->machine, trunk_ref(to, row * job.row_bytes), job.dst,
                                    n * job.row_bytes, err));
    }
    sy_tensor_release(t);
out:
    close_job(&job);
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
