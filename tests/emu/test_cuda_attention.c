/* Attention on a GPU: close to exact arithmetic for every shape of heads, keys and contexts, and
 * the same bits for a row whether its prompt came at once or in parts, whatever else is in the
 * batch, and however its keys were spread. What nobody may read is NaN, or not there at all. */
#include "kernel_cases.h"
#include "sy_cuda_trunk.h"

/* Relative L2 of a head of a row. With a cache of bf16, queries and weights are rounded to bf16;
 * those of queries are in what is compared with. */
#define F32_ERROR_MAX  5e-6
#define BF16_ERROR_MAX 4e-3

enum { SEQUENCES_MAX = 8, ROWS_MAX = 80, ROWS_SPARE = 3, PAGE = SY_CUDA_KV_PAGE };

typedef struct shape {
    uint32_t n_heads, n_kv_heads, key_dim, value_dim;
    int is_latent;
} shape;

/* Sequences in a cache, and what is in it as floats. */
typedef struct world {
    shape s;
    uint32_t n_sequences;
    uint32_t length[SEQUENCES_MAX], first[SEQUENCES_MAX]; /* token 0 among all tokens */
    uint32_t n_tokens;
    edge_buffer k, v; /* [tokens, n_kv_heads, key_dim or value_dim], rounded as the cache is */
    edge_buffer data, page;
    sy_cuda_kv kv;
} world;

static uint32_t *u32_of(const edge_buffer *b)
{
    return (uint32_t *)(void *)b->data;
}

static uint32_t pages_for(uint32_t tokens)
{
    return (tokens + PAGE - 1) / PAGE;
}

static edge_buffer open_values(size_t n, uint64_t seed, int is_rounded)
{
    test_random r = {TEST_SEED + seed};
    edge_buffer b = edge_open(n * sizeof(float), 0);

    random_fill(edge_floats(&b), n, &r, VALUES_PLAIN);
    for (size_t i = 0; is_rounded && i < n; i++)
        edge_floats(&b)[i] = sy_bf16_to_f32(sy_f32_to_bf16(edge_floats(&b)[i]));
    return b;
}

/* Pages lie in no order; the table's places past a sequence's last page hold no page. */
static void open_pages(world *w)
{
    const size_t element = w->kv.type == SY_CUDA_KV_BF16 ? 2 : 4;
    const size_t width = w->s.key_dim + (w->s.is_latent ? 0 : w->s.value_dim);
    uint32_t n_pages = 1, next = 0;

    for (uint32_t i = 0; i < w->n_sequences; i++) {
        n_pages += pages_for(w->length[i]);
        w->kv.pages_max = SY_MAX(w->kv.pages_max, pages_for(w->length[i]) + 1);
    }
    if (n_pages % 7 == 0) n_pages++;
    w->data = edge_open(n_pages * PAGE * w->s.n_kv_heads * width * element, 0);
    w->page = edge_open((size_t)w->n_sequences * w->kv.pages_max * sizeof(uint32_t), 0);
    memset(w->data.data, 0xff, w->data.bytes);
    memset(w->page.data, 0xff, w->page.bytes);
    for (uint32_t i = 0; i < w->n_sequences; i++)
        for (uint32_t p = 0; p < pages_for(w->length[i]); p++)
            u32_of(&w->page)[i * w->kv.pages_max + p] = ++next * 7 % n_pages;
    w->kv.data = w->data.data;
    w->kv.page = u32_of(&w->page);
}

/* Caches every token, and rows without one among them. */
static void fill_cache(const world *w)
{
    uint32_t n_rows = w->n_tokens + 1;
    uint32_t *position = malloc(n_rows * sizeof(uint32_t));
    uint32_t *sequence = malloc(n_rows * sizeof(uint32_t));
    const sy_cuda_places places = {position, sequence, NULL};
    const sy_cuda_row_count rows = {&n_rows, n_rows + ROWS_SPARE};

    assert_true(position != NULL && sequence != NULL);
    for (uint32_t i = 0; i < w->n_sequences; i++)
        for (uint32_t p = 0; p < w->length[i]; p++) {
            position[w->first[i] + p] = p;
            sequence[w->first[i] + p] = i;
        }
    position[w->n_tokens] = SY_CUDA_NO_POSITION;
    sequence[w->n_tokens] = UINT32_MAX;
    assert_int_equal(sy_cuda_kv_put(&w->kv, edge_floats(&w->k),
                                    w->s.is_latent ? NULL : edge_floats(&w->v), &places, &rows,
                                    NULL),
                     0);
    edge_check(&w->data);
    free(position);
    free(sequence);
}

