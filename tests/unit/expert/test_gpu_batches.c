/* test_gpu_batches.c - what a node answers that computes on GPUs: the same bits whatever is in the
 * batch, and a typed error when the device is gone. */
#include "gpu_fixture.h"

static void rows_are_those_of_a_cpu_but_for_its_rounding(void **state)
{
    host *gpu = gpu_host("g", 1);
    host *cpu = host_open(&(host_options){.name = "c", .model = model});
    const question q = {.n_tokens = 3, .n_experts = 8};
    double difference = 0, size = 0;

    (void)state;
    place(gpu, "0/*", "g/cuda:0");
    place(cpu, "0/*", "c/cpu:0");
    wait_until(count_in(gpu, SY_SHARD_RESIDENT) == 8 && count_in(cpu, SY_SHARD_RESIDENT) == 8);
    assert_true(shard_of(gpu, 0, 3).identity.content == shard_of(cpu, 0, 3).identity.content);
    float *on_gpu = rows_of(gpu, q), *on_cpu = rows_of(cpu, q);
    for (size_t i = 0; i < (size_t)3 * 8 * H; i++) {
        difference += ((double)on_gpu[i] - on_cpu[i]) * ((double)on_gpu[i] - on_cpu[i]);
        size += (double)on_cpu[i] * on_cpu[i];
    }
    if (!(difference < size * 1e-4)) fail_msg("%g of %g", difference, size);
    free(on_gpu);
    free(on_cpu);
    host_close(cpu);
    host_close(gpu);
}

/* One token alone, and among others of two messages in one batch. */
static void neighbours_in_a_batch_change_no_bit(void **state)
{
    host *h = gpu_host("g", 1);
    const question alone = {.first_token = 5, .n_tokens = 1, .n_experts = 2};
    const question with_others = {.first_token = 0, .n_tokens = 12, .n_experts = 3};

    (void)state;
    place(h, "0/*", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 8);
    float *one = rows_of(h, alone), *many = rows_of(h, with_others);
    assert_memory_equal(many + 5 * H, one, H * sizeof(float));
    assert_memory_equal(many + (12 + 5) * H, one + H, H * sizeof(float));
    free(one);
    free(many);
    host_close(h);
}

/* A batch in each lane of a device that hangs. */
static void fill_lanes(asker *a, expert_device *device, question q)
{
    for (uint32_t i = 0; i < EXPERT_LANES; i++) {
        asker_send(a, q);
        wait_until(sy_metric_value(device->lanes) == i + 1);
    }
}

/* The device hangs with all lanes full; what comes meanwhile goes in one batch afterwards. */
static void what_waits_while_all_lanes_are_under_way_is_computed_together(void **state)
{
    enum { LATE = 5 };
    host *h = gpu_host("g", 1);
    expert_device *device = &h->self.device[0];
    const question q = {.n_tokens = 2, .n_experts = 2};
    asker a;

    (void)state;
    place(h, "0/0", "g/cuda:0", "0/1", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 2);
    float *want = rows_of(h, q);
    asker_open(&a, h);
    devices_told("hang 0\n");
    fill_lanes(&a, device, q);
    const double batches = sy_metric_value(device->batches);
    for (uint32_t i = 0; i < LATE; i++) asker_send(&a, q);
    wait_until(atomic_load(&device->depth) == EXPERT_LANES + LATE);
    devices_told("");
    for (uint32_t i = 0; i < EXPERT_LANES + LATE; i++) {
        const sy_compute_reply reply = asker_answer(&a, i);
        assert_int_equal(reply.status.status, SY_OK);
        assert_int_equal(reply.batched_requests, i < EXPERT_LANES ? 1 : LATE);
        assert_memory_equal(reply.output.data, want, 4 * H * sizeof(float));
    }
    assert_true(sy_metric_value(device->batches) == batches + 1);
    wait_until(atomic_load(&device->depth) == 0);
    free(want);
    asker_close(&a);
    host_close(h);
}

