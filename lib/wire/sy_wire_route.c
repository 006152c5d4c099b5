/* sy_wire_route.c - RouteRequest and RouteReply. */
#include <inttypes.h>

#include "switchyard/v1/router.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

sy_status sy_wire_route_request_decode(sy_route_request *out, sy_arena *arena, const sy_iov *iov,
                                       size_t n, sy_error *err)
{
    const Switchyard__V1__RouteRequest *msg;
    sy_wire_in in;

    *out = (sy_route_request){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__route_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    out->model = sy_wire_name(&in, "model", msg->model);
    out->layer = msg->layer;
    out->policy = sy_wire_policy(msg->policy);
    sy_wire_rows(&out->hidden, &in, "hidden", msg->hidden,
                 msg->shared != NULL ? SY_WIRE_ELSEWHERE : SY_WIRE_REQUIRED);
    sy_wire_shared(&out->shared, &in, msg->shared, &out->hidden);
    if (out->shared.output_bytes != 0)
        sy_wire_refuse(&in, "shared.output_bytes: %" PRIu64 ", but the reply is never shared",
                       out->shared.output_bytes);
    return in.status;
}

sy_status sy_wire_route_request_encode(sy_frame *out, const sy_route_request *in, sy_buf *bulk)
{
    Switchyard__V1__RouteRequest msg;
    Switchyard__V1__RoutePolicy policy;
    Switchyard__V1__SharedMemory memory;
    Switchyard__V1__SharedRows shared;
    Switchyard__V1__Rows hidden;

    switchyard__v1__route_request__init(&msg);
    msg.id = in->id;
    msg.model = sy_wire_lend_text(in->model);
    msg.layer = in->layer;
    msg.policy = sy_wire_put_policy(&policy, &in->policy);
    msg.shared = sy_wire_put_shared(&shared, &memory, &in->shared);
    msg.hidden = sy_wire_put_rows(&hidden, &in->hidden);
    return sy_wire_pack(out, &msg.base, bulk);
}

sy_status sy_wire_route_reply_decode(sy_route_reply *out, sy_arena *arena, const sy_iov *iov,
                                     size_t n, sy_error *err)
{
    const Switchyard__V1__RouteReply *msg;
    sy_wire_slots slots;
    sy_wire_in in;

    *out = (sy_route_reply){0};
    sy_error_clear(&out->status);
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__route_reply__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->id = msg->id;
    sy_wire_slots_get(&slots, &in, msg->slots, &(sy_iov){msg->expert.data, msg->expert.len},
                      &(sy_iov){msg->weight.data, msg->weight.len});
    out->slots = slots.slots;
    out->n_tokens = slots.n_tokens;
    out->expert = slots.expert;
    out->weight = slots.weight;
    if (msg->stats != NULL) {
        out->queue_us = msg->stats->queue_us;
        out->compute_us = msg->stats->compute_us;
    }
    sy_wire_status(&out->status, &in, msg->status);
    return in.status;
}

sy_status sy_wire_route_reply_encode(sy_frame *out, const sy_route_reply *in, sy_buf *bulk)
{
    const size_t n_slots = (size_t)in->n_tokens * in->slots;
    Switchyard__V1__RouteReply msg;
    Switchyard__V1__RouteStats stats;
    Switchyard__V1__Status status;

    switchyard__v1__route_reply__init(&msg);
    switchyard__v1__route_stats__init(&stats);
    msg.id = in->id;
    msg.slots = in->slots;
    msg.expert = (ProtobufCBinaryData){n_slots * sizeof(*in->expert), sy_wire_lend(in->expert)};
    msg.weight = (ProtobufCBinaryData){n_slots * sizeof(*in->weight), sy_wire_lend(in->weight)};
    stats.queue_us = in->queue_us;
    stats.compute_us = in->compute_us;
    msg.stats = in->queue_us != 0 || in->compute_us != 0 ? &stats : NULL;
    msg.status = sy_wire_put_status(&status, &in->status);
    return sy_wire_pack(out, &msg.base, bulk);
}
