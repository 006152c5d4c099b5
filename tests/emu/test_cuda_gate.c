/* The gate on a GPU chooses what the CPU's chooses, with the same bits of weight: every score that
 * a model may ask for, with and without groups and biases, with ties, zeros of both signs,
 * infinities and NaN among the logits. */
#include "kernel_cases.h"
#include "sy_cuda_kernels.h"
#include "sy_route.h"

static const uint32_t expert_counts[] = {1, 2, 8, 31, 32, 33, 60, 64, 128, 129, 256, 512};
static const uint32_t token_counts[] = {0, 1, 4, 9};

typedef enum logit_kind {
    LOGITS_PLAIN,
    LOGITS_TIED,
    LOGITS_NEAR, /* many within one part in a hundred */
    LOGITS_ODD,
    LOGITS_NAN,
    N_LOGIT_KINDS
} logit_kind;

static float random_logit(test_random *r, logit_kind kind)
{
    static const float odd[] = {0.0f,    -0.0f,  -INFINITY, INFINITY, 90.0f,
                                -200.0f, 1e-40f, 3.0f,      -1e-40f};
    const float unit = random_unit(r);

    switch (kind) {
    case LOGITS_TIED: return (float)(int)(unit * 3.0f);
    case LOGITS_NEAR: return 4.0f + unit * 0.04f;
    case LOGITS_ODD: return odd[random_u32(r) % SY_COUNT_OF(odd)];
    case LOGITS_NAN: return random_u32(r) % 16 == 0 ? NAN : unit * 4.0f;
    default: return unit * 6.0f;
    }
}

typedef struct gate_case {
    sy_cuda_gate gate;
    uint32_t n_tokens;
    logit_kind kind;
    int logit_biased, choice_biased;
} gate_case;

/* The inputs of a case, and what the device made of them. */
typedef struct gate_run {
    edge_buffer logits, logit_bias, choice_bias, expert, weight;
} gate_run;

static sy_gate_desc desc_of(const sy_cuda_gate *gate)
{
    return (sy_gate_desc){.score = (sy_gate_score)gate->score,
                          .renormalise = gate->renormalise,
                          .scale = gate->scale,
                          .norm_epsilon = gate->norm_epsilon,
                          .norm_min = gate->norm_min,
                          .sparse_epsilon = gate->sparse_epsilon,
                          .n_group = gate->n_group,
                          .topk_group = gate->topk_group,
                          .group_best = gate->group_best};
}

static void expect_token(const gate_case *c, const gate_run *run, uint32_t t)
{
    const sy_cuda_gate *gate = &c->gate;
    const sy_gate_desc desc = desc_of(gate);
    const uint32_t E = gate->n_experts, k = gate->k;
    const uint32_t *expert = (const uint32_t *)(void *)run->expert.data + (size_t)t * k;
    uint16_t want_expert[SY_CUDA_GATE_K_MAX];
    float want_weight[SY_CUDA_GATE_K_MAX], scores[SY_CUDA_GATE_EXPERTS_MAX];
    char what[128];

    memcpy(scores, edge_floats(&run->logits) + (size_t)t * E, E * sizeof(float));
    if (c->logit_biased) sy_kernels_at(0)->add(scores, edge_floats(&run->logit_bias), E);
    sy_route_select(want_expert, want_weight, scores,
                    c->choice_biased ? edge_floats(&run->choice_bias) : NULL, E, k,
                    gate->renormalise, &desc, sy_kernels_at(0));
    snprintf(what, sizeof(what), "score %d, %u of %u experts, %u of %u groups, logits %d, token %u",
             (int)gate->score, k, E, gate->topk_group, gate->n_group, (int)c->kind, t);
    for (uint32_t i = 0; i < k; i++)
        if (expert[i] != want_expert[i])
            fail_msg("%s, place %u: expert %u, want %u", what, i, expert[i], want_expert[i]);
    check_bits(want_weight, edge_floats(&run->weight) + (size_t)t * k, k, what);
}

