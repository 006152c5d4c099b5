/* Streams of the plugin: a small layer from tokens to its output, against exact arithmetic; the
 * order of what was enqueued, marks, pinned memory, and streams beside each other. */
#include "ops_fixture.h"

/* ---- a layer ---- */

enum {
    T = 3,
    T_MAX = 4,
    H = 40, /* two heads of 20 */
    HEADS = 2,
    DIM = 20,
    VOCAB = 7,
    PAGE = 16,
    MATRIX_SEED = 100,
    LAYER_OPS_MAX = 16
};
#define LAYER_ERROR_MAX 4e-3 /* relative L2; activations are rounded to bf16 between matrices */
#define EPS             1e-3f

enum { WQ, WK, WV, WO, N_MATRICES };

/* The layer's memory on the device, and what of it is the host's. */
typedef struct layer {
    opened on;
    sy_backend_buffer *memory;
    uint64_t used;
    sy_backend_ref n_rows, token, position, sequence, page, embedding, weight, angles;
    sy_backend_ref x, x16, head[3], y, cache, matrix[N_MATRICES];
    uint16_t w[N_MATRICES][H * H];
    uint16_t table[VOCAB * H];
    float norm[H], angle[PAGE * DIM];
    uint8_t *pinned; /* tokens in, and rows out from byte 64 on */
} layer;

static sy_backend_ref place_in(layer *l, const void *host, uint64_t bytes)
{
    const sy_backend_ref ref = {l->memory, l->used};

    l->used += (bytes + 15) / 16 * 16;
    if (host != NULL) ok(cuda->copy_in(l->memory, ref.offset, host, bytes, why));
    return ref;
}

static void fill_bf16(uint16_t *out, size_t n, uint64_t seed)
{
    test_random r = {TEST_SEED + seed};

    for (size_t i = 0; i < n; i++) out[i] = sy_f32_to_bf16(random_unit(&r) * 0.5f);
}

static void place_weights(layer *l)
{
    const sy_backend_matrix m = {SY_BACKEND_PLAIN, H, H, SY_BACKEND_BF16};
    test_random r = {TEST_SEED};

    fill_bf16(l->table, VOCAB * H, 1);
    random_fill(l->norm, H, &r, VALUES_PLAIN);
    for (uint32_t p = 0; p < PAGE; p++)
        for (uint32_t i = 0; i < DIM / 2; i++) {
            l->angle[p * DIM + i] = cosf((float)p * (float)(i + 1) * 0.1f);
            l->angle[p * DIM + DIM / 2 + i] = sinf((float)p * (float)(i + 1) * 0.1f);
        }
    l->embedding = place_in(l, l->table, sizeof(l->table));
    l->weight = place_in(l, l->norm, sizeof(l->norm));
    l->angles = place_in(l, l->angle, sizeof(l->angle));
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        fill_bf16(l->w[i], H * H, MATRIX_SEED + i);
        l->matrix[i] = place_in(l, NULL, cuda->matrix_bytes(&m));
        ok(cuda->matrix_write(l->matrix[i], &m, 0, H, l->w[i], NULL, why));
    }
}

static void layer_open(layer *l)
{
    const uint32_t places[3][T_MAX] = {{0, 1, 2, 0}, {0, 0, 0, 0}, {1}};
    const uint32_t n_rows = T;
    void *pinned;

    l->on = opened_open(0);
    ok(cuda->buffer_alloc(&l->memory, l->on.handle, 1 << 18, why));
    l->used = 0;
    l->n_rows = place_in(l, &n_rows, sizeof(n_rows));
    l->token = place_in(l, NULL, T_MAX * 4);
    l->position = place_in(l, places[0], sizeof(places[0]));
    l->sequence = place_in(l, places[1], sizeof(places[1]));
    l->page = place_in(l, places[2], 4);
    place_weights(l);
    l->x = place_in(l, NULL, T_MAX * H * 4);
    l->x16 = place_in(l, NULL, T_MAX * 64 * 2);
    for (int i = 0; i < 3; i++) l->head[i] = place_in(l, NULL, T_MAX * H * 4);
    l->y = place_in(l, NULL, T_MAX * H * 4);
    l->cache = place_in(l, NULL, 2 * HEADS * PAGE * 2 * DIM * 4);
    ok(cuda->pinned_alloc(&pinned, l->on.handle, 64 + T * H * 4, why));
    l->pinned = pinned;
}

