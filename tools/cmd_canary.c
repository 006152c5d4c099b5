/* cmd_canary.c - `switchyard canary start|status|promote|abort|watch`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "canary_run.h"
#include "commands.h"
#include "placement_move.h"
#include "sy_clock.h"
#include "target_edit.h"
#include "tool_pause.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

#define STATE_BYTES_MAX ((size_t)64 << 20)
#define WISH_US         15000000 /* how long a watcher may take to see a wish and act */

typedef struct canary_options {
    place_options where;
    const char *field, *to, *duration, *patience;
    int64_t share, max_errors, min_rows, latency_slack_us;
    double max_latency_ratio, max_diff;
    int no_shadow, any_weights, json;
} canary_options;

/* ---- start: which fields ---- */

typedef struct starter {
    const canary_options *options;
    place *p;
    field_map *map;
    canary_state *state;
    sy_arena arena;
    sy_target to;
} starter;

static const char *keep(starter *s, const char *text)
{
    return sy_arena_strndup(&s->arena, text, strlen(text));
}

static sy_status add_expert(starter *s, uint32_t layer, uint32_t expert, sy_error *err)
{
    canary_state *state = s->state;
    canary_field *field = &state->field[state->n];
    char text[SY_PLACEMENT_VALUE_MAX];
    const char *speaker;
    const char *from;
    sy_target_list list;
    sy_status st;

    sy_field_format(text, sizeof(text), (sy_field){(int32_t)layer, (int32_t)expert});
    for (size_t i = 0; i < state->n; i++) {
        if (strcmp(state->field[i].field, text) == 0) return SY_OK; /* of two patterns */
    }
    if (placement_of_expert(&list, &speaker, s->map, layer, expert) != SY_OK) {
        return sy_error_set(err, SY_EPRECONDITION,
                            "%s has no target now, so there is nothing to "
                            "compare with",
                            text);
    }
    if (state->n == CANARY_FIELDS_MAX) {
        return sy_error_set(err, SY_ELIMIT, "a canary of more than %d experts", CANARY_FIELDS_MAX);
    }
    from = field_map_get(s->map, text, FIELD_BEFORE);
    field->field = keep(s, text);
    field->from = from != NULL ? keep(s, from) : NULL;
    SY_TRY(targets_text(text, &list, err));
    field->old = keep(s, text);
    if (field->field == NULL || field->old == NULL || (from != NULL && field->from == NULL)) {
        return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    }
    for (int phase = CANARY_LOAD; phase < CANARY_N_PHASES && st == SY_OK; phase++) {
        st = canary_value(text, state, field, (canary_phase)phase, err);
    }
    if (st == SY_OK) state->n++;
    if (st != SY_OK) sy_error_prefix(err, "%s = '%s'", field->field, tool_shown(field->old));
out:
    return st;
}

static sy_status add_pattern(starter *s, const char *text, size_t n, sy_error *err)
{
    sy_field field;
    sy_status st;

    SY_TRY(sy_field_parse(&field, text, n, &s->p->grid, err));
    const int is_pattern = field.layer == SY_ANY || field.expert == SY_ANY;

    for (uint32_t layer = 0; layer < s->p->grid.layers; layer++) {
        if (field.layer != SY_ANY && (uint32_t)field.layer != layer) continue;
        if (!sy_grid_has(&s->p->grid, layer)) continue;
        for (uint32_t expert = 0; expert < s->p->grid.experts; expert++) {
            if (field.expert != SY_ANY && (uint32_t)field.expert != expert) continue;
            st = add_expert(s, layer, expert, err);
            /* Of many experts, those that are there already have nothing to try. */
            if (st == SY_EEXISTS && is_pattern) {
                sy_error_clear(err);
                st = SY_OK;
            }
            if (st != SY_OK) return st;
        }
    }
out:
    return st;
}

