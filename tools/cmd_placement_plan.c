/* cmd_placement_plan.c - `switchyard placement plan|apply`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cluster_load.h"
#include "placement_commands.h"
#include "placement_commit.h"
#include "plan_file.h"
#include "plan_report.h"
#include "sy_file.h"
#include "sy_model.h"
#include "tool_print.h"
#include "tool_report.h"
#include "tool_text.h"

#define WORDS_MAX         1024
#define SHOWN_EXPERTS_MAX 40

typedef struct plan_options {
    place_options where;
    commit_options commit;
    const char *out;
    int is_set; /* --set: the words are FIELD VALUE pairs */
    const char *word[WORDS_MAX];
    size_t n_words;
} plan_options;

typedef struct plan_run {
    const plan_options *options;
    place p;
    field_map *map;
    plan_file file;
    tool_field_change *pairs; /* of --set */
    sy_snapshot *before, *after;
    cluster_facts facts;
    uint64_t *rows;
    uint64_t shard_bytes;
    plan_report report;
} plan_run;

static void end_run(plan_run *r)
{
    plan_report_free(&r->report);
    facts_free(&r->facts);
    free(r->rows);
    free(r->pairs);
    sy_snapshot_unref(r->before);
    sy_snapshot_unref(r->after);
    plan_file_free(&r->file);
    field_map_close(r->map);
    place_close(&r->p);
}

/* ---- the edits ---- */

