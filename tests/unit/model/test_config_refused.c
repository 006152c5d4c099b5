/* test_config_refused.c - options that would change what a published model computes and that
 * nothing here implements, and sizes that do not fit together: refused, by the name of the key. */
#include "config_text.h"

#include "config_published.h"

/* base with `old` replaced by `new` is refused, and the message has both parts. */
typedef struct change {
    const char *base, *old, *new, *part, *other_part;
} change;

static void refuse_all(const change *changes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        config_refuse(changes[i].base, changes[i].old, changes[i].new, changes[i].part,
                      changes[i].other_part);
}

#define REFUSE_ALL(changes) refuse_all(changes, SY_COUNT_OF(changes))

/* The indexer of V3.2 chooses which keys a query sees: computing without it gives other texts. */
static void sparse_attention_of_deepseek_v3_2_is_refused(void **state)
{
    (void)state;
    config_refuse(deepseek_v3, "'model_type': 'deepseek_v3'", "'model_type': 'deepseek_v32'",
                  "deepseek_v32", "the known families are mixtral, ");
    config_refuse_added(deepseek_v3, "'index_topk': 2048, 'index_n_heads': 64", "index_topk",
                        "not supported");
}

static void positions_other_than_rotations_are_refused(void **state)
{
    static const char *const added[][3] = {
        {"'alibi': true", "alibi is true", "not supported"},
        {"'use_alibi': true", "use_alibi is true", "not supported"},
        {"'position_embedding_type': 'nope'", "position_embedding_type \"nope\"", "\"rope\""},
        {"'position_embedding_type': 'alibi'", "position_embedding_type \"alibi\"", "\"rope\""},
        {"'position_embedding_xdrope': true", "position_embedding_xdrope", "not supported"},
        {"'use_rotary_pos_emb': false", "use_rotary_pos_emb is false", "not supported"},
        {"'compression_ratio': 2.0", "compression_ratio is not 1", "not supported"},
        {"'no_rope_layers': [1, 1, 1, 0]", "no_rope_layers", "not supported"},
        {"'attention_chunk_size': 8192", "attention_chunk_size", "not supported"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(added); i++)
        config_refuse_added(granite_3b, added[i][0], added[i][1], added[i][2]);
}

static void layers_that_share_or_differ_in_width_are_refused(void **state)
{
    static const change changes[] = {
        {hunyuan_a13b, "'use_cla': false", "'use_cla': true", "use_cla", "not supported"},
        {hunyuan_a13b, "'num_shared_expert': [1, 1", "'num_shared_expert': [2, 2",
         "num_shared_expert[2]", "layers that differ"},
        {hunyuan_a13b, "'num_shared_expert': [" THIRTY_TWO("1") "]", "'num_shared_expert': 2",
         "num_shared_expert is 2", "only 1"},
        {hunyuan_a13b, "'moe_layer_num_skipped': 0", "'moe_layer_num_skipped': 1",
         "moe_layer_num_skipped", "not supported"},
        {hunyuan_a13b, "'group_limited_greedy': false", "'group_limited_greedy': true",
         "group_limited_greedy", "not supported"},
        {ernie45_21b, "'moe_layer_start_index': 1", "'moe_layer_start_index': [1, 1]",
         "moe_layer_start_index is an array", "an integer is needed"},
        {ernie45_21b, "'moe_num_experts': 64", "'moe_num_experts': [64, 64]",
         "moe_num_experts is an array", "an integer is needed"},
        {ernie45_21b, "'moe_gate_act': null", "'moe_gate_act': 'sigmoid'",
         "moe_gate_act \"sigmoid\"", "\"softmax\""},
        {ernie45_21b, "{", "{'moe_norm_gate_logits': false, ", "moe_norm_gate_logits is false",
         "not supported"},
        {ernie45_21b, "'use_bias': false", "'use_bias': true", "use_bias", "not supported"},
        {granite_3b, "{", "{'shared_intermediate_size': 512, ", "shared_intermediate_size",
         "not supported"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

/* A key that another family has does not mean here what it means there. */
static void rules_of_other_families_are_refused(void **state)
{
    static const change changes[] = {
        {deepseek_v3, "{", "{'mlp_only_layers': [4], ", "mlp_only_layers", "not supported"},
        {deepseek_v3, "{", "{'decoder_sparse_step': 2, ", "decoder_sparse_step", "not 1"},
        {qwen3_235b, "{", "{'first_k_dense_replace': 1, ", "first_k_dense_replace", "not 0"},
        {qwen3_235b, "{", "{'moe_layers': [0, 1], ", "moe_layers", "not supported"},
        {qwen3_235b, "{", "{'n_shared_experts': 1, ", "n_shared_experts", "not 0"},
        {qwen2_57b, "{", "{'n_shared_experts': 1, ", "n_shared_experts", "not 0"},
        {qwen2_57b, "'use_sliding_window': false", "'use_sliding_window': true",
         "use_sliding_window is true", "not supported"},
        {qwen3_235b, "{", "{'swiglu_limit': 7.0, ", "swiglu_limit", "not supported"},
        {qwen3_235b, "{", "{'kv_lora_rank': 512, ", "kv_lora_rank", "not 0"},
        {qwen3_235b, "{", "{'num_nextn_predict_layers': 1, ", "num_nextn_predict_layers", "not 0"},
        {glm45, "{", "{'embedding_multiplier': 12.0, ", "embedding_multiplier", "glm4_moe"},
        {glm45, "{", "{'scoring_func': 'softmax', ", "scoring_func", "\"sigmoid\""},
        {deepseek_v2, "'norm_topk_prob': false", "'norm_topk_prob': true", "norm_topk_prob is true",
         "deepseek_v2 always"},
        {deepseek_v2, "'topk_method': 'group_limited_greedy'", "'topk_method': 'noaux_tc'",
         "topk_method \"noaux_tc\"", "group_limited_greedy"},
        {deepseek_v3, "'topk_method': 'noaux_tc'", "'topk_method': 'greedy'",
         "topk_method \"greedy\"", "noaux_tc"},
        {gpt_oss_20b, "'hidden_act': 'silu'", "'hidden_act': 'gelu'", "hidden_act", "gelu"},
        {llama4_scout, "'attention_bias': false", "'attention_bias': true", "attention_bias",
         "not supported"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void encodings_that_nothing_reads_are_refused(void **state)
{
    static const change changes[] = {
        {deepseek_v3, "'quant_method': 'fp8'", "'quant_method': 'compressed-tensors'",
         "compressed-tensors", "not supported for deepseek_v3"},
        {deepseek_v3, "'weight_block_size': [128, 128]", "'weight_block_size': [1, 128]",
         "weight_block_size", "[128, 128]"},
        {deepseek_v3, "'weight_block_size': [128, 128]", "'weight_block_size': null",
         "weight_block_size", "[128, 128]"},
        {deepseek_v3, "'fmt': 'e4m3'", "'fmt': 'e5m2'", "quantization_config.fmt", "e4m3"},
        {deepseek_v3, "'quant_method': 'fp8'", "'quant_method': 'mxfp4'", "mxfp4",
         "not supported for deepseek_v3"},
        {deepseek_v3, "'quant_method': 'fp8'", "'quant_method': 8", "(none)", "fp8 is"},
        /* Beside text_config as well. */
        {llama4_maverick, "{", "{'quantization_config': {'quant_method': 'fbgemm_fp8'}, ",
         "fbgemm_fp8", "not supported for llama4"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void gates_that_cannot_choose_are_refused(void **state)
{
    static const change changes[] = {
        {deepseek_v3, "'n_group': 8", "'n_group': 7", "n_group is 7", "256 experts"},
        {deepseek_v3, "'n_group': 8", "'n_group': 0", "n_group is 0", "outside"},
        {deepseek_v3, "'n_group': 8", "'n_group': 128", "n_group is 128", "outside [1, 64]"},
        {deepseek_v3, "'topk_group': 4", "'topk_group': 9", "topk_group is 9", "8 groups"},
        /* 4 groups of 1 expert are too few to choose 8 from. */
        {deepseek_v3, "'n_routed_experts': 256", "'n_routed_experts': 8", "topk_group is 4 of 8",
         "8 experts cannot be chosen"},
        {deepseek_v3, "'topk_group': 4", "'topk_group': 0", "topk_group is 0", "outside"},
        {deepseek_v3, "'topk_group': 4", "'topk_group': -1", "topk_group is -1", "outside"},
        {deepseek_v2, "'topk_group': 3, ", "", "topk_group is missing", "an integer"},
        {kimi_k2, "'num_experts_per_tok': 8", "'num_experts_per_tok': 385",
         "num_experts_per_tok is 385", "outside [1, 64]"},
        {qwen15_a2_7b, "'num_experts_per_tok': 4", "'num_experts_per_tok': 61",
         "num_experts_per_tok is 61", "num_experts, which is 60"},
        {gpt_oss_20b, "'experts_per_token': 4", "'experts_per_token': 5",
         "num_experts_per_tok and experts_per_token", "differ"},
        {phi35, "'num_experts_per_tok': 2", "'num_experts_per_tok': 3", "num_experts_per_tok is 3",
         "SparseMixer chooses 2"},
        {llama4_scout, "'num_experts_per_tok': 1", "'num_experts_per_tok': 2",
         "num_experts_per_tok is 2", "one expert a token"},
        {deepseek_v3, "'routed_scaling_factor': 2.5", "'routed_scaling_factor': 0",
         "routed_scaling_factor is 0", "outside"},
        {phi35, "'router_jitter_noise': 0.01", "'router_jitter_noise': -0.01",
         "router_jitter_noise is -0.01", "outside"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void heads_that_do_not_fit_are_refused(void **state)
{
    static const change changes[] = {
        {qwen2_57b, "'hidden_size': 3584", "'hidden_size': 3600", "hidden_size is 3600",
         "num_attention_heads, which is 28"},
        {glm45, "'num_key_value_heads': 8", "'num_key_value_heads': 7", "num_attention_heads is 96",
         "num_key_value_heads, which is 7"},
        {deepseek_v3, "'num_key_value_heads': 128", "'num_key_value_heads': 64",
         "num_key_value_heads is 64", "num_attention_heads, which is 128"},
        {deepseek_v3, "'qk_rope_head_dim': 64", "'qk_rope_head_dim': 63", "qk_rope_head_dim is 63",
         "even"},
        {deepseek_v3, "'qk_nope_head_dim': 128", "'qk_nope_head_dim': 1048576",
         "num_attention_heads is 128", "1048576"},
        {deepseek_v3, "'v_head_dim': 128, ", "", "v_head_dim", "missing"},
        {deepseek_v3, "'kv_lora_rank': 512", "'kv_lora_rank': 0", "kv_lora_rank is 0", "outside"},
        {deepseek_v3, "'q_lora_rank': 1536", "'q_lora_rank': -1", "q_lora_rank is -1", "outside"},
        {minimax_m2, "'rotary_dim': 64", "'rotary_dim': 63", "63 elements", "even"},
        {minimax_m2, "'rotary_dim': 64", "'rotary_dim': 130", "rotary_dim is 130", "[2, 128]"},
        {glm45, "'partial_rotary_factor': 0.5", "'partial_rotary_factor': 0.001", "0 elements",
         "even"},
        {glm45, "'head_dim': 128", "'head_dim': 126", "63 elements", "even"},
        {hunyuan_a13b, "'attention_head_dim': 128", "'attention_head_dim': 128, 'head_dim': 64",
         "head_dim and attention_head_dim", "differ"},
        {phi35, "'num_attention_heads': 32", "'num_attention_heads': 16",
         "rope_scaling.short_factor", "128 numbers"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void factors_that_no_float_holds_are_refused(void **state)
{
    static const change changes[] = {
        {qwen3_235b, "'rope_scaling': null",
         "'rope_scaling': {'type': 'yarn', 'factor': 3e38, 'mscale': 3e38, 'mscale_all_dim': "
         "1e-37}",
         "rope_scaling.mscale", "no number"},
        {deepseek_v3, "'mscale_all_dim': 1.0", "'mscale_all_dim': 3e38",
         "rope_scaling.mscale_all_dim is 3e+38", "scaled"},
        {hunyuan_a13b, "'alpha': 1000.0", "'alpha': 3e38", "rope_scaling.alpha", "no number"},
        {phi35, "'original_max_position_embeddings': 4096, 'short_factor'",
         "'original_max_position_embeddings': 1, 'short_factor'",
         "rope_scaling.original_max_position_embeddings", "inf"},
        {granite_3b, "'logits_scaling': 6.0", "'logits_scaling': 0", "logits_scaling is 0",
         "outside"},
        {granite_3b, "'attention_multiplier': 0.015625", "'attention_multiplier': -1",
         "attention_multiplier is -1", "outside"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void layers_that_are_not_there_are_refused(void **state)
{
    static const change changes[] = {
        {glm45, "'num_hidden_layers': 92", "'num_hidden_layers': 0", "num_hidden_layers is 0",
         "outside [1, 1024]"},
        {glm45, "'num_hidden_layers': 92", "'num_hidden_layers': -92", "num_hidden_layers is -92",
         "outside [1, 1024]"},
        {glm45, "'num_hidden_layers': 92", "'num_hidden_layers': 9223372036854775807",
         "num_hidden_layers is 9223372036854775807", "outside [1, 1024]"},
        {glm45, "'num_hidden_layers': 92", "'num_hidden_layers': 92.0", "num_hidden_layers",
         "an integer is needed"},
        {glm45, "'num_nextn_predict_layers': 1", "'num_nextn_predict_layers': 4294967297",
         "num_nextn_predict_layers is 4294967297", "outside"},
        {glm45, "'first_k_dense_replace': 3", "'first_k_dense_replace': 92", "no layer has experts",
         "Mixture-of-Experts"},
        {glm45, "'first_k_dense_replace': 3", "'first_k_dense_replace': -1",
         "first_k_dense_replace is -1", "outside"},
        {glm45, "'intermediate_size': 12288, ", "", "intermediate_size", "missing"},
        {qwen3_235b, "'mlp_only_layers': []", "'mlp_only_layers': [94]", "mlp_only_layers is 94",
         "outside [0, 93]"},
        {qwen3_235b, "'mlp_only_layers': []", "'mlp_only_layers': [-1]", "mlp_only_layers is -1",
         "outside [0, 93]"},
        {qwen3_235b, "'mlp_only_layers': []", "'mlp_only_layers': 3", "mlp_only_layers",
         "a list is needed"},
        {qwen3_235b, "'decoder_sparse_step': 1", "'decoder_sparse_step': 0",
         "decoder_sparse_step is 0", "outside"},
        {qwen3_235b, "'decoder_sparse_step': 1", "'decoder_sparse_step': 95",
         "no layer has experts", ""},
        {deepseek_v3, "'moe_layer_freq': 1", "'moe_layer_freq': 0", "moe_layer_freq is 0",
         "outside"},
        {ernie45_21b, "'moe_layer_start_index': 1", "'moe_layer_start_index': 28",
         "no layer has experts", ""},
        {ernie45_21b, "'moe_layer_end_index': 27", "'moe_layer_end_index': -2",
         "moe_layer_end_index is -2", "outside"},
        {llama4_scout, "'no_rope_layers': []", "'no_rope_layers': [1, 1, 1, 0]",
         "no_rope_layers has 4 numbers", "48 layers"},
        {llama4_scout, "'no_rope_layers': []", "'moe_layers': [48]", "moe_layers is 48",
         "outside [0, 47]"},
        {llama4_scout, "'no_rope_layers': []", "'no_rope_layer_interval': 0",
         "no_rope_layer_interval is 0", "outside"},
        {llama4_scout, "'no_rope_layers': []", "'layer_types': ['chunked_attention']",
         "layer_types", "48 layers"},
        {gpt_oss_20b, "['sliding_attention'", "['linear_attention'", "layer_types[0]",
         "\"sliding_attention\""},
        {gpt_oss_20b, "'num_hidden_layers': 24", "'num_hidden_layers': 25", "layer_types",
         "25 layers"},
        {gpt_oss_20b, "'sliding_window': 128", "'sliding_window': null", "sliding_window",
         "missing"},
        {gpt_oss_20b, "'sliding_window': 128", "'sliding_window': -128", "sliding_window is -128",
         "outside"},
    };

    (void)state;
    REFUSE_ALL(changes);
}

static void a_text_model_that_is_no_object_is_refused(void **state)
{
    (void)state;
    config_refuse(llama4_scout, "'text_config': {", "'text_config': 4, 'other': {",
                  "text_config is an integer", "an object is needed");
    config_refuse(llama4_scout, "'text_config': {", "'other': {", "text_config is missing",
                  "an object is needed");
    config_refuse(llama4_scout, "Llama4ForConditionalGeneration", "Llama4ForCausalLM",
                  "architectures[0] is Llama4ForCausalLM", "Llama4ForConditionalGeneration");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparse_attention_of_deepseek_v3_2_is_refused),
        cmocka_unit_test(positions_other_than_rotations_are_refused),
        cmocka_unit_test(layers_that_share_or_differ_in_width_are_refused),
        cmocka_unit_test(rules_of_other_families_are_refused),
        cmocka_unit_test(encodings_that_nothing_reads_are_refused),
        cmocka_unit_test(gates_that_cannot_choose_are_refused),
        cmocka_unit_test(heads_that_do_not_fit_are_refused),
        cmocka_unit_test(factors_that_no_float_holds_are_refused),
        cmocka_unit_test(layers_that_are_not_there_are_refused),
        cmocka_unit_test(a_text_model_that_is_no_object_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
