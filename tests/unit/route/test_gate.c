/* test_gate.c - one description for each family's gate, and no code of its own: the published
 * vectors come out, groups limit, a bias chooses without weighing, and a description that makes no
 * sense is refused before it is used. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_route.h"

#define TRIO      SY_SOURCE_DIR "/models/trio"
#define TEST_SEED 20240731u
#define E_MAX     256

static const sy_gate_desc mixtral = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1};
static const sy_gate_desc olmoe = {.score = SY_GATE_SOFTMAX, .scale = 1};
static const sy_gate_desc granite = {.score = SY_GATE_SOFTMAX_CHOSEN, .scale = 1};
static const sy_gate_desc deepseek_v2 = {
    .score = SY_GATE_SOFTMAX, .scale = 16, .n_group = 4, .topk_group = 2, .group_best = 1};
static const sy_gate_desc deepseek_v3 = {.score = SY_GATE_SIGMOID,
                                         .renormalise = 1,
                                         .scale = 2.5f,
                                         .norm_epsilon = 1e-20f,
                                         .n_group = 4,
                                         .topk_group = 2,
                                         .group_best = 2};
static const sy_gate_desc glm = {
    .score = SY_GATE_SIGMOID, .renormalise = 1, .scale = 1, .norm_epsilon = 1e-20f};
static const sy_gate_desc ernie = {
    .score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1, .norm_min = 1e-12f};
static const sy_gate_desc phi = {.score = SY_GATE_SPARSEMIXER, .scale = 1, .sparse_epsilon = 0.01f};

static const float vector_logits[8] = {1.0f, -0.5f, 2.25f, 0.75f, -1.5f, 3.0f, 0.25f, 1.5f};
static const float vector_bias[8] = {0, 0.30f, -0.20f, 0, 0.45f, -0.60f, 0.10f, 0.05f};

typedef struct choice {
    uint16_t expert[E_MAX];
    float weight[E_MAX];
    float score[E_MAX]; /* what the logits became */
} choice;

static choice choose(const float *logits, const float *bias, uint32_t E, uint32_t k,
                     const sy_gate_desc *gate, const sy_kernels *kernels)
{
    choice c = {0};
    sy_error err = {0};

    if (sy_gate_check(gate, E, k, &err) != SY_OK) fail_msg("%s", err.message);
    memcpy(c.score, logits, E * sizeof(float));
    sy_route_select(c.expert, c.weight, c.score, bias, E, k, gate->renormalise, gate, kernels);
    return c;
}

/* The tolerance of the published vectors, which have seven digits after the point. */
static void assert_near(float got, float want, const char *what, uint32_t i)
{
    if (!(fabsf(got - want) <= 1e-6f)) {
        fail_msg("%s %u: want %.8g, got %.8g", what, i, (double)want, (double)got);
    }
}

static void assert_choice(const float *logits, const float *bias, uint32_t E, uint32_t k,
                          const sy_gate_desc *gate, const uint16_t *expert, const float *weight)
{
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const choice c = choose(logits, bias, E, k, gate, sy_kernels_at(i));

        for (uint32_t j = 0; j < k; j++) {
            if (c.expert[j] != expert[j]) {
                fail_msg("slot %u: want expert %u, got %u", j, expert[j], c.expert[j]);
            }
            assert_near(c.weight[j], weight[j], "the weight of slot", j);
        }
    }
}

static void mixtral_and_olmoe_choose_by_softmax(void **state)
{
    static const float score[8] = {0.0662932f, 0.0147920f, 0.2313860f, 0.0516292f,
                                   0.0054417f, 0.4898442f, 0.0313147f, 0.1092990f};
    static const uint16_t expert[] = {5, 2, 7};
    static const float two[] = {0.6791787f, 0.3208213f};
    static const float three[] = {0.4898442f, 0.2313860f, 0.1092990f};
    const choice c = choose(vector_logits, NULL, 8, 3, &olmoe, sy_kernels_best());

    (void)state;
    for (uint32_t e = 0; e < 8; e++) assert_near(c.score[e], score[e], "the score of", e);
    assert_choice(vector_logits, NULL, 8, 2, &mixtral, expert, two);
    assert_choice(vector_logits, NULL, 8, 3, &olmoe, expert, three);
}

