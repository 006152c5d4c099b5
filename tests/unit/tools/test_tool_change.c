/* test_tool_change.c - compare-and-set of placement against a real Redis. */
#include "test_redis.h"

#include "canary_state.h"
#include "placement_history.h"
#include "sy_clock.h"

static test_redis server;
static tool_redis *redis;

static int start_server(void **state)
{
    (void)state;
    test_redis_open(&server);
    test_redis_start(&server);
    return tool_redis_open(&redis, server.address, 10000000, NULL) != SY_OK;
}

static int stop_server(void **state)
{
    (void)state;
    tool_redis_close(redis);
    test_redis_close(&server);
    return 0;
}

static int wipe(void **state)
{
    (void)state;
    test_redis_do(&server, "FLUSHALL");
    return 0;
}

static sy_status change(const tool_field_change *list, size_t n, int force, const char *author,
                        char id[TOOL_ENTRY_ID_BYTES], sy_error *err)
{
    const tool_edit edit = {.model = "m",
                            .change = list,
                            .n = n,
                            .force = force,
                            .reason = "for a test",
                            .command = "a command",
                            .author = author};

    sy_error_clear(err);
    return tool_redis_change(redis, &edit, id, err);
}

static void assert_value(const char *field, const char *value)
{
    redisContext *c = test_redis_connect(&server);
    redisReply *reply = redisCommand(c, "HGET switchyard:{m}:placement %s", field);

    assert_non_null(reply);
    if (value == NULL) {
        assert_int_equal(reply->type, REDIS_REPLY_NIL);
    } else {
        assert_int_equal(reply->type, REDIS_REPLY_STRING);
        assert_string_equal(reply->str, value);
    }
    freeReplyObject(reply);
    redisFree(c);
}

static void fields_are_written_with_an_entry_in_the_history(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}, {"0/1", NULL, "a/cpu:0"}};
    static const tool_field_change second[] = {{"0/0", "a/cpu:0", "b/cpu:0"},
                                               {"0/1", "a/cpu:0", NULL}};
    char id[TOOL_ENTRY_ID_BYTES];
    history h;
    sy_error err;

    (void)state;
    assert_int_equal(change(first, 2, 0, "ann", id, &err), SY_OK);
    assert_int_equal(change(second, 2, 0, "bob", id, &err), SY_OK);
    assert_value("0/0", "b/cpu:0");
    assert_value("0/1", NULL);
    assert_int_equal(history_read(&h, redis, "m", 10, NULL, &err), SY_OK);
    assert_int_equal(h.n, 2);
    assert_string_equal(h.entry[0].id, id);
    assert_string_equal(h.entry[0].author, "bob");
    assert_string_equal(h.entry[0].reason, "for a test");
    assert_int_equal(h.entry[0].n, 2);
    assert_string_equal(h.entry[0].change[0].before, "a/cpu:0");
    assert_null(h.entry[0].change[1].after);
    assert_string_equal(h.entry[1].author, "ann");
    history_free(&h);
}

static void who_came_first_is_named_and_nothing_is_written(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    static const tool_field_change late[] = {{"0/5", NULL, "c/cpu:0"}, {"0/0", NULL, "c/cpu:0"}};
    char id[TOOL_ENTRY_ID_BYTES];
    sy_error err;

    (void)state;
    assert_int_equal(change(first, 1, 0, "ann", id, &err), SY_OK);
    assert_int_equal(change(late, 2, 0, "bob", id, &err), SY_EEXISTS);
    assert_string_equal(err.reason, "PLACEMENT_CHANGED");
    assert_string_equal(id, "");
    assert_non_null(
        strstr(err.message, "PLACEMENT of 0/0 was changed meanwhile by ann (for a test)"));
    assert_non_null(strstr(err.message, "it is now a/cpu:0; nothing was written"));
    assert_value("0/0", "a/cpu:0");
    assert_value("0/5", NULL);
}

static void an_edit_past_the_tool_is_seen_too(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    static const tool_field_change late[] = {{"0/0", "a/cpu:0", "c/cpu:0"}};
    sy_error err;

    (void)state;
    assert_int_equal(change(first, 1, 0, "ann", NULL, &err), SY_OK);
    test_redis_do(&server, "HSET switchyard:{m}:placement 0/0 %s", "b/cpu:0\x1b[2J");
    assert_int_equal(change(late, 1, 0, "bob", NULL, &err), SY_EEXISTS);
    assert_non_null(strstr(err.message, "left no entry in the history"));
    assert_null(strchr(err.message, '\x1b'));
}

