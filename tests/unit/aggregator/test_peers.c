/* test_peers.c - who is in the cluster: nodes that restart, move, share a name or an address, say
 * that they are something else, or leave; and views of placement over many of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agg_http.h"
#include "agg_targets.h"
#include "fake_nodes.h"
#include "sy_synth.h"

enum { L = 4, E = 64, SHARDS = L * E, NODES = 3 };

static char dir[] = "/tmp/sy-peers-XXXXXX";
static sy_model *model;
static sy_loop *loop, *client_loop;
static fake_node fake[NODES];
static agg_peers *peers;

static int set_up(void **state)
{
    const sy_synth_config synth = {.family = "mixtral",
                                   .vocab = 300,
                                   .hidden = 16,
                                   .n_layers = L,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .n_experts = E,
                                   .top_k = 2,
                                   .expert_ffn = 8,
                                   .context = 64,
                                   .rms_eps = 1e-5f,
                                   .rope_theta = 1e4f,
                                   .options.dtype = SY_F32};
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &synth, &err), &err);
    must(sy_model_open(&model, dir, "fake", &err), &err);
    must(sy_loop_open(&loop, "servers"), &err);
    must(sy_loop_open(&client_loop, "client"), &err);
    return 0;
}

static int tear_down(void **state)
{
    char command[64];

    (void)state;
    sy_loop_close(client_loop);
    sy_loop_close(loop);
    sy_model_close(model);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) + (int)sy_buf_outstanding();
}

/* Each test has its own peers, and up to NODES fakes that hold everything. */
static int open_peers(void **state)
{
    sy_error err = {0};

    (void)state;
    must(agg_peers_open(&peers, model, 1 << 24, &err), &err);
    agg_peers_set_loop(peers, client_loop);
    must(agg_peers_verify(peers, 0x1111, SY_ARITHMETIC, sy_kernels_best(), (sy_precision){0}, 0,
                          &err),
         &err);
    return 0;
}

static int close_peers(void **state)
{
    (void)state;
    agg_peers_close(peers);
    for (int i = 0; i < NODES; i++) fake_stop(&fake[i]);
    return gauge("switchyard_refused_nodes") != 0 || gauge("switchyard_refused_shards") != 0;
}

static void start(int i, const char *name, const char *socket)
{
    char address[96];

    snprintf(address, sizeof(address), "unix:%s/%s.sock", dir, socket);
    fake_hold_all(&fake[i], model);
    fake_start(&fake[i], loop, name, address);
}

static void expect_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("\"%s\" is not in: %s", part, text);
}

static void expect_get(const char *path, const char *part)
{
    sy_strbuf body;

    sy_strbuf_init(&body);
    assert_int_equal(agg_http_get(peers, model, path, &body), 1);
    expect_text(body.data, part);
    sy_strbuf_free(&body);
}

/* ---- views ---- */

static void every_expert_finds_its_targets_among_many_nodes(void **state)
{
    enum { MANY = 24 };
    static sy_member member[MANY];
    static char value[SHARDS][96], field[SHARDS][16];
    static sy_placement_entry entry[SHARDS];
    sy_snapshot *snapshot;
    sy_error err = {0};

    (void)state;
    for (int i = 0; i < MANY; i++) { /* in no order */
        const int n = (i * 7) % MANY;
        snprintf(member[i].name, sizeof(member[i].name), "node-%d", n);
        snprintf(member[i].address, sizeof(member[i].address), "unix:%s/absent-%d.sock", dir, n);
        snprintf(member[i].model, sizeof(member[i].model), "fake");
    }
    agg_peers_members(peers, SY_MEMBER_NODE, member, MANY);
    for (uint32_t s = 0; s < SHARDS; s++) {
        snprintf(field[s], sizeof(field[s]), "%u/%u", s / E, s % E);
        snprintf(value[s], sizeof(value[s]), "node-%u/cpu:0 nobody/cpu:0 node-%u/cpu:1", s % MANY,
                 (s / 3) % MANY);
        entry[s] = (sy_placement_entry){field[s], strlen(field[s]), value[s], strlen(value[s])};
    }
    must(sy_snapshot_build(&snapshot, NULL, entry, SHARDS, &(sy_grid){.layers = L, .experts = E},
                           &err),
         &err);
    agg_peers_placement(peers, snapshot);
    sy_snapshot_unref(snapshot);
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(view->n_nodes, MANY);
    for (uint32_t s = 0; s < SHARDS; s++) {
        const uint32_t number = sy_snapshot_list_of(view->snapshot, s / E, s % E);
        const sy_target_list *list = sy_snapshot_list(view->snapshot, number);
        const uint32_t first = view->first_target[number];
        assert_int_equal(view->first_target[number + 1] - first, list->n);
        for (uint32_t i = 0; i < list->n; i++) {
            const int32_t node = view->target_node[first + i];
            if (i == 1)
                assert_int_equal(node, -1);
            else
                assert_string_equal(view->node[node]->name, list->target[i].node);
        }
    }
    agg_view_unref(view);
}

