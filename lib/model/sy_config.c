/* sy_config.c - config.json and generation_config.json -> sy_model_desc. Each value is checked
 * where it is read; an option that would change what the model computes and that nothing here
 * implements is an error, never ignored. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

#define CONFIG_VALUES_MAX 100000u

static sy_status read_family(config_reader *in, sy_model_desc *desc)
{
    const json_t *type = config_member(in->root, "model_type");
    const json_t *names = config_member(in->root, "architectures");
    const json_t *first = json_array_get(names, 0);
    char known[256] = "";
    size_t len = 0;

    if (json_is_string(type)) in->family = sy_family_find(json_string_value(type));
    if (in->family == NULL) {
        for (size_t i = 0; i < sy_model_family_count() && len < sizeof(known); i++) {
            const int n = snprintf(known + len, sizeof(known) - len, "%s%s", i > 0 ? ", " : "",
                                   sy_model_family_at(i));

            len += n > 0 ? (size_t)n : 0;
        }
        sy_error_set(in->err, SY_EINVAL, "model_type is %.64s; the known families are %s",
                     json_is_string(type) ? json_string_value(type) : sy_json_kind(type), known);
        return SY_EINVAL;
    }
    desc->family = in->family->name;
    if (names != NULL && (!json_is_string(first) ||
                          strcmp(json_string_value(first), in->family->architecture) != 0)) {
        return sy_error_set(in->err, SY_EINVAL,
                            "architectures[0] is %.64s, but only %s of model_type %s is supported",
                            json_is_string(first) ? json_string_value(first) : sy_json_kind(first),
                            in->family->architecture, in->family->name);
    }
    snprintf(desc->architecture, sizeof(desc->architecture), "%s", in->family->architecture);
    return SY_OK;
}

static sy_status read_dims(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    SY_TRY(config_read_uint(&desc->vocab, in, "vocab_size", SY_VOCAB_MAX));
    SY_TRY(config_read_uint(&desc->hidden, in, "hidden_size", SY_DIM_MAX));
    SY_TRY(config_read_uint(&desc->n_layers, in, "num_hidden_layers", SY_LAYERS_MAX));
    SY_TRY(config_read_uint(&desc->n_heads, in, "num_attention_heads", SY_DIM_MAX));
    SY_TRY(config_read_uint(&desc->context, in, "max_position_embeddings", SY_CONTEXT_MAX));
    SY_TRY(config_read_uint_of(&desc->n_experts, in, &in->family->experts, 1, SY_EXPERTS_MAX));
    SY_TRY(config_read_uint_of(&desc->top_k, in, &in->family->top_k, 1, SY_TOP_K_MAX));
    SY_TRY(config_read_uint_of(&desc->expert_ffn, in, &in->family->expert_ffn, 1, SY_DIM_MAX));
    if (desc->top_k > desc->n_experts) {
        return sy_error_set(
            in->err, SY_EINVAL, "%s is %" PRIu32 ", more than %s, which is %" PRIu32,
            in->family->top_k.alias[0], desc->top_k, in->family->experts.alias[0], desc->n_experts);
    }
out:
    return st;
}

static sy_status read_heads(const config_reader *in, sy_model_desc *desc)
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
    if (config_member(in->root, "head_dim") != NULL) {
        SY_TRY(config_read_uint(&desc->head_dim, in, "head_dim", SY_DIM_MAX));
    } else if (desc->hidden % desc->n_heads == 0) {
        desc->head_dim = desc->hidden / desc->n_heads;
    } else {
        return sy_error_set(in->err, SY_EINVAL,
                            "hidden_size is %" PRIu32 ", not a multiple of num_attention_heads, "
                            "which is %" PRIu32 ", and head_dim is missing",
                            desc->hidden, desc->n_heads);
    }
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
out:
    return st;
}

static sy_status read_window(const config_reader *in, sy_model_desc *desc)
{
    const json_t *window = config_member(in->root, "sliding_window");
    const json_t *types = config_member(in->root, "layer_types");
    const char *wanted;

    if (window != NULL) {
        sy_status st = config_check_uint(&desc->sliding_window, in, "sliding_window", window, 1,
                                         SY_CONTEXT_MAX);

        if (st != SY_OK) return st;
        if (!in->family->has_sliding_window ||
            json_is_false(config_member(in->root, "use_sliding_window"))) {
            return sy_error_set(in->err, SY_EINVAL, "sliding_window is %" PRIu32 ", but %s",
                                desc->sliding_window,
                                in->family->has_sliding_window ? "use_sliding_window is false"
                                                               : "this family has none");
        }
    }
    wanted = desc->sliding_window > 0 ? "sliding_attention" : "full_attention";
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *type = json_array_get(types, i);

        if (!json_is_string(type) || strcmp(json_string_value(type), wanted) != 0) {
            return sy_error_set(in->err, SY_EINVAL,
                                "layer_types[%zu] is not \"%s\": layers that differ are not "
                                "supported",
                                i, wanted);
        }
    }
    return SY_OK;
}

static sy_status read_gate(const config_reader *in, sy_model_desc *desc)
{
    const sy_family *family = in->family;
    const char *clip_key = family->qkv_clip_key != NULL ? family->qkv_clip_key : "clip_qkv";
    const json_t *clip = config_member(in->root, clip_key);
    int renormalise = family->renormalise;
    sy_status st;

    desc->gate.score = family->score;
    desc->gate.scale = family->gate_scale;
    SY_TRY(config_read_bool(&renormalise, in,
                            family->renormalise_key != NULL ? family->renormalise_key
                                                            : "norm_topk_prob"));
    if (family->renormalise_key == NULL && renormalise != family->renormalise) {
        return sy_error_set(in->err, SY_EINVAL, "norm_topk_prob is %s, but %s always has it %s",
                            renormalise ? "true" : "false", family->name,
                            family->renormalise ? "true" : "false");
    }
    desc->gate.renormalise = renormalise;
    if (clip != NULL && family->qkv_clip_key == NULL) {
        return sy_error_set(in->err, SY_EINVAL, "%s is set, but %s does not clip", clip_key,
                            family->name);
    }
    SY_TRY(config_read_float(&desc->qkv_clip, in, clip_key, clip, FLT_MAX, 0));
out:
    return st;
}

/* True for null, false, 0 and empty containers: an option that is switched off. */
static int is_off(const json_t *value)
{
    return value == NULL || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0.0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* One of Granite's factors; others may say that it is 1. */
static sy_status read_multiplier(float *out, const config_reader *in, const char *key)
{
    const json_t *value = config_member(in->root, key);
    float factor = 1.0f;
    const sy_status st = config_read_float(&factor, in, key, value, FLT_MAX, 0);

    if (st != SY_OK || value == NULL) return st;
    if (!in->family->has_multipliers && factor != 1.0f)
        return sy_error_set(in->err, SY_EINVAL, "%s is not 1, but %s has no such factor", key,
                            in->family->name);
    *out = factor;
    return SY_OK;
}

static sy_status read_multipliers(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    desc->embedding_multiplier = desc->residual_multiplier = desc->logits_scaling = 1.0f;
    desc->attention_scale =
        in->family->has_multipliers ? 1.0f : 1.0f / sqrtf((float)desc->head_dim);
    SY_TRY(read_multiplier(&desc->embedding_multiplier, in, "embedding_multiplier"));
    SY_TRY(read_multiplier(&desc->residual_multiplier, in, "residual_multiplier"));
    SY_TRY(read_multiplier(&desc->logits_scaling, in, "logits_scaling"));
    if (in->family->has_multipliers)
        SY_TRY(read_multiplier(&desc->attention_scale, in, "attention_multiplier"));
    else if (!is_off(config_member(in->root, "attention_multiplier")))
        return sy_error_set(in->err, SY_EINVAL,
                            "attention_multiplier is set, but %s has no such factor",
                            in->family->name);
out:
    return st;
}

/* Options of Hugging Face's configurations that change results and that no family here has. */
static const char *const must_be_off[] = {
    "attention_bias",
    "attention_out_bias",
    "qkv_bias",
    "mlp_bias",
    "lm_head_bias",
    "quantization_config",
    "compression_config",
    "pruned_heads",
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "first_k_dense_replace",
    "mlp_only_layers",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_chunk_size",
    "q_lora_rank",
    "kv_lora_rank",
    "is_encoder_decoder",
    "add_cross_attention",
    "num_nextn_predict_layers",
};
static const char *const must_be_one[] = {
    "decoder_sparse_step", "moe_layer_freq", "routed_scaling_factor", "n_group", "topk_group",
};

static sy_status check_unsupported(const config_reader *in)
{
    for (size_t i = 0; i < SY_COUNT_OF(must_be_off); i++) {
        const json_t *value = config_member(in->root, must_be_off[i]);

        if (!is_off(value)) {
            return sy_error_set(in->err, SY_EINVAL, "%s is %s: this option is not supported",
                                must_be_off[i],
                                json_is_integer(value) ? "not 0" : sy_json_kind(value));
        }
    }
    for (size_t i = 0; i < SY_COUNT_OF(must_be_one); i++) {
        const json_t *value = config_member(in->root, must_be_one[i]);

        if (value != NULL && json_number_value(value) != 1.0) {
            return sy_error_set(in->err, SY_EINVAL, "%s is not 1: this option is not supported",
                                must_be_one[i]);
        }
    }
    return SY_OK;
}

static sy_status check_choices(const config_reader *in)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    static const char *const softmax[] = {"softmax", NULL};
    static const char *const sigmoid[] = {"sigmoid", NULL};
    static const char *const methods[] = {"greedy", NULL};
    static const char *const types[] = {"bfloat16", "float16", "float32", NULL};
    const json_t *old = config_member(in->root, "torch_dtype");
    const json_t *new = config_member(in->root, "dtype");
    sy_status st;

    SY_TRY(config_check_choice(in, "hidden_act", activations));
    SY_TRY(config_check_choice(in, "scoring_func",
                               in->family->score == SY_GATE_SIGMOID ? sigmoid : softmax));
    SY_TRY(config_check_choice(in, "topk_method", methods));
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

static sy_status check_token(int32_t *out, const config_reader *in, const char *key,
                             const json_t *value, uint32_t vocab)
{
    uint32_t id = 0;
    const sy_status st = config_check_uint(&id, in, key, value, 0, vocab - 1);

    if (st == SY_OK) *out = (int32_t)id; /* vocab is at most 2^24 */
    return st;
}

/* Replaces desc's list when there is a value: one id, or a list of them. */
static sy_status read_eos(const config_reader *in, sy_model_desc *desc)
{
    const json_t *value = config_member(in->root, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    sy_status st = SY_OK;

    if (value == NULL) return SY_OK;
    if (n > SY_EOS_MAX) {
        return sy_error_set(in->err, SY_EINVAL,
                            "eos_token_id lists %zu ids, more than the limit of %d", n, SY_EOS_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;

        SY_TRY(check_token(&desc->eos[i], in, "eos_token_id", id, desc->vocab));
    }
    desc->n_eos = (uint32_t)n;
out:
    return st;
}

static sy_status read_bos(const config_reader *in, sy_model_desc *desc)
{
    const json_t *value = config_member(in->root, "bos_token_id");

    return value != NULL ? check_token(&desc->bos, in, "bos_token_id", value, desc->vocab) : SY_OK;
}

sy_status sy_model_desc_parse(sy_model_desc *out, const char *config, size_t n, sy_error *err)
{
    config_reader in = {.err = err};
    json_t *root = NULL;
    sy_model_desc desc = {
        .bos = -1, .default_temperature = -1.0f, .default_top_p = -1.0f, .default_top_k = -1};
    sy_status st;

    memset(out, 0, sizeof(*out));
    SY_TRY(sy_json_load(&root, config, n, CONFIG_VALUES_MAX, err));
    in.root = root;
    SY_TRY(read_family(&in, &desc));
    SY_TRY(check_unsupported(&in));
    SY_TRY(check_choices(&in));
    SY_TRY(read_dims(&in, &desc));
    SY_TRY(read_heads(&in, &desc));
    SY_TRY(config_read_rope(&in, &desc));
    SY_TRY(read_window(&in, &desc));
    SY_TRY(read_gate(&in, &desc));
    SY_TRY(read_multipliers(&in, &desc));
    desc.rms_eps = in.family->rms_eps;
    SY_TRY(config_read_float(&desc.rms_eps, &in, "rms_norm_eps",
                             config_member(root, "rms_norm_eps"), 1.0, 0));
    desc.qk_norm = in.family->qk_norm;
    SY_TRY(config_read_bool(&desc.tied_head, &in, "tie_word_embeddings"));
    SY_TRY(read_bos(&in, &desc));
    SY_TRY(read_eos(&in, &desc));
    *out = desc;
out:
    json_decref(root);
    return st;
}

sy_status sy_generation_config_parse(sy_model_desc *desc, const char *text, size_t n, sy_error *err)
{
    config_reader in = {.err = err};
    json_t *root = NULL;
    sy_model_desc laid = *desc; /* desc changes only when all of it is sound */
    const json_t *top_k;
    uint32_t k = 0;
    sy_status st;

    SY_TRY(sy_json_load(&root, text, n, CONFIG_VALUES_MAX, err));
    in.root = root;
    SY_TRY(read_bos(&in, &laid));
    SY_TRY(read_eos(&in, &laid));
    SY_TRY(config_read_float(&laid.default_temperature, &in, "temperature",
                             config_member(root, "temperature"), 100.0, 1));
    SY_TRY(
        config_read_float(&laid.default_top_p, &in, "top_p", config_member(root, "top_p"), 1.0, 0));
    top_k = config_member(root, "top_k");
    if (top_k != NULL) {
        SY_TRY(config_check_uint(&k, &in, "top_k", top_k, 0, INT32_MAX));
        laid.default_top_k = (int32_t)k;
    }
    /* Without sampling the most probable token is taken, whatever temperature stands beside it. */
    if (json_is_false(config_member(root, "do_sample"))) laid.default_temperature = 0.0f;
    *desc = laid;
out:
    json_decref(root);
    return st;
}
