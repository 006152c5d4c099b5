/* sy_balance_search.c - from a placement to a better one by small steps. Each takes load off the
 * busiest device, for a layer gets no faster otherwise, and leaves every device that it touches
 * below what that one had. So the loads, sorted, fall with each step, and the search ends. */
#include "sy_balance_layer.h"

/* What a step counts that loads nothing: less than a load, but not nothing, or the smallest free
 * gain would come before a large one. */
#define FREE_COST 0.25

typedef struct step {
    uint32_t expert;          /* on the busiest device */
    uint32_t to;              /* SY_BAL_NONE: it only leaves */
    int stays;                /* it stays on the busiest device as well: a replica */
    uint32_t other, other_to; /* an expert that leaves `to`, and where it goes; or SY_BAL_NONE */
    double score;             /* fall of the busiest device's load for each load; 0: no step */
} step;

typedef struct search {
    sy_bal_layer *layer;
    uint32_t from; /* the busiest device */
    double high;   /* its load */
    step best;
} search;

static double cost_of(const sy_bal_layer *layer, uint32_t e, uint32_t d)
{
    return layer->origin[(size_t)d * layer->world->n_experts + e] ? FREE_COST : 1.0;
}

/* Whether a step that leaves what it touches at `load` is better than the best so far. */
static int is_better(const search *s, double load, double cost)
{
    const double fall = s->high - load;

    return fall > sy_bal_epsilon(s->layer) && fall / cost > s->best.score * (1.0 + 1e-12);
}

static void take(search *s, step candidate, double load, double cost)
{
    candidate.score = (s->high - load) / cost;
    s->best = candidate;
}

/* ---- steps into free room, and out ---- */

static void try_leave(search *s, uint32_t e)
{
    const sy_bal_layer *const layer = s->layer;
    const uint32_t *const holder = sy_bal_holders(layer, e);
    double load = s->high - sy_bal_part(layer, e);
    double up;

    if (layer->n[e] < 2) return;
    up = layer->weight[e] / (layer->n[e] - 1) - sy_bal_part(layer, e);
    for (uint32_t i = 0; i < layer->n[e]; i++)
        if (holder[i] != s->from) load = SY_MAX(load, layer->load[holder[i]] + up);
    if (is_better(s, load, FREE_COST) && sy_bal_may_drop(layer, e, s->from)) {
        take(s, (step){e, SY_BAL_NONE, 0, SY_BAL_NONE, SY_BAL_NONE, 0.0}, load, FREE_COST);
    }
}

static void try_room(search *s, uint32_t e, uint32_t d)
{
    const sy_bal_layer *const layer = s->layer;
    const double part = sy_bal_part(layer, e);
    const double thinner = layer->weight[e] / (layer->n[e] + 1);
    const double cost = cost_of(layer, e, d);
    double load = SY_MAX(s->high - part, layer->load[d] + part);

    if (is_better(s, load, cost) && sy_bal_may_add(layer, e, d, s->from)) {
        take(s, (step){e, d, 0, SY_BAL_NONE, SY_BAL_NONE, 0.0}, load, cost);
    }
    load = SY_MAX(s->high - part + thinner, layer->load[d] + thinner);
    if (is_better(s, load, cost) && sy_bal_may_add(layer, e, d, SY_BAL_NONE)) {
        take(s, (step){e, d, 1, SY_BAL_NONE, SY_BAL_NONE, 0.0}, load, cost);
    }
}

/* ---- steps that push another expert out ---- */

static void try_swap(search *s, uint32_t e, uint32_t f, uint32_t d)
{
    const sy_bal_layer *const layer = s->layer;
    const double less = sy_bal_part(layer, e) - sy_bal_part(layer, f);
    const double load = SY_MAX(s->high - less, layer->load[d] + less);
    const double cost = cost_of(layer, e, d) + cost_of(layer, f, s->from);

    if (sy_bal_has(layer, s->from, f) || !is_better(s, load, cost)) return;
    if (sy_bal_may_add(layer, e, d, s->from) && sy_bal_may_add(layer, f, s->from, d)) {
        take(s, (step){e, d, 0, f, s->from, 0.0}, load, cost);
    }
}

