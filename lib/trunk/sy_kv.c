/* sy_kv.c - the paged KV cache: a fixed number of pages made at start, handed out by a free list. A
 * page holds SY_KV_PAGE tokens of every layer under one number. */
#include "sy_trunk_internal.h"

#include <stdlib.h>

#include "sy_pages.h"

uint64_t sy_kv_page_bytes(const sy_model_desc *desc)
{
    const sy_kv_shape shape = sy_kv_shape_of(desc);
    const uint64_t copies = shape.is_latent ? 1 : 2;

    return desc->n_layers * copies * shape.n_heads * shape.key_dim * SY_KV_PAGE * sizeof(float);
}

uint64_t trunk_cpu_page_bytes(const sy_trunk *trunk)
{
    return sy_kv_page_bytes(&trunk->desc);
}

sy_status trunk_cpu_kv_open(sy_kv *kv, sy_error *err)
{
    const sy_kv_shape *shape = &kv->trunk->shape;
    const uint64_t bytes = trunk_cpu_page_bytes(kv->trunk) * kv->n_pages;

    /* Touched by nobody yet: pages of the cache that no sequence reaches never become resident. */
    kv->data = bytes <= SIZE_MAX ? sy_pages_alloc(bytes) : NULL;
    if (kv->data == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for %llu bytes of KV cache",
                            (unsigned long long)bytes);
    kv->bytes = bytes;
    kv->head_floats = (size_t)SY_KV_PAGE * shape->key_dim;
    kv->value_floats = shape->is_latent ? 0 : kv->head_floats * shape->n_heads;
    kv->page_floats = kv->head_floats * shape->n_heads + kv->value_floats;
    kv->layer_floats = kv->page_floats * kv->n_pages;
    return SY_OK;
}

void trunk_cpu_kv_close(sy_kv *kv)
{
    if (kv->data != NULL) sy_pages_free(kv->data, kv->bytes);
}

sy_status sy_kv_open(sy_kv **out, const sy_trunk *trunk, uint32_t n_pages, sy_error *err)
{
    sy_kv *kv;
    sy_status st;

    *out = NULL;
    if (n_pages == 0) return sy_error_set(err, SY_EINVAL, "a KV cache without pages");
    kv = calloc(1, sizeof(*kv));
    if (kv != NULL) kv->free_page = malloc(sizeof(uint32_t) * n_pages);
    if (kv == NULL || kv->free_page == NULL) {
        free(kv);
        return sy_error_set(err, SY_ENOMEM, "no memory for a KV cache of %u pages", n_pages);
    }
    kv->trunk = trunk;
    kv->n_pages = n_pages;
    for (uint32_t i = 0; i < n_pages; i++) kv->free_page[i] = n_pages - 1 - i;
    kv->n_free = n_pages;
    st = trunk->ops->kv_open(kv, err);
    if (st != SY_OK) {
        sy_kv_close(kv);
        return st;
    }
    *out = kv;
    return SY_OK;
}

void sy_kv_close(sy_kv *kv)
{
    if (kv == NULL) return;
    kv->trunk->ops->kv_close(kv);
    free(kv->free_page);
    free(kv);
}

uint32_t sy_kv_pages(const sy_kv *kv)
{
    return kv->n_pages;
}

uint32_t sy_kv_free_pages(const sy_kv *kv)
{
    return kv->n_free;
}

sy_status sy_kv_reserve(sy_kv *kv, sy_kv_seq *seq, uint32_t n_tokens)
{
    const uint32_t want = n_tokens / SY_KV_PAGE + (n_tokens % SY_KV_PAGE != 0);

    if (want <= seq->n_pages) return SY_OK;
    if (want - seq->n_pages > kv->n_free) return SY_ELIMIT;
    if (want > seq->capacity) {
        uint32_t *page = realloc(seq->page, sizeof(uint32_t) * want);
        if (page == NULL) return SY_ENOMEM;
        seq->page = page;
        seq->capacity = want;
    }
    while (seq->n_pages < want) seq->page[seq->n_pages++] = kv->free_page[--kv->n_free];
    return SY_OK;
}

void sy_kv_release(sy_kv *kv, sy_kv_seq *seq)
{
    while (seq->n_pages > 0) kv->free_page[kv->n_free++] = seq->page[--seq->n_pages];
    free(seq->page);
    *seq = (sy_kv_seq){0};
}
