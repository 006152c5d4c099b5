/* test_compute.c - what a node answers to Compute while shards come and go. */
#include "residency_fixture.h"

enum { H = 64, ROWS = 3 };

static char dir[] = "/tmp/sy-compute-XXXXXX";
static sy_model *model;

static int set_up(void **state)
{
    (void)state;
    model = model_make(dir, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_remove(model);
    return 0;
}

/* An answer to one Compute call of one row for each of three experts of layer 0. */
typedef struct answer {
    sy_arena arena;
    sy_compute_reply reply;
} answer;

static void ask(answer *out, host *h, uint16_t first_expert)
{
    const uint16_t id[ROWS] = {first_expert, (uint16_t)(first_expert + 1),
                               (uint16_t)(first_expert + 2)};
    const uint32_t end[ROWS] = {1, 2, 3}, row[ROWS] = {0, 0, 0};
    float x[H];
    const sy_compute_request request = {.id = 7,
                                        .model = "small",
                                        .n_groups = ROWS,
                                        .n_assign = ROWS,
                                        .expert = id,
                                        .group_end = end,
                                        .row = row,
                                        .hidden = {SY_F32, 1, H, x}};
    sy_client *client;
    sy_client_call *call;
    sy_frame frame;
    sy_msg *msg;
    sy_error err = {0};
    size_t n;

    for (size_t i = 0; i < H; i++) x[i] = (float)i / H - 0.4f;
    must(sy_client_open(&client, h->address, 0, &err), &err);
    must(sy_wire_compute_request_encode(&frame, &request, NULL), &err);
    must(sy_client_start(&call, client, "/switchyard.v1.Expert/Compute", &frame,
                         sy_clock_us() + WAIT_US, 1, &err),
         &err);
    must(sy_client_next(call, &msg, &err), &err);
    assert_non_null(msg);
    const sy_iov *iov = sy_msg_iov(msg, &n);
    sy_arena_init(&out->arena, 1 << 20);
    must(sy_wire_compute_reply_decode(&out->reply, &out->arena, iov, n, &err), &err);
    assert_int_equal(out->reply.id, 7);
    assert_int_equal(out->reply.output.rows, ROWS);
    sy_msg_free(msg);
    sy_client_end(call);
    sy_client_close(client);
}

static const float *row_of(const answer *a, size_t i)
{
    return (const float *)a->reply.output.data + i * H;
}

/* First of all tests: SY_FAULT flips a bit in the first shard that this process loads, after its
 * identity was worked out, so that nothing but outputs can tell. */
static void a_flipped_bit_shows_in_outputs_only(void **state)
{
    host *bad = host_open(&(host_options){.name = "bad", .model = model});
    host *good = host_open(&(host_options){.name = "good", .model = model});
    answer from_bad, from_good;

    (void)state;
    place(bad, "0/0", "bad/cpu:0");
    wait_until(shard_of(bad, 0, 0).life.state == SY_SHARD_RESIDENT);
    place(bad, "0/*", "bad/cpu:0");
    place(good, "0/*", "good/cpu:0");
    wait_until(is_ready(bad, NULL) && is_ready(good, NULL));
    wait_until(count_in(bad, SY_SHARD_RESIDENT) == 8);
    ask(&from_bad, bad, 0);
    ask(&from_good, good, 0);
    assert_true(shard_of(bad, 0, 0).identity.content == shard_of(good, 0, 0).identity.content);
    assert_true(shard_of(bad, 0, 0).identity.probe == shard_of(good, 0, 0).identity.probe);
    assert_memory_not_equal(row_of(&from_bad, 0), row_of(&from_good, 0), H * sizeof(float));
    assert_memory_equal(row_of(&from_bad, 1), row_of(&from_good, 1), 2 * H * sizeof(float));
    sy_arena_free(&from_bad.arena);
    sy_arena_free(&from_good.arena);
    host_close(bad);
    host_close(good);
}

static void what_is_not_here_is_a_fault_and_what_lingers_is_served(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .linger_us = WAIT_US * 100});
    const float zeros[H] = {0};
    answer before, after;

    (void)state;
    place(a, "0/1", "a/cpu:0", "0/2", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 2);
    ask(&before, a, 1);
    assert_int_equal(before.reply.n_faults, 1);
    assert_int_equal(before.reply.fault[0].expert, 3);
    assert_string_equal(before.reply.fault[0].status.reason, "SHARD_NOT_RESIDENT");
    assert_memory_equal(row_of(&before, 2), zeros, sizeof(zeros));
    assert_memory_not_equal(row_of(&before, 0), zeros, sizeof(zeros));
    place(a, "0/1", "b/cpu:0", "0/2", "b/cpu:0");
    assert_int_equal(count_in(a, SY_SHARD_LINGERING), 2);
    ask(&after, a, 1);
    assert_int_equal(after.reply.n_faults, 1);
    assert_memory_equal(row_of(&after, 0), row_of(&before, 0), 2 * H * sizeof(float));
    sy_arena_free(&before.arena);
    sy_arena_free(&after.arena);
    host_close(a);
}

