/* The gate on a GPU chooses what the CPU's chooses, with the same bits of weight: ties, zeros of
 * both signs, infinities and NaN among the logits included. */
#include "kernel_cases.h"
#include "sy_cuda_kernels.h"
#include "sy_route.h"

static const uint32_t expert_counts[] = {1, 2, 8, 31, 32, 33, 60, 64, 128, 129, 256, 512};
static const uint32_t token_counts[] = {0, 1, 4, 9};

typedef enum logit_kind {
    LOGITS_PLAIN,
    LOGITS_TIED,
    LOGITS_ODD,
    LOGITS_NAN,
    N_LOGIT_KINDS
} logit_kind;

static float random_logit(test_random *r, logit_kind kind)
{
    static const float odd[] = {0.0f, -0.0f, -INFINITY, 90.0f, -200.0f, 1e-40f, 3.0f};
    const float unit = random_unit(r);

    switch (kind) {
    case LOGITS_TIED: return (float)(int)(unit * 3.0f);
    case LOGITS_ODD: return odd[random_u32(r) % SY_COUNT_OF(odd)];
    case LOGITS_NAN: return random_u32(r) % 16 == 0 ? NAN : unit * 4.0f;
    default: return unit * 6.0f;
    }
}

typedef struct gate_case {
    sy_cuda_gate gate;
    uint32_t n_tokens;
    logit_kind kind;
    int biased;
} gate_case;

static void expect_token(const gate_case *c, const float *logits, const float *bias,
                         const uint32_t *expert, const float *weight)
{
    const sy_gate_desc desc = {.score = c->gate.score == SY_CUDA_SIGMOID ? SY_GATE_SIGMOID
                                                                         : SY_GATE_SOFTMAX,
                               .scale = c->gate.scale,
                               .norm_epsilon = c->gate.norm_epsilon,
                               .norm_min = c->gate.norm_min};
    uint16_t want_expert[SY_CUDA_GATE_K_MAX];
    float want_weight[SY_CUDA_GATE_K_MAX], scratch[SY_CUDA_GATE_EXPERTS_MAX];

    memcpy(scratch, logits, c->gate.n_experts * sizeof(float));
    sy_route_select(want_expert, want_weight, scratch, bias, c->gate.n_experts, c->gate.k,
                    c->gate.renormalise, &desc, sy_kernels_at(0));
    for (uint32_t i = 0; i < c->gate.k; i++)
        if (expert[i] != want_expert[i])
            fail_msg("%u experts, logits %d, place %u: expert %u, want %u", c->gate.n_experts,
                     (int)c->kind, i, expert[i], want_expert[i]);
    check_bits(want_weight, weight, c->gate.k, "weights");
}

static void check_gate(const gate_case *c)
{
    const uint32_t n_experts = c->gate.n_experts, k = c->gate.k;
    test_random r = {TEST_SEED + n_experts};
    edge_buffer logits = edge_open((size_t)c->n_tokens * n_experts * sizeof(float), 0);
    edge_buffer bias = edge_open(n_experts * sizeof(float), 0);
    edge_buffer expert = edge_open((size_t)c->n_tokens * k * sizeof(uint32_t), 0);
    edge_buffer weight = edge_open((size_t)c->n_tokens * k * sizeof(float), 0);
    const float *b = c->biased ? edge_floats(&bias) : NULL;

    for (size_t i = 0; i < (size_t)c->n_tokens * n_experts; i++)
        edge_floats(&logits)[i] = random_logit(&r, c->kind);
    random_fill(edge_floats(&bias), n_experts, &r, VALUES_PLAIN);
    assert_int_equal(sy_cuda_gate_topk((uint32_t *)(void *)expert.data, edge_floats(&weight),
                                       edge_floats(&logits), b, c->n_tokens, &c->gate, NULL),
                     0);
    for (uint32_t t = 0; t < c->n_tokens; t++)
        expect_token(c, edge_floats(&logits) + (size_t)t * n_experts, b,
                     (const uint32_t *)(void *)expert.data + (size_t)t * k,
                     edge_floats(&weight) + (size_t)t * k);
    edge_check(&expert);
    edge_check(&weight);
    edge_close(&logits);
    edge_close(&bias);
    edge_close(&expert);
    edge_close(&weight);
}

static void check_counts(sy_cuda_score score, logit_kind kind)
{
    for (size_t i = 0; i < SY_COUNT_OF(expert_counts); i++)
        for (size_t j = 0; j < SY_COUNT_OF(token_counts); j++) {
            const uint32_t n = expert_counts[i];
            gate_case c = {.gate = {.score = score, .n_experts = n, .k = 1, .scale = 1.0f},
                           .n_tokens = token_counts[j],
                           .kind = kind};
            check_gate(&c);
            c.gate.k = SY_MIN(n, 8u);
            c.gate.renormalise = 1;
            c.gate.scale = 2.5f;
            c.gate.norm_epsilon = 1e-20f;
            check_gate(&c);
            c.gate.k = SY_MIN(n, (uint32_t)SY_CUDA_GATE_K_MAX);
            c.gate.norm_min = 1e-12f;
            c.biased = 1;
            check_gate(&c);
        }
}

static void softmax_gates_match_the_cpu(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_LOGIT_KINDS; kind++)
        check_counts(SY_CUDA_SOFTMAX, (logit_kind)kind);
}

static void sigmoid_gates_match_the_cpu(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_LOGIT_KINDS; kind++)
        check_counts(SY_CUDA_SIGMOID, (logit_kind)kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_gates_match_the_cpu),
        cmocka_unit_test(sigmoid_gates_match_the_cpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
