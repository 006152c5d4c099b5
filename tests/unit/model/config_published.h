/* config_published.h - config.json as published, one of every family and some of its variants. What
 * changes what a model computes is complete; of what is only tolerated, keys that no other file has
 * are kept. Single quotes stand for double ones. */
#ifndef CONFIG_PUBLISHED_H
#define CONFIG_PUBLISHED_H

#define FP8                                                                   \
    "'quantization_config': {'activation_scheme': 'dynamic', 'fmt': 'e4m3', " \
    "'quant_method': 'fp8', 'weight_block_size': [128, 128]}"
#define EIGHT(x)      x ", " x ", " x ", " x ", " x ", " x ", " x ", " x
#define THIRTY_TWO(x) EIGHT(x) ", " EIGHT(x) ", " EIGHT(x) ", " EIGHT(x)
#define SIXTY_FOUR(x) THIRTY_TWO(x) ", " THIRTY_TWO(x)
#define TWO_KINDS     "'sliding_attention', 'full_attention'"

/* Qwen1.5-MoE-A2.7B; qkv_bias is absent and on. */
static const char qwen15_a2_7b[] =
    "{'architectures': ['Qwen2MoeForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643, "
    "'decoder_sparse_step': 1, 'eos_token_id': 151643, 'hidden_act': 'silu', 'hidden_size': 2048, "
    "'initializer_range': 0.02, 'intermediate_size': 5632, 'max_position_embeddings': 8192, "
    "'max_window_layers': 21, 'model_type': 'qwen2_moe', 'moe_intermediate_size': 1408, "
    "'norm_topk_prob': false, 'num_attention_heads': 16, 'num_experts': 60, "
    "'num_experts_per_tok': 4, 'num_hidden_layers': 24, 'num_key_value_heads': 16, "
    "'output_router_logits': false, 'rms_norm_eps': 1e-06, 'rope_theta': 1000000.0, "
    "'router_aux_loss_coef': 0.001, 'shared_expert_intermediate_size': 5632, "
    "'sliding_window': 32768, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
    "'use_cache': true, 'use_sliding_window': false, 'vocab_size': 151936}";

static const char qwen2_57b[] =
    "{'architectures': ['Qwen2MoeForCausalLM'], 'attention_dropout': 0.0, 'bos_token_id': 151643, "
    "'decoder_sparse_step': 1, 'eos_token_id': 151643, 'hidden_act': 'silu', 'hidden_size': 3584, "
    "'initializer_range': 0.02, 'intermediate_size': 18944, 'max_position_embeddings': 131072, "
    "'max_window_layers': 28, 'model_type': 'qwen2_moe', 'moe_intermediate_size': 2560, "
    "'norm_topk_prob': false, 'num_attention_heads': 28, 'num_experts': 64, "
    "'num_experts_per_tok': 8, 'num_hidden_layers': 28, 'num_key_value_heads': 4, "
    "'output_router_logits': false, 'rms_norm_eps': 1e-06, 'rope_theta': 1000000.0, "
    "'router_aux_loss_coef': 0.001, 'shared_expert_intermediate_size': 20480, "
    "'sliding_window': 131072, 'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', "
    "'transformers_version': '4.40.1', 'use_cache': true, 'use_sliding_window': false, "
    "'vocab_size': 151936}";

static const char qwen3_235b[] =
    "{'architectures': ['Qwen3MoeForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
    "'bos_token_id': 151643, 'decoder_sparse_step': 1, 'eos_token_id': 151645, 'head_dim': 128, "
    "'hidden_act': 'silu', 'hidden_size': 4096, 'initializer_range': 0.02, 'intermediate_size': "
    "12288, 'max_position_embeddings': 40960, 'max_window_layers': 94, 'mlp_only_layers': [], "
    "'model_type': 'qwen3_moe', 'moe_intermediate_size': 1536, 'norm_topk_prob': true, "
    "'num_attention_heads': 64, 'num_experts': 128, 'num_experts_per_tok': 8, "
    "'num_hidden_layers': 94, 'num_key_value_heads': 4, 'output_router_logits': false, "
    "'rms_norm_eps': 1e-06, 'rope_scaling': null, 'rope_theta': 1000000.0, "
    "'router_aux_loss_coef': 0.001, 'sliding_window': null, 'tie_word_embeddings': false, "
    "'torch_dtype': 'bfloat16', 'use_cache': true, 'use_sliding_window': false, "
    "'vocab_size': 151936}";

