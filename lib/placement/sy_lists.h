/* sy_lists.h - the different target lists of a placement, each stored once and numbered from 1. A
 * list never changes and is counted, so that a snapshot hands its lists on to the next one instead
 * of copying them. Inside lib/placement only. */
#ifndef SY_LISTS_H
#define SY_LISTS_H

#include "sy_placement.h"

typedef struct sy_list sy_list;

typedef struct sy_lists { /* zeroed: none */
    sy_list **at;         /* [n], number 1 first; one reference each */
    uint32_t n, capacity;
    uint32_t *slot; /* [n_slots]: numbers, found by the text's hash; only while lists are added */
    uint32_t n_slots;
} sy_lists;

/* *out: the same lists under the same numbers. SY_ENOMEM: *out is zeroed. */
SY_MUST_USE sy_status sy_lists_share(sy_lists *out, const sy_lists *lists);
void sy_lists_close(sy_lists *lists);

/* *number: of the list whose canonical text this is, 0 when there is none. SY_ENOMEM. */
SY_MUST_USE sy_status sy_lists_find(uint32_t *number, sy_lists *lists, const char *text, size_t n);
/* *number: of the list with these targets, which is added if there is none. SY_ENOMEM. */
SY_MUST_USE sy_status sy_lists_add(uint32_t *number, sy_lists *lists,
                                   const sy_target_list *targets);
/* is_kept: [n + 1], by number. The lists that are not kept go, the others move up; afterwards
 * is_kept[old number] is the new number, 0 for those that went. Ends the adding. */
void sy_lists_keep(sy_lists *lists, uint32_t *is_kept);

/* Is this the canonical text of the list? */
int sy_lists_is_text(const sy_lists *lists, uint32_t number, const char *text, size_t n);
const sy_target_list *sy_lists_targets(const sy_lists *lists, uint32_t number);
uint64_t sy_lists_hash(const sy_lists *lists, uint32_t number); /* FNV-1a of its text */

#endif
