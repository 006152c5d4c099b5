/* sy_trunk_internal.h - the trunk's structs, and what its files ask of each other. */
#ifndef SY_TRUNK_INTERNAL_H
#define SY_TRUNK_INTERNAL_H

#include "sy_kv_internal.h"
#include "sy_trunk.h"

typedef struct trunk_norm {
    float *weight; /* [H] */
    float *bias;   /* [H]; NULL: none */
} trunk_norm;

typedef struct trunk_matrix {
    sy_panels w; /* data NULL: the layer has no such matrix */
    float *bias; /* [w.n]; NULL: none */
} trunk_matrix;

/* A matrix of the same shape for each query head. */
typedef struct trunk_head_matrices {
    sy_panels first;
    size_t step_bytes; /* from one head's panels to the next */
} trunk_head_matrices;

typedef struct trunk_layer {
    trunk_norm norm1, norm2;
    trunk_matrix q, k, v, o; /* with MLA: q is Q_B or Q, k is KV_A, and there is no v */
    float *q_norm, *k_norm;  /* NULL: none here */
    float *sinks;            /* [n_heads]; NULL: none */
    trunk_matrix q_a;        /* MLA with q_rank */
    float *q_a_norm, *kv_a_norm;
    trunk_head_matrices key_up, value_up; /* MLA: [kv_rank, nope_dim] and [value_dim, kv_rank] */
    trunk_matrix gate, up, down;          /* of a dense layer, or of the shared experts */
    float *mix;                           /* [H], with shared_gate; NULL: none */
} trunk_layer;

typedef struct trunk_memory {
    void *data;
    size_t bytes;
} trunk_memory;

/* What differs with the place where a trunk computes; the calls of sy_trunk.h of these names, whose
 * arguments have been checked. What is opened has its common fields set and the others zeroed; what
 * was opened in part is closed like any other. */
typedef struct trunk_ops {
    void (*close)(sy_trunk *trunk);
    const char *(*arithmetic)(const sy_trunk *trunk);
    int (*lost)(const sy_trunk *trunk, sy_error *why);
    uint64_t (*page_bytes)(const sy_trunk *trunk);
    sy_status (*kv_open)(sy_kv *kv, sy_error *err);
    void (*kv_close)(sy_kv *kv);
    sy_status (*ws_open)(sy_trunk_ws *ws, sy_error *err);
    void (*ws_close)(sy_trunk_ws *ws);
    sy_status (*begin)(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err);
    sy_status (*keep)(sy_trunk_ws *ws, const sy_batch *batch, const uint32_t *row, sy_error *err);
    sy_status (*attend)(sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, const sy_batch *batch,
                        sy_error *err);
    sy_status (*norm)(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err);
    sy_status (*mlp)(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err);
    sy_status (*input)(const float **xn, sy_trunk_ws *ws, uint32_t n_rows, sy_error *err);
    float *(*output)(const sy_trunk_ws *ws);
    sy_status (*add)(sy_trunk_ws *ws, uint32_t n_rows, sy_error *err);
    sy_status (*head)(const sy_trunk *trunk, float *logits, const sy_trunk_row *row, uint32_t n,
                      sy_error *err);
} trunk_ops;
extern const trunk_ops trunk_cpu_ops;

struct sy_trunk {
    const trunk_ops *ops;
    sy_model_desc desc;
    sy_kv_shape shape;
    const sy_kernels *kernels;
    sy_precision precision;
    struct trunk_device *device; /* NULL: the processor; what follows is its own, but for bytes and
                                    the rotation */
    uint8_t *embed; /* [V,H], a copy: a row may be read while the file on disk is replaced */
    sy_dtype embed_dtype;
    trunk_norm final_norm;
    const float *inv_freq[2]; /* [rotary/2], of the rotation; [1]: of sequences that are long */
    float rope_factor[2];     /* on cosine and sine */
    float *ones;              /* [head_dim], with SY_QK_NORM_WEIGHTLESS: what its rows are times */
    trunk_matrix head;
    trunk_layer *layer;
    trunk_memory *owned; /* every allocation, freed at close */
    size_t n_owned, owned_max;
    uint64_t bytes;
};

