/* test_config_families.c - what is read from the configurations that models were published with:
 * sizes, kinds of layers, gates, rotations, scales, and what is beside the experts. */
#include "config_text.h"

#include <math.h>

#include "config_published.h"

/* What a description must say; what is left out is zero there too. */
typedef struct wanted {
    const char *family, *text;
    uint32_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim, rotary_dim;
    uint32_t n_experts, top_k, expert_ffn, dense_ffn, shared_ffn, context;
    uint32_t n_dense, n_sliding, n_chunked, n_still; /* layers of these kinds */
    uint32_t biases, n_mtp_layers, sliding_window, attention_chunk;
    uint32_t kv_rank, q_rank, nope_dim, value_dim;
    int tied_head, shared_gate;
    sy_qk_norm qk_norm;
    sy_norm_form norm;
    sy_mlp_form mlp;
    sy_encoding stored;
    int32_t bos, eos;
    double rms_eps, rope_theta, attention_scale;
    sy_gate_desc gate;
} wanted;

static uint32_t count_layers(const sy_model_desc *d, uint8_t kind)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < d->n_layers; l++) n += (d->layer[l] & kind) != 0;
    return n;
}

static void expect_number(const char *what, const char *family, double is, double wanted_value)
{
    /* Attention scales have a tolerance: they are fp32 of a product in double. */
    if (fabs(is - wanted_value) > 1e-6 * fabs(wanted_value))
        fail_msg("%s: %s is %.9g, not %.9g", family, what, is, wanted_value);
}

static void check_gate(const char *family, const sy_gate_desc *is, const sy_gate_desc *w)
{
    expect_number("gate.score", family, is->score, w->score);
    expect_number("gate.renormalise", family, is->renormalise, w->renormalise);
    expect_number("gate.scale", family, (double)is->scale, (double)w->scale);
    expect_number("gate.norm_epsilon", family, (double)is->norm_epsilon, (double)w->norm_epsilon);
    expect_number("gate.norm_min", family, (double)is->norm_min, (double)w->norm_min);
    expect_number("gate.sparse_epsilon", family, (double)is->sparse_epsilon,
                  (double)w->sparse_epsilon);
    expect_number("gate.n_group", family, is->n_group, w->n_group);
    expect_number("gate.topk_group", family, is->topk_group, w->topk_group);
    expect_number("gate.group_best", family, is->group_best, w->group_best);
    expect_number("gate.scales_input", family, is->scales_input, w->scales_input);
}

#define EXPECT_FIELD(field) expect_number(#field, w->family, (double)d.field, (double)w->field)

static sy_model_desc check(const wanted *w)
{
    const sy_model_desc d = config_parse(w->text);

    assert_string_equal(d.family, w->family);
    EXPECT_FIELD(vocab), EXPECT_FIELD(hidden), EXPECT_FIELD(n_layers), EXPECT_FIELD(n_heads);
    EXPECT_FIELD(n_kv_heads), EXPECT_FIELD(head_dim), EXPECT_FIELD(rotary_dim);
    EXPECT_FIELD(n_experts), EXPECT_FIELD(top_k), EXPECT_FIELD(expert_ffn), EXPECT_FIELD(dense_ffn);
    EXPECT_FIELD(shared_ffn), EXPECT_FIELD(context), EXPECT_FIELD(biases);
    EXPECT_FIELD(n_mtp_layers), EXPECT_FIELD(sliding_window), EXPECT_FIELD(attention_chunk);
    EXPECT_FIELD(tied_head), EXPECT_FIELD(shared_gate), EXPECT_FIELD(qk_norm), EXPECT_FIELD(norm);
    EXPECT_FIELD(mlp), EXPECT_FIELD(stored), EXPECT_FIELD(rms_eps), EXPECT_FIELD(rope_theta);
    EXPECT_FIELD(attention_scale), EXPECT_FIELD(bos);
    expect_number("mla.kv_rank", w->family, d.mla.kv_rank, w->kv_rank);
    expect_number("mla.q_rank", w->family, d.mla.q_rank, w->q_rank);
    expect_number("mla.nope_dim", w->family, d.mla.nope_dim, w->nope_dim);
    expect_number("mla.value_dim", w->family, d.mla.value_dim, w->value_dim);
    expect_number("eos[0]", w->family, d.n_eos > 0 ? d.eos[0] : -1, w->eos);
    expect_number("dense layers", w->family, count_layers(&d, SY_LAYER_DENSE), w->n_dense);
    expect_number("sliding layers", w->family, count_layers(&d, SY_LAYER_SLIDING), w->n_sliding);
    expect_number("chunked layers", w->family, count_layers(&d, SY_LAYER_CHUNKED), w->n_chunked);
    expect_number("layers that do not rotate", w->family, count_layers(&d, SY_LAYER_NO_ROPE),
                  w->n_still);
    check_gate(w->family, &d.gate, &w->gate);
    return d;
}

