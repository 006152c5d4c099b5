/* test_shard_biases.c - experts whose matrices have biases, with clamps between them (gpt-oss):
 * from the file into memory, through the arithmetic, and from node to node. */
#include "family_fixture.h"

#include <math.h>

enum { LAYER = 1, EXPERT = 3, WIDE = 72, FFN = 140, T = 61 };

static const family_case biased = {"",
                                   "gpt_oss.json",
                                   {"\"hidden_size\": 64", "\"hidden_size\": 72",
                                    "\"intermediate_size\": 64", "\"intermediate_size\": 140"}};

/* Large enough that many of gate's and up's outputs pass the limit. */
static void make_rows(float x[T * WIDE])
{
    for (uint32_t i = 0; i < T * WIDE; i++) x[i] = (sy_unit_float(sy_splitmix64(i)) * 2 - 1) * 12;
}

static void widened(float *out, const test_shards *t, sy_role role)
{
    const sy_tensor *tensor = sy_model_tensor(t->model, role, LAYER, EXPERT);
    uint16_t raw[WIDE * FFN];

    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, SY_BF16);
    sy_tensor_read(raw, tensor, 0, tensor->shape[0]);
    sy_dtype_widen(out, raw, SY_BF16, tensor->n_elements);
}

/* w: [n, k] in doubles. */
static double product(const float *w, const double *x, uint32_t k, float bias)
{
    double sum = 0;

    for (uint32_t i = 0; i < k; i++) sum += (double)w[i] * x[i];
    return sum + (double)bias;
}

/* y: [T, WIDE]. Returns how many of the values between the matrices were clamped. */
static uint32_t reference(double *y, const test_shards *t, const float *x)
{
    static float gate[FFN * WIDE], up[FFN * WIDE], down[WIDE * FFN];
    float gate_bias[FFN], up_bias[FFN], down_bias[WIDE];
    const double limit = (double)sy_model_describe(t->model)->mlp_limit;
    uint32_t n_clamped = 0;

    widened(gate, t, SY_ROLE_EXPERT_GATE);
    widened(up, t, SY_ROLE_EXPERT_UP);
    widened(down, t, SY_ROLE_EXPERT_DOWN);
    widened(gate_bias, t, SY_ROLE_EXPERT_GATE_BIAS);
    widened(up_bias, t, SY_ROLE_EXPERT_UP_BIAS);
    widened(down_bias, t, SY_ROLE_EXPERT_DOWN_BIAS);
    for (uint32_t r = 0; r < T; r++) {
        double row[WIDE], h[FFN];
        for (uint32_t i = 0; i < WIDE; i++) row[i] = (double)x[r * WIDE + i];
        for (uint32_t f = 0; f < FFN; f++) {
            const double g = product(gate + f * WIDE, row, WIDE, gate_bias[f]);
            const double u = product(up + f * WIDE, row, WIDE, up_bias[f]);
            const double a = fmin(g, limit), b = fmax(fmin(u, limit), -limit);
            n_clamped += (g > limit) + (fabs(u) > limit);
            h[f] = (b + 1) * a / (1 + exp(-1.702 * a));
        }
        for (uint32_t i = 0; i < WIDE; i++)
            y[r * WIDE + i] = product(down + i * FFN, h, FFN, down_bias[i]);
    }
    return n_clamped;
}

/* On every instruction set, by one thread and three, in a crowd and alone: always the same bits,
 * which are left in y. */
