/* sy_step.c - one step of the engine: which rows take part, and what is drawn. */
#include <stdlib.h>

#include "sy_engine_internal.h"

static void *rows_array(size_t n, size_t size)
{
    return aligned_alloc(64, (n * size + 63) & ~(size_t)63);
}

sy_status engine_step_open(sy_engine *engine, sy_error *err)
{
    const size_t rows = engine->config.step_rows_max, seqs = engine->config.running_max;
    const size_t vocab = engine->desc->vocab;
    const unsigned threads = engine->config.pool == NULL ? 1 : sy_pool_threads(engine->config.pool);
    step_rows *r = &engine->rows;

    engine->sampler_bytes = (sy_sampler_scratch(engine->desc->vocab) + 63) & ~(size_t)63;
    r->owner = rows_array(rows, sizeof(*r->owner));
    r->token = rows_array(rows, sizeof(*r->token));
    r->position = rows_array(rows, sizeof(*r->position));
    r->seq = rows_array(rows, sizeof(*r->seq));
    r->request = rows_array(rows, sizeof(*r->request));
    r->failed = rows_array(rows, sizeof(*r->failed));
    r->may_degrade = rows_array(rows, sizeof(*r->may_degrade));
    r->note = rows_array(rows, sizeof(*r->note));
    r->kept = rows_array(rows, sizeof(*r->kept));
    engine->head_row = rows_array(seqs, sizeof(*engine->head_row));
    engine->head_seq = rows_array(seqs, sizeof(*engine->head_seq));
    engine->logits = rows_array(seqs * vocab, sizeof(float));
    engine->draw = rows_array(seqs, sizeof(*engine->draw));
    engine->sampler_scratch = rows_array(threads, engine->sampler_bytes);
    if (!r->owner || !r->token || !r->position || !r->seq || !r->request || !r->failed ||
        !r->may_degrade || !r->note || !r->kept || !engine->head_row || !engine->head_seq ||
        !engine->logits || !engine->draw || !engine->sampler_scratch)
        return sy_error_set(err, SY_ENOMEM, "no memory for steps of %zu rows", rows);
    return SY_OK;
}

void engine_step_close(sy_engine *engine)
{
    const step_rows *r = &engine->rows;

    free(r->owner);
    free(r->token);
    free(r->position);
    free(r->seq);
    free(r->request);
    free(r->failed);
    free(r->may_degrade);
    free(r->note);
    free(r->kept);
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
    const step_rows *rows = &engine->rows;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t r = engine->n_rows++, position = seq->n_computed + i;
        rows->owner[r] = seq;
        rows->token[r] = seq->token[position];
        rows->position[r] = position;
        rows->seq[r] = &seq->kv;
        rows->request[r] = seq->id;
        rows->may_degrade[r] = seq->degraded != 0;
    }
    seq->last_step = engine->step;
}

/* Members of a step share their policy, because a policy is a property of a routing message: the
 * one who waited longest chooses it. Sequences that decode come first, one row each; what is left
 * of the budget goes to prompts, and less of it while somebody decodes, who would wait for it. */
static void choose_rows(sy_engine *engine)
{
    const sequence *oldest = engine->running;
    uint32_t rows_max = engine->config.step_rows_max;

    SY_ASSERT(oldest != NULL); /* the engine does not step without work */
    engine->step++;
    engine->n_rows = 0;
    for (const sequence *seq = engine->running; seq != NULL; seq = seq->next)
        if (seq->last_step < oldest->last_step) oldest = seq;
    const uint32_t policy = oldest->experts_per_token;
    for (sequence *seq = engine->running; seq != NULL; seq = seq->next)
        if (seq->experts_per_token == policy && pending(seq) == 1) add_rows(engine, seq, 1);
    engine->n_decode = engine->n_rows;
    if (engine->n_decode > 0)
        rows_max = SY_MIN(rows_max, engine->n_decode + engine->config.prompt_rows_max);
    for (sequence *seq = engine->running; seq != NULL; seq = seq->next) {
        const uint32_t room = rows_max - engine->n_rows;
        if (seq->experts_per_token != policy || pending(seq) == 1 || room == 0) continue;
        add_rows(engine, seq, SY_MIN(pending(seq), room));
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

/* What a half has computed: its sequences move on, and the rows that end their tokens need logits;
 * others only filled the cache. Returns the heads chosen so far. */
static uint32_t finish_half(sy_engine *engine, const half *h, uint32_t n_heads)
{
    for (uint32_t r = 0; r < h->n_rows; r++) {
        sequence *seq = h->rows.owner[r];
        if (seq->error.status != SY_OK) continue; /* in the other half; it ends between steps */
        seq->n_computed = h->rows.position[r] + 1;
        engine->total_rows++;
        if (seq->n_computed != seq->n_tokens) continue;
        engine->head_row[n_heads] = (sy_trunk_row){h->ws, r};
        engine->head_seq[n_heads++] = seq;
    }
    return n_heads;
}

/* What the trunk could not give, none of them has. */
static void fail_heads(sy_engine *engine, uint32_t n_heads, const sy_error *why)
{
    for (uint32_t i = 0; i < n_heads; i++) engine->head_seq[i]->error = *why;
}

uint32_t engine_step(sy_engine *engine, sequence **ended)
{
    const sy_moe *moe = &engine->config.moe;
    uint32_t n_heads = 0, n_ended = 0;
    sy_error err;

    sy_error_clear(&err);
    choose_rows(engine);
    engine_halves_run(engine);
    for (int i = 0; i < 2; i++) n_heads = finish_half(engine, &engine->half[i], n_heads);
    if (n_heads == 0) return 0;
    if (sy_trunk_head(engine->config.trunk, engine->logits, engine->head_row, n_heads, &err) !=
        SY_OK) {
        fail_heads(engine, n_heads, &err);
        return 0;
    }
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
