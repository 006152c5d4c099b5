/* cmd_placement_check.c - `switchyard placement check`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "check_report.h"
#include "placement_commands.h"
#include "placement_wait.h"
#include "tool_placement.h"
#include "tool_print.h"
#include "tool_report.h"

static int print_json(const check_report *r, const place *p, const sy_snapshot *now)
{
    json_t *findings = json_array();
    json_t *states = json_object();
    char hash[20];

    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)sy_snapshot_hash(now));
    for (size_t i = 0; i < r->n; i++) {
        const check_finding *f = &r->finding[i];

        json_array_append_new(findings, json_pack("{s:s, s:o, s:o}", "kind", f->kind, "subject",
                                                  tool_json_text(f->subject, strlen(f->subject)),
                                                  "why", tool_json_text(f->why, strlen(f->why))));
    }
    for (int state = SY_SHARD_LOADING; state < SY_N_SHARD_STATES; state++) {
        json_object_set_new(states, sy_shard_state_name((sy_shard_state)state),
                            json_integer((json_int_t)r->n_in_state[state]));
    }
    return tool_json_print(json_pack("{s:o, s:s, s:b, s:b, s:I, s:I, s:o, s:o, s:I}", "model",
                                     tool_json_text(p->model, strlen(p->model)), "hash", hash,
                                     "well", r->n == 0, "dimensions_known", !p->is_guessed,
                                     "processes", (json_int_t)r->n_processes, "switched",
                                     (json_int_t)r->n_switched, "shards", states, "findings",
                                     findings, "more", (json_int_t)r->n_more));
}

static int print_text(const check_report *r, const place *p, const sy_snapshot *now)
{
    char text[TOOL_GRID_BYTES];

    printf("model %s: %s%s, hash %016llx\n", p->model, tool_grid_text(text, &p->grid),
           p->is_guessed ? " (guessed from the fields: --model-dir DIR knows)" : "",
           (unsigned long long)sy_snapshot_hash(now));
    printf("%zu of %zu processes have it in force; shards:", r->n_switched, r->n_processes);
    for (int state = SY_SHARD_LOADING; state < SY_N_SHARD_STATES; state++) {
        printf("%s %zu %s", state == SY_SHARD_LOADING ? "" : ",", r->n_in_state[state],
               sy_shard_state_name((sy_shard_state)state));
    }
    printf("\n");
    for (size_t i = 0; i < r->n; i++) {
        printf("%s: %s: %s\n", r->finding[i].kind, r->finding[i].subject, r->finding[i].why);
    }
    if (r->n_more > 0) printf("... and %zu more\n", r->n_more);
    printf("%s\n", r->n == 0 ? "all is well" : "something is wrong");
    return tool_flush_stdout();
}

static sy_status check(check_report *report, place *p, sy_snapshot **now, sy_error *err)
{
    cluster_facts facts = {0};
    field_map *map = NULL;
    sy_status st;

    SY_TRY(place_read(&map, p, err));
    SY_TRY(field_map_snapshot(now, map, FIELD_BEFORE, &p->grid, err));
    SY_TRY(facts_take(&facts, p->redis, p->model, FACT_PLACEMENT | FACT_SHARDS, err));
    st = check_report_make(report, *now, &facts, err);
out:
    facts_free(&facts);
    field_map_close(map);
    return st;
}

int cmd_placement_check(int argc, char **argv)
{
    place_options where = {0};
    int json = 0;
    const sy_arg args[] = {
        PLACE_ARGS(where),
        {"json", NULL, "print JSON", SY_ARG_FLAG, &json, 0, 0},
    };
    check_report report = {0};
    sy_snapshot *now = NULL;
    place p = {0};
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args),
                      "switchyard placement check (--dir RUNDIR | --redis URL) [options]\n\n"
                      "Finds what is wrong: refused fields, experts without targets, nodes and "
                      "devices that are not\nthere, nodes with other weights, processes that have "
                      "another placement in force, shards that\nfailed to load. The exit code is 0 "
                      "when all is well, 3 when something is wrong, 1 when it could\nnot be found "
                      "out.",
                      NULL, 0, NULL, &err) != SY_OK) {
        return tool_usage_error(&err);
    }
    st = place_open(&p, &where, &err);
    if (st == SY_OK) st = check(&report, &p, &now, &err);
    if (st != SY_OK) {
        code = tool_fail(&err);
    } else {
        code = json ? print_json(&report, &p, now) : print_text(&report, &p, now);
        if (code == 0 && report.n > 0) code = TOOL_EXIT_CHECK;
    }
    free(report.finding);
    sy_snapshot_unref(now);
    place_close(&p);
    return code;
}
