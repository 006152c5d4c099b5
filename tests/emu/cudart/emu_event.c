/* emu_event.c - events: each stands for the end of what was on its way when it was recorded last.
 */
#include "emu_state.h"

static cudaError_t begin_event(const char *call, cudaEvent_t event)
{
    const cudaError_t e = emu_begin(call, EMU_NO_DEVICE);

    if (*EMU_FIND(emu.events, event) == NULL || event == NULL)
        emu_die("%s: event %p is not there", call, (void *)event);
    emu_check_current(event->device, "an event");
    return e != cudaSuccess ? e : emu.device[event->device].lost;
}

static cudaError_t create(const char *call, cudaEvent_t *out, unsigned int flags)
{
    cudaError_t e = emu_begin(call, EMU_CURRENT);

    if (e == cudaSuccess && (flags & ~7u) != 0) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        cudaEvent_t event = emu_new(sizeof(*event));
        event->device = emu_current();
        event->flags = flags;
        EMU_LINK(emu.events, event);
        emu.n_live++;
        *out = event;
    }
    return emu_end(e);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return create(__func__, out, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    return create(__func__, out, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t e = begin_event(__func__, event);

    emu_stamp_unref(event->stamp);
    event->stamp = NULL;
    EMU_BURY(emu.events, emu.ended_events, event);
    return emu_end(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    EMU_CHECK(emu.events, event, "event");
    emu_check_current(event->device, "an event");
    if (e == cudaSuccess && event->device != stream->device) e = cudaErrorInvalidResourceHandle;
    if (e != cudaSuccess) return emu_end(e);
    emu_stamp_unref(event->stamp);
    event->capture = stream->capture != NULL ? stream : NULL;
    event->stamp = stream->capture != NULL ? NULL : emu_stamp_ref(emu_enqueue(stream, NULL, NULL));
    return emu_end(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = begin_event(__func__, event);

    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && event->capture != NULL) e = cudaErrorCapturedEvent;
    if (e == cudaSuccess && event->stamp != NULL)
        e = __atomic_load_n(&event->stamp->done, __ATOMIC_ACQUIRE)
                ? emu_wait(event->stamp, event->device)
                : cudaErrorNotReady;
    return emu_end(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = begin_event(__func__, event);

    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && event->capture != NULL) e = cudaErrorCapturedEvent;
    if (e == cudaSuccess && event->stamp != NULL) e = emu_wait(event->stamp, event->device);
    return emu_end(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t e = begin_event(__func__, start);

    EMU_CHECK(emu.events, end, "event");
    emu_check_current(end->device, "an event");
    if (e != cudaSuccess) return emu_end(e);
    if (((start->flags | end->flags) & cudaEventDisableTiming) != 0 || start->stamp == NULL ||
        end->stamp == NULL || start->device != end->device) {
        e = cudaErrorInvalidResourceHandle;
    } else if (!__atomic_load_n(&start->stamp->done, __ATOMIC_ACQUIRE) ||
               !__atomic_load_n(&end->stamp->done, __ATOMIC_ACQUIRE)) {
        e = cudaErrorNotReady;
    } else if (emu.machine.event_ms >= 0) {
        *ms = (float)emu.machine.event_ms;
    } else {
        *ms = (float)((double)(int64_t)(end->stamp->done_ns - start->stamp->done_ns) / 1e6);
    }
    return emu_end(e);
}

/* What the event stands for is what it stood for at the call. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    EMU_CHECK(emu.events, event, "event");
    if (e == cudaSuccess && flags != cudaEventWaitDefault) e = cudaErrorInvalidValue;
    if (e != cudaSuccess) return emu_end(e);
    if (event->capture != NULL && event->capture != stream)
        emu_die("%s: capturing several streams into one graph is not emulated", __func__);
    if (stream->capture != NULL && event->capture == NULL) {
        stream->capture_broken = 1;
        e = cudaErrorStreamCaptureIsolation;
    } else if (event->stamp != NULL) {
        emu_enqueue(stream, NULL, event->stamp);
    }
    return emu_end(e);
}
