/* test_halves.c - a step divided in two: the same bits as undivided, both halves with the experts
 * at once, and a failure in one half stays with the sequences it belongs to. */
#include "effort.h"
#include "test_model.h"

#include <sched.h>

#include "sy_moe_rows.h"

#define TRIO SY_SOURCE_DIR "/models/trio"

enum { VOCAB = 2048, HIDDEN = 192, LAYERS_MAX = 64, N_REQUESTS = 9, TOKENS = 12 };

/* The experts as one half sees them, with what a test wants to happen there. */
typedef struct half_moe {
    struct fixture *f;
    int id;
    sy_moe real;
    sy_moe_local *local; /* the second half's own */
    _Atomic uint64_t bad_request;
    _Atomic uint32_t bad_layer;
    _Atomic int fail_all;
    _Atomic uint32_t calls, n_rows_max;
} half_moe;

typedef struct fixture {
    test_model m;
    half_moe half[2];
    _Atomic int hold; /* calls wait while it is set: keeps the engine busy without a clock */
    _Atomic int held; /* calls that wait */
    /* With `meet` set, each half's call waits until the other's of the same layer has begun. */
    _Atomic int meet;
    _Atomic uint32_t begun[2];
    _Atomic int never_met;
} fixture;

static void wait_for_the_other(fixture *f, int id, uint32_t count)
{
    const int64_t until_us = sy_clock_us() + 60 * 1000000;

    while (f->begun[!id] < count) {
        if (sy_clock_us() > until_us) {
            f->never_met = 1;
            return;
        }
        sched_yield();
    }
}

static void fail_rows_of(half_moe *h, sy_moe_call *call)
{
    sy_error err = {0};

    for (uint32_t t = 0; t < call->n_rows; t++) {
        if (call->request[t] != h->bad_request || call->layer != h->bad_layer) continue;
        memset(call->y + (size_t)t * HIDDEN, 0xff, HIDDEN * sizeof(float)); /* NaN */
        sy_error_clear(&err);
        sy_error_set(&err, SY_EUNAVAILABLE, "no node answers in half %d", h->id);
        call->failed[t] = sy_moe_add_error(call, &err);
    }
}

static sy_status half_layer(void *ctx, sy_moe_call *call)
{
    half_moe *h = ctx;
    fixture *f = h->f;

    h->calls++;
    if (call->n_rows > h->n_rows_max) h->n_rows_max = call->n_rows;
    if (f->hold) {
        f->held++;
        while (f->hold) sched_yield();
        f->held--;
    }
    if (f->meet) wait_for_the_other(f, h->id, ++f->begun[h->id]);
    if (h->fail_all) return sy_error_set(&call->error, SY_EUNAVAILABLE, "half %d fails", h->id);
    const sy_status st = h->real.layer(h->real.ctx, call);
    if (st == SY_OK) fail_rows_of(h, call);
    return st;
}

static void open_fixture(fixture *f, sy_engine_config config)
{
    sy_error err = {0};

    memset(f, 0, sizeof(*f));
    for (int i = 0; i < 2; i++) {
        f->half[i].f = f;
        f->half[i].id = i;
        f->half[i].bad_request = UINT64_MAX;
    }
    config.moe = (sy_moe){.ctx = &f->half[0], .layer = half_layer};
    config.second_moe = (sy_moe){.ctx = &f->half[1], .layer = half_layer};
    /* The engine takes its operations at open, so the real ones are put in place before anything is
     * submitted. */
    test_model_open(&f->m, TRIO, "auto", 2, config);
    must(sy_moe_local_open(&f->half[1].local, f->m.model, sy_trunk_kernels(f->m.trunk),
                           sy_trunk_precision(f->m.trunk), f->m.pool, NULL, NULL, NULL, &err),
         &err);
    f->half[0].real = sy_moe_local_ops(f->m.local);
    f->half[1].real = sy_moe_local_ops(f->half[1].local);
}

