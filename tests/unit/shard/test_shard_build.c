/* test_shard_build.c - shards built piece by piece, exported, and what they are known by. */
#include "shard_fixture.h"

#include <pthread.h>

#define SEED 20260611u

static const sy_dtype dtypes[] = {SY_BF16, SY_F16, SY_F32};

/* What lies packed is what a load in one step packs. */
static void expect_same_weights(const sy_shard *got, const sy_shard *want)
{
    assert_int_equal(got->bytes, want->bytes);
    assert_memory_equal(got->gate.data, want->gate.data,
                        sy_panels_bytes(want->gate.dtype, want->gate.n, want->gate.k));
    assert_memory_equal(got->up.data, want->up.data,
                        sy_panels_bytes(want->up.dtype, want->up.n, want->up.k));
    assert_memory_equal(got->down.data, want->down.data,
                        sy_panels_bytes(want->down.dtype, want->down.n, want->down.k));
}

static void pieces_of_any_size_make_the_shard_that_one_load_makes(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        test_shards t;
        sy_error err = {0};
        size_t n;

        shards_open(&t, dtypes[d], H, F);
        sy_shard_store *want_store = store_open(&t, 0);
        must(sy_shard_load(want_store, 1, 3, &err), &err);
        const sy_shard *want = sy_shard_get(want_store, 1, 3);
        uint8_t *bytes = stored_bytes(&t, 1, 3, &n);

        for (uint64_t round = 0; round < 24; round++) {
            sy_shard_store *store = store_open(&t, 0);
            sy_shard_builder *builder = build_begin(store, 1, 3);
            const size_t most = (size_t)1 << round % 12; /* single bytes up to whole matrices */

            for (size_t at = 0, i = 0; at < n; i++) {
                const size_t piece =
                    SY_MIN(n - at, (size_t)(sy_splitmix64(SEED + round * 100000 + i) % (most + 1)));
                must(sy_shard_add(builder, bytes + at, piece, &err), &err);
                at += piece;
                assert_int_equal(sy_shard_added(builder), at);
            }
            const sy_shard_identity identity = build_verify(builder, sy_kernels_best());
            assert_int_equal(identity.content, sy_digest(bytes, n));
            assert_int_equal(identity.content, want->identity.content);
            assert_int_equal(sy_shard_add(builder, bytes, 1, &err), SY_EPRECONDITION);
            sy_shard_publish(builder);
            const sy_shard *got = sy_shard_get(store, 1, 3);
            expect_same_weights(got, want);
            expect_same(got->identity, identity);
            sy_shard_put(store, got);
            sy_shard_store_close(store);
        }
        free(bytes);
        sy_shard_put(want_store, want);
        sy_shard_store_close(want_store);
        shards_close(&t);
    }
}

static void the_checkpoint_is_read_in_steps_of_any_size(void **state)
{
    static const size_t steps[] = {1, 7, 100, 1000, 4096, SIZE_MAX};
    test_shards t;
    sy_shard_identity first = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (size_t s = 0; s < SY_COUNT_OF(steps); s++) {
        sy_shard_store *store = store_open(&t, 0);
        sy_shard_builder *builder = build_begin(store, 0, 5);
        sy_error err = {0};
        sy_shard_identity identity;
        uint64_t before = 0;
        int done = 0;

        expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EPRECONDITION,
                     &err, "0 of 8640 bytes");
        while (!done) {
            must(sy_shard_add_from_checkpoint(builder, steps[s], &done, &err), &err);
            assert_true(sy_shard_added(builder) - before <= steps[s]);
            before = sy_shard_added(builder);
        }
        assert_int_equal(before, 3 * H * F * 2);
        identity = build_verify(builder, sy_kernels_best());
        if (s == 0) first = identity;
        expect_same(identity, first);
        sy_shard_publish(builder);
        sy_shard_store_close(store);
    }
    shards_close(&t);
}

static void every_instruction_set_gives_a_shard_the_same_identity(void **state)
{
    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        test_shards t;
        sy_shard_identity first = {0}, identified;
        sy_error err = {0};

        shards_open(&t, dtypes[d], d == 0 ? 516 : H, d == 0 ? 1100 : F); /* d 0: probed in part */
        for (size_t k = 0; k < sy_kernels_count(); k++) {
            must(sy_shard_identify(&identified, t.model, as_stored, 1, 2, sy_kernels_at(k), &err),
                 &err);
            assert_true(identified.probe != 0);
            if (k == 0) first = identified;
            expect_same(identified, first);
        }
        must(sy_shard_identify(&identified, t.model, as_stored, 1, 3, sy_kernels_best(), &err),
             &err);
        assert_true(identified.content != first.content && identified.probe != first.probe);
        shards_close(&t);
    }
}

