/* tool_placement.c - see the header. */
#include "tool_placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_arena.h"

#define FIELDS_BYTES_MAX ((size_t)1 << 30)

/* The bounds under which a field is read when nobody knows the model's dimensions. */
#define ANY_LAYERS  1024u
#define ANY_EXPERTS 4096u

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
    field_list list = {.cap = (size_t)spread->layers * spread->experts};
    sy_status st;

    sy_arena_init(&list.arena, FIELDS_BYTES_MAX);
    SY_TRY(check_devices(spread, err));
    list.change = calloc(list.cap + 1, sizeof(*list.change));
    st = list.change != NULL ? SY_OK : SY_ENOMEM;
    if (st == SY_OK) {
        st = sy_placement_spread(spread->layers, spread->experts, spread->device, spread->n_devices,
                                 add_field, &list);
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

void tool_placement_guess(const tool_hash *hash, uint32_t *layers, uint32_t *experts)
{
    uint32_t most_layers = 1;
    uint32_t most_experts = 1;
    sy_field field;

    for (size_t i = 0; i < hash->n; i++) {
        if (sy_field_parse(&field, hash->entry[i].field, hash->entry[i].field_len, ANY_LAYERS,
                           ANY_EXPERTS, NULL) != SY_OK) {
            continue;
        }
        if (field.layer != SY_ANY) most_layers = SY_MAX(most_layers, (uint32_t)field.layer + 1);
        if (field.expert != SY_ANY) most_experts = SY_MAX(most_experts, (uint32_t)field.expert + 1);
    }
    if (*layers == 0) *layers = most_layers;
    if (*experts == 0) *experts = most_experts;
}

sy_status tool_placement_read(sy_snapshot **out, tool_hash *hash, tool_redis *redis,
                              const char *model, uint32_t layers, uint32_t experts, sy_error *err)
{
    sy_status st;

    *out = NULL;
    SY_TRY(tool_redis_placement(hash, redis, model, err));
    if (hash->n == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "model %s has no placement: write one with switchyard placement init",
                          model);
        goto out;
    }
    tool_placement_guess(hash, &layers, &experts);
    SY_TRY(sy_snapshot_build(out, NULL, hash->entry, hash->n, layers, experts, err));
out:
    if (st != SY_OK) tool_hash_free(hash);
    return st;
}
