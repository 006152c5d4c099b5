/* sy_trunk_device_want.c - what a GPU's self-test must give, in double precision and straight from
 * the formulas, each stage from what the device itself gave for the one before: so an error shows
 * where it is made, and rounding does not add up. */
#include <math.h>
#include <string.h>

#include "sy_trunk_device_test.h"

/* Of DeepSeek's norms of latents, whatever the configuration says of others. */
#define LATENT_EPS 1e-6

enum { NO_BIAS = -1, DIM_MAX = 576 };

static double rounded(double x)
{
    return (double)sy_bf16_to_f32(sy_f32_to_bf16((float)x));
}

static const float *row_of(const device_test *t, test_stage stage, uint32_t row)
{
    return t->first[stage] + (size_t)row * t->width[stage];
}

/* ---- products and norms ---- */

/* Rows [first, first + n) of a matrix with x; bias NO_BIAS: there is none. */
static void multiply(double *y, const device_test *t, test_weight weight, uint32_t first,
                     uint32_t n, uint32_t k, const double *x, int bias)
{
    for (uint32_t i = 0; i < n; i++) {
        const float *w = t->value[weight] + (size_t)(first + i) * k;

        y[i] = bias == NO_BIAS ? 0 : (double)trunk_test_weight((test_weight)bias, i, 0, 1);
        for (uint32_t j = 0; j < k; j++) y[i] += (double)w[j] * x[j];
    }
}

static int bias_of(const device_matrix *matrix, test_weight bias)
{
    return matrix->bias.buffer == NULL ? NO_BIAS : (int)bias;
}

/* ones: no weights. */
static void rms(double *x, test_weight weight, int ones, double eps, uint32_t n)
{
    double square = 0;

    for (uint32_t i = 0; i < n; i++) square += x[i] * x[i];
    const double factor = 1 / sqrt(square / n + eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= factor * (ones ? 1 : (double)trunk_test_weight(weight, i, 0, 1));
}

static void norm_row(double *y, const device_test *t, const float *x, test_weight weight,
                     test_weight bias)
{
    const sy_model_desc *d = &t->trunk.desc;
    double mean = 0;

    for (uint32_t i = 0; d->norm == SY_NORM_LAYER && i < d->hidden; i++)
        mean += (double)x[i] / d->hidden;
    for (uint32_t i = 0; i < d->hidden; i++) y[i] = (double)x[i] - mean;
    rms(y, weight, 0, (double)d->rms_eps, d->hidden);
    for (uint32_t i = 0; t->layer.norm1.bias.buffer != NULL && i < d->hidden; i++)
        y[i] += (double)trunk_test_weight(bias, i, 0, 1);
}

/* ---- heads ---- */

static void rotate(double *x, const device_test *t, uint32_t row)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t half = d->rotary_dim / 2;
    float c[DIM_MAX], s[DIM_MAX];

    if (!trunk_layer_rotates(d, 0)) return;
    trunk_angles(&t->trunk, c, s, t->position[row], t->seq[t->sequence[row]].is_long != 0);
    for (uint32_t i = 0; i < half; i++) {
        double *a = &x[d->rope.interleaved ? 2 * i : i];
        double *b = &x[d->rope.interleaved ? 2 * i + 1 : i + half];
        const double turned = *a * (double)c[i] - *b * (double)s[i];
        *b = *b * (double)c[i] + *a * (double)s[i];
        *a = turned;
    }
}

static void finish(double *x, const device_test *t, uint32_t row, uint32_t heads, test_weight norm)
{
    const sy_model_desc *d = &t->trunk.desc;
    const double eps = (double)d->rms_eps, limit = (double)d->qkv_clip;
    const int has_ones = d->qk_norm == SY_QK_NORM_WEIGHTLESS;
    const int is_after =
        d->qk_norm == SY_QK_NORM_ROTATED || (has_ones && trunk_layer_rotates(d, 0));

    if (d->qk_norm == SY_QK_NORM_WHOLE) rms(x, norm, 0, eps, heads * d->head_dim);
    for (uint32_t h = 0; h < heads; h++, x += d->head_dim) {
        if (d->qk_norm == SY_QK_NORM_HEAD) rms(x, norm, 0, eps, d->head_dim);
        for (uint32_t i = 0; limit > 0 && i < d->head_dim; i++)
            x[i] = fmin(fmax(x[i], -limit), limit);
        rotate(x, t, row);
        if (is_after) rms(x, norm, has_ones, eps, d->head_dim);
    }
}

static void warm(double *q, const device_test *t, uint32_t row)
{
    const sy_model_desc *d = &t->trunk.desc;
    const double scale = (double)d->temperature_scale;

    if (trunk_layer_rotates(d, 0) || scale == 0) return;
    const double steps = floor((t->position[row] + 1.0) / (double)d->temperature_floor);
    for (uint32_t i = 0; i < d->n_heads * d->head_dim; i++) q[i] *= 1 + scale * log1p(steps);
}

