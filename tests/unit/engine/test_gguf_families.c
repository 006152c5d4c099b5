/* test_gguf_families.c - models from GGUF files against the same ones from Hugging Face's: the
 * published logits, and bit for bit what the checkpoint gives. Then blocks that are held as they
 * are, and weights that are no numbers. */
#include "test_model.h"

#include <jansson.h>
#include <math.h>

#include "gguf_family.h"

enum { VOCAB = 256, IDS_MAX = 160, STEPS = 12 };

#define TOLERANCE 1e-4 /* of the largest logit */

static char scratch[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(scratch);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(scratch);
    return 0;
}

static const char *checkpoint_dir(void)
{
    return in_dir(scratch, "checkpoint");
}

static const char *gguf_path(void)
{
    return in_dir(scratch, "model.gguf");
}

typedef struct ids {
    uint32_t id[IDS_MAX], n;
} ids;

static json_t *read_vectors(const char *family)
{
    char path[512];
    json_t *root;

    snprintf(path, sizeof(path), "%s/tests/golden/families/%s.vectors.json", SY_SOURCE_DIR, family);
    root = json_load_file(path, 0, NULL);
    if (root == NULL) fail_msg("%s cannot be read", path);
    return root;
}

static ids read_ids(const json_t *array)
{
    ids out = {.n = (uint32_t)json_array_size(array)};

    assert_true(out.n <= IDS_MAX);
    for (uint32_t i = 0; i < out.n; i++)
        out.id[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return out;
}

/* Greedy steps of the model at path. The caller frees the logits, [STEPS, VOCAB]. */
static float *run(const char *path, const ids *prompt, sy_precision precision)
{
    test_output *out = malloc(sizeof(*out));
    float *logits;
    sy_gen_params p;
    test_model m;

    assert_non_null(out);
    test_model_open_as(&m, path, "auto", 2, precision, (sy_engine_config){0});
    test_output_init(out, VOCAB);
    p = test_params(out, prompt->id, prompt->n, STEPS);
    p.want_logits = 1;
    p.ignore_eos = 1;
    test_submit(&m, &p);
    test_wait(out);
    if (out->error.status != SY_OK) fail_msg("%s: %s", path, out->error.message);
    assert_int_equal(out->n_tokens, STEPS);
    test_model_close(&m);
    logits = out->logits;
    out->logits = NULL;
    test_output_free(out);
    free(out);
    return logits;
}

static int is_near(const char *family, const float *got, const json_t *want)
{
    double most = 0, worst = 0;

    assert_int_equal(json_array_size(want), VOCAB);
    for (size_t i = 0; i < VOCAB; i++) {
        const double w = json_number_value(json_array_get(want, i));

        most = fmax(most, fabs(w));
        worst = fmax(worst, fabs((double)got[i] - w));
    }
    if (worst <= TOLERANCE * most) return 1;
    print_message("%s: logits differ by %g, the largest is %g\n", family, worst, most);
    return 0;
}

/* Where the first of two runs' logits that differ stands. */
static int is_same(const char *family, const float *got, const float *want)
{
    for (size_t i = 0; i < (size_t)STEPS * VOCAB; i++) {
        if (memcmp(&got[i], &want[i], sizeof(*got)) == 0) continue;
        print_message("%s: step %zu, logit %zu is %a, the checkpoint gives %a\n", family, i / VOCAB,
                      i % VOCAB, (double)got[i], (double)want[i]);
        return 0;
    }
    return 1;
}

static int check_family(const char *family)
{
    json_t *root = read_vectors(family);
    const json_t *published = json_object_get(root, "published");
    const ids first = read_ids(json_object_get(published, "prompt"));
    const ids prompt = read_ids(json_object_get(json_object_get(root, "long"), "prompt"));
    float *got, *want;
    made_gguf m;
    int is_right;

    write_family(checkpoint_dir(), family, SY_DTYPE_NONE);
    make_family_gguf(&m, family, checkpoint_dir());
    write_made(&m, gguf_path());
    made_free(&m);
    got = run(gguf_path(), &first, (sy_precision){0});
    is_right = is_near(family, got, json_object_get(published, "logits"));
    free(got);
    got = run(gguf_path(), &prompt, (sy_precision){0});
    want = run(checkpoint_dir(), &prompt, (sy_precision){0});
    is_right &= is_same(family, got, want);
    free(got);
    free(want);
    json_decref(root);
    temp_dir_remove(checkpoint_dir());
    return is_right;
}

static void gguf_files_give_the_published_logits_and_the_bits_of_their_checkpoints(void **state)
{
    int n_wrong = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(family_files); i++)
        n_wrong += !check_family(family_files[i].family);
    assert_int_equal(n_wrong, 0);
}

