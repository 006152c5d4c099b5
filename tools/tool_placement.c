/* tool_placement.c - see the header. */
#include "tool_placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_arena.h"

#define FIELDS_BYTES_MAX ((size_t)1 << 30)

/* ---- writing ---- */

typedef struct field_list {
    sy_arena arena;
    tool_field_change *change;
    size_t n, cap;
} field_list;

static sy_status add_field(void *arg, const char *field, const char *value)
{
    field_list *list = arg;
    char *copy;

    SY_ASSERT(list->n < list->cap);
    copy = sy_arena_strndup(&list->arena, field, strlen(field));
    if (copy == NULL) return SY_ENOMEM;
    /* The value is one of the devices, which outlive the list. */
    list->change[list->n++] = (tool_field_change){.field = copy, .after = value};
    return SY_OK;
}

static sy_status check_devices(const tool_spread *spread, sy_error *err)
{
    sy_target_list list;
    sy_status st = SY_OK;

    if (spread->n_devices == 0) {
        return sy_error_set(err, SY_EINVAL, "there is no device to place experts on");
    }
    for (size_t i = 0; i < spread->n_devices; i++) {
        SY_TRY(sy_targets_parse(&list, spread->device[i], strlen(spread->device[i]), err));
        if (list.n != 1 || list.target[0].share != 0 || list.target[0].shadow) {
            return sy_error_set(err, SY_EINVAL, "device %s: write NODE/DEVICE, as expert-0/cpu:0",
                                spread->device[i]);
        }
    }
out:
    return st;
}

sy_status tool_placement_init(tool_redis *redis, const tool_spread *spread, sy_error *err)
{
    field_list list = {.cap = (size_t)sy_grid_shards(&spread->grid)};
    sy_status st;

    sy_arena_init(&list.arena, FIELDS_BYTES_MAX);
    SY_TRY(check_devices(spread, err));
    list.change = calloc(list.cap + 1, sizeof(*list.change));
    st = list.change != NULL ? SY_OK : SY_ENOMEM;
    if (st == SY_OK) {
        st =
            sy_placement_spread(&spread->grid, spread->device, spread->n_devices, add_field, &list);
    }
    if (st != SY_OK) {
        sy_error_set(err, st, "no memory for a placement of %zu experts", list.cap);
        goto out;
    }
    const tool_edit edit = {.model = spread->model,
                            .change = list.change,
                            .n = list.n,
                            .must_be_new = spread->must_be_new,
                            .replaces_all = 1,
                            .force = 1,
                            .reason = spread->reason,
                            .command = spread->command};
    SY_TRY(tool_redis_change(redis, &edit, NULL, err));
out:
    free(list.change);
    sy_arena_free(&list.arena);
    return st;
}

/* ---- reading ---- */

void tool_placement_guess(sy_grid *grid, const tool_hash *hash)
{
    static const sy_grid any = {.layers = SY_LAYERS_MAX, .experts = SY_EXPERTS_MAX};
    uint8_t is_named[SY_LAYERS_MAX] = {0};
    sy_grid found = {.layers = 1, .experts = 1};
    int has_star = 0;
    sy_field field;

    for (size_t i = 0; i < hash->n; i++) {
        if (sy_field_parse(&field, hash->entry[i].field, hash->entry[i].field_len, &any, NULL) !=
            SY_OK) {
            continue;
        }
        has_star |= field.layer == SY_ANY;
        if (field.layer != SY_ANY) is_named[field.layer] = 1;
        if (field.layer != SY_ANY) found.layers = SY_MAX(found.layers, (uint32_t)field.layer + 1);
        if (field.expert != SY_ANY)
            found.experts = SY_MAX(found.experts, (uint32_t)field.expert + 1);
    }
    for (uint32_t layer = 0; layer + 1 < found.layers && !has_star; layer++)
        sy_grid_set(&found, layer, is_named[layer]);
    if (grid->experts > 0) found.experts = grid->experts;
    if (grid->layers > 0) grid->experts = found.experts;
    if (grid->layers == 0) *grid = found;
}

const char *tool_grid_text(char out[TOOL_GRID_BYTES], const sy_grid *grid)
{
    char ranges[64];

    if (sy_grid_moe_layers(grid) == grid->layers) {
        snprintf(out, TOOL_GRID_BYTES, "%u layers of %u experts", grid->layers, grid->experts);
        return out;
    }
    if (sy_grid_format(ranges, sizeof(ranges), grid) >= sizeof(ranges))
        memcpy(ranges + sizeof(ranges) - 4, "...", 4);
    snprintf(out, TOOL_GRID_BYTES, "%u layers (those with experts: %s) of %u experts", grid->layers,
             ranges, grid->experts);
    return out;
}

sy_grid tool_grid_of(const sy_model_desc *desc)
{
    return sy_grid_of(desc->n_layers, desc->n_experts, desc->layer, SY_LAYER_DENSE);
}

sy_status tool_placement_read(sy_snapshot **out, tool_hash *hash, tool_redis *redis,
                              const char *model, const sy_grid *grid, sy_error *err)
{
    sy_grid guessed = *grid;
    sy_status st;

    *out = NULL;
    SY_TRY(tool_redis_placement(hash, redis, model, err));
    if (hash->n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "model %s has no placement: write one with switchyard placement init",
                          model);
        goto out;
    }
    if (guessed.layers == 0 || guessed.experts == 0) tool_placement_guess(&guessed, hash);
    SY_TRY(sy_snapshot_build(out, NULL, hash->entry, hash->n, &guessed, err));
out:
    if (st != SY_OK) tool_hash_free(hash);
    return st;
}
