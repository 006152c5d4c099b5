/* test_shard_home.c - shards on GPUs: the same bytes as in host memory, from wherever they come,
 * and moves between places under readers. */
#include "home_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

static const sy_dtype held_as[] = {SY_DTYPE_NONE, SY_Q8, SY_Q4};

static sy_precision precision_of(sy_dtype weights)
{
    return (sy_precision){.weights = weights};
}

static void a_shard_on_a_gpu_is_the_one_in_host_memory(void **state)
{
    static const family_case families[] = {{"swiglu", NULL, {NULL}},
                                           {"biases and clamps", "gpt_oss.json", {NULL}}};

    (void)state;
    for (size_t f = 0; f < SY_COUNT_OF(families); f++) {
        test_shards t;

        if (families[f].config == NULL)
            shards_open(&t, SY_BF16, H, F);
        else
            family_open(&t, &families[f]);
        for (size_t i = 0; i < SY_COUNT_OF(held_as); i++) {
            sy_shard_home *home = home_open_as(&t, 0, held_as[i]);
            sy_shard_store *store = store_open_as(&t, precision_of(held_as[i]), 0);
            sy_shard_store *host = store_open_as(&t, precision_of(held_as[i]), 0);
            const sy_shard *want = load_on(host, NULL, 0, 3);
            const sy_shard *got = load_on(store, home, 0, 3);
            sy_shard_form form, form_want;

            assert_ptr_equal(got->home, home);
            expect_same_bytes(got, want);
            assert_true(got->identity.probe != 0 && got->home_hash != 0);
            assert_true(got->identity.probe != want->identity.probe);
            sy_shard_form_in_memory(&form, got);
            sy_shard_form_in_memory(&form_want, want);
            assert_memory_equal(&form, &form_want, sizeof(form));
            assert_int_equal(sy_shard_store_bytes(store), 0);
            assert_int_equal(sy_shard_store_count(store), 1);
            assert_int_equal(got->bytes, slot_bytes(home));
            expect_slots(home, 1);
            sy_shard_put(store, got);
            sy_shard_put(host, want);
            sy_shard_store_close(store);
            sy_shard_store_close(host);
            expect_slots(home, 0);
            sy_shard_home_close(home);
        }
        shards_close(&t);
    }
}

/* Of its outputs some are compared; of its bytes, all. */
static void a_large_shard_is_probed_in_part(void **state)
{
    test_shards t;
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, 516, 1100);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *shard = load_on(store, home, 1, 2);
    uint8_t *want = stored_bytes(&t, 1, 2, &n);

    assert_int_equal(shard->identity.content, sy_digest(want, n));
    assert_true(shard->identity.probe != 0);
    free(want);
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void any_part_of_a_shard_can_be_read_back(void **state)
{
    test_shards t;
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *shard = load_on(store, home, 1, 2);
    uint8_t *want = stored_bytes(&t, 1, 2, &n), *got = malloc(n);

    for (uint64_t i = 0; i < 200; i++) {
        const size_t offset = sy_splitmix64(2 * i) % n, most = 1 + sy_splitmix64(2 * i + 1) % n;
        const size_t expected = SY_MIN(most, n - offset);
        memset(got, 0xa5, n);
        assert_int_equal(sy_shard_export(shard, offset, got, SY_MIN(most, n)), expected);
        assert_memory_equal(got, want + offset, expected);
        for (size_t k = expected; k < n; k++) assert_int_equal(got[k], 0xa5);
    }
    assert_int_equal(sy_shard_export(shard, n, got, 1), 0);
    assert_int_equal(sy_shard_export(shard, UINT64_MAX, got, 1), 0);
    free(want);
    free(got);
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_shard_travels_between_nodes_of_any_kind(void **state)
{
    static const size_t chunks[] = {77, 4096, 1 << 20};
    test_shards t;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (size_t i = 0; i < SY_COUNT_OF(held_as); i++) {
        sy_shard_home *home[] = {NULL, home_open_as(&t, 0, held_as[i]),
                                 home_open_as(&t, 1, held_as[i])};
        sy_shard_store *origin = store_open_as(&t, precision_of(held_as[i]), 0);
        const sy_shard *want = load_on(origin, NULL, 1, 1);

        for (size_t from = 0; from < SY_COUNT_OF(home); from++) {
            sy_shard_store *sender = store_open_as(&t, precision_of(held_as[i]), 0);
            const sy_shard *source = load_on(sender, home[from], 1, 1);
            for (size_t to = 0; to < SY_COUNT_OF(home); to++) {
                sy_shard_store *store = store_open_as(&t, precision_of(held_as[i]), 0);
                fetch(store, home[to], source, chunks[(from + to) % SY_COUNT_OF(chunks)]);
                const sy_shard *got = sy_shard_get(store, 1, 1);
                assert_ptr_equal(got->home, home[to]);
                expect_same_bytes(got, want);
                if ((home[from] == NULL) == (home[to] == NULL))
                    expect_same(got->identity, source->identity);
                sy_shard_put(store, got);
                sy_shard_store_close(store);
            }
            sy_shard_put(sender, source);
            sy_shard_store_close(sender);
        }
        sy_shard_put(origin, want);
        sy_shard_store_close(origin);
        sy_shard_home_close(home[1]);
        sy_shard_home_close(home[2]);
    }
    shards_close(&t);
}

/* ---- moves ---- */

/* Around, with the first copy held all the time. */
static void move_around(const test_shards *t, sy_dtype weights, size_t first_step)
{
    static const size_t steps[] = {64, 1000, 1 << 20};
    sy_shard_home *a = home_open_as(t, 0, weights), *b = home_open_as(t, 1, weights);
    sy_shard_home *way[] = {a, b, NULL, b, a, NULL};
    sy_shard_store *store = store_open_as(t, precision_of(weights), 0);
    const sy_shard *first = load_on(store, NULL, 0, 4);
    uint64_t probe = 0;
    sy_error err = {0};

    for (size_t w = 0; w < SY_COUNT_OF(way); w++) {
        must(copy_to(store, way[w], 0, 4, steps[(first_step + w) % SY_COUNT_OF(steps)], &err),
             &err);
        const sy_shard *got = sy_shard_get(store, 0, 4);
        assert_ptr_equal(got->home, way[w]);
        expect_same_bytes(got, first);
        if (way[w] != NULL && probe == 0) probe = got->identity.probe;
        assert_int_equal(got->identity.probe, way[w] != NULL ? probe : first->identity.probe);
        expect_slots(a, way[w] == a);
        expect_slots(b, way[w] == b);
        assert_int_equal(sy_shard_store_count(store), 1);
        sy_shard_put(store, got);
    }
    assert_int_equal(sy_shard_store_bytes(store), 2 * first->bytes);
    sy_shard_put(store, first);
    sy_shard_store_close(store);
    sy_shard_home_close(a);
    sy_shard_home_close(b);
}

static void a_shard_moves_to_any_place_of_the_process(void **state)
{
    static const uint32_t sizes[][2] = {{H, F}, {4, 3}}; /* rows of less than a block, as stored */

    (void)state;
    for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
        test_shards t;

        shards_open(&t, SY_BF16, sizes[s][0], sizes[s][1]);
        for (size_t i = 0; i < SY_COUNT_OF(held_as); i++) move_around(&t, held_as[i], i);
        shards_close(&t);
    }
}

