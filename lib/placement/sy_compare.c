/* sy_compare.c - what it costs to go from one placement to another. */
#include <string.h>

#include "sy_placement.h"

/* Parsed lists are zero after each text's end, so equal lists are equal bytes. NULL: no targets. */
static int is_same(const sy_target_list *a, const sy_target_list *b)
{
    if (a == b) return 1; /* snapshots hand their lists on, so this is the usual case */
    if (a == NULL || b == NULL) return 0;
    return a->n == b->n && memcmp(a->target, b->target, a->n * sizeof(a->target[0])) == 0;
}

/* How many of a's places are not among b's, whatever their shares. */
static uint32_t places_without(const sy_target_list *a, const sy_target_list *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; a != NULL && i < a->n; i++) {
        const sy_target *target = &a->target[i];
        int is_found = 0;

        for (uint32_t j = 0; b != NULL && j < b->n && !is_found; j++) {
            is_found = strcmp(target->node, b->target[j].node) == 0 &&
                       strcmp(target->device, b->target[j].device) == 0;
        }
        n += !is_found;
    }
    return n;
}

sy_status sy_placement_compare(sy_placement_cost *out, const sy_snapshot *before,
                               const sy_snapshot *after, uint64_t shard_bytes,
                               void (*each)(void *arg, uint32_t layer, uint32_t expert,
                                            const sy_target_list *before,
                                            const sy_target_list *after),
                               void *arg)
{
    const uint32_t layers = sy_snapshot_layers(after);
    const uint32_t experts = sy_snapshot_experts(after);

    memset(out, 0, sizeof(*out));
    if (before != NULL && !sy_grid_is_same(sy_snapshot_grid(before), sy_snapshot_grid(after))) {
        return SY_EINVAL;
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        for (uint32_t expert = 0; expert < experts; expert++) {
            const sy_target_list *a =
                before == NULL ? NULL : sy_snapshot_targets(before, layer, expert);
            const sy_target_list *b = sy_snapshot_targets(after, layer, expert);

            if (is_same(a, b)) continue;
            out->n_experts++;
            out->n_loads += places_without(b, a);
            out->n_drops += places_without(a, b);
            if (each != NULL) each(arg, layer, expert, a, b);
        }
    }
    out->load_bytes = (uint64_t)out->n_loads * shard_bytes;
    return SY_OK;
}
