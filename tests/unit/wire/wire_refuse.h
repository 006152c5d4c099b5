/* wire_refuse.h - messages built by protobuf-c, so that nothing of ours stands between a mistake
 * and the decoder, and what the decoder must say of them. */
#ifndef WIRE_REFUSE_H
#define WIRE_REFUSE_H

#include "wire_kinds.h"

#define WHOLE(array)                      \
    {                                     \
        sizeof(array), (uint8_t *)(array) \
    }

/* protobuf-c's structs have no const. */
static inline char *text(const char *s)
{
    return (char *)(uintptr_t)s;
}

static inline sy_status read_message(const char *kind, const ProtobufCMessage *msg, sy_error *err)
{
    bytes b = bytes_new(protobuf_c_message_get_packed_size(msg));
    sy_arena arena;
    sy_frame frame;
    sy_status st;
    sy_iov iov;

    iov = (sy_iov){b.data, protobuf_c_message_pack(msg, b.data)};
    sy_error_clear(err);
    sy_arena_init(&arena, ARENA_BYTES);
    st = kind_named(kind)->again(&frame, &arena, &iov, 1, err);
    sy_frame_free(&frame);
    sy_arena_free(&arena);
    free(b.data);
    return st;
}

static inline void refused(const char *kind, const ProtobufCMessage *msg, const char *why)
{
    sy_error err;
    const sy_status st = read_message(kind, msg, &err);

    if (st != SY_EINVAL || strstr(err.message, why) == NULL) {
        fail_msg("%s: %s '%s', wanted '%s'", kind, sy_status_name(st), err.message, why);
    }
}

static inline void taken(const char *kind, const ProtobufCMessage *msg)
{
    sy_error err;
    const sy_status st = read_message(kind, msg, &err);

    if (st != SY_OK) fail_msg("%s: %s '%s'", kind, sy_status_name(st), err.message);
}

#endif