/* What a user who loads the file gets: mathematically one over the root of 128, 64 or 192. */
#define ROOT_OF_128 0.08838834764831845
#define ROOT_OF_64  0.125

static void qwen_1_5_and_2_have_an_mlp_with_a_gate_beside_the_experts(void **state)
{
    const sy_gate_desc gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f};
    const wanted small = {.family = "qwen2_moe",
                          .text = qwen15_a2_7b,
                          .vocab = 151936,
                          .hidden = 2048,
                          .n_layers = 24,
                          .n_heads = 16,
                          .n_kv_heads = 16,
                          .head_dim = 128,
                          .rotary_dim = 128,
                          .n_experts = 60,
                          .top_k = 4,
                          .expert_ffn = 1408,
                          .shared_ffn = 5632,
                          .shared_gate = 1,
                          .context = 8192,
                          .biases = SY_BIAS_QKV,
                          .bos = 151643,
                          .eos = 151643,
                          .rms_eps = 1e-6,
                          .rope_theta = 1e6,
                          .attention_scale = ROOT_OF_128,
                          .gate = gate};
    const wanted large = {.family = "qwen2_moe",
                          .text = qwen2_57b,
                          .vocab = 151936,
                          .hidden = 3584,
                          .n_layers = 28,
                          .n_heads = 28,
                          .n_kv_heads = 4,
                          .head_dim = 128,
                          .rotary_dim = 128,
                          .n_experts = 64,
                          .top_k = 8,
                          .expert_ffn = 2560,
                          .shared_ffn = 20480,
                          .shared_gate = 1,
                          .context = 131072,
                          .biases = SY_BIAS_QKV,
                          .bos = 151643,
                          .eos = 151643,
                          .rms_eps = 1e-6,
                          .rope_theta = 1e6,
                          .attention_scale = ROOT_OF_128,
                          .gate = gate};
    sy_model_desc d;

    (void)state;
    check(&small);
    check(&large);
    /* The last of every two layers has experts, but for one that is listed. */
    d = config_parse_changed(qwen2_57b, "'decoder_sparse_step': 1",
                             "'decoder_sparse_step': 2, 'mlp_only_layers': [5]");
    assert_int_equal(count_layers(&d, SY_LAYER_DENSE), 15);
    assert_true(sy_model_has_experts(&d, 1) && sy_model_has_experts(&d, 27));
    assert_true(!sy_model_has_experts(&d, 0) && !sy_model_has_experts(&d, 5));
    assert_int_equal(d.dense_ffn, 18944);
    d = config_parse_changed(qwen2_57b, "{", "{'qkv_bias': false, ");
    assert_int_equal(d.biases, 0);
    d = config_parse_changed(qwen2_57b, "'shared_expert_intermediate_size': 20480",
                             "'shared_expert_intermediate_size': 0");
    assert_true(d.shared_ffn == 0 && !d.shared_gate);
}

static void qwen_3_has_heads_wider_than_its_hidden_size_says(void **state)
{
    const sy_gate_desc gate = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1.0f};
    const wanted large = {.family = "qwen3_moe",
                          .text = qwen3_235b,
                          .vocab = 151936,
                          .hidden = 4096,
                          .n_layers = 94,
                          .n_heads = 64,
                          .n_kv_heads = 4,
                          .head_dim = 128,
                          .rotary_dim = 128,
                          .n_experts = 128,
                          .top_k = 8,
                          .expert_ffn = 1536,
                          .context = 40960,
                          .qk_norm = SY_QK_NORM_HEAD,
                          .bos = 151643,
                          .eos = 151645,
                          .rms_eps = 1e-6,
                          .rope_theta = 1e6,
                          .attention_scale = ROOT_OF_128,
                          .gate = gate};
    const wanted fp8 = {.family = "qwen3_moe",
                        .text = qwen3_30b_fp8,
                        .vocab = 151936,
                        .hidden = 2048,
                        .n_layers = 48,
                        .n_heads = 32,
                        .n_kv_heads = 4,
                        .head_dim = 128,
                        .rotary_dim = 128,
                        .n_experts = 128,
                        .top_k = 8,
                        .expert_ffn = 768,
                        .context = 40960,
                        .qk_norm = SY_QK_NORM_HEAD,
                        .stored = SY_ENCODING_F8_BLOCK,
                        .bos = 151643,
                        .eos = 151645,
                        .rms_eps = 1e-6,
                        .rope_theta = 1e6,
                        .attention_scale = ROOT_OF_128,
                        .gate = gate};

    (void)state;
    check(&large);
    check(&fp8);
}

