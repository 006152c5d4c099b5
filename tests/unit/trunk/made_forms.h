/* made_forms.h - every form of attention, norm, rotation and MLP that a description can ask for, as
 * made models. */
#ifndef MADE_FORMS_H
#define MADE_FORMS_H

#include "made_model.h"

enum { VOCAB = 150 };

typedef struct form {
    const char *name;
    void (*change)(sy_model_desc *d, made_options *o); /* of a plain model */
} form;

static inline sy_model_desc plain_desc(void)
{
    return (sy_model_desc){.vocab = VOCAB,
                           .hidden = 52,
                           .n_layers = 3,
                           .n_heads = 4,
                           .n_kv_heads = 2,
                           .head_dim = 20,
                           .rotary_dim = 20,
                           .n_experts = 4,
                           .top_k = 1,
                           .context = 64,
                           .rms_eps = 1e-5f,
                           .rope_theta = 1e4f,
                           .rope = {.factor = 1.0f, .attention_factor = 1.0f},
                           .embedding_multiplier = 1.0f,
                           .residual_multiplier = 1.0f,
                           .logits_scaling = 1.0f,
                           .attention_scale = 0.22f};
}

static inline void nothing(sy_model_desc *d, made_options *o)
{
    (void)d;
    (void)o;
}

static inline void phi(sy_model_desc *d, made_options *o)
{
    d->norm = SY_NORM_LAYER;
    o->qkv_bias = o->o_bias = o->head_bias = 1;
    d->rope.type = SY_ROPE_LONG;
    d->rope.original_context = 8;
    d->rope.attention_factor = 1.0625f;
    d->rope.long_attention_factor = 1.25f;
    for (uint32_t i = 0; i < d->rotary_dim / 2; i++) {
        d->rope.short_factor[i] = 1.0f + 0.05f * (float)i;
        d->rope.long_factor[i] = 1.0f + 0.7f * (float)i;
    }
}

static inline void olmoe(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->qk_norm = SY_QK_NORM_WHOLE;
    d->qkv_clip = 0.9f;
}

static inline void glm(sy_model_desc *d, made_options *o)
{
    d->qk_norm = SY_QK_NORM_HEAD;
    d->rotary_dim = 10;
    o->qkv_bias = 1;
    d->layer[0] = SY_LAYER_DENSE;
    d->dense_ffn = 61;
    d->shared_ffn = 24;
}

static inline void hunyuan(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->qk_norm = SY_QK_NORM_ROTATED;
    d->tied_head = 1;
    d->shared_ffn = 32;
}

static inline void llama4(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->n_layers = 4;
    d->qk_norm = SY_QK_NORM_WEIGHTLESS;
    d->rope.interleaved = 1;
    d->attention_chunk = 12;
    d->dense_ffn = 40;
    d->shared_ffn = 24;
    d->temperature_floor = 4.0f;
    d->temperature_scale = 0.1f;
    for (uint32_t i = 0; i < 4; i++)
        d->layer[i] = (uint8_t)((i % 2 == 0 ? SY_LAYER_DENSE : 0) |
                                (i == 3 ? SY_LAYER_NO_ROPE : SY_LAYER_CHUNKED));
}

static inline void gpt_oss(sy_model_desc *d, made_options *o)
{
    o->qkv_bias = o->o_bias = o->sinks = 1;
    d->sliding_window = 19;
    d->layer[0] = d->layer[2] = SY_LAYER_SLIDING;
    d->rope.attention_factor = 1.2f;
}

static inline void granite_and_qwen2(sy_model_desc *d, made_options *o)
{
    o->qkv_bias = 1;
    d->shared_ffn = 24;
    d->shared_gate = 1;
    d->layer[1] = SY_LAYER_DENSE;
    d->dense_ffn = 40;
    d->embedding_multiplier = 3.0f;
    d->residual_multiplier = 0.22f;
    d->logits_scaling = 6.0f;
}

static inline void latent_without_q_rank(sy_model_desc *d, made_options *o)
{
    (void)o;
    d->mla = (sy_mla_desc){.kv_rank = 36, .nope_dim = 18, .value_dim = 14};
    d->n_kv_heads = 4;
    d->rotary_dim = 10;
    d->head_dim = 28;
    d->rope.interleaved = 1;
    d->layer[0] = SY_LAYER_DENSE;
    d->dense_ffn = 61;
    d->shared_ffn = 24;
}

static inline void deepseek_v3(sy_model_desc *d, made_options *o)
{
    latent_without_q_rank(d, o);
    d->mla.q_rank = 27;
    d->n_heads = d->n_kv_heads = 18; /* more than go through the keys together */
}

static const form forms[] = {
    {"plain", nothing},
    {"layer norms, biases, two sets of frequencies", phi},
    {"projections normed and clipped", olmoe},
    {"heads normed, a part rotated, dense and shared MLPs", glm},
    {"heads normed after they rotate", hunyuan},
    {"chunks, layers that do not rotate", llama4},
    {"sinks, windows on some layers", gpt_oss},
    {"a gate on shared experts, multipliers", granite_and_qwen2},
    {"latent attention", latent_without_q_rank},
    {"latent attention with a low rank of queries", deepseek_v3},
};

static inline sy_model *open_form(const form *f, made_options options)
{
    sy_model_desc d = plain_desc();

    f->change(&d, &options);
    return made_model_open(&d, &options);
}

#endif
