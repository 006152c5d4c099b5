/* sy_shard_copy.c - a shard's bytes from the copy of it that this process has elsewhere: from GPU
 * to GPU slot by slot, any other way as rows; and from the one that another process of this machine
 * offers, from GPU to GPU alone. */
#include "sy_shard_home_internal.h"
#include "sy_shard_internal.h"

/* The copy, with a reference that the builder keeps: it stays readable even if it is unloaded. */
static sy_status find_source(sy_shard_builder *b, sy_error *err)
{
    const sy_shard *shard = b->shard;

    if (b->source != NULL) return SY_OK;
    if (b->store != NULL) b->source = sy_shard_get(b->store, shard->layer, shard->expert);
    if (b->source != NULL) return SY_OK;
    return sy_shard_refuse(shard, SY_ENOTFOUND, NULL, err,
                           "this process has no copy of it any more: load it another way");
}

/* Slots are longer than the bytes of their shards: those count in proportion. */
static uint64_t added_of(const sy_shard_builder *b, uint64_t slot_bytes)
{
    const double part = (double)b->copied_bytes / (double)slot_bytes;

    if (b->copied_bytes == slot_bytes) return b->total_bytes;
    return SY_MIN((uint64_t)(part * (double)b->total_bytes), b->total_bytes - 1);
}

static sy_status copy_slot(sy_shard_builder *b, size_t n_max, sy_error *err)
{
    const sy_shard *shard = b->shard;
    const uint64_t slot_bytes = sy_shard_home_slot_bytes(shard->home);
    const uint64_t at = b->copied_bytes, n = SY_MIN((uint64_t)n_max, slot_bytes - at);
    sy_status st = SY_OK;

    b->direct = 1;
    if (n > 0 && b->is_offered)
        st = sy_shard_home_pull(shard->home, shard->slot, b->remote, b->offer.slot, at, n, err);
    else if (n > 0)
        st = sy_shard_home_copy(shard->home, shard->slot, b->source, at, n, err);
    if (st != SY_OK) {
        b->failed = 1;
        return st;
    }
    b->copied_bytes += n;
    b->added_bytes = added_of(b, slot_bytes);
    return SY_OK;
}

/* In pieces of one panel's rows at most, which is what a device gives at once, and for which
 * `rounded` has room: nothing of what comes from a copy is rounded. */
static sy_status copy_rows(sy_shard_builder *b, size_t n_max, sy_error *err)
{
    size_t n, wanted;

    while (n_max > 0 && (wanted = sy_shard_builder_wants(b)) > 0) {
        wanted = SY_MIN(wanted, n_max);
        sy_status st = sy_shard_read(&n, b->source, b->added_bytes, b->rounded, wanted, err);
        if (st == SY_OK) st = sy_shard_add(b, b->rounded, n, err);
        if (st != SY_OK) {
            b->failed = 1;
            return st;
        }
        n_max -= n;
    }
    return SY_OK;
}

sy_status sy_shard_add_from_copy(sy_shard_builder *b, size_t n_max, int *done, sy_error *err)
{
    const sy_shard *shard = b->shard;
    sy_status st;

    *done = 0;
    if (!b->direct || b->failed || b->is_offered) {
        st = sy_shard_builder_choose(b, &b->held, err);
        if (st != SY_OK) return st;
    }
    if (b->verified) return sy_shard_refuse(shard, SY_EPRECONDITION, NULL, err, "it is complete");
    st = find_source(b, err);
    if (st != SY_OK) return st;
    const sy_shard_home *from = b->source->home;
    const int is_direct = from != NULL && shard->home != NULL &&
                          (b->direct || b->added_bytes == 0) &&
                          sy_shard_home_is_alike(shard->home, from);
    st = is_direct ? copy_slot(b, n_max, err) : copy_rows(b, n_max, err);
    if (st != SY_OK) return st;
    *done = b->added_bytes == b->total_bytes;
    return SY_OK;
}

/* ---- from another process ---- */

/* Before the first byte. */
static sy_status open_offer(sy_shard_builder *b, const sy_shard_offer *from, sy_error *err)
{
    sy_status st = sy_shard_builder_choose(b, &b->held, err);

    if (st != SY_OK) return st;
    if (b->shard->home == NULL)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err, "it goes into host memory");
    if (b->added_bytes > 0)
        return sy_shard_refuse(b->shard, SY_EPRECONDITION, NULL, err,
                               "it was begun with bytes: begin again");
    st = sy_shard_home_import(&b->remote, b->shard->home, &from->pool, err);
    if (st != SY_OK) {
        b->failed = 1;
        return st;
    }
    b->is_offered = 1;
    b->direct = 1;
    b->offer = *from;
    return SY_OK;
}

sy_status sy_shard_add_from_offer(sy_shard_builder *b, const sy_shard_offer *from, size_t n_max,
                                  int *done, sy_error *err)
{
    sy_status st;

    *done = 0;
    if (!b->is_offered || b->failed) {
        st = open_offer(b, from, err);
        if (st != SY_OK) return st;
    }
    st = copy_slot(b, n_max, err);
    if (st != SY_OK) return st;
    *done = b->added_bytes == b->total_bytes;
    if (*done) { /* memory that somebody has open stays taken when its owner ends */
        sy_shard_home_close_remote(b->shard->home, b->remote);
        b->remote = NULL;
    }
    return SY_OK;
}
