/* plan_file.c - see the header. */
#include "plan_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "placement_history.h"
#include "sy_file.h"
#include "sy_strbuf.h"
#include "tool_report.h"
#include "tool_text.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)

static const char blanks[] = " \t\r";

static sy_status fail_memory(sy_error *err)
{
    return sy_error_set(err, SY_ENOMEM, "no memory for the plan");
}

/* ---- lines ---- */

static sy_status take_line(plan_file *out, tool_field_change *change, const char *line, size_t n,
                           size_t number, sy_error *err)
{
    size_t n_field;
    size_t at;

    while (n > 0 && strchr(blanks, line[n - 1]) != NULL) n--;
    for (n_field = 0; n_field < n && strchr(blanks, line[n_field]) == NULL;) n_field++;
    for (at = n_field; at < n && strchr(blanks, line[at]) != NULL;) at++;
    if (at == n) {
        return sy_error_set(err, SY_EINVAL, "line %zu: write FIELD VALUE, as 3/17 expert-a/cpu:0",
                            number);
    }
    change->before = change->after = NULL;
    change->field = sy_arena_strndup(&out->arena, line, n_field);
    if (n - at != 1 || line[at] != '-') {
        change->after = sy_arena_strndup(&out->arena, line + at, n - at);
        if (change->after == NULL) return fail_memory(err);
    }
    return change->field != NULL ? SY_OK : fail_memory(err);
}

static sy_status take_lines(plan_file *out, const char *text, size_t n, sy_error *err)
{
    size_t n_lines = 1;
    size_t number = 0;
    tool_field_change *change;
    sy_status st = SY_OK;

    for (size_t i = 0; i < n; i++) n_lines += text[i] == '\n';
    if (n_lines > PLAN_FIELDS_MAX) {
        return sy_error_set(err, SY_ELIMIT, "more than %d lines", PLAN_FIELDS_MAX);
    }
    change = sy_arena_calloc(&out->arena, n_lines, sizeof(*change));
    if (change == NULL) return fail_memory(err);
    out->change = change;
    for (const char *at = text; at < text + n;) {
        const size_t left = (size_t)(text + n - at);
        const char *end = memchr(at, '\n', left);
        const size_t len = end != NULL ? (size_t)(end - at) : left;
        const char *comment = memchr(at, '#', len);
        const char *from = at;
        size_t n_here = comment != NULL ? (size_t)(comment - at) : len;

        number++;
        at += len + (end != NULL);
        while (n_here > 0 && strchr(blanks, *from) != NULL) {
            from++;
            n_here--;
        }
        if (n_here == 0) continue;
        if (memchr(from, '\0', n_here) != NULL) {
            return sy_error_set(err, SY_EINVAL, "line %zu: it holds a zero byte", number);
        }
        SY_TRY(take_line(out, &change[out->n], from, n_here, number, err));
        out->n++;
    }
out:
    return st;
}

/* ---- JSON ---- */

static sy_status take_object(plan_file *out, json_t *object, sy_error *err)
{
    tool_field_change *change =
        sy_arena_calloc(&out->arena, json_object_size(object) + 1, sizeof(*change));
    const char *field;
    json_t *value;

    if (change == NULL) return fail_memory(err);
    out->change = change;
    json_object_foreach(object, field, value)
    {
        tool_field_change *c = &change[out->n++];

        if (!json_is_string(value) && !json_is_null(value)) {
            return sy_error_set(err, SY_EINVAL, "%s: the value must be a text, or null to delete",
                                tool_shown(field));
        }
        c->field = sy_arena_strndup(&out->arena, field, strlen(field));
        if (json_is_string(value)) {
            const char *text = json_string_value(value);

            c->after = sy_arena_strndup(&out->arena, text, strlen(text));
            if (c->after == NULL) return fail_memory(err);
        }
        if (c->field == NULL) return fail_memory(err);
    }
    return SY_OK;
}

static sy_status take_kept(plan_file *out, const json_t *object, sy_error *err)
{
    char *changes = json_dumps(json_object_get(object, "changes"), JSON_COMPACT);
    const char *model = json_string_value(json_object_get(object, "model"));
    const char *hash = json_string_value(json_object_get(object, "hash"));
    sy_status st;

    st = changes != NULL
             ? history_changes_parse(&out->change, &out->n, &out->arena, changes, strlen(changes))
             : SY_EINVAL;
    free(changes);
    if (st != SY_OK || model == NULL || hash == NULL) {
        return sy_error_set(err, SY_EINVAL,
                            "it is not a plan that switchyard placement plan --out wrote");
    }
    out->has_before = 1;
    out->model = sy_arena_strndup(&out->arena, model, strlen(model));
    out->hash = sy_arena_strndup(&out->arena, hash, strlen(hash));
    return out->model != NULL && out->hash != NULL ? SY_OK : fail_memory(err);
}

