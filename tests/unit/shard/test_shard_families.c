/* test_shard_families.c - shards of experts that lie in files in every way that families have: they
 * are the shards of the same weights stored plainly. */
#include "family_fixture.h"

#include <unistd.h>

/* Every dimension is no multiple of a panel where the encoding allows it. */
static const family_case cases[] = {
    {"halves of slabs",
     "granitemoe.json",
     {"\"hidden_size\": 64", "\"hidden_size\": 72", "\"intermediate_size\": 32",
      "\"intermediate_size\": 44"}},
    {"transposed halves of slabs",
     "llama4_text.json",
     {"\"intermediate_size\": 32", "\"intermediate_size\": 44"}},
    {"transposed, gate and up in turn",
     "gpt_oss.json",
     {"\"hidden_size\": 64", "\"hidden_size\": 72", "\"intermediate_size\": 64",
      "\"intermediate_size\": 44"}},
    {"rows of fp4, gate and up in turn",
     "gpt_oss.json",
     {"\"intermediate_size\": 64", "\"intermediate_size\": 96", PLAIN_END, FP4_END}},
    {"fp8 in blocks",
     "deepseek_v3.json",
     {"\"hidden_size\": 64", "\"hidden_size\": 148", "\"moe_intermediate_size\": 32",
      "\"moe_intermediate_size\": 132", PLAIN_END, FP8_END}},
};

enum { LAYER = 1, EXPERT = 2, T = 5 };

static void compute_as(float *y, const test_shards *t, sy_precision precision, const uint8_t *plain,
                       size_t n)
{
    const uint32_t hidden = sy_model_describe(t->model)->hidden;
    sy_shard_store *store = store_open_as(t, precision, 0);
    sy_shard_scratch scratch = {0};
    sy_error err = {0};
    float *x = malloc(T * hidden * sizeof(*x));

    assert_non_null(x);
    for (size_t i = 0; i < T * hidden; i++) x[i] = sy_unit_float(sy_splitmix64(i)) * 2 - 1;
    if (plain == NULL) {
        must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
    } else {
        sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
        build_add_all(builder, plain, n);
        (void)build_verify(builder, sy_kernels_best());
        sy_shard_publish(builder);
    }
    const sy_shard_group group = {sy_shard_get(store, LAYER, EXPERT), 0, T};
    must(sy_shard_compute(y, x, hidden, NULL, &group, 1, &scratch, NULL, sy_kernels_best()), &err);
    sy_shard_put(store, group.shard);
    sy_shard_scratch_free(&scratch);
    sy_shard_store_close(store);
    free(x);
}

static sy_shard_identity build_in_steps(const test_shards *t, size_t step, uint64_t want_bytes)
{
    sy_shard_store *store = store_open(t, 0);
    sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
    sy_error err = {0};
    uint64_t before = 0;
    int done = 0;

    while (!done) {
        must(sy_shard_add_from_checkpoint(builder, step, &done, &err), &err);
        assert_in_range(sy_shard_added(builder) - before, 1, step);
        before = sy_shard_added(builder);
    }
    assert_int_equal(before, want_bytes);
    const sy_shard_identity identity = build_verify(builder, sy_kernels_best());
    sy_shard_publish(builder);
    sy_shard_store_close(store);
    return identity;
}

static void experts_of_any_encoding_are_the_shards_of_their_plain_rows(void **state)
{
    static const size_t steps[] = {7, 250, 4096, SIZE_MAX};

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        sy_shard_form form;
        size_t n;

        print_message("%s\n", cases[c].name);
        family_open(&t, &cases[c]);
        const uint32_t hidden = sy_model_describe(t.model)->hidden;
        uint8_t *plain = plain_bytes(&t, LAYER, EXPERT, &n);
        float *got = malloc(T * hidden * sizeof(*got)), *want = malloc(T * hidden * sizeof(*want));

        sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, LAYER, EXPERT);
        assert_int_equal(sy_shard_form_bytes(&form), n);
        assert_int_equal(form.dtype[0], SY_BF16);
        sy_shard_store *store = store_open(&t, 0);
        sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
        build_add_all(builder, plain, n);
        const sy_shard_identity identity = build_verify(builder, sy_kernels_best());
        assert_int_equal(identity.content, sy_digest(plain, n));
        for (size_t s = 0; s < SY_COUNT_OF(steps); s++)
            expect_same(build_in_steps(&t, steps[s], n), identity);
        compute_as(got, &t, as_stored, NULL, 0);
        compute_as(want, &t, as_stored, plain, n);
        assert_memory_equal(got, want, T * hidden * sizeof(*got));

        sy_shard_abandon(builder);
        sy_shard_store_close(store);
        free(got);
        free(want);
        free(plain);
        shards_close(&t);
    }
}

