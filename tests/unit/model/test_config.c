/* test_config.c - config.json and generation_config.json: both spellings of what changed its name,
 * every limit, and options that must not be ignored. */
#include "checkpoint_files.h"

#include <math.h>

#include "sy_model.h"

/* Mixtral 8x7B's own file. The tests below change single keys of it. */
static const char mixtral[] =
    "{\"architectures\": [\"MixtralForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": 1,"
    "\"eos_token_id\": 2, \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": "
    "0.02, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768, \"model_type\": "
    "\"mixtral\", \"num_attention_heads\": 32, \"num_experts_per_tok\": 2, \"num_hidden_layers\": "
    "32, \"num_key_value_heads\": 8, \"num_local_experts\": 8, \"output_router_logits\": false, "
    "\"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.02, "
    "\"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
    "\"transformers_version\": \"4.36.0.dev0\", \"use_cache\": true, \"vocab_size\": 32000}";

static const char olmoe[] =
    "{\"architectures\": [\"OlmoeForCausalLM\"], \"attention_bias\": false, \"clip_qkv\": null, "
    "\"eos_token_id\": 50279, \"hidden_act\": \"silu\", \"hidden_size\": 2048, "
    "\"intermediate_size\": "
    "1024, \"max_position_embeddings\": 4096, \"model_type\": \"olmoe\", \"norm_topk_prob\": "
    "false, "
    "\"num_attention_heads\": 16, \"num_experts\": 64, \"num_experts_per_tok\": 8, "
    "\"num_hidden_layers\": 16, \"num_key_value_heads\": 16, \"pad_token_id\": 1, "
    "\"rms_norm_eps\": "
    "1e-05, \"rope_scaling\": null, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, "
    "\"vocab_size\": 50304}";

