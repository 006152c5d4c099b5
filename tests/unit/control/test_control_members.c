/* test_control_members.c - leases: a process announces itself, others see it come and go, and an
 * outage of Redis makes nobody vanish. */
#include "control_fixture.h"

#include "sy_clock.h"

#define LEASE "switchyard:nodes:expert-0"

#define CHECK_US      20000
#define LONG_LEASE_US 3600000000ll /* never renewed, never over, in the time of a test */

static int set_up_started(void **state)
{
    set_up(state);
    test_redis_start(&((fixture *)*state)->redis);
    return 0;
}

static sy_control *open_watcher(fixture *f, int64_t lease_us)
{
    const sy_control_config config = {
        .redis = f->redis.address,
        .model = "trio",
        .grid.layers = 1,
        .grid.experts = 1,
        .watch_nodes = 1,
        .watch_routers = 1,
        .check_us = CHECK_US,
        .lease_us = lease_us,
        .ctx = &f->seen,
        .on_members = seen_members,
    };

    return seen_open(&config);
}

static sy_control *open_holder(fixture *f, int64_t lease_us)
{
    const sy_control_config config = {.redis = f->redis.address, .lease_us = lease_us};

    return seen_open(&config);
}

static sy_member member_named(const char *name)
{
    sy_member member = {
        .address = "unix:/run/expert.sock",
        .http = "127.0.0.1:9100",
        .model = "trio",
        .devices = "cpu:0 cpu:1",
        .state = "serving",
        .version = "0.1.0",
        .structure_hash = "0123456789abcdef",
        .checkpoint_hash = "fedcba9876543210",
        .arithmetic = "f32-chain/1",
        .pid = 4711,
    };

    snprintf(member.name, sizeof(member.name), "%s", name);
    return member;
}

static int node_names_are(fixture *f, const char *want)
{
    return seen_names_are(&f->seen, SY_MEMBER_NODE, want);
}

static void an_announced_member_arrives_whole(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    sy_control *watcher = open_watcher(f, LONG_LEASE_US);
    sy_control *holder = open_holder(f, LONG_LEASE_US);
    sy_member changed = self;
    sy_member got;

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(node_names_are(f, "expert-0"));
    got = seen_member(&f->seen, SY_MEMBER_NODE, 0);
    assert_memory_equal(&got, &self, sizeof(self));
    assert_int_equal(test_redis_do(&f->redis, "HLEN %s", LEASE), 10);
    assert_in_range(test_redis_do(&f->redis, "PTTL %s", LEASE), 1, LONG_LEASE_US / 1000);
    strcpy(changed.state, "draining");
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &changed), SY_OK);
    WAIT_FOR((got = seen_member(&f->seen, SY_MEMBER_NODE, 0), strcmp(got.state, "draining") == 0));
    assert_int_equal(seen_calls(&f->seen, SY_MEMBER_NODE), 2);
    assert_int_equal(seen_calls(&f->seen, SY_MEMBER_ROUTER), 0);
    sy_control_close(holder);
    sy_control_close(watcher);
}

static void kinds_are_kept_apart_and_names_in_order(void **state)
{
    fixture *f = *state;
    static const char *const node[] = {"c", "a", "b"};
    const sy_member router = member_named("router-0");
    sy_control *watcher = open_watcher(f, LONG_LEASE_US);
    sy_control *holder[4];

    for (int i = 0; i < 3; i++) {
        const sy_member self = member_named(node[i]);

        holder[i] = open_holder(f, LONG_LEASE_US);
        assert_int_equal(sy_control_announce(holder[i], SY_MEMBER_NODE, &self), SY_OK);
    }
    holder[3] = open_holder(f, LONG_LEASE_US);
    assert_int_equal(sy_control_announce(holder[3], SY_MEMBER_ROUTER, &router), SY_OK);
    WAIT_FOR(node_names_are(f, "a b c"));
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_ROUTER, "router-0"));
    for (int i = 0; i < 4; i++) sy_control_close(holder[i]);
    sy_control_close(watcher);
}

