/* agg_dispatch.c - DISPATCH: one message a node with the token rows of its experts, all at once,
 * one deadline; what a node does not answer goes to another holder, until nobody is left to ask. A
 * row enters the result once: its slot is filled by the first good answer, and an answer that came
 * too late was forgotten by the fan-out. */
#include <string.h>

#include "agg_moe.h"
#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_moe_rows.h"

/* ---- whom to ask ---- */

static uint32_t shard_of(const agg_lane *lane, const sy_moe_call *call, uint32_t expert)
{
    return call->layer * lane->desc->n_experts + expert;
}

static uint8_t *tried_by(const agg_lane *lane, uint32_t group)
{
    return lane->tried + (size_t)group * lane->view->n_nodes;
}

static int usable(const agg_lane *lane, uint32_t group, uint32_t shard, int32_t node,
                  int64_t now_us)
{
    if (node < 0 || tried_by(lane, group)[node]) return 0;
    const agg_node *n = lane->view->node[node];
    return agg_node_has(n, shard) &&
           atomic_load_explicit(&n->suspect_until_us, memory_order_relaxed) <= now_us;
}

/* A wanted node for these rows; when none of them can, any node whose memory has the shard; then a
 * suspect one. */
static int32_t choose_node(const agg_lane *lane, uint32_t group, uint32_t shard, uint64_t request,
                           int64_t now_us)
{
    const agg_view *view = lane->view;
    const uint32_t layer = shard / lane->desc->n_experts, expert = shard % lane->desc->n_experts;
    const sy_target_list *list =
        view->snapshot == NULL ? NULL : sy_snapshot_targets(view->snapshot, layer, expert);
    const int32_t *target = view->target_node + view->first_target[shard];
    sy_candidate candidate[SY_TARGETS_MAX] = {0};

    for (uint32_t i = 0; list != NULL && i < list->n; i++) {
        candidate[i].usable = usable(lane, group, shard, target[i], now_us);
        if (candidate[i].usable)
            candidate[i].outstanding = (uint32_t)sy_peer_outstanding(view->node[target[i]]->peer);
    }
    const int pick = list == NULL ? -1 : sy_placement_pick(list, candidate, request, layer, expert);
    if (pick >= 0) return target[pick];
    for (int64_t at_us = now_us;; at_us = INT64_MAX) {
        for (uint32_t i = 0; i < view->n_nodes; i++)
            if (usable(lane, group, shard, (int32_t)i, at_us)) return (int32_t)i;
        if (at_us == INT64_MAX) return -1;
    }
}

static int has_shares(const agg_lane *lane, uint32_t shard)
{
    const agg_view *view = lane->view;
    const sy_target_list *list =
        view->snapshot == NULL ? NULL
                               : sy_snapshot_targets(view->snapshot, shard / lane->desc->n_experts,
                                                     shard % lane->desc->n_experts);
    return list != NULL && list->target[0].share != 0;
}

/* Chooses a node for every row that has no answer yet; returns how many rows have one. With shares
 * the choice is the request's, so that it stays on one side of a canary; without, all rows of an
 * expert go together. */
static uint32_t assign_rows(agg_lane *lane, const sy_moe_call *call)
{
    const sy_plan *plan = &lane->plan;
    const int64_t now_us = sy_clock_us();
    uint32_t assigned = 0;

    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const uint32_t e = plan->active[g], shard = shard_of(lane, call, e);
        const int per_row = has_shares(lane, shard);
        int32_t node = -2; /* not chosen yet */
        for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
            const uint64_t request = call->request[plan->row_token[r]];
            lane->row_node[r] = -1;
            if (lane->row_out[r] != NULL || call->failed[plan->row_token[r]]) continue;
            if (per_row || node == -2) node = choose_node(lane, g, shard, request, now_us);
            lane->row_node[r] = node;
            assigned += node >= 0;
        }
    }
    return assigned;
}

/* ---- a message ---- */

typedef struct building {
    sy_compute_request request;
    uint16_t *expert;
    uint32_t *group_end, *row;
    sy_buf *rows;
} building;

