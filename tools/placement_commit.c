/* placement_commit.c - see the header. */
#include "placement_commit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "sy_clock.h"
#include "tool_pause.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

#define SHOWN_FIELDS_MAX  20
#define COMMAND_BYTES_MAX 480

typedef struct commit {
    place *p;
    const commit_options *options;
    const tool_field_change *change;
    size_t n, n_changed;
    char entry_id[TOOL_ENTRY_ID_BYTES];
    sy_snapshot *before, *after;
    wait_list list;
    wait_view view;
    int64_t waited_us;
} commit;

char *commit_command(const char *name, const char *const *word, size_t n)
{
    sy_strbuf text;

    sy_strbuf_init(&text);
    sy_strbuf_puts(&text, name);
    for (size_t i = 0; i < n; i++) {
        const char *quote = strchr(word[i], ' ') != NULL ? "'" : "";

        if (text.len + strlen(word[i]) > COMMAND_BYTES_MAX) {
            sy_strbuf_puts(&text, " ...");
            break;
        }
        sy_strbuf_printf(&text, " %s%s%s", quote, word[i], quote);
    }
    return sy_strbuf_detach(&text);
}

static int is_change(const tool_field_change *c)
{
    if (c->before == NULL || c->after == NULL) return c->before != c->after;
    return strcmp(c->before, c->after) != 0;
}

/* ---- what is said ---- */

static void print_changes(const commit *c)
{
    size_t n_shown = 0;

    for (size_t i = 0; i < c->n && n_shown < SHOWN_FIELDS_MAX; i++) {
        const tool_field_change *change = &c->change[i];

        if (!is_change(change)) continue;
        printf("%s: was %s, is now %s\n", tool_shown(change->field), tool_shown(change->before),
               tool_shown(change->after));
        n_shown++;
    }
    if (n_shown < c->n_changed) printf("... and %zu more fields\n", c->n_changed - n_shown);
    if (c->n_changed == 0) {
        printf("nothing to do: the placement is so already\n");
    } else {
        printf("history: %s\n", c->entry_id);
    }
    fflush(stdout);
}

static json_t *text_or_null(const char *text)
{
    return text != NULL ? tool_json_text(text, strlen(text)) : json_null();
}

static int print_json(const commit *c, int is_waited)
{
    json_t *changes = json_array();
    char hash[20];

    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(c->after));
    for (size_t i = 0; i < c->n; i++) {
        if (!is_change(&c->change[i])) continue;
        json_array_append_new(changes, json_pack("{s:o, s:o, s:o}", "field",
                                                 text_or_null(c->change[i].field), "before",
                                                 text_or_null(c->change[i].before), "after",
                                                 text_or_null(c->change[i].after)));
    }
    return tool_json_print(json_pack("{s:o, s:s, s:s, s:I, s:b, s:f}", "changes", changes, "entry",
                                     c->entry_id, "hash", hash, "loads", (json_int_t)c->list.n,
                                     "waited", is_waited, "waited_s", (double)c->waited_us / 1e6));
}

/* ---- doing ---- */

static int is_among(const commit *c, const char *field)
{
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->change[i].field, field) == 0) return 1;
    }
    return 0;
}

/* Whoever asks again for what is there already waits for what the fields want, be it new or not. */
static sy_status list_all_wants(commit *c, const field_map *map, sy_error *err)
{
    size_t n_kept = 0;
    sy_status st;

    SY_TRY(wait_list_between(&c->list, NULL, c->after, err));
    for (size_t i = 0; i < c->list.n; i++) {
        const wait_want *want = &c->list.want[i];
        const char *speaker = field_map_speaker(map, want->layer, want->expert, FIELD_AFTER);

        if (speaker != NULL && is_among(c, speaker)) c->list.want[n_kept++] = *want;
    }
    c->list.n = n_kept;
out:
    return st;
}

static sy_status write_fields(commit *c, field_map *map, sy_error *err)
{
    const place *p = c->p;
    sy_status st;

    SY_TRY(field_map_changes(&c->change, &c->n, map));
    const tool_edit edit = {.model = p->model,
                            .change = c->change,
                            .n = c->n,
                            .force = c->options->force,
                            .reason = c->options->reason,
                            .command = c->options->command};

    for (size_t i = 0; i < c->n; i++) c->n_changed += (size_t)is_change(&c->change[i]);
    SY_TRY(field_map_snapshot(&c->before, map, FIELD_BEFORE, &p->grid, err));
    SY_TRY(field_map_snapshot(&c->after, map, FIELD_AFTER, &p->grid, err));
    if (c->n_changed > 0) {
        SY_TRY(wait_list_between(&c->list, c->before, c->after, err));
    } else {
        SY_TRY(list_all_wants(c, map, err));
    }
    SY_TRY(tool_redis_change(p->redis, &edit, c->entry_id, err));
out:
    if (st == SY_ENOMEM) sy_error_set(err, st, "no memory for the edit");
    return st;
}

static sy_status wait_for(commit *c, sy_error *err)
{
    const int64_t began_us = sy_clock_us();
    sy_status st;

    SY_TRY(tool_pause_open(err));
    st = placement_wait(&c->view, c->p, &c->list, c->options->also, c->options->also_arg,
                        c->options->timeout_s * 1000000, err);
    tool_pause_close();
    c->waited_us = sy_clock_us() - began_us;
    if (st == SY_OK && !c->options->json) {
        printf("all %zu processes have it in force, and %zu shards that it wants there are "
               "resident (%.1f s)\n",
               c->view.n_processes, c->view.n_resident, (double)c->waited_us / 1e6);
        if (c->options->done != NULL) printf("%s\n", c->options->done);
    }
out:
    return st;
}

int placement_commit(place *p, field_map *map, const commit_options *options)
{
    commit c = {.p = p, .options = options};
    sy_error err;
    int code = 0;
    sy_status st;

    sy_error_clear(&err);
    st = write_fields(&c, map, &err);
    if (st == SY_OK && !options->json) print_changes(&c);
    if (st == SY_OK && options->wait) st = wait_for(&c, &err);
    if (st != SY_OK) {
        code = wait_exit_code(&err);
    } else if (options->json) {
        code = print_json(&c, options->wait);
    } else {
        code = tool_flush_stdout();
    }
    free(c.list.want);
    sy_snapshot_unref(c.before);
    sy_snapshot_unref(c.after);
    return code;
}
