/* test_shard_encoded.c - shards whose weights are held as the checkpoint has them encoded: the
 * bytes that lie in memory, what they are known by, how they travel, and what they compute. */
#include "family_fixture.h"

#include <float.h>
#include <math.h>

#include "bent_factors.h"
#include "encoded_fixture.h"

enum { T = 21, DIM_MAX = 160 };

static sy_precision held_as(const encoded_case *c)
{
    return (sy_precision){c->dtype, SY_ACT_F32};
}

static void encoded_open(test_shards *t, const encoded_case *c)
{
    sy_error err = {0};

    family_open(t, &c->family);
    if (c->dtype != SY_FP8) return;
    sy_model_close(t->model);
    bend_factors(t->dir);
    must(sy_model_open(&t->model, t->dir, NULL, &err), &err);
}

static sy_shard_identity identity_of(const test_shards *t, sy_precision precision,
                                     const sy_kernels *kernels)
{
    sy_shard_identity identity;
    sy_error err = {0};

    must(sy_shard_identify(&identity, t->model, precision, LAYER, EXPERT, kernels, &err), &err);
    return identity;
}

/* ---- what lies in memory ---- */

static void expect_exports(const sy_shard *shard, const uint8_t *want, size_t n)
{
    static const size_t chunks[] = {1, 7, 130, 250, 4096, SIZE_MAX};
    uint8_t *got = malloc(n);

    for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
        memset(got, 0xee, n);
        for (size_t at = 0, step; at < n; at += step) {
            step = SY_MIN(chunks[c], n - at);
            assert_int_equal(sy_shard_export(shard, at, got + at, step), step);
        }
        for (size_t i = 0; i < n; i++)
            if (got[i] != want[i])
                fail_msg("pieces of %zu, byte %zu of %zu: %02x, expected %02x", chunks[c], i, n,
                         got[i], want[i]);
    }
    assert_int_equal(sy_shard_export(shard, n, got, 1), 0);
    free(got);
}

static void encoded_rows_lie_in_memory_as_they_are_at_any_pace(void **state)
{
    static const size_t steps[] = {1, 333, 4096, SIZE_MAX};

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        size_t n;

        encoded_open(&t, &cases[c]);
        uint8_t *want = encoded_bytes(&t, &cases[c], &n);
        for (size_t s = 0; s < SY_COUNT_OF(steps); s++) {
            sy_shard_store *store = store_open_as(&t, held_as(&cases[c]), 0);
            sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
            sy_shard_form form;
            sy_error err = {0};
            int done = 0;

            while (!done) must(sy_shard_add_from_checkpoint(builder, steps[s], &done, &err), &err);
            assert_int_equal(sy_shard_added(builder), n);
            assert_int_equal(build_verify(builder, sy_kernels_best()).content, sy_digest(want, n));
            sy_shard_publish(builder);
            const sy_shard *shard = sy_shard_get(store, LAYER, EXPERT);
            sy_shard_form_in_memory(&form, shard);
            for (int i = 0; i < 3; i++) assert_int_equal(form.dtype[i], cases[c].dtype);
            expect_exports(shard, want, n);
            sy_shard_put(store, shard);
            sy_shard_store_close(store);
        }
        free(want);
        shards_close(&t);
    }
}

static void memory_is_what_the_file_takes(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        uint64_t bytes[2];
        sy_error err = {0};

        encoded_open(&t, &cases[c]);
        for (int i = 0; i < 2; i++) {
            sy_shard_store *store = store_open_as(&t, i == 0 ? as_stored : held_as(&cases[c]), 0);
            must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
            bytes[i] = sy_shard_store_bytes(store);
            sy_shard_store_close(store);
        }
        const double part =
            cases[c].dtype == SY_FP8 ? 0.56 : 0.36; /* with panels' padding, biases */
        if (!((double)bytes[1] < part * (double)bytes[0]))
            fail_msg("%s: %llu bytes, as bf16 %llu", cases[c].family.name,
                     (unsigned long long)bytes[1], (unsigned long long)bytes[0]);
        shards_close(&t);
    }
}

/* ---- what it is known by ---- */

