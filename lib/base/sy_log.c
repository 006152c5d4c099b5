/* sy_log.c - builds one line in a fixed piece of stack, so that a log line needs no memory, and
 * writes it with one write(2). A message cannot forge a second line: control characters are escaped
 * in both formats. */
#include "sy_log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "sy_clock.h"
#include "sy_text.h"

/* PIPE_BUF of Linux, so that lines of several processes on one pipe stay whole as well. */
#define LINE_BYTES    4096
#define MESSAGE_BYTES 2048

typedef struct line {
    size_t len;
    char text[LINE_BYTES];
} line;

static const char *const level_name[] = {"debug", "info", "warn", "error"};
static const char *const level_text[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};

static const char *_Atomic log_program;
static _Atomic int log_level = SY_LOG_INFO;
static _Atomic int log_json;

void sy_log_open(const char *program, sy_log_level level, int json)
{
    atomic_store(&log_program, program);
    atomic_store(&log_level, level);
    atomic_store(&log_json, json);
}

sy_status sy_log_level_from_name(sy_log_level *out, const char *name)
{
    for (size_t i = 0; i < SY_COUNT_OF(level_name); i++) {
        if (strcasecmp(name, level_name[i]) == 0) {
            *out = (sy_log_level)i;
            return SY_OK;
        }
    }
    return SY_EINVAL;
}

/* One byte stays free for the newline, and in JSON two more for the closing quote and brace. */
static int line_has_room(const line *to, size_t n)
{
    return n <= LINE_BYTES - 3 - to->len;
}

static void line_put(line *to, const char *s, size_t n)
{
    if (!line_has_room(to, n)) return;
    memcpy(to->text + to->len, s, n);
    to->len += n;
}

SY_PRINTF(2, 3) static void line_printf(line *to, const char *fmt, ...)
{
    char text[128];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n > 0) line_put(to, text, SY_MIN((size_t)n, sizeof(text) - 1));
}

/* In text only what would break the line is escaped; in JSON everything that JSON wants so. */
static void line_put_escaped(line *to, const char *s, int json)
{
    const size_t n = strlen(s);
    char out[SY_JSON_CHAR_BYTES];
    size_t used;

    for (size_t i = 0; i < n; i += used) {
        const size_t len = sy_json_char(out, &used, s + i, n - i);

        if (!line_has_room(to, len)) return;
        if (!json && (s[i] == '"' || s[i] == '\\')) {
            line_put(to, s + i, 1);
        } else {
            line_put(to, out, len);
        }
    }
}

static void line_put_time(line *to)
{
    const int64_t now_us = sy_clock_wall_us();
    const time_t now_s = (time_t)(now_us / 1000000);
    struct tm utc;

    gmtime_r(&now_s, &utc);
    line_printf(to, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, (int)(now_us % 1000000));
}

static void line_write(line *to)
{
    ssize_t n_written;

    to->text[to->len++] = '\n';
    /* Where the log itself cannot be written there is nobody left to tell. */
    do {
        n_written = write(STDERR_FILENO, to->text, to->len);
    } while (n_written < 0 && errno == EINTR);
}

/* The fields of an error that stand for themselves in JSON; in text they follow the message in
 * brackets. */
static void line_put_error_json(line *to, const sy_error *err)
{
    line_printf(to, "\"status\":\"%s\",", sy_status_name(err->status));
    if (err->reason[0] != '\0') {
        line_put(to, "\"reason\":\"", 10);
        line_put_escaped(to, err->reason, 1);
        line_put(to, "\",", 2);
    }
    if (err->layer >= 0) line_printf(to, "\"layer\":%d,", (int)err->layer);
    if (err->expert >= 0) line_printf(to, "\"expert\":%d,", (int)err->expert);
    if (err->node[0] != '\0') {
        line_put(to, "\"node\":\"", 8);
        line_put_escaped(to, err->node, 1);
        line_put(to, "\",", 2);
    }
}

static void line_put_error_text(line *to, const sy_error *err)
{
    const char *reason = err->reason[0] != '\0' ? err->reason : sy_status_name(err->status);

    line_put(to, " (", 2);
    line_put_escaped(to, reason, 0);
    if (err->layer >= 0) line_printf(to, ", layer %d", (int)err->layer);
    if (err->expert >= 0) line_printf(to, ", expert %d", (int)err->expert);
    if (err->node[0] != '\0') {
        line_put(to, ", node ", 7);
        line_put_escaped(to, err->node, 0);
    }
    line_put(to, ")", 1);
}

/* err may be NULL. The message stands last in JSON, so that what is cut when it is too long is the
 * message's end. */
static void emit(sy_log_level level, const char *message, const sy_error *err)
{
    const char *program = atomic_load_explicit(&log_program, memory_order_relaxed);
    const int json = atomic_load_explicit(&log_json, memory_order_relaxed);
    line to = {.len = 0};

    if (program == NULL) program = "switchyard";
    if (json) {
        line_put(&to, "{\"time\":\"", 9);
        line_put_time(&to);
        line_printf(&to, "\",\"level\":\"%s\",\"program\":\"", level_name[level]);
        line_put_escaped(&to, program, 1);
        line_put(&to, "\",", 2);
        if (err != NULL) line_put_error_json(&to, err);
        line_put(&to, "\"message\":\"", 11);
    } else {
        line_put_time(&to);
        line_printf(&to, " %s ", level_text[level]);
        line_put_escaped(&to, program, 0);
        line_put(&to, ": ", 2);
    }
    line_put_escaped(&to, message, json);
    if (err != NULL) {
        if (message[0] != '\0') line_put(&to, ": ", 2);
        line_put_escaped(&to, err->message, json);
        if (!json) line_put_error_text(&to, err);
    }
    if (json) {
        memcpy(to.text + to.len, "\"}", 2);
        to.len += 2;
    }
    line_write(&to);
}

static int is_wanted(sy_log_level level)
{
    return level >= SY_LOG_DEBUG && level <= SY_LOG_ERROR &&
           (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void sy_log(sy_log_level level, const char *fmt, ...)
{
    const int saved_errno = errno;
    char message[MESSAGE_BYTES];
    va_list ap;

    if (!is_wanted(level)) return;
    va_start(ap, fmt);
    if (vsnprintf(message, sizeof(message), fmt, ap) < 0) message[0] = '\0';
    va_end(ap);
    emit(level, message, NULL);
    errno = saved_errno;
}

void sy_log_error(sy_log_level level, const sy_error *err, const char *fmt, ...)
{
    const int saved_errno = errno;
    char message[MESSAGE_BYTES];
    va_list ap;

    if (!is_wanted(level)) return;
    va_start(ap, fmt);
    if (vsnprintf(message, sizeof(message), fmt, ap) < 0) message[0] = '\0';
    va_end(ap);
    emit(level, message, err);
    errno = saved_errno;
}

int sy_log_due(_Atomic int64_t *last_us, int64_t interval_us)
{
    const int64_t now_us = sy_clock_us();
    int64_t seen_us = atomic_load_explicit(last_us, memory_order_relaxed);

    if (seen_us != 0 && now_us - seen_us < interval_us) return 0;
    /* Of several threads that come at once, the one that moves the mark logs. */
    return atomic_compare_exchange_strong(last_us, &seen_us, now_us);
}
