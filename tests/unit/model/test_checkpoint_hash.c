/* test_checkpoint_hash.c - the fingerprint of a checkpoint's weights: the same for copies, another
 * one for other weights. */
#include "checkpoint_files.h"

#include "sy_model.h"
#include "synth_model.h"

static uint64_t hash_of(const char *dir)
{
    sy_model *model;
    uint64_t hash;
    sy_error err;

    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    expect_ok(sy_model_checkpoint_hash(&hash, model, &err), &err);
    sy_model_close(model);
    return hash;
}

static uint64_t hash_of_synth(const sy_synth_config *config)
{
    char dir[4096];
    sy_error err;

    temp_dir_make(dir);
    expect_ok(sy_synth_write(dir, config, &err), &err);
    const uint64_t hash = hash_of(dir);
    temp_dir_remove(dir);
    return hash;
}

static sy_synth_config seeded(uint64_t seed)
{
    sy_synth_config config = mixtral_vectors();

    config.options.recipe = SY_SYNTH_SCALED;
    config.options.seed = seed;
    return config;
}

static void copies_have_the_same_hash_however_their_files_are_cut(void **state)
{
    sy_synth_config config = seeded(1);
    const uint64_t hash = hash_of_synth(&config);

    (void)state;
    assert_true(hash != 0);
    assert_true(hash_of_synth(&config) == hash);
    config.options.shard_bytes_max = 100000;
    assert_true(hash_of_synth(&config) == hash);
}

static void other_weights_have_another_hash(void **state)
{
    const sy_synth_config one = seeded(1), two = seeded(2);
    sy_synth_config half = seeded(1), wider = seeded(1);
    const uint64_t hash = hash_of_synth(&one);

    (void)state;
    assert_true(hash_of_synth(&two) != hash);
    half.options.dtype = SY_BF16;
    assert_true(hash_of_synth(&half) != hash);
    wider.context = 256;
    assert_true(hash_of_synth(&wider) != hash);
}

/* Whatever a fine-tune leaves alone, the first elements of what it changes differ. */
static void any_single_tensor_outside_the_experts_shows(void **state)
{
    const sy_synth_config config = seeded(1);
    char dir[4096];
    sy_model *model;
    sy_error err;

    (void)state;
    temp_dir_make(dir);
    expect_ok(sy_synth_write(dir, &config, &err), &err);
    const uint64_t hash = hash_of(dir);
    for (int role = SY_ROLE_EMBED; role < SY_ROLE_EXPERT_GATE; role++) {
        const char *path = in_dir(dir, "model.safetensors");
        char *file;
        size_t n;

        expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
        const sy_tensor *tensor = sy_model_tensor(model, (sy_role)role, 1, 0);
        if (tensor == NULL) {
            sy_model_close(model);
            continue;
        }
        expect_ok(sy_file_read(&file, &n, path, (size_t)1 << 30, &err), &err);
        char *at = memmem(file, n, tensor->data, tensor->bytes);
        assert_non_null(at);
        sy_model_close(model);
        at[0] ^= 1;
        write_bytes(path, file, n);
        if (hash_of(dir) == hash) fail_msg("role %d: another tensor, the same hash", role);
        at[0] ^= 1;
        write_bytes(path, file, n);
        assert_true(hash_of(dir) == hash);
        free(file);
    }
    temp_dir_remove(dir);
}

static void a_file_cut_while_open_is_data_loss(void **state)
{
    const sy_synth_config config = seeded(1);
    char dir[4096];
    sy_model *model;
    uint64_t hash = 1;
    sy_error err;

    (void)state;
    temp_dir_make(dir);
    expect_ok(sy_synth_write(dir, &config, &err), &err);
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_equal(truncate(in_dir(dir, "model.safetensors"), 4096), 0);
    assert_int_equal(sy_model_checkpoint_hash(&hash, model, &err), SY_EDATALOSS);
    assert_int_equal(hash, 0);
    expect_text(err.message, dir);
    sy_model_close(model);
    temp_dir_remove(dir);
}

static void the_bundled_model_has_one(void **state)
{
    (void)state;
    assert_true(hash_of(SY_SOURCE_DIR "/models/trio") == hash_of(SY_SOURCE_DIR "/models/trio"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_have_the_same_hash_however_their_files_are_cut),
        cmocka_unit_test(other_weights_have_another_hash),
        cmocka_unit_test(any_single_tensor_outside_the_experts_shows),
        cmocka_unit_test(a_file_cut_while_open_is_data_loss),
        cmocka_unit_test(the_bundled_model_has_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