static void want_queries(double *q, const device_test *t, uint32_t row, const double *xn)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t n = d->n_heads * d->head_dim, rank = d->mla.q_rank;
    double low[TEST_HIDDEN];

    if (!t->trunk.shape.is_latent) {
        multiply(q, t, TEST_Q, 0, n, d->hidden, xn, bias_of(&t->layer.q, TEST_Q_BIAS));
        finish(q, t, row, d->n_heads, TEST_Q_NORM);
        warm(q, t, row);
        return;
    }
    if (rank > 0) {
        multiply(low, t, TEST_Q_A, 0, rank, d->hidden, xn, NO_BIAS);
        rms(low, TEST_Q_A_NORM, 0, LATENT_EPS, rank);
        for (uint32_t i = 0; i < rank; i++) low[i] = rounded(low[i]);
    }
    multiply(q, t, TEST_Q, 0, n, rank > 0 ? rank : d->hidden, rank > 0 ? low : xn, NO_BIAS);
    for (uint32_t h = 0; h < d->n_heads; h++) rotate(q + h * d->head_dim + d->mla.nope_dim, t, row);
}

static void want_keys(double *k, const device_test *t, uint32_t row, const double *xn)
{
    const sy_model_desc *d = &t->trunk.desc;
    const sy_kv_shape *shape = &t->trunk.shape;

    multiply(k, t, TEST_K, 0, shape->n_heads * shape->key_dim, d->hidden, xn,
             bias_of(&t->layer.k, TEST_K_BIAS));
    if (!shape->is_latent) {
        finish(k, t, row, d->n_kv_heads, TEST_K_NORM);
        return;
    }
    rms(k, TEST_KV_A_NORM, 0, LATENT_EPS, d->mla.kv_rank);
    rotate(k + d->mla.kv_rank, t, row);
}

static void want_values(double *v, const device_test *t, const double *xn)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t n = d->n_kv_heads * d->head_dim;
    const double limit = (double)d->qkv_clip;

    multiply(v, t, TEST_V, 0, n, d->hidden, xn, bias_of(&t->layer.v, TEST_V_BIAS));
    for (uint32_t i = 0; limit > 0 && i < n; i++) v[i] = fmin(fmax(v[i], -limit), limit);
}

/* Of each head: its product with k inputs, and behind it the tail as it is. */
static void want_heads(double *y, const device_test *t, const float *x, test_weight weight,
                       uint32_t n, uint32_t k, uint32_t n_tail)
{
    double in[DIM_MAX];

    for (uint32_t h = 0; h < t->trunk.desc.n_heads; h++, x += k + n_tail, y += n + n_tail) {
        for (uint32_t i = 0; i < k; i++) in[i] = (double)x[i];
        multiply(y, t, weight, h * n, n, k, in, NO_BIAS);
        for (uint32_t i = 0; i < n_tail; i++) y[n + i] = (double)x[k + i];
    }
}

/* ---- attention ---- */

static int sees(const device_test *t, uint32_t row, uint32_t other)
{
    const sy_model_desc *d = &t->trunk.desc;
    const uint32_t p = t->position[row], q = t->position[other];

    if (t->sequence[row] != t->sequence[other] || q > p) return 0;
    if ((d->layer[0] & SY_LAYER_SLIDING) != 0 && p - q >= d->sliding_window) return 0;
    return (d->layer[0] & SY_LAYER_CHUNKED) == 0 ||
           p / d->attention_chunk == q / d->attention_chunk;
}

static double as_cached(const device_test *t, float x)
{
    return trunk_device_kv_is_rounded(&t->trunk) ? rounded((double)x) : (double)x;
}

/* weight: [TEST_ROWS], of every key; of those that are not seen 0. */
static void soften(double *weight, const device_test *t, uint32_t row, uint32_t head,
                   const float *q, uint32_t kv_head)
{
    const sy_kv_shape *shape = &t->trunk.shape;
    const int has_sink = t->layer.sinks.buffer != NULL;
    const double sink = has_sink ? (double)trunk_test_weight(TEST_SINKS, head, 0, 1) : 0;
    double sum = has_sink ? exp(sink) : 0;

    for (uint32_t j = 0; j < TEST_ROWS; j++) {
        const float *k = row_of(t, TEST_KEYS, j) + kv_head * shape->key_dim;
        double score = 0;

        weight[j] = 0;
        if (!sees(t, row, j)) continue;
        for (uint32_t i = 0; i < shape->key_dim; i++)
            score += as_cached(t, q[i]) * as_cached(t, k[i]);
        weight[j] = exp((double)t->trunk.desc.attention_scale * score);
        sum += weight[j];
    }
    for (uint32_t j = 0; j < TEST_ROWS; j++) weight[j] /= sum;
}

