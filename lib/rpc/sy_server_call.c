/* sy_server_call.c - the life of one RPC on the server.
 *
 * Three operations are with gRPC at a time, each with its tag: RECV_CLOSE from the start until the
 * call is over, one receive, and one batch of sends. The call has ended once RECV_CLOSE has come
 * back; it is let go of, and on_end runs, when the other two have as well. Receives start on the
 * loop only and take no lock, so that a worker's long write never holds up the loop; sends start
 * wherever the send was made, under the mutex. */
#include "sy_rpc_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A stream whose handler works on more requests than this is not read from: the client's sends then
 * wait in HTTP/2 flow control, which costs neither side memory. */
#define PENDING_MAX 64

#define DETAILS_BYTES_MAX                                                  \
    2048 /* with the text, within the 8 KB of metadata that clients accept \
          */

struct rpc_call_status {
    grpc_slice text, details;
    int has_details;
    grpc_metadata metadata; /* gRPC scribbles on it until the batch is back */
};

/* ---- references ---- */

sy_call *sy_call_ref(sy_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    return call;
}

void sy_call_unref(sy_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) return;
    SY_ASSERT(call->grpc ==
              NULL); /* the server's reference is the last to go before gRPC has let go */
    pthread_mutex_destroy(&call->mutex);
    free(call);
}

void sy_call_set_user(sy_call *call, void *user)
{
    call->user = user;
}

void *sy_call_user(const sy_call *call)
{
    return call->user;
}

sy_loop *sy_call_loop(const sy_call *call)
{
    return call->loop;
}

int64_t sy_call_deadline_us(const sy_call *call)
{
    return call->deadline_us;
}

int sy_call_ended(const sy_call *call)
{
    return atomic_load_explicit(&call->ended, memory_order_acquire);
}

/* ---- sends; the mutex is held ---- */

static grpc_op *add_metadata_op(sy_call *call, grpc_op *op)
{
    if (call->metadata_sent) return op;
    call->metadata_sent = 1;
    *op = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return op + 1;
}

static grpc_op *add_status_op(sy_call *call, grpc_op *op)
{
    struct rpc_call_status *status = call->status;

    call->status_sent = 1;
    *op = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op->data.send_status_from_server.status = (grpc_status_code)call->status_code;
    if (status == NULL) return op + 1;
    op->data.send_status_from_server.status_details = &status->text;
    if (status->has_details) {
        status->metadata =
            (grpc_metadata){.key = grpc_slice_from_static_string("grpc-status-details-bin"),
                            .value = status->details};
        op->data.send_status_from_server.trailing_metadata = &status->metadata;
        op->data.send_status_from_server.trailing_metadata_count = 1;
    }
    return op + 1;
}

/* Starts the next batch of sends, if one is due: a message, the status after the last one, or both
 * at once. A method with one reply keeps it until the status is known, so that both travel in one
 * write. */
static void pump_sends(sy_call *call)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_op ops[3], *op = ops;

    if (call->send_inflight || call->status_sent || atomic_load(&call->ended)) return;
    if (!call->finishing && (call->sends.count == 0 || !call->method->server_streams)) return;
    memset(ops, 0, sizeof(ops));
    op = add_metadata_op(call, op);
    if (call->sends.count > 0) {
        buffer = rpc_send_queue_pop(&call->sends).buffer;
        *op = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
        op->data.send_message.send_message = buffer;
        op++;
    }
    if (call->finishing && call->sends.count == 0) op = add_status_op(call, op);
    call->send_inflight = 1;
    call->inflight_since_us = sy_clock_us();
    call->n_tags++;
    if (grpc_call_start_batch(call->grpc, ops, (size_t)(op - ops), &call->send_tag, NULL) !=
        GRPC_CALL_OK) {
        call->n_tags--; /* a refused batch never completes */
        call->send_inflight = 0;
        call->status_sent = 1;
        grpc_call_cancel(call->grpc, NULL);
    }
    if (buffer != NULL) grpc_byte_buffer_destroy(buffer);
}

