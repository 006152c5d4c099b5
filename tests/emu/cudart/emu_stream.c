/* emu_stream.c - streams: a thread each, which does one piece of work after another; and waiting
 * for it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../sy_emu_lock.h"
#include "../sy_emu_stream.h"
#include "emu_state.h"

enum { LOOK_US = 1000 }; /* how long somebody waits before looking whether the device was lost */

/* ---- stamps and steps ---- */

emu_stamp *emu_stamp_ref(emu_stamp *stamp)
{
    if (stamp != NULL) stamp->n_refs++;
    return stamp;
}

void emu_stamp_unref(emu_stamp *stamp)
{
    if (stamp != NULL && --stamp->n_refs == 0) free(stamp);
}

void emu_steps_unref(emu_steps *steps)
{
    if (steps == NULL || --steps->n_refs > 0) return;
    while (steps->first != NULL) {
        emu_step *step = steps->first;
        steps->first = step->next;
        if (step->drop != NULL) step->drop(step->argument);
        free(step->staged);
        free(step);
    }
    free(steps);
}

static int overlaps(const void *a, size_t n_a, const void *b, size_t n_b)
{
    return (uintptr_t)a < (uintptr_t)b + n_b && (uintptr_t)b < (uintptr_t)a + n_a;
}

int emu_steps_touch(const emu_steps *steps, const void *p, size_t n, int reads_only)
{
    for (const emu_step *s = steps != NULL ? steps->first : NULL; s != NULL; s = s->next) {
        if (s->kind == EMU_COPY && overlaps(s->from, s->bytes, p, n)) return 1;
        if (!reads_only && s->kind != EMU_KERNEL && overlaps(s->to, s->bytes, p, n)) return 1;
    }
    return 0;
}

/* ---- waiting ---- */

static int is_done(const emu_stamp *stamp)
{
    return __atomic_load_n(&stamp->done, __ATOMIC_ACQUIRE) != 0;
}

static cudaError_t lost(int device)
{
    return __atomic_load_n(&emu.device[device].lost, __ATOMIC_RELAXED);
}

cudaError_t emu_wait(emu_stamp *stamp, int device)
{
    cudaError_t e;

    emu_stamp_ref(stamp);
    while (!is_done(stamp) && lost(device) == cudaSuccess) {
        emu_unlock();
        sy_emu_futex_wait(&stamp->done, 0, LOOK_US);
        emu_lock();
        emu_control_look();
    }
    e = lost(device);
    if (e == cudaSuccess) {
        e = stamp->error;
        emu_tsan_acquire(&stamp->token);
    }
    emu_stamp_unref(stamp);
    return e;
}

/* Work on its way that touches the memory, or may, being on its device; NULL: there is none. */
static emu_stamp *in_the_way(struct CUstream_st *list, const emu_memory *m)
{
    for (struct CUstream_st *s = list; s != NULL; s = s->next) {
        if (s->running != NULL &&
            (s->device == m->device || emu_steps_touch(s->running->steps, m->data, m->bytes, 0)))
            return s->running->stamp;
        for (const emu_work *w = s->first; w != NULL; w = w->next)
            if (s->device == m->device || emu_steps_touch(w->steps, m->data, m->bytes, 0))
                return w->stamp;
    }
    return NULL;
}

/* Without acquiring anything: that CUDA waits here is no promise. */
void emu_wait_for_memory(const emu_memory *m)
{
    emu_stamp *stamp;

    while ((stamp = in_the_way(emu.streams, m)) != NULL ||
           (stamp = in_the_way(emu.ended_streams, m)) != NULL) {
        emu_stamp_ref(stamp);
        emu_unlock();
        sy_emu_futex_wait(&stamp->done, 0, LOOK_US);
        emu_lock();
        emu_control_look();
        emu_stamp_unref(stamp);
    }
}

/* ---- the thread of a stream ---- */

static void wait_while_it_hangs(int device)
{
    while (__atomic_load_n(&emu.device[device].hangs, __ATOMIC_RELAXED) &&
           lost(device) == cudaSuccess) {
        const struct timespec t = {0, LOOK_US * 1000};

        nanosleep(&t, NULL);
        emu_lock();
        emu_control_look();
        emu_unlock();
    }
}

