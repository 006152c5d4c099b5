/* sy_kernels.h - the arithmetic, as one table of operations. Plain pointers and shapes: no
 * allocation, no logging, no locks; any thread. Every implementation gives the bits of the scalar
 * reference (`ref`), for every operation and size:
 *
 * matmul: each output element is one chain of fused multiply-adds over k = 0, 1, 2, ... in fp32,
 * starting from +0. Vector lanes lie across output columns, never across k: batch, tile, thread
 * count and vector width do not show. With Q8 or Q4 weights: inside a block the chain runs over x
 * and the integer q from +0, s; then y = fma(d, s, y), block after block from +0. With FP8 or MXFP4
 * weights the same, over x and the code's value: y = fma(factor, s, y), after every 128 inputs or
 * every 32, and after the last.
 *
 * matmul_q8: the sum inside a block is an exact integer; y = fma((float)sum, dw * dx, y), block
 * after block from +0, where the product of the scales is rounded to fp32 first.
 *
 * matmul_bf16: a chain over pairs of inputs, the odd one first: y = fma(x[2i], w[2i], fma(x[2i+1],
 * w[2i+1], y)) from +0, a missing partner being a pair of zeros; denormals count as zeros and
 * become zeros. It is what VDPBF16PS computes.
 *
 * Sums (dot, sum of squares, softmax's sum) use 16 partial sums: element i goes to partial i % 16,
 * in order of i; then the partials are added pairwise: p[j] += p[j+8], then j+4, j+2, j+1.
 *
 * exp is one polynomial, the same steps with fused multiply-adds everywhere; division and square
 * root are IEEE.
 *
 * Weights are packed at load into column panels: SY_PANEL output columns side by side,
 * [ceil(N/16)][K][16] elements of the stored type, padded with zeros, so a step over k reads one
 * line. bf16 panels store columns in the order 0 8 1 9 2 10 ... 7 15 (a shift and a mask then widen
 * a line into two registers in order); f16 and f32 panels store them in order. Q8 and Q4 panels:
 * all the blocks' quants, then all the blocks' scales ([blocks][16] f16), padded to 64 bytes. A Q8
 * block is [8][16 columns][4 k] bytes q + 128; a Q4 block [4][16 columns][4] bytes, whose low
 * nibbles are k = 8i .. 8i+3 and whose high nibbles are k = 8i+4 .. 8i+7. MXFP4 panels are Q4's
 * with the codes as nibbles, and with scales of a byte ([blocks][16]). FP8 panels: [ceil(K/2)][16
 * columns][2 k] codes, padded to 64 bytes, then the factors ([blocks][16] f32). Panels are
 * read-only once packed. */
#ifndef SY_KERNELS_H
#define SY_KERNELS_H

#include "sy_dtype.h"
#include "sy_status.h"

#define SY_PANEL 16
/* The name of this arithmetic, announced by every process: two builds that share it give the same
 * bits. It changes whenever a bit of any output would. */
#define SY_ARITHMETIC "f32-chain/1"

/* A packed weight matrix, y[N] = W[N,K] x[K]. data: 64-byte aligned, sy_panels_bytes long, owned by
 * whoever packed it. */
typedef struct sy_panels {
    const void *data;
    sy_dtype dtype;
    uint32_t n; /* outputs */
    uint32_t k; /* inputs */
} sy_panels;

/* What the activations of a product are. SY_ACT_Q8 needs SY_Q8 or SY_Q4 weights: rows are rounded
 * to int8 in blocks of SY_QUANT_BLOCK, and the sum inside a block is an exact integer. SY_ACT_BF16
 * needs SY_BF16 weights: rows are rounded to bf16, and pairs of products added at once. */
typedef enum sy_activations { SY_ACT_F32 = 0, SY_ACT_Q8 = 1, SY_ACT_BF16 = 2 } sy_activations;

/* How a tier holds its weights and computes with them. Zeroed: as stored, fp32. */
typedef struct sy_precision {
    sy_dtype weights; /* SY_DTYPE_NONE: as they read, encoded ones as bf16; SY_BF16: the same, but
                         refused where one reads otherwise; SY_Q8, SY_Q4: rounded at load; SY_FP8,
                         SY_MXFP4: what is encoded so stays so, the rest is as it reads */
    sy_activations activations;
} sy_precision;
/* The name of the arithmetic, announced by every process: "f32-chain/1", "q8-block/1" or
 * "bf16-pair/1". */
