/* emu_child.h - this program once more, as a child, and how that ended: for tests of what ends a
 * process or makes a sanitizer speak. */
#ifndef EMU_CHILD_H
#define EMU_CHILD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef SY_SANITIZE
#define SY_SANITIZE ""
#endif

static inline int emu_child_sanitizes(const char *what)
{
    return strstr(SY_SANITIZE, what) != NULL;
}

typedef struct emu_child_end {
    int clean; /* exit code 0 */
    char said[1 << 14];
} emu_child_end;

/* With the two arguments, and SY_EMU_ORDER set. */
static inline void emu_child_run(emu_child_end *end, const char *first, const char *second,
                                 const char *order)
{
    char rest[4096];
    int channel[2], status;
    size_t n = 0;
    ssize_t got;

    assert_int_equal(pipe(channel), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("SY_EMU_ORDER", order, 1);
        setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 1); /* a second each, for nothing */
        dup2(channel[1], STDERR_FILENO);
        close(channel[0]);
        close(channel[1]);
        execl("/proc/self/exe", "child", first, second, (char *)NULL);
        _exit(127);
    }
    close(channel[1]);
    /* What does not fit is read all the same, so that the child can end. */
    for (;;) {
        const size_t room = sizeof(end->said) - 1 - n;
        got =
            room > 0 ? read(channel[0], end->said + n, room) : read(channel[0], rest, sizeof(rest));
        if (got <= 0) break;
        if (room > 0) n += (size_t)got;
    }
    end->said[n] = '\0';
    close(channel[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    end->clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#endif
