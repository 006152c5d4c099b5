/* test_gpu_moves.c - shards that come to GPUs, and move between those of a node while they are
 * served: make before break, and the same bits before and after. */
#include "effort.h"
#include "gpu_fixture.h"

static const question one = {.n_tokens = 2, .n_experts = 1};

static int is_moving(host *h, uint32_t layer, uint32_t id)
{
    return shard_of(h, layer, id).moving;
}

static void a_shard_is_served_from_the_old_gpu_until_the_new_one_has_it(void **state)
{
    host *h = gpu_host("g", 2);

    (void)state;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    const expert_shard before = shard_of(h, 0, 0);
    float *want = rows_of(h, one);
    devices_told("hang 1\n");
    place(h, "0/0", "g/cuda:1");
    wait_until(is_moving(h, 0, 0));
    float *meanwhile = rows_of(h, one);
    assert_true(home_of_shard(h, 0, 0) == h->self.device[0].home);
    assert_int_equal(device_of_shard(h, 0, 0), 0);
    assert_int_equal(shard_of(h, 0, 0).life.state, SY_SHARD_RESIDENT);
    devices_told("");
    wait_until(device_of_shard(h, 0, 0) == 1);
    assert_true(home_of_shard(h, 0, 0) == h->self.device[1].home);
    float *after = rows_of(h, one);
    const expert_shard now = shard_of(h, 0, 0);
    assert_true(now.identity.content == before.identity.content);
    assert_true(now.identity.probe == before.identity.probe);
    assert_memory_equal(meanwhile, want, 2 * H * sizeof(float));
    assert_memory_equal(after, want, 2 * H * sizeof(float));
    wait_until(sy_shard_home_bytes(h->self.device[0].home) == 0);
    free(want);
    free(meanwhile);
    free(after);
    host_close(h);
}

static void a_move_that_is_not_wanted_any_more_is_given_up(void **state)
{
    host *h = gpu_host("g", 2);

    (void)state;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    devices_told("hang 1\n");
    place(h, "0/0", "g/cuda:1");
    wait_until(is_moving(h, 0, 0));
    place(h, "0/0", "g/cuda:0");
    devices_told("");
    wait_until(!is_moving(h, 0, 0));
    assert_int_equal(device_of_shard(h, 0, 0), 0);
    wait_until(sy_shard_home_bytes(h->self.device[1].home) == 0);
    free(rows_of(h, one));
    host_close(h);
}

/* Every shard to and fro, while messages ask for them. */
static void shards_move_under_traffic_without_a_fault(void **state)
{
    static const char *const where[] = {"g/cuda:0", "g/cuda:1"};
    enum { ROUNDS = ONLY_RACES ? 1 : 4 };
    const question all = {.n_tokens = 2, .n_experts = EXPERTS};
    host *h = gpu_host("g", 2);
    asker a;

    (void)state;
    place(h, "0/*", where[0]);
    wait_until(count_in(h, SY_SHARD_RESIDENT) == EXPERTS);
    float *want = rows_of(h, all);
    asker_open(&a, h);
    for (int i = 1; i <= ROUNDS; i++) {
        uint32_t n_there = 0;
        place(h, "0/*", where[i % 2]);
        while (n_there < EXPERTS) {
            asker_send(&a, all);
            const sy_compute_reply reply = asker_answer(&a, 0);
            assert_int_equal(reply.status.status, SY_OK);
            assert_int_equal(reply.n_faults, 0);
            assert_memory_equal(reply.output.data, want, (size_t)2 * EXPERTS * H * sizeof(float));
            asker_reset(&a);
            n_there = 0;
            for (uint32_t e = 0; e < EXPERTS; e++) n_there += device_of_shard(h, 0, e) == i % 2;
        }
    }
    free(want);
    asker_close(&a);
    host_close(h);
}

/* Two shards have room on each GPU. */
static void a_gpu_without_room_says_so_and_the_shard_stays(void **state)
{
    host *probe = gpu_host("p", 1);
    place(probe, "0/0", "p/cuda:0");
    wait_until(count_in(probe, SY_SHARD_RESIDENT) == 1);
    const uint64_t slot_bytes = bytes_of_a_shard(probe);
    host_close(probe);
    host *h = host_open(&(host_options){.name = "g",
                                        .model = model,
                                        .first_gpu = 1,
                                        .n_gpus = 2,
                                        .memory_bytes_max = 4 * slot_bytes,
                                        .linger_us = WAIT_US * 100});

    (void)state;
    assert_int_equal(sy_shard_home_slots(h->self.device[0].home), 2);
    place(h, "0/0", "g/cuda:1", "1/0", "g/cuda:2", "1/1", "g/cuda:2");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 3);
    place(h, "0/0", "g/cuda:2", "1/0", "g/cuda:2", "1/1", "g/cuda:2", "2/0", "g/cuda:2");
    wait_until(strstr(shard_of(h, 0, 0).reason, "it stays on cuda:1: needs") != NULL);
    wait_until(shard_of(h, 2, 0).life.state == SY_SHARD_FAILED);
    assert_non_null(strstr(shard_of(h, 2, 0).reason, "all 2 slots are taken"));
    assert_true(shard_of(h, 2, 0).needs_room);
    assert_int_equal(shard_of(h, 0, 0).life.state, SY_SHARD_RESIDENT);
    free(rows_of(h, one));
    place(h, "0/0", "g/cuda:1", "1/0", "g/cuda:2", "1/1", "g/cuda:2", "2/0", "g/cuda:1");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 4);
    assert_string_equal(shard_of(h, 0, 0).reason, "");
    host_close(h);
}

