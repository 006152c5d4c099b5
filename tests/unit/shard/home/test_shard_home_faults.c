/* test_shard_home_faults.c - GPUs without room, of the wrong kind, that damage weights, compute
 * wrong or are lost: each is noticed, and named. */
#include "home_fixture.h"

#include <math.h>

static void expect_reason(const sy_error *err, const char *reason)
{
    if (strcmp(err->reason, reason) != 0)
        fail_msg("reason %s, not %s: %s", err->reason, reason, err->message);
}

/* ---- room ---- */

static void shards_wait_for_a_slot_until_their_holders_let_go(void **state)
{
    test_shards t;
    sy_shard_builder *third = NULL;
    sy_shard_home *home;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    home = home_open(&t, 0);
    sy_shard_home_config config = home_config(&t, 0, SY_DTYPE_NONE);
    assert_int_equal(sy_shard_home_slots(home), L * E);
    config.memory_bytes_max = 2 * slot_bytes(home) + 1;
    sy_shard_home_close(home);

    must(sy_shard_home_open(&home, &config, &err), &err);
    assert_int_equal(sy_shard_home_slots(home), 2);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *first = load_on(store, home, 0, 0);
    sy_shard_put(store, load_on(store, home, 0, 1));
    expect_error(sy_shard_begin_on(&third, store, home, 0, 2, NULL, &err), SY_ELIMIT, &err,
                 "all 2 slots are taken");
    expect_reason(&err, "SHARD_MEMORY");
    assert_int_equal(err.expert, 2);
    assert_null(third);
    expect_error(sy_shard_home_self_test(home, &err), SY_ELIMIT, &err, "slots are taken");
    assert_int_equal(sy_shard_unload(store, 0, 0), 1);
    assert_int_equal(sy_shard_begin_on(&third, store, home, 0, 2, NULL, &err), SY_ELIMIT);
    sy_shard_put(store, first); /* a batch ends */
    sy_shard_abandon(begin_on(store, home, 0, 2));
    must(sy_shard_load(store, 0, 2, &err), &err);
    must(sy_shard_home_self_test(home, &err), &err);
    expect_slots(home, 1);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_device_without_room_for_one_shard_is_refused(void **state)
{
    test_shards t;
    sy_shard_home *home = (sy_shard_home *)&home;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home_config config = home_config(&t, 0, SY_DTYPE_NONE);
    config.memory_bytes_max = 100;
    expect_error(sy_shard_home_open(&home, &config, &err), SY_ENOMEM, &err, "cuda:0: ");
    expect_reason(&err, "DEVICE_MEMORY");
    assert_null(home);
    config.memory_bytes_max = 0;
    devices_told("fail cudaMalloc 1 cudaErrorMemoryAllocation\n");
    expect_error(sy_shard_home_open(&home, &config, &err), SY_ENOMEM, &err, "cuda:0: ");
    expect_reason(&err, "DEVICE_MEMORY");
    devices_told("");
    must(sy_shard_home_open(&home, &config, &err), &err);
    sy_shard_home_close(home);
    config.number = N_DEVICES;
    assert_int_not_equal(sy_shard_home_open(&home, &config, &err), SY_OK);
    assert_null(home);
    shards_close(&t);
}

static void weights_that_the_kernels_do_not_read_are_refused_by_name(void **state)
{
    static const sy_dtype stored[] = {SY_F32, SY_F16};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(stored); i++) {
        test_shards t;
        sy_shard_home *home;
        sy_error err = {0};

        shards_open(&t, stored[i], H, F);
        sy_shard_home_config config = home_config(&t, 0, SY_DTYPE_NONE);
        expect_error(sy_shard_home_open(&home, &config, &err), SY_EUNIMPLEMENTED, &err,
                     "--weights q8");
        assert_non_null(strstr(err.message, sy_dtype_name(stored[i])));
        expect_reason(&err, "DEVICE_WEIGHTS");
        config.weights = SY_Q8;
        must(sy_shard_home_open(&home, &config, &err), &err);
        sy_shard_home_close(home);
        shards_close(&t);
    }
}

