/* ref_encoded.c - products with weights in a checkpoint's own encoding, for the reader: a chain
 * over the codes of a block, then one multiply-add with its factor. */
#include "sy_quant_panel.h"
#include "sy_ref.h"

static float column(const float *x, const sy_panels *w, const uint8_t *panel, size_t c)
{
    const size_t n_inputs = quant_block_inputs(w->dtype);
    float y = 0.0f;

    for (size_t k = 0; k < w->k; k += n_inputs) {
        const size_t b = k / n_inputs, n = SY_MIN(n_inputs, w->k - k);
        const uint8_t *block = panel + b * quant_block_bytes(w->dtype);
        float s = 0.0f;
        for (size_t i = 0; i < n; i++) s = fmaf(x[k + i], encoded_value(w->dtype, block, c, i), s);
        y = fmaf(encoded_factor(w->dtype, quant_scales_at(w, panel), b, c), s, y);
    }
    return y;
}

void sy_ref_matmul_encoded(float *y, size_t y_stride, const float *x, size_t x_stride,
                           const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                           size_t end)
{
    const size_t n_end = SY_MIN(end * SY_PANEL, w->n);

    for (size_t t = 0; t < T; t++) {
        const float *row = x + (x_row != NULL ? x_row[t] : t) * x_stride;
        for (size_t n = begin * SY_PANEL; n < n_end; n++) {
            const uint8_t *panel = quant_panel_at(w, n / SY_PANEL);
            y[t * y_stride + n] = column(row, w, panel, n % SY_PANEL);
        }
    }
}
