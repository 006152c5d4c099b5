/* test_balance_dense.c - layers without experts between others: the plan is that of a model which
 * has only the others. */
#include "balance_fixture.h"
#include "sy_hash.h"

#define N_PROBLEMS 120

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = sy_splitmix64(*state);
    return (uint32_t)(*state % n);
}

/* Layers of experts spread over devices, one expert in eight lost. */
static fixture random_layers(uint64_t *state)
{
    const uint32_t layers = 1 + below(state, 4), experts = 2 + below(state, 20);
    const uint32_t n_devices = 2 + below(state, 5);
    fixture f = fix_open(layers, experts, n_devices, 1 + below(state, 2), experts / n_devices + 2);

    fix_spread(&f);
    for (uint32_t i = 0; i < layers * experts; i++) {
        f.load[i] = below(state, 100);
        if (below(state, 8) == 0) f.holder[i] = SY_BALANCE_GONE;
    }
    for (uint32_t d = 0; d < n_devices; d++) f.device[d].slots += below(state, 2 * layers);
    if (below(state, 2) == 0) f.options.budget_bytes = FIX_SHARD_BYTES * (1 + below(state, 20));
    f.options.min_replicas = below(state, 2) * 2;
    return f;
}

/* The same problem with layers without experts strewn in. layer_of: [f->layers] where each went. */
static sy_balance_input strew(fixture *out, uint32_t *layer_of, const fixture *f, uint64_t *state)
{
    sy_grid grid = {.experts = f->experts};
    sy_balance_input input;
    uint32_t at = 0;

    *out = fix_open(3 * f->layers + 1, f->experts, f->n_devices, 1, 1);
    memcpy(out->device, f->device, sizeof(out->device));
    out->options = f->options;
    out->offset = calloc((size_t)out->layers * f->experts + 1, sizeof(*out->offset));
    out->holder = calloc((size_t)f->layers * f->experts, sizeof(*out->holder));
    for (uint32_t layer = 0; layer < f->layers; layer++) {
        for (uint32_t n = below(state, 3); n > 0; n--) sy_grid_set(&grid, grid.layers++, 0);
        layer_of[layer] = grid.layers++;
    }
    grid.layers += below(state, 2);
    for (uint32_t i = layer_of[f->layers - 1] + 1; i < grid.layers; i++) sy_grid_set(&grid, i, 0);
    for (uint32_t i = 0, layer = 0; i < grid.layers * f->experts; i++) {
        while (layer < f->layers && layer_of[layer] < i / f->experts) layer++;
        if (layer < f->layers && layer_of[layer] == i / f->experts) {
            out->load[i] = f->load[layer * f->experts + i % f->experts];
            out->holder[at++] = f->holder[layer * f->experts + i % f->experts];
        }
        out->offset[i + 1] = at;
    }
    input = fix_input(out);
    input.grid = grid;
    return input;
}

static void check_same(const sy_balance_plan *plan, const sy_balance_plan *plain,
                       const sy_balance_input *input, const uint32_t *layer_of, uint64_t seed)
{
    char want[4096];

    for (uint32_t layer = 0; layer < plain->layers; layer++) {
        snprintf(want, sizeof(want), "%s", fix_show(plain, layer));
        if (strcmp(want, fix_show(plan, layer_of[layer])) != 0)
            fail_msg("seed %llu, layer %u: %s, and without others %s", (unsigned long long)seed,
                     layer_of[layer], fix_show(plan, layer_of[layer]), want);
        assert_int_equal(plan->layer[layer_of[layer]].verdict, plain->layer[layer].verdict);
    }
    for (uint32_t layer = 0; layer < plan->layers; layer++) {
        const size_t first = (size_t)layer * plan->experts;

        if (sy_grid_has(&input->grid, layer)) continue;
        assert_int_equal(plan->offset[first], plan->offset[first + plan->experts]);
        assert_int_equal(plan->layer[layer].verdict, SY_BALANCE_NO_EXPERTS);
        assert_int_equal(plan->layer[layer].n_loads, 0);
    }
    assert_int_equal(plan->n_loads, plain->n_loads);
    assert_int_equal(plan->n_changes, plain->n_changes);
    assert_int_equal(plan->n_lost, plain->n_lost);
    assert_int_equal(plan->n_lost_left, plain->n_lost_left);
    assert_int_equal(plan->n_short, plain->n_short);
    assert_true(plan->before.mean == plain->before.mean && plan->after.mean == plain->after.mean);
    assert_true(plan->after.whole == plain->after.whole);
}

static void layers_without_experts_change_nothing_for_the_others(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROBLEMS; seed++) {
        uint64_t random = sy_splitmix64(seed);
        fixture f = random_layers(&random);
        uint32_t layer_of[4];
        fixture with;
        sy_balance_input input = strew(&with, layer_of, &f, &random);
        sy_balance_plan plan, plain = fix_plan(&f);
        sy_error err;

        if (sy_balance(&plan, &input, &with.options, &err) != SY_OK) fail_msg("%s", err.message);
        check_same(&plan, &plain, &input, layer_of, seed);
        sy_balance_plan_free(&plan);
        sy_balance_plan_free(&plain);
        fix_close(&with);
        fix_close(&f);
    }
}

static void a_model_without_load_and_with_dense_layers_is_left_as_it_is(void **state)
{
    fixture f = fix_open(2, 2, 2, 1, 2);
    sy_balance_input input;
    sy_balance_plan plan;

    (void)state;
    fix_place(&f, "- - 0 1");
    input = fix_input(&f);
    sy_grid_set(&input.grid, 0, 0);
    assert_int_equal(sy_balance(&plan, &input, &f.options, NULL), SY_OK);
    assert_int_equal(plan.n_changes, 0);
    assert_int_equal(plan.n_lost, 0);
    assert_int_equal(plan.layer[0].verdict, SY_BALANCE_NO_EXPERTS);
    assert_int_equal(plan.layer[1].verdict, SY_BALANCE_NO_LOAD);
    assert_true(plan.after.mean == 1.0 && plan.after.whole == 1.0);
    sy_balance_plan_free(&plan);
    fix_close(&f);
}

static void load_or_holders_of_a_layer_without_experts_are_refused(void **state)
{
    fixture f = fix_open(2, 2, 2, 1, 2);
    sy_balance_input input;
    sy_balance_plan plan;
    sy_error err;

    (void)state;
    fix_place(&f, "0 - 0 1");
    input = fix_input(&f);
    sy_grid_set(&input.grid, 0, 0);
    assert_int_equal(sy_balance(&plan, &input, &f.options, &err), SY_EINVAL);
    assert_string_equal(err.message, "0/0: layer 0 has no experts");
    fix_close(&f);
    f = fix_open(2, 2, 2, 1, 2);
    fix_place(&f, "- - 0 1");
    f.load[1] = 1.0;
    input = fix_input(&f);
    sy_grid_set(&input.grid, 0, 0);
    assert_int_equal(sy_balance(&plan, &input, &f.options, &err), SY_EINVAL);
    assert_string_equal(err.message, "0/1: layer 0 has no experts");
    fix_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_without_experts_change_nothing_for_the_others),
        cmocka_unit_test(a_model_without_load_and_with_dense_layers_is_left_as_it_is),
        cmocka_unit_test(load_or_holders_of_a_layer_without_experts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
