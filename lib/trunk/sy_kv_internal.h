/* sy_kv_internal.h - where a token's keys and values lie. Layout: [layer][page][K, V][kv
 * head][SY_KV_PAGE][head_dim]. */
#ifndef SY_KV_INTERNAL_H
#define SY_KV_INTERNAL_H

#include "sy_trunk.h"

struct sy_kv {
    float *data;
    uint64_t bytes;
    uint32_t n_pages, n_free;
    uint32_t *free_page; /* a stack of n_free numbers */
    size_t head_floats;  /* SY_KV_PAGE * head_dim */
    size_t half_floats;  /* keys (or values) of one page and layer */
    size_t layer_floats;
};

/* The first token's key (value != 0: value) vector of one kv head in one page; its tokens are
 * head_dim apart. */
static inline float *sy_kv_at(sy_kv *kv, uint32_t layer, uint32_t page, int value, uint32_t head)
{
    return kv->data + layer * kv->layer_floats + page * 2 * kv->half_floats +
           (value ? kv->half_floats : 0) + head * kv->head_floats;
}

#endif
