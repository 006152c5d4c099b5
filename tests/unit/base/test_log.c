/* test_log.c - the lines of the log, and that nothing in a message can forge one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "capture.h"
#include "sy_clock.h"
#include "sy_log.h"

/* The caller frees the text. */
static char *logged(sy_log_level level, const char *text)
{
    capture c = capture_begin(STDERR_FILENO);

    sy_log(level, "%s", text);
    return capture_end(&c);
}

static void expect_end(char *line, const char *end)
{
    const size_t len = strlen(line);

    if (len < strlen(end) || strcmp(line + len - strlen(end), end) != 0) {
        fail_msg("got \"%s\", want an end of \"%s\"", line, end);
    }
    free(line);
}

static size_t count(const char *text, char c)
{
    size_t n = 0;

    for (; *text != '\0'; text++) n += *text == c;
    return n;
}

static void a_line_says_when_how_bad_who_and_what(void **state)
{
    char *line;

    (void)state;
    sy_log_open("router", SY_LOG_INFO, 0);
    line = logged(SY_LOG_WARN, "it rains");
    assert_int_equal(line[4], '-');
    assert_int_equal(line[10], 'T');
    assert_int_equal(line[26], 'Z');
    expect_end(line, "Z WARN  router: it rains\n");
}

static void lines_below_the_level_are_not_written(void **state)
{
    (void)state;
    sy_log_open("router", SY_LOG_WARN, 0);
    expect_end(logged(SY_LOG_ERROR, "x"), "x\n");
    for (int level = SY_LOG_DEBUG; level < SY_LOG_WARN; level++) {
        char *line = logged((sy_log_level)level, "x");

        assert_string_equal(line, "");
        free(line);
    }
}

static void a_message_cannot_forge_a_second_line(void **state)
{
    (void)state;
    sy_log_open("p", SY_LOG_INFO, 0);
    expect_end(logged(SY_LOG_INFO, "a\nb\x1b[0m\xff \"q\\\""),
               ": a\\nb\\u001b[0m\xef\xbf\xbd \"q\\\"\n");
    sy_log_open("p", SY_LOG_INFO, 1);
    expect_end(logged(SY_LOG_INFO, "a\n\"}"),
               "\"level\":\"info\",\"program\":\"p\",\"message\":\"a\\n\\\"}\"}\n");
}

static void a_very_long_message_still_makes_one_whole_line(void **state)
{
    char text[10000];

    (void)state;
    memset(text, '\x01', sizeof(text)); /* the worst case: six bytes for each */
    text[sizeof(text) - 1] = '\0';
    for (size_t shift = 0; shift < 14; shift++) { /* the cut comes at each place of a character */
        char *line;

        if (shift > 0) text[shift / 2] = 'a';
        sy_log_open("p", SY_LOG_INFO, shift % 2 != 0);
        line = logged(SY_LOG_INFO, text);
        assert_in_range(strlen(line), 4000, 4096);
        assert_int_equal(count(line, '\n'), 1);
        expect_end(line, shift % 2 != 0 ? "\\u0001\"}\n" : "\\u0001\n");
    }
}

static void an_error_is_logged_with_its_place(void **state)
{
    sy_error err;
    capture c;

    (void)state;
    sy_error_set(&err, SY_EUNAVAILABLE, "no answer in 2 s");
    sy_error_where(&err, "EXPERT_UNREACHABLE", 3, 17, "expert-0");
    sy_log_open("p", SY_LOG_INFO, 0);
    c = capture_begin(STDERR_FILENO);
    sy_log_error(SY_LOG_ERROR, &err, "request %d", 5);
    expect_end(capture_end(&c),
               "p: request 5: no answer in 2 s (EXPERT_UNREACHABLE, layer 3, expert 17, "
               "node expert-0)\n");
    sy_log_open("p", SY_LOG_INFO, 1);
    c = capture_begin(STDERR_FILENO);
    sy_log_error(SY_LOG_ERROR, &err, "request %d", 5);
    expect_end(
        capture_end(&c),
        "\"program\":\"p\",\"status\":\"UNAVAILABLE\",\"reason\":\"EXPERT_UNREACHABLE\",\"layer\":"
        "3,"
        "\"expert\":17,\"node\":\"expert-0\",\"message\":\"request 5: no answer in 2 s\"}\n");
}

static void an_error_without_a_reason_shows_its_status(void **state)
{
    sy_error err;
    capture c;

    (void)state;
    sy_error_set(&err, SY_EDATALOSS, "bad");
    sy_log_open("p", SY_LOG_INFO, 0);
    c = capture_begin(STDERR_FILENO);
    sy_log_error(SY_LOG_ERROR, &err, "load");
    expect_end(capture_end(&c), "p: load: bad (DATA_LOSS)\n");
    c = capture_begin(STDERR_FILENO);
    sy_log_error(SY_LOG_ERROR, NULL, "load");
    expect_end(capture_end(&c), "p: load\n");
}

/* Here the write itself fails, as it does when nobody holds the other end of stderr. */
static void logging_leaves_errno_alone(void **state)
{
    const int saved_fd = dup(STDERR_FILENO);
    int after;

    (void)state;
    assert_true(saved_fd >= 0);
    sy_log_open("p", SY_LOG_INFO, 0);
    close(STDERR_FILENO);
    errno = EXDEV;
    sy_log(SY_LOG_INFO, "x");
    after = errno;
    dup2(saved_fd, STDERR_FILENO);
    close(saved_fd);
    assert_int_equal(after, EXDEV);
}

static void level_names_are_read_in_any_case(void **state)
{
    sy_log_level level = SY_LOG_ERROR;

    (void)state;
    assert_int_equal(sy_log_level_from_name(&level, "debug"), SY_OK);
    assert_int_equal(level, SY_LOG_DEBUG);
    assert_int_equal(sy_log_level_from_name(&level, "WARN"), SY_OK);
    assert_int_equal(level, SY_LOG_WARN);
    assert_int_equal(sy_log_level_from_name(&level, "loud"), SY_EINVAL);
    assert_int_equal(level, SY_LOG_WARN);
}

static void a_repeated_event_is_due_once_in_its_interval(void **state)
{
    _Atomic int64_t last_us = 0;

    (void)state;
    assert_true(sy_log_due(&last_us, INT64_C(3600000000)));
    for (int i = 0; i < 100; i++) assert_false(sy_log_due(&last_us, INT64_C(3600000000)));
    last_us = sy_clock_us() - 2000;
    assert_true(sy_log_due(&last_us, 1000));
    assert_true(sy_log_due(&last_us, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_when_how_bad_who_and_what),
        cmocka_unit_test(lines_below_the_level_are_not_written),
        cmocka_unit_test(a_message_cannot_forge_a_second_line),
        cmocka_unit_test(a_very_long_message_still_makes_one_whole_line),
        cmocka_unit_test(an_error_is_logged_with_its_place),
        cmocka_unit_test(an_error_without_a_reason_shows_its_status),
        cmocka_unit_test(logging_leaves_errno_alone),
        cmocka_unit_test(level_names_are_read_in_any_case),
        cmocka_unit_test(a_repeated_event_is_due_once_in_its_interval),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
