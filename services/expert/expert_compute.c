/* expert_compute.c - Compute and ComputeStream: queues, the device threads, and the way of a job
 * through them. A device takes whatever waits for the same layer together, so that weights are read
 * once for all; it never waits for more to come. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "compute_job.h"
#include "sy_clock.h"
#include "sy_fault.h"
#include "sy_log.h"

enum {
    ARENA_BYTES_MAX = 1 << 30,
    IDLE_JOBS_MAX = 64,
    SLOW_NS = 20 * 1000 * 1000 /* what the fault "expert.slow" adds to a computation */
};

/* ---- jobs ---- */

static compute_job *job_take(expert *self)
{
    void *item = NULL;

    if (sy_queue_pop(self->idle_jobs, &item, 0) == SY_OK) return item;
    compute_job *job = calloc(1, sizeof(*job));
    if (job != NULL) sy_arena_init(&job->arena, ARENA_BYTES_MAX);
    return job;
}

static void job_delete(compute_job *job)
{
    sy_arena_free(&job->arena);
    free(job);
}

static void job_let_go(expert *self, compute_job *job)
{
    for (uint32_t g = 0; job->shard != NULL && g < job->request.n_groups; g++)
        sy_shard_put(self->store, job->shard[g]);
    job->shard = NULL;
    sy_buf_unref(job->out);
    job->out = NULL;
    sy_shm_view_unref(job->shared);
    job->shared = NULL;
    sy_shm_guest_unref(job->guest);
    job->guest = NULL;
    sy_msg_free(job->msg);
    job->msg = NULL;
    sy_call_pending(job->call, -1);
    sy_call_unref(job->call);
    job->call = NULL;
    sy_arena_reset(&job->arena);
    if (sy_queue_push(self->idle_jobs, job) != SY_OK) job_delete(job);
}

/* ---- answers ---- */

static void send_answer(expert *self, compute_job *job, sy_compute_reply *reply,
                        const sy_error *err, sy_buf *bulk)
{
    sy_frame frame;

    if (err->status != SY_OK) sy_metric_add(self->errors, 1);
    sy_metric_observe_us(self->seconds, sy_clock_us() - job->queued_us);
    if (err->status != SY_OK && job->guest == NULL) {
        sy_call_finish(job->call, err);
        return;
    }
    reply->id = job->request.id;
    reply->status = *err;
    if (sy_wire_compute_reply_encode(&frame, reply, bulk) != SY_OK) {
        sy_service_refuse(job->call, SY_ENOMEM, "no memory for the answer");
        return;
    }
    sy_status st = sy_call_send(job->call, &frame);
    if (st == SY_ELIMIT)
        sy_service_refuse(job->call, st, "the client does not read its answers");
    else if (job->guest == NULL)
        sy_call_finish(job->call, NULL);
}

static void answer_error(expert *self, compute_job *job, const sy_error *err)
{
    sy_compute_reply reply = {0};

    send_answer(self, job, &reply, err, NULL);
}

/* Room for rows: the answer's where the client has lent it, else in a buffer, which becomes
 * job->out. NULL: no memory. */
static void *place_rows(compute_job *job, size_t bytes, int for_answer)
{
    const sy_shared_rows *lent = &job->request.shared;
    void *rows = NULL;

    job->out = NULL;
    if (for_answer && job->shared != NULL && bytes > 0 && lent->output_bytes >= bytes)
        rows = sy_shm_view_at(job->shared, lent->output, bytes);
    if (rows != NULL) return rows;
    job->out = sy_buf_alloc(SY_MAX(bytes, (size_t)1));
    return job->out == NULL ? NULL : job->out->data;
}

static int rounds_output(const compute_job *job)
{
    return job->request.output_dtype == SY_BF16;
}

/* PARTIAL: each token's rows weighted and summed here, in ascending expert id: they become y. */
static sy_status sum_partial(const expert *self, compute_job *job)
{
    const sy_compute_request *r = &job->request;
    const size_t hidden = self->desc->hidden, bytes = r->hidden.rows * hidden * sizeof(float);
    sy_buf *rows = job->out; /* they are no answer, so they are in a buffer */

    job->y = place_rows(job, bytes, !rounds_output(job));
    if (job->y != NULL) {
        memset(job->y, 0, bytes);
        for (uint32_t i = 0; i < r->n_assign; i++)
            self->kernels->axpy(job->y + r->row[i] * hidden, (const float *)rows->data + i * hidden,
                                r->weight[i], hidden);
    }
    sy_buf_unref(rows);
    return job->y == NULL ? SY_ENOMEM : SY_OK;
}

