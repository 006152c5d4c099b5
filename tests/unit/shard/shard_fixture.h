/* shard_fixture.h - a small synthetic model of this folder's tests, in a directory of its own, and
 * the stored bytes of its shards. Its dimensions are no multiples of a panel. */
#ifndef SHARD_FIXTURE_H
#define SHARD_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "sy_digest.h"
#include "sy_file.h"
#include "sy_hash.h"
#include "sy_shard.h"
#include "sy_synth.h"

enum { H = 36, F = 40, E = 6, L = 2 };

typedef struct test_shards {
    char dir[32];
    sy_model *model;
} test_shards;

static inline void must(sy_status st, const sy_error *err)
{
    if (st != SY_OK) fail_msg("%s: %s", sy_status_name(st), err->message);
}

static inline void expect_error(sy_status got, sy_status want, const sy_error *err,
                                const char *text)
{
    if (got != want || strstr(err->message, text) == NULL)
        fail_msg("%s: \"%s\", not %s with \"%s\"", sy_status_name(got), err->message,
                 sy_status_name(want), text);
}

static inline void shards_open(test_shards *t, sy_dtype dtype, uint32_t hidden, uint32_t ffn)
{
    const sy_synth_config config = {.family = "mixtral",
                                    .vocab = 300,
                                    .hidden = hidden,
                                    .n_layers = L,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 18,
                                    .n_experts = E,
                                    .top_k = 2,
                                    .expert_ffn = ffn,
                                    .context = 64,
                                    .rms_eps = 1e-5f,
                                    .rope_theta = 1e4f,
                                    .options.dtype = dtype};
    sy_error err = {0};

    strcpy(t->dir, "/tmp/sy-shard-XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    must(sy_synth_write(t->dir, &config, &err), &err);
    must(sy_model_open(&t->model, t->dir, NULL, &err), &err);
}

static inline void shards_close(test_shards *t)
{
    char command[64];

    sy_model_close(t->model);
    snprintf(command, sizeof(command), "rm -rf %s", t->dir);
    assert_int_equal(system(command), 0);
}

/* Writes n bytes over a tensor's, in the file under the map. */
static inline void overwrite(const test_shards *t, const sy_tensor *tensor, size_t at,
                             const void *bytes, size_t n)
{
    char path[64];
    char *file;
    size_t len;
    sy_error err = {0};

    snprintf(path, sizeof(path), "%s/model.safetensors", t->dir);
    must(sy_file_read(&file, &len, path, (size_t)1 << 28, &err), &err);
    const char *found = memmem(file, len, tensor->data, tensor->bytes);
    assert_non_null(found);
    const int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, bytes, n, found - file + (off_t)at), n);
    close(fd);
    free(file);
}

static const sy_precision as_stored = {0};

static inline sy_shard_store *store_open_as(const test_shards *t, sy_precision precision,
                                            uint64_t memory_max)
{
    sy_shard_store *store;
    sy_error err = {0};

    must(sy_shard_store_open(&store, t->model, precision, memory_max, &err), &err);
    return store;
}

static inline sy_shard_store *store_open(const test_shards *t, uint64_t memory_max)
{
    return store_open_as(t, as_stored, memory_max);
}

static const sy_role fixture_role[3] = {SY_ROLE_EXPERT_GATE, SY_ROLE_EXPERT_UP,
                                        SY_ROLE_EXPERT_DOWN};

/* Gate, up, down as the files have them; the caller frees. */
static inline uint8_t *stored_bytes(const test_shards *t, uint32_t layer, uint32_t expert,
                                    size_t *n)
{
    uint8_t *bytes;
    size_t at = 0;

    *n = 0;
    for (int i = 0; i < 3; i++)
        *n += sy_model_tensor(t->model, fixture_role[i], layer, expert)->bytes;
    bytes = malloc(*n);
    assert_non_null(bytes);
    for (int i = 0; i < 3; i++) {
        const sy_tensor *tensor = sy_model_tensor(t->model, fixture_role[i], layer, expert);
        memcpy(bytes + at, tensor->data, tensor->bytes);
        at += tensor->bytes;
    }
    return bytes;
}

static inline sy_shard_builder *build_begin(sy_shard_store *store, uint32_t layer, uint32_t expert)
{
    sy_shard_builder *builder;
    sy_error err = {0};

    must(sy_shard_begin(&builder, store, layer, expert, NULL, &err), &err);
    return builder;
}

static inline void build_add_all(sy_shard_builder *builder, const uint8_t *bytes, size_t n)
{
    sy_error err = {0};

    must(sy_shard_add(builder, bytes, n, &err), &err);
    assert_int_equal(sy_shard_added(builder), n);
}

static inline sy_shard_identity build_verify(sy_shard_builder *builder, const sy_kernels *kernels)
{
    sy_shard_identity identity;
    sy_error err = {0};

    must(sy_shard_verify(builder, &identity, kernels, &err), &err);
    return identity;
}

static inline void expect_same(sy_shard_identity got, sy_shard_identity want)
{
    if (got.content != want.content || got.probe != want.probe)
        fail_msg("content %016llx probe %016llx, expected %016llx and %016llx",
                 (unsigned long long)got.content, (unsigned long long)got.probe,
                 (unsigned long long)want.content, (unsigned long long)want.probe);
}

#endif