static void a_view_that_is_held_stays_as_it_was(void **state)
{
    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    place_all(peers, model, "expert-a/cpu:0");
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], SHARDS - 1, 0));
    agg_view *held = agg_peers_view(peers);
    fake_stop(&fake[0]);
    agg_peers_members(peers, SY_MEMBER_NODE, NULL, 0);
    WAIT_UNTIL(peers, view, view->n_nodes == 0);
    assert_int_equal(held->n_nodes, 1);
    assert_string_equal(held->node[0]->name, "expert-a");
    assert_int_equal(agg_node_has(held->node[0], 0, 0), 0);
    agg_view_unref(held);
    assert_true(sy_metric_value(sy_metric_histogram("switchyard_cutover_seconds", "", NULL)) > 0);
}

/* ---- what nodes say ---- */

static void a_full_state_replaces_and_a_change_changes(void **state)
{
    sy_node_state some = {.node = "expert-a", .model = "fake", .arithmetic = "", .build = ""};
    sy_shard_info change[2] = {{1, 2, SY_SHARD_ABSENT, "cpu:0", .reason = ""},
                               {L, 0, SY_SHARD_RESIDENT, "cpu:0", .reason = ""}};
    const sy_device_load load[2] = {{"cpu:0", 3, 0, 0, 0}, {"cpu:1", 4, 0, 0, 0}};

    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    WAIT_UNTIL(peers, view, atomic_load(&view->node[0]->known));
    some.n_shards = 2; /* of which one is of a layer that does not exist */
    some.shard = change;
    some.n_devices = 2;
    some.device = load;
    fake_tell(&fake[0], &some);
    WAIT_UNTIL(peers, view, !agg_node_has(view->node[0], E + 2, 0));
    agg_view *view = agg_peers_view(peers);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_int_equal(agg_node_has(view->node[0], s, 0), s != E + 2);
    assert_int_equal(atomic_load(&view->node[0]->queue_length), 7);
    agg_view_unref(view);
    fake_lock(&fake[0]);
    fake[0].state.n_shards = 1; /* 0/0 and nothing else */
    fake_unlock(&fake[0]);
    fake_tell_all(&fake[0]);
    WAIT_UNTIL(peers, v, !agg_node_has(v->node[0], SHARDS - 1, 0));
    expect_get("/nodes", "\"resident\":1,\"queue_length\":0,\"shards_refused\":0}");
    view = agg_peers_view(peers);
    assert_int_equal(agg_node_has(view->node[0], 0, 0), 1);
    agg_view_unref(view);
    fake_stop(&fake[0]);
    WAIT_UNTIL(peers, v, !agg_node_has(v->node[0], 0, 0) && !atomic_load(&v->node[0]->known));
}

typedef struct other {
    agg_refusal why;
    int can_be_accepted; /* by "!" */
    const char *text;
} other;

static void become(fake_node *self, agg_refusal why)
{
    sy_node_state *s = &self->state;

    fake_lock(self);
    s->node = why == AGG_OTHER_NAME ? "somebody-else" : self->calls_itself;
    s->structure_hash = sy_model_structure_hash(model) + (why == AGG_OTHER_STRUCTURE);
    s->checkpoint_hash = why == AGG_OTHER_CHECKPOINT ? 0x2222 : 0x1111;
    s->arithmetic = why == AGG_OTHER_ARITHMETIC ? "f16-tree/3" : SY_ARITHMETIC;
    fake_unlock(self);
    fake_tell_all(self);
}