/* Gate, up and down of plain rows, rounded; biases stay as they are. */
static uint8_t *rounded_bytes(const uint8_t *plain, const sy_shard_form *from,
                              const sy_shard_form *to, size_t *n)
{
    uint8_t *bytes = malloc(PLAIN_BYTES_MAX);

    assert_non_null(bytes);
    *n = 0;
    for (uint32_t i = 0; i < to->n; i++) {
        const size_t plain_n = from->rows[i] * sy_dtype_row_bytes(from->dtype[i], from->cols[i]);
        const size_t part_n = to->rows[i] * sy_dtype_row_bytes(to->dtype[i], to->cols[i]);
        if (to->dtype[i] == from->dtype[i])
            memcpy(bytes + *n, plain, plain_n);
        else
            assert_int_equal(sy_quantize_rows(bytes + *n, to->dtype[i], plain, from->dtype[i],
                                              to->rows[i], to->cols[i]),
                             SY_OK);
        plain += plain_n;
        *n += part_n;
    }
    return bytes;
}

static void any_encoding_is_rounded_as_its_plain_rows_are(void **state)
{
    static const sy_precision precisions[] = {{SY_Q8, SY_ACT_F32}, {SY_Q4, SY_ACT_Q8}};

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        size_t n, n_rounded;

        family_open(&t, &cases[c]);
        uint8_t *plain = plain_bytes(&t, LAYER, EXPERT, &n);
        for (size_t p = 0; p < SY_COUNT_OF(precisions); p++) {
            sy_shard_form from, to;
            sy_shard_identity got;
            sy_error err = {0};

            sy_shard_form_of(&from, t.model, SY_DTYPE_NONE, LAYER, EXPERT);
            sy_shard_form_of(&to, t.model, precisions[p].weights, LAYER, EXPERT);
            uint8_t *rounded = rounded_bytes(plain, &from, &to, &n_rounded);
            assert_int_equal(sy_shard_form_bytes(&to), n_rounded);
            must(sy_shard_identify(&got, t.model, precisions[p], LAYER, EXPERT, sy_kernels_best(),
                                   &err),
                 &err);
            assert_int_equal(got.content, sy_digest(rounded, n_rounded));
            sy_shard_store *store = store_open_as(&t, precisions[p], 0);
            sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
            build_add_all(builder, rounded, n_rounded);
            expect_same(build_verify(builder, sy_kernels_best()), got);
            sy_shard_abandon(builder);
            sy_shard_store_close(store);
            free(rounded);
        }
        free(plain);
        shards_close(&t);
    }
}

static void a_file_cut_while_it_is_decoded_is_data_loss(void **state)
{
    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        test_shards t;
        char path[64];
        sy_error err = {0};
        int done;

        family_open(&t, &cases[c]);
        sy_shard_store *store = store_open(&t, 0);
        sy_shard_builder *builder = build_begin(store, LAYER, EXPERT);
        must(sy_shard_add_from_checkpoint(builder, 1000, &done, &err), &err);
        snprintf(path, sizeof(path), "%s/model.safetensors", t.dir);
        assert_int_equal(truncate(path, 4096), 0);
        expect_error(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), SY_EDATALOSS,
                     &err, "became shorter");
        assert_string_equal(err.reason, "SHARD_CORRUPT");
        assert_false(done);
        assert_int_equal(sy_shard_add_from_checkpoint(builder, 1, &done, &err), SY_EPRECONDITION);
        sy_shard_abandon(builder);
        assert_int_equal(sy_shard_load(store, LAYER, EXPERT, &err), SY_EDATALOSS);
        assert_int_equal(sy_shard_store_bytes(store), 0);
        sy_shard_store_close(store);
        shards_close(&t);
    }
}

static void a_layer_without_experts_has_no_shards(void **state)
{
    test_shards t;
    sy_shard_form form, like;
    sy_shard_identity identity = {1, 1};
    sy_shard_builder *builder;
    sy_error err = {0};

    (void)state;
    family_open(&t, &cases[4]); /* its first layer is dense */
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, 0, 0);
    assert_int_equal(form.n, 0);
    assert_int_equal(sy_shard_form_bytes(&form), 0);
    sy_shard_form_of(&form, t.model, SY_Q4, UINT32_MAX, UINT32_MAX);
    assert_int_equal(form.n, 0);
    sy_shard_form_of(&like, t.model, SY_DTYPE_NONE, 1, 0);
    expect_error(sy_shard_load(store, 0, 0, &err), SY_ENOTFOUND, &err, "no layer 0 expert 0");
    assert_int_equal(sy_shard_begin(&builder, store, 0, 0, NULL, &err), SY_ENOTFOUND);
    assert_int_equal(sy_shard_begin(&builder, store, 0, 0, &like, &err), SY_ENOTFOUND);
    assert_null(builder);
    assert_null(sy_shard_get(store, 0, 0));
    assert_int_equal(sy_shard_unload(store, 0, 0), 0);
    assert_int_equal(
        sy_shard_identify(&identity, t.model, as_stored, 0, 0, sy_kernels_best(), &err),
        SY_ENOTFOUND);
    assert_int_equal(identity.content, 0);
    must(sy_shard_load(store, 1, 0, &err), &err);
    assert_int_equal(sy_shard_store_count(store), 1);
    sy_shard_store_close(store);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_any_encoding_are_the_shards_of_their_plain_rows),
        cmocka_unit_test(any_encoding_is_rounded_as_its_plain_rows_are),
        cmocka_unit_test(a_file_cut_while_it_is_decoded_is_data_loss),
        cmocka_unit_test(a_layer_without_experts_has_no_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
