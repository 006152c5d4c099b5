/* expert_fetch.h - FetchShard, both sides: a node gives a shard that it has in memory to another
 * one, in chunks; or, when both have it on GPUs of one machine, it says where it lies, and the
 * other one copies it from there by CUDA IPC. The server side knows the model and the store; the
 * client side knows addresses. Neither knows placement, nor who should ask whom. */
#ifndef EXPERT_FETCH_H
#define EXPERT_FETCH_H

#include <stdatomic.h>

#include "sy_model.h"
#include "sy_rpc.h"
#include "sy_shard.h"

#define EXPERT_FETCH_PATH "/switchyard.v1.Expert/FetchShard"

enum {
    EXPERT_FETCH_CHUNK_BYTES = 256 << 10,
    EXPERT_FETCHES_MAX = 16, /* running on one server; past it SY_ELIMIT */
};

/* ---- giving ---- */
typedef struct expert_fetch_server expert_fetch_server;
typedef struct expert_fetch_server_config {
    const sy_model *model;    /* borrowed, as is the store: they outlive the server */
    sy_shard_store *store;    /* what is in it, with a probe hash, may be fetched */
    uint64_t bytes_per_s_max; /* of all fetches together; 0: no limit */
    int64_t stall_us;         /* a peer that takes nothing for so long is given up. 0: 10 s */
    int offers_slots;         /* to processes of this machine, what lies on GPUs */
    /* How long a shard is kept for who copies it out of its slot, besides what the bytes might take
     * under the limit. 0: 60 s */
    int64_t hold_us;
} expert_fetch_server_config;
/* Starts the sender, one thread of low priority. SY_ENOMEM, SY_EIO. */
SY_MUST_USE sy_status expert_fetch_server_open(expert_fetch_server **out,
                                               const expert_fetch_server_config *config,
                                               sy_error *err);
/* After sy_server_close (so after sy_service_wait): no callback runs any more. Accepts NULL. */
void expert_fetch_server_close(expert_fetch_server *server);
/* Callbacks of the method EXPERT_FETCH_PATH, .server_streams = 1, .ctx = the server. A shard that
 * is not in memory: FAILED_PRECONDITION (SHARD_NOT_RESIDENT); other content than the one asked
 * for: the same (SHARD_CHANGED); a shard that the model has not: NOT_FOUND. A running fetch holds
 * the call pending, so that a node that drains may still give its shards away.
 * Who is offered a slot has the shard kept there until it cancels the call or its time is over.
 * That opens the memory of the whole pool, so it must have shown a region that this process may
 * open (sy_shm.h): it is on this machine, and of a user who could read and write here anyway.
 * Everybody else, and who computes or lays slots out otherwise, gets bytes. */
void expert_fetch_message(void *ctx, sy_call *call, sy_msg *msg);
void expert_fetch_end(void *ctx, sy_call *call, int cancelled);
uint32_t expert_fetch_server_running(expert_fetch_server *server);
uint64_t expert_fetch_server_bytes(const expert_fetch_server *server); /* sent so far */
uint64_t expert_fetch_server_slots(const expert_fetch_server *server); /* offered so far */

/* ---- taking ---- */
/* Watches over every fetch of this node: one thread, which sleeps while there is none. */
typedef struct expert_fetcher expert_fetcher;
typedef struct expert_fetcher_config {
    const sy_model *model;     /* borrowed */
    sy_shard_store *store;     /* borrowed */
    const sy_kernels *kernels; /* what the probe runs with */
    int64_t stall_us;          /* a peer that sends nothing for so long is given up. 0: 5 s */
    int64_t total_us;          /* a whole shard must be here by then. 0: 10 min */
    int takes_slots;           /* for GPUs, from nodes of this machine: what it has not, it takes
                                  as bytes */
    size_t slot_step_bytes;    /* of a slot, between looks at the time. 0: 1 MB */
} expert_fetcher_config;
SY_MUST_USE sy_status expert_fetcher_open(expert_fetcher **out, const expert_fetcher_config *config,
                                          sy_error *err);
void expert_fetcher_close(expert_fetcher *fetcher); /* no fetch runs any more; accepts NULL */

typedef struct expert_source {
    const char *node;    /* for errors and logs */
    const char *address; /* of its gRPC server */
    /* It computes otherwise than this node, so the probe that it announces is another one: the
     * shard's bytes are compared alone. */
    int other_arithmetic;
} expert_source;

typedef struct expert_fetch_job {
    uint32_t layer, expert;
    sy_shard_home *home;         /* where it goes; NULL: into host memory */
    const expert_source *source; /* [n_sources], in order of preference */
    size_t n_sources;
    const atomic_int *stop; /* not 0: give up soon (SY_ECANCELLED); NULL: never */
    /* After each chunk that has been packed, or each megabyte of a slot, from the calling thread:
     * may sleep, to pace the load, less than the giver's patience (stall_us). added == total: all
     * bytes are there, the verification comes next. Begins at the front again when a source turned
     * out wrong. NULL: nobody cares. */
    void (*progress)(void *arg, uint64_t added, uint64_t total);
    void *progress_arg;
} expert_fetch_job;

typedef struct expert_fetched {
    size_t source;  /* the index of the one that sent the last byte */
    uint64_t bytes; /* of the shard */
    int is_slot;    /* it was copied from GPU to GPU */
} expert_fetched;

/* Fetches one shard, blocking: any thread, several at once for different shards. Chunks are checked
 * one by one. After a lost connection, or a peer that stalls or is busy, it goes on where it was, a
 * few times, from the next source that has the same content. A source that sends wrong bytes is
 * never asked again, and what it sent is thrown away; so is one that has not the shard. What a slot
 * gave is held against the hash and the probe that were announced; whatever is wrong with it, and
 * when it cannot be read at all, that source is asked for the bytes instead.
 *
 * SY_OK: *out is verified and exactly what the source announced; *fetched says how it came (fetched
 * may be NULL). The caller publishes or abandons it. Otherwise nothing is left in the store, and
 * err names the node, when it is about one:
 *  SY_EUNAVAILABLE, SY_EDEADLINE     nobody reachable, or busy: worth another try later
 *  SY_EPRECONDITION, SY_ENOTFOUND    no source has it (any more)
 *  SY_EINVAL                         a peer broke the protocol, or has another form
 *  SY_EDATALOSS                      damaged on the way, or other than announced
 *  SY_EEXISTS, SY_ELIMIT, SY_ENOMEM  of this node, as sy_shard_begin_on and
 *                                   sy_shard_add have them, as well as a device's own
 *  SY_ECANCELLED                     stop */
SY_MUST_USE sy_status expert_fetch(expert_fetcher *fetcher, sy_shard_builder **out,
                                   expert_fetched *fetched, const expert_fetch_job *job,
                                   sy_error *err);

#endif
