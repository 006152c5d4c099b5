/* sy_sampler.c - one token from one row of logits, and log probabilities. Pure: everything it needs
 * lies in the caller's scratch. exp and arg max come from the kernels, and every other sum is in
 * double in one fixed order, so the token is the same whatever the instruction set.
 *
 * Vocabularies have 150,000 tokens and a draw needs a few of them, so nothing is sorted that cannot
 * be chosen: the k best are found through the maxima of blocks, the tokens of top-p through a
 * threshold below which the left-out mass cannot matter. */
#include "sy_sampler.h"

#include <math.h>
#include <string.h>

#include "sy_hash.h"

#define BLOCK_TOKENS 64u
#define SUM_LANES    8u
#define RADIX_BITS   11u
#define RADIX_SIZE   (1u << RADIX_BITS)
#define RADIX_PASSES 3u

/* A token on its way into an order: a smaller key is a larger logit. */
typedef struct candidate {
    uint32_t key;
    uint32_t token;
} candidate;

typedef struct workspace {
    float *score;       /* [V]: logits after the penalty */
    float *weight;      /* [V]: exp((score - max) / temperature) */
    float *block_max;   /* [V / BLOCK_TOKENS, rounded up] */
    candidate *list;    /* [V] */
    candidate *reserve; /* [V]: where the sort moves things; it may swap the two */
} workspace;

static size_t block_count(size_t n)
{
    return (n + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

static size_t line_up(size_t n_bytes)
{
    return (n_bytes + SY_CACHE_LINE - 1) / SY_CACHE_LINE * SY_CACHE_LINE;
}

size_t sy_sampler_scratch(uint32_t vocab)
{
    return 2 * line_up(vocab * sizeof(float)) + line_up(block_count(vocab) * sizeof(float)) +
           2 * line_up(vocab * sizeof(candidate));
}

static workspace workspace_in(void *scratch, uint32_t vocab)
{
    workspace ws;
    uint8_t *next = scratch;

    ws.score = (float *)next;
    next += line_up(vocab * sizeof(float));
    ws.weight = (float *)next;
    next += line_up(vocab * sizeof(float));
    ws.block_max = (float *)next;
    next += line_up(block_count(vocab) * sizeof(float));
    ws.list = (candidate *)next;
    next += line_up(vocab * sizeof(candidate));
    ws.reserve = (candidate *)next;
    return ws;
}

/* Orders floats as integers, the largest first. Adding zero makes -0 the +0 that it equals. */
static uint32_t descending_key(float x)
{
    const float canonical = x + 0.0f;
    uint32_t bits;

    memcpy(&bits, &canonical, sizeof(bits));
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

/* Stable, so candidates gathered in ascending token id leave equal logits in that order. Radix
 * sort: its time depends on n alone, and a digit that all keys share costs nothing. */
static void sort_best_first(workspace *ws, size_t n)
{
    uint32_t count[RADIX_PASSES][RADIX_SIZE] = {{0}};

    if (n < 2) return;
    for (size_t i = 0; i < n; i++)
        for (uint32_t pass = 0; pass < RADIX_PASSES; pass++)
            count[pass][ws->list[i].key >> pass * RADIX_BITS & (RADIX_SIZE - 1)]++;
    for (uint32_t pass = 0; pass < RADIX_PASSES; pass++) {
        uint32_t *place = count[pass];
        const uint32_t shift = pass * RADIX_BITS;
        candidate *from = ws->list;
        uint32_t begin = 0;

        if (place[from[0].key >> shift & (RADIX_SIZE - 1)] == n) continue;
        for (uint32_t digit = 0; digit < RADIX_SIZE; digit++) {
            const uint32_t size = place[digit];
            place[digit] = begin;
            begin += size;
        }
        for (size_t i = 0; i < n; i++)
            ws->reserve[place[from[i].key >> shift & (RADIX_SIZE - 1)]++] = from[i];
        ws->list = ws->reserve;
        ws->reserve = from;
    }
}

/* Leaves the k best of score at the front of the list, best first; 1 <= k <= vocab. The k-th
 * largest of the blocks' maxima is a floor that k tokens reach, and that few others do. A NaN,
 * which only sy_logprobs lets in, passes every test here and is sorted like any other pattern of
 * bits. */
static void take_best(workspace *ws, const float *score, uint32_t vocab, uint32_t k,
                      const sy_kernels *kernels)
{
    const size_t n_blocks = block_count(vocab);
    float floor = -INFINITY;
    size_t n = 0;

    for (size_t b = 0; b < n_blocks; b++) {
        const float *block = score + b * BLOCK_TOKENS;
        const size_t len = SY_MIN(BLOCK_TOKENS, vocab - b * BLOCK_TOKENS);

        ws->block_max[b] = block[kernels->argmax(block, len)];
        ws->list[b] = (candidate){.key = descending_key(ws->block_max[b]), .token = (uint32_t)b};
    }
    if (k <= n_blocks) {
        sort_best_first(ws, n_blocks);
        floor = ws->block_max[ws->list[k - 1].token];
    }
    for (size_t b = 0; b < n_blocks; b++) {
        const size_t end = SY_MIN((b + 1) * BLOCK_TOKENS, vocab);

        if (ws->block_max[b] < floor) continue;
        for (size_t i = b * BLOCK_TOKENS; i < end; i++) {
            if (score[i] < floor) continue;
            ws->list[n++] = (candidate){.key = descending_key(score[i]), .token = (uint32_t)i};
        }
    }
    sort_best_first(ws, n);
}

/* The tokens of weight >= threshold, best first; their number. */
static size_t take_above(workspace *ws, const float *score, uint32_t vocab, double threshold)
{
    size_t n = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        if ((double)ws->weight[i] < threshold) continue;
        ws->list[n++] = (candidate){.key = descending_key(score[i]), .token = i};
    }
    sort_best_first(ws, n);
    return n;
}

/* In lanes, so that it runs at the speed of memory; the order of additions is written down. */
static double block_sum(const float *x, size_t n)
{
    double lane[SUM_LANES] = {0};
    size_t i = 0;

    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (size_t j = 0; j < SUM_LANES; j++) lane[j] += (double)x[i + j];
    for (size_t j = 0; i < n; i++, j++) lane[j] += (double)x[i];
    for (size_t half = SUM_LANES / 2; half > 0; half /= 2)
        for (size_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

static double weights_sum(const float *weight, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i += BLOCK_TOKENS)
        sum += block_sum(weight + i, SY_MIN(BLOCK_TOKENS, n - i));
    return sum;
}

/* Index of the weight under the point u of [0, 1), in proportion to the weights: whole blocks
 * first, by the same sums that made the total. Where rounding carries the point past a block, the
 * next weight that is not zero has it, or at the very end the last one. Weights of zero are never
 * drawn; at least one is not zero. */
static size_t draw(const float *weight, size_t n, double u)
{
    const double point = u * weights_sum(weight, n);
    double below = 0;
    size_t i = 0;

    for (; i + BLOCK_TOKENS < n; i += BLOCK_TOKENS) {
        const double sum = block_sum(weight + i, BLOCK_TOKENS);
        if (below + sum > point) break;
        below += sum;
    }
    for (; i < n; i++) {
        below += (double)weight[i];
        if (below > point) return i;
    }
    for (i = n - 1; i > 0 && weight[i] == 0;) i--;
    return i;
}

/* weight[i] = exp((score[i] - max) / temperature). The difference comes first, so that no
 * temperature, however small, turns two finite logits into infinity minus infinity. */
static void fill_weights(float *weight, const float *score, size_t n, float max, float temperature,
                         const sy_kernels *kernels)
{
    for (size_t i = 0; i < n; i++) weight[i] = (score[i] - max) / temperature;
    kernels->vexp(weight, weight, n);
}

/* The shortest prefix that holds `mass`, at least one. weight: best first. */
static size_t cut_top_p(const float *weight, size_t n, double mass)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)weight[i];
        if (sum >= mass) return i + 1;
    }
    return n;
}

