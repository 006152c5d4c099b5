/* sy_config.c - config.json and generation_config.json -> sy_model_desc. Each value is checked
 * where it is read; an option that would change what the model computes and that nothing here
 * implements is an error, never ignored. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "sy_family.h"
#include "sy_json_load.h"

#define CONFIG_VALUES_MAX 100000u

/* Every function below reads from here, and reports here. */
typedef struct reader {
    const json_t *root;
    const sy_family *family;
    sy_error *err;
} reader;

/* NULL for a key that is absent or null: Hugging Face's files use both for "not set". */
static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);

    return json_is_null(value) ? NULL : value;
}

/* The value under any of the aliases, and the alias that was used. Two spellings must not disagree.
 */
static sy_status find_alias(const json_t **value, const char **key, const reader *in,
                            const sy_key *keys)
{
    *value = NULL;
    *key = keys->alias[0];
    for (size_t i = 0; i < SY_KEY_ALIASES_MAX && keys->alias[i] != NULL; i++) {
        const json_t *found = member(in->root, keys->alias[i]);

        if (found == NULL) continue;
        if (*value != NULL && !json_equal(*value, found)) {
            return sy_error_set(in->err, SY_EINVAL, "%s and %s mean the same and differ", *key,
                                keys->alias[i]);
        }
        if (*value == NULL) {
            *value = found;
            *key = keys->alias[i];
        }
    }
    return SY_OK;
}

static sy_status check_uint(uint32_t *out, const reader *in, const char *key, const json_t *value,
                            uint32_t min, uint32_t max)
{
    const json_int_t v = json_integer_value(value);

    if (!json_is_integer(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where an integer is needed", key,
                            sy_json_kind(value));
    }
    if (v < min || v > max) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%s is %" JSON_INTEGER_FORMAT ", outside [%" PRIu32 ", %" PRIu32 "]",
                            key, v, min, max);
    }
    *out = (uint32_t)v;
    return SY_OK;
}

static sy_status read_uint_of(uint32_t *out, const reader *in, const sy_key *keys, uint32_t min,
                              uint32_t max)
{
    const json_t *value;
    const char *key;
    const sy_status st = find_alias(&value, &key, in, keys);

    return st == SY_OK ? check_uint(out, in, key, value, min, max) : st;
}

static sy_status read_uint(uint32_t *out, const reader *in, const char *key, uint32_t max)
{
    return read_uint_of(out, in, &(sy_key){{key}}, 1, max);
}

/* An integer is a number too: 10000 for rope_theta. *out keeps its default when there is no value.
 */
static sy_status read_float(float *out, const reader *in, const char *key, const json_t *value,
                            double max, int zero_ok)
{
    const double v = json_number_value(value);

    if (value == NULL) return SY_OK;
    if (!json_is_number(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where a number is needed", key,
                            sy_json_kind(value));
    }
    if (v < 0.0 || v > max || ((float)v == 0.0f && !(zero_ok && v == 0.0))) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %g, outside %s0, %g]", key, v,
                            zero_ok ? "[" : "(", max);
    }
    *out = (float)v;
    return SY_OK;
}

static sy_status read_bool(int *out, const reader *in, const char *key)
{
    const json_t *value = member(in->root, key);

    if (value == NULL) return SY_OK;
    if (!json_is_boolean(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where true or false is needed", key,
                            sy_json_kind(value));
    }
    *out = json_is_true(value);
    return SY_OK;
}

/* A string that must be one of a few; absent is fine. choices ends with NULL. */
static sy_status check_choice(const reader *in, const char *key, const char *const *choices)
{
    const json_t *value = member(in->root, key);

    if (value == NULL) return SY_OK;
    if (!json_is_string(value)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where a string is needed", key,
                            sy_json_kind(value));
    }
    for (size_t i = 0; choices[i] != NULL; i++) {
        if (strcmp(json_string_value(value), choices[i]) == 0) return SY_OK;
    }
    return sy_error_set(in->err, SY_EINVAL, "%s \"%.64s\" is not supported, only \"%s\" is", key,
                        json_string_value(value), choices[0]);
}

