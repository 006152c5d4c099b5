/* sy_kv_internal.h - where a token's keys and values lie. Layout: [layer][page][K, V][kv
 * head][SY_KV_PAGE][key_dim]. With MLA there is one head and no V: [layer][page][SY_KV_PAGE]
 * [key_dim], and a token's value is the beginning of its key. */
#ifndef SY_KV_INTERNAL_H
#define SY_KV_INTERNAL_H

#include "sy_trunk.h"

/* What attention sees in the cache: keys are key_dim apart, and so are values. */
typedef struct sy_kv_shape {
    uint32_t n_heads;
    uint32_t key_dim, value_dim;
    int is_latent; /* a value is the first value_dim elements of its key */
} sy_kv_shape;

struct sy_kv {
    const sy_trunk *trunk; /* borrowed: it outlives its caches */
    uint32_t n_pages, n_free;
    uint32_t *free_page;            /* a stack of n_free numbers */
    struct trunk_device_kv *device; /* NULL: the processor, whose own is what follows */
    float *data;
    uint64_t bytes;
    size_t head_floats;  /* SY_KV_PAGE * key_dim */
    size_t value_floats; /* from a page's first key to its first value */
    size_t page_floats;  /* of one page and layer */
    size_t layer_floats;
};

static inline sy_kv_shape sy_kv_shape_of(const sy_model_desc *desc)
{
    const uint32_t rank = desc->mla.kv_rank;

    if (rank > 0) return (sy_kv_shape){1, rank + desc->rotary_dim, rank, 1};
    return (sy_kv_shape){desc->n_kv_heads, desc->head_dim, desc->head_dim, 0};
}

/* The first token's key (value != 0: value) vector of one kv head in one page; its tokens are
 * key_dim apart. */
static inline float *sy_kv_at(sy_kv *kv, uint32_t layer, uint32_t page, int value, uint32_t head)
{
    return kv->data + layer * kv->layer_floats + page * kv->page_floats +
           (value ? kv->value_floats : 0) + head * kv->head_floats;
}

#endif
