/* sy_config_attention.c - heads and what happens to them: sizes, latents, norms, biases, clipping
 * and factors. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

static sy_status read_kv_heads(const config_reader *in, sy_model_desc *desc)
{
    sy_status st = SY_OK;

    desc->n_kv_heads = desc->n_heads;
    if (config_member(in->root, "num_key_value_heads") != NULL) {
        SY_TRY(config_read_uint(&desc->n_kv_heads, in, "num_key_value_heads", SY_DIM_MAX));
    }
    if (desc->n_heads % desc->n_kv_heads != 0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "num_attention_heads is %" PRIu32
                            ", not a multiple of num_key_value_heads, which is %" PRIu32,
                            desc->n_heads, desc->n_kv_heads);
    }
out:
    return st;
}

/* attention_head_dim is Hunyuan's. */
static sy_status read_head_dim(const config_reader *in, sy_model_desc *desc)
{
    static const sy_key keys = {{"head_dim", "attention_head_dim"}};
    const json_t *value;
    const char *key;
    sy_status st;

    SY_TRY(config_find_alias(&value, &key, in, &keys));
    if (value != NULL) {
        SY_TRY(config_check_uint(&desc->head_dim, in, key, value, 1, SY_DIM_MAX));
    } else if (desc->hidden % desc->n_heads == 0) {
        desc->head_dim = desc->hidden / desc->n_heads;
    } else {
        return sy_error_set(in->err, SY_EINVAL,
                            "hidden_size is %" PRIu32 ", not a multiple of num_attention_heads, "
                            "which is %" PRIu32 ", and head_dim is missing",
                            desc->hidden, desc->n_heads);
    }
out:
    return st;
}

/* DeepSeek's heads: a part that does not rotate, then one that does. head_dim of the file is one of
 * them or both, by version, and not needed. */
static sy_status read_mla(const config_reader *in, sy_model_desc *desc)
{
    sy_mla_desc *mla = &desc->mla;
    const json_t *q_rank = config_member(in->root, "q_lora_rank");
    sy_status st;

    SY_TRY(config_read_uint(&mla->kv_rank, in, "kv_lora_rank", SY_DIM_MAX));
    if (q_rank != NULL) SY_TRY(config_read_uint(&mla->q_rank, in, "q_lora_rank", SY_DIM_MAX));
    SY_TRY(config_read_uint(&mla->nope_dim, in, "qk_nope_head_dim", SY_DIM_MAX));
    SY_TRY(config_read_uint(&mla->value_dim, in, "v_head_dim", SY_DIM_MAX));
    SY_TRY(config_read_uint(&desc->rotary_dim, in, "qk_rope_head_dim", SY_DIM_MAX));
    desc->head_dim = mla->nope_dim + desc->rotary_dim;
    if (desc->n_kv_heads != desc->n_heads)
        return sy_error_set(in->err, SY_EINVAL,
                            "num_key_value_heads is %" PRIu32 ", but %s needs as many as "
                            "num_attention_heads, which is %" PRIu32,
                            desc->n_kv_heads, in->family->name, desc->n_heads);
    if (desc->rotary_dim % 2 != 0)
        return sy_error_set(in->err, SY_EINVAL,
                            "qk_rope_head_dim is %" PRIu32
                            ": rotary embeddings need an even number",
                            desc->rotary_dim);
    if ((uint64_t)desc->n_heads * ((uint64_t)mla->nope_dim + mla->value_dim) > SY_DIM_MAX)
        return sy_error_set(in->err, SY_EINVAL,
                            "num_attention_heads is %" PRIu32 ", too many for heads of %" PRIu32
                            " and %" PRIu32 ": the limit is %u elements",
                            desc->n_heads, mla->nope_dim, mla->value_dim, SY_DIM_MAX);
out:
    return st;
}

static sy_status check_head_dim(const config_reader *in, const sy_model_desc *desc)
{
    if (desc->head_dim % 2 != 0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "head_dim is %" PRIu32 ": rotary embeddings need an even number",
                            desc->head_dim);
    }
    if ((uint64_t)desc->n_heads * desc->head_dim > SY_DIM_MAX) {
        return sy_error_set(in->err, SY_EINVAL,
                            "num_attention_heads is %" PRIu32 " and head_dim is %" PRIu32
                            ": their product is above the limit of %u",
                            desc->n_heads, desc->head_dim, SY_DIM_MAX);
    }
    return SY_OK;
}

static sy_status read_clip(const config_reader *in, sy_model_desc *desc)
{
    const char *key = in->family->qkv_clip_key != NULL ? in->family->qkv_clip_key : "clip_qkv";
    const json_t *clip = config_member(in->root, key);

    if (clip != NULL && in->family->qkv_clip_key == NULL) {
        return sy_error_set(in->err, SY_EINVAL, "%s is set, but %s does not clip", key,
                            in->family->name);
    }
    return config_read_float(&desc->qkv_clip, in, key, clip, FLT_MAX, 0);
}

