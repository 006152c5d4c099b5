/* fidelity_diff.h - how far the logits of one run are from those of another. Pure. */
#ifndef FIDELITY_DIFF_H
#define FIDELITY_DIFF_H

#include "sy_base.h"

/* One position: `want` is the run that is measured against, `got` the one that is measured. */
typedef struct fidelity_row {
    double relative_max;  /* the largest difference, over the largest of |want| */
    double absolute_mean; /* over the vocabulary */
    double kl_nats;       /* of softmax(got) from softmax(want), never below 0 */
    int same_argmax;      /* ties go to the lower token id, as in sampling */
    int is_finite;        /* no NaN, no infinity on either side; else the rest is 0 */
} fidelity_row;

/* Of many positions; *diff is zeroed at first. */
typedef struct fidelity_diff {
    uint64_t n_rows, n_same_argmax;
    uint64_t n_not_finite; /* rows that are in none of the others */
    double relative_max;   /* of the worst position */
    double absolute_mean, kl_mean_nats;
    double kl_max_nats;                 /* of the worst position */
    uint64_t n_experts, n_same_experts; /* that tokens were sent to, in all layers together */
} fidelity_diff;

/* want, got: [vocab], vocab >= 1. Logits that are equal give exactly 0 throughout. Where all of
 * `want` is 0, relative_max is over the largest of |got|. */
void fidelity_row_compare(fidelity_row *out, const float *want, const float *got, uint32_t vocab);
void fidelity_diff_add(fidelity_diff *diff, const fidelity_row *row, size_t n);
/* Takes in which experts n tokens went to in one layer: want, got: [n,k], different ones for each
 * token, in any order. */
void fidelity_diff_add_experts(fidelity_diff *diff, const uint16_t *want, const uint16_t *got,
                               size_t n, uint32_t k);
/* The share of positions with the same best token, and of experts that are the same, in [0, 1]: 0
 * and 1 when there are none. */
double fidelity_diff_same_argmax(const fidelity_diff *diff);
double fidelity_diff_same_experts(const fidelity_diff *diff);

#endif
