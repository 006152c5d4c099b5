/* sy_balance_layer.c - the bookkeeping of one layer. Nothing here decides anything. */
#include "sy_balance_layer.h"

#include <stdlib.h>
#include <string.h>

int sy_bal_layer_open(sy_bal_layer *layer, const sy_bal_world *world)
{
    const size_t d = world->n_devices, e = world->n_experts;

    memset(layer, 0, sizeof(*layer));
    layer->world = world;
    layer->cap = calloc(d, sizeof(*layer->cap));
    layer->fixed = calloc(d, sizeof(*layer->fixed));
    layer->origin = calloc(d, e);
    layer->floor = calloc(e, sizeof(*layer->floor));
    layer->n = calloc(e, sizeof(*layer->n));
    layer->holder = calloc(e * world->stride, sizeof(*layer->holder));
    layer->has = calloc(d, e);
    layer->used = calloc(d, sizeof(*layer->used));
    layer->load = calloc(d, sizeof(*layer->load));
    return layer->cap != NULL && layer->fixed != NULL && layer->origin != NULL &&
           layer->floor != NULL && layer->n != NULL && layer->holder != NULL &&
           layer->has != NULL && layer->used != NULL && layer->load != NULL;
}

void sy_bal_layer_close(sy_bal_layer *layer)
{
    free(layer->cap);
    free(layer->fixed);
    free(layer->origin);
    free(layer->floor);
    free(layer->n);
    free(layer->holder);
    free(layer->has);
    free(layer->used);
    free(layer->load);
    memset(layer, 0, sizeof(*layer));
}

void sy_bal_layer_clear(sy_bal_layer *layer)
{
    const size_t d = layer->world->n_devices, e = layer->world->n_experts;

    memset(layer->n, 0, e * sizeof(*layer->n));
    memset(layer->has, 0, d * e);
    memset(layer->used, 0, d * sizeof(*layer->used));
    memcpy(layer->load, layer->fixed, d * sizeof(*layer->load));
}

/* ---- rules ---- */

static uint32_t per_node_max(const sy_bal_world *world, uint32_t n_replicas)
{
    return (n_replicas + world->n_nodes - 1) / world->n_nodes;
}

static uint32_t count_on_node(const sy_bal_layer *layer, uint32_t e, uint32_t node, uint32_t but)
{
    const uint32_t *const holder = sy_bal_holders(layer, e);
    uint32_t n = 0;

    for (uint32_t i = 0; i < layer->n[e]; i++)
        n += holder[i] != but && layer->world->node[holder[i]] == node;
    return n;
}

int sy_bal_on_node(const sy_bal_layer *layer, uint32_t e, uint32_t node)
{
    return count_on_node(layer, e, node, SY_BAL_NONE) > 0;
}

uint32_t sy_bal_count_nodes(const sy_bal_world *world, const uint32_t *holder, uint32_t n)
{
    uint32_t n_nodes = 0;

    for (uint32_t i = 0; i < n; i++) {
        int is_new = holder[i] != SY_BAL_NONE;

        for (uint32_t k = 0; k < i && is_new; k++)
            is_new = holder[k] == SY_BAL_NONE || world->node[holder[k]] != world->node[holder[i]];
        n_nodes += (uint32_t)is_new;
    }
    return n_nodes;
}

void sy_bal_set_floor(sy_bal_layer *layer, uint32_t e)
{
    layer->floor[e] = SY_MIN(layer->world->min_nodes, sy_bal_nodes(layer, e));
}

/* Whether e, without what it has on `leaving`, is on one node less, and that is one too few. */
static int is_needed(const sy_bal_layer *layer, uint32_t e, uint32_t leaving)
{
    if (leaving == SY_BAL_NONE || layer->floor[e] < 2) return 0;
    return count_on_node(layer, e, layer->world->node[leaving], leaving) == 0 &&
           sy_bal_nodes(layer, e) <= layer->floor[e];
}

int sy_bal_may_add(const sy_bal_layer *layer, uint32_t e, uint32_t d, uint32_t leaving)
{
    const uint32_t n_after = layer->n[e] + (leaving == SY_BAL_NONE);
    uint32_t n_there;

    if (n_after > SY_MAX(layer->world->replicas_max, layer->n[e])) return 0;
    n_there = count_on_node(layer, e, layer->world->node[d], leaving);
    if (n_there > 0 && is_needed(layer, e, leaving)) return 0;
    return n_there < per_node_max(layer->world, n_after);
}

int sy_bal_may_drop(const sy_bal_layer *layer, uint32_t e, uint32_t d)
{
    const uint32_t *const holder = sy_bal_holders(layer, e);
    uint32_t on_node_max;

    if (layer->n[e] < 2 || is_needed(layer, e, d)) return 0;
    /* One on a node, and fewer of them still are; what stood together before may go on so. */
    if (layer->n[e] <= layer->world->n_nodes) return 1;
    on_node_max = per_node_max(layer->world, layer->n[e] - 1);
    for (uint32_t i = 0; i < layer->n[e]; i++) {
        if (holder[i] == d) continue;
        if (count_on_node(layer, e, layer->world->node[holder[i]], d) > on_node_max) return 0;
    }
    return 1;
}

