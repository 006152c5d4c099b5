/* emu_memory.c - memory of devices and pinned memory of the host: what there is, whose it is, and
 * where it ends. A device's lies in a file without a name, so that other processes can map it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SY_EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

#include "emu_state.h"

enum { ALIGNMENT = 256 }; /* of what cudaMalloc gives */

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

int emu_is_device_memory(const emu_memory *m)
{
    return m != NULL && (m->kind == EMU_DEVICE || m->kind == EMU_IMPORTED);
}

emu_memory *emu_memory_of(const void *p, size_t n, const char *call)
{
    const unsigned char *at = p;

    for (emu_memory *m = emu.memory; m != NULL; m = m->next) {
        if (at < m->data || at >= m->data + m->bytes) continue;
        if (n > m->bytes - (size_t)(at - m->data))
            emu_die("%s: %zu bytes at %zu of %zu", call, n, (size_t)(at - m->data), m->bytes);
        return m;
    }
    return NULL;
}

/* All of the mapping but the data: nobody may touch it. */
static void guard(const emu_memory *m, int on)
{
#ifdef SY_EMU_ASAN
    unsigned char *begin = m->map + page_bytes(), *end = m->map + m->map_bytes - page_bytes();

    if (on) {
        __asan_poison_memory_region(begin, (size_t)(m->data - begin));
        __asan_poison_memory_region(m->data + m->bytes, (size_t)(end - m->data) - m->bytes);
    } else {
        __asan_unpoison_memory_region(begin, (size_t)(end - begin));
    }
#else
    (void)m;
    (void)on;
#endif
}

emu_memory *emu_memory_map(emu_memory_kind kind, int fd, size_t file_bytes, size_t bytes)
{
    const size_t page = page_bytes();
    emu_memory *m = emu_new(sizeof(*m));
    unsigned char *at;

    m->kind = kind;
    m->device = kind == EMU_PINNED ? -1 : emu_current();
    m->bytes = bytes;
    m->fd = fd;
    m->map_bytes = file_bytes + 2 * page;
    m->map =
        mmap(NULL, m->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->map == MAP_FAILED) emu_die("no addresses for %zu bytes", bytes);
    at = mmap(m->map + page, file_bytes, PROT_READ | PROT_WRITE,
              MAP_FIXED | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd, 0);
    if (at == MAP_FAILED) emu_die("no memory for %zu bytes", bytes);
    /* At the end of the pages, so that whoever writes past it meets the one that cannot be touched;
     * the host's at their beginning, as it has to be. */
    m->data = kind == EMU_PINNED ? at : at + file_bytes - round_up(bytes, ALIGNMENT);
    if (kind != EMU_IMPORTED) memset(m->data, EMU_NEW_BYTE, bytes);
    guard(m, 1);
    EMU_LINK(emu.memory, m);
    emu.n_live++;
    return m;
}

void emu_memory_unmap(emu_memory *m)
{
    if (m->kind == EMU_DEVICE) emu.device[m->device].used_bytes -= round_up(m->bytes, ALIGNMENT);
    *EMU_FIND(emu.memory, m) = m->next;
    emu.n_live--;
    if (m->map != NULL) {
        guard(m, 0);
        munmap(m->map, m->map_bytes);
    }
    if (m->fd >= 0) close(m->fd);
    free(m);
}

/* The memory of that kind that begins at p, which somebody wants to be rid of. */
static emu_memory *take(void *p, emu_memory_kind kind, const char *call)
{
    for (emu_memory *m = emu.memory; m != NULL; m = m->next)
        if (m->data == p && m->kind == kind) {
            emu_check_current(m->device, "memory");
            return m;
        }
    emu_die("%s: %p is not there", call, p);
}

static cudaError_t end_memory(void *p, emu_memory_kind kind, const char *call)
{
    cudaError_t e = emu_begin(call, EMU_CURRENT);
    const cudaError_t forbidden = emu_capture_forbids();

    if (forbidden != cudaSuccess) return emu_end(forbidden);
    if (p != NULL) {
        emu_memory *m = take(p, kind, call);
        if (m->device >= 0 && emu.device[m->device].lost != cudaSuccess)
            e = emu.device[m->device].lost;
        emu_wait_for_memory(m);
        emu_memory_unmap(m);
    }
    return emu_end(e);
}