/* What has been computed, as the client asks for it: n rows. NULL: no memory. */
static const void *finish_rows(const expert *self, compute_job *job, uint32_t n_rows)
{
    const size_t n = (size_t)n_rows * self->desc->hidden;

    if (job->request.partial && sum_partial(self, job) != SY_OK) return NULL;
    if (!rounds_output(job)) return job->y;
    sy_buf *rows = job->out; /* floats are no answer, so they are in a buffer */
    uint16_t *rounded = place_rows(job, n * sizeof(*rounded), 1);
    if (rounded != NULL) self->kernels->round_bf16(rounded, job->y, n);
    sy_buf_unref(rows);
    return rounded;
}

static void answer(expert *self, compute_job *job)
{
    const sy_compute_request *r = &job->request;
    const uint32_t n_rows = r->partial ? r->hidden.rows : r->n_assign;
    const void *rows = atomic_load(&job->failed) == SY_OK ? finish_rows(self, job, n_rows) : NULL;
    const int64_t now_us = sy_clock_us();
    sy_compute_reply reply = {.n_faults = job->n_faults,
                              .fault = job->fault,
                              .queue_us = (uint32_t)(job->started_us - job->queued_us),
                              .compute_us = (uint32_t)(now_us - job->started_us),
                              .batched_requests = atomic_load(&job->batched)};
    sy_error err = {0};

    sy_error_clear(&err);
    if (atomic_load(&job->failed) != SY_OK) {
        err = job->why;
    } else if (rows == NULL) {
        sy_error_set(&err, SY_ENOMEM, "no memory for %u rows", r->n_assign);
    } else {
        reply.output_shared = job->out == NULL;
        reply.output =
            (sy_rows){r->output_dtype, n_rows, self->desc->hidden, job->out == NULL ? NULL : rows};
    }
    send_answer(self, job, &reply, &err, job->out);
}

void job_fail(compute_job *job, const sy_error *err)
{
    int fine = SY_OK;

    if (atomic_compare_exchange_strong(&job->failed, &fine, (int)err->status)) job->why = *err;
}

void job_device_done(expert *self, compute_job *job)
{
    if (atomic_fetch_sub(&job->remaining, 1) != 1) return;
    sy_metric_add(self->rows, job->request.n_assign);
    answer(self, job);
    job_let_go(self, job);
}

/* ---- from bytes to groups ---- */

static sy_status check_request(const expert *self, const sy_compute_request *r, sy_error *err)
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
    if (r->n_assign > EXPERT_ASSIGN_MAX)
        return sy_error_set(err, SY_ELIMIT, "row: %u rows, at most %d a message", r->n_assign,
                            EXPERT_ASSIGN_MAX);
    for (uint32_t g = 0; g < r->n_groups; g++)
        if (r->expert[g] >= d->n_experts)
            return sy_error_set(err, SY_EINVAL, "expert: %u, but the model has %u", r->expert[g],
                                d->n_experts);
    if (r->partial && r->weight == NULL)
        return sy_error_set(err, SY_EINVAL, "weight: PARTIAL needs one a row");
    return SY_OK;
}

/* What the message says of shared memory becomes pointers into it, or an error. */
static sy_status open_shared(compute_job *job, sy_error *err)
{
    const sy_shared_rows *lent = &job->request.shared;
    sy_rows *hidden = &job->request.hidden;
    sy_shm_ticket ticket = {.pid = lent->pid, .fd = lent->fd, .bytes = lent->bytes};

    if (lent->bytes == 0) return SY_OK;
    if (job->guest == NULL)
        return sy_error_set(err, SY_EINVAL, "shared: memory is shared on ComputeStream only");
    memcpy(ticket.key, lent->key, sizeof(ticket.key));
    const sy_status st = sy_shm_guest_view(&job->shared, job->guest, &ticket, err);
    if (st != SY_OK) return st;
    hidden->data = sy_shm_view_at(job->shared, lent->input, sy_rows_bytes(hidden));
    if (hidden->data == NULL)
        return sy_error_set(err, SY_EINVAL, "shared.input: no area of that memory");
    if (lent->output_bytes > 0 &&
        sy_shm_view_at(job->shared, lent->output, lent->output_bytes) == NULL)
        return sy_error_set(err, SY_EINVAL, "shared.output: no area of that memory");
    return SY_OK;
}