static void deepseek_v2_scales_attention_by_what_yarn_stretched(void **state)
{
    const wanted lite = {.family = "deepseek_v2",
                         .text = deepseek_v2_lite,
                         .vocab = 102400,
                         .hidden = 2048,
                         .n_layers = 27,
                         .n_heads = 16,
                         .n_kv_heads = 16,
                         .head_dim = 192,
                         .rotary_dim = 64,
                         .n_experts = 64,
                         .top_k = 6,
                         .expert_ffn = 1408,
                         .dense_ffn = 10944,
                         .shared_ffn = 2816,
                         .context = 163840,
                         .n_dense = 1,
                         .kv_rank = 512,
                         .nope_dim = 128,
                         .value_dim = 128,
                         .bos = 100000,
                         .eos = 100001,
                         .rms_eps = 1e-6,
                         .rope_theta = 1e4,
                         .attention_scale = 0.1147213867929261,
                         .gate = {.score = SY_GATE_SOFTMAX, .scale = 1.0f}};
    const wanted full = {.family = "deepseek_v2",
                         .text = deepseek_v2,
                         .vocab = 102400,
                         .hidden = 5120,
                         .n_layers = 60,
                         .n_heads = 128,
                         .n_kv_heads = 128,
                         .head_dim = 192,
                         .rotary_dim = 64,
                         .n_experts = 160,
                         .top_k = 6,
                         .expert_ffn = 1536,
                         .dense_ffn = 12288,
                         .shared_ffn = 3072,
                         .context = 163840,
                         .n_dense = 1,
                         .kv_rank = 512,
                         .q_rank = 1536,
                         .nope_dim = 128,
                         .value_dim = 128,
                         .bos = 100000,
                         .eos = 100001,
                         .rms_eps = 1e-6,
                         .rope_theta = 1e4,
                         .attention_scale = 0.1352337788608801,
                         .gate = {.score = SY_GATE_SOFTMAX,
                                  .scale = 16.0f,
                                  .n_group = 8,
                                  .topk_group = 3,
                                  .group_best = 1}};
    sy_model_desc d;

    (void)state;
    d = check(&lite);
    assert_true(!sy_model_has_experts(&d, 0) && sy_model_has_experts(&d, 1));
    assert_true(d.rope.type == SY_ROPE_YARN && d.rope.interleaved);
    assert_true(d.rope.attention_factor == 1.0f); /* the two scales of cosines cancel out */
    check(&full);
    d = config_parse_changed(deepseek_v2, "'mscale_all_dim': 1.0", "'mscale_all_dim': 0");
    expect_number("attention_scale", "deepseek_v2", (double)d.attention_scale, 1 / sqrt(192.0));
}

