/* test_golden.c - the whole model in one process against independent references: the bundled
 * checkpoint's golden files, and the published Mixtral vector. Then the promise that nothing but a
 * sequence's own tokens shows in its logits. */
#include "test_model.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "synth_model.h"

#define TRIO SY_SOURCE_DIR "/models/trio"

typedef struct golden {
    char name[64];
    uint32_t prompt[64], n_prompt;
    uint32_t greedy[64], n_greedy;
    float logits[2048];
    double max_abs;
} golden;

static uint32_t read_ids(uint32_t *out, const json_t *array)
{
    size_t i;
    json_t *value;

    json_array_foreach(array, i, value) out[i] = (uint32_t)json_integer_value(value);
    return (uint32_t)json_array_size(array);
}

static size_t read_golden(golden *out, size_t max)
{
    DIR *dir = opendir(TRIO "/golden");
    size_t n = 0;

    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[512];
        json_t *root, *value;
        size_t i;
        if (strstr(entry->d_name, ".json") == NULL || n == max) continue;
        snprintf(path, sizeof(path), TRIO "/golden/%s", entry->d_name);
        root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        snprintf(out[n].name, sizeof(out[n].name), "%.60s", entry->d_name);
        out[n].n_prompt = read_ids(out[n].prompt, json_object_get(root, "prompt_tokens"));
        out[n].n_greedy = read_ids(out[n].greedy, json_object_get(root, "greedy_tokens"));
        json_array_foreach(json_object_get(root, "logits_last"), i, value) out[n].logits[i] =
            (float)json_number_value(value);
        out[n].max_abs = json_number_value(json_object_get(root, "logits_max_abs"));
        json_decref(root);
        n++;
    }
    closedir(dir);
    assert_true(n >= 8);
    return n;
}

static golden goldens[16];
static size_t n_goldens;

static void check_golden(const golden *g, const test_output *out)
{
    double worst = 0;

    for (size_t i = 0; i < 2048; i++)
        worst = fmax(worst, fabs((double)out->logits[i] - (double)g->logits[i]));
    if (!(worst <= 1e-3 * g->max_abs))
        fail_msg("%s: logits differ by %g, allowed %g", g->name, worst, 1e-3 * g->max_abs);
    if (out->n_tokens != g->n_greedy)
        fail_msg("%s: %u tokens, expected %u", g->name, out->n_tokens, g->n_greedy);
    for (uint32_t i = 0; i < g->n_greedy; i++)
        if (out->token[i] != g->greedy[i])
            fail_msg("%s: token %u is %u, expected %u", g->name, i, out->token[i], g->greedy[i]);
}

static test_output *run_greedy(test_model *m, const uint32_t *prompt, uint32_t n_prompt, uint32_t n)
{
    test_output *out = malloc(sizeof(*out));
    test_output_init(out, sy_model_describe(m->model)->vocab);
    sy_gen_params p = test_params(out, prompt, n_prompt, n);
    p.want_logits = 1;
    p.ignore_eos = 1;
    test_submit(m, &p);
    test_wait(out);
    assert_int_equal(out->error.status, SY_OK);
    return out;
}

static void output_delete(test_output *out)
{
    test_output_free(out);
    free(out);
}

static void trio_matches_the_float32_reference_on_every_instruction_set(void **state)
{
    (void)state;
    for (size_t k = 0; k < sy_kernels_count(); k++) {
        test_model m;
        test_model_open(&m, TRIO, sy_kernels_at(k)->name, 2, (sy_engine_config){0});
        for (size_t i = 0; i < n_goldens; i++) {
            test_output *out =
                run_greedy(&m, goldens[i].prompt, goldens[i].n_prompt, goldens[i].n_greedy);
            check_golden(&goldens[i], out);
            output_delete(out);
        }
        test_model_close(&m);
    }
}

/* One shape of execution; all must give the same bytes. */
typedef struct shape {
    const char *kernels;
    unsigned threads;
    uint32_t step_rows, running;
    size_t company; /* sequences submitted together */
} shape;

static void logits_have_the_same_bits_however_they_are_computed(void **state)
{
    static const shape shapes[] = {{"ref", 1, 64, 8, 1},    {"auto", 1, 64, 8, 1},
                                   {"auto", 2, 64, 8, 1},   {"auto", 2, 3, 3, 1},
                                   {"auto", 2, 64, 16, 16}, {"auto", 1, 17, 16, 16}};
    float *want = NULL;
    size_t n_bytes = 0;

    (void)state;
    for (size_t s = 0; s < SY_COUNT_OF(shapes); s++) {
        test_model m;
        test_output *out[16];
        test_model_open(&m, TRIO, shapes[s].kernels, shapes[s].threads,
                        (sy_engine_config){.step_rows_max = shapes[s].step_rows,
                                           .running_max = shapes[s].running});
        for (size_t i = 0; i < shapes[s].company; i++) {
            const golden *g = &goldens[i % n_goldens];
            out[i] = malloc(sizeof(*out[i]));
            test_output_init(out[i], 2048);
            sy_gen_params p = test_params(out[i], g->prompt, g->n_prompt, 24);
            p.want_logits = 1;
            test_submit(&m, &p);
        }
        for (size_t i = 0; i < shapes[s].company; i++) test_wait(out[i]);
        if (want == NULL) {
            n_bytes = out[0]->n_tokens * 2048 * sizeof(float);
            want = malloc(n_bytes);
            memcpy(want, out[0]->logits, n_bytes);
        }
        assert_int_equal(out[0]->n_tokens * 2048 * sizeof(float), n_bytes);
        if (memcmp(out[0]->logits, want, n_bytes) != 0)
            fail_msg("%s, %u threads, %u rows a step, %zu sequences: other bits", shapes[s].kernels,
                     shapes[s].threads, shapes[s].step_rows, shapes[s].company);
        for (size_t i = 0; i < shapes[s].company; i++) output_delete(out[i]);
        test_model_close(&m);
    }
    free(want);
}

