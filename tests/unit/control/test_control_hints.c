/* test_control_hints.c - an edit is heard of at once in whichever way the server offers: tracking,
 * notifications, both, or neither, and again after a connection is lost. No periodic check helps.
 */
#include "control_fixture.h"

static void forbid_config(fixture *f)
{
    f->redis.extra[0] = "--rename-command";
    f->redis.extra[1] = "CONFIG";
    f->redis.extra[2] = "";
}

static void edit(fixture *f, sy_control *control, int i)
{
    char value[32];

    snprintf(value, sizeof(value), "b/cpu:%d", i);
    test_redis_do(&f->redis, "HSET %s */* %s", KEY, value);
    WAIT_FOR(is_at(control, 1, 2, value));
}

static void edits_are_heard_by_tracking_alone(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_metric *seconds = sy_metric_histogram("switchyard_placement_seconds", "", NULL);
    const double before = sy_metric_value(seconds);
    sy_placement_news news;
    sy_control *control;

    forbid_config(f);
    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == SY_HINT_TRACKING);
    for (int i = 0; i < 20; i++) edit(f, control, i);
    test_redis_do(&f->redis, "HSET %s 1/2 c/cpu:0", KEY);
    WAIT_FOR(is_at(control, 1, 2, "c/cpu:0"));
    test_redis_do(&f->redis, "HDEL %s 1/2", KEY);
    WAIT_FOR(is_at(control, 1, 2, "b/cpu:19"));
    sy_control_news(control, &news);
    assert_true(news.taken_us > 1600000000000000ll);
    WAIT_FOR(sy_metric_value(seconds) >= before + 20);
    sy_control_close(control);
}

/* Of FLUSHALL the server says that everything went, with no key; keyspace notifications say nothing
 * of it. */
static void a_wiped_redis_is_heard_of_by_tracking(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    edit(f, control, 1);
    test_redis_do(&f->redis, "FLUSHALL");
    WAIT_FOR(n_refused(control) == 1);
    assert_true(is_at(control, 1, 2, "b/cpu:1"));
    edit(f, control, 2);
    sy_control_close(control);
}

static void lost_connections_are_replaced_and_tracked_anew(void **state)
{
    static const char *const victims[] = {"pubsub", "normal", "pubsub", "normal"};
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    forbid_config(f);
    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == SY_HINT_TRACKING);
    for (int i = 0; i < (int)SY_COUNT_OF(victims); i++) {
        assert_true(test_redis_do(&f->redis, "CLIENT KILL TYPE %s", victims[i]) >= 1);
        edit(f, control, 10 + i);
        WAIT_FOR(hints_of(control) == SY_HINT_TRACKING);
        edit(f, control, 20 + i);
    }
    sy_control_close(control);
}

static void without_tracking_notifications_do(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    char address[160];
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "ACL SETUSER old on >pw ~* &* +@all -client|tracking");
    snprintf(address, sizeof(address), "unix://old:pw@%s", f->redis.socket);
    config.redis = address;
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == SY_HINT_NOTIFICATIONS);
    for (int i = 0; i < 10; i++) edit(f, control, i);
    sy_control_close(control);
}

static void without_an_id_notifications_do(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    char address[160];
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "ACL SETUSER old on >pw ~* &* +@all -client");
    snprintf(address, sizeof(address), "unix://old:pw@%s", f->redis.socket);
    config.redis = address;
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == SY_HINT_NOTIFICATIONS);
    for (int i = 0; i < 10; i++) edit(f, control, i);
    sy_control_close(control);
}

/* One channel that is forbidden does not take the others with it. */
static void a_forbidden_channel_leaves_the_others(void **state)
{
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    char address[160];
    sy_control *control;

    test_redis_start(&f->redis);
    test_redis_do(&f->redis,
                  "ACL SETUSER half on >pw ~* resetchannels &__redis__:invalidate +@all");
    snprintf(address, sizeof(address), "unix://half:pw@%s", f->redis.socket);
    config.redis = address;
    config.watch_nodes = 1;
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == SY_HINT_TRACKING);
    for (int i = 0; i < 10; i++) edit(f, control, i);
    sy_control_close(control);
}

static void forged_invalidations_only_cause_a_read(void **state)
{
    fixture *f = *state;
    const sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_control *control;

    test_redis_start(&f->redis);
    control = seen_open(&config);
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    edit(f, control, 1);
    test_redis_do(&f->redis, "PUBLISH __redis__:invalidate %b", "\0*-1\r\n", (size_t)6);
    test_redis_do(&f->redis, "PUBLISH __redis__:invalidate %b", "", (size_t)0);
    test_redis_do(&f->redis, "PUBLISH __keyspace@0__:%s hset", KEY);
    edit(f, control, 2);
    sy_control_close(control);
    assert_int_equal(f->seen.n_placements, 3); /* the first of them empty */
}

/* As many fields as a large model has: 61 layers of 256 experts, two replicas each. */
static void a_placement_of_fifteen_thousand_fields_is_followed(void **state)
{
    static const char fill[] =
        "for l = 0, 60 do local args = {} for e = 0, 255 do args[#args + 1] = l .. '/' .. e "
        "args[#args + 1] = 'expert-' .. (e % 16) .. '/cuda:0 expert-' .. ((e + 7) % 16) .. "
        "'/cuda:0' end redis.call('HSET', KEYS[1], unpack(args)) end";
    fixture *f = *state;
    sy_control_config config = config_of(f, NEVER_CHECK_US);
    sy_placement_news news;
    sy_control *control;

    config.grid.layers = 61;
    config.grid.experts = 256;
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "EVAL %s 1 %s", fill, KEY);
    assert_int_equal(test_redis_do(&f->redis, "HLEN %s", KEY), 61 * 256);
    control = seen_open(&config);
    WAIT_FOR(is_at(control, 60, 255, "expert-15/cuda:0 expert-6/cuda:0"));
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS));
    test_redis_do(&f->redis, "HSET %s 60/255 expert-1/cuda:0", KEY);
    WAIT_FOR(is_at(control, 60, 255, "expert-1/cuda:0"));
    sy_control_news(control, &news);
    print_message("61 x 256 fields: the last snapshot took %lld us to build\n",
                  (long long)news.build_us);
    sy_control_close(control);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        TEST(edits_are_heard_by_tracking_alone),
        TEST(a_wiped_redis_is_heard_of_by_tracking),
        TEST(lost_connections_are_replaced_and_tracked_anew),
        TEST(without_tracking_notifications_do),
        TEST(without_an_id_notifications_do),
        TEST(a_forbidden_channel_leaves_the_others),
        TEST(forged_invalidations_only_cause_a_read),
        TEST(a_placement_of_fifteen_thousand_fields_is_followed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