static void deepseek_v3_and_kimi_k2_are_described(void **state)
{
    const sy_gate_desc gate = {.score = SY_GATE_SIGMOID,
                               .renormalise = 1,
                               .scale = 2.5f,
                               .norm_epsilon = 1e-20f,
                               .n_group = 8,
                               .topk_group = 4,
                               .group_best = 2};
    wanted w = {.family = "deepseek_v3",
                .text = deepseek_v3,
                .vocab = 129280,
                .hidden = 7168,
                .n_layers = 61,
                .n_heads = 128,
                .n_kv_heads = 128,
                .head_dim = 192,
                .rotary_dim = 64,
                .n_experts = 256,
                .top_k = 8,
                .expert_ffn = 2048,
                .dense_ffn = 18432,
                .shared_ffn = 2048,
                .context = 163840,
                .n_dense = 3,
                .n_mtp_layers = 1,
                .kv_rank = 512,
                .q_rank = 1536,
                .nope_dim = 128,
                .value_dim = 128,
                .stored = SY_ENCODING_F8_BLOCK,
                .bos = 0,
                .eos = 1,
                .rms_eps = 1e-6,
                .rope_theta = 1e4,
                .attention_scale = 0.1352337788608801,
                .gate = gate};
    char v31[CONFIG_TEXT_BYTES];
    sy_model_desc d;

    (void)state;
    d = check(&w);
    assert_true(d.rope.attention_factor == 1.0f && d.rope.interleaved && d.rope.truncate);
    /* V3.1 rounds factors to powers of two, which they are read as anyway. */
    config_change(v31, deepseek_v3, "'quant_method': 'fp8'",
                  "'quant_method': 'fp8', 'scale_fmt': 'ue8m0'");
    w.text = v31;
    check(&w);
    w = (wanted){.family = "kimi_k2",
                 .text = kimi_k2,
                 .vocab = 163840,
                 .hidden = 7168,
                 .n_layers = 61,
                 .n_heads = 64,
                 .n_kv_heads = 64,
                 .head_dim = 192,
                 .rotary_dim = 64,
                 .n_experts = 384,
                 .top_k = 8,
                 .expert_ffn = 2048,
                 .dense_ffn = 18432,
                 .shared_ffn = 2048,
                 .context = 131072,
                 .n_dense = 1,
                 .kv_rank = 512,
                 .q_rank = 1536,
                 .nope_dim = 128,
                 .value_dim = 128,
                 .stored = SY_ENCODING_F8_BLOCK,
                 .bos = 163584,
                 .eos = 163585,
                 .rms_eps = 1e-6,
                 .rope_theta = 5e4,
                 .attention_scale = 0.13086079996295005,
                 .gate = gate};
    w.gate.scale = 2.827f;
    w.gate.n_group = w.gate.topk_group = w.gate.group_best = 0; /* one group is none */
    d = check(&w);
    assert_true(d.rope.beta_fast == 1.0f && d.rope.beta_slow == 1.0f);
}

/* A file that says nothing of groups means what the code that came with the weights has: V3 has
 * eight of them, V2 and GLM none. */
static void groups_that_a_file_does_not_mention_are_the_familys(void **state)
{
    const sy_model_desc d = config_parse_changed(deepseek_v3, "'n_group': 8, ", "");
    const sy_model_desc glm =
        config_parse_changed(glm45_air, "'n_group': 1, 'topk_group': 1, ", "");

    (void)state;
    assert_int_equal(d.gate.n_group, 8);
    assert_int_equal(d.gate.topk_group, 4);
    assert_int_equal(config_parse_changed(deepseek_v3, "'topk_group': 4, ", "").gate.topk_group, 4);
    assert_int_equal(glm.gate.n_group, 0);
    config_refuse(deepseek_v2, "'n_group': 8, ", "", "n_group is missing", "");
}

static void phi_3_5_has_layer_norms_and_biases_everywhere(void **state)
{
    const wanted w = {
        .family = "phimoe",
        .text = phi35,
        .vocab = 32064,
        .hidden = 4096,
        .n_layers = 32,
        .n_heads = 32,
        .n_kv_heads = 8,
        .head_dim = 128,
        .rotary_dim = 128,
        .n_experts = 16,
        .top_k = 2,
        .expert_ffn = 6400,
        .context = 131072,
        .norm = SY_NORM_LAYER,
        .biases = SY_BIAS_QKV | SY_BIAS_O | SY_BIAS_HEAD,
        .bos = 1,
        .eos = 32000,
        .rms_eps = 1e-5,
        .rope_theta = 1e4,
        .attention_scale = ROOT_OF_128,
        .gate = {.score = SY_GATE_SPARSEMIXER, .scale = 1.0f, .sparse_epsilon = 0.01f}};
    sy_model_desc d;

    (void)state;
    d = check(&w); /* a window as long as the context is none */
    assert_int_equal(d.rope.type, SY_ROPE_LONG);
    assert_int_equal(d.rope.original_context, 4096);
    assert_true(d.rope.short_factor[63] == 1.25f && d.rope.long_factor[0] == 4.5f);
    assert_true(d.rope.attention_factor == 1.243163121016122f);
    assert_true(d.rope.long_attention_factor == 1.243163121016122f);
    d = config_parse_changed(phi35, "'sliding_window': 131072", "'sliding_window': 2047");
    assert_int_equal(count_layers(&d, SY_LAYER_SLIDING), 32);
    config_parse_changed(phi35, "PhiMoEForCausalLM", "PhimoeForCausalLM");
}

