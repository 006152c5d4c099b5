/* test_engine.c - what the engine promises beside right numbers: limits, cancellation, stop texts,
 * and that a failure stays with the sequence it belongs to. */
#include "test_model.h"

#include <sched.h>
#include <stdio.h>

#include "sy_moe_rows.h"

#define TRIO SY_SOURCE_DIR "/models/trio"

static const uint32_t prompt[] = {33,  728, 70,  567,  264,  25,  544,
                                  338, 706, 516, 1768, 1087, 283, 290};
enum { N_PROMPT = 14 };

/* A MoE block that fails rows of one request, or whole calls, on command; otherwise the real one.
 */
typedef struct faulty_moe {
    sy_moe real;
    _Atomic uint64_t bad_request;
    _Atomic int fail_all;
    _Atomic int
        degrade;      /* rows that may degrade do, in layer 1; every row has other weights there */
    _Atomic int hold; /* calls wait while it is set: keeps the engine busy without a clock */
} faulty_moe;

static sy_status faulty_layer(void *ctx, sy_moe_call *call)
{
    faulty_moe *f = ctx;
    sy_error err;

    while (f->hold) sched_yield();
    if (f->fail_all) return sy_error_set(&call->error, SY_EUNAVAILABLE, "no router answers");
    sy_status st = f->real.layer(f->real.ctx, call);
    for (uint32_t t = 0; f->degrade && call->layer == 1 && t < call->n_rows; t++)
        call->note[t] |= SY_MOE_OTHER_WEIGHTS | (call->may_degrade[t] ? SY_MOE_DEGRADED : 0);
    for (uint32_t t = 0; t < call->n_rows; t++)
        if (call->request[t] == f->bad_request && call->layer == 2) {
            memset(call->y + (size_t)t * 192, 0xff,
                   192 * sizeof(float)); /* NaN: must not reach anybody */
            sy_error_clear(&err);
            sy_error_set(&err, SY_EUNAVAILABLE, "no node answers for layer 2 expert 5");
            sy_error_where(&err, "EXPERT_UNREACHABLE", 2, 5, "expert-0");
            call->failed[t] = sy_moe_add_error(call, &err);
        }
    return st;
}

typedef struct fixture {
    test_model m;
    faulty_moe moe;
} fixture;

static void open_faulty(fixture *f, sy_engine_config config)
{
    memset(f, 0, sizeof(*f));
    config.moe = (sy_moe){.ctx = &f->moe, .layer = faulty_layer};
    f->moe.bad_request = UINT64_MAX;
    /* The engine takes its operations at open, so the real ones are put in place before anything is
     * submitted. */
    test_model_open(&f->m, TRIO, "auto", 2, config);
    f->moe.real = sy_moe_local_ops(f->m.local);
}

static test_output *submit(test_model *m, sy_gen_params *params, uint64_t *id)
{
    test_output *out = malloc(sizeof(*out));
    uint64_t ignored;

    test_output_init(out, 2048);
    params->user = out;
    *(id == NULL ? &ignored : id) = test_submit(m, params);
    return out;
}

static void release(test_output *out)
{
    assert_int_equal(out->n_ended, 1); /* exactly one last event */
    test_output_free(out);
    free(out);
}

static void a_failed_expert_fails_its_own_request_and_nobody_else(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 32);
    uint64_t id[4];
    test_output *out[4], *alone;

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.want_logits = 1;
    alone = submit(&f.m, &p, NULL);
    test_wait(alone);
    f.moe.hold = 1;
    f.moe.bad_request = 3; /* ids count from 1: the second of the four below */
    for (int i = 0; i < 4; i++) out[i] = submit(&f.m, &p, &id[i]);
    f.moe.hold = 0;
    for (int i = 0; i < 4; i++) {
        test_wait(out[i]);
        if (id[i] == 3) {
            assert_int_equal(out[i]->error.status, SY_EUNAVAILABLE);
            assert_int_equal(out[i]->error.layer, 2);
            assert_int_equal(out[i]->error.expert, 5);
            assert_string_equal(out[i]->error.node, "expert-0");
            continue;
        }
        assert_int_equal(out[i]->error.status, SY_OK);
        assert_memory_equal(out[i]->logits, alone->logits, 32 * 2048 * sizeof(float));
    }
    for (int i = 0; i < 4; i++) release(out[i]);
    release(alone);
    test_model_close(&f.m);
}

static void a_layer_that_fails_as_a_whole_ends_requests_with_its_reason_and_serving_goes_on(
    void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 8);
    test_output *out;

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    f.moe.fail_all = 1;
    out = submit(&f.m, &p, NULL);
    test_wait(out);
    assert_int_equal(out->error.status, SY_EUNAVAILABLE);
    assert_string_equal(out->error.message, "no router answers");
    release(out);
    f.moe.fail_all = 0;
    out = submit(&f.m, &p, NULL);
    test_wait(out);
    assert_int_equal(out->error.status, SY_OK);
    assert_int_equal(out->n_tokens, 8);
    release(out);
    test_model_close(&f.m);
}

