/* ref_vector.c - operations on vectors, and attention over a run of keys, one element after
 * another. */
#include "sy_ref.h"

float sy_ref_dot(const float *a, const float *b, size_t n)
{
    float p[SY_PARTIALS] = {0};

    for (size_t i = 0; i < n; i++) p[i % SY_PARTIALS] = fmaf(a[i], b[i], p[i % SY_PARTIALS]);
    return sy_partials_sum(p);
}

void sy_ref_swiglu(float *h, const float *g, const float *u, size_t n)
{
    /* A large -g gives exp = +infinity and a quotient of -0, a large g gives exp = 0 and g itself.
     */
    for (size_t i = 0; i < n; i++) h[i] = g[i] / (1.0f + sy_exp_scalar(-g[i])) * u[i];
}

void sy_ref_clamped_swiglu(float *h, const float *g, const float *u, float limit, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* In this order of comparison a NaN passes, as it does through `minps` and `maxps`. */
        const float a = limit < g[i] ? limit : g[i];
        const float below = limit < u[i] ? limit : u[i];
        const float b = -limit > below ? -limit : below;
        h[i] = (b + 1.0f) * (a / (1.0f + sy_exp_scalar(-(SY_CLAMPED_SLOPE * a))));
    }
}

void sy_ref_rmsnorm(float *y, const float *x, const float *w, float eps, size_t n)
{
    const float r = sy_rms_factor(sy_ref_dot(x, x, n), eps, n);

    for (size_t i = 0; i < n; i++) y[i] = w[i] * (x[i] * r);
}

void sy_ref_softmax(float *x, size_t n)
{
    float max = -INFINITY;
    float p[SY_PARTIALS] = {0};

    /* A NaN is passed over here and reaches every result through the sum. */
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        x[i] = sy_exp_scalar(x[i] - max);
        p[i % SY_PARTIALS] += x[i];
    }
    const float sum = sy_partials_sum(p);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

void sy_ref_axpy(float *y, const float *x, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

void sy_ref_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

void sy_ref_rope(float *x, const float *c, const float *s, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a * c[i] - b * s[i];
        x[i + half] = b * c[i] + a * s[i];
    }
}

void sy_ref_attn_scores(float *score, const float *q, const float *k, size_t k_stride,
                        size_t n_keys, size_t head_dim, float scale)
{
    for (size_t j = 0; j < n_keys; j++)
        score[j] = scale * sy_ref_dot(q, k + j * k_stride, head_dim);
}

void sy_ref_attn_values(float *o, const float *p, const float *v, size_t v_stride, size_t n_keys,
                        size_t head_dim)
{
    for (size_t j = 0; j < n_keys; j++) sy_ref_axpy(o, v + j * v_stride, p[j], head_dim);
}

size_t sy_ref_argmax(const float *x, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return best;
}

void sy_ref_vexp(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = sy_exp_scalar(x[i]);
}

int sy_ref_all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

const sy_kernels sy_kernels_ref = {
    .name = "ref",
    .matmul = sy_ref_matmul,
    .quantize = sy_ref_quantize,
    .matmul_q8 = sy_ref_matmul_q8,
    .round_bf16 = sy_ref_round_bf16,
    .matmul_bf16 = sy_ref_matmul_bf16,
    .swiglu = sy_ref_swiglu,
    .clamped_swiglu = sy_ref_clamped_swiglu,
    .rmsnorm = sy_ref_rmsnorm,
    .softmax = sy_ref_softmax,
    .dot = sy_ref_dot,
    .axpy = sy_ref_axpy,
    .add = sy_ref_add,
    .rope = sy_ref_rope,
    .attn_scores = sy_ref_attn_scores,
    .attn_values = sy_ref_attn_values,
    .argmax = sy_ref_argmax,
    .vexp = sy_ref_vexp,
    .all_finite = sy_ref_all_finite,
};