static void compute_everywhere(float *y, const test_shards *t, sy_precision precision,
                               const float *x)
{
    sy_shard_store *store = store_open_as(t, precision, 0);
    sy_shard_scratch scratch = {0};
    sy_error err = {0};
    static float again[T * WIDE];

    must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
    sy_shard_group group = {sy_shard_get(store, LAYER, EXPERT), 0, T};
    for (size_t k = 0; k < 2 * sy_kernels_count(); k++) {
        const sy_kernels *kernels = sy_kernels_at(k / 2);
        sy_pool *pool = NULL;
        if (k % 2 == 1) must(sy_pool_open(&pool, 3, "test"), &err);
        float *out = k == 0 ? y : again;
        group.end = T;
        must(sy_shard_compute(out, x, WIDE, NULL, &group, 1, &scratch, pool, kernels), &err);
        assert_memory_equal(out, y, sizeof(again));
        group.end = 1;
        for (uint32_t r = 0; r < T; r += 13) {
            must(sy_shard_compute(again, x, WIDE, &r, &group, 1, &scratch, pool, kernels), &err);
            assert_memory_equal(again, y + r * WIDE, WIDE * sizeof(*y));
        }
        sy_pool_free(pool);
    }
    sy_shard_scratch_free(&scratch);
    sy_shard_put(store, group.shard);
    sy_shard_store_close(store);
}

static void biased_experts_compute_what_the_formula_says(void **state)
{
    static float x[T * WIDE], y[T * WIDE];
    static double want[T * WIDE];
    test_shards t;

    (void)state;
    family_open(&t, &biased);
    make_rows(x);
    assert_true(reference(want, &t, x) > T);
    compute_everywhere(y, &t, as_stored, x);
    for (uint32_t i = 0; i < T * WIDE; i++)
        if (!(fabs((double)y[i] - want[i]) <= 1e-4 + 1e-5 * fabs(want[i])))
            fail_msg("row %u column %u: %g, expected %g", i / WIDE, i % WIDE, (double)y[i],
                     want[i]);
    shards_close(&t);
}

/* Rounding moves outputs by a few per cent of their size, and a missing bias by more. */
static void biased_experts_compute_with_rounded_weights_and_activations(void **state)
{
    static const struct {
        sy_precision precision;
        double error_max;
    } cases[] = {{{SY_Q8, SY_ACT_F32}, 0.01},
                 {{SY_Q8, SY_ACT_Q8}, 0.02},
                 {{SY_Q4, SY_ACT_Q8}, 0.2},
                 {{SY_BF16, SY_ACT_BF16}, 0.01}};
    static float x[T * WIDE], y[T * WIDE];
    static double want[T * WIDE];
    test_shards t;

    (void)state;
    family_open(&t, &biased);
    make_rows(x);
    (void)reference(want, &t, x);
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        sy_shard_identity first = {0}, identity;
        sy_error err = {0};
        double error = 0, size = 0;

        compute_everywhere(y, &t, cases[c].precision, x);
        for (uint32_t i = 0; i < T * WIDE; i++) {
            error += ((double)y[i] - want[i]) * ((double)y[i] - want[i]);
            size += want[i] * want[i];
        }
        if (!(sqrt(error / size) <= cases[c].error_max))
            fail_msg("case %zu: an error of %g, expected at most %g", c, sqrt(error / size),
                     cases[c].error_max);
        /* The probe holds every product against the reference kernels. */
        for (size_t k = 0; k < sy_kernels_count(); k++) {
            must(sy_shard_identify(&identity, t.model, cases[c].precision, LAYER, EXPERT,
                                   sy_kernels_at(k), &err),
                 &err);
            if (k == 0) first = identity;
            expect_same(identity, first);
        }
    }
    shards_close(&t);
}