static void granite_and_gpt_oss_weigh_the_chosen_alone(void **state)
{
    static const uint16_t expert[] = {5, 2, 7};
    static const float weight[] = {0.5897976f, 0.2786007f, 0.1316016f};
    /* Scores over all experts would underflow here, and all but the first be a tie. */
    static const float far[] = {-300, -200, 0, -200.5f};
    static const uint16_t far_expert[] = {2, 1, 3};
    static const float far_weight[] = {1, 0, 0};

    (void)state;
    assert_choice(vector_logits, NULL, 8, 3, &granite, expert, weight);
    assert_choice(far, NULL, 4, 3, &granite, far_expert, far_weight);
}

static void deepseek_v2_chooses_within_the_groups_of_the_best_experts(void **state)
{
    static const uint16_t expert[] = {5, 2, 3};
    static const float weight[] = {7.8375077f, 3.7021763f, 0.8260672f};

    (void)state;
    assert_choice(vector_logits, NULL, 8, 3, &deepseek_v2, expert, weight);
}

static void deepseek_v3_chooses_with_the_bias_and_weighs_without(void **state)
{
    static const uint16_t expert[] = {7, 0, 1};
    static const float weight[] = {1.0611379f, 0.9488482f, 0.4900138f};
    static const float choice_score[8] = {0.7310586f, 0.6775407f, 0.7046505f, 0.6791787f,
                                          0.6324255f, 0.3525741f, 0.6621765f, 0.8675745f};
    static const float group_score[4] = {1.4085993f, 1.3838292f, 0.9849996f, 1.5297510f};
    const choice c = choose(vector_logits, vector_bias, 8, 3, &deepseek_v3, sy_kernels_best());

    (void)state;
    for (uint32_t e = 0; e < 8; e++) {
        assert_near(c.score[e] + vector_bias[e], choice_score[e], "the choice score of", e);
    }
    for (uint32_t g = 0; g < 4; g++) {
        assert_near(c.score[2 * g] + vector_bias[2 * g] + c.score[2 * g + 1] +
                        vector_bias[2 * g + 1],
                    group_score[g], "the score of group", g);
    }
    assert_choice(vector_logits, vector_bias, 8, 3, &deepseek_v3, expert, weight);
}

/* As many experts as the groups that remain hold: the choice names the groups. */
static void assert_group_order(const float *logits, const float *bias, uint32_t group_best,
                               const uint32_t *order)
{
    sy_gate_desc gate = deepseek_v3;

    gate.group_best = group_best;
    for (uint32_t n = 1; n <= 4; n++) {
        uint32_t want = 0, got = 0;
        choice c;

        gate.topk_group = n;
        c = choose(logits, bias, 8, 2 * n, &gate, sy_kernels_best());
        for (uint32_t i = 0; i < n; i++) want |= 3u << 2 * order[i];
        for (uint32_t j = 0; j < 2 * n; j++) got |= 1u << c.expert[j];
        if (got != want) {
            fail_msg("%u groups by the sum of %u: want experts %#x, got %#x", n, group_best, want,
                     got);
        }
    }
}

static void groups_come_in_the_order_of_their_scores(void **state)
{
    static const uint32_t vector_order[4] = {3, 0, 1, 2};
    /* The first group has the best expert and the second the best pair. */
    static const float logits[8] = {3, -3, 1, 1, 2, -1, -0.5f, -0.5f};
    static const uint32_t by_maximum[4] = {0, 2, 1, 3}, by_sum[4] = {1, 2, 0, 3};

    (void)state;
    assert_group_order(vector_logits, vector_bias, 2, vector_order);
    assert_group_order(logits, NULL, 1, by_maximum);
    assert_group_order(logits, NULL, 2, by_sum);
}

static void one_group_is_no_limit(void **state)
{
    static const uint16_t expert[] = {7, 0, 2};
    static const float weight[] = {0.3332572f, 0.2979919f, 0.3687509f};
    sy_gate_desc one = glm;

    (void)state;
    one.n_group = one.topk_group = one.group_best = 1;
    assert_choice(vector_logits, vector_bias, 8, 3, &glm, expert, weight);
    assert_choice(vector_logits, vector_bias, 8, 3, &one, expert, weight);
}