static void a_lease_is_renewed_beyond_its_time(void **state)
{
    fixture *f = *state;
    const int64_t lease_us = 1500000;
    const sy_member self = member_named("expert-0");
    const int64_t start_us = sy_clock_us();
    sy_control *holder = open_holder(f, lease_us);
    long long before = 0;
    int n_rises = 0;

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    while (n_rises < 5) {
        const long long left_ms = test_redis_do(&f->redis, "PTTL %s", LEASE);

        n_rises += left_ms > before;
        before = left_ms;
        if (sy_clock_us() - start_us > 60000000) fail_msg("renewed only %d times", n_rises);
    }
    assert_true(sy_clock_us() - start_us > lease_us);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS %s", LEASE) == 1);
    sy_control_close(holder);
    assert_int_equal(test_redis_do(&f->redis, "EXISTS %s", LEASE), 0);
}

static void a_withdrawn_member_is_gone_at_once(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    sy_control *watcher = open_watcher(f, LONG_LEASE_US);
    sy_control *holder = open_holder(f, LONG_LEASE_US);

    test_redis_do(&f->redis, "HSET %s */* expert-0/cpu:0", KEY);
    WAIT_FOR(sy_control_redis_up(holder));
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(node_names_are(f, "expert-0"));
    sy_control_withdraw(holder);
    assert_int_equal(test_redis_do(&f->redis, "EXISTS %s", LEASE), 0);
    WAIT_FOR(node_names_are(f, "")); /* the hour of grace is only for outages */
    sy_control_withdraw(holder);     /* nothing to withdraw */
    sy_control_close(holder);
    sy_control_close(watcher);
}

static void a_new_name_replaces_the_old_one(void **state)
{
    fixture *f = *state;
    const sy_member first = member_named("expert-0");
    const sy_member second = member_named("expert-1");
    sy_control *holder = open_holder(f, LONG_LEASE_US);

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &first), SY_OK);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS %s", LEASE) == 1);
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &second), SY_OK);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS switchyard:nodes:expert-1") == 1);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS %s", LEASE) == 0);
    sy_control_close(holder);
    assert_int_equal(test_redis_do(&f->redis, "DBSIZE"), 0);
}

static void a_lease_that_another_process_took_is_left_alone(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    sy_control *holder = open_holder(f, LONG_LEASE_US);

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS %s", LEASE) == 1);
    test_redis_do(&f->redis, "HSET %s pid 1 address unix:/other.sock", LEASE);
    sy_control_withdraw(holder);
    sy_control_close(holder);
    assert_int_equal(test_redis_do(&f->redis, "EXISTS %s", LEASE), 1);
}

static void announcing_nonsense_is_refused(void **state)
{
    fixture *f = *state;
    sy_control *holder = open_holder(f, LONG_LEASE_US);
    sy_member member = member_named("");

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &member), SY_EINVAL);
    member = member_named("a b");
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &member), SY_EINVAL);
    member = member_named("a");
    memset(member.name, 'a', sizeof(member.name));
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &member), SY_EINVAL);
    member = member_named("a");
    member.address[0] = '\0';
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &member), SY_EINVAL);
    sy_control_close(holder);
}

static void odd_leases_are_ignored(void **state)
{
    fixture *f = *state;
    char text[300];
    sy_control *watcher;

    memset(text, 'x', sizeof(text));
    test_redis_do(&f->redis, "HSET switchyard:nodes:long address %b", text, sizeof(text));
    test_redis_do(&f->redis, "HSET switchyard:nodes:nul address %b", "a\0b", (size_t)3);
    test_redis_do(&f->redis, "HSET switchyard:nodes:homeless model trio");
    test_redis_do(&f->redis, "HSET %b address unix:/x", "switchyard:nodes:a b", (size_t)20);
    test_redis_do(&f->redis, "HSET switchyard:nodes: address unix:/x");
    test_redis_do(&f->redis, "SET switchyard:nodes:text text");
    test_redis_do(&f->redis,
                  "HSET switchyard:nodes:good address unix:/x later 1 pid 99999999999999999999");
    watcher = open_watcher(f, LONG_LEASE_US);
    WAIT_FOR(node_names_are(f, "good"));
    assert_string_equal(seen_member(&f->seen, SY_MEMBER_NODE, 0).address, "unix:/x");
    sy_control_close(watcher);
}

