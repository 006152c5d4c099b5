/* sy_engine.c - the engine's outside: submission, admission, cancellation, and the thread that
 * steps. */
#include "sy_engine_internal.h"

#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"

/* ---- admission and endings: engine thread, mutex held where said ---- */

/* At the end: prompts are computed in the order of their arrival. Mutex held. */
static void append_running(sy_engine *engine, sequence *seq)
{
    sequence **at = &engine->running;

    while (*at != NULL) at = &(*at)->next;
    *at = seq;
    seq->next = NULL;
}

/* Moves waiting sequences to running while there is room: first come, first served, so that none
 * starves. A sequence takes all the pages it may ever need, so that what runs can always finish.
 * Mutex held. */
static void admit(sy_engine *engine)
{
    while (engine->waiting != NULL && engine->load.running < engine->config.running_max) {
        sequence *seq = engine->waiting;
        sy_status st = sy_kv_reserve(engine->kv, &seq->kv, seq->n_max);
        if (st == SY_ELIMIT) return; /* until somebody ends */
        if (st != SY_OK) {
            sy_error_set(&seq->error, st, "no memory for the sequence's pages");
            return; /* it ends before the next step */
        }
        engine->waiting = seq->next;
        if (engine->waiting == NULL) engine->waiting_tail = &engine->waiting;
        append_running(engine, seq);
        seq->started_us = sy_clock_us();
        engine->load.waiting--;
        engine->load.running++;
    }
}

/* Gives every sequence that may not go on its reason. Mutex held. */
static void mark_stopped(sy_engine *engine, sequence *list)
{
    const int64_t now_us = sy_clock_us();

    for (sequence *seq = list; seq != NULL; seq = seq->next) {
        if (seq->error.status != SY_OK) continue;
        if (engine->closing)
            sy_error_set(&seq->error, SY_ECANCELLED, "the server is shutting down");
        else if (atomic_load_explicit(&seq->cancelled, memory_order_relaxed))
            sy_error_set(&seq->error, SY_ECANCELLED, "the request was cancelled");
        else if (now_us >= seq->deadline_us)
            sy_error_set(&seq->error, SY_EDEADLINE, "the deadline passed after %u tokens",
                         seq->n_tokens - seq->n_prompt);
    }
}

/* Takes out of a list what failed; returns it as a list of its own. Mutex held. */
static sequence *split_failed(sequence **list, uint32_t *count)
{
    sequence *failed = NULL;

    while (*list != NULL) {
        sequence *seq = *list;
        if (seq->error.status == SY_OK) {
            list = &seq->next;
            continue;
        }
        *list = seq->next;
        seq->next = failed;
        failed = seq;
        (*count)--;
    }
    return failed;
}

static void end_failed(sy_engine *engine, sequence *failed)
{
    while (failed != NULL) {
        sequence *seq = failed;
        failed = seq->next;
        sequence_fail(seq);
        sy_kv_release(engine->kv, &seq->kv);
        sequence_free(seq);
    }
}

/* Mutex held. */
static void fix_tail(sy_engine *engine)
{
    engine->waiting_tail = &engine->waiting;
    while (*engine->waiting_tail != NULL) engine->waiting_tail = &(*engine->waiting_tail)->next;
}

static void remove_running(sy_engine *engine, sequence *seq)
{
    sequence **at = &engine->running;

    while (*at != seq) at = &(*at)->next;
    *at = seq->next;
    engine->load.running--;
}

/* Everything between two steps. Returns 0 when the engine is closing and empty. */
static int between_steps(sy_engine *engine)
{
    sequence *failed, *refused;

    pthread_mutex_lock(&engine->mutex);
    while (engine->running == NULL && engine->waiting == NULL && !engine->closing) {
        pthread_cond_broadcast(&engine->idle);
        pthread_cond_wait(&engine->wake, &engine->mutex);
    }
    mark_stopped(engine, engine->running);
    mark_stopped(engine, engine->waiting);
    failed = split_failed(&engine->running, &engine->load.running);
    refused = split_failed(&engine->waiting, &engine->load.waiting);
    fix_tail(engine);
    pthread_mutex_unlock(&engine->mutex);
    end_failed(engine, failed);
    end_failed(engine, refused);

    pthread_mutex_lock(&engine->mutex);
    admit(engine);
    engine->load.kv_free_pages = sy_kv_free_pages(engine->kv);
    const int go_on = engine->running != NULL || engine->waiting != NULL || !engine->closing;
    pthread_mutex_unlock(&engine->mutex);
    return go_on;
}