static void ernie_chooses_with_the_bias_and_divides_by_no_less_than_its_minimum(void **state)
{
    static const uint16_t expert[] = {4, 1, 7};
    static const float weight[] = {0.0420101f, 0.1141952f, 0.8437947f};
    /* The probabilities of the middle two are e^-28 = 6.9144e-13: below the minimum where one of
     * them is chosen, above it where both are. */
    static const float far[] = {28, 0, 0, -60}, bias[] = {0, 2, 0, 3};
    static const uint16_t far_expert[] = {3, 1};
    static const float far_weight[] = {0, 0.6914400f};

    (void)state;
    assert_choice(vector_logits, vector_bias, 8, 3, &ernie, expert, weight);
    assert_choice(far, bias, 4, 2, &ernie, far_expert, far_weight);
    assert_choice(far, (float[]){0, 2, 2, 0}, 4, 2, &ernie, (uint16_t[]){1, 2},
                  (float[]){0.5f, 0.5f});
}

static void an_epsilon_in_the_sum_makes_tiny_scores_tiny_weights(void **state)
{
    /* Two sigmoids of 8.7565e-27 against 1e-20. */
    static const float far[] = {-60, -60, -90};
    static const uint16_t expert[] = {0, 1};
    sy_gate_desc none = glm;
    const choice c = choose(far, NULL, 3, 2, &glm, sy_kernels_best());

    (void)state;
    assert_float_equal(c.weight[0], 8.756495e-7f, 1e-12f);
    assert_float_equal(c.weight[1], 8.756495e-7f, 1e-12f);
    none.norm_epsilon = 0;
    assert_choice(far, NULL, 3, 2, &none, expert, (float[]){0.5f, 0.5f});
}

static void sparse_mixer_weighs_each_expert_against_its_near_ties(void **state)
{
    static const float a[] = {2.0f, 1.99f, -1.0f, 0.5f};
    static const float b[] = {1.0f, 0.985f, 0.99f, -3.0f};
    static const float c[] = {-1.0f, -1.01f, -4.0f, -1.02f};
    /* Nothing near: both weigh 1, and the sum is 2. */
    static const float apart[] = {0.5f, 3.0f, -2.0f, 1.0f};
    /* Equals are near however strict the rule, at zero too, and are told apart by id. */
    static const float zero[] = {0, 0, -1, 0};
    sy_gate_desc strict = phi;

    (void)state;
    assert_choice(a, NULL, 4, 2, &phi, (uint16_t[]){0, 1}, (float[]){0.5025000f, 1.0f});
    assert_choice(b, NULL, 4, 2, &phi, (uint16_t[]){0, 2}, (float[]){0.3361162f, 0.5012500f});
    assert_choice(c, NULL, 4, 2, &phi, (uint16_t[]){0, 1}, (float[]){0.3366722f, 0.5025000f});
    assert_choice(apart, NULL, 4, 2, &phi, (uint16_t[]){1, 3}, (float[]){1, 1});
    assert_choice(apart, NULL, 4, 1, &phi, (uint16_t[]){1}, (float[]){1});
    assert_choice(zero, NULL, 4, 2, &phi, (uint16_t[]){0, 1}, (float[]){1.0f / 3, 0.5f});
    strict.sparse_epsilon = 0;
    assert_choice(a, NULL, 4, 2, &strict, (uint16_t[]){0, 1}, (float[]){1, 1});
    assert_choice(zero, NULL, 4, 2, &strict, (uint16_t[]){0, 1}, (float[]){1.0f / 3, 0.5f});
}

/* Other groups are at -inf and not at 0, which would beat every expert that remains. */
static void negative_choice_scores_do_not_let_other_groups_in(void **state)
{
    float bias[8];
    const choice plain = choose(vector_logits, vector_bias, 8, 4, &deepseek_v3, sy_kernels_best());
    choice low;

    (void)state;
    for (uint32_t e = 0; e < 8; e++) bias[e] = vector_bias[e] - 4;
    low = choose(vector_logits, bias, 8, 4, &deepseek_v3, sy_kernels_best());
    assert_memory_equal(low.expert, plain.expert, sizeof(low.expert));
    assert_memory_equal(low.weight, plain.weight, sizeof(low.weight));
}

