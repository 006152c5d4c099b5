/* sy_gguf_family.c - the tables. A family that llama.cpp converts without rearranging anything is a
 * row here. */
#include "sy_gguf_family.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define END_OF_NAMES  \
    {                 \
        NULL, NULL, 0 \
    }
#define END_OF_SETTINGS   \
    {                     \
        NULL, NULL, 0, "" \
    }

static const gguf_name outer_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", GGUF_AS_IS},
    {"output_norm.weight", "model.norm.weight", GGUF_AS_IS},
    {"output_norm.bias", "model.norm.bias", GGUF_AS_IS},
    {"output.weight", "lm_head.weight", GGUF_AS_IS},
    {"output.bias", "lm_head.bias", GGUF_AS_IS},
    {"rope_freqs.weight", "", GGUF_UNUSED},
    {"rope_factors_long.weight", "", GGUF_UNUSED},
    {"rope_factors_short.weight", "", GGUF_UNUSED},
    END_OF_NAMES,
};

static const gguf_name layer_names[] = {
    {"attn_norm.weight", "input_layernorm.weight", GGUF_AS_IS},
    {"attn_norm.bias", "input_layernorm.bias", GGUF_AS_IS},
    {"ffn_norm.weight", "post_attention_layernorm.weight", GGUF_AS_IS},
    {"ffn_norm.bias", "post_attention_layernorm.bias", GGUF_AS_IS},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", GGUF_AS_IS},
    {"attn_q.weight", "self_attn.q_proj.weight", GGUF_Q_HEADS},
    {"attn_q.bias", "self_attn.q_proj.bias", GGUF_Q_HEADS},
    {"attn_k.weight", "self_attn.k_proj.weight", GGUF_K_HEADS},
    {"attn_k.bias", "self_attn.k_proj.bias", GGUF_K_HEADS},
    {"attn_v.weight", "self_attn.v_proj.weight", GGUF_AS_IS},
    {"attn_v.bias", "self_attn.v_proj.bias", GGUF_AS_IS},
    {"attn_output.weight", "self_attn.o_proj.weight", GGUF_AS_IS},
    {"attn_output.bias", "self_attn.o_proj.bias", GGUF_AS_IS},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", GGUF_AS_IS},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", GGUF_AS_IS},
    {"attn_rot_embd", "", GGUF_UNUSED}, /* old files' table of frequencies */
    {"ffn_gate_inp.weight", "mlp.gate.weight", GGUF_AS_IS},
    {"ffn_gate_exps.weight", "mlp.experts.{e}.gate_proj.weight", GGUF_EXPERTS},
    {"ffn_up_exps.weight", "mlp.experts.{e}.up_proj.weight", GGUF_EXPERTS},
    {"ffn_down_exps.weight", "mlp.experts.{e}.down_proj.weight", GGUF_EXPERTS},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", GGUF_AS_IS},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", GGUF_AS_IS},
    {"ffn_gate.weight", "mlp.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up.weight", "mlp.up_proj.weight", GGUF_AS_IS},
    {"ffn_down.weight", "mlp.down_proj.weight", GGUF_AS_IS},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name no_names[] = {END_OF_NAMES};

/* Mixtral's, Phi's and MiniMax's. */
static const gguf_name block_sparse_names[] = {
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight", GGUF_AS_IS},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.{e}.w1.weight", GGUF_EXPERTS},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.{e}.w3.weight", GGUF_EXPERTS},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.{e}.w2.weight", GGUF_EXPERTS},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name qwen2_names[] = {
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", GGUF_AS_IS},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", GGUF_AS_IS},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name deepseek_names[] = {
    {"attn_q_a.weight", "self_attn.q_a_proj.weight", GGUF_AS_IS},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", GGUF_AS_IS},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight", GGUF_AS_IS},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", GGUF_AS_IS},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", GGUF_AS_IS},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight", GGUF_AS_IS},
    {"attn_k_b.weight", "self_attn.kv_b_proj.weight", GGUF_K_B},
    {"attn_v_b.weight", "self_attn.kv_b_proj.weight", GGUF_V_B},
    END_OF_NAMES,
};

