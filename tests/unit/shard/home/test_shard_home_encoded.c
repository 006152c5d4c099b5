/* test_shard_home_encoded.c - experts on GPUs as checkpoints have them encoded, fp8 and mxfp4: the
 * bytes of the file, wherever they travel; what they compute; and what is noticed when one is
 * wrong. */
#include "home_fixture.h"

#include <math.h>

#include "../encoded_fixture.h"
#include "gguf_family.h"

enum { TOKENS = 7, DIM_MAX = 192 };

static sy_shard_store *encoded_store(const test_shards *t, const encoded_case *c)
{
    return store_open_as(t, (sy_precision){.weights = c->dtype}, 0);
}

static void expect_reason(const sy_error *err, const char *reason)
{
    if (strcmp(err->reason, reason) != 0)
        fail_msg("reason %s, not %s: %s", err->reason, reason, err->message);
}

/* ---- bytes ---- */

static void an_encoded_shard_has_the_bytes_of_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const encoded_case *c = &cases[i];
        test_shards t;
        size_t n;

        family_open(&t, &c->family);
        sy_shard_home *home = home_open_as(&t, 0, c->dtype);
        sy_shard_home *plain_home = home_open_as(&t, 1, SY_DTYPE_NONE);
        sy_shard_store *store = encoded_store(&t, c), *plain = store_open(&t, 0);
        const sy_shard *shard = load_on(store, home, LAYER, EXPERT);
        const sy_shard *wide = load_on(plain, plain_home, LAYER, EXPERT);
        uint8_t *want = encoded_bytes(&t, c, &n), *got = malloc(n + 1);
        size_t at = 0, step;

        assert_int_equal(shard->up.dtype, c->dtype);
        for (uint64_t k = 0; at < n; k++, at += step) {
            step = SY_MIN(n - at, (size_t)(1 + sy_splitmix64(k) % 9000));
            assert_int_equal(sy_shard_export(shard, at, got + at, step), step);
        }
        assert_int_equal(sy_shard_export(shard, n, got, 1), 0);
        assert_memory_equal(got, want, n);
        assert_int_equal(shard->identity.content, sy_digest(want, n));
        assert_true(shard->identity.probe != 0 && shard->identity.probe != wide->identity.probe);
        assert_true(2 * slot_bytes(home) < 3 * slot_bytes(plain_home)); /* padding, too */
        free(want);
        free(got);
        sy_shard_put(store, shard);
        sy_shard_put(plain, wide);
        sy_shard_store_close(store);
        sy_shard_store_close(plain);
        sy_shard_home_close(home);
        sy_shard_home_close(plain_home);
        shards_close(&t);
    }
}

static void encoded_shards_travel_between_nodes_of_any_kind(void **state)
{
    static const size_t chunks[] = {77, 4096, 1 << 20};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const encoded_case *c = &cases[i];
        test_shards t;

        family_open(&t, &c->family);
        sy_shard_home *home[] = {NULL, home_open_as(&t, 0, c->dtype),
                                 home_open_as(&t, 1, c->dtype)};
        for (size_t from = 0; from < SY_COUNT_OF(home); from++) {
            sy_shard_store *sender = encoded_store(&t, c);
            const sy_shard *source = load_on(sender, home[from], LAYER, EXPERT);
            for (size_t to = 0; to < SY_COUNT_OF(home); to++) {
                sy_shard_store *store = encoded_store(&t, c);
                fetch(store, home[to], source, chunks[(from + to) % SY_COUNT_OF(chunks)]);
                const sy_shard *got = sy_shard_get(store, LAYER, EXPERT);
                assert_ptr_equal(got->home, home[to]);
                expect_same_bytes(got, source);
                if ((home[from] == NULL) == (home[to] == NULL))
                    expect_same(got->identity, source->identity);
                sy_shard_put(store, got);
                sy_shard_store_close(store);
            }
            sy_shard_put(sender, source);
            sy_shard_store_close(sender);
        }
        sy_shard_home_close(home[1]);
        sy_shard_home_close(home[2]);
        shards_close(&t);
    }
}

