/* sy_gguf_config.c - metadata -> the text of a config.json: what the family's table says, what all
 * families have, and what a few families need besides. */
#include "sy_gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void config_write_name(config_writer *w, const char *name)
{
    sy_strbuf_printf(w->out, "%s\n  \"%s\": ", w->n_members++ > 0 ? "," : "{", name);
}

void config_write_uint(config_writer *w, const char *name, uint64_t value)
{
    config_write_name(w, name);
    sy_strbuf_printf(w->out, "%" PRIu64, value);
}

static void write_text(config_writer *w, const char *name, const char *json)
{
    config_write_name(w, name);
    sy_strbuf_puts(w->out, json);
}

/* The shortest decimal that reads back as the same float: 0.001 instead of 0.0010000000474974513.
 */
void config_format_float(char out[32], float value)
{
    for (int digits = 6; digits <= 9; digits++) {
        (void)snprintf(out, 32, "%.*g", digits, (double)value);
        if (strtof(out, NULL) == value) return;
    }
}

sy_status config_write_float(config_writer *w, const char *name, float value)
{
    char text[32];

    if (!isfinite(value)) return sy_error_set(w->err, SY_EINVAL, "%s would be no number", name);
    config_format_float(text, value);
    write_text(w, name, text);
    return SY_OK;
}

int config_has_key(const config_writer *w, const char *name)
{
    char key[GGUF_KEY_BYTES];

    gguf_key_name(key, w->family, name);
    return sy_gguf_value_of(w->metadata, key) != NULL;
}

sy_status config_key_u32(uint32_t *out, const config_writer *w, const char *name)
{
    char key[GGUF_KEY_BYTES];

    gguf_key_name(key, w->family, name);
    return sy_gguf_u32(out, w->metadata, key, w->err);
}

sy_status config_key_f32(float *out, const config_writer *w, const char *name)
{
    char key[GGUF_KEY_BYTES];

    gguf_key_name(key, w->family, name);
    return sy_gguf_f32(out, w->metadata, key, w->err);
}

sy_status config_optional_u32(uint32_t *out, const config_writer *w, const char *name)
{
    return config_has_key(w, name) ? config_key_u32(out, w, name) : SY_OK;
}

sy_status config_optional_f32(float *out, const config_writer *w, const char *name)
{
    return config_has_key(w, name) ? config_key_f32(out, w, name) : SY_OK;
}

static const sy_gguf_tensor *layer_tensor(const config_writer *w, uint32_t layer, const char *name)
{
    char full[SY_TENSOR_NAME_MAX + 1];

    (void)snprintf(full, sizeof(full), "blk.%" PRIu32 ".%s", layer, name);
    return sy_gguf_set_find(w->set, full);
}

/* Of no layer, or of the first that has one. */
static const sy_gguf_tensor *any_tensor(const config_writer *w, const char *name)
{
    const sy_gguf_tensor *found = sy_gguf_set_find(w->set, name);

    for (uint32_t l = 0; l < w->n_layers && found == NULL; l++) found = layer_tensor(w, l, name);
    return found;
}

static sy_status write_rows(config_writer *w, const char *there, const char *name)
{
    const sy_gguf_tensor *found = any_tensor(w, name);

    if (found == NULL)
        return sy_error_set(w->err, SY_EINVAL, "no tensor is called %s, or blk.0.%s", name, name);
    if (found->tensor.rank < 2)
        return sy_error_set(w->err, SY_EINVAL, "tensor \"%s\" is no matrix", found->tensor.name);
    config_write_uint(w, there, found->tensor.shape[found->tensor.rank - 2]);
    return SY_OK;
}

