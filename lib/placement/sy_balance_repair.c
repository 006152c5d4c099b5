/* sy_balance_repair.c - what must be done whatever it gains: slots for each layer, and a new place
 * for what stood on devices that are gone, or is on fewer nodes than the minimum. */
#include <stdlib.h>
#include <string.h>

#include "sy_balance_parts.h"

/* ---- slots ---- */

/* The layers that have experts, among which slots are shared out. */
typedef struct shared {
    uint32_t *layer; /* [n] */
    uint32_t n, n_devices, n_experts;
} shared;

/* Slots of one device (cap: its column) that raising every layer to the level takes. */
static uint64_t cost_of_level(const uint32_t *cap, const shared *among, uint32_t level)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < among->n; i++) {
        const uint32_t has = cap[(size_t)among->layer[i] * among->n_devices];

        if (has < level) n += level - has;
    }
    return n;
}

/* Shares the free slots of one device out, the layers with the fewest first, none above experts: it
 * would hold one twice. What is left when all are level goes one each to layers counted from
 * `begin`, another one for each device: so leftovers are even over layers as well. */
static void raise_lowest(uint32_t *cap, const shared *among, uint32_t n_free, uint32_t begin)
{
    uint32_t level = 0, above = among->n_experts + 1;

    while (above - level > 1) {
        const uint32_t middle = level + (above - level) / 2;

        if (cost_of_level(cap, among, middle) <= n_free) {
            level = middle;
        } else {
            above = middle;
        }
    }
    n_free -= (uint32_t)cost_of_level(cap, among, level);
    for (uint32_t i = 0; i < among->n; i++) {
        const uint32_t layer = among->layer[(begin + i) % among->n];
        uint32_t *const to = &cap[(size_t)layer * among->n_devices];

        if (*to > level) continue;
        *to = level;
        if (n_free == 0 || level == among->n_experts) continue;
        ++*to;
        n_free--;
    }
}

static void share_device(uint32_t *cap, const sy_balance_input *input, const shared *among,
                         uint32_t d)
{
    const uint32_t slots = SY_MIN(input->device[d].slots, among->n * among->n_experts);
    uint32_t n_used = 0;

    for (uint32_t i = 0; i < among->n; i++)
        n_used += cap[(size_t)among->layer[i] * among->n_devices + d];
    if (slots <= n_used) return;
    raise_lowest(cap + d, among, slots - n_used,
                 (uint32_t)((uint64_t)d * (slots % among->n) % among->n));
}

sy_status sy_bal_share_slots(sy_bal_problem *problem, sy_error *err)
{
    const sy_balance_input *const input = problem->input;
    const uint32_t layers = input->grid.layers, n_devices = input->n_devices;
    shared among = {.n_devices = n_devices, .n_experts = input->grid.experts};

    problem->cap = calloc((size_t)layers * n_devices, sizeof(*problem->cap));
    among.layer = calloc(layers, sizeof(*among.layer));
    if (problem->cap == NULL || among.layer == NULL) {
        free(among.layer);
        return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    }
    for (uint32_t layer = 0; layer < layers; layer++)
        if (sy_grid_has(&input->grid, layer)) among.layer[among.n++] = layer;
    for (size_t at = 0; at < (size_t)layers * input->grid.experts; at++)
        for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++)
            if (input->holder[i] != SY_BALANCE_GONE)
                problem->cap[at / input->grid.experts * n_devices + input->holder[i]]++;
    for (uint32_t d = 0; d < n_devices && among.n > 0; d++)
        share_device(problem->cap, input, &among, d);
    free(among.layer);
    return SY_OK;
}

/* ---- a layer as it is ---- */

static void take_pinned(sy_bal_layer *work, const sy_balance_input *input, size_t at)
{
    const uint32_t n = input->offset[at + 1] - input->offset[at];

    for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++) {
        const uint32_t d = input->holder[i];
        const double share = input->share != NULL ? input->share[i] : 1.0 / n;

        if (d == SY_BALANCE_GONE) continue;
        work->cap[d] -= work->cap[d] > 0;
        work->fixed[d] += share * input->load[at];
    }
}

