/* sy_shard_state.c - the names of the states. */
#include "sy_shard_state.h"

#include "sy_base.h"

const char *sy_shard_state_name(sy_shard_state state)
{
    static const char *const name[SY_N_SHARD_STATES] = {
        [SY_SHARD_ABSENT] = "absent",       [SY_SHARD_LOADING] = "loading",
        [SY_SHARD_VERIFYING] = "verifying", [SY_SHARD_RESIDENT] = "resident",
        [SY_SHARD_LINGERING] = "lingering", [SY_SHARD_FAILED] = "failed",
    };

    return (unsigned)state < SY_COUNT_OF(name) ? name[state] : "?";
}
