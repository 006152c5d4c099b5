/* sy_trunk_matmul.c - the trunk's matrices times a batch of rows, with the pool: tasks are chunks
 * of panels, so that threads share the weights and never a row. */
#include "sy_trunk_internal.h"

#include <stdlib.h>

enum {
    CHUNK_MIN = 8,  /* panels a task: enough weight streams for a lone row, enough tasks for many
                       threads */
    CHUNK_MAX = 32, /* for many rows, which the product copies once a task */
    MANY_ROWS = 16,
    TASKS_A_THREAD = 4,
    ROUND_CHUNK = 8 /* rows a task */
};

typedef struct matmul_job {
    const sy_kernels *kernels;
    const trunk_product *product;
    size_t n_products;
    const float *x;
    size_t rows;
    uint32_t k;
    size_t chunk;            /* panels a task */
    const sy_qrows *rounded; /* x as int8, or NULL */
    uint16_t *pairs;         /* x as bf16, or NULL */
} matmul_job;

static size_t chunks_of(const sy_panels *w, size_t chunk)
{
    return (sy_panels_count(w->n) + chunk - 1) / chunk;
}

/* To every row's outputs of panels [begin, end). */
static void add_bias(const matmul_job *j, const trunk_product *p, size_t begin, size_t end)
{
    const size_t width = p->matrix->w.n, column = begin * SY_PANEL;
    const size_t n = SY_MIN(end * SY_PANEL, width) - column;

    for (size_t t = 0; t < j->rows; t++)
        j->kernels->add(p->y + t * width + column, p->matrix->bias + column, n);
}

/* Task i of all products' chunks, one product after the other. */
static void matmul_task(void *arg, size_t i, unsigned thread)
{
    const matmul_job *j = arg;
    const trunk_product *p = j->product;

    (void)thread;
    for (; i >= chunks_of(&p->matrix->w, j->chunk); p++) i -= chunks_of(&p->matrix->w, j->chunk);
    const sy_panels *w = &p->matrix->w;
    const size_t begin = i * j->chunk, end = SY_MIN(begin + j->chunk, sy_panels_count(w->n));
    if (j->rounded != NULL)
        j->kernels->matmul_q8(p->y, w->n, j->rounded, NULL, j->rows, w, begin, end);
    else if (j->pairs != NULL)
        j->kernels->matmul_bf16(p->y, w->n, j->pairs, j->k, NULL, j->rows, w, begin, end);
    else
        j->kernels->matmul(p->y, w->n, j->x, j->k, NULL, j->rows, w, begin, end);
    if (p->matrix->bias != NULL) add_bias(j, p, begin, end);
}

static void round_task(void *arg, size_t i, unsigned thread)
{
    const matmul_job *j = arg;
    const size_t begin = i * ROUND_CHUNK, n = SY_MIN((size_t)ROUND_CHUNK, j->rows - begin);

    (void)thread;
    if (j->rounded != NULL)
        j->kernels->quantize(j->rounded, begin, j->x + begin * j->k, j->k, n, j->k);
    else
        j->kernels->round_bf16(j->pairs + begin * j->k, j->x + begin * j->k, n * j->k);
}

sy_status trunk_ws_rounding(sy_trunk_ws *ws, const sy_trunk *trunk)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t inner = SY_MAX(trunk_attn_width(d), (size_t)d->mla.q_rank);
    const size_t width = SY_MAX((size_t)d->hidden, SY_MAX(inner, trunk_mlp_width(d)));

    if (trunk->precision.activations == SY_ACT_F32) return SY_OK;
    const size_t bytes = trunk->precision.activations == SY_ACT_Q8
                             ? sy_qrows_bytes(ws->rows_max, (uint32_t)width)
                             : ws->rows_max * width * sizeof(uint16_t);
    if (bytes == 0 || bytes > SIZE_MAX - 63) return SY_ENOMEM;
    ws->rounded = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    return ws->rounded != NULL ? SY_OK : SY_ENOMEM;
}

void trunk_matmuls(const sy_trunk *trunk, sy_trunk_ws *ws, const trunk_product *product, size_t n,
                   const float *x, size_t rows)
{
    const sy_panels *w = &product[0].matrix->w;
    matmul_job job = {trunk->kernels, product, n, x, rows, w->k, CHUNK_MIN, NULL, NULL};
    size_t tasks = 0, columns = 0;
    sy_qrows rounded;

    if (rows == 0) return;
    for (size_t i = 0; i < n; i++) {
        SY_ASSERT(product[i].matrix->w.k == w->k);
        columns += product[i].matrix->w.n;
    }
    const int small =
        columns <= UINT32_MAX && sy_kernels_is_small(rows, (uint32_t)columns, w->k, w->dtype);
    sy_pool *pool = small ? NULL : ws->pool;
    if (rows >= MANY_ROWS &&
        columns / (CHUNK_MAX * SY_PANEL) >= TASKS_A_THREAD * (size_t)sy_pool_threads(pool))
        job.chunk = CHUNK_MAX;
    for (size_t i = 0; i < n; i++) tasks += chunks_of(&product[i].matrix->w, job.chunk);
    if (trunk->precision.activations == SY_ACT_Q8) {
        sy_qrows_at(&rounded, ws->rounded, rows, w->k);
        job.rounded = &rounded;
    } else if (trunk->precision.activations == SY_ACT_BF16) {
        job.pairs = ws->rounded;
    }
    if (ws->rounded != NULL)
        sy_pool_run(pool, (rows + ROUND_CHUNK - 1) / ROUND_CHUNK, round_task, &job);
    sy_pool_run(pool, tasks, matmul_task, &job);
}
