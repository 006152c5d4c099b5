/* sy_trunk_device_step.c - the operations of a step on a GPU, all but attention: enqueued, each for
 * the rows of the workspace's batch. Only sy_trunk_input and sy_trunk_head wait. */
#include <string.h>

#include "sy_trunk_device.h"

/* ---- operations ---- */

static void ops_begin(device_ops *ops, trunk_machine *machine, uint32_t n_rows,
                      sy_backend_ref count)
{
    ops->machine = machine;
    ops->n_rows = n_rows;
    ops->count = count;
    ops->n = 0;
}

void trunk_ops_begin(device_ops *ops, const sy_trunk_ws *ws)
{
    const device_batch *batch = &ws->device->batch;

    ops_begin(ops, ws->trunk->device->machine, batch->n_rows, batch->count);
}

sy_status trunk_ops_run(device_ops *ops, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";
    const uint32_t n = ops->n;

    if (trunk_device_lost(ops->machine, err)) return SY_EUNAVAILABLE;
    ops->n = 0;
    const int result = ops->machine->backend->stream_run(ops->machine->stream, ops->op, n, why);
    /* An operation that is not well formed is nobody's mistake who sees the error. */
    return trunk_device_result(ops->machine,
                               result == SY_BACKEND_EINVAL ? SY_BACKEND_EFAILED : result, why, err);
}

sy_backend_op *trunk_op(device_ops *ops, sy_backend_op_kind kind)
{
    sy_backend_op *op = &ops->op[ops->n++];

    SY_ASSERT(ops->n <= DEVICE_OPS_MAX);
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    op->rows_max = ops->n_rows;
    op->n_rows = ops->count;
    return op;
}

void trunk_op_in(device_ops *ops, sy_backend_ref to, void *host, uint64_t n)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_IN);

    op->u.copy.to = to;
    op->u.copy.host = host;
    op->u.copy.n = n;
}

void trunk_op_out(device_ops *ops, void *host, sy_backend_ref from, uint64_t n)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_OUT);

    op->u.copy.from = from;
    op->u.copy.host = host;
    op->u.copy.n = n;
}

void trunk_op_norm(device_ops *ops, const sy_trunk *trunk, sy_backend_ref y, sy_backend_ref y16,
                   sy_backend_ref x, const device_norm *norm)
{
    sy_backend_op *op;

    trunk_op_rms(ops, y, y16, x, norm->weight, trunk->desc.rms_eps, trunk->desc.hidden);
    op = &ops->op[ops->n - 1];
    if (trunk->desc.norm != SY_NORM_LAYER) return;
    op->u.norm.form = SY_BACKEND_NORM_LAYER;
    op->u.norm.bias = norm->bias;
}

void trunk_op_rms(device_ops *ops, sy_backend_ref y, sy_backend_ref y16, sy_backend_ref x,
                  sy_backend_ref weight, float eps, uint32_t n)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_NORM);

    op->u.norm.y = y;
    op->u.norm.y16 = y16;
    op->u.norm.x = x;
    op->u.norm.weight = weight;
    op->u.norm.form = SY_BACKEND_NORM_RMS;
    op->u.norm.n = n;
    op->u.norm.eps = eps;
}

void trunk_op_linear(device_ops *ops, sy_backend_ref y, sy_backend_ref x16,
                     const device_matrix *matrix, float divisor)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_LINEAR);

    op->u.linear.y = y;
    op->u.linear.x = x16;
    op->u.linear.weights = matrix->weights;
    op->u.linear.bias = matrix->bias;
    op->u.linear.matrix = trunk_matrix_of(SY_BACKEND_PLAIN, matrix->n, matrix->k, matrix->dtype);
    op->u.linear.divisor = divisor;
}

void trunk_op_add(device_ops *ops, const sy_trunk_ws *ws, sy_backend_ref row_factor)
{
    sy_backend_op *op = trunk_op(ops, SY_BACKEND_ADD);

    op->u.add.x = ws->device->x;
    op->u.add.y = ws->device->y;
    op->u.add.row_factor = row_factor;
    op->u.add.hidden = ws->trunk->desc.hidden;
    op->u.add.factor = ws->trunk->desc.residual_multiplier;
}

/* ---- a step's beginning ---- */

sy_status trunk_device_begin(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err)
{
    const sy_model_desc *d = &ws->trunk->desc;
    sy_backend_op *op;
    device_ops ops;
    sy_status st;

    SY_TRY(trunk_device_set_batch(ws, batch, err));
    if (batch->n_rows == 0) return SY_OK;
    trunk_ops_begin(&ops, ws);
    op = trunk_op(&ops, SY_BACKEND_EMBED);
    op->u.embed.x = ws->device->x;
    op->u.embed.embedding = ws->trunk->device->embed;
    op->u.embed.token = ws->device->batch.token;
    op->u.embed.hidden = d->hidden;
    op->u.embed.vocab = d->vocab;
    op->u.embed.factor = d->embedding_multiplier;
    SY_TRY(trunk_ops_run(&ops, err));
out:
    return st;
}

