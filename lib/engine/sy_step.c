/* sy_step.c - one step of the engine: which rows take part, the model over them, and what is drawn.
 */
#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "sy_engine_internal.h"
#include "sy_moe_rows.h"

static void *rows_array(size_t n, size_t size)
{
    return aligned_alloc(64, (n * size + 63) & ~(size_t)63);
}

sy_status engine_step_open(sy_engine *engine, sy_error *err)
{
    const size_t rows = engine->config.step_rows_max, seqs = engine->config.running_max;
    const size_t hidden = engine->desc->hidden, vocab = engine->desc->vocab;
    const unsigned threads = engine->config.pool == NULL ? 1 : sy_pool_threads(engine->config.pool);

    engine->sampler_bytes = (sy_sampler_scratch(engine->desc->vocab) + 63) & ~(size_t)63;
    engine->member = rows_array(seqs, sizeof(*engine->member));
    engine->row_of = rows_array(rows, sizeof(*engine->row_of));
    engine->row_token = rows_array(rows, sizeof(*engine->row_token));
    engine->row_position = rows_array(rows, sizeof(*engine->row_position));
    engine->row_seq = rows_array(rows, sizeof(*engine->row_seq));
    engine->row_request = rows_array(rows, sizeof(*engine->row_request));
    engine->row_failed = rows_array(rows, sizeof(*engine->row_failed));
    engine->row_may_degrade = rows_array(rows, sizeof(*engine->row_may_degrade));
    engine->row_note = rows_array(rows, sizeof(*engine->row_note));
    engine->x = rows_array(rows * hidden, sizeof(float));
    engine->xn = rows_array(rows * hidden, sizeof(float));
    engine->y = rows_array(rows * hidden, sizeof(float));
    engine->head_row = rows_array(seqs, sizeof(*engine->head_row));
    engine->head_seq = rows_array(seqs, sizeof(*engine->head_seq));
    engine->logits = rows_array(seqs * vocab, sizeof(float));
    engine->draw = rows_array(seqs, sizeof(*engine->draw));
    engine->sampler_scratch = rows_array(threads, engine->sampler_bytes);
    if (!engine->member || !engine->row_of || !engine->row_token || !engine->row_position ||
        !engine->row_seq || !engine->row_request || !engine->row_failed ||
        !engine->row_may_degrade || !engine->row_note || !engine->x || !engine->xn || !engine->y ||
        !engine->head_row || !engine->head_seq || !engine->logits || !engine->draw ||
        !engine->sampler_scratch)
        return sy_error_set(err, SY_ENOMEM, "no memory for steps of %zu rows", rows);
    return SY_OK;
}

void engine_step_close(sy_engine *engine)
{
    free(engine->member);
    free(engine->row_of);
    free(engine->row_token);
    free(engine->row_position);
    free(engine->row_seq);
    free(engine->row_request);
    free(engine->row_failed);
    free(engine->row_may_degrade);
    free(engine->row_note);
    free(engine->x);
    free(engine->xn);
    free(engine->y);
    free(engine->head_row);
    free(engine->head_seq);
    free(engine->logits);
    free(engine->draw);
    free(engine->sampler_scratch);
}

/* ---- which rows ---- */

static uint32_t pending(const sequence *seq)
{
    return seq->n_tokens - seq->n_computed;
}

static void add_rows(sy_engine *engine, sequence *seq, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t r = engine->n_rows++, position = seq->n_computed + i;
        engine->row_of[r] = seq;
        engine->row_token[r] = seq->token[position];
        engine->row_position[r] = position;
        engine->row_seq[r] = &seq->kv;
        engine->row_request[r] = seq->id;
        engine->row_may_degrade[r] = seq->degraded != 0;
    }
    seq->last_step = engine->step;
    engine->member[engine->n_members++] = seq;
}

/* Members of a step share their policy, because a policy is a property of a routing message: the
 * one who waited longest chooses it. Sequences that decode come first, one row each; what is left
 * of the budget goes to prompts. */
static void choose_rows(sy_engine *engine)
{
    const sequence *oldest = engine->running;

    SY_ASSERT(oldest != NULL); /* the engine does not step without work */
    engine->step++;
    engine->n_rows = engine->n_members = 0;
    for (const sequence *seq = engine->running; seq != NULL; seq = seq->next)
        if (seq->last_step < oldest->last_step) oldest = seq;
    const uint32_t policy = oldest->experts_per_token;
    for (sequence *seq = engine->running; seq != NULL; seq = seq->next)
        if (seq->experts_per_token == policy && pending(seq) == 1) add_rows(engine, seq, 1);
    for (sequence *seq = engine->running; seq != NULL; seq = seq->next) {
        const uint32_t room = engine->config.step_rows_max - engine->n_rows;
        if (seq->experts_per_token != policy || pending(seq) == 1 || room == 0) continue;
        add_rows(engine, seq, SY_MIN(pending(seq), room));
    }
}

/* ---- the model over the rows ---- */

static sy_batch batch_of(const sy_engine *engine)
{
    return (sy_batch){engine->n_rows, engine->row_token, engine->row_position, engine->row_seq};
}