static sy_status read_family(reader *in, sy_model_desc *desc)
{
    const json_t *type = member(in->root, "model_type");
    const json_t *names = member(in->root, "architectures");
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

static sy_status read_dims(const reader *in, sy_model_desc *desc)
{
    sy_status st;

    SY_TRY(read_uint(&desc->vocab, in, "vocab_size", SY_VOCAB_MAX));
    SY_TRY(read_uint(&desc->hidden, in, "hidden_size", SY_DIM_MAX));
    SY_TRY(read_uint(&desc->n_layers, in, "num_hidden_layers", SY_LAYERS_MAX));
    SY_TRY(read_uint(&desc->n_heads, in, "num_attention_heads", SY_DIM_MAX));
    SY_TRY(read_uint(&desc->context, in, "max_position_embeddings", SY_CONTEXT_MAX));
    SY_TRY(read_uint_of(&desc->n_experts, in, &in->family->experts, 1, SY_EXPERTS_MAX));
    SY_TRY(read_uint_of(&desc->top_k, in, &in->family->top_k, 1, SY_TOP_K_MAX));
    SY_TRY(read_uint_of(&desc->expert_ffn, in, &in->family->expert_ffn, 1, SY_DIM_MAX));
    if (desc->top_k > desc->n_experts) {
        return sy_error_set(
            in->err, SY_EINVAL, "%s is %" PRIu32 ", more than %s, which is %" PRIu32,
            in->family->top_k.alias[0], desc->top_k, in->family->experts.alias[0], desc->n_experts);
    }
out:
    return st;
}

static sy_status read_heads(const reader *in, sy_model_desc *desc)
{
    sy_status st = SY_OK;

    desc->n_kv_heads = desc->n_heads;
    if (member(in->root, "num_key_value_heads") != NULL) {
        SY_TRY(read_uint(&desc->n_kv_heads, in, "num_key_value_heads", SY_DIM_MAX));
    }
    if (desc->n_heads % desc->n_kv_heads != 0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "num_attention_heads is %" PRIu32
                            ", not a multiple of num_key_value_heads, which is %" PRIu32,
                            desc->n_heads, desc->n_kv_heads);
    }
    if (member(in->root, "head_dim") != NULL) {
        SY_TRY(read_uint(&desc->head_dim, in, "head_dim", SY_DIM_MAX));
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

/* A dictionary of rope settings (rope_scaling, or rope_parameters of newer files) must ask for the
 * plain rotation. */
static sy_status check_rope(const reader *in, const char *key)
{
    json_t *rope = member(in->root, key);
    const json_t *type = member(rope, "rope_type");
    const json_t *factor = member(rope, "partial_rotary_factor");
    const char *name;
    json_t *value;

    if (rope == NULL) return SY_OK;
    if (!json_is_object(rope)) {
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where an object is needed", key,
                            sy_json_kind(rope));
    }
    if (type == NULL) type = member(rope, "type");
    if (type != NULL &&
        (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0)) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%s.rope_type \"%.64s\" is not supported, only \"default\" is", key,
                            json_is_string(type) ? json_string_value(type) : sy_json_kind(type));
    }
    if (factor != NULL && json_number_value(factor) != 1.0) {
        return sy_error_set(in->err, SY_EINVAL,
                            "%s.partial_rotary_factor must be 1: partial rotation is not supported",
                            key);
    }
    json_object_foreach(rope, name, value)
    {
        if (json_is_object(value) || (type == NULL && strcmp(name, "factor") == 0)) {
            return sy_error_set(in->err, SY_EINVAL, "%s.%.64s is not supported", key, name);
        }
    }
    return SY_OK;
}

static sy_status read_rope(const reader *in, sy_model_desc *desc)
{
    const json_t *outer = member(in->root, "rope_theta");
    const json_t *inner = member(member(in->root, "rope_parameters"), "rope_theta");
    float other;
    sy_status st;

    desc->rope_theta = in->family->rope_theta;
    SY_TRY(check_rope(in, "rope_scaling"));
    SY_TRY(check_rope(in, "rope_parameters"));
    SY_TRY(read_float(&desc->rope_theta, in, "rope_theta", outer, FLT_MAX, 0));
    other = desc->rope_theta;
    SY_TRY(read_float(&other, in, "rope_parameters.rope_theta", inner, FLT_MAX, 0));
    if (outer != NULL && other != desc->rope_theta) {
        return sy_error_set(in->err, SY_EINVAL,
                            "rope_theta is %g, but rope_parameters.rope_theta is %g",
                            (double)desc->rope_theta, (double)other);
    }
    desc->rope_theta = other;
out:
    return st;
}

