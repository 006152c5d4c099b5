/* sy_family.c - the table of families. A new family whose arithmetic the rest already knows is one
 * row here. */
#include "sy_family.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define L "model.layers.{l}."

/* Names that all of Llama's descendants share. */
#define OUTER_TENSORS                                                                          \
    [SY_ROLE_EMBED] = "model.embed_tokens.weight", [SY_ROLE_FINAL_NORM] = "model.norm.weight", \
    [SY_ROLE_HEAD] = "lm_head.weight", [SY_ROLE_NORM1] = L "input_layernorm.weight",           \
    [SY_ROLE_NORM2] = L "post_attention_layernorm.weight"

#define LLAMA_TENSORS                                                                         \
    OUTER_TENSORS,                                                                            \
        [SY_ROLE_Q] = L "self_attn.q_proj.weight", [SY_ROLE_K] = L "self_attn.k_proj.weight", \
        [SY_ROLE_V] = L "self_attn.v_proj.weight", [SY_ROLE_O] = L "self_attn.o_proj.weight"

#define QKV_BIASES                                                                              \
    [SY_ROLE_Q_BIAS] = L "self_attn.q_proj.bias", [SY_ROLE_K_BIAS] = L "self_attn.k_proj.bias", \
    [SY_ROLE_V_BIAS] = L "self_attn.v_proj.bias"

#define QK_NORM_TENSORS \
    [SY_ROLE_Q_NORM] = L "self_attn.q_norm.weight", [SY_ROLE_K_NORM] = L "self_attn.k_norm.weight"

/* Attention over a latent. */
#define MLA_TENSORS                                                                               \
    OUTER_TENSORS,                                                                                \
        [SY_ROLE_Q] = L "self_attn.q_proj.weight", [SY_ROLE_Q_A] = L "self_attn.q_a_proj.weight", \
        [SY_ROLE_Q_A_NORM] = L "self_attn.q_a_layernorm.weight",                                  \
        [SY_ROLE_Q_B] = L "self_attn.q_b_proj.weight",                                            \
        [SY_ROLE_KV_A] = L "self_attn.kv_a_proj_with_mqa.weight",                                 \
        [SY_ROLE_KV_A_NORM] = L "self_attn.kv_a_layernorm.weight",                                \
        [SY_ROLE_KV_B] = L "self_attn.kv_b_proj.weight", [SY_ROLE_O] = L "self_attn.o_proj.weight"

#define MIXTRAL_TENSORS                                                 \
    [SY_ROLE_GATE] = L "block_sparse_moe.gate.weight",                  \
    [SY_ROLE_EXPERT_GATE] = L "block_sparse_moe.experts.{e}.w1.weight", \
    [SY_ROLE_EXPERT_UP] = L "block_sparse_moe.experts.{e}.w3.weight",   \
    [SY_ROLE_EXPERT_DOWN] = L "block_sparse_moe.experts.{e}.w2.weight"

/* Experts of OLMoE, Qwen and others, and the gate of most of them. */
#define MLP_EXPERTS                                               \
    [SY_ROLE_EXPERT_GATE] = L "mlp.experts.{e}.gate_proj.weight", \
    [SY_ROLE_EXPERT_UP] = L "mlp.experts.{e}.up_proj.weight",     \
    [SY_ROLE_EXPERT_DOWN] = L "mlp.experts.{e}.down_proj.weight"
#define MLP_TENSORS [SY_ROLE_GATE] = L "mlp.gate.weight", MLP_EXPERTS

#define DENSE_TENSORS                                                                             \
    [SY_ROLE_DENSE_GATE] = L "mlp.gate_proj.weight", [SY_ROLE_DENSE_UP] = L "mlp.up_proj.weight", \
    [SY_ROLE_DENSE_DOWN] = L "mlp.down_proj.weight"

