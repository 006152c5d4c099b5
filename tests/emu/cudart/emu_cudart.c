/* emu_cudart.c - what every call goes through, and the machine: its devices and what they say. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../sy_emu_lock.h"
#include "emu_state.h"

emu_runtime emu;

static sy_emu_lock lock;
static int is_configured;
static pid_t owner; /* the process that uses it: what is forked from it cannot, as with CUDA */
static _Thread_local int current;
static _Thread_local cudaError_t last;

/* ---- ThreadSanitizer ---- */

#ifdef SY_EMU_TSAN
void __tsan_acquire(void *token);
void __tsan_release(void *token);
void __tsan_ignore_thread_begin(void);
void __tsan_ignore_thread_end(void);

void emu_tsan_release(void *token)
{
    __tsan_release(token);
}

void emu_tsan_acquire(void *token)
{
    __tsan_acquire(token);
}

void emu_tsan_watch(void)
{
    __tsan_ignore_thread_end();
}

void emu_tsan_ignore(void)
{
    __tsan_ignore_thread_begin();
}
#else
void emu_tsan_release(void *token)
{
    (void)token;
}

void emu_tsan_acquire(void *token)
{
    (void)token;
}

void emu_tsan_watch(void)
{
}

void emu_tsan_ignore(void)
{
}
#endif

/* ---- calls ---- */

void emu_die(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "emu_cudart: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

void *emu_new(size_t bytes)
{
    void *p = calloc(1, bytes);

    if (p == NULL) emu_die("no memory for %zu bytes", bytes);
    return p;
}

void emu_lock(void)
{
    sy_emu_lock_take(&lock);
    emu_tsan_ignore();
}

void emu_unlock(void)
{
    emu_tsan_watch();
    sy_emu_lock_give(&lock);
}

static unsigned long number_of(const char *variable, unsigned long otherwise, unsigned long max)
{
    const char *text = getenv(variable);
    char *rest;

    if (text == NULL) return otherwise;
    const unsigned long n = strtoul(text, &rest, 10);
    if (*text < '0' || *text > '9' || *rest != '\0' || n > max)
        emu_die("%s=%s: a number from 0 to %lu", variable, text, max);
    return n;
}

static void configure(void)
{
    const unsigned long n = number_of("SY_EMU_DEVICES", 2, EMU_CUDART_DEVICES_MAX);
    const unsigned long megabytes = number_of("SY_EMU_MEMORY_MB", 256, 1 << 20);

    is_configured = 1;
    owner = getpid();
    memset(emu.device, 0, sizeof(emu.device));
    emu.machine = (emu_cudart_machine){
        .driver_version = CUDART_VERSION, .n_devices = (int)n, .has_peers = 1, .event_ms = -1};
    for (int i = 0; i < EMU_CUDART_DEVICES_MAX; i++)
        emu.machine.device[i] = (emu_cudart_device){.name = "Emulated GPU",
                                                    .major = 9,
                                                    .n_multiprocessors = 132,
                                                    .has_ecc = 1,
                                                    .memory_bytes = (size_t)megabytes << 20};
    emu_control_reset();
}

cudaError_t emu_begin(const char *call, int device)
{
    cudaError_t e;

    emu_lock();
    if (!is_configured) configure();
    emu_control_look();
    e = emu_count_call(call);
    if (e != cudaSuccess) return e;
    if (emu.machine.driver_version == 0) return cudaErrorInsufficientDriver;
    if (emu.machine.n_devices == 0) return cudaErrorNoDevice;
    if (device == EMU_CURRENT) device = current;
    return device >= 0 ? emu.device[device].lost : cudaSuccess;
}

cudaError_t emu_end(cudaError_t e)
{
    if (e != cudaSuccess) last = e;
    emu_unlock();
    return e;
}

int emu_current(void)
{
    return current;
}

void emu_check_current(int device, const char *what)
{
    if (emu.machine.strict && device >= 0 && device != current)
        emu_die("%s of device %d is used while device %d is current", what, device, current);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e;

    emu_lock();
    e = emu.device[current].lost != cudaSuccess ? emu.device[current].lost : last;
    last = cudaSuccess;
    emu_unlock();
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    const cudaError_t lost = __atomic_load_n(&emu.device[current].lost, __ATOMIC_RELAXED);

    return lost != cudaSuccess ? lost : last;
}

/* ---- versions and devices ---- */

/* Takes the lock for calls that need neither driver nor device and never fail. */
static void begin_quietly(void)
{
    emu_lock();
    if (!is_configured) configure();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    begin_quietly();
    *version = emu.machine.driver_version;
    return emu_end(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    *count = e == cudaSuccess ? emu.machine.n_devices : 0;
    return emu_end(e);
}

cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    if (e == cudaSuccess) *device = current;
    return emu_end(e);
}

static int is_device(int device)
{
    return device >= 0 && device < emu.machine.n_devices;
}

/* A lost device becomes the current one, and the call says that it is lost. */
cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) {
        current = device;
        e = emu.device[device].lost;
    }
    return emu_end(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) e = emu.machine.device[device].properties_error;
    if (e == cudaSuccess) {
        const emu_cudart_device *d = &emu.machine.device[device];
        memset(out, 0, sizeof(*out));
        memcpy(out->name, d->name, sizeof(out->name));
        out->totalGlobalMem = d->memory_bytes;
        out->sharedMemPerBlock = 48 << 10;
        out->major = d->major;
        out->minor = d->minor;
        out->multiProcessorCount = d->n_multiprocessors;
        out->l2CacheSize = 50 << 20;
        out->asyncEngineCount = 3;
        out->unifiedAddressing = 1;
        out->ECCEnabled = d->has_ecc;
        out->pciBusID = device;
    }
    return emu_end(e);
}