static void expect_not_ready(const char *part)
{
    sy_strbuf why;

    sy_strbuf_init(&why);
    assert_int_equal(agg_peers_ready(peers, 0, &why), 0);
    expect_text(why.data, part);
    sy_strbuf_free(&why);
}

static void expect_ready(void)
{
    sy_strbuf why;

    sy_strbuf_init(&why);
    if (!agg_peers_ready(peers, 0, &why)) fail_msg("not ready: %s", why.data);
    sy_strbuf_free(&why);
}

static void a_node_of_another_kind_is_refused_and_taken_when_it_is_of_ours_again(void **state)
{
    static const other cases[] = {
        {AGG_OTHER_STRUCTURE, 0, "expert-a is refused: its checkpoint is of another structure"},
        {AGG_OTHER_CHECKPOINT, 1, "expert-a is refused: its weights are another checkpoint's"},
        {AGG_OTHER_ARITHMETIC, 1, "expert-a is refused: it computes with another arithmetic"},
        {AGG_OTHER_NAME, 0, "expert-a is refused: another node answers at its address"}};

    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    WAIT_UNTIL(peers, view, atomic_load(&view->node[0]->known));
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        become(&fake[0], cases[i].why);
        place_all(peers, model, "expert-a/cpu:0");
        WAIT_UNTIL(peers, view, !agg_node_has(view->node[0], SHARDS - 1, 0));
        WAIT_UNTIL(peers, view, agg_node_refusal(view->node[0], 0) == cases[i].why);
        wait_gauge(peers, "switchyard_refused_nodes", 1);
        expect_not_ready(cases[i].text);
        expect_get("/nodes", cases[i].text + strlen("expert-a is refused: "));
        place_all(peers, model, "expert-a/cpu:0!");
        agg_view *view = agg_peers_view(peers);
        assert_int_equal(agg_node_has(view->node[0], SHARDS - 1, 0), 0);
        assert_int_equal(agg_node_has(view->node[0], SHARDS - 1, 1), cases[i].can_be_accepted);
        agg_view_unref(view);
        if (cases[i].can_be_accepted) expect_ready();
        become(&fake[0], AGG_FINE);
        WAIT_UNTIL(peers, v, agg_node_has(v->node[0], SHARDS - 1, 0));
        wait_gauge(peers, "switchyard_refused_nodes", 0);
        expect_ready();
    }
    become(&fake[0], AGG_OTHER_STRUCTURE); /* what is counted goes with its node: close_peers */
    WAIT_UNTIL(peers, v, agg_node_refusal(v->node[0], 0) != AGG_FINE);
}

static void hashes_that_one_side_does_not_know_are_not_held_against_a_node(void **state)
{
    const sy_shard_info change = {0, 1, SY_SHARD_ABSENT, "cpu:0", .reason = ""};
    const sy_node_state terse = {
        .node = "", .model = "", .n_shards = 1, .shard = &change, .arithmetic = "", .build = ""};

    (void)state;
    start(0, "expert-a", "a");
    fake_lock(&fake[0]);
    fake[0].state.checkpoint_hash = 0;
    fake[0].state.arithmetic = "";
    fake_unlock(&fake[0]);
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 0, 0));
    fake_lock(&fake[0]);
    fake[0].state.checkpoint_hash = 0x2222;
    fake_unlock(&fake[0]);
    fake_tell_all(&fake[0]);
    WAIT_UNTIL(peers, view, agg_node_refusal(view->node[0], 0) == AGG_OTHER_CHECKPOINT);
    fake_tell(&fake[0], &terse); /* a change that says nothing of them changes nothing of that */
    WAIT_UNTIL(peers, view, !agg_node_has(view->node[0], 1, 1));
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(agg_node_refusal(view->node[0], 0), AGG_OTHER_CHECKPOINT);
    agg_view_unref(view);
}

static void before_its_stream_is_up_a_node_is_shown_by_its_lease(void **state)
{
    sy_member member = {.name = "expert-x", .model = "fake", .checkpoint_hash = "2222"};

    (void)state;
    snprintf(member.address, sizeof(member.address), "unix:%s/nobody.sock", dir);
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    expect_get("/nodes", "\"up\":false");
    expect_get("/nodes", "its weights are another checkpoint's");
    wait_gauge(peers, "switchyard_refused_nodes", 0);
    snprintf(member.checkpoint_hash, sizeof(member.checkpoint_hash), "1111");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    expect_get("/nodes", "\"refused\":\"\"");
}

