/* placement_move.h - moving experts from one device to another: the fields to edit. Pure. */
#ifndef PLACEMENT_MOVE_H
#define PLACEMENT_MOVE_H

#include "field_map.h"

typedef struct move_what {
    sy_field field; /* a pattern: every expert that it covers and whose targets name `from` */
    sy_target from, to;
    sy_grid grid;
    int64_t count; /* at most so many experts; -1: all */
} move_what;

/* Other targets of an expert stay. A field is edited as a whole where it speaks for no expert but
 * those of the pattern; where a wider one speaks, an expert gets a field of its own. n_moved: how
 * many experts. SY_ENOMEM, and what targets_move says. */
SY_MUST_USE sy_status placement_move(size_t *n_moved, field_map *map, const move_what *what,
                                     sy_error *err);

/* Sets the value of one expert: the field that speaks for it when it is its own, else a new one. */
SY_MUST_USE sy_status placement_set_expert(field_map *map, uint32_t layer, uint32_t expert,
                                           const sy_target_list *list, sy_error *err);
/* The targets that Redis asks for now. SY_ENOTFOUND: none. *field: who speaks. */
SY_MUST_USE sy_status placement_of_expert(sy_target_list *out, const char **field,
                                          const field_map *map, uint32_t layer, uint32_t expert);

#endif
