/* sy_cuda_buffer.c - plain memory of a device and pinned memory of the host, and how fast bytes
 * move between them. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_cuda_internal.h"

enum { COPIES = 5 }; /* of each direction, when copies are measured */

/* ---- memory ---- */

static double megabytes(uint64_t bytes)
{
    return (double)bytes / 1e6;
}

int sy_cuda_device_alloc(unsigned char **out, uint64_t bytes, const char *what, char *why)
{
    size_t n_free = 0, n_total = 0;
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, bytes);

    *out = e == cudaSuccess ? p : NULL;
    if (e != cudaErrorMemoryAllocation) return sy_cuda_failed(why, e, "cudaMalloc");
    (void)cudaGetLastError();
    sy_cuda_forget(cudaMemGetInfo(&n_free, &n_total));
    return REFUSE(why, SY_BACKEND_ENOMEM,
                  "%s: %.1f MB do not fit into the device, of whose %.1f MB %.1f are free", what,
                  megabytes(bytes), megabytes(n_total), megabytes(n_free));
}

/* Portable: a copy between two devices that cannot see each other goes through it. */
int sy_cuda_pinned_alloc(unsigned char **out, uint64_t bytes, const char *what, char *why)
{
    void *p = NULL;
    const cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);

    *out = e == cudaSuccess ? p : NULL;
    if (e != cudaErrorMemoryAllocation) return sy_cuda_failed(why, e, "cudaHostAlloc");
    (void)cudaGetLastError();
    return REFUSE(why, SY_BACKEND_ENOMEM,
                  "%s: the host gives no %.1f MB of memory that stays where it is", what,
                  megabytes(bytes));
}

void sy_cuda_device_free(void *p)
{
    if (p != NULL) sy_cuda_forget(cudaFree(p));
}

void sy_cuda_pinned_free(void *p)
{
    if (p != NULL) sy_cuda_forget(cudaFreeHost(p));
}

int sy_cuda_host_alloc(void **out, sy_backend_handle *handle, uint64_t bytes, char *why)
{
    unsigned char *p = NULL;
    int result;

    *out = NULL;
    if (bytes == 0) return REFUSE(why, SY_BACKEND_EINVAL, "pinned memory of 0 bytes");
    result = sy_cuda_enter(handle, why);
    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_pinned_alloc(&p, bytes, "pinned memory", why);
    if (p != NULL) *out = memset(p, 0, bytes);
    return sy_cuda_leave(handle, result, why);
}

void sy_cuda_host_free(sy_backend_handle *handle, void *p)
{
    if (p == NULL || atomic_load(&handle->is_hanging)) return;
    sy_cuda_forget(cudaSetDevice(handle->device));
    sy_cuda_pinned_free(p);
}

/* ---- buffers ---- */

void sy_cuda_buffer_free(sy_backend_buffer *buffer)
{
    if (buffer == NULL) return;
    if (buffer->data != NULL && !atomic_load(&buffer->handle->is_hanging)) {
        sy_cuda_forget(cudaSetDevice(buffer->handle->device));
        sy_cuda_forget(cudaFree(buffer->data));
    }
    free(buffer);
}

