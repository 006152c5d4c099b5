/* test_trunk_device_families.c - a small checkpoint of every family, read as it lies on the disk:
 * a GPU's logits are close to the processor's, and its bits do not depend on how it was asked. */
#include "effort.h"
#include "trunk_gpu_fixture.h"

#include "sy_hash.h"
#include "synth_model.h"

enum { VOCAB = 256, TOKENS = 40, DECODED = 3 };

/* Of all logits from the processor's, and of those of one position, to their size: products round
 * activations to bf16. The processor's own arithmetic with such activations is as far off. */
#define DISTANCE_MAX     2e-2
#define ROW_DISTANCE_MAX 5e-2

static const char *const families[] = {
    "mixtral",         "olmoe",         "qwen2_moe",    "qwen3_moe",      "deepseek_v2_lite",
    "deepseek_v2",     "deepseek_v3",   "granitemoe",   "phimoe",         "gpt_oss",
    "glm4_moe",        "llama4_text",   "ernie4_5_moe", "hunyuan_v1_moe", "minimax_m2",
    "deepseek_v3_fp8", "gpt_oss_mxfp4",
};

static sy_model *family_open(const char *name, char dir[32])
{
    sy_model *model;
    sy_error err = {0};

    strcpy(dir, "/tmp/sy-trunk-XXXXXX");
    assert_non_null(mkdtemp(dir));
    write_family(dir, name, SY_BF16);
    must(sy_model_open(&model, dir, NULL, &err), &err);
    return model;
}

static void family_close(sy_model *model, const char *dir)
{
    char command[64];

    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void step(const sy_trunk *trunk, sy_trunk_ws *ws, sy_kv *kv, const sy_kv_seq *seq,
                 float *logits, uint32_t begin, uint32_t n)
{
    uint32_t token[TOKENS], position[TOKENS];
    const sy_kv_seq *of[TOKENS];
    const sy_batch batch = {n, token, position, of};
    sy_trunk_row row[TOKENS];
    sy_error err = {0};

    for (uint32_t i = 0; i < n; i++) {
        position[i] = begin + i;
        token[i] = (uint32_t)(sy_splitmix64(position[i]) % VOCAB);
        of[i] = seq;
        row[i] = (sy_trunk_row){ws, i};
    }
    must(sy_trunk_begin(trunk, ws, &batch, &err), &err);
    for (uint32_t layer = 0; layer < sy_trunk_describe(trunk)->n_layers; layer++) {
        must(sy_trunk_attend(trunk, ws, kv, layer, &batch, &err), &err);
        must(sy_trunk_norm(trunk, ws, layer, n, &err), &err);
        must(sy_trunk_mlp(trunk, ws, layer, n, &err), &err);
    }
    must(sy_trunk_head(trunk, logits + (size_t)begin * VOCAB, row, n, &err), &err);
}

/* logits: [TOKENS,VOCAB], of a prompt and of some tokens behind it, one by one. */
static void run(float *logits, const sy_trunk *trunk, uint32_t n_prompt)
{
    sy_kv_seq seq = {0};
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_error err = {0};

    must(sy_trunk_ws_open(&ws, trunk, TOKENS, NULL, &err), &err);
    must(sy_kv_open(&kv, trunk, TOKENS / SY_KV_PAGE + 1, &err), &err);
    assert_int_equal(sy_kv_reserve(kv, &seq, TOKENS), SY_OK);
    step(trunk, ws, kv, &seq, logits, 0, n_prompt);
    for (uint32_t i = n_prompt; i < TOKENS; i++) step(trunk, ws, kv, &seq, logits, i, 1);
    sy_kv_release(kv, &seq);
    sy_kv_close(kv);
    sy_trunk_ws_close(ws);
}

/* Either trunk holds its weights as that. */
static void check_family(const char *name, sy_dtype weights)
{
    static float want[TOKENS * VOCAB], got[TOKENS * VOCAB], whole[TOKENS * VOCAB];
    char dir[32];
    sy_model *model = family_open(name, dir);
    sy_trunk *trunk = open_held(model, 0, weights), *processor;
    const sy_precision precision = {.weights = weights};
    sy_error err = {0};

    assert_int_equal(sy_model_describe(model)->vocab, VOCAB);
    must(sy_trunk_open(&processor, model, sy_kernels_best(), precision, NULL, &err), &err);
    run(want, processor, TOKENS);
    run(got, trunk, TOKENS - DECODED);
    run(whole, trunk, TOKENS);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const size_t at = (size_t)t * VOCAB;
        const double d = distance(got + at, want + at, VOCAB);
        if (!(d <= ROW_DISTANCE_MAX) || d == 0) fail_msg("%s, position %u: %g off", name, t, d);
        if (memcmp(got + at, whole + at, VOCAB * sizeof(*got)) != 0)
            fail_msg("%s, position %u: bits depend on where the prompt ended", name, t);
    }
    const double all = distance(got, want, (size_t)TOKENS * VOCAB);
    if (!(all <= DISTANCE_MAX)) fail_msg("%s: %g off", name, all);
    sy_trunk_close(trunk);
    sy_trunk_close(processor);
    family_close(model, dir);
}

