/* sy_moe_rows.c - see sy_moe_rows.h. */
#include "sy_moe_rows.h"

#include "sy_clock.h"

void sy_moe_mark_bad_rows(sy_moe_call *call, size_t hidden, const sy_kernels *kernels)
{
    int told = 0;

    for (uint32_t t = 0; t < call->n_rows; t++) {
        call->failed[t] = !kernels->all_finite(call->x + t * hidden, hidden);
        if (!call->failed[t] || told) continue;
        told = 1;
        sy_error_clear(&call->error);
        sy_error_set(&call->error, SY_EINVAL,
                     "row %u of the hidden states of layer %u holds a NaN or an infinity", t,
                     call->layer);
        sy_error_where(&call->error, "ROW_NOT_FINITE", (int32_t)call->layer, -1, NULL);
    }
}

void sy_moe_lap(int64_t *total_us, int64_t *at_us)
{
    const int64_t now_us = sy_clock_us();

    *total_us += now_us - *at_us;
    *at_us = now_us;
}
