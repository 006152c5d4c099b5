/* agg_dispatch.c - DISPATCH: the rows of a layer go to the nodes that hold their experts, one
 * message a node, and whatever is not answered goes to another holder, until nobody is left to ask.
 *
 * A row waits for one message at a time (row_slot), or for none: then somebody is asked. A message
 * that is late lets go of those of its rows that somebody else can compute; with hedging it stays
 * open all the same, and whichever answer comes first is taken. A row enters the result once: its
 * pointer is set by the first good answer, and never again. */
#include <string.h>

#include "agg_dispatch.h"
#include "agg_rows.h"
#include "agg_shadow.h"
#include "agg_targets.h"
#include "sy_clock.h"

enum {
    LOOK_AGAIN_US = 20000, /* whether somebody else has come to hold the rows of a late message, and
                              whether its node is heard from at all */
    HELD_UP_US = 10000     /* this thread slept so much too long: others did as well */
};

/* ---- a message ---- */

/* What a message says of its rows, grouped by expert; in the arena. */
typedef struct grouping {
    uint16_t *expert;    /* [n_groups] */
    uint32_t *group_end; /* [n_groups] */
    uint32_t *place;     /* [n_rows]: of the row's token, among those of the message */
    uint32_t n_groups, n_tokens;
} grouping;

/* Copies each token once, whatever its experts, to `tokens`. */
static sy_status group_rows(grouping *out, agg_lane *lane, const sy_moe_call *call,
                            const uint32_t *row, uint32_t n_rows, uint8_t *tokens)
{
    const sy_plan *plan = &lane->plan;
    const uint8_t *x = lane->x.data;
    const size_t row_bytes = agg_row_bytes(lane);
    uint32_t g = 0;

    *out = (grouping){.expert = sy_arena_alloc(&lane->arena, plan->n_groups * sizeof(*out->expert)),
                      .group_end =
                          sy_arena_alloc(&lane->arena, plan->n_groups * sizeof(*out->group_end)),
                      .place = sy_arena_alloc(&lane->arena, n_rows * sizeof(*out->place))};
    if (out->expert == NULL || out->group_end == NULL || out->place == NULL) return SY_ENOMEM;
    memset(lane->local, 0xff, call->n_rows * sizeof(*lane->local));
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t t = plan->row_token[row[i]];
        if (lane->local[t] == UINT32_MAX) {
            memcpy(tokens + out->n_tokens * row_bytes, x + t * row_bytes, row_bytes);
            lane->local[t] = out->n_tokens++;
        }
        out->place[i] = lane->local[t];
        while (row[i] >= plan->group[plan->active[g] + 1]) g++;
        if (out->n_groups == 0 || out->expert[out->n_groups - 1] != plan->active[g])
            out->expert[out->n_groups++] = (uint16_t)plan->active[g];
        out->group_end[out->n_groups - 1] = i + 1;
    }
    return SY_OK;
}

/* Room for the tokens of n_rows rows. */
static size_t tokens_bytes(const agg_lane *lane, const sy_moe_call *call, uint32_t n_rows)
{
    return SY_MIN(n_rows, call->n_rows) * agg_row_bytes(lane);
}

sy_status agg_encode_rows(agg_lane *lane, const sy_moe_call *call, uint64_t id, const uint32_t *row,
                          uint32_t n_rows, const agg_loan *loan, sy_frame *frame)
{
    sy_buf *rows = loan != NULL ? NULL : sy_buf_alloc(tokens_bytes(lane, call, n_rows));
    grouping by_expert;
    sy_status st = SY_ENOMEM;

    if (loan == NULL && rows == NULL) return SY_ENOMEM;
    SY_TRY(group_rows(&by_expert, lane, call, row, n_rows,
                      loan != NULL ? agg_loan_input(loan) : rows->data));
    sy_compute_request request = {.id = id,
                                  .model = sy_model_name(lane->config->model),
                                  .layer = call->layer,
                                  .n_groups = by_expert.n_groups,
                                  .n_assign = n_rows,
                                  .expert = by_expert.expert,
                                  .group_end = by_expert.group_end,
                                  .row = by_expert.place,
                                  .output_dtype = lane->x.dtype,
                                  .hidden = {lane->x.dtype, by_expert.n_tokens, lane->desc->hidden,
                                             rows == NULL ? NULL : rows->data}};
    if (loan != NULL) agg_loan_describe(loan, &request.shared);
    st = sy_wire_compute_request_encode(frame, &request, rows);
out:
    sy_buf_unref(rows);
    return st;
}

