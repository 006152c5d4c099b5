/* inspect_facts.c - adding up a checkpoint's tensors by what they are to the tiers. */
#include "inspect_facts.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sy_file.h"
#include "sy_kernels.h"
#include "sy_shard.h"
#include "sy_tokenizer.h"
#include "sy_trunk.h"
#include "tool_placement.h"

enum { PATH_BYTES = 4096 };

/* ---- weights ---- */

/* Encoded weights can be held as they are where experts have such: a checkpoint of nothing of the
 * kind is refused. */
static void list_formats(inspect_facts *f)
{
    static const sy_dtype formats[INSPECT_FORMATS_MAX] = {SY_DTYPE_NONE, SY_FP8, SY_MXFP4, SY_Q8,
                                                          SY_Q4};

    for (size_t i = 0; i < INSPECT_FORMATS_MAX; i++)
        if (sy_shard_check_weights(f->model, formats[i], NULL) == SY_OK)
            f->format[f->n_formats++].weights = formats[i];
}

/* What a matrix is held as: gates as they read whatever the weights are, and so are what latent
 * attention keeps turned, and all that is not encoded so. */
static sy_dtype held_as(const sy_tensor *tensor, sy_role role, sy_dtype weights)
{
    const int is_encoded = sy_dtype_is_encoded(weights);

    if (weights == SY_DTYPE_NONE || role == SY_ROLE_GATE) return tensor->dtype;
    if (is_encoded && (role == SY_ROLE_KV_B || sy_tensor_encoded(tensor) != weights))
        return tensor->dtype;
    return weights;
}

/* How a matrix or a vector lies in memory once a tier has loaded it: matrices in panels, vectors
 * widened, the embedding as it is. */
static uint64_t loaded_bytes(const sy_tensor *tensor, sy_role role, sy_dtype weights)
{
    if (role == SY_ROLE_EMBED) return tensor->bytes;
    if (tensor->rank < 2) return tensor->n_elements * sizeof(float);
    return sy_panels_bytes(held_as(tensor, role, weights), (uint32_t)tensor->shape[0],
                           (uint32_t)tensor->shape[1]);
}

static void add_trunk_bytes(inspect_facts *f, const sy_tensor *tensor, sy_role role)
{
    for (size_t i = 0; i < f->n_formats; i++)
        f->format[i].trunk_bytes += loaded_bytes(tensor, role, f->format[i].weights);
}

static void add_tensor(inspect_part *part, const sy_tensor *tensor, sy_role role)
{
    part->parameters += tensor->n_elements;
    part->stored_bytes += tensor->bytes;
    part->loaded_bytes += loaded_bytes(tensor, role, SY_DTYPE_NONE);
}

static void add_trunk_tensor(inspect_facts *f, sy_role role, uint32_t layer)
{
    const sy_tensor *tensor = sy_model_tensor(f->model, role, layer, 0);

    if (tensor == NULL) return; /* this model has none in that place */
    add_tensor(&f->trunk, tensor, role);
    add_trunk_bytes(f, tensor, role);
}

static void add_expert(inspect_facts *f, uint32_t layer, uint32_t expert)
{
    uint64_t bytes[INSPECT_FORMATS_MAX] = {0};

    for (int role = SY_ROLE_EXPERT_GATE; role <= SY_ROLE_EXPERT_DOWN_BIAS; role++) {
        const sy_tensor *tensor = sy_model_tensor(f->model, (sy_role)role, layer, expert);
        if (tensor == NULL) continue;
        add_tensor(&f->experts, tensor, (sy_role)role);
        for (size_t i = 0; i < f->n_formats; i++)
            bytes[i] += loaded_bytes(tensor, (sy_role)role, f->format[i].weights);
    }
    for (size_t i = 0; i < f->n_formats; i++) {
        f->format[i].experts_bytes += bytes[i];
        f->format[i].expert_bytes = SY_MAX(f->format[i].expert_bytes, bytes[i]);
    }
}

