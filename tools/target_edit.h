/* target_edit.h - edits of one value of the placement: the same targets with one more, one less, or
 * other shares. Pure. Lists are as sy_targets_parse leaves them, and stay such that it would take
 * them. */
#ifndef TARGET_EDIT_H
#define TARGET_EDIT_H

#include "sy_placement.h"

/* One "NODE/DEVICE", without share or shadow; "!" is allowed. SY_EINVAL. */
SY_MUST_USE sy_status target_parse(sy_target *out, const char *text, sy_error *err);
/* The same node and device; shares and "!" do not matter. */
int target_is_at(const sy_target *a, const sy_target *b);
/* Index of it in the list, or -1. */
int targets_find(const sy_target_list *list, const sy_target *target);
/* How many are no shadows. */
uint32_t targets_count_serving(const sy_target_list *list);

/* Scales the shares of the targets that serve to `sum` percent, in proportion, 1 at least; targets
 * without shares get equal ones. Shadows stay. SY_EINVAL: more targets than percents. */
SY_MUST_USE sy_status targets_scale(sy_target_list *list, uint32_t sum, sy_error *err);
/* Drops every target of the node. Shares that remain are scaled to 100. SY_ENOTFOUND: nothing but
 * shadows would remain, and the list is as it was. */
SY_MUST_USE sy_status targets_drop_node(sy_target_list *list, const char *node, sy_error *err);
/* Moves one target: its share, or that it is a shadow, goes with it. Where `to` is in the list
 * already, the two become one: shares are added, and of a shadow and one that serves, the one that
 * serves remains. SY_ENOTFOUND: `from` is not in it. */
SY_MUST_USE sy_status targets_move(sy_target_list *list, const sy_target *from, const sy_target *to,
                                   sy_error *err);
/* The two values of a canary. SY_EEXISTS: `to` serves already; SY_ELIMIT: no room for one more. */
SY_MUST_USE sy_status targets_with_shadow(sy_target_list *list, const sy_target *to, sy_error *err);
SY_MUST_USE sy_status targets_with_share(sy_target_list *list, const sy_target *to, uint32_t share,
                                         sy_error *err);

/* SY_ELIMIT: the text would be too long. */
SY_MUST_USE sy_status targets_text(char out[SY_PLACEMENT_VALUE_MAX], const sy_target_list *list,
                                   sy_error *err);

#endif
