/* expert_ask.h - other expert nodes: where they are, and what they hold, by asking them. Knows the
 * leases and the Watch call; nothing of this node's own shards. */
#ifndef EXPERT_ASK_H
#define EXPERT_ASK_H

#include "sy_control.h"
#include "sy_model.h"
#include "sy_shard.h"
#include "sy_shard_state.h"

enum { EXPERT_PEERS_MAX = 256, EXPERT_ARITHMETIC_BYTES = 32 };

/* What a node has said of itself; immutable, reference-counted. */
typedef struct expert_answer {
    char node[SY_NODE_BYTES];
    char address[SY_ADDRESS_BYTES];
    int64_t asked_us; /* when the question was sent */
    uint64_t placement_hash, checkpoint_hash;
    char arithmetic[EXPERT_ARITHMETIC_BYTES]; /* whose bits its outputs have */
    uint32_t layers, experts;
    uint8_t *state;              /* [layers*experts] of sy_shard_state */
    sy_shard_identity *identity; /* [layers*experts]; zero: not said */
} expert_answer;

typedef struct expert_peers expert_peers;

/* self: this node's name, which is left out of all lists; borrowed, as is the model. */
SY_MUST_USE sy_status expert_peers_open(expert_peers **out, const sy_model *model, const char *self,
                                        sy_error *err);
void expert_peers_close(expert_peers *peers); /* accepts NULL */
/* The leases of expert nodes, whole. Control thread. */
void expert_peers_members(expert_peers *peers, const sy_member *member, size_t n);
/* 1: the node has a lease; its address is copied to out, [SY_ADDRESS_BYTES]. Any thread. */
int expert_peers_address(expert_peers *peers, const char *node, char *out);

/* Asks one node now: its first, full state. Blocks until deadline_us at most; any thread but the
 * loop's. SY_ENOTFOUND: no lease; SY_EPRECONDITION: whoever answers there is another node, or has
 * another model; else as the call ended. */
SY_MUST_USE sy_status expert_ask(expert_answer **out, expert_peers *peers, const char *node,
                                 int64_t deadline_us, sy_error *err);
void expert_answer_unref(expert_answer *answer); /* accepts NULL */

/* The nodes that have the shard in memory, resident before lingering, of the checkpoint with this
 * hash: by answers no older than age_us; nodes that gave none lately are asked now. At most max
 * answers with a reference each; returns how many. Blocks, at first until there is a list of leases
 * or 2 s have passed; any thread but the loop's. */
size_t expert_peers_holders(expert_peers *peers, expert_answer **out, size_t max, uint32_t layer,
                            uint32_t expert, uint64_t checkpoint_hash, int64_t age_us);

#endif
