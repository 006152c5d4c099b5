/* agg_moe.c - a layer call from beginning to end, and what its states share: the view of the
 * cluster, what is late, and how many messages may be sent twice. */
#include "agg_moe.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agg_dispatch.h"
#include "agg_rows.h"
#include "agg_shadow.h"
#include "sy_clock.h"
#include "sy_moe_rows.h"
#include "sy_shard.h"

enum { ARENA_BYTES_MAX = 1 << 30, HEDGE_WINDOW = 1000 };

/* ---- opening and closing ---- */

static agg_moe_metrics open_metrics(void)
{
    static const char name[] = "switchyard_layer_seconds";
    static const char help[] = "Time of a layer call in each state";
    static const char rows[] = "switchyard_rows_total";
    static const char rows_help[] = "Rows asked of nodes: through shared memory, or as bytes";

    return (agg_moe_metrics){
        .route = sy_metric_histogram(name, help, "state=\"route\""),
        .dispatch = sy_metric_histogram(name, help, "state=\"dispatch\""),
        .compute = sy_metric_histogram(name, help, "state=\"compute\""),
        .combine = sy_metric_histogram(name, help, "state=\"combine\""),
        .retries =
            sy_metric_counter("switchyard_expert_retries_total",
                              "Messages that failed and were sent again to another node", NULL),
        .route_retries =
            sy_metric_counter("switchyard_route_retries_total",
                              "Questions that failed and were put to another router", NULL),
        .failures = sy_metric_counter("switchyard_layer_failures_total",
                                      "Layer calls in which some row failed", NULL),
        .hedges = sy_metric_counter("switchyard_hedges_total",
                                    "Copies sent because an answer was late", NULL),
        .hedge_wins = sy_metric_counter("switchyard_hedge_wins_total",
                                        "Of these, those that answered first", NULL),
        .fallbacks = sy_metric_counter("switchyard_route_fallback_total",
                                       "Layers routed here because no router answered", NULL),
        .graces = sy_metric_counter("switchyard_layer_grace_total",
                                    "Layer calls that waited for a peer that had just gone", NULL),
        .degraded_rows = sy_metric_counter("switchyard_degraded_rows_total",
                                           "Token rows that miss an expert", NULL),
        .rows_shared = sy_metric_counter(rows, rows_help, "way=\"shared\""),
        .rows_bytes = sy_metric_counter(rows, rows_help, "way=\"bytes\"")};
}

sy_status agg_lane_open(agg_lane *lane, const agg_moe_config *config, sy_error *err)
{
    memset(lane, 0, sizeof(*lane));
    lane->config = config;
    lane->desc = sy_model_describe(config->model);
    lane->hedges_left = AGG_HEDGES_BURST;
    sy_arena_init(&lane->arena, ARENA_BYTES_MAX);
    sy_plan_init(&lane->plan);
    lane->metrics = open_metrics();
    lane->slot = calloc(AGG_SLOTS_MAX, sizeof(*lane->slot));
    lane->seen_us =
        calloc((size_t)lane->desc->n_layers * lane->desc->n_experts, sizeof(*lane->seen_us));
    lane->shadow = agg_shadow_open(config, lane->desc->hidden);
    if (lane->slot != NULL && lane->seen_us != NULL && lane->shadow != NULL &&
        sy_fanout_open(&lane->fanout, AGG_SLOTS_MAX) == SY_OK)
        return SY_OK;
    agg_lane_close(lane);
    return sy_error_set(err, SY_ENOMEM, "no memory for a lane of layer calls");
}

void agg_lane_close(agg_lane *lane)
{
    agg_shadow_close(lane->shadow);
    sy_fanout_free(lane->fanout);
    sy_plan_free(&lane->plan);
    sy_arena_free(&lane->arena);
    free(lane->slot);
    free(lane->seen_us);
    memset(lane, 0, sizeof(*lane));
}

/* ---- views ---- */

struct agg_held {
    agg_view *view;
    struct agg_held *next;
};

int agg_lane_renew_view(agg_lane *lane)
{
    agg_view *view = agg_peers_view(lane->config->peers);
    struct agg_held *held = NULL;

    if (view != lane->view) held = sy_arena_alloc(&lane->arena, sizeof(*held));
    if (held == NULL) {
        agg_view_unref(view);
        return 0;
    }
    *held = (struct agg_held){lane->view, lane->held};
    lane->held = held;
    lane->view = view;
    return 1;
}

/* The end of a call: messages that are still under way are forgotten before their peers may go. */
static void let_go(agg_lane *lane)
{
    sy_fanout_reset(lane->fanout);
    agg_end_loans(lane);
    agg_view_unref(lane->view);
    lane->view = NULL;
    for (; lane->held != NULL; lane->held = lane->held->next) agg_view_unref(lane->held->view);
    sy_arena_reset(&lane->arena);
}

