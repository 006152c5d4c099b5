/* test_shard_home_batch.c - batches on GPUs: the outputs of the CPU within rounding, and the same
 * bits for a token whatever else is in its batch, whichever lane it takes and however often its
 * shard has moved. */
#include "home_fixture.h"

#include <math.h>
#include <pthread.h>

enum { TOKENS = 40, HIDDEN_MAX = 128 };

typedef struct batch_case {
    const char *what, *config; /* NULL: the fixture's own */
    sy_dtype weights;
} batch_case;

static const batch_case cases[] = {
    {"bf16", NULL, SY_DTYPE_NONE},
    {"q8", NULL, SY_Q8},
    {"q4", NULL, SY_Q4},
    {"bf16 with biases", "gpt_oss.json", SY_DTYPE_NONE},
    {"q8 with biases", "gpt_oss.json", SY_Q8},
};

static float input(uint32_t token, uint32_t i)
{
    return sy_bf16_to_f32(sy_f32_to_bf16(2 * sy_unit_float(sy_splitmix64(token * 1000 + i)) - 1));
}

static void open_case(test_shards *t, const batch_case *c)
{
    const family_case family = {c->what, c->config, {NULL}};

    if (c->config == NULL)
        shards_open(t, SY_BF16, H, F);
    else
        family_open(t, &family);
}

/* Row r is token[r]; x has every token. Waits until it is done. */
static void run(sy_shard_home *home, uint32_t lane_id, const uint32_t *token,
                const sy_shard_group *groups, size_t n_groups)
{
    const sy_shard_lane lane = sy_shard_home_lane(home, lane_id);
    const uint32_t hidden = groups[0].shard->down.n, n_rows = groups[n_groups - 1].end;
    sy_error err = {0};
    float device_us = -1;
    int done = 0;

    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < hidden; i++)
            lane.x[t * lane.x_stride + i] = sy_f32_to_bf16(input(t, i));
    memcpy(lane.x_row, token, n_rows * sizeof(*token));
    must(sy_shard_home_submit(home, lane_id, TOKENS, n_rows, groups, n_groups, &err), &err);
    while (!done) must(sy_shard_home_wait(&done, &device_us, home, lane_id, 1000, &err), &err);
    assert_true(device_us >= 0);
}

static void outputs_are_those_of_the_cpu_within_rounding(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        const sy_precision precision = {.weights = cases[i].weights};
        test_shards t;
        sy_shard_scratch scratch = {0};
        sy_error err = {0};
        static float x[TOKENS * HIDDEN_MAX], want[2 * TOKENS * HIDDEN_MAX];
        uint32_t token[2 * TOKENS];
        double wrong = 0, right = 0;

        open_case(&t, &cases[i]);
        sy_shard_home *home = home_open_as(&t, 0, cases[i].weights);
        sy_shard_store *store = store_open_as(&t, precision, 0);
        sy_shard_store *host = store_open_as(&t, precision, 0);
        const sy_shard *on[] = {load_on(store, home, 0, 0), load_on(store, home, 0, 3)};
        const sy_shard *in[] = {load_on(host, NULL, 0, 0), load_on(host, NULL, 0, 3)};
        const uint32_t hidden = on[0]->down.n, cut = TOKENS / 3, n = 2 * TOKENS;
        assert_true(hidden <= HIDDEN_MAX);

        for (uint32_t r = 0; r < n; r++) token[r] = r * 7 % TOKENS;
        for (uint32_t k = 0; k < TOKENS * hidden; k++) x[k] = input(k / hidden, k % hidden);
        const sy_shard_group on_gpu[] = {{on[0], 0, cut}, {on[1], cut, cut}, {on[1], cut, n}};
        const sy_shard_group in_host[] = {{in[0], 0, cut}, {in[1], cut, n}};
        run(home, 1, token, on_gpu, 3);
        must(
            sy_shard_compute(want, x, hidden, token, in_host, 2, &scratch, NULL, sy_kernels_best()),
            &err);
        const float *y = sy_shard_home_lane(home, 1).y;
        for (uint32_t k = 0; k < n * hidden; k++) {
            wrong += ((double)y[k] - (double)want[k]) * ((double)y[k] - (double)want[k]);
            right += (double)want[k] * (double)want[k];
        }
        if (!(sqrt(wrong / right) <= 5e-3))
            fail_msg("%s: %.3g of the reference away", cases[i].what, sqrt(wrong / right));
        for (int k = 0; k < 2; k++) {
            sy_shard_put(store, on[k]);
            sy_shard_put(host, in[k]);
        }
        sy_shard_scratch_free(&scratch);
        sy_shard_store_close(store);
        sy_shard_store_close(host);
        sy_shard_home_close(home);
        shards_close(&t);
    }
}

