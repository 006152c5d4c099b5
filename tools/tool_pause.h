/* tool_pause.h - waiting that Ctrl-C ends at once, for commands that look again and again. */
#ifndef TOOL_PAUSE_H
#define TOOL_PAUSE_H

#include "sy_status.h"

#define TOOL_EXIT_INTERRUPTED 130

/* From here on SIGINT and SIGTERM end pauses instead of the process; a second one ends the process
 * at once. */
SY_MUST_USE sy_status tool_pause_open(sy_error *err);
void tool_pause_close(void);
/* 1: interrupted, now or earlier. Without tool_pause_open it only sleeps. */
int tool_pause(int64_t us);
int tool_interrupted(void);
void tool_sleep(int64_t us); /* whatever happens */

#endif
