/* test_route.c - the gate chooses what the published vectors say, breaks ties one way, refuses what
 * is not finite, and gives the same bits for every kernel and every split of the rows. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "sy_file.h"
#include "sy_hash.h"
#include "sy_route.h"
#include "sy_synth.h"

#define TRIO SY_SOURCE_DIR "/models/trio"

static const sy_gate_desc softmax_gate = {.score = SY_GATE_SOFTMAX, .renormalise = 1, .scale = 1};
static const float vector_logits[8] = {1.0f, -0.5f, 2.25f, 0.75f, -1.5f, 3.0f, 0.25f, 1.5f};

/* Chooses from a copy of logits and compares with what is wanted, slot by slot. */
static void assert_choice(const float *logits, uint32_t E, uint32_t k, int renormalise,
                          const sy_gate_desc *gate, const uint16_t *want_expert,
                          const float *want_weight)
{
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        const sy_kernels *kernels = sy_kernels_at(i);
        uint16_t expert[SY_TOP_K_MAX];
        float weight[SY_TOP_K_MAX];
        float scores[256];

        memcpy(scores, logits, E * sizeof(float));
        sy_route_select(expert, weight, scores, NULL, E, k, renormalise, gate, kernels);
        for (uint32_t j = 0; j < k; j++) {
            /* The vectors are printed to seven digits. */
            const float bound = 2e-7f * fmaxf(1.0f, want_weight[j]);
            if (expert[j] != want_expert[j] || !(fabsf(weight[j] - want_weight[j]) <= bound)) {
                fail_msg("%s, slot %u: want expert %u with %.8g, got %u with %.8g", kernels->name,
                         j, want_expert[j], (double)want_weight[j], expert[j], (double)weight[j]);
            }
        }
    }
}

static void published_vectors_come_out(void **state)
{
    static const uint16_t expert[] = {5, 2, 7};
    static const float mixtral[] = {0.6791787f, 0.3208213f};
    static const float olmoe[] = {0.4898442f, 0.2313860f, 0.1092990f};
    static const float norm3[] = {0.5897976f, 0.2786007f, 0.1316016f};
    static const float scaled[] = {16 * 0.4898442f, 16 * 0.2313860f};
    const sy_gate_desc gate16 = {.score = SY_GATE_SOFTMAX, .scale = 16};

    (void)state;
    assert_choice(vector_logits, 8, 2, 1, &softmax_gate, expert, mixtral);
    assert_choice(vector_logits, 8, 3, 0, &softmax_gate, expert, olmoe);
    assert_choice(vector_logits, 8, 3, 1, &softmax_gate, expert, norm3);
    assert_choice(vector_logits, 8, 2, 0, &gate16, expert, scaled);
}

static void sigmoid_scores_are_each_experts_own(void **state)
{
    static const uint16_t expert[] = {5, 2};
    static const float plain[] = {0.95257413f, 0.90465054f};
    static const float normed[] = {2.5f * 0.51290188f, 2.5f * 0.48709812f};
    static const float far[] = {-200.0f, -100.0f, -95.0f, -300.0f};
    static const uint16_t first[] = {0, 1};
    static const float zero[] = {0.0f, 0.0f};
    const sy_gate_desc gate = {.score = SY_GATE_SIGMOID, .scale = 1};
    const sy_gate_desc scaled = {.score = SY_GATE_SIGMOID, .renormalise = 1, .scale = 2.5f};

    (void)state;
    assert_choice(vector_logits, 8, 2, 0, &gate, expert, plain);
    assert_choice(vector_logits, 8, 2, 1, &scaled, expert, normed);
    /* All scores underflow: a tie, and weights of zero rather than 0/0. */
    assert_choice(far, 4, 2, 1, &scaled, first, zero);
}

