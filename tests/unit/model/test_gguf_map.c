/* test_gguf_map.c - GGUF models in Hugging Face's terms: configurations that the reader of
 * config.json takes, names and places of tensors, and rows in their order. */
#include "gguf_files.h"

#include "sy_model.h"

enum { HIDDEN = 16, HEADS = 2, KV_HEADS = 1, HEAD = 8, VOCAB = 24, EXPERTS = 4, FFN = 6 };

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

static const char *file_path(void)
{
    return in_dir(dir, "model.gguf");
}

static const char *key_of(const char *architecture, const char *name)
{
    static char key[128];

    snprintf(key, sizeof(key), "%s.%s", architecture, name);
    return key;
}

/* What every family has, with two layers. */
static void make_model(made_gguf *m, const char *arch)
{
    make_gguf(m);
    add_string(m, "general.architecture", arch);
    add_u32(m, key_of(arch, "block_count"), 2);
    add_u32(m, key_of(arch, "context_length"), 64);
    add_u32(m, key_of(arch, "embedding_length"), HIDDEN);
    add_u32(m, key_of(arch, "feed_forward_length"), 20);
    add_u32(m, key_of(arch, "attention.head_count"), HEADS);
    add_u32(m, key_of(arch, "attention.head_count_kv"), KV_HEADS);
    add_f32(m, key_of(arch, "attention.layer_norm_rms_epsilon"), 1e-6f);
    add_f32(m, key_of(arch, "rope.freq_base"), 1e6f);
    add_u32(m, key_of(arch, "expert_count"), EXPERTS);
    add_u32(m, key_of(arch, "expert_used_count"), strcmp(arch, "llama4") == 0 ? 1 : 2);
    add_matrix(m, "token_embd.weight", SY_GGUF_F32, VOCAB, HIDDEN, NULL);
    add_matrix(m, "output.weight", SY_GGUF_F32, VOCAB, HIDDEN, NULL);
    for (int l = 0; l < 2; l++) {
        char name[64];

        snprintf(name, sizeof(name), "blk.%d.ffn_gate_inp.weight", l);
        add_matrix(m, name, SY_GGUF_F32, EXPERTS, HIDDEN, NULL);
        snprintf(name, sizeof(name), "blk.%d.ffn_gate_exps.weight", l);
        add_tensor(m, name, SY_GGUF_F32, 3, (uint64_t[]){EXPERTS, FFN, HIDDEN}, NULL);
    }
}

/* Ends m. Returns the configuration, which the reader takes; the caller frees it. */
static char *config_of(made_gguf *m)
{
    sy_gguf_set *set = open_made(m, file_path());
    sy_model_desc desc;
    sy_strbuf out;
    sy_error err;

    made_free(m);
    sy_strbuf_init(&out);
    expect_ok(sy_gguf_config(&out, set, &err), &err);
    sy_gguf_set_close(set);
    if (sy_model_desc_parse(&desc, out.data, out.len, &err) != SY_OK)
        fail_msg("%s\n%s", err.message, out.data);
    return sy_strbuf_detach(&out);
}

static void refuse_config(made_gguf *m, const char *part)
{
    sy_gguf_set *set = open_made(m, file_path());
    sy_strbuf out;
    sy_error err;

    made_free(m);
    sy_strbuf_init(&out);
    assert_int_equal(sy_gguf_config(&out, set, &err), SY_EINVAL);
    expect_text(err.message, part);
    sy_gguf_set_close(set);
    sy_strbuf_free(&out);
}

/* Ends m. The configuration holds each of the parts, and the reader takes it. */
static sy_model_desc *read_config(made_gguf *m, const char *const *parts, size_t n_parts)
{
    static sy_model_desc desc;
    char *config = config_of(m);
    sy_error err;

    for (size_t i = 0; i < n_parts; i++) expect_text(config, parts[i]);
    expect_ok(sy_model_desc_parse(&desc, config, strlen(config), &err), &err);
    free(config);
    return &desc;
}

#define PARTS(...) \
    (const char *const[]){__VA_ARGS__}, SY_COUNT_OF(((const char *const[]){__VA_ARGS__}))

