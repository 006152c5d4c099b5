/* sy_stream.c - one streaming call on a client, driven by the loop: a peer's long-lived stream, or
 * its watch.
 *
 * Four operations are with gRPC at most: opening, one receive, one send, and RECV_STATUS from start
 * to end. The status ends the stream: no batch is started after it, and when the others have come
 * back as well, gRPC's call is let go. */
#include "sy_rpc_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

#define UNMARKED_READY_US 20000

struct rpc_stream {
    _Atomic int refs; /* one is the loop's, until on_closed */
    sy_loop *loop;
    const rpc_stream_events *events;
    void *ctx;
    rpc_tag open_tag, recv_tag, send_tag, status_tag;
    _Atomic int n_tags;

    /* Serialises sends; slice destructors that run meanwhile only drop buffers. */
    pthread_mutex_t mutex;
    grpc_call *call; /* no batch is started once `ended` is set */
    rpc_send_queue sends;
    int send_inflight, ended;

    /* Loop only. */
    rpc_timer ready_timer;
    rpc_post arm_post;
    int status_known, recv_armed, end_told; /* recv_armed: or as good as, by arm_post */
    grpc_byte_buffer *recv_buffer;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice status_text;
};

rpc_stream *rpc_stream_ref(rpc_stream *stream)
{
    atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    return stream;
}

void rpc_stream_unref(rpc_stream *stream)
{
    if (stream == NULL) return;
    if (atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) return;
    SY_ASSERT(stream->call == NULL);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
}

/* ---- the end; loop only ---- */

static void maybe_close(rpc_stream *stream)
{
    if (!stream->end_told || atomic_load(&stream->n_tags) > 0) return;
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_slice_unref(stream->status_text);
    grpc_call_unref(stream->call);
    stream->call = NULL;
    stream->events->on_closed(stream->ctx, stream);
    rpc_stream_unref(stream);
}

static void end_error(const rpc_stream *stream, sy_error *err)
{
    const size_t n = SY_MIN(GRPC_SLICE_LENGTH(stream->status_text), (size_t)SY_MESSAGE_BYTES);

    sy_error_clear(err);
    if (stream->status == GRPC_STATUS_OK) return;
    sy_error_set(err, sy_status_from_code((int)stream->status), "%.*s", (int)n,
                 (const char *)GRPC_SLICE_START_PTR(stream->status_text));
}

/* The last message and the status come in either order; the end is told after both. */
static void maybe_end(rpc_stream *stream)
{
    sy_error err;

    if (stream->status_known && !stream->recv_armed && !stream->end_told) {
        stream->end_told = 1;
        end_error(stream, &err);
        stream->events->on_end(stream->ctx, stream, &err);
    }
    maybe_close(stream);
}

static void on_status(rpc_tag *tag, int ok)
{
    rpc_stream *stream = RPC_OF(tag, rpc_stream, status_tag);
    rpc_send_queue dropped;

    (void)ok; /* RECV_STATUS always succeeds */
    pthread_mutex_lock(&stream->mutex);
    stream->ended = 1;
    dropped = stream->sends;
    memset(&stream->sends, 0, sizeof(stream->sends));
    pthread_mutex_unlock(&stream->mutex);
    rpc_send_queue_clear(&dropped);
    stream->n_tags--;
    stream->status_known = 1;
    rpc_timer_stop(&stream->ready_timer);
    maybe_end(stream);
}

/* ---- opening; loop only ---- */

static int has_marker(const rpc_stream *stream)
{
    for (size_t i = 0; i < stream->initial.count; i++) {
        if (grpc_slice_str_cmp(stream->initial.metadata[i].key, RPC_ACCEPTED_KEY) == 0) return 1;
    }
    return 0;
}

static void on_ready_timer(rpc_timer *timer)
{
    rpc_stream *stream = RPC_OF(timer, rpc_stream, ready_timer);

    stream->events->on_ready(stream->ctx, stream);
}

/* A refusal looks like an opening with its status right behind it. Our servers mark what they
 * accept; another's silence is taken for acceptance. */