void sy_bal_take_layer(sy_bal_problem *problem, uint32_t layer)
{
    const sy_balance_input *const input = problem->input;
    const uint32_t n_devices = input->n_devices, n_experts = input->grid.experts;
    const size_t first = (size_t)layer * n_experts;
    sy_bal_layer *const work = &problem->work;

    work->weight = input->load + first;
    work->is_fixed = input->pinned != NULL ? input->pinned + first : NULL;
    work->mean = 0.0;
    for (uint32_t e = 0; e < n_experts; e++) work->mean += work->weight[e];
    work->mean /= n_devices;
    memcpy(work->cap, problem->cap + (size_t)layer * n_devices, n_devices * sizeof(*work->cap));
    memset(work->fixed, 0, n_devices * sizeof(*work->fixed));
    for (uint32_t e = 0; e < n_experts; e++)
        if (sy_bal_is_fixed(work, e)) take_pinned(work, input, first + e);
    sy_bal_layer_clear(work);
    memset(work->origin, 0, (size_t)n_devices * n_experts);
    for (uint32_t e = 0; e < n_experts; e++) {
        if (sy_bal_is_fixed(work, e)) continue;
        for (uint32_t i = input->offset[first + e]; i < input->offset[first + e + 1]; i++) {
            const uint32_t d = input->holder[i];

            if (d == SY_BALANCE_GONE) continue;
            work->origin[(size_t)d * n_experts + e] = 1;
            sy_bal_add(work, e, d);
        }
    }
    sy_bal_sum(work);
    for (uint32_t e = 0; e < n_experts; e++) sy_bal_set_floor(work, e);
}

/* ---- what is gone, or was never there ---- */

static int by_need(const void *a, const void *b)
{
    const sy_bal_lost *const x = a, *const y = b;

    if (x->is_last != y->is_last) return x->is_last ? -1 : 1;
    if (x->is_short != y->is_short) return x->is_short ? -1 : 1;
    if (x->load != y->load) return x->load > y->load ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* What one expert needs: places, the first n_missing of them on nodes that have none of it. */
typedef struct need {
    uint32_t n_places, n_missing;
    int has_none; /* no holder at all: the first place is the most urgent there is */
} need;

static need need_of(const sy_bal_problem *problem, size_t at)
{
    const sy_balance_input *const input = problem->input;
    const uint32_t n_nodes = sy_bal_count_nodes(&problem->world, input->holder + input->offset[at],
                                                input->offset[at + 1] - input->offset[at]);
    uint32_t n_gone = 0;
    need out = {0};

    if (!sy_grid_has(&input->grid, (uint32_t)(at / input->grid.experts))) return out;
    if (input->pinned != NULL && input->pinned[at]) return out;
    for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++)
        n_gone += input->holder[i] == SY_BALANCE_GONE;
    /* There is no node left that it is not on, and more replicas on those would make it no safer.
     */
    if (n_nodes == problem->world.n_nodes && n_nodes < problem->options.min_replicas) n_gone = 0;
    out.has_none = n_nodes == 0;
    if (problem->world.min_nodes > n_nodes) out.n_missing = problem->world.min_nodes - n_nodes;
    out.n_places = SY_MAX(SY_MAX(n_gone, out.n_missing), (uint32_t)out.has_none);
    return out;
}

