/* sy_dtype.c - bf16 and f16 in integer arithmetic, so that neither the rounding mode nor a
 * flush-to-zero setting of the thread can change a bit. NaNs come out quiet with their payload
 * kept, as the F16C instructions give them. */
#include "sy_dtype.h"

#include <string.h>
#include <strings.h>

static const struct {
    const char *name;     /* ours */
    const char *alias[2]; /* safetensors', and config.json's */
    size_t bytes;
} dtype_info[] = {
    [SY_DTYPE_NONE] = {"none", {"none", "none"}, 0},
    [SY_F32] = {"f32", {"float32", "fp32"}, 4},
    [SY_BF16] = {"bf16", {"bfloat16", "bf16"}, 2},
    [SY_F16] = {"f16", {"float16", "fp16"}, 2},
    /* No element of these stands alone, and no file's tensor is read as one by its name. */
    [SY_Q8] = {"q8", {"q8", "q8"}, 0},
    [SY_Q4] = {"q4", {"q4", "q4"}, 0},
    [SY_FP8] = {"fp8", {"fp8", "fp8"}, 0},
    [SY_MXFP4] = {"mxfp4", {"mxfp4", "mxfp4"}, 0},
};

#define SCALE_BYTES    2
#define Q8_BLOCK_BYTES (SCALE_BYTES + SY_QUANT_BLOCK)
#define Q4_BLOCK_BYTES (SCALE_BYTES + SY_QUANT_BLOCK / 2)

#define MXFP4_CODES_BYTES (SY_QUANT_BLOCK / 2) /* of a block; its factor's byte lies elsewhere */
#define MXFP4_BLOCK_BYTES (MXFP4_CODES_BYTES + 1)

static uint32_t bits_of(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

size_t sy_dtype_bytes(sy_dtype dtype)
{
    return (size_t)dtype < SY_COUNT_OF(dtype_info) ? dtype_info[dtype].bytes : 0;
}

int sy_dtype_is_quant(sy_dtype dtype)
{
    return dtype == SY_Q8 || dtype == SY_Q4;
}

int sy_dtype_is_encoded(sy_dtype dtype)
{
    return dtype == SY_FP8 || dtype == SY_MXFP4;
}

static size_t blocks_of(size_t n, size_t block)
{
    return n / block + (n % block != 0);
}

size_t sy_dtype_row_bytes(sy_dtype dtype, size_t n)
{
    const size_t n_blocks = blocks_of(n, SY_QUANT_BLOCK);
    size_t n_items = n_blocks, item_bytes, rest_bytes = 0, bytes;

    switch (dtype) {
    case SY_Q8: item_bytes = Q8_BLOCK_BYTES; break;
    case SY_Q4: item_bytes = Q4_BLOCK_BYTES; break;
    case SY_MXFP4: item_bytes = MXFP4_BLOCK_BYTES; break;
    case SY_FP8:
        n_items = n;
        item_bytes = 1;
        rest_bytes = blocks_of(n, SY_FP8_BLOCK) * sizeof(float);
        break;
    default: n_items = n, item_bytes = sy_dtype_bytes(dtype);
    }
    if (__builtin_mul_overflow(n_items, item_bytes, &bytes) ||
        __builtin_add_overflow(bytes, rest_bytes, &bytes)) {
        return 0;
    }
    return bytes;
}

const char *sy_dtype_name(sy_dtype dtype)
{
    return (size_t)dtype < SY_COUNT_OF(dtype_info) ? dtype_info[dtype].name : "none";
}

sy_dtype sy_dtype_from_name(const char *name)
{
    for (size_t i = SY_F32; i <= SY_F16; i++) {
        if (strcasecmp(name, dtype_info[i].name) == 0 ||
            strcasecmp(name, dtype_info[i].alias[0]) == 0 ||
            strcasecmp(name, dtype_info[i].alias[1]) == 0) {
            return (sy_dtype)i;
        }
    }
    return SY_DTYPE_NONE;
}

float sy_bf16_to_f32(uint16_t v)
{
    return float_of((uint32_t)v << 16);
}

float sy_f16_to_f32(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000) << 16;
    const uint32_t exponent = (v >> 10) & 0x1f;
    const uint32_t fraction = v & 0x3ff;

    if (exponent == 0x1f) {
        const uint32_t quiet = fraction != 0 ? 0x400000 : 0;
        return float_of(sign | 0x7f800000 | quiet | fraction << 13);
    }
    /* A subnormal counts 2^-24ths: at most 10 bits, so the product is exact, and it is a normal
     * f32. */
    if (exponent == 0) return float_of(sign | bits_of((float)fraction * 0x1p-24f));
    return float_of(sign | (exponent + (127 - 15)) << 23 | fraction << 13);
}

uint16_t sy_f32_to_bf16(float v)
{
    const uint32_t bits = bits_of(v);

    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    /* Just under half of the last kept bit, and one more when that bit is odd; a carry out of the
     * largest finite number lands on infinity. */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t sy_f32_to_f16(float v)
{
    const uint32_t bits = bits_of(v);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000) { /* NaN */
        return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    }
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00); /* 65536 and more */
    if (magnitude >= 0x38800000) { /* 2^-14 and more: normal; 65520 carries into infinity */
        const uint32_t rebiased = magnitude - ((127u - 15u) << 23);
        return (uint16_t)(sign | (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13);
    }
    if (magnitude >= 0x33000000) { /* 2^-25 and more: subnormal, or rounds to the least one */
        const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
        const uint32_t shift = 126 - (magnitude >> 23); /* 14 to 24 */
        const uint32_t half = 1u << (shift - 1);
        return (uint16_t)(sign | (fraction + half - 1 + ((fraction >> shift) & 1)) >> shift);
    }
    return (uint16_t)sign;
}

