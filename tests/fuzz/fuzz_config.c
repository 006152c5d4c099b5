/* fuzz_config.c - any bytes as config.json and as generation_config.json: what is accepted keeps
 * every stated limit. */
#include <math.h>
#include <stdint.h>

#include "sy_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sampling(const sy_model_desc *desc)
{
    SY_ASSERT(desc->n_eos <= SY_EOS_MAX);
    for (uint32_t i = 0; i < desc->n_eos; i++) {
        SY_ASSERT(desc->eos[i] >= 0 && (uint32_t)desc->eos[i] < desc->vocab);
    }
    SY_ASSERT(desc->bos >= -1 && desc->bos < (int32_t)desc->vocab);
    SY_ASSERT(isfinite(desc->default_temperature) && desc->default_temperature >= -1.0f);
    SY_ASSERT(desc->default_top_p <= 1.0f && desc->default_top_k >= -1);
}

static void check_layers(const sy_model_desc *desc)
{
    int any_experts = 0, any_dense = 0, any_sliding = 0, any_chunked = 0;

    for (uint32_t l = 0; l < desc->n_layers; l++) {
        if (sy_model_has_experts(desc, l))
            any_experts = 1;
        else
            any_dense = 1;
        any_sliding |= desc->layer[l] & SY_LAYER_SLIDING;
        any_chunked |= desc->layer[l] & SY_LAYER_CHUNKED;
    }
    SY_ASSERT(any_experts);
    SY_ASSERT(!any_dense || (desc->dense_ffn >= 1 && desc->dense_ffn <= SY_DIM_MAX));
    SY_ASSERT(!any_sliding ||
              (desc->sliding_window >= 1 && desc->sliding_window <= SY_CONTEXT_MAX));
    SY_ASSERT(!any_chunked || desc->attention_chunk >= 1);
    SY_ASSERT(desc->shared_ffn <= SY_DIM_MAX && desc->n_mtp_layers <= SY_LAYERS_MAX);
    SY_ASSERT(isfinite(desc->temperature_scale) && isfinite(desc->temperature_floor));
    SY_ASSERT(desc->temperature_scale == 0.0f || desc->temperature_floor > 0.0f);
}

static void check_gate(const sy_model_desc *desc)
{
    const sy_gate_desc *gate = &desc->gate;

    SY_ASSERT(isfinite(gate->scale) && gate->scale > 0.0f);
    SY_ASSERT(gate->norm_epsilon >= 0.0f && gate->norm_min >= 0.0f && gate->norm_min <= 1.0f);
    SY_ASSERT(isfinite(gate->sparse_epsilon) && gate->sparse_epsilon >= 0.0f);
    SY_ASSERT(gate->n_group <= SY_GATE_GROUPS_MAX && gate->topk_group <= gate->n_group);
    SY_ASSERT(gate->group_best <= SY_GATE_GROUP_BEST_MAX);
    if (gate->n_group < 2) return;
    SY_ASSERT(desc->n_experts % gate->n_group == 0 && gate->topk_group >= 1);
    SY_ASSERT(gate->topk_group * (desc->n_experts / gate->n_group) >= desc->top_k);
}

static void check_rotation(const sy_model_desc *desc)
{
    const sy_rope_desc *rope = &desc->rope;

    SY_ASSERT(desc->rotary_dim >= 2 && desc->rotary_dim % 2 == 0);
    SY_ASSERT(desc->rotary_dim <= desc->head_dim);
    SY_ASSERT(isfinite(rope->factor) && rope->factor > 0.0f);
    SY_ASSERT(isfinite(rope->attention_factor) && rope->attention_factor > 0.0f);
    SY_ASSERT(rope->low_freq <= rope->high_freq && rope->beta_slow <= rope->beta_fast);
    SY_ASSERT(rope->type == SY_ROPE_PLAIN || rope->type == SY_ROPE_LINEAR ||
              (rope->original_context >= 1 && rope->original_context <= SY_CONTEXT_MAX));
    if (rope->type != SY_ROPE_LONG) return;
    SY_ASSERT(desc->rotary_dim / 2 <= SY_ROPE_PAIRS_MAX);
    SY_ASSERT(isfinite(rope->long_attention_factor) && rope->long_attention_factor > 0.0f);
    for (uint32_t i = 0; i < desc->rotary_dim / 2; i++)
        SY_ASSERT(rope->short_factor[i] > 0.0f && rope->long_factor[i] > 0.0f);
}

