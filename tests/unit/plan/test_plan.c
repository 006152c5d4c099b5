/* test_plan.c - plans are right for every shape, the same for the same input, and refuse what they
 * cannot hold. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_plan.h"

#define EMPTY SY_PLAN_EMPTY_SLOT

typedef struct choice {
    uint32_t n_tokens, top_k, n_experts;
    uint16_t *expert;
    float *weight;
} choice;

/* The weight names its origin, so a misplaced row shows by value. */
static float weight_of(uint32_t t, uint32_t k)
{
    return (float)(t * 64 + k + 1);
}

/* Distinct random experts for each token; about one slot in empty_every is empty (0: none). */
static choice choice_random(uint32_t T, uint32_t K, uint32_t E, uint32_t empty_every, uint64_t seed)
{
    choice c = {.n_tokens = T, .top_k = K, .n_experts = E};
    uint64_t counter = seed << 32;

    c.expert = calloc((size_t)T * K + 1, sizeof(*c.expert));
    c.weight = calloc((size_t)T * K + 1, sizeof(*c.weight));
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t k = 0; k < K; k++) {
            uint16_t *row = c.expert + (size_t)t * K;
            uint32_t j = 0;

            c.weight[(size_t)t * K + k] = weight_of(t, k);
            row[k] = EMPTY;
            if (empty_every > 0 && sy_splitmix64(counter++) % empty_every == 0) continue;
            while (j < k || row[k] == EMPTY) {
                if (row[k] == EMPTY || row[j] == row[k]) {
                    row[k] = (uint16_t)(sy_splitmix64(counter++) % E);
                    j = 0;
                    continue;
                }
                j++;
            }
        }
    }
    return c;
}

static void choice_free(choice *c)
{
    free(c->expert);
    free(c->weight);
}

static void build(sy_plan *plan, const choice *c)
{
    sy_error err = {0};

    if (sy_plan_build(plan, c->expert, c->weight, c->n_tokens, c->top_k, c->n_experts, &err) !=
        SY_OK) {
        fail_msg("T=%u K=%u E=%u: %s", c->n_tokens, c->top_k, c->n_experts, err.message);
    }
}

/* The plan against the input, by the definition: rows are what a scan over experts, then tokens,
 * finds. */
static void assert_plan_is(const sy_plan *plan, const choice *c)
{
    sy_error err = {0};
    uint32_t row = 0;

    if (sy_plan_check(plan, &err) != SY_OK) {
        fail_msg("T=%u K=%u E=%u: %s", c->n_tokens, c->top_k, c->n_experts, err.message);
    }
    for (uint32_t e = 0; e < c->n_experts; e++) {
        assert_int_equal(plan->group[e], row);
        for (size_t slot = 0; slot < (size_t)c->n_tokens * c->top_k; slot++) {
            if (c->expert[slot] != e) continue;
            const uint32_t t = (uint32_t)(slot / c->top_k);
            size_t n_found = 0;

            assert_int_equal(plan->row_token[row], t);
            assert_memory_equal(&plan->row_weight[row], &c->weight[slot], sizeof(float));
            for (uint32_t k = 0; k < c->top_k; k++)
                n_found += plan->token_row[(size_t)t * c->top_k + k] == row;
            assert_int_equal(n_found, 1);
            row++;
        }
    }
    assert_int_equal(plan->n_rows, row);
    assert_int_equal(plan->group[c->n_experts], row);
}

static void plans_of_every_shape_are_right(void **state)
{
    static const uint32_t tokens[] = {0, 1, 2, 7, 64, 257};
    static const uint32_t shapes[][2] = {{1, 1},  {1, 2},  {2, 2},   {2, 7},
                                         {3, 17}, {8, 64}, {6, 100}, {8, 8}};
    static const uint32_t empties[] = {0, 2, 5};
    sy_plan plan;
    uint64_t seed = 1;

    (void)state;
    sy_plan_init(&plan);
    for (size_t s = 0; s < SY_COUNT_OF(shapes); s++) {
        for (size_t i = 0; i < SY_COUNT_OF(tokens); i++) {
            for (size_t j = 0; j < SY_COUNT_OF(empties); j++) {
                choice c = choice_random(tokens[i], shapes[s][0], shapes[s][1], empties[j], seed++);
                build(&plan, &c);
                assert_plan_is(&plan, &c);
                choice_free(&c);
            }
        }
    }
    sy_plan_free(&plan);
}

static void no_tokens_no_slots_or_no_experts_give_an_empty_plan(void **state)
{
    const uint16_t empty[2] = {EMPTY, EMPTY};
    const float nan_weight[2] = {NAN, NAN};
    sy_plan plan;

    (void)state;
    sy_plan_init(&plan);
    assert_int_equal(sy_plan_check(&plan, NULL), SY_OK);
    assert_int_equal(sy_plan_build(&plan, NULL, NULL, 0, 2, 8, NULL), SY_OK);
    assert_int_equal(plan.n_rows, 0);
    assert_int_equal(plan.group[8], 0);
    assert_int_equal(sy_plan_build(&plan, NULL, NULL, 5, 0, 8, NULL), SY_OK);
    assert_int_equal(plan.n_rows, 0);
    /* The weight of an empty slot means nothing. */
    assert_int_equal(sy_plan_build(&plan, empty, nan_weight, 1, 2, 0, NULL), SY_OK);
    assert_int_equal(plan.n_rows, 0);
    assert_int_equal(plan.token_row[0], UINT32_MAX);
    assert_int_equal(plan.token_row[1], UINT32_MAX);
    assert_int_equal(sy_plan_check(&plan, NULL), SY_OK);
    sy_plan_free(&plan);
}

