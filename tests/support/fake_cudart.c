/* fake_cudart.c - see the header. */
#include "fake_cudart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_cuda fake;

static int current; /* device */

typedef struct object { /* before every piece of memory, and all of a stream or an event */
    int device;
    enum { STREAM = 0x51, EVENT, DEVICE_MEMORY, HOST_MEMORY } kind;
    size_t bytes;
    uint64_t pad;
} object;

void fake_cuda_reset(void)
{
    fake = (fake_cuda){.driver_version = 13000, .n_devices = 2, .copy_ms = 1};
    for (int i = 0; i < FAKE_CUDA_DEVICES_MAX; i++)
        fake.device[i] = (fake_cuda_device){.major = 9, .has_ecc = 1};
    current = 0;
}

static cudaError_t call(void)
{
    fake.n_calls++;
    if (fake.n_calls != fake.fail_at) return cudaSuccess;
    fake.last = fake.fail_with;
    return fake.fail_with;
}

#define MAY_FAIL()                      \
    do {                                \
        const cudaError_t e = call();   \
        if (e != cudaSuccess) return e; \
    } while (0)

/* ---- objects ---- */

static void *make(int kind, size_t bytes)
{
    object *o = calloc(1, sizeof(*o) + bytes);

    assert_non_null(o);
    o->device = current;
    o->kind = kind;
    o->bytes = bytes;
    fake.n_live++;
    return o;
}

static object *check(void *p, int kind)
{
    object *o = p;

    assert_non_null(o);
    assert_int_equal(o->kind, kind);
    assert_int_equal(o->device, current);
    return o;
}

static cudaError_t end(void *p, int kind)
{
    free(check(p, kind));
    fake.n_live--;
    return cudaSuccess;
}

/* ---- the runtime ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    MAY_FAIL();
    if (fake.driver_version == 0) return fake.last = cudaErrorInsufficientDriver;
    *count = fake.n_devices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    MAY_FAIL();
    memset(out, 0xff, sizeof(*out));
    memset(out->name, 'N', sizeof(out->name)); /* to its end, as no driver should */
    out->name[sizeof(out->name) - 1] = '\0';
    out->totalGlobalMem = (size_t)80 << 30;
    return fake.device[device].properties_error;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int len, int device)
{
    MAY_FAIL();
    snprintf(out, (size_t)len, "0000:%02x:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    MAY_FAIL();
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = fake.device[device].major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrEccEnabled: *value = fake.device[device].has_ecc; break;
    case cudaDevAttrComputeMode: *value = fake.device[device].compute_mode; break;
    default: fail_msg("attribute %d", (int)attribute);
    }
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    MAY_FAIL();
    assert_in_range(device, 0, fake.n_devices - 1);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    MAY_FAIL();
    *n_free = (size_t)(79 - current) << 30;
    *n_total = (size_t)80 << 30;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    MAY_FAIL();
    assert_int_equal(flags, cudaStreamNonBlocking);
    *out = make(STREAM, 0);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    check(stream, STREAM);
    return call();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return end(stream, STREAM);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    MAY_FAIL();
    *out = make(EVENT, 0);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    check(event, EVENT);
    check(stream, STREAM);
    return call();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    check(event, EVENT);
    return call();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t finish)
{
    check(begin, EVENT);
    check(finish, EVENT);
    MAY_FAIL();
    *ms = fake.copy_ms;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return end(event, EVENT);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    MAY_FAIL();
    *out = (object *)make(DEVICE_MEMORY, bytes) + 1;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    return end((object *)p - 1, DEVICE_MEMORY);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    MAY_FAIL();
    *out = (object *)make(HOST_MEMORY, bytes) + 1;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    return end((object *)p - 1, HOST_MEMORY);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    check(stream, STREAM);
    MAY_FAIL();
    assert_in_range(kind, cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice);
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = fake.last;

    fake.last = cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorInsufficientDriver ? "the driver is too old" : "an injected failure";
}

const char *cudaGetErrorName(cudaError_t e)
{
    static char name[32];

    snprintf(name, sizeof(name), "error %d", (int)e);
    return name;
}
