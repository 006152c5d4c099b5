/* gpu_step.c - a whole step of a trunk, every layer with weights of its own and all of it on the
 * device: from token ids to logits, but for the experts. By the calls that the plugin would make,
 * one after the other and as a graph: the host's time to enqueue some hundred of them may be more
 * than the device's to do them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_data.h"
#include "gpu_trunk.h"
#include "sy_base.h"
#include "sy_cuda_pack.h"

/* A packed matrix among a layer's weights. */
typedef struct place {
    size_t offset;
    uint32_t n, k;
} place;

typedef struct layer_plan {
    place q_a, q, k, v, o, up, down; /* n 0: there is none; k: kv_a of latents */
    size_t key_up, value_up;
    size_t bytes;
} layer_plan;

typedef struct step_bench {
    const gpu_trunk_shape *shape;
    gpu_cache cache;
    layer_plan plan;
    uint8_t *layers;                               /* [n_layers] of plan.bytes */
    uint16_t *embedding, *head;                    /* [V,H]; packed */
    float *norm;                                   /* as long as the longest, for every norm */
    uint32_t n_rows, n_head_rows;                  /* the last ones have logits */
    uint32_t *count, *count_head;                  /* device */
    uint32_t *token, *position, *sequence, *angle; /* device: [T] */
    float *angles, *x, *y, *q, *query, *k, *v, *attended, *values, *logits, *scratch;
    uint16_t *x16, *low16, *h16, *attn16;
    float *low;
    cudaGraphExec_t graph;
} step_bench;

#define DO(call)                            \
    do {                                    \
        const int launched = (call);        \
        if (launched != 0) return launched; \
    } while (0)

/* ---- weights ---- */

static place place_at(size_t *end, uint32_t n, uint32_t k)
{
    const place p = {*end, n, k};

    *end += sy_cuda_pack_bytes(n, k);
    return p;
}

static layer_plan plan_of(const gpu_trunk_shape *s)
{
    const uint32_t H = s->hidden, nope = s->head_dim - s->rotary_dim;
    layer_plan p = {0};

    if (s->kv_rank > 0) {
        p.q_a = place_at(&p.bytes, s->q_rank, H);
        p.q = place_at(&p.bytes, s->n_heads * s->head_dim, s->q_rank);
        p.k = place_at(&p.bytes, s->kv_rank + s->rotary_dim, H);
        p.key_up = p.bytes;
        p.bytes += s->n_heads * sy_cuda_pack_bytes(s->kv_rank, nope);
        p.value_up = p.bytes;
        p.bytes += s->n_heads * sy_cuda_pack_bytes(s->value_dim, s->kv_rank);
    } else {
        p.q = place_at(&p.bytes, s->n_heads * s->head_dim, H);
        p.k = place_at(&p.bytes, s->n_kv_heads * s->head_dim, H);
        p.v = place_at(&p.bytes, s->n_kv_heads * s->value_dim, H);
    }
    p.o = place_at(&p.bytes, H, s->n_heads * s->value_dim);
    if (s->shared_ffn > 0) {
        p.up = (place){p.bytes, s->shared_ffn, H};
        p.bytes += sy_cuda_gate_up_bytes(s->shared_ffn, H);
        p.down = place_at(&p.bytes, H, s->shared_ffn);
    }
    return p;
}

static sy_cuda_matrix matrix_of(const step_bench *b, uint32_t layer, const place *p)
{
    return (sy_cuda_matrix){
        .weights = b->layers + layer * b->plan.bytes + p->offset, .n = p->n, .k = p->k};
}

/* ---- the calls of a layer ---- */

static int linear(const step_bench *b, float *y, const uint16_t *x, uint32_t layer, const place *p,
                  void *stream)
{
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_matrix w = matrix_of(b, layer, p);

    return sy_cuda_linear(y, x, &w, 1.0f, sy_cuda_variant_for(b->n_rows, w.type), &rows, stream);
}

static int norm(const step_bench *b, float *y, uint16_t *y16, const float *x, uint32_t n,
                void *stream)
{
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_norm rms = {SY_CUDA_NORM_RMS, b->norm, NULL, 1e-6f, n};

    return sy_cuda_norm_rows(y, y16, x, NULL, &rms, &rows, stream);
}

