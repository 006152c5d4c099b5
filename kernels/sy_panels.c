/* sy_panels.c - the packed form of weight matrices: its size, packing, unpacking, and reading one
 * element back. */
#include "sy_kernels.h"

#include <string.h>

#include "ref/sy_ref.h"
#include "sy_quant_panel.h"

size_t sy_panels_count(uint32_t n)
{
    return n / SY_PANEL + (n % SY_PANEL != 0);
}

size_t sy_panel_bytes(sy_dtype dtype, uint32_t k)
{
    if (sy_dtype_is_quant(dtype) || sy_dtype_is_encoded(dtype)) return quant_panel_bytes(dtype, k);
    return (size_t)k * SY_PANEL * sy_dtype_bytes(dtype);
}

size_t sy_panels_bytes(sy_dtype dtype, uint32_t n, uint32_t k)
{
    size_t bytes;

    if (__builtin_mul_overflow(sy_panels_count(n), sy_panel_bytes(dtype, k), &bytes)) return 0;
    return bytes;
}

/* Elements of a constant size become plain moves; the source may have any alignment. */
static inline __attribute__((always_inline)) void pack_panel(uint8_t *dst, const uint8_t *src,
                                                             sy_dtype dtype, size_t item_bytes,
                                                             size_t n_columns, size_t k)
{
    const size_t line_bytes = SY_PANEL * item_bytes;

    if (n_columns < SY_PANEL) memset(dst, 0, k * line_bytes);
    for (size_t i = 0; i < k; i++) {
        for (size_t c = 0; c < n_columns; c++) {
            memcpy(dst + i * line_bytes + sy_panel_position(dtype, c) * item_bytes,
                   src + (c * k + i) * item_bytes, item_bytes);
        }
    }
}

void sy_panels_pack(void *dst, const void *src, sy_dtype dtype, uint32_t n, uint32_t k,
                    size_t begin, size_t end)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);
    const size_t panel_bytes = sy_panel_bytes(dtype, k);

    for (size_t panel = begin; panel < end; panel++) {
        const size_t column = panel * SY_PANEL;
        const size_t n_columns = SY_MIN(SY_PANEL, n - column);
        const uint8_t *from = (const uint8_t *)src + column * row_bytes;
        uint8_t *to = (uint8_t *)dst + panel * panel_bytes;
        switch (dtype) {
        case SY_BF16: pack_panel(to, from, SY_BF16, 2, n_columns, k); break;
        case SY_F16: pack_panel(to, from, SY_F16, 2, n_columns, k); break;
        case SY_F32: pack_panel(to, from, SY_F32, 4, n_columns, k); break;
        case SY_Q8:
        case SY_Q4: sy_quant_panel_pack(to, from, dtype, n_columns, k); break;
        case SY_FP8:
        case SY_MXFP4: sy_encoded_panel_pack(to, from, dtype, n_columns, k); break;
        case SY_DTYPE_NONE: break;
        }
    }
}

/* Lines [0, k) of one panel to rows [begin, end) of it, in blocks whose lines and whose piece of a
 * row both fit the first-level cache: rows of a power of two would evict each other. */
static inline __attribute__((always_inline)) void unpack_panel(uint8_t *dst, const uint8_t *src,
                                                               sy_dtype dtype, size_t item_bytes,
                                                               size_t begin, size_t end, size_t k)
{
    enum { BLOCK_LINES = 64 };
    const size_t line_bytes = SY_PANEL * item_bytes;

    for (size_t at = 0; at < k; at += BLOCK_LINES) {
        const size_t n = SY_MIN((size_t)BLOCK_LINES, k - at);
        for (size_t c = begin; c < end; c++) {
            const uint8_t *from = src + at * line_bytes + sy_panel_position(dtype, c) * item_bytes;
            uint8_t *to = dst + ((c - begin) * k + at) * item_bytes;
            for (size_t i = 0; i < n; i++)
                memcpy(to + i * item_bytes, from + i * line_bytes, item_bytes);
        }
    }
}

void sy_panels_unpack(void *dst, const sy_panels *w, uint32_t begin, uint32_t end)
{
    const size_t row_bytes = sy_dtype_row_bytes(w->dtype, w->k);
    const size_t panel_bytes = sy_panel_bytes(w->dtype, w->k);
    uint8_t *to = dst;

    SY_ASSERT(begin <= end && end <= w->n);
    for (size_t row = begin; row < end;) {
        const size_t first = row % SY_PANEL;
        const size_t last = SY_MIN((size_t)SY_PANEL, first + (end - row));
        const uint8_t *from = (const uint8_t *)w->data + row / SY_PANEL * panel_bytes;
        switch (w->dtype) {
        case SY_BF16: unpack_panel(to, from, SY_BF16, 2, first, last, w->k); break;
        case SY_F16: unpack_panel(to, from, SY_F16, 2, first, last, w->k); break;
        case SY_F32: unpack_panel(to, from, SY_F32, 4, first, last, w->k); break;
        case SY_Q8:
        case SY_Q4: sy_quant_panel_unpack(to, from, w->dtype, first, last, w->k); break;
        case SY_FP8:
        case SY_MXFP4: sy_encoded_panel_unpack(to, from, w->dtype, first, last, w->k); break;
        case SY_DTYPE_NONE: break;
        }
        to += (last - first) * row_bytes;
        row += last - first;
    }
}

static float quant_at(const sy_panels *w, size_t n, size_t k)
{
    const uint8_t *panel = quant_panel_at(w, n / SY_PANEL);
    const size_t b = k / SY_QUANT_BLOCK;
    const uint8_t *block = panel + b * quant_block_bytes(w->dtype);
    const int q = quant_value(w->dtype, block, n % SY_PANEL, k % SY_QUANT_BLOCK);

    return quant_scale(quant_scales_at(w, panel), b, n % SY_PANEL) * (float)q;
}

static float encoded_at(const sy_panels *w, size_t n, size_t k)
{
    const uint8_t *panel = quant_panel_at(w, n / SY_PANEL);
    const size_t n_inputs = quant_block_inputs(w->dtype), b = k / n_inputs, c = n % SY_PANEL;
    const uint8_t *block = panel + b * quant_block_bytes(w->dtype);

    return encoded_factor(w->dtype, quant_scales_at(w, panel), b, c) *
           encoded_value(w->dtype, block, c, k % n_inputs);
}

float sy_panels_at(const sy_panels *w, uint32_t n, uint32_t k)
{
    const size_t line = n / SY_PANEL * (size_t)w->k + k;
    const size_t item = line * SY_PANEL + sy_panel_position(w->dtype, n % SY_PANEL);
    float value;

    SY_ASSERT(n < w->n && k < w->k);
    if (sy_dtype_is_quant(w->dtype)) return quant_at(w, n, k);
    if (sy_dtype_is_encoded(w->dtype)) return encoded_at(w, n, k);
    sy_dtype_widen(&value, (const uint8_t *)w->data + item * sy_dtype_bytes(w->dtype), w->dtype, 1);
    return value;
}

int sy_kernels_is_small(size_t rows, uint32_t n, uint32_t k, sy_dtype dtype)
{
    const double products = (double)rows * n * k;
    const double weight_bytes = (double)n * (double)sy_dtype_row_bytes(dtype, k);

    return products < 1 << 20 && weight_bytes < 256 << 10;
}
