/* sy_keys.c - the names of things in Redis, in one place. docs/placement.md has the contract. */
#include "sy_keys.h"

#include <stdio.h>

#define TEXT_FIELD(member)                                                     \
    {                                                                          \
#member, offsetof(sy_member, member), sizeof(((sy_member *)0)->member) \
    }

const sy_lease_field sy_lease_fields[SY_LEASE_FIELDS] = {
    [SY_LEASE_ADDRESS] = TEXT_FIELD(address),
    TEXT_FIELD(http),
    TEXT_FIELD(model),
    TEXT_FIELD(devices),
    TEXT_FIELD(state),
    TEXT_FIELD(version),
    TEXT_FIELD(structure_hash),
    TEXT_FIELD(checkpoint_hash),
    TEXT_FIELD(arithmetic),
    [SY_LEASE_PID] = {"pid", 0, 0},
};

static sy_status check_fit(int len, size_t cap)
{
    return len >= 0 && (size_t)len < cap ? SY_OK : SY_ELIMIT;
}

sy_status sy_key_placement(char *out, size_t cap, const char *model)
{
    return check_fit(snprintf(out, cap, SY_KEY_ROOT "{%s}:placement", model), cap);
}

const char *sy_key_member_prefix(sy_member_kind kind)
{
    switch (kind) {
    case SY_MEMBER_NODE: return SY_KEY_ROOT "nodes:";
    case SY_MEMBER_ROUTER: return SY_KEY_ROOT "routers:";
    case SY_MEMBER_AGGREGATOR: break;
    }
    return SY_KEY_ROOT "aggregators:";
}

sy_status sy_key_member(char *out, size_t cap, sy_member_kind kind, const char *name)
{
    return check_fit(snprintf(out, cap, "%s%s", sy_key_member_prefix(kind), name), cap);
}

int sy_name_is_good(const char *name, size_t n)
{
    if (n == 0 || n >= sizeof(((sy_member *)0)->name)) return 0;
    for (size_t i = 0; i < n; i++) {
        const char c = name[i];

        if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' &&
            c != '_' && c != '-') {
            return 0;
        }
    }
    return 1;
}
