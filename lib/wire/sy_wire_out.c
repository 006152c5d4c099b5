/* sy_wire_out.c - packing into frames. protobuf-c hands every field to a buffer's append function,
 * large ones whole: those of the bulk buffer become pieces by reference, and the bytes are still
 * protobuf-c's own canonical ones. */
#include "sy_wire_out.h"

#include <protobuf-c/protobuf-c.h>
#include <string.h>

#include "switchyard/v1/tensor.pb-c.h"

#define REFERENCE_BYTES_MIN ((size_t)1024)
/* Between two references, before the first and after the last stands a copied piece. */
#define REFERENCES_MAX ((SY_FRAME_PIECES_MAX - 1) / 2)

/* Packing is done twice, to measure and to fill; the first time there is no frame and no `copied`.
 */
typedef struct collector {
    ProtobufCBuffer base;
    sy_frame *frame;
    sy_buf *bulk;
    sy_buf *copied;       /* all the copied bytes, of which pieces are parts */
    size_t copied_bytes;  /* so far */
    size_t flushed_bytes; /* of those, in the frame already */
    size_t n_references;
    sy_status status;
} collector;

static int goes_by_reference(const collector *c, const uint8_t *data, size_t n)
{
    const uintptr_t p = (uintptr_t)data;
    const uintptr_t start = c->bulk != NULL ? (uintptr_t)c->bulk->data : 0;

    return c->bulk != NULL && n >= REFERENCE_BYTES_MIN && c->n_references < REFERENCES_MAX &&
           p >= start && p - start <= c->bulk->len && n <= c->bulk->len - (p - start);
}

static void add_piece(collector *c, sy_buf *buf, const void *data, size_t n)
{
    if (c->frame == NULL || n == 0 || c->status != SY_OK) return;
    c->status = sy_frame_add(c->frame, buf, data, n);
}

static void flush(collector *c)
{
    if (c->copied != NULL) {
        add_piece(c, c->copied, (const char *)c->copied->data + c->flushed_bytes,
                  c->copied_bytes - c->flushed_bytes);
    }
    c->flushed_bytes = c->copied_bytes;
}

static void append(ProtobufCBuffer *base, size_t n, const uint8_t *data)
{
    collector *c = (collector *)base;

    if (n == 0) return;
    if (goes_by_reference(c, data, n)) {
        flush(c);
        add_piece(c, c->bulk, data, n);
        c->n_references++;
        return;
    }
    if (c->copied != NULL) memcpy((char *)c->copied->data + c->copied_bytes, data, n);
    c->copied_bytes += n;
}

sy_status sy_wire_pack(sy_frame *out, const ProtobufCMessage *msg, sy_buf *bulk)
{
    const collector empty = {.base = {.append = append}, .bulk = bulk, .status = SY_OK};
    collector measure = empty;
    collector fill = empty;

    sy_frame_init(out);
    if (protobuf_c_message_get_packed_size(msg) > INT32_MAX) return SY_ELIMIT;
    protobuf_c_message_pack_to_buffer(msg, &measure.base);
    if (measure.copied_bytes == 0) return SY_OK; /* a message of defaults has no bytes at all */
    fill.frame = out;
    fill.copied = sy_buf_alloc(measure.copied_bytes);
    if (fill.copied == NULL) return SY_ENOMEM;
    protobuf_c_message_pack_to_buffer(msg, &fill.base);
    flush(&fill);
    sy_buf_unref(fill.copied); /* the pieces hold references of their own */
    if (fill.status != SY_OK) sy_frame_free(out);
    return fill.status;
}

void *sy_wire_lend(const void *p)
{
    return (void *)(uintptr_t)p;
}

char *sy_wire_lend_text(const char *s)
{
    return sy_wire_lend(s != NULL ? s : "");
}

Switchyard__V1__Rows *sy_wire_put_rows(Switchyard__V1__Rows *msg, const sy_rows *rows)
{
    if (rows->dtype == SY_DTYPE_NONE || rows->rows == 0) return NULL;
    switchyard__v1__rows__init(msg);
    msg->dtype = (Switchyard__V1__DType)rows->dtype;
    msg->rows = rows->rows;
    msg->cols = rows->cols;
    if (rows->data != NULL)
        msg->data =
            (ProtobufCBinaryData){.len = sy_rows_bytes(rows), .data = sy_wire_lend(rows->data)};
    return msg;
}

Switchyard__V1__SharedRows *sy_wire_put_shared(Switchyard__V1__SharedRows *msg,
                                               Switchyard__V1__SharedMemory *memory,
                                               const sy_shared_rows *shared)
{
    if (shared->bytes == 0) return NULL;
    switchyard__v1__shared_rows__init(msg);
    switchyard__v1__shared_memory__init(memory);
    memory->pid = shared->pid;
    memory->fd = shared->fd;
    memory->bytes = shared->bytes;
    memory->key = (ProtobufCBinaryData){sizeof(shared->key), sy_wire_lend(shared->key)};
    msg->memory = memory;
    msg->input = shared->input;
    msg->output = shared->output;
    msg->output_bytes = shared->output_bytes;
    return msg;
}

Switchyard__V1__RoutePolicy *sy_wire_put_policy(Switchyard__V1__RoutePolicy *msg,
                                                const sy_route_policy *policy)
{
    if (policy->experts_per_token == 0 && !policy->degraded) return NULL;
    switchyard__v1__route_policy__init(msg);
    msg->experts_per_token = policy->experts_per_token;
    msg->degraded = policy->degraded != 0;
    return msg;
}

Switchyard__V1__Status *sy_wire_put_status(Switchyard__V1__Status *msg, const sy_error *status)
{
    if (status->status == SY_OK) return NULL;
    switchyard__v1__status__init(msg);
    msg->code = (uint32_t)sy_status_code(status->status);
    msg->message = sy_wire_lend_text(status->message);
    msg->reason = sy_wire_lend_text(status->reason);
    msg->node = sy_wire_lend_text(status->node);
    if (status->layer >= 0) {
        msg->layer_given_case = SWITCHYARD__V1__STATUS__LAYER_GIVEN_LAYER;
        msg->layer = (uint32_t)status->layer;
    }
    if (status->expert >= 0) {
        msg->expert_given_case = SWITCHYARD__V1__STATUS__EXPERT_GIVEN_EXPERT;
        msg->expert = (uint32_t)status->expert;
    }
    return msg;
}