/* Slot by slot between the devices, as rows from and to the host. */
static void encoded_shards_move_within_a_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const encoded_case *c = &cases[i];
        test_shards t;
        sy_error err = {0};

        family_open(&t, &c->family);
        sy_shard_home *a = home_open_as(&t, 0, c->dtype), *b = home_open_as(&t, 1, c->dtype);
        sy_shard_home *way[] = {a, b, NULL, b, a};
        sy_shard_store *store = encoded_store(&t, c);
        const sy_shard *first = load_on(store, NULL, LAYER, EXPERT);
        uint64_t probe = 0;

        for (size_t w = 0; w < SY_COUNT_OF(way); w++) {
            must(copy_to(store, way[w], LAYER, EXPERT, 5000, &err), &err);
            const sy_shard *got = sy_shard_get(store, LAYER, EXPERT);
            expect_same_bytes(got, first);
            if (way[w] != NULL && probe == 0) probe = got->identity.probe;
            assert_int_equal(got->identity.probe, way[w] != NULL ? probe : first->identity.probe);
            sy_shard_put(store, got);
        }
        sy_shard_put(store, first);
        sy_shard_store_close(store);
        sy_shard_home_close(a);
        sy_shard_home_close(b);
        shards_close(&t);
    }
}

/* ---- outputs ---- */

static double weight_of(const uint8_t *row, sy_dtype dtype, uint32_t k, uint32_t i)
{
    const size_t n_blocks = (k + 31) / 32;
    float factor;

    if (dtype == SY_MXFP4)
        return ldexp((double)sy_fp4_to_f32(row[i / 2] >> i % 2 * 4 & 15),
                     row[n_blocks * 16 + i / 32] - 127);
    memcpy(&factor, row + k + i / 128 * sizeof(factor), sizeof(factor));
    return (double)factor * (double)sy_f8_e4m3_to_f32(row[i]);
}

/* [n,k] of rows, times x, plus bias. Returns what follows the rows. */
static const uint8_t *exact_product(double *y, const uint8_t *rows, sy_dtype dtype, uint32_t n,
                                    uint32_t k, const double *x, const float *bias)
{
    const size_t row_bytes = sy_dtype_row_bytes(dtype, k);

    for (uint32_t r = 0; r < n; r++, rows += row_bytes) {
        y[r] = bias == NULL ? 0 : (double)bias[r];
        for (uint32_t i = 0; i < k; i++) y[r] += weight_of(rows, dtype, k, i) * x[i];
    }
    return rows;
}

static double input(uint32_t token, uint32_t i)
{
    const float x = 2 * sy_unit_float(sy_splitmix64(token * 1000 + i)) - 1;

    return (double)sy_bf16_to_f32(sy_f32_to_bf16(x));
}

/* What the file's numbers give a token; h is not rounded. */
static void exact_output(double *y, const uint8_t *bytes, size_t n, const sy_shard *shard,
                         uint32_t token)
{
    const uint32_t hidden = shard->down.n, ffn = shard->gate.n;
    const int has_bias = shard->mlp == SY_MLP_CLAMPED; /* of the families here */
    const double limit = (double)shard->mlp_limit;
    double x[DIM_MAX], g[DIM_MAX], u[DIM_MAX];
    float bias[3 * DIM_MAX];

    assert_true(hidden <= DIM_MAX && ffn <= DIM_MAX);
    if (has_bias)
        memcpy(bias, bytes + n - (2 * ffn + hidden) * sizeof(float),
               (2 * ffn + hidden) * sizeof(float));
    for (uint32_t i = 0; i < hidden; i++) x[i] = input(token, i);
    bytes = exact_product(g, bytes, shard->gate.dtype, ffn, hidden, x, has_bias ? bias : NULL);
    bytes = exact_product(u, bytes, shard->up.dtype, ffn, hidden, x, has_bias ? bias + ffn : NULL);
    for (uint32_t i = 0; i < ffn; i++) {
        if (has_bias) {
            g[i] = fmin(g[i], limit);
            g[i] = g[i] / (1 + exp(-1.702 * g[i])) * (1 + fmax(fmin(u[i], limit), -limit));
        } else {
            g[i] = g[i] / (1 + exp(-g[i])) * u[i];
        }
    }
    (void)exact_product(y, bytes, shard->down.dtype, hidden, ffn, g,
                        has_bias ? bias + 2 * (size_t)ffn : NULL);
}

