/* sy_panels_quant.c - packs rows of Q8 or Q4 blocks into panels and back, bit for bit. */
#include "sy_quant_panel.h"

/* The bytes of one row's block in the order of its inputs: a byte an input for Q8 (biased), a
 * nibble an input for Q4 (biased as stored). */
static void read_block(uint8_t q[SY_QUANT_BLOCK], const uint8_t *quants, sy_dtype dtype)
{
    for (size_t i = 0; i < SY_QUANT_BLOCK; i++) {
        const uint8_t byte = quants[dtype == SY_Q8 ? i : i % (SY_QUANT_BLOCK / 2)];
        if (dtype == SY_Q8) {
            q[i] = byte ^ 0x80; /* int8 + 128, in eight bits */
        } else {
            q[i] = i < SY_QUANT_BLOCK / 2 ? byte & 15 : byte >> 4;
        }
    }
}

static void write_block(uint8_t *quants, const uint8_t q[SY_QUANT_BLOCK], sy_dtype dtype)
{
    const size_t half = SY_QUANT_BLOCK / 2;

    if (dtype == SY_Q8) {
        for (size_t i = 0; i < SY_QUANT_BLOCK; i++) quants[i] = q[i] ^ 0x80;
    } else {
        for (size_t i = 0; i < half; i++) quants[i] = (uint8_t)(q[i] | q[i + half] << 4);
    }
}

/* One column of one block of a panel; its 16 columns are each written whole, so Q4 bytes have both
 * their halves from here. */
static void pack_block(uint8_t *block, size_t c, const uint8_t *quants, sy_dtype dtype)
{
    uint8_t q[SY_QUANT_BLOCK];

    read_block(q, quants, dtype);
    if (dtype == SY_Q8) {
        for (size_t i = 0; i < SY_QUANT_BLOCK; i += 4)
            memcpy(block + quant_byte_of(dtype, c, i), q + i, 4);
    } else {
        for (size_t i = 0; i < SY_QUANT_BLOCK; i += 8) {
            uint8_t *to = block + quant_byte_of(dtype, c, i);
            for (size_t j = 0; j < 4; j++) to[j] = (uint8_t)(q[i + j] | q[i + j + 4] << 4);
        }
    }
}

void sy_quant_panel_pack(uint8_t *dst, const uint8_t *src, sy_dtype dtype, size_t n_columns,
                         size_t k)
{
    const size_t n_blocks = quant_blocks(k);
    const size_t quants_bytes = n_blocks * quant_block_bytes(dtype);
    const size_t block_bytes = quant_row_block_bytes(dtype);
    uint8_t *scales = dst + quants_bytes;

    /* Columns that are not there: zeros, behind a scale of zero. */
    if (n_columns < SY_PANEL) memset(dst, dtype == SY_Q8 ? 0x80 : 0x88, quants_bytes);
    memset(scales, 0, quant_panel_bytes(dtype, k) - quants_bytes);
    for (size_t c = 0; c < n_columns; c++) {
        for (size_t b = 0; b < n_blocks; b++) {
            const uint8_t *from = src + (c * n_blocks + b) * block_bytes;
            memcpy(scales + b * QUANT_PANEL_SCALES + c * QUANT_SCALE_BYTES, from,
                   QUANT_SCALE_BYTES);
            pack_block(dst + b * quant_block_bytes(dtype), c, from + QUANT_SCALE_BYTES, dtype);
        }
    }
}

void sy_quant_panel_unpack(uint8_t *dst, const uint8_t *panel, sy_dtype dtype, size_t begin,
                           size_t end, size_t k)
{
    const size_t n_blocks = quant_blocks(k);
    const size_t block_bytes = quant_row_block_bytes(dtype);
    const uint8_t *scales = panel + n_blocks * quant_block_bytes(dtype);

    for (size_t c = begin; c < end; c++) {
        for (size_t b = 0; b < n_blocks; b++) {
            const uint8_t *block = panel + b * quant_block_bytes(dtype);
            uint8_t *to = dst + ((c - begin) * n_blocks + b) * block_bytes;
            uint8_t q[SY_QUANT_BLOCK];
            for (size_t i = 0; i < SY_QUANT_BLOCK; i++) {
                const uint8_t byte = block[quant_byte_of(dtype, c, i)];
                if (dtype == SY_Q8) {
                    q[i] = byte;
                } else {
                    q[i] = quant_is_high(dtype, i) ? byte >> 4 : byte & 15;
                }
            }
            memcpy(to, scales + b * QUANT_PANEL_SCALES + c * QUANT_SCALE_BYTES, QUANT_SCALE_BYTES);
            write_block(to + QUANT_SCALE_BYTES, q, dtype);
        }
    }
}
