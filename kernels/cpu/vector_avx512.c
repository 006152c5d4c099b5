/* vector_avx512.c - operations on vectors with AVX-512; the last step is masked, so that lanes
 * without an element are neither read, nor written, nor added (a zero added to a partial of -0
 * would turn it into +0). */
#include "cpu/vec_avx512.h"

float sy_avx512_dot(const float *a, const float *b, size_t n)
{
    __m512 sum = _mm512_setzero_ps();

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 va = _mm512_maskz_loadu_ps(lanes, a + i);
        sum = _mm512_mask3_fmadd_ps(va, _mm512_maskz_loadu_ps(lanes, b + i), sum, lanes);
    }
    return partials_sum_avx512(sum);
}

void sy_avx512_swiglu(float *h, const float *g, const float *u, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 sign = _mm512_set1_ps(-0.0f);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 vg = _mm512_maskz_loadu_ps(lanes, g + i);
        const __m512 vu = _mm512_maskz_loadu_ps(lanes, u + i);
        const __m512 e = exp_avx512(_mm512_xor_ps(vg, sign));
        const __m512 silu = _mm512_div_ps(vg, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(h + i, lanes, _mm512_mul_ps(silu, vu));
    }
}

/* `minps` and `maxps` return their second operand when either is a NaN. */
void sy_avx512_clamped_swiglu(float *h, const float *g, const float *u, float limit, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 sign = _mm512_set1_ps(-0.0f);
    const __m512 slope = _mm512_set1_ps(SY_CLAMPED_SLOPE);
    const __m512 high = _mm512_set1_ps(limit);
    const __m512 low = _mm512_set1_ps(-limit);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 a = _mm512_min_ps(high, _mm512_maskz_loadu_ps(lanes, g + i));
        const __m512 vu = _mm512_min_ps(high, _mm512_maskz_loadu_ps(lanes, u + i));
        const __m512 b = _mm512_max_ps(low, vu);
        const __m512 e = exp_avx512(_mm512_xor_ps(_mm512_mul_ps(slope, a), sign));
        const __m512 glu = _mm512_div_ps(a, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(h + i, lanes, _mm512_mul_ps(_mm512_add_ps(b, one), glu));
    }
}

void sy_avx512_rmsnorm(float *y, const float *x, const float *w, float eps, size_t n)
{
    const __m512 r = _mm512_set1_ps(sy_rms_factor(sy_avx512_dot(x, x, n), eps, n));

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), r);
        const __m512 vw = _mm512_maskz_loadu_ps(lanes, w + i);
        _mm512_mask_storeu_ps(y + i, lanes, _mm512_mul_ps(vw, scaled));
    }
}

/* The largest value, NaN passed over: `maxps` returns its second operand when either is a NaN.
 * -infinity if none. */
static float max_of(const float *x, size_t n)
{
    __m512 max = _mm512_set1_ps(-INFINITY);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        max = _mm512_mask_max_ps(max, lanes, _mm512_maskz_loadu_ps(lanes, x + i), max);
    }
    return _mm512_reduce_max_ps(max);
}

void sy_avx512_softmax(float *x, size_t n)
{
    const __m512 max = _mm512_set1_ps(max_of(x, n));
    __m512 sum = _mm512_setzero_ps();

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 e = exp_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), max));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        sum = _mm512_mask_add_ps(sum, lanes, sum, e);
    }
    const __m512 total = _mm512_set1_ps(partials_sum_avx512(sum));
    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 e = _mm512_maskz_loadu_ps(lanes, x + i);
        _mm512_mask_storeu_ps(x + i, lanes, _mm512_div_ps(e, total));
    }
}

void sy_avx512_axpy(float *y, const float *x, float a, size_t n)
{
    const __m512 va = _mm512_set1_ps(a);

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 vx = _mm512_maskz_loadu_ps(lanes, x + i);
        const __m512 vy = _mm512_maskz_loadu_ps(lanes, y + i);
        _mm512_mask_storeu_ps(y + i, lanes, _mm512_fmadd_ps(va, vx, vy));
    }
}

void sy_avx512_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 vx = _mm512_maskz_loadu_ps(lanes, x + i);
        const __m512 vy = _mm512_maskz_loadu_ps(lanes, y + i);
        _mm512_mask_storeu_ps(y + i, lanes, _mm512_add_ps(vy, vx));
    }
}

void sy_avx512_rope(float *x, const float *c, const float *s, size_t half)
{
    for (size_t i = 0; i < half; i += WIDTH) {
        const __mmask16 lanes = lanes_of(half - i);
        const __m512 a = _mm512_maskz_loadu_ps(lanes, x + i);
        const __m512 b = _mm512_maskz_loadu_ps(lanes, x + i + half);
        const __m512 vc = _mm512_maskz_loadu_ps(lanes, c + i);
        const __m512 vs = _mm512_maskz_loadu_ps(lanes, s + i);
        const __m512 first = _mm512_sub_ps(_mm512_mul_ps(a, vc), _mm512_mul_ps(b, vs));
        const __m512 second = _mm512_add_ps(_mm512_mul_ps(b, vc), _mm512_mul_ps(a, vs));
        _mm512_mask_storeu_ps(x + i, lanes, first);
        _mm512_mask_storeu_ps(x + i + half, lanes, second);
    }
}

/* Two passes: the largest value, then the first place that holds it. */
size_t sy_avx512_argmax(const float *x, size_t n)
{
    const __m512 max = _mm512_set1_ps(max_of(x, n));

    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        const __m512 vx = _mm512_maskz_loadu_ps(lanes, x + i);
        const __mmask16 equal = _mm512_mask_cmp_ps_mask(lanes, vx, max, _CMP_EQ_OQ);
        if (equal != 0) return i + (size_t)__builtin_ctz(equal);
    }
    return 0; /* all are NaN */
}

void sy_avx512_vexp(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += WIDTH) {
        const __mmask16 lanes = lanes_of(n - i);
        _mm512_mask_storeu_ps(y + i, lanes, exp_avx512(_mm512_maskz_loadu_ps(lanes, x + i)));
    }
}

int sy_avx512_all_finite(const float *x, size_t n)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __mmask16 bad = 0;

    for (size_t i = 0; i < n; i += WIDTH) {
        const __m512i bits = _mm512_maskz_loadu_epi32(lanes_of(n - i), x + i);
        bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    }
    return bad == 0;
}

/* Two tables of one name, of which a machine runs one: they differ in int8 products only. */
#define COMMON                                                                        \
    .name = "avx512", .matmul = sy_avx512_matmul, .quantize = sy_avx512_quantize,     \
    .round_bf16 = sy_avx512_round_bf16, .matmul_bf16 = sy_avx512_matmul_bf16,         \
    .swiglu = sy_avx512_swiglu, .clamped_swiglu = sy_avx512_clamped_swiglu,           \
    .rmsnorm = sy_avx512_rmsnorm, .softmax = sy_avx512_softmax, .dot = sy_avx512_dot, \
    .axpy = sy_avx512_axpy, .add = sy_avx512_add, .rope = sy_avx512_rope,             \
    .attn_scores = sy_avx512_attn_scores, .attn_values = sy_avx512_attn_values,       \
    .argmax = sy_avx512_argmax, .vexp = sy_avx512_vexp, .all_finite = sy_avx512_all_finite

const sy_kernels sy_kernels_avx512 = {COMMON, .matmul_q8 = sy_avx2_matmul_q8};
const sy_kernels sy_kernels_avx512_vnni = {COMMON, .matmul_q8 = sy_vnni_matmul_q8};
