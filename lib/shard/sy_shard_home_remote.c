/* sy_shard_home_remote.c - a home's slots for other processes of this machine, and theirs for it.
 */
#include <string.h>

#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

sy_status sy_shard_offer_of(sy_shard_offer *out, const sy_shard *shard, sy_error *err)
{
    sy_shard_home *home = shard->home;
    char why[SY_BACKEND_WHY_BYTES] = "";

    *out = (sy_shard_offer){
        .slot = shard->slot, .home_hash = shard->home_hash, .identity = shard->identity};
    if (home == NULL)
        return sy_shard_refuse(shard, SY_EPRECONDITION, NULL, err, "it lies in host memory");
    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(home, home->backend->pool_export(&out->pool, home->pool, why), why,
                                err);
}

sy_status sy_shard_home_import(sy_backend_remote **out, sy_shard_home *home,
                               const sy_backend_export *from, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    *out = NULL;
    if (sy_shard_home_lost(home, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(home, home->backend->pool_import(out, home->pool, from, why), why,
                                err);
}

void sy_shard_home_close_remote(sy_shard_home *home, sy_backend_remote *remote)
{
    if (remote != NULL) home->backend->remote_close(remote);
}

sy_status sy_shard_home_pull(sy_shard_home *to, uint32_t to_slot, sy_backend_remote *from,
                             uint32_t from_slot, uint64_t offset, uint64_t n, sy_error *err)
{
    char why[SY_BACKEND_WHY_BYTES] = "";

    if (sy_shard_home_lost(to, err)) return SY_EUNAVAILABLE;
    return sy_shard_home_result(
        to, to->backend->slot_pull(to->pool, to_slot, from, from_slot, offset, n, why), why, err);
}
