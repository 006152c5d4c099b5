/* sy_cuda_pool_internal.h - a pool of experts on one device: slots of weights, ways for weights in
 * and out, and lanes for batches. All memory is taken when it is opened.
 *
 * The table of experts that kernels read names slots, and is written once: which expert a slot has
 * is the host's to know, so a migration writes nothing on the device but weights, and a captured
 * graph stays right.
 *
 * A way or a lane belongs to whom its rules say; the pool itself is only read. */
#ifndef SY_CUDA_POOL_INTERNAL_H
#define SY_CUDA_POOL_INTERNAL_H

#include <pthread.h>

#include "sy_cuda_internal.h"
#include "sy_cuda_kernels.h"
#include "sy_cuda_slot.h"

enum {
    SY_CUDA_PARTS = 6,
    SY_CUDA_COPY_BYTES = 1 << 20, /* of weights in one copy: a batch's never waits for more */
    SY_CUDA_WAYS = 4,
    SY_CUDA_PIECES = 2, /* of a way: one is filled while the other is copied */
    SY_CUDA_GRAPHS = 32 /* of a lane */
};

/* Where the parts lie in a slot, each at a multiple of 256. Gate and up are one matrix; factors of
 * FP8 are part of their matrix. */
typedef struct sy_cuda_layout {
    uint64_t offset[SY_CUDA_PARTS];
    uint64_t bytes;  /* of all parts, their padding included: what is hashed */
    uint64_t stride; /* from slot to slot */
    uint64_t first;  /* where slot 0 begins; before it lies a sy_cuda_slab_head */
} sy_cuda_layout;

/* ---- ways: weights in and out (sy_cuda_slot.c) ---- */

typedef struct sy_cuda_piece {
    unsigned char *host, *device; /* piece_bytes each; the host's is pinned */
    cudaEvent_t done;             /* what was last enqueued with it */
} sy_cuda_piece;

/* All that happens to a slot goes by one way, that of its number, so it happens in order. */
typedef struct sy_cuda_way {
    pthread_mutex_t mutex; /* of the pieces */
    cudaStream_t stream;   /* of lowest priority */
    sy_cuda_piece piece[SY_CUDA_PIECES];
    uint32_t next;
} sy_cuda_way;

/* ---- lanes: batches (sy_cuda_batch.c, sy_cuda_graph.c) ---- */

/* What a launch is sized for; the batch may be smaller. */
typedef struct sy_cuda_shape {
    sy_cuda_variant variant;
    uint32_t n_x, n_rows, n_tiles;
} sy_cuda_shape;

typedef struct sy_cuda_graph {
    sy_cuda_shape shape;
    cudaGraphExec_t exec; /* NULL: a free place */
    uint64_t used;        /* n_submits of the lane, the last time */
} sy_cuda_graph;

/* Of one thread at a time. host and device have, in this order, the head of a batch, which ends
 * where x begins, x, h (device alone), and y: so whatever the size, one copy takes head and x. */
typedef struct sy_cuda_lane {
    cudaStream_t stream;    /* of highest priority */
    cudaEvent_t begin, end; /* of the last batch */
    unsigned char *host, *device;
    sy_backend_lane memory; /* in host */
    uint16_t *x, *h;        /* in device */
    float *y;
    int is_busy;   /* a batch is under way */
    int is_broken; /* one was enqueued in part, and what was may still run */
    uint64_t n_submits;
    int has_no_graphs; /* capturing failed once */
    sy_cuda_graph graph[SY_CUDA_GRAPHS];
} sy_cuda_lane;

/* ---- what FP8 allows (sy_cuda_factors.c) ---- */

typedef struct sy_cuda_factors sy_cuda_factors;
int sy_cuda_factors_open(sy_backend_pool *pool, char *why); /* nothing, of other weights */
void sy_cuda_factors_close(sy_cuda_factors *factors);       /* accepts NULL */
/* The slot gets what was not written to it row by row. */
void sy_cuda_factors_forget(const sy_backend_pool *pool, uint32_t slot);
/* Rows of a matrix of FP8 that are about to be written: SY_BACKEND_EINVAL when rows of one block of
 * 128 have different factors. */
int sy_cuda_factors_check(const sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t k,
                          uint32_t row, uint32_t n_rows, const unsigned char *rows, char *why);
/* The same of rows that begin at a multiple of 128: those of each 128 among themselves. */
int sy_cuda_factors_agree(uint32_t k, uint32_t row, uint32_t n_rows, const unsigned char *rows,
                          char *why);

/* ---- the pool (sy_cuda_pool.c) ---- */

struct sy_backend_pool {
    sy_backend_handle *handle; /* borrowed: it outlives its pools */
    sy_backend_pool_config config;
    sy_backend_pool_info info;
    sy_cuda_layout layout;
    unsigned char *slab;      /* on the device: head, then slots */
    sy_cuda_expert *experts;  /* on the device: [n_slots] */
    sy_cuda_factors *factors; /* of FP8; else NULL */
    uint64_t piece_bytes;
    unsigned char *pieces_host, *pieces_device;
    sy_cuda_way way[SY_CUDA_WAYS];
    sy_cuda_lane lane[SY_BACKEND_LANES_MAX];
    sy_backend_pool *next_abandoned;
};

/* The start of a slab, by which another process sees that it has opened what it was told of. */
typedef struct sy_cuda_slab_head {
    uint64_t magic;
    uint32_t hidden, ffn, weights, has_bias;
    uint32_t n_slots, reserved;
    uint64_t first, stride;
} sy_cuda_slab_head;
void sy_cuda_slab_describe(sy_cuda_slab_head *out, const sy_backend_pool *pool);

/* sy_cuda_enter and sy_cuda_leave of the pool's device. */
int sy_cuda_pool_enter(sy_backend_pool *pool, char *why);
int sy_cuda_pool_leave(sy_backend_pool *pool, int result, const char *why);

int sy_cuda_ways_open(sy_backend_pool *pool, int priority, char *why);
void sy_cuda_ways_close(sy_backend_pool *pool); /* of a pool opened in part, too */
int sy_cuda_check_slot(const sy_backend_pool *pool, uint32_t slot, char *why);
unsigned char *sy_cuda_slot_at(const sy_backend_pool *pool, uint32_t slot);
sy_cuda_way *sy_cuda_way_of(sy_backend_pool *pool, uint32_t slot);
/* The way is locked. Waits until the piece that is next is free, and leaves it to the caller, who
 * records its event after the last use. */
int sy_cuda_piece_take(sy_cuda_piece **out, sy_cuda_way *way, char *why);

int sy_cuda_lane_open(sy_backend_pool *pool, uint32_t lane, int priority, char *why);
void sy_cuda_lane_close(sy_cuda_lane *lane); /* of a lane opened in part, too */
/* Copies in, computes and copies out what the lane has, on `stream`. */
int sy_cuda_enqueue(const sy_backend_pool *pool, const sy_cuda_lane *lane,
                    const sy_cuda_shape *shape, cudaStream_t stream, char *why);
/* Whether batches of that shape go by graphs; if so it grows to that of a graph. */
int sy_cuda_has_graph(const sy_backend_pool *pool, const sy_cuda_lane *lane, sy_cuda_shape *shape);
/* Enqueues the graph of that shape, made if need be. 0: there is none, nothing was enqueued, and
 * the lane is without graphs from now on. */
int sy_cuda_replay(const sy_backend_pool *pool, sy_cuda_lane *lane, const sy_cuda_shape *shape);
void sy_cuda_graphs_close(sy_cuda_lane *lane);

#endif