/* The MLP beside the experts, under one of its many names. */
#define SHARED_TENSORS(name)                            \
    [SY_ROLE_SHARED_GATE] = L name ".gate_proj.weight", \
    [SY_ROLE_SHARED_UP] = L name ".up_proj.weight",     \
    [SY_ROLE_SHARED_DOWN] = L name ".down_proj.weight"

#define QWEN_KEYS                                                                           \
    .experts = {{"num_experts", "num_local_experts"}}, .top_k = {{"num_experts_per_tok"}},  \
    .expert_ffn = {{"moe_intermediate_size"}}, .dense = SY_DENSE_LISTED,                    \
    .dense_ffn = {{"intermediate_size"}}, .window = SY_WINDOW_SWITCH,                       \
    .renormalise_key = "norm_topk_prob", .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f}, \
    .rms_eps = 1e-6f, .rope_theta = 1e4f

#define DEEPSEEK_KEYS                                                      \
    .experts = {{"n_routed_experts"}}, .top_k = {{"num_experts_per_tok"}}, \
    .expert_ffn = {{"moe_intermediate_size"}}, .dense = SY_DENSE_FIRST,    \
    .dense_ffn = {{"intermediate_size"}}, .shared = SY_SHARED_COUNT,       \
    .shared_key = {{"n_shared_experts"}}

/* DeepSeek-V3 and what is built like it. */
#define DEEPSEEK_V3                                                                            \
    .architecture = {"DeepseekV3ForCausalLM"},                                                 \
    .reads = SY_READS_MLA | SY_READS_SCALE | SY_READS_GROUPS | SY_READS_MTP, DEEPSEEK_KEYS,    \
    .renormalise_key = "norm_topk_prob", .renormalise = 1, .topk_method = "noaux_tc",          \
    .gate = {.score = SY_GATE_SIGMOID,                                                         \
             .scale = 2.5f,                                                                    \
             .norm_epsilon = 1e-20f,                                                           \
             .n_group = 8,                                                                     \
             .topk_group = 4,                                                                  \
             .group_best = 2},                                                                 \
    .rope_interleaved = 1, .rms_eps = 1e-6f, .rope_theta = 1e4f,                               \
    .pattern = {MLA_TENSORS, MLP_TENSORS, DENSE_TENSORS, SHARED_TENSORS("mlp.shared_experts"), \
                [SY_ROLE_GATE_BIAS] = L "mlp.gate.e_score_correction_bias"}

#define LLAMA4                                                                              \
    .experts = {{"num_local_experts"}}, .top_k = {{"num_experts_per_tok"}},                 \
    .expert_ffn = {{"intermediate_size"}}, .dense = SY_DENSE_STEP,                          \
    .dense_ffn = {{"intermediate_size_mlp"}}, .shared = SY_SHARED_ALWAYS,                   \
    .window = SY_WINDOW_CHUNKS, .slabs = SY_SLAB_COLUMNS, .qk_norm = SY_QK_NORM_WEIGHTLESS, \
    .qk_norm_key = "use_qk_norm",                                                           \
    .gate = {.score = SY_GATE_SIGMOID_CHOSEN, .scale = 1.0f, .scales_input = 1},            \
    .rope_interleaved = 1, .rms_eps = 1e-5f, .rope_theta = 5e5f,                            \
    .pattern = {LLAMA_TENSORS,                                                              \
                SHARED_TENSORS("feed_forward.shared_expert"),                               \
                [SY_ROLE_DENSE_GATE] = L "feed_forward.gate_proj.weight",                   \
                [SY_ROLE_DENSE_UP] = L "feed_forward.up_proj.weight",                       \
                [SY_ROLE_DENSE_DOWN] = L "feed_forward.down_proj.weight",                   \
                [SY_ROLE_GATE] = L "feed_forward.router.weight",                            \
                [SY_ROLE_EXPERT_GATE] = L "feed_forward.experts.gate_up_proj",              \
                [SY_ROLE_EXPERT_UP] = L "feed_forward.experts.gate_up_proj",                \
                [SY_ROLE_EXPERT_DOWN] = L "feed_forward.experts.down_proj"}

