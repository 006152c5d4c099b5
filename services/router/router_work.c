/* router_work.c - see router_work.h. An error of one message on a stream is answered in-band and
 * does not end the stream; a unary call ends with it. */
#include "router_work.h"

#include <stdlib.h>
#include <string.h>

#include "router_batch.h"
#include "sy_clock.h"
#include "sy_fault.h"

enum {
    ARENA_BYTES_MAX = 1 << 29,
    /* About 20 us. A hop to a worker and back costs about 10, and spoils the caches. */
    ROUTER_QUICK_PRODUCTS = 1 << 20,
    ROUTER_ALONE_PRODUCTS = 1 << 25, /* 0.3 to 0.6 ms */
    ROUTER_QUICK_BYTES = 64 << 10,
};

static void job_free(router_job *job)
{
    sy_msg_free(job->msg);
    sy_shm_view_unref(job->shared);
    sy_shm_guest_unref(job->guest);
    sy_call_unref(job->call);
    sy_buf_unref(job->home);
}

static void arenas_init(router_arenas *arenas)
{
    sy_arena_init(&arenas->request, ARENA_BYTES_MAX);
    sy_arena_init(&arenas->scratch, ARENA_BYTES_MAX);
}

static void arenas_free(router_arenas *arenas)
{
    sy_arena_free(&arenas->request);
    sy_arena_free(&arenas->scratch);
}