static void a_token_has_the_same_bits_in_every_batch_lane_and_place(void **state)
{
    static const uint32_t sizes[] = {1, 2, 9, 17, 64, 100, 256};
    test_shards t;
    uint32_t token[256];
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home[] = {home_open(&t, 0), home_open(&t, 1)};
    sy_shard_store *store = store_open(&t, 0);
    float *first = calloc(TOKENS, H * sizeof(float));
    const sy_shard *neighbour[] = {load_on(store, home[0], 1, 0), load_on(store, home[0], 1, 1)};

    assert_non_null(first);
    sy_shard_put(store, load_on(store, home[0], 0, 2));
    for (int place = 0; place < 2; place++) {
        const sy_shard *shard = sy_shard_get(store, 0, 2);
        for (size_t s = 0; s < SY_COUNT_OF(sizes); s++) {
            const uint32_t n = sizes[s], skipped = place == 0 ? n / 4 : 0;
            const sy_shard_group groups[] = {{shard, 0, n - skipped},
                                             {neighbour[s % 2], n - skipped, n}};
            for (uint32_t r = 0; r < n; r++) token[r] = (r + (uint32_t)s) % TOKENS;
            run(home[place], s % LANES, token, groups, skipped > 0 ? 2 : 1);
            const float *y = sy_shard_home_lane(home[place], s % LANES).y;
            for (uint32_t r = 0; r < n - skipped; r++) {
                float *seen = first + (size_t)token[r] * H;
                if (seen[0] == 0)
                    memcpy(seen, y + (size_t)r * H, H * sizeof(float));
                else if (memcmp(seen, y + (size_t)r * H, H * sizeof(float)) != 0)
                    fail_msg("place %d, %u rows, row %u: other bits", place, n, r);
            }
        }
        sy_shard_put(store, shard);
        if (place > 0) break;
        sy_shard_builder *builder = begin_on(store, home[1], 0, 2);
        int done;
        must(sy_shard_add_from_copy(builder, SIZE_MAX, &done, &err), &err);
        (void)build_verify(builder, sy_kernels_best());
        sy_shard_publish(builder);
    }
    for (int i = 0; i < 2; i++) sy_shard_put(store, neighbour[i]);
    free(first);
    sy_shard_store_close(store);
    sy_shard_home_close(home[0]);
    sy_shard_home_close(home[1]);
    shards_close(&t);
}

