/* test_fetch_biases.c - experts with biases (gpt-oss) that travel from node to node: whole, and how
 * a peer that lies about the biases is found out. */
#include "fetch_fixture.h"
#include "sy_file.h"

enum { BIASES_BYTES = 3 * 64 * 4 }; /* of 64 hidden, 64 in between: the end of the shard */

static int set_up(void **state)
{
    const char *const config = SY_SOURCE_DIR "/tests/golden/families/gpt_oss.json";
    const sy_synth_options options = {.dtype = SY_BF16};
    sy_error err = {0};
    char *text;
    size_t n;

    (void)state;
    assert_non_null(mkdtemp(model_dir));
    must(sy_file_read(&text, &n, config, 1 << 16, &err), &err);
    must(sy_synth_write_config(model_dir, text, n, &options, &err), &err);
    free(text);
    must(sy_model_open(&model, model_dir, "small", &err), &err);
    must(
        sy_shard_identify(&truth, model, (sy_precision){0}, LAYER, EXPERT, sy_kernels_best(), &err),
        &err);
    total_bytes = 3 * 64 * 64 * 2 + BIASES_BYTES;
    stored = malloc(total_bytes);
    assert_non_null(stored);
    sy_shard_store *store;
    must(sy_shard_store_open(&store, model, (sy_precision){0}, 0, &err), &err);
    must(sy_shard_load(store, LAYER, EXPERT, &err), &err);
    const sy_shard *shard = sy_shard_get(store, LAYER, EXPERT);
    assert_int_equal(sy_shard_export(shard, 0, stored, total_bytes), total_bytes);
    assert_int_equal(sy_shard_export(shard, total_bytes, stored, 1), 0);
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    return 0;
}

static void a_fetched_shard_has_its_biases(void **state)
{
    node *a = node_real((expert_fetch_server_config){0});
    taker *t = taker_open((expert_fetcher_config){0}, 0);
    sy_error err = {0};

    (void)state;
    (void)take_from(t, &a, 1);
    expect_the_shard(t);
    const sy_shard *got = sy_shard_get(t->store, LAYER, EXPERT);
    const sy_shard *given = sy_shard_get(a->store, LAYER, EXPERT);
    assert_memory_equal(got->gate_bias, given->gate_bias, 64 * sizeof(float));
    assert_memory_equal(got->up_bias, given->up_bias, 64 * sizeof(float));
    assert_memory_equal(got->down_bias, given->down_bias, 64 * sizeof(float));
    sy_shard_put(t->store, got);
    sy_shard_put(a->store, given);
    must(sy_shard_load(t->store, LAYER, EXPERT + 1, &err), &err);
    taker_close(t);
    node_close(a);
}

/* ---- lies ---- */

/* What changes in the only chunk, and in its copy of the bytes. */
typedef void lie_fn(sy_shard_chunk *c, uint8_t *bytes);
static _Atomic(lie_fn *) lie;

static void one_chunk_that_lies(node *n, sy_call *call, const sy_fetch_request *request)
{
    sy_shard_chunk c = chunk_at(request->offset);
    uint8_t *bytes = malloc(total_bytes);

    (void)n;
    assert_non_null(bytes);
    memcpy(bytes, stored, total_bytes);
    c.data = bytes + request->offset;
    atomic_load (&lie)(&c, bytes);
    c.chunk_hash = sy_digest(c.data, c.n_bytes);
    say(call, &c);
    sy_call_finish(call, NULL);
    free(bytes);
}

static void no_biases(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)bytes;
    c->n_tensors = 3;
    c->total_bytes = c->n_bytes = total_bytes - BIASES_BYTES;
}
static void four_tensors(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)bytes;
    c->n_tensors = 4;
    c->total_bytes = c->n_bytes = total_bytes - 2 * 64 * 4;
}
static void halves(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)bytes;
    c->dtype[4] = SY_BF16;
    c->total_bytes = c->n_bytes = total_bytes - 64 * 2;
}
static void too_long(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)bytes;
    c->rows[5] = 1 << 20;
    c->total_bytes = total_bytes + ((1 << 20) - 64) * 4;
}
static void not_a_number(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)c;
    memset(bytes + total_bytes - 4, 0xff, 4);
}
static void another_bias(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)c;
    bytes[total_bytes - 64 * 4] ^= 1;
}
/* The matrices in one chunk, the biases in another, of a shard of other shapes. */
static void other_shapes_with_the_biases(sy_shard_chunk *c, uint8_t *bytes)
{
    (void)bytes;
    if (c->offset == 0) {
        c->n_bytes = total_bytes - BIASES_BYTES;
        return;
    }
    c->rows[0] = c->rows[3] = 32;
    c->rows[1] = c->rows[4] = 96;
}

static void a_lie_about_biases_is_named_and_the_shard_taken_from_another_node(void **state)
{
    static const struct {
        lie_fn *lie;
        sy_status status;
        const char *text;
    } lies[] = {
        {no_biases, SY_EINVAL, "expert-a: layer 1 expert 2: it comes without biases"},
        {four_tensors, SY_EINVAL, "expert-a: tensor: 4 elements, must be 3"},
        {halves, SY_EINVAL, "expert-a: tensor[4]: bf16 [64,1], must be a bias, f32 [64,1]"},
        {too_long, SY_EINVAL, "expert-a: tensor[5]: f32 [1048576,1], must be a bias"},
        {not_a_number, SY_EDATALOSS, "expert-a: layer 1 expert 2: a weight of down bias"},
        {another_bias, SY_EDATALOSS, "expert-a: announced content"},
        {other_shapes_with_the_biases, SY_EINVAL, "expert-a: the shard's form changed"},
    };
    node *a = node_played(one_chunk_that_lies);
    node *b = node_real((expert_fetch_server_config){0});
    node *nodes[] = {a, b};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(lies); i++) {
        taker *t = taker_open((expert_fetcher_config){0}, 0);

        atomic_store(&lie, lies[i].lie);
        (void)take_from(t, nodes, 1);
        expect_refusal(t, lies[i].status, lies[i].text);
        assert_string_equal(t->err.node, "expert-a");
        (void)take_from(t, nodes, 2);
        expect_the_shard(t);
        taker_close(t);
    }
    node_close(a);
    node_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fetched_shard_has_its_biases),
        cmocka_unit_test(a_lie_about_biases_is_named_and_the_shard_taken_from_another_node),
    };

    return cmocka_run_group_tests(tests, set_up, model_tear_down);
}