/* ---- names and addresses ---- */

static void a_node_that_restarts_in_its_place_is_used_again(void **state)
{
    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 5, 0));
    fake_stop(&fake[0]);
    WAIT_UNTIL(peers, view, !agg_node_has(view->node[0], 5, 0));
    fake[0].state.n_shards = 5; /* it comes back with less */
    fake_start(&fake[0], loop, "expert-a", member.address);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 4, 0));
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(view->n_nodes, 1);
    assert_int_equal(agg_node_has(view->node[0], 5, 0), 0);
    agg_view_unref(view);
}

static void a_node_that_moves_is_followed_once_its_old_address_is_dead(void **state)
{
    (void)state;
    start(0, "expert-a", "old");
    start(1, "expert-a", "new");
    const sy_member before = fake_member(&fake[0], "expert-a", "fake");
    const sy_member now = fake_member(&fake[1], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &before, 1);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 0, 0));
    for (int i = 0; i < 3; i++) { /* two of one name: their leases alternate, the first one stays */
        agg_peers_members(peers, SY_MEMBER_NODE, &now, 1);
        agg_view *view = agg_peers_view(peers);
        assert_int_equal(view->n_nodes, 1);
        assert_string_equal(view->node[0]->address, before.address);
        assert_int_equal(agg_node_has(view->node[0], 0, 0), 1);
        agg_view_unref(view);
        if (i < 2) agg_peers_members(peers, SY_MEMBER_NODE, &before, 1);
    }
    fake_stop(&fake[0]); /* no lease changes now, and the second is used all the same */
    WAIT_UNTIL(peers, view,
               strcmp(view->node[0]->address, now.address) == 0 &&
                   agg_node_has(view->node[0], 0, 0));
}

static void a_node_whose_lease_is_gone_is_kept_as_long_as_it_is_there(void **state)
{
    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 0, 0));
    agg_peers_members(peers, SY_MEMBER_NODE, NULL, 0);
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(view->n_nodes, 1);
    assert_int_equal(agg_node_has(view->node[0], 0, 0), 1);
    agg_view_unref(view);
    fake_stop(&fake[0]);
    WAIT_UNTIL(peers, v, v->n_nodes == 0);
}

static void who_took_over_an_address_is_not_known_by_the_old_name_as_well(void **state)
{
    (void)state;
    start(0, "expert-a", "a");
    const sy_member before = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &before, 1);
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 0, 0));
    fake_stop(&fake[0]);
    fake_start(&fake[0], loop, "expert-b", before.address); /* answers on a's connection too */
    WAIT_UNTIL(peers, view, agg_node_refusal(node_named(view, "expert-a"), 0) == AGG_OTHER_NAME);
    const sy_member now = fake_member(&fake[0], "expert-b", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &now, 1);
    WAIT_UNTIL(peers, view,
               view->n_nodes == 1 && node_named(view, "expert-b") != NULL &&
                   agg_node_has(node_named(view, "expert-b"), 0, 0));
}

static void routers_that_restart_under_new_names_leave_none_behind(void **state)
{
    sy_member member;

    (void)state;
    start(0, "router", "router");
    for (int i = 0; i < 3; i++) {
        char name[24];
        snprintf(name, sizeof(name), "router-%d", i);
        member = fake_member(&fake[0], name, "fake");
        agg_peers_members(peers, SY_MEMBER_ROUTER, &member, 1);
        WAIT_UNTIL(peers, view, view->n_routers == 1 && sy_peer_up(view->router[0]->peer));
        agg_view *view = agg_peers_view(peers);
        assert_string_equal(view->router[0]->name, name);
        agg_view_unref(view);
    }
    expect_get("/nodes", "\"routers\":[{\"name\":\"router-2\"");
}

