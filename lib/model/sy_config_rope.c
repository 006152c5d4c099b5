/* sy_config_rope.c - how a model rotates: rope_theta, and the scaling of rope_scaling (older files)
 * or rope_parameters (newer ones). Formulas of the defaults: transformers' modeling_rope_utils.py.
 */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

enum { KEY_BYTES = 128 };

/* One dictionary of settings, and the key it stands under. */
typedef struct rope_reader {
    const config_reader *in;
    const char *key;
    const json_t *object;
} rope_reader;

/* *out keeps its value when there is none. */
static sy_status read_number(float *out, const rope_reader *r, const char *name, int zero_ok)
{
    char key[KEY_BYTES];

    snprintf(key, sizeof(key), "%s.%s", r->key, name);
    return config_read_float(out, r->in, key, config_member(r->object, name), FLT_MAX, zero_ok);
}

static sy_status require_number(float *out, const rope_reader *r, const char *name)
{
    if (config_member(r->object, name) == NULL)
        return sy_error_set(r->in->err, SY_EINVAL, "%s.%s is missing", r->key, name);
    return read_number(out, r, name, 0);
}

/* What follows from numbers of the file must be one that fp32 holds. */
static sy_status derive(float *out, const rope_reader *r, const char *name, double value)
{
    if (!(fabs(value) <= FLT_MAX))
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%s.%s gives a factor of %g, which is no number "
                            "to compute with",
                            r->key, name, value);
    *out = (float)value;
    return SY_OK;
}

static sy_status read_original(const rope_reader *r, sy_model_desc *desc, int required)
{
    static const char name[] = "original_max_position_embeddings";
    const json_t *value = config_member(r->object, name);
    char key[KEY_BYTES];

    desc->rope.original_context = desc->context;
    if (value == NULL && !required) return SY_OK;
    if (value == NULL) return sy_error_set(r->in->err, SY_EINVAL, "%s.%s is missing", r->key, name);
    snprintf(key, sizeof(key), "%s.%s", r->key, name);
    return config_check_uint(&desc->rope.original_context, r->in, key, value, 1, SY_CONTEXT_MAX);
}

static sy_status read_llama3(const rope_reader *r, sy_model_desc *desc)
{
    sy_rope_desc *rope = &desc->rope;
    sy_status st;

    SY_TRY(require_number(&rope->low_freq, r, "low_freq_factor"));
    SY_TRY(require_number(&rope->high_freq, r, "high_freq_factor"));
    SY_TRY(read_original(r, desc, 1));
    if (rope->low_freq > rope->high_freq)
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%s.low_freq_factor is %g, above high_freq_factor, which is %g", r->key,
                            (double)rope->low_freq, (double)rope->high_freq);
out:
    return st;
}

/* What scores of a context that much longer are worth: 1 up to the trained length. */
static double yarn_scale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static sy_status read_yarn_factor(const rope_reader *r, sy_rope_desc *rope)
{
    float mscale = 0.0f, mscale_all = 0.0f;
    double factor;
    sy_status st;

    SY_TRY(read_number(&mscale, r, "mscale", 1));
    SY_TRY(read_number(&mscale_all, r, "mscale_all_dim", 1));
    factor = yarn_scale((double)rope->factor, 1.0);
    if (mscale != 0.0f && mscale_all != 0.0f)
        factor = yarn_scale((double)rope->factor, (double)mscale) /
                 yarn_scale((double)rope->factor, (double)mscale_all);
    SY_TRY(derive(&rope->attention_factor, r, "mscale", factor));
    SY_TRY(read_number(&rope->attention_factor, r, "attention_factor", 0));
out:
    return st;
}

/* A context that was stretched is served in its new length, also where max_position_embeddings
 * still has the old one, as model cards tell users to leave it. */
