/* sy_dtype.h - element types of weights and rows, and their exact conversions. Pure. */
#ifndef SY_DTYPE_H
#define SY_DTYPE_H

#include "sy_base.h"

typedef enum sy_dtype {
    SY_DTYPE_NONE = 0,
    SY_F32 = 1,
    SY_BF16 = 2,
    SY_F16 = 3
} sy_dtype; /* as in tensor.proto */

size_t sy_dtype_bytes(sy_dtype dtype);     /* 4, 2, 2; 0 for anything else */
const char *sy_dtype_name(sy_dtype dtype); /* "f32", "bf16", "f16", "none" */
sy_dtype sy_dtype_from_name(
    const char *name); /* any case, safetensors' spelling as well; SY_DTYPE_NONE if unknown */

float sy_bf16_to_f32(uint16_t v);
float sy_f16_to_f32(uint16_t v);
uint16_t sy_f32_to_bf16(float v); /* to nearest even; a NaN stays a NaN */
uint16_t sy_f32_to_f16(float v);  /* to nearest even, overflow to infinity; a NaN stays a NaN */

/* out: [n] floats; in: n elements of dtype, any alignment. No overlap. */
void sy_dtype_widen(float *out, const void *in, sy_dtype dtype, size_t n);
/* 1 when none of n elements, of any alignment, is a NaN or infinite. */
int sy_dtype_all_finite(const void *in, sy_dtype dtype, uint64_t n);

#endif