sy_status sy_call_send(sy_call *call, sy_frame *frame)
{
    grpc_byte_buffer *buffer;
    sy_status st;

    if (sy_call_ended(call)) {
        sy_frame_free(frame);
        return SY_ECANCELLED;
    }
    buffer = rpc_buffer_from_frame(frame);
    pthread_mutex_lock(&call->mutex);
    if (call->finishing || atomic_load(&call->ended)) {
        st = SY_ECANCELLED;
    } else if (!call->method->server_streams && call->sends.count > 0) {
        st = SY_EPRECONDITION; /* a second reply to a unary call */
    } else {
        st = rpc_send_queue_push(&call->sends, (rpc_waiting){.buffer = buffer});
        if (st == SY_OK) pump_sends(call);
    }
    pthread_mutex_unlock(&call->mutex);
    if (st != SY_OK) grpc_byte_buffer_destroy(buffer);
    return st;
}

size_t sy_call_queued(const sy_call *call)
{
    pthread_mutex_t *mutex =
        (pthread_mutex_t *)(uintptr_t)&call->mutex; /* counting changes nothing */
    size_t n;

    pthread_mutex_lock(mutex);
    n = call->sends.count + (size_t)call->send_inflight;
    pthread_mutex_unlock(mutex);
    return n;
}

/* ---- finishing ---- */

static struct rpc_call_status *status_new(const sy_call *call, const sy_error *err)
{
    struct rpc_call_status *status = calloc(1, sizeof(*status));
    const char *text = err->message[0] != '\0' ? err->message : sy_status_name(err->status);
    uint8_t details[DETAILS_BYTES_MAX];
    size_t n;

    if (status == NULL) return NULL; /* the code travels without its text */
    status->text = grpc_slice_from_copied_string(text);
    n = call->error_details == NULL ? 0 : call->error_details(err, details, sizeof(details));
    if (n > 0 && n <= sizeof(details)) {
        status->details = grpc_slice_from_copied_buffer((const char *)details, n);
        status->has_details = 1;
    }
    return status;
}

static void status_free(struct rpc_call_status *status)
{
    if (status == NULL) return;
    grpc_slice_unref(status->text);
    if (status->has_details) grpc_slice_unref(status->details);
    free(status);
}

void sy_call_finish(sy_call *call, const sy_error *err)
{
    const int failed = err != NULL && err->status != SY_OK;
    struct rpc_call_status *status;

    if (sy_call_ended(call)) return;
    status = failed ? status_new(call, err) : NULL;
    pthread_mutex_lock(&call->mutex);
    if (!atomic_load(&call->finishing) && !atomic_load(&call->ended)) {
        atomic_store(&call->finishing, 1);
        call->status_code = failed ? sy_status_code(err->status) : GRPC_STATUS_OK;
        call->status = status;
        status = NULL;
        /* A unary call fails without a reply, whatever was queued. */
        if (failed && !call->method->server_streams) rpc_send_queue_clear(&call->sends);
        pump_sends(call);
    }
    pthread_mutex_unlock(&call->mutex);
    status_free(status);
}

/* ---- the end; loop only ---- */

static void maybe_end(sy_call *call)
{
    if (!call->closed || atomic_load(&call->n_tags) > 0) return;
    if (call->method->on_end != NULL)
        call->method->on_end(call->method->ctx, call, call->cancelled != 0);
    grpc_call_unref(call->grpc);
    call->grpc = NULL;
    status_free(call->status);
    call->status = NULL;
    free(call->accepted);
    rpc_server_call_ended(call->server, call);
}

static void on_close(rpc_tag *tag, int ok)
{
    sy_call *call = RPC_OF(tag, sy_call, close_tag);
    rpc_send_queue dropped;

    (void)ok; /* RECV_CLOSE always succeeds */
    pthread_mutex_lock(&call->mutex);
    call->n_tags--;
    atomic_store(&call->ended, 1);
    dropped = call->sends;
    memset(&call->sends, 0, sizeof(call->sends));
    pthread_mutex_unlock(&call->mutex);
    rpc_send_queue_clear(&dropped);
    call->closed = 1;
    maybe_end(call);
}