static const gguf_name granite_names[] = {
    {"ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight", GGUF_AS_IS},
    {"ffn_gate_exps.weight", "block_sparse_moe.input_linear.weight", GGUF_GATE_FUSED},
    {"ffn_up_exps.weight", "block_sparse_moe.input_linear.weight", GGUF_UP_FUSED},
    {"ffn_down_exps.weight", "block_sparse_moe.output_linear.weight", GGUF_EXPERTS_FUSED},
    {"ffn_gate_shexp.weight", "shared_mlp.input_linear.weight", GGUF_GATE},
    {"ffn_up_shexp.weight", "shared_mlp.input_linear.weight", GGUF_UP},
    {"ffn_down_shexp.weight", "shared_mlp.output_linear.weight", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name gpt_oss_names[] = {
    {"attn_sinks.weight", "self_attn.sinks", GGUF_AS_IS},
    {"ffn_gate_inp.weight", "mlp.router.weight", GGUF_AS_IS},
    {"ffn_gate_inp.bias", "mlp.router.bias", GGUF_AS_IS},
    {"ffn_gate_exps.weight", "mlp.experts.gate_up_proj", GGUF_GATE_TRANSPOSED},
    {"ffn_up_exps.weight", "mlp.experts.gate_up_proj", GGUF_UP_TRANSPOSED},
    {"ffn_down_exps.weight", "mlp.experts.down_proj", GGUF_EXPERTS_TRANSPOSED},
    {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", GGUF_GATE_FUSED},
    {"ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias", GGUF_UP_FUSED},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias", GGUF_EXPERTS_FUSED},
    END_OF_NAMES,
};

static const gguf_name llama4_names[] = {
    {"ffn_gate_inp.weight", "feed_forward.router.weight", GGUF_AS_IS},
    {"ffn_gate_exps.weight", "feed_forward.experts.gate_up_proj", GGUF_GATE_TRANSPOSED},
    {"ffn_up_exps.weight", "feed_forward.experts.gate_up_proj", GGUF_UP_TRANSPOSED},
    {"ffn_down_exps.weight", "feed_forward.experts.down_proj", GGUF_EXPERTS_TRANSPOSED},
    {"ffn_gate_shexp.weight", "feed_forward.shared_expert.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up_shexp.weight", "feed_forward.shared_expert.up_proj.weight", GGUF_AS_IS},
    {"ffn_down_shexp.weight", "feed_forward.shared_expert.down_proj.weight", GGUF_AS_IS},
    {"ffn_gate.weight", "feed_forward.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up.weight", "feed_forward.up_proj.weight", GGUF_AS_IS},
    {"ffn_down.weight", "feed_forward.down_proj.weight", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name ernie_names[] = {
    {"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", GGUF_AS_IS},
    END_OF_NAMES,
};

static const gguf_name hunyuan_names[] = {
    {"attn_q_norm.weight", "self_attn.query_layernorm.weight", GGUF_AS_IS},
    {"attn_k_norm.weight", "self_attn.key_layernorm.weight", GGUF_AS_IS},
    {"ffn_gate_inp.weight", "mlp.gate.wg.weight", GGUF_AS_IS},
    {"ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight", GGUF_AS_IS},
    {"ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight", GGUF_AS_IS},
    {"ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight", GGUF_AS_IS},
    END_OF_NAMES,
};

/* A width that is an expert's own is taken from its tensor: what metadata calls feed_forward_length
 * differs from family to family and from year to year. */
#define EXPERT_FFN "ffn_gate_exps.weight", GGUF_ROWS, NULL

static const gguf_setting mixtral_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"head_dim", "attention.key_length", GGUF_UINT, ""},
    END_OF_SETTINGS,
};
static const gguf_setting olmoe_settings[] = {
    {"num_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"norm_topk_prob", "expert_weights_norm", GGUF_BOOL, "false"},
    {"clip_qkv", "attention.clamp_kqv", GGUF_FLOAT, ""},
    END_OF_SETTINGS,
};
static const gguf_setting qwen2_settings[] = {
    {"num_experts", "expert_count", GGUF_UINT, NULL},
    {"moe_intermediate_size", EXPERT_FFN},
    {"shared_expert_intermediate_size", "ffn_gate_shexp.weight", GGUF_ROWS, NULL},
    {"intermediate_size", "feed_forward_length", GGUF_UINT, ""},
    {"norm_topk_prob", "expert_weights_norm", GGUF_BOOL, "false"},
    {"qkv_bias", "attn_q.bias", GGUF_HAS, NULL},
    END_OF_SETTINGS,
};
static const gguf_setting qwen3_settings[] = {
    {"num_experts", "expert_count", GGUF_UINT, NULL},
    {"moe_intermediate_size", EXPERT_FFN},
    {"intermediate_size", "feed_forward_length", GGUF_UINT, ""},
    {"head_dim", "attention.key_length", GGUF_UINT, ""},
    {"norm_topk_prob", "expert_weights_norm", GGUF_BOOL, "true"},
    END_OF_SETTINGS,
};
static const gguf_setting deepseek_settings[] = {
    {"n_routed_experts", "expert_count", GGUF_UINT, NULL},
    {"n_shared_experts", "expert_shared_count", GGUF_UINT, "0"},
    {"moe_intermediate_size", EXPERT_FFN},
    {"intermediate_size", "feed_forward_length", GGUF_UINT, NULL},
    {"first_k_dense_replace", "leading_dense_block_count", GGUF_UINT, "0"},
    {"q_lora_rank", "attention.q_lora_rank", GGUF_UINT, "null"},
    {"kv_lora_rank", "attention.kv_lora_rank", GGUF_UINT, NULL},
    {"qk_rope_head_dim", "rope.dimension_count", GGUF_UINT, NULL},
    {"routed_scaling_factor", "expert_weights_scale", GGUF_FLOAT, "1.0"},
    {"norm_topk_prob", "expert_weights_norm", GGUF_BOOL, "false"},
    {"moe_layer_freq", NULL, GGUF_TEXT, "1"},
    {"attention_bias", NULL, GGUF_TEXT, "false"},
    END_OF_SETTINGS,
};
static const gguf_setting granite_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"embedding_multiplier", "embedding_scale", GGUF_FLOAT, "1.0"},
    {"residual_multiplier", "residual_scale", GGUF_FLOAT, "1.0"},
    {"attention_multiplier", "attention.scale", GGUF_FLOAT, "1.0"},
    {"logits_scaling", "logit_scale", GGUF_FLOAT, "1.0"},
    END_OF_SETTINGS,
};
static const gguf_setting phimoe_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"attention_bias", "attn_q.bias", GGUF_HAS, NULL},
    {"lm_head_bias", "output.bias", GGUF_HAS, NULL},
    {"router_jitter_noise", NULL, GGUF_TEXT, "0.01"},
    END_OF_SETTINGS,
};
static const gguf_setting gpt_oss_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"head_dim", "attention.key_length", GGUF_UINT, NULL},
    {"sliding_window", "attention.sliding_window", GGUF_UINT, NULL},
    {"attention_bias", "attn_q.bias", GGUF_HAS, NULL},
    {"swiglu_limit", NULL, GGUF_TEXT, "7.0"},
    END_OF_SETTINGS,
};
static const gguf_setting glm_settings[] = {
    {"n_routed_experts", "expert_count", GGUF_UINT, NULL},
    {"n_shared_experts", "expert_shared_count", GGUF_UINT, "0"},
    {"moe_intermediate_size", EXPERT_FFN},
    {"intermediate_size", "feed_forward_length", GGUF_UINT, NULL},
    {"head_dim", "attention.key_length", GGUF_UINT, NULL},
    {"first_k_dense_replace", "leading_dense_block_count", GGUF_UINT, "0"},
    {"routed_scaling_factor", "expert_weights_scale", GGUF_FLOAT, "1.0"},
    {"norm_topk_prob", "expert_weights_norm", GGUF_BOOL, "true"},
    {"n_group", "expert_group_count", GGUF_UINT, "1"},
    {"topk_group", "expert_group_used_count", GGUF_UINT, "1"},
    {"use_qk_norm", "attn_q_norm.weight", GGUF_HAS, NULL},
    {"attention_bias", "attn_q.bias", GGUF_HAS, NULL},
    END_OF_SETTINGS,
};
static const gguf_setting llama4_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"intermediate_size_mlp", "feed_forward_length", GGUF_UINT, NULL},
    {"interleave_moe_layer_step", "interleave_moe_layer_step", GGUF_UINT, "1"},
    {"head_dim", "rope.dimension_count", GGUF_UINT, NULL},
    {"no_rope_layer_interval", NULL, GGUF_TEXT, "4"},
    {"attention_chunk_size", NULL, GGUF_TEXT, "8192"},
    {"attn_temperature_tuning", NULL, GGUF_TEXT, "true"},
    {"floor_scale", NULL, GGUF_TEXT, "8192"},
    {"attn_scale", NULL, GGUF_TEXT, "0.1"},
    END_OF_SETTINGS,
};
static const gguf_setting ernie_settings[] = {
    {"moe_num_experts", "expert_count", GGUF_UINT, NULL},
    {"moe_k", "expert_used_count", GGUF_UINT, NULL},
    {"moe_num_shared_experts", "expert_shared_count", GGUF_UINT, "0"},
    {"moe_intermediate_size", EXPERT_FFN},
    {"intermediate_size", "feed_forward_length", GGUF_UINT, NULL},
    {"moe_layer_interval", "interleave_moe_layer_step", GGUF_UINT, "1"},
    {"moe_layer_start_index", "leading_dense_block_count", GGUF_UINT, "0"},
    {"head_dim", "attention.key_length", GGUF_UINT, ""},
    {"use_bias", "attn_q.bias", GGUF_HAS, NULL},
    END_OF_SETTINGS,
};
static const gguf_setting hunyuan_settings[] = {
    {"num_experts", "expert_count", GGUF_UINT, NULL},
    {"moe_topk", "expert_used_count", GGUF_UINT, NULL},
    {"num_shared_expert", "expert_shared_count", GGUF_UINT, "1"},
    {"intermediate_size", EXPERT_FFN},
    {"moe_intermediate_size", EXPERT_FFN},
    {"head_dim", "attention.key_length", GGUF_UINT, ""},
    {"use_qk_norm", "attn_q_norm.weight", GGUF_HAS, NULL},
    {"attention_bias", "attn_q.bias", GGUF_HAS, NULL},
    END_OF_SETTINGS,
};
static const gguf_setting minimax_settings[] = {
    {"num_local_experts", "expert_count", GGUF_UINT, NULL},
    {"intermediate_size", EXPERT_FFN},
    {"head_dim", "attention.key_length", GGUF_UINT, ""},
    {"rotary_dim", "rope.dimension_count", GGUF_UINT, NULL},
    {"use_qk_norm", "attn_q_norm.weight", GGUF_HAS, NULL},
    {"scoring_func", NULL, GGUF_TEXT, "\"sigmoid\""},
    {"use_routing_bias", "exp_probs_b.bias", GGUF_HAS, NULL},
    END_OF_SETTINGS,
};

