/* sy_family.c - the table of families. A new family whose arithmetic the rest already knows is one
 * row here. */
#include "sy_family.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Names that all of Llama's descendants share. */
#define LLAMA_TENSORS                                                                          \
    [SY_ROLE_EMBED] = "model.embed_tokens.weight", [SY_ROLE_FINAL_NORM] = "model.norm.weight", \
    [SY_ROLE_HEAD] = "lm_head.weight",                                                         \
    [SY_ROLE_NORM1] = "model.layers.{l}.input_layernorm.weight",                               \
    [SY_ROLE_NORM2] = "model.layers.{l}.post_attention_layernorm.weight",                      \
    [SY_ROLE_Q] = "model.layers.{l}.self_attn.q_proj.weight",                                  \
    [SY_ROLE_K] = "model.layers.{l}.self_attn.k_proj.weight",                                  \
    [SY_ROLE_V] = "model.layers.{l}.self_attn.v_proj.weight",                                  \
    [SY_ROLE_O] = "model.layers.{l}.self_attn.o_proj.weight"

#define QK_NORM_TENSORS                                            \
    [SY_ROLE_Q_NORM] = "model.layers.{l}.self_attn.q_norm.weight", \
    [SY_ROLE_K_NORM] = "model.layers.{l}.self_attn.k_norm.weight"

#define MIXTRAL_TENSORS                                                                \
    [SY_ROLE_GATE] = "model.layers.{l}.block_sparse_moe.gate.weight",                  \
    [SY_ROLE_EXPERT_GATE] = "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight", \
    [SY_ROLE_EXPERT_UP] = "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight",   \
    [SY_ROLE_EXPERT_DOWN] = "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight"

/* Gate and experts of OLMoE, Qwen and others. */
#define MLP_TENSORS                                                              \
    [SY_ROLE_GATE] = "model.layers.{l}.mlp.gate.weight",                         \
    [SY_ROLE_EXPERT_GATE] = "model.layers.{l}.mlp.experts.{e}.gate_proj.weight", \
    [SY_ROLE_EXPERT_UP] = "model.layers.{l}.mlp.experts.{e}.up_proj.weight",     \
    [SY_ROLE_EXPERT_DOWN] = "model.layers.{l}.mlp.experts.{e}.down_proj.weight"