/* As published for Qwen3-30B-A3B. */
static const char qwen3[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false, "
    "\"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"decoder_sparse_step\": 1, "
    "\"eos_token_id\": 151645, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 2048, "
    "\"initializer_range\": 0.02, \"intermediate_size\": 6144, \"max_position_embeddings\": 40960, "
    "\"max_window_layers\": 48, \"mlp_only_layers\": [], \"model_type\": \"qwen3_moe\", "
    "\"moe_intermediate_size\": 768, \"norm_topk_prob\": true, \"num_attention_heads\": 32, "
    "\"num_experts\": 128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 48, "
    "\"num_key_value_heads\": 4, \"output_router_logits\": false, \"rms_norm_eps\": 1e-06, "
    "\"rope_scaling\": null, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001, "
    "\"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "
    "\"use_cache\": true, \"use_sliding_window\": false, \"vocab_size\": 151936}";

/* MiniMax-M2's sizes, without its quantisation. */
static const char minimax[] =
    "{\"architectures\": [\"MiniMaxM2ForCausalLM\"], \"model_type\": \"minimax_m2\", "
    "\"hidden_act\": \"silu\", \"hidden_size\": 3072, \"intermediate_size\": 1536, "
    "\"num_hidden_layers\": 62, \"num_attention_heads\": 48, \"num_key_value_heads\": 8, "
    "\"head_dim\": 128, \"num_local_experts\": 256, \"num_experts_per_tok\": 8, "
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, \"rotary_dim\": 64, "
    "\"scoring_func\": \"sigmoid\", \"shared_intermediate_size\": 0, "
    "\"max_position_embeddings\": 196608, \"vocab_size\": 200064}";

/* As published for Granite 3.1's 1b-a400m. */
static const char granite[] =
    "{\"architectures\": [\"GraniteMoeForCausalLM\"], \"attention_bias\": false, "
    "\"attention_multiplier\": 0.015625, \"bos_token_id\": 0, \"embedding_multiplier\": 12.0, "
    "\"eos_token_id\": 0, \"hidden_act\": \"silu\", \"hidden_size\": 1024, "
    "\"intermediate_size\": 512, \"logits_scaling\": 6.0, \"max_position_embeddings\": 131072, "
    "\"model_type\": \"granitemoe\", \"num_attention_heads\": 16, \"num_experts_per_tok\": 8, "
    "\"num_hidden_layers\": 24, \"num_key_value_heads\": 8, \"num_local_experts\": 32, "
    "\"residual_multiplier\": 0.22, \"rms_norm_eps\": 1e-06, \"rope_theta\": 1500000.0, "
    "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", \"vocab_size\": 49155}";

/* base with each of the two texts replaced once; out: [4096]. */
static void replace(char *out, const char *base, const char *old, const char *new)
{
    const char *at = strstr(base, old);

    if (at == NULL) fail_msg("the test's configuration has no %s", old);
    snprintf(out, 4096, "%.*s%s%s", (int)(at - base), base, new, at + strlen(old));
}

static sy_model_desc parse(const char *text)
{
    sy_model_desc desc;
    sy_error err;

    expect_ok(sy_model_desc_parse(&desc, text, strlen(text), &err), &err);
    return desc;
}

static sy_model_desc parse_changed(const char *base, const char *old, const char *new)
{
    char text[4096];

    replace(text, base, old, new);
    return parse(text);
}

static void refuse_text(const char *text, const char *part, const char *other_part)
{
    sy_model_desc desc;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_model_desc_parse(&desc, text, strlen(text), &err);
    if (st != SY_EINVAL) fail_msg("wanted an error with \"%s\", got %s", part, sy_status_name(st));
    expect_text(err.message, part);
    expect_text(err.message, other_part);
}

/* Both parts must stand in the message: the key, and what is wrong with it. */
static void refuse(const char *base, const char *old, const char *new, const char *part,
                   const char *other_part)
{
    char text[4096];

    replace(text, base, old, new);
    refuse_text(text, part, other_part);
}

/* The key is added to Mixtral's file. */
static void refuse_added(const char *member, const char *part, const char *other_part)
{
    char first[512];

    snprintf(first, sizeof(first), "{%s, ", member);
    refuse(mixtral, "{", first, part, other_part);
}

static void accept_added(const char *member)
{
    char first[512];

    snprintf(first, sizeof(first), "{%s, ", member);
    parse_changed(mixtral, "{", first);
}

static void mixtral_is_described(void **state)
{
    const sy_model_desc d = parse(mixtral);

    (void)state;
    assert_string_equal(d.family, "mixtral");
    assert_string_equal(d.architecture, "MixtralForCausalLM");
    assert_int_equal(d.vocab, 32000);
    assert_int_equal(d.hidden, 4096);
    assert_int_equal(d.n_layers, 32);
    assert_int_equal(d.n_heads, 32);
    assert_int_equal(d.n_kv_heads, 8);
    assert_int_equal(d.head_dim, 128);
    assert_int_equal(d.n_experts, 8);
    assert_int_equal(d.top_k, 2);
    assert_int_equal(d.expert_ffn, 14336);
    assert_int_equal(d.context, 32768);
    assert_int_equal(d.sliding_window, 0);
    assert_true(d.rms_eps == 1e-5f);
    assert_true(d.rope_theta == 1e6f);
    assert_int_equal(d.tied_head, 0);
    assert_int_equal(d.qk_norm, 0);
    assert_true(d.qkv_clip == 0.0f);
    assert_int_equal(d.gate.score, SY_GATE_SOFTMAX);
    assert_int_equal(d.gate.renormalise, 1);
    assert_true(d.gate.scale == 1.0f);
    assert_int_equal(d.bos, 1);
    assert_int_equal(d.n_eos, 1);
    assert_int_equal(d.eos[0], 2);
    assert_true(d.default_temperature == -1.0f && d.default_top_p == -1.0f);
    assert_int_equal(d.default_top_k, -1);
}

static void olmoe_is_described(void **state)
{
    const sy_model_desc d = parse(olmoe);

    (void)state;
    assert_string_equal(d.family, "olmoe");
    assert_int_equal(d.n_experts, 64);
    assert_int_equal(d.top_k, 8);
    assert_int_equal(d.head_dim, 128);
    assert_int_equal(d.qk_norm, 1);
    assert_int_equal(d.gate.renormalise, 0);
    assert_true(d.qkv_clip == 0.0f);
    assert_int_equal(d.bos, -1);
    assert_int_equal(d.eos[0], 50279);
    assert_true(parse_changed(olmoe, "\"clip_qkv\": null", "\"clip_qkv\": 1.5").qkv_clip == 1.5f);
    assert_true(parse_changed(olmoe, "\"clip_qkv\": null", "\"clip_qkv\": 8").qkv_clip == 8.0f);
    assert_int_equal(parse_changed(olmoe, "\"norm_topk_prob\": false", "\"norm_topk_prob\": true")
                         .gate.renormalise,
                     1);
    assert_int_equal(parse_changed(olmoe, "\"norm_topk_prob\": false, ", "").gate.renormalise, 0);
    refuse(olmoe, "\"clip_qkv\": null", "\"clip_qkv\": 0", "clip_qkv", "0");
    refuse(olmoe, "\"clip_qkv\": null", "\"clip_qkv\": -1.5", "clip_qkv", "-1.5");
    refuse(olmoe, "\"clip_qkv\": null", "\"sliding_window\": 128", "sliding_window", "128");
}

static void qwen3_moe_is_described(void **state)
{
    const sy_model_desc d = parse(qwen3);

    (void)state;
    assert_string_equal(d.family, "qwen3_moe");
    assert_int_equal(d.n_experts, 128);
    assert_int_equal(d.top_k, 8);
    assert_int_equal(d.expert_ffn, 768); /* not intermediate_size, which dense layers would have */
    assert_int_equal(d.head_dim, 128);   /* not hidden_size / num_attention_heads, which is 64 */
    assert_int_equal(d.n_kv_heads, 4);
    assert_int_equal(d.qk_norm, 2);
    assert_int_equal(d.gate.renormalise, 1);
    assert_true(d.rms_eps == 1e-6f && d.rope_theta == 1e6f);
    assert_int_equal(parse_changed(qwen3, "\"norm_topk_prob\": true, ", "").gate.renormalise, 0);
    assert_int_equal(parse_changed(qwen3, "\"head_dim\": 128, ", "").head_dim, 64);
    /* Further keys that the Coder model's file has. */
    parse_changed(qwen3, "\"use_cache\": true",
                  "\"qkv_bias\": false, \"use_qk_norm\": true, "
                  "\"shared_expert_intermediate_size\": 0");
    /* What would change results and is not built is refused, not ignored. */
    refuse(qwen3, "\"use_sliding_window\": false", "\"use_sliding_window\": true",
           "use_sliding_window", "not");
    refuse(qwen3, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias", "not");
}

static void both_spellings_of_dtype_and_rope_are_read(void **state)
{
    (void)state;
    assert_true(
        parse_changed(mixtral, "\"rope_theta\": 1000000.0",
                      "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}")
            .rope_theta == 5e5f);
    assert_true(
        parse_changed(mixtral, "\"rope_theta\": 1000000.0", "\"rope_theta\": 10000").rope_theta ==
        1e4f);
    assert_true(parse_changed(mixtral, "\"rope_theta\": 1000000.0, ", "").rope_theta == 1e6f);
    parse_changed(mixtral, "torch_dtype", "dtype");
    accept_added("\"dtype\": \"bfloat16\"");
    refuse_added("\"dtype\": \"float32\"", "torch_dtype is bfloat16", "dtype is float32");
    refuse_added("\"rope_parameters\": {\"rope_theta\": 5}", "rope_theta is 1e+06",
                 "rope_parameters.rope_theta is 5");
    refuse(mixtral, "\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"int8\"", "torch_dtype",
           "int8");
}

static void aliases_are_read_and_must_agree(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(mixtral, "num_local_experts", "num_experts").n_experts, 8);
    assert_int_equal(parse_changed(olmoe, "num_experts\"", "num_local_experts\"").n_experts, 64);
    accept_added("\"num_experts\": 8");
    refuse_added("\"num_experts\": 9", "num_local_experts", "num_experts");
}

static void absent_heads_follow_from_the_others(void **state)
{
    (void)state;
    assert_int_equal(parse_changed(mixtral, "\"num_key_value_heads\": 8, ", "").n_kv_heads, 32);
    assert_int_equal(
        parse_changed(mixtral, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": null")
            .n_kv_heads,
        32);
    assert_int_equal(parse_changed(mixtral, "{", "{\"head_dim\": null, ").head_dim, 128);
    assert_int_equal(parse_changed(mixtral, "{", "{\"head_dim\": 64, ").head_dim, 64);
    assert_int_equal(parse_changed(mixtral, "\"sliding_window\": null", "\"sliding_window\": 4096")
                         .sliding_window,
                     4096);
    assert_int_equal(
        parse_changed(mixtral, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")
            .tied_head,
        1);
}

static void every_size_has_limits_that_the_message_names(void **state)
{
    static const struct {
        const char *old, *key, *max;
    } sizes[] = {
        {"\"vocab_size\": 32000", "vocab_size", "16777216"},
        {"\"hidden_size\": 4096", "hidden_size", "1048576"},
        {"\"num_hidden_layers\": 32", "num_hidden_layers", "1024"},
        {"\"num_attention_heads\": 32", "num_attention_heads", "1048576"},
        {"\"num_key_value_heads\": 8", "num_key_value_heads", "1048576"},
        {"\"max_position_embeddings\": 32768", "max_position_embeddings", "16777216"},
        {"\"num_local_experts\": 8", "num_local_experts", "4096"},
        {"\"num_experts_per_tok\": 2", "num_experts_per_tok", "64"},
        {"\"intermediate_size\": 14336", "intermediate_size", "1048576"},
    };
    static const char *const wrong[] = {"0", "-1", "16777217", "9223372036854775807",
                                        "-9223372036854775808"};
    static const char *const not_integers[] = {"4.0", "\"8\"", "true", "[8]", "{}"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
        char new[128];

        for (size_t w = 0; w < SY_COUNT_OF(wrong); w++) {
            snprintf(new, sizeof(new), "\"%s\": %s", sizes[i].key, wrong[w]);
            refuse(mixtral, sizes[i].old, new, sizes[i].key, wrong[w]);
            refuse(mixtral, sizes[i].old, new, sizes[i].key, sizes[i].max);
        }
        for (size_t w = 0; w < SY_COUNT_OF(not_integers); w++) {
            snprintf(new, sizeof(new), "\"%s\": %s", sizes[i].key, not_integers[w]);
            refuse(mixtral, sizes[i].old, new, sizes[i].key, "an integer is needed");
        }
    }
    refuse(mixtral, "\"vocab_size\": 32000", "\"vocab\": 32000", "vocab_size", "missing");
    refuse(mixtral, "\"num_local_experts\": 8", "\"n_experts\": 8", "num_local_experts", "missing");
    refuse(mixtral, "\"hidden_size\": 4096", "\"hidden_size\": 99999999999999999999", "JSON",
           "integer");
}

static void sizes_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    refuse(mixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9",
           "num_experts_per_tok is 9", "num_local_experts, which is 8");
    refuse(mixtral, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 5",
           "num_attention_heads is 32", "num_key_value_heads, which is 5");
    refuse(mixtral, "\"num_key_value_heads\": 8", "\"num_key_value_heads\": 64",
           "num_attention_heads is 32", "num_key_value_heads, which is 64");
    refuse(mixtral, "\"hidden_size\": 4096", "\"hidden_size\": 4095", "hidden_size is 4095",
           "num_attention_heads, which is 32");
    refuse(mixtral, "\"hidden_size\": 4096", "\"hidden_size\": 4096, \"head_dim\": 127",
           "head_dim is 127", "even");
    refuse(mixtral, "\"hidden_size\": 4096", "\"hidden_size\": 4096, \"head_dim\": 1048576",
           "num_attention_heads is 32", "head_dim is 1048576");
    refuse(mixtral, "\"hidden_size\": 4096", "\"hidden_size\": 4096, \"head_dim\": 0",
           "head_dim is 0", "outside");
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    refuse(mixtral, "1e-05", "0", "rms_norm_eps is 0", "(0, 1]");
    refuse(mixtral, "1e-05", "-1e-5", "rms_norm_eps is -1e-05", "(0, 1]");
    refuse(mixtral, "1e-05", "2", "rms_norm_eps is 2", "(0, 1]");
    refuse(mixtral, "1e-05", "1e-300", "rms_norm_eps", "1e-300");
    refuse(mixtral, "1e-05", "\"1e-5\"", "rms_norm_eps", "a string");
    refuse(mixtral, "1000000.0", "1e39", "rope_theta", "1e+39");
    refuse(mixtral, "1000000.0", "1e999", "JSON", "overflow");
    refuse(mixtral, "1000000.0", "0", "rope_theta is 0", "outside");
    refuse(mixtral, "\"sliding_window\": null", "\"sliding_window\": 0", "sliding_window is 0",
           "outside");
    refuse(mixtral, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0",
           "tie_word_embeddings", "true or false");
}

static void granitemoe_is_described(void **state)
{
    const sy_model_desc d = parse(granite);

    (void)state;
    assert_int_equal(d.gate.score, SY_GATE_SOFTMAX_CHOSEN);
    assert_int_equal(d.tied_head, 1);
    assert_true(d.embedding_multiplier == 12.0f && d.residual_multiplier == 0.22f);
    assert_true(d.attention_scale == 0.015625f && d.logits_scaling == 6.0f);
    /* Its own default, which is not 1 / sqrt(head_dim). */
    assert_true(
        parse_changed(granite, "\"attention_multiplier\": 0.015625, ", "").attention_scale == 1.0f);
    assert_true(parse(qwen3).attention_scale == 1.0f / sqrtf(128.0f));
    refuse(granite, "\"residual_multiplier\": 0.22", "\"residual_multiplier\": 0",
           "residual_multiplier is 0", "outside");
    refuse(granite, "\"logits_scaling\": 6.0", "\"logits_scaling\": -6", "logits_scaling is -6",
           "outside");
    refuse(granite, "\"attention_bias\": false", "\"shared_intermediate_size\": 512",
           "shared_intermediate_size", "not supported");
    refuse(qwen3, "\"use_cache\": true", "\"embedding_multiplier\": 12",
           "embedding_multiplier is not 1", "qwen3_moe");
    refuse(qwen3, "\"use_cache\": true", "\"attention_multiplier\": 0.1", "attention_multiplier",
           "qwen3_moe");
}

static void minimax_m2_is_described(void **state)
{
    static const char part[] = "\"rotary_dim\": 64";
    const sy_model_desc d = parse(minimax);

    (void)state;
    assert_int_equal(d.gate.score, SY_GATE_SIGMOID);
    assert_int_equal(d.gate.renormalise, 1);
    assert_true(d.gate.norm_epsilon == 0.0f);
    assert_int_equal(d.qk_norm, 1);
    assert_int_equal(d.rotary_dim, 64);
    assert_int_equal(parse(qwen3).rotary_dim, 128);
    assert_int_equal(parse_changed(minimax, part, "\"partial_rotary_factor\": 0.5").rotary_dim, 64);
    assert_int_equal(
        parse_changed(minimax, part, "\"rope_parameters\": {\"partial_rotary_factor\": 0.25}")
            .rotary_dim,
        32);
    assert_int_equal(parse_changed(minimax, part, "\"rotary_dim\": null").rotary_dim, 128);
    refuse(minimax, part, "\"rotary_dim\": 63", "63", "even");
    refuse(minimax, part, "\"rotary_dim\": 130", "rotary_dim is 130", "outside");
    refuse(minimax, part, "\"partial_rotary_factor\": 0.001", "0 elements", "even");
    refuse(minimax, part, "\"partial_rotary_factor\": 1.5", "partial_rotary_factor", "outside");
    refuse(minimax, "\"sigmoid\"", "\"softmax\"", "scoring_func", "softmax");
    refuse(qwen3, "\"use_cache\": true", "\"scoring_func\": \"sigmoid\"", "scoring_func",
           "sigmoid");
}

/* As the model cards of Qwen3 tell users to set it for long contexts. */
static void yarn_is_read_and_stretches_the_context(void **state)
{
    static const char none[] = "\"rope_scaling\": null";
    const sy_model_desc d =
        parse_changed(qwen3, none,
                      "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                      "\"original_max_position_embeddings\": 32768}");

    (void)state;
    assert_int_equal(d.rope.type, SY_ROPE_YARN);
    assert_true(d.rope.factor == 4.0f && d.rope.original_context == 32768);
    assert_true(d.rope.beta_fast == 32.0f && d.rope.beta_slow == 1.0f);
    assert_int_equal(d.rope.truncate, 1);
    assert_true(fabsf(d.rope.attention_factor - 1.1386294f) < 1e-6f);
    assert_int_equal(d.context, 131072);
    /* DeepSeek-V3's: the two scales cancel out; spelled the old way. */
    assert_true(parse_changed(qwen3, none,
                              "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
                              "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}")
                    .rope.attention_factor == 1.0f);
    assert_true(parse_changed(qwen3, none,
                              "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
                              "\"attention_factor\": 0.5, \"truncate\": false}")
                    .rope.attention_factor == 0.5f);
    refuse(qwen3, none, "\"rope_scaling\": {\"rope_type\": \"yarn\"}", "rope_scaling.factor",
           "missing");
    refuse(qwen3, none,
           "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, "
           "\"beta_slow\": 2}",
           "beta_slow is 2", "beta_fast");
    refuse(qwen3, none,
           "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
           "\"original_max_position_embeddings\": 0}",
           "original_max_position_embeddings is 0", "outside");
    refuse(qwen3, none,
           "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": 1}",
           "truncate", "true or false");
    refuse(qwen3, none,
           "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": "
           "{\"rope_type\": \"linear\", \"factor\": 4}",
           "rope_scaling and rope_parameters", "both");
}

