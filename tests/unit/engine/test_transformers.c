/* test_transformers.c - a small model of every family against what Hugging Face's transformers
 * computed with it: tests/golden/families/README.md says how. Prompts past every window, chunk and
 * original context of the configurations, 64 greedy steps, a second turn; prompts whole and in
 * small chunks. */
#include "test_model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "synth_model.h"

enum { VOCAB = 256, IDS_MAX = 160 };

/* Of the largest logit; releases of transformers differ from each other by 1e-5. */
#define TOLERANCE 1e-4

static const char *const families[] = {
    "mixtral",         "olmoe",         "qwen2_moe",    "qwen3_moe",      "deepseek_v2_lite",
    "deepseek_v2",     "deepseek_v3",   "granitemoe",   "phimoe",         "gpt_oss",
    "glm4_moe",        "llama4_text",   "ernie4_5_moe", "hunyuan_v1_moe", "minimax_m2",
    "deepseek_v3_fp8", "gpt_oss_mxfp4",
};

/* Of these the encoded weights are held as they are, too: transformers reads them as bf16, which
 * has the synthetic ones exactly, so the same numbers are multiplied. */
static const struct {
    const char *family;
    sy_dtype weights;
} encoded[] = {{"deepseek_v3_fp8", SY_FP8}, {"gpt_oss_mxfp4", SY_MXFP4}};

typedef struct ids {
    uint32_t id[IDS_MAX], n;
} ids;

static void append(ids *out, const json_t *array)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        assert_true(out->n < IDS_MAX);
        out->id[out->n++] = (uint32_t)json_integer_value(json_array_get(array, i));
    }
}

static json_t *read_vectors(const char *family)
{
    char path[512];
    json_t *root;

    snprintf(path, sizeof(path), "%s/tests/golden/families/%s.vectors.json", SY_SOURCE_DIR, family);
    root = json_load_file(path, 0, NULL);
    if (root == NULL) fail_msg("%s cannot be read", path);
    return root;
}

typedef struct place { /* for messages */
    const char *family, *run;
    int n_wrong;
} place;

static void check_logits(place *at, const float *got, const json_t *want, const char *which)
{
    double most = 0, worst = 0;

    assert_int_equal(json_array_size(want), VOCAB);
    for (size_t i = 0; i < VOCAB; i++) {
        const double w = json_number_value(json_array_get(want, i));

        most = fmax(most, fabs(w));
        worst = fmax(worst, fabs((double)got[i] - w));
    }
    if (worst <= TOLERANCE * most) return;
    print_message("%s, %s: %s logits differ by %g, the largest is %g\n", at->family, at->run, which,
                  worst, most);
    at->n_wrong++;
}

static void check_ids(place *at, const test_output *out, const json_t *greedy)
{
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        const uint32_t want = (uint32_t)json_integer_value(json_array_get(greedy, i));

        if (i < out->n_tokens && out->token[i] == want) continue;
        print_message("%s, %s: token %zu is %u, expected %u\n", at->family, at->run, i,
                      i < out->n_tokens ? out->token[i] : UINT32_MAX, want);
        at->n_wrong++;
        return;
    }
}

/* first, last: logits of the first and of the last token; NULL: not given. */
static void check_run(test_model *m, place *at, const ids *prompt, uint32_t n, const json_t *greedy,
                      const json_t *first, const json_t *last)
{
    test_output *out = malloc(sizeof(*out));
    sy_gen_params p;

    test_output_init(out, VOCAB);
    p = test_params(out, prompt->id, prompt->n, n);
    p.want_logits = 1;
    p.ignore_eos = 1;
    test_submit(m, &p);
    test_wait(out);
    if (out->error.status != SY_OK) fail_msg("%s: %s", at->family, out->error.message);
    check_ids(at, out, greedy);
    if (first != NULL) check_logits(at, out->logits, first, "first");
    if (last != NULL) check_logits(at, out->logits + (n - 1) * VOCAB, last, "last");
    test_output_free(out);
    free(out);
}

static void check_published(test_model *m, place *at, const json_t *run)
{
    ids prompt = {.n = 0};

    at->run = "published";
    append(&prompt, json_object_get(run, "prompt"));
    check_run(m, at, &prompt, 1, NULL, json_object_get(run, "logits"), NULL);
}

static void check_long(test_model *m, place *at, const json_t *run)
{
    const json_t *greedy = json_object_get(run, "greedy");
    ids prompt = {.n = 0};

    at->run = "long";
    append(&prompt, json_object_get(run, "prompt"));
    assert_int_equal(json_array_size(greedy), 64);
    check_run(m, at, &prompt, 64, greedy, json_object_get(run, "logits"),
              json_object_get(run, "last_logits"));
}

static void check_conversation(test_model *m, place *at, const json_t *run)
{
    const json_t *turns = json_object_get(run, "turns");
    ids prompt = {.n = 0};

    assert_int_equal(json_array_size(turns), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *turn = json_array_get(turns, i), *greedy = json_object_get(turn, "greedy");

        at->run = i == 0 ? "first turn" : "second turn";
        append(&prompt, json_object_get(turn, "ids"));
        check_run(m, at, &prompt, (uint32_t)json_array_size(greedy), greedy, NULL,
                  json_object_get(turn, "last_logits"));
        append(&prompt, greedy);
    }
}

static int check_family(const char *family, sy_dtype weights, const char *kernels,
                        uint32_t step_rows)
{
    const sy_precision precision = {.weights = weights};
    char dir[] = "/tmp/sy-vector-XXXXXX", command[64];
    json_t *root = read_vectors(family);
    place at = {.family = family};
    test_model m;

    assert_non_null(mkdtemp(dir));
    write_family(dir, family, SY_DTYPE_NONE);
    test_model_open_as(&m, dir, kernels, 2, precision,
                       (sy_engine_config){.step_rows_max = step_rows});
    check_published(&m, &at, json_object_get(root, "published"));
    check_long(&m, &at, json_object_get(root, "long"));
    check_conversation(&m, &at, json_object_get(root, "conversation"));
    test_model_close(&m);
    json_decref(root);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    return at.n_wrong;
}

static void every_family_gives_the_logits_and_tokens_of_transformers(void **state)
{
    int n_wrong = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++)
        n_wrong += check_family(families[i], SY_DTYPE_NONE, "auto", 64);
    assert_int_equal(n_wrong, 0);
}

static void prompts_in_small_chunks_give_the_same(void **state)
{
    int n_wrong = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++)
        n_wrong += check_family(families[i], SY_DTYPE_NONE, "ref", 7);
    assert_int_equal(n_wrong, 0);
}

static void weights_held_as_they_are_encoded_give_the_same(void **state)
{
    int n_wrong = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(encoded); i++) {
        n_wrong += check_family(encoded[i].family, encoded[i].weights, "auto", 64);
        n_wrong += check_family(encoded[i].family, encoded[i].weights, "ref", 7);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_logits_and_tokens_of_transformers),
        cmocka_unit_test(prompts_in_small_chunks_give_the_same),
        cmocka_unit_test(weights_held_as_they_are_encoded_give_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