static void a_message_larger_than_a_batch_is_cut(void **state)
{
    host *h = gpu_host("g", 1);
    expert_device *device = &h->self.device[0];

    (void)state;
    place(h, "0/0", "g/cuda:0", "0/1", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 2);
    const uint32_t rows_max = sy_shard_home_lane(device->home, 0).rows_max;
    const question large = {.n_tokens = rows_max / 2 + 40, .n_experts = 2};
    const question last = {.first_token = large.n_tokens - 1, .n_tokens = 1, .n_experts = 2};
    float *small = rows_of(h, last);
    const double batches = sy_metric_value(device->batches);
    float *all = rows_of(h, large);
    assert_true(sy_metric_value(device->batches) == batches + 2);
    assert_memory_equal(all + (size_t)(large.n_tokens - 1) * H, small, H * sizeof(float));
    assert_memory_equal(all + (size_t)(2 * large.n_tokens - 1) * H, small + H, H * sizeof(float));
    free(small);
    free(all);
    host_close(h);
}

/* Shards of one message on two GPUs. */
static void a_message_visits_the_gpus_that_it_needs(void **state)
{
    host *h = gpu_host("g", 2);
    const question q = {.n_tokens = 3, .n_experts = 3};

    (void)state;
    place(h, "0/0", "g/cuda:0", "0/1", "g/cuda:1", "0/2", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 3);
    float *apart = rows_of(h, q);
    place(h, "0/0", "g/cuda:0", "0/1", "g/cuda:0", "0/2", "g/cuda:0");
    wait_until(device_of_shard(h, 0, 1) == 0);
    float *together = rows_of(h, q);
    assert_memory_equal(apart, together, (size_t)9 * H * sizeof(float));
    free(apart);
    free(together);
    host_close(h);
}

/* ---- devices that fail ---- */

static void assert_is_lost(const sy_compute_reply *reply, const char *reason)
{
    assert_int_equal(reply->status.status, SY_EUNAVAILABLE);
    assert_string_equal(reply->status.reason, reason);
    assert_string_equal(reply->status.node, "g");
}

static void a_lost_gpu_answers_at_once_and_its_shards_are_gone(void **state)
{
    host *h = gpu_host("g", 2);
    const question on_lost = {.n_tokens = 2, .n_experts = 1};
    const question on_other = {.n_tokens = 2, .first_expert = 1, .n_experts = 1};
    asker a;

    (void)state;
    place(h, "0/0", "g/cuda:0", "1/0", "g/cuda:0", "0/1", "g/cuda:1");
    wait_until(is_ready(h, NULL) && count_in(h, SY_SHARD_RESIDENT) == 3);
    free(rows_of(h, on_lost));
    asker_open(&a, h);
    devices_told("hang 0\n");
    fill_lanes(&a, &h->self.device[0], on_lost);
    for (uint32_t i = 0; i < 2; i++) asker_send(&a, on_lost);
    wait_until(atomic_load(&h->self.device[0].depth) == EXPERT_LANES + 2);
    devices_told("hang 0\nlose 0\n");
    for (uint32_t i = 0; i < EXPERT_LANES + 2; i++) {
        const sy_compute_reply reply = asker_answer(&a, i);
        if (i < EXPERT_LANES || reply.n_faults == 0) /* else it came when the shards were gone */
            assert_is_lost(&reply, "DEVICE_LOST");
    }
    asker_reset(&a);
    wait_until(count_in(h, SY_SHARD_FAILED) == 2);
    assert_non_null(strstr(shard_of(h, 1, 0).reason, "cuda:0 is lost"));
    assert_false(is_in_memory(h, 0, 0));
    assert_false(is_ready(h, "(DEVICE_LOST)"));
    assert_true(sy_metric_value(h->self.device[0].lost) == 1);
    /* What is not there any more is a fault like any other; the other GPU computes on. */
    asker_send(&a, on_lost);
    const sy_compute_reply reply = asker_answer(&a, 0);
    assert_int_equal(reply.n_faults, 1);
    assert_string_equal(reply.fault[0].status.reason, "SHARD_NOT_RESIDENT");
    free(rows_of(h, on_other));
    /* No placement brings it back. */
    place(h, "0/0", "g/cuda:0", "0/1", "g/cuda:1");
    assert_int_equal(shard_of(h, 0, 0).life.state, SY_SHARD_FAILED);
    assert_non_null(strstr(shard_of(h, 0, 0).reason, "cuda:0 is lost"));
    devices_told("");
    asker_close(&a);
    host_close(h);
}

