/* test_shard_rounded.c - shards whose weights are rounded to blocks of integers as they are loaded:
 * what lies in memory, what they are known by, how they travel, and what they compute. */
#include "shard_fixture.h"

#include <math.h>

#define SEED 20260927u

/* Neither is a multiple of a block, a panel, or what one task computes. */
enum { WIDE = 228, FFN = 168 };

static const sy_precision precisions[] = {
    {SY_Q8, SY_ACT_F32}, {SY_Q8, SY_ACT_Q8}, {SY_Q4, SY_ACT_F32}, {SY_Q4, SY_ACT_Q8}};
/* Of these the activations alone are rounded. */
static const sy_precision pairs = {SY_BF16, SY_ACT_BF16};
static const sy_precision computing[] = {{SY_Q8, SY_ACT_F32},
                                         {SY_Q8, SY_ACT_Q8},
                                         {SY_Q4, SY_ACT_F32},
                                         {SY_Q4, SY_ACT_Q8},
                                         {SY_BF16, SY_ACT_BF16}};

/* The shard's rows as the checkpoint has them, rounded; the caller frees. */
static uint8_t *rounded_bytes(const test_shards *t, sy_dtype dtype, uint32_t layer, uint32_t expert,
                              size_t *n)
{
    sy_shard_form form;
    uint8_t *bytes;
    size_t at = 0;

    sy_shard_form_of(&form, t->model, dtype, layer, expert);
    *n = sy_shard_form_bytes(&form);
    bytes = malloc(*n);
    assert_non_null(bytes);
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t->model, fixture_role[i], layer, expert);

        assert_int_equal(sy_quantize_rows(bytes + at, dtype, tensor->data, tensor->dtype,
                                          form.rows[i], form.cols[i]),
                         SY_OK);
        at += form.rows[i] * sy_dtype_row_bytes(dtype, form.cols[i]);
    }
    assert_int_equal(at, *n);
    return bytes;
}

static sy_shard_identity identify_as(const test_shards *t, sy_precision precision)
{
    sy_shard_identity identity;
    sy_error err = {0};

    must(sy_shard_identify(&identity, t->model, precision, 1, 2, sy_kernels_best(), &err), &err);
    return identity;
}

/* ---- what lies in memory ---- */

static void rows_are_rounded_and_packed_as_by_hand_at_any_pace(void **state)
{
    static const size_t steps[] = {1, 333, 4096, SIZE_MAX};
    static const sy_dtype stored[] = {SY_BF16, SY_F16, SY_F32};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(stored) * SY_COUNT_OF(precisions); i++) {
        const sy_precision precision = precisions[i % SY_COUNT_OF(precisions)];
        test_shards t;
        size_t n, n_stored;

        shards_open(&t, stored[i / SY_COUNT_OF(precisions)], H, F);
        uint8_t *want = rounded_bytes(&t, precision.weights, 1, 2, &n);
        uint8_t *got = malloc(n), *panels = malloc(sy_panels_bytes(precision.weights, F, H));
        free(stored_bytes(&t, 1, 2, &n_stored));
        sy_panels_pack(panels, want, precision.weights, F, H, 0, sy_panels_count(F));
        for (size_t s = 0; s < SY_COUNT_OF(steps); s++) {
            sy_shard_store *store = store_open_as(&t, precision, 0);
            sy_shard_builder *builder = build_begin(store, 1, 2);
            sy_error err = {0};
            int done = 0;

            while (!done) must(sy_shard_add_from_checkpoint(builder, steps[s], &done, &err), &err);
            assert_int_equal(sy_shard_added(builder), n_stored);
            assert_int_equal(build_verify(builder, sy_kernels_best()).content, sy_digest(want, n));
            sy_shard_publish(builder);
            const sy_shard *shard = sy_shard_get(store, 1, 2);
            assert_int_equal(shard->gate.dtype, precision.weights);
            assert_int_equal(shard->activations, precision.activations);
            assert_memory_equal(shard->gate.data, panels, sy_panels_bytes(precision.weights, F, H));
            assert_int_equal(sy_shard_export(shard, 0, got, n), n);
            assert_memory_equal(got, want, n);
            sy_shard_put(store, shard);
            sy_shard_store_close(store);
        }
        free(want);
        free(got);
        free(panels);
        shards_close(&t);
    }
}

