/* sy_model.h - a checkpoint directory in Hugging Face's layout -> what the rest needs to know of
 * it, and its tensors. A family is a row of a table (sy_family.c): names of tensors and of
 * configuration keys, and how the gate computes. Immutable once open: any thread. */
#ifndef SY_MODEL_H
#define SY_MODEL_H

#include "sy_tensor.h"

#define SY_MODEL_NAME_MAX 128
#define SY_EOS_MAX        8

/* Limits on what a configuration may ask for: far above any published model, low enough that no
 * product overflows. */
#define SY_LAYERS_MAX  1024u
#define SY_EXPERTS_MAX 4096u
#define SY_TOP_K_MAX   64u
#define SY_DIM_MAX     (1u << 20)
#define SY_VOCAB_MAX   (1u << 24)
#define SY_CONTEXT_MAX (1u << 24)

/* The most groups a gate may divide its experts into, and the most choice scores that make a
 * group's; published models have 8 groups at most and sum 2. */
#define SY_GATE_GROUPS_MAX     64u
#define SY_GATE_GROUP_BEST_MAX 2u

/* How a gate turns logits into experts and weights: data, not code per family. What is zero does
 * nothing, so {score, renormalise, scale} is a whole description; sy_gate_check says whether one
 * makes sense. sy_route.h has the order of the steps and where each formula comes from. */
typedef enum sy_gate_score {
    SY_GATE_SOFTMAX,        /* over all experts: Mixtral, OLMoE, Qwen-MoE, DeepSeek-V2, ERNIE-4.5 */
    SY_GATE_SIGMOID,        /* of each logit alone: DeepSeek-V3, GLM-4.5, MiniMax-M2 */
    SY_GATE_SIGMOID_CHOSEN, /* logits choose, sigmoid of the chosen: Llama 4; the scores of large
                               logits are all 1 */
    SY_GATE_SOFTMAX_CHOSEN, /* logits choose, softmax over the k chosen: GraniteMoE, gpt-oss */
    SY_GATE_SPARSEMIXER     /* logits choose, each weighed against its near-ties: Phi-3.5-MoE */
} sy_gate_score;
typedef struct sy_gate_desc {
    sy_gate_score score;
    int renormalise;      /* divide the chosen weights by their sum */
    float scale;          /* then multiply by this, > 0; 1.0 when the family has none */
    float norm_epsilon;   /* added to that sum: 1e-20 for DeepSeek-V3 and GLM-4.5 */
    float norm_min;       /* what the sum is at least: 1e-12 for ERNIE-4.5 */
    float sparse_epsilon; /* SparseMixer alone: experts within 2 * this of the best, relative to the
                             larger, are near-ties; Phi's router_jitter_noise */
    uint32_t n_group;     /* consecutive experts in groups of E / n_group; 0 or 1: no groups */
    uint32_t topk_group;  /* only experts of this many groups, the best, may be chosen */
    int scales_input;     /* the weight multiplies what goes into the expert, not what comes out:
                             Llama 4, with one expert a token */
    uint32_t group_best;  /* a group's score is the sum of this many of its best choice scores: 1
                             for DeepSeek-V2, 2 for DeepSeek-V3 */
} sy_gate_desc;

/* How the angles of long contexts are stretched: data as well; sy_rope.h has the formulas. */
#define SY_ROPE_PAIRS_MAX 256u /* where each pair has a factor of its own */
typedef enum sy_rope_type {
    SY_ROPE_PLAIN,  /* theta^(-2i/d) */
    SY_ROPE_LINEAR, /* every frequency divided by factor */
    SY_ROPE_LLAMA3, /* long waves divided by factor, short ones kept, a ramp between */
    SY_ROPE_YARN,   /* a ramp between dimensions that turn often and those that turn rarely */
    SY_ROPE_LONG    /* each frequency divided by its own factor, of two lists: a sequence that may
                       pass original_context has the long one, from its first token on */
} sy_rope_type;
typedef struct sy_rope_desc {
    sy_rope_type type;
    int interleaved; /* pairs are (2i, 2i + 1), else (i, i + rotary_dim / 2) */
    float factor;
    uint32_t original_context;   /* what the model was trained on; LLAMA3, YARN, LONG */
    float low_freq, high_freq;   /* LLAMA3: turns within original_context, low <= high */
    float beta_fast, beta_slow;  /* YARN: the same, beta_slow <= beta_fast */
    int truncate;                /* YARN: the ramp begins and ends at whole dimensions */
    float attention_factor;      /* on cosine and sine; 1 unless YARN or LONG */
    float long_attention_factor; /* LONG: of sequences with the long list */
    float short_factor[SY_ROPE_PAIRS_MAX], long_factor[SY_ROPE_PAIRS_MAX]; /* LONG: a pair's */
} sy_rope_desc;

