/* test_sampler.c - tokens are drawn from the distribution that the options describe, each filter
 * keeps what a plain sort would keep, and the same seed and position give the same token. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_hash.h"
#include "sy_sampler.h"

#define LARGE_VOCAB 151936u
#define PLAIN                                                             \
    {                                                                     \
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 42 \
    }

static void *scratch_for(uint32_t vocab)
{
    void *scratch = aligned_alloc(64, sy_sampler_scratch(vocab));

    assert_non_null(scratch);
    return scratch;
}

/* Roughly normal, like logits; the seed tells rows apart. */
static float *random_logits(uint32_t vocab, float spread, uint64_t seed)
{
    float *x = malloc(vocab * sizeof(*x));

    for (uint32_t i = 0; i < vocab; i++) {
        float sum = 0;
        for (uint64_t j = 0; j < 6; j++)
            sum += sy_unit_float(sy_splitmix64((seed << 40) + (uint64_t)i * 6 + j)) - 0.5f;
        x[i] = sum * spread;
    }
    return x;
}

static sy_status sample_with(uint32_t *token, const float *logits, uint32_t vocab,
                             const sy_sampler *s, uint64_t position, const sy_kernels *kernels)
{
    void *scratch = scratch_for(vocab);
    const sy_status st = sy_sample(token, logits, vocab, s, NULL, 0, position, scratch, kernels);

    free(scratch);
    return st;
}

static uint32_t sample_at(const float *logits, uint32_t vocab, const sy_sampler *s,
                          uint64_t position)
{
    uint32_t token = UINT32_MAX;

    assert_int_equal(sample_with(&token, logits, vocab, s, position, sy_kernels_best()), SY_OK);
    assert_in_range(token, 0, vocab - 1);
    return token;
}

/* The reference: sort everything, then do each step as it is defined, in double. */
static const double *order_by;
static int by_score_then_id(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

    if (order_by[i] != order_by[j]) return order_by[i] > order_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* p: [vocab], the probability of each token, zero for those that a filter removes. */
static void reference(double *p, const float *logits, uint32_t vocab, const sy_sampler *s)
{
    uint32_t *order = malloc(vocab * sizeof(*order));
    double *score = malloc(vocab * sizeof(*score));
    uint32_t n = vocab;
    double sum = 0, cumulative = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        order[i] = i;
        score[i] = (double)logits[i] / (double)s->temperature;
    }
    order_by = score;
    qsort(order, vocab, sizeof(*order), by_score_then_id);
    for (uint32_t i = 0; i < vocab; i++) p[i] = 0;
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    for (uint32_t i = 0; i < n; i++) sum += exp(score[order[i]] - score[order[0]]);
    for (uint32_t i = 0; i < n && s->top_p < 1; i++) {
        cumulative += exp(score[order[i]] - score[order[0]]) / sum;
        if (cumulative >= (double)s->top_p) n = i + 1;
    }
    while (n > 1 && exp(score[order[n - 1]] - score[order[0]]) < (double)s->min_p) n--;
    sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp(score[order[i]] - score[order[0]]);
    for (uint32_t i = 0; i < n; i++) p[order[i]] = exp(score[order[i]] - score[order[0]]) / sum;
    free(order);
    free(score);
}

/* Draws n_draws tokens and tests their counts against p: nothing that has no probability, and a
 * chi-square statistic within five standard deviations. Rare tokens share a bin. */
