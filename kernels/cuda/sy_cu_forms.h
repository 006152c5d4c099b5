/* sy_cu_forms.h - how quantised weights lie in a GPU's memory, and how a lane gets bf16 out of
 * them.
 *
 * W[N,K] is cut into blocks of 16 rows by 128 inputs, padded with zero bytes; block (i, j) is at
 * (i * ceil(K/128) + j) blocks. Gate and up are interleaved as in sy_cuda_pack.h. A block is four
 * groups of 32 inputs, each two mma.sync.m16n8k16 under one scale: codes first, in the order of A
 * fragments, then scales. Of every group lane 4g + t has rows g and g + 8, and inputs 8t .. 8t+7:
 * 16 contiguous bytes of its token's row. The instruction's own k is permuted inside the 32, alike
 * for both operands.
 *   Q8, FP8: group q is the 512 bytes at 512q, 16 a lane, of which word 2s + r is row g + 8r and
 *     inputs 8t+4s .. 8t+4s+3, in bytes 0, 2, 1, 3.
 *   Q4, MXFP4: groups 2u and 2u+1 are the 512 bytes at 512u, 16 a lane, of which word 2v + r is row
 *     g + 8r of group 2u + v, inputs 8t+2p and 8t+2p+1 in nibbles p and p+4.
 *   Scales of Q8 and Q4: 16 bytes for each g, of which word 2u + r has the f16 of groups 2u and
 *     2u+1 of row g + 8r.
 *   Scales of MXFP4: 8 bytes for each g, of which word r has the bytes of groups 0 .. 3 of row
 *     g + 8r.
 *   FP8 has none here: sy_cuda_expert says where they are.
 * So two inputs that are neighbours lie 16 bits apart, as they must in a fragment, and a warp reads
 * codes with full 512-byte transactions, scales with whole sectors. */
#ifndef SY_CU_FORMS_H
#define SY_CU_FORMS_H

#include "sy_cu.h"

enum { SY_CU_GROUP = 32, SY_CU_GROUPS = 4, SY_CU_FORM_K = SY_CU_GROUP * SY_CU_GROUPS };

/* Groups of inputs that are not padding alone. */
static __host__ __device__ __forceinline__ uint32_t sy_cu_groups(uint32_t k)
{
    return k / SY_CU_GROUP + (k % SY_CU_GROUP != 0);
}

/* Pairs of bf16, one bit pattern in both halves. */
enum : uint32_t {
    SY_CU_ONES = 0x3f803f80u,
    SY_CU_MINUS_ZEROS = 0x80008000u,
    SY_CU_128 = 0x43004300u, /* whose last seven bits count ones */
    SY_CU_MINUS_136 = 0xc308c308u,
    SY_CU_2_120 = 0x7b807b80u,
    SY_CU_2_126 = 0x7e807e80u
};

/* A lane's two fragments of a group whose codes are bytes. Pair: of the two codes in the low, and
 * the high, bytes of the halves of a word. */
template <class Form> static __device__ __forceinline__ void sy_cu_widen_bytes(uint4 a[2], uint4 w)
{
    a[0] = {Form::low_pair(w.x), Form::low_pair(w.y), Form::high_pair(w.x), Form::high_pair(w.y)};
    a[1] = {Form::low_pair(w.z), Form::low_pair(w.w), Form::high_pair(w.z), Form::high_pair(w.w)};
}

/* The same for nibbles, of which a group has two words. */
template <class Form>
static __device__ __forceinline__ void sy_cu_widen_nibbles(uint4 a[2], uint32_t low, uint32_t high)
{
    a[0] = {Form::pair(low), Form::pair(high), Form::pair(low >> 4), Form::pair(high >> 4)};
    a[1] = {Form::pair(low >> 8), Form::pair(high >> 8), Form::pair(low >> 12),
            Form::pair(high >> 12)};
}

/* f16 scales of group q, of rows g and g + 8. */
static __device__ __forceinline__ void sy_cu_widen_scales(float s[2], uint4 scales, int q)
{
    const uint32_t low = q < 2 ? scales.x : scales.z, high = q < 2 ? scales.y : scales.w;

    s[0] = sy_widen_f16((uint16_t)(low >> q % 2 * 16));
    s[1] = sy_widen_f16((uint16_t)(high >> q % 2 * 16));
}

/* What follows is one form each, and a lane's part of one block of it. UINT4: of a block, 16 bytes
 * each; RING: blocks that a streaming warp has or waits for, the more the smaller they are; PLACES:
 * for blocks of a tiled warp, as many as registers allow: 2, or 1 that load_group fills again;
 * load: reads it, and (FP8) the numbers of its upper and its lower eight rows; widen, scales: of
 * group q.
 */

struct sy_cu_q8 {
    enum { UINT4 = 136, RING = 4, PLACES = 1, SCALES_INSIDE = 1 };
    uint4 code[4], scale;

