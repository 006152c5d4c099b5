/* sy_plan.c - a counting sort of (token, slot) pairs by expert, in storage that the plan keeps. It
 * owns one block of 32-bit words; the arrays of the plan lie in it one after another. */
#include "sy_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Working arrays behind the public ones. While slots are counted, an expert's word holds the last
 * token that named it, plus one; while rows are placed, the row that the expert's next token gets.
 */
typedef struct workspace {
    uint32_t *expert_word; /* [E] */
    uint32_t *n_filled;    /* [T]: slots of the token that have a row */
} workspace;

void sy_plan_init(sy_plan *plan)
{
    *plan = (sy_plan){0};
}

void sy_plan_free(sy_plan *plan)
{
    free(plan->storage);
    sy_plan_init(plan);
}

/* Where each array begins. The one place that knows the order; plan_reserve knows the sum. */
static workspace plan_lay_out(sy_plan *plan)
{
    workspace ws;
    uint32_t *word = plan->storage;

    plan->group = word;
    word += plan->capacity_experts + 1;
    plan->active = word;
    word += plan->capacity_experts;
    ws.expert_word = word;
    word += plan->capacity_experts;
    ws.n_filled = word;
    word += plan->capacity_tokens;
    plan->row_token = word;
    word += plan->capacity_slots;
    plan->row_weight = (float *)word;
    word += plan->capacity_slots;
    plan->token_row = word;
    return ws;
}

/* Makes room for the shape. Capacities only grow, each by itself, so that the largest of each is
 * enough for all. The limits keep the sum far below SIZE_MAX. */
static sy_status plan_reserve(sy_plan *plan, size_t n_tokens, size_t n_slots, size_t n_experts,
                              sy_error *err)
{
    const size_t tokens = SY_MAX(n_tokens, plan->capacity_tokens);
    const size_t slots = SY_MAX(n_slots, plan->capacity_slots);
    const size_t experts = SY_MAX(n_experts, plan->capacity_experts);
    const size_t n_words = 3 * experts + 1 + tokens + 3 * slots;
    uint32_t *storage;

    if (plan->storage != NULL && tokens == plan->capacity_tokens && slots == plan->capacity_slots &&
        experts == plan->capacity_experts) {
        return SY_OK;
    }
    storage = malloc(n_words * sizeof(*storage));
    if (storage == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for a plan of %zu rows and %zu experts",
                            n_slots, n_experts);
    }
    free(plan->storage);
    plan->storage = storage;
    plan->capacity_tokens = tokens;
    plan->capacity_slots = slots;
    plan->capacity_experts = experts;
    return SY_OK;
}

/* Counts the rows of expert e into group[e + 1], and refuses what no plan may hold. */
static sy_status count_slots(sy_plan *plan, uint32_t *last_token, const uint16_t *expert,
                             const float *weight, sy_error *err)
{
    memset(plan->group, 0, ((size_t)plan->n_experts + 1) * sizeof(*plan->group));
    memset(last_token, 0, (size_t)plan->n_experts * sizeof(*last_token));
    for (uint32_t t = 0; t < plan->n_tokens; t++) {
        for (uint32_t k = 0; k < plan->top_k; k++) {
            const size_t slot = (size_t)t * plan->top_k + k;
            const uint32_t e = expert[slot];

            if (e == SY_PLAN_EMPTY_SLOT) continue;
            if (e >= plan->n_experts) {
                return sy_error_set(err, SY_EINVAL,
                                    "token %u, slot %u: there is no expert %u, the layer has %u", t,
                                    k, e, plan->n_experts);
            }
            if (last_token[e] == t + 1) {
                return sy_error_set(err, SY_EINVAL,
                                    "token %u, slot %u: expert %u is named a second time", t, k, e);
            }
            if (!isfinite(weight[slot])) {
                return sy_error_set(err, SY_EINVAL,
                                    "token %u, slot %u: the weight of expert %u is not finite", t,
                                    k, e);
            }
            last_token[e] = t + 1;
            plan->group[e + 1]++;
        }
    }
    return SY_OK;
}

/* Counts become offsets, in group and as each expert's next row. */
static void open_groups(sy_plan *plan, uint32_t *next_row)
{
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        if (plan->group[e + 1] > 0) plan->active[plan->n_groups++] = e;
        next_row[e] = plan->group[e];
        plan->group[e + 1] += plan->group[e];
    }
    plan->n_rows = plan->group[plan->n_experts];
}

static void place_rows(sy_plan *plan, const workspace *ws, const uint16_t *expert,
                       const float *weight)
{
    for (uint32_t t = 0; t < plan->n_tokens; t++) {
        for (uint32_t k = 0; k < plan->top_k; k++) {
            const size_t slot = (size_t)t * plan->top_k + k;

            plan->token_row[slot] = UINT32_MAX;
            if (expert[slot] == SY_PLAN_EMPTY_SLOT) continue;
            const uint32_t row = ws->expert_word[expert[slot]]++;
            plan->row_token[row] = t;
            plan->row_weight[row] = weight[slot];
        }
        ws->n_filled[t] = 0;
    }
    /* Rows ascend with the expert, so a token's list fills in ascending expert id. */
    for (uint32_t row = 0; row < plan->n_rows; row++) {
        const uint32_t t = plan->row_token[row];
        plan->token_row[(size_t)t * plan->top_k + ws->n_filled[t]++] = row;
    }
}

static void plan_clear(sy_plan *plan)
{
    plan->n_tokens = 0;
    plan->n_experts = 0;
    plan->top_k = 0;
    plan->n_rows = 0;
    plan->n_groups = 0;
}

sy_status sy_plan_build(sy_plan *plan, const uint16_t *expert, const float *weight,
                        uint32_t n_tokens, uint32_t top_k, uint32_t n_experts, sy_error *err)
{
    const uint64_t n_slots = (uint64_t)n_tokens * top_k;
    workspace ws;
    sy_status st;

    plan_clear(plan);
    if (n_slots > SY_PLAN_ROWS_MAX || n_tokens > SY_PLAN_ROWS_MAX) {
        return sy_error_set(err, SY_ELIMIT,
                            "%u tokens with %u experts each: a plan holds %u rows, send fewer "
                            "tokens at a time",
                            n_tokens, top_k, SY_PLAN_ROWS_MAX);
    }
    if (n_experts > SY_PLAN_EXPERTS_MAX) {
        return sy_error_set(err, SY_ELIMIT, "%u experts in a layer: a plan knows %u", n_experts,
                            SY_PLAN_EXPERTS_MAX);
    }
    st = plan_reserve(plan, n_tokens, n_slots, n_experts, err);
    if (st != SY_OK) return st;
    ws = plan_lay_out(plan);
    plan->n_tokens = n_tokens;
    plan->top_k = top_k;
    plan->n_experts = n_experts;
    st = count_slots(plan, ws.expert_word, expert, weight, err);
    if (st != SY_OK) {
        plan_clear(plan);
        return st;
    }
    open_groups(plan, ws.expert_word);
    place_rows(plan, &ws, expert, weight);
    return SY_OK;
}
