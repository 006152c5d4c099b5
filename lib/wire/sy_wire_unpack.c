/* sy_wire_unpack.c - protobuf-c over an arena. Bulk at the end of a message is cut off before
 * protobuf-c sees it, because protobuf-c wants contiguous bytes and copies every field: the tensors
 * would be copied twice. */
#include <protobuf-c/protobuf-c.h>
#include <string.h>

#include "switchyard/v1/tensor.pb-c.h"
#include "sy_wire_in.h"

#define BULK_FIELD         15u
#define ROWS_DATA_FIELD    4u
#define BULK_TAG           ((BULK_FIELD << 3) | SY_WIRE_LEN)
#define BULK_HEADER_BYTES  6 /* the tag, and a length of up to 5 bytes */
#define SMALL_HEADER_BYTES ((size_t)16)
#define LARGE_BYTES        ((size_t)64)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors and arrays are little-endian on the wire");

void sy_wire_in_init(sy_wire_in *in, sy_arena *arena, sy_error *err)
{
    *in = (sy_wire_in){.arena = arena, .err = err, .status = SY_OK, .index = -1};
}

static void *take(sy_wire_in *in, size_t n)
{
    void *p = sy_arena_alloc(in->arena, n);

    if (p != NULL || in->status != SY_OK) return p;
    if (n > in->arena->limit_bytes - in->arena->total_bytes) {
        in->status =
            sy_error_set(in->err, SY_ELIMIT,
                         "%s: needs more than the %zu bytes of memory that one message may use",
                         in->kind, in->arena->limit_bytes);
    } else {
        in->status = sy_error_set(in->err, SY_ENOMEM, "%s: no memory for %zu bytes", in->kind, n);
    }
    return NULL;
}

void *sy_wire_alloc(sy_wire_in *in, size_t n)
{
    return take(in, SY_MAX(n, LARGE_BYTES));
}

/* protobuf-c's strings are C strings, yet may hold NULs on the wire. It allocates each as its
 * length plus one and moves it only as a whole, so that the size of the allocation, kept in front
 * of it, tells the length. The header keeps the alignment: large arrays need no second copy to be
 * 64-byte aligned. */
static void *allocate(void *context, size_t n)
{
    const size_t header_bytes = n >= LARGE_BYTES ? LARGE_BYTES : SMALL_HEADER_BYTES;
    char *p = n <= PTRDIFF_MAX - header_bytes ? take(context, header_bytes + n) : NULL;

    if (p == NULL) return NULL;
    p += header_bytes;
    memcpy(p - sizeof(n), &n, sizeof(n));
    return p;
}

static void release(void *context, void *p)
{
    (void)context; /* the arena frees all at once */
    (void)p;
}

size_t sy_wire_string_bytes(const char *s)
{
    size_t n;

    if (s == protobuf_c_empty_string) return 0;
    memcpy(&n, s - sizeof(n), sizeof(n));
    return n - 1;
}

/* Moves the cursor to the payload of field `number`, provided that it is length-delimited and the
 * last thing in the message. *start_bytes: where its tag is. 0: it is not so, or what stands before
 * is malformed. */
static int seek_last(sy_wire_cursor *at, uint32_t number, size_t *start_bytes)
{
    sy_wire_field field;

    for (;;) {
        *start_bytes = at->pos_bytes;
        if (!sy_wire_cursor_field(at, &field)) return 0;
        if (field.number == number) {
            return field.wire_type == SY_WIRE_LEN && field.payload_bytes == at->remaining_bytes;
        }
        sy_wire_cursor_skip(at, field.payload_bytes);
    }
}

/* What cuts the bulk off sets in->bulk, or returns 0 when the bulk is not at the end. out: the
 * message without its bulk; out->data is NULL after a failed allocation. */

