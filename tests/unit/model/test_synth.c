/* test_synth.c - synthetic checkpoints: the published element values, the counts, and what cannot
 * be written. */
#include "checkpoint_files.h"

#include <math.h>

#include "sy_model.h"
#include "synth_model.h"

static char dir[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

static sy_model *write_and_open(const sy_synth_config *config)
{
    sy_model *model;
    sy_error err;

    expect_ok(sy_synth_write(dir, config, &err), &err);
    expect_ok(sy_model_open(&model, dir, "synth", &err), &err);
    return model;
}

static float element(const sy_tensor *tensor, size_t i)
{
    float v;

    sy_dtype_widen(&v, tensor->data + i * sy_dtype_bytes(tensor->dtype), tensor->dtype, 1);
    return v;
}

static uint64_t count_parameters(const sy_model *model)
{
    uint64_t n = 0;

    for (size_t i = 0; i < sy_model_tensor_count(model); i++) {
        n += sy_model_tensor_at(model, i)->n_elements;
    }
    return n;
}

static void expect_float(float got, double wanted)
{
    if (got != (float)wanted) fail_msg("got %.9g, wanted %.9g", (double)got, wanted);
}

static void the_mixtral_vectors_have_the_published_elements(void **state)
{
    static const double u[] = {-0.2574191093444824, -0.2967851161956787, 0.806205153465271,
                               -0.9797331094741821};
    const sy_synth_config config = mixtral_vectors();
    sy_model *model = write_and_open(&config);
    const sy_model_desc *d = sy_model_describe(model);
    const sy_tensor *embed = sy_model_tensor(model, SY_ROLE_EMBED, 0, 0);

    (void)state;
    assert_int_equal(sy_model_tensor_count(model), 96);
    assert_int_equal(count_parameters(model), 513984);
    for (size_t i = 0; i < SY_COUNT_OF(u); i++) expect_float(element(embed, i), u[i]);
    assert_int_equal(d->n_layers, 3);
    assert_int_equal(d->top_k, 2);
    assert_true(d->rms_eps == 1e-5f && d->rope_theta == 1e6f);
    assert_int_equal(d->n_eos, 1);
    assert_int_equal(d->eos[0], 0);
    sy_model_close(model);
}

/* u of element i, by the published definition and by nothing of the code under test. */
static float unit_of(const char *name, uint64_t i)
{
    uint64_t z = 0xcbf29ce484222325ull;

    for (; *name != '\0'; name++) z = (z ^ (uint8_t)*name) * 0x100000001b3ull;
    z += i + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (float)((double)(z >> 40) / 8388608.0 - 1.0);
}

static void each_tensor_follows_the_rule_of_its_name(void **state)
{
    static const struct {
        const char *name;
        sy_role role;
        uint32_t layer, expert;
        float offset, scale;
    } rules[] = {
        {"model.norm.weight", SY_ROLE_FINAL_NORM, 0, 0, 1.0f, 0.25f},
        {"model.layers.2.input_layernorm.weight", SY_ROLE_NORM1, 2, 0, 1.0f, 0.25f},
        {"model.layers.1.self_attn.k_norm.weight", SY_ROLE_K_NORM, 1, 0, 1.0f, 0.25f},
        {"model.embed_tokens.weight", SY_ROLE_EMBED, 0, 0, 0.0f, 1.0f},
        {"model.layers.0.mlp.gate.weight", SY_ROLE_GATE, 0, 0, 0.0f, 0.5f},
        {"lm_head.weight", SY_ROLE_HEAD, 0, 0, 0.0f, 0.25f},
        {"model.layers.1.self_attn.o_proj.weight", SY_ROLE_O, 1, 0, 0.0f, 0.25f},
        {"model.layers.2.mlp.experts.15.down_proj.weight", SY_ROLE_EXPERT_DOWN, 2, 15, 0.0f, 0.25f},
    };
    const sy_synth_config config = olmoe_vectors();
    sy_model *model = write_and_open(&config);

    (void)state;
    expect_float(unit_of("a", 3), -0.9111205339431763);
    assert_int_equal(sy_model_tensor_count(model), 174);
    assert_int_equal(count_parameters(model), 368352);
    assert_true(sy_model_describe(model)->qkv_clip == 1.5f);
    assert_int_equal(sy_model_describe(model)->gate.renormalise, 0);
    for (size_t r = 0; r < SY_COUNT_OF(rules); r++) {
        const sy_tensor *tensor =
            sy_model_tensor(model, rules[r].role, rules[r].layer, rules[r].expert);

        assert_string_equal(tensor->name, rules[r].name);
        for (size_t i = 0; i < tensor->n_elements; i++) {
            expect_float(element(tensor, i),
                         rules[r].offset + rules[r].scale * unit_of(rules[r].name, i));
        }
    }
    sy_model_close(model);
}

/* Tensors above one chunk of generation, in both narrow types; shards change nothing. */
static void narrow_types_round_the_same_values(void **state)
{
    static const sy_dtype dtypes[] = {SY_BF16, SY_F16};

    (void)state;
    for (size_t k = 0; k < SY_COUNT_OF(dtypes); k++) {
        sy_synth_config config = mixtral_vectors();
        const sy_tensor *embed;
        sy_model *model;

        config.options.dtype = dtypes[k];
        config.vocab = 1000;
        config.options.shard_bytes_max = k * 200000;
        model = write_and_open(&config);
        embed = sy_model_tensor(model, SY_ROLE_EMBED, 0, 0);
        assert_int_equal(embed->dtype, dtypes[k]);
        assert_int_equal(embed->n_elements, 64000);
        for (size_t i = 0; i < embed->n_elements; i++) {
            const float u = unit_of("model.embed_tokens.weight", i);
            const float wanted = dtypes[k] == SY_BF16 ? sy_bf16_to_f32(sy_f32_to_bf16(u))
                                                      : sy_f16_to_f32(sy_f32_to_f16(u));

            expect_float(element(embed, i), (double)wanted);
        }
        sy_model_close(model);
    }
}

static void scaled_weights_have_unit_gain(void **state)
{
    sy_synth_config config = mixtral_vectors();
    const sy_tensor *tensor;
    sy_model *model;
    double sum = 0.0;
    float first;

    (void)state;
    config.options.recipe = SY_SYNTH_SCALED;
    config.expert_ffn = 512;
    model = write_and_open(&config);
    tensor = sy_model_tensor(model, SY_ROLE_EXPERT_DOWN, 1, 3);
    first = element(tensor, 0);
    for (size_t i = 0; i < tensor->n_elements; i++) {
        sum += (double)element(tensor, i) * (double)element(tensor, i);
    }
    sum = sum / (double)tensor->n_elements * 512.0;
    if (fabs(sum - 1.0) > 0.05) fail_msg("a row's gain is %g, wanted 1", sum);
    sy_model_close(model);
    config.options.seed = 1;
    model = write_and_open(&config);
    assert_true(first != element(sy_model_tensor(model, SY_ROLE_EXPERT_DOWN, 1, 3), 0));
    sy_model_close(model);
}

typedef struct progress_log {
    uint64_t last_bytes, total_bytes, n_calls;
} progress_log;

static void note_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    progress_log *log = arg;

    assert_true(done_bytes > log->last_bytes && done_bytes <= total_bytes);
    log->last_bytes = done_bytes;
    log->total_bytes = total_bytes;
    log->n_calls++;
}