static void llama3_and_linear_scaling_are_read(void **state)
{
    static const char none[] = "\"rope_scaling\": null";
    const sy_model_desc d = parse_changed(
        qwen3, none,
        "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}");

    (void)state;
    assert_int_equal(d.rope.type, SY_ROPE_LLAMA3);
    assert_true(d.rope.low_freq == 1.0f && d.rope.high_freq == 4.0f && d.rope.factor == 8.0f);
    assert_int_equal(d.rope.original_context, 8192);
    assert_true(d.rope.attention_factor == 1.0f);
    assert_int_equal(d.context, 40960);
    assert_int_equal(
        parse_changed(qwen3, none, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}")
            .rope.type,
        SY_ROPE_LINEAR);
    refuse(qwen3, none,
           "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1}",
           "high_freq_factor", "missing");
    refuse(qwen3, none,
           "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
           "\"high_freq_factor\": 1, \"original_max_position_embeddings\": 8192}",
           "low_freq_factor is 4", "high_freq_factor");
    refuse(qwen3, none, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}", "factor is -2",
           "outside");
    refuse(qwen3, none, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}",
           "factor is 0.5", "grows");
}

static void families_that_are_unknown_are_told_the_known_ones(void **state)
{
    (void)state;
    refuse(mixtral, "\"model_type\": \"mixtral\"", "\"model_type\": \"gpt2\"", "gpt2",
           "mixtral, olmoe, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, granitemoe, "
           "phimoe, gpt_oss, glm4_moe, llama4_text, llama4, ernie4_5_moe, hunyuan_v1_moe, "
           "minimax_m2");
    refuse(mixtral, "\"model_type\": \"mixtral\"", "\"model_type\": 7", "an integer",
           "mixtral, olmoe, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, granitemoe, "
           "phimoe, gpt_oss, glm4_moe, llama4_text, llama4, ernie4_5_moe, hunyuan_v1_moe, "
           "minimax_m2");
    refuse(mixtral, "\"model_type\": \"mixtral\", ", "", "missing",
           "mixtral, olmoe, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, granitemoe, "
           "phimoe, gpt_oss, glm4_moe, llama4_text, llama4, ernie4_5_moe, hunyuan_v1_moe, "
           "minimax_m2");
    refuse(mixtral, "MixtralForCausalLM", "MixtralForSequenceClassification",
           "MixtralForSequenceClassification", "only MixtralForCausalLM");
    refuse(mixtral, "[\"MixtralForCausalLM\"]", "[]", "architectures[0]", "missing");
    parse_changed(mixtral, "\"architectures\": [\"MixtralForCausalLM\"], ", "");
}

