/* agg_dispatch.h - between the parts of a layer call: agg_moe.c (the call), agg_route.c (ROUTE),
 * agg_dispatch.c (DISPATCH: messages and answers), agg_choose.c (whom to ask), agg_missing.c (what
 * nobody answers for). For tests too; nobody else includes it. */
#ifndef AGG_DISPATCH_H
#define AGG_DISPATCH_H

#include "agg_moe.h"

enum {
    AGG_SLOTS_MAX = 512, /* messages of a layer call, copies and further attempts among them */
    AGG_STEP_US = 5000,  /* between looks at what has changed, while rows have no holder */
    AGG_RECENT_US = 1000 * 1000, /* a holder or router that was here so lately may be back soon */
    AGG_HEDGES_BURST = 16        /* that need not be earned: a node may stall in a quiet system */
};

/* ---- agg_route.c, agg_dispatch.c: the states ---- */
/* Fills lane->expert and lane->weight for the rows that have not failed. */
sy_status agg_route(agg_lane *lane, sy_moe_call *call, uint32_t k);
/* The exchange with the expert tier for a plan that is built: fills lane->row_out. Tokens that have
 * no answer at the end are marked in call->failed, or, if they may degrade, have lost the expert
 * from the plan. */
sy_status agg_dispatch(agg_lane *lane, sy_moe_call *call);

/* ---- agg_moe.c: what both states need ---- */
/* Takes the newest view, if there is a newer one: 1. The old one is kept until the call ends. */
int agg_lane_renew_view(agg_lane *lane);
/* When a message of n_rows rows to the node is late: how long after it was sent. */
int64_t agg_slow_limit_us(const agg_lane *lane, const agg_node *node, uint32_t n_rows);
void agg_hedge_earn(agg_lane *lane); /* a message that is no copy was sent */
/* 1: one more copy may be sent, and is paid for. */
int agg_hedge_spend(agg_lane *lane);
void agg_sleep_until(int64_t at_us);
/* COMBINE, as far as the rows in lane->row_out allow: between answers, and once more at the end. */
void agg_combine(agg_lane *lane, const sy_moe_call *call);

size_t agg_row_bytes(const agg_lane *lane); /* of a row of this call as it travels */

/* ---- agg_choose.c ---- */
uint32_t agg_shard_of(const agg_lane *lane, const sy_moe_call *call, uint32_t group);
uint8_t *agg_tried(const agg_lane *lane, uint32_t group); /* [nodes of the view] */
/* The position of a node in the lane's view; -1: it has left. */
int32_t agg_position(const agg_lane *lane, const agg_node *node);
/* The expert's targets, NULL when it has none, and their nodes' positions. */
const sy_target_list *agg_targets_of(const agg_lane *lane, uint32_t shard, const int32_t **node);
int agg_has_shares(const sy_target_list *list);
/* A node for rows of this group: a wanted one, then any whose memory has the shard, then suspect
 * ones. -1: nobody who has not been tried. */
int32_t agg_choose_node(const agg_lane *lane, const sy_moe_call *call, uint32_t group,
                        uint64_t request);
typedef struct agg_assigned { /* rows */
    uint32_t unanswered;
    uint32_t to_send; /* of these: have a node in lane->row_node now */
    uint32_t stuck;   /* of these: wait for no message, and have nobody to ask */
} agg_assigned;
/* Chooses a node for every row that waits for no message. */
agg_assigned agg_assign_rows(agg_lane *lane, const sy_moe_call *call);
/* Makes tried[] for the view that has just replaced `before`. SY_ENOMEM. */
sy_status agg_carry_tried(agg_lane *lane, const agg_view *before);

/* ---- agg_missing.c ---- */
/* Until when it is worth waiting for a holder of some row that has nobody to ask; 0: not at all. */
int64_t agg_grace_until_us(agg_lane *lane, const sy_moe_call *call);
/* Ends the rows that have no answer: leaves the expert out where that is allowed, else fails. */
void agg_end_unanswered(agg_lane *lane, sy_moe_call *call);

/* ---- messages, for agg_shadow.c as well ---- */
/* Encodes a request for these rows of the plan, which are ascending. loan: where the tokens go,
 * NULL: into the frame. SY_ENOMEM. */
SY_MUST_USE sy_status agg_encode_rows(agg_lane *lane, const sy_moe_call *call, uint64_t id,
                                      const uint32_t *row, uint32_t n_rows, const agg_loan *loan,
                                      sy_frame *frame);
/* The rows of the lane's messages and answers are not read any more. */
void agg_end_loans(agg_lane *lane);

#endif