/* Field 15 is bytes: all before it. */
static int cut_bytes_off(sy_iov *out, sy_wire_in *in, sy_wire_cursor at)
{
    sy_wire_cursor bulk = at;
    size_t head_bytes;
    uint8_t *bytes;

    if (!seek_last(&bulk, BULK_FIELD, &head_bytes)) return 0;
    in->has_bulk = 1;
    in->bulk = bulk;
    bytes = take(in, SY_MAX(head_bytes, 1));
    if (bytes != NULL) sy_wire_cursor_read(&at, bytes, head_bytes);
    *out = (sy_iov){bytes, head_bytes};
    return 1;
}

/* Field 15 is a Rows: all before it, then a Rows of what stands before its data. */
static int cut_rows_off(sy_iov *out, sy_wire_in *in, sy_wire_cursor at)
{
    sy_wire_cursor rows = at;
    sy_wire_cursor bulk;
    size_t head_bytes, data_start_bytes, rows_bytes, length;
    uint8_t *bytes;

    if (!seek_last(&rows, BULK_FIELD, &head_bytes)) return 0;
    bulk = rows;
    if (!seek_last(&bulk, ROWS_DATA_FIELD, &data_start_bytes)) return 0;
    in->has_bulk = 1;
    in->bulk = bulk;
    rows_bytes = data_start_bytes - rows.pos_bytes;
    *out = (sy_iov){0};
    bytes = take(in, head_bytes + BULK_HEADER_BYTES + rows_bytes);
    if (bytes == NULL) return 1;
    sy_wire_cursor_read(&at, bytes, head_bytes);
    out->data = bytes;
    bytes += head_bytes;
    *bytes++ = BULK_TAG;
    for (length = rows_bytes; length >= 0x80; length >>= 7) *bytes++ = (uint8_t)(length | 0x80);
    *bytes++ = (uint8_t)length;
    sy_wire_cursor_read(&rows, bytes, rows_bytes);
    out->len = (size_t)(bytes - (const uint8_t *)out->data) + rows_bytes;
    return 1;
}

/* The whole message in one piece; a message that came so is not copied. NULL data after a failed
 * allocation. */
static void gather(sy_iov *out, sy_wire_in *in, sy_wire_cursor at, const sy_iov *iov, size_t n)
{
    void *bytes;

    *out = (sy_iov){.data = "", .len = at.remaining_bytes};
    for (size_t i = 0; i < n; i++) {
        if (iov[i].len != at.remaining_bytes) continue;
        if (iov[i].len > 0) out->data = iov[i].data;
        return;
    }
    bytes = take(in, out->len);
    if (bytes != NULL) sy_wire_cursor_read(&at, bytes, out->len);
    out->data = bytes;
}

static int cut_bulk_off(sy_iov *out, sy_wire_in *in, const ProtobufCMessageDescriptor *desc,
                        sy_wire_cursor at)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(desc, BULK_FIELD);

    if (field == NULL) return 0;
    if (field->type == PROTOBUF_C_TYPE_BYTES) return cut_bytes_off(out, in, at);
    return field->descriptor == &switchyard__v1__rows__descriptor && cut_rows_off(out, in, at);
}

const void *sy_wire_unpack(sy_wire_in *in, const ProtobufCMessageDescriptor *desc,
                           const sy_iov *iov, size_t n)
{
    ProtobufCAllocator allocator = {.alloc = allocate, .free = release, .allocator_data = in};
    const void *msg = NULL;
    sy_wire_cursor at;
    sy_iov bytes;

    in->kind = desc->short_name;
    sy_wire_cursor_init(&at, iov, n);
    if (at.remaining_bytes > INT32_MAX) {
        in->status =
            sy_error_set(in->err, SY_ELIMIT, "%s: %zu bytes, but a message holds at most 2 GiB",
                         in->kind, at.remaining_bytes);
        return NULL;
    }
    if (!cut_bulk_off(&bytes, in, desc, at)) gather(&bytes, in, at, iov, n);
    if (bytes.data != NULL) {
        msg = protobuf_c_message_unpack(desc, &allocator, bytes.len, bytes.data);
    }
    if (msg == NULL) {
        sy_wire_refuse(in, "%s: these %zu bytes are not such a protobuf message", in->kind,
                       at.remaining_bytes);
    }
    return msg;
}