/* The key is there, or the source is no key. */
static sy_status write_source(config_writer *w, const gguf_setting *setting, const char *key)
{
    uint32_t number = 0;
    float real = 0.0f;
    int truth = 0;
    sy_status st = SY_OK;

    switch (setting->source) {
    case GGUF_UINT:
        SY_TRY(sy_gguf_u32(&number, w->metadata, key, w->err));
        config_write_uint(w, setting->there, number);
        break;
    case GGUF_HEADS:
        SY_TRY(gguf_heads(&number, w->family, w->metadata, setting->here, w->err));
        config_write_uint(w, setting->there, number);
        break;
    case GGUF_FLOAT:
        SY_TRY(sy_gguf_f32(&real, w->metadata, key, w->err));
        SY_TRY(config_write_float(w, setting->there, real));
        break;
    case GGUF_BOOL:
        SY_TRY(sy_gguf_bool(&truth, w->metadata, key, w->err));
        write_text(w, setting->there, truth ? "true" : "false");
        break;
    case GGUF_ROWS: SY_TRY(write_rows(w, setting->there, setting->here)); break;
    case GGUF_HAS:
        write_text(w, setting->there, any_tensor(w, setting->here) != NULL ? "true" : "false");
        break;
    case GGUF_TEXT: write_text(w, setting->there, setting->fallback); break;
    }
out:
    return st;
}

static sy_status write_setting(config_writer *w, const gguf_setting *setting)
{
    const int is_key = setting->source <= GGUF_HEADS;
    char key[GGUF_KEY_BYTES] = "";

    if (is_key) gguf_key_name(key, w->family, setting->here);
    if (!is_key || setting->fallback == NULL || sy_gguf_value_of(w->metadata, key) != NULL)
        return write_source(w, setting, key);
    if (setting->fallback[0] != '\0') write_text(w, setting->there, setting->fallback);
    return SY_OK;
}

static sy_status write_settings(config_writer *w, const gguf_setting *settings)
{
    sy_status st = SY_OK;

    for (; settings->there != NULL; settings++) SY_TRY(write_setting(w, settings));
out:
    return st;
}

sy_status gguf_extra_dense_layers(config_writer *w)
{
    int n = 0;

    for (uint32_t l = 0; l < w->n_layers; l++) {
        if (layer_tensor(w, l, "ffn_gate_inp.weight") != NULL) continue;
        if (n == 0) config_write_name(w, "mlp_only_layers");
        sy_strbuf_printf(w->out, "%s%" PRIu32, n++ > 0 ? ", " : "[", l);
    }
    if (n > 0) sy_strbuf_puts(w->out, "]");
    return SY_OK;
}

/* Before 2025-09 the groups were not written; published models are known by their experts. */
static void guess_groups(uint32_t *n_group, uint32_t *topk_group, uint32_t n_experts, int is_v3)
{
    *n_group = *topk_group = 1;
    if (is_v3 && n_experts == 256) *n_group = 8, *topk_group = 4;
    if (!is_v3 && n_experts == 160) *n_group = 8, *topk_group = 3;
}

sy_status gguf_extra_deepseek(config_writer *w)
{
    uint32_t gating = 1, n_experts = 0, n_heads = 0, rotary = 0, qk = 0, v = 0;
    uint32_t n_group, topk_group;
    int is_v3;
    sy_status st;

    SY_TRY(config_optional_u32(&gating, w, "expert_gating_func"));
    if (gating > 2)
        return sy_error_set(w->err, SY_EINVAL, "expert_gating_func is %" PRIu32 ", not 1 or 2",
                            gating);
    is_v3 = gating == 2;
    SY_TRY(config_key_u32(&n_experts, w, "expert_count"));
    guess_groups(&n_group, &topk_group, n_experts, is_v3);
    SY_TRY(config_optional_u32(&n_group, w, "expert_group_count"));
    SY_TRY(config_optional_u32(&topk_group, w, "expert_group_used_count"));
    SY_TRY(gguf_heads(&n_heads, w->family, w->metadata, "attention.head_count", w->err));
    SY_TRY(config_key_u32(&rotary, w, "rope.dimension_count"));
    SY_TRY(config_key_u32(&qk, w,
                          config_has_key(w, "attention.key_length_mla") ? "attention.key_length_mla"
                                                                        : "attention.key_length"));
    SY_TRY(config_key_u32(&v, w,
                          config_has_key(w, "attention.value_length_mla")
                              ? "attention.value_length_mla"
                              : "attention.value_length"));
    if (qk <= rotary)
        return sy_error_set(w->err, SY_EINVAL,
                            "keys of %" PRIu32 " elements cannot have %" PRIu32 " that rotate", qk,
                            rotary);
    config_write_uint(w, "num_key_value_heads", n_heads);
    config_write_uint(w, "qk_nope_head_dim", qk - rotary);
    config_write_uint(w, "v_head_dim", v);
    config_write_uint(w, "n_group", n_group);
    config_write_uint(w, "topk_group", topk_group);
    write_text(w, "scoring_func", is_v3 ? "\"sigmoid\"" : "\"softmax\"");
    write_text(w, "topk_method",
               is_v3         ? "\"noaux_tc\""
               : n_group > 1 ? "\"group_limited_greedy\""
                             : "\"greedy\"");
out:
    return st;
}

