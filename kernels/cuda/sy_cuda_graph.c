/* sy_cuda_graph.c - batches as CUDA graphs: for few rows the time to enqueue four things one by one
 * is more than theirs. A graph is sized by powers of two, so that a few serve all batches; what a
 * batch has less than its graph is copied and not looked at. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "sy_cuda_pool_internal.h"

/* Of more rows than this the copies take longer than enqueuing does, and copying up to twice what
 * is needed would cost more than it saves. */
enum { GRAPH_ROWS_MAX = 256 };

/* ---- sizes ---- */

static uint32_t bucket_of(uint32_t n, uint32_t max)
{
    uint32_t size = 1;

    while (size < n) size *= 2;
    return size < max ? size : max;
}

int sy_cuda_has_graph(const sy_backend_pool *pool, const sy_cuda_lane *lane, sy_cuda_shape *shape)
{
    const uint32_t max = pool->config.rows_max;

    if (lane->has_no_graphs || shape->n_rows > GRAPH_ROWS_MAX || shape->n_x > GRAPH_ROWS_MAX)
        return 0;
    shape->n_x = bucket_of(shape->n_x, max);
    shape->n_rows = bucket_of(shape->n_rows, max);
    shape->n_tiles = bucket_of(shape->n_tiles, max);
    return 1;
}

static int is_same(const sy_cuda_shape *a, const sy_cuda_shape *b)
{
    return a->variant == b->variant && a->n_x == b->n_x && a->n_rows == b->n_rows &&
           a->n_tiles == b->n_tiles;
}

/* ---- graphs ---- */

static void graph_close(sy_cuda_graph *graph)
{
    if (graph->exec != NULL) sy_cuda_forget(cudaGraphExecDestroy(graph->exec));
    graph->exec = NULL;
}

void sy_cuda_graphs_close(sy_cuda_lane *lane)
{
    for (uint32_t i = 0; i < SY_CUDA_GRAPHS; i++) graph_close(&lane->graph[i]);
}

/* On a stream of its own: one whose capture cannot be ended is of no more use, and must not be the
 * lane's. Thread-local: what other threads do meanwhile is theirs. */
static int capture(cudaGraph_t *out, const sy_backend_pool *pool, const sy_cuda_lane *lane,
                   const sy_cuda_shape *shape, char *why)
{
    cudaStream_t stream = NULL;
    int result, enqueued;

    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueued = sy_cuda_enqueue(pool, lane, shape, stream, why);
    TRY(cudaStreamEndCapture(stream, out), "cudaStreamEndCapture");
    result = enqueued;
out:
    if (stream != NULL) sy_cuda_forget(cudaStreamDestroy(stream));
    return result;
}

static int graph_open(sy_cuda_graph *out, const sy_backend_pool *pool, const sy_cuda_lane *lane,
                      const sy_cuda_shape *shape, char *why)
{
    cudaGraph_t graph = NULL;
    int result = capture(&graph, pool, lane, shape, why);

    if (result != SY_BACKEND_OK) goto out;
    TRY(cudaGraphInstantiate(&out->exec, graph, 0), "cudaGraphInstantiate");
    out->shape = *shape;
out:
    if (graph != NULL) sy_cuda_forget(cudaGraphDestroy(graph));
    if (result != SY_BACKEND_OK) out->exec = NULL;
    return result;
}

/* The graph of that shape, or a place for it: a free one, or that of the one longest unused. */
static sy_cuda_graph *find(sy_cuda_lane *lane, const sy_cuda_shape *shape)
{
    sy_cuda_graph *place = &lane->graph[0];

    for (uint32_t i = 0; i < SY_CUDA_GRAPHS; i++) {
        sy_cuda_graph *g = &lane->graph[i];

        if (g->exec != NULL && is_same(&g->shape, shape)) return g;
        if (place->exec != NULL && (g->exec == NULL || g->used < place->used)) place = g;
    }
    graph_close(place);
    return place;
}

int sy_cuda_replay(const sy_backend_pool *pool, sy_cuda_lane *lane, const sy_cuda_shape *shape)
{
    char why[SY_BACKEND_WHY_BYTES];
    sy_cuda_graph *graph = find(lane, shape);
    int result = SY_BACKEND_OK;

    if (graph->exec == NULL && graph_open(graph, pool, lane, shape, why) != SY_BACKEND_OK) goto out;
    graph->used = ++lane->n_submits;
    TRY(cudaGraphLaunch(graph->exec, lane->stream), "cudaGraphLaunch");
    return 1;
out:
    /* A lost device says so again on the plain path; everything else stays as it is without them.
     */
    (void)result;
    lane->has_no_graphs = 1;
    return 0;
}
