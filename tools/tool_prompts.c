/* tool_prompts.c - prompts from the command line and from files. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "sy_file.h"
#include "tool_print.h"
#include "tool_sampling.h"

#define PROMPTS_FILE_BYTES_MAX ((size_t)1 << 30)

static sy_status no_memory(sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory for the prompts");
}

/* The next prompt, with what the options say. NULL: no memory. */
static tool_prompt *add_prompt(tool_prompts *prompts, const tool_sampling *s)
{
    tool_prompt *grown = prompts->item;

    if ((prompts->n & (prompts->n - 1)) == 0) /* full: the capacity is a power of two */
        grown = realloc(prompts->item, SY_MAX(2 * prompts->n, 1) * sizeof(*grown));
    if (grown == NULL) return NULL;
    prompts->item = grown;
    grown[prompts->n] =
        (tool_prompt){.max_tokens = (uint32_t)s->max_tokens, .seed = (uint64_t)s->seed};
    return &grown[prompts->n++];
}

/* "1,17, 42". */
static sy_status parse_tokens(tool_prompt *out, const char *text, sy_error *err)
{
    size_t n_max = 1;

    for (const char *c = text; *c != '\0'; c++) n_max += *c == ',';
    out->token = malloc(n_max * sizeof(*out->token));
    if (out->token == NULL) return no_memory(err);
    for (const char *at = text;; at++) {
        char *end;
        unsigned long long id;

        at += strspn(at, " ");
        errno = 0;
        id = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0 || id > UINT32_MAX)
            return sy_error_set(err, SY_EINVAL,
                                "--tokens: \"%.20s\" does not begin with a token id; write 1,17,42",
                                at);
        out->token[out->n_tokens++] = (uint32_t)id;
        at = end + strspn(end, " ");
        if (*at == '\0') return SY_OK;
        if (*at != ',')
            return sy_error_set(err, SY_EINVAL, "--tokens: a comma is missing before \"%.20s\"",
                                at);
    }
}

/* ---- the lines of a prompts file ---- */

static sy_status json_text(tool_prompt *out, const json_t *value, sy_error *err)
{
    const size_t n = json_string_length(value);

    out->text = malloc(n + 1);
    if (out->text == NULL) return no_memory(err);
    memcpy(out->text, json_string_value(value), n + 1);
    out->text_bytes = n;
    return SY_OK;
}

static sy_status json_tokens(tool_prompt *out, const json_t *array, sy_error *err)
{
    const size_t n = json_array_size(array);

    if (n == 0 || n > SY_WIRE_TOKENS_MAX)
        return sy_error_set(err, SY_EINVAL, "\"tokens\" has %zu ids, 1 to %u are taken", n,
                            SY_WIRE_TOKENS_MAX);
    out->token = malloc(n * sizeof(*out->token));
    if (out->token == NULL) return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(array, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > UINT32_MAX)
            return sy_error_set(err, SY_EINVAL, "\"tokens\": element %zu is not a token id", i);
        out->token[out->n_tokens++] = (uint32_t)json_integer_value(id);
    }
    return SY_OK;
}

static sy_status json_chat(tool_prompt *out, const json_t *object, sy_error *err)
{
    out->text = json_dumps(object, JSON_COMPACT);
    if (out->text == NULL) return no_memory(err);
    out->text_bytes = strlen(out->text);
    out->is_chat = 1;
    return SY_OK;
}