static void one_hot_expert_gets_every_token_in_order(void **state)
{
    choice c = choice_random(1000, 1, 1, 0, 3);
    sy_plan plan;

    (void)state;
    c.n_experts = 33;
    for (uint32_t t = 0; t < c.n_tokens; t++) c.expert[t] = 32;
    sy_plan_init(&plan);
    build(&plan, &c);
    assert_plan_is(&plan, &c);
    assert_int_equal(plan.n_groups, 1);
    assert_int_equal(plan.active[0], 32);
    assert_int_equal(plan.group[32], 0);
    for (uint32_t t = 0; t < c.n_tokens; t++) assert_int_equal(plan.row_token[t], t);
    sy_plan_free(&plan);
    choice_free(&c);
}

static void a_token_lists_its_rows_in_ascending_expert_whatever_the_slots_say(void **state)
{
    static const uint16_t expert[] = {5, EMPTY, 2, EMPTY, 9, 0};
    static const float weight[] = {0.5f, 0, 0.25f, 0, 0.125f, 1.0f};
    static const uint32_t want[] = {1, 2, UINT32_MAX, 0, 3, UINT32_MAX};
    static const float want_weight[] = {1.0f, 0.25f, 0.5f, 0.125f};
    sy_plan plan;

    (void)state;
    sy_plan_init(&plan);
    assert_int_equal(sy_plan_build(&plan, expert, weight, 2, 3, 10, NULL), SY_OK);
    assert_int_equal(plan.n_rows, 4);
    assert_memory_equal(plan.token_row, want, sizeof(want));
    assert_memory_equal(plan.row_weight, want_weight, sizeof(want_weight));
    sy_plan_free(&plan);
}

static void the_same_input_gives_the_same_bytes(void **state)
{
    choice c = choice_random(123, 4, 31, 6, 9);
    choice other = choice_random(999, 8, 40, 0, 10);
    sy_plan fresh, used;
    size_t n;

    (void)state;
    sy_plan_init(&fresh);
    sy_plan_init(&used);
    build(&fresh, &c);
    build(&used, &other); /* leaves other numbers in the storage */
    build(&used, &c);
    n = fresh.n_rows;
    assert_int_equal(used.n_rows, n);
    assert_int_equal(used.n_groups, fresh.n_groups);
    assert_memory_equal(used.group, fresh.group, 32 * sizeof(uint32_t));
    assert_memory_equal(used.active, fresh.active, fresh.n_groups * sizeof(uint32_t));
    assert_memory_equal(used.row_token, fresh.row_token, n * sizeof(uint32_t));
    assert_memory_equal(used.row_weight, fresh.row_weight, n * sizeof(float));
    assert_memory_equal(used.token_row, fresh.token_row, 123 * 4 * sizeof(uint32_t));
    sy_plan_free(&fresh);
    sy_plan_free(&used);
    choice_free(&c);
    choice_free(&other);
}

static void assert_refused(const choice *c, sy_status want, const char *text)
{
    sy_error err = {0};
    sy_plan plan;
    sy_status st;

    sy_plan_init(&plan);
    st = sy_plan_build(&plan, c->expert, c->weight, c->n_tokens, c->top_k, c->n_experts, &err);
    if (st != want || strstr(err.message, text) == NULL) {
        fail_msg("want %s with \"%s\", got %s with \"%s\"", sy_status_name(want), text,
                 sy_status_name(st), err.message);
    }
    assert_int_equal(plan.n_rows, 0);
    assert_int_equal(sy_plan_check(&plan, NULL), SY_OK);
    sy_plan_free(&plan);
}

static void bad_input_is_refused_and_leaves_an_empty_plan(void **state)
{
    choice c = choice_random(10, 3, 12, 0, 4);
    const uint16_t saved = c.expert[16];

    (void)state;
    c.expert[16] = 12;
    assert_refused(&c, SY_EINVAL, "token 5, slot 1: there is no expert 12, the layer has 12");
    c.expert[16] = 0xFFFE;
    assert_refused(&c, SY_EINVAL, "no expert 65534");
    c.expert[16] = c.expert[15];
    assert_refused(&c, SY_EINVAL, "token 5, slot 1: expert");
    c.expert[16] = saved;
    c.weight[16] = NAN;
    assert_refused(&c, SY_EINVAL, "not finite");
    c.weight[16] = -INFINITY;
    assert_refused(&c, SY_EINVAL, "not finite");
    choice_free(&c);
    assert_refused(&(choice){.n_tokens = 1u << 21, .top_k = 9, .n_experts = 16}, SY_ELIMIT,
                   "fewer");
    assert_refused(&(choice){.n_tokens = UINT32_MAX, .top_k = UINT32_MAX}, SY_ELIMIT, "fewer");
    assert_refused(&(choice){.n_tokens = UINT32_MAX, .top_k = 0}, SY_ELIMIT, "fewer");
    assert_refused(&(choice){.n_experts = 0x10000}, SY_ELIMIT, "65536 experts");
}

