/* test_families.c - every family's tensors: how many a checkpoint has, and that what a role gives
 * is the matrix of the model, however the file holds it. Weights are the published rules'
 * (sy_synth.h): any element can be told from its tensor's name and number. */
#include "checkpoint_files.h"

#include <math.h>

#include "sy_hash.h"
#include "sy_model.h"
#include "synth_model.h"

static float unit_of(const char *name, uint64_t i)
{
    const uint64_t seed = sy_fnv1a(SY_FNV1A_START, name, strlen(name));

    return (float)((int32_t)(sy_splitmix64(seed + i) >> 40) - (1 << 23)) * 0x1p-23f;
}

static sy_model *open_family(const char *dir, const char *name, sy_dtype dtype)
{
    sy_model *model = NULL;
    sy_error err = {0};

    write_family(dir, name, dtype);
    if (sy_model_open(&model, dir, NULL, &err) != SY_OK) fail_msg("%s: %s", name, err.message);
    return model;
}

static void remove_dir(const char *dir)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static uint64_t count_parameters(const sy_model *model)
{
    uint64_t n = 0;

    for (size_t i = 0; i < sy_model_tensor_count(model); i++)
        n += sy_model_tensor_at(model, i)->n_elements;
    return n;
}

static void a_checkpoint_of_every_family_has_the_published_tensors(void **state)
{
    static const struct {
        const char *name;
        size_t n_tensors;
        uint64_t n_parameters;
    } families[] = {
        {"mixtral", 96, 513984},           {"olmoe", 174, 368352},
        {"qwen2_moe", 115, 256448},        {"qwen3_moe", 174, 405120},
        {"deepseek_v2_lite", 131, 321056}, {"deepseek_v2", 137, 314216},
        {"deepseek_v3", 139, 314248},      {"granitemoe", 29, 202688},
        {"phimoe", 116, 220352},           {"gpt_oss", 54, 408996},
        {"glm4_moe", 145, 337312},         {"llama4_text", 45, 181312},
        {"ernie4_5_moe", 129, 295392},     {"hunyuan_v1_moe", 110, 221216},
        {"minimax_m2", 177, 405552},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++) {
        char dir[] = "/tmp/sy-family-XXXXXX";
        sy_model *model;

        assert_non_null(mkdtemp(dir));
        model = open_family(dir, families[i].name, SY_F32);
        if (sy_model_tensor_count(model) != families[i].n_tensors ||
            count_parameters(model) != families[i].n_parameters)
            fail_msg("%s: %zu tensors with %llu parameters, expected %zu with %llu",
                     families[i].name, sy_model_tensor_count(model),
                     (unsigned long long)count_parameters(model), families[i].n_tensors,
                     (unsigned long long)families[i].n_parameters);
        sy_model_close(model);
        remove_dir(dir);
    }
}

/* Row r, column c of an expert's matrix is this element of the file's tensor. */
typedef uint64_t (*element_fn)(uint64_t expert, uint64_t r, uint64_t c, uint64_t rows,
                               uint64_t columns);

static void check_matrix(const sy_model *model, sy_role role, uint32_t layer, uint32_t expert,
                         const char *name, float scale, element_fn at)
{
    const sy_tensor *t = sy_model_tensor(model, role, layer, expert);
    const uint64_t columns = t->rank == 2 ? t->shape[1] : 1;
    float *row = malloc(columns * sizeof(*row));

    assert_string_equal(t->name, name);
    assert_int_equal(sy_tensor_row_bytes(t), columns * sizeof(*row));
    for (uint64_t r = 0; r < t->shape[0]; r++) {
        sy_tensor_read(row, t, r, 1);
        for (uint64_t c = 0; c < columns; c++) {
            const float want = scale * unit_of(name, at(expert, r, c, t->shape[0], columns));
            if (row[c] != want)
                fail_msg("%s, expert %u [%llu,%llu]: %g, expected %g", name, expert,
                         (unsigned long long)r, (unsigned long long)c, (double)row[c],
                         (double)want);
        }
    }
    free(row);
}