static void layer_close(layer *l)
{
    cuda->pinned_free(l->on.handle, l->pinned);
    cuda->buffer_free(l->memory);
    opened_close(&l->on);
}

static sy_backend_kv cache_of(const layer *l)
{
    return (sy_backend_kv){.data = l->cache,
                           .page = l->page,
                           .n_heads = HEADS,
                           .key_dim = DIM,
                           .value_dim = DIM,
                           .pages_max = 1,
                           .n_pages = 2,
                           .n_sequences = 1};
}

static sy_backend_op op_of(const layer *l, uint32_t kind)
{
    return (sy_backend_op){.kind = kind, .rows_max = T_MAX, .n_rows = l->n_rows};
}

static uint32_t add_linear(sy_backend_op *op, const layer *l, sy_backend_ref y, uint32_t matrix)
{
    *op = op_of(l, SY_BACKEND_LINEAR);
    op->u.linear.y = y;
    op->u.linear.x = l->x16;
    op->u.linear.weights = l->matrix[matrix];
    op->u.linear.matrix = (sy_backend_matrix){SY_BACKEND_PLAIN, H, H, SY_BACKEND_BF16};
    op->u.linear.divisor = 1;
    return 1;
}

static uint32_t add_heads(sy_backend_op *op, const layer *l, sy_backend_ref x)
{
    *op = op_of(l, SY_BACKEND_HEADS);
    op->u.heads.x = x;
    op->u.heads.n_heads = HEADS;
    op->u.heads.head_dim = DIM;
    op->u.heads.rotary_dim = DIM;
    op->u.heads.angles = l->angles;
    op->u.heads.angle_rows = PAGE;
    op->u.heads.places = (sy_backend_places){.position = l->position, .angle = l->position};
    return 1;
}

/* Tokens to x, and x to normed rows. */
static uint32_t add_start(sy_backend_op *op, const layer *l)
{
    op[0] = (sy_backend_op){.kind = SY_BACKEND_IN,
                            .u.copy = {.to = l->token, .host = l->pinned, .n = T * 4}};
    op[1] = op_of(l, SY_BACKEND_EMBED);
    op[1].u.embed.x = l->x;
    op[1].u.embed.embedding = l->embedding;
    op[1].u.embed.token = l->token;
    op[1].u.embed.hidden = H;
    op[1].u.embed.vocab = VOCAB;
    op[1].u.embed.factor = 2;
    op[2] = op_of(l, SY_BACKEND_NORM);
    op[2].u.norm.y16 = l->x16;
    op[2].u.norm.x = l->x;
    op[2].u.norm.weight = l->weight;
    op[2].u.norm.n = H;
    op[2].u.norm.eps = EPS;
    return 3;
}

static uint32_t add_attention(sy_backend_op *op, const layer *l)
{
    const sy_backend_places places = {.position = l->position, .sequence = l->sequence};

    op[0] = op_of(l, SY_BACKEND_KV_PUT);
    op[0].u.kv_put.kv = cache_of(l);
    op[0].u.kv_put.k = l->head[WK];
    op[0].u.kv_put.v = l->head[WV];
    op[0].u.kv_put.places = places;
    op[1] = op_of(l, SY_BACKEND_ATTEND);
    op[1].u.attend.kv = cache_of(l);
    op[1].u.attend.out = l->y;
    op[1].u.attend.q = l->head[WQ];
    op[1].u.attend.places = places;
    op[1].u.attend.n_heads = HEADS;
    op[1].u.attend.scale = 0.25f;
    op[1].u.attend.positions_max = PAGE;
    op[1].u.attend.rows_together = 1;
    op[2] = op_of(l, SY_BACKEND_ROWS);
    op[2].u.rows.to = l->x16;
    op[2].u.rows.from = l->y;
    op[2].u.rows.n = H;
    return 3;
}

static uint32_t layer_ops(sy_backend_op op[LAYER_OPS_MAX], const layer *l)
{
    uint32_t n = add_start(op, l);

    for (uint32_t i = WQ; i <= WV; i++) n += add_linear(op + n, l, l->head[i], i);
    for (uint32_t i = WQ; i <= WK; i++) n += add_heads(op + n, l, l->head[i]);
    n += add_attention(op + n, l);
    n += add_linear(op + n, l, l->y, WO);
    op[n] = op_of(l, SY_BACKEND_ADD);
    op[n].u.add.x = l->x;
    op[n].u.add.y = l->y;
    op[n].u.add.hidden = H;
    op[n].u.add.factor = 1;
    op[n + 1] = (sy_backend_op){.kind = SY_BACKEND_OUT,
                                .u.copy = {.from = l->x, .host = l->pinned + 64, .n = T * H * 4}};
    return n + 2;
}

