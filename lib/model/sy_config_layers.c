/* sy_config_layers.c - which layers have experts and which an MLP of their own, and what every
 * token passes beside the experts. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sy_config_read.h"
#include "sy_json_load.h"

static void set_dense(sy_model_desc *desc, uint32_t layer)
{
    desc->layer[layer] |= SY_LAYER_DENSE;
}

/* *out keeps its default when there is no value. */
static sy_status read_count(uint32_t *out, const config_reader *in, const char *key, uint32_t min,
                            uint32_t max)
{
    const json_t *value = config_member(in->root, key);

    return value == NULL ? SY_OK : config_check_uint(out, in, key, value, min, max);
}

/* Calls mark for every layer that a list of numbers names. */
static sy_status each_listed(const config_reader *in, const char *key, sy_model_desc *desc,
                             void (*mark)(sy_model_desc *desc, uint32_t layer))
{
    const json_t *list = config_member(in->root, key);

    if (list != NULL && !json_is_array(list))
        return sy_error_set(in->err, SY_EINVAL, "%s is %s, where a list is needed", key,
                            sy_json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t layer = 0;
        const sy_status st =
            config_check_uint(&layer, in, key, json_array_get(list, i), 0, desc->n_layers - 1);

        if (st != SY_OK) return st;
        mark(desc, layer);
    }
    return SY_OK;
}

static sy_status read_listed(const config_reader *in, sy_model_desc *desc)
{
    uint32_t step = 1;
    sy_status st;

    SY_TRY(read_count(&step, in, "decoder_sparse_step", 1, SY_LAYERS_MAX));
    for (uint32_t l = 0; l < desc->n_layers; l++)
        if ((l + 1) % step != 0) set_dense(desc, l);
    st = each_listed(in, "mlp_only_layers", desc, set_dense);
out:
    return st;
}

static sy_status read_first(const config_reader *in, sy_model_desc *desc)
{
    uint32_t first = 0, step = 1;
    sy_status st;

    SY_TRY(read_count(&first, in, "first_k_dense_replace", 0, SY_LAYERS_MAX));
    SY_TRY(read_count(&step, in, "moe_layer_freq", 1, SY_LAYERS_MAX));
    for (uint32_t l = 0; l < desc->n_layers; l++)
        if (l < first || l % step != 0) set_dense(desc, l);
out:
    return st;
}

static sy_status read_range(const config_reader *in, sy_model_desc *desc)
{
    const json_t *last = config_member(in->root, "moe_layer_end_index");
    uint32_t begin = 1, end = desc->n_layers - 1, step = 1;
    sy_status st;

    SY_TRY(read_count(&begin, in, "moe_layer_start_index", 0, SY_LAYERS_MAX));
    SY_TRY(read_count(&step, in, "moe_layer_interval", 1, SY_LAYERS_MAX));
    /* -1 is the last layer. */
    if (!json_is_integer(last) || json_integer_value(last) != -1)
        SY_TRY(read_count(&end, in, "moe_layer_end_index", 0, SY_LAYERS_MAX));
    for (uint32_t l = 0; l < desc->n_layers; l++)
        if (l < begin || l > end || (l + 1) % step != 0) set_dense(desc, l);
out:
    return st;
}

static void set_sparse(sy_model_desc *desc, uint32_t layer)
{
    desc->layer[layer] &= (uint8_t)~SY_LAYER_DENSE;
}

static sy_status read_step(const config_reader *in, sy_model_desc *desc)
{
    uint32_t step = 1;
    sy_status st;

    SY_TRY(read_count(&step, in, "interleave_moe_layer_step", 1, SY_LAYERS_MAX));
    if (config_member(in->root, "moe_layers") != NULL) step = SY_LAYERS_MAX + 1;
    for (uint32_t l = 0; l < desc->n_layers; l++)
        if ((l + 1) % step != 0) set_dense(desc, l);
    st = each_listed(in, "moe_layers", desc, set_sparse);
out:
    return st;
}

static sy_status read_dense(const config_reader *in, sy_model_desc *desc)
{
    int any_dense = 0, any_sparse = 0;
    sy_status st = SY_OK;

    switch (in->family->dense) {
    case SY_DENSE_NEVER: return SY_OK;
    case SY_DENSE_LISTED: st = read_listed(in, desc); break;
    case SY_DENSE_FIRST: st = read_first(in, desc); break;
    case SY_DENSE_RANGE: st = read_range(in, desc); break;
    case SY_DENSE_STEP: st = read_step(in, desc); break;
    }
    if (st != SY_OK) return st;
    for (uint32_t l = 0; l < desc->n_layers; l++) {
        if (sy_model_has_experts(desc, l))
            any_sparse = 1;
        else
            any_dense = 1;
    }
    if (!any_sparse)
        return sy_error_set(in->err, SY_EINVAL,
                            "no layer has experts: only Mixture-of-Experts models are served");
    return any_dense
               ? config_read_uint_of(&desc->dense_ffn, in, &in->family->dense_ffn, 1, SY_DIM_MAX)
               : SY_OK;
}

static sy_status read_shared(const config_reader *in, sy_model_desc *desc)
{
    const sy_key *key = &in->family->shared_key;
    const json_t *value = NULL;
    const char *name;
    uint32_t n = in->family->shared == SY_SHARED_ALWAYS;
    sy_status st = SY_OK;

    if (in->family->shared == SY_SHARED_NEVER) return SY_OK;
    if (key->alias[0] != NULL) SY_TRY(config_find_alias(&value, &name, in, key));
    if (value != NULL) SY_TRY(config_read_uint_of(&n, in, key, 0, SY_DIM_MAX));
    if (in->family->shared == SY_SHARED_ALWAYS && n != 1)
        return sy_error_set(in->err, SY_EINVAL, "%s is %" PRIu32 ", but only 1 is supported",
                            key->alias[0], n);
    if (in->family->shared != SY_SHARED_WIDTH && __builtin_mul_overflow(n, desc->expert_ffn, &n))
        n = UINT32_MAX;
    if (n > SY_DIM_MAX)
        return sy_error_set(in->err, SY_EINVAL, "%s makes a width above the limit of %u",
                            key->alias[0], SY_DIM_MAX);
    desc->shared_ffn = n;
    desc->shared_gate = n > 0 && in->family->shared_gate;
out:
    return st;
}

/* Where intermediate_size is the experts' width, Hunyuan's file says it a second time, for every
 * layer. */
static sy_status check_width(const config_reader *in, const sy_model_desc *desc)
{
    static const sy_key second = {{"moe_intermediate_size"}};
    const char *key = in->family->expert_ffn.alias[0];
    uint32_t width = desc->expert_ffn;
    sy_status st = SY_OK;

    if (strcmp(key, second.alias[0]) == 0 || config_member(in->root, second.alias[0]) == NULL)
        return SY_OK;
    SY_TRY(config_read_uint_of(&width, in, &second, 1, SY_DIM_MAX));
    if (width != desc->expert_ffn)
        return sy_error_set(in->err, SY_EINVAL,
                            "%s is %" PRIu32
                            ", but %s has experts as wide as %s, which is %" PRIu32,
                            second.alias[0], width, in->family->name, key, desc->expert_ffn);
out:
    return st;
}

sy_status config_read_layers(const config_reader *in, sy_model_desc *desc)
{
    sy_status st;

    SY_TRY(check_width(in, desc));
    SY_TRY(read_dense(in, desc));
    st = read_shared(in, desc);
out:
    return st;
}