static const gguf_family families[] = {
    {.architecture = "llama",
     .model_type = "mixtral",
     .names = block_sparse_names,
     .settings = mixtral_settings,
     .permutes_heads = 1},
    {.architecture = "olmoe", .model_type = "olmoe", .names = no_names, .settings = olmoe_settings},
    {.architecture = "qwen2moe",
     .model_type = "qwen2_moe",
     .names = qwen2_names,
     .settings = qwen2_settings,
     .extra = gguf_extra_dense_layers},
    {.architecture = "qwen3moe",
     .model_type = "qwen3_moe",
     .names = no_names,
     .settings = qwen3_settings,
     .extra = gguf_extra_dense_layers},
    {.architecture = "deepseek2", /* V2; the extra says deepseek_v3 where it is one */
     .model_type = "deepseek_v2",
     .names = deepseek_names,
     .settings = deepseek_settings,
     .extra = gguf_extra_deepseek},
    {.architecture = "granitemoe",
     .model_type = "granitemoe",
     .names = granite_names,
     .settings = granite_settings,
     .extra = gguf_extra_granite,
     .permutes_heads = 1},
    {.architecture = "phimoe",
     .model_type = "phimoe",
     .names = block_sparse_names,
     .settings = phimoe_settings},
    {.architecture = "gpt-oss",
     .model_type = "gpt_oss",
     .names = gpt_oss_names,
     .settings = gpt_oss_settings,
     .extra = gguf_extra_gpt_oss,
     .interleaves_gate_up = 1},
    {.architecture = "glm4moe",
     .model_type = "glm4_moe",
     .names = no_names,
     .settings = glm_settings,
     .extra = gguf_extra_glm},
    {.architecture = "llama4",
     .model_type = "llama4_text",
     .names = llama4_names,
     .settings = llama4_settings,
     .extra = gguf_extra_llama4},
    {.architecture = "ernie4_5-moe",
     .model_type = "ernie4_5_moe",
     .names = ernie_names,
     .settings = ernie_settings},
    {.architecture = "hunyuan-moe",
     .model_type = "hunyuan_v1_moe",
     .names = hunyuan_names,
     .settings = hunyuan_settings},
    {.architecture = "minimax-m2",
     .model_type = "minimax_m2",
     .names = block_sparse_names,
     .settings = minimax_settings},
};

