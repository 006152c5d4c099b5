/* agg_peers.h - whom the aggregator knows: router replicas and expert nodes, by their leases and
 * their own streams, and where placement wants each expert. Readers take an immutable view; only
 * the control thread makes new ones. */
#ifndef AGG_PEERS_H
#define AGG_PEERS_H

#include <stdatomic.h>

#include "sy_control.h"
#include "sy_model.h"
#include "sy_rpc.h"
#include "sy_wire.h"

typedef struct agg_node {
    char name[SY_NODE_BYTES];
    char address[SY_ADDRESS_BYTES];
    sy_peer *peer;
    atomic_int refs;
    /* Expert nodes only, written by the loop thread from the node's Watch stream. */
    uint32_t n_shards;
    _Atomic uint8_t
        *shard_state; /* [layers*experts] of sy_shard_state; all ABSENT while the stream is down */
    atomic_int known; /* the full state has come since the stream went up */
    _Atomic int64_t suspect_until_us; /* did not answer in time: others are asked first */
    struct agg_peers *peers;
} agg_node;

typedef struct agg_view { /* immutable, reference-counted */
    atomic_int refs;
    sy_snapshot *snapshot; /* NULL before the first */
    uint32_t n_nodes, n_routers;
    agg_node **node;
    agg_node **router;
    uint32_t *first_target; /* [layers*experts+1] into target_node */
    int32_t *target_node;   /* index of the target's node, -1: not known */
} agg_view;

typedef struct agg_peers agg_peers;

SY_MUST_USE sy_status agg_peers_open(agg_peers **out, const sy_model *model,
                                     size_t message_bytes_max, sy_error *err);
void agg_peers_close(
    agg_peers *peers); /* closes every peer; before the loop is closed; accepts NULL */
void agg_peers_set_loop(agg_peers *peers, sy_loop *loop); /* before members arrive */
/* Control thread. A peer whose lease is gone is kept as long as its own stream is up. */
void agg_peers_members(agg_peers *peers, sy_member_kind kind, const sy_member *member, size_t n);
void agg_peers_placement(agg_peers *peers, sy_snapshot *snapshot);
void agg_peers_sweep(
    agg_peers *peers); /* drops peers whose lease is gone and whose stream is down */

agg_view *agg_peers_view(agg_peers *peers); /* any thread; with a reference */
void agg_view_unref(agg_view *view);        /* may close peers: not from the loop's callbacks */

/* 1 when the node's stream is up and the shard is in its memory. */
int agg_node_has(const agg_node *node, uint32_t shard);
/* 1: every expert has a usable holder and a router is up; else why is a sentence. Any thread but
 * the loop's. */
int agg_peers_ready(agg_peers *peers, int need_router, sy_strbuf *why);

#endif
