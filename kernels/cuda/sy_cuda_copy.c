/* sy_cuda_copy.c - whole slots between pools: of this process, directly where the devices see each
 * other, and from another process of this machine by CUDA IPC. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "sy_cuda_pool_internal.h"

struct sy_backend_remote {
    sy_backend_pool *like; /* borrowed: it outlives its remotes */
    unsigned char *slab;   /* the other's, in this process's addresses */
    uint32_t n_slots;
};

/* Where bytes come from, and where they go. */
typedef struct way_of_bytes {
    sy_backend_pool *to;
    sy_cuda_way *way; /* of `to`, locked */
    unsigned char *to_at;
    sy_backend_pool *from; /* NULL: another process's */
    const unsigned char *from_at;
    uint64_t n;
} way_of_bytes;

static int is_alike(const sy_backend_pool *a, const sy_backend_pool *b)
{
    return a->config.hidden == b->config.hidden && a->config.ffn == b->config.ffn &&
           a->config.weights == b->config.weights &&
           (a->config.has_bias != 0) == (b->config.has_bias != 0);
}

static int check_range(const sy_backend_pool *pool, uint64_t offset, uint64_t n, char *why)
{
    const uint64_t bytes = pool->layout.stride;

    if (offset <= bytes && n <= bytes - offset) return SY_BACKEND_OK;
    return REFUSE(why, SY_BACKEND_EINVAL, "%llu bytes at %llu of a slot of %llu",
                  (unsigned long long)n, (unsigned long long)offset, (unsigned long long)bytes);
}

static uint64_t part_of(const way_of_bytes *w, uint64_t at)
{
    return w->n - at < SY_CUDA_COPY_BYTES ? w->n - at : SY_CUDA_COPY_BYTES;
}

/* ---- between devices ---- */

/* Whether the one device can read the other's memory, and may from now on. The device of `to` is
 * current. */
static int reach(int *can, const way_of_bytes *w, char *why)
{
    const int to = w->to->handle->device, from = w->from->handle->device;
    cudaError_t e;
    int result = SY_BACKEND_OK;

    *can = 1;
    if (to == from) return SY_BACKEND_OK;
    TRY(cudaDeviceCanAccessPeer(can, to, from), "cudaDeviceCanAccessPeer");
    if (!*can) return SY_BACKEND_OK;
    e = cudaDeviceEnablePeerAccess(from, 0);
    if (e == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        e = cudaSuccess;
    }
    TRY(e, "cudaDeviceEnablePeerAccess");
out:
    return result;
}

