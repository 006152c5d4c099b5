/* generate_load.h - `switchyard generate --concurrency N --repeat M`: many requests at once, their
 * latencies, and the check that equal requests have equal answers. */
#ifndef GENERATE_LOAD_H
#define GENERATE_LOAD_H

#include "client_call.h"
#include "tool_sampling.h"

typedef struct generate_load_config {
    client *client; /* with room for n_calls */
    const tool_sampling *sampling;
    const tool_prompts *prompts;
    const char *model;
    size_t n_calls;    /* at the same time */
    size_t n_requests; /* request i has prompt i modulo the number of prompts */
} generate_load_config;

/* Runs it all and prints what came of it. Returns the exit code: 1 when a request failed or an
 * answer differed. */
int generate_load_run(const generate_load_config *config);

#endif
