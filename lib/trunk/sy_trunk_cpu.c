/* sy_trunk_cpu.c - the processor's operations around attention and MLPs: a step's ends, norms,
 * residual sums. */
#include <math.h>
#include <string.h>

#include "sy_trunk_internal.h"

void trunk_angles(const sy_trunk *trunk, float *cos, float *sin, uint32_t position, int is_long)
{
    const float *inv_freq = trunk->inv_freq[is_long];
    const float factor = trunk->rope_factor[is_long];

    for (size_t i = 0; i < trunk->desc.rotary_dim / 2; i++) {
        const float angle = (float)position * inv_freq[i];
        cos[i] = cosf(angle) * factor;
        sin[i] = sinf(angle) * factor;
    }
}

static void set_angles(sy_trunk_ws *ws, const sy_batch *batch)
{
    const size_t half = ws->trunk->desc.rotary_dim / 2;

    for (uint32_t t = 0; t < batch->n_rows; t++)
        trunk_angles(ws->trunk, ws->cos + t * half, ws->sin + t * half, batch->position[t],
                     batch->seq[t]->is_long != 0);
}

static sy_status begin(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err)
{
    const sy_trunk *trunk = ws->trunk;
    const size_t hidden = trunk->desc.hidden;
    const size_t row_bytes = sy_dtype_row_bytes(trunk->embed_dtype, hidden);
    float *x = ws->x;

    (void)err;
    for (uint32_t t = 0; t < batch->n_rows; t++)
        sy_dtype_widen(x + t * hidden, trunk->embed + batch->token[t] * row_bytes,
                       trunk->embed_dtype, hidden);
    if (trunk->desc.embedding_multiplier != 1.0f)
        for (size_t i = 0; i < batch->n_rows * hidden; i++)
            x[i] *= trunk->desc.embedding_multiplier;
    set_angles(ws, batch);
    return SY_OK;
}

static sy_status keep(sy_trunk_ws *ws, const sy_batch *batch, const uint32_t *row, sy_error *err)
{
    const size_t hidden = ws->trunk->desc.hidden;

    (void)err;
    for (uint32_t i = 0; i < batch->n_rows; i++)
        memmove(ws->x + i * hidden, ws->x + row[i] * hidden, hidden * sizeof(float));
    set_angles(ws, batch);
    return SY_OK;
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

static sy_status norm(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err)
{
    const size_t hidden = ws->trunk->desc.hidden;

    (void)err;
    for (uint32_t t = 0; t < n_rows; t++)
        trunk_norm_row(ws->trunk, ws->input + t * hidden, ws->x + t * hidden,
                       &ws->trunk->layer[layer].norm2);
    return SY_OK;
}

static sy_status input(const float **xn, sy_trunk_ws *ws, uint32_t n_rows, sy_error *err)
{
    (void)n_rows;
    (void)err;
    *xn = ws->input;
    return SY_OK;
}

static float *output(const sy_trunk_ws *ws)
{
    return ws->output;
}

void trunk_add(const sy_trunk *trunk, float *x, const float *y, size_t n)
{
    if (trunk->desc.residual_multiplier == 1.0f)
        trunk->kernels->add(x, y, n);
    else
        trunk->kernels->axpy(x, y, trunk->desc.residual_multiplier, n);
}

static sy_status add(sy_trunk_ws *ws, uint32_t n_rows, sy_error *err)
{
    (void)err;
    trunk_add(ws->trunk, ws->x, ws->output, (size_t)n_rows * ws->trunk->desc.hidden);
    return SY_OK;
}

/* All rows' heads in one product, with the first one's scratch: the weights are read once. */
static sy_status head(const sy_trunk *trunk, float *logits, const sy_trunk_row *row, uint32_t n,
                      sy_error *err)
{
    const size_t hidden = trunk->desc.hidden;
    sy_trunk_ws *ws = row[0].ws;

    (void)err;
    for (uint32_t i = 0; i < n; i++)
        trunk_norm_row(trunk, ws->xn + i * hidden, row[i].ws->x + row[i].row * hidden,
                       &trunk->final_norm);
    trunk_matmuls(trunk, ws, &(trunk_product){logits, &trunk->head}, 1, ws->xn, n);
    if (trunk->desc.logits_scaling == 1.0f) return SY_OK;
    for (size_t i = 0; i < (size_t)n * trunk->desc.vocab; i++)
        logits[i] /= trunk->desc.logits_scaling;
    return SY_OK;
}

static const char *arithmetic(const sy_trunk *trunk)
{
    return sy_arithmetic_name(trunk->precision.activations);
}

static int lost(const sy_trunk *trunk, sy_error *why)
{
    (void)trunk;
    (void)why;
    return 0;
}

const trunk_ops trunk_cpu_ops = {
    .close = trunk_cpu_close,
    .arithmetic = arithmetic,
    .lost = lost,
    .page_bytes = trunk_cpu_page_bytes,
    .kv_open = trunk_cpu_kv_open,
    .kv_close = trunk_cpu_kv_close,
    .ws_open = trunk_cpu_ws_open,
    .ws_close = trunk_cpu_ws_close,
    .begin = begin,
    .keep = keep,
    .attend = trunk_cpu_attend,
    .norm = norm,
    .mlp = trunk_cpu_mlp,
    .input = input,
    .output = output,
    .add = add,
    .head = head,
};
