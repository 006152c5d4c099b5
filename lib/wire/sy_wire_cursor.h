/* sy_wire_cursor.h - reading protobuf's wire format from a message in pieces, without copying.
 * Private to lib/wire. Pure; nothing is ever read past the end of a piece. A cursor is a plain
 * value: a copy is a bookmark. */
#ifndef SY_WIRE_CURSOR_H
#define SY_WIRE_CURSOR_H

#include "sy_base.h"
#include "sy_buf.h"

#define SY_WIRE_VARINT  0
#define SY_WIRE_FIXED64 1
#define SY_WIRE_LEN     2
#define SY_WIRE_FIXED32 5

typedef struct sy_wire_cursor {
    const sy_iov *iov; /* borrowed */
    size_t n_pieces;
    size_t piece_id;
    size_t offset_bytes;    /* in that piece */
    size_t pos_bytes;       /* from the start of the message */
    size_t remaining_bytes; /* to its end */
} sy_wire_cursor;

typedef struct sy_wire_field {
    uint32_t number;
    uint32_t wire_type;   /* one of the four above */
    uint64_t value;       /* of a varint */
    size_t payload_bytes; /* of the other three: the cursor stands before that many bytes, and they
                             are there */
} sy_wire_field;

void sy_wire_cursor_init(sy_wire_cursor *at, const sy_iov *iov, size_t n);
/* Both need n <= remaining_bytes. out: [n] bytes. */
void sy_wire_cursor_read(sy_wire_cursor *at, void *out, size_t n);
void sy_wire_cursor_skip(sy_wire_cursor *at, size_t n);
/* Reads one field's tag, and its value or length. 0: malformed, cut short, or at the end; the
 * cursor is then useless. */
int sy_wire_cursor_field(sy_wire_cursor *at, sy_wire_field *out);

#endif