/* What it had when it left is taken over by another node's GPU: the same bits from there. */
static void a_node_takes_shards_from_another_nodes_gpu(void **state)
{
    host *a = gpu_host("a", 1);
    host *b = host_open(&(host_options){
        .name = "b", .model = model, .first_gpu = 1, .n_gpus = 1, .load_from_peers = 1});

    (void)state;
    place(a, "0/0", "a/cuda:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 1);
    float *want = rows_of(a, one);
    learn_of(b, a);
    place(b, "0/0", "b/cuda:1");
    wait_until(count_in(b, SY_SHARD_RESIDENT) == 1);
    assert_string_equal(shard_of(b, 0, 0).source, "a");
    float *got = rows_of(b, one);
    assert_memory_equal(got, want, 2 * H * sizeof(float));
    assert_true(shard_of(a, 0, 0).identity.probe == shard_of(b, 0, 0).identity.probe);
    free(want);
    free(got);
    host_close(b);
    host_close(a);
}

/* The bytes are the same on both, but not what they compute: the content is compared alone. */
static void a_node_takes_shards_from_a_node_on_cpus(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});
    host *b =
        host_open(&(host_options){.name = "b", .model = model, .n_gpus = 1, .load_from_peers = 1});

    (void)state;
    place(a, "0/0", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 1);
    learn_of(b, a);
    place(b, "0/0", "b/cuda:0");
    wait_until(count_in(b, SY_SHARD_RESIDENT) == 1);
    assert_string_equal(shard_of(b, 0, 0).source, "a");
    assert_true(shard_of(a, 0, 0).identity.content == shard_of(b, 0, 0).identity.content);
    assert_true(shard_of(a, 0, 0).identity.probe != shard_of(b, 0, 0).identity.probe);
    host_close(b);
    host_close(a);
}

/* Nothing is served from it afterwards, and nobody waits for the copy. */
static void a_gpu_that_is_lost_during_a_move_ends_the_move(void **state)
{
    host *h = gpu_host("g", 2);
    asker a;

    (void)state;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    devices_told("hang 1\n");
    place(h, "0/0", "g/cuda:1");
    wait_until(is_moving(h, 0, 0));
    devices_told("hang 1\nlose 0\n");
    asker_open(&a, h);
    asker_send(&a, one);
    const sy_compute_reply reply = asker_answer(&a, 0);
    if (reply.n_faults == 0) /* else the move had met the loss before, and the shard was gone */
        assert_string_equal(reply.status.reason, "DEVICE_LOST");
    else
        assert_string_equal(reply.fault[0].status.reason, "SHARD_NOT_RESIDENT");
    devices_told("lose 0\n");
    wait_until(!is_moving(h, 0, 0) && home_of_shard(h, 0, 0) != h->self.device[0].home);
    assert_false(is_ready(h, "cuda:0 is lost"));
    asker_close(&a);
    host_close(h);
}

/* One bit is another on the way: the copy is not taken, and the next one is. */
static void a_copy_that_was_damaged_is_made_again(void **state)
{
    host *h = gpu_host("g", 2);

    (void)state;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    float *want = rows_of(h, one);
    devices_told("flip 0 copy\n");
    place(h, "0/0", "g/cuda:1");
    wait_until(strstr(shard_of(h, 0, 0).reason, "it stays on cuda:0") != NULL);
    wait_until(device_of_shard(h, 0, 0) == 1);
    assert_string_equal(shard_of(h, 0, 0).reason, "");
    float *got = rows_of(h, one);
    assert_memory_equal(got, want, 2 * H * sizeof(float));
    devices_told("");
    free(want);
    free(got);
    host_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shard_is_served_from_the_old_gpu_until_the_new_one_has_it),
        cmocka_unit_test(a_move_that_is_not_wanted_any_more_is_given_up),
        cmocka_unit_test(shards_move_under_traffic_without_a_fault),
        cmocka_unit_test(a_gpu_without_room_says_so_and_the_shard_stays),
        cmocka_unit_test(a_node_takes_shards_from_another_nodes_gpu),
        cmocka_unit_test(a_node_takes_shards_from_a_node_on_cpus),
        cmocka_unit_test(a_gpu_that_is_lost_during_a_move_ends_the_move),
        cmocka_unit_test(a_copy_that_was_damaged_is_made_again),
    };

    return run_each(tests, SY_COUNT_OF(tests));
}