static void equal_groups_and_experts_go_to_the_lower_id(void **state)
{
    static const float equal[8] = {0};
    /* Groups 1, 2 and 3 tie: by their maximum and by their sum. */
    static const float ties[8] = {0, 0, 2, 1, 1, 2, 2, 1};

    (void)state;
    assert_choice(equal, NULL, 8, 4, &deepseek_v2, (uint16_t[]){0, 1, 2, 3}, (float[]){2, 2, 2, 2});
    assert_choice(equal, NULL, 8, 3, &granite, (uint16_t[]){0, 1, 2},
                  (float[]){1.0f / 3, 1.0f / 3, 1.0f / 3});
    for (uint32_t group_best = 1; group_best <= 2; group_best++) {
        sy_gate_desc gate = deepseek_v3;
        choice c;

        gate.group_best = group_best;
        c = choose(ties, NULL, 8, 4, &gate, sy_kernels_best());
        assert_memory_equal(c.expert, ((uint16_t[]){2, 5, 3, 4}), 4 * sizeof(uint16_t));
    }
}

/* The groups of the definition, by looking for the largest again and again. c: choice scores. */
static void mask_groups(float *c, uint32_t E, const sy_gate_desc *gate)
{
    const uint32_t size = E / gate->n_group;
    float score[SY_GATE_GROUPS_MAX];
    int kept[SY_GATE_GROUPS_MAX] = {0};

    for (uint32_t g = 0; g < gate->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;

        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmaxf(second, fminf(first, c[e]));
            first = fmaxf(first, c[e]);
        }
        score[g] = gate->group_best == 2 ? first + second : first;
    }
    for (uint32_t n = 0; n < gate->topk_group; n++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t g = 0; g < gate->n_group; g++) {
            if (!kept[g] && (best == UINT32_MAX || score[g] > score[best])) best = g;
        }
        kept[best] = 1;
    }
    for (uint32_t e = 0; e < E; e++) {
        if (!kept[e / size]) c[e] = -INFINITY;
    }
}

typedef struct shape {
    uint32_t E, k, n_group, topk_group;
} shape;
/* Tiny ones, and DeepSeek-V2's and -V3's own. */
static const shape shapes[] = {{4, 1, 2, 1},  {8, 3, 4, 2},   {12, 4, 3, 1},
                               {60, 6, 6, 5}, {160, 6, 8, 3}, {256, 8, 8, 4}};

static sy_gate_desc with_shape(const sy_gate_desc *base, const shape *s, uint32_t round)
{
    sy_gate_desc gate = *base;

    gate.n_group = s->n_group;
    gate.topk_group = s->topk_group;
    gate.group_best = 1 + round % 2;
    return gate;
}

/* A third of the rounds have few distinct values, so that ties are common. */
static void fill(float *logits, float *bias, uint32_t E, uint32_t round, uint64_t *seed)
{
    for (uint32_t e = 0; e < E; e++) {
        logits[e] = 8 * sy_unit_float(sy_splitmix64((*seed)++)) - 4;
        bias[e] = 2 * sy_unit_float(sy_splitmix64((*seed)++)) - 1;
        if (round % 3 == 0) logits[e] = roundf(logits[e]), bias[e] = roundf(bias[e]);
    }
}

static void the_choice_is_the_definitions(void **state)
{
    static const sy_gate_desc *const bases[] = {&deepseek_v2, &deepseek_v3, &granite, &ernie};
    uint64_t seed = TEST_SEED;

    (void)state;
    for (uint32_t round = 0; round < 40 * SY_COUNT_OF(shapes); round++) {
        const shape *s = &shapes[round / 40];
        const sy_gate_desc gate = with_shape(bases[round % 4], s, round / 4);
        float logits[E_MAX], bias[E_MAX], c[E_MAX];
        float sum = 0;
        choice got;

        fill(logits, bias, s->E, round, &seed);
        got = choose(logits, bias, s->E, s->k, &gate, sy_kernels_best());
        for (uint32_t e = 0; e < s->E; e++) c[e] = got.score[e] + bias[e];
        mask_groups(c, s->E, &gate);
        for (uint32_t j = 0; j < s->k; j++) {
            uint32_t best = 0;

            for (uint32_t e = 1; e < s->E; e++) best = c[e] > c[best] ? e : best;
            if (got.expert[j] != best) {
                fail_msg("round %u, slot %u: want expert %u, got %u", round, j, best,
                         got.expert[j]);
            }
            c[best] = -INFINITY;
            sum += got.weight[j];
        }
        if (gate.renormalise || gate.score == SY_GATE_SOFTMAX_CHOSEN) {
            if (!(fabsf(sum / gate.scale - 1) <= 2e-6f)) {
                fail_msg("round %u: want a sum of %g, got %.8g", round, (double)gate.scale,
                         (double)sum);
            }
        } else {
            for (uint32_t j = 0; j < s->k; j++)
                assert_true(got.weight[j] == got.score[got.expert[j]] * gate.scale);
        }
    }
}