static const char qwen3_30b_fp8[] =
    "{'architectures': ['Qwen3MoeForCausalLM'], 'attention_bias': false, 'attention_dropout': 0.0, "
    "'bos_token_id': 151643, 'decoder_sparse_step': 1, 'eos_token_id': 151645, 'head_dim': 128, "
    "'hidden_act': 'silu', 'hidden_size': 2048, 'initializer_range': 0.02, 'intermediate_size': "
    "6144, 'max_position_embeddings': 40960, 'max_window_layers': 48, 'mlp_only_layers': [], "
    "'model_type': 'qwen3_moe', 'moe_intermediate_size': 768, 'norm_topk_prob': true, "
    "'num_attention_heads': 32, 'num_experts': 128, 'num_experts_per_tok': 8, "
    "'num_hidden_layers': 48, 'num_key_value_heads': 4, 'rms_norm_eps': 1e-06, "
    "'rope_scaling': null, 'rope_theta': 1000000.0, 'sliding_window': null, "
    "'tie_word_embeddings': false, 'torch_dtype': 'bfloat16', 'use_sliding_window': false, "
    "'vocab_size': 151936, 'quantization_config': {'activation_scheme': 'dynamic', "
    "'modules_to_not_convert': ['lm_head', 'model.layers.0.input_layernorm', "
    "'model.layers.0.mlp.gate', 'model.layers.0.post_attention_layernorm'], 'fmt': 'e4m3', "
    "'quant_method': 'fp8', 'weight_block_size': [128, 128]}}";

/* Of V2-Lite and of V2 as far as they agree. */
#define DEEPSEEK_V2_KEYS                                                                          \
    "{'architectures': ['DeepseekV2ForCausalLM'], 'attention_bias': false, 'attention_dropout': " \
    "0.0, 'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV2Config'}, "                \
    "'aux_loss_alpha': 0.001, 'bos_token_id': 100000, 'eos_token_id': 100001, "                   \
    "'first_k_dense_replace': 1, 'hidden_act': 'silu', 'initializer_range': 0.02, "               \
    "'kv_lora_rank': 512, 'max_position_embeddings': 163840, 'model_type': 'deepseek_v2', "       \
    "'moe_layer_freq': 1, 'n_shared_experts': 2, 'norm_topk_prob': false, "                       \
    "'num_experts_per_tok': 6, 'pretraining_tp': 1, 'qk_nope_head_dim': 128, "                    \
    "'qk_rope_head_dim': 64, 'rms_norm_eps': 1e-06, 'rope_theta': 10000, "                        \
    "'scoring_func': 'softmax', 'seq_aux': true, 'tie_word_embeddings': false, "                  \
    "'torch_dtype': 'bfloat16', 'use_cache': true, 'v_head_dim': 128, 'vocab_size': 102400, "

static const char deepseek_v2_lite[] = DEEPSEEK_V2_KEYS
    "'hidden_size': 2048, 'intermediate_size': 10944, 'moe_intermediate_size': 1408, 'n_group': 1, "
    "'n_routed_experts': 64, 'num_attention_heads': 16, 'num_hidden_layers': 27, "
    "'num_key_value_heads': 16, 'q_lora_rank': null, 'rope_scaling': {'beta_fast': 32, "
    "'beta_slow': 1, 'factor': 40, 'mscale': 0.707, 'mscale_all_dim': 0.707, "
    "'original_max_position_embeddings': 4096, 'type': 'yarn'}, 'routed_scaling_factor': 1.0, "
    "'topk_group': 1, 'topk_method': 'greedy'}";

static const char deepseek_v2[] = DEEPSEEK_V2_KEYS
    "'hidden_size': 5120, 'intermediate_size': 12288, 'moe_intermediate_size': 1536, 'n_group': 8, "
    "'n_routed_experts': 160, 'num_attention_heads': 128, 'num_hidden_layers': 60, "
    "'num_key_value_heads': 128, 'q_lora_rank': 1536, 'rope_scaling': {'beta_fast': 32, "
    "'beta_slow': 1, 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 1.0, "
    "'original_max_position_embeddings': 4096, 'type': 'yarn'}, 'routed_scaling_factor': 16.0, "
    "'topk_group': 3, 'topk_method': 'group_limited_greedy'}";

