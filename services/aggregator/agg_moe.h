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

typedef struct agg_moe_config {
    const sy_model *model;
    const sy_kernels *kernels;
    agg_peers *peers;
    sy_dtype wire_rows;        /* SY_BF16: rows travel rounded to that; else as floats */
    const sy_router *inproc;   /* route here instead of asking a replica; NULL: ask */
    const sy_router *fallback; /* route here when no replica answers, with the same bits; or NULL */
    int64_t peer_timeout_us;   /* one attempt at a peer that nobody else can stand in for */
    /* A message that has taken slow_factor times what is usual for its size, and at least
     * slow_min_us, is sent to another holder as well. With hedging the first answer wins; without,
     * the first node is given up. Where there is no other holder the peer has peer_timeout_us.
     * Past slow_max_us every message is late, unless messages of its size have been seen to take
     * more than half as long there; 0: none is before peer_timeout_us. */
    int hedge;
    double slow_factor;
    int64_t slow_min_us, slow_max_us;
    double hedge_share; /* of messages, over the last thousand or so; more are not hedged */
    int64_t silent_us;  /* a suspect peer from which nothing is heard for so long is given up */
    int64_t grace_us;   /* how long a layer waits for a holder or router that was here just now */
    double
        shadow_share; /* of the messages that shadows and the other sides of shares get copies of */
} agg_moe_config;

typedef struct agg_moe_metrics {
    sy_metric *route, *dispatch, *compute, *combine; /* histograms, a layer call */
    sy_metric *retries, *route_retries, *failures, *hedges, *hedge_wins, *fallbacks, *graces;
    sy_metric *degraded_rows;
    sy_metric *rows_shared, *rows_bytes; /* asked of nodes, by the way they take */
} agg_moe_metrics;

typedef struct agg_slot { /* one message of the fan-out, by the same index */
    agg_node *node;
    uint32_t n_rows;
    uint32_t *row;  /* the plan's rows, in message order */
    agg_loan *loan; /* where its rows and those of its answer are; NULL: in the messages */
    sy_buf *wide;   /* the rows of its answer as floats, when they came as bf16; else NULL */
    int64_t sent_us, limit_us;
    int64_t look_us; /* when it is looked at again, if it is still open */
    int open;        /* nothing has been taken from it, nor has it been given up */
    int is_copy;     /* sent because another one was late */
    int late;        /* others have been asked for its rows as well */
    int held_back;   /* late, but past the share of hedges: it got more time */
    int excused;     /* this process was held up meanwhile: it got more time */
} agg_slot;

typedef struct agg_lane {
    const agg_moe_config *config;
    const sy_model_desc *desc;
    agg_moe_metrics metrics;
    sy_arena arena; /* of one layer call */
    sy_fanout *fanout;
    sy_plan plan;
    agg_view *view;         /* of the call in progress: the newest one that it has taken */
    struct agg_held *held;  /* older ones, kept to the end of the call: in the arena */
    agg_slot *slot;         /* [AGG_SLOTS_MAX] */
    int64_t *seen_us;       /* [layers*experts]: when the expert last answered here; 0: never, -1: a
                               wait for it was in vain since */
    int64_t router_seen_us; /* the same for routers */
    double hedges_left;     /* of the share; whole ones may be spent */
    struct agg_shadow *shadow; /* copies on their way; agg_shadow.h */
    sy_rows x;                 /* of the call in progress: its rows as they travel */
    /* Of the call in progress, in the arena. */
    uint16_t *expert;      /* [T,K] */
    float *weight;         /* [T,K] */
    const float **row_out; /* [R]: NULL until it has been answered */
    uint32_t *summed;      /* [T]: terms of its output that call->y holds */
    agg_node **row_by;     /* [R]: who answered it */
    int32_t *row_node;     /* [R]: whom to ask now, an index in the view; -1: nobody */
    int32_t *row_slot;     /* [R]: the message that it waits for; -1: none, so somebody is asked */
    uint8_t *row_hedged;   /* [R]: 1: an earlier message may still bring it */
    uint8_t *tried;        /* [groups, nodes of the view]: 0: not asked; 1: its connection was lost,
                              so it may be asked once more when it is back; 2: not again */
    int64_t *gone_us;      /* [groups]: when a holder turned out to have gone; 0: none did */
    uint32_t *local;       /* [T]: place of a token in the message being built */
    uint32_t n_slots;
    int64_t grace_until_us; /* of the call; 0: it has not waited yet */
    int64_t compute_us;     /* the longest of the nodes' own times */
    sy_error last_error;    /* why the latest attempt failed */
} agg_lane;

SY_MUST_USE sy_status agg_lane_open(agg_lane *lane, const agg_moe_config *config, sy_error *err);
void agg_lane_close(agg_lane *lane); /* before the peers are closed */
sy_moe agg_lane_ops(agg_lane *lane); /* one thread at a time */

#endif
