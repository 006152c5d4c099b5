/* family_fixture.h - small checkpoints of any family, whose experts are stored in any encoding that
 * files have, and their weights as plain rows: what a shard of them must hold. */
#ifndef FAMILY_FIXTURE_H
#define FAMILY_FIXTURE_H

#include "shard_fixture.h"

enum { CONFIG_BYTES_MAX = 8192, PLAIN_BYTES_MAX = 1 << 20 };

/* What turns a configuration into that of a quantised checkpoint. */
#define PLAIN_END "\"vocab_size\": 256"
#define FP8_END                                                                            \
    PLAIN_END ", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", " \
              "\"weight_block_size\": [128, 128]}"
#define FP4_END PLAIN_END ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}"

/* A configuration of tests/golden/families, in which `edit` replaces text: pairs, NULL ends them.
 */
typedef struct family_case {
    const char *name;
    const char *config;
    const char *edit[7];
} family_case;

static inline void family_replace(char *text, const char *from, const char *to)
{
    char *at = strstr(text, from);

    if (at == NULL) fail_msg("the configuration has no %s", from);
    assert_true(strlen(text) + strlen(to) < CONFIG_BYTES_MAX);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

/* Ended with shards_close. */
static inline void family_open(test_shards *t, const family_case *c)
{
    const sy_synth_options options = {.dtype = SY_BF16};
    char config[CONFIG_BYTES_MAX], path[512];
    sy_error err = {0};
    char *text;
    size_t n;

    snprintf(path, sizeof(path), "%s/tests/golden/families/%s", SY_SOURCE_DIR, c->config);
    must(sy_file_read(&text, &n, path, sizeof(config) - 1, &err), &err);
    memcpy(config, text, n);
    config[n] = '\0';
    free(text);
    for (size_t i = 0; c->edit[i] != NULL; i += 2)
        family_replace(config, c->edit[i], c->edit[i + 1]);
    strcpy(t->dir, "/tmp/sy-shard-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    must(sy_synth_write_config(t->dir, config, strlen(config), &options, &err), &err);
    must(sy_model_open(&t->model, t->dir, NULL, &err), &err);
}

static const sy_role family_bias_role[3] = {SY_ROLE_EXPERT_GATE_BIAS, SY_ROLE_EXPERT_UP_BIAS,
                                            SY_ROLE_EXPERT_DOWN_BIAS};

/* Gate, up, down as plain rows, then their biases as f32: what the checkpoint's form means. The
 * caller frees. */
static inline uint8_t *plain_bytes(const test_shards *t, uint32_t layer, uint32_t expert, size_t *n)
{
    uint8_t *bytes = malloc(PLAIN_BYTES_MAX);

    assert_non_null(bytes);
    *n = 0;
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t->model, fixture_role[i], layer, expert);
        sy_tensor_read(bytes + *n, tensor, 0, tensor->shape[0]);
        *n += tensor->shape[0] * sy_tensor_row_bytes(tensor);
    }
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t->model, family_bias_role[i], layer, expert);
        float raw[1024], wide[1024];
        if (tensor == NULL) break;
        assert_true(tensor->shape[0] <= 1024);
        sy_tensor_read(raw, tensor, 0, tensor->shape[0]);
        sy_dtype_widen(wide, raw, tensor->dtype, tensor->shape[0]);
        memcpy(bytes + *n, wide, tensor->shape[0] * sizeof(float));
        *n += tensor->shape[0] * sizeof(float);
    }
    return bytes;
}

#endif
