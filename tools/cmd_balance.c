/* cmd_balance.c - `switchyard balance`: replicates hot experts and moves others, so that the
 * devices of a layer have the same work; once, or for ever with --watch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance_watch.h"
#include "commands.h"
#include "tool_line.h"
#include "tool_pause.h"
#include "tool_print.h"

/* ---- once ---- */

/* Who had no lease at the first look: gone is who has none at the second either. */
static int was_away(void *arg, const char *node)
{
    const cluster_facts *const first = arg;

    return facts_node(first, node) == NULL;
}

static sy_status wait_for_rows(const balance_options *o, sy_error *err)
{
    tool_line line = {0};
    int is_interrupted;

    tool_line_show(&line, "counting rows for %lld s (--sample-s)", (long long)o->sample_s);
    is_interrupted = tool_pause(o->sample_s * 1000000);
    tool_line_end(&line);
    return is_interrupted ? sy_error_set(err, SY_ECANCELLED, "interrupted") : SY_OK;
}

/* Looks twice, with time between in which rows are counted; with --since-start once. */
static sy_status look(balance_round *r, cluster_facts *first, const balance_options *o,
                      sy_error *err)
{
    balance_sample before = {0}, after = {0};
    sy_status st;

    SY_TRY(balance_round_look(r, o, err));
    if (!o->since_start) {
        SY_TRY(balance_sample_take(&before, &r->facts, &r->place.grid, err));
        *first = r->facts;
        memset(&r->facts, 0, sizeof(r->facts));
        balance_round_free(r);
        SY_TRY(wait_for_rows(o, err));
        SY_TRY(balance_round_look(r, o, err));
    }
    SY_TRY(balance_sample_take(&after, &r->facts, &r->place.grid, err));
    if (o->since_start || (before.layers == after.layers && before.experts == after.experts)) {
        r->n_rows = balance_sample_difference(r->rows, o->since_start ? NULL : &before, &after);
    }
out:
    balance_sample_free(&before);
    balance_sample_free(&after);
    return st;
}

static int balance_once(const balance_options *o)
{
    balance_round r = {0};
    cluster_facts first = {0};
    sy_error err;
    int code;
    sy_status st;

    sy_error_clear(&err);
    SY_TRY(tool_pause_open(&err));
    SY_TRY(look(&r, &first, o, &err));
    SY_TRY(balance_round_plan(&r, was_away, &first, &err));
    if (!o->dry_run) SY_TRY(balance_round_apply(&r, NULL, &err));
out:
    if (st == SY_OK) {
        if (!o->json) balance_print(&r);
        code = o->json ? balance_print_json(&r, 0) : tool_flush_stdout();
    } else {
        code = st == SY_ECANCELLED ? TOOL_EXIT_INTERRUPTED : tool_fail(&err);
    }
    tool_pause_close();
    balance_round_free(&r);
    facts_free(&first);
    return code;
}

/* ---- command line ---- */

static const char usage[] =
    "switchyard balance (--dir RUNDIR | --redis URL) [options]\n\n"
    "Takes the load of every expert from the aggregators, replicates the hottest and moves others\n"
    "until the devices of each layer have the same work, with as few bytes as possible; prints "
    "why;\n"
    "and writes that to the placement (--dry-run: does not). What stood on nodes that are gone is\n"
    "placed again first: experts without any holder, then those on fewer nodes than the minimum\n"
    "(--min-replicas), below which none falls. Experts whose value has shares, shadows or \"!\" "
    "are\n"
    "left alone.\n"
    "With --watch it does so every --interval-s, one balancer at a time, waits between rounds "
    "until\n"
    "what was asked for is in memory, and ends with SIGTERM.";

/* 0: it is neither "auto" nor a number of replicas. */
static int parse_minimum(balance_options *o)
{
    char *end;
    long n;

    o->replicas_min = -1;
    if (strcmp(o->min_text, "auto") == 0) return 1;
    n = strtol(o->min_text, &end, 10);
    if (end == o->min_text || *end != '\0' || n < 0 || n > SY_TARGETS_MAX) return 0;
    o->replicas_min = n;
    return 1;
}

int cmd_balance(int argc, char **argv)
{
    balance_options o = {.interval_s = 30,
                         .sample_s = 10,
                         .dead_after_s = 30,
                         .budget_mb = 4096,
                         .spare = -1,
                         .replicas_max = 8,
                         .min_text = "auto",
                         .rows_min = 1000,
                         .min_gain = 0.02,
                         .threshold = 1.05};
    const sy_arg args[] = {
        PLACE_ARGS(o.where),
        {"dry-run", NULL, "print it and write nothing", SY_ARG_FLAG, &o.dry_run, 0, 0},
        {"watch", NULL, "again and again", SY_ARG_FLAG, &o.watch, 0, 0},
        {"interval-s", "S", "--watch: from one round to the next", SY_ARG_INT, &o.interval_s, 1,
         86400},
        {"dead-after-s", "S",
         "--watch: a node without a lease for so long is gone, and what it held is placed again",
         SY_ARG_INT, &o.dead_after_s, 1, 86400 * 30},
        {"sample-s", "S", "how long rows are counted (--watch: before the first round)", SY_ARG_INT,
         &o.sample_s, 1, 86400},
        {"since-start", NULL, "take all rows since aggregators began instead", SY_ARG_FLAG,
         &o.since_start, 0, 0},
        {"min-rows", "N", "rows of a layer that are enough to go by", SY_ARG_INT, &o.rows_min, 0,
         INT64_C(1) << 50},
        {"threshold", "X", "max/mean device load, mean of layers, that is good enough",
         SY_ARG_DOUBLE, &o.threshold, 0, 0},
        {"min-gain", "X",
         "a layer is changed only if its max/mean falls by this much, and this much for each tenth "
         "of its experts that must be loaded; less where more than --threshold would be left",
         SY_ARG_DOUBLE, &o.min_gain, 0, 0},
        {"budget-mb", "N", "to load at most, in one round; 0: no limit", SY_ARG_INT, &o.budget_mb,
         0, INT64_C(1) << 40},
        {"spare", "N", "replicas that a layer may have in all; -1: an eighth of its experts",
         SY_ARG_INT, &o.spare, -1, 1 << 20},
        {"max-replicas", "N", "of one expert", SY_ARG_INT, &o.replicas_max, 1, SY_TARGETS_MAX},
        {"min-replicas", "N",
         "nodes that each expert stays on, or comes to, for when one dies; auto: as many as the "
         "placement gives every expert now; 1: evenness alone decides",
         SY_ARG_STRING, &o.min_text, 0, 0},
        {"json", NULL, "print JSON: one object on one line, with --watch one for each round",
         SY_ARG_FLAG, &o.json, 0, 0},
    };
    sy_error err;

    sy_error_clear(&err);
    if (sy_args_parse(argc, argv, args, SY_COUNT_OF(args), usage, NULL, 0, NULL, &err) != SY_OK)
        return tool_usage_error(&err);
    if (!(o.min_gain >= 0.0)) return tool_bad_option("--min-gain: 0 or more");
    if (!(o.threshold >= 1.0)) return tool_bad_option("--threshold: 1 or more, 1 is perfect");
    if (!parse_minimum(&o))
        return tool_bad_option("--min-replicas: auto, or a number up to 16, as in 2");
    if (o.replicas_min > o.replicas_max)
        return tool_bad_option("--min-replicas is above --max-replicas");
    if (o.watch && o.since_start)
        return tool_bad_option("--since-start does not go with --watch, which counts by round");
    return o.watch ? balance_watch(&o) : balance_once(&o);
}
