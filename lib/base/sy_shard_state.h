/* sy_shard_state.h - the states of a shard on a node: the same words in code, logs, metrics and on
 * the wire, with the wire's numbers. */
#ifndef SY_SHARD_STATE_H
#define SY_SHARD_STATE_H

typedef enum sy_shard_state {
    SY_SHARD_ABSENT,
    SY_SHARD_LOADING,
    SY_SHARD_VERIFYING,
    SY_SHARD_RESIDENT,
    SY_SHARD_LINGERING, /* no longer asked for, still served */
    SY_SHARD_FAILED,
    SY_N_SHARD_STATES
} sy_shard_state;

const char *sy_shard_state_name(sy_shard_state state); /* "resident"; "?" past the end */

#endif
