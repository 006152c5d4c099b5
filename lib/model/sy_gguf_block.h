/* sy_gguf_block.h - the element types of GGUF files: how many elements and bytes a block of each
 * has, and the decoding of those that are read to floats. The numbers and layouts are ggml's
 * (https://github.com/ggml-org/ggml, include/ggml.h and src/ggml-common.h). Pure: any thread. */
#ifndef SY_GGUF_BLOCK_H
#define SY_GGUF_BLOCK_H

#include "sy_dtype.h"
#include "sy_status.h"

/* As they stand in a file; those that are decoded. */
typedef enum sy_gguf_type {
    SY_GGUF_F32 = 0,
    SY_GGUF_F16 = 1,
    SY_GGUF_Q4_0 = 2,
    SY_GGUF_Q5_0 = 6, /* what quantisers take for Q4_K where a row is no multiple of 256 */
    SY_GGUF_Q8_0 = 8,
    SY_GGUF_Q4_K = 12,
    SY_GGUF_Q5_K = 13,
    SY_GGUF_Q6_K = 14,
    SY_GGUF_BF16 = 30,
    SY_GGUF_MXFP4 = 39
} sy_gguf_type;

typedef struct sy_gguf_block {
    uint32_t type;
    const char *name;  /* "Q4_K": static */
    uint32_t elements; /* of one block; a row is whole blocks */
    uint32_t bytes;    /* of one block */
    sy_dtype dtype;    /* whose bytes a row equals: F32, F16, BF16, Q8_0 and Q4_0 have one */
} sy_gguf_block;

/* NULL: no version of the format has such a type. Those that are not decoded are known too, so
 * that the rest of a file can still be checked and looked at. */
const sy_gguf_block *sy_gguf_block_find(uint32_t type);
/* Of a row of n elements; 0: unknown type, n is no multiple of the block's elements, or overflow.
 */
uint64_t sy_gguf_row_bytes(uint32_t type, uint64_t n);

/* SY_EUNIMPLEMENTED with the names of the types that are decoded, unless this one is. */
SY_MUST_USE sy_status sy_gguf_decodable(uint32_t type, sy_error *err);
/* out: [n]; in: sy_gguf_row_bytes(type, n) bytes of whole blocks, any alignment. No overlap. The
 * type is decodable and n a multiple of its block. Gives the floats of ggml's reference, bit for
 * bit: every product of a scale and an integer here is exact, so that the one rounding, the
 * subtraction of a minimum in Q4_K and Q5_K, does not depend on how a compiler contracts. */
void sy_gguf_decode(float *out, const void *in, uint32_t type, size_t n);

#endif
