/* sy_halves.c - the model over a step's rows. A large step passes the layers as two halves in
 * ping-pong: while one is with the experts, the other is in attention. Each half has a thread: the
 * engine's, and a lane thread that sleeps while no step is divided.
 *
 * The halves take turns, layer by layer: A's attention, B's, A's of the next layer. The turn
 * covers everything but the MoE calls themselves: the trunk with its cache and pool, and the
 * sequences, which may have rows in both halves. So a prompt's rows in B find the keys of those in
 * A, and what fails a sequence in one half takes its rows out of the other at that half's next
 * turn. */
#include <string.h>

#include "sy_clock.h"
#include "sy_engine_internal.h"
#include "sy_moe_rows.h"

enum {
    HALF_ROWS_PER_EXPERT = 8, /* so many rows of an expert take as long to compute as its weights
                                 to read: 2 flops a bf16 weight and row against 2 bytes, on cores
                                 with ten times as many flops as bytes a second */
    DECODE_SHARE_MIN = 4      /* decode rows stay together while the smaller half has 1 / 4 */
};

/* T rows touch U(T) = E (1 - q^T) experts of a layer on average, q = 1 - k/E. Two halves read
 * 2 U(T/2) = U(T) * 2 / (1 + q^(T/2)) of them: few rows meet few experts twice, many rows read
 * nearly every expert twice, which costs nothing once a half has enough rows for each expert that
 * its arithmetic takes longer than the reading. By then U is E, so that is T/2 * k/E rows. */
uint32_t sy_engine_overlap_rows(const sy_model_desc *desc)
{
    return 2 * HALF_ROWS_PER_EXPERT * desc->n_experts / SY_MAX(desc->top_k, 1u);
}

/* ---- turns ---- */

static void take_turn(sy_engine *engine, int id)
{
    pthread_mutex_lock(&engine->turn_mutex);
    while (engine->turn != id) pthread_cond_wait(&engine->turn_changed, &engine->turn_mutex);
    pthread_mutex_unlock(&engine->turn_mutex);
}

static void pass_turn(sy_engine *engine, int id)
{
    pthread_mutex_lock(&engine->turn_mutex);
    if (engine->present[!id]) {
        engine->turn = !id;
        pthread_cond_broadcast(&engine->turn_changed);
    }
    pthread_mutex_unlock(&engine->turn_mutex);
}

static void leave(sy_engine *engine, int id)
{
    pthread_mutex_lock(&engine->turn_mutex);
    engine->present[id] = 0;
    engine->turn = !id;
    pthread_cond_broadcast(&engine->turn_changed);
    pthread_mutex_unlock(&engine->turn_mutex);
}

/* ---- one half; all in its turn, but ask_experts ---- */

static sy_batch batch_of(const half *h)
{
    return (sy_batch){h->n_rows, h->rows.token, h->rows.position, h->rows.seq};
}

/* The trunk failed the half: all of its sequences, and with them its rows. */
static void fail_half(half *h, const sy_error *why)
{
    for (uint32_t r = 0; r < h->n_rows; r++)
        if (h->rows.owner[r]->error.status == SY_OK) h->rows.owner[r]->error = *why;
    h->n_rows = 0;
}

static void move_row(const half *h, uint32_t to, uint32_t from, size_t hidden)
{
    const step_rows *rows = &h->rows;
    float *y = sy_trunk_output(h->ws);

    rows->owner[to] = rows->owner[from];
    rows->token[to] = rows->token[from];
    rows->position[to] = rows->position[from];
    rows->seq[to] = rows->seq[from];
    rows->request[to] = rows->request[from];
    rows->may_degrade[to] = rows->may_degrade[from];
    memmove(y + to * hidden, y + from * hidden, hidden * sizeof(float));
}

/* Takes the rows of sequences that failed, in whichever half, out of the rest of the step. */
static sy_status drop_failed_rows(sy_engine *engine, half *h, sy_error *err)
{
    uint32_t kept = 0;

    for (uint32_t r = 0; r < h->n_rows; r++) {
        if (h->rows.owner[r]->error.status != SY_OK) continue;
        if (kept != r) move_row(h, kept, r, engine->desc->hidden);
        h->rows.kept[kept++] = r;
    }
    if (kept == h->n_rows) return SY_OK;
    h->n_rows = kept;
    const sy_batch batch = batch_of(h);
    return sy_trunk_keep(engine->config.trunk, h->ws, &batch, h->rows.kept, err);
}