static void ties_go_to_the_lower_expert(void **state)
{
    static const float equal[8] = {0};
    static const float pairs[8] = {1, 2, 1, 2, 0, 2, 1, 0};
    static const uint16_t first[] = {0, 1, 2};
    static const uint16_t twos[] = {1, 3, 5, 0};
    const float third[] = {1.0f / 3, 1.0f / 3, 1.0f / 3};
    const float e1 = (float)(1.0 / (3 * exp(1) + 1));
    const float four[] = {(1 - e1) / 3, (1 - e1) / 3, (1 - e1) / 3, e1};

    (void)state;
    assert_choice(equal, 8, 3, 1, &softmax_gate, first, third);
    assert_choice(pairs, 8, 4, 1, &softmax_gate, twos, four);
}

/* Against the definition: score, then repeatedly the largest that is left. */
static void choices_are_the_k_largest_in_order(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1},   {2, 2},   {7, 3},    {16, 16},  {17, 1},
                                         {17, 8},  {33, 16}, {60, 4},   {64, 8},   {100, 10},
                                         {128, 8}, {256, 8}, {256, 16}, {256, 17}, {256, 64}};
    const sy_kernels *ref = sy_kernels_at(0);
    uint64_t counter = 77;

    (void)state;
    for (size_t s = 0; s < SY_COUNT_OF(shapes) * 50; s++) {
        const uint32_t E = shapes[s / 50][0], k = shapes[s / 50][1];
        float logits[256], scores[256], weight[64];
        uint16_t expert[64];

        /* Few distinct values, so that ties are common. */
        for (uint32_t e = 0; e < E; e++)
            logits[e] = (float)(sy_splitmix64(counter++) % (s % 2 ? 9 : 1000)) * 0.01f;
        memcpy(scores, logits, sizeof(scores));
        ref->softmax(scores, E);
        sy_route_select(expert, weight, logits, NULL, E, k, 0, &softmax_gate, ref);
        for (uint32_t j = 0; j < k; j++) {
            uint32_t best = 0;
            for (uint32_t e = 1; e < E; e++)
                if (scores[e] > scores[best]) best = e;
            assert_int_equal(expert[j], best);
            assert_memory_equal(&weight[j], &scores[best], sizeof(float));
            scores[best] = -1;
        }
    }
}

/* Scores of other experts survive a NaN only under a sigmoid; they then go first. */
static void nan_comes_after_every_number(void **state)
{
    static const float logits[] = {NAN, 2, NAN, 3, NAN, 0};
    static const uint16_t want[] = {3, 1, 5, 0};
    const sy_gate_desc gate = {.score = SY_GATE_SIGMOID, .scale = 1};

    (void)state;
    for (size_t i = 0; i < sy_kernels_count(); i++) {
        float scores[6], weight[4];
        uint16_t expert[4];

        memcpy(scores, logits, sizeof(scores));
        sy_route_select(expert, weight, scores, NULL, 6, 4, 0, &gate, sy_kernels_at(i));
        assert_memory_equal(expert, want, sizeof(want));
        assert_true(isnan(weight[3]));
    }
}

/* Enough experts for them to be ranked by counting, where nothing is NaN; as many infinities as may
 * be wanted, which count as numbers. */
static void nan_and_infinity_keep_their_places_among_many(void **state)
{
    const sy_gate_desc gate = {.score = SY_GATE_SIGMOID, .scale = 1};
    const sy_kernels *kernels = sy_kernels_best();

    (void)state;
    for (uint32_t n_bad = 0; n_bad <= 64; n_bad += 4) {
        for (int is_nan = 0; is_nan <= 1; is_nan++) {
            float scores[64], bias[64] = {0}, weight[8];
            uint16_t expert[8];

            /* The first have a choice score that comes last; the rest ascend. */
            for (uint32_t e = 0; e < 64; e++) {
                scores[e] = (float)e * 0.01f;
                if (e < n_bad) bias[e] = is_nan ? NAN : -INFINITY;
            }
            sy_route_select(expert, weight, scores, bias, 64, 8, 0, &gate, kernels);
            for (uint32_t j = 0; j < 8; j++) {
                const uint32_t n_good = 64 - n_bad;
                assert_int_equal(expert[j], j < n_good ? 63 - j : j - n_good);
            }
        }
    }
}

