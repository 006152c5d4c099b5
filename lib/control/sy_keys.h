/* sy_keys.h - how a lease is spelled as a Redis hash. Only for lib/control. */
#ifndef SY_KEYS_H
#define SY_KEYS_H

#include "sy_control.h"

#define SY_KEY_BYTES     256
#define SY_LEASE_FIELDS  8
#define SY_LEASE_PID     7 /* its place among the fields; the only one that is a number */
#define SY_LEASE_ADDRESS 0

typedef struct sy_lease_field {
    const char *name;
    size_t offset, cap; /* of its text in sy_member; 0, 0 for the pid */
} sy_lease_field;
extern const sy_lease_field sy_lease_fields[SY_LEASE_FIELDS];

const char *sy_key_member_prefix(sy_member_kind kind); /* "switchyard:nodes:" */
int sy_name_is_good(const char *name, size_t n);       /* [A-Za-z0-9._-]+, fits sy_member.name */

#endif
