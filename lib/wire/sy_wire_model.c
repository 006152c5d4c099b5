/* sy_wire_model.c - models: ListModels' Model, DescribeModel's ModelDescription, and the requests
 * that name one. */
#include <inttypes.h>

#include "switchyard/v1/aggregator.pb-c.h"
#include "switchyard/v1/router.pb-c.h"
#include "sy_wire_in.h"
#include "sy_wire_out.h"

/* DescribeModelRequest and WatchRequest are the same bytes: the model's name in field 1. */
sy_status sy_wire_model_query_decode(sy_model_query *out, sy_arena *arena, const sy_iov *iov,
                                     size_t n, sy_error *err)
{
    const Switchyard__V1__DescribeModelRequest *msg;
    sy_wire_in in;

    *out = (sy_model_query){.model = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__describe_model_request__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->model = sy_wire_name(&in, "model", msg->model);
    return in.status;
}

sy_status sy_wire_model_query_encode(sy_frame *out, const sy_model_query *in, sy_buf *bulk)
{
    Switchyard__V1__DescribeModelRequest msg;

    switchyard__v1__describe_model_request__init(&msg);
    msg.model = sy_wire_lend_text(in->model);
    return sy_wire_pack(out, &msg.base, bulk);
}

/* Sizes that others allocate by. */
static void check_sizes(sy_wire_in *in, const sy_model_info *info)
{
    if (info->hidden > SY_WIRE_COLS_MAX) {
        sy_wire_refuse(in, "hidden: %" PRIu32 ", but at most %u are allowed", info->hidden,
                       SY_WIRE_COLS_MAX);
    } else if (info->experts > SY_WIRE_EXPERTS_MAX) {
        sy_wire_refuse(in, "experts: %" PRIu32 ", but at most %u are allowed", info->experts,
                       SY_WIRE_EXPERTS_MAX);
    } else if (info->top_k > info->experts) {
        sy_wire_refuse(in, "top_k: %" PRIu32 ", but there are %" PRIu32 " experts", info->top_k,
                       info->experts);
    }
}

sy_status sy_wire_model_description_decode(sy_model_info *out, sy_arena *arena, const sy_iov *iov,
                                           size_t n, sy_error *err)
{
    const Switchyard__V1__ModelDescription *msg;
    sy_wire_in in;

    *out = (sy_model_info){
        .name = "", .family = "", .architecture = "", .not_ready_reason = "", .moe_layers = ""};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__model_description__descriptor, iov, n);
    if (msg == NULL) return in.status;
    out->name = sy_wire_name(&in, "name", msg->name);
    out->family = sy_wire_name(&in, "family", msg->family);
    out->architecture = sy_wire_name(&in, "architecture", msg->architecture);
    out->layers = msg->layers;
    out->hidden = msg->hidden;
    out->experts = msg->experts;
    out->top_k = msg->top_k;
    out->expert_ffn = msg->expert_ffn;
    out->vocab = msg->vocab;
    out->context = msg->context;
    out->structure_hash = msg->structure_hash;
    out->moe_layers = sy_wire_text(&in, "moe_layers", msg->moe_layers, SY_WIRE_LAYERS_TEXT_MAX);
    check_sizes(&in, out);
    return in.status;
}

sy_status sy_wire_model_description_encode(sy_frame *out, const sy_model_info *in, sy_buf *bulk)
{
    Switchyard__V1__ModelDescription msg;

    switchyard__v1__model_description__init(&msg);
    msg.name = sy_wire_lend_text(in->name);
    msg.family = sy_wire_lend_text(in->family);
    msg.architecture = sy_wire_lend_text(in->architecture);
    msg.layers = in->layers;
    msg.hidden = in->hidden;
    msg.experts = in->experts;
    msg.top_k = in->top_k;
    msg.expert_ffn = in->expert_ffn;
    msg.vocab = in->vocab;
    msg.context = in->context;
    msg.structure_hash = in->structure_hash;
    msg.moe_layers = sy_wire_lend_text(in->moe_layers);
    return sy_wire_pack(out, &msg.base, bulk);
}

