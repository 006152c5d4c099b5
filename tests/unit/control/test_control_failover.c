/* test_control_failover.c - a primary and its replica, both known by address: the one that is
 * primary is used, whoever that is today, and a replica is read while there is none. */
#include "control_fixture.h"

typedef struct pair {
    fixture *f; /* its Redis is the first of the two */
    test_redis second;
    char port[2][16];
    char addresses[256];
    sy_control_config config;
} pair;

/* Both listen on TCP as well, because a replica finds its primary that way. */
static void give_port(test_redis *redis, char *port)
{
    size_t n = 0;

    snprintf(port, 16, "%d", free_port());
    while (redis->extra[n] != NULL) n++;
    redis->extra[n++] = "--port";
    redis->extra[n++] = port;
    redis->extra[n++] = "--repl-diskless-sync-delay"; /* else a replica waits for company */
    redis->extra[n++] = "0";
}

static void make_replica(const test_redis *redis, const char *port)
{
    test_redis_do(redis, "REPLICAOF 127.0.0.1 %s", port);
}

static int is_linked(redisContext *c)
{
    redisReply *reply = redisCommand(c, "ROLE");
    int is_so = 0;

    if (reply == NULL) fail_msg("redis: %s", c->errstr);
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements > 3) {
        is_so = strcmp(reply->element[3]->str, "connected") == 0;
    }
    freeReplyObject(reply);
    return is_so;
}

static void wait_until_linked(const test_redis *redis)
{
    redisContext *c = test_redis_connect(redis);

    WAIT_FOR(is_linked(c));
    redisFree(c);
}

static void pair_open(pair *p, fixture *f, int64_t check_us)
{
    memset(p, 0, sizeof(*p));
    p->f = f;
    for (size_t i = 0; f->redis.extra[i] != NULL; i++) p->second.extra[i] = f->redis.extra[i];
    test_redis_open(&p->second);
    give_port(&f->redis, p->port[0]);
    give_port(&p->second, p->port[1]);
    test_redis_start(&f->redis);
    test_redis_start(&p->second);
    snprintf(p->addresses, sizeof(p->addresses), "%s,%s", f->redis.address, p->second.address);
    p->config = config_of(f, check_us);
    p->config.redis = p->addresses;
}

static void pair_close(pair *p)
{
    test_redis_close(&p->second);
}

static int is_listened_to(const test_redis *redis)
{
    return test_redis_do(redis, "PUBSUB CHANNELS __redis__:invalidate") == 1;
}

