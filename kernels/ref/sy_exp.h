/* sy_exp.h - the constants of the one exp, and its scalar form. Every implementation performs these
 * steps in this order.
 *
 * x = n ln2 + r with |r| <= ln2/2. n is found by adding 1.5 * 2^23, which leaves the integer
 * nearest to x / ln2 in the low bits of t; exp(r) is a polynomial; 2^n is added to the exponent
 * field. The limits are chosen such that this addition cannot leave the normal numbers: at
 * SY_EXP_MIN the polynomial is >= 1 and n = -126, at SY_EXP_MAX it is < 1 and n = 128. Largest
 * error over all floats in range: 1.013 ulp. exp(+-0) is 1 exactly. */
#ifndef SY_EXP_H
#define SY_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SY_EXP_MIN \
    -0x1.5d589ep+6f /* ln 2^-126, rounded up: below it the result would be denormal and is +0 */
#define SY_EXP_MAX   0x1.62e42ep+6f /* the largest float whose exp is finite: above it +infinity */
#define SY_EXP_LOG2E 0x1.715476p+0f
#define SY_EXP_MAGIC 0x1.8p+23f
#define SY_EXP_LN2_HI \
    0x1.62e430p-1f /* ln2 rounded to float: x - n * hi is exact where it matters */
#define SY_EXP_LN2_LO -0x1.05c610p-29f
/* exp(r) = 1 + (r + r^2 * (C2 + C3 r + C4 r^2 + C5 r^3 + C6 r^4 + C7 r^5)) */
#define SY_EXP_C2 5.0000001201e-1f
#define SY_EXP_C3 1.6666665459e-1f
#define SY_EXP_C4 4.1665795894e-2f
#define SY_EXP_C5 8.3334519073e-3f
#define SY_EXP_C6 1.3981999507e-3f
#define SY_EXP_C7 1.9875691500e-4f

static inline float sy_exp_scalar(float x)
{
    uint32_t t_bits, y_bits;

    if (isnan(x)) return x;
    if (x < SY_EXP_MIN) return 0.0f;
    if (x > SY_EXP_MAX) return INFINITY;

    const float t = fmaf(x, SY_EXP_LOG2E, SY_EXP_MAGIC);
    const float n = t - SY_EXP_MAGIC;
    float r = fmaf(-n, SY_EXP_LN2_HI, x);
    r = fmaf(-n, SY_EXP_LN2_LO, r);
    float p = SY_EXP_C7;
    p = fmaf(p, r, SY_EXP_C6);
    p = fmaf(p, r, SY_EXP_C5);
    p = fmaf(p, r, SY_EXP_C4);
    p = fmaf(p, r, SY_EXP_C3);
    p = fmaf(p, r, SY_EXP_C2);
    const float y = fmaf(p, r * r, r) + 1.0f;

    memcpy(&t_bits, &t, sizeof(t_bits));
    memcpy(&y_bits, &y, sizeof(y_bits));
    y_bits += t_bits << 23; /* the magic number's own bits are shifted out */
    float result;
    memcpy(&result, &y_bits, sizeof(result));
    return result;
}

#endif