static void leases_are_found_among_many_other_keys(void **state)
{
    fixture *f = *state;
    sy_control *watcher;

    /* So many that one listing takes more than one check. */
    test_redis_do(&f->redis, "EVAL %s 0", "for i = 1, 50000 do redis.call('SET', 'k' .. i, i) end");
    test_redis_do(&f->redis, "HSET %s address unix:/x", LEASE);
    watcher = open_watcher(f, LONG_LEASE_US);
    WAIT_FOR(node_names_are(f, "expert-0"));
    sy_control_close(watcher);
}

/* The one in docs/placement.md. */
static void the_documented_permissions_suffice(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    char address[160];
    sy_control_config config = {
        .redis = address,
        .model = "trio",
        .grid.layers = 1,
        .grid.experts = 1,
        .watch_nodes = 1,
        .check_us = CHECK_US,
        .ctx = &f->seen,
        .on_members = seen_members,
    };
    sy_control *control;

    test_redis_do(&f->redis,
                  "ACL SETUSER switchyard on >pw ~switchyard:* resetchannels "
                  "&__keyspace@*__:switchyard:* &__redis__:invalidate &switchyard:members +ping "
                  "+select +role +subscribe +publish +client|id +client|tracking +hgetall +hmget "
                  "+hset +pexpire +del +exists +scan +multi +exec +config|get +config|set");
    snprintf(address, sizeof(address), "unix://switchyard:pw@%s?db=0", f->redis.socket);
    control = seen_open(&config);
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(node_names_are(f, "expert-0"));
    WAIT_FOR(hints_of(control) == (SY_HINT_TRACKING | SY_HINT_NOTIFICATIONS | SY_HINT_MEMBERS));
    test_redis_do(&f->redis, "HSET %s */* expert-0/cpu:0", KEY);
    WAIT_FOR(is_at(control, 0, 0, "expert-0/cpu:0"));
    sy_control_withdraw(control);
    WAIT_FOR(node_names_are(f, ""));
    sy_control_close(control);
    assert_int_equal(test_redis_do(&f->redis, "ACL LOG"), 0);
}

/* Nothing but what reading a placement and leases takes: no hints, no lease of its own. */
static void fewer_permissions_are_enough_to_follow(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    char address[160];
    sy_control_config config = {
        .redis = address,
        .model = "trio",
        .grid.layers = 1,
        .grid.experts = 1,
        .watch_nodes = 1,
        .check_us = CHECK_US,
        .lease_us = 100000,
        .ctx = &f->seen,
        .on_members = seen_members,
    };
    const double errors_before = redis_errors();
    sy_control *control;

    test_redis_do(&f->redis, "ACL SETUSER guest on >pw ~switchyard:* resetchannels +ping +hgetall "
                             "+exists +scan");
    snprintf(address, sizeof(address), "unix://guest:pw@%s", f->redis.socket);
    control = seen_open(&config);
    assert_int_equal(sy_control_announce(control, SY_MEMBER_NODE, &self), SY_OK);
    test_redis_do(&f->redis, "HSET switchyard:nodes:other address unix:/x");
    test_redis_do(&f->redis, "HSET %s */* other/cpu:0", KEY);
    WAIT_FOR(node_names_are(f, "other"));
    WAIT_FOR(is_at(control, 0, 0, "other/cpu:0"));
    WAIT_FOR(redis_errors() > errors_before + 10); /* refusals, again and again, do no harm */
    assert_true(sy_control_redis_up(control));
    assert_int_equal(hints_of(control), 0);
    test_redis_do(&f->redis, "HSET %s */* other/cpu:1", KEY);
    WAIT_FOR(is_at(control, 0, 0, "other/cpu:1"));
    sy_control_close(control);
}

