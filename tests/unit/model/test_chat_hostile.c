/* Templates that would take for ever, all memory or the stack: each ends at a limit, quickly, with
 * the line it happened at. And templates cut at every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sy_chat.h"
#include "sy_file.h"

#define GOLDEN SY_SOURCE_DIR "/tests/golden/chat/"

/* The status of parsing and then rendering over {"x": 1}. */
static sy_status run(const char *text, size_t n, sy_error *err)
{
    static const char input[] =
        "{\"x\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    sy_chat *chat;
    sy_strbuf out;
    sy_status st;

    sy_error_clear(err);
    st = sy_chat_parse(&chat, text, n, err);
    if (st != SY_OK) return st;
    sy_strbuf_init(&out);
    st = sy_chat_render(chat, &out, input, sizeof(input) - 1, 0, err);
    assert_true(st == SY_OK || out.len == 0);
    sy_strbuf_free(&out);
    sy_chat_close(chat);
    return st;
}

#define NS    "{% set ns = namespace(s='xxxxxxxxxxxxxxxx', l=[], m=[]) %}"
#define EVER  "{% for i in range(100000) %}"
#define EVER2 EVER "{% for j in range(100000) %}"

static const char *const endless[] = {
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro a(x) %}{{ b(x) }}{% endmacro %}{% macro b(x) %}{{ a(x + 1) }}{% endmacro %}{{ a(1) "
    "}}",
    "{% macro m(x=m()) %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% set y %}{{ m() }}{% endset %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% call m() %}{% endcall %}{{ caller() }}{% endmacro %}{{ m() }}",
    EVER2 "{% endfor %}{% endfor %}",
    EVER2 "x{% endfor %}{% endfor %}",
    EVER2 "{{ 'a long enough text to write thirty-two mebibytes of' }}{% endfor %}{% endfor %}",
    "{{ range(100001) }}",
    "{{ range(9223372036854775807) }}",
    "{{ range(-9223372036854775807, 9223372036854775807) }}",
    NS EVER "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    NS EVER "{% set ns.s = ns.s ~ ns.s ~ ns.s %}{% endfor %}",
    NS EVER "{% set ns.s = ns.s|replace('x', 'xx') %}{% endfor %}",
    NS EVER "{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}{% endfor %}",
    NS EVER "{% set ns.l = ns.l + [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    NS "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% "
       "endfor %}{{ ns.l == ns.m }}",
    NS "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    NS "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson|length }}",
    NS EVER "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    NS EVER "{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    NS EVER
    "{% set ns.l = {'k': ns.l} %}{% endfor %}{{ ns.l == {'k': {'k': ns.l}} or ns.l|tojson }}",
    NS "{% set ns.l = [ns] %}{{ ns.l }}",
    NS "{% set ns.n = ns %}{{ ns }}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.split('x') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big|list %}{% endfor %}",
    NS "{% set big = 'é' * 1000000 %}" EVER "{% set ns.s = big[::-1] %}{% endfor %}",
    NS "{% set big = 'é' * 1000000 %}" EVER "{% set ns.s = big[999999] %}{% endfor %}",
    NS "{% set big = ('x' * 1000000).split('x') %}" EVER "{% set ns.s = 'y' in big %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = 'y' in big %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.find('y') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.rfind('y') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.count('xy') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.strip(big) %}{% endfor %}",
    NS "{% set big = ' ' * 1000000 %}" EVER "{% set ns.s = big.strip() %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.isalpha() %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big is lower %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.rsplit('xy') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.startswith(big) %}{% endfor %}",
    NS "{% set big = ' ' * 1000000 %}" EVER "{% set ns.s = big|int %}{% endfor %}{{ 1 / 0 }}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.partition('y') %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = {}.get(big) %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big.splitlines() %}{% endfor %}",
    NS "{% set big = 'x' * 1000000 %}" EVER "{% set ns.s = big|int %}{% endfor %}{{ 1 / 0 }}",
    "{% set big = 'x' * 1000000 %}{% set part = 'y' ~ 'x' * 500000 %}" EVER
    "{{ big.rfind(part) }}{{ big.find(part) }}{{ big.rsplit(part)|length }}{% endfor %}",
    "{{ 'x' * 9223372036854775807 }}",
    "{{ [1] * 9223372036854775807 }}",
    "{{ 'x' * 100000000 ~ 'y' * 100000000 }}",
    "{{ '%1000000000s' % 1 }}",
    "{{ '%.1000000000f' % 1.5 }}",
    "{{ 'x'|indent(1000000000) }}",
    "{{ {}|tojson(indent=1000000000) }}",
    "{{ ([range(100000)|list] * 1000)|sum(start=[])|sort|length }}",
    EVER "{% set x = range(100000)|list %}{% endfor %}",
    EVER "{% set x = range(1000)|map('string')|sort(reverse=true)|unique|list %}{% endfor %}",
};

