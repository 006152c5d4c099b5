/* up_pids.h - which processes of a cluster run: RUNDIR/NAME.pid, checked against what the process
 * itself was started with, so that a number that the system has given to somebody else is never
 * signalled. And the supervisor's lock. */
#ifndef UP_PIDS_H
#define UP_PIDS_H

#include <sys/types.h>

#include "sy_status.h"

/* The running process of that name, or 0. */
pid_t up_pid_of(const char *dir, const char *name);
SY_MUST_USE sy_status up_pid_save(const char *dir, const char *name, pid_t pid, sy_error *err);
void up_pid_remove(const char *dir, const char *name);

/* Calls fn for every NAME.pid in dir but the supervisor's. */
void up_pids_each(const char *dir, void (*fn)(void *arg, const char *name), void *arg);

/* The supervisor holds a record lock on supervisor.pid as long as it lives, so the kernel knows who
 * it is, whatever became of the file. Such a lock ends with the first close of the file, so the
 * holder calls neither function again, nor opens the file. *fd: to be kept open. SY_EEXISTS: held
 * by another; the text says how to stop it. */
SY_MUST_USE sy_status up_lock_take(int *fd, const char *dir, sy_error *err);
pid_t up_lock_holder(const char *dir); /* 0: nobody */

/* Signals every running process of the tier. Returns how many there were. */
size_t up_pids_signal(const char *dir, const char *tier, int signum);

#endif
