/* cu_gate.cu - the gate: one warp a token, lane l holding experts l, l + 32, ... in registers. What
 * it adds, it adds in the order of the CPU's (sy_route_select.c), which is the law here. */
#include "sy_cu_math.h"
#include "sy_cuda_kernels.h"

enum { WARPS = 4 };
#define ALL_LANES 0xffffffffu

/* softmax of sy_kernels.h: element i belongs to partial i % 16, in order of i; lane p < 16 is
 * partial p, whose elements are its own and those of lane p + 16 in turn. */
template <int REGS>
static __device__ __forceinline__ void softmax(float v[REGS], uint32_t lane, uint32_t n)
{
    float max = __uint_as_float(0xff800000u), sum = 0.0f;

    SY_UNROLL
    for (int r = 0; r < REGS; r++)
        if (lane + 32 * r < n) max = v[r] > max ? v[r] : max;
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, max, step);
        max = other > max ? other : max;
    }
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        v[r] = lane + 32 * r < n ? sy_cu_exp(v[r] - max) : 0.0f;
        sum += v[r];
        sum += __shfl_down_sync(ALL_LANES, v[r], 16);
    }
    for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
    sum = __shfl_sync(ALL_LANES, sum, 0);
    SY_UNROLL
    for (int r = 0; r < REGS; r++) v[r] /= sum;
}

template <int REGS> static __device__ __forceinline__ void sigmoid(float v[REGS])
{
    SY_UNROLL
    for (int r = 0; r < REGS; r++) v[r] = 1.0f / (1.0f + sy_cu_exp(-v[r]));
}

/* A choice as a number that is the larger the earlier it goes: NaN after -infinity, zeros of both
 * signs alike, of equals the lower id. Never 0, which stands for what cannot be chosen. */
static __device__ __forceinline__ unsigned long long rank_of(float choice, uint32_t id)
{
    const uint32_t bits = choice == 0.0f ? 0 : __float_as_uint(choice);
    uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;

    if (choice != choice) order = 0;
    return (unsigned long long)order << 32 | (0xffffffffu - id);
}

static __device__ __forceinline__ uint32_t id_of(unsigned long long rank)
{
    return 0xffffffffu - (uint32_t)rank;
}

/* The choice that was ranked. */
static __device__ __forceinline__ float choice_of(unsigned long long rank)
{
    const uint32_t order = (uint32_t)(rank >> 32);

    if (order == 0) return __uint_as_float(0x7fc00000u);
    return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

static __device__ __forceinline__ unsigned long long max_of_warp(unsigned long long rank)
{
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(ALL_LANES, rank, step);
        rank = other > rank ? other : rank;
    }
    return rank;
}

/* The sum of the best choices of one group, the larger first. */
template <int REGS>
static __device__ __forceinline__ float group_score(const unsigned long long rank[REGS],
                                                    uint32_t lane, uint32_t first, uint32_t end,
                                                    uint32_t n_best)
{
    unsigned long long before = ~0ull; /* what has been added already is not below it */
    float sum = 0.0f;

    for (uint32_t i = 0; i < n_best; i++) {
        unsigned long long best = 0;
        SY_UNROLL
        for (int r = 0; r < REGS; r++) {
            const uint32_t e = lane + 32 * r;
            if (e >= first && e < end && rank[r] < before && rank[r] > best) best = rank[r];
        }
        before = max_of_warp(best);
        sum += choice_of(before);
    }
    return sum;
}

/* Leaves the experts of the best groups their ranks. Lane l holds groups l and l + 32. */
template <int REGS>
static __device__ __forceinline__ void keep_groups(unsigned long long rank[REGS], uint32_t lane,
                                                   const sy_cuda_gate &gate)
{
    const uint32_t size = gate.n_experts / gate.n_group;
    unsigned long long group_rank[2] = {0, 0}, chosen = 0;

    for (uint32_t g = 0; g < gate.n_group; g++) {
        const float score =
            group_score<REGS>(rank, lane, g * size, (g + 1) * size, gate.group_best);
        if (g == lane) group_rank[0] = rank_of(score, g);
        if (g == lane + 32) group_rank[1] = rank_of(score, g);
    }
    for (uint32_t i = 0; i < gate.topk_group; i++) {
        const unsigned long long best =
            max_of_warp(group_rank[0] > group_rank[1] ? group_rank[0] : group_rank[1]);
        if (group_rank[0] == best) group_rank[0] = 0;
        if (group_rank[1] == best) group_rank[1] = 0;
        chosen |= 1ull << id_of(best);
    }
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const uint32_t e = lane + 32 * r;
        if (e < gate.n_experts && !(chosen >> (e / size) & 1)) rank[r] = 0;
    }
}

/* The expert that goes first among those not yet taken, and its score: the same in all lanes. */
template <int REGS>
static __device__ __forceinline__ uint32_t take_best(unsigned long long rank[REGS],
                                                     const float score[REGS], float *best_score)
{
    unsigned long long best = 0;
    float w = 0.0f;

    SY_UNROLL
    for (int r = 0; r < REGS; r++) best = rank[r] > best ? rank[r] : best;
    best = max_of_warp(best);
    /* In the one lane that holds it; registers cannot be indexed by a number known at run time. */
    SY_UNROLL
    for (int r = 0; r < REGS; r++)
        if (rank[r] == best) {
            rank[r] = 0;
            w = score[r];
        }
    const uint32_t id = id_of(best);
    *best_score = __shfl_sync(ALL_LANES, w, (int)(id % 32));
    return id;
}

