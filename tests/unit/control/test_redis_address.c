/* test_redis_address.c - how an operator says where Redis is, and the keys of the contract. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "sy_control.h"

static void addresses_of_every_kind_are_read(void **state)
{
    static const struct {
        const char *text;
        sy_redis_address want;
    } good[] = {
        {"unix:/run/redis.sock", {.is_unix = 1, .path = "/run/redis.sock"}},
        {"unix:///run/redis.sock", {.is_unix = 1, .path = "/run/redis.sock"}},
        {"unix:///run/a@b:c.sock?db=3", {.is_unix = 1, .path = "/run/a@b:c.sock", .db = 3}},
        {"unix://:s%2fcret@/run/r.sock",
         {.is_unix = 1, .path = "/run/r.sock", .password = "s/cret"}},
        {"localhost:6379", {.host = "localhost", .port = 6379}},
        {"10.0.0.1:7000", {.host = "10.0.0.1", .port = 7000}},
        {"[::1]:7000", {.host = "::1", .port = 7000}},
        {"redis://db.example", {.host = "db.example", .port = 6379}},
        {"redis://db.example/", {.host = "db.example", .port = 6379}},
        {"redis://db.example:7000/12", {.host = "db.example", .port = 7000, .db = 12}},
        {"redis://:pw@h:1", {.host = "h", .port = 1, .password = "pw"}},
        {"redis://me:p%40ss:word%25@h:1/2",
         {.host = "h", .port = 1, .db = 2, .user = "me", .password = "p@ss:word%"}},
        {"redis://me:a@b@[::1]", {.host = "::1", .port = 6379, .user = "me", .password = "a@b"}},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(good); i++) {
        const sy_redis_address *want = &good[i].want;
        sy_redis_address got;
        sy_error err;

        if (sy_redis_address_parse(&got, good[i].text, &err) != SY_OK) {
            fail_msg("'%s' is refused: %s", good[i].text, err.message);
        }
        assert_int_equal(got.is_unix, want->is_unix);
        assert_string_equal(got.path, want->path);
        assert_string_equal(got.host, want->host);
        assert_int_equal(got.port, want->port);
        assert_int_equal(got.db, want->db);
        assert_string_equal(got.user, want->user);
        assert_string_equal(got.password, want->password);
    }
}

static void other_addresses_are_refused_without_telling_the_password(void **state)
{
    static const char *const bad[] = {
        "",
        ":6379",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:6379x",
        "host:-1",
        "::1:6379",
        "[::1",
        "[::1]6379",
        "unix:",
        "unix:relative.sock",
        "unix://:hunter2@relative",
        "unix:///run/r.sock?password=hunter2",
        "unix:///run/r.sock?db=x",
        "rediss://:hunter2@host:6379",
        "redis://",
        "redis://hunter2@host:6379",
        "redis://me:hunter2%4@host:6379",
        "redis://me:hunter2%zz@host:6379",
        "redis://me:hunter2%00@host:6379",
        "redis://:hunter2@host:6379/x",
        "redis://:hunter2@host:6379/-1",
        "redis://:hunter2@host:6379/99999",
        "redis://:hunter2/@host:6379",
    };
    char long_path[256] = "unix:/";
    sy_redis_address got;
    sy_error err;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        if (sy_redis_address_parse(&got, bad[i], &err) == SY_OK) {
            fail_msg("'%s' is accepted", bad[i]);
        }
        assert_int_equal(err.status, SY_EINVAL);
        assert_true(strlen(err.message) > 20);
        assert_null(strstr(err.message, "hunter2"));
    }
    memset(long_path + 6, 'x', 200);
    assert_int_equal(sy_redis_address_parse(&got, long_path, &err), SY_EINVAL);
    assert_non_null(strstr(err.message, "at most 107 bytes"));
}

static void keys_are_those_of_the_contract(void **state)
{
    char key[64];

    (void)state;
    assert_int_equal(sy_key_placement(key, sizeof(key), "trio"), SY_OK);
    assert_string_equal(key, "switchyard:{trio}:placement");
    assert_int_equal(sy_key_member(key, sizeof(key), SY_MEMBER_NODE, "expert-0"), SY_OK);
    assert_string_equal(key, "switchyard:nodes:expert-0");
    assert_int_equal(sy_key_member(key, sizeof(key), SY_MEMBER_ROUTER, "r"), SY_OK);
    assert_string_equal(key, "switchyard:routers:r");
    assert_int_equal(sy_key_member(key, sizeof(key), SY_MEMBER_AGGREGATOR, "a"), SY_OK);
    assert_string_equal(key, "switchyard:aggregators:a");
    assert_int_equal(sy_key_placement(key, 27, "trio"), SY_ELIMIT);
    assert_int_equal(sy_key_placement(key, 28, "trio"), SY_OK);
    assert_int_equal(sy_key_member(key, 10, SY_MEMBER_NODE, "expert-0"), SY_ELIMIT);
}

static void several_addresses_are_separated_by_commas(void **state)
{
    sy_redis_address got[SY_REDIS_ADDRESSES_MAX];
    sy_error err;
    size_t n;

    (void)state;
    assert_int_equal(sy_redis_addresses_parse(got, SY_COUNT_OF(got), &n, "a:1", &err), SY_OK);
    assert_int_equal(n, 1);
    assert_int_equal(sy_redis_addresses_parse(got, SY_COUNT_OF(got), &n,
                                              "redis://:p%2cw@a:1/3,b:2,unix:/x", &err),
                     SY_EINVAL); /* databases 3, 0, 0 */
    assert_int_equal(
        sy_redis_addresses_parse(got, SY_COUNT_OF(got), &n, "redis://:p%2cw@a:1,b:2,unix:/x", &err),
        SY_OK);
    assert_int_equal(n, 3);
    assert_string_equal(got[0].password, "p,w");
    assert_string_equal(got[1].host, "b");
    assert_int_equal(got[1].port, 2);
    assert_string_equal(got[2].path, "/x");
}

static void lists_of_addresses_with_a_fault_are_refused(void **state)
{
    static const char *const bad[] = {
        "",         ",",         "a:1,",           ",a:1",
        "a:1,,b:2", "a:1,b :2,", "a:1,rediss://b", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9",
    };
    char huge[4096];
    sy_redis_address got[SY_REDIS_ADDRESSES_MAX];
    sy_error err;
    size_t n;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(bad); i++) {
        if (sy_redis_addresses_parse(got, SY_COUNT_OF(got), &n, bad[i], &err) != SY_EINVAL) {
            fail_msg("'%s' is taken", bad[i]);
        }
    }
    memset(huge, 'a', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    assert_int_equal(sy_redis_addresses_parse(got, SY_COUNT_OF(got), &n, huge, &err), SY_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_of_every_kind_are_read),
        cmocka_unit_test(other_addresses_are_refused_without_telling_the_password),
        cmocka_unit_test(keys_are_those_of_the_contract),
        cmocka_unit_test(several_addresses_are_separated_by_commas),
        cmocka_unit_test(lists_of_addresses_with_a_fault_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
