/* gguf_family.h - the synthetic checkpoints of synth_model.h as llama.cpp's converter makes GGUF
 * files of them (sy_gguf_map.h says what it rearranges): metadata as it writes them, and each
 * tensor from the bytes of the checkpoint's, element by element. */
#ifndef GGUF_FAMILY_H
#define GGUF_FAMILY_H

#include "gguf_files.h"
#include "sy_model.h"
#include "synth_model.h"

/* Where element [m, r, c] of a tensor stands in Hugging Face's. */
typedef enum family_move {
    MOVE_NOTHING,
    MOVE_Q_HEADS, /* rows i and i + half of a head become neighbours */
    MOVE_K_HEADS,
    MOVE_STACK,   /* of tensor m: the name has a %u for it */
    MOVE_FIRST,   /* of each slab, the first half of its rows */
    MOVE_SECOND,  /* the other half */
    MOVE_EVEN,    /* transposed, and every second column from the first on */
    MOVE_ODD,     /* from the second */
    MOVE_TURN,    /* transposed */
    MOVE_KEYS,    /* of each head's rows, transposed: the first */
    MOVE_VALUES,  /* and the others */
    MOVE_MX,      /* blocks of e2m1 with their scales: nibbles in another order */
    MOVE_MX_EVEN, /* and of every second row */
    MOVE_MX_ODD
} family_move;

typedef struct family_tensor {
    const char *here, *there; /* with %u where a layer's number stands; none: of no layer */
    family_move move;
} family_tensor;

typedef struct family_key {
    const char *name; /* without the architecture */
    sy_gguf_kind kind;
    double number;
} family_key;

typedef struct family_file {
    const char *family, *architecture;
    const family_key *keys;
    const family_tensor *tensors;
    uint32_t n_layers, n_heads, n_kv_heads, nope_dim, value_dim;
} family_file;

#define BLK "blk.%u."
#define HF  "model.layers.%u."
#define HF_ATTENTION                                                         \
    {BLK "attn_norm.weight", HF "input_layernorm.weight", MOVE_NOTHING},     \
        {BLK "attn_v.weight", HF "self_attn.v_proj.weight", MOVE_NOTHING},   \
    {                                                                        \
        BLK "attn_output.weight", HF "self_attn.o_proj.weight", MOVE_NOTHING \
    }
#define HF_OUTER                                                      \
    {"token_embd.weight", "model.embed_tokens.weight", MOVE_NOTHING}, \
        {"output_norm.weight", "model.norm.weight", MOVE_NOTHING},    \
        {"output.weight", "lm_head.weight", MOVE_NOTHING},            \
    {                                                                 \
        NULL, NULL, MOVE_NOTHING                                      \
    }
#define U(name, number)                \
    {                                  \
        name, SY_GGUF_KIND_U32, number \
    }
#define F(name, number)                \
    {                                  \
        name, SY_GGUF_KIND_F32, number \
    }
#define END_OF_KEYS               \
    {                             \
        NULL, SY_GGUF_KIND_U32, 0 \
    }
#define YARN(original)                                                                         \
    U("rope.scaling.original_context_length", original), F("rope.scaling.yarn_beta_fast", 32), \
        F("rope.scaling.yarn_beta_slow", 1)