static void the_identity_is_the_same_in_every_store_and_with_all_kernels(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;

        encoded_open(&t, &cases[c]);
        const sy_shard_identity one = identity_of(&t, held_as(&cases[c]), sy_kernels_at(0));
        const sy_shard_identity plain = identity_of(&t, as_stored, sy_kernels_best());
        for (size_t k = 0; k < sy_kernels_count(); k++)
            expect_same(identity_of(&t, held_as(&cases[c]), sy_kernels_at(k)), one);
        assert_true(one.content != plain.content && one.probe != 0);
        shards_close(&t);
    }
}

static void a_shard_travels_from_store_to_store_unchanged(void **state)
{
    static const size_t chunks[] = {13, 1000, 1 << 16};
    static uint8_t chunk[1 << 16];

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        sy_error err = {0};

        encoded_open(&t, &cases[c]);
        sy_shard_store *from = store_open_as(&t, held_as(&cases[c]), 0);
        must(sy_shard_load(from, LAYER, EXPERT, &err), &err);
        const sy_shard *shard = sy_shard_get(from, LAYER, EXPERT);
        for (size_t s = 0; s < SY_COUNT_OF(chunks); s++) {
            sy_shard_store *to = store_open_as(&t, held_as(&cases[c]), 0);
            sy_shard_builder *builder;
            sy_shard_form form;
            size_t n;

            sy_shard_form_in_memory(&form, shard);
            must(sy_shard_begin(&builder, to, LAYER, EXPERT, &form, &err), &err);
            while ((n = sy_shard_export(shard, sy_shard_added(builder), chunk, chunks[s])) > 0)
                must(sy_shard_add(builder, chunk, n, &err), &err);
            expect_same(build_verify(builder, sy_kernels_best()),
                        identity_of(&t, held_as(&cases[c]), sy_kernels_best()));
            sy_shard_publish(builder);
            sy_shard_store_close(to);
        }
        sy_shard_put(from, shard);
        sy_shard_store_close(from);
        shards_close(&t);
    }
}

/* ---- what it computes ---- */

/* One output, and how far a chain in fp32 may be from it: a rounding a step, each at most of what
 * the magnitudes add up to, and that of the block's sum and of a bias. */
static double product(const float *w, const double *x, uint32_t k, double *error)
{
    double sum = 0, magnitude = 0;

    for (uint32_t i = 0; i < k; i++) {
        sum += (double)w[i] * x[i];
        magnitude += fabs((double)w[i] * x[i]);
    }
    *error = magnitude * (k + 3) * FLT_EPSILON / 2;
    return sum;
}

static const float *widen_part(float *out, const uint8_t *bytes, sy_dtype dtype, uint32_t rows,
                               uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        sy_dtype_widen(out + r * cols, bytes + r * sy_dtype_row_bytes(dtype, cols), dtype, cols);
    return out;
}

static double activated(const sy_model_desc *d, double g, double u)
{
    if (d->mlp != SY_MLP_CLAMPED) return g / (1 + exp(-g)) * u;
    g = fmin(g, (double)d->mlp_limit);
    u = fmax(fmin(u, (double)d->mlp_limit), -(double)d->mlp_limit);
    return (u + 1) * g / (1 + exp(-1.702 * g));
}

/* In double precision, from the rows as they are encoded. */
static void expect_output(const test_shards *t, const encoded_case *c, const float *got,
                          const float *x, double *worst, double *largest)
{
    static float gate[DIM_MAX * DIM_MAX], up[DIM_MAX * DIM_MAX], down[DIM_MAX * DIM_MAX];
    static float bias[3 * DIM_MAX];
    const sy_model_desc *d = sy_model_describe(t->model);
    const uint32_t hidden = d->hidden, ffn = d->expert_ffn;
    size_t n;
    uint8_t *bytes = encoded_bytes(t, c, &n);
    const size_t row_bytes = sy_dtype_row_bytes(c->dtype, hidden);
    const size_t down_bytes = hidden * sy_dtype_row_bytes(c->dtype, ffn);
    const size_t matrices = 2 * ffn * row_bytes + down_bytes;
    double in[DIM_MAX], h[DIM_MAX], h_error[DIM_MAX];

    widen_part(gate, bytes, c->dtype, ffn, hidden);
    widen_part(up, bytes + ffn * row_bytes, c->dtype, ffn, hidden);
    widen_part(down, bytes + 2 * ffn * row_bytes, c->dtype, hidden, ffn);
    memset(bias, 0, sizeof(bias));
    memcpy(bias, bytes + matrices, n - matrices);
    free(bytes);
    for (uint32_t i = 0; i < hidden; i++) in[i] = (double)x[i];
    for (uint32_t f = 0; f < ffn; f++) {
        double g_error, u_error;
        const double g = product(gate + f * hidden, in, hidden, &g_error) + (double)bias[f];
        const double u = product(up + f * hidden, in, hidden, &u_error) + (double)bias[ffn + f];
        h[f] = activated(d, g, u);
        /* Neither activation is steeper than 1.2. */
        h_error[f] =
            1.2 * g_error * (fabs(u) + 1) + u_error * fabs(g) + 4 * fabs(h[f]) * FLT_EPSILON;
    }
    for (uint32_t i = 0; i < hidden; i++) {
        double error;
        const double want = product(down + i * ffn, h, ffn, &error) + (double)bias[2 * ffn + i];

        for (uint32_t f = 0; f < ffn; f++) error += fabs((double)down[i * ffn + f]) * h_error[f];
        *worst = fmax(*worst, fabs((double)got[i] - want));
        *largest = fmax(*largest, fabs(want));
        if (!(fabs((double)got[i] - want) <= error))
            fail_msg("%s, column %u: %g, expected %g within %g", c->family.name, i, (double)got[i],
                     want, error);
    }
}