/* ---- the same, exactly ---- */

static double rounded(double v)
{
    return (double)sy_bf16_to_f32(sy_f32_to_bf16((float)v));
}

static void exact_linear(double *y, const double *x, const uint16_t *w)
{
    for (uint32_t o = 0; o < H; o++) {
        y[o] = 0;
        for (uint32_t i = 0; i < H; i++)
            y[o] += (double)sy_bf16_to_f32(w[o * H + i]) * rounded(x[i]);
    }
}

static void exact_rotation(double *x, const float *angle)
{
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < DIM / 2; i++) {
            const double c = (double)angle[i], s = (double)angle[DIM / 2 + i];
            double *a = x + h * DIM + i, *b = a + DIM / 2, was = *a;

            *a = was * c - *b * s;
            *b = *b * c + was * s;
        }
}

/* Row t of a sequence whose rows [0, t] have keys and values. */
static void exact_attention(double *out, const double *q, double k[T][H], double v[T][H],
                            uint32_t t)
{
    memset(out, 0, H * sizeof(*out));
    for (uint32_t h = 0; h < HEADS; h++) {
        double weight[T], sum = 0;

        for (uint32_t j = 0; j <= t; j++) {
            double dot = 0;
            for (uint32_t i = 0; i < DIM; i++) dot += q[h * DIM + i] * k[j][h * DIM + i];
            sum += weight[j] = exp(0.25 * dot);
        }
        for (uint32_t j = 0; j <= t; j++)
            for (uint32_t i = 0; i < DIM; i++)
                out[h * DIM + i] += weight[j] / sum * v[j][h * DIM + i];
    }
}

static void exact_layer(double out[T][H], const layer *l, const uint32_t *token)
{
    double k[T][H], v[T][H];

    for (uint32_t t = 0; t < T; t++) {
        double x[H], normed[H], q[H], attended[H], square = 0;

        for (uint32_t i = 0; i < H; i++) {
            x[i] = 2 * (double)sy_bf16_to_f32(l->table[token[t] * H + i]);
            square += x[i] * x[i];
        }
        for (uint32_t i = 0; i < H; i++)
            normed[i] = (double)l->norm[i] * x[i] / sqrt(square / H + (double)EPS);
        exact_linear(q, normed, l->w[WQ]);
        exact_linear(k[t], normed, l->w[WK]);
        exact_linear(v[t], normed, l->w[WV]);
        exact_rotation(q, l->angle + t * DIM);
        exact_rotation(k[t], l->angle + t * DIM);
        exact_attention(attended, q, k, v, t);
        exact_linear(out[t], attended, l->w[WO]);
        for (uint32_t i = 0; i < H; i++) out[t][i] += x[i];
    }
}

static void check_layer(const layer *l, const uint32_t *token)
{
    double want[T][H], error = 0, norm = 0;
    float got[T * H];

    memcpy(got, l->pinned + 64, sizeof(got));
    exact_layer(want, l, token);
    for (uint32_t i = 0; i < T * H; i++) {
        const double d = (double)got[i] - want[i / H][i % H];
        error += d * d;
        norm += want[i / H][i % H] * want[i / H][i % H];
    }
    if (!(sqrt(error) <= LAYER_ERROR_MAX * sqrt(norm)))
        fail_msg("relative error %g, at most %g", sqrt(error / norm), LAYER_ERROR_MAX);
}

static void a_layer_runs_from_tokens_to_its_output(void **state)
{
    static const uint32_t tokens[][T] = {{3, 0, 6}, {1, 1, 5}};
    layer *l = malloc(sizeof(*l));
    sy_backend_op op[LAYER_OPS_MAX];
    uint32_t n;

    (void)state;
    assert_non_null(l);
    layer_open(l);
    n = layer_ops(op, l);
    assert_true(n <= LAYER_OPS_MAX);
    for (size_t i = 0; i < SY_COUNT_OF(tokens); i++) {
        memcpy(l->pinned, tokens[i], sizeof(tokens[i]));
        ok(cuda->stream_run(l->on.stream, op, n, why));
        finish(&l->on);
        check_layer(l, tokens[i]);
    }
    layer_close(l);
    free(l);
}

/* ---- pinned memory, copies and their order ---- */