static void a_batch_that_is_out_of_range_is_refused(void **state)
{
    test_shards t;
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *s = load_on(store, home, 0, 0);
    const sy_shard_lane lane = sy_shard_home_lane(home, 0);
    const struct {
        uint32_t n_x, n_rows;
        sy_shard_group group[2];
        size_t n;
        const char *text;
    } wrong[] = {
        {lane.rows_max + 1, 1, {{s, 0, 1}}, 1, "a batch of cuda:0 has"},
        {1, lane.rows_max + 1, {{s, 0, lane.rows_max + 1}}, 1, "a batch of cuda:0 has"},
        {1, 2, {{s, 0, 1}}, 1, "1 of 2 rows are in no group"},
        {1, 2, {{s, 1, 2}}, 1, "do not follow row 0"},
        {1, 2, {{s, 0, 1}, {s, 2, 2}}, 2, "do not follow row 1"},
        {1, 1, {{s, 0, 1}, {s, 1, 0}}, 2, "do not follow row 1"},
        {1, 1, {{s, 0, 2}}, 1, "do not follow row 0"},
        {1, 1, {{s, 0, 1}}, 1, "cuda:0: "}, /* x_row: the second token of one */
    };

    assert_true(lane.rows_max >= 256 && lane.rows_max <= 8192);
    lane.x_row[0] = 1;
    for (size_t i = 0; i < SY_COUNT_OF(wrong); i++)
        expect_error(sy_shard_home_submit(home, 0, wrong[i].n_x, wrong[i].n_rows, wrong[i].group,
                                          wrong[i].n, &err),
                     SY_EINVAL, &err, wrong[i].text);
    sy_shard_put(store, s);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

/* ---- all at once ---- */

typedef struct worker {
    sy_shard_store *store;
    sy_shard_home *home;
    uint32_t lane;
    const float *want; /* [H]: token 0 of expert 0 */
    const char *wrong;
} worker;

static void *compute(void *arg)
{
    worker *w = arg;
    const sy_shard_lane lane = sy_shard_home_lane(w->home, w->lane);

    for (int i = 0; i < 10 && w->wrong == NULL; i++) {
        const sy_shard *shard = sy_shard_get(w->store, 0, 0);
        const sy_shard_group group = {shard, 0, 5};
        sy_error err = {0};
        float device_us;
        int done = 0;

        for (uint32_t r = 0; r < 5; r++) lane.x_row[r] = 0;
        for (uint32_t k = 0; k < H; k++) lane.x[k] = sy_f32_to_bf16(input(0, k));
        sy_status st = sy_shard_home_submit(w->home, w->lane, 1, 5, &group, 1, &err);
        while (st == SY_OK && !done)
            st = sy_shard_home_wait(&done, &device_us, w->home, w->lane, 1000, &err);
        if (st != SY_OK)
            w->wrong = "a batch failed";
        else if (memcmp(lane.y + 4 * H, w->want, H * sizeof(float)) != 0)
            w->wrong = "a batch gave other bits";
        sy_shard_put(w->store, shard);
    }
    return NULL;
}

/* Loads, probes and reads of one device while its lanes compute. */
static void weights_come_and_go_while_batches_are_computed(void **state)
{
    test_shards t;
    worker workers[LANES];
    pthread_t thread[LANES];
    const uint32_t token[] = {0};
    float want[H];
    sy_error err = {0};

    (void)state;
    shards_open(&t, SY_BF16, H, F);
    sy_shard_home *home = home_open(&t, 0);
    sy_shard_store *store = store_open(&t, 0);
    const sy_shard *shard = load_on(store, home, 0, 0);
    const sy_shard_group group = {shard, 0, 1};

    run(home, 0, token, &group, 1);
    memcpy(want, sy_shard_home_lane(home, 0).y, sizeof(want));
    for (uint32_t i = 0; i < LANES; i++) {
        workers[i] = (worker){store, home, i, want, NULL};
        assert_int_equal(pthread_create(&thread[i], NULL, compute, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        size_t n;
        sy_shard_put(store, load_on(store, home, 1, i));
        must(sy_shard_home_reprobe(shard, &err), &err);
        free(exported(shard, 1000, &n));
        assert_int_equal(sy_shard_unload(store, 1, i), 1);
    }
    for (uint32_t i = 0; i < LANES; i++) {
        pthread_join(thread[i], NULL);
        if (workers[i].wrong != NULL) fail_msg("%s", workers[i].wrong);
    }
    sy_shard_put(store, shard);
    sy_shard_store_close(store);
    sy_shard_home_close(home);
    shards_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_those_of_the_cpu_within_rounding),
        cmocka_unit_test(a_token_has_the_same_bits_in_every_batch_lane_and_place),
        cmocka_unit_test(a_batch_that_is_out_of_range_is_refused),
        cmocka_unit_test(weights_come_and_go_while_batches_are_computed),
    };
    return cmocka_run_group_tests(tests, devices_open, devices_close);
}