sy_status sy_bal_list_lost(sy_bal_problem *problem, sy_error *err)
{
    const sy_balance_input *const input = problem->input;
    const size_t n_all = (size_t)input->grid.layers * input->grid.experts;
    size_t n_places = 0;
    uint64_t n_left = problem->n_loads_max;

    for (size_t at = 0; at < n_all; at++) n_places += need_of(problem, at).n_places;
    problem->lost = calloc(n_places + 1, sizeof(*problem->lost));
    if (problem->lost == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (size_t at = 0; at < n_all; at++) {
        const need what = need_of(problem, at);

        for (uint32_t i = 0; i < what.n_places; i++) {
            const int is_last = i == 0 && what.has_none;

            problem->lost[problem->n_lost++] =
                (sy_bal_lost){.layer = (uint32_t)(at / input->grid.experts),
                              .expert = (uint32_t)(at % input->grid.experts),
                              .load = input->load[at],
                              .is_last = is_last,
                              .is_short = !is_last && i < what.n_missing};
        }
    }
    if (problem->n_lost > 0) qsort(problem->lost, problem->n_lost, sizeof(*problem->lost), by_need);
    for (size_t i = 0; i < problem->n_lost && n_left > 0; i++, n_left--)
        problem->lost[i].may_load = 1;
    problem->n_extra = (int64_t)SY_MIN(n_left, (uint64_t)INT64_MAX / 2);
    return SY_OK;
}

/* Of two devices with the same load the emptier one: without any load seen, numbers are evened out.
 */
static int is_lighter(const sy_bal_layer *work, uint32_t a, uint32_t b)
{
    if (work->load[a] != work->load[b]) return work->load[a] < work->load[b];
    return work->used[a] < work->used[b];
}

static uint32_t least_loaded(const sy_bal_layer *work, uint32_t e, uint32_t leaving)
{
    const int is_short = sy_bal_is_short(work, e);
    uint32_t best = SY_BAL_NONE;

    for (uint32_t d = 0; d < work->world->n_devices; d++) {
        if (work->used[d] >= work->cap[d] || sy_bal_has(work, d, e)) continue;
        if (is_short && sy_bal_on_node(work, e, work->world->node[d])) continue;
        if (best != SY_BAL_NONE && !is_lighter(work, d, best)) continue;
        if (sy_bal_may_add(work, e, d, leaving)) best = d;
    }
    return best;
}

/* Of an expert that is short, a holder beside another one on its node: it can go elsewhere. */
static uint32_t find_double(const sy_bal_layer *work, uint32_t e)
{
    const uint32_t *const holder = sy_bal_holders(work, e);

    if (!sy_bal_is_short(work, e)) return SY_BAL_NONE;
    for (uint32_t i = 1; i < work->n[e]; i++)
        for (uint32_t k = 0; k < i; k++)
            if (work->world->node[holder[i]] == work->world->node[holder[k]]) return holder[i];
    return SY_BAL_NONE;
}

/* 0: nothing has room. */
static int place_again(sy_bal_problem *problem, const sy_bal_lost *lost)
{
    sy_bal_layer *const work = &problem->work;
    const uint32_t e = lost->expert;
    const uint32_t leaving = find_double(work, e);
    uint32_t d = least_loaded(work, e, leaving);

    if (d == SY_BAL_NONE && (lost->is_last || lost->is_short)) {
        const int64_t n_extra = problem->n_extra;

        d = sy_bal_make_room(work, e, leaving, &problem->n_extra);
        problem->n_loads += (uint64_t)(n_extra - problem->n_extra); /* wraps back if it is less */
    }
    if (d == SY_BAL_NONE) return 0;
    if (leaving != SY_BAL_NONE) sy_bal_drop(work, e, leaving);
    sy_bal_add(work, e, d);
    sy_bal_set_floor(work, e);
    problem->n_loads++;
    return 1;
}

uint32_t sy_bal_repair(sy_bal_problem *problem, uint32_t layer)
{
    sy_bal_layer *const work = &problem->work;
    uint32_t n_left = 0;

    for (size_t i = 0; i < problem->n_lost; i++) {
        sy_bal_lost *const lost = &problem->lost[i];

        if (lost->layer != layer || !lost->may_load) continue;
        lost->is_placed = (uint8_t)place_again(problem, lost);
    }
    sy_bal_sum(work);
    for (uint32_t e = 0; e < work->world->n_experts; e++)
        n_left += work->n[e] == 0 && !sy_bal_is_fixed(work, e);
    return n_left;
}