/* ---- blocks ---- */

/* As switchyard rounds weights while it loads them: not the embedding, the routers or
 * biases. */
static int is_rounded(const made_tensor *t)
{
    return t->rank >= 2 && strstr(t->name, "token_embd") == NULL &&
           strstr(t->name, "ffn_gate_inp") == NULL && strstr(t->name, ".bias") == NULL;
}

/* m, whose tensors are F32, with matrices in blocks. */
static void make_rounded(made_gguf *out, made_gguf *m, sy_dtype dtype)
{
    const uint32_t type = dtype == SY_Q8 ? SY_GGUF_Q8_0 : SY_GGUF_Q4_0;

    make_gguf(out);
    put(&out->keys, m->keys.data, m->keys.len);
    out->n_keys = m->n_keys;
    for (uint64_t i = 0; i < m->n_tensors; i++) {
        const made_tensor *t = &m->tensor[i];
        const uint8_t *data = made_data(m, t);
        const uint64_t columns = t->shape[t->rank - 1];
        const size_t rows = t->bytes / (columns * sizeof(float));
        uint8_t *blocks;

        if (!is_rounded(t)) {
            add_tensor(out, t->name, t->type, t->rank, t->shape, data);
            continue;
        }
        blocks = malloc(rows * sy_dtype_row_bytes(dtype, columns));
        assert_non_null(blocks);
        assert_int_equal(sy_quantize_rows(blocks, dtype, data, SY_F32, rows, (uint32_t)columns),
                         SY_OK);
        add_tensor(out, t->name, type, t->rank, t->shape, blocks);
        free(blocks);
    }
}

static void blocks_in_a_file_give_the_bits_of_weights_rounded_on_loading(void **state)
{
    static const sy_dtype dtypes[] = {SY_Q8, SY_Q4};
    static const char *const families[] = {"mixtral", "qwen3_moe", "gpt_oss"};
    int n_wrong = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families) * SY_COUNT_OF(dtypes); i++) {
        const char *family = families[i / SY_COUNT_OF(dtypes)];
        const sy_dtype dtype = dtypes[i % SY_COUNT_OF(dtypes)];
        const ids prompt = {.id = {1, 17, 42, 99, 200, 7, 3, 255, 128, 64}, .n = 10};
        made_gguf plain, rounded;
        float *got, *want;

        write_family(checkpoint_dir(), family, SY_F32);
        make_family_gguf(&plain, family, checkpoint_dir());
        make_rounded(&rounded, &plain, dtype);
        write_made(&rounded, gguf_path());
        made_free(&plain);
        made_free(&rounded);
        want = run(checkpoint_dir(), &prompt, (sy_precision){.weights = dtype});
        got = run(gguf_path(), &prompt, (sy_precision){0});
        n_wrong += !is_same(family, got, want);
        free(got);
        /* To ask for what is stored changes nothing. */
        got = run(gguf_path(), &prompt, (sy_precision){.weights = dtype});
        n_wrong += !is_same(family, got, want);
        free(got);
        free(want);
        temp_dir_remove(checkpoint_dir());
    }
    assert_int_equal(n_wrong, 0);
}

/* ---- loading ---- */

/* Trunk and experts: all that any tier loads. */
static sy_status load(const char *path, sy_precision precision, sy_error *err)
{
    test_model m = {0};
    sy_status st;

    SY_TRY(sy_pool_open(&m.pool, 2, "test"));
    SY_TRY(sy_model_open(&m.model, path, NULL, err));
    SY_TRY(sy_trunk_open(&m.trunk, m.model, sy_kernels_best(), precision, m.pool, err));
    st = sy_moe_local_open(&m.local, m.model, sy_kernels_best(), precision, m.pool, NULL, NULL,
                           NULL, err);
out:
    test_model_close(&m);
    return st;
}

