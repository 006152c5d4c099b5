/* sy_gguf_block.c - one table, and one function a block type. Scales are f16, little-endian, as the
 * files have them on every machine this is built for. */
#include "sy_gguf_block.h"

#include <string.h>

enum { SMALL = 32, LARGE = 256 }; /* elements of a block of the older types, and of the K types */

static const sy_gguf_block blocks[] = {
    {SY_GGUF_F32, "F32", 1, 4, SY_F32},
    {SY_GGUF_F16, "F16", 1, 2, SY_F16},
    {SY_GGUF_BF16, "BF16", 1, 2, SY_BF16},
    {SY_GGUF_Q8_0, "Q8_0", SMALL, 34, SY_Q8},
    {SY_GGUF_Q4_0, "Q4_0", SMALL, 18, SY_Q4},
    {SY_GGUF_Q5_0, "Q5_0", SMALL, 22, SY_DTYPE_NONE},
    {SY_GGUF_Q4_K, "Q4_K", LARGE, 144, SY_DTYPE_NONE},
    {SY_GGUF_Q5_K, "Q5_K", LARGE, 176, SY_DTYPE_NONE},
    {SY_GGUF_Q6_K, "Q6_K", LARGE, 210, SY_DTYPE_NONE},
    {SY_GGUF_MXFP4, "MXFP4", SMALL, 17, SY_DTYPE_NONE},
    /* Known by size alone from here on. */
    {3, "Q4_1", SMALL, 20, SY_DTYPE_NONE},
    {7, "Q5_1", SMALL, 24, SY_DTYPE_NONE},
    {9, "Q8_1", SMALL, 36, SY_DTYPE_NONE},
    {10, "Q2_K", LARGE, 84, SY_DTYPE_NONE},
    {11, "Q3_K", LARGE, 110, SY_DTYPE_NONE},
    {15, "Q8_K", LARGE, 292, SY_DTYPE_NONE},
    {16, "IQ2_XXS", LARGE, 66, SY_DTYPE_NONE},
    {17, "IQ2_XS", LARGE, 74, SY_DTYPE_NONE},
    {18, "IQ3_XXS", LARGE, 98, SY_DTYPE_NONE},
    {19, "IQ1_S", LARGE, 50, SY_DTYPE_NONE},
    {20, "IQ4_NL", SMALL, 18, SY_DTYPE_NONE},
    {21, "IQ3_S", LARGE, 110, SY_DTYPE_NONE},
    {22, "IQ2_S", LARGE, 82, SY_DTYPE_NONE},
    {23, "IQ4_XS", LARGE, 136, SY_DTYPE_NONE},
    {24, "I8", 1, 1, SY_DTYPE_NONE},
    {25, "I16", 1, 2, SY_DTYPE_NONE},
    {26, "I32", 1, 4, SY_DTYPE_NONE},
    {27, "I64", 1, 8, SY_DTYPE_NONE},
    {28, "F64", 1, 8, SY_DTYPE_NONE},
    {29, "IQ1_M", LARGE, 56, SY_DTYPE_NONE},
    {34, "TQ1_0", LARGE, 54, SY_DTYPE_NONE},
    {35, "TQ2_0", LARGE, 66, SY_DTYPE_NONE},
    {40, "NVFP4", 64, 36, SY_DTYPE_NONE},
    {41, "Q1_0", 128, 18, SY_DTYPE_NONE},
};

const sy_gguf_block *sy_gguf_block_find(uint32_t type)
{
    for (size_t i = 0; i < SY_COUNT_OF(blocks); i++) {
        if (blocks[i].type == type) return &blocks[i];
    }
    return NULL;
}

uint64_t sy_gguf_row_bytes(uint32_t type, uint64_t n)
{
    const sy_gguf_block *block = sy_gguf_block_find(type);
    uint64_t bytes;

    if (block == NULL || n % block->elements != 0) return 0;
    if (__builtin_mul_overflow(n / block->elements, (uint64_t)block->bytes, &bytes)) return 0;
    return bytes;
}

static float load_f16(const uint8_t *in)
{
    uint16_t bits;

    memcpy(&bits, in, sizeof(bits));
    return sy_f16_to_f32(bits);
}

/* d; the fifth bits of elements 0 to 31; 16 bytes of low bits, laid out as Q4_0's. */
static void decode_q5_0(float *out, const uint8_t *in)
{
    const float d = load_f16(in);
    const uint8_t *high = in + 2;
    const uint8_t *low = in + 6;

    for (int i = 0; i < SMALL; i++) {
        const int nibble = i < SMALL / 2 ? low[i] & 15 : low[i - SMALL / 2] >> 4;
        const int fifth = high[i / 8] >> (i % 8) & 1;

        out[i] = d * (float)((nibble | fifth << 4) - 16);
    }
}

/* The eight scales and eight minimums of Q4_K and Q5_K, of 6 bits each, in 12 bytes: the low bytes
 * of the first four pairs, whose upper two bits belong to the last four; those have their low
 * nibbles in the last four bytes. */
