/* balance_lock.h - the lock in Redis that makes one balancer act at a time: `switchyard:balancer`,
 * "HOST:PID", with a time to live. A thread of its own takes it, renews it, and takes it again when
 * it was lost, over whatever outage: whoever acts only has to ask, just before, whether it is held.
 */
#ifndef BALANCE_LOCK_H
#define BALANCE_LOCK_H

#include "sy_status.h"

#define BALANCE_HOLDER_BYTES 160

typedef struct balance_lock balance_lock;

/* Returns at once: the lock is held soon, or somebody else has it. url: copied. Call it after
 * signals are blocked. */
SY_MUST_USE sy_status balance_lock_open(balance_lock **out, const char *url, sy_error *err);
/* Gives the lock back, if it is held. Accepts NULL. */
void balance_lock_close(balance_lock *lock);
/* 1: held, and for at least a few seconds to come whatever happens to Redis. 0: why (a sentence)
 * says who has it, or what keeps Redis from answering. Any thread. */
int balance_lock_held(balance_lock *lock, char *why, size_t cap);
const char *balance_lock_name(const balance_lock *lock); /* "HOST:PID" */

#endif
