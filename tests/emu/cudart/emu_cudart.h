/* emu_cudart.h - an emulated CUDA runtime: include/cuda_runtime_api.h in memory of this process, so
 * that the plugin's host code runs, unchanged, with the kernels of the emulator (../sy_emu.h).
 *
 * A stream is a thread that does one piece of work after another; kernels of all streams take
 * turns. Where CUDA promises nothing, it is unkind:
 * - Memory of a device starts as 0xff bytes, which are NaN, as pinned memory does, and ends at a
 * page that nobody may touch.
 * - A copy from pinned memory reads it when the stream gets there; one from other memory, at the
 *   call. A copy into pinned memory fills it with 0xee bytes at the call, unless a copy on its way
 *   still reads it, and lands when the stream gets there; into other memory, before the call ends.
 * - Arguments of a kernel are copied at the launch. Nothing but stream order, events, waiting and
 *   queries that find the end orders memory, and with ThreadSanitizer whoever touches it otherwise
 *   is reported.
 * - cudaErrorNotReady stays until cudaGetLastError reads it, as on some drivers.
 * - A lost device's calls fail for good, its work is dropped, and other devices go on.
 * It ends the process, with a line "emu_cudart: ..." on stderr, when something is freed or ended
 * that is not there, when a copy lies outside of what was allocated or takes host memory for a
 * device's, when the default stream is used, and when at exit, or at cudaDeviceReset, something is
 * left behind. As on real devices, cudaFree, cudaFreeHost and cudaHostUnregister wait for work on
 * its way.
 *
 * Not emulated: cudaLaunchHostFunc, capturing several streams into one graph, managed memory,
 * memory pools, events between processes, and time; kernels are not kept from memory that they may
 * not touch, such as pageable memory and, without peer access, another device's.
 *
 * The environment, read at the first call:
 *   SY_EMU_DEVICES    how many devices there are: 0 to 16; 2 by default
 *   SY_EMU_MEMORY_MB  memory of each; 256 by default
 *   SY_EMU_CONTROL    a file that is looked at in every call, and by streams that hang; absent is
 *                     empty. Replace it by rename. Lines, each of which begins when it first stands
 *                     there:
 *     fail CALL N ERROR  the Nth call of that name from now on fails once: fail cudaMalloc 3
 *                        cudaErrorMemoryAllocation. Kernels are cudaLaunchKernel; * is every call
 *                        that can fail but those that end something
 *     lose D [ERROR]     device D is lost for good: cudaErrorECCUncorrectable, or another
 *     slow D US          every copy to, from or on D takes US more, as long as the line stands
 *     hang D             work of D does not go on as long as the line stands
 *     flip D [copy]      one bit of the next copy between two places on devices, of which one is D
 *     flip D memory      one bit in the middle of the largest piece of memory of D, at once */
#ifndef EMU_CUDART_H
#define EMU_CUDART_H

#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_CUDART_DEVICES_MAX = 16 };

/* What the machine is like; to be changed before devices are used. */
typedef struct emu_cudart_device {
    char name[256];
    int major, minor, n_multiprocessors, compute_mode, has_ecc;
    size_t memory_bytes;
    cudaError_t properties_error; /* of cudaGetDeviceProperties */
} emu_cudart_device;
typedef struct emu_cudart_machine {
    int driver_version; /* 0: no driver, and then no device either */
    int n_devices;
    int has_peers;   /* devices can access each other's memory */
    double event_ms; /* what lies between any two events; negative: the time it took */
    int strict;      /* streams, events and memory may be used only while their device is current,
                      * which CUDA asks for only when kernels are launched and events recorded */
    emu_cudart_device device[EMU_CUDART_DEVICES_MAX];
} emu_cudart_machine;
emu_cudart_machine *emu_cudart_machine_get(void);

/* Back to what the environment says, nothing to fail and no device lost. Nothing may live. */
void emu_cudart_reset(void);

/* The nth call, from 1, of that name from now on fails once; NULL: of all that can fail but those
 * that end something, and cudaGetLastError and its like cannot. n = 0: none does. */
void emu_cudart_fail(const char *call, uint64_t n, cudaError_t error);
uint64_t emu_cudart_n_calls(const char *call); /* since the reset; NULL: counted in the same way */
void emu_cudart_lose(int device, cudaError_t error);
void emu_cudart_hang(int device, int on);
void emu_cudart_slow(int device, uint64_t us);
/* In the next copy between devices; memory: in the middle of the largest piece, at once. */
void emu_cudart_flip(int device, int memory);
/* Streams, events, graphs and memory that nobody has ended. */
int emu_cudart_n_live(void);
/* What cudaPeekAtLastError would say, without counting as a call or looking at a lost device. */
cudaError_t emu_cudart_last(void);

#ifdef __cplusplus
}
#endif

#endif