/* Shards of one message on two devices: both count it, and both are done with it in the end. */
static void devices_count_what_they_have_and_how_long_it_takes(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .n_devices = 2});
    answer got;

    (void)state;
    place(a, "0/0", "a/cpu:1", "0/1", "a/cpu:1");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 2);
    ask(&got, a, 0);
    sy_arena_free(&got.arena);
    wait_until(atomic_load(&a->self.device[0].depth) == 0);
    wait_until(atomic_load(&a->self.device[1].depth) == 0);
    assert_int_equal(atomic_load(&a->self.device[0].service_us), 0); /* it has only passed it on */
    assert_true(atomic_load(&a->self.device[1].service_us) > 0);
    place(a, "0/0", "a/cpu:0", "0/1", "a/cpu:1", "0/2", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 3);
    ask(&got, a, 0);
    assert_int_equal(got.reply.n_faults, 0);
    sy_arena_free(&got.arena);
    wait_until(atomic_load(&a->self.device[0].depth) + atomic_load(&a->self.device[1].depth) == 0);
    assert_true(atomic_load(&a->self.device[0].service_us) > 0);
    host_close(a);
}

static void no_rows_at_all_is_refused_on_the_stream_with_the_id(void **state)
{
    const sy_compute_request request = {.model = "small"};
    host *a = host_open(&(host_options){.name = "a", .model = model});
    const sy_peer_config config = {.name = "a",
                                   .address = a->address,
                                   .stream_path = "/switchyard.v1.Expert/ComputeStream",
                                   .reply_id = sy_wire_peek_id};
    sy_compute_request with_id = request;
    sy_compute_reply reply;
    sy_fanout *fanout;
    sy_arena arena;
    sy_peer *peer;
    sy_frame frame;
    sy_error err = {0};
    size_t n;

    (void)state;
    must(sy_peer_open(&peer, a->loop, &config, &err), &err);
    must(sy_fanout_open(&fanout, 1), &err);
    wait_until(sy_peer_up(peer));
    with_id.id = sy_peer_next_id(peer);
    must(sy_wire_compute_request_encode(&frame, &with_id, NULL), &err);
    sy_fanout_send(fanout, peer, with_id.id, &frame);
    sy_fanout_wait(fanout, sy_clock_us() + WAIT_US);
    assert_int_equal(sy_fanout_at(fanout, 0)->status, SY_OK);
    const sy_iov *iov = sy_msg_iov(sy_fanout_at(fanout, 0)->msg, &n);
    sy_arena_init(&arena, 1 << 20);
    must(sy_wire_compute_reply_decode(&reply, &arena, iov, n, &err), &err);
    assert_true(reply.id == with_id.id);
    assert_int_equal(reply.status.status, SY_EINVAL);
    assert_string_equal(reply.status.message, "hidden: absent");
    sy_arena_free(&arena);
    sy_fanout_free(fanout);
    sy_peer_close(peer);
    host_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_shows_in_outputs_only),
        cmocka_unit_test(what_is_not_here_is_a_fault_and_what_lingers_is_served),
        cmocka_unit_test(devices_count_what_they_have_and_how_long_it_takes),
        cmocka_unit_test(no_rows_at_all_is_refused_on_the_stream_with_the_id),
    };

    setenv("SY_FAULT", "expert.flip:1", 1);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