static void want_attended(double *out, const device_test *t, uint32_t row)
{
    const sy_model_desc *d = &t->trunk.desc;
    const sy_kv_shape *shape = &t->trunk.shape;
    const test_stage queries = shape->is_latent ? TEST_ABSORBED : TEST_QUERIES;
    const test_stage values = shape->is_latent ? TEST_KEYS : TEST_VALUES;
    double weight[TEST_ROWS];

    for (uint32_t h = 0; h < d->n_heads; h++, out += shape->value_dim) {
        const uint32_t kv_head = h / (d->n_heads / shape->n_heads);

        soften(weight, t, row, h, row_of(t, queries, row) + h * shape->key_dim, kv_head);
        for (uint32_t i = 0; i < shape->value_dim; i++) out[i] = 0;
        for (uint32_t j = 0; j < TEST_ROWS; j++) {
            const float *v = row_of(t, values, j) + kv_head * shape->value_dim;
            for (uint32_t i = 0; weight[j] != 0 && i < shape->value_dim; i++)
                out[i] += weight[j] * as_cached(t, v[i]);
        }
    }
}

/* ---- what is added ---- */

static void add(double *want, const device_test *t, const float *x, const double *y, double factor)
{
    for (uint32_t i = 0; i < t->trunk.desc.hidden; i++)
        want[i] = (double)x[i] + factor * (double)t->trunk.desc.residual_multiplier * y[i];
}

static void want_added(double *want, const device_test *t, uint32_t row)
{
    const test_stage from = t->trunk.shape.is_latent ? TEST_RAISED : TEST_ATTENDED;
    const float *attn = row_of(t, from, row);
    double x[4 * DIM_MAX], y[TEST_HIDDEN];

    for (uint32_t i = 0; i < t->width[from]; i++) x[i] = rounded((double)attn[i]);
    multiply(y, t, TEST_O, 0, t->trunk.desc.hidden, t->width[from], x,
             bias_of(&t->layer.o, TEST_O_BIAS));
    add(want, t, row_of(t, TEST_EMBEDDED, row), y, 1);
}

static void want_mlp(double *want, const device_test *t, uint32_t row)
{
    const uint32_t hidden = t->trunk.desc.hidden;
    const float *xn = row_of(t, TEST_INPUT, row);
    double x[TEST_HIDDEN], g[TEST_FFN], u[TEST_FFN], y[TEST_HIDDEN], dot = 0;

    for (uint32_t i = 0; i < hidden; i++) {
        x[i] = rounded((double)xn[i]);
        dot += (double)xn[i] * (double)trunk_test_weight(TEST_MIX, i, 0, 1);
    }
    multiply(g, t, TEST_GATE, 0, TEST_FFN, hidden, x, NO_BIAS);
    multiply(u, t, TEST_UP, 0, TEST_FFN, hidden, x, NO_BIAS);
    for (uint32_t i = 0; i < TEST_FFN; i++) g[i] = rounded(g[i] / (1 + exp(-g[i])) * u[i]);
    multiply(y, t, TEST_DOWN, 0, hidden, TEST_FFN, g, NO_BIAS);
    add(want, t, row_of(t, TEST_ADDED, row), y,
        t->layer.mix.buffer == NULL ? 1 : 1 / (1 + exp(-dot)));
}

void trunk_test_want(double *want, const device_test *t, test_stage stage, uint32_t row)
{
    const sy_model_desc *d = &t->trunk.desc;
    const sy_mla_desc *mla = &d->mla;
    double xn[TEST_HIDDEN];

    for (uint32_t i = 0; i < d->hidden; i++) xn[i] = (double)row_of(t, TEST_NORMED, row)[i];
    switch (stage) {
    case TEST_EMBEDDED:
        for (uint32_t i = 0; i < d->hidden; i++)
            want[i] = (double)d->embedding_multiplier *
                      (double)trunk_test_weight(TEST_EMBED, row, i, d->hidden);
        break;
    case TEST_NORMED:
        norm_row(want, t, row_of(t, TEST_EMBEDDED, row), TEST_NORM1, TEST_NORM1_BIAS);
        break;
    case TEST_QUERIES: want_queries(want, t, row, xn); break;
    case TEST_KEYS: want_keys(want, t, row, xn); break;
    case TEST_VALUES: want_values(want, t, xn); break;
    case TEST_ABSORBED:
        want_heads(want, t, row_of(t, TEST_QUERIES, row), TEST_KEY_UP, mla->kv_rank, mla->nope_dim,
                   d->rotary_dim);
        break;
    case TEST_ATTENDED: want_attended(want, t, row); break;
    case TEST_RAISED:
        want_heads(want, t, row_of(t, TEST_ATTENDED, row), TEST_VALUE_UP, mla->value_dim,
                   mla->kv_rank, 0);
        break;
    case TEST_ADDED: want_added(want, t, row); break;
    case TEST_INPUT:
        norm_row(want, t, row_of(t, TEST_ADDED, row), TEST_NORM2, TEST_NORM2_BIAS);
        break;
    default: want_mlp(want, t, row); break;
    }
}