static void options_that_would_change_results_are_refused_by_name(void **state)
{
    (void)state;
    refuse(mixtral, "\"silu\"", "\"gelu\"", "hidden_act", "gelu");
    refuse_added("\"rope_scaling\": {\"type\": \"xpos\", \"factor\": 2.0}",
                 "rope_scaling.rope_type", "xpos");
    refuse_added("\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2.0}", "rope_scaling",
                 "original_max_position_embeddings is missing");
    refuse_added("\"rope_scaling\": {\"factor\": 4}", "rope_scaling.factor", "rope_type");
    refuse_added("\"rope_scaling\": 4", "rope_scaling", "an object is needed");
    refuse_added("\"rope_parameters\": {\"rope_type\": \"dynamic\", \"alpha\": 0.5}",
                 "rope_parameters.alpha", "1 or more");
    refuse_added("\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1}}",
                 "rope_parameters.full_attention", "not supported");
    refuse_added("\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
                 "rope_parameters.partial_rotary_factor", "1");
    refuse_added("\"attention_bias\": true", "attention_bias", "not supported");
    refuse_added("\"quantization_config\": {\"quant_method\": \"fp8\"}", "weight_block_size",
                 "[128, 128]");
    refuse_added("\"quantization_config\": {\"quant_method\": \"gptq\"}", "gptq", "not supported");
    refuse_added("\"quantization_config\": {\"quant_method\": \"mxfp4\"}", "mxfp4",
                 "not supported for mixtral");
    refuse_added("\"mlp_only_layers\": [1]", "mlp_only_layers", "not supported");
    refuse_added("\"n_shared_experts\": 1", "n_shared_experts is not 0", "not supported");
    refuse_added("\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5", "must be 1");
    refuse_added("\"routed_scaling_factor\": 2.5", "routed_scaling_factor", "not 1");
    refuse_added("\"decoder_sparse_step\": 2", "decoder_sparse_step", "not 1");
    refuse_added("\"scoring_func\": \"sigmoid\"", "scoring_func", "sigmoid");
    refuse_added("\"norm_topk_prob\": false", "norm_topk_prob is false", "mixtral");
    refuse_added("\"clip_qkv\": 8.0", "clip_qkv", "mixtral");
    refuse_added("\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "layer_types[1]",
                 "full_attention");
}

