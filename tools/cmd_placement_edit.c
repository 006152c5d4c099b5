/* cmd_placement_edit.c - `switchyard placement set|move`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "placement_commands.h"
#include "placement_commit.h"
#include "placement_move.h"
#include "target_edit.h"
#include "tool_print.h"
#include "tool_text.h"

#define WORDS_MAX 1024

typedef struct edit_options {
    place_options where;
    commit_options commit;
    const char *expected, *from, *to; /* --if, --from, --to */
    int64_t layer, count;
    const char *word[WORDS_MAX];
    size_t n_words;
} edit_options;

typedef sy_status edit_fn(place *p, field_map *map, const edit_options *o, sy_error *err);

/* Reads, edits in memory, writes what differs. */
static int run(const edit_options *o, const char *name, edit_fn *edit)
{
    commit_options options = o->commit;
    char *command = commit_command(name, o->word, o->n_words);
    field_map *map = NULL;
    place p;
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    st = place_open(&p, &o->where, &err);
    if (st == SY_OK) st = place_read(&map, &p, &err);
    if (st == SY_OK && p.is_guessed) {
        fprintf(stderr,
                "switchyard: the model's dimensions are not known, so they are not checked: "
                "give --model-dir DIR, or --layers L --experts E\n");
    }
    if (st == SY_OK) st = edit(&p, map, o, &err);
    if (options.reason == NULL) options.reason = "by hand";
    options.command = command != NULL ? command : name;
    code = st == SY_OK ? placement_commit(&p, map, &options) : tool_fail(&err);
    field_map_close(map);
    free(command);
    place_close(&p);
    return code;
}

/* ---- set ---- */

/* A field that Redis gets is one that every server takes. */
static sy_status check_field(const place *p, const char *field, const char *value, sy_error *err)
{
    sy_field f;
    sy_target_list list;
    sy_status st;

    SY_TRY(sy_field_parse(&f, field, strlen(field), place_bounds(p), err));
    SY_TRY(sy_targets_parse(&list, value, strlen(value), err));
out:
    if (st != SY_OK) {
        sy_error_prefix(err, "%s = '%s'", tool_shown(field), tool_shown(value));
    }
    return st;
}

static sy_status set_fields(place *p, field_map *map, const edit_options *o, sy_error *err)
{
    sy_status st = SY_OK;

    for (size_t i = 0; i + 1 < o->n_words; i += 2) {
        SY_TRY(check_field(p, o->word[i], o->word[i + 1], err));
        st = field_map_set(map, o->word[i], o->word[i + 1]);
        if (st == SY_OK && o->expected != NULL) {
            st = field_map_expect(map, o->word[i], *o->expected != '\0' ? o->expected : NULL);
        }
        if (st != SY_OK) return sy_error_set(err, st, "no memory for the edit");
    }
out:
    return st;
}

int cmd_placement_set(int argc, char **argv)
{
    edit_options o = {.commit = {.timeout_s = COMMIT_TIMEOUT_S}};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"reason", "TEXT", "why, for the history", SY_ARG_STRING, &o.commit.reason, 0, 0},
        {"if", "VALUE", "only if this is what each of the fields says now; '' for nothing",
         SY_ARG_STRING, &o.expected, 0, 0},
        WAIT_ARGS(o.commit),
    };
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard placement set FIELD VALUE [FIELD VALUE ...] (--dir RUNDIR | --redis URL) "
        "[options]\n\n"
        "Writes fields, all or none, unless somebody else changes one of them at the same moment; "
        "the\nexit code is then 1 and the text says who it was. FIELD: 3/17, 3/*, */17 or */*. "
        "VALUE:\n'expert-a/cpu:0', 'expert-a/cpu:0 expert-b/cpu:0', 'expert-a/cpu:0@95 "
        "expert-b/cpu:0@5',\n'expert-a/cpu:0 expert-b/cpu:0@shadow'.",
        o.word, WORDS_MAX, &o.n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (o.n_words == 0 || o.n_words % 2 != 0) {
        return tool_bad_option("placement set needs FIELD VALUE, or several such pairs");
    }
    return run(&o, "switchyard placement set", set_fields);
}

/* ---- move ---- */

static sy_status move_pattern(place *p, field_map *map, const edit_options *o, const char *field,
                              size_t n, const char *from, const char *to, size_t *n_moved,
                              sy_error *err)
{
    move_what what = {.grid = p->grid, .count = o->count};
    size_t n_here = 0;
    sy_status st;

    SY_TRY(sy_field_parse(&what.field, field, n, &p->grid, err));
    SY_TRY(target_parse(&what.from, from, err));
    SY_TRY(target_parse(&what.to, to, err));
    SY_TRY(placement_move(&n_here, map, &what, err));
    *n_moved += n_here;
    if (n_here == 0) {
        st = sy_error_set(err, SY_ENOTFOUND,
                          "no expert of %.*s is wanted on %s, so there is nothing to move",
                          (int)SY_MIN(n, (size_t)64), field, tool_shown(from));
    }
out:
    return st;
}

static sy_status move_experts(place *p, field_map *map, const edit_options *o, sy_error *err)
{
    char all[32];
    const char *list = o->n_words == 3 ? o->word[0] : all;
    const char *from = o->n_words == 3 ? o->word[1] : o->from;
    const char *to = o->n_words == 3 ? o->word[2] : o->to;
    size_t n_moved = 0;
    sy_status st = SY_OK;

    sy_field_format(all, sizeof(all),
                    (sy_field){o->layer >= 0 ? (int32_t)o->layer : SY_ANY, SY_ANY});
    for (const char *at = list + strspn(list, ", "); *at != '\0'; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ", ");

        SY_TRY(move_pattern(p, map, o, at, n, from, to, &n_moved, err));
        at += n;
    }
    if (!o->commit.json) printf("%zu experts move from %s to %s\n", n_moved, from, to);
out:
    return st;
}

int cmd_placement_move(int argc, char **argv)
{
    edit_options o = {.commit = {.timeout_s = COMMIT_TIMEOUT_S}, .layer = -1, .count = -1};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"from", "NODE/DEVICE", "where experts are, if no fields are named", SY_ARG_STRING, &o.from,
         0, 0},
        {"to", "NODE/DEVICE", "where they go", SY_ARG_STRING, &o.to, 0, 0},
        {"layer", "L", "only experts of this layer; -1: of all", SY_ARG_INT, &o.layer, -1,
         SY_LAYERS_MAX},
        {"count", "N", "only so many experts; -1: all", SY_ARG_INT, &o.count, -1, 1 << 24},
        {"reason", "TEXT", "why, for the history", SY_ARG_STRING, &o.commit.reason, 0, 0},
        WAIT_ARGS(o.commit),
    };
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard placement move FIELD[,FIELD...] FROM TO (--dir RUNDIR | --redis URL) "
        "[options]\n"
        "       switchyard placement move --from NODE/DEVICE --to NODE/DEVICE [--layer L] "
        "[--count N]\n\n"
        "Moves experts from one device to another. Other targets of an expert stay, and so do "
        "shares;\nwhere a wildcard speaks for more than what is moved, experts get fields of their "
        "own.",
        o.word, 3, &o.n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (o.n_words == 0 ? o.from == NULL || o.to == NULL
                       : o.n_words != 3 || o.from != NULL || o.to != NULL || o.layer >= 0) {
        return tool_bad_option("placement move needs FIELD FROM TO, or --from and --to");
    }
    return run(&o, "switchyard placement move", move_experts);
}
