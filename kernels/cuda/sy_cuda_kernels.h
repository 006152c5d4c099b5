/* sy_cuda_kernels.h - the kernels of the GPU, as plain C calls. Every pointer is device memory
 * unless it says host; every call enqueues on `stream` (a cudaStream_t) and returns at once with
 * cudaGetLastError(): 0, or an error of the launch. Nothing is allocated, nothing waits, and what
 * varies between batches (rows, tiles, experts) is read from device memory, so calls may be
 * captured into a graph and replayed for as long as pointers and maxima stay the same.
 *
 * The arithmetic, "bf16-mma/1": weights bf16; activations rounded once to bf16 (to nearest even,
 * denormals kept, NaN stays NaN) before each product; products exact, sums in fp32, 16 inputs an
 * instruction, instructions in ascending order of the packed k (sy_cuda_pack.h). How the tensor
 * core adds those 16 is the device's own, so two devices of one kind give the same bits, two kinds
 * may not. Within a device, the bits of a token depend on the token and the expert alone: variant,
 * tile, and what else is in the batch change nothing.
 * Weights held in fewer bits have the same arithmetic but for their scales: every code is exactly a
 * bf16; a block of 32 inputs is two instructions from +0, whose sum p is scaled by one fused
 * multiply-add, y = fma(scale, p, y), block after block in ascending order from +0 (FP8, whose
 * scales reach over 128 inputs, too). So nothing is rounded that weights held as bf16 would not
 * round, and a weight that is a NaN, or a scale, makes NaN of what it takes part in.
 *
 * Dimensions: T tokens, H hidden, F ffn, E experts, K experts a token, R = T*K rows sorted by
 * expert; padded(n): n rounded up to 64. Rows of activations lie padded(n) elements apart, their
 * padding zero. */
#ifndef SY_CUDA_KERNELS_H
#define SY_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- experts ---- */

/* How weights are held. The blocks are sy_dtype's of the same name; FP8: with one fp32 scale for
 * 128 rows by 128 inputs. */
typedef enum sy_cuda_weights {
    SY_CUDA_BF16,
    SY_CUDA_Q8,
    SY_CUDA_Q4,
    SY_CUDA_FP8,
    SY_CUDA_MXFP4,
    N_SY_CUDA_WEIGHTS
} sy_cuda_weights;

/* One expert's weights, packed as sy_cuda_slot.h does, each 16-byte aligned. */
typedef struct sy_cuda_expert {
    const void *gate_up;                          /* 2 * padded(F) by H */
    const void *down;                             /* H by F */
    const float *gate_bias, *up_bias, *down_bias; /* [F], [F], [H], or NULL */
    /* FP8 alone: row-major, a number for 128 rows by 128 inputs, [ceil(F/128), ceil(H/128)] for
     * gate and for up, [ceil(H/128), ceil(F/128)] for down. */
    const float *gate_scale, *up_scale, *down_scale;
} sy_cuda_expert;

/* Rows [begin, end) of the batch, all of experts[expert]; at most as many as the variant has. */
typedef struct sy_cuda_tile {
    uint32_t expert;
    uint32_t begin, end;
} sy_cuda_tile;

/* What lies between the matrices, as in sy_kernels.h: swiglu, clamped_swiglu. */
typedef enum sy_cuda_mlp { SY_CUDA_SWIGLU, SY_CUDA_CLAMPED } sy_cuda_mlp;

/* How rows are spread: a warp streams 16 packed rows of weights against a tile of this many tokens.
 * TILED shares the tokens of four warps through shared memory: for experts with many rows; of 128,
 * each warp's weights serve two halves of the tokens, which pays where weights are bf16. */
typedef enum sy_cuda_variant {
    SY_CUDA_TOKENS_8,
    SY_CUDA_TOKENS_16,
    SY_CUDA_TOKENS_32,
    SY_CUDA_TOKENS_64,
    SY_CUDA_TILED_64,
    SY_CUDA_TILED_128,
    N_SY_CUDA_VARIANTS
} sy_cuda_variant;
uint32_t sy_cuda_variant_tokens(sy_cuda_variant variant);
/* For that many rows of one matrix, any of which would give the same bits: each tile reads all of
 * the matrix, while what a tile has no rows for costs arithmetic alone, of which few rows leave
 * plenty. So the smallest that has room for all, or else the largest that pays. */
sy_cuda_variant sy_cuda_variant_for(uint32_t n_rows, sy_cuda_weights weights);
/* Host memory: cuts rows [begin[i], begin[i+1]) of experts[i], i in [0,n), into tiles in that
 * order; begin ascends. Returns how many: at most R / tokens + n, which `tiles` must have room for.
 * Experts without rows have no tile. */
