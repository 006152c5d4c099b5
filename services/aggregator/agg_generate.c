/* agg_generate.c - Generate: a request is queued by the loop, decoded and tokenized by the
 * admission thread, run by the engine, and streamed back from the engine's thread. A client that
 * goes away cancels its sequence; one that does not read is cut off by the call's own limits and
 * holds up nobody. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agg_policies.h"
#include "aggregator.h"
#include "sy_clock.h"
#include "sy_fault.h"
#include "sy_log.h"

enum {
    REQUEST_BYTES_MAX = 64 << 20,
    LOGITS_QUEUED_MAX = 64,
    SLOW_NS = 20 * 1000 * 1000 /* what the fault "generate.admit" adds behind a submission */
};

/* One generation: held by the call until its end, by the admission queue until it has been admitted
 * (the engine may be done with it before that, and its call ended), and by the engine until its
 * last event. */
typedef struct generation {
    atomic_int refs;
    aggregator *agg;
    sy_call *call;
    atomic_int call_ended;
    _Atomic uint64_t id;        /* the engine's, 0 before submission */
    int finished;               /* engine thread: sy_call_finish was called */
    uint32_t experts_per_token; /* a departure from the checkpoint's router that was asked for; 0:
                                   none */
} generation;

static void generation_unref(generation *gen)
{
    if (atomic_fetch_sub_explicit(&gen->refs, 1, memory_order_acq_rel) != 1) return;
    sy_call_unref(gen->call);
    free(gen);
}

/* ---- engine thread ---- */

static sy_status send_reply(generation *gen, const sy_generate_reply *reply, const float *logits)
{
    const size_t vocab = gen->agg->desc->vocab;
    sy_generate_reply r = *reply;
    sy_buf *bulk = NULL;
    sy_frame frame;

    if (logits != NULL) {
        if (sy_call_queued(gen->call) > LOGITS_QUEUED_MAX) return SY_ELIMIT;
        bulk = sy_buf_alloc(vocab * sizeof(float));
        if (bulk == NULL) return SY_ENOMEM;
        memcpy(bulk->data, logits, vocab * sizeof(float));
        r.delta.logits = (sy_rows){SY_F32, 1, (uint32_t)vocab, bulk->data};
    }
    sy_status st = sy_wire_generate_reply_encode(&frame, &r, bulk);
    sy_buf_unref(bulk);
    return st == SY_OK ? sy_call_send(gen->call, &frame) : st;
}

/* The client does not take what it asked for: end it, and the sequence with it. */
static void give_up(generation *gen, sy_status why)
{
    sy_error err = {0};

    sy_error_clear(&err);
    sy_error_set(&err, why, "the client does not read its answer: %zu messages wait",
                 sy_call_queued(gen->call));
    sy_call_finish(gen->call, &err);
    gen->finished = 1;
    sy_engine_cancel(gen->agg->engine, atomic_load(&gen->id));
}

static void send_delta(generation *gen, const sy_gen_event *e)
{
    sy_token_logprob top[SY_TOP_LOGPROBS_MAX];
    const sy_generate_reply reply = {.delta = {.n_tokens = e->n_tokens,
                                               .token = e->token,
                                               .text = e->text,
                                               .text_bytes = e->text_bytes,
                                               .n_logprobs = e->logprob == NULL ? 0 : e->n_tokens,
                                               .logprob = e->logprob,
                                               .n_top = e->n_top,
                                               .top = top}};

    for (uint32_t i = 0; i < e->n_top; i++)
        top[i] = (sy_token_logprob){e->top[i].token, e->top[i].logprob};
    sy_status st = send_reply(gen, &reply, e->logits);
    if (st != SY_OK && st != SY_ECANCELLED) give_up(gen, st);
}