static sy_status read_biases(const config_reader *in, sy_model_desc *desc)
{
    int is_on = in->family->bias_default, head_is_on = 0;
    sy_status st = SY_OK;

    if (in->family->reads & SY_READS_BIAS) {
        SY_TRY(config_read_bool(&is_on, in, in->family->bias_key));
        if (is_on) desc->biases |= in->family->biases;
    }
    if (in->family->reads & SY_READS_HEAD_BIAS) {
        SY_TRY(config_read_bool(&head_is_on, in, "lm_head_bias"));
        if (head_is_on) desc->biases |= SY_BIAS_HEAD;
    }
out:
    return st;
}

static sy_status read_qk_norm(const config_reader *in, sy_model_desc *desc)
{
    int is_on = !in->family->qk_norm_off;
    sy_status st = SY_OK;

    if (in->family->qk_norm_key != NULL)
        SY_TRY(config_read_bool(&is_on, in, in->family->qk_norm_key));
    desc->qk_norm = is_on ? in->family->qk_norm : SY_QK_NORM_NONE;
out:
    return st;
}

sy_status config_read_heads(const config_reader *in, sy_model_desc *desc)
{
    const int is_mla = (in->family->reads & SY_READS_MLA) != 0;
    sy_status st;

    SY_TRY(read_kv_heads(in, desc));
    if (is_mla)
        SY_TRY(read_mla(in, desc));
    else
        SY_TRY(read_head_dim(in, desc));
    SY_TRY(check_head_dim(in, desc));
    SY_TRY(read_clip(in, desc));
    SY_TRY(read_biases(in, desc));
    st = read_qk_norm(in, desc);
out:
    return st;
}

/* DeepSeek's code scales what YaRN stretched once more, which transformers does for V3 alone; the
 * published weights of both expect it. */
sy_status config_read_scale(const config_reader *in, sy_model_desc *desc)
{
    const char *key = "rope_scaling";
    const json_t *rope = config_member(in->root, key);
    float all_dim = 0.0f;
    sy_status st;

    desc->attention_scale = 1.0f / sqrtf((float)desc->head_dim);
    if (desc->mla.kv_rank == 0 || desc->rope.type != SY_ROPE_YARN) return SY_OK;
    if (rope == NULL) rope = config_member(in->root, "rope_parameters");
    SY_TRY(config_read_float(&all_dim, in, "rope_scaling.mscale_all_dim",
                             config_member(rope, "mscale_all_dim"), FLT_MAX, 1));
    if (all_dim != 0.0f && desc->rope.factor > 1.0f) {
        const double m = 0.1 * (double)all_dim * log((double)desc->rope.factor) + 1.0;

        desc->attention_scale = (float)(m * m / sqrt((double)desc->head_dim));
        if (!isfinite(desc->attention_scale))
            return sy_error_set(in->err, SY_EINVAL,
                                "rope_scaling.mscale_all_dim is %g: attention would be scaled by "
                                "more than any number",
                                (double)all_dim);
    }
out:
    return st;
}

static int has_factors(const config_reader *in)
{
    return (in->family->reads & SY_READS_FACTORS) != 0;
}

/* One of Granite's factors; others may say that it is 1. */
static sy_status read_multiplier(float *out, const config_reader *in, const char *key)
{
    const json_t *value = config_member(in->root, key);
    float factor = 1.0f;
    const sy_status st = config_read_float(&factor, in, key, value, FLT_MAX, 0);

    if (st != SY_OK || value == NULL) return st;
    if (!has_factors(in) && factor != 1.0f)
        return sy_error_set(in->err, SY_EINVAL, "%s is not 1, but %s has no such factor", key,
                            in->family->name);
    *out = factor;
    return SY_OK;
}

sy_status config_read_multipliers(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    desc->embedding_multiplier = desc->residual_multiplier = desc->logits_scaling = 1.0f;
    if (has_factors(in)) desc->attention_scale = 1.0f;
    SY_TRY(read_multiplier(&desc->embedding_multiplier, in, "embedding_multiplier"));
    SY_TRY(read_multiplier(&desc->residual_multiplier, in, "residual_multiplier"));
    SY_TRY(read_multiplier(&desc->logits_scaling, in, "logits_scaling"));
    if (has_factors(in))
        SY_TRY(read_multiplier(&desc->attention_scale, in, "attention_multiplier"));
    else if (!config_is_off(config_member(in->root, "attention_multiplier")))
        return sy_error_set(in->err, SY_EINVAL,
                            "attention_multiplier is set, but %s has no such factor",
                            in->family->name);
out:
    return st;
}
