/* agg_shadow.h - copies of rows for targets that are only compared: shadows, and the other sides of
 * shares. They go out when the rows have their answers, on a thread of their own, so a request
 * never waits for one. What is counted is in agg_targets.h.
 *
 * A shadow is held against what clients were given. Between the sides of shares, the difference is
 * counted for the side that is not the one with the largest share: it is the one on trial. */
#ifndef AGG_SHADOW_H
#define AGG_SHADOW_H

#include "agg_moe.h"

enum { AGG_COPIES_MAX = 64, AGG_COPIES_BYTES_MAX = 64 << 20 }; /* under way; more are skipped */

typedef struct agg_shadow agg_shadow; /* of one lane; its thread starts with the first copy */

/* config is borrowed. NULL: no memory. */
agg_shadow *agg_shadow_open(const agg_moe_config *config, uint32_t hidden);
void agg_shadow_close(agg_shadow *shadow); /* gives up what is under way; accepts NULL */
/* Copies what is to be compared of a layer call whose rows have been answered. The lane's thread.
 * Without memory, and past the limits, copies are skipped and counted. */
void agg_shadow_copy(agg_shadow *shadow, agg_lane *lane, const sy_moe_call *call);

#endif