static void memory_is_counted_as_it_is_held(void **state)
{
    test_shards t;
    sy_error err = {0};
    uint64_t bytes[3];

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    for (int i = 0; i < 3; i++) {
        const sy_dtype dtype[] = {SY_DTYPE_NONE, SY_Q8, SY_Q4};
        sy_shard_store *store = store_open_as(&t, (sy_precision){.weights = dtype[i]}, 0);
        must(sy_shard_load(store, 0, 0, &err), &err);
        bytes[i] = sy_shard_store_bytes(store);
        sy_shard_store_close(store);
    }
    if (!(bytes[1] < bytes[0] * 2 / 3 && bytes[2] < bytes[1] * 2 / 3))
        fail_msg("as stored %llu bytes, q8 %llu, q4 %llu", (unsigned long long)bytes[0],
                 (unsigned long long)bytes[1], (unsigned long long)bytes[2]);
    shards_close(&t);
}

/* ---- what it is known by ---- */

static void every_format_has_an_identity_of_its_own_on_every_instruction_set(void **state)
{
    const sy_precision all[] = {{SY_BF16, SY_ACT_F32}, precisions[0], precisions[1],
                                precisions[2],         precisions[3], pairs};
    test_shards t;
    sy_shard_identity identity[SY_COUNT_OF(all)];
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    for (size_t i = 0; i < SY_COUNT_OF(all); i++) {
        identity[i] = identify_as(&t, all[i]);
        assert_true(identity[i].probe != 0);
        for (size_t k = 0; k < sy_kernels_count(); k++) {
            sy_shard_identity other;
            must(sy_shard_identify(&other, t.model, all[i], 1, 2, sy_kernels_at(k), &err), &err);
            expect_same(other, identity[i]);
        }
        for (size_t j = 0; j < i; j++) {
            assert_true(identity[i].probe != identity[j].probe);
            assert_int_equal(identity[i].content == identity[j].content,
                             all[i].weights == all[j].weights);
        }
    }
    shards_close(&t);
}

/* ---- from node to node ---- */

static void a_rounded_shard_travels_from_store_to_store_unchanged(void **state)
{
    static const size_t chunks[] = {1, 3, 17, 34, 1000, 4095, 1 << 20};
    test_shards t;
    sy_error err = {0};
    sy_shard_form form;
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    for (size_t p = 0; p < SY_COUNT_OF(precisions); p++) {
        sy_shard_store *from = store_open_as(&t, precisions[p], 0);
        must(sy_shard_load(from, 1, 2, &err), &err);
        const sy_shard *shard = sy_shard_get(from, 1, 2);
        uint8_t *bytes = rounded_bytes(&t, precisions[p].weights, 1, 2, &n);
        uint8_t *chunk = malloc(1 << 20);

        sy_shard_form_in_memory(&form, shard);
        assert_int_equal(sy_shard_form_bytes(&form), n);
        for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
            sy_shard_store *to = store_open_as(&t, precisions[p], 0);
            sy_shard_builder *builder;
            size_t got;

            must(sy_shard_begin(&builder, to, 1, 2, &form, &err), &err);
            while ((got = sy_shard_export(shard, sy_shard_added(builder), chunk, chunks[c])) > 0) {
                assert_int_equal(got, SY_MIN(chunks[c], n - sy_shard_added(builder)));
                assert_memory_equal(chunk, bytes + sy_shard_added(builder), got);
                must(sy_shard_add(builder, chunk, got, &err), &err);
            }
            expect_same(build_verify(builder, sy_kernels_best()), identify_as(&t, precisions[p]));
            sy_shard_publish(builder);
            sy_shard_store_close(to);
        }
        free(bytes);
        free(chunk);
        sy_shard_put(from, shard);
        sy_shard_store_close(from);
    }
    shards_close(&t);
}

