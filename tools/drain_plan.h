/* drain_plan.h - which fields must change so that a node is not wanted any more, and when it may be
 * stopped. Pure. */
#ifndef DRAIN_PLAN_H
#define DRAIN_PLAN_H

#include "cluster_facts.h"
#include "field_map.h"

typedef struct drain_input { /* borrowed */
    const char *node;
    const cluster_facts *facts;
    sy_grid grid;
    uint64_t shard_bytes; /* 0: not known, and memory is not looked at */
} drain_input;

typedef struct drain_result {
    size_t n_dropped; /* fields where other targets remain */
    size_t n_moved;   /* fields that got another node */
} drain_result;

/* Every field that names the node: it is dropped where another target serves (shares are scaled to
 * 100), else the least loaded device of another node takes its place; where a wildcard spoke, each
 * of its experts gets a field of its own. SY_EUNAVAILABLE: no other node could take them;
 * SY_ELIMIT: none has the memory; SY_ENOMEM. */
SY_MUST_USE sy_status drain_fields(drain_result *out, field_map *map, const drain_input *in,
                                   sy_error *err);

/* 1: nobody needs the node any more: what it still holds lingers, and another node that is wanted
 * has it in memory. Else why: [cap]. A node that is gone is needed by nobody who can wait for it.
 */
int drain_is_safe(const char *node, char *why, size_t cap, const sy_snapshot *now,
                  const cluster_facts *facts);

#endif
