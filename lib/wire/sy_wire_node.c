/* sy_wire_node.c - NodeState: which shards an expert node holds, and how busy it is. */
#include <inttypes.h>

#include "switchyard/v1/expert.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

_Static_assert((int)SY_SHARD_ABSENT == (int)SWITCHYARD__V1__SHARD_STATE__ABSENT &&
                   (int)SY_SHARD_RESIDENT == (int)SWITCHYARD__V1__SHARD_STATE__RESIDENT &&
                   (int)SY_SHARD_FAILED == (int)SWITCHYARD__V1__SHARD_STATE__FAILED,
               "sy_shard_state follows expert.proto");

static void read_shard(sy_shard_info *out, sy_wire_in *in, const Switchyard__V1__Shard *msg)
{
    const int state = (int)msg->state;

    if (msg->expert >= SY_WIRE_EXPERTS_MAX) {
        sy_wire_refuse(in, "expert: %" PRIu32 ", must be below %u", msg->expert,
                       SY_WIRE_EXPERTS_MAX);
    }
    if (state < 0 || state >= SY_N_SHARD_STATES) {
        sy_wire_refuse(in, "state: %d, must be 0 to %d", state, SY_N_SHARD_STATES - 1);
    }
    *out = (sy_shard_info){
        .layer = msg->layer,
        .expert = msg->expert,
        .state = (sy_shard_state)state,
        .device = sy_wire_name(in, "device", msg->device),
        .reason = sy_wire_text(in, "reason", msg->reason, SY_MESSAGE_BYTES),
    };
}

static void read_shards(sy_node_state *out, sy_wire_in *in, const Switchyard__V1__NodeState *msg)
{
    sy_shard_info *shard;

    if (msg->n_shard == 0) return;
    if (msg->n_shard > UINT32_MAX) {
        sy_wire_refuse(in, "shard: %zu elements are too many", msg->n_shard);
        return;
    }
    shard = sy_wire_alloc(in, msg->n_shard * sizeof(*shard));
    if (shard == NULL) return;
    in->group = "shard";
    for (size_t i = 0; i < msg->n_shard; i++) {
        in->index = (int64_t)i;
        read_shard(&shard[i], in, msg->shard[i]);
    }
    in->group = NULL;
    out->shard = shard;
    out->n_shards = (uint32_t)msg->n_shard;
}

sy_status sy_wire_node_state_decode(sy_node_state *out, sy_arena *arena, const sy_iov *iov,
                                    size_t n, sy_error *err)
{
    const Switchyard__V1__NodeState *msg;
    sy_wire_in in;

    *out = (sy_node_state){.node = "", .model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__node_state__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->node = sy_wire_name(&in, "node", msg->node);
    out->model = sy_wire_name(&in, "model", msg->model);
    out->full = msg->full != 0;
    out->queue_length = msg->queue_length;
    out->memory_bytes = msg->memory_bytes;
    out->placement_hash = msg->placement_hash;
    out->structure_hash = msg->structure_hash;
    read_shards(out, &in, msg);
    return in.status;
}

static sy_status put_shards(Switchyard__V1__NodeState *msg, sy_arena *scratch,
                            const sy_node_state *in)
{
    Switchyard__V1__Shard *one = sy_arena_calloc(scratch, in->n_shards, sizeof(*one));

    msg->shard = sy_arena_calloc(scratch, in->n_shards, sizeof(Switchyard__V1__Shard *));
    if (one == NULL || msg->shard == NULL) return SY_ENOMEM;
    msg->n_shard = in->n_shards;
    for (uint32_t i = 0; i < in->n_shards; i++) {
        switchyard__v1__shard__init(&one[i]);
        one[i].layer = in->shard[i].layer;
        one[i].expert = in->shard[i].expert;
        one[i].state = (Switchyard__V1__ShardState)in->shard[i].state;
        one[i].device = sy_wire_lend_text(in->shard[i].device);
        one[i].reason = sy_wire_lend_text(in->shard[i].reason);
        msg->shard[i] = &one[i];
    }
    return SY_OK;
}

sy_status sy_wire_node_state_encode(sy_frame *out, const sy_node_state *in, sy_buf *bulk)
{
    Switchyard__V1__NodeState msg;
    sy_arena scratch;
    sy_status st;

    switchyard__v1__node_state__init(&msg);
    sy_frame_init(out);
    sy_arena_init(&scratch, SIZE_MAX);
    msg.node = sy_wire_lend_text(in->node);
    msg.model = sy_wire_lend_text(in->model);
    msg.full = in->full != 0;
    msg.queue_length = in->queue_length;
    msg.memory_bytes = in->memory_bytes;
    msg.placement_hash = in->placement_hash;
    msg.structure_hash = in->structure_hash;
    if (in->n_shards > 0) SY_TRY(put_shards(&msg, &scratch, in));
    SY_TRY(sy_wire_pack(out, &msg.base, bulk));
out:
    sy_arena_free(&scratch);
    return st;
}
