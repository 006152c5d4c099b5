/* sy_cuda_trunk.h - the trunk's operations on a GPU, as plain C calls: what lib/trunk does to a
 * batch of rows between the experts. As in sy_cuda_kernels.h every pointer is device memory unless
 * it says host, calls enqueue on `stream` and return cudaGetLastError(), and nothing is allocated
 * or waited for. Structs are host memory and only read during the call. All that varies between
 * steps (the number of rows, their tokens, positions, sequences and pages) is read from device
 * memory, so a step can be captured into a graph and replayed.
 *
 * Arithmetic. Products with a packed matrix are "bf16-mma/1" (sy_cuda_kernels.h); all else is fp32,
 * with exp as in sy_kernels.h. Sums are taken in an order of their own, not the CPU's. A row's bits
 * depend on the row and its sequence alone: not on the variant, on how a prompt was cut into
 * batches, on what else is in the batch, or on how keys were spread over the device.
 *
 * 1 (cudaErrorInvalidValue) comes back where a shape is past a limit that is stated here; nothing
 * is launched then. */
#ifndef SY_CUDA_TRUNK_H
#define SY_CUDA_TRUNK_H

#include "sy_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* T of a call: *n rows, one number in device memory, at most max, which the launch is sized for (0:
 * nothing is launched). Rows past *n are neither read nor written. */
typedef struct sy_cuda_row_count {
    const uint32_t *n;
    uint32_t max;
} sy_cuda_row_count;

/* ---- rows ---- */

/* x[t] = factor * embedding[token[t]]. x: [T,H]; embedding: [V,H] bf16; token: [T] < V. */
int sy_cuda_embed(float *x, const uint16_t *embedding, const uint32_t *token, uint32_t hidden,
                  float factor, const sy_cuda_row_count *rows, void *stream);

typedef enum sy_cuda_norm_form { SY_CUDA_NORM_RMS, SY_CUDA_NORM_LAYER } sy_cuda_norm_form;
typedef struct sy_cuda_norm {
    sy_cuda_norm_form form;
    const float *weight; /* [n] */
    const float *bias;   /* [n] or NULL; LAYER alone */
    float eps;
    uint32_t n; /* of a row, >= 1 */
} sy_cuda_norm;
/* RMS: weight * (x * r), r = 1 / sqrt(mean(x^2) + eps). LAYER: the same of x - mean(x), and the
 * bias. Row t is made of row row[t] of x (NULL: row t). y: [T,n] fp32, may be x where row is NULL;
 * y16: [T,padded(n)], y as rows of activations; either may be NULL. */
int sy_cuda_norm_rows(float *y, uint16_t *y16, const float *x, const uint32_t *row,
                      const sy_cuda_norm *norm, const sy_cuda_row_count *rows, void *stream);

/* x[t] += y[t] * (row_factor[t] * factor), one fused multiply-add each: the residual sum, and that
 * of gated shared experts. x, y: [T,H]; row_factor: [T], or NULL: 1. */
int sy_cuda_add(float *x, const float *y, float factor, const float *row_factor, uint32_t hidden,
                const sy_cuda_row_count *rows, void *stream);
/* gate[t] = 1 / (1 + exp(-(x[t] . w))): the gate of shared experts. x: [T,H]; w: [H]. */
int sy_cuda_shared_gate(float *gate, const float *x, const float *w, uint32_t hidden,
                        const sy_cuda_row_count *rows, void *stream);

/* ---- products ---- */

typedef struct sy_cuda_matrix {
    const void *weights; /* packed by sy_cuda_rows_pack, 16-byte aligned */
    const float *bias;   /* [n] or NULL */
    uint32_t n, k;       /* outputs, inputs, >= 1 */
    sy_cuda_weights type;
} sy_cuda_matrix;

/* y[t] = (W x[t] + bias) / divisor. y: [T,n] fp32; x: [T,padded(k)] bf16, 16-byte aligned. The head
 * divides logits; every other matrix has divisor 1. variant: how rows are spread, any gives the
 * same bits; of quantised weights SY_CUDA_TILED_128 is SY_CUDA_TILED_64 here. The matrix is packed
 * as SY_CUDA_DOWN. */
