/* test_shard.c - expert weights in memory and their arithmetic, against plain loops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "sy_hash.h"
#include "sy_shard.h"
#include "sy_synth.h"

enum { H = 36, F = 40, E = 6, K = 3, L = 2 };

static char dir[] = "/tmp/sy-shard-XXXXXX";
static sy_model *model;

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static int set_up(void **state)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = 300,
                                    .hidden = H,
                                    .n_layers = L,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 18,
                                    .n_experts = E,
                                    .top_k = K,
                                    .expert_ffn = F,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_BF16};
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &config, &err), &err);
    must(sy_model_open(&model, dir, NULL, &err), &err);
    return 0;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

static float random_float(uint64_t i)
{
    return sy_unit_float(sy_splitmix64(i)) * 2 - 1;
}

static float weight_at(sy_role role, uint32_t layer, uint32_t expert, uint32_t n, uint32_t k)
{
    const sy_tensor *t = sy_model_tensor(model, role, layer, expert);
    uint16_t v;

    memcpy(&v, t->data + ((size_t)n * t->shape[1] + k) * 2, 2);
    return sy_bf16_to_f32(v);
}

/* y = Down(silu(Gate x) * (Up x)) in doubles. */
static void reference(double *y, const float *x, uint32_t layer, uint32_t expert)
{
    double h[F];

    for (uint32_t f = 0; f < F; f++) {
        double g = 0, u = 0;
        for (uint32_t k = 0; k < H; k++) {
            g += (double)x[k] * (double)weight_at(SY_ROLE_EXPERT_GATE, layer, expert, f, k);
            u += (double)x[k] * (double)weight_at(SY_ROLE_EXPERT_UP, layer, expert, f, k);
        }
        h[f] = g / (1 + exp(-g)) * u;
    }
    for (uint32_t n = 0; n < H; n++) {
        y[n] = 0;
        for (uint32_t f = 0; f < F; f++)
            y[n] += h[f] * (double)weight_at(SY_ROLE_EXPERT_DOWN, layer, expert, n, f);
    }
}

static sy_shard_store *open_store(uint64_t memory_max)
{
    sy_shard_store *store;
    sy_error err = {0};

    must(sy_shard_store_open(&store, model, (sy_precision){0}, memory_max, &err), &err);
    return store;
}

static void experts_compute_what_the_formula_says_on_every_instruction_set(void **state)
{
    enum { T = 61 };
    sy_shard_store *store = open_store(0);
    sy_error err = {0};
    float *x = malloc(T * H * sizeof(float)), *y = malloc(3 * T * H * sizeof(float));
    float *first = NULL;
    uint32_t row[3 * T];
    sy_shard_group group[3];

    (void)state;
    for (size_t i = 0; i < T * H; i++) x[i] = random_float(i);
    for (uint32_t i = 0; i < 3 * T; i++) row[i] = (i * 7) % T;
    for (uint32_t g = 0; g < 3; g++) {
        must(sy_shard_load(store, 1, g * 2, &err), &err);
        group[g] = (sy_shard_group){sy_shard_get(store, 1, g * 2), g * T,
                                    (g + 1) * T - g}; /* holes between groups */
    }
    for (size_t k = 0; k < 2 * sy_kernels_count(); k++) {
        sy_shard_scratch scratch = {0};
        sy_pool *pool = NULL;
        if (k % 2 == 1) must(sy_pool_open(&pool, 3, "test"), &err);
        memset(y, 0, 3 * T * H * sizeof(float));
        must(sy_shard_compute(y, x, H, row, group, 3, &scratch, pool, sy_kernels_at(k / 2)), &err);
        sy_shard_scratch_free(&scratch);
        sy_pool_free(pool);
        if (first == NULL) {
            first = malloc(3 * T * H * sizeof(float));
            memcpy(first, y, 3 * T * H * sizeof(float));
        }
        assert_memory_equal(y, first,
                            3 * T * H * sizeof(float)); /* bits: kernels and threads do not show */
    }
    for (uint32_t g = 0; g < 3; g++)
        for (uint32_t i = group[g].begin; i < group[g].end; i++) {
            double want[H];
            reference(want, x + row[i] * H, 1, g * 2);
            for (uint32_t n = 0; n < H; n++)
                if (!(fabs((double)first[i * H + n] - want[n]) <= 1e-5 + 1e-5 * fabs(want[n])))
                    fail_msg("row %u column %u: %g, expected %g", i, n, (double)first[i * H + n],
                             want[n]);
        }
    for (uint32_t i = group[1].end; i < group[2].begin; i++)
        for (uint32_t n = 0; n < H; n++)
            assert_true(first[i * H + n] == 0.0f); /* rows in no group are not written */
    for (uint32_t g = 0; g < 3; g++) sy_shard_put(store, group[g].shard);
    sy_shard_store_close(store);
    free(first);
    free(x);
    free(y);
}