/* Weights are relative to the best one, whose weight is 1: min-p needs no sum. */
static size_t cut_min_p(const float *weight, size_t n, float min_p)
{
    size_t kept = 1;

    while (kept < n && weight[kept] >= min_p) kept++;
    return kept;
}

/* No order is needed: tokens below min-p weigh nothing, and the draw goes by token id. */
static uint32_t draw_from_all(const workspace *ws, const float *score, uint32_t vocab, float max,
                              const sy_sampler *sampler, double u, const sy_kernels *kernels)
{
    fill_weights(ws->weight, score, vocab, max, sampler->temperature, kernels);
    if (sampler->min_p > 0) {
        for (uint32_t i = 0; i < vocab; i++)
            ws->weight[i] = ws->weight[i] < sampler->min_p ? 0 : ws->weight[i];
    }
    return (uint32_t)draw(ws->weight, vocab, u);
}

/* Either the k best, or every token that top-p could keep; then the shorter prefixes of these. */
static uint32_t draw_from_best(workspace *ws, const float *score, uint32_t vocab, float max,
                               const sy_sampler *sampler, double u, const sy_kernels *kernels)
{
    const int is_top_k = sampler->top_k > 0 && sampler->top_k < vocab;
    size_t n = sampler->top_k;
    double total = 0;

    if (is_top_k) {
        take_best(ws, score, vocab, sampler->top_k, kernels);
    } else {
        /* What is left out weighs less than half of what top-p leaves out in any case. */
        fill_weights(ws->weight, score, vocab, max, sampler->temperature, kernels);
        total = weights_sum(ws->weight, vocab);
        n = take_above(ws, score, vocab, (1 - (double)sampler->top_p) * total / (2.0 * vocab));
    }
    for (size_t i = 0; i < n; i++) ws->weight[i] = score[ws->list[i].token];
    fill_weights(ws->weight, ws->weight, n, max, sampler->temperature, kernels);
    if (is_top_k) total = weights_sum(ws->weight, n);
    if (sampler->top_p < 1) n = cut_top_p(ws->weight, n, (double)sampler->top_p * total);
    n = cut_min_p(ws->weight, n, sampler->min_p);
    return ws->list[draw(ws->weight, n, u)].token;
}

