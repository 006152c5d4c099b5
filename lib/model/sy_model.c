/* sy_model.c - a checkpoint directory opened and checked against its configuration. */
#include "sy_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_file.h"
#include "sy_gguf_map.h"
#include "sy_hash.h"
#include "sy_model_bind.h"
#include "sy_strbuf.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

/* The largest expert's bytes: a checkpoint may mix types. */
static uint64_t largest_expert(const sy_model *model)
{
    uint64_t most_bytes = 0;

    for (uint32_t layer = 0; layer < model->desc.n_layers; layer++) {
        for (uint32_t expert = 0; expert < model->desc.n_experts; expert++) {
            uint64_t bytes = 0;

            for (int role = SY_ROLE_EXPERT_GATE; role < SY_N_ROLES; role++) {
                const sy_tensor *tensor = sy_model_tensor(model, (sy_role)role, layer, expert);

                bytes += tensor != NULL ? tensor->bytes : 0;
            }
            most_bytes = SY_MAX(most_bytes, bytes);
        }
    }
    return most_bytes;
}

static uint64_t hash_u64(uint64_t hash, uint64_t v)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < sizeof(bytes); i++) bytes[i] = (uint8_t)(v >> (8 * i));
    return sy_fnv1a(hash, bytes, sizeof(bytes));
}

/* Strings are hashed with their NUL, so that no two lists of them run together alike. */
static uint64_t hash_structure(const sy_model *model, const char *config, size_t n)
{
    uint64_t hash = sy_fnv1a(SY_FNV1A_START, config, n);

    for (size_t i = 0; i < model->n_tensors; i++) {
        const sy_tensor *tensor = model->tensors[i];

        hash = sy_fnv1a(hash, tensor->name, strlen(tensor->name) + 1);
        hash = sy_fnv1a(hash, tensor->dtype_name, strlen(tensor->dtype_name) + 1);
        hash = hash_u64(hash, tensor->rank);
        for (uint32_t d = 0; d < tensor->rank; d++) hash = hash_u64(hash, tensor->shape[d]);
    }
    return hash;
}

typedef sy_status (*parse_fn)(sy_model_desc *desc, const char *text, size_t n, sy_error *err);

/* *text: the file's bytes, the caller frees them; NULL on failure. */
static sy_status read_config(char **text, size_t *n, sy_model *self, const char *file_name,
                             parse_fn parse, sy_error *err)
{
    char path[PATH_MAX];
    sy_status st;

    *text = NULL;
    *n = 0;
    SY_TRY(sy_checkpoint_path(path, self->dir, file_name, err));
    SY_TRY(sy_checkpoint_require_file(path, err));
    SY_TRY(sy_file_read(text, n, path, CONFIG_BYTES_MAX, err));
    st = parse(&self->desc, *text, *n, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", path);
        free(*text);
        *text = NULL;
    }
out:
    return st;
}

static sy_status read_generation_config(sy_model *self, sy_error *err)
{
    char *text;
    size_t n;
    const sy_status st =
        read_config(&text, &n, self, "generation_config.json", sy_generation_config_parse, err);

    free(text);
    if (st != SY_ENOTFOUND) return st;
    sy_error_clear(err); /* the file is optional */
    return SY_OK;
}

static sy_status set_name(sy_model *self, const char *name, sy_error *err)
{
    char *real = NULL;
    size_t len;

    if (name == NULL) {
        real = realpath(self->dir, NULL); /* so that "." has a name as well */
        name = real != NULL ? sy_path_base(real) : "";
    }
    len = strlen(name);
    if (len > 0 && len < sizeof(self->name)) memcpy(self->name, name, len + 1);
    free(real);
    if (self->name[0] != '\0') return SY_OK;
    return sy_error_set(err, SY_EINVAL, "%s: a model's name must have 1 to %d bytes, not %zu",
                        self->dir, SY_MODEL_NAME_MAX - 1, len);
}

/* A directory without config.json that holds a GGUF model, or such a file itself. SY_ENOTFOUND:
 * neither. */
static sy_status find_gguf(char out[PATH_MAX], const char *dir, sy_error *err)
{
    char config[PATH_MAX];

    if (sy_checkpoint_path(config, dir, "config.json", err) == SY_OK && sy_file_exists(config))
        return SY_ENOTFOUND;
    return sy_gguf_locate_file(out, dir, err);
}