static void endless_templates_end_at_a_limit(void **state)
{
    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(endless); i++) {
        sy_error err;
        const sy_status st = run(endless[i], strlen(endless[i]), &err);

        if ((st != SY_ELIMIT && st != SY_EINVAL) || strstr(err.message, "line 1") == NULL) {
            fail_msg("%s: %s", endless[i], st == SY_OK ? "it rendered" : err.message);
        }
    }
}

/* open * n, middle, close * n */
static sy_status run_nested(const char *open, const char *middle, const char *close, size_t n,
                            sy_error *err)
{
    sy_strbuf text;
    sy_status st;

    sy_strbuf_init(&text);
    for (size_t i = 0; i < n; i++) sy_strbuf_puts(&text, open);
    sy_strbuf_puts(&text, middle);
    for (size_t i = 0; i < n; i++) sy_strbuf_puts(&text, close);
    st = run(text.data, text.len, err);
    sy_strbuf_free(&text);
    return st;
}

static void deep_nesting_is_refused(void **state)
{
    static const struct nest {
        const char *open, *middle, *close;
    } nests[] = {
        {"{% if x %}", "x", "{% endif %}"},
        {"{% for y in [1] %}", "x", "{% endfor %}"},
        {"{% set y %}", "x", "{% endset %}"},
        {"{% filter upper %}", "x", "{% endfilter %}"},
        {"{% generation %}", "x", "{% endgeneration %}"},
        {"{% macro m() %}", "x", "{% endmacro %}"},
        {"{% with %}", "x", "{% endwith %}"},
        {"{% if x %}{% elif x %}{% for y in z %}", "", "{% endfor %}{% endif %}"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(nests); i++) {
        sy_error err;

        assert_int_equal(run_nested(nests[i].open, nests[i].middle, nests[i].close, 20, &err),
                         SY_OK);
        if (run_nested(nests[i].open, nests[i].middle, nests[i].close, 10000, &err) != SY_ELIMIT) {
            fail_msg("%s: %s", nests[i].open, err.message);
        }
    }
}

static void deep_expressions_are_refused(void **state)
{
    static const struct nest {
        const char *open, *middle, *close;
    } nests[] = {
        {"(", "1", ")"},    {"[", "1", "]"},           {"{1:", "1", "}"},    {"not ", "1", ""},
        {"- ", "1", ""},    {"1 + ", "1", ""},         {"1 ** ", "1", ""},   {"1 and ", "1", ""},
        {"1 if ", "1", ""}, {"1 if 1 else ", "1", ""}, {"", "x", "|string"}, {"", "x", ".y"},
        {"", "x", "[0]"},   {"", "x", "()"},           {"x(", "1", ")"},     {"x[", "1", "]"},
        {"x[1:", "1", "]"}, {"x(y=", "1", ")"},        {"1 ~ (", "1", ")"},
    };

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(nests); i++) {
        char open[64];
        sy_error err;
        sy_strbuf text;
        sy_status st;

        (void)snprintf(open, sizeof(open), "%s", nests[i].open);
        sy_strbuf_init(&text);
        sy_strbuf_puts(&text, "{{ ");
        for (int k = 0; k < 20000; k++) sy_strbuf_puts(&text, open);
        sy_strbuf_puts(&text, nests[i].middle);
        for (int k = 0; k < 20000; k++) sy_strbuf_puts(&text, nests[i].close);
        sy_strbuf_puts(&text, " }}");
        st = run(text.data, text.len, &err);
        if (st != SY_ELIMIT) fail_msg("%s%s: %s", open, nests[i].close, err.message);
        sy_strbuf_free(&text);
    }
}

