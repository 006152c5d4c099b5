/* test_model_gguf.c - models from GGUF files: what is opened by which path, where a role's rows
 * come from, and what is refused with which words. */
#include "gguf_family.h"

#include "sy_tokenizer.h"

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

static const char *gguf_path(void)
{
    return in_dir(scratch, "model.gguf");
}

static void make(made_gguf *m, const char *family)
{
    const char *dir = in_dir(scratch, "checkpoint");

    write_family(dir, family, SY_F32);
    make_family_gguf(m, family, dir);
    temp_dir_remove(dir);
}

static sy_model *open_model(const char *path)
{
    sy_model *model;
    sy_error err = {0};

    expect_ok(sy_model_open(&model, path, NULL, &err), &err);
    return model;
}

static void expect_refusal(const made_gguf *m, sy_status status, const char *const *parts)
{
    sy_model *model;
    sy_error err = {0};

    write_made(m, gguf_path());
    assert_int_equal(sy_model_open(&model, gguf_path(), NULL, &err), status);
    assert_null(model);
    expect_text(err.message, gguf_path());
    for (; *parts != NULL; parts++) expect_text(err.message, *parts);
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- paths ---- */

static void a_file_and_the_folder_that_holds_it_are_the_same_model(void **state)
{
    sy_model *by_file, *by_dir;
    uint64_t of_file, of_dir;
    sy_error err = {0};
    made_gguf m;

    (void)state;
    make(&m, "qwen3_moe");
    write_made(&m, gguf_path());
    made_free(&m);
    by_file = open_model(gguf_path());
    by_dir = open_model(scratch);
    assert_int_equal(sy_model_describe(by_file)->n_experts, 16);
    assert_int_equal(sy_model_structure_hash(by_file), sy_model_structure_hash(by_dir));
    expect_ok(sy_model_checkpoint_hash(&of_file, by_file, &err), &err);
    expect_ok(sy_model_checkpoint_hash(&of_dir, by_dir, &err), &err);
    assert_int_equal(of_file, of_dir);
    sy_model_close(by_file);
    sy_model_close(by_dir);
}

static void a_file_that_is_not_there_is_named(void **state)
{
    sy_model *model;
    sy_error err = {0};

    (void)state;
    assert_int_equal(sy_model_open(&model, gguf_path(), NULL, &err), SY_EINVAL);
    expect_text(err.message, gguf_path());
    expect_text(err.message, "no such file");
}

/* ---- rows ---- */

/* The parts of kv_b_proj are no run of bytes: whatever looks at the whole must not pass the end of
 * one of them. Here each in turn is the last of the file. */
static void a_part_of_a_latent_may_end_the_file(void **state)
{
    static const char *const parts[] = {"blk.2.attn_k_b.weight", "blk.2.attn_v_b.weight"};
    static const uint64_t shapes[2][3] = {{4, 32, 16}, {4, 12, 32}};
    made_gguf m;

    (void)state;
    make(&m, "deepseek_v3");
    for (size_t i = 0; i < 2; i++) {
        float row[32], last[32];
        uint64_t before, after;
        const sy_tensor *t;
        sy_model *model;
        sy_error err = {0};

        made_replace(&m, parts[i], SY_GGUF_F32, 3, shapes[i]);
        write_made(&m, gguf_path());
        model = open_model(gguf_path());
        t = sy_model_tensor(model, SY_ROLE_KV_B, 2, 0);
        assert_int_equal(t->encoding, SY_ENCODING_GGUF_KV_B);
        assert_int_equal(t->bytes, 4 * (16 + 12) * 32 * sizeof(float));
        expect_ok(sy_model_checkpoint_hash(&before, model, &err), &err);
        sy_tensor_release(t);
        sy_tensor_read(row, t, 16 * i, 1);
        sy_tensor_read(last, t, t->shape[0] - 1, 1);
        assert_true(row[0] == 0.0f && (i == 0 || last[31] == 0.0f));
        sy_model_close(model);
        made_data(&m, made_find(&m, parts[i]))[3] = 0x3f; /* the fingerprint knows both parts */
        write_made(&m, gguf_path());
        model = open_model(gguf_path());
        expect_ok(sy_model_checkpoint_hash(&after, model, &err), &err);
        assert_int_not_equal(after, before);
        sy_model_close(model);
    }
    made_free(&m);
}

/* Files from before 2025-04 have kv_b_proj whole, in blocks as any matrix. */
static void a_latent_in_blocks_is_read_element_by_element(void **state)
{
    enum { ROWS = 4 * (16 + 12), COLUMNS = 32, BLOCK = 34 };
    uint8_t blocks[ROWS * BLOCK];
    uint16_t row[COLUMNS];
    const sy_tensor *t;
    sy_model *model;
    made_gguf m;

    (void)state;
    make(&m, "deepseek_v3");
    for (unsigned r = 0; r < ROWS; r++) {
        memcpy(blocks + r * BLOCK, &(uint16_t){0x2e66}, 2); /* about 0.1 */
        for (unsigned c = 0; c < COLUMNS; c++) blocks[r * BLOCK + 2 + c] = (uint8_t)(r + c);
    }
    for (unsigned l = 0; l < 3; l++) {
        char name[64];

        snprintf(name, sizeof(name), "blk.%u.attn_k_b.weight", l);
        made_remove(&m, name);
        snprintf(name, sizeof(name), "blk.%u.attn_v_b.weight", l);
        made_remove(&m, name);
        snprintf(name, sizeof(name), "blk.%u.attn_kv_b.weight", l);
        add_matrix(&m, name, SY_GGUF_Q8_0, ROWS, COLUMNS, blocks);
    }
    write_made(&m, gguf_path());
    made_free(&m);
    model = open_model(gguf_path());
    t = sy_model_tensor(model, SY_ROLE_KV_B, 1, 0);
    assert_int_equal(t->dtype, SY_BF16);
    sy_tensor_read(row, t, 100, 1);
    for (unsigned c = 0; c < COLUMNS; c++) {
        const float element = sy_f16_to_f32(0x2e66) * (float)(int8_t)(uint8_t)(100 + c);

        if (row[c] != sy_f32_to_bf16(element))
            fail_msg("element %u is %g, expected %g", c, (double)sy_bf16_to_f32(row[c]),
                     (double)element);
    }
    sy_model_close(model);
}

/* What rounds nothing: a file's bytes are those that memory holds. */
static void blocks_that_memory_can_hold_stay_as_they_are(void **state)
{
    static const struct {
        uint32_t type;
        sy_dtype dtype;
    } types[] = {{SY_GGUF_Q8_0, SY_Q8},   {SY_GGUF_Q4_0, SY_Q4},   {SY_GGUF_F16, SY_F16},
                 {SY_GGUF_BF16, SY_BF16}, {SY_GGUF_Q5_0, SY_BF16}, {SY_GGUF_MXFP4, SY_BF16}};
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    for (size_t i = 0; i < SY_COUNT_OF(types); i++) {
        const sy_tensor *t;
        sy_model *model;

        made_replace(&m, "blk.1.ffn_up_exps.weight", types[i].type, 3, (uint64_t[]){8, 96, 64});
        made_replace(&m, "blk.1.attn_k.weight", types[i].type, 2, (uint64_t[]){32, 64});
        write_made(&m, gguf_path());
        model = open_model(gguf_path());
        t = sy_model_tensor(model, SY_ROLE_EXPERT_UP, 1, 7);
        assert_int_equal(t->dtype, types[i].dtype);
        assert_int_equal(sy_tensor_is_in_place(t), i < 4);
        assert_int_equal(t->bytes, 96 * sy_gguf_row_bytes(types[i].type, 64));
        assert_int_equal(sy_tensor_span(t), t->bytes);
        t = sy_model_tensor(model, SY_ROLE_K, 1, 0);
        assert_int_equal(t->dtype, types[i].dtype);
        assert_false(sy_tensor_is_in_place(t)); /* its heads are interleaved */
        sy_model_close(model);
    }
    made_free(&m);
}

/* ---- refusals ---- */

static void tensors_that_are_missing_are_named(void **state)
{
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    made_remove(&m, "blk.1.ffn_up_exps.weight");
    made_remove(&m, "blk.2.attn_norm.weight");
    expect_refusal(&m, SY_EINVAL,
                   PARTS("2 tensors are missing", "model.layers.2.input_layernorm.weight",
                         "model.layers.1.block_sparse_moe.experts.{e}.w3.weight"));
    made_free(&m);
    make(&m, "deepseek_v3");
    made_remove(&m, "blk.0.attn_k_b.weight");
    expect_refusal(&m, SY_EINVAL, PARTS("1 tensors are missing", "layers.0.self_attn.kv_b_proj"));
    made_free(&m);
    make(&m, "granitemoe");
    made_remove(&m, "blk.0.ffn_up_exps.weight");
    expect_refusal(&m, SY_EINVAL, PARTS("1 tensors are missing", "input_linear.weight"));
    made_free(&m);
}

static void tensors_too_many_are_named(void **state)
{
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    add_vector(&m, "blk.1.attn_q.bias", 64, NULL);
    expect_refusal(&m, SY_EINVAL,
                   PARTS("1 tensors have no place", "the metadata", "blk.1.attn_q.bias"));
    made_remove(&m, "blk.1.attn_q.bias");
    add_vector(&m, "blk.1.attn_magic.weight", 64, NULL);
    expect_refusal(&m, SY_EINVAL, PARTS("\"blk.1.attn_magic.weight\" is none that llama has"));
    made_free(&m);
}

static void a_shape_against_the_metadata_is_named(void **state)
{
    made_gguf m;

    (void)state;
    make(&m, "qwen3_moe");
    made_replace(&m, "blk.2.ffn_down_exps.weight", SY_GGUF_F32, 3, (uint64_t[]){16, 64, 31});
    expect_refusal(&m, SY_EINVAL,
                   PARTS("\"blk.2.ffn_down_exps.weight\" of type F32 is 16 x [64, 31]",
                         "the metadata implies 16 x [64, 32]"));
    made_replace(&m, "blk.2.ffn_down_exps.weight", SY_GGUF_F32, 3, (uint64_t[]){15, 64, 32});
    expect_refusal(&m, SY_EINVAL, PARTS("is 15 x [64, 32]", "implies 16 x [64, 32]"));
    made_replace(&m, "blk.2.ffn_down_exps.weight", SY_GGUF_F32, 3, (uint64_t[]){16, 64, 32});
    made_replace(&m, "blk.0.attn_norm.weight", SY_GGUF_F32, 1, (uint64_t[]){63});
    expect_refusal(&m, SY_EINVAL, PARTS("\"blk.0.attn_norm.weight\"", "implies 1 x [1, 64]"));
    made_free(&m);
    make(&m, "deepseek_v3");
    made_replace(&m, "blk.1.attn_v_b.weight", SY_GGUF_F32, 3, (uint64_t[]){4, 13, 32});
    expect_refusal(&m, SY_EINVAL,
                   PARTS("\"blk.1.attn_v_b.weight\"", "4 x [13, 32]", "4 x [12, 32]"));
    made_free(&m);
}

static void types_that_nothing_decodes_are_named(void **state)
{
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    made_replace(&m, "blk.1.attn_v.weight", 7, 2, (uint64_t[]){32, 64});
    expect_refusal(&m, SY_EINVAL,
                   PARTS("tensor \"blk.1.attn_v.weight\": the type Q5_1 is not supported",
                         "quantise the model to one of them"));
    made_free(&m);
}

/* A block type has fewer bytes than its elements would need as bf16. */
static void vectors_in_blocks_are_refused(void **state)
{
    static const uint32_t types[] = {SY_GGUF_Q8_0, SY_GGUF_MXFP4};
    made_gguf m;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(types); i++) {
        make(&m, "gpt_oss");
        made_replace(&m, "blk.0.attn_norm.weight", types[i], 1, (uint64_t[]){64});
        expect_refusal(&m, SY_EINVAL,
                       PARTS("\"blk.0.attn_norm.weight\"", "must be F32, F16 or BF16"));
        made_replace(&m, "blk.0.attn_norm.weight", SY_GGUF_F32, 1, (uint64_t[]){64});
        made_replace(&m, "blk.2.ffn_up_exps.bias", types[i], 2, (uint64_t[]){8, 64});
        expect_refusal(&m, SY_EINVAL,
                       PARTS("\"blk.2.ffn_up_exps.bias\"", "must be F32, F16 or BF16"));
        made_free(&m);
    }
}