/* NOLINTBEGIN(bugprone-suspicious-missing-comma): names are put together on purpose. */
static const sy_family families[] = {
    {
        .name = "mixtral",
        .architecture = {"MixtralForCausalLM"},
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise = 1,
        .window = SY_WINDOW_ALL,
        .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f},
        .rms_eps = 1e-5f,
        .rope_theta = 1e6f,
        .pattern = {LLAMA_TENSORS, MIXTRAL_TENSORS},
    },
    {
        .name = "olmoe",
        .architecture = {"OlmoeForCausalLM"},
        .experts = {{"num_experts", "num_local_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise_key = "norm_topk_prob",
        .qkv_clip_key = "clip_qkv",
        .qk_norm = SY_QK_NORM_WHOLE,
        .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f},
        .rms_eps = 1e-5f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, QK_NORM_TENSORS, MLP_TENSORS},
    },
    {
        .name = "qwen2_moe",
        .architecture = {"Qwen2MoeForCausalLM"},
        .reads = SY_READS_BIAS,
        QWEN_KEYS,
        .shared = SY_SHARED_WIDTH,
        .shared_key = {{"shared_expert_intermediate_size"}},
        .shared_gate = 1,
        .bias_key = "qkv_bias",
        .bias_default = 1,
        .biases = SY_BIAS_QKV,
        .pattern = {LLAMA_TENSORS, QKV_BIASES, MLP_TENSORS, DENSE_TENSORS,
                    SHARED_TENSORS("mlp.shared_expert"),
                    [SY_ROLE_SHARED_MIX] = L "mlp.shared_expert_gate.weight"},
    },
    {
        .name = "qwen3_moe",
        .architecture = {"Qwen3MoeForCausalLM"},
        QWEN_KEYS,
        .qk_norm = SY_QK_NORM_HEAD,
        .pattern = {LLAMA_TENSORS, QK_NORM_TENSORS, MLP_TENSORS, DENSE_TENSORS},
    },
    {
        .name = "deepseek_v2",
        .architecture = {"DeepseekV2ForCausalLM"},
        .reads = SY_READS_MLA | SY_READS_SCALE | SY_READS_GROUPS,
        DEEPSEEK_KEYS,
        .topk_method = "group_limited_greedy",
        .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f, .group_best = 1},
        .rope_interleaved = 1,
        .rms_eps = 1e-6f,
        .rope_theta = 1e4f,
        .pattern = {MLA_TENSORS, MLP_TENSORS, DENSE_TENSORS, SHARED_TENSORS("mlp.shared_experts")},
    },
    {.name = "deepseek_v3", DEEPSEEK_V3},
    {.name = "kimi_k2", DEEPSEEK_V3},
    {
        .name = "granitemoe",
        .architecture = {"GraniteMoeForCausalLM"},
        .reads = SY_READS_FACTORS,
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .slabs = SY_SLAB_ROWS,
        .gate = {.score = SY_GATE_SOFTMAX_CHOSEN, .scale = 1.0f},
        .rms_eps = 1e-6f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, [SY_ROLE_GATE] = L "block_sparse_moe.router.layer.weight",
                    [SY_ROLE_EXPERT_GATE] = L "block_sparse_moe.input_linear.weight",
                    [SY_ROLE_EXPERT_UP] = L "block_sparse_moe.input_linear.weight",
                    [SY_ROLE_EXPERT_DOWN] = L "block_sparse_moe.output_linear.weight"},
    },
    {
        .name = "phimoe",
        .architecture = {"PhiMoEForCausalLM", "PhimoeForCausalLM"},
        .reads = SY_READS_BIAS | SY_READS_HEAD_BIAS | SY_READS_JITTER,
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .window = SY_WINDOW_ALL,
        .norm = SY_NORM_LAYER,
        .bias_key = "attention_bias",
        .biases = SY_BIAS_QKV | SY_BIAS_O,
        .gate = {.score = SY_GATE_SPARSEMIXER, .scale = 1.0f, .sparse_epsilon = 0.01f},
        .rms_eps = 1e-5f,
        .rope_theta = 1e6f,
        .pattern =
            {LLAMA_TENSORS, QKV_BIASES,
             MIXTRAL_TENSORS, [SY_ROLE_O_BIAS] = L "self_attn.o_proj.bias",
             [SY_ROLE_NORM1_BIAS] = L "input_layernorm.bias",
             [SY_ROLE_NORM2_BIAS] = L "post_attention_layernorm.bias",
             [SY_ROLE_FINAL_NORM_BIAS] = "model.norm.bias", [SY_ROLE_HEAD_BIAS] = "lm_head.bias"},
    },
    {
        .name = "gpt_oss",
        .architecture = {"GptOssForCausalLM"},
        .reads = SY_READS_BIAS,
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok", "experts_per_token"}},
        .expert_ffn = {{"intermediate_size"}},
        .window = SY_WINDOW_TYPES,
        .slabs = SY_SLAB_INTERLEAVED,
        .mlp = SY_MLP_CLAMPED,
        .bias_key = "attention_bias",
        .bias_default = 1,
        .biases = SY_BIAS_QKV | SY_BIAS_O,
        .gate = {.score = SY_GATE_SOFTMAX_CHOSEN, .scale = 1.0f},
        .rms_eps = 1e-5f,
        .rope_theta = 150000.0f,
        .pattern = {LLAMA_TENSORS, QKV_BIASES, [SY_ROLE_O_BIAS] = L "self_attn.o_proj.bias",
                    [SY_ROLE_SINKS] = L "self_attn.sinks", [SY_ROLE_GATE] = L "mlp.router.weight",
                    [SY_ROLE_GATE_LOGIT_BIAS] = L "mlp.router.bias",
                    [SY_ROLE_EXPERT_GATE] = L "mlp.experts.gate_up_proj",
                    [SY_ROLE_EXPERT_UP] = L "mlp.experts.gate_up_proj",
                    [SY_ROLE_EXPERT_DOWN] = L "mlp.experts.down_proj",
                    [SY_ROLE_EXPERT_GATE_BIAS] = L "mlp.experts.gate_up_proj_bias",
                    [SY_ROLE_EXPERT_UP_BIAS] = L "mlp.experts.gate_up_proj_bias",
                    [SY_ROLE_EXPERT_DOWN_BIAS] = L "mlp.experts.down_proj_bias"},
    },
    {
        .name = "glm4_moe",
        .architecture = {"Glm4MoeForCausalLM"},
        .reads = SY_READS_BIAS | SY_READS_SCALE | SY_READS_GROUPS | SY_READS_MTP | SY_READS_PART,
        DEEPSEEK_KEYS,
        .qk_norm = SY_QK_NORM_HEAD,
        .qk_norm_key = "use_qk_norm",
        .qk_norm_off = 1,
        .bias_key = "attention_bias",
        .biases = SY_BIAS_QKV,
        .renormalise_key = "norm_topk_prob",
        .renormalise = 1,
        .topk_method = "noaux_tc",
        .gate = {.score = SY_GATE_SIGMOID, .scale = 1.0f, .norm_epsilon = 1e-20f, .group_best = 2},
        .rms_eps = 1e-5f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, QKV_BIASES, QK_NORM_TENSORS, MLP_TENSORS, DENSE_TENSORS,
                    SHARED_TENSORS("mlp.shared_experts"),
                    [SY_ROLE_GATE_BIAS] = L "mlp.gate.e_score_correction_bias"},
    },
    {.name = "llama4_text", .architecture = {"Llama4ForCausalLM"}, LLAMA4},
    {.name = "llama4",
     .architecture = {"Llama4ForConditionalGeneration"},
     .text_key = "text_config",
     .prefix = "language_model.",
     LLAMA4},
    {
        .name = "ernie4_5_moe",
        .architecture = {"Ernie4_5_MoeForCausalLM"},
        .reads = SY_READS_MTP,
        .experts = {{"moe_num_experts"}},
        .top_k = {{"moe_k"}},
        .expert_ffn = {{"moe_intermediate_size"}},
        .dense = SY_DENSE_RANGE,
        .dense_ffn = {{"intermediate_size"}},
        .shared = SY_SHARED_COUNT,
        .shared_key = {{"moe_num_shared_experts"}},
        .renormalise = 1,
        .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f, .norm_min = 1e-12f},
        .rope_interleaved = 1,
        .tied_head = 1,
        .rms_eps = 1e-5f,
        .rope_theta = 5e5f,
        .pattern = {LLAMA_TENSORS, MLP_TENSORS, DENSE_TENSORS, SHARED_TENSORS("mlp.shared_experts"),
                    [SY_ROLE_GATE_BIAS] = L "mlp.moe_statics.e_score_correction_bias"},
    },
    {
        .name = "hunyuan_v1_moe",
        .architecture = {"HunYuanMoEV1ForCausalLM"},
        .experts = {{"num_experts"}},
        .top_k = {{"moe_topk"}},
        .lists_numbers = 1,
        .expert_ffn = {{"intermediate_size"}},
        .shared = SY_SHARED_ALWAYS,
        .shared_key = {{"num_shared_expert"}},
        .qk_norm = SY_QK_NORM_ROTATED,
        .qk_norm_key = "use_qk_norm",
        .renormalise = 1,
        .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f},
        .rms_eps = 1e-5f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, MLP_EXPERTS,
                    SHARED_TENSORS("mlp.shared_mlp"), [SY_ROLE_GATE] = L "mlp.gate.wg.weight",
                    [SY_ROLE_Q_NORM] = L "self_attn.query_layernorm.weight",
                    [SY_ROLE_K_NORM] = L "self_attn.key_layernorm.weight"},
    },
    {
        .name = "minimax_m2",
        .architecture = {"MiniMaxM2ForCausalLM"},
        .reads = SY_READS_PART | SY_READS_MTP,
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise = 1,
        .qk_norm = SY_QK_NORM_WHOLE,
        .gate = {.score = SY_GATE_SIGMOID, .scale = 1.0f},
        .rms_eps = 1e-6f,
        .rope_theta = 5e6f,
        .pattern =
            {LLAMA_TENSORS, QK_NORM_TENSORS,
             MIXTRAL_TENSORS, [SY_ROLE_GATE_BIAS] = L "block_sparse_moe.e_score_correction_bias"},
    },
};
/* NOLINTEND(bugprone-suspicious-missing-comma) */