static void a_long_template_takes_linear_time(void **state)
{
    static const char *const pieces[] = {"{{ x }}",
                                         "{% set y = 1 %}",
                                         "{# c #}",
                                         "{% if x %}{% elif x %}{% endif %}",
                                         "{% raw %}{{{% endraw %}",
                                         "{ % # }"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(pieces); i++) {
        sy_error err;

        if (run_nested(pieces[i], "", "", SY_CHAT_TEMPLATE_BYTES_MAX / strlen(pieces[i]), &err) !=
            SY_OK) {
            fail_msg("%s: %s", pieces[i], err.message);
        }
    }
}

static void a_long_chain_of_elifs_renders(void **state)
{
    sy_strbuf text;
    sy_error err;

    (void)state;
    sy_strbuf_init(&text);
    sy_strbuf_puts(&text, "{% if x == 0 %}");
    for (int i = 0; i < 5000; i++) sy_strbuf_puts(&text, "{% elif x == 2 %}");
    sy_strbuf_puts(&text, "{% endif %}");
    assert_int_equal(run(text.data, text.len, &err), SY_OK);
    sy_strbuf_free(&text);
}

static void many_names_take_no_quadratic_time(void **state)
{
    sy_strbuf text;
    sy_error err;

    (void)state;
    sy_strbuf_init(&text);
    for (int i = 0; i < 30000; i++) sy_strbuf_printf(&text, "{%% set v%d = 1 %%}", i);
    (void)run(text.data, text.len, &err); /* renders or meets the limit on steps, and ends */
    sy_strbuf_reset(&text);
    for (int i = 0; i < 60000; i++) sy_strbuf_printf(&text, "{{ v%d }}", i);
    assert_int_equal(run(text.data, text.len, &err), SY_OK);
    sy_strbuf_free(&text);
}

static void templates_cut_at_any_byte_parse_or_fail(void **state)
{
    static const char *const files[] = {"gpt_oss", "glm4", "deepseek_v3", "hunyuan"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(files); i++) {
        char path[512];
        char *text = NULL;
        size_t n;
        sy_error err;

        (void)snprintf(path, sizeof(path), GOLDEN "%s.jinja", files[i]);
        assert_int_equal(sy_file_read(&text, &n, path, SY_CHAT_TEMPLATE_BYTES_MAX, &err), SY_OK);
        for (size_t cut = 0; cut < n; cut++) {
            char *exact = malloc(cut + 1); /* a sanitizer sees a byte read too many */
            sy_status st;

            assert_non_null(exact);
            memcpy(exact, text, cut);
            st = run(exact, cut, &err);
            if (st != SY_OK && (st != SY_EINVAL || strstr(err.message, "line ") == NULL)) {
                fail_msg("%s cut at %zu: %s", files[i], cut, err.message);
            }
            free(exact);
        }
        free(text);
    }
}

static void inputs_and_templates_that_are_too_large_are_refused(void **state)
{
    const size_t n = SY_CHAT_INPUT_BYTES_MAX + 1;
    char *large = malloc(n);
    sy_chat *chat;
    sy_strbuf out;
    sy_error err;

    (void)state;
    assert_non_null(large);
    memset(large, ' ', n);
    assert_int_equal(sy_chat_parse(&chat, large, SY_CHAT_TEMPLATE_BYTES_MAX + 1, &err), SY_ELIMIT);
    assert_int_equal(sy_chat_parse(&chat, "x", 1, &err), SY_OK);
    sy_strbuf_init(&out);
    assert_int_equal(sy_chat_render(chat, &out, large, n, 0, &err), SY_ELIMIT);
    sy_strbuf_free(&out);
    sy_chat_close(chat);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_templates_end_at_a_limit),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(deep_expressions_are_refused),
        cmocka_unit_test(a_long_template_takes_linear_time),
        cmocka_unit_test(a_long_chain_of_elifs_renders),
        cmocka_unit_test(many_names_take_no_quadratic_time),
        cmocka_unit_test(templates_cut_at_any_byte_parse_or_fail),
        cmocka_unit_test(inputs_and_templates_that_are_too_large_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