/* DeepSeek-V3 and R1. */
static const char deepseek_v3[] =
    "{'architectures': ['DeepseekV3ForCausalLM'], 'attention_bias': false, 'attention_dropout': "
    "0.0, 'auto_map': {'AutoConfig': 'configuration_deepseek.DeepseekV3Config'}, 'bos_token_id': "
    "0, 'eos_token_id': 1, 'ep_size': 1, 'first_k_dense_replace': 3, 'hidden_act': 'silu', "
    "'hidden_size': 7168, 'initializer_range': 0.02, 'intermediate_size': 18432, "
    "'kv_lora_rank': 512, 'max_position_embeddings': 163840, 'model_type': 'deepseek_v3', "
    "'moe_intermediate_size': 2048, 'moe_layer_freq': 1, 'n_group': 8, 'n_routed_experts': 256, "
    "'n_shared_experts': 1, 'norm_topk_prob': true, 'num_attention_heads': 128, "
    "'num_experts_per_tok': 8, 'num_hidden_layers': 61, 'num_key_value_heads': 128, "
    "'num_nextn_predict_layers': 1, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, "
    "'qk_rope_head_dim': 64, " FP8 ", 'rms_norm_eps': 1e-06, 'rope_scaling': {'beta_fast': 32, "
    "'beta_slow': 1, 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 1.0, "
    "'original_max_position_embeddings': 4096, 'type': 'yarn'}, 'rope_theta': 10000, "
    "'routed_scaling_factor': 2.5, 'scoring_func': 'sigmoid', 'tie_word_embeddings': false, "
    "'topk_group': 4, 'topk_method': 'noaux_tc', 'torch_dtype': 'bfloat16', 'use_cache': true, "
    "'v_head_dim': 128, 'vocab_size': 129280}";

static const char kimi_k2[] =
    "{'architectures': ['DeepseekV3ForCausalLM'], 'attention_bias': false, 'aux_loss_alpha': "
    "0.001, 'bos_token_id': 163584, 'eos_token_id': 163585, 'first_k_dense_replace': 1, "
    "'hidden_act': 'silu', 'hidden_size': 7168, 'intermediate_size': 18432, 'kv_lora_rank': 512, "
    "'max_position_embeddings': 131072, 'model_type': 'kimi_k2', 'moe_intermediate_size': 2048, "
    "'moe_layer_freq': 1, 'n_group': 1, 'n_routed_experts': 384, 'n_shared_experts': 1, "
    "'norm_topk_prob': true, 'num_attention_heads': 64, 'num_experts_per_tok': 8, "
    "'num_hidden_layers': 61, 'num_key_value_heads': 64, 'num_nextn_predict_layers': 0, "
    "'pretraining_tp': 1, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': "
    "64, " FP8 ", 'rms_norm_eps': 1e-06, 'rope_theta': 50000.0, 'routed_scaling_factor': 2.827, "
    "'rope_scaling': {'beta_fast': 1.0, 'beta_slow': 1.0, 'factor': 32.0, 'mscale': 1.0, "
    "'mscale_all_dim': 1.0, 'original_max_position_embeddings': 4096, 'type': 'yarn'}, "
    "'scoring_func': 'sigmoid', 'seq_aux': true, 'tie_word_embeddings': false, 'topk_group': 1, "
    "'topk_method': 'noaux_tc', 'torch_dtype': 'bfloat16', 'v_head_dim': 128, 'vocab_size': "
    "163840}";

/* The published factors are 64 different numbers each. */
static const char phi35[] =
    "{'architectures': ['PhiMoEForCausalLM'], 'attention_bias': true, 'attention_dropout': 0.0, "
    "'bos_token_id': 1, 'eos_token_id': 32000, 'hidden_act': 'silu', 'hidden_dropout': 0.0, "
    "'hidden_size': 4096, 'initializer_range': 0.02, 'input_jitter_noise': 0.01, "
    "'intermediate_size': 6400, 'lm_head_bias': true, 'max_position_embeddings': 131072, "
    "'model_type': 'phimoe', 'num_attention_heads': 32, 'num_experts_per_tok': 2, "
    "'num_hidden_layers': 32, 'num_key_value_heads': 8, 'num_local_experts': 16, "
    "'original_max_position_embeddings': 4096, 'output_router_logits': false, 'rms_norm_eps': "
    "1e-05, 'rope_scaling': {'long_factor': [" SIXTY_FOUR(
        "4.5") "], 'long_mscale': "
               "1.243163121016122, 'original_max_position_embeddings': 4096, 'short_factor': "
               "[" SIXTY_FOUR("1.25") "], 'short_mscale': 1.243163121016122, 'type': 'longrope'}, "
                                      "'rope_theta': 10000.0, 'router_aux_loss_coef': 0.0, "
                                      "'router_jitter_noise': 0.01, "
                                      "'sliding_window': 131072, 'tie_word_embeddings': false, "
                                      "'torch_dtype': 'bfloat16', "
                                      "'use_cache': true, 'vocab_size': 32064}";

