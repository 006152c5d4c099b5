/* wire_packed.h - what protobuf-c makes of a message, and that a frame is the same bytes. What is
 * packed lives in one arena, which a group of tests opens and closes. */
#ifndef WIRE_PACKED_H
#define WIRE_PACKED_H

#include "wire_refuse.h"

static sy_arena arena;

static inline int arena_open(void **state)
{
    (void)state;
    sy_arena_init(&arena, ARENA_BYTES);
    return 0;
}

static inline int arena_close(void **state)
{
    (void)state;
    sy_arena_free(&arena);
    return 0;
}

static inline sy_iov packed(const ProtobufCMessage *msg)
{
    const size_t n = protobuf_c_message_get_packed_size(msg);
    uint8_t *data = sy_arena_alloc(&arena, n);

    assert_non_null(data);
    return (sy_iov){data, protobuf_c_message_pack(msg, data)};
}

static inline void frame_equals(sy_frame *frame, sy_iov want)
{
    bytes b = bytes_of_frame(frame);

    assert_int_equal(b.len, want.len);
    assert_memory_equal(b.data, want.data, want.len);
    free(b.data);
}

#endif