static void close_fixture(fixture *f)
{
    sy_engine_close(f->m.engine);
    f->m.engine = NULL;
    sy_moe_local_close(f->half[1].local);
    test_model_close(&f->m);
}

/* Request i: a prompt of its own, of 1 to 40 tokens; every third one samples. */
static test_output *submit(fixture *f, int i, uint32_t max_tokens, uint64_t *id)
{
    static const uint32_t length[N_REQUESTS] = {14, 1, 40, 3, 27, 2, 33, 8, 19};
    uint32_t prompt[40] = {0};
    test_output *out = malloc(sizeof(*out));
    sy_gen_params p = test_params(out, prompt, length[i], max_tokens);

    for (uint32_t k = 0; k < length[i]; k++) prompt[k] = (uint32_t)(i * 211 + k * 37 + 5) % VOCAB;
    test_output_init(out, VOCAB);
    p.want_logits = 1;
    p.ignore_eos = 1;
    if (i % 3 == 0) p.sampler = (sy_sampler){.temperature = 1, .top_p = 1, .seed = 9};
    if (i % 3 == 0) p.sampler.repetition_penalty = 1;
    const uint64_t got = test_submit(&f->m, &p);
    if (id != NULL) *id = got;
    return out;
}

static void release(test_output *out)
{
    assert_int_equal(out->n_ended, 1);
    test_output_free(out);
    free(out);
}

/* Request 0 holds the engine in its first layer, so that all others meet in the step after. */
static void submit_all(fixture *f, test_output **out, uint64_t *id)
{
    f->hold = 1;
    for (int i = 0; i < N_REQUESTS; i++) {
        out[i] = submit(f, i, TOKENS, &id[i]);
        while (i == 0 && f->held == 0) sched_yield();
    }
    f->hold = 0;
}

static void expect_same(const test_output *got, const test_output *want, const char *what)
{
    assert_int_equal(got->error.status, SY_OK);
    assert_int_equal(got->n_tokens, want->n_tokens);
    assert_memory_equal(got->token, want->token, want->n_tokens * sizeof(uint32_t));
    for (size_t i = 0; i < (size_t)want->n_tokens * VOCAB; i++)
        if (memcmp(&got->logits[i], &want->logits[i], sizeof(float)) != 0)
            fail_msg("%s: logit %zu of token %zu is %.9g, not %.9g", what, i % VOCAB, i / VOCAB,
                     (double)got->logits[i], (double)want->logits[i]);
}

/* What each request gives alone, one after the other, without halves. */
static void make_wanted(test_output **want)
{
    fixture f;

    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 0});
    for (int i = 0; i < N_REQUESTS; i++) {
        want[i] = submit(&f, i, TOKENS, NULL);
        test_wait(want[i]);
    }
    assert_int_equal(f.half[1].calls, 0);
    close_fixture(&f);
}

static test_output *wanted[N_REQUESTS];

static int set_up(void **state)
{
    (void)state;
    make_wanted(wanted);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < N_REQUESTS; i++) release(wanted[i]);
    return 0;
}

static void divided_steps_give_the_bits_of_undivided_ones(void **state)
{
    /* Small steps cut prompts at every place, and pieces across the halves. */
    static const uint32_t step_rows[] = {2, 3, 7, 16, 256};
    fixture f;
    test_output *out[N_REQUESTS];
    uint64_t id[N_REQUESTS];

    (void)state;
    for (size_t s = 0; s < SY_COUNT_OF(step_rows); s += ONLY_RACES ? 2 : 1) {
        open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2,
                                            .step_rows_max = step_rows[s],
                                            .running_max = s < 2 ? 2 : 0});
        submit_all(&f, out, id);
        for (int i = 0; i < N_REQUESTS; i++) {
            test_wait(out[i]);
            expect_same(out[i], wanted[i], "divided");
            release(out[i]);
        }
        assert_true(f.half[1].calls > 0);
        close_fixture(&f);
    }
}