static void assert_distribution(const float *logits, uint32_t vocab, const sy_sampler *s,
                                uint32_t n_draws)
{
    double *p = malloc(vocab * sizeof(*p));
    uint32_t *count = calloc(vocab, sizeof(*count));
    double chi2 = 0, rare_p = 0, rare_count = 0;
    uint32_t df = 0;

    reference(p, logits, vocab, s);
    for (uint32_t i = 0; i < n_draws; i++) count[sample_at(logits, vocab, s, i)]++;
    for (uint32_t i = 0; i < vocab; i++) {
        const double want = p[i] * n_draws;

        if (p[i] == 0 && count[i] > 0) {
            fail_msg("token %u of %u came %u times, but T=%g k=%u p=%g m=%g remove it", i, vocab,
                     count[i], (double)s->temperature, s->top_k, (double)s->top_p,
                     (double)s->min_p);
        }
        if (want < 10) {
            rare_p += want;
            rare_count += count[i];
            continue;
        }
        chi2 += (count[i] - want) * (count[i] - want) / want;
        df++;
    }
    if (rare_p > 1) chi2 += (rare_count - rare_p) * (rare_count - rare_p) / rare_p;
    if (!(chi2 <= df + 5 * sqrt(2.0 * df + 2) + 5)) {
        fail_msg("chi-square %g for %u degrees: T=%g k=%u p=%g m=%g", chi2, df,
                 (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p);
    }
    free(p);
    free(count);
}

static void each_filter_draws_what_a_full_sort_would(void **state)
{
    static const sy_sampler options[] = {
        {1, 0, 1, 0, 1, 1},           {0.7f, 0, 1, 0, 1, 2},      {2.5f, 0, 1, 0, 1, 3},
        {1, 5, 1, 0, 1, 4},           {1, 20, 1, 0, 1, 5},        {1, 100000, 1, 0, 1, 6},
        {1, 0, 0.9f, 0, 1, 7},        {1, 0, 0.5f, 0, 1, 8},      {1.5f, 0, 0.99f, 0, 1, 9},
        {1, 0, 0, 0, 1, 10},          {1, 0, 1, 0.1f, 1, 11},     {1, 0, 1, 0.5f, 1, 12},
        {1.3f, 0, 1, 1, 1, 13},       {1.2f, 12, 0.8f, 0, 1, 14}, {1.2f, 30, 0.95f, 0.2f, 1, 15},
        {1, 0, 0.9999f, 0, 1, 16},    {2, 0, 0.7f, 0.3f, 1, 17},  {1, 150, 0.9f, 0.01f, 1, 18},
        {1, 0, FLT_EPSILON, 0, 1, 19}};
    static const uint32_t vocabs[] = {1, 2, 37, 64, 65, 200, 1000};

    (void)state;
    for (size_t v = 0; v < SY_COUNT_OF(vocabs); v++) {
        float *logits = random_logits(vocabs[v], 3.0f, v + 1);
        for (size_t i = 0; i < SY_COUNT_OF(options); i++)
            assert_distribution(logits, vocabs[v], &options[i], 2000);
        free(logits);
    }
}

static void a_long_run_has_the_right_shape(void **state)
{
    const sy_sampler plain = PLAIN;
    const sy_sampler nucleus = {0.8f, 40, 0.95f, 0.02f, 1, 7};
    float *logits = random_logits(90, 3.0f, 99);

    (void)state;
    assert_distribution(logits, 90, &plain, 40000);
    assert_distribution(logits, 90, &nucleus, 40000);
    free(logits);
}

static void other_seeds_and_positions_are_independent(void **state)
{
    static const float even[4] = {0};
    uint32_t pairs[16] = {0};
    double chi2 = 0;

    (void)state;
    for (uint64_t i = 0; i < 8000; i++) {
        sy_sampler a = PLAIN, b = PLAIN;
        a.seed = i;
        b.seed = i + 1;
        /* Were the counter their sum, these two would always agree. */
        pairs[4 * sample_at(even, 4, &a, 6) + sample_at(even, 4, &b, 5)]++;
    }
    for (int i = 0; i < 16; i++) chi2 += (pairs[i] - 500.0) * (pairs[i] - 500.0) / 500;
    if (!(chi2 < 45)) fail_msg("chi-square of pairs: %g", chi2);
}

static void the_same_seed_and_position_give_the_same_token(void **state)
{
    float *logits = random_logits(500, 2, 3);
    sy_sampler s = PLAIN;
    uint32_t first[64];
    size_t n_same = 0;

    (void)state;
    for (uint64_t i = 0; i < 64; i++) first[i] = sample_at(logits, 500, &s, i);
    for (uint64_t i = 64; i-- > 0;) assert_int_equal(sample_at(logits, 500, &s, i), first[i]);
    s.seed++;
    for (uint64_t i = 0; i < 64; i++) n_same += sample_at(logits, 500, &s, i) == first[i];
    assert_in_range(n_same, 0, 16);
    free(logits);
}

static void every_kernel_gives_the_same_token_and_the_same_logprobs(void **state)
{
    static const sy_sampler options[] = {{1, 0, 1, 0, 1, 1},          {0.6f, 0, 0.95f, 0, 1, 2},
                                         {1.1f, 50, 1, 0, 1, 3},      {2, 0, 1, 0.05f, 1, 4},
                                         {0.9f, 3000, 0.9f, 0, 1, 5}, {0, 0, 1, 0, 1, 6}};
    static const uint32_t vocabs[] = {1, 63, 64, 4099, 50001};

    (void)state;
    for (size_t v = 0; v < SY_COUNT_OF(vocabs); v++) {
        float *logits = random_logits(vocabs[v], 5, 20 + v);
        void *scratch = scratch_for(vocabs[v]);
        sy_top_token want_top[20], top[20];
        float want_logprob, logprob;

        sy_logprobs(&want_logprob, want_top, 20, logits, vocabs[v], vocabs[v] / 2, scratch,
                    sy_kernels_at(0));
        for (size_t k = 0; k < sy_kernels_count(); k++) {
            sy_logprobs(&logprob, top, 20, logits, vocabs[v], vocabs[v] / 2, scratch,
                        sy_kernels_at(k));
            assert_memory_equal(&logprob, &want_logprob, sizeof(logprob));
            assert_memory_equal(top, want_top, sizeof(top));
            for (size_t i = 0; i < SY_COUNT_OF(options) * 10; i++) {
                const sy_sampler *s = &options[i / 10];
                uint32_t want, got;
                assert_int_equal(sample_with(&want, logits, vocabs[v], s, i, sy_kernels_at(0)),
                                 SY_OK);
                assert_int_equal(sample_with(&got, logits, vocabs[v], s, i, sy_kernels_at(k)),
                                 SY_OK);
                assert_int_equal(got, want);
            }
        }
        free(scratch);
        free(logits);
    }
}

static void a_large_vocabulary_is_filtered_exactly(void **state)
{
    static const sy_sampler options[] = {
        {1, 50, 1, 0, 1, 1},      {1, 2374, 1, 0, 1, 2},  {1, 2375, 1, 0, 1, 3},
        {1, 100000, 1, 0, 1, 4},  {1, 0, 0.9f, 0, 1, 5},  {3, 0, 0.9f, 0, 1, 6},
        {1, 0, 0.999f, 0, 1, 7},  {1, 0, 1, 0.01f, 1, 8}, {0.3f, 0, 0.5f, 0, 1, 9},
        {100, 0, 0.5f, 0, 1, 10}, {100, 7, 1, 0, 1, 11},  {50, 5000, 0.6f, 0, 1, 12}};
    float *logits = random_logits(LARGE_VOCAB, 6, 1234);
    double *p = malloc(LARGE_VOCAB * sizeof(*p));

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(options); i++) {
        reference(p, logits, LARGE_VOCAB, &options[i]);
        for (uint64_t position = 0; position < 40; position++) {
            const uint32_t token = sample_at(logits, LARGE_VOCAB, &options[i], position);
            if (p[token] == 0) fail_msg("options %zu: token %u was filtered away", i, token);
        }
    }
    free(p);
    free(logits);
}

