/* canary_state.c - JSON, and the hash in Redis. */
#include "canary_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <jansson.h>

#include "sy_clock.h"
#include "sy_strbuf.h"
#include "tool_report.h"
#include "tool_text.h"

#define KEY_BYTES       256
#define LIST_BYTES_MAX  ((size_t)256 << 20)
#define CANARIES_MAX    4096
#define WRITE_TRIES_MAX 8

static const char *const wish_name[] = {
    [CANARY_NO_WISH] = "", [CANARY_WISH_PROMOTE] = "promote", [CANARY_WISH_ABORT] = "abort"};

static canary_wish wish_named(const char *name)
{
    for (size_t i = 0; i < SY_COUNT_OF(wish_name); i++) {
        if (strcmp(name, wish_name[i]) == 0) return (canary_wish)i;
    }
    return CANARY_NO_WISH;
}

/* ---- JSON ---- */

static json_t *text_or_null(const char *text)
{
    return text != NULL ? tool_json_text(text, strlen(text)) : json_null();
}

char *canary_state_text(const canary_state *s)
{
    const canary_limits *l = &s->limits;
    json_t *fields = json_array();
    json_t *state;
    char *text = NULL;

    for (size_t i = 0; i < s->n; i++) {
        json_array_append_new(fields, json_pack("{s:o, s:o, s:o, s:o}", "field",
                                                text_or_null(s->field[i].field), "from",
                                                text_or_null(s->field[i].from), "old",
                                                text_or_null(s->field[i].old), "value",
                                                text_or_null(s->field[i].value)));
    }
    state = json_pack(
        "{s:o, s:o, s:i, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:f, s:f, s:I, s:I, s:I, s:I, "
        "s:b, "
        "s:o}",
        "from", text_or_null(s->n > 0 ? s->field[0].from : NULL), "to", text_or_null(s->to),
        "share", (int)s->share, "phase", canary_phase_name(s->phase), "started_us",
        (json_int_t)s->started_us, "phase_us", (json_int_t)s->phase_us, "until_us",
        (json_int_t)s->phase_us + l->for_us, "beat_us", (json_int_t)s->beat_us, "author",
        text_or_null(s->author), "wish", text_or_null(s->wish), "max_errors",
        (json_int_t)l->max_errors, "max_latency_ratio", l->max_latency_ratio, "max_diff",
        l->max_diff, "min_rows", (json_int_t)l->min_rows, "for_us", (json_int_t)l->for_us,
        "patience_us", (json_int_t)l->patience_us, "latency_slack_us",
        (json_int_t)l->latency_slack_us, "no_shadow", s->no_shadow, "fields", fields);
    if (state != NULL) text = json_dumps(state, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(state);
    return text;
}

typedef struct reader {
    sy_arena *arena;
    int failed; /* 1: it is not what was written; 2: no memory */
} reader;

static const char *take_text(reader *r, const json_t *object, const char *name, int may_be_null)
{
    const json_t *value = json_object_get(object, name);
    const char *text = json_string_value(value);
    const char *copy;

    if (may_be_null && json_is_null(value)) return NULL;
    if (text == NULL || strlen(text) != json_string_length(value)) {
        r->failed = SY_MAX(r->failed, 1);
        return "";
    }
    copy = sy_arena_strndup(r->arena, text, strlen(text));
    if (copy == NULL) r->failed = 2;
    return copy;
}

static int64_t take_int(reader *r, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > INT64_MAX / 4) {
        r->failed = SY_MAX(r->failed, 1);
        return 0;
    }
    return json_integer_value(value);
}

static double take_number(reader *r, const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        r->failed = SY_MAX(r->failed, 1);
    }
    return json_number_value(value);
}

static void take_fields(canary_state *out, reader *r, const json_t *list)
{
    const size_t n = json_array_size(list);

    if (n == 0 || n > CANARY_FIELDS_MAX) {
        r->failed = SY_MAX(r->failed, 1);
        return;
    }
    out->field = sy_arena_calloc(r->arena, n, sizeof(*out->field));
    if (out->field == NULL) {
        r->failed = 2;
        return;
    }
    for (; out->n < n; out->n++) {
        const json_t *item = json_array_get(list, out->n);
        canary_field *field = &out->field[out->n];

        field->field = take_text(r, item, "field", 0);
        field->from = take_text(r, item, "from", 1);
        field->old = take_text(r, item, "old", 0);
        field->value = take_text(r, item, "value", 1);
    }
}