/* SparseMixer's weight of the expert `id`, whose logit m was the largest left: its part of a
 * softmax over those not taken before it and nearly as good. What is far adds a zero, which shows
 * in no sum of what is never negative. Ascending ids, as the CPU adds. */
template <int REGS>
static __device__ __forceinline__ float near_tie_weight(const float logit[REGS],
                                                        const unsigned long long rank[REGS],
                                                        uint32_t lane, uint32_t id, float m,
                                                        float epsilon)
{
    float sum = 0.0f;

    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const float s = logit[r];
        const bool left = rank[r] != 0 || lane + 32 * r == id;
        float part = 0.0f;
        if (left && !((m - s) / fmaxf(fabsf(s), m) > 2.0f * epsilon)) part = sy_cu_exp(s - m);
        for (int l = 0; l < 32; l++) sum += __shfl_sync(ALL_LANES, part, l);
    }
    return 1.0f / sum;
}

/* w of lane i is the i-th expert's, i < k. */
static __device__ __forceinline__ float finish_weight(float w, uint32_t lane,
                                                      const sy_cuda_gate &gate)
{
    if (gate.score == SY_CUDA_SOFTMAX_CHOSEN) softmax<1>(&w, lane, gate.k);
    if (gate.score == SY_CUDA_SIGMOID_CHOSEN) sigmoid<1>(&w);
    if (gate.renormalise) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < gate.k; i++) sum += __shfl_sync(ALL_LANES, w, (int)i);
        sum += gate.norm_epsilon;
        if (sum < gate.norm_min) sum = gate.norm_min;
        if (sum != 0.0f) w /= sum;
    }
    return w * gate.scale;
}

/* The logits of a token, and what they are chosen by. */
template <int REGS>
static __device__ __forceinline__ void load_scores(float score[REGS], unsigned long long rank[REGS],
                                                   const float *logits, const float *logit_bias,
                                                   const float *choice_bias, uint32_t lane,
                                                   const sy_cuda_gate &gate)
{
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const uint32_t e = lane + 32 * r;
        score[r] = e < gate.n_experts ? logits[e] : 0.0f;
        if (e < gate.n_experts && logit_bias != nullptr) score[r] += logit_bias[e];
    }
    if (gate.score == SY_CUDA_SOFTMAX) softmax<REGS>(score, lane, gate.n_experts);
    if (gate.score == SY_CUDA_SIGMOID) sigmoid<REGS>(score);
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const uint32_t e = lane + 32 * r;
        rank[r] = 0;
        if (e < gate.n_experts)
            rank[r] = rank_of(choice_bias == nullptr ? score[r] : score[r] + choice_bias[e], e);
    }
}

template <int REGS>
__global__ void __launch_bounds__(WARPS * 32)
    gate_kernel(uint32_t *expert, float *weight, const float *logits, const float *logit_bias,
                const float *choice_bias, uint32_t n_tokens, sy_cuda_gate gate)
{
    const uint32_t token = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    float score[REGS], mine = 0.0f;
    unsigned long long rank[REGS];
    uint32_t mine_id = 0;

    if (token >= n_tokens) return;
    load_scores<REGS>(score, rank, logits + (size_t)token * gate.n_experts, logit_bias, choice_bias,
                      lane, gate);
    if (gate.n_group > 1) keep_groups<REGS>(rank, lane, gate);
    /* Lane i keeps the i-th. */
    for (uint32_t i = 0; i < gate.k; i++) {
        float w;
        const uint32_t id = take_best<REGS>(rank, score, &w);
        if (gate.score == SY_CUDA_SPARSEMIXER)
            w = near_tie_weight<REGS>(score, rank, lane, id, w, gate.sparse_epsilon);
        if (lane == i) {
            mine = w;
            mine_id = id;
        }
    }
    mine = finish_weight(mine, lane, gate);
    if (lane < gate.k) {
        expert[(size_t)token * gate.k + lane] = mine_id;
        weight[(size_t)token * gate.k + lane] = mine;
    }
}

template <int REGS>
static int launch_gate(uint32_t *expert, float *weight, const float *logits,
                       const float *logit_bias, const float *choice_bias, uint32_t n_tokens,
                       const sy_cuda_gate *gate, void *stream)
{
    return SY_LAUNCH((gate_kernel<REGS>), dim3((n_tokens + WARPS - 1) / WARPS), dim3(WARPS * 32),
                     stream, expert, weight, logits, logit_bias, choice_bias, n_tokens, *gate);
}

extern "C" int sy_cuda_gate_topk(uint32_t *expert, float *weight, const float *logits,
                                 const float *logit_bias, const float *choice_bias,
                                 uint32_t n_tokens, const sy_cuda_gate *gate, void *stream)
{
    if (n_tokens == 0) return 0;
    if (gate->n_experts <= 32)
        return launch_gate<1>(expert, weight, logits, logit_bias, choice_bias, n_tokens, gate,
                              stream);
    if (gate->n_experts <= 128)
        return launch_gate<4>(expert, weight, logits, logit_bias, choice_bias, n_tokens, gate,
                              stream);
    return launch_gate<16>(expert, weight, logits, logit_bias, choice_bias, n_tokens, gate, stream);
}