/* Once more, since what w->k and w->v have of it was changed. */
static void recache(const world *w, uint32_t sequence, uint32_t position)
{
    const uint32_t n_rows = 1;
    const size_t token = w->first[sequence] + position;
    const sy_cuda_places places = {&position, &sequence, NULL};
    const sy_cuda_row_count rows = {&n_rows, 1};

    assert_int_equal(sy_cuda_kv_put(&w->kv,
                                    edge_floats(&w->k) + token * w->s.n_kv_heads * w->s.key_dim,
                                    edge_floats(&w->v) + token * w->s.n_kv_heads * w->s.value_dim,
                                    &places, &rows, NULL),
                     0);
}

static world world_open(shape s, sy_cuda_kv_type type, const uint32_t *length, uint32_t n_sequences)
{
    const int is_rounded = type == SY_CUDA_KV_BF16;
    world w = {.s = s, .n_sequences = n_sequences};

    assert_true(n_sequences <= SEQUENCES_MAX);
    for (uint32_t i = 0; i < n_sequences; i++) {
        w.length[i] = length[i];
        w.first[i] = w.n_tokens;
        w.n_tokens += length[i];
    }
    w.k = open_values((size_t)w.n_tokens * s.n_kv_heads * s.key_dim, 1, is_rounded);
    w.v = open_values((size_t)w.n_tokens * s.n_kv_heads * s.value_dim, 2, is_rounded);
    w.kv = (sy_cuda_kv){.type = type,
                        .n_heads = s.n_kv_heads,
                        .key_dim = s.key_dim,
                        .value_dim = s.value_dim,
                        .is_latent = s.is_latent};
    open_pages(&w);
    fill_cache(&w);
    return w;
}

static void world_close(world *w)
{
    edge_buffer *all[] = {&w->k, &w->v, &w->data, &w->page};

    for (size_t i = 0; i < SY_COUNT_OF(all); i++) edge_close(all[i]);
}

static float *key_of(const world *w, uint32_t sequence, uint32_t position, uint32_t head)
{
    const size_t token = w->first[sequence] + position;

    return edge_floats(&w->k) + (token * w->s.n_kv_heads + head) * w->s.key_dim;
}

static float *value_of(const world *w, uint32_t sequence, uint32_t position, uint32_t head)
{
    const size_t token = w->first[sequence] + position;

    if (w->s.is_latent) return key_of(w, sequence, position, head);
    return edge_floats(&w->v) + (token * w->s.n_kv_heads + head) * w->s.value_dim;
}

/* ---- a batch ---- */

typedef struct batch {
    uint32_t n_rows;
    uint32_t position[ROWS_MAX], sequence[ROWS_MAX];
    uint32_t window, chunk;
    const float *sinks;
} batch;

static void add_row(batch *b, uint32_t sequence, uint32_t position)
{
    assert_true(b->n_rows < ROWS_MAX);
    b->sequence[b->n_rows] = sequence;
    b->position[b->n_rows++] = position;
}

/* A token's queries are the same in every batch. */
static edge_buffer open_queries(const world *w, const batch *b)
{
    const size_t width = (size_t)w->s.n_heads * w->s.key_dim;
    edge_buffer q = edge_open(b->n_rows * width * sizeof(float), 0);

    for (uint32_t t = 0; t < b->n_rows; t++) {
        test_random r = {TEST_SEED + b->sequence[t] * 4096 + b->position[t]};
        random_fill(edge_floats(&q) + t * width, width, &r, VALUES_PLAIN);
    }
    return q;
}

static float scale_of(const world *w)
{
    return 2.0f / sqrtf((float)w->s.key_dim);
}