static void force_overwrites_and_the_history_says_what_was_there(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    static const tool_field_change forced[] = {{"0/0", "nonsense", "c/cpu:0"}};
    history h;
    sy_error err;

    (void)state;
    assert_int_equal(change(first, 1, 0, "ann", NULL, &err), SY_OK);
    assert_int_equal(change(forced, 1, 1, "bob", NULL, &err), SY_OK);
    assert_value("0/0", "c/cpu:0");
    assert_int_equal(history_read(&h, redis, "m", 1, NULL, &err), SY_OK);
    assert_string_equal(h.entry[0].change[0].before, "a/cpu:0");
    history_free(&h);
}

static void a_guarded_field_fails_the_edit_and_is_not_written(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    static const tool_field_change good[] = {{"0/0", "a/cpu:0", "a/cpu:0"},
                                             {"0/1", NULL, "b/cpu:0"}};
    static const tool_field_change bad[] = {{"0/0", "x/cpu:0", "x/cpu:0"},
                                            {"0/2", NULL, "b/cpu:0"}};
    char id[TOOL_ENTRY_ID_BYTES];
    history h;
    sy_error err;

    (void)state;
    assert_int_equal(change(first, 1, 0, NULL, id, &err), SY_OK);
    assert_int_equal(change(good, 2, 0, NULL, id, &err), SY_OK);
    assert_int_equal(history_read(&h, redis, "m", 1, NULL, &err), SY_OK);
    assert_int_equal(h.entry[0].n, 1);
    history_free(&h);
    assert_int_equal(change(bad, 2, 0, NULL, id, &err), SY_EEXISTS);
    assert_value("0/2", NULL);
    assert_int_equal(change(good, 1, 0, NULL, id, &err), SY_OK);
    assert_string_equal(id, ""); /* nothing to do leaves no entry */
}

static void a_whole_placement_is_replaced_only_where_it_may_be(void **state)
{
    static const tool_field_change all[] = {{"0/0", NULL, "a/cpu:0"}, {"0/1", NULL, "b/cpu:0"}};
    const tool_edit careful = {
        .model = "m", .change = all, .n = 2, .must_be_new = 1, .reason = "r", .command = "c"};
    tool_edit forced = careful;
    history h;
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    test_redis_do(&server, "HSET switchyard:{m}:placement 0/0 z/cpu:0 7/7 old */* any");
    assert_int_equal(tool_redis_change(redis, &careful, NULL, &err), SY_EEXISTS);
    assert_value("7/7", "old");
    forced.must_be_new = 0;
    forced.force = forced.replaces_all = 1;
    assert_int_equal(tool_redis_change(redis, &forced, NULL, &err), SY_OK);
    assert_value("0/0", "a/cpu:0");
    assert_value("7/7", NULL);
    assert_value("*/*", NULL);
    assert_int_equal(history_read(&h, redis, "m", 1, NULL, &err), SY_OK);
    assert_int_equal(h.entry[0].n, 4);
    history_free(&h);
}

static void more_fields_than_one_command_takes_are_one_edit(void **state)
{
    enum { N = 1000 };
    static char name[N][16];
    static tool_field_change list[N];
    sy_error err;

    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof(name[i]), "%d/%d", i / 100, i % 100);
        list[i] = (tool_field_change){name[i], NULL, "a/cpu:0"};
    }
    assert_int_equal(change(list, N, 0, NULL, NULL, &err), SY_OK);
    assert_int_equal(test_redis_do(&server, "HLEN switchyard:{m}:placement"), N);
    for (int i = 0; i < N; i++) list[i] = (tool_field_change){name[i], "a/cpu:0", NULL};
    assert_int_equal(change(list, N, 0, NULL, NULL, &err), SY_OK);
    assert_int_equal(test_redis_do(&server, "EXISTS switchyard:{m}:placement"), 0);
}

static void an_entry_that_is_too_long_keeps_its_figures_only(void **state)
{
    enum { N = 1500 };
    static char name[N][16], value[2001];
    static tool_field_change list[N];
    history h;
    sy_error err;

    (void)state;
    memset(value, 'a', sizeof(value) - 1);
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof(name[i]), "%d/%d", i / 100, i % 100);
        list[i] = (tool_field_change){name[i], NULL, value};
    }
    assert_int_equal(change(list, N, 0, NULL, NULL, &err), SY_OK);
    assert_int_equal(history_read(&h, redis, "m", 1, NULL, &err), SY_OK);
    assert_null(h.entry[0].change);
    assert_int_equal(h.entry[0].n_fields, N);
    history_free(&h);
}