/* What is particular to a layer, ored. */
#define SY_LAYER_DENSE   1 /* an MLP of the trunk in the place of experts */
#define SY_LAYER_SLIDING 2 /* attention reaches sliding_window keys, the own one among them */
#define SY_LAYER_CHUNKED 4 /* attention reaches keys of the same attention_chunk positions */
#define SY_LAYER_NO_ROPE 8 /* nothing rotates; queries grow with the position: temperature */

typedef enum sy_norm_form { SY_NORM_RMS, SY_NORM_LAYER /* with mean and bias */ } sy_norm_form;
typedef enum sy_qk_norm {
    SY_QK_NORM_NONE,
    SY_QK_NORM_WHOLE,     /* over the whole projection: OLMoE, MiniMax-M2 */
    SY_QK_NORM_HEAD,      /* over each head, which then rotates: Qwen3, GLM-4.5 */
    SY_QK_NORM_ROTATED,   /* over each head once it has rotated: Hunyuan */
    SY_QK_NORM_WEIGHTLESS /* the same without weights, of layers that rotate: Llama 4 */
} sy_qk_norm;
/* What an MLP or expert does between its matrices, with outputs g and u of the first two. */
typedef enum sy_mlp_form {
    SY_MLP_SWIGLU, /* silu(g) * u */
    SY_MLP_CLAMPED /* gpt-oss: g = min(g, limit), u in +-limit: (u + 1) * g * sigmoid(1.702 g) */
} sy_mlp_form;

/* Biases that a configuration may switch on. */
#define SY_BIAS_QKV  1u
#define SY_BIAS_O    2u
#define SY_BIAS_HEAD 4u

/* Attention over a latent (DeepSeek's MLA). kv_rank 0: none. head_dim is nope_dim + rotary_dim; the
 * last rotary_dim elements of a head rotate. The cache holds kv_rank + rotary_dim floats a token.
 */
typedef struct sy_mla_desc {
    uint32_t kv_rank, q_rank;     /* q_rank 0: queries come from one matrix (SY_ROLE_Q) */
    uint32_t nope_dim, value_dim; /* of a head */
} sy_mla_desc;