static void every_family_is_close_to_the_processor(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i += ONLY_RACES ? 4 : ONLY_ACCESSES ? 2 : 1)
        check_family(families[i], SY_DTYPE_NONE);
}

/* Of fp8 all matrices but KV_B and the head are encoded in that checkpoint; of mxfp4 none is, all
 * that is encoded there are experts. */
static void families_are_close_to_the_processor_with_weights_in_fewer_bits(void **state)
{
    static const struct {
        const char *name;
        sy_dtype weights;
    } held[] = {{"deepseek_v3_fp8", SY_FP8}, {"deepseek_v3", SY_Q4}, {"gpt_oss_mxfp4", SY_MXFP4},
                {"mixtral", SY_Q8},          {"qwen2_moe", SY_Q4},   {"deepseek_v3_fp8", SY_Q8}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(held); i += ONLY_RACES ? 3 : ONLY_ACCESSES ? 2 : 1)
        check_family(held[i].name, held[i].weights);
}

/* The device's memory shrinks with the processor's, and encoded weights are computed as what they
 * are: not as the same rounded to bf16. */
static void encoded_weights_are_held_as_they_are(void **state)
{
    static float rounded[TOKENS * VOCAB], encoded[TOKENS * VOCAB];
    char dir[32];
    sy_model *model = family_open("deepseek_v3_fp8", dir);
    sy_trunk *as_bf16 = open_on(model, 0), *as_fp8 = open_held(model, 0, SY_FP8);

    (void)state;
    run(rounded, as_bf16, TOKENS);
    run(encoded, as_fp8, TOKENS);
    const double off = distance(encoded, rounded, (size_t)TOKENS * VOCAB);
    if (!(off > 0 && off <= DISTANCE_MAX)) fail_msg("fp8 is %g off bf16", off);
    if (!(3 * sy_trunk_bytes(as_fp8) < 2 * sy_trunk_bytes(as_bf16)))
        fail_msg("%llu bytes as fp8, %llu as bf16", (unsigned long long)sy_trunk_bytes(as_fp8),
                 (unsigned long long)sy_trunk_bytes(as_bf16));
    sy_trunk_close(as_bf16);
    sy_trunk_close(as_fp8);
    family_close(model, dir);
}

static void a_checkpoint_of_fp32_is_refused(void **state)
{
    const sy_trunk_device device = device_at(0);
    char dir[32];
    sy_trunk *trunk;
    sy_model *model;
    sy_error err = {0};

    (void)state;
    strcpy(dir, "/tmp/sy-trunk-XXXXXX");
    assert_non_null(mkdtemp(dir));
    write_family(dir, "mixtral", SY_F32);
    must(sy_model_open(&model, dir, NULL, &err), &err);
    expect_error(
        sy_trunk_open_on(&trunk, &device, model, sy_kernels_best(), (sy_precision){0}, NULL, &err),
        SY_EUNIMPLEMENTED, &err, "DEVICE_WEIGHTS",
        "model.embed_tokens.weight is stored as F32, and cuda:0");
    assert_null(trunk);
    family_close(model, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_is_close_to_the_processor),
        cmocka_unit_test(families_are_close_to_the_processor_with_weights_in_fewer_bits),
        cmocka_unit_test(encoded_weights_are_held_as_they_are),
        cmocka_unit_test(a_checkpoint_of_fp32_is_refused),
    };

    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
