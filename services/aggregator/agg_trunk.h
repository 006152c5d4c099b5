/* agg_trunk.h - the model without its experts, on the processor or on a GPU, and what becomes of
 * the process when the GPU is lost: it is not ready, tells everybody why, and after a while ends as
 * on SIGTERM, with an exit code that a supervisor can tell: CUDA cannot bring a device back within
 * a process. */
#ifndef AGG_TRUNK_H
#define AGG_TRUNK_H

#include "aggregator.h"

enum { AGG_EXIT_DEVICE = 3 /* the exit code of an aggregator that has lost its GPU */ };

typedef struct agg_trunk_options {
    const char *device; /* as --trunk-device has it */
    int64_t timeout_s;  /* a step's work that takes longer: the GPU is lost */
    int64_t exit_s;     /* how long the process stays up then */
} agg_trunk_options;

/* Opens agg->trunk with agg->precision. The model, kernels and pool are open. */
SY_MUST_USE sy_status agg_trunk_open(aggregator *agg, const agg_trunk_options *options,
                                     sy_error *err);
/* 1, with the reason: its GPU is lost. Any thread. */
int agg_trunk_is_lost(const aggregator *agg, sy_strbuf *why);
/* On the control thread, every so often: ends the process where the time has come. */
void agg_trunk_tick(void *agg);
/* Ends the process at once where memory would be given back to a GPU that never answers, or an
 * exit code is to be told. */
void agg_trunk_end(const aggregator *agg);

#endif