static void expect_refusal(sy_precision precision, sy_status status, const char *part)
{
    sy_error err = {0};
    const sy_status st = load(gguf_path(), precision, &err);

    if (st != status || strstr(err.message, part) == NULL)
        fail_msg("%s: %s; expected %s and \"%s\"", sy_status_name(st), err.message,
                 sy_status_name(status), part);
}

static void weights_that_are_no_numbers_are_refused_by_name(void **state)
{
    static const uint32_t nan_f32 = 0x7fc00000;
    static const struct {
        const char *tensor;
        size_t at;
        const char *named;
    } places[] = {
        {"token_embd.weight", 4 * (200 * 64 + 3), "token_embd.weight"},
        {"blk.1.attn_norm.weight", 0, "blk.1.attn_norm.weight"},
        {"blk.2.attn_q.weight", 4 * 4095, "blk.2.attn_q.weight"},
        {"blk.2.ffn_gate_inp.weight", 0, "blk.2.ffn_gate_inp.weight"},
        {"blk.1.ffn_down_exps.weight", 4 * 3 * 64 * 96,
         "layer 1 expert 3: a weight of down is not a finite number"},
        {"output.weight", 0, "output.weight"},
    };
    made_gguf m;

    (void)state;
    write_family(checkpoint_dir(), "mixtral", SY_F32);
    make_family_gguf(&m, "mixtral", checkpoint_dir());
    for (size_t i = 0; i < SY_COUNT_OF(places); i++) {
        uint8_t *at = made_data(&m, made_find(&m, places[i].tensor)) + places[i].at;
        uint8_t kept[4];

        memcpy(kept, at, sizeof(kept));
        memcpy(at, &nan_f32, sizeof(nan_f32));
        write_made(&m, gguf_path());
        memcpy(at, kept, sizeof(kept));
        expect_refusal((sy_precision){0}, SY_EDATALOSS, places[i].named);
    }
    made_free(&m);
}

/* The scale of one block of the Q8_0 file. */
static void a_block_whose_scale_is_no_number_is_refused_by_name(void **state)
{
    static const uint16_t nan_f16 = 0x7e00;
    made_gguf plain, m;

    (void)state;
    write_family(checkpoint_dir(), "mixtral", SY_F32);
    make_family_gguf(&plain, "mixtral", checkpoint_dir());
    make_rounded(&m, &plain, SY_Q8);
    made_free(&plain);
    memcpy(made_data(&m, made_find(&m, "blk.0.attn_k.weight")) + 34, &nan_f16, sizeof(nan_f16));
    write_made(&m, gguf_path());
    expect_refusal((sy_precision){0}, SY_EDATALOSS, "blk.0.attn_k.weight");
    memset(made_data(&m, made_find(&m, "blk.0.attn_k.weight")) + 34, 0, sizeof(nan_f16));
    memcpy(made_data(&m, made_find(&m, "blk.1.ffn_up_exps.weight")) + 7 * 96 * 68, &nan_f16,
           sizeof(nan_f16));
    write_made(&m, gguf_path());
    expect_refusal((sy_precision){0}, SY_EDATALOSS,
                   "layer 1 expert 7: a weight of up is not a finite number");
    made_free(&m);
}

static void blocks_are_not_rounded_to_other_blocks(void **state)
{
    made_gguf plain, m;

    (void)state;
    write_family(checkpoint_dir(), "mixtral", SY_F32);
    make_family_gguf(&plain, "mixtral", checkpoint_dir());
    make_rounded(&m, &plain, SY_Q8);
    write_made(&m, gguf_path());
    expect_refusal((sy_precision){.weights = SY_Q4}, SY_EINVAL,
                   "is stored as q8, not as q4: use --weights as-stored");
    made_free(&plain);
    made_free(&m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gguf_files_give_the_published_logits_and_the_bits_of_their_checkpoints),
        TEST(blocks_in_a_file_give_the_bits_of_weights_rounded_on_loading),
        TEST(weights_that_are_no_numbers_are_refused_by_name),
        TEST(a_block_whose_scale_is_no_number_is_refused_by_name),
        TEST(blocks_are_not_rounded_to_other_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