static void another_format_than_the_stores_is_refused(void **state)
{
    test_shards t;
    sy_shard_form form;
    sy_shard_builder *builder;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *q8 = store_open_as(&t, precisions[0], 0), *plain = store_open(&t, 0);
    sy_shard_form_of(&form, t.model, SY_Q4, 0, 0);
    expect_error(sy_shard_begin(&builder, q8, 0, 0, &form, &err), SY_EINVAL, &err,
                 "gate is q4 [40,36], but this node has q8 [40,36]: start both nodes with the same "
                 "--weights");
    assert_string_equal(err.reason, "SHARD_FORM");
    assert_null(builder);
    expect_error(sy_shard_begin(&builder, plain, 0, 0, &form, &err), SY_EINVAL, &err,
                 "gate is q4 [40,36], but this node has bf16");
    sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, 0, 0);
    expect_error(sy_shard_begin(&builder, q8, 0, 0, &form, &err), SY_EINVAL, &err,
                 "gate is bf16 [40,36], but this node has q8");
    form.rows[0]++;
    expect_error(sy_shard_begin(&builder, q8, 0, 0, &form, &err), SY_EINVAL, &err,
                 "serves another checkpoint");
    assert_int_equal(sy_shard_store_bytes(q8) + sy_shard_store_bytes(plain), 0);
    sy_shard_store_close(q8);
    sy_shard_store_close(plain);
    shards_close(&t);
}

