/* sy_trunk_device.h - a trunk on a GPU: what its files share. Weights, cache and rows lie there;
 * the host keeps the pages' numbers, makes angles, and enqueues. There is one stream a trunk, so
 * its steps, whichever workspace they are of, happen in the order of the calls. */
#ifndef SY_TRUNK_DEVICE_H
#define SY_TRUNK_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "sy_trunk_internal.h"

/* ---- the GPU ---- */

/* Marks of the stream: two of a workspace, taken in turn where there are more of them (who waits
 * for another's waits longer than need be, no more), and one for whoever waits at once. */
enum { DEVICE_WORKSPACES = 3, DEVICE_MARK_NOW = 2 * DEVICE_WORKSPACES };

typedef struct trunk_machine {
    const sy_backend *backend;
    sy_backend_handle *handle;
    sy_backend_stream *stream; /* NULL: closed, because the device is lost */
    char *name;                /* "cuda:0" */
    uint32_t timeout_us;
    char arithmetic[SY_BACKEND_ARITHMETIC_BYTES];
    atomic_uint n_workspaces; /* opened so far */
    atomic_int is_lost;
    pthread_mutex_t loss; /* guards why, which is written once */
    char why[SY_BACKEND_WHY_BYTES];
} trunk_machine;

/* A call's result: a device that it finds lost is lost from now on. */
sy_status trunk_device_result(trunk_machine *machine, int result, const char *why, sy_error *err);
int trunk_device_lost(const trunk_machine *machine, sy_error *why);
/* Waits until all that got the mark is done; a device that takes longer than it may is lost. */
SY_MUST_USE sy_status trunk_device_wait(trunk_machine *machine, uint32_t mark, sy_error *err);
SY_MUST_USE sy_status trunk_device_mark(trunk_machine *machine, uint32_t mark, sy_error *err);
/* Waits for everything, before its memory is freed. */
void trunk_device_settle(trunk_machine *machine);
/* what: "weights", for SY_ENOMEM (DEVICE_MEMORY). */
SY_MUST_USE sy_status trunk_device_take(sy_backend_buffer **out, trunk_machine *machine,
                                        uint64_t bytes, const char *what, sy_error *err);
SY_MUST_USE sy_status trunk_device_take_pinned(void **out, trunk_machine *machine, uint64_t bytes,
                                               sy_error *err);

/* ---- weights ---- */

typedef struct device_matrix {
    sy_backend_ref weights, bias; /* bias: may be none */
    uint32_t n, k;                /* n 0: the layer has no such matrix */
    sy_dtype dtype;               /* as it is held: BF16, Q8, Q4, FP8 or MXFP4 */
} device_matrix;

typedef struct device_norm {
    sy_backend_ref weight, bias; /* bias: may be none */
} device_norm;

/* What trunk_layer is on the processor. */
typedef struct device_layer {
    device_norm norm1, norm2;
    device_matrix q, k, v, o;             /* with MLA: q is Q_B or Q, k is KV_A, and no v */
    device_matrix q_a;                    /* MLA with q_rank */
    sy_backend_ref q_norm, k_norm, sinks; /* may be none */
    sy_backend_ref q_a_norm, kv_a_norm;   /* MLA */
    sy_backend_ref key_up, value_up;      /* MLA, a matrix a head: [kv_rank, nope_dim], transposed;
                                             [value_dim, kv_rank] */
    sy_dtype heads_dtype;                 /* of both: BF16, Q8 or Q4 */
    device_matrix gate_up, down;          /* gate_up.n: F */
    sy_backend_ref mix;                   /* [H], with shared_gate */
} device_layer;

struct trunk_device {
    trunk_machine *machine;
    sy_backend_buffer *memory; /* of all weights */
    sy_backend_ref embed;      /* [V,H] bf16 */
    device_norm final_norm;
    device_matrix head;
    device_layer *layer;
    float *inv_freq; /* of the host */
};

/* For the plugin. n by k, of a dtype that a device_matrix has. */
sy_backend_matrix trunk_matrix_of(sy_backend_matrix_form form, uint32_t n, uint32_t k,
                                  sy_dtype dtype);

/* What weights are read from, and for whom. */
typedef struct device_source {
    trunk_machine *machine;
    const sy_model *model;
    sy_pool *pool;
} device_source;