typedef struct sy_model_desc {
    const char *family;               /* "mixtral": static */
    char architecture[64];            /* "MixtralForCausalLM" */
    uint32_t vocab, hidden, n_layers; /* V, H, L */
    uint8_t layer[SY_LAYERS_MAX];     /* [n_layers] of SY_LAYER_* */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t rotary_dim; /* the elements of a head that rotate, the first ones but with MLA; even,
                            at most head_dim */
    sy_mla_desc mla;
    uint32_t n_experts, top_k, expert_ffn; /* E, K, F, of layers with experts */
    uint32_t dense_ffn;                    /* of dense layers; 0: there are none */
    uint32_t shared_ffn;      /* of the MLP beside the experts, which every token passes; 0: none */
    int shared_gate;          /* its output is multiplied by sigmoid(x . SHARED_MIX) */
    sy_mlp_form mlp;          /* of experts; dense layers and shared experts are SWIGLU */
    float mlp_limit;          /* CLAMPED */
    uint32_t context;         /* max_position_embeddings, or what YaRN makes of it */
    uint32_t sliding_window;  /* of SY_LAYER_SLIDING; 0: no layer is */
    uint32_t attention_chunk; /* of SY_LAYER_CHUNKED; 0: no layer is */
    /* Llama 4, layers with NO_ROPE: q *= 1 + temperature_scale * log1p(floor((position + 1) /
     * temperature_floor)); scale 0: no. */
    float temperature_floor, temperature_scale;
    float rms_eps, rope_theta; /* rms_eps: of LAYER norms too */
    sy_norm_form norm;
    sy_rope_desc rope;
    /* Granite's; 1 where a family has none. */
    float embedding_multiplier; /* on the embedding */
    float residual_multiplier;  /* on what a block adds to the residual stream */
    float logits_scaling;       /* logits are divided by it */
    float attention_scale;      /* on q k: 1 / sqrt(head_dim), unless the family has its own */
    int tied_head;              /* logits use the embedding matrix */
    sy_qk_norm qk_norm;
    float qkv_clip;  /* 0: none */
    uint32_t biases; /* SY_BIAS_*, ored */
    /* Of the files: what names of tensors begin with, decoder layers past the model's own, which
     * predict further tokens and are not read, and how matrices of layers are stored as far as
     * config.json says. */
    char prefix[24];
    uint32_t n_mtp_layers;
    sy_encoding stored;
    sy_gate_desc gate;
    int32_t bos;             /* -1: none */
    int32_t eos[SY_EOS_MAX]; /* generation_config.json's list wins over config.json's */
    uint32_t n_eos;
    /* generation_config.json's sampling defaults; -1 where it says nothing. */
    float default_temperature, default_top_p;
    int32_t default_top_k;
} sy_model_desc;

/* What a tensor is to the model, whatever the family calls it. Biases exist where the family (and
 * its configuration) has them: sy_model_tensor gives NULL otherwise. */
typedef enum sy_role {
    SY_ROLE_EMBED,
    SY_ROLE_FINAL_NORM,
    SY_ROLE_FINAL_NORM_BIAS,
    SY_ROLE_HEAD,
    SY_ROLE_HEAD_BIAS, /* layer, expert ignored */
    SY_ROLE_NORM1,
    SY_ROLE_NORM1_BIAS,
    SY_ROLE_NORM2,
    SY_ROLE_NORM2_BIAS,
    SY_ROLE_Q, /* [n_heads * head_dim, H] */
    SY_ROLE_K,
    SY_ROLE_V,
    SY_ROLE_O,
    SY_ROLE_Q_BIAS,
    SY_ROLE_K_BIAS,
    SY_ROLE_V_BIAS,
    SY_ROLE_O_BIAS,
    SY_ROLE_Q_NORM,
    SY_ROLE_K_NORM,
    SY_ROLE_SINKS,     /* [n_heads]: a logit that takes part in the softmax and has no value */
    SY_ROLE_Q_A,       /* [q_rank, H] */
    SY_ROLE_Q_A_NORM,  /* [q_rank] */
    SY_ROLE_Q_B,       /* [n_heads * head_dim, q_rank] */
    SY_ROLE_KV_A,      /* [kv_rank + rotary_dim, H] */
    SY_ROLE_KV_A_NORM, /* [kv_rank] */
    SY_ROLE_KV_B,      /* [n_heads * (nope_dim + value_dim), kv_rank] */
    SY_ROLE_DENSE_GATE,
    SY_ROLE_DENSE_UP,
    SY_ROLE_DENSE_DOWN, /* of dense layers */
    SY_ROLE_SHARED_GATE,
    SY_ROLE_SHARED_UP,
    SY_ROLE_SHARED_DOWN, /* of the others, with shared_ffn */
    SY_ROLE_SHARED_MIX,  /* [1, H], with shared_gate */
    SY_ROLE_GATE,
    SY_ROLE_GATE_BIAS,       /* [E]: takes part in the choice of experts alone */
    SY_ROLE_GATE_LOGIT_BIAS, /* [E]: part of the logits; expert ignored down to here */
    SY_ROLE_EXPERT_GATE,
    SY_ROLE_EXPERT_UP,
    SY_ROLE_EXPERT_DOWN,
    SY_ROLE_EXPERT_GATE_BIAS,
    SY_ROLE_EXPERT_UP_BIAS,   /* [F] */
    SY_ROLE_EXPERT_DOWN_BIAS, /* [H] */
    SY_N_ROLES
} sy_role;

