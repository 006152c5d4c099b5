/* sy_balance_room.c - room for an expert that must come to another node, where no device there has
 * any. */
#include "sy_balance_layer.h"

typedef struct room {
    uint32_t device; /* that gets room; SY_BAL_NONE: none was found */
    uint32_t expert; /* that leaves it */
    uint32_t to;     /* where it goes; SY_BAL_NONE: nowhere, it has other holders */
    double load;     /* what it does, or the load of `to` afterwards: the less the better */
} room;

/* Whether e could come to d if one of those that are there left. */
static int is_wanted(const sy_bal_layer *layer, uint32_t e, uint32_t d, uint32_t leaving)
{
    if (layer->used[d] > layer->cap[d] || sy_bal_has(layer, d, e)) return 0;
    if (sy_bal_is_short(layer, e) && sy_bal_on_node(layer, e, layer->world->node[d])) return 0;
    return sy_bal_may_add(layer, e, d, leaving);
}

/* The replica that does the least leaves. */
static room find_replica(const sy_bal_layer *layer, uint32_t e, uint32_t leaving)
{
    room best = {.device = SY_BAL_NONE, .to = SY_BAL_NONE};

    for (uint32_t f = 0; f < layer->world->n_experts; f++) {
        const double part = sy_bal_part(layer, f);

        if (f == e || layer->n[f] < 2) continue;
        if (best.device != SY_BAL_NONE && part >= best.load) continue;
        for (uint32_t i = 0; i < layer->n[f]; i++) {
            const uint32_t d = sy_bal_holders(layer, f)[i];

            if (!sy_bal_may_drop(layer, f, d) || !is_wanted(layer, e, d, leaving)) continue;
            best = (room){d, f, SY_BAL_NONE, part};
            break;
        }
    }
    return best;
}

/* Something moves on to the device that has the least load then. */
static room find_move(const sy_bal_layer *layer, uint32_t e, uint32_t leaving)
{
    room best = {.device = SY_BAL_NONE, .to = SY_BAL_NONE};

    for (uint32_t to = 0; to < layer->world->n_devices; to++) {
        if (layer->used[to] >= layer->cap[to]) continue;
        for (uint32_t f = 0; f < layer->world->n_experts; f++) {
            const double load = layer->load[to] + sy_bal_part(layer, f);

            if (f == e || sy_bal_has(layer, to, f)) continue;
            if (best.device != SY_BAL_NONE && load >= best.load) continue;
            for (uint32_t i = 0; i < layer->n[f]; i++) {
                const uint32_t d = sy_bal_holders(layer, f)[i];

                if (!sy_bal_may_add(layer, f, to, d) || !is_wanted(layer, e, d, leaving)) continue;
                best = (room){d, f, to, load};
                break;
            }
        }
    }
    return best;
}

static int is_loaded(const sy_bal_layer *layer, uint32_t e, uint32_t d)
{
    return !layer->origin[(size_t)d * layer->world->n_experts + e];
}

uint32_t sy_bal_make_room(sy_bal_layer *layer, uint32_t e, uint32_t leaving, int64_t *n_loads)
{
    room found = find_replica(layer, e, leaving);

    if (found.device == SY_BAL_NONE && *n_loads > 0) found = find_move(layer, e, leaving);
    if (found.device == SY_BAL_NONE) return SY_BAL_NONE;
    sy_bal_drop(layer, found.expert, found.device);
    if (found.to == SY_BAL_NONE) return found.device;
    sy_bal_add(layer, found.expert, found.to);
    *n_loads -= is_loaded(layer, found.expert, found.to);
    *n_loads += is_loaded(layer, found.expert, found.device); /* that is not loaded after all */
    return found.device;
}