static void stretch_context(sy_model_desc *desc)
{
    const double stretched = (double)desc->rope.factor * desc->rope.original_context;

    if (stretched > desc->context)
        desc->context = (uint32_t)SY_MIN(stretched, (double)SY_CONTEXT_MAX);
}

static sy_status read_yarn(const rope_reader *r, sy_model_desc *desc)
{
    const json_t *truncate = config_member(r->object, "truncate");
    sy_rope_desc *rope = &desc->rope;
    sy_status st;

    rope->beta_fast = 32.0f;
    rope->beta_slow = 1.0f;
    rope->truncate = !json_is_false(truncate);
    if (truncate != NULL && !json_is_boolean(truncate))
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%s.truncate is %s, where true or false is needed", r->key,
                            sy_json_kind(truncate));
    SY_TRY(read_number(&rope->beta_fast, r, "beta_fast", 0));
    SY_TRY(read_number(&rope->beta_slow, r, "beta_slow", 0));
    if (rope->beta_slow > rope->beta_fast)
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%s.beta_slow is %g, above beta_fast, which is %g", r->key,
                            (double)rope->beta_slow, (double)rope->beta_fast);
    if (desc->rope_theta <= 1.0f)
        return sy_error_set(r->in->err, SY_EINVAL, "rope_theta is %g: yarn needs one above 1",
                            (double)desc->rope_theta);
    SY_TRY(read_original(r, desc, 0));
    SY_TRY(read_yarn_factor(r, rope));
    stretch_context(desc);
out:
    return st;
}

/* Hunyuan's has one base for all lengths. The general one differs from no scaling only past
 * max_position_embeddings, where nothing is served. */
static sy_status read_dynamic(const rope_reader *r, sy_model_desc *desc)
{
    const double d = desc->rotary_dim;
    float alpha = 1.0f;
    sy_status st;

    SY_TRY(read_number(&alpha, r, "alpha", 0));
    if (alpha < 1.0f || (alpha != 1.0f && desc->rotary_dim <= 2))
        return sy_error_set(r->in->err, SY_EINVAL, "%s.alpha is %g: it must be 1 or more", r->key,
                            (double)alpha);
    if (alpha != 1.0f)
        st = derive(&desc->rope_theta, r, "alpha",
                    (double)desc->rope_theta * pow((double)alpha, d / (d - 2.0)));
out:
    return st;
}

/* One factor for each pair. */
static sy_status read_factors(float *out, const rope_reader *r, const char *name, uint32_t n)
{
    const json_t *list = config_member(r->object, name);
    char key[KEY_BYTES];

    snprintf(key, sizeof(key), "%s.%s", r->key, name);
    if (!json_is_array(list) || json_array_size(list) != n)
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%s must be a list of %" PRIu32 " numbers, one for each pair", key, n);
    for (uint32_t i = 0; i < n; i++) {
        const sy_status st =
            config_read_float(&out[i], r->in, key, json_array_get(list, i), FLT_MAX, 0);

        if (st != SY_OK) return st;
    }
    return SY_OK;
}

/* original_max_position_embeddings may stand beside the dictionary. */
static sy_status read_long_original(const rope_reader *r, sy_model_desc *desc)
{
    const json_t *outer = config_member(r->in->root, "original_max_position_embeddings");
    const sy_status st = read_original(r, desc, outer == NULL);

    if (st != SY_OK || config_member(r->object, "original_max_position_embeddings") != NULL)
        return st;
    return config_check_uint(&desc->rope.original_context, r->in,
                             "original_max_position_embeddings", outer, 1, SY_CONTEXT_MAX);
}

