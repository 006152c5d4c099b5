/* status_cluster.h - a cluster as Redis and its processes tell it, wherever they run: tiers, nodes,
 * placement, what aggregators think of nodes, canaries, the balancer. */
#ifndef STATUS_CLUSTER_H
#define STATUS_CLUSTER_H

#include "canary_state.h"
#include "cluster_facts.h"

struct json_t;

#define STATUS_DOUBTS_MAX 256
#define STATUS_PAIRS_MAX  32

typedef struct status_doubt { /* an aggregator does not use a node or a router as it could */
    char aggregator[SY_NODE_BYTES], peer[SY_NODE_BYTES], why[FACT_TEXT_BYTES];
} status_doubt;

typedef struct status_pair {
    char name[64], value[FACT_TEXT_BYTES];
} status_pair;

typedef struct status_cluster {
    char model[128];
    cluster_facts facts;
    status_doubt doubt[STATUS_DOUBTS_MAX];
    size_t n_doubts;
    canary_list canaries;
    char balancer[128];                 /* "HOST:PID"; "": none runs */
    status_pair pair[STATUS_PAIRS_MAX]; /* what it says of itself */
    size_t n_pairs;
    size_t n_well; /* processes that serve and answer */
} status_cluster;

/* Ends with status_cluster_free, whatever comes out. */
SY_MUST_USE sy_status status_cluster_take(status_cluster *out, tool_redis *redis, const char *model,
                                          sy_error *err);
void status_cluster_free(status_cluster *cluster); /* accepts a zeroed one */
/* The hash that all have in force; "": they differ, or there is none. */
const char *status_cluster_hash(const status_cluster *cluster);

void status_cluster_print(const status_cluster *cluster);
/* The caller owns it; NULL: no memory. */
struct json_t *status_cluster_json(const status_cluster *cluster);

#endif
