/* sy_balance_choose.c - which of the states that were found for each layer is planned. */
#include "sy_balance_parts.h"

typedef struct upgrade {
    uint32_t layer;
    size_t state;
    double gain;     /* fall of the layer's busiest device */
    int64_t n_loads; /* more than what is chosen now */
} upgrade;

/* The steps of a layer lead through states that cost more and more: a later state may be worth its
 * bytes where the next one alone is not, so all are looked at. */
static int is_better(const upgrade *a, const upgrade *b)
{
    if (b->layer == SY_BAL_NONE) return 1;
    if (a->n_loads <= 0 || b->n_loads <= 0) {
        if ((a->n_loads <= 0) != (b->n_loads <= 0)) return a->n_loads <= 0;
        return a->gain > b->gain;
    }
    return a->gain * (double)b->n_loads > b->gain * (double)a->n_loads;
}

double sy_bal_least_gain(const sy_bal_problem *problem, double mean, int64_t n_loads)
{
    const double tenths = n_loads > 0 ? 10.0 * (double)n_loads / problem->world.n_experts : 0.0;

    return SY_MAX(problem->options.min_gain * SY_MAX(tenths, 1.0), 1e-9) * mean;
}

static upgrade find_upgrade(const sy_bal_problem *problem, const sy_balance_plan *plan)
{
    upgrade best = {.layer = SY_BAL_NONE};

    for (uint32_t layer = 0; layer < plan->layers; layer++) {
        const sy_bal_states *const states = &problem->states[layer];
        const sy_bal_state *const now = &states->item[problem->chosen[layer]];

        for (size_t i = 0; i < states->n; i++) {
            const sy_bal_state *const state = &states->item[i];
            const upgrade found = {.layer = layer,
                                   .state = i,
                                   .gain = now->max - state->max,
                                   .n_loads = (int64_t)state->n_loads - (int64_t)now->n_loads};

            if (found.gain <= 0.0) continue;
            if (found.gain < sy_bal_least_gain(problem, plan->layer[layer].mean, found.n_loads))
                continue;
            if (found.n_loads > 0 &&
                (uint64_t)found.n_loads > problem->n_loads_max - problem->n_loads) {
                continue;
            }
            if (is_better(&found, &best)) best = found;
        }
    }
    return best;
}

void sy_bal_choose(sy_bal_problem *problem, const sy_balance_plan *plan)
{
    for (;;) {
        const upgrade best = find_upgrade(problem, plan);

        if (best.layer == SY_BAL_NONE) return;
        problem->chosen[best.layer] = best.state;
        problem->n_loads += (uint64_t)best.n_loads; /* wraps back where it is fewer */
    }
}