/* Phi-3.5-MoE's own factors, or the one of the paper (arXiv:2402.13753), sqrt(1 + ln s / ln L). */
static sy_status read_long(const rope_reader *r, sy_model_desc *desc)
{
    sy_rope_desc *rope = &desc->rope;
    const uint32_t pairs = desc->rotary_dim / 2;
    double growth;
    sy_status st;

    if (pairs > SY_ROPE_PAIRS_MAX)
        return sy_error_set(r->in->err, SY_EINVAL,
                            "%" PRIu32 " pairs of each head rotate: longrope is supported for %u",
                            pairs, SY_ROPE_PAIRS_MAX);
    rope->type = SY_ROPE_LONG;
    SY_TRY(read_long_original(r, desc));
    SY_TRY(read_factors(rope->short_factor, r, "short_factor", pairs));
    SY_TRY(read_factors(rope->long_factor, r, "long_factor", pairs));
    rope->factor = (float)desc->context / (float)rope->original_context;
    SY_TRY(read_number(&rope->factor, r, "factor", 0));
    growth = log((double)rope->factor) / log((double)rope->original_context);
    SY_TRY(derive(&rope->attention_factor, r, "original_max_position_embeddings",
                  rope->factor > 1.0f ? sqrt(1.0 + growth) : 1.0));
    SY_TRY(read_number(&rope->attention_factor, r, "attention_factor", 0));
    rope->long_attention_factor = rope->attention_factor;
    SY_TRY(read_number(&rope->attention_factor, r, "short_mscale", 0));
    SY_TRY(read_number(&rope->long_attention_factor, r, "long_mscale", 0));
out:
    return st;
}

/* The scaling's name; NULL: none is asked for. */
static sy_status read_type(const char **type, const rope_reader *r)
{
    const json_t *name = config_member(r->object, "rope_type");

    *type = NULL;
    if (name == NULL) name = config_member(r->object, "type");
    if (name == NULL && config_member(r->object, "factor") != NULL)
        return sy_error_set(r->in->err, SY_EINVAL, "%s.factor needs %s.rope_type", r->key, r->key);
    if (name == NULL) return SY_OK;
    if (!json_is_string(name))
        return sy_error_set(r->in->err, SY_EINVAL, "%s.rope_type is %s, where a string is needed",
                            r->key, sy_json_kind(name));
    if (strcmp(json_string_value(name), "default") != 0) *type = json_string_value(name);
    return SY_OK;
}

/* Settings of each layer type. */
static sy_status refuse_parts(const rope_reader *r)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)r->object, name, value)
    {
        if (json_is_object(value))
            return sy_error_set(r->in->err, SY_EINVAL, "%s.%.64s is not supported", r->key, name);
    }
    return SY_OK;
}

static sy_status read_scaling(const config_reader *in, const char *key, sy_model_desc *desc)
{
    const rope_reader r = {in, key, config_member(in->root, key)};
    sy_rope_desc *rope = &desc->rope;
    const char *type;
    sy_status st;

    if (r.object == NULL) return SY_OK;
    if (!json_is_object(r.object))
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where an object is needed", key,
                            sy_json_kind(r.object));
    SY_TRY(refuse_parts(&r));
    SY_TRY(read_type(&type, &r));
    if (type == NULL) return SY_OK;
    if (rope->type != SY_ROPE_PLAIN)
        return sy_error_set(in->err, SY_EINVAL, "rope_scaling and %s both ask for a scaling", key);
    if (strcmp(type, "dynamic") == 0) return read_dynamic(&r, desc);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return read_long(&r, desc);
    if (strcmp(type, "linear") == 0)
        rope->type = SY_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        rope->type = SY_ROPE_LLAMA3;
    else if (strcmp(type, "yarn") == 0)
        rope->type = SY_ROPE_YARN;
    else
        return sy_error_set(in->err, SY_EINVAL,
                            "%s.rope_type \"%.64s\" is not supported; default, linear, llama3, "
                            "yarn, longrope and dynamic are",
                            key, type);
    SY_TRY(require_number(&rope->factor, &r, "factor"));
    if (rope->factor < 1.0f)
        return sy_error_set(in->err, SY_EINVAL, "%s.factor is %g: a context only grows", key,
                            (double)rope->factor);
    if (rope->type == SY_ROPE_LLAMA3) SY_TRY(read_llama3(&r, desc));
    if (rope->type == SY_ROPE_YARN) SY_TRY(read_yarn(&r, desc));
