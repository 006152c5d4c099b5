/* test_residency.c - what placement wants of a node comes into its memory, and what the node says
 * of it meanwhile. */
#include <fcntl.h>

#include "residency_fixture.h"

enum { LAYERS = 3, EXPERTS = 8, SHARDS = LAYERS * EXPERTS };

static char dir[] = "/tmp/sy-residency-XXXXXX";
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

/* First of all tests: SY_FAULT makes the first load of this process fail. */
static void a_load_that_failed_is_tried_again(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});

    (void)state;
    assert_false(is_ready(a, "no placement has been read"));
    place(a, "0/0", "a/cpu:0");
    wait_until(shard_of(a, 0, 0).life.state == SY_SHARD_FAILED);
    assert_string_equal(shard_of(a, 0, 0).reason, "injected fault");
    assert_false(is_ready(a, "1 shards failed; layer 0 expert 0: injected fault"));
    wait_until(shard_of(a, 0, 0).life.state == SY_SHARD_RESIDENT);
    assert_string_equal(shard_of(a, 0, 0).reason, "");
    assert_true(is_ready(a, NULL));
    host_close(a);
}

static void what_is_wanted_is_loaded_and_has_the_checkpoints_identity(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});
    sy_shard_identity truth;
    sy_error err = {0};

    (void)state;
    place(a, "*/*", "b/cpu:0", "1/*", "a/cpu:0", "2/5", "b/cpu:0 a/cpu:0@shadow");
    wait_until(is_ready(a, "being loaded"));
    assert_int_equal(count_in(a, SY_SHARD_RESIDENT), EXPERTS + 1);
    assert_int_equal(sy_shard_store_count(a->self.store), EXPERTS + 1);
    must(sy_shard_identify(&truth, model, (sy_precision){0}, 1, 7, sy_kernels_best(), &err), &err);
    assert_true(shard_of(a, 1, 7).identity.content == truth.content);
    assert_true(shard_of(a, 1, 7).identity.probe == truth.probe);
    assert_string_equal(shard_of(a, 1, 7).source, "checkpoint");
    assert_int_equal(shard_of(a, 1, 7).percent, 100);
    assert_int_equal(shard_of(a, 2, 5).life.state, SY_SHARD_RESIDENT);
    assert_int_equal(a->self.residency.device_bytes[0], (EXPERTS + 1) * shard_of(a, 1, 7).bytes);
    host_close(a);
}

static void a_device_that_is_not_here_is_named(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});

    (void)state;
    place(a, "0/0", "a/cpu:0", "0/1", "a/cuda:3");
    wait_until(is_ready(a, "being loaded"));
    assert_int_equal(shard_of(a, 0, 1).life.state, SY_SHARD_FAILED);
    assert_string_equal(shard_of(a, 0, 1).reason, "this node has no device cuda:3 (it has: cpu:0)");
    /* A shard that is in memory is served from where it is. */
    place(a, "0/0", "a/cpu:9", "0/1", "a/cpu:0");
    wait_until(shard_of(a, 0, 1).life.state == SY_SHARD_RESIDENT);
    assert_int_equal(shard_of(a, 0, 0).life.state, SY_SHARD_RESIDENT);
    assert_true(is_in_memory(a, 0, 0));
    host_close(a);
}

static void a_shard_may_move_to_another_device_without_a_load(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .n_devices = 2});
    const sy_shard *before;

    (void)state;
    place(a, "0/0", "a/cpu:0");
    wait_until(shard_of(a, 0, 0).life.state == SY_SHARD_RESIDENT);
    before = sy_shard_get(a->self.store, 0, 0);
    place(a, "0/0", "a/cpu:1");
    assert_int_equal(shard_of(a, 0, 0).life.state, SY_SHARD_RESIDENT);
    assert_int_equal(atomic_load(&a->self.residency.device[0]), 1);
    assert_int_equal(a->self.residency.device_bytes[0], 0);
    assert_int_equal(a->self.residency.device_bytes[1], shard_of(a, 0, 0).bytes);
    const sy_shard *after = sy_shard_get(a->self.store, 0, 0);
    assert_ptr_equal(before, after);
    sy_shard_put(a->self.store, before);
    sy_shard_put(a->self.store, after);
    host_close(a);
}