static void send_finish(generation *gen, const sy_gen_event *e)
{
    const sy_gen_stats *s = &e->stats;
    agg_policies policy;

    agg_policies_list(&policy, gen->experts_per_token, gen->agg->desc->top_k, s->degraded_rows,
                      s->other_weights_rows);
    agg_policies_add_precision(&policy, gen->agg->precision, gen->agg->expert_precision);
    agg_policies_add_arithmetic(&policy, gen->agg->expert_arithmetic, gen->agg->expert_precision);
    agg_policies_add_trunk(&policy, sy_trunk_arithmetic(gen->agg->trunk), gen->agg->precision);
    agg_policies_add_wire_rows(&policy, gen->agg->moe_config.wire_rows);
    const sy_generate_reply reply = {
        .is_finish = 1,
        .finish = {.reason = e->reason == SY_GEN_STOP ? SY_FINISH_STOP : SY_FINISH_LENGTH,
                   .prompt_tokens = s->prompt_tokens,
                   .generated_tokens = s->generated_tokens,
                   .queue_ms = (double)s->queue_us / 1e3,
                   .first_token_ms = (double)s->first_token_us / 1e3,
                   .total_ms = (double)s->total_us / 1e3,
                   .decode_tokens_per_s = s->decode_tokens_per_s,
                   .route_ms = (double)s->moe.route_us / 1e3,
                   .dispatch_ms = (double)s->moe.dispatch_us / 1e3,
                   .compute_ms = (double)s->moe.compute_us / 1e3,
                   .combine_ms = (double)s->moe.combine_us / 1e3,
                   .placement_hash = s->placement_hash,
                   .n_policies = policy.n,
                   .policy = policy.list,
                   .degraded_rows = s->degraded_rows}};
    sy_status st = send_reply(gen, &reply, NULL);

    if (st != SY_OK && st != SY_ECANCELLED) {
        give_up(gen, st);
        return;
    }
    sy_call_finish(gen->call, NULL);
}

static void on_event(void *user, const sy_gen_event *e)
{
    generation *gen = user;

    if (e->n_tokens > 0 && !gen->finished) send_delta(gen, e);
    if (!e->ended) return;
    if (!gen->finished && e->error.status == SY_OK)
        send_finish(gen, e);
    else if (!gen->finished)
        sy_call_finish(gen->call, &e->error);
    generation_unref(gen);
}

/* ---- admission thread ---- */

static sy_status tokenize(const aggregator *agg, const sy_generate_request *request, sy_ids *ids,
                          sy_error *err)
{
    if (request->token != NULL) {
        for (uint32_t i = 0; i < request->n_tokens; i++)
            if (sy_ids_push(ids, request->token[i]) != SY_OK)
                return sy_error_set(err, SY_ENOMEM, "no memory");
        return SY_OK;
    }
    if (!request->is_chat)
        return sy_tokenizer_encode(agg->tokenizer, ids, request->prompt, request->prompt_bytes,
                                   SY_SPECIAL_ALL, err);
    if (agg->chat_error.status != SY_OK) {
        *err = agg->chat_error;
        return err->status;
    }
    return sy_chat_encode(ids, agg->chat, agg->tokenizer, request->prompt, request->prompt_bytes,
                          err);
}

static sy_gen_params params_of(const sy_generate_request *r, const sy_ids *ids, generation *gen)
{
    return (sy_gen_params){.prompt = ids->id,
                           .n_prompt = (uint32_t)ids->n,
                           .max_tokens = r->max_tokens,
                           .sampler = {r->sampling.temperature, r->sampling.top_k,
                                       r->sampling.top_p, r->sampling.min_p,
                                       r->sampling.repetition_penalty, r->seed},
                           .n_stops = r->n_stops,
                           .stop = r->stop,
                           .logprobs = r->logprobs,
                           .want_logits = r->want_logits,
                           .ignore_eos = r->ignore_eos,
                           .top_logprobs = r->top_logprobs,
                           .experts_per_token = r->policy.experts_per_token,
                           .degraded = r->policy.degraded,
                           .deadline_us = sy_call_deadline_us(gen->call),
                           .user = gen,
                           .on_event = on_event};
}