int sy_cuda_linear(float *y, const uint16_t *x, const sy_cuda_matrix *w, float divisor,
                   sy_cuda_variant variant, const sy_cuda_row_count *rows, void *stream);
/* h[t] = swiglu(Gate x[t], Up x[t]) of a dense layer or of shared experts: w->weights is packed as
 * SY_CUDA_GATE and SY_CUDA_UP, w->n is F, and there is no bias. h: [T,padded(F)] bf16; x as above.
 */
int sy_cuda_linear_swiglu(uint16_t *h, const uint16_t *x, const sy_cuda_matrix *w,
                          sy_cuda_variant variant, const sy_cuda_row_count *rows, void *stream);

/* The two matrices a head of MLA: y[t,h] = W[h] x[t,h], and behind it what rotates, as it is. The
 * activations are fp32, taken as the sums of three bf16 that they are (but for what lies below
 * 2^-133), the smallest first; the rest is bf16-mma/1: of weights in fewer bits the products of all
 * three are summed up before they are scaled. */
typedef struct sy_cuda_head_matrices {
    const void *weights;  /* [n_heads] packed matrices of n by k, one after the other */
    sy_cuda_weights type; /* BF16, Q8 or Q4: else 1 comes back */
    uint32_t n_heads, n, k;
    uint32_t n_tail; /* elements behind the k of a head, which y has behind the n; may be 0 */
} sy_cuda_head_matrices;
/* y: [T,n_heads,n+n_tail]; x: [T,n_heads,k+n_tail]; they do not overlap. */
int sy_cuda_linear_heads(float *y, const float *x, const sy_cuda_head_matrices *w,
                         const sy_cuda_row_count *rows, void *stream);

/* ---- heads ---- */

enum {
    SY_CUDA_KV_PAGE = 16,    /* tokens a page, as SY_KV_PAGE */
    SY_CUDA_KEY_MAX = 576,   /* elements of a key, and of a head of sy_cuda_finish_heads */
    SY_CUDA_VALUE_MAX = 512, /* of a value */
    SY_CUDA_SPLIT = 128      /* positions that attention takes together: [128 i, 128 i + 128) */
};
/* The position of a row that has no token: nothing is cached of it, its heads are left alone, and
 * attention gives zeros. */
#define SY_CUDA_NO_POSITION UINT32_MAX

/* Where the rows of a step belong: [T] each. */
typedef struct sy_cuda_places {
    const uint32_t *position;
    const uint32_t *sequence; /* a row of sy_cuda_kv.page */
    const uint32_t *angle;    /* a row of sy_cuda_heads.angles: the position, unless a table of long
                                 sequences lies behind that of the others (SY_ROPE_LONG) */
} sy_cuda_places;

typedef enum sy_cuda_head_norm {
    SY_CUDA_HEADS_AS_THEY_ARE,
    SY_CUDA_NORM_THEN_ROTATE, /* SY_QK_NORM_HEAD; latents of MLA */
    SY_CUDA_ROTATE_THEN_NORM  /* SY_QK_NORM_ROTATED, _WEIGHTLESS */
} sy_cuda_head_norm;
/* What becomes of the heads of a projection, in this order: norm, clip, rotation, norm,
 * temperature. */
typedef struct sy_cuda_heads {
    uint32_t n_heads, head_dim; /* 1 <= head_dim <= SY_CUDA_KEY_MAX */
    sy_cuda_head_norm norm;     /* RMS, of the first norm_dim elements of a head */
    uint32_t norm_dim;
    const float *norm_weight; /* [norm_dim] or NULL: ones */
    float norm_eps;
    float clip; /* elements are kept within +-clip; 0: as they are */
    /* Elements [rotary_at, rotary_at + rotary_dim) of a head rotate; rotary_dim is even, 0: none
     * do. angles: [.,rotary_dim] fp32, a row being the cosines of its rotary_dim / 2 pairs, then
     * their sines, as trunk_angles makes them. Pairs are (i, i + rotary_dim / 2), or (2i, 2i +
     * 1) if interleaved; each product rounds, then the sum: the bits of sy_kernels.h's rope. */
    uint32_t rotary_at, rotary_dim;
    int interleaved;
    const float *angles;
    /* Llama 4, where nothing rotates: times 1 + scale * log1p(floor((position + 1) / floor)). */
    float temperature_floor, temperature_scale; /* scale 0: no */
} sy_cuda_heads;
/* In place. x: [T,n_heads,head_dim]. places->sequence is not read, angle only where something
 * rotates. */