static void the_primary_is_used_wherever_it_stands_in_the_list(void **state)
{
    fixture *f = *state;
    sy_control *control;
    pair p;

    pair_open(&p, f, NEVER_CHECK_US);
    make_replica(&f->redis, p.port[1]);
    wait_until_linked(&f->redis);
    control = seen_open(&p.config);
    WAIT_FOR(is_writable());
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    assert_true(is_listened_to(&p.second)); /* the listener is at the primary as well */
    assert_false(is_listened_to(&f->redis));
    test_redis_do(&p.second, "HSET %s */* a/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    sy_control_close(control);
    pair_close(&p);
}

static void an_edit_on_the_new_primary_takes_effect_after_a_failover(void **state)
{
    fixture *f = *state;
    const sy_member self = {.name = "expert-0", .address = "unix:/x", .state = "serving"};
    sy_control *control;
    pair p;

    pair_open(&p, f, NEVER_CHECK_US);
    make_replica(&p.second, p.port[0]);
    wait_until_linked(&p.second);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    p.config.watch_nodes = 1;
    p.config.on_members = seen_members;
    control = seen_open(&p.config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_NODE, "expert-0"));
    WAIT_FOR(test_redis_do(&p.second, "EXISTS %s", KEY) == 1);
    test_redis_kill(&f->redis);
    WAIT_FOR(!is_writable());
    assert_true(is_at(control, 1, 2, "a/cpu:0"));
    WAIT_FOR(sy_control_redis_up(control)); /* the replica can be read */
    assert_true(is_at(control, 1, 2, "a/cpu:0"));
    test_redis_do(&p.second, "REPLICAOF NO ONE");
    WAIT_FOR(is_writable());
    test_redis_do(&p.second, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    assert_true(seen_names_are(&f->seen, SY_MEMBER_NODE, "expert-0"));
    sy_control_withdraw(control);
    WAIT_FOR(test_redis_do(&p.second, "EXISTS switchyard:nodes:expert-0") == 0);
    sy_control_close(control);
    pair_close(&p);
}

/* Nobody dies: the two change their roles, and no connection is lost by that. */
static void a_primary_that_was_demoted_is_left(void **state)
{
    fixture *f = *state;
    sy_control *control;
    pair p;

    pair_open(&p, f, 50000);
    make_replica(&p.second, p.port[0]);
    wait_until_linked(&p.second);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&p.config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    for (int round = 0; round < 2; round++) {
        test_redis *now = round % 2 == 0 ? &p.second : &f->redis;
        test_redis *before = round % 2 == 0 ? &f->redis : &p.second;
        char value[32];

        test_redis_do(now, "REPLICAOF NO ONE");
        make_replica(before, p.port[round % 2 == 0]);
        wait_until_linked(before);
        WAIT_FOR(is_listened_to(now));
        WAIT_FOR(is_writable());
        snprintf(value, sizeof(value), "b/cpu:%d", round);
        test_redis_do(now, "HSET %s */* %s", KEY, value);
        WAIT_FOR(is_at(control, 1, 2, value));
    }
    sy_control_close(control);
    pair_close(&p);
}

/* A refused write tells it before the periodic check does. */
static void a_refused_write_leads_to_the_primary(void **state)
{
    fixture *f = *state;
    const sy_member self = {.name = "expert-0", .address = "unix:/x", .state = "serving"};
    sy_control *control;
    pair p;

    pair_open(&p, f, NEVER_CHECK_US);
    make_replica(&p.second, p.port[0]);
    wait_until_linked(&p.second);
    p.config.lease_us = 300000;
    control = seen_open(&p.config);
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS switchyard:nodes:expert-0") == 1);
    test_redis_do(&p.second, "REPLICAOF NO ONE");
    make_replica(&f->redis, p.port[1]);
    WAIT_FOR(is_listened_to(&p.second));
    WAIT_FOR(test_redis_do(&p.second, "EXISTS switchyard:nodes:expert-0") == 1);
    sy_control_close(control);
    pair_close(&p);
}

static void roles_are_found_out_where_ROLE_is_forbidden(void **state)
{
    fixture *f = *state;
    sy_control *control;
    pair p;

    f->redis.extra[0] = "--rename-command";
    f->redis.extra[1] = "ROLE";
    f->redis.extra[2] = "";
    pair_open(&p, f, 50000);
    make_replica(&f->redis, p.port[1]);
    control = seen_open(&p.config);
    WAIT_FOR(is_writable());
    WAIT_FOR(is_listened_to(&p.second));
    assert_false(is_listened_to(&f->redis));
    test_redis_do(&p.second, "HSET %s */* a/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    sy_control_close(control);
    pair_close(&p);
}

/* Where nothing tells a role, writing tells it. */
static void without_ROLE_and_INFO_the_one_that_takes_writes_is_found(void **state)
{
    fixture *f = *state;
    const sy_member self = {.name = "expert-0", .address = "unix:/x", .state = "serving"};
    char addresses[320];
    sy_control *control;
    pair p;

    pair_open(&p, f, NEVER_CHECK_US);
    make_replica(&f->redis, p.port[1]);
    wait_until_linked(&f->redis);
    test_redis_do(&p.second, "ACL SETUSER blind on >pw ~* &* +@all -role -info");
    test_redis_do(&f->redis, "ACL SETUSER blind on >pw ~* &* +@all -role -info");
    snprintf(addresses, sizeof(addresses), "unix://blind:pw@%s,unix://blind:pw@%s", f->redis.socket,
             p.second.socket);
    p.config.redis = addresses;
    p.config.lease_us = 300000;
    control = seen_open(&p.config);
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(test_redis_do(&p.second, "EXISTS switchyard:nodes:expert-0") == 1);
    sy_control_close(control);
    pair_close(&p);
}

static void a_replica_alone_is_read_and_nobody_is_missed_there(void **state)
{
    fixture *f = *state;
    sy_control *control;
    pair p;

    pair_open(&p, f, 20000);
    make_replica(&p.second, p.port[0]);
    wait_until_linked(&p.second);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    test_redis_do(&f->redis, "HSET switchyard:nodes:expert-0 address unix:/x");
    test_redis_do(&f->redis, "PEXPIRE switchyard:nodes:expert-0 2000");
    WAIT_FOR(test_redis_do(&p.second, "EXISTS switchyard:nodes:expert-0") == 1);
    test_redis_kill(&f->redis);
    p.config.watch_nodes = 1;
    p.config.on_members = seen_members;
    p.config.lease_us = 20000;
    control = seen_open(&p.config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    assert_true(sy_control_redis_up(control));
    assert_false(is_writable());
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_NODE, "expert-0"));
    WAIT_FOR(test_redis_do(&p.second, "HLEN switchyard:nodes:expert-0") == 0);
    /* Another hash is read there many times; the lease that ended is not held against anybody. */
    test_redis_do(&p.second, "CONFIG SET replica-read-only no");
    test_redis_do(&p.second, "HSET switchyard:nodes:expert-1 address unix:/y");
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_NODE, "expert-0 expert-1"));
    sy_control_close(control);
    pair_close(&p);
}

