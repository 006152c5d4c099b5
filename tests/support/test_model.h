/* test_model.h - a whole model in one process, and a way to run prompts through it: for tests of
 * the engine. */
#ifndef TEST_MODEL_H
#define TEST_MODEL_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_clock.h"
#include "sy_engine.h"

typedef struct test_model {
    sy_model *model;
    sy_tokenizer *tokenizer;
    sy_pool *pool;
    sy_trunk *trunk;
    sy_moe_local *local;
    sy_engine *engine;
} test_model;

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static inline void test_model_open_as(test_model *m, const char *dir, const char *kernels_name,
                                      unsigned threads, sy_precision precision,
                                      sy_engine_config config)
{
    sy_error err = {0};
    const sy_kernels *kernels = NULL;

    memset(m, 0, sizeof(*m));
    must(sy_kernels_choose(&kernels, kernels_name, &err), &err);
    must(sy_pool_open(&m->pool, threads, "test"), &err);
    must(sy_model_open(&m->model, dir, NULL, &err), &err);
    must(sy_tokenizer_open(&m->tokenizer, dir, sy_model_describe(m->model)->vocab, &err), &err);
    must(sy_trunk_open(&m->trunk, m->model, kernels, precision, m->pool, &err), &err);
    must(
        sy_moe_local_open(&m->local, m->model, kernels, precision, m->pool, NULL, NULL, NULL, &err),
        &err);
    config.trunk = m->trunk;
    config.tokenizer = m->tokenizer;
    config.moe = config.moe.layer != NULL ? config.moe : sy_moe_local_ops(m->local);
    config.pool = m->pool;
    must(sy_engine_open(&m->engine, &config, &err), &err);
}

static inline void test_model_open(test_model *m, const char *dir, const char *kernels_name,
                                   unsigned threads, sy_engine_config config)
{
    test_model_open_as(m, dir, kernels_name, threads, (sy_precision){0}, config);
}

static inline void test_model_close(test_model *m)
{
    sy_engine_close(m->engine);
    sy_moe_local_close(m->local);
    sy_trunk_close(m->trunk);
    sy_tokenizer_close(m->tokenizer);
    sy_model_close(m->model);
    sy_pool_free(m->pool);
}

/* What a sequence gave, collected whole. */
typedef struct test_output {
    pthread_mutex_t mutex;
    pthread_cond_t done;
    int ended, n_ended;
    uint32_t token[2048], n_tokens;
    float *logits; /* [n_tokens, vocab] when asked for */
    size_t vocab;
    char text[16384];
    size_t text_bytes;
    float logprob[2048];
    sy_top_token top[SY_TOP_LOGPROBS_MAX]; /* of the last token */
    sy_gen_end reason;
    sy_error error;
    sy_gen_stats stats;
} test_output;

static inline void test_output_init(test_output *out, size_t vocab)
{
    memset(out, 0, sizeof(*out));
    pthread_mutex_init(&out->mutex, NULL);
    pthread_cond_init(&out->done, NULL);
    out->vocab = vocab;
}

static inline void test_output_free(test_output *out)
{
    free(out->logits);
    pthread_mutex_destroy(&out->mutex);
    pthread_cond_destroy(&out->done);
}

static inline void test_on_event(void *user, const sy_gen_event *e)
{
    test_output *out = user;

    pthread_mutex_lock(&out->mutex);
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        if (e->logits != NULL) {
            out->logits = realloc(out->logits, (out->n_tokens + 1) * out->vocab * sizeof(float));
            memcpy(out->logits + out->n_tokens * out->vocab, e->logits, out->vocab * sizeof(float));
        }
        if (e->logprob != NULL) out->logprob[out->n_tokens] = e->logprob[i];
        if (e->n_top > 0) memcpy(out->top, e->top, e->n_top * sizeof(*e->top));
        out->token[out->n_tokens++] = e->token[i];
    }
    memcpy(out->text + out->text_bytes, e->text == NULL ? "" : e->text, e->text_bytes);
    out->text_bytes += e->text_bytes;
    if (e->ended) {
        out->ended = 1;
        out->n_ended++;
        out->reason = e->reason;
        out->error = e->error;
        out->stats = e->stats;
        pthread_cond_signal(&out->done);
    }
    pthread_mutex_unlock(&out->mutex);
}

static inline void test_wait(test_output *out)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 240;
    pthread_mutex_lock(&out->mutex);
    while (!out->ended && rc == 0) rc = pthread_cond_timedwait(&out->done, &out->mutex, &until);
    pthread_mutex_unlock(&out->mutex);
    if (rc != 0) fail_msg("no end after 240 s");
}

static inline sy_gen_params test_params(test_output *out, const uint32_t *prompt, uint32_t n,
                                        uint32_t max_tokens)
{
    return (sy_gen_params){.prompt = prompt,
                           .n_prompt = n,
                           .max_tokens = max_tokens,
                           .sampler = {.top_p = 1, .repetition_penalty = 1},
                           .deadline_us = SY_NEVER_US,
                           .user = out,
                           .on_event = test_on_event};
}

static inline uint64_t test_submit(test_model *m, const sy_gen_params *params)
{
    sy_error err = {0};
    uint64_t id = 0;

    must(sy_engine_submit(m->engine, params, &id, &err), &err);
    return id;
}

#endif
