/* test_router_batch.c - requests that go through a gate together are answered as if each were
 * alone: the same bits, in its own order, and whoever is at fault fails alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "router_batch.h"
#include "sy_hash.h"

#define TRIO   SY_SOURCE_DIR "/models/trio"
#define N_JOBS 9

typedef struct fixture {
    router self;
    sy_arena together, alone;
    router_job job[N_JOBS];
    float *x; /* [N_JOBS][BATCH_ROWS_MAX][hidden] */
    uint16_t *half;
} fixture;

static int open_trio(void **state)
{
    static fixture f;
    sy_error err = {0};

    f = (fixture){.self.kernels = sy_kernels_best()};
    if (sy_model_open(&f.self.model, TRIO, NULL, &err) != SY_OK ||
        sy_router_open(&f.self.gates, f.self.model, f.self.kernels, &err) != SY_OK)
        fail_msg("%s", err.message);
    f.self.desc = sy_model_describe(f.self.model);
    sy_arena_init(&f.together, 1 << 24);
    sy_arena_init(&f.alone, 1 << 24);
    const size_t n = (size_t)N_JOBS * BATCH_ROWS_MAX * f.self.desc->hidden;
    f.x = malloc(n * sizeof(*f.x));
    f.half = malloc(n * sizeof(*f.half));
    for (size_t i = 0; i < n; i++) {
        f.x[i] = 6 * sy_unit_float(sy_splitmix64(i)) - 3;
        f.half[i] = sy_f32_to_bf16(f.x[i]);
    }
    *state = &f;
    return 0;
}

static int close_trio(void **state)
{
    fixture *f = *state;

    sy_arena_free(&f->together);
    sy_arena_free(&f->alone);
    sy_router_close(f->self.gates);
    sy_model_close(f->self.model);
    free(f->x);
    free(f->half);
    return 0;
}

/* Job i of so many rows, its id i + 1. */
static void make_job(fixture *f, uint32_t i, uint32_t layer, uint32_t k, uint32_t rows,
                     sy_dtype dtype)
{
    const uint32_t H = f->self.desc->hidden;
    const size_t at = (size_t)i * BATCH_ROWS_MAX * H;
    router_job *job = &f->job[i];

    *job = (router_job){.request = {.id = i + 1,
                                    .layer = layer,
                                    .policy.experts_per_token = k,
                                    .hidden = {.dtype = dtype,
                                               .rows = rows,
                                               .cols = H,
                                               .data = dtype == SY_F32 ? (const void *)(f->x + at)
                                                                       : f->half + at}}};
    sy_error_clear(&job->err);
}

/* Gathers until none is left and says, as "1 3, 2", who went together. */
static void assert_groups(router_job **job, size_t n, const char *want)
{
    char got[128];
    size_t at = 0;

    while (n > 0) {
        const size_t n_together = batch_gather(job, n);

        assert_in_range(n_together, 1, n);
        for (size_t i = 0; i < n_together; i++)
            at += (size_t)snprintf(got + at, sizeof(got) - at, "%s%u", i > 0 ? " " : "",
                                   (unsigned)job[i]->request.id);
        job += n_together;
        n -= n_together;
        if (n > 0) at += (size_t)snprintf(got + at, sizeof(got) - at, ", ");
    }
    if (strcmp(got, want) != 0) fail_msg("want groups %s, got %s", want, got);
}

static void requests_for_one_gate_and_k_go_together(void **state)
{
    fixture *f = *state;
    router_job *job[N_JOBS];

    make_job(f, 0, 1, 0, 1, SY_F32);
    make_job(f, 1, 2, 0, 1, SY_F32);
    make_job(f, 2, 1, 1, 1, SY_F32); /* another k */
    make_job(f, 3, 1, 0, 3, SY_BF16);
    make_job(f, 4, 2, 0, 2, SY_F32);
    make_job(f, 5, 1, 0, BATCH_JOB_ROWS_MAX + 1, SY_F32); /* enough rows of its own */
    make_job(f, 6, 1, 0, 1, SY_F32);
    make_job(f, 7, 1, 1, 1, SY_F32);
    make_job(f, 8, 1, 0, 1, SY_F32);
    (void)sy_error_set(&f->job[8].err, SY_EINVAL, "refused before");
    for (size_t i = 0; i < N_JOBS; i++) job[i] = &f->job[i];
    assert_groups(job, N_JOBS, "1 4 7, 2 5, 3 8, 6, 9");
}