    __device__ __forceinline__ void load(const uint4 *block, uint32_t lane, const float *,
                                         const float *)
    {
        SY_UNROLL
        for (int q = 0; q < 4; q++) code[q] = sy_load_stream(block + q * 32 + lane);
        scale = sy_load_stream(block + 128 + lane / 4);
    }
    /* Group q of another block, in the place of one that has been widened; the scales with the
     * last. */
    __device__ __forceinline__ void load_group(const uint4 *block, uint32_t lane, const float *,
                                               const float *, int q)
    {
        code[q] = sy_load_stream(block + q * 32 + lane);
        if (q == 3) scale = sy_load_stream(block + 128 + lane / 4);
    }
    /* q = (its low seven bits) - 128 (its sign), both of which a bf16 of 128 holds. */
    static __device__ __forceinline__ uint32_t low_pair(uint32_t w)
    {
        return sy_fma_bf16x2((w & 0x007f007fu) | SY_CU_128, SY_CU_ONES,
                             (w & 0x00800080u) | SY_CU_128 | SY_CU_MINUS_ZEROS);
    }
    static __device__ __forceinline__ uint32_t high_pair(uint32_t w)
    {
        return low_pair(w >> 8);
    }
    __device__ __forceinline__ void widen(uint4 a[2], int q) const
    {
        sy_cu_widen_bytes<sy_cu_q8>(a, code[q]);
    }
    __device__ __forceinline__ void scales(float s[2], int q) const
    {
        sy_cu_widen_scales(s, scale, q);
    }
};

struct sy_cu_q4 {
    enum { UINT4 = 72, RING = 6, PLACES = 2, SCALES_INSIDE = 1 };
    uint4 code[2], scale;

    __device__ __forceinline__ void load(const uint4 *block, uint32_t lane, const float *,
                                         const float *)
    {
        code[0] = sy_load_stream(block + lane);
        code[1] = sy_load_stream(block + 32 + lane);
        scale = sy_load_stream(block + 64 + lane / 4);
    }
    static __device__ __forceinline__ uint32_t pair(uint32_t w)
    {
        return sy_fma_bf16x2((w & 0x000f000fu) | SY_CU_128, SY_CU_ONES, SY_CU_MINUS_136);
    }
    __device__ __forceinline__ void widen(uint4 a[2], int q) const
    {
        const uint4 c = code[q / 2];
        sy_cu_widen_nibbles<sy_cu_q4>(a, q % 2 == 0 ? c.x : c.z, q % 2 == 0 ? c.y : c.w);
    }
    __device__ __forceinline__ void scales(float s[2], int q) const
    {
        sy_cu_widen_scales(s, scale, q);
    }
};

struct sy_cu_mxfp4 {
    enum { UINT4 = 68, RING = 6, PLACES = 2, SCALES_INSIDE = 1 };
    uint4 code[2];
    uint64_t scale;

    __device__ __forceinline__ void load(const uint4 *block, uint32_t lane, const float *,
                                         const float *)
    {
        code[0] = sy_load_stream(block + lane);
        code[1] = sy_load_stream(block + 32 + lane);
        scale = __ldg(reinterpret_cast<const uint64_t *>(block + 64) + lane / 4);
    }
    /* The bits of a code, where bf16 has them, are its value times 2^-126, the one denormal of e2m1
     * being one of bf16 then. */
    static __device__ __forceinline__ uint32_t pair(uint32_t w)
    {
        return sy_fma_bf16x2((w << 12 & 0x80008000u) | (w << 6 & 0x01c001c0u), SY_CU_2_126,
                             SY_CU_MINUS_ZEROS);
    }
    __device__ __forceinline__ void widen(uint4 a[2], int q) const
    {
        const uint4 c = code[q / 2];
        sy_cu_widen_nibbles<sy_cu_mxfp4>(a, q % 2 == 0 ? c.x : c.z, q % 2 == 0 ? c.y : c.w);
    }
    /* 2^(b - 127): the exponent of an fp32, but for the least, which is denormal, and the NaN. */
    static __device__ __forceinline__ float power(uint32_t b)
    {
        return __uint_as_float(b << 23 | (b == 0 || b == 255 ? 0x400000u : 0u));
    }
    __device__ __forceinline__ void scales(float s[2], int q) const
    {
        s[0] = power((uint32_t)(scale >> q * 8) & 255);
        s[1] = power((uint32_t)(scale >> (32 + q * 8)) & 255);
    }
};

struct sy_cu_fp8 {
    enum { UINT4 = 128, RING = 4, PLACES = 1, SCALES_INSIDE = 0 };
    uint4 code[4];
    float low, high;

    __device__ __forceinline__ void load(const uint4 *block, uint32_t lane, const float *low_scale,
                                         const float *high_scale)
    {
        SY_UNROLL
        for (int q = 0; q < 4; q++) code[q] = sy_load_stream(block + q * 32 + lane);
        low = __ldg(low_scale);
        high = __ldg(high_scale);
    }
    __device__ __forceinline__ void load_group(const uint4 *block, uint32_t lane,
                                               const float *low_scale, const float *high_scale,
                                               int q)
    {
        code[q] = sy_load_stream(block + q * 32 + lane);
        if (q != 3) return;
        low = __ldg(low_scale);
        high = __ldg(high_scale);
    }
    /* The bits of a code, where bf16 has them, are its value times 2^-120, denormals too; only NaN,
     * the largest code, would be 480. */
    static __device__ __forceinline__ uint32_t high_pair(uint32_t w)
    {
        const uint32_t magnitude = w & 0x7f007f00u;
        const uint32_t is_nan = (magnitude + 0x01000100u) & 0x80008000u;

        return sy_fma_bf16x2((w & 0x80008000u) | magnitude >> 4, SY_CU_2_120, SY_CU_MINUS_ZEROS) |
               (is_nan >> 8) * 0xff;
    }
    static __device__ __forceinline__ uint32_t low_pair(uint32_t w)
    {
        return high_pair(w << 8);
    }
    __device__ __forceinline__ void widen(uint4 a[2], int q) const
    {
        sy_cu_widen_bytes<sy_cu_fp8>(a, code[q]);
    }
    __device__ __forceinline__ void scales(float s[2], int) const
    {
        s[0] = low;
        s[1] = high;
    }
};

#endif
