/* agg_rows.h - a layer's rows as they travel between tiers: as they are, or rounded to bf16
 * (--wire-rows bf16). They are rounded once, before anybody is asked, and what nodes compute is
 * rounded whoever computes it, in messages and in shared memory alike: which way a row takes, and
 * which peer answers, changes no bit. */
#ifndef AGG_ROWS_H
#define AGG_ROWS_H

#include "sy_kernels.h"
#include "sy_moe.h"
#include "sy_wire.h"

/* Points *out at call->x, or at its rows in bf16, in the arena. Rows that are too large for bf16
 * are marked in call->failed. SY_ENOMEM. */
SY_MUST_USE sy_status agg_rows_to_send(sy_rows *out, sy_moe_call *call, size_t hidden,
                                       sy_dtype wire_rows, sy_arena *arena,
                                       const sy_kernels *kernels);

/* 1: an answer of n_rows rows in a type that may come. A node that knows nothing of bf16 answers
 * with floats, but not in shared memory: what is lent there has no room for them. */
int agg_rows_are_expected(const sy_compute_reply *reply, uint32_t n_rows, uint32_t hidden,
                          sy_dtype wire_rows);
/* Makes such rows the floats that count: as they are, or rounded and widened again in *wide, which
 * is the caller's then. SY_ENOMEM. */
SY_MUST_USE sy_status agg_rows_take(sy_rows *rows, sy_buf **wide, sy_dtype wire_rows,
                                    const sy_kernels *kernels);

#endif