static sy_status read_window(const reader *in, sy_model_desc *desc)
{
    const json_t *window = member(in->root, "sliding_window");
    const json_t *types = member(in->root, "layer_types");
    const char *wanted;

    if (window != NULL) {
        sy_status st =
            check_uint(&desc->sliding_window, in, "sliding_window", window, 1, SY_CONTEXT_MAX);

        if (st != SY_OK) return st;
        if (!in->family->has_sliding_window ||
            json_is_false(member(in->root, "use_sliding_window"))) {
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

static sy_status read_gate(const reader *in, sy_model_desc *desc)
{
    const sy_family *family = in->family;
    const char *clip_key = family->qkv_clip_key != NULL ? family->qkv_clip_key : "clip_qkv";
    const json_t *clip = member(in->root, clip_key);
    int renormalise = family->renormalise;
    sy_status st;

    desc->gate.score = family->score;
    desc->gate.scale = family->gate_scale;
    SY_TRY(read_bool(&renormalise, in,
                     family->renormalise_key != NULL ? family->renormalise_key : "norm_topk_prob"));
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
    SY_TRY(read_float(&desc->qkv_clip, in, clip_key, clip, FLT_MAX, 0));
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
    "attention_multiplier",
    "q_lora_rank",
    "kv_lora_rank",
    "is_encoder_decoder",
    "add_cross_attention",
    "num_nextn_predict_layers",
};
static const char *const must_be_one[] = {
    "partial_rotary_factor",
    "decoder_sparse_step",
    "moe_layer_freq",
    "routed_scaling_factor",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "n_group",
    "topk_group",
};

static sy_status check_unsupported(const reader *in)
{
    for (size_t i = 0; i < SY_COUNT_OF(must_be_off); i++) {
        const json_t *value = member(in->root, must_be_off[i]);

        if (!is_off(value)) {
            return sy_error_set(in->err, SY_EINVAL, "%s is %s: this option is not supported",
                                must_be_off[i],
                                json_is_integer(value) ? "not 0" : sy_json_kind(value));
        }
    }
    for (size_t i = 0; i < SY_COUNT_OF(must_be_one); i++) {
        const json_t *value = member(in->root, must_be_one[i]);

        if (value != NULL && json_number_value(value) != 1.0) {
            return sy_error_set(in->err, SY_EINVAL, "%s is not 1: this option is not supported",
                                must_be_one[i]);
        }
    }
    return SY_OK;
}

static sy_status check_choices(const reader *in)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    static const char *const scores[] = {"softmax", NULL};
    static const char *const methods[] = {"greedy", NULL};
    static const char *const types[] = {"bfloat16", "float16", "float32", NULL};
    const json_t *old = member(in->root, "torch_dtype");
    const json_t *new = member(in->root, "dtype");
    sy_status st;

    SY_TRY(check_choice(in, "hidden_act", activations));
    SY_TRY(check_choice(in, "scoring_func", scores));
    SY_TRY(check_choice(in, "topk_method", methods));
    /* Tensors say what type they have; this key must only not be one that no tensor may have. */
    SY_TRY(check_choice(in, "torch_dtype", types));
    SY_TRY(check_choice(in, "dtype", types));
    if (old != NULL && new != NULL && !json_equal(old, new)) {
        return sy_error_set(in->err, SY_EINVAL, "torch_dtype is %s, but dtype is %s",
                            json_string_value(old), json_string_value(new));
    }
out:
    return st;
}

static sy_status check_token(int32_t *out, const reader *in, const char *key, const json_t *value,
                             uint32_t vocab)
{
    uint32_t id = 0;
    const sy_status st = check_uint(&id, in, key, value, 0, vocab - 1);

    if (st == SY_OK) *out = (int32_t)id; /* vocab is at most 2^24 */
    return st;
}

/* Replaces desc's list when there is a value: one id, or a list of them. */
static sy_status read_eos(const reader *in, sy_model_desc *desc)
{
    const json_t *value = member(in->root, "eos_token_id");
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

static sy_status read_bos(const reader *in, sy_model_desc *desc)
{
    const json_t *value = member(in->root, "bos_token_id");

    return value != NULL ? check_token(&desc->bos, in, "bos_token_id", value, desc->vocab) : SY_OK;
}

sy_status sy_model_desc_parse(sy_model_desc *out, const char *config, size_t n, sy_error *err)
{
    reader in = {.err = err};
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
    SY_TRY(read_rope(&in, &desc));
    SY_TRY(read_window(&in, &desc));
    SY_TRY(read_gate(&in, &desc));
    desc.rms_eps = in.family->rms_eps;
    SY_TRY(read_float(&desc.rms_eps, &in, "rms_norm_eps", member(root, "rms_norm_eps"), 1.0, 0));
    desc.qk_norm = in.family->qk_norm;
    SY_TRY(read_bool(&desc.tied_head, &in, "tie_word_embeddings"));
    SY_TRY(read_bos(&in, &desc));
    SY_TRY(read_eos(&in, &desc));
    *out = desc;
out:
    json_decref(root);
    return st;
}

sy_status sy_generation_config_parse(sy_model_desc *desc, const char *text, size_t n, sy_error *err)
{
    reader in = {.err = err};
    json_t *root = NULL;
    sy_model_desc laid = *desc; /* desc changes only when all of it is sound */
    const json_t *top_k;
    uint32_t k = 0;
    sy_status st;

    SY_TRY(sy_json_load(&root, text, n, CONFIG_VALUES_MAX, err));
    in.root = root;
    SY_TRY(read_bos(&in, &laid));
    SY_TRY(read_eos(&in, &laid));
    SY_TRY(read_float(&laid.default_temperature, &in, "temperature", member(root, "temperature"),
                      100.0, 1));
    SY_TRY(read_float(&laid.default_top_p, &in, "top_p", member(root, "top_p"), 1.0, 0));
    top_k = member(root, "top_k");
    if (top_k != NULL) {
        SY_TRY(check_uint(&k, &in, "top_k", top_k, 0, INT32_MAX));
        laid.default_top_k = (int32_t)k;
    }
    /* Without sampling the most probable token is taken, whatever temperature stands beside it. */
    if (json_is_false(member(root, "do_sample"))) laid.default_temperature = 0.0f;
    *desc = laid;
out:
    json_decref(root);
    return st;
}