static void both_halves_are_with_the_experts_at_the_same_time(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2});
    f.meet = 1;
    test_output *out = submit(&f, 2, 1, NULL); /* a single step, its prompt in both halves */
    test_wait(out);
    assert_int_equal(f.never_met, 0);
    assert_int_equal(f.half[0].calls, f.half[1].calls);
    assert_memory_equal(out->logits, wanted[2]->logits, VOCAB * sizeof(float));
    release(out);
    close_fixture(&f);
}

static void a_step_with_fewer_rows_is_not_divided(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 41});
    test_output *out = submit(&f, 2, TOKENS, NULL);
    test_wait(out);
    expect_same(out, wanted[2], "undivided");
    assert_int_equal(f.half[1].calls, 0);
    assert_int_equal(f.half[0].n_rows_max, 40);
    release(out);
    close_fixture(&f);
}

/* Every request in turn fails in one of the halves, in the first, a middle, or the last layer. */
static void what_fails_in_one_half_leaves_both_and_nobody_else(void **state)
{
    fixture f;
    test_output *out[N_REQUESTS];
    uint64_t id[N_REQUESTS];

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2, .step_rows_max = 48});
    const uint32_t layers = sy_model_describe(f.m.model)->n_layers;
    for (int bad = 0; bad < N_REQUESTS; bad += ONLY_RACES ? 3 : 1)
        for (int side = 0; side < 2; side++) {
            half_moe *h = &f.half[side];
            f.hold = 1;
            h->bad_layer = (uint32_t)(bad + side) % 3 * (layers - 1) / 2;
            for (int i = 0; i < N_REQUESTS; i++) {
                out[i] = submit(&f, i, TOKENS, &id[i]);
                if (i == bad) h->bad_request = id[i];
                while (i == 0 && f.held == 0) sched_yield();
            }
            f.hold = 0;
            for (int i = 0; i < N_REQUESTS; i++) {
                test_wait(out[i]);
                if (i != bad) expect_same(out[i], wanted[i], "beside a failure");
                /* It may never have had a row on this side. */
                else if (out[i]->error.status != SY_OK)
                    assert_int_equal(out[i]->error.status, SY_EUNAVAILABLE);
                release(out[i]);
            }
            h->bad_request = UINT64_MAX;
        }
    close_fixture(&f);
}

static void a_prompt_across_the_halves_fails_as_a_whole_in_either(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2});
    const uint32_t layers = sy_model_describe(f.m.model)->n_layers;
    for (int side = 0; side < 2; side++)
        for (uint32_t layer = 0; layer < layers; layer++) {
            half_moe *h = &f.half[side];
            h->bad_layer = layer;
            h->bad_request = (uint64_t)side * layers + layer + 1; /* ids count from 1 */
            const uint32_t before = f.half[!side].calls;
            test_output *out = submit(&f, 2, TOKENS, NULL);
            test_wait(out);
            assert_int_equal(out->error.status, SY_EUNAVAILABLE);
            assert_non_null(strstr(out->error.message, side == 0 ? "half 0" : "half 1"));
            assert_int_equal(out->n_tokens, 0);
            /* The other half was one layer ahead at most, and went no further. */
            assert_in_range(f.half[!side].calls - before, 1, layer + 2);
            release(out);
            h->bad_request = UINT64_MAX;
        }
    test_output *out = submit(&f, 0, TOKENS, NULL);
    test_wait(out);
    expect_same(out, wanted[0], "afterwards");
    release(out);
    close_fixture(&f);
}

