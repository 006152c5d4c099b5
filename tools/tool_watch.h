/* tool_watch.h - `--watch`: the same again and again, until Ctrl-C. */
#ifndef TOOL_WATCH_H
#define TOOL_WATCH_H

#include "sy_status.h"

/* Calls show every interval_us. clears: on a terminal, each time takes the place of the one before;
 * a blank line parts them elsewhere. What fails is printed in its place, and tried again. Returns
 * the exit code: 0 after Ctrl-C, 1 when nobody reads. */
int tool_watch(sy_status (*show)(void *arg, sy_error *err), void *arg, int64_t interval_us,
               int clears);

#endif