static void gpt_oss_slides_in_every_second_layer(void **state)
{
    wanted w = {.family = "gpt_oss",
                .text = gpt_oss_20b,
                .vocab = 201088,
                .hidden = 2880,
                .n_layers = 24,
                .n_heads = 64,
                .n_kv_heads = 8,
                .head_dim = 64,
                .rotary_dim = 64,
                .n_experts = 32,
                .top_k = 4,
                .expert_ffn = 2880,
                .context = 131072,
                .n_sliding = 12,
                .sliding_window = 128,
                .mlp = SY_MLP_CLAMPED,
                .stored = SY_ENCODING_MXFP4,
                .biases = SY_BIAS_QKV | SY_BIAS_O,
                .bos = -1,
                .eos = 200002,
                .rms_eps = 1e-5,
                .rope_theta = 150000,
                .attention_scale = ROOT_OF_64,
                .gate = {.score = SY_GATE_SOFTMAX_CHOSEN, .scale = 1.0f}};
    sy_model_desc d;

    (void)state;
    d = check(&w);
    assert_true((d.layer[0] & SY_LAYER_SLIDING) && !(d.layer[1] & SY_LAYER_SLIDING));
    assert_true(d.mlp_limit == 7.0f && !d.rope.truncate);
    expect_number("rope.attention_factor", "gpt_oss", (double)d.rope.attention_factor,
                  1.3465735902799727);
    w.text = gpt_oss_120b;
    w.n_layers = 36;
    w.n_experts = 128;
    w.n_sliding = 18;
    d = check(&w);
    assert_true((d.layer[34] & SY_LAYER_SLIDING) && !(d.layer[35] & SY_LAYER_SLIDING));
}

static void glm_4_5_and_4_6_rotate_half_of_each_head(void **state)
{
    wanted w = {
        .family = "glm4_moe",
        .text = glm45_air,
        .vocab = 151552,
        .hidden = 4096,
        .n_layers = 46,
        .n_heads = 96,
        .n_kv_heads = 8,
        .head_dim = 128,
        .rotary_dim = 64,
        .n_experts = 128,
        .top_k = 8,
        .expert_ffn = 1408,
        .dense_ffn = 10944,
        .shared_ffn = 1408,
        .context = 131072,
        .n_dense = 1,
        .n_mtp_layers = 1,
        .biases = SY_BIAS_QKV,
        .bos = -1,
        .eos = 151329,
        .rms_eps = 1e-5,
        .rope_theta = 1e6,
        .attention_scale = ROOT_OF_128,
        .gate = {
            .score = SY_GATE_SIGMOID, .renormalise = 1, .scale = 1.0f, .norm_epsilon = 1e-20f}};
    sy_model_desc d;

    (void)state;
    d = check(&w);
    assert_int_equal(d.n_eos, 3);
    assert_true(!d.rope.interleaved);
    w.text = glm45;
    w.hidden = 5120;
    w.n_layers = 92;
    w.n_experts = 160;
    w.expert_ffn = w.shared_ffn = 1536;
    w.dense_ffn = 12288;
    w.n_dense = 3;
    w.qk_norm = SY_QK_NORM_HEAD;
    w.gate.scale = 2.5f;
    check(&w);
    w.text = glm46;
    w.context = 202752;
    check(&w);
}

