/* sy_wire_fetch.c - FetchShardRequest and ShardChunk: a shard's bytes, as they are held, from node
 * to node; or where they lie, for a node of the same machine. */
#include <inttypes.h>
#include <string.h>

#include "switchyard/v1/expert.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

#define N_MATRICES 3 /* gate, up, down */

static void check_expert(sy_wire_in *in, uint32_t expert)
{
    if (expert < SY_WIRE_EXPERTS_MAX) return;
    sy_wire_refuse(in, "expert: %" PRIu32 ", must be below %u", expert, SY_WIRE_EXPERTS_MAX);
}

/* ---- requests ---- */

static void read_taker(sy_slot_taker *out, sy_wire_in *in, const Switchyard__V1__SlotTaker *msg)
{
    const Switchyard__V1__SharedMemory *memory = msg->memory;

    if (memory == NULL || memory->bytes == 0) {
        sy_wire_refuse(in, "taker.memory: absent or empty");
        return;
    }
    if (memory->key.len != SY_WIRE_SHARED_KEY_BYTES) {
        sy_wire_refuse(in, "taker.memory.key: %zu bytes, must be %d", memory->key.len,
                       SY_WIRE_SHARED_KEY_BYTES);
        return;
    }
    if (msg->slot_bytes == 0) {
        sy_wire_refuse(in, "taker.slot_bytes: 0, must be at least 1");
        return;
    }
    *out = (sy_slot_taker){.pid = memory->pid,
                           .fd = memory->fd,
                           .bytes = memory->bytes,
                           .arithmetic = sy_wire_name(in, "taker.arithmetic", msg->arithmetic),
                           .slot_bytes = msg->slot_bytes};
    memcpy(out->key, memory->key.data, sizeof(out->key));
}