static const sy_family families[] = {
    {
        .name = "mixtral",
        .architecture = "MixtralForCausalLM",
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise = 1,
        .has_sliding_window = 1,
        .score = SY_GATE_SOFTMAX,
        .gate_scale = 1.0f,
        .rms_eps = 1e-5f,
        .rope_theta = 1e6f,
        .pattern = {LLAMA_TENSORS, MIXTRAL_TENSORS},
    },
    {
        .name = "olmoe",
        .architecture = "OlmoeForCausalLM",
        .experts = {{"num_experts", "num_local_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise_key = "norm_topk_prob",
        .qkv_clip_key = "clip_qkv",
        .qk_norm = 1,
        .score = SY_GATE_SOFTMAX,
        .gate_scale = 1.0f,
        .rms_eps = 1e-5f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, QK_NORM_TENSORS, MLP_TENSORS},
    },
    {
        .name = "qwen3_moe",
        .architecture = "Qwen3MoeForCausalLM",
        .experts = {{"num_experts", "num_local_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"moe_intermediate_size"}},
        .renormalise_key = "norm_topk_prob",
        .qk_norm = 2,
        .score = SY_GATE_SOFTMAX,
        .gate_scale = 1.0f,
        .rms_eps = 1e-6f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS, QK_NORM_TENSORS, MLP_TENSORS},
    },
    {
        .name = "granitemoe",
        .architecture = "GraniteMoeForCausalLM",
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .has_multipliers = 1,
        .fused_experts = 1,
        .score = SY_GATE_SOFTMAX_CHOSEN,
        .gate_scale = 1.0f,
        .rms_eps = 1e-6f,
        .rope_theta = 1e4f,
        .pattern = {LLAMA_TENSORS,
                    [SY_ROLE_GATE] = "model.layers.{l}.block_sparse_moe.router.layer.weight",
                    [SY_ROLE_EXPERT_GATE] = "model.layers.{l}.block_sparse_moe.input_linear.weight",
                    [SY_ROLE_EXPERT_UP] = "model.layers.{l}.block_sparse_moe.input_linear.weight",
                    [SY_ROLE_EXPERT_DOWN] =
                        "model.layers.{l}.block_sparse_moe.output_linear.weight"},
    },
    {
        .name = "minimax_m2",
        .architecture = "MiniMaxM2ForCausalLM",
        .experts = {{"num_local_experts", "num_experts"}},
        .top_k = {{"num_experts_per_tok"}},
        .expert_ffn = {{"intermediate_size"}},
        .renormalise = 1,
        .rotates_part = 1,
        .qk_norm = 1,
        .score = SY_GATE_SIGMOID,
        .gate_scale = 1.0f,
        .rms_eps = 1e-6f,
        .rope_theta = 5e6f,
        .pattern = {LLAMA_TENSORS, QK_NORM_TENSORS, MIXTRAL_TENSORS,
                    [SY_ROLE_GATE_BIAS] =
                        "model.layers.{l}.block_sparse_moe.e_score_correction_bias"},
    },
};

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
static sy_status expand(char *out, size_t cap, const char *pattern, uint32_t layer, uint32_t expert)
{
    size_t len = 0;

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
    return expand(out, cap, row->pattern[role], layer, expert);
}

int sy_role_is_of_expert(sy_role role)
{
    return role >= SY_ROLE_EXPERT_GATE && role <= SY_ROLE_EXPERT_DOWN;
}

int sy_role_is_of_layer(sy_role role)
{
    return role >= SY_ROLE_NORM1 && role <= SY_ROLE_EXPERT_DOWN;
}

int sy_role_exists(const sy_model_desc *desc, sy_role role)
{
    const sy_family *row = sy_family_find(desc->family);

    if (row == NULL || (size_t)role >= SY_N_ROLES || row->pattern[role] == NULL) return 0;
    return role != SY_ROLE_HEAD || !desc->tied_head;
}

uint32_t sy_role_shape(uint64_t shape[2], const sy_model_desc *desc, sy_role role)
{
    const uint64_t hidden = desc->hidden;
    const uint64_t q_width = (uint64_t)desc->n_heads * desc->head_dim;
    const uint64_t kv_width = (uint64_t)desc->n_kv_heads * desc->head_dim;
    uint64_t rows = 0;
    uint64_t columns = 0; /* 0: a vector */

    switch (role) {
    case SY_ROLE_EMBED:
    case SY_ROLE_HEAD: rows = desc->vocab, columns = hidden; break;
    case SY_ROLE_FINAL_NORM:
    case SY_ROLE_NORM1:
    case SY_ROLE_NORM2: rows = hidden; break;
    case SY_ROLE_Q: rows = q_width, columns = hidden; break;
    case SY_ROLE_K:
    case SY_ROLE_V: rows = kv_width, columns = hidden; break;
    case SY_ROLE_O: rows = hidden, columns = q_width; break;
    case SY_ROLE_Q_NORM: rows = desc->qk_norm == 2 ? desc->head_dim : q_width; break;
    case SY_ROLE_K_NORM: rows = desc->qk_norm == 2 ? desc->head_dim : kv_width; break;
    case SY_ROLE_GATE: rows = desc->n_experts, columns = hidden; break;
    case SY_ROLE_GATE_BIAS: rows = desc->n_experts; break;
    case SY_ROLE_EXPERT_GATE:
    case SY_ROLE_EXPERT_UP: rows = desc->expert_ffn, columns = hidden; break;
    case SY_ROLE_EXPERT_DOWN: rows = hidden, columns = desc->expert_ffn; break;
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

static sy_status visit(walk *w, sy_role role, int32_t layer, int32_t expert)
{
    sy_tensor_spec *spec = &w->spec;
    sy_status st;

    if (!sy_role_exists(w->desc, role)) return SY_OK;
    spec->role = role;
    spec->layer = layer;
    spec->expert = expert;
    spec->rank = sy_role_shape(spec->shape, w->desc, role);
    st = expand(spec->name, sizeof(spec->name), w->row->pattern[role], (uint32_t)SY_MAX(layer, 0),
                (uint32_t)SY_MAX(expert, 0));
    return st == SY_OK ? w->fn(w->arg, spec) : st;
}

/* The slabs of all experts of a layer. */
static sy_status visit_slabs(walk *w, sy_role role, int32_t layer)
{
    sy_tensor_spec *spec = &w->spec;
    uint64_t shape[2];
    sy_status st;

    sy_role_shape(shape, w->desc, role);
    *spec = (sy_tensor_spec){.role = role, .layer = layer, .expert = -1, .rank = 3};
    spec->shape[0] = w->desc->n_experts;
    spec->shape[1] = role == SY_ROLE_EXPERT_GATE ? 2 * shape[0] : shape[0];
    spec->shape[2] = shape[1];
    st = expand(spec->name, sizeof(spec->name), w->row->pattern[role], (uint32_t)layer, 0);
    return st == SY_OK ? w->fn(w->arg, spec) : st;
}

static sy_status visit_layer(walk *w, int32_t layer)
{
    sy_status st = SY_OK;

    for (int role = SY_ROLE_NORM1; role < SY_ROLE_EXPERT_GATE; role++) {
        SY_TRY(visit(w, (sy_role)role, layer, -1));
    }
    if (w->row->fused_experts) {
        SY_TRY(visit_slabs(w, SY_ROLE_EXPERT_GATE, layer));
        return visit_slabs(w, SY_ROLE_EXPERT_DOWN, layer);
    }
    for (uint32_t expert = 0; expert < w->desc->n_experts; expert++) {
        for (int role = SY_ROLE_EXPERT_GATE; role <= SY_ROLE_EXPERT_DOWN; role++) {
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
    st = visit(&w, SY_ROLE_HEAD, -1, -1);
out:
    return st;
}
