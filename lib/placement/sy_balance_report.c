/* sy_balance_report.c - the chosen states as a plan: holders, ratios, and why each layer and expert
 * is as it is. */
#include <stdlib.h>
#include <string.h>

#include "sy_balance_parts.h"

const char *sy_balance_why_text(sy_balance_why why)
{
    switch (why) {
    case SY_BALANCE_LOST: return "placed again: it had no holder left";
    case SY_BALANCE_LOST_REPLICA: return "placed again: one of its holders is gone";
    case SY_BALANCE_REPLICATED: return "replicated: it is hot";
    case SY_BALANCE_MOVED: return "moved: the layer's devices become more even";
    case SY_BALANCE_THINNED: return "fewer replicas: less load there, or room for others";
    case SY_BALANCE_MINIMUM: return "replicated: it was on fewer nodes than the minimum";
    case SY_BALANCE_LEFT_BUDGET: return "not placed again yet: the budget is spent";
    case SY_BALANCE_LEFT_ROOM: return "not placed again: no device has room";
    case SY_BALANCE_SHORT_BUDGET:
        return "on fewer nodes than the minimum still: the budget is spent";
    case SY_BALANCE_SHORT_ROOM:
        return "on fewer nodes than the minimum: no device of another node has room";
    }
    return "";
}

/* ---- holders ---- */

static int is_pinned(const sy_balance_input *input, size_t at)
{
    return input->pinned != NULL && input->pinned[at];
}

/* The planned holders of an expert that is not pinned. */
static const uint32_t *planned(const sy_bal_problem *problem, size_t at, uint32_t *n)
{
    const uint32_t n_experts = problem->input->grid.experts;
    const size_t layer = at / n_experts, e = at % n_experts;
    const sy_bal_state *const state = &problem->states[layer].item[problem->chosen[layer]];

    *n = state->words[e + 1] - state->words[e];
    return state->words + n_experts + 1 + state->words[e];
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Puts the holders of one expert at `to`, or only counts them. */
static uint32_t put_holders(uint32_t *to, const sy_bal_problem *problem, size_t at)
{
    const sy_balance_input *const input = problem->input;
    uint32_t n = 0;

    if (!is_pinned(input, at)) {
        const uint32_t *const from = planned(problem, at, &n);

        if (to != NULL) memcpy(to, from, n * sizeof(*to));
        return n;
    }
    for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++) {
        if (input->holder[i] == SY_BALANCE_GONE) continue;
        if (to != NULL) to[n] = input->holder[i];
        n++;
    }
    if (to != NULL && n > 0) qsort(to, n, sizeof(*to), by_number);
    return n;
}