/* Lists the node's rows, expert by expert, and copies each of their tokens once. */
static sy_status build(agg_lane *lane, const sy_moe_call *call, uint32_t node, agg_slot_rows *slot,
                       building *b)
{
    const sy_plan *plan = &lane->plan;
    const size_t hidden = lane->desc->hidden;
    uint32_t n_rows = 0, n_groups = 0, n_tokens = 0;

    for (uint32_t r = 0; r < plan->n_rows; r++) n_rows += lane->row_node[r] == (int32_t)node;
    *slot = (agg_slot_rows){node, 0, sy_arena_alloc(&lane->arena, n_rows * sizeof(uint32_t))};
    b->expert = sy_arena_alloc(&lane->arena, plan->n_groups * sizeof(*b->expert));
    b->group_end = sy_arena_alloc(&lane->arena, plan->n_groups * sizeof(*b->group_end));
    b->row = sy_arena_alloc(&lane->arena, n_rows * sizeof(*b->row));
    b->rows = sy_buf_alloc(SY_MIN(n_rows, call->n_rows) * hidden * sizeof(float));
    if (slot->row == NULL || b->expert == NULL || b->group_end == NULL || b->row == NULL ||
        b->rows == NULL) {
        sy_buf_unref(b->rows);
        return SY_ENOMEM;
    }
    memset(lane->local, 0xff, call->n_rows * sizeof(*lane->local));
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const uint32_t e = plan->active[g], before = slot->n_rows;
        for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
            const uint32_t t = plan->row_token[r];
            if (lane->row_node[r] != (int32_t)node) continue;
            if (lane->local[t] == UINT32_MAX) {
                memcpy((float *)b->rows->data + n_tokens * hidden, call->x + t * hidden,
                       hidden * sizeof(float));
                lane->local[t] = n_tokens++;
            }
            slot->row[slot->n_rows] = r;
            b->row[slot->n_rows++] = lane->local[t];
        }
        if (slot->n_rows == before) continue;
        b->expert[n_groups] = (uint16_t)e;
        b->group_end[n_groups++] = slot->n_rows;
    }
    b->request =
        (sy_compute_request){.model = sy_model_name(lane->config->model),
                             .layer = call->layer,
                             .n_groups = n_groups,
                             .n_assign = slot->n_rows,
                             .expert = b->expert,
                             .group_end = b->group_end,
                             .row = b->row,
                             .hidden = {SY_F32, n_tokens, lane->desc->hidden, b->rows->data}};
    return SY_OK;
}

static sy_status send_to(agg_lane *lane, const sy_moe_call *call, uint32_t node)
{
    sy_peer *peer = lane->view->node[node]->peer;
    building b;
    sy_frame frame;
    sy_status st = build(lane, call, node, &lane->slot[lane->n_slots], &b);

    if (st != SY_OK) return st;
    b.request.id = sy_peer_next_id(peer);
    st = sy_wire_compute_request_encode(&frame, &b.request, b.rows);
    sy_buf_unref(b.rows);
    if (st != SY_OK) return st;
    sy_fanout_send(lane->fanout, peer, b.request.id, &frame);
    lane->n_slots++;
    return SY_OK;
}

/* ---- an answer ---- */

/* The node is not asked again for these rows' experts in this call; it becomes suspect when it kept
 * silent. */
static void give_up_on(agg_lane *lane, const agg_slot_rows *slot, sy_status why)
{
    agg_node *node = lane->view->node[slot->node];
    const sy_plan *plan = &lane->plan;

    if (why == SY_EDEADLINE)
        atomic_store_explicit(&node->suspect_until_us, sy_clock_us() + AGG_SUSPECT_US,
                              memory_order_relaxed);
    for (uint32_t g = 0, i = 0; g < plan->n_groups && i < slot->n_rows; g++) {
        if (slot->row[i] >= plan->group[plan->active[g] + 1]) continue;
        tried_by(lane, g)[slot->node] = 1;
        while (i < slot->n_rows && slot->row[i] < plan->group[plan->active[g] + 1]) i++;
    }
    sy_metric_add(lane->metrics.retries, 1);
}

static uint32_t group_of_expert(const sy_plan *plan, uint32_t expert)
{
    uint32_t g = 0;

    while (g < plan->n_groups && plan->active[g] != expert) g++;
    return g;
}

static int has_fault(const sy_compute_reply *reply, uint32_t expert)
{
    for (uint32_t i = 0; i < reply->n_faults; i++)
        if (reply->fault[i].expert == expert) return 1;
    return 0;
}

/* Points the rows at their answers, but for experts that the node says it could not compute. */
static void take_rows(agg_lane *lane, const agg_slot_rows *slot, const sy_compute_reply *reply)
{
    const sy_plan *plan = &lane->plan;
    const float *out = reply->output.data;

    for (uint32_t i = 0; i < reply->n_faults; i++) {
        const uint32_t g = group_of_expert(plan, reply->fault[i].expert);
        if (g < plan->n_groups) tried_by(lane, g)[slot->node] = 1;
        lane->last_error = reply->fault[i].status;
    }
    uint32_t g = 0;
    int faulty = -1;
    for (uint32_t i = 0; i < slot->n_rows; i++) {
        while (slot->row[i] >= plan->group[plan->active[g] + 1]) {
            g++;
            faulty = -1;
        }
        if (faulty < 0) faulty = reply->n_faults > 0 && has_fault(reply, plan->active[g]);
        if (!faulty) lane->row_out[slot->row[i]] = out + (size_t)i * lane->desc->hidden;
    }
}

static sy_status read_answer(agg_lane *lane, const sy_fanout_slot *answer,
                             const agg_slot_rows *slot)
{
    sy_error *err = &lane->last_error;
    sy_compute_reply reply;
    size_t n;

    if (answer->status != SY_OK) {
        *err = answer->err;
        return answer->status;
    }
    const sy_iov *iov = sy_msg_iov(answer->msg, &n);
    sy_status st = sy_wire_compute_reply_decode(&reply, &lane->arena, iov, n, err);
    if (st != SY_OK) return st;
    if (reply.status.status != SY_OK) {
        *err = reply.status;
        return reply.status.status;
    }
    if (reply.output.dtype != SY_F32 || reply.output.rows != slot->n_rows ||
        reply.output.cols != lane->desc->hidden)
        return sy_error_set(err, SY_EDATALOSS,
                            "the answer has %u rows of %u %s, asked for %u of %u f32",
                            reply.output.rows, reply.output.cols, sy_dtype_name(reply.output.dtype),
                            slot->n_rows, lane->desc->hidden);
    lane->compute_us = SY_MAX(lane->compute_us, (int64_t)reply.compute_us);
    take_rows(lane, slot, &reply);
    return SY_OK;
}

