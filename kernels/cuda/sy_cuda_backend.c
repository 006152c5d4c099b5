/* sy_cuda_backend.c - the plugin libswitchyard_cuda.so: sy_backend.h over CUDA's runtime, which is
 * linked into it. Nothing else of CUDA is needed to load it: without a driver it loads and says so.
 *
 * Every handle has a stream of its own, and the default stream is never used: work of different
 * owners must not wait for each other. The runtime's current device belongs to the thread, so every
 * call sets it. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_backend.h"

enum {
    MAJOR_MIN = 8, /* compute capability 8.0, Ampere: the oldest that kernels are compiled for */
    COPIES = 5     /* of each direction, when copies are measured */
};

struct sy_backend_handle {
    int device;
    cudaStream_t stream;
};

struct sy_backend_buffer {
    sy_backend_handle *handle; /* borrowed: it outlives its buffers */
    unsigned char *data;       /* on the device */
    uint64_t bytes;
};

/* ---- errors ---- */

/* Writes the sentence and is the result. A macro, so that the compiler checks the format. */
#define REFUSE(why, result, ...) (snprintf((why), SY_BACKEND_WHY_BYTES, __VA_ARGS__), (result))

/* After these the context is gone for good, and every later call of this process fails too. */
static int is_lost(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
#endif
    case cudaErrorContextIsDestroyed: return 1;
    default: return 0;
    }
}

static int result_of(cudaError_t e)
{
    if (is_lost(e)) return SY_BACKEND_EDEVLOST;
    switch (e) {
    case cudaSuccess: return SY_BACKEND_OK;
    case cudaErrorMemoryAllocation: return SY_BACKEND_ENOMEM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable: return SY_BACKEND_ENODEVICE;
    case cudaErrorInvalidDevice: return SY_BACKEND_EINVAL;
    default: return SY_BACKEND_EFAILED;
    }
}

/* what: the call, as "cudaMalloc". */
static int failed(char *why, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return SY_BACKEND_OK;
    /* What is not sticky stays with the thread until it is read, and would be blamed on others. */
    (void)cudaGetLastError();
    return REFUSE(why, result_of(e), "%s: %s (%s)", what, cudaGetErrorString(e),
                  cudaGetErrorName(e));
}

#define TRY(call, name)                                          \
    do {                                                         \
        if ((result = failed(why, (call), name)) != 0) goto out; \
    } while (0)

/* ---- what is there ---- */

static void read_versions(sy_backend_system *system)
{
    int driver = 0, runtime = 0;

    *system = (sy_backend_system){0};
    if (cudaDriverGetVersion(&driver) == cudaSuccess) system->driver_version = (uint32_t)driver;
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) system->runtime_version = (uint32_t)runtime;
}

static int read_attributes(sy_backend_device *out, int *compute_mode, int device, char *why)
{
    int major = 0, minor = 0, n_multiprocessors = 0, has_ecc = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } wanted[] = {{cudaDevAttrComputeCapabilityMajor, &major},
                  {cudaDevAttrComputeCapabilityMinor, &minor},
                  {cudaDevAttrMultiProcessorCount, &n_multiprocessors},
                  {cudaDevAttrEccEnabled, &has_ecc},
                  {cudaDevAttrComputeMode, compute_mode}};
    int result = SY_BACKEND_OK;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        TRY(cudaDeviceGetAttribute(wanted[i].value, wanted[i].attribute, device),
            "cudaDeviceGetAttribute");
    out->major = (uint32_t)major;
    out->minor = (uint32_t)minor;
    out->n_multiprocessors = (uint32_t)n_multiprocessors;
    out->has_ecc = has_ecc != 0;
out:
    return result;
}

