/* sy_trunk_internal.h - the trunk's structs, shared by loading and attention. */
#ifndef SY_TRUNK_INTERNAL_H
#define SY_TRUNK_INTERNAL_H

#include "sy_trunk.h"

typedef struct trunk_layer {
    float *norm1, *norm2;   /* [H] */
    float *q_norm, *k_norm; /* NULL without qk_norm */
    sy_panels q, k, v, o;
} trunk_layer;

struct sy_trunk {
    sy_model_desc desc;
    const sy_kernels *kernels;
    const sy_tensor *embed; /* for its type */
    uint8_t *embed_copy; /* [V,H] as stored: a row may be read while the file on disk is replaced */
    float *final_norm;
    sy_panels head;
    trunk_layer *layer;
    void **owned; /* every allocation, freed at close */
    size_t n_owned;
    uint64_t bytes;
};

struct sy_trunk_ws {
    uint32_t rows_max;
    sy_pool *pool;
    float *xn;        /* [rows, max(H, nh*hd)] */
    float *q, *k, *v; /* [rows, nh*hd], [rows, nkv*hd] twice */
    float *attn;      /* [rows, nh*hd] */
    float *cos, *sin; /* [rows, hd/2] */
    float *score;     /* [threads][context] */
    float *storage;
};

/* y: [rows, w->n]; x: rows of w->k floats. */
void trunk_matmul(const sy_trunk *trunk, sy_pool *pool, float *y, const float *x,
                  const uint32_t *x_row, size_t rows, const sy_panels *w);

#endif
