/* fake_cudart.h - as much of CUDA's runtime as the plugin calls, in memory of this process, for
 * tests of the plugin where there is no GPU. It watches what the plugin does: each object belongs
 * to the device that was current when it was made and may be used and ended only there, and the
 * default stream is used by nobody. Any call can be told to fail. One thread. */
#ifndef FAKE_CUDART_H
#define FAKE_CUDART_H

#include <cuda_runtime_api.h>
#include <stdint.h>

enum { FAKE_CUDA_DEVICES_MAX = 32 };

typedef struct fake_cuda_device {
    int major, compute_mode, has_ecc;
    cudaError_t properties_error; /* of cudaGetDeviceProperties */
} fake_cuda_device;

typedef struct fake_cuda {
    int driver_version; /* 0: no driver, and then no device either */
    int n_devices;
    fake_cuda_device device[FAKE_CUDA_DEVICES_MAX];
    uint64_t n_calls; /* that can fail */
    uint64_t fail_at; /* the number of the call that fails, from 1; 0: none */
    cudaError_t fail_with;
    int n_live;       /* streams, events and memory that nobody has ended */
    float copy_ms;    /* how long every copy takes */
    cudaError_t last; /* what cudaGetLastError has to give */
} fake_cuda;

extern fake_cuda fake;

/* Two devices that work, and nothing to fail. */
void fake_cuda_reset(void);

#endif