static void *engine_thread(void *arg)
{
    sy_engine *engine = arg;
    sequence **ended = calloc(engine->config.running_max, sizeof(*ended));

    SY_ASSERT(ended != NULL); /* start-up */
    while (between_steps(engine)) {
        const uint32_t n = engine->running == NULL ? 0 : engine_step(engine, ended);
        pthread_mutex_lock(&engine->mutex);
        engine->load.steps = engine->step;
        engine->load.rows = engine->total_rows;
        for (uint32_t i = 0; i < n; i++) remove_running(engine, ended[i]);
        pthread_mutex_unlock(&engine->mutex);
        for (uint32_t i = 0; i < n; i++) {
            sy_kv_release(engine->kv, &ended[i]->kv);
            sequence_free(ended[i]);
        }
    }
    pthread_mutex_lock(&engine->mutex);
    pthread_cond_broadcast(&engine->idle);
    pthread_mutex_unlock(&engine->mutex);
    free(ended);
    return NULL;
}

/* ---- outside ---- */

static void fill_defaults(sy_engine_config *config, const sy_model_desc *desc)
{
    if (config->running_max == 0) config->running_max = 64;
    if (config->queue_max == 0) config->queue_max = 1024;
    if (config->step_rows_max == 0) config->step_rows_max = 512;
    config->step_rows_max =
        SY_MAX(config->step_rows_max, config->running_max); /* decode always fits one step */
    if (config->prompt_rows_max == 0) config->prompt_rows_max = config->step_rows_max;
    if (config->layer_timeout_us == 0) config->layer_timeout_us = 30 * 1000000;
    if (config->kv_bytes_max == 0) {
        const uint64_t pages =
            (uint64_t)config->running_max * ((desc->context + SY_KV_PAGE - 1) / SY_KV_PAGE);
        config->kv_bytes_max = SY_MIN(pages * sy_trunk_page_bytes(config->trunk), 1ull << 30);
    }
}

sy_status sy_engine_open(sy_engine **out, const sy_engine_config *config, sy_error *err)
{
    sy_engine *engine = calloc(1, sizeof(*engine));
    uint64_t pages;
    sy_status st = SY_ENOMEM;

    *out = NULL;
    if (engine == NULL) return sy_error_set(err, st, "no memory for the engine");
    engine->config = *config;
    engine->desc = sy_trunk_describe(config->trunk);
    engine->kernels = sy_trunk_kernels(config->trunk);
    fill_defaults(&engine->config, engine->desc);
    engine->waiting_tail = &engine->waiting;
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->wake, NULL);
    pthread_mutex_init(&engine->turn_mutex, NULL);
    pthread_cond_init(&engine->turn_changed, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->idle, &attr);
    pthread_condattr_destroy(&attr);
    pages = engine->config.kv_bytes_max / sy_trunk_page_bytes(config->trunk);
    SY_TRY(sy_kv_open(&engine->kv, config->trunk,
                      (uint32_t)SY_MIN(SY_MAX(pages, 1u), UINT32_MAX / 2), err));
    SY_TRY(engine_step_open(engine, err));
    SY_TRY(engine_halves_open(engine, err));
    engine->load = (sy_engine_load){.running_max = engine->config.running_max,
                                    .queue_max = engine->config.queue_max,
                                    .kv_pages = sy_kv_pages(engine->kv),
                                    .kv_free_pages = sy_kv_free_pages(engine->kv)};
    if (pthread_create(&engine->thread, NULL, engine_thread, engine) != 0) {
        st = sy_error_set(err, SY_EIO, "no thread for the engine");
        goto out;
    }
    *out = engine;
    return SY_OK;
out:
    engine->closing = 2; /* no thread to join */
    sy_engine_close(engine);
    return st;
}

void sy_engine_close(sy_engine *engine)
{
    if (engine == NULL) return;
    if (engine->closing != 2) {
        pthread_mutex_lock(&engine->mutex);
        engine->closing = 1;
        pthread_cond_broadcast(&engine->wake);
        pthread_mutex_unlock(&engine->mutex);
        pthread_join(engine->thread, NULL);
    }
    engine_halves_close(engine);
    engine_step_close(engine);
    sy_kv_close(engine->kv);
    pthread_cond_destroy(&engine->turn_changed);
    pthread_mutex_destroy(&engine->turn_mutex);
    pthread_cond_destroy(&engine->idle);
    pthread_cond_destroy(&engine->wake);
    pthread_mutex_destroy(&engine->mutex);
    free(engine);
}

