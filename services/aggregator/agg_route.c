/* agg_route.c - ROUTE: which experts the rows go to. A replica of the router is asked, another one
 * when it fails or is late, and this process' own gates when nobody answers and it has them: the
 * bits are the same wherever they are computed. */
#include <string.h>

#include "agg_dispatch.h"
#include "sy_clock.h"
#include "sy_hash.h"

enum { CANDIDATES_MAX = 256, LOOK_AGAIN_US = 20000 };

typedef struct question { /* one layer call's */
    sy_buf *rows; /* [n_good,H]: those that have not failed; NULL: nobody has needed them so far */
    uint32_t n_good, k;
    uint8_t *tried;  /* [routers of the view]: as agg_lane.tried */
    int64_t gone_us; /* when a router turned out to have gone; 0: none did */
    int64_t grace_until_us;
    int here;      /* nobody else can be asked for what is late: the gates of this process answer */
    sy_error last; /* why the latest attempt failed */
} question;

static size_t good_bytes(const agg_lane *lane, const question *q)
{
    return q->n_good * agg_row_bytes(lane);
}

/* Copies the rows that have not failed, close together. */
static void gather_good(uint8_t *to, const agg_lane *lane, const sy_moe_call *call)
{
    const uint8_t *x = lane->x.data;
    const size_t row_bytes = agg_row_bytes(lane);

    for (uint32_t t = 0; t < call->n_rows; t++) {
        if (call->failed[t]) continue;
        memcpy(to, x + t * row_bytes, row_bytes);
        to += row_bytes;
    }
}

/* The same, in a buffer that can go on the wire: made once. */
static sy_status need_rows(const agg_lane *lane, const sy_moe_call *call, question *q)
{
    if (q->rows != NULL) return SY_OK;
    q->rows = sy_buf_alloc(good_bytes(lane, q));
    if (q->rows == NULL) return SY_ENOMEM;
    gather_good(q->rows->data, lane, call);
    return SY_OK;
}

/* Those rows as floats, for gates of this process: what a router would make of them. NULL: no
 * memory. */
static const float *floats_here(agg_lane *lane, const sy_moe_call *call, question *q)
{
    const size_t n = q->n_good * (size_t)lane->desc->hidden;

    if (need_rows(lane, call, q) != SY_OK) return NULL;
    if (lane->x.dtype == SY_F32) return q->rows->data;
    float *wide = sy_arena_alloc(&lane->arena, n * sizeof(*wide));
    if (wide != NULL) sy_dtype_widen(wide, q->rows->data, lane->x.dtype, n);
    return wide;
}

/* Spreads the choice for the good rows over all rows; failed rows get empty slots. */
static void scatter_good(agg_lane *lane, const sy_moe_call *call, uint32_t k,
                         const uint16_t *expert, const float *weight)
{
    size_t from = 0;

    for (uint32_t t = 0; t < call->n_rows; t++)
        for (uint32_t i = 0; i < k; i++) {
            const size_t to = (size_t)t * k + i;
            lane->expert[to] = call->failed[t] ? SY_PLAN_EMPTY_SLOT : expert[from];
            lane->weight[to] = call->failed[t] ? 0.0f : weight[from];
            from += !call->failed[t];
        }
}

/* ---- whom to ask ---- */

static int is_asked(const agg_lane *lane, const agg_node *node)
{
    for (uint32_t i = 0; i < lane->n_slots; i++)
        if (lane->slot[i].open && lane->slot[i].node == node) return 1;
    return 0;
}

/* The less busy of two that a hash picks, among those that are up and not tried yet. Suspects come
 * last, and not at all where the gates are here: they answer at once. NULL: nobody. */
