/* test_fetch_server.c - a node that gives its shards away: to many, to slow ones, and to those that
 * leave. */
#include "fetch_fixture.h"

typedef struct asking {
    sy_client *client;
    sy_client_call *call;
} asking;

static asking ask(const node *n, const sy_fetch_request *request)
{
    asking a;
    sy_frame frame;
    sy_error err = {0};

    must(sy_client_open(&a.client, n->address, 0, &err), &err);
    assert_int_equal(sy_wire_fetch_request_encode(&frame, request, NULL), SY_OK);
    must(sy_client_start(&a.call, a.client, EXPERT_FETCH_PATH, &frame, sy_clock_us() + WAIT_US, 1,
                         &err),
         &err);
    return a;
}

static void asking_end(asking *a)
{
    sy_client_end(a->call);
    sy_client_close(a->client);
}

/* Reads to the end; returns the call's status, *n_bytes of data. */
static sy_status drain(asking *a, uint64_t *n_bytes, sy_error *err)
{
    sy_arena arena;
    sy_msg *msg;
    sy_status st;

    *n_bytes = 0;
    sy_arena_init(&arena, 1 << 22);
    while ((st = sy_client_next(a->call, &msg, err)) == SY_OK && msg != NULL) {
        sy_shard_chunk c;
        size_t n;
        const sy_iov *iov = sy_msg_iov(msg, &n);

        must(sy_wire_shard_chunk_decode(&c, &arena, iov, n, err), err);
        assert_true(c.n_bytes <= CHUNK);
        *n_bytes += c.n_bytes;
        sy_arena_reset(&arena);
        sy_msg_free(msg);
    }
    sy_arena_free(&arena);
    return st;
}

static void requests_that_make_no_sense_are_refused(void **state)
{
    static const struct {
        sy_fetch_request request;
        sy_status status;
    } cases[] = {
        {{.model = "another", .layer = LAYER, .expert = EXPERT}, SY_ENOTFOUND},
        {{.model = "small", .layer = 2, .expert = EXPERT}, SY_ENOTFOUND},
        {{.model = "small", .layer = LAYER, .expert = 20}, SY_ENOTFOUND},
        {{.model = "small", .layer = LAYER, .expert = 3}, SY_EPRECONDITION},
        {{.model = "small", .layer = LAYER, .expert = EXPERT, .content_hash = 1}, SY_EPRECONDITION},
        {{.model = "small", .layer = LAYER, .expert = EXPERT, .offset = UINT64_MAX}, SY_EINVAL},
    };
    node *n = node_real((expert_fetch_server_config){0});
    uint64_t n_bytes;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(cases); i++) {
        asking a = ask(n, &cases[i].request);
        sy_error err = {0};
        const sy_status st = drain(&a, &n_bytes, &err);
        if (st != cases[i].status) fail_msg("case %zu: %s: %s", i, sy_status_name(st), err.message);
        asking_end(&a);
    }
    const sy_fetch_request at_end = {
        .model = "", .layer = LAYER, .expert = EXPERT, .offset = total_bytes};
    asking a = ask(n, &at_end);
    sy_error err = {0};
    assert_int_equal(drain(&a, &n_bytes, &err), SY_EINVAL);
    asking_end(&a);
    node_close(n);
}

static const sy_fetch_request whole = {.model = "small", .layer = LAYER, .expert = EXPERT};

static void too_many_fetches_are_refused_and_room_comes_back(void **state)
{
    node *n = node_real(
        (expert_fetch_server_config){.stall_us = 10 * WAIT_US, .bytes_per_s_max = CHUNK / 1024});
    asking slow[EXPERT_FETCHES_MAX];
    sy_error err = {0};
    uint64_t n_bytes;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(slow); i++) slow[i] = ask(n, &whole);
    wait_until(expert_fetch_server_running(n->giving) == EXPERT_FETCHES_MAX);
    asking more = ask(n, &whole);
    assert_int_equal(drain(&more, &n_bytes, &err), SY_ELIMIT);
    asking_end(&more);
    asking_end(&slow[3]); /* leaves without having read anything */
    wait_until(expert_fetch_server_running(n->giving) == EXPERT_FETCHES_MAX - 1);
    slow[3] = ask(n, &whole);
    wait_until(expert_fetch_server_running(n->giving) == EXPERT_FETCHES_MAX);
    for (size_t i = 0; i < SY_COUNT_OF(slow); i++) asking_end(&slow[i]);
    wait_until(expert_fetch_server_running(n->giving) == 0);
    node_close(n);
}

static void a_shard_that_is_unloaded_is_still_given_to_the_end(void **state)
{
    node *n = node_real((expert_fetch_server_config){.bytes_per_s_max = 20 << 20});
    asking a = ask(n, &whole);
    sy_error err = {0};
    uint64_t n_bytes;

    (void)state;
    wait_until(expert_fetch_server_bytes(n->giving) > 0);
    assert_int_equal(sy_shard_unload(n->store, LAYER, EXPERT), 1);
    assert_int_equal(drain(&a, &n_bytes, &err), SY_OK);
    assert_int_equal(n_bytes, total_bytes);
    wait_until(sy_shard_store_bytes(n->store) == 0);
    asking_end(&a);
    node_close(n);
}

