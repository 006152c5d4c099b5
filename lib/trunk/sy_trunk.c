/* sy_trunk.c - what callers ask of a trunk, handed to where it computes. */
#include <stdlib.h>

#include "sy_trunk_internal.h"

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

const char *sy_trunk_arithmetic(const sy_trunk *trunk)
{
    return trunk->ops->arithmetic(trunk);
}

int sy_trunk_lost(const sy_trunk *trunk, sy_error *why)
{
    return trunk->ops->lost(trunk, why);
}

uint64_t sy_trunk_page_bytes(const sy_trunk *trunk)
{
    return trunk->ops->page_bytes(trunk);
}

void sy_trunk_close(sy_trunk *trunk)
{
    if (trunk == NULL) return;
    trunk->ops->close(trunk);
    free(trunk);
}

/* ---- a step ---- */

sy_status sy_trunk_begin(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch,
                         sy_error *err)
{
    SY_ASSERT(batch->n_rows <= ws->rows_max);
    return trunk->ops->begin(ws, batch, err);
}

sy_status sy_trunk_keep(const sy_trunk *trunk, sy_trunk_ws *ws, const sy_batch *batch,
                        const uint32_t *row, sy_error *err)
{
    SY_ASSERT(batch->n_rows <= ws->rows_max);
    return trunk->ops->keep(ws, batch, row, err);
}

sy_status sy_trunk_attend(const sy_trunk *trunk, sy_trunk_ws *ws, sy_kv *kv, uint32_t layer,
                          const sy_batch *batch, sy_error *err)
{
    SY_ASSERT(batch->n_rows <= ws->rows_max && layer < trunk->desc.n_layers);
    return trunk->ops->attend(ws, kv, layer, batch, err);
}

sy_status sy_trunk_norm(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows,
                        sy_error *err)
{
    SY_ASSERT(n_rows <= ws->rows_max && layer < trunk->desc.n_layers);
    return trunk->ops->norm(ws, layer, n_rows, err);
}

sy_status sy_trunk_mlp(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows,
                       sy_error *err)
{
    SY_ASSERT(n_rows <= ws->rows_max && layer < trunk->desc.n_layers);
    return trunk->ops->mlp(ws, layer, n_rows, err);
}

sy_status sy_trunk_input(const float **xn, const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t n_rows,
                         sy_error *err)
{
    SY_ASSERT(n_rows <= ws->rows_max);
    return trunk->ops->input(xn, ws, n_rows, err);
}

float *sy_trunk_output(const sy_trunk_ws *ws)
{
    return ws->trunk->ops->output(ws);
}

sy_status sy_trunk_add(const sy_trunk *trunk, sy_trunk_ws *ws, uint32_t n_rows, sy_error *err)
{
    SY_ASSERT(n_rows <= ws->rows_max);
    return trunk->ops->add(ws, n_rows, err);
}

sy_status sy_trunk_head(const sy_trunk *trunk, float *logits, const sy_trunk_row *row, uint32_t n,
                        sy_error *err)
{
    if (n == 0) return SY_OK;
    SY_ASSERT(n <= row[0].ws->rows_max);
    return trunk->ops->head(trunk, logits, row, n, err);
}
