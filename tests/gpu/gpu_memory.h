/* gpu_memory.h - memory that host and device reach by the same address, for tests that were written
 * for the emulator, where all memory is the device's. Buffers of kernel_cases.h take it in the
 * place of mmap; what tests have from malloc comes from it too; and they run on a stack that lies
 * in it, since the device may be handed the address of a local variable.
 *
 * It is pinned memory of the host: every access of the device goes over the bus, which these small
 * tests can afford, and nothing migrates, so it works wherever CUDA does. SY_GPU_MEMORY=managed
 * takes managed memory instead, for buffers alone. SY_GPU_EXACT=1 leaves out the page behind each
 * buffer, for tools that know where an allocation ends. */
#ifndef GPU_MEMORY_H
#define GPU_MEMORY_H

#include <stddef.h>

/* MAP_FAILED: there is none; stderr says why. */
void *gpu_map(size_t bytes);
/* Fills the page behind a buffer, which no device can be kept from, with a pattern. */
int gpu_seal(void *page, size_t bytes);
/* Fails the running test when somebody wrote into that page. */
int gpu_unmap(void *map, size_t bytes);

/* NULL: there is none. */
void *gpu_malloc(size_t bytes);
void *gpu_calloc(size_t n, size_t bytes);
void gpu_free(void *p); /* accepts NULL */

/* The test's own main: gpu_memory.c has the program's, which calls it on that stack. */
int gpu_test_main(void);

#endif