static void on_opened(rpc_tag *tag, int ok)
{
    rpc_stream *stream = RPC_OF(tag, rpc_stream, open_tag);

    stream->n_tags--;
    if (ok && !stream->status_known) {
        if (has_marker(stream)) {
            stream->events->on_ready(stream->ctx, stream);
        } else {
            rpc_timer_start(stream->loop, &stream->ready_timer, sy_clock_us() + UNMARKED_READY_US,
                            on_ready_timer);
        }
    }
    maybe_close(stream);
}

static int start(rpc_stream *stream, const grpc_op *ops, size_t n, rpc_tag *tag)
{
    stream->n_tags++; /* before the call: no completion can outrun it */
    if (grpc_call_start_batch(stream->call, ops, n, tag, NULL) == GRPC_CALL_OK) return 1;
    stream->n_tags--; /* a refused batch never completes */
    grpc_call_cancel(stream->call, NULL);
    return 0;
}

static void arm_receive(rpc_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &stream->recv_buffer;
    stream->recv_armed = start(stream, &op, 1, &stream->recv_tag);
}

/* Arming makes gRPC write at once, a window update for the server. It can wait until whoever has
 * got this message has done something with it, for instance sent the next request. */
static void arm_later(void *arg)
{
    arm_receive(arg);
    maybe_end(arg); /* when it was refused */
}

static void on_received(rpc_tag *tag, int ok)
{
    rpc_stream *stream = RPC_OF(tag, rpc_stream, recv_tag);
    grpc_byte_buffer *buffer = stream->recv_buffer;
    sy_msg *msg = NULL;

    stream->recv_buffer = NULL;
    stream->recv_armed = 0;
    stream->n_tags--;
    if (ok && buffer != NULL) {
        msg = rpc_msg_new(buffer);
        if (msg == NULL) rpc_stream_cancel(stream, SY_ENOMEM, "no memory for a message");
    } else if (buffer != NULL) {
        grpc_byte_buffer_destroy(buffer);
    }
    if (msg != NULL) {
        stream->events->on_message(stream->ctx, stream, msg);
        sy_msg_free(msg);
        stream->recv_armed = 1;
        rpc_loop_defer(stream->loop, &stream->arm_post, arm_later, stream);
    }
    maybe_end(stream); /* without a message it was the last one; the status says why */
}

static void open_call(rpc_stream *stream, const rpc_stream_setup *setup)
{
    grpc_byte_buffer *request = NULL;
    grpc_op ops[4], *op = ops;
    int started;

    memset(ops, 0, sizeof(ops));
    op->op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    op->data.recv_status_on_client.trailing_metadata = &stream->trailing;
    op->data.recv_status_on_client.status = &stream->status;
    op->data.recv_status_on_client.status_details = &stream->status_text;
    started = start(stream, op, 1, &stream->status_tag);
    SY_ASSERT(started); /* the first batch of a new call: only a wrong one is refused */

    memset(ops, 0, sizeof(ops));
    op->op = GRPC_OP_SEND_INITIAL_METADATA;
    op->flags =
        GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    op++;
    op->op = GRPC_OP_RECV_INITIAL_METADATA;
    op->data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    op++;
    if (setup->request_only) {
        grpc_slice slice = grpc_slice_from_copied_buffer(setup->request, setup->request_len);

        request = grpc_raw_byte_buffer_create(&slice, 1);
        grpc_slice_unref(slice);
        op->op = GRPC_OP_SEND_MESSAGE;
        op->data.send_message.send_message = request;
        op++;
        op->op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        op++;
    }
    if (start(stream, ops, (size_t)(op - ops), &stream->open_tag)) arm_receive(stream);
    if (request != NULL) grpc_byte_buffer_destroy(request);
}

/* ---- sends ---- */

