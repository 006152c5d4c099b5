/* encoded_fixture.h - experts that checkpoints have encoded, fp8 and mxfp4, and the bytes that a
 * shard of one holds. Include family_fixture.h first. */
#ifndef ENCODED_FIXTURE_H
#define ENCODED_FIXTURE_H

enum { LAYER = 1, EXPERT = 2 };

typedef struct encoded_case {
    family_case family;
    sy_dtype dtype;
} encoded_case;

/* More than one block of fp8 either way, and no whole number of them, nor of panels; mxfp4 has
 * whole blocks, and biases beside them. */
static const encoded_case cases[] = {
    {{"fp8",
      "deepseek_v3.json",
      {"\"hidden_size\": 64", "\"hidden_size\": 148", "\"moe_intermediate_size\": 32",
       "\"moe_intermediate_size\": 132", PLAIN_END, FP8_END}},
     SY_FP8},
    {{"mxfp4",
      "gpt_oss.json",
      {"\"intermediate_size\": 64", "\"intermediate_size\": 96", PLAIN_END, FP4_END}},
     SY_MXFP4},
};

/* Gate, up, down as the files have them encoded, then biases as f32; the caller frees. */
static inline uint8_t *encoded_bytes(const test_shards *t, const encoded_case *c, size_t *n)
{
    size_t n_plain, matrices = 0;
    uint8_t *plain = plain_bytes(t, LAYER, EXPERT, &n_plain);
    uint8_t *bytes = malloc(PLAIN_BYTES_MAX);

    assert_non_null(bytes);
    *n = 0;
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t->model, fixture_role[i], LAYER, EXPERT);
        sy_tensor_read_as(bytes + *n, tensor, c->dtype, 0, tensor->shape[0]);
        *n += tensor->shape[0] * sy_dtype_row_bytes(c->dtype, tensor->shape[1]);
        matrices += tensor->shape[0] * sy_tensor_row_bytes(tensor);
    }
    memcpy(bytes + *n, plain + matrices, n_plain - matrices);
    *n += n_plain - matrices;
    free(plain);
    return bytes;
}

#endif