/* Groups that change places take their experts along. Sigmoids do not see each other: bits. */
static void groups_may_change_places(void **state)
{
    uint64_t seed = TEST_SEED + 1;

    (void)state;
    for (uint32_t round = 1; round < 40 * SY_COUNT_OF(shapes); round += 3) {
        const shape *s = &shapes[round / 40];
        const sy_gate_desc gate = with_shape(&deepseek_v3, s, round);
        const uint32_t size = s->E / s->n_group;
        const uint32_t shift = 1 + round % (s->n_group - 1);
        float logits[E_MAX], bias[E_MAX], moved_logits[E_MAX], moved_bias[E_MAX];
        choice here, there;

        fill(logits, bias, s->E, 1, &seed);
        for (uint32_t e = 0; e < s->E; e++) {
            const uint32_t to = (e + shift * size) % s->E;
            moved_logits[to] = logits[e];
            moved_bias[to] = bias[e];
        }
        here = choose(logits, bias, s->E, s->k, &gate, sy_kernels_best());
        there = choose(moved_logits, moved_bias, s->E, s->k, &gate, sy_kernels_best());
        assert_memory_equal(here.weight, there.weight, sizeof(here.weight));
        for (uint32_t j = 0; j < s->k; j++) {
            assert_int_equal((here.expert[j] + shift * size) % s->E, there.expert[j]);
        }
    }
}

/* Whatever the numbers are: distinct experts, of as many groups as the gate allows; and the same
 * bits from every kernel. */
static void no_number_breaks_the_limits(void **state)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0.0f, -0.0f, 1e-45f};
    static const sy_gate_desc *const bases[] = {&deepseek_v2, &deepseek_v3, &granite,
                                                &ernie,       &mixtral,     &phi};
    uint64_t seed = TEST_SEED + 2;

    (void)state;
    for (uint32_t round = 0; round < 120 * SY_COUNT_OF(shapes); round++) {
        const shape *s = &shapes[round / 120];
        const int sparse = bases[round % 6] == &phi;
        const sy_gate_desc gate = sparse ? phi : with_shape(bases[round % 6], s, round / 6);
        const uint32_t k = sparse ? SY_MIN(s->k, 2) : s->k;
        float logits[E_MAX], bias[E_MAX];
        choice first = {0};

        fill(logits, bias, s->E, round / 6, &seed);
        for (uint32_t e = 0; e < s->E; e++) {
            const uint64_t bits = sy_splitmix64(seed++);
            if (bits % 4 <= round / 6 % 4) logits[e] = odd[(bits >> 8) % SY_COUNT_OF(odd)];
            if (bits % 5 == 0) bias[e] = odd[(bits >> 16) % SY_COUNT_OF(odd)];
        }
        for (size_t i = 0; i < sy_kernels_count(); i++) {
            const choice c = choose(logits, sparse ? NULL : bias, s->E, k, &gate, sy_kernels_at(i));
            uint8_t seen[E_MAX] = {0};
            uint64_t groups = 0;

            for (uint32_t j = 0; j < k; j++) {
                assert_true(c.expert[j] < s->E);
                assert_false(seen[c.expert[j]]);
                seen[c.expert[j]] = 1;
                if (!sparse) groups |= UINT64_C(1) << c.expert[j] / (s->E / s->n_group);
            }
            if ((uint32_t)__builtin_popcountll(groups) > s->topk_group) {
                fail_msg("round %u: want %u groups at most, got %#llx", round, s->topk_group,
                         (unsigned long long)groups);
            }
            if (i == 0) first = c;
            assert_memory_equal(c.expert, first.expert, sizeof(c.expert));
        }
    }
}