static void what_is_wanted_again_was_never_away(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .linger_us = WAIT_US * 100});

    (void)state;
    place(a, "0/*", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == EXPERTS);
    place(a, "0/*", "b/cpu:0");
    assert_int_equal(count_in(a, SY_SHARD_LINGERING), EXPERTS);
    assert_true(is_in_memory(a, 0, 3));
    assert_true(is_ready(a, NULL));
    place(a, "0/*", "a/cpu:0");
    assert_int_equal(count_in(a, SY_SHARD_RESIDENT), EXPERTS);
    host_close(a);
}

static void a_load_that_is_not_wanted_any_more_is_given_up(void **state)
{
    /* Hours for each shard. */
    host *a = host_open(&(host_options){.name = "a", .model = model, .load_bytes_per_s = 10});

    (void)state;
    place(a, "0/*", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_LOADING) == 2);
    assert_false(is_ready(a, "8 shards are being loaded"));
    place(a, "0/*", "b/cpu:0");
    wait_until(count_in(a, SY_SHARD_ABSENT) == SHARDS);
    assert_int_equal(sy_shard_store_bytes(a->self.store), 0);
    host_close(a);
}

static void what_does_not_fit_says_so_and_the_rest_is_served(void **state)
{
    host *probe = host_open(&(host_options){.name = "a", .model = model});
    uint64_t bytes;

    (void)state;
    place(probe, "0/0", "a/cpu:0");
    wait_until(shard_of(probe, 0, 0).life.state == SY_SHARD_RESIDENT);
    bytes = bytes_of_a_shard(probe);
    host_close(probe);

    host *a =
        host_open(&(host_options){.name = "a", .model = model, .memory_bytes_max = 3 * bytes + 1});
    char why[100];
    place(a, "0/*", "a/cpu:0");
    wait_until(is_ready(a, "being loaded"));
    assert_int_equal(count_in(a, SY_SHARD_RESIDENT), 3);
    wait_until(count_in(a, SY_SHARD_FAILED) == EXPERTS - 3);
    snprintf(why, sizeof(why), "needs %llu bytes, has 1 of %llu", (unsigned long long)bytes,
             (unsigned long long)(3 * bytes + 1));
    assert_string_equal(shard_of(a, 0, 7).reason, why);
    host_close(a);
}

static void shards_are_shown_as_json(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .memory_bytes_max = 1 << 20});
    sy_strbuf body;
    char want[300];

    (void)state;
    place(a, "1/2", "a/cpu:0", "1/3", "a/cpu:4");
    wait_until(shard_of(a, 1, 2).life.state == SY_SHARD_RESIDENT);
    sy_strbuf_init(&body);
    assert_int_equal(watch_http_get(&a->self, "/nothing", &body), 0);
    assert_int_equal(watch_http_get(&a->self, "/shards", &body), 1);
    const expert_shard e = shard_of(a, 1, 2);
    snprintf(
        want, sizeof(want),
        "{\"layer\":1,\"expert\":2,\"state\":\"resident\",\"device\":\"cpu:0\",\"wanted\":true,"
        "\"bytes\":%llu,\"percent\":100,\"reason\":\"\",\"content\":\"%016llx\",\"probe\":"
        "\"%016llx\",\"source\":\"checkpoint\"}",
        (unsigned long long)e.bytes, (unsigned long long)e.identity.content,
        (unsigned long long)e.identity.probe);
    if (strstr(body.data, want) == NULL) fail_msg("%s has no %s", body.data, want);
    assert_non_null(strstr(body.data, "\"reason\":\"this node has no device cpu:4"));
    snprintf(
        want, sizeof(want),
        "\"devices\":[{\"device\":\"cpu:0\",\"memory_bytes\":%llu,\"memory_max_bytes\":1048576,"
        "\"queue_length\":0,\"service_us\":0,\"reason\":\"\",\"why\":\"\"}]",
        (unsigned long long)e.bytes);
    if (strstr(body.data, want) == NULL) fail_msg("%s has no %s", body.data, want);
    sy_strbuf_free(&body);
    host_close(a);
}

/* ---- shards of other nodes ---- */