/* A device whose description cannot be read is one that cannot be used, not a failure of all. */
static void describe(sy_backend_device *out, int device)
{
    struct cudaDeviceProp properties;
    int compute_mode = cudaComputeModeDefault;
    char *why = out->why;
    int result = SY_BACKEND_OK;

    memset(out, 0, sizeof(*out));
    TRY(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    snprintf(out->name, sizeof(out->name), "%.63s", properties.name);
    out->memory_bytes = properties.totalGlobalMem;
    TRY(cudaDeviceGetPCIBusId(out->pci, (int)sizeof(out->pci), device), "cudaDeviceGetPCIBusId");
    if (read_attributes(out, &compute_mode, device, why) != SY_BACKEND_OK) goto out;
    if (out->major < MAJOR_MIN) {
        snprintf(why, SY_BACKEND_WHY_BYTES, "compute capability %u.%u is older than %d.0",
                 out->major, out->minor, MAJOR_MIN);
    } else if (compute_mode == cudaComputeModeProhibited) {
        snprintf(why, SY_BACKEND_WHY_BYTES,
                 "its compute mode is Prohibited: nvidia-smi --compute-mode=DEFAULT");
    } else {
        out->usable = 1;
    }
out:
    (void)result; /* what it was stands in why */
}

static int probe(sy_backend_system *system, sy_backend_device *device, uint32_t max, uint32_t *n,
                 char *why)
{
    int count = 0;
    int result;

    *n = 0;
    read_versions(system);
    TRY(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (count <= 0) TRY(cudaErrorNoDevice, "cudaGetDeviceCount");
    *n = (uint32_t)count;
    for (uint32_t i = 0; i < *n && i < max; i++) describe(&device[i], (int)i);
out:
    return result;
}

/* Linked by name it would be loaded at start, which takes 150 ms and as many megabytes, and where
 * it is missing the plugin would not load at all. */
static int blas_version(uint64_t *version, char *why)
{
    char file[32];
    void *library;
    size_t (*get_version)(void);

    *version = 0;
    snprintf(file, sizeof(file), "libcublasLt.so.%d", CUDART_VERSION / 1000);
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) return REFUSE(why, SY_BACKEND_ENODEVICE, "%s", dlerror());
    *(void **)&get_version = dlsym(library, "cublasLtGetVersion");
    if (get_version == NULL) return REFUSE(why, SY_BACKEND_ENODEVICE, "%s", dlerror());
    *version = get_version();
    return SY_BACKEND_OK;
}

/* ---- one device ---- */

static void close_device(sy_backend_handle *handle)
{
    if (handle == NULL) return;
    if (handle->stream != NULL) {
        (void)cudaSetDevice(handle->device);
        (void)cudaStreamDestroy(handle->stream);
    }
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
    int result;

    TRY(cudaSetDevice(handle->device), "cudaSetDevice");
    TRY(cudaMemGetInfo(&n_free, &n_total), "cudaMemGetInfo");
    *free_bytes = n_free;
    *total_bytes = n_total;
out:
    return result;
}

/* ---- buffers ---- */

static void buffer_free(sy_backend_buffer *buffer)
{
    if (buffer == NULL) return;
    if (buffer->data != NULL) {
        (void)cudaSetDevice(buffer->handle->device);
        (void)cudaFree(buffer->data);
    }
    free(buffer);
}

static int buffer_alloc(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
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
    TRY(cudaSetDevice(handle->device), "cudaSetDevice");
    TRY(cudaMalloc(&data, bytes), "cudaMalloc");
    self->data = data;
    *out = self;
    self = NULL;
out:
    buffer_free(self);
    return result;
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
    int result;

    TRY(cudaSetDevice(buffer->handle->device), "cudaSetDevice");
    TRY(cudaMemcpyAsync(to, from, n, kind, stream), "cudaMemcpyAsync");
    TRY(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
out:
    return result;
}

static int copy_in(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                   char *why)
{
    const int result = check_range(buffer, offset, n, why);

    if (result != SY_BACKEND_OK || n == 0) return result;
    return copy(buffer, buffer->data + offset, host, n, cudaMemcpyHostToDevice, why);
}

static int copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why)
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

static int measure_copies(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
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
    if (device != NULL) (void)cudaFree(device);
    if (host != NULL) (void)cudaFreeHost(host);
    if (run.end != NULL) (void)cudaEventDestroy(run.end);
    if (run.begin != NULL) (void)cudaEventDestroy(run.begin);
    return result;
}

/* ---- the table ---- */

static const sy_backend table = {
    .abi = SY_BACKEND_ABI,
    .size = sizeof(sy_backend),
    .name = "cuda",
    .probe = probe,
    .blas_version = blas_version,
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .measure_copies = measure_copies,
};

/* The one symbol of the plugin; declared here since nobody links to it. */
__attribute__((visibility("default"))) const sy_backend *sy_backend_get(uint32_t abi);

const sy_backend *sy_backend_get(uint32_t abi)
{
    return abi == SY_BACKEND_ABI ? &table : NULL;
}
