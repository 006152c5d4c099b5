/* sy_cuda_pack.c - see sy_cuda_pack.h. One function knows where an element lies; packing walks the
 * packed bytes in order, unpacking the same way. */
#include "sy_cuda_pack.h"

#include <string.h>

#define STEPS         4 /* mma instructions a block */
#define LANES         32
#define LANE_ELEMENTS 8
#define HALF_ROWS     (SY_CUDA_BLOCK_ROWS / 2)

uint32_t sy_cuda_padded(uint32_t n)
{
    return (n + SY_CUDA_BLOCK_K - 1) / SY_CUDA_BLOCK_K * SY_CUDA_BLOCK_K;
}

static uint32_t k_blocks(uint32_t k)
{
    return k / SY_CUDA_BLOCK_K + (k % SY_CUDA_BLOCK_K != 0);
}

uint32_t sy_cuda_row_blocks(uint32_t n)
{
    return n / SY_CUDA_BLOCK_ROWS + (n % SY_CUDA_BLOCK_ROWS != 0);
}

uint32_t sy_cuda_gate_up_blocks(uint32_t ffn)
{
    return k_blocks(ffn) * (SY_CUDA_BLOCK_K / HALF_ROWS);
}

static size_t blocks_bytes(uint32_t row_blocks, uint32_t k)
{
    size_t bytes;

    if (__builtin_mul_overflow((size_t)row_blocks, (size_t)k_blocks(k), &bytes)) return 0;
    if (__builtin_mul_overflow(bytes, (size_t)SY_CUDA_BLOCK_BYTES, &bytes)) return 0;
    return bytes;
}

size_t sy_cuda_pack_bytes(uint32_t n, uint32_t k)
{
    return blocks_bytes(sy_cuda_row_blocks(n), k);
}

size_t sy_cuda_gate_up_bytes(uint32_t ffn, uint32_t k)
{
    return blocks_bytes(sy_cuda_gate_up_blocks(ffn), k);
}

/* Which row of its block and which input of its block element e of a lane is. */
typedef struct place {
    uint32_t row, k;
} place;

static place place_of(uint32_t step, uint32_t lane, uint32_t e)
{
    const uint32_t g = lane / 4, t = lane % 4;

    return (place){g + HALF_ROWS * (e / 2 % 2), 16 * t + 4 * step + 2 * (e / 4) + e % 2};
}

/* The 16 rows of a block, where they lie in row-major memory; NULL: padding. */
typedef struct block_rows {
    uint8_t *row[SY_CUDA_BLOCK_ROWS];
} block_rows;

/* Rows [8 * half, ...) of the block: rows [first, ...) of w, which has n. */
static void set_half(block_rows *rows, uint32_t half, const void *w, uint32_t first, uint32_t n,
                     uint32_t k)
{
    for (uint32_t r = 0; r < HALF_ROWS; r++) {
        const size_t row = (size_t)first + r;
        /* Packing only reads through it. */
        uint8_t *at = row < n ? (uint8_t *)(uintptr_t)w + row * k * 2 : NULL;
        rows->row[half * HALF_ROWS + r] = at;
    }
}

static void pack_rows(uint8_t *dst, const block_rows *rows, uint32_t k)
{
    for (uint32_t j = 0; j < k_blocks(k); j++)
        for (uint32_t i = 0; i < STEPS * LANES * LANE_ELEMENTS; i++, dst += 2) {
            const place p =
                place_of(i / (LANES * LANE_ELEMENTS), i / LANE_ELEMENTS % LANES, i % LANE_ELEMENTS);
            const uint32_t at = j * SY_CUDA_BLOCK_K + p.k;
            if (rows->row[p.row] == NULL || at >= k) {
                memset(dst, 0, 2);
            } else {
                memcpy(dst, rows->row[p.row] + (size_t)at * 2, 2);
            }
        }
}

static void unpack_rows(const block_rows *rows, const uint8_t *src, uint32_t k)
{
    for (uint32_t j = 0; j < k_blocks(k); j++)
        for (uint32_t i = 0; i < STEPS * LANES * LANE_ELEMENTS; i++, src += 2) {
            const place p =
                place_of(i / (LANES * LANE_ELEMENTS), i / LANE_ELEMENTS % LANES, i % LANE_ELEMENTS);
            const uint32_t at = j * SY_CUDA_BLOCK_K + p.k;
            if (rows->row[p.row] != NULL && at < k)
                memcpy(rows->row[p.row] + (size_t)at * 2, src, 2);
        }
}

static size_t block_offset(uint32_t block, uint32_t k)
{
    return (size_t)block * k_blocks(k) * SY_CUDA_BLOCK_BYTES;
}

static block_rows plain_rows(const void *w, uint32_t block, uint32_t n, uint32_t k)
{
    block_rows rows;

    set_half(&rows, 0, w, block * SY_CUDA_BLOCK_ROWS, n, k);
    set_half(&rows, 1, w, block * SY_CUDA_BLOCK_ROWS + HALF_ROWS, n, k);
    return rows;
}

static block_rows gate_up_rows(const void *gate, const void *up, uint32_t block, uint32_t ffn,
                               uint32_t k)
{
    block_rows rows;

    set_half(&rows, 0, gate, block * HALF_ROWS, ffn, k);
    set_half(&rows, 1, up, block * HALF_ROWS, ffn, k);
    return rows;
}

void sy_cuda_pack(void *dst, const void *w, uint32_t n, uint32_t k, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        const block_rows rows = plain_rows(w, i, n, k);
        pack_rows((uint8_t *)dst + block_offset(i, k), &rows, k);
    }
}

void sy_cuda_unpack(void *w, const void *packed, uint32_t n, uint32_t k)
{
    for (uint32_t i = 0; i < sy_cuda_row_blocks(n); i++) {
        const block_rows rows = plain_rows(w, i, n, k);
        unpack_rows(&rows, (const uint8_t *)packed + block_offset(i, k), k);
    }
}

void sy_cuda_pack_gate_up(void *dst, const void *gate, const void *up, uint32_t ffn, uint32_t k,
                          uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++) {
        const block_rows rows = gate_up_rows(gate, up, i, ffn, k);
        pack_rows((uint8_t *)dst + block_offset(i, k), &rows, k);
    }
}

void sy_cuda_unpack_gate_up(void *gate, void *up, const void *packed, uint32_t ffn, uint32_t k)
{
    for (uint32_t i = 0; i < sy_cuda_gate_up_blocks(ffn); i++) {
        const block_rows rows = gate_up_rows(gate, up, i, ffn, k);
        unpack_rows(&rows, (const uint8_t *)packed + block_offset(i, k), k);
    }
}