typedef struct spread {
    uint32_t rows_together;
    int is_split;
} spread;
static const spread spreads[] = {{1, 1}, {8, 1}, {1, 0}, {8, 0}, {3, 0}};

static edge_buffer run(const world *w, const batch *b, spread how)
{
    const sy_cuda_places places = {b->position, b->sequence, NULL};
    const sy_cuda_row_count rows = {&b->n_rows, b->n_rows + ROWS_SPARE};
    const uint32_t positions_max = w->kv.pages_max * PAGE;
    const size_t partial_bytes =
        sy_cuda_attention_partial_bytes(rows.max, w->s.n_heads, w->s.value_dim, positions_max);
    edge_buffer q = open_queries(w, b), partial = edge_open(partial_bytes, 0);
    edge_buffer out =
        edge_open((size_t)b->n_rows * w->s.n_heads * w->s.value_dim * sizeof(float), 0);
    const sy_cuda_attention a = {.n_heads = w->s.n_heads,
                                 .scale = scale_of(w),
                                 .window = b->window,
                                 .chunk = b->chunk,
                                 .sinks = b->sinks,
                                 .positions_max = positions_max,
                                 .rows_together = how.rows_together,
                                 .partial = how.is_split ? edge_floats(&partial) : NULL};

    memset(partial.data, 0xff, partial.bytes);
    memset(out.data, 0xff, out.bytes);
    assert_int_equal(
        sy_cuda_attend(edge_floats(&out), edge_floats(&q), &w->kv, &places, &a, &rows, NULL), 0);
    edge_check(&out);
    edge_check(&partial);
    edge_close(&q);
    edge_close(&partial);
    return out;
}

/* ---- what it should be ---- */

static uint32_t first_key(const batch *b, uint32_t position)
{
    uint32_t first = 0;

    if (b->window != 0 && position >= b->window) first = position - b->window + 1;
    if (b->chunk != 0) first = SY_MAX(first, position - position % b->chunk);
    return first;
}

/* One head of one row, in double precision. */
static void exact_head(double *want, const world *w, const batch *b, uint32_t t, uint32_t head,
                       const float *q)
{
    const uint32_t kv_head = head / (w->s.n_heads / w->s.n_kv_heads), position = b->position[t];
    double score[512], max = b->sinks == NULL ? -INFINITY : (double)b->sinks[head], sum = 0.0;

    memset(want, 0, w->s.value_dim * sizeof(*want));
    if (position == SY_CUDA_NO_POSITION) return;
    assert_true(position < SY_COUNT_OF(score));
    for (uint32_t j = first_key(b, position); j <= position; j++) {
        const float *k = key_of(w, b->sequence[t], j, kv_head);
        score[j] = 0.0;
        for (uint32_t i = 0; i < w->s.key_dim; i++) score[j] += (double)q[i] * (double)k[i];
        score[j] *= (double)scale_of(w);
        max = fmax(max, score[j]);
    }
    if (b->sinks != NULL) sum = exp((double)b->sinks[head] - max);
    for (uint32_t j = first_key(b, position); j <= position; j++) {
        const float *v = value_of(w, b->sequence[t], j, kv_head);
        const double p = exp(score[j] - max);
        sum += p;
        for (uint32_t i = 0; i < w->s.value_dim; i++) want[i] += p * (double)v[i];
    }
    for (uint32_t i = 0; i < w->s.value_dim; i++) want[i] /= sum;
}

static void check_exact(const world *w, const batch *b, const edge_buffer *out)
{
    const double error_max = w->kv.type == SY_CUDA_KV_BF16 ? BF16_ERROR_MAX : F32_ERROR_MAX;
    edge_buffer q = open_queries(w, b);
    double want[SY_CUDA_VALUE_MAX];

    for (size_t i = 0; w->kv.type == SY_CUDA_KV_BF16 && i < q.bytes / sizeof(float); i++)
        edge_floats(&q)[i] = sy_bf16_to_f32(sy_f32_to_bf16(edge_floats(&q)[i]));

    for (uint32_t i = 0; i < b->n_rows * w->s.n_heads; i++) {
        const uint32_t t = i / w->s.n_heads, head = i % w->s.n_heads;
        const float *got = edge_floats(out) + (size_t)i * w->s.value_dim;
        double error = 0.0, norm = 0.0;
        exact_head(want, w, b, t, head, edge_floats(&q) + (size_t)i * w->s.key_dim);
        for (uint32_t d = 0; d < w->s.value_dim; d++) {
            error += ((double)got[d] - want[d]) * ((double)got[d] - want[d]);
            norm += want[d] * want[d];
        }
        if (!(sqrt(error) <= error_max * sqrt(norm)))
            fail_msg("%u/%u heads of %u, %u: row %u at %u of sequence %u, head %u: relative error "
                     "%g, at most %g",
                     w->s.n_heads, w->s.n_kv_heads, w->s.key_dim, w->s.value_dim, t, b->position[t],
                     b->sequence[t], head, sqrt(error / norm), error_max);
    }
    edge_close(&q);
}