/* Takes the rows of sequences that failed out of the rest of the step. */
static void drop_failed_rows(sy_engine *engine)
{
    const size_t hidden = engine->desc->hidden;
    uint32_t kept = 0;

    for (uint32_t r = 0; r < engine->n_rows; r++) {
        if (engine->row_of[r]->error.status != SY_OK) continue;
        if (kept != r) {
            engine->row_of[kept] = engine->row_of[r];
            engine->row_token[kept] = engine->row_token[r];
            engine->row_position[kept] = engine->row_position[r];
            engine->row_seq[kept] = engine->row_seq[r];
            engine->row_request[kept] = engine->row_request[r];
            engine->row_may_degrade[kept] = engine->row_may_degrade[r];
            memmove(engine->x + kept * hidden, engine->x + r * hidden, hidden * sizeof(float));
            memmove(engine->y + kept * hidden, engine->y + r * hidden, hidden * sizeof(float));
        }
        kept++;
    }
    engine->n_rows = kept;
    const sy_batch batch = batch_of(engine);
    sy_trunk_rebatch(engine->config.trunk, engine->ws, &batch);
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

/* The whole call failed: every row did, for the same reason. */
static void fail_rows(sy_moe_call *call)
{
    if (call->error.status == SY_OK)
        sy_error_set(&call->error, SY_EINTERNAL, "layer %u failed without saying why", call->layer);
    call->n_row_errors = 0;
    memset(call->failed, sy_moe_add_error(call, &call->error), call->n_rows);
}

/* The MoE block of one layer; sequences whose rows failed get the error, and their rows leave the
 * step. */
static void moe_layer(sy_engine *engine, uint32_t layer)
{
    sy_moe_call call = {.layer = layer,
                        .n_rows = engine->n_rows,
                        .experts_per_token = engine->row_of[0]->experts_per_token,
                        .request = engine->row_request,
                        .x = engine->xn,
                        .y = engine->y,
                        .deadline_us = sy_clock_us() + engine->config.layer_timeout_us,
                        .may_degrade = engine->row_may_degrade,
                        .note = engine->row_note,
                        .failed = engine->row_failed};
    int failed = 0;

    sy_error_clear(&call.error);
    memset(engine->row_note, 0, engine->n_rows);
    sy_trunk_moe_input(engine->config.trunk, layer, engine->xn, engine->x, engine->n_rows);
    if (engine->config.moe.layer(engine->config.moe.ctx, &call) != SY_OK) fail_rows(&call);
    for (uint32_t i = 0; i < engine->n_members; i++)
        add_times(&engine->member[i]->moe, &call.times);
    for (uint32_t r = 0; r < engine->n_rows; r++) {
        if (!engine->row_failed[r]) {
            add_note(engine->row_of[r], engine->row_note[r]);
            continue;
        }
        failed = 1;
        engine->row_of[r]->error = call.row_error[engine->row_failed[r] - 1];
    }
    if (failed) drop_failed_rows(engine);
    sy_trunk_add(engine->config.trunk, engine->x, engine->y, engine->n_rows);
}

static void run_model(sy_engine *engine)
{
    sy_batch batch = batch_of(engine);

    sy_trunk_begin(engine->config.trunk, engine->ws, engine->x, &batch);
    for (uint32_t layer = 0; layer < engine->desc->n_layers && engine->n_rows > 0; layer++) {
        batch = batch_of(engine);
        sy_trunk_attention(engine->config.trunk, engine->ws, engine->kv, layer, engine->x, &batch);
        moe_layer(engine, layer);
    }
}

/* ---- drawing ---- */

static void draw_task(void *arg, size_t i, unsigned thread)
{
    sy_engine *engine = arg;
    sequence *seq = engine->head_seq[i];
    drawn *d = &engine->draw[i];
    void *scratch = (uint8_t *)engine->sampler_scratch + thread * engine->sampler_bytes;
    const float *logits = engine->logits + i * engine->desc->vocab;
    sy_status st = sy_sample(&d->token, logits, engine->desc->vocab, &seq->sampler, seq->token,
                             seq->n_tokens, seq->n_tokens, scratch, engine->kernels);

    d->logits = seq->want_logits ? logits : NULL;
    if (st != SY_OK) {
        sy_error_set(&seq->error, st, "the logits after %u tokens hold a NaN", seq->n_tokens);
        return;
    }
    if (seq->logprobs || seq->top_logprobs > 0)
        sy_logprobs(&d->logprob, d->top, seq->top_logprobs, logits, engine->desc->vocab, d->token,
                    scratch, engine->kernels);
}

/* The rows that end a sequence's tokens need logits; others only filled the cache. */
static uint32_t choose_heads(sy_engine *engine)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < engine->n_rows; r++) {
        sequence *seq = engine->row_of[r];
        if (engine->row_position[r] + 1 != seq->n_tokens) continue;
        engine->head_row[n] = r;
        engine->head_seq[n++] = seq;
    }
    return n;
}

uint32_t engine_step(sy_engine *engine, sequence **ended)
{
    const sy_moe *moe = &engine->config.moe;
    uint32_t n_heads, n_ended = 0;

    choose_rows(engine);
    run_model(engine);
    for (uint32_t r = 0; r < engine->n_rows; r++)
        engine->row_of[r]->n_computed = engine->row_position[r] + 1;
    n_heads = choose_heads(engine);
    if (n_heads == 0) return 0;
    sy_trunk_head(engine->config.trunk, engine->ws, engine->logits, engine->x, engine->head_row,
                  n_heads);
    sy_pool_run(engine->config.pool, n_heads, draw_task, engine);
    const uint64_t hash = moe->placement_hash == NULL ? 0 : moe->placement_hash(moe->ctx);
    for (uint32_t i = 0; i < n_heads; i++) {
        sequence *seq = engine->head_seq[i];
        if (seq->error.status != SY_OK) continue; /* ends between steps */
        if (sequence_take(seq, &engine->draw[i], engine->desc, engine->config.tokenizer, hash))
            ended[n_ended++] = seq;
    }
    return n_ended;
}