/* ---- rounds ---- */

static sy_status one_round(agg_lane *lane, const sy_moe_call *call)
{
    const int64_t deadline_us =
        SY_MIN(call->deadline_us, sy_clock_us() + lane->config->peer_timeout_us);

    sy_fanout_reset(lane->fanout);
    lane->n_slots = 0;
    for (uint32_t node = 0; node < lane->view->n_nodes; node++) {
        int any = 0;
        for (uint32_t r = 0; r < lane->plan.n_rows && !any; r++)
            any = lane->row_node[r] == (int32_t)node;
        if (!any) continue;
        sy_status st = send_to(lane, call, node);
        if (st != SY_OK) return st;
    }
    sy_fanout_wait(lane->fanout, deadline_us);
    for (uint32_t i = 0; i < lane->n_slots; i++) {
        const agg_slot_rows *slot = &lane->slot[i];
        sy_status st = read_answer(lane, sy_fanout_at(lane->fanout, i), slot);
        if (st == SY_OK) continue;
        sy_error_where(&lane->last_error, NULL, -1, -1, lane->view->node[slot->node]->name);
        give_up_on(lane, slot, st);
    }
    return SY_OK;
}

/* "tried expert-0, expert-2" for the error of an expert that nobody computes. */
static uint8_t tell_unreachable(agg_lane *lane, sy_moe_call *call, uint32_t group)
{
    const uint32_t expert = lane->plan.active[group];
    char names[160] = "";
    size_t at = 0;
    sy_error err;

    for (uint32_t i = 0; i < lane->view->n_nodes; i++)
        if (tried_by(lane, group)[i] && at + SY_NODE_BYTES + 2 < sizeof(names)) {
            memcpy(names + at, at == 0 ? "" : ", ", at == 0 ? 0 : 2);
            at += at == 0 ? 0 : 2;
            const size_t n = strlen(lane->view->node[i]->name);
            memcpy(names + at, lane->view->node[i]->name, n);
            names[at += n] = '\0';
        }
    sy_error_clear(&err);
    sy_error_set(&err, SY_EUNAVAILABLE, "no node answers for layer %u expert %u; tried %s%s%s",
                 call->layer, expert, at == 0 ? "none: no reachable node holds it" : names,
                 lane->last_error.message[0] ? ": " : "", lane->last_error.message);
    sy_error_where(&err, "EXPERT_UNREACHABLE", (int32_t)call->layer, (int32_t)expert,
                   lane->last_error.node[0] ? lane->last_error.node : NULL);
    return sy_moe_add_error(call, &err);
}

static void fail_unanswered(agg_lane *lane, sy_moe_call *call)
{
    const sy_plan *plan = &lane->plan;

    for (uint32_t g = 0; g < plan->n_groups; g++) {
        const uint32_t e = plan->active[g];
        uint8_t mark = 0;
        for (uint32_t r = plan->group[e]; r < plan->group[e + 1]; r++) {
            const uint32_t t = plan->row_token[r];
            if (lane->row_out[r] != NULL || call->failed[t]) continue;
            if (mark == 0) mark = tell_unreachable(lane, call, g);
            call->failed[t] = mark;
        }
    }
}

static sy_status prepare(agg_lane *lane, const sy_moe_call *call)
{
    const uint32_t rows = lane->plan.n_rows, nodes = lane->view->n_nodes;

    sy_error_clear(&lane->last_error);
    lane->row_out = sy_arena_calloc(&lane->arena, rows + 1, sizeof(*lane->row_out));
    lane->row_node = sy_arena_calloc(&lane->arena, rows + 1, sizeof(*lane->row_node));
    lane->tried = sy_arena_calloc(&lane->arena, (size_t)lane->plan.n_groups * nodes + 1, 1);
    lane->local = sy_arena_calloc(&lane->arena, call->n_rows + 1, sizeof(*lane->local));
    lane->slot = sy_arena_calloc(&lane->arena, nodes + 1, sizeof(*lane->slot));
    return lane->row_out && lane->row_node && lane->tried && lane->local && lane->slot ? SY_OK
                                                                                       : SY_ENOMEM;
}

sy_status agg_dispatch(agg_lane *lane, sy_moe_call *call)
{
    sy_status st = prepare(lane, call);

    while (st == SY_OK && sy_clock_us() < call->deadline_us && assign_rows(lane, call) > 0)
        st = one_round(lane, call);
    if (st != SY_OK) return sy_error_set(&call->error, st, "no memory for the layer call");
    fail_unanswered(lane, call);
    return SY_OK;
}