/* The trunk is whatever is neither gate nor expert: dense layers and shared experts, too. */
static void add_layer(inspect_facts *f, uint32_t layer)
{
    for (int role = SY_ROLE_NORM1; role < SY_ROLE_GATE; role++)
        add_trunk_tensor(f, (sy_role)role, layer);
    if (!sy_model_has_experts(f->desc, layer)) return;
    for (int role = SY_ROLE_GATE; role < SY_ROLE_EXPERT_GATE; role++) {
        const sy_tensor *tensor = sy_model_tensor(f->model, (sy_role)role, layer, 0);
        if (tensor != NULL) add_tensor(&f->gates, tensor, (sy_role)role);
    }
    for (uint32_t expert = 0; expert < f->desc->n_experts; expert++) add_expert(f, layer, expert);
}

static void add_weights(inspect_facts *f)
{
    const sy_tensor *embed = sy_model_tensor(f->model, SY_ROLE_EMBED, 0, 0);

    list_formats(f);
    add_trunk_tensor(f, SY_ROLE_EMBED, 0);
    add_trunk_tensor(f, SY_ROLE_FINAL_NORM, 0);
    add_trunk_tensor(f, SY_ROLE_FINAL_NORM_BIAS, 0);
    add_trunk_tensor(f, SY_ROLE_HEAD_BIAS, 0);
    if (f->desc->tied_head) { /* a second, packed copy */
        f->trunk.loaded_bytes += loaded_bytes(embed, SY_ROLE_HEAD, SY_DTYPE_NONE);
        add_trunk_bytes(f, embed, SY_ROLE_HEAD);
    } else {
        add_trunk_tensor(f, SY_ROLE_HEAD, 0);
    }
    for (uint32_t layer = 0; layer < f->desc->n_layers; layer++) add_layer(f, layer);
    f->expert_bytes = f->format[0].expert_bytes;
    /* A model's experts all have as many parameters, so this division leaves nothing. */
    f->active_parameters = f->trunk.parameters + f->gates.parameters +
                           f->experts.parameters / f->desc->n_experts * f->desc->top_k;
    f->kv_bytes_per_token = sy_kv_page_bytes(f->desc) / SY_KV_PAGE;
}

static void add_types(inspect_facts *f)
{
    for (size_t i = 0; i < sy_model_tensor_count(f->model); i++) {
        const sy_tensor *tensor = sy_model_tensor_at(f->model, i);
        size_t t = 0;

        while (t < f->n_types && strcmp(f->type[t].name, tensor->dtype_name) != 0) t++;
        if (t == INSPECT_TYPES_MAX) continue; /* the format has fewer */
        if (t == f->n_types) f->type[f->n_types++].name = tensor->dtype_name;
        f->type[t].n_tensors++;
        f->type[t].bytes += tensor->bytes;
    }
}

static void add_spread(inspect_facts *f, uint32_t experts_per_node)
{
    const uint32_t E = f->desc->n_experts;

    f->spread[f->n_spreads++] = (inspect_spread){
        .n_nodes = (E + experts_per_node - 1) / experts_per_node,
        .experts_per_node = experts_per_node,
        .node_bytes = f->expert_bytes * experts_per_node * sy_grid_moe_layers(&f->grid),
    };
}

static void add_spreads(inspect_facts *f, uint32_t experts_per_node)
{
    const uint32_t E = f->desc->n_experts;

    if (experts_per_node != 0) {
        add_spread(f, SY_MIN(experts_per_node, E));
        return;
    }
    for (uint32_t nodes = 1; nodes <= E && f->n_spreads < INSPECT_SPREADS_MAX; nodes *= 2)
        add_spread(f, (E + nodes - 1) / nodes);
}

/* ---- files ---- */

static sy_status no_memory(sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory to inspect the checkpoint");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const inspect_file *)a)->name, ((const inspect_file *)b)->name);
}

static sy_status add_file(inspect_facts *f, const char *dir, const char *name, sy_error *err)
{
    inspect_file *grown = realloc(f->file, (f->n_files + 1) * sizeof(*grown));
    char path[PATH_BYTES];
    struct stat info;

    if (grown == NULL) return no_memory(err);
    f->file = grown;
    if (sy_path_join(path, sizeof(path), dir, name) != SY_OK || stat(path, &info) != 0)
        return sy_error_set(err, SY_EIO, "%s/%s: cannot tell its size", dir, name);
    grown[f->n_files] = (inspect_file){strdup(name), (uint64_t)info.st_size};
    return grown[f->n_files++].name == NULL ? no_memory(err) : SY_OK;
}

