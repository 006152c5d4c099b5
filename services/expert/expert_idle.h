/* expert_idle.h - a thread that runs only when nothing else wants the cores, and does one piece of
 * work at a time for its owner. What it is given takes no lock that others need and calls no
 * network: whoever holds either while the scheduler has better things to do makes requests wait. */
#ifndef EXPERT_IDLE_H
#define EXPERT_IDLE_H

#include "sy_status.h"

typedef struct expert_idle expert_idle;

/* SY_ENOMEM, SY_EIO: no thread. */
SY_MUST_USE sy_status expert_idle_open(expert_idle **out, sy_error *err);
void expert_idle_close(expert_idle *idle); /* accepts NULL */
/* Runs fn(arg) there and waits for its end. One caller at a time. */
void expert_idle_run(expert_idle *idle, void (*fn)(void *arg), void *arg);

#endif
