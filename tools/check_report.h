/* check_report.h - everything that is wrong with a placement and with those who follow it. Pure. */
#ifndef CHECK_REPORT_H
#define CHECK_REPORT_H

#include "cluster_facts.h"

typedef struct check_finding {
    const char *kind; /* "refused", "no target", "unknown node", ...: static, stable for machines */
    char subject[128]; /* a field, a node, a process, "3/17 on expert-a" */
    char why[320];
} check_finding;

typedef struct check_report {
    check_finding *finding;               /* [n] */
    size_t n, n_more;                     /* n_more: found, and not kept */
    size_t n_in_state[SY_N_SHARD_STATES]; /* of all nodes' shards */
    size_t n_processes, n_switched;       /* that have the placement in force */
} check_report;

/* now: the placement as a server that starts would take it. SY_ENOMEM. Ends with free(finding). */
SY_MUST_USE sy_status check_report_make(check_report *out, const sy_snapshot *now,
                                        const cluster_facts *facts, sy_error *err);

#endif
