/* router_work.c - see router_work.h. An error of one message on a stream is answered in-band and
 * does not end the stream; a unary call ends with it. */
#include "router_work.h"

#include <stdlib.h>
#include <string.h>

#include "sy_clock.h"
#include "sy_fault.h"

enum { ARENA_BYTES_MAX = 1 << 29, ROUTER_QUICK_PRODUCTS = 256 << 10 /* about 5 us */ };

typedef struct router_job {
    sy_call *call; /* a reference */
    sy_msg *msg;   /* owned */
    int64_t queued_us;
} router_job;

static void job_free(router_job *job)
{
    sy_msg_free(job->msg);
    sy_call_unref(job->call);
    free(job);
}

static sy_status check_request(const router *self, const sy_route_request *r, sy_error *err)
{
    const sy_model_desc *d = self->desc;
    sy_status st = sy_service_check_model(sy_model_name(self->model), r->model, err);

    if (st != SY_OK) return st;
    if (r->layer >= d->n_layers)
        return sy_error_set(err, SY_EINVAL, "layer: %u, but the model has %u", r->layer,
                            d->n_layers);
    if (r->hidden.cols != d->hidden)
        return sy_error_set(err, SY_EINVAL, "hidden: %u columns, but the model's hidden size is %u",
                            r->hidden.cols, d->hidden);
    if (r->hidden.rows > ROUTER_ROWS_MAX)
        return sy_error_set(err, SY_ELIMIT, "hidden: %u rows, at most %d a message", r->hidden.rows,
                            ROUTER_ROWS_MAX);
    if (r->policy.experts_per_token > d->top_k)
        return sy_error_set(err, SY_EINVAL, "policy.experts_per_token: %u, but the model has %u",
                            r->policy.experts_per_token, d->top_k);
    return SY_OK;
}

/* Fills the answer; everything it points to is in the arena. */
static sy_status route(const router *self, sy_route_reply *reply, const sy_route_request *r,
                       sy_arena *arena, sy_error *err)
{
    const uint32_t T = r->hidden.rows;
    const uint32_t k =
        r->policy.experts_per_token == 0 ? self->desc->top_k : r->policy.experts_per_token;
    const size_t n = (size_t)T * self->desc->hidden;
    const sy_route_options options = {r->policy.experts_per_token};
    uint16_t *expert = sy_arena_alloc(arena, (size_t)T * k * sizeof(*expert));
    float *weight = sy_arena_alloc(arena, (size_t)T * k * sizeof(*weight));
    float *scratch = sy_arena_alloc(arena, sy_router_scratch(self->gates, T) * sizeof(float));
    const float *x = r->hidden.data;

    if (expert == NULL || weight == NULL || scratch == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for %u rows", T);
    if (r->hidden.dtype != SY_F32) {
        float *wide = sy_arena_alloc(arena, n * sizeof(float));
        if (wide == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for %u rows", T);
        sy_dtype_widen(wide, r->hidden.data, r->hidden.dtype, n);
        x = wide;
    }
    sy_status st =
        sy_route(self->gates, r->layer, expert, weight, x, T, &options, scratch, NULL, err);
    if (st != SY_OK) return st;
    reply->slots = k;
    reply->n_tokens = T;
    reply->expert = expert;
    reply->weight = weight;
    sy_metric_add(self->rows, T);
    return SY_OK;
}

static void answer(const router *self, sy_call *call, sy_route_reply *reply, const sy_error *err)
{
    const int stream = sy_call_user(call) != NULL;
    sy_frame frame;

    if (err->status != SY_OK) sy_metric_add(self->errors, 1);
    if (err->status != SY_OK && !stream) {
        sy_call_finish(call, err);
        return;
    }
    reply->status = *err;
    if (sy_wire_route_reply_encode(&frame, reply, NULL) != SY_OK) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the answer");
        return;
    }
    sy_status st = sy_call_send(call, &frame);
    if (st == SY_ELIMIT)
        sy_service_refuse(call, st, "the client does not read its answers");
    else if (!stream)
        sy_call_finish(call, NULL);
}

static void serve(router *self, router_job *job, sy_arena *arena)
{
    const int64_t begin_us = sy_clock_us();
    sy_route_request request = {0};
    sy_route_reply reply = {0};
    sy_error err = {0};
    size_t n;
    const sy_iov *iov = sy_msg_iov(job->msg, &n);

    sy_error_clear(&err);
    sy_status st = sy_wire_route_request_decode(&request, arena, iov, n, &err);
    if (st != SY_OK) request.id = sy_wire_peek_id(iov, n);
    if (st == SY_OK) st = check_request(self, &request, &err);
    if (st == SY_OK && sy_fault_hit("router.route"))
        st = sy_error_set(&err, SY_EUNAVAILABLE, "injected fault");
    if (st == SY_OK) st = route(self, &reply, &request, arena, &err);
    if (st != SY_OK) reply = (sy_route_reply){0};
    reply.id = request.id;
    reply.queue_us = (uint32_t)(begin_us - job->queued_us);
    reply.compute_us = (uint32_t)(sy_clock_us() - begin_us);
    if (st == SY_OK) sy_error_clear(&err);
    sy_metric_observe_us(self->seconds, sy_clock_us() - job->queued_us);
    answer(self, job->call, &reply, &err);
    sy_arena_reset(arena);
}

static void finish_job(router *self, router_job *job, sy_arena *arena)
{
    if (!sy_call_ended(job->call)) serve(self, job, arena);
    sy_call_pending(job->call, -1);
    job_free(job);
}

/* A few rows through a small gate take less than waking a worker: the loop answers them itself, as
 * long as nothing that came earlier waits. */
static int is_quick(const router *self, const sy_msg *msg)
{
    const size_t values = sy_msg_len(msg) / sizeof(float);

    return values * self->desc->n_experts < ROUTER_QUICK_PRODUCTS &&
           sy_queue_length(self->queue) == 0;
}

static void *worker_main(void *arg)
{
    router *self = arg;
    sy_arena arena;
    void *item;

    sy_arena_init(&arena, ARENA_BYTES_MAX);
    while (sy_queue_pop(self->queue, &item, SY_NEVER_US) == SY_OK) {
        finish_job(self, item, &arena);
    }
    sy_arena_free(&arena);
    return NULL;
}

void router_route_message(void *ctx, sy_call *call, sy_msg *msg)
{
    router *self = ctx;
    router_job *job = malloc(sizeof(*job));

    if (job == NULL) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the request");
        return;
    }
    *job = (router_job){sy_call_ref(call), sy_msg_take(msg), sy_clock_us()};
    sy_call_pending(call, 1);
    if (is_quick(self, job->msg)) {
        finish_job(self, job, &self->loop_arena);
        return;
    }
    if (sy_queue_push(self->queue, job) == SY_OK) return;
    sy_service_refuse(call, SY_ELIMIT, "4096 requests wait already, which is the limit");
    sy_call_pending(call, -1);
    job_free(job);
}

