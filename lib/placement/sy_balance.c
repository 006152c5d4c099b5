/* sy_balance.c - the plan from beginning to end: check what came in, place again what is gone, work
 * out how each layer could be better, and take of that what gains the most for its bytes. */
#include "sy_balance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sy_balance_parts.h"
#include "sy_placement.h"

#define PACK_TRIES 8
#define GOOD_ENOUGH \
    1.005 /* times what no placement can be below: trying on is not worth the time */

#define LEAST_GAIN 0.0005 /* a min_gain below this is as good as none */

/* ---- what came in ---- */

static sy_status check_holders(const sy_balance_input *input, size_t at, uint32_t *seen,
                               sy_error *err)
{
    const size_t layer = at / input->grid.experts, expert = at % input->grid.experts;

    if (input->offset[at + 1] < input->offset[at])
        return sy_error_set(err, SY_EINVAL, "the offsets of holders fall at %zu/%zu", layer,
                            expert);
    if (!sy_grid_has(&input->grid, (uint32_t)layer) &&
        (input->offset[at + 1] > input->offset[at] || input->load[at] > 0.0)) {
        return sy_error_set(err, SY_EINVAL, "%zu/%zu: layer %zu has no experts", layer, expert,
                            layer);
    }
    for (uint32_t i = input->offset[at]; i < input->offset[at + 1]; i++) {
        const uint32_t d = input->holder[i];

        if (d == SY_BALANCE_GONE) continue;
        if (d >= input->n_devices) {
            return sy_error_set(err, SY_EINVAL, "%zu/%zu is held by device %u of %u", layer, expert,
                                d, input->n_devices);
        }
        if (seen[d] == at + 1)
            return sy_error_set(err, SY_EINVAL, "%zu/%zu names one device twice", layer, expert);
        seen[d] = (uint32_t)at + 1;
    }
    return SY_OK;
}