/* ---- damage ---- */

/* First: SY_FAULT counts verifications. */
static void a_bit_that_flips_on_its_way_to_the_device_is_noticed(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_builder *builder = begin_on(store, home, 0, 0);
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
    expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EDATALOSS, &err,
                 "memory is damaged");
    expect_reason(&err, "SHARD_CORRUPT");
    assert_int_equal(identity.content, 0);
    sy_shard_abandon(builder);
    assert_null(sy_shard_get(store, 0, 0));
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_bit_that_flips_later_is_found_by_the_next_probe(void **state)
{
    static const sy_dtype held_as[] = {SY_DTYPE_NONE, SY_Q8, SY_Q4};
    test_shards t;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (size_t i = 0; i < SY_COUNT_OF(held_as); i++) {
        const sy_precision precision = {.weights = held_as[i]};
        sy_shard_home *home = home_open_as(&t, 0, held_as[i]);
        sy_shard_store *store = store_open_as(&t, precision, 0);
        const sy_shard *shard = load_on(store, home, 0, 0), *other = load_on(store, home, 1, 5);
        uint8_t *before, *after;
        size_t n, n_differ = 0;

        must(sy_shard_home_reprobe(shard, &err), &err);
        before = exported(shard, SIZE_MAX, &n);
        sy_shard_flip_bit(shard);
        after = exported(shard, SIZE_MAX, &n);
        for (size_t k = 0; k < n; k++) n_differ += before[k] != after[k];
        assert_int_equal(n_differ, 1);
        expect_error(sy_shard_home_reprobe(shard, &err), SY_EDATALOSS, &err, "layer 0 expert 0");
        expect_reason(&err, "DEVICE_PROBE");
        must(sy_shard_home_reprobe(other, &err), &err);
        sy_shard_flip_bit(shard);
        must(sy_shard_home_reprobe(shard, &err), &err);
        free(before);
        free(after);
        sy_shard_put(store, shard);
        sy_shard_put(store, other);
        sy_shard_store_close(store);
        sy_shard_home_close(home);
    }
    shards_close(&t);
}

/* On the way, or before it at its source. */
static void a_damaged_copy_between_devices_is_noticed(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *a = home_open(&t, 0), *b = home_open(&t, 1);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *shard = load_on(store, a, 0, 0);

    for (int round = 0; round < 3; round++) {
        sy_shard_builder *builder = begin_on(store, b, 0, 0);
        if (round == 0) sy_shard_flip_bit(shard);
        if (round == 1) devices_told("flip 1 copy\n");
        must(sy_shard_add_from_copy(builder, SIZE_MAX, &done, &err), &err);
        assert_true(done);
        devices_told("");
        const sy_status st = sy_shard_verify(builder, &identity, sy_kernels_best(), &err);
        if (round < 2) {
            expect_error(st, SY_EDATALOSS, &err, "its copy on cuda:1");
            expect_reason(&err, "SHARD_CORRUPT");
        } else {
            must(st, &err);
        }
        if (round == 0) sy_shard_flip_bit(shard);
        sy_shard_abandon(builder);
        expect_slots(b, 0);
    }
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_shard_home_close(a);
    sy_shard_home_close(b);
    shards_close(&t);
}

static void a_copy_is_not_made_of_a_shard_that_was_damaged(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);

    for (int from_gpu = 0; from_gpu < 2; from_gpu++) {
        sy_shard_put(store, load_on(store, from_gpu ? home : NULL, 0, 0));
        const sy_shard *shard = sy_shard_get(store, 0, 0);
        sy_shard_builder *builder = begin_on(store, from_gpu ? NULL : home, 0, 0);
        sy_shard_flip_bit(shard);
        must(sy_shard_add_from_copy(builder, SIZE_MAX, &done, &err), &err);
        expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EDATALOSS,
                     &err, "when it was made");
        expect_reason(&err, "SHARD_CORRUPT");
        sy_shard_abandon(builder);
        sy_shard_put(store, shard);
        assert_int_equal(sy_shard_unload(store, 0, 0), 1);
    }
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

