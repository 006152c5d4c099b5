/* sy_wire_compute.c - ComputeRequest and ComputeReply. */
#include <inttypes.h>

#include "switchyard/v1/expert.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

/* Groups: ascending experts, each with at least one assignment, all assignments in one of them. */
static void check_groups(sy_wire_in *in, const sy_compute_request *req, uint32_t n_ends)
{
    int64_t before = -1;
    uint32_t end = 0;

    if (req->n_groups == 0)
        sy_wire_refuse(in, "expert: empty, but there must be rows for at least one");
    if (n_ends != req->n_groups) {
        sy_wire_refuse(in, "group_end: %" PRIu32 " elements, but `expert` has %" PRIu32, n_ends,
                       req->n_groups);
    }
    for (uint32_t g = 0; in->status == SY_OK && g < req->n_groups; g++) {
        if (req->expert[g] >= SY_WIRE_EXPERTS_MAX || req->expert[g] <= before) {
            sy_wire_refuse(
                in, "expert: element %" PRIu32 " is %u, must be above %" PRId64 " and below %u", g,
                req->expert[g], before, SY_WIRE_EXPERTS_MAX);
        } else if (req->group_end[g] <= end || req->group_end[g] > req->n_assign) {
            sy_wire_refuse(in,
                           "group_end: element %" PRIu32 " is %" PRIu32 ", must be above %" PRIu32
                           " and at most the %" PRIu32 " of `row`",
                           g, req->group_end[g], end, req->n_assign);
        }
        before = req->expert[g];
        end = req->group_end[g];
    }
    if (end != req->n_assign) {
        sy_wire_refuse(in, "group_end: the last is %" PRIu32 ", but `row` has %" PRIu32 " elements",
                       end, req->n_assign);
    }
}

static void check_assignments(sy_wire_in *in, const sy_compute_request *req, uint32_t n_weights)
{
    if (req->n_assign > SY_WIRE_ROWS_MAX) {
        sy_wire_refuse(in, "row: %" PRIu32 " elements, but at most %u are allowed", req->n_assign,
                       SY_WIRE_ROWS_MAX);
    }
    if (n_weights != req->n_assign && (n_weights != 0 || req->partial)) {
        sy_wire_refuse(in, "weight: %" PRIu32 " elements, but `row` has %" PRIu32, n_weights,
                       req->n_assign);
    }
    for (uint32_t r = 0; in->status == SY_OK && r < req->n_assign; r++) {
        if (req->row[r] < req->hidden.rows) continue;
        sy_wire_refuse(in,
                       "row: element %" PRIu32 " is %" PRIu32 ", must be below the %" PRIu32
                       " of hidden.rows",
                       r, req->row[r], req->hidden.rows);
    }
    sy_wire_finite(in, "weight", req->weight, n_weights);
}

static int combine_is_partial(sy_wire_in *in, Switchyard__V1__Combine combine)
{
    if (combine != SWITCHYARD__V1__COMBINE__EXACT && combine != SWITCHYARD__V1__COMBINE__PARTIAL) {
        sy_wire_refuse(in, "combine: %d, must be EXACT (0) or PARTIAL (1)", (int)combine);
    }
    return combine == SWITCHYARD__V1__COMBINE__PARTIAL;
}

static sy_dtype output_dtype(sy_wire_in *in, Switchyard__V1__DType dtype)
{
    if (dtype == SWITCHYARD__V1__DTYPE__BF16) return SY_BF16;
    if (dtype != SWITCHYARD__V1__DTYPE__DTYPE_UNSPECIFIED && dtype != SWITCHYARD__V1__DTYPE__F32)
        sy_wire_refuse(in, "output_dtype: %d, must be F32 (1) or BF16 (2)", (int)dtype);
    return SY_F32;
}