/* ---- steps ---- */

static void set_parts(sy_bal_layer *layer, uint32_t e, double sign)
{
    const uint32_t *const holder = sy_bal_holders(layer, e);
    const double part = sign * sy_bal_part(layer, e);

    for (uint32_t i = 0; i < layer->n[e]; i++) layer->load[holder[i]] += part;
}

void sy_bal_add(sy_bal_layer *layer, uint32_t e, uint32_t d)
{
    const sy_bal_world *const world = layer->world;

    SY_ASSERT(layer->n[e] < world->stride && !sy_bal_has(layer, d, e));
    set_parts(layer, e, -1.0);
    layer->holder[(size_t)e * world->stride + layer->n[e]++] = d;
    layer->has[(size_t)d * world->n_experts + e] = 1;
    layer->used[d]++;
    set_parts(layer, e, 1.0);
}

void sy_bal_drop(sy_bal_layer *layer, uint32_t e, uint32_t d)
{
    const sy_bal_world *const world = layer->world;
    uint32_t *const holder = layer->holder + (size_t)e * world->stride;
    uint32_t i = 0;

    SY_ASSERT(sy_bal_has(layer, d, e));
    while (holder[i] != d) i++;
    set_parts(layer, e, -1.0);
    holder[i] = holder[--layer->n[e]];
    layer->has[(size_t)d * world->n_experts + e] = 0;
    layer->used[d]--;
    set_parts(layer, e, 1.0);
}

void sy_bal_sum(sy_bal_layer *layer)
{
    memcpy(layer->load, layer->fixed, layer->world->n_devices * sizeof(*layer->load));
    for (uint32_t e = 0; e < layer->world->n_experts; e++) set_parts(layer, e, 1.0);
}

uint32_t sy_bal_busiest(const sy_bal_layer *layer)
{
    uint32_t best = 0;

    for (uint32_t d = 1; d < layer->world->n_devices; d++)
        if (layer->load[d] > layer->load[best]) best = d;
    return best;
}

double sy_bal_max(const sy_bal_layer *layer)
{
    return layer->load[sy_bal_busiest(layer)];
}

uint32_t sy_bal_loads(const sy_bal_layer *layer)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < layer->world->n_experts; e++) {
        const uint32_t *const holder = sy_bal_holders(layer, e);

        for (uint32_t i = 0; i < layer->n[e]; i++)
            n += !layer->origin[(size_t)holder[i] * layer->world->n_experts + e];
    }
    return n;
}

/* ---- states that are kept ---- */

static void sort_holders(uint32_t *holder, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const uint32_t d = holder[i];
        uint32_t k = i;

        for (; k > 0 && holder[k - 1] > d; k--) holder[k] = holder[k - 1];
        holder[k] = d;
    }
}

int sy_bal_states_push(sy_bal_states *states, const sy_bal_layer *layer)
{
    const uint32_t n_experts = layer->world->n_experts;
    sy_bal_state *state;
    uint32_t at = 0;

    if (states->n == states->capacity) {
        const size_t capacity = 2 * states->capacity + 8;
        sy_bal_state *grown = realloc(states->item, capacity * sizeof(*grown));

        if (grown == NULL) return 0;
        states->item = grown;
        states->capacity = capacity;
    }
    state = &states->item[states->n];
    for (uint32_t e = 0; e < n_experts; e++) at += layer->n[e];
    state->words = malloc((n_experts + 1 + (size_t)at) * sizeof(*state->words));
    if (state->words == NULL) return 0;
    at = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t *const to = state->words + n_experts + 1 + at;

        state->words[e] = at;
        memcpy(to, sy_bal_holders(layer, e), layer->n[e] * sizeof(*to));
        sort_holders(to, layer->n[e]);
        at += layer->n[e];
    }
    state->words[n_experts] = at;
    state->max = sy_bal_max(layer);
    state->n_loads = sy_bal_loads(layer);
    states->n++;
    return 1;
}

void sy_bal_states_free(sy_bal_states *states)
{
    for (size_t i = 0; i < states->n; i++) free(states->item[i].words);
    free(states->item);
    memset(states, 0, sizeof(*states));
}

void sy_bal_restore(sy_bal_layer *layer, const sy_bal_state *state)
{
    const uint32_t n_experts = layer->world->n_experts;
    const uint32_t *const holder = state->words + n_experts + 1;

    sy_bal_layer_clear(layer);
    for (uint32_t e = 0; e < n_experts; e++)
        for (uint32_t i = state->words[e]; i < state->words[e + 1]; i++)
            sy_bal_add(layer, e, holder[i]);
    sy_bal_sum(layer);
}