/* e comes to d in place of f, which has other holders: they take over what it did. */
static void try_evict(search *s, uint32_t e, uint32_t f, uint32_t d)
{
    const sy_bal_layer *const layer = s->layer;
    const uint32_t *const holder = sy_bal_holders(layer, f);
    const double part = sy_bal_part(layer, e), freed = sy_bal_part(layer, f);
    const double up = layer->weight[f] / (layer->n[f] - 1) - freed;
    const double thinner = layer->weight[e] / (layer->n[e] + 1);
    const double cost = cost_of(layer, e, d);
    double from_up = 0.0, others = 0.0;

    for (uint32_t i = 0; i < layer->n[f]; i++) {
        if (holder[i] == s->from) {
            from_up = up;
        } else if (holder[i] != d) {
            others = SY_MAX(others, layer->load[holder[i]] + up);
        }
    }
    for (int stays = 0; stays < 2; stays++) {
        const double comes = stays ? thinner : part;
        double load = s->high - part + from_up + (stays ? thinner : 0.0);

        load = SY_MAX(SY_MAX(load, others), layer->load[d] + comes - freed);
        if (is_better(s, load, cost) && sy_bal_may_drop(layer, f, d) &&
            sy_bal_may_add(layer, e, d, stays ? SY_BAL_NONE : s->from)) {
            take(s, (step){e, d, stays, f, SY_BAL_NONE, 0.0}, load, cost);
        }
    }
}

static void try_all_others(search *s, uint32_t e)
{
    const sy_bal_layer *const layer = s->layer;
    /* What no step with e can leave less than: here, and of e on another device. */
    const double here = s->high - sy_bal_part(layer, e);
    const double there = layer->weight[e] / (layer->n[e] + 1);

    for (uint32_t f = 0; f < layer->world->n_experts; f++) {
        const uint32_t *const holder = sy_bal_holders(layer, f);

        if (f == e) continue;
        for (uint32_t i = 0; i < layer->n[f]; i++) {
            const uint32_t d = holder[i];
            double least;

            if (d == s->from || sy_bal_has(layer, d, e)) continue;
            least = SY_MAX(here, layer->load[d] + there - sy_bal_part(layer, f));
            if (!is_better(s, least, cost_of(layer, e, d))) continue;
            try_swap(s, e, f, d);
            if (layer->n[f] > 1) try_evict(s, e, f, d);
        }
    }
}

/* ---- the search ---- */

static int find_step(search *s)
{
    const sy_bal_layer *const layer = s->layer;

    s->from = sy_bal_busiest(layer);
    s->high = layer->load[s->from];
    s->best.score = 0.0;
    for (uint32_t e = 0; e < layer->world->n_experts; e++) {
        if (!sy_bal_has(layer, s->from, e) || layer->weight[e] <= 0.0) continue;
        if (!is_better(s, s->high - sy_bal_part(layer, e), FREE_COST)) continue;
        try_leave(s, e);
        for (uint32_t d = 0; d < layer->world->n_devices; d++) {
            if (layer->used[d] >= layer->cap[d] || sy_bal_has(layer, d, e)) continue;
            try_room(s, e, d);
        }
        try_all_others(s, e);
    }
    return s->best.score > 0.0;
}

static void do_step(sy_bal_layer *layer, const step *what, uint32_t from)
{
    /* Who leaves goes first: a row of holders has no room for one more than are allowed. */
    if (what->other != SY_BAL_NONE) sy_bal_drop(layer, what->other, what->to);
    if (!what->stays) sy_bal_drop(layer, what->expert, from);
    if (what->to != SY_BAL_NONE) sy_bal_add(layer, what->expert, what->to);
    if (what->other_to != SY_BAL_NONE) sy_bal_add(layer, what->other, what->other_to);
}

int sy_bal_search(sy_bal_layer *layer, sy_bal_states *states)
{
    search s = {.layer = layer};
    double lowest = sy_bal_max(layer);
    /* It ends by itself; but how soon is not proven, and nobody waits longer than this is worth. */
    uint64_t n_left = 8 * (uint64_t)layer->world->n_experts + 8 * layer->world->n_devices;

    while (n_left-- > 0 && find_step(&s)) {
        do_step(layer, &s.best, s.from);
        sy_bal_sum(layer);
        if (sy_bal_max(layer) >= lowest - sy_bal_epsilon(layer)) continue;
        lowest = sy_bal_max(layer);
        if (states != NULL && !sy_bal_states_push(states, layer)) return 0;
    }
    return 1;
}
