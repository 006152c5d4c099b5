/* sy_synth_fill.h - the elements of synthetic tensors, and their encodings. Private to lib/model.
 */
#ifndef SY_SYNTH_FILL_H
#define SY_SYNTH_FILL_H

#include "sy_safetensors.h"

/* What a file's tensor holds of the model's. */
typedef enum synth_part {
    SYNTH_PLAIN,     /* its elements */
    SYNTH_F8,        /* e4m3 */
    SYNTH_F8_SCALES, /* their factors, fp32 */
    SYNTH_FP4,       /* pairs of e2m1 */
    SYNTH_FP4_SCALES /* their exponents */
} synth_part;

/* Element i is offset + scale * u(seed + i). */
typedef struct synth_fill {
    uint64_t seed;
    float offset, scale;
    synth_part part;
    sy_dtype dtype;                /* PLAIN */
    uint64_t n;                    /* elements of the model's tensor */
    uint64_t slabs, rows, columns; /* encoded: [rows, columns]; FP4: [slabs, columns, rows] in the
                                      order of the elements, as gpt-oss has experts unencoded */
} synth_fill;

/* All bytes of the file's tensor, in pieces. SY_ENOMEM, or what emit says. */
SY_MUST_USE sy_status synth_fill_emit(const synth_fill *fill, sy_st_emit emit, void *sink);

#endif