size_t sy_model_family_count(void)
{
    return SY_COUNT_OF(families);
}

const char *sy_model_family_at(size_t i)
{
    return i < SY_COUNT_OF(families) ? families[i].name : NULL;
}

const sy_family *sy_family_row(size_t i)
{
    return &families[i];
}

const sy_family *sy_family_find(const char *name)
{
    for (size_t i = 0; i < SY_COUNT_OF(families); i++) {
        if (strcmp(families[i].name, name) == 0) return &families[i];
    }
    return NULL;
}

/* out: [cap], cap >= 1. SY_ELIMIT: the name does not fit; out is empty then. */
static sy_status expand(char *out, size_t cap, const char *prefix, const char *pattern,
                        uint32_t layer, uint32_t expert)
{
    size_t len = SY_MIN(strlen(prefix), cap);

    memcpy(out, prefix, len);
    for (const char *p = pattern; *p != '\0' && len < cap;) {
        if (p[0] == '{' && (p[1] == 'l' || p[1] == 'e') && p[2] == '}') {
            const uint32_t index = p[1] == 'l' ? layer : expert;
            const int n = snprintf(out + len, cap - len, "%" PRIu32, index);

            len += n > 0 ? (size_t)n : cap;
            p += 3;
        } else {
            out[len++] = *p++;
        }
    }
    if (len >= cap) {
        out[0] = '\0';
        return SY_ELIMIT;
    }
    out[len] = '\0';
    return SY_OK;
}

