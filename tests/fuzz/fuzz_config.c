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
