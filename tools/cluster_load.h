/* cluster_load.h - rows computed per expert, as aggregators count them: GET /load. */
#ifndef CLUSTER_LOAD_H
#define CLUSTER_LOAD_H

#include "cluster_facts.h"

/* *rows: [layers * experts], the sum over all aggregators since each began; the caller frees it.
 * SY_ENOTFOUND: no aggregator tells, or no row was computed yet. */
SY_MUST_USE sy_status cluster_load_take(uint64_t **rows, const cluster_facts *facts,
                                        uint32_t layers, uint32_t experts);

#endif
