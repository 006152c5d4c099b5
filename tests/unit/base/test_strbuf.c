/* test_strbuf.c - growing strings, and what they make of bytes that are no text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sy_strbuf.h"

static void an_empty_buffer_is_an_empty_string(void **state)
{
    sy_strbuf buf;
    char *text;

    (void)state;
    sy_strbuf_init(&buf);
    assert_string_equal(buf.data, "");
    sy_strbuf_puts(&buf, "");
    sy_strbuf_printf(&buf, "%s", "");
    sy_strbuf_append(&buf, NULL, 0);
    assert_int_equal(buf.len, 0);
    text = sy_strbuf_detach(&buf);
    assert_string_equal(text, "");
    free(text);
    sy_strbuf_free(&buf);
}

static void appends_of_all_kinds_follow_each_other(void **state)
{
    char want[20001];
    sy_strbuf buf;
    size_t len = 0;

    (void)state;
    sy_strbuf_init(&buf);
    for (int i = 0; len < 19000; i++) {
        const int n = snprintf(want + len, sizeof(want) - len, "%d-x%*s", i, i % 300, "");

        sy_strbuf_printf(&buf, "%d", i);
        sy_strbuf_puts(&buf, "-x");
        sy_strbuf_printf(&buf, "%*s", i % 300, "");
        len += (size_t)n;
        assert_int_equal(buf.len, len);
        assert_int_equal(buf.data[len], 0);
    }
    assert_memory_equal(buf.data, want, len + 1);
    sy_strbuf_free(&buf);
}

static void a_reset_keeps_the_memory_and_forgets_the_text(void **state)
{
    sy_strbuf buf;
    char *data;

    (void)state;
    sy_strbuf_init(&buf);
    sy_strbuf_puts(&buf, "one");
    data = buf.data;
    sy_strbuf_reset(&buf);
    assert_string_equal(buf.data, "");
    sy_strbuf_puts(&buf, "two");
    assert_ptr_equal(buf.data, data);
    assert_string_equal(buf.data, "two");
    sy_strbuf_free(&buf);
}

static void a_buffer_that_found_no_memory_stays_valid(void **state)
{
    sy_strbuf buf;

    (void)state;
    sy_strbuf_init(&buf);
    sy_strbuf_puts(&buf, "kept");
    sy_strbuf_append(&buf, "x", SIZE_MAX - 2); /* refused before a byte is read */
    assert_true(buf.failed);
    sy_strbuf_puts(&buf, "more");
    assert_string_equal(buf.data, "kept");
    assert_null(sy_strbuf_detach(&buf));
    assert_string_equal(buf.data, "");
    assert_false(buf.failed);
    sy_strbuf_free(&buf);
}

static void check_json(const char *in, size_t n, const char *want)
{
    sy_strbuf buf;

    sy_strbuf_init(&buf);
    sy_strbuf_json_string(&buf, in, n);
    assert_string_equal(buf.data, want);
    sy_strbuf_free(&buf);
}

static void json_strings_are_escaped(void **state)
{
    (void)state;
    check_json("", 0, "\"\"");
    check_json("plain", 5, "\"plain\"");
    check_json("a\"b\\c", 5, "\"a\\\"b\\\\c\"");
    check_json("\b\t\n\v\f\r", 6, "\"\\b\\t\\n\\u000b\\f\\r\"");
    check_json("\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\\u007f\"");
    check_json("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9,
               "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

#define BAD "\xef\xbf\xbd"
static void bytes_that_are_not_utf8_become_replacement_characters(void **state)
{
    (void)state;
    check_json("a\xff"
               "b",
               3, "\"a" BAD "b\"");
    check_json("\x80", 1, "\"" BAD "\"");
    check_json("\xc3", 1, "\"" BAD "\"");                         /* cut off */
    check_json("\xe2\x82", 2, "\"" BAD BAD "\"");                 /* cut off */
    check_json("\xc0\xaf", 2, "\"" BAD BAD "\"");                 /* overlong */
    check_json("\xe0\x80\xaf", 3, "\"" BAD BAD BAD "\"");         /* overlong */
    check_json("\xed\xa0\x80", 3, "\"" BAD BAD BAD "\"");         /* a surrogate */
    check_json("\xf4\x90\x80\x80", 4, "\"" BAD BAD BAD BAD "\""); /* past U+10FFFF */
    check_json("\xe2\x28\xa1", 3, "\"" BAD "(" BAD "\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buffer_is_an_empty_string),
        cmocka_unit_test(appends_of_all_kinds_follow_each_other),
        cmocka_unit_test(a_reset_keeps_the_memory_and_forgets_the_text),
        cmocka_unit_test(a_buffer_that_found_no_memory_stays_valid),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(bytes_that_are_not_utf8_become_replacement_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