/* What it waits for may never come, but then the device may be lost meanwhile. */
static void wait_for(emu_stamp *after, int device)
{
    while (!is_done(after) && lost(device) == cudaSuccess)
        sy_emu_futex_wait(&after->done, 0, LOOK_US);
    if (is_done(after)) emu_tsan_acquire(&after->token);
}

static void run_work(cudaStream_t stream, emu_work *w)
{
    const emu_step *step = w->steps != NULL ? w->steps->first : NULL;
    struct timespec now;

    emu_tsan_acquire(&w->token);
    if (w->after != NULL) wait_for(w->after, stream->device);
    for (; step != NULL; step = step->next) {
        wait_while_it_hangs(stream->device);
        if (lost(stream->device) != cudaSuccess) break;
        if (step->kind != EMU_KERNEL && step->to_device >= 0 &&
            lost(step->to_device) != cudaSuccess)
            stream->error = lost(step->to_device);
        else if (step->kind == EMU_COPY && step->from_device >= 0 &&
                 lost(step->from_device) != cudaSuccess)
            stream->error = lost(step->from_device);
        else
            emu_step_run(step, stream->device);
    }
    wait_while_it_hangs(stream->device);
    clock_gettime(CLOCK_MONOTONIC, &now);
    emu_tsan_release(&w->stamp->token);
    emu_lock();
    stream->running = NULL;
    w->stamp->error = stream->error;
    w->stamp->done_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    __atomic_store_n(&w->stamp->done, 1, __ATOMIC_RELEASE);
    sy_emu_futex_wake(&w->stamp->done, INT32_MAX);
    emu_stamp_unref(w->after);
    emu_stamp_unref(w->stamp);
    emu_steps_unref(w->steps);
    free(w);
    emu_unlock();
}

static void *thread_main(void *argument)
{
    cudaStream_t stream = argument;

    for (;;) {
        emu_work *w;
        uint32_t bell;
        int ending;

        emu_lock();
        w = stream->running = stream->first;
        if (w != NULL) stream->first = w->next;
        if (stream->first == NULL) stream->last = NULL;
        bell = stream->bell;
        ending = stream->ending;
        if (w == NULL && ending) {
            emu_stamp_unref(stream->latest);
            stream->latest = NULL;
        }
        emu_unlock();
        if (w != NULL) {
            run_work(stream, w);
        } else if (ending) {
            return NULL;
        } else {
            sy_emu_futex_wait(&stream->bell, bell, 0);
        }
    }
}

static void ring(cudaStream_t stream)
{
    __atomic_fetch_add(&stream->bell, 1, __ATOMIC_RELEASE);
    sy_emu_futex_wake(&stream->bell, 1);
}

emu_stamp *emu_enqueue(cudaStream_t stream, emu_steps *steps, emu_stamp *after)
{
    emu_work *w = emu_new(sizeof(*w));

    w->steps = steps;
    w->after = emu_stamp_ref(after);
    w->stamp = emu_new(sizeof(*w->stamp));
    w->stamp->n_refs = 2; /* the work's and the stream's */
    emu_stamp_unref(stream->latest);
    stream->latest = w->stamp;
    emu_tsan_release(&w->token);
    if (stream->last != NULL) {
        stream->last->next = w;
    } else {
        stream->first = w;
    }
    stream->last = w;
    ring(stream);
    return w->stamp;
}

emu_stamp *emu_enqueue_step(cudaStream_t stream, emu_step *step)
{
    emu_steps *steps = stream->capture;

    if (steps == NULL) {
        steps = emu_new(sizeof(*steps));
        steps->n_refs = 1;
    }
    if (steps->last != NULL) {
        steps->last->next = step;
    } else {
        steps->first = step;
    }
    steps->last = step;
    if (stream->capture != NULL) return NULL;
    emu_spoil(steps);
    return emu_enqueue(stream, steps, NULL);
}

static int is_read(const struct CUstream_st *list, const void *p, size_t n)
{
    for (const struct CUstream_st *s = list; s != NULL; s = s->next) {
        if (s->running != NULL && emu_steps_touch(s->running->steps, p, n, 1)) return 1;
        for (const emu_work *w = s->first; w != NULL; w = w->next)
            if (emu_steps_touch(w->steps, p, n, 1)) return 1;
    }
    return 0;
}

