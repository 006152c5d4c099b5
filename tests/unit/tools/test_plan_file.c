/* test_plan_file.c - files of edits: what people write is read, what they mistype is shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "placement_history.h"
#include "plan_file.h"
#include "tool_text.h"

static plan_file parse(const char *text)
{
    plan_file plan;
    sy_error err;

    sy_error_clear(&err);
    if (plan_file_parse(&plan, text, strlen(text), &err) != SY_OK) {
        fail_msg("'%s': %s", text, err.message);
    }
    return plan;
}

static void assert_refused(const char *text, size_t n, sy_status wanted, const char *says)
{
    plan_file plan;
    sy_error err;

    sy_error_clear(&err);
    assert_int_equal(plan_file_parse(&plan, text, n, &err), wanted);
    if (strstr(err.message, says) == NULL) fail_msg("'%s' does not say '%s'", err.message, says);
    assert_null(plan.change);
}

static void lines_are_a_field_and_a_value(void **state)
{
    plan_file plan = parse("# two at once\r\n\n  2/1   expert-1/cpu:0  # the hot one\r\n"
                           "2/2\texpert-0/cpu:0 expert-1/cpu:0\n*/3 -");

    (void)state;
    assert_int_equal(plan.n, 3);
    assert_string_equal(plan.change[0].field, "2/1");
    assert_string_equal(plan.change[0].after, "expert-1/cpu:0");
    assert_string_equal(plan.change[1].after, "expert-0/cpu:0 expert-1/cpu:0");
    assert_string_equal(plan.change[2].field, "*/3");
    assert_null(plan.change[2].after);
    assert_false(plan.has_before);
    plan_file_free(&plan);
}

static void json_is_an_object_of_fields(void **state)
{
    plan_file plan = parse(" \n{\"3/17\": \"a/cpu:0\", \"4/1\": null}");

    (void)state;
    assert_int_equal(plan.n, 2);
    assert_string_equal(plan.change[0].after, "a/cpu:0");
    assert_null(plan.change[1].after);
    plan_file_free(&plan);
}

static void a_plan_that_was_kept_remembers_what_was_there(void **state)
{
    static const tool_field_change change[] = {
        {"3/17", "a/cpu:0", "b/cpu:0"}, {"3/18", NULL, "b/cpu:0"}, {"3/19", "a/cpu:0", "a/cpu:0"}};
    char *text = plan_file_text("tr\"io", "0123456789abcdef", change, 3);
    plan_file plan;

    (void)state;
    assert_non_null(text);
    plan = parse(text);
    assert_int_equal(plan.n, 3); /* also the one that stays: it is guarded */
    assert_true(plan.has_before);
    assert_string_equal(plan.model, "tr\"io");
    assert_string_equal(plan.hash, "0123456789abcdef");
    assert_string_equal(plan.change[0].before, "a/cpu:0");
    assert_null(plan.change[1].before);
    assert_string_equal(plan.change[2].after, "a/cpu:0");
    plan_file_free(&plan);
    free(text);
}

static void what_is_wrong_is_told_with_its_line(void **state)
{
    static const char zero[] = "3/1 a\0b";

    (void)state;
    assert_refused("3/1 a/cpu:0\n3/2\n", 16, SY_EINVAL, "line 2");
    assert_refused("3/1 a\n3/1 b\n", 12, SY_EINVAL, "twice");
    assert_refused("{\"3/1\": 5}", 10, SY_EINVAL, "3/1");
    assert_refused("{\"3/1\": \"a\"", 11, SY_EINVAL, "JSON");
    assert_refused("{\"switchyard_plan\": 1, \"changes\": 4}", 36, SY_EINVAL, "--out");
    assert_refused("", 0, SY_EINVAL, "no edit");
    assert_refused("# nothing\n", 10, SY_EINVAL, "no edit");
    assert_refused("{}", 2, SY_EINVAL, "no edit");
    assert_refused(zero, sizeof(zero) - 1, SY_EINVAL, "zero byte");
}

static void changes_survive_the_history(void **state)
{
    static const tool_field_change change[] = {{"3/17", NULL, "b/cpu:0"},
                                               {"3/18", "same", "same"},
                                               {"3/19", "quote\" and \xc3\xa9", NULL}};
    const tool_field_change *again;
    size_t n;
    size_t n_changed;
    sy_arena arena;
    char *text = history_changes_json(change, 3, &n_changed);

    (void)state;
    sy_arena_init(&arena, 1 << 20);
    assert_non_null(text);
    assert_int_equal(n_changed, 2);
    assert_int_equal(history_changes_parse(&again, &n, &arena, text, strlen(text)), SY_OK);
    assert_int_equal(n, 2);
    assert_null(again[0].before);
    assert_string_equal(again[0].after, "b/cpu:0");
    assert_string_equal(again[1].before, "quote\" and \xc3\xa9");
    assert_null(again[1].after);
    sy_arena_free(&arena);
    free(text);
}

static void what_is_no_list_of_changes_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[1]",
        "[{}]",
        "[{\"field\":null,\"before\":null,\"after\":null}]",
        "[{\"field\":\"a\",\"before\":4,\"after\":null}]",
        "[{\"field\":\"a\\u0000b\",\"before\":null,\"after\":null}]",
        "[{\"field\":\"a\",\"before\":null}]",
        "[[[[[[[[[["};
    const tool_field_change *change;
    size_t n;
    sy_arena arena;

    (void)state;
    sy_arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < SY_COUNT_OF(texts); i++) {
        if (history_changes_parse(&change, &n, &arena, texts[i], strlen(texts[i])) != SY_EINVAL) {
            fail_msg("'%s' was taken", texts[i]);
        }
    }
    sy_arena_free(&arena);
}

static void shown_texts_cannot_steer_a_terminal(void **state)
{
    char out[32];

    (void)state;
    assert_string_equal(tool_text_show(out, sizeof(out), "\x1b[2Ja\n", 6), "\\x1b[2Ja\\x0a");
    assert_string_equal(tool_text_show(out, sizeof(out), "caf\xc3\xa9 \xe2\x82\xac", 9),
                        "caf\xc3\xa9 \xe2\x82\xac");
    assert_string_equal(tool_text_show(out, sizeof(out), "\xc2\x9b", 2), "\\xc2\\x9b"); /* CSI */
    assert_string_equal(tool_text_show(out, sizeof(out), "\xe2\x80\xae", 3),
                        "\\xe2\\x80\\xae"); /* right to left */
    assert_string_equal(tool_text_show(out, sizeof(out), "\xc3", 1), "\\xc3");
    assert_string_equal(tool_text_show(out, sizeof(out), "\xed\xa0\x80", 3), "\\xed\\xa0\\x80");
    assert_string_equal(tool_text_show(out, 8, "1234567890", 10), "1234...");
    assert_string_equal(tool_text_show(out, 8, "1234567", 7), "1234567");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_a_field_and_a_value),
        cmocka_unit_test(json_is_an_object_of_fields),
        cmocka_unit_test(a_plan_that_was_kept_remembers_what_was_there),
        cmocka_unit_test(what_is_wrong_is_told_with_its_line),
        cmocka_unit_test(changes_survive_the_history),
        cmocka_unit_test(what_is_no_list_of_changes_is_refused),
        cmocka_unit_test(shown_texts_cannot_steer_a_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