static canary_phase take_phase(reader *r, const json_t *object)
{
    const char *name = take_text(r, object, "phase", 0);

    for (int i = 0; i < CANARY_N_PHASES && r->failed == 0; i++) {
        if (strcmp(canary_phase_name((canary_phase)i), name) == 0) return (canary_phase)i;
    }
    r->failed = SY_MAX(r->failed, 1);
    return CANARY_LOAD;
}

sy_status canary_state_parse(canary_state *out, sy_arena *arena, const char *name, const char *text,
                             size_t n)
{
    json_t *object = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    reader r = {.arena = arena};

    memset(out, 0, sizeof(*out));
    if (!json_is_object(object)) {
        json_decref(object);
        return SY_EINVAL;
    }
    out->name = sy_arena_strndup(arena, name, strlen(name));
    if (out->name == NULL) r.failed = 2;
    out->to = take_text(&r, object, "to", 0);
    out->author = take_text(&r, object, "author", 0);
    out->wish = take_text(&r, object, "wish", 0);
    out->phase = take_phase(&r, object);
    out->share = (uint32_t)SY_MIN(take_int(&r, object, "share"), (int64_t)100);
    out->started_us = take_int(&r, object, "started_us");
    out->phase_us = take_int(&r, object, "phase_us");
    out->beat_us = take_int(&r, object, "beat_us");
    out->limits.max_errors = (uint64_t)take_int(&r, object, "max_errors");
    out->limits.min_rows = (uint64_t)take_int(&r, object, "min_rows");
    out->limits.for_us = take_int(&r, object, "for_us");
    out->limits.patience_us = take_int(&r, object, "patience_us");
    out->limits.latency_slack_us = take_int(&r, object, "latency_slack_us");
    out->limits.max_latency_ratio = take_number(&r, object, "max_latency_ratio");
    out->limits.max_diff = take_number(&r, object, "max_diff");
    out->no_shadow = json_is_true(json_object_get(object, "no_shadow"));
    take_fields(out, &r, json_object_get(object, "fields"));
    json_decref(object);
    if (r.failed == 2) return SY_ENOMEM;
    return r.failed == 0 ? SY_OK : SY_EINVAL;
}

/* ---- Redis ---- */

static sy_status canary_key(char key[KEY_BYTES], const char *model, sy_error *err)
{
    const int n = snprintf(key, KEY_BYTES, "switchyard:{%s}:canary", model);

    if (n > 0 && n < KEY_BYTES) return SY_OK;
    return sy_error_set(err, SY_EINVAL, "the name of the model is too long");
}

static int by_name(const void *a, const void *b)
{
    return strverscmp(((const canary_state *)a)->name, ((const canary_state *)b)->name);
}

sy_status canary_list_read(canary_list *out, tool_redis *redis, const char *model, sy_error *err)
{
    char key[KEY_BYTES];
    redisReply *reply = NULL;
    sy_status st;

    memset(out, 0, sizeof(*out));
    sy_arena_init(&out->arena, LIST_BYTES_MAX);
    SY_TRY(canary_key(key, model, err));
    SY_TRY(tool_redis_ask(&reply, redis, 2, (const char *[]){"HGETALL", key}, NULL, err));
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements > 2 * CANARIES_MAX) {
        st = tool_redis_odd(redis, "HGETALL", err);
        goto out;
    }
    out->state = sy_arena_calloc(&out->arena, reply->elements / 2 + 1, sizeof(*out->state));
    st = out->state != NULL ? SY_OK : SY_ENOMEM;
    for (size_t i = 0; i + 1 < reply->elements && st == SY_OK; i += 2) {
        const redisReply *name = reply->element[i];
        const redisReply *text = reply->element[i + 1];

        if (name->type != REDIS_REPLY_STRING || text->type != REDIS_REPLY_STRING) continue;
        st = canary_state_parse(&out->state[out->n], &out->arena, name->str, text->str, text->len);
        out->n += st == SY_OK;
        out->n_odd += st == SY_EINVAL;
        if (st == SY_EINVAL) st = SY_OK;
    }
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the canaries");
    if (out->state != NULL && out->n > 1) qsort(out->state, out->n, sizeof(*out->state), by_name);
out:
    if (reply != NULL) freeReplyObject(reply);
    if (st != SY_OK) canary_list_free(out);
    return st;
}

void canary_list_free(canary_list *list)
{
    sy_arena_free(&list->arena);
    memset(list, 0, sizeof(*list));
}

const canary_state *canary_find(const canary_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->state[i].name, name) == 0) return &list->state[i];
    }
    return NULL;
}

int canary_is_watched(const canary_state *state, int64_t now_us)
{
    return now_us - state->beat_us < CANARY_DEAD_US;
}

