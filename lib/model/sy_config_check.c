/* sy_config_check.c - what a configuration must not ask for: options that would change what the
 * model computes and that nothing here implements, by their names. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

/* Options that a family reads or must have switched off. `unless` is SY_READS_*; 0: nobody reads
 * it. */
typedef struct option {
    const char *key;
    uint32_t unless;
} option;

static const option must_be_off[] = {
    {"attention_bias", 0},
    {"attention_out_bias", 0},
    {"qkv_bias", 0},
    {"mlp_bias", 0},
    {"use_bias", 0},
    {"lm_head_bias", SY_READS_HEAD_BIAS},
    {"compression_config", 0},
    {"pruned_heads", 0},
    {"shared_intermediate_size", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"q_lora_rank", SY_READS_MLA},
    {"kv_lora_rank", SY_READS_MLA},
    {"is_encoder_decoder", 0},
    {"add_cross_attention", 0},
    {"num_nextn_predict_layers", SY_READS_MTP},
    {"num_mtp_modules", SY_READS_MTP},
    {"index_topk", 0},
    {"use_cla", 0},
    {"use_mla", 0},
    {"position_embedding_xdrope", 0},
    {"alibi", 0},
    {"use_alibi", 0},
    {"moe_layer_num_skipped", 0},
    {"group_limited_greedy", 0},
};
static const option must_be_one[] = {
    {"routed_scaling_factor", SY_READS_SCALE},
    {"n_group", SY_READS_GROUPS},
    {"topk_group", SY_READS_GROUPS},
    {"compression_ratio", 0},
};
static const char *const must_not_be_off[] = {"use_rotary_pos_emb", "moe_norm_gate_logits"};

/* Keys of the rules by which layers have no experts: a family reads those of its own. */
typedef struct layer_option {
    const char *key;
    sy_dense_rule rule;
} layer_option;

static const layer_option dense_keys[] = {
    {"first_k_dense_replace", SY_DENSE_FIRST},
    {"mlp_only_layers", SY_DENSE_LISTED},
    {"moe_layers", SY_DENSE_STEP},
};
static const layer_option dense_steps[] = {
    {"decoder_sparse_step", SY_DENSE_LISTED},
    {"moe_layer_freq", SY_DENSE_FIRST},
    {"moe_layer_interval", SY_DENSE_RANGE},
    {"interleave_moe_layer_step", SY_DENSE_STEP},
};
/* Of what is beside the experts, under the name of each family that has it. */
static const char *const shared_keys[] = {"n_shared_experts", "num_shared_experts",
                                          "moe_num_shared_experts", "num_shared_expert",
                                          "shared_expert_intermediate_size"};

static sy_status require_off(const config_reader *in, const char *key)
{
    const json_t *value = config_member(in->root, key);

    if (config_is_off(value)) return SY_OK;
    return sy_error_set(in->err, SY_EINVAL, "%s is %s: this option is not supported", key,
                        json_is_integer(value) ? "not 0" : sy_json_kind(value));
}

static sy_status require_one(const config_reader *in, const char *key)
{
    const json_t *value = config_member(in->root, key);

    if (config_is_off(value) || json_number_value(value) == 1.0) return SY_OK;
    return sy_error_set(in->err, SY_EINVAL, "%s is not 1: this option is not supported", key);
}

static sy_status require_not_off(const config_reader *in, const char *key)
{
    if (!json_is_false(config_member(in->root, key))) return SY_OK;
    return sy_error_set(in->err, SY_EINVAL, "%s is false: this option is not supported", key);
}

static int is_own_bias(const config_reader *in, const char *key)
{
    return in->family->bias_key != NULL && strcmp(in->family->bias_key, key) == 0;
}

static sy_status check_unsupported(const config_reader *in)
{
    const sy_family *family = in->family;
    sy_status st = SY_OK;

    for (size_t i = 0; i < SY_COUNT_OF(must_be_off); i++) {
        const option *o = &must_be_off[i];

        if (!(family->reads & o->unless) && !is_own_bias(in, o->key))
            SY_TRY(require_off(in, o->key));
    }
    for (size_t i = 0; i < SY_COUNT_OF(must_be_one); i++)
        if (!(family->reads & must_be_one[i].unless)) SY_TRY(require_one(in, must_be_one[i].key));
    for (size_t i = 0; i < SY_COUNT_OF(must_not_be_off); i++)
        SY_TRY(require_not_off(in, must_not_be_off[i]));
out:
    return st;
}

