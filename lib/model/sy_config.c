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

static void list_families(char *out, size_t cap)
{
    size_t len = 0;

    for (size_t i = 0; i < sy_model_family_count() && len < cap; i++) {
        const int n =
            snprintf(out + len, cap - len, "%s%s", i > 0 ? ", " : "", sy_model_family_at(i));

        len += n > 0 ? (size_t)n : 0;
    }
}

static sy_status check_architecture(const config_reader *in, sy_model_desc *desc)
{
    const char *const *known = in->family->architecture;
    const json_t *names = config_member(in->root, "architectures");
    const json_t *first = json_array_get(names, 0);
    const char *name = json_is_string(first) ? json_string_value(first) : sy_json_kind(first);

    snprintf(desc->architecture, sizeof(desc->architecture), "%s", known[0]);
    if (names == NULL) return SY_OK;
    for (size_t i = 0; i < SY_COUNT_OF(in->family->architecture) && known[i] != NULL; i++) {
        if (!json_is_string(first) || strcmp(name, known[i]) != 0) continue;
        snprintf(desc->architecture, sizeof(desc->architecture), "%s", known[i]);
        return SY_OK;
    }
    return sy_error_set(in->err, SY_EINVAL,
                        "architectures[0] is %.64s, but only %s of model_type %s is supported",
                        name, known[0], in->family->name);
}

static sy_status read_family(config_reader *in, sy_model_desc *desc)
{
    const json_t *type = config_member(in->root, "model_type");
    char known[SY_MESSAGE_BYTES] = "";
    sy_status st;

    if (json_is_string(type)) in->family = sy_family_find(json_string_value(type));
    if (in->family == NULL) {
        list_families(known, sizeof(known));
        return sy_error_set(in->err, SY_EINVAL, "model_type is %.64s; the known families are %s",
                            json_is_string(type) ? json_string_value(type) : sy_json_kind(type),
                            known);
    }
    desc->family = in->family->name;
    SY_TRY(check_architecture(in, desc));
    if (in->family->text_key == NULL) return SY_OK;
    in->root = config_member(in->root, in->family->text_key);
    if (!json_is_object(in->root))
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where an object is needed",
                            in->family->text_key, sy_json_kind(in->root));
    snprintf(desc->prefix, sizeof(desc->prefix), "%s", in->family->prefix);
out:
    return st;
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
    in.file = in.root = root;
    SY_TRY(read_family(&in, &desc));
    SY_ASSERT(in.family != NULL);
    SY_TRY(config_check_options(&in, &desc));
    SY_TRY(read_dims(&in, &desc));
    SY_TRY(config_read_heads(&in, &desc));
    SY_TRY(config_read_rope(&in, &desc));
    SY_TRY(config_read_scale(&in, &desc));
    SY_TRY(config_read_layers(&in, &desc));
    SY_TRY(config_read_windows(&in, &desc));
    SY_TRY(config_read_gate(&in, &desc));
    SY_TRY(config_read_multipliers(&in, &desc));
    desc.norm = in.family->norm;
    desc.mlp = in.family->mlp;
    desc.rms_eps = in.family->rms_eps;
    SY_TRY(config_read_float(&desc.rms_eps, &in, "rms_norm_eps",
                             config_member(in.root, "rms_norm_eps"), 1.0, 0));
    desc.mlp_limit = 7.0f;
    SY_TRY(config_read_float(&desc.mlp_limit, &in, "swiglu_limit",
                             config_member(in.root, "swiglu_limit"), FLT_MAX, 0));
    desc.tied_head = in.family->tied_head;
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
                             config_member(in.root, "temperature"), 100.0, 1));
    SY_TRY(config_read_float(&laid.default_top_p, &in, "top_p", config_member(in.root, "top_p"),
                             1.0, 0));
    top_k = config_member(in.root, "top_k");
    if (top_k != NULL) {
        SY_TRY(config_check_uint(&k, &in, "top_k", top_k, 0, INT32_MAX));
        laid.default_top_k = (int32_t)k;
    }
    /* Without sampling the most probable token is taken, whatever temperature stands beside it. */
    if (json_is_false(config_member(in.root, "do_sample"))) laid.default_temperature = 0.0f;
    *desc = laid;
out:
    json_decref(root);
    return st;
}