static void check_attention(const sy_model_desc *desc)
{
    const sy_mla_desc *mla = &desc->mla;

    SY_ASSERT(isfinite(desc->attention_scale) && desc->attention_scale > 0.0f);
    SY_ASSERT(isfinite(desc->embedding_multiplier) && isfinite(desc->residual_multiplier));
    SY_ASSERT(isfinite(desc->logits_scaling) && desc->logits_scaling > 0.0f);
    SY_ASSERT(isfinite(desc->mlp_limit) && desc->mlp_limit > 0.0f);
    if (mla->kv_rank == 0) return;
    SY_ASSERT(mla->kv_rank <= SY_DIM_MAX && mla->q_rank <= SY_DIM_MAX);
    SY_ASSERT(desc->head_dim == mla->nope_dim + desc->rotary_dim && mla->value_dim >= 1);
    SY_ASSERT((uint64_t)desc->n_heads * (mla->nope_dim + mla->value_dim) <= SY_DIM_MAX);
}

static void check_dims(const sy_model_desc *desc)
{
    SY_ASSERT(desc->vocab >= 1 && desc->vocab <= SY_VOCAB_MAX);
    SY_ASSERT(desc->hidden >= 1 && desc->hidden <= SY_DIM_MAX);
    SY_ASSERT(desc->n_layers >= 1 && desc->n_layers <= SY_LAYERS_MAX);
    SY_ASSERT(desc->n_experts >= 1 && desc->n_experts <= SY_EXPERTS_MAX);
    SY_ASSERT(desc->top_k >= 1 && desc->top_k <= SY_MIN(desc->n_experts, SY_TOP_K_MAX));
    SY_ASSERT(desc->expert_ffn >= 1 && desc->expert_ffn <= SY_DIM_MAX);
    SY_ASSERT(desc->context >= 1 && desc->context <= SY_CONTEXT_MAX);
    SY_ASSERT(desc->head_dim >= 2 && desc->head_dim % 2 == 0);
    SY_ASSERT(desc->n_kv_heads >= 1 && desc->n_heads % desc->n_kv_heads == 0);
    SY_ASSERT((uint64_t)desc->n_heads * desc->head_dim <= SY_DIM_MAX);
    SY_ASSERT(isfinite(desc->rope_theta) && desc->rope_theta > 0.0f);
    SY_ASSERT(desc->rms_eps > 0.0f && desc->rms_eps <= 1.0f);
    SY_ASSERT(isfinite(desc->qkv_clip) && desc->qkv_clip >= 0.0f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sy_model_desc desc;
    sy_error err;

    sy_error_clear(&err);
    if (sy_model_desc_parse(&desc, (const char *)data, size, &err) == SY_OK) {
        check_dims(&desc);
        check_layers(&desc);
        check_gate(&desc);
        check_rotation(&desc);
        check_attention(&desc);
        check_sampling(&desc);
    } else {
        SY_ASSERT(err.message[0] != '\0');
    }
    desc = (sy_model_desc){.vocab = 50304,
                           .bos = -1,
                           .default_temperature = -1.0f,
                           .default_top_p = -1.0f,
                           .default_top_k = -1};
    sy_error_clear(&err);
    if (sy_generation_config_parse(&desc, (const char *)data, size, &err) != SY_OK) {
        SY_ASSERT(err.message[0] != '\0');
    }
    check_sampling(&desc);
    return 0;
}
