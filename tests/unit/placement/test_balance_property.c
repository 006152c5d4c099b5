/* test_balance_property.c - what every plan keeps, on thousands of random problems: devices of
 * different sizes, some gone, some experts pinned, tight budgets, a minimum of nodes that slots may
 * have room for or not. A failure prints the seed. */
#include "balance_fixture.h"
#include "effort.h"
#include "sy_base.h"

#define N_PROBLEMS (ONLY_ACCESSES ? 300 : 1500)

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(balance_unit(state) * n);
}

static uint32_t n_nodes_of(const fixture *f)
{
    uint32_t n = 0;

    for (uint32_t d = 0; d < f->n_devices; d++) n = SY_MAX(n, f->device[d].node + 1);
    return n;
}

/* Up to want holders, on different nodes. */
static uint32_t place_expert(uint32_t *holder, const fixture *f, uint32_t want, uint64_t *state)
{
    uint32_t n = 0;

    for (uint32_t tries = 0; tries < 20 && n < want; tries++) {
        const uint32_t d = below(state, f->n_devices);
        int is_free = 1;

        for (uint32_t i = 0; i < n; i++) is_free &= f->device[holder[i]].node != f->device[d].node;
        if (is_free) holder[n++] = d;
    }
    return n;
}

static void place_all(fixture *f, int some_gone, uint64_t *state)
{
    const uint32_t n_all = f->layers * f->experts;
    uint32_t at = 0;

    f->offset = calloc(n_all + 1, sizeof(*f->offset));
    f->holder = calloc((size_t)n_all * 4, sizeof(*f->holder));
    for (uint32_t i = 0; i < n_all; i++) {
        const uint32_t want = below(state, 4) == 0 ? 1 + below(state, 3) : 1;
        const uint32_t n = place_expert(f->holder + at, f, want, state);

        for (uint32_t k = 0; k < n; k++)
            if (some_gone && below(state, 6) == 0) f->holder[at + k] = SY_BALANCE_GONE;
        at += n;
        f->offset[i + 1] = at;
    }
}

static fixture random_problem(uint64_t seed)
{
    uint64_t state = sy_splitmix64(seed);
    const uint32_t n_nodes = 1 + below(&state, 5), a_node = 1 + below(&state, 3);
    const uint32_t layers = 1 + below(&state, 3), experts = 2 + below(&state, 40);
    const uint32_t even = experts / (n_nodes * a_node) + 1;
    fixture f = fix_open(layers, experts, n_nodes * a_node, a_node, even);

    for (uint32_t layer = 0; layer < layers; layer++) {
        balance_fill_layer(f.load + (size_t)layer * experts, experts,
                           (balance_shape)below(&state, 4), 0.3 + 1.2 * balance_unit(&state),
                           &state);
    }
    place_all(&f, below(&state, 2), &state);
    for (uint32_t d = 0; d < f.n_devices; d++)
        f.device[d].slots = (even + below(&state, 4)) * layers + below(&state, layers);
    f.options.replicas_max = 1 + below(&state, 6);
    if (below(&state, 3) == 0)
        f.options.budget_bytes = FIX_SHARD_BYTES * (uint64_t)(1 + below(&state, 30)) + 7;
    if (below(&state, 3) == 0) f.options.min_gain = 0.05;
    if (below(&state, 3) == 0) {
        f.pinned = calloc((size_t)layers * experts, 1);
        for (uint32_t i = 0; i < layers * experts; i++) f.pinned[i] = below(&state, 5) == 0;
    }
    if (below(&state, 2) == 0)
        f.options.min_replicas = below(&state, SY_MIN(f.options.replicas_max, 4) + 1);
    if (f.options.min_replicas > 1 && below(&state, 2) == 0) {
        for (uint32_t d = 0; d < f.n_devices; d++)
            f.device[d].slots += (f.options.min_replicas - 1) * even * layers;
    }
    if (f.options.min_replicas > 1 && below(&state, 5) == 0)
        f.options.budget_bytes = FIX_SHARD_BYTES - 1; /* nothing at all */
    return f;
}

/* ---- what is checked ---- */

static int holds(const uint32_t *offset, const uint32_t *holder, size_t at, uint32_t d)
{
    for (uint32_t i = offset[at]; i < offset[at + 1]; i++)
        if (holder[i] == d) return 1;
    return 0;
}

