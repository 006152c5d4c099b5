/* sy_route_select.c - one token's experts from its logits. Pure; knows nothing of layers, files or
 * requests. Each expert is looked at once and takes at most one place, so no input, not even NaN,
 * can make it choose an expert twice. */
#include "sy_route.h"

#include <math.h>

#include "sy_rank.h"

/* 1 / (1 + exp(-x)): a large -x gives 1 / infinity, which is the 0 that it should be. */
static void sigmoid(float *x, size_t n, const sy_kernels *kernels)
{
    for (size_t i = 0; i < n; i++) x[i] = -x[i];
    kernels->vexp(x, x, n);
    for (size_t i = 0; i < n; i++) x[i] = 1.0f / (1.0f + x[i]);
}

/* Offers the experts [first, end) by their choice scores. */
static void offer_experts(sy_ranking *best, const float *score, const float *bias, uint32_t first,
                          uint32_t end)
{
    for (uint32_t e = first; e < end; e++) {
        sy_ranking_offer(best, e, bias == NULL ? score[e] : score[e] + bias[e]);
    }
}

/* The groups that remain, as bits. */
static uint64_t choose_groups(const float *score, const float *bias, uint32_t group_size,
                              const sy_gate_desc *gate)
{
    uint16_t group[SY_GATE_GROUPS_MAX];
    float group_score[SY_GATE_GROUPS_MAX];
    sy_ranking groups = {.id = group, .score = group_score, .room = gate->topk_group};
    uint64_t chosen = 0;

    for (uint32_t g = 0; g < gate->n_group; g++) {
        uint16_t expert[SY_GATE_GROUP_BEST_MAX];
        float best_score[SY_GATE_GROUP_BEST_MAX];
        sy_ranking best = {.id = expert, .score = best_score, .room = gate->group_best};
        float sum = 0.0f;

        offer_experts(&best, score, bias, g * group_size, (g + 1) * group_size);
        for (uint32_t i = 0; i < best.n; i++) sum += best_score[i];
        sy_ranking_offer(&groups, g, sum);
    }
    for (uint32_t i = 0; i < groups.n; i++) chosen |= UINT64_C(1) << group[i];
    return chosen;
}

/* Experts of other groups are not offered at all: that is a choice score of -inf, and keeps the
 * limit even where those that remain hold -inf or NaN themselves. The choice scores are left in
 * weight. */
static void choose_experts(uint16_t *expert, float *weight, const float *score, const float *bias,
                           uint32_t n_experts, uint32_t k, const sy_gate_desc *gate)
{
    sy_ranking best = {.id = expert, .score = weight, .room = k};
    uint32_t group_size;
    uint64_t chosen;

    if (gate->n_group <= 1) {
        float choice[SY_EXPERTS_MAX];

        for (uint32_t e = 0; bias != NULL && e < n_experts; e++) choice[e] = score[e] + bias[e];
        sy_rank_best(expert, weight, bias == NULL ? score : choice, n_experts, k);
        return;
    }
    SY_ASSERT(gate->n_group <= SY_GATE_GROUPS_MAX && n_experts % gate->n_group == 0);
    SY_ASSERT(gate->topk_group <= gate->n_group);
    SY_ASSERT(gate->group_best >= 1 && gate->group_best <= SY_GATE_GROUP_BEST_MAX);
    group_size = n_experts / gate->n_group;
    SY_ASSERT(k <= gate->topk_group * group_size);
    chosen = choose_groups(score, bias, group_size, gate);
    for (uint32_t g = 0; g < gate->n_group; g++) {
        if (!(chosen >> g & 1)) continue;
        offer_experts(&best, score, bias, g * group_size, (g + 1) * group_size);
    }
}

/* SparseMixer: the experts are found by repeated argmax, and each one's weight is its part of a
 * softmax over what is left at that point and nearly as good: (m - s) / max(|s|, m) <= 2 epsilon,
 * m being its own logit, the largest left. NaN compares as near: so it shows in the weight, and
 * equals at zero, 0 / 0, are the ties that they should be. */
static void sparse_mixer_weights(float *weight, const uint16_t *expert, const float *logits,
                                 uint32_t n_experts, uint32_t k, float epsilon,
                                 const sy_kernels *kernels)
{
    for (uint32_t i = 0; i < k; i++) {
        const float m = logits[expert[i]];
        float sum = 0.0f;

        for (uint32_t e = 0; e < n_experts; e++) {
            const float s = logits[e];
            float part = s - m;
            int gone = 0;

            for (uint32_t j = 0; j < i; j++) gone |= expert[j] == e;
            if (gone || (m - s) / fmaxf(fabsf(s), m) > 2.0f * epsilon) continue;
            kernels->vexp(&part, &part, 1);
            sum += part;
        }
        weight[i] = 1.0f / sum;
    }
}

static void renormalise_weights(float *weight, uint32_t k, const sy_gate_desc *gate)
{
    float sum = 0.0f;

    for (uint32_t i = 0; i < k; i++) sum += weight[i];
    sum += gate->norm_epsilon;
    if (sum < gate->norm_min) sum = gate->norm_min;
    /* Scores can all underflow; zero weights then stay zero instead of becoming NaN. */
    for (uint32_t i = 0; i < k && sum != 0.0f; i++) weight[i] /= sum;
}

void sy_route_select(uint16_t *expert, float *weight, float *logits, const float *bias,
                     uint32_t n_experts, uint32_t k, int renormalise, const sy_gate_desc *gate,
                     const sy_kernels *kernels)
{
    SY_ASSERT(k >= 1 && k <= n_experts && n_experts <= SY_EXPERTS_MAX);
    SY_ASSERT(bias == NULL || gate->score != SY_GATE_SPARSEMIXER);
    if (gate->score == SY_GATE_SOFTMAX) {
        kernels->softmax(logits, n_experts);
    } else if (gate->score == SY_GATE_SIGMOID) {
        sigmoid(logits, n_experts, kernels);
    }
    choose_experts(expert, weight, logits, bias, n_experts, k, gate);
    if (gate->score == SY_GATE_SPARSEMIXER) {
        sparse_mixer_weights(weight, expert, logits, n_experts, k, gate->sparse_epsilon, kernels);
    } else {
        for (uint32_t i = 0; i < k; i++) weight[i] = logits[expert[i]];
    }
    if (gate->score == SY_GATE_SOFTMAX_CHOSEN) kernels->softmax(weight, k);
    if (gate->score == SY_GATE_SIGMOID_CHOSEN) sigmoid(weight, k, kernels);
    if (renormalise) renormalise_weights(weight, k, gate);
    for (uint32_t i = 0; i < k; i++) weight[i] *= gate->scale;
}
