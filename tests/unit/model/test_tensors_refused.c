/* test_tensors_refused.c - checkpoints whose tensors are not those that their configuration
 * implies: other shapes, other types, missing and additional ones, of every kind of tensor that a
 * family may have. Each is refused before a weight is read, by the tensor's name. */
#include "checkpoint_files.h"

#include "damaged_model.h"
#include "sy_model.h"

#define L1 "model.layers.1."

static void expect_open(const char *dir)
{
    sy_model *model = NULL;
    sy_error err = {0};

    expect_ok(sy_model_open(&model, dir, NULL, &err), &err);
    sy_model_close(model);
}

static void expect_refused(const char *dir, const char *reason, const char *part,
                           const char *other_part)
{
    sy_model *model = NULL;
    sy_error err = {0};
    const sy_status st = sy_model_open(&model, dir, NULL, &err);

    if (st != SY_EINVAL)
        fail_msg("%s: %s; wanted an error with \"%s\"", sy_status_name(st), err.message, part);
    assert_null(model);
    assert_string_equal(err.reason, reason);
    expect_text(err.message, part);
    expect_text(err.message, other_part);
}

/* ---- shapes ---- */

typedef struct shape_change {
    const char *family, *tensor, *old, *new; /* as the header has them */
    const char *shown, *implied;
} shape_change;

static void refuse_shape(const shape_change *c)
{
    char dir[64], old[256], new[256], has[96], implies[96];

    damaged_make(dir, c->family, SY_BF16);
    snprintf(old, sizeof(old), "\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s]", c->tensor, c->old);
    snprintf(new, sizeof(new), "\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s]", c->tensor, c->new);
    damage_header(dir, old, new);
    snprintf(has, sizeof(has), "tensor \"%s\" has shape [%s]", c->tensor, c->shown);
    snprintf(implies, sizeof(implies), "but config.json implies [%s]", c->implied);
    expect_refused(dir, "BAD_TENSOR", has, implies);
    damaged_remove(dir);
}

