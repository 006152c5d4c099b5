/* agg_missing.c - rows that nobody answers for: whether it is worth waiting a moment for a holder
 * that was here just now, and what becomes of the tokens when it is not. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agg_dispatch.h"
#include "sy_clock.h"
#include "sy_moe_rows.h"

/* ---- grace ---- */

/* The row has no answer, waits for no message, and nobody can be asked. */
static int is_stuck(const agg_lane *lane, uint32_t r)
{
    return lane->row_out[r] == NULL && lane->row_slot[r] < 0 && lane->row_node[r] < 0;
}

static int has_stuck_rows(const agg_lane *lane, uint32_t group)
{
    const sy_plan *plan = &lane->plan;
    const uint32_t e = plan->active[group];

    for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++)
        if (is_stuck(lane, r)) return 1;
    return 0;
}

static int is_held(const agg_lane *lane, uint32_t shard)
{
    for (uint32_t i = 0; i < lane->view->n_nodes; i++)
        if (agg_node_has(lane->view->node[i], shard, 0)) return 1;
    return 0;
}

/* When somebody was last known to have an expert that nobody has now: it answered here, went away
 * in this call, or is wanted on a node whose connection was lost. Holders that are there but do not
 * answer well are no reason to wait. Nor is an expert that was waited for in vain, before it has
 * answered again: one that stays missing slows nobody down. */
static int64_t holder_seen_us(const agg_lane *lane, const sy_moe_call *call, uint32_t group)
{
    const uint32_t shard = agg_shard_of(lane, call, group);
    const int32_t *node;
    const sy_target_list *list = agg_targets_of(lane, shard, &node);

    if (lane->seen_us[shard] < 0) return 0;
    if (is_held(lane, shard)) return lane->gone_us[group];
    int64_t seen_us = SY_MAX(lane->seen_us[shard], lane->gone_us[group]);
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const agg_node *n = node[i] < 0 ? NULL : lane->view->node[node[i]];
        if (n == NULL || sy_peer_up(n->peer)) continue;
        const int64_t up_us = atomic_load_explicit(&n->suspicion.seen_up_us, memory_order_relaxed);
        seen_us = SY_MAX(seen_us, up_us);
    }
    return seen_us;
}

int64_t agg_grace_until_us(agg_lane *lane, const sy_moe_call *call)
{
    const int64_t now_us = sy_clock_us();
    int64_t seen_us = 0;

    for (uint32_t g = 0; g < lane->plan.n_groups; g++)
        if (has_stuck_rows(lane, g)) seen_us = SY_MAX(seen_us, holder_seen_us(lane, call, g));
    if (seen_us == 0 || seen_us + AGG_RECENT_US <= now_us) return 0;
    if (lane->grace_until_us == 0) {
        lane->grace_until_us = now_us + SY_MIN(lane->config->grace_us, (int64_t)AGG_RECENT_US);
        sy_metric_add(lane->metrics.graces, 1);
    }
    return SY_MIN(lane->grace_until_us, seen_us + AGG_RECENT_US);
}

/* ---- failing ---- */

SY_PRINTF(4, 5)
static void append(char *text, size_t cap, size_t *at, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const int n = vsnprintf(text + *at, cap - *at, fmt, ap);
    va_end(ap);
    if (n > 0) *at = SY_MIN(*at + (size_t)n, cap - 1);
}

static int is_wanted(const sy_target_list *list, const int32_t *node, int32_t position)
{
    for (uint32_t i = 0; list != NULL && i < list->n; i++)
        if (node[i] == position) return 1;
    return 0;
}

/* Why a wanted node was not asked; NULL: it was, or has been told of already. */
static const char *why_not(const agg_lane *lane, uint32_t group, uint32_t shard, int32_t position)
{
    const agg_node *node = position < 0 ? NULL : lane->view->node[position];

    if (node == NULL) return "is not there";
    if (agg_tried(lane, group)[position] || agg_node_has(node, shard, 0)) return NULL;
    if (agg_node_refusal(node, shard) != AGG_FINE) return NULL;
    return sy_peer_up(node->peer) ? "does not hold it" : "is not connected";
}

/* "expert-0, expert-2", then who was not asked although it should or could compute the expert. */
static void tell_nodes(const agg_lane *lane, const sy_moe_call *call, uint32_t group, char *text,
                       size_t cap)
{
    const agg_view *view = lane->view;
    const uint32_t shard = agg_shard_of(lane, call, group);
    const int32_t *position;
    const sy_target_list *list = agg_targets_of(lane, shard, &position);
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < view->n_nodes; i++)
        if (agg_tried(lane, group)[i])
            append(text, cap, &at, "%s%s", at == 0 ? "" : ", ", view->node[i]->name);
    if (at == 0) append(text, cap, &at, "none: no reachable node holds it");
    for (uint32_t i = 0; i < view->n_nodes; i++) {
        const agg_node *node = view->node[i];
        const agg_refusal why = agg_node_refusal(node, shard);
        if (why == AGG_FINE || agg_tried(lane, group)[i]) continue;
        if (!is_wanted(list, position, (int32_t)i) && !agg_node_has(node, shard, 1)) continue;
        append(text, cap, &at, "; %s is refused: %s", node->name, agg_refusal_text(why));
    }
    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        const char *why = why_not(lane, group, shard, position[i]);
        if (why != NULL) append(text, cap, &at, "; %s %s", list->target[i].node, why);
    }
}