/* ---- heard of at once ---- */

static sy_control *open_listener(fixture *f)
{
    const sy_control_config config = {
        .redis = f->redis.address,
        .watch_nodes = 1,
        .watch_routers = 1,
        .check_us = NEVER_CHECK_US,
        .lease_us = LONG_LEASE_US,
        .ctx = &f->seen,
        .on_members = seen_members,
    };
    sy_control *control = seen_open(&config);

    WAIT_FOR(hints_of(control) == SY_HINT_MEMBERS);
    return control;
}

static void members_are_heard_of_without_a_check(void **state)
{
    fixture *f = *state;
    sy_member self = member_named("expert-0");
    const sy_member router = member_named("router-0");
    sy_control *watcher = open_listener(f);
    sy_control *holder = open_holder(f, LONG_LEASE_US);
    sy_control *other = open_holder(f, LONG_LEASE_US);
    sy_member got;

    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(node_names_are(f, "expert-0"));
    assert_int_equal(sy_control_announce(other, SY_MEMBER_ROUTER, &router), SY_OK);
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_ROUTER, "router-0"));
    for (int i = 0; i < 200; i++) { /* the last of a burst is not lost */
        snprintf(self.state, sizeof(self.state), "state-%d", i);
        assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    }
    WAIT_FOR((got = seen_member(&f->seen, SY_MEMBER_NODE, 0), strcmp(got.state, "state-199") == 0));
    sy_control_withdraw(holder);
    WAIT_FOR(node_names_are(f, ""));
    sy_control_close(other);
    WAIT_FOR(seen_names_are(&f->seen, SY_MEMBER_ROUTER, ""));
    sy_control_close(holder);
    sy_control_close(watcher);
}

static void odd_messages_to_watchers_only_make_them_look(void **state)
{
    fixture *f = *state;
    sy_control *watcher = open_listener(f);
    char big[4096];

    memset(big, 'n', sizeof(big));
    test_redis_do(&f->redis, "HSET %s address unix:/x", LEASE);
    test_redis_do(&f->redis, "PUBLISH switchyard:members %b", "", (size_t)0);
    WAIT_FOR(node_names_are(f, "expert-0"));
    test_redis_do(&f->redis, "PUBLISH switchyard:members %b", big, sizeof(big));
    test_redis_do(&f->redis, "PUBLISH switchyard:members %b", "nodes\0\r\n", (size_t)8);
    test_redis_do(&f->redis, "HSET switchyard:nodes:expert-1 address unix:/y");
    test_redis_do(&f->redis, "PUBLISH switchyard:members aggregators:a");
    test_redis_do(&f->redis, "PUBLISH switchyard:members nodes:whoever");
    WAIT_FOR(node_names_are(f, "expert-0 expert-1"));
    sy_control_close(watcher);
}

/* ---- outages ---- */

static void members_stay_while_redis_is_away_and_after_it_returns_empty(void **state)
{
    fixture *f = *state;
    const sy_member self = member_named("expert-0");
    sy_control *watcher = open_watcher(f, LONG_LEASE_US);
    sy_control *holder = open_holder(f, 3000);

    test_redis_do(&f->redis, "HSET %s */* expert-0/cpu:0", KEY);
    test_redis_do(&f->redis, "HSET switchyard:nodes:other address unix:/other");
    assert_int_equal(sy_control_announce(holder, SY_MEMBER_NODE, &self), SY_OK);
    WAIT_FOR(node_names_are(f, "expert-0 other"));
    test_redis_kill(&f->redis);
    WAIT_FOR(!sy_control_redis_up(watcher));
    assert_true(node_names_are(f, "expert-0 other"));
    test_redis_start(&f->redis);
    WAIT_FOR(sy_control_redis_up(watcher));
    WAIT_FOR(test_redis_do(&f->redis, "EXISTS %s", LEASE) == 1); /* announced again by itself */
    /* A newcomer is seen during the grace, and nobody went. */
    test_redis_do(&f->redis, "HSET switchyard:nodes:newcomer address unix:/new");
    WAIT_FOR(node_names_are(f, "expert-0 newcomer other"));
    sy_control_close(holder);
    sy_control_close(watcher);
}

