/* sy_quant.c - weights rounded to blocks of integers, the rows of int8 activations as they lie in
 * memory, and the options that choose between them. */
#include <math.h>
#include <strings.h>

#include "sy_quant_panel.h"

/* To the nearest integer, halves away from zero; |v| is far below what an int holds. As roundf, but
 * without a call an element. */
static int round_half_away(float v)
{
    const int whole = (int)v;
    const float rest = v - (float)whole; /* exact */

    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* The largest magnitude in a block of finite numbers. Their bits without the sign are in the order
 * of their values, and integers are compared side by side where floats are not. */
static float largest(const float w[SY_QUANT_BLOCK])
{
    int32_t bits[SY_QUANT_BLOCK], max = 0;
    float value;

    memcpy(bits, w, sizeof(bits));
    for (size_t i = 0; i < SY_QUANT_BLOCK; i++) {
        const int32_t magnitude = bits[i] & 0x7fffffff;
        max = magnitude > max ? magnitude : max;
    }
    memcpy(&value, &max, sizeof(value));
    return value;
}

/* The integers of one block, and its scale. All arithmetic is fp32, one operation after another, as
 * ggml's reference has it. A scale that f16 holds as zero leaves integers of zero. */
static int round_q8(uint8_t *dst, const float w[SY_QUANT_BLOCK])
{
    const float d = largest(w) / 127.0f;
    const uint16_t scale = sy_f32_to_f16(d);
    const float inverse = (scale & 0x7fff) != 0 ? 1.0f / d : 0.0f;
    if (!isfinite(sy_f16_to_f32(scale))) return 0;
    memcpy(dst, &scale, sizeof(scale));
    for (size_t i = 0; i < SY_QUANT_BLOCK; i++)
        dst[QUANT_SCALE_BYTES + i] = (uint8_t)(int8_t)round_half_away(w[i] * inverse);
    return 1;
}

static int round_q4(uint8_t *dst, const float w[SY_QUANT_BLOCK])
{
    const size_t half = SY_QUANT_BLOCK / 2;
    const float max = largest(w);
    uint8_t q[SY_QUANT_BLOCK];
    size_t first = 0; /* of that magnitude: its sign counts */

    while (fabsf(w[first]) != max) first++;
    const float d = (max > 0.0f ? w[first] : 0.0f) / -8.0f;
    const uint16_t scale = sy_f32_to_f16(d);
    const float inverse = (scale & 0x7fff) != 0 ? 1.0f / d : 0.0f;
    if (!isfinite(sy_f16_to_f32(scale))) return 0;
    memcpy(dst, &scale, sizeof(scale));
    for (size_t i = 0; i < SY_QUANT_BLOCK; i++) {
        const int nibble = (int)(w[i] * inverse + 8.5f); /* 0.5 to 16.5: never negative */
        q[i] = (uint8_t)SY_MIN(nibble, 15);
    }
    for (size_t i = 0; i < half; i++)
        dst[QUANT_SCALE_BYTES + i] = (uint8_t)(q[i] | q[i + half] << 4);
    return 1;
}

/* The usual case, in a form that vectorises. 0: one is not a number. */
static int widen_bf16_block(float w[SY_QUANT_BLOCK], const uint8_t *from)
{
    uint16_t stored[SY_QUANT_BLOCK];
    uint32_t bits[SY_QUANT_BLOCK];
    uint32_t n_bad = 0;

    memcpy(stored, from, sizeof(stored));
    for (size_t i = 0; i < SY_QUANT_BLOCK; i++) {
        bits[i] = (uint32_t)stored[i] << 16;
        n_bad += (stored[i] & 0x7f80) == 0x7f80;
    }
    memcpy(w, bits, sizeof(bits));
    return n_bad == 0;
}

/* Elements [at, at + 32) of a row of k as floats, zeros past its end. 0: one is not a number. */
static int widen_block(float w[SY_QUANT_BLOCK], const uint8_t *row, sy_dtype from, size_t at,
                       size_t k)
{
    const size_t n = SY_MIN((size_t)SY_QUANT_BLOCK, k - at);

    if (from == SY_BF16 && n == SY_QUANT_BLOCK) return widen_bf16_block(w, row + at * 2);
    memset(w, 0, SY_QUANT_BLOCK * sizeof(*w));
    sy_dtype_widen(w, row + at * sy_dtype_bytes(from), from, n);
    return sy_dtype_all_finite(w, SY_F32, n);
}

sy_status sy_quantize_rows(void *dst, sy_dtype to, const void *src, sy_dtype from, size_t n,
                           uint32_t k)
{
    const size_t row_bytes = (size_t)k * sy_dtype_bytes(from);
    uint8_t *out = dst;

    SY_ASSERT(sy_dtype_is_quant(to) && sy_dtype_bytes(from) != 0);
    for (size_t row = 0; row < n; row++) {
        for (size_t at = 0; at < k; at += SY_QUANT_BLOCK) {
            float w[SY_QUANT_BLOCK];
            if (!widen_block(w, (const uint8_t *)src + row * row_bytes, from, at, k))
                return SY_EINVAL;
            if (to == SY_Q8 ? !round_q8(out, w) : !round_q4(out, w)) return SY_EINVAL;
            out += quant_row_block_bytes(to);
        }
    }
    return SY_OK;
}

size_t sy_qrows_bytes(size_t T, uint32_t k)
{
    const size_t blocks = quant_blocks(k);
    const size_t block_bytes = SY_QUANT_BLOCK + sizeof(float) + sizeof(int32_t);
    size_t bytes;

    if (__builtin_mul_overflow(blocks * block_bytes, T, &bytes) ||
        __builtin_add_overflow(bytes, SY_CACHE_LINE - 1, &bytes)) {
        return 0;
    }
    return bytes / SY_CACHE_LINE * SY_CACHE_LINE;
}

void sy_qrows_at(sy_qrows *out, void *memory, size_t T, uint32_t k)
{
    uint8_t *at = memory;

    out->blocks = quant_blocks(k);
    out->stride = out->blocks * SY_QUANT_BLOCK;
    out->q = memory;
    at += T * out->stride;
    out->scale = (float *)(void *)at;
    at += T * out->blocks * sizeof(float);
    out->sum = (int32_t *)(void *)at;
}

const char *sy_arithmetic_name(sy_activations activations)
{
    switch (activations) {
    case SY_ACT_Q8: return "q8-block/1";
    case SY_ACT_BF16: return "bf16-pair/1";
    case SY_ACT_F32: break;
    }
    return SY_ARITHMETIC;
}

sy_status sy_precision_parse(sy_precision *out, const char *weights, const char *activations,
                             sy_error *err)
{
    *out = (sy_precision){SY_DTYPE_NONE, SY_ACT_F32};
    if (strcasecmp(weights, "q8") == 0) {
        out->weights = SY_Q8;
    } else if (strcasecmp(weights, "q4") == 0) {
        out->weights = SY_Q4;
    } else if (strcasecmp(weights, "fp8") == 0) {
        out->weights = SY_FP8;
    } else if (strcasecmp(weights, "mxfp4") == 0) {
        out->weights = SY_MXFP4;
    } else if (strcasecmp(weights, "bf16") == 0) {
        out->weights = SY_BF16;
    } else if (strcasecmp(weights, "as-stored") != 0) {
        return sy_error_set(err, SY_EINVAL,
                            "weights '%s': use as-stored, bf16, fp8, mxfp4, q8 or q4", weights);
    }
    if (strcasecmp(activations, "q8") == 0) {
        out->activations = SY_ACT_Q8;
    } else if (strcasecmp(activations, "bf16") == 0) {
        out->activations = SY_ACT_BF16;
        if (out->weights == SY_DTYPE_NONE) out->weights = SY_BF16;
    } else if (strcasecmp(activations, "f32") != 0) {
        return sy_error_set(err, SY_EINVAL, "activations '%s': use f32, bf16 or q8", activations);
    }
    if (out->activations == SY_ACT_BF16 && sy_dtype_is_quant(out->weights)) {
        return sy_error_set(err, SY_EINVAL,
                            "activations 'bf16' need bf16 weights: leave out --weights, or use "
                            "--activations q8");
    }
    if (out->activations != SY_ACT_F32 && sy_dtype_is_encoded(out->weights)) {
        return sy_error_set(err, SY_EINVAL,
                            "activations '%s' do not go with weights '%s': leave out --weights, or "
                            "use --activations f32",
                            activations, weights);
    }
    if (out->activations == SY_ACT_Q8 && !sy_dtype_is_quant(out->weights)) {
        return sy_error_set(err, SY_EINVAL,
                            "activations 'q8' need weights of integers: use --weights q8 or q4, "
                            "or --activations f32");
    }
    return SY_OK;
}