static sy_status open_gguf(sy_model *self, const char *path, sy_error *err)
{
    sy_strbuf config;
    sy_status st;

    sy_strbuf_init(&config);
    SY_TRY(sy_gguf_set_open(&self->gguf, path, err));
    st = sy_gguf_config(&config, self->gguf, err);
    if (st == SY_OK) st = sy_model_desc_parse(&self->desc, config.data, config.len, err);
    if (st == SY_OK) st = model_bind_gguf(self, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", path);
        goto out;
    }
    self->structure_hash = hash_structure(self, config.data, config.len);
out:
    sy_strbuf_free(&config);
    return st;
}

static sy_status open_safetensors(sy_model *self, sy_error *err)
{
    char *config = NULL;
    size_t n = 0;
    sy_status st;

    SY_TRY(read_config(&config, &n, self, "config.json", sy_model_desc_parse, err));
    SY_TRY(read_generation_config(self, err));
    SY_TRY(sy_shards_open(&self->shards, self->dir, err));
    st = model_bind(self, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", self->dir);
        goto out;
    }
    self->structure_hash = hash_structure(self, config, n);
out:
    free(config);
    return st;
}

static sy_status open_files(sy_model *self, sy_error *err)
{
    char path[PATH_MAX];
    sy_status st = find_gguf(path, self->dir, err);

    if (st == SY_ENOTFOUND) {
        sy_error_clear(err);
        st = open_safetensors(self, err);
    } else if (st == SY_OK) {
        st = open_gguf(self, path, err);
    }
    if (st == SY_OK) self->expert_bytes = largest_expert(self);
    return st;
}

sy_status sy_model_open(sy_model **out, const char *dir, const char *name, sy_error *err)
{
    sy_model *self = calloc(1, sizeof(*self));
    sy_status st;

    *out = NULL;
    if (self != NULL) self->dir = strdup(dir);
    if (self == NULL || self->dir == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "%s: no memory to open it", dir);
        goto out;
    }
    SY_TRY(open_files(self, err));
    SY_TRY(set_name(self, name, err));
    *out = self;
    self = NULL;
out:
    sy_model_close(self);
    return st;
}

void sy_model_close(sy_model *model)
{
    if (model == NULL) return;
    for (size_t i = 0; i < model->n_views; i++) free(model->view[i]);
    free(model->view);
    free(model->slots);
    free(model->tensors);
    sy_shards_close(&model->shards);
    sy_gguf_set_close(model->gguf);
    free(model->dir);
    free(model);
}

void sy_model_allow_nan(sy_model *model)
{
    model->allows_nan = 1;
}

int sy_model_is_sound(const sy_model *model, const void *elements, sy_dtype dtype, uint64_t n)
{
    return model->allows_nan || sy_dtype_all_finite(elements, dtype, n);
}

int sy_model_are_sound(const sy_model *model, const void *rows, sy_dtype dtype, uint64_t n,
                       uint64_t k)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);
    const uint8_t *row = rows;
    uint64_t i = 0;

    if (sy_dtype_bytes(dtype) != 0) return sy_model_is_sound(model, rows, dtype, n * k);
    while (i < n && sy_model_is_sound(model, row + i * row_bytes, dtype, k)) i++;
    return i == n;
}

const char *sy_model_name(const sy_model *model)
{
    return model->name;
}

const char *sy_model_dir(const sy_model *model)
{
    return model->dir;
}

const sy_model_desc *sy_model_describe(const sy_model *model)
{
    return &model->desc;
}

const sy_tensor *sy_model_tensor(const sy_model *model, sy_role role, uint32_t layer,
                                 uint32_t expert)
{
    const sy_model_desc *desc = &model->desc;

    if ((size_t)role >= SY_N_ROLES) return NULL;
    if (sy_role_is_of_layer(role) && layer >= desc->n_layers) return NULL;
    if (sy_role_is_of_expert(role) && expert >= desc->n_experts) return NULL;
    if (role == SY_ROLE_HEAD && desc->tied_head) role = SY_ROLE_EMBED;
    return model->slots[model_slot_of(desc, role, layer, expert)];
}

size_t sy_model_tensor_count(const sy_model *model)
{
    return model->n_tensors;
}

const sy_tensor *sy_model_tensor_at(const sy_model *model, size_t i)
{
    return i < model->n_tensors ? model->tensors[i] : NULL;
}

uint64_t sy_model_bytes(const sy_model *model)
{
    return model->bytes;
}

uint64_t sy_model_expert_bytes(const sy_model *model)
{
    return model->expert_bytes;
}

uint64_t sy_model_structure_hash(const sy_model *model)
{
    return model->structure_hash;
}