static void greedy_takes_the_largest_and_the_lowest_of_equals(void **state)
{
    const float inf = INFINITY;
    const float x[] = {-1, 3, 2, 3, 3};
    const float zeros[] = {-0.0f, 0.0f, -0.0f};
    const float one[] = {-inf, -inf, -5, -inf};
    const float negative[] = {-3, -2, -FLT_MAX};
    sy_sampler s = PLAIN;

    (void)state;
    s.temperature = 0;
    assert_int_equal(sample_at(x, 5, &s, 0), 1);
    assert_int_equal(sample_at(zeros, 3, &s, 0), 0);
    assert_int_equal(sample_at(one, 4, &s, 0), 2);
    assert_int_equal(sample_at(negative, 3, &s, 0), 1);
    s.top_k = 3; /* filters cannot remove the best */
    s.top_p = 0.1f;
    s.min_p = 1;
    assert_int_equal(sample_at(x, 5, &s, 0), 1);
}

/* Equal logits in number: each filter keeps the lowest ids, also across blocks, and -0 is 0. */
static void ties_are_kept_from_the_lowest_token_up(void **state)
{
    enum { V = 5000, N = 4000 };
    float *even = calloc(V, sizeof(*even));
    sy_sampler s = PLAIN;
    uint32_t largest_k = 0, largest_p = 0;

    (void)state;
    for (uint32_t i = 0; i < V; i += 3) even[i] = -0.0f;
    for (uint32_t i = 0; i < N; i++) {
        s.top_k = 70;
        s.top_p = 1;
        largest_k = SY_MAX(largest_k, sample_at(even, V, &s, i));
        s.top_k = 0;
        s.top_p = 0.5f;
        largest_p = SY_MAX(largest_p, sample_at(even, V, &s, i));
    }
    assert_int_equal(largest_k, 69);
    assert_in_range(largest_p, 2450, 2499);
    even[4321] = 1;
    s.top_k = 2;
    s.top_p = 1;
    for (uint32_t i = 0; i < 100; i++) {
        const uint32_t token = sample_at(even, V, &s, i);
        if (token != 4321 && token != 0) fail_msg("token %u is not of the two best", token);
    }
    free(even);
}

