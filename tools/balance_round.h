/* balance_round.h - one look at a cluster, what would make it more even, and, if wanted, the edit
 * that does. */
#ifndef BALANCE_ROUND_H
#define BALANCE_ROUND_H

#include "balance_load.h"
#include "balance_problem.h"
#include "tool_place.h"

typedef struct balance_options {
    place_options where;
    int dry_run, watch, json, since_start;
    int64_t interval_s, sample_s, dead_after_s;
    int64_t budget_mb, spare, replicas_max, rows_min;
    const char *min_text; /* --min-replicas as it is written */
    int64_t replicas_min; /* -1: found out */
    double min_gain, threshold;
} balance_options;

typedef struct balance_round { /* zeroed: nothing looked at */
    const balance_options *options;
    place place;
    field_map *map;
    sy_snapshot *snapshot;
    cluster_facts facts;
    char **canary; /* [n_canaries] */
    size_t n_canaries;
    double *rows; /* [layers*experts] */
    double n_rows;
    balance_problem problem;
    sy_balance_plan plan;
    size_t n_fields;
    int is_applied;
    char entry_id[TOOL_ENTRY_ID_BYTES];
    char why[480]; /* a sentence: why something moves, or nothing does */
} balance_round;

/* Redis, placement, leases and shards as they are now. A round is ended with balance_round_free
 * whatever came of it. */
SY_MUST_USE sy_status balance_round_look(balance_round *round, const balance_options *options,
                                         sy_error *err);
/* What should move, by rows (set in round->rows and n_rows before; it is freed with the round). */
SY_MUST_USE sy_status balance_round_plan(balance_round *round,
                                         int (*is_gone)(void *arg, const char *node), void *arg,
                                         sy_error *err);
/* Writes it, if there is anything to write. author: NULL: the user. SY_EEXISTS: somebody changed
 * one of the fields meanwhile. */
SY_MUST_USE sy_status balance_round_apply(balance_round *round, const char *author, sy_error *err);
void balance_round_free(balance_round *round);

/* ---- what is printed ---- */
/* "every expert on 2 nodes or more, as the placement has it (--min-replicas auto)": which minimum
 * is in force, and where from. */
void balance_minimum_text(char *out, size_t cap, const balance_round *round);
void balance_print(const balance_round *round); /* a table, for people */
/* One JSON object on one line. number 0: a single round. Returns the exit code. */
int balance_print_json(const balance_round *round, uint64_t number);
/* The same of a round that came to nothing: why is a sentence. */
int balance_print_json_nothing(uint64_t number, const char *why);

#endif