sy_status sy_wire_fetch_request_decode(sy_fetch_request *out, sy_arena *arena, const sy_iov *iov,
                                       size_t n, sy_error *err)
{
    const Switchyard__V1__FetchShardRequest *msg;
    sy_wire_in in;

    *out = (sy_fetch_request){.model = "", .taker.arithmetic = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__fetch_shard_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->model = sy_wire_name(&in, "model", msg->model);
    out->layer = msg->layer;
    out->expert = msg->expert;
    out->offset = msg->offset;
    out->content_hash = msg->content_hash;
    check_expert(&in, msg->expert);
    if (msg->taker != NULL && msg->offset != 0)
        sy_wire_refuse(&in, "taker: with offset %" PRIu64 ", must be absent then", msg->offset);
    else if (msg->taker != NULL)
        read_taker(&out->taker, &in, msg->taker);
    return in.status;
}

static void put_taker(Switchyard__V1__SlotTaker *msg, Switchyard__V1__SharedMemory *memory,
                      const sy_slot_taker *in)
{
    switchyard__v1__slot_taker__init(msg);
    switchyard__v1__shared_memory__init(memory);
    memory->pid = in->pid;
    memory->fd = in->fd;
    memory->key = (ProtobufCBinaryData){.len = sizeof(in->key), .data = sy_wire_lend(in->key)};
    memory->bytes = in->bytes;
    msg->memory = memory;
    msg->arithmetic = sy_wire_lend_text(in->arithmetic);
    msg->slot_bytes = in->slot_bytes;
}

sy_status sy_wire_fetch_request_encode(sy_frame *out, const sy_fetch_request *in, sy_buf *bulk)
{
    Switchyard__V1__FetchShardRequest msg;
    Switchyard__V1__SharedMemory memory;
    Switchyard__V1__SlotTaker taker;

    switchyard__v1__fetch_shard_request__init(&msg);
    msg.model = sy_wire_lend_text(in->model);
    msg.layer = in->layer;
    msg.expert = in->expert;
    msg.offset = in->offset;
    msg.content_hash = in->content_hash;
    if (in->taker.bytes != 0) {
        put_taker(&taker, &memory, &in->taker);
        msg.taker = &taker;
    }
    return sy_wire_pack(out, &msg.base, bulk);
}

/* ---- chunks ---- */

/* Gate's, up's and down's biases are as many elements as those have rows. */
static int check_bias(sy_wire_in *in, const char *name, const sy_shard_chunk *chunk, size_t i)
{
    const uint32_t rows = chunk->rows[i - N_MATRICES];

    if (chunk->dtype[i] == SY_F32 && chunk->rows[i] == rows && chunk->cols[i] == 1) return 1;
    sy_wire_refuse(in, "%s: %s [%" PRIu32 ",%" PRIu32 "], must be a bias, f32 [%" PRIu32 ",1]",
                   name, sy_dtype_name(chunk->dtype[i]), chunk->rows[i], chunk->cols[i], rows);
    return 0;
}

/* The tensors. Returns the bytes they need, which fit 64 bits whatever the shapes are. */
static uint64_t read_tensors(sy_shard_chunk *out, sy_wire_in *in,
                             const Switchyard__V1__ShardChunk *msg)
{
    uint64_t total_bytes = 0;

    if (msg->n_tensor != N_MATRICES && msg->n_tensor != SY_WIRE_TENSORS_MAX) {
        sy_wire_refuse(in, "tensor: %zu elements, must be %d: gate, up, down; or %u: their biases",
                       msg->n_tensor, N_MATRICES, SY_WIRE_TENSORS_MAX);
        return 0;
    }
    out->n_tensors = (uint32_t)msg->n_tensor;
    for (size_t i = 0; i < msg->n_tensor; i++) {
        static const char *const name[SY_WIRE_TENSORS_MAX] = {
            "tensor[0]", "tensor[1]", "tensor[2]", "tensor[3]", "tensor[4]", "tensor[5]"};
        const Switchyard__V1__ShardTensor *one = msg->tensor[i];

        if (!sy_wire_weights_shape(in, name[i], (int)one->dtype, one->rows, one->cols)) return 0;
        out->dtype[i] = (sy_dtype)one->dtype;
        out->rows[i] = one->rows;
        out->cols[i] = one->cols;
        if (i >= N_MATRICES && !check_bias(in, name[i], out, i)) return 0;
        total_bytes += (uint64_t)one->rows * sy_dtype_row_bytes(out->dtype[i], one->cols);
    }
    return total_bytes;
}

static void read_slot(sy_shard_chunk *out, sy_wire_in *in, const Switchyard__V1__ShardSlot *msg)
{
    if (out->n_bytes != 0 || out->offset != 0) {
        sy_wire_refuse(in, "slot: with %zu bytes of data at %" PRIu64 ", must have none",
                       out->n_bytes, out->offset);
    } else if (msg->handle.len != SY_WIRE_HANDLE_BYTES) {
        sy_wire_refuse(in, "slot.handle: %zu bytes, must be %u", msg->handle.len,
                       SY_WIRE_HANDLE_BYTES);
    } else if (msg->slot >= msg->n_slots) {
        sy_wire_refuse(in, "slot.slot: %" PRIu32 ", must be below n_slots, %" PRIu32, msg->slot,
                       msg->n_slots);
    } else if (msg->slot_bytes == 0) {
        sy_wire_refuse(in, "slot.slot_bytes: 0, must be at least 1");
    } else {
        memcpy(out->slot.handle, msg->handle.data, sizeof(out->slot.handle));
        out->slot.slot_bytes = msg->slot_bytes;
        out->slot.n_slots = msg->n_slots;
        out->slot.slot = msg->slot;
        out->slot.home_hash = msg->home_hash;
    }
}

static void check_data(sy_wire_in *in, const sy_shard_chunk *out)
{
    if (out->n_bytes < 1 || out->n_bytes > SY_WIRE_CHUNK_MAX)
        sy_wire_refuse(in, "data: %zu bytes, must be 1 to %u", out->n_bytes, SY_WIRE_CHUNK_MAX);
    else if (out->offset > out->total_bytes || out->n_bytes > out->total_bytes - out->offset)
        sy_wire_refuse(in, "offset: %" PRIu64 " and %zu bytes of data, but the shard has %" PRIu64,
                       out->offset, out->n_bytes, out->total_bytes);
}

sy_status sy_wire_shard_chunk_decode(sy_shard_chunk *out, sy_arena *arena, const sy_iov *iov,
                                     size_t n, sy_error *err)
{
    const Switchyard__V1__ShardChunk *msg;
    uint64_t total_bytes;
    sy_wire_in in;

    *out = (sy_shard_chunk){0};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__shard_chunk__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->layer = msg->layer;
    out->expert = msg->expert;
    out->content_hash = msg->content_hash;
    out->probe_hash = msg->probe_hash;
    out->total_bytes = msg->total_bytes;
    out->offset = msg->offset;
    out->chunk_hash = msg->chunk_hash;
    out->n_bytes = sy_wire_bulk_bytes(&in, msg->data.len);
    check_expert(&in, msg->expert);
    total_bytes = read_tensors(out, &in, msg);
    if (out->total_bytes != total_bytes)
        sy_wire_refuse(&in, "total_bytes: %" PRIu64 ", but the tensors need %" PRIu64,
                       out->total_bytes, total_bytes);
    if (msg->slot != NULL)
        read_slot(out, &in, msg->slot);
    else
        check_data(&in, out);
    if (in.status == SY_OK && msg->slot == NULL)
        out->data = sy_wire_bulk(&in, msg->data.data, out->n_bytes);
    return in.status;
}

static void put_slot(Switchyard__V1__ShardSlot *msg, const sy_chunk_slot *in)
{
    switchyard__v1__shard_slot__init(msg);
    msg->handle =
        (ProtobufCBinaryData){.len = sizeof(in->handle), .data = sy_wire_lend(in->handle)};
    msg->slot_bytes = in->slot_bytes;
    msg->n_slots = in->n_slots;
    msg->slot = in->slot;
    msg->home_hash = in->home_hash;
}

sy_status sy_wire_shard_chunk_encode(sy_frame *out, const sy_shard_chunk *in, sy_buf *bulk)
{
    Switchyard__V1__ShardTensor tensor[SY_WIRE_TENSORS_MAX];
    Switchyard__V1__ShardTensor *tensors[SY_WIRE_TENSORS_MAX];
    Switchyard__V1__ShardChunk msg;
    Switchyard__V1__ShardSlot slot;

    switchyard__v1__shard_chunk__init(&msg);
    SY_ASSERT(in->n_tensors <= SY_WIRE_TENSORS_MAX);
    for (size_t i = 0; i < in->n_tensors; i++) {
        switchyard__v1__shard_tensor__init(&tensor[i]);
        tensor[i].dtype = (Switchyard__V1__DType)in->dtype[i];
        tensor[i].rows = in->rows[i];
        tensor[i].cols = in->cols[i];
        tensors[i] = &tensor[i];
    }
    msg.layer = in->layer;
    msg.expert = in->expert;
    msg.content_hash = in->content_hash;
    msg.probe_hash = in->probe_hash;
    msg.total_bytes = in->total_bytes;
    msg.offset = in->offset;
    msg.chunk_hash = in->chunk_hash;
    msg.n_tensor = in->n_tensors;
    msg.tensor = tensors;
    msg.data = (ProtobufCBinaryData){.len = in->n_bytes, .data = sy_wire_lend(in->data)};
    if (in->slot.slot_bytes != 0) {
        put_slot(&slot, &in->slot);
        msg.slot = &slot;
    }
    return sy_wire_pack(out, &msg.base, bulk);
}
