/* test_trunk_encoded.c - a trunk whose matrices are held as the checkpoint has them encoded: the
 * logits of the same weights as fp32, in less memory, and the same bits whoever computes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "bent_factors.h"
#include "sy_trunk.h"
#include "synth_model.h"

enum { ROWS = 19, VOCAB = 256, TENSORS_MAX = 256, F8_BLOCK = 128 };

static const sy_precision as_stored, fp8 = {SY_FP8, SY_ACT_F32}, mxfp4 = {SY_MXFP4, SY_ACT_F32};

static void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static void make_dir(char dir[32])
{
    strcpy(dir, "/tmp/sy-trunk-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void remove_dir(const char *dir)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* Logits [ROWS,VOCAB] of a sequence that goes through everything but the experts, `chunk` rows a
 * step; the caller frees. bytes: what the trunk takes. */
static float *logits_of(const char *dir, sy_precision precision, const sy_kernels *kernels,
                        unsigned threads, uint32_t chunk, uint64_t *bytes)
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
        for (uint32_t layer = 0; layer < sy_model_describe(model)->n_layers; layer++) {
            must(sy_trunk_attend(trunk, ws, kv, layer, &batch, &err), &err);
            must(sy_trunk_norm(trunk, ws, layer, n, &err), &err);
            must(sy_trunk_mlp(trunk, ws, layer, n, &err), &err);
        }
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

/* ---- the same weights without an encoding ---- */

typedef struct kept {
    const sy_safetensors *file;
    sy_st_entry entry[TENSORS_MAX];
    const sy_tensor *tensor[TENSORS_MAX];
    size_t n;
} kept;

static int is_f8(const sy_tensor *t)
{
    return strcmp(t->dtype_name, "F8_E4M3") == 0;
}

/* Codes times the factors of their blocks, from the file's tensors themselves. */
static sy_status emit_decoded(const kept *k, const sy_tensor *t, sy_dtype dtype, sy_st_emit emit,
                              void *sink)
{
    const size_t columns = t->shape[1], blocks = (columns + F8_BLOCK - 1) / F8_BLOCK;
    const sy_tensor *factors;
    char name[SY_TENSOR_NAME_MAX];

    snprintf(name, sizeof(name), "%s_scale_inv", t->name);
    factors = sy_safetensors_find(k->file, name);
    assert_non_null(factors);
    for (size_t i = 0; i < t->n_elements; i++) {
        const size_t block = i / columns / F8_BLOCK * blocks + i % columns / F8_BLOCK;
        float factor, v;
        uint16_t half;

        memcpy(&factor, factors->data + block * sizeof(factor), sizeof(factor));
        v = factor * sy_f8_e4m3_to_f32(t->data[i]);
        half = sy_f32_to_bf16(v);
        const sy_status st =
            dtype == SY_F32 ? emit(sink, &v, sizeof(v)) : emit(sink, &half, sizeof(half));
        if (st != SY_OK) return st;
    }
    return SY_OK;
}

static sy_status fill_tensor(void *arg, size_t entry, sy_st_emit emit, void *sink)
{
    const kept *k = arg;
    const sy_tensor *t = k->tensor[entry];

    if (is_f8(t)) return emit_decoded(k, t, k->entry[entry].dtype, emit, sink);
    return emit(sink, t->data, t->bytes);
}

