/* sy_trunk_device_kv.c - the cache's pages on a GPU: their numbers are the host's (sy_kv.c), what
 * lies in them the device's alone. Rounded to bf16 where tensor cores can take that, which is where
 * keys and values are whole vectors of 8; fp32 otherwise. */
#include <stdlib.h>

#include "sy_trunk_device.h"

enum { VECTOR = 8 };

static int is_rounded(const sy_kv_shape *shape)
{
    return shape->key_dim % VECTOR == 0 && shape->value_dim % VECTOR == 0;
}

/* Of one page of one layer. */
static uint64_t layer_page_bytes(const sy_kv_shape *shape)
{
    const uint64_t of_token = shape->key_dim + (shape->is_latent ? 0 : shape->value_dim);

    return shape->n_heads * of_token * SY_KV_PAGE *
           (is_rounded(shape) ? sizeof(uint16_t) : sizeof(float));
}

int trunk_device_kv_is_rounded(const sy_trunk *trunk)
{
    return is_rounded(&trunk->shape);
}

uint64_t trunk_device_page_bytes(const sy_trunk *trunk)
{
    return trunk->desc.n_layers * layer_page_bytes(&trunk->shape);
}

sy_status trunk_device_kv_open(sy_kv *kv, sy_error *err)
{
    struct trunk_device_kv *device = calloc(1, sizeof(*device));

    kv->device = device;
    if (device == NULL)
        return sy_error_set(err, SY_ENOMEM, "no memory for a KV cache of %u pages", kv->n_pages);
    device->layer_bytes = layer_page_bytes(&kv->trunk->shape) * kv->n_pages;
    return trunk_device_take(&device->memory, kv->trunk->device->machine,
                             trunk_device_page_bytes(kv->trunk) * kv->n_pages,
                             "the pages of the KV cache", err);
}

void trunk_device_kv_close(sy_kv *kv)
{
    trunk_machine *machine = kv->trunk->device->machine;

    if (kv->device == NULL) return;
    trunk_device_settle(machine);
    machine->backend->buffer_free(kv->device->memory);
    free(kv->device);
}

sy_backend_kv trunk_device_kv_layer(const sy_kv *kv, uint32_t layer, const sy_trunk_ws *ws)
{
    const sy_kv_shape *shape = &kv->trunk->shape;
    const device_batch *batch = &ws->device->batch;

    return (sy_backend_kv){.data = {kv->device->memory, layer * kv->device->layer_bytes},
                           .page = batch->page,
                           .is_bf16 = (uint32_t)is_rounded(shape),
                           .is_latent = (uint32_t)shape->is_latent,
                           .n_heads = shape->n_heads,
                           .key_dim = shape->key_dim,
                           .value_dim = shape->value_dim,
                           .pages_max = batch->pages_max,
                           .n_pages = kv->n_pages,
                           .n_sequences = batch->n_sequences};
}