/* Rows move one by one, in ascending order, so that none is written before it was read. */
sy_status trunk_device_keep(sy_trunk_ws *ws, const sy_batch *batch, const uint32_t *row,
                            sy_error *err)
{
    const uint64_t row_bytes = (uint64_t)ws->trunk->desc.hidden * sizeof(float);
    device_ops ops;
    sy_status st;

    SY_TRY(trunk_device_set_batch(ws, batch, err));
    trunk_ops_begin(&ops, ws);
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        SY_ASSERT(row[i] >= i && row[i] < ws->rows_max);
        if (row[i] == i) continue;
        sy_backend_op *op = trunk_op(&ops, SY_BACKEND_COPY);
        op->u.copy.to = trunk_ref(ws->device->x, i * row_bytes);
        op->u.copy.from = trunk_ref(ws->device->x, row[i] * row_bytes);
        op->u.copy.n = row_bytes;
        if (ops.n == DEVICE_OPS_MAX) SY_TRY(trunk_ops_run(&ops, err));
    }
    if (ops.n > 0) SY_TRY(trunk_ops_run(&ops, err));
out:
    return st;
}

/* ---- what follows attention ---- */

sy_status trunk_device_norm(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err)
{
    struct trunk_device_ws *w = ws->device;
    const sy_trunk *trunk = ws->trunk;
    device_ops ops;
    sy_status st;

    SY_ASSERT(n_rows == w->batch.n_rows);
    if (n_rows == 0) return SY_OK;
    w->has_input = sy_model_has_experts(&trunk->desc, layer);
    trunk_ops_begin(&ops, ws);
    trunk_op_norm(&ops, trunk, w->xn, w->xn16, w->x, &trunk->device->layer[layer].norm2);
    if (w->has_input)
        trunk_op_out(&ops, w->input, w->xn, (uint64_t)n_rows * trunk->desc.hidden * sizeof(float));
    SY_TRY(trunk_ops_run(&ops, err));
    if (w->has_input) SY_TRY(trunk_device_mark(trunk->device->machine, w->mark_input, err));
out:
    return st;
}

sy_status trunk_device_mlp(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err)
{
    const struct trunk_device_ws *w = ws->device;
    const device_layer *weights = &ws->trunk->device->layer[layer];
    sy_backend_ref gate = {NULL, 0};
    sy_backend_op *op;
    device_ops ops;

    SY_ASSERT(n_rows == w->batch.n_rows);
    if (n_rows == 0 || weights->down.n == 0) return SY_OK;
    trunk_ops_begin(&ops, ws);
    op = trunk_op(&ops, SY_BACKEND_SWIGLU_UP);
    op->u.linear.y = w->h16;
    op->u.linear.x = w->xn16;
    op->u.linear.weights = weights->gate_up.weights;
    op->u.linear.matrix = trunk_matrix_of(SY_BACKEND_GATE_UP, weights->gate_up.n,
                                          weights->gate_up.k, weights->gate_up.dtype);
    trunk_op_linear(&ops, w->y, w->h16, &weights->down, 1.0f);
    if (weights->mix.buffer != NULL) {
        gate = w->gate;
        op = trunk_op(&ops, SY_BACKEND_SHARED_GATE);
        op->u.shared_gate.gate = gate;
        op->u.shared_gate.x = w->xn;
        op->u.shared_gate.w = weights->mix;
        op->u.shared_gate.hidden = ws->trunk->desc.hidden;
    }
    trunk_op_add(&ops, ws, gate);
    return trunk_ops_run(&ops, err);
}

sy_status trunk_device_input(const float **xn, sy_trunk_ws *ws, uint32_t n_rows, sy_error *err)
{
    struct trunk_device_ws *w = ws->device;

    *xn = w->input;
    if (n_rows == 0) return SY_OK;
    SY_ASSERT(n_rows == w->batch.n_rows && w->has_input);
    return trunk_device_wait(ws->trunk->device->machine, w->mark_input, err);
}

float *trunk_device_output(const sy_trunk_ws *ws)
{
    return ws->device->output;
}

sy_status trunk_device_add(sy_trunk_ws *ws, uint32_t n_rows, sy_error *err)
{
    const struct trunk_device_ws *w = ws->device;
    device_ops ops;

    SY_ASSERT(n_rows == w->batch.n_rows);
    if (n_rows == 0) return SY_OK;
    trunk_ops_begin(&ops, ws);
    trunk_op_in(&ops, w->y, w->output, (uint64_t)n_rows * ws->trunk->desc.hidden * sizeof(float));
    trunk_op_add(&ops, ws, (sy_backend_ref){NULL, 0});
    return trunk_ops_run(&ops, err);
}

/* ---- its end ---- */

enum { ENTRY_BYTES = 16, ENTRY_NUMBERS = ENTRY_BYTES / sizeof(uint32_t) };

/* Neighbours among the rows that are of one workspace, which a norm can gather: how many there are,
 * then which, from `at` on. Returns where the next may lie. */
