/* sy_clock.h - time. Deadlines are monotonic microseconds; wall time is only for people and leases.
 * Any thread. */
#ifndef SY_CLOCK_H
#define SY_CLOCK_H

#include "sy_base.h"

#define SY_NEVER_US INT64_MAX

int64_t sy_clock_us(void);      /* CLOCK_MONOTONIC */
int64_t sy_clock_wall_us(void); /* since 1970 */

#endif