static void nan_logits_show_in_the_weights(void **state)
{
    static const float row[] = {1, NAN, 0.999f, -3};

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const choice c = choose(row, NULL, 4, 2, &phi, sy_kernels_at(i));
        assert_memory_equal(c.expert, ((uint16_t[]){0, 2}), 2 * sizeof(uint16_t));
        assert_true(isnan(c.weight[0]) && isnan(c.weight[1]));
    }
}

static void assert_refused(sy_gate_desc gate, uint32_t E, uint32_t k, const char *text)
{
    sy_error err = {0};
    const sy_status st = sy_gate_check(&gate, E, k, &err);

    if (st != SY_EINVAL || strstr(err.message, text) == NULL) {
        fail_msg("want \"%s\", got %s, \"%s\"", text, sy_status_name(st), err.message);
    }
    assert_int_equal(sy_gate_check(&gate, E, k, NULL), SY_EINVAL);
}

/* A gate like v3's with other groups. */
static sy_gate_desc grouped(uint32_t n_group, uint32_t topk_group, uint32_t group_best)
{
    sy_gate_desc gate = deepseek_v3;

    gate.n_group = n_group;
    gate.topk_group = topk_group;
    gate.group_best = group_best;
    return gate;
}

static void every_familys_description_is_accepted(void **state)
{
    sy_error err = {0};

    (void)state;
    assert_int_equal(sy_gate_check(&mixtral, 8, 2, &err), SY_OK);
    assert_int_equal(sy_gate_check(&olmoe, 64, 8, &err), SY_OK);
    assert_int_equal(sy_gate_check(&granite, 40, 8, &err), SY_OK);
    assert_int_equal(sy_gate_check(&phi, 16, 2, &err), SY_OK);
    assert_int_equal(sy_gate_check(&ernie, 64, 6, &err), SY_OK);
    assert_int_equal(sy_gate_check(&glm, 160, 8, &err), SY_OK);
    assert_int_equal(sy_gate_check(&mixtral, SY_EXPERTS_MAX, SY_EXPERTS_MAX, &err), SY_OK);
    assert_int_equal(
        sy_gate_check(&(sy_gate_desc){.scale = 16, .n_group = 8, .topk_group = 3, .group_best = 1},
                      160, 6, &err),
        SY_OK);
    /* DeepSeek-V3, Kimi-K2, and the edges of what is allowed. */
    assert_int_equal(sy_gate_check(&(sy_gate_desc){.scale = FLT_MIN}, 1, 1, &err), SY_OK);
    static const uint32_t good[][5] = {{256, 8, 8, 4, 2}, {384, 8, 1, 1, 2}, {64, 1, 64, 1, 1},
                                       {8, 4, 4, 2, 2},   {8, 8, 2, 2, 2},   {1, 1, 1, 1, 1}};
    for (size_t i = 0; i < SY_COUNT_OF(good); i++) {
        const sy_gate_desc gate = grouped(good[i][2], good[i][3], good[i][4]);
        if (sy_gate_check(&gate, good[i][0], good[i][1], &err) != SY_OK)
            fail_msg("case %zu: %s", i, err.message);
    }
}

