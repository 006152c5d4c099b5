/* sy_keys.h - how a lease is spelled as a Redis hash. Only for lib/control. */
#ifndef SY_KEYS_H
#define SY_KEYS_H

#include "sy_control.h"

#define SY_KEY_BYTES     256
#define SY_LEASE_FIELDS  10
#define SY_LEASE_PID     9 /* its place among the fields; the only one that is a number */
#define SY_LEASE_ADDRESS 0
#define SY_KEY_ROOT      "switchyard:"
/* Where processes say that their lease has changed. The message is the lease's key without its
 * root, "nodes:expert-a"; it is a hint, and nothing is lost with it but time. */
#define SY_MEMBERS_CHANNEL SY_KEY_ROOT "members"

typedef struct sy_lease_field {
    const char *name;
    size_t offset, cap; /* of its text in sy_member; 0, 0 for the pid */
} sy_lease_field;
extern const sy_lease_field sy_lease_fields[SY_LEASE_FIELDS];

const char *sy_key_member_prefix(sy_member_kind kind); /* "switchyard:nodes:" */
int sy_name_is_good(const char *name, size_t n);       /* [A-Za-z0-9._-]+, fits sy_member.name */

#endif