static void a_tensor_of_another_shape_shows_both(void **state)
{
    static const shape_change changes[] = {
        {"deepseek_v3", L1 "self_attn.q_a_proj.weight", "24,64", "64,24", "64, 24", "24, 64"},
        {"deepseek_v3", L1 "self_attn.q_a_layernorm.weight", "24", "2,12", "2, 12", "24"},
        {"deepseek_v3", L1 "self_attn.q_b_proj.weight", "96,24", "24,96", "24, 96", "96, 24"},
        {"deepseek_v3", L1 "self_attn.kv_a_proj_with_mqa.weight", "40,64", "20,128", "20, 128",
         "40, 64"},
        {"deepseek_v3", L1 "self_attn.kv_a_layernorm.weight", "32", "32,1", "32, 1", "32"},
        {"deepseek_v3", L1 "self_attn.kv_b_proj.weight", "112,32", "112,2,16", "112, 2, 16",
         "112, 32"},
        {"deepseek_v3", "model.layers.0.mlp.down_proj.weight", "64,96", "96,64", "96, 64",
         "64, 96"},
        {"deepseek_v3", L1 "mlp.shared_experts.up_proj.weight", "64,64", "32,128", "32, 128",
         "64, 64"},
        {"deepseek_v3", L1 "mlp.gate.e_score_correction_bias", "16", "4,4", "4, 4", "16"},
        {"ernie4_5_moe", L1 "mlp.moe_statics.e_score_correction_bias", "16", "16,1", "16, 1", "16"},
        {"qwen2_moe", "model.layers.0.mlp.shared_expert_gate.weight", "1,64", "64", "64", "1, 64"},
        {"qwen2_moe", L1 "self_attn.k_proj.bias", "32", "16,2", "16, 2", "32"},
        {"qwen3_moe", L1 "self_attn.q_norm.weight", "32", "4,8", "4, 8", "32"},
        {"minimax_m2", L1 "self_attn.q_norm.weight", "128", "4,32", "4, 32", "128"},
        {"phimoe", L1 "input_layernorm.bias", "64", "8,8", "8, 8", "64"},
        {"phimoe", "lm_head.bias", "256", "16,16", "16, 16", "256"},
        {"phimoe", L1 "self_attn.o_proj.bias", "64", "2,32", "2, 32", "64"},
        {"gpt_oss", L1 "self_attn.sinks", "4", "2,2", "2, 2", "4"},
        {"gpt_oss", L1 "mlp.router.bias", "8", "2,4", "2, 4", "8"},
        {"gpt_oss", L1 "mlp.experts.gate_up_proj", "8,64,128", "8,128,64", "8, 128, 64",
         "8, 64, 128"},
        {"gpt_oss", L1 "mlp.experts.down_proj_bias", "8,64", "64,8", "64, 8", "8, 64"},
        {"granitemoe", L1 "block_sparse_moe.output_linear.weight", "8,64,32", "8,32,64",
         "8, 32, 64", "8, 64, 32"},
        {"granitemoe", L1 "block_sparse_moe.input_linear.weight", "8,64,64", "4,128,64",
         "4, 128, 64", "8, 64, 64"},
        {"llama4_text", L1 "feed_forward.experts.down_proj", "4,32,64", "4,64,32", "4, 64, 32",
         "4, 32, 64"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(changes); i++) refuse_shape(&changes[i]);
}

static void a_vector_may_be_a_matrix_of_one_row(void **state)
{
    static const char bias[] = L1 "mlp.moe_statics.e_score_correction_bias";
    char dir[64], old[256], new[256];

    (void)state;
    damaged_make(dir, "ernie4_5_moe", SY_BF16);
    snprintf(old, sizeof(old), "\"%s\":{\"dtype\":\"BF16\",\"shape\":[16]", bias);
    snprintf(new, sizeof(new), "\"%s\":{\"dtype\":\"BF16\",\"shape\":[1,16]", bias);
    damage_header(dir, old, new); /* as published */
    expect_open(dir);
    damaged_remove(dir);
}

static void a_configuration_of_other_sizes_than_the_files_shows_both(void **state)
{
    static const struct {
        const char *family, *old, *new, *has, *implies;
    } changes[] = {
        {"deepseek_v3", "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 16", "has shape [40, 64]",
         "implies [24, 64]"},
        {"deepseek_v3", "\"n_shared_experts\": 2", "\"n_shared_experts\": 3", "has shape [64, 64]",
         "implies [96, 64]"},
        {"qwen2_moe", "\"shared_expert_intermediate_size\": 48",
         "\"shared_expert_intermediate_size\": 49", "has shape [48, 64]", "implies [49, 64]"},
        {"hunyuan_v1_moe", "\"num_experts\": 8", "\"num_experts\": 9", "has shape [8, 64]",
         "implies [9, 64]"},
        {"gpt_oss_mxfp4", "\"num_local_experts\": 8", "\"num_local_experts\": 4",
         "has shape [8, 64]", "implies [4, 64]"},
        /* 8 * 2 * 1048576 * 64 elements: no product wraps around. */
        {"granitemoe", "\"intermediate_size\": 32", "\"intermediate_size\": 1048576",
         "has shape [8, 64, 64]", "implies [8, 2097152, 64]"},
        {"llama4_text", "\"num_local_experts\": 4", "\"num_local_experts\": 4096",
         "has shape [4, 64]", "implies [4096, 64]"},
    };
    char dir[64];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(changes); i++) {
        damaged_make(dir, changes[i].family, SY_DTYPE_NONE);
        damage_config(dir, changes[i].old, changes[i].new);
        expect_refused(dir, "BAD_TENSOR", changes[i].has, changes[i].implies);
        damaged_remove(dir);
    }
}

/* A slab whose bytes a 64-bit number cannot count: the file itself is refused. */
static void a_slab_whose_size_wraps_around_is_refused(void **state)
{
    char dir[64];
    sy_model *model = NULL;
    sy_error err = {0};

    (void)state;
    damaged_make(dir, "granitemoe", SY_BF16);
    damage_header(dir,
                  L1 "block_sparse_moe.input_linear.weight\":{\"dtype\":\"BF16\",\"shape\":[8,",
                  L1 "block_sparse_moe.input_linear.weight\":{\"dtype\":\"BF16\",\"shape\":["
                     "2305843009213693960,");
    assert_int_equal(sy_model_open(&model, dir, NULL, &err), SY_EINVAL);
    expect_text(err.message, "input_linear.weight");
    damaged_remove(dir);
}

/* ---- factors of encoded matrices ---- */

