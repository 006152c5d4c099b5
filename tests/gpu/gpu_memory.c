/* gpu_memory.c - see gpu_memory.h. */
#include "gpu_memory.h"

#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#define SEAL        0x5a
#define STACK_BYTES ((size_t)8 << 20)

int gpu_launched(int error); /* for the kernels, see gpu_wait.h */

static int is_set(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text != NULL && strcmp(text, value) == 0;
}

static int is_managed(void)
{
    return is_set("SY_GPU_MEMORY", "managed");
}

static size_t page_bytes(void)
{
    return is_set("SY_GPU_EXACT", "1") ? 0 : (size_t)sysconf(_SC_PAGESIZE);
}

static cudaError_t said(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fprintf(stderr, "%s: %s (%s)\n", what, cudaGetErrorString(e), cudaGetErrorName(e));
    return e;
}

int gpu_launched(int error)
{
    if (error == 0) error = (int)cudaDeviceSynchronize();
    return (int)said((cudaError_t)error, "a kernel");
}

void *gpu_map(size_t bytes)
{
    /* The caller counts a page that is not to be reached. */
    const size_t room = bytes - (size_t)sysconf(_SC_PAGESIZE) + page_bytes();
    void *p = NULL;
    const cudaError_t e =
        is_managed() ? cudaMallocManaged(&p, room, cudaMemAttachGlobal)
                     : cudaHostAlloc(&p, room, cudaHostAllocPortable | cudaHostAllocMapped);

    return said(e, "memory for a buffer") == cudaSuccess ? p : MAP_FAILED;
}

int gpu_seal(void *page, size_t bytes)
{
    if (page_bytes() != 0) memset(page, SEAL, bytes);
    return 0;
}

int gpu_unmap(void *map, size_t bytes)
{
    const uint8_t *page = (const uint8_t *)map + bytes - page_bytes();

    for (size_t i = 0; i < page_bytes(); i++)
        if (page[i] != SEAL) fail_msg("byte %zu of the page behind a buffer was written", i);
    return (int)said(is_managed() ? cudaFree(map) : cudaFreeHost(map), "freeing a buffer");
}

void *gpu_malloc(size_t bytes)
{
    void *p = NULL;

    (void)said(
        cudaHostAlloc(&p, bytes > 0 ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped),
        "memory");
    return p;
}

void *gpu_calloc(size_t n, size_t bytes)
{
    void *p = gpu_malloc(n * bytes);

    if (p != NULL) memset(p, 0, n * bytes);
    return p;
}

void gpu_free(void *p)
{
    if (p != NULL) (void)said(cudaFreeHost(p), "freeing memory");
}

/* ---- the program ---- */

/* Of the program itself, the first that is asked about: its variables, constants too, which are
 * made writable since only such pages can be registered. Where that fails, tests that hand out
 * their addresses fail as well, and tell. */
static int register_variables(struct dl_phdr_info *program, size_t size, void *unused)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    (void)size;
    (void)unused;
    for (int i = 0; i < program->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &program->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) != 0) continue;
        const uintptr_t at = program->dlpi_addr + part->p_vaddr, begin = at / page * page;
        const size_t bytes = (at + part->p_memsz - begin + page - 1) / page * page;
        if (mprotect((void *)begin, bytes, PROT_READ | PROT_WRITE) == 0)
            (void)said(cudaHostRegister((void *)begin, bytes, cudaHostRegisterDefault),
                       "variables for the device");
        (void)cudaGetLastError();
    }
    return 1;
}

static void *run_on_stack(void *code)
{
    *(int *)code = gpu_test_main();
    return NULL;
}

/* Ordinary memory, registered: a thread's stack holds what the kernel waits for, which memory of a
 * driver need not allow. NULL: there is none. */
static void *open_stack(void)
{
    void *stack =
        mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (stack == MAP_FAILED) return NULL;
    (void)said(cudaHostRegister(stack, STACK_BYTES, cudaHostRegisterDefault),
               "a stack for the device");
    (void)cudaGetLastError();
    return stack;
}

int main(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    int code = 1;

    if (said(cudaFree(NULL), "the device") != cudaSuccess) return 1;
    (void)dl_iterate_phdr(register_variables, NULL);
    void *stack = open_stack();
    if (stack == NULL || pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, run_on_stack, &code) != 0) {
        fputs("no thread with a stack of its own\n", stderr);
        return 1;
    }
    (void)pthread_join(thread, NULL);
    return code;
}
