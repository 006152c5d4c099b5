/* agg_forward.c - Forward and ForwardStream: one MoE layer over hidden states that the client
 * holds. Each thread has a lane of its own, so a layer that waits for a slow node holds up one
 * thread, not the generations. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "agg_policies.h"
#include "aggregator.h"
#include "sy_clock.h"

enum { ARENA_BYTES_MAX = 1 << 30 };

static atomic_ullong next_request = 1;

static sy_status check_request(const aggregator *agg, const sy_forward_request *r, sy_error *err)
{
    sy_status st = sy_service_check_model(sy_model_name(agg->model), r->model, err);

    if (st != SY_OK) return st;
    if (r->layer >= agg->desc->n_layers)
        return sy_error_set(err, SY_EINVAL, "layer: %u, but the model has %u", r->layer,
                            agg->desc->n_layers);
    if (!sy_model_has_experts(agg->desc, r->layer)) return sy_service_refuse_dense(r->layer, err);
    if (r->hidden.cols != agg->desc->hidden)
        return sy_error_set(err, SY_EINVAL, "hidden: %u columns, but the model's hidden size is %u",
                            r->hidden.cols, agg->desc->hidden);
    if (r->hidden.rows > AGG_FORWARD_ROWS_MAX)
        return sy_error_set(err, SY_ELIMIT, "hidden: %u rows, at most %d a message", r->hidden.rows,
                            AGG_FORWARD_ROWS_MAX);
    return SY_OK;
}

/* Everything the layer call reads and writes, in the arena; y is a buffer that goes on the wire. */
static sy_status prepare(const aggregator *agg, const sy_forward_request *r, sy_arena *arena,
                         sy_buf *out, sy_moe_call *call)
{
    const uint32_t T = r->hidden.rows, k = r->policy.experts_per_token == 0
                                               ? agg->desc->top_k
                                               : r->policy.experts_per_token;
    const size_t n = (size_t)T * agg->desc->hidden;
    const uint64_t request_id = atomic_fetch_add(&next_request, 1);
    uint64_t *request = sy_arena_alloc(arena, T * sizeof(*request));
    uint8_t *may_degrade = sy_arena_alloc(arena, T);
    const float *x = r->hidden.data;

    *call = (sy_moe_call){.layer = r->layer,
                          .n_rows = T,
                          .experts_per_token = r->policy.experts_per_token,
                          .request = request,
                          .y = out->data,
                          .deadline_us = sy_clock_us() + agg->layer_timeout_us,
                          .may_degrade = may_degrade,
                          .note = sy_arena_calloc(arena, T, 1),
                          .failed = sy_arena_calloc(arena, T, 1)};
    sy_error_clear(&call->error);
    if (r->hidden.dtype != SY_F32) {
        float *wide = sy_arena_alloc(arena, n * sizeof(float));
        if (wide == NULL) return SY_ENOMEM;
        sy_dtype_widen(wide, r->hidden.data, r->hidden.dtype, n);
        x = wide;
    }
    call->x = x;
    if (r->want_routing && k <= agg->desc->top_k) {
        call->expert = sy_arena_alloc(arena, (size_t)T * k * sizeof(*call->expert));
        call->weight = sy_arena_alloc(arena, (size_t)T * k * sizeof(*call->weight));
        if (call->expert == NULL || call->weight == NULL) return SY_ENOMEM;
    }
    if (request == NULL || may_degrade == NULL || call->note == NULL || call->failed == NULL)
        return SY_ENOMEM;
    memset(may_degrade, r->policy.degraded != 0, T);
    for (uint32_t t = 0; t < T; t++) request[t] = request_id;
    return SY_OK;
}

/* Tells of rows that are not exact. */
static sy_status tell_policies(const aggregator *agg, const sy_forward_request *r,
                               const sy_moe_call *call, sy_arena *arena, sy_forward_reply *reply)
{
    agg_policies *policies = sy_arena_alloc(arena, sizeof(*policies));
    uint32_t other_weights_rows = 0;

    if (policies == NULL) return SY_ENOMEM;
    reply->degraded_rows = 0;
    for (uint32_t t = 0; t < call->n_rows; t++) {
        reply->degraded_rows += (call->note[t] & SY_MOE_DEGRADED) != 0;
        other_weights_rows += (call->note[t] & SY_MOE_OTHER_WEIGHTS) != 0;
    }
    agg_policies_list(policies, r->policy.experts_per_token, agg->desc->top_k, reply->degraded_rows,
                      other_weights_rows);
    /* No trunk takes part. */
    agg_policies_add_precision(policies, agg->expert_precision, agg->expert_precision);
    agg_policies_add_arithmetic(policies, agg->expert_arithmetic, agg->expert_precision);
    agg_policies_add_wire_rows(policies, agg->moe_config.wire_rows);
    reply->n_policies = policies->n;
    reply->policy = policies->list;
    return SY_OK;
}

