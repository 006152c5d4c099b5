/* test_control_static.c - routers that are named in the configuration: literal addresses, names
 * that a name server knows, forgets and changes, and the same router with a lease as well. */
#include "control_fixture.h"

#include <netdb.h>
#include <uv.h>

#include "sy_static.h"

static sy_control *open_with(fixture *f, const char *routers, const char *redis)
{
    const sy_control_config config = {
        .redis = redis,
        .model = "trio",
        .grid.layers = 1,
        .grid.experts = 1,
        .watch_routers = 1,
        .routers = routers,
        .check_us = 20000,
        .ctx = &f->seen,
        .on_members = seen_members,
    };

    return seen_open(&config);
}

static int routers_are(fixture *f, const char *want)
{
    return seen_names_are(&f->seen, SY_MEMBER_ROUTER, want);
}

static void literal_addresses_are_members_without_any_redis(void **state)
{
    fixture *f = *state;
    sy_control *control =
        open_with(f, "10.0.0.2:7000,unix:/run/r.sock,[::1]:7000,r.example:7", NULL);
    sy_member got;

    WAIT_FOR(routers_are(f, "10.0.0.2:7000 [::1]:7000 r.example:7 unix:/run/r.sock"));
    got = seen_member(&f->seen, SY_MEMBER_ROUTER, 0);
    assert_string_equal(got.address, "10.0.0.2:7000");
    assert_string_equal(got.model, "trio");
    assert_string_equal(got.state, "serving");
    assert_string_equal(got.structure_hash, "");
    sy_control_close(control);
    assert_int_equal(seen_calls(&f->seen, SY_MEMBER_ROUTER), 1);
}

static void a_long_path_has_a_name_that_fits(void **state)
{
    fixture *f = *state;
    char routers[2 * SY_ADDRESS_BYTES];
    char path[101];
    sy_control *control;
    sy_member got[2];

    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    snprintf(routers, sizeof(routers), "unix:/%s/1,unix:/%s/2", path, path);
    control = open_with(f, routers, NULL);
    WAIT_FOR(seen_calls(&f->seen, SY_MEMBER_ROUTER) == 1);
    for (size_t i = 0; i < 2; i++) got[i] = seen_member(&f->seen, SY_MEMBER_ROUTER, i);
    assert_int_equal(strlen(got[0].name), SY_NODE_BYTES - 1);
    assert_string_not_equal(got[0].name, got[1].name);
    assert_int_equal(strlen(got[0].address), 108);
    sy_control_close(control);
}

static void a_name_stands_for_its_addresses(void **state)
{
    fixture *f = *state;
    sy_control *control = open_with(f, "dns:///localhost:7000,127.0.0.1:7000", NULL);

    WAIT_FOR(routers_are(f, "127.0.0.1:7000") || routers_are(f, "127.0.0.1:7000 [::1]:7000"));
    sy_control_close(control);
}

static void a_lease_with_the_same_address_is_the_same_router(void **state)
{
    fixture *f = *state;
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    test_redis_do(&f->redis, "HSET switchyard:routers:router-a address 10.0.0.2:7000 model trio");
    control = open_with(f, "10.0.0.3:7000,10.0.0.2:7000", f->redis.address);
    WAIT_FOR(routers_are(f, "10.0.0.3:7000 router-a"));
    test_redis_do(&f->redis, "HSET switchyard:routers:router-b address 10.0.0.4:7000 model trio");
    WAIT_FOR(routers_are(f, "10.0.0.3:7000 router-a router-b"));
    test_redis_do(&f->redis, "DEL switchyard:routers:router-a");
    WAIT_FOR(routers_are(f, "10.0.0.2:7000 10.0.0.3:7000 router-b"));
    sy_control_close(control);
}

static void what_is_no_address_is_refused(void **state)
{
    static const char *const bad[] = {
        "",           "host",          ":7000",         "host:",       "host:0",
        "unix:x",     "dns:///:7000",  "dns:///name",   "dns://a/b:7", "1.2.3.4:7000,",
        ",1.2.3.4:7", "http://h:7000", "1.2.3.4:99999",
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        const sy_control_config config = {.routers = bad[i]};
        sy_control *control;
        sy_error err;

        if (sy_control_open(&control, &config, &err) != SY_EINVAL) {
            fail_msg("'%s' is taken", bad[i]);
        }
        if (strstr(err.message, "routers") == NULL) fail_msg("'%s': %s", bad[i], err.message);
    }
}

/* ---- with a name server of the test's own: names are asked elsewhere, or not at all ---- */

static const char *name_means; /* a literal address, which resolves to itself; NULL: unknown */
static int n_asked;

static int resolve(uv_loop_t *loop, uv_getaddrinfo_t *request, uv_getaddrinfo_cb done,
                   const char *host, const char *port, const struct addrinfo *hints)
{
    assert_string_equal(host, "routers.example");
    n_asked++;
    if (name_means == NULL) return UV_EAI_AGAIN;
    return uv_getaddrinfo(loop, request, done, name_means, port, hints);
}

static void a_forgotten_name_keeps_its_last_answer(void **state)
{
    fixture *f = *state;
    uv_loop_t loop;
    sy_static *routers;
    sy_error err;
    const sy_static_config config = {
        .loop = &loop,
        .routers = "dns:///routers.example:7000",
        .interval_us = 5000,
        .resolve = resolve,
        .ctx = &f->seen,
        .on_members = seen_members,
    };

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(sy_static_open(&routers, &config, &err), SY_OK);
    name_means = NULL;
    n_asked = 0;
    sy_static_start(routers);
    while (n_asked < 5) uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(seen_calls(&f->seen, SY_MEMBER_ROUTER), 0);
    name_means = "10.0.0.2";
    while (!routers_are(f, "10.0.0.2:7000")) uv_run(&loop, UV_RUN_ONCE);
    name_means = NULL;
    for (n_asked = 0; n_asked < 5;) uv_run(&loop, UV_RUN_ONCE);
    assert_true(routers_are(f, "10.0.0.2:7000"));
    name_means = "::1";
    while (!routers_are(f, "[::1]:7000")) uv_run(&loop, UV_RUN_ONCE);
    for (n_asked = 0; n_asked < 5;) uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(seen_calls(&f->seen, SY_MEMBER_ROUTER), 2); /* no news, no call */
    sy_static_stop(routers);
    uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    sy_static_free(routers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(literal_addresses_are_members_without_any_redis),
        TEST(a_long_path_has_a_name_that_fits),
        TEST(a_name_stands_for_its_addresses),
        TEST(a_lease_with_the_same_address_is_the_same_router),
        TEST(what_is_no_address_is_refused),
        TEST(a_forgotten_name_keeps_its_last_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