static void cancelling_ends_a_running_and_a_waiting_request(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 0);
    uint64_t running, waiting;
    test_output *a, *b;

    (void)state;
    open_faulty(&f, (sy_engine_config){.running_max = 1});
    p.ignore_eos = 1;
    f.moe.hold = 1;
    a = submit(&f.m, &p, &running);
    b = submit(&f.m, &p, &waiting);
    sy_engine_cancel(f.m.engine, running);
    sy_engine_cancel(f.m.engine, waiting);
    sy_engine_cancel(f.m.engine, 12345); /* nobody: nothing happens */
    f.moe.hold = 0;
    test_wait(a);
    test_wait(b);
    assert_int_equal(a->error.status, SY_ECANCELLED);
    assert_int_equal(b->error.status, SY_ECANCELLED);
    assert_int_equal(sy_engine_wait_idle(f.m.engine, sy_clock_us() + 60000000), 1);
    sy_engine_load load;
    sy_engine_get_load(f.m.engine, &load);
    assert_int_equal(load.running + load.waiting, 0);
    release(a);
    release(b);
    test_model_close(&f.m);
}

static void past_the_queue_limit_a_request_is_refused_at_once_with_the_limit(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 4);
    test_output *out[3];
    sy_error err = {0};
    uint64_t id = 0;

    (void)state;
    open_faulty(&f, (sy_engine_config){.running_max = 1, .queue_max = 2});
    f.moe.hold = 1;
    out[0] = submit(&f.m, &p, NULL);
    /* The first is running once the queue is empty again. */
    for (sy_engine_load load = {.waiting = 1}; load.waiting > 0; sched_yield())
        sy_engine_get_load(f.m.engine, &load);
    out[1] = submit(&f.m, &p, NULL);
    out[2] = submit(&f.m, &p, NULL);
    assert_int_equal(sy_engine_submit(f.m.engine, &p, &id, &err), SY_ELIMIT);
    assert_non_null(strstr(err.message, "2 requests wait already"));
    f.moe.hold = 0;
    for (int i = 0; i < 3; i++) {
        test_wait(out[i]);
        assert_int_equal(out[i]->error.status, SY_OK);
        release(out[i]);
    }
    test_model_close(&f.m);
}

static void expect_refusal(fixture *f, sy_gen_params p, sy_status st, const char *text)
{
    sy_error err = {0};
    uint64_t id;

    assert_int_equal(sy_engine_submit(f->m.engine, &p, &id, &err), st);
    if (strstr(err.message, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
}

static void requests_that_make_no_sense_are_refused_with_the_reason(void **state)
{
    static const uint32_t past[] = {2048};
    static uint32_t long_prompt[1024];
    static const char *empty_stop[] = {""};
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 4), q;

    (void)state;
    open_faulty(&f, (sy_engine_config){.kv_bytes_max = 64 * 2048}); /* a handful of pages */
    q = p, q.n_prompt = 0;
    expect_refusal(&f, q, SY_EINVAL, "empty");
    q = p, q.prompt = long_prompt, q.n_prompt = 1024;
    expect_refusal(&f, q, SY_EINVAL, "context is 1024");
    q = p, q.prompt = past, q.n_prompt = 1;
    expect_refusal(&f, q, SY_EINVAL, "vocabulary has 2048");
    q = p, q.n_stops = 17;
    expect_refusal(&f, q, SY_EINVAL, "at most 16");
    q = p, q.n_stops = 1, q.stop = empty_stop;
    expect_refusal(&f, q, SY_EINVAL, "is empty");
    q = p, q.top_logprobs = 21;
    expect_refusal(&f, q, SY_EINVAL, "at most 20");
    q = p, q.experts_per_token = 3;
    expect_refusal(&f, q, SY_EINVAL, "the model has 2");
    q = p, q.max_tokens = 0;
    expect_refusal(&f, q, SY_ELIMIT, "KV pages");
    test_model_close(&f.m);
}

static void a_deadline_that_has_passed_ends_the_request(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 0);

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.deadline_us = sy_clock_us();
    test_output *out = submit(&f.m, &p, NULL);
    test_wait(out);
    assert_int_equal(out->error.status, SY_EDEADLINE);
    release(out);
    test_model_close(&f.m);
}

static void closing_ends_what_runs(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 0);
    test_output *out[3];

    (void)state;
    open_faulty(&f, (sy_engine_config){.running_max = 2});
    p.ignore_eos = 1;
    for (int i = 0; i < 3; i++) out[i] = submit(&f.m, &p, NULL);
    sy_engine_close(f.m.engine);
    f.m.engine = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out[i]->ended, 1);
        assert_true(out[i]->error.status == SY_ECANCELLED || out[i]->error.status == SY_OK);
        release(out[i]);
    }
    test_model_close(&f.m);
}

/* The golden continuation of this prompt, as text: " the finany.\nAnd the court of the court ..."
 */
static void text_ends_before_a_stop_text_and_never_shows_a_part_of_it(void **state)
{
    static const char *stops[] = {"never there", "And the court of"};
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 48);

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.n_stops = 2;
    p.stop = stops;
    test_output *out = submit(&f.m, &p, NULL);
    test_wait(out);
    assert_int_equal(out->reason, SY_GEN_STOP);
    assert_string_equal(out->text, " the finany.\n");
    assert_true(out->n_tokens < 48);
    release(out);
    test_model_close(&f.m);
}