static void top_k_of_one_is_greedy(void **state)
{
    sy_sampler greedy = PLAIN, one = PLAIN, least_p = PLAIN;

    (void)state;
    greedy.temperature = 0;
    one.top_k = 1;
    least_p.top_p = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        const uint32_t vocab = 1 + (uint32_t)(seed * 97);
        float *logits = random_logits(vocab, 1, seed);
        const uint32_t want = sample_at(logits, vocab, &greedy, seed);

        assert_int_equal(sample_at(logits, vocab, &one, seed), want);
        assert_int_equal(sample_at(logits, vocab, &least_p, seed), want);
        free(logits);
    }
}

static void extreme_temperatures_are_greedy_and_even(void **state)
{
    static const float tiny[] = {FLT_TRUE_MIN, FLT_MIN, 1e-20f};
    float *logits = random_logits(300, 2, 8);
    const float wide[] = {-FLT_MAX, FLT_MAX, 0, -INFINITY};
    sy_sampler s = PLAIN;
    uint32_t count[4] = {0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(tiny); i++) {
        sy_sampler greedy = PLAIN;
        greedy.temperature = 0;
        s.temperature = tiny[i];
        for (uint64_t position = 0; position < 20; position++) {
            assert_int_equal(sample_at(logits, 300, &s, position),
                             sample_at(logits, 300, &greedy, 0));
            assert_int_equal(sample_at(wide, 4, &s, position), 1);
        }
    }
    s.temperature = FLT_MAX;
    for (uint64_t position = 0; position < 2000; position++)
        count[sample_at((const float[]){5, -5, 0, -INFINITY}, 4, &s, position)]++;
    for (int i = 0; i < 3; i++) assert_in_range(count[i], 560, 780);
    assert_int_equal(count[3], 0);
    free(logits);
}

static void minus_infinity_is_never_drawn(void **state)
{
    static const sy_sampler options[] = {{1, 0, 1, 0, 1, 1},
                                         {1, 150, 1, 0, 1, 2},
                                         {1, 0, 0.999f, 0, 1, 3},
                                         {FLT_MAX, 190, 1, 0, 1, 4},
                                         {FLT_MAX, 0, 1, 0.5f, 1, 5}};
    float logits[200];

    (void)state;
    for (size_t i = 0; i < 200; i++) logits[i] = i % 10 == 3 ? (float)i * 0.01f : -INFINITY;
    for (size_t i = 0; i < SY_COUNT_OF(options); i++)
        for (uint64_t position = 0; position < 300; position++)
            assert_int_equal(sample_at(logits, 200, &options[i], position) % 10, 3);
}

static uint32_t sample_seen(const float *logits, uint32_t vocab, const sy_sampler *s,
                            const uint32_t *seen, size_t n_seen)
{
    void *scratch = scratch_for(vocab);
    uint32_t token = UINT32_MAX;

    assert_int_equal(
        sy_sample(&token, logits, vocab, s, seen, n_seen, 0, scratch, sy_kernels_best()), SY_OK);
    free(scratch);
    return token;
}

static void the_penalty_counts_a_token_once(void **state)
{
    static const uint32_t seen[] = {1, 1, 3, 1, 1};
    sy_sampler s = PLAIN;

    (void)state;
    s.temperature = 0;
    s.repetition_penalty = 2;
    /* 4 / 2 = 2 is still the best; halved twice it would not be. */
    assert_int_equal(sample_seen((const float[]){0, 4, 1.5f, 0}, 4, &s, seen, 5), 1);
    /* 4 / 2 = 2 against 2.5. */
    assert_int_equal(sample_seen((const float[]){0, 4, 2.5f, 0}, 4, &s, seen, 5), 2);
    /* A negative logit is multiplied: -1 * 2 = -2 against -1.5, and -2.5. */
    assert_int_equal(sample_seen((const float[]){-9, -1, -1.5f, -9}, 4, &s, seen, 5), 2);
    assert_int_equal(sample_seen((const float[]){-9, -1, -2.5f, -9}, 4, &s, seen, 5), 1);
    assert_int_equal(sample_seen((const float[]){0, 4, 2.5f, 0}, 4, &s, seen, 0), 1);
    s.repetition_penalty = 1;
    assert_int_equal(sample_seen((const float[]){0, 4, 2.5f, 0}, 4, &s, seen, 5), 1);
    /* Below one it is a reward. */
    s.repetition_penalty = 0.5f;
    assert_int_equal(sample_seen((const float[]){5, 3, 2, 0}, 4, &s, seen, 5), 1);
}

