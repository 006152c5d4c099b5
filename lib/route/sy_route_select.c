/* sy_route_select.c - one token's experts from its logits. Pure; knows nothing of layers, files or
 * requests. Each expert is looked at once and takes at most one place, so no input, not even NaN,
 * can make it choose an expert twice. */
#include "sy_route.h"

#include <math.h>

/* 1 / (1 + exp(-x)): a large -x gives 1 / infinity, which is the 0 that it should be. */
static void sigmoid(float *x, size_t n, const sy_kernels *kernels)
{
    for (size_t i = 0; i < n; i++) x[i] = -x[i];
    kernels->vexp(x, x, n);
    for (size_t i = 0; i < n; i++) x[i] = 1.0f / (1.0f + x[i]);
}

/* Whether a goes before b, the score of a lower id: only when it is strictly larger, and NaN is
 * below everything. */
static int goes_before(float a, float b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* Insertion into the k best so far. k is small, and most experts lose against the last of them. */
static void choose_best(uint16_t *expert, float *weight, const float *score, uint32_t n_experts,
                        uint32_t k)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t place;

        if (n < k) {
            place = n++;
        } else if (goes_before(score[e], weight[k - 1])) {
            place = k - 1;
        } else {
            continue;
        }
        for (; place > 0 && goes_before(score[e], weight[place - 1]); place--) {
            expert[place] = expert[place - 1];
            weight[place] = weight[place - 1];
        }
        expert[place] = (uint16_t)e;
        weight[place] = score[e];
    }
}

void sy_route_select(uint16_t *expert, float *weight, float *logits, uint32_t n_experts, uint32_t k,
                     int renormalise, const sy_gate_desc *gate, const sy_kernels *kernels)
{
    SY_ASSERT(k >= 1 && k <= n_experts && n_experts <= SY_EXPERTS_MAX);
    if (gate->score == SY_GATE_SIGMOID) {
        sigmoid(logits, n_experts, kernels);
    } else {
        kernels->softmax(logits, n_experts);
    }
    choose_best(expert, weight, logits, n_experts, k);
    if (renormalise) {
        float sum = 0.0f;

        for (uint32_t i = 0; i < k; i++) sum += weight[i];
        /* Only sigmoids can all underflow; zero weights then stay zero instead of becoming NaN. */
        for (uint32_t i = 0; i < k && sum != 0.0f; i++) weight[i] /= sum;
    }
    for (uint32_t i = 0; i < k; i++) weight[i] *= gate->scale;
}