static void a_shard_travels_from_store_to_store_unchanged(void **state)
{
    static const size_t chunks[] = {1, 3, 72, 1000, 4095, 1 << 20};
    test_shards t;
    sy_error err = {0};
    sy_shard_form form, own;
    size_t n;

    (void)state;
    for (size_t d = 0; d < SY_COUNT_OF(dtypes); d++) {
        shards_open(&t, dtypes[d], H, F);
        sy_shard_store *from = store_open(&t, 0);
        must(sy_shard_load(from, 1, 4, &err), &err);
        const sy_shard *shard = sy_shard_get(from, 1, 4);
        uint8_t *bytes = stored_bytes(&t, 1, 4, &n), *chunk = malloc(1 << 20);

        sy_shard_form_in_memory(&form, shard);
        sy_shard_form_of(&own, t.model, SY_DTYPE_NONE, 1, 4);
        assert_memory_equal(&form, &own, sizeof(form));
        assert_int_equal(sy_shard_form_bytes(&form), n);
        for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
            sy_shard_store *to = store_open(&t, 0);
            sy_shard_builder *builder;
            size_t got;

            must(sy_shard_begin(&builder, to, 1, 4, &form, &err), &err);
            while ((got = sy_shard_export(shard, sy_shard_added(builder), chunk, chunks[c])) > 0) {
                assert_int_equal(got, SY_MIN(chunks[c], n - sy_shard_added(builder)));
                assert_memory_equal(chunk, bytes + sy_shard_added(builder), got);
                must(sy_shard_add(builder, chunk, got, &err), &err);
            }
            assert_int_equal(build_verify(builder, sy_kernels_best()).content, sy_digest(bytes, n));
            sy_shard_publish(builder);
            sy_shard_store_close(to);
        }
        assert_int_equal(sy_shard_export(shard, n, chunk, 10), 0);
        assert_int_equal(sy_shard_export(shard, UINT64_MAX, chunk, 10), 0);
        assert_int_equal(sy_shard_export(shard, n - 1, chunk, 10), 1);
        free(bytes);
        free(chunk);
        sy_shard_put(from, shard);
        sy_shard_store_close(from);
        shards_close(&t);
    }
}