static void outputs_are_those_of_the_encoded_weights_with_all_kernels(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        float x[T * DIM_MAX], y[T * DIM_MAX], first[T * DIM_MAX];
        test_shards t;
        sy_error err = {0};

        encoded_open(&t, &cases[c]);
        const uint32_t hidden = sy_model_describe(t.model)->hidden;
        sy_shard_store *store = store_open_as(&t, held_as(&cases[c]), 0);
        must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
        const sy_shard_group group = {sy_shard_get(store, LAYER, EXPERT), 0, T};
        for (size_t i = 0; i < T * hidden; i++) x[i] = sy_unit_float(sy_splitmix64(i)) * 2 - 1;
        for (size_t k = 0; k < 2 * sy_kernels_count(); k++) {
            sy_shard_scratch scratch = {0};
            sy_pool *pool = NULL;

            if (k % 2 == 1) must(sy_pool_open(&pool, 3, "test"), &err);
            must(sy_shard_compute(y, x, hidden, NULL, &group, 1, &scratch, pool,
                                  sy_kernels_at(k / 2)),
                 &err);
            if (k == 0) memcpy(first, y, sizeof(first));
            for (size_t i = 0; i < T * hidden; i++)
                if (memcmp(&y[i], &first[i], sizeof(float)) != 0)
                    fail_msg("%s, %s, row %zu column %zu: %a, expected %a", cases[c].family.name,
                             sy_kernels_at(k / 2)->name, i / hidden, i % hidden, (double)y[i],
                             (double)first[i]);
            sy_shard_scratch_free(&scratch);
            sy_pool_free(pool);
        }
        double worst = 0, largest = 0;
        for (size_t i = 0; i < T; i++)
            expect_output(&t, &cases[c], y + i * hidden, x + i * hidden, &worst, &largest);
        if (!(worst <= 4e-6 * largest)) /* bf16's weights would be off by 1e-3 */
            fail_msg("%s: off by %g, the largest is %g", cases[c].family.name, worst, largest);
        sy_shard_put(store, group.shard);
        sy_shard_store_close(store);
        shards_close(&t);
    }
}

/* ---- refusals ---- */

static void a_checkpoint_that_has_nothing_so_encoded_is_refused_with_what_would_do(void **state)
{
    static const family_case plain = {"plain", "mixtral.json", {NULL}};
    sy_shard_store *store;
    sy_error err = {0};
    test_shards t;

    (void)state;
    family_open(&t, &plain);
    expect_error(sy_shard_store_open(&store, t.model, held_as(&cases[0]), 0, &err), SY_EINVAL, &err,
                 "--weights fp8 keeps what a checkpoint stores as fp8, but the experts of ");
    expect_error(err.status, SY_EINVAL, &err, " are bf16: use --weights as-stored, q8 or q4");
    assert_string_equal(err.reason, "SHARD_FORM");
    assert_null(store);
    shards_close(&t);
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        const encoded_case *other = &cases[1 - c];

        encoded_open(&t, &cases[c]);
        expect_error(sy_shard_store_open(&store, t.model, held_as(other), 0, &err), SY_EINVAL, &err,
                     c == 0 ? " are fp8: use --weights as-stored, fp8, q8 or q4"
                            : " are mxfp4: use --weights as-stored, mxfp4, q8 or q4");
        must(sy_shard_check_weights(t.model, cases[c].dtype, &err), &err);
        must(sy_shard_check_weights(t.model, SY_Q8, &err), &err);
        shards_close(&t);
    }
}

