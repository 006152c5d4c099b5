/* sy_panels_encoded.c - packs rows of FP8 or MXFP4 codes and their factors into panels and back,
 * bit for bit: what a row has past its inputs, too. */
#include "sy_quant_panel.h"

#define MXFP4_CODES_BYTES (SY_QUANT_BLOCK / 2) /* of a row's block */
#define MXFP4_GROUP_BYTES 4                    /* eight codes: those of a column in a line */

/* Four nibbles as the low halves of four bytes, and the inverse. */
static uint32_t spread_nibbles(uint32_t v)
{
    v = (v | v << 8) & 0x00ff00ff;
    return (v | v << 4) & 0x0f0f0f0f;
}

static uint32_t gather_nibbles(uint32_t v)
{
    v = (v | v >> 4) & 0x00ff00ff;
    return (v | v >> 8) & 0x0000ffff;
}

/* A row has its nibbles in the order of inputs; a line the first four low and the others high. */
static void pack_mxfp4(uint8_t *dst, const uint8_t *row, size_t c, size_t n_blocks)
{
    const size_t n_groups = n_blocks * (MXFP4_CODES_BYTES / MXFP4_GROUP_BYTES);
    uint32_t v;

    for (size_t i = 0; i < n_groups; i++) {
        memcpy(&v, row + i * MXFP4_GROUP_BYTES, sizeof(v));
        v = spread_nibbles(v & 0xffff) | spread_nibbles(v >> 16) << 4;
        memcpy(dst + i * QUANT_LINE_BYTES + c * MXFP4_GROUP_BYTES, &v, sizeof(v));
    }
}

static void unpack_mxfp4(uint8_t *row, const uint8_t *panel, size_t c, size_t n_blocks)
{
    const size_t n_groups = n_blocks * (MXFP4_CODES_BYTES / MXFP4_GROUP_BYTES);
    uint32_t v;

    for (size_t i = 0; i < n_groups; i++) {
        memcpy(&v, panel + i * QUANT_LINE_BYTES + c * MXFP4_GROUP_BYTES, sizeof(v));
        v = gather_nibbles(v & 0x0f0f0f0f) | gather_nibbles(v >> 4 & 0x0f0f0f0f) << 16;
        memcpy(row + i * MXFP4_GROUP_BYTES, &v, sizeof(v));
    }
}

static void pack_fp8(uint8_t *dst, const uint8_t *row, size_t c, size_t k)
{
    for (size_t i = 0; i + 1 < k; i += 2)
        memcpy(dst + i / 2 * ENCODED_PAIR_BYTES + c * 2, row + i, 2);
    if (k % 2 != 0) dst[quant_byte_of(SY_FP8, c, k - 1)] = row[k - 1];
}

static void unpack_fp8(uint8_t *row, const uint8_t *panel, size_t c, size_t k)
{
    for (size_t i = 0; i + 1 < k; i += 2)
        memcpy(row + i, panel + i / 2 * ENCODED_PAIR_BYTES + c * 2, 2);
    if (k % 2 != 0) row[k - 1] = panel[quant_byte_of(SY_FP8, c, k - 1)];
}

/* Bytes of a row before its factors, and of one factor. */
static size_t row_codes_bytes(sy_dtype dtype, size_t k)
{
    return dtype == SY_FP8 ? k : quant_blocks_of(dtype, k) * MXFP4_CODES_BYTES;
}

static size_t factor_bytes(sy_dtype dtype)
{
    return quant_scales_bytes(dtype) / SY_PANEL;
}

void sy_encoded_panel_pack(uint8_t *dst, const uint8_t *src, sy_dtype dtype, size_t n_columns,
                           size_t k)
{
    const size_t quants_bytes = quant_quants_bytes(dtype, k);
    const size_t n_blocks = quant_blocks_of(dtype, k), item_bytes = factor_bytes(dtype);
    uint8_t *scales = dst + quants_bytes;

    /* Columns that are not there, and inputs past the last: codes of zero, behind factors of zero,
     * or of the least that MXFP4 has. */
    if (n_columns < SY_PANEL) memset(dst, 0, quants_bytes);
    if (k % 4 != 0) memset(dst + quants_bytes - QUANT_LINE_BYTES, 0, QUANT_LINE_BYTES);
    memset(scales, 0, quant_panel_bytes(dtype, k) - quants_bytes);
    for (size_t c = 0; c < n_columns; c++) {
        const uint8_t *row = src + c * sy_dtype_row_bytes(dtype, k);
        const uint8_t *factor = row + row_codes_bytes(dtype, k);
        if (dtype == SY_FP8) {
            pack_fp8(dst, row, c, k);
        } else {
            pack_mxfp4(dst, row, c, n_blocks);
        }
        for (size_t b = 0; b < n_blocks; b++)
            memcpy(scales + (b * SY_PANEL + c) * item_bytes, factor + b * item_bytes, item_bytes);
    }
}

void sy_encoded_panel_unpack(uint8_t *dst, const uint8_t *panel, sy_dtype dtype, size_t begin,
                             size_t end, size_t k)
{
    const size_t n_blocks = quant_blocks_of(dtype, k), item_bytes = factor_bytes(dtype);
    const uint8_t *scales = panel + quant_quants_bytes(dtype, k);

    for (size_t c = begin; c < end; c++) {
        uint8_t *row = dst + (c - begin) * sy_dtype_row_bytes(dtype, k);
        uint8_t *factor = row + row_codes_bytes(dtype, k);
        if (dtype == SY_FP8) {
            unpack_fp8(row, panel, c, k);
        } else {
            unpack_mxfp4(row, panel, c, n_blocks);
        }
        for (size_t b = 0; b < n_blocks; b++)
            memcpy(factor + b * item_bytes, scales + (b * SY_PANEL + c) * item_bytes, item_bytes);
    }
}