static const family_tensor mixtral_tensors[] = {
    HF_ATTENTION,
    {BLK "attn_q.weight", HF "self_attn.q_proj.weight", MOVE_Q_HEADS},
    {BLK "attn_k.weight", HF "self_attn.k_proj.weight", MOVE_K_HEADS},
    {BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.weight", HF "block_sparse_moe.gate.weight", MOVE_NOTHING},
    {BLK "ffn_gate_exps.weight", HF "block_sparse_moe.experts.%u.w1.weight", MOVE_STACK},
    {BLK "ffn_down_exps.weight", HF "block_sparse_moe.experts.%u.w2.weight", MOVE_STACK},
    {BLK "ffn_up_exps.weight", HF "block_sparse_moe.experts.%u.w3.weight", MOVE_STACK},
    HF_OUTER,
};

static const family_tensor qwen3_tensors[] = {
    HF_ATTENTION,
    {BLK "attn_q.weight", HF "self_attn.q_proj.weight", MOVE_NOTHING},
    {BLK "attn_k.weight", HF "self_attn.k_proj.weight", MOVE_NOTHING},
    {BLK "attn_q_norm.weight", HF "self_attn.q_norm.weight", MOVE_NOTHING},
    {BLK "attn_k_norm.weight", HF "self_attn.k_norm.weight", MOVE_NOTHING},
    {BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.weight", HF "mlp.gate.weight", MOVE_NOTHING},
    {BLK "ffn_gate_exps.weight", HF "mlp.experts.%u.gate_proj.weight", MOVE_STACK},
    {BLK "ffn_down_exps.weight", HF "mlp.experts.%u.down_proj.weight", MOVE_STACK},
    {BLK "ffn_up_exps.weight", HF "mlp.experts.%u.up_proj.weight", MOVE_STACK},
    HF_OUTER,
};

static const family_tensor deepseek_tensors[] = {
    {BLK "attn_norm.weight", HF "input_layernorm.weight", MOVE_NOTHING},
    {BLK "attn_q_a.weight", HF "self_attn.q_a_proj.weight", MOVE_NOTHING},
    {BLK "attn_q_a_norm.weight", HF "self_attn.q_a_layernorm.weight", MOVE_NOTHING},
    {BLK "attn_q_b.weight", HF "self_attn.q_b_proj.weight", MOVE_NOTHING},
    {BLK "attn_kv_a_mqa.weight", HF "self_attn.kv_a_proj_with_mqa.weight", MOVE_NOTHING},
    {BLK "attn_kv_a_norm.weight", HF "self_attn.kv_a_layernorm.weight", MOVE_NOTHING},
    {BLK "attn_k_b.weight", HF "self_attn.kv_b_proj.weight", MOVE_KEYS},
    {BLK "attn_v_b.weight", HF "self_attn.kv_b_proj.weight", MOVE_VALUES},
    {BLK "attn_output.weight", HF "self_attn.o_proj.weight", MOVE_NOTHING},
    {BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", MOVE_NOTHING},
    {BLK "ffn_gate.weight", HF "mlp.gate_proj.weight", MOVE_NOTHING},
    {BLK "ffn_down.weight", HF "mlp.down_proj.weight", MOVE_NOTHING},
    {BLK "ffn_up.weight", HF "mlp.up_proj.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.weight", HF "mlp.gate.weight", MOVE_NOTHING},
    {BLK "exp_probs_b.bias", HF "mlp.gate.e_score_correction_bias", MOVE_NOTHING},
    {BLK "ffn_gate_exps.weight", HF "mlp.experts.%u.gate_proj.weight", MOVE_STACK},
    {BLK "ffn_down_exps.weight", HF "mlp.experts.%u.down_proj.weight", MOVE_STACK},
    {BLK "ffn_up_exps.weight", HF "mlp.experts.%u.up_proj.weight", MOVE_STACK},
    {BLK "ffn_gate_shexp.weight", HF "mlp.shared_experts.gate_proj.weight", MOVE_NOTHING},
    {BLK "ffn_down_shexp.weight", HF "mlp.shared_experts.down_proj.weight", MOVE_NOTHING},
    {BLK "ffn_up_shexp.weight", HF "mlp.shared_experts.up_proj.weight", MOVE_NOTHING},
    HF_OUTER,
};

static const family_tensor granite_tensors[] = {
    HF_ATTENTION,
    {BLK "attn_q.weight", HF "self_attn.q_proj.weight", MOVE_Q_HEADS},
    {BLK "attn_k.weight", HF "self_attn.k_proj.weight", MOVE_K_HEADS},
    {BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.weight", HF "block_sparse_moe.router.layer.weight", MOVE_NOTHING},
    {BLK "ffn_gate_exps.weight", HF "block_sparse_moe.input_linear.weight", MOVE_FIRST},
    {BLK "ffn_up_exps.weight", HF "block_sparse_moe.input_linear.weight", MOVE_SECOND},
    {BLK "ffn_down_exps.weight", HF "block_sparse_moe.output_linear.weight", MOVE_NOTHING},
    HF_OUTER,
};

static const family_tensor gpt_oss_tensors[] = {
    HF_ATTENTION,
    {BLK "attn_q.weight", HF "self_attn.q_proj.weight", MOVE_NOTHING},
    {BLK "attn_k.weight", HF "self_attn.k_proj.weight", MOVE_NOTHING},
    {BLK "attn_q.bias", HF "self_attn.q_proj.bias", MOVE_NOTHING},
    {BLK "attn_k.bias", HF "self_attn.k_proj.bias", MOVE_NOTHING},
    {BLK "attn_v.bias", HF "self_attn.v_proj.bias", MOVE_NOTHING},
    {BLK "attn_output.bias", HF "self_attn.o_proj.bias", MOVE_NOTHING},
    {BLK "attn_sinks.weight", HF "self_attn.sinks", MOVE_NOTHING},
    {BLK "post_attention_norm.weight", HF "post_attention_layernorm.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.weight", HF "mlp.router.weight", MOVE_NOTHING},
    {BLK "ffn_gate_inp.bias", HF "mlp.router.bias", MOVE_NOTHING},
    {BLK "ffn_gate_exps.weight", HF "mlp.experts.gate_up_proj", MOVE_EVEN},
    {BLK "ffn_up_exps.weight", HF "mlp.experts.gate_up_proj", MOVE_ODD},
    {BLK "ffn_down_exps.weight", HF "mlp.experts.down_proj", MOVE_TURN},
    {BLK "ffn_gate_exps.weight", HF "mlp.experts.gate_up_proj_blocks", MOVE_MX_EVEN},
    {BLK "ffn_up_exps.weight", HF "mlp.experts.gate_up_proj_blocks", MOVE_MX_ODD},
    {BLK "ffn_down_exps.weight", HF "mlp.experts.down_proj_blocks", MOVE_MX},
    {BLK "ffn_gate_exps.bias", HF "mlp.experts.gate_up_proj_bias", MOVE_EVEN},
    {BLK "ffn_up_exps.bias", HF "mlp.experts.gate_up_proj_bias", MOVE_ODD},
    {BLK "ffn_down_exps.bias", HF "mlp.experts.down_proj_bias", MOVE_NOTHING},
    HF_OUTER,
};

static const family_key mixtral_keys[] = {
    U("context_length", 128),
    U("feed_forward_length", 96),
    U("attention.head_count_kv", 2),
    F("rope.freq_base", 1e6),
    F("attention.layer_norm_rms_epsilon", 1e-5),
    U("expert_count", 8),
    U("expert_used_count", 2),
    U("rope.dimension_count", 16),
    END_OF_KEYS,
};
static const family_key qwen3_keys[] = {
    U("context_length", 128),
    U("feed_forward_length", 96),
    U("attention.head_count_kv", 2),
    F("rope.freq_base", 1e6),
    F("attention.layer_norm_rms_epsilon", 1e-6),
    U("expert_count", 16),
    U("expert_used_count", 4),
    U("attention.key_length", 32),
    U("attention.value_length", 32),
    U("expert_feed_forward_length", 32),
    END_OF_KEYS,
};
#define DEEPSEEK_KEYS                                                                           \
    U("context_length", 128), U("feed_forward_length", 96), U("attention.head_count_kv", 1),    \
        F("rope.scaling.factor", 4), YARN(32), F("rope.freq_base", 1e4),                        \
        F("attention.layer_norm_rms_epsilon", 1e-6), U("expert_count", 16),                     \
        U("expert_used_count", 4), U("expert_group_count", 4), U("expert_group_used_count", 2), \
        U("attention.key_length", 40), U("attention.value_length", 32),                         \
        U("leading_dense_block_count", 1), U("attention.q_lora_rank", 24),                      \
        U("attention.kv_lora_rank", 32), U("attention.key_length_mla", 24),                     \
        U("attention.value_length_mla", 12), U("expert_feed_forward_length", 32),               \
        U("expert_shared_count", 2), U("rope.dimension_count", 8),                              \
        F("rope.scaling.yarn_log_multiplier", 0.1)
static const family_key deepseek_v2_keys[] = {
    DEEPSEEK_KEYS,
    U("expert_gating_func", 1),
    F("expert_weights_scale", 16),
    END_OF_KEYS,
};
static const family_key deepseek_v3_keys[] = {
    DEEPSEEK_KEYS,
    U("expert_gating_func", 2),
    F("expert_weights_scale", 2.5),
    {"expert_weights_norm", SY_GGUF_KIND_BOOL, 1},
    END_OF_KEYS,
};
static const family_key granite_keys[] = {
    U("context_length", 128),
    U("feed_forward_length", 32),
    U("attention.head_count_kv", 2),
    F("rope.freq_base", 1e4),
    F("attention.layer_norm_rms_epsilon", 1e-6),
    U("expert_count", 8),
    U("expert_used_count", 4),
    U("rope.dimension_count", 16),
    F("attention.scale", 0.0625),
    F("embedding_scale", 12),
    F("residual_scale", 0.22),
    F("logit_scale", 6),
    END_OF_KEYS,
};
static const family_key gpt_oss_keys[] = {
    U("context_length", 512),
    U("feed_forward_length", 64),
    U("attention.head_count_kv", 2),
    F("rope.scaling.factor", 8),
    YARN(64),
    F("rope.freq_base", 150000),
    F("attention.layer_norm_rms_epsilon", 1e-5),
    U("expert_count", 8),
    U("expert_used_count", 2),
    U("attention.key_length", 32),
    U("attention.value_length", 32),
    U("attention.sliding_window", 4),
    U("expert_feed_forward_length", 64),
    END_OF_KEYS,
};

static const family_file family_files[] = {
    {"mixtral", "llama", mixtral_keys, mixtral_tensors, 3, 4, 2, 0, 0},
    {"qwen3_moe", "qwen3moe", qwen3_keys, qwen3_tensors, 3, 4, 2, 0, 0},
    {"deepseek_v2", "deepseek2", deepseek_v2_keys, deepseek_tensors, 3, 4, 4, 16, 12},
    {"deepseek_v3", "deepseek2", deepseek_v3_keys, deepseek_tensors, 3, 4, 4, 16, 12},
    {"granitemoe", "granitemoe", granite_keys, granite_tensors, 3, 4, 2, 0, 0},
    {"gpt_oss", "gpt-oss", gpt_oss_keys, gpt_oss_tensors, 3, 4, 2, 0, 0},
    {"gpt_oss_mxfp4", "gpt-oss", gpt_oss_keys, gpt_oss_tensors, 3, 4, 2, 0, 0},
};

#undef U
#undef F
#undef YARN
#undef END_OF_KEYS
#undef DEEPSEEK_KEYS
#undef HF_ATTENTION
#undef HF_OUTER
#undef HF
#undef BLK

static inline const family_file *family_file_of(const char *family)
{
    for (size_t i = 0; i < SY_COUNT_OF(family_files); i++)
        if (strcmp(family_files[i].family, family) == 0) return &family_files[i];
    fail_msg("no GGUF file is made of %s", family);
    return NULL;
}

/* ---- metadata ---- */

/* Every byte is a token, as in the synthetic checkpoints' tokenizer.json. */
static inline void add_family_tokens(made_gguf *m)
{
    char text[256][3] = {{0}};
    const char *token[256];
    uint32_t next = 256;

    for (uint32_t b = 0; b < 256; b++) {
        const int is_itself =
            (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
        const uint32_t c = is_itself ? b : next++;

        if (c < 128) {
            text[b][0] = (char)c;
        } else {
            text[b][0] = (char)(0xc0 | c >> 6);
            text[b][1] = (char)(0x80 | (c & 63));
        }
        token[b] = text[b];
    }
    add_string(m, "tokenizer.ggml.model", "gpt2");
    add_string(m, "tokenizer.ggml.pre", "gpt-2");
    add_strings(m, "tokenizer.ggml.tokens", token, 256);
    add_strings(m, "tokenizer.ggml.merges", NULL, 0);
}

static inline void add_family_keys(made_gguf *m, const family_file *f)
{
    char name[128];

    add_string(m, "general.architecture", f->architecture);
    for (const family_key *k = f->keys; k->name != NULL; k++) {
        snprintf(name, sizeof(name), "%s.%s", f->architecture, k->name);
        if (k->kind == SY_GGUF_KIND_U32)
            add_u32(m, name, (uint32_t)k->number);
        else if (k->kind == SY_GGUF_KIND_F32)
            add_f32(m, name, (float)k->number);
        else
            add_bool(m, name, k->number != 0);
        if (strcmp(k->name, "rope.scaling.factor") != 0) continue;
        snprintf(name, sizeof(name), "%s.rope.scaling.type", f->architecture);
        add_string(m, name, "yarn");
    }
    snprintf(name, sizeof(name), "%s.block_count", f->architecture);
    add_u32(m, name, f->n_layers);
    snprintf(name, sizeof(name), "%s.embedding_length", f->architecture);
    add_u32(m, name, 64);
    snprintf(name, sizeof(name), "%s.attention.head_count", f->architecture);
    add_u32(m, name, f->n_heads);
    add_family_tokens(m);
}

/* ---- tensors ---- */

static inline const sy_tensor *stored_tensor(const sy_model *model, const char *name)
{
    for (size_t i = 0; i < sy_model_tensor_count(model); i++)
        if (strcmp(sy_model_tensor_at(model, i)->name, name) == 0)
            return sy_model_tensor_at(model, i);
    return NULL;
}

/* The tensor's extent in the file, [m, r, c] with 1 for what it has not, and its elements' places
 * in Hugging Face's tensor. */
typedef struct family_extent {
    uint64_t m, r, c;
    uint32_t rank;
} family_extent;

static inline family_extent extent_of(const family_file *f, const sy_tensor *t, family_move move,
                                      uint32_t n_experts)
{
    const uint64_t *s = t->shape;

    switch (move) {
    case MOVE_STACK: return (family_extent){n_experts, s[0], s[1], 3};
    case MOVE_FIRST:
    case MOVE_SECOND: return (family_extent){s[0], s[1] / 2, s[2], 3};
    case MOVE_EVEN:
    case MOVE_ODD:
        if (t->rank == 2) return (family_extent){1, s[0], s[1] / 2, 2};
        return (family_extent){s[0], s[2] / 2, s[1], 3};
    case MOVE_TURN: return (family_extent){s[0], s[2], s[1], 3};
    case MOVE_KEYS: return (family_extent){f->n_heads, s[1], f->nope_dim, 3};
    case MOVE_VALUES: return (family_extent){f->n_heads, f->value_dim, s[1], 3};
    default: break;
    }
    if (t->rank == 1) return (family_extent){1, 1, s[0], 1};
    if (t->rank == 2) return (family_extent){1, s[0], s[1], 2};
    return (family_extent){s[0], s[1], s[2], 3};
}

static inline uint64_t place_in_head(uint64_t row, uint64_t rows, uint32_t n_heads)
{
    const uint64_t head_rows = rows / n_heads, i = row % head_rows;

    return row - i + i % 2 * (head_rows / 2) + i / 2;
}

static inline uint64_t element_of(const family_file *f, const family_extent *e, family_move move,
                                  uint64_t m, uint64_t r, uint64_t c)
{
    const uint64_t head_rows = (uint64_t)f->nope_dim + f->value_dim;
    const uint64_t odd = move == MOVE_ODD;

    switch (move) {
    case MOVE_Q_HEADS: return place_in_head(r, e->r, f->n_heads) * e->c + c;
    case MOVE_K_HEADS: return place_in_head(r, e->r, f->n_kv_heads) * e->c + c;
    case MOVE_STACK: return r * e->c + c;
    case MOVE_FIRST: return (2 * m * e->r + r) * e->c + c;
    case MOVE_SECOND: return ((2 * m + 1) * e->r + r) * e->c + c;
    case MOVE_EVEN:
    case MOVE_ODD:
        if (e->rank == 2) return (r * e->c + c) * 2 + odd;
        return ((m * e->c + c) * e->r + r) * 2 + odd;
    case MOVE_TURN: return (m * e->c + c) * e->r + r;
    case MOVE_KEYS: return (m * head_rows + c) * e->r + r;
    case MOVE_VALUES: return (m * head_rows + f->nope_dim + r) * e->c + c;
    default: return (m * e->r + r) * e->c + c;
    }
}

static inline uint32_t gguf_type_of(sy_dtype dtype)
{
    return dtype == SY_F32 ? SY_GGUF_F32 : dtype == SY_F16 ? SY_GGUF_F16 : SY_GGUF_BF16;
}

static inline unsigned nibble_at(const uint8_t *pairs, unsigned i)
{
    return i % 2 == 0 ? pairs[i / 2] & 15u : (unsigned)pairs[i / 2] >> 4;
}

/* t: [E, rows, blocks, 16], scales beside it. */
static inline void add_mx(made_gguf *m, const sy_model *model, const char *here, const sy_tensor *t,
                          family_move move)
{
    const uint64_t step = move == MOVE_MX ? 1 : 2, n_blocks = t->shape[2];
    const uint64_t rows = t->shape[1] / step;
    char name[SY_TENSOR_NAME_MAX + 1];
    uint8_t *out = malloc(t->shape[0] * rows * n_blocks * 17), *to = out;
    const sy_tensor *scales;

    snprintf(name, sizeof(name), "%.*s_scales", (int)(strlen(t->name) - strlen("_blocks")),
             t->name);
    scales = stored_tensor(model, name);
    assert_true(out != NULL && scales != NULL);
    for (uint64_t i = 0; i < t->shape[0] * rows; i++)
        for (uint64_t b = 0; b < n_blocks; b++, to += 17) {
            const uint64_t block = (i * step + (move == MOVE_MX_ODD)) * n_blocks + b;

            to[0] = scales->data[block];
            for (unsigned j = 0; j < 16; j++)
                to[1 + j] = (uint8_t)(nibble_at(t->data + 16 * block, j) |
                                      nibble_at(t->data + 16 * block, j + 16) << 4);
        }
    add_tensor(m, here, SY_GGUF_MXFP4, 3, (uint64_t[]){t->shape[0], rows, 32 * n_blocks}, out);
    free(out);
}

/* The first %u of a name becomes the number. */
static inline void put_number(char *out, size_t n, const char *name, uint32_t number)
{
    const char *at = strstr(name, "%u");

    if (at == NULL)
        snprintf(out, n, "%s", name);
    else
        snprintf(out, n, "%.*s%u%s", (int)(at - name), name, number, at + 2);
}

static inline void add_moved(made_gguf *m, const family_file *f, const sy_model *model,
                             const char *here, const char *there, family_move move)
{
    const uint32_t n_experts = sy_model_describe(model)->n_experts;
    char name[SY_TENSOR_NAME_MAX + 1];
    const sy_tensor *t;
    family_extent e;
    uint8_t *out, *to;

    put_number(name, sizeof(name), there, 0);
    t = stored_tensor(model, name);
    if (t == NULL) return; /* a layer of another kind, or plain weights instead of blocks */
    if (move >= MOVE_MX) {
        add_mx(m, model, here, t, move);
        return;
    }
    e = extent_of(f, t, move, n_experts);
    const size_t bytes = sy_dtype_bytes(t->dtype);
    out = to = malloc(e.m * e.r * e.c * bytes);
    assert_non_null(out);
    for (uint64_t i = 0; i < e.m; i++) {
        if (move == MOVE_STACK) {
            put_number(name, sizeof(name), there, (uint32_t)i);
            t = stored_tensor(model, name);
        }
        for (uint64_t r = 0; r < e.r; r++)
            for (uint64_t c = 0; c < e.c; c++, to += bytes)
                memcpy(to, t->data + element_of(f, &e, move, i, r, c) * bytes, bytes);
    }
    const uint64_t shape[3] = {e.m, e.r, e.c};
    add_tensor(m, here, gguf_type_of(t->dtype), e.rank, shape + 3 - e.rank, out);
    free(out);
}

/* dir: the checkpoint. The caller ends m with made_free. */
static inline void make_family_gguf(made_gguf *m, const char *family, const char *dir)
{
    const family_file *f = family_file_of(family);
    char here[64], there[SY_TENSOR_NAME_MAX + 1];
    sy_model *model;
    sy_error err = {0};

    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    make_gguf(m);
    add_family_keys(m, f);
    for (const family_tensor *t = f->tensors; t->here != NULL; t++) {
        const uint32_t n = strstr(t->here, "%u") != NULL ? f->n_layers : 1;

        for (uint32_t layer = 0; layer < n; layer++) {
            put_number(here, sizeof(here), t->here, layer);
            put_number(there, sizeof(there), t->there, layer);
            add_moved(m, f, model, here, there, t->move);
        }
    }
    sy_model_close(model);
}

/* ---- what tests change ---- */

static inline made_tensor *made_find(made_gguf *m, const char *name)
{
    for (uint64_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensor[i].name, name) == 0) return &m->tensor[i];
    fail_msg("there is no %s", name);
    return NULL;
}

/* Of m, until something is added. */
static inline uint8_t *made_data(made_gguf *m, const made_tensor *t)
{
    size_t at = 0;

    for (const made_tensor *before = m->tensor; before < t; before++)
        at += (before->bytes + m->alignment - 1) / m->alignment * m->alignment;
    return (uint8_t *)m->data.data + at;
}

static inline void made_remove(made_gguf *m, const char *name)
{
    made_tensor *t = made_find(m, name);
    uint8_t *begin = made_data(m, t), *end = (uint8_t *)m->data.data + m->data.len;
    uint8_t *next = t + 1 < m->tensor + m->n_tensors ? made_data(m, t + 1) : end;

    memmove(begin, next, (size_t)(end - next));
    m->data.len -= (size_t)(next - begin);
    m->n_tensors--;
    memmove(t, t + 1, (size_t)(m->tensor + m->n_tensors - t) * sizeof(*t));
}

/* The tensor becomes one of another type or shape, of zeros; it moves to the end. */
static inline void made_replace(made_gguf *m, const char *name, uint32_t type, uint32_t rank,
                                const uint64_t *shape)
{
    uint64_t rows = 1;
    uint8_t *zeros;

    for (uint32_t i = 0; i + 1 < rank; i++) rows *= shape[i];
    zeros = calloc(rows, sy_gguf_row_bytes(type, shape[rank - 1]));
    assert_non_null(zeros);
    made_remove(m, name);
    add_tensor(m, name, type, rank, shape, zeros);
    free(zeros);
}

#endif
