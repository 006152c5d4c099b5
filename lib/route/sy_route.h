/* sy_route.h - the gate of every architecture: hidden rows -> top-k experts and weights. Exact and
 * in fp32; how it computes is the checkpoint's description, so no family has code here. Gates are
 * immutable once loaded: any thread may route. It does not know whether it runs behind RPC.
 *
 * One token, of logits s[E] and a bias b[E] or none (sy_gate_desc names the switches):
 * - score: softmax over all E, or a sigmoid of each, or the logits themselves.
 * - choice score: c = score + b. With groups, a group's is the sum of its group_best largest c;
 *   experts outside the topk_group best groups get a c of -inf.
 * - chosen: the k largest c; of equals the lower expert (or group) id, and NaN after every number.
 * - weight: the score (without b), or softmax over the k chosen logits, or SparseMixer's.
 * - last: if renormalised, w /= max(sum w + norm_epsilon, norm_min); then w *= scale.
 *
 * Formulas: transformers 4.57 and 5.3, classes MixtralSparseMoeBlock, OlmoeSparseMoeBlock,
 * GraniteMoeTopKGating and GptOssTopKRouter (softmax over the chosen), DeepseekV2MoEGate (group
 * maximum), DeepseekV3TopkRouter (sigmoid, bias, sum of the two best, 1e-20),
 * Ernie4_5_MoeTopKRouter (bias, 1e-12), and sparsemixer() of phimoe (arXiv:2409.12136). One
 * deviation: transformers sets the c of other groups to 0, which lets them in again where a bias
 * makes those that remain negative; -inf is what DeepSeek's own code, vLLM and llama.cpp do. */
#ifndef SY_ROUTE_H
#define SY_ROUTE_H

#include "sy_kernels.h"
#include "sy_model.h"

typedef struct sy_router sy_router;

/* Whether sy_route_select can follow this description for k of n_experts. SY_EINVAL: k or n_experts
 * is out of range; scale is not finite and positive, or another number not finite or negative;
 * groups that do not divide the experts, that are too many, too few, or leave fewer than k experts;
 * SparseMixer with groups or with k above 2. err may be NULL. */
SY_MUST_USE sy_status sy_gate_check(const sy_gate_desc *gate, uint32_t n_experts, uint32_t k,
                                    sy_error *err);

/* Packs the gate matrices of all layers; nothing else of the checkpoint is touched, and the model
 * may be closed afterwards. kernels must outlive the router. SY_EDATALOSS: the file became shorter;
 * SY_EINVAL: a gate that no kernel reads or that sy_gate_check refuses; SY_ENOMEM. */
SY_MUST_USE sy_status sy_router_open(sy_router **out, const sy_model *model,
                                     const sy_kernels *kernels, sy_error *err);
void sy_router_close(sy_router *router); /* accepts NULL */
uint32_t sy_router_top_k(const sy_router *router);
uint64_t sy_router_bytes(const sy_router *router); /* resident weights */

typedef struct sy_route_options {
    uint32_t
        experts_per_token; /* 0: the checkpoint's k; else 1..k, weights renormalised when below k */
} sy_route_options;

/* x: [T,H]. expert: [T,k], in descending choice score; weight: [T,k]; k is what options ask for.
 * scratch: floats, sy_router_scratch(T) of them. bad_row (may be NULL) gets the first row that is
 * not finite. options: NULL: all defaults. SY_EINVAL: layer past the end, k out of range, or a row
 * that holds NaN or infinity or whose logits do (nothing useful is written). */
SY_MUST_USE sy_status sy_route(const sy_router *router, uint32_t layer, uint16_t *expert,
                               float *weight, const float *x, uint32_t n_tokens,
                               const sy_route_options *options, float *scratch, uint32_t *bad_row,
                               sy_error *err);
size_t sy_router_scratch(const sy_router *router, uint32_t n_tokens);

/* One token's choice from its logits, the pure part. logits: [E], overwritten with the scores (kept
 * as they are where logits choose). bias: [E], borrowed during the call, takes part in the choice
 * alone; NULL: none, and none with SparseMixer. (A bias that is part of the logits, gpt-oss's, has
 * been added to them.) expert, weight: [k], in descending choice score. gate: one that
 * sy_gate_check accepts for n_experts and some k at least this one. renormalise stands in for
 * gate's. Experts are distinct and of the groups that remain, whatever logits and bias hold; NaN
 * logits give NaN weights. */
void sy_route_select(uint16_t *expert, float *weight, float *logits, const float *bias,
                     uint32_t n_experts, uint32_t k, int renormalise, const sy_gate_desc *gate,
                     const sy_kernels *kernels);

#endif