/* ---- what is late, and the share of hedges ---- */

/* slow_max_us is for messages that are shorter than that: one whose like takes longer, such as a
 * long piece of a prompt on a slow machine, is not late before it takes twice as long as those. */
int64_t agg_slow_limit_us(const agg_lane *lane, const agg_node *node, uint32_t n_rows)
{
    const agg_moe_config *config = lane->config;
    const double usual_us = agg_usual_us(node, n_rows);

    if (config->slow_max_us <= 0) return config->peer_timeout_us;
    if (usual_us == 0) return config->slow_max_us;
    const double us = SY_MIN(config->slow_factor * usual_us, (double)config->slow_max_us);
    const int64_t twice_us = 2 * (int64_t)agg_measured_us(node, n_rows);
    return SY_MAX(SY_MAX((int64_t)us, config->slow_min_us), twice_us);
}

/* A bucket that every message fills by the share and every copy empties by one. */
void agg_hedge_earn(agg_lane *lane)
{
    const double most = SY_MAX((double)AGG_HEDGES_BURST, lane->config->hedge_share * HEDGE_WINDOW);

    lane->hedges_left = SY_MIN(lane->hedges_left + lane->config->hedge_share, most);
}

int agg_hedge_spend(agg_lane *lane)
{
    if (lane->hedges_left < 1) return 0;
    lane->hedges_left -= 1;
    return 1;
}

void agg_sleep_until(int64_t at_us)
{
    const struct timespec at = {.tv_sec = at_us / 1000000, .tv_nsec = at_us % 1000000 * 1000};

    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at,
                          NULL); /* woken early: looked again */
}

/* ---- the layer call ---- */

void agg_combine(agg_lane *lane, const sy_moe_call *call)
{
    sy_shard_combine(call->y, &lane->plan, lane->row_out, lane->desc->hidden, call->failed,
                     lane->summed, call->pool, lane->config->kernels);
}

size_t agg_row_bytes(const agg_lane *lane)
{
    return lane->desc->hidden * sy_dtype_bytes(lane->x.dtype);
}

/* Rows as experts get them and *weight of what they give: for gates that scale what goes in, the
 * rows times their weight, and 1. */
static sy_status scale_inputs(agg_lane *lane, sy_moe_call *call, const float **weight)
{
    const size_t hidden = lane->desc->hidden, n = call->n_rows;
    const float *x = call->x;
    float *scaled, *ones;
    sy_status st;

    *weight = lane->weight;
    if (!lane->desc->gate.scales_input) return SY_OK;
    scaled = sy_arena_alloc(&lane->arena, (n * hidden + 1) * sizeof(*scaled));
    ones = sy_arena_alloc(&lane->arena, (n + 1) * sizeof(*ones));
    if (scaled == NULL || ones == NULL) return SY_ENOMEM;
    sy_moe_scale_rows(scaled, x, lane->weight, call->n_rows, hidden);
    for (size_t t = 0; t < n; t++) ones[t] = 1.0f;
    *weight = ones;
    call->x = scaled;
    st = agg_rows_to_send(&lane->x, call, hidden, lane->config->wire_rows, &lane->arena,
                          lane->config->kernels);
    call->x = x;
    return st;
}

static sy_status layer_states(agg_lane *lane, sy_moe_call *call, uint32_t k)
{
    int64_t at_us = sy_clock_us();
    sy_moe_times times = {0};
    const float *weight;
    sy_status st = agg_rows_to_send(&lane->x, call, lane->desc->hidden, lane->config->wire_rows,
                                    &lane->arena, lane->config->kernels);

    if (st != SY_OK) return sy_error_set(&call->error, st, "no memory for %u rows", call->n_rows);
    SY_TRY(agg_route(lane, call, k));
    st = scale_inputs(lane, call, &weight);
    if (st != SY_OK) return sy_error_set(&call->error, st, "no memory for %u rows", call->n_rows);
    sy_moe_lap(&times.route_us, &at_us);
    SY_TRY(sy_plan_build(&lane->plan, lane->expert, weight, call->n_rows, k, lane->desc->n_experts,
                         &call->error));
    lane->summed = sy_arena_calloc(&lane->arena, call->n_rows + 1, sizeof(*lane->summed));
    if (lane->summed == NULL)
        return sy_error_set(&call->error, SY_ENOMEM, "no memory for %u rows", call->n_rows);
    SY_TRY(agg_dispatch(lane, call));
    sy_moe_lap(&times.dispatch_us, &at_us);
    times.compute_us = SY_MIN(lane->compute_us, times.dispatch_us);
    times.dispatch_us -= times.compute_us;
    agg_combine(lane, call); /* what could not be added while other nodes were still computing */
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
    let_go(lane);
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
