/* sy_shard_remote.h - a shard in the memory of a GPU that another process of this machine has: what
 * that process tells of it, and its slot from there, by CUDA IPC, without passing through a host.
 *
 * What is told is another's word. A wrong word costs a slot that is not taken, never one that is
 * taken wrong: the other memory is opened only as a pool like one's own, and what came from it is
 * verified as bytes are, besides that it must have the hashes that were announced
 * (sy_shard_verify). */
#ifndef SY_SHARD_REMOTE_H
#define SY_SHARD_REMOTE_H

#include "sy_shard_home.h"

typedef struct sy_shard_offer {
    sy_backend_export pool; /* opens the memory of all slots of its home */
    uint32_t slot;
    uint64_t home_hash;         /* of what lies in the slot */
    sy_shard_identity identity; /* its probe is of the arithmetic of the one that takes it */
} sy_shard_offer;

/* The giving side. shard: verified and held by the caller, as long as others may read it there.
 * SY_EPRECONDITION: it lies in host memory. Any thread. */
SY_MUST_USE sy_status sy_shard_offer_of(sy_shard_offer *out, const sy_shard *shard, sy_error *err);

/* The taking side, as sy_shard_add_from_copy: the next at most n_max bytes of the slot; *done: all
 * are there, and the other's memory is closed again. from: the same in every call for a builder,
 * which is for a home. What comes is only copied: weights that are no numbers are the giver's to
 * refuse. SY_EINVAL, SY_EIO: what is offered is not there (any more), is no pool of such experts,
 * or is memory that this device cannot read; the builder can only be abandoned then.
 * SY_EPRECONDITION: it was begun otherwise. */
SY_MUST_USE sy_status sy_shard_add_from_offer(sy_shard_builder *builder, const sy_shard_offer *from,
                                              size_t n_max, int *done, sy_error *err);

#endif
