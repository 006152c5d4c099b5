/* tool_change.c - edits of placement: WATCH, compare, MULTI, write, EXEC. The history's entry is
 * written in the same transaction, so it neither misses an edit nor tells of one that was not made.
 */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "placement_history.h"
#include "tool_text.h"

#define KEY_BYTES        256
#define FIELDS_A_COMMAND 256     /* of an HSET or HDEL */
#define HISTORY_MAX      "10000" /* entries, roughly: older ones are forgotten */
#define TRIES_MAX        16      /* while others change other fields of the same hash */
#define LOOK_BACK        64      /* entries in which the one who came first is looked for */
#define EDIT_BYTES_MAX   ((size_t)256 << 20)

/* One try of an edit. */
typedef struct attempt {
    tool_redis *redis;
    const tool_edit *edit;
    char key[KEY_BYTES], history_key[KEY_BYTES];
    tool_hash hash;            /* what is there, sorted by field */
    uint8_t *is_named;         /* [hash.n]: among the changes */
    tool_field_change *change; /* [n] what really happens: before is what is there */
    size_t n, n_changed;
    char *changes_json;
    sy_arena arena;
    int is_queueing; /* between MULTI and EXEC */
} attempt;

const char *tool_author(char out[TOOL_AUTHOR_BYTES])
{
    const struct passwd *user = getpwuid(geteuid());
    char host[64] = "";

    gethostname(host, sizeof(host) - 1);
    if (user != NULL) {
        snprintf(out, TOOL_AUTHOR_BYTES, "%s@%s", user->pw_name, host);
    } else {
        snprintf(out, TOOL_AUTHOR_BYTES, "%lu@%s", (unsigned long)geteuid(), host);
    }
    return out;
}

sy_status tool_key_history(char *out, size_t cap, const char *model)
{
    const int n = snprintf(out, cap, "switchyard:{%s}:history", model);

    return n >= 0 && (size_t)n < cap ? SY_OK : SY_ELIMIT;
}

/* ---- what is there ---- */

