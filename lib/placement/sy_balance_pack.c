/* sy_balance_pack.c - a layer from nothing: replicas for the hottest, then the largest part first
 * to the least loaded device. Also the bound, which is the same question about replicas alone. */
#include <stdlib.h>

#include "sy_balance_layer.h"

/* A part that is this small beside a device's load balances nothing any more. */
#define PARTS_A_DEVICE 64.0

typedef struct item {
    double part;
    uint32_t expert;
} item;

static int by_part(const void *a, const void *b)
{
    const item *const x = a, *const y = b;

    if (x->part != y->part) return x->part > y->part ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* The expert with the largest part among those that may have one more replica. */
static uint32_t hottest(const uint32_t *replicas, const sy_bal_layer *layer)
{
    uint32_t best = SY_BAL_NONE;
    double largest = 0.0;

    for (uint32_t e = 0; e < layer->world->n_experts; e++) {
        if (replicas[e] == 0 || replicas[e] >= layer->world->replicas_max) continue;
        if (layer->weight[e] / replicas[e] > largest) {
            largest = layer->weight[e] / replicas[e];
            best = e;
        }
    }
    return best;
}

/* What an expert must have whatever its load. */
static uint32_t fewest(const sy_bal_layer *layer, uint32_t e)
{
    return sy_bal_is_fixed(layer, e) ? 0 : SY_MAX(layer->floor[e], 1);
}

/* replicas: [E], 0 for what is pinned. n_free slots are given away, one after another, to whoever
 * has the largest part then, as long as that is above least. Returns the largest part that is left:
 * no other way to give them away leaves a smaller one. */
static double replicate(uint32_t *replicas, const sy_bal_layer *layer, size_t n_free, double least)
{
    double largest = 0.0;

    for (uint32_t e = 0; e < layer->world->n_experts; e++) replicas[e] = fewest(layer, e);
    for (size_t given = 0; given < n_free; given++) {
        const uint32_t e = hottest(replicas, layer);

        if (e == SY_BAL_NONE || layer->weight[e] / replicas[e] <= least) break;
        replicas[e]++;
    }
    for (uint32_t e = 0; e < layer->world->n_experts; e++)
        if (replicas[e] > 0) largest = SY_MAX(largest, layer->weight[e] / replicas[e]);
    return largest;
}

/* Slots beyond what each expert must have; -1: there are too few. */
static int64_t count_free(const sy_bal_layer *layer)
{
    int64_t n = 0;

    for (uint32_t d = 0; d < layer->world->n_devices; d++) n += layer->cap[d];
    for (uint32_t e = 0; e < layer->world->n_experts; e++) n -= fewest(layer, e);
    return SY_MAX(n, -1);
}

double sy_bal_bound(const sy_bal_layer *layer)
{
    const int64_t n_free = count_free(layer);
    uint32_t *replicas = calloc(layer->world->n_experts, sizeof(*replicas));
    double bound = layer->mean;

    for (uint32_t d = 0; d < layer->world->n_devices; d++) bound = SY_MAX(bound, layer->fixed[d]);
    if (replicas != NULL && n_free >= 0) {
        const double part = replicate(replicas, layer, (size_t)n_free, layer->mean);

        bound = SY_MAX(bound, part);
    }
    free(replicas);
    return bound;
}

static uint32_t least_loaded(const sy_bal_layer *layer, uint32_t e)
{
    uint32_t best = SY_BAL_NONE;

    for (uint32_t d = 0; d < layer->world->n_devices; d++) {
        if (layer->used[d] >= layer->cap[d] || sy_bal_has(layer, d, e)) continue;
        if (best != SY_BAL_NONE && layer->load[d] >= layer->load[best]) continue;
        if (sy_bal_may_add(layer, e, d, SY_BAL_NONE)) best = d;
    }
    return best;
}

/* Loads while packing are those of the final number of replicas, which sy_bal_add does not know. */
static void place(sy_bal_layer *layer, const item *piece)
{
    const sy_bal_world *const world = layer->world;
    const uint32_t d = least_loaded(layer, piece->expert);

    if (d == SY_BAL_NONE) return; /* no loss, unless one of those that must be: see fill_up */
    layer->holder[(size_t)piece->expert * world->stride + layer->n[piece->expert]++] = d;
    layer->has[(size_t)d * world->n_experts + piece->expert] = 1;
    layer->used[d]++;
    layer->load[d] += piece->part;
}

/* Places what found no place, and must have one. 0: no way was found. */
static int fill_up(sy_bal_layer *layer)
{
    int64_t n_loads = INT64_MAX / 2; /* what it costs is counted when all is done */

    for (uint32_t e = 0; e < layer->world->n_experts; e++) {
        while (sy_bal_nodes(layer, e) < fewest(layer, e)) {
            uint32_t d = least_loaded(layer, e);

            if (d == SY_BAL_NONE) d = sy_bal_make_room(layer, e, SY_BAL_NONE, &n_loads);
            if (d == SY_BAL_NONE) return 0;
            sy_bal_add(layer, e, d);
        }
    }
    return 1;
}

int sy_bal_pack(sy_bal_layer *layer, double fraction)
{
    const uint32_t n_experts = layer->world->n_experts;
    const int64_t n_free = count_free(layer);
    uint32_t *replicas = calloc(n_experts, sizeof(*replicas));
    item *list = NULL;
    size_t n_items = 0;
    int is_done = 0;

    sy_bal_layer_clear(layer);
    if (replicas == NULL || n_free < 0) goto out;
    replicate(replicas, layer, (size_t)((double)n_free * fraction), layer->mean / PARTS_A_DEVICE);
    for (uint32_t e = 0; e < n_experts; e++) n_items += replicas[e];
    list = calloc(n_items + 1, sizeof(*list));
    if (list == NULL) goto out;
    n_items = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        for (uint32_t i = 0; i < replicas[e]; i++)
            list[n_items++] = (item){layer->weight[e] / replicas[e], e};
    qsort(list, n_items, sizeof(*list), by_part);
    for (size_t i = 0; i < n_items; i++) place(layer, &list[i]);
    sy_bal_sum(layer);
    is_done = fill_up(layer);
    sy_bal_sum(layer);
out:
    free(replicas);
    free(list);
    return is_done;
}
