/* tool_report.h - what commands print as JSON. */
#ifndef TOOL_REPORT_H
#define TOOL_REPORT_H

#include "sy_base.h"

struct json_t;

/* A JSON string of bytes that nobody has checked: what is not UTF-8 becomes U+FFFD. The caller owns
 * it; NULL: no memory. */
struct json_t *tool_json_text(const char *s, size_t n);
/* Prints value and a newline to stdout, and gives up the caller's reference. Returns the exit code:
 * 0, or 1 when there was no memory (value may be NULL) or nobody reads. */
int tool_json_print(struct json_t *value);
int tool_json_print_line(struct json_t *value); /* on one line */

#endif