static void add_times(sy_moe_times *to, const sy_moe_times *from)
{
    to->route_us += from->route_us;
    to->dispatch_us += from->dispatch_us;
    to->compute_us += from->compute_us;
    to->combine_us += from->combine_us;
}

static void add_note(sequence *seq, uint8_t note)
{
    seq->degraded_rows += (note & SY_MOE_DEGRADED) != 0;
    seq->other_weights_rows += (note & SY_MOE_OTHER_WEIGHTS) != 0;
}

/* What the trunk does of a layer: attention, and the MLP of a dense layer or that beside the
 * experts of another; and what those get. */
static sy_status run_trunk(sy_engine *engine, half *h, uint32_t layer, sy_error *err)
{
    const sy_trunk *trunk = engine->config.trunk;
    const sy_batch batch = batch_of(h);
    sy_status st;

    SY_TRY(sy_trunk_attend(trunk, h->ws, engine->kv, layer, &batch, err));
    SY_TRY(sy_trunk_norm(trunk, h->ws, layer, h->n_rows, err));
    SY_TRY(sy_trunk_mlp(trunk, h->ws, layer, h->n_rows, err));
    if (sy_model_has_experts(engine->desc, layer))
        SY_TRY(sy_trunk_input(&h->xn, trunk, h->ws, h->n_rows, err));
out:
    return st;
}

/* The call for the MoE block, which is made once the turn has been passed on. The pool is the
 * call's as well, unless the other half computes with it meanwhile. */
static void prepare_call(sy_engine *engine, half *h, uint32_t layer)
{
    const int divided = engine->half[0].n_rows > 0 && engine->half[1].n_rows > 0;

    memset(h->rows.note, 0, h->n_rows);
    h->call = (sy_moe_call){.layer = layer,
                            .n_rows = h->n_rows,
                            .experts_per_token = h->rows.owner[0]->experts_per_token,
                            .request = h->rows.request,
                            .x = h->xn,
                            .y = sy_trunk_output(h->ws),
                            .deadline_us = sy_clock_us() + engine->config.layer_timeout_us,
                            .pool = divided ? NULL : engine->config.pool,
                            .may_degrade = h->rows.may_degrade,
                            .note = h->rows.note,
                            .failed = h->rows.failed};
    sy_error_clear(&h->call.error);
}

/* A whole call that failed: every row did, for the same reason. */
static void ask_experts(half *h)
{
    sy_moe_call *call = &h->call;

    if (h->moe->layer(h->moe->ctx, call) == SY_OK) return;
    if (call->error.status == SY_OK)
        sy_error_set(&call->error, SY_EINTERNAL, "layer %u failed without saying why", call->layer);
    call->n_row_errors = 0;
    memset(call->failed, sy_moe_add_error(call, &call->error), call->n_rows);
}

/* Sequences whose rows failed get the error, and their rows leave the step. */
static sy_status end_layer(sy_engine *engine, half *h, sy_error *err)
{
    const step_rows *rows = &h->rows;

    for (uint32_t r = 0; r < h->n_rows; r++) {
        sequence *seq = rows->owner[r];
        if (r == 0 || rows->owner[r - 1] != seq) add_times(&seq->moe, &h->call.times);
        if (!rows->failed[r])
            add_note(seq, rows->note[r]);
        else if (seq->error.status == SY_OK)
            seq->error = h->call.row_error[rows->failed[r] - 1];
    }
    const sy_status st = drop_failed_rows(engine, h, err);
    return st == SY_OK ? sy_trunk_add(engine->config.trunk, h->ws, h->n_rows, err) : st;
}

static sy_status run_layer(sy_engine *engine, int id, uint32_t layer, sy_error *err)
{
    half *h = &engine->half[id];
    const sy_status st = run_trunk(engine, h, layer, err);

    if (st != SY_OK || !sy_model_has_experts(engine->desc, layer)) return st;
    prepare_call(engine, h, layer);
    pass_turn(engine, id);
    ask_experts(h);
    take_turn(engine, id);
    return end_layer(engine, h, err);
}

