/* test_verify.c - copies of shards that are not what the checkpoint says: refused when they come,
 * used again when they are mended, whoever says what is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agg_http.h"
#include "fake_nodes.h"
#include "sy_shard.h"
#include "synth_model.h"

enum { NODES = 3 };

static char dir[] = "/tmp/sy-verify-XXXXXX";
static sy_model *model, *damaged;
static uint32_t shards, experts;
static sy_shard_identity *right; /* [shards] */
static sy_loop *loop, *client_loop;
static fake_node fake[NODES];
static agg_peers *peers;

static int set_up(void **state)
{
    const sy_synth_config synth = mixtral_vectors();
    sy_error err = {0};

    (void)state;
    assert_non_null(mkdtemp(dir));
    must(sy_synth_write(dir, &synth, &err), &err);
    must(sy_model_open(&model, dir, "fake", &err), &err);
    experts = sy_model_describe(model)->n_experts;
    shards = sy_model_describe(model)->n_layers * experts;
    right = calloc(shards, sizeof(*right));
    for (uint32_t s = 0; s < shards; s++)
        must(sy_shard_identify(&right[s], model, (sy_precision){0}, s / experts, s % experts,
                               sy_kernels_best(), &err),
             &err);
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
    sy_model_close(damaged);
    sy_model_close(model);
    free(right);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) + (int)sy_buf_outstanding();
}

/* Nodes expert-0.. that announce every shard with its right identity, once they are members. */
static void open_cluster_of(const sy_model *with, int read_weights, const char *arithmetic)
{
    sy_error err = {0};

    must(agg_peers_open(&peers, with, 1 << 24, &err), &err);
    agg_peers_set_loop(peers, client_loop);
    must(agg_peers_verify(peers, 0, arithmetic, sy_kernels_best(), (sy_precision){0}, read_weights,
                          &err),
         &err);
    for (int i = 0; i < NODES; i++) {
        char name[24], address[96];
        snprintf(name, sizeof(name), "expert-%d", i);
        snprintf(address, sizeof(address), "unix:%s/%s.sock", dir, name);
        fake_hold_all(&fake[i], with);
        fake[i].state.arithmetic = arithmetic;
        for (uint32_t s = 0; s < shards; s++) {
            fake[i].shard[s].content_hash = right[s].content;
            fake[i].shard[s].probe_hash = right[s].probe;
        }
        fake_start(&fake[i], loop, name, address);
    }
}

static void open_cluster(const sy_model *with, int read_weights)
{
    open_cluster_of(with, read_weights, SY_ARITHMETIC);
}

static void join(int n)
{
    sy_member member[NODES];

    for (int i = 0; i < n; i++) member[i] = fake_member(&fake[i], fake[i].calls_itself, "fake");
    agg_peers_members(peers, SY_MEMBER_NODE, member, (size_t)n);
    WAIT_UNTIL(peers, view, ({
                   int known = view->n_nodes == (uint32_t)n;
                   for (uint32_t i = 0; i < view->n_nodes; i++)
                       known &= atomic_load(&view->node[i]->known);
                   known;
               }));
}

/* After each test, whatever became of it. */
static int close_cluster(void **state)
{
    (void)state;
    agg_peers_close(peers);
    peers = NULL;
    for (int i = 0; i < NODES; i++) fake_stop(&fake[i]);
    return gauge("switchyard_refused_shards") != 0; /* what is counted goes too */
}

/* What a node says of one shard from now on, to those who watch later. */
static void set(int i, uint32_t shard, sy_shard_identity identity)
{
    fake_lock(&fake[i]);
    fake[i].shard[shard].content_hash = identity.content;
    fake[i].shard[shard].probe_hash = identity.probe;
    fake_unlock(&fake[i]);
}

