/* sy_wire_forward.c - ForwardRequest and ForwardReply. */
#include <inttypes.h>

#include "switchyard/v1/aggregator.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

sy_status sy_wire_forward_request_decode(sy_forward_request *out, sy_arena *arena,
                                         const sy_iov *iov, size_t n, sy_error *err)
{
    const Switchyard__V1__ForwardRequest *msg;
    sy_wire_in in;

    *out = (sy_forward_request){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__forward_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    out->model = sy_wire_name(&in, "model", msg->model);
    out->layer = msg->layer;
    out->policy = sy_wire_policy(msg->policy);
    out->want_routing = msg->want_routing != 0;
    sy_wire_rows(&out->hidden, &in, "hidden", msg->hidden, SY_WIRE_REQUIRED);
    return in.status;
}

sy_status sy_wire_forward_request_encode(sy_frame *out, const sy_forward_request *in, sy_buf *bulk)
{
    Switchyard__V1__ForwardRequest msg;
    Switchyard__V1__RoutePolicy policy;
    Switchyard__V1__Rows hidden;

    switchyard__v1__forward_request__init(&msg);
    msg.id = in->id;
    msg.model = sy_wire_lend_text(in->model);
    msg.layer = in->layer;
    msg.policy = sy_wire_put_policy(&policy, &in->policy);
    msg.want_routing = in->want_routing != 0;
    msg.hidden = sy_wire_put_rows(&hidden, &in->hidden);
    return sy_wire_pack(out, &msg.base, bulk);
}

sy_status sy_wire_forward_reply_decode(sy_forward_reply *out, sy_arena *arena, const sy_iov *iov,
                                       size_t n, sy_error *err)
{
    const Switchyard__V1__ForwardReply *msg;
    sy_wire_slots slots;
    sy_wire_in in;

    *out = (sy_forward_reply){0};
    sy_error_clear(&out->status);
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__forward_reply__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    sy_wire_status(&out->status, &in, msg->status);
    sy_wire_slots_get(&slots, &in, msg->slots, &(sy_iov){msg->expert.data, msg->expert.len},
                      &(sy_iov){msg->weight.data, msg->weight.len});
    out->slots = slots.slots;
    out->n_tokens = slots.n_tokens;
    out->expert = slots.expert;
    out->weight = slots.weight;
    out->placement_hash = msg->placement_hash;
    out->policy = sy_wire_policies(&out->n_policies, &in, msg->policies, msg->n_policies);
    out->degraded_rows = msg->degraded_rows;
    sy_wire_rows(&out->output, &in, "output", msg->output, SY_WIRE_OPTIONAL);
    if (out->n_tokens != 0 && out->output.rows != 0 && out->n_tokens != out->output.rows) {
        sy_wire_refuse(&in, "expert: %" PRIu32 " tokens, but output.rows is %" PRIu32,
                       out->n_tokens, out->output.rows);
    }
    return in.status;
}

sy_status sy_wire_forward_reply_encode(sy_frame *out, const sy_forward_reply *in, sy_buf *bulk)
{
    const size_t n_slots = in->expert != NULL ? (size_t)in->n_tokens * in->slots : 0;
    Switchyard__V1__ForwardReply msg;
    Switchyard__V1__Status status;
    Switchyard__V1__Rows output;

    switchyard__v1__forward_reply__init(&msg);
    msg.id = in->id;
    msg.status = sy_wire_put_status(&status, &in->status);
    msg.slots = in->slots;
    msg.expert = (ProtobufCBinaryData){n_slots * sizeof(*in->expert), sy_wire_lend(in->expert)};
    msg.weight = (ProtobufCBinaryData){n_slots * sizeof(*in->weight), sy_wire_lend(in->weight)};
    msg.placement_hash = in->placement_hash;
    msg.n_policies = in->n_policies;
    msg.policies = sy_wire_lend(in->policy);
    msg.degraded_rows = in->degraded_rows;
    msg.output = sy_wire_put_rows(&output, &in->output);
    return sy_wire_pack(out, &msg.base, bulk);
}
