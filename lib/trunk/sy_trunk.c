/* sy_trunk.c - the operations around attention and MLPs: a step's ends, norms, residual sums. */
#include "sy_trunk_internal.h"

#include <math.h>

const sy_model_desc *sy_trunk_describe(const sy_trunk *trunk)
{
    return &trunk->desc;
}

const sy_kernels *sy_trunk_kernels(const sy_trunk *trunk)
{
    return trunk->kernels;
}

sy_precision sy_trunk_precision(const sy_trunk *trunk)
{
    return trunk->precision;
}

uint64_t sy_trunk_bytes(const sy_trunk *trunk)
{
    return trunk->bytes;
}

/* The angle is an fp32 product, as transformers has it. */
void sy_trunk_rebatch(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch)
{
    const size_t half = trunk->desc.rotary_dim / 2;

    for (uint32_t t = 0; t < batch->n_rows; t++) {
        const int is_long = batch->seq[t]->is_long != 0;
        const float *inv_freq = trunk->inv_freq[is_long];
        const float factor = trunk->rope_factor[is_long];

        for (size_t i = 0; i < half; i++) {
            const float angle = (float)batch->position[t] * inv_freq[i];
            ws->cos[t * half + i] = cosf(angle) * factor;
            ws->sin[t * half + i] = sinf(angle) * factor;
        }
    }
}

void sy_trunk_begin(const sy_trunk *trunk, sy_trunk_ws *ws, float *x, const sy_batch *batch)
{
    const size_t hidden = trunk->desc.hidden;
    const size_t row_bytes = sy_dtype_row_bytes(trunk->embed_dtype, hidden);

    SY_ASSERT(batch->n_rows <= ws->rows_max);
    for (uint32_t t = 0; t < batch->n_rows; t++)
        sy_dtype_widen(x + t * hidden, trunk->embed + batch->token[t] * row_bytes,
                       trunk->embed_dtype, hidden);
    if (trunk->desc.embedding_multiplier != 1.0f)
        for (size_t i = 0; i < batch->n_rows * hidden; i++)
            x[i] *= trunk->desc.embedding_multiplier;
    sy_trunk_rebatch(trunk, ws, batch);
}

/* In the kernels' order of sums: 16 partials, then pairwise. */
static float sum(const float *x, size_t n)
{
    enum { PARTIALS = 16 };
    float p[PARTIALS] = {0};

    for (size_t i = 0; i < n; i++) p[i % PARTIALS] += x[i];
    for (size_t half = PARTIALS / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) p[i] += p[i + half];
    return p[0];
}

static void layer_norm(const sy_trunk *trunk, float *y, const float *x, const trunk_norm *norm)
{
    const size_t n = trunk->desc.hidden;
    const float mean = sum(x, n) / (float)n;

    for (size_t i = 0; i < n; i++) y[i] = x[i] - mean;
    const float variance = trunk->kernels->dot(y, y, n) / (float)n;
    const float r = 1.0f / sqrtf(variance + trunk->desc.rms_eps);
    for (size_t i = 0; i < n; i++) y[i] = norm->weight[i] * (y[i] * r);
    if (norm->bias != NULL) trunk->kernels->add(y, norm->bias, n);
}

void trunk_norm_row(const sy_trunk *trunk, float *y, const float *x, const trunk_norm *norm)
{
    if (trunk->desc.norm == SY_NORM_LAYER)
        layer_norm(trunk, y, x, norm);
    else
        trunk->kernels->rmsnorm(y, x, norm->weight, trunk->desc.rms_eps, trunk->desc.hidden);
}

void sy_trunk_moe_input(const sy_trunk *trunk, uint32_t layer, float *xn, const float *x,
                        uint32_t n_rows)
{
    const size_t hidden = trunk->desc.hidden;

    for (uint32_t t = 0; t < n_rows; t++)
        trunk_norm_row(trunk, xn + t * hidden, x + t * hidden, &trunk->layer[layer].norm2);
}

void trunk_add(const sy_trunk *trunk, float *x, const float *y, size_t n)
{
    if (trunk->desc.residual_multiplier == 1.0f)
        trunk->kernels->add(x, y, n);
    else
        trunk->kernels->axpy(x, y, trunk->desc.residual_multiplier, n);
}

void sy_trunk_add(const sy_trunk *trunk, float *x, const float *y, uint32_t n_rows)
{
    trunk_add(trunk, x, y, (size_t)n_rows * trunk->desc.hidden);
}

void sy_trunk_head(const sy_trunk *trunk, sy_trunk_ws *ws, float *logits, const float *x,
                   const uint32_t *row, uint32_t n)
{
    const size_t hidden = trunk->desc.hidden;

    SY_ASSERT(n <= ws->rows_max);
    for (uint32_t i = 0; i < n; i++)
        trunk_norm_row(trunk, ws->xn + i * hidden, x + row[i] * hidden, &trunk->final_norm);
    trunk_matmuls(trunk, ws, &(trunk_product){logits, &trunk->head}, 1, ws->xn, n);
    if (trunk->desc.logits_scaling == 1.0f) return;
    for (size_t i = 0; i < (size_t)n * trunk->desc.vocab; i++)
        logits[i] /= trunk->desc.logits_scaling;
}