/* Files of Qwen1.5 and 2 have both. */
static void a_window_that_is_not_used_is_none(void **state)
{
    const sy_model_desc d =
        parse_changed(mixtral, "\"sliding_window\": null",
                      "\"sliding_window\": 4096, \"use_sliding_window\": false");

    (void)state;
    assert_int_equal(d.sliding_window, 0);
    assert_int_equal(d.layer[0], 0);
}

static void the_same_options_switched_off_are_fine(void **state)
{
    (void)state;
    accept_added("\"attention_bias\": false");
    accept_added("\"rope_scaling\": null");
    accept_added("\"rope_scaling\": {\"rope_type\": \"default\"}");
    accept_added("\"mlp_only_layers\": [], \"quantization_config\": null, \"n_shared_experts\": 0");
    accept_added("\"partial_rotary_factor\": 1.0, \"decoder_sparse_step\": 1");
    accept_added("\"norm_topk_prob\": true, \"clip_qkv\": null");
    accept_added("\"layer_types\": [\"full_attention\", \"full_attention\"]");
    accept_added("\"some_future_option\": {\"x\": [1, 2]}");
}

static void end_of_text_may_be_one_id_a_list_or_nothing(void **state)
{
    sy_model_desc d = parse_changed(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": [7, 31999]");

    (void)state;
    assert_int_equal(d.n_eos, 2);
    assert_int_equal(d.eos[1], 31999);
    assert_int_equal(parse_changed(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": null").n_eos,
                     0);
    assert_int_equal(parse_changed(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": []").n_eos,
                     0);
    refuse(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": 32000", "eos_token_id is 32000",
           "31999");
    refuse(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": [1, -1]", "eos_token_id is -1",
           "31999");
    refuse(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": [[1]]", "eos_token_id", "an array");
    refuse(mixtral, "\"eos_token_id\": 2", "\"eos_token_id\": [1,2,3,4,5,6,7,8,9]", "eos_token_id",
           "9 ids");
    refuse(mixtral, "\"bos_token_id\": 1", "\"bos_token_id\": 32000", "bos_token_id is 32000",
           "31999");
}