/* What an edit of one entry makes of it. before: NULL when there is none. *after: the caller frees
 * it. */
typedef sy_status entry_fn(char **after, const canary_state *before, void *arg, sy_error *err);

/* Reads, edits and writes one entry, again if somebody else wrote to the hash meanwhile. */
static sy_status edit_entry(tool_redis *redis, const char *model, const char *name, entry_fn *fn,
                            void *arg, sy_error *err)
{
    char key[KEY_BYTES];
    sy_status st;

    SY_TRY(canary_key(key, model, err));
    for (int i = 0; i < WRITE_TRIES_MAX; i++) {
        canary_list list = {0};
        redisReply *reply = NULL;
        char *text = NULL;
        int is_done = 0;

        st = tool_redis_tell(redis, 2, (const char *[]){"WATCH", key}, err);
        if (st == SY_OK) st = canary_list_read(&list, redis, model, err);
        if (st == SY_OK) st = fn(&text, canary_find(&list, name), arg, err);
        if (st == SY_OK) st = tool_redis_tell(redis, 1, (const char *[]){"MULTI"}, err);
        if (st == SY_OK) {
            st = tool_redis_tell(redis, 4, (const char *[]){"HSET", key, name, text}, err);
        }
        if (st == SY_OK) {
            st = tool_redis_ask(&reply, redis, 1, (const char *[]){"EXEC"}, NULL, err);
        }
        is_done = reply != NULL && reply->type != REDIS_REPLY_NIL;
        if (reply != NULL) freeReplyObject(reply);
        canary_list_free(&list);
        free(text);
        if (st != SY_OK) {
            /* The connection may be anywhere between WATCH and EXEC. */
            (void)!tool_redis_tell(redis, 1, (const char *[]){"DISCARD"}, NULL);
            (void)!tool_redis_tell(redis, 1, (const char *[]){"UNWATCH"}, NULL);
        }
        if (st != SY_OK || is_done) return st;
    }
    st = sy_error_set(err, SY_EUNAVAILABLE, "others write to %s all the time", key);
out:
    return st;
}

typedef struct write_arg {
    const canary_state *state;
    int must_be_new;
    canary_wish wish;
} write_arg;

static sy_status write_entry(char **after, const canary_state *before, void *arg, sy_error *err)
{
    write_arg *w = arg;
    canary_state state = *w->state;

    if (w->must_be_new && before != NULL && canary_is_watched(before, sy_clock_wall_us())) {
        return sy_error_set(err, SY_EEXISTS,
                            "a canary of %s to %s runs already, started by %s: see switchyard "
                            "canary status",
                            tool_shown(before->name), tool_shown(before->to),
                            tool_shown(before->author));
    }
    if (w->must_be_new && before != NULL) {
        return sy_error_set(err, SY_EEXISTS,
                            "a canary of %s to %s was begun by %s, and nobody watches it any more: "
                            "switchyard canary watch, promote or abort it first",
                            tool_shown(before->name), tool_shown(before->to),
                            tool_shown(before->author));
    }
    state.wish = before != NULL ? before->wish : "";
    w->wish = wish_named(state.wish);
    *after = canary_state_text(&state);
    return *after != NULL ? SY_OK : sy_error_set(err, SY_ENOMEM, "no memory for the canary");
}

sy_status canary_state_write(tool_redis *redis, const char *model, const canary_state *state,
                             int must_be_new, canary_wish *wish, sy_error *err)
{
    write_arg w = {.state = state, .must_be_new = must_be_new};
    const sy_status st = edit_entry(redis, model, state->name, write_entry, &w, err);

    *wish = w.wish;
    return st;
}

static sy_status wish_entry(char **after, const canary_state *before, void *arg, sy_error *err)
{
    canary_state state;

    if (before == NULL) return sy_error_set(err, SY_ENOTFOUND, "there is no such canary");
    state = *before;
    state.wish = arg;
    *after = canary_state_text(&state);
    return *after != NULL ? SY_OK : sy_error_set(err, SY_ENOMEM, "no memory for the canary");
}

sy_status canary_state_wish(tool_redis *redis, const char *model, const char *name,
                            const char *wish, sy_error *err)
{
    char copy[16];

    snprintf(copy, sizeof(copy), "%s", wish);
    return edit_entry(redis, model, name, wish_entry, copy, err);
}

sy_status canary_state_remove(tool_redis *redis, const char *model, const char *name, sy_error *err)
{
    char key[KEY_BYTES];
    sy_status st;

    SY_TRY(canary_key(key, model, err));
    SY_TRY(tool_redis_tell(redis, 3, (const char *[]){"HDEL", key, name}, err));
out:
    return st;
}
