/* sy_members.h - the leases of one kind, as a list that is kept up to date. The loop's thread only.
 * Only for lib/control. */
#ifndef SY_MEMBERS_H
#define SY_MEMBERS_H

#include "sy_control.h"
#include "sy_primary.h"

typedef struct sy_members sy_members;

typedef struct sy_members_config {
    sy_primary *commands; /* borrowed */
    sy_member_kind kind;
    int64_t lease_us;
    const char
        *model; /* borrowed; its placement tells a wiped Redis from members that left. Or NULL */
    void *ctx;
    void (*on_members)(void *ctx, sy_member_kind kind, const sy_member *member, size_t n);
} sy_members_config;

SY_MUST_USE sy_status sy_members_open(sy_members **out, const sy_members_config *config);
void sy_members_free(sy_members *members); /* when no answer can come any more; accepts NULL */
/* Redis is back: whoever is missing gets one lease_us to come back as well. Then lists. */
void sy_members_on_up(sy_members *members);
void sy_members_list(
    sy_members *members); /* does nothing while Redis is away, or one is going on */
/* After a hint: one that is going on may have passed by what has changed, so another follows it. */
void sy_members_list_again(sy_members *members);

#endif