const char *sy_arithmetic_name(sy_activations activations);
/* From the options' texts: weights "as-stored" (or "bf16", where that is what is stored: checked by
 * whoever loads), "fp8", "mxfp4", "q8", "q4"; activations "f32", "bf16", "q8". SY_EINVAL says what
 * would do, also for q8 activations with weights as stored, bf16 ones with rounded weights (with
 * none named they set weights to SY_BF16), and any but f32 with encoded ones. */
SY_MUST_USE sy_status sy_precision_parse(sy_precision *out, const char *weights,
                                         const char *activations, sy_error *err);

size_t sy_panel_bytes(sy_dtype dtype, uint32_t k); /* one panel; of blocks, a multiple of 64 */
size_t sy_panels_count(uint32_t n);                /* ceil(n / SY_PANEL) */
size_t sy_panels_bytes(sy_dtype dtype, uint32_t n, uint32_t k); /* 0 on overflow or a bad dtype */
/* Packs panels [begin, end) of src, [n,k] row-major of dtype with any alignment, into dst (the
 * start of the whole packed matrix). Panels are independent: threads may pack different ones. */
void sy_panels_pack(void *dst, const void *src, sy_dtype dtype, uint32_t n, uint32_t k,
                    size_t begin, size_t end);
/* The inverse of packing: rows [begin, end) of W, row-major, in the stored type. */
void sy_panels_unpack(void *dst, const sy_panels *w, uint32_t begin, uint32_t end);
/* Rounds n rows of k elements, row-major of `from` (f32, bf16, f16; any alignment), to blocks of
 * `to` (SY_Q8, SY_Q4), sy_dtype_row_bytes(to, k) each. Q8: d = max |w| / 127 as f16, q = round half
 * away from zero of w * (1 / d), within +-127. Q4: d = m / -8 as f16, m the element of the largest
 * magnitude with its sign (the first of equals); q = w * (1 / d) + 8.5 cut off, within 0..15. 1 / d
 * is taken before d is rounded: ggml's bits, except that a d which f16 holds as zero leaves all
 * integers zero. A short last block counts as filled up with zeros. SY_EINVAL: a weight that is no
 * finite number, or a scale beyond f16; dst then holds nothing of use. Deterministic on every
 * machine. */
SY_MUST_USE sy_status sy_quantize_rows(void *dst, sy_dtype to, const void *src, sy_dtype from,
                                       size_t n, uint32_t k);

/* T rows of activations as int8: block b of row t is scale[t*blocks + b] * q[t*stride + 32*b + i].
 */
typedef struct sy_qrows {
    int8_t *q;     /* [T][stride]: 64-byte aligned; zeros past k */
    float *scale;  /* [T][blocks]: max |x| / 127; 0 for a block below 2^-100, whose q are zeros; NaN
                      for one with an infinity or a NaN, which then reaches every output */
    int32_t *sum;  /* [T][blocks]: of a block's q */
    size_t stride; /* k rounded up to a multiple of SY_QUANT_BLOCK */
    size_t blocks; /* stride / SY_QUANT_BLOCK */
} sy_qrows;
size_t sy_qrows_bytes(size_t T, uint32_t k); /* 0 on overflow */
/* Lays out T rows in memory of sy_qrows_bytes bytes, 64-byte aligned. */
void sy_qrows_at(sy_qrows *out, void *memory, size_t T, uint32_t k);

float sy_panels_at(const sy_panels *w, uint32_t n,
                   uint32_t k); /* one element, widened: for tests and tools */

/* 1 when a product of this size takes less than waking other threads would: a few microseconds of
 * arithmetic, and weights that one core reads as fast as two. */
int sy_kernels_is_small(size_t rows, uint32_t n, uint32_t k, sy_dtype dtype);

