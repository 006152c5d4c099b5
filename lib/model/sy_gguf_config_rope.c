/* sy_gguf_config_rope.c - how a model rotates: rope_theta and rope_scaling, from metadata and from
 * the factors that some files have as tensors. */
#include "sy_gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both published Phi-3.5-MoE checkpoints; the generic factor that files carry, attn_factor, is
 * another one. */
#define PHI_MSCALE "1.243163121016122"

#define ROTARY_MAX 65536u /* rope factors that are read */

/* Every element of a vector of at most ROTARY_MAX. *out: the caller frees it. */
static sy_status read_vector(float **out, uint32_t *n, const config_writer *w,
                             const sy_gguf_tensor *tensor)
{
    const uint64_t length = tensor->tensor.n_elements;
    sy_gguf_place place = {.n_matrices = 1, .n_rows = 1, .n_columns = length};
    sy_status st;

    *out = NULL;
    if (tensor->tensor.rank != 1 || length > ROTARY_MAX) {
        return sy_error_set(w->err, SY_EINVAL, "tensor \"%s\" is no vector of at most %u",
                            tensor->tensor.name, ROTARY_MAX);
    }
    *n = (uint32_t)length;
    *out = calloc(length, sizeof(**out));
    if (*out == NULL) return sy_error_set(w->err, SY_ENOMEM, "no memory for rope factors");
    st = sy_gguf_read_rows(*out, tensor, &place, 0, 0, 1, w->err);
    for (uint64_t i = 0; i < length && st == SY_OK; i++) {
        if (!isfinite((*out)[i]))
            st = sy_error_set(w->err, SY_EINVAL, "tensor \"%s\" holds no number at %" PRIu64,
                              tensor->tensor.name, i);
    }
    return st;
}

static sy_status write_vector(config_writer *w, const char *name, const char *tensor_name)
{
    const sy_gguf_tensor *tensor = sy_gguf_set_find(w->set, tensor_name);
    float *values = NULL;
    char text[32];
    uint32_t n = 0;
    sy_status st;

    if (tensor == NULL)
        return sy_error_set(w->err, SY_EINVAL, "the tensor \"%s\" is missing", tensor_name);
    st = read_vector(&values, &n, w, tensor);
    if (st == SY_OK) {
        sy_strbuf_printf(w->out, ", \"%s\": [", name);
        for (uint32_t i = 0; i < n; i++) {
            config_format_float(text, values[i]);
            sy_strbuf_printf(w->out, "%s%s", i > 0 ? ", " : "", text);
        }
        sy_strbuf_puts(w->out, "]");
    }
    free(values);
    return st;
}

static sy_status write_longrope(config_writer *w, uint32_t original)
{
    sy_status st;

    config_write_name(w, "rope_scaling");
    sy_strbuf_puts(w->out, "{\"type\": \"longrope\"");
    SY_TRY(write_vector(w, "short_factor", "rope_factors_short.weight"));
    SY_TRY(write_vector(w, "long_factor", "rope_factors_long.weight"));
    sy_strbuf_printf(w->out,
                     ", \"short_mscale\": " PHI_MSCALE ", \"long_mscale\": " PHI_MSCALE
                     ", \"original_max_position_embeddings\": %" PRIu32 "}",
                     original);
    config_write_uint(w, "original_max_position_embeddings", original);
out:
    return st;
}

/* By what llama3 scaling divides the frequency of pair i of d / 2. */
static double llama3_divisor(double theta, uint32_t i, uint32_t n, double factor, double low,
                             double high)
{
    const double original = 8192.0;
    const double wave = 2.0 * M_PI * pow(theta, (double)i / n);
    double smooth;

    if (wave < original / high) return 1.0;
    if (wave > original / low || high <= low) return factor;
    smooth = (original / wave - low) / (high - low);
    return 1.0 / ((1.0 - smooth) / factor + smooth);
}

/* The settings that give the factors of the tensor rope_freqs: the largest is `factor`, and of the
 * others published models have two sets. */
static sy_status write_llama3(config_writer *w, const sy_gguf_tensor *tensor, float theta)
{
    static const double bounds[][2] = {{1.0, 4.0}, {1.0, 1.0}};
    float *freqs = NULL;
    float factor = 1.0f;
    uint32_t n = 0;
    char text[32];
    sy_status st;

    SY_TRY(read_vector(&freqs, &n, w, tensor));
    for (uint32_t i = 0; i < n; i++) factor = SY_MAX(factor, freqs[i]);
    if (factor == 1.0f) goto out;
    for (size_t b = 0; b < SY_COUNT_OF(bounds); b++) {
        uint32_t i = 0;

        for (; i < n; i++) {
            const double want =
                llama3_divisor((double)theta, i, n, (double)factor, bounds[b][0], bounds[b][1]);

            if (!(fabs((double)freqs[i] - want) <= 1e-3 * want)) break;
        }
        if (i < n) continue;
        config_format_float(text, factor);
        config_write_name(w, "rope_scaling");
        sy_strbuf_printf(w->out,
                         "{\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %g, "
                         "\"high_freq_factor\": %g, \"original_max_position_embeddings\": 8192}",
                         text, bounds[b][0], bounds[b][1]);
        goto out;
    }
    st = sy_error_set(w->err, SY_EINVAL,
                      "the factors of rope_freqs.weight are of no llama3 scaling that is known");
out:
    free(freqs);
    return st;
}