sy_status sy_wire_compute_request_decode(sy_compute_request *out, sy_arena *arena,
                                         const sy_iov *iov, size_t n, sy_error *err)
{
    const Switchyard__V1__ComputeRequest *msg;
    uint32_t n_ends, n_weights;
    sy_wire_in in;

    *out = (sy_compute_request){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__compute_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    out->model = sy_wire_name(&in, "model", msg->model);
    out->layer = msg->layer;
    out->partial = combine_is_partial(&in, msg->combine);
    out->output_dtype = output_dtype(&in, msg->output_dtype);
    out->expert = sy_wire_array(&out->n_groups, &in, "expert", msg->expert.data, msg->expert.len,
                                sizeof(*out->expert));
    out->group_end = sy_wire_array(&n_ends, &in, "group_end", msg->group_end.data,
                                   msg->group_end.len, sizeof(*out->group_end));
    out->row =
        sy_wire_array(&out->n_assign, &in, "row", msg->row.data, msg->row.len, sizeof(*out->row));
    out->weight = sy_wire_array(&n_weights, &in, "weight", msg->weight.data, msg->weight.len,
                                sizeof(*out->weight));
    sy_wire_rows(&out->hidden, &in, "hidden", msg->hidden,
                 msg->shared != NULL ? SY_WIRE_ELSEWHERE : SY_WIRE_REQUIRED);
    sy_wire_shared(&out->shared, &in, msg->shared, &out->hidden);
    check_groups(&in, out, n_ends);
    check_assignments(&in, out, n_weights);
    return in.status;
}

sy_status sy_wire_compute_request_encode(sy_frame *out, const sy_compute_request *in, sy_buf *bulk)
{
    const size_t n_weights = in->weight != NULL ? in->n_assign : 0;
    Switchyard__V1__ComputeRequest msg;
    Switchyard__V1__SharedMemory memory;
    Switchyard__V1__SharedRows shared;
    Switchyard__V1__Rows hidden;

    switchyard__v1__compute_request__init(&msg);
    msg.id = in->id;
    msg.model = sy_wire_lend_text(in->model);
    msg.layer = in->layer;
    msg.combine = in->partial ? SWITCHYARD__V1__COMBINE__PARTIAL : SWITCHYARD__V1__COMBINE__EXACT;
    if (in->output_dtype == SY_BF16) msg.output_dtype = SWITCHYARD__V1__DTYPE__BF16;
    msg.expert =
        (ProtobufCBinaryData){in->n_groups * sizeof(*in->expert), sy_wire_lend(in->expert)};
    msg.group_end =
        (ProtobufCBinaryData){in->n_groups * sizeof(*in->group_end), sy_wire_lend(in->group_end)};
    msg.row = (ProtobufCBinaryData){in->n_assign * sizeof(*in->row), sy_wire_lend(in->row)};
    msg.weight = (ProtobufCBinaryData){n_weights * sizeof(*in->weight), sy_wire_lend(in->weight)};
    msg.shared = sy_wire_put_shared(&shared, &memory, &in->shared);
    msg.hidden = sy_wire_put_rows(&hidden, &in->hidden);
    return sy_wire_pack(out, &msg.base, bulk);
}

static void read_faults(sy_compute_reply *out, sy_wire_in *in,
                        const Switchyard__V1__ComputeReply *msg)
{
    sy_shard_fault *fault;

    if (msg->n_fault == 0) return;
    if (msg->n_fault > SY_WIRE_EXPERTS_MAX) {
        sy_wire_refuse(in, "fault: %zu elements, but at most %u are allowed", msg->n_fault,
                       SY_WIRE_EXPERTS_MAX);
        return;
    }
    fault = sy_wire_alloc(in, msg->n_fault * sizeof(*fault));
    if (fault == NULL) return;
    in->group = "fault";
    for (size_t i = 0; i < msg->n_fault; i++) {
        in->index = (int64_t)i;
        fault[i].expert = msg->fault[i]->expert;
        sy_wire_status(&fault[i].status, in, msg->fault[i]->status);
        if (fault[i].expert >= SY_WIRE_EXPERTS_MAX) {
            sy_wire_refuse(in, "expert: %" PRIu32 ", must be below %u", fault[i].expert,
                           SY_WIRE_EXPERTS_MAX);
        } else if (fault[i].status.status == SY_OK) {
            sy_wire_refuse(in, "status: absent or OK, but a fault says what is wrong");
        }
    }
    in->group = NULL;
    out->fault = fault;
    out->n_faults = (uint32_t)msg->n_fault;
}

sy_status sy_wire_compute_reply_decode(sy_compute_reply *out, sy_arena *arena, const sy_iov *iov,
                                       size_t n, sy_error *err)
{
    const Switchyard__V1__ComputeReply *msg;
    sy_wire_in in;

    *out = (sy_compute_reply){0};
    sy_error_clear(&out->status);
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__compute_reply__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    sy_wire_status(&out->status, &in, msg->status);
    read_faults(out, &in, msg);
    if (msg->timing != NULL) {
        out->queue_us = msg->timing->queue_us;
        out->compute_us = msg->timing->compute_us;
        out->batched_requests = msg->timing->batched_requests;
    }
    out->output_shared = msg->output_shared != 0;
    sy_wire_rows(&out->output, &in, "output", msg->output,
                 out->output_shared ? SY_WIRE_ELSEWHERE : SY_WIRE_OPTIONAL);
    return in.status;
}

/* Status and ShardFault of one fault, side by side in the scratch arena. */
typedef struct fault_messages {
    Switchyard__V1__ShardFault fault;
    Switchyard__V1__Status status;
} fault_messages;

static sy_status put_faults(Switchyard__V1__ComputeReply *msg, sy_arena *scratch,
                            const sy_compute_reply *in)
{
    fault_messages *one = sy_arena_calloc(scratch, in->n_faults, sizeof(*one));

    msg->fault = sy_arena_calloc(scratch, in->n_faults, sizeof(Switchyard__V1__ShardFault *));
    if (one == NULL || msg->fault == NULL) return SY_ENOMEM;
    msg->n_fault = in->n_faults;
    for (uint32_t i = 0; i < in->n_faults; i++) {
        switchyard__v1__shard_fault__init(&one[i].fault);
        one[i].fault.expert = in->fault[i].expert;
        one[i].fault.status = sy_wire_put_status(&one[i].status, &in->fault[i].status);
        msg->fault[i] = &one[i].fault;
    }
    return SY_OK;
}

sy_status sy_wire_compute_reply_encode(sy_frame *out, const sy_compute_reply *in, sy_buf *bulk)
{
    Switchyard__V1__ComputeReply msg;
    Switchyard__V1__Timing timing;
    Switchyard__V1__Status status;
    Switchyard__V1__Rows output;
    sy_arena scratch;
    sy_status st;

    switchyard__v1__compute_reply__init(&msg);
    switchyard__v1__timing__init(&timing);
    sy_frame_init(out);
    sy_arena_init(&scratch, SIZE_MAX);
    msg.id = in->id;
    msg.status = sy_wire_put_status(&status, &in->status);
    timing.queue_us = in->queue_us;
    timing.compute_us = in->compute_us;
    timing.batched_requests = in->batched_requests;
    msg.timing =
        in->queue_us != 0 || in->compute_us != 0 || in->batched_requests != 0 ? &timing : NULL;
    msg.output_shared = in->output_shared != 0;
    msg.output = sy_wire_put_rows(&output, &in->output);
    if (in->n_faults > 0) SY_TRY(put_faults(&msg, &scratch, in));
    SY_TRY(sy_wire_pack(out, &msg.base, bulk));
out:
    sy_arena_free(&scratch);
    return st;
}
