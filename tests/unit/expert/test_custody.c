/* test_custody.c - a shard leaves a node's memory by the word of the node that takes it over, and
 * for no other reason. Nodes with servers of their own ask one another. */
#include "residency_fixture.h"

enum { EXPERTS = 8 };

static char dir[] = "/tmp/sy-custody-XXXXXX";
static char other_dir[] = "/tmp/sy-custody-XXXXXX";
static sy_model *model;
static sy_model *other_model; /* of the same structure */

static int set_up(void **state)
{
    (void)state;
    model = model_make(dir, 1);
    other_model = model_make(other_dir, 2);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_remove(model);
    model_remove(other_model);
    return 0;
}

/* Two nodes; a holds layer 0 and knows where b is. */
typedef struct pair {
    host *a, *b;
} pair;

static pair pair_open(host_options a, host_options b)
{
    pair p;

    a.name = "a";
    b.name = "b";
    if (a.model == NULL) a.model = model;
    if (b.model == NULL) b.model = model;
    p.a = host_open(&a);
    p.b = host_open(&b);
    learn_of(p.a, p.b);
    learn_of(p.b, p.a);
    place(p.a, "0/*", "a/cpu:0");
    place(p.b, "0/*", "a/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_RESIDENT) == EXPERTS);
    return p;
}

static void pair_close(pair *p)
{
    host_close(p->a);
    host_close(p->b);
}

/* It was asked for, and there is a reason against: the shard is still there. */
static void expect_to_stay(host *h, uint32_t layer, uint32_t id, const char *why)
{
    wait_until(strstr(shard_of(h, layer, id).reason, why) != NULL);
    assert_int_equal(shard_of(h, layer, id).life.state, SY_SHARD_LINGERING);
    assert_true(is_in_memory(h, layer, id));
}

static void a_shard_leaves_once_the_new_node_has_it(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    place(p.b, "0/*", "b/cpu:0");
    place(p.a, "0/*", "b/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_ABSENT) == p.a->self.residency.n_shards);
    assert_int_equal(count_in(p.b, SY_SHARD_RESIDENT), EXPERTS);
    assert_int_equal(sy_shard_store_count(p.a->self.store), 0);
    assert_int_equal(p.a->self.residency.device_bytes[0], 0);
    pair_close(&p);
}

static void a_shard_stays_while_the_new_node_is_away(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    learn_of_nobody(p.a);
    place(p.a, "0/*", "b/cpu:0");
    place(p.b, "0/*", "b/cpu:0");
    expect_to_stay(p.a, 0, 0, "b has no lease");
    learn_address(p.a, "b", "127.0.0.1:1");
    expect_to_stay(p.a, 0, 0, "b does not answer");
    learn_of(p.a, p.b);
    wait_until(count_in(p.a, SY_SHARD_LINGERING) == 0);
    pair_close(&p);
}

static void a_shard_stays_while_the_new_node_follows_another_placement(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    /* b has the shards, but as far as it knows a has them too, and it may drop its own. */
    place(p.b, "0/*", "a/cpu:0 b/cpu:0");
    wait_until(count_in(p.b, SY_SHARD_RESIDENT) == EXPERTS);
    place(p.a, "0/*", "b/cpu:0");
    expect_to_stay(p.a, 0, 0, "b has another placement in force");
    place(p.b, "0/*", "b/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_LINGERING) == 0);
    assert_int_equal(count_in(p.b, SY_SHARD_RESIDENT), EXPERTS);
    pair_close(&p);
}

static void a_shard_stays_while_the_new_node_is_still_loading(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){.load_bytes_per_s = 10});

    (void)state;
    place(p.b, "0/*", "b/cpu:0");
    place(p.a, "0/*", "b/cpu:0");
    expect_to_stay(p.a, 0, 7, "b has it absent");
    pair_close(&p);
}

static void a_shadow_takes_no_custody(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    place(p.b, "0/*", "c/cpu:0 b/cpu:0@shadow");
    wait_until(count_in(p.b, SY_SHARD_RESIDENT) == EXPERTS);
    place(p.a, "0/*", "c/cpu:0 b/cpu:0@shadow");
    expect_to_stay(p.a, 0, 0, "c has no lease");
    pair_close(&p);
}

static void nobody_to_take_over_means_staying(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    place(p.a, "1/*", "a/cpu:0");
    expect_to_stay(p.a, 0, 0, "placement names no other node");
    pair_close(&p);
}

static void another_node_at_the_address_takes_no_custody(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});

    (void)state;
    learn_address(p.a, "c", p.b->address);
    place(p.b, "0/*", "c/cpu:0 b/cpu:0");
    wait_until(count_in(p.b, SY_SHARD_RESIDENT) == EXPERTS);
    place(p.a, "0/*", "c/cpu:0 b/cpu:0");
    /* b itself has no lease here. */
    expect_to_stay(p.a, 0, 0, "b has no lease");
    place(p.a, "0/*", "c/cpu:0");
    expect_to_stay(p.a, 0, 0, "the address of c");
    pair_close(&p);
}

