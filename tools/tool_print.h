/* tool_print.h - how the commands talk: errors in one form, sizes a person reads, a progress bar
 * where there is a terminal, text as JSON. */
#ifndef TOOL_PRINT_H
#define TOOL_PRINT_H

#include <stdio.h>

#include "sy_strbuf.h"

/* "switchyard: error: UNAVAILABLE: MESSAGE (EXPERT_UNREACHABLE, layer 3, expert 17, node expert-0)"
 * on stderr. Returns the exit code of a command that failed so: 1. */
int tool_fail(const sy_error *err);
/* The end of a command whose options did not parse: 0 after --help, else 2 and why. */
int tool_usage_error(const sy_error *err);
/* "switchyard: error: --tokens: ..." for a command line that parses and makes no sense; returns 2.
 */
int tool_bad_option(const char *fmt, ...) SY_PRINTF(1, 2);

/* What --allow-nan says, wherever it is offered. */
#define TOOL_ALLOW_NAN_HELP                                                                        \
    "load weights that are NaN or infinite as they are, instead of refusing the checkpoint; what " \
    "meets one fails"

#define TOOL_SIZE_BYTES 24
/* "21.2 MB", powers of 1000; out is returned. */
const char *tool_size(char out[TOOL_SIZE_BYTES], uint64_t bytes);
/* "46.7 B", "10.6 M": a count of parameters. */
const char *tool_count(char out[TOOL_SIZE_BYTES], uint64_t n);

/* A line on stderr that is drawn over, only when stderr is a terminal. */
typedef struct tool_progress {
    const char *label; /* "loading" */
    int64_t drawn_us;
    int is_drawn;
} tool_progress;
void tool_progress_show(tool_progress *progress, uint64_t done, uint64_t total);
void tool_progress_end(tool_progress *progress); /* wipes the line; once more does nothing */

/* Everything written to stdout has arrived; else the reason is printed and 1 returned. */
int tool_flush_stdout(void);

#endif
