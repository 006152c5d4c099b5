/* cmd_placement_history.c - `switchyard placement history|rollback`. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "placement_commands.h"
#include "placement_commit.h"
#include "placement_undo.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

#define SHOWN_CHANGES_MAX 8
#define UNDO_MAX          1000

/* ---- history ---- */

static json_t *text_or_null(const char *text)
{
    return text != NULL ? tool_json_text(text, strlen(text)) : json_null();
}

static json_t *entry_json(const history_entry *e)
{
    json_t *changes = e->change != NULL ? json_array() : json_null();
    char at[TOOL_TIME_BYTES];

    for (size_t i = 0; e->change != NULL && i < e->n; i++) {
        json_array_append_new(changes, json_pack("{s:o, s:o, s:o}", "field",
                                                 text_or_null(e->change[i].field), "before",
                                                 text_or_null(e->change[i].before), "after",
                                                 text_or_null(e->change[i].after)));
    }
    return json_pack("{s:o, s:s, s:I, s:o, s:o, s:o, s:I, s:o}", "id", text_or_null(e->id), "time",
                     tool_time_show(at, e->at_us), "time_us", (json_int_t)e->at_us, "author",
                     text_or_null(e->author), "reason", text_or_null(e->reason), "command",
                     text_or_null(e->command), "fields", (json_int_t)e->n_fields, "changes",
                     changes);
}

static int print_history_json(const history *h, const char *model)
{
    json_t *entries = json_array();

    for (size_t i = 0; i < h->n; i++) json_array_append_new(entries, entry_json(&h->entry[i]));
    return tool_json_print(
        json_pack("{s:o, s:o}", "model", text_or_null(model), "entries", entries));
}

static int print_history(const history *h)
{
    char at[TOOL_TIME_BYTES];

    for (size_t i = 0; i < h->n; i++) {
        const history_entry *e = &h->entry[i];

        printf("%s  %s  %s: %s\n    %s\n", tool_shown(e->id), tool_time_show(at, e->at_us),
               tool_shown(e->author), tool_shown(e->reason), tool_shown(e->command));
        for (size_t j = 0; j < e->n && j < SHOWN_CHANGES_MAX; j++) {
            printf("    %s: %s -> %s\n", tool_shown(e->change[j].field),
                   tool_shown(e->change[j].before), tool_shown(e->change[j].after));
        }
        if (e->n > SHOWN_CHANGES_MAX) {
            printf("    ... %zu fields in all\n", e->n);
        } else if (e->change == NULL && e->n_fields > 0) {
            printf("    %zu fields, too many to be kept one by one\n", e->n_fields);
        }
    }
    if (h->n == 0) printf("no entries\n");
    return tool_flush_stdout();
}

int cmd_placement_history(int argc, char **argv)
{
    place_options where = {0};
    int64_t n = 20;
    int json = 0;
    const sy_arg args[] = {
        PLACE_ARGS(where),
        {"n", "N", "the newest so many entries", SY_ARG_INT, &n, 1, 10000},
        {"json", NULL, "print JSON, with every field of every entry", SY_ARG_FLAG, &json, 0, 0},
    };
    history h = {0};
    place p = {0};
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    /* `-n 5`, as other tools spell it. */
    for (int i = 1; i < argc; i++) {
        static char option[] = "--n";

        if (strcmp(argv[i], "-n") == 0) argv[i] = option;
    }
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard placement history [-n N] (--dir RUNDIR | --redis URL) "
                      "[options]\n\n"
                      "Who changed what, when and why, newest first.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    st = place_open(&p, &where, &err);
    if (st == SY_OK) st = history_read(&h, p.redis, p.model, (size_t)n, NULL, &err);
    if (st != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = json ? print_history_json(&h, p.model) : print_history(&h);
    }
    history_free(&h);
    place_close(&p);
    return code;
}

/* ---- rollback ---- */

typedef struct rollback {
    place_options where;
    commit_options commit;
    const char *to_hash;
    const char *until; /* the positional argument: a count, or an entry's id */
    place p;
    history h;
    field_map *map;
    size_t n_undone;
    sy_strbuf ids;
} rollback;

static sy_status undo_one(rollback *r, const history_entry *entry, sy_error *err)
{
    sy_status st;

    SY_TRY(undo_entry(r->map, entry, r->commit.force, err));
    if (r->n_undone < 8) {
        sy_strbuf_printf(&r->ids, "%s%s", r->n_undone > 0 ? ", " : "", entry->id);
    }
    if (r->n_undone++ == 8) sy_strbuf_puts(&r->ids, " and earlier ones");
out:
    return st;
}

static sy_status undo_count(rollback *r, size_t n, sy_error *err)
{
    sy_status st = SY_OK;

    if (r->h.n < n) {
        return sy_error_set(err, SY_ENOTFOUND,
                            "the history has %zu entries, and %zu were to be "
                            "undone",
                            r->h.n, n);
    }
    for (size_t i = 0; i < n; i++) SY_TRY(undo_one(r, &r->h.entry[i], err));
out:
    return st;
}

