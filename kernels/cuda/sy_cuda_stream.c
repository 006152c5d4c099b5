/* sy_cuda_stream.c - streams of operations: opened, filled, marked, waited for and closed. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "sy_cuda_internal.h"

/* An event names everything that was enqueued before it was recorded last; one that never was is
 * done, for CUDA as for sy_backend.h. */
struct sy_backend_stream {
    sy_backend_handle *handle; /* borrowed: it outlives its streams */
    cudaStream_t stream;       /* of highest priority: weights on their way come after it */
    cudaEvent_t mark[SY_BACKEND_MARKS];
};

void sy_cuda_stream_close(sy_backend_stream *stream)
{
    if (stream == NULL) return;
    sy_cuda_forget(cudaSetDevice(stream->handle->device));
    /* Of a device that hangs it stays behind with its work. */
    if (stream->stream == NULL || sy_cuda_drain(stream->handle, stream->stream)) {
        for (uint32_t i = 0; i < SY_BACKEND_MARKS; i++)
            if (stream->mark[i] != NULL) sy_cuda_forget(cudaEventDestroy(stream->mark[i]));
        if (stream->stream != NULL) sy_cuda_forget(cudaStreamDestroy(stream->stream));
    }
    free(stream);
}

int sy_cuda_stream_open(sy_backend_stream **out, sy_backend_handle *handle, char *why)
{
    sy_backend_stream *self;
    int lowest = 0, highest = 0; /* a higher priority is a lower number */
    int result;

    *out = NULL;
    self = calloc(1, sizeof(*self));
    if (self == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for a stream");
    self->handle = handle;
    if ((result = sy_cuda_enter(handle, why)) != SY_BACKEND_OK) goto out;
    TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    TRY(cudaStreamCreateWithPriority(&self->stream, cudaStreamNonBlocking, highest),
        "cudaStreamCreateWithPriority");
    for (uint32_t i = 0; i < SY_BACKEND_MARKS; i++)
        TRY(cudaEventCreateWithFlags(&self->mark[i], cudaEventDisableTiming),
            "cudaEventCreateWithFlags");
    *out = self;
    self = NULL;
out:
    sy_cuda_stream_close(self);
    return sy_cuda_leave(handle, result, why);
}

int sy_cuda_stream_run(sy_backend_stream *stream, const sy_backend_op *op, uint32_t n, char *why)
{
    int result = sy_cuda_enter(stream->handle, why);

    for (uint32_t i = 0; i < n && result == SY_BACKEND_OK; i++)
        result = sy_cuda_op_check(&op[i], i, stream->handle->device, why);
    for (uint32_t i = 0; i < n && result == SY_BACKEND_OK; i++)
        result = sy_cuda_op_run(&op[i], i, stream->stream, why);
    return sy_cuda_leave(stream->handle, result, why);
}

static int check_mark(uint32_t mark, char *why)
{
    if (mark < SY_BACKEND_MARKS) return SY_BACKEND_OK;
    return REFUSE(why, SY_BACKEND_EINVAL, "mark %u: a stream has %u", mark, SY_BACKEND_MARKS);
}

int sy_cuda_stream_mark(sy_backend_stream *stream, uint32_t mark, char *why)
{
    int result = check_mark(mark, why);

    if (result != SY_BACKEND_OK) return result;
    if ((result = sy_cuda_enter(stream->handle, why)) != SY_BACKEND_OK) return result;
    TRY(cudaEventRecord(stream->mark[mark], stream->stream), "cudaEventRecord");
out:
    return sy_cuda_leave(stream->handle, result, why);
}

int sy_cuda_stream_wait(int *done, sy_backend_stream *stream, uint32_t mark, uint32_t timeout_us,
                        char *why)
{
    int result = check_mark(mark, why);

    *done = 0;
    if (result != SY_BACKEND_OK) return result;
    if ((result = sy_cuda_enter(stream->handle, why)) != SY_BACKEND_OK) return result;
    result = sy_cuda_await_event(done, stream->mark[mark], timeout_us, why);
    return sy_cuda_leave(stream->handle, result, why);
}
