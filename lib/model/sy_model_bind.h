/* sy_model_bind.h - an open model's struct, and the step that finds the tensor of every role.
 * Private to lib/model. */
#ifndef SY_MODEL_BIND_H
#define SY_MODEL_BIND_H

#include "sy_family.h"
#include "sy_gguf_set.h"
#include "sy_shards.h"

/* A tensor is found by its role with one multiplication: the table of slots holds the tensors
 * outside the layers, then each layer's own followed by those of its experts. */
struct sy_model {
    char name[SY_MODEL_NAME_MAX];
    char *dir;
    sy_model_desc desc;
    sy_shards shards;  /* zeroed where there is */
    sy_gguf_set *gguf; /* NULL: the files are safetensors */
    const sy_tensor *
        *slots;       /* [n_slots] by role, layer and expert; NULL where the model has none */
    sy_tensor **view; /* [n_views] owned: how parts of tensors and encoded ones are read */
    size_t n_views, views_capacity;
    const sy_tensor **tensors; /* [n_tensors] by name, without those that are ignored */
    size_t n_slots, n_tensors;
    uint64_t bytes, expert_bytes, structure_hash;
    int allows_nan;
};

size_t model_slot_of(const sy_model_desc *desc, sy_role role, uint32_t layer, uint32_t expert);
/* Fills slots, views, tensors and bytes from desc and shards. Errors name tensors. */
SY_MUST_USE sy_status model_bind(sy_model *model, sy_error *err);
/* The same from desc and gguf. */
SY_MUST_USE sy_status model_bind_gguf(sy_model *model, sy_error *err);

/* n zeroed views, owned by the model; NULL: no memory. */
sy_tensor *model_make_views(sy_model *model, size_t n);
void model_place(sy_model *model, const sy_tensor *tensor, sy_role role, int32_t layer,
                 uint32_t expert);
/* Appends ", NAME" to a list in a message; what does not fit is cut, which the message's own cut
 * would do anyway. */
void model_list_name(char list[SY_MESSAGE_BYTES], const char *name);
/* MODEL_NAMES_SHOWN missing tensors are enough to say what is wrong: a hostile configuration may
 * ask for millions. */
#define MODEL_NAMES_SHOWN 5u
sy_status model_refuse_missing(const sy_model *model, size_t n, const char *names, sy_error *err);
sy_status model_refuse_extra(const sy_model *model, size_t n, const char *names, sy_error *err);

#endif
