/* emu_graph.c - capturing what one stream is given, and doing it again. */
#include "emu_state.h"

/* ---- what no capture allows ---- */

cudaError_t emu_break_capture(cudaStream_t stream)
{
    stream->capture_broken = 1;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t emu_capture_forbids(void)
{
    cudaError_t e = cudaSuccess;

    for (cudaStream_t s = emu.streams; s != NULL; s = s->next)
        if (s->capture != NULL && (s->capture_mode == cudaStreamCaptureModeGlobal ||
                                   (s->capture_mode == cudaStreamCaptureModeThreadLocal &&
                                    pthread_equal(s->capturer, pthread_self()))))
            e = emu_break_capture(s);
    return e;
}

/* ---- the runtime ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    if (e == cudaSuccess && (unsigned)mode > cudaStreamCaptureModeRelaxed)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && stream->capture != NULL) e = cudaErrorIllegalState;
    if (e == cudaSuccess) {
        stream->capture = emu_new(sizeof(*stream->capture));
        stream->capture->n_refs = 1;
        stream->capture_mode = mode;
        stream->capture_broken = 0;
        stream->capturer = pthread_self();
    }
    return emu_end(e);
}

/* Events recorded in the capture stand for nothing from now on. */
static void forget_events(cudaStream_t stream)
{
    for (cudaEvent_t event = emu.events; event != NULL; event = event->next)
        if (event->capture == stream) event->capture = NULL;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    *out = NULL;
    if (stream->capture == NULL) return emu_end(e != cudaSuccess ? e : cudaErrorIllegalState);
    if (stream->capture_mode != cudaStreamCaptureModeRelaxed &&
        !pthread_equal(stream->capturer, pthread_self()))
        return emu_end(e != cudaSuccess ? e : cudaErrorStreamCaptureWrongThread);
    if (e == cudaSuccess && stream->capture_broken) e = cudaErrorStreamCaptureInvalidated;
    if (e == cudaSuccess) {
        cudaGraph_t graph = emu_new(sizeof(*graph));
        graph->device = stream->device;
        graph->steps = stream->capture;
        EMU_LINK(emu.graphs, graph);
        emu.n_live++;
        *out = graph;
    } else {
        emu_steps_unref(stream->capture);
    }
    stream->capture = NULL;
    forget_events(stream);
    return emu_end(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    const cudaError_t e = emu_begin_stream(__func__, stream);

    *status = stream->capture == NULL  ? cudaStreamCaptureStatusNone
              : stream->capture_broken ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    return emu_end(e);
}

static cudaError_t instantiate(const char *call, cudaGraphExec_t *out, cudaGraph_t graph,
                               unsigned long long flags)
{
    cudaError_t e = emu_begin(call, EMU_CURRENT);

    EMU_CHECK(emu.graphs, graph, "graph");
    if (e == cudaSuccess && flags != 0) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        cudaGraphExec_t exec = emu_new(sizeof(*exec));
        exec->device = graph->device;
        exec->steps = graph->steps;
        exec->steps->n_refs++;
        EMU_LINK(emu.execs, exec);
        emu.n_live++;
        *out = exec;
    }
    return emu_end(e);
}

/* As CUDA 13 has it; the other name is that of every version. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    return instantiate(__func__, out, graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    return instantiate(__func__, out, graph, flags);
}

/* After the launch before, in whatever stream that was: a graph does not run beside itself. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);
    emu_stamp *before;

    EMU_CHECK(emu.execs, exec, "graph");
    if (e == cudaSuccess && exec->device != stream->device) e = cudaErrorInvalidValue;
    if (e == cudaSuccess && stream->capture != NULL) e = emu_break_capture(stream);
    if (e != cudaSuccess) return emu_end(e);
    before = exec->latest;
    emu_spoil(exec->steps);
    exec->steps->n_refs++;
    exec->latest = emu_stamp_ref(emu_enqueue(stream, exec->steps, before));
    emu_stamp_unref(before);
    return emu_end(e);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    const cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    EMU_CHECK(emu.execs, exec, "graph");
    emu_stamp_unref(exec->latest);
    emu_steps_unref(exec->steps);
    EMU_BURY(emu.execs, emu.ended_execs, exec);
    return emu_end(e);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    EMU_CHECK(emu.graphs, graph, "graph");
    emu_steps_unref(graph->steps);
    EMU_BURY(emu.graphs, emu.ended_graphs, graph);
    return emu_end(e);
}
