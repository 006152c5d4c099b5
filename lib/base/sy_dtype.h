/* sy_dtype.h - element types of weights and rows, and their exact conversions. Pure. */
#ifndef SY_DTYPE_H
#define SY_DTYPE_H

#include "sy_base.h"

typedef enum sy_dtype {
    SY_DTYPE_NONE = 0,
    SY_F32 = 1,
    SY_BF16 = 2,
    SY_F16 = 3,
    /* Weights only: blocks of SY_QUANT_BLOCK elements of a row behind one f16 scale d, as GGUF's
     * Q8_0 and Q4_0 have them. Q8: d, then 32 int8; element = d * q. Q4: d, then 16 bytes, whose
     * low nibbles are elements 0 to 15 and whose high nibbles are 16 to 31; element = d * (nibble -
     * 8). A row whose length is no multiple of 32 ends with a block that is filled with zeros. */
    SY_Q8 = 4,
    SY_Q4 = 5,
    /* Weights only, as checkpoints store them; never rounded to here. FP8: a row is its n codes of
     * e4m3, then ceil(n/128) fp32 factors (little endian, unaligned), each of 128 elements; element
     * = factor * code. MXFP4: a row is ceil(n/32) times 16 bytes, whose byte i has element 2i in
     * its low and 2i + 1 in its high nibble, as e2m1; then as many bytes b, each the factor
     * 2^(b - 127) of 32 elements, a NaN for 255. */
    SY_FP8 = 6,
    SY_MXFP4 = 7
} sy_dtype; /* as in tensor.proto */

#define SY_QUANT_BLOCK 32
#define SY_FP8_BLOCK   128

size_t sy_dtype_bytes(sy_dtype dtype); /* of one element: 4, 2, 2; 0 for anything else */
/* Of a row of n elements as stored, of any type, blocks among them; 0 on overflow or a bad type. */
size_t sy_dtype_row_bytes(sy_dtype dtype, size_t n);
int sy_dtype_is_quant(sy_dtype dtype);     /* SY_Q8, SY_Q4: what weights are rounded to */
int sy_dtype_is_encoded(sy_dtype dtype);   /* SY_FP8, SY_MXFP4: what checkpoints store */
const char *sy_dtype_name(sy_dtype dtype); /* "f32", "bf16", "f16", "q8", "q4", "fp8", "mxfp4",
                                              "none" */
/* Any case, safetensors' spelling as well; SY_DTYPE_NONE if unknown. The names of block types are
 * unknown here: no file's tensor is one. */
sy_dtype sy_dtype_from_name(const char *name);

float sy_bf16_to_f32(uint16_t v);
float sy_f16_to_f32(uint16_t v);
float sy_f8_e4m3_to_f32(uint8_t v); /* "e4m3fn": up to 448, 0x7f and 0xff are NaN */
uint16_t sy_f32_to_bf16(float v);   /* to nearest even; a NaN stays a NaN */
uint16_t sy_f32_to_f16(float v);    /* to nearest even, overflow to infinity; a NaN stays a NaN */
uint8_t sy_f32_to_f8_e4m3(float v); /* to nearest even, within +-448; a NaN stays a NaN */
/* Of e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6, and the same below zero from code 8 on. */
float sy_fp4_to_f32(unsigned code); /* the low four bits count */

/* out: [n] floats; in: n elements of dtype, any alignment. No overlap. Of Q8 and Q4: the first n
 * elements of one row, whole blocks of which are there; each is the exact scale times the exact
 * integer, rounded to f32 (which rounds nothing). Of FP8 and MXFP4: a whole row of n; FP8's product
 * is rounded to f32, MXFP4's is exact, or infinite past what f32 holds. A NaN as code or factor
 * gives a NaN. */
void sy_dtype_widen(float *out, const void *in, sy_dtype dtype, size_t n);
/* 1 when none of n elements, of any alignment, is a NaN or infinite. Of a block type: the elements
 * of one row, as for sy_dtype_widen. */
int sy_dtype_all_finite(const void *in, sy_dtype dtype, uint64_t n);

#endif
