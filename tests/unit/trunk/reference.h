/* reference.h - a made model without its experts, in double precision and straight from the
 * formulas: every key and value of every head is there, every row is computed alone. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "made_model.h"

typedef struct reference {
    const sy_model *model;
    const sy_model_desc *d;
    uint32_t n; /* tokens of the one sequence */
    int is_long;
    uint32_t layer;
    uint32_t n_kv, key_dim, value_dim; /* of attention, once a latent is spread out */
    double *x;                         /* [n][hidden] */
    double *q, *k, *v;                 /* [n][heads][dim] */
} reference;

static const float *ref_weight(const reference *r, sy_role role)
{
    return r->model->value[role < SY_ROLE_NORM1 ? 0 : r->layer][role];
}

static double *ref_alloc(size_t n)
{
    double *p = calloc(n, sizeof(*p));

    assert_non_null(p);
    return p;
}

/* y[rows] = W x + b; SY_N_ROLES: no bias. */
static void ref_linear(const reference *r, double *y, sy_role role, sy_role bias, const double *x)
{
    const sy_tensor *t = &r->model->tensor[role < SY_ROLE_NORM1 ? 0 : r->layer][role];
    const float *w = ref_weight(r, role), *b = bias == SY_N_ROLES ? NULL : ref_weight(r, bias);

    for (uint64_t i = 0; i < t->shape[0]; i++) {
        y[i] = b == NULL ? 0.0 : (double)b[i];
        for (uint64_t j = 0; j < t->shape[1]; j++) y[i] += (double)w[i * t->shape[1] + j] * x[j];
    }
}

/* w NULL: ones. */
static void ref_rms(double *y, const double *x, const float *w, double eps, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    const double factor = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * factor * (w == NULL ? 1.0 : (double)w[i]);
}

