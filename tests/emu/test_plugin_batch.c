/* Batches on emulated GPUs: the bits of the kernels called directly, for every number of rows, in
 * several lanes, by graphs and without, while other slots are written; and waits that end. */
#include "plugin_fixture.h"

#include <pthread.h>
#include <time.h>

static const uint32_t H = 70, F = 50;

static place open_filled(uint32_t weights, int has_bias, uint32_t rows_max)
{
    sy_backend_pool_config c = config_of(H, F, weights, has_bias);
    place p;

    c.rows_max = rows_max;
    p = place_open(0, &c);
    for (uint32_t slot = 0; slot < 6; slot++) put(&p, slot, slot);
    return p;
}

static void run(const place *p, uint32_t lane, const batch *b)
{
    ok(batch_submit(p, lane, b, why));
    ok(batch_wait(p, lane, why));
    batch_check(p, lane, b);
}

/* ---- what is computed ---- */

static const struct {
    uint32_t n_x, n[4]; /* rows of experts 2, 0, 5, 3 */
} cases[] = {{1, {1, 0, 0, 0}},      {1, {0, 0, 0, 1}},  {3, {1, 1, 1, 1}},   {5, {0, 7, 0, 2}},
             {40, {9, 0, 16, 17}},   {2, {33, 0, 1, 0}}, {64, {64, 1, 0, 2}}, {96, {65, 0, 0, 31}},
             {96, {24, 24, 24, 24}}, {17, {0, 96, 0, 0}}};

static batch case_of(size_t i)
{
    static const uint32_t id[] = {2, 0, 5, 3};

    return batch_of(cases[i].n_x, id, cases[i].n, 4);
}

static void batches_have_the_bits_of_the_kernels(void **state)
{
    static const struct {
        uint32_t weights;
        int has_bias;
        size_t step;
    } forms[] = {{SY_BACKEND_BF16, 1, 1}, {SY_BACKEND_BF16, 0, 4}, {SY_BACKEND_Q8, 1, 3},
                 {SY_BACKEND_Q4, 0, 3},   {SY_BACKEND_FP8, 1, 3},  {SY_BACKEND_MXFP4, 0, 3}};

    (void)state;
    for (size_t f = 0; f < SY_COUNT_OF(forms); f++) {
        place p = open_filled(forms[f].weights, forms[f].has_bias, 96);

        for (size_t i = f; i < SY_COUNT_OF(cases); i += forms[f].step) {
            const batch b = case_of(i);
            run(&p, (uint32_t)i % 2, &b);
        }
        place_close(&p);
    }
}

/* Experts of more than one block of factors either way. */
static void every_block_of_fp8_has_its_own_factors(void **state)
{
    static const uint32_t sizes[][2] = {{140, 260}, {300, 130}};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(sizes); i++) {
        const sy_backend_pool_config c =
            config_of(sizes[i][0], sizes[i][1], SY_BACKEND_FP8, i == 0);
        const batch b = batch_of(9, (uint32_t[]){5, 2}, (uint32_t[]){1, 12}, 2);
        place p = place_open(0, &c);

        put(&p, 2, 2);
        put(&p, 5, 5);
        run(&p, 0, &b);
        place_close(&p);
    }
}

static void without_graphs_the_bits_are_the_same(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);

    (void)state;
    for (uint32_t lane = 0; lane < 2; lane++) {
        emu_cudart_fail(lane == 0 ? "cudaStreamBeginCapture" : "cudaStreamEndCapture", 1,
                        cudaErrorStreamCaptureUnsupported);
        for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
            const batch b = case_of(i);
            run(&p, lane, &b);
        }
    }
    assert_int_equal(emu_cudart_n_calls("cudaGraphLaunch"), 0);
    place_close(&p);
}

static void a_graph_is_made_once_and_serves_smaller_batches(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 0, 96);
    static const uint32_t id[] = {0, 1};

    (void)state;
    for (uint32_t n = 5; n <= 8; n++) {
        const batch b = batch_of(n, id, (uint32_t[]){n, 0}, 2);
        run(&p, 0, &b);
    }
    assert_int_equal(emu_cudart_n_calls("cudaGraphInstantiate"), 1);
    assert_int_equal(emu_cudart_n_calls("cudaGraphLaunch"), 4);
    place_close(&p);
}

/* More shapes than a lane keeps graphs of: those that were dropped are made again. */
static void shapes_come_and_go(void **state)
{
    sy_backend_pool_config c = config_of(16, 16, SY_BACKEND_BF16, 0);
    place p;
    int n_live;

    (void)state;
    c.rows_max = 256;
    p = place_open(0, &c);
    put(&p, 1, 1);
    n_live = emu_cudart_n_live();
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t x = 1; x <= 256; x *= 2)
            for (uint32_t rows = 1; rows <= 64; rows *= 4) {
                const batch b = batch_of(x, (uint32_t[]){1}, (uint32_t[]){rows}, 1);
                ok(batch_submit(&p, 0, &b, why));
                ok(batch_wait(&p, 0, why));
                if (round == 1 && rows == 4) batch_check(&p, 0, &b);
                assert_in_range(emu_cudart_n_live() - n_live, 1, 32);
            }
    assert_in_range(emu_cudart_n_calls("cudaGraphInstantiate"), 37, 2 * 36);
    place_close(&p);
}