static void the_same_seed_gives_the_same_text_alone_and_in_company(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 40);
    test_output *alone, *other, *crowd[12];

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.sampler =
        (sy_sampler){.temperature = 1.1f, .top_p = 0.95f, .repetition_penalty = 1.0f, .seed = 7};
    p.logprobs = 1;
    alone = submit(&f.m, &p, NULL);
    test_wait(alone);
    for (int i = 0; i < 12; i++) {
        p.sampler.seed = i % 3 == 0 ? 7 : (uint64_t)(100 + i);
        crowd[i] = submit(&f.m, &p, NULL);
    }
    for (int i = 0; i < 12; i++) test_wait(crowd[i]);
    other = crowd[1];
    assert_memory_not_equal(other->token, alone->token, 40 * sizeof(uint32_t));
    for (int i = 0; i < 12; i += 3) {
        assert_int_equal(crowd[i]->n_tokens, alone->n_tokens);
        assert_memory_equal(crowd[i]->token, alone->token, alone->n_tokens * sizeof(uint32_t));
        assert_memory_equal(crowd[i]->logprob, alone->logprob, alone->n_tokens * sizeof(float));
    }
    for (int i = 0; i < 12; i++) release(crowd[i]);
    release(alone);
    test_model_close(&f.m);
}

static void fewer_experts_per_token_is_another_answer_and_does_not_touch_neighbours(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 24);
    test_output *exact, *one, *beside;

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.want_logits = 1;
    exact = submit(&f.m, &p, NULL);
    test_wait(exact);
    f.moe.hold = 1;
    beside = submit(&f.m, &p, NULL);
    p.experts_per_token = 1;
    one = submit(&f.m, &p, NULL);
    f.moe.hold = 0;
    test_wait(one);
    test_wait(beside);
    assert_memory_equal(beside->logits, exact->logits, 24 * 2048 * sizeof(float));
    assert_memory_not_equal(one->logits, exact->logits, 2048 * sizeof(float));
    release(exact);
    release(one);
    release(beside);
    test_model_close(&f.m);
}

static void rows_that_are_not_exact_are_counted_for_their_own_request(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 8);
    test_output *may, *may_not, *exact;

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    exact = submit(&f.m, &p, NULL);
    test_wait(exact);
    f.moe.degrade = 1;
    f.moe.hold = 1;
    may_not = submit(&f.m, &p, NULL);
    p.degraded = 1;
    may = submit(&f.m, &p, NULL);
    f.moe.hold = 0;
    test_wait(may);
    test_wait(may_not);
    /* One layer of prompt and tokens; the last token is drawn and never computed. */
    assert_int_equal(may->stats.degraded_rows, N_PROMPT + 7);
    assert_int_equal(may->stats.other_weights_rows, N_PROMPT + 7);
    assert_int_equal(may_not->stats.degraded_rows, 0);
    assert_int_equal(may_not->stats.other_weights_rows, N_PROMPT + 7);
    assert_int_equal(exact->stats.degraded_rows + exact->stats.other_weights_rows, 0);
    release(may);
    release(may_not);
    release(exact);
    test_model_close(&f.m);
}

static void logprobs_are_of_the_unmodified_logits(void **state)
{
    fixture f;
    sy_gen_params p = test_params(NULL, prompt, N_PROMPT, 1);

    (void)state;
    open_faulty(&f, (sy_engine_config){0});
    p.logprobs = 1;
    p.top_logprobs = 3;
    test_output *out = submit(&f.m, &p, NULL);
    test_wait(out);
    assert_int_equal(out->token[0], 261); /* the golden first token */
    assert_int_equal(out->top[0].token, 261);
    assert_true(out->top[0].logprob == out->logprob[0]);
    assert_true(out->top[0].logprob > out->top[1].logprob &&
                out->top[1].logprob > out->top[2].logprob);
    release(out);
    test_model_close(&f.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_expert_fails_its_own_request_and_nobody_else),
        cmocka_unit_test(
            a_layer_that_fails_as_a_whole_ends_requests_with_its_reason_and_serving_goes_on),
        cmocka_unit_test(cancelling_ends_a_running_and_a_waiting_request),
        cmocka_unit_test(past_the_queue_limit_a_request_is_refused_at_once_with_the_limit),
        cmocka_unit_test(requests_that_make_no_sense_are_refused_with_the_reason),
        cmocka_unit_test(a_deadline_that_has_passed_ends_the_request),
        cmocka_unit_test(closing_ends_what_runs),
        cmocka_unit_test(text_ends_before_a_stop_text_and_never_shows_a_part_of_it),
        cmocka_unit_test(the_same_seed_gives_the_same_text_alone_and_in_company),
        cmocka_unit_test(fewer_experts_per_token_is_another_answer_and_does_not_touch_neighbours),
        cmocka_unit_test(rows_that_are_not_exact_are_counted_for_their_own_request),
        cmocka_unit_test(logprobs_are_of_the_unmodified_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