static void a_key_of_another_kind_is_refused_and_the_connection_lives(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    sy_error err;

    (void)state;
    test_redis_do(&server, "SET switchyard:{m}:placement text");
    assert_int_equal(change(first, 1, 0, NULL, NULL, &err), SY_EPRECONDITION);
    test_redis_do(&server, "DEL switchyard:{m}:placement");
    test_redis_do(&server, "SET switchyard:{m}:history text");
    assert_int_equal(change(first, 1, 0, NULL, NULL, &err), SY_EPRECONDITION);
    wipe(NULL);
    assert_int_equal(change(first, 1, 0, NULL, NULL, &err), SY_OK);
}

static void a_broken_connection_is_made_again(void **state)
{
    static const tool_field_change first[] = {{"0/0", NULL, "a/cpu:0"}};
    sy_error err;

    (void)state;
    test_redis_kill(&server);
    assert_int_equal(change(first, 1, 0, NULL, NULL, &err), SY_EUNAVAILABLE);
    test_redis_start(&server);
    assert_int_equal(change(first, 1, 0, NULL, NULL, &err), SY_OK);
    assert_value("0/0", "a/cpu:0");
}

static void a_history_of_anything_is_read_without_harm(void **state)
{
    history h;
    sy_error err;

    (void)state;
    test_redis_do(&server, "XADD switchyard:{m}:history 1-1 a b");
    test_redis_do(&server, "XADD switchyard:{m}:history 2-1 changes nonsense author %b", "a\0b",
                  (size_t)3);
    test_redis_do(&server, "XADD switchyard:{m}:history 18446744073709551615-1 fields -7");
    sy_error_clear(&err);
    assert_int_equal(history_read(&h, redis, "m", 10, NULL, &err), SY_OK);
    assert_int_equal(h.n, 3);
    assert_null(h.entry[1].change);
    assert_string_equal(h.entry[1].author, "a");
    history_free(&h);
}

static void a_wish_is_kept_by_the_watchers_beat(void **state)
{
    static canary_field field[] = {{"0/0", NULL, "a/cpu:0", NULL}};
    canary_state s = {.name = "0/0",
                      .to = "b/cpu:0",
                      .field = field,
                      .n = 1,
                      .share = 5,
                      .author = "me",
                      .wish = "",
                      .beat_us = sy_clock_wall_us()};
    canary_wish wish;
    canary_list list;
    sy_error err;

    (void)state;
    sy_error_clear(&err);
    assert_int_equal(canary_state_wish(redis, "m", "0/0", "abort", &err), SY_ENOTFOUND);
    assert_int_equal(canary_state_write(redis, "m", &s, 1, &wish, &err), SY_OK);
    assert_int_equal(canary_state_write(redis, "m", &s, 1, &wish, &err), SY_EEXISTS);
    assert_int_equal(canary_state_wish(redis, "m", "0/0", "abort", &err), SY_OK);
    assert_int_equal(canary_state_write(redis, "m", &s, 0, &wish, &err), SY_OK);
    assert_int_equal(wish, CANARY_WISH_ABORT);
    test_redis_do(&server, "HSET switchyard:{m}:canary 9/9 nonsense");
    assert_int_equal(canary_list_read(&list, redis, "m", &err), SY_OK);
    assert_int_equal(list.n, 1);
    assert_int_equal(list.n_odd, 1);
    assert_string_equal(list.state[0].wish, "abort");
    canary_list_free(&list);
    assert_int_equal(canary_state_remove(redis, "m", "0/0", &err), SY_OK);
    assert_int_equal(canary_state_wish(redis, "m", "0/0", "abort", &err), SY_ENOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fields_are_written_with_an_entry_in_the_history, wipe),
        cmocka_unit_test_setup(who_came_first_is_named_and_nothing_is_written, wipe),
        cmocka_unit_test_setup(an_edit_past_the_tool_is_seen_too, wipe),
        cmocka_unit_test_setup(force_overwrites_and_the_history_says_what_was_there, wipe),
        cmocka_unit_test_setup(a_guarded_field_fails_the_edit_and_is_not_written, wipe),
        cmocka_unit_test_setup(a_whole_placement_is_replaced_only_where_it_may_be, wipe),
        cmocka_unit_test_setup(more_fields_than_one_command_takes_are_one_edit, wipe),
        cmocka_unit_test_setup(an_entry_that_is_too_long_keeps_its_figures_only, wipe),
        cmocka_unit_test_setup(a_key_of_another_kind_is_refused_and_the_connection_lives, wipe),
        cmocka_unit_test_setup(a_broken_connection_is_made_again, wipe),
        cmocka_unit_test_setup(a_history_of_anything_is_read_without_harm, wipe),
        cmocka_unit_test_setup(a_wish_is_kept_by_the_watchers_beat, wipe),
    };

    return cmocka_run_group_tests(tests, start_server, stop_server);
}