static int compare_bytes(const char *a, size_t n_a, const char *b, size_t n_b)
{
    const int order = memcmp(a, b, SY_MIN(n_a, n_b));

    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

static int by_field(const void *a, const void *b)
{
    const sy_placement_entry *left = a;
    const sy_placement_entry *right = b;

    return compare_bytes(left->field, left->field_len, right->field, right->field_len);
}

static const sy_placement_entry *find_entry(const attempt *a, const char *field)
{
    const sy_placement_entry wanted = {.field = field, .field_len = strlen(field)};

    return bsearch(&wanted, a->hash.entry, a->hash.n, sizeof(wanted), by_field);
}

static int entry_says(const sy_placement_entry *entry, const char *value)
{
    if (entry == NULL || value == NULL) return entry == NULL && value == NULL;
    return compare_bytes(entry->value, entry->value_len, value, strlen(value)) == 0;
}

/* ---- who came first ---- */

static sy_status fail_changed(attempt *a, const tool_field_change *change,
                              const sy_placement_entry *entry, sy_error *err)
{
    const history_entry *who = NULL;
    const tool_field_change *last = NULL;
    char now[160] = "not there";
    char author[80], reason[96], at[TOOL_TIME_BYTES];
    history h;

    if (entry != NULL) tool_text_show(now, sizeof(now), entry->value, entry->value_len);
    if (history_read(&h, a->redis, a->edit->model, LOOK_BACK, NULL, NULL) == SY_OK) {
        last = history_find(&who, &h, change->field);
    }
    if (last != NULL && entry_says(entry, last->after)) {
        sy_error_set(
            err, SY_EEXISTS,
            "PLACEMENT of %s was changed meanwhile by %s (%s) at %s: it is now %s; nothing "
            "was written",
            tool_shown(change->field),
            tool_text_show(author, sizeof(author), who->author, strlen(who->author)),
            tool_text_show(reason, sizeof(reason), who->reason, strlen(who->reason)),
            tool_time_show(at, who->at_us), now);
    } else {
        sy_error_set(err, SY_EEXISTS,
                     "PLACEMENT of %s was changed meanwhile by somebody who left no entry in the "
                     "history: it is now %s; nothing was written",
                     tool_shown(change->field), now);
    }
    sy_error_where(err, "PLACEMENT_CHANGED", -1, -1, NULL);
    history_free(&h);
    return SY_EEXISTS;
}

/* ---- comparing ---- */

static const char *copy_bytes(attempt *a, const char *bytes, size_t n)
{
    return sy_arena_strndup(&a->arena, bytes, strnlen(bytes, n));
}

static sy_status compare_one(attempt *a, const tool_field_change *wanted, sy_error *err)
{
    const sy_placement_entry *entry = find_entry(a, wanted->field);
    tool_field_change *change = &a->change[a->n++];

    *change = *wanted;
    if (entry != NULL) a->is_named[entry - a->hash.entry] = 1;
    if (entry_says(entry, wanted->before)) return SY_OK;
    if (!a->edit->force) return fail_changed(a, wanted, entry, err);
    change->before = NULL;
    if (entry == NULL) return SY_OK;
    change->before = copy_bytes(a, entry->value, entry->value_len);
    return change->before != NULL ? SY_OK : SY_ENOMEM;
}

/* What is in the hash and not among the changes goes as well. */
static sy_status add_replaced(attempt *a)
{
    for (size_t i = 0; i < a->hash.n; i++) {
        const sy_placement_entry *entry = &a->hash.entry[i];
        tool_field_change *change = &a->change[a->n];

        if (a->is_named[i]) continue;
        change->field = copy_bytes(a, entry->field, entry->field_len);
        change->before = copy_bytes(a, entry->value, entry->value_len);
        change->after = NULL;
        if (change->field == NULL || change->before == NULL) return SY_ENOMEM;
        a->n++;
    }
    return SY_OK;
}

static sy_status compare(attempt *a, sy_error *err)
{
    const tool_edit *edit = a->edit;
    sy_status st;

    SY_TRY(tool_redis_placement(&a->hash, a->redis, edit->model, err));
    if (edit->must_be_new && a->hash.n > 0) {
        return sy_error_set(err, SY_EEXISTS, "%s has %zu fields already", a->key, a->hash.n);
    }
    if (a->hash.n > 1) qsort(a->hash.entry, a->hash.n, sizeof(*a->hash.entry), by_field);
    a->is_named = sy_arena_calloc(&a->arena, a->hash.n + 1, 1);
    a->change = sy_arena_calloc(&a->arena, edit->n + a->hash.n + 1, sizeof(*a->change));
    if (a->is_named == NULL || a->change == NULL) return SY_ENOMEM;
    for (size_t i = 0; i < edit->n; i++) SY_TRY(compare_one(a, &edit->change[i], err));
    if (edit->replaces_all) SY_TRY(add_replaced(a));
    a->changes_json = history_changes_json(a->change, a->n, &a->n_changed);
    if (a->changes_json == NULL) return SY_ENOMEM;
out:
    return st;
}

/* ---- writing ---- */

static int is_changed(const tool_field_change *change)
{
    if (change->before == NULL || change->after == NULL) return change->before != change->after;
    return strcmp(change->before, change->after) != 0;
}

/* Queues the fields that get a value, or those that go. */
static sy_status put_fields(attempt *a, int is_set, sy_error *err)
{
    const char *argv[2 + 2 * FIELDS_A_COMMAND] = {is_set ? "HSET" : "HDEL", a->key};
    int argc = 2;
    sy_status st = SY_OK;

    for (size_t i = 0; i < a->n; i++) {
        if (!is_changed(&a->change[i]) || (a->change[i].after != NULL) != is_set) continue;
        argv[argc++] = a->change[i].field;
        if (is_set) argv[argc++] = a->change[i].after;
        if (argc + 1 < (int)SY_COUNT_OF(argv)) continue;
        SY_TRY(tool_redis_tell(a->redis, argc, argv, err));
        argc = 2;
    }
    if (argc > 2) SY_TRY(tool_redis_tell(a->redis, argc, argv, err));
out:
    return st;
}

static sy_status put_history(attempt *a, sy_error *err)
{
    const tool_edit *edit = a->edit;
    const int has_changes = strlen(a->changes_json) <= HISTORY_CHANGES_BYTES_MAX;
    char author[TOOL_AUTHOR_BYTES];
    char n_fields[24];
    const char *const name = edit->author != NULL ? edit->author : tool_author(author);
    const char *argv[] = {
        "XADD",    a->history_key, "MAXLEN",     "~",       HISTORY_MAX,   "*",      "author",
        name,      "reason",       edit->reason, "command", edit->command, "fields", n_fields,
        "changes", a->changes_json};

    snprintf(n_fields, sizeof(n_fields), "%zu", a->n_changed);
    return tool_redis_tell(a->redis, (int)SY_COUNT_OF(argv) - (has_changes ? 0 : 2), argv, err);
}

/* *is_lost: somebody wrote to the hash since it was read, and nothing took effect. */
static sy_status commit(attempt *a, int *is_lost, char *entry_id, sy_error *err)
{
    redisReply *reply;
    sy_status st = tool_redis_ask(&reply, a->redis, 1, (const char *[]){"EXEC"}, NULL, err);

    if (st == SY_EUNAVAILABLE) {
        sy_error_prefix(err,
                        "whether the edit was made is not known, so look at it with switchyard "
                        "placement history");
    }
    a->is_queueing = st == SY_EUNAVAILABLE;
    if (st != SY_OK) return st;
    *is_lost = reply->type == REDIS_REPLY_NIL;
    if (!*is_lost && (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)) {
        st = tool_redis_odd(a->redis, "EXEC", err);
    }
    for (size_t i = 0; st == SY_OK && !*is_lost && i < reply->elements; i++) {
        if (reply->element[i]->type == REDIS_REPLY_ERROR) {
            st = sy_error_set(err, SY_EPRECONDITION, "Redis refuses a part of the edit of %s: %s",
                              a->key, reply->element[i]->str);
        }
    }
    if (st == SY_OK && !*is_lost && entry_id != NULL) {
        const redisReply *last = reply->element[reply->elements - 1];

        if (last->type == REDIS_REPLY_STRING) {
            snprintf(entry_id, TOOL_ENTRY_ID_BYTES, "%s", last->str);
        }
    }
    freeReplyObject(reply);
    return st;
}

static sy_status try_once(attempt *a, int *is_lost, char *entry_id, sy_error *err)
{
    sy_status st;

    *is_lost = 0;
    SY_TRY(tool_redis_tell(a->redis, 2, (const char *[]){"WATCH", a->key}, err));
    SY_TRY(compare(a, err));
    if (a->n_changed == 0) goto out;
    SY_TRY(tool_redis_tell(a->redis, 1, (const char *[]){"MULTI"}, err));
    a->is_queueing = 1;
    SY_TRY(put_fields(a, 1, err));
    SY_TRY(put_fields(a, 0, err));
    SY_TRY(put_history(a, err));
    return commit(a, is_lost, entry_id, err);
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for an edit of the placement");
    return st;
}

/* Leaves the connection as it was found. */
static void end_attempt(attempt *a)
{
    const char *const command = a->is_queueing ? "DISCARD" : "UNWATCH";

    (void)!tool_redis_tell(a->redis, 1, (const char *[]){command}, NULL);
    free(a->changes_json);
    tool_hash_free(&a->hash);
    sy_arena_free(&a->arena);
}

sy_status tool_redis_change(tool_redis *redis, const tool_edit *edit,
                            char entry_id[TOOL_ENTRY_ID_BYTES], sy_error *err)
{
    int is_lost = 1;
    sy_status st = SY_OK;

    if (entry_id != NULL) entry_id[0] = '\0';
    for (int i = 0; i < TRIES_MAX && is_lost && st == SY_OK; i++) {
        attempt a = {.redis = redis, .edit = edit};

        if (sy_key_placement(a.key, sizeof(a.key), edit->model) != SY_OK ||
            tool_key_history(a.history_key, sizeof(a.history_key), edit->model) != SY_OK) {
            return sy_error_set(err, SY_EINVAL, "the name of the model is too long");
        }
        sy_arena_init(&a.arena, EDIT_BYTES_MAX);
        st = try_once(&a, &is_lost, entry_id, err);
        end_attempt(&a);
    }
    if (st == SY_OK && is_lost) {
        st = sy_error_set(err, SY_EUNAVAILABLE,
                          "others write to the placement of %s all the time, and nothing was "
                          "written: run the command again",
                          edit->model);
    }
    return st;
}