static void nan_never_chooses_an_expert_twice(void **state)
{
    const float inf = INFINITY;
    const float rows[][6] = {{NAN, NAN, NAN, NAN, NAN, NAN},
                             {1, 2, NAN, 3, NAN, 0},
                             {inf, inf, 0, 1, 2, 3},
                             {-inf, -inf, -inf, -inf, -inf, -inf},
                             {-inf, 1, -inf, -inf, -inf, -inf}};

    (void)state;
    for (size_t r = 0; r < SY_COUNT_OF(rows); r++) {
        for (size_t i = 0; i < 2 * sy_kernels_count(); i++) {
            const sy_gate_desc gate = {.score = i % 2 ? SY_GATE_SIGMOID : SY_GATE_SOFTMAX,
                                       .scale = 1};
            float scores[6], weight[4];
            uint16_t expert[4];
            uint32_t seen = 0;

            memcpy(scores, rows[r], sizeof(scores));
            sy_route_select(expert, weight, scores, NULL, 6, 4, 1, &gate, sy_kernels_at(i / 2));
            for (size_t j = 0; j < 4; j++) {
                assert_in_range(expert[j], 0, 5);
                assert_false(seen & 1u << expert[j]);
                seen |= 1u << expert[j];
            }
        }
    }
}

typedef struct fixture {
    sy_model *model;
    const sy_model_desc *desc;
    uint32_t n_tokens;
    float *x;
} fixture;

static int open_trio(void **state)
{
    static fixture f;
    sy_error err = {0};

    if (sy_model_open(&f.model, TRIO, NULL, &err) != SY_OK) fail_msg("%s", err.message);
    f.desc = sy_model_describe(f.model);
    f.n_tokens = 37;
    f.x = malloc((size_t)f.n_tokens * f.desc->hidden * sizeof(float));
    for (size_t i = 0; i < (size_t)f.n_tokens * f.desc->hidden; i++)
        f.x[i] = 6 * sy_unit_float(sy_splitmix64(i)) - 3;
    *state = &f;
    return 0;
}

static int close_trio(void **state)
{
    fixture *f = *state;

    sy_model_close(f->model);
    free(f->x);
    return 0;
}

static sy_router *router_of(const sy_model *model, const sy_kernels *kernels)
{
    sy_error err = {0};
    sy_router *router;

    if (sy_router_open(&router, model, kernels, &err) != SY_OK) fail_msg("%s", err.message);
    return router;
}

typedef struct routed {
    uint16_t expert[64 * SY_TOP_K_MAX];
    float weight[64 * SY_TOP_K_MAX];
} routed;

/* Routes in pieces of at most `piece` rows. */
static void route_all(routed *out, const sy_router *router, uint32_t layer, const fixture *f,
                      uint32_t piece, const sy_route_options *options, uint32_t k)
{
    float *scratch = malloc(sy_router_scratch(router, piece) * sizeof(float));
    sy_error err = {0};

    memset(out, 0, sizeof(*out));
    for (uint32_t t = 0; t < f->n_tokens; t += piece) {
        const uint32_t n = SY_MIN(piece, f->n_tokens - t);
        if (sy_route(router, layer, out->expert + (size_t)t * k, out->weight + (size_t)t * k,
                     f->x + (size_t)t * f->desc->hidden, n, options, scratch, NULL,
                     &err) != SY_OK) {
            fail_msg("%s", err.message);
        }
    }
    free(scratch);
}

