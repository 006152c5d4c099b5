/* sy_chat.c - chat templates from the outside: parsing one from memory, rendering a conversation.
 */
#include "sy_chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sy_chat_eval.h"
#include "sy_chat_json.h"
#include "sy_chat_load.h"
#include "sy_json_load.h"
#include "sy_unicode.h"

#define TREE_BYTES_MAX   ((size_t)256 << 20) /* of a parsed template */
#define INPUT_VALUES_MAX ((size_t)4 << 20)

/* Line ends become \n and the last one goes, as Jinja does. out: [n]. Returns its length. */
static size_t normalize_lines(char *out, const char *text, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') continue;
        out[len++] = text[i] == '\r' ? '\n' : text[i];
    }
    return len > 0 && out[len - 1] == '\n' ? len - 1 : len;
}

static void parse(chat_run *run, sy_chat *chat, const char *text, size_t n)
{
    const size_t well_formed = sy_utf8_check(text, n);
    char *copy = sy_chat_alloc(run, n, 1);

    if (copy == NULL) return;
    if (well_formed < n) {
        sy_chat_fail(run, SY_EINVAL, "it is not UTF-8 at byte %zu", well_formed);
        return;
    }
    sy_chat_parse_template(run, chat, copy, normalize_lines(copy, text, n));
}

sy_status sy_chat_parse(sy_chat **out, const char *text, size_t n, sy_error *err)
{
    sy_chat *chat;
    chat_run run = {.err = err, .line = 1};

    *out = NULL;
    if (n > SY_CHAT_TEMPLATE_BYTES_MAX) {
        return sy_error_set(err, SY_ELIMIT, "a chat template of %zu bytes; the maximum is %zu", n,
                            SY_CHAT_TEMPLATE_BYTES_MAX);
    }
    chat = calloc(1, sizeof(*chat));
    if (chat == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for a chat template");
    sy_arena_init(&chat->arena, TREE_BYTES_MAX);
    run.arena = &chat->arena;
    parse(&run, chat, text, n);
    if (run.status != SY_OK) {
        sy_chat_close(chat);
        return run.status;
    }
    *out = chat;
    return SY_OK;
}

sy_status sy_chat_add_special(sy_chat *chat, const char *name, const char *text, sy_error *err)
{
    chat_run run = {.arena = &chat->arena, .err = err};
    chat_special *special = sy_chat_alloc(&run, 1, sizeof(*special));

    if (special == NULL) return run.status;
    *special = (chat_special){.name = sy_chat_cstring(&run, name).str,
                              .text = sy_chat_cstring(&run, text).str,
                              .next = chat->specials};
    if (run.status == SY_OK) chat->specials = special;
    return run.status;
}

void sy_chat_close(sy_chat *chat)
{
    if (chat == NULL) return;
    sy_arena_free(&chat->arena);
    free(chat);
}

/* A variable that the caller did not give: a special token, what transformers always passes, or a
 * function; else MISSING. */
static chat_value default_variable(const sy_chat *chat, const chat_str *name)
{
    uint16_t id;

    for (const chat_special *s = chat->specials; s != NULL; s = s->next) {
        if (sy_chat_str_equal(s->name, name)) {
            return (chat_value){.kind = CHAT_STRING, .str = s->text};
        }
    }
    if (sy_chat_str_is(name, "tools") || sy_chat_str_is(name, "documents")) return sy_chat_none();
    if (sy_chat_str_is(name, "add_generation_prompt")) return sy_chat_bool(0);
    id = sy_chat_builtin_find(CHAT_FUNCTIONS, name);
    if (id == CHAT_NOT_BUILTIN) return (chat_value){.kind = CHAT_MISSING};
    return (chat_value){.kind = CHAT_FUNCTION, .id = id};
}

/* Only what the template mentions is copied from the input. */
static void fill_context(chat_run *run, chat_value *context, const json_t *input)
{
    for (size_t i = 0; i < run->chat->n_names && run->status == SY_OK; i++) {
        const chat_str *name = run->chat->name[i];
        const json_t *given = json_object_getn(input, name->data, name->n);

        context[i] =
            given != NULL ? sy_chat_from_json(run, given) : default_variable(run->chat, name);
    }
    run->context = context;
}

static sy_status render(chat_run *run, sy_strbuf *out, const json_t *input)
{
    chat_value *context = sy_chat_alloc(run, run->chat->n_names, sizeof(*context));
    chat_scope root = {0};
    sy_strbuf text;

    if (context == NULL) return run->status;
    sy_strbuf_init(&text);
    run->out = &text;
    fill_context(run, context, input);
    if (run->status == SY_OK) (void)sy_chat_exec(run, &root, &run->chat->body);
    if (run->status == SY_OK) {
        sy_strbuf_append(out, text.data, text.len);
        if (out->failed) run->status = sy_error_set(run->err, SY_ENOMEM, "no memory for a prompt");
    }
    run->out = NULL;
    sy_strbuf_free(&text);
    return run->status;
}

sy_status sy_chat_render(const sy_chat *chat, sy_strbuf *out, const char *input_json, size_t n,
                         int64_t now_seconds, sy_error *err)
{
    sy_arena arena;
    chat_run run = {
        .arena = &arena, .err = err, .line = 1, .chat = chat, .now_seconds = now_seconds};
    json_t *input;
    sy_status st;

    if (n > SY_CHAT_INPUT_BYTES_MAX) {
        return sy_error_set(err, SY_ELIMIT, "a conversation of %zu bytes; the maximum is %zu", n,
                            SY_CHAT_INPUT_BYTES_MAX);
    }
    st = sy_json_load(&input, input_json, n, INPUT_VALUES_MAX, err);
    if (st != SY_OK) {
        sy_error_prefix(err, "the chat template's variables");
        return st;
    }
    sy_arena_init(&arena, SY_CHAT_MEMORY_BYTES_MAX);
    st = render(&run, out, input);
    sy_arena_free(&arena);
    json_decref(input);
    return st;
}
