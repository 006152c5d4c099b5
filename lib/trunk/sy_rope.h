/* sy_rope.h - the frequencies of rotary embeddings. Pure. Formulas: transformers'
 * modeling_rope_utils.py (linear, llama3, yarn: arXiv:2309.00071), in fp32 like there.
 *
 * f[i] = theta^(-2i/d), i < d/2, d = rotary_dim; L the context that the model was trained on.
 * - linear: f[i] / factor.
 * - llama3: waves of length w = 2 pi / f[i] above L / low are divided by factor, those below L /
 *   high are kept; between, t = (L/w - low) / (high - low) and f[i] * ((1 - t) / factor + t).
 * - yarn: the dimension that turns r times within L is d ln(L / (2 pi r)) / (2 ln theta); f[i] is
 *   kept below that of beta_fast, divided by factor above that of beta_slow, a ramp between.
 * - long: f[i] divided by factor i of the short list or the long one. */
#ifndef SY_ROPE_H
#define SY_ROPE_H

#include "sy_model.h"

/* inv: [rotary_dim / 2]. is_long: of sequences that may pass L; says nothing but with SY_ROPE_LONG.
 */
void sy_rope_frequencies(float *inv, const sy_model_desc *desc, int is_long);

#endif
