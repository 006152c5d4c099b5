/* sy_plan.h - which expert computes which row: (token, slot) pairs sorted by expert. Pure: no I/O,
 * no locks. Row order is fixed: ascending expert, then ascending token: the same input gives the
 * same bytes. */
#ifndef SY_PLAN_H
#define SY_PLAN_H

#include "sy_status.h"

#define SY_PLAN_ROWS_MAX    (1u << 24)
#define SY_PLAN_EXPERTS_MAX 0xFFFFu
#define SY_PLAN_EMPTY_SLOT  0xFFFFu /* no expert's id: ids end one below */

/* Plain arrays, owned by the plan, valid until the next build or free. R counts the filled slots.
 */
typedef struct sy_plan {
    uint32_t n_tokens, n_experts, top_k; /* T, E, K */
    uint32_t n_rows;                     /* R <= T*K */
    uint32_t n_groups;                   /* experts with rows */
    uint32_t *group;                     /* [E+1]: rows of expert e are [group[e], group[e+1]) */
    uint32_t *active;                    /* [n_groups]: experts with rows, ascending */
    uint32_t *row_token;                 /* [R] */
    float *row_weight;                   /* [R] */
    uint32_t *token_row; /* [T,K]: rows of a token in ascending expert id; UINT32_MAX: empty, at the
                            end */
    size_t capacity_tokens, capacity_slots, capacity_experts;
    uint32_t *storage;
} sy_plan;

void sy_plan_init(sy_plan *plan);
void sy_plan_free(sy_plan *plan); /* memory only; the plan may be built again */
/* expert, weight: [T,K] row-major, borrowed during the call. An empty slot holds SY_PLAN_EMPTY_SLOT
 * and is skipped. SY_EINVAL: an id >= E, an expert twice in one token, or a weight that is not
 * finite; SY_ELIMIT: T or T*K > SY_PLAN_ROWS_MAX, or E > SY_PLAN_EXPERTS_MAX; SY_ENOMEM. After a
 * failure the plan is empty (T = E = R = 0). Memory is kept and reused: no allocation once the
 * largest T, T*K and E have been seen. */
SY_MUST_USE sy_status sy_plan_build(sy_plan *plan, const uint16_t *expert, const float *weight,
                                    uint32_t n_tokens, uint32_t top_k, uint32_t n_experts,
                                    sy_error *err);
/* Checks the invariants: a permutation of the filled slots, groups ascending and tight, tokens
 * ascending inside a group, token_row consistent. SY_EINTERNAL names the first that fails. O(R):
 * for tests and debug builds. */
SY_MUST_USE sy_status sy_plan_check(const sy_plan *plan, sy_error *err);

#endif
