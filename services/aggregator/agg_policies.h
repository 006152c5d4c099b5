/* agg_policies.h - the departures from exactness that an answer tells its client of, as texts. */
#ifndef AGG_POLICIES_H
#define AGG_POLICIES_H

#include "sy_precision_text.h"

enum { AGG_POLICIES_MAX = 6 + 2 * SY_PRECISION_POLICIES_MAX };

typedef struct agg_policies {
    uint32_t n; /* 0: the answer is exact */
    char text[AGG_POLICIES_MAX][SY_PRECISION_POLICY_BYTES];
    const char *list[AGG_POLICIES_MAX]; /* points into text: not to be copied */
} agg_policies;

/* experts_per_token: as asked for, 0 or the model's top_k: exact. The others count token rows of a
 * layer. */
void agg_policies_list(agg_policies *out, uint32_t experts_per_token, uint32_t top_k,
                       uint32_t degraded_rows, uint32_t other_weights_rows);
/* Once, after that: how weights are held and computed with. Experts are named apart where they are
 * not as the trunk is: "expert_weights=q4". */
void agg_policies_add_precision(agg_policies *list, sy_precision trunk, sy_precision experts);
/* Once, after that: "arithmetic=bf16-mma/1:sm_90" where experts are not computed as CPUs with
 * that precision would. */
void agg_policies_add_arithmetic(agg_policies *list, const char *arithmetic, sy_precision experts);
/* Once, after that: "trunk_arithmetic=bf16-mma/1:sm_90" where the trunk is not computed as CPUs
 * with that precision would. */
void agg_policies_add_trunk(agg_policies *list, const char *arithmetic, sy_precision trunk);
/* Once, after that: "wire_rows=bf16" where rows are rounded on their way; f32 is exact. */
void agg_policies_add_wire_rows(agg_policies *list, sy_dtype wire_rows);

#endif