sy_status sy_model_tensor_name(char *out, size_t cap, const char *family, sy_role role,
                               uint32_t layer, uint32_t expert)
{
    const sy_family *row = sy_family_find(family);

    if (cap == 0) return SY_ELIMIT;
    out[0] = '\0';
    if (row == NULL || (size_t)role >= SY_N_ROLES || row->pattern[role] == NULL) return SY_EINVAL;
    return expand(out, cap, row->prefix == NULL ? "" : row->prefix, row->pattern[role], layer,
                  expert);
}

int sy_role_is_of_expert(sy_role role)
{
    return role >= SY_ROLE_EXPERT_GATE && role < SY_N_ROLES;
}

int sy_role_is_of_layer(sy_role role)
{
    return role >= SY_ROLE_NORM1 && role < SY_N_ROLES;
}

int sy_role_is_encoded(sy_role role)
{
    return (role >= SY_ROLE_Q && role <= SY_ROLE_O) || role == SY_ROLE_Q_A || role == SY_ROLE_Q_B ||
           role == SY_ROLE_KV_A || role == SY_ROLE_KV_B ||
           (role >= SY_ROLE_DENSE_GATE && role <= SY_ROLE_SHARED_DOWN) ||
           (role >= SY_ROLE_EXPERT_GATE && role <= SY_ROLE_EXPERT_DOWN);
}