static void on_sent(rpc_tag *tag, int ok)
{
    sy_call *call = RPC_OF(tag, sy_call, send_tag);

    pthread_mutex_lock(&call->mutex);
    call->n_tags--;
    call->send_inflight = 0;
    if (ok) pump_sends(call); /* otherwise the call is broken, and RECV_CLOSE is on its way */
    pthread_mutex_unlock(&call->mutex);
    maybe_end(call);
}

/* ---- receives; loop only ---- */

static void arm_receive(sy_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    if (call->closed || call->recv_armed || atomic_load(&call->finishing)) return;
    if (atomic_load(&call->pending) > PENDING_MAX) {
        atomic_store(&call->recv_paused, 1);
        /* What was pending may have been answered just before the flag was up. */
        if (atomic_load(&call->pending) > PENDING_MAX) return;
        if (!atomic_exchange(&call->recv_paused, 0)) return; /* a worker saw it and resumes */
    }
    op.data.recv_message.recv_message = &call->recv_buffer;
    call->n_tags++;
    call->recv_armed = 1;
    if (grpc_call_start_batch(call->grpc, &op, 1, &call->recv_tag, NULL) == GRPC_CALL_OK) return;
    call->recv_armed = 0;
    call->n_tags--;
    grpc_call_cancel(call->grpc, NULL);
}

static void half_close(sy_call *call)
{
    sy_error err;

    if (!call->method->client_streams) {
        sy_error_clear(&err);
        sy_error_set(&err, SY_EINVAL, "%s: the call carried no request message",
                     call->method->path);
        sy_call_finish(call, &err);
    } else if (call->method->on_half_close != NULL) {
        call->method->on_half_close(call->method->ctx, call);
    } else {
        atomic_store(&call->finish_when_idle, 1);
        if (atomic_load(&call->pending) == 0) sy_call_finish(call, NULL);
    }
}

static void deliver(sy_call *call, grpc_byte_buffer *buffer)
{
    sy_msg *msg = rpc_msg_new(buffer);
    sy_error err;

    if (msg == NULL) {
        sy_error_clear(&err);
        sy_error_set(&err, SY_ENOMEM, "no memory for a request");
        sy_call_finish(call, &err);
        return;
    }
    call->got_message = 1;
    call->method->on_message(call->method->ctx, call, msg);
    sy_msg_free(msg);
    /* After the work, which does not block: it costs a write, a window update for the client. */
    if (call->method->client_streams) arm_receive(call);
}

static void on_received(rpc_tag *tag, int ok)
{
    sy_call *call = RPC_OF(tag, sy_call, recv_tag);
    grpc_byte_buffer *buffer = call->recv_buffer;

    call->recv_buffer = NULL;
    call->recv_armed = 0;
    call->n_tags--;
    if (!ok || call->closed ||
        atomic_load(&call->finishing)) { /* lost or too large: RECV_CLOSE follows. Finishing: nobody
                                            would answer it */
        if (buffer != NULL) grpc_byte_buffer_destroy(buffer);
    } else if (buffer == NULL) {
        half_close(call);
    } else {
        deliver(call, buffer);
    }
    maybe_end(call);
}

static void resume_receive(void *arg)
{
    sy_call *call = arg;

    arm_receive(call);
    sy_call_unref(call);
}

void sy_call_pending(sy_call *call, int delta)
{
    const int pending = atomic_fetch_add(&call->pending, delta) + delta;

    SY_ASSERT(pending >= 0);
    if (delta >= 0) return;
    if (pending == 0 && atomic_load(&call->finish_when_idle)) sy_call_finish(call, NULL);
    if (pending > PENDING_MAX || !atomic_exchange(&call->recv_paused, 0)) return;
    pthread_mutex_lock(
        &call->mutex); /* keeps the loop from ending the call, and so the loop itself, meanwhile */
    if (!atomic_load(&call->ended)) {
        sy_call_ref(call);
        rpc_loop_post(call->loop, &call->resume_post, resume_receive, call);
    }
    pthread_mutex_unlock(&call->mutex);
}