static void a_product_has_a_limit_of_rows(void **state)
{
    fixture *f = *state;
    router_job *job[6];

    for (uint32_t i = 0; i < 6; i++) {
        make_job(f, i, 0, 0, i == 4 ? 1 : BATCH_JOB_ROWS_MAX, SY_F32);
        job[i] = &f->job[i];
    }
    assert_groups(job, 6, "1 2 3 4, 5 6");
}

static void assert_same_answers(const router_job *got, const router_job *want)
{
    const size_t n = (size_t)want->reply.n_tokens * want->reply.slots;

    assert_int_equal(got->err.status, want->err.status);
    assert_int_equal(got->reply.n_tokens, want->reply.n_tokens);
    assert_int_equal(got->reply.slots, want->reply.slots);
    assert_memory_equal(got->reply.expert, want->reply.expert, n * sizeof(uint16_t));
    assert_memory_equal(got->reply.weight, want->reply.weight, n * sizeof(float));
}

static void answers_are_those_of_each_alone(void **state)
{
    fixture *f = *state;

    for (uint32_t k = 0; k <= 2; k++) {
        router_job *job[5], alone[5], *one;

        for (uint32_t i = 0; i < 5; i++) {
            make_job(f, i, 3, k, 1 + i * i, i % 2 ? SY_BF16 : SY_F32);
            if (i == 4) f->job[i].request.hidden.rows = BATCH_JOB_ROWS_MAX;
            job[i] = &f->job[i];
            alone[i] = f->job[i];
            one = &alone[i];
            batch_route(&f->self, &one, 1, &f->alone);
            assert_int_equal(alone[i].err.status, SY_OK);
            assert_int_equal(alone[i].reply.n_tokens, f->job[i].request.hidden.rows);
            assert_int_equal(alone[i].reply.slots, k == 0 ? f->self.desc->top_k : k);
        }
        assert_int_equal(batch_gather(job, 5), 5);
        batch_route(&f->self, job, 5, &f->together);
        for (size_t i = 0; i < 5; i++) assert_same_answers(job[i], &alone[i]);
        sy_arena_reset(&f->together);
        sy_arena_reset(&f->alone);
    }
}

static void a_row_that_is_not_finite_fails_its_request_alone(void **state)
{
    fixture *f = *state;
    const uint32_t H = f->self.desc->hidden;
    router_job *job[3], *one;
    router_job good;

    for (uint32_t i = 0; i < 3; i++) {
        make_job(f, i, 0, 0, 2, SY_F32);
        job[i] = &f->job[i];
    }
    good = f->job[2];
    one = &good;
    batch_route(&f->self, &one, 1, &f->alone);
    float *bad = &f->x[(size_t)BATCH_ROWS_MAX * H + H + 5]; /* the second row of the second */
    const float kept = *bad;
    *bad = NAN;
    batch_route(&f->self, job, 3, &f->together);
    *bad = kept;
    assert_int_equal(job[0]->err.status, SY_OK);
    assert_int_equal(job[1]->err.status, SY_EINVAL);
    if (strstr(job[1]->err.message, "row 1 ") == NULL)
        fail_msg("want its own row 1 named, got: %s", job[1]->err.message);
    assert_same_answers(job[2], &good);
    sy_arena_reset(&f->together);
    sy_arena_reset(&f->alone);
}

static void without_memory_each_request_says_so(void **state)
{
    fixture *f = *state;
    router_job *job[2] = {&f->job[0], &f->job[1]};
    sy_arena small;

    sy_arena_init(&small, 256);
    make_job(f, 0, 0, 0, 2, SY_BF16);
    make_job(f, 1, 0, 0, 2, SY_BF16);
    batch_route(&f->self, job, 2, &small);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(job[i]->err.status, SY_ENOMEM);
        assert_int_equal(job[i]->reply.n_tokens, 0);
    }
    sy_arena_free(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_for_one_gate_and_k_go_together),
        cmocka_unit_test(a_product_has_a_limit_of_rows),
        cmocka_unit_test(answers_are_those_of_each_alone),
        cmocka_unit_test(a_row_that_is_not_finite_fails_its_request_alone),
        cmocka_unit_test(without_memory_each_request_says_so),
    };

    return cmocka_run_group_tests(tests, open_trio, close_trio);
}
