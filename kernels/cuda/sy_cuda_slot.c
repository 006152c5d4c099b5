/* sy_cuda_slot.c - weights into slots and out of them: rows go through pinned memory of the host
 * and a place on the device, where they are packed. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "sy_cuda_hash.h"
#include "sy_cuda_pool_internal.h"

enum { BLOCK_ROWS = 16, PIECE_ALIGNMENT = 256 };

/* ---- ways ---- */

/* A megabyte, or sixteen rows where these are more. */
static uint64_t piece_bytes_of(const sy_backend_pool_config *c)
{
    const uint32_t k = c->hidden > c->ffn ? c->hidden : c->ffn;
    const uint64_t rows = BLOCK_ROWS * (uint64_t)sy_cuda_row_bytes((sy_cuda_weights)c->weights, k);
    const uint64_t bytes = rows > SY_CUDA_COPY_BYTES ? rows : SY_CUDA_COPY_BYTES;

    return (bytes + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
}

int sy_cuda_ways_open(sy_backend_pool *pool, int priority, char *why)
{
    const uint64_t bytes = piece_bytes_of(&pool->config);
    const uint64_t all = bytes * SY_CUDA_WAYS * SY_CUDA_PIECES;
    const char *what = "the way in and out for weights";
    int result;

    pool->piece_bytes = bytes;
    result = sy_cuda_pinned_alloc(&pool->pieces_host, all, what, why);
    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_device_alloc(&pool->pieces_device, all, what, why);
    if (result != SY_BACKEND_OK) return result;
    for (uint32_t i = 0; i < SY_CUDA_WAYS * SY_CUDA_PIECES; i++) {
        sy_cuda_way *way = &pool->way[i / SY_CUDA_PIECES];
        sy_cuda_piece *piece = &way->piece[i % SY_CUDA_PIECES];

        if (way->stream == NULL)
            TRY(cudaStreamCreateWithPriority(&way->stream, cudaStreamNonBlocking, priority),
                "cudaStreamCreateWithPriority");
        TRY(cudaEventCreateWithFlags(&piece->done, cudaEventDisableTiming),
            "cudaEventCreateWithFlags");
        piece->host = pool->pieces_host + i * bytes;
        piece->device = pool->pieces_device + i * bytes;
    }
out:
    return result;
}

void sy_cuda_ways_close(sy_backend_pool *pool)
{
    for (uint32_t i = 0; i < SY_CUDA_WAYS; i++) {
        sy_cuda_way *way = &pool->way[i];

        for (uint32_t j = 0; j < SY_CUDA_PIECES; j++)
            if (way->piece[j].done != NULL) sy_cuda_forget(cudaEventDestroy(way->piece[j].done));
        if (way->stream != NULL) sy_cuda_forget(cudaStreamDestroy(way->stream));
    }
    sy_cuda_device_free(pool->pieces_device);
    sy_cuda_pinned_free(pool->pieces_host);
}

sy_cuda_way *sy_cuda_way_of(sy_backend_pool *pool, uint32_t slot)
{
    return &pool->way[slot % SY_CUDA_WAYS];
}

int sy_cuda_piece_take(sy_cuda_piece **out, sy_cuda_way *way, char *why)
{
    *out = &way->piece[way->next];
    way->next = (way->next + 1) % SY_CUDA_PIECES;
    return sy_cuda_settle_event((*out)->done, why);
}

/* After a failure: what was enqueued before it must not meet the next use of a piece. */
static int clear_way(sy_cuda_way *way, int result, char *why)
{
    char other[SY_BACKEND_WHY_BYTES];

    if (result == SY_BACKEND_OK || result == SY_BACKEND_EDEVLOST) return result;
    if (sy_cuda_settle_stream(way->stream, other) != SY_BACKEND_EDEVLOST) return result;
    return REFUSE(why, SY_BACKEND_EDEVLOST, "%s", other);
}

/* ---- where things are ---- */

int sy_cuda_check_slot(const sy_backend_pool *pool, uint32_t slot, char *why)
{
    if (slot < pool->info.n_slots) return SY_BACKEND_OK;
    return REFUSE(why, SY_BACKEND_EINVAL, "slot %u of a pool of %u", slot, pool->info.n_slots);
}

unsigned char *sy_cuda_slot_at(const sy_backend_pool *pool, uint32_t slot)
{
    return pool->slab + pool->layout.first + slot * pool->layout.stride;
}

/* Rows of a part of a slot. */
typedef struct rows_place {
    unsigned char *at; /* where the part begins, on the device */
    uint32_t n, k;     /* rows of the part; inputs of a matrix */
    uint32_t row, n_rows;
    uint64_t row_bytes;
    int is_bias;
    sy_cuda_weights weights;
    sy_cuda_part part; /* of a matrix */
} rows_place;

static int find_rows(rows_place *out, const sy_backend_pool *pool, uint32_t slot, uint32_t part,
                     uint32_t row, uint32_t n_rows, char *why)
{
    const sy_backend_pool_config *c = &pool->config;
    const int is_down = part == SY_BACKEND_DOWN || part == SY_BACKEND_DOWN_BIAS;
    const int result = sy_cuda_check_slot(pool, slot, why);

    if (result != SY_BACKEND_OK) return result;
    if (part > SY_BACKEND_DOWN_BIAS || (part > SY_BACKEND_DOWN && !c->has_bias))
        return REFUSE(why, SY_BACKEND_EINVAL, "an expert of this pool has no part %u", part);
    *out = (rows_place){.at = sy_cuda_slot_at(pool, slot) + pool->layout.offset[part],
                        .n = is_down ? c->hidden : c->ffn,
                        .k = is_down ? c->ffn : c->hidden,
                        .row = row,
                        .n_rows = n_rows,
                        .row_bytes = sizeof(float),
                        .is_bias = part > SY_BACKEND_DOWN,
                        .weights = (sy_cuda_weights)c->weights};
    if (!out->is_bias) {
        out->part = (sy_cuda_part)part;
        out->row_bytes = sy_cuda_row_bytes(out->weights, out->k);
    }
    if (row > out->n || n_rows > out->n - row)
        return REFUSE(why, SY_BACKEND_EINVAL, "%u rows from row %u on, and part %u has %u", n_rows,
                      row, part, out->n);
    if (row % BLOCK_ROWS != 0 || (n_rows % BLOCK_ROWS != 0 && row + n_rows != out->n))
        return REFUSE(why, SY_BACKEND_EINVAL,
                      "%u rows from row %u on: whole blocks of %d go in and out", n_rows, row,
                      BLOCK_ROWS);
    return SY_BACKEND_OK;
}

/* The first rows of `rest`, as many as a piece holds; there is at least one block. */
static rows_place first_rows(const sy_backend_pool *pool, const rows_place *rest)
{
    const uint64_t blocks = (pool->piece_bytes - (rest->is_bias ? PIECE_ALIGNMENT : 0)) /
                            (rest->row_bytes * BLOCK_ROWS);
    rows_place some = *rest;

    if (blocks * BLOCK_ROWS < some.n_rows) some.n_rows = (uint32_t)blocks * BLOCK_ROWS;
    return some;
}

static void drop_rows(rows_place *rest, uint32_t n)
{
    rest->row += n;
    rest->n_rows -= n;
}

/* ---- in ---- */

static int copy_parts(unsigned char *to, const unsigned char *from, uint64_t bytes,
                      enum cudaMemcpyKind kind, cudaStream_t stream, char *why)
{
    int result = SY_BACKEND_OK;

    for (uint64_t at = 0; at < bytes; at += SY_CUDA_COPY_BYTES) {
        const uint64_t n = bytes - at < SY_CUDA_COPY_BYTES ? bytes - at : SY_CUDA_COPY_BYTES;

        TRY(cudaMemcpyAsync(to + at, from + at, n, kind, stream), "cudaMemcpyAsync");
    }
out:
    return result;
}

/* Biases lie as they come. What is behind the last is zeroed with it, so that the hash of a slot
 * does not tell what was there before. */
static int enqueue_bias(const rows_place *p, const sy_cuda_piece *piece, uint64_t bytes,
                        cudaStream_t stream, char *why)
{
    uint64_t padding = 0;

    if (p->row + p->n_rows == p->n) padding = -(p->n * p->row_bytes) % PIECE_ALIGNMENT;
    memset(piece->host + bytes, 0, padding);
    return copy_parts(p->at + p->row * p->row_bytes, piece->host, bytes + padding,
                      cudaMemcpyHostToDevice, stream, why);
}

static int enqueue_write(const rows_place *p, const sy_cuda_piece *piece, cudaStream_t stream,
                         char *why)
{
    const uint64_t bytes = p->n_rows * p->row_bytes;
    int result;

    if (p->is_bias) {
        result = enqueue_bias(p, piece, bytes, stream, why);
        if (result != SY_BACKEND_OK) goto out;
    } else {
        result = copy_parts(piece->device, piece->host, bytes, cudaMemcpyHostToDevice, stream, why);
        if (result != SY_BACKEND_OK) goto out;
        TRY((cudaError_t)sy_cuda_rows_pack(p->at, piece->device, p->weights, p->part, p->n, p->k,
                                           p->row, p->n_rows, stream),
            "sy_cuda_rows_pack");
    }
    TRY(cudaEventRecord(piece->done, stream), "cudaEventRecord");
out:
    return result;
}

static int write_rows(sy_cuda_way *way, const rows_place *p, const unsigned char *rows, char *why)
{
    sy_cuda_piece *piece;
    int result;

    pthread_mutex_lock(&way->mutex);
    result = sy_cuda_piece_take(&piece, way, why);
    if (result == SY_BACKEND_OK) {
        memcpy(piece->host, rows, p->n_rows * p->row_bytes);
        result = enqueue_write(p, piece, way->stream, why);
    }
    result = clear_way(way, result, why);
    pthread_mutex_unlock(&way->mutex);
    return result;
}

int sy_cuda_slot_write(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                       uint32_t n_rows, const void *rows, char *why)
{
    const unsigned char *from = rows;
    rows_place rest;
    int result = find_rows(&rest, pool, slot, part, row, n_rows, why);

    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_pool_enter(pool, why);
    if (result == SY_BACKEND_OK && !rest.is_bias && rest.weights == SY_CUDA_FP8)
        result = sy_cuda_factors_check(pool, slot, part, rest.k, row, n_rows, from, why);
    while (result == SY_BACKEND_OK && rest.n_rows > 0) {
        const rows_place some = first_rows(pool, &rest);

        result = write_rows(sy_cuda_way_of(pool, slot), &some, from, why);
        from += some.n_rows * some.row_bytes;
        drop_rows(&rest, some.n_rows);
    }
    return sy_cuda_pool_leave(pool, result, why);
}

int sy_cuda_slot_flush(sy_backend_pool *pool, uint32_t slot, char *why)
{
    sy_cuda_way *way;
    int result = sy_cuda_check_slot(pool, slot, why);

    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_pool_enter(pool, why);
    if (result != SY_BACKEND_OK) return sy_cuda_pool_leave(pool, result, why);
    way = sy_cuda_way_of(pool, slot);
    pthread_mutex_lock(&way->mutex);
    /* Pieces are done in turn, so the last one taken is the last. */
    result = sy_cuda_settle_event(
        way->piece[(way->next + SY_CUDA_PIECES - 1) % SY_CUDA_PIECES].done, why);
    pthread_mutex_unlock(&way->mutex);
    return sy_cuda_pool_leave(pool, result, why);
}

/* ---- out ---- */

static int enqueue_read(const rows_place *p, const sy_cuda_piece *piece, cudaStream_t stream,
                        char *why)
{
    const uint64_t bytes = p->n_rows * p->row_bytes;
    const unsigned char *from = p->at + p->row * p->row_bytes;
    int result;

    if (!p->is_bias) {
        from = piece->device;
        TRY((cudaError_t)sy_cuda_rows_unpack(piece->device, p->at, p->weights, p->part, p->n, p->k,
                                             p->row, p->n_rows, stream),
            "sy_cuda_rows_unpack");
    }
    result = copy_parts(piece->host, from, bytes, cudaMemcpyDeviceToHost, stream, why);
    if (result != SY_BACKEND_OK) goto out;
    TRY(cudaEventRecord(piece->done, stream), "cudaEventRecord");
    result = sy_cuda_settle_event(piece->done, why);
out:
    return result;
}

static int read_rows(unsigned char *rows, sy_cuda_way *way, const rows_place *p, char *why)
{
    sy_cuda_piece *piece;
    int result;

    pthread_mutex_lock(&way->mutex);
    result = sy_cuda_piece_take(&piece, way, why);
    if (result == SY_BACKEND_OK) result = enqueue_read(p, piece, way->stream, why);
    if (result == SY_BACKEND_OK) memcpy(rows, piece->host, p->n_rows * p->row_bytes);
    result = clear_way(way, result, why);
    pthread_mutex_unlock(&way->mutex);
    return result;
}

int sy_cuda_slot_read(void *rows, sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                      uint32_t n_rows, char *why)
{
    unsigned char *to = rows;
    rows_place rest;
    int result = find_rows(&rest, pool, slot, part, row, n_rows, why);

    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_pool_enter(pool, why);
    while (result == SY_BACKEND_OK && rest.n_rows > 0) {
        const rows_place some = first_rows(pool, &rest);

        result = read_rows(to, sy_cuda_way_of(pool, slot), &some, why);
        to += some.n_rows * some.row_bytes;
        drop_rows(&rest, some.n_rows);
    }
    return sy_cuda_pool_leave(pool, result, why);
}

static int enqueue_hash(const sy_backend_pool *pool, uint32_t slot, const sy_cuda_piece *piece,
                        cudaStream_t stream, char *why)
{
    int result;

    TRY((cudaError_t)sy_cuda_hash((uint64_t *)(void *)piece->device, sy_cuda_slot_at(pool, slot),
                                  pool->layout.bytes, stream),
        "sy_cuda_hash");
    TRY(cudaMemcpyAsync(piece->host, piece->device, sizeof(uint64_t), cudaMemcpyDeviceToHost,
                        stream),
        "cudaMemcpyAsync");
    TRY(cudaEventRecord(piece->done, stream), "cudaEventRecord");
    result = sy_cuda_settle_event(piece->done, why);
out:
    return result;
}

int sy_cuda_slot_hash(uint64_t *out, sy_backend_pool *pool, uint32_t slot, char *why)
{
    sy_cuda_piece *piece;
    sy_cuda_way *way;
    int result = sy_cuda_check_slot(pool, slot, why);

    if (result != SY_BACKEND_OK) return result;
    result = sy_cuda_pool_enter(pool, why);
    if (result != SY_BACKEND_OK) return sy_cuda_pool_leave(pool, result, why);
    way = sy_cuda_way_of(pool, slot);
    pthread_mutex_lock(&way->mutex);
    result = sy_cuda_piece_take(&piece, way, why);
    if (result == SY_BACKEND_OK) result = enqueue_hash(pool, slot, piece, way->stream, why);
    if (result == SY_BACKEND_OK) memcpy(out, piece->host, sizeof(*out));
    result = clear_way(way, result, why);
    pthread_mutex_unlock(&way->mutex);
    return sy_cuda_pool_leave(pool, result, why);
}
