/* sy_model_bind.h - an open model's struct, and the step that finds the tensor of every role.
 * Private to lib/model. */
#ifndef SY_MODEL_BIND_H
#define SY_MODEL_BIND_H

#include "sy_family.h"
#include "sy_shards.h"

/* A tensor is found by its role with one multiplication: the table of slots holds the tensors
 * outside the layers, then each layer's own followed by those of its experts. */
struct sy_model {
    char name[SY_MODEL_NAME_MAX];
    char *dir;
    sy_model_desc desc;
    sy_shards shards;
    const sy_tensor *
        *slots;       /* [n_slots] by role, layer and expert; NULL where the model has none */
    sy_tensor **view; /* [n_views] owned: how parts of tensors and encoded ones are read */
    size_t n_views, views_capacity;
    const sy_tensor **tensors; /* [n_tensors] by name, without those that are ignored */
    size_t n_slots, n_tensors;
    uint64_t bytes, expert_bytes, structure_hash;
};

size_t model_slot_of(const sy_model_desc *desc, sy_role role, uint32_t layer, uint32_t expert);
/* Fills slots, views, tensors and bytes from desc and shards. Errors name tensors. */
SY_MUST_USE sy_status model_bind(sy_model *model, sy_error *err);

#endif
