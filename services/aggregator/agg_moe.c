/* agg_moe.c - a layer call from beginning to end, and its first state: asking a router. */
#include "agg_moe.h"

#include <string.h>

#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_moe_rows.h"
#include "sy_shard.h"

enum { FANOUT_MAX = 256, ARENA_BYTES_MAX = 1 << 30 };

sy_status agg_lane_open(agg_lane *lane, const agg_moe_config *config, sy_error *err)
{
    static const char name[] = "switchyard_layer_seconds";
    static const char help[] = "Time of a layer call in each state";

    memset(lane, 0, sizeof(*lane));
    lane->config = config;
    lane->desc = sy_model_describe(config->model);
    sy_arena_init(&lane->arena, ARENA_BYTES_MAX);
    sy_plan_init(&lane->plan);
    lane->metrics =
        (agg_moe_metrics){sy_metric_histogram(name, help, "state=\"route\""),
                          sy_metric_histogram(name, help, "state=\"dispatch\""),
                          sy_metric_histogram(name, help, "state=\"compute\""),
                          sy_metric_histogram(name, help, "state=\"combine\""),
                          sy_metric_counter("switchyard_expert_retries_total",
                                            "Messages sent again to another node", NULL),
                          sy_metric_counter("switchyard_layer_failures_total",
                                            "Layer calls in which some row failed", NULL)};
    return sy_fanout_open(&lane->fanout, FANOUT_MAX) == SY_OK
               ? SY_OK
               : sy_error_set(err, SY_ENOMEM, "no memory for the fan-out");
}

void agg_lane_close(agg_lane *lane)
{
    sy_fanout_free(lane->fanout);
    sy_plan_free(&lane->plan);
    sy_arena_free(&lane->arena);
}

/* ---- ROUTE ---- */

/* Copies the rows that have not failed, close together, into a buffer that can go on the wire. */
static sy_buf *gather_good(const sy_moe_call *call, size_t hidden, uint32_t *n_good)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < call->n_rows; t++) n += !call->failed[t];
    *n_good = n;
    sy_buf *buf = sy_buf_alloc(SY_MAX(n * hidden * sizeof(float), (size_t)1));
    if (buf == NULL) return NULL;
    float *to = buf->data;
    for (uint32_t t = 0; t < call->n_rows; t++) {
        if (call->failed[t]) continue;
        memcpy(to, call->x + t * hidden, hidden * sizeof(float));
        to += hidden;
    }
    return buf;
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

/* The least loaded of two that a hash picks, among those that are up and not tried yet; suspects
 * only when nobody else is left. NULL: none is. */
static agg_node *pick_router(const agg_view *view, const uint8_t *tried, uint64_t salt)
{
    const int64_t now_us = sy_clock_us();
    agg_node *best = NULL;
    uint32_t up[FANOUT_MAX], n = 0;

    for (int suspects = 0; suspects < 2 && n == 0; suspects++)
        for (uint32_t i = 0; i < view->n_routers && n < FANOUT_MAX; i++) {
            const agg_node *node = view->router[i];
            if (tried[i] || !sy_peer_up(node->peer)) continue;
            if (suspects ||
                atomic_load_explicit(&node->suspect_until_us, memory_order_relaxed) <= now_us)
                up[n++] = i;
        }
    for (int choice = 0; choice < 2 && n > 0; choice++) {
        agg_node *node = view->router[up[sy_splitmix64(salt + (uint64_t)choice) % n]];
        if (best == NULL || sy_peer_outstanding(node->peer) < sy_peer_outstanding(best->peer))
            best = node;
    }
    return best;
}

