/* test_control_outages.c - bad days of a Redis that stays at its address: what is in force stays
 * so, the process goes on, and edits resume when the day is over. */
#include "control_fixture.h"

static void seen_tick(void *arg)
{
    seen *s = arg;

    pthread_mutex_lock(&s->mutex);
    s->n_ticks++;
    pthread_mutex_unlock(&s->mutex);
}

static uint32_t ticks_of(seen *s)
{
    uint32_t n;

    pthread_mutex_lock(&s->mutex);
    n = s->n_ticks;
    pthread_mutex_unlock(&s->mutex);
    return n;
}

/* The loop turns: whatever it waits for, it does not wait in a call. */
static void wait_for_ticks(seen *s, uint32_t n)
{
    const uint32_t before = ticks_of(s);

    WAIT_FOR(ticks_of(s) >= before + n);
}

static void remove_dump(const test_redis *redis)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/dump.rdb", redis->dir);
    unlink(path);
}

static void a_restart_with_data_changes_nothing(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    test_redis_do(&f->redis, "SAVE");
    test_redis_kill(&f->redis);
    WAIT_FOR(!sy_control_redis_up(control));
    assert_true(is_at(control, 1, 2, "a/cpu:0"));
    test_redis_start(&f->redis);
    WAIT_FOR(sy_control_redis_up(control));
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    assert_int_equal(n_refused(control), 0);
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    sy_control_close(control);
    assert_int_equal(f->seen.n_placements, 2);
    remove_dump(&f->redis);
}

static void a_slow_redis_holds_nothing_up(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 20000);
    const sy_member self = {.name = "expert-0", .address = "unix:/x", .state = "serving"};
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    assert_int_equal(sy_control_every(control, 5000, seen_tick, &f->seen), SY_OK);
    test_redis_do(&f->redis, "CLIENT PAUSE 1000 ALL"); /* answers are late, but not too late */
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    wait_for_ticks(&f->seen, 20); /* the loop goes on */
    assert_true(is_at(control, 1, 2, "a/cpu:0"));
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY); /* waits for the end of the pause */
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS switchyard:nodes:expert-0") == 1);
    test_redis_do(&f->redis, "CLIENT PAUSE 4000 ALL"); /* too late: given up and tried again */
    WAIT_FOR(!sy_control_redis_up(control));
    wait_for_ticks(&f->seen, 20);
    assert_true(is_at(control, 1, 2, "b/cpu:0"));
    WAIT_FOR(sy_control_redis_up(control));
    test_redis_do(&f->redis, "HSET %s */* c/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "c/cpu:0"));
    sy_control_close(control);
}

static void a_user_who_is_locked_out_for_a_while_comes_back(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, 20000);
    char address[160];
    double errors;
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    test_redis_do(&f->redis, "ACL SETUSER sy on >pw ~* &* +@all");
    snprintf(address, sizeof(address), "unix://sy:pw@%s", f->redis.socket);
    config.redis = address;
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    test_redis_do(&f->redis, "ACL DELUSER sy"); /* its connections are closed */
    WAIT_FOR(!sy_control_redis_up(control));
    test_redis_do(&f->redis, "ACL SETUSER sy on >other ~* &* +@all");
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    assert_true(is_at(control, 1, 2, "a/cpu:0"));
    assert_false(sy_control_redis_up(control));
    test_redis_do(&f->redis, "ACL SETUSER sy >pw");
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    errors = redis_errors();
    test_redis_do(&f->redis, "ACL SETUSER sy -hgetall"); /* degraded, not away */
    test_redis_do(&f->redis, "HSET %s */* c/cpu:0", KEY);
    WAIT_FOR(redis_errors() > errors + 3);
    assert_true(sy_control_redis_up(control));
    assert_true(is_at(control, 1, 2, "b/cpu:0"));
    test_redis_do(&f->redis, "ACL SETUSER sy +hgetall");
    WAIT_FOR(is_at(control, 1, 2, "c/cpu:0"));
    sy_control_close(control);
}

/* One address, and what answers there only reads: placements are followed, leases cannot be. */
static void a_read_only_replica_alone_serves_placements(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 20000);
    const sy_member self = {.name = "expert-0", .address = "unix:/x", .state = "serving"};
    const double before = redis_errors();
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    test_redis_do(&f->redis, "REPLICAOF 127.0.0.1 1"); /* nobody is there */
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(redis_errors() > before + 2);
    assert_true(sy_control_redis_up(control));
    test_redis_do(&f->redis, "REPLICAOF NO ONE");
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS switchyard:nodes:expert-0") == 1);
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    sy_control_close(control);
}

static void the_same_over_tcp(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    char port[16];
    char address[64];
    sy_control *control;

    snprintf(port, sizeof(port), "%d", free_port());
    snprintf(address, sizeof(address), "redis://:pw@localhost:%s/2", port);
    f->redis.extra[0] = "--port";
    f->redis.extra[1] = port;
    f->redis.extra[2] = "--requirepass";
    f->redis.extra[3] = "pw";
    f->redis.password = "pw";
    config.redis = address;
    test_redis_start(&f->redis);
    control = seen_open(&config);
    for (int round = 0; round < 2; round++) {
        redisContext *c = test_redis_connect(&f->redis);
        char value[32];

        WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
        snprintf(value, sizeof(value), "a/cpu:%d", round);
        freeReplyObject(redisCommand(c, "SELECT 2"));
        freeReplyObject(redisCommand(c, "HSET %s */* %s", KEY, value));
        redisFree(c);
        WAIT_FOR(is_at(control, 1, 2, value));
        test_redis_kill(&f->redis);
        WAIT_FOR(!sy_control_redis_up(control));
        assert_true(is_at(control, 1, 2, value));
        test_redis_start(&f->redis);
    }
    sy_control_close(control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(a_restart_with_data_changes_nothing),
        TEST(a_slow_redis_holds_nothing_up),
        TEST(a_user_who_is_locked_out_for_a_while_comes_back),
        TEST(a_read_only_replica_alone_serves_placements),
        TEST(the_same_over_tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
