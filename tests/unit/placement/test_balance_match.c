/* test_balance_match.c - new groups of experts are given to the devices that have most of them: the
 * part of balancing that saves the bytes. Through lib/placement's own header, for a plan shows only
 * what is left of it. */
#include "balance_fixture.h"
#include "sy_balance_layer.h"

typedef struct bench { /* one layer of 24 experts, already grouped on 6 devices of 3 nodes */
    uint32_t node[6];
    sy_bal_world world;
    sy_bal_layer layer;
    double weight[24];
} bench;

static void open_bench(bench *b)
{
    memset(b, 0, sizeof(*b));
    for (uint32_t d = 0; d < 6; d++) b->node[d] = d / 2;
    b->world = (sy_bal_world){.n_experts = 24,
                              .n_devices = 6,
                              .n_nodes = 3,
                              .node = b->node,
                              .replicas_max = 3,
                              .stride = 3};
    assert_true(sy_bal_layer_open(&b->layer, &b->world));
    b->layer.weight = b->weight;
    for (uint32_t d = 0; d < 6; d++) b->layer.cap[d] = 5;
    for (uint32_t e = 0; e < 24; e++) b->weight[e] = e + 1;
    sy_bal_layer_clear(&b->layer);
    for (uint32_t e = 0; e < 24; e++) sy_bal_add(&b->layer, e, e / 4);
}

/* What device `had` has in memory now is the group of `group`. */
static void has_group(bench *b, uint32_t had, uint32_t group)
{
    for (uint32_t e = 4 * group; e < 4 * group + 4; e++)
        b->layer.origin[(size_t)had * b->world.n_experts + e] = 1;
}

static void groups_under_other_names_cost_nothing(void **state)
{
    /* Nodes change places, and the devices of one of them do. */
    static const uint32_t group_of[6] = {5, 4, 0, 1, 2, 3};
    bench b;

    (void)state;
    open_bench(&b);
    for (uint32_t d = 0; d < 6; d++) has_group(&b, d, group_of[d]);
    assert_int_equal(sy_bal_loads(&b.layer), 24);
    assert_true(sy_bal_match(&b.layer));
    assert_int_equal(sy_bal_loads(&b.layer), 0);
    sy_bal_layer_close(&b.layer);
}

static void groups_of_one_node_stay_together(void **state)
{
    /* Groups 0 and 1 are on nodes 0 and 1 now, and belong on one node: one of them must move. */
    static const uint32_t group_of[6] = {0, 2, 1, 3, 4, 5};
    bench b;

    (void)state;
    open_bench(&b);
    for (uint32_t d = 0; d < 6; d++) has_group(&b, d, group_of[d]);
    assert_true(sy_bal_match(&b.layer));
    for (uint32_t g = 0; g < 6; g += 2) {
        assert_int_equal(b.node[sy_bal_holders(&b.layer, 4 * g)[0]],
                         b.node[sy_bal_holders(&b.layer, 4 * g + 4)[0]]);
    }
    assert_int_equal(sy_bal_loads(&b.layer), 8);
    sy_bal_layer_close(&b.layer);
}

static void a_device_with_other_slots_keeps_its_group(void **state)
{
    static const uint32_t group_of[6] = {1, 0, 2, 3, 4, 5};
    bench b;

    (void)state;
    open_bench(&b);
    b.layer.cap[0] = 4;
    for (uint32_t d = 0; d < 6; d++) has_group(&b, d, group_of[d]);
    assert_true(sy_bal_match(&b.layer));
    assert_int_equal(sy_bal_holders(&b.layer, 0)[0], 0);
    assert_int_equal(sy_bal_loads(&b.layer), 8);
    sy_bal_layer_close(&b.layer);
}

/* The greatest overlap first would be 4 + 0; the best is 3 + 3. */
static void the_sum_counts_and_not_the_greatest(void **state)
{
    bench b;

    (void)state;
    open_bench(&b);
    has_group(&b, 0, 0);
    for (uint32_t e = 4; e < 7; e++) b.layer.origin[e] = 1;      /* device 0: 3 of group 1 */
    for (uint32_t e = 0; e < 3; e++) b.layer.origin[24 + e] = 1; /* device 1: 3 of group 0 */
    for (uint32_t g = 2; g < 6; g++) has_group(&b, g, g);
    assert_true(sy_bal_match(&b.layer));
    assert_int_equal(sy_bal_holders(&b.layer, 0)[0], 1);
    assert_int_equal(sy_bal_loads(&b.layer), 2);
    sy_bal_layer_close(&b.layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_under_other_names_cost_nothing),
        cmocka_unit_test(groups_of_one_node_stay_together),
        cmocka_unit_test(a_device_with_other_slots_keeps_its_group),
        cmocka_unit_test(the_sum_counts_and_not_the_greatest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