/* Roles that a description switches on or off, in any layer. */
static int is_switched_on(const sy_model_desc *desc, sy_role role)
{
    const sy_mla_desc *mla = &desc->mla;

    switch (role) {
    case SY_ROLE_HEAD: return !desc->tied_head;
    case SY_ROLE_HEAD_BIAS: return (desc->biases & SY_BIAS_HEAD) != 0;
    case SY_ROLE_Q: return mla->kv_rank == 0 || mla->q_rank == 0;
    case SY_ROLE_Q_A:
    case SY_ROLE_Q_A_NORM:
    case SY_ROLE_Q_B: return mla->q_rank > 0;
    case SY_ROLE_Q_BIAS:
    case SY_ROLE_K_BIAS:
    case SY_ROLE_V_BIAS: return (desc->biases & SY_BIAS_QKV) != 0;
    case SY_ROLE_O_BIAS: return (desc->biases & SY_BIAS_O) != 0;
    case SY_ROLE_Q_NORM:
    case SY_ROLE_K_NORM: return desc->qk_norm != SY_QK_NORM_NONE;
    case SY_ROLE_SHARED_GATE:
    case SY_ROLE_SHARED_UP:
    case SY_ROLE_SHARED_DOWN: return desc->shared_ffn > 0;
    case SY_ROLE_SHARED_MIX: return desc->shared_ffn > 0 && desc->shared_gate;
    default: return 1;
    }
}

int sy_role_exists(const sy_model_desc *desc, sy_role role, uint32_t layer)
{
    const sy_family *row = sy_family_find(desc->family);
    const int is_dense_role = role >= SY_ROLE_DENSE_GATE && role <= SY_ROLE_DENSE_DOWN;

    if (row == NULL || (size_t)role >= SY_N_ROLES || row->pattern[role] == NULL) return 0;
    if (!is_switched_on(desc, role)) return 0;
    if (role < SY_ROLE_DENSE_GATE) return 1;
    return is_dense_role != sy_model_has_experts(desc, layer);
}