static void shards_come_from_nodes_that_have_them_when_asked_to(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});
    host *b = host_open(&(host_options){.name = "b", .model = model, .load_from_peers = 1});

    (void)state;
    learn_of(b, a);
    place(a, "0/*", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == EXPERTS);
    place(b, "0/*", "b/cpu:0", "1/0", "b/cpu:0");
    wait_until(count_in(b, SY_SHARD_RESIDENT) == EXPERTS + 1);
    assert_string_equal(shard_of(b, 0, 3).source, "a");
    assert_true(shard_of(b, 0, 3).identity.content == shard_of(a, 0, 3).identity.content);
    assert_string_equal(shard_of(b, 1, 0).source, "checkpoint");
    host_close(b);
    host_close(a);
}

static void a_checkpoint_that_was_cut_is_made_up_for_by_other_nodes(void **state)
{
    char cut_dir[] = "/tmp/sy-residency-XXXXXX";
    char path[100];
    sy_model *cut = model_make(cut_dir, 1);
    host *a = host_open(&(host_options){.name = "a", .model = model});
    host *b = host_open(&(host_options){.name = "b", .model = cut});

    (void)state;
    learn_of_nobody(b);
    place(a, "2/*", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == EXPERTS);
    snprintf(path, sizeof(path), "%s/model.safetensors", cut_dir);
    assert_int_equal(truncate(path, 4096), 0);
    place(b, "2/*", "b/cpu:0");
    wait_until(count_in(b, SY_SHARD_FAILED) == EXPERTS);
    assert_non_null(strstr(shard_of(b, 2, 0).reason, "no other node of this checkpoint has it"));
    learn_of(b, a);
    place(b, "2/*", "b/cpu:0 c/cpu:0");
    wait_until(count_in(b, SY_SHARD_RESIDENT) == EXPERTS);
    assert_string_equal(shard_of(b, 2, 7).source, "a");
    host_close(b);
    host_close(a);
    model_remove(cut);
}

static void shards_of_another_checkpoint_are_not_taken(void **state)
{
    char other_dir[] = "/tmp/sy-residency-XXXXXX";
    sy_model *other = model_make(other_dir, 2);
    host *a = host_open(&(host_options){.name = "a", .model = other});
    host *b = host_open(&(host_options){.name = "b", .model = model, .load_from_peers = 1});

    (void)state;
    learn_of(b, a);
    place(a, "0/0", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == 1);
    place(b, "0/0", "b/cpu:0");
    wait_until(count_in(b, SY_SHARD_RESIDENT) == 1);
    assert_string_equal(shard_of(b, 0, 0).source, "checkpoint");
    assert_true(shard_of(b, 0, 0).identity.content != shard_of(a, 0, 0).identity.content);
    host_close(b);
    host_close(a);
    model_remove(other);
}

/* ---- watchers ---- */

typedef struct watcher {
    sy_client *client;
    sy_client_call *call;
    sy_shard_state state[SHARDS];
    uint64_t placement_hash;
    uint32_t n_messages;
} watcher;

static void watcher_open(watcher *w, const host *h)
{
    const sy_model_query query = {"small"};
    sy_frame frame;
    sy_error err = {0};

    *w = (watcher){0};
    must(sy_client_open(&w->client, h->address, 0, &err), &err);
    must(sy_wire_model_query_encode(&frame, &query, NULL), &err);
    must(sy_client_start(&w->call, w->client, "/switchyard.v1.Expert/Watch", &frame,
                         sy_clock_us() + WAIT_US, 1, &err),
         &err);
}

static void watcher_close(watcher *w)
{
    sy_client_end(w->call);
    sy_client_close(w->client);
}

/* Every step of a life is told, and none that no life has. */
static void follow_life(watcher *w, const sy_shard_info *info)
{
    static const unsigned next[SY_N_SHARD_STATES] = {
        [SY_SHARD_ABSENT] = 1u << SY_SHARD_LOADING,
        [SY_SHARD_LOADING] = 1u << SY_SHARD_LOADING | 1u << SY_SHARD_VERIFYING,
        [SY_SHARD_VERIFYING] = 1u << SY_SHARD_RESIDENT,
        [SY_SHARD_RESIDENT] = 1u << SY_SHARD_LINGERING,
        [SY_SHARD_LINGERING] = 1u << SY_SHARD_LINGERING,
    };
    sy_shard_state *at = &w->state[info->layer * EXPERTS + info->expert];

    if (!(next[*at] & 1u << info->state))
        fail_msg("%s follows %s", sy_shard_state_name(info->state), sy_shard_state_name(*at));
    *at = info->state;
    assert_int_equal(info->content_hash != 0,
                     info->state == SY_SHARD_RESIDENT || info->state == SY_SHARD_LINGERING);
}