static void llama_4_is_read_out_of_its_text_model(void **state)
{
    wanted w = {.family = "llama4",
                .text = llama4_scout,
                .vocab = 202048,
                .hidden = 5120,
                .n_layers = 48,
                .n_heads = 40,
                .n_kv_heads = 8,
                .head_dim = 128,
                .rotary_dim = 128,
                .n_experts = 16,
                .top_k = 1,
                .expert_ffn = 8192,
                .shared_ffn = 8192,
                .context = 10485760,
                .n_chunked = 36,
                .n_still = 12,
                .attention_chunk = 8192,
                .qk_norm = SY_QK_NORM_WEIGHTLESS,
                .bos = 200000,
                .eos = 200001,
                .rms_eps = 1e-5,
                .rope_theta = 5e5,
                .attention_scale = ROOT_OF_128,
                .gate = {.score = SY_GATE_SIGMOID_CHOSEN, .scale = 1.0f, .scales_input = 1}};
    sy_model_desc d;

    (void)state;
    d = check(&w);
    assert_string_equal(d.prefix, "language_model.");
    assert_int_equal(d.n_eos, 3);
    assert_true((d.layer[3] & SY_LAYER_NO_ROPE) && !(d.layer[3] & SY_LAYER_CHUNKED));
    assert_true((d.layer[46] & SY_LAYER_CHUNKED) && (d.layer[47] & SY_LAYER_NO_ROPE));
    assert_true(d.temperature_floor == 8192.0f && d.temperature_scale == 0.1f);
    assert_true(d.rope.type == SY_ROPE_LLAMA3 && d.rope.factor == 16.0f && d.rope.interleaved);
    w.text = llama4_maverick;
    w.n_experts = 128;
    w.context = 1048576;
    w.n_dense = 24;
    w.dense_ffn = 16384;
    w.qk_norm = SY_QK_NORM_NONE;
    d = check(&w);
    assert_true(!sy_model_has_experts(&d, 0) && sy_model_has_experts(&d, 1));
    d = config_parse_changed(llama4_maverick, "'interleave_moe_layer_step': 2",
                             "'attn_temperature_tuning': false, 'moe_layers': [1, 2]");
    assert_true(d.temperature_scale == 0.0f);
    assert_int_equal(count_layers(&d, SY_LAYER_DENSE), 46);
    assert_true(sy_model_has_experts(&d, 2));
}

static void ernie_4_5_has_two_experts_width_beside_the_others(void **state)
{
    const wanted w = {
        .family = "ernie4_5_moe",
        .text = ernie45_21b,
        .vocab = 103424,
        .hidden = 2560,
        .n_layers = 28,
        .n_heads = 20,
        .n_kv_heads = 4,
        .head_dim = 128,
        .rotary_dim = 128,
        .n_experts = 64,
        .top_k = 6,
        .expert_ffn = 1536,
        .dense_ffn = 12288,
        .shared_ffn = 3072,
        .context = 131072,
        .n_dense = 1,
        .n_mtp_layers = 1,
        .tied_head = 1,
        .bos = 1,
        .eos = 2,
        .rms_eps = 1e-5,
        .rope_theta = 5e5,
        .attention_scale = ROOT_OF_128,
        .gate = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1.0f, .norm_min = 1e-12f}};
    sy_model_desc d;

    (void)state;
    d = check(&w);
    assert_true(d.rope.interleaved);
    d = config_parse_changed(ernie45_21b, "'moe_layer_end_index': 27", "'moe_layer_end_index': -1");
    assert_true(sy_model_has_experts(&d, 27));
    d = config_parse_changed(ernie45_21b, "'moe_layer_end_index': 27", "'moe_layer_end_index': 20");
    assert_true(sy_model_has_experts(&d, 20) && !sy_model_has_experts(&d, 21));
}

static void hunyuan_a13b_gives_its_numbers_once_a_layer(void **state)
{
    const wanted w = {.family = "hunyuan_v1_moe",
                      .text = hunyuan_a13b,
                      .vocab = 128167,
                      .hidden = 4096,
                      .n_layers = 32,
                      .n_heads = 32,
                      .n_kv_heads = 8,
                      .head_dim = 128,
                      .rotary_dim = 128,
                      .n_experts = 64,
                      .top_k = 8,
                      .expert_ffn = 3072,
                      .shared_ffn = 3072,
                      .context = 32768,
                      .qk_norm = SY_QK_NORM_ROTATED,
                      .tied_head = 1,
                      .bos = 1,
                      .eos = 127960,
                      .rms_eps = 1e-5,
                      .rope_theta = 11158839.925,
                      .attention_scale = ROOT_OF_128,
                      .gate = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1.0f}};

    (void)state;
    check(&w);
    assert_int_equal(
        config_parse_changed(hunyuan_a13b, "'attention_head_dim': 128", "'attention_head_dim': 64")
            .head_dim,
        64);
    config_refuse(hunyuan_a13b, "'moe_topk': [8, 8", "'moe_topk': [8, 7", "moe_topk[1]",
                  "layers that differ");
    config_refuse(hunyuan_a13b, "'moe_intermediate_size': [3072, 3072",
                  "'moe_intermediate_size': [3072, 1024", "moe_intermediate_size[1]",
                  "layers that differ");
    config_refuse(hunyuan_a13b, "'intermediate_size': 3072", "'intermediate_size': 4096",
                  "moe_intermediate_size is 3072", "intermediate_size, which is 4096");
}

