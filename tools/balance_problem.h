/* balance_problem.h - a cluster as sy_balance sees it: which devices take part, how much fits, what
 * may move. And the way back: a plan as fields of the placement. Pure; whatever asks Redis and
 * processes is elsewhere. */
#ifndef BALANCE_PROBLEM_H
#define BALANCE_PROBLEM_H

#include "cluster_facts.h"
#include "field_map.h"
#include "sy_balance.h"

typedef enum balance_hold { /* why an expert is left alone */
                            BALANCE_FREE,
                            BALANCE_CANARY,  /* its value has shares, shadows or "!", or a canary
                                                runs on it */
                            BALANCE_REFUSED, /* its own field is refused: whoever wrote it has to
                                                look at it */
                            BALANCE_CLOSED   /* a node that has it takes no part just now */
} balance_hold;

typedef struct balance_node { /* each one that has a lease or that placement names */
    char name[SY_NODE_BYTES];
    int is_open; /* its devices take part */
    int is_gone; /* what it holds is placed again; only without a lease */
    char why[FACT_TEXT_BYTES + SY_NODE_BYTES]; /* a sentence about one that is not open */
} balance_node;

typedef struct balance_device {
    char node[SY_NODE_BYTES];
    char device[SY_DEVICE_BYTES];
    uint32_t n_held;                         /* shards that placement wants there */
    uint64_t memory_bytes, memory_max_bytes; /* max 0: not limited */
} balance_device;

typedef struct balance_problem {
    balance_node *node; /* [n_nodes] sorted by name */
    size_t n_nodes;
    balance_device *device;          /* [input.n_devices] */
    sy_balance_input input;          /* points into what follows */
    sy_balance_device *input_device; /* [input.n_devices] */
    double *load, *share;
    uint32_t *offset, *holder;
    uint8_t *hold; /* [layers*experts] balance_hold; also input.pinned */
    size_t n_held[BALANCE_CLOSED + 1];
    uint32_t min_replicas; /* nodes that each expert must be on, as was asked for or found out */
    int is_min_found;      /* from the placement */
    size_t n_waiting;    /* wanted on a node that takes part, and neither resident nor failed yet */
    char waits_for[320]; /* the first of them; "" */
} balance_problem;

typedef struct balance_question { /* borrowed during the call */
    const sy_snapshot *snapshot;  /* of the hash as it is */
    const field_map *map;
    const cluster_facts *facts; /* FACT_SHARDS at least */
    const double *rows;         /* [layers*experts] */
    /* Whether a node without a lease has been away for long enough. */
    int (*is_gone)(void *arg, const char *node);
    void *arg;
    const char *const
        *canary; /* [n_canaries] on what one runs: its name: "3/17", "3/1,3/2", stars */
    size_t n_canaries;
    int64_t n_spare;       /* replicas of a layer; -1: an eighth of its experts */
    uint32_t replicas_max; /* of an expert */
    /* Nodes that each expert must be on; -1: as many as placement wants each to be on that may be
     * touched, whether all of them are alive or not. */
    int64_t min_replicas;
    uint64_t shard_bytes; /* 0: not known */
} balance_question;

/* SY_ENOTFOUND: no node takes part, and the text says why the first does not; SY_ENOMEM. *out is to
 * be freed either way. */
SY_MUST_USE sy_status balance_problem_make(balance_problem *out, const balance_question *question,
                                           sy_error *err);
void balance_problem_free(balance_problem *problem); /* accepts a zeroed one */
/* "placed again: ..."; "canary" and the like. */
const char *balance_hold_text(balance_hold hold);

/* Sets the fields of map that the plan changes. What is not placed again stays as it is; and an
 * expert that is left on fewer nodes than the minimum keeps nodes that are gone in its value, so
 * that the next round knows what is missing. *n_fields: how many. Guards the field with a star that
 * spoke for an expert until now. */
SY_MUST_USE sy_status balance_set_fields(field_map *map, size_t *n_fields,
                                         const balance_problem *problem,
                                         const sy_snapshot *snapshot, const sy_balance_plan *plan,
                                         sy_error *err);
/* Whether a change of the plan is written. */
int balance_is_written(const sy_balance_plan *plan, const sy_balance_change *change);

#endif