/* One layer over all rows; a row that failed fails the message. */
static sy_status run(aggregator *agg, const sy_moe *moe, const sy_forward_request *r,
                     int64_t deadline_us, sy_arena *arena, sy_buf *out, sy_forward_reply *reply,
                     sy_error *err)
{
    sy_moe_call call;
    sy_status st = prepare(agg, r, arena, out, &call);

    if (st != SY_OK) return sy_error_set(err, st, "no memory for %u rows", r->hidden.rows);
    call.deadline_us = SY_MIN(call.deadline_us, deadline_us);
    st = moe->layer(moe->ctx, &call);
    if (st == SY_OK && call.n_row_errors > 0) {
        *err = call.row_error[0];
        return err->status;
    }
    if (st != SY_OK) {
        *err = call.error;
        return st;
    }
    if (tell_policies(agg, r, &call, arena, reply) != SY_OK)
        return sy_error_set(err, SY_ENOMEM, "no memory for the answer");
    reply->output = (sy_rows){SY_F32, r->hidden.rows, agg->desc->hidden, out->data};
    reply->placement_hash = moe->placement_hash(moe->ctx);
    if (call.expert != NULL) {
        reply->slots =
            r->policy.experts_per_token == 0 ? agg->desc->top_k : r->policy.experts_per_token;
        reply->n_tokens = r->hidden.rows;
        reply->expert = call.expert;
        reply->weight = call.weight;
    }
    return SY_OK;
}

/* Answers in-band on a stream, with the call's own status otherwise. */
static void answer(sy_call *call, int stream, sy_forward_reply *reply, sy_buf *out,
                   const sy_error *err)
{
    sy_frame frame;

    if (err->status != SY_OK && !stream) {
        sy_call_finish(call, err);
        return;
    }
    reply->status = *err;
    if (err->status != SY_OK) reply->output = (sy_rows){0};
    if (sy_wire_forward_reply_encode(&frame, reply, err->status == SY_OK ? out : NULL) != SY_OK) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the answer");
        return;
    }
    sy_status st = sy_call_send(call, &frame);
    if (st == SY_ELIMIT)
        sy_service_refuse(call, st, "the client does not read its answers");
    else if (!stream)
        sy_call_finish(call, NULL);
}

static void serve(aggregator *agg, const sy_moe *moe, agg_job *job, sy_arena *arena)
{
    const int stream = sy_call_user(job->call) != NULL;
    sy_forward_request request = {0};
    sy_forward_reply reply = {0};
    sy_error err = {0};
    sy_buf *out = NULL;
    size_t n;
    const sy_iov *iov = sy_msg_iov(job->msg, &n);

    sy_error_clear(&err);
    sy_status st = sy_wire_forward_request_decode(&request, arena, iov, n, &err);
    if (st != SY_OK) request.id = sy_wire_peek_id(iov, n);
    if (st == SY_OK) st = check_request(agg, &request, &err);
    if (st == SY_OK)
        out = sy_buf_alloc((size_t)request.hidden.rows * agg->desc->hidden * sizeof(float));
    if (st == SY_OK)
        st =
            out == NULL
                ? sy_error_set(&err, SY_ENOMEM, "no memory for %u rows", request.hidden.rows)
                : run(agg, moe, &request, sy_call_deadline_us(job->call), arena, out, &reply, &err);
    if (st == SY_OK) sy_error_clear(&err);
    reply.id = request.id;
    answer(job->call, stream, &reply, out, &err);
    sy_buf_unref(out);
    sy_arena_reset(arena);
}

typedef struct forward_thread_arg {
    aggregator *agg;
    agg_lane *lane;
} forward_thread_arg;

static void *forward_main(void *arg)
{
    forward_thread_arg self = *(forward_thread_arg *)arg;
    const sy_moe moe = agg_lane_ops(self.lane);
    sy_arena arena;
    void *item;

    free(arg);
    sy_arena_init(&arena, ARENA_BYTES_MAX);
    while (sy_queue_pop(self.agg->forward, &item, SY_NEVER_US) == SY_OK) {
        agg_job *job = item;
        if (!sy_call_ended(job->call)) serve(self.agg, &moe, job, &arena);
        sy_call_pending(job->call, -1);
        agg_job_free(job);
    }
    sy_arena_free(&arena);
    return NULL;
}

void agg_forward_message(void *ctx, sy_call *call, sy_msg *msg)
{
    aggregator *agg = ctx;

    (void)agg_job_push(agg->forward, call, msg, "layer calls");
}

void agg_forward_stream_open(void *ctx, sy_call *call)
{
    sy_call_set_user(call, ctx); /* tells streams from unary calls */
}

sy_status agg_forward_open(aggregator *agg, sy_error *err)
{
    sy_status st = sy_queue_open(&agg->forward, AGG_QUEUE_MAX);

    if (st != SY_OK) return sy_error_set(err, st, "no memory for the forward queue");
    for (int i = 0; i < AGG_FORWARD_THREADS; i++) {
        forward_thread_arg *arg = malloc(sizeof(*arg));
        if (arg == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a forward thread");
        *arg = (forward_thread_arg){agg, &agg->forward_lane[i]};
        st = agg_lane_open(arg->lane, &agg->moe_config, err);
        if (st == SY_OK) agg->n_forward_lanes++;
        if (st == SY_OK && pthread_create(&agg->forward_thread[i], NULL, forward_main, arg) != 0)
            st = sy_error_set(err, SY_EIO, "no thread for layer calls");
        if (st != SY_OK) {
            free(arg);
            return st;
        }
        agg->n_forward_threads++;
    }
    return SY_OK;
}

void agg_forward_close(aggregator *agg)
{
    if (agg->forward == NULL) return;
    sy_queue_close(agg->forward);
    for (int i = 0; i < agg->n_forward_threads; i++) pthread_join(agg->forward_thread[i], NULL);
    for (int i = 0; i < agg->n_forward_lanes; i++) agg_lane_close(&agg->forward_lane[i]);
    sy_queue_free(agg->forward);
    agg->forward = NULL;
}