static sy_status fill_holders(sy_balance_plan *plan, const sy_bal_problem *problem, sy_error *err)
{
    const size_t n_all = (size_t)plan->layers * plan->experts;

    plan->offset = calloc(n_all + 1, sizeof(*plan->offset));
    if (plan->offset == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (size_t at = 0; at < n_all; at++)
        plan->offset[at + 1] = plan->offset[at] + put_holders(NULL, problem, at);
    plan->holder = calloc((size_t)plan->offset[n_all] + 1, sizeof(*plan->holder));
    if (plan->holder == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (size_t at = 0; at < n_all; at++) put_holders(plan->holder + plan->offset[at], problem, at);
    return SY_OK;
}

/* ---- changes ---- */

static int holds(const uint32_t *holder, uint32_t n, uint32_t d)
{
    for (uint32_t i = 0; i < n; i++)
        if (holder[i] == d) return 1;
    return 0;
}

enum {
    WAS_LOST = 1,
    WAS_LAST = 2,
    LEFT_BUDGET = 4,
    LEFT_ROOM = 8,
    WAS_SHORT = 16,
    SHORT_BUDGET = 32
};

/* [layers*experts] of what was lost, and what became of it. The caller frees it; NULL: no memory.
 */
static uint8_t *mark_lost(const sy_bal_problem *problem)
{
    const sy_balance_input *const input = problem->input;
    uint8_t *bits = calloc((size_t)input->grid.layers * input->grid.experts, 1);

    if (bits == NULL) return NULL;
    for (size_t i = 0; i < problem->n_lost; i++) {
        const sy_bal_lost *const lost = &problem->lost[i];
        uint8_t *const to = &bits[(size_t)lost->layer * input->grid.experts + lost->expert];

        *to |= WAS_LOST;
        if (lost->is_last) *to |= WAS_LAST;
        if (lost->is_short) *to |= lost->may_load ? WAS_SHORT : WAS_SHORT | SHORT_BUDGET;
        if (!lost->is_placed) *to |= lost->may_load ? LEFT_ROOM : LEFT_BUDGET;
    }
    return bits;
}

/* Why an expert that was on fewer nodes than the minimum is as it is now. */
static sy_balance_why why_short(uint32_t n_nodes, uint32_t n_gone, const sy_bal_problem *problem,
                                uint8_t marks)
{
    if (n_nodes < problem->world.min_nodes)
        return (marks & SHORT_BUDGET) != 0 ? SY_BALANCE_SHORT_BUDGET : SY_BALANCE_SHORT_ROOM;
    return n_gone > 0 ? SY_BALANCE_LOST_REPLICA : SY_BALANCE_MINIMUM;
}

/* 1: the expert differs, and *out says how. */
static int compare(sy_balance_change *out, const sy_balance_plan *plan,
                   const sy_bal_problem *problem, size_t at, uint8_t marks)
{
    const sy_balance_input *const input = problem->input;
    const uint32_t *const before = input->holder + input->offset[at];
    const uint32_t *const after = plan->holder + plan->offset[at];
    const uint32_t n_before = input->offset[at + 1] - input->offset[at];
    const uint32_t n_after = plan->offset[at + 1] - plan->offset[at];
    uint32_t n_gone = 0;

    *out = (sy_balance_change){.layer = (uint32_t)(at / input->grid.experts),
                               .expert = (uint32_t)(at % input->grid.experts),
                               .load = input->load[at]};
    for (uint32_t i = 0; i < n_after; i++) out->n_loads += !holds(before, n_before, after[i]);
    for (uint32_t i = 0; i < n_before; i++) {
        n_gone += before[i] == SY_BALANCE_GONE;
        out->n_drops += before[i] != SY_BALANCE_GONE && !holds(after, n_after, before[i]);
    }
    if ((marks & WAS_SHORT) != 0 && (marks & WAS_LAST) == 0) {
        out->why =
            why_short(sy_bal_count_nodes(&problem->world, after, n_after), n_gone, problem, marks);
    } else if ((marks & WAS_LOST) != 0 && n_after < n_before && out->n_loads == 0) {
        out->why = (marks & LEFT_BUDGET) != 0 ? SY_BALANCE_LEFT_BUDGET : SY_BALANCE_LEFT_ROOM;
    } else if ((marks & WAS_LAST) != 0) {
        out->why = n_after > 0                  ? SY_BALANCE_LOST
                   : (marks & LEFT_BUDGET) != 0 ? SY_BALANCE_LEFT_BUDGET
                                                : SY_BALANCE_LEFT_ROOM;
    } else if ((marks & WAS_LOST) != 0) {
        out->why = SY_BALANCE_LOST_REPLICA;
    } else if (n_after > n_before - n_gone) {
        out->why = SY_BALANCE_REPLICATED;
    } else {
        out->why = n_after < n_before - n_gone ? SY_BALANCE_THINNED : SY_BALANCE_MOVED;
    }
    return marks != 0 || out->n_loads + out->n_drops > 0;
}

static void count_short(sy_balance_plan *plan, const sy_bal_problem *problem, size_t at)
{
    const sy_balance_input *const input = problem->input;
    const uint32_t n_before = sy_bal_count_nodes(&problem->world, input->holder + input->offset[at],
                                                 input->offset[at + 1] - input->offset[at]);
    const uint32_t n_after = sy_bal_count_nodes(&problem->world, plan->holder + plan->offset[at],
                                                plan->offset[at + 1] - plan->offset[at]);

    plan->n_short += n_before > 0 && n_before < plan->min_nodes;
    plan->n_short_left += n_after > 0 && n_after < plan->min_nodes;
}

static sy_status fill_changes(sy_balance_plan *plan, const sy_bal_problem *problem, sy_error *err)
{
    const sy_balance_input *const input = problem->input;
    const size_t n_all = (size_t)plan->layers * plan->experts;
    uint8_t *marks = mark_lost(problem);

    plan->change = calloc(n_all + 1, sizeof(*plan->change));
    if (marks == NULL || plan->change == NULL) {
        free(marks);
        return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    }
    for (size_t at = 0; at < n_all; at++) {
        sy_balance_change *const change = &plan->change[plan->n_changes];

        if (is_pinned(input, at)) continue;
        if (!sy_grid_has(&input->grid, (uint32_t)(at / input->grid.experts))) continue;
        plan->n_lost += (marks[at] & WAS_LAST) != 0;
        plan->n_lost_left += plan->offset[at + 1] == plan->offset[at];
        count_short(plan, problem, at);
        if (!compare(change, plan, problem, at, marks[at])) continue;
        plan->n_loads += change->n_loads;
        plan->n_drops += change->n_drops;
        plan->n_changes++;
    }
    plan->load_bytes = plan->n_loads * input->shard_bytes;
    free(marks);
    return SY_OK;
}

/* ---- layers and ratios ---- */

static void add_ratio(sy_balance_ratio *ratio, double max, const sy_balance_layer *layer,
                      uint32_t layer_id)
{
    if (layer->mean <= 0.0) return;
    ratio->mean += max / layer->mean;
    if (max / layer->mean <= ratio->worst) return;
    ratio->worst = max / layer->mean;
    ratio->worst_layer = layer_id;
}

static int was_left(const sy_bal_problem *problem, uint32_t layer)
{
    for (size_t i = 0; i < problem->n_lost; i++)
        if (problem->lost[i].layer == layer && !problem->lost[i].may_load) return 1;
    return 0;
}

static void judge_layer(sy_balance_layer *out, const sy_bal_problem *problem, uint32_t layer)
{
    const sy_bal_states *const states = &problem->states[layer];
    const sy_bal_state *const chosen = &states->item[problem->chosen[layer]];
    const sy_bal_state *best = chosen;
    double least;

    for (size_t i = 0; i < states->n; i++)
        if (states->item[i].max < best->max) best = &states->item[i];
    out->after = chosen->max;
    out->n_loads = chosen->n_loads;
    out->better = best->max;
    out->need_loads = best->n_loads;
    least =
        sy_bal_least_gain(problem, out->mean, (int64_t)best->n_loads - (int64_t)chosen->n_loads);
    const int is_over_budget = out->verdict == SY_BALANCE_NO_ROOM
                                   ? was_left(problem, layer)
                                   : chosen->max - best->max >= least;
    if (out->verdict != SY_BALANCE_EVEN && out->verdict != SY_BALANCE_NO_ROOM) return;
    if (is_over_budget) {
        out->verdict = SY_BALANCE_OVER_BUDGET;
    } else if (out->verdict == SY_BALANCE_NO_ROOM) {
        return;
    } else if (best->max < chosen->max - 1e-9 * out->mean) {
        out->verdict = SY_BALANCE_TOO_LITTLE;
    } else if (problem->chosen[layer] != 0) {
        out->verdict = SY_BALANCE_IMPROVED;
    }
}

/* Adds a layer's device loads, in a state that is kept, to sums. */
static void add_loads(double *sums, sy_bal_problem *problem, uint32_t layer,
                      const sy_bal_state *state)
{
    sy_bal_take_layer(problem, layer);
    if (state != NULL) sy_bal_restore(&problem->work, state);
    for (uint32_t d = 0; d < problem->world.n_devices; d++) sums[d] += problem->work.load[d];
}

static double max_of(const double *sums, uint32_t n)
{
    double max = 0.0;

    for (uint32_t i = 0; i < n; i++) max = SY_MAX(max, sums[i]);
    return max;
}

static sy_status fill_ratios(sy_balance_plan *plan, sy_bal_problem *problem, sy_error *err)
{
    const uint32_t n_devices = problem->world.n_devices;
    double *sums = calloc(3 * (size_t)n_devices, sizeof(*sums));
    double mean = 0.0;
    uint32_t n_loaded = 0;

    if (sums == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (uint32_t i = 0; i < plan->layers; i++) {
        sy_balance_layer *const layer = &plan->layer[i];
        const sy_bal_state *const state = problem->states[i].item;

        judge_layer(layer, problem, i);
        add_ratio(&plan->before, layer->before, layer, i);
        add_ratio(&plan->base, layer->base, layer, i);
        add_ratio(&plan->after, layer->after, layer, i);
        n_loaded += layer->mean > 0.0;
        mean += layer->mean;
        add_loads(sums, problem, i, NULL);
        add_loads(sums + n_devices, problem, i, &state[0]);
        add_loads(sums + 2 * (size_t)n_devices, problem, i, &state[problem->chosen[i]]);
    }
    for (int i = 0; i < 3; i++) {
        sy_balance_ratio *const ratio = i == 0   ? &plan->before
                                        : i == 1 ? &plan->base
                                                 : &plan->after;

        if (n_loaded > 0) {
            ratio->mean /= n_loaded;
            ratio->whole = max_of(sums + (size_t)i * n_devices, n_devices) / mean;
        } else {
            ratio->mean = ratio->worst = ratio->whole = 1.0;
        }
    }
    free(sums);
    return SY_OK;
}

sy_status sy_bal_report(sy_balance_plan *plan, sy_bal_problem *problem, sy_error *err)
{
    sy_status st;

    SY_TRY(fill_ratios(plan, problem, err));
    SY_TRY(fill_holders(plan, problem, err));
    SY_TRY(fill_changes(plan, problem, err));
out:
    return st;
}
