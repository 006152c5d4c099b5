/* sy_cu.h - through this header alone kernels see CUDA: the toolkit under nvcc, and the emulator of
 * tests/emu under a C++ compiler, which runs the same files thread by thread. Besides what CUDA and
 * the emulator spell alike, kernels write:
 *   SY_LAUNCH(kernel, grid, block, stream, arguments...)  launches; its value is the launch's error
 *   SY_SHARED(T, name, [N]);                               shared memory, 16-byte aligned
 *   SY_UNROLL                                              before a loop that must vanish, or its
 *                                                          arrays would not be registers
 * and the instructions that have no function in CUDA (sy_cu_ptx.h has their contracts). */
#ifndef SY_CU_H
#define SY_CU_H

#ifdef __CUDACC__
#include <cuda_runtime.h>
#include <stdint.h>

#define SY_LAUNCH(kernel, grid, block, stream, ...) \
    (kernel<<<(grid), (block), 0, (cudaStream_t)(stream)>>>(__VA_ARGS__), (int)cudaGetLastError())
#define SY_SHARED(T, name, dims) __shared__ __align__(16) T name dims
#define SY_UNROLL                _Pragma("unroll")

#include "sy_cu_ptx.h"
#else
#define SY_UNROLL

#include "sy_emu.h"
#endif

#endif
