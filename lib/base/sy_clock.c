/* sy_clock.c - the two clocks of the system, in microseconds. */
#include "sy_clock.h"

#include <time.h>

static int64_t clock_us(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now); /* cannot fail for these two clocks */
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t sy_clock_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

int64_t sy_clock_wall_us(void)
{
    return clock_us(CLOCK_REALTIME);
}