static agg_node *pick_router(const agg_lane *lane, const question *q, uint64_t salt)
{
    const agg_view *view = lane->view;
    const int rounds = lane->config->fallback != NULL ? 1 : 2;
    agg_node *up[CANDIDATES_MAX], *best = NULL;
    uint32_t n = 0;

    for (int suspects = 0; suspects < rounds && n == 0; suspects++)
        for (uint32_t i = 0; i < view->n_routers && n < CANDIDATES_MAX; i++) {
            agg_node *node = view->router[i];
            if (q->tried[i] > (q->grace_until_us != 0) || !sy_peer_up(node->peer)) continue;
            if (agg_is_silent(node, lane->config->silent_us)) continue;
            if (agg_comes_last(node) == suspects && !is_asked(lane, node)) up[n++] = node;
        }
    for (uint64_t choice = 0; choice < 2 && n > 0; choice++) {
        agg_node *node = up[sy_splitmix64(salt + choice) % n];
        if (best == NULL || sy_peer_outstanding(node->peer) < sy_peer_outstanding(best->peer))
            best = node;
    }
    return best;
}

static agg_node *next_router(const agg_lane *lane, const sy_moe_call *call, const question *q)
{
    return pick_router(lane, q, call->request[0] ^ (uint64_t)sy_clock_us());
}

static uint8_t *tried_router(const agg_lane *lane, const question *q, const agg_node *node)
{
    static _Thread_local uint8_t nowhere; /* it has left the view */

    for (uint32_t i = 0; i < lane->view->n_routers; i++)
        if (lane->view->router[i] == node) return &q->tried[i];
    return &nowhere;
}

static sy_status renew_view(agg_lane *lane, question *q)
{
    const agg_view *before = lane->view;
    const uint8_t *tried = q->tried;

    if (!agg_lane_renew_view(lane)) return SY_OK;
    q->tried = sy_arena_calloc(&lane->arena, lane->view->n_routers + 1, 1);
    if (q->tried == NULL) return SY_ENOMEM;
    for (uint32_t i = 0; i < before->n_routers; i++)
        *tried_router(lane, q, before->router[i]) = tried[i];
    return SY_OK;
}

/* ---- a message and its answer ---- */

/* Messages under way; those that are late have somebody else asked as well. */
static int count_open(const agg_lane *lane, int late_too)
{
    int n = 0;

    for (uint32_t i = 0; i < lane->n_slots; i++)
        n += lane->slot[i].open && (late_too || !lane->slot[i].late);
    return n;
}

/* loan: where the rows go, NULL: into the frame. */
static sy_status encode_question(const agg_lane *lane, const sy_moe_call *call, question *q,
                                 uint64_t id, const agg_loan *loan, sy_frame *frame)
{
    sy_route_request request = {.id = id,
                                .model = sy_model_name(lane->config->model),
                                .layer = call->layer,
                                .policy = {.experts_per_token = call->experts_per_token},
                                .hidden = {lane->x.dtype, q->n_good, lane->desc->hidden, NULL}};

    if (loan != NULL) {
        gather_good(agg_loan_input(loan), lane, call);
        agg_loan_describe(loan, &request.shared);
        return sy_wire_route_request_encode(frame, &request, NULL);
    }
    if (need_rows(lane, call, q) != SY_OK) return SY_ENOMEM;
    request.hidden.data = q->rows->data;
    return sy_wire_route_request_encode(frame, &request, q->rows);
}

static sy_status send_question(agg_lane *lane, const sy_moe_call *call, question *q, agg_node *node)
{
    agg_slot *slot = &lane->slot[lane->n_slots];
    const uint64_t id = sy_peer_next_id(node->peer);
    agg_loan *loan = agg_share_lend(node->share, id, good_bytes(lane, q), 0);
    sy_frame frame;

    if (encode_question(lane, call, q, id, loan, &frame) != SY_OK) {
        agg_share_settled(node->share, id);
        agg_loan_end(loan);
        return SY_ENOMEM;
    }
    *slot = (agg_slot){.node = node,
                       .n_rows = q->n_good,
                       .loan = loan,
                       .sent_us = sy_clock_us(),
                       .limit_us = agg_slow_limit_us(lane, node, q->n_good),
                       .open = 1,
                       .is_copy = count_open(lane, 1) > 0};
    slot->look_us = slot->sent_us + slot->limit_us;
    lane->n_slots++;
    sy_fanout_send(lane->fanout, node->peer, id, &frame);
    if (slot->is_copy)
        sy_metric_add(lane->metrics.hedges, 1);
    else
        agg_hedge_earn(lane);
    return SY_OK;
}