static void check_spread(const world *w, const batch *b, const edge_buffer *want, spread how)
{
    edge_buffer out = run(w, b, how);
    char what[64];

    snprintf(what, sizeof(what), "%u rows together, split: %d", how.rows_together, how.is_split);
    check_bits(edge_floats(want), edge_floats(&out), want->bytes / sizeof(float), what);
    edge_close(&out);
}

/* Right, and alike however it is spread. */
static void check_batch(const world *w, const batch *b)
{
    edge_buffer first = run(w, b, spreads[0]);

    check_exact(w, b, &first);
    for (size_t i = 1; i < SY_COUNT_OF(spreads); i++) check_spread(w, b, &first, spreads[i]);
    edge_close(&first);
}

/* ---- tests ---- */

static const uint32_t contexts[] = {1, 15, 16, 17, 300};
static const shape f32_shapes[] = {{1, 1, 1, 1, 0},    {4, 2, 8, 8, 0},   {6, 2, 65, 65, 0},
                                   {8, 1, 16, 16, 0},  {12, 1, 7, 5, 0},  {9, 3, 64, 64, 0},
                                   {2, 2, 33, 130, 0}, {17, 1, 24, 16, 1}};
static const shape bf16_shapes[] = {{1, 1, 8, 8, 0},    {4, 2, 8, 16, 0},   {6, 2, 64, 64, 0},
                                    {20, 1, 40, 24, 0}, {9, 3, 72, 136, 0}, {2, 2, 128, 128, 0},
                                    {2, 1, 16, 264, 0}, {33, 1, 64, 48, 1}};

/* The last token of each sequence, and rows without one. */
static batch decoding(const world *w)
{
    batch b = {0};

    for (uint32_t i = 0; i < w->n_sequences; i++) {
        add_row(&b, i, w->length[i] - 1);
        if (i % 2 == 0) add_row(&b, i, SY_CUDA_NO_POSITION);
    }
    return b;
}

static void tokens_lie_where_the_page_table_says(void **state)
{
    static const uint32_t length[] = {1, 33, 16};

    (void)state;
    for (int type = SY_CUDA_KV_F32; type <= SY_CUDA_KV_BF16; type++)
        for (int is_latent = 0; is_latent <= 1; is_latent++) {
            const shape s = {3, is_latent ? 1 : 3, 10, is_latent ? 8 : 6, is_latent};
            world w = world_open(s, (sy_cuda_kv_type)type, length, SY_COUNT_OF(length));
            const size_t values_from = (size_t)s.n_kv_heads * PAGE * s.key_dim;
            const size_t page_size =
                values_from + (is_latent ? 0 : (size_t)s.n_kv_heads * PAGE * s.value_dim);
            for (uint32_t i = 0; i < w.n_sequences; i++)
                for (uint32_t at = 0; at < w.length[i] * s.n_kv_heads; at++) {
                    const uint32_t p = at / s.n_kv_heads, head = at % s.n_kv_heads;
                    const uint32_t page = u32_of(&w.page)[i * w.kv.pages_max + p / PAGE];
                    const size_t key = page * page_size + (head * PAGE + p % PAGE) * s.key_dim;
                    const size_t value = page * page_size + values_from +
                                         (head * PAGE + p % PAGE) * (size_t)s.value_dim;
                    for (uint32_t e = 0; e < s.key_dim + (is_latent ? 0 : s.value_dim); e++) {
                        const size_t from = e < s.key_dim ? key + e : value + e - s.key_dim;
                        const float want = e < s.key_dim ? key_of(&w, i, p, head)[e]
                                                         : value_of(&w, i, p, head)[e - s.key_dim];
                        float got;
                        if (type == SY_CUDA_KV_F32)
                            memcpy(&got, w.data.data + 4 * from, 4);
                        else
                            got = sy_bf16_to_f32(((uint16_t *)(void *)w.data.data)[from]);
                        check_bits(&want, &got, 1, "a cached element");
                    }
                }
            world_close(&w);
        }
}

