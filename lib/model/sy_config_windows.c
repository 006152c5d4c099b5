/* sy_config_windows.c - how far attention reaches in each layer, and which layers rotate. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

static void set_all(sy_model_desc *desc, uint8_t flag)
{
    for (uint32_t l = 0; l < desc->n_layers; l++) desc->layer[l] |= flag;
}

/* 0: there is none. */
static sy_status read_length(uint32_t *out, const config_reader *in, const char *key)
{
    const json_t *value = config_member(in->root, key);

    *out = 0;
    return value == NULL ? SY_OK : config_check_uint(out, in, key, value, 1, SY_CONTEXT_MAX);
}

/* layer_types of a family whose layers are all alike. */
static sy_status check_types(const config_reader *in, const char *wanted)
{
    const json_t *types = config_member(in->root, "layer_types");

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

/* layer_types of a family whose layers are of two kinds; *given: there is such a list. */
static sy_status read_types(int *given, const config_reader *in, sy_model_desc *desc,
                            const char *name, uint8_t flag)
{
    const json_t *types = config_member(in->root, "layer_types");

    *given = types != NULL;
    if (types == NULL) return SY_OK;
    if (!json_is_array(types) || json_array_size(types) != desc->n_layers)
        return sy_error_set(in->err, SY_EINVAL,
                            "layer_types must be a list of one type for each of the %" PRIu32
                            " layers",
                            desc->n_layers);
    for (uint32_t l = 0; l < desc->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, l));

        if (type != NULL && strcmp(type, name) == 0)
            desc->layer[l] |= flag;
        else if (type == NULL || strcmp(type, "full_attention") != 0)
            return sy_error_set(in->err, SY_EINVAL,
                                "layer_types[%" PRIu32 "] is neither \"%s\" nor \"full_attention\"",
                                l, name);
    }
    return SY_OK;
}

static sy_status read_all(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    SY_TRY(read_length(&desc->sliding_window, in, "sliding_window"));
    if (json_is_false(config_member(in->root, "use_sliding_window"))) desc->sliding_window = 0;
    SY_TRY(check_types(in, desc->sliding_window > 0 ? "sliding_attention" : "full_attention"));
    /* Phi-3.5-MoE's is as long as the context, which is to say that there is none. */
    if (desc->sliding_window >= desc->context) desc->sliding_window = 0;
    if (desc->sliding_window > 0) set_all(desc, SY_LAYER_SLIDING);
out:
    return st;
}

/* Published files have a number in sliding_window and use_sliding_window false beside it. */
static sy_status read_switch(const config_reader *in)
{
    int is_on = 0;
    const sy_status st = config_read_bool(&is_on, in, "use_sliding_window");

    if (st != SY_OK) return st;
    if (is_on)
        return sy_error_set(in->err, SY_EINVAL,
                            "use_sliding_window is true: this option is not supported for %s",
                            in->family->name);
    return check_types(in, "full_attention");
}

static sy_status read_alternating(const config_reader *in, sy_model_desc *desc)
{
    int given = 0;
    sy_status st;

    SY_TRY(read_length(&desc->sliding_window, in, "sliding_window"));
    SY_TRY(read_types(&given, in, desc, "sliding_attention", SY_LAYER_SLIDING));
    for (uint32_t l = 0; !given && l < desc->n_layers; l += 2) desc->layer[l] |= SY_LAYER_SLIDING;
    if (desc->sliding_window == 0)
        return sy_error_set(in->err, SY_EINVAL, "sliding_window is missing");
out:
    return st;
}

/* Llama 4: no_rope_layers has a 1 for each layer that rotates; without it every fourth does not. */
static sy_status read_rotating(const config_reader *in, sy_model_desc *desc)
{
    const json_t *list = config_member(in->root, "no_rope_layers");
    const json_t *interval = config_member(in->root, "no_rope_layer_interval");
    const int given = json_array_size(list) > 0;
    uint32_t step = 4;
    sy_status st = SY_OK;

    if (interval != NULL)
        SY_TRY(config_check_uint(&step, in, "no_rope_layer_interval", interval, 1, SY_LAYERS_MAX));
    if (given && json_array_size(list) != desc->n_layers)
        return sy_error_set(in->err, SY_EINVAL,
                            "no_rope_layers has %zu numbers for %" PRIu32 " layers",
                            json_array_size(list), desc->n_layers);
    for (uint32_t l = 0; l < desc->n_layers; l++) {
        uint32_t rotates = (l + 1) % step != 0;

        if (given)
            SY_TRY(
                config_check_uint(&rotates, in, "no_rope_layers", json_array_get(list, l), 0, 1));
        if (!rotates) desc->layer[l] |= SY_LAYER_NO_ROPE;
    }
out:
    return st;
}

static sy_status read_temperature(const config_reader *in, sy_model_desc *desc)
{
    const json_t *tuning = config_member(in->root, "attn_temperature_tuning");
    sy_status st = SY_OK;

    if (tuning != NULL && config_is_off(tuning)) return SY_OK;
    desc->temperature_floor = 8192.0f;
    desc->temperature_scale = 0.1f;
    SY_TRY(config_read_float(&desc->temperature_floor, in, "floor_scale",
                             config_member(in->root, "floor_scale"), SY_CONTEXT_MAX, 0));
    SY_TRY(config_read_float(&desc->temperature_scale, in, "attn_scale",
                             config_member(in->root, "attn_scale"), 1e3, 1));
out:
    return st;
}

static sy_status read_chunks(const config_reader *in, sy_model_desc *desc)
{
    int given = 0;
    sy_status st;

    SY_TRY(read_rotating(in, desc));
    SY_TRY(read_temperature(in, desc));
    SY_TRY(read_length(&desc->attention_chunk, in, "attention_chunk_size"));
    SY_TRY(read_types(&given, in, desc, "chunked_attention", SY_LAYER_CHUNKED));
    for (uint32_t l = 0; l < desc->n_layers; l++) {
        if (!given && !(desc->layer[l] & SY_LAYER_NO_ROPE)) desc->layer[l] |= SY_LAYER_CHUNKED;
        if (desc->attention_chunk == 0) desc->layer[l] &= (uint8_t)~SY_LAYER_CHUNKED;
    }
out:
    return st;
}

static sy_status read_never(const config_reader *in)
{
    uint32_t length;
    const sy_status st = read_length(&length, in, "sliding_window");

    if (st != SY_OK) return st;
    if (length > 0 && !json_is_false(config_member(in->root, "use_sliding_window")))
        return sy_error_set(in->err, SY_EINVAL,
                            "sliding_window is %" PRIu32 ", but this family has none", length);
    return check_types(in, "full_attention");
}

sy_status config_read_windows(const config_reader *in, sy_model_desc *desc)
{
    switch (in->family->window) {
    case SY_WINDOW_ALL: return read_all(in, desc);
    case SY_WINDOW_SWITCH: return read_switch(in);
    case SY_WINDOW_TYPES: return read_alternating(in, desc);
    case SY_WINDOW_CHUNKS: return read_chunks(in, desc);
    case SY_WINDOW_NEVER: break;
    }
    return read_never(in);
}
