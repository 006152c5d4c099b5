/* sy_trunk_load.h - from tensors of a checkpoint to what a trunk keeps. Every function allocates
 * what it needs in the trunk. Errors name the tensor: SY_EINVAL, too large for the format or not
 * stored as asked; SY_EDATALOSS, a weight that is no number, or the file was cut; SY_ENOMEM. */
#ifndef SY_TRUNK_LOAD_H
#define SY_TRUNK_LOAD_H

#include "sy_trunk_internal.h"

typedef struct trunk_load {
    sy_trunk *trunk;
    const sy_model *model;
    sy_pool *pool;
} trunk_load;

/* What a matrix of that tensor is kept as, wherever the trunk computes; and what KV_B's are. */
SY_MUST_USE sy_status trunk_choose_dtype(sy_dtype *out, const sy_trunk *trunk, const sy_tensor *t,
                                         sy_error *err);
SY_MUST_USE sy_status trunk_choose_head_dtype(sy_dtype *out, const sy_trunk *trunk,
                                              const sy_tensor *t, sy_error *err);
/* NULL: no memory, or bytes is 0. */
void *trunk_take(sy_trunk *trunk, size_t bytes);
/* A matrix in the trunk's precision. */
SY_MUST_USE sy_status trunk_load_panels(const trunk_load *l, sy_panels *out, sy_role role,
                                        uint32_t layer, sy_error *err);
/* KV_B, whose rows are each head's nope_dim for keys and value_dim for values: the first as
 * [kv_rank, nope_dim], transposed, so that they carry a query into the latent's space. */
SY_MUST_USE sy_status trunk_load_heads(const trunk_load *l, trunk_layer *out, uint32_t layer,
                                       sy_error *err);
/* As fp32. A role that the model has not gives NULL. */
SY_MUST_USE sy_status trunk_load_vector(const trunk_load *l, float **out, sy_role role,
                                        uint32_t layer, sy_error *err);
/* The embedding, as stored. */
SY_MUST_USE sy_status trunk_load_embedding(const trunk_load *l, sy_error *err);

#endif
