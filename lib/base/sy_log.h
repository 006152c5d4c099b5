/* sy_log.h - one line an event on stderr: time, level, program, message. Any thread; a line is
 * written with one write(2). Log where an error is handled, once. */
#ifndef SY_LOG_H
#define SY_LOG_H

#include "sy_status.h"

typedef enum sy_log_level { SY_LOG_DEBUG, SY_LOG_INFO, SY_LOG_WARN, SY_LOG_ERROR } sy_log_level;

/* program: printed in each line, borrowed for good. json: one JSON object a line. Before this call:
 * info, text. */
void sy_log_open(const char *program, sy_log_level level, int json);
sy_status sy_log_level_from_name(sy_log_level *out,
                                 const char *name); /* "debug", "info", "warn", "error" */
void sy_log(sy_log_level level, const char *fmt, ...) SY_PRINTF(2, 3);
/* "what: MESSAGE (REASON, layer 3, expert 17, node expert-0)" */
void sy_log_error(sy_log_level level, const sy_error *err, const char *fmt, ...) SY_PRINTF(3, 4);

/* True at most once in interval_us for each `last_us` (zero at first): keeps a broken peer from
 * filling a disk. */
int sy_log_due(_Atomic int64_t *last_us, int64_t interval_us);

#endif