void agg_end_loans(agg_lane *lane)
{
    for (uint32_t i = 0; i < lane->n_slots; i++) {
        agg_loan_end(lane->slot[i].loan);
        lane->slot[i].loan = NULL;
        sy_buf_unref(lane->slot[i].wide);
        lane->slot[i].wide = NULL;
    }
}

static sy_status send_rows(agg_lane *lane, const sy_moe_call *call, agg_node *node, uint32_t *row,
                           uint32_t n_rows)
{
    agg_slot *slot = &lane->slot[lane->n_slots];
    const uint64_t id = sy_peer_next_id(node->peer);
    agg_loan *loan = agg_share_lend(node->share, id, tokens_bytes(lane, call, n_rows),
                                    n_rows * agg_row_bytes(lane));
    sy_frame frame;
    const sy_status st = agg_encode_rows(lane, call, id, row, n_rows, loan, &frame);

    if (st != SY_OK) {
        agg_share_settled(node->share, id);
        agg_loan_end(loan);
        return st;
    }
    *slot = (agg_slot){.node = node,
                       .n_rows = n_rows,
                       .row = row,
                       .loan = loan,
                       .sent_us = sy_clock_us(),
                       .limit_us = agg_slow_limit_us(lane, node, n_rows),
                       .open = 1};
    slot->look_us = slot->sent_us + slot->limit_us;
    for (uint32_t i = 0; i < n_rows; i++) {
        lane->row_slot[row[i]] = (int32_t)lane->n_slots;
        slot->is_copy |= lane->row_hedged[row[i]];
    }
    lane->n_slots++;
    sy_fanout_send(lane->fanout, node->peer, id, &frame);
    sy_metric_add(loan != NULL ? lane->metrics.rows_shared : lane->metrics.rows_bytes, n_rows);
    if (slot->is_copy)
        sy_metric_add(lane->metrics.hedges, 1);
    else
        agg_hedge_earn(lane);
    return SY_OK;
}