#define GPT_OSS_KEYS                                                                             \
    "'architectures': ['GptOssForCausalLM'], 'attention_bias': true, 'attention_dropout': 0.0, " \
    "'eos_token_id': 200002, 'experts_per_token': 4, 'head_dim': 64, 'hidden_act': 'silu', "     \
    "'hidden_size': 2880, 'initial_context_length': 4096, 'intermediate_size': 2880, "           \
    "'max_position_embeddings': 131072, 'model_type': 'gpt_oss', 'num_attention_heads': 64, "    \
    "'num_experts_per_tok': 4, 'num_key_value_heads': 8, 'pad_token_id': 199999, "               \
    "'quantization_config': {'modules_to_not_convert': ['model.layers.*.self_attn', "            \
    "'model.layers.*.mlp.router', 'model.embed_tokens', 'lm_head'], 'quant_method': 'mxfp4'}, "  \
    "'rms_norm_eps': 1e-05, 'rope_scaling': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': "    \
    "32.0, 'original_max_position_embeddings': 4096, 'rope_type': 'yarn', 'truncate': false}, "  \
    "'rope_theta': 150000, 'router_aux_loss_coef': 0.9, 'sliding_window': 128, 'swiglu_limit': " \
    "7.0, 'tie_word_embeddings': false, 'use_cache': true, 'vocab_size': 201088, "

static const char gpt_oss_20b[] =
    "{" GPT_OSS_KEYS "'num_hidden_layers': 24, 'num_local_experts': 32, 'layer_types': [" EIGHT(
        TWO_KINDS) ", " TWO_KINDS ", " TWO_KINDS ", " TWO_KINDS ", " TWO_KINDS "]}";

/* As written for newer transformers without its list of types. */
static const char gpt_oss_120b[] =
    "{" GPT_OSS_KEYS "'num_hidden_layers': 36, 'num_local_experts': 128}";

/* GLM-4.5-Air, and 4.5 and 4.6 as far as they agree with it. */
#define GLM_KEYS                                                                               \
    "'architectures': ['Glm4MoeForCausalLM'], 'attention_bias': true, 'attention_dropout': "   \
    "0.0, 'pad_token_id': 151329, 'eos_token_id': [151329, 151336, 151338], 'head_dim': 128, " \
    "'hidden_act': 'silu', 'partial_rotary_factor': 0.5, 'initializer_range': 0.02, "          \
    "'model_type': 'glm4_moe', 'n_group': 1, 'topk_group': 1, 'n_shared_experts': 1, "         \
    "'norm_topk_prob': true, 'num_attention_heads': 96, 'num_experts_per_tok': 8, "            \
    "'num_key_value_heads': 8, 'num_nextn_predict_layers': 1, 'rms_norm_eps': 1e-05, "         \
    "'rope_scaling': null, 'rope_theta': 1000000, 'tie_word_embeddings': false, "              \
    "'torch_dtype': 'bfloat16', 'use_cache': true, 'vocab_size': 151552, "

static const char glm45_air[] =
    "{" GLM_KEYS "'first_k_dense_replace': 1, 'hidden_size': 4096, 'intermediate_size': 10944, "
    "'max_position_embeddings': 131072, 'moe_intermediate_size': 1408, 'n_routed_experts': 128, "
    "'num_hidden_layers': 46, 'routed_scaling_factor': 1.0, 'use_qk_norm': false}";

#define GLM45(context)                                                                           \
    "{" GLM_KEYS "'first_k_dense_replace': 3, 'hidden_size': 5120, 'intermediate_size': 12288, " \
    "'moe_intermediate_size': 1536, 'n_routed_experts': 160, 'num_hidden_layers': 92, "          \
    "'routed_scaling_factor': 2.5, 'use_qk_norm': true, 'max_position_embeddings': " context "}"