static sy_status yarn_member(config_writer *w, const char *there, const char *here, float scale)
{
    float value = 0.0f;
    char text[32];
    sy_status st;

    if (!config_has_key(w, here)) return SY_OK;
    st = config_key_f32(&value, w, here);
    if (st != SY_OK) return st;
    value = (float)((double)value * (double)scale);
    if (!isfinite(value)) return sy_error_set(w->err, SY_EINVAL, "%s is no number", here);
    (void)snprintf(text, sizeof(text), "%.6g", (double)value);
    sy_strbuf_printf(w->out, ", \"%s\": %s", there, text);
    return SY_OK;
}

static sy_status write_scaled(config_writer *w, const char *type, uint32_t original)
{
    const int is_yarn = strcmp(type, "yarn") == 0;
    const int is_mla = strcmp(w->family->architecture, "deepseek2") == 0;
    float factor = 0.0f;
    char text[32];
    sy_status st;

    SY_TRY(config_key_f32(&factor, w, "rope.scaling.factor"));
    if (!isfinite(factor) || factor <= 0.0f)
        return sy_error_set(w->err, SY_EINVAL, "rope.scaling.factor is not above 0");
    config_format_float(text, factor);
    config_write_name(w, "rope_scaling");
    sy_strbuf_printf(w->out, "{\"rope_type\": \"%s\", \"factor\": %s", type, text);
    if (is_yarn) {
        sy_strbuf_printf(w->out, ", \"original_max_position_embeddings\": %" PRIu32, original);
        SY_TRY(yarn_member(w, "beta_fast", "rope.scaling.yarn_beta_fast", 1.0f));
        SY_TRY(yarn_member(w, "beta_slow", "rope.scaling.yarn_beta_slow", 1.0f));
    }
    if (is_yarn && is_mla) { /* published models have both alike */
        SY_TRY(yarn_member(w, "mscale", "rope.scaling.yarn_log_multiplier", 10.0f));
        SY_TRY(yarn_member(w, "mscale_all_dim", "rope.scaling.yarn_log_multiplier", 10.0f));
    } else if (is_yarn) {
        SY_TRY(yarn_member(w, "attention_factor", "rope.scaling.yarn_attn_factor", 1.0f));
    }
    if (strcmp(w->family->architecture, "gpt-oss") == 0)
        sy_strbuf_puts(w->out, ", \"truncate\": false");
    sy_strbuf_puts(w->out, "}");
out:
    return st;
}

static int text_is(const sy_gguf_string *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->s, text, s->n) == 0;
}

sy_status config_write_rope(config_writer *w)
{
    const sy_gguf_tensor *freqs = sy_gguf_set_find(w->set, "rope_freqs.weight");
    sy_gguf_string type = {.s = "none", .n = 4};
    char key[GGUF_KEY_BYTES];
    float theta = 10000.0f;
    uint32_t original = 0;
    sy_status st;

    SY_TRY(config_optional_f32(&theta, w, "rope.freq_base"));
    SY_TRY(config_write_float(w, "rope_theta", theta));
    if (freqs != NULL) return write_llama3(w, freqs, theta);
    gguf_key_name(key, w->family, "rope.scaling.type");
    if (sy_gguf_value_of(w->metadata, key) != NULL)
        SY_TRY(sy_gguf_string_of(&type, w->metadata, key, w->err));
    SY_TRY(config_key_u32(&original, w, "context_length"));
    SY_TRY(config_optional_u32(&original, w, "rope.scaling.original_context_length"));
    if (sy_gguf_set_find(w->set, "rope_factors_long.weight") != NULL)
        return write_longrope(w, original);
    if (text_is(&type, "none")) return SY_OK;
    if (text_is(&type, "linear")) return write_scaled(w, "linear", original);
    if (text_is(&type, "yarn")) return write_scaled(w, "yarn", original);
    st = sy_error_set(w->err, SY_EINVAL,
                      "%s is \"%.*s\", which is not supported; none, linear and yarn are", key,
                      (int)SY_MIN(type.n, (size_t)64), type.s);
out:
    return st;
}