static void every_shape_and_context_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(f32_shapes) + SY_COUNT_OF(bf16_shapes); i++) {
        const int is_f32 = i < SY_COUNT_OF(f32_shapes);
        world w =
            world_open(is_f32 ? f32_shapes[i] : bf16_shapes[i - SY_COUNT_OF(f32_shapes)],
                       is_f32 ? SY_CUDA_KV_F32 : SY_CUDA_KV_BF16, contexts, SY_COUNT_OF(contexts));
        const batch b = decoding(&w);
        edge_buffer first = run(&w, &b, spreads[0]);
        check_exact(&w, &b, &first);
        check_spread(&w, &b, &first, spreads[1 + i % (SY_COUNT_OF(spreads) - 1)]);
        edge_close(&first);
        world_close(&w);
    }
}

/* DeepSeek's: a latent of 512 and 64 that rotate, one row for all heads. */
static void latents_are_keys_and_values_at_once(void **state)
{
    static const uint32_t length[] = {17, 140};
    const shape s = {10, 1, SY_CUDA_KEY_MAX, SY_CUDA_VALUE_MAX, 1};

    (void)state;
    for (int type = SY_CUDA_KV_F32; type <= SY_CUDA_KV_BF16; type++) {
        world w = world_open(s, (sy_cuda_kv_type)type, length, SY_COUNT_OF(length));
        const batch b = decoding(&w);
        check_batch(&w, &b);
        world_close(&w);
    }
}

static void an_empty_batch_does_nothing(void **state)
{
    static const uint32_t length[] = {20};
    world w = world_open(f32_shapes[1], SY_CUDA_KV_F32, length, 1);
    batch b = {0};

    (void)state;
    check_batch(&w, &b);
    add_row(&b, 0, SY_CUDA_NO_POSITION);
    check_batch(&w, &b);
    world_close(&w);
}

/* Windows and chunks that end inside pages and splits, with and without sinks, one of which
 * outweighs every key. */
static void windows_chunks_and_sinks_are_right(void **state)
{
    static const uint32_t length[] = {300, 40, 5};
    static const uint32_t reach[][2] = {{1, 0}, {20, 0}, {129, 0}, {0, 16}, {0, 100}, {50, 90}};
    static const float sinks[] = {0.5f, 60.0f, -90.0f, 0.0f, 1.0f, -INFINITY};

    (void)state;
    for (size_t i = 0; i < 2 * SY_COUNT_OF(reach); i++) {
        const int is_f32 = i < SY_COUNT_OF(reach);
        world w =
            world_open(is_f32 ? f32_shapes[2] : bf16_shapes[2],
                       is_f32 ? SY_CUDA_KV_F32 : SY_CUDA_KV_BF16, length, SY_COUNT_OF(length));
        const uint32_t *r = reach[i % SY_COUNT_OF(reach)];
        batch b = {.window = r[0], .chunk = r[1]};
        b.sinks = i % 2 == 0 ? sinks : NULL;
        add_row(&b, 0, 299);
        add_row(&b, 0, 256);
        add_row(&b, 1, 39);
        add_row(&b, 2, 4);
        add_row(&b, 0, 0);
        check_batch(&w, &b);
        world_close(&w);
    }
}

/* 65 rows of one prompt, then some of another, which lie across a split. */
static batch prompts(void)
{
    batch b = {0};

    for (uint32_t p = 100; p < 165; p++) add_row(&b, 1, p);
    for (uint32_t p = 0; p < 7; p++) add_row(&b, 0, p);
    return b;
}

