/* plan_report.h - what an edit would do to each device: experts, load, memory, and what would go
 * wrong. Pure. */
#ifndef PLAN_REPORT_H
#define PLAN_REPORT_H

#include "cluster_facts.h"

typedef struct plan_device {
    char node[SY_NODE_BYTES], device[SY_DEVICE_BYTES];
    size_t n_before, n_after;                /* experts wanted there, shadows included */
    double load_before, load_after;          /* part of all rows, 0 to 1; shadows do not count */
    size_t n_loads;                          /* shards that would be loaded */
    uint64_t memory_bytes, memory_max_bytes; /* as the node tells; max 0: not told */
} plan_device;

typedef struct plan_report {
    plan_device *device; /* [n_devices], by name */
    size_t n_devices;
    size_t n_experts; /* whose targets differ */
    size_t n_loads, n_drops;
    uint64_t shard_bytes; /* 0: not known */
    uint64_t load_bytes;
    int has_load; /* the loads are of rows that were computed, not of counts of experts */
    double worst_before, worst_after; /* the fullest device's load over the average; 1 is even */
    char (*warning)[256];             /* [n_warnings] */
    size_t n_warnings;
} plan_report;

typedef struct plan_input { /* all borrowed */
    const sy_snapshot *before, *after;
    const cluster_facts *facts;
    const uint64_t *rows; /* [layers * experts], or NULL: each expert counts the same */
    uint64_t shard_bytes; /* 0: taken from the facts */
} plan_input;

/* SY_ENOMEM. Ends with plan_report_free. */
SY_MUST_USE sy_status plan_report_make(plan_report *out, const plan_input *in, sy_error *err);
void plan_report_free(plan_report *report); /* accepts a zeroed one */

#endif
