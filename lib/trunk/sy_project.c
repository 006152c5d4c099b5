/* sy_project.c - from normed rows to what attention works on: queries, and keys and values in the
 * cache. Rows are independent of each other.
 *
 * MLA runs absorbed: a head's keys are Wk_h c of the cached latent c, so q . (Wk_h c) is taken as
 * (Wk_h^T q) . c, and what a head gathers is a sum of latents, of which Wv_h makes its value. The
 * cache then holds one vector a token, whatever the number of heads. These two products a head take
 * fp32 activations, whatever the trunk's other products take: they are small, and what enters them
 * is the middle of attention's sums. */
#include "sy_trunk_internal.h"

#include <math.h>
#include <string.h>

/* Of DeepSeek's norms of latents, whatever the configuration says of others. */
#define LATENT_EPS 1e-6f

/* Of a row; cos NULL: the layer does not rotate. */
typedef struct row_angles {
    const float *cos, *sin;
} row_angles;

static row_angles angles_of(const trunk_step *s, size_t t)
{
    const sy_model_desc *d = &s->trunk->desc;
    const size_t half = d->rotary_dim / 2;

    if ((d->layer[s->layer] & SY_LAYER_NO_ROPE) != 0) return (row_angles){NULL, NULL};
    return (row_angles){s->ws->cos + t * half, s->ws->sin + t * half};
}

static void rotate(const sy_trunk *trunk, float *x, row_angles angles)
{
    const size_t half = trunk->desc.rotary_dim / 2;

    if (!trunk->desc.rope.interleaved) {
        trunk->kernels->rope(x, angles.cos, angles.sin, half);
        return;
    }
    for (size_t i = 0; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * angles.cos[i] - b * angles.sin[i];
        x[2 * i + 1] = b * angles.cos[i] + a * angles.sin[i];
    }
}

static void clip(float *x, size_t n, float limit)
{
    for (size_t i = 0; i < n; i++) x[i] = fminf(fmaxf(x[i], -limit), limit);
}

static void norm_heads(const sy_trunk *trunk, float *x, const float *norm, uint32_t heads)
{
    const size_t hd = trunk->desc.head_dim;

    for (uint32_t h = 0; h < heads; h++)
        trunk->kernels->rmsnorm(x + h * hd, x + h * hd, norm, trunk->desc.rms_eps, hd);
}

/* OLMoE norms a whole projection, Qwen3 each head; then OLMoE clamps; then heads rotate; then
 * Hunyuan and Llama 4 norm each head. */
static void finish_projection(const sy_trunk *trunk, float *x, const float *norm, uint32_t heads,
                              row_angles angles)
{
    const sy_model_desc *d = &trunk->desc;
    const size_t hd = d->head_dim;
    const sy_qk_norm form = norm == NULL ? SY_QK_NORM_NONE : d->qk_norm;

    if (form == SY_QK_NORM_WHOLE) trunk->kernels->rmsnorm(x, x, norm, d->rms_eps, heads * hd);
    if (form == SY_QK_NORM_HEAD) norm_heads(trunk, x, norm, heads);
    if (d->qkv_clip > 0.0f) clip(x, heads * hd, d->qkv_clip);
    for (uint32_t h = 0; angles.cos != NULL && h < heads; h++) rotate(trunk, x + h * hd, angles);
    if (form == SY_QK_NORM_ROTATED || form == SY_QK_NORM_WEIGHTLESS)
        norm_heads(trunk, x, norm, heads);
}

/* Where nothing rotates, Llama 4's queries grow with the position instead. */
static void warm(const sy_model_desc *d, float *q, uint32_t position)
{
    const float steps = floorf(((float)position + 1.0f) / d->temperature_floor);
    const float factor = 1.0f + d->temperature_scale * log1pf(steps);

    for (size_t i = 0; i < (size_t)d->n_heads * d->head_dim; i++) q[i] *= factor;
}

/* Where row t's key (or value) of one kv head lies. */
static float *cached(const trunk_step *s, size_t t, int value, uint32_t head)
{
    const uint32_t position = s->batch->position[t];
    const uint32_t page = s->batch->seq[t]->page[position / SY_KV_PAGE];

    return sy_kv_at(s->kv, s->layer, page, value, head) +
           (size_t)(position % SY_KV_PAGE) * s->trunk->shape.key_dim;
}

static void project_task(void *arg, size_t t, unsigned thread)
{
    const trunk_step *s = arg;
    const sy_model_desc *d = &s->trunk->desc;
    const size_t hd = d->head_dim, width = d->n_kv_heads * hd;
    const row_angles angles = angles_of(s, t);
    float *q = s->ws->q + t * d->n_heads * hd;
    float *k = s->ws->k + t * width, *v = s->ws->v + t * width;

    (void)thread;
    finish_projection(s->trunk, q, s->weights->q_norm, d->n_heads, angles);
    finish_projection(s->trunk, k, s->weights->k_norm, d->n_kv_heads, angles);
    if (angles.cos == NULL && d->temperature_scale != 0.0f) warm(d, q, s->batch->position[t]);
    if (d->qkv_clip > 0.0f) clip(v, width, d->qkv_clip);
    for (uint32_t h = 0; h < d->n_kv_heads; h++) {
        memcpy(cached(s, t, 0, h), k + h * hd, hd * sizeof(float));
        memcpy(cached(s, t, 1, h), v + h * hd, hd * sizeof(float));
    }
}

