/* test_gpu_fetch.c - shards that are copied out of the GPU memory of another process: what comes,
 * and that the bytes come instead whenever something is wrong with that, be it refused, out of
 * reach, damaged, or gone in the middle. */
#include "gpu_fetch_fixture.h"

typedef struct taker {
    sy_shard_store *store;
    sy_shard_home *home;
    expert_fetcher *fetcher;
    atomic_int stop;
    const other *to_kill, *to_replace; /* after the first step, if it is not the last */
    uint64_t n_steps;
    int stops; /* after the first step */
    expert_fetched fetched;
    sy_error err;
} taker;

/* A slot is of several steps. */
static taker *taker_open(void)
{
    taker *t = calloc(1, sizeof(*t));
    sy_error err = {0};

    assert_non_null(t);
    must(sy_shard_store_open(&t->store, model, (sy_precision){0}, 0, &err), &err);
    t->home = home_on(TAKER_GPU);
    const expert_fetcher_config config = {.model = model,
                                          .store = t->store,
                                          .kernels = sy_kernels_best(),
                                          .takes_slots = 1,
                                          .slot_step_bytes = 10000};
    must(expert_fetcher_open(&t->fetcher, &config, &err), &err);
    return t;
}

static void taker_close(taker *t)
{
    devices_told("");
    expert_fetcher_close(t->fetcher);
    sy_shard_store_close(t->store);
    sy_shard_home_close(t->home);
    free(t);
}

static void on_step(void *arg, uint64_t added, uint64_t total)
{
    taker *t = arg;

    assert_true(added <= total);
    if (t->n_steps++ > 0 || added == total) return;
    if (t->to_kill != NULL) other_kill(t->to_kill);
    if (t->to_replace != NULL) other_replace(t->to_replace);
    if (t->stops) atomic_store(&t->stop, 1);
}

static sy_status take(taker *t, uint32_t id, const char *const *address, size_t n)
{
    static const char *const name[] = {"expert-a", "expert-b"};
    expert_source source[2];
    sy_shard_builder *builder;

    for (size_t i = 0; i < n; i++) source[i] = (expert_source){name[i], address[i], 0};
    const expert_fetch_job job = {.expert = id,
                                  .home = t->home,
                                  .source = source,
                                  .n_sources = n,
                                  .stop = &t->stop,
                                  .progress = on_step,
                                  .progress_arg = t};
    const uint64_t before = slots_taken(t->home);

    t->n_steps = 0;
    const sy_status st = expert_fetch(t->fetcher, &builder, &t->fetched, &job, &t->err);
    if (st == SY_OK) sy_shard_publish(builder);
    assert_int_equal(slots_taken(t->home), before + (st == SY_OK));
    return st;
}

static sy_status take_from(taker *t, const other *o)
{
    const char *const address = o->address;

    return take(t, 0, &address, 1);
}

/* What lies on the taker's GPU are the checkpoint's weights, and it was said so. */
static void expect_the_shard(taker *t, uint32_t id, int is_slot)
{
    const sy_shard *shard = sy_shard_get(t->store, 0, id);
    sy_shard_identity truth;
    sy_shard_form form;
    sy_error err = {0};

    if (t->err.status != SY_OK) fail_msg("%s: %s", sy_status_name(t->err.status), t->err.message);
    assert_non_null(shard);
    must(sy_shard_identify(&truth, model, (sy_precision){0}, 0, id, sy_kernels_best(), &err), &err);
    sy_shard_form_in_memory(&form, shard);
    const size_t n = (size_t)sy_shard_form_bytes(&form);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    assert_int_equal(sy_shard_export(shard, 0, bytes, n), n);
    assert_true(sy_digest(bytes, n) == truth.content);
    assert_true(shard->identity.content == truth.content && shard->identity.probe != 0);
    assert_int_equal(t->fetched.is_slot, is_slot);
    assert_int_equal(t->fetched.bytes, n);
    must(sy_shard_home_reprobe(shard, &err), &err);
    free(bytes);
    sy_shard_put(t->store, shard);
}

/* More of them than a giver has fetches at once: each lets go of what it has taken. */
static void shards_come_from_gpu_to_gpu(void **state)
{
    const other o = other_start((other_options){0});
    taker *t = taker_open();
    const char *const address = o.address;

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (uint32_t id = 0; id < EXPERTS; id++) {
            (void)take(t, id, &address, 1);
            expect_the_shard(t, id, 1);
            assert_true(t->n_steps > 1);
        }
        for (uint32_t id = 0; id < EXPERTS; id++) sy_shard_unload(t->store, 0, id);
    }
    taker_close(t);
    other_end(&o);
}

/* ---- what is in the way, once each: then the same source is asked for the bytes ---- */

static void bytes_come_after(const char *told_to_giver, const char *fault,
                             const char *told_to_taker)
{
    const other o = other_start((other_options){.told = told_to_giver, .fault = fault});
    taker *t = taker_open();

    devices_told(told_to_taker);
    (void)take_from(t, &o);
    expect_the_shard(t, 0, 0);
    sy_shard_unload(t->store, 0, 0);
    (void)take_from(t, &o); /* it was in the way once */
    expect_the_shard(t, 0, 1);
    taker_close(t);
    other_end(&o);
}