/* As fp32; but what latent attention keeps turned, as the bf16 that it reads as. */
static void write_decoded(const char *to, const char *from)
{
    static kept k;
    sy_safetensors *file;
    sy_error err = {0};
    char path[64], command[128];

    snprintf(command, sizeof(command), "cp %s/*.json %s", from, to);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", from);
    must(sy_safetensors_open(&file, path, &err), &err);
    k = (kept){.file = file};
    for (size_t i = 0; i < sy_safetensors_count(file); i++) {
        const sy_tensor *t = sy_safetensors_at(file, i);
        const int is_turned = strstr(t->name, ".kv_b_proj.") != NULL;
        sy_st_entry *entry = &k.entry[k.n];

        if (strstr(t->name, "_scale_inv") != NULL) continue;
        assert_true(k.n < TENSORS_MAX);
        *entry = (sy_st_entry){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        if (is_f8(t)) entry->dtype = is_turned ? SY_BF16 : SY_F32;
        memcpy(entry->shape, t->shape, sizeof(t->shape));
        k.tensor[k.n++] = t;
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", to);
    must(sy_safetensors_write(path, k.entry, k.n, fill_tensor, &k, &err), &err);
    sy_safetensors_close(file);
}

static double distance(const float *got, const float *want)
{
    double most = 0, worst = 0;

    for (size_t i = 0; i < ROWS * VOCAB; i++) {
        most = fmax(most, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    }
    return worst / most;
}

/* ---- tests ---- */

static void fp8_matrices_give_the_logits_of_their_numbers_in_less_memory(void **state)
{
    char encoded[32], decoded[32];
    uint64_t bytes, bf16_bytes, f32_bytes;

    (void)state;
    make_dir(encoded);
    make_dir(decoded);
    write_family(encoded, "deepseek_v3_fp8", SY_DTYPE_NONE);
    bend_factors(encoded);
    write_decoded(decoded, encoded);
    float *want = logits_of(decoded, as_stored, sy_kernels_best(), 2, ROWS, &f32_bytes);
    float *got = logits_of(encoded, fp8, sy_kernels_best(), 2, ROWS, &bytes);
    float *rounded = logits_of(encoded, as_stored, sy_kernels_best(), 2, ROWS, &bf16_bytes);

    if (!(distance(got, want) <= 1e-5)) fail_msg("fp8: off by %g", distance(got, want));
    if (!(distance(rounded, want) >= 1e-4)) /* or this test tells nothing */
        fail_msg("bf16: off by no more than %g", distance(rounded, want));
    if (!(bytes < bf16_bytes && bf16_bytes < f32_bytes))
        fail_msg("%llu bytes, as bf16 %llu, as f32 %llu", (unsigned long long)bytes,
                 (unsigned long long)bf16_bytes, (unsigned long long)f32_bytes);
    free(want);
    free(got);
    free(rounded);
    remove_dir(encoded);
    remove_dir(decoded);
}

static void neither_threads_nor_chunks_nor_instruction_sets_change_a_bit(void **state)
{
    static const uint32_t chunks[] = {ROWS, 1, 5};
    char dir[32];
    uint64_t bytes;

    (void)state;
    make_dir(dir);
    write_family(dir, "deepseek_v3_fp8", SY_DTYPE_NONE);
    bend_factors(dir);
    float *want = logits_of(dir, fp8, sy_kernels_at(0), 1, ROWS, &bytes);
    for (size_t k = 0; k < sy_kernels_count(); k++) {
        for (size_t c = 0; c < SY_COUNT_OF(chunks); c++) {
            float *got = logits_of(dir, fp8, sy_kernels_at(k), 1 + (unsigned)c, chunks[c], &bytes);
            assert_memory_equal(got, want, ROWS * VOCAB * sizeof(float));
            free(got);
        }
    }
    free(want);
    remove_dir(dir);
}

/* The attention of gpt-oss is plain in any case; nothing of Mixtral is encoded. */
static void what_is_not_encoded_so_is_held_as_it_reads(void **state)
{
    static const char *const families[] = {"gpt_oss_mxfp4", "deepseek_v3_fp8", "mixtral"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++) {
        char dir[32];
        uint64_t bytes, plain_bytes;

        make_dir(dir);
        write_family(dir, families[i], SY_DTYPE_NONE);
        float *want = logits_of(dir, as_stored, sy_kernels_best(), 2, ROWS, &plain_bytes);
        float *got = logits_of(dir, mxfp4, sy_kernels_best(), 2, ROWS, &bytes);
        assert_memory_equal(got, want, ROWS * VOCAB * sizeof(float));
        assert_int_equal(bytes, plain_bytes);
        free(got);
        free(want);
        remove_dir(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_matrices_give_the_logits_of_their_numbers_in_less_memory),
        cmocka_unit_test(neither_threads_nor_chunks_nor_instruction_sets_change_a_bit),
        cmocka_unit_test(what_is_not_encoded_so_is_held_as_it_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
