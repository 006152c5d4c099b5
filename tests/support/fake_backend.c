/* fake_backend.c - a plugin for the tests, with two devices that are memory of this process, the
 * second of which the driver is said to keep from use. The build makes variants of it that a loader
 * must refuse:
 *   FAKE_ABI=3         made for another ABI, and honest about it
 *   FAKE_TABLE_ABI=3   the same, and not
 *   FAKE_SIZE=n        an older table of n bytes
 *   FAKE_NAME="x"      another backend
 *   FAKE_HOLE=1        an entry without a function
 *   FAKE_NO_ENTRY      a library that is no plugin
 *   FAKE_DEVICES=0     a driver without a device
 *   FAKE_NO_DRIVER     no driver at all
 *   FAKE_TWO_KINDS     the second device works, and is of another generation */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/sy_backend.h"

#ifndef FAKE_ABI
#define FAKE_ABI SY_BACKEND_ABI
#endif
#ifndef FAKE_TABLE_ABI
#define FAKE_TABLE_ABI FAKE_ABI
#endif
#ifndef FAKE_SIZE
#define FAKE_SIZE sizeof(sy_backend)
#endif
#ifndef FAKE_NAME
#define FAKE_NAME "cuda"
#endif
#ifndef FAKE_HOLE
#define FAKE_HOLE 0
#endif
#ifndef FAKE_DEVICES
#define FAKE_DEVICES 2
#endif

struct sy_backend_handle {
    uint32_t device;
};

struct sy_backend_buffer {
    uint64_t bytes;
    unsigned char data[];
};

static int refuse(char *why, int result, const char *text)
{
    snprintf(why, SY_BACKEND_WHY_BYTES, "%s", text);
    return result;
}

static int probe(sy_backend_system *system, sy_backend_device *device, uint32_t max, uint32_t *n,
                 char *why)
{
    const sy_backend_device all[] = {
        {.name = "Fake GPU",
         .pci = "0000:01:00.0",
         .major = 9,
         .minor = 0,
         .n_multiprocessors = 132,
         .has_ecc = 1,
         .memory_bytes = (uint64_t)80 << 30,
         .usable = 1},
        {.name = "Broken GPU", .pci = "0000:02:00.0", .major = 9, .why = "an injected failure"}};

    *system = (sy_backend_system){.driver_version = 13020, .runtime_version = 13000};
    *n = 0;
#ifdef FAKE_NO_DRIVER
    system->driver_version = 0;
    return refuse(why, SY_BACKEND_ENODEVICE, "an injected lack of drivers");
#endif
    why[0] = '\0';
    *n = FAKE_DEVICES;
    for (uint32_t i = 0; i < *n && i < max; i++) device[i] = all[i];
#ifdef FAKE_TWO_KINDS
    device[1].major = 8;
    device[1].usable = 1;
#endif
    return SY_BACKEND_OK;
}

static int blas_version(uint64_t *version, char *why)
{
    *version = 0;
    return refuse(why, SY_BACKEND_ENODEVICE, "an injected lack of libraries");
}

static int open_device(sy_backend_handle **out, uint32_t device, char *why)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) return refuse(why, SY_BACKEND_ENOMEM, "no memory");
    (*out)->device = device;
    return SY_BACKEND_OK;
}

static void close_device(sy_backend_handle *handle)
{
    free(handle);
}

static int memory(sy_backend_handle *handle, uint64_t *free_bytes, uint64_t *total_bytes, char *why)
{
    (void)handle;
    (void)why;
    *free_bytes = (uint64_t)79 << 30;
    *total_bytes = (uint64_t)80 << 30;
    return SY_BACKEND_OK;
}

static int buffer_alloc(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
                        char *why)
{
    (void)handle;
    *out = malloc(sizeof(**out) + bytes);
    if (*out == NULL) return refuse(why, SY_BACKEND_ENOMEM, "no memory");
    (*out)->bytes = bytes;
    return SY_BACKEND_OK;
}