static sy_status read_route_reply(agg_lane *lane, const sy_moe_call *call, const question *q,
                                  const sy_fanout_slot *slot, sy_error *err)
{
    const uint32_t n_good = q->n_good, k = q->k;
    sy_route_reply reply;
    size_t n;

    if (slot->status != SY_OK) {
        *err = slot->err;
        return slot->status;
    }
    const sy_iov *iov = sy_msg_iov(slot->msg, &n);
    sy_status st = sy_wire_route_reply_decode(&reply, &lane->arena, iov, n, err);
    if (st != SY_OK) return st;
    if (reply.status.status != SY_OK) {
        *err = reply.status;
        return reply.status.status;
    }
    if (reply.n_tokens != n_good || reply.slots != k)
        return sy_error_set(err, SY_EDATALOSS,
                            "the answer has %u rows of %u slots, asked for %u of %u",
                            reply.n_tokens, reply.slots, n_good, k);
    for (size_t i = 0; i < (size_t)n_good * k; i++)
        if (reply.expert[i] != SY_WIRE_EMPTY_SLOT && reply.expert[i] >= lane->desc->n_experts)
            return sy_error_set(err, SY_EDATALOSS, "the answer names expert %u of %u",
                                reply.expert[i], lane->desc->n_experts);
    scatter_good(lane, call, k, reply.expert, reply.weight);
    return SY_OK;
}

/* The message is done. SY_OK: the rows have their experts; SY_EINVAL: they never will. */
static sy_status finish(agg_lane *lane, const sy_moe_call *call, question *q, uint32_t i)
{
    const sy_fanout_slot *answer = sy_fanout_at(lane->fanout, i);
    agg_slot *slot = &lane->slot[i];
    uint8_t *tried = tried_router(lane, q, slot->node);

    slot->open = 0;
    sy_error_clear(&q->last);
    const sy_status st = read_route_reply(lane, call, q, answer, &q->last);
    if (st == SY_OK) {
        agg_answered(slot->node, slot->n_rows, answer->done_us - slot->sent_us, !slot->late);
        lane->router_seen_us = answer->done_us;
        return SY_OK;
    }
    if (answer->status == SY_OK) agg_absolve(slot->node); /* no use, but alive */
    if (answer->status == SY_OK && slot->loan != NULL && agg_loan_is_refused(slot->loan, &q->last))
        return SY_EUNAVAILABLE; /* it is asked again, with the rows in the message */
    sy_error_prefix(&q->last, "router %s", slot->node->name);
    if (answer->status == SY_EDEADLINE) agg_suspect(slot->node, "did not answer in time");
    *tried = (uint8_t)(answer->status == SY_EUNAVAILABLE && *tried == 0 ? 1 : 2);
    if (answer->status == SY_EUNAVAILABLE) q->gone_us = answer->done_us;
    sy_metric_add(lane->metrics.route_retries, 1);
    return answer->status == SY_OK ? st : SY_EUNAVAILABLE;
}

