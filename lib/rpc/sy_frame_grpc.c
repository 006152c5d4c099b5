/* sy_frame_grpc.c - messages on their way out: frames and packed protobuf messages as gRPC byte
 * buffers, and the queue in which they wait for their turn. */
#include "sy_rpc_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>
#include <string.h>

/* Below this a copy costs less than the bookkeeping of a reference. */
#define COPY_BYTES_MAX 512

#define QUEUE_FIRST_SLOTS 8

/* A slice travels to the thread that drops it under gRPC's own locks, which ThreadSanitizer does
 * not see. */
#ifdef __SANITIZE_THREAD__
static _Atomic int handed_over;
#define HAND_OVER() atomic_fetch_add_explicit(&handed_over, 1, memory_order_release)
#define TAKE_OVER() atomic_load_explicit(&handed_over, memory_order_acquire)
#else
#define HAND_OVER() ((void)0)
#define TAKE_OVER() ((void)0)
#endif

static void drop_buf(void *buf)
{
    (void)TAKE_OVER();
    sy_buf_unref(buf);
}

struct grpc_byte_buffer *rpc_buffer_from_frame(sy_frame *frame)
{
    grpc_slice slice[SY_FRAME_PIECES_MAX];
    grpc_byte_buffer *buffer;
    size_t n = 0;

    for (size_t i = 0; i < frame->n_pieces; i++) {
        const void *data = frame->piece[i].data;
        const size_t len = frame->piece[i].len;
        char *inside;

        if (len <= COPY_BYTES_MAX) {
            if (len > 0) slice[n++] = grpc_slice_from_copied_buffer(data, len);
            sy_buf_unref(frame->piece[i].buf);
            continue;
        }
        /* gRPC only reads, but its signature wants a mutable pointer: reached through the buffer,
         * which is one. */
        inside = (char *)frame->piece[i].buf->data;
        inside += (const char *)data - inside;
        slice[n++] = grpc_slice_new_with_user_data(inside, len, drop_buf, frame->piece[i].buf);
    }
    buffer = grpc_raw_byte_buffer_create(slice, n);
    for (size_t i = 0; i < n; i++)
        grpc_slice_unref(slice[i]); /* the byte buffer has references of its own */
    sy_frame_init(frame);
    (void)HAND_OVER();
    return buffer;
}

sy_status rpc_frame_pack(sy_frame *out, const struct ProtobufCMessage *message)
{
    const size_t len = protobuf_c_message_get_packed_size(message);
    sy_buf *buf = sy_buf_alloc(len);
    sy_status st;

    sy_frame_init(out);
    if (buf == NULL) return SY_ENOMEM;
    protobuf_c_message_pack(message, buf->data);
    st = sy_frame_add(out, buf, buf->data, len);
    sy_buf_unref(buf);
    return st;
}

/* Doubles the ring, at most to `max` slots, and straightens it. */
static sy_status queue_grow(rpc_send_queue *queue)
{
    const size_t wanted = queue->capacity == 0 ? QUEUE_FIRST_SLOTS : queue->capacity * 2;
    const size_t capacity = SY_MIN(wanted, queue->max);
    rpc_waiting *slot = malloc(capacity * sizeof(*slot));

    if (slot == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < queue->count; i++) {
        slot[i] = queue->slot[(queue->head + i) % queue->capacity];
    }
    free(queue->slot);
    queue->slot = slot;
    queue->capacity = capacity;
    queue->head = 0;
    return SY_OK;
}

sy_status rpc_send_queue_push(rpc_send_queue *queue, rpc_waiting waiting)
{
    if (queue->count >= queue->max) return SY_ELIMIT;
    if (queue->count == queue->capacity) {
        const sy_status st = queue_grow(queue);

        if (st != SY_OK) return st;
    }
    queue->slot[(queue->head + queue->count) % queue->capacity] = waiting;
    queue->count++;
    return SY_OK;
}

rpc_waiting rpc_send_queue_pop(rpc_send_queue *queue)
{
    rpc_waiting waiting;

    SY_ASSERT(queue->count > 0);
    waiting = queue->slot[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->count--;
    return waiting;
}

void rpc_send_queue_clear(rpc_send_queue *queue)
{
    while (queue->count > 0) grpc_byte_buffer_destroy(rpc_send_queue_pop(queue).buffer);
    free(queue->slot);
    queue->slot = NULL;
    queue->capacity = 0;
    queue->head = 0;
}