static void progress_reaches_the_total(void **state)
{
    progress_log log = {0};
    sy_synth_config config = mixtral_vectors();

    (void)state;
    config.options.progress = note_progress;
    config.options.progress_arg = &log;
    sy_model_close(write_and_open(&config));
    assert_int_equal(log.total_bytes, 513984 * 4);
    assert_int_equal(log.last_bytes, log.total_bytes);
    assert_true(log.n_calls >= 96);
}

static void a_tokenizer_is_copied_with_its_end_of_text(void **state)
{
    sy_synth_config config = mixtral_vectors();
    sy_model *model;
    sy_error err;
    char *copy;
    char *original;
    size_t copy_n;
    size_t original_n;

    (void)state;
    config.vocab = 2048;
    config.options.tokenizer_dir = SY_SOURCE_DIR "/models/trio";
    model = write_and_open(&config);
    assert_int_equal(sy_model_describe(model)->eos[0], 2047);
    sy_model_close(model);
    expect_ok(sy_file_read(&copy, &copy_n, in_dir(dir, "tokenizer.json"), 1 << 20, &err), &err);
    expect_ok(sy_file_read(&original, &original_n, SY_SOURCE_DIR "/models/trio/tokenizer.json",
                           1 << 20, &err),
              &err);
    assert_int_equal(copy_n, original_n);
    assert_memory_equal(copy, original, copy_n);
    free(copy);
    free(original);
    config.vocab = 2047;
    assert_int_equal(sy_synth_write(dir, &config, &err), SY_EINVAL);
    expect_text(err.message, "eos_token_id is 2047");
    config.options.tokenizer_dir = in_dir(dir, "absent");
    assert_int_equal(sy_synth_write(dir, &config, &err), SY_ENOTFOUND);
    expect_text(err.message, "tokenizer.json");
}