static void a_row_alone_and_in_a_crowd_has_the_same_bits(void **state)
{
    enum { T = 150 };
    const sy_kernels *kernels = sy_kernels_best();
    sy_shard_store *store = open_store(0);
    sy_shard_scratch scratch = {0};
    sy_error err = {0};
    static float x[T * H], crowd[T * H], alone[H];

    (void)state;
    must(sy_shard_load(store, 0, 5, &err), &err);
    for (size_t i = 0; i < T * H; i++) x[i] = random_float(1000 + i) * 3;
    sy_shard_group group = {sy_shard_get(store, 0, 5), 0, T};
    must(sy_shard_compute(crowd, x, H, NULL, &group, 1, &scratch, NULL, kernels), &err);
    for (uint32_t t = 0; t < T; t++) {
        group.end = 1;
        must(sy_shard_compute(alone, x, H, &t, &group, 1, &scratch, NULL, kernels), &err);
        assert_memory_equal(alone, crowd + t * H, sizeof(alone));
    }
    sy_shard_put(store, group.shard);
    sy_shard_scratch_free(&scratch);
    sy_shard_store_close(store);
}

/* Values whose sum depends on the order: only ascending expert ids give these bits. */
static void combine_adds_in_ascending_expert_id_whatever_the_slot_order(void **state)
{
    const uint16_t expert[2][K] = {{4, 0, 2}, {1, SY_PLAN_EMPTY_SLOT, 0}};
    const float weight[2][K] = {{0.3f, 0.6f, 0.1f}, {0.5f, 0.0f, 0.25f}};
    const sy_kernels *kernels = sy_kernels_best();
    float row[5][H], y[2 * H], want[2 * H] = {0};
    const float *pointer[5];
    sy_plan plan;
    sy_error err = {0};

    (void)state;
    sy_plan_init(&plan);
    must(sy_plan_build(&plan, &expert[0][0], &weight[0][0], 2, K, E, &err), &err);
    for (uint32_t r = 0; r < 5; r++) {
        pointer[r] = row[r];
        for (uint32_t i = 0; i < H; i++)
            row[r][i] = random_float(r * 100 + i) * (r == 2 ? 1e7f : 1.0f);
    }
    /* Plan rows: (0: t0) (0: t1) (1: t1) (2: t0) (4: t0). */
    for (uint32_t i = 0; i < H; i++) {
        want[i] = fmaf(0.3f, row[4][i], fmaf(0.1f, row[3][i], fmaf(0.6f, row[0][i], 0.0f)));
        want[H + i] = fmaf(0.5f, row[2][i], fmaf(0.25f, row[1][i], 0.0f));
    }
    sy_shard_combine(y, &plan, pointer, H, NULL, NULL, NULL, kernels);
    assert_memory_equal(y, want, sizeof(y));
    sy_plan_free(&plan);
}

static void memory_past_the_limit_is_refused_with_both_sizes(void **state)
{
    const uint64_t one = sy_model_expert_bytes(model);
    sy_shard_store *store = open_store(3 * one);
    sy_error err = {0};

    (void)state;
    must(sy_shard_load(store, 0, 0, &err), &err);
    must(sy_shard_load(store, 0, 0, &err), &err); /* again: there already */
    assert_int_equal(sy_shard_store_count(store), 1);
    while (sy_shard_load(store, 0, sy_shard_store_count(store), &err) == SY_OK) {
    }
    assert_int_equal(err.status, SY_ELIMIT);
    assert_non_null(strstr(err.message, "needs"));
    assert_true(sy_shard_store_bytes(store) <= 3 * one);
    assert_int_equal(sy_shard_unload(store, 0, 0), 1);
    assert_int_equal(sy_shard_unload(store, 0, 0), 0);
    must(sy_shard_load(store, 1, 5, &err), &err);
    assert_int_equal(sy_shard_load(store, 7, 0, &err), SY_ENOTFOUND);
    assert_null(sy_shard_get(store, 0, 99));
    sy_shard_store_close(store);
}

static void a_shard_in_use_outlives_its_unloading(void **state)
{
    sy_shard_store *store = open_store(0);
    sy_error err = {0};

    (void)state;
    must(sy_shard_load(store, 0, 1, &err), &err);
    const sy_shard *shard = sy_shard_get(store, 0, 1);
    assert_int_equal(sy_shard_unload(store, 0, 1), 1);
    assert_null(sy_shard_get(store, 0, 1));
    assert_true(sy_panels_at(&shard->gate, 3, 4) == weight_at(SY_ROLE_EXPERT_GATE, 0, 1, 3, 4));
    sy_shard_put(store, shard);
    assert_int_equal(sy_shard_store_bytes(store), 0);
    sy_shard_store_close(store);
}

static void *load_thread(void *arg)
{
    sy_error err = {0};
    for (uint32_t i = 0; i < L * E; i++) must(sy_shard_load(arg, i / E, i % E, &err), &err);
    return NULL;
}

static void several_threads_may_load_the_same_shards_at_once(void **state)
{
    sy_shard_store *store = open_store(0);
    pthread_t thread[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, load_thread, store), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    assert_int_equal(sy_shard_store_count(store), L * E);
    sy_shard_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_compute_what_the_formula_says_on_every_instruction_set),
        cmocka_unit_test(a_row_alone_and_in_a_crowd_has_the_same_bits),
        cmocka_unit_test(combine_adds_in_ascending_expert_id_whatever_the_slot_order),
        cmocka_unit_test(memory_past_the_limit_is_refused_with_both_sizes),
        cmocka_unit_test(a_shard_in_use_outlives_its_unloading),
        cmocka_unit_test(several_threads_may_load_the_same_shards_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