/* The penalty comes before the filters and is in the drawn distribution. */
static void the_penalty_shapes_the_distribution(void **state)
{
    const float logits[] = {2, 1, 0.5f, -0.5f, -1, 0};
    const float after[] = {2 / 1.5f, 1, 0.5f / 1.5f, -0.5f * 1.5f, -1, 0};
    const uint32_t seen[] = {0, 3, 2, 3, 0, 5};
    sy_sampler s = PLAIN, without = PLAIN;

    (void)state;
    s.repetition_penalty = 1.5f;
    s.top_k = without.top_k = 4;
    for (uint64_t position = 0; position < 500; position++) {
        void *scratch = scratch_for(6);
        uint32_t token;
        assert_int_equal(
            sy_sample(&token, logits, 6, &s, seen, 6, position, scratch, sy_kernels_best()), SY_OK);
        assert_int_equal(token, sample_at(after, 6, &without, position));
        free(scratch);
    }
}

static void assert_refused(const float *logits, uint32_t vocab, const sy_sampler *s,
                           const char *what)
{
    for (size_t k = 0; k < sy_kernels_count(); k++) {
        uint32_t token = 12345;
        const sy_status st = sample_with(&token, logits, vocab, s, 0, sy_kernels_at(k));
        if (st != SY_EINVAL || token != 12345) {
            fail_msg("%s: want SY_EINVAL, got %s and token %u", what, sy_status_name(st), token);
        }
    }
}

static void what_has_no_answer_is_refused(void **state)
{
    static const float bad[] = {-1, NAN, INFINITY, -INFINITY};
    float logits[70] = {0};
    const uint32_t past[] = {0, 70};
    const sy_sampler plain = PLAIN;
    sy_sampler s = plain;
    void *scratch = scratch_for(70);
    uint32_t token;

    (void)state;
    for (size_t i = 0; i < 70; i += 23) {
        logits[i] = NAN;
        assert_refused(logits, 70, &plain, "a NaN logit");
        logits[i == 0 ? 1 : 0] = -INFINITY;
        assert_refused(logits, 70, &plain, "a NaN logit beside an infinite one");
        s.temperature = 0;
        assert_refused(logits, 70, &s, "a NaN logit, greedy");
        memset(logits, 0, sizeof(logits));
    }
    logits[3] = INFINITY;
    assert_refused(logits, 70, &plain, "an infinite logit");
    for (size_t i = 0; i < 70; i++) logits[i] = -INFINITY;
    assert_refused(logits, 70, &plain, "nothing to draw");
    memset(logits, 0, sizeof(logits));
    assert_refused(logits, 0, &plain, "no vocabulary");
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        s = plain, s.temperature = bad[i], assert_refused(logits, 70, &s, "temperature");
        s = plain, s.top_p = bad[i], assert_refused(logits, 70, &s, "top_p");
        s = plain, s.min_p = bad[i], assert_refused(logits, 70, &s, "min_p");
        s = plain, s.repetition_penalty = bad[i], assert_refused(logits, 70, &s, "penalty");
    }
    s = plain, s.repetition_penalty = 0, assert_refused(logits, 70, &s, "no penalty");
    s = plain, s.top_p = 1.01f, assert_refused(logits, 70, &s, "top_p above one");
    s = plain, s.min_p = 1.01f, assert_refused(logits, 70, &s, "min_p above one");
    s = plain, s.repetition_penalty = 1.1f;
    assert_int_equal(sy_sample(&token, logits, 70, &s, past, 2, 0, scratch, sy_kernels_best()),
                     SY_EINVAL);
    free(scratch);
}

