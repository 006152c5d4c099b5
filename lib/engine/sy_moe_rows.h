/* sy_moe_rows.h - what every implementation of sy_moe does alike: refuse rows that are not numbers,
 * take times. */
#ifndef SY_MOE_ROWS_H
#define SY_MOE_ROWS_H

#include "sy_moe.h"

/* Sets failed[] for rows that hold a NaN or an infinity, with one reason that names the first of
 * them, and clears it for all others. */
void sy_moe_mark_bad_rows(sy_moe_call *call, size_t hidden, const sy_kernels *kernels);
/* For gates whose weight multiplies what goes into the one expert of a token: out[t] = weight[t] *
 * x[t], [T,H] each. What comes out of experts is then added with a weight of 1. */
void sy_moe_scale_rows(float *out, const float *x, const float *weight, uint32_t n_rows,
                       size_t hidden);
/* Adds a reason for rows to fail; returns the mark for failed[] of those that it concerns. */
uint8_t sy_moe_add_error(sy_moe_call *call, const sy_error *err);
/* Adds the time since *at_us to *total_us and moves *at_us to now. */
void sy_moe_lap(int64_t *total_us, int64_t *at_us);

#endif