static sy_status check_request(const router *self, const sy_route_request *r, sy_error *err)
{
    const sy_model_desc *d = self->desc;
    sy_status st = sy_service_check_model(sy_model_name(self->model), r->model, err);

    if (st != SY_OK) return st;
    if (r->layer >= d->n_layers)
        return sy_error_set(err, SY_EINVAL, "layer: %u, but the model has %u", r->layer,
                            d->n_layers);
    if (!sy_model_has_experts(d, r->layer)) return sy_service_refuse_dense(r->layer, err);
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

static void answer(const router *self, const router_job *job, sy_route_reply *reply,
                   const sy_error *err)
{
    const int stream = job->guest != NULL;
    sy_call *call = job->call;
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

/* Rows in shared memory become a pointer to where they are. They may change at any time: nothing
 * but logits comes of them, and those are looked at. */
static sy_status open_shared(router_job *job)
{
    const sy_shared_rows *lent = &job->request.shared;
    sy_shm_ticket ticket = {.pid = lent->pid, .fd = lent->fd, .bytes = lent->bytes};

    if (lent->bytes == 0 || job->shared != NULL) return SY_OK;
    if (job->guest == NULL)
        return sy_error_set(&job->err, SY_EINVAL, "shared: memory is shared on RouteStream only");
    memcpy(ticket.key, lent->key, sizeof(ticket.key));
    return sy_shm_guest_view(&job->shared, job->guest, &ticket, &job->err);
}

static sy_status find_rows(router_job *job)
{
    const sy_shared_rows *lent = &job->request.shared;
    sy_rows *hidden = &job->request.hidden;
    const sy_status st = open_shared(job);

    if (st != SY_OK || lent->bytes == 0) return st;
    hidden->data = sy_shm_view_at(job->shared, lent->input, sy_rows_bytes(hidden));
    if (hidden->data == NULL)
        return sy_error_set(&job->err, SY_EINVAL, "shared.input: no area of that memory");
    return SY_OK;
}

/* Reads and checks the request; err says what is wrong with it. */
static void open_job(const router *self, router_job *job, sy_arena *arena)
{
    size_t n;
    const sy_iov *iov = sy_msg_iov(job->msg, &n);

    job->begin_us = sy_clock_us();
    job->request = (sy_route_request){0};
    job->reply = (sy_route_reply){0};
    sy_error_clear(&job->err);
    sy_status st = sy_wire_route_request_decode(&job->request, arena, iov, n, &job->err);
    if (st != SY_OK) job->request.id = sy_wire_peek_id(iov, n);
    if (st == SY_OK) st = check_request(self, &job->request, &job->err);
    if (st == SY_OK) st = find_rows(job);
    job->err.status = st; /* what is looked at from here on */
}

/* Answers, and frees the job. */
static void close_job(const router *self, router_job *job)
{
    sy_route_reply *reply = &job->reply;

    if (job->err.status != SY_OK)
        *reply = (sy_route_reply){0};
    else
        sy_metric_add(self->rows, reply->n_tokens);
    reply->id = job->request.id;
    reply->queue_us = (uint32_t)(job->begin_us - job->queued_us);
    reply->compute_us = (uint32_t)(sy_clock_us() - job->begin_us);
    sy_metric_observe_us(self->seconds, sy_clock_us() - job->queued_us);
    answer(self, job, reply, &job->err);
    sy_call_pending(job->call, -1);
    job_free(job);
}

/* Routes and answers jobs that are open, and frees them. */
static void serve(const router *self, router_job **job, size_t n, router_arenas *arenas)
{
    for (size_t i = 0; i < n; i++)
        if (job[i]->err.status == SY_OK && sy_fault_hit("router.route"))
            (void)sy_error_set(&job[i]->err, SY_EUNAVAILABLE, "injected fault");
    while (n > 0) {
        const size_t n_together = batch_gather(job, n);

        batch_route(self, job, n_together, &arenas->scratch);
        for (size_t i = 0; i < n_together; i++) close_job(self, job[i]);
        sy_arena_reset(&arenas->scratch);
        job += n_together;
        n -= n_together;
    }
    sy_arena_reset(&arenas->request);
}

/* Few products: less work than waking a worker, so the loop does it. With one worker it also does
 * what the worker would do no better: rows enough to need no company. The rows are looked for in
 * the request, since the length of the message does not tell where they are. */
static int is_quick(const router *self, const sy_route_request *r)
{
    const int is_alone = self->n_threads == 1 && r->hidden.rows > BATCH_JOB_ROWS_MAX;

    return (uint64_t)r->hidden.rows * r->hidden.cols * self->desc->n_experts <=
           (is_alone ? ROUTER_ALONE_PRODUCTS : ROUTER_QUICK_PRODUCTS);
}

/* On the loop's thread. 0: the job is for a worker. As long as something that came earlier waits,
 * it is, and goes through its gate with others. */
static int serve_now(router *self, router_job *job)
{
    if (sy_msg_len(job->msg) > ROUTER_QUICK_BYTES || sy_queue_length(self->queue) > 0) return 0;
    open_job(self, job, &self->loop_arenas.request);
    if (job->err.status == SY_OK && !is_quick(self, &job->request)) {
        sy_arena_reset(&self->loop_arenas.request);
        return 0;
    }
    serve(self, &job, 1, &self->loop_arenas);
    return 1;
}

static int is_short(const void *item, void *arg)
{
    const router_job *job = item;

    (void)arg;
    return sy_msg_len(job->msg) <= ROUTER_QUICK_BYTES;
}

/* The jobs that wait, as far as they are this worker's share: what is taken here, idle workers
 * would have had. */
static size_t take_more(const router *self, void **item)
{
    const size_t share = sy_queue_length(self->queue) / SY_MAX(self->n_threads, 1);

    if (share == 0) return 0;
    return sy_queue_take_matching(self->queue, item, SY_MIN(share, BATCH_JOBS_MAX - 1), is_short,
                                  NULL);
}

static void *worker_main(void *arg)
{
    router *self = arg;
    router_arenas arenas;
    void *item[BATCH_JOBS_MAX];

    arenas_init(&arenas);
    while (sy_queue_pop(self->queue, &item[0], SY_NEVER_US) == SY_OK) {
        const size_t n_items = 1 + take_more(self, item + 1);
        router_job *job[BATCH_JOBS_MAX];
        size_t n = 0;

        for (size_t i = 0; i < n_items; i++) {
            job[n] = item[i];
            if (sy_call_ended(job[n]->call)) {
                sy_call_pending(job[n]->call, -1);
                job_free(job[n]);
            } else {
                open_job(self, job[n++], &arenas.request);
            }
        }
        serve(self, job, n, &arenas);
    }
    arenas_free(&arenas);
    return NULL;
}

void router_route_message(void *ctx, sy_call *call, sy_msg *msg)
{
    router *self = ctx;
    sy_buf *home = sy_buf_alloc(sizeof(router_job)); /* recycled: a call allocates nothing */

    if (home == NULL) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the request");
        return;
    }
    router_job *job = home->data;
    job->home = home;
    job->call = sy_call_ref(call);
    job->msg = sy_msg_take(msg);
    job->guest = sy_call_user(call) == NULL ? NULL : sy_shm_guest_ref(sy_call_user(call));
    job->shared = NULL;
    job->queued_us = sy_clock_us();
    sy_call_pending(call, 1);
    if (serve_now(self, job) || sy_queue_push(self->queue, job) == SY_OK) return;
    sy_service_refuse(call, SY_ELIMIT, "4096 requests wait already, which is the limit");
    sy_call_pending(call, -1);
    job_free(job);
}

void router_stream_open(void *ctx, sy_call *call)
{
    const router *self = ctx;
    sy_shm_guest *guest = sy_shm_guest_open(self->shares_memory);

    sy_call_set_user(call, guest); /* tells streams from unary calls as well */
    if (guest == NULL) sy_service_refuse(call, SY_ENOMEM, "no memory for the stream");
}

void router_stream_end(void *ctx, sy_call *call, int cancelled)
{
    (void)ctx;
    (void)cancelled;
    sy_shm_guest_unref(sy_call_user(call)); /* jobs of this stream have references of their own */
}

void router_describe_message(void *ctx, sy_call *call, sy_msg *msg)
{
    router *self = ctx;
    const sy_model_desc *d = self->desc;
    const sy_grid grid = sy_grid_of(d->n_layers, d->n_experts, d->layer, SY_LAYER_DENSE);
    char moe_layers[SY_GRID_TEXT_BYTES];
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
                          .structure_hash = sy_model_structure_hash(self->model),
                          .moe_layers = moe_layers};
    sy_model_query query;
    sy_arena arena;
    sy_error err = {0};
    sy_frame frame;
    size_t n;
    const sy_iov *iov = sy_msg_iov(msg, &n);

    sy_grid_format(moe_layers, sizeof(moe_layers), &grid);
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

    arenas_init(&self->loop_arenas);
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
    arenas_free(&self->loop_arenas);
}