int sy_cuda_finish_heads(float *x, const sy_cuda_heads *heads, const sy_cuda_places *places,
                         const sy_cuda_row_count *rows, void *stream);

/* ---- the cache, and attention ---- */

typedef enum sy_cuda_kv_type { SY_CUDA_KV_F32, SY_CUDA_KV_BF16 } sy_cuda_kv_type;
/* One layer's keys and values: [page][K, V][kv head][SY_CUDA_KV_PAGE][key_dim or value_dim], which
 * is sy_kv's layout. With is_latent (MLA) there is one head and no V: [page][SY_CUDA_KV_PAGE]
 * [key_dim], a value being the first value_dim elements of its key. */
typedef struct sy_cuda_kv {
    void *data;
    sy_cuda_kv_type type;                 /* BF16: rounded when cached */
    uint32_t n_heads, key_dim, value_dim; /* BF16: multiples of 8 where it is attended to */
    int is_latent;
    const uint32_t *page; /* [sequences][pages_max]: sequence s has its positions 16 i .. 16 i + 15
                             in page[s * pages_max + i]; entries past its last are not read */
    uint32_t pages_max;
} sy_cuda_kv;
/* Puts the rows where their positions lie. k: [T,n_heads,key_dim]; v: [T,n_heads,value_dim], NULL
 * for latents. */
int sy_cuda_kv_put(const sy_cuda_kv *kv, const float *k, const float *v,
                   const sy_cuda_places *places, const sy_cuda_row_count *rows, void *stream);

typedef struct sy_cuda_attention {
    uint32_t n_heads;       /* a multiple of the cache's */
    float scale;            /* on q . k */
    uint32_t window, chunk; /* a row sees its last `window` keys, its own among them, those of its
                               own `chunk` positions; 0: all up to its own */
    const float *sinks;     /* [n_heads]: a logit with no value; NULL: none */
    uint32_t positions_max; /* above every position */
    /* How the work is spread, which changes no bit. rows_together: neighbouring rows of one
     * sequence that may share what is read of the cache; 1 for decoding. */
    uint32_t rows_together;
    /* NULL: the keys of a row are gone through by one block. Else memory of
     * sy_cuda_attention_partial_bytes: blocks take SY_CUDA_SPLIT positions each, and a second
     * kernel puts them together in ascending order. */
    float *partial;
} sy_cuda_attention;
/* Host memory. 0 on overflow. */
size_t sy_cuda_attention_partial_bytes(uint32_t rows_max, uint32_t n_heads, uint32_t value_dim,
                                       uint32_t positions_max);
/* out[t,h] = sum over the keys j that row t sees of softmax(scale * q[t,h] . k[j]) v[j]; the rows'
 * own keys are in the cache. out: [T,n_heads,value_dim]; q: [T,n_heads,key_dim]. A split is taken
 * from its own maximum, then splits are merged in ascending order. With a cache of F32 all of it is
 * fp32; with BF16 (data 16-byte aligned) both products are bf16-mma/1, that is, q is rounded, and
 * so is exp(s - max), also where it is summed up. Keys that a row does not see have no part in its
 * result, whatever they are. places->angle is not read. */
int sy_cuda_attend(float *out, const float *q, const sy_cuda_kv *kv, const sy_cuda_places *places,
                   const sy_cuda_attention *attention, const sy_cuda_row_count *rows, void *stream);

#ifdef __cplusplus
}
#endif

#endif