static cudaError_t read_attribute(int *value, enum cudaDeviceAttr attribute,
                                  const emu_cudart_device *d)
{
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMultiProcessorCount: *value = d->n_multiprocessors; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrComputeMode: *value = d->compute_mode; break;
    case cudaDevAttrEccEnabled: *value = d->has_ecc; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = d->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = d->minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrHostRegisterSupported: *value = 1; break;
    default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) e = read_attribute(value, attribute, &emu.machine.device[device]);
    return emu_end(e);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int len, int device)
{
    cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    if (e == cudaSuccess && !is_device(device)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) snprintf(out, (size_t)len, "0000:%02x:00.0", (unsigned)device);
    return emu_end(e);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    const cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    *least = 0;
    *greatest = e == cudaSuccess ? -5 : 0;
    return emu_end(e);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t e = emu_begin(__func__, EMU_NO_DEVICE);

    *can = 0;
    if (e == cudaSuccess && (!is_device(device) || !is_device(peer))) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) *can = emu.machine.has_peers && device != peer;
    return emu_end(e);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    uint32_t *peers = &emu.device[current].peers;

    if (e == cudaSuccess && !is_device(peer)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && flags != 0) e = cudaErrorInvalidValue;
    if (e == cudaSuccess && (!emu.machine.has_peers || peer == current))
        e = cudaErrorPeerAccessUnsupported;
    if (e == cudaSuccess && (*peers >> peer & 1)) e = cudaErrorPeerAccessAlreadyEnabled;
    if (e == cudaSuccess) *peers |= 1u << peer;
    return emu_end(e);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    uint32_t *peers = &emu.device[current].peers;

    if (e == cudaSuccess && !is_device(peer)) e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && !(*peers >> peer & 1)) e = cudaErrorPeerAccessNotEnabled;
    if (e == cudaSuccess) *peers &= ~(1u << peer);
    return emu_end(e);
}

/* ---- what is left behind ---- */

/* Of one device, or with device -1 of all that are not lost, and of the host. */
static void check_nothing_left(int device, const char *when)
{
    int n_streams = 0, n_events = 0, n_graphs = 0, n_memory = 0;
    size_t bytes = 0;

#define COUNTS(d) ((device < 0 && ((d) < 0 || emu.device[d].lost == cudaSuccess)) || (d) == device)
    for (const struct CUstream_st *s = emu.streams; s != NULL; s = s->next)
        n_streams += COUNTS(s->device);
    for (const struct CUevent_st *e = emu.events; e != NULL; e = e->next)
        n_events += COUNTS(e->device);
    for (const struct CUgraph_st *g = emu.graphs; g != NULL; g = g->next)
        n_graphs += COUNTS(g->device);
    for (const struct CUgraphExec_st *x = emu.execs; x != NULL; x = x->next)
        n_graphs += COUNTS(x->device);
    for (const emu_memory *m = emu.memory; m != NULL; m = m->next)
        if (COUNTS(m->device)) {
            n_memory++;
            bytes += m->bytes;
        }
#undef COUNTS
    if (n_streams + n_events + n_graphs + n_memory != 0)
        emu_die(
            "%s: left behind: %d streams, %d events, %d graphs, %d pieces of memory (%zu bytes)",
            when, n_streams, n_events, n_graphs, n_memory, bytes);
}

cudaError_t cudaDeviceReset(void)
{
    const cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    if (e == cudaSuccess) check_nothing_left(current, __func__);
    return emu_end(e);
}

__attribute__((destructor)) static void check_at_exit(void)
{
    if (owner != getpid()) return; /* a child's copy is nobody's */
    emu_lock();
    check_nothing_left(-1, "exit");
    emu_unlock();
}

/* ---- for tests ---- */

emu_cudart_machine *emu_cudart_machine_get(void)
{
    begin_quietly();
    emu_unlock();
    return &emu.machine;
}

void emu_cudart_reset(void)
{
    emu_lock();
    configure();
    check_nothing_left(-1, __func__);
    current = 0;
    last = cudaSuccess;
    emu_unlock();
}

void emu_cudart_lose(int device, cudaError_t error)
{
    begin_quietly();
    __atomic_store_n(&emu.device[device].lost, error, __ATOMIC_RELAXED);
    emu_unlock();
}

int emu_cudart_n_live(void)
{
    int n;

    emu_lock();
    n = emu.n_live;
    emu_unlock();
    return n;
}

cudaError_t emu_cudart_last(void)
{
    return last;
}
