/* Chat templates against the real Jinja2: tests/golden/chat holds what it printed (make.py there
 * says how); and what a checkpoint directory gives. */
#include <jansson.h>
#include <pthread.h>

#include "checkpoint_files.h"
#include "sy_chat.h"
#include "sy_unicode.h"

#define NOW    1735787045 /* as in make.py */
#define GOLDEN SY_SOURCE_DIR "/tests/golden/chat/"

static json_t *load_json(const char *name)
{
    char path[1024];
    json_error_t error;
    json_t *root;

    (void)snprintf(path, sizeof(path), GOLDEN "%s", name);
    root = json_load_file(path, 0, &error);
    if (root == NULL) fail_msg("%s: %s at line %d", path, error.text, error.line);
    return root;
}

static sy_chat *parse(const char *text)
{
    sy_chat *chat;
    sy_error err;

    if (sy_chat_parse(&chat, text, strlen(text), &err) != SY_OK) fail_msg("%s", err.message);
    return chat;
}

/* The prompt, the caller frees it; NULL and the error when the template cannot render. */
static char *render(const sy_chat *chat, const json_t *input, sy_error *err)
{
    char *json = json_dumps(input, 0);
    sy_strbuf out;
    sy_status st;

    assert_non_null(json);
    sy_strbuf_init(&out);
    sy_error_clear(err);
    st = sy_chat_render(chat, &out, json, strlen(json), NOW, err);
    free(json);
    if (st == SY_OK) {
        char *text = strdup(out.data);

        sy_strbuf_free(&out);
        return text;
    }
    assert_int_equal(st, err->status);
    assert_int_equal(out.len, 0);
    sy_strbuf_free(&out);
    return NULL;
}

/* expected: a prompt, or {"error": what the template says, null where Python raised}. */
static int matches(const char *name, const char *got, const sy_error *err, const json_t *expected)
{
    const char *says = json_string_value(json_object_get(expected, "error"));

    if (json_is_string(expected)) {
        if (got != NULL && strcmp(got, json_string_value(expected)) == 0) return 1;
        print_error("%s\n  wanted: %s\n  got:    %s\n", name, json_string_value(expected),
                    got != NULL ? got : err->message);
        return 0;
    }
    if (got == NULL && err->status == SY_EINVAL && strstr(err->message, "line ") != NULL &&
        (says == NULL || (strstr(err->message, says) != NULL &&
                          strcmp(err->reason, "CHAT_TEMPLATE_REFUSED") == 0))) {
        return 1;
    }
    print_error("%s\n  wanted an error: %s\n  got: %s\n", name, says != NULL ? says : "any",
                got != NULL ? got : err->message);
    return 0;
}

static int template_matches(const char *family)
{
    char path[512];
    char name[128];
    char *text = NULL;
    size_t n;
    sy_error err;
    json_t *inputs = load_json("inputs.json");
    json_t *wanted;
    const char *key;
    json_t *expected;
    sy_chat *chat;
    int n_bad = 0;

    (void)snprintf(name, sizeof(name), "%s.json", family);
    wanted = load_json(name);
    (void)snprintf(path, sizeof(path), GOLDEN "%s.jinja", family);
    assert_int_equal(sy_file_read(&text, &n, path, SY_CHAT_TEMPLATE_BYTES_MAX, &err), SY_OK);
    chat = parse(text);
    assert_int_equal(json_object_size(wanted), json_object_size(inputs));
    json_object_foreach(wanted, key, expected)
    {
        char *got = render(chat, json_object_get(inputs, key), &err);

        (void)snprintf(name, sizeof(name), "%s, %s", family, key);
        n_bad += !matches(name, got, &err, expected);
        free(got);
    }
    sy_chat_close(chat);
    free(text);
    json_decref(wanted);
    json_decref(inputs);
    return n_bad == 0;
}

