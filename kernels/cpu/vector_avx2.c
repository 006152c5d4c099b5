/* vector_avx2.c - operations on vectors with AVX2 and FMA; the elements after the last whole step
 * are the reference's. */
#include "cpu/vec_avx2.h"

float sy_avx2_dot(const float *a, const float *b, size_t n)
{
    partials_avx2 sum = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    float p[SY_PARTIALS];
    size_t i = 0;

    for (; i + SY_PARTIALS <= n; i += SY_PARTIALS) {
        sum.lo = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum.lo);
        sum.hi = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8), sum.hi);
    }
    partials_store_avx2(p, sum);
    /* Partials without an element must stay as they are: adding a zero could turn -0 into +0. */
    for (; i < n; i++) p[i % SY_PARTIALS] = fmaf(a[i], b[i], p[i % SY_PARTIALS]);
    return sy_partials_sum(p);
}

void sy_avx2_swiglu(float *h, const float *g, const float *u, size_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 vg = _mm256_loadu_ps(g + i);
        const __m256 e = exp_avx2(_mm256_xor_ps(vg, sign));
        const __m256 silu = _mm256_div_ps(vg, _mm256_add_ps(one, e));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(silu, _mm256_loadu_ps(u + i)));
    }
    sy_ref_swiglu(h + i, g + i, u + i, n - i);
}

/* `minps` and `maxps` return their second operand when either is a NaN. */
void sy_avx2_clamped_swiglu(float *h, const float *g, const float *u, float limit, size_t n)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 slope = _mm256_set1_ps(SY_CLAMPED_SLOPE);
    const __m256 high = _mm256_set1_ps(limit);
    const __m256 low = _mm256_set1_ps(-limit);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 a = _mm256_min_ps(high, _mm256_loadu_ps(g + i));
        const __m256 b = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(u + i)));
        const __m256 e = exp_avx2(_mm256_xor_ps(_mm256_mul_ps(slope, a), sign));
        const __m256 glu = _mm256_div_ps(a, _mm256_add_ps(one, e));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(_mm256_add_ps(b, one), glu));
    }
    sy_ref_clamped_swiglu(h + i, g + i, u + i, limit, n - i);
}

void sy_avx2_rmsnorm(float *y, const float *x, const float *w, float eps, size_t n)
{
    const float r = sy_rms_factor(sy_avx2_dot(x, x, n), eps, n);
    const __m256 vr = _mm256_set1_ps(r);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), vr);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(w + i), scaled));
    }
    for (; i < n; i++) y[i] = w[i] * (x[i] * r);
}

/* The largest value, NaN passed over: `maxps` returns its second operand when either is a NaN.
 * -infinity if none. */
static float max_of(const float *x, size_t n)
{
    __m256 lanes = _mm256_set1_ps(-INFINITY);
    float lane[8];
    float max = -INFINITY;
    size_t i = 0;

    for (; i + 8 <= n; i += 8) lanes = _mm256_max_ps(_mm256_loadu_ps(x + i), lanes);
    _mm256_storeu_ps(lane, lanes);
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t j = 0; j < 8; j++) max = lane[j] > max ? lane[j] : max;
    return max;
}

void sy_avx2_softmax(float *x, size_t n)
{
    const float max = max_of(x, n);
    const __m256 vmax = _mm256_set1_ps(max);
    partials_avx2 sum = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    float p[SY_PARTIALS];
    size_t i = 0;

    for (; i + SY_PARTIALS <= n; i += SY_PARTIALS) {
        const __m256 lo = exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i), vmax));
        const __m256 hi = exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), vmax));
        _mm256_storeu_ps(x + i, lo);
        _mm256_storeu_ps(x + i + 8, hi);
        sum.lo = _mm256_add_ps(sum.lo, lo);
        sum.hi = _mm256_add_ps(sum.hi, hi);
    }
    partials_store_avx2(p, sum);
    for (; i < n; i++) {
        x[i] = sy_exp_scalar(x[i] - max);
        p[i % SY_PARTIALS] += x[i];
    }
    const float total = sy_partials_sum(p);
    const __m256 vtotal = _mm256_set1_ps(total);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_div_ps(_mm256_loadu_ps(x + i), vtotal));
    for (; i < n; i++) x[i] /= total;
}

void sy_avx2_axpy(float *y, const float *x, float a, size_t n)
{
    const __m256 va = _mm256_set1_ps(a);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 vx = _mm256_loadu_ps(x + i);
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(va, vx, _mm256_loadu_ps(y + i)));
    }
    sy_ref_axpy(y + i, x + i, a, n - i);
}

void sy_avx2_add(float *y, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    sy_ref_add(y + i, x + i, n - i);
}

void sy_avx2_rope(float *x, const float *c, const float *s, size_t half)
{
    size_t i = 0;

    for (; i + 8 <= half; i += 8) {
        const __m256 a = _mm256_loadu_ps(x + i);
        const __m256 b = _mm256_loadu_ps(x + i + half);
        const __m256 vc = _mm256_loadu_ps(c + i);
        const __m256 vs = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, vc), _mm256_mul_ps(b, vs)));
        _mm256_storeu_ps(x + i + half, _mm256_add_ps(_mm256_mul_ps(b, vc), _mm256_mul_ps(a, vs)));
    }
    for (; i < half; i++) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a * c[i] - b * s[i];
        x[i + half] = b * c[i] + a * s[i];
    }
}

/* Two passes: the largest value, then the first place that holds it. */
size_t sy_avx2_argmax(const float *x, size_t n)
{
    const float max = max_of(x, n);
    const __m256 vmax = _mm256_set1_ps(max);
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 equal = _mm256_cmp_ps(_mm256_loadu_ps(x + i), vmax, _CMP_EQ_OQ);
        const unsigned mask = (unsigned)_mm256_movemask_ps(equal);
        if (mask != 0) return i + (size_t)__builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (x[i] == max) return i;
    return 0; /* all are NaN */
}

void sy_avx2_vexp(float *y, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, exp_avx2(_mm256_loadu_ps(x + i)));
    sy_ref_vexp(y + i, x + i, n - i);
}

int sy_avx2_all_finite(const float *x, size_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent));
    }
    return _mm256_testz_si256(bad, bad) && sy_ref_all_finite(x + i, n - i);
}

const sy_kernels sy_kernels_avx2 = {
    .name = "avx2",
    .matmul = sy_avx2_matmul,
    .quantize = sy_avx2_quantize,
    .matmul_q8 = sy_avx2_matmul_q8,
    .round_bf16 = sy_avx2_round_bf16,
    .matmul_bf16 = sy_avx2_matmul_bf16,
    .swiglu = sy_avx2_swiglu,
    .clamped_swiglu = sy_avx2_clamped_swiglu,
    .rmsnorm = sy_avx2_rmsnorm,
    .softmax = sy_avx2_softmax,
    .dot = sy_avx2_dot,
    .axpy = sy_avx2_axpy,
    .add = sy_avx2_add,
    .rope = sy_avx2_rope,
    .attn_scores = sy_avx2_attn_scores,
    .attn_values = sy_avx2_attn_values,
    .argmax = sy_avx2_argmax,
    .vexp = sy_avx2_vexp,
    .all_finite = sy_avx2_all_finite,
};