/* Of queries, of keys (their norm comes first), and of latents. */
static int finish(const step_bench *b, float *x, uint32_t n_heads, uint32_t head_dim,
                  uint32_t norm_dim, void *stream)
{
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_places places = {b->position, b->sequence, b->angle};
    const sy_cuda_heads heads = {.n_heads = n_heads,
                                 .head_dim = head_dim,
                                 .norm = norm_dim > 0 ? SY_CUDA_NORM_THEN_ROTATE
                                                      : SY_CUDA_HEADS_AS_THEY_ARE,
                                 .norm_dim = norm_dim,
                                 .norm_weight = norm_dim > 0 ? b->norm : NULL,
                                 .norm_eps = 1e-6f,
                                 .rotary_at = head_dim - b->shape->rotary_dim,
                                 .rotary_dim = b->shape->rotary_dim,
                                 .angles = b->angles};

    return sy_cuda_finish_heads(x, &heads, &places, &rows, stream);
}

static int heads_up(const step_bench *b, float *y, const float *x, uint32_t layer, size_t offset,
                    const place *p, uint32_t n_tail, void *stream)
{
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_head_matrices w = {.weights = b->layers + layer * b->plan.bytes + offset,
                                     .n_heads = b->shape->n_heads,
                                     .n = p->n,
                                     .k = p->k,
                                     .n_tail = n_tail};

    return sy_cuda_linear_heads(y, x, &w, &rows, stream);
}

static int project(const step_bench *b, uint32_t layer, void *stream)
{
    const gpu_trunk_shape *s = b->shape;

    DO(linear(b, b->q, b->x16, layer, &b->plan.q, stream));
    DO(linear(b, b->k, b->x16, layer, &b->plan.k, stream));
    DO(linear(b, b->v, b->x16, layer, &b->plan.v, stream));
    DO(finish(b, b->q, s->n_heads, s->head_dim, s->head_dim, stream));
    return finish(b, b->k, s->n_kv_heads, s->head_dim, s->head_dim, stream);
}

static int project_latent(const step_bench *b, uint32_t layer, void *stream)
{
    const gpu_trunk_shape *s = b->shape;
    const place key_up = {0, s->kv_rank, s->head_dim - s->rotary_dim};

    DO(linear(b, b->low, b->x16, layer, &b->plan.q_a, stream));
    DO(norm(b, NULL, b->low16, b->low, s->q_rank, stream));
    DO(linear(b, b->q, b->low16, layer, &b->plan.q, stream));
    DO(linear(b, b->k, b->x16, layer, &b->plan.k, stream));
    DO(finish(b, b->k, 1, s->kv_rank + s->rotary_dim, s->kv_rank, stream));
    DO(finish(b, b->q, s->n_heads, s->head_dim, 0, stream));
    return heads_up(b, b->query, b->q, layer, b->plan.key_up, &key_up, s->rotary_dim, stream);
}

static int attend(const step_bench *b, uint32_t layer, void *stream)
{
    const gpu_trunk_shape *s = b->shape;
    const int is_latent = s->kv_rank > 0;
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_places places = {b->position, b->sequence, b->angle};
    const place value_up = {0, s->value_dim, s->kv_rank};
    sy_cuda_kv kv = b->cache.kv;
    const sy_cuda_attention a = {.n_heads = s->n_heads,
                                 .scale = 1.0f / sqrtf((float)s->head_dim),
                                 .positions_max = b->cache.context,
                                 .rows_together =
                                     b->n_head_rows < b->n_rows ? GPU_ROWS_TOGETHER : 1,
                                 .partial = b->scratch};

    kv.data = (uint8_t *)kv.data + layer * b->cache.layer_bytes;
    DO(sy_cuda_kv_put(&kv, b->k, is_latent ? NULL : b->v, &places, &rows, stream));
    DO(sy_cuda_attend(b->attended, is_latent ? b->query : b->q, &kv, &places, &a, &rows, stream));
    if (!is_latent) return 0;
    return heads_up(b, b->values, b->attended, layer, b->plan.value_up, &value_up, 0, stream);
}

static int shared_experts(const step_bench *b, uint32_t layer, void *stream)
{
    const sy_cuda_row_count rows = {b->count, b->n_rows};
    const sy_cuda_matrix up = matrix_of(b, layer, &b->plan.up);

    DO(sy_cuda_linear_swiglu(b->h16, b->x16, &up, sy_cuda_variant_for(b->n_rows, up.type), &rows,
                             stream));
    DO(linear(b, b->y, b->h16, layer, &b->plan.down, stream));
    return sy_cuda_add(b->x, b->y, 1.0f, NULL, b->shape->hidden, &rows, stream);
}