static void all_fetches_share_one_limit(void **state)
{
    const uint64_t limit = 8 << 20;
    node *n = node_real((expert_fetch_server_config){.bytes_per_s_max = limit});
    const int64_t before_us = sy_clock_us();
    asking a[3];
    sy_error err = {0};
    uint64_t n_bytes;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(a); i++) a[i] = ask(n, &whole);
    for (size_t i = 0; i < SY_COUNT_OF(a); i++) {
        assert_int_equal(drain(&a[i], &n_bytes, &err), SY_OK);
        assert_int_equal(n_bytes, total_bytes);
        asking_end(&a[i]);
    }
    /* All but the last chunk have been paid for by then; slower is always right. */
    const int64_t least_us = (int64_t)((3 * total_bytes - CHUNK) * 1000000 / limit);
    if (sy_clock_us() - before_us < least_us)
        fail_msg("%lld us, at least %lld expected", (long long)(sy_clock_us() - before_us),
                 (long long)least_us);
    node_close(n);
}

/* A shard that no transport takes whole for a client that does not read. */
static void a_client_that_does_not_read_is_given_up(void **state)
{
    char dir[] = "/tmp/sy-fetch-XXXXXX";
    sy_model *large = model_make(dir, 1024, 1536, 3);
    node *n = node_real((expert_fetch_server_config){.model = large, .stall_us = 200000});
    sy_error err = {0};
    uint64_t n_bytes;

    (void)state;
    asking a = ask(n, &whole);
    wait_until(expert_fetch_server_bytes(n->giving) > 0);
    assert_int_equal(sy_shard_unload(n->store, LAYER, EXPERT), 1);
    wait_until(expert_fetch_server_running(n->giving) == 0);
    wait_until(sy_shard_store_bytes(n->store) == 0); /* nobody holds the shard any more */
    assert_int_equal(drain(&a, &n_bytes, &err), SY_EDEADLINE);
    assert_non_null(strstr(err.message, "the peer does not read"));
    asking_end(&a);
    node_close(n);
    assert_int_equal(model_remove(large), 0);
}

static void a_node_that_closes_ends_what_runs(void **state)
{
    node *n = node_real((expert_fetch_server_config){.bytes_per_s_max = 1 << 20});
    asking a = ask(n, &whole);
    sy_error err = {0};
    uint64_t n_bytes;

    (void)state;
    wait_until(expert_fetch_server_bytes(n->giving) > 0);
    node_close(n);
    assert_true(drain(&a, &n_bytes, &err) != SY_OK);
    asking_end(&a);
}

typedef struct many {
    taker *t;
    node *n;
    uint32_t expert;
    sy_status st;
} many;

static void *fetch_one(void *arg)
{
    many *m = arg;
    const expert_source source = {"expert-a", m->n->address, 0};
    const expert_fetch_job job = {
        .layer = 0, .expert = m->expert, .source = &source, .n_sources = 1};
    sy_shard_builder *builder;

    m->st = expert_fetch(m->t->fetcher, &builder, NULL, &job, NULL);
    if (m->st == SY_OK) sy_shard_publish(builder);
    return NULL;
}

static void several_shards_are_fetched_at_once(void **state)
{
    enum { N = 6 };
    node *n = node_real((expert_fetch_server_config){0});
    taker *t = taker_open((expert_fetcher_config){0}, 0);
    many m[N];
    pthread_t thread[N];

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        store_fill(n->store, 0, i);
        m[i] = (many){t, n, i, SY_OK};
    }
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, fetch_one, &m[i]), 0);
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(m[i].st, SY_OK);
        const sy_shard *want = sy_shard_get(n->store, 0, i), *got = sy_shard_get(t->store, 0, i);
        assert_non_null(got);
        assert_true(got->identity.content == want->identity.content &&
                    got->identity.probe == want->identity.probe);
        sy_shard_put(n->store, want);
        sy_shard_put(t->store, got);
    }
    taker_close(t);
    node_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_that_make_no_sense_are_refused),
        cmocka_unit_test(too_many_fetches_are_refused_and_room_comes_back),
        cmocka_unit_test(a_shard_that_is_unloaded_is_still_given_to_the_end),
        cmocka_unit_test(all_fetches_share_one_limit),
        cmocka_unit_test(a_client_that_does_not_read_is_given_up),
        cmocka_unit_test(a_node_that_closes_ends_what_runs),
        cmocka_unit_test(several_shards_are_fetched_at_once),
    };
    return cmocka_run_group_tests(tests, model_set_up, model_tear_down);
}