/* What a replica without a primary says may be old: it is not held against what is in force. */
static void a_replica_that_lost_its_primary_takes_nothing_back(void **state)
{
    fixture *f = *state;
    uint32_t n_calls;
    sy_control *control;
    pair p;

    pair_open(&p, f, 20000);
    make_replica(&p.second, p.port[0]);
    wait_until_linked(&p.second);
    test_redis_do(&f->redis, "HSET %s */* new/cpu:0", KEY);
    p.config.watch_nodes = 1;
    p.config.on_members = seen_members;
    control = seen_open(&p.config);
    WAIT_FOR(is_at(control, 1, 2, "new/cpu:0"));
    WAIT_FOR(test_redis_do(&p.second, "EXISTS %s", KEY) == 1);
    test_redis_kill(&f->redis);
    test_redis_do(&p.second, "CONFIG SET replica-read-only no"); /* to make it look old */
    test_redis_do(&p.second, "HSET %s */* old/cpu:0", KEY);
    WAIT_FOR(sy_control_redis_up(control));
    for (int i = 0; i < 5; i++) { /* what is listed was asked for after the placement was read */
        char lease[64];

        n_calls = seen_calls(&f->seen, SY_MEMBER_NODE);
        snprintf(lease, sizeof(lease), "switchyard:nodes:expert-%d", i);
        test_redis_do(&p.second, "HSET %s address unix:/y", lease);
        WAIT_FOR(seen_calls(&f->seen, SY_MEMBER_NODE) > n_calls);
        assert_true(is_at(control, 1, 2, "new/cpu:0"));
    }
    test_redis_do(&p.second, "REPLICAOF NO ONE"); /* now it is the truth */
    WAIT_FOR(is_at(control, 1, 2, "old/cpu:0"));
    sy_control_close(control);
    pair_close(&p);
}

static void of_two_primaries_the_one_in_use_is_kept(void **state)
{
    fixture *f = *state;
    sy_control *control;
    pair p;

    pair_open(&p, f, 20000);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&p.config);
    WAIT_FOR(sy_control_redis_up(control));
    WAIT_FOR(is_listened_to(&f->redis) != is_listened_to(&p.second));
    for (int i = 0; i < 5; i++) {
        char value[32];

        snprintf(value, sizeof(value), "a/cpu:%d", i);
        test_redis_do(&f->redis, "HSET %s */* %s", KEY, value);
        test_redis_do(&p.second, "HSET %s */* %s", KEY, value);
        WAIT_FOR(is_at(control, 1, 2, value));
        assert_true(is_listened_to(&f->redis) != is_listened_to(&p.second));
    }
    sy_control_close(control);
    pair_close(&p);
}

static void addresses_of_both_kinds_may_be_mixed(void **state)
{
    fixture *f = *state;
    char addresses[256];
    sy_control *control;
    pair p;

    pair_open(&p, f, NEVER_CHECK_US);
    make_replica(&f->redis, p.port[1]);
    wait_until_linked(&f->redis);
    test_redis_do(&p.second, "HSET %s */* a/cpu:0", KEY);
    snprintf(addresses, sizeof(addresses), "unix:/nowhere.sock,%s,127.0.0.1:1,localhost:%s",
             f->redis.address, p.port[1]);
    p.config.redis = addresses;
    control = seen_open(&p.config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    WAIT_FOR(is_writable());
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    test_redis_do(&p.second, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    sy_control_close(control);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(the_primary_is_used_wherever_it_stands_in_the_list),
        TEST(an_edit_on_the_new_primary_takes_effect_after_a_failover),
        TEST(a_primary_that_was_demoted_is_left),
        TEST(a_refused_write_leads_to_the_primary),
        TEST(roles_are_found_out_where_ROLE_is_forbidden),
        TEST(without_ROLE_and_INFO_the_one_that_takes_writes_is_found),
        TEST(a_replica_alone_is_read_and_nobody_is_missed_there),
        TEST(a_replica_that_lost_its_primary_takes_nothing_back),
        TEST(of_two_primaries_the_one_in_use_is_kept),
        TEST(addresses_of_both_kinds_may_be_mixed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
