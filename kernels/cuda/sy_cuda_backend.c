/* sy_cuda_backend.c - the plugin libswitchyard_cuda.so: sy_backend.h over CUDA's runtime, which is
 * linked into it. Nothing else of CUDA is needed to load it: without a driver it loads and says so.
 * Here are the opened device and the table; the other files of this folder fill it.
 *
 * Every owner of work has streams of its own, and the default stream is never used: work of
 * different owners must not wait for each other. The runtime's current device belongs to the
 * thread, so every call sets it. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "sy_cuda_internal.h"

enum { CLOSE_US = 5 * 1000000 }; /* for what is under way when something is closed */

static void close_device(sy_backend_handle *handle)
{
    if (handle == NULL) return;
    sy_cuda_forget(cudaSetDevice(handle->device));
    sy_cuda_packer_close(handle);
    if (handle->stream != NULL && !atomic_load(&handle->is_hanging))
        sy_cuda_forget(cudaStreamDestroy(handle->stream));
    pthread_mutex_destroy(&handle->packer_mutex);
    pthread_mutex_destroy(&handle->lost_mutex);
    free(handle);
}

static int open_device(sy_backend_handle **out, uint32_t device, char *why)
{
    sy_backend_handle *self = NULL;
    int count = 0;
    int result;

    *out = NULL;
    TRY(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count < 0 || device >= (uint32_t)count)
        return REFUSE(why, SY_BACKEND_EINVAL, "there is no device %u: there are %d", device, count);
    self = calloc(1, sizeof(*self));
    if (self == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for a handle");
    self->device = (int)device;
    pthread_mutex_init(&self->packer_mutex, NULL);
    pthread_mutex_init(&self->lost_mutex, NULL);
    TRY(cudaSetDevice(self->device), "cudaSetDevice");
    TRY(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking),
        "cudaStreamCreateWithFlags");
    *out = self;
    self = NULL;
out:
    close_device(self);
    return result;
}

static int memory(sy_backend_handle *handle, uint64_t *free_bytes, uint64_t *total_bytes, char *why)
{
    size_t n_free = 0, n_total = 0;
    int result = sy_cuda_enter(handle, why);

    if (result != SY_BACKEND_OK) return result;
    TRY(cudaMemGetInfo(&n_free, &n_total), "cudaMemGetInfo");
    *free_bytes = n_free;
    *total_bytes = n_total;
out:
    return sy_cuda_leave(handle, result, why);
}

/* ---- loss ---- */

int sy_cuda_enter(sy_backend_handle *handle, char *why)
{
    if (atomic_load_explicit(&handle->is_lost, memory_order_acquire))
        return REFUSE(why, SY_BACKEND_EDEVLOST, "device %d was lost before: %.200s", handle->device,
                      handle->lost_why);
    return sy_cuda_leave(handle,
                         sy_cuda_failed(why, cudaSetDevice(handle->device), "cudaSetDevice"), why);
}

int sy_cuda_leave(sy_backend_handle *handle, int result, const char *why)
{
    if (result != SY_BACKEND_EDEVLOST) return result;
    pthread_mutex_lock(&handle->lost_mutex);
    if (!atomic_load_explicit(&handle->is_lost, memory_order_relaxed)) {
        snprintf(handle->lost_why, sizeof(handle->lost_why), "%s", why);
        atomic_store_explicit(&handle->is_lost, 1, memory_order_release);
    }
    pthread_mutex_unlock(&handle->lost_mutex);
    return result;
}

int sy_cuda_drain(sy_backend_handle *handle, cudaStream_t stream)
{
    char why[SY_BACKEND_WHY_BYTES];
    int done = 0;

    if (atomic_load(&handle->is_hanging)) return 0;
    /* A lost device says so, and runs nothing any more. */
    if (sy_cuda_await_stream(&done, stream, CLOSE_US, why) != SY_BACKEND_OK || done) return 1;
    atomic_store(&handle->is_hanging, 1);
    snprintf(why, sizeof(why), "what was under way when it was closed has not ended in %d seconds",
             CLOSE_US / 1000000);
    (void)sy_cuda_leave(handle, SY_BACKEND_EDEVLOST, why);
    return 0;
}

/* ---- the table ---- */

static const sy_backend table = {
    .abi = SY_BACKEND_ABI,
    .size = sizeof(sy_backend),
    .name = "cuda",
    .probe = sy_cuda_probe_devices,
    .blas_version = sy_cuda_blas_version,
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .buffer_alloc = sy_cuda_buffer_alloc,
    .buffer_free = sy_cuda_buffer_free,
    .copy_in = sy_cuda_copy_in,
    .copy_out = sy_cuda_copy_out,
    .measure_copies = sy_cuda_measure_copies,
    .pool_open = sy_cuda_pool_open,
    .pool_close = sy_cuda_pool_close,
    .pool_describe = sy_cuda_pool_describe,
    .slot_write = sy_cuda_slot_write,
    .slot_flush = sy_cuda_slot_flush,
    .slot_read = sy_cuda_slot_read,
    .slot_hash = sy_cuda_slot_hash,
    .slot_copy = sy_cuda_slot_copy,
    .pool_export = sy_cuda_pool_export,
    .pool_import = sy_cuda_pool_import,
    .remote_close = sy_cuda_remote_close,
    .slot_pull = sy_cuda_slot_pull,
    .lane = sy_cuda_lane_memory,
    .submit = sy_cuda_submit,
    .wait = sy_cuda_wait,
    .pinned_alloc = sy_cuda_host_alloc,
    .pinned_free = sy_cuda_host_free,
    .matrix_bytes = sy_cuda_matrix_size,
    .matrix_write = sy_cuda_matrix_write,
    .stream_open = sy_cuda_stream_open,
    .stream_close = sy_cuda_stream_close,
    .stream_run = sy_cuda_stream_run,
    .stream_mark = sy_cuda_stream_mark,
    .stream_wait = sy_cuda_stream_wait,
    .attend_scratch_bytes = sy_cuda_attend_scratch,
};

/* The one symbol of the plugin; declared here since nobody links to it. */
__attribute__((visibility("default"))) const sy_backend *sy_backend_get(uint32_t abi);

const sy_backend *sy_backend_get(uint32_t abi)
{
    return abi == SY_BACKEND_ABI ? &table : NULL;
}