int sy_cuda_buffer_alloc(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
                         char *why)
{
    sy_backend_buffer *self;
    void *data = NULL;
    int result;

    *out = NULL;
    if (bytes == 0) return REFUSE(why, SY_BACKEND_EINVAL, "a buffer of 0 bytes");
    self = calloc(1, sizeof(*self));
    if (self == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for a buffer");
    self->handle = handle;
    self->bytes = bytes;
    if ((result = sy_cuda_enter(handle, why)) != SY_BACKEND_OK) goto out;
    TRY(cudaMalloc(&data, bytes), "cudaMalloc");
    self->data = data;
    *out = self;
    self = NULL;
out:
    sy_cuda_buffer_free(self);
    return sy_cuda_leave(handle, result, why);
}

static int check_range(const sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why)
{
    if (offset <= buffer->bytes && n <= buffer->bytes - offset) return SY_BACKEND_OK;
    return REFUSE(why, SY_BACKEND_EINVAL, "%llu bytes at %llu of a buffer of %llu",
                  (unsigned long long)n, (unsigned long long)offset,
                  (unsigned long long)buffer->bytes);
}

static int copy(sy_backend_buffer *buffer, void *to, const void *from, uint64_t n,
                enum cudaMemcpyKind kind, char *why)
{
    const cudaStream_t stream = buffer->handle->stream;
    int result = sy_cuda_enter(buffer->handle, why);

    if (result != SY_BACKEND_OK) return result;
    TRY(cudaMemcpyAsync(to, from, n, kind, stream), "cudaMemcpyAsync");
    TRY(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
out:
    return sy_cuda_leave(buffer->handle, result, why);
}

int sy_cuda_copy_in(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                    char *why)
{
    const int result = check_range(buffer, offset, n, why);

    if (result != SY_BACKEND_OK || n == 0) return result;
    return copy(buffer, buffer->data + offset, host, n, cudaMemcpyHostToDevice, why);
}

int sy_cuda_copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why)
{
    const int result = check_range(buffer, offset, n, why);

    if (result != SY_BACKEND_OK || n == 0) return result;
    return copy(buffer, host, buffer->data + offset, n, cudaMemcpyDeviceToHost, why);
}

/* ---- how fast bytes move ---- */

typedef struct copy_run { /* what is copied, COPIES times */
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *to;
    const void *from;
    uint64_t bytes;
    enum cudaMemcpyKind kind;
} copy_run;

/* One copy beforehand, untimed: the first touches what none has touched yet. */
static int time_copies(double *bytes_per_s, const copy_run *run, char *why)
{
    float best_ms = 0;
    int result;

    TRY(cudaMemcpyAsync(run->to, run->from, run->bytes, run->kind, run->stream), "cudaMemcpyAsync");
    for (int i = 0; i < COPIES; i++) {
        float ms = 0;

        TRY(cudaEventRecord(run->begin, run->stream), "cudaEventRecord");
        TRY(cudaMemcpyAsync(run->to, run->from, run->bytes, run->kind, run->stream),
            "cudaMemcpyAsync");
        TRY(cudaEventRecord(run->end, run->stream), "cudaEventRecord");
        TRY(cudaEventSynchronize(run->end), "cudaEventSynchronize");
        TRY(cudaEventElapsedTime(&ms, run->begin, run->end), "cudaEventElapsedTime");
        if (i == 0 || ms < best_ms) best_ms = ms;
    }
    /* An event's clock counts half microseconds: a copy of no time at all was too small to time. */
    if (!(best_ms > 0))
        return REFUSE(why, SY_BACKEND_EINVAL, "%llu bytes are copied too fast to be timed",
                      (unsigned long long)run->bytes);
    *bytes_per_s = (double)run->bytes * 1e3 / (double)best_ms;
out:
    return result;
}

static int measure_with(sy_backend_bandwidth *out, copy_run run, void *host, unsigned char *device,
                        char *why)
{
    int result;

    run.kind = cudaMemcpyHostToDevice;
    run.to = device;
    run.from = host;
    if ((result = time_copies(&out->to_device, &run, why)) != 0) return result;
    run.kind = cudaMemcpyDeviceToHost;
    run.to = host;
    run.from = device;
    if ((result = time_copies(&out->from_device, &run, why)) != 0) return result;
    run.kind = cudaMemcpyDeviceToDevice;
    run.to = device + run.bytes;
    run.from = device;
    if ((result = time_copies(&out->on_device, &run, why)) != 0) return result;
    out->on_device *= 2;
    return SY_BACKEND_OK;
}

int sy_cuda_measure_copies(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
                           char *why)
{
    copy_run run = {.stream = handle->stream, .bytes = bytes};
    void *host = NULL, *device = NULL;
    int result;

    *out = (sy_backend_bandwidth){0};
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return REFUSE(why, SY_BACKEND_EINVAL, "copies of %llu bytes", (unsigned long long)bytes);
    TRY(cudaSetDevice(handle->device), "cudaSetDevice");
    TRY(cudaEventCreate(&run.begin), "cudaEventCreate");
    TRY(cudaEventCreate(&run.end), "cudaEventCreate");
    TRY(cudaHostAlloc(&host, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    memset(host, 0, bytes);
    TRY(cudaMalloc(&device, 2 * bytes), "cudaMalloc");
    result = measure_with(out, run, host, device, why);
out:
    if (device != NULL) sy_cuda_forget(cudaFree(device));
    if (host != NULL) sy_cuda_forget(cudaFreeHost(host));
    if (run.end != NULL) sy_cuda_forget(cudaEventDestroy(run.end));
    if (run.begin != NULL) sy_cuda_forget(cudaEventDestroy(run.begin));
    return result;
}
