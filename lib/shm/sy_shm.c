/* sy_shm.c - regions as their creator sees them: owns the memory and the list of areas that are
 * lent. The list is in the creator's own memory, sorted by offset; what is between its entries is
 * free. It is short, because an area belongs to a message under way. */
#include "sy_shm.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "sy_shm_internal.h"

typedef struct area {
    size_t begin, end; /* offsets; multiples of SY_SHM_ALIGN */
} area;

struct sy_shm {
    atomic_uint refs;
    int fd;
    uint8_t *data; /* [bytes], mapped */
    size_t bytes;
    uint8_t key[SY_SHM_KEY_BYTES];
    pthread_mutex_t mutex; /* guards the rest */
    uint32_t n_areas;
    area area[SY_SHM_AREAS_MAX];
};

/* ---- life ---- */

static sy_status map_region(sy_shm *self)
{
    const shm_header header = {.magic = SHM_MAGIC, .bytes = self->bytes};

    self->fd = memfd_create("switchyard-rows", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (self->fd < 0 || ftruncate(self->fd, (off_t)self->bytes) != 0) return SY_EIO;
    self->data = mmap(NULL, self->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, self->fd, 0);
    if (self->data == MAP_FAILED) {
        self->data = NULL;
        return SY_EIO;
    }
    if (getrandom(self->key, sizeof(self->key), 0) != (ssize_t)sizeof(self->key)) return SY_EIO;
    memcpy(self->data, &header, sizeof(header));
    memcpy(self->data + offsetof(shm_header, key), self->key, sizeof(self->key));
    return fcntl(self->fd, F_ADD_SEALS, SHM_SEALS) == 0 ? SY_OK : SY_EIO;
}

sy_status sy_shm_create(sy_shm **out, size_t bytes, sy_error *err)
{
    sy_shm *self;

    *out = NULL;
    if (bytes == 0 || bytes > SY_SHM_BYTES_MAX - SHM_HEADER_BYTES)
        return sy_error_set(err, SY_EINVAL, "a shared region of %zu bytes: from 1 to %zu", bytes,
                            (size_t)SY_SHM_BYTES_MAX - SHM_HEADER_BYTES);
    self = calloc(1, sizeof(*self));
    if (self == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a shared region");
    atomic_init(&self->refs, 1);
    self->bytes =
        SHM_HEADER_BYTES + (bytes + SHM_HEADER_BYTES - 1) / SHM_HEADER_BYTES * SHM_HEADER_BYTES;
    pthread_mutex_init(&self->mutex, NULL);
    if (map_region(self) == SY_OK) {
        *out = self;
        return SY_OK;
    }
    sy_error_set(err, SY_EIO, "no shared region of %zu bytes: %s", self->bytes, strerror(errno));
    sy_shm_unref(self);
    return SY_EIO;
}

sy_shm *sy_shm_ref(sy_shm *shm)
{
    atomic_fetch_add_explicit(&shm->refs, 1, memory_order_relaxed);
    return shm;
}

void sy_shm_unref(sy_shm *shm)
{
    if (shm == NULL || atomic_fetch_sub_explicit(&shm->refs, 1, memory_order_acq_rel) != 1) return;
    if (shm->data != NULL) munmap(shm->data, shm->bytes);
    if (shm->fd >= 0) close(shm->fd);
    pthread_mutex_destroy(&shm->mutex);
    free(shm);
}

void sy_shm_get_ticket(const sy_shm *shm, sy_shm_ticket *out)
{
    *out = (sy_shm_ticket){
        .pid = (uint64_t)getpid(), .fd = (uint32_t)shm->fd, .bytes = (uint64_t)shm->bytes};
    memcpy(out->key, shm->key, sizeof(out->key));
}

/* ---- areas ---- */

void *sy_shm_lend(sy_shm *shm, size_t bytes)
{
    const size_t size = (SY_MAX(bytes, (size_t)1) + SY_SHM_ALIGN - 1) & ~(size_t)(SY_SHM_ALIGN - 1);
    size_t begin = SHM_HEADER_BYTES;
    uint32_t i = 0;
    void *found = NULL;

    if (bytes > shm->bytes) return NULL;
    pthread_mutex_lock(&shm->mutex);
    for (; i < shm->n_areas && shm->area[i].begin - begin < size; i++) begin = shm->area[i].end;
    if (shm->n_areas < SY_SHM_AREAS_MAX && shm->bytes - begin >= size) {
        memmove(&shm->area[i + 1], &shm->area[i], (shm->n_areas - i) * sizeof(area));
        shm->area[i] = (area){begin, begin + size};
        shm->n_areas++;
        found = shm->data + begin;
    }
    pthread_mutex_unlock(&shm->mutex);
    return found;
}

void sy_shm_give_back(sy_shm *shm, void *at)
{
    const uint64_t begin = sy_shm_offset(shm, at);
    uint32_t i = 0;

    pthread_mutex_lock(&shm->mutex);
    while (i < shm->n_areas && shm->area[i].begin != begin) i++;
    SY_ASSERT(i < shm->n_areas);
    shm->n_areas--;
    memmove(&shm->area[i], &shm->area[i + 1], (shm->n_areas - i) * sizeof(area));
    pthread_mutex_unlock(&shm->mutex);
}

uint64_t sy_shm_offset(const sy_shm *shm, const void *at)
{
    const uintptr_t offset = (uintptr_t)at - (uintptr_t)shm->data;

    SY_ASSERT(offset < shm->bytes);
    return offset;
}

uint32_t sy_shm_lent(sy_shm *shm)
{
    pthread_mutex_lock(&shm->mutex);
    const uint32_t n = shm->n_areas;
    pthread_mutex_unlock(&shm->mutex);
    return n;
}
