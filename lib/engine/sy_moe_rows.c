/* sy_moe_rows.c - see sy_moe_rows.h. */
#include "sy_moe_rows.h"

#include "sy_clock.h"

void sy_moe_scale_rows(float *out, const float *x, const float *weight, uint32_t n_rows,
                       size_t hidden)
{
    for (uint32_t t = 0; t < n_rows; t++)
        for (size_t i = 0; i < hidden; i++) out[t * hidden + i] = weight[t] * x[t * hidden + i];
}

uint8_t sy_moe_add_error(sy_moe_call *call, const sy_error *err)
{
    if (call->n_row_errors < SY_MOE_ERRORS_MAX) call->row_error[call->n_row_errors++] = *err;
    return (uint8_t)call->n_row_errors;
}

static uint8_t add_not_finite(sy_moe_call *call, uint32_t row)
{
    sy_error err;

    sy_error_clear(&err);
    sy_error_set(&err, SY_EINVAL,
                 "row %u of the hidden states of layer %u holds a NaN or an infinity", row,
                 call->layer);
    sy_error_where(&err, "ROW_NOT_FINITE", (int32_t)call->layer, -1, NULL);
    return sy_moe_add_error(call, &err);
}

void sy_moe_mark_bad_rows(sy_moe_call *call, size_t hidden, const sy_kernels *kernels)
{
    uint8_t mark = 0;

    call->n_row_errors = 0;
    for (uint32_t t = 0; t < call->n_rows; t++) {
        const int bad = !kernels->all_finite(call->x + t * hidden, hidden);
        if (bad && mark == 0) mark = add_not_finite(call, t);
        call->failed[t] = bad ? mark : 0;
    }
}

void sy_moe_lap(int64_t *total_us, int64_t *at_us)
{
    const int64_t now_us = sy_clock_us();

    *total_us += now_us - *at_us;
    *at_us = now_us;
}
