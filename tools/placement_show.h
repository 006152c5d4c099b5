/* placement_show.h - a placement for programs and for people, on stdout. */
#ifndef PLACEMENT_SHOW_H
#define PLACEMENT_SHOW_H

#include "tool_redis.h"

/* hash: the fields that snapshot was built from; is_line: on one line. Returns the exit code. */
int placement_show_json(const char *model, const sy_snapshot *snapshot, const tool_hash *hash,
                        int is_line);
/* only_layer: -1 for a table of all. SY_EINVAL: the model has no such layer. */
SY_MUST_USE sy_status placement_show_text(const char *model, const sy_snapshot *snapshot,
                                          int64_t only_layer, sy_error *err);

#endif
