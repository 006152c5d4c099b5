/* ref_matmul.c - the matrix product, for the reader: a chain of fused multiply-adds an output,
 * columns of a panel side by side only so that a weight is widened once. */
#include "sy_ref.h"

#include <string.h>

/* The 16 weights of input k, in the order of columns. */
static void widen_line(float line[SY_PANEL], const sy_panels *w, size_t panel, size_t k)
{
    const size_t line_bytes = SY_PANEL * sy_dtype_bytes(w->dtype);
    const uint8_t *from = (const uint8_t *)w->data + (panel * w->k + k) * line_bytes;
    float stored[SY_PANEL];

    sy_dtype_widen(stored, from, w->dtype, SY_PANEL);
    for (size_t c = 0; c < SY_PANEL; c++) line[c] = stored[sy_panel_position(w->dtype, c)];
}

static void panel_by_row(float *y, size_t n_columns, const float *x, const sy_panels *w,
                         size_t panel)
{
    float acc[SY_PANEL] = {0};

    for (size_t k = 0; k < w->k; k++) {
        float line[SY_PANEL];
        widen_line(line, w, panel, k);
        for (size_t c = 0; c < SY_PANEL; c++) acc[c] = fmaf(x[k], line[c], acc[c]);
    }
    memcpy(y, acc, n_columns * sizeof(*y));
}

void sy_ref_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                   const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end)
{
    if (sy_dtype_is_quant(w->dtype)) {
        sy_ref_matmul_quant(y, y_stride, x, x_stride, x_row, T, w, begin, end);
        return;
    }
    if (sy_dtype_is_encoded(w->dtype)) {
        sy_ref_matmul_encoded(y, y_stride, x, x_stride, x_row, T, w, begin, end);
        return;
    }
    for (size_t t = 0; t < T; t++) {
        const float *row = x + (x_row != NULL ? x_row[t] : t) * x_stride;
        for (size_t panel = begin; panel < end; panel++) {
            const size_t n = panel * SY_PANEL;
            panel_by_row(y + t * y_stride + n, SY_MIN(SY_PANEL, w->n - n), row, w, panel);
        }
    }
}
