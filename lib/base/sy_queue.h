/* sy_queue.h - a bounded queue of pointers between threads. Any number of producers and consumers.
 * Nothing is allocated after open. A consumer sleeps; it does not spin. */
#ifndef SY_QUEUE_H
#define SY_QUEUE_H

#include "sy_status.h"

typedef struct sy_queue sy_queue;

SY_MUST_USE sy_status sy_queue_open(sy_queue **out, size_t capacity);
void sy_queue_free(sy_queue *queue); /* nobody waits any more, and it is empty; accepts NULL */
/* SY_ELIMIT when full, SY_ECANCELLED once closed: the item stays the caller's. Never blocks. */
SY_MUST_USE sy_status sy_queue_push(sy_queue *queue, void *item);
/* Waits until deadline_us (monotonic; 0: do not wait; SY_NEVER_US: for ever). SY_EDEADLINE, or
 * SY_ECANCELLED once closed and empty: what was queued before the close is still handed out. */
SY_MUST_USE sy_status sy_queue_pop(sy_queue *queue, void **item, int64_t deadline_us);
/* Takes, in queue order, every waiting item for which match(item, arg) is true, at most max;
 * returns how many. */
size_t sy_queue_take_matching(sy_queue *queue, void **items, size_t max,
                              int (*match)(const void *item, void *arg), void *arg);
/* The pop that sleeps now, or the next one that would, returns SY_EDEADLINE at once: there is
 * something else to look at. For queues with one consumer. */
void sy_queue_poke(sy_queue *queue);
void sy_queue_close(sy_queue *queue); /* wakes all waiters */
size_t sy_queue_length(sy_queue *queue);

#endif