/* A JSON file of the folder. *out NULL with SY_OK: there is none. */
static sy_status load_json(json_t **out, const char *dir, const char *name, sy_error *err)
{
    char path[PATH_BYTES];
    json_error_t why;

    *out = NULL;
    if (sy_path_join(path, sizeof(path), dir, name) != SY_OK)
        return sy_error_set(err, SY_ELIMIT, "%s: the path is too long", dir);
    if (!sy_file_exists(path)) return SY_OK;
    *out = json_load_file(path, JSON_ALLOW_NUL, &why);
    return *out != NULL ? SY_OK : sy_error_set(err, SY_EINVAL, "%s: %s", path, why.text);
}

/* The model is open, so its files are there and agree; the same rule finds them again: the single
 * file first, then the index. */
static sy_status add_files(inspect_facts *f, const char *dir, sy_error *err)
{
    static const char single[] = "model.safetensors";
    json_t *index = NULL, *value;
    char path[PATH_BYTES];
    const char *key;
    sy_status st;

    if (sy_path_join(path, sizeof(path), dir, single) == SY_OK && sy_file_exists(path))
        return add_file(f, dir, single, err);
    SY_TRY(load_json(&index, dir, "model.safetensors.index.json", err));
    json_object_foreach(json_object_get(index, "weight_map"), key, value)
    {
        const char *name = json_string_value(value);
        size_t i = 0;

        while (name != NULL && i < f->n_files && strcmp(f->file[i].name, name) != 0) i++;
        if (name != NULL && i == f->n_files) SY_TRY(add_file(f, dir, name, err));
    }
    if (f->n_files > 0) qsort(f->file, f->n_files, sizeof(*f->file), by_name);
out:
    json_decref(index);
    return st;
}

/* ---- tokenizer ---- */

/* The types that tokenizer.json names: of the model, then of the pre-tokenizer. NULL: the
 * vocabulary is in a file that names none. */
static void read_kind(inspect_facts *f, const json_t *root)
{
    const json_t *model = json_object_get(json_object_get(root, "model"), "type");
    const json_t *splitter = json_object_get(json_object_get(root, "pre_tokenizer"), "type");

    snprintf(f->tokenizer_kind, sizeof(f->tokenizer_kind), "%.40s%s%.40s",
             json_is_string(model) ? json_string_value(model) : "BPE",
             json_is_string(splitter) ? ", " : "",
             json_is_string(splitter) ? json_string_value(splitter) : "");
}

static sy_status add_tokenizer(inspect_facts *f, const char *dir, sy_error *err)
{
    sy_tokenizer *tokenizer = NULL;
    json_t *root = NULL;
    sy_status st;

    SY_TRY(load_json(&root, dir, "tokenizer.json", err));
    st = sy_tokenizer_open(&tokenizer, dir, f->desc->vocab, err);
    if (st == SY_ENOTFOUND && root == NULL) {
        sy_error_clear(err);
        return SY_OK;
    }
    if (st != SY_OK) goto out;
    read_kind(f, root);
    f->has_tokenizer = 1;
    f->tokenizer_vocab = sy_tokenizer_vocab(tokenizer);
out:
    sy_tokenizer_close(tokenizer);
    json_decref(root);
    return st;
}

sy_status inspect_gather(inspect_facts *out, const char *dir, uint32_t experts_per_node,
                         sy_error *err)
{
    sy_status st;

    *out = (inspect_facts){0};
    SY_TRY(sy_model_open(&out->model, dir, NULL, err));
    out->desc = sy_model_describe(out->model);
    out->grid = tool_grid_of(out->desc);
    add_weights(out);
    add_types(out);
    add_spreads(out, experts_per_node);
    SY_TRY(add_files(out, dir, err));
    st = add_tokenizer(out, dir, err);
out:
    return st;
}

void inspect_facts_free(inspect_facts *facts)
{
    for (size_t i = 0; i < facts->n_files; i++) free(facts->file[i].name);
    free(facts->file);
    sy_model_close(facts->model);
    *facts = (inspect_facts){0};
}