uint32_t sy_role_shape(uint64_t shape[2], const sy_model_desc *desc, sy_role role)
{
    const uint64_t hidden = desc->hidden, kv_rank = desc->mla.kv_rank, q_rank = desc->mla.q_rank;
    const uint64_t q_width = (uint64_t)desc->n_heads * desc->head_dim;
    const uint64_t kv_width = (uint64_t)desc->n_kv_heads * desc->head_dim;
    const uint64_t o_width = kv_rank > 0 ? (uint64_t)desc->n_heads * desc->mla.value_dim : q_width;
    const int per_head = desc->qk_norm != SY_QK_NORM_WHOLE;
    uint64_t rows = 0;
    uint64_t columns = 0; /* 0: a vector */

    switch (role) {
    case SY_ROLE_EMBED:
    case SY_ROLE_HEAD: rows = desc->vocab, columns = hidden; break;
    case SY_ROLE_HEAD_BIAS: rows = desc->vocab; break;
    case SY_ROLE_FINAL_NORM:
    case SY_ROLE_FINAL_NORM_BIAS:
    case SY_ROLE_NORM1:
    case SY_ROLE_NORM1_BIAS:
    case SY_ROLE_NORM2:
    case SY_ROLE_NORM2_BIAS:
    case SY_ROLE_O_BIAS:
    case SY_ROLE_EXPERT_DOWN_BIAS: rows = hidden; break;
    case SY_ROLE_Q: rows = q_width, columns = hidden; break;
    case SY_ROLE_K:
    case SY_ROLE_V: rows = kv_width, columns = hidden; break;
    case SY_ROLE_O: rows = hidden, columns = o_width; break;
    case SY_ROLE_Q_BIAS: rows = q_width; break;
    case SY_ROLE_K_BIAS:
    case SY_ROLE_V_BIAS: rows = kv_width; break;
    case SY_ROLE_Q_NORM: rows = per_head ? desc->head_dim : q_width; break;
    case SY_ROLE_K_NORM: rows = per_head ? desc->head_dim : kv_width; break;
    case SY_ROLE_SINKS: rows = desc->n_heads; break;
    case SY_ROLE_Q_A: rows = q_rank, columns = hidden; break;
    case SY_ROLE_Q_A_NORM: rows = q_rank; break;
    case SY_ROLE_Q_B: rows = q_width, columns = q_rank; break;
    case SY_ROLE_KV_A: rows = kv_rank + desc->rotary_dim, columns = hidden; break;
    case SY_ROLE_KV_A_NORM: rows = kv_rank; break;
    case SY_ROLE_KV_B:
        rows = (uint64_t)desc->n_heads * (desc->mla.nope_dim + desc->mla.value_dim);
        columns = kv_rank;
        break;
    case SY_ROLE_DENSE_GATE:
    case SY_ROLE_DENSE_UP: rows = desc->dense_ffn, columns = hidden; break;
    case SY_ROLE_DENSE_DOWN: rows = hidden, columns = desc->dense_ffn; break;
    case SY_ROLE_SHARED_GATE:
    case SY_ROLE_SHARED_UP: rows = desc->shared_ffn, columns = hidden; break;
    case SY_ROLE_SHARED_DOWN: rows = hidden, columns = desc->shared_ffn; break;
    case SY_ROLE_SHARED_MIX: rows = 1, columns = hidden; break;
    case SY_ROLE_GATE: rows = desc->n_experts, columns = hidden; break;
    case SY_ROLE_GATE_BIAS:
    case SY_ROLE_GATE_LOGIT_BIAS: rows = desc->n_experts; break;
    case SY_ROLE_EXPERT_GATE:
    case SY_ROLE_EXPERT_UP: rows = desc->expert_ffn, columns = hidden; break;
    case SY_ROLE_EXPERT_DOWN: rows = hidden, columns = desc->expert_ffn; break;
    case SY_ROLE_EXPERT_GATE_BIAS:
    case SY_ROLE_EXPERT_UP_BIAS: rows = desc->expert_ffn; break;
    case SY_N_ROLES: break;
    }
    shape[0] = rows;
    shape[1] = columns;
    return columns > 0 ? 2 : 1;
}

typedef struct walk {
    const sy_model_desc *desc;
    const sy_family *row;
    sy_status (*fn)(void *arg, const sy_tensor_spec *spec);
    void *arg;
    sy_tensor_spec spec;
} walk;

