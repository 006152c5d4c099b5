/* test_shard_damage.c - damage anywhere between a file and a shard in memory: each kind is noticed,
 * and named. */
#include "shard_fixture.h"

#include <unistd.h>

static sy_shard_identity identify(const test_shards *t, uint32_t layer, uint32_t expert)
{
    sy_shard_identity identity;
    sy_error err = {0};

    must(sy_shard_identify(&identity, t->model, as_stored, layer, expert, sy_kernels_best(), &err),
         &err);
    return identity;
}

static void one_flipped_bit_in_a_file_is_another_identity(void **state)
{
    static const size_t places[] = {0, 777, 2 * H * F - 2};
    test_shards t;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t.model, fixture_role[i], 1, 2);
        const sy_shard_identity before = identify(&t, 1, 2);
        const uint8_t kept = tensor->data[places[i]], flipped = kept ^ 1;

        overwrite(&t, tensor, places[i], &flipped, 1);
        assert_true(identify(&t, 1, 2).content != before.content);
        overwrite(&t, tensor, places[i], &kept, 1);
        expect_same(identify(&t, 1, 2), before);
    }
    shards_close(&t);
}

static void one_flipped_bit_on_the_way_is_another_content(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    size_t n;

    (void)state;
    shards_open(&t, SY_F32, H, F);
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_builder *builder = build_begin(store, 0, 1);
    uint8_t *bytes = stored_bytes(&t, 0, 1, &n);
    bytes[n / 2 + 1] ^= 0x10;
    build_add_all(builder, bytes, n);
    must(sy_shard_verify(builder, &identity, sy_kernels_best(), &err), &err);
    assert_true(identity.content != identify(&t, 0, 1).content);
    sy_shard_abandon(builder);
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void a_weight_that_is_not_a_number_is_refused(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    const uint16_t infinity = 0x7f80;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    const sy_tensor *down = sy_model_tensor(t.model, SY_ROLE_EXPERT_DOWN, 0, 3);
    overwrite(&t, down, down->bytes - 2, &infinity, 2); /* the last panel's last row */
    sy_shard_store *store = store_open(&t, 0);
    expect_error(sy_shard_load(store, 0, 3, &err), SY_EDATALOSS, &err,
                 "layer 0 expert 3: a weight of down is not a finite number, in rows 32 to 35");
    assert_string_equal(err.reason, "SHARD_CORRUPT");
    assert_int_equal(
        sy_shard_identify(&identity, t.model, as_stored, 0, 3, sy_kernels_best(), &err),
        SY_EDATALOSS);

    sy_shard_builder *builder = build_begin(store, 0, 3);
    size_t n;
    uint8_t *bytes = stored_bytes(&t, 0, 3, &n);
    must(sy_shard_add(builder, bytes, n - 1, &err), &err);
    assert_int_equal(sy_shard_add(builder, bytes + n - 1, 1, &err), SY_EDATALOSS);
    assert_int_equal(sy_shard_add(builder, bytes, 0, &err), SY_EPRECONDITION);
    assert_int_equal(sy_shard_verify(builder, &identity, sy_kernels_best(), &err),
                     SY_EPRECONDITION);
    sy_shard_abandon(builder);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    must(sy_shard_load(store, 0, 2, &err), &err); /* its neighbour is fine */
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

static void a_file_cut_while_it_is_read_is_data_loss(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};
    char path[64];
    int done;

    (void)state;
    shards_open(&t, SY_BF16, 128, 128);
    sy_shard_store *store = store_open(&t, 0);
    sy_shard_builder *builder = build_begin(store, 1, 0);
    must(sy_shard_add_from_checkpoint(builder, 5000, &done, &err), &err);
    assert_false(done);
    snprintf(path, sizeof(path), "%s/model.safetensors", t.dir);
    assert_int_equal(truncate(path, 4096), 0);
    expect_error(sy_shard_add_from_checkpoint(builder, SIZE_MAX, &done, &err), SY_EDATALOSS, &err,
                 "became shorter");
    assert_false(done);
    assert_string_equal(err.reason, "SHARD_CORRUPT");
    assert_int_equal(sy_shard_add_from_checkpoint(builder, 1, &done, &err), SY_EPRECONDITION);
    sy_shard_abandon(builder);
    assert_int_equal(sy_shard_load(store, 1, 1, &err), SY_EDATALOSS);
    assert_int_equal(
        sy_shard_identify(&identity, t.model, as_stored, 1, 1, sy_kernels_best(), &err),
        SY_EDATALOSS);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    sy_shard_store_close(store);
    shards_close(&t);
}

static sy_kernels wrong_kernels;

/* One bit of the 20th column is wrong. */
static void wrong_matmul(float *y, size_t y_stride, const float *x, size_t x_stride,
                         const uint32_t *x_row, size_t T, const sy_panels *w, size_t begin,
                         size_t end)
{
    sy_kernels_best()->matmul(y, y_stride, x, x_stride, x_row, T, w, begin, end);
    if (w->n == H && begin <= 1 && 1 < end) {
        uint32_t bits;
        memcpy(&bits, &y[20], 4);
        bits ^= 1;
        memcpy(&y[20], &bits, 4);
    }
}

static void kernels_that_compute_other_bits_than_the_reference_are_refused(void **state)
{
    test_shards t;
    sy_shard_identity identity;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    wrong_kernels = *sy_kernels_best();
    wrong_kernels.name = "wrong";
    wrong_kernels.matmul = wrong_matmul;
    expect_error(sy_shard_identify(&identity, t.model, as_stored, 0, 0, &wrong_kernels, &err),
                 SY_EDATALOSS, &err, "down with the wrong kernels");
    assert_string_equal(err.reason, "SHARD_PROBE");
    shards_close(&t);
}

/* Products overflow, and sums of them cancel to NaN: still the same identity everywhere. */
static void weights_at_the_edge_of_the_range_have_an_identity(void **state)
{
    test_shards t;
    sy_shard_identity first = {0};
    size_t n;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    uint8_t *bytes = stored_bytes(&t, 0, 0, &n);
    for (size_t i = 0; i < n / 2; i++) {
        const uint16_t value = sy_splitmix64(i) & 1 ? 0x7f7f : 0xff7f;
        memcpy(bytes + 2 * i, &value, 2);
    }
    for (size_t k = 0; k < sy_kernels_count(); k++) {
        sy_shard_store *store = store_open(&t, 0);
        sy_shard_builder *builder = build_begin(store, 0, 0);
        build_add_all(builder, bytes, n);
        const sy_shard_identity identity = build_verify(builder, sy_kernels_at(k));
        if (k == 0) first = identity;
        expect_same(identity, first);
        sy_shard_abandon(builder);
        sy_shard_store_close(store);
    }
    free(bytes);
    shards_close(&t);
}

/* Last: SY_FAULT names a pass that the tests before do not reach. */
static void a_bit_that_flips_in_memory_is_noticed(void **state)
{
    test_shards t;
    sy_shard_identity identity = {1, 1};
    sy_error err = {0};
    size_t n;
    int caught = 0;

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_store *store = store_open(&t, 0);
    uint8_t *bytes = stored_bytes(&t, 1, 1, &n);
    for (int pass = 0; pass < 100 && !caught; pass++) {
        sy_shard_builder *builder = build_begin(store, 1, 1);
        build_add_all(builder, bytes, n);
        caught = sy_shard_verify(builder, &identity, sy_kernels_best(), &err) != SY_OK;
        sy_shard_abandon(builder);
    }
    expect_error(err.status, SY_EDATALOSS, &err, "memory is damaged");
    assert_int_equal(identity.content, 0);
    assert_null(sy_shard_get(store, 1, 1));
    assert_int_equal(sy_shard_store_bytes(store), 0);
    free(bytes);
    sy_shard_store_close(store);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_flipped_bit_in_a_file_is_another_identity),
        cmocka_unit_test(one_flipped_bit_on_the_way_is_another_content),
        cmocka_unit_test(a_weight_that_is_not_a_number_is_refused),
        cmocka_unit_test(a_file_cut_while_it_is_read_is_data_loss),
        cmocka_unit_test(kernels_that_compute_other_bits_than_the_reference_are_refused),
        cmocka_unit_test(weights_at_the_edge_of_the_range_have_an_identity),
        cmocka_unit_test(a_bit_that_flips_in_memory_is_noticed),
    };

    setenv("SY_FAULT", "shard.memory:50", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
