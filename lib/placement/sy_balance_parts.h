/* sy_balance_parts.h - the pieces of sy_balance that look at all layers together. Only for
 * lib/placement. */
#ifndef SY_BALANCE_PARTS_H
#define SY_BALANCE_PARTS_H

#include "sy_balance.h"
#include "sy_balance_layer.h"

typedef struct sy_bal_lost { /* one holder that is gone, or one that the minimum lacks */
    uint32_t layer, expert;
    double load;
    uint8_t is_last;  /* the expert has no holder at all: the first of those to be placed */
    uint8_t is_short; /* else: without it the expert is on fewer nodes than the minimum */
    uint8_t may_load; /* the budget reaches so far */
    uint8_t is_placed;
} sy_bal_lost;

typedef struct sy_bal_problem {
    const sy_balance_input *input;
    sy_balance_options options; /* with defaults filled in */
    sy_bal_world world;
    uint32_t *node;    /* world.node */
    uint32_t *cap;     /* [layers, D] slots of each layer for what is not pinned */
    sy_bal_lost *lost; /* [n_lost] in the order in which they are placed again */
    size_t n_lost;
    uint64_t n_loads_max;  /* what the budget allows */
    uint64_t n_loads;      /* planned so far */
    int64_t n_extra;       /* of the budget, beyond one load for each of lost */
    sy_bal_layer work;     /* whichever layer is being looked at */
    sy_bal_states *states; /* [layers] the first is the base, once what was lost is placed */
    size_t *chosen;        /* [layers] */
} sy_bal_problem;

/* Shares the slots of each device out among the layers: never fewer than the layer uses now, else
 * as evenly as the rest allows. */
SY_MUST_USE sy_status sy_bal_share_slots(sy_bal_problem *problem, sy_error *err);
/* work becomes the layer as it is, without holders that are gone, and what is pinned turned into
 * load. */
void sy_bal_take_layer(sy_bal_problem *problem, uint32_t layer);
/* Lists what is gone or short of the minimum, and which of it the budget covers. */
SY_MUST_USE sy_status sy_bal_list_lost(sy_bal_problem *problem, sy_error *err);
/* Places what is listed of the layer that work is, and sets the floors of what follows. Returns the
 * number of experts without a holder. */
uint32_t sy_bal_repair(sy_bal_problem *problem, uint32_t layer);
/* Chooses among every layer's states, the largest gain for each byte first, within the budget. */
void sy_bal_choose(sy_bal_problem *problem, const sy_balance_plan *plan);
/* What a change must take off the busiest device to be worth n_loads. */
double sy_bal_least_gain(const sy_bal_problem *problem, double mean, int64_t n_loads);
/* Fills the plan from what was chosen. */
SY_MUST_USE sy_status sy_bal_report(sy_balance_plan *plan, sy_bal_problem *problem, sy_error *err);

#endif