/* ---- a device that computes wrong, by a table that says so ---- */

static sy_backend broken;
static struct {
    uint32_t waits; /* the batch whose output is damaged, from 1 */
    uint32_t row;   /* of the weights that are damaged, of every part; or UINT32_MAX */
    float factor;   /* of the last output of the batch */
    size_t last;    /* where that is */
    sy_backend_lane lane;
} breaks;

static int broken_wait(int *done, float *device_us, sy_backend_pool *pool, uint32_t lane,
                       uint32_t timeout_us, char *why)
{
    const int result = backend->wait(done, device_us, pool, lane, timeout_us, why);

    if (result == SY_BACKEND_OK && *done && --breaks.waits == 0) {
        backend->lane(&breaks.lane, pool, lane);
        breaks.lane.y[breaks.last] *= breaks.factor;
    }
    return result;
}

static int broken_write(sy_backend_pool *pool, uint32_t slot, uint32_t part, uint32_t row,
                        uint32_t n_rows, const void *rows, char *why)
{
    uint8_t damaged[16 * 2 * 64];

    if (row != breaks.row || part > SY_BACKEND_DOWN)
        return backend->slot_write(pool, slot, part, row, n_rows, rows, why);
    memcpy(damaged, rows, n_rows * (size_t)(part == SY_BACKEND_DOWN ? F : H) * 2);
    damaged[9] ^= 2;
    return backend->slot_write(pool, slot, part, row, n_rows, damaged, why);
}

static sy_shard_home *broken_open(const test_shards *t)
{
    sy_shard_home_config config = home_config(t, 0, SY_DTYPE_NONE);
    sy_shard_home *home;
    sy_error err = {0};

    broken = *backend;
    broken.wait = broken_wait;
    broken.slot_write = broken_write;
    breaks.row = UINT32_MAX;
    breaks.waits = 0;
    config.backend = &broken;
    must(sy_shard_home_open(&home, &config, &err), &err);
    return home;
}

static void a_good_device_passes_its_self_test(void **state)
{
    static const family_case families[] = {{"swiglu", "mixtral.json", {NULL}},
                                           {"biases and clamps", "gpt_oss.json", {NULL}}};
    static const sy_dtype held_as[] = {SY_DTYPE_NONE, SY_Q8, SY_Q4};

    (void)state;
    for (size_t f = 0; f < SY_COUNT_OF(families); f++) {
        test_shards t;
        sy_error err = {0};

        family_open(&t, &families[f]);
        for (size_t i = 0; i < SY_COUNT_OF(held_as); i++) {
            sy_shard_home *home = home_open_as(&t, 0, held_as[i]);
            must(sy_shard_home_self_test(home, &err), &err);
            expect_slots(home, 0);
            sy_shard_home_close(home);
        }
        shards_close(&t);
    }
}

static void a_broken_device_fails_its_self_test(void **state)
{
    test_shards t;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = broken_open(&t);
    must(sy_shard_home_self_test(home, &err), &err);
    breaks.row = 16;
    expect_error(sy_shard_home_self_test(home, &err), SY_EDATALOSS, &err,
                 "weights come back changed (part, row) (0, 16)");
    expect_reason(&err, "DEVICE_SELF_TEST");
    breaks.row = UINT32_MAX;
    breaks.waits = 1;
    breaks.last = H - 1;
    breaks.factor = 1.5f;
    expect_error(sy_shard_home_self_test(home, &err), SY_EDATALOSS, &err,
                 "a wrong output (token, element) (0, 35)");
    expect_reason(&err, "DEVICE_SELF_TEST");
    breaks.waits = 3; /* the batch of 20: no more than rounding, but not the same bits */
    breaks.last = (size_t)18 * H + 1;
    breaks.factor = 1 + 0x1p-22f;
    expect_error(sy_shard_home_self_test(home, &err), SY_EDATALOSS, &err,
                 "depend on its batch (token, rows of the batch) (3, 20)");
    must(sy_shard_home_self_test(home, &err), &err);
    expect_slots(home, 0);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_shard_that_a_device_computes_wrong_is_not_published(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = broken_open(&t), *good = home_open(&t, 1);
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_builder *builder = begin_on(store, home, 0, 0);
    must(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), &err);
    breaks.waits = 1;
    breaks.last = 5;
    breaks.factor = 1000;
    expect_error(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), SY_EDATALOSS, &err,
                 "on cuda:0");
    expect_reason(&err, "SHARD_PROBE");
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    sy_shard_abandon(builder);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    sy_shard_home_close(good);
    shards_close(&t);
}