static sy_status take_json(plan_file *out, const char *text, size_t n, sy_error *err)
{
    json_error_t where;
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    sy_status st;

    if (!json_is_object(object)) {
        st = sy_error_set(err, SY_EINVAL, "line %d: it is no JSON object: %s", where.line,
                          tool_shown(where.text));
    } else if (json_object_get(object, "switchyard_plan") != NULL) {
        st = take_kept(out, object, err);
    } else {
        st = take_object(out, object, err);
    }
    json_decref(object);
    return st;
}

/* ---- all ---- */

static int by_field(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sy_status check_once(const plan_file *plan, sy_error *err)
{
    const char **field = calloc(plan->n + 1, sizeof(*field));
    sy_status st = SY_OK;

    if (field == NULL) return fail_memory(err);
    for (size_t i = 0; i < plan->n; i++) field[i] = plan->change[i].field;
    if (plan->n > 1) qsort(field, plan->n, sizeof(*field), by_field);
    for (size_t i = 1; i < plan->n && st == SY_OK; i++) {
        if (strcmp(field[i - 1], field[i]) == 0) {
            st = sy_error_set(err, SY_EINVAL, "field %s stands in it twice", tool_shown(field[i]));
        }
    }
    free(field);
    return st;
}

sy_status plan_file_parse(plan_file *out, const char *text, size_t n, sy_error *err)
{
    size_t at = 0;
    sy_status st;

    memset(out, 0, sizeof(*out));
    sy_arena_init(&out->arena, PLAN_BYTES_MAX);
    while (at < n && (strchr(blanks, text[at]) != NULL || text[at] == '\n') && text[at] != '\0') {
        at++;
    }
    if (at < n && text[at] == '{') {
        SY_TRY(take_json(out, text, n, err));
    } else {
        SY_TRY(take_lines(out, text, n, err));
    }
    SY_TRY(check_once(out, err));
    if (out->n == 0) st = sy_error_set(err, SY_EINVAL, "it has no edit");
out:
    if (st != SY_OK) plan_file_free(out);
    return st;
}

static sy_status read_stdin(sy_strbuf *out, sy_error *err)
{
    char piece[16384];
    size_t n;

    while ((n = fread(piece, 1, sizeof(piece), stdin)) > 0) {
        sy_strbuf_append(out, piece, n);
        if (out->failed) return fail_memory(err);
        if (out->len > FILE_BYTES_MAX) {
            return sy_error_set(err, SY_ELIMIT, "more than %zu bytes", FILE_BYTES_MAX);
        }
    }
    if (ferror(stdin)) return sy_error_set(err, SY_EIO, "cannot be read");
    return SY_OK;
}

sy_status plan_file_read(plan_file *out, const char *path, sy_error *err)
{
    const int is_stdin = strcmp(path, "-") == 0;
    sy_strbuf input;
    char *text = NULL;
    size_t n = 0;
    sy_status st;

    memset(out, 0, sizeof(*out));
    sy_strbuf_init(&input);
    if (is_stdin) {
        SY_TRY(read_stdin(&input, err));
        SY_TRY(plan_file_parse(out, input.data, input.len, err));
    } else {
        SY_TRY(sy_file_read(&text, &n, path, FILE_BYTES_MAX, err));
        st = plan_file_parse(out, text, n, err);
        if (st != SY_OK) sy_error_prefix(err, "%s", path);
    }
out:
    if (st != SY_OK && is_stdin) sy_error_prefix(err, "standard input");
    sy_strbuf_free(&input);
    free(text);
    return st;
}

void plan_file_free(plan_file *plan)
{
    sy_arena_free(&plan->arena);
    memset(plan, 0, sizeof(*plan));
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? tool_json_text(text, strlen(text)) : json_null();
}

char *plan_file_text(const char *model, const char *hash, const tool_field_change *change, size_t n)
{
    json_t *list = json_array();
    json_t *plan;
    char *text = NULL;

    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list,
                              json_pack("{s:o, s:o, s:o}", "field", text_or_null(change[i].field),
                                        "before", text_or_null(change[i].before), "after",
                                        text_or_null(change[i].after)));
    }
    plan = json_pack("{s:i, s:o, s:s, s:o}", "switchyard_plan", 1, "model", text_or_null(model),
                     "hash", hash, "changes", list);
    if (plan != NULL) text = json_dumps(plan, JSON_INDENT(1));
    json_decref(plan);
    return text;
}