static sy_status widen_rows(const expert *self, compute_job *job)
{
    const sy_rows *h = &job->request.hidden;
    const size_t n = (size_t)h->rows * self->desc->hidden;

    job->x = h->data;
    if (h->dtype == SY_F32) return SY_OK;
    float *wide = sy_arena_alloc(&job->arena, n * sizeof(float));
    if (wide == NULL) return SY_ENOMEM;
    sy_dtype_widen(wide, h->data, h->dtype, n);
    job->x = wide;
    return SY_OK;
}

/* A courtesy to clients: rows in shared memory may change after it, and give wrong numbers then,
 * which is all that a number that is not finite can do. */
static sy_status check_rows(const expert *self, const compute_job *job, sy_error *err)
{
    const size_t hidden = self->desc->hidden;

    for (uint32_t t = 0; t < job->request.hidden.rows; t++)
        if (!self->kernels->all_finite(job->x + t * hidden, hidden)) {
            sy_error_set(err, SY_EINVAL, "hidden: row %u holds a NaN or an infinity", t);
            sy_error_where(err, "ROW_NOT_FINITE", (int32_t)job->request.layer, -1, NULL);
            return SY_EINVAL;
        }
    return SY_OK;
}

static void add_fault(const expert *self, compute_job *job, uint32_t group)
{
    const sy_compute_request *r = &job->request;
    sy_shard_fault *fault = &job->fault[job->n_faults++];

    fault->expert = r->expert[group];
    sy_error_clear(&fault->status);
    sy_error_set(&fault->status, SY_EUNAVAILABLE, "layer %u expert %u is not resident on %s",
                 r->layer, r->expert[group], self->node);
    sy_error_where(&fault->status, "SHARD_NOT_RESIDENT", (int32_t)r->layer, r->expert[group],
                   self->node);
}

/* Where a shard is computed. On a GPU it lies in that one's memory, and residency's table may be a
 * step ahead or behind when it moves; in host memory any device can compute it. */
static uint8_t device_of(const expert *self, const sy_shard *shard, uint32_t index)
{
    if (shard == NULL || shard->home == NULL) return atomic_load(&self->residency.device[index]);
    for (uint32_t d = 0; d < self->n_devices; d++)
        if (self->device[d].home == shard->home) return (uint8_t)d;
    return EXPERT_NO_DEVICE;
}

/* Takes references to the shards; what is not in memory becomes a fault and its rows zeros. */
static sy_status find_shards(expert *self, compute_job *job, uint32_t *devices)
{
    const sy_compute_request *r = &job->request;
    const size_t hidden = self->desc->hidden;

    job->shard = sy_arena_calloc(&job->arena, r->n_groups + 1, sizeof(*job->shard));
    job->group_device = sy_arena_calloc(&job->arena, r->n_groups + 1, 1);
    job->fault = sy_arena_calloc(&job->arena, r->n_groups + 1, sizeof(*job->fault));
    if (job->shard == NULL || job->group_device == NULL || job->fault == NULL) return SY_ENOMEM;
    job->y =
        place_rows(job, r->n_assign * hidden * sizeof(float), !r->partial && !rounds_output(job));
    if (job->y == NULL) return SY_ENOMEM;
    *devices = 0;
    for (uint32_t g = 0; g < r->n_groups; g++) {
        const uint32_t begin = g == 0 ? 0 : r->group_end[g - 1];
        const uint32_t index = r->layer * self->desc->n_experts + r->expert[g];
        job->shard[g] = sy_shard_get(self->store, r->layer, r->expert[g]);
        job->group_device[g] = device_of(self, job->shard[g], index);
        if (job->shard[g] == NULL || job->group_device[g] >= self->n_devices) {
            memset(job->y + begin * hidden, 0, (r->group_end[g] - begin) * hidden * sizeof(float));
            add_fault(self, job, g);
            job->group_device[g] = EXPERT_NO_DEVICE;
        } else {
            *devices |= 1u << job->group_device[g];
        }
    }
    return SY_OK;
}