static void a_router_without_a_lease_serves_and_counts_once(void **state)
{
    sy_member member[2];

    (void)state;
    start(0, "router", "r0");
    start(1, "router", "r1");
    member[0] = fake_member(&fake[0], "", "");
    memcpy(member[0].name, fake[0].address, sizeof(member[0].name)); /* as its name: its address */
    member[0].name[sizeof(member[0].name) - 1] = '\0';
    member[1] = fake_member(&fake[1], "router-1", "fake");
    agg_peers_members(peers, SY_MEMBER_ROUTER, member, 2);
    WAIT_UNTIL(peers, view,
               view->n_routers == 2 && sy_peer_up(view->router[0]->peer) &&
                   sy_peer_up(view->router[1]->peer));
    member[1] = fake_member(&fake[0], "router-0", "fake"); /* the same process has a lease now */
    agg_peers_members(peers, SY_MEMBER_ROUTER, member, 2);
    fake_stop(&fake[1]);
    WAIT_UNTIL(peers, view, view->n_routers == 1);
    agg_view *view = agg_peers_view(peers);
    assert_string_equal(view->router[0]->name, "router-0");
    agg_view_unref(view);
}

static void a_member_of_another_model_is_not_taken(void **state)
{
    sy_member member = {.name = "expert-a", .address = "127.0.0.1:1", .model = "another"};

    (void)state;
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(view->n_nodes, 0);
    agg_view_unref(view);
}

/* ---- what is told over HTTP ---- */

static void load_and_targets_are_told_as_json(void **state)
{
    sy_strbuf body;
    char want[256];

    (void)state;
    start(0, "expert-a", "a");
    const sy_member member = fake_member(&fake[0], "expert-a", "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, &member, 1);
    expect_get("/targets", "{\"model\":\"fake\",\"hash\":null,\"targets\":[]}");
    place_all(peers, model, "expert-a/cpu:0@95 gone/cpu:1@5!");
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], SHARDS - 1, 0));
    agg_view *view = agg_peers_view(peers);
    agg_target *t = agg_targets_find(view->targets, 0, 0, 1);
    atomic_fetch_add(&t->messages, 3);
    atomic_store(&t->max_diff, __builtin_inff());
    snprintf(want, sizeof(want), "\"hash\":\"%016llx\"",
             (unsigned long long)sy_snapshot_hash(view->snapshot));
    agg_view_unref(view);
    expect_get("/targets", want);
    expect_get("/targets", "{\"field\":\"0/0\",\"target\":\"expert-a/cpu:0\",\"share\":95,"
                           "\"shadow\":false,\"any_weights\":false,\"state\":\"resident\","
                           "\"refused\":\"\",\"messages\":0,\"rows\":0,\"errors\":0,"
                           "\"latency_us\":0,\"compared_rows\":0,\"differing_rows\":0,"
                           "\"max_diff\":0}");
    expect_get("/targets", "\"target\":\"gone/cpu:1\",\"share\":5,\"shadow\":false,"
                           "\"any_weights\":true,\"state\":\"absent\",\"refused\":\"\","
                           "\"messages\":3,");
    expect_get("/targets", "\"max_diff\":3.40282347e+38}");
    atomic_fetch_add(&agg_peers_rows(peers)[1], 42);
    snprintf(
        want, sizeof(want),
        "\"layers\":%d,\"experts\":%d,\"moe_layers\":\"0-3\",\"since_us\":%lld,\"rows\":[0,42,0,",
        L, E, (long long)agg_peers_since_us(peers));
    expect_get("/load", want);
    sy_strbuf_init(&body);
    assert_int_equal(agg_http_get(peers, model, "/other", &body), 0);
    assert_int_equal(body.len, 0);
    sy_strbuf_free(&body);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_peers, close_peers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_expert_finds_its_targets_among_many_nodes),
        TEST(a_view_that_is_held_stays_as_it_was),
        TEST(a_full_state_replaces_and_a_change_changes),
        TEST(a_node_of_another_kind_is_refused_and_taken_when_it_is_of_ours_again),
        TEST(hashes_that_one_side_does_not_know_are_not_held_against_a_node),
        TEST(before_its_stream_is_up_a_node_is_shown_by_its_lease),
        TEST(a_node_that_restarts_in_its_place_is_used_again),
        TEST(a_node_that_moves_is_followed_once_its_old_address_is_dead),
        TEST(a_node_whose_lease_is_gone_is_kept_as_long_as_it_is_there),
        TEST(who_took_over_an_address_is_not_known_by_the_old_name_as_well),
        TEST(routers_that_restart_under_new_names_leave_none_behind),
        TEST(a_router_without_a_lease_serves_and_counts_once),
        TEST(a_member_of_another_model_is_not_taken),
        TEST(load_and_targets_are_told_as_json),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