/* Nobody sees who writes: what counts is when the copy lands. */
void emu_spoil(const emu_steps *steps)
{
    for (const emu_step *s = steps->first; s != NULL; s = s->next)
        if (s->spoils && !is_read(emu.streams, s->to, s->bytes) &&
            !is_read(emu.ended_streams, s->to, s->bytes) &&
            !emu_steps_touch(steps, s->to, s->bytes, 1))
            memset(s->to, EMU_SPOILED_BYTE, s->bytes);
}

/* ---- the runtime ---- */

cudaError_t emu_begin_stream(const char *call, cudaStream_t stream)
{
    const cudaError_t e = emu_begin(call, EMU_NO_DEVICE);

    if (stream == NULL) emu_die("%s: the default stream, which waits for all others", call);
    if (*EMU_FIND(emu.streams, stream) == NULL)
        emu_die("%s: stream %p is not there", call, (void *)stream);
    emu_check_current(stream->device, "a stream");
    return e != cudaSuccess ? e : emu.device[stream->device].lost;
}

/* Kernels come here, from SY_LAUNCH, whose value is that of cudaGetLastError. */
static int launch(void *to, void (*run)(void *), void (*drop)(void *), void *argument)
{
    cudaStream_t stream = to;
    cudaError_t e = emu_begin_stream("cudaLaunchKernel", stream);

    if (e == cudaSuccess && stream->device != emu_current()) e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess) {
        emu_step *step = emu_new(sizeof(*step));
        *step = (emu_step){
            .kind = EMU_KERNEL, .run = run, .drop = drop, .argument = argument, .to_device = -1};
        emu_enqueue_step(stream, step);
    } else {
        drop(argument);
    }
    (void)emu_end(e);
    return (int)cudaGetLastError();
}

/* Detached: who destroys a stream does not wait for its work. Signals are for the program, but for
 * those that the thread itself is to blame for. */
static void start_thread(cudaStream_t stream)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attributes, thread_main, stream) != 0)
        emu_die("no thread for a stream");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static cudaError_t create(const char *call, cudaStream_t *out, unsigned int flags)
{
    cudaError_t e = emu_begin(call, EMU_CURRENT);
    cudaStream_t stream;

    if (e == cudaSuccess && flags > cudaStreamNonBlocking) e = cudaErrorInvalidValue;
    if (e != cudaSuccess) return emu_end(e);
    sy_emu_stream_set_enqueue(launch);
    stream = emu_new(sizeof(*stream));
    stream->device = emu_current();
    start_thread(stream);
    EMU_LINK(emu.streams, stream);
    emu.n_live++;
    *out = stream;
    return emu_end(cudaSuccess);
}

/* Threads of one process take turns as they will: a priority changes nothing. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    (void)priority;
    return create(__func__, out, flags);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    return create(__func__, out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t e = emu_begin_stream(__func__, stream);

    emu_steps_unref(stream->capture);
    stream->capture = NULL;
    stream->ending = 1;
    EMU_BURY(emu.streams, emu.ended_streams, stream);
    ring(stream);
    return emu_end(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    if (e == cudaSuccess && stream->capture != NULL) e = emu_break_capture(stream);
    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && stream->latest != NULL) e = emu_wait(stream->latest, stream->device);
    return emu_end(e);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t e = emu_begin_stream(__func__, stream);

    if (e == cudaSuccess && stream->capture != NULL) e = emu_break_capture(stream);
    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && stream->latest != NULL)
        e = is_done(stream->latest) ? emu_wait(stream->latest, stream->device) : cudaErrorNotReady;
    return emu_end(e);
}

cudaError_t cudaDeviceSynchronize(void)
{
    const int device = emu_current();
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    if (e == cudaSuccess) e = emu_capture_forbids();
    /* From the start each time: others may end streams meanwhile. */
    for (cudaStream_t s = emu.streams; e == cudaSuccess && s != NULL;) {
        if (s->device == device && s->latest != NULL && !is_done(s->latest)) {
            e = emu_wait(s->latest, device);
            s = emu.streams;
        } else {
            if (s->device == device && s->latest != NULL) emu_tsan_acquire(&s->latest->token);
            s = s->next;
        }
    }
    return emu_end(e);
}