static uint32_t count_nodes(const fixture *f, const uint32_t *offset, const uint32_t *holder,
                            size_t at)
{
    uint8_t seen[FIX_DEVICES_MAX] = {0};
    uint32_t n = 0;

    for (uint32_t i = offset[at]; i < offset[at + 1]; i++) {
        if (holder[i] == SY_BALANCE_GONE) continue;
        n += !seen[f->device[holder[i]].node];
        seen[f->device[holder[i]].node] = 1;
    }
    return n;
}

static const sy_balance_change *find_change(const sy_balance_plan *plan, size_t at)
{
    for (size_t i = 0; i < plan->n_changes; i++)
        if ((size_t)plan->change[i].layer * plan->experts + plan->change[i].expert == at)
            return &plan->change[i];
    return NULL;
}

/* As many nodes as the minimum says, or else not fewer than before, and a reason. */
static void check_minimum(const fixture *f, const sy_balance_plan *plan, size_t at, uint64_t seed)
{
    const uint32_t min = SY_MIN(f->options.min_replicas, n_nodes_of(f));
    const uint32_t before = count_nodes(f, f->offset, f->holder, at);
    const uint32_t after = count_nodes(f, plan->offset, plan->holder, at);
    const sy_balance_change *change;

    assert_int_equal(plan->min_nodes, min);
    if (after < SY_MIN(before, min))
        fail_msg("seed %lu: expert %zu is on %u nodes, was on %u, the minimum is %u", seed, at,
                 after, before, min);
    if (after >= min || min < 2) return;
    change = find_change(plan, at);
    if (change == NULL)
        fail_msg("seed %lu: nothing is said of expert %zu, on %u nodes", seed, at, after);
    switch (change->why) {
    case SY_BALANCE_SHORT_BUDGET:
    case SY_BALANCE_LEFT_BUDGET: assert_true(f->options.budget_bytes > 0); break;
    case SY_BALANCE_SHORT_ROOM:
    case SY_BALANCE_LEFT_ROOM:
    case SY_BALANCE_LOST: break;
    default:
        fail_msg("seed %lu: expert %zu is on %u nodes: %s", seed, at, after,
                 sy_balance_why_text(change->why));
    }
}

static void check_expert(const fixture *f, const sy_balance_plan *plan, size_t at, uint64_t seed)
{
    const uint32_t n = plan->offset[at + 1] - plan->offset[at];
    const uint32_t n_nodes = n_nodes_of(f);
    uint32_t n_live = 0;

    for (uint32_t i = f->offset[at]; i < f->offset[at + 1]; i++)
        n_live += f->holder[i] != SY_BALANCE_GONE;
    if (f->pinned != NULL && f->pinned[at]) {
        for (uint32_t i = f->offset[at]; i < f->offset[at + 1]; i++) {
            if (f->holder[i] != SY_BALANCE_GONE &&
                !holds(plan->offset, plan->holder, at, f->holder[i]))
                fail_msg("seed %lu: pinned expert %zu was moved", seed, at);
        }
        assert_int_equal(n, n_live);
        return;
    }
    check_minimum(f, plan, at, seed);
    if (n == 0 && n_live > 0) fail_msg("seed %lu: expert %zu lost all its holders", seed, at);
    if (n > SY_MAX(f->options.replicas_max, f->offset[at + 1] - f->offset[at]))
        fail_msg("seed %lu: expert %zu has %u replicas", seed, at, n);
    for (uint32_t i = plan->offset[at]; i < plan->offset[at + 1]; i++) {
        uint32_t n_on_node = 0;

        assert_in_range(plan->holder[i], 0, f->n_devices - 1);
        for (uint32_t k = plan->offset[at]; k < plan->offset[at + 1]; k++) {
            if (i != k && plan->holder[i] == plan->holder[k])
                fail_msg("seed %lu: expert %zu twice on device %u", seed, at, plan->holder[i]);
            n_on_node += f->device[plan->holder[i]].node == f->device[plan->holder[k]].node;
        }
        if (n_on_node > (n + n_nodes - 1) / n_nodes)
            fail_msg("seed %lu: expert %zu has %u of %u replicas on one of %u nodes", seed, at,
                     n_on_node, n, n_nodes);
    }
}

