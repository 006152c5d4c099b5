/* test_control_placement.c - an operator edits the placement hash of a real Redis while a process
 * follows it, and Redis has every kind of bad day. */
#include "control_fixture.h"

static void an_edit_is_seen_by_notification_alone(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    /* The subscription may come a moment after the first read; from then on each edit is heard. */
    WAIT_FOR(test_redis_do(&f->redis, "PUBSUB CHANNELS __keyspace@0__:*") == 1);
    for (int i = 0; i < 20; i++) {
        char value[32];

        snprintf(value, sizeof(value), "b/cpu:%d", i);
        test_redis_do(&f->redis, "HSET %s 1/2 %s", KEY, value);
        WAIT_FOR(is_at(control, 1, 2, value));
    }
    test_redis_do(&f->redis, "HDEL %s 1/2", KEY);
    WAIT_FOR(is_at(control, 1, 2, "a/cpu:0"));
    sy_control_close(control);
    assert_in_range(f->seen.epoch, 21, 22);
}

/* Notifications that come while the hash is being read lead to one more read. */
static void the_last_edit_of_a_burst_is_seen_by_notification_alone(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    redisContext *c;
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(test_redis_do(&f->redis, "PUBSUB CHANNELS __keyspace@0__:*") == 1);
    c = test_redis_connect(&f->redis);
    for (int burst = 0; burst < 50; burst++) {
        char value[32];

        for (int i = 0; i < 20; i++) {
            snprintf(value, sizeof(value), "n%d/cpu:%d", burst, i);
            freeReplyObject(redisCommand(c, "HSET %s 1/2 %s", KEY, value));
        }
        WAIT_FOR(is_at(control, 1, 2, value));
    }
    redisFree(c);
    sy_control_close(control);
}

static void notifications_already_in_use_are_kept(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    redisContext *c;
    redisReply *reply;
    sy_control *control;

    f->redis.extra[0] = "--notify-keyspace-events";
    f->redis.extra[1] = "E$";
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(test_redis_do(&f->redis, "PUBSUB CHANNELS __keyspace@0__:*") == 1);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    c = test_redis_connect(&f->redis);
    reply = redisCommand(c, "CONFIG GET notify-keyspace-events");
    for (const char *flag = "E$Kgh"; *flag != '\0'; flag++) {
        if (strchr(reply->element[1]->str, *flag) == NULL) {
            fail_msg("'%c' is not in '%s'", *flag, reply->element[1]->str);
        }
    }
    freeReplyObject(reply);
    redisFree(c);
    sy_control_close(control);
}

static void the_periodic_check_does_where_notifications_are_forbidden(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 20000);
    sy_control *control;

    f->redis.extra[0] = "--rename-command";
    f->redis.extra[1] = "CONFIG";
    f->redis.extra[2] = "";
    test_redis_start(&f->redis);
    control = seen_open(&config);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    sy_control_close(control);
}

static void check_now_reads_at_once(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    f->redis.extra[0] = "--rename-command";
    f->redis.extra[1] = "CONFIG";
    f->redis.extra[2] = "";
    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(sy_control_redis_up(control));
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    WAIT_FOR((sy_control_check_now(control), is_at(control, 0, 0, "a/cpu:0")));
    sy_control_close(control);
}

static void another_database_is_followed_where_the_address_names_it(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    char address[160];
    redisContext *c;
    sy_control *control;

    test_redis_start(&f->redis);
    snprintf(address, sizeof(address), "unix://%s?db=3", f->redis.socket);
    config.redis = address;
    c = test_redis_connect(&f->redis);
    freeReplyObject(redisCommand(c, "HSET %s */* wrong/cpu:0", KEY));
    freeReplyObject(redisCommand(c, "SELECT 3"));
    freeReplyObject(redisCommand(c, "HSET %s */* a/cpu:0", KEY));
    control = seen_open(&config);
    WAIT_FOR(test_redis_do(&f->redis, "PUBSUB CHANNELS __keyspace@3__:*") == 1);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    freeReplyObject(redisCommand(c, "HSET %s */* b/cpu:0", KEY));
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    redisFree(c);
    sy_control_close(control);
}

static void a_bad_field_is_refused_and_the_others_take_effect(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 50000);
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0 0/1 b/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 0, 1, "b/cpu:0"));
    test_redis_do(&f->redis, "HSET %s 0/1 b/gpu:0 0/2 c/cpu:0 7/7 d/cpu:0 junk %b", KEY, "\0\xff",
                  (size_t)2);
    WAIT_FOR(is_at(control, 0, 2, "c/cpu:0"));
    assert_true(is_at(control, 0, 1, "b/cpu:0"));
    assert_int_equal(n_refused(control), 3);
    test_redis_do(&f->redis, "HDEL %s 0/1 7/7 junk", KEY);
    WAIT_FOR(is_at(control, 0, 1, "a/cpu:0"));
    WAIT_FOR(n_refused(control) == 0);
    sy_control_close(control);
}