static sy_status submit(aggregator *agg, generation *gen, const sy_generate_request *request,
                        sy_error *err)
{
    sy_ids ids = {0};
    uint64_t id = 0;
    sy_status st;

    SY_TRY(sy_service_check_model(sy_model_name(agg->model), request->model, err));
    SY_TRY(tokenize(agg, request, &ids, err));
    gen->experts_per_token = request->policy.experts_per_token;
    const sy_gen_params params = params_of(request, &ids, gen);
    atomic_fetch_add_explicit(&gen->refs, 1,
                              memory_order_relaxed); /* the engine's, until its last event */
    st = sy_engine_submit(agg->engine, &params, &id, err);
    if (st != SY_OK) {
        generation_unref(gen);
        goto out;
    }
    if (sy_fault_hit("generate.admit")) nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
    atomic_store(&gen->id, id);
    if (atomic_load(&gen->call_ended)) sy_engine_cancel(agg->engine, id);
out:
    sy_ids_free(&ids);
    return st;
}

static void admit_job(aggregator *agg, agg_job *job, sy_arena *arena)
{
    generation *gen = sy_call_user(job->call);
    sy_generate_request request;
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(job->msg, &n);

    sy_error_clear(&err);
    sy_status st = sy_wire_generate_request_decode(&request, arena, iov, n, &err);
    if (st == SY_OK) st = submit(agg, gen, &request, &err);
    if (st != SY_OK) sy_call_finish(job->call, &err);
    sy_arena_reset(arena);
}

static void *admission_main(void *arg)
{
    aggregator *agg = arg;
    sy_arena arena;
    void *item;

    sy_arena_init(&arena, REQUEST_BYTES_MAX);
    while (sy_queue_pop(agg->admission, &item, SY_NEVER_US) == SY_OK) {
        agg_job *job = item;
        generation *gen = sy_call_user(job->call);
        if (!sy_call_ended(job->call)) admit_job(agg, job, &arena);
        generation_unref(gen);
        agg_job_free(job);
    }
    sy_arena_free(&arena);
    return NULL;
}

/* ---- the loop's callbacks ---- */

void agg_generate_message(void *ctx, sy_call *call, sy_msg *msg)
{
    aggregator *agg = ctx;
    generation *gen = calloc(1, sizeof(*gen));

    if (gen == NULL) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the request");
        return;
    }
    atomic_init(&gen->refs, 2); /* the call's and the queue's */
    gen->agg = agg;
    gen->call = sy_call_ref(call);
    sy_call_set_user(call, gen);
    if (!agg_job_push(agg->admission, call, msg, "prompts")) generation_unref(gen);
}

void agg_generate_end(void *ctx, sy_call *call, int cancelled)
{
    generation *gen = sy_call_user(call);

    (void)ctx;
    (void)cancelled;
    if (gen == NULL) return; /* it never sent a request */
    atomic_store(&gen->call_ended, 1);
    if (atomic_load(&gen->id) != 0) sy_engine_cancel(gen->agg->engine, atomic_load(&gen->id));
    generation_unref(gen);
}

sy_status agg_generate_open(aggregator *agg, sy_error *err)
{
    sy_status st = sy_queue_open(&agg->admission, AGG_QUEUE_MAX);

    if (st != SY_OK) return sy_error_set(err, st, "no memory for the admission queue");
    if (pthread_create(&agg->admission_thread, NULL, admission_main, agg) != 0)
        return sy_error_set(err, SY_EIO, "no thread for admission");
    agg->admission_started = 1;
    return SY_OK;
}

void agg_generate_close(aggregator *agg)
{
    if (agg->admission == NULL) return;
    sy_queue_close(agg->admission);
    if (agg->admission_started) pthread_join(agg->admission_thread, NULL);
    sy_queue_free(agg->admission);
    agg->admission = NULL;
}
