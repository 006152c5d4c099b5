/* sy_wire_peek.c - single numbers out of messages that nobody needs whole: a reply's id, and
 * health. */
#include "grpc/health/v1/health.pb-c.h"
#include "sy_wire.h"
#include "sy_wire_cursor.h"
#include "sy_wire_out.h"

/* The last varint of that field, as protobuf reads it; 0 when absent. Returns 0 when the message is
 * malformed. */
static int last_varint(uint64_t *out, uint32_t number, const sy_iov *iov, size_t n)
{
    sy_wire_cursor at;
    sy_wire_field field;

    *out = 0;
    sy_wire_cursor_init(&at, iov, n);
    while (at.remaining_bytes > 0) {
        if (!sy_wire_cursor_field(&at, &field)) return 0;
        sy_wire_cursor_skip(&at, field.payload_bytes);
        if (field.number != number) continue;
        if (field.wire_type != SY_WIRE_VARINT) return 0;
        *out = field.value;
    }
    return 1;
}

uint64_t sy_wire_peek_id(const sy_iov *iov, size_t n)
{
    uint64_t id;

    return last_varint(&id, 1, iov, n) ? id : 0;
}

sy_status sy_wire_health_request_encode(sy_frame *out, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest msg;

    grpc__health__v1__health_check_request__init(&msg);
    msg.service = sy_wire_lend_text(service);
    return sy_wire_pack(out, &msg.base, NULL);
}

sy_status sy_wire_health_reply_decode(int *status, const sy_iov *iov, size_t n)
{
    uint64_t value;

    *status = 0;
    if (!last_varint(&value, 1, iov, n)) return SY_EINVAL;
    *status = (int)(int32_t)(uint32_t)value; /* enums are 32 bits wide, sign-extended on the wire */
    return SY_OK;
}
