/* sy_trunk_device_ws.c - the memory of a step on a GPU, and the batch's way to it: tokens,
 * positions, angles, and the numbers of its sequences' pages, in one copy a batch. */
#include <stdlib.h>
#include <string.h>

#include "sy_trunk_device.h"

enum {
    ALIGNMENT = 256,
    ENTRY_BYTES = 16,  /* each array of a batch begins at a multiple of it */
    N_ARRAYS = 4,      /* token, position, sequence, angle */
    TABLE_PAGES = 8,   /* of a row, for the first table of pages */
    ROWS_TOGETHER = 64 /* of a prompt; the device takes as many as it can */
};
#define LOGITS_BYTES_MAX  ((uint64_t)32 << 20)  /* of one piece of the head */
#define SCRATCH_BYTES_MAX ((uint64_t)128 << 20) /* of attention */

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* ---- what there is, one behind another ---- */

typedef struct layout {
    uint8_t *host;             /* NULL: sizes are added up */
    sy_backend_buffer *memory; /* NULL: the same */
    uint64_t host_bytes, bytes;
} layout;

static void *on_host(layout *at, uint64_t bytes)
{
    uint8_t *p = at->host == NULL ? NULL : at->host + at->host_bytes;

    at->host_bytes += round_up(bytes, ALIGNMENT);
    return p;
}

static sy_backend_ref on_device(layout *at, uint64_t bytes)
{
    const sy_backend_ref ref = {at->memory, at->bytes};

    at->bytes += round_up(bytes, ALIGNMENT);
    return ref;
}

static sy_backend_ref floats(layout *at, const sy_trunk_ws *ws, uint64_t width)
{
    return on_device(at, ws->rows_max * width * sizeof(float));
}

static sy_backend_ref halves(layout *at, const sy_trunk_ws *ws, uint64_t width)
{
    return on_device(at, ws->rows_max * trunk_padded(width) * sizeof(uint16_t));
}

static void lay_attention(layout *at, const sy_trunk_ws *ws)
{
    struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const sy_kv_shape *shape = &ws->trunk->shape;

    w->q = floats(at, ws, (uint64_t)d->n_heads * d->head_dim);
    w->k = floats(at, ws, (uint64_t)shape->n_heads * shape->key_dim);
    w->attended = floats(at, ws, (uint64_t)d->n_heads * shape->value_dim);
    w->attn16 = halves(at, ws, trunk_attn_width(d));
    w->query = w->q;
    w->attn = w->attended;
    if (!shape->is_latent) {
        w->v = floats(at, ws, (uint64_t)shape->n_heads * shape->value_dim);
        return;
    }
    w->query = floats(at, ws, (uint64_t)d->n_heads * shape->key_dim);
    w->attn = floats(at, ws, trunk_attn_width(d));
    w->q_low = floats(at, ws, d->mla.q_rank);
    w->q_low16 = halves(at, ws, d->mla.q_rank);
}

static void lay_out(layout *at, const sy_trunk_ws *ws)
{
    struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const uint64_t shared = sizeof(float) * d->hidden * ws->rows_max;
    layout mlp;

    w->input = on_host(at, shared);
    w->output = on_host(at, shared);
    w->logits = on_host(at, sizeof(float) * w->head_rows * d->vocab);
    w->head_host = on_host(at, (2 * (uint64_t)w->head_rows + 1) * ENTRY_BYTES);
    w->head = on_device(at, (2 * (uint64_t)w->head_rows + 1) * ENTRY_BYTES);
    w->head16 = on_device(at, sizeof(uint16_t) * w->head_rows * trunk_padded(d->hidden));
    w->head_logits = on_device(at, sizeof(float) * w->head_rows * d->vocab);
    w->x = floats(at, ws, d->hidden);
    w->xn = floats(at, ws, d->hidden);
    w->xn16 = halves(at, ws, d->hidden);
    w->y = floats(at, ws, d->hidden);
    w->scratch = on_device(at, w->scratch_bytes);
    mlp = *at;
    w->h16 = halves(&mlp, ws, trunk_mlp_width(d));
    w->gate = floats(&mlp, ws, 1);
    lay_attention(at, ws);
    at->bytes = SY_MAX(at->bytes, mlp.bytes);
}

