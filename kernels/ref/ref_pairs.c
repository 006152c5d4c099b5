/* ref_pairs.c - the product with bf16 activations, for the reader: a chain over pairs of inputs,
 * the odd one of a pair first. */
#include "sy_pairs.h"
#include "sy_ref.h"

void sy_ref_round_bf16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = pairs_round(x[i]);
}

static float element(const uint16_t *x, const sy_panels *w, uint32_t n)
{
    float sum = 0.0f;

    for (uint32_t k = 0; k < w->k; k += 2) {
        const int has_odd = k + 1 < w->k; /* else a pair of zeros, whose product is added as well */
        sum = has_odd ? fmaf(pairs_widen(x[k + 1]), sy_panels_at(w, n, k + 1), sum)
                      : fmaf(0.0f, 0.0f, sum);
        sum = fmaf(pairs_widen(x[k]), sy_panels_at(w, n, k), sum);
    }
    return sum;
}

void sy_ref_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                        const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                        size_t end)
{
    const uint32_t n_end = (uint32_t)SY_MIN(end * SY_PANEL, (size_t)w->n);
    const unsigned before = pairs_enter();

    SY_ASSERT(w->dtype == SY_BF16);
    for (size_t t = 0; t < T; t++) {
        const uint16_t *row = x + (x_row != NULL ? x_row[t] : t) * x_stride;
        for (uint32_t n = (uint32_t)(begin * SY_PANEL); n < n_end; n++)
            y[t * y_stride + n] = element(row, w, n);
    }
    pairs_leave(before);
}
