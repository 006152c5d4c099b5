/* sy_wire_fetch.c - FetchShardRequest and ShardChunk: a shard's bytes, as they are held, from node
 * to node. */
#include <inttypes.h>

#include "switchyard/v1/expert.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

#define N_MATRICES 3 /* gate, up, down */

static void check_expert(sy_wire_in *in, uint32_t expert)
{
    if (expert < SY_WIRE_EXPERTS_MAX) return;
    sy_wire_refuse(in, "expert: %" PRIu32 ", must be below %u", expert, SY_WIRE_EXPERTS_MAX);
}

sy_status sy_wire_fetch_request_decode(sy_fetch_request *out, sy_arena *arena, const sy_iov *iov,
                                       size_t n, sy_error *err)
{
    const Switchyard__V1__FetchShardRequest *msg;
    sy_wire_in in;

    *out = (sy_fetch_request){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__fetch_shard_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->model = sy_wire_name(&in, "model", msg->model);
    out->layer = msg->layer;
    out->expert = msg->expert;
    out->offset = msg->offset;
    out->content_hash = msg->content_hash;
    check_expert(&in, msg->expert);
    return in.status;
}

sy_status sy_wire_fetch_request_encode(sy_frame *out, const sy_fetch_request *in, sy_buf *bulk)
{
    Switchyard__V1__FetchShardRequest msg;

    switchyard__v1__fetch_shard_request__init(&msg);
    msg.model = sy_wire_lend_text(in->model);
    msg.layer = in->layer;
    msg.expert = in->expert;
    msg.offset = in->offset;
    msg.content_hash = in->content_hash;
    return sy_wire_pack(out, &msg.base, bulk);
}

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
    if (out->n_bytes < 1 || out->n_bytes > SY_WIRE_CHUNK_MAX) {
        sy_wire_refuse(&in, "data: %zu bytes, must be 1 to %u", out->n_bytes, SY_WIRE_CHUNK_MAX);
    } else if (out->total_bytes != total_bytes) {
        sy_wire_refuse(&in, "total_bytes: %" PRIu64 ", but the tensors need %" PRIu64,
                       out->total_bytes, total_bytes);
    } else if (out->offset > total_bytes || out->n_bytes > total_bytes - out->offset) {
        sy_wire_refuse(&in, "offset: %" PRIu64 " and %zu bytes of data, but the shard has %" PRIu64,
                       out->offset, out->n_bytes, total_bytes);
    }
    if (in.status == SY_OK) out->data = sy_wire_bulk(&in, msg->data.data, out->n_bytes);
    return in.status;
}

sy_status sy_wire_shard_chunk_encode(sy_frame *out, const sy_shard_chunk *in, sy_buf *bulk)
{
    Switchyard__V1__ShardTensor tensor[SY_WIRE_TENSORS_MAX];
    Switchyard__V1__ShardTensor *tensors[SY_WIRE_TENSORS_MAX];
    Switchyard__V1__ShardChunk msg;

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
    return sy_wire_pack(out, &msg.base, bulk);
}