static void check_slots(const fixture *f, const sy_balance_plan *plan, uint64_t seed)
{
    const uint32_t n_all = f->layers * f->experts;
    uint32_t before[FIX_DEVICES_MAX] = {0}, after[FIX_DEVICES_MAX] = {0};

    for (uint32_t i = 0; i < f->offset[n_all]; i++)
        if (f->holder[i] != SY_BALANCE_GONE) before[f->holder[i]]++;
    for (uint32_t i = 0; i < plan->offset[n_all]; i++) after[plan->holder[i]]++;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (after[d] > SY_MAX(f->device[d].slots, before[d]))
            fail_msg("seed %lu: device %u has %u shards in %u slots, before %u", seed, d, after[d],
                     f->device[d].slots, before[d]);
    }
}

static void check_numbers(const fixture *f, const sy_balance_plan *plan, uint64_t seed)
{
    const uint32_t n_all = f->layers * f->experts;
    uint64_t n_loads = 0;
    uint32_t n_without = 0, n_short = 0;

    for (uint32_t at = 0; at < n_all; at++) {
        for (uint32_t i = plan->offset[at]; i < plan->offset[at + 1]; i++)
            n_loads += !holds(f->offset, f->holder, at, plan->holder[i]);
        if (f->pinned != NULL && f->pinned[at]) continue;
        n_without += plan->offset[at] == plan->offset[at + 1];
        n_short += plan->offset[at] < plan->offset[at + 1] &&
                   count_nodes(f, plan->offset, plan->holder, at) < plan->min_nodes;
    }
    assert_int_equal(plan->n_loads, n_loads);
    assert_int_equal(plan->load_bytes, n_loads * FIX_SHARD_BYTES);
    assert_int_equal(plan->n_lost_left, n_without);
    assert_int_equal(plan->n_short_left, n_short);
    if (f->options.budget_bytes > 0 && plan->load_bytes > f->options.budget_bytes)
        fail_msg("seed %lu: %lu bytes, the budget is %lu", seed, plan->load_bytes,
                 f->options.budget_bytes);
    for (uint32_t layer = 0; layer < f->layers; layer++) {
        const sy_balance_layer *const l = &plan->layer[layer];

        if (l->after > l->base * (1.0 + 1e-9))
            fail_msg("seed %lu: layer %u is worse: %g, was %g", seed, layer, l->after, l->base);
        if (f->pinned == NULL) { /* a pinned one's even part is counted with those that are gone */
            const double max = fix_max(f, plan->offset, plan->holder, layer);

            if (max > l->after * (1.0 + 1e-9) || max < l->after * (1.0 - 1e-9))
                fail_msg("seed %lu: layer %u has %g, the plan says %g", seed, layer, max, l->after);
        }
    }
}

static void check_plan(const fixture *f, const sy_balance_plan *plan, uint64_t seed)
{
    for (size_t at = 0; at < (size_t)f->layers * f->experts; at++) check_expert(f, plan, at, seed);
    check_slots(f, plan, seed);
    check_numbers(f, plan, seed);
}

static void every_plan_keeps_the_rules(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROBLEMS; seed++) {
        fixture f = random_problem(seed);
        sy_balance_plan plan = fix_plan(&f), again = fix_plan(&f);
        const uint32_t n_all = f.layers * f.experts;

        check_plan(&f, &plan, seed);
        assert_memory_equal(plan.offset, again.offset, (n_all + 1) * sizeof(*plan.offset));
        assert_memory_equal(plan.holder, again.holder, plan.offset[n_all] * sizeof(*plan.holder));
        sy_balance_plan_free(&again);
        sy_balance_plan_free(&plan);
        fix_close(&f);
    }
}

/* A layer that has less than min_gain to win is left alone, whatever else there would be; and
 * rounds without a budget soon find nothing more to do. (Where a pinned expert's holder is gone,
 * its load is missing from what devices have, but not from the mean.) */