static void another_form_than_the_stores_is_refused(void **state)
{
    test_shards t;
    sy_shard_builder *builder;
    sy_shard_form form;
    sy_error err = {0};

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        encoded_open(&t, &cases[c]);
        sy_shard_store *plain = store_open(&t, 0), *held = store_open_as(&t, held_as(&cases[c]), 0);
        sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, LAYER, EXPERT);
        expect_error(sy_shard_begin(&builder, held, LAYER, EXPERT, &form, &err), SY_EINVAL, &err,
                     "start both nodes with the same --weights");
        sy_shard_form_of(&form, t.model, cases[c].dtype, LAYER, EXPERT);
        expect_error(sy_shard_begin(&builder, plain, LAYER, EXPERT, &form, &err), SY_EINVAL, &err,
                     "start both nodes with the same --weights");
        sy_shard_store_close(plain);
        sy_shard_store_close(held);
        shards_close(&t);
    }
}

/* At the very end of the last row of a panel of down: its codes, then its factors. */
static void encoded_weights_that_are_no_numbers_are_refused_unless_allowed(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        size_t n;

        encoded_open(&t, &cases[c]);
        const sy_model_desc *d = sy_model_describe(t.model);
        uint8_t *bytes = encoded_bytes(&t, &cases[c], &n);
        const size_t row_bytes = sy_dtype_row_bytes(cases[c].dtype, d->expert_ffn);
        const size_t biases = cases[c].dtype == SY_FP8 ? 0 : 4 * (2 * d->expert_ffn + d->hidden);
        uint8_t *last = bytes + n - biases - (d->hidden - 16) * row_bytes - 1;

        *last = cases[c].dtype == SY_FP8 ? 0x7f : 0xff; /* infinite or NaN; NaN */
        if (cases[c].dtype == SY_FP8) last[-1] = 0x80;
        for (int allowed = 0; allowed < 2; allowed++) {
            sy_error err = {0};

            if (allowed) sy_model_allow_nan(t.model);
            sy_shard_store *store = store_open_as(&t, held_as(&cases[c]), 0);
            sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
            const sy_status st = sy_shard_add(builder, bytes, n, &err);
            if (allowed)
                must(st, &err);
            else
                expect_error(st, SY_EDATALOSS, &err,
                             "a weight of down is not a finite number, in rows 0 to 15");
            sy_shard_abandon(builder);
            sy_shard_store_close(store);
        }
        free(bytes);
        shards_close(&t);
    }
}

/* Last: SY_FAULT names a pass that the tests before do not reach. */
static void a_bit_that_flips_in_memory_is_noticed(void **state)
{
    test_shards t;
    sy_shard_identity identity = {1, 1};
    sy_error err = {0};
    int caught = 0;

    (void)state;
    encoded_open(&t, &cases[1]);
    sy_shard_store *store = store_open_as(&t, held_as(&cases[1]), 0);
    for (int pass = 0; pass < 300 && !caught; pass++) {
        sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
        int done;
        must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
        caught = sy_shard_verify(builder, &identity, sy_kernels_best(), &err) != SY_OK;
        sy_shard_abandon(builder);
    }
    expect_error(err.status, SY_EDATALOSS, &err, "memory is damaged");
    assert_int_equal(identity.content, 0);
    sy_shard_store_close(store);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoded_rows_lie_in_memory_as_they_are_at_any_pace),
        cmocka_unit_test(memory_is_what_the_file_takes),
        cmocka_unit_test(the_identity_is_the_same_in_every_store_and_with_all_kernels),
        cmocka_unit_test(a_shard_travels_from_store_to_store_unchanged),
        cmocka_unit_test(outputs_are_those_of_the_encoded_weights_with_all_kernels),
        cmocka_unit_test(a_checkpoint_that_has_nothing_so_encoded_is_refused_with_what_would_do),
        cmocka_unit_test(another_form_than_the_stores_is_refused),
        cmocka_unit_test(encoded_weights_that_are_no_numbers_are_refused_unless_allowed),
        cmocka_unit_test(a_bit_that_flips_in_memory_is_noticed),
    };

    setenv("SY_FAULT", "shard.memory:200", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
