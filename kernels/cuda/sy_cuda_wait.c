/* sy_cuda_wait.c - waiting with an end: a device that hangs must not take the thread with it, so
 * nothing here blocks in the runtime. */
#include <cuda_runtime_api.h>
#include <sched.h>
#include <time.h>

#include "sy_cuda_internal.h"

enum {
    SPIN_US = 30,      /* a query is about a microsecond, and most waits are short */
    YIELD_US = 200,    /* a layer of a model, or a batch: a nap would be late by its timer's slack,
                          50 microseconds, once a layer */
    NAP_US_MIN = 20,   /* after that naps of an eighth of what has passed, */
    NAP_US_MAX = 1000, /* so that a wait is late by an eighth at most */
    SETTLE_US = 60 * 1000000
};

typedef struct work { /* one of the two */
    cudaEvent_t event;
    cudaStream_t stream;
} work;

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void nap(uint64_t us)
{
    const struct timespec t = {.tv_sec = (time_t)(us / 1000000),
                               .tv_nsec = (long)(us % 1000000) * 1000};

    nanosleep(&t, NULL);
}

static int look(int *done, const work *w, char *why)
{
    const cudaError_t e = w->event != NULL ? cudaEventQuery(w->event) : cudaStreamQuery(w->stream);

    *done = e == cudaSuccess;
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* some runtimes keep it, and a launch would answer with it */
        return SY_BACKEND_OK;
    }
    return sy_cuda_failed(why, e, w->event != NULL ? "cudaEventQuery" : "cudaStreamQuery");
}

static int await(int *done, const work *w, uint64_t timeout_us, char *why)
{
    const uint64_t begin_us = now_us();

    for (;;) {
        const int result = look(done, w, why);
        uint64_t passed_us, nap_us;

        if (result != SY_BACKEND_OK || *done) return result;
        passed_us = now_us() - begin_us;
        if (passed_us >= timeout_us) return SY_BACKEND_OK;
        if (passed_us < SPIN_US) continue;
        if (passed_us < YIELD_US) {
            (void)sched_yield(); /* whoever else wants the core has it */
            continue;
        }
        nap_us = passed_us / 8;
        if (nap_us < NAP_US_MIN) nap_us = NAP_US_MIN;
        if (nap_us > NAP_US_MAX) nap_us = NAP_US_MAX;
        if (nap_us > timeout_us - passed_us) nap_us = timeout_us - passed_us;
        nap(nap_us);
    }
}

int sy_cuda_await_event(int *done, cudaEvent_t event, uint64_t timeout_us, char *why)
{
    return await(done, &(work){.event = event}, timeout_us, why);
}

int sy_cuda_await_stream(int *done, cudaStream_t stream, uint64_t timeout_us, char *why)
{
    return await(done, &(work){.stream = stream}, timeout_us, why);
}

static int settle(const work *w, char *why)
{
    int done;
    const int result = await(&done, w, SETTLE_US, why);

    if (result != SY_BACKEND_OK || done) return result;
    return REFUSE(why, SY_BACKEND_EDEVLOST, "the device has not finished a copy in %d seconds",
                  SETTLE_US / 1000000);
}

int sy_cuda_settle_event(cudaEvent_t event, char *why)
{
    return settle(&(work){.event = event}, why);
}

int sy_cuda_settle_stream(cudaStream_t stream, char *why)
{
    return settle(&(work){.stream = stream}, why);
}