static void factors_of_another_shape_or_type_are_refused(void **state)
{
    static const struct {
        const char *family, *old, *new, *part, *other_part;
    } changes[] = {
        {"deepseek_v3_fp8",
         L1 "self_attn.kv_a_proj_with_mqa.weight_scale_inv\":{\"dtype\":\"F32\","
            "\"shape\":[2,2]",
         L1 "self_attn.kv_a_proj_with_mqa.weight_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,4]",
         "kv_a_proj_with_mqa.weight_scale_inv\" has shape [1, 4]", "implies [2, 2]"},
        {"deepseek_v3_fp8", L1 "self_attn.kv_a_proj_with_mqa.weight_scale_inv\":{\"dtype\":\"F32\"",
         L1 "self_attn.kv_a_proj_with_mqa.weight_scale_inv\":{\"dtype\":\"I32\"",
         "kv_a_proj_with_mqa.weight_scale_inv\" has type I32", "F32 is needed"},
        {"deepseek_v3_fp8", L1 "mlp.experts.3.up_proj.weight\":{\"dtype\":\"F8_E4M3\"",
         L1 "mlp.experts.3.up_proj.weight\":{\"dtype\":\"F8_E5M2\"",
         "experts.3.up_proj.weight\" has type F8_E5M2", "only F32, BF16 and F16"},
        {"gpt_oss_mxfp4", L1 "mlp.experts.down_proj_scales\":{\"dtype\":\"U8\",\"shape\":[8,64,2]",
         L1 "mlp.experts.down_proj_scales\":{\"dtype\":\"U8\",\"shape\":[8,2,64]",
         "down_proj_scales\" has shape [8, 2, 64]", "implies [8, 64, 2]"},
        {"gpt_oss_mxfp4",
         L1 "mlp.experts.down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,2,16]",
         L1 "mlp.experts.down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,1,32]",
         "down_proj_blocks\" has shape [8, 64, 1, 32]", "implies [8, 64, 2, 16]"},
        {"gpt_oss_mxfp4", L1 "mlp.experts.down_proj_scales\":{\"dtype\":\"U8\"",
         L1 "mlp.experts.down_proj_scales\":{\"dtype\":\"I8\"", "down_proj_scales\" has type I8",
         "U8 is needed"},
        {"mixtral", L1 "self_attn.q_proj.weight\":{\"dtype\":\"BF16\"",
         L1 "self_attn.q_proj.weight\":{\"dtype\":\"I16\"", "q_proj.weight\" has type I16",
         "only F32, BF16 and F16"},
    };
    char dir[64];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(changes); i++) {
        const int is_plain = strcmp(changes[i].family, "mixtral") == 0;

        damaged_make(dir, changes[i].family, is_plain ? SY_BF16 : SY_DTYPE_NONE);
        damage_header(dir, changes[i].old, changes[i].new);
        expect_refused(dir, "BAD_TENSOR", changes[i].part, changes[i].other_part);
        damaged_remove(dir);
    }
}

/* ---- missing and additional ---- */

static void a_missing_tensor_of_every_family_is_named(void **state)
{
    static const struct {
        const char *family, *tensor;
    } missing[] = {
        {"qwen2_moe", "model.layers.2.mlp.shared_expert_gate.weight"},
        {"qwen3_moe", "model.layers.2.self_attn.k_norm.weight"},
        {"deepseek_v2_lite", "model.layers.0.self_attn.q_proj.weight"},
        {"deepseek_v2", "model.layers.0.self_attn.q_b_proj.weight"},
        {"deepseek_v3", L1 "mlp.gate.e_score_correction_bias"},
        {"granitemoe", L1 "block_sparse_moe.router.layer.weight"},
        {"phimoe", "model.norm.bias"},
        {"gpt_oss", L1 "self_attn.sinks"},
        {"gpt_oss", L1 "mlp.experts.gate_up_proj_bias"},
        {"gpt_oss_mxfp4", L1 "mlp.experts.down_proj_scales"},
        {"gpt_oss_mxfp4", L1 "mlp.experts.gate_up_proj_blocks"},
        {"glm4_moe", "model.layers.0.mlp.gate_proj.weight"},
        {"llama4_text", L1 "feed_forward.shared_expert.down_proj.weight"},
        {"ernie4_5_moe", L1 "mlp.moe_statics.e_score_correction_bias"},
        {"hunyuan_v1_moe", L1 "self_attn.query_layernorm.weight"},
        {"minimax_m2", L1 "block_sparse_moe.e_score_correction_bias"},
    };
    char dir[64], old[256], new[256];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(missing); i++) {
        damaged_make(dir, missing[i].family, SY_DTYPE_NONE);
        snprintf(old, sizeof(old), "\"%s\"", missing[i].tensor);
        snprintf(new, sizeof(new), "\"%s.rotary_emb.inv_freq\"", missing[i].tensor);
        damage_header(dir, old, new); /* which nobody reads */
        expect_refused(dir, "MISSING_TENSOR", missing[i].tensor, "tensors are missing of a ");
        damaged_remove(dir);
    }
}

