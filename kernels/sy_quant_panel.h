/* sy_quant_panel.h - where things lie in a panel of blocks, of integers (Q8, Q4) or of a
 * checkpoint's own codes (FP8, MXFP4): kernels/ only. The layout itself is said in sy_kernels.h. A
 * block's scales are its factors, too. */
#ifndef SY_QUANT_PANEL_H
#define SY_QUANT_PANEL_H

#include <string.h>

#include "sy_kernels.h"

#define QUANT_SCALE_BYTES  sizeof(uint16_t)
#define QUANT_LINE_BYTES   (SY_PANEL * 4)                 /* 16 columns of 4 bytes */
#define QUANT_LINES_MAX    (SY_QUANT_BLOCK / 4)           /* of a Q8 block; a Q4 block has half */
#define QUANT_PANEL_SCALES (SY_PANEL * QUANT_SCALE_BYTES) /* bytes of a block's scales */
#define ENCODED_PAIR_BYTES (SY_PANEL * 2)                 /* FP8: two inputs of 16 columns */
#define Q8_BIAS            128                            /* stored: q + 128 */
#define Q4_BIAS            8                              /* stored: q + 8 */

/* Of SY_QUANT_BLOCK inputs. */
static inline size_t quant_blocks(size_t k)
{
    return k / SY_QUANT_BLOCK + (k % SY_QUANT_BLOCK != 0);
}

static inline size_t quant_block_inputs(sy_dtype dtype)
{
    return dtype == SY_FP8 ? SY_FP8_BLOCK : SY_QUANT_BLOCK;
}

/* Of as many inputs as the type's blocks have. */
static inline size_t quant_blocks_of(sy_dtype dtype, size_t k)
{
    const size_t n = quant_block_inputs(dtype);

    return k / n + (k % n != 0);
}

/* Bytes of one block's quants, all 16 columns. */
static inline size_t quant_block_bytes(sy_dtype dtype)
{
    const size_t n = SY_PANEL * quant_block_inputs(dtype);

    return dtype == SY_Q8 || dtype == SY_FP8 ? n : n / 2;
}

/* Bytes of one block's scales, all 16 columns. */
static inline size_t quant_scales_bytes(sy_dtype dtype)
{
    if (dtype == SY_FP8) return SY_PANEL * sizeof(float);
    return dtype == SY_MXFP4 ? SY_PANEL : QUANT_PANEL_SCALES;
}

/* Bytes of a panel's quants. The last block of FP8 ends with its inputs, rounded up to a line. */
static inline size_t quant_quants_bytes(sy_dtype dtype, size_t k)
{
    if (dtype == SY_FP8) return (k + 3) / 4 * QUANT_LINE_BYTES;
    return quant_blocks_of(dtype, k) * quant_block_bytes(dtype);
}

/* Bytes of one block of a stored row. */
static inline size_t quant_row_block_bytes(sy_dtype dtype)
{
    return QUANT_SCALE_BYTES + (dtype == SY_Q8 ? SY_QUANT_BLOCK : SY_QUANT_BLOCK / 2);
}

/* Bytes of a panel of k inputs. No overflow: 2^27 blocks at most, for k is 32 bits wide. */
static inline size_t quant_panel_bytes(sy_dtype dtype, size_t k)
{
    const size_t bytes =
        quant_quants_bytes(dtype, k) + quant_blocks_of(dtype, k) * quant_scales_bytes(dtype);

    return (bytes + SY_CACHE_LINE - 1) / SY_CACHE_LINE * SY_CACHE_LINE;
}

/* The quants of a panel; behind them its scales. */
static inline const uint8_t *quant_panel_at(const sy_panels *w, size_t panel)
{
    return (const uint8_t *)w->data + panel * quant_panel_bytes(w->dtype, w->k);
}

static inline const uint8_t *quant_scales_at(const sy_panels *w, const uint8_t *panel)
{
    return panel + quant_quants_bytes(w->dtype, w->k);
}

/* Where column c of a block has the quant of input i of the block: a byte of it, and for nibbles
 * whether it is the byte's high half. */
static inline size_t quant_byte_of(sy_dtype dtype, size_t c, size_t i)
{
    const size_t line = dtype == SY_Q8 ? i / 4 : i / 8;

    if (dtype == SY_FP8) return i / 2 * ENCODED_PAIR_BYTES + c * 2 + i % 2;
    return line * QUANT_LINE_BYTES + c * 4 + i % 4;
}

static inline int quant_is_high(sy_dtype dtype, size_t i)
{
    return (dtype == SY_Q4 || dtype == SY_MXFP4) && i % 8 >= 4;
}

/* The integer q of input i of column c. */
static inline int quant_value(sy_dtype dtype, const uint8_t *block, size_t c, size_t i)
{
    const int byte = block[quant_byte_of(dtype, c, i)];

    if (dtype == SY_Q8) return byte - Q8_BIAS;
    return (quant_is_high(dtype, i) ? byte >> 4 : byte & 15) - Q4_BIAS;
}

static inline float quant_scale(const uint8_t *scales, size_t block, size_t c)
{
    uint16_t d;

    memcpy(&d, scales + block * QUANT_PANEL_SCALES + c * QUANT_SCALE_BYTES, sizeof(d));
    return sy_f16_to_f32(d);
}

/* The value of the code that column c has for input i. */
static inline float encoded_value(sy_dtype dtype, const uint8_t *block, size_t c, size_t i)
{
    const uint8_t byte = block[quant_byte_of(dtype, c, i)];

    if (dtype == SY_FP8) return sy_f8_e4m3_to_f32(byte);
    return sy_fp4_to_f32(quant_is_high(dtype, i) ? byte >> 4 : byte);
}

/* Of MXFP4, 2^(b - 127): as bits of a float b lies where the exponent is, but 2^-127 is a denormal,
 * and 255 shall be a NaN. The same bit of fraction makes both. */
static inline float encoded_factor(sy_dtype dtype, const uint8_t *scales, size_t block, size_t c)
{
    uint32_t bits;
    float factor;

    if (dtype == SY_FP8) {
        memcpy(&factor, scales + (block * SY_PANEL + c) * sizeof(factor), sizeof(factor));
        return factor;
    }
    const uint8_t b = scales[block * SY_PANEL + c];
    bits = (uint32_t)b << 23 | (b == 0 || b == 255 ? 1u << 22 : 0);
    memcpy(&factor, &bits, sizeof(factor));
    return factor;
}

/* Packs n_columns rows of blocks, row-major, into one panel of k inputs. */
void sy_quant_panel_pack(uint8_t *dst, const uint8_t *src, sy_dtype dtype, size_t n_columns,
                         size_t k);
/* Columns [begin, end) of a panel, as rows of blocks. */
void sy_quant_panel_unpack(uint8_t *dst, const uint8_t *panel, sy_dtype dtype, size_t begin,
                           size_t end, size_t k);
/* The same for FP8 and MXFP4. */
void sy_encoded_panel_pack(uint8_t *dst, const uint8_t *src, sy_dtype dtype, size_t n_columns,
                           size_t k);
void sy_encoded_panel_unpack(uint8_t *dst, const uint8_t *panel, sy_dtype dtype, size_t begin,
                             size_t end, size_t k);

#endif
