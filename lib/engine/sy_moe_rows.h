/* sy_moe_rows.h - what every implementation of sy_moe does alike: refuse rows that are not numbers,
 * take times. */
#ifndef SY_MOE_ROWS_H
#define SY_MOE_ROWS_H

#include "sy_moe.h"

/* Sets failed[] for rows that hold a NaN or an infinity, clears it for all others; call->error
 * tells of the first. */
void sy_moe_mark_bad_rows(sy_moe_call *call, size_t hidden, const sy_kernels *kernels);
/* Adds the time since *at_us to *total_us and moves *at_us to now. */
void sy_moe_lap(int64_t *total_us, int64_t *at_us);

#endif
