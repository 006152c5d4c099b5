/* agg_targets.h - what is counted of targets that somebody watches: those of experts whose
 * placement has shares, shadows or "!". They live as long as the target is watched, whatever else
 * changes in placement; a target that comes back begins at zero. */
#ifndef AGG_TARGETS_H
#define AGG_TARGETS_H

#include <stdatomic.h>

#include "sy_placement.h"
#include "sy_strbuf.h"

#define AGG_TARGETS_MAX 4096 /* more are served as well, but not counted */

typedef struct agg_target {
    atomic_int refs;
    uint32_t layer, expert;
    char node[SY_NODE_BYTES], device[SY_DEVICE_BYTES];
    _Atomic uint8_t share, shadow, any_weights; /* as the newest view has them */
    atomic_ullong messages, rows, errors; /* answered; errors: no answer, or one that is no use */
    atomic_ullong latency_us;             /* sum over answered messages, from sending to answer */
    atomic_ullong compared_rows, differing_rows; /* against what the client was given */
    _Atomic float max_diff;                      /* largest |a - b| of any element compared */
} agg_target;

typedef struct agg_targets agg_targets; /* of one view: immutable, but for the counters */

/* before: the view's before, or NULL; targets that both have keep their counters. snapshot may be
 * NULL. NULL: no memory. */
agg_targets *agg_targets_make(const agg_targets *before, const sy_snapshot *snapshot);
void agg_targets_free(agg_targets *targets); /* accepts NULL */
/* The counters of target i of the expert's list, or NULL: it is not watched. */
agg_target *agg_targets_find(const agg_targets *targets, uint32_t layer, uint32_t expert,
                             uint32_t i);
size_t agg_targets_count(const agg_targets *targets);
agg_target *agg_targets_at(const agg_targets *targets, size_t i);

#endif