/* To before the entry with this id, which is undone as well. */
static sy_status undo_until_id(rollback *r, sy_error *err)
{
    size_t n = 0;

    while (n < r->h.n && strcmp(r->h.entry[n].id, r->until) != 0) n++;
    if (n == r->h.n) {
        return sy_error_set(err, SY_ENOTFOUND,
                            "the newest %zu entries of the history have no id %s: see switchyard "
                            "placement history",
                            r->h.n, tool_shown(r->until));
    }
    return undo_count(r, n + 1, err);
}

static sy_status has_hash(int *is_it, rollback *r, sy_error *err)
{
    sy_snapshot *snapshot = NULL;
    char hash[20];
    sy_status st;

    SY_TRY(field_map_snapshot(&snapshot, r->map, FIELD_AFTER, &r->p.grid, err));
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(snapshot));
    *is_it = strcasecmp(hash, r->to_hash) == 0;
out:
    sy_snapshot_unref(snapshot);
    return st;
}

static sy_status undo_until_hash(rollback *r, sy_error *err)
{
    int is_it = 0;
    sy_status st;

    SY_TRY(has_hash(&is_it, r, err));
    for (size_t i = 0; !is_it; i++) {
        if (i == r->h.n) {
            return sy_error_set(err, SY_ENOTFOUND,
                                "undoing the newest %zu entries of the history does not lead to a "
                                "placement with hash %s",
                                r->h.n, tool_shown(r->to_hash));
        }
        SY_TRY(undo_one(r, &r->h.entry[i], err));
        SY_TRY(has_hash(&is_it, r, err));
    }
out:
    return st;
}

static sy_status undo(rollback *r, sy_error *err)
{
    const char *until = r->until != NULL ? r->until : "1";
    const size_t n_digits = strspn(until, "0123456789");
    const int is_count = until[n_digits] == '\0' && n_digits > 0 && n_digits < 5;
    sy_status st;

    SY_TRY(place_open(&r->p, &r->where, err));
    SY_TRY(place_read(&r->map, &r->p, err));
    SY_TRY(history_read(&r->h, r->p.redis, r->p.model, UNDO_MAX, NULL, err));
    if (r->to_hash != NULL) {
        st = undo_until_hash(r, err);
    } else if (is_count) {
        st = undo_count(r, strtoul(until, NULL, 10), err);
    } else {
        st = undo_until_id(r, err);
    }
out:
    return st;
}

static int undo_and_commit(rollback *r)
{
    const char *words[] = {r->to_hash != NULL ? "--to-hash" : NULL,
                           r->to_hash != NULL ? r->to_hash : r->until};
    const int first = r->to_hash != NULL ? 0 : 1;
    char *command = commit_command("switchyard placement rollback", words + first,
                                   words[1] != NULL ? (size_t)(2 - first) : 0);
    sy_error err;
    char reason[400];
    int code;
    sy_status st;

    sy_error_clear(&err);
    sy_strbuf_init(&r->ids);
    st = undo(r, &err);
    snprintf(reason, sizeof(reason), "rollback of %s%s%s", r->ids.data,
             r->commit.reason != NULL ? ": " : "",
             r->commit.reason != NULL ? r->commit.reason : "");
    r->commit.reason = reason;
    r->commit.command = command != NULL ? command : "switchyard placement rollback";
    if (st == SY_OK && !r->commit.json) {
        printf("undoing %zu entries of the history: %s\n", r->n_undone, tool_shown(r->ids.data));
    }
    code = st == SY_OK ? placement_commit(&r->p, r->map, &r->commit) : tool_fail(&err);
    field_map_close(r->map);
    history_free(&r->h);
    sy_strbuf_free(&r->ids);
    free(command);
    place_close(&r->p);
    return code;
}

int cmd_placement_rollback(int argc, char **argv)
{
    rollback r = {.commit = {.timeout_s = COMMIT_TIMEOUT_S}};
    const sy_arg args[] = {
        PLACE_ARGS(r.where),
        {"to-hash", "HASH", "undo until the placement has this hash", SY_ARG_STRING, &r.to_hash, 0,
         0},
        {"force", NULL, "also fields that somebody changed since", SY_ARG_FLAG, &r.commit.force, 0,
         0},
        {"reason", "TEXT", "why, for the history", SY_ARG_STRING, &r.commit.reason, 0, 0},
        WAIT_ARGS(r.commit),
    };
    size_t n_words = 0;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard placement rollback [N | ID] (--dir RUNDIR | --redis URL) [options]\n\n"
        "Undoes the newest N entries of the history (default 1), or all down to the entry ID, that "
        "one\nincluded. Fields that have changed since, with or without this tool, are not "
        "overwritten: nothing\nis written then. A rollback is an entry itself, so undoing it "
        "brings back what it took away.",
        &r.until, 1, &n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (r.to_hash != NULL && n_words > 0) {
        return tool_bad_option("placement rollback: either N, or ID, or --to-hash HASH");
    }
    return undo_and_commit(&r);
}