/* One tensor into memory that was taken for it: packed, as the matrix is held, up being Up of a
 * matrix that is Gate and Up, else NULL; KV_B as the matrices of all heads; rows as they are; or as
 * fp32. SY_EINVAL: a weight is too large for q8 or q4. */
SY_MUST_USE sy_status trunk_fill_matrix(const device_source *source, const device_matrix *to,
                                        const sy_tensor *tensor, const sy_tensor *up,
                                        sy_error *err);
SY_MUST_USE sy_status trunk_fill_heads(const device_source *source, const device_layer *to,
                                       const sy_mla_desc *mla, const sy_tensor *tensor,
                                       sy_error *err);
SY_MUST_USE sy_status trunk_fill_rows(const device_source *source, sy_backend_ref to,
                                      const sy_tensor *tensor, sy_error *err);
SY_MUST_USE sy_status trunk_fill_vector(const device_source *source, sy_backend_ref to,
                                        const sy_tensor *tensor, sy_error *err);
/* Rows of the host, as the matrix is held, into its memory: for whoever makes weights up. */
SY_MUST_USE sy_status trunk_device_write(trunk_machine *machine, sy_backend_ref to,
                                         const sy_backend_matrix *matrix, uint32_t row,
                                         uint32_t n_rows, const void *rows, const void *up,
                                         sy_error *err);
SY_MUST_USE sy_status trunk_device_copy_in(trunk_machine *machine, sy_backend_ref to,
                                           const void *host, uint64_t n, sy_error *err);

/* All of it from the checkpoint, with the pool's threads. Errors as sy_trunk_open_on has them; what
 * was taken until then is the caller's to free. */
SY_MUST_USE sy_status trunk_device_load(sy_trunk *trunk, const sy_model *model, sy_pool *pool,
                                        sy_error *err);

/* ---- cache ---- */

struct trunk_device_kv {
    sy_backend_buffer *memory; /* [layer][page], a layer as sy_cuda_kv has it */
    uint64_t layer_bytes;
};

int trunk_device_kv_is_rounded(const sy_trunk *trunk); /* to bf16 */
uint64_t trunk_device_page_bytes(const sy_trunk *trunk);
sy_status trunk_device_kv_open(sy_kv *kv, sy_error *err);
void trunk_device_kv_close(sy_kv *kv);
/* One layer of it, for the workspace's batch. */
sy_backend_kv trunk_device_kv_layer(const sy_kv *kv, uint32_t layer, const sy_trunk_ws *ws);

/* ---- workspace ---- */

/* The batch as the device has it, and how its attention is best spread. */
typedef struct device_batch {
    uint32_t n_rows, n_sequences, pages_max, positions_max, rows_together;
    sy_backend_ref count, token, page, angles;
    sy_backend_places places;
} device_batch;

struct trunk_device_ws {
    uint32_t mark_batch; /* the batch is there */
    uint32_t mark_input; /* so are the rows that sy_trunk_input hands out */

    /* Grows with the sequences of a batch: a few times in a process' life. */
    uint8_t *batch_host; /* pinned */
    sy_backend_buffer *batch_memory;
    uint64_t batch_bytes;
    device_batch batch;

    void *pinned;          /* all of these */
    float *input, *output; /* [rows_max,H] */
    float *logits;         /* [head_rows,V] */
    uint8_t *head_host;    /* what rows the head takes */
    uint32_t head_rows;    /* of one piece */
    int has_input;         /* the last norm was one that sy_trunk_input may follow */

    sy_backend_buffer *memory; /* all of these */
    sy_backend_ref x, xn, y;   /* [rows_max,H] fp32 */
    sy_backend_ref xn16;       /* [rows_max,padded(H)] bf16, as is all that ends with 16 */
    sy_backend_ref head, head16, head_logits;
    /* Attention and MLPs take turns with one part of it. */
    sy_backend_ref q, k, v;         /* [rows_max, heads, dim]; with MLA k is a latent */
    sy_backend_ref q_low, q_low16;  /* [rows_max, q_rank] */
    sy_backend_ref query, attended; /* [rows_max, n_heads, dim of the cache]; without MLA q, attn */
    sy_backend_ref attn, attn16;    /* [rows_max, n_heads * value_dim]: what O takes */
    sy_backend_ref h16, gate;       /* [rows_max,F]; [rows_max] */
    sy_backend_ref scratch;         /* of attention in splits */
    uint64_t scratch_bytes;
};

