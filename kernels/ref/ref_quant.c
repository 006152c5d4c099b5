/* ref_quant.c - products with weights of integer blocks, and int8 activations, for the reader. */
#include "sy_quant_panel.h"
#include "sy_ref.h"

/* fp32 activations: a chain over the integers of a block, then one multiply-add with its scale. */
static float column_f32(const float *x, const sy_panels *w, const uint8_t *panel, size_t c)
{
    float y = 0.0f;

    for (size_t k = 0; k < w->k; k += SY_QUANT_BLOCK) {
        const size_t b = k / SY_QUANT_BLOCK;
        const size_t n = SY_MIN((size_t)SY_QUANT_BLOCK, w->k - k);
        const uint8_t *block = panel + b * quant_block_bytes(w->dtype);
        float s = 0.0f;
        for (size_t i = 0; i < n; i++)
            s = fmaf(x[k + i], (float)quant_value(w->dtype, block, c, i), s);
        y = fmaf(quant_scale(quant_scales_at(w, panel), b, c), s, y);
    }
    return y;
}

void sy_ref_matmul_quant(float *y, size_t y_stride, const float *x, size_t x_stride,
                         const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                         size_t end)
{
    const size_t n_end = SY_MIN(end * SY_PANEL, w->n);

    for (size_t t = 0; t < T; t++) {
        const float *row = x + (x_row != NULL ? x_row[t] : t) * x_stride;
        for (size_t n = begin * SY_PANEL; n < n_end; n++) {
            const uint8_t *panel = quant_panel_at(w, n / SY_PANEL);
            y[t * y_stride + n] = column_f32(row, w, panel, n % SY_PANEL);
        }
    }
}

/* Rows in shared memory may change between the two looks at them. Then the integers are worth no
 * more than the row, but no input makes this undefined: fmaxf drops a NaN. */
static int8_t to_int8(float x)
{
    return (int8_t)rintf(fminf(fmaxf(x, -127.0f), 127.0f));
}

/* The n inputs of one block; the rest of its q becomes zeros. */
static void quantize_block(int8_t q[SY_QUANT_BLOCK], float *scale, int32_t *sum, const float *x,
                           size_t n)
{
    uint32_t max_bits = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        max_bits = SY_MAX(max_bits, bits & 0x7fffffff);
    }
    const sy_act_scale s = sy_act_scale_of(max_bits);
    memset(q, 0, SY_QUANT_BLOCK);
    *scale = s.scale;
    *sum = 0;
    for (size_t i = 0; i < n && s.inverse > 0; i++) {
        q[i] = to_int8(x[i] * s.inverse);
        *sum += q[i];
    }
}

void sy_ref_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                     uint32_t k)
{
    for (size_t row = 0; row < n; row++) {
        for (size_t b = 0; b < q->blocks; b++) {
            const size_t at = b * SY_QUANT_BLOCK;
            const size_t out = (t + row) * q->blocks + b;
            quantize_block(q->q + (t + row) * q->stride + at, q->scale + out, q->sum + out,
                           x + row * x_stride + at, SY_MIN((size_t)SY_QUANT_BLOCK, k - at));
        }
    }
}

static float column_q8(const int8_t *q, const float *scale, const sy_panels *w,
                       const uint8_t *panel, size_t c)
{
    const size_t n_blocks = quant_blocks(w->k);
    float y = 0.0f;

    for (size_t b = 0; b < n_blocks; b++) {
        const uint8_t *block = panel + b * quant_block_bytes(w->dtype);
        int32_t sum = 0; /* at most 32 * 128 * 128 in magnitude: exact as a float, too */
        for (size_t i = 0; i < SY_QUANT_BLOCK; i++)
            sum += quant_value(w->dtype, block, c, i) * q[b * SY_QUANT_BLOCK + i];
        const float d = quant_scale(quant_scales_at(w, panel), b, c) * scale[b];
        y = fmaf((float)sum, d, y);
    }
    return y;
}

void sy_ref_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row, size_t T,
                      const sy_panels *w, size_t begin, size_t end)
{
    const size_t n_end = SY_MIN(end * SY_PANEL, w->n);

    for (size_t t = 0; t < T; t++) {
        const size_t row = x_row != NULL ? x_row[t] : t;
        for (size_t n = begin * SY_PANEL; n < n_end; n++) {
            y[t * y_stride + n] = column_q8(x->q + row * x->stride, x->scale + row * x->blocks, w,
                                            quant_panel_at(w, n / SY_PANEL), n % SY_PANEL);
        }
    }
}