uint32_t job_prepare(expert *self, compute_job *job)
{
    sy_error err = {0};
    uint32_t devices = 0;
    size_t n;
    const sy_iov *iov = sy_msg_iov(job->msg, &n);

    sy_error_clear(&err);
    job->started_us = sy_clock_us();
    job->n_faults = 0;
    job->request = (sy_compute_request){0};
    sy_status st = sy_wire_compute_request_decode(&job->request, &job->arena, iov, n, &err);
    if (st != SY_OK) job->request = (sy_compute_request){.id = sy_wire_peek_id(iov, n)};
    if (st == SY_OK) st = check_request(self, &job->request, &err);
    if (st == SY_OK && sy_fault_hit("expert.compute"))
        st = sy_error_set(&err, SY_EUNAVAILABLE, "injected fault");
    if (st == SY_OK) st = open_shared(job, &err);
    if (st == SY_OK && widen_rows(self, job) != SY_OK)
        st = sy_error_set(&err, SY_ENOMEM, "no memory for the rows");
    if (st == SY_OK) st = check_rows(self, job, &err);
    if (st == SY_OK && find_shards(self, job, &devices) != SY_OK)
        st = sy_error_set(&err, SY_ENOMEM, "no memory for %u rows", job->request.n_assign);
    job->decoded = 1;
    atomic_store(&job->failed, SY_OK);
    atomic_store(&job->batched, 0);
    if (st != SY_OK)
        answer_error(self, job, &err);
    else if (devices == 0)
        answer(self, job);
    if (st == SY_OK && devices != 0) return devices;
    job_let_go(self, job);
    return 0;
}

/* ---- device threads ---- */

static int any_job(const void *item, void *arg)
{
    (void)item;
    (void)arg;
    return 1;
}

static void pass_on(expert *self, expert_device *other, compute_job *job)
{
    sy_error err = {0};

    atomic_fetch_add(&other->depth, 1);
    if (sy_queue_push(other->queue, job) == SY_OK) return;
    atomic_fetch_sub(&other->depth, 1);
    sy_error_clear(&err);
    sy_error_set(&err, SY_ELIMIT, "%d messages wait for %s already, which is the limit",
                 EXPERT_QUEUE_MAX, other->name);
    job_fail(job, &err);
    job_device_done(self, job); /* who passes it on still holds a share, so the job lives on */
}

/* Decodes a job that came from the network and shows it to the other devices it needs; 1 when this
 * device has a part. */
static int admit(expert_device *device, compute_job *job)
{
    expert *self = device->expert;

    if (job->decoded) return 1; /* another device sent it here */
    const uint32_t devices = job_prepare(self, job);
    if (devices == 0) {
        atomic_fetch_sub(&device->depth, 1);
        return 0;
    }
    const int has_part = (devices & 1u << device->index) != 0;
    atomic_store(&job->remaining, __builtin_popcount(devices) + !has_part);
    for (uint32_t d = 0; d < self->n_devices; d++)
        if (d != device->index && (devices & 1u << d)) pass_on(self, &self->device[d], job);
    if (has_part) return 1;
    atomic_fetch_sub(&device->depth, 1);
    job_device_done(self, job);
    return 0;
}

int hand_take(expert_device *device, job_hand *hand)
{
    do {
        void *item[TOGETHER_MAX];
        size_t n_new = 0;
        if (hand->n == 0) {
            if (sy_loop_pop(hand->loop, device->queue, &item[0]) != SY_OK) return 0;
            n_new = 1;
        }
        n_new += sy_queue_take_matching(device->queue, item + n_new, TOGETHER_MAX - hand->n - n_new,
                                        any_job, NULL);
        for (size_t i = 0; i < n_new; i++)
            if (admit(device, item[i])) hand->job[hand->n++] = item[i];
    } while (hand->n == 0);
    hand->loop = sy_call_loop(hand->job[0]->call);
    return 1;
}

size_t hand_same_layer(job_hand *hand)
{
    compute_job **job = hand->job;
    size_t front = 1;

    for (size_t i = 1; i < hand->n; i++) {
        if (job[i]->request.layer != job[0]->request.layer) continue;
        compute_job *moved = job[i];
        memmove(job + front + 1, job + front, (i - front) * sizeof(*job));
        job[front++] = moved;
    }
    return front;
}

void hand_drop(job_hand *hand, size_t n)
{
    hand->n -= n;
    memmove(hand->job, hand->job + n, hand->n * sizeof(*hand->job));
}

/* A message's share of the computation, as an average that forgets. */
void device_note_service(expert_device *device, int64_t elapsed_us, size_t n_jobs)
{
    const unsigned before = atomic_load(&device->service_us);
    const unsigned now =
        (unsigned)SY_MIN(SY_MAX(elapsed_us / (int64_t)n_jobs, 1), (int64_t)UINT32_MAX / 8);

    atomic_store(&device->service_us, before == 0 ? now : (before * 7 + now + 4) / 8);
    atomic_fetch_sub(&device->depth, (unsigned)n_jobs);
}

void device_slow_down(void)
{
    if (sy_fault_hit("expert.slow")) nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
}

