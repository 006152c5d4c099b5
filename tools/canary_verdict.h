/* canary_verdict.h - whether a canary goes on, takes its next step, or goes back. Pure. */
#ifndef CANARY_VERDICT_H
#define CANARY_VERDICT_H

#include "sy_base.h"

typedef enum canary_phase {
    CANARY_LOAD,
    CANARY_SHADOW,
    CANARY_SHARE,
    CANARY_N_PHASES
} canary_phase;
typedef enum canary_wish { CANARY_NO_WISH, CANARY_WISH_PROMOTE, CANARY_WISH_ABORT } canary_wish;
typedef enum canary_verdict { CANARY_GOES_ON, CANARY_NEXT, CANARY_BACK } canary_verdict;

const char *canary_phase_name(canary_phase phase); /* "load", "shadow", "share" */

typedef struct canary_limits {
    uint64_t max_errors;
    double max_latency_ratio, max_diff;
    int64_t latency_slack_us; /* so much more is noise, whatever the ratio */
    uint64_t min_rows;
    int64_t for_us;      /* how long the share is watched */
    int64_t patience_us; /* how long it is loaded, and how long rows are waited for */
} canary_limits;

typedef struct canary_counts { /* of the phase, summed over fields and aggregators */
    uint64_t messages, rows, errors, latency_us;       /* of the new target */
    uint64_t old_messages, old_errors, old_latency_us; /* of the targets before */
    uint64_t compared_rows, differing_rows;
    double max_diff;             /* infinite: not a number */
    size_t n_aggregators;        /* that answered */
    size_t n_silent;             /* that did not */
    size_t n_wanted, n_resident; /* (aggregator, field) pairs: that know the target; it is usable */
    char refused[256];           /* why an aggregator will never use it; "" */
    char failed[256];            /* why the node could not load it; "" */
    char silent[256];            /* who does not answer, and why; "" */
} canary_counts;

#define CANARY_MESSAGES_MIN 100 /* of each side, before their latencies are compared */

/* elapsed_us: since the phase began. why: [cap], a sentence without its end: what it waits for, or
 * why it goes back. */
canary_verdict canary_judge(char *why, size_t cap, canary_phase phase, const canary_limits *limits,
                            const canary_counts *counts, int64_t elapsed_us);

/* "90", "90s", "10m", "2h", "500ms". Returns 0 when it is none, or more than a year. */
int canary_duration(int64_t *out_us, const char *text);

#endif