static void minimax_m2_and_granite_are_described(void **state)
{
    const wanted minimax = {.family = "minimax_m2",
                            .text = minimax_m2,
                            .vocab = 200064,
                            .hidden = 3072,
                            .n_layers = 62,
                            .n_heads = 48,
                            .n_kv_heads = 8,
                            .head_dim = 128,
                            .n_mtp_layers = 3,
                            .rotary_dim = 64,
                            .n_experts = 256,
                            .top_k = 8,
                            .expert_ffn = 1536,
                            .context = 196608,
                            .qk_norm = SY_QK_NORM_WHOLE,
                            .stored = SY_ENCODING_F8_BLOCK,
                            .bos = -1,
                            .eos = -1,
                            .rms_eps = 1e-6,
                            .rope_theta = 5e6,
                            .attention_scale = ROOT_OF_128,
                            .gate = {.score = SY_GATE_SIGMOID, .renormalise = 1, .scale = 1.0f}};
    const wanted granite = {.family = "granitemoe",
                            .text = granite_3b,
                            .vocab = 49155,
                            .hidden = 1536,
                            .n_layers = 32,
                            .n_heads = 24,
                            .n_kv_heads = 8,
                            .head_dim = 64,
                            .rotary_dim = 64,
                            .n_experts = 40,
                            .top_k = 8,
                            .expert_ffn = 512,
                            .context = 131072,
                            .tied_head = 1,
                            .bos = 0,
                            .eos = 0,
                            .rms_eps = 1e-6,
                            .rope_theta = 1e7,
                            .attention_scale = 0.015625,
                            .gate = {.score = SY_GATE_SOFTMAX_CHOSEN, .scale = 1.0f}};
    sy_model_desc d;

    (void)state;
    check(&minimax);
    d = check(&granite);
    assert_true(d.embedding_multiplier == 12.0f && d.residual_multiplier == 0.22f);
    assert_true(d.logits_scaling == 6.0f);
}

/* transformers 5 writes rope_theta and the scaling into one dictionary, and dtype. */
static void files_of_newer_transformers_mean_the_same(void **state)
{
    sy_model_desc d = config_parse_changed(
        gpt_oss_120b, "'rope_theta': 150000, ",
        "'dtype': 'bfloat16', 'rope_parameters': {'rope_theta': 150000.0, 'rope_type': 'default'}, "
        "'layer_types': null, ");

    (void)state;
    assert_true(d.rope_theta == 150000.0f && d.rope.type == SY_ROPE_YARN);
    d = config_parse_changed(glm45_air, "'partial_rotary_factor': 0.5",
                             "'rope_parameters': {'rope_type': 'default', 'rope_theta': 1000000.0, "
                             "'partial_rotary_factor': 0.5}");
    assert_int_equal(d.rotary_dim, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_1_5_and_2_have_an_mlp_with_a_gate_beside_the_experts),
        cmocka_unit_test(qwen_3_has_heads_wider_than_its_hidden_size_says),
        cmocka_unit_test(deepseek_v2_scales_attention_by_what_yarn_stretched),
        cmocka_unit_test(deepseek_v3_and_kimi_k2_are_described),
        cmocka_unit_test(groups_that_a_file_does_not_mention_are_the_familys),
        cmocka_unit_test(phi_3_5_has_layer_norms_and_biases_everywhere),
        cmocka_unit_test(gpt_oss_slides_in_every_second_layer),
        cmocka_unit_test(glm_4_5_and_4_6_rotate_half_of_each_head),
        cmocka_unit_test(llama_4_is_read_out_of_its_text_model),
        cmocka_unit_test(ernie_4_5_has_two_experts_width_beside_the_others),
        cmocka_unit_test(hunyuan_a13b_gives_its_numbers_once_a_layer),
        cmocka_unit_test(minimax_m2_and_granite_are_described),
        cmocka_unit_test(files_of_newer_transformers_mean_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
