/* test_trunk_rounded.c - a trunk whose matrices are rounded as they are loaded: close to the stored
 * one, and the same bits whoever computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "effort.h"
#include "sy_hash.h"
#include "sy_safetensors.h"
#include "sy_synth.h"
#include "sy_trunk.h"

enum { ROWS = 21, HIDDEN = 196, VOCAB = 391, LAYERS = 2 };

static char dir[32];

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

typedef struct kept {
    sy_st_entry entry[64];
    const sy_tensor *tensor[64];
    size_t n;
} kept;

static sy_status copy_tensor(void *arg, size_t entry, sy_st_emit emit, void *sink)
{
    const kept *k = arg;

    return emit(sink, k->tensor[entry]->data, k->tensor[entry]->bytes);
}

/* The same model without a head of its own: its embedding is the head. */
static void tie_head(void)
{
    kept k = {.n = 0};
    sy_safetensors *file;
    sy_error err = {0};
    char path[64], tied_path[64], command[128];

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    snprintf(tied_path, sizeof(tied_path), "%s/tied", dir);
    must(sy_safetensors_open(&file, path, &err), &err);
    for (size_t i = 0; i < sy_safetensors_count(file); i++) {
        const sy_tensor *t = sy_safetensors_at(file, i);
        if (strcmp(t->name, "lm_head.weight") == 0) continue;
        assert_true(k.n < SY_COUNT_OF(k.entry));
        k.tensor[k.n] = t;
        k.entry[k.n] = (sy_st_entry){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(k.entry[k.n++].shape, t->shape, sizeof(t->shape));
    }
    must(sy_safetensors_write(tied_path, k.entry, k.n, copy_tensor, &k, &err), &err);
    sy_safetensors_close(file);
    assert_int_equal(rename(tied_path, path), 0);
    snprintf(command, sizeof(command),
             "sed -i 's/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/' "
             "%s/config.json",
             dir);
    assert_int_equal(system(command), 0);
}

/* No dimension is a multiple of a block; the head is tied or not. */
static void write_model(int tied)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = VOCAB,
                                    .hidden = HIDDEN,
                                    .n_layers = LAYERS,
                                    .n_heads = 5,
                                    .n_kv_heads = 1,
                                    .head_dim = 38,
                                    .n_experts = 2,
                                    .top_k = 1,
                                    .expert_ffn = 40,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = SY_BF16};
    sy_error err = {0};

    strcpy(dir, "/tmp/sy-trunk-XXXXXX");
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &config, &err), &err);
    if (tied) tie_head();
}

static void remove_model(void)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* Logits [ROWS,VOCAB] of a sequence that goes through attention alone, `chunk` rows a step; the
 * caller frees. bytes: what the trunk takes. */
static float *logits_of(sy_precision precision, const sy_kernels *kernels, unsigned threads,
                        uint32_t chunk, uint64_t *bytes)
{
    float *logits = malloc(ROWS * VOCAB * sizeof(float));
    uint32_t token[ROWS], position[ROWS];
    sy_trunk_row row[ROWS];
    const sy_kv_seq *seqs[ROWS];
    sy_kv_seq seq = {0};
    sy_model *model;
    sy_pool *pool;
    sy_trunk *trunk;
    sy_trunk_ws *ws;
    sy_kv *kv;
    sy_error err = {0};

    must(sy_pool_open(&pool, threads, "test"), &err);
    must(sy_model_open(&model, dir, NULL, &err), &err);
    must(sy_trunk_open(&trunk, model, kernels, precision, pool, &err), &err);
    must(sy_trunk_ws_open(&ws, trunk, ROWS, pool, &err), &err);
    must(sy_kv_open(&kv, trunk, 4, &err), &err);
    assert_int_equal(sy_kv_reserve(kv, &seq, ROWS), SY_OK);
    *bytes = sy_trunk_bytes(trunk);
    for (uint32_t t = 0; t < ROWS; t++) {
        token[t] = (uint32_t)(sy_splitmix64(t) % VOCAB);
        position[t] = t;
        row[t] = (sy_trunk_row){ws, t};
        seqs[t] = &seq;
    }
    for (uint32_t at = 0; at < ROWS; at += chunk) {
        const uint32_t n = SY_MIN(chunk, ROWS - at);
        const sy_batch batch = {n, token + at, position + at, seqs + at};

        must(sy_trunk_begin(trunk, ws, &batch, &err), &err);
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            must(sy_trunk_attend(trunk, ws, kv, layer, &batch, &err), &err);
        must(sy_trunk_head(trunk, logits + (size_t)at * VOCAB, row, n, &err), &err);
    }
    sy_kv_release(kv, &seq);
    sy_kv_close(kv);
    sy_trunk_ws_close(ws);
    sy_trunk_close(trunk);
    sy_model_close(model);
    sy_pool_free(pool);
    return logits;
}

static double cosine(const float *a, const float *b, size_t n)
{
    double dot = 0, a2 = 0, b2 = 0;

    for (size_t i = 0; i < n; i++) {
        dot += (double)a[i] * (double)b[i];
        a2 += (double)a[i] * (double)a[i];
        b2 += (double)b[i] * (double)b[i];
    }
    return dot / sqrt(a2 * b2);
}

static const struct {
    sy_precision precision;
    double cosine_min;
} cases[] = {
    {{SY_Q8, SY_ACT_F32}, 0.9995}, {{SY_Q8, SY_ACT_Q8}, 0.999},      {{SY_Q4, SY_ACT_F32}, 0.97},
    {{SY_Q4, SY_ACT_Q8}, 0.97},    {{SY_BF16, SY_ACT_BF16}, 0.9995},
};

static void rounded_logits_are_close_to_the_stored_ones(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        uint64_t bytes, before;

        write_model(tied);
        float *want = logits_of((sy_precision){0}, sy_kernels_best(), 2, ROWS, &before);
        for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
            float *got = logits_of(cases[i].precision, sy_kernels_best(), 2, ROWS, &bytes);
            const double c = cosine(got, want, ROWS * VOCAB);

            if (!(c >= cases[i].cosine_min) || c > 0.99999999)
                fail_msg("weights %s, activations %d, tied %d: cosine %f",
                         sy_dtype_name(cases[i].precision.weights),
                         (int)cases[i].precision.activations, tied, c);
            if (sy_dtype_is_quant(cases[i].precision.weights) ? !(bytes < before) : bytes != before)
                fail_msg("%llu bytes, as stored %llu", (unsigned long long)bytes,
                         (unsigned long long)before);
            free(got);
        }
        free(want);
        remove_model();
    }
}

static void neither_threads_nor_chunks_nor_instruction_sets_change_a_bit(void **state)
{
    static const uint32_t chunks[] = {ROWS, 1, 5};
    uint64_t bytes;

    (void)state;
    write_model(0);
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        float *want = logits_of(cases[i].precision, sy_kernels_at(0), 1, ROWS, &bytes);
        for (size_t k = ONLY_RACES ? sy_kernels_count() - 1 : 0; k < sy_kernels_count(); k++) {
            for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
                float *got = logits_of(cases[i].precision, sy_kernels_at(k), 1 + (unsigned)c,
                                       chunks[c], &bytes);
                assert_memory_equal(got, want, ROWS * VOCAB * sizeof(float));
                free(got);
            }
        }
        free(want);
    }
    remove_model();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounded_logits_are_close_to_the_stored_ones),
        cmocka_unit_test(neither_threads_nor_chunks_nor_instruction_sets_change_a_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