static sy_status add_fields(starter *s, sy_error *err)
{
    const char *text = s->options->field;
    sy_status st = SY_OK;

    s->state->field = sy_arena_calloc(&s->arena, CANARY_FIELDS_MAX, sizeof(*s->state->field));
    if (s->state->field == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    for (const char *at = text + strspn(text, ", "); *at != '\0'; at += strspn(at, ", ")) {
        const size_t n = strcspn(at, ", ");

        SY_TRY(add_pattern(s, at, n, err));
        at += n;
    }
    if (s->state->n == 0)
        st = sy_error_set(err, SY_EINVAL, "--field %s names no expert that is not on %s already",
                          text, s->options->to);
out:
    return st;
}

static sy_status describe(starter *s, sy_error *err)
{
    const canary_options *o = s->options;
    canary_state *state = s->state;
    sy_target_list to = {.n = 1};
    char text[SY_PLACEMENT_VALUE_MAX];
    char author[TOOL_AUTHOR_BYTES];
    sy_status st;

    SY_TRY(target_parse(&s->to, o->to, err));
    if (o->any_weights) s->to.any_weights = 1;
    to.target[0] = s->to;
    SY_TRY(targets_text(text, &to, err));
    state->to = keep(s, text);
    state->name = keep(s, o->field);
    state->author = keep(s, tool_author(author));
    state->wish = "";
    if (state->to == NULL || state->name == NULL || state->author == NULL) {
        return sy_error_set(err, SY_ENOMEM, "no memory for the canary");
    }
    state->share = (uint32_t)o->share;
    state->no_shadow = o->no_shadow;
    state->started_us = sy_clock_wall_us();
    state->limits.max_errors = (uint64_t)o->max_errors;
    state->limits.min_rows = (uint64_t)o->min_rows;
    state->limits.max_latency_ratio = o->max_latency_ratio;
    state->limits.max_diff = o->max_diff;
    state->limits.latency_slack_us = o->latency_slack_us;
    SY_TRY(add_fields(s, err));
out:
    return st;
}

/* ---- ends ---- */

static int exit_code(const canary_result *result)
{
    if (result->is_interrupted) return TOOL_EXIT_INTERRUPTED;
    return result->end == CANARY_PROMOTED ? 0 : 1;
}

static int print_end(const canary_result *result, const canary_state *state, int json)
{
    static const char *const name[] = {
        [CANARY_PROMOTED] = "promoted", [CANARY_WENT_BACK] = "went back", [CANARY_LEFT] = "left"};
    const canary_counts *c = &result->counts;
    int code;

    if (json) {
        code = tool_json_print(json_pack(
            "{s:o, s:o, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:f}", "field",
            tool_json_text(state->name, strlen(state->name)), "to",
            tool_json_text(state->to, strlen(state->to)), "result", name[result->end], "phase",
            canary_phase_name(result->phase), "why",
            tool_json_text(result->why, strlen(result->why)), "rows", (json_int_t)c->rows, "errors",
            (json_int_t)c->errors, "compared_rows", (json_int_t)c->compared_rows, "differing_rows",
            (json_int_t)c->differing_rows, "max_diff", c->max_diff < 1e300 ? c->max_diff : 1e300));
    } else {
        printf("canary of %s %s: %s\n", tool_shown(state->name), name[result->end],
               tool_shown(result->why));
        code = tool_flush_stdout();
    }
    return code != 0 ? code : exit_code(result);
}

static int run_and_print(place *p, canary_state *state, int is_new, int json)
{
    canary_result result;
    sy_error err;
    int code;

    sy_error_clear(&err);
    if (tool_pause_open(&err) != SY_OK) return tool_fail(&err);
    if (canary_run(&result, p, state, is_new, json, &err) != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = print_end(&result, state, json);
    }
    tool_pause_close();
    return code;
}

static int start(const canary_options *o, const canary_limits *limits)
{
    canary_state state = {.limits = *limits};
    place p = {0};
    starter s = {.options = o, .p = &p, .state = &state};
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    sy_arena_init(&s.arena, STATE_BYTES_MAX);
    st = place_open(&p, &o->where, &err);
    if (st == SY_OK) st = place_read(&s.map, &p, &err);
    if (st == SY_OK) st = describe(&s, &err);
    code = st == SY_OK ? run_and_print(&p, &state, 1, o->json) : tool_fail(&err);
    field_map_close(s.map);
    sy_arena_free(&s.arena);
    place_close(&p);
    return code;
}

static int cmd_start(int argc, char **argv)
{
    canary_options o = {.duration = "10m",
                        .patience = "10m",
                        .share = 5,
                        .min_rows = 100,
                        .max_latency_ratio = 2,
                        .latency_slack_us = 1000};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"field", "FIELDS", "3/17, or several: 3/17,3/18, 3/* (required)", SY_ARG_STRING, &o.field,
         0, 0},
        {"to", "NODE/DEVICE", "what is tried (required)", SY_ARG_STRING, &o.to, 0, 0},
        {"share", "PERCENT", "of the requests that it gets", SY_ARG_INT, &o.share, 1, 99},
        {"for", "TIME", "how long it has its share before it is promoted: 90s, 10m, 2h",
         SY_ARG_STRING, &o.duration, 0, 0},
        {"min-rows", "N", "rows that must be compared, and then computed by it, to judge it",
         SY_ARG_INT, &o.min_rows, 1, INT64_MAX / 4},
        {"max-errors", "N", "more, and it goes back", SY_ARG_INT, &o.max_errors, 0, INT64_MAX / 4},
        {"max-latency-ratio", "X", "of its messages to those of the targets before; 0: any",
         SY_ARG_DOUBLE, &o.max_latency_ratio, 0, 0},
        {"latency-slack-us", "US", "so much longer is allowed besides: the noise of a machine",
         SY_ARG_INT, &o.latency_slack_us, 0, 1000000000},
        {"max-diff", "X", "of any element of a compared row; 0: every bit must be the same",
         SY_ARG_DOUBLE, &o.max_diff, 0, 0},
        {"patience", "TIME", "how long it may take to load, and rows to come", SY_ARG_STRING,
         &o.patience, 0, 0},
        {"no-shadow", NULL, "do not compare it first", SY_ARG_FLAG, &o.no_shadow, 0, 0},
        {"any-weights", NULL, "it may have other weights or arithmetic than the model (\"!\")",
         SY_ARG_FLAG, &o.any_weights, 0, 0},
        {"json", NULL, "print the end as JSON, and no steps", SY_ARG_FLAG, &o.json, 0, 0},
    };
    canary_limits limits = {0};
    sy_error err;

    sy_error_clear(&err);
    if (sy_args_parse(
            argc, argv, args, SY_COUNT_OF(args),
            "switchyard canary start --field FIELDS --to NODE/DEVICE (--dir RUNDIR | --redis URL) "
            "[options]\n\n"
            "Tries experts on another device: loads them there as a shadow, compares what the "
            "shadow computes,\ngives it a share of the requests, watches errors, latency and "
            "differences as all aggregators count\nthem, and then either promotes it or goes back "
            "to exactly what was before. Each step is in the\nhistory. Ctrl-C goes back. Somebody "
            "else's edit of a field ends the canary and stays. The exit code\nis 0 when it was "
            "promoted, 1 when not.",
            NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    if (o.field == NULL || o.to == NULL) {
        return tool_bad_option("canary start needs --field FIELDS and --to NODE/DEVICE");
    }
    if (!canary_duration(&limits.for_us, o.duration)) {
        return tool_bad_option("--for %s: write a time, as 90s, 10m or 2h", o.duration);
    }
    if (!canary_duration(&limits.patience_us, o.patience)) {
        return tool_bad_option("--patience %s: write a time, as 90s, 10m or 2h", o.patience);
    }
    if (o.max_diff < 0 || o.max_latency_ratio < 0) {
        return tool_bad_option("--max-diff and --max-latency-ratio cannot be negative");
    }
    return start(&o, &limits);
}

/* ---- status ---- */

static json_t *state_json(const canary_state *s, int64_t now_us)
{
    char *text = canary_state_text(s);
    json_t *object = text != NULL ? json_loads(text, 0, NULL) : NULL;

    free(text);
    if (object == NULL) return json_null();
    json_object_set_new(object, "name", tool_json_text(s->name, strlen(s->name)));
    json_object_set_new(object, "watched", json_boolean(canary_is_watched(s, now_us)));
    return object;
}

static void print_state(const canary_state *s, int64_t now_us)
{
    char at[TOOL_TIME_BYTES];

    printf("%s: %s, phase %s for %.0f s, share %u %%, %zu experts, by %s since %s%s%s\n",
           tool_shown(s->name), tool_shown(s->to), canary_phase_name(s->phase),
           (double)(now_us - s->phase_us) / 1e6, s->share, s->n, tool_shown(s->author),
           tool_time_show(at, s->started_us), s->wish[0] != '\0' ? ", wish: " : "",
           tool_shown(s->wish));
    if (!canary_is_watched(s, now_us)) {
        printf("    nobody watches it since %.0f s: switchyard canary watch, promote or abort\n",
               (double)(now_us - s->beat_us) / 1e6);
    }
}

static int print_list(const canary_list *list, const char *model, int json)
{
    const int64_t now_us = sy_clock_wall_us();
    json_t *canaries;

    if (json) {
        canaries = json_array();
        for (size_t i = 0; i < list->n; i++) {
            json_array_append_new(canaries, state_json(&list->state[i], now_us));
        }
        return tool_json_print(json_pack(
            "{s:o, s:o}", "model", tool_json_text(model, strlen(model)), "canaries", canaries));
    }
    for (size_t i = 0; i < list->n; i++) print_state(&list->state[i], now_us);
    if (list->n == 0) printf("no canary\n");
    if (list->n_odd > 0) printf("%zu entries are not what this tool writes\n", list->n_odd);
    return tool_flush_stdout();
}

static int cmd_canary_status(int argc, char **argv)
{
    place_options where = {0};
    int json = 0;
    const sy_arg args[] = {
        PLACE_ARGS(where),
        {"json", NULL, "print JSON", SY_ARG_FLAG, &json, 0, 0},
    };
    canary_list list = {0};
    place p = {0};
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard canary status (--dir RUNDIR | --redis URL) [options]\n\n"
                      "The canaries that run, and whether somebody watches them.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    st = place_open(&p, &where, &err);
    if (st == SY_OK) st = canary_list_read(&list, p.redis, p.model, &err);
    code = st == SY_OK ? print_list(&list, p.model, json) : tool_fail(&err);
    canary_list_free(&list);
    place_close(&p);
    return code;
}

/* ---- promote, abort, watch ---- */

typedef struct wisher {
    place p;
    canary_list list;
    canary_state *state;
    const char *wish; /* "promote", "abort"; NULL: watch it */
    int json;
} wisher;

static sy_status find_canary(wisher *w, const char *name, sy_error *err)
{
    sy_status st;

    SY_TRY(canary_list_read(&w->list, w->p.redis, w->p.model, err));
    for (size_t i = 0; i < w->list.n && w->state == NULL; i++) {
        if (name == NULL || strcmp(w->list.state[i].name, name) == 0) w->state = &w->list.state[i];
    }
    if (name == NULL && w->list.n > 1) {
        return sy_error_set(err, SY_EINVAL, "%zu canaries run: name one", w->list.n);
    }
    if (w->state == NULL) {
        st = sy_error_set(err, SY_ENOTFOUND, "there is no canary%s%s: see switchyard canary status",
                          name != NULL ? " of " : "", name != NULL ? tool_shown(name) : "");
    }
out:
    return st;
}

/* Its watcher acts; this command waits until it has. *is_gone: it has. */
static sy_status ask_watcher(wisher *w, int *is_gone, sy_error *err)
{
    const int64_t until_us = sy_clock_us() + WISH_US;
    canary_list list = {0};
    sy_status st;

    SY_TRY(canary_state_wish(w->p.redis, w->p.model, w->state->name, w->wish, err));
    do {
        const canary_state *now;

        if (tool_pause(250000)) {
            return sy_error_set(err, SY_ECANCELLED, "interrupted: the wish stays");
        }
        SY_TRY(canary_list_read(&list, w->p.redis, w->p.model, err));
        now = canary_find(&list, w->state->name);
        *is_gone = now == NULL;
        if (now != NULL) w->state->beat_us = now->beat_us;
        canary_list_free(&list);
    } while (!*is_gone && sy_clock_us() < until_us);
out:
    return st;
}

static int act(wisher *w)
{
    canary_result result = {.phase = w->state->phase};
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    st = canary_take_up(&w->p, w->state, &w->list.arena, &err);
    if (st != SY_OK && st != SY_EEXISTS) return tool_fail(&err);
    if (w->wish == NULL && st == SY_OK) return run_and_print(&w->p, w->state, 0, w->json);
    if (st == SY_EEXISTS) {
        canary_go_back(&result, &w->p, w->state, err.message);
    } else if (strcmp(w->wish, "promote") == 0) {
        canary_promote_now(&result, &w->p, w->state);
    } else {
        canary_go_back(&result, &w->p, w->state, "aborted by switchyard canary abort");
    }
    (void)print_end(&result, w->state, w->json);
    if (w->wish != NULL && strcmp(w->wish, "abort") == 0) return result.end == CANARY_LEFT;
    return exit_code(&result);
}

static int wish_or_act(wisher *w)
{
    int is_gone = 0;
    sy_error err;
    sy_status st;

    sy_error_clear(&err);
    if (!canary_is_watched(w->state, sy_clock_wall_us())) return act(w);
    if (w->wish == NULL) {
        sy_error_set(&err, SY_EEXISTS, "somebody watches it, %s", tool_shown(w->state->author));
        return tool_fail(&err);
    }
    if (tool_pause_open(&err) != SY_OK) return tool_fail(&err);
    st = ask_watcher(w, &is_gone, &err);
    tool_pause_close();
    if (st != SY_OK) return tool_fail(&err);
    if (!is_gone) return act(w); /* it died with the wish unheard */
    if (w->json) {
        return tool_json_print(json_pack("{s:o, s:s}", "field",
                                         tool_json_text(w->state->name, strlen(w->state->name)),
                                         "result", "done by its watcher"));
    }
    printf("canary of %s has ended, by its watcher: see switchyard placement history\n",
           tool_shown(w->state->name));
    return tool_flush_stdout();
}

static int cmd_wish(int argc, char **argv, const char *wish, const char *usage)
{
    wisher w = {.wish = wish};
    place_options where = {0};
    const sy_arg args[] = {
        PLACE_ARGS(where),
        {"json", NULL, "print JSON", SY_ARG_FLAG, &w.json, 0, 0},
    };
    const char *name = NULL;
    size_t n = 0;
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args), usage, &name, 1, &n, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    if (n == 0 && wish != NULL) return tool_bad_option("canary %s needs FIELD", wish);
    st = place_open(&w.p, &where, &err);
    if (st == SY_OK) st = find_canary(&w, name, &err);
    code = st == SY_OK ? wish_or_act(&w) : tool_fail(&err);
    canary_list_free(&w.list);
    place_close(&w.p);
    return code;
}