static void run(sy_shard_home *home, const sy_shard *shard)
{
    const sy_shard_lane lane = sy_shard_home_lane(home, 0);
    const sy_shard_group group = {shard, 0, TOKENS};
    sy_error err = {0};
    float device_us;
    int done = 0;

    for (uint32_t t = 0; t < TOKENS; t++) {
        lane.x_row[t] = t;
        for (uint32_t i = 0; i < shard->gate.k; i++)
            lane.x[t * lane.x_stride + i] = sy_f32_to_bf16((float)input(t, i));
    }
    must(sy_shard_home_submit(home, 0, TOKENS, TOKENS, &group, 1, &err), &err);
    while (!done) must(sy_shard_home_wait(&done, &device_us, home, 0, 1000, &err), &err);
}

static void outputs_are_those_of_the_numbers_in_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const encoded_case *c = &cases[i];
        test_shards t;
        size_t n;

        family_open(&t, &c->family);
        sy_shard_home *home = home_open_as(&t, 0, c->dtype);
        sy_shard_store *store = encoded_store(&t, c);
        const sy_shard *shard = load_on(store, home, LAYER, EXPERT);
        uint8_t *bytes = encoded_bytes(&t, c, &n);
        const uint32_t hidden = shard->down.n;
        double want[DIM_MAX], wrong = 0, right = 0;

        run(home, shard);
        for (uint32_t token = 0; token < TOKENS; token++) {
            const float *y = sy_shard_home_lane(home, 0).y + (size_t)token * hidden;
            exact_output(want, bytes, n, shard, token);
            for (uint32_t k = 0; k < hidden; k++) {
                wrong += ((double)y[k] - want[k]) * ((double)y[k] - want[k]);
                right += want[k] * want[k];
            }
        }
        if (!(sqrt(wrong) <= 5e-3 * sqrt(right)))
            fail_msg("%s: %.3g of the reference away", c->family.name, sqrt(wrong / right));
        free(bytes);
        sy_shard_put(store, shard);
        sy_shard_store_close(store);
        sy_shard_home_close(home);
        shards_close(&t);
    }
}

/* ---- faults ---- */

static sy_backend broken;

enum { INPUTS_OF_DOWN = 132, ROW_BYTES_OF_DOWN = INPUTS_OF_DOWN + 8 };

static void scale_factor(uint8_t *row, uint32_t k, float by)
{
    float factor;

    memcpy(&factor, row + k, sizeof(factor));
    factor *= by;
    memcpy(row + k, &factor, sizeof(factor));
}

/* What a device that takes the wrong factors gives, although all of its memory is right: rows of
 * down from 128 on are written, and read, with a first factor that is twice what it should be. */
static int broken_write(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                        uint32_t n_rows, const void *rows, char *why)
{
    uint8_t damaged[16 * ROW_BYTES_OF_DOWN];

    if (part != SY_BACKEND_DOWN || row < 128)
        return backend->slot_write(pool, slot, part, row, n_rows, rows, why);
    assert_true(n_rows <= 16);
    memcpy(damaged, rows, n_rows * (size_t)ROW_BYTES_OF_DOWN);
    for (uint32_t r = 0; r < n_rows; r++)
        scale_factor(damaged + r * (size_t)ROW_BYTES_OF_DOWN, INPUTS_OF_DOWN, 2);
    return backend->slot_write(pool, slot, part, row, n_rows, damaged, why);
}

static int broken_read(void *rows, sy_backend_pool *pool, uint32_t slot, uint32_t part,
                       uint32_t row, uint32_t n_rows, char *why)
{
    const int result = backend->slot_read(rows, pool, slot, part, row, n_rows, why);

    for (uint32_t r = 0; part == SY_BACKEND_DOWN && result == SY_BACKEND_OK && r < n_rows; r++)
        if (row + r >= 128)
            scale_factor((uint8_t *)rows + r * (size_t)ROW_BYTES_OF_DOWN, INPUTS_OF_DOWN, 0.5f);
    return result;
}