static void choose_sizes(sy_trunk_ws *ws)
{
    struct trunk_device_ws *w = ws->device;
    const sy_model_desc *d = &ws->trunk->desc;
    const sy_backend *backend = ws->trunk->device->machine->backend;
    const uint64_t rows = LOGITS_BYTES_MAX / (sizeof(float) * d->vocab);
    const uint64_t scratch = backend->attend_scratch_bytes(ws->rows_max, d->n_heads,
                                                           ws->trunk->shape.value_dim, d->context);

    w->head_rows = (uint32_t)SY_MIN(SY_MAX(rows, (uint64_t)1), (uint64_t)ws->rows_max);
    w->scratch_bytes = scratch == 0 ? SCRATCH_BYTES_MAX : SY_MIN(scratch, SCRATCH_BYTES_MAX);
}

/* ---- the batch's memory ---- */

static uint64_t array_bytes(uint64_t n_rows)
{
    return round_up(n_rows * sizeof(uint32_t), ENTRY_BYTES);
}

/* Of a batch before its table of pages: the count of rows, arrays, angles. */
static uint64_t rows_bytes(const sy_trunk_ws *ws, uint64_t n_rows)
{
    const uint64_t angles = n_rows * ws->trunk->desc.rotary_dim * sizeof(float);

    return ENTRY_BYTES + N_ARRAYS * array_bytes(n_rows) + round_up(angles, ENTRY_BYTES);
}

static void free_batch(sy_trunk_ws *ws)
{
    const trunk_machine *machine = ws->trunk->device->machine;
    struct trunk_device_ws *w = ws->device;

    machine->backend->pinned_free(machine->handle, w->batch_host);
    machine->backend->buffer_free(w->batch_memory);
    w->batch_host = NULL;
    w->batch_memory = NULL;
    w->batch_bytes = 0;
}

/* Room for a table of so many pages; the one that was there may still be read. */
static sy_status make_batch(sy_trunk_ws *ws, uint64_t n_entries, sy_error *err)
{
    trunk_machine *machine = ws->trunk->device->machine;
    struct trunk_device_ws *w = ws->device;
    const uint64_t bytes = rows_bytes(ws, ws->rows_max) + n_entries * sizeof(uint32_t);
    void *host = NULL;
    sy_status st;

    if (w->batch_bytes > 0) trunk_device_settle(machine);
    free_batch(ws);
    SY_TRY(trunk_device_take_pinned(&host, machine, bytes, err));
    w->batch_host = host;
    SY_TRY(trunk_device_take(&w->batch_memory, machine, bytes, "the batches of a step", err));
    w->batch_bytes = bytes;
out:
    return st;
}

/* ---- open and close ---- */