typedef struct sy_kernels {
    const char *name; /* "ref", "avx2", "avx512" */

    /* y[t*y_stride + n] = sum over k of x[row(t)*x_stride + k] * W[n,k], for t in [0,T) and the
     * columns n < w->n of panels [begin, end). row(t) is x_row[t], or t when x_row is NULL. Strides
     * in floats. y and x do not overlap. T may be 0. */
    void (*matmul)(float *y, size_t y_stride, const float *x, size_t x_stride,
                   const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin, size_t end);
    /* Rows [t, t + n) of q from rows of x, which may differ in number between threads: q = round to
     * nearest even of x * (127 / max|x|), both steps in fp32. */
    void (*quantize)(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                     uint32_t k);
    /* As matmul, with int8 activations: w is SY_Q8 or SY_Q4. */
    void (*matmul_q8)(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row, size_t T,
                      const sy_panels *w, size_t begin, size_t end);
    /* y[i] = x[i] as bf16, to nearest even; denormals become zeros, a NaN stays one. */
    void (*round_bf16)(uint16_t *y, const float *x, size_t n);
    /* As matmul, with bf16 rows, x_stride in elements: w is SY_BF16. */
    void (*matmul_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                        const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                        size_t end);
    /* h[i] = g[i] / (1 + exp(-g[i])) * u[i]: the quotient rounds, then the product. h may be g or
     * u. */
    void (*swiglu)(float *h, const float *g, const float *u, size_t n);
    /* gpt-oss: h[i] = (b + 1) * (a / (1 + exp(-(1.702 * a)))) with a = min(g[i], limit) and b =
     * u[i] within +-limit, limit > 0; every step rounds. A NaN in g or u gives a NaN, as does g of
     * -infinity. h may be g or u. */
    void (*clamped_swiglu)(float *h, const float *g, const float *u, float limit, size_t n);
    /* y[i] = w[i] * (x[i] * r), r = 1 / sqrt(sum(x^2)/n + eps). y may be x. */
    void (*rmsnorm)(float *y, const float *x, const float *w, float eps, size_t n);
    /* x[i] = exp(x[i] - max) / sum. n >= 1, no NaN (a NaN anywhere makes every result NaN). */
    void (*softmax)(float *x, size_t n);
    float (*dot)(const float *a, const float *b, size_t n);
    void (*axpy)(float *y, const float *x, float a, size_t n); /* y[i] = fma(a, x[i], y[i]) */
    void (*add)(float *y, const float *x, size_t n);           /* y[i] += x[i] */
    /* Rotates pairs (i, i+half): x[i] = x[i]*c[i] - x[i+half]*s[i], x[i+half] = x[i+half]*c[i] +
     * x[i]*s[i]; each product rounds, then the sum. */
    void (*rope)(float *x, const float *c, const float *s, size_t half);
    /* Attention over one run of keys that lie in memory one after another. score[j] = scale *
     * dot(q, k + j*k_stride). */
    void (*attn_scores)(float *score, const float *q, const float *k, size_t k_stride,
                        size_t n_keys, size_t head_dim, float scale);
    /* o[d] = fma(p[j], v[j*v_stride + d], o[d]) for j ascending: call run after run, o zeroed
     * before the first. */
    void (*attn_values)(float *o, const float *p, const float *v, size_t v_stride, size_t n_keys,
                        size_t head_dim);
    /* Index of the largest of n >= 1 values; ties to the lower index; NaN never wins (all NaN: 0).
     */
    size_t (*argmax)(const float *x, size_t n);
    /* exp(x[i]), the one implementation; y may be x. Inputs below -87.34 give +0, above 88.72
     * +infinity, NaN stays NaN. */
    void (*vexp)(float *y, const float *x, size_t n);
    int (*all_finite)(const float *x, size_t n); /* 1 when no NaN or infinity; n = 0: 1 */
} sy_kernels;

size_t sy_kernels_count(void); /* implementations that this machine can run; ref is the first */
const sy_kernels *sy_kernels_at(size_t i); /* i < count */
const sy_kernels *sy_kernels_best(
    void); /* the last one; SWITCHYARD_KERNELS in the environment forces by name */
const sy_kernels *sy_kernels_find(
    const char *name); /* NULL: unknown, or this machine cannot run it */
/* sy_kernels_best, or the one named (NULL or "auto": best). SY_EINVAL with the names that would do.
 */
SY_MUST_USE sy_status sy_kernels_choose(const sy_kernels **out, const char *name, sy_error *err);

#endif