static void a_device_that_takes_the_factors_of_another_block_is_found_out(void **state)
{
    const encoded_case *c = &cases[0];
    test_shards t;
    sy_shard_home *home;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    family_open(&t, &c->family);
    sy_shard_home_config config = home_config(&t, 0, c->dtype);
    broken = *backend;
    broken.slot_write = broken_write;
    broken.slot_read = broken_read;
    config.backend = &broken;
    must(sy_shard_home_open(&home, &config, &err), &err);
    expect_error(sy_shard_home_self_test(home, &err), SY_EDATALOSS, &err,
                 "a wrong output (token, element) (0, 128)");
    expect_reason(&err, "DEVICE_SELF_TEST");
    sy_shard_store *store = encoded_store(&t, c);
    sy_shard_builder *builder = begin_on(store, home, LAYER, EXPERT);
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
    expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EDATALOSS, &err,
                 "of the reference's length away");
    expect_reason(&err, "SHARD_PROBE");
    sy_shard_abandon(builder);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_good_device_passes_its_self_test_with_encoded_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        test_shards t;
        sy_error err = {0};

        family_open(&t, &cases[i].family);
        sy_shard_home *home = home_open_as(&t, 0, cases[i].dtype);
        must(sy_shard_home_self_test(home, &err), &err);
        expect_slots(home, 0);
        sy_shard_home_close(home);
        shards_close(&t);
    }
}

static void a_bit_of_encoded_weights_that_flips_later_is_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const encoded_case *c = &cases[i];
        test_shards t;
        sy_error err = {0};
        size_t n, n_differ = 0;

        family_open(&t, &c->family);
        sy_shard_home *home = home_open_as(&t, 0, c->dtype);
        sy_shard_store *store = encoded_store(&t, c);
        const sy_shard *shard = load_on(store, home, LAYER, EXPERT);
        uint8_t *before = exported(shard, SIZE_MAX, &n), *after;

        must(sy_shard_home_reprobe(shard, &err), &err);
        sy_shard_flip_bit(shard);
        after = exported(shard, SIZE_MAX, &n);
        for (size_t k = 0; k < n; k++) n_differ += before[k] != after[k];
        assert_int_equal(n_differ, 1);
        expect_error(sy_shard_home_reprobe(shard, &err), SY_EDATALOSS, &err, "layer 1 expert 2");
        expect_reason(&err, "DEVICE_PROBE");
        sy_shard_flip_bit(shard);
        must(sy_shard_home_reprobe(shard, &err), &err);
        free(before);
        free(after);
        sy_shard_put(store, shard);
        sy_shard_store_close(store);
        sy_shard_home_close(home);
        shards_close(&t);
    }
}