static void watcher_read(watcher *w)
{
    sy_node_state state;
    sy_arena arena;
    sy_error err = {0};
    sy_msg *msg;
    size_t n;

    must(sy_client_next(w->call, &msg, &err), &err);
    assert_non_null(msg);
    const sy_iov *iov = sy_msg_iov(msg, &n);
    sy_arena_init(&arena, 1 << 20);
    must(sy_wire_node_state_decode(&state, &arena, iov, n, &err), &err);
    assert_int_equal(state.full, w->n_messages == 0);
    assert_string_equal(state.arithmetic, SY_ARITHMETIC);
    assert_true(state.checkpoint_hash != 0);
    assert_int_equal(state.n_devices, state.full ? 1 : 0);
    for (uint32_t i = 0; i < state.n_shards; i++) follow_life(w, &state.shard[i]);
    w->placement_hash = state.placement_hash;
    w->n_messages++;
    sy_arena_free(&arena);
    sy_msg_free(msg);
}

static uint32_t watched_in(const watcher *w, sy_shard_state state)
{
    uint32_t n = 0;

    for (size_t i = 0; i < SHARDS; i++) n += w->state[i] == state;
    return n;
}

static void a_watcher_sees_every_step_and_the_placement_it_belongs_to(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});
    watcher w;

    (void)state;
    watcher_open(&w, a);
    watcher_read(&w);
    assert_true(w.placement_hash == 0);
    place(a, "0/*", "a/cpu:0");
    while (watched_in(&w, SY_SHARD_RESIDENT) < EXPERTS) watcher_read(&w);
    assert_true(w.placement_hash == a->self.residency.placement_hash);
    const uint64_t before = w.placement_hash;
    place(a, "0/*", "b/cpu:0");
    watcher_read(&w); /* one message for all that one placement changes */
    assert_int_equal(watched_in(&w, SY_SHARD_LINGERING), EXPERTS);
    assert_true(w.placement_hash != before);
    watcher_close(&w);
    host_close(a);
}

static void a_placement_that_changes_nothing_here_is_told_too(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model});
    watcher w;

    (void)state;
    place(a, "0/0", "b/cpu:0");
    watcher_open(&w, a);
    watcher_read(&w);
    assert_true(w.placement_hash == a->self.residency.placement_hash);
    place(a, "0/0", "c/cpu:0");
    watcher_read(&w);
    assert_true(w.placement_hash == a->self.residency.placement_hash);
    watcher_close(&w);
    host_close(a);
}

static void without_requests_a_load_keeps_to_no_pace(void **state)
{
    host *a = host_open(&(host_options){.name = "a", .model = model, .load_bytes_per_s = 10});

    (void)state;
    atomic_store(&a->self.message_us, 0);
    place(a, "0/*", "a/cpu:0");
    wait_until(count_in(a, SY_SHARD_RESIDENT) == EXPERTS);
    host_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_that_failed_is_tried_again),
        cmocka_unit_test(what_is_wanted_is_loaded_and_has_the_checkpoints_identity),
        cmocka_unit_test(a_device_that_is_not_here_is_named),
        cmocka_unit_test(a_shard_may_move_to_another_device_without_a_load),
        cmocka_unit_test(what_is_wanted_again_was_never_away),
        cmocka_unit_test(a_load_that_is_not_wanted_any_more_is_given_up),
        cmocka_unit_test(without_requests_a_load_keeps_to_no_pace),
        cmocka_unit_test(what_does_not_fit_says_so_and_the_rest_is_served),
        cmocka_unit_test(shards_are_shown_as_json),
        cmocka_unit_test(shards_come_from_nodes_that_have_them_when_asked_to),
        cmocka_unit_test(a_checkpoint_that_was_cut_is_made_up_for_by_other_nodes),
        cmocka_unit_test(shards_of_another_checkpoint_are_not_taken),
        cmocka_unit_test(a_watcher_sees_every_step_and_the_placement_it_belongs_to),
        cmocka_unit_test(a_placement_that_changes_nothing_here_is_told_too),
    };

    setenv("SY_FAULT", "expert.load:1", 1);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