static void bytes_of_a_node_and_of_the_checkpoint_do_not_mix(void **state)
{
    test_shards t;
    sy_error err = {0};
    size_t n;
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *store = store_open_as(&t, precisions[0], 0);
    uint8_t *bytes = rounded_bytes(&t, SY_Q8, 0, 0, &n);
    sy_shard_builder *builder = build_begin(store, 0, 0);
    must(sy_shard_add(builder, bytes, 1, &err), &err);
    expect_error(sy_shard_add_from_checkpoint(builder, 1, &done, &err), SY_EPRECONDITION, &err,
                 "begun with bytes of q8");
    sy_shard_abandon(builder);
    builder = build_begin(store, 0, 0);
    must(sy_shard_add_from_checkpoint(builder, 1, &done, &err), &err);
    expect_error(sy_shard_add(builder, bytes, 1, &err), SY_EPRECONDITION, &err,
                 "begun with bytes of bf16");
    sy_shard_abandon(builder);
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

/* ---- what cannot be held ---- */

static void a_scale_from_another_node_that_is_not_a_number_is_refused(void **state)
{
    test_shards t;
    sy_error err = {0};
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (size_t p = 0; p < SY_COUNT_OF(precisions); p++) {
        sy_shard_store *store = store_open_as(&t, precisions[p], 0);
        sy_shard_builder *builder = build_begin(store, 0, 0);
        uint8_t *bytes = rounded_bytes(&t, precisions[p].weights, 0, 0, &n);
        const size_t row_bytes = sy_dtype_row_bytes(precisions[p].weights, H);

        bytes[17 * row_bytes + row_bytes / 2] = 0; /* its second block's scale */
        bytes[17 * row_bytes + row_bytes / 2 + 1] = 0x7c;
        expect_error(sy_shard_add(builder, bytes, n, &err), SY_EDATALOSS, &err,
                     "a weight of gate is not a finite number, in rows 16 to 31");
        sy_shard_abandon(builder);
        free(bytes);
        sy_shard_store_close(store);
    }
    shards_close(&t);
}

/* A checkpoint of fp32 whose up matrix has a weight that a scale of f16 does not reach. */
static void weights_too_large_for_the_format_are_named(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    char path[64];
    const float large = 1e30f;

    (void)state;
    shards_open(&t, SY_F32, H, F);
    const sy_tensor *up = sy_model_tensor(t.model, SY_ROLE_EXPERT_UP, 1, 2);
    snprintf(path, sizeof(path), "%s/model.safetensors", t.dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    uint8_t *all = malloc(1 << 24);
    const size_t len = fread(all, 1, 1 << 24, file);
    const uint8_t *found = memmem(all, len, up->data, up->bytes);
    assert_non_null(found);
    fseek(file, found - all + 4 * (20 * H + 3), SEEK_SET);
    assert_int_equal(fwrite(&large, 4, 1, file), 1);
    fclose(file);
    free(all);
    for (size_t p = 0; p < SY_COUNT_OF(precisions); p++) {
        sy_shard_store *store = store_open_as(&t, precisions[p], 0);
        expect_error(sy_shard_load(store, 1, 2, &err), SY_EINVAL, &err,
                     "layer 1 expert 2: up, rows 16 to 31: its weights are too large for q");
        assert_string_equal(err.reason, "SHARD_ROUNDING");
        assert_int_equal(
            sy_shard_identify(&identity, t.model, precisions[p], 1, 2, sy_kernels_best(), &err),
            SY_EINVAL);
        must(sy_shard_load(store, 1, 3, &err), &err);
        sy_shard_store_close(store);
    }
    sy_shard_store *plain = store_open(&t, 0);
    must(sy_shard_load(plain, 1, 2, &err), &err);
    sy_shard_store_close(plain);
    shards_close(&t);
}

static void weights_stored_as_another_type_than_asked_for_are_refused(void **state)
{
    test_shards t;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_F32, H, F);
    sy_shard_store *store = store_open_as(&t, (sy_precision){.weights = SY_BF16}, 0);
    expect_error(sy_shard_load(store, 0, 0, &err), SY_EINVAL, &err,
                 "gate is stored as f32, not as bf16: use --weights");
    assert_int_equal(sy_shard_store_bytes(store), 0);
    sy_shard_store_close(store);
    shards_close(&t);
}

/* ---- what it computes ---- */

static uint8_t *rows_memory(size_t n, uint32_t k)
{
    uint8_t *memory = aligned_alloc(64, (sy_qrows_bytes(n, k) + 63) & ~(size_t)63);

    assert_non_null(memory);
    return memory;
}

/* One row through one shard, product by product, by the reference kernels. */
static void by_hand(float *y, const float *x, const sy_shard *shard)
{
    const sy_kernels *ref = sy_kernels_at(0);
    const size_t ffn = sy_panels_count(FFN), wide = sy_panels_count(WIDE);
    float h[FFN], up[FFN];

    if (shard->activations == SY_ACT_F32) {
        ref->matmul(h, FFN, x, WIDE, NULL, 1, &shard->gate, 0, ffn);
        ref->matmul(up, FFN, x, WIDE, NULL, 1, &shard->up, 0, ffn);
        ref->swiglu(h, h, up, FFN);
        ref->matmul(y, WIDE, h, FFN, NULL, 1, &shard->down, 0, wide);
        return;
    }
    if (shard->activations == SY_ACT_BF16) {
        uint16_t x_pairs[WIDE], h_pairs[FFN];
        ref->round_bf16(x_pairs, x, WIDE);
        ref->matmul_bf16(h, FFN, x_pairs, WIDE, NULL, 1, &shard->gate, 0, ffn);
        ref->matmul_bf16(up, FFN, x_pairs, WIDE, NULL, 1, &shard->up, 0, ffn);
        ref->swiglu(h, h, up, FFN);
        ref->round_bf16(h_pairs, h, FFN);
        ref->matmul_bf16(y, WIDE, h_pairs, FFN, NULL, 1, &shard->down, 0, wide);
        return;
    }
    uint8_t *memory = rows_memory(1, WIDE), *h_memory = rows_memory(1, FFN);
    sy_qrows q, hq;
    sy_qrows_at(&q, memory, 1, WIDE);
    sy_qrows_at(&hq, h_memory, 1, FFN);
    ref->quantize(&q, 0, x, WIDE, 1, WIDE);
    ref->matmul_q8(h, FFN, &q, NULL, 1, &shard->gate, 0, ffn);
    ref->matmul_q8(up, FFN, &q, NULL, 1, &shard->up, 0, ffn);
    ref->swiglu(h, h, up, FFN);
    ref->quantize(&hq, 0, h, FFN, 1, FFN);
    ref->matmul_q8(y, WIDE, &hq, NULL, 1, &shard->down, 0, wide);
    free(memory);
    free(h_memory);
}

typedef struct computed {
    sy_shard_store *store;
    sy_shard_group group[3];
    float *x, *want, *got;
    uint32_t row[3 * 61];
} computed;

enum { T = 61, R = 3 * T };

static void computed_open(computed *c, const test_shards *t, sy_precision precision)
{
    sy_error err = {0};

    c->store = store_open_as(t, precision, 0);
    c->x = malloc(R * WIDE * sizeof(float)); /* also as many rows as the groups have */
    c->want = calloc(R * WIDE, sizeof(float));
    c->got = malloc(R * WIDE * sizeof(float));
    for (size_t i = 0; i < R * WIDE; i++) c->x[i] = 4 * sy_unit_float(sy_splitmix64(SEED + i)) - 2;
    for (uint32_t i = 0; i < R; i++) c->row[i] = i * 7 % T;
    for (uint32_t g = 0; g < 3; g++) {
        must(sy_shard_load(c->store, 1, g * 2, &err), &err);
        /* Holes between groups. */
        c->group[g] = (sy_shard_group){sy_shard_get(c->store, 1, g * 2), g * T, (g + 1) * T - g};
    }
}

static void computed_close(computed *c)
{
    for (uint32_t g = 0; g < 3; g++) sy_shard_put(c->store, c->group[g].shard);
    sy_shard_store_close(c->store);
    free(c->x);
    free(c->want);
    free(c->got);
}

static void expect_by_hand(computed *c, const uint32_t *x_row)
{
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = c->group[g].begin; i < c->group[g].end; i++)
            by_hand(c->want + i * WIDE, c->x + (x_row == NULL ? i : x_row[i]) * WIDE,
                    c->group[g].shard);
    for (size_t k = 0; k < 2 * sy_kernels_count(); k++) {
        sy_shard_scratch scratch = {0};
        sy_pool *pool = NULL;
        sy_error err = {0};

        if (k % 2 == 1) must(sy_pool_open(&pool, 3, "test"), &err);
        memset(c->got, 0, R * WIDE * sizeof(float));
        /* Twice: scratch that is there already; the second time one group alone. */
        for (size_t n = 3; n == 3 || n == 1; n -= 2)
            must(sy_shard_compute(c->got, c->x, WIDE, x_row, c->group, n, &scratch, pool,
                                  sy_kernels_at(k / 2)),
                 &err);
        for (size_t i = 0; i < R * WIDE; i++)
            if (memcmp(&c->got[i], &c->want[i], sizeof(float)) != 0)
                fail_msg("%s, row %zu column %zu: %a, expected %a", sy_kernels_at(k / 2)->name,
                         i / WIDE, i % WIDE, (double)c->got[i], (double)c->want[i]);
        sy_shard_scratch_free(&scratch);
        sy_pool_free(pool);
    }
}