static void a_plan_is_usable_after_a_refusal(void **state)
{
    choice c = choice_random(10, 3, 12, 0, 4);
    const uint16_t bad[1] = {7};
    const float one[1] = {1};
    sy_plan plan;

    (void)state;
    sy_plan_init(&plan);
    build(&plan, &c);
    assert_int_equal(sy_plan_build(&plan, bad, one, 1, 1, 7, NULL), SY_EINVAL);
    assert_int_equal(plan.n_rows, 0);
    assert_int_equal(sy_plan_check(&plan, NULL), SY_OK);
    build(&plan, &c);
    assert_plan_is(&plan, &c);
    sy_plan_free(&plan);
    choice_free(&c);
}

static void nothing_is_allocated_once_the_largest_shape_was_seen(void **state)
{
    /* Together these have the largest T, T*K and E of all that follow, but no single one has. */
    static const uint32_t warm[][3] = {{300, 1, 4}, {40, 16, 16}, {1, 1, 200}};
    const uint32_t *storage;
    sy_plan plan;

    (void)state;
    sy_plan_init(&plan);
    for (size_t i = 0; i < SY_COUNT_OF(warm); i++) {
        choice c = choice_random(warm[i][0], warm[i][1], warm[i][2], 0, i);
        build(&plan, &c);
        choice_free(&c);
    }
    storage = plan.storage;
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t K = 1 + i % 16;
        const uint32_t T = SY_MIN(i * 7 % 301, 640 / K);
        choice c = choice_random(T, K, 16 + i % 185, i % 3, i);
        build(&plan, &c);
        assert_plan_is(&plan, &c);
        assert_ptr_equal(plan.storage, storage);
        choice_free(&c);
    }
    sy_plan_free(&plan);
    assert_null(plan.storage);
    sy_plan_free(&plan); /* once more does no harm */
}

/* Breaks one word of a good plan at a time; the check must see each. */
static void the_check_finds_every_broken_invariant(void **state)
{
    choice c = choice_random(20, 3, 9, 4, 11);
    sy_error err = {0};
    sy_plan plan;

    (void)state;
    sy_plan_init(&plan);
    build(&plan, &c);
#define ASSERT_SEEN(lvalue, value)                           \
    do {                                                     \
        const uint32_t kept = (lvalue);                      \
        (lvalue) = (value);                                  \
        if (sy_plan_check(&plan, &err) != SY_EINTERNAL)      \
            fail_msg("unseen: %s = %s", #lvalue, #value);    \
        assert_true(err.message[0] != '\0');                 \
        (lvalue) = kept;                                     \
        assert_int_equal(sy_plan_check(&plan, NULL), SY_OK); \
    } while (0)
    ASSERT_SEEN(plan.group[0], 1);
    ASSERT_SEEN(plan.group[3], plan.n_rows + 1);
    ASSERT_SEEN(plan.group[3], plan.group[4] + 1);
    ASSERT_SEEN(plan.group[3], plan.group[3] + 1);
    ASSERT_SEEN(plan.group[9], plan.n_rows - 1);
    ASSERT_SEEN(plan.active[1], plan.active[0]);
    ASSERT_SEEN(plan.n_groups, plan.n_groups - 1);
    ASSERT_SEEN(plan.n_rows, plan.n_rows - 1);
    ASSERT_SEEN(plan.n_rows, 61);
    ASSERT_SEEN(plan.row_token[0], 20);
    ASSERT_SEEN(plan.row_token[1], plan.row_token[0]);
    ASSERT_SEEN(plan.token_row[0], plan.n_rows);
    ASSERT_SEEN(plan.token_row[0], UINT32_MAX);
    ASSERT_SEEN(plan.token_row[1], plan.token_row[0]);
#undef ASSERT_SEEN
    plan.row_weight[2] = NAN;
    assert_int_equal(sy_plan_check(&plan, NULL), SY_EINTERNAL);
    sy_plan_free(&plan);
    choice_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_every_shape_are_right),
        cmocka_unit_test(no_tokens_no_slots_or_no_experts_give_an_empty_plan),
        cmocka_unit_test(one_hot_expert_gets_every_token_in_order),
        cmocka_unit_test(a_token_lists_its_rows_in_ascending_expert_whatever_the_slots_say),
        cmocka_unit_test(the_same_input_gives_the_same_bytes),
        cmocka_unit_test(bad_input_is_refused_and_leaves_an_empty_plan),
        cmocka_unit_test(a_plan_is_usable_after_a_refusal),
        cmocka_unit_test(nothing_is_allocated_once_the_largest_shape_was_seen),
        cmocka_unit_test(the_check_finds_every_broken_invariant),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