typedef struct head_run {
    uint32_t begin, end;
    uint64_t at; /* a multiple of ENTRY_BYTES */
} head_run;

static head_run next_run(const sy_trunk_row *row, uint32_t begin, uint32_t n, uint64_t at)
{
    head_run run = {begin, begin + 1, at};

    while (run.end < n && row[run.end].ws == row[begin].ws) run.end++;
    return run;
}

static uint64_t run_end(const head_run *run)
{
    const uint32_t n = run->end - run->begin;

    return run->at + ENTRY_BYTES + (n + ENTRY_NUMBERS - 1) / ENTRY_NUMBERS * ENTRY_BYTES;
}

/* Returns how many bytes there are. */
static uint64_t write_runs(uint8_t *host, const sy_trunk_row *row, uint32_t n)
{
    head_run run = {.end = 0};
    uint64_t at = ENTRY_BYTES;

    memcpy(host, &n, sizeof(n));
    while (run.end < n) {
        run = next_run(row, run.end, n, at);
        uint32_t *out = (uint32_t *)(void *)(host + at);
        out[0] = run.end - run.begin;
        for (uint32_t i = run.begin; i < run.end; i++)
            out[ENTRY_NUMBERS + i - run.begin] = row[i].row;
        at = run_end(&run);
    }
    return at;
}

/* Final norm of one run, into the rows of the head's input. */
static void add_run(device_ops *ops, const struct trunk_device_ws *first, const head_run *run,
                    const sy_trunk_row *row)
{
    const sy_trunk_ws *ws = row[run->begin].ws;
    const sy_trunk *trunk = ws->trunk;
    const uint64_t row_bytes = trunk_padded(trunk->desc.hidden) * sizeof(uint16_t);
    const uint32_t n_rows = ops->n_rows;
    const sy_backend_ref count = ops->count;
    sy_backend_op *op;

    ops->n_rows = run->end - run->begin;
    ops->count = trunk_ref(first->head, run->at);
    trunk_op_norm(ops, trunk, (sy_backend_ref){NULL, 0},
                  trunk_ref(first->head16, run->begin * row_bytes), ws->device->x,
                  &trunk->device->final_norm);
    op = &ops->op[ops->n - 1];
    op->u.norm.row = trunk_ref(ops->count, ENTRY_BYTES);
    op->u.norm.x_rows = ws->rows_max;
    ops->n_rows = n_rows;
    ops->count = count;
}

/* The final norm of all rows. */
static sy_status add_runs(device_ops *ops, const struct trunk_device_ws *first,
                          const sy_trunk_row *row, uint32_t n, sy_error *err)
{
    head_run run = {.end = 0, .at = ENTRY_BYTES};

    while (run.end < n) {
        const uint64_t at = run.end == 0 ? ENTRY_BYTES : run_end(&run);
        run = next_run(row, run.end, n, at);
        if (ops->n == DEVICE_OPS_MAX) {
            const sy_status st = trunk_ops_run(ops, err);
            if (st != SY_OK) return st;
        }
        add_run(ops, first, &run, row);
    }
    return ops->n > DEVICE_OPS_MAX - 2 ? trunk_ops_run(ops, err) : SY_OK;
}

/* With what w has for it: at most as many rows as it has logits for. */
static sy_status head_piece(const struct trunk_device_ws *w, const sy_trunk *trunk, float *logits,
                            const sy_trunk_row *row, uint32_t n, sy_error *err)
{
    trunk_machine *machine = trunk->device->machine;
    const uint64_t bytes = (uint64_t)n * trunk->desc.vocab * sizeof(float);
    device_ops ops;
    sy_status st;

    SY_TRY(trunk_device_wait(machine, DEVICE_MARK_NOW, err)); /* for one that failed half way */
    ops_begin(&ops, machine, n, w->head);
    trunk_op_in(&ops, w->head, w->head_host, write_runs(w->head_host, row, n));
    SY_TRY(add_runs(&ops, w, row, n, err));
    trunk_op_linear(&ops, w->head_logits, w->head16, &trunk->device->head,
                    trunk->desc.logits_scaling);
    trunk_op_out(&ops, w->logits, w->head_logits, bytes);
    SY_TRY(trunk_ops_run(&ops, err));
    SY_TRY(trunk_device_mark(machine, DEVICE_MARK_NOW, err));
    SY_TRY(trunk_device_wait(machine, DEVICE_MARK_NOW, err));
    memcpy(logits, w->logits, bytes);
out:
    return st;
}

sy_status trunk_device_head(const sy_trunk *trunk, float *logits, const sy_trunk_row *row,
                            uint32_t n, sy_error *err)
{
    const struct trunk_device_ws *w = row[0].ws->device;

    for (uint32_t i = 0; i < n; i += w->head_rows) {
        const sy_status st = head_piece(w, trunk, logits + (size_t)i * trunk->desc.vocab, row + i,
                                        SY_MIN(w->head_rows, n - i), err);
        if (st != SY_OK) return st;
    }
    return SY_OK;
}