static void experts_compute_what_the_steps_by_hand_give(void **state)
{
    test_shards t;

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    for (size_t p = 0; p < SY_COUNT_OF(computing); p++) {
        computed c;

        computed_open(&c, &t, computing[p]);
        expect_by_hand(&c, c.row);
        memset(c.want, 0, R * WIDE * sizeof(float));
        expect_by_hand(&c, NULL);
        computed_close(&c);
    }
    shards_close(&t);
}

static void a_rounded_shard_stays_close_to_the_stored_one(void **state)
{
    static const double cosine_min[] = {0.9999, 0.9998, 0.985, 0.985, 0.9999};
    test_shards t;
    computed plain;

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    computed_open(&plain, &t, as_stored);
    for (size_t p = 0; p < SY_COUNT_OF(computing); p++) {
        computed c;
        double dot = 0, a2 = 0, b2 = 0;

        computed_open(&c, &t, computing[p]);
        for (uint32_t i = 0; i < T; i++) {
            by_hand(plain.want + i * WIDE, plain.x + i * WIDE, plain.group[0].shard);
            by_hand(c.want + i * WIDE, c.x + i * WIDE, c.group[0].shard);
        }
        for (size_t i = 0; i < T * WIDE; i++) {
            dot += (double)plain.want[i] * (double)c.want[i];
            a2 += (double)plain.want[i] * (double)plain.want[i];
            b2 += (double)c.want[i] * (double)c.want[i];
        }
        const double cosine = dot / sqrt(a2 * b2);
        if (!(cosine >= cosine_min[p]))
            fail_msg("weights %s, activations %d: cosine %f", sy_dtype_name(computing[p].weights),
                     (int)computing[p].activations, cosine);
        computed_close(&c);
    }
    computed_close(&plain);
    shards_close(&t);
}

/* ---- damage ---- */

static sy_kernels wrong_kernels;

/* One bit of one column of down, or of the third block of h, is wrong. */
static int wrong_block;