static int run_layer(const step_bench *b, uint32_t layer, void *stream)
{
    const gpu_trunk_shape *s = b->shape;
    const sy_cuda_row_count rows = {b->count, b->n_rows};

    DO(norm(b, NULL, b->x16, b->x, s->hidden, stream));
    DO(s->kv_rank > 0 ? project_latent(b, layer, stream) : project(b, layer, stream));
    DO(attend(b, layer, stream));
    DO(sy_cuda_rows_from_f32(b->attn16, s->kv_rank > 0 ? b->values : b->attended, b->plan.o.k,
                             b->n_rows, b->plan.o.k, stream));
    DO(linear(b, b->y, b->attn16, layer, &b->plan.o, stream));
    DO(sy_cuda_add(b->x, b->y, 1.0f, NULL, s->hidden, &rows, stream));
    DO(norm(b, NULL, b->x16, b->x, s->hidden, stream));
    return s->shared_ffn > 0 ? shared_experts(b, layer, stream) : 0;
}

static int run_step(void *arg, uint32_t run, void *stream)
{
    const step_bench *b = arg;
    const gpu_trunk_shape *s = b->shape;
    const sy_cuda_row_count rows = {b->count, b->n_rows}, last = {b->count_head, b->n_head_rows};
    const float *x_last = b->x + (size_t)(b->n_rows - b->n_head_rows) * s->hidden;
    const sy_cuda_norm rms = {SY_CUDA_NORM_RMS, b->norm, NULL, 1e-6f, s->hidden};
    const sy_cuda_matrix head = {.weights = b->head, .n = s->vocab, .k = s->hidden};

    (void)run;
    DO(sy_cuda_embed(b->x, b->embedding, b->token, s->hidden, 1.0f, &rows, stream));
    for (uint32_t i = 0; i < s->n_layers; i++) DO(run_layer(b, i, stream));
    DO(sy_cuda_norm_rows(NULL, b->x16, x_last, NULL, &rms, &last, stream));
    return sy_cuda_linear(b->logits, b->x16, &head, 1.0f,
                          sy_cuda_variant_for(b->n_head_rows, head.type), &last, stream);
}

static int run_graph(void *arg, uint32_t run, void *stream)
{
    const step_bench *b = arg;

    (void)run;
    return (int)cudaGraphLaunch(b->graph, stream);
}

static void open_graph(const gpu_bench *bench, step_bench *b)
{
    cudaGraph_t graph;

    GPU_DO(cudaStreamBeginCapture(bench->stream, cudaStreamCaptureModeThreadLocal));
    gpu_check((cudaError_t)run_step(b, 0, bench->stream), "a launch");
    GPU_DO(cudaStreamEndCapture(bench->stream, &graph));
    GPU_DO(cudaGraphInstantiate(&b->graph, graph, 0));
    GPU_DO(cudaGraphDestroy(graph));
}

/* ---- memory ---- */

static float *floats(uint32_t n_rows, size_t n)
{
    return gpu_alloc(n_rows * n * sizeof(float));
}

/* Rows of n bf16. What lies behind the n is zeros, as whoever writes rows leaves it. */
static uint16_t *halves(const gpu_bench *bench, uint32_t n_rows, uint32_t n)
{
    const size_t bytes = (size_t)n_rows * sy_cuda_padded(n) * sizeof(uint16_t);
    uint16_t *p = gpu_alloc(bytes);

    GPU_DO(cudaMemsetAsync(p, 0, bytes, bench->stream));
    return p;
}

/* Where rows belong: a row is the last of a sequence of its own, or all are the end of one. */
static void open_places(const gpu_bench *bench, step_bench *b, int is_prefill)
{
    const uint32_t n = b->n_rows;
    uint32_t *host = gpu_host(4 * n * sizeof(uint32_t));
    uint32_t *token = host, *position = host + n, *sequence = host + 2 * n, *angle = host + 3 * n;
    gpu_random r = {n};

    for (uint32_t t = 0; t < n; t++) {
        token[t] = gpu_random_u32(&r) % b->shape->vocab;
        position[t] = b->cache.context - (is_prefill ? n - t : 1);
        sequence[t] = is_prefill ? 0 : t;
        angle[t] = t;
    }
    b->token = gpu_words(token, n);
    b->position = gpu_words(position, n);
    b->sequence = gpu_words(sequence, n);
    b->angle = gpu_words(angle, n);
    b->angles = gpu_random_floats(bench, (size_t)n * b->shape->rotary_dim, 43, 0.7f);
    b->count = gpu_words(&b->n_rows, 1);
    b->count_head = gpu_words(&b->n_head_rows, 1);
    free(host);
}

