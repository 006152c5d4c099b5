/* agg_rows.c - see agg_rows.h. */
#include "agg_rows.h"

#include "sy_moe_rows.h"

/* Elements that are rounded and widened at once. */
enum { PIECE = 512 };

/* ---- on their way to peers ---- */

static int overflows(const uint16_t *row, size_t n)
{
    int yes = 0;

    for (size_t i = 0; i < n; i++) yes |= (row[i] & 0x7f80) == 0x7f80; /* no finite number */
    return yes;
}

static uint8_t add_too_large(sy_moe_call *call, uint32_t row)
{
    sy_error err;

    sy_error_clear(&err);
    sy_error_set(&err, SY_EINVAL,
                 "row %u of the hidden states of layer %u is too large for bf16: use --wire-rows "
                 "f32",
                 row, call->layer);
    sy_error_where(&err, "ROW_NOT_FINITE", (int32_t)call->layer, -1, NULL);
    return sy_moe_add_error(call, &err);
}

sy_status agg_rows_to_send(sy_rows *out, sy_moe_call *call, size_t hidden, sy_dtype wire_rows,
                           sy_arena *arena, const sy_kernels *kernels)
{
    const size_t n = call->n_rows * hidden;
    uint8_t mark = 0;

    *out = (sy_rows){SY_F32, call->n_rows, (uint32_t)hidden, call->x};
    if (wire_rows != SY_BF16) return SY_OK;
    uint16_t *rounded = sy_arena_alloc(arena, (n + 1) * sizeof(*rounded));
    if (rounded == NULL) return SY_ENOMEM;
    kernels->round_bf16(rounded, call->x, n);
    for (uint32_t t = 0; t < call->n_rows; t++) {
        if (call->failed[t] || !overflows(rounded + t * hidden, hidden)) continue;
        if (mark == 0) mark = add_too_large(call, t);
        call->failed[t] = mark;
    }
    *out = (sy_rows){SY_BF16, call->n_rows, (uint32_t)hidden, rounded};
    return SY_OK;
}

/* ---- and back ---- */

int agg_rows_are_expected(const sy_compute_reply *reply, uint32_t n_rows, uint32_t hidden,
                          sy_dtype wire_rows)
{
    const sy_rows *rows = &reply->output;
    const int bf16 = wire_rows == SY_BF16;

    if (rows->rows != n_rows || rows->cols != hidden) return 0;
    return rows->dtype == SY_F32 ? !bf16 || !reply->output_shared : bf16 && rows->dtype == SY_BF16;
}

static void round_floats(float *out, const float *in, size_t n, const sy_kernels *kernels)
{
    uint16_t piece[PIECE];

    for (size_t i = 0; i < n; i += PIECE) {
        const size_t n_here = SY_MIN(n - i, (size_t)PIECE);

        kernels->round_bf16(piece, in + i, n_here);
        sy_dtype_widen(out + i, piece, SY_BF16, n_here);
    }
}

sy_status agg_rows_take(sy_rows *rows, sy_buf **wide, sy_dtype wire_rows, const sy_kernels *kernels)
{
    const size_t n = (size_t)rows->rows * rows->cols;

    *wide = NULL;
    if (wire_rows != SY_BF16) return SY_OK;
    *wide = sy_buf_alloc(SY_MAX(n, (size_t)1) * sizeof(float));
    if (*wide == NULL) return SY_ENOMEM;
    if (rows->dtype == SY_F32)
        round_floats((*wide)->data, rows->data, n, kernels);
    else
        sy_dtype_widen((*wide)->data, rows->data, rows->dtype, n);
    *rows = (sy_rows){SY_F32, rows->rows, rows->cols, (*wide)->data};
    return SY_OK;
}