static void other_weights_take_over_only_where_placement_says_so(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){.model = other_model});

    (void)state;
    place(p.b, "0/*", "b/cpu:0", "0/1", "b/cpu:0!");
    wait_until(count_in(p.b, SY_SHARD_RESIDENT) == EXPERTS);
    place(p.a, "0/*", "b/cpu:0", "0/1", "b/cpu:0!");
    expect_to_stay(p.a, 0, 0, "other weights");
    wait_until(shard_of(p.a, 0, 1).life.state == SY_SHARD_ABSENT);
    assert_false(is_in_memory(p.a, 0, 1));
    pair_close(&p);
}

static void a_shard_stays_its_time(void **state)
{
    pair p = pair_open((host_options){.linger_us = 100 * WAIT_US}, (host_options){0});

    (void)state;
    place(p.b, "0/*", "b/cpu:0");
    wait_until(count_in(p.b, SY_SHARD_RESIDENT) == EXPERTS);
    place(p.a, "0/*", "b/cpu:0", "1/0", "a/cpu:0");
    wait_until(shard_of(p.a, 1, 0).life.state == SY_SHARD_RESIDENT);
    assert_int_equal(count_in(p.a, SY_SHARD_LINGERING), EXPERTS);
    assert_string_equal(shard_of(p.a, 0, 0).reason, ""); /* not even asked about */
    pair_close(&p);
}

/* Memory for one more: of the eight that linger two make room for three. */
static void as_many_leave_as_room_is_needed_for(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});
    const uint64_t bytes = bytes_of_a_shard(p.a);

    (void)state;
    pair_close(&p);
    p = pair_open((host_options){.linger_us = 100 * WAIT_US, .memory_bytes_max = 9 * bytes},
                  (host_options){0});
    place(p.a, "0/*", "b/cpu:0", "1/0", "a/cpu:0", "1/1", "a/cpu:0", "1/2", "a/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_FAILED) > 0);
    expect_to_stay(p.a, 0, 0, "b has another placement in force");
    place(p.b, "0/*", "b/cpu:0", "1/0", "a/cpu:0", "1/1", "a/cpu:0", "1/2", "a/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_RESIDENT) == 3);
    assert_int_equal(count_in(p.a, SY_SHARD_LINGERING), EXPERTS - 2);
    assert_int_equal(count_in(p.a, SY_SHARD_FAILED), 0);
    pair_close(&p);
}

static void no_room_and_nobody_to_take_over_keeps_what_is_served(void **state)
{
    pair p = pair_open((host_options){0}, (host_options){0});
    const uint64_t bytes = bytes_of_a_shard(p.a);

    (void)state;
    pair_close(&p);
    p = pair_open((host_options){.memory_bytes_max = 8 * bytes}, (host_options){0});
    learn_of_nobody(p.a);
    place(p.a, "0/*", "b/cpu:0", "1/*", "a/cpu:0");
    wait_until(count_in(p.a, SY_SHARD_FAILED) == EXPERTS);
    expect_to_stay(p.a, 0, 7, "b has no lease");
    assert_non_null(strstr(shard_of(p.a, 1, 0).reason, "8 shards that linger here leave once"));
    assert_int_equal(count_in(p.a, SY_SHARD_LINGERING), EXPERTS);
    assert_true(is_ready(p.a, NULL));
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shard_leaves_once_the_new_node_has_it),
        cmocka_unit_test(a_shard_stays_while_the_new_node_is_away),
        cmocka_unit_test(a_shard_stays_while_the_new_node_follows_another_placement),
        cmocka_unit_test(a_shard_stays_while_the_new_node_is_still_loading),
        cmocka_unit_test(a_shadow_takes_no_custody),
        cmocka_unit_test(nobody_to_take_over_means_staying),
        cmocka_unit_test(another_node_at_the_address_takes_no_custody),
        cmocka_unit_test(other_weights_take_over_only_where_placement_says_so),
        cmocka_unit_test(a_shard_stays_its_time),
        cmocka_unit_test(as_many_leave_as_room_is_needed_for),
        cmocka_unit_test(no_room_and_nobody_to_take_over_keeps_what_is_served),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
