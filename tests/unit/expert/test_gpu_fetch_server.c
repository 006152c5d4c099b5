/* test_gpu_fetch_server.c - a node that offers the slots of its GPU: to whom, and for how long they
 * stay what they were. */
#include "gpu_fetch_fixture.h"

static sy_shm *shown_make(void)
{
    sy_shm *shown;
    sy_error err = {0};

    must(sy_shm_create(&shown, 1, &err), &err);
    return shown;
}

static sy_status next_of(asking *a, sy_error *err)
{
    sy_msg *msg;
    const sy_status st = sy_client_next(a->call, &msg, err);

    assert_null(msg);
    return st;
}

static void a_slot_is_offered_as_it_is_and_nothing_else_is_sent(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);
    const sy_shard *shard = sy_shard_get(g->store, 0, 0);

    (void)state;
    asking *a = asking_begin(g->address, &request);
    assert_int_equal(a->chunk.slot.slot, shard->slot);
    assert_int_equal(a->chunk.slot.n_slots, sy_shard_home_slots(g->home));
    assert_int_equal(a->chunk.slot.slot_bytes, sy_shard_home_slot_bytes(g->home));
    assert_true(a->chunk.slot.home_hash == shard->home_hash && shard->home_hash != 0);
    assert_true(a->chunk.content_hash == shard->identity.content);
    assert_true(a->chunk.probe_hash == shard->identity.probe);
    assert_int_equal(a->chunk.n_bytes, 0);
    assert_int_equal(expert_fetch_server_bytes(g->giving), 0);
    asking_end(a);
    sy_shard_put(g->store, shard);
    sy_shm_unref(shown);
    giver_close(g);
}

static void a_slot_stays_until_the_call_is_cancelled(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1, .hold_us = WAIT_US * 10});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);

    (void)state;
    asking *a = asking_begin(g->address, &request);
    sy_shard_unload(g->store, 0, 0);
    assert_int_equal(slots_taken(g->home), EXPERTS);
    assert_int_equal(expert_fetch_server_running(g->giving), 1);
    asking_end(a);
    wait_until(expert_fetch_server_running(g->giving) == 0);
    wait_until(slots_taken(g->home) == EXPERTS - 1);
    sy_shm_unref(shown);
    giver_close(g);
}

static void a_taker_that_stalls_is_let_go(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1, .hold_us = 200000});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);
    sy_error err = {0};

    (void)state;
    const int64_t before_us = sy_clock_us();
    asking *a = asking_begin(g->address, &request);
    sy_shard_unload(g->store, 0, 0);
    wait_until(slots_taken(g->home) == EXPERTS - 1);
    assert_true(sy_clock_us() - before_us >= 200000);
    assert_int_equal(expert_fetch_server_running(g->giving), 0);
    assert_int_equal(next_of(a, &err), SY_EDEADLINE);
    assert_non_null(strstr(err.message, "the peer has not copied it out of its slot"));
    asking_end(a);
    sy_shm_unref(shown);
    giver_close(g);
}

/* Sixteen of them share the limit, so each may take sixteen times as long as it would alone. */
static void who_copies_under_a_limit_has_its_time(void **state)
{
    giver *g = giver_open(
        (expert_fetch_server_config){.offers_slots = 1, .hold_us = 1, .bytes_per_s_max = 1 << 20});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);
    const sy_fetch_request bytes = {.model = "small", .expert = 1};

    (void)state;
    asking *a = asking_begin(g->address, &request);
    sy_shard_unload(g->store, 0, 0);
    for (int i = 0; i < 3; i++) /* the sender looks at all calls in turn */
        asking_end(asking_begin(g->address, &bytes));
    assert_int_equal(slots_taken(g->home), EXPERTS);
    asking_end(a);
    wait_until(slots_taken(g->home) == EXPERTS - 1);
    sy_shm_unref(shown);
    giver_close(g);
}

static void a_node_that_closes_keeps_no_slot(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1, .hold_us = WAIT_US * 10});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);
    sy_error err = {0};

    (void)state;
    asking *a = asking_begin(g->address, &request);
    giver_close(g); /* which asserts that no slot is taken */
    assert_true(next_of(a, &err) != SY_OK);
    asking_end(a);
    sy_shm_unref(shown);
}

static void sends_bytes(const giver *g, const sy_fetch_request *request, const char *to_whom)
{
    asking *a = asking_begin(g->address, request);

    if (a->chunk.slot.slot_bytes != 0) fail_msg("%s was offered a slot", to_whom);
    assert_true(a->chunk.n_bytes > 0);
    assert_int_equal(expert_fetch_server_slots(g->giving), 0);
    asking_end(a);
}

static void who_cannot_be_a_taker_gets_bytes(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1});
    sy_shm *shown = shown_make();
    const sy_fetch_request right = request_of(shown, g->home);
    sy_fetch_request request = right;

    (void)state;
    request.taker.key[3] ^= 1;
    sends_bytes(g, &request, "one with another key");
    request = right;
    request.taker.fd = 1 << 20;
    sends_bytes(g, &request, "one that shows nothing");
    request = right;
    request.taker.pid = UINT64_MAX;
    sends_bytes(g, &request, "a process that is not here");
    request = right;
    request.taker.bytes *= 2;
    sends_bytes(g, &request, "one whose memory is of another size");
    request = right;
    request.taker.arithmetic = "bf16-mma/1:sm_80";
    sends_bytes(g, &request, "another kind of GPU");
    request = right;
    request.taker.slot_bytes += 256;
    sends_bytes(g, &request, "one with other slots");
    sy_shard_unload(g->store, 0, 0);
    giver_load(g, NULL, 0, 0);
    sends_bytes(g, &right, "a taker of what lies in host memory");
    sy_shm_unref(shown);
    giver_close(g);
}

static void nothing_is_offered_where_it_is_turned_off(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 0});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);

    (void)state;
    sends_bytes(g, &request, "somebody");
    sy_shm_unref(shown);
    giver_close(g);
}

/* Every weight that is sent is looked at by who takes it; of a slot none is. */
static void a_node_whose_weights_may_be_anything_sends_them(void **state)
{
    giver *g = giver_open((expert_fetch_server_config){.offers_slots = 1});
    sy_shm *shown = shown_make();
    const sy_fetch_request request = request_of(shown, g->home);

    (void)state;
    sy_model_allow_nan(model);
    sends_bytes(g, &request, "somebody");
    sy_shm_unref(shown);
    giver_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_is_offered_as_it_is_and_nothing_else_is_sent),
        cmocka_unit_test(a_slot_stays_until_the_call_is_cancelled),
        cmocka_unit_test(a_taker_that_stalls_is_let_go),
        cmocka_unit_test(who_copies_under_a_limit_has_its_time),
        cmocka_unit_test(a_node_that_closes_keeps_no_slot),
        cmocka_unit_test(who_cannot_be_a_taker_gets_bytes),
        cmocka_unit_test(nothing_is_offered_where_it_is_turned_off),
        cmocka_unit_test(a_node_whose_weights_may_be_anything_sends_them),
    };

    return run_each(tests, SY_COUNT_OF(tests));
}
