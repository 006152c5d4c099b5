/* sy_cu_slot_forms.h - where the words of packed blocks come from in row-major memory, and where
 * the bytes of rows lie in packed blocks: sy_cuda_pack.h and sy_cu_forms.h from the other side. For
 * cu_slot.cu alone.
 *
 * In every chunk of 16 bytes of every form, words 0 and 2 belong to rows 0 .. 7 of the block, words
 * 1 and 3 to rows 8 .. 15. A form has:
 *   BLOCK_K, CHUNKS: inputs, and chunks, of a block
 *   FACTORS_INSIDE: 0: each row ends with a fp32 for every block, which SY_CU_TABLE_ROWS rows have
 *     in common, and a table has them, a number for as many rows by a block. factor: the bits of
 *     that of block j, from where a row begins
 *   row_bytes: of a row of k inputs
 *   row_in_half: which of its eight rows word w of a chunk is of
 *   word: word w of a chunk of block j, from where its row begins
 *   byte: byte b of row `row` of a row block, whose blocks begin at `blocks`; with a table, of a
 *     row's codes. */
#ifndef SY_CU_SLOT_FORMS_H
#define SY_CU_SLOT_FORMS_H

#include "sy_cu_forms.h"

enum { SY_CU_CHUNK = 16, SY_CU_TABLE_ROWS = 128 };

struct sy_cu_bf16_rows {
    enum { BLOCK_K = 64, CHUNKS = 128, FACTORS_INSIDE = 1 };

    static size_t row_bytes(uint32_t k)
    {
        return (size_t)k * 2;
    }
    static __device__ __forceinline__ uint32_t row_in_half(uint32_t chunk, uint32_t)
    {
        return chunk % 32 / 4;
    }
    static __device__ __forceinline__ uint32_t element(const uint8_t *row, uint32_t k, uint32_t i)
    {
        return i < k ? reinterpret_cast<const uint16_t *>(row)[i] : 0;
    }
    static __device__ __forceinline__ uint32_t word(const uint8_t *row, uint32_t k, uint32_t j,
                                                    uint32_t chunk, uint32_t w)
    {
        const uint32_t i = j * BLOCK_K + chunk % 4 * 16 + chunk / 32 * 4 + w / 2 * 2;

        return element(row, k, i) | element(row, k, i + 1) << 16;
    }
    static __device__ __forceinline__ uint8_t byte(const uint8_t *blocks, uint32_t row, uint32_t,
                                                   size_t b)
    {
        const size_t i = b / 2;
        const uint32_t in = i % BLOCK_K;
        const uint32_t chunk = in % 16 / 4 * 32 + row % 8 * 4 + in / 16;
        const uint32_t w = in % 4 / 2 * 2 + row / 8;

        return blocks[(i / BLOCK_K * CHUNKS + chunk) * SY_CU_CHUNK + w * 4 + in % 2 * 2 + b % 2];
    }
};

/* ---- codes that are bytes ---- */

enum { SY_CU_BYTES_CHUNKS = SY_CU_GROUPS * 32 };

/* Four codes as a word has them, which come from code[0] on; from the n-th on they are zeros. */
static __device__ __forceinline__ uint32_t sy_cu_four_bytes(const uint8_t *code, uint32_t n)
{
    const uint32_t c0 = n > 0 ? code[0] : 0, c1 = n > 1 ? code[1] : 0;
    const uint32_t c2 = n > 2 ? code[2] : 0, c3 = n > 3 ? code[3] : 0;

    return c0 | c2 << 8 | c1 << 16 | c3 << 24;
}

/* The first input of word w, within its group. */
static __device__ __forceinline__ uint32_t sy_cu_bytes_input(uint32_t chunk, uint32_t w)
{
    return chunk % 4 * 8 + w / 2 * 4;
}