float sy_f8_e4m3_to_f32(uint8_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x80) << 24;
    const uint32_t exponent = (v >> 3) & 15, fraction = v & 7;

    if ((v & 0x7f) == 0x7f) return float_of(sign | 0x7fc00000);
    /* A subnormal counts 2^-9ths. */
    if (exponent == 0) return float_of(sign | bits_of((float)fraction * 0x1p-9f));
    return float_of(sign | (exponent + (127 - 7)) << 23 | fraction << 20);
}

uint8_t sy_f32_to_f8_e4m3(float v)
{
    const uint32_t bits = bits_of(v);
    const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (magnitude >= 0x3c800000) { /* 2^-6 and more: normal */
        const uint32_t rebiased = magnitude - ((127u - 7u) << 23);
        const uint32_t code = (rebiased + 0x7ffff + ((rebiased >> 20) & 1)) >> 20;
        return (uint8_t)(sign | SY_MIN(code, 0x7eu));
    }
    if (magnitude >= 0x3a800000) { /* 2^-10 and more: subnormal, or rounds to the least one */
        const uint32_t fraction = (magnitude & 0x7fffff) | 0x800000;
        const uint32_t shift = 141 - (magnitude >> 23); /* 21 to 24 */
        const uint32_t half = 1u << (shift - 1);
        return (uint8_t)(sign | (fraction + half - 1 + ((fraction >> shift) & 1)) >> shift);
    }
    return (uint8_t)sign;
}

float sy_fp4_to_f32(unsigned code)
{
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    return code & 8 ? -value[code & 7] : value[code & 7];
}

static void widen_q8(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = in + i / SY_QUANT_BLOCK * Q8_BLOCK_BYTES;
        uint16_t scale;
        memcpy(&scale, block, sizeof(scale));
        const int8_t q = (int8_t)block[SCALE_BYTES + i % SY_QUANT_BLOCK];
        out[i] = sy_f16_to_f32(scale) * (float)q;
    }
}

static void widen_q4(float *out, const uint8_t *in, size_t n)
{
    const size_t half = SY_QUANT_BLOCK / 2;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *block = in + i / SY_QUANT_BLOCK * Q4_BLOCK_BYTES;
        const size_t at = i % SY_QUANT_BLOCK;
        uint16_t scale;
        memcpy(&scale, block, sizeof(scale));
        const int pair = block[SCALE_BYTES + at % half];
        out[i] = sy_f16_to_f32(scale) * (float)((at < half ? pair & 15 : pair >> 4) - 8);
    }
}

static void widen_fp8(float *out, const uint8_t *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float factor;
        memcpy(&factor, in + n + i / SY_FP8_BLOCK * sizeof(factor), sizeof(factor));
        out[i] = factor * sy_f8_e4m3_to_f32(in[i]);
    }
}

/* The e2m1 code times 2^(b - 127), exactly: denormals among them, and infinity past the largest. */
static float mxfp4_value(unsigned code, unsigned b)
{
    const uint32_t sign = (uint32_t)(code & 8) << 28, magnitude = code & 7;

    if (b == 255) return float_of(sign | 0x7fc00000);
    if (magnitude == 0) return float_of(sign);
    /* Code 1 is 2^-1; the others have an exponent above a bit of fraction. */
    const uint32_t fraction = magnitude == 1 ? 0x800000 : 0x800000 | (magnitude & 1) << 22;
    const int exponent = (int)b + (magnitude == 1 ? -1 : (int)(magnitude >> 1) - 1);
    if (exponent >= 255) return float_of(sign | 0x7f800000);
    if (exponent < 1) return float_of(sign | fraction >> (1 - exponent));
    return float_of(sign | (uint32_t)exponent << 23 | (fraction & 0x7fffff));
}

static void widen_mxfp4(float *out, const uint8_t *in, size_t n)
{
    const uint8_t *scale = in + blocks_of(n, SY_QUANT_BLOCK) * MXFP4_CODES_BYTES;

    for (size_t i = 0; i < n; i++) {
        const unsigned pair = in[i / 2];
        out[i] = mxfp4_value(i % 2 == 0 ? pair & 15 : pair >> 4, scale[i / SY_QUANT_BLOCK]);
    }
}

void sy_dtype_widen(float *out, const void *in, sy_dtype dtype, size_t n)
{
    const unsigned char *bytes = in;
    uint16_t v;

    switch (dtype) {
    case SY_F32:
        if (n > 0) memcpy(out, in, n * sizeof(*out));
        break;
    case SY_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&v, bytes + i * sizeof(v), sizeof(v));
            out[i] = sy_bf16_to_f32(v);
        }
        break;
    case SY_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&v, bytes + i * sizeof(v), sizeof(v));
            out[i] = sy_f16_to_f32(v);
        }
        break;
    case SY_Q8: widen_q8(out, bytes, n); break;
    case SY_Q4: widen_q4(out, bytes, n); break;
    case SY_FP8: widen_fp8(out, bytes, n); break;
    case SY_MXFP4: widen_mxfp4(out, bytes, n); break;
    case SY_DTYPE_NONE:
    default: SY_ASSERT(!"a dtype that has elements");
    }
}
