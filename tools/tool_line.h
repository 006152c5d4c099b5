/* tool_line.h - one line on stderr that says what a command waits for: drawn over on a terminal,
 * and elsewhere written anew when it has changed, so that a log stays short. */
#ifndef TOOL_LINE_H
#define TOOL_LINE_H

#include "sy_status.h"

typedef struct tool_line { /* zeroed at first */
    char text[512];
    int64_t written_us;
    int is_drawn;
} tool_line;

void tool_line_show(tool_line *line, const char *fmt, ...) SY_PRINTF(2, 3);
void tool_line_end(tool_line *line); /* wipes it from a terminal; once more does nothing */

#endif
