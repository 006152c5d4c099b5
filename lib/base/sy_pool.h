/* sy_pool.h - threads that share one piece of work: a parallel for. Workers sleep between runs, and
 * spin a moment before they do while runs follow each other closely. */
#ifndef SY_POOL_H
#define SY_POOL_H

#include "sy_status.h"

typedef struct sy_pool sy_pool;

/* n_threads >= 1 counts the caller: a pool of 1 has no thread of its own and runs everything
 * inline. */
SY_MUST_USE sy_status sy_pool_open(sy_pool **out, unsigned n_threads, const char *name);
void sy_pool_free(sy_pool *pool); /* accepts NULL; nothing is running */
unsigned sy_pool_threads(const sy_pool *pool);
/* Calls fn(arg, i) once for each i in [0, n), in any order, on any of the threads, the caller's
 * among them, and returns when all are done. thread: [0, sy_pool_threads), for scratch memory.
 * Calls from several threads take turns. fn must not call sy_pool_run. NULL pool: inline. */
void sy_pool_run(sy_pool *pool, size_t n, void (*fn)(void *arg, size_t i, unsigned thread),
                 void *arg);

#endif