/* One message to each node that agg_assign_rows has chosen for some row. */
static sy_status send_assigned(agg_lane *lane, const sy_moe_call *call)
{
    const uint32_t n_nodes = lane->view->n_nodes, n_rows = lane->plan.n_rows;
    uint32_t *count = sy_arena_calloc(&lane->arena, n_nodes + 1, sizeof(*count));
    uint32_t **list = sy_arena_calloc(&lane->arena, n_nodes + 1, sizeof(*list));
    sy_status st = SY_OK;

    if (count == NULL || list == NULL) return SY_ENOMEM;
    for (uint32_t r = 0; r < n_rows; r++)
        if (lane->row_node[r] >= 0) count[lane->row_node[r]]++;
    for (uint32_t i = 0; i < n_nodes; i++) {
        if (count[i] == 0) continue;
        list[i] = sy_arena_alloc(&lane->arena, count[i] * sizeof(*list[i]));
        if (list[i] == NULL) return SY_ENOMEM;
        count[i] = 0;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        if (lane->row_node[r] >= 0) list[lane->row_node[r]][count[lane->row_node[r]]++] = r;
    for (uint32_t i = 0; i < n_nodes && st == SY_OK; i++)
        if (count[i] > 0 && lane->n_slots < AGG_SLOTS_MAX)
            st = send_rows(lane, call, lane->view->node[i], list[i], count[i]);
    return st;
}

/* ---- the rows of a message, expert by expert ---- */

typedef struct run { /* zeroed at first */
    uint32_t group, begin, end;
} run;

static int next_run(const sy_plan *plan, const agg_slot *slot, run *at)
{
    if (at->end == slot->n_rows) return 0;
    at->begin = at->end;
    while (slot->row[at->begin] >= plan->group[plan->active[at->group] + 1]) at->group++;
    while (at->end < slot->n_rows && slot->row[at->end] < plan->group[plan->active[at->group] + 1])
        at->end++;
    return 1;
}

static int waits_for(const agg_lane *lane, uint32_t r, uint32_t slot)
{
    return lane->row_out[r] == NULL && lane->row_slot[r] == (int32_t)slot;
}

static int is_waited_for(const agg_lane *lane, uint32_t slot)
{
    for (uint32_t i = 0; i < lane->slot[slot].n_rows; i++)
        if (waits_for(lane, lane->slot[slot].row[i], slot)) return 1;
    return 0;
}

/* It may still bring a row that has no answer, be it one that waits for another message by now. */
static int is_useful(const agg_lane *lane, const agg_slot *slot)
{
    for (uint32_t i = 0; slot->open && i < slot->n_rows; i++)
        if (lane->row_out[slot->row[i]] == NULL) return 1;
    return 0;
}

/* tried[] of a node that may have left the view meanwhile: then it goes nowhere. */
static uint8_t *tried_of(const agg_lane *lane, uint32_t group, int32_t position)
{
    static _Thread_local uint8_t nowhere;

    return position < 0 ? &nowhere : &agg_tried(lane, group)[position];
}

/* ---- what is counted of watched targets ---- */

static agg_target *watched(const agg_lane *lane, const agg_node *node, uint32_t shard)
{
    const agg_targets *targets = lane->view->targets;
    const int32_t *position;

    if (targets == NULL || agg_targets_count(targets) == 0) return NULL;
    const sy_target_list *list = agg_targets_of(lane, shard, &position);
    for (uint32_t i = 0; list != NULL && i < list->n; i++)
        if (!list->target[i].shadow && strcmp(list->target[i].node, node->name) == 0)
            return agg_targets_find(targets, shard / lane->desc->n_experts,
                                    shard % lane->desc->n_experts, i);
    return NULL;
}

static void count_answer(agg_target *target, uint32_t n_rows, int64_t took_us)
{
    if (target == NULL) return;
    atomic_fetch_add_explicit(&target->messages, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&target->rows, n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&target->latency_us, (unsigned long long)SY_MAX(took_us, 0),
                              memory_order_relaxed);
}

static void count_error(agg_target *target)
{
    if (target != NULL) atomic_fetch_add_explicit(&target->errors, 1, memory_order_relaxed);
}

/* ---- an answer ---- */

static const sy_shard_fault *find_fault(const sy_compute_reply *reply, uint32_t expert)
{
    for (uint32_t i = 0; i < reply->n_faults; i++)
        if (reply->fault[i].expert == expert) return &reply->fault[i];
    return NULL;
}

/* Placement accepts whatever weights the node computes with. */
static int accepts_any_weights(const agg_lane *lane, const agg_node *node, uint32_t shard)
{
    const int32_t *position;
    const sy_target_list *list = agg_targets_of(lane, shard, &position);

    for (uint32_t i = 0; list != NULL && i < list->n; i++)
        if (list->target[i].any_weights && strcmp(list->target[i].node, node->name) == 0) return 1;
    return 0;
}

/* Why an expert's rows in an answer are no use: SY_OK when they are. What is held against the node
 * is looked at again, because it may have become known while the message was under way. */
static sy_status judge(agg_lane *lane, const agg_slot *slot, uint32_t shard,
                       const sy_shard_fault *fault, int *other_weights)
{
    const agg_refusal why = agg_node_refusal(slot->node, shard);

    *other_weights = why != AGG_FINE;
    if (fault != NULL) {
        lane->last_error = fault->status;
        return SY_EUNAVAILABLE;
    }
    if (why == AGG_FINE || accepts_any_weights(lane, slot->node, shard)) return SY_OK;
    sy_error_clear(&lane->last_error);
    return sy_error_set(&lane->last_error, SY_EPRECONDITION, "%s is refused: %s", slot->node->name,
                        agg_refusal_text(why));
}

/* Points the rows of one expert at their answers. 1: some row had been asked for twice, and this
 * is the second message. */
static int take_run(agg_lane *lane, const sy_moe_call *call, const agg_slot *slot, const run *at,
                    const float *out, int other_weights)
{
    int won = 0;

    for (uint32_t i = at->begin; i < at->end; i++) {
        const uint32_t r = slot->row[i], t = lane->plan.row_token[r];
        if (lane->row_out[r] != NULL) continue;
        lane->row_out[r] = out + (size_t)i * lane->desc->hidden;
        lane->row_by[r] = slot->node;
        won |= lane->row_hedged[r] && !slot->late;
        if (other_weights && call->note != NULL) call->note[t] |= SY_MOE_OTHER_WEIGHTS;
    }
    return won;
}

static void take_rows(agg_lane *lane, const sy_moe_call *call, const agg_slot *slot,
                      const sy_compute_reply *reply, int64_t done_us)
{
    const int32_t position = agg_position(lane, slot->node);
    int won = 0;

    for (run at = {0}; next_run(&lane->plan, slot, &at);) {
        const uint32_t shard = agg_shard_of(lane, call, at.group);
        const sy_shard_fault *fault = find_fault(reply, lane->plan.active[at.group]);
        agg_target *target = watched(lane, slot->node, shard);
        int other_weights;
        if (judge(lane, slot, shard, fault, &other_weights) != SY_OK) {
            *tried_of(lane, at.group, position) = 2;
            if (fault != NULL && strcmp(fault->status.reason, "SHARD_NOT_RESIDENT") == 0)
                lane->gone_us[at.group] = done_us;
            count_error(target);
            continue;
        }
        lane->seen_us[shard] = done_us;
        won |= take_run(lane, call, slot, &at, reply->output.data, other_weights);
        count_answer(target, at.end - at.begin, done_us - slot->sent_us);
    }
    if (won) sy_metric_add(lane->metrics.hedge_wins, 1);
}

static sy_status read_answer(agg_lane *lane, const sy_fanout_slot *answer, agg_slot *slot,
                             sy_compute_reply *reply)
{
    const agg_moe_config *config = lane->config;
    sy_error *err = &lane->last_error;
    size_t n;

    if (answer->status != SY_OK) {
        *err = answer->err;
        return answer->status;
    }
    const sy_iov *iov = sy_msg_iov(answer->msg, &n);
    sy_status st = sy_wire_compute_reply_decode(reply, &lane->arena, iov, n, err);
    if (st != SY_OK) return st;
    if (reply->status.status != SY_OK) {
        *err = reply->status;
        return reply->status.status;
    }
    if (!agg_rows_are_expected(reply, slot->n_rows, lane->desc->hidden, config->wire_rows))
        return sy_error_set(
            err, SY_EDATALOSS, "the answer has %u rows of %u %s, asked for %u of %u %s",
            reply->output.rows, reply->output.cols, sy_dtype_name(reply->output.dtype),
            slot->n_rows, lane->desc->hidden, sy_dtype_name(lane->x.dtype));
    if (reply->output_shared && slot->loan == NULL)
        return sy_error_set(err, SY_EDATALOSS,
                            "the answer is said to be in shared memory, but none was lent");
    if (reply->output_shared) /* lent for exactly these rows */
        reply->output.data = agg_loan_output(slot->loan);
    st = agg_rows_take(&reply->output, &slot->wide, config->wire_rows, config->kernels);
    return st == SY_OK ? SY_OK : sy_error_set(err, st, "no memory for %u rows", slot->n_rows);
}

/* The node cannot share memory: its rows wait for nobody then, and are sent again as bytes. */
static int cannot_share(const agg_slot *slot, const sy_compute_reply *reply)
{
    return slot->loan != NULL && reply->status.status != SY_OK &&
           agg_loan_is_refused(slot->loan, &reply->status);
}

/* The node is not asked again for these experts in this call; one whose connection was lost may be,
 * once, when it is back and there is nobody else. */
static void give_up_on(agg_lane *lane, const sy_moe_call *call, const agg_slot *slot,
                       const sy_fanout_slot *answer)
{
    const int32_t position = agg_position(lane, slot->node);
    const int is_lost = answer->status == SY_EUNAVAILABLE;

    sy_error_where(&lane->last_error, NULL, -1, -1, slot->node->name);
    if (answer->status == SY_EDEADLINE) agg_suspect(slot->node, "did not answer in time");
    if (answer->status == SY_OK) agg_absolve(slot->node); /* no use, but alive */
    for (run at = {0}; next_run(&lane->plan, slot, &at);) {
        uint8_t *tried = tried_of(lane, at.group, position);
        *tried = (uint8_t)(is_lost && *tried == 0 ? 1 : 2);
        if (is_lost) lane->gone_us[at.group] = answer->done_us;
        count_error(watched(lane, slot->node, agg_shard_of(lane, call, at.group)));
    }
    sy_metric_add(lane->metrics.retries, 1);
}

/* The message is done: takes what is good, and lets go of the rows that it did not bring. */
static void finish(agg_lane *lane, const sy_moe_call *call, uint32_t i)
{
    const sy_fanout_slot *answer = sy_fanout_at(lane->fanout, i);
    agg_slot *slot = &lane->slot[i];
    const int64_t took_us = answer->done_us - slot->sent_us;
    sy_compute_reply reply = {0};

    slot->open = 0;
    if (read_answer(lane, answer, slot, &reply) == SY_OK) {
        agg_answered(slot->node, slot->n_rows, took_us, !slot->late);
        lane->compute_us = SY_MAX(lane->compute_us, (int64_t)reply.compute_us);
        take_rows(lane, call, slot, &reply, answer->done_us);
    } else if (!cannot_share(slot, &reply)) {
        give_up_on(lane, call, slot, answer);
    }
    for (uint32_t k = 0; k < slot->n_rows; k++)
        if (waits_for(lane, slot->row[k], i)) lane->row_slot[slot->row[k]] = -1;
}

static void take_answers(agg_lane *lane, const sy_moe_call *call)
{
    for (uint32_t i = 0; i < lane->n_slots; i++)
        if (lane->slot[i].open && sy_fanout_is_done(lane->fanout, i)) finish(lane, call, i);
}

/* ---- late messages ---- */

static sy_status renew_view(agg_lane *lane)
{
    const agg_view *before = lane->view;

    return agg_lane_renew_view(lane) ? agg_carry_tried(lane, before) : SY_OK;
}

/* How many rows that wait for the message somebody else could compute. let_go: those wait for it no
 * longer, and its node is not asked for them again: at all while this message stays open, else but
 * once and when there is nobody else. */
static uint32_t movable_rows(agg_lane *lane, const sy_moe_call *call, uint32_t i, int let_go,
                             int hedged)
{
    const agg_slot *slot = &lane->slot[i];
    const int32_t position = agg_position(lane, slot->node);
    uint32_t n = 0;

    for (run at = {0}; next_run(&lane->plan, slot, &at);) {
        uint8_t *tried = tried_of(lane, at.group, position);
        const uint8_t before = *tried;
        const uint64_t request = call->request[lane->plan.row_token[slot->row[at.begin]]];
        *tried = 2;
        const int other = agg_choose_node(lane, call, at.group, request) >= 0;
        if (!other || !let_go)
            *tried = before;
        else if (!hedged && before == 0)
            *tried = 1;
        for (uint32_t k = at.begin; other && k < at.end; k++) {
            const uint32_t r = slot->row[k];
            if (!waits_for(lane, r, i)) continue;
            n++;
            if (!let_go) continue;
            lane->row_slot[r] = -1;
            lane->row_hedged[r] |= (uint8_t)hedged;
        }
    }
    return n;
}

static void end_slot(agg_lane *lane, const sy_moe_call *call, uint32_t i)
{
    sy_fanout_give_up(lane->fanout, i);
    finish(lane, call, i); /* an answer that came in this very moment is as good as any */
}

/* A row is under way in two messages at most: earlier ones that nothing waits for are given up. */
static void end_older_copies(agg_lane *lane, const sy_moe_call *call, uint32_t newest)
{
    for (uint32_t i = 0; i < lane->n_slots; i++) {
        const agg_slot *slot = &lane->slot[i];
        int shared = 0;
        if (i == newest || !slot->open || !slot->late || is_waited_for(lane, i)) continue;
        for (uint32_t k = 0; k < slot->n_rows && !shared; k++)
            for (uint32_t m = 0; m < lane->slot[newest].n_rows && !shared; m++)
                shared = slot->row[k] == lane->slot[newest].row[m];
        if (shared) end_slot(lane, call, i);
    }
}

static void hedge_or_move(agg_lane *lane, const sy_moe_call *call, uint32_t i, int hedged)
{
    agg_slot *slot = &lane->slot[i];

    agg_suspect(slot->node, "is slow to answer");
    slot->late = 1;
    if (hedged) end_older_copies(lane, call, i);
    movable_rows(lane, call, i, 1, hedged);
    slot->look_us =
        SY_MIN(slot->sent_us + lane->config->peer_timeout_us, sy_clock_us() + LOOK_AGAIN_US);
    if (!hedged && !is_waited_for(lane, i)) end_slot(lane, call, i);
}

/* The message's time has come: it is given up, or others are asked as well, or it gets more. */
static sy_status look_at(agg_lane *lane, const sy_moe_call *call, uint32_t i, int64_t now_us)
{
    const agg_moe_config *config = lane->config;
    agg_slot *slot = &lane->slot[i];
    const int64_t end_us = slot->sent_us + config->peer_timeout_us;
    int hedged = config->hedge && config->hedge_share > 0;

    if (now_us >= end_us || agg_is_silent(slot->node, config->silent_us)) {
        end_slot(lane, call, i);
        return SY_OK;
    }
    slot->look_us = slot->late ? SY_MIN(end_us, now_us + LOOK_AGAIN_US) : end_us;
    if (!is_waited_for(lane, i)) return SY_OK;
    if (movable_rows(lane, call, i, 0, 0) == 0) {
        agg_suspect(slot->node, "is slow to answer"); /* so that it is probed */
        slot->look_us = SY_MIN(end_us, now_us + LOOK_AGAIN_US);
        return renew_view(lane);
    }
    if (hedged && !agg_hedge_spend(lane)) {
        hedged = 0;
        const int64_t more_us = SY_MAX(config->slow_max_us, 2 * slot->limit_us);
        if (!slot->held_back && now_us < slot->sent_us + more_us) {
            slot->held_back = 1;
            slot->look_us = SY_MIN(end_us, slot->sent_us + more_us);
            return SY_OK;
        }
    }
    hedge_or_move(lane, call, i, hedged);
    return SY_OK;
}

static sy_status look_at_late(agg_lane *lane, const sy_moe_call *call)
{
    const int64_t now_us = sy_clock_us();
    sy_status st = SY_OK;

    for (uint32_t i = 0; i < lane->n_slots && st == SY_OK; i++)
        if (lane->slot[i].open && lane->slot[i].look_us <= now_us)
            st = look_at(lane, call, i, now_us);
    return st;
}

/* ---- the loop ---- */

/* Whoever was kept from running for long must not blame its peers: their answers may be here, but
 * have not been handed over yet. Once a message, or a busy machine would never find anybody late.
 */
static void excuse(agg_lane *lane, int64_t held_up_us)
{
    for (uint32_t i = 0; held_up_us > HELD_UP_US && i < lane->n_slots; i++) {
        lane->slot[i].look_us += lane->slot[i].excused ? 0 : held_up_us;
        lane->slot[i].excused = 1;
    }
}

/* Sleeps until something may have changed. 0: there is nothing left to wait for. */
static int wait_for_more(agg_lane *lane, const sy_moe_call *call, int64_t grace_us)
{
    const int64_t now_us = sy_clock_us();
    int64_t until_us = SY_NEVER_US;

    for (uint32_t i = 0; i < lane->n_slots; i++)
        if (is_useful(lane, &lane->slot[i])) until_us = SY_MIN(until_us, lane->slot[i].look_us);
    const int in_flight = until_us != SY_NEVER_US;
    if (now_us >= call->deadline_us || (!in_flight && grace_us <= now_us)) return 0;
    if (grace_us > now_us) until_us = SY_MIN(until_us, now_us + AGG_STEP_US);
    until_us = SY_MIN(until_us, call->deadline_us);
    if (in_flight)
        sy_fanout_wait_some(lane->fanout, until_us);
    else
        agg_sleep_until(until_us);
    excuse(lane, sy_clock_us() - until_us);
    return 1;
}

static sy_status prepare(agg_lane *lane, const sy_moe_call *call)
{
    const uint32_t rows = lane->plan.n_rows, groups = lane->plan.n_groups;
    sy_arena *arena = &lane->arena;

    sy_fanout_reset(lane->fanout);
    sy_error_clear(&lane->last_error);
    lane->n_slots = 0;
    lane->compute_us = 0;
    lane->grace_until_us = 0;
    lane->row_out = sy_arena_calloc(arena, rows + 1, sizeof(*lane->row_out));
    lane->row_by = sy_arena_calloc(arena, rows + 1, sizeof(*lane->row_by));
    lane->row_node = sy_arena_calloc(arena, rows + 1, sizeof(*lane->row_node));
    lane->row_slot = sy_arena_alloc(arena, (rows + 1) * sizeof(*lane->row_slot));
    lane->row_hedged = sy_arena_calloc(arena, rows + 1, sizeof(*lane->row_hedged));
    lane->tried = sy_arena_calloc(arena, (size_t)groups * lane->view->n_nodes + 1, 1);
    lane->gone_us = sy_arena_calloc(arena, groups + 1, sizeof(*lane->gone_us));
    lane->local = sy_arena_calloc(arena, call->n_rows + 1, sizeof(*lane->local));
    if (!lane->row_out || !lane->row_by || !lane->row_node || !lane->row_slot ||
        !lane->row_hedged || !lane->tried || !lane->gone_us || !lane->local)
        return SY_ENOMEM;
    memset(lane->row_slot, 0xff, (rows + 1) * sizeof(*lane->row_slot));
    return SY_OK;
}

static void count_rows(const agg_lane *lane, const sy_moe_call *call)
{
    _Atomic uint64_t *rows = agg_peers_rows(lane->config->peers);
    const sy_plan *plan = &lane->plan;

    for (uint32_t g = 0; g < plan->n_groups; g++)
        atomic_fetch_add_explicit(&rows[agg_shard_of(lane, call, g)],
                                  plan->group[plan->active[g] + 1] - plan->group[plan->active[g]],
                                  memory_order_relaxed);
}

sy_status agg_dispatch(agg_lane *lane, sy_moe_call *call)
{
    sy_status st = prepare(lane, call);

    if (st == SY_OK) count_rows(lane, call);
    while (st == SY_OK) {
        const agg_assigned n = agg_assign_rows(lane, call);
        if (n.unanswered == 0) break;
        if (n.to_send > 0) SY_TRY(send_assigned(lane, call));
        agg_combine(lane, call); /* what is here, while the others compute */
        const int64_t grace_us = n.stuck > 0 ? agg_grace_until_us(lane, call) : 0;
        if (!wait_for_more(lane, call, grace_us)) break;
        take_answers(lane, call);
        st = look_at_late(lane, call);
        if (st == SY_OK && grace_us > 0) st = renew_view(lane);
    }
out:
    if (st != SY_OK) return sy_error_set(&call->error, st, "no memory for the layer call");
    agg_end_unanswered(lane, call);
    agg_shadow_copy(lane->shadow, lane, call);
    return SY_OK;
}