static const char glm45[] = GLM45("131072");
static const char glm46[] = GLM45("202752");

/* Llama 4, whose text model stands under a key. */
#define LLAMA4_KEYS                                                                             \
    "'attention_bias': false, 'attention_chunk_size': 8192, 'attention_dropout': 0.0, "         \
    "'bos_token_id': 200000, 'eos_token_id': [200001, 200007, 200008], 'for_llm_compressor': "  \
    "false, 'head_dim': 128, 'hidden_act': 'silu', 'hidden_size': 5120, 'intermediate_size': "  \
    "8192, 'intermediate_size_mlp': 16384, 'model_type': 'llama4_text', 'no_rope_layers': [], " \
    "'num_attention_heads': 40, 'num_experts_per_tok': 1, 'num_hidden_layers': 48, "            \
    "'num_key_value_heads': 8, 'output_router_logits': false, 'pad_token_id': 200018, "         \
    "'rms_norm_eps': 1e-05, 'rope_theta': 500000.0, 'router_aux_loss_coef': 0.001, "            \
    "'router_jitter_noise': 0.0, 'torch_dtype': 'bfloat16', 'use_cache': true, 'vocab_size': "  \
    "202048, "
#define LLAMA4_OUTER                                                                            \
    "{'architectures': ['Llama4ForConditionalGeneration'], 'boi_token_index': 200080, "         \
    "'eoi_token_index': 200081, 'image_token_index': 200092, 'model_type': 'llama4', "          \
    "'torch_dtype': 'bfloat16', 'vision_config': {'hidden_act': 'gelu', 'hidden_size': 1408, "  \
    "'intermediate_size': 5632, 'model_type': 'llama4_vision_model', 'num_hidden_layers': 34, " \
    "'rope_theta': 10000}, 'text_config': {"

static const char llama4_scout[] = LLAMA4_OUTER LLAMA4_KEYS
    "'interleave_moe_layer_step': 1, 'max_position_embeddings': 10485760, 'num_local_experts': 16, "
    "'rope_scaling': {'factor': 16.0, 'high_freq_factor': 1.0, 'low_freq_factor': 1.0, "
    "'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}, 'use_qk_norm': true}}";

static const char llama4_maverick[] = LLAMA4_OUTER LLAMA4_KEYS
    "'interleave_moe_layer_step': 2, 'max_position_embeddings': 1048576, 'num_local_experts': 128, "
    "'rope_scaling': null, 'use_qk_norm': false}}";

static const char ernie45_21b[] =
    "{'architectures': ['Ernie4_5_MoeForCausalLM'], 'bos_token_id': 1, 'eos_token_id': 2, "
    "'head_dim': null, 'hidden_act': 'silu', 'hidden_size': 2560, 'intermediate_size': 12288, "
    "'max_position_embeddings': 131072, 'model_type': 'ernie4_5_moe', 'moe_capacity': [64, 64, "
    "64], 'moe_gate': 'topk', 'moe_gate_act': null, 'moe_intermediate_size': 1536, 'moe_k': 6, "
    "'moe_layer_end_index': 27, 'moe_layer_interval': 1, 'moe_layer_start_index': 1, "
    "'moe_num_experts': 64, 'moe_num_shared_experts': 2, 'moe_use_aux_free': true, "
    "'num_attention_heads': 20, 'num_hidden_layers': 28, 'num_key_value_heads': 4, "
    "'num_nextn_predict_layers': 1, 'pad_token_id': 0, 'rms_norm_eps': 1e-05, 'rope_theta': "
    "500000, 'tie_word_embeddings': true, 'torch_dtype': 'bfloat16', 'use_bias': false, "
    "'use_cache': false, 'vocab_size': 103424}";

