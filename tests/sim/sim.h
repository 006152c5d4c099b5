/* sim.h - a cluster in one thread, in simulated time, driven by one seed: nodes and aggregators
 * with the real lib/placement, around it a network that delays, drops and reorders, loads that
 * fail, memory that is short, nodes that crash, and an operator who cannot make up his mind.
 *
 * After every event it is checked that
 *   1. an expert that was served is in the memory of some node, unless its holders crashed;
 *   2. a request finds a holder within its grace, however stale what its aggregator knows is;
 * and at the end, some time after the last edit, that
 *   3. exactly what is wanted is resident, and nothing else is in memory. */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>

/* Mistakes that may be planted, to see that they are found. */
enum sim_bug {
    SIM_OLD_ANSWERS = 1 << 0,     /* a node takes answers to questions of an earlier lingering */
    SIM_IGNORES_HASH = 1 << 1,    /* ... or those given under another placement */
    SIM_TAKES_LINGERING = 1 << 2, /* ... or by a node that is letting go itself */
    SIM_BY_THE_CLOCK = 1 << 3,    /* ... or unloads after lingering without asking anybody */
    SIM_EVICTS = 1 << 4,          /* ... or as soon as memory is short */
    SIM_NEVER_ASKS = 1 << 5,      /* ... or never */
    SIM_WANTED_ONLY = 1 << 6,     /* aggregators use no holder but those that placement wants */
    SIM_SPURNS_SHADOWS = 1 << 7,  /* ... or no shadow's copy, even if it is the only one */
    SIM_ONE_TRY = 1 << 8,         /* ... or ask nobody else after "not resident" */
};

#define SIM_TRACE_LINES 48
#define SIM_LINE_BYTES  160

typedef struct sim_report {
    char violation[256]; /* "": none */
    int64_t at_us;
    /* What happened, to see that a run visits what it is about. */
    uint32_t n_events, n_edits, n_refusals, n_loads, n_failed_loads, n_crashes;
    uint32_t n_unloads, n_unloads_for_room, n_answers_of_no_use;
    uint32_t n_requests, n_excused, n_second_tries, n_waits, n_lingering_served;
    char trace[SIM_TRACE_LINES][SIM_LINE_BYTES]; /* the last lines before a violation */
    uint32_t n_trace;                            /* written in all; line i is at i % LINES */
} sim_report;

/* bugs: of sim_bug. with_trace: slower. The same arguments, the same run. */
void sim_run(sim_report *out, uint64_t seed, uint32_t bugs, int with_trace);

#endif