static void read_model(sy_model_info *out, sy_wire_in *in, const Switchyard__V1__Model *msg)
{
    *out = (sy_model_info){
        .name = sy_wire_name(in, "name", msg->name),
        .family = sy_wire_name(in, "family", msg->family),
        .architecture = "",
        .not_ready_reason =
            sy_wire_text(in, "not_ready_reason", msg->not_ready_reason, SY_MESSAGE_BYTES),
        .layers = msg->layers,
        .hidden = msg->hidden,
        .experts = msg->experts,
        .top_k = msg->top_k,
        .vocab = msg->vocab,
        .context = msg->context,
        .ready = msg->ready != 0,
        .placement_hash = msg->placement_hash,
        .structure_hash = msg->structure_hash,
        .placement_epoch = msg->placement_epoch,
        .moe_layers = sy_wire_text(in, "moe_layers", msg->moe_layers, SY_WIRE_LAYERS_TEXT_MAX),
    };
    check_sizes(in, out);
}

sy_status sy_wire_model_list_decode(sy_model_list *out, sy_arena *arena, const sy_iov *iov,
                                    size_t n, sy_error *err)
{
    const Switchyard__V1__ListModelsReply *msg;
    sy_model_info *model;
    sy_wire_in in;

    *out = (sy_model_list){0};
    sy_wire_in_init(&in, arena, err);
    msg = sy_wire_unpack(&in, &switchyard__v1__list_models_reply__descriptor, iov, n);
    if (msg == NULL || msg->n_model == 0) return in.status;
    model = sy_wire_alloc(&in, msg->n_model * sizeof(*model));
    if (model == NULL) return in.status;
    in.group = "model";
    for (size_t i = 0; i < msg->n_model; i++) {
        in.index = (int64_t)i;
        read_model(&model[i], &in, msg->model[i]);
    }
    out->model = model;
    out->n_models = (uint32_t)msg->n_model; /* fits: the message has less than 2 GiB */
    return in.status;
}

static void put_model(Switchyard__V1__Model *msg, const sy_model_info *in)
{
    switchyard__v1__model__init(msg);
    msg->name = sy_wire_lend_text(in->name);
    msg->family = sy_wire_lend_text(in->family);
    msg->layers = in->layers;
    msg->hidden = in->hidden;
    msg->experts = in->experts;
    msg->top_k = in->top_k;
    msg->vocab = in->vocab;
    msg->context = in->context;
    msg->ready = in->ready != 0;
    msg->not_ready_reason = sy_wire_lend_text(in->not_ready_reason);
    msg->placement_hash = in->placement_hash;
    msg->structure_hash = in->structure_hash;
    msg->placement_epoch = in->placement_epoch;
    msg->moe_layers = sy_wire_lend_text(in->moe_layers);
}

sy_status sy_wire_model_list_encode(sy_frame *out, const sy_model_list *in, sy_buf *bulk)
{
    Switchyard__V1__ListModelsReply msg;
    Switchyard__V1__Model *model;
    sy_arena scratch;
    sy_status st = SY_ENOMEM;

    switchyard__v1__list_models_reply__init(&msg);
    sy_frame_init(out);
    sy_arena_init(&scratch, SIZE_MAX);
    model = sy_arena_calloc(&scratch, in->n_models, sizeof(*model));
    msg.model = sy_arena_calloc(&scratch, in->n_models, sizeof(Switchyard__V1__Model *));
    if (model == NULL || msg.model == NULL) goto out;
    msg.n_model = in->n_models;
    for (uint32_t i = 0; i < in->n_models; i++) {
        put_model(&model[i], &in->model[i]);
        msg.model[i] = &model[i];
    }
    st = sy_wire_pack(out, &msg.base, bulk);
out:
    sy_arena_free(&scratch);
    return st;
}