/* Rows whose sums overflow, or cancel to a NaN. */
static void make_huge(uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        const uint16_t value = sy_splitmix64(i) & 1 ? 0x7f7f : 0xff7f;
        memcpy(bytes + 2 * i, &value, 2);
    }
}

/* The first row's sum for the probe's input (sy_shard_probe.c) overflows on its way, and ends in
 * range: the largest weights, with signs that first agree and then lead back. */
static void make_huge_on_the_way(uint8_t *bytes, size_t n)
{
    double sum = 0;

    assert_true(n >= (size_t)2 * H);
    for (uint32_t i = 0; i < H; i++) {
        const float x = 2 * sy_unit_float(sy_splitmix64(i)) - 1;
        const int goes_up = i < H / 2 || sum < 0;
        const uint16_t value = (x > 0) == goes_up ? 0x7f7f : 0xff7f;
        sum += goes_up ? fabs((double)x) : -fabs((double)x);
        memcpy(bytes + 2 * i, &value, 2);
    }
    assert_true(fabs(sum) < 0.9);
}

/* Nobody can say what their outputs must be: they have an identity, the same each time. */
static void weights_at_the_edge_of_the_range_have_an_identity(void **state)
{
    static void (*const make[])(uint8_t * bytes, size_t n) = {make_huge, make_huge_on_the_way};
    test_shards t;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);

    for (size_t m = 0; m < SY_COUNT_OF(make); m++) {
        sy_shard_identity first = {0};
        size_t n;
        uint8_t *bytes = stored_bytes(&t, 0, 0, &n);

        make[m](bytes, n);
        for (int round = 0; round < 2; round++) {
            sy_shard_builder *builder = begin_on(store, home, 0, 0);
            build_add_all(builder, bytes, n);
            const sy_shard_identity identity = build_verify(builder, sy_kernels_best());
            if (round == 0) first = identity;
            expect_same(identity, first);
            sy_shard_abandon(builder);
        }
        free(bytes);
    }
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

/* ---- loss: each test its own device ---- */

