/* sy_rank.c - see sy_rank.h. Scores of a gate are as good as random, so every branch on one of them
 * is guessed wrongly half the time, and that, not the arithmetic, is what choosing costs: hence the
 * loops of constant length below, which compile to vector code. First a bound that at least k
 * scores reach: the k-th largest of the maxima of WIDTH disjoint parts. Then the few that reach it,
 * and the place of each among those by counting. */
#include "sy_rank.h"

#define WIDTH_MAX 32
#define STRIDE    8

/* Whether a goes before b, the score of a lower id: only when it is strictly larger, and NaN is
 * below everything. */
static int goes_before(float a, float b)
{
    return a > b || (isnan(b) && !isnan(a));
}

/* Insertion: room is small, and most ids lose against the last of it. */
void sy_ranking_offer(sy_ranking *best, uint32_t id, float score)
{
    uint32_t place;

    if (best->n < best->room) {
        place = best->n++;
    } else if (goes_before(score, best->score[best->room - 1])) {
        place = best->room - 1;
    } else {
        return;
    }
    for (; place > 0 && goes_before(score, best->score[place - 1]); place--) {
        best->id[place] = best->id[place - 1];
        best->score[place] = best->score[place - 1];
    }
    best->id[place] = (uint16_t)id;
    best->score[place] = score;
}

static int has_nan(const float *score, uint32_t n)
{
    int found = 0;

    for (uint32_t i = 0; i < n; i++) found |= score[i] != score[i];
    return found;
}

/* How many of max[] are larger than each; then the least of those below which k are not. */
static inline float kth_largest(const float *max, uint32_t k, const uint32_t width)
{
    uint32_t n_larger[WIDTH_MAX] = {0};
    float least = INFINITY;

    for (uint32_t i = 0; i < width; i++)
        for (uint32_t j = 0; j < width; j++) n_larger[j] += max[i] > max[j];
    for (uint32_t j = 0; j < width; j++) least = n_larger[j] < k && max[j] < least ? max[j] : least;
    return least;
}

/* place[j]: how many go before few[j]; of equals, those that stand before it. */
static inline void count_places(uint32_t *place, const float *few, const uint32_t width)
{
    for (uint32_t j = 0; j < width; j++) place[j] = 0;
    for (uint32_t i = 0; i < width; i++)
        for (uint32_t j = 0; j < width; j++)
            place[j] += (few[i] > few[j]) | ((few[i] == few[j]) & (i < j));
}

/* Those of at least `bound`, in ascending id; returns how many there are, more than width if so.
 * Each is written before it is known whether it stays, and whether there are too many is asked once
 * a stride: so both arrays have a stride to spare. */
static inline uint32_t keep_few(uint16_t *id, float *few, const float *score, uint32_t n,
                                float bound, const uint32_t width)
{
    uint32_t n_few = 0, i = 0;

    for (; i + STRIDE <= n && n_few <= width; i += STRIDE) {
        for (uint32_t l = 0; l < STRIDE; l++) {
            id[n_few] = (uint16_t)(i + l);
            few[n_few] = score[i + l];
            n_few += score[i + l] >= bound;
        }
    }
    for (; i < n && n_few <= width; i++) {
        id[n_few] = (uint16_t)i;
        few[n_few] = score[i];
        n_few += score[i] >= bound;
    }
    return n_few;
}

/* 0: more reach the bound than were expected, and nothing is written. width is a constant where
 * this is used; k <= width <= n, and no score is NaN. */
static inline int rank_few(uint16_t *id, float *best_score, const float *score, uint32_t n,
                           uint32_t k, const uint32_t width)
{
    uint16_t few_id[WIDTH_MAX + STRIDE], placed_id[WIDTH_MAX];
    float few[WIDTH_MAX + STRIDE], placed[WIDTH_MAX], max[WIDTH_MAX];
    uint32_t place[WIDTH_MAX], n_few;

    for (uint32_t l = 0; l < width; l++) max[l] = score[l];
    /* What fills no row is in no part, which can only lower the bound. */
    for (uint32_t i = width; i + width <= n; i += width)
        for (uint32_t l = 0; l < width; l++) max[l] = score[i + l] > max[l] ? score[i + l] : max[l];
    n_few = keep_few(few_id, few, score, n, kth_largest(max, k, width), width);
    if (n_few > width) return 0;
    for (uint32_t l = n_few; l < width; l++) {
        few_id[l] = 0; /* at least k are before it, so this is not among the best */
        few[l] = -INFINITY;
    }
    count_places(place, few, width);
    for (uint32_t l = 0; l < width; l++) {
        placed_id[place[l]] = few_id[l];
        placed[place[l]] = few[l];
    }
    for (uint32_t i = 0; i < k; i++) {
        id[i] = placed_id[i];
        best_score[i] = placed[i];
    }
    return 1;
}

void sy_rank_best(uint16_t *id, float *best_score, const float *score, uint32_t n, uint32_t k)
{
    sy_ranking best = {.id = id, .score = best_score, .room = k};

    SY_ASSERT(k >= 1 && k <= n);
    /* Of 256 random scores 11 reach the bound for k = 8, and 22 that for k = 16. */
    if (n > 16 && k <= 8 && !has_nan(score, n) && rank_few(id, best_score, score, n, k, 16)) return;
    if (n > 32 && k > 8 && k <= 16 && !has_nan(score, n) &&
        rank_few(id, best_score, score, n, k, 32))
        return;
    for (uint32_t i = 0; i < n; i++) sy_ranking_offer(&best, i, score[i]);
}
