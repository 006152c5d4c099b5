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

typedef struct sy_family {
    const char *name;         /* model_type */
    const char *architecture; /* the only one of `architectures` that is read */
    sy_key experts, top_k, expert_ffn;
    const char *renormalise_key; /* NULL: the family has no choice, renormalise says what it does */
    const char *qkv_clip_key;    /* NULL: the family does not clip */
    int renormalise;             /* also the default of renormalise_key */
    int has_sliding_window;
    int has_multipliers; /* Granite's four: embedding, residual, attention, logits */
    /* A layer's experts are slabs of two tensors: EXPERT_GATE's name is of [E,2F,H], whose first F
     * rows of each slab are the gate and whose last F are up; EXPERT_DOWN's of [E,H,F]. */
    int fused_experts;
    int rotates_part; /* rotary_dim or partial_rotary_factor may leave a part of each head alone */
    int qk_norm;      /* as in sy_model_desc */
    sy_gate_score score;
    float gate_scale;
    float rms_eps, rope_theta; /* defaults */
    /* Names on disk; {l} stands for the layer, {e} for the expert. NULL: the family has no such
     * tensor. */
    const char *pattern[SY_N_ROLES];
} sy_family;

const sy_family *sy_family_find(const char *name); /* NULL: unknown */
const sy_family *sy_family_row(size_t i);          /* i < sy_model_family_count() */

/* True when a model of that description has tensors of this role. */
int sy_role_exists(const sy_model_desc *desc, sy_role role);
/* Of one matrix or vector. shape: [2]; returns the rank. */
uint32_t sy_role_shape(uint64_t shape[2], const sy_model_desc *desc, sy_role role);
/* True for roles that come once an expert (and layer), once a layer. */
int sy_role_is_of_expert(sy_role role);
int sy_role_is_of_layer(sy_role role);

/* One tensor that a checkpoint must have. layer and expert are -1 where they do not apply, expert
 * also for the slabs of all experts, whose rank is 3. */
typedef struct sy_tensor_spec {
    sy_role role;
    int32_t layer, expert;
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