/* Under the mutex: the next message that somebody still waits for. */
static void pump_sends(rpc_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    while (!stream->send_inflight && !stream->ended && stream->sends.count > 0) {
        const rpc_waiting next = rpc_send_queue_pop(&stream->sends);

        op.data.send_message.send_message = next.buffer;
        stream->send_inflight = start(stream, &op, 1, &stream->send_tag);
        grpc_byte_buffer_destroy(next.buffer);
        if (!stream->send_inflight) return; /* broken: the status is on its way */
    }
}

/* Under the mutex. Requests that were given up while they waited are not sent at all. */
static void drop_unwanted(rpc_stream *stream)
{
    const size_t n = stream->sends.count;

    if (stream->events->wanted == NULL) return;
    for (size_t i = 0; i < n; i++) { /* once round the ring, keeping the order */
        const rpc_waiting next = rpc_send_queue_pop(&stream->sends);

        if (next.id != 0 && !stream->events->wanted(stream->ctx, next.id)) {
            grpc_byte_buffer_destroy(next.buffer);
        } else {
            const sy_status st = rpc_send_queue_push(&stream->sends, next);

            SY_ASSERT(st == SY_OK); /* its own slot has just become free */
        }
    }
}

/* Under the mutex: the same for the front only, before a send. */
static void drop_unwanted_front(rpc_stream *stream)
{
    if (stream->events->wanted == NULL) return;
    while (stream->sends.count > 0) {
        const rpc_waiting next = stream->sends.slot[stream->sends.head];

        if (next.id == 0 || stream->events->wanted(stream->ctx, next.id)) return;
        grpc_byte_buffer_destroy(rpc_send_queue_pop(&stream->sends).buffer);
    }
}

static void on_sent(rpc_tag *tag, int ok)
{
    rpc_stream *stream = RPC_OF(tag, rpc_stream, send_tag);

    pthread_mutex_lock(&stream->mutex);
    stream->send_inflight = 0;
    if (ok) {
        drop_unwanted_front(stream);
        pump_sends(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
    stream->n_tags--;
    maybe_close(stream);
}

sy_status rpc_stream_send(rpc_stream *stream, struct grpc_byte_buffer *buffer, uint64_t id)
{
    const rpc_waiting waiting = {.buffer = buffer, .id = id};
    sy_status st = SY_ECANCELLED;

    pthread_mutex_lock(&stream->mutex);
    if (!stream->ended) {
        st = rpc_send_queue_push(&stream->sends, waiting);
        if (st == SY_ELIMIT) { /* full of requests that nobody waits for any more, perhaps */
            drop_unwanted(stream);
            st = rpc_send_queue_push(&stream->sends, waiting);
        }
        if (st == SY_OK) pump_sends(stream);
    }
    pthread_mutex_unlock(&stream->mutex);
    if (st != SY_OK) grpc_byte_buffer_destroy(buffer);
    return st;
}

/* ---- life ---- */

sy_status rpc_stream_open(rpc_stream **out, const rpc_stream_setup *setup)
{
    rpc_stream *stream = calloc(1, sizeof(*stream));
    grpc_slice path;

    *out = NULL;
    if (stream == NULL) return SY_ENOMEM;
    atomic_init(&stream->refs, 2); /* the caller's and the loop's */
    pthread_mutex_init(&stream->mutex, NULL);
    stream->loop = setup->loop;
    stream->events = setup->events;
    stream->ctx = setup->ctx;
    stream->sends.max = setup->send_queue_max;
    stream->open_tag.fn = on_opened;
    stream->recv_tag.fn = on_received;
    stream->send_tag.fn = on_sent;
    stream->status_tag.fn = on_status;
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    path = grpc_slice_from_copied_string(setup->path);
    stream->call = grpc_channel_create_call(setup->channel, NULL, 0, rpc_loop_queue(setup->loop),
                                            path, NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(path);
    *out = stream;
    open_call(stream, setup);
    return SY_OK;
}

void rpc_stream_cancel(rpc_stream *stream, sy_status why, const char *text)
{
    if (stream->call == NULL) return;
    grpc_call_cancel_with_status(stream->call, (grpc_status_code)sy_status_code(why), text, NULL);
}
