/* sy_model.c - a checkpoint directory opened and checked against its configuration. Once open, a
 * tensor is found by its role with one multiplication: the table of slots holds the three tensors
 * outside the layers, then each layer's own tensors followed by three an expert. */
#include "sy_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_checkpoint_file.h"
#include "sy_family.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "sy_shards.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define NAMES_SHOWN      5
#define OUTER_ROLES      ((size_t)SY_ROLE_NORM1)
#define LAYER_ROLES      ((size_t)(SY_ROLE_EXPERT_GATE - SY_ROLE_NORM1))
#define EXPERT_ROLES     ((size_t)(SY_N_ROLES - SY_ROLE_EXPERT_GATE))

struct sy_model {
    char name[SY_MODEL_NAME_MAX];
    char *dir;
    sy_model_desc desc;
    sy_shards shards;
    const sy_tensor *
        *slots;        /* [n_slots] by role, layer and expert; NULL where the model has none */
    sy_tensor **slabs; /* [n_slabs] parts of tensors that hold all experts of a layer */
    size_t n_slabs;
    const sy_tensor **tensors; /* [n_tensors] by name, without those that are ignored */
    size_t n_slots, n_tensors;
    uint64_t bytes, expert_bytes, structure_hash;
};

static size_t slot_of(const sy_model_desc *desc, sy_role role, uint32_t layer, uint32_t expert)
{
    const size_t per_layer = LAYER_ROLES + EXPERT_ROLES * desc->n_experts;
    const size_t base = OUTER_ROLES + per_layer * layer;

    if (!sy_role_is_of_layer(role)) return role;
    if (!sy_role_is_of_expert(role)) return base + (size_t)(role - SY_ROLE_NORM1);
    return base + LAYER_ROLES + EXPERT_ROLES * expert + (size_t)(role - SY_ROLE_EXPERT_GATE);
}

/* What opening needs besides the model. */
typedef struct binder {
    sy_model *model;
    unsigned char *is_used; /* [shards.n_tensors] */
    char missing[SY_MESSAGE_BYTES];
    size_t n_missing;
    sy_error *err;
} binder;

/* Appends ", NAME" to a list in a message; what does not fit is cut, which the message's own cut
 * would do anyway. */
static void list_name(char list[SY_MESSAGE_BYTES], const char *name)
{
    const size_t len = strlen(list);

    snprintf(list + len, SY_MESSAGE_BYTES - len, "%s%s", len > 0 ? ", " : "", name);
}

