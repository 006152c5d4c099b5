/* sy_precision_text.h - a precision as operators and clients read it: in options, logs, replies. */
#ifndef SY_PRECISION_TEXT_H
#define SY_PRECISION_TEXT_H

#include "sy_kernels.h"

/* What --weights and --activations say, wherever they are offered. */
#define SY_WEIGHTS_HELP                                                                       \
    "as-stored; or rounded as they are loaded, in blocks of 32 with a scale: q8, 8.5 bits a " \
    "weight, or q4, 4.5 bits; default as-stored"
#define SY_ACTIVATIONS_HELP                                                                       \
    "f32; or rounded before every product: bf16, for checkpoints of bf16, or q8, with --weights " \
    "q8 "                                                                                         \
    "or q4; default f32"

const char *sy_weights_name(sy_dtype weights);               /* "as-stored", "bf16", "q8", "q4" */
const char *sy_activations_name(sy_activations activations); /* "f32", "bf16", "q8" */

/* What a reply says of a precision that is not exact: "weights=q4", "activations=q8". */
enum { SY_PRECISION_POLICIES_MAX = 2, SY_PRECISION_POLICY_BYTES = 48 };
/* prefix: before each name, "" or "expert_". Returns how many texts there are, 0 when it is exact.
 */
uint32_t sy_precision_policies(char (*out)[SY_PRECISION_POLICY_BYTES], const char *prefix,
                               sy_precision precision);

/* A gauge of 1 whose labels name the precision, for dashboards. */
void sy_precision_metric(const char *name, sy_precision precision);

#endif