/* Also false for NaN. */
static int options_are_in_range(const sy_sampler *sampler)
{
    return sampler->temperature >= 0 && isfinite(sampler->temperature) && sampler->top_p >= 0 &&
           sampler->top_p <= 1 && sampler->min_p >= 0 && sampler->min_p <= 1 &&
           sampler->repetition_penalty > 0 && isfinite(sampler->repetition_penalty);
}

static int holds_nan(const float *x, size_t n, const sy_kernels *kernels)
{
    int found = 0;

    if (kernels->all_finite(x, n)) return 0;
    for (size_t i = 0; i < n; i++) found |= isnan(x[i]) != 0; /* infinities are not what is asked */
    return found;
}

/* Each penalised logit is made from the one given, so a token seen twice is penalised once. False
 * when a token is past the vocabulary. */
static int penalise(float *score, const float *logits, uint32_t vocab, float penalty,
                    const uint32_t *seen, size_t n_seen)
{
    memcpy(score, logits, vocab * sizeof(*score));
    for (size_t i = 0; i < n_seen; i++) {
        if (seen[i] >= vocab) return 0;
        const float x = logits[seen[i]];
        score[seen[i]] = x > 0 ? x / penalty : x * penalty;
    }
    return 1;
}

/* [0, 1) with 53 random bits: with fewer, the rare tokens of a large vocabulary would never come.
 */
static double unit_at(uint64_t seed, uint64_t position)
{
    return (double)(sy_splitmix64(sy_splitmix64(seed) + position) >> 11) * 0x1p-53;
}

sy_status sy_sample(uint32_t *token, const float *logits, uint32_t vocab, const sy_sampler *sampler,
                    const uint32_t *seen, size_t n_seen, uint64_t position, void *scratch,
                    const sy_kernels *kernels)
{
    const double u = unit_at(sampler->seed, position);
    workspace ws = workspace_in(scratch, vocab);
    const float *score = logits;
    uint32_t best;

    if (vocab == 0 || !options_are_in_range(sampler) || holds_nan(logits, vocab, kernels)) {
        return SY_EINVAL;
    }
    if (sampler->repetition_penalty != 1) {
        if (!penalise(ws.score, logits, vocab, sampler->repetition_penalty, seen, n_seen)) {
            return SY_EINVAL;
        }
        score = ws.score;
    }
    best = (uint32_t)kernels->argmax(score, vocab);
    if (!isfinite(score[best])) return SY_EINVAL;
    if (sampler->temperature == 0) {
        *token = best;
    } else if (sampler->top_p < 1 || (sampler->top_k > 0 && sampler->top_k < vocab)) {
        *token = draw_from_best(&ws, score, vocab, score[best], sampler, u, kernels);
    } else {
        *token = draw_from_all(&ws, score, vocab, score[best], sampler, u, kernels);
    }
    return SY_OK;
}

void sy_logprobs(float *logprob, sy_top_token *top, uint32_t n_top, const float *logits,
                 uint32_t vocab, uint32_t token, void *scratch, const sy_kernels *kernels)
{
    const uint32_t n_best = SY_MIN(n_top, vocab);
    workspace ws;
    double log_sum;

    SY_ASSERT(vocab > 0);
    ws = workspace_in(scratch, vocab);
    const float max = logits[kernels->argmax(logits, vocab)];
    fill_weights(ws.weight, logits, vocab, max, 1, kernels);
    log_sum = (double)max + log(weights_sum(ws.weight, vocab));
    *logprob = token < vocab ? (float)((double)logits[token] - log_sum) : -INFINITY;
    if (n_best > 0) take_best(&ws, logits, vocab, n_best, kernels);
    for (uint32_t i = 0; i < n_best; i++) {
        const uint32_t id = ws.list[i].token;
        top[i] = (sy_top_token){.token = id, .logprob = (float)((double)logits[id] - log_sum)};
    }
    for (uint32_t i = n_best; i < n_top; i++)
        top[i] = (sy_top_token){.token = UINT32_MAX, .logprob = -INFINITY};
}