out:
    return st;
}

static sy_status read_theta(const config_reader *in, sy_model_desc *desc)
{
    const json_t *outer = config_member(in->root, "rope_theta");
    const json_t *inner = config_member(config_member(in->root, "rope_parameters"), "rope_theta");
    float other;
    sy_status st;

    desc->rope_theta = in->family->rope_theta;
    SY_TRY(config_read_float(&desc->rope_theta, in, "rope_theta", outer, FLT_MAX, 0));
    other = desc->rope_theta;
    SY_TRY(config_read_float(&other, in, "rope_parameters.rope_theta", inner, FLT_MAX, 0));
    if (outer != NULL && other != desc->rope_theta)
        return sy_error_set(in->err, SY_EINVAL,
                            "rope_theta is %g, but rope_parameters.rope_theta is %g",
                            (double)desc->rope_theta, (double)other);
    desc->rope_theta = other;
out:
    return st;
}

static int rotates_part(const config_reader *in)
{
    return (in->family->reads & SY_READS_PART) != 0;
}

/* The part of each head as a factor, under one of its keys; *rotary_dim keeps its value when there
 * is none. */
static sy_status read_part(uint32_t *rotary_dim, const config_reader *in, const json_t *object,
                           const char *key, uint32_t head_dim)
{
    const json_t *value = config_member(object, "partial_rotary_factor");
    float factor = 1.0f;
    const sy_status st = config_read_float(&factor, in, key, value, 1.0, 0);

    if (st != SY_OK || value == NULL) return st;
    if (!rotates_part(in) && factor != 1.0f)
        return sy_error_set(in->err, SY_EINVAL,
                            "%s is %g, but %s rotates whole heads: it must be 1", key,
                            (double)factor, in->family->name);
    *rotary_dim = (uint32_t)((double)factor * head_dim);
    return SY_OK;
}

/* How much of each head rotates; all spellings are read, and none means all of it. */
static sy_status read_rotary_dim(const config_reader *in, sy_model_desc *desc)
{
    const json_t *value = config_member(in->root, "rotary_dim");
    sy_status st;

    if (desc->mla.kv_rank > 0) return SY_OK; /* qk_rope_head_dim has been read */
    desc->rotary_dim = desc->head_dim;
    SY_TRY(read_part(&desc->rotary_dim, in, in->root, "partial_rotary_factor", desc->head_dim));
    SY_TRY(read_part(&desc->rotary_dim, in, config_member(in->root, "rope_scaling"),
                     "rope_scaling.partial_rotary_factor", desc->head_dim));
    SY_TRY(read_part(&desc->rotary_dim, in, config_member(in->root, "rope_parameters"),
                     "rope_parameters.partial_rotary_factor", desc->head_dim));
    if (value != NULL && rotates_part(in))
        SY_TRY(config_check_uint(&desc->rotary_dim, in, "rotary_dim", value, 2, desc->head_dim));
    if (desc->rotary_dim < 2 || desc->rotary_dim % 2 != 0)
        return sy_error_set(in->err, SY_EINVAL,
                            "%" PRIu32 " elements of each head would rotate: it must be an even "
                            "number of them",
                            desc->rotary_dim);
out:
    return st;
}

sy_status config_read_rope(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    desc->rope = (sy_rope_desc){.factor = 1.0f, .attention_factor = 1.0f};
    desc->rope.interleaved = in->family->rope_interleaved;
    SY_TRY(config_read_bool(&desc->rope.interleaved, in, "rope_interleave"));
    SY_TRY(read_theta(in, desc));
    SY_TRY(read_rotary_dim(in, desc));
    SY_TRY(read_scaling(in, "rope_scaling", desc));
    SY_TRY(read_scaling(in, "rope_parameters", desc));
out:
    return st;
}
