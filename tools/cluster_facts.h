/* cluster_facts.h - what the processes of a model say of themselves: their leases in Redis, and the
 * answers of their HTTP ports. What is missing or late is a fact as well, with a reason. Texts are
 * printable: whatever a process sent is escaped when it is taken. */
#ifndef CLUSTER_FACTS_H
#define CLUSTER_FACTS_H

#include "sy_shard_state.h"
#include "tool_redis.h"

#define FACT_TEXT_BYTES  192
#define FACT_DEVICES_MAX 16

typedef struct fact_shard {
    uint32_t layer, expert;
    sy_shard_state state;
    char device[SY_DEVICE_BYTES];
    int wanted;
    uint64_t bytes;
    int percent;
    char reason[FACT_TEXT_BYTES];
} fact_shard;

typedef struct fact_device {
    char name[SY_DEVICE_BYTES];
    uint64_t memory_bytes, memory_max_bytes; /* max 0: no limit, or not told */
} fact_device;

typedef struct fact_shards { /* of an expert node: GET /shards */
    fact_device device[FACT_DEVICES_MAX];
    size_t n_devices;
    fact_shard *shard; /* [n] all that are not absent, sorted by layer and expert */
    size_t n;
    size_t n_in_state[SY_N_SHARD_STATES];
} fact_shards;

typedef struct fact_process {
    sy_member_kind kind;
    sy_member lease;
    int answers;               /* to GET /placement */
    char why[FACT_TEXT_BYTES]; /* why not, of whichever question */
    char hash[20];             /* of the placement in force; "": none */
    int64_t refused, missing;
    int has_shards;     /* it told them */
    fact_shards shards; /* expert nodes only */
} fact_process;

typedef struct cluster_facts {
    fact_process *process; /* [n] nodes, then routers, then aggregators, each by name */
    size_t n;
} cluster_facts;

#define FACT_PLACEMENT 1u
#define FACT_SHARDS    2u
/* The processes that have a lease for the model. what: which questions are asked over HTTP. A
 * process that does not answer is no failure. Ends with facts_free. */
SY_MUST_USE sy_status facts_take(cluster_facts *out, tool_redis *redis, const char *model,
                                 unsigned what, sy_error *err);
void facts_free(cluster_facts *facts);           /* accepts a zeroed one */
const char *fact_kind_name(sy_member_kind kind); /* "expert", "router", "aggregator" */

/* NULL: no such node has a lease. */
const fact_process *facts_node(const cluster_facts *facts, const char *node);
/* NULL: absent there, or the node does not tell. */
const fact_shard *fact_find_shard(const fact_process *node, uint32_t layer, uint32_t expert);
int fact_has_device(const fact_process *node, const char *device); /* announced */
/* The bytes of one expert, as any node that has one tells; 0: nobody does. */
uint64_t facts_shard_bytes(const cluster_facts *facts);

/* Asks aggregators, then nodes, for the model's dimensions and which of its layers have experts.
 * SY_ENOTFOUND: none of them tells. */
SY_MUST_USE sy_status facts_grid(sy_grid *out, tool_redis *redis, const char *model);

/* The parts that read JSON. SY_EDATALOSS: it is not what the contract says. shards: in the end
 * free(out->shard). */
SY_MUST_USE sy_status fact_read_placement(fact_process *out, const char *json);
SY_MUST_USE sy_status fact_read_shards(fact_shards *out, const char *json);
/* Of GET /load and GET /shards. */
SY_MUST_USE sy_status fact_read_grid(sy_grid *out, const char *json);

#endif
