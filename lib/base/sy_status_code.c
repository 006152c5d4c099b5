/* sy_status_code.c - statuses as google.rpc.Code numbers and back. */
#include "sy_status.h"

static const int code_of[SY_N_STATUS] = {
    [SY_OK] = 0,
    [SY_ECANCELLED] = 1,
    [SY_EINVAL] = 3,
    [SY_EDEADLINE] = 4,
    [SY_ENOTFOUND] = 5,
    [SY_EEXISTS] = 6,
    [SY_ELIMIT] = 8,
    [SY_ENOMEM] = 8,
    [SY_EPRECONDITION] = 9,
    [SY_EUNIMPLEMENTED] = 12,
    [SY_EIO] = 13,
    [SY_EINTERNAL] = 13,
    [SY_EUNAVAILABLE] = 14,
    [SY_EDATALOSS] = 15,
};

int sy_status_code(sy_status status)
{
    return (unsigned)status < SY_N_STATUS ? code_of[status] : code_of[SY_EINTERNAL];
}

sy_status sy_status_from_code(int code)
{
    switch (code) {
    case 0: return SY_OK;
    case 1: return SY_ECANCELLED;
    case 3: return SY_EINVAL;
    case 4: return SY_EDEADLINE;
    case 5: return SY_ENOTFOUND;
    case 6: return SY_EEXISTS;
    case 8: return SY_ELIMIT;
    case 9: return SY_EPRECONDITION;
    case 12: return SY_EUNIMPLEMENTED;
    case 14: return SY_EUNAVAILABLE;
    case 15: return SY_EDATALOSS;
    default: return SY_EINTERNAL;
    }
}
