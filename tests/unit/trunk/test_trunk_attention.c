/* test_trunk_attention.c - attention over many queries at once gives the bits of one query at a
 * time, whatever else is in the batch and wherever a prompt was cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "effort.h"
#include "sy_hash.h"
#include "sy_synth.h"
#include "sy_trunk.h"

enum { SEQS = 3, TOKENS = 115, HIDDEN = 64, VOCAB = 256, LAYERS = 2, STEP_ROWS = 96 };

typedef struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, context, sliding_window;
} shape;

static const shape shapes[] = {
    {4, 4, 16, 128, 0},      /* a query head a kv head: many rows together */
    {8, 2, 16, 128, 0},      /* groups of four */
    {6, 2, 24, 128, 20},     /* groups of three, a window that begins in the middle of a page */
    {4, 2, 20, 128, 1},      /* a row sees itself alone */
    {4, 1, 16, 128, 16},     /* a window of one page */
    {24, 1, 16, 128, 0},     /* more heads in a group than queries go together */
    {4, 4, 16, 1 << 18, 33}, /* so long a context that few queries go together */
};

typedef struct rig {
    sy_model *model;
    sy_pool *pool;
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_kv_seq seq[SEQS];
    uint32_t n_done[SEQS];
    float *x; /* [SEQS][TOKENS][HIDDEN]: what came out of the last layer */
} rig;

static char dir[32];

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static void write_model(const shape *s)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = VOCAB,
                                    .hidden = HIDDEN,
                                    .n_layers = LAYERS,
                                    .n_heads = s->n_heads,
                                    .n_kv_heads = s->n_kv_heads,
                                    .head_dim = s->head_dim,
                                    .n_experts = 2,
                                    .top_k = 1,
                                    .expert_ffn = 16,
                                    .context = s->context,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_F32};
    sy_error err = {0};
    char command[160];

    strcpy(dir, "/tmp/sy-attention-XXXXXX");
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &config, &err), &err);
    if (s->sliding_window == 0) return;
    snprintf(command, sizeof(command), "sed -i '2i \"sliding_window\": %u,' %s/config.json",
             s->sliding_window, dir);
    assert_int_equal(system(command), 0);
}

static void remove_model(void)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void rig_open(rig *r, const sy_kernels *kernels, unsigned threads)
{
    sy_error err = {0};

    memset(r, 0, sizeof(*r));
    must(sy_pool_open(&r->pool, threads, "test"), &err);
    must(sy_model_open(&r->model, dir, NULL, &err), &err);
    must(sy_trunk_open(&r->trunk, r->model, kernels, (sy_precision){0}, r->pool, &err), &err);
    must(sy_trunk_ws_open(&r->ws, r->trunk, STEP_ROWS, r->pool, &err), &err);
    must(sy_kv_open(&r->kv, r->trunk, SEQS * (TOKENS / SY_KV_PAGE + 1), &err), &err);
    r->x = calloc((size_t)SEQS * TOKENS * HIDDEN, sizeof(float));
    assert_non_null(r->x);
}

static void rig_close(rig *r)
{
    for (size_t i = 0; i < SEQS; i++) sy_kv_release(r->kv, &r->seq[i]);
    sy_kv_close(r->kv);
    sy_trunk_ws_close(r->ws);
    sy_trunk_close(r->trunk);
    sy_model_close(r->model);
    sy_pool_free(r->pool);
    free(r->x);
}

/* One step of the next n[i] tokens of each sequence i. */
static void rig_step(rig *r, const uint32_t n[SEQS])
{
    uint32_t token[STEP_ROWS], position[STEP_ROWS], seq_id[STEP_ROWS];
    const sy_kv_seq *seq[STEP_ROWS];
    sy_batch batch = {0, token, position, seq};
    sy_error err = {0};
    const float *x;

    for (uint32_t i = 0; i < SEQS; i++) {
        assert_int_equal(sy_kv_reserve(r->kv, &r->seq[i], r->n_done[i] + n[i]), SY_OK);
        for (uint32_t j = 0; j < n[i]; j++, batch.n_rows++) {
            assert_true(batch.n_rows < STEP_ROWS && r->n_done[i] < TOKENS);
            position[batch.n_rows] = r->n_done[i]++;
            token[batch.n_rows] =
                (uint32_t)(sy_splitmix64(i * 1000 + position[batch.n_rows]) % VOCAB);
            seq[batch.n_rows] = &r->seq[i];
            seq_id[batch.n_rows] = i;
        }
    }
    must(sy_trunk_begin(r->trunk, r->ws, &batch, &err), &err);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        must(sy_trunk_attend(r->trunk, r->ws, r->kv, layer, &batch, &err), &err);
    must(sy_trunk_norm(r->trunk, r->ws, LAYERS - 1, batch.n_rows, &err), &err);
    must(sy_trunk_input(&x, r->trunk, r->ws, batch.n_rows, &err), &err);
    for (uint32_t t = 0; t < batch.n_rows; t++)
        memcpy(r->x + ((size_t)seq_id[t] * TOKENS + position[t]) * HIDDEN, x + (size_t)t * HIDDEN,
               HIDDEN * sizeof(float));
}

/* With so many threads, a row alone is spread over them head by head. */
static void run_one_query_at_a_time(rig *r, const sy_kernels *kernels)
{
    rig_open(r, kernels, 16);
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t n[SEQS] = {0};
        n[i] = 1;
        while (r->n_done[i] < TOKENS) rig_step(r, n);
    }
}

/* Prompts in pieces that begin and end anywhere, next to each other and to single tokens. */
static void run_mixed(rig *r, const sy_kernels *kernels, unsigned threads)
{
    static const uint32_t steps[][SEQS] = {{37, 0, 1},  {1, 50, 16}, {27, 1, 1}, {1, 15, 47},
                                           {48, 17, 1}, {1, 31, 2},  {0, 1, 47}};

    rig_open(r, kernels, threads);
    for (size_t i = 0; i < SY_COUNT_OF(steps); i++) rig_step(r, steps[i]);
    for (size_t i = 0; i < SEQS; i++) assert_int_equal(r->n_done[i], TOKENS);
}

static void check_rows(const rig *want, const rig *got, const shape *s, const char *kernels)
{
    for (size_t row = 0; row < (size_t)SEQS * TOKENS; row++) {
        for (size_t i = row * HIDDEN; i < (row + 1) * HIDDEN; i++) {
            if (memcmp(&want->x[i], &got->x[i], sizeof(float)) == 0) continue;
            fail_msg("%s, %u heads of %u over %u, window %u: sequence %zu, position %zu: %.9g, "
                     "alone %.9g",
                     kernels, s->n_heads, s->head_dim, s->n_kv_heads, s->sliding_window,
                     row / TOKENS, row % TOKENS, (double)got->x[i], (double)want->x[i]);
        }
    }
}

static void queries_together_give_the_bits_of_each_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(shapes); i++) {
        rig alone;

        write_model(&shapes[i]);
        run_one_query_at_a_time(&alone, sy_kernels_at(0));
        for (size_t k = ONLY_RACES ? sy_kernels_count() - 1 : 0; k < sy_kernels_count(); k++) {
            for (unsigned threads = ONLY_RACES ? 3 : 1; threads <= 3; threads += 2) {
                rig mixed;
                run_mixed(&mixed, sy_kernels_at(k), threads);
                check_rows(&alone, &mixed, &shapes[i], sy_kernels_at(k)->name);
                rig_close(&mixed);
            }
        }
        rig_close(&alone);
        remove_model();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_together_give_the_bits_of_each_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
