/* emu_copy.c - copies and fills: what may be copied where, when it is read, and when it lands. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emu_state.h"

/* ---- when the stream gets there ---- */

static uint64_t slow_us(int device)
{
    return device >= 0 ? __atomic_load_n(&emu.device[device].slow_us, __ATOMIC_RELAXED) : 0;
}

/* Before it reads: a slow copy is one that reads late. */
static void wait_slowly(const emu_step *step, int device)
{
    uint64_t us = slow_us(device);

    if (step->to_device != device) us += slow_us(step->to_device);
    if (step->kind == EMU_COPY && step->from_device != device &&
        step->from_device != step->to_device)
        us += slow_us(step->from_device);
    if (us == 0) return;
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

static int must_flip(const emu_step *step)
{
    int flips = 0;

    if (step->kind != EMU_COPY || step->to_device < 0 || step->from_device < 0) return 0;
    emu_lock();
    for (int i = 0; i < 2; i++) {
        const int d = i == 0 ? step->to_device : step->from_device;
        flips |= emu.device[d].flip_next_copy;
        emu.device[d].flip_next_copy = 0;
    }
    emu_unlock();
    return flips;
}

void emu_step_run(const emu_step *step, int device)
{
    if (step->kind == EMU_KERNEL) {
        step->run(step->argument);
        return;
    }
    wait_slowly(step, device);
    if (step->kind == EMU_SET) {
        emu_bytes_set(step->to, step->value, step->bytes);
    } else {
        emu_bytes_copy(step->to, step->from, step->bytes);
        if (must_flip(step)) ((unsigned char *)step->to)[step->bytes / 2] ^= 0x10;
    }
}

/* ---- at the call ---- */

/* What the caller says of the two ends, against what they are; -1: the host's. */
static void check_kind(enum cudaMemcpyKind kind, int to_device, int from_device, const char *call)
{
    static const struct {
        int to, from; /* on a device */
    } wanted[] = {[cudaMemcpyHostToHost] = {0, 0},
                  [cudaMemcpyHostToDevice] = {1, 0},
                  [cudaMemcpyDeviceToHost] = {0, 1},
                  [cudaMemcpyDeviceToDevice] = {1, 1}};

    if (kind == cudaMemcpyDefault) return;
    if (wanted[kind].to != (to_device >= 0))
        emu_die("%s: the target is memory of the %s", call, to_device >= 0 ? "device" : "host");
    if (wanted[kind].from != (from_device >= 0))
        emu_die("%s: the source is memory of the %s", call, from_device >= 0 ? "device" : "host");
}

static int device_of(const emu_memory *m)
{
    return emu_is_device_memory(m) ? m->device : -1;
}

/* Pageable memory is read now. */
static void stage(emu_step *step)
{
    step->staged = malloc(step->bytes);
    if (step->staged == NULL) emu_die("no memory to stage %zu bytes", step->bytes);
    emu_tsan_watch();
    emu_bytes_copy(step->staged, step->from, step->bytes);
    emu_tsan_ignore();
    step->from = step->staged;
}

static cudaError_t enqueue_copy(emu_step *step, enum cudaMemcpyKind kind, cudaStream_t stream,
                                const char *call)
{
    const emu_memory *to = emu_memory_of(step->to, step->bytes, call);
    const emu_memory *from = emu_memory_of(step->from, step->bytes, call);
    emu_stamp *stamp;

    step->kind = EMU_COPY;
    step->to_device = device_of(to);
    step->from_device = device_of(from);
    check_kind(kind, step->to_device, step->from_device, call);
    if (stream->capture != NULL && (to == NULL || from == NULL)) {
        free(step);
        return emu_break_capture(stream);
    }
    if (from == NULL) stage(step);
    step->spoils = to != NULL && step->to_device < 0;
    stamp = emu_enqueue_step(stream, step);
    return to == NULL ? emu_wait(stamp, stream->device) : cudaSuccess;
}

static emu_step *new_step(void *to, const void *from, size_t bytes)
{
    emu_step *step = emu_new(sizeof(*step));

    *step = (emu_step){.to = to, .from = from, .bytes = bytes};
    return step;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    if (e == cudaSuccess && (unsigned)kind > cudaMemcpyDefault) e = cudaErrorInvalidMemcpyDirection;
    if (e == cudaSuccess && bytes > 0)
        e = enqueue_copy(new_step(to, from, bytes), kind, stream, __func__);
    return emu_end(e);
}

static void check_device(const void *p, int device, const char *call)
{
    const emu_memory *m = emu_memory_of(p, 0, call);

    if (!emu_is_device_memory(m)) emu_die("%s: %p is memory of the host", call, p);
    if (m->device != device) emu_die("%s: %p is on device %d, not %d", call, p, m->device, device);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    if (e != cudaSuccess || bytes == 0) return emu_end(e);
    check_device(to, to_device, __func__);
    check_device(from, from_device, __func__);
    e = emu.device[to_device].lost != cudaSuccess ? emu.device[to_device].lost
                                                  : emu.device[from_device].lost;
    if (e == cudaSuccess)
        e = enqueue_copy(new_step(to, from, bytes), cudaMemcpyDeviceToDevice, stream, __func__);
    return emu_end(e);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const cudaError_t e = emu_begin_stream(__func__, stream);
    const emu_memory *m = emu_memory_of(p, bytes, __func__);

    if (e != cudaSuccess || bytes == 0) return emu_end(e);
    if (m == NULL) emu_die("%s: %p is memory of the host", __func__, p);
    emu_step *step = new_step(p, NULL, bytes);
    step->kind = EMU_SET;
    step->value = value;
    step->to_device = device_of(m);
    step->from_device = -1;
    emu_enqueue_step(stream, step);
    return emu_end(e);
}