static void buffer_free(sy_backend_buffer *buffer)
{
    free(buffer);
}

static int is_inside(const sy_backend_buffer *buffer, uint64_t offset, uint64_t n)
{
    return offset <= buffer->bytes && n <= buffer->bytes - offset;
}

static int copy_in(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                   char *why)
{
    if (!is_inside(buffer, offset, n)) return refuse(why, SY_BACKEND_EINVAL, "out of range");
    memcpy(buffer->data + offset, host, n);
    return SY_BACKEND_OK;
}

static int copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why)
{
    if (!is_inside(buffer, offset, n)) return refuse(why, SY_BACKEND_EINVAL, "out of range");
    memcpy(host, buffer->data + offset, n);
    return SY_BACKEND_OK;
}

static int measure_copies(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
                          char *why)
{
    (void)handle;
    (void)bytes;
    (void)why;
    *out = (sy_backend_bandwidth){.to_device = 55e9, .from_device = 54e9, .on_device = 4.1e12};
    return SY_BACKEND_OK;
}

/* ---- experts: these devices compute none ---- */

struct sy_backend_pool {
    sy_backend_pool_info info;
};

static const char no_pools[] = "a fake device computes no experts";

static int pool_open(sy_backend_pool **out, sy_backend_handle *handle,
                     const sy_backend_pool_config *config, char *why)
{
    (void)handle;
    (void)config;
    *out = NULL;
    return refuse(why, SY_BACKEND_ENOMEM, no_pools);
}

static void pool_close(sy_backend_pool *pool)
{
    (void)pool;
}

static void pool_describe(sy_backend_pool_info *out, const sy_backend_pool *pool)
{
    *out = pool->info;
}