static sy_status read_last_row(void *arg)
{
    const sy_model *model = arg;
    const sy_tensor *t = sy_model_tensor(model, SY_ROLE_EXPERT_UP, 2, 7);
    float row[64];

    sy_tensor_read(row, t, t->shape[0] - 1, 1);
    return SY_OK;
}

static void a_file_that_is_cut_while_open_is_lost_data(void **state)
{
    sy_model *model;
    sy_error err = {0};
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    made_replace(&m, "blk.2.ffn_up_exps.weight", SY_GGUF_F32, 3, (uint64_t[]){8, 96, 64});
    write_made(&m, gguf_path());
    made_free(&m);
    model = open_model(gguf_path());
    expect_ok(sy_map_guard(read_last_row, model, &err), &err);
    assert_int_equal(truncate(gguf_path(), 1 << 19), 0);
    assert_int_equal(sy_map_guard(read_last_row, model, &err), SY_EDATALOSS);
    sy_model_close(model);
}

static void a_tokenizer_that_is_not_known_is_named(void **state)
{
    sy_tokenizer *tokenizer;
    sy_error err = {0};
    made_gguf m;

    (void)state;
    make(&m, "mixtral");
    write_made(&m, gguf_path());
    expect_ok(sy_tokenizer_open(&tokenizer, gguf_path(), 256, &err), &err);
    sy_tokenizer_close(tokenizer);
    memcpy(memmem(m.keys.data, m.keys.len, "gpt-2", 5), "gpt-9", 5);
    write_made(&m, gguf_path());
    made_free(&m);
    assert_int_equal(sy_tokenizer_open(&tokenizer, gguf_path(), 256, &err), SY_EUNIMPLEMENTED);
    expect_text(err.message, gguf_path());
    expect_text(err.message, "gpt-9");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_and_the_folder_that_holds_it_are_the_same_model),
        TEST(a_file_that_is_not_there_is_named),
        TEST(a_part_of_a_latent_may_end_the_file),
        TEST(a_latent_in_blocks_is_read_element_by_element),
        TEST(blocks_that_memory_can_hold_stay_as_they_are),
        TEST(tensors_that_are_missing_are_named),
        TEST(tensors_too_many_are_named),
        TEST(a_shape_against_the_metadata_is_named),
        TEST(types_that_nothing_decodes_are_named),
        TEST(vectors_in_blocks_are_refused),
        TEST(a_file_that_is_cut_while_open_is_lost_data),
        TEST(a_tokenizer_that_is_not_known_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
