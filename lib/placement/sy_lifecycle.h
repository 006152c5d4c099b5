/* sy_lifecycle.h - what one node may do with one shard, and when: make before break. Pure: the
 * caller has the clock, the memory and the network, and holds its lock around every call.
 *
 *   absent -> loading -> verifying -> resident -> lingering -> absent
 *
 * A shard that placement no longer wants here lingers: it is still served. It may leave memory only
 * after a node that placement does want has said, in answer to a question that was asked after the
 * lingering began and under the very placement that is in force here, that it is resident there and
 * that the same placement is in force there. So custody is handed on, never dropped: whoever gave
 * that answer will not let go before it has such an answer itself. Nothing else ends a lingering:
 * no clock, no lack of memory, no silence. */
#ifndef SY_LIFECYCLE_H
#define SY_LIFECYCLE_H

#include "sy_base.h"
#include "sy_shard_state.h"

typedef struct sy_life { /* zeroed: absent, not wanted */
    sy_shard_state state;
    uint8_t wanted;
    uint32_t failures;   /* in a row */
    int64_t since_us;    /* when the state began */
    int64_t retry_us;    /* FAILED: not before */
    uint64_t question;   /* the one that may end this lingering; 0: none is open */
    uint64_t asked_hash; /* the placement it was asked under */
} sy_life;

/* What a node that placement wants said of the shard. */
typedef struct sy_life_answer {
    uint64_t question; /* as sy_life_ask numbered it */
    uint64_t placement_hash;
    sy_shard_state state;
} sy_life_answer;

#define SY_LIFE_RETRY_MIN_US 500000 /* after a failed load; doubles */
#define SY_LIFE_RETRY_MAX_US 30000000

/* The placement in force (again) wants the shard here, or does not. Every placement is told, also
 * one that changes nothing: a failed shard is then tried again at once. Returns 1 when the state
 * changed (resident <-> lingering, failed -> absent). */
int sy_life_wanted(sy_life *life, int wanted, int64_t now_us);
/* 1: bring it into memory. */
int sy_life_must_load(const sy_life *life, int64_t now_us);
void sy_life_loading(sy_life *life, int64_t now_us);
void sy_life_verifying(sy_life *life, int64_t now_us);
/* Verified and published: resident, or lingering when it is no longer wanted. */
void sy_life_loaded(sy_life *life, int64_t now_us);
/* It could not be loaded or verified; it is tried again after a while that doubles. Not wanted any
 * more: absent. */
void sy_life_failed(sy_life *life, int64_t now_us);
/* 1: it has lingered for linger_us, or memory is needed now: ask the nodes that are wanted. */
int sy_life_may_ask(const sy_life *life, int64_t linger_us, int needs_room, int64_t now_us);
/* question: never 0, never used before on this node. An older question's answers count no more. */
void sy_life_ask(sy_life *life, uint64_t question, uint64_t placement_hash);
/* placement_hash: in force here now. 1: the state is absent now, and the caller takes it out of
 * memory before it lets go of its lock. */
int sy_life_answered(sy_life *life, const sy_life_answer *answer, uint64_t placement_hash,
                     int64_t now_us);

#endif