/* Where a block has code i < 32 of its group q, of row `row`. */
static __device__ __forceinline__ uint32_t sy_cu_bytes_place(uint32_t row, uint32_t q, uint32_t i)
{
    const uint32_t chunk = q * 32 + row % 8 * 4 + i / 8, w = i % 8 / 4 * 2 + row / 8;

    return chunk * SY_CU_CHUNK + w * 4 + i % 2 * 2 + i % 4 / 2;
}

/* ---- codes that are nibbles ---- */

enum { SY_CU_NIBBLES_CHUNKS = SY_CU_GROUPS / 2 * 32 };

/* Eight codes as a word has them, from input `first` of the row's group on. */
template <class Form>
static __device__ __forceinline__ uint32_t sy_cu_eight_nibbles(const uint8_t *row, uint32_t group,
                                                               uint32_t first)
{
    uint32_t v = 0;

    for (uint32_t p = 0; p < 4; p++)
        v |= Form::code(row, group, first + 2 * p) << 4 * p |
             Form::code(row, group, first + 2 * p + 1) << (16 + 4 * p);
    return v;
}

/* Which group of the block, of its four, word w of a chunk is of. */
static __device__ __forceinline__ uint32_t sy_cu_nibbles_group(uint32_t chunk, uint32_t w)
{
    return chunk / 32 * 2 + w / 2;
}

/* Code i < 32 of group q of a block, of row `row`. */
static __device__ __forceinline__ uint32_t sy_cu_nibble(const uint8_t *block, uint32_t row,
                                                        uint32_t q, uint32_t i)
{
    const uint32_t chunk = q / 2 * 32 + row % 8 * 4 + i / 8, w = q % 2 * 2 + row / 8;
    const uint32_t nibble = i % 8 / 2 + i % 2 * 4;

    return block[chunk * SY_CU_CHUNK + w * 4 + nibble / 2] >> nibble % 2 * 4 & 15;
}

/* ---- scales that are f16, before the codes of each group of a row ---- */

enum { SY_CU_F16_CHUNKS = 8 };

static __device__ __forceinline__ uint32_t sy_cu_two_scales(const uint8_t *row, uint32_t k,
                                                            uint32_t group, uint32_t group_bytes)
{
    uint32_t v = 0;

    for (uint32_t i = 0; i < 2; i++)
        if (group + i < sy_cu_groups(k)) {
            const uint8_t *scale = row + (size_t)(group + i) * group_bytes;
            v |= (uint32_t) * reinterpret_cast<const uint16_t *>(scale) << 16 * i;
        }
    return v;
}

/* Where the f16 of group q lies, from the first scale of a block. */
static __device__ __forceinline__ uint32_t sy_cu_scale_place(uint32_t row, uint32_t q)
{
    return row % 8 * SY_CU_CHUNK + (q / 2 * 2 + row / 8) * 4 + q % 2 * 2;
}

/* ---- the forms ---- */

struct sy_cu_q8_rows {
    enum { BLOCK_K = SY_CU_FORM_K, CHUNKS = SY_CU_BYTES_CHUNKS + SY_CU_F16_CHUNKS };
    enum { FACTORS_INSIDE = 1 };
    enum { GROUP_BYTES = 2 + 32 };

