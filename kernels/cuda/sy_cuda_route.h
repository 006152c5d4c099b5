/* sy_cuda_route.h - from the experts that the gate has chosen to what the kernels of experts read,
 * without leaving the device. As sy_cuda_kernels.h: pointers are device memory unless they say
 * host, the call enqueues and returns 0 or an error of the launch, nothing is allocated.
 *
 * A pair is a token and one of its K experts, number t * K + j. Pairs become rows: sorted by
 * expert, those of one expert in order of their numbers, and last, in that order too, those whose
 * expert is not on this device. What comes out depends on what goes in alone. */
#ifndef SY_CUDA_ROUTE_H
#define SY_CUDA_ROUTE_H

#include "sy_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SY_CUDA_ROUTE_EXPERTS_MAX = 512, SY_CUDA_ROUTE_PAIRS_MAX = 1 << 24 };
#define SY_CUDA_ELSEWHERE 0xffffffffu /* for a slot: the expert is not on this device */

/* T*K <= SY_CUDA_ROUTE_PAIRS_MAX; 1 <= E <= SY_CUDA_ROUTE_EXPERTS_MAX; K >= 1. */
typedef struct sy_cuda_route_dims {
    uint32_t n_tokens, k, n_experts; /* T, K, E */
} sy_cuda_route_dims;

/* What a call writes: all of it, whatever T is. The pointers are the caller's. The scratch may be
 * shared by calls on one stream. */
typedef struct sy_cuda_routes {
    uint32_t *x_row; /* [T*K]: the token of each row, for sy_cuda_up */
    uint32_t *pos;   /* [T,K]: the row of each pair, a permutation of T*K, for sy_cuda_combine: what
                        is elsewhere has a row of y as well, for whoever computes it to fill */
    uint32_t *begin; /* [E+1]: rows [begin[e], begin[e+1]) are of expert e, those from begin[E] on
                        are elsewhere */
    sy_cuda_tile *tiles;   /* [sy_cuda_route_tiles_max]: as sy_cuda_tiles_cut cuts begin, but with
                              the expert's slot for its number; past *n_tiles nothing is written */
    uint32_t *n_tiles;     /* one number */
    uint32_t *n_elsewhere; /* one number: T*K - begin[E] */
    void *scratch; /* sy_cuda_route_scratch_bytes, 4-byte aligned; NULL where that is nothing */
} sy_cuda_routes;

/* Host arithmetic. The most tiles that T*K pairs can need: what a sy_cuda_batch is launched for. */
uint32_t sy_cuda_route_tiles_max(const sy_cuda_route_dims *dims, sy_cuda_variant variant);
size_t sy_cuda_route_scratch_bytes(const sy_cuda_route_dims *dims);

/* expert: [T,K], as sy_cuda_gate_topk gives it; an id of E or more is elsewhere, and one that a
 * token names twice is two pairs. slot: [E], the index of each expert in sy_cuda_batch's experts,
 * or SY_CUDA_ELSEWHERE; NULL: expert e is in slot e. out, dims: host. */
int sy_cuda_route(const sy_cuda_routes *out, const uint32_t *expert, const uint32_t *slot,
                  const sy_cuda_route_dims *dims, sy_cuda_variant variant, void *stream);

#ifdef __cplusplus
}
#endif

#endif