sy_status trunk_device_ws_open(sy_trunk_ws *ws, sy_error *err);
void trunk_device_ws_close(sy_trunk_ws *ws);
/* Puts the batch where the device finds it. */
SY_MUST_USE sy_status trunk_device_set_batch(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err);

/* ---- operations ---- */

enum { DEVICE_OPS_MAX = 24 };
/* For the rows of one batch, enqueued together. */
typedef struct device_ops {
    trunk_machine *machine;
    uint32_t n_rows;
    sy_backend_ref count; /* the same number on the device */
    uint32_t n;
    sy_backend_op op[DEVICE_OPS_MAX];
} device_ops;

void trunk_ops_begin(device_ops *ops, const sy_trunk_ws *ws);
/* Enqueues what was added, and is empty then. */
SY_MUST_USE sy_status trunk_ops_run(device_ops *ops, sy_error *err);
sy_backend_op *trunk_op(device_ops *ops, sy_backend_op_kind kind);
void trunk_op_in(device_ops *ops, sy_backend_ref to, void *host, uint64_t n);
void trunk_op_out(device_ops *ops, void *host, sy_backend_ref from, uint64_t n);
/* y, y16: one may be none. */
void trunk_op_norm(device_ops *ops, const sy_trunk *trunk, sy_backend_ref y, sy_backend_ref y16,
                   sy_backend_ref x, const device_norm *norm);
/* RMS, of rows that belong to no residual stream. */
void trunk_op_rms(device_ops *ops, sy_backend_ref y, sy_backend_ref y16, sy_backend_ref x,
                  sy_backend_ref weight, float eps, uint32_t n);
void trunk_op_linear(device_ops *ops, sy_backend_ref y, sy_backend_ref x16,
                     const device_matrix *matrix, float divisor);
/* x += y, times the model's factor, and each row's where there is one. */
void trunk_op_add(device_ops *ops, const sy_trunk_ws *ws, sy_backend_ref row_factor);

/* From normed rows, ws's xn16, to what attention takes, with which the cache is fed; MLA's, and
 * what MLA makes of what was gathered. */
void trunk_op_project(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer);
void trunk_op_project_latent(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer);
void trunk_op_raise_values(device_ops *ops, const sy_trunk_ws *ws, uint32_t layer);

sy_status trunk_device_begin(sy_trunk_ws *ws, const sy_batch *batch, sy_error *err);
sy_status trunk_device_keep(sy_trunk_ws *ws, const sy_batch *batch, const uint32_t *row,
                            sy_error *err);
sy_status trunk_device_attend(sy_trunk_ws *ws, sy_kv *kv, uint32_t layer, const sy_batch *batch,
                              sy_error *err);
sy_status trunk_device_norm(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err);
sy_status trunk_device_mlp(sy_trunk_ws *ws, uint32_t layer, uint32_t n_rows, sy_error *err);
sy_status trunk_device_input(const float **xn, sy_trunk_ws *ws, uint32_t n_rows, sy_error *err);
float *trunk_device_output(const sy_trunk_ws *ws);
sy_status trunk_device_add(sy_trunk_ws *ws, uint32_t n_rows, sy_error *err);
sy_status trunk_device_head(const sy_trunk *trunk, float *logits, const sy_trunk_row *row,
                            uint32_t n, sy_error *err);

/* ---- is it right? ---- */

/* A layer of each of the model's forms, matrices held as its are, with weights that every build
 * knows, for the rows of two sequences, by the calls above: SY_EDATALOSS (DEVICE_SELF_TEST). */
SY_MUST_USE sy_status trunk_device_self_test(const sy_trunk *trunk, sy_error *err);

static inline sy_backend_ref trunk_ref(sy_backend_ref ref, uint64_t bytes)
{
    return (sy_backend_ref){ref.buffer, ref.offset + bytes};
}

/* Elements from one bf16 row to the next. */
static inline uint64_t trunk_padded(uint64_t n)
{
    return (n + 63) & ~(uint64_t)63;
}

static inline int trunk_layer_rotates(const sy_model_desc *d, uint32_t layer)
{
    return (d->layer[layer] & SY_LAYER_NO_ROPE) == 0 && d->rotary_dim > 0;
}

#endif