static sy_status json_prompt(tool_prompt *out, json_t *object, sy_error *err)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        sy_status st = SY_OK;

        if (out->text != NULL && (strcmp(key, "prompt") == 0 || strcmp(key, "chat") == 0))
            st = sy_error_set(err, SY_EINVAL, "\"prompt\" and \"chat\" are both there");
        else if (strcmp(key, "prompt") == 0 && json_is_string(value))
            st = json_text(out, value, err);
        else if (strcmp(key, "chat") == 0 && json_is_object(value))
            st = json_chat(out, value, err);
        else if (strcmp(key, "tokens") == 0 && json_is_array(value))
            st = json_tokens(out, value, err);
        else if (strcmp(key, "max_tokens") == 0 && json_is_integer(value) &&
                 json_integer_value(value) >= 0 && json_integer_value(value) <= UINT32_MAX)
            out->max_tokens = (uint32_t)json_integer_value(value);
        else if (strcmp(key, "seed") == 0 && json_is_integer(value))
            out->seed = (uint64_t)json_integer_value(value);
        else
            st = sy_error_set(err, SY_EINVAL,
                              "\"%.40s\" is unknown or of a wrong type: prompt, chat, tokens, "
                              "max_tokens and seed are known",
                              key);
        if (st != SY_OK) return st;
    }
    if ((out->text != NULL) == (out->token != NULL))
        return sy_error_set(err, SY_EINVAL, "one of \"prompt\", \"chat\" and \"tokens\" is needed");
    return SY_OK;
}

static sy_status parse_line(tool_prompt *out, const char *line, size_t n, sy_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    sy_status st;

    if (root == NULL)
        st = sy_error_set(err, SY_EINVAL, "not JSON: %s", why.text);
    else if (json_is_string(root))
        st = json_text(out, root, err);
    else if (json_is_object(root))
        st = json_prompt(out, root, err);
    else
        st = sy_error_set(err, SY_EINVAL, "neither a string nor an object");
    json_decref(root);
    return st;
}

static sy_status parse_file(tool_prompts *out, const tool_sampling *s, sy_error *err)
{
    char *text = NULL;
    size_t n, line_id = 0;
    sy_status st = sy_file_read(&text, &n, s->prompts_file, PROMPTS_FILE_BYTES_MAX, err);

    for (const char *at = text; st == SY_OK && at < text + n;) {
        const char *newline = memchr(at, '\n', (size_t)(text + n - at));
        const char *end = newline != NULL ? newline : text + n;
        tool_prompt *prompt;

        line_id++;
        if (strspn(at, " \t\r") < (size_t)(end - at)) {
            prompt = add_prompt(out, s);
            st = prompt != NULL ? parse_line(prompt, at, (size_t)(end - at), err) : no_memory(err);
            if (st != SY_OK) sy_error_prefix(err, "%s: line %zu", s->prompts_file, line_id);
        }
        at = end + 1;
    }
    free(text);
    if (st == SY_OK && out->n == 0)
        st = sy_error_set(err, SY_EINVAL, "%s: holds no prompt", s->prompts_file);
    return st;
}

static sy_status load(tool_prompts *out, const tool_sampling *s, sy_error *err)
{
    tool_prompt *prompt;

    if (s->prompts_file != NULL) return parse_file(out, s, err);
    prompt = add_prompt(out, s);
    if (prompt == NULL) return no_memory(err);
    if (s->tokens != NULL) return parse_tokens(prompt, s->tokens, err);
    prompt->is_chat = s->chat_file != NULL;
    if (s->prompt_file != NULL || prompt->is_chat)
        return sy_file_read(&prompt->text, &prompt->text_bytes,
                            prompt->is_chat ? s->chat_file : s->prompt_file, SY_WIRE_TEXT_MAX, err);
    prompt->text = strdup(s->prompt);
    if (prompt->text == NULL) return no_memory(err);
    prompt->text_bytes = strlen(prompt->text);
    return SY_OK;
}

int tool_prompts_load(tool_prompts *out, const tool_sampling *s)
{
    sy_error err = {0};

    *out = (tool_prompts){0};
    sy_error_clear(&err);
    if (load(out, s, &err) == SY_OK) return 0;
    /* Ids are written on the command line; the other prompts' mistakes are in files. */
    return s->tokens != NULL ? tool_bad_option("%s", err.message) : tool_fail(&err);
}

void tool_prompts_free(tool_prompts *prompts)
{
    for (size_t i = 0; i < prompts->n; i++) {
        free(prompts->item[i].text);
        free(prompts->item[i].token);
    }
    free(prompts->item);
    *prompts = (tool_prompts){0};
}
