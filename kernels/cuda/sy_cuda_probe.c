/* sy_cuda_probe.c - what CUDA devices and libraries this machine has; nothing is taken. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "sy_cuda_internal.h"

enum {
    MAJOR_MIN = 8
}; /* compute capability 8.0, Ampere: the oldest that kernels are compiled for */

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

int sy_cuda_probe_devices(sy_backend_system *system, sy_backend_device *device, uint32_t max,
                          uint32_t *n, char *why)
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
int sy_cuda_blas_version(uint64_t *version, char *why)
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