static void a_row_has_the_bits_it_has_alone(void **state)
{
    static const uint32_t length[] = {7, 165, 130};
    static const shape few[] = {{2, 2, 16, 16, 0}, {6, 2, 24, 24, 0}, {5, 1, 40, 32, 1}};

    (void)state;
    for (size_t i = 0; i < 2 * SY_COUNT_OF(few); i++) {
        const shape *s = &few[i / 2];
        const size_t width = (size_t)s->n_heads * s->value_dim;
        world w = world_open(*s, i % 2 == 0 ? SY_CUDA_KV_F32 : SY_CUDA_KV_BF16, length,
                             SY_COUNT_OF(length));
        batch b = prompts();
        b.window = i / 2 == 1 ? 40 : 0;
        add_row(&b, 2, 129);
        edge_buffer together = run(&w, &b, spreads[3]);
        check_exact(&w, &b, &together);
        for (uint32_t t = 0; t < b.n_rows; t += 9) {
            batch one = {.window = b.window};
            add_row(&one, b.sequence[t], b.position[t]);
            edge_buffer out = run(&w, &one, spreads[t % 2 * 2]);
            check_bits(edge_floats(&together) + t * width, edge_floats(&out), width, "a row alone");
            edge_close(&out);
        }
        edge_close(&together);
        world_close(&w);
    }
}

/* Rows that do not see token ODD of sequence 1 are as they were, and so is kv head 0; of the
 * others, a value shows in its own dimension and in no other. */
static void check_odd(const batch *b, const shape *s, const edge_buffer *clean,
                      const edge_buffer *out, uint32_t odd, int is_value)
{
    const size_t width = (size_t)s->n_heads * s->value_dim;

    for (uint32_t t = 0; t < b->n_rows; t++) {
        const float *want = edge_floats(clean) + t * width, *got = edge_floats(out) + t * width;
        if (b->sequence[t] != 1 || b->position[t] < odd) {
            check_bits(want, got, width, "a row that does not see it");
            continue;
        }
        check_bits(want, got, width / 2, "a head that does not see it");
        for (size_t e = width / 2; is_value && e < width; e++)
            assert_int_equal(isfinite(got[e]) != 0, e % s->value_dim != 5);
    }
}

/* A key that is no number shows in the rows that see it; a value, in its own dimension of them.
 * Earlier rows of the same prompt, computed beside them, keep their bits. */
static void odd_tokens_show_in_the_rows_that_see_them(void **state)
{
    enum { ODD = 130 }; /* in the middle of a split and of rows that are together */
    static const uint32_t length[] = {7, 165};
    const shape s = {4, 2, 16, 16, 0};
    const float odd[] = {NAN, INFINITY, -INFINITY};
    const batch b = prompts();

    (void)state;
    for (int type = SY_CUDA_KV_F32; type <= SY_CUDA_KV_BF16; type++) {
        world w = world_open(s, (sy_cuda_kv_type)type, length, SY_COUNT_OF(length));
        edge_buffer clean = run(&w, &b, spreads[3]);
        for (size_t i = 0; i < 2 * SY_COUNT_OF(odd); i++) {
            const int is_value = i >= SY_COUNT_OF(odd);
            float *element = (is_value ? value_of : key_of)(&w, 1, ODD, 1) + 5, before = *element;
            *element = odd[i % SY_COUNT_OF(odd)];
            recache(&w, 1, ODD);
            edge_buffer out = run(&w, &b, spreads[1 + i % 2 * 2]);
            check_odd(&b, &s, &clean, &out, ODD, is_value);
            edge_close(&out);
            *element = before;
            recache(&w, 1, ODD);
        }
        edge_close(&clean);
        world_close(&w);
    }
}