static void check_gate(const gate_case *c)
{
    const uint32_t E = c->gate.n_experts;
    const size_t n_logits = (size_t)c->n_tokens * E, n_chosen = (size_t)c->n_tokens * c->gate.k;
    const sy_gate_desc desc = desc_of(&c->gate);
    test_random r = {TEST_SEED + E};
    gate_run run = {.logits = edge_open(n_logits * sizeof(float), 0),
                    .logit_bias = edge_open(E * sizeof(float), 0),
                    .choice_bias = edge_open(E * sizeof(float), 0),
                    .expert = edge_open(n_chosen * sizeof(uint32_t), 0),
                    .weight = edge_open(n_chosen * sizeof(float), 0)};
    edge_buffer *all[] = {&run.logits, &run.logit_bias, &run.choice_bias, &run.expert, &run.weight};

    assert_int_equal(sy_gate_check(&desc, E, c->gate.k, NULL), SY_OK);
    for (size_t i = 0; i < n_logits; i++) edge_floats(&run.logits)[i] = random_logit(&r, c->kind);
    random_fill(edge_floats(&run.logit_bias), E, &r, VALUES_PLAIN);
    random_fill(edge_floats(&run.choice_bias), E, &r, VALUES_PLAIN);
    assert_int_equal(sy_cuda_gate_topk((uint32_t *)(void *)run.expert.data,
                                       edge_floats(&run.weight), edge_floats(&run.logits),
                                       c->logit_biased ? edge_floats(&run.logit_bias) : NULL,
                                       c->choice_biased ? edge_floats(&run.choice_bias) : NULL,
                                       c->n_tokens, &c->gate, NULL),
                     0);
    for (uint32_t t = 0; t < c->n_tokens; t++) expect_token(c, &run, t);
    edge_check(&run.expert);
    edge_check(&run.weight);
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

/* Plain, then renormalised and scaled, then the most experts a token with all there is. */
static void check_variants(gate_case c)
{
    const uint32_t n = c.gate.n_experts;
    const int sparse = c.gate.score == SY_CUDA_SPARSEMIXER;

    c.gate.k = 1;
    c.gate.scale = 1.0f;
    c.gate.sparse_epsilon = 0.01f;
    check_gate(&c);
    c.gate.k = SY_MIN(n, sparse ? 2u : 8u);
    c.gate.renormalise = 1;
    c.gate.scale = 2.5f;
    c.gate.norm_epsilon = 1e-20f;
    check_gate(&c);
    c.gate.k = SY_MIN(n, sparse ? 2u : (uint32_t)SY_CUDA_GATE_K_MAX);
    c.gate.norm_min = 1e-12f;
    c.gate.renormalise = !sparse;
    c.logit_biased = 1;
    c.choice_biased = !sparse;
    check_gate(&c);
}

static void check_score(sy_cuda_score score)
{
    for (int kind = 0; kind < N_LOGIT_KINDS; kind++)
        for (size_t i = 0; i < SY_COUNT_OF(expert_counts); i++)
            for (size_t j = 0; j < SY_COUNT_OF(token_counts); j++)
                check_variants((gate_case){
                    .gate = {.score = score, .n_experts = expert_counts[i]},
                    .n_tokens = token_counts[j],
                    .kind = (logit_kind)kind,
                });
}

static void softmax_gates_match_the_cpu(void **state)
{
    (void)state;
    check_score(SY_CUDA_SOFTMAX);
}

static void sigmoid_gates_match_the_cpu(void **state)
{
    (void)state;
    check_score(SY_CUDA_SIGMOID);
}

static void gates_that_weigh_the_chosen_match_the_cpu(void **state)
{
    (void)state;
    check_score(SY_CUDA_SIGMOID_CHOSEN);
    check_score(SY_CUDA_SOFTMAX_CHOSEN);
}

static void sparse_mixers_match_the_cpu(void **state)
{
    (void)state;
    check_score(SY_CUDA_SPARSEMIXER);
}

/* Experts, groups, groups that remain, best of a group that make its score, experts a token:
 * DeepSeek-V2 and V3 first, then groups that cross lanes, are alone, are many, and leave exactly
 * as many experts as are taken. */
static const uint32_t group_cases[][5] = {
    {160, 8, 3, 1, 6}, {256, 8, 4, 2, 8}, {60, 4, 2, 2, 8},    {33, 11, 5, 2, 15},
    {8, 8, 3, 1, 3},   {8, 1, 1, 2, 8},   {512, 64, 9, 2, 32}, {64, 64, 5, 1, 5},
    {64, 2, 1, 2, 32}, {512, 2, 2, 1, 4},
};

static void check_groups(sy_cuda_score score, logit_kind kind, const uint32_t group[5])
{
    gate_case c = {.gate = {.score = score,
                            .n_experts = group[0],
                            .k = group[4],
                            .scale = 1.0f,
                            .n_group = group[1],
                            .topk_group = group[2],
                            .group_best = group[3]},
                   .n_tokens = 7,
                   .kind = kind};

    check_gate(&c);
    c.gate.renormalise = 1;
    c.gate.norm_epsilon = 1e-20f;
    c.gate.scale = 16.0f;
    c.choice_biased = 1;
    check_gate(&c);
}

static void groups_match_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(group_cases); i++)
        for (int kind = 0; kind < N_LOGIT_KINDS; kind++)
            for (int score = 0; score < SY_CUDA_SPARSEMIXER; score++)
                check_groups((sy_cuda_score)score, (logit_kind)kind, group_cases[i]);
}

static void scores_are_numbered_as_the_models(void **state)
{
    (void)state;
    assert_int_equal(SY_CUDA_SOFTMAX, SY_GATE_SOFTMAX);
    assert_int_equal(SY_CUDA_SIGMOID, SY_GATE_SIGMOID);
    assert_int_equal(SY_CUDA_SIGMOID_CHOSEN, SY_GATE_SIGMOID_CHOSEN);
    assert_int_equal(SY_CUDA_SOFTMAX_CHOSEN, SY_GATE_SOFTMAX_CHOSEN);
    assert_int_equal(SY_CUDA_SPARSEMIXER, SY_GATE_SPARSEMIXER);
    assert_true(SY_CUDA_GATE_GROUPS_MAX == SY_GATE_GROUPS_MAX);
    assert_true(SY_CUDA_GATE_GROUP_BEST_MAX == SY_GATE_GROUP_BEST_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_gates_match_the_cpu),
        cmocka_unit_test(sigmoid_gates_match_the_cpu),
        cmocka_unit_test(gates_that_weigh_the_chosen_match_the_cpu),
        cmocka_unit_test(sparse_mixers_match_the_cpu),
        cmocka_unit_test(groups_match_the_cpu),
        cmocka_unit_test(scores_are_numbered_as_the_models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