/* As a view would have them whose blocks of 128 rows do not begin with it. */
static void rows_that_share_no_factors_are_refused_with_what_would_do(void **state)
{
    const encoded_case *c = &cases[0];
    test_shards t;
    sy_error err = {0};
    size_t n;

    (void)state;
    family_open(&t, &c->family);
    sy_shard_home *home = home_open_as(&t, 0, c->dtype);
    sy_shard_store *store = encoded_store(&t, c);
    uint8_t *bytes = encoded_bytes(&t, c, &n);
    const size_t row_bytes = sy_dtype_row_bytes(SY_FP8, 148);
    sy_shard_builder *builder = begin_on(store, home, LAYER, EXPERT);

    scale_factor(bytes + 68 * row_bytes, 148, 2);
    must(sy_shard_add(builder, bytes, 64 * row_bytes, &err), &err);
    expect_error(sy_shard_add(builder, bytes + 64 * row_bytes, n - 64 * row_bytes, &err),
                 SY_EUNIMPLEMENTED, &err, "row 68 of part 0 has other factors than row 0");
    expect_reason(&err, "DEVICE_WEIGHTS");
    assert_non_null(strstr(err.message, "--weights as-stored would do"));
    sy_shard_abandon(builder);
    expect_slots(home, 0);

    scale_factor(bytes + 68 * row_bytes, 148, 0.5f);
    builder = begin_on(store, home, LAYER, EXPERT);
    build_add_all(builder, bytes, n);
    assert_int_equal(build_verify(builder, sy_kernels_best()).content, sy_digest(bytes, n));
    sy_shard_abandon(builder);
    free(bytes);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

/* Mixtral's experts as mxfp4 in a GGUF file, but for down of the last layer. */
static void mixed_open(test_shards *t, uint32_t down_type)
{
    static const uint64_t up_shape[] = {8, 96, 64}, down_shape[] = {8, 64, 96};
    char path[64], name[64];
    made_gguf m;
    sy_error err = {0};

    strcpy(t->dir, "/tmp/sy-shard-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    snprintf(path, sizeof(path), "%s/checkpoint", t->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    write_family(path, "mixtral", SY_F32);
    make_family_gguf(&m, "mixtral", path);
    for (uint32_t layer = 0; layer < 3; layer++) {
        snprintf(name, sizeof(name), "blk.%u.ffn_gate_exps.weight", layer);
        made_replace(&m, name, SY_GGUF_MXFP4, 3, up_shape);
        snprintf(name, sizeof(name), "blk.%u.ffn_up_exps.weight", layer);
        made_replace(&m, name, SY_GGUF_MXFP4, 3, up_shape);
        snprintf(name, sizeof(name), "blk.%u.ffn_down_exps.weight", layer);
        made_replace(&m, name, layer == 2 ? down_type : SY_GGUF_MXFP4, 3, down_shape);
    }
    snprintf(path, sizeof(path), "%s/model.gguf", t->dir);
    write_made(&m, path);
    made_free(&m);
    must(sy_model_open(&t->model, path, NULL, &err), &err);
}

static void weights_of_several_types_are_refused_with_what_would_do(void **state)
{
    static const struct {
        uint32_t down_type;
        const char *text;
    } mixed[] = {
        {SY_GGUF_BF16, "held as bf16, mxfp4, and the kernels of cuda:0"},
        {SY_GGUF_BF16, ": use --weights as-stored, q8 or q4, or cpu:N"},
        {SY_GGUF_F16, "mxfp4: use --weights q8 or q4, or cpu:N"},
        {SY_GGUF_Q8_0, "mxfp4: use cpu:N"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(mixed); i++) {
        test_shards t;
        sy_shard_home *home;
        sy_error err = {0};

        mixed_open(&t, mixed[i].down_type);
        const sy_shard_home_config config = home_config(&t, 0, SY_MXFP4);
        expect_error(sy_shard_home_open(&home, &config, &err), SY_EUNIMPLEMENTED, &err,
                     mixed[i].text);
        expect_reason(&err, "DEVICE_WEIGHTS");
        assert_null(home);
        shards_close(&t);
    }
}

/* Blocks of GGUF's, all of them zero: under the least factor there is. */
static void experts_of_zeros_are_served(void **state)
{
    test_shards t;

    (void)state;
    mixed_open(&t, SY_GGUF_MXFP4);
    sy_shard_home *home = home_open_as(&t, 0, SY_MXFP4);
    sy_shard_store *store = store_open_as(&t, (sy_precision){.weights = SY_MXFP4}, 0);
    const sy_shard *shard = load_on(store, home, LAYER, EXPERT);

    run(home, shard);
    for (size_t i = 0; i < TOKENS * (size_t)shard->down.n; i++)
        assert_true(sy_shard_home_lane(home, 0).y[i] == 0);
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_encoded_shard_has_the_bytes_of_the_file),
        cmocka_unit_test(encoded_shards_travel_between_nodes_of_any_kind),
        cmocka_unit_test(encoded_shards_move_within_a_process),
        cmocka_unit_test(outputs_are_those_of_the_numbers_in_the_file),
        cmocka_unit_test(a_device_that_takes_the_factors_of_another_block_is_found_out),
        cmocka_unit_test(a_good_device_passes_its_self_test_with_encoded_weights),
        cmocka_unit_test(a_bit_of_encoded_weights_that_flips_later_is_found),
        cmocka_unit_test(weights_of_several_types_are_refused_with_what_would_do),
        cmocka_unit_test(experts_of_zeros_are_served),
        cmocka_unit_test(rows_that_share_no_factors_are_refused_with_what_would_do),
    };
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