sy_status trunk_device_ws_open(sy_trunk_ws *ws, sy_error *err)
{
    trunk_machine *machine = ws->trunk->device->machine;
    struct trunk_device_ws *w = calloc(1, sizeof(*w));
    layout sizes = {0}, at = {0};
    void *host = NULL;
    sy_status st;

    ws->device = w;
    if (w == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for a step of %u rows", ws->rows_max);
    w->mark_batch = atomic_fetch_add(&machine->n_workspaces, 1) % DEVICE_WORKSPACES * 2;
    w->mark_input = w->mark_batch + 1;
    choose_sizes(ws);
    lay_out(&sizes, ws);
    SY_TRY(trunk_device_take_pinned(&host, machine, sizes.host_bytes, err));
    w->pinned = host;
    SY_TRY(trunk_device_take(&w->memory, machine, sizes.bytes, "the rows of a step", err));
    at.host = host;
    at.memory = w->memory;
    lay_out(&at, ws);
    SY_TRY(make_batch(ws, (uint64_t)ws->rows_max * TABLE_PAGES, err));
out:
    return st;
}

void trunk_device_ws_close(sy_trunk_ws *ws)
{
    trunk_machine *machine = ws->trunk->device->machine;

    if (ws->device == NULL) return;
    trunk_device_settle(machine);
    free_batch(ws);
    machine->backend->buffer_free(ws->device->memory);
    machine->backend->pinned_free(machine->handle, ws->device->pinned);
    free(ws->device);
}

/* ---- a batch ---- */

static int begins_sequence(const sy_batch *batch, uint32_t t)
{
    return t == 0 || batch->seq[t] != batch->seq[t - 1];
}

/* How many sequences there are, the longest one's pages, and what is best for attention. Rows of
 * one sequence that do not follow each other count as two of them. */
static device_batch survey(const sy_batch *batch)
{
    device_batch b = {.n_rows = batch->n_rows};

    for (uint32_t t = 0; t < batch->n_rows; t++) {
        b.n_sequences += begins_sequence(batch, t) != 0;
        b.positions_max = SY_MAX(b.positions_max, batch->position[t] + 1);
    }
    b.pages_max = (b.positions_max + SY_KV_PAGE - 1) / SY_KV_PAGE;
    b.rows_together = b.n_sequences <= b.n_rows / 2 ? ROWS_TOGETHER : 1;
    return b;
}

/* Offsets of a batch's parts, which are the same on both sides. */
typedef struct parts {
    uint64_t token, position, sequence, angle, angles, page, end;
} parts;

static parts parts_of(const sy_trunk_ws *ws, const device_batch *b)
{
    const uint64_t step = array_bytes(b->n_rows);
    parts p = {.token = ENTRY_BYTES};

    p.position = p.token + step;
    p.sequence = p.position + step;
    p.angle = p.sequence + step;
    p.angles = p.angle + step;
    p.page = rows_bytes(ws, b->n_rows);
    p.end = p.page + (uint64_t)b->n_sequences * b->pages_max * sizeof(uint32_t);
    return p;
}

/* A row's numbers, and of a sequence's last row its pages: those past it are left as they are,
 * nobody reads them. */
static void write_rows(const sy_trunk_ws *ws, const sy_batch *batch, const device_batch *b,
                       const parts *p)
{
    uint8_t *host = ws->device->batch_host;
    const size_t half = ws->trunk->desc.rotary_dim / 2;
    uint32_t *token = (uint32_t *)(void *)(host + p->token);
    uint32_t *position = (uint32_t *)(void *)(host + p->position);
    uint32_t *sequence = (uint32_t *)(void *)(host + p->sequence);
    uint32_t *angle = (uint32_t *)(void *)(host + p->angle);
    float *angles = (float *)(void *)(host + p->angles);
    uint32_t *page = (uint32_t *)(void *)(host + p->page);
    uint32_t n = 0;

    memcpy(host, &b->n_rows, sizeof(b->n_rows));
    for (uint32_t t = 0; t < b->n_rows; t++) {
        n += begins_sequence(batch, t) != 0;
        token[t] = batch->token[t];
        position[t] = batch->position[t];
        sequence[t] = n - 1;
        angle[t] = t;
        trunk_angles(ws->trunk, angles + 2 * half * t, angles + 2 * half * t + half, position[t],
                     batch->seq[t]->is_long != 0);
        if (t + 1 < b->n_rows && !begins_sequence(batch, t + 1)) continue;
        SY_ASSERT(batch->seq[t]->n_pages > position[t] / SY_KV_PAGE);
        memcpy(page + (size_t)(n - 1) * b->pages_max, batch->seq[t]->page,
               (position[t] / SY_KV_PAGE + 1) * sizeof(*page));
    }
}

static void point_to_parts(sy_trunk_ws *ws, device_batch *b, const parts *p)
{
    const sy_backend_ref start = {ws->device->batch_memory, 0};

    b->count = start;
    b->token = trunk_ref(start, p->token);
    b->places.position = trunk_ref(start, p->position);
    b->places.sequence = trunk_ref(start, p->sequence);
    b->places.angle = trunk_ref(start, p->angle);
    b->angles = trunk_ref(start, p->angles);
    b->page = trunk_ref(start, p->page);
    ws->device->batch = *b;
}

sy_status trunk_device_set_batch(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err)
{
    trunk_machine *machine = ws->trunk->device->machine;
    struct trunk_device_ws *w = ws->device;
    device_batch b = survey(batch);
    const parts p = parts_of(ws, &b);
    device_ops ops;
    sy_status st;

    w->batch.n_rows = 0;
    SY_TRY(trunk_device_wait(machine, w->mark_batch, err));
    if (p.end > w->batch_bytes)
        SY_TRY(make_batch(ws, 2 * (uint64_t)b.n_sequences * b.pages_max, err));
    write_rows(ws, batch, &b, &p);
    point_to_parts(ws, &b, &p);
    trunk_ops_begin(&ops, ws);
    trunk_op_in(&ops, b.count, w->batch_host, p.end);
    st = trunk_ops_run(&ops, err);
    /* Whatever was enqueued may read it. */
    const sy_status marked = trunk_device_mark(machine, w->mark_batch, st == SY_OK ? err : NULL);
    if (st == SY_OK) st = marked;
out:
    return st;
}
