/* sy_route.h - the gate of every architecture: hidden rows -> top-k experts and weights. Exact:
 * fp32, softmax (or sigmoid) over all experts, the k largest scores with ties to the lower expert
 * id, then renormalised and scaled as the checkpoint's description says. Formulas: transformers'
 * MixtralSparseMoeBlock / OlmoeSparseMoeBlock. Gates are immutable once loaded: any thread may
 * route. It does not know whether it runs behind RPC. */
#ifndef SY_ROUTE_H
#define SY_ROUTE_H

#include "sy_kernels.h"
#include "sy_model.h"

typedef struct sy_router sy_router;

/* Packs the gate matrices of all layers; nothing else of the checkpoint is touched, and the model
 * may be closed afterwards. kernels must outlive the router. SY_EDATALOSS: the file became shorter;
 * SY_EINVAL: a gate that no kernel reads; SY_ENOMEM. */
SY_MUST_USE sy_status sy_router_open(sy_router **out, const sy_model *model,
                                     const sy_kernels *kernels, sy_error *err);
void sy_router_close(sy_router *router); /* accepts NULL */
uint32_t sy_router_top_k(const sy_router *router);
uint64_t sy_router_bytes(const sy_router *router); /* resident weights */

typedef struct sy_route_options {
    uint32_t
        experts_per_token; /* 0: the checkpoint's k; else 1..k, weights renormalised when below k */
} sy_route_options;

/* x: [T,H]. expert: [T,k], in descending score; weight: [T,k]; k is what options ask for. scratch:
 * floats, sy_router_scratch(T) of them. bad_row (may be NULL) gets the first row that is not
 * finite. options: NULL: all defaults. SY_EINVAL: layer past the end, k out of range, or a row that
 * holds NaN or infinity or whose logits do (nothing useful is written). */
SY_MUST_USE sy_status sy_route(const sy_router *router, uint32_t layer, uint16_t *expert,
                               float *weight, const float *x, uint32_t n_tokens,
                               const sy_route_options *options, float *scratch, uint32_t *bad_row,
                               sy_error *err);
size_t sy_router_scratch(const sy_router *router, uint32_t n_tokens);

/* One token's choice from its logits, the pure part: logits [E] are overwritten with scores.
 * expert, weight: [k], 1 <= k <= E <= SY_EXPERTS_MAX. Experts are distinct whatever the logits
 * hold; NaN logits give NaN weights. */
void sy_route_select(uint16_t *expert, float *weight, float *logits, uint32_t n_experts, uint32_t k,
                     int renormalise, const sy_gate_desc *gate, const sy_kernels *kernels);

#endif
