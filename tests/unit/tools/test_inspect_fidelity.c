/* test_inspect_fidelity.c - what rounding does to the bundled checkpoint, and what is refused
 * before anything is loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inspect_fidelity.h"

#define TRIO SY_SOURCE_DIR "/models/trio"

static inspect_facts facts;

static int open_facts(void **state)
{
    sy_error err;

    (void)state;
    return inspect_gather(&facts, TRIO, 0, &err) != SY_OK;
}

static int close_facts(void **state)
{
    (void)state;
    inspect_facts_free(&facts);
    return 0;
}

static inspect_fidelity measure(uint32_t n_tokens)
{
    inspect_fidelity f;
    sy_error err;

    if (inspect_fidelity_measure(&f, &facts, n_tokens, UINT64_MAX, &err) != SY_OK)
        fail_msg("%s", err.message);
    return f;
}

static const inspect_fidelity_row *row(const inspect_fidelity *f, const char *name)
{
    for (size_t i = 0; i < f->n_rows; i++)
        if (strcmp(f->row[i].name, name) == 0) return &f->row[i];
    fail_msg("there is no row \"%s\"", name);
    return NULL;
}

static void expect_refusal(uint32_t n_tokens, uint64_t memory_bytes, sy_status status,
                           const char *text)
{
    inspect_fidelity f;
    sy_error err;
    const sy_status st = inspect_fidelity_measure(&f, &facts, n_tokens, memory_bytes, &err);

    if (st != status || strstr(err.message, text) == NULL)
        fail_msg("%s: \"%s\", where \"%s\" was due", sy_status_name(st), err.message, text);
}

static void the_model_as_stored_does_not_differ_from_itself(void **state)
{
    const inspect_fidelity f = measure(5);
    const fidelity_diff *d = &row(&f, "as stored")->diff;

    (void)state;
    assert_int_equal(d->n_rows, 20);
    assert_int_equal(d->n_same_argmax, 20);
    assert_int_equal(d->n_experts, 20 * facts.desc->top_k * facts.desc->n_layers);
    assert_int_equal(d->n_same_experts, d->n_experts);
    assert_true(d->relative_max == 0 && d->absolute_mean == 0 && d->kl_max_nats == 0);
}

static void fewer_bits_and_more_tiers_differ_more(void **state)
{
    static const char *const less_more[][2] = {
        {"as stored", "experts q8"}, {"experts q8", "experts q4"}, {"trunk q8", "trunk q4"},
        {"both q8", "both q4"},      {"experts q4", "both q4"},    {"experts q8", "both q8"}};
    const inspect_fidelity f = measure(16);

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(less_more); i++) {
        const double less = row(&f, less_more[i][0])->diff.absolute_mean;
        const double more = row(&f, less_more[i][1])->diff.absolute_mean;

        if (!(less < more))
            fail_msg("%s: %g, %s: %g", less_more[i][0], less, less_more[i][1], more);
    }
}

/* More rows than a step, more than are compared at once, and a step that ends inside a prompt. */
static void several_steps_cover_every_position_once(void **state)
{
    const inspect_fidelity f = measure(101);
    const fidelity_diff *d = &row(&f, "both q8, q8 rows")->diff;

    (void)state;
    assert_int_equal(d->n_rows, 404);
    assert_true(d->n_same_argmax > 0.9 * 404);
    assert_true(row(&f, "as stored")->diff.relative_max == 0);
}

static void what_does_not_fit_is_refused_with_what_would_be_needed(void **state)
{
    (void)state;
    expect_refusal(64, 1000000, SY_ELIMIT, "of memory, but 1.0 MB is available");
    expect_refusal(1, 1000000, SY_ELIMIT, "the whole model");
}

static void more_memory_is_needed_for_more_tokens(void **state)
{
    const inspect_fidelity few = measure(1), many = measure(64);

    (void)state;
    assert_true(few.needed_bytes > sy_model_bytes(facts.model));
    assert_true(many.needed_bytes > few.needed_bytes + 255 * sizeof(float) * facts.desc->vocab);
}

static void prompts_longer_than_the_context_are_refused(void **state)
{
    (void)state;
    expect_refusal(facts.desc->context + 1, UINT64_MAX, SY_EINVAL, "the model's context has 1024");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_as_stored_does_not_differ_from_itself),
        cmocka_unit_test(fewer_bits_and_more_tiers_differ_more),
        cmocka_unit_test(several_steps_cover_every_position_once),
        cmocka_unit_test(what_does_not_fit_is_refused_with_what_would_be_needed),
        cmocka_unit_test(more_memory_is_needed_for_more_tokens),
        cmocka_unit_test(prompts_longer_than_the_context_are_refused),
    };

    return cmocka_run_group_tests(tests, open_facts, close_facts);
}