static int cmd_promote(int argc, char **argv)
{
    return cmd_wish(argc, argv, "promote",
                    "switchyard canary promote FIELD (--dir RUNDIR | --redis URL) [options]\n\n"
                    "Gives the field to the new target now. The canary's watcher does it; where "
                    "none lives, this command.");
}

static int cmd_abort(int argc, char **argv)
{
    return cmd_wish(argc, argv, "abort",
                    "switchyard canary abort FIELD (--dir RUNDIR | --redis URL) [options]\n\n"
                    "Goes back to what was before. The canary's watcher does it; where none lives, "
                    "this command.");
}

static int cmd_canary_watch(int argc, char **argv)
{
    return cmd_wish(argc, argv, NULL,
                    "switchyard canary watch [FIELD] (--dir RUNDIR | --redis URL) [options]\n\n"
                    "Takes up a canary whose watcher died, where it is, as canary start would have "
                    "gone on.");
}

static const struct canary_command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} canary_commands[] = {
    {"start", cmd_start, "try experts on another device, and promote it or go back"},
    {"status", cmd_canary_status, "which canaries run"},
    {"promote", cmd_promote, "end one now: the new target has won"},
    {"abort", cmd_abort, "end one now: go back"},
    {"watch", cmd_canary_watch, "take up one whose watcher died"},
};

int cmd_canary(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < SY_COUNT_OF(canary_commands); i++) {
        if (strcmp(argv[1], canary_commands[i].name) == 0) {
            return canary_commands[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        printf("usage: switchyard canary COMMAND (--dir RUNDIR | --redis URL) [options]\n\n");
        for (size_t i = 0; i < SY_COUNT_OF(canary_commands); i++) {
            printf("  %-8s %s\n", canary_commands[i].name, canary_commands[i].help);
        }
        printf("\n`switchyard canary COMMAND --help` tells a command's options.\n");
        return 0;
    }
    fprintf(stderr, "switchyard: error: canary needs a command: start, status, promote, abort or "
                    "watch\n");
    return 2;
}