static void expect_refused(const sy_synth_config *config, const char *part)
{
    sy_error err;

    sy_error_clear(&err);
    assert_int_equal(sy_synth_write(in_dir(dir, "new"), config, &err), SY_EINVAL);
    expect_text(err.message, part);
    assert_false(sy_file_exists(in_dir(dir, "new")));
}

static void what_would_not_open_is_not_written(void **state)
{
    sy_synth_config config = mixtral_vectors();

    (void)state;
    config.top_k = 9;
    expect_refused(&config, "num_experts_per_tok is 9");
    config = mixtral_vectors();
    config.hidden = 0;
    expect_refused(&config, "hidden_size is 0");
    config = mixtral_vectors();
    config.vocab = 255;
    expect_refused(&config, "needs 256");
    config = mixtral_vectors();
    config.family = "gpt2";
    expect_refused(&config, "gpt2");
    config = mixtral_vectors();
    config.options.dtype = SY_DTYPE_NONE;
    expect_refused(&config, "none");
    config = mixtral_vectors();
    config.qkv_clip = 1.0f;
    expect_refused(&config, "does not clip");
    config = mixtral_vectors();
    config.rms_eps = NAN;
    expect_refused(&config, "finite");
}

/* Writing over a sharded model leaves one that opens, and the other way round. */
static void a_new_model_replaces_the_old_one(void **state)
{
    sy_synth_config config = mixtral_vectors();
    sy_model *model;

    (void)state;
    config.options.shard_bytes_max = 100000;
    sy_model_close(write_and_open(&config));
    config.options.shard_bytes_max = 0;
    config.n_layers = 1;
    model = write_and_open(&config);
    assert_int_equal(sy_model_describe(model)->n_layers, 1);
    sy_model_close(model);
    config.options.shard_bytes_max = 100000;
    config.n_layers = 2;
    model = write_and_open(&config);
    assert_int_equal(sy_model_describe(model)->n_layers, 2);
    sy_model_close(model);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_mixtral_vectors_have_the_published_elements),
        TEST(each_tensor_follows_the_rule_of_its_name),
        TEST(narrow_types_round_the_same_values),
        TEST(scaled_weights_have_unit_gain),
        TEST(progress_reaches_the_total),
        TEST(a_tokenizer_is_copied_with_its_end_of_text),
        TEST(what_would_not_open_is_not_written),
        TEST(a_new_model_replaces_the_old_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