static uint64_t rows_gate(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * 2 * rows + r) * columns + c;
}

static uint64_t rows_up(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return ((e * 2 + 1) * rows + r) * columns + c;
}

static uint64_t rows_down(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * rows + r) * columns + c;
}

static uint64_t columns_gate(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * columns + c) * 2 * rows + r;
}

static uint64_t columns_up(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * columns + c) * 2 * rows + rows + r;
}

static uint64_t columns_down(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * columns + c) * rows + r;
}

static uint64_t even_columns(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * columns + c) * 2 * rows + 2 * r;
}

static uint64_t odd_columns(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return (e * columns + c) * 2 * rows + 2 * r + 1;
}

static void check_slabs(const char *family, uint32_t layer, const char *in, const char *out,
                        element_fn gate, element_fn up, element_fn down)
{
    char dir[] = "/tmp/sy-family-XXXXXX";
    sy_model *model;

    assert_non_null(mkdtemp(dir));
    model = open_family(dir, family, SY_F32);
    for (uint32_t e = 0; e < sy_model_describe(model)->n_experts; e++) {
        check_matrix(model, SY_ROLE_EXPERT_GATE, layer, e, in, 0.25f, gate);
        check_matrix(model, SY_ROLE_EXPERT_UP, layer, e, in, 0.25f, up);
        check_matrix(model, SY_ROLE_EXPERT_DOWN, layer, e, out, 0.25f, down);
    }
    sy_model_close(model);
    remove_dir(dir);
}

static void experts_in_slabs_are_found_one_by_one(void **state)
{
    (void)state;
    check_slabs("granitemoe", 1, "model.layers.1.block_sparse_moe.input_linear.weight",
                "model.layers.1.block_sparse_moe.output_linear.weight", rows_gate, rows_up,
                rows_down);
    check_slabs("llama4_text", 1, "model.layers.1.feed_forward.experts.gate_up_proj",
                "model.layers.1.feed_forward.experts.down_proj", columns_gate, columns_up,
                columns_down);
    check_slabs("gpt_oss", 2, "model.layers.2.mlp.experts.gate_up_proj",
                "model.layers.2.mlp.experts.down_proj", even_columns, odd_columns, columns_down);
}

static uint64_t even_elements(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    (void)c, (void)columns;
    return e * 2 * rows + 2 * r;
}

static uint64_t odd_elements(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    return even_elements(e, r, c, rows, columns) + 1;
}

static uint64_t plain_elements(uint64_t e, uint64_t r, uint64_t c, uint64_t rows, uint64_t columns)
{
    (void)c, (void)columns;
    return e * rows + r;
}

static void biases_of_experts_are_found_one_by_one(void **state)
{
    char dir[] = "/tmp/sy-family-XXXXXX";
    sy_model *model;

    (void)state;
    assert_non_null(mkdtemp(dir));
    model = open_family(dir, "gpt_oss", SY_F32);
    for (uint32_t e = 0; e < 8; e++) {
        const char *in = "model.layers.1.mlp.experts.gate_up_proj_bias";

        check_matrix(model, SY_ROLE_EXPERT_GATE_BIAS, 1, e, in, 0.125f, even_elements);
        check_matrix(model, SY_ROLE_EXPERT_UP_BIAS, 1, e, in, 0.125f, odd_elements);
        check_matrix(model, SY_ROLE_EXPERT_DOWN_BIAS, 1, e,
                     "model.layers.1.mlp.experts.down_proj_bias", 0.125f, plain_elements);
    }
    sy_model_close(model);
    remove_dir(dir);
}

