/* home_fixture.h - emulated GPUs for the tests of this folder. */
#ifndef HOME_FIXTURE_H
#define HOME_FIXTURE_H

#include "../family_fixture.h"
#include "emulated_gpus.h"
#include "sy_shard_home.h"

enum { LANES = 2 };

static inline sy_shard_home_config home_config(const test_shards *t, uint32_t number,
                                               sy_dtype weights)
{
    static char name[N_DEVICES][16];

    snprintf(name[number], sizeof(name[number]), "cuda:%u", number);
    return (sy_shard_home_config){.backend = backend,
                                  .number = number,
                                  .name = name[number],
                                  .model = t->model,
                                  .weights = weights,
                                  .lanes = LANES};
}

static inline sy_shard_home *home_open_as(const test_shards *t, uint32_t number, sy_dtype weights)
{
    const sy_shard_home_config config = home_config(t, number, weights);
    sy_shard_home *home;
    sy_error err = {0};

    must(sy_shard_home_open(&home, &config, &err), &err);
    return home;
}

static inline sy_shard_home *home_open(const test_shards *t, uint32_t number)
{
    return home_open_as(t, number, SY_DTYPE_NONE);
}

static inline sy_shard_builder *begin_on(sy_shard_store *store, sy_shard_home *home, uint32_t layer,
                                         uint32_t expert)
{
    sy_shard_builder *builder;
    sy_error err = {0};

    must(sy_shard_begin_on(&builder, store, home, layer, expert, NULL, &err), &err);
    return builder;
}

/* From the checkpoint to a home, or with home NULL to host memory: published, with a reference. */
static inline const sy_shard *load_on(sy_shard_store *store, sy_shard_home *home, uint32_t layer,
                                      uint32_t expert)
{
    sy_shard_builder *builder = begin_on(store, home, layer, expert);
    sy_error err = {0};
    int done = 0;

    while (!done) must(sy_shard_add_from_checkpoint(builder, 3001, &done, &err), &err);
    (void)build_verify(builder, sy_kernels_best());
    sy_shard_publish(builder);
    return sy_shard_get(store, layer, expert);
}

/* As a peer sends it: its form, then its bytes in chunks. */
static inline void fetch(sy_shard_store *to, sy_shard_home *home, const sy_shard *from,
                         size_t chunk)
{
    uint8_t *bytes = malloc(chunk);
    sy_shard_builder *builder;
    sy_shard_form form;
    sy_error err = {0};
    size_t n;

    assert_non_null(bytes);
    sy_shard_form_in_memory(&form, from);
    must(sy_shard_begin_on(&builder, to, home, from->layer, from->expert, &form, &err), &err);
    while ((n = sy_shard_export(from, sy_shard_added(builder), bytes, chunk)) > 0)
        must(sy_shard_add(builder, bytes, n, &err), &err);
    (void)build_verify(builder, sy_kernels_best());
    sy_shard_publish(builder);
    free(bytes);
}

/* From the copy that the store has elsewhere. */
static inline sy_status copy_to(sy_shard_store *store, sy_shard_home *home, uint32_t layer,
                                uint32_t expert, size_t step, sy_error *err)
{
    sy_shard_builder *builder;
    sy_shard_identity identity;
    uint64_t before = 0;
    int done = 0;
    sy_status st = sy_shard_begin_on(&builder, store, home, layer, expert, NULL, err);

    if (st != SY_OK) return st;
    while (st == SY_OK && !done) {
        st = sy_shard_add_from_copy(builder, step, &done, err);
        assert_true(st != SY_OK || sy_shard_added(builder) >= before);
        before = sy_shard_added(builder);
    }
    if (st == SY_OK) st = sy_shard_verify(builder, &identity, sy_kernels_best(), err);
    if (st == SY_OK)
        sy_shard_publish(builder);
    else
        sy_shard_abandon(builder);
    return st;
}

/* All bytes of a shard, in steps of `most`; the caller frees. */
static inline uint8_t *exported(const sy_shard *shard, size_t most, size_t *n)
{
    sy_shard_form form;
    size_t got, at = 0;

    sy_shard_form_in_memory(&form, shard);
    *n = (size_t)sy_shard_form_bytes(&form);
    uint8_t *bytes = malloc(*n + 1);
    assert_non_null(bytes);
    while ((got = sy_shard_export(shard, at, bytes + at, SY_MIN(most, *n + 1 - at))) > 0) at += got;
    assert_int_equal(at, *n);
    return bytes;
}

static inline void expect_same_bytes(const sy_shard *got, const sy_shard *want)
{
    size_t n, n_want;
    uint8_t *a = exported(got, 5000, &n), *b = exported(want, SIZE_MAX, &n_want);

    assert_int_equal(n, n_want);
    assert_memory_equal(a, b, n);
    assert_int_equal(got->identity.content, sy_digest(a, n));
    assert_int_equal(got->identity.content, want->identity.content);
    free(a);
    free(b);
}

static inline uint64_t slot_bytes(const sy_shard_home *home)
{
    return sy_shard_home_bytes_max(home) / sy_shard_home_slots(home);
}

static inline void expect_slots(const sy_shard_home *home, uint32_t n)
{
    assert_int_equal(sy_shard_home_bytes(home), n * slot_bytes(home));
}

#endif
