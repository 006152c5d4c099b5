/* tool_pause.c - an eventfd that the thread for signals writes to. */
#include "tool_pause.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "sy_clock.h"
#include "tool_interrupt.h"

static struct {
    atomic_int is_interrupted;
    int fd; /* readable once interrupted */
    int is_open;
} pauses;

static void interrupt(void *arg)
{
    const uint64_t one = 1;

    (void)arg;
    atomic_store(&pauses.is_interrupted, 1);
    while (write(pauses.fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

sy_status tool_pause_open(sy_error *err)
{
    sy_status st;

    atomic_store(&pauses.is_interrupted, 0);
    pauses.fd = eventfd(0, EFD_CLOEXEC);
    if (pauses.fd < 0) {
        return sy_error_set(err, SY_EIO, "cannot wait for signals: %s", strerrordesc_np(errno));
    }
    SY_TRY(tool_interrupt_open(interrupt, NULL, err));
    pauses.is_open = 1;
out:
    if (st != SY_OK) close(pauses.fd);
    return st;
}

void tool_pause_close(void)
{
    if (!pauses.is_open) return;
    tool_interrupt_close();
    close(pauses.fd);
    pauses.is_open = 0;
}

int tool_pause(int64_t us)
{
    const int64_t until_us = sy_clock_us() + us;
    int64_t left_us = us;

    while (left_us > 0 && !tool_interrupted()) {
        struct pollfd slot = {.fd = pauses.is_open ? pauses.fd : -1, .events = POLLIN};

        (void)!poll(&slot, 1, (int)SY_MIN((left_us + 999) / 1000, (int64_t)1000000));
        left_us = until_us - sy_clock_us();
    }
    return tool_interrupted();
}

int tool_interrupted(void)
{
    return pauses.is_open && atomic_load(&pauses.is_interrupted);
}

void tool_sleep(int64_t us)
{
    const struct timespec time = {.tv_sec = (time_t)(us / 1000000),
                                  .tv_nsec = (long)(us % 1000000) * 1000};

    (void)!nanosleep(&time, NULL);
}