static void *device_main(void *arg)
{
    expert_device *device = arg;
    batch_scratch scratch = {0};
    job_hand hand = {0};

    sy_arena_init(&scratch.arena, ARENA_BYTES_MAX);
    while (hand_take(device, &hand)) {
        const size_t together = hand_same_layer(&hand);
        const int64_t begin_us = sy_clock_us();
        device_slow_down();
        batch_compute(device, hand.job, together, &scratch);
        device_note_service(device, sy_clock_us() - begin_us, together);
        for (size_t i = 0; i < together; i++) job_device_done(device->expert, hand.job[i]);
        hand_drop(&hand, together);
    }
    sy_shard_scratch_free(&scratch.shard);
    sy_arena_free(&scratch.arena);
    return NULL;
}

/* ---- the loop's callbacks ---- */

/* Where a message waits to be decoded. CPU devices share the processors, so it is always the first;
 * among GPUs it is the one with the least to do, so that one that is slow does not hold up what is
 * not for it. */
static expert_device *entry_device(expert *self)
{
    expert_device *best = &self->device[0];

    for (uint32_t d = 1; d < self->n_devices && best->home != NULL; d++) {
        expert_device *other = &self->device[d];
        const int is_better = atomic_load(&other->depth) < atomic_load(&best->depth);
        if (device_failed(best) || (is_better && !device_failed(other))) best = other;
    }
    return best;
}

void compute_message(void *ctx, sy_call *call, sy_msg *msg)
{
    expert *self = ctx;
    expert_device *device = entry_device(self);
    compute_job *job = job_take(self);

    if (job == NULL) {
        sy_service_refuse(call, SY_ENOMEM, "no memory for the request");
        return;
    }
    job->call = sy_call_ref(call);
    job->msg = sy_msg_take(msg);
    job->guest = sy_call_user(call) == NULL ? NULL : sy_shm_guest_ref(sy_call_user(call));
    job->decoded = 0;
    job->queued_us = sy_clock_us();
    sy_call_pending(call, 1);
    atomic_store_explicit(&self->message_us, job->queued_us, memory_order_relaxed);
    sy_metric_add(self->messages, 1);
    atomic_fetch_add(&device->depth, 1);
    if (sy_queue_push(device->queue, job) == SY_OK) return;
    atomic_fetch_sub(&device->depth, 1);
    sy_service_refuse(call, SY_ELIMIT, "1024 messages wait already, which is the limit");
    job_let_go(self, job);
}

void compute_stream_open(void *ctx, sy_call *call)
{
    const expert *self = ctx;
    sy_shm_guest *guest = sy_shm_guest_open(self->shares_memory);

    sy_call_set_user(call, guest); /* tells streams from unary calls as well */
    if (guest == NULL) sy_service_refuse(call, SY_ENOMEM, "no memory for the stream");
}

void compute_stream_end(void *ctx, sy_call *call, int cancelled)
{
    (void)ctx;
    (void)cancelled;
    sy_shm_guest_unref(sy_call_user(call)); /* jobs of this stream have references of their own */
}

static sy_status open_device(expert_device *device, sy_error *err)
{
    sy_status st = SY_OK;

    if (device->home != NULL) st = gpu_open(device, err);
    if (st != SY_OK) return st;
    if (pthread_create(&device->thread, NULL, device->home != NULL ? gpu_main : device_main,
                       device) != 0)
        return sy_error_set(err, SY_EIO, "no thread for %s", device->name);
    device->started = 1;
    return SY_OK;
}

sy_status compute_open(expert *self, sy_error *err)
{
    sy_status st = sy_queue_open(&self->idle_jobs, IDLE_JOBS_MAX);

    for (uint32_t d = 0; st == SY_OK && d < self->n_devices; d++)
        st = sy_queue_open(&self->device[d].queue, EXPERT_QUEUE_MAX);
    if (st != SY_OK) return sy_error_set(err, st, "no memory for the queues");
    for (uint32_t d = 0; d < self->n_devices && st == SY_OK; d++)
        st = open_device(&self->device[d], err);
    return st;
}

void compute_close(expert *self)
{
    void *item;

    for (uint32_t d = 0; d < self->n_devices; d++)
        if (self->device[d].queue != NULL) sy_queue_close(self->device[d].queue);
    for (uint32_t d = 0; d < self->n_devices; d++)
        if (self->device[d].started) pthread_join(self->device[d].thread, NULL);
    for (uint32_t d = 0; d < self->n_devices; d++) {
        gpu_close(&self->device[d]);
        sy_queue_free(self->device[d].queue);
    }
    if (self->idle_jobs == NULL) return;
    while (sy_queue_pop(self->idle_jobs, &item, 0) == SY_OK) job_delete(item);
    sy_queue_free(self->idle_jobs);
}
