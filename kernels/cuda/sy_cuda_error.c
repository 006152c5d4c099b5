/* sy_cuda_error.c - the runtime's errors as results and sentences. */
#include <cuda_runtime_api.h>

#include "sy_cuda_internal.h"

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
int sy_cuda_failed(char *why, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return SY_BACKEND_OK;
    /* What is not sticky stays with the thread until it is read, and would be blamed on others. */
    (void)cudaGetLastError();
    return REFUSE(why, result_of(e), "%s: %s (%s)", what, cudaGetErrorString(e),
                  cudaGetErrorName(e));
}

void sy_cuda_forget(cudaError_t e)
{
    if (e != cudaSuccess) (void)cudaGetLastError();
}