static void a_balanced_placement_stays_as_it_is(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROBLEMS / 3; seed++) {
        fixture f = random_problem(seed);
        int is_done = 0;

        f.options.budget_bytes = 0;
        f.options.min_gain = 0.02;
        for (int round = 0; round < 6 && !is_done; round++) {
            sy_balance_plan plan = fix_plan(&f);

            for (size_t i = 0; i < plan.n_changes; i++) {
                const sy_balance_change *const change = &plan.change[i];
                const sy_balance_layer *const l = &plan.layer[change->layer];

                if (change->n_loads + change->n_drops == 0 || change->why == SY_BALANCE_MINIMUM)
                    continue;
                if (round > 0 && f.pinned == NULL && l->before < l->mean * 1.02)
                    fail_msg("seed %lu round %d: layer %u changes (why %d), and has %g", seed,
                             round, change->layer, l->before / l->mean);
            }
            is_done = plan.n_loads + plan.n_drops == 0;
            fix_apply(&f, &plan);
        }
        if (!is_done) fail_msg("seed %lu: still moving after six rounds", seed);
        fix_close(&f);
    }
}

/* Rounds with a small budget each end where nothing is left to do, and never get worse. */
static void small_budgets_arrive_as_well(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROBLEMS / 10; seed++) {
        fixture f = random_problem(seed);
        double ratio = 1e9;
        int is_done = 0;

        f.options.budget_bytes = 3 * FIX_SHARD_BYTES;
        f.options.min_gain = 0.02;
        for (int round = 0; round < 400 && !is_done; round++) {
            sy_balance_plan plan = fix_plan(&f);

            check_plan(&f, &plan, seed);
            is_done = plan.n_loads + plan.n_drops == 0;
            if (plan.n_lost + plan.n_short == 0 && plan.after.mean > ratio * (1.0 + 1e-9))
                fail_msg("seed %lu: %g, was %g", seed, plan.after.mean, ratio);
            ratio = plan.n_lost_left + plan.n_short_left == 0 ? plan.after.mean : 1e9;
            fix_apply(&f, &plan);
        }
        if (!is_done) fail_msg("seed %lu: no end", seed);
        fix_close(&f);
    }
}

/* A minimum needs no more than the slots for it: where every device can hold everything, and no
 * budget is in the way, nobody is below it. */
static void with_room_everybody_has_the_minimum(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROBLEMS / 3; seed++) {
        fixture f = random_problem(seed);
        sy_balance_plan plan;

        f.options.budget_bytes = 0;
        f.options.replicas_max = SY_MAX(f.options.replicas_max, 3);
        f.options.min_replicas = 1 + (uint32_t)(seed % 3);
        for (uint32_t d = 0; d < f.n_devices; d++) f.device[d].slots = f.layers * f.experts;
        plan = fix_plan(&f);
        check_plan(&f, &plan, seed);
        if (plan.n_lost_left + plan.n_short_left > 0)
            fail_msg("seed %lu: %u without a holder, %u below the minimum of %u", seed,
                     plan.n_lost_left, plan.n_short_left, plan.min_nodes);
        sy_balance_plan_free(&plan);
        fix_close(&f);
    }
}

/* Equal devices, one on each node, whose slots are just enough, and one of them dies. */
static void one_node_of_many_dies_and_two_holders_stay_two(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint64_t random = sy_splitmix64(seed);
        const uint32_t n_nodes = 3 + below(&random, 6), experts = 6 + below(&random, 30);
        fixture f = fix_open(2, experts, n_nodes, 1, (2 * experts + n_nodes - 2) / (n_nodes - 1));
        const uint32_t dead = n_nodes - 1;
        sy_balance_plan plan;

        balance_fill_layer(f.load, experts, BALANCE_LOGNORMAL, 1.0, &random);
        balance_fill_layer(f.load + experts, experts, BALANCE_ZIPF, 1.0, &random);
        fix_spread_twice(&f);
        for (uint32_t i = 0; i < f.offset[2 * experts]; i++)
            if (f.holder[i] == dead) f.holder[i] = SY_BALANCE_GONE;
        f.n_devices--;
        f.options = (sy_balance_options){.replicas_max = 4, .min_replicas = 2};
        plan = fix_plan(&f);
        check_plan(&f, &plan, seed);
        if (plan.n_short == 0 || plan.n_short_left > 0)
            fail_msg("seed %lu: %u experts had one holder left, %u still do", seed, plan.n_short,
                     plan.n_short_left);
        sy_balance_plan_free(&plan);
        fix_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_keeps_the_rules),
        cmocka_unit_test(a_balanced_placement_stays_as_it_is),
        cmocka_unit_test(small_budgets_arrive_as_well),
        cmocka_unit_test(with_room_everybody_has_the_minimum),
        cmocka_unit_test(one_node_of_many_dies_and_two_holders_stay_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