static int enqueue_direct(const way_of_bytes *w, char *why)
{
    const cudaStream_t stream = w->way->stream;
    int result = SY_BACKEND_OK;

    for (uint64_t at = 0; at < w->n; at += SY_CUDA_COPY_BYTES) {
        if (w->from == NULL || w->from->handle->device == w->to->handle->device)
            TRY(cudaMemcpyAsync(w->to_at + at, w->from_at + at, part_of(w, at),
                                cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpyAsync");
        else
            TRY(cudaMemcpyPeerAsync(w->to_at + at, w->to->handle->device, w->from_at + at,
                                    w->from->handle->device, part_of(w, at), stream),
                "cudaMemcpyPeerAsync");
    }
out:
    return result;
}

/* Out of the one device and into the other, a piece of `to` after the other; each of the two copies
 * of a piece waits for the other on its device, and nobody on the host but for a free piece. */
static int enqueue_relayed(const way_of_bytes *w, cudaStream_t from_stream, cudaEvent_t passed,
                           char *why)
{
    const int to_device = w->to->handle->device, from_device = w->from->handle->device;
    sy_cuda_piece *piece;
    int result = SY_BACKEND_OK;

    for (uint64_t at = 0; at < w->n; at += SY_CUDA_COPY_BYTES) {
        const uint64_t n = part_of(w, at);

        if ((result = sy_cuda_piece_take(&piece, w->way, why)) != SY_BACKEND_OK) goto out;
        TRY(cudaSetDevice(from_device), "cudaSetDevice");
        TRY(cudaMemcpyAsync(piece->host, w->from_at + at, n, cudaMemcpyDeviceToHost, from_stream),
            "cudaMemcpyAsync");
        TRY(cudaEventRecord(passed, from_stream), "cudaEventRecord");
        TRY(cudaSetDevice(to_device), "cudaSetDevice");
        TRY(cudaStreamWaitEvent(w->way->stream, passed, 0), "cudaStreamWaitEvent");
        TRY(cudaMemcpyAsync(w->to_at + at, piece->host, n, cudaMemcpyHostToDevice, w->way->stream),
            "cudaMemcpyAsync");
        TRY(cudaEventRecord(piece->done, w->way->stream), "cudaEventRecord");
    }
out:
    return result;
}

/* `passed` is an event of the device that gives, recorded behind all that was written into the slot
 * before. */
static int enqueue_copy(const way_of_bytes *w, cudaStream_t from_stream, cudaEvent_t passed,
                        char *why)
{
    int can;
    int result;

    TRY(cudaEventRecord(passed, from_stream), "cudaEventRecord");
    TRY(cudaSetDevice(w->to->handle->device), "cudaSetDevice");
    TRY(cudaStreamWaitEvent(w->way->stream, passed, 0), "cudaStreamWaitEvent");
    if ((result = reach(&can, w, why)) != SY_BACKEND_OK) goto out;
    result = can ? enqueue_direct(w, why) : enqueue_relayed(w, from_stream, passed, why);
out:
    return result;
}

/* Waits for both sides, whatever the result: `passed` ends, and pieces are used again. Which device
 * is lost, if one is, its own stream tells. */
static int settle_both(const way_of_bytes *w, cudaStream_t from_stream, int result, char *why)
{
    char from_why[SY_BACKEND_WHY_BYTES], to_why[SY_BACKEND_WHY_BYTES];
    const int from_result = sy_cuda_settle_stream(from_stream, from_why);
    const int to_result = sy_cuda_settle_stream(w->way->stream, to_why);

    (void)sy_cuda_pool_leave(w->from, from_result, from_why);
    (void)sy_cuda_pool_leave(w->to, to_result, to_why);
    if (result == SY_BACKEND_EDEVLOST && from_result != SY_BACKEND_EDEVLOST)
        return sy_cuda_pool_leave(w->to, result, why);
    if (result != SY_BACKEND_OK) return result;
    if (to_result != SY_BACKEND_OK) return REFUSE(why, to_result, "%s", to_why);
    if (from_result != SY_BACKEND_OK) return REFUSE(why, from_result, "%s", from_why);
    return SY_BACKEND_OK;
}

static int copy_between(const way_of_bytes *w, cudaStream_t from_stream, char *why)
{
    cudaEvent_t passed = NULL;
    int result;

    TRY(cudaSetDevice(w->from->handle->device), "cudaSetDevice");
    TRY(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    result = enqueue_copy(w, from_stream, passed, why);
out:
    result = settle_both(w, from_stream, result, why);
    if (passed != NULL) sy_cuda_forget(cudaEventDestroy(passed));
    return result;
}

int sy_cuda_slot_copy(sy_backend_pool *to, uint32_t to_slot, sy_backend_pool *from,
                      uint32_t from_slot, uint64_t offset, uint64_t n, char *why)
{
    way_of_bytes w = {.to = to, .from = from, .n = n};
    int result;

    if (!is_alike(to, from))
        return REFUSE(why, SY_BACKEND_EINVAL, "the two pools hold experts of different forms");
    if ((result = sy_cuda_check_slot(to, to_slot, why)) != SY_BACKEND_OK ||
        (result = sy_cuda_check_slot(from, from_slot, why)) != SY_BACKEND_OK ||
        (result = check_range(to, offset, n, why)) != SY_BACKEND_OK)
        return result;
    result = sy_cuda_pool_enter(from, why);
    if (result != SY_BACKEND_OK) return sy_cuda_pool_leave(from, result, why);
    result = sy_cuda_pool_enter(to, why);
    if (result != SY_BACKEND_OK || n == 0) return sy_cuda_pool_leave(to, result, why);
    sy_cuda_factors_forget(to, to_slot);
    w.way = sy_cuda_way_of(to, to_slot);
    w.to_at = sy_cuda_slot_at(to, to_slot) + offset;
    w.from_at = sy_cuda_slot_at(from, from_slot) + offset;
    pthread_mutex_lock(&w.way->mutex);
    /* The other's way is not locked: two pools that copy from each other would wait for each other.
     * Its stream takes what comes in order, and its pieces are left alone. */
    result = copy_between(&w, sy_cuda_way_of(from, from_slot)->stream, why);
    pthread_mutex_unlock(&w.way->mutex);
    return result;
}

/* ---- between processes ---- */

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(((sy_backend_export *)0)->handle),
               "an export carries a handle of CUDA's");

int sy_cuda_pool_export(sy_backend_export *out, sy_backend_pool *pool, char *why)
{
    cudaIpcMemHandle_t handle;
    int result = sy_cuda_pool_enter(pool, why);

    *out = (sy_backend_export){.slot_bytes = pool->layout.stride, .n_slots = pool->info.n_slots};
    if (result != SY_BACKEND_OK) goto out;
    TRY(cudaIpcGetMemHandle(&handle, pool->slab), "cudaIpcGetMemHandle");
    memcpy(out->handle, &handle, sizeof(handle));
out:
    return sy_cuda_pool_leave(pool, result, why);
}

/* What was opened is a slab if it begins like one: that the owner's words are not taken for, since
 * a copy past the end of what was opened would end this process's use of the device. */
static int check_head(uint32_t *n_slots, const unsigned char *slab, sy_backend_pool *like,
                      sy_cuda_way *way, char *why)
{
    sy_cuda_slab_head mine, head;
    sy_cuda_piece *piece;
    int result;

    sy_cuda_slab_describe(&mine, like);
    if ((result = sy_cuda_piece_take(&piece, way, why)) != SY_BACKEND_OK) goto out;
    TRY(cudaMemcpyAsync(piece->host, slab, sizeof(head), cudaMemcpyDeviceToHost, way->stream),
        "cudaMemcpyAsync");
    TRY(cudaEventRecord(piece->done, way->stream), "cudaEventRecord");
    if ((result = sy_cuda_settle_event(piece->done, why)) != SY_BACKEND_OK) goto out;
    memcpy(&head, piece->host, sizeof(head));
    *n_slots = head.n_slots;
    mine.n_slots = head.n_slots;
    if (memcmp(&head, &mine, sizeof(head)) != 0)
        return REFUSE(why, SY_BACKEND_EINVAL, "what was opened is no pool of such experts");
out:
    return result;
}

static int open_slab(sy_backend_remote *self, const sy_backend_export *from, char *why)
{
    sy_cuda_way *way = &self->like->way[0];
    cudaIpcMemHandle_t handle;
    void *slab = NULL;
    int result;

    memcpy(&handle, from->handle, sizeof(handle));
    TRY(cudaIpcOpenMemHandle(&slab, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
    self->slab = slab;
    pthread_mutex_lock(&way->mutex);
    result = check_head(&self->n_slots, slab, self->like, way, why);
    pthread_mutex_unlock(&way->mutex);
out:
    return result;
}

int sy_cuda_pool_import(sy_backend_remote **out, sy_backend_pool *like,
                        const sy_backend_export *from, char *why)
{
    sy_backend_remote *self = NULL;
    int result;

    *out = NULL;
    if (from->slot_bytes != like->layout.stride)
        return REFUSE(
            why, SY_BACKEND_EINVAL, "the other pool's slots have %llu bytes, and not %llu",
            (unsigned long long)from->slot_bytes, (unsigned long long)like->layout.stride);
    result = sy_cuda_pool_enter(like, why);
    if (result != SY_BACKEND_OK) goto out;
    self = calloc(1, sizeof(*self));
    if (self == NULL) {
        result = REFUSE(why, SY_BACKEND_ENOMEM, "no memory for another process's pool");
        goto out;
    }
    self->like = like;
    result = open_slab(self, from, why);
    if (result != SY_BACKEND_OK) goto out;
    *out = self;
    self = NULL;
out:
    sy_cuda_remote_close(self);
    return sy_cuda_pool_leave(like, result, why);
}

void sy_cuda_remote_close(sy_backend_remote *remote)
{
    if (remote == NULL) return;
    if (remote->slab != NULL) {
        sy_cuda_forget(cudaSetDevice(remote->like->handle->device));
        sy_cuda_forget(cudaIpcCloseMemHandle(remote->slab));
    }
    free(remote);
}

int sy_cuda_slot_pull(sy_backend_pool *to, uint32_t to_slot, sy_backend_remote *from,
                      uint32_t from_slot, uint64_t offset, uint64_t n, char *why)
{
    const sy_cuda_layout *layout = &to->layout;
    way_of_bytes w = {.to = to, .n = n};
    char other[SY_BACKEND_WHY_BYTES];
    int result, settled;

    if (from_slot >= from->n_slots)
        return REFUSE(why, SY_BACKEND_EINVAL, "slot %u of the other pool's %u", from_slot,
                      from->n_slots);
    if (!is_alike(to, from->like))
        return REFUSE(why, SY_BACKEND_EINVAL, "the two pools hold experts of different forms");
    if ((result = sy_cuda_check_slot(to, to_slot, why)) != SY_BACKEND_OK ||
        (result = check_range(to, offset, n, why)) != SY_BACKEND_OK)
        return result;
    result = sy_cuda_pool_enter(to, why);
    if (result != SY_BACKEND_OK || n == 0) return sy_cuda_pool_leave(to, result, why);
    sy_cuda_factors_forget(to, to_slot);
    w.way = sy_cuda_way_of(to, to_slot);
    w.to_at = sy_cuda_slot_at(to, to_slot) + offset;
    w.from_at = from->slab + layout->first + from_slot * layout->stride + offset;
    pthread_mutex_lock(&w.way->mutex);
    result = enqueue_direct(&w, why);
    settled = sy_cuda_settle_stream(w.way->stream, other);
    pthread_mutex_unlock(&w.way->mutex);
    if (result == SY_BACKEND_OK && settled != SY_BACKEND_OK)
        result = REFUSE(why, settled, "%s", other);
    return sy_cuda_pool_leave(to, result, why);
}
