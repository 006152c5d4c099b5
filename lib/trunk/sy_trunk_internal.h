/* sy_trunk_internal.h - the trunk's structs, shared by loading and attention. */
#ifndef SY_TRUNK_INTERNAL_H
#define SY_TRUNK_INTERNAL_H

#include "sy_trunk.h"

typedef struct trunk_layer {
    float *norm1, *norm2;   /* [H] */
    float *q_norm, *k_norm; /* NULL without qk_norm */
    sy_panels q, k, v, o;
} trunk_layer;

typedef struct trunk_memory {
    void *data;
    size_t bytes;
} trunk_memory;

struct sy_trunk {
    sy_model_desc desc;
    const sy_kernels *kernels;
    sy_precision precision;
    const sy_tensor *embed; /* for its type */
    uint8_t *embed_copy; /* [V,H] as stored: a row may be read while the file on disk is replaced */
    float *final_norm;
    float *inv_freq; /* [rotary/2], of the rotation */
    sy_panels head;
    trunk_layer *layer;
    trunk_memory *owned; /* every allocation, freed at close */
    size_t n_owned;
    uint64_t bytes;
};

struct sy_trunk_ws {
    uint32_t rows_max;
    sy_pool *pool;
    float *xn;        /* [rows, max(H, nh*hd)] */
    float *q, *k, *v; /* [rows, nh*hd], [rows, nkv*hd] twice */
    float *attn;      /* [rows, nh*hd] */
    float *cos, *sin; /* [rows, rotary/2] */
    float *score;     /* [threads][score_floats]: of the queries of one task */
    size_t score_floats;
    uint32_t *block; /* [rows + 1]: where the batch's blocks of rows begin: sy_attention.c */
    float *storage;
    size_t storage_bytes;
    void *rounded; /* [rows, max(H, nh*hd)] as int8 (sy_qrows) or bf16, with such activations; NULL
                      with fp32 ones */
};

/* x += y, what a block adds to the residual stream; times the model's factor, if it has one. */
void trunk_add(const sy_trunk *trunk, float *x, const float *y, size_t n);

/* SY_ENOMEM: no room for rounded rows. ws->rows_max is set. */
SY_MUST_USE sy_status trunk_ws_rounding(sy_trunk_ws *ws, const sy_trunk *trunk);

typedef struct trunk_product {
    float *y; /* [rows, w->n] */
    const sy_panels *w;
} trunk_product;
/* n >= 1 matrices over the same x, rows of w->k floats, in one run of the pool: with
 * activations of int8 or bf16 x is rounded once. */
void trunk_matmuls(const sy_trunk *trunk, sy_trunk_ws *ws, const trunk_product *product, size_t n,
                   const float *x, size_t rows);

#endif
