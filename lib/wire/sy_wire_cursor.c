/* sy_wire_cursor.c - tags, varints and lengths across pieces that are cut anywhere. Where the
 * format leaves a choice (over-long varints, enormous lengths) the answer is protobuf-c's, so that
 * both readers agree on every message. */
#include "sy_wire_cursor.h"

#include <string.h>

#define TAG_BYTES_MAX    5
#define LENGTH_BYTES_MAX 5
#define VARINT_BYTES_MAX 10

void sy_wire_cursor_init(sy_wire_cursor *at, const sy_iov *iov, size_t n)
{
    *at = (sy_wire_cursor){.iov = iov, .n_pieces = n};
    for (size_t i = 0; i < n; i++) at->remaining_bytes += iov[i].len;
}

/* Moves over n bytes, into out unless that is NULL. */
static void advance(sy_wire_cursor *at, char *out, size_t n)
{
    SY_ASSERT(n <= at->remaining_bytes);
    at->pos_bytes += n;
    at->remaining_bytes -= n;
    while (n > 0) {
        const sy_iov *piece = &at->iov[at->piece_id];
        const size_t step = SY_MIN(n, piece->len - at->offset_bytes);

        if (step == 0) {
            at->piece_id++;
            at->offset_bytes = 0;
            continue;
        }
        if (out != NULL) {
            memcpy(out, (const char *)piece->data + at->offset_bytes, step);
            out += step;
        }
        at->offset_bytes += step;
        n -= step;
    }
}

void sy_wire_cursor_read(sy_wire_cursor *at, void *out, size_t n)
{
    advance(at, out, n);
}

void sy_wire_cursor_skip(sy_wire_cursor *at, size_t n)
{
    advance(at, NULL, n);
}

/* Bits above the 64th are dropped. */
static int read_varint(sy_wire_cursor *at, uint64_t *out, unsigned bytes_max)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes_max && at->remaining_bytes > 0; i++) {
        unsigned char byte;

        advance(at, (char *)&byte, 1);
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

int sy_wire_cursor_field(sy_wire_cursor *at, sy_wire_field *out)
{
    uint64_t tag;
    uint64_t bytes;

    if (!read_varint(at, &tag, TAG_BYTES_MAX) || tag >> 3 == 0) return 0;
    *out = (sy_wire_field){.number = (uint32_t)(tag >> 3), .wire_type = (uint32_t)(tag & 7)};
    switch (out->wire_type) {
    case SY_WIRE_VARINT: return read_varint(at, &out->value, VARINT_BYTES_MAX);
    case SY_WIRE_FIXED64: bytes = 8; break;
    case SY_WIRE_FIXED32: bytes = 4; break;
    case SY_WIRE_LEN:
        if (!read_varint(at, &bytes, LENGTH_BYTES_MAX) || bytes > INT32_MAX) return 0;
        break;
    default: return 0; /* groups left the language long ago */
    }
    out->payload_bytes = (size_t)bytes;
    return bytes <= at->remaining_bytes;
}