/* One head of one row by the CPU's kernels, and what has no number from them. */
static void check_as_on_cpu(const world *w, const batch *b, const float *q, const float *got)
{
    const sy_kernels *kernels = sy_kernels_at(0);
    const size_t n = b->position[0] + 1;
    const float error_max = w->kv.type == SY_CUDA_KV_BF16 ? 2e-2f : 1e-5f;
    float score[512], want[8] = {0};

    assert_true(n <= SY_COUNT_OF(score) && w->s.value_dim <= SY_COUNT_OF(want));
    kernels->attn_scores(score, q, key_of(w, 0, 0, 0), w->s.key_dim, n, w->s.key_dim, scale_of(w));
    kernels->softmax(score, n);
    kernels->attn_values(want, score, value_of(w, 0, 0, 0), w->s.value_dim, n, w->s.value_dim);
    for (uint32_t d = 0; d < w->s.value_dim; d++)
        if (isnan(want[d]) ? !isnan(got[d]) : !(fabsf(want[d] - got[d]) <= error_max))
            fail_msg("dimension %u: %g, want %g", d, (double)got[d], (double)want[d]);
}

/* -infinity weighs nothing unless there is nothing else, and then all is NaN, as with +infinity;
 * NaN is NaN. Keys 0 .. last are odd. */
static void odd_scores_mean_what_they_mean_on_the_cpu(void **state)
{
    static const uint32_t length[] = {140}, last[] = {0, 5, 127, 128, 139};
    static const float odd[] = {-INFINITY, INFINITY, NAN};
    const shape s = {2, 1, 8, 8, 0};
    batch b = {0};

    (void)state;
    add_row(&b, 0, 139);
    for (size_t i = 0; i < 2 * SY_COUNT_OF(odd); i++) {
        world w = world_open(s, i % 2 == 0 ? SY_CUDA_KV_F32 : SY_CUDA_KV_BF16, length, 1);
        edge_buffer q = open_queries(&w, &b);
        for (size_t j = 0, n_odd = 0; j < SY_COUNT_OF(last); j++) {
            for (; n_odd <= last[j]; n_odd++) {
                key_of(&w, 0, (uint32_t)n_odd, 0)[0] = odd[i / 2];
                recache(&w, 0, (uint32_t)n_odd);
            }
            for (size_t how = 0; how <= 2; how += 2) {
                edge_buffer out = run(&w, &b, spreads[how]);
                for (uint32_t h = 0; h < s.n_heads; h++)
                    check_as_on_cpu(&w, &b, edge_floats(&q) + h * s.key_dim,
                                    edge_floats(&out) + h * s.value_dim);
                edge_close(&out);
            }
        }
        edge_close(&q);
        world_close(&w);
    }
}

static void shapes_past_the_limits_are_refused(void **state)
{
    static const shape bad[] = {{1, 1, SY_CUDA_KEY_MAX + 1, 8, 0},
                                {1, 1, 8, SY_CUDA_VALUE_MAX + 1, 0},
                                {3, 2, 8, 8, 0},
                                {2, 0, 8, 8, 0},
                                {1, 1, 12, 8, 0},
                                {1, 1, 8, 12, 0}};
    const uint32_t n_rows = 1;
    const sy_cuda_row_count rows = {&n_rows, 1};
    const sy_cuda_places places = {0};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        const sy_cuda_kv kv = {.type = SY_CUDA_KV_BF16,
                               .n_heads = bad[i].n_kv_heads,
                               .key_dim = bad[i].key_dim,
                               .value_dim = bad[i].value_dim};
        const sy_cuda_attention a = {.n_heads = bad[i].n_heads, .positions_max = 16};
        assert_int_equal(sy_cuda_attend(NULL, NULL, &kv, &places, &a, &rows, NULL), 1);
    }
    assert_true(sy_cuda_attention_partial_bytes(UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX) ==
                0);
    assert_true(sy_cuda_attention_partial_bytes(3, 4, 6, 129) == 3 * 4 * 2 * (6 + 2) * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_lie_where_the_page_table_says),
        cmocka_unit_test(every_shape_and_context_is_right),
        cmocka_unit_test(latents_are_keys_and_values_at_once),
        cmocka_unit_test(an_empty_batch_does_nothing),
        cmocka_unit_test(windows_chunks_and_sinks_are_right),
        cmocka_unit_test(a_row_has_the_bits_it_has_alone),
        cmocka_unit_test(odd_tokens_show_in_the_rows_that_see_them),
        cmocka_unit_test(odd_scores_mean_what_they_mean_on_the_cpu),
        cmocka_unit_test(shapes_past_the_limits_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