static void logprobs_sum_to_one_and_agree_with_plain_arithmetic(void **state)
{
    static const uint32_t vocabs[] = {1, 2, 63, 65, 1000, 32003};

    (void)state;
    for (size_t v = 0; v < SY_COUNT_OF(vocabs); v++) {
        const uint32_t V = vocabs[v];
        float *logits = random_logits(V, 8, 50 + v);
        sy_top_token *top = malloc(V * sizeof(*top));
        void *scratch = scratch_for(V);
        double want_sum = 0, sum = 0;
        float logprob;

        for (uint32_t i = 0; i < V; i++) want_sum += exp((double)logits[i]);
        sy_logprobs(&logprob, top, V, logits, V, V / 3, scratch, sy_kernels_best());
        assert_true(fabs((double)logprob - ((double)logits[V / 3] - log(want_sum))) <= 2e-6);
        for (uint32_t i = 0; i < V; i++) {
            sum += exp((double)top[i].logprob);
            if (i > 0) {
                const float a = logits[top[i - 1].token], b = logits[top[i].token];
                assert_true(a > b || (a == b && top[i - 1].token < top[i].token));
            }
        }
        if (!(fabs(sum - 1) <= 1e-5)) fail_msg("vocab %u: probabilities sum to %.9g", V, sum);
        free(scratch);
        free(top);
        free(logits);
    }
}

static void the_top_list_is_the_beginning_of_the_full_order(void **state)
{
    enum { V = 7001 };
    static const uint32_t lengths[] = {0, 1, 5, 20, 109, 110, 111, 4000};
    float *logits = random_logits(V, 2, 60);
    sy_top_token *all = malloc(V * sizeof(*all)), *top = malloc(V * sizeof(*top));
    void *scratch = scratch_for(V);
    float logprob;

    (void)state;
    for (uint32_t i = 0; i < V; i++) logits[i] = roundf(logits[i] * 8) / 8; /* many ties */
    sy_logprobs(&logprob, all, V, logits, V, 0, scratch, sy_kernels_best());
    for (size_t i = 0; i < SY_COUNT_OF(lengths); i++) {
        const size_t n_bytes = lengths[i] * sizeof(*top);
        sy_logprobs(&logprob, n_bytes ? top : NULL, lengths[i], logits, V, 0, scratch,
                    sy_kernels_best());
        assert_memory_equal(top, all, n_bytes);
    }
    free(scratch);
    free(top);
    free(all);
    free(logits);
}

static void odd_requests_for_logprobs_are_answered(void **state)
{
    const float x[] = {0, -INFINITY, 0};
    float nan_row[100] = {0};
    sy_top_token top[5];
    float logprob;
    void *scratch = scratch_for(100);

    (void)state;
    sy_logprobs(&logprob, top, 5, x, 3, 1, scratch, sy_kernels_best());
    assert_true(isinf(logprob) && logprob < 0);
    assert_int_equal(top[0].token, 0);
    assert_int_equal(top[1].token, 2);
    assert_float_equal(top[1].logprob, -0.6931472f, 1e-6f);
    assert_int_equal(top[2].token, 1);
    assert_int_equal(top[3].token, UINT32_MAX);
    assert_true(isinf(top[4].logprob) && top[4].logprob < 0);
    sy_logprobs(&logprob, NULL, 0, x, 3, 3, scratch, sy_kernels_best());
    assert_true(isinf(logprob) && logprob < 0);
    for (uint32_t i = 0; i < 70; i++) nan_row[i] = i % 2 ? NAN : -NAN;
    sy_logprobs(&logprob, top, 5, nan_row, 100, 80, scratch, sy_kernels_best());
    assert_true(isnan(logprob));
    for (size_t i = 0; i < 5; i++) assert_in_range(top[i].token, 0, 99);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_filter_draws_what_a_full_sort_would),
        cmocka_unit_test(a_long_run_has_the_right_shape),
        cmocka_unit_test(other_seeds_and_positions_are_independent),
        cmocka_unit_test(the_same_seed_and_position_give_the_same_token),
        cmocka_unit_test(every_kernel_gives_the_same_token_and_the_same_logprobs),
        cmocka_unit_test(a_large_vocabulary_is_filtered_exactly),
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_of_equals),
        cmocka_unit_test(ties_are_kept_from_the_lowest_token_up),
        cmocka_unit_test(top_k_of_one_is_greedy),
        cmocka_unit_test(extreme_temperatures_are_greedy_and_even),
        cmocka_unit_test(minus_infinity_is_never_drawn),
        cmocka_unit_test(the_penalty_counts_a_token_once),
        cmocka_unit_test(the_penalty_shapes_the_distribution),
        cmocka_unit_test(what_has_no_answer_is_refused),
        cmocka_unit_test(logprobs_sum_to_one_and_agree_with_plain_arithmetic),
        cmocka_unit_test(the_top_list_is_the_beginning_of_the_full_order),
        cmocka_unit_test(odd_requests_for_logprobs_are_answered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