static uint8_t *pinned_of(const opened *on, uint64_t bytes)
{
    void *p;

    ok(cuda->pinned_alloc(&p, on->handle, bytes, why));
    return p;
}

static void pinned_memory_is_zeroed(void **state)
{
    opened on = opened_open(1);
    uint8_t *p = pinned_of(&on, 1000);
    void *none = &on;

    (void)state;
    for (int i = 0; i < 1000; i++)
        if (p[i] != 0) fail_msg("byte %d is %02x", i, p[i]);
    cuda->pinned_free(on.handle, p);
    cuda->pinned_free(on.handle, NULL);
    refused(cuda->pinned_alloc(&none, on.handle, 0, why), SY_BACKEND_EINVAL, "0 bytes");
    assert_null(none);
    opened_close(&on);
}

/* What each step reads is what the one before it has left, at any byte. */
static void copies_happen_in_the_order_they_were_enqueued_in(void **state)
{
    opened on = opened_open(0);
    uint8_t *host = pinned_of(&on, 64);
    uint8_t start[16] = {0};
    const sy_backend_ref a = buffer_of(&on, start, 16), b = buffer_of(&on, start, 16);
    const sy_backend_op op[] = {
        {.kind = SY_BACKEND_IN, .u.copy = {.to = {a.buffer, 3}, .host = host + 1, .n = 5}},
        {.kind = SY_BACKEND_COPY, .u.copy = {.to = {a.buffer, 8}, .from = {a.buffer, 3}, .n = 5}},
        {.kind = SY_BACKEND_COPY, .u.copy = {.to = b, .from = {a.buffer, 7}, .n = 9}},
        {.kind = SY_BACKEND_IN, .u.copy = {.to = a, .host = host + 32, .n = 16}},
        {.kind = SY_BACKEND_OUT, .u.copy = {.from = {b.buffer, 1}, .host = host + 20, .n = 5}},
        {.kind = SY_BACKEND_OUT, .u.copy = {.from = a, .host = host + 48, .n = 0}}};

    (void)state;
    memcpy(host + 1, "order", 5);
    memset(host + 32, 7, 16);
    emu_cudart_slow(0, 2000);
    ok(cuda->stream_run(on.stream, op, SY_COUNT_OF(op), why));
    finish(&on);
    assert_memory_equal(host + 20, "order", 5);
    assert_int_equal(host[48], 0);
    cuda->pinned_free(on.handle, host);
    cuda->buffer_free(a.buffer);
    cuda->buffer_free(b.buffer);
    opened_close(&on);
}

/* ---- marks ---- */

static int is_done(const opened *on, uint32_t mark, uint32_t timeout_us)
{
    int done = -1;

    ok(cuda->stream_wait(&done, on->stream, mark, timeout_us, why));
    return done;
}

static void a_mark_is_done_when_all_before_it_is(void **state)
{
    opened on = opened_open(0);
    uint8_t *host = pinned_of(&on, 16);
    sy_backend_ref a = buffer_of(&on, NULL, 16);
    const sy_backend_op in = {.kind = SY_BACKEND_IN, .u.copy = {.to = a, .host = host, .n = 16}};
    int done = 1;

    (void)state;
    for (uint32_t mark = 0; mark < SY_BACKEND_MARKS; mark++)
        assert_int_equal(is_done(&on, mark, 0), 1);
    ok(cuda->stream_run(on.stream, &in, 1, why));
    ok(cuda->stream_mark(on.stream, 7, why));
    assert_int_equal(is_done(&on, 7, WAIT_US), 1);
    emu_cudart_hang(0, 1);
    ok(cuda->stream_run(on.stream, &in, 1, why));
    ok(cuda->stream_mark(on.stream, 2, why));
    assert_int_equal(is_done(&on, 2, 0), 0);
    assert_int_equal(is_done(&on, 2, 3000), 0);
    assert_int_equal(is_done(&on, 7, 0), 1); /* given before, and not since */
    ok(cuda->stream_mark(on.stream, 7, why));
    assert_int_equal(is_done(&on, 7, 0), 0);
    emu_cudart_hang(0, 0);
    assert_int_equal(is_done(&on, 7, WAIT_US), 1);
    assert_int_equal(is_done(&on, 2, 0), 1);
    refused(cuda->stream_mark(on.stream, 8, why), SY_BACKEND_EINVAL, "mark 8: a stream has 8");
    refused(cuda->stream_wait(&done, on.stream, 8, 0, why), SY_BACKEND_EINVAL, "mark 8");
    assert_int_equal(done, 0);
    cuda->pinned_free(on.handle, host);
    cuda->buffer_free(a.buffer);
    opened_close(&on);
}