static sy_status read_edits(plan_run *r, sy_error *err)
{
    const plan_options *o = r->options;
    sy_status st = SY_OK;

    if (!o->is_set) return plan_file_read(&r->file, o->word[0], err);
    sy_arena_init(&r->file.arena, 1 << 20);
    r->pairs = calloc(o->n_words / 2 + 1, sizeof(*r->pairs));
    if (r->pairs == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the plan");
    for (size_t i = 0; i + 1 < o->n_words; i += 2) {
        const char *value = o->word[i + 1];

        r->pairs[r->file.n++] = (tool_field_change){
            .field = o->word[i], .after = strcmp(value, "-") != 0 ? value : NULL};
    }
    r->file.change = r->pairs;
    return st;
}

/* Fields that servers would refuse are the file's mistake, and are told before anything is
 * written. */
static sy_status check_edit(const place *p, const tool_field_change *change, sy_error *err)
{
    sy_field field;
    sy_target_list list;
    sy_status st;

    /* What is deleted may be nonsense: that is how it goes away. */
    if (change->after == NULL) return SY_OK;
    SY_TRY(sy_field_parse(&field, change->field, strlen(change->field), place_bounds(p), err));
    SY_TRY(sy_targets_parse(&list, change->after, strlen(change->after), err));
out:
    if (st != SY_OK) {
        sy_error_prefix(err, "%s = '%s'", tool_shown(change->field), tool_shown(change->after));
    }
    return st;
}

static sy_status take_edits(plan_run *r, int is_compared, sy_error *err)
{
    sy_status st = SY_OK;

    if (r->file.model != NULL && strcmp(r->file.model, r->p.model) != 0) {
        return sy_error_set(err, SY_EINVAL, "the plan is for model %s, not for %s",
                            tool_shown(r->file.model), tool_shown(r->p.model));
    }
    for (size_t i = 0; i < r->file.n; i++) {
        const tool_field_change *change = &r->file.change[i];

        SY_TRY(check_edit(&r->p, change, err));
        st = field_map_set(r->map, change->field, change->after);
        if (st == SY_OK && is_compared && r->file.has_before) {
            st = field_map_expect(r->map, change->field, change->before);
        }
        if (st != SY_OK) return sy_error_set(err, st, "no memory for the plan");
    }
    SY_TRY(field_map_snapshot(&r->before, r->map, FIELD_BEFORE, &r->p.grid, err));
    SY_TRY(field_map_snapshot(&r->after, r->map, FIELD_AFTER, &r->p.grid, err));
out:
    return st;
}

static sy_status open_run(plan_run *r, const plan_options *o, int is_compared, sy_error *err)
{
    sy_status st;

    memset(r, 0, sizeof(*r));
    r->options = o;
    SY_TRY(read_edits(r, err));
    SY_TRY(place_open(&r->p, &o->where, err));
    SY_TRY(place_read(&r->map, &r->p, err));
    SY_TRY(take_edits(r, is_compared, err));
out:
    return st;
}

/* ---- plan: what it would do ---- */

static sy_status evaluate(plan_run *r, sy_error *err)
{
    sy_model *model = NULL;
    sy_status st;

    SY_TRY(facts_take(&r->facts, r->p.redis, r->p.model, FACT_PLACEMENT | FACT_SHARDS, err));
    (void)!cluster_load_take(&r->rows, &r->facts, r->p.grid.layers, r->p.grid.experts);
    if (r->p.model_dir[0] != '\0' &&
        sy_model_open(&model, r->p.model_dir, r->p.model, NULL) == SY_OK) {
        r->shard_bytes = sy_model_expert_bytes(model);
    }
    const plan_input input = {.before = r->before,
                              .after = r->after,
                              .facts = &r->facts,
                              .rows = r->rows,
                              .shard_bytes = r->shard_bytes};
    st = plan_report_make(&r->report, &input, err);
out:
    sy_model_close(model);
    return st;
}

/* Calls fn for each expert whose targets differ, until it returns 0. */
static void each_expert(const plan_run *r,
                        int (*fn)(void *arg, uint32_t layer, uint32_t expert, const char *before,
                                  const char *after),
                        void *arg)
{
    char text[2][SY_PLACEMENT_VALUE_MAX];

    for (uint32_t layer = 0; layer < r->p.grid.layers; layer++) {
        for (uint32_t expert = 0; expert < r->p.grid.experts; expert++) {
            const sy_target_list *was = sy_snapshot_targets(r->before, layer, expert);
            const sy_target_list *is = sy_snapshot_targets(r->after, layer, expert);

            snprintf(text[0], sizeof(text[0]), "none");
            snprintf(text[1], sizeof(text[1]), "none");
            if (was != NULL) sy_targets_format(text[0], sizeof(text[0]), was);
            if (is != NULL) sy_targets_format(text[1], sizeof(text[1]), is);
            if (strcmp(text[0], text[1]) == 0) continue;
            if (!fn(arg, layer, expert, text[0], text[1])) return;
        }
    }
}

static int print_expert(void *arg, uint32_t layer, uint32_t expert, const char *before,
                        const char *after)
{
    size_t *n = arg;

    if (*n == SHOWN_EXPERTS_MAX) return 0;
    (*n)++;
    printf("  %u/%u: %s -> %s\n", layer, expert, before, after);
    return 1;
}

static void print_devices(const plan_report *report)
{
    printf("\n%-28s  %15s  %17s  %6s\n", "DEVICE", "EXPERTS",
           report->has_load ? "LOAD" : "OF ALL EXPERTS", "LOADS");
    for (size_t i = 0; i < report->n_devices; i++) {
        const plan_device *d = &report->device[i];
        char name[SY_NODE_BYTES + SY_DEVICE_BYTES];

        snprintf(name, sizeof(name), "%s/%s", d->node, d->device);
        printf("%-28s  %6zu -> %5zu  %6.1f -> %5.1f %%  %6zu\n", name, d->n_before, d->n_after,
               100 * d->load_before, 100 * d->load_after, d->n_loads);
    }
    printf("the fullest device has %.2f times the average, and would have %.2f times%s\n",
           report->worst_before, report->worst_after,
           report->has_load ? "" : " (by experts: no aggregator tells the load)");
}

static void print_plan(const plan_run *r)
{
    const plan_report *report = &r->report;
    char size[TOOL_SIZE_BYTES];
    size_t n_shown = 0;

    printf("%zu experts change:\n", report->n_experts);
    each_expert(r, print_expert, &n_shown);
    if (report->n_experts > n_shown) printf("  ... and %zu more\n", report->n_experts - n_shown);
    if (report->shard_bytes > 0) {
        printf("%zu shards have to be loaded, %s; %zu are not wanted any more where they are\n",
               report->n_loads, tool_size(size, report->load_bytes), report->n_drops);
    } else {
        printf("%zu shards have to be loaded (of a size that no node tells: --model-dir DIR does); "
               "%zu are not wanted any more where they are\n",
               report->n_loads, report->n_drops);
    }
    print_devices(report);
    for (size_t i = 0; i < report->n_warnings; i++) {
        printf("warning: %s\n", report->warning[i]);
    }
}

static int add_expert_json(void *arg, uint32_t layer, uint32_t expert, const char *before,
                           const char *after)
{
    json_array_append_new(arg,
                          json_pack("{s:I, s:I, s:s, s:s}", "layer", (json_int_t)layer, "expert",
                                    (json_int_t)expert, "before", before, "after", after));
    return 1;
}

static int print_plan_json(const plan_run *r)
{
    const plan_report *report = &r->report;
    json_t *experts = json_array();
    json_t *devices = json_array();
    json_t *warnings = json_array();

    each_expert(r, add_expert_json, experts);
    for (size_t i = 0; i < report->n_devices; i++) {
        const plan_device *d = &report->device[i];

        json_array_append_new(
            devices, json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:I}", "node", d->node,
                               "device", d->device, "experts_before", (json_int_t)d->n_before,
                               "experts_after", (json_int_t)d->n_after, "load_before",
                               d->load_before, "load_after", d->load_after, "loads",
                               (json_int_t)d->n_loads, "memory_bytes", (json_int_t)d->memory_bytes,
                               "memory_max_bytes", (json_int_t)d->memory_max_bytes));
    }
    for (size_t i = 0; i < report->n_warnings; i++) {
        json_array_append_new(warnings,
                              tool_json_text(report->warning[i], strlen(report->warning[i])));
    }
    return tool_json_print(json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:o, s:o}", "model",
        tool_json_text(r->p.model, strlen(r->p.model)), "experts", experts, "loads",
        (json_int_t)report->n_loads, "drops", (json_int_t)report->n_drops, "shard_bytes",
        (json_int_t)report->shard_bytes, "load_bytes", (json_int_t)report->load_bytes,
        "load_is_known", report->has_load, "imbalance_before", report->worst_before,
        "imbalance_after", report->worst_after, "devices", devices, "warnings", warnings));
}

