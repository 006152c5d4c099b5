/* agg_verify.h - what identity each shard should have, to hold against what nodes announce. It
 * knows shards, not nodes: agg_node.c judges the copies. Three threads meet here without a lock, so
 * that the one of idle priority can never keep another waiting: that thread works out the
 * identities that this process' own checkpoint gives, the loop thread says which shards have been
 * announced, and the control thread learns for which of them something has changed. */
#ifndef AGG_VERIFY_H
#define AGG_VERIFY_H

#include "agg_peers.h"
#include "sy_shard.h"

typedef struct agg_verify agg_verify;

typedef struct agg_verify_config {
    const sy_model *model;     /* borrowed, as the kernels */
    const sy_kernels *kernels; /* what nodes' outputs are worked out with */
    sy_precision precision;    /* what nodes hold weights as, and compute with */
    /* 1: nodes compute as these kernels do not (GPUs): what their outputs should be is what most
     * holders of the right weights announce. */
    int other_arithmetic;
    /* 1: identities come from the model's files, each read once, and held at that precision, when
     * its shard is first announced; a shard whose files cannot be read is treated as with 0: the
     * identity that most holders announce is taken for the right one. */
    int read_weights;
} agg_verify_config;

SY_MUST_USE sy_status agg_verify_open(agg_verify **out, const agg_verify_config *config,
                                      sy_error *err);
void agg_verify_stop(agg_verify *verify); /* ends the thread; all else goes on. Accepts NULL */
void agg_verify_free(agg_verify *verify); /* accepts NULL */

/* Some node's announcement of the shard has changed. Loop thread; never waits. */
void agg_verify_touch(agg_verify *verify, uint32_t shard);
/* What the shard should be; zeros: not known. Any thread. */
sy_shard_identity agg_verify_reference(const agg_verify *verify, uint32_t shard);
/* What an announced copy is by that: FINE, OTHER_CONTENT or OTHER_PROBE. A hash that one side does
 * not know is not held against the copy. */
agg_refusal agg_verify_compare(sy_shard_identity copy, sy_shard_identity reference);

/* Control thread: the next shard at or after *shard whose copies are to be judged again; 0: none.
 */
int agg_verify_next(agg_verify *verify, uint32_t *shard);
/* 1: what the shard should be, or should compute, is decided by its holders, through
 * agg_verify_decide. */
int agg_verify_by_holders(const agg_verify *verify, uint32_t shard);
/* 1: the copy may be what is decided: its weights are not other ones than the files'. */
int agg_verify_may_be(const agg_verify *verify, uint32_t shard, sy_shard_identity copy);
void agg_verify_decide(agg_verify *verify, uint32_t shard, sy_shard_identity reference);

#endif