sy_status gguf_extra_glm(config_writer *w)
{
    uint32_t head_dim = 0, rotary = 0;
    sy_status st;

    SY_TRY(config_key_u32(&head_dim, w, "attention.key_length"));
    rotary = head_dim;
    SY_TRY(config_optional_u32(&rotary, w, "rope.dimension_count"));
    if (head_dim == 0 || rotary > head_dim)
        return sy_error_set(w->err, SY_EINVAL,
                            "%" PRIu32 " elements of heads of %" PRIu32 " cannot rotate", rotary,
                            head_dim);
    st = config_write_float(w, "partial_rotary_factor", (float)rotary / (float)head_dim);
out:
    return st;
}

sy_status gguf_extra_granite(config_writer *w)
{
    const sy_gguf_tensor *shared = any_tensor(w, "ffn_gate_shexp.weight");

    return shared != NULL ? write_rows(w, "shared_intermediate_size", "ffn_gate_shexp.weight")
                          : SY_OK;
}

/* Layers alternate, and the first one slides. */
sy_status gguf_extra_gpt_oss(config_writer *w)
{
    config_write_name(w, "layer_types");
    for (uint32_t l = 0; l < w->n_layers; l++) {
        sy_strbuf_printf(w->out, "%s\"%s_attention\"", l > 0 ? ", " : "[",
                         l % 2 == 0 ? "sliding" : "full");
    }
    sy_strbuf_puts(w->out, "]");
    return SY_OK;
}

/* llama.cpp tells Maverick, which has no QK norm, by its 128 experts as well. */
sy_status gguf_extra_llama4(config_writer *w)
{
    uint32_t n_experts = 0;
    const sy_status st = config_key_u32(&n_experts, w, "expert_count");

    if (st == SY_OK) write_text(w, "use_qk_norm", n_experts == 128 ? "false" : "true");
    return st;
}

static const gguf_setting common_settings[] = {
    {"vocab_size", "token_embd.weight", GGUF_ROWS, NULL},
    {"hidden_size", "embedding_length", GGUF_UINT, NULL},
    {"num_attention_heads", "attention.head_count", GGUF_HEADS, NULL},
    {"max_position_embeddings", "context_length", GGUF_UINT, NULL},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", GGUF_FLOAT, NULL},
    {NULL, NULL, 0, ""},
};

/* What families name otherwise, or have elsewhere. */
static const gguf_setting usual_settings[] = {
    {"num_experts_per_tok", "expert_used_count", GGUF_UINT, NULL},
    {"num_key_value_heads", "attention.head_count_kv", GGUF_HEADS, ""},
    {NULL, NULL, 0, ""},
};

static int table_has(const gguf_setting *settings, const char *here)
{
    for (; settings->there != NULL; settings++) {
        if (settings->here != NULL && strcmp(settings->here, here) == 0) return 1;
    }
    return 0;
}