static void layers_without_experts_have_none(void **state)
{
    char dir[] = "/tmp/sy-family-XXXXXX";
    sy_model *model;

    (void)state;
    assert_non_null(mkdtemp(dir));
    model = open_family(dir, "qwen2_moe", SY_F32);
    for (uint32_t l = 0; l < 3; l++) {
        assert_int_equal(sy_model_has_experts(sy_model_describe(model), l), l != 1);
        assert_int_equal(sy_model_tensor(model, SY_ROLE_GATE, l, 0) != NULL, l != 1);
        assert_int_equal(sy_model_tensor(model, SY_ROLE_EXPERT_UP, l, 11) != NULL, l != 1);
        assert_int_equal(sy_model_tensor(model, SY_ROLE_SHARED_MIX, l, 0) != NULL, l != 1);
        assert_int_equal(sy_model_tensor(model, SY_ROLE_DENSE_DOWN, l, 0) != NULL, l == 1);
    }
    sy_model_close(model);
    remove_dir(dir);
}

/* Elements are made smaller by 0 to 3 powers of two, block by block; e4m3 keeps three bits after
 * the first. */
static void fp8_blocks_read_as_the_weights_they_stand_for(void **state)
{
    static const char name[] = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight";
    char dir[] = "/tmp/sy-family-XXXXXX";
    const sy_tensor *t;
    sy_model *model;
    uint16_t row[256];

    (void)state;
    assert_non_null(mkdtemp(dir));
    model = open_family(dir, "deepseek_v3_fp8", SY_DTYPE_NONE);
    t = sy_model_tensor(model, SY_ROLE_KV_A, 1, 0);
    assert_string_equal(t->dtype_name, "F8_E4M3");
    assert_int_equal(t->dtype, SY_BF16);
    assert_int_equal(t->shape[0], 160); /* a whole block and a part */
    assert_int_equal(t->shape[1], 256);
    for (uint64_t r = 0; r < 160; r++) {
        sy_tensor_read(row, t, r, 1);
        for (uint64_t c = 0; c < 256; c++) {
            const float dimmed = ldexpf(0.25f, -(int)((r / 128 + 2 * (c / 128)) % 4));
            const float want = dimmed * unit_of(name, r * 256 + c), got = sy_bf16_to_f32(row[c]);
            if (fabsf(got - want) > fmaxf(fabsf(want) / 16, 0x1p-18f * dimmed))
                fail_msg("[%d,%d]: %g, expected about %g", (int)r, (int)c, (double)got,
                         (double)want);
        }
    }
    assert_int_equal(sy_model_tensor(model, SY_ROLE_GATE, 1, 0)->encoding, SY_ENCODING_PLAIN);
    assert_int_equal(sy_model_tensor(model, SY_ROLE_GATE_BIAS, 1, 0)->dtype, SY_F32);
    sy_model_close(model);
    remove_dir(dir);
}

static void mxfp4_blocks_read_as_the_weights_they_stand_for(void **state)
{
    static const char name[] = "model.layers.0.mlp.experts.gate_up_proj";
    char dir[] = "/tmp/sy-family-XXXXXX";
    const sy_tensor *t;
    sy_model *model;
    uint16_t row[64];

    (void)state;
    assert_non_null(mkdtemp(dir));
    model = open_family(dir, "gpt_oss_mxfp4", SY_DTYPE_NONE);
    t = sy_model_tensor(model, SY_ROLE_EXPERT_UP, 0, 5);
    assert_int_equal(t->encoding, SY_ENCODING_MXFP4);
    for (uint64_t r = 0; r < t->shape[0]; r++) {
        sy_tensor_read(row, t, r, 1);
        for (uint64_t c = 0; c < 64; c++) {
            const float dimmed = ldexpf(0.25f, -(int)((2 * r + 1 + 2 * (c / 32)) % 4));
            const float got = sy_bf16_to_f32(row[c]);
            const float want = dimmed * unit_of(name, odd_columns(5, r, c, t->shape[0], 64));
            /* The largest element of a block is between 3 and 6, where steps are 1 and 2. */
            if (fabsf(got - want) > dimmed / 3)
                fail_msg("[%d,%d]: %g, expected about %g", (int)r, (int)c, (double)got,
                         (double)want);
        }
    }
    sy_model_close(model);
    remove_dir(dir);
}

