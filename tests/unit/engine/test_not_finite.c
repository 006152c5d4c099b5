/* test_not_finite.c - weights that are NaN or infinite: refused by name wherever they stand, or
 * loaded as they are when that is asked for. Then only the requests that meet them fail. */
#include "test_model.h"

#include "damaged_model.h"

static const uint16_t nan_bf16 = 0x7fc0, infinity_bf16 = 0xff80;
static const uint32_t nan_f32 = 0x7fc00000;
static const uint8_t nan_e4m3 = 0x7f, nan_e8m0 = 255;

#define BF16_NAN      &nan_bf16, sizeof(nan_bf16)
#define BF16_INFINITY &infinity_bf16, sizeof(infinity_bf16)
#define L1            "model.layers.1."

/* Trunk, gates and experts: all that any tier loads. */
static sy_status load(const char *dir, sy_dtype weights, int allow_nan, sy_error *err)
{
    const sy_precision precision = {.weights = weights};
    test_model m = {0};
    sy_status st;

    SY_TRY(sy_pool_open(&m.pool, 2, "test"));
    SY_TRY(sy_model_open(&m.model, dir, NULL, err));
    if (allow_nan) sy_model_allow_nan(m.model);
    SY_TRY(sy_trunk_open(&m.trunk, m.model, sy_kernels_best(), precision, m.pool, err));
    st = sy_moe_local_open(&m.local, m.model, sy_kernels_best(), precision, m.pool, NULL, NULL,
                           NULL, err);
out:
    test_model_close(&m);
    return st;
}

typedef struct damage {
    const char *family;
    sy_dtype dtype;
    const char *tensor;
    size_t at;
    const void *bytes;
    size_t n;
    const char *named; /* in the message; NULL: the tensor's name */
} damage;

/* weights: what they are held as. */
static void refuse_then_allow(const damage *d, sy_dtype weights)
{
    const char *named = d->named != NULL ? d->named : d->tensor;
    char dir[64];
    sy_error err = {0};
    sy_status st;

    damaged_make(dir, d->family, d->dtype);
    damage_tensor(dir, d->tensor, d->at, d->bytes, d->n);
    st = load(dir, weights, 0, &err);
    if (st != SY_EDATALOSS)
        fail_msg("%s as %s: %s: %s", d->tensor, sy_dtype_name(weights), sy_status_name(st),
                 err.message);
    if (strstr(err.message, named) == NULL || strstr(err.message, "--allow-nan") == NULL)
        fail_msg("%s: \"%s\" does not say \"%s\" and --allow-nan", d->tensor, err.message, named);
    sy_error_clear(&err);
    st = load(dir, weights, 1, &err);
    if (st != SY_OK) fail_msg("%s, allowed: %s", d->tensor, err.message);
    damaged_remove(dir);
}

