/* agg_peers.h - whom the aggregator knows: router replicas and expert nodes, by their leases and
 * their own streams, and where placement wants each expert. Readers take an immutable view; only
 * the control thread makes new ones. */
#ifndef AGG_PEERS_H
#define AGG_PEERS_H

#include <stdatomic.h>

#include "agg_share.h"
#include "agg_suspect.h"
#include "sy_control.h"
#include "sy_kernels.h"
#include "sy_model.h"
#include "sy_rpc.h"
#include "sy_wire.h"

/* Why a node, or its copy of one shard, is not used for what it holds. */
typedef enum agg_refusal {
    AGG_FINE,
    AGG_OTHER_STRUCTURE,  /* of the model: never used, whatever placement says */
    AGG_OTHER_NAME,       /* another node answers at its address: never used either */
    AGG_OTHER_CHECKPOINT, /* the rest: only targets that are marked "!" in placement */
    AGG_OTHER_ARITHMETIC,
    AGG_OTHER_CONTENT, /* the shard's bytes are not those of this checkpoint */
    AGG_OTHER_PROBE    /* the same bytes give another output there */
} agg_refusal;
const char *agg_refusal_text(agg_refusal why); /* "its weights differ from this checkpoint's" */

typedef struct agg_node {
    char name[SY_NODE_BYTES];
    char address[SY_ADDRESS_BYTES];
    sy_peer *peer;
    agg_share *share; /* NULL: its rows go through the connection */
    atomic_int refs;
    agg_suspicion suspicion; /* agg_suspect.h */
    atomic_int is_draining;  /* its lease says that it is about to stop */
    /* Expert nodes only, written by the loop thread from the node's Watch stream. */
    uint32_t n_shards;
    _Atomic uint8_t
        *shard_state; /* [layers*experts] of sy_shard_state; all ABSENT while the stream is down */
    _Atomic uint64_t *content, *probe; /* [layers*experts]: what the node announced; 0: nothing */
    _Atomic uint8_t *refused;      /* [layers*experts] of agg_refusal: of this copy; agg_verify.h */
    atomic_uint n_refused;         /* of them */
    _Atomic uint8_t refused_whole; /* of agg_refusal */
    _Atomic uint8_t refused_lease; /* the same by its lease: shown until its stream has said more */
    atomic_int known;              /* the full state has come since the stream went up */
    atomic_uint queue_length;      /* as the node last said, over all devices */
    struct agg_peers *peers;
    struct agg_node *next_dead;     /* nobody refers to it: waits for the control thread */
    _Atomic int64_t logged_us;      /* keeps what is logged of its state within bounds */
    atomic_uint n_logged;           /* since then */
    uint64_t structure, checkpoint; /* loop thread: as last said, 0: not said */
    char arithmetic[SY_NODE_BYTES]; /* loop thread; "": not said */
} agg_node;

typedef struct agg_view { /* immutable, reference-counted */
    atomic_int refs;
    sy_snapshot *snapshot; /* NULL before the first */
    uint32_t n_nodes, n_routers;
    agg_node **node;
    agg_node **router;
    uint32_t *first_target;      /* [lists+2] into target_node, by sy_snapshot_list_of */
    int32_t *target_node;        /* index of the target's node, -1: not known */
    struct agg_targets *targets; /* counters of watched targets; agg_targets.h */
} agg_view;

typedef struct agg_peers agg_peers;

SY_MUST_USE sy_status agg_peers_open(agg_peers **out, const sy_model *model,
                                     size_t message_bytes_max, sy_error *err);
void agg_peers_close(
    agg_peers *peers); /* closes every peer; before the loop is closed; accepts NULL */
void agg_peers_set_loop(agg_peers *peers, sy_loop *loop); /* before members arrive */
/* Before members arrive: with each peer on this host up to bytes_max of memory is shared, for
 * messages of at least bytes_min. Without this call none is. */
void agg_peers_share(agg_peers *peers, size_t bytes_max, size_t bytes_min);
/* Begins to check what nodes hold, before members arrive. checkpoint_hash: this process' own, 0:
 * not known. read_weights: against the model's files, one expert after the other, at idle priority;
 * 0: holders are only compared with each other. precision: what nodes are to hold weights as and
 * compute with; arithmetic: what they are to announce, borrowed: sy_arithmetic_name of the
 * precision, or another, whose outputs are then compared among holders. Without this call no copy
 * is refused, and a node's arithmetic is to be the exact one. */
SY_MUST_USE sy_status agg_peers_verify(agg_peers *peers, uint64_t checkpoint_hash,
                                       const char *arithmetic, const sy_kernels *kernels,
                                       sy_precision precision, int read_weights, sy_error *err);
/* Control thread. A peer whose lease is gone is kept as long as its own stream is up. */
void agg_peers_members(agg_peers *peers, sy_member_kind kind, const sy_member *member, size_t n);
void agg_peers_placement(agg_peers *peers, sy_snapshot *snapshot);
/* Now and then: drops peers whose lease is gone and whose stream is down, closes those that nobody
 * refers to any more, and takes in what has been found out about copies. */
void agg_peers_sweep(agg_peers *peers);

agg_view *agg_peers_view(agg_peers *peers); /* any thread; with a reference */
void agg_view_unref(agg_view *view);        /* any thread; accepts NULL */

/* 1 when the node's stream is up, the shard is in its memory, and nothing is known against it.
 * any_weights: what the target's "!" accepts is not held against it. */
int agg_node_has(const agg_node *node, uint32_t shard, int any_weights);
/* What is held against the node's copy; AGG_FINE: nothing. */
agg_refusal agg_node_refusal(const agg_node *node, uint32_t shard);
/* Rows sent to each expert since the start, [layers*experts]: what the balancer works with. Any
 * thread, relaxed. */
_Atomic uint64_t *agg_peers_rows(agg_peers *peers);
int64_t agg_peers_since_us(const agg_peers *peers); /* wall time of that start */
/* 1: every expert has a usable holder and a router is up; else why is a sentence. Any thread but
 * the loop's. */
int agg_peers_ready(agg_peers *peers, int need_router, sy_strbuf *why);

#endif
