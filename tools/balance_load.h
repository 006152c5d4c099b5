/* balance_load.h - the load of every expert over a while: what aggregators counted at its end less
 * what they had counted at its beginning. */
#ifndef BALANCE_LOAD_H
#define BALANCE_LOAD_H

#include "cluster_facts.h"

struct json_t;

typedef struct balance_counts { /* of one aggregator */
    char name[SY_NODE_BYTES];
    uint64_t since_us; /* when it began to count, since 1970 */
    uint64_t *rows;    /* [layers * experts] */
} balance_counts;

typedef struct balance_sample { /* zeroed: none */
    balance_counts *item;       /* [n] */
    size_t n;
    int64_t at_us; /* since 1970 */
    uint32_t layers, experts;
} balance_sample;

/* Asks every aggregator; one that does not answer, or of other dimensions, is left out. SY_ENOMEM.
 * *out is to be freed either way. */
SY_MUST_USE sy_status balance_sample_take(balance_sample *out, const cluster_facts *facts,
                                          const sy_grid *grid, sy_error *err);
void balance_sample_free(balance_sample *sample); /* accepts a zeroed one */
/* The part that reads an answer to GET /load. 0: it is not one for these dimensions, or there is no
 * memory. */
int balance_sample_add(balance_sample *sample, const char *name, const struct json_t *answer);

/* Adds to rows, [layers * experts], what was counted after `before` (NULL: since each aggregator
 * began), and returns the sum of it. Counters that began anew count whole; an aggregator that was
 * there, but not heard, at the time of `before` does not count at all. */
double balance_sample_difference(double *rows, const balance_sample *before,
                                 const balance_sample *after);

#endif