/* Where no placement tells an emptied Redis from members that left, the reconnection does. */
static void members_stay_after_an_outage_where_no_placement_is_followed(void **state)
{
    fixture *f = *state;
    const sy_control_config config = {
        .redis = f->redis.address,
        .watch_nodes = 1,
        .check_us = CHECK_US,
        .lease_us = LONG_LEASE_US,
        .ctx = &f->seen,
        .on_members = seen_members,
    };
    sy_control *watcher = seen_open(&config);

    test_redis_do(&f->redis, "HSET %s address unix:/x", LEASE);
    WAIT_FOR(node_names_are(f, "expert-0"));
    test_redis_kill(&f->redis);
    WAIT_FOR(!sy_control_redis_up(watcher));
    test_redis_start(&f->redis);
    test_redis_do(&f->redis, "HSET switchyard:nodes:newcomer address unix:/new");
    WAIT_FOR(seen_calls(&f->seen, SY_MEMBER_NODE) >= 2);
    assert_true(node_names_are(f, "expert-0 newcomer"));
    sy_control_close(watcher);
}

static void the_grace_after_an_outage_ends(void **state)
{
    fixture *f = *state;
    sy_control *watcher = open_watcher(f, 100000);

    test_redis_do(&f->redis, "HSET %s */* expert-0/cpu:0", KEY);
    test_redis_do(&f->redis, "HSET %s address unix:/x", LEASE);
    WAIT_FOR(node_names_are(f, "expert-0"));
    test_redis_kill(&f->redis);
    WAIT_FOR(!sy_control_redis_up(watcher));
    test_redis_start(&f->redis);
    WAIT_FOR(node_names_are(f, ""));
    sy_control_close(watcher);
}

static void an_emptied_redis_makes_nobody_vanish(void **state)
{
    fixture *f = *state;
    const int64_t lease_us = 600000;
    sy_control *watcher = open_watcher(f, lease_us);
    int64_t wiped_us;

    test_redis_do(&f->redis, "HSET %s */* expert-0/cpu:0", KEY);
    test_redis_do(&f->redis, "HSET %s address unix:/x", LEASE);
    WAIT_FOR(node_names_are(f, "expert-0"));
    wiped_us = sy_clock_us();
    test_redis_do(&f->redis, "FLUSHALL");
    WAIT_FOR(node_names_are(f, ""));
    assert_true(sy_clock_us() - wiped_us >= lease_us);
    sy_control_close(watcher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_started, tear_down)
        TEST(an_announced_member_arrives_whole),
        TEST(kinds_are_kept_apart_and_names_in_order),
        TEST(a_lease_is_renewed_beyond_its_time),
        TEST(a_withdrawn_member_is_gone_at_once),
        TEST(a_new_name_replaces_the_old_one),
        TEST(a_lease_that_another_process_took_is_left_alone),
        TEST(announcing_nonsense_is_refused),
        TEST(odd_leases_are_ignored),
        TEST(leases_are_found_among_many_other_keys),
        TEST(the_documented_permissions_suffice),
        TEST(fewer_permissions_are_enough_to_follow),
        TEST(members_are_heard_of_without_a_check),
        TEST(odd_messages_to_watchers_only_make_them_look),
        TEST(members_stay_while_redis_is_away_and_after_it_returns_empty),
        TEST(members_stay_after_an_outage_where_no_placement_is_followed),
        TEST(the_grace_after_an_outage_ends),
        TEST(an_emptied_redis_makes_nobody_vanish),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