static void biases_travel_behind_the_matrices(void **state)
{
    static const size_t chunks[] = {1, 3, 1000, PLAIN_BYTES_MAX};
    static const sy_dtype weights[] = {SY_DTYPE_NONE, SY_Q8, SY_Q4};
    test_shards t;
    sy_error err = {0};

    (void)state;
    family_open(&t, &biased);
    for (size_t w = 0; w < SY_COUNT_OF(weights); w++) {
        const sy_precision precision = {.weights = weights[w]};
        sy_shard_store *from = store_open_as(&t, precision, 0);
        sy_shard_form form, own;
        uint8_t *chunk = malloc(PLAIN_BYTES_MAX);
        size_t got;

        assert_non_null(chunk);
        must(sy_shard_load(from, LAYER, EXPERT, &err), &err);
        const sy_shard *shard = sy_shard_get(from, LAYER, EXPERT);
        sy_shard_form_in_memory(&form, shard);
        sy_shard_form_of(&own, t.model, weights[w], LAYER, EXPERT);
        assert_memory_equal(&form, &own, sizeof(form));
        assert_int_equal(form.n, 6);
        assert_true(form.dtype[4] == SY_F32 && form.rows[4] == FFN && form.cols[4] == 1);
        assert_int_equal(form.rows[5], WIDE);
        assert_true(shard->bytes >= sy_shard_form_bytes(&form));
        assert_int_equal(sy_shard_store_bytes(from), shard->bytes);
        for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
            sy_shard_store *to = store_open_as(&t, precision, 0);
            sy_shard_builder *builder;
            must(sy_shard_begin(&builder, to, LAYER, EXPERT, &form, &err), &err);
            while ((got = sy_shard_export(shard, sy_shard_added(builder), chunk, chunks[c])) > 0)
                must(sy_shard_add(builder, chunk, got, &err), &err);
            assert_int_equal(sy_shard_added(builder), sy_shard_form_bytes(&form));
            assert_int_equal(build_verify(builder, sy_kernels_best()).content,
                             shard->identity.content);
            sy_shard_publish(builder);
            const sy_shard *copy = sy_shard_get(to, LAYER, EXPERT);
            assert_memory_equal(copy->gate_bias, shard->gate_bias, FFN * sizeof(float));
            assert_memory_equal(copy->up_bias, shard->up_bias, FFN * sizeof(float));
            assert_memory_equal(copy->down_bias, shard->down_bias, WIDE * sizeof(float));
            assert_true(copy->mlp == SY_MLP_CLAMPED && copy->mlp_limit == shard->mlp_limit);
            sy_shard_put(to, copy);
            sy_shard_store_close(to);
        }
        free(chunk);
        sy_shard_put(from, shard);
        sy_shard_store_close(from);
    }
    shards_close(&t);
}