size_t sy_cuda_tiles_cut(sy_cuda_tile *tiles, const uint32_t *begin, size_t n,
                         sy_cuda_variant variant);

/* A batch of rows. The struct is host memory and only read during the call. */
typedef struct sy_cuda_batch {
    const sy_cuda_expert *experts;
    const sy_cuda_tile *tiles;
    const uint32_t *n_tiles; /* one number, <= tiles_max */
    uint32_t tiles_max;      /* what the launch is sized for; 0: nothing is launched */
    uint32_t hidden, ffn;    /* H, F >= 1 */
    sy_cuda_mlp mlp;
    float mlp_limit;         /* CLAMPED: > 0 */
    sy_cuda_weights weights; /* of all the experts */
} sy_cuda_batch;

/* h[r] = mlp(Gate x + gate_bias, Up x + up_bias) with x = row x_row[r] (NULL: row r), for the rows
 * of every tile; others are not written. h: [R, padded(F)] bf16; x: [., padded(H)] bf16. x and h
 * are 16-byte aligned and do not overlap. */
int sy_cuda_up(uint16_t *h, const uint16_t *x, const uint32_t *x_row, const sy_cuda_batch *batch,
               sy_cuda_variant variant, void *stream);
/* y[r] = Down h[r] + down_bias. y: [R,H] fp32, packed. */
int sy_cuda_down(float *y, const uint16_t *h, const sy_cuda_batch *batch, sy_cuda_variant variant,
                 void *stream);

/* ---- rows ---- */

/* out: [T, padded(H)] bf16 with zero padding, from x: [T,H], rows x_stride elements apart, fp32
 * (rounded) or bf16 (as they are). */
int sy_cuda_rows_from_f32(uint16_t *out, const float *x, size_t x_stride, uint32_t n_rows,
                          uint32_t hidden, void *stream);
int sy_cuda_rows_from_bf16(uint16_t *out, const uint16_t *x, size_t x_stride, uint32_t n_rows,
                           uint32_t hidden, void *stream);

/* out[t] = sum over j of weight[t,j] * y[row[t,j]], in ascending j, each step one fused
 * multiply-add from +0: the bits of axpy in sy_kernels.h. out: [T,H] fp32; y: [.,H] fp32; row,
 * weight: [T,K]. */
int sy_cuda_combine(float *out, const float *y, const uint32_t *row, const float *weight,
                    uint32_t n_tokens, uint32_t k, uint32_t hidden, void *stream);

/* ---- gate ---- */

enum {
    SY_CUDA_GATE_EXPERTS_MAX = 512,
    SY_CUDA_GATE_K_MAX = 32,
    SY_CUDA_GATE_GROUPS_MAX = 64,
    SY_CUDA_GATE_GROUP_BEST_MAX = 2
};
/* The values, and the numbers, of sy_gate_score. */
typedef enum sy_cuda_score {
    SY_CUDA_SOFTMAX,
    SY_CUDA_SIGMOID,
    SY_CUDA_SIGMOID_CHOSEN,
    SY_CUDA_SOFTMAX_CHOSEN,
    SY_CUDA_SPARSEMIXER
} sy_cuda_score;
/* As sy_gate_desc of the model has them, and as sy_gate_check has accepted them for n_experts and
 * k, within the limits above. A gate that scales the input of an expert needs nothing here: its
 * weight is returned like any other. */
typedef struct sy_cuda_gate {
    sy_cuda_score score;
    uint32_t n_experts, k; /* 1 <= k <= n_experts */
    int renormalise;
    float scale, norm_epsilon, norm_min;
    float sparse_epsilon;                     /* SPARSEMIXER, whose k is at most 2 */
    uint32_t n_group, topk_group, group_best; /* n_group 0 or 1: no groups */
} sy_cuda_gate;
/* What sy_route_select of sy_route.h chooses and weighs, token by token, bit for bit (one NaN
 * counts for another): of equals the lower id, NaN after every number. The logits of a token are
 * logits[t] + logit_bias; choice_bias takes part in the choice alone. Either is [E] or NULL;
 * SPARSEMIXER has no choice_bias. logits: [T,E] fp32, left as they are; expert, weight: [T,k] in
 * descending choice. Logits that are not finite are not refused, as sy_route does: whoever has not
 * looked at the activations gets weights that may be NaN, and distinct experts all the same. gate:
 * host. */
int sy_cuda_gate_topk(uint32_t *expert, float *weight, const float *logits, const float *logit_bias,
                      const float *choice_bias, uint32_t n_tokens, const sy_cuda_gate *gate,
                      void *stream);

#ifdef __cplusplus
}
#endif

#endif
