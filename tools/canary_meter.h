/* canary_meter.h - counts what aggregators tell of a canary's targets, phase by phase. Aggregators'
 * counters only grow until one starts anew; what is counted here are the steps. */
#ifndef CANARY_METER_H
#define CANARY_METER_H

#include "canary_state.h"
#include "cluster_facts.h"

typedef struct canary_meter canary_meter;

/* state: borrowed as long as the meter lives. SY_ENOMEM. */
SY_MUST_USE sy_status canary_meter_open(canary_meter **out, const canary_state *state,
                                        sy_error *err);
void canary_meter_close(canary_meter *meter); /* accepts NULL */
void canary_meter_begin(canary_meter *meter); /* a new phase: sums are zero again */

/* Asks every aggregator once, and takes what nodes told (facts, with shards). */
SY_MUST_USE sy_status canary_meter_look(canary_counts *out, canary_meter *meter,
                                        const cluster_facts *facts, sy_error *err);

/* The parts of a look. json: an answer to GET /targets. SY_EDATALOSS: it is none. */
void canary_meter_look_begin(canary_meter *meter);
SY_MUST_USE sy_status canary_meter_take(canary_meter *meter, const char *aggregator,
                                        const char *json);
void canary_meter_look_end(canary_counts *out, canary_meter *meter);

#endif