static sy_status refuse_architecture(const sy_gguf_string *name, sy_error *err)
{
    char known[256] = "";
    size_t len = 0;

    for (size_t i = 0; i < SY_COUNT_OF(families) && len < sizeof(known); i++) {
        const int n = snprintf(known + len, sizeof(known) - len, "%s%s", i > 0 ? ", " : "",
                               families[i].architecture);

        len += n > 0 ? (size_t)n : 0;
    }
    return sy_error_set(err, SY_EINVAL, "general.architecture is \"%.*s\"; the known ones are %s",
                        (int)SY_MIN(name->n, (size_t)64), name->s, known);
}

sy_status gguf_family_of(const gguf_family **out, const sy_gguf *metadata, sy_error *err)
{
    sy_gguf_string name = {0};
    const sy_status st = sy_gguf_string_of(&name, metadata, "general.architecture", err);

    *out = NULL;
    if (st == SY_ENOTFOUND)
        return sy_error_set(err, SY_EINVAL, "general.architecture is missing: it is no model");
    if (st != SY_OK) return st;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++) {
        const char *known = families[i].architecture;

        if (strlen(known) == name.n && memcmp(known, name.s, name.n) == 0) *out = &families[i];
    }
    return *out != NULL ? SY_OK : refuse_architecture(&name, err);
}