static void a_move_that_is_given_up_leaves_the_copy_that_is_served(void **state)
{
    test_shards t;
    sy_shard_builder *builder, *other = NULL;
    sy_error err = {0};
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *a = home_open(&t, 0), *b = home_open(&t, 1);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *first = load_on(store, a, 0, 1);

    builder = begin_on(store, b, 0, 1);
    must(sy_shard_add_from_copy(builder, 1000, &done, &err), &err);
    assert_false(done);
    assert_int_equal(sy_shard_added(builder) > 0, 1);
    expect_error(sy_shard_begin_on(&other, store, NULL, 0, 1, NULL, &err), SY_EEXISTS, &err,
                 "being loaded");
    expect_error(sy_shard_begin_on(&other, store, a, 0, 1, NULL, &err), SY_EEXISTS, &err,
                 "in memory already");
    expect_error(sy_shard_begin(&other, store, 0, 1, NULL, &err), SY_EEXISTS, &err,
                 "in memory already");
    must(sy_shard_load(store, 0, 1, &err), &err); /* at once: it is served */
    expect_slots(b, 1);
    sy_shard_abandon(builder);
    expect_slots(b, 0);
    expect_slots(a, 1);
    const sy_shard *still = sy_shard_get(store, 0, 1);
    assert_ptr_equal(still, first);
    sy_shard_put(store, still);
    sy_shard_put(store, first);
    sy_shard_store_close(store);
    sy_shard_home_close(a);
    sy_shard_home_close(b);
    shards_close(&t);
}

static void a_copy_can_be_read_although_it_is_unloaded_meanwhile(void **state)
{
    test_shards t;
    sy_error err = {0};
    int done = 0;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *a = home_open(&t, 0), *b = home_open(&t, 1);
    sy_shard_store *store = store_open(&t, 0);

    sy_shard_put(store, load_on(store, a, 0, 1));
    sy_shard_builder *builder = begin_on(store, b, 0, 1);
    must(sy_shard_add_from_copy(builder, 100, &done, &err), &err);
    assert_int_equal(sy_shard_unload(store, 0, 1), 1);
    assert_null(sy_shard_get(store, 0, 1));
    expect_slots(a, 1);
    while (!done) must(sy_shard_add_from_copy(builder, 100, &done, &err), &err);
    (void)build_verify(builder, sy_kernels_best());
    sy_shard_publish(builder);
    expect_slots(a, 0);
    expect_slots(b, 1);
    assert_int_equal(sy_shard_store_count(store), 1);
    sy_shard_store_close(store);
    sy_shard_home_close(a);
    sy_shard_home_close(b);
    shards_close(&t);
}