static void biases_in_memory_are_those_of_the_file(void **state)
{
    float want[FFN]; /* the longest */
    test_shards t;
    sy_error err = {0};

    (void)state;
    family_open(&t, &biased);
    sy_shard_store *store = store_open(&t, 0);
    must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
    const sy_shard *shard = sy_shard_get(store, LAYER, EXPERT);
    widened(want, &t, SY_ROLE_EXPERT_GATE_BIAS);
    assert_memory_equal(shard->gate_bias, want, FFN * sizeof(float));
    widened(want, &t, SY_ROLE_EXPERT_UP_BIAS);
    assert_memory_equal(shard->up_bias, want, FFN * sizeof(float));
    widened(want, &t, SY_ROLE_EXPERT_DOWN_BIAS);
    assert_memory_equal(shard->down_bias, want, WIDE * sizeof(float));
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void one_flipped_bit_of_a_bias_is_another_identity(void **state)
{
    test_shards t;
    size_t n;

    (void)state;
    family_open(&t, &biased);
    sy_shard_store *store = store_open(&t, 0);
    uint8_t *bytes = plain_bytes(&t, LAYER, EXPERT, &n);
    sy_shard_identity first = {0};
    for (int round = 0; round < 4; round++) { /* as it is; then in each of the three biases */
        const size_t at[4] = {0, n - 4 * (WIDE + 2 * FFN) + 2, n - 4 * (WIDE + 1) + 2, n - 2};
        sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
        if (round > 0) bytes[at[round]] ^= 0x40; /* of the mantissa */
        build_add_all(builder, bytes, n);
        const sy_shard_identity identity = build_verify(builder, sy_kernels_best());
        if (round == 0) first = identity;
        if (round > 0)
            assert_true(identity.content != first.content && identity.probe != first.probe);
        if (round > 0) bytes[at[round]] ^= 0x40;
        sy_shard_abandon(builder);
    }
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void a_bias_that_is_not_a_number_is_refused(void **state)
{
    static const uint16_t infinity = 0x7f80;
    static const uint8_t nan_float[4] = {0, 0, 0xc0, 0x7f};
    test_shards t;
    sy_error err = {0};
    size_t n;

    (void)state;
    family_open(&t, &biased);
    sy_shard_store *store = store_open(&t, 0);
    uint8_t *bytes = plain_bytes(&t, LAYER, EXPERT, &n);
    sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
    memcpy(bytes + n - 4 * (WIDE + 1), nan_float, 4); /* the last of up's */
    expect_error(
        sy_shard_add(builder, bytes, n, &err), SY_EDATALOSS, &err,
        "layer 1 expert 3: a weight of up bias is not a finite number, in rows 128 to 139");
    assert_string_equal(err.reason, "SHARD_CORRUPT");
    sy_shard_abandon(builder);
    free(bytes);

    const sy_tensor *down = sy_model_tensor(t.model, SY_ROLE_EXPERT_DOWN_BIAS, LAYER, EXPERT);
    const sy_tensor plain = {.data = down->data, .bytes = WIDE * 2};
    overwrite(&t, &plain, 0, &infinity, 2);
    expect_error(sy_shard_load(store, LAYER, EXPERT, &err), SY_EDATALOSS, &err,
                 "a weight of down bias is not a finite number, in rows 0 to 15");
    assert_int_equal(sy_shard_store_bytes(store), 0);
    must(sy_shard_load(store, LAYER, EXPERT - 1, &err), &err);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void a_form_says_whether_there_are_biases(void **state)
{
    test_shards t, plain;
    sy_shard_form form;
    sy_shard_builder *builder;
    sy_error err = {0};

    (void)state;
    family_open(&t, &biased);
    shards_open(&plain, SY_BF16, H, F);
    sy_shard_store *store = store_open(&t, 0), *plain_store = store_open(&plain, 0);
    sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, LAYER, EXPERT);
    form.n = 3;
    expect_error(sy_shard_begin(&builder, store, LAYER, EXPERT, &form, &err), SY_EINVAL, &err,
                 "it comes without biases, but this model's experts have some");
    assert_string_equal(err.reason, "SHARD_FORM");
    assert_null(builder);
    form.n = 6;
    form.rows[4]++;
    expect_error(sy_shard_begin(&builder, store, LAYER, EXPERT, &form, &err), SY_EINVAL, &err,
                 "up bias is f32 [141,1], but this model has f32 [140,1]");
    sy_shard_form_of(&form, plain.model, SY_DTYPE_NONE, LAYER, EXPERT);
    assert_int_equal(form.n, 3);
    form.n = 6;
    expect_error(sy_shard_begin(&builder, plain_store, LAYER, EXPERT, &form, &err), SY_EINVAL, &err,
                 "it comes with biases, but this model's experts have none");
    assert_int_equal(sy_shard_store_bytes(store) + sy_shard_store_bytes(plain_store), 0);
    sy_shard_store_close(store);
    sy_shard_store_close(plain_store);
    shards_close(&t);
    shards_close(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biased_experts_compute_what_the_formula_says),
        cmocka_unit_test(biased_experts_compute_with_rounded_weights_and_activations),
        cmocka_unit_test(biases_travel_behind_the_matrices),
        cmocka_unit_test(biases_in_memory_are_those_of_the_file),
        cmocka_unit_test(one_flipped_bit_of_a_bias_is_another_identity),
        cmocka_unit_test(a_bias_that_is_not_a_number_is_refused),
        cmocka_unit_test(a_form_says_whether_there_are_biases),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
