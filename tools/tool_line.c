/* tool_line.c - see the header. */
#include "tool_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "sy_clock.h"

#define LOG_PERIOD_US 2000000

/* A line that wraps could not be drawn over. */
static int columns(void)
{
    struct winsize size = {0};

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

void tool_line_show(tool_line *line, const char *fmt, ...)
{
    const int64_t now_us = sy_clock_us();
    char text[sizeof(line->text)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (strcmp(text, line->text) == 0) return;
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r\033[K%.*s", columns() - 1, text);
        line->is_drawn = 1;
    } else if (line->written_us == 0 || now_us - line->written_us >= LOG_PERIOD_US) {
        fprintf(stderr, "%s\n", text);
    } else {
        return;
    }
    fflush(stderr);
    line->written_us = now_us;
    memcpy(line->text, text, sizeof(text));
}

void tool_line_end(tool_line *line)
{
    if (!line->is_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    line->is_drawn = 0;
}