/* ---- start, drain, stall; loop only ---- */

sy_call *rpc_call_new(const rpc_call_setup *setup)
{
    sy_call *call = calloc(1, sizeof(*call));

    if (call == NULL) {
        grpc_call_cancel_with_status(setup->grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, "no memory",
                                     NULL);
        grpc_call_unref(setup->grpc);
        return NULL;
    }
    atomic_init(&call->refs, 1);
    pthread_mutex_init(&call->mutex, NULL);
    call->server = setup->server;
    call->loop = setup->loop;
    call->method = setup->method;
    call->grpc = setup->grpc;
    call->deadline_us = setup->deadline_us;
    call->error_details = setup->error_details;
    call->sends.max = setup->send_queue_max;
    call->send_tag.fn = on_sent;
    call->recv_tag.fn = on_received;
    call->close_tag.fn = on_close;
    return call;
}

/* Watches for the end. A stream's metadata goes out with it, at once, and tells the peer that the
 * stream is accepted. */
static void begin(sy_call *call, grpc_metadata *accepted)
{
    grpc_op ops[2], *op = ops;
    grpc_call_error refused;

    memset(ops, 0, sizeof(ops));
    if (accepted != NULL) {
        op->op = GRPC_OP_SEND_INITIAL_METADATA;
        op->data.send_initial_metadata.metadata = accepted;
        op->data.send_initial_metadata.count = 1;
        op++;
    }
    op->op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op->data.recv_close_on_server.cancelled = &call->cancelled;
    op++;
    pthread_mutex_lock(&call->mutex);
    call->metadata_sent = accepted != NULL;
    call->n_tags++;
    refused = grpc_call_start_batch(call->grpc, ops, (size_t)(op - ops), &call->close_tag, NULL);
    pthread_mutex_unlock(&call->mutex);
    SY_ASSERT(refused ==
              GRPC_CALL_OK); /* the first batch of a new call: only a wrong one is refused */
}

void rpc_call_start(sy_call *call)
{
    if (call->method->client_streams) {
        call->accepted =
            calloc(1, sizeof(*call->accepted)); /* lives as long as the batch: until the end */
    }
    if (call->accepted != NULL) {
        call->accepted->key = grpc_slice_from_static_string(RPC_ACCEPTED_KEY);
        call->accepted->value = grpc_slice_from_static_string("1");
    }
    begin(call, call->accepted);
    if (call->method->on_open != NULL) call->method->on_open(call->method->ctx, call);
    arm_receive(call);
}

void rpc_call_reject(sy_call *call, const sy_error *err)
{
    begin(call, NULL);
    sy_call_finish(call, err);
}

void rpc_call_drain(sy_call *call)
{
    sy_error err;

    if (call->method->client_streams) {
        atomic_store(&call->finish_when_idle, 1);
        if (atomic_load(&call->pending) == 0) sy_call_finish(call, NULL);
    } else if (call->method->server_streams && call->got_message &&
               atomic_load(&call->pending) == 0) {
        /* Not with OK: what this stream would still have said is missing, and its client must know.
         */
        sy_error_clear(&err);
        sy_error_set(&err, SY_EUNAVAILABLE, "the server is shutting down; call again");
        sy_call_finish(call, &err);
    }
}

void rpc_call_check_stall(sy_call *call, int64_t now_us, int64_t stall_us)
{
    char text[96];
    int stalled;

    pthread_mutex_lock(&call->mutex);
    stalled = call->send_inflight && now_us - call->inflight_since_us >= stall_us;
    pthread_mutex_unlock(&call->mutex);
    if (!stalled || call->closed) return;
    snprintf(text, sizeof(text), "the client has read nothing for %lld ms",
             (long long)(stall_us / 1000));
    grpc_call_cancel_with_status(call->grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, text, NULL);
}