void router_stream_open(void *ctx, sy_call *call)
{
    sy_call_set_user(call, ctx); /* tells streams from unary calls */
}

void router_describe_message(void *ctx, sy_call *call, sy_msg *msg)
{
    router *self = ctx;
    const sy_model_desc *d = self->desc;
    sy_model_info info = {.name = sy_model_name(self->model),
                          .family = d->family,
                          .architecture = d->architecture,
                          .layers = d->n_layers,
                          .hidden = d->hidden,
                          .experts = d->n_experts,
                          .top_k = d->top_k,
                          .expert_ffn = d->expert_ffn,
                          .vocab = d->vocab,
                          .context = d->context,
                          .structure_hash = sy_model_structure_hash(self->model)};
    sy_model_query query;
    sy_arena arena;
    sy_error err = {0};
    sy_frame frame;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    sy_error_clear(&err);
    sy_arena_init(&arena, 1 << 16);
    sy_status st = sy_wire_model_query_decode(&query, &arena, iov, n, &err);
    if (st == SY_OK) st = sy_service_check_model(sy_model_name(self->model), query.model, &err);
    if (st == SY_OK && sy_wire_model_description_encode(&frame, &info, NULL) != SY_OK)
        st = sy_error_set(&err, SY_ENOMEM, "no memory for the answer");
    sy_arena_free(&arena);
    if (st == SY_OK) {
        sy_error_clear(&err);
        if (sy_call_send(call, &frame) != SY_OK) return;
    }
    sy_call_finish(call, &err);
}

sy_status router_work_open(router *self, unsigned n_threads, sy_error *err)
{
    sy_status st = sy_queue_open(&self->queue, ROUTER_QUEUE_MAX);

    sy_arena_init(&self->loop_arena, ARENA_BYTES_MAX);
    if (st != SY_OK) return sy_error_set(err, st, "no memory for the queue");
    self->rows = sy_metric_counter("switchyard_route_rows_total", "Token rows routed", NULL);
    self->errors =
        sy_metric_counter("switchyard_route_errors_total", "Requests answered with an error", NULL);
    self->seconds = sy_metric_histogram("switchyard_route_seconds",
                                        "From a request's arrival to its answer", NULL);
    for (unsigned i = 0; i < SY_MIN(n_threads, (unsigned)ROUTER_THREADS_MAX); i++) {
        if (pthread_create(&self->thread[i], NULL, worker_main, self) != 0)
            return sy_error_set(err, SY_EIO, "no thread for a worker");
        self->n_threads++;
    }
    return SY_OK;
}

void router_work_close(router *self)
{
    if (self->queue == NULL) return;
    sy_queue_close(self->queue);
    for (unsigned i = 0; i < self->n_threads; i++) pthread_join(self->thread[i], NULL);
    sy_queue_free(self->queue);
    sy_arena_free(&self->loop_arena);
}