static sy_status check_params(const sy_engine *engine, const sy_gen_params *p, sy_error *err)
{
    const sy_model_desc *d = engine->desc;

    if (p->n_prompt == 0)
        return sy_error_set(err, SY_EINVAL, "prompt: empty: give at least one token");
    if (p->n_prompt >= d->context)
        return sy_error_set(
            err, SY_EINVAL,
            "prompt: %u tokens, but the model's context is %u and the answer needs room",
            p->n_prompt, d->context);
    for (uint32_t i = 0; i < p->n_prompt; i++)
        if (p->prompt[i] >= d->vocab)
            return sy_error_set(err, SY_EINVAL, "prompt: token %u at %u, but the vocabulary has %u",
                                p->prompt[i], i, d->vocab);
    if (p->n_stops > SY_STOPS_MAX)
        return sy_error_set(err, SY_EINVAL, "stop: %u texts, at most %d", p->n_stops, SY_STOPS_MAX);
    for (uint32_t i = 0; i < p->n_stops; i++)
        if (p->stop[i][0] == '\0') return sy_error_set(err, SY_EINVAL, "stop: text %u is empty", i);
    if (p->top_logprobs > SY_TOP_LOGPROBS_MAX || p->top_logprobs > d->vocab)
        return sy_error_set(err, SY_EINVAL, "top_logprobs: %u, at most %d", p->top_logprobs,
                            SY_TOP_LOGPROBS_MAX);
    if (p->experts_per_token > d->top_k)
        return sy_error_set(err, SY_EINVAL, "experts_per_token: %u, but the model has %u",
                            p->experts_per_token, d->top_k);
    return SY_OK;
}

static sy_status enqueue(sy_engine *engine, sequence *seq, sy_error *err)
{
    const uint32_t pages = seq->n_max / SY_KV_PAGE + (seq->n_max % SY_KV_PAGE != 0);

    if (engine->closing) return sy_error_set(err, SY_ECANCELLED, "the server is shutting down");
    if (engine->load.waiting >= engine->config.queue_max)
        return sy_error_set(err, SY_ELIMIT, "%u requests wait already, which is the limit",
                            engine->config.queue_max);
    if (pages > engine->load.kv_pages)
        return sy_error_set(err, SY_ELIMIT,
                            "prompt and max_tokens need %u KV pages of %d tokens, the cache has %u",
                            pages, SY_KV_PAGE, engine->load.kv_pages);
    seq->id = ++engine->next_id;
    *engine->waiting_tail = seq;
    engine->waiting_tail = &seq->next;
    engine->load.waiting++;
    pthread_cond_signal(&engine->wake);
    return SY_OK;
}

sy_status sy_engine_submit(sy_engine *engine, const sy_gen_params *params, uint64_t *id,
                           sy_error *err)
{
    sequence *seq;
    sy_status st = check_params(engine, params, err);

    if (st != SY_OK) return st;
    seq = sequence_make(0, params, engine->desc);
    if (seq == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the request");
    pthread_mutex_lock(&engine->mutex);
    st = enqueue(engine, seq, err);
    if (st == SY_OK) *id = seq->id;
    pthread_mutex_unlock(&engine->mutex);
    if (st != SY_OK) sequence_free(seq);
    return st;
}

void sy_engine_cancel(sy_engine *engine, uint64_t id)
{
    pthread_mutex_lock(&engine->mutex);
    for (int list = 0; list < 2; list++)
        for (sequence *seq = list == 0 ? engine->running : engine->waiting; seq != NULL;
             seq = seq->next)
            if (seq->id == id) atomic_store_explicit(&seq->cancelled, 1, memory_order_relaxed);
    pthread_mutex_unlock(&engine->mutex);
}

void sy_engine_get_load(const sy_engine *engine, sy_engine_load *out)
{
    sy_engine *e = (sy_engine *)(uintptr_t)engine;

    pthread_mutex_lock(&e->mutex);
    *out = e->load;
    pthread_mutex_unlock(&e->mutex);
}

int sy_engine_wait_idle(sy_engine *engine, int64_t deadline_us)
{
    int idle;
    int rc = 0;
    const struct timespec until = {deadline_us / 1000000, deadline_us % 1000000 * 1000};

    pthread_mutex_lock(&engine->mutex);
    while (!(idle = engine->running == NULL && engine->waiting == NULL) && rc == 0)
        rc = pthread_cond_timedwait(&engine->idle, &engine->mutex, &until);
    pthread_mutex_unlock(&engine->mutex);
    return idle;
}