static sy_status write_tokens(config_writer *w)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    uint32_t eos[SY_COUNT_OF(stops)];
    size_t n = 0;
    uint32_t bos = 0;
    sy_status st = SY_OK;

    if (sy_gguf_value_of(w->metadata, "tokenizer.ggml.bos_token_id") != NULL) {
        SY_TRY(sy_gguf_u32(&bos, w->metadata, "tokenizer.ggml.bos_token_id", w->err));
        config_write_uint(w, "bos_token_id", bos);
    }
    for (size_t i = 0; i < SY_COUNT_OF(stops); i++) {
        size_t k = 0;

        if (sy_gguf_value_of(w->metadata, stops[i]) == NULL) continue;
        SY_TRY(sy_gguf_u32(&eos[n], w->metadata, stops[i], w->err));
        while (eos[k] != eos[n]) k++;
        n += k == n;
    }
    if (n == 0) goto out;
    config_write_name(w, "eos_token_id");
    for (size_t i = 0; i < n; i++)
        sy_strbuf_printf(w->out, "%s%" PRIu32, i > 0 ? ", " : "[", eos[i]);
    sy_strbuf_puts(w->out, "]");
out:
    return st;
}

/* The name is the family's but for two, which one architecture stands for. */
static sy_status write_type(config_writer *w)
{
    const int is_deepseek = strcmp(w->family->architecture, "deepseek2") == 0;
    const int is_granite = strcmp(w->family->architecture, "granitemoe") == 0;
    const char *type = w->family->model_type;
    uint32_t gating = 1;
    sy_status st = SY_OK;

    if (is_deepseek) SY_TRY(config_optional_u32(&gating, w, "expert_gating_func"));
    if (is_deepseek && gating == 2) type = "deepseek_v3";
    if (is_granite && any_tensor(w, "ffn_gate_shexp.weight") != NULL) type = "granitemoeshared";
    config_write_name(w, "model_type");
    sy_strbuf_printf(w->out, "\"%s\"", type);
out:
    return st;
}

static sy_status refuse_dense(const config_writer *w)
{
    uint32_t n_experts = 0;
    sy_status st = config_optional_u32(&n_experts, w, "expert_count");

    if (st == SY_OK && n_experts == 0)
        st = sy_error_set(w->err, SY_EINVAL, "%s.expert_count is 0 or missing: the model is dense",
                          w->family->architecture);
    return st;
}

static sy_status write_config(config_writer *w)
{
    sy_status st;

    SY_TRY(refuse_dense(w));
    SY_TRY(write_type(w));
    config_write_uint(w, "num_hidden_layers", w->n_layers);
    SY_TRY(write_settings(w, common_settings));
    SY_TRY(write_settings(w, w->family->settings));
    for (const gguf_setting *s = usual_settings; s->there != NULL; s++) {
        const int is_other = w->family->extra == gguf_extra_deepseek && s->source == GGUF_HEADS;

        if (!is_other && !table_has(w->family->settings, s->here)) SY_TRY(write_setting(w, s));
    }
    SY_TRY(config_write_rope(w));
    if (w->family->extra != NULL) SY_TRY(w->family->extra(w));
    write_text(w, "tie_word_embeddings",
               sy_gguf_set_find(w->set, "output.weight") != NULL ? "false" : "true");
    SY_TRY(write_tokens(w));
    sy_strbuf_puts(w->out, "\n}\n");
    if (w->out->failed) st = sy_error_set(w->err, SY_ENOMEM, "no memory for the configuration");
out:
    return st;
}

sy_status sy_gguf_config(sy_strbuf *out, const sy_gguf_set *set, sy_error *err)
{
    config_writer w = {.out = out, .set = set, .metadata = sy_gguf_set_metadata(set), .err = err};
    sy_status st;

    SY_TRY(gguf_family_of(&w.family, w.metadata, err));
    SY_TRY(gguf_layers(&w.n_layers, w.family, w.metadata, err));
    st = write_config(&w);
out:
    if (st == SY_ENOTFOUND) { /* a key: the file's mistake */
        st = SY_EINVAL;
        if (err != NULL) err->status = st;
    }
    return st;
}
