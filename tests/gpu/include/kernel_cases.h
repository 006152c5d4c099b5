/* kernel_cases.h - found before tests/kernels/kernel_cases.h where tests of tests/emu are built for
 * a GPU: the same buffers and guards, and all else, in memory that the device reaches too. */
#ifndef GPU_KERNEL_CASES_H
#define GPU_KERNEL_CASES_H

#include <sys/mman.h>

#include "gpu_memory.h"

#define mmap(at, bytes, protection, flags, file, offset) gpu_map(bytes)
#define mprotect(at, bytes, protection)                  gpu_seal(at, bytes)
#define munmap(at, bytes)                                gpu_unmap(at, bytes)

#include "../../kernels/kernel_cases.h"

#undef mmap
#undef mprotect
#undef munmap

#define malloc(bytes)    gpu_malloc(bytes)
#define calloc(n, bytes) gpu_calloc(n, bytes)
#define free(p)          gpu_free(p)
#define main             gpu_test_main

#endif
