/* agg_choose.c - whom to ask for an expert's rows: what placement wants, what is in whose memory,
 * who keeps silent, and who has been asked in this call already. */
#include <string.h>

#include "agg_dispatch.h"

uint32_t agg_shard_of(const agg_lane *lane, const sy_moe_call *call, uint32_t group)
{
    return call->layer * lane->desc->n_experts + lane->plan.active[group];
}

uint8_t *agg_tried(const agg_lane *lane, uint32_t group)
{
    return lane->tried + (size_t)group * lane->view->n_nodes;
}

int32_t agg_position(const agg_lane *lane, const agg_node *node)
{
    for (uint32_t i = 0; i < lane->view->n_nodes; i++)
        if (lane->view->node[i] == node) return (int32_t)i;
    return -1;
}

const sy_target_list *agg_targets_of(const agg_lane *lane, uint32_t shard, const int32_t **node)
{
    const agg_view *view = lane->view;
    const uint32_t layer = shard / lane->desc->n_experts, expert = shard % lane->desc->n_experts;

    *node = view->target_node;
    if (view->snapshot == NULL) return NULL;
    *node += view->first_target[sy_snapshot_list_of(view->snapshot, layer, expert)];
    return sy_snapshot_targets(view->snapshot, layer, expert);
}

int agg_has_shares(const sy_target_list *list)
{
    for (uint32_t i = 0; list != NULL && i < list->n; i++)
        if (list->target[i].share > 0) return 1;
    return 0;
}

/* Whom to consider: those against whom nothing speaks; then suspects and nodes that are about to
 * stop as well; then also who was asked in this call, and was only slow or lost its connection:
 * once more, when there is nobody else. */
enum { FIRST_CHOICE, LAST_CHOICE, ONCE_MORE, N_CHOICES };

static int usable(const agg_lane *lane, uint32_t group, uint32_t shard, int32_t node,
                  int any_weights, int choice)
{
    if (node < 0 || agg_tried(lane, group)[node] > (choice == ONCE_MORE)) return 0;
    const agg_node *n = lane->view->node[node];
    return agg_node_has(n, shard, any_weights) && !agg_is_silent(n, lane->config->silent_us) &&
           (choice != FIRST_CHOICE || !agg_comes_last(n));
}

/* What waits there for its turn, as far as it is known here or was announced. */
static uint32_t load_of(const agg_node *node)
{
    const size_t ours = sy_peer_outstanding(node->peer);
    const uint32_t all = atomic_load_explicit(&node->queue_length, memory_order_relaxed);

    return SY_MAX((uint32_t)SY_MIN(ours, (size_t)UINT32_MAX), all);
}

int32_t agg_choose_node(const agg_lane *lane, const sy_moe_call *call, uint32_t group,
                        uint64_t request)
{
    const agg_view *view = lane->view;
    const uint32_t shard = agg_shard_of(lane, call, group);
    const int32_t *target;
    const sy_target_list *list = agg_targets_of(lane, shard, &target);

    for (int choice = 0; choice < N_CHOICES; choice++) {
        sy_candidate candidate[SY_TARGETS_MAX] = {0};
        for (uint32_t i = 0; list != NULL && i < list->n; i++) {
            candidate[i].usable =
                usable(lane, group, shard, target[i], list->target[i].any_weights, choice);
            if (candidate[i].usable) candidate[i].outstanding = load_of(view->node[target[i]]);
        }
        const int pick = list == NULL ? -1
                                      : sy_placement_pick(list, candidate, request, call->layer,
                                                          lane->plan.active[group]);
        if (pick >= 0) return target[pick];
        for (uint32_t i = 0; i < view->n_nodes; i++)
            if (usable(lane, group, shard, (int32_t)i, 0, choice)) return (int32_t)i;
    }
    return -1;
}

/* With shares the choice is the request's, so that it stays on one side of a canary; without, all
 * rows of an expert go together. */
agg_assigned agg_assign_rows(agg_lane *lane, const sy_moe_call *call)
{
    const sy_plan *plan = &lane->plan;
    agg_assigned n = {0};

    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const uint32_t e = plan->active[g];
        const int32_t *target;
        const int per_row =
            agg_has_shares(agg_targets_of(lane, agg_shard_of(lane, call, g), &target));
        int32_t node = -2; /* not chosen yet */
        for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
            lane->row_node[r] = -1;
            if (lane->row_out[r] != NULL) continue;
            n.unanswered++;
            if (lane->row_slot[r] >= 0) continue;
            if (per_row || node == -2)
                node = agg_choose_node(lane, call, g, call->request[plan->row_token[r]]);
            lane->row_node[r] = node;
            n.to_send += node >= 0;
            n.stuck += node < 0;
        }
    }
    return n;
}

sy_status agg_carry_tried(agg_lane *lane, const agg_view *before)
{
    const uint32_t n_before = before->n_nodes, n_now = lane->view->n_nodes;
    const uint32_t groups = lane->plan.n_groups;
    uint8_t *tried = sy_arena_calloc(&lane->arena, (size_t)groups * n_now + 1, 1);

    if (tried == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < n_before; i++) {
        const int32_t to = agg_position(lane, before->node[i]);
        for (uint32_t g = 0; to >= 0 && g < groups; g++)
            tried[(size_t)g * n_now + (uint32_t)to] = lane->tried[(size_t)g * n_before + i];
    }
    lane->tried = tried;
    return SY_OK;
}