static void llama_with_experts_is_mixtral(void **state)
{
    made_gguf m;
    const sy_model_desc *desc;

    (void)state;
    make_model(&m, "llama");
    add_u32(&m, "tokenizer.ggml.bos_token_id", 1);
    add_u32(&m, "tokenizer.ggml.eos_token_id", 2);
    add_u32(&m, "tokenizer.ggml.eot_token_id", 7);
    add_u32(&m, "tokenizer.ggml.eom_token_id", 2);
    desc = read_config(&m, PARTS("\"model_type\": \"mixtral\"", "\"eos_token_id\": [2, 7]"));
    assert_int_equal(desc->hidden, HIDDEN);
    assert_int_equal(desc->n_layers, 2);
    assert_int_equal(desc->vocab, VOCAB);
    assert_int_equal(desc->n_heads, HEADS);
    assert_int_equal(desc->n_kv_heads, KV_HEADS);
    assert_int_equal(desc->head_dim, HEAD);
    assert_int_equal(desc->n_experts, EXPERTS);
    assert_int_equal(desc->top_k, 2);
    assert_int_equal(desc->expert_ffn, FFN); /* the tensor's, not feed_forward_length */
    assert_true(desc->rms_eps == 1e-6f && desc->rope_theta == 1e6f);
    assert_int_equal(desc->tied_head, 0);
    assert_int_equal(desc->bos, 1);
    assert_int_equal(desc->n_eos, 2);
    make_model(&m, "llama");
    m.n_tensors--, m.n_tensors--; /* without the second layer's experts */
    memcpy(m.tensor[1].name, "blk.1.attn_norm", 16);
    m.tensor[1].rank = 2;
    assert_int_equal(read_config(&m, NULL, 0)->tied_head, 1);
}

static void counts_may_be_given_layer_by_layer_if_they_agree(void **state)
{
    made_gguf m;

    (void)state;
    make_model(&m, "olmoe");
    m.n_keys -= 5;
    sy_strbuf_reset(&m.keys);
    m.n_keys = 0;
    add_string(&m, "general.architecture", "olmoe");
    add_u32(&m, "olmoe.block_count", 2);
    add_u32(&m, "olmoe.context_length", 64);
    add_u32(&m, "olmoe.embedding_length", HIDDEN);
    add_array(&m, "olmoe.attention.head_count", SY_GGUF_KIND_I32, (int32_t[]){2, 2}, 2, 4);
    add_array(&m, "olmoe.attention.head_count_kv", SY_GGUF_KIND_I32, (int32_t[]){2, 1}, 2, 4);
    add_f32(&m, "olmoe.attention.layer_norm_rms_epsilon", 1e-5f);
    add_u32(&m, "olmoe.expert_count", EXPERTS);
    add_u32(&m, "olmoe.expert_used_count", 2);
    refuse_config(&m, "olmoe.attention.head_count_kv[1] is not as the others");
}

static void each_family_has_its_keys(void **state)
{
    made_gguf m;
    const sy_model_desc *desc;

    (void)state;
    make_model(&m, "olmoe");
    desc = read_config(&m, PARTS("\"model_type\": \"olmoe\"", "\"norm_topk_prob\": false"));
    assert_int_equal(desc->gate.renormalise, 0);

    make_model(&m, "qwen3moe");
    add_u32(&m, "qwen3moe.attention.key_length", 32);
    desc = read_config(&m, PARTS("\"model_type\": \"qwen3_moe\"", "\"norm_topk_prob\": true"));
    assert_int_equal(desc->head_dim, 32);
    assert_int_equal(desc->gate.renormalise, 1);

    make_model(&m, "qwen2moe");
    add_matrix(&m, "blk.0.ffn_gate_shexp.weight", SY_GGUF_F32, 12, HIDDEN, NULL);
    add_vector(&m, "blk.0.attn_q.bias", 16, NULL);
    desc = read_config(&m, PARTS("\"shared_expert_intermediate_size\": 12", "\"qkv_bias\": true"));
    assert_int_equal(desc->expert_ffn, FFN);

    make_model(&m, "granitemoe");
    add_f32(&m, "granitemoe.embedding_scale", 12.0f);
    add_f32(&m, "granitemoe.residual_scale", 0.22f);
    add_f32(&m, "granitemoe.attention.scale", 0.015625f);
    add_f32(&m, "granitemoe.logit_scale", 6.0f);
    desc = read_config(&m, PARTS("\"residual_multiplier\": 0.22,"));
    assert_true(desc->residual_multiplier == 0.22f && desc->attention_scale == 0.015625f);

    make_model(&m, "minimax-m2");
    add_u32(&m, "minimax-m2.rope.dimension_count", 4);
    add_u32(&m, "minimax-m2.attention.key_length", HEAD);
    desc = read_config(&m, PARTS("\"model_type\": \"minimax_m2\"", "\"rotary_dim\": 4"));
    assert_int_equal(desc->rotary_dim, 4);
}

