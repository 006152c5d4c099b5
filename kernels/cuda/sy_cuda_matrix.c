/* sy_cuda_matrix.c - matrices of the trunk into the packed form that products read: rows go through
 * pinned memory of the host and a place on the device, from where a kernel packs them. A handle has
 * one way for all of them, made for the first, with a lock: matrices may be written by several
 * threads, and the host's copy into pinned memory is what takes longest. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "sy_cuda_pack.h"
#include "sy_cuda_pool_internal.h"

enum { SY_CUDA_FACTOR_ROWS = 128 }; /* of FP8, which share factors */

struct sy_cuda_packer {
    sy_cuda_way way; /* the handle's packer_mutex is that of the pieces */
    unsigned char *host, *device;
    uint64_t piece_bytes; /* a megabyte, or a block of rows where that is more; 0: none yet */
};

/* Rows of one matrix, or of one half of Gate and Up. */
typedef struct matrix_rows {
    unsigned char *packed; /* where the matrix begins, on the device */
    sy_cuda_part part;
    sy_cuda_weights weights;
    uint32_t n, k;
    uint32_t row, n_rows;
    uint64_t row_bytes;
    const unsigned char *rows;
} matrix_rows;

uint64_t sy_cuda_matrix_size(const sy_backend_matrix *matrix)
{
    const sy_cuda_part part = matrix->form == SY_BACKEND_PLAIN ? SY_CUDA_DOWN : SY_CUDA_GATE;

    if (matrix->form > SY_BACKEND_GATE_UP || matrix->weights > SY_BACKEND_MXFP4) return 0;
    return sy_cuda_matrix_bytes((sy_cuda_weights)matrix->weights, part, matrix->n, matrix->k);
}

/* ---- the way ---- */

static void free_pieces(sy_cuda_packer *packer)
{
    sy_cuda_device_free(packer->device);
    sy_cuda_pinned_free(packer->host);
    packer->device = packer->host = NULL;
    packer->piece_bytes = 0;
}

void sy_cuda_packer_close(sy_backend_handle *handle)
{
    sy_cuda_packer *packer = handle->packer;

    if (packer == NULL) return;
    handle->packer = NULL;
    /* Of a device that hangs it stays behind with its work. */
    if (packer->way.stream == NULL || sy_cuda_drain(handle, packer->way.stream)) {
        for (uint32_t i = 0; i < SY_CUDA_PIECES; i++)
            if (packer->way.piece[i].done != NULL)
                sy_cuda_forget(cudaEventDestroy(packer->way.piece[i].done));
        if (packer->way.stream != NULL) sy_cuda_forget(cudaStreamDestroy(packer->way.stream));
        free_pieces(packer);
    }
    free(packer);
}

static int open_packer(sy_backend_handle *handle, char *why)
{
    sy_cuda_packer *self = calloc(1, sizeof(*self));
    int lowest = 0, highest = 0;
    int result;

    if (self == NULL) return REFUSE(why, SY_BACKEND_ENOMEM, "no memory for what matrices need");
    handle->packer = self;
    TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    TRY(cudaStreamCreateWithPriority(&self->way.stream, cudaStreamNonBlocking, lowest),
        "cudaStreamCreateWithPriority");
    for (uint32_t i = 0; i < SY_CUDA_PIECES; i++)
        TRY(cudaEventCreateWithFlags(&self->way.piece[i].done, cudaEventDisableTiming),
            "cudaEventCreateWithFlags");
    return SY_BACKEND_OK;
out:
    sy_cuda_packer_close(handle);
    return result;
}

