/* placement_history.c - XREVRANGE, and the changes as JSON. */
#include "placement_history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <jansson.h>

#include "tool_report.h"

#define KEY_BYTES         256
#define ENTRIES_A_COMMAND 16 /* an entry may have 2 MB */
#define HISTORY_BYTES_MAX ((size_t)256 << 20)

/* ---- changes ---- */

static json_t *text_or_null(const char *text)
{
    return text != NULL ? tool_json_text(text, strlen(text)) : json_null();
}

static int is_same(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

char *history_changes_json(const tool_field_change *change, size_t n, size_t *n_changed)
{
    json_t *list = json_array();
    char *text = NULL;
    int failed = list == NULL;

    *n_changed = 0;
    for (size_t i = 0; i < n && !failed; i++) {
        if (is_same(change[i].before, change[i].after)) continue;
        failed = json_array_append_new(list, json_pack("{s:o, s:o, s:o}", "field",
                                                       text_or_null(change[i].field), "before",
                                                       text_or_null(change[i].before), "after",
                                                       text_or_null(change[i].after))) != 0;
        (*n_changed)++;
    }
    if (!failed) text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

/* *is_good is set to 0 for anything but a text without NUL bytes or null. */
static const char *take_text(int *is_good, sy_arena *arena, const json_t *value)
{
    const char *text = json_string_value(value);
    char *copy;

    if (json_is_null(value)) return NULL;
    if (text == NULL || strlen(text) != json_string_length(value)) {
        *is_good = 0;
        return NULL;
    }
    copy = sy_arena_strndup(arena, text, strlen(text));
    if (copy == NULL) *is_good = 0;
    return copy;
}

static sy_status take_changes(const tool_field_change **out, size_t *n, sy_arena *arena,
                              const json_t *list)
{
    const size_t n_items = json_array_size(list);
    tool_field_change *change;
    int is_good = json_is_array(list) && n_items <= HISTORY_FIELDS_MAX;

    if (!is_good) return SY_EINVAL;
    change = sy_arena_calloc(arena, n_items + 1, sizeof(*change));
    if (change == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < n_items && is_good; i++) {
        const json_t *item = json_array_get(list, i);

        change[i].field = take_text(&is_good, arena, json_object_get(item, "field"));
        change[i].before = take_text(&is_good, arena, json_object_get(item, "before"));
        change[i].after = take_text(&is_good, arena, json_object_get(item, "after"));
        if (change[i].field == NULL) is_good = 0;
    }
    if (!is_good) return SY_EINVAL;
    *out = change;
    *n = n_items;
    return SY_OK;
}

sy_status history_changes_parse(const tool_field_change **out, size_t *n, sy_arena *arena,
                                const char *text, size_t text_bytes)
{
    json_t *list = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    sy_status st;

    *out = NULL;
    *n = 0;
    if (list == NULL) return SY_EINVAL;
    st = take_changes(out, n, arena, list);
    json_decref(list);
    return st;
}

/* ---- entries ---- */

static const char *copy_reply(sy_arena *arena, const redisReply *text)
{
    return sy_arena_strndup(arena, text->str, strnlen(text->str, text->len));
}

static sy_status take_pair(history_entry *entry, sy_arena *arena, const redisReply *name,
                           const redisReply *value)
{
    const struct {
        const char *name;
        const char **to;
    } text[] = {
        {"author", &entry->author}, {"reason", &entry->reason}, {"command", &entry->command}};

    if (name->type != REDIS_REPLY_STRING || value->type != REDIS_REPLY_STRING) return SY_OK;
    for (size_t i = 0; i < SY_COUNT_OF(text); i++) {
        if (strcmp(name->str, text[i].name) != 0) continue;
        *text[i].to = copy_reply(arena, value);
        if (*text[i].to == NULL) return SY_ENOMEM;
    }
    if (strcmp(name->str, "fields") == 0) entry->n_fields = strtoul(value->str, NULL, 10);
    if (strcmp(name->str, "changes") == 0 &&
        history_changes_parse(&entry->change, &entry->n, arena, value->str, value->len) ==
            SY_ENOMEM) {
        return SY_ENOMEM;
    }
    return SY_OK;
}

static sy_status take_entry(history *out, const redisReply *item)
{
    SY_ASSERT(out->entry != NULL);
    history_entry *entry = &out->entry[out->n];
    const redisReply *pairs = item->elements == 2 ? item->element[1] : NULL;
    sy_status st = SY_OK;

    if (item->type != REDIS_REPLY_ARRAY || pairs == NULL || pairs->type != REDIS_REPLY_ARRAY ||
        item->element[0]->type != REDIS_REPLY_STRING) {
        return SY_OK;
    }
    *entry = (history_entry){.author = "", .reason = "", .command = ""};
    entry->id = copy_reply(&out->arena, item->element[0]);
    if (entry->id == NULL) return SY_ENOMEM;
    entry->at_us = SY_MIN(strtoll(entry->id, NULL, 10), INT64_MAX / 1000) * 1000;
    for (size_t i = 0; i + 1 < pairs->elements; i += 2) {
        SY_TRY(take_pair(entry, &out->arena, pairs->element[i], pairs->element[i + 1]));
    }
    if (entry->change != NULL) entry->n_fields = entry->n;
    out->n++;
out:
    return st;
}

/* Appends one command's worth. *is_end: there are no more. */
static sy_status read_some(history *out, int *is_end, tool_redis *redis, const char *key,
                           const char *from, size_t count, sy_error *err)
{
    char limit[24];
    redisReply *reply = NULL;
    sy_status st;

    snprintf(limit, sizeof(limit), "%zu", count);
    SY_TRY(tool_redis_ask(&reply, redis, 6,
                          (const char *[]){"XREVRANGE", key, from, "-", "COUNT", limit}, NULL,
                          err));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements > count) {
        st = tool_redis_odd(redis, "XREVRANGE", err);
        goto out;
    }
    *is_end = reply->elements < count;
    for (size_t i = 0; i < reply->elements && st == SY_OK; i++) {
        st = take_entry(out, reply->element[i]);
    }
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the history");
out:
    if (reply != NULL) freeReplyObject(reply);
    return st;
}

sy_status history_read(history *out, tool_redis *redis, const char *model, size_t count,
                       const char *older_than, sy_error *err)
{
    char key[KEY_BYTES];
    char from[TOOL_ENTRY_ID_BYTES + 2] = "+";
    int is_end = 0;
    sy_status st;

    memset(out, 0, sizeof(*out));
    sy_arena_init(&out->arena, HISTORY_BYTES_MAX);
    SY_TRY(tool_key_history(key, sizeof(key), model));
    out->entry = sy_arena_calloc(&out->arena, count + 1, sizeof(*out->entry));
    st = out->entry != NULL ? SY_OK : sy_error_set(err, SY_ENOMEM, "no memory for the history");
    if (older_than != NULL) snprintf(from, sizeof(from), "(%s", older_than);
    while (st == SY_OK && !is_end && out->n < count) {
        const size_t n_before = out->n;

        st = read_some(out, &is_end, redis, key, from,
                       SY_MIN(count - out->n, (size_t)ENTRIES_A_COMMAND), err);
        if (out->n == n_before) break;
        snprintf(from, sizeof(from), "(%s", out->entry[out->n - 1].id);
    }
out:
    if (st != SY_OK) history_free(out);
    return st;
}

void history_free(history *h)
{
    sy_arena_free(&h->arena);
    h->entry = NULL;
    h->n = 0;
}

const tool_field_change *history_find(const history_entry **who, const history *h,
                                      const char *field)
{
    for (size_t i = 0; i < h->n; i++) {
        for (size_t j = 0; j < h->entry[i].n; j++) {
            if (strcmp(h->entry[i].change[j].field, field) != 0) continue;
            *who = &h->entry[i];
            return &h->entry[i].change[j];
        }
    }
    return NULL;
}