static void prompts_of_all_families_are_those_of_jinja2(void **state)
{
    static const char *const families[] = {
        "mixtral",     "olmoe",   "qwen2",   "qwen3",     "deepseek_v2", "deepseek_v3",
        "deepseek_r1", "kimi_k2", "granite", "phi35",     "gpt_oss",     "glm4",
        "llama4",      "ernie45", "hunyuan", "minimax_m2"};
    int n_bad = 0;

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(families); i++) n_bad += !template_matches(families[i]);
    assert_int_equal(n_bad, 0);
}

static void each_construct_is_that_of_jinja2(void **state)
{
    json_t *root = load_json("constructs.json");
    const json_t *cases = json_object_get(root, "cases");
    int n_bad = 0;

    (void)state;
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *entry = json_array_get(cases, i);
        const char *text = json_string_value(json_object_get(entry, "template"));
        sy_chat *chat = parse(text);
        sy_error err;
        char *got = render(chat, json_object_get(root, "variables"), &err);

        n_bad += !matches(text, got, &err, json_object_get(entry, "expected"));
        free(got);
        sy_chat_close(chat);
    }
    json_decref(root);
    assert_int_equal(n_bad, 0);
}

static const struct refusal {
    const char *template, *says;
} unsupported[] = {
    {"a\n{% include 'x' %}", "line 2: the tag {% include %} is not supported"},
    {"{% extends 'x' %}", "the tag {% extends %}"},
    {"{% block b %}{% endblock %}", "the tag {% block %}"},
    {"{% import 'x' as y %}", "the tag {% import %}"},
    {"{% from 'x' import y %}", "the tag {% from %}"},
    {"{% do x %}", "the tag {% do %}"},
    {"{% autoescape true %}{% endautoescape %}", "the tag {% autoescape %}"},
    {"\n\n{{ x|wordwrap }}", "line 3: the filter \"wordwrap\" is not supported"},
    {"{{ x|from_json }}", "the filter \"from_json\""},
    {"{{ x is escaped and x is filter }}", "the test \"filter\""},
    {"{{ x.encode() }}", "the method \"encode\""},
    {"{{ x.zfill(3) }}", "the method \"zfill\""},
    {"{{ cycler('a') }}", "the global \"cycler\""},
    {"{% for x in y recursive %}{% endfor %}", "recursive loops"},
    {"{{ '\\N{BULLET}' }}", "\\N{...}"},
    {"{% macro m(caller) %}{% endmacro %}", "caller"},
    {"{{ 99999999999999999999 }}", "64 bits"},
};

