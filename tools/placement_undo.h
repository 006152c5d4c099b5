/* placement_undo.h - what undoing entries of the history takes. Pure, but for the map. */
#ifndef PLACEMENT_UNDO_H
#define PLACEMENT_UNDO_H

#include "field_map.h"
#include "placement_history.h"

/* Sets the entry's fields to what they were before it. SY_EEXISTS (reason "PLACEMENT_CHANGED"): a
 * field is not what the entry made of it, and force is 0; SY_EPRECONDITION: the entry does not say
 * what it changed; SY_ENOMEM. */
SY_MUST_USE sy_status undo_entry(field_map *map, const history_entry *entry, int force,
                                 sy_error *err);

#endif