static void a_call_that_fails_as_a_whole_ends_its_half_and_serving_goes_on(void **state)
{
    fixture f;
    test_output *out[2];

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2});
    f.half[1].fail_all = 1;
    f.hold = 1;
    out[0] = submit(&f, 1, 1, NULL); /* one row: never divided; it holds the engine */
    while (f.held == 0) sched_yield();
    test_output *first = submit(&f, 2, TOKENS, NULL), *second = submit(&f, 2, TOKENS, NULL);
    f.hold = 0;
    test_wait(out[0]);
    test_wait(first);
    test_wait(second); /* rows 40 to 79: the second half */
    assert_int_equal(out[0]->error.status, SY_OK);
    assert_string_equal(second->error.message, "half 1 fails");
    if (first->error.status == SY_OK) expect_same(first, wanted[2], "the first half");
    f.half[1].fail_all = 0;
    out[1] = submit(&f, 2, TOKENS, NULL);
    test_wait(out[1]);
    expect_same(out[1], wanted[2], "afterwards");
    release(first);
    release(second);
    release(out[0]);
    release(out[1]);
    close_fixture(&f);
}

static void requests_cancelled_in_the_middle_disturb_nobody(void **state)
{
    fixture f;
    test_output *out[N_REQUESTS], *cancelled[4];
    uint64_t id[N_REQUESTS], cancelled_id[4];

    (void)state;
    open_fixture(&f, (sy_engine_config){.overlap_rows_min = 2, .step_rows_max = 16});
    f.hold = 1;
    for (int i = 0; i < N_REQUESTS; i++) {
        if (i % 2 == 0 && i < 8) cancelled[i / 2] = submit(&f, 2, 0, &cancelled_id[i / 2]);
        out[i] = submit(&f, i, TOKENS, &id[i]);
    }
    f.hold = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t calls = f.half[1].calls;
        while (f.half[1].calls < calls + 5) sched_yield();
        sy_engine_cancel(f.m.engine, cancelled_id[k]);
    }
    for (int k = 0; k < 4; k++) {
        test_wait(cancelled[k]);
        assert_int_equal(cancelled[k]->error.status, SY_ECANCELLED);
        release(cancelled[k]);
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        test_wait(out[i]);
        expect_same(out[i], wanted[i], "beside the cancelled");
        release(out[i]);
    }
    close_fixture(&f);
}

static void a_long_prompt_comes_in_small_pieces_while_others_decode(void **state)
{
    fixture f;
    test_output *decoding, *prompt;

    (void)state;
    open_fixture(&f, (sy_engine_config){.prompt_rows_max = 4});
    f.hold = 1;
    decoding = submit(&f, 1, TOKENS, NULL);
    while (f.held == 0) sched_yield();
    prompt = submit(&f, 2, TOKENS, NULL);
    f.half[0].n_rows_max = 0;
    f.hold = 0;
    test_wait(decoding);
    test_wait(prompt);
    /* Ten steps with 4 of its 40 rows; the other one has 12 to make. */
    assert_int_equal(f.half[0].n_rows_max, 5);
    assert_int_equal(f.half[1].calls, 0);
    expect_same(decoding, wanted[1], "the decoding one");
    expect_same(prompt, wanted[2], "the prompt");
    release(decoding);
    release(prompt);
    f.half[0].n_rows_max = 0;
    prompt = submit(&f, 2, 1, NULL);
    test_wait(prompt);
    assert_int_equal(f.half[0].n_rows_max, 40); /* alone it waits for nobody's sake */
    release(prompt);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divided_steps_give_the_bits_of_undivided_ones),
        cmocka_unit_test(both_halves_are_with_the_experts_at_the_same_time),
        cmocka_unit_test(a_step_with_fewer_rows_is_not_divided),
        cmocka_unit_test(what_fails_in_one_half_leaves_both_and_nobody_else),
        cmocka_unit_test(a_prompt_across_the_halves_fails_as_a_whole_in_either),
        cmocka_unit_test(a_call_that_fails_as_a_whole_ends_its_half_and_serving_goes_on),
        cmocka_unit_test(requests_cancelled_in_the_middle_disturb_nobody),
        cmocka_unit_test(a_long_prompt_comes_in_small_pieces_while_others_decode),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
