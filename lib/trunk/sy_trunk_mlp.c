/* sy_trunk_mlp.c - the MLP of a dense layer, and the shared experts beside the others. */
#include "sy_trunk_internal.h"

typedef struct mlp_step {
    const sy_trunk *trunk;
    const trunk_layer *weights;
    sy_trunk_ws *ws;
} mlp_step;

static void swiglu_task(void *arg, size_t t, unsigned thread)
{
    const mlp_step *s = arg;
    const size_t ffn = s->weights->gate.w.n;
    float *h = s->ws->mlp_gate + t * ffn;

    (void)thread;
    s->trunk->kernels->swiglu(h, h, s->ws->mlp_up + t * ffn, ffn);
}

static float sigmoid(const sy_kernels *kernels, float z)
{
    float e = -z;

    kernels->vexp(&e, &e, 1);
    return 1.0f / (1.0f + e);
}

static void add_task(void *arg, size_t t, unsigned thread)
{
    const mlp_step *s = arg;
    const sy_kernels *kernels = s->trunk->kernels;
    const size_t hidden = s->trunk->desc.hidden;
    float *x = s->ws->x + t * hidden;
    const float *y = s->ws->xn + t * hidden;

    (void)thread;
    if (s->weights->mix == NULL) {
        trunk_add(s->trunk, x, y, hidden);
        return;
    }
    const float mix =
        sigmoid(kernels, kernels->dot(s->ws->input + t * hidden, s->weights->mix, hidden));
    kernels->axpy(x, y, mix * s->trunk->desc.residual_multiplier, hidden);
}

sy_status trunk_cpu_mlp(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err)
{
    const sy_trunk *trunk = ws->trunk;
    const trunk_layer *w = &trunk->layer[layer];
    const trunk_product in[] = {{ws->mlp_gate, &w->gate}, {ws->mlp_up, &w->up}};
    const trunk_product out = {ws->xn, &w->down};
    mlp_step s = {trunk, w, ws};

    (void)err;
    if (w->down.w.data == NULL) return SY_OK;
    /* A few rows take less time than waking the pool. */
    sy_pool *pool = (size_t)n_rows * w->gate.w.n < 16 << 10 ? NULL : ws->pool;
    trunk_matmuls(trunk, ws, in, SY_COUNT_OF(in), ws->input, n_rows);
    sy_pool_run(pool, n_rows, swiglu_task, &s);
    trunk_matmuls(trunk, ws, &out, 1, ws->mlp_gate, n_rows);
    sy_pool_run(pool, n_rows, add_task, &s);
    return SY_OK;
}
