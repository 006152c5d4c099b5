/* tool_placement.h - the default placement written to Redis, and what Redis holds resolved as the
 * servers resolve it. */
#ifndef TOOL_PLACEMENT_H
#define TOOL_PLACEMENT_H

#include "tool_redis.h"

typedef struct tool_spread { /* borrowed during the call */
    const char *model;
    uint32_t layers, experts;
    const char *const *device; /* [n_devices]: "expert-0/cpu:0" */
    size_t n_devices;
    int must_be_new;
    const char *reason, *command; /* for the history */
} tool_spread;

/* Writes the default spread. SY_EEXISTS: must_be_new, and there is a placement; SY_EINVAL: a device
 * does not parse; and what tool_redis_change says. */
SY_MUST_USE sy_status tool_placement_init(tool_redis *redis, const tool_spread *spread,
                                          sy_error *err);

/* The least dimensions that have room for every field that parses, for those that are 0. */
void tool_placement_guess(const tool_hash *hash, uint32_t *layers, uint32_t *experts);

/* What a server that starts now would take. layers or experts 0: as many as the fields name. SY_OK:
 * the caller has one reference to *out and ends *hash with tool_hash_free. SY_ENOTFOUND: there is
 * no placement. */
SY_MUST_USE sy_status tool_placement_read(sy_snapshot **out, tool_hash *hash, tool_redis *redis,
                                          const char *model, uint32_t layers, uint32_t experts,
                                          sy_error *err);

#endif