static void wrong_matmul_q8(float *y, size_t y_stride, const sy_qrows *x, const uint32_t *x_row,
                            size_t n, const sy_panels *w, size_t begin, size_t end)
{
    sy_kernels_best()->matmul_q8(y, y_stride, x, x_row, n, w, begin, end);
    if (!wrong_block && w->n == WIDE && begin <= 1 && 1 < end) {
        uint32_t bits;
        memcpy(&bits, &y[20], 4);
        bits ^= 1;
        memcpy(&y[20], &bits, 4);
    }
}

static void wrong_quantize(const sy_qrows *q, size_t t, const float *x, size_t x_stride, size_t n,
                           uint32_t k)
{
    sy_kernels_best()->quantize(q, t, x, x_stride, n, k);
    if (wrong_block && k < WIDE) q->q[t * q->stride + 3] ^= 1;
}

static void wrong_round_bf16(uint16_t *y, const float *x, size_t n)
{
    sy_kernels_best()->round_bf16(y, x, n);
    if (wrong_block && n < WIDE) y[3] ^= 1;
}

static void wrong_matmul_bf16(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                              const uint32_t *x_row, size_t n, const sy_panels *w, size_t begin,
                              size_t end)
{
    sy_kernels_best()->matmul_bf16(y, y_stride, x, x_stride, x_row, n, w, begin, end);
    if (!wrong_block && w->n == WIDE && begin <= 1 && 1 < end) y[20] += 1.0f;
}

static void kernels_that_compute_other_bits_than_the_reference_are_refused(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, WIDE, FFN);
    wrong_kernels = *sy_kernels_best();
    wrong_kernels.name = "wrong";
    wrong_kernels.matmul_q8 = wrong_matmul_q8;
    wrong_kernels.quantize = wrong_quantize;
    wrong_kernels.round_bf16 = wrong_round_bf16;
    wrong_kernels.matmul_bf16 = wrong_matmul_bf16;
    for (size_t p = 0; p < SY_COUNT_OF(computing); p++) {
        for (wrong_block = 0; wrong_block < 2; wrong_block++) {
            if (computing[p].activations == SY_ACT_F32) continue;
            expect_error(
                sy_shard_identify(&identity, t.model, computing[p], 0, 0, &wrong_kernels, &err),
                SY_EDATALOSS, &err,
                wrong_block ? "gate and up with the wrong" : "down with the wrong");
            assert_string_equal(err.reason, "SHARD_PROBE");
        }
    }
    shards_close(&t);
}

/* Last: SY_FAULT names a pass that the tests before do not reach. */
static void a_bit_that_flips_in_memory_is_noticed(void **state)
{
    test_shards t;
    sy_shard_identity identity = {1, 1};
    sy_error err = {0};
    int caught = 0;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *store = store_open_as(&t, precisions[3], 0);
    for (int pass = 0; pass < 1000 && !caught; pass++) {
        sy_shard_builder *builder = build_begin(store, 1, 1);
        int done;
        must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
        caught = sy_shard_verify(builder, &identity, sy_kernels_best(), &err) != SY_OK;
        sy_shard_abandon(builder);
    }
    expect_error(err.status, SY_EDATALOSS, &err, "memory is damaged");
    assert_int_equal(identity.content, 0);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    sy_shard_store_close(store);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_rounded_and_packed_as_by_hand_at_any_pace),
        cmocka_unit_test(memory_is_counted_as_it_is_held),
        cmocka_unit_test(every_format_has_an_identity_of_its_own_on_every_instruction_set),
        cmocka_unit_test(a_rounded_shard_travels_from_store_to_store_unchanged),
        cmocka_unit_test(another_format_than_the_stores_is_refused),
        cmocka_unit_test(bytes_of_a_node_and_of_the_checkpoint_do_not_mix),
        cmocka_unit_test(a_scale_from_another_node_that_is_not_a_number_is_refused),
        cmocka_unit_test(weights_too_large_for_the_format_are_named),
        cmocka_unit_test(weights_stored_as_another_type_than_asked_for_are_refused),
        cmocka_unit_test(experts_compute_what_the_steps_by_hand_give),
        cmocka_unit_test(a_rounded_shard_stays_close_to_the_stored_one),
        cmocka_unit_test(kernels_that_compute_other_bits_than_the_reference_are_refused),
        cmocka_unit_test(a_bit_that_flips_in_memory_is_noticed),
    };

    setenv("SY_FAULT", "shard.memory:500", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