/* Past what graphs are for, and of many tiles. */
static void large_batches_go_without_graphs(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 300);
    const batch b = batch_of(2, (uint32_t[]){1, 3, 4}, (uint32_t[]){70, 70, 120}, 3);

    (void)state;
    run(&p, 1, &b);
    assert_int_equal(emu_cudart_n_calls("cudaGraphLaunch"), 0);
    place_close(&p);
}

static void two_lanes_are_under_way_at_once(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);

    (void)state;
    for (size_t i = 0; i + 1 < SY_COUNT_OF(cases); i++) {
        const batch a = case_of(i), b = case_of(i + 1);

        ok(batch_submit(&p, 0, &a, why));
        ok(batch_submit(&p, 1, &b, why));
        ok(batch_wait(&p, 1, why));
        batch_check(&p, 1, &b);
        ok(batch_wait(&p, 0, why));
        batch_check(&p, 0, &a);
    }
    place_close(&p);
}

/* ---- at the same time ---- */

typedef struct worker {
    const place *p;
    uint32_t lane;
    size_t n_rounds;
    char why[SY_BACKEND_WHY_BYTES];
    float *y; /* of every round */
    int result;
} worker;

static void *compute(void *argument)
{
    worker *w = argument;
    const batch b = case_of(6);
    const size_t n = (size_t)b.n_rows * H;
    sy_backend_lane memory;

    cuda->lane(&memory, w->p->pool, w->lane);
    for (size_t i = 0; i < w->n_rounds && w->result == SY_BACKEND_OK; i++) {
        w->result = batch_submit(w->p, w->lane, &b, w->why);
        if (w->result == SY_BACKEND_OK) w->result = batch_wait(w->p, w->lane, w->why);
        memcpy(w->y + i * n, memory.y, n * sizeof(float));
    }
    return NULL;
}

/* Slots 1 and 4 belong to nobody while experts 0, 2, 3 and 5 are computed in two lanes. */
static void other_slots_are_rewritten_while_lanes_compute(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);
    const batch b = case_of(6), after = batch_of(9, (uint32_t[]){1, 4}, (uint32_t[]){7, 12}, 2);
    const size_t n = (size_t)b.n_rows * H;
    enum { ROUNDS = 6 };
    worker w[2] = {{.p = &p, .lane = 0, .n_rounds = ROUNDS},
                   {.p = &p, .lane = 1, .n_rounds = ROUNDS}};
    float *want = malloc(n * sizeof(float));
    pthread_t thread[2];

    (void)state;
    assert_non_null(want);
    for (int i = 0; i < 2; i++) {
        w[i].y = calloc(ROUNDS * n, sizeof(float));
        assert_non_null(w[i].y);
        assert_int_equal(pthread_create(&thread[i], NULL, compute, &w[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        put(&p, 1, 100 + i);
        put(&p, 4, 200 + i);
        hash_of(&p, 4);
    }
    put(&p, 1, 1);
    put(&p, 4, 4);
    batch_expect(want, &b, &p);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        if (w[i].result != SY_BACKEND_OK) fail_msg("lane %d: %s", i, w[i].why);
        for (size_t round = 0; round < ROUNDS; round++)
            check_bits(want, w[i].y + round * n, n, "y");
        free(w[i].y);
    }
    free(want);
    run(&p, 0, &after);
    place_close(&p);
}

/* A migration as it is: the slot gets another expert, and the next batch computes that. */
static void a_slot_has_what_was_written_last(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);
    batch b = batch_of(9, (uint32_t[]){1, 4}, (uint32_t[]){7, 12}, 2);

    (void)state;
    run(&p, 0, &b);
    put(&p, 4, 44);
    b.id[1] = 44;
    run(&p, 0, &b);
    put(&p, 1, 4);
    b.id[0] = 4;
    run(&p, 1, &b);
    place_close(&p);
}

/* ---- refusals ---- */

static void submit_refused(const place *p, uint32_t lane, uint32_t n_x, uint32_t n_rows,
                           const sy_backend_group *group, uint32_t n_groups, const char *text)
{
    refused(cuda->submit(p->pool, lane, n_x, n_rows, group, n_groups, why), SY_BACKEND_EINVAL,
            text);
}