/* What is missing, and what is refused, is counted in layers that have experts. */
static void a_layer_without_experts_is_not_missed_and_not_edited(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, 20000);
    sy_metric *missing = sy_metric_gauge("switchyard_placement_missing_experts", "", NULL);
    sy_metric *refused = sy_metric_gauge("switchyard_placement_refused_fields", "", NULL);
    sy_control *control;
    sy_snapshot *snapshot;

    sy_grid_set(&config.grid, 0, 0);
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s 1/0 a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 1, 0, "a/cpu:0"));
    assert_true(sy_metric_value(missing) == 2);
    test_redis_do(&f->redis, "HSET %s 0/1 a/cpu:0 */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:0"));
    assert_true(sy_metric_value(missing) == 0);
    assert_true(sy_metric_value(refused) == 1);
    snapshot = sy_control_snapshot(control);
    assert_null(sy_snapshot_targets(snapshot, 0, 1));
    assert_string_equal(sy_snapshot_refusal_at(snapshot, 0)->why,
                        "layer 0 has no experts: those that have are 1");
    sy_snapshot_unref(snapshot);
    sy_control_close(control);
    sy_grid_set(&config.grid, 1, 0); /* nothing at all to place */
    assert_int_equal(sy_control_open(&control, &config, NULL), SY_EINVAL);
}

static void a_deleted_hash_leaves_the_last_good_placement(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 50000);
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "DEL %s", KEY);
    WAIT_FOR(n_refused(control) == 1);
    assert_true(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    WAIT_FOR(n_refused(control) == 0);
    test_redis_do(&f->redis, "FLUSHALL"); /* fires no notification */
    WAIT_FOR(n_refused(control) == 1);
    assert_true(is_at(control, 0, 0, "b/cpu:0"));
    sy_control_close(control);
    assert_int_equal(f->seen.epoch, 2);
    assert_int_equal(f->seen.n_placements, 2);
}

static void a_key_of_another_type_leaves_the_last_good_placement(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 20000);
    const double errors_before = redis_errors();
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "SET %s text", KEY);
    WAIT_FOR(redis_errors() > errors_before);
    assert_true(is_at(control, 0, 0, "a/cpu:0"));
    assert_true(sy_control_redis_up(control));
    test_redis_do(&f->redis, "DEL %s", KEY);
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    sy_control_close(control);
}

static void the_placement_survives_redis_and_edits_resume(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    char before[32] = "a/cpu:0";
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    for (int round = 0; round < 3; round++) {
        test_redis_kill(&f->redis);
        WAIT_FOR(!sy_control_redis_up(control));
        assert_true(is_at(control, 0, 0, before));
        test_redis_start(&f->redis); /* empty: its hash is refused as a whole */
        WAIT_FOR(sy_control_redis_up(control));
        WAIT_FOR(n_refused(control) == 1);
        WAIT_FOR(test_redis_do(&f->redis, "PUBSUB CHANNELS __keyspace@0__:*") == 1);
        assert_true(is_at(control, 0, 0, before));
        snprintf(before, sizeof(before), "b/cpu:%d", round);
        test_redis_do(&f->redis, "HSET %s */* %s", KEY, before);
        WAIT_FOR(is_at(control, 0, 0, before));
    }
    sy_control_close(control);
}

static void redis_may_come_after_the_process(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    const double errors_before = redis_errors();
    sy_control *control = seen_open(&config);

    WAIT_FOR(redis_errors() > errors_before);
    assert_false(sy_control_redis_up(control));
    assert_null(sy_control_snapshot(control));
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 1, "a/cpu:0"));
    sy_control_close(control);
}

static void a_wrong_password_is_retried_until_it_is_right(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, 50000);
    const double errors_before = redis_errors();
    char address[160];
    sy_control *control;

    f->redis.extra[0] = "--requirepass";
    f->redis.extra[1] = "first";
    f->redis.password = "first";
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    snprintf(address, sizeof(address), "unix://:second@%s", f->redis.socket);
    config.redis = address;
    control = seen_open(&config);
    WAIT_FOR(redis_errors() >= errors_before + 4); /* each connection, and each twice */
    assert_false(sy_control_redis_up(control));
    test_redis_do(&f->redis, "CONFIG SET requirepass second");
    f->redis.password = "second";
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    sy_control_close(control);
}

static void a_missing_password_is_an_outage(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, 50000);
    const double errors_before = redis_errors();
    sy_control *control;

    f->redis.extra[0] = "--requirepass";
    f->redis.extra[1] = "secret";
    f->redis.password = "secret";
    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(redis_errors() > errors_before);
    assert_false(sy_control_redis_up(control));
    sy_control_close(control);
}

static void a_user_of_the_access_list_may_log_in(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, 50000);
    char address[160];
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET %s */* a/cpu:0", KEY);
    test_redis_do(&f->redis, "ACL SETUSER reader on >p/w ~switchyard:* +hgetall +ping");
    snprintf(address, sizeof(address), "unix://reader:p%%2Fw@%s", f->redis.socket);
    config.redis = address;
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 0, 0, "a/cpu:0"));
    test_redis_do(&f->redis, "HSET %s */* b/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "b/cpu:0"));
    sy_control_close(control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(an_edit_is_seen_by_notification_alone),
        TEST(the_last_edit_of_a_burst_is_seen_by_notification_alone),
        TEST(notifications_already_in_use_are_kept),
        TEST(the_periodic_check_does_where_notifications_are_forbidden),
        TEST(check_now_reads_at_once),
        TEST(another_database_is_followed_where_the_address_names_it),
        TEST(a_bad_field_is_refused_and_the_others_take_effect),
        TEST(a_layer_without_experts_is_not_missed_and_not_edited),
        TEST(a_deleted_hash_leaves_the_last_good_placement),
        TEST(a_key_of_another_type_leaves_the_last_good_placement),
        TEST(the_placement_survives_redis_and_edits_resume),
        TEST(redis_may_come_after_the_process),
        TEST(a_wrong_password_is_retried_until_it_is_right),
        TEST(a_missing_password_is_an_outage),
        TEST(a_user_of_the_access_list_may_log_in),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