static void bytes_of_one_builder_come_one_way(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    size_t n;
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *a = home_open(&t, 0), *b = home_open(&t, 1);
    sy_shard_store *store = store_open(&t, 0);
    uint8_t *bytes = stored_bytes(&t, 0, 0, &n);

    sy_shard_builder *builder = begin_on(store, b, 0, 0);
    expect_error(sy_shard_add_from_copy(builder, 100, &done, &err), SY_ENOTFOUND, &err,
                 "load it another way");
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err); /* as it says */
    sy_shard_abandon(builder);

    sy_shard_put(store, load_on(store, a, 0, 0));
    builder = begin_on(store, b, 0, 0);
    must(sy_shard_add_from_copy(builder, 100, &done, &err), &err);
    expect_error(sy_shard_add(builder, bytes, 10, &err), SY_EPRECONDITION, &err, "from cuda:0");
    expect_error(sy_shard_add_from_checkpoint(builder, 10, &done, &err), SY_EPRECONDITION, &err,
                 "begin again");
    expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EPRECONDITION,
                 &err, "bytes are there");
    sy_shard_abandon(builder);

    /* Bytes of a peer, and then the rest of them from here, as rows. */
    builder = begin_on(store, b, 0, 0);
    must(sy_shard_add(builder, bytes, 333, &err), &err);
    must(sy_shard_add_from_copy(builder, SIZE_MAX, &done, &err), &err);
    assert_true(done);
    assert_int_equal(build_verify(builder, sy_kernels_best()).content, sy_digest(bytes, n));
    sy_shard_abandon(builder);
    free(bytes);
    sy_shard_store_close(store);
    sy_shard_home_close(a);
    sy_shard_home_close(b);
    shards_close(&t);
}

typedef struct reader {
    sy_shard_store *store;
    const uint8_t *want;
    size_t n;
    atomic_int *stop;
    uint64_t n_read;
    const char *wrong;
} reader;

static void *read_until_stopped(void *arg)
{
    reader *r = arg;
    uint8_t *got = malloc(r->n);

    while (!atomic_load(r->stop) && r->wrong == NULL) {
        const size_t offset = sy_splitmix64(r->n_read++) % r->n;
        const sy_shard *shard = sy_shard_get(r->store, 0, 5);
        if (shard == NULL) {
            r->wrong = "the shard was missing";
            break;
        }
        if (sy_shard_export(shard, offset, got, r->n - offset) != r->n - offset ||
            memcmp(got, r->want + offset, r->n - offset) != 0)
            r->wrong = "what was read are not its bytes";
        sy_shard_put(r->store, shard);
    }
    free(got);
    return NULL;
}

static void readers_never_miss_a_shard_that_moves(void **state)
{
    enum { READERS = 3, MOVES = 12 };
    test_shards t;
    reader readers[READERS];
    pthread_t thread[READERS];
    atomic_int stop = 0;
    sy_error err = {0};
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *place[] = {home_open(&t, 0), home_open(&t, 1), NULL};
    sy_shard_store *store = store_open(&t, 0);
    uint8_t *want = stored_bytes(&t, 0, 5, &n);

    sy_shard_put(store, load_on(store, NULL, 0, 5));
    for (int i = 0; i < READERS; i++) {
        readers[i] = (reader){.store = store, .want = want, .n = n, .stop = &stop};
        assert_int_equal(pthread_create(&thread[i], NULL, read_until_stopped, &readers[i]), 0);
    }
    for (int i = 0; i < MOVES; i++) must(copy_to(store, place[i % 3], 0, 5, 2000, &err), &err);
    atomic_store(&stop, 1);
    for (int i = 0; i < READERS; i++) {
        pthread_join(thread[i], NULL);
        if (readers[i].wrong != NULL) fail_msg("%s", readers[i].wrong);
    }
    expect_slots(place[0], 0);
    expect_slots(place[1], 0);
    free(want);
    sy_shard_store_close(store);
    sy_shard_home_close(place[0]);
    sy_shard_home_close(place[1]);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shard_on_a_gpu_is_the_one_in_host_memory),
        cmocka_unit_test(a_large_shard_is_probed_in_part),
        cmocka_unit_test(any_part_of_a_shard_can_be_read_back),
        cmocka_unit_test(a_shard_travels_between_nodes_of_any_kind),
        cmocka_unit_test(a_shard_moves_to_any_place_of_the_process),
        cmocka_unit_test(a_move_that_is_given_up_leaves_the_copy_that_is_served),
        cmocka_unit_test(a_copy_can_be_read_although_it_is_unloaded_meanwhile),
        cmocka_unit_test(bytes_of_one_builder_come_one_way),
        cmocka_unit_test(readers_never_miss_a_shard_that_moves),
    };
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