static sy_status route_here(agg_lane *lane, sy_moe_call *call, question *q, const sy_router *gates)
{
    const uint32_t n_good = q->n_good, k = q->k;
    const sy_route_options options = {call->experts_per_token};
    uint16_t *expert = sy_arena_alloc(&lane->arena, (size_t)n_good * k * sizeof(*expert));
    float *weight = sy_arena_alloc(&lane->arena, (size_t)n_good * k * sizeof(*weight));
    float *scratch = sy_arena_alloc(&lane->arena, sy_router_scratch(gates, n_good) * sizeof(float));

    const float *x = floats_here(lane, call, q);

    if (expert == NULL || weight == NULL || scratch == NULL || x == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
    sy_status st = sy_route(gates, call->layer, expert, weight, x, n_good, &options, scratch, NULL,
                            &call->error);
    if (st == SY_OK) scatter_good(lane, call, k, expert, weight);
    return st;
}

static sy_status fall_back(agg_lane *lane, sy_moe_call *call, question *q)
{
    sy_metric_add(lane->metrics.fallbacks, 1);
    return route_here(lane, call, q, lane->config->fallback);
}

/* ---- late, or nobody ---- */

/* What becomes of a message whose time has come. */
typedef enum verdict {
    WAIT,
    ASK_ALSO, /* another router, and the first answer is taken */
    MOVE,     /* the same, but this message is given up */
    ROUTE_HERE
} verdict;

static verdict judge_late(agg_lane *lane, const sy_moe_call *call, const question *q,
                          agg_slot *slot, int64_t now_us)
{
    const agg_moe_config *config = lane->config;
    const int64_t end_us = slot->sent_us + config->peer_timeout_us;
    const int64_t more_us = SY_MAX(config->slow_max_us, 2 * slot->limit_us);

    if (now_us >= end_us || agg_is_silent(slot->node, config->silent_us)) return MOVE;
    slot->look_us = slot->late ? SY_MIN(end_us, now_us + LOOK_AGAIN_US) : end_us;
    if (slot->late) return WAIT;
    if (next_router(lane, call, q) == NULL) {
        if (config->fallback != NULL) return ROUTE_HERE;
        agg_suspect(slot->node, "is slow to answer"); /* so that it is probed */
        slot->look_us = SY_MIN(end_us, now_us + LOOK_AGAIN_US);
        return WAIT;
    }
    if (!config->hedge || config->hedge_share <= 0) return MOVE;
    if (agg_hedge_spend(lane)) return ASK_ALSO;
    if (slot->held_back || now_us >= slot->sent_us + more_us) return MOVE;
    slot->held_back = 1;
    slot->look_us = SY_MIN(end_us, slot->sent_us + more_us);
    return WAIT;
}

/* When a router was last known to be there; one that stays away is not waited for again. */
static int64_t router_seen_us(const agg_lane *lane, const question *q)
{
    int64_t seen_us = lane->router_seen_us;

    if (seen_us < 0) return 0;
    seen_us = SY_MAX(seen_us, q->gone_us);
    for (uint32_t i = 0; i < lane->view->n_routers; i++) {
        const agg_node *node = lane->view->router[i];
        const int64_t up_us =
            atomic_load_explicit(&node->suspicion.seen_up_us, memory_order_relaxed);
        if (!sy_peer_up(node->peer)) seen_us = SY_MAX(seen_us, up_us);
    }
    return seen_us;
}

/* 1: a step has passed in which a router may have come back. */
static int wait_for_router(agg_lane *lane, const sy_moe_call *call, question *q)
{
    const int64_t now_us = sy_clock_us(), seen_us = router_seen_us(lane, q);

    if (seen_us != 0 && q->grace_until_us == 0 && seen_us + AGG_RECENT_US > now_us) {
        q->grace_until_us = now_us + SY_MIN(lane->config->grace_us, (int64_t)AGG_RECENT_US);
        sy_metric_add(lane->metrics.graces, 1);
    }
    const int64_t until_us = SY_MIN(q->grace_until_us, seen_us + AGG_RECENT_US);
    if (now_us >= until_us || now_us >= call->deadline_us) return 0;
    agg_sleep_until(SY_MIN(until_us, now_us + AGG_STEP_US));
    return 1;
}

static sy_status tell_unreachable(agg_lane *lane, sy_moe_call *call, const question *q)
{
    if (q->grace_until_us != 0) lane->router_seen_us = -1;
    sy_error_set(&call->error, SY_EUNAVAILABLE, "no router answers for layer %u (%u known)%s%s",
                 call->layer, lane->view->n_routers, q->last.message[0] != '\0' ? ": " : "",
                 q->last.message);
    sy_error_where(&call->error, "ROUTER_UNREACHABLE", (int32_t)call->layer, -1, NULL);
    return SY_EUNAVAILABLE;
}

/* ---- the loop ---- */

/* Sleeps until an answer comes, or a message is to be looked at. 0: none is under way. */
static int wait_for_answer(agg_lane *lane, const sy_moe_call *call)
{
    int64_t until_us = SY_NEVER_US;

    for (uint32_t i = 0; i < lane->n_slots; i++)
        if (lane->slot[i].open) until_us = SY_MIN(until_us, lane->slot[i].look_us);
    if (until_us == SY_NEVER_US) return 0;
    sy_fanout_wait_some(lane->fanout, SY_MIN(until_us, call->deadline_us));
    return 1;
}

static void look_at_late(agg_lane *lane, const sy_moe_call *call, question *q, uint32_t i)
{
    agg_slot *slot = &lane->slot[i];
    const int64_t now_us = sy_clock_us();

    if (now_us < slot->look_us) return;
    const verdict v = judge_late(lane, call, q, slot, now_us);
    if (v != WAIT) agg_suspect(slot->node, "is slow to answer");
    if (v == ASK_ALSO) slot->late = 1;
    if (v == MOVE) sy_fanout_give_up(lane->fanout, i);
    if (v == ROUTE_HERE) q->here = 1;
}

/* Takes what has been answered and looks at what is late. SY_EUNAVAILABLE: nothing so far. */
static sy_status look(agg_lane *lane, const sy_moe_call *call, question *q)
{
    for (uint32_t i = 0; i < lane->n_slots; i++) {
        if (!lane->slot[i].open) continue;
        if (!sy_fanout_is_done(lane->fanout, i)) look_at_late(lane, call, q, i);
        if (!sy_fanout_is_done(lane->fanout, i)) continue;
        const sy_status st = finish(lane, call, q, i);
        if (st == SY_OK && lane->slot[i].is_copy) sy_metric_add(lane->metrics.hedge_wins, 1);
        if (st == SY_OK || st == SY_EINVAL) return st;
    }
    return SY_EUNAVAILABLE;
}

static void give_up_open(agg_lane *lane, const sy_moe_call *call, question *q)
{
    for (uint32_t i = 0; i < lane->n_slots; i++) {
        if (!lane->slot[i].open) continue;
        sy_fanout_give_up(lane->fanout, i);
        (void)finish(lane, call, q, i); /* for its text: it is too late for an answer */
    }
}

/* One router is waited for at a time; those that are late may still answer first. */
static sy_status ask_routers(agg_lane *lane, sy_moe_call *call, question *q)
{
    sy_status st = SY_EUNAVAILABLE;

    q->tried = sy_arena_calloc(&lane->arena, lane->view->n_routers + 1, 1);
    if (q->tried == NULL) goto no_memory;
    sy_error_clear(&q->last);
    sy_fanout_reset(lane->fanout);
    lane->n_slots = 0;
    while (st == SY_EUNAVAILABLE && sy_clock_us() < call->deadline_us) {
        const int ask = count_open(lane, 0) == 0 && lane->n_slots < AGG_SLOTS_MAX;
        agg_node *node = ask ? next_router(lane, call, q) : NULL;
        if (node != NULL && send_question(lane, call, q, node) != SY_OK) goto no_memory;
        if (wait_for_answer(lane, call)) {
            st = look(lane, call, q);
            if (st == SY_EUNAVAILABLE && q->here) return fall_back(lane, call, q);
        } else {
            if (lane->config->fallback != NULL) return fall_back(lane, call, q);
            if (!wait_for_router(lane, call, q)) return tell_unreachable(lane, call, q);
            if (renew_view(lane, q) != SY_OK) goto no_memory;
        }
    }
    if (st == SY_OK) return SY_OK;
    if (st == SY_EUNAVAILABLE) {
        give_up_open(lane, call, q);
        return tell_unreachable(lane, call, q);
    }
    call->error = q->last;
    return st;
no_memory:
    return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
}

sy_status agg_route(agg_lane *lane, sy_moe_call *call, uint32_t k)
{
    const size_t slots = (size_t)call->n_rows * k;
    question q = {.k = k};
    sy_status st;

    lane->expert = sy_arena_alloc(&lane->arena, slots * sizeof(*lane->expert));
    lane->weight = sy_arena_alloc(&lane->arena, slots * sizeof(*lane->weight));
    if (lane->expert == NULL || lane->weight == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
    for (uint32_t t = 0; t < call->n_rows; t++) q.n_good += !call->failed[t];
    if (q.n_good == 0) {
        scatter_good(lane, call, k, NULL, NULL);
        st = SY_OK;
    } else if (lane->config->inproc != NULL) {
        st = route_here(lane, call, &q, lane->config->inproc);
    } else {
        st = ask_routers(lane, call, &q);
        agg_end_loans(lane);
    }
    sy_buf_unref(q.rows);
    return st;
}