static void open_rows(const gpu_bench *bench, step_bench *b, uint32_t n, int is_prefill)
{
    const gpu_trunk_shape *s = b->shape;
    const sy_cuda_kv *kv = &b->cache.kv;
    size_t scratch;

    b->n_rows = n;
    b->n_head_rows = is_prefill ? 1 : n;
    open_places(bench, b, is_prefill);
    b->x = floats(n, s->hidden);
    b->y = floats(n, s->hidden);
    b->q = floats(n, (size_t)s->n_heads * s->head_dim);
    b->k = floats(n, (size_t)kv->n_heads * kv->key_dim);
    b->v = floats(n, (size_t)kv->n_heads * kv->value_dim);
    b->query = floats(n, (size_t)s->n_heads * kv->key_dim);
    b->attended = floats(n, (size_t)s->n_heads * kv->value_dim);
    b->values = floats(n, (size_t)s->n_heads * s->value_dim);
    b->low = floats(n, s->q_rank);
    b->logits = floats(b->n_head_rows, s->vocab);
    b->x16 = halves(bench, n, s->hidden);
    b->low16 = halves(bench, n, SY_MAX(s->q_rank, 1u));
    b->h16 = halves(bench, n, SY_MAX(s->shared_ffn, 1u));
    b->attn16 = halves(bench, n, s->n_heads * s->value_dim);
    scratch = sy_cuda_attention_partial_bytes(n, s->n_heads, kv->value_dim, b->cache.context);
    b->scratch = scratch <= GPU_SCRATCH_BYTES_MAX ? gpu_alloc(scratch) : NULL;
}

static void close_rows(step_bench *b)
{
    void *all[] = {b->count,  b->count_head, b->token,  b->position, b->sequence, b->angle,
                   b->angles, b->x,          b->y,      b->q,        b->k,        b->v,
                   b->query,  b->attended,   b->values, b->low,      b->logits,   b->x16,
                   b->low16,  b->h16,        b->attn16, b->scratch};

    for (size_t i = 0; i < SY_COUNT_OF(all); i++) gpu_free(all[i]);
    if (b->graph != NULL) GPU_DO(cudaGraphExecDestroy(b->graph));
    b->graph = NULL;
}

/* ---- figures ---- */

static gpu_figure figure_of(const step_bench *b, const char *how)
{
    const gpu_trunk_shape *s = b->shape;
    const sy_cuda_kv *kv = &b->cache.kv;
    const double layers = s->n_layers, T = b->n_rows, head = (double)s->vocab * s->hidden;
    const int is_prefill = b->n_head_rows < b->n_rows;
    const double n_keys = T * b->cache.context - (is_prefill ? T * (T - 1.0) / 2.0 : 0.0);

    return (gpu_figure){
        .what = is_prefill ? "step, prompt" : "step, decoding",
        .how = how,
        .weights = "bf16",
        .shape = s->name,
        .n_tokens = b->n_rows,
        .context = b->cache.context,
        .bytes = layers * ((double)b->plan.bytes +
                           gpu_cache_sequence_bytes(&b->cache) * (is_prefill ? 1.0 : T)) +
                 2.0 * head,
        .flops = layers * (T * (double)b->plan.bytes +
                           2.0 * n_keys * s->n_heads * (kv->key_dim + kv->value_dim)) +
                 2.0 * head * b->n_head_rows};
}

static float *logits_of(const gpu_bench *bench, step_bench *b, gpu_work work)
{
    const size_t n = (size_t)b->n_head_rows * b->shape->vocab;
    float *host = gpu_host(n * sizeof(float));

    gpu_check((cudaError_t)gpu_fill_words((uint32_t *)(void *)b->logits, n, 5, bench->stream),
              "filling logits");
    gpu_check((cudaError_t)work.run(work.arg, 0, bench->stream), "a step");
    gpu_get(host, b->logits, n * sizeof(float));
    return host;
}