/* Published vectors: transformers' own classes gave the last position's logits of tiny models
 * (DeepSeek-V2's with the softmax scale of DeepSeek's code: an independent float64 model). */
typedef struct vector {
    const char *family; /* tests/golden/families */
    float logit[4];
    uint32_t argmax;
    float tolerance;
} vector;

static const vector vectors[] = {
    {"mixtral", {1.29304f, -1.59335f, -0.51380f, 2.28850f}, 147, 2e-4f},
    {"olmoe", {1.04429f, -2.23449f, 0.63137f, 1.52692f}, 175, 2e-4f},
    {"qwen2_moe", {0.48789f, -3.04103f, 0.33380f, 0.58357f}, 249, 2e-4f},
    {"qwen3_moe", {0.46023f, 0.11915f, 0.87895f, 1.06997f}, 207, 2e-4f},
    {"deepseek_v2_lite", {2.03738f, 0.97525f, -2.15820f, -1.51287f}, 138, 2e-4f},
    {"deepseek_v2", {1.16302f, -0.59821f, 0.93184f, 1.25161f}, 190, 2e-4f},
    {"deepseek_v3", {-0.19229f, 2.49375f, -0.67959f, -1.25480f}, 236, 2e-4f},
    {"granitemoe", {-0.54857f, 0.84257f, 1.32694f, 0.24458f}, 64, 2e-4f},
    {"phimoe", {2.38311f, -2.61042f, -0.78038f, 1.23347f}, 114, 2e-4f},
    {"gpt_oss", {1.46874f, -0.42418f, 1.66466f, 1.68113f}, 62, 2e-4f},
    {"glm4_moe", {0.20975f, 0.09013f, 2.05404f, -0.57194f}, 194, 2e-4f},
    {"llama4_text", {0.61936f, 0.22497f, -0.72588f, -1.30834f}, 220, 2e-4f},
    {"ernie4_5_moe", {-2.76647f, 2.00269f, -1.21482f, -4.02034f}, 32, 4e-4f},
    {"hunyuan_v1_moe", {2.22685f, 9.23495f, 0.43639f, -6.66408f}, 159, 4e-4f},
    {"minimax_m2", {-0.37071f, -0.29278f, 1.33905f, 1.64830f}, 162, 2e-4f},
};

static void every_family_gives_its_published_vector(void **state)
{
    static const uint32_t ids[] = {1, 17, 42, 99, 200, 7, 3, 255, 128, 64};
    int n_wrong = 0;

    (void)state;
    for (size_t v = 0; v < SY_COUNT_OF(vectors); v++) {
        char dir[] = "/tmp/sy-vector-XXXXXX", command[64];
        test_model m;
        test_output *out;
        int wrong = 0;

        assert_non_null(mkdtemp(dir));
        write_family(dir, vectors[v].family, SY_F32);
        test_model_open(&m, dir, "auto", 2, (sy_engine_config){0});
        out = run_greedy(&m, ids, 10, 1);
        for (size_t i = 0; i < 4; i++)
            wrong |= !(fabsf(out->logits[i] - vectors[v].logit[i]) <= vectors[v].tolerance);
        if (wrong || out->token[0] != vectors[v].argmax) {
            print_message("%s: logits %.5f %.5f %.5f %.5f, token %u; expected %.5f %.5f %.5f %.5f, "
                          "%u\n",
                          vectors[v].family, (double)out->logits[0], (double)out->logits[1],
                          (double)out->logits[2], (double)out->logits[3], out->token[0],
                          (double)vectors[v].logit[0], (double)vectors[v].logit[1],
                          (double)vectors[v].logit[2], (double)vectors[v].logit[3],
                          vectors[v].argmax);
            n_wrong++;
        }
        output_delete(out);
        test_model_close(&m);
        snprintf(command, sizeof(command), "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trio_matches_the_float32_reference_on_every_instruction_set),
        cmocka_unit_test(logits_have_the_same_bits_however_they_are_computed),
        cmocka_unit_test(every_family_gives_its_published_vector),
    };
    n_goldens = read_golden(goldens, SY_COUNT_OF(goldens));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