static void routing_agrees_with_plain_arithmetic(void **state)
{
    const fixture *f = *state;
    const uint32_t E = f->desc->n_experts, H = f->desc->hidden;
    sy_router *router = router_of(f->model, sy_kernels_best());
    float *gate = malloc((size_t)E * H * sizeof(float));
    routed got;

    assert_int_equal(sy_router_top_k(router), f->desc->top_k);
    assert_int_equal(sy_router_top_k(router), 2);
    assert_true(sy_router_bytes(router) >= (uint64_t)f->desc->n_layers * E * H * 2);
    for (uint32_t layer = 0; layer < f->desc->n_layers; layer++) {
        const sy_tensor *tensor = sy_model_tensor(f->model, SY_ROLE_GATE, layer, 0);

        sy_dtype_widen(gate, tensor->data, tensor->dtype, (size_t)E * H);
        route_all(&got, router, layer, f, f->n_tokens, NULL, 2);
        for (uint32_t t = 0; t < f->n_tokens; t++) {
            double logit[SY_EXPERTS_MAX];
            uint32_t a = 0, b;

            for (uint32_t e = 0; e < E; e++) {
                logit[e] = 0;
                for (uint32_t h = 0; h < H; h++)
                    logit[e] += (double)gate[(size_t)e * H + h] * (double)f->x[(size_t)t * H + h];
            }
            for (uint32_t e = 1; e < E; e++) a = logit[e] > logit[a] ? e : a;
            b = a == 0;
            for (uint32_t e = 0; e < E; e++) b = e != a && logit[e] > logit[b] ? e : b;
            assert_int_equal(got.expert[2 * t], a);
            assert_int_equal(got.expert[2 * t + 1], b);
            const double want = 1 / (1 + exp(logit[b] - logit[a]));
            if (!(fabs((double)got.weight[2 * t] - want) <= 1e-5))
                fail_msg("layer %u token %u: want %.8g, got %.8g", layer, t, want,
                         (double)got.weight[2 * t]);
        }
    }
    free(gate);
    sy_router_close(router);
}

static void every_kernel_and_every_split_gives_the_same_bits(void **state)
{
    static const uint32_t pieces[] = {37, 1, 2, 5, 8, 16, 33};
    const fixture *f = *state;
    routed want, got;

    for (uint32_t layer = 0; layer < f->desc->n_layers; layer++) {
        sy_router *ref = router_of(f->model, sy_kernels_at(0));

        route_all(&want, ref, layer, f, f->n_tokens, NULL, 2);
        sy_router_close(ref);
        for (size_t i = 0; i < sy_kernels_count(); i++) {
            sy_router *router = router_of(f->model, sy_kernels_at(i));
            for (size_t p = 0; p < SY_COUNT_OF(pieces); p++) {
                route_all(&got, router, layer, f, pieces[p], NULL, 2);
                assert_memory_equal(&got, &want, sizeof(got));
            }
            sy_router_close(router);
        }
    }
}

static void a_k_below_the_checkpoints_is_renormalised(void **state)
{
    const fixture *f = *state;
    sy_router *router = router_of(f->model, sy_kernels_best());
    routed two, one;

    route_all(&two, router, 1, f, f->n_tokens, NULL, 2);
    route_all(&one, router, 1, f, f->n_tokens, &(sy_route_options){.experts_per_token = 2}, 2);
    assert_memory_equal(&one, &two, sizeof(one));
    route_all(&one, router, 1, f, f->n_tokens, &(sy_route_options){0}, 2);
    assert_memory_equal(&one, &two, sizeof(one));
    route_all(&one, router, 1, f, f->n_tokens, &(sy_route_options){.experts_per_token = 1}, 1);
    for (uint32_t t = 0; t < f->n_tokens; t++) {
        assert_int_equal(one.expert[t], two.expert[2 * t]);
        assert_float_equal(one.weight[t], 1.0f, 0);
    }
    sy_router_close(router);
}

static void remove_checkpoint(const char *dir)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char path[1024];

    for (size_t i = 0; i < SY_COUNT_OF(names); i++) {
        assert_int_equal(sy_path_join(path, sizeof(path), dir, names[i]), SY_OK);
        unlink(path);
    }
    rmdir(dir);
}

/* A family that does not renormalise: its own k leaves the scores as they are, a smaller k makes
 * them sum to one. In fp32, with a hidden size and a number of experts that fill no panel. */