static void shape_text(char *out, size_t cap, const uint64_t *shape, uint32_t rank)
{
    size_t len = (size_t)snprintf(out, cap, "[");

    for (uint32_t i = 0; i < rank && len < cap; i++) {
        len += (size_t)snprintf(out + len, cap - len, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    }
    if (len < cap) snprintf(out + len, cap - len, "]");
}

static sy_status check_tensor(const sy_tensor *tensor, const sy_tensor_spec *spec, sy_error *err)
{
    char has[SY_TENSOR_RANK_MAX * 22 + 4];
    char needs[96];

    if (tensor->rank != spec->rank ||
        memcmp(tensor->shape, spec->shape, spec->rank * sizeof(spec->shape[0])) != 0) {
        shape_text(has, sizeof(has), tensor->shape, tensor->rank);
        shape_text(needs, sizeof(needs), spec->shape, spec->rank);
        sy_error_set(err, SY_EINVAL, "tensor \"%s\" has shape %s, but config.json implies %s",
                     tensor->name, has, needs);
    } else if (tensor->dtype == SY_DTYPE_NONE) {
        sy_error_set(err, SY_EINVAL,
                     "tensor \"%s\" has type %s; only F32, BF16 and F16 can be computed with",
                     tensor->name, tensor->dtype_name);
    } else {
        return SY_OK;
    }
    sy_error_where(err, "BAD_TENSOR", spec->layer, spec->expert, NULL);
    return SY_EINVAL;
}

/* Matrix `part` of `parts` that each of the tensor's slabs is made of, for every expert. */
static sy_status bind_slabs(sy_model *model, const sy_tensor *tensor, const sy_tensor_spec *spec,
                            sy_role role, unsigned part, unsigned parts)
{
    const uint32_t n = model->desc.n_experts;
    const uint64_t rows = tensor->shape[1] / parts, columns = tensor->shape[2];
    const uint64_t bytes = tensor->bytes / n / parts;
    sy_tensor *slab = calloc(n, sizeof(*slab));

    if (slab == NULL) return SY_ENOMEM;
    model->slabs[model->n_slabs++] = slab;
    for (uint32_t e = 0; e < n; e++) {
        slab[e] = (sy_tensor){.name = tensor->name,
                              .dtype_name = tensor->dtype_name,
                              .dtype = tensor->dtype,
                              .rank = 2,
                              .shape = {rows, columns},
                              .n_elements = rows * columns,
                              .data = tensor->data + bytes * ((uint64_t)e * parts + part),
                              .bytes = bytes};
        model->slots[slot_of(&model->desc, role, (uint32_t)spec->layer, e)] = &slab[e];
    }
    return SY_OK;
}

/* Where sy_model_tensor finds it. */
static sy_status place(sy_model *model, const sy_tensor *tensor, const sy_tensor_spec *spec)
{
    sy_status st;

    if (spec->rank < 3) {
        model->slots[slot_of(&model->desc, spec->role, (uint32_t)SY_MAX(spec->layer, 0),
                             (uint32_t)SY_MAX(spec->expert, 0))] = tensor;
        return SY_OK;
    }
    if (spec->role == SY_ROLE_EXPERT_DOWN)
        return bind_slabs(model, tensor, spec, SY_ROLE_EXPERT_DOWN, 0, 1);
    st = bind_slabs(model, tensor, spec, SY_ROLE_EXPERT_GATE, 0, 2);
    return st == SY_OK ? bind_slabs(model, tensor, spec, SY_ROLE_EXPERT_UP, 1, 2) : st;
}

/* Once a tensor that the configuration asks for. */
static sy_status bind_tensor(void *arg, const sy_tensor_spec *spec)
{
    binder *b = arg;
    sy_model *model = b->model;
    const size_t i = sy_shards_find(&model->shards, spec->name);
    const sy_tensor *tensor;
    sy_status st;

    if (i == model->shards.n_tensors) {
        list_name(b->missing, spec->name);
        /* A hostile configuration may ask for millions: enough is known to say what is wrong. */
        return ++b->n_missing == NAMES_SHOWN ? SY_ENOTFOUND : SY_OK;
    }
    tensor = model->shards.tensors[i].tensor;
    st = check_tensor(tensor, spec, b->err);
    if (st != SY_OK) return st;
    b->is_used[i] = 1;
    st = place(model, tensor, spec);
    return st == SY_OK ? st : sy_error_set(b->err, st, "no memory for %s", tensor->name);
}

static int ends_with(const char *s, const char *tail)
{
    const size_t len = strlen(s);
    const size_t tail_len = strlen(tail);

    return len >= tail_len && strcmp(s + len - tail_len, tail) == 0;
}

/* Old files carry the rotation's frequencies, which follow from the configuration. */
static int is_ignored(const char *name)
{
    return ends_with(name, ".rotary_emb.inv_freq");
}

/* Keeps the tensors that have a role; any other but the ignored ones means that something would be
 * left out. */
static sy_status keep_used(binder *b)
{
    sy_model *model = b->model;
    char extra[SY_MESSAGE_BYTES] = "";
    size_t n_extra = 0;

    for (size_t i = 0; i < model->shards.n_tensors; i++) {
        const sy_tensor *tensor = model->shards.tensors[i].tensor;

        if (b->is_used[i]) {
            model->tensors[model->n_tensors++] = tensor;
            model->bytes += tensor->bytes; /* no overflow: the sum of mapped files */
        } else if (!is_ignored(tensor->name) && n_extra++ < NAMES_SHOWN) {
            list_name(extra, tensor->name);
        }
    }
    if (n_extra == 0) return SY_OK;
    sy_error_set(b->err, SY_EINVAL,
                 "%zu tensors have no place in a %s model as config.json describes it%s: %s",
                 n_extra, model->desc.family,
                 model->desc.tied_head ? " (tie_word_embeddings is true)" : "", extra);
    sy_error_where(b->err, "UNKNOWN_TENSOR", -1, -1, NULL);
    return SY_EINVAL;
}

static sy_status bind_all(binder *b)
{
    sy_model *model = b->model;
    const sy_model_desc *desc = &model->desc;
    sy_status st;

    model->n_slots = slot_of(desc, SY_ROLE_NORM1, desc->n_layers, 0);
    model->slots = calloc(model->n_slots, sizeof(*model->slots));
    model->slabs = calloc((size_t)desc->n_layers * EXPERT_ROLES, sizeof(*model->slabs));
    model->tensors = calloc(model->shards.n_tensors + 1, sizeof(*model->tensors));
    b->is_used = calloc(model->shards.n_tensors + 1, 1);
    if (model->slots == NULL || model->slabs == NULL || model->tensors == NULL ||
        b->is_used == NULL) {
        sy_error_set(b->err, SY_ENOMEM, "no memory for %zu tensors", model->n_slots);
        return SY_ENOMEM;
    }
    st = sy_model_each_tensor(desc, bind_tensor, b);
    if (b->n_missing > 0) {
        sy_error_set(b->err, SY_EINVAL,
                     "%s%zu tensors are missing of a %s model with %" PRIu32 " layers of %" PRIu32
                     " experts: %s",
                     b->n_missing == NAMES_SHOWN ? "at least " : "", b->n_missing, desc->family,
                     desc->n_layers, desc->n_experts, b->missing);
        sy_error_where(b->err, "MISSING_TENSOR", -1, -1, NULL);
        return SY_EINVAL;
    }
    return st == SY_OK ? keep_used(b) : st;
}

/* The largest expert's bytes: a checkpoint may mix types. */
static uint64_t largest_expert(const sy_model *model)
{
    uint64_t most_bytes = 0;

    for (uint32_t layer = 0; layer < model->desc.n_layers; layer++) {
        for (uint32_t expert = 0; expert < model->desc.n_experts; expert++) {
            uint64_t bytes = 0;

            for (int role = SY_ROLE_EXPERT_GATE; role <= SY_ROLE_EXPERT_DOWN; role++) {
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

static sy_status open_files(sy_model *self, sy_error *err)
{
    binder b = {.model = self, .err = err};
    char *config = NULL;
    size_t n = 0;
    sy_status st;

    SY_TRY(read_config(&config, &n, self, "config.json", sy_model_desc_parse, err));
    SY_TRY(read_generation_config(self, err));
    SY_TRY(sy_shards_open(&self->shards, self->dir, err));
    st = bind_all(&b);
    if (st != SY_OK) {
        sy_error_prefix(err, "%s", self->dir);
        goto out;
    }
    self->expert_bytes = largest_expert(self);
    self->structure_hash = hash_structure(self, config, n);
out:
    free(b.is_used);
    free(config);
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
    for (size_t i = 0; i < model->n_slabs; i++) free(model->slabs[i]);
    free(model->slabs);
    free(model->slots);
    free(model->tensors);
    sy_shards_close(&model->shards);
    free(model->dir);
    free(model);
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
    return model->slots[slot_of(desc, role, layer, expert)];
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
