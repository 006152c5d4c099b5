/* sy_cuda_pack.h - how bf16 weights of experts lie in a GPU's memory, and how they get there and
 * back. Plain C, no CUDA: the bytes are made on the host and copied as they are. sy_cuda_slot.h has
 * the same on the device, for every kind of weights.
 *
 * W[N,K] is cut into blocks of 16 rows by 64 inputs, padded with zeros; block (i, j) is the 2048
 * bytes at (i * ceil(K/64) + j) * 2048. It holds the A fragments of four mma.sync.m16n8k16, lane by
 * lane: lane 4g + t of step s has, as 16 contiguous bytes, with k = 64j + 16t + 4s,
 *     W[16i+g][k], [k+1]   W[16i+g+8][k], [k+1]   W[16i+g][k+2], [k+3]   W[16i+g+8][k+2], [k+3].
 * So a warp reads its weights with full 512-byte transactions, once and in order, and a lane's
 * activations of one block are 32 contiguous bytes of its token's row: no shared memory, no
 * permutation. The instruction's own k is permuted inside the 64, alike for both operands.
 *
 * Gate and up of an expert are one matrix of 2 * padded(F) rows: block i has rows 8i .. 8i+7 of
 * gate, then the same rows of up, so that one lane ends with g and u of the same output. */
#ifndef SY_CUDA_PACK_H
#define SY_CUDA_PACK_H

#include "sy_base.h"

enum {
    SY_CUDA_BLOCK_ROWS = 16,
    SY_CUDA_BLOCK_K = 64,
    SY_CUDA_BLOCK_BYTES = SY_CUDA_BLOCK_ROWS * SY_CUDA_BLOCK_K * 2
};

/* n rounded up to a multiple of SY_CUDA_BLOCK_K: the length in memory of rows of n activations.
 * n <= 2^31. */
uint32_t sy_cuda_padded(uint32_t n);

/* Blocks of rows, and bytes, of a packed matrix; bytes are 0 on overflow. */
uint32_t sy_cuda_row_blocks(uint32_t n);
size_t sy_cuda_pack_bytes(uint32_t n, uint32_t k);
/* Packs the blocks of rows [begin, end) of w, [n,k] row-major bf16 of any alignment, into dst (the
 * start of the whole packed matrix). Threads may pack different ones. */
void sy_cuda_pack(void *dst, const void *w, uint32_t n, uint32_t k, uint32_t begin, uint32_t end);
/* The inverse: all of w. */
void sy_cuda_unpack(void *w, const void *packed, uint32_t n, uint32_t k);

/* The same for gate and up, [ffn,k] each; there are padded(ffn) / 8 blocks of rows. */
uint32_t sy_cuda_gate_up_blocks(uint32_t ffn);
size_t sy_cuda_gate_up_bytes(uint32_t ffn, uint32_t k);
void sy_cuda_pack_gate_up(void *dst, const void *gate, const void *up, uint32_t ffn, uint32_t k,
                          uint32_t begin, uint32_t end);
void sy_cuda_unpack_gate_up(void *gate, void *up, const void *packed, uint32_t ffn, uint32_t k);

#endif