static void run_half(sy_engine *engine, int id)
{
    half *h = &engine->half[id];
    sy_error err;

    sy_error_clear(&err);
    take_turn(engine, id);
    const sy_batch batch = batch_of(h);
    sy_status st = sy_trunk_begin(engine->config.trunk, h->ws, &batch, &err);
    for (uint32_t layer = 0; layer < engine->desc->n_layers && h->n_rows > 0 && st == SY_OK;
         layer++)
        st = run_layer(engine, id, layer, &err);
    if (st != SY_OK) fail_half(h, &err);
    leave(engine, id);
}

/* ---- the lane thread ---- */

static void *lane_thread(void *arg)
{
    sy_engine *engine = arg;

    for (;;) {
        pthread_mutex_lock(&engine->turn_mutex);
        while (!engine->present[1] && !engine->lane_ends)
            pthread_cond_wait(&engine->turn_changed, &engine->turn_mutex);
        const int ends = engine->lane_ends;
        pthread_mutex_unlock(&engine->turn_mutex);
        if (ends) return NULL;
        run_half(engine, 1);
    }
}

sy_status engine_halves_open(sy_engine *engine, sy_error *err)
{
    const sy_engine_config *c = &engine->config;
    sy_status st;

    engine->half[0].moe = &c->moe;
    engine->half[1].moe = &c->second_moe;
    SY_TRY(sy_trunk_ws_open(&engine->half[0].ws, c->trunk, c->step_rows_max, c->pool, err));
    if (c->second_moe.layer == NULL || c->overlap_rows_min == 0) return SY_OK;
    SY_TRY(sy_trunk_ws_open(&engine->half[1].ws, c->trunk, c->step_rows_max, c->pool, err));
    if (pthread_create(&engine->lane, NULL, lane_thread, engine) != 0)
        return sy_error_set(err, SY_EIO, "no thread for the second half of a step");
    engine->has_lane = 1;
out:
    return st;
}

void engine_halves_close(sy_engine *engine)
{
    if (engine->has_lane) {
        pthread_mutex_lock(&engine->turn_mutex);
        engine->lane_ends = 1;
        pthread_cond_broadcast(&engine->turn_changed);
        pthread_mutex_unlock(&engine->turn_mutex);
        pthread_join(engine->lane, NULL);
    }
    sy_trunk_ws_close(engine->half[0].ws);
    sy_trunk_ws_close(engine->half[1].ws);
}

/* ---- both ---- */

static void set_half(sy_engine *engine, int id, uint32_t first, uint32_t n_rows)
{
    const step_rows *all = &engine->rows;
    half *h = &engine->half[id];

    h->first = first;
    h->n_rows = n_rows;
    h->rows = (step_rows){.owner = all->owner + first,
                          .token = all->token + first,
                          .position = all->position + first,
                          .seq = all->seq + first,
                          .request = all->request + first,
                          .failed = all->failed + first,
                          .may_degrade = all->may_degrade + first,
                          .note = all->note + first,
                          .kept = all->kept + first};
}

/* Where the second half begins. In the middle; but decode rows stay together where that leaves
 * enough for the other half, so that those of many sequences meet at one reading of an expert. */
static uint32_t divide(const sy_engine *engine)
{
    const uint32_t n = engine->n_rows, decode = engine->n_decode;

    if (!engine->has_lane || n < SY_MAX(engine->config.overlap_rows_min, 2u)) return n;
    if (decode > n / 2 && n - decode >= n / DECODE_SHARE_MIN) return decode;
    return n / 2;
}

void engine_halves_run(sy_engine *engine)
{
    const uint32_t first = divide(engine);

    set_half(engine, 0, 0, first);
    set_half(engine, 1, first, engine->n_rows - first);
    pthread_mutex_lock(&engine->turn_mutex);
    engine->turn = 0;
    engine->present[0] = 1;
    engine->present[1] = first < engine->n_rows;
    if (engine->present[1]) pthread_cond_broadcast(&engine->turn_changed);
    pthread_mutex_unlock(&engine->turn_mutex);
    run_half(engine, 0);
    pthread_mutex_lock(&engine->turn_mutex);
    while (engine->present[1]) pthread_cond_wait(&engine->turn_changed, &engine->turn_mutex);
    pthread_mutex_unlock(&engine->turn_mutex);
}