/* ---- the runtime ---- */

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    const cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    if (e == cudaSuccess) {
        *n_total = emu.machine.device[emu_current()].memory_bytes;
        *n_free = *n_total - emu.device[emu_current()].used_bytes;
    }
    return emu_end(e);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    emu_device *d = &emu.device[emu_current()];

    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && bytes == 0) {
        *out = NULL;
        return emu_end(e);
    }
    if (e == cudaSuccess && (bytes > emu.machine.device[emu_current()].memory_bytes ||
                             round_up(bytes, ALIGNMENT) >
                                 emu.machine.device[emu_current()].memory_bytes - d->used_bytes))
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        const size_t file_bytes = round_up(bytes, page_bytes());
        const int fd = memfd_create("emu_cudart", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)file_bytes) != 0)
            emu_die("memfd_create: %zu bytes", bytes);
        *out = emu_memory_map(EMU_DEVICE, fd, file_bytes, bytes)->data;
        d->used_bytes += round_up(bytes, ALIGNMENT);
    }
    return emu_end(e);
}

cudaError_t cudaFree(void *p)
{
    return end_memory(p, EMU_DEVICE, __func__);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);

    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && (flags & ~7u) != 0) e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        *out = bytes == 0
                   ? NULL
                   : emu_memory_map(EMU_PINNED, -1, round_up(bytes, page_bytes()), bytes)->data;
    return emu_end(e);
}

cudaError_t cudaFreeHost(void *p)
{
    return end_memory(p, EMU_PINNED, __func__);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    unsigned char *begin = p;

    if (e == cudaSuccess) e = emu_capture_forbids();
    if (e == cudaSuccess && (p == NULL || bytes == 0 || (flags & ~15u) != 0))
        e = cudaErrorInvalidValue;
    for (const emu_memory *m = emu.memory; e == cudaSuccess && m != NULL; m = m->next)
        if (begin < m->data + m->bytes && m->data < begin + bytes)
            e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess) {
        emu_memory *m = emu_new(sizeof(*m));
        *m =
            (emu_memory){.kind = EMU_REGISTERED, .device = -1, .data = p, .bytes = bytes, .fd = -1};
        EMU_LINK(emu.memory, m);
        emu.n_live++;
    }
    return emu_end(e);
}

cudaError_t cudaHostUnregister(void *p)
{
    return end_memory(p, EMU_REGISTERED, __func__);
}

/* ---- other processes ---- */

typedef struct ipc_handle { /* what a cudaIpcMemHandle_t holds */
    char magic[8];
    int pid, fd;
    uint64_t file_id; /* so that another file under that number is not taken for it */
    uint64_t file_bytes, bytes;
} ipc_handle;
_Static_assert(sizeof(ipc_handle) <= sizeof(cudaIpcMemHandle_t), "it holds it");

static const char ipc_magic[8] = "emu_ipc";

/* Of the whole piece that holds p, as CUDA has it. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    const emu_memory *m = emu_memory_of(p, 0, __func__);
    struct stat info;

    if (e == cudaSuccess && (m == NULL || m->kind != EMU_DEVICE)) e = cudaErrorInvalidValue;
    if (e == cudaSuccess && fstat(m->fd, &info) != 0) e = cudaErrorOperatingSystem;
    if (e == cudaSuccess) {
        ipc_handle handle = {
            .pid = getpid(), .fd = m->fd, .file_id = info.st_ino, .bytes = m->bytes};
        memcpy(handle.magic, ipc_magic, sizeof(ipc_magic));
        handle.file_bytes = (uint64_t)info.st_size;
        memset(out, 0, sizeof(*out));
        memcpy(out, &handle, sizeof(handle));
    }
    return emu_end(e);
}

static cudaError_t open_file(int *fd, const ipc_handle *handle)
{
    char path[64];
    struct stat info;

    if (memcmp(handle->magic, ipc_magic, sizeof(ipc_magic)) != 0) return cudaErrorInvalidValue;
    if (handle->pid == getpid()) return cudaErrorDeviceUninitialized;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return cudaErrorInvalidResourceHandle;
    if (fstat(*fd, &info) == 0 && info.st_ino == handle->file_id &&
        (uint64_t)info.st_size == handle->file_bytes && handle->bytes <= handle->file_bytes)
        return cudaSuccess;
    close(*fd);
    return cudaErrorInvalidResourceHandle;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t in, unsigned int flags)
{
    cudaError_t e = emu_begin(__func__, EMU_CURRENT);
    ipc_handle handle;
    int fd = -1;

    memcpy(&handle, &in, sizeof(handle));
    if (e == cudaSuccess && flags != cudaIpcMemLazyEnablePeerAccess) e = cudaErrorInvalidValue;
    if (e == cudaSuccess) e = open_file(&fd, &handle);
    if (e == cudaSuccess)
        *out = emu_memory_map(EMU_IMPORTED, fd, handle.file_bytes, handle.bytes)->data;
    return emu_end(e);
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    return end_memory(p, EMU_IMPORTED, __func__);
}