static const struct refusal malformed[] = {
    {"{{ x", "line 1: a tag does not end: }} is missing"},
    {"\n{% if x", "line 2: a tag does not end: %} is missing"},
    {"{# x", "a comment does not end"},
    {"{% raw %}", "endraw"},
    {"{{ 'x }}", "a string does not end"},
    {"{{ }}", "expected an expression"},
    {"{{ (1 }}", "unexpected '}', expected ')'"},
    {"{{ ) }}", "unexpected ')'"},
    {"{{ 1 2 }}", "expected }}, found a number"},
    {"{{ a b }}", "expected }}, found 'b'"},
    {"{{ a ? b }}", "unexpected '?'"},
    {"{{ \xC3\xA9 }}", "0xc3"},
    {"{{ a. }}", "a name or a number"},
    {"{{ a[] }}", "an index"},
    {"{{ a | }}", "a filter's name"},
    {"{{ f(a=1, 2) }}", "without a name"},
    {"{{ f(a=1, a=2) }}", "given twice"},
    {"{% if x %}", "the template ends where {% endif %} was expected"},
    {"{% for x in y %}{% endif %}", "{% endif %} ends nothing"},
    {"{% endfor %}", "{% endfor %} ends nothing"},
    {"{% %}", "a tag's name"},
    {"{% set 1 = 2 %}", "a variable's name"},
    {"{% set none = 2 %}", "none cannot be assigned to"},
    {"{% set x %}", "endset"},
    {"{% for x y %}{% endfor %}", "expected in, found 'y'"},
    {"{% for loop in y %}{% endfor %}", "loop is a special variable"},
    {"{% break %}", "outside of a loop"},
    {"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "outside of a loop"},
    {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
    {"{% call x %}{% endcall %}", "no call of a macro"},
    {"{{ x is defined is none }}", "chained"},
    {"{{ '\\u12' }}", "digits"},
    {"{{ '\\ud800' }}", "names no character"},
    {"{{ 012 }}", "begins with 0"},
    {"{{ 1abc }}", "not a number"},
    {"\xFF", "not UTF-8 at byte 0"},
};

static void require_refusals(const struct refusal *cases, size_t n)
{
    int n_bad = 0;

    for (size_t i = 0; i < n; i++) {
        sy_chat *chat = NULL;
        sy_error err;
        const sy_status st =
            sy_chat_parse(&chat, cases[i].template, strlen(cases[i].template), &err);

        if (st == SY_EINVAL && chat == NULL && strstr(err.message, cases[i].says) != NULL) continue;
        print_error("%s\n  wanted: %s\n  got: %s\n", cases[i].template, cases[i].says,
                    st == SY_OK ? "it parses" : err.message);
        sy_chat_close(chat);
        n_bad++;
    }
    assert_int_equal(n_bad, 0);
}

static void what_the_subset_lacks_is_refused_by_name_and_line(void **state)
{
    (void)state;
    require_refusals(unsupported, SY_COUNT_OF(unsupported));
}

static void malformed_templates_are_refused_with_a_reason(void **state)
{
    (void)state;
    require_refusals(malformed, SY_COUNT_OF(malformed));
}

/* The prompt of a template over a JSON text, or the error's message. */
static void expect_prompt(const sy_chat *chat, const char *json, const char *wanted)
{
    sy_strbuf out;
    sy_error err;

    sy_strbuf_init(&out);
    if (sy_chat_render(chat, &out, json, strlen(json), NOW, &err) != SY_OK) {
        assert_non_null(strstr(err.message, wanted));
        assert_int_equal(out.len, 0);
    } else {
        assert_string_equal(out.data, wanted);
    }
    sy_strbuf_free(&out);
}

static void errors_name_the_line_where_they_happen(void **state)
{
    sy_chat *chat = parse("{% if x %}\n\n{{ x }}\n{{ x.a.b }}{% endif %}");

    (void)state;
    expect_prompt(chat, "{\"x\": {\"c\": 1}}", "line 4: 'dict object' has no attribute 'a'");
    expect_prompt(chat, "{\"x\": {\"a\": {\"b\": 5}}}", "\n{'a': {'b': 5}}\n5");
    sy_chat_close(chat);
}

static void long_messages_are_cut_between_characters(void **state)
{
    sy_chat *chat = parse("{{ raise_exception(x * 300) }}");
    sy_chat *attribute = parse("{{ {}[x * 300].y }}");
    sy_strbuf out;
    sy_error err;

    (void)state;
    sy_strbuf_init(&out);
    for (int ascii = 0; ascii < 4; ascii++) {
        char json[32];

        (void)snprintf(json, sizeof(json), "{\"x\":\"%.*s\xE2\x82\xAC\"}", ascii, "abc");
        for (int i = 0; i < 2; i++) {
            assert_int_equal(
                sy_chat_render(i == 0 ? chat : attribute, &out, json, strlen(json), NOW, &err),
                SY_EINVAL);
            assert_true(strlen(err.message) > 300);
            assert_int_equal(sy_utf8_check(err.message, strlen(err.message)), strlen(err.message));
        }
    }
    sy_chat_close(attribute);
    sy_chat_close(chat);
}

static void integers_beyond_64_bits_fail_instead_of_wrapping(void **state)
{
    static const char *const templates[] = {
        "{{ x + 1 }}",   "{{ -y - 2 }}", "{{ x * 2 }}",   "{{ 10 ** 30 }}",
        "{{ -(y) }}",    "{{ y|abs }}",  "{{ y // -1 }}", "{{ '9223372036854775808'|int }}",
        "{{ 1e30|int }}"};

    (void)state;
    for (size_t i = 0; i < SY_COUNT_OF(templates); i++) {
        sy_chat *chat = parse(templates[i]);

        expect_prompt(chat, "{\"x\": 9223372036854775807, \"y\": -9223372036854775808}", "64 bits");
        sy_chat_close(chat);
    }
}

static void output_is_appended_and_stays_as_it_was_on_failure(void **state)
{
    sy_chat *chat = parse("{{ x }}{{ x.y.z }}");
    sy_strbuf out;
    sy_error err;

    (void)state;
    sy_strbuf_init(&out);
    sy_strbuf_puts(&out, "before ");
    assert_int_equal(sy_chat_render(chat, &out, "{\"x\":1}", 7, NOW, &err), SY_EINVAL);
    assert_string_equal(out.data, "before ");
    assert_int_equal(sy_chat_render(chat, &out, "{\"x\":{\"y\":{\"z\":2}}}", 19, NOW, &err), SY_OK);
    assert_string_equal(out.data, "before {'y': {'z': 2}}2");
    sy_strbuf_free(&out);
    sy_chat_close(chat);
}

static void input_that_is_no_object_is_refused(void **state)
{
    sy_chat *chat = parse("x");

    (void)state;
    expect_prompt(chat, "[]", "not an object");
    expect_prompt(chat, "{\"a\":", "not JSON");
    expect_prompt(chat, "", "empty");
    sy_chat_close(chat);
}

static void variables_are_those_that_transformers_passes(void **state)
{
    sy_chat *chat = parse("{{ tools }} {{ documents }} {{ add_generation_prompt }} {{ messages }} "
                          "{{ tools is defined }} {{ range is callable }}");

    (void)state;
    expect_prompt(chat, "{}", "None None False  True True");
    expect_prompt(chat, "{\"tools\": [], \"range\": 1, \"messages\": 2}",
                  "[] None False 2 True False");
    sy_chat_close(chat);
}

static void put_file(const char *dir, const char *name, const char *text)
{
    write_bytes(in_dir(dir, name), text, strlen(text));
}

static void expect_open(const char *dir, const char *name, const char *wanted)
{
    sy_chat *chat;
    sy_error err;

    if (sy_chat_open(&chat, dir, name, &err) != SY_OK) fail_msg("%s", err.message);
    expect_prompt(chat, "{\"x\": 1}", wanted);
    sy_chat_close(chat);
}

static void expect_no_open(const char *dir, const char *name, sy_status st, const char *says)
{
    sy_chat *chat;
    sy_error err;

    assert_int_equal(sy_chat_open(&chat, dir, name, &err), st);
    assert_null(chat);
    if (strstr(err.message, says) == NULL) fail_msg("wanted %s, got %s", says, err.message);
}

static void the_template_of_a_checkpoint_is_found(void **state)
{
    char dir[4096];

    (void)state;
    temp_dir_make(dir);
    expect_no_open(dir, NULL, SY_ENOTFOUND, "no chat template");
    put_file(
        dir, "tokenizer_config.json",
        "{\"chat_template\": \"config {{ bos_token }}{{ eos_token }}{{ x }}\", \"bos_token\": "
        "\"<b>\", \"eos_token\": {\"content\": \"<e>\", \"lstrip\": false}, \"pad_token\": null}");
    expect_open(dir, NULL, "config <b><e>1");
    expect_open(dir, "default", "config <b><e>1");
    expect_no_open(dir, "tool_use", SY_ENOTFOUND, "tool_use");
    put_file(dir, "special_tokens_map.json",
             "{\"bos_token\": \"<old>\", \"unk_token\": {\"content\": \"<u>\"}}");
    put_file(dir, "chat_template.jinja",
             "file {{ bos_token }}{{ unk_token }}{{ pad_token }}{{ x }}\n");
    expect_open(dir, NULL, "file <b><u>1");
    assert_int_equal(sy_dir_make(in_dir(dir, "additional_chat_templates"), NULL), SY_OK);
    put_file(dir, "additional_chat_templates/tool_use.jinja", "tools {{ x }}");
    expect_open(dir, "tool_use", "tools 1");
    temp_dir_remove(dir);
}

static void a_list_of_templates_is_chosen_from_by_name(void **state)
{
    char dir[4096];

    (void)state;
    temp_dir_make(dir);
    put_file(
        dir, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"first\"}, {\"name\": "
        "\"rag\", \"template\": \"second {{ x }}\"}, {\"name\": \"bad\", \"template\": \"{{\"}]}");
    expect_open(dir, NULL, "first");
    expect_open(dir, "rag", "second 1");
    expect_no_open(dir, "bad", SY_EINVAL, "tokenizer_config.json: chat template, line 1: a tag");
    expect_no_open(dir, "other", SY_ENOTFOUND, "other");
    expect_no_open(dir, "../default", SY_ENOTFOUND, "can have that name");
    expect_no_open(dir, "", SY_ENOTFOUND, "can have that name");
    temp_dir_remove(dir);
}

static void a_checkpoint_with_a_wrong_template_is_refused(void **state)
{
    static const char *const configs[] = {"{\"chat_template\": 7}", "{\"chat_template\": [7]}",
                                          "{\"chat_template\": [{\"name\": \"default\"}]}", "[",
                                          "[]"};
    char dir[4096];

    (void)state;
    temp_dir_make(dir);
    for (size_t i = 0; i < SY_COUNT_OF(configs); i++) {
        put_file(dir, "tokenizer_config.json", configs[i]);
        expect_no_open(dir, NULL, SY_EINVAL, "tokenizer_config.json");
    }
    put_file(dir, "tokenizer_config.json", "{}");
    put_file(dir, "chat_template.jinja", "\n{% nonsense %}");
    expect_no_open(dir, NULL, SY_EINVAL, "chat_template.jinja: chat template, line 2: the tag");
    temp_dir_remove(dir);
}

typedef struct renderer {
    const sy_chat *chat;
    int n_bad;
} renderer;

static void *render_often(void *arg)
{
    renderer *self = arg;

    for (int i = 0; i < 200; i++) {
        sy_strbuf out;
        sy_error err;

        sy_strbuf_init(&out);
        self->n_bad +=
            sy_chat_render(self->chat, &out, "{\"x\": [1, 2]}", 13, NOW, &err) != SY_OK ||
            strcmp(out.data, "a1,a2,b") != 0;
        sy_strbuf_free(&out);
    }
    return NULL;
}

static void threads_render_with_one_template(void **state)
{
    sy_chat *chat = parse("{% macro m(y) %}{{ 'a' '' ~ y + '' ~ ',' }}{% endmacro %}"
                          "{% for y in x %}{{ m(y) }}{% endfor %}{{ '' 'b' }}");
    renderer renderers[4];
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        renderers[i] = (renderer){.chat = chat};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &renderers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(renderers[i].n_bad, 0);
    }
    sy_chat_close(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_all_families_are_those_of_jinja2),
        cmocka_unit_test(each_construct_is_that_of_jinja2),
        cmocka_unit_test(what_the_subset_lacks_is_refused_by_name_and_line),
        cmocka_unit_test(malformed_templates_are_refused_with_a_reason),
        cmocka_unit_test(errors_name_the_line_where_they_happen),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(integers_beyond_64_bits_fail_instead_of_wrapping),
        cmocka_unit_test(output_is_appended_and_stays_as_it_was_on_failure),
        cmocka_unit_test(input_that_is_no_object_is_refused),
        cmocka_unit_test(variables_are_those_that_transformers_passes),
        cmocka_unit_test(the_template_of_a_checkpoint_is_found),
        cmocka_unit_test(a_list_of_templates_is_chosen_from_by_name),
        cmocka_unit_test(a_checkpoint_with_a_wrong_template_is_refused),
        cmocka_unit_test(threads_render_with_one_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
