/* test_shard_encoded_gguf.c - the mxfp4 blocks of GGUF files, held as they are: the shards of the
 * checkpoint that the file was made of, also beside matrices that are stored otherwise. */
#include "gguf_family.h"

#include "sy_digest.h"
#include "sy_shard.h"

enum { LAYER = 1, EXPERT = 2, BYTES_MAX = 1 << 16 };

static const sy_precision as_encoded = {SY_MXFP4, SY_ACT_F32};
static const sy_role matrix_role[3] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP, SY_ROLE_EXPERT_DOWN};
static const sy_role bias_role[3] = {SY_ROLE_EXPERT_GATE_BIAS, SY_ROLE_EXPERT_UP_BIAS,
                                     SY_ROLE_EXPERT_DOWN_BIAS};
static char scratch[4096];

static int setup(void **state)
{
    (void)state;
    temp_dir_make(scratch);
    write_family(in_dir(scratch, "checkpoint"), "gpt_oss_mxfp4", SY_DTYPE_NONE);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    temp_dir_remove(scratch);
    return 0;
}

static sy_model *open_model(const char *path)
{
    sy_model *model;
    sy_error err = {0};

    expect_ok(sy_model_open(&model, path, NULL, &err), &err);
    return model;
}

static sy_model *open_made_model(const made_gguf *m)
{
    const char *path = in_dir(scratch, "model.gguf");

    write_made(m, path);
    return open_model(path);
}

static sy_shard_identity identity_of(const sy_model *model, const sy_kernels *kernels)
{
    sy_shard_identity identity;
    sy_error err = {0};

    expect_ok(sy_shard_identify(&identity, model, as_encoded, LAYER, EXPERT, kernels, &err), &err);
    return identity;
}

/* ggml's e2m1 has no -0. */
static void drop_signs_of_zeros(uint8_t *row, size_t n_codes)
{
    for (size_t i = 0; i < n_codes / 2; i++) {
        if ((row[i] & 0x0f) == 0x08) row[i] &= 0xf0;
        if ((row[i] & 0xf0) == 0x80) row[i] &= 0x0f;
    }
}

/* The shard's rows, then its biases, as a store of encoded weights has them. */
static size_t held_bytes(uint8_t *out, const sy_model *model, int is_of_ggml)
{
    sy_shard_form form;
    size_t at = 0;

    sy_shard_form_of(&form, model, SY_MXFP4, LAYER, EXPERT);
    assert_int_equal(form.n, 6);
    assert_true(sy_shard_form_bytes(&form) <= BYTES_MAX);
    for (uint32_t i = 0; i < 3; i++) {
        const sy_tensor *t = sy_model_tensor(model, matrix_role[i], LAYER, EXPERT);
        const size_t row_bytes = sy_dtype_row_bytes(form.dtype[i], form.cols[i]);

        for (uint32_t r = 0; r < form.rows[i]; r++, at += row_bytes) {
            sy_tensor_read_as(out + at, t, form.dtype[i], r, 1);
            if (is_of_ggml) drop_signs_of_zeros(out + at, form.cols[i]);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        const sy_tensor *t = sy_model_tensor(model, bias_role[i], LAYER, EXPERT);
        float raw[256];

        sy_tensor_read(raw, t, 0, t->shape[0]);
        sy_dtype_widen((float *)(void *)(out + at), raw, t->dtype, t->shape[0]);
        at += t->shape[0] * sizeof(float);
    }
    assert_int_equal(at, sy_shard_form_bytes(&form));
    return at;
}

static void blocks_of_a_file_are_the_shard_of_the_checkpoint_that_it_was_made_of(void **state)
{
    _Alignas(float) static uint8_t bytes[BYTES_MAX];
    sy_model *checkpoint = open_model(in_dir(scratch, "checkpoint"));
    made_gguf m;

    (void)state;
    make_family_gguf(&m, "gpt_oss_mxfp4", in_dir(scratch, "checkpoint"));
    sy_model *model = open_made_model(&m);
    const sy_shard_identity want = identity_of(checkpoint, sy_kernels_best());
    const sy_shard_identity got = identity_of(model, sy_kernels_best());
    const size_t n = held_bytes(bytes, checkpoint, 1);

    if (got.probe != want.probe || got.content != sy_digest(bytes, n))
        fail_msg("content %016llx probe %016llx, expected %016llx and %016llx",
                 (unsigned long long)got.content, (unsigned long long)got.probe,
                 (unsigned long long)sy_digest(bytes, n), (unsigned long long)want.probe);
    sy_model_close(model);
    sy_model_close(checkpoint);
    made_free(&m);
}

/* As quantisers leave it: one matrix of the three in blocks of another kind. */
static void matrices_that_are_stored_otherwise_stay_so(void **state)
{
    _Alignas(float) static uint8_t want[BYTES_MAX], got[BYTES_MAX];
    enum { HIDDEN = 64, FFN = 64, EXPERTS = 8, BLOCK = 34 };
    static uint8_t blocks[EXPERTS * HIDDEN * FFN / 32 * BLOCK];
    sy_shard_store *store;
    sy_shard_form form;
    sy_error err = {0};
    made_gguf m;

    (void)state;
    make_family_gguf(&m, "gpt_oss_mxfp4", in_dir(scratch, "checkpoint"));
    made_replace(&m, "blk.1.ffn_down_exps.weight", SY_GGUF_Q8_0, 3,
                 (uint64_t[]){EXPERTS, HIDDEN, FFN});
    for (size_t i = 0; i < sizeof(blocks); i++) {
        blocks[i] = (uint8_t)(i * 37 % 251);
        if (i % BLOCK == 1) blocks[i] = 0x20; /* a scale of about 2^-7 */
    }
    memcpy(made_data(&m, made_find(&m, "blk.1.ffn_down_exps.weight")), blocks, sizeof(blocks));
    sy_model *model = open_made_model(&m);
    sy_shard_form_of(&form, model, SY_MXFP4, LAYER, EXPERT);
    assert_int_equal(form.dtype[0], SY_MXFP4);
    assert_int_equal(form.dtype[1], SY_MXFP4);
    assert_int_equal(form.dtype[2], SY_Q8);
    const size_t n = held_bytes(want, model, 0);
    const sy_shard_identity one = identity_of(model, sy_kernels_at(0));
    assert_int_equal(one.content, sy_digest(want, n));
    for (size_t k = 1; k < sy_kernels_count(); k++)
        assert_int_equal(identity_of(model, sy_kernels_at(k)).probe, one.probe);

    expect_ok(sy_shard_store_open(&store, model, as_encoded, 0, &err), &err);
    expect_ok(sy_shard_load(store, LAYER, EXPERT, &err), &err);
    const sy_shard *shard = sy_shard_get(store, LAYER, EXPERT);
    assert_int_equal(sy_shard_export(shard, 0, got, sizeof(got)), n);
    assert_memory_equal(got, want, n);
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_model_close(model);
    made_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_a_file_are_the_shard_of_the_checkpoint_that_it_was_made_of),
        cmocka_unit_test(matrices_that_are_stored_otherwise_stay_so),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