/* What other families have. */
static sy_status check_foreign(const config_reader *in)
{
    const sy_family *family = in->family;
    const char *shared = family->shared_key.alias[0];
    sy_status st = SY_OK;

    for (size_t i = 0; i < SY_COUNT_OF(dense_keys); i++)
        if (family->dense != dense_keys[i].rule) SY_TRY(require_off(in, dense_keys[i].key));
    for (size_t i = 0; i < SY_COUNT_OF(dense_steps); i++)
        if (family->dense != dense_steps[i].rule) SY_TRY(require_one(in, dense_steps[i].key));
    for (size_t i = 0; i < SY_COUNT_OF(shared_keys); i++)
        if (shared == NULL || strcmp(shared, shared_keys[i]) != 0)
            SY_TRY(require_off(in, shared_keys[i]));
    if (family->window != SY_WINDOW_CHUNKS) {
        SY_TRY(require_off(in, "attention_chunk_size"));
        SY_TRY(require_off(in, "no_rope_layers"));
    }
    if (family->mlp != SY_MLP_CLAMPED) SY_TRY(require_off(in, "swiglu_limit"));
out:
    return st;
}

static sy_status check_choices(const config_reader *in)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    static const char *const softmax[] = {"softmax", NULL};
    static const char *const sigmoid[] = {"sigmoid", NULL};
    static const char *const positions[] = {"rope", NULL};
    const char *const methods[] = {in->family->topk_method != NULL ? in->family->topk_method
                                                                   : "greedy",
                                   in->family->gate.group_best == 1 ? "greedy" : NULL, NULL};
    static const char *const types[] = {"bfloat16", "float16", "float32", NULL};
    const json_t *old = config_member(in->root, "torch_dtype");
    const json_t *new = config_member(in->root, "dtype");
    sy_status st;

    SY_TRY(config_check_choice(in, "hidden_act", activations));
    SY_TRY(config_check_choice(in, "scoring_func",
                               in->family->gate.score == SY_GATE_SIGMOID ? sigmoid : softmax));
    SY_TRY(config_check_choice(in, "topk_method", methods));
    SY_TRY(config_check_choice(in, "moe_gate_act", softmax));
    SY_TRY(config_check_choice(in, "position_embedding_type", positions));
    /* Tensors say what type they have; this key must only not be one that no tensor may have. */
    SY_TRY(config_check_choice(in, "torch_dtype", types));
    SY_TRY(config_check_choice(in, "dtype", types));
    if (old != NULL && new != NULL && !json_equal(old, new)) {
        return sy_error_set(in->err, SY_EINVAL, "torch_dtype is %s, but dtype is %s",
                            json_string_value(old), json_string_value(new));
    }
out:
    return st;
}

/* ---- encodings of the files ---- */

static sy_status check_fp8(const config_reader *in, const json_t *quant)
{
    const json_t *block = config_member(quant, "weight_block_size");
    const json_t *format = config_member(quant, "fmt");

    if (json_integer_value(json_array_get(block, 0)) != 128 ||
        json_integer_value(json_array_get(block, 1)) != 128)
        return sy_error_set(in->err, SY_EINVAL,
                            "quantization_config.weight_block_size is not [128, 128], the only one "
                            "of fp8 that is supported");
    if (format != NULL &&
        (!json_is_string(format) || strstr(json_string_value(format), "e4m3") == NULL))
        return sy_error_set(in->err, SY_EINVAL,
                            "quantization_config.fmt is not e4m3, the only one of fp8 that is "
                            "supported");
    return SY_OK;
}

static sy_status read_quantization(const config_reader *in, sy_model_desc *desc)
{
    const json_t *own = config_member(in->root, "quantization_config");
    const json_t *quant = own != NULL ? own : config_member(in->file, "quantization_config");
    const char *method = json_string_value(config_member(quant, "quant_method"));

    if (config_is_off(quant)) return SY_OK;
    if (method != NULL && strcmp(method, "fp8") == 0) {
        desc->stored = SY_ENCODING_F8_BLOCK;
        return check_fp8(in, quant);
    }
    if (method != NULL && strcmp(method, "mxfp4") == 0 &&
        in->family->slabs == SY_SLAB_INTERLEAVED) {
        desc->stored = SY_ENCODING_MXFP4;
        return SY_OK;
    }
    return sy_error_set(in->err, SY_EINVAL,
                        "quantization_config.quant_method %.64s is not supported for %s; fp8 is%s",
                        method != NULL ? method : "(none)", in->family->name,
                        in->family->slabs == SY_SLAB_INTERLEAVED ? ", and mxfp4" : "");
}

/* Layers past the model's own; MiniMax has another name for their number. */
static sy_status read_mtp(const config_reader *in, sy_model_desc *desc)
{
    static const sy_key keys = {{"num_nextn_predict_layers", "num_mtp_modules"}};
    const json_t *value;
    const char *key;
    sy_status st;

    if (!(in->family->reads & SY_READS_MTP)) return SY_OK;
    SY_TRY(config_find_alias(&value, &key, in, &keys));
    if (value != NULL)
        SY_TRY(config_check_uint(&desc->n_mtp_layers, in, key, value, 0, SY_LAYERS_MAX));
out:
    return st;
}

sy_status config_check_options(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    SY_TRY(check_unsupported(in));
    SY_TRY(check_foreign(in));
    SY_TRY(check_choices(in));
    SY_TRY(read_quantization(in, desc));
    st = read_mtp(in, desc);
out:
    return st;
}
