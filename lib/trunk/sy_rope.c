/* sy_rope.c - one function a scaling: the frequency of pair i. */
#include "sy_rope.h"

#include <math.h>

#define TWO_PI 6.283185307179586

/* Where yarn's ramp begins and ends, in pairs. */
typedef struct yarn_ramp {
    float low, high;
} yarn_ramp;

static double yarn_dimension(const sy_model_desc *d, double turns)
{
    return d->rotary_dim * log((double)d->rope.original_context / (turns * TWO_PI)) /
           (2.0 * log((double)d->rope_theta));
}

static yarn_ramp make_ramp(const sy_model_desc *d)
{
    double low = yarn_dimension(d, (double)d->rope.beta_fast);
    double high = yarn_dimension(d, (double)d->rope.beta_slow);

    if (d->rope.truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, d->rotary_dim - 1.0);
    if (low == high) high += 0.001; /* a step, where a ramp would divide by zero */
    return (yarn_ramp){(float)low, (float)high};
}

static float yarn(const sy_rope_desc *rope, const yarn_ramp *ramp, float period, float i)
{
    const float t = fminf(fmaxf((i - ramp->low) / (ramp->high - ramp->low), 0.0f), 1.0f);

    return 1.0f / (rope->factor * period) * t + 1.0f / period * (1.0f - t);
}

static float llama3(const sy_rope_desc *rope, float inv)
{
    const float length = (float)rope->original_context, wave = (float)TWO_PI / inv;

    if (wave > length / rope->low_freq) return inv / rope->factor;
    if (wave < length / rope->high_freq || rope->high_freq == rope->low_freq) return inv;
    const float t = (length / wave - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1.0f - t) * inv / rope->factor + t * inv;
}

void sy_rope_frequencies(float *inv, const sy_model_desc *desc, int is_long)
{
    const sy_rope_desc *rope = &desc->rope;
    const float *factor = is_long ? rope->long_factor : rope->short_factor;
    const yarn_ramp ramp = rope->type == SY_ROPE_YARN ? make_ramp(desc) : (yarn_ramp){0, 0};

    for (uint32_t i = 0; i < desc->rotary_dim / 2; i++) {
        const float period = powf(desc->rope_theta, (float)(2 * i) / (float)desc->rotary_dim);

        switch (rope->type) {
        case SY_ROPE_PLAIN: inv[i] = 1.0f / period; break;
        case SY_ROPE_LINEAR: inv[i] = 1.0f / period / rope->factor; break;
        case SY_ROPE_LLAMA3: inv[i] = llama3(rope, 1.0f / period); break;
        case SY_ROPE_YARN: inv[i] = yarn(rope, &ramp, period, (float)i); break;
        case SY_ROPE_LONG: inv[i] = 1.0f / (factor[i] * period); break;
        }
    }
}