static void a_gpu_that_gets_no_further_is_lost(void **state)
{
    host *h = gpu_host("g", 1);
    asker a;

    (void)state;
    h->self.device_timeout_us = 200 * 1000;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    asker_open(&a, h);
    devices_told("hang 0\n");
    asker_send(&a, (question){.n_tokens = 1, .n_experts = 1});
    const sy_compute_reply reply = asker_answer(&a, 0);
    assert_is_lost(&reply, "DEVICE_LOST");
    assert_non_null(strstr(reply.status.message, "is not done after"));
    wait_until(count_in(h, SY_SHARD_FAILED) == 1);
    assert_false(is_ready(h, "cuda:0 is lost"));
    devices_told("");
    asker_close(&a);
    host_close(h);
}

/* Nobody asks for anything: the self-test alone meets the device. */
static void a_probe_that_gets_no_further_is_seen_as_well(void **state)
{
    host *h = host_open(
        &(host_options){.name = "g", .model = model, .n_gpus = 1, .self_test_us = 20 * 1000});

    (void)state;
    h->self.device_exit_us = INT64_MAX / 2; /* this process stays */
    h->self.device_timeout_us = 200 * 1000;
    place(h, "0/0", "g/cuda:0");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 1);
    devices_told("hang 0\n");
    wait_until((devices_tick(&h->self), device_failed(&h->self.device[0])));
    assert_string_equal(h->self.device[0].fault.reason, "DEVICE_LOST");
    devices_told("");
    host_close(h);
}

static void a_flipped_bit_is_found_by_the_self_test(void **state)
{
    host *h = host_open(&(host_options){.name = "g", .model = model, .n_gpus = 2});
    sy_error err = {0};
    asker a;

    (void)state;
    place(h, "0/*", "g/cuda:0", "1/*", "g/cuda:1");
    wait_until(count_in(h, SY_SHARD_RESIDENT) == 16);
    const sy_shard *shard = sy_shard_get(h->self.store, 1, 5);
    sy_shard_flip_bit(shard); /* before anything tests itself: it would be a race of this test's */
    sy_shard_put(h->self.store, shard);
    h->self.self_test_us = 5000;
    must(check_open(&h->self, &err), &err);
    wait_until(device_failed(&h->self.device[1]));
    wait_until(count_in(h, SY_SHARD_FAILED) == 8);
    assert_false(device_failed(&h->self.device[0]));
    assert_string_equal(h->self.device[1].fault.reason, "DEVICE_PROBE");
    assert_true(sy_metric_value(h->self.device[1].wrong) == 1);
    assert_false(is_ready(h, "(DEVICE_PROBE)"));
    asker_open(&a, h);
    asker_send(&a, (question){.layer = 1, .n_tokens = 1, .n_experts = 1});
    assert_int_equal(asker_answer(&a, 0).n_faults, 1);
    asker_close(&a);
    host_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_of_a_cpu_but_for_its_rounding),
        cmocka_unit_test(neighbours_in_a_batch_change_no_bit),
        cmocka_unit_test(what_waits_while_all_lanes_are_under_way_is_computed_together),
        cmocka_unit_test(a_message_larger_than_a_batch_is_cut),
        cmocka_unit_test(a_message_visits_the_gpus_that_it_needs),
        cmocka_unit_test(a_lost_gpu_answers_at_once_and_its_shards_are_gone),
        cmocka_unit_test(a_gpu_that_gets_no_further_is_lost),
        cmocka_unit_test(a_probe_that_gets_no_further_is_seen_as_well),
        cmocka_unit_test(a_flipped_bit_is_found_by_the_self_test),
    };

    return run_each(tests, SY_COUNT_OF(tests));
}
