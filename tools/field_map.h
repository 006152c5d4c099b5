/* field_map.h - the placement hash in memory: what was read, and what it shall become. The
 * difference is what tool_redis_change is given. */
#ifndef FIELD_MAP_H
#define FIELD_MAP_H

#include "tool_redis.h"

typedef struct field_map field_map;

typedef enum field_side { FIELD_BEFORE, FIELD_AFTER } field_side;

/* Copies everything. SY_ENOMEM. */
SY_MUST_USE sy_status field_map_open(field_map **out, const tool_hash *hash, sy_error *err);
void field_map_close(field_map *map); /* accepts NULL */
/* NULL: not there. Lives until it is set again. */
const char *field_map_get(const field_map *map, const char *field, field_side side);
/* value NULL: the field goes. Copies both. A field that is set to what it was is guarded: the edit
 * fails if somebody changes it meanwhile. */
SY_MUST_USE sy_status field_map_set(field_map *map, const char *field, const char *value);
/* What the edit shall find there, if that is not what was read. Copies it; NULL: nothing. */
SY_MUST_USE sy_status field_map_expect(field_map *map, const char *field, const char *before);
/* Every field, in no order; stops when fn fails and returns that. fn may set fields that are there.
 */
SY_MUST_USE sy_status field_map_each(
    field_map *map, sy_status (*fn)(void *arg, const char *field, const char *value), void *arg);
/* *out: [*n], the fields that were set, sorted by name; borrowed from the map, until it changes. */
SY_MUST_USE sy_status field_map_changes(const tool_field_change **out, size_t *n, field_map *map);
/* As a server that starts would take it. */
SY_MUST_USE sy_status field_map_snapshot(sy_snapshot **out, const field_map *map, field_side side,
                                         const sy_grid *grid, sy_error *err);
/* The text of the field whose value speaks for an expert, most specific first, or NULL. */
const char *field_map_speaker(const field_map *map, uint32_t layer, uint32_t expert,
                              field_side side);

#endif
