/* sy_precision_text.h - a precision as operators and clients read it: in options, logs, replies. */
#ifndef SY_PRECISION_TEXT_H
#define SY_PRECISION_TEXT_H

#include "sy_kernels.h"

/* What --weights and --activations say, wherever they are offered. */
#define SY_WEIGHTS_HELP                                                                         \
    "as-stored, where what is encoded in fp8 or mxfp4 blocks takes bf16's room; fp8 or mxfp4: " \
    "such blocks as they are, 8.25 and 4.25 bits a weight; or rounded as they are loaded, in "  \
    "blocks of 32 with a scale: q8, 8.5 bits a weight, or q4, 4.5 bits; default as-stored"
#define SY_ACTIVATIONS_HELP                                                                       \
    "f32; or rounded before every product: bf16, for checkpoints of bf16, or q8, with --weights " \
    "q8 "                                                                                         \
    "or q4; default f32"

const char *sy_weights_name(sy_dtype weights); /* "as-stored", "bf16", "q8", "q4", "fp8", "mxfp4" */
const char *sy_activations_name(sy_activations activations); /* "f32", "bf16", "q8" */

/* Whether a reply says so: not of weights as they read, which "bf16" are as well. */
int sy_weights_are_told(sy_dtype weights);
/* What a reply says of a precision that is not exact, or not what the checkpoint reads as:
 * "weights=q4", "weights=fp8", "activations=q8". */
enum { SY_PRECISION_POLICIES_MAX = 2, SY_PRECISION_POLICY_BYTES = 48 };
/* prefix: before each name, "" or "expert_". Returns how many texts there are, 0 when there is
 * nothing to say. */
uint32_t sy_precision_policies(char (*out)[SY_PRECISION_POLICY_BYTES], const char *prefix,
                               sy_precision precision);

/* A gauge of 1 whose labels name the precision, for dashboards. */
void sy_precision_metric(const char *name, sy_precision precision);

#endif
