/* tool_print.c - errors, sizes and the progress bar. */
#include "tool_print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "sy_clock.h"

#define BAR_COLUMNS      32
#define REDRAW_PERIOD_US 50000

/* ---- errors ---- */

int tool_fail(const sy_error *err)
{
    sy_strbuf line;
    const char *before = " (";

    sy_strbuf_init(&line);
    sy_strbuf_printf(&line, "switchyard: error: %s: %s", sy_status_name(err->status), err->message);
    /* Some texts end with the reason, since programs print nothing else. */
    if (err->reason[0] != '\0' && strcmp(err->reason, sy_status_name(err->status)) != 0 &&
        strstr(err->message, err->reason) == NULL) {
        sy_strbuf_printf(&line, "%s%s", before, err->reason);
        before = ", ";
    }
    if (err->layer >= 0) {
        sy_strbuf_printf(&line, "%slayer %" PRId32, before, err->layer);
        before = ", ";
    }
    if (err->expert >= 0) {
        sy_strbuf_printf(&line, "%sexpert %" PRId32, before, err->expert);
        before = ", ";
    }
    if (err->node[0] != '\0') {
        sy_strbuf_printf(&line, "%snode %s", before, err->node);
        before = ", ";
    }
    sy_strbuf_puts(&line, before[0] == ',' ? ")\n" : "\n");
    fflush(stdout); /* what came before the error stands before it */
    fputs(line.data, stderr);
    sy_strbuf_free(&line);
    return 1;
}

int tool_usage_error(const sy_error *err)
{
    if (err->status == SY_ECANCELLED) return 0;
    return tool_bad_option("%s", err->message);
}

int tool_bad_option(const char *fmt, ...)
{
    va_list ap;

    fputs("switchyard: error: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return 2;
}

/* ---- numbers ---- */

static const char *scaled(char out[TOOL_SIZE_BYTES], uint64_t n, const char *const unit[5])
{
    double value = (double)n;
    size_t i = 0;

    while (value >= 999.95 && i < 4) {
        value /= 1000;
        i++;
    }
    snprintf(out, TOOL_SIZE_BYTES, i == 0 ? "%.0f%s" : "%.1f%s", value, unit[i]);
    return out;
}

const char *tool_size(char out[TOOL_SIZE_BYTES], uint64_t bytes)
{
    static const char *const unit[] = {" B", " KB", " MB", " GB", " TB"};

    return scaled(out, bytes, unit);
}

const char *tool_count(char out[TOOL_SIZE_BYTES], uint64_t n)
{
    static const char *const unit[] = {"", " K", " M", " B", " T"};

    return scaled(out, n, unit);
}

/* ---- progress ---- */

void tool_progress_show(tool_progress *progress, uint64_t done, uint64_t total)
{
    const int64_t now_us = sy_clock_us();
    char bar[BAR_COLUMNS + 1];
    size_t filled;

    if (total == 0 || (done < total && now_us - progress->drawn_us < REDRAW_PERIOD_US)) return;
    progress->drawn_us = now_us;
    if (!isatty(STDERR_FILENO)) return;
    filled = (size_t)((double)done / (double)total * BAR_COLUMNS);
    filled = SY_MIN(filled, (size_t)BAR_COLUMNS);
    memset(bar, '#', filled);
    memset(bar + filled, '.', BAR_COLUMNS - filled);
    bar[BAR_COLUMNS] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%", progress->label, bar,
            100.0 * (double)done / (double)total);
    fflush(stderr);
    progress->is_drawn = 1;
}

void tool_progress_end(tool_progress *progress)
{
    if (!progress->is_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->is_drawn = 0;
}

int tool_flush_stdout(void)
{
    sy_error err = {0};

    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    sy_error_clear(&err);
    sy_error_set(&err, SY_EIO, "cannot write to standard output: %s", strerrordesc_np(errno));
    return tool_fail(&err);
}