static void add_deepseek(made_gguf *m)
{
    make_model(m, "deepseek2");
    add_u32(m, "deepseek2.leading_dense_block_count", 1);
    add_u32(m, "deepseek2.attention.q_lora_rank", 24);
    add_u32(m, "deepseek2.attention.kv_lora_rank", 32);
    add_u32(m, "deepseek2.attention.key_length", 40);
    add_u32(m, "deepseek2.attention.value_length", 32);
    add_u32(m, "deepseek2.attention.key_length_mla", 24);
    add_u32(m, "deepseek2.attention.value_length_mla", 12);
    add_u32(m, "deepseek2.rope.dimension_count", 8);
    add_u32(m, "deepseek2.expert_shared_count", 2);
    add_f32(m, "deepseek2.expert_weights_scale", 2.5f);
    add_string(m, "deepseek2.rope.scaling.type", "yarn");
    add_f32(m, "deepseek2.rope.scaling.factor", 4.0f);
    add_u32(m, "deepseek2.rope.scaling.original_context_length", 16);
    add_f32(m, "deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
}

static void deepseek_is_v2_or_v3_by_its_gate(void **state)
{
    made_gguf m;
    char *config;

    (void)state;
    add_deepseek(&m);
    config = config_of(&m);
    expect_text(config, "\"model_type\": \"deepseek_v2\"");
    expect_text(config, "\"topk_method\": \"greedy\"");
    expect_text(config, "\"qk_nope_head_dim\": 16");
    expect_text(config, "\"qk_rope_head_dim\": 8");
    expect_text(config, "\"v_head_dim\": 12");
    expect_text(config, "\"num_key_value_heads\": 2");
    expect_text(config, "\"mscale\": 0.707, \"mscale_all_dim\": 0.707}");
    expect_text(config, "\"q_lora_rank\": 24");
    free(config);
    add_deepseek(&m);
    add_u32(&m, "deepseek2.expert_gating_func", 2);
    add_bool(&m, "deepseek2.expert_weights_norm", 1);
    add_u32(&m, "deepseek2.expert_group_count", 2);
    add_u32(&m, "deepseek2.expert_group_used_count", 1);
    config = config_of(&m);
    expect_text(config, "\"model_type\": \"deepseek_v3\"");
    expect_text(config, "\"scoring_func\": \"sigmoid\"");
    expect_text(config, "\"topk_method\": \"noaux_tc\"");
    expect_text(config, "\"n_group\": 2");
    expect_text(config, "\"norm_topk_prob\": true");
    expect_text(config, "\"routed_scaling_factor\": 2.5");
    free(config);
}

static void families_with_constants_that_no_file_has_get_them(void **state)
{
    made_gguf m;
    char *config;

    (void)state;
    make_model(&m, "gpt-oss");
    add_u32(&m, "gpt-oss.attention.key_length", HEAD);
    add_u32(&m, "gpt-oss.attention.sliding_window", 128);
    add_string(&m, "gpt-oss.rope.scaling.type", "yarn");
    add_f32(&m, "gpt-oss.rope.scaling.factor", 32.0f);
    add_u32(&m, "gpt-oss.rope.scaling.original_context_length", 4096);
    config = config_of(&m);
    expect_text(config, "\"layer_types\": [\"sliding_attention\", \"full_attention\"]");
    expect_text(config, "\"truncate\": false");
    expect_text(config, "\"swiglu_limit\": 7.0");
    free(config);
    make_model(&m, "phimoe");
    add_vector(&m, "rope_factors_short.weight", 4, (float[]){1.0f, 1.0f, 1.02f, 1.05f});
    add_vector(&m, "rope_factors_long.weight", 4, (float[]){1.0f, 1.5f, 2.0f, 8.0f});
    add_u32(&m, "phimoe.rope.scaling.original_context_length", 6);
    config = config_of(&m);
    expect_text(config, "\"short_factor\": [1, 1, 1.02, 1.05], \"long_factor\": [1, 1.5, 2, 8]");
    expect_text(config, "\"router_jitter_noise\": 0.01");
    expect_text(config, "\"original_max_position_embeddings\": 6");
    free(config);
    make_model(&m, "glm4moe");
    add_u32(&m, "glm4moe.nextn_predict_layers", 1);
    add_u32(&m, "glm4moe.attention.key_length", HEAD);
    add_u32(&m, "glm4moe.rope.dimension_count", 4);
    config = config_of(&m);
    expect_text(config, "\"num_hidden_layers\": 1");
    expect_text(config, "\"partial_rotary_factor\": 0.5");
    free(config);
}

/* The factors as the converter computes them. */
static void llama3_scaling_is_found_again_from_its_factors(void **state)
{
    static const struct {
        double low, high;
        const char *part;
    } cases[] = {{1.0, 4.0, "\"low_freq_factor\": 1, \"high_freq_factor\": 4"},
                 {1.0, 1.0, "\"low_freq_factor\": 1, \"high_freq_factor\": 1"}};

    (void)state;
    for (size_t c = 0; c < SY_COUNT_OF(cases); c++) {
        float factors[64];
        made_gguf m;
        char *config;

        for (int i = 0; i < 64; i++) {
            const double wave = 2.0 * 3.14159265358979323846 * __builtin_pow(1e6, i / 64.0);
            const double smooth = (8192.0 / wave - cases[c].low) / (cases[c].high - cases[c].low);

            factors[i] =
                (float)(wave < 8192.0 / cases[c].high  ? 1.0
                        : wave > 8192.0 / cases[c].low ? 16.0
                                                       : 1.0 / ((1.0 - smooth) / 16.0 + smooth));
        }
        make_model(&m, "llama4");
        add_u32(&m, "llama4.rope.dimension_count", 128);
        add_vector(&m, "rope_freqs.weight", 64, factors);
        config = config_of(&m);
        expect_text(config, "\"rope_type\": \"llama3\", \"factor\": 16, ");
        expect_text(config, cases[c].part);
        expect_text(config, "\"use_qk_norm\": true");
        free(config);
        factors[20] = 5.0f;
        make_model(&m, "llama4");
        add_u32(&m, "llama4.rope.dimension_count", 128);
        add_vector(&m, "rope_freqs.weight", 64, factors);
        refuse_config(&m, "of no llama3 scaling that is known");
    }
}

static void the_remaining_families_give_configurations(void **state)
{
    static const char *const archs[] = {"ernie4_5-moe", "hunyuan-moe"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(archs); i++) {
        made_gguf m;
        char *config;

        make_model(&m, archs[i]);
        config = config_of(&m);
        expect_text(config, i == 0 ? "\"moe_k\": 2" : "\"moe_topk\": 2");
        assert_null(strstr(config, "num_experts_per_tok"));
        free(config);
    }
}

static void what_is_no_known_model_is_refused(void **state)
{
    made_gguf m;

    (void)state;
    make_model(&m, "falcon");
    refuse_config(&m, "general.architecture is \"falcon\"; the known ones are llama, olmoe");
    make_gguf(&m);
    refuse_config(&m, "general.architecture is missing");
    make_gguf(&m);
    add_string(&m, "general.architecture", "llama");
    refuse_config(&m, "llama.block_count is missing");
    make_gguf(&m);
    add_string(&m, "general.architecture", "llama");
    add_u32(&m, "llama.block_count", 2);
    refuse_config(&m, "the model is dense");
    make_model(&m, "llama");
    add_string(&m, "llama.rope.scaling.type", "longrope");
    refuse_config(&m, "\"longrope\", which is not supported; none, linear and yarn are");
    make_model(&m, "gpt-oss");
    refuse_config(&m, "gpt-oss.attention.key_length is missing");
}

/* ---- places ---- */

static sy_gguf_place place_in(const sy_gguf_set *set, const char *name)
{
    const sy_gguf_tensor *tensor = sy_gguf_set_find(set, name);
    sy_gguf_place place;
    sy_error err;

    assert_non_null(tensor);
    expect_ok(sy_gguf_place_of(&place, set, tensor, &err), &err);
    return place;
}

static void tensors_have_hugging_faces_names(void **state)
{
    static const struct {
        const char *arch, *here, *there;
        sy_gguf_part part;
        int of_experts, interleaved, transposed;
    } cases[] = {
        {"llama", "token_embd.weight", "model.embed_tokens.weight", 0, 0, 0, 0},
        {"llama", "output.weight", "lm_head.weight", 0, 0, 0, 0},
        {"llama", "blk.1.ffn_gate_exps.weight",
         "model.layers.1.block_sparse_moe.experts.{e}.w1.weight", 0, 1, 0, 0},
        {"olmoe", "blk.0.ffn_gate_exps.weight", "model.layers.0.mlp.experts.{e}.gate_proj.weight",
         0, 1, 0, 0},
        {"qwen2moe", "blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate.weight", 0, 0, 0, 0},
        {"granitemoe", "blk.0.ffn_gate_exps.weight",
         "model.layers.0.block_sparse_moe.input_linear.weight", SY_GGUF_GATE, 1, 0, 0},
        {"gpt-oss", "blk.1.ffn_gate_exps.weight", "model.layers.1.mlp.experts.gate_up_proj",
         SY_GGUF_GATE, 1, 1, 1},
        {"llama4", "blk.0.ffn_gate_exps.weight", "model.layers.0.feed_forward.experts.gate_up_proj",
         SY_GGUF_GATE, 1, 0, 1},
        {"hunyuan-moe", "blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate.wg.weight", 0, 0, 0,
         0},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        made_gguf m;
        sy_gguf_set *set;
        sy_gguf_place place;

        make_model(&m, cases[i].arch);
        set = open_made(&m, file_path());
        made_free(&m);
        place = place_in(set, cases[i].here);
        assert_string_equal(place.name, cases[i].there);
        assert_int_equal(place.part, cases[i].part);
        assert_int_equal(place.is_of_experts, cases[i].of_experts);
        assert_int_equal(place.is_interleaved, cases[i].interleaved);
        assert_int_equal(place.is_transposed, cases[i].transposed);
        if (place.is_of_experts) {
            assert_int_equal(place.n_matrices, EXPERTS);
            assert_int_equal(place.n_rows, FFN);
            assert_int_equal(place.n_columns, HIDDEN);
        }
        sy_gguf_set_close(set);
    }
}

static void tensors_that_no_forward_pass_needs_have_no_name(void **state)
{
    made_gguf m;
    sy_gguf_set *set;
    sy_gguf_place place;
    sy_error err;

    (void)state;
    make_model(&m, "glm4moe");
    add_u32(&m, "glm4moe.nextn_predict_layers", 1);
    add_vector(&m, "blk.1.nextn.enorm.weight", HIDDEN, NULL);
    add_vector(&m, "rope_freqs.weight", 4, NULL);
    add_vector(&m, "blk.0.nextn.enorm.weight", HIDDEN, NULL);
    add_vector(&m, "blk.00.attn_norm.weight", HIDDEN, NULL);
    add_vector(&m, "blk.99999999999.attn_norm.weight", HIDDEN, NULL);
    set = open_made(&m, file_path());
    made_free(&m);
    assert_string_equal(place_in(set, "blk.1.nextn.enorm.weight").name, "");
    assert_string_equal(place_in(set, "blk.1.ffn_gate_inp.weight").name, "");
    assert_string_equal(place_in(set, "rope_freqs.weight").name, "");
    static const char *const unknown[] = {"blk.0.nextn.enorm.weight", "blk.00.attn_norm.weight",
                                          "blk.99999999999.attn_norm.weight"};
    for (size_t i = 0; i < SY_COUNT_OF(unknown); i++) {
        assert_int_equal(sy_gguf_place_of(&place, set, sy_gguf_set_find(set, unknown[i]), &err),
                         SY_EINVAL);
        expect_text(err.message, "is none that glm4moe has");
    }
    sy_gguf_set_close(set);
}

static void read_all(float *out, const sy_gguf_set *set, const char *name, uint64_t matrix)
{
    const sy_gguf_place place = place_in(set, name);
    sy_error err;

    expect_ok(
        sy_gguf_read_rows(out, sy_gguf_set_find(set, name), &place, matrix, 0, place.n_rows, &err),
        &err);
}

/* Element = the number that Hugging Face's row has, so that order is visible by value. The
 * converter turns rows [h0: 0 1 2 3 4 5 6 7] into [0 4 1 5 2 6 3 7]. */
static void rows_of_interleaved_heads_come_in_their_old_order(void **state)
{
    float q[HEADS * HEAD * HIDDEN], bias[HEAD], rows[HEADS * HEAD * HIDDEN];
    made_gguf m;
    sy_gguf_set *set;
    sy_gguf_place place;
    sy_error err;

    (void)state;
    for (int r = 0; r < HEADS * HEAD; r++) {
        const int in_head = r % HEAD;
        const int old = r - in_head + in_head / 2 + in_head % 2 * (HEAD / 2);

        for (int c = 0; c < HIDDEN; c++) q[r * HIDDEN + c] = (float)(100 * old + c);
        if (r < HEAD) bias[r] = (float)old;
    }
    make_model(&m, "llama");
    add_matrix(&m, "blk.0.attn_q.weight", SY_GGUF_F32, HEADS * HEAD, HIDDEN, q);
    add_vector(&m, "blk.0.attn_k.bias", HEAD, bias);
    add_matrix(&m, "blk.0.attn_v.weight", SY_GGUF_F32, HEADS * HEAD, HIDDEN, q);
    set = open_made(&m, file_path());
    made_free(&m);
    read_all(rows, set, "blk.0.attn_q.weight", 0);
    for (int r = 0; r < HEADS * HEAD; r++)
        assert_true(rows[r * HIDDEN + 1] == (float)(100 * r + 1));
    place = place_in(set, "blk.0.attn_q.weight");
    assert_string_equal(place.name, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(place.head_rows, HEAD);
    expect_ok(sy_gguf_read_rows(rows, sy_gguf_set_find(set, "blk.0.attn_q.weight"), &place, 0, 11,
                                2, &err),
              &err);
    assert_true(rows[0] == 1100.0f && rows[HIDDEN] == 1200.0f);
    read_all(rows, set, "blk.0.attn_k.bias", 0);
    for (int r = 0; r < HEAD; r++) assert_true(rows[r] == (float)r);
    assert_int_equal(place_in(set, "blk.0.attn_v.weight").head_rows, 0);
    sy_gguf_set_close(set);
    make_model(&m, "qwen3moe"); /* which is left as it is */
    add_matrix(&m, "blk.0.attn_q.weight", SY_GGUF_F32, HEADS * HEAD, HIDDEN, q);
    set = open_made(&m, file_path());
    made_free(&m);
    assert_int_equal(place_in(set, "blk.0.attn_q.weight").head_rows, 0);
    sy_gguf_set_close(set);
}

static void the_key_part_of_a_latent_is_turned_back(void **state)
{
    enum { KVR = 5, NOPE = 3, V = 2 };
    float k[HEADS * KVR * NOPE], v[HEADS * V * KVR], rows[KVR * NOPE];
    made_gguf m;
    sy_gguf_set *set;
    sy_gguf_place place;

    (void)state;
    for (int h = 0; h < HEADS; h++)
        for (int c = 0; c < KVR; c++)
            for (int i = 0; i < NOPE; i++)
                k[(h * KVR + c) * NOPE + i] = (float)(100 * h + 10 * i + c);
    for (int i = 0; i < HEADS * V * KVR; i++) v[i] = (float)i;
    add_deepseek(&m);
    add_tensor(&m, "blk.1.attn_k_b.weight", SY_GGUF_F32, 3, (uint64_t[]){HEADS, KVR, NOPE}, k);
    add_tensor(&m, "blk.1.attn_v_b.weight", SY_GGUF_F32, 3, (uint64_t[]){HEADS, V, KVR}, v);
    set = open_made(&m, file_path());
    made_free(&m);
    place = place_in(set, "blk.1.attn_k_b.weight");
    assert_string_equal(place.name, "model.layers.1.self_attn.kv_b_proj.weight");
    assert_int_equal(place.part, SY_GGUF_KV_B_K);
    assert_int_equal(place.n_matrices, HEADS);
    assert_int_equal(place.n_rows, NOPE);
    assert_int_equal(place.n_columns, KVR);
    read_all(rows, set, "blk.1.attn_k_b.weight", 1);
    for (int i = 0; i < NOPE; i++)
        for (int c = 0; c < KVR; c++) assert_true(rows[i * KVR + c] == (float)(100 + 10 * i + c));
    assert_int_equal(place_in(set, "blk.1.attn_v_b.weight").part, SY_GGUF_KV_B_V);
    read_all(rows, set, "blk.1.attn_v_b.weight", 1);
    assert_true(rows[0] == (float)(V * KVR));
    sy_gguf_set_close(set);
}

static void shapes_that_cannot_be_are_refused(void **state)
{
    made_gguf m;
    sy_gguf_set *set;
    sy_gguf_place place;
    sy_error err;

    (void)state;
    make_model(&m, "llama");
    add_matrix(&m, "blk.0.attn_q.weight", SY_GGUF_F32, 7, HIDDEN, NULL);
    add_tensor(&m, "blk.0.attn_v.weight", SY_GGUF_F32, 3, (uint64_t[]){2, 2, 2}, NULL);
    add_vector(&m, "blk.0.ffn_up_exps.weight", 4, NULL);
    add_matrix(&m, "blk.0.attn_k.weight", 11, 2, 256, NULL); /* Q3_K */
    set = open_made(&m, file_path());
    made_free(&m);
    assert_int_equal(
        sy_gguf_place_of(&place, set, sy_gguf_set_find(set, "blk.0.attn_q.weight"), &err),
        SY_EINVAL);
    expect_text(err.message, "7 rows are not of 2 heads");
    assert_int_equal(
        sy_gguf_place_of(&place, set, sy_gguf_set_find(set, "blk.0.attn_v.weight"), &err),
        SY_EINVAL);
    expect_text(err.message, "\"blk.0.attn_v.weight\" has 3 dimensions");
    assert_int_equal(
        sy_gguf_place_of(&place, set, sy_gguf_set_find(set, "blk.0.ffn_up_exps.weight"), &err),
        SY_EINVAL);
    place = place_in(set, "blk.0.attn_k.weight");
    float rows[512];
    assert_int_equal(sy_gguf_read_rows(rows, sy_gguf_set_find(set, "blk.0.attn_k.weight"), &place,
                                       0, 0, 2, &err),
                     SY_EUNIMPLEMENTED);
    expect_text(err.message, "tensor \"blk.0.attn_k.weight\": the type Q3_K is not supported");
    sy_gguf_set_close(set);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(llama_with_experts_is_mixtral),
        TEST(counts_may_be_given_layer_by_layer_if_they_agree),
        TEST(each_family_has_its_keys),
        TEST(deepseek_is_v2_or_v3_by_its_gate),
        TEST(families_with_constants_that_no_file_has_get_them),
        TEST(llama3_scaling_is_found_again_from_its_factors),
        TEST(the_remaining_families_give_configurations),
        TEST(what_is_no_known_model_is_refused),
        TEST(tensors_have_hugging_faces_names),
        TEST(tensors_that_no_forward_pass_needs_have_no_name),
        TEST(rows_of_interleaved_heads_come_in_their_old_order),
        TEST(the_key_part_of_a_latent_is_turned_back),
        TEST(shapes_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