static void a_lost_device_says_so_from_then_on(void **state)
{
    enum { LOST = 7 };
    test_shards t;
    sy_shard_builder *builder, *other = NULL;
    sy_shard_identity identity;
    sy_error err = {0};
    uint8_t byte[8];
    float device_us;
    int done;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, LOST);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *shard = load_on(store, home, 0, 0);
    const sy_shard_group group = {shard, 0, 1};

    builder = begin_on(store, home, 0, 1);
    must(sy_shard_add_from_checkpoint(builder, 100, &done, &err), &err);
    assert_false(sy_shard_home_lost(home, &err));
    devices_told("lose 7\n");
    expect_error(sy_shard_home_reprobe(shard, &err), SY_EUNAVAILABLE, &err, "cuda:7 is lost: ");
    expect_reason(&err, "DEVICE_LOST");
    devices_told("");
    err = (sy_error){0};
    assert_true(sy_shard_home_lost(home, &err));
    assert_int_equal(err.status, SY_EUNAVAILABLE);
    expect_reason(&err, "DEVICE_LOST");
    expect_error(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), SY_EUNAVAILABLE,
                 &err, "cuda:7 is lost");
    assert_int_equal(sy_shard_verify(builder, &identity, sy_kernels_best(), &err),
                     SY_EPRECONDITION);
    sy_shard_abandon(builder);
    assert_int_equal(sy_shard_export(shard, 0, byte, sizeof(byte)), 0);
    sy_shard_flip_bit(shard);
    assert_int_equal(sy_shard_begin_on(&other, store, home, 0, 2, NULL, &err), SY_EUNAVAILABLE);
    assert_null(other);
    assert_int_equal(sy_shard_home_submit(home, 0, 1, 1, &group, 1, &err), SY_EUNAVAILABLE);
    assert_int_equal(sy_shard_home_wait(&done, &device_us, home, 0, 0, &err), SY_EUNAVAILABLE);
    assert_int_equal(sy_shard_home_self_test(home, &err), SY_EUNAVAILABLE);
    expect_reason(&err, "DEVICE_LOST");
    /* Where it is no more it can be loaded to again, from elsewhere. */
    builder = begin_on(store, NULL, 0, 0);
    expect_error(sy_shard_add_from_copy(builder, SIZE_MAX, &done, &err), SY_EUNAVAILABLE, &err,
                 "cuda:7 is lost");
    sy_shard_abandon(builder);
    sy_shard_put(store, shard);
    sy_shard_put(store, load_on(store, NULL, 0, 0));
    expect_slots(home, 0);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

static void a_copy_tells_which_of_its_devices_was_lost(void **state)
{
    static const struct {
        uint32_t from, to, lost;
        const char *told;
    } cases[] = {{2, 3, 3, "lose 3\n"}, {4, 2, 4, "lose 4\n"}};
    test_shards t;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        sy_shard_home *from = home_open(&t, cases[i].from), *to = home_open(&t, cases[i].to);
        sy_shard_home *lost = cases[i].lost == cases[i].from ? from : to;
        sy_shard_store *store = store_open(&t, 0);
        sy_error err = {0};
        int done;

        sy_shard_put(store, load_on(store, from, 0, 0));
        sy_shard_builder *builder = begin_on(store, to, 0, 0);
        must(sy_shard_add_from_copy(builder, 1000, &done, &err), &err);
        devices_told(cases[i].told);
        sy_status st = SY_OK;
        while (st == SY_OK && !done) st = sy_shard_add_from_copy(builder, 1000, &done, &err);
        expect_error(st, SY_EUNAVAILABLE, &err, sy_shard_home_name(lost));
        expect_reason(&err, "DEVICE_LOST");
        devices_told("");
        assert_int_equal(sy_shard_home_lost(from, &err), lost == from);
        assert_int_equal(sy_shard_home_lost(to, &err), lost == to);
        sy_shard_abandon(builder);
        expect_slots(to, 0);
        sy_shard_store_close(store);
        sy_shard_home_close(from);
        sy_shard_home_close(to);
    }
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bit_that_flips_on_its_way_to_the_device_is_noticed),
        cmocka_unit_test(shards_wait_for_a_slot_until_their_holders_let_go),
        cmocka_unit_test(a_device_without_room_for_one_shard_is_refused),
        cmocka_unit_test(weights_that_the_kernels_do_not_read_are_refused_by_name),
        cmocka_unit_test(a_bit_that_flips_later_is_found_by_the_next_probe),
        cmocka_unit_test(a_damaged_copy_between_devices_is_noticed),
        cmocka_unit_test(a_copy_is_not_made_of_a_shard_that_was_damaged),
        cmocka_unit_test(a_good_device_passes_its_self_test),
        cmocka_unit_test(a_broken_device_fails_its_self_test),
        cmocka_unit_test(a_shard_that_a_device_computes_wrong_is_not_published),
        cmocka_unit_test(weights_at_the_edge_of_the_range_have_an_identity),
        cmocka_unit_test(a_lost_device_says_so_from_then_on),
        cmocka_unit_test(a_copy_tells_which_of_its_devices_was_lost),
    };

    setenv("SY_FAULT", "shard.memory:1", 1);
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
