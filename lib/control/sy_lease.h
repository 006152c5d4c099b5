/* sy_lease.h - this process' own lease in Redis: written, renewed, withdrawn. The loop's thread
 * only. Only for lib/control. */
#ifndef SY_LEASE_H
#define SY_LEASE_H

#include "sy_control.h"
#include "sy_primary.h"

typedef struct sy_lease sy_lease;

/* on_withdrawn: once for each sy_lease_withdraw, possibly before it returns. */
SY_MUST_USE sy_status sy_lease_open(sy_lease **out, sy_primary *commands, int64_t lease_us,
                                    void (*on_withdrawn)(void *ctx), void *ctx);
void sy_lease_free(sy_lease *lease); /* when no answer can come any more; accepts NULL */
void sy_lease_announce(sy_lease *lease, sy_member_kind kind, const sy_member *self);
void sy_lease_renew(sy_lease *lease); /* now; does nothing when nothing is announced */
void sy_lease_on_up(sy_lease *lease); /* Redis is back: renews, and tells the others */
void sy_lease_withdraw(sy_lease *lease);

#endif
