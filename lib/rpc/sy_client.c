/* sy_client.c - blocking calls for tools and tests. Each call has a completion queue of its own,
 * which its one user pumps: no thread, and nothing shared but the channel. */
#include "sy_rpc_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_MIN_US 50000
#define BACKOFF_MAX_US 500000

struct sy_client {
    grpc_channel *channel;
};

/* What is with gRPC; the addresses serve as tags. */
typedef struct pending_op {
    int running, ok;
} pending_op;

struct sy_client_call {
    grpc_completion_queue *queue;
    grpc_call *call;
    pending_op open, recv, status;
    grpc_byte_buffer *received;
    grpc_metadata_array initial, trailing;
    grpc_status_code code;
    grpc_slice text;
};

sy_status sy_client_open(sy_client **out, const char *address, size_t message_bytes_max,
                         sy_error *err)
{
    rpc_address parsed;
    sy_client *client;

    *out = NULL;
    sy_error_clear(err);
    if (rpc_address_parse(&parsed, address, err) != SY_OK) return SY_EINVAL;
    client = calloc(1, sizeof(*client));
    if (client == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a client");
    rpc_init();
    client->channel = rpc_channel_open(
        &parsed, &(rpc_channel_options){
                     .message_bytes_max =
                         message_bytes_max != 0 ? message_bytes_max : RPC_MESSAGE_BYTES_DEFAULT,
                     .backoff_min_us = BACKOFF_MIN_US,
                     .backoff_max_us = BACKOFF_MAX_US,
                 });
    *out = client;
    return SY_OK;
}

void sy_client_close(sy_client *client)
{
    if (client == NULL) return;
    grpc_channel_destroy(client->channel);
    free(client);
}

static gpr_timespec to_timespec(int64_t deadline_us)
{
    if (deadline_us == SY_NEVER_US) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    deadline_us = SY_MAX(deadline_us, 0);
    return (gpr_timespec){.tv_sec = deadline_us / 1000000,
                          .tv_nsec = (int32_t)(deadline_us % 1000000) * 1000,
                          .clock_type = GPR_CLOCK_MONOTONIC};
}

static void start(sy_client_call *call, const grpc_op *ops, size_t n, pending_op *op)
{
    const grpc_call_error refused = grpc_call_start_batch(call->call, ops, n, op, NULL);

    SY_ASSERT(refused ==
              GRPC_CALL_OK); /* the batches below are legal in every state they are started in */
    op->running = 1;
}

/* Until `op` has come back. Ends: the call's deadline, a cancel, or the connection's loss completes
 * everything. */
static void pump(sy_client_call *call, const pending_op *op)
{
    while (op->running) {
        const grpc_event event =
            grpc_completion_queue_next(call->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        pending_op *done = event.tag;

        SY_ASSERT(event.type == GRPC_OP_COMPLETE);
        done->running = 0;
        done->ok = event.success;
    }
}

static void start_request(sy_client_call *call, sy_frame *request, int wait_for_ready)
{
    grpc_byte_buffer *buffer = rpc_buffer_from_frame(request);
    grpc_op ops[4];

    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[0].data.recv_status_on_client.status = &call->code;
    ops[0].data.recv_status_on_client.status_details = &call->text;
    start(call, ops, 1, &call->status);

    memset(ops, 0, sizeof(ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    if (wait_for_ready) ops[0].flags |= GRPC_INITIAL_METADATA_WAIT_FOR_READY;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = buffer;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    start(call, ops, 4, &call->open);
    grpc_byte_buffer_destroy(buffer);
}

sy_status sy_client_start(sy_client_call **out, sy_client *client, const char *path,
                          sy_frame *request, int64_t deadline_us, int wait_for_ready, sy_error *err)
{
    sy_client_call *call = calloc(1, sizeof(*call));
    grpc_slice method;

    *out = NULL;
    sy_error_clear(err);
    if (call == NULL) {
        sy_frame_free(request);
        return sy_error_set(err, SY_ENOMEM, "no memory for a call");
    }
    call->queue = grpc_completion_queue_create_for_next(NULL);
    method = grpc_slice_from_copied_string(path);
    call->call = grpc_channel_create_call(client->channel, NULL, 0, call->queue, method, NULL,
                                          to_timespec(deadline_us), NULL);
    grpc_slice_unref(method);
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    start_request(call, request, wait_for_ready);
    *out = call;
    return SY_OK;
}

static sy_status final_status(sy_client_call *call, sy_error *err)
{
    size_t n;

    pump(call, &call->status); /* first: it brings the code and the text */
    if (call->code == GRPC_STATUS_OK) return SY_OK;
    n = SY_MIN(GRPC_SLICE_LENGTH(call->text), (size_t)SY_MESSAGE_BYTES);
    return sy_error_set(err, sy_status_from_code((int)call->code), "%.*s", (int)n,
                        (const char *)GRPC_SLICE_START_PTR(call->text));
}

sy_status sy_client_next(sy_client_call *call, sy_msg **msg, sy_error *err)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    *msg = NULL;
    sy_error_clear(err);
    if (!call->status.running) return final_status(call, err);
    op.data.recv_message.recv_message = &call->received;
    start(call, &op, 1, &call->recv);
    pump(call, &call->recv);
    if (!call->recv.ok || call->received == NULL) return final_status(call, err);
    *msg = rpc_msg_new(call->received);
    call->received = NULL;
    if (*msg == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a message");
    return SY_OK;
}

size_t sy_client_details(const sy_client_call *call, void *out, size_t cap)
{
    if (call->status.running) return 0;
    for (size_t i = 0; i < call->trailing.count; i++) {
        const grpc_metadata *entry = &call->trailing.metadata[i];
        const size_t n = GRPC_SLICE_LENGTH(entry->value);

        if (grpc_slice_str_cmp(entry->key, "grpc-status-details-bin") != 0) continue;
        if (n == 0 || n > cap) return 0;
        memcpy(out, GRPC_SLICE_START_PTR(entry->value), n);
        return n;
    }
    return 0;
}

void sy_client_cancel(sy_client_call *call)
{
    grpc_call_cancel(call->call, NULL);
}

void sy_client_end(sy_client_call *call)
{
    if (call == NULL) return;
    grpc_call_cancel(call->call, NULL);
    pump(call, &call->open);
    pump(call, &call->recv);
    pump(call, &call->status);
    if (call->received != NULL) grpc_byte_buffer_destroy(call->received);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->text);
    grpc_call_unref(call->call);
    grpc_completion_queue_shutdown(call->queue);
    while (
        grpc_completion_queue_next(call->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(call->queue);
    free(call);
}