static void lay(sy_model_desc *desc, const char *text, sy_status wanted, const char *part)
{
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_generation_config_parse(desc, text, strlen(text), &err);
    if (st != wanted) fail_msg("%s: got %s: %s", text, sy_status_name(st), err.message);
    expect_text(err.message, part);
}

static void generation_config_wins_and_says_how_to_sample(void **state)
{
    sy_model_desc d = parse(mixtral);

    (void)state;
    lay(&d,
        "{\"eos_token_id\": [3, 4, 5], \"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 20, "
        "\"do_sample\": true}",
        SY_OK, "");
    assert_int_equal(d.n_eos, 3);
    assert_int_equal(d.eos[2], 5);
    assert_int_equal(d.bos, 1);
    assert_true(d.default_temperature == 0.6f && d.default_top_p == 0.95f);
    assert_int_equal(d.default_top_k, 20);
    lay(&d, "{}", SY_OK, "");
    assert_int_equal(d.n_eos, 3);
    lay(&d, "{\"temperature\": 1, \"do_sample\": false}", SY_OK, "");
    assert_true(d.default_temperature == 0.0f);
}

static void a_generation_config_that_is_wrong_changes_nothing(void **state)
{
    sy_model_desc d = parse(mixtral);
    const sy_model_desc before = d;

    (void)state;
    lay(&d, "{\"eos_token_id\": 3, \"temperature\": -1}", SY_EINVAL, "temperature is -1");
    lay(&d, "{\"eos_token_id\": 3, \"top_p\": 1.5}", SY_EINVAL, "top_p is 1.5");
    lay(&d, "{\"eos_token_id\": 3, \"top_p\": 0}", SY_EINVAL, "top_p is 0");
    lay(&d, "{\"eos_token_id\": 3, \"top_k\": -5}", SY_EINVAL, "top_k is -5");
    lay(&d, "{\"eos_token_id\": 32000}", SY_EINVAL, "eos_token_id is 32000");
    lay(&d, "[]", SY_EINVAL, "an array");
    lay(&d, "", SY_EINVAL, "empty");
    assert_int_equal(d.n_eos, 1);
    assert_int_equal(d.eos[0], before.eos[0]);
    assert_true(d.default_temperature == -1.0f);
}

