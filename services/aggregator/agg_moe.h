/* agg_moe.h - the MoE block over the router and expert tiers: one layer call, in the states ROUTE,
 * DISPATCH, COMBINE. A lane is one calling thread's scratch; lanes share nothing but the peers, so
 * many layers run at once. */
#ifndef AGG_MOE_H
#define AGG_MOE_H

#include "agg_peers.h"
#include "sy_metrics.h"
#include "sy_moe.h"
#include "sy_plan.h"
#include "sy_route.h"

/* A peer that kept silent is asked only when nobody else is left, for this long. */
#define AGG_SUSPECT_US (2 * 1000 * 1000)

typedef struct agg_moe_config {
    const sy_model *model;
    const sy_kernels *kernels;
    agg_peers *peers;
    const sy_router *inproc; /* route here instead of asking a replica; NULL: ask */
    int64_t peer_timeout_us; /* one attempt at one peer; then another is tried */
} agg_moe_config;

typedef struct agg_moe_metrics {
    sy_metric *route, *dispatch, *compute, *combine; /* histograms, a layer call */
    sy_metric *retries, *failures;
} agg_moe_metrics;

typedef struct agg_slot_rows { /* what one message of the fan-out carried */
    uint32_t node;             /* index in the view */
    uint32_t n_rows;
    uint32_t *row; /* the plan's rows, in message order */
} agg_slot_rows;

typedef struct agg_lane {
    const agg_moe_config *config;
    const sy_model_desc *desc;
    agg_moe_metrics metrics;
    sy_arena arena; /* of one layer call */
    sy_fanout *fanout;
    sy_plan plan;
    agg_view *view; /* of the call in progress */
    /* Of the call in progress, in the arena. */
    uint16_t *expert;      /* [T,K] */
    float *weight;         /* [T,K] */
    const float **row_out; /* [R]: NULL until it has been answered */
    int32_t *row_node;     /* [R]: whom to ask now, -1: nobody */
    uint8_t *tried;        /* [groups, nodes] */
    uint32_t *local;       /* [T]: place of a token in the message being built */
    uint32_t n_slots;
    agg_slot_rows *slot; /* [nodes] */
    int64_t compute_us;  /* the longest of the nodes' own times, this round */
    sy_error last_error; /* why the latest attempt failed */
} agg_lane;

SY_MUST_USE sy_status agg_lane_open(agg_lane *lane, const agg_moe_config *config, sy_error *err);
void agg_lane_close(agg_lane *lane);
sy_moe agg_lane_ops(agg_lane *lane); /* one thread at a time */

/* The exchange with the expert tier for a plan that is built: fills lane->row_out. Tokens that have
 * no answer at the end are marked in call->failed with the reason in call->error. */
sy_status agg_dispatch(agg_lane *lane, sy_moe_call *call);
/* Fills lane->expert and lane->weight for the rows that have not failed. */
sy_status agg_route(agg_lane *lane, sy_moe_call *call, uint32_t k);

#endif