static sy_status hand_out(walk *w, int32_t layer, int32_t expert)
{
    sy_tensor_spec *spec = &w->spec;
    sy_status st;

    spec->layer = layer;
    spec->expert = expert;
    st = expand(spec->name, sizeof(spec->name), w->desc->prefix, w->row->pattern[spec->role],
                (uint32_t)SY_MAX(layer, 0), (uint32_t)SY_MAX(expert, 0));
    return st == SY_OK ? w->fn(w->arg, spec) : st;
}

static sy_status visit(walk *w, sy_role role, int32_t layer, int32_t expert)
{
    if (!sy_role_exists(w->desc, role, (uint32_t)SY_MAX(layer, 0))) return SY_OK;
    w->spec.role = role;
    w->spec.is_slab = 0;
    w->spec.rank = sy_role_shape(w->spec.shape, w->desc, role);
    return hand_out(w, layer, expert);
}

/* Of all experts of a layer; gate and up are one. */
static sy_status visit_slab(walk *w, sy_role role, int32_t layer)
{
    sy_tensor_spec *spec = &w->spec;
    const uint64_t parts = role == SY_ROLE_EXPERT_GATE || role == SY_ROLE_EXPERT_GATE_BIAS ? 2 : 1;
    uint64_t shape[2];

    if (!sy_role_exists(w->desc, role, (uint32_t)layer)) return SY_OK;
    spec->role = role;
    spec->is_slab = 1;
    spec->rank = 1 + sy_role_shape(shape, w->desc, role);
    spec->shape[0] = w->desc->n_experts;
    if (spec->rank == 2 || w->row->slabs == SY_SLAB_ROWS) {
        spec->shape[1] = parts * shape[0];
        spec->shape[2] = shape[1];
    } else {
        spec->shape[1] = shape[1];
        spec->shape[2] = parts * shape[0];
    }
    return hand_out(w, layer, -1);
}

static sy_status visit_layer(walk *w, int32_t layer)
{
    static const sy_role slabs[] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_DOWN,
                                    SY_ROLE_EXPERT_GATE_BIAS, SY_ROLE_EXPERT_DOWN_BIAS};
    sy_status st = SY_OK;

    for (int role = SY_ROLE_NORM1; role < SY_ROLE_EXPERT_GATE; role++) {
        SY_TRY(visit(w, (sy_role)role, layer, -1));
    }
    if (w->row->slabs != SY_SLAB_NONE) {
        for (size_t i = 0; i < SY_COUNT_OF(slabs); i++) SY_TRY(visit_slab(w, slabs[i], layer));
        return SY_OK;
    }
    if (!sy_model_has_experts(w->desc, (uint32_t)layer)) return SY_OK;
    for (uint32_t expert = 0; expert < w->desc->n_experts; expert++) {
        for (int role = SY_ROLE_EXPERT_GATE; role < SY_N_ROLES; role++) {
            SY_TRY(visit(w, (sy_role)role, layer, (int32_t)expert));
        }
    }
out:
    return st;
}

sy_status sy_model_each_tensor(const sy_model_desc *desc,
                               sy_status (*fn)(void *arg, const sy_tensor_spec *spec), void *arg)
{
    walk w = {.desc = desc, .row = sy_family_find(desc->family), .fn = fn, .arg = arg};
    sy_status st;

    if (w.row == NULL) return SY_EINVAL;
    SY_TRY(visit(&w, SY_ROLE_EMBED, -1, -1));
    for (uint32_t layer = 0; layer < desc->n_layers; layer++) {
        SY_TRY(visit_layer(&w, (int32_t)layer));
    }
    SY_TRY(visit(&w, SY_ROLE_FINAL_NORM, -1, -1));
    SY_TRY(visit(&w, SY_ROLE_FINAL_NORM_BIAS, -1, -1));
    SY_TRY(visit(&w, SY_ROLE_HEAD, -1, -1));
    st = visit(&w, SY_ROLE_HEAD_BIAS, -1, -1);
out:
    return st;
}
