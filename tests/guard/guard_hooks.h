/* guard_hooks.h - what this system's own objects ask the C library for, counted by caller. The
 * linker puts these functions in the place of malloc and its like, of pthread_mutex_lock and of the
 * condition variables, for the objects of the program only: what shared libraries do (gRPC among
 * them, linked shared for that) is not seen. */
#ifndef GUARD_HOOKS_H
#define GUARD_HOOKS_H

#include <stddef.h>

typedef enum guard_kind {
    GUARD_ALLOCATION,
    GUARD_CONTENDED, /* a lock that another thread held */
    GUARD_SLEEP,     /* on a condition */
    GUARD_WAKE,      /* of a condition, needed or not */
    GUARD_N_KINDS
} guard_kind;

void guard_begin(void); /* forgets what has been counted, and counts */
void guard_end(void);
size_t guard_count(guard_kind kind);
void guard_print(guard_kind kind); /* every caller and its caller, by name where addr2line is */

#endif
