/* test_moe_gpus.c - the experts of one process on emulated GPUs: the same bits however many GPUs
 * there are and however rows are cut into batches, near those of a CPU; and a GPU that is lost. */
#include "emulated_gpus.h"

#include <math.h>

#include "sy_clock.h"
#include "sy_hash.h"
#include "sy_moe.h"
#include "sy_synth.h"

enum {
    HIDDEN = 32,
    EXPERTS = 5,
    TOP_K = 2,
    /* More rows than three lanes hold, so that lanes are used again within a call. */
    MANY = 14000,
    FEW = 300
};

static char dir[64];
static sy_model *model;
static sy_pool *pool;

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static int open_all(void **state)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = 256,
                                    .hidden = HIDDEN,
                                    .n_layers = 2,
                                    .n_heads = 1,
                                    .n_kv_heads = 1,
                                    .head_dim = 32,
                                    .n_experts = EXPERTS,
                                    .top_k = TOP_K,
                                    .expert_ffn = 48,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options = {.dtype = SY_BF16, .recipe = SY_SYNTH_VECTORS}};
    char path[96];
    sy_error err = {0};

    strcpy(dir, "/tmp/sy-moe-gpus-XXXXXX");
    if (mkdtemp(dir) == NULL) return -1;
    snprintf(path, sizeof(path), "%s/model", dir);
    if (sy_synth_write(path, &config, &err) != SY_OK ||
        sy_model_open(&model, path, NULL, &err) != SY_OK ||
        sy_pool_open(&pool, 2, "test") != SY_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    return devices_open(state);
}

static int close_all(void **state)
{
    char command[128];

    sy_pool_free(pool);
    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) + devices_close(state);
}

/* n GPUs from the first on; 0: the processor. */
static sy_moe_local *open_on(uint32_t first, uint32_t n)
{
    static const char *const names[] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
    sy_moe_devices devices = {.backend = backend, .n = n};
    sy_moe_local *local;
    sy_error err = {0};

    for (uint32_t i = 0; i < n; i++) {
        devices.number[i] = first + i;
        devices.name[i] = names[first + i];
    }
    must(sy_moe_local_open(&local, model, sy_kernels_best(), (sy_precision){0}, pool, &devices,
                           NULL, NULL, &err),
         &err);
    return local;
}

static void fill(float *x, uint32_t n_rows)
{
    for (size_t i = 0; i < (size_t)n_rows * HIDDEN; i++)
        x[i] = (float)(sy_splitmix64(i) % 2001) / 1000.0f - 1.0f;
}

/* Rows [0, n_rows) in calls of `together` rows; y: [n_rows,H]. The first failure ends it. */
static sy_status run(sy_moe_local *local, float *y, const float *x, uint32_t n_rows,
                     uint32_t together, sy_error *err)
{
    const sy_moe moe = sy_moe_local_ops(local);
    uint8_t *failed = calloc(together, 1);
    uint64_t *request = calloc(together, sizeof(*request));

    assert_true(failed != NULL && request != NULL);
    for (uint32_t at = 0; at < n_rows; at += together) {
        sy_moe_call call = {.layer = 1,
                            .n_rows = SY_MIN(together, n_rows - at),
                            .request = request,
                            .x = x + (size_t)at * HIDDEN,
                            .y = y + (size_t)at * HIDDEN,
                            .deadline_us = SY_NEVER_US,
                            .pool = pool,
                            .failed = failed};

        sy_error_clear(&call.error);
        if (moe.layer(moe.ctx, &call) != SY_OK) {
            *err = call.error;
            break;
        }
        assert_int_equal(call.n_row_errors, 0);
    }
    free(failed);
    free(request);
    return err->status;
}

static float *run_on(uint32_t first, uint32_t n, const float *x, uint32_t n_rows, uint32_t together)
{
    float *y = malloc((size_t)n_rows * HIDDEN * sizeof(*y));
    sy_moe_local *local = open_on(first, n);
    sy_error err = {0};

    assert_non_null(y);
    sy_error_clear(&err);
    must(run(local, y, x, n_rows, together, &err), &err);
    sy_moe_local_close(local);
    return y;
}

static void check_equal(const float *got, const float *want, uint32_t n_rows, const char *what)
{
    for (size_t i = 0; i < (size_t)n_rows * HIDDEN; i++)
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0)
            fail_msg("%s: row %zu, element %zu: %.9g, not %.9g", what, i / HIDDEN, i % HIDDEN,
                     (double)got[i], (double)want[i]);
}

static void gpus_give_what_a_cpu_gives_but_for_rounding(void **state)
{
    float *x = malloc((size_t)FEW * HIDDEN * sizeof(*x)), *cpu, *gpu;
    double difference = 0, size = 0;

    (void)state;
    fill(x, FEW);
    cpu = run_on(0, 0, x, FEW, FEW);
    gpu = run_on(0, 2, x, FEW, FEW);
    for (size_t i = 0; i < (size_t)FEW * HIDDEN; i++) {
        difference += pow((double)gpu[i] - (double)cpu[i], 2);
        size += pow((double)cpu[i], 2);
    }
    difference = sqrt(difference / size);
    if (!(difference > 0 && difference < 5e-3))
        fail_msg("a relative difference of %g; outputs of root mean square %g", difference,
                 sqrt(size / FEW / HIDDEN));
    free(x);
    free(cpu);
    free(gpu);
}

static void neither_the_number_of_gpus_nor_batches_change_a_bit(void **state)
{
    float *x = malloc((size_t)MANY * HIDDEN * sizeof(*x)), *want, *got;

    (void)state;
    fill(x, MANY);
    want = run_on(0, 1, x, MANY, MANY);
    got = run_on(1, 3, x, MANY, MANY);
    check_equal(got, want, MANY, "three GPUs");
    free(got);
    got = run_on(2, 2, x, FEW, 7);
    check_equal(got, want, FEW, "seven rows at a time");
    free(got);
    free(want);
    free(x);
}

static void after_a_gpu_is_lost_every_call_says_so(void **state)
{
    float *x = malloc((size_t)FEW * HIDDEN * sizeof(*x)), *y = malloc(sizeof(*x) * FEW * HIDDEN);
    sy_moe_local *local = open_on(2, 2);
    sy_error err = {0};

    (void)state;
    fill(x, FEW);
    sy_error_clear(&err);
    must(run(local, y, x, FEW, FEW, &err), &err);
    devices_told("lose 3\n");
    for (int i = 0; i < 3; i++) {
        sy_error_clear(&err);
        assert_int_equal(run(local, y, x, FEW, FEW, &err), SY_EUNAVAILABLE);
        assert_string_equal(err.reason, "DEVICE_LOST");
        assert_non_null(strstr(err.message, "cuda:3"));
        devices_told("");
    }
    assert_string_equal(sy_moe_local_arithmetic(local), "bf16-mma/1:sm_90");
    sy_moe_local_close(local);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_give_what_a_cpu_gives_but_for_rounding),
        cmocka_unit_test(neither_the_number_of_gpus_nor_batches_change_a_bit),
        cmocka_unit_test(after_a_gpu_is_lost_every_call_says_so),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