static void a_form_that_is_not_the_models_is_refused(void **state)
{
    test_shards t;
    sy_shard_form form;
    sy_shard_builder *builder;
    sy_error err = {0};
    static const uint8_t byte[1];

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, 0, 0);
    form.dtype[1] = SY_F16;
    expect_error(sy_shard_begin(&builder, store, 0, 0, &form, &err), SY_EINVAL, &err,
                 "up is f16 [40,36], but this model has bf16");
    assert_null(builder);
    sy_shard_form_of(&form, t.model, SY_DTYPE_NONE, 0, 0);
    form.rows[2]++;
    expect_error(sy_shard_begin(&builder, store, 0, 0, &form, &err), SY_EINVAL, &err, "down");
    assert_string_equal(err.reason, "SHARD_FORM");
    for (int i = 0; i < 3; i++) form.rows[i] = form.cols[i] = UINT32_MAX;
    assert_int_equal(sy_shard_form_bytes(&form), 0);
    assert_int_equal(sy_shard_begin(&builder, store, 0, 0, &form, &err), SY_EINVAL);
    assert_int_equal(sy_shard_begin(&builder, store, L, 0, NULL, &err), SY_ENOTFOUND);
    assert_int_equal(sy_shard_begin(&builder, store, 0, E, &form, &err), SY_ENOTFOUND);
    builder = build_begin(store, 0, 0);
    uint8_t *zeros = calloc(1, 3 * H * F * 2);
    build_add_all(builder, zeros, 3 * H * F * 2);
    expect_error(sy_shard_add(builder, byte, 1, &err), SY_EINVAL, &err, "pass its 8640");
    free(zeros);
    sy_shard_abandon(builder);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void builders_claim_memory_and_give_it_back(void **state)
{
    test_shards t;
    sy_shard_builder *first, *second;
    sy_error err = {0};
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *probe = store_open(&t, 0);
    must(sy_shard_load(probe, 0, 0, &err), &err);
    const uint64_t one = sy_shard_store_bytes(probe);
    sy_shard_store_close(probe);

    sy_shard_store *store = store_open(&t, 2 * one + 1);
    first = build_begin(store, 0, 0);
    assert_int_equal(sy_shard_begin(&second, store, 0, 0, NULL, &err), SY_EEXISTS);
    second = build_begin(store, 0, 1);
    assert_int_equal(sy_shard_store_bytes(store), 2 * one);
    assert_int_equal(sy_shard_store_count(store), 0);
    char text[96];
    snprintf(text, sizeof(text), "needs %llu bytes, has 1 of %llu", (unsigned long long)one,
             (unsigned long long)(2 * one + 1));
    sy_shard_builder *third = (sy_shard_builder *)&third;
    expect_error(sy_shard_begin(&third, store, 0, 2, NULL, &err), SY_ELIMIT, &err, text);
    assert_null(third);
    assert_string_equal(err.reason, "SHARD_MEMORY");
    assert_int_equal(err.expert, 2);
    assert_int_equal(sy_shard_load(store, 0, 2, &err), SY_ELIMIT);
    sy_shard_abandon(second);
    sy_shard_abandon(NULL);
    must(sy_shard_load(store, 0, 2, &err), &err);

    uint8_t *bytes = stored_bytes(&t, 0, 0, &n);
    build_add_all(first, bytes, n);
    assert_null(sy_shard_get(store, 0, 0)); /* not before it is published */
    (void)build_verify(first, sy_kernels_best());
    sy_shard_publish(first);
    assert_int_equal(sy_shard_begin(&first, store, 0, 0, NULL, &err), SY_EEXISTS);
    assert_int_equal(sy_shard_store_count(store), 2);
    assert_int_equal(sy_shard_unload(store, 0, 0), 1);
    assert_int_equal(sy_shard_unload(store, 0, 2), 1);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

typedef struct racer {
    sy_shard_store *store;
    pthread_barrier_t *start;
    int n_built;
    const char *wrong; /* what went wrong, or NULL */
} racer;

/* Builds what nobody else builds, loads the rest, and reads while others do. */
static const char *race_for(racer *r, uint32_t layer, uint32_t expert)
{
    sy_shard_builder *builder;
    sy_shard_identity identity;
    sy_error err = {0};
    int done = 0;
    sy_status st = sy_shard_begin(&builder, r->store, layer, expert, NULL, &err);

    if (st == SY_OK) {
        while (st == SY_OK && !done) st = sy_shard_add_from_checkpoint(builder, 500, &done, &err);
        if (st == SY_OK) st = sy_shard_verify(builder, &identity, sy_kernels_best(), &err);
        if (st != SY_OK) return "the builder failed";
        sy_shard_publish(builder);
        r->n_built++;
    } else if (st != SY_EEXISTS) {
        return "begin neither succeeded nor found it";
    }
    if (sy_shard_load(r->store, layer, expert, &err) != SY_OK) return "load failed";
    const sy_shard *shard = sy_shard_get(r->store, layer, expert);
    if (shard == NULL || shard->identity.probe == 0) return "it is not what was published";
    sy_shard_put(r->store, shard);
    return NULL;
}

static void *race(void *arg)
{
    racer *r = arg;

    pthread_barrier_wait(r->start);
    for (uint32_t i = 0; i < L * E && r->wrong == NULL; i++) r->wrong = race_for(r, i / E, i % E);
    return NULL;
}

static void one_of_several_threads_builds_and_the_others_find_it(void **state)
{
    enum { THREADS = 4 };
    test_shards t;
    racer racers[THREADS];
    pthread_t thread[THREADS];
    pthread_barrier_t start;
    int n_built = 0;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *store = store_open(&t, 0);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        racers[i] = (racer){.store = store, .start = &start};
        assert_int_equal(pthread_create(&thread[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        if (racers[i].wrong != NULL) fail_msg("%s", racers[i].wrong);
        n_built += racers[i].n_built;
    }
    assert_int_equal(n_built, L * E);
    assert_int_equal(sy_shard_store_count(store), L * E);
    pthread_barrier_destroy(&start);
    sy_shard_store_close(store);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_make_the_shard_that_one_load_makes),
        cmocka_unit_test(the_checkpoint_is_read_in_steps_of_any_size),
        cmocka_unit_test(every_instruction_set_gives_a_shard_the_same_identity),
        cmocka_unit_test(a_shard_travels_from_store_to_store_unchanged),
        cmocka_unit_test(a_form_that_is_not_the_models_is_refused),
        cmocka_unit_test(builders_claim_memory_and_give_it_back),
        cmocka_unit_test(one_of_several_threads_builds_and_the_others_find_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
