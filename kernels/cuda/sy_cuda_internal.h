/* sy_cuda_internal.h - what the plugin's own files share. Third-party headers belong in .c files,
 * so cuda_runtime_api.h is included before this one. */
#ifndef SY_CUDA_INTERNAL_H
#define SY_CUDA_INTERNAL_H

#ifndef CUDART_VERSION
#error "include cuda_runtime_api.h first"
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "sy_backend.h"

/* ---- what is opened (sy_cuda_backend.c) ---- */

typedef struct sy_cuda_packer sy_cuda_packer; /* sy_cuda_matrix.c */

struct sy_backend_handle {
    int device;
    cudaStream_t stream; /* of copies into buffers and out of them */
    pthread_mutex_t packer_mutex;
    sy_cuda_packer *packer; /* NULL until the first matrix is written */
    atomic_int is_lost;
    pthread_mutex_t lost_mutex;
    char lost_why[SY_BACKEND_WHY_BYTES]; /* written before is_lost is set, and then never again */
    atomic_int is_hanging;
};

struct sy_backend_buffer {
    sy_backend_handle *handle; /* borrowed: it outlives its buffers */
    unsigned char *data;       /* on the device, at a multiple of 256 */
    uint64_t bytes;
};

/* Around every call that meets the device. The first refuses where the device is lost and makes it
 * current; the second remembers a loss, and returns `result`. From any thread. */
int sy_cuda_enter(sy_backend_handle *handle, char *why);
int sy_cuda_leave(sy_backend_handle *handle, int result, const char *why);
/* Waits until the stream has nothing under way, before what its work may touch is freed. 0: the
 * device hangs, and is lost. It may still write, and freeing would wait for it, so from then on
 * nothing of this handle is freed on the device. */
int sy_cuda_drain(sy_backend_handle *handle, cudaStream_t stream);

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

/* ---- memory (sy_cuda_buffer.c) ---- */

/* Memory for `what`, or SY_BACKEND_ENOMEM with figures. *out: NULL but for SY_BACKEND_OK. */
int sy_cuda_device_alloc(unsigned char **out, uint64_t bytes, const char *what, char *why);
int sy_cuda_pinned_alloc(unsigned char **out, uint64_t bytes, const char *what, char *why);
void sy_cuda_device_free(void *p); /* accept NULL */
void sy_cuda_pinned_free(void *p);

/* ---- operations (sy_cuda_ops_check.c, sy_cuda_ops_run.c) ---- */

enum { SY_CUDA_DIMENSION_MAX = 1 << 20 }; /* of a matrix: a grid's y has room for its row blocks */

/* SY_BACKEND_EINVAL, with the operation's name and its index: something in it is missing, out of
 * range, on another device, or reaches past its buffer. What stands in device memory (numbers of
 * rows, tokens, positions, sequences, pages) is the caller's, and nobody looks at it. */
int sy_cuda_op_check(const sy_backend_op *op, uint32_t index, int device, char *why);
/* Enqueues an operation that was checked; its device is current. */
int sy_cuda_op_run(const sy_backend_op *op, uint32_t index, cudaStream_t stream, char *why);
const char *sy_cuda_op_name(uint32_t kind); /* NULL: there is none */

/* Ends what matrices are written with. */
void sy_cuda_packer_close(sy_backend_handle *handle);

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

int sy_cuda_host_alloc(void **out, sy_backend_handle *handle, uint64_t bytes, char *why);
void sy_cuda_host_free(sy_backend_handle *handle, void *p);

uint64_t sy_cuda_matrix_size(const sy_backend_matrix *matrix);
int sy_cuda_matrix_write(sy_backend_ref to, const sy_backend_matrix *matrix, uint32_t row,
                         uint32_t n_rows, const void *rows, const void *up, char *why);

int sy_cuda_stream_open(sy_backend_stream **out, sy_backend_handle *handle, char *why);
void sy_cuda_stream_close(sy_backend_stream *stream);
int sy_cuda_stream_run(sy_backend_stream *stream, const sy_backend_op *op, uint32_t n, char *why);
int sy_cuda_stream_mark(sy_backend_stream *stream, uint32_t mark, char *why);
int sy_cuda_stream_wait(int *done, sy_backend_stream *stream, uint32_t mark, uint32_t timeout_us,
                        char *why);
uint64_t sy_cuda_attend_scratch(uint32_t rows_max, uint32_t n_heads, uint32_t value_dim,
                                uint32_t positions_max);

#endif