static void bytes_come_where_memory_cannot_be_exported(void **state)
{
    (void)state;
    bytes_come_after("fail cudaIpcGetMemHandle 1 cudaErrorNotSupported\n", NULL, "");
}

static void bytes_come_where_memory_cannot_be_opened(void **state)
{
    (void)state;
    bytes_come_after(NULL, NULL, "fail cudaIpcOpenMemHandle 1 cudaErrorInvalidResourceHandle\n");
}

/* The first copy looks at what was opened. */
static void bytes_come_when_a_copy_fails(void **state)
{
    (void)state;
    bytes_come_after(NULL, NULL, "fail cudaMemcpyAsync 3 cudaErrorInvalidValue\n");
}

static void bytes_come_when_a_bit_flips_on_the_way(void **state)
{
    (void)state;
    bytes_come_after(NULL, NULL, "flip 1 copy\n");
}

static void bytes_come_when_the_slot_has_not_what_was_said(void **state)
{
    (void)state;
    bytes_come_after(NULL, "expert.offer:1", "");
}

/* ---- givers that do not keep a slot ---- */

/* Its time was over, and another shard came to where the copy was reading. */
static void a_slot_that_got_another_shard_in_the_middle_is_not_taken(void **state)
{
    const other o = other_start((other_options){.hold_us = "1"});
    taker *t = taker_open();

    (void)state;
    t->to_replace = &o;
    assert_int_equal(take_from(t, &o), SY_EPRECONDITION);
    assert_true(t->n_steps > 1);
    assert_string_equal(t->err.reason, "SHARD_NOT_RESIDENT");
    assert_int_equal(slots_taken(t->home), 0);
    taker_close(t);
    other_end(&o);
}

/* Either the memory was still there to the end, or it is taken from another. */
static void a_giver_that_dies_in_the_middle_costs_a_fetch_at_most(void **state)
{
    const other o = other_start((other_options){0}), spare = other_start((other_options){0});
    const char *const address[] = {o.address, spare.address};
    taker *t = taker_open();

    (void)state;
    t->to_kill = &o;
    (void)take(t, 0, address, 2);
    expect_the_shard(t, 0, 1);
    t->to_kill = NULL;
    (void)take(t, 1, address, 2);
    expect_the_shard(t, 1, 1);
    assert_int_equal(t->fetched.source, 1);
    taker_close(t);
    other_end(&spare);
}

static void a_stop_ends_a_copy_in_the_middle(void **state)
{
    const other o = other_start((other_options){0});
    taker *t = taker_open();

    (void)state;
    t->stops = 1;
    assert_int_equal(take_from(t, &o), SY_ECANCELLED);
    assert_int_equal(t->n_steps, 1);
    t->stops = 0;
    atomic_store(&t->stop, 0);
    (void)take_from(t, &o);
    expect_the_shard(t, 0, 1);
    taker_close(t);
    other_end(&o);
}

/* It is of no use to this process any more, and neither are the bytes. */
static void a_gpu_that_is_lost_ends_the_fetch(void **state)
{
    const other o = other_start((other_options){0});
    taker *t = taker_open();

    (void)state;
    devices_told("fail cudaMemcpyAsync 3 cudaErrorIllegalAddress\n");
    assert_int_equal(take_from(t, &o), SY_EUNAVAILABLE);
    assert_string_equal(t->err.reason, "DEVICE_LOST");
    taker_close(t);
    other_end(&o);
}

/* CUDA does not open memory for the process that has it. */
static void a_node_of_the_same_process_sends_bytes(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1});
    taker *t = taker_open();
    const char *const address = g->address;

    (void)state;
    (void)take(t, 0, &address, 1);
    expect_the_shard(t, 0, 0);
    assert_int_equal(expert_fetch_server_slots(g->giving), 1);
    taker_close(t);
    giver_close(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_come_from_gpu_to_gpu),
        cmocka_unit_test(bytes_come_where_memory_cannot_be_exported),
        cmocka_unit_test(bytes_come_where_memory_cannot_be_opened),
        cmocka_unit_test(bytes_come_when_a_copy_fails),
        cmocka_unit_test(bytes_come_when_a_bit_flips_on_the_way),
        cmocka_unit_test(bytes_come_when_the_slot_has_not_what_was_said),
        cmocka_unit_test(a_slot_that_got_another_shard_in_the_middle_is_not_taken),
        cmocka_unit_test(a_giver_that_dies_in_the_middle_costs_a_fetch_at_most),
        cmocka_unit_test(a_stop_ends_a_copy_in_the_middle),
        cmocka_unit_test(a_gpu_that_is_lost_ends_the_fetch),
        cmocka_unit_test(a_node_of_the_same_process_sends_bytes),
    };

    if (argc > 3 && strcmp(argv[1], "give") == 0) return give(argv[2], argv[3]);
    return run_each(tests, SY_COUNT_OF(tests));
}
