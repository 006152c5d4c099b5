/* agg_peers_internal.h - between agg_node.c (one peer, and what it says of itself) and agg_peers.c
 * (all of them, and views). Nobody else includes it. */
#ifndef AGG_PEERS_INTERNAL_H
#define AGG_PEERS_INTERNAL_H

#include <pthread.h>

#include "agg_peers.h"
#include "agg_verify.h"
#include "sy_metrics.h"

typedef struct agg_entry { /* a node and whether its lease is there */
    agg_node *node;
    int leased;
    sy_member *waiting; /* another process of this name, until this one has gone; or NULL */
} agg_entry;

enum { AGG_MEMBERS_MAX = 1024 };

struct agg_peers {
    sy_loop *loop;
    const sy_model *model;
    sy_grid grid;
    size_t message_bytes_max;
    size_t shared_bytes_max, shared_bytes_min; /* 0, 0: no memory is shared */
    char model_name[SY_WIRE_NAME_MAX];
    uint64_t structure_hash, checkpoint_hash;
    const char *arithmetic; /* what nodes are to announce */
    sy_frame watch_request;
    agg_verify *verify; /* NULL: copies are not judged */
    _Atomic uint64_t *rows;
    int64_t since_us;
    sy_metric *cutover, *view_build, *refused_nodes, *refused_shards;
    _Atomic(agg_node *) dead; /* linked by next_dead */
    pthread_mutex_t mutex;    /* guards view */
    agg_view *view;
    /* Control thread only. Entries are sorted by name. */
    agg_entry entry[2][AGG_MEMBERS_MAX]; /* [0] nodes, [1] routers */
    size_t n_entries[2];
    _Atomic int64_t twin_logged_us;
    sy_snapshot *snapshot;
};

/* NULL: it cannot be used, as the log says. With one reference. */
agg_node *agg_node_open(agg_peers *peers, sy_member_kind kind, const sy_member *member);
/* The last reference hands the node to the control thread, so that nobody who serves requests waits
 * for a connection to close. Any thread. */
void agg_node_unref(agg_node *node);
void agg_node_bury(
    agg_peers *peers); /* closes and frees the dead: waits for each. Control thread */
void agg_node_set_lease(agg_node *node, const sy_member *member);
sy_shard_identity agg_node_copy(const agg_node *node, uint32_t shard); /* as announced */
/* Judges the node's copy anew by what is known now. Loop and control thread. */
void agg_node_judge(agg_node *node, uint32_t shard);
/* Never used, whatever placement says. */
int agg_refusal_is_final(agg_refusal why);

#endif
