/* test_model.c - opening a checkpoint directory: the bundled model, and what is wrong with damaged
 * ones. */
#include "checkpoint_files.h"

#include <sys/stat.h>

#include "sy_model.h"
#include "sy_safetensors.h"
#include "synth_model.h"

static char dir[4096];

static int setup(void **state)
{
    sy_synth_config config = mixtral_vectors();
    sy_error err;

    (void)state;
    temp_dir_make(dir);
    expect_ok(sy_synth_write(dir, &config, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static void expect_refused(const char *part, const char *other_part)
{
    sy_model *model = (sy_model *)&model;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_model_open(&model, dir, NULL, &err);
    if (st == SY_OK) fail_msg("the model opened; wanted an error with \"%s\"", part);
    assert_null(model);
    expect_text(err.message, part);
    expect_text(err.message, other_part);
    expect_text(err.message, dir);
}

/* Replaces the first old in a file of the directory. In a safetensors file both must have the same
 * length. */
static void patch(const char *file_name, const char *old, const char *new)
{
    const char *path = in_dir(dir, file_name);
    sy_error err;
    char *data;
    char *changed;
    size_t n;
    size_t before;
    const char *at;

    expect_ok(sy_file_read(&data, &n, path, (size_t)1 << 30, &err), &err);
    at = memmem(data, n, old, strlen(old));
    if (at == NULL) fail_msg("%s does not contain %s", file_name, old);
    before = (size_t)(at - data);
    changed = malloc(n + strlen(new));
    assert_non_null(changed);
    memcpy(changed, data, before);
    memcpy(changed + before, new, strlen(new));
    memcpy(changed + before + strlen(new), at + strlen(old), n - before - strlen(old));
    write_bytes(path, changed, n - strlen(old) + strlen(new));
    free(changed);
    free(data);
}

static void the_bundled_model_opens(void **state)
{
    sy_model *model;
    sy_error err;
    const sy_model_desc *d;
    const sy_tensor *tensor;

    (void)state;
    expect_ok(sy_model_open(&model, SY_SOURCE_DIR "/models/trio", NULL, &err), &err);
    d = sy_model_describe(model);
    assert_string_equal(sy_model_name(model), "trio");
    assert_string_equal(sy_model_dir(model), SY_SOURCE_DIR "/models/trio");
    assert_int_equal(d->n_experts, 16);
    assert_int_equal(d->head_dim, 32);
    assert_int_equal(d->bos, -1);
    assert_int_equal(d->n_eos, 1);
    assert_int_equal(d->eos[0], 2047);
    assert_true(d->default_temperature == 0.8f && d->default_top_p == 0.95f);
    assert_int_equal(sy_model_tensor_count(model), 223);
    assert_int_equal(sy_model_bytes(model), 21261696);
    assert_int_equal(sy_model_expert_bytes(model), 3 * 192 * 256 * 2);
    tensor = sy_model_tensor(model, SY_ROLE_EXPERT_DOWN, 3, 15);
    assert_string_equal(tensor->name, "model.layers.3.block_sparse_moe.experts.15.w2.weight");
    assert_int_equal(tensor->shape[0], 192);
    assert_int_equal(tensor->shape[1], 256);
    assert_int_equal(tensor->dtype, SY_BF16);
    sy_model_close(model);
}

static void every_role_finds_its_own_tensor(void **state)
{
    sy_model *model;
    sy_error err;
    char name[128];

    (void)state;
    expect_ok(sy_model_open(&model, dir, "given", &err), &err);
    assert_string_equal(sy_model_name(model), "given");
    for (int role = 0; role < SY_N_ROLES; role++) {
        for (uint32_t layer = 0; layer < 3; layer++) {
            for (uint32_t expert = 0; expert < 8; expert++) {
                const sy_tensor *tensor = sy_model_tensor(model, (sy_role)role, layer, expert);
                const sy_status st = sy_model_tensor_name(name, sizeof(name), "mixtral",
                                                          (sy_role)role, layer, expert);

                assert_int_equal(st == SY_OK, tensor != NULL);
                if (tensor != NULL) assert_string_equal(tensor->name, name);
            }
        }
    }
    assert_null(sy_model_tensor(model, SY_ROLE_Q, 3, 0));
    assert_null(sy_model_tensor(model, SY_ROLE_EXPERT_UP, 0, 8));
    assert_null(sy_model_tensor(model, SY_ROLE_EXPERT_UP, UINT32_MAX, UINT32_MAX));
    assert_null(sy_model_tensor(model, SY_N_ROLES, 0, 0));
    sy_model_close(model);
}

static void tensors_are_counted_in_order_of_their_names(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_equal(sy_model_tensor_count(model), 96);
    for (size_t i = 1; i < 96; i++) {
        assert_true(
            strcmp(sy_model_tensor_at(model, i - 1)->name, sy_model_tensor_at(model, i)->name) < 0);
    }
    assert_null(sy_model_tensor_at(model, 96));
    sy_model_close(model);
}

static void a_directory_without_its_files_says_which(void **state)
{
    (void)state;
    unlink(in_dir(dir, "generation_config.json"));
    unlink(in_dir(dir, "model.safetensors"));
    expect_refused("model.safetensors.index.json", "neither");
    unlink(in_dir(dir, "config.json"));
    expect_refused("config.json", "");
    assert_int_equal(mkdir(in_dir(dir, "config.json"), 0700), 0);
    expect_refused("config.json", "regular file");
    rmdir(in_dir(dir, "config.json"));
    assert_int_equal(mkfifo(in_dir(dir, "config.json"), 0600), 0);
    expect_refused("config.json", "regular file");
}

static void a_generation_config_is_optional_but_checked(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    write_text_file(in_dir(dir, "generation_config.json"), "{\"eos_token_id\": 256}");
    expect_refused("generation_config.json", "eos_token_id is 256");
    unlink(in_dir(dir, "generation_config.json"));
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_equal(sy_model_describe(model)->n_eos, 0);
    sy_model_close(model);
}

static void a_missing_and_an_extra_tensor_are_named(void **state)
{
    (void)state;
    patch("model.safetensors", "experts.5.w1.weight", "experts.5.w9.weight");
    expect_refused("1 tensors are missing", "model.layers.0.block_sparse_moe.experts.5.w1.weight");
    patch("config.json", "\"num_local_experts\": 8", "\"num_local_experts\": 5");
    expect_refused("shape [8, 64], but config.json implies [5, 64]",
                   "block_sparse_moe.gate.weight");
}

static void many_missing_tensors_name_the_first_five(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    patch("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    expect_refused("at least 5 tensors are missing", "model.layers.3.self_attn.v_proj.weight");
    assert_int_equal(sy_model_open(&model, dir, NULL, &err), SY_EINVAL);
    assert_string_equal(err.reason, "MISSING_TENSOR");
}

static void extra_tensors_are_named(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    patch("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
    expect_refused("31 tensors have no place",
                   "model.layers.2.block_sparse_moe.experts.0.w1.weight");
    assert_int_equal(sy_model_open(&model, dir, NULL, &err), SY_EINVAL);
    assert_string_equal(err.reason, "UNKNOWN_TENSOR");
}

static void a_tied_model_has_no_head_of_its_own(void **state)
{
    (void)state;
    patch("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    expect_refused("tie_word_embeddings is true", "lm_head.weight");
}

/* All but the first tensor by name, the head; fill reads from the model it was opened from. */
static sy_status fill_from_model(void *arg, size_t entry, sy_st_emit emit, void *sink)
{
    const sy_tensor *tensor = sy_model_tensor_at(arg, entry + 1);

    return emit(sink, tensor->data, tensor->bytes);
}

static void the_head_of_a_tied_model_is_the_embedding(void **state)
{
    static sy_st_entry entries[95];
    sy_model *model;
    sy_error err;

    (void)state;
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_string_equal(sy_model_tensor_at(model, 0)->name, "lm_head.weight");
    for (size_t i = 0; i < SY_COUNT_OF(entries); i++) {
        const sy_tensor *tensor = sy_model_tensor_at(model, i + 1);

        entries[i] =
            (sy_st_entry){.name = tensor->name, .dtype = tensor->dtype, .rank = tensor->rank};
        memcpy(entries[i].shape, tensor->shape, sizeof(entries[i].shape));
    }
    expect_ok(sy_safetensors_write(in_dir(dir, "model.safetensors"), entries, 95, fill_from_model,
                                   model, &err),
              &err);
    sy_model_close(model);
    expect_refused("1 tensors are missing", "lm_head.weight");
    patch("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_equal(sy_model_describe(model)->tied_head, 1);
    assert_int_equal(sy_model_tensor_count(model), 95);
    assert_ptr_equal(sy_model_tensor(model, SY_ROLE_HEAD, 0, 0),
                     sy_model_tensor(model, SY_ROLE_EMBED, 0, 0));
    sy_model_close(model);
}

static void a_wrong_shape_shows_both(void **state)
{
    (void)state;
    patch("config.json", "\"intermediate_size\": 96", "\"intermediate_size\": 95");
    expect_refused("[96, 64], but config.json implies [95, 64]", "experts.0.w1.weight");
}

static void a_type_that_no_kernel_reads_is_refused(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    patch("model.safetensors", "layers.1.block_sparse_moe.experts.2.w3.weight\":{\"dtype\":\"F32\"",
          "layers.1.block_sparse_moe.experts.2.w3.weight\":{\"dtype\":\"I32\"");
    expect_refused("type I32", "model.layers.1.block_sparse_moe.experts.2.w3.weight");
    assert_int_equal(sy_model_open(&model, dir, NULL, &err), SY_EINVAL);
    assert_int_equal(err.layer, 1);
    assert_int_equal(err.expert, 2);
}

static void a_truncated_file_is_refused(void **state)
{
    struct stat info;

    (void)state;
    assert_int_equal(stat(in_dir(dir, "model.safetensors"), &info), 0);
    assert_int_equal(truncate(in_dir(dir, "model.safetensors"), info.st_size - 1), 0);
    expect_refused("truncated", "model.safetensors");
    assert_int_equal(truncate(in_dir(dir, "model.safetensors"), 100), 0);
    expect_refused("truncated", "model.safetensors");
}

/* Writes the same model again in five files; the third holds layer 1's experts among others. */
static void shard(void)
{
    sy_synth_config config = mixtral_vectors();
    sy_error err;

    config.options.shard_bytes_max = 500000;
    expect_ok(sy_synth_write(dir, &config, &err), &err);
    assert_false(sy_file_exists(in_dir(dir, "model.safetensors")));
    assert_true(sy_file_exists(in_dir(dir, "model-00005-of-00005.safetensors")));
}

static void a_sharded_model_equals_the_same_in_one_file(void **state)
{
    sy_model *one;
    sy_model *many;
    sy_error err;

    (void)state;
    expect_ok(sy_model_open(&one, dir, NULL, &err), &err);
    shard();
    expect_ok(sy_model_open(&many, dir, NULL, &err), &err);
    assert_int_equal(sy_model_tensor_count(many), 96);
    assert_int_equal(sy_model_structure_hash(many), sy_model_structure_hash(one));
    assert_int_equal(sy_model_bytes(many), sy_model_bytes(one));
    assert_int_equal(sy_model_expert_bytes(many), sy_model_expert_bytes(one));
    for (size_t i = 0; i < 96; i++) {
        const sy_tensor *a = sy_model_tensor_at(one, i);
        const sy_tensor *b = sy_model_tensor_at(many, i);

        assert_string_equal(a->name, b->name);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    sy_model_close(one);
    sy_model_close(many);
}

static void the_single_file_is_looked_for_first(void **state)
{
    sy_model *model;
    sy_error err;

    (void)state;
    write_text_file(in_dir(dir, "model.safetensors.index.json"), "nonsense");
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    sy_model_close(model);
}

static void an_index_cannot_lead_out_of_the_directory(void **state)
{
    static const char *const names[] = {
        "../a.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\\\\b", "", "./a"};
    char index[256];

    (void)state;
    unlink(in_dir(dir, "model.safetensors"));
    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        snprintf(index, sizeof(index), "{\"weight_map\": {\"lm_head.weight\": \"%s\"}}", names[i]);
        write_text_file(in_dir(dir, "model.safetensors.index.json"), index);
        expect_refused("own directory", "model.safetensors.index.json");
    }
    write_text_file(in_dir(dir, "model.safetensors.index.json"), "{\"weight_map\": {\"a\": 1}}");
    expect_refused("an integer, where a file's name is needed", "\"a\"");
    write_text_file(in_dir(dir, "model.safetensors.index.json"), "{\"weight_map\": []}");
    expect_refused("weight_map is an array", "index.json");
    write_text_file(in_dir(dir, "model.safetensors.index.json"), "{}");
    expect_refused("weight_map is missing", "index.json");
}

static void index_and_shards_must_agree(void **state)
{
    (void)state;
    shard();
    patch("model.safetensors.index.json", "w1.weight\": \"model-00002-of",
          "w1.weight\": \"model-00003-of");
    expect_refused("model-00002-of-00005.safetensors holds a tensor that weight_map has in "
                   "model-00003-of-00005.safetensors",
                   "index.json");
    shard();
    patch("model.safetensors.index.json", "model.norm.weight", "model.morn.weight");
    expect_refused("weight_map has not", "model.norm.weight");
    shard();
    patch("model.safetensors.index.json", "\"weight_map\": {",
          "\"weight_map\": {\"a\": \"model-00001-of-00005.safetensors\",");
    expect_refused("model-00001-of-00005.safetensors lacks the tensor", "\"a\"");
    shard();
    unlink(in_dir(dir, "model-00004-of-00005.safetensors"));
    expect_refused("model-00004-of-00005.safetensors", "");
}

/* Old checkpoints carry them. */
static void rotary_frequencies_are_ignored(void **state)
{
    static const char header[] = "{\"model.layers.0.self_attn.rotary_emb.inv_freq\":"
                                 "{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]}}";
    sy_model *model;
    sy_error err;

    (void)state;
    shard();
    write_safetensors(in_dir(dir, "extra"), sizeof(header) - 1, header, sizeof(header) - 1, 32);
    patch("model.safetensors.index.json", "\"weight_map\": {",
          "\"weight_map\": {\"model.layers.0.self_attn.rotary_emb.inv_freq\": \"extra\",");
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_equal(sy_model_tensor_count(model), 96);
    assert_int_equal(sy_model_bytes(model), 513984 * 4);
    sy_model_close(model);
}

static void a_shard_that_is_cut_is_named(void **state)
{
    (void)state;
    shard();
    assert_int_equal(truncate(in_dir(dir, "model-00002-of-00005.safetensors"), 5000), 0);
    expect_refused("model-00002-of-00005.safetensors", "truncated");
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    char *data;
    size_t n;
    sy_error err;

    (void)state;
    shard();
    expect_ok(
        sy_file_read(&data, &n, in_dir(dir, "model-00001-of-00005.safetensors"), 1 << 30, &err),
        &err);
    write_bytes(in_dir(dir, "model-00002-of-00005.safetensors"), data, n);
    free(data);
    expect_refused("both hold the tensor", "model-00002-of-00005.safetensors");
}

static void the_hash_tells_structures_apart(void **state)
{
    sy_synth_config config = mixtral_vectors();
    sy_model *model;
    sy_error err;
    uint64_t first;

    (void)state;
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    first = sy_model_structure_hash(model);
    sy_model_close(model);
    config.options.dtype = SY_BF16;
    expect_ok(sy_synth_write(dir, &config, &err), &err);
    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    assert_int_not_equal(sy_model_structure_hash(model), first);
    sy_model_close(model);
}

static void names_of_models_have_a_limit(void **state)
{
    char name[SY_MODEL_NAME_MAX + 1];
    sy_model *model;
    sy_error err;

    (void)state;
    memset(name, 'n', sizeof(name));
    name[SY_MODEL_NAME_MAX] = '\0';
    assert_int_equal(sy_model_open(&model, dir, name, &err), SY_EINVAL);
    expect_text(err.message, "1 to 127 bytes, not 128");
    assert_int_equal(sy_model_open(&model, dir, "", &err), SY_EINVAL);
    name[SY_MODEL_NAME_MAX - 1] = '\0';
    expect_ok(sy_model_open(&model, dir, name, &err), &err);
    sy_model_close(model);
}

/* A few hundred bytes of configuration that ask for 12 million tensors. */
static void a_configuration_of_millions_of_tensors_is_refused(void **state)
{
    (void)state;
    patch("config.json", "\"num_local_experts\": 8", "\"num_local_experts\": 4096");
    patch("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1024");
    expect_refused("shape [8, 64], but config.json implies [4096, 64]", "gate.weight");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_bundled_model_opens),
        TEST(every_role_finds_its_own_tensor),
        TEST(tensors_are_counted_in_order_of_their_names),
        TEST(a_directory_without_its_files_says_which),
        TEST(a_generation_config_is_optional_but_checked),
        TEST(a_missing_and_an_extra_tensor_are_named),
        TEST(many_missing_tensors_name_the_first_five),
        TEST(extra_tensors_are_named),
        TEST(a_tied_model_has_no_head_of_its_own),
        TEST(the_head_of_a_tied_model_is_the_embedding),
        TEST(a_wrong_shape_shows_both),
        TEST(a_type_that_no_kernel_reads_is_refused),
        TEST(a_truncated_file_is_refused),
        TEST(a_sharded_model_equals_the_same_in_one_file),
        TEST(the_single_file_is_looked_for_first),
        TEST(an_index_cannot_lead_out_of_the_directory),
        TEST(index_and_shards_must_agree),
        TEST(rotary_frequencies_are_ignored),
        TEST(a_shard_that_is_cut_is_named),
        TEST(a_tensor_in_two_shards_is_refused),
        TEST(the_hash_tells_structures_apart),
        TEST(names_of_models_have_a_limit),
        TEST(a_configuration_of_millions_of_tensors_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