/* True for a layer that has a gate and experts; any other needs none of the other tiers. layer:
 * below n_layers. */
static inline int sy_model_has_experts(const sy_model_desc *desc, uint32_t layer)
{
    return (desc->layer[layer] & SY_LAYER_DENSE) == 0;
}

typedef struct sy_model sy_model;

/* Opens DIR: configuration, index, every shard's header; checks that each tensor the model needs is
 * there with the shape the configuration implies and a type the kernels read, and that no unknown
 * tensor is. No weight byte is touched. name: what the model is called; NULL: the directory's base
 * name. Errors name the file, the tensor and both shapes. */
SY_MUST_USE sy_status sy_model_open(sy_model **out, const char *dir, const char *name,
                                    sy_error *err);
void sy_model_close(sy_model *model); /* accepts NULL */
/* Weights that are NaN or infinite are refused by whoever loads them, by the tensor's name, unless
 * this was called first, right after the model was opened: a checkpoint may have such weights in
 * experts that are never chosen. A row that meets one is refused by the next layer's gate. */
void sy_model_allow_nan(sy_model *model);
/* False when one of n elements, as sy_tensor_read gives them, is such a weight, and they are
 * refused.
 */
int sy_model_is_sound(const sy_model *model, const void *elements, sy_dtype dtype, uint64_t n);
/* The same of n rows of k elements, one after the other, of any type: rows of blocks are whole. */
int sy_model_are_sound(const sy_model *model, const void *rows, sy_dtype dtype, uint64_t n,
                       uint64_t k);
const char *sy_model_name(const sy_model *model);
const char *sy_model_dir(const sy_model *model);
const sy_model_desc *sy_model_describe(const sy_model *model);
/* The matrix or vector as the model sees it: read it with sy_tensor_read. Never NULL for a role
 * that the description says exists; NULL for one it has not (Q_NORM without qk_norm; experts of a
 * dense layer). */
const sy_tensor *sy_model_tensor(const sy_model *model, sy_role role, uint32_t layer,
                                 uint32_t expert);
size_t sy_model_tensor_count(const sy_model *model);
const sy_tensor *sy_model_tensor_at(const sy_model *model,
                                    size_t i);  /* by name; NULL past the end */
uint64_t sy_model_bytes(const sy_model *model); /* all tensors */
uint64_t sy_model_expert_bytes(
    const sy_model *model); /* one expert of one layer, as stored; the largest */
/* FNV-1a 64 over the configuration's bytes and every tensor's name, type, shape (not the data):
 * tells checkpoints of other structure apart at once. */
uint64_t sy_model_structure_hash(const sy_model *model);
/* A fingerprint of the weights: the structure hash and the bytes of a bounded sample of places, the
 * same for every copy of a checkpoint, however its files are cut, another one for other weights (a
 * fine-tune, another quantisation). Hashes at most 1 MB or so, in a few thousand places. A single
 * flipped bit elsewhere is what the hashes of shards (sy_shard.h) are for. SY_EDATALOSS: a file was
 * cut while open. */
SY_MUST_USE sy_status sy_model_checkpoint_hash(uint64_t *out, const sy_model *model, sy_error *err);

/* config.json alone: text of n bytes (need not be NUL-terminated). For tests and fuzzing too. */
SY_MUST_USE sy_status sy_model_desc_parse(sy_model_desc *out, const char *config, size_t n,
                                          sy_error *err);
/* generation_config.json laid over desc. */
SY_MUST_USE sy_status sy_generation_config_parse(sy_model_desc *desc, const char *text, size_t n,
                                                 sy_error *err);
size_t sy_model_family_count(void);
const char *sy_model_family_at(size_t i);
/* The disk name of a tensor of that family: "model.layers.3.block_sparse_moe.experts.17.w1.weight".
 * SY_EINVAL: no such family or role; SY_ELIMIT: does not fit. */
SY_MUST_USE sy_status sy_model_tensor_name(char *out, size_t cap, const char *family, sy_role role,
                                           uint32_t layer, uint32_t expert);

#endif
