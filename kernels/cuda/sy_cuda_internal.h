/* sy_cuda_internal.h - what the plugin's own files share. Third-party headers belong in .c files,
 * so cuda_runtime_api.h is included before this one. */
#ifndef SY_CUDA_INTERNAL_H
#define SY_CUDA_INTERNAL_H

#ifndef CUDART_VERSION
#error "include cuda_runtime_api.h first"
#endif

#include <stdio.h>

#include "sy_backend.h"

struct sy_backend_handle {
    int device;
    cudaStream_t stream;
};

/* ---- errors ---- */

/* Writes the sentence and is the result. A macro, so that the compiler checks the format. */
#define REFUSE(why, result, ...) (snprintf((why), SY_BACKEND_WHY_BYTES, __VA_ARGS__), (result))

/* what: the call, as "cudaMalloc". */
int sy_cuda_failed(char *why, cudaError_t e, const char *what);
/* For calls that end something, whose failure nobody can act on. What the runtime keeps of it must
 * not be taken for that of a launch. */
void sy_cuda_forget(cudaError_t e);

#define TRY(call, name)                                                  \
    do {                                                                 \
        if ((result = sy_cuda_failed(why, (call), name)) != 0) goto out; \
    } while (0)

/* ---- waiting (sy_cuda_wait.c) ---- */

/* Until everything that was recorded, or enqueued, before is done, for timeout_us at most (0: looks
 * once). *done tells; 0 with SY_BACKEND_OK: time is up. */
int sy_cuda_await_event(int *done, cudaEvent_t event, uint64_t timeout_us, char *why);
int sy_cuda_await_stream(int *done, cudaStream_t stream, uint64_t timeout_us, char *why);
/* The same for what takes a millisecond on a device that works: after a minute it is lost. */
int sy_cuda_settle_event(cudaEvent_t event, char *why);
int sy_cuda_settle_stream(cudaStream_t stream, char *why);

/* ---- the table's functions, as sy_backend.h has them ---- */

int sy_cuda_probe_devices(sy_backend_system *system, sy_backend_device *device, uint32_t max,
                          uint32_t *n, char *why);
int sy_cuda_blas_version(uint64_t *version, char *why);

int sy_cuda_buffer_alloc(sy_backend_buffer **out, sy_backend_handle *handle, uint64_t bytes,
                         char *why);
void sy_cuda_buffer_free(sy_backend_buffer *buffer);
int sy_cuda_copy_in(sy_backend_buffer *buffer, uint64_t offset, const void *host, uint64_t n,
                    char *why);
int sy_cuda_copy_out(void *host, sy_backend_buffer *buffer, uint64_t offset, uint64_t n, char *why);
int sy_cuda_measure_copies(sy_backend_bandwidth *out, sy_backend_handle *handle, uint64_t bytes,
                           char *why);

int sy_cuda_pool_open(sy_backend_pool **out, sy_backend_handle *handle,
                      const sy_backend_pool_config *config, char *why);
void sy_cuda_pool_close(sy_backend_pool *pool);
void sy_cuda_pool_describe(sy_backend_pool_info *out, const sy_backend_pool *pool);

int sy_cuda_slot_write(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                       uint32_t n_rows, const void *rows, char *why);
int sy_cuda_slot_flush(sy_backend_pool *pool, uint32_t slot, char *why);
int sy_cuda_slot_read(void *rows, sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                      uint32_t n_rows, char *why);
int sy_cuda_slot_hash(uint64_t *out, sy_backend_pool *pool, uint32_t slot, char *why);

int sy_cuda_slot_copy(sy_backend_pool *to, uint32_t to_slot, sy_backend_pool *from,
                      uint32_t from_slot, uint64_t offset, uint64_t n, char *why);
int sy_cuda_pool_export(sy_backend_export *out, sy_backend_pool *pool, char *why);
int sy_cuda_pool_import(sy_backend_remote **out, sy_backend_pool *like,
                        const sy_backend_export *from, char *why);
void sy_cuda_remote_close(sy_backend_remote *remote);
int sy_cuda_slot_pull(sy_backend_pool *to, uint32_t to_slot, sy_backend_remote *from,
                      uint32_t from_slot, uint64_t offset, uint64_t n, char *why);

void sy_cuda_lane_memory(sy_backend_lane *out, const sy_backend_pool *pool, uint32_t lane);
int sy_cuda_submit(sy_backend_pool *pool, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                   const sy_backend_group *group, uint32_t n_groups, char *why);
int sy_cuda_wait(int *done, float *device_us, sy_backend_pool *pool, uint32_t lane,
                 uint32_t timeout_us, char *why);

#endif