static sy_status read_route_reply(agg_lane *lane, const sy_moe_call *call, uint32_t k,
                                  uint32_t n_good, sy_error *err)
{
    const sy_fanout_slot *slot = sy_fanout_at(lane->fanout, 0);
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

static sy_status ask_router(agg_lane *lane, sy_moe_call *call, agg_node *node, sy_buf *rows,
                            uint32_t n_good, uint32_t k, sy_error *err)
{
    const uint64_t id = sy_peer_next_id(node->peer);
    const sy_route_request request = {.id = id,
                                      .model = sy_model_name(lane->config->model),
                                      .layer = call->layer,
                                      .policy = {.experts_per_token = call->experts_per_token},
                                      .hidden = {SY_F32, n_good, lane->desc->hidden, rows->data}};
    const int64_t deadline_us =
        SY_MIN(call->deadline_us, sy_clock_us() + lane->config->peer_timeout_us);
    sy_frame frame;

    if (sy_wire_route_request_encode(&frame, &request, rows) != SY_OK)
        return sy_error_set(err, SY_ENOMEM, "no memory for a message");
    sy_fanout_reset(lane->fanout);
    sy_fanout_send(lane->fanout, node->peer, id, &frame);
    sy_fanout_wait(lane->fanout, deadline_us);
    sy_error_clear(err);
    sy_status st = read_route_reply(lane, call, k, n_good, err);
    if (st != SY_OK) sy_error_prefix(err, "router %s", node->name);
    return st;
}

static int is_callers_fault(sy_status st)
{
    return st == SY_EINVAL;
}

static sy_status ask_routers(agg_lane *lane, sy_moe_call *call, uint32_t k, sy_buf *rows,
                             uint32_t n_good)
{
    uint8_t *tried = sy_arena_calloc(&lane->arena, lane->view->n_routers + 1, 1);
    sy_error last = {0};
    agg_node *node;

    if (tried == NULL) return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
    sy_error_clear(&last);
    while ((node = pick_router(lane->view, tried, call->request[0] ^ (uint64_t)sy_clock_us())) !=
           NULL) {
        sy_status st = ask_router(lane, call, node, rows, n_good, k, &last);
        if (st == SY_OK) return st;
        if (is_callers_fault(st) || sy_clock_us() >= call->deadline_us) {
            call->error = last;
            return st;
        }
        if (st == SY_EDEADLINE)
            atomic_store_explicit(&node->suspect_until_us, sy_clock_us() + AGG_SUSPECT_US,
                                  memory_order_relaxed);
        for (uint32_t i = 0; i < lane->view->n_routers; i++)
            tried[i] |= lane->view->router[i] == node;
    }
    sy_error_set(&call->error, SY_EUNAVAILABLE, "no router answers for layer %u (%u known)%s%s",
                 call->layer, lane->view->n_routers, last.message[0] != '\0' ? ": " : "",
                 last.message);
    sy_error_where(&call->error, "ROUTER_UNREACHABLE", (int32_t)call->layer, -1, NULL);
    return SY_EUNAVAILABLE;
}

static sy_status route_here(agg_lane *lane, sy_moe_call *call, uint32_t k, const sy_buf *rows,
                            uint32_t n_good)
{
    const sy_route_options options = {call->experts_per_token};
    uint16_t *expert = sy_arena_alloc(&lane->arena, (size_t)n_good * k * sizeof(*expert));
    float *weight = sy_arena_alloc(&lane->arena, (size_t)n_good * k * sizeof(*weight));
    float *scratch = sy_arena_alloc(&lane->arena, sy_router_scratch(lane->config->inproc, n_good) *
                                                      sizeof(float));

    if (expert == NULL || weight == NULL || scratch == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
    sy_status st = sy_route(lane->config->inproc, call->layer, expert, weight, rows->data, n_good,
                            &options, scratch, NULL, &call->error);
    if (st == SY_OK) scatter_good(lane, call, k, expert, weight);
    return st;
}

sy_status agg_route(agg_lane *lane, sy_moe_call *call, uint32_t k)
{
    const size_t slots = (size_t)call->n_rows * k;
    uint32_t n_good;
    sy_status st;

    lane->expert = sy_arena_alloc(&lane->arena, slots * sizeof(*lane->expert));
    lane->weight = sy_arena_alloc(&lane->arena, slots * sizeof(*lane->weight));
    if (lane->expert == NULL || lane->weight == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for the layer call");
    sy_buf *rows = gather_good(call, lane->desc->hidden, &n_good);
    if (rows == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for %u rows", call->n_rows);
    if (n_good == 0) {
        scatter_good(lane, call, k, NULL, NULL);
        st = SY_OK;
    } else if (lane->config->inproc != NULL) {
        st = route_here(lane, call, k, rows, n_good);
    } else {
        st = ask_routers(lane, call, k, rows, n_good);
    }
    sy_buf_unref(rows);
    return st;
}

/* ---- the layer call ---- */

static sy_status layer_states(agg_lane *lane, sy_moe_call *call, uint32_t k)
{
    int64_t at_us = sy_clock_us();
    sy_moe_times times = {0};
    sy_status st;

    SY_TRY(agg_route(lane, call, k));
    sy_moe_lap(&times.route_us, &at_us);
    SY_TRY(sy_plan_build(&lane->plan, lane->expert, lane->weight, call->n_rows, k,
                         lane->desc->n_experts, &call->error));
    lane->compute_us = 0;
    SY_TRY(agg_dispatch(lane, call));
    sy_moe_lap(&times.dispatch_us, &at_us);
    times.compute_us = SY_MIN(lane->compute_us, times.dispatch_us);
    times.dispatch_us -= times.compute_us;
    sy_shard_combine(call->y, &lane->plan, lane->row_out, lane->desc->hidden, call->failed,
                     lane->config->kernels);
    sy_moe_lap(&times.combine_us, &at_us);
    sy_metric_observe_us(lane->metrics.route, times.route_us);
    sy_metric_observe_us(lane->metrics.dispatch, times.dispatch_us);
    sy_metric_observe_us(lane->metrics.compute, times.compute_us);
    sy_metric_observe_us(lane->metrics.combine, times.combine_us);
    call->times.route_us += times.route_us;
    call->times.dispatch_us += times.dispatch_us;
    call->times.compute_us += times.compute_us;
    call->times.combine_us += times.combine_us;
    if (call->expert != NULL)
        memcpy(call->expert, lane->expert, (size_t)call->n_rows * k * sizeof(*call->expert));
    if (call->weight != NULL)
        memcpy(call->weight, lane->weight, (size_t)call->n_rows * k * sizeof(*call->weight));
out:
    return st;
}

static sy_status agg_layer(void *ctx, sy_moe_call *call)
{
    agg_lane *lane = ctx;
    const uint32_t k = call->experts_per_token == 0 ? lane->desc->top_k : call->experts_per_token;
    sy_status st;

    if (k > lane->desc->top_k)
        return sy_error_set(&call->error, SY_EINVAL, "experts_per_token: %u, but the model has %u",
                            k, lane->desc->top_k);
    sy_moe_mark_bad_rows(call, lane->desc->hidden, lane->config->kernels);
    lane->view = agg_peers_view(lane->config->peers);
    st = layer_states(lane, call, k);
    agg_view_unref(lane->view);
    lane->view = NULL;
    sy_fanout_reset(lane->fanout);
    sy_arena_reset(&lane->arena);
    if (st != SY_OK || call->n_row_errors > 0) sy_metric_add(lane->metrics.failures, 1);
    return st;
}

static uint64_t agg_placement_hash(void *ctx)
{
    const agg_lane *lane = ctx;
    agg_view *view = agg_peers_view(lane->config->peers);
    const uint64_t hash = view->snapshot == NULL ? 0 : sy_snapshot_hash(view->snapshot);

    agg_view_unref(view);
    return hash;
}

sy_moe agg_lane_ops(agg_lane *lane)
{
    return (sy_moe){lane, agg_layer, agg_placement_hash};
}