static void what_is_no_batch_is_refused(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 0, 96);
    const batch b = case_of(2);
    const sy_backend_group good[] = {{0, 0, 3}, {1, 3, 3}, {5, 3, 8}};
    sy_backend_group group[3];
    sy_backend_lane memory;
    float device_us;
    int done;

    (void)state;
    cuda->lane(&memory, p.pool, 0);
    for (uint32_t r = 0; r < 8; r++) memory.x_row[r] = r;
    submit_refused(&p, 2, 8, 8, good, 3, "lane 2 of 2");
    submit_refused(&p, 0, 97, 8, good, 3, "8 rows of 97 tokens, and at most 96");
    submit_refused(&p, 0, 8, 97, good, 3, "97 rows of 8 tokens");
    submit_refused(&p, 0, 8, 9, good, 3, "groups end at row 8 of 9");
    submit_refused(&p, 0, 7, 8, good, 3, "row 7 is of token 7, and there are 7");
    submit_refused(&p, 0, 8, 8, NULL, 0, "groups end at row 0 of 8");
#define WRONG(i, field, value, text)                 \
    do {                                             \
        memcpy(group, good, sizeof(group));          \
        group[i].field = (value);                    \
        submit_refused(&p, 0, 8, 8, group, 3, text); \
    } while (0)
    WRONG(1, slot, 6, "group 1 is of slot 6, and there are 6");
    WRONG(0, begin, 1, "group 0 has rows 1 to 3, and the last one ended at 0");
    WRONG(2, begin, 2, "group 2 has rows 2 to 8");
    WRONG(2, end, 1, "group 2 has rows 3 to 1");
    WRONG(2, end, UINT32_MAX, "groups end at row 4294967295 of 8");
#undef WRONG
    refused(cuda->wait(&done, &device_us, p.pool, 2, 0, why), SY_BACKEND_EINVAL, "lane 2 of 2");
    ok(batch_submit(&p, 0, &b, why));
    submit_refused(&p, 0, 8, 8, good, 3, "nobody has waited for");
    ok(batch_wait(&p, 0, why));
    batch_check(&p, 0, &b);
    place_close(&p);
}

static void a_lane_without_a_batch_is_done(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 0, 96);
    float device_us = 7;
    int done = 0;

    (void)state;
    ok(cuda->wait(&done, &device_us, p.pool, 1, 0, why));
    assert_int_equal(done, 1);
    assert_true(device_us == 0);
    ok(cuda->submit(p.pool, 1, 0, 0, NULL, 0, why));
    ok(cuda->submit(p.pool, 1, 3, 0, &(sy_backend_group){2, 0, 0}, 1, why));
    done = 0;
    ok(cuda->wait(&done, &device_us, p.pool, 1, 0, why));
    assert_int_equal(done, 1);
    place_close(&p);
}

/* ---- waits ---- */

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void a_device_that_hangs_is_waited_for_as_long_as_was_said(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);
    const batch a = case_of(4), b = case_of(5);
    static const uint32_t timeouts_us[] = {0, 1, 500, 30000};
    float device_us;
    int done = 1;

    (void)state;
    emu_cudart_hang(0, 1);
    ok(batch_submit(&p, 0, &a, why));
    ok(batch_submit(&p, 1, &b, why));
    for (size_t i = 0; i < SY_COUNT_OF(timeouts_us); i++) {
        const uint64_t begin_us = now_us();

        ok(cuda->wait(&done, &device_us, p.pool, 0, timeouts_us[i], why));
        assert_int_equal(done, 0);
        assert_true(now_us() - begin_us >= timeouts_us[i]);
    }
    emu_cudart_hang(0, 0);
    ok(batch_wait(&p, 0, why));
    batch_check(&p, 0, &a);
    ok(batch_wait(&p, 1, why));
    batch_check(&p, 1, &b);
    place_close(&p);
}

static void slow_copies_change_nothing(void **state)
{
    place p = open_filled(SY_BACKEND_BF16, 1, 96);
    const batch a = case_of(8), b = case_of(7);

    (void)state;
    emu_cudart_slow(0, 2000);
    for (uint32_t i = 0; i < 3; i++) {
        ok(batch_submit(&p, 0, &a, why));
        put(&p, 1, i);
        ok(batch_submit(&p, 1, &b, why));
        ok(batch_wait(&p, 0, why));
        batch_check(&p, 0, &a);
        ok(batch_wait(&p, 1, why));
        batch_check(&p, 1, &b);
    }
    check_slot(&p, 1, 2);
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLUGIN_TEST(batches_have_the_bits_of_the_kernels),
        PLUGIN_TEST(every_block_of_fp8_has_its_own_factors),
        PLUGIN_TEST(without_graphs_the_bits_are_the_same),
        PLUGIN_TEST(a_graph_is_made_once_and_serves_smaller_batches),
        PLUGIN_TEST(shapes_come_and_go),
        PLUGIN_TEST(large_batches_go_without_graphs),
        PLUGIN_TEST(two_lanes_are_under_way_at_once),
        PLUGIN_TEST(other_slots_are_rewritten_while_lanes_compute),
        PLUGIN_TEST(a_slot_has_what_was_written_last),
        PLUGIN_TEST(what_is_no_batch_is_refused),
        PLUGIN_TEST(a_lane_without_a_batch_is_done),
        PLUGIN_TEST(a_device_that_hangs_is_waited_for_as_long_as_was_said),
        PLUGIN_TEST(slow_copies_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