static int slot_write(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                      uint32_t n_rows, const void *rows, char *why)
{
    (void)pool, (void)slot, (void)part, (void)row, (void)n_rows, (void)rows;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int slot_flush(sy_backend_pool *pool, uint32_t slot, char *why)
{
    (void)pool, (void)slot;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int slot_read(void *rows, sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                     uint32_t n_rows, char *why)
{
    (void)rows, (void)pool, (void)slot, (void)part, (void)row, (void)n_rows;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int slot_hash(uint64_t *out, sy_backend_pool *pool, uint32_t slot, char *why)
{
    (void)out, (void)pool, (void)slot;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int slot_copy(sy_backend_pool *to, uint32_t to_slot, sy_backend_pool *from,
                     uint32_t from_slot, uint64_t offset, uint64_t n, char *why)
{
    (void)to, (void)to_slot, (void)from, (void)from_slot, (void)offset, (void)n;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int pool_export(sy_backend_export *out, sy_backend_pool *pool, char *why)
{
    (void)out, (void)pool;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int pool_import(sy_backend_remote **out, sy_backend_pool *like,
                       const sy_backend_export *from, char *why)
{
    (void)like, (void)from;
    *out = NULL;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static void remote_close(sy_backend_remote *remote)
{
    (void)remote;
}

static int slot_pull(sy_backend_pool *to, uint32_t to_slot, sy_backend_remote *from,
                     uint32_t from_slot, uint64_t offset, uint64_t n, char *why)
{
    (void)to, (void)to_slot, (void)from, (void)from_slot, (void)offset, (void)n;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static void lane_memory(sy_backend_lane *out, const sy_backend_pool *pool, uint32_t lane)
{
    (void)pool, (void)lane;
    *out = (sy_backend_lane){0};
}

static int submit(sy_backend_pool *pool, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                  const sy_backend_group *group, uint32_t n_groups, char *why)
{
    (void)pool, (void)lane, (void)n_x, (void)n_rows, (void)group, (void)n_groups;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

static int wait_for(int *done, float *device_us, sy_backend_pool *pool, uint32_t lane,
                    uint32_t timeout_us, char *why)
{
    (void)pool, (void)lane, (void)timeout_us;
    *done = 0;
    *device_us = 0;
    return refuse(why, SY_BACKEND_EINVAL, no_pools);
}

/* ---- operations: nor do they compute any ---- */

static const char no_operations[] = "a fake device runs no operations";

static int pinned_alloc(void **out, sy_backend_handle *handle, uint64_t bytes, char *why)
{
    (void)handle, (void)bytes;
    *out = NULL;
    return refuse(why, SY_BACKEND_ENOMEM, no_operations);
}

static void pinned_free(sy_backend_handle *handle, void *p)
{
    (void)handle, (void)p;
}

static uint64_t matrix_bytes(const sy_backend_matrix *matrix)
{
    (void)matrix;
    return 0;
}

static int matrix_write(sy_backend_ref to, const sy_backend_matrix *matrix, uint32_t row,
                        uint32_t n_rows, const void *rows, const void *up, char *why)
{
    (void)to, (void)matrix, (void)row, (void)n_rows, (void)rows, (void)up;
    return refuse(why, SY_BACKEND_EINVAL, no_operations);
}

static int stream_open(sy_backend_stream **out, sy_backend_handle *handle, char *why)
{
    (void)handle;
    *out = NULL;
    return refuse(why, SY_BACKEND_ENOMEM, no_operations);
}

static void stream_close(sy_backend_stream *stream)
{
    (void)stream;
}

static int stream_run(sy_backend_stream *stream, const sy_backend_op *op, uint32_t n, char *why)
{
    (void)stream, (void)op, (void)n;
    return refuse(why, SY_BACKEND_EINVAL, no_operations);
}

static int stream_mark(sy_backend_stream *stream, uint32_t mark, char *why)
{
    (void)stream, (void)mark;
    return refuse(why, SY_BACKEND_EINVAL, no_operations);
}

static int stream_wait(int *done, sy_backend_stream *stream, uint32_t mark, uint32_t timeout_us,
                       char *why)
{
    (void)stream, (void)mark, (void)timeout_us;
    *done = 0;
    return refuse(why, SY_BACKEND_EINVAL, no_operations);
}

static uint64_t attend_scratch_bytes(uint32_t rows_max, uint32_t n_heads, uint32_t value_dim,
                                     uint32_t positions_max)
{
    (void)rows_max, (void)n_heads, (void)value_dim, (void)positions_max;
    return 0;
}

static const sy_backend table = {
    .abi = FAKE_TABLE_ABI,
    .size = FAKE_SIZE,
    .name = FAKE_NAME,
    .probe = probe,
    .blas_version = blas_version,
    .open = open_device,
    .close = close_device,
    .memory = memory,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .measure_copies = measure_copies,
    .pool_open = pool_open,
    .pool_close = pool_close,
    .pool_describe = pool_describe,
    .slot_write = slot_write,
    .slot_flush = slot_flush,
    .slot_read = slot_read,
    .slot_hash = slot_hash,
    .slot_copy = slot_copy,
    .pool_export = pool_export,
    .pool_import = pool_import,
    .remote_close = remote_close,
    .slot_pull = slot_pull,
    .lane = lane_memory,
    .submit = submit,
    .wait = FAKE_HOLE ? NULL : wait_for,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .matrix_bytes = matrix_bytes,
    .matrix_write = matrix_write,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_run = stream_run,
    .stream_mark = stream_mark,
    .stream_wait = stream_wait,
    .attend_scratch_bytes = attend_scratch_bytes,
};

#ifdef FAKE_NO_ENTRY
#define sy_backend_get not_a_backend
#endif
const sy_backend *sy_backend_get(uint32_t abi);

const sy_backend *sy_backend_get(uint32_t abi)
{
    return FAKE_TABLE_ABI != FAKE_ABI || abi == FAKE_ABI ? &table : NULL;
}
