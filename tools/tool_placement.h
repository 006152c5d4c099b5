/* tool_placement.h - the default placement written to Redis, and what Redis holds resolved as the
 * servers resolve it. */
#ifndef TOOL_PLACEMENT_H
#define TOOL_PLACEMENT_H

#include "sy_model.h"
#include "tool_redis.h"

typedef struct tool_spread { /* borrowed during the call */
    const char *model;
    sy_grid grid;
    const char *const *device; /* [n_devices]: "expert-0/cpu:0" */
    size_t n_devices;
    int must_be_new;
    const char *reason, *command; /* for the history */
} tool_spread;

/* Writes the default spread. SY_EEXISTS: must_be_new, and there is a placement; SY_EINVAL: a device
 * does not parse; and what tool_redis_change says. */
SY_MUST_USE sy_status tool_placement_init(tool_redis *redis, const tool_spread *spread,
                                          sy_error *err);

/* The least dimensions that have room for every field that parses, for those of grid that are 0.
 * Where the layers are not known, one that no field speaks for has no experts: a placement in force
 * covers all that have. */
void tool_placement_guess(sy_grid *grid, const tool_hash *hash);

/* What a server that starts now would take. grid: what is 0 in it is guessed. SY_OK: the caller has
 * one reference to *out and ends *hash with tool_hash_free. SY_ENOTFOUND: there is no placement. */
SY_MUST_USE sy_status tool_placement_read(sy_snapshot **out, tool_hash *hash, tool_redis *redis,
                                          const char *model, const sy_grid *grid, sy_error *err);
/* "61 layers (those with experts: 3-60) of 256 experts". Returns out. */
#define TOOL_GRID_BYTES 128
const char *tool_grid_text(char out[TOOL_GRID_BYTES], const sy_grid *grid);
sy_grid tool_grid_of(const sy_model_desc *desc);

#endif