static void ref_norm(const reference *r, double *y, const double *x, sy_role weight, sy_role bias)
{
    const size_t n = r->d->hidden;
    const float *w = ref_weight(r, weight), *b = ref_weight(r, bias);
    double mean = 0, variance = 0;

    if (r->d->norm == SY_NORM_RMS) {
        ref_rms(y, x, w, (double)r->d->rms_eps, n);
        return;
    }
    for (size_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(variance + (double)r->d->rms_eps) * (double)w[i] + (double)b[i];
}

static int ref_rotates(const reference *r)
{
    return (r->d->layer[r->layer] & SY_LAYER_NO_ROPE) == 0;
}

static void ref_rotate(const reference *r, double *x, uint32_t position)
{
    const sy_rope_desc *rope = &r->d->rope;
    const uint32_t half = r->d->rotary_dim / 2;
    const int is_long_set = rope->type == SY_ROPE_LONG && r->is_long;
    const double size =
        (double)(is_long_set ? rope->long_attention_factor : rope->attention_factor);

    for (uint32_t i = 0; i < half && ref_rotates(r); i++) {
        double frequency = pow((double)r->d->rope_theta, -2.0 * i / r->d->rotary_dim);
        double *a = &x[rope->interleaved ? 2 * i : i];
        double *b = &x[rope->interleaved ? 2 * i + 1 : i + half];

        if (rope->type == SY_ROPE_LONG)
            frequency /= (double)(r->is_long ? rope->long_factor[i] : rope->short_factor[i]);
        const double c = size * cos(position * frequency), s = size * sin(position * frequency);
        const double rotated = *a * c - *b * s;
        *b = *b * c + *a * s;
        *a = rotated;
    }
}

static void ref_finish(const reference *r, double *x, sy_role norm, uint32_t heads, uint32_t t)
{
    const sy_model_desc *d = r->d;
    const size_t hd = d->head_dim;
    const double eps = (double)d->rms_eps, limit = (double)d->qkv_clip;
    const int is_after =
        d->qk_norm == SY_QK_NORM_ROTATED || (d->qk_norm == SY_QK_NORM_WEIGHTLESS && ref_rotates(r));

    if (d->qk_norm == SY_QK_NORM_WHOLE) ref_rms(x, x, ref_weight(r, norm), eps, heads * hd);
    for (uint32_t h = 0; h < heads; h++) {
        double *head = x + h * hd;

        if (d->qk_norm == SY_QK_NORM_HEAD) ref_rms(head, head, ref_weight(r, norm), eps, hd);
        for (size_t i = 0; i < hd && limit > 0; i++) head[i] = fmin(fmax(head[i], -limit), limit);
        ref_rotate(r, head, t);
        if (is_after) ref_rms(head, head, ref_weight(r, norm), eps, hd);
    }
}

static void ref_project(reference *r, uint32_t t, const double *xn)
{
    const sy_model_desc *d = r->d;
    const size_t n_q = (size_t)d->n_heads * d->head_dim, n_kv = (size_t)d->n_kv_heads * d->head_dim;
    double *q = r->q + t * n_q, *k = r->k + t * n_kv, *v = r->v + t * n_kv;
    const double limit = (double)d->qkv_clip;

    ref_linear(r, q, SY_ROLE_Q, SY_ROLE_Q_BIAS, xn);
    ref_linear(r, k, SY_ROLE_K, SY_ROLE_K_BIAS, xn);
    ref_linear(r, v, SY_ROLE_V, SY_ROLE_V_BIAS, xn);
    ref_finish(r, q, SY_ROLE_Q_NORM, d->n_heads, t);
    ref_finish(r, k, SY_ROLE_K_NORM, d->n_kv_heads, t);
    for (size_t i = 0; i < n_kv && limit > 0; i++) v[i] = fmin(fmax(v[i], -limit), limit);
    for (size_t i = 0; i < n_q && !ref_rotates(r) && d->temperature_scale > 0; i++)
        q[i] *= 1 + (double)d->temperature_scale *
                        log1p(floor((t + 1.0) / (double)d->temperature_floor));
}

/* Keys and values of every head, as the formulas of the papers have them. */
static void ref_project_latent(reference *r, uint32_t t, const double *xn)
{
    const sy_model_desc *d = r->d;
    const sy_mla_desc *m = &d->mla;
    const uint32_t of_head = m->nope_dim + m->value_dim;
    double *q = r->q + (size_t)t * d->n_heads * d->head_dim;
    double *latent = ref_alloc(m->kv_rank + d->rotary_dim), *low = ref_alloc(m->q_rank + 1);
    double *kv = ref_alloc((size_t)d->n_heads * of_head);

    if (m->q_rank > 0) {
        ref_linear(r, low, SY_ROLE_Q_A, SY_N_ROLES, xn);
        ref_rms(low, low, ref_weight(r, SY_ROLE_Q_A_NORM), 1e-6, m->q_rank);
        ref_linear(r, q, SY_ROLE_Q_B, SY_N_ROLES, low);
    } else {
        ref_linear(r, q, SY_ROLE_Q, SY_N_ROLES, xn);
    }
    ref_linear(r, latent, SY_ROLE_KV_A, SY_N_ROLES, xn);
    ref_rms(latent, latent, ref_weight(r, SY_ROLE_KV_A_NORM), 1e-6, m->kv_rank);
    ref_rotate(r, latent + m->kv_rank, t);
    ref_linear(r, kv, SY_ROLE_KV_B, SY_N_ROLES, latent);
    for (uint32_t h = 0; h < d->n_heads; h++) {
        double *k = r->k + ((size_t)t * d->n_heads + h) * d->head_dim;

        ref_rotate(r, q + h * d->head_dim + m->nope_dim, t);
        memcpy(k, kv + h * of_head, m->nope_dim * sizeof(double));
        memcpy(k + m->nope_dim, latent + m->kv_rank, d->rotary_dim * sizeof(double));
        memcpy(r->v + ((size_t)t * d->n_heads + h) * m->value_dim, kv + h * of_head + m->nope_dim,
               m->value_dim * sizeof(double));
    }
    free(latent);
    free(low);
    free(kv);
}

static int ref_sees(const reference *r, uint32_t i, uint32_t j)
{
    const uint8_t flags = r->d->layer[r->layer];

    if (j > i) return 0;
    if ((flags & SY_LAYER_SLIDING) && j + r->d->sliding_window <= i) return 0;
    return !(flags & SY_LAYER_CHUNKED) || i / r->d->attention_chunk == j / r->d->attention_chunk;
}

/* One head of row t, into out [value_dim]. */
static void ref_attend(const reference *r, double *out, uint32_t t, uint32_t h)
{
    const uint32_t kv = h / (r->d->n_heads / r->n_kv);
    const float *sinks = ref_weight(r, SY_ROLE_SINKS);
    const double *q = r->q + ((size_t)t * r->d->n_heads + h) * r->key_dim;
    double *p = ref_alloc(r->n);
    double max = sinks == NULL ? -INFINITY : (double)sinks[h], sum;

    for (uint32_t j = 0; j <= t; j++) {
        for (uint32_t i = 0; i < r->key_dim; i++)
            p[j] += q[i] * r->k[((size_t)j * r->n_kv + kv) * r->key_dim + i];
        p[j] *= (double)r->d->attention_scale;
        if (ref_sees(r, t, j)) max = fmax(max, p[j]);
    }
    sum = sinks == NULL ? 0 : exp((double)sinks[h] - max);
    for (uint32_t j = 0; j <= t; j++) {
        p[j] = ref_sees(r, t, j) ? exp(p[j] - max) : 0;
        sum += p[j];
    }
    for (uint32_t i = 0; i < r->value_dim; i++) {
        out[i] = 0;
        for (uint32_t j = 0; j <= t; j++)
            out[i] += p[j] / sum * r->v[((size_t)j * r->n_kv + kv) * r->value_dim + i];
    }
    free(p);
}

static void ref_attention(reference *r)
{
    const sy_model_desc *d = r->d;
    double *xn = ref_alloc(d->hidden), *y = ref_alloc(d->hidden);
    double *out = ref_alloc((size_t)d->n_heads * r->value_dim);

    for (uint32_t t = 0; t < r->n; t++) {
        ref_norm(r, xn, r->x + t * d->hidden, SY_ROLE_NORM1, SY_ROLE_NORM1_BIAS);
        if (d->mla.kv_rank > 0)
            ref_project_latent(r, t, xn);
        else
            ref_project(r, t, xn);
    }
    for (uint32_t t = 0; t < r->n; t++) {
        for (uint32_t h = 0; h < d->n_heads; h++) ref_attend(r, out + h * r->value_dim, t, h);
        ref_linear(r, y, SY_ROLE_O, SY_ROLE_O_BIAS, out);
        for (uint32_t i = 0; i < d->hidden; i++)
            r->x[t * d->hidden + i] += (double)d->residual_multiplier * y[i];
    }
    free(xn);
    free(y);
    free(out);
}

static void ref_mlp(reference *r)
{
    const sy_model_desc *d = r->d;
    const int is_dense = (d->layer[r->layer] & SY_LAYER_DENSE) != 0;
    const uint32_t ffn = is_dense ? d->dense_ffn : d->shared_ffn;
    double *xn = ref_alloc(d->hidden), *y = ref_alloc(d->hidden), *g = ref_alloc(ffn + 1),
           *u = ref_alloc(ffn + 1);

    for (uint32_t t = 0; t < r->n && ffn > 0; t++) {
        double mix = 0;

        ref_norm(r, xn, r->x + t * d->hidden, SY_ROLE_NORM2, SY_ROLE_NORM2_BIAS);
        ref_linear(r, g, is_dense ? SY_ROLE_DENSE_GATE : SY_ROLE_SHARED_GATE, SY_N_ROLES, xn);
        ref_linear(r, u, is_dense ? SY_ROLE_DENSE_UP : SY_ROLE_SHARED_UP, SY_N_ROLES, xn);
        for (uint32_t i = 0; i < ffn; i++) u[i] *= g[i] / (1 + exp(-g[i]));
        ref_linear(r, y, is_dense ? SY_ROLE_DENSE_DOWN : SY_ROLE_SHARED_DOWN, SY_N_ROLES, u);
        if (!is_dense && d->shared_gate) ref_linear(r, &mix, SY_ROLE_SHARED_MIX, SY_N_ROLES, xn);
        for (uint32_t i = 0; i < d->hidden; i++)
            r->x[t * d->hidden + i] += (double)d->residual_multiplier * y[i] *
                                       (!is_dense && d->shared_gate ? 1 / (1 + exp(-mix)) : 1);
    }
    free(xn);
    free(y);
    free(g);
    free(u);
}

/* logits: [n][vocab]. */
static void reference_logits(double *logits, const sy_model *model, const uint32_t *token,
                             uint32_t n, int is_long)
{
    const sy_model_desc *d = &model->desc;
    const int is_mla = d->mla.kv_rank > 0;
    reference r = {.model = model,
                   .d = d,
                   .n = n,
                   .is_long = is_long,
                   .n_kv = is_mla ? d->n_heads : d->n_kv_heads,
                   .key_dim = d->head_dim,
                   .value_dim = is_mla ? d->mla.value_dim : d->head_dim};
    double *xn = ref_alloc(d->hidden);

    r.x = ref_alloc((size_t)n * d->hidden);
    r.q = ref_alloc((size_t)n * d->n_heads * r.key_dim);
    r.k = ref_alloc((size_t)n * r.n_kv * r.key_dim);
    r.v = ref_alloc((size_t)n * r.n_kv * r.value_dim);
    for (size_t i = 0; i < (size_t)n * d->hidden; i++) {
        const size_t at = (size_t)token[i / d->hidden] * d->hidden + i % d->hidden;
        r.x[i] = (double)ref_weight(&r, SY_ROLE_EMBED)[at] * (double)d->embedding_multiplier;
    }
    for (r.layer = 0; r.layer < d->n_layers; r.layer++) {
        ref_attention(&r);
        ref_mlp(&r);
    }
    r.layer = 0;
    for (uint32_t t = 0; t < n; t++) {
        double *row = logits + (size_t)t * d->vocab;

        ref_norm(&r, xn, r.x + t * d->hidden, SY_ROLE_FINAL_NORM, SY_ROLE_FINAL_NORM_BIAS);
        ref_linear(&r, row, d->tied_head ? SY_ROLE_EMBED : SY_ROLE_HEAD,
                   model->options.head_bias ? SY_ROLE_HEAD_BIAS : SY_N_ROLES, xn);
        for (uint32_t i = 0; i < d->vocab; i++) row[i] /= (double)d->logits_scaling;
    }
    free(xn);
    free(r.x);
    free(r.q);
    free(r.k);
    free(r.v);
}

#endif