static void tensors_of_what_a_configuration_switches_off_are_named(void **state)
{
    static const struct {
        const char *family, *old, *new, *tensor;
    } changes[] = {
        {"glm4_moe", "\"use_qk_norm\": true", "\"use_qk_norm\": false",
         "model.layers.0.self_attn.k_norm.weight"},
        {"glm4_moe", "\"attention_bias\": true", "\"attention_bias\": false",
         "model.layers.0.self_attn.k_proj.bias"},
        {"glm4_moe", "\"n_shared_experts\": 1", "\"n_shared_experts\": 0",
         "model.layers.1.mlp.shared_experts.down_proj.weight"},
        {"phimoe", "\"lm_head_bias\": true", "\"lm_head_bias\": false", "lm_head.bias"},
        {"qwen2_moe", "\"qkv_bias\": true", "\"qkv_bias\": false",
         "model.layers.0.self_attn.k_proj.bias"},
        {"qwen2_moe", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
         "lm_head.weight"},
        {"mixtral", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2",
         "model.layers.2.block_sparse_moe.experts.0.w1.weight"},
    };
    char dir[64];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(changes); i++) {
        damaged_make(dir, changes[i].family, SY_DTYPE_NONE);
        damage_config(dir, changes[i].old, changes[i].new);
        expect_refused(dir, "UNKNOWN_TENSOR", changes[i].tensor, "have no place in a ");
        damaged_remove(dir);
    }
}

/* With its last layer declared to be one of those. */
static void layers_that_predict_further_tokens_are_left_alone_where_the_file_has_them(void **state)
{
    static const struct {
        const char *family, *on, *off;
    } models[] = {
        {"deepseek_v3", "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 0"},
        {"glm4_moe", "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": null"},
        {"minimax_m2", "\"num_mtp_modules\": 3", "\"num_mtp_modules\": 0"},
    };
    char dir[64];

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(models); i++) {
        damaged_make(dir, models[i].family, SY_DTYPE_NONE);
        damage_config(dir, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
        expect_open(dir);
        damage_config(dir, models[i].on, models[i].off);
        expect_refused(dir, "UNKNOWN_TENSOR", "model.layers.2.", "have no place in a ");
        damaged_remove(dir);
    }
    /* One layer is declared, and two are there. */
    damaged_make(dir, "deepseek_v3", SY_DTYPE_NONE);
    damage_config(dir, "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
    damage_header(dir, "\"model.layers.2.input_layernorm.weight\"",
                  "\"model.layers.3.input_layernorm.weight\"");
    expect_refused(dir, "UNKNOWN_TENSOR", "model.layers.3.input_layernorm.weight", "1 tensors");
    damaged_remove(dir);
}

static void ernies_blocks_that_predict_further_tokens_need_their_key_too(void **state)
{
    char dir[64];

    (void)state;
    damaged_make(dir, "ernie4_5_moe", SY_DTYPE_NONE);
    damage_header(dir, "{\"__metadata__\"",
                  "{\"model.mtp_hidden_norm.0.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
                  "\"data_offsets\":[0,0]},\"__metadata__\"");
    expect_open(dir);
    damage_config(dir, "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 0");
    expect_refused(dir, "UNKNOWN_TENSOR", "model.mtp_hidden_norm.0.weight", "ernie4_5_moe");
    damaged_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_of_another_shape_shows_both),
        cmocka_unit_test(a_vector_may_be_a_matrix_of_one_row),
        cmocka_unit_test(a_configuration_of_other_sizes_than_the_files_shows_both),
        cmocka_unit_test(a_slab_whose_size_wraps_around_is_refused),
        cmocka_unit_test(factors_of_another_shape_or_type_are_refused),
        cmocka_unit_test(a_missing_tensor_of_every_family_is_named),
        cmocka_unit_test(tensors_of_what_a_configuration_switches_off_are_named),
        cmocka_unit_test(layers_that_predict_further_tokens_are_left_alone_where_the_file_has_them),
        cmocka_unit_test(ernies_blocks_that_predict_further_tokens_need_their_key_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