/* ---- MLA ---- */

static void norm_low_task(void *arg, size_t t, unsigned thread)
{
    const trunk_step *s = arg;
    const size_t rank = s->trunk->desc.mla.q_rank;
    float *x = s->ws->q_low + t * rank;

    (void)thread;
    s->trunk->kernels->rmsnorm(x, x, s->weights->q_a_norm, LATENT_EPS, rank);
}

/* Norms and rotates a row's latent, which is then a token's key and value; rotates what of each
 * query rotates, and puts it behind the place of what absorb_task makes of the rest. */
static void latent_task(void *arg, size_t t, unsigned thread)
{
    const trunk_step *s = arg;
    const sy_model_desc *d = &s->trunk->desc;
    const size_t key_dim = s->trunk->shape.key_dim, rank = d->mla.kv_rank;
    const row_angles angles = angles_of(s, t);
    float *latent = s->ws->k + t * key_dim;

    (void)thread;
    s->trunk->kernels->rmsnorm(latent, latent, s->weights->kv_a_norm, LATENT_EPS, rank);
    if (angles.cos != NULL) rotate(s->trunk, latent + rank, angles);
    memcpy(cached(s, t, 0, 0), latent, key_dim * sizeof(float));
    for (uint32_t h = 0; h < d->n_heads; h++) {
        float *q = s->ws->query + (t * d->n_heads + h) * key_dim + rank;

        memcpy(q, s->ws->q + (t * d->n_heads + h) * d->head_dim + d->mla.nope_dim,
               d->rotary_dim * sizeof(float));
        if (angles.cos != NULL) rotate(s->trunk, q, angles);
    }
}

/* Rows [n, x_width] of one head, as its matrix w makes them of all rows. */
static void multiply_head(const trunk_step *s, float *y, size_t y_width, const float *x,
                          size_t x_width, const trunk_head_matrices *m, size_t head)
{
    const size_t n_heads = s->trunk->desc.n_heads;
    sy_panels w = m->first;

    w.data = (const uint8_t *)w.data + head * m->step_bytes;
    s->trunk->kernels->matmul(y + head * y_width, n_heads * y_width, x + head * x_width,
                              n_heads * x_width, NULL, s->batch->n_rows, &w, 0,
                              sy_panels_count(w.n));
}

static void absorb_task(void *arg, size_t head, unsigned thread)
{
    const trunk_step *s = arg;

    (void)thread;
    multiply_head(s, s->ws->query, s->trunk->shape.key_dim, s->ws->q, s->trunk->desc.head_dim,
                  &s->weights->key_up, head);
}

static void raise_task(void *arg, size_t head, unsigned thread)
{
    const trunk_step *s = arg;

    (void)thread;
    multiply_head(s, s->ws->attn, s->trunk->desc.mla.value_dim, s->ws->attended,
                  s->trunk->shape.value_dim, &s->weights->value_up, head);
}

/* For the products of all heads with one of their matrices; NULL where waking it costs more. */
static sy_pool *heads_pool(const trunk_step *s, const trunk_head_matrices *m)
{
    const size_t columns = (size_t)s->trunk->desc.n_heads * m->first.n;
    const int is_small =
        columns <= UINT32_MAX &&
        sy_kernels_is_small(s->batch->n_rows, (uint32_t)columns, m->first.k, m->first.dtype);

    return is_small ? NULL : s->ws->pool;
}

void trunk_raise_values(trunk_step *s)
{
    sy_pool_run(heads_pool(s, &s->weights->value_up), s->trunk->desc.n_heads, raise_task, s);
}

static void project_latent(trunk_step *s, sy_pool *pool)
{
    sy_trunk_ws *ws = s->ws;
    const trunk_layer *w = s->weights;
    const int has_low = s->trunk->desc.mla.q_rank > 0;
    const size_t rows = s->batch->n_rows;
    const trunk_product in[] = {{has_low ? ws->q_low : ws->q, has_low ? &w->q_a : &w->q},
                                {ws->k, &w->k}};
    const trunk_product q = {ws->q, &w->q};

    trunk_matmuls(s->trunk, ws, in, SY_COUNT_OF(in), ws->xn, rows);
    if (has_low) {
        sy_pool_run(pool, rows, norm_low_task, s);
        trunk_matmuls(s->trunk, ws, &q, 1, ws->q_low, rows);
    }
    sy_pool_run(pool, rows, latent_task, s);
    sy_pool_run(heads_pool(s, &w->key_up), s->trunk->desc.n_heads, absorb_task, s);
}

void trunk_project(trunk_step *s, sy_pool *pool)
{
    sy_trunk_ws *ws = s->ws;
    const trunk_layer *w = s->weights;
    const trunk_product qkv[] = {{ws->q, &w->q}, {ws->k, &w->k}, {ws->v, &w->v}};

    if (s->trunk->shape.is_latent) {
        project_latent(s, pool);
        return;
    }
    trunk_matmuls(s->trunk, ws, qkv, SY_COUNT_OF(qkv), ws->xn, s->batch->n_rows);
    sy_pool_run(pool, s->batch->n_rows, project_task, s);
}