static void a_description_that_makes_no_sense_is_refused(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1e-20f};

    (void)state;
    assert_refused(mixtral, 0, 0, "cannot route to 0 of 0 experts");
    assert_refused(mixtral, 8, 0, "cannot route to 0 of 8 experts");
    assert_refused(mixtral, 8, 9, "cannot route to 9 of 8 experts");
    assert_refused(mixtral, SY_EXPERTS_MAX + 1, 2, "cannot route to 2 of 4097 experts");
    assert_refused((sy_gate_desc){.score = (sy_gate_score)7, .scale = 1}, 8, 2, "of kind 7");
    assert_refused((sy_gate_desc){.score = SY_GATE_SOFTMAX}, 8, 2, "scales weights by 0");
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        assert_refused((sy_gate_desc){.scale = bad[i]}, 8, 2, "scales weights by");
        assert_refused((sy_gate_desc){.scale = 1, .norm_epsilon = bad[i]}, 8, 2, "divides by");
        assert_refused((sy_gate_desc){.scale = 1, .norm_min = bad[i]}, 8, 2, "divides by");
        assert_refused((sy_gate_desc){.scale = 1, .sparse_epsilon = bad[i]}, 8, 2, "near-ties");
    }
    assert_refused(grouped(3, 2, 2), 8, 3, "8 experts do not come in 3 groups");
    assert_refused(grouped(16, 2, 1), 8, 1, "8 experts do not come in 16 groups");
    assert_refused(grouped(128, 64, 2), 256, 8, "at most 64");
    assert_refused(grouped(4, 0, 2), 8, 3, "topk_group is 0: it must be 1 to n_group, 4");
    assert_refused(grouped(4, 5, 2), 8, 3, "topk_group is 5: it must be 1 to n_group, 4");
    assert_refused(grouped(4, UINT32_MAX, 2), 8, 3, "it must be 1 to n_group, 4");
    assert_refused(grouped(0, 2, 2), 8, 3, "topk_group is 2, but n_group is missing");
    assert_refused(grouped(4, 2, 2), 8, 5, "2 groups of 2 experts are fewer than the 5");
    assert_refused(grouped(4, 2, 0), 8, 3, "the sum of 0");
    assert_refused(grouped(2, 1, 3), 8, 3, "the sum of 3");
    assert_refused(grouped(8, 4, 2), 8, 3, "the sum of 2: it must be 1 to 2, and a group has 1");
    assert_refused(phi, 16, 3, "SparseMixer");
    assert_refused((sy_gate_desc){.score = SY_GATE_SPARSEMIXER,
                                  .scale = 1,
                                  .n_group = 2,
                                  .topk_group = 1,
                                  .group_best = 1},
                   16, 2, "SparseMixer");
}

static void a_router_does_not_open_with_a_bad_gate(void **state)
{
    sy_error err = {0};
    sy_router *router = (sy_router *)&err; /* must be overwritten */
    sy_model *model;
    sy_model_desc *desc;

    (void)state;
    if (sy_model_open(&model, TRIO, NULL, &err) != SY_OK) fail_msg("%s", err.message);
    /* No family of today has groups; its description, which is the model's own memory, gets some.
     */
    desc = (sy_model_desc *)(uintptr_t)sy_model_describe(model);
    desc->gate.n_group = desc->n_experts + 1;
    assert_int_equal(sy_router_open(&router, model, sy_kernels_best(), &err), SY_EINVAL);
    assert_null(router);
    if (strstr(err.message, "trio") == NULL || strstr(err.message, "n_group") == NULL)
        fail_msg("want the model and n_group named, got \"%s\"", err.message);
    sy_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtral_and_olmoe_choose_by_softmax),
        cmocka_unit_test(granite_and_gpt_oss_weigh_the_chosen_alone),
        cmocka_unit_test(deepseek_v2_chooses_within_the_groups_of_the_best_experts),
        cmocka_unit_test(deepseek_v3_chooses_with_the_bias_and_weighs_without),
        cmocka_unit_test(groups_come_in_the_order_of_their_scores),
        cmocka_unit_test(one_group_is_no_limit),
        cmocka_unit_test(ernie_chooses_with_the_bias_and_divides_by_no_less_than_its_minimum),
        cmocka_unit_test(an_epsilon_in_the_sum_makes_tiny_scores_tiny_weights),
        cmocka_unit_test(sparse_mixer_weighs_each_expert_against_its_near_ties),
        cmocka_unit_test(negative_choice_scores_do_not_let_other_groups_in),
        cmocka_unit_test(equal_groups_and_experts_go_to_the_lower_id),
        cmocka_unit_test(the_choice_is_the_definitions),
        cmocka_unit_test(groups_may_change_places),
        cmocka_unit_test(no_number_breaks_the_limits),
        cmocka_unit_test(nan_logits_show_in_the_weights),
        cmocka_unit_test(every_familys_description_is_accepted),
        cmocka_unit_test(a_description_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_router_does_not_open_with_a_bad_gate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