static void a_stream_that_is_closed_has_done_its_work(void **state)
{
    opened on = opened_open(0);
    uint8_t *host = pinned_of(&on, 8);
    sy_backend_ref a = buffer_of(&on, "closed!", 8);
    const sy_backend_op out = {.kind = SY_BACKEND_OUT, .u.copy = {.from = a, .host = host, .n = 8}};

    (void)state;
    emu_cudart_slow(0, 20000);
    ok(cuda->stream_run(on.stream, &out, 1, why));
    cuda->stream_close(on.stream);
    cuda->stream_close(NULL);
    assert_string_equal((const char *)host, "closed!");
    cuda->pinned_free(on.handle, host);
    cuda->buffer_free(a.buffer);
    cuda->close(on.handle);
}

/* On two devices, so that one can be stopped: the other goes on. */
static void streams_do_not_wait_for_each_other(void **state)
{
    opened on[2] = {opened_open(0), opened_open(1)};
    uint8_t *host[2];
    sy_backend_ref at[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        host[i] = pinned_of(&on[i], 8);
        at[i] = buffer_of(&on[i], i == 0 ? "stream0" : "stream1", 8);
    }
    emu_cudart_hang(0, 1);
    for (int i = 0; i < 2; i++) {
        const sy_backend_op out = {.kind = SY_BACKEND_OUT,
                                   .u.copy = {.from = at[i], .host = host[i], .n = 8}};
        ok(cuda->stream_run(on[i].stream, &out, 1, why));
        ok(cuda->stream_mark(on[i].stream, 1, why));
    }
    assert_int_equal(is_done(&on[1], 1, WAIT_US), 1);
    assert_int_equal(is_done(&on[0], 1, 0), 0);
    assert_string_equal((const char *)host[1], "stream1");
    emu_cudart_hang(0, 0);
    assert_int_equal(is_done(&on[0], 1, WAIT_US), 1);
    assert_string_equal((const char *)host[0], "stream0");
    for (int i = 0; i < 2; i++) {
        cuda->pinned_free(on[i].handle, host[i]);
        cuda->buffer_free(at[i].buffer);
        opened_close(&on[i]);
    }
}

static void two_streams_of_a_device_each_keep_their_order(void **state)
{
    enum { ROUNDS = 20 };
    opened on = opened_open(0), both[2] = {on, on};
    uint8_t *host = pinned_of(&on, 2 * ROUNDS * 4);
    sy_backend_ref at[2];

    (void)state;
    ok(cuda->stream_open(&both[1].stream, on.handle, why));
    for (int s = 0; s < 2; s++) at[s] = buffer_of(&on, NULL, 8);
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t value = round * 2 + s;
            uint8_t *mine = host + value * 4;
            const sy_backend_op op[] = {
                {.kind = SY_BACKEND_IN, .u.copy = {.to = at[s], .host = mine, .n = 4}},
                {.kind = SY_BACKEND_COPY,
                 .u.copy = {.to = {at[s].buffer, 4}, .from = at[s], .n = 4}},
                {.kind = SY_BACKEND_OUT,
                 .u.copy = {.from = {at[s].buffer, 4}, .host = mine, .n = 4}}};

            memcpy(mine, &value, 4);
            ok(cuda->stream_run(both[s].stream, op, SY_COUNT_OF(op), why));
        }
    for (int s = 0; s < 2; s++) finish(&both[s]);
    for (uint32_t i = 0; i < 2 * ROUNDS; i++) assert_memory_equal(host + i * 4, &i, 4);
    cuda->stream_close(both[1].stream);
    for (int s = 0; s < 2; s++) cuda->buffer_free(at[s].buffer);
    cuda->pinned_free(on.handle, host);
    opened_close(&on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(a_layer_runs_from_tokens_to_its_output),
        PLUGIN_TEST(pinned_memory_is_zeroed),
        PLUGIN_TEST(copies_happen_in_the_order_they_were_enqueued_in),
        PLUGIN_TEST(a_mark_is_done_when_all_before_it_is),
        PLUGIN_TEST(a_stream_that_is_closed_has_done_its_work),
        PLUGIN_TEST(streams_do_not_wait_for_each_other),
        PLUGIN_TEST(two_streams_of_a_device_each_keep_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
