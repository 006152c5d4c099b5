/* cu_gate.cu - the gate: one warp a token, lane l holding experts l, l + 32, ... in registers. What
 * it adds, it adds in the order of the reference. */
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

/* A choice as a number that is the larger the earlier it goes: by score, NaN after -infinity; of
 * equals the lower id. Never 0. Scores are +0 or more, so no sum with a bias is -0. */
static __device__ __forceinline__ unsigned long long rank_of(float choice, uint32_t id)
{
    const uint32_t bits = __float_as_uint(choice);
    uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;

    if (choice != choice) order = 0;
    return (unsigned long long)order << 32 | (0xffffffffu - id);
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
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(ALL_LANES, best, step);
        best = other > best ? other : best;
    }
    const uint32_t id = 0xffffffffu - (uint32_t)best;
    /* In the one lane that holds it; registers cannot be indexed by a number known at run time. */
    SY_UNROLL
    for (int r = 0; r < REGS; r++)
        if (rank[r] == best) {
            rank[r] = 0;
            w = score[r];
        }
    *best_score = __shfl_sync(ALL_LANES, w, (int)(id % 32));
    return id;
}

template <int REGS>
__global__ void __launch_bounds__(WARPS * 32)
    gate_kernel(uint32_t *expert, float *weight, const float *logits, const float *bias,
                uint32_t n_tokens, sy_cuda_gate gate)
{
    const uint32_t token = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    float score[REGS], mine = 0.0f;
    unsigned long long rank[REGS];
    uint32_t mine_id = 0;

    if (token >= n_tokens) return;
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const uint32_t e = lane + 32 * r;
        score[r] = e < gate.n_experts ? logits[(size_t)token * gate.n_experts + e] : 0.0f;
    }
    if (gate.score == SY_CUDA_SOFTMAX) {
        softmax<REGS>(score, lane, gate.n_experts);
    } else {
        sigmoid<REGS>(score);
    }
    SY_UNROLL
    for (int r = 0; r < REGS; r++) {
        const uint32_t e = lane + 32 * r;
        rank[r] = 0;
        if (e < gate.n_experts)
            rank[r] = rank_of(bias == nullptr ? score[r] : score[r] + bias[e], e);
    }
    /* Lane i keeps the i-th. */
    for (uint32_t i = 0; i < gate.k; i++) {
        float w;
        const uint32_t id = take_best<REGS>(rank, score, &w);
        if (lane == i) {
            mine = w;
            mine_id = id;
        }
    }
    if (gate.renormalise) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < gate.k; i++) sum += __shfl_sync(ALL_LANES, mine, (int)i);
        sum += gate.norm_epsilon;
        if (sum < gate.norm_min) sum = gate.norm_min;
        if (sum != 0.0f) mine /= sum;
    }
    if (lane < gate.k) {
        expert[(size_t)token * gate.k + lane] = mine_id;
        weight[(size_t)token * gate.k + lane] = mine * gate.scale;
    }
}

template <int REGS>
static int launch_gate(uint32_t *expert, float *weight, const float *logits, const float *bias,
                       uint32_t n_tokens, const sy_cuda_gate *gate, void *stream)
{
    return SY_LAUNCH((gate_kernel<REGS>), dim3((n_tokens + WARPS - 1) / WARPS), dim3(WARPS * 32),
                     stream, expert, weight, logits, bias, n_tokens, *gate);
}

extern "C" int sy_cuda_gate_topk(uint32_t *expert, float *weight, const float *logits,
                                 const float *bias, uint32_t n_tokens, const sy_cuda_gate *gate,
                                 void *stream)
{
    if (n_tokens == 0) return 0;
    if (gate->n_experts <= 32)
        return launch_gate<1>(expert, weight, logits, bias, n_tokens, gate, stream);
    if (gate->n_experts <= 128)
        return launch_gate<4>(expert, weight, logits, bias, n_tokens, gate, stream);
    return launch_gate<16>(expert, weight, logits, bias, n_tokens, gate, stream);
}
