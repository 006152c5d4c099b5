/* tool_text.h - texts that Redis, HTTP or a file gave, made fit for a terminal: nothing in them may
 * move its cursor, colour it, or break a line. */
#ifndef TOOL_TEXT_H
#define TOOL_TEXT_H

#include "sy_base.h"

/* out: [cap], cap >= 8. Printable UTF-8 as it stands, other bytes as \xNN; "..." at the end when it
 * was cut to fit. Returns out. */
char *tool_text_show(char *out, size_t cap, const char *text, size_t n);

#define TOOL_SHOWN_BYTES 2304
#define TOOL_SHOWN_TEXTS 8
/* The same in memory of its own, which the eighth call after this one uses again: for an argument
 * of printf. Only on the thread that prints. NULL is shown as "nothing". */
const char *tool_shown(const char *text);

/* "2026-01-31 08:15:00 UTC"; "?" for a time that no calendar has. out: [TOOL_TIME_BYTES]. */
#define TOOL_TIME_BYTES 32
const char *tool_time_show(char *out, int64_t wall_us);

#endif
