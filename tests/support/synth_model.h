/* synth_model.h - the small configurations whose results are published, as synthetic checkpoints.
 */
#ifndef SYNTH_MODEL_H
#define SYNTH_MODEL_H

#include "sy_synth.h"

static inline sy_synth_config mixtral_vectors(void)
{
    return (sy_synth_config){.family = "mixtral",
                             .vocab = 256,
                             .hidden = 64,
                             .n_layers = 3,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = 16,
                             .n_experts = 8,
                             .top_k = 2,
                             .expert_ffn = 96,
                             .context = 128,
                             .rms_eps = 1e-5f,
                             .rope_theta = 1e6f,
                             .dtype = SY_F32,
                             .recipe = SY_SYNTH_VECTORS};
}

static inline sy_synth_config olmoe_vectors(void)
{
    sy_synth_config config = mixtral_vectors();

    config.family = "olmoe";
    config.n_experts = 16;
    config.top_k = 4;
    config.expert_ffn = 32;
    config.rope_theta = 1e4f;
    config.qkv_clip = 1.5f;
    return config;
}

static inline sy_synth_config minimax_m2_vectors(void)
{
    sy_synth_config config = mixtral_vectors();

    config.family = "minimax_m2";
    config.head_dim = 32;
    config.rotary_dim = 16;
    config.n_experts = 16;
    config.top_k = 4;
    config.expert_ffn = 32;
    config.rms_eps = 1e-6f;
    config.rope_theta = 5e6f;
    return config;
}

static inline sy_synth_config granitemoe_vectors(void)
{
    sy_synth_config config = mixtral_vectors();

    config.family = "granitemoe";
    config.top_k = 4;
    config.expert_ffn = 32;
    config.rms_eps = 1e-6f;
    config.rope_theta = 1e4f;
    config.embedding_multiplier = 12.0f;
    config.residual_multiplier = 0.22f;
    config.attention_multiplier = 0.0625f;
    config.logits_scaling = 6.0f;
    config.tied_head = 1;
    return config;
}

static inline sy_synth_config qwen3_moe_vectors(void)
{
    sy_synth_config config = mixtral_vectors();

    config.family = "qwen3_moe";
    config.head_dim = 32; /* n_heads * head_dim is not the hidden size */
    config.n_experts = 16;
    config.top_k = 4;
    config.renormalise = 1;
    config.expert_ffn = 32;
    config.rms_eps = 1e-6f;
    return config;
}

#endif
