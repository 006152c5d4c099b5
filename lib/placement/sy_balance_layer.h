/* sy_balance_layer.h - one layer while it is being balanced: who holds what, the load that makes,
 * and the rules that every step keeps. Only for lib/placement. */
#ifndef SY_BALANCE_LAYER_H
#define SY_BALANCE_LAYER_H

#include "sy_base.h"

#define SY_BAL_NONE UINT32_MAX

typedef struct sy_bal_world { /* the same for all layers, immutable */
    uint32_t n_experts, n_devices, n_nodes;
    const uint32_t *node;  /* [n_devices], below n_nodes */
    uint32_t replicas_max; /* at most n_devices */
    uint32_t stride;       /* holders that fit in a row: replicas_max, or what there is already */
    uint32_t min_nodes;    /* that each expert should stand on; at most n_nodes and replicas_max */
} sy_bal_world;

typedef struct sy_bal_layer {
    const sy_bal_world *world;
    const double *weight;    /* [E] borrowed */
    const uint8_t *is_fixed; /* [E] borrowed, pinned: no step touches them; NULL: none */
    uint32_t *cap;           /* [D] slots for what is not pinned */
    double *fixed;           /* [D] load of what is pinned */
    uint8_t *origin;         /* [D, E] 1: has it in memory now, so that placing it there is free */
    double mean;             /* device load, of all experts whether placed or not */
    uint32_t *floor;         /* [E] nodes that e must stand on: no step goes below */

    /* The state, empty after sy_bal_layer_clear. */
    uint32_t *n;      /* [E] holders of each */
    uint32_t *holder; /* [E, stride] */
    uint8_t *has;     /* [D, E] */
    uint32_t *used;   /* [D] */
    double *load;     /* [D] */
} sy_bal_layer;

/* SY_BAL_NONE does for `leaving` when none leaves. Returns 0: no memory. */
int sy_bal_layer_open(sy_bal_layer *layer, const sy_bal_world *world);
void sy_bal_layer_close(sy_bal_layer *layer); /* accepts a zeroed one */
void sy_bal_layer_clear(sy_bal_layer *layer);

static inline int sy_bal_is_fixed(const sy_bal_layer *layer, uint32_t e)
{
    return layer->is_fixed != NULL && layer->is_fixed[e];
}
static inline int sy_bal_has(const sy_bal_layer *layer, uint32_t d, uint32_t e)
{
    return layer->has[(size_t)d * layer->world->n_experts + e];
}
static inline const uint32_t *sy_bal_holders(const sy_bal_layer *layer, uint32_t e)
{
    return layer->holder + (size_t)e * layer->world->stride;
}
/* What one holder of e has to do. */
static inline double sy_bal_part(const sy_bal_layer *layer, uint32_t e)
{
    return layer->weight[e] / (double)(layer->n[e] > 0 ? layer->n[e] : 1);
}

/* Different nodes among holders, SY_BAL_NONE not counted. */
uint32_t sy_bal_count_nodes(const sy_bal_world *world, const uint32_t *holder, uint32_t n);
static inline uint32_t sy_bal_nodes(const sy_bal_layer *layer, uint32_t e)
{
    return sy_bal_count_nodes(layer->world, sy_bal_holders(layer, e), layer->n[e]);
}
int sy_bal_on_node(const sy_bal_layer *layer, uint32_t e, uint32_t node);
/* Whether e is on fewer nodes than the minimum. */
static inline int sy_bal_is_short(const sy_bal_layer *layer, uint32_t e)
{
    return layer->world->min_nodes > 1 && sy_bal_nodes(layer, e) < layer->world->min_nodes;
}
/* The floor becomes what e has now, and not more than the minimum. */
void sy_bal_set_floor(sy_bal_layer *layer, uint32_t e);
/* Whether e may come to d while it leaves `leaving`: replicas on different nodes, or as even over
 * nodes as their number allows, and on enough of them. Room is not looked at. */
int sy_bal_may_add(const sy_bal_layer *layer, uint32_t e, uint32_t d, uint32_t leaving);
/* Whether e may leave d: enough nodes remain, and the rest is even over nodes. */
int sy_bal_may_drop(const sy_bal_layer *layer, uint32_t e, uint32_t d);
void sy_bal_add(sy_bal_layer *layer, uint32_t e, uint32_t d);
void sy_bal_drop(sy_bal_layer *layer, uint32_t e, uint32_t d);
/* Works out the loads anew: many small differences add up to an error. */
void sy_bal_sum(sy_bal_layer *layer);
uint32_t sy_bal_busiest(const sy_bal_layer *layer); /* of equals the first */
double sy_bal_max(const sy_bal_layer *layer);
/* Shards that are where they are not now. */
uint32_t sy_bal_loads(const sy_bal_layer *layer);
/* Differences below this are rounding. */
static inline double sy_bal_epsilon(const sy_bal_layer *layer)
{
    return 1e-9 * layer->mean;
}

/* ---- states that are kept ---- */
typedef struct sy_bal_state {
    uint32_t *words; /* [E + 1] offsets, then the holders, ascending for each expert */
    double max;
    uint32_t n_loads;
} sy_bal_state;

typedef struct sy_bal_states { /* of one layer */
    sy_bal_state *item;
    size_t n, capacity;
} sy_bal_states;

/* Keeps what the layer is now. 0: no memory. */
int sy_bal_states_push(sy_bal_states *states, const sy_bal_layer *layer);
void sy_bal_states_free(sy_bal_states *states); /* accepts a zeroed one */
void sy_bal_restore(sy_bal_layer *layer, const sy_bal_state *state);

/* ---- what improves a layer ---- */
/* From what it is, by steps that each lower the busiest device's load, the largest fall for each
 * load first, until none does. states (may be NULL) gets each state whose busiest device is below
 * all before. 0: no memory. */
int sy_bal_search(sy_bal_layer *layer, sy_bal_states *states);
/* From nothing: the given fraction (0..1) of free slots, one after another, to the expert with the
 * largest part, then the largest part to the least loaded device. 0: there are fewer slots than
 * the floors take, or no way to keep them was found, or no memory. */
int sy_bal_pack(sy_bal_layer *layer, double fraction);
/* Makes room for e, which leaves `leaving`, on a device that it may come to, of another node if it
 * is short: the replica that does the least leaves, or else, if *n_loads is above 0, something
 * moves on to where there is room, and *n_loads is less by what that costs. Floors are kept.
 * Returns the device, or SY_BAL_NONE and nothing is changed. */
uint32_t sy_bal_make_room(sy_bal_layer *layer, uint32_t e, uint32_t leaving, int64_t *n_loads);
/* Gives the groups of a layer to devices such that as little as possible must be loaded. Only
 * devices with equal slots and equal pinned load change places. 0: no memory. */
int sy_bal_match(sy_bal_layer *layer);
/* The least that the busiest device can have, given all slots. */
double sy_bal_bound(const sy_bal_layer *layer);

#endif