static sy_status check_input(const sy_balance_input *input, sy_error *err)
{
    const size_t n_all = (size_t)input->grid.layers * input->grid.experts;
    uint32_t *seen = NULL;
    sy_status st = SY_OK;

    if (input->grid.layers == 0 || input->grid.layers > SY_BALANCE_LAYERS_MAX ||
        input->grid.experts == 0 || input->grid.experts > SY_BALANCE_EXPERTS_MAX) {
        return sy_error_set(err, SY_EINVAL, "%u layers of %u experts: at most %u of %u",
                            input->grid.layers, input->grid.experts, SY_BALANCE_LAYERS_MAX,
                            SY_BALANCE_EXPERTS_MAX);
    }
    if (input->n_devices == 0 || input->n_devices > SY_BALANCE_DEVICES_MAX) {
        return sy_error_set(err, SY_EINVAL, "%u devices: 1 to %u can be balanced", input->n_devices,
                            SY_BALANCE_DEVICES_MAX);
    }
    seen = calloc(input->n_devices, sizeof(*seen));
    if (seen == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (size_t at = 0; at < n_all; at++) {
        if (!(input->load[at] >= 0.0) || input->load[at] > 1e300 / SY_BALANCE_EXPERTS_MAX) {
            st = sy_error_set(err, SY_EINVAL, "the load of %zu/%zu is no number that can be added",
                              at / input->grid.experts, at % input->grid.experts);
            goto out;
        }
        SY_TRY(check_holders(input, at, seen, err));
    }
out:
    free(seen);
    return st;
}

/* ---- the problem ---- */

/* Numbers nodes from 0 in the order of the devices. */
static sy_status number_nodes(sy_bal_problem *problem, sy_error *err)
{
    const sy_balance_input *const input = problem->input;

    problem->node = calloc(input->n_devices, sizeof(*problem->node));
    if (problem->node == NULL) return sy_error_set(err, SY_ENOMEM, "no memory to balance");
    for (uint32_t d = 0; d < input->n_devices; d++) {
        uint32_t same = 0;

        while (same < d && input->device[same].node != input->device[d].node) same++;
        problem->node[d] = same < d ? problem->node[same] : problem->world.n_nodes++;
    }
    problem->world.node = problem->node;
    return SY_OK;
}

static sy_status open_problem(sy_bal_problem *problem, const sy_balance_input *input,
                              const sy_balance_options *options, sy_error *err)
{
    const size_t n_all = (size_t)input->grid.layers * input->grid.experts;
    sy_status st;

    *problem = (sy_bal_problem){.input = input, .options = *options, .n_loads_max = UINT64_MAX};
    problem->world.n_experts = input->grid.experts;
    problem->world.n_devices = input->n_devices;
    if (options->replicas_max == 0) problem->options.replicas_max = SY_TARGETS_MAX;
    if (options->min_replicas > problem->options.replicas_max) {
        return sy_error_set(err, SY_EINVAL,
                            "at least %u replicas of each expert and at most %u contradict each "
                            "other",
                            options->min_replicas, problem->options.replicas_max);
    }
    problem->world.replicas_max = SY_MIN(problem->options.replicas_max, input->n_devices);
    problem->world.stride = problem->world.replicas_max;
    for (size_t at = 0; at < n_all; at++) {
        problem->world.stride =
            SY_MAX(problem->world.stride, input->offset[at + 1] - input->offset[at]);
    }
    if (options->budget_bytes > 0 && input->shard_bytes > 0)
        problem->n_loads_max = options->budget_bytes / input->shard_bytes;
    SY_TRY(number_nodes(problem, err));
    problem->world.min_nodes = SY_MIN(options->min_replicas, problem->world.n_nodes);
    SY_TRY(sy_bal_share_slots(problem, err));
    SY_TRY(sy_bal_list_lost(problem, err));
    problem->states = calloc(input->grid.layers, sizeof(*problem->states));
    problem->chosen = calloc(input->grid.layers, sizeof(*problem->chosen));
    if (problem->states == NULL || problem->chosen == NULL ||
        !sy_bal_layer_open(&problem->work, &problem->world)) {
        st = sy_error_set(err, SY_ENOMEM, "no memory to balance");
    }
out:
    return st;
}

static void close_problem(sy_bal_problem *problem)
{
    if (problem->states != NULL)
        for (uint32_t layer = 0; layer < problem->input->grid.layers; layer++)
            sy_bal_states_free(&problem->states[layer]);
    free(problem->states);
    free(problem->chosen);
    free(problem->node);
    free(problem->cap);
    free(problem->lost);
    sy_bal_layer_close(&problem->work);
}

/* ---- one layer ---- */

/* The most even that packing finds, kept as states' last if it is below max. With every slot full,
 * a device must take so many idle experts that it has no room for a part of a hot one: so if all
 * spare slots do not do, fewer are tried. 0: no memory. */
static int pack_best(sy_bal_layer *work, sy_bal_states *states, double max, double bound)
{
    sy_bal_states packed = {0};
    int is_done = 1;

    for (int left = PACK_TRIES; left >= 0 && is_done; left--) {
        if (!sy_bal_pack(work, (double)left / PACK_TRIES)) continue;
        is_done = sy_bal_search(work, NULL);
        if (!is_done || sy_bal_max(work) >= max - sy_bal_epsilon(work)) continue;
        max = sy_bal_max(work);
        sy_bal_states_free(&packed);
        is_done = sy_bal_states_push(&packed, work);
        if (max <= GOOD_ENOUGH * bound) break;
    }
    if (is_done && packed.n > 0) {
        sy_bal_restore(work, &packed.item[0]);
        is_done =
            sy_bal_match(work) && sy_bal_states_push(states, work) && sy_bal_search(work, states);
    }
    sy_bal_states_free(&packed);
    return is_done;
}

static sy_status look_at_layer(sy_balance_layer *out, sy_bal_problem *problem, uint32_t layer,
                               sy_error *err)
{
    sy_bal_layer *const work = &problem->work;
    sy_bal_states *const states = &problem->states[layer];
    uint32_t n_left;

    sy_bal_take_layer(problem, layer);
    if (!sy_grid_has(&problem->input->grid, layer)) {
        out->verdict = SY_BALANCE_NO_EXPERTS;
        if (!sy_bal_states_push(states, work)) goto no_memory; /* it holds nothing */
        return SY_OK;
    }
    out->mean = work->mean;
    out->before = sy_bal_max(work);
    n_left = sy_bal_repair(problem, layer);
    out->bound = sy_bal_bound(work);
    out->base = sy_bal_max(work);
    if (!sy_bal_states_push(states, work)) goto no_memory;
    if (n_left > 0) {
        out->verdict = SY_BALANCE_NO_ROOM; /* or the budget is spent: which, is seen later */
    } else if (work->mean <= 0.0) {
        out->verdict = SY_BALANCE_NO_LOAD;
    } else if (!sy_bal_search(work, states) ||
               !pack_best(work, states, sy_bal_max(work), out->bound)) {
        goto no_memory;
    }
    return SY_OK;
no_memory:
    return sy_error_set(err, SY_ENOMEM, "no memory to balance");
}

/* ---- all layers ---- */

static sy_status make_plan(sy_balance_plan *out, const sy_balance_input *input,
                           const sy_balance_options *options, sy_error *err)
{
    sy_bal_problem problem = {.input = input};
    sy_status st;

    memset(out, 0, sizeof(*out));
    SY_TRY(check_input(input, err));
    SY_TRY(open_problem(&problem, input, options, err));
    out->layers = input->grid.layers;
    out->experts = input->grid.experts;
    out->min_nodes = problem.world.min_nodes;
    out->layer = calloc(input->grid.layers, sizeof(*out->layer));
    if (out->layer == NULL) {
        st = sy_error_set(err, SY_ENOMEM, "no memory to balance");
        goto out;
    }
    for (uint32_t layer = 0; layer < input->grid.layers; layer++)
        SY_TRY(look_at_layer(&out->layer[layer], &problem, layer, err));
    sy_bal_choose(&problem, out);
    SY_TRY(sy_bal_report(out, &problem, err));
out:
    close_problem(&problem);
    if (st != SY_OK) sy_balance_plan_free(out);
    return st;
}

sy_status sy_balance(sy_balance_plan *out, const sy_balance_input *input,
                     const sy_balance_options *options, sy_error *err)
{
    sy_balance_options now = *options;
    sy_status st;

    for (;;) {
        st = make_plan(out, input, &now, err);
        if (st != SY_OK || now.good_enough == 0.0 || out->after.mean <= now.good_enough) return st;
        if (now.min_gain == 0.0) return st;
        now.min_gain = now.min_gain > LEAST_GAIN ? now.min_gain / 4 : 0.0;
        sy_balance_plan_free(out);
    }
}

void sy_balance_plan_free(sy_balance_plan *plan)
{
    free(plan->offset);
    free(plan->holder);
    free(plan->layer);
    free(plan->change);
    memset(plan, 0, sizeof(*plan));
}
