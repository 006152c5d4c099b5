/* sy_rank.h - the best few of many scores. Private to lib/route. Pure. The order is the gate's: the
 * larger score first, of equals the lower id, and NaN after every number. */
#ifndef SY_RANK_H
#define SY_RANK_H

#include <math.h>

#include "sy_base.h"

/* The best `room` of the ids offered so far, best first. */
typedef struct sy_ranking {
    uint16_t *id;
    float *score;
    uint32_t n, room;
} sy_ranking;

/* Ids come in ascending order. room >= 1. */
void sy_ranking_offer(sy_ranking *best, uint32_t id, float score);

/* The k best of score[0..n), with their scores, best first: what offering them one by one gives,
 * without a branch that depends on the scores where that is faster. 1 <= k <= n <= 65536. id,
 * best_score: [k]; best_score does not overlap with score. */
void sy_rank_best(uint16_t *id, float *best_score, const float *score, uint32_t n, uint32_t k);

#endif
