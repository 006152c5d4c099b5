/* tool_watch.c - see the header. */
#include "tool_watch.h"

#include <stdio.h>
#include <unistd.h>

#include "tool_pause.h"
#include "tool_print.h"

int tool_watch(sy_status (*show)(void *arg, sy_error *err), void *arg, int64_t interval_us,
               int clears)
{
    const int is_terminal = isatty(STDOUT_FILENO);
    int is_first = 1;
    int code = 0;
    sy_error err;

    sy_error_clear(&err);
    if (tool_pause_open(&err) != SY_OK) return tool_fail(&err);
    do {
        sy_error_clear(&err);
        if (clears && is_terminal) {
            fputs("\033[H\033[2J", stdout);
        } else if (clears && !is_first) {
            fputs("\n", stdout);
        }
        is_first = 0;
        if (show(arg, &err) != SY_OK && err.status != SY_OK) (void)tool_fail(&err);
        code = tool_flush_stdout();
    } while (code == 0 && !tool_pause(interval_us));
    tool_pause_close();
    return code;
}
