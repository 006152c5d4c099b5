/* sy_family.h - what differs between families of models, as data, and what follows from a
 * description: which tensors a checkpoint has, under which names and with which shapes. Private to
 * lib/model. */
#ifndef SY_FAMILY_H
#define SY_FAMILY_H

#include "sy_model.h"

#define SY_KEY_ALIASES_MAX 4

/* Spellings of one configuration key, the one to write first; the rest NULL. */
typedef struct sy_key {
    const char *alias[SY_KEY_ALIASES_MAX];
} sy_key;

/* Which layers have no experts. */
typedef enum sy_dense_rule {
    SY_DENSE_NEVER,
    SY_DENSE_LISTED, /* mlp_only_layers, decoder_sparse_step: Qwen */
    SY_DENSE_FIRST,  /* first_k_dense_replace, moe_layer_freq: DeepSeek, GLM */
    SY_DENSE_RANGE,  /* those outside moe_layer_start_index to moe_layer_end_index: ERNIE */
    SY_DENSE_STEP    /* those not in moe_layers, or by interleave_moe_layer_step: Llama 4 */
} sy_dense_rule;

/* How wide the MLP beside the experts is. */
typedef enum sy_shared_rule {
    SY_SHARED_NEVER,
    SY_SHARED_WIDTH, /* its key says it */
    SY_SHARED_COUNT, /* its key says how many experts' widths */
    SY_SHARED_ALWAYS /* an expert's, of which its key may say that there is one */
} sy_shared_rule;

/* Which keys a layer's attention reaches. */
typedef enum sy_window_rule {
    SY_WINDOW_NEVER,
    SY_WINDOW_ALL,    /* sliding_window in every layer, if it is a number: Mixtral, Phi */
    SY_WINDOW_SWITCH, /* only with use_sliding_window, which no published model sets: Qwen */
    SY_WINDOW_TYPES,  /* layer_types; without it every second layer from the first: gpt-oss */
    SY_WINDOW_CHUNKS  /* attention_chunk_size where heads rotate: Llama 4 */
} sy_window_rule;

/* Experts of a layer that lie in two tensors: EXPERT_GATE's name, with gate and up of all experts,
 * and EXPERT_DOWN's. */
typedef enum sy_slab_form {
    SY_SLAB_NONE,
    SY_SLAB_ROWS,       /* [E,2F,H], the first F rows of each are the gate; [E,H,F]: Granite */
    SY_SLAB_COLUMNS,    /* [E,H,2F], the first F columns of each are the gate; [E,F,H]: Llama 4 */
    SY_SLAB_INTERLEAVED /* [E,H,2F], even columns are the gate; [E,F,H]; or in MXFP4 blocks of rows,
                           NAME_blocks [E,2F,H/32,16] and NAME_scales [E,2F,H/32]: gpt-oss */
} sy_slab_form;

/* Options that a family's configuration may use; whatever is not here must be switched off. */
#define SY_READS_BIAS      0x001u /* attention biases: bias_key */
#define SY_READS_HEAD_BIAS 0x002u
#define SY_READS_SCALE     0x004u /* routed_scaling_factor */
#define SY_READS_GROUPS    0x008u /* n_group, topk_group */
#define SY_READS_MTP       0x010u /* num_nextn_predict_layers */
#define SY_READS_PART      0x020u /* rotary_dim, partial_rotary_factor */
#define SY_READS_FACTORS   0x040u /* Granite's four: embedding, residual, attention, logits */
#define SY_READS_MLA       0x080u
#define SY_READS_JITTER    0x100u /* router_jitter_noise is SparseMixer's epsilon */

typedef struct sy_family {
    const char *name; /* model_type */
    const char
        *architecture[2]; /* those of `architectures` that are read, the one to write first */
    const char *text_key; /* the model's settings stand under this key; names of tensors begin with
                             prefix then, and those of the other parts are left alone */
    const char *prefix;
    uint32_t reads; /* SY_READS_* */
    sy_key experts, top_k, expert_ffn;
    int lists_numbers; /* those may be lists of one number a layer */
    sy_dense_rule dense;
    sy_key dense_ffn;
    sy_shared_rule shared;
    sy_key shared_key;
    int shared_gate;
    sy_window_rule window;
    sy_slab_form slabs;
    sy_mlp_form mlp;
    sy_norm_form norm;
    sy_qk_norm qk_norm;
    const char *qk_norm_key; /* switches qk_norm; NULL: it is always on */
    int qk_norm_off;         /* without that key */
    const char *bias_key;    /* of the biases below */
    int bias_default;
    uint32_t biases;             /* those that bias_key switches */
    const char *renormalise_key; /* NULL: the family has no choice, renormalise says what it does */
    int renormalise;             /* also the default of renormalise_key */
    const char *qkv_clip_key;    /* NULL: the family does not clip */
    const char *topk_method;     /* the only one, with or without groups; NULL: greedy */
    sy_gate_desc gate; /* what is the same for all models of the family, and defaults; group_best 0:
                          there are no groups */
    int rope_interleaved;
    int tied_head;             /* default of tie_word_embeddings */
    float rms_eps, rope_theta; /* defaults */
    /* Names on disk; {l} stands for the layer, {e} for the expert. NULL: the family has no such
     * tensor. */
    const char *pattern[SY_N_ROLES];
} sy_family;

const sy_family *sy_family_find(const char *name); /* NULL: unknown */
const sy_family *sy_family_row(size_t i);          /* i < sy_model_family_count() */

/* True when a model of that description has tensors of this role, in this layer where the role is
 * of a layer. */
int sy_role_exists(const sy_model_desc *desc, sy_role role, uint32_t layer);
/* Of one matrix or vector. shape: [2]; returns the rank. */
uint32_t sy_role_shape(uint64_t shape[2], const sy_model_desc *desc, sy_role role);
/* True for roles that come once an expert (and layer), once a layer. */
int sy_role_is_of_expert(sy_role role);
int sy_role_is_of_layer(sy_role role);
/* True for matrices of decoder layers that quantised files hold in blocks. */
int sy_role_is_encoded(sy_role role);

/* One tensor that a checkpoint must have. layer and expert are -1 where they do not apply, expert
 * also for the slabs of all experts, whose rank is 3 (2 for their biases). */
typedef struct sy_tensor_spec {
    sy_role role;
    int32_t layer, expert;
    int is_slab;
    uint32_t rank;
    uint64_t shape[3];
    char name[SY_TENSOR_NAME_MAX + 1];
} sy_tensor_spec;
/* Calls fn for each, in the order of the forward pass, until one call fails; returns that call's
 * status. spec: valid during the call. */
SY_MUST_USE sy_status sy_model_each_tensor(const sy_model_desc *desc,
                                           sy_status (*fn)(void *arg, const sy_tensor_spec *spec),
                                           void *arg);

#endif