static const char hunyuan_a13b[] =
    "{'architectures': ['HunYuanMoEV1ForCausalLM'], 'attention_bias': false, 'attention_dropout': "
    "0.1, 'attention_head_dim': 128, 'bos_token_id': 1, 'cla_share_factor': 2, 'dense_list': "
    "[4096, 0], 'eod_token_id': 127967, 'eos_token_id': 127960, 'group_limited_greedy': false, "
    "'hidden_act': 'silu', 'hidden_size': 4096, 'intermediate_size': 3072, 'kv_lora_rank': null, "
    "'max_position_embeddings': 32768, 'mlp_bias': false, 'model_type': 'hunyuan_v1_moe', "
    "'moe_drop_tokens': false, 'moe_intermediate_size': [" THIRTY_TWO(
        "3072") "], "
                "'moe_layer_num_skipped': 0, 'moe_topk': [" THIRTY_TWO(
                    "8") "], 'n_group': false, "
                         "'norm_topk_prob': true, 'norm_type': 'rms', 'num_attention_heads': 32, "
                         "'num_experts': 64, "
                         "'num_hidden_layers': 32, 'num_key_value_heads': 8, 'num_shared_expert': "
                         "[" THIRTY_TWO(
                             "1") "], 'pad_token_id': 127961, 'position_embedding_xdrope': false, "
                                  "'q_lora_rank': null, "
                                  "'rms_norm_eps': 1e-05, 'rope_scaling': {'alpha': 1000.0, "
                                  "'beta_fast': 32, 'beta_slow': 1, "
                                  "'factor': 1.0, 'mscale': 1.0, 'mscale_all_dim': 1.0, 'type': "
                                  "'dynamic'}, 'rope_theta': "
                                  "10000.0, 'routed_scaling_factor': false, 'tie_word_embeddings': "
                                  "true, 'topk_group': false, "
                                  "'torch_dtype': 'bfloat16', 'use_cla': false, "
                                  "'use_mixed_mlp_moe': true, 'use_qk_norm': true, "
                                  "'use_rotary_pos_emb': true, 'v_head_dim': null, 'vocab_size': "
                                  "128167}";

static const char minimax_m2[] =
    "{'architectures': ['MiniMaxM2ForCausalLM'], 'model_type': 'minimax_m2', 'attn_type_list': "
    "[" THIRTY_TWO("1") ", " EIGHT("1") ", " EIGHT("1") ", " EIGHT(
        "1") ", 1, 1, 1, 1, 1, 1], 'bos_token_id': null, 'eos_token_id': null, 'head_dim': 128, "
             "'hidden_act': "
             "'silu', 'hidden_size': 3072, 'intermediate_size': 1536, 'max_position_embeddings': "
             "196608, "
             "'mlp_intermediate_size': 8192, 'mtp_transformer_layers': 1, 'num_attention_heads': "
             "48, "
             "'num_experts_per_tok': 8, 'num_hidden_layers': 62, 'num_key_value_heads': 8, "
             "'num_local_experts': 256, 'num_mtp_modules': 3, 'qk_norm_type': 'per_layer', "
             "'quantization_config': {'activation_scheme': 'dynamic', 'fmt': 'float8_e4m3fn', "
             "'modules_to_not_convert': ['gate', 'e_score_correction_bias', 'lm_head'], "
             "'quant_method': "
             "'fp8', 'weight_block_size': [128, 128]}, 'rms_norm_eps': 1e-06, 'rope_theta': "
             "5000000, "
             "'rotary_dim': 64, 'router_jitter_noise': 0.0, 'scoring_func': 'sigmoid', "
             "'shared_intermediate_size': 0, 'sliding_window': null, 'swa_rope_theta': -1.0, "
             "'tie_word_embeddings': false, 'use_mtp': true, 'use_qk_norm': true, "
             "'use_routing_bias': true, "
             "'vocab_size': 200064}";

static const char granite_3b[] =
    "{'architectures': ['GraniteMoeForCausalLM'], 'attention_bias': false, 'attention_dropout': "
    "0.0, 'attention_multiplier': 0.015625, 'bos_token_id': 0, 'embedding_multiplier': 12.0, "
    "'eos_token_id': 0, 'hidden_act': 'silu', 'hidden_size': 1536, 'intermediate_size': 512, "
    "'logits_scaling': 6.0, 'max_position_embeddings': 131072, 'model_type': 'granitemoe', "
    "'num_attention_heads': 24, 'num_experts_per_tok': 8, 'num_hidden_layers': 32, "
    "'num_key_value_heads': 8, 'num_local_experts': 40, 'output_router_logits': false, "
    "'pad_token_id': 0, 'residual_multiplier': 0.22, 'rms_norm_eps': 1e-06, 'rope_scaling': null, "
    "'rope_theta': 10000000.0, 'router_aux_loss_coef': 0.0, 'tie_word_embeddings': true, "
    "'torch_dtype': 'bfloat16', 'use_cache': true, 'vocab_size': 49155}";

#endif