static const gguf_name *find_in(const gguf_name *names, const char *name)
{
    for (; names->here != NULL; names++) {
        if (strcmp(names->here, name) == 0) return names;
    }
    return NULL;
}

const gguf_name *gguf_name_find(const gguf_family *family, int is_of_layer, const char *name)
{
    const gguf_name *found;

    if (!is_of_layer) return find_in(outer_names, name);
    found = find_in(family->names, name);
    return found != NULL ? found : find_in(layer_names, name);
}

void gguf_key_name(char out[GGUF_KEY_BYTES], const gguf_family *family, const char *name)
{
    (void)snprintf(out, GGUF_KEY_BYTES, "%s.%s", family->architecture, name);
}

sy_status gguf_layers(uint32_t *out, const gguf_family *family, const sy_gguf *metadata,
                      sy_error *err)
{
    char key[GGUF_KEY_BYTES];
    uint32_t n_mtp = 0;
    sy_status st;

    gguf_key_name(key, family, "nextn_predict_layers");
    if (sy_gguf_value_of(metadata, key) != NULL) SY_TRY(sy_gguf_u32(&n_mtp, metadata, key, err));
    gguf_key_name(key, family, "block_count");
    SY_TRY(sy_gguf_u32(out, metadata, key, err));
    if (*out <= n_mtp || *out > SY_GGUF_TENSORS_MAX) {
        return sy_error_set(err, SY_EINVAL,
                            "%s is %" PRIu32 ", of which %" PRIu32 " predict further tokens", key,
                            *out, n_mtp);
    }
    *out -= n_mtp;
out:
    return st;
}

sy_status gguf_heads(uint32_t *out, const gguf_family *family, const sy_gguf *metadata,
                     const char *name, sy_error *err)
{
    char key[GGUF_KEY_BYTES];
    const sy_gguf_value *value;
    int64_t first = 0;
    sy_status st;

    gguf_key_name(key, family, name);
    value = sy_gguf_value_of(metadata, key);
    if (value == NULL || !value->is_array) {
        st = sy_gguf_u32(out, metadata, key, err);
        if (st == SY_OK && *out == 0) st = sy_error_set(err, SY_EINVAL, "%s is 0", key);
        return st;
    }
    SY_TRY(sy_gguf_array(&value, metadata, key, SY_GGUF_KIND_I32, err));
    for (size_t i = 0; i < value->n; i++) {
        int64_t count;

        if (!sy_gguf_value_i64(&count, value, i) || count <= 0 || count > UINT32_MAX ||
            (i > 0 && count != first)) {
            return sy_error_set(err, SY_EINVAL,
                                "%s[%zu] is not as the others: layers that differ are not "
                                "supported",
                                key, i);
        }
        first = count;
    }
    if (value->n == 0) return sy_error_set(err, SY_EINVAL, "%s is empty", key);
    *out = (uint32_t)first;
out:
    return st;
}