/* A row alone, where each is a sequence of its own, and the graph: the bits of all of them. */
static void check(gpu_bench *bench, step_bench *b)
{
    const size_t row = b->shape->vocab, n = row * b->n_head_rows, bytes = n * sizeof(float);
    const uint32_t one = 1, all = b->n_rows;
    const gpu_figure f = figure_of(b, "calls"), by_graph = figure_of(b, "graph");
    const int n_wrong = bench->n_wrong;
    float *want = logits_of(bench, b, (gpu_work){run_step, b});
    float *got = logits_of(bench, b, (gpu_work){run_graph, b});
    size_t n_finite = 0;

    for (size_t i = 0; i < n; i++) n_finite += isfinite(want[i]) != 0;
    if (n_finite < n) gpu_wrong(bench, &f, "%zu logits are no numbers", n - n_finite);
    if (memcmp(want, got, bytes) != 0) gpu_wrong(bench, &by_graph, "not the bits of the calls");
    free(got);
    if (b->n_head_rows == b->n_rows) {
        gpu_put(b->count, &one, sizeof(one));
        gpu_put(b->count_head, &one, sizeof(one));
        got = logits_of(bench, b, (gpu_work){run_step, b});
        if (memcmp(want, got, row * sizeof(float)) != 0)
            gpu_wrong(bench, &f, "the first row alone does not give its bits");
        gpu_put(b->count, &all, sizeof(all));
        gpu_put(b->count_head, &all, sizeof(all));
        free(got);
    }
    if (bench->n_wrong == n_wrong) {
        gpu_print_checked(&f);
        gpu_print_checked(&by_graph);
    }
    free(want);
}

static void measure_rows(gpu_bench *bench, step_bench *b, uint32_t n_rows, int is_prefill)
{
    open_rows(bench, b, n_rows, is_prefill);
    open_graph(bench, b);
    check(bench, b);
    if (!bench->tiny && !bench->quick) {
        const gpu_figure calls = figure_of(b, "calls"), graph = figure_of(b, "graph");
        gpu_print_figure(&calls, gpu_measure_alone(bench, (gpu_work){run_step, b}));
        gpu_print_figure(&graph, gpu_measure_alone(bench, (gpu_work){run_graph, b}));
    }
    close_rows(b);
}

/* With a cache for as many sequences. */
static void measure_sequences(gpu_bench *bench, step_bench *b, uint32_t n_sequences)
{
    const gpu_trunk_shape *s = b->shape;
    const uint32_t context = gpu_contexts(bench)[0];
    const size_t bytes = s->n_layers * gpu_cache_bytes(s, n_sequences, context);
    const gpu_figure all = {.what = "step",
                            .how = "",
                            .weights = "bf16",
                            .shape = s->name,
                            .n_tokens = n_sequences,
                            .context = context};

    if (!gpu_has_time(bench, &all)) return;
    if (bytes > gpu_free_bytes() / 10 * 8) {
        gpu_skip(&all, "%zu bytes of cache have no room", bytes);
        return;
    }
    b->cache = gpu_cache_open(bench, s, s->n_layers, n_sequences, context);
    measure_rows(bench, b, n_sequences, 0);
    if (n_sequences == 1) measure_rows(bench, b, bench->tiny ? 19 : 512, 1);
    gpu_cache_close(&b->cache);
}

void gpu_measure_steps(gpu_bench *bench, const gpu_trunk_shape *s)
{
    static const uint32_t all[] = {1, 8, 64}, tiny[] = {1, 5, 9};
    const gpu_figure whole = {.what = "step", .how = "", .weights = "bf16", .shape = s->name};
    step_bench b = {.shape = s, .plan = plan_of(s)};
    const size_t bytes = s->n_layers * b.plan.bytes, head = (size_t)s->vocab * s->hidden;
    /* Sums of products with normed rows are then about 1, of whatever matrix they are. */
    const float scale = 1.5f / sqrtf((float)s->hidden);

    if (bytes + 4 * head > gpu_free_bytes() / 10 * 8) {
        gpu_skip(&whole, "%zu bytes of weights have no room", bytes + 4 * head);
        return;
    }
    if (!gpu_has_time(bench, &whole)) return;
    b.layers = (uint8_t *)gpu_random_bf16(bench, bytes / 2, 41, scale);
    b.embedding = gpu_random_bf16(bench, head, 42, 1.0f);
    b.head = gpu_random_bf16(bench, sy_cuda_pack_bytes(s->vocab, s->hidden) / 2, 44, scale);
    b.norm = gpu_random_floats(bench, SY_MAX(s->hidden, SY_MAX(s->q_rank, s->kv_rank)), 45, 1.0f);
    for (size_t i = 0; i < SY_COUNT_OF(all); i++)
        measure_sequences(bench, &b, bench->tiny ? tiny[i] : all[i]);
    gpu_free(b.layers);
    gpu_free(b.embedding);
    gpu_free(b.head);
    gpu_free(b.norm);
}