/* The mark for the tokens that miss this expert. */
static uint8_t tell_unreachable(agg_lane *lane, sy_moe_call *call, uint32_t group)
{
    const uint32_t expert = lane->plan.active[group];
    char nodes[320];
    sy_error err;

    tell_nodes(lane, call, group, nodes, sizeof(nodes));
    sy_error_clear(&err);
    sy_error_set(&err, SY_EUNAVAILABLE, "no node answers for layer %u expert %u; tried %s%s%s",
                 call->layer, expert, nodes, lane->last_error.message[0] ? ": " : "",
                 lane->last_error.message);
    sy_error_where(&err, "EXPERT_UNREACHABLE", (int32_t)call->layer, (int32_t)expert,
                   lane->last_error.node[0] ? lane->last_error.node : NULL);
    return sy_moe_add_error(call, &err);
}

static int may_degrade(const sy_moe_call *call, uint32_t t)
{
    return call->may_degrade != NULL && call->may_degrade[t];
}

/* ---- leaving experts out ---- */

/* Takes the rows without an answer out of the token's list and scales the weights of the others by
 * S / (S - lost), so that their sum stays S: all in f32, sums in ascending order of experts. 0: too
 * little is left. */
static int leave_out(agg_lane *lane, uint32_t t)
{
    sy_plan *plan = &lane->plan;
    uint32_t *row = plan->token_row + (size_t)t * plan->top_k;
    uint32_t n = 0, kept = 0;
    float sum = 0.0f, lost = 0.0f;

    for (; n < plan->top_k && row[n] != UINT32_MAX; n++) {
        sum += plan->row_weight[row[n]];
        if (lane->row_out[row[n]] == NULL) lost += plan->row_weight[row[n]];
    }
    const float scale = sum / (sum - lost);
    for (uint32_t i = 0; i < n; i++) {
        if (lane->row_out[row[i]] == NULL) continue;
        plan->row_weight[row[i]] *= scale;
        row[kept++] = row[i];
    }
    for (uint32_t i = kept; i < n; i++) row[i] = UINT32_MAX;
    lane->summed[t] = 0; /* of the old weights */
    return kept > 0 && isfinite(scale) && scale > 0.0f;
}

/* Sorts the tokens that miss this expert: lost[] of those that may go on without it, the others
 * fail. */
static void end_group(agg_lane *lane, sy_moe_call *call, uint32_t group, uint8_t *lost)
{
    const sy_plan *plan = &lane->plan;
    const uint32_t e = plan->active[group];
    uint8_t mark = 0;

    for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
        const uint32_t t = plan->row_token[r];
        if (lane->row_out[r] != NULL || call->failed[t]) continue;
        if (may_degrade(call, t)) {
            lost[t] = 1;
            continue;
        }
        if (mark == 0) mark = tell_unreachable(lane, call, group);
        call->failed[t] = mark;
    }
}

static uint32_t first_missing_group(const agg_lane *lane, uint32_t t)
{
    const sy_plan *plan = &lane->plan;

    for (uint32_t g = 0; g < plan->n_groups; g++)
        for (uint32_t r = plan->group[plan->active[g]]; r < plan->group[plan->active[g] + 1]; r++)
            if (plan->row_token[r] == t && lane->row_out[r] == NULL) return g;
    return 0;
}

void agg_end_unanswered(agg_lane *lane, sy_moe_call *call)
{
    uint8_t *lost = (uint8_t *)lane->local; /* [T]: what it was for is over */

    memset(lost, 0, call->n_rows);
    for (uint32_t g = 0; g < lane->plan.n_groups; g++) {
        if (lane->grace_until_us != 0 && has_stuck_rows(lane, g))
            lane->seen_us[agg_shard_of(lane, call, g)] = -1;
        end_group(lane, call, g, lost);
    }
    for (uint32_t t = 0; t < call->n_rows; t++) {
        if (!lost[t]) continue;
        const uint32_t group = first_missing_group(lane, t);
        if (!leave_out(lane, t)) {
            call->failed[t] = tell_unreachable(lane, call, group);
            continue;
        }
        if (call->note != NULL) call->note[t] |= SY_MOE_DEGRADED;
        sy_metric_add(lane->metrics.degraded_rows, 1);
    }
}