static void plain_weights_that_are_no_numbers_are_refused_by_name(void **state)
{
    static const damage places[] = {
        {"mixtral", SY_BF16, "model.embed_tokens.weight", 2 * (255 * 64 + 63), BF16_NAN, NULL},
        {"mixtral", SY_BF16, "lm_head.weight", 0, BF16_INFINITY, NULL},
        {"mixtral", SY_BF16, "model.norm.weight", 126, BF16_NAN, NULL},
        {"mixtral", SY_BF16, L1 "input_layernorm.weight", 0, BF16_NAN, NULL},
        {"mixtral", SY_BF16, L1 "self_attn.q_proj.weight", 2 * 4095, BF16_NAN, NULL},
        {"mixtral", SY_BF16, L1 "block_sparse_moe.gate.weight", 2 * 511, BF16_NAN, NULL},
        {"mixtral", SY_BF16, L1 "block_sparse_moe.experts.3.w2.weight", 0, BF16_INFINITY,
         "layer 1 expert 3: a weight of down is not a finite number, in rows 0 to"},
        {"mixtral", SY_F32, L1 "block_sparse_moe.experts.3.w1.weight", 0, &nan_f32, 4,
         "layer 1 expert 3: a weight of gate is not a finite number, in rows 0 to"},
        {"phimoe", SY_BF16, L1 "post_attention_layernorm.bias", 10, BF16_NAN, NULL},
        {"phimoe", SY_BF16, "lm_head.bias", 510, BF16_NAN, NULL},
        {"qwen2_moe", SY_BF16, L1 "mlp.up_proj.weight", 6, BF16_NAN, NULL},
        {"qwen2_moe", SY_BF16, "model.layers.0.mlp.shared_expert.down_proj.weight", 6, BF16_NAN,
         NULL},
        {"qwen2_moe", SY_BF16, "model.layers.0.mlp.shared_expert_gate.weight", 6, BF16_NAN, NULL},
        {"qwen3_moe", SY_BF16, L1 "self_attn.k_norm.weight", 2, BF16_NAN, NULL},
        {"deepseek_v3", SY_BF16, L1 "self_attn.kv_b_proj.weight", 2, BF16_NAN, NULL},
        {"deepseek_v3", SY_BF16, L1 "self_attn.q_a_layernorm.weight", 2, BF16_NAN, NULL},
        {"deepseek_v3", SY_BF16, L1 "mlp.gate.e_score_correction_bias", 30, BF16_NAN, NULL},
        {"gpt_oss", SY_BF16, L1 "self_attn.sinks", 6, BF16_NAN, NULL},
        {"gpt_oss", SY_BF16, L1 "mlp.router.bias", 14, BF16_NAN, NULL},
        {"gpt_oss", SY_BF16, L1 "mlp.experts.down_proj_bias", 2 * 5 * 64, BF16_NAN,
         "layer 1 expert 5: a weight of down bias is not a finite number"},
        /* The second column of an expert's slab is the first of up. */
        {"gpt_oss", SY_BF16, L1 "mlp.experts.gate_up_proj", 2 * (2 * 64 * 128 + 1), BF16_NAN,
         "layer 1 expert 2: a weight of up is not a finite number"},
        {"granitemoe", SY_BF16, L1 "block_sparse_moe.input_linear.weight", 2 * (7 * 64 + 40) * 64,
         BF16_NAN, "layer 1 expert 7: a weight of up is not a finite number"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(places); i++) refuse_then_allow(&places[i], SY_DTYPE_NONE);
}

static void encoded_weights_that_are_no_numbers_are_refused_by_name(void **state)
{
    static const damage places[] = {
        {"deepseek_v3_fp8", SY_DTYPE_NONE, L1 "mlp.experts.3.up_proj.weight", 0, &nan_e4m3, 1,
         "layer 1 expert 3: a weight of up is not a finite number, in rows 0 to"},
        {"deepseek_v3_fp8", SY_DTYPE_NONE, L1 "self_attn.o_proj.weight", 7, &nan_e4m3, 1, NULL},
        /* The factor of the second row of blocks, which has only some of its rows. */
        {"deepseek_v3_fp8", SY_DTYPE_NONE, L1 "self_attn.kv_a_proj_with_mqa.weight_scale_inv", 12,
         &nan_f32, 4, L1 "self_attn.kv_a_proj_with_mqa.weight"},
        {"deepseek_v3_fp8", SY_DTYPE_NONE, L1 "mlp.experts.3.down_proj.weight_scale_inv", 0,
         &nan_f32, 4, "layer 1 expert 3: a weight of down is not a finite number"},
        {"gpt_oss_mxfp4", SY_DTYPE_NONE, L1 "mlp.experts.gate_up_proj_scales", 0, &nan_e8m0, 1,
         "layer 1 expert 0: a weight of gate is not a finite number"},
        {"gpt_oss_mxfp4", SY_DTYPE_NONE, L1 "mlp.experts.down_proj_scales", 8 * 64 * 2 - 1,
         &nan_e8m0, 1, "layer 1 expert 7: a weight of down is not a finite number"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(places); i++) {
        const int is_fp8 = strcmp(places[i].family, "deepseek_v3_fp8") == 0;

        refuse_then_allow(&places[i], SY_DTYPE_NONE);
        refuse_then_allow(&places[i], is_fp8 ? SY_FP8 : SY_MXFP4);
    }
}

/* ---- requests ---- */

enum { VOCAB = 256, EXPERTS = 8, TOP_K = 2 };

/* Of one engine that takes such weights. */
static void open_allowing(test_model *m, const char *dir)
{
    sy_engine_config config = {0};
    sy_error err = {0};

    memset(m, 0, sizeof(*m));
    must(sy_pool_open(&m->pool, 1, "test"), &err);
    must(sy_model_open(&m->model, dir, NULL, &err), &err);
    sy_model_allow_nan(m->model);
    must(sy_tokenizer_open(&m->tokenizer, dir, VOCAB, &err), &err);
    must(sy_trunk_open(&m->trunk, m->model, sy_kernels_best(), (sy_precision){0}, m->pool, &err),
         &err);
    must(sy_moe_local_open(&m->local, m->model, sy_kernels_best(), (sy_precision){0}, m->pool, NULL,
                           NULL, NULL, &err),
         &err);
    config.trunk = m->trunk;
    config.tokenizer = m->tokenizer;
    config.moe = sy_moe_local_ops(m->local);
    config.pool = m->pool;
    must(sy_engine_open(&m->engine, &config, &err), &err);
}

/* The token after a prompt of one; UINT32_MAX: the request failed with *error. */
static uint32_t next_token(test_model *m, uint32_t prompt, sy_error *error)
{
    test_output out;
    sy_gen_params p = test_params(&out, &prompt, 1, 1);
    uint32_t token;

    test_output_init(&out, VOCAB);
    p.ignore_eos = 1;
    test_submit(m, &p);
    test_wait(&out);
    *error = out.error;
    token = out.error.status == SY_OK && out.n_tokens == 1 ? out.token[0] : UINT32_MAX;
    test_output_free(&out);
    return token;
}

/* The damaged weight of one expert of a layer after the other: a token is as without damage, or its
 * request fails, and that for as many experts as are chosen. */
static void check_layer(uint32_t layer, const char *message)
{
    char dir[64], name[96];
    test_model m;
    sy_error err;
    uint32_t sound, n_failed = 0;

    damaged_make(dir, "mixtral", SY_BF16);
    open_allowing(&m, dir);
    sound = next_token(&m, 1, &err);
    must(err.status, &err);
    test_model_close(&m);
    damaged_remove(dir);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        damaged_make(dir, "mixtral", SY_BF16);
        snprintf(name, sizeof(name), "model.layers.%u.block_sparse_moe.experts.%u.w2.weight", layer,
                 e);
        damage_tensor(dir, name, 64, BF16_NAN);
        open_allowing(&m, dir);
        const uint32_t token = next_token(&m, 1, &err);
        if (token == UINT32_MAX) {
            n_failed++;
            assert_int_equal(err.status, SY_EINVAL);
            if (strstr(err.message, message) == NULL)
                fail_msg("\"%s\" does not say \"%s\"", err.message, message);
            /* It serves on: another token's row goes elsewhere. */
            uint32_t other = 2;
            while (other < VOCAB && next_token(&m, other, &err) == UINT32_MAX) other++;
            assert_in_range(other, 2, VOCAB - 1);
        } else {
            assert_int_equal(token, sound);
        }
        test_model_close(&m);
        damaged_remove(dir);
    }
    assert_int_equal(n_failed, TOP_K);
}

static void only_rows_that_meet_such_a_weight_fail_and_the_next_layer_says_so(void **state)
{
    (void)state;
    check_layer(0, "of the hidden states of layer 1 holds a NaN");
    check_layer(1, "of the hidden states of layer 2 holds a NaN");
}

static void behind_the_last_layer_the_logits_say_so(void **state)
{
    (void)state;
    check_layer(2, "the logits after 1 tokens hold a NaN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_weights_that_are_no_numbers_are_refused_by_name),
        cmocka_unit_test(encoded_weights_that_are_no_numbers_are_refused_by_name),
        cmocka_unit_test(only_rows_that_meet_such_a_weight_fail_and_the_next_layer_says_so),
        cmocka_unit_test(behind_the_last_layer_the_logits_say_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
