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
    if (msg->loaded_percent > 100) {
        sy_wire_refuse(in, "loaded_percent: %" PRIu32 ", must be at most 100", msg->loaded_percent);
    }
    *out = (sy_shard_info){
        .layer = msg->layer,
        .expert = msg->expert,
        .state = (sy_shard_state)state,
        .device = sy_wire_name(in, "device", msg->device),
        .reason = sy_wire_text(in, "reason", msg->reason, SY_MESSAGE_BYTES),
        .content_hash = msg->content_hash,
        .probe_hash = msg->probe_hash,
        .loaded_percent = msg->loaded_percent,
    };
}

static void read_shards(sy_node_state *out, sy_wire_in *in, const Switchyard__V1__NodeState *msg)
{
    sy_shard_info *shard;

    if (msg->n_shard == 0) return;
    if (msg->n_shard > SY_WIRE_SHARDS_MAX) {
        sy_wire_refuse(in, "shard: %zu elements, but at most %u are allowed", msg->n_shard,
                       SY_WIRE_SHARDS_MAX);
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

static void read_devices(sy_node_state *out, sy_wire_in *in, const Switchyard__V1__NodeState *msg)
{
    sy_device_load *load;

    if (msg->n_device == 0) return;
    if (msg->n_device > SY_WIRE_DEVICES_MAX) {
        sy_wire_refuse(in, "device: %zu elements, but at most %d are allowed", msg->n_device,
                       SY_WIRE_DEVICES_MAX);
        return;
    }
    load = sy_wire_alloc(in, msg->n_device * sizeof(*load));
    if (load == NULL) return;
    in->group = "device";
    for (size_t i = 0; i < msg->n_device; i++) {
        const Switchyard__V1__DeviceLoad *one = msg->device[i];

        in->index = (int64_t)i;
        load[i] = (sy_device_load){
            .device = sy_wire_name(in, "device", one->device),
            .queue_length = one->queue_length,
            .service_us = one->service_us,
            .memory_bytes = one->memory_bytes,
            .memory_max_bytes = one->memory_max_bytes,
        };
    }
    in->group = NULL;
    out->device = load;
    out->n_devices = (uint32_t)msg->n_device;
}

sy_status sy_wire_node_state_decode(sy_node_state *out, sy_arena *arena, const sy_iov *iov,
                                    size_t n, sy_error *err)
{
    const Switchyard__V1__NodeState *msg;
    sy_wire_in in;

    *out = (sy_node_state){.node = "", .model = "", .arithmetic = "", .build = ""};
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
    out->checkpoint_hash = msg->checkpoint_hash;
    out->arithmetic = sy_wire_name(&in, "arithmetic", msg->arithmetic);
    out->build = sy_wire_name(&in, "build", msg->build);
    read_shards(out, &in, msg);
    read_devices(out, &in, msg);
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
        one[i].content_hash = in->shard[i].content_hash;
        one[i].probe_hash = in->shard[i].probe_hash;
        one[i].loaded_percent = in->shard[i].loaded_percent;
        msg->shard[i] = &one[i];
    }
    return SY_OK;
}

static sy_status put_devices(Switchyard__V1__NodeState *msg, sy_arena *scratch,
                             const sy_node_state *in)
{
    Switchyard__V1__DeviceLoad *one = sy_arena_calloc(scratch, in->n_devices, sizeof(*one));

    msg->device = sy_arena_calloc(scratch, in->n_devices, sizeof(Switchyard__V1__DeviceLoad *));
    if (one == NULL || msg->device == NULL) return SY_ENOMEM;
    msg->n_device = in->n_devices;
    for (uint32_t i = 0; i < in->n_devices; i++) {
        switchyard__v1__device_load__init(&one[i]);
        one[i].device = sy_wire_lend_text(in->device[i].device);
        one[i].queue_length = in->device[i].queue_length;
        one[i].service_us = in->device[i].service_us;
        one[i].memory_bytes = in->device[i].memory_bytes;
        one[i].memory_max_bytes = in->device[i].memory_max_bytes;
        msg->device[i] = &one[i];
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
    msg.checkpoint_hash = in->checkpoint_hash;
    msg.arithmetic = sy_wire_lend_text(in->arithmetic);
    msg.build = sy_wire_lend_text(in->build);
    if (in->n_shards > 0) SY_TRY(put_shards(&msg, &scratch, in));
    if (in->n_devices > 0) SY_TRY(put_devices(&msg, &scratch, in));
    SY_TRY(sy_wire_pack(out, &msg.base, bulk));
out:
    sy_arena_free(&scratch);
    return st;
}
