/* test_shard_combine.c - the sum of a token's rows has one value, whenever and in whatever order
 * the rows arrive. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_shard.h"

enum { E = 24, K = 6 };

static uint64_t seed;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

/* Of very different sizes, so that another order gives other bits. */
static float draw_float(void)
{
    return ((float)draw(1 << 20) - (float)(1 << 19)) * (draw(3) == 0 ? 1e4f : 1e-3f);
}

typedef struct combination {
    uint32_t T, H;
    sy_plan plan;
    float *row;          /* [R,H] */
    const float **there; /* [R] */
    float *want, *y;     /* [T,H] */
    uint8_t *skip;       /* [T] */
    uint32_t *done;      /* [T] */
} combination;

static void make(combination *c, uint32_t T, uint32_t H)
{
    uint16_t *expert = malloc(T * K * sizeof(*expert));
    float *weight = malloc(T * K * sizeof(*weight));
    sy_error err = {0};

    *c = (combination){.T = T, .H = H};
    for (uint32_t t = 0; t < T; t++) {
        const uint32_t filled = draw(8) == 0 ? draw(K + 1) : K;
        for (uint32_t k = 0; k < K; k++) {
            /* A stride prime to E: no expert twice in a token. */
            expert[t * K + k] =
                (uint16_t)(k < filled ? (t * 5 + k * 7 + seed % 3) % E : SY_PLAN_EMPTY_SLOT);
            weight[t * K + k] = k < filled ? (float)draw(1000) * 1e-3f : 0.0f;
        }
    }
    sy_plan_init(&c->plan);
    assert_int_equal(sy_plan_build(&c->plan, expert, weight, T, K, E, &err), SY_OK);
    c->row = malloc((c->plan.n_rows + 1) * H * sizeof(float));
    c->there = calloc(c->plan.n_rows + 1, sizeof(*c->there));
    c->want = malloc(T * H * sizeof(float));
    c->y = malloc(T * H * sizeof(float));
    c->skip = calloc(T, 1);
    c->done = calloc(T, sizeof(*c->done));
    for (size_t i = 0; i < (size_t)c->plan.n_rows * H; i++) c->row[i] = draw_float();
    memset(c->want, 0x5a, T * H * sizeof(float));
    memset(c->y, 0x5a, T * H * sizeof(float));
    for (uint32_t t = 0; t < T; t++) c->skip[t] = draw(10) == 0;
    free(expert);
    free(weight);
}

static void destroy(combination *c)
{
    sy_plan_free(&c->plan);
    free(c->row);
    free(c->there);
    free(c->want);
    free(c->y);
    free(c->skip);
    free(c->done);
}

/* The definition, element by element. */
static void sum_by_definition(combination *c)
{
    for (uint32_t t = 0; t < c->T; t++)
        for (uint32_t i = 0; i < c->H && !c->skip[t]; i++) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < K && c->plan.token_row[t * K + k] != UINT32_MAX; k++) {
                const uint32_t r = c->plan.token_row[t * K + k];
                sum = fmaf(c->plan.row_weight[r], c->row[(size_t)r * c->H + i], sum);
            }
            c->want[(size_t)t * c->H + i] = sum;
        }
}

static void combine(combination *c, uint32_t *done, sy_pool *pool)
{
    sy_shard_combine(c->y, &c->plan, c->there, c->H, c->skip, done, pool, sy_kernels_best());
}

static void expect_wanted(const combination *c, uint64_t first_seed)
{
    for (size_t i = 0; i < (size_t)c->T * c->H; i++)
        if (memcmp(&c->y[i], &c->want[i], sizeof(float)) != 0)
            fail_msg("token %zu, element %zu: %.9g, not %.9g (seed %llu)", i / c->H, i % c->H,
                     (double)c->y[i], (double)c->want[i], (unsigned long long)first_seed);
}

static void arrive(combination *c, uint32_t r)
{
    c->there[r] = c->row + (size_t)r * c->H;
}

/* Rows in random order, a random number of them between two calls. */
static void arrive_in_random_order(combination *c, sy_pool *pool)
{
    const uint32_t R = c->plan.n_rows, burst = 1 + draw(R + 1);
    uint32_t *order = malloc((R + 1) * sizeof(*order));

    for (uint32_t i = 0; i < R; i++) {
        const uint32_t j = draw(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < R; i++) {
        arrive(c, order[i]);
        if (draw(burst) == 0) combine(c, c->done, pool);
    }
    combine(c, c->done, pool);
    free(order);
}

static void sums_of_rows_in_any_order_of_arrival_have_the_bits_of_the_definition(void **state)
{
    combination c;

    (void)state;
    for (uint64_t round = 1; round <= 200; round++) {
        seed = round;
        make(&c, 1 + draw(20), 1 + draw(70));
        sum_by_definition(&c);
        arrive_in_random_order(&c, NULL);
        expect_wanted(&c, round);
        combine(&c, c.done, NULL); /* nothing is left to add */
        expect_wanted(&c, round);
        memset(c.y, 0x5a, c.T * c.H * sizeof(float));
        combine(&c, NULL, NULL); /* at once */
        expect_wanted(&c, round);
        destroy(&c);
    }
}

/* What a degraded answer does: a row leaves a token's list, the weights of the others change. */
static void lose_last_row(combination *c, uint32_t t)
{
    uint32_t *list = c->plan.token_row + t * K, n = 0;

    while (n < K && list[n] != UINT32_MAX) c->plan.row_weight[list[n++]] *= 1.25f;
    if (n > 0) list[n - 1] = UINT32_MAX;
    c->done[t] = 0;
}

static void a_token_whose_weights_change_starts_again_and_others_go_on(void **state)
{
    combination c;

    (void)state;
    for (uint64_t round = 1; round <= 50; round++) {
        seed = 1000 + round;
        make(&c, 12, 33);
        for (uint32_t r = 0; r < c.plan.n_rows; r++)
            if (draw(3) > 0) arrive(&c, r);
        combine(&c, c.done, NULL);
        for (uint32_t t = 0; t < c.T; t += 3) lose_last_row(&c, t);
        sum_by_definition(&c);
        for (uint32_t r = 0; r < c.plan.n_rows; r++) arrive(&c, r);
        combine(&c, c.done, NULL);
        expect_wanted(&c, seed);
        destroy(&c);
    }
}

static void a_large_sum_over_a_pool_has_the_same_bits(void **state)
{
    sy_pool *pool = NULL;
    combination c;

    (void)state;
    assert_int_equal(sy_pool_open(&pool, 3, "test"), SY_OK);
    seed = 77;
    make(&c, 203, 512); /* past a megabyte of rows, in a number of tasks that is not whole */
    sum_by_definition(&c);
    arrive_in_random_order(&c, pool);
    expect_wanted(&c, 77);
    memset(c.y, 0x5a, c.T * c.H * sizeof(float));
    combine(&c, NULL, pool);
    expect_wanted(&c, 77);
    destroy(&c);
    sy_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_rows_in_any_order_of_arrival_have_the_bits_of_the_definition),
        cmocka_unit_test(a_token_whose_weights_change_starts_again_and_others_go_on),
        cmocka_unit_test(a_large_sum_over_a_pool_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
