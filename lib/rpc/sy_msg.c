/* sy_msg.c - owns received messages: gRPC's buffer and the list of its pieces, counted so that a
 * callback's borrow and a taker's ownership end independently, on any thread. They live in pooled
 * buffers: nothing is allocated for a message once as many have been alive before. */
#include "sy_rpc_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <string.h>

struct sy_msg {
    _Atomic int refs;
    sy_buf *home; /* where this lies */
    grpc_byte_buffer *buffer;
    size_t len, n_pieces;
    sy_iov piece[];
};

sy_msg *rpc_msg_new(struct grpc_byte_buffer *buffer)
{
    const grpc_slice_buffer *slices =
        &buffer->data.raw.slice_buffer; /* received buffers are always raw */
    sy_buf *home = sy_buf_alloc(sizeof(sy_msg) + slices->count * sizeof(sy_iov));
    sy_msg *msg;

    if (home == NULL) {
        grpc_byte_buffer_destroy(buffer);
        return NULL;
    }
    msg = home->data;
    atomic_init(&msg->refs, 1);
    msg->home = home;
    msg->buffer = buffer;
    msg->len = slices->length;
    msg->n_pieces = slices->count;
    for (size_t i = 0; i < slices->count; i++) {
        msg->piece[i].data = GRPC_SLICE_START_PTR(slices->slices[i]);
        msg->piece[i].len = GRPC_SLICE_LENGTH(slices->slices[i]);
    }
    return msg;
}

size_t sy_msg_len(const sy_msg *msg)
{
    return msg->len;
}

const sy_iov *sy_msg_iov(const sy_msg *msg, size_t *n)
{
    *n = msg->n_pieces;
    return msg->piece;
}

sy_msg *sy_msg_take(sy_msg *msg)
{
    atomic_fetch_add_explicit(&msg->refs, 1, memory_order_relaxed);
    return msg;
}

void sy_msg_free(sy_msg *msg)
{
    if (msg == NULL || atomic_fetch_sub_explicit(&msg->refs, 1, memory_order_acq_rel) != 1) return;
    grpc_byte_buffer_destroy(msg->buffer);
    sy_buf_unref(msg->home);
}

size_t rpc_msg_copy(const sy_msg *msg, void *out, size_t cap)
{
    size_t at = 0;

    if (msg->len > cap) return SIZE_MAX;
    for (size_t i = 0; i < msg->n_pieces; i++) {
        if (msg->piece[i].len == 0) continue;
        memcpy((char *)out + at, msg->piece[i].data, msg->piece[i].len);
        at += msg->piece[i].len;
    }
    return at;
}