static void unpack_scales(uint8_t scale[8], uint8_t min[8], const uint8_t packed[12])
{
    for (int i = 0; i < 4; i++) {
        scale[i] = packed[i] & 63;
        min[i] = packed[i + 4] & 63;
        scale[i + 4] = (uint8_t)((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        min[i + 4] = (uint8_t)(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
}

/* d, the minimums' scale, 12 bytes of packed scales, then nibbles: 32 bytes hold the elements of
 * two groups of 32, the first in the low nibbles. */
static void decode_q4_k(float *out, const uint8_t *in)
{
    const float d = load_f16(in);
    const float d_min = load_f16(in + 2);
    const uint8_t *nibbles = in + 16;
    uint8_t scale[8], min[8];

    unpack_scales(scale, min, in + 4);
    for (int group = 0; group < 8; group++) {
        const float step = d * (float)scale[group];
        const float base = d_min * (float)min[group];
        const uint8_t *pair = nibbles + group / 2 * 32;

        for (int i = 0; i < 32; i++) {
            const int q = group % 2 == 0 ? pair[i] & 15 : pair[i] >> 4;

            out[32 * group + i] = step * (float)q - base;
        }
    }
}

/* As Q4_K, with 32 bytes between scales and nibbles: byte i has the fifth bits of element i of each
 * group, the first group's lowest. */
static void decode_q5_k(float *out, const uint8_t *in)
{
    const float d = load_f16(in);
    const float d_min = load_f16(in + 2);
    const uint8_t *high = in + 16;
    const uint8_t *nibbles = in + 48;
    uint8_t scale[8], min[8];

    unpack_scales(scale, min, in + 4);
    for (int group = 0; group < 8; group++) {
        const float step = d * (float)scale[group];
        const float base = d_min * (float)min[group];
        const uint8_t *pair = nibbles + group / 2 * 32;

        for (int i = 0; i < 32; i++) {
            const int nibble = group % 2 == 0 ? pair[i] & 15 : pair[i] >> 4;
            const int q = nibble | (high[i] >> group & 1) << 4;

            out[32 * group + i] = step * (float)q - base;
        }
    }
}

/* 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, d. Each half of the
 * block is four groups of 32: groups 0 and 2 are the low and high nibbles of the half's first 32
 * bytes, 1 and 3 those of the next 32; group g has its upper bits at 2 g of 32 bytes. */
static void decode_q6_k(float *out, const uint8_t *in)
{
    const float d = load_f16(in + 208);

    for (int half = 0; half < 2; half++) {
        const uint8_t *low = in + 64 * half;
        const uint8_t *high = in + 128 + 32 * half;
        const uint8_t *scale = in + 192 + 8 * half;

        for (int group = 0; group < 4; group++) {
            for (int i = 0; i < 32; i++) {
                const uint8_t pair = low[group % 2 * 32 + i];
                const int nibble = group < 2 ? pair & 15 : pair >> 4;
                const int q = (nibble | (high[i] >> (2 * group) & 3) << 4) - 32;
                const int8_t s = (int8_t)scale[2 * group + i / 16];

                out[128 * half + 32 * group + i] = d * (float)s * (float)q;
            }
        }
    }
}

/* An exponent byte, then 16 bytes laid out as Q4_0's. The values are stored doubled, and the scale
 * is therefore half of 2^(e - 127): subnormal for the two least exponents. 255 is no NaN here. */
static void decode_mxfp4(float *out, const uint8_t *in)
{
    static const float doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t e = in[0];
    const uint32_t bits = e < 2 ? UINT32_C(0x00200000) << e : (e - 1) << 23;
    float scale;

    memcpy(&scale, &bits, sizeof(scale));
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = scale * doubled[in[1 + i] & 15];
        out[i + SMALL / 2] = scale * doubled[in[1 + i] >> 4];
    }
}

typedef void (*block_decoder)(float *out, const uint8_t *in);

static block_decoder decoder_of(uint32_t type)
{
    switch (type) {
    case SY_GGUF_Q5_0: return decode_q5_0;
    case SY_GGUF_Q4_K: return decode_q4_k;
    case SY_GGUF_Q5_K: return decode_q5_k;
    case SY_GGUF_Q6_K: return decode_q6_k;
    case SY_GGUF_MXFP4: return decode_mxfp4;
    default: return NULL;
    }
}

sy_status sy_gguf_decodable(uint32_t type, sy_error *err)
{
    const sy_gguf_block *block = sy_gguf_block_find(type);

    if (block != NULL && (block->dtype != SY_DTYPE_NONE || decoder_of(type) != NULL)) return SY_OK;
    return sy_error_set(err, SY_EUNIMPLEMENTED,
                        "the type %s is not supported; F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, "
                        "Q5_K, Q6_K and MXFP4 are: quantise the model to one of them",
                        block != NULL ? block->name : "of an unknown number");
}

void sy_gguf_decode(float *out, const void *in, uint32_t type, size_t n)
{
    const sy_gguf_block *block = sy_gguf_block_find(type);
    const block_decoder decode = decoder_of(type);
    const uint8_t *bytes = in;

    SY_ASSERT(block != NULL && n % block->elements == 0);
    if (decode == NULL) {
        sy_dtype_widen(out, in, block->dtype, n); /* asserts that there is a dtype */
        return;
    }
    for (size_t i = 0; i < n / block->elements; i++)
        decode(out + i * block->elements, bytes + i * block->bytes);
}
