/* sy_quant_panel.h - where things lie in a panel of Q8 or Q4 blocks: kernels/ only. The layout
 * itself is said in sy_kernels.h. */
#ifndef SY_QUANT_PANEL_H
#define SY_QUANT_PANEL_H

#include <string.h>

#include "sy_kernels.h"

#define QUANT_SCALE_BYTES  sizeof(uint16_t)
#define QUANT_LINE_BYTES   (SY_PANEL * 4)                 /* 16 columns of 4 bytes */
#define QUANT_LINES_MAX    (SY_QUANT_BLOCK / 4)           /* of a Q8 block; a Q4 block has half */
#define QUANT_PANEL_SCALES (SY_PANEL * QUANT_SCALE_BYTES) /* bytes of a block's scales */
#define Q8_BIAS            128                            /* stored: q + 128 */
#define Q4_BIAS            8                              /* stored: q + 8 */

static inline size_t quant_blocks(size_t k)
{
    return k / SY_QUANT_BLOCK + (k % SY_QUANT_BLOCK != 0);
}

/* Bytes of one block's quants, all 16 columns. */
static inline size_t quant_block_bytes(sy_dtype dtype)
{
    return dtype == SY_Q8 ? SY_PANEL * SY_QUANT_BLOCK : SY_PANEL * SY_QUANT_BLOCK / 2;
}

/* Bytes of one block of a stored row. */
static inline size_t quant_row_block_bytes(sy_dtype dtype)
{
    return QUANT_SCALE_BYTES + (dtype == SY_Q8 ? SY_QUANT_BLOCK : SY_QUANT_BLOCK / 2);
}

/* Bytes of a panel of n_blocks blocks. No overflow: 2^27 blocks at most, for k is 32 bits wide. */
static inline size_t quant_panel_bytes(sy_dtype dtype, size_t n_blocks)
{
    const size_t bytes = n_blocks * (quant_block_bytes(dtype) + QUANT_PANEL_SCALES);

    return (bytes + SY_CACHE_LINE - 1) / SY_CACHE_LINE * SY_CACHE_LINE;
}

/* The quants of a panel; behind them, quant_blocks(k) blocks on, its scales. */
static inline const uint8_t *quant_panel_at(const sy_panels *w, size_t panel)
{
    return (const uint8_t *)w->data + panel * quant_panel_bytes(w->dtype, quant_blocks(w->k));
}

static inline const uint8_t *quant_scales_at(const sy_panels *w, const uint8_t *panel)
{
    return panel + quant_blocks(w->k) * quant_block_bytes(w->dtype);
}

/* Where column c of a block has the quant of input i < SY_QUANT_BLOCK: a byte of the block, and for
 * Q4 whether it is the byte's high half. */
static inline size_t quant_byte_of(sy_dtype dtype, size_t c, size_t i)
{
    const size_t line = dtype == SY_Q8 ? i / 4 : i / 8;

    return line * QUANT_LINE_BYTES + c * 4 + i % 4;
}

static inline int quant_is_high(sy_dtype dtype, size_t i)
{
    return dtype == SY_Q4 && i % 8 >= 4;
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

/* Packs n_columns rows of blocks, row-major, into one panel of k inputs. */
void sy_quant_panel_pack(uint8_t *dst, const uint8_t *src, sy_dtype dtype, size_t n_columns,
                         size_t k);
/* Columns [begin, end) of a panel, as rows of blocks. */
void sy_quant_panel_unpack(uint8_t *dst, const uint8_t *panel, sy_dtype dtype, size_t begin,
                           size_t end, size_t k);

#endif