/* And tells it at once, of this shard alone. */
static void announce_in(int i, uint32_t shard, sy_shard_state in, sy_shard_identity identity)
{
    sy_node_state change = {0};
    sy_shard_info info;

    set(i, shard, identity);
    fake_lock(&fake[i]);
    fake[i].shard[shard].state = in;
    info = fake[i].shard[shard];
    change = fake[i].state;
    fake_unlock(&fake[i]);
    change.full = 0;
    change.n_shards = 1;
    change.shard = &info;
    fake_tell(&fake[i], &change);
}

static void announce(int i, uint32_t shard, sy_shard_identity identity)
{
    announce_in(i, shard, SY_SHARD_RESIDENT, identity);
}

static sy_shard_identity wrong_content(uint32_t shard)
{
    return (sy_shard_identity){.content = right[shard].content ^ 1, .probe = right[shard].probe};
}

static sy_shard_identity wrong_probe(uint32_t shard)
{
    return (sy_shard_identity){.content = right[shard].content, .probe = right[shard].probe ^ 1};
}

static agg_refusal refusal(const agg_view *view, int i, uint32_t shard)
{
    return agg_node_refusal(view->node[i], shard);
}

static void expect_ready(const char *part)
{
    sy_strbuf why;

    sy_strbuf_init(&why);
    if (agg_peers_ready(peers, 0, &why) != (part == NULL)) fail_msg("ready or not: %s", why.data);
    if (part != NULL && strstr(why.data, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, why.data);
    sy_strbuf_free(&why);
}

/* ---- against the checkpoint ---- */

static void a_lone_copy_that_differs_from_the_checkpoint_is_refused_until_it_is_mended(void **state)
{
    const uint32_t bytes = experts + 1, probe = 2 * experts + 3;

    (void)state;
    open_cluster(model, 1);
    place_all(peers, model, "expert-0/cpu:0");
    set(0, bytes, wrong_content(bytes));
    set(0, probe, wrong_probe(probe));
    join(1);
    WAIT_UNTIL(peers, view,
               refusal(view, 0, bytes) == AGG_OTHER_CONTENT &&
                   refusal(view, 0, probe) == AGG_OTHER_PROBE);
    wait_gauge(peers, "switchyard_refused_shards", 2);
    agg_view *view = agg_peers_view(peers);
    for (uint32_t s = 0; s < shards; s++) {
        assert_int_equal(agg_node_has(view->node[0], s, 0), s != bytes && s != probe);
        assert_int_equal(agg_node_has(view->node[0], s, 1), 1); /* a "!" takes it as it is */
    }
    agg_view_unref(view);
    expect_ready("layer 1 expert 1; the copy on expert-0 is refused: its weights differ");
    announce(0, bytes, right[bytes]);
    WAIT_UNTIL(peers, v, refusal(v, 0, bytes) == AGG_FINE && agg_node_has(v->node[0], bytes, 0));
    expect_ready("layer 2 expert 3; the copy on expert-0 is refused: it computes another output");
    announce(0, probe, right[probe]);
    WAIT_UNTIL(peers, v, refusal(v, 0, probe) == AGG_FINE);
    expect_ready(NULL);
}

static void once_the_right_identity_is_known_a_wrong_copy_is_never_offered(void **state)
{
    (void)state;
    open_cluster(model, 1);
    place_all(peers, model, "expert-0/cpu:0 expert-1/cpu:0!");
    set(0, 0, wrong_content(0)); /* so that one can see when it is known */
    join(1);
    WAIT_UNTIL(peers, view, refusal(view, 0, 0) == AGG_OTHER_CONTENT);
    set(1, 0, wrong_content(0)); /* a node that comes later, judged as it speaks */
    join(2);
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(refusal(view, 1, 0), AGG_OTHER_CONTENT);
    assert_int_equal(agg_node_has(view->node[1], 0, 0), 0);
    assert_int_equal(agg_node_has(view->node[1], 0, 1), 1);
    agg_view_unref(view);
    expect_ready(NULL); /* placement accepts the second one's copy */
}

static void a_copy_whose_hash_is_not_known_is_used(void **state)
{
    (void)state;
    open_cluster(model, 1);
    set(0, 0, (sy_shard_identity){0});
    set(0, 1, (sy_shard_identity){.content = right[1].content});
    set(0, 2, wrong_content(2)); /* so that one can see when all before it are judged */
    join(1);
    WAIT_UNTIL(peers, view, refusal(view, 0, 2) == AGG_OTHER_CONTENT);
    agg_view *view = agg_peers_view(peers);
    assert_int_equal(agg_node_has(view->node[0], 0, 0), 1);
    assert_int_equal(agg_node_has(view->node[0], 1, 0), 1);
    agg_view_unref(view);
}

static void a_shard_that_is_gone_is_no_refused_copy_any_more(void **state)
{
    (void)state;
    open_cluster(model, 1);
    set(0, 4, wrong_content(4));
    join(1);
    WAIT_UNTIL(peers, view, refusal(view, 0, 4) == AGG_OTHER_CONTENT);
    announce_in(0, 4, SY_SHARD_ABSENT, right[4]);
    WAIT_UNTIL(peers, view, refusal(view, 0, 4) == AGG_FINE);
    wait_gauge(peers, "switchyard_refused_shards", 0);
    announce(0, 4, wrong_content(4));
    WAIT_UNTIL(peers, view, refusal(view, 0, 4) == AGG_OTHER_CONTENT);
    fake_stop(&fake[0]);
    WAIT_UNTIL(peers, view, refusal(view, 0, 4) == AGG_FINE);
}

/* ---- against each other ---- */

static void without_reading_weights_the_odd_one_out_is_refused_whoever_came_first(void **state)
{
    (void)state;
    open_cluster(model, 0);
    place_all(peers, model, "expert-0/cpu:0 expert-1/cpu:0 expert-2/cpu:0");
    set(0, 7, wrong_content(7));
    join(1); /* alone it is as good as any */
    WAIT_UNTIL(peers, view, agg_node_has(view->node[0], 7, 0));
    join(2); /* one against one: who was there before is believed */
    WAIT_UNTIL(peers, view, refusal(view, 1, 7) == AGG_OTHER_CONTENT);
    join(3);
    WAIT_UNTIL(peers, view,
               refusal(view, 0, 7) == AGG_OTHER_CONTENT && refusal(view, 1, 7) == AGG_FINE &&
                   refusal(view, 2, 7) == AGG_FINE);
    announce(2, 7, wrong_probe(7));
    WAIT_UNTIL(peers, view, refusal(view, 2, 7) == AGG_OTHER_PROBE);
    wait_gauge(peers, "switchyard_refused_shards", 2);
    expect_ready(NULL);
}

static void without_reading_weights_the_last_holder_is_believed(void **state)
{
    (void)state;
    open_cluster(model, 0);
    set(1, 3, wrong_content(3));
    join(1);
    join(2);
    WAIT_UNTIL(peers, view, refusal(view, 1, 3) == AGG_OTHER_CONTENT);
    fake_stop(&fake[0]); /* now there is none but the other */
    WAIT_UNTIL(peers, view, refusal(view, 1, 3) == AGG_FINE && agg_node_has(view->node[1], 3, 0));
}

static void a_checkpoint_that_cannot_be_read_here_leaves_the_nodes_to_judge_each_other(void **state)
{
    char cut[64], path[96], command[256];
    sy_error err = {0};

    (void)state;
    snprintf(cut, sizeof(cut), "%s/cut", dir);
    snprintf(path, sizeof(path), "%s/cut/model.safetensors", dir);
    snprintf(command, sizeof(command), "mkdir %s && cp %s/*.json %s/*.safetensors %s/", cut, dir,
             dir, cut);
    assert_int_equal(system(command), 0);
    must(sy_model_open(&damaged, cut, "fake", &err), &err);
    assert_int_equal(truncate(path, 64 << 10), 0); /* its head is there, its weights are not */
    open_cluster(damaged, 1);
    for (uint32_t shard = 0; shard < shards; shard++) set(0, shard, wrong_content(shard));
    join(3);
    /* All of them, so that no file is being read any more when cmocka, after the test, puts its own
     * handler of SIGBUS in the place of the guard's. */
    WAIT_UNTIL(peers, view, ({
                   int all = 1;
                   for (uint32_t shard = 0; shard < shards; shard++)
                       all &= refusal(view, 0, shard) == AGG_OTHER_CONTENT &&
                              refusal(view, 1, shard) == AGG_FINE &&
                              refusal(view, 2, shard) == AGG_FINE;
                   all;
               }));
}

/* What this process' CPU would compute is no measure then: the probes below are not its own. */
static void outputs_of_gpus_are_held_to_what_most_holders_of_the_right_weights_give(void **state)
{
    (void)state;
    open_cluster_of(model, 1, "bf16-mma/1:sm_90");
    place_all(peers, model, "expert-0/cuda:0 expert-1/cuda:0 expert-2/cuda:0");
    for (int i = 0; i < NODES; i++) set(i, 5, wrong_probe(5));
    set(0, 6, wrong_content(6)); /* the same output from other weights: no voice, and refused */
    set(0, 7, wrong_probe(7));
    join(3);
    WAIT_UNTIL(peers, view,
               refusal(view, 0, 6) == AGG_OTHER_CONTENT && refusal(view, 0, 7) == AGG_OTHER_PROBE);
    agg_view *view = agg_peers_view(peers);
    for (int i = 0; i < NODES; i++) assert_int_equal(agg_node_has(view->node[i], 5, 0), 1);
    for (int i = 1; i < 3; i++)
        for (uint32_t s = 5; s < 8; s++) assert_int_equal(refusal(view, i, s), AGG_FINE);
    agg_view_unref(view);
    announce(0, 7, right[7]);
    WAIT_UNTIL(peers, v, refusal(v, 0, 7) == AGG_FINE);
    expect_ready(NULL);
}

/* ---- many at once ---- */

static void copies_that_change_all_the_time_end_as_they_last_were(void **state)
{
    (void)state;
    open_cluster(model, 1);
    join(NODES);
    for (uint32_t round = 0; round < 200; round++)
        for (int i = 0; i < NODES; i++) {
            const uint32_t s = (round * 5 + (uint32_t)i) % shards;
            announce(i, s,
                     round % 3 == 0   ? right[s]
                     : round % 3 == 1 ? wrong_content(s)
                                      : wrong_probe(s));
        }
    for (int i = 0; i < NODES; i++)
        for (uint32_t s = 0; s < shards; s++)
            announce(i, s, s % 3 == 0 ? right[s] : s % 3 == 1 ? wrong_content(s) : wrong_probe(s));
    WAIT_UNTIL(peers, view, ({
                   int settled = 1;
                   for (int i = 0; i < NODES; i++)
                       for (uint32_t s = 0; s < shards; s++)
                           settled &= refusal(view, i, s) == (s % 3 == 0   ? AGG_FINE
                                                              : s % 3 == 1 ? AGG_OTHER_CONTENT
                                                                           : AGG_OTHER_PROBE);
                   settled;
               }));
    wait_gauge(peers, "switchyard_refused_shards", NODES * (shards - (shards + 2) / 3));
}

#define TEST(f) cmocka_unit_test_teardown(f, close_cluster)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_lone_copy_that_differs_from_the_checkpoint_is_refused_until_it_is_mended),
        TEST(once_the_right_identity_is_known_a_wrong_copy_is_never_offered),
        TEST(a_copy_whose_hash_is_not_known_is_used),
        TEST(a_shard_that_is_gone_is_no_refused_copy_any_more),
        TEST(without_reading_weights_the_odd_one_out_is_refused_whoever_came_first),
        TEST(without_reading_weights_the_last_holder_is_believed),
        TEST(a_checkpoint_that_cannot_be_read_here_leaves_the_nodes_to_judge_each_other),
        TEST(outputs_of_gpus_are_held_to_what_most_holders_of_the_right_weights_give),
        TEST(copies_that_change_all_the_time_end_as_they_last_were),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