/* Attention and MLPs take turns with one part of the storage. */
struct sy_trunk_ws {
    const sy_trunk *trunk; /* borrowed: it outlives its workspaces */
    uint32_t rows_max;
    sy_pool *pool;
    struct trunk_device_ws *device; /* NULL: the processor, whose own is what follows */
    float *x, *input, *output;      /* [rows, H] */
    float *xn;                      /* [rows, H] */
    float *cos, *sin;               /* [rows, rotary/2] */
    float *q, *k, *v;         /* [rows, nh*hd]; [rows, nkv*hd] twice, or with MLA one latent */
    float *attn;              /* [rows, nh*value_dim]: what O takes */
    float *q_low;             /* [rows, q_rank] */
    float *query;             /* [rows, nh, key_dim]: q itself, but with MLA */
    float *attended;          /* [rows, nh, value_dim of the cache]: attn itself, but with MLA */
    float *mlp_gate, *mlp_up; /* [rows, ffn] */
    float *score;             /* [threads][score_floats]: of the queries of one task */
    size_t score_floats;
    uint32_t *block; /* [rows + 1]: where the batch's blocks of rows begin: sy_attention.c */
    float *storage;
    size_t storage_bytes;
    void *rounded; /* the rows that a product takes, as int8 (sy_qrows) or bf16, with such
                      activations; NULL with fp32 ones */
};

/* What one layer's attention does to a batch. */
typedef struct trunk_step {
    const sy_trunk *trunk;
    const trunk_layer *weights;
    sy_trunk_ws *ws;
    sy_kv *kv;
    uint32_t layer;
    const sy_batch *batch;
    uint32_t window, chunk;  /* how far back keys are seen: SY_LAYER_SLIDING, CHUNKED; 0: all */
    uint32_t n_blocks;       /* of rows: ws->block */
    uint32_t heads_together; /* query heads of a task */
} trunk_step;

/* From normed rows, ws->xn, to ws->query and the cache. pool: NULL where waking it costs more. */
void trunk_project(trunk_step *s, sy_pool *pool);
/* MLA: from what heads gathered of latents, ws->attended, to ws->attn. */
void trunk_raise_values(trunk_step *s);

/* One row, which y is not: RMS or layer norm, as the model has it. */
void trunk_norm_row(const sy_trunk *trunk, float *y, const float *x, const trunk_norm *norm);
/* x += y, what a block adds to the residual stream; times the model's factor, if it has one. */
void trunk_add(const sy_trunk *trunk, float *x, const float *y, size_t n);

/* The floats of a row that O takes. */
static inline size_t trunk_attn_width(const sy_model_desc *d)
{
    return (size_t)d->n_heads * (d->mla.kv_rank > 0 ? d->mla.value_dim : d->head_dim);
}

/* The larger MLP of the model's; 0: it has none. */
static inline size_t trunk_mlp_width(const sy_model_desc *d)
{
    return SY_MAX(d->dense_ffn, d->shared_ffn);
}

/* ---- the processor's (sy_trunk_cpu.c has the rest) ---- */

void trunk_cpu_close(sy_trunk *trunk);
uint64_t trunk_cpu_page_bytes(const sy_trunk *trunk);
sy_status trunk_cpu_kv_open(sy_kv *kv, sy_error *err);
void trunk_cpu_kv_close(sy_kv *kv);
sy_status trunk_cpu_ws_open(sy_trunk_ws *ws, sy_error *err);
void trunk_cpu_ws_close(sy_trunk_ws *ws);
sy_status trunk_cpu_attend(sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, const sy_batch *batch,
                           sy_error *err);
sy_status trunk_cpu_mlp(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err);

/* The rotation's frequencies, in memory of inv: 2 * rotary_dim / 2 floats. */
void trunk_set_rotation(sy_trunk *trunk, float *inv);
/* The angles of a row: [rotary_dim / 2] each. As transformers has it, the angle is an fp32 product.
 */
void trunk_angles(const sy_trunk *trunk, float *cos, float *sin, uint32_t position, int is_long);

/* SY_ENOMEM: no room for rounded rows. */
SY_MUST_USE sy_status trunk_ws_rounding(sy_trunk_ws *ws, const sy_trunk *trunk);
/* Floats of one thread's scores: sy_attention.c. */
size_t trunk_score_floats(const sy_trunk *trunk);

typedef struct trunk_product {
    float *y; /* [rows, matrix->w.n] */
    const trunk_matrix *matrix;
} trunk_product;
/* n >= 1 matrices over the same x, rows of w.k floats, in one run of the pool: with activations of
 * int8 or bf16 x is rounded once. A bias is added once a sum is complete. */
void trunk_matmuls(const sy_trunk *trunk, sy_trunk_ws *ws, const trunk_product *product, size_t n,
                   const float *x, size_t rows);

#endif
