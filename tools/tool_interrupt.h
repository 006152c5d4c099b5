/* tool_interrupt.h - Ctrl-C as an ordinary call on an ordinary thread. */
#ifndef TOOL_INTERRUPT_H
#define TOOL_INTERRUPT_H

#include "sy_status.h"

/* From here on SIGINT and SIGTERM call fn(arg), once, on a thread of its own; a second one ends the
 * process at once. Call it before any other thread starts: threads inherit what is blocked. One at
 * a time. */
SY_MUST_USE sy_status tool_interrupt_open(void (*fn)(void *arg), void *arg, sy_error *err);
/* fn is not running and will not be called afterwards. Accepts a process in which nothing is open.
 */
void tool_interrupt_close(void);

#endif