static sy_status keep_plan(plan_run *r, sy_error *err)
{
    const tool_field_change *change;
    size_t n;
    char hash[20];
    char *text = NULL;
    sy_status st;

    SY_TRY(field_map_changes(&change, &n, r->map));
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(r->before));
    text = plan_file_text(r->p.model, hash, change, n);
    if (text == NULL) return sy_error_set(err, SY_ENOMEM, "no memory for the plan");
    SY_TRY(sy_file_write_atomic(r->options->out, text, strlen(text), err));
    if (!r->options->commit.json) {
        printf("\nkept in %s, made from placement %s: switchyard placement apply %s\n",
               r->options->out, hash, r->options->out);
    }
out:
    free(text);
    return st;
}

int cmd_placement_plan(int argc, char **argv)
{
    plan_options o = {0};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"set", NULL, "the arguments are FIELD VALUE pairs, not a file", SY_ARG_FLAG, &o.is_set, 0,
         0},
        {"out", "PLAN.json", "keep the plan with what it was made from, for placement apply",
         SY_ARG_STRING, &o.out, 0, 0},
        {"json", NULL, "print JSON", SY_ARG_FLAG, &o.commit.json, 0, 0},
    };
    static plan_run r;
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard placement plan (FILE | - | --set FIELD VALUE ...) (--dir RUNDIR | --redis "
        "URL) [options]\n\n"
        "Says what edits would do, and changes nothing: experts that move, shards to load, the "
        "balance\nbefore and after, and what would go wrong. FILE has lines of FIELD VALUE ('-' "
        "deletes, '#'\ncomments) or a JSON object of them; - is standard input.",
        o.word, WORDS_MAX, &o.n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (o.is_set ? o.n_words == 0 || o.n_words % 2 != 0 : o.n_words != 1) {
        return tool_bad_option("placement plan needs one FILE, or -, or --set FIELD VALUE ...");
    }
    st = open_run(&r, &o, 0, &err);
    if (st == SY_OK) st = evaluate(&r, &err);
    if (st == SY_OK && !o.commit.json) print_plan(&r);
    if (st == SY_OK && o.out != NULL) st = keep_plan(&r, &err);
    if (st != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = o.commit.json ? print_plan_json(&r) : tool_flush_stdout();
    }
    end_run(&r);
    return code;
}

/* ---- apply ---- */

int cmd_placement_apply(int argc, char **argv)
{
    plan_options o = {.commit = {.timeout_s = COMMIT_TIMEOUT_S}};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"force", NULL, "also fields that somebody changed since the plan was made", SY_ARG_FLAG,
         &o.commit.force, 0, 0},
        {"reason", "TEXT", "why, for the history", SY_ARG_STRING, &o.commit.reason, 0, 0},
        WAIT_ARGS(o.commit),
    };
    static plan_run r;
    char *command;
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    st = sy_args_parse(
        argc, argv, args, SY_COUNT_OF(args),
        "switchyard placement apply (PLAN.json | FILE | -) (--dir RUNDIR | --redis URL) "
        "[options]\n\n"
        "Makes the edits of a file as placement plan reads it, all or none. Those of a plan that "
        "was kept\nwith --out are made only where the placement still is what the plan was made "
        "from; otherwise\nnothing is written, the exit code is 1, and the text says who changed "
        "what. Exit code 4: --wait\ntook longer than --timeout-s.",
        o.word, WORDS_MAX, &o.n_words, &err);
    if (st != SY_OK) return tool_usage_error(&err);
    if (o.n_words != 1) return tool_bad_option("placement apply needs one file, or -");
    command = commit_command("switchyard placement apply", o.word, o.n_words);
    if (o.commit.reason == NULL) o.commit.reason = "a plan";
    o.commit.command = command != NULL ? command : "switchyard placement apply";
    st = open_run(&r, &o, 1, &err);
    code = st == SY_OK ? placement_commit(&r.p, r.map, &o.commit) : tool_fail(&err);
    end_run(&r);
    free(command);
    return code;
}
