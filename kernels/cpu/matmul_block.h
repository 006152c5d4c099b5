/* matmul_block.h - what the matrix products of all instruction sets share: the arguments of a tile,
 * and the walk over blocks of x.
 *
 * A few tokens go row by row through all of k, several panels at once, so that the memory sees
 * several streams: there the weights are what costs. More tokens go block by block: TOKENS_MAX rows
 * and K_MAX inputs of x are copied into a buffer on the stack, where rows lie a constant distance
 * apart (so that one pointer reaches all rows of a tile, whatever x_row says), and every panel
 * meets the block while it is in the second-level cache. Between blocks of k the sums rest in y:
 * storing and loading fp32 is exact, so the chain over k is the same. */
#ifndef SY_MATMUL_BLOCK_H
#define SY_MATMUL_BLOCK_H

#include <string.h>

#include "cpu/sy_cpu.h"

#define BLOCK_TOKENS_MAX 96
#define BLOCK_K_MAX      256
#define BLOCK_STRIDE     (BLOCK_K_MAX + 16) /* rows shall not share a cache set */
#define ROW_TOKENS_MAX   4

/* The arguments of matmul, as they came. */
typedef struct matmul_job {
    float *y;
    size_t y_stride;
    const float *x;
    size_t x_stride;
    const uint32_t *x_row;
    size_t T;
    const sy_panels *w;
    size_t begin, end;
} matmul_job;

/* Where x comes from: rows that lie anywhere, or a block. A constant wherever it is used. */
typedef enum x_source { X_ROWS, X_BLOCK } x_source;

/* What one tile works on: some tokens, some panels side by side, some inputs. */
typedef struct tile_args {
    float *y;
    size_t y_stride;
    size_t n_last;         /* columns that the last of the panels has: 1 to SY_PANEL */
    const uint8_t *line;   /* of the first panel, at the first k */
    size_t panel_bytes;    /* from a panel to the next */
    ptrdiff_t ahead_bytes; /* from a line to the one to ask for meanwhile; 0: nothing to ask for */
    size_t n_k;
    int resume;                       /* the sums of earlier k are in y */
    const float *block;               /* X_BLOCK: [T][BLOCK_STRIDE] */
    const float *row[ROW_TOKENS_MAX]; /* X_ROWS */
} tile_args;

/* One block of x against all panels of the job: tokens [t, t + n_tokens), inputs [k, k + n_k). */
typedef void block_fn(const matmul_job *job, const float *block, size_t t, size_t n_tokens,
                      size_t k, size_t n_k);

SY_CPU_INLINE size_t dtype_bytes(sy_dtype dtype)
{
    return dtype == SY_F32 ? 4 : 2; /* a constant wherever it is used, as sy_dtype_bytes is not */
}

SY_CPU_INLINE const float *x_row_of(const matmul_job *job, size_t t)
{
    return job->x + (job->x_row != NULL ? job->x_row[t] : t) * job->x_stride;
}

SY_CPU_INLINE tile_args tile_at(const matmul_job *job, sy_dtype dtype, size_t t, size_t panel,
                                size_t n_panels, size_t k, size_t n_k)
{
    const size_t line_bytes = SY_PANEL * dtype_bytes(dtype);
    const size_t n_left = job->w->n - (panel + n_panels - 1) * SY_PANEL;

    return (tile_args){
        .y = job->y + t * job->y_stride + panel * SY_PANEL,
        .y_stride = job->y_stride,
        .n_last = SY_MIN(n_left, SY_PANEL),
        .line = (const uint8_t *)job->w->data + (panel * job->w->k + k) * line_bytes,
        .panel_bytes = job->w->k * line_bytes,
        .n_k = n_k,
        .resume = k > 0,
    };
}

/* How far from the lines of this tile the next panels' lie, P panels side by side: those beside it,
 * after the last ones the first at the next inputs. So of all weights of a job only the first few
 * are waited for. 0: there are none, or fewer than here. */
SY_CPU_INLINE ptrdiff_t lines_ahead(const matmul_job *job, sy_dtype dtype, size_t panel, size_t P,
                                    size_t k, size_t n_k)
{
    const size_t line_bytes = SY_PANEL * dtype_bytes(dtype);
    const size_t panel_bytes = job->w->k * line_bytes;

    if (panel + 2 * P <= job->end) return (ptrdiff_t)(P * panel_bytes);
    if (panel + P < job->end || job->end - job->begin < P || job->w->k - k < 2 * n_k) return 0;
    return (ptrdiff_t)(n_k * line_bytes) - (ptrdiff_t)((panel - job->begin) * panel_bytes);
}

/* The next tile of n_tokens left: as few tiles as possible, of sizes that differ by at most one. */
SY_CPU_INLINE size_t tile_tokens(size_t n_tokens, size_t tile_max)
{
    const size_t n_tiles = (n_tokens + tile_max - 1) / tile_max;

    return (n_tokens + n_tiles - 1) / n_tiles;
}

static inline void matmul_by_blocks(const matmul_job *job, block_fn *run_block)
{
    _Alignas(SY_CACHE_LINE) float block[BLOCK_TOKENS_MAX * BLOCK_STRIDE];

    for (size_t t = 0; t < job->T; t += BLOCK_TOKENS_MAX) {
        const size_t n_tokens = SY_MIN(BLOCK_TOKENS_MAX, job->T - t);
        size_t k = 0;
        do { /* once even when there is no k: the outputs are then +0 */
            const size_t n_k = SY_MIN(BLOCK_K_MAX, job->w->k - k);
            for (size_t i = 0; i < n_tokens; i++)
                memcpy(block + i * BLOCK_STRIDE, x_row_of(job, t + i) + k, n_k * sizeof(*block));
            run_block(job, block, t, n_tokens, k, n_k);
            k += BLOCK_K_MAX;
        } while (k < job->w->k);
    }
}

#endif