    static size_t row_bytes(uint32_t k)
    {
        return (size_t)sy_cu_groups(k) * GROUP_BYTES;
    }
    static __device__ __forceinline__ uint32_t row_in_half(uint32_t chunk, uint32_t)
    {
        return chunk < SY_CU_BYTES_CHUNKS ? chunk % 32 / 4 : chunk - SY_CU_BYTES_CHUNKS;
    }
    static __device__ __forceinline__ uint32_t word(const uint8_t *row, uint32_t k, uint32_t j,
                                                    uint32_t chunk, uint32_t w)
    {
        if (chunk >= SY_CU_BYTES_CHUNKS)
            return sy_cu_two_scales(row, k, j * SY_CU_GROUPS + w / 2 * 2, GROUP_BYTES);
        const uint32_t group = j * SY_CU_GROUPS + chunk / 32;
        if (group >= sy_cu_groups(k)) return 0;
        return sy_cu_four_bytes(row + (size_t)group * GROUP_BYTES + 2 + sy_cu_bytes_input(chunk, w),
                                4);
    }
    static __device__ __forceinline__ uint8_t byte(const uint8_t *blocks, uint32_t row, uint32_t,
                                                   size_t b)
    {
        const size_t group = b / GROUP_BYTES;
        const uint32_t q = group % SY_CU_GROUPS, in = b % GROUP_BYTES;
        const uint8_t *block = blocks + group / SY_CU_GROUPS * (CHUNKS * SY_CU_CHUNK);

        if (in < 2) return block[SY_CU_BYTES_CHUNKS * SY_CU_CHUNK + sy_cu_scale_place(row, q) + in];
        return block[sy_cu_bytes_place(row, q, in - 2)];
    }
};

struct sy_cu_fp8_rows {
    enum { BLOCK_K = SY_CU_FORM_K, CHUNKS = SY_CU_BYTES_CHUNKS };
    enum { FACTORS_INSIDE = 0, FACTOR_BYTES = 4 };

    static size_t row_bytes(uint32_t k)
    {
        const size_t n_blocks = k / BLOCK_K + (k % BLOCK_K != 0);

        return k + n_blocks * FACTOR_BYTES;
    }
    static __device__ __forceinline__ uint32_t factor(const uint8_t *row, uint32_t k, uint32_t j)
    {
        const uint8_t *at = row + k + (size_t)j * FACTOR_BYTES; /* of any alignment */

        return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
    }
    static __device__ __forceinline__ uint32_t row_in_half(uint32_t chunk, uint32_t)
    {
        return chunk % 32 / 4;
    }
    static __device__ __forceinline__ uint32_t word(const uint8_t *row, uint32_t k, uint32_t j,
                                                    uint32_t chunk, uint32_t w)
    {
        const uint32_t i = j * BLOCK_K + chunk / 32 * SY_CU_GROUP + sy_cu_bytes_input(chunk, w);

        return i < k ? sy_cu_four_bytes(row + i, k - i) : 0;
    }
    static __device__ __forceinline__ uint8_t byte(const uint8_t *blocks, uint32_t row, uint32_t,
                                                   size_t b)
    {
        const uint8_t *block = blocks + b / BLOCK_K * (CHUNKS * SY_CU_CHUNK);

        return block[sy_cu_bytes_place(row, b % BLOCK_K / SY_CU_GROUP, b % SY_CU_GROUP)];
    }
};

struct sy_cu_q4_rows {
    enum { BLOCK_K = SY_CU_FORM_K, CHUNKS = SY_CU_NIBBLES_CHUNKS + SY_CU_F16_CHUNKS };
    enum { FACTORS_INSIDE = 1 };
    enum { GROUP_BYTES = 2 + 16 };