static void texts_that_are_no_json_object_are_refused(void **state)
{
    (void)state;
    refuse_text("", "empty", "");
    refuse_text("{", "not JSON", "line 1");
    refuse_text("null", "not JSON", "line 1");
    refuse_text("{\"a\":1,\"a\":1}", "\"a\" twice", "");
    refuse_text("{\"\xc3\":1}", "UTF-8", "");
}

static void tensors_are_named_as_on_disk(void **state)
{
    char name[128];

    (void)state;
    assert_int_equal(
        sy_model_tensor_name(name, sizeof(name), "mixtral", SY_ROLE_EXPERT_GATE, 3, 17), SY_OK);
    assert_string_equal(name, "model.layers.3.block_sparse_moe.experts.17.w1.weight");
    assert_int_equal(sy_model_tensor_name(name, sizeof(name), "mixtral", SY_ROLE_EXPERT_DOWN, 0, 1),
                     SY_OK);
    assert_string_equal(name, "model.layers.0.block_sparse_moe.experts.1.w2.weight");
    assert_int_equal(sy_model_tensor_name(name, sizeof(name), "olmoe", SY_ROLE_EXPERT_UP, 15, 63),
                     SY_OK);
    assert_string_equal(name, "model.layers.15.mlp.experts.63.up_proj.weight");
    assert_int_equal(sy_model_tensor_name(name, sizeof(name), "olmoe", SY_ROLE_Q_NORM, 2, 0),
                     SY_OK);
    assert_string_equal(name, "model.layers.2.self_attn.q_norm.weight");
    assert_int_equal(sy_model_tensor_name(name, 15, "olmoe", SY_ROLE_HEAD, 0, 0), SY_OK);
    assert_string_equal(name, "lm_head.weight");
    assert_int_equal(sy_model_tensor_name(name, 14, "olmoe", SY_ROLE_HEAD, 0, 0), SY_ELIMIT);
    assert_int_equal(sy_model_tensor_name(name, 15, "mixtral", SY_ROLE_Q_NORM, 0, 0), SY_EINVAL);
    assert_int_equal(sy_model_tensor_name(name, 15, "gpt2", SY_ROLE_HEAD, 0, 0), SY_EINVAL);
    assert_int_equal(sy_model_tensor_name(name, 15, "olmoe", SY_N_ROLES, 0, 0), SY_EINVAL);
    assert_string_equal(sy_model_family_at(0), "mixtral");
    assert_non_null(sy_model_family_at(sy_model_family_count() - 1));
    assert_null(sy_model_family_at(sy_model_family_count()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixtral_is_described),
        cmocka_unit_test(olmoe_is_described),
        cmocka_unit_test(qwen3_moe_is_described),
        cmocka_unit_test(granitemoe_is_described),
        cmocka_unit_test(minimax_m2_is_described),
        cmocka_unit_test(yarn_is_read_and_stretches_the_context),
        cmocka_unit_test(llama3_and_linear_scaling_are_read),
        cmocka_unit_test(both_spellings_of_dtype_and_rope_are_read),
        cmocka_unit_test(aliases_are_read_and_must_agree),
        cmocka_unit_test(absent_heads_follow_from_the_others),
        cmocka_unit_test(every_size_has_limits_that_the_message_names),
        cmocka_unit_test(sizes_that_do_not_fit_together_are_refused),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(families_that_are_unknown_are_told_the_known_ones),
        cmocka_unit_test(options_that_would_change_results_are_refused_by_name),
        cmocka_unit_test(the_same_options_switched_off_are_fine),
        cmocka_unit_test(a_window_that_is_not_used_is_none),
        cmocka_unit_test(end_of_text_may_be_one_id_a_list_or_nothing),
        cmocka_unit_test(generation_config_wins_and_says_how_to_sample),
        cmocka_unit_test(a_generation_config_that_is_wrong_changes_nothing),
        cmocka_unit_test(texts_that_are_no_json_object_are_refused),
        cmocka_unit_test(tensors_are_named_as_on_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