static void olmoe_renormalises_only_below_its_k(void **state)
{
    const sy_synth_config config = {.family = "olmoe",
                                    .vocab = 256,
                                    .hidden = 36,
                                    .n_layers = 2,
                                    .n_heads = 1,
                                    .n_kv_heads = 1,
                                    .head_dim = 36,
                                    .n_experts = 21,
                                    .top_k = 3,
                                    .expert_ffn = 8,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_F32};
    char dir[] = "/tmp/test_route_XXXXXX";
    fixture f = *(const fixture *)*state;
    sy_error err = {0};
    sy_router *router;
    routed three, two;

    assert_non_null(mkdtemp(dir));
    if (sy_synth_write(dir, &config, &err) != SY_OK ||
        sy_model_open(&f.model, dir, NULL, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    f.desc = sy_model_describe(f.model);
    assert_false(f.desc->gate.renormalise);
    router = router_of(f.model, sy_kernels_best());
    sy_model_close(f.model); /* the router keeps nothing of it */
    remove_checkpoint(dir);
    f.desc = &(sy_model_desc){.hidden = config.hidden};
    route_all(&three, router, 1, &f, f.n_tokens, NULL, 3);
    route_all(&two, router, 1, &f, 5, &(sy_route_options){.experts_per_token = 2}, 2);
    for (uint32_t t = 0; t < f.n_tokens; t++) {
        const float *w = three.weight + (size_t)t * 3;

        assert_true(w[0] + w[1] + w[2] < 0.999f);
        assert_true(w[0] >= w[1] && w[1] >= w[2]);
        assert_memory_equal(two.expert + (size_t)t * 2, three.expert + (size_t)t * 3, 4);
        assert_float_equal(two.weight[2 * t], w[0] / (w[0] + w[1]), 1e-6f);
        assert_float_equal(two.weight[2 * t + 1], w[1] / (w[0] + w[1]), 1e-6f);
    }
    sy_router_close(router);
}

static void assert_refused(const sy_router *router, uint32_t layer, const float *x,
                           uint32_t n_tokens, uint32_t k, uint32_t want_row, const char *text)
{
    const sy_route_options options = {.experts_per_token = k};
    float scratch[64 * 64];
    uint32_t bad_row = UINT32_MAX;
    sy_error err = {0};
    routed out;
    const sy_status st = sy_route(router, layer, out.expert, out.weight, x, n_tokens, &options,
                                  scratch, &bad_row, &err);

    if (st != SY_EINVAL || strstr(err.message, text) == NULL || bad_row != want_row) {
        fail_msg("want row %u and \"%s\", got %s, row %u, \"%s\"", want_row, text,
                 sy_status_name(st), bad_row, err.message);
    }
    /* The row is optional, and so is the error. */
    assert_int_equal(
        sy_route(router, layer, out.expert, out.weight, x, n_tokens, &options, scratch, NULL, NULL),
        SY_EINVAL);
}

static void what_cannot_be_routed_is_refused(void **state)
{
    const fixture *f = *state;
    const uint32_t H = f->desc->hidden;

    for (size_t i = 0; i < sy_kernels_count(); i++) {
        sy_router *router = router_of(f->model, sy_kernels_at(i));
        float *x = malloc((size_t)f->n_tokens * H * sizeof(float));

        assert_refused(router, f->desc->n_layers, f->x, 4, 0, UINT32_MAX, "no layer 4");
        assert_refused(router, 0, f->x, 4, 3, UINT32_MAX, "allows 1 to 2");
        for (uint32_t t = 0; t < f->n_tokens; t += 9) {
            memcpy(x, f->x, (size_t)f->n_tokens * H * sizeof(float));
            x[(size_t)t * H + H - 1] = NAN;
            assert_refused(router, 2, x, f->n_tokens, 0, t, "holds NaN or infinity");
            x[(size_t)t * H + H - 1] = -INFINITY;
            assert_refused(router, 2, x, f->n_tokens, 0, t, "holds NaN or infinity");
            /* Of two, the first is named. */
            x[(size_t)f->n_tokens * H - 1] = NAN;
            assert_refused(router, 2, x, f->n_tokens, 0, t, "holds NaN or infinity");
        }
        for (uint32_t h = 0; h < H; h++) x[H + h] = 3e38f * (h % 2 ? 1 : -1);
        memcpy(x, f->x, H * sizeof(float));
        assert_refused(router, 2, x, 2, 0, 1, "row 1 is too large");
        free(x);
        sy_router_close(router);
    }
}

static void no_rows_is_no_error(void **state)
{
    const fixture *f = *state;
    sy_router *router = router_of(f->model, sy_kernels_best());
    float scratch[1];

    assert_int_equal(sy_router_scratch(router, 0), 0);
    assert_int_equal(sy_route(router, 0, NULL, NULL, f->x, 0, NULL, scratch, NULL, NULL), SY_OK);
    sy_router_close(router);
    sy_router_close(NULL);
}

static void copy_file(const char *dir, const char *name)
{
    char from[1024], to[1024];
    sy_error err = {0};
    size_t len;
    char *data;

    assert_int_equal(sy_path_join(from, sizeof(from), TRIO, name), SY_OK);
    assert_int_equal(sy_path_join(to, sizeof(to), dir, name), SY_OK);
    if (sy_file_read(&data, &len, from, 1u << 30, &err) != SY_OK ||
        sy_file_write_atomic(to, data, len, &err) != SY_OK) {
        fail_msg("%s", err.message);
    }
    free(data);
}

/* cmocka takes SIGBUS for itself before each test; this is the guard's own action, kept by main. */
static struct sigaction guard_action;

static sy_status do_nothing(void *arg)
{
    (void)arg;
    return SY_OK;
}

static void a_file_cut_after_opening_is_data_loss_and_the_gates_name_themselves(void **state)
{
    static const char *const names[] = {"config.json", "generation_config.json",
                                        "model.safetensors"};
    char dir[] = "/tmp/test_route_XXXXXX";
    char path[1024];
    sy_error err = {0};
    sy_router *router = (sy_router *)dir; /* must be overwritten */
    sy_model *model;

    (void)state;
    sigaction(SIGBUS, &guard_action, NULL);
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < SY_COUNT_OF(names); i++) copy_file(dir, names[i]);
    if (sy_model_open(&model, dir, NULL, &err) != SY_OK) fail_msg("%s", err.message);
    assert_int_equal(sy_path_join(path, sizeof(path), dir, "model.safetensors"), SY_OK);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(sy_router_open(&router, model, sy_kernels_best(), &err), SY_EDATALOSS);
    assert_null(router);
    if (strstr(err.message, "gate") == NULL) fail_msg("no tensor is named: %s", err.message);
    assert_int_equal(err.layer, 0);
    sy_model_close(model);
    remove_checkpoint(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors_come_out),
        cmocka_unit_test(sigmoid_scores_are_each_experts_own),
        cmocka_unit_test(ties_go_to_the_lower_expert),
        cmocka_unit_test(choices_are_the_k_largest_in_order),
        cmocka_unit_test(nan_comes_after_every_number),
        cmocka_unit_test(nan_and_infinity_keep_their_places_among_many),
        cmocka_unit_test(nan_never_chooses_an_expert_twice),
        cmocka_unit_test_setup_teardown(routing_agrees_with_plain_arithmetic, open_trio,
                                        close_trio),
        cmocka_unit_test_setup_teardown(every_kernel_and_every_split_gives_the_same_bits, open_trio,
                                        close_trio),
        cmocka_unit_test_setup_teardown(a_k_below_the_checkpoints_is_renormalised, open_trio,
                                        close_trio),
        cmocka_unit_test_setup_teardown(olmoe_renormalises_only_below_its_k, open_trio, close_trio),
        cmocka_unit_test_setup_teardown(what_cannot_be_routed_is_refused, open_trio, close_trio),
        cmocka_unit_test_setup_teardown(no_rows_is_no_error, open_trio, close_trio),
        cmocka_unit_test(a_file_cut_after_opening_is_data_loss_and_the_gates_name_themselves),
    };

    if (sy_map_guard(do_nothing, NULL, NULL) != SY_OK) return 1;
    sigaction(SIGBUS, NULL, &guard_action);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