    static size_t row_bytes(uint32_t k)
    {
        return (size_t)sy_cu_groups(k) * GROUP_BYTES;
    }
    static __device__ __forceinline__ uint32_t row_in_half(uint32_t chunk, uint32_t)
    {
        return chunk < SY_CU_NIBBLES_CHUNKS ? chunk % 32 / 4 : chunk - SY_CU_NIBBLES_CHUNKS;
    }
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, uint32_t group, uint32_t i)
    {
        return row[(size_t)group * GROUP_BYTES + 2 + i % 16] >> i / 16 * 4 & 15;
    }
    static __device__ __forceinline__ uint32_t word(const uint8_t *row, uint32_t k, uint32_t j,
                                                    uint32_t chunk, uint32_t w)
    {
        if (chunk >= SY_CU_NIBBLES_CHUNKS)
            return sy_cu_two_scales(row, k, j * SY_CU_GROUPS + w / 2 * 2, GROUP_BYTES);
        const uint32_t group = j * SY_CU_GROUPS + sy_cu_nibbles_group(chunk, w);
        if (group >= sy_cu_groups(k)) return 0;
        return sy_cu_eight_nibbles<sy_cu_q4_rows>(row, group, chunk % 4 * 8);
    }
    static __device__ __forceinline__ uint8_t byte(const uint8_t *blocks, uint32_t row, uint32_t,
                                                   size_t b)
    {
        const size_t group = b / GROUP_BYTES;
        const uint32_t q = group % SY_CU_GROUPS, in = b % GROUP_BYTES;
        const uint8_t *block = blocks + group / SY_CU_GROUPS * (CHUNKS * SY_CU_CHUNK);

        if (in < 2)
            return block[SY_CU_NIBBLES_CHUNKS * SY_CU_CHUNK + sy_cu_scale_place(row, q) + in];
        return (uint8_t)(sy_cu_nibble(block, row, q, in - 2) |
                         sy_cu_nibble(block, row, q, in - 2 + 16) << 4);
    }
};

/* A row: the codes of all its groups, 16 bytes each, then a byte of scale for each. */
struct sy_cu_mxfp4_rows {
    enum { BLOCK_K = SY_CU_FORM_K, CHUNKS = SY_CU_NIBBLES_CHUNKS + 4 };
    enum { FACTORS_INSIDE = 1 };

    static size_t row_bytes(uint32_t k)
    {
        return (size_t)sy_cu_groups(k) * (16 + 1);
    }
    /* A chunk of scales is two of the eight rows. */
    static __device__ __forceinline__ uint32_t row_in_half(uint32_t chunk, uint32_t w)
    {
        return chunk < SY_CU_NIBBLES_CHUNKS ? chunk % 32 / 4
                                            : (chunk - SY_CU_NIBBLES_CHUNKS) * 2 + w / 2;
    }
    static __device__ __forceinline__ uint32_t code(const uint8_t *row, uint32_t group, uint32_t i)
    {
        return row[(size_t)group * 16 + i / 2] >> i % 2 * 4 & 15;
    }
    static __device__ __forceinline__ uint32_t word(const uint8_t *row, uint32_t k, uint32_t j,
                                                    uint32_t chunk, uint32_t w)
    {
        const uint32_t n_groups = sy_cu_groups(k);
        uint32_t v = 0;

        if (chunk < SY_CU_NIBBLES_CHUNKS) {
            const uint32_t group = j * SY_CU_GROUPS + sy_cu_nibbles_group(chunk, w);
            if (group >= n_groups) return 0;
            return sy_cu_eight_nibbles<sy_cu_mxfp4_rows>(row, group, chunk % 4 * 8);
        }
        for (uint32_t q = 0; q < SY_CU_GROUPS; q++) {
            const uint32_t group = j * SY_CU_GROUPS + q;
            if (group < n_groups) v |= (uint32_t)row[(size_t)n_groups * 16 + group] << 8 * q;
        }
        return v;
    }
    static __device__ __forceinline__ uint8_t byte(const uint8_t *blocks, uint32_t row, uint32_t k,
                                                   size_t b)
    {
        const size_t n_codes = (size_t)sy_cu_groups(k) * 16;
        const size_t group = b < n_codes ? b / 16 : b - n_codes;
        const uint32_t q = group % SY_CU_GROUPS;
        const uint8_t *block = blocks + group / SY_CU_GROUPS * (CHUNKS * SY_CU_CHUNK);

        if (b >= n_codes)
            return block[SY_CU_NIBBLES_CHUNKS * SY_CU_CHUNK + row % 8 * 8 + row / 8 * 4 + q];
        const uint32_t i = b % 16 * 2;
        return (uint8_t)(sy_cu_nibble(block, row, q, i) | sy_cu_nibble(block, row, q, i + 1) << 4);
    }
};

#endif
