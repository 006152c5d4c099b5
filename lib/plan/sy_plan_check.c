/* sy_plan_check.c - what must hold of a plan, whoever built it. Reads the plan alone and needs no
 * memory: that rows are a permutation of the filled slots follows from each token's rows ascending,
 * each row naming its token, and their number. */
#include "sy_plan.h"

#include <math.h>

static sy_status check_groups(const sy_plan *plan, sy_error *err)
{
    uint32_t n_groups = 0;

    if (plan->group[0] != 0) {
        return sy_error_set(err, SY_EINTERNAL, "plan: the first group begins at row %u, not 0",
                            plan->group[0]);
    }
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        if (plan->group[e + 1] < plan->group[e] || plan->group[e + 1] > plan->n_rows) {
            return sy_error_set(err, SY_EINTERNAL, "plan: expert %u has rows %u to %u of %u", e,
                                plan->group[e], plan->group[e + 1], plan->n_rows);
        }
        if (plan->group[e + 1] == plan->group[e]) continue;
        if (n_groups >= plan->n_groups || plan->active[n_groups] != e) {
            return sy_error_set(err, SY_EINTERNAL,
                                "plan: expert %u has rows, but is not active group %u", e,
                                n_groups);
        }
        n_groups++;
    }
    if (n_groups != plan->n_groups) {
        return sy_error_set(err, SY_EINTERNAL, "plan: %u groups are active, %u have rows",
                            plan->n_groups, n_groups);
    }
    if (plan->group[plan->n_experts] != plan->n_rows) {
        return sy_error_set(err, SY_EINTERNAL, "plan: the groups end at row %u of %u",
                            plan->group[plan->n_experts], plan->n_rows);
    }
    return SY_OK;
}

static sy_status check_rows(const sy_plan *plan, sy_error *err)
{
    for (uint32_t e = 0; e < plan->n_experts; e++) {
        for (uint32_t row = plan->group[e]; row < plan->group[e + 1]; row++) {
            const uint32_t t = plan->row_token[row];

            if (t >= plan->n_tokens) {
                return sy_error_set(err, SY_EINTERNAL, "plan: row %u is of token %u, of %u", row, t,
                                    plan->n_tokens);
            }
            if (row > plan->group[e] && t <= plan->row_token[row - 1]) {
                return sy_error_set(err, SY_EINTERNAL,
                                    "plan: row %u of expert %u is of token %u, after token %u", row,
                                    e, t, plan->row_token[row - 1]);
            }
            if (!isfinite(plan->row_weight[row])) {
                return sy_error_set(err, SY_EINTERNAL, "plan: the weight of row %u is not finite",
                                    row);
            }
        }
    }
    return SY_OK;
}

/* Rows of one token: ascending, its own, and the empty slots behind them. */
static sy_status check_token(const sy_plan *plan, uint32_t t, uint64_t *n_filled, sy_error *err)
{
    const uint32_t *row = plan->token_row + (size_t)t * plan->top_k;
    uint32_t n = 0;

    while (n < plan->top_k && row[n] != UINT32_MAX) {
        if (row[n] >= plan->n_rows || plan->row_token[row[n]] != t) {
            return sy_error_set(err, SY_EINTERNAL, "plan: token %u claims row %u", t, row[n]);
        }
        if (n > 0 && row[n] <= row[n - 1]) {
            return sy_error_set(err, SY_EINTERNAL, "plan: token %u has row %u after row %u", t,
                                row[n], row[n - 1]);
        }
        n++;
    }
    *n_filled += n;
    for (; n < plan->top_k; n++) {
        if (row[n] != UINT32_MAX) {
            return sy_error_set(err, SY_EINTERNAL, "plan: token %u has row %u behind an empty slot",
                                t, row[n]);
        }
    }
    return SY_OK;
}

sy_status sy_plan_check(const sy_plan *plan, sy_error *err)
{
    uint64_t n_filled = 0;
    sy_status st;

    if (plan->storage == NULL) return SY_OK; /* nothing was ever built: it holds no rows */
    if (plan->n_rows > (uint64_t)plan->n_tokens * plan->top_k) {
        return sy_error_set(err, SY_EINTERNAL, "plan: %u rows for %u tokens with %u slots each",
                            plan->n_rows, plan->n_tokens, plan->top_k);
    }
    SY_TRY(check_groups(plan, err));
    SY_TRY(check_rows(plan, err));
    for (uint32_t t = 0; t < plan->n_tokens; t++) SY_TRY(check_token(plan, t, &n_filled, err));
    if (n_filled != plan->n_rows) {
        st = sy_error_set(err, SY_EINTERNAL, "plan: %u rows, but the tokens hold %llu",
                          plan->n_rows, (unsigned long long)n_filled);
    }
out:
    return st;
}