/* What NumPy and transformers were given, byte by byte: checksums of the vectors' files. */
static void encoded_tensors_are_those_that_the_vectors_were_made_with(void **state)
{
    static const struct {
        const char *family, *tensor;
        uint64_t hash;
    } tensors[] = {
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.down_proj.weight", 0x70ec953a231420ed},
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.down_proj.weight_scale_inv",
         0x48e4a3c2a02fba05},
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.gate_proj.weight", 0x9522fdf837a92685},
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv",
         0x4731a0c29ebe206c},
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.up_proj.weight", 0xe3d84ebd5355fade},
        {"deepseek_v3_fp8", "model.layers.1.mlp.experts.3.up_proj.weight_scale_inv",
         0x4731a0c29ebe206c},
        {"deepseek_v3_fp8", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
         0xe98600001309b864},
        {"deepseek_v3_fp8", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
         0x9b05298af8d88a25},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.down_proj_bias", 0x1b90086dc857557b},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.down_proj_blocks", 0xe176c2140cd95bbc},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.down_proj_scales", 0xa517c601346fff25},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.gate_up_proj_bias", 0xd5931bb8d75e3aee},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.gate_up_proj_blocks", 0xf25e81aa1eecc5ca},
        {"gpt_oss_mxfp4", "model.layers.1.mlp.experts.gate_up_proj_scales", 0x9865f255327ddb25},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(tensors); i++) {
        char dir[] = "/tmp/sy-family-XXXXXX";
        const sy_tensor *t = NULL;
        sy_model *model;

        assert_non_null(mkdtemp(dir));
        model = open_family(dir, tensors[i].family, SY_DTYPE_NONE);
        for (size_t k = 0; k < sy_model_tensor_count(model); k++)
            if (strcmp(sy_model_tensor_at(model, k)->name, tensors[i].tensor) == 0)
                t = sy_model_tensor_at(model, k);
        if (t == NULL) fail_msg("there is no %s", tensors[i].tensor);
        if (sy_fnv1a(SY_FNV1A_START, t->data, t->bytes) != tensors[i].hash)
            fail_msg("%s of %s has other bytes", tensors[i].tensor, tensors[i].family);
        sy_model_close(model);
        remove_dir(dir);
    }
}

static void fp8_without_its_factors_is_refused_by_name(void **state)
{
    char dir[] = "/tmp/sy-family-XXXXXX", command[256];
    sy_model *model;
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    sy_model_close(open_family(dir, "deepseek_v3_fp8", SY_DTYPE_NONE));
    /* Another name of the same length leaves the file's layout as it is. */
    snprintf(command, sizeof(command),
             "sed -i 's/layers.2.mlp.experts.7.up_proj.weight_scale_inv/"
             "layers.2.mlp.experts.7.up_proj.weight_scale_xxx/' %s/model.safetensors",
             dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(sy_model_open(&model, dir, NULL, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "experts.7.up_proj.weight_scale_inv"));
    assert_string_equal(err.reason, "BAD_TENSOR");
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_of_every_family_has_the_published_tensors),
        cmocka_unit_test(experts_in_slabs_are_found_one_by_one),
        cmocka_unit_test(biases_of_experts_are_found_one_by_one),
        cmocka_unit_test(layers_without_experts_have_none),
        cmocka_unit_test(fp8_blocks_read_as_the_weights_they_stand_for),
        cmocka_unit_test(mxfp4_blocks_read_as_the_weights_they_stand_for),
        cmocka_unit_test(encoded_tensors_are_those_that_the_vectors_were_made_with),
        cmocka_unit_test(fp8_without_its_factors_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