/* Pieces that a block of 16 rows fits into. Nothing is under way. */
static int grow_pieces(sy_cuda_packer *packer, uint64_t row_bytes, char *why)
{
    const uint64_t block = SY_CUDA_BLOCK_ROWS * row_bytes;
    const uint64_t bytes = block > SY_CUDA_COPY_BYTES ? block : SY_CUDA_COPY_BYTES;
    const char *what = "the way in for matrices";
    int result;

    if (packer->piece_bytes >= bytes) return SY_BACKEND_OK;
    free_pieces(packer);
    result = sy_cuda_pinned_alloc(&packer->host, SY_CUDA_PIECES * bytes, what, why);
    if (result == SY_BACKEND_OK)
        result = sy_cuda_device_alloc(&packer->device, SY_CUDA_PIECES * bytes, what, why);
    if (result != SY_BACKEND_OK) {
        free_pieces(packer);
        return result;
    }
    packer->piece_bytes = bytes;
    for (uint32_t i = 0; i < SY_CUDA_PIECES; i++) {
        packer->way.piece[i].host = packer->host + i * bytes;
        packer->way.piece[i].device = packer->device + i * bytes;
    }
    return SY_BACKEND_OK;
}

/* ---- rows ---- */

/* The first rows of `rest`, as many as fit into a piece. */
static int write_piece(uint32_t *n_rows, sy_cuda_packer *packer, const matrix_rows *rest, char *why)
{
    const uint64_t row_bytes = rest->row_bytes;
    const uint64_t blocks = packer->piece_bytes / (row_bytes * SY_CUDA_BLOCK_ROWS);
    const uint64_t room = blocks * SY_CUDA_BLOCK_ROWS;
    const uint32_t n = rest->n_rows < room ? rest->n_rows : (uint32_t)room;
    const cudaStream_t stream = packer->way.stream;
    sy_cuda_piece *piece;
    int result = sy_cuda_piece_take(&piece, &packer->way, why);

    *n_rows = n;
    if (result != SY_BACKEND_OK) return result;
    memcpy(piece->host, rest->rows, n * row_bytes);
    for (uint64_t at = 0; at < n * row_bytes; at += SY_CUDA_COPY_BYTES) {
        const uint64_t left = n * row_bytes - at;

        TRY(cudaMemcpyAsync(piece->device + at, piece->host + at,
                            left < SY_CUDA_COPY_BYTES ? left : SY_CUDA_COPY_BYTES,
                            cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync");
    }
    TRY((cudaError_t)sy_cuda_rows_pack(rest->packed, piece->device, rest->weights, rest->part,
                                       rest->n, rest->k, rest->row, n, stream),
        "sy_cuda_rows_pack");
    TRY(cudaEventRecord(piece->done, stream), "cudaEventRecord");
out:
    return result;
}

static int write_rows(sy_cuda_packer *packer, matrix_rows rest, char *why)
{
    int result = SY_BACKEND_OK;

    while (rest.n_rows > 0 && result == SY_BACKEND_OK) {
        uint32_t n;

        result = write_piece(&n, packer, &rest, why);
        rest.row += n;
        rest.n_rows -= n;
        rest.rows += n * rest.row_bytes;
    }
    return result;
}

/* Also what was begun before a failure must be over, or the next write would meet it. */
static int settle(sy_cuda_packer *packer, int result, char *why)
{
    char other[SY_BACKEND_WHY_BYTES];
    int settled;

    if (result == SY_BACKEND_EDEVLOST) return result;
    settled = sy_cuda_settle_stream(packer->way.stream, other);
    if (settled == SY_BACKEND_OK || (result != SY_BACKEND_OK && settled != SY_BACKEND_EDEVLOST))
        return result;
    return REFUSE(why, settled, "%s", other);
}

/* Rows that go in together. */
static uint32_t rows_together(const sy_backend_matrix *m)
{
    return m->weights == SY_BACKEND_FP8 ? SY_CUDA_FACTOR_ROWS : SY_CUDA_BLOCK_ROWS;
}

static int check_matrix(const sy_backend_matrix *m, char *why)
{
    if (m->form <= SY_BACKEND_GATE_UP && m->weights <= SY_BACKEND_MXFP4 && m->n >= 1 &&
        m->n <= SY_CUDA_DIMENSION_MAX && m->k >= 1 && m->k <= SY_CUDA_DIMENSION_MAX)
        return SY_BACKEND_OK;
    return REFUSE(
        why, SY_BACKEND_EINVAL,
        "a matrix of %u by %u of form %u and weights %u: there are forms 0 and 1, weights "
        "0 to %d, from 1 to %d by 1 to %d",
        m->n, m->k, m->form, m->weights, SY_BACKEND_MXFP4, SY_CUDA_DIMENSION_MAX,
        SY_CUDA_DIMENSION_MAX);
}

static int check_write(sy_backend_ref to, const sy_backend_matrix *m, uint32_t row, uint32_t n_rows,
                       const void *rows, const void *up, char *why)
{
    const uint64_t bytes = sy_cuda_matrix_size(m);
    const uint32_t together = rows_together(m);

    if (check_matrix(m, why) != SY_BACKEND_OK) return SY_BACKEND_EINVAL;
    if (row > m->n || n_rows > m->n - row)
        return REFUSE(why, SY_BACKEND_EINVAL, "%u rows from row %u on, and the matrix has %u",
                      n_rows, row, m->n);
    if (row % together != 0 || (n_rows % together != 0 && row + n_rows != m->n))
        return REFUSE(why, SY_BACKEND_EINVAL, "%u rows from row %u on: whole blocks of %u go in",
                      n_rows, row, together);
    if (rows == NULL || (up != NULL) != (m->form == SY_BACKEND_GATE_UP))
        return REFUSE(why, SY_BACKEND_EINVAL,
                      "rows of a plain matrix, or of Gate and of Up, are what goes in");
    if (to.buffer == NULL || to.offset % 16 != 0 || to.offset > to.buffer->bytes ||
        bytes > to.buffer->bytes - to.offset)
        return REFUSE(why, SY_BACKEND_EINVAL,
                      "a matrix of %llu bytes at %llu of a buffer of %llu: it lies inside, at a "
                      "multiple of 16",
                      (unsigned long long)bytes, (unsigned long long)to.offset,
                      (unsigned long long)(to.buffer == NULL ? 0 : to.buffer->bytes));
    return SY_BACKEND_OK;
}

/* FP8: of both halves, before anything of either goes in. */
static int check_factors(const matrix_rows *part, const void *up, char *why)
{
    int result;

    if (part->weights != SY_CUDA_FP8) return SY_BACKEND_OK;
    result = sy_cuda_factors_agree(part->k, part->row, part->n_rows, part->rows, why);
    if (result == SY_BACKEND_OK && up != NULL)
        result = sy_cuda_factors_agree(part->k, part->row, part->n_rows, up, why);
    return result;
}

int sy_cuda_matrix_write(sy_backend_ref to, const sy_backend_matrix *matrix, uint32_t row,
                         uint32_t n_rows, const void *rows, const void *up, char *why)
{
    int result = check_write(to, matrix, row, n_rows, rows, up, why);
    sy_backend_handle *handle;
    matrix_rows part;

    if (result != SY_BACKEND_OK) return result;
    handle = to.buffer->handle;
    part = (matrix_rows){.packed = to.buffer->data + to.offset,
                         .part = up == NULL ? SY_CUDA_DOWN : SY_CUDA_GATE,
                         .weights = (sy_cuda_weights)matrix->weights,
                         .n = matrix->n,
                         .k = matrix->k,
                         .row = row,
                         .n_rows = n_rows,
                         .rows = rows};
    part.row_bytes = sy_cuda_row_bytes(part.weights, part.k);
    if ((result = check_factors(&part, up, why)) != SY_BACKEND_OK) return result;
    if ((result = sy_cuda_enter(handle, why)) != SY_BACKEND_OK) return result;
    pthread_mutex_lock(&handle->packer_mutex);
    if (handle->packer == NULL) result = open_packer(handle, why);
    if (result == SY_BACKEND_OK) result = grow_pieces(handle->packer, part.row_bytes, why);
    if (result == SY_BACKEND_OK) {
        result = write_rows(handle->packer, part, why);
        part.part = SY_CUDA_UP;
        part.rows = up;
        if (result == SY_BACKEND_OK && up != NULL) result = write_rows(handle->packer, part, why);
        result = settle(handle->packer, result, why);
    }
    pthread_mutex_unlock(&handle->packer_mutex);
    return sy_cuda_leave(handle, result, why);
}
